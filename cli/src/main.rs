//! The command `nacre`, and the names that mount(8), mkfs(8) and fsck(8) call it by.
//!
//! - [`args`]: the command line; help, completions and manual pages come from it.
//! - one module for each subcommand.
//! - [`failure`]: messages and exit codes; [`size`]: sizes as people write them.

mod args;
mod failure;
mod generate;
mod size;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::failure::Failure;

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

fn run(cli: Cli) -> Result<ExitCode, Failure> {
    match cli.command {
        Command::Completions(options) => generate::completions(options.shell)?,
        Command::Man(options) => generate::man(&options.dir)?,
    }
    Ok(ExitCode::SUCCESS)
}
