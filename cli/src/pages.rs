//! The pages of the manual: one for each command at each level, and one for each name by which mount(8), umount(8),
//! mkfs(8) and fsck(8) call it.
//!
//! A page is the definition of the command line. Its examples, exit codes, files and references stand in the text
//! after the help (`after_long_help`), under headings. [`sections`] reads them there.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::{Arg, ArgAction, Command, CommandFactory};

use crate::args::Cli;

/// The heading of the codes that a command without codes of its own has from the whole command line.
pub(crate) const EXIT_STATUS: &str = "Exit status";
/// The heading of other pages.
pub(crate) const SEE_ALSO: &str = "See also";

/// A part of a page that the definition of arguments does not have.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) title: String,
    /// A term (an example, a code, a file), and its meaning, which may be empty.
    pub(crate) items: Vec<(String, String)>,
}

/// All commands with a page, each below the command that it belongs to.
pub(crate) fn all() -> Vec<Command> {
    let mut root = Cli::command().disable_help_subcommand(true);
    // Without this, subcommands do not know the names of their pages.
    root.build();
    let mut pages = Vec::new();
    add(&root, &mut pages);
    let renamed = |from: &str, to: &'static str| {
        let page = pages.iter().find(|page| page.get_name() == from).expect("a command of this name");
        page.clone().name(to).bin_name(to).display_name(to).mut_args(|arg| arg.hide(false))
    };
    let by_name =
        [renamed("mkfs", "mkfs.nacre"), renamed("fsck", "fsck.nacre"), mount_helper(), umount_helper()];
    pages.extend(by_name);
    pages
}

fn add(command: &Command, pages: &mut Vec<Command>) {
    pages.push(command.clone());
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        add(sub, pages);
    }
}

/// The name of a page.
pub(crate) fn name(page: &Command) -> &str {
    page.get_display_name().unwrap_or_else(|| page.get_name())
}

/// The sections in the text after the help. A command without exit codes has those of the whole command line.
pub(crate) fn sections(page: &Command) -> Vec<Section> {
    let text = page.get_after_long_help().map(StyledStr::to_string).unwrap_or_default();
    let mut sections = parse(&text);
    if sections.iter().all(|section| section.title != EXIT_STATUS) {
        let whole = Cli::command().get_after_long_help().map(StyledStr::to_string).unwrap_or_default();
        let after_examples = sections.len().min(1);
        let usual = parse(&whole).into_iter().find(|section| section.title == EXIT_STATUS);
        sections.splice(after_examples..after_examples, usual);
    }
    sections
}

/// Reads headings that end with a colon, and below them terms with an indentation of two. The meaning of a term follows
/// after two spaces, or on the next lines, which have a larger indentation.
fn parse(text: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let words = line.trim();
        match (line.len() - line.trim_start().len(), sections.last_mut()) {
            (0, _) => {
                let title = words.trim_end_matches(':').to_owned();
                sections.push(Section { title, items: Vec::new() });
            }
            (2, Some(section)) => {
                let (term, meaning) = words.split_once("  ").unwrap_or((words, ""));
                section.items.push((term.to_owned(), meaning.trim().to_owned()));
            }
            (_, Some(Section { items, .. })) => {
                if let Some((_, meaning)) = items.last_mut() {
                    *meaning = format!("{meaning} {words}").trim().to_owned();
                }
            }
            (_, None) => {}
        }
    }
    sections
}

/// Examples, exit codes and files of the helper of mount(8).
const MOUNT_HELPER: &str = "\
Examples:
  mount -t nacre -o noatime /dev/dax0.0 /srv/fast
      Has mount(8) call this helper.
  mount.nacre /dev/dax0.0 /srv/fast -o noatime
      Calls it directly.

Exit status:
  0   the file system is mounted
  1   a wrong command line
  2   a failure of the system
  32  the mount failed

Files:
  /etc/fstab
      A line with the type nacre has the options of this page.
  /run/mount/utab
      The entry by which umount(8) finds its helper.

