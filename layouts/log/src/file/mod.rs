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
use nacre_engine::{Block, Error, Kind, Result};
pub(crate) use write::{Attempt, Prepared, Range, Target, Write};

use crate::format::place;

/// True for a place that holds data.
pub(crate) fn is_written(raw: u64) -> bool {
    raw & place::UNWRITTEN == 0
}

/// The offset on PM of blocks that are there.
pub(crate) fn media_offset(raw: u64) -> Result<u64> {
    match place::tier(raw) {
        0 => Ok(Block(raw & place::BLOCK_MASK).offset()),
        _ => Err(Error::new(Kind::Elsewhere)),
    }
}
