//! Reading and writing files.
//!
//! Data is written to new blocks (copy-on-write) without any lock, then the log is locked, one entry for each run of
//! blocks is committed, and the index changes. A write that keeps a part of an old block has read it before; if that
//! block changed meanwhile, the write prepares again. A write that changes the size holds `extend`, so sizes change one
//! at a time; overwrites do not.
//!
//! Bytes of the last block beyond the size are undefined on media: nothing reads them, an append writes them in place,
//! and an operation that grows the size over them zeroes them first.

mod change;
mod read;
mod write;

pub(crate) use change::{Change, Changes, Freed, apply_change, join};
pub(crate) use write::{Attempt, Prepared, Range, Target, Write};
