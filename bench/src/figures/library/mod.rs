//! The library in this process beside tmpfs through the kernel.
//!
//! Our side is a file system on a file in a plain tmpfs, with all its pages present; every operation is durable when
//! it returns. The peer is another plain tmpfs, reached through system calls on open files and directories. Both get
//! the same offsets and names in the same order.

mod buffered;
mod content;
mod names;
mod threads;

use crate::figures::context::{Context, Outcome};

/// Runs all rows of the library that are wanted.
pub(crate) fn run(context: &Context) -> Outcome {
    content::run(context, content::Variant::Plain)?;
    content::run(context, content::Variant::Small)?;
    names::run(context)?;
    content::run(context, content::Variant::Huge)?;
    buffered::run(context)
}