See also:
  nacre-mount(8), umount.nacre(8), mount(8), fstab(5)
";

/// Examples and files of the helper of umount(8).
const UMOUNT_HELPER: &str = "\
Examples:
  umount /srv/fast
      Has umount(8) call this helper.
  umount.nacre /srv/fast -l
      Calls it directly.

Files:
  /run/mount/utab
      The entry by which umount(8) finds this helper.

See also:
  nacre-umount(8), mount.nacre(8), umount(8)
";

fn flag(letter: &'static str, help: &'static str) -> Arg {
    Arg::new(letter).short(letter.chars().next()).action(ArgAction::SetTrue).help(help)
}

fn value(letter: &'static str, name: &'static str, help: &'static str) -> Arg {
    Arg::new(letter).short(letter.chars().next()).value_name(name).help(help)
}

fn positional(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).value_name(name).required(true).help(help)
}

fn helper(name: &'static str, about: &'static str, manual: &'static str) -> Command {
    let version = env!("CARGO_PKG_VERSION");
    Command::new(name).version(version).about(about).after_long_help(manual).disable_help_flag(true)
}

/// The command line of [`crate::mount::parse_helper`].
fn mount_helper() -> Command {
    let mut page = helper("mount.nacre", "Mount a file system, as mount(8) calls it", MOUNT_HELPER)
        .disable_version_flag(true)
        .arg(positional("DEVICE", "A file, a block device, or a devdax device that holds a file system"))
        .arg(positional("DIR", "The directory on which it is mounted"))
        .arg(value("o", "OPTIONS", "Options, separated by commas"))
        .arg(flag("s", "Ignore unknown options"))
        .arg(flag("f", "Do everything except the mount itself"))
        .arg(flag("r", "As -o ro"))
        .arg(flag("w", "As -o rw"))
        .arg(flag("n", "Without effect"))
        .arg(flag("v", "Without effect"))
        .arg(flag("i", "Without effect"))
        .arg(value("t", "TYPE", "Without effect"))
        .arg(value("N", "NAMESPACE", "Without effect: mount(8) has entered the namespace"));
    page.build();
    page
}

/// The command line of [`crate::umount::parse_helper`].
fn umount_helper() -> Command {
    let mut page = helper("umount.nacre", "Unmount a file system, as umount(8) calls it", UMOUNT_HELPER)
        .disable_version_flag(true)
        .arg(positional("DIR", "The directory of the mount"))
        .arg(flag("l", "Remove the mount from the tree also while programs use it"))
        .arg(flag("f", "Unmount also if the server hangs, or if buffered data cannot be written"))
        .arg(flag("n", "Without effect"))
        .arg(flag("r", "Without effect"))
        .arg(flag("v", "Without effect"))
        .arg(value("t", "TYPE", "Without effect"))
        .arg(value("N", "NAMESPACE", "Without effect: umount(8) has entered the namespace"));
    page.build();
    page
}

