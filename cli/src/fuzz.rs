//! The body of the fuzz target `options`: the texts that users write. It is a plain function on bytes, so that `cargo
//! test` replays the corpus on stable.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use clap::Parser;
use nacre::{Emulation, LayoutKind, Preset, Promise};

use nacre_engine::size;

use crate::args::{Cli, Command};
use crate::mount_options::{self, MountSettings};
use crate::{mount, umount};

/// Words of command lines. In an input, bytes from 0x80 on stand for them. A line end separates words, and all other
/// bytes are themselves.
const WORDS: [&str; 116] = [
    "mkfs",
    "mount",
    "umount",
    "volume",
    "create",
    "fsck",
    "scrub",
    "start",
    "status",
    "info",
    "df",
    "stat",
    "crash",
    "demo",
    "completions",
    "man",
    "help",
    "--help",
    "--version",
    "--json",
    "-h",
    "-n",
    "-f",
    "-p",
    "-y",
    "-c",
    "-o",
    "-L",
    "-U",
    "-C",
    "-T",
    "-s",
    "-v",
    "-t",
    "-N",
    "-l",
    "-a",
    "--",
    "-",
    "--size",
    "--label",
    "--uuid",
    "--preset",
    "--layout",
    "--require",
    "--emulate",
    "--force",
    "--dry-run",
    "--options",
    "--ro",
    "--foreground",
    "--threads",
    "--log",
    "--rate",
    "--sequences",
    "--seed",
    "--jobs",
    "--time",
    "--images",
    "--replay",
    "--self-test",
    "--mutants",
    "--resume",
    "bash",
    "nacre",
    "nova",
    "log",
    "inplace",
    "process",
    "power",
    "none",
    "dram",
    "pcm",
    "optane",
    "latency",
    "read-latency",
    "bandwidth",
    "factor",
    "poison",
    "=",
    ",",
    "+",
    "\"",
    "1G",
    "512M",
    "1.5G",
    "0",
    "-1",
    "1e400",
    "NaN",
    "inf",
    "18446744073709551615",
    "18446744073709551616",
    "threads",
    "emulate",
    "require",
    "log=",
    "defaults",
    "ro",
    "rw",
    "noatime",
    "sync",
    "writeback",
    "direct_io",
    "tune=name_index:off",
    "volume=mail",
    "inode_cache=5000",
    "x-",
    "/dev/pmem0",
    "tier_cache",
    "mover_hours",
    "22:00-06:00",
    "mover_limit",
    "buffer=8M",
    "lazy_low=3",
    "tune=tier_group:64K",
];

/// Parses bytes as a command line, as the calls of mount(8) and umount(8) to their helpers, as mount options, and as
/// each kind of setting. Every refusal must have a message. An accepted value that can be printed must parse to the
/// same value again.
pub fn any_options(data: &[u8]) {
    let Some((form, rest)) = data.split_first() else { return };
    let words = words(rest);
    match form % 5 {
        0 => command_line(words),
        1 => match mount::parse_helper(words) {
            Ok(plan) => settings(&plan.settings),
            Err(message) => told(&message),
        },
        2 => match umount::parse_helper(words) {
            Ok(args) => told(&format!("{args:?}")),
            Err(failure) => told(failure.message()),
        },
        3 => each(&words, mount_options_of),
        _ => each(&words, setting),
    }
}

fn words(data: &[u8]) -> Vec<OsString> {
    let mut words = vec![Vec::new()];
    for byte in data {
        let word = words.last_mut().expect("there is always a word");
        match byte {
            b'\n' => words.push(Vec::new()),
            // Other bytes stand for themselves, so not every word is UTF-8.
            _ => match byte.checked_sub(0x80).and_then(|index| WORDS.get(usize::from(index))) {
                Some(text) => word.extend(text.bytes()),
                None => word.push(*byte),
            },
        }
    }
    words.into_iter().map(OsString::from_vec).collect()
}

fn each(words: &[OsString], with: impl Fn(&str)) {
    words.iter().for_each(|word| with(&word.to_string_lossy()));
}

fn told(text: &str) {
    assert!(!text.trim().is_empty(), "nothing is said");
}

fn command_line(words: Vec<OsString>) {
    let line = std::iter::once(OsString::from("nacre")).chain(words);
    match Cli::try_parse_from(line) {
        Err(error) => told(&error.render().to_string()),
        Ok(Cli { command: Command::Mount(args) }) => match mount::plan(args) {
            Ok(plan) => settings(&plan.settings),
            Err(message) => told(&message),
        },
        Ok(cli) => told(&format!("{cli:?}")),
    }
}

fn mount_options_of(text: &str) {
    for sloppy in [false, true] {
        let mut taken = MountSettings::default();
        match taken.take(text, sloppy) {
            Ok(()) => settings(&taken),
            Err(message) => told(&message),
        }
    }
}

/// Checks settings: the printed options must parse to settings that print the same.
fn settings(settings: &MountSettings) {
    if let Err(message) = settings.check() {
        told(&message);
    }
    let printed = settings.to_string();
    let mut again = MountSettings::default();
    again.take(&printed, false).unwrap_or_else(|message| panic!("{printed:?}: {message}"));
    assert_eq!(again.to_string(), printed);
}

fn setting(text: &str) {
    match text.parse::<Emulation>() {
        Ok(emulation) => told(&emulation.to_string()),
        Err(error) => told(&error.to_string()),
    }
    match text.parse::<Promise>() {
        Ok(promise) => assert_eq!(promise.to_string().parse::<Promise>().ok(), Some(promise), "{text:?}"),
        Err(error) => told(&error.to_string()),
    }
    match text.parse::<Preset>() {
        Ok(preset) => assert_eq!(preset.to_string().parse::<Preset>().ok(), Some(preset), "{text:?}"),
        Err(error) => told(&error.to_string()),
    }
    match text.parse::<LayoutKind>() {
        Ok(layout) => assert_eq!(layout.to_string().parse::<LayoutKind>().ok(), Some(layout), "{text:?}"),
        Err(error) => told(&error.to_string()),
    }
    match mount_options::threads(text) {
        Ok(count) => assert_eq!(mount_options::threads(&count.to_string()), Ok(count)),
        Err(message) => told(&message),
    }
    match size::parse(text) {
        Ok(bytes) => {
            told(&size::print(bytes));
            assert_eq!(size::parse(&bytes.to_string()), Ok(bytes), "{text:?}");
        }
        Err(message) => told(&message),
    }
}

#[cfg(test)]
mod tests;
