//! The pages of docs/reference that come from the definition of the command line. The tests compare them with it.
//!
//! `NACRE_RENEW=1 cargo test -p nacre-cli --lib reference` writes the pages anew.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use clap::builder::StyledStr;
use clap::{Arg, Command, CommandFactory};

use crate::args::Cli;
use crate::mount_options::table;
use crate::pages::{self, Section};

/// The command that writes the pages.
const RENEW: &str = "NACRE_RENEW=1 cargo test -p nacre-cli --lib reference";

/// A line of a table, in which a bar would end a cell.
fn row(cells: &[&str]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|").replace('\n', " ")).collect();
    format!("| {} |\n", cells.join(" | "))
}

fn line(text: &StyledStr) -> String {
    text.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// An argument as it is written.
fn form(arg: &Arg) -> String {
    let names: Vec<String> =
        arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect();
    let value = names.join(" ");
    if arg.is_positional() {
        return value;
    }
    let short = arg.get_short().map(|letter| format!("-{letter}"));
    let long = arg.get_long().map(|name| format!("--{name}"));
    let flags: Vec<String> = [short, long].into_iter().flatten().collect();
    let takes_value = arg.get_action().takes_values() && !value.is_empty();
    flags.join(", ") + &if takes_value { format!(" {value}") } else { String::new() }
}

/// The default and the possible values of an argument, as a part of a sentence.
fn values(arg: &Arg) -> String {
    if !arg.get_action().takes_values() {
        return String::new();
    }
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let possible: Vec<_> =
        arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    let mut text = String::new();
    if !possible.is_empty() {
        write!(text, ": {}", possible.join(", ")).expect("a string takes it");
    }
    if !defaults.concat().is_empty() {
        write!(text, " (default: {})", defaults.join(", ")).expect("a string takes it");
    }
    text
}

fn arguments(page: &Command) -> String {
    let is_usual = |arg: &&Arg| matches!(arg.get_id().as_str(), "help" | "version");
    let shown = page.get_arguments().filter(|arg| !arg.is_hide_set() && !is_usual(arg));
    let rows: String = shown
        .map(|arg| {
            let meaning = arg.get_help().map(line).unwrap_or_default() + &values(arg);
            row(&[&format!("`{}`", form(arg)), &meaning])
        })
        .collect();
    if rows.is_empty() { rows } else { row(&["argument", "meaning"]) + "| --- | --- |\n" + &rows + "\n" }
}

/// The pages of all commands, one below the other.
fn commands() -> String {
    let mut text = format!(
        "# Commands\n\n<!-- {RENEW} writes this page. -->\n\nThis page has the content of the manual pages. Each \
         command also has `-h`, `--help` and `-V`.\nMount options are in [options.md](options.md).\n\nCommands without exit codes of their own have those of \
         `nacre`.\n"
    );
    let usual = pages::sections(&Cli::command());
    for page in pages::all() {
        let name = pages::name(&page);
        let called = if name.contains('.') { name.to_owned() } else { name.replace('-', " ") };
        write!(text, "\n## {called}\n\n").expect("a string takes it");
        let about = page.get_long_about().or(page.get_about()).map(ToString::to_string).unwrap_or_default();
        for paragraph in about.split("\n\n") {
            let sentence = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
            let end = if sentence.ends_with(['.', ':']) { "" } else { "." };
            write!(text, "{sentence}{end}\n\n").expect("a string takes it");
        }
        let usage = page.clone().render_usage().to_string();
        write!(text, "```\n{}\n```\n\n", usage.trim_start_matches("Usage: ")).expect("a string takes it");
        text += &arguments(&page);
        let is_usual = |section: &Section| section.title == pages::EXIT_STATUS && usual.contains(section);
        for section in pages::sections(&page).iter().filter(|section| name == "nacre" || !is_usual(section)) {
            write!(text, "{}:\n\n", section.title).expect("a string takes it");
            for (term, meaning) in &section.items {
                let is_list = meaning.is_empty();
                let item = if is_list { format!("- {term}\n") } else { format!("- `{term}`: {meaning}\n") };
                text += &item;
            }
            text += "\n";
        }
        text.truncate(text.trim_end().len());
        text += "\n";
    }
    text
}

/// The mount options, by groups.
fn options() -> String {
    let mut text = format!(
        "# Mount options\n\n<!-- {RENEW} writes this page. -->\n\nThese options follow `-o` of `mount -t nacre` and of \
         `nacre mount`. They can be in `/etc/fstab`.\n`mount -o remount` changes those that have \"yes\" in the column \
         remount.\n"
    );
    for (title, settings) in table::GROUPS {
        write!(text, "\n## {title}\n\n").expect("a string takes it");
        text += &row(&["option", "meaning", "default", "remount"]);
        text += "| --- | --- | --- | --- |\n";
        for setting in settings {
            let remount = if setting.remount { "yes" } else { "" };
            text += &row(&[&format!("`{}`", setting.form()), setting.meaning, setting.default, remount]);
        }
    }
    text
}

/// Compares a page with its file, or writes the file if that is asked for.
fn compare(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference").join(name);
    if std::env::var_os("NACRE_RENEW").is_some() {
        fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    let is = fs::read_to_string(&path).unwrap_or_default();
    assert!(is == text, "docs/reference/{name} is not what the command line says: {RENEW}");
}

#[test]
fn the_page_of_commands_is_of_today() {
    compare("commands.md", &commands());
}

#[test]
fn the_page_of_options_is_of_today() {
    compare("options.md", &options());
}