/// The text that a helper prints if its arguments ask for its help or its version. Its parser has no such flags.
pub(crate) fn answer_of_helper(is_mount: bool, arguments: &[OsString]) -> Option<String> {
    let page = || if is_mount { mount_helper() } else { umount_helper() };
    arguments.iter().find_map(|argument| match argument.to_str()? {
        "-h" => Some(page().render_help().to_string()),
        "--help" => Some(page().render_long_help().to_string()),
        "-V" | "--version" => Some(page().render_version()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::{ArgAction, Command, CommandFactory};

    use super::{Section, all, mount_helper, name, parse, sections, umount_helper};
    use crate::args::Cli;
    use crate::{mount, umount};

    #[test]
    fn sections_are_read_from_the_help() {
        let text = "Examples:\n  nacre df\n      Lists all\n      mounts.\n\nExit status:\n  0   success\n";
        let item = |term: &str, meaning: &str| (term.to_owned(), meaning.to_owned());
        let section = |title: &str, items| Section { title: title.to_owned(), items };
        assert_eq!(
            parse(text),
            [
                section("Examples", vec![item("nacre df", "Lists all mounts.")]),
                section("Exit status", vec![item("0", "success")])
            ]
        );
    }

    /// The words of an example as a shell has them, up to where output goes.
    fn words(example: &str) -> Vec<OsString> {
        let words = example.split_whitespace().take_while(|word| !word.starts_with('>'));
        words.map(|word| word.trim_matches('\'').into()).collect()
    }

    #[test]
    fn each_page_has_examples_that_can_be_called() {
        for page in all() {
            let name = name(&page).to_owned();
            let sections = sections(&page);
            let examples = sections.iter().find(|section| section.title == "Examples");
            let examples = &examples.unwrap_or_else(|| panic!("{name} has no examples")).items;
            for (example, meaning) in examples {
                assert!(meaning.ends_with('.'), "{name}: {example}: {meaning:?}");
                match words(example) {
                    words if words[0] == "nacre" => {
                        let called = Cli::command().try_get_matches_from(&words);
                        assert!(called.is_ok(), "{example}: {}", called.unwrap_err());
                        assert!(example.starts_with(&name.replacen('-', " ", 3)) || name.contains('.'));
                    }
                    words if words[0] == "mount.nacre" => {
                        drop(mount::parse_helper(words[1..].to_vec()).unwrap())
                    }
                    words if words[0] == "umount.nacre" => {
                        drop(umount::parse_helper(words[1..].to_vec()).unwrap())
                    }
                    words => assert!(words[0] == "mount" || words[0] == "umount", "{example}"),
                }
            }
            assert!(sections.iter().any(|section| section.title == super::EXIT_STATUS), "{name}");
        }
    }

    /// The letters of options without a value, and with one.
    fn letters(page: &Command) -> (String, String) {
        let options = page.get_arguments().filter(|arg| !arg.is_positional());
        let (with, without): (Vec<_>, Vec<_>) =
            options.partition(|arg| matches!(arg.get_action(), ArgAction::Set));
        let of = |args: Vec<&clap::Arg>| args.iter().filter_map(|arg| arg.get_short()).collect::<String>();
        (of(without), of(with))
    }

    #[test]
    fn the_pages_of_helpers_have_the_options_that_their_parsers_know() {
        let (flags, values) = letters(&mount_helper());
        for letter in ('a'..='z').chain('A'..='Z') {
            let option = OsString::from(format!("-{letter}"));
            let call = |more: &[&str]| {
                let more = more.iter().map(OsString::from);
                mount::parse_helper([option.clone()].into_iter().chain(more))
            };
            assert_eq!(call(&["/dev/pmem0", "/mnt"]).is_ok(), flags.contains(letter), "-{letter}");
            // A flag before three names is one name too many.
            assert_eq!(call(&["ro", "/dev/pmem0", "/mnt"]).is_ok(), values.contains(letter), "-{letter}");
        }
        let (flags, values) = letters(&umount_helper());
        for letter in ('a'..='z').chain('A'..='Z') {
            let call = |more: &[&str]| {
                let option = format!("-{letter}");
                umount::parse_helper(
                    [&option[..]].into_iter().chain(more.iter().copied()).map(OsString::from),
                )
            };
            assert_eq!(call(&["/mnt"]).is_ok(), flags.contains(letter), "-{letter}");
            let is_known = flags.contains(letter) || values.contains(letter);
            assert_eq!(call(&["value", "/mnt"]).is_ok(), is_known, "-{letter}");
        }
        for arguments in [&["-lf", "/mnt"][..], &["/mnt", "-tnacre"], &["/mnt", "-nt", "nacre", "-r"]] {
            assert!(umount::parse_helper(arguments.iter().map(OsString::from)).is_ok(), "{arguments:?}");
        }
        for arguments in [&["-lx", "/mnt"][..], &["/mnt", "--lazy"], &["-l"]] {
            assert!(umount::parse_helper(arguments.iter().map(OsString::from)).is_err(), "{arguments:?}");
        }
    }
}
