//! The command `nacre`, and the names under which mount(8), mkfs(8) and fsck(8) call it.
//!
//! It is a library so that fuzzing and its corpus reach the parsers of command lines. The binaries only call a function
//! of it: `nacre` calls [`main`], `nacre-bench` [`bench_main`] and `nacre-lab` [`lab_main`]. `nacre` has the command
//! lines of all subcommands, and starts the other two for theirs, so that a mount's server has no code of them.
//!
//! - `args`: the command line; help, completions and manual pages come from it.
//! - one module for each subcommand; `daemon`, `mount_options`, `opening` and `remount` serve `mount`, `load` serves
//!   `demo`.
//! - `mounted`: finds and queries mounts; `asking`: does so without waiting for one that hangs.
//! - `servers`, `users`: the process that serves a mount, and the processes that use it.
//! - `siblings`: the other two programs.
//! - `utab`: the entry by which umount(8) finds nacre's helper.
//! - `control`: the answers of a mount's server.
//! - `output`, `failure`, `notice`: the texts for people and scripts.
//! - `pages`, `generate`: the manual pages, and the completions.
//! - [`fuzz`]: the body of the fuzz target `options`.

mod args;
mod asking;
mod control;
mod crash;
mod daemon;
mod demo;
mod df;
mod failure;
mod fsck;
pub mod fuzz;
mod generate;
mod heap;
mod info;
mod load;
mod mkfs;
mod mount;
mod mount_options;
mod mounted;
mod mover;
mod names;
mod notice;
mod opening;
mod output;
mod pages;
mod place;
#[cfg(test)]
mod reference;
mod remount;
mod scrub;
mod servers;
mod siblings;
mod stat;
mod telling;
mod tier;
mod top;
mod umount;
mod users;
mod utab;
mod volume;

use std::error::Error as _;
use std::ffi::OsString;
use std::io::Write as _;
use std::num::{IntErrorKind, ParseIntError};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use crate::args::{Cli, Command};
use crate::failure::Failure;
use crate::siblings::Sibling;

/// Runs the command in the arguments of this process. Returns the exit code of the process.
pub fn main() -> ExitCode {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    let name = arguments.first().map(PathBuf::from).unwrap_or_default();
    let is_mount = mount::is_helper(&name);
    if (is_mount || umount::is_helper(&name))
        && let Some(text) = pages::answer_of_helper(is_mount, &arguments[1..])
    {
        return output::text_out(&text).map_or_else(|failure| failure.report(), success);
    }
    if is_mount {
        return mount::run_helper(arguments.into_iter().skip(1));
    }
    if umount::is_helper(&name) {
        return umount::run_helper(arguments.into_iter().skip(1))
            .map_or_else(|failure| failure.report(), success);
    }
    if let Some(subcommand) = subcommand_of(&name) {
        arguments.splice(..1, ["nacre".into(), subcommand.into()]);
    }
    if let [_, bench, name, ..] = &arguments[..]
        && bench == "bench"
        && nacre_bench::is_internal(name)
    {
        return Sibling::Bench.run("bench", &arguments[2..]).report();
    }
    match Cli::try_parse_from(&arguments) {
        Ok(cli) => run(cli, &arguments[1..]).unwrap_or_else(|failure| failure.report()),
        Err(error) => usage(&error, arguments.get(1)),
    }
}

/// Runs `nacre bench`, with the arguments of this process behind it.
pub fn bench_main() -> ExitCode {
    let arguments = || std::env::args_os().skip(1);
    if arguments().next().is_some_and(|name| nacre_bench::is_internal(&name)) {
        let done = nacre_bench::run_internal(arguments()).map_err(|error| Failure::named("bench", error));
        return done.map_or_else(|failure| failure.report(), success);
    }
    run_own(&["nacre", "bench"], |command| match command {
        Command::Bench(args) => {
            nacre_bench::run_command(args).map(success).map_err(|error| Failure::named("bench", error))
        }
        _ => Err(Failure::usage("nacre-bench has no other command")),
    })
}

