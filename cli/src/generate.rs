//! Files for packagers: shell completions and manual pages, from the definition of the command line itself.

use std::fs;
use std::io;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::args::Cli;
use crate::failure::Failure;
use crate::mount_options::table;
use crate::{output, pages};

/// Writes the completion script of a shell to standard output.
pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "nacre", &mut script);
    output::text_out(&String::from_utf8_lossy(&script))
}

/// Writes the manual pages into a directory, which is created if it does not exist.
pub(crate) fn man(dir: &Path) -> Result<(), Failure> {
    fs::create_dir_all(dir).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Failure::new("man", dir.display(), "it is not a directory")
            .advice("give one, which is made if it is not there"),
        _ => Failure::new("man", dir.display(), error),
    })?;
    for page in pages::all() {
        let path = dir.join(format!("{}.{SECTION}", pages::name(&page)));
        let written = manual_page(&page).and_then(|text| fs::write(&path, text));
        written.map_err(|error| Failure::new("man", path.display(), error))?;
    }
    Ok(())
}

/// The section of the manual.
const SECTION: &str = "8";

/// A page in the language of man(7).
fn manual_page(page: &Command) -> io::Result<Vec<u8>> {
    let is_of_mount = page.get_arguments().any(|arg| arg.get_value_names().is_some_and(is_options));
    let mut command = page.clone();
    if is_of_mount {
        // The help has the options here. A page has a section for them.
        command = command.mut_args(|arg| match arg.get_value_names().is_some_and(is_options) {
            true => arg.long_help("Options as in fstab, separated by commas: see MOUNT OPTIONS"),
            false => arg,
        });
    }
    let name = pages::name(page);
    let man = Man::new(command).title(name).section(SECTION).source(source(page)).manual("nacre");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if page.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    let mut rest = Roff::default();
    if is_of_mount {
        mount_options(&mut rest);
    }
    let sections = pages::sections(page);
    for section in sections.iter().filter(|section| section.title != pages::SEE_ALSO) {
        rest.control("SH", [section.title.to_uppercase().as_str()]);
        for (term, meaning) in &section.items {
            item(&mut rest, term, meaning);
        }
    }
    rest.control("SH", ["SEE ALSO"]);
    rest.text([roman(see_also(page, &sections))]);
    rest.to_writer(&mut text)?;
    Ok(text)
}

fn is_options(names: &[clap::builder::Str]) -> bool {
    names.iter().any(|name| name == "OPTIONS")
}

fn source(page: &Command) -> String {
    format!("nacre {}", page.get_version().unwrap_or(env!("CARGO_PKG_VERSION")))
}

fn item(page: &mut Roff, term: &str, meaning: &str) {
    page.control("TP", []);
    page.text([bold(term)]);
    page.text([roman(meaning)]);
}

/// The options after `-o`.
fn mount_options(page: &mut Roff) {
    page.control("SH", ["MOUNT OPTIONS"]);
    page.text([roman("Options marked \"remount\" can be changed on a running mount, with remount.")]);
    for (title, settings) in table::GROUPS {
        page.control("SS", [title]);
        for setting in settings {
            let properties = Some(setting.properties()).filter(|said| !said.is_empty());
            let properties = properties.map_or_else(String::new, |said| format!(" ({said})"));
            item(page, &setting.form(), &format!("{}{properties}", setting.meaning));
        }
    }
}

/// The pages that a page names itself, the pages of its subcommands, and that of the command it belongs to.
fn see_also(page: &Command, sections: &[pages::Section]) -> String {
    let own = sections.iter().filter(|section| section.title == pages::SEE_ALSO);
    let own = own.flat_map(|section| section.items.iter()).flat_map(|(names, _)| names.split(", "));
    let name = pages::name(page);
    let above = name.rsplit_once('-').map_or("nacre", |(above, _)| above);
    let below = page.get_subcommands().filter(|sub| !sub.is_hide_set()).map(pages::name);
    let ours = std::iter::once(above).chain(below).map(|name| format!("{name}({SECTION})"));
    let mut names: Vec<String> = Vec::new();
    for other in own.map(str::to_owned).chain(ours) {
        if !names.contains(&other) && other != format!("{name}({SECTION})") {
            names.push(other);
        }
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{SECTION, manual_page};
    use crate::pages;

    /// Pages of Linux that ours refer to, as Debian and Fedora have them.
    const OTHERS: [&str; 15] = [
        "close(2)",
        "df(1)",
        "fsck(8)",
        "fstab(5)",
        "fstrim(8)",
        "fsync(2)",
        "mkfs(8)",
        "mount(8)",
        "strace(1)",
        "sync(2)",
        "syncfs(2)",
        "umount(8)",
        "write(2)",
        "ext4(5)",
        "tmpfs(5)",
    ];

    fn rendered() -> Vec<(String, String)> {
        let text = |page| String::from_utf8(manual_page(page).expect("it can be written")).expect("text");
        pages::all().iter().map(|page| (pages::name(page).to_owned(), text(page))).collect()
    }

    /// Names with a section, as `mount(8)`.
    fn references(text: &str) -> BTreeSet<String> {
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.' | '_');
        let mut found = BTreeSet::new();
        for (at, _) in text.match_indices('(') {
            let section = text[at + 1..].chars().next().filter(char::is_ascii_digit);
            let name: String = text[..at].chars().rev().take_while(|letter| is_part(*letter)).collect();
            if let Some(section) = section.filter(|_| text[at + 2..].starts_with(')') && !name.is_empty()) {
                found.insert(name.chars().rev().collect::<String>() + &format!("({section})"));
            }
        }
        found
    }

    #[test]
    fn each_page_has_all_sections() {
        let pages = rendered();
        for (name, text) in &pages {
            for title in
                ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "\"EXIT STATUS\"", "\"SEE ALSO\""]
            {
                let heads = text.lines().filter(|line| *line == format!(".SH {title}")).count();
                assert_eq!(heads, 1, "{name}: {title}");
            }
        }
        let names: BTreeSet<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        for name in ["nacre", "nacre-tier-add", "mount.nacre", "umount.nacre", "mkfs.nacre", "fsck.nacre"] {
            assert!(names.contains(name), "{name}");
        }
    }

    #[test]
    fn no_reference_is_dead() {
        let pages = rendered();
        let ours: BTreeSet<String> = pages.iter().map(|(name, _)| format!("{name}({SECTION})")).collect();
        let (mut dead, mut count) = (Vec::new(), 0);
        for (name, text) in &pages {
            let text = text.replace("\\-", "-");
            for reference in references(&text) {
                count += 1;
                if !ours.contains(&reference) && !OTHERS.contains(&reference.as_str()) {
                    dead.push(format!("{name}: {reference}"));
                }
            }
        }
        assert!(dead.is_empty(), "{}", dead.join("\n"));
        assert!(count > 100, "only {count} references were found");
    }
}
