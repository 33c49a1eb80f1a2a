//! Reads and writes of files that may have blocks on tiers.
//!
//! | file | content |
//! | --- | --- |
//! | `read`, `readahead` | reads of blocks on tiers; how much is read ahead |
//! | `write` | writes to PM, with the blocks at their edges promoted first |
//! | `direct` | writes that go straight to disk |
//! | `overwrite`, `fills` | writes on a full file system; those of one block at a time |
//! | `segments` | whole blocks on their way to disk |

pub(crate) mod direct;
mod fills;
mod overwrite;
mod read;
pub(crate) mod readahead;
pub(crate) mod segments;
mod write;

use std::sync::Arc;

use crate::engine::Mover;
use crate::io::fills::Fills;
use crate::io::readahead::{Ahead, Readers};
use crate::places::Places;
use crate::stats::Stats;

/// The state of reads and writes in progress.
pub(crate) struct Io {
    pub(crate) readers: Readers,
    /// Read-ahead behind reads.
    pub(crate) ahead: Arc<Ahead>,
    /// First writes of blocks that a file has on a tier already.
    pub(crate) fills: Fills,
}

impl Io {
    /// With at most so many blocks of a file that are fetched at once.
    pub(crate) fn new(read_ahead: u64) -> Io {
        Io { readers: Readers::new(read_ahead), ahead: Arc::new(Ahead::new()), fills: Fills::default() }
    }
}

/// Files at work: reads and writes, over the places of blocks and the engine that makes room.
pub(crate) struct Files<'f, L, D> {
    pub(crate) places: &'f Places<L, D>,
    pub(crate) stats: &'f Stats,
    pub(crate) io: &'f Io,
    pub(crate) mover: Mover<'f, L, D>,
}