/// Runs `nacre crash` or `nacre demo`, which the arguments of this process name.
pub fn lab_main() -> ExitCode {
    run_own(&["nacre"], |command| match command {
        Command::Crash(args) => crash::run(&args),
        Command::Demo(args) => demo::run(&args).map(success),
        _ => Err(Failure::usage("nacre-lab has the commands crash and demo")),
    })
}

/// Runs a command of this process, whose arguments follow those words.
fn run_own(words: &[&str], run: impl FnOnce(Command) -> Result<ExitCode, Failure>) -> ExitCode {
    let arguments: Vec<OsString> =
        words.iter().map(OsString::from).chain(std::env::args_os().skip(1)).collect();
    match Cli::try_parse_from(&arguments) {
        Ok(cli) => run(cli.command).unwrap_or_else(|failure| failure.report()),
        Err(error) => usage(&error, arguments.get(1)),
    }
}

/// The subcommand for a program name.
fn subcommand_of(name: &Path) -> Option<&'static str> {
    match name.file_name()?.to_str()? {
        "mkfs.nacre" => Some("mkfs"),
        "fsck.nacre" => Some("fsck"),
        _ => None,
    }
}

/// Prints help or version to standard output, or reports a wrong command line. The exit code is the one that callers of
/// the subcommand expect.
fn usage(error: &clap::Error, subcommand: Option<&OsString>) -> ExitCode {
    // If even that cannot be printed, the exit code must do.
    let _ = match in_words(error) {
        Some(text) => write!(std::io::stderr(), "{text}"),
        None => error.print(),
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ if subcommand.is_some_and(|name| name == "fsck") => ExitCode::from(fsck::WRONG_CALL),
        _ if subcommand.is_some_and(|name| name == "mount") => ExitCode::from(mount::WRONG_CALL),
        _ => ExitCode::from(failure::EXIT_USAGE),
    }
}

/// The message of a number that is wrong, without the words of the standard library.
fn in_words(error: &clap::Error) -> Option<String> {
    let number = error.source()?.downcast_ref::<ParseIntError>()?;
    let cause = match number.kind() {
        IntErrorKind::PosOverflow => "the number is too large",
        IntErrorKind::NegOverflow => "the number is too small",
        _ => "give a whole number",
    };
    Some(error.render().to_string().replacen(&number.to_string(), cause, 1))
}

/// Runs a command of these arguments.
fn run(cli: Cli, arguments: &[OsString]) -> Result<ExitCode, Failure> {
    match cli.command {
        Command::Mkfs(args) => mkfs::run(args).map(success),
        Command::Mount(args) => Ok(mount::run(args)),
        Command::Umount(args) => umount::run(args).map(success),
        Command::Fsck(args) => Ok(fsck::run(&args)),
        Command::Scrub(args) => scrub::run(args).map(|sound| ExitCode::from(u8::from(!sound))),
        Command::Info(args) => info::run(args).map(success),
        Command::Df(args) => df::run(args).map(unless_failed),
        Command::Top(args) => top::run(&args).map(success),
        Command::Stat(args) => stat::run(args).map(success),
        Command::Tier(args) => tier::run(args).map(success),
        Command::Volume(args) => volume::run(args).map(success),
        Command::Promote(args) => place::promote(&args).map(unless_failed),
        Command::Demote(args) => place::demote(&args).map(unless_failed),
        Command::Pin(args) => place::pin(&args).map(unless_failed),
        Command::Unpin(args) => place::unpin(&args).map(unless_failed),
        Command::Mover(args) => mover::run(args).map(success),
        Command::Crash(_) => Err(Sibling::Lab.run("crash", arguments)),
        Command::Bench(_) => Err(Sibling::Bench.run("bench", &arguments[1..])),
        Command::Demo(_) => Err(Sibling::Lab.run("demo", arguments)),
        Command::Completions(args) => generate::completions(args.shell).map(success),
        Command::Man(args) => generate::man(&args.dir).map(success),
    }
}

fn success(_: ()) -> ExitCode {
    ExitCode::SUCCESS
}

/// The exit code of a command that has reported its failures; `all` is true if there were none.
fn unless_failed(all: bool) -> ExitCode {
    if all { ExitCode::SUCCESS } else { ExitCode::from(failure::EXIT_FAILURE) }
}
