//! `nacre bench`: workloads on file systems side by side, and their results.
//!
//! - [`target`]: the measured file systems: presets of nacre in the process and mounted, other file systems, any
//!   directory.
//! - [`workload`]: the work done there. [`spec`]: how both are written on the command line.
//! - [`trace`]: system calls that were recorded, to be replayed.
//! - [`run`]: one process for each target, in turns, until the figures are sure enough. [`stats`]: how sure they are.
//! - [`report`]: the document of a run, and the drawings made from it. [`counters`]: counters besides time.
//! - [`paper`]: the papers' measurements, as experiments that can be run here.
//! - `session`: options that every run has, and a report that is valid whenever it ends.
//! - [`place`]: where it happens; leftovers there of a run that was killed are removed by the next one.
//! - `say`: output for people, on standard output, and failures.
//! - [`figures`]: the figures that nacre itself is to reach, with hand-written loops.
//! - [`command`]: the command line.

pub mod clock;
pub mod command;
pub mod counters;
pub mod figures;
mod leftovers;
pub mod machine;
pub mod paper;
pub mod place;
pub mod report;
pub mod run;
mod say;
mod session;
pub mod spec;
pub mod stats;
pub mod target;
pub mod trace;
pub mod workload;

pub use command::{BenchArgs, is_internal, run as run_command, run_internal};

/// The program `nacre`, which makes and mounts file systems: the one beside this program, or this program itself.
pub fn nacre_program() -> std::io::Result<std::path::PathBuf> {
    let program = std::env::current_exe()?;
    let beside = program.with_file_name("nacre");
    Ok(if beside.is_file() { beside } else { program })
}

/// The error that stops a benchmark, in words.
pub type Error = Box<dyn std::error::Error>;
