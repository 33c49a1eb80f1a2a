//! Traces of system calls: their format, and their sources.
//!
//! - [`format`]: the text of a trace, read and written; `docs/reference/trace.md` describes it.
//! - [`builder`]: puts calls together to a trace, and finds out which files were there before it.
//! - [`strace`]: from the output of strace. [`mobibench`]: from the traces that come with MobiBench.
//! - [`command`]: `nacre bench trace`.
//!
//! [`crate::workload::trace`] replays them.

pub mod builder;
pub mod command;
pub mod format;
pub mod mobibench;
pub mod strace;

use std::collections::BTreeMap;

/// A trace, and the parts that could not be converted.
#[derive(Debug)]
pub struct Converted {
    /// The trace.
    pub trace: format::Trace,
    /// Calls that are not in it: a reason, and how many.
    pub left_out: BTreeMap<String, u64>,
}
