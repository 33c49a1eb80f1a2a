//! `nacre bench trace`: traces of system calls for the workloads `trace.*`.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use nacre_engine::size::count;

use super::{Converted, mobibench, strace};
use crate::{Error, say};

/// Examples and exit codes, for the help and the manual page.
const MANUAL: &str = "\
Examples:
  nacre bench trace convert -o git.trace strace.out
      Converts the output of strace.

See also:
  nacre-bench-run(8)
";

/// Make traces of system calls for the workload trace.file
#[derive(Debug, Subcommand)]
#[command(after_long_help = MANUAL)]
pub enum TraceCommand {
    /// Convert the output of strace, or a trace of MobiBench
    ///
    /// Record with: strace -f -ttt -y -s 0 -e trace=%file,%desc,%process -o FILE PROGRAM...
    ///
    /// Calls that the format does not have are left out; a summary on standard error counts them by kind.
    Convert(ConvertArgs),
}

/// Examples and exit codes, for the help and the manual page.
const CONVERT_MANUAL: &str = "\
Examples:
  nacre bench trace convert --under /srv/repo -o git.trace strace.out
      Converts the calls in one directory.
";

/// The trace to convert.
#[derive(Debug, Args)]
#[command(after_long_help = CONVERT_MANUAL)]
pub struct ConvertArgs {
    /// The output of strace, or a trace of MobiBench
    input: PathBuf,
    /// Only calls in this directory, which the trace's paths are relative to
    #[arg(long, value_name = "DIR", default_value = "/")]
    under: PathBuf,
    /// Write the trace to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl TraceCommand {
    /// Runs it.
    pub fn run(self) -> Result<(), Error> {
        match self {
            TraceCommand::Convert(args) => args.run(),
        }
    }
}

impl ConvertArgs {
    fn run(self) -> Result<(), Error> {
        let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
        let bytes = fs::read(&self.input).map_err(|error| failed(&self.input, error))?;
        let text = String::from_utf8_lossy(&bytes);
        let under = std::path::absolute(&self.under).map_err(|error| failed(&self.under, error))?;
        let converted =
            if mobibench::is_one(&text) { mobibench::convert(&text) } else { strace::convert(&text, &under) };
        let Converted { trace, left_out } =
            converted.map_err(|why| format!("{}: {why}", self.input.display()))?;
        if trace.calls.is_empty() {
            return Err(format!("{}: no call in {}", self.input.display(), under.display()).into());
        }
        match &self.output {
            Some(path) => fs::write(path, trace.print()).map_err(|error| failed(path, error))?,
            None => say::out(&trace.print())?,
        }
        say::note(format_args!(
            "{} on {}; {} and {} before them",
            count(trace.calls.len() as u64, "call", "calls"),
            count(trace.threads().into(), "thread", "threads"),
            count(trace.dirs.len() as u64, "directory", "directories"),
            count(trace.files.len() as u64, "file", "files")
        ));
        for (what, times) in left_out {
            say::note(format_args!("left out: {times} of {what}"));
        }
        Ok(())
    }
}
