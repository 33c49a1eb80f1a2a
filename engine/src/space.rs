//! The contract of a layout, places of blocks and space: [`Extents`].

use crate::capabilities::Capabilities;
use crate::error::Result;
use crate::namespace::Names;
use crate::units::{Block, FileBlock};

/// The place of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// No place: it reads as zeros and takes no space.
    Hole,
    /// On persistent memory, from this block on.
    Pm(Block),
    /// On persistent memory, allocated but not written: it reads as zeros.
    Unwritten(Block),
    /// On a tier, allocated but not written: it reads as zeros.
    UnwrittenOnTier {
        /// The tier; 1 is the fastest.
        tier: u8,
        /// The first block on it.
        block: Block,
    },
    /// On tier `tier`, from this block on.
    Tier {
        /// The tier; 1 is the fastest.
        tier: u8,
        /// The first block on it.
        block: Block,
    },
}

impl Place {
    /// The place of the block `n` blocks further on.
    #[must_use]
    pub const fn plus(self, n: u64) -> Place {
        match self {
            Place::Hole => Place::Hole,
            Place::Pm(block) => Place::Pm(block.plus(n)),
            Place::Unwritten(block) => Place::Unwritten(block.plus(n)),
            Place::UnwrittenOnTier { tier, block } => Place::UnwrittenOnTier { tier, block: block.plus(n) },
            Place::Tier { tier, block } => Place::Tier { tier, block: block.plus(n) },
        }
    }
}

/// Contiguous blocks of a file in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacedExtent {
    /// First block in the file.
    pub start: FileBlock,
    /// Number of blocks.
    pub len: u64,
    /// Their place.
    pub place: Place,
}

/// Space statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FsStat {
    /// Blocks that files could use on an empty file system.
    pub blocks: u64,
    /// Unused blocks, with the layout's reserve.
    pub free: u64,
    /// Blocks that a user can still allocate.
    pub available: u64,
    /// Blocks with a [`Reservation`](crate::Reservation), which are neither free nor available.
    pub reserved: u64,
    /// Inodes that exist, and those that can still be made.
    pub inodes: u64,
    /// Inodes that can still be made.
    pub inodes_free: u64,
}

/// Space: the places of blocks, and the space left.
pub trait Extents: Names {
    /// The places of the blocks from `start` on, at most `len` blocks, with holes, up to the end of the file's last
    /// block.
    fn resolve(&self, node: &Self::Node, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>>;

    /// The same, and holds the blocks for direct reads and writes. Until as many calls of [`Extents::unpin`],
    /// operations that would move or free a written block of the file fail with [`Busy`](crate::Kind::Busy). The hold
    /// is in DRAM only.
    fn pin(&self, node: &Self::Node, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>>;

    /// Ends one [`Extents::pin`] of the file.
    fn unpin(&self, node: &Self::Node);

    /// Space statistics.
    fn stat(&self) -> FsStat;

    /// Bytes of DRAM that indexes take now, estimated from their sizes. It visits every index.
    fn index_bytes(&self) -> u64;

    /// The capabilities of this layout.
    fn capabilities(&self) -> Capabilities;
}
