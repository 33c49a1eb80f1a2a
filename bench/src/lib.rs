//! `nacre bench`: workloads on file systems beside each other, and what came out.
//!
//! - [`target`]: what is measured: presets of nacre in the process and mounted, other file systems, any directory.
//! - [`workload`]: what is done there. [`spec`]: how both are written on the command line.
//! - [`trace`]: system calls that were recorded, to be replayed.
//! - [`run`]: one process for each target, in turns, until the figures are sure enough. [`stats`]: how sure they are.
//! - [`report`]: the document of a run, and what is drawn from it. [`counters`]: what is counted beside time.
//! - [`paper`]: what the papers measured, as experiments that can be run here.
//! - `session`: options that every run has, and a report that is valid whenever it ends.
//! - [`place`]: where it happens; what a run that was killed left there is taken away by the next one.
//! - `say`: what people are told, on standard output and of what failed.
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

pub use command::{BenchArgs, run as run_command};

/// What stops a benchmark, in words.
pub type Error = Box<dyn std::error::Error>;
