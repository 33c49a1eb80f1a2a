//! `nacre bench`: workloads on file systems beside each other, and what came out.
//!
//! - [`report`]: the document of a run, and what is drawn from it.
//! - [`figures`]: the figures that nacre itself is to reach, with hand-written loops.

pub mod figures;
pub mod machine;
pub mod report;

use clap::{Args, Subcommand};

/// Measures nacre beside other file systems, on the same work, in one run
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Figures(figures::FiguresArgs),
}

/// What stops a benchmark, in words.
pub type Error = Box<dyn std::error::Error>;

/// Runs the command.
pub fn run(args: BenchArgs) -> Result<(), Error> {
    match args.command {
        Command::Figures(args) => figures::run(args),
    }
}
