//! Blocks of tiers: allocation, and readers that keep freed blocks from being written.

use crate::error::Result;
use crate::space::PlacedExtent;
use crate::units::{Block, Timestamp};

use super::table::TierTable;

/// The space of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierSpace {
    /// Blocks that files could use if none was in use.
    pub blocks: u64,
    /// Blocks that are not in use.
    pub free: u64,
    /// Whether the free blocks are known. After a crash a part of the tier may have to be read first, and until then
    /// nothing is free.
    pub is_counted: bool,
    /// Blocks that are in use until the next mount: files were removed whose extent map on the tier could not be read.
    pub leaked: u64,
}

/// Blocks of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TierRun {
    /// The tier.
    pub tier: u8,
    /// The first block.
    pub start: Block,
    /// The number of blocks.
    pub len: u64,
}

/// The result of a search for free blocks on a tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FreeRun {
    /// The blocks, now taken.
    pub run: Option<TierRun>,
    /// The block with which the next search continues; `None` after the last.
    pub next: Option<Block>,
    /// Whether the blocks from there on belong to the same run.
    pub is_within: bool,
}

/// Blocks of PM by their use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PmUse {
    /// Unused blocks, reserved or not, without the blocks that the layout keeps for itself. Without those it could make
    /// no change any more.
    pub unused: u64,
    /// Blocks that hold data of files. A layout that does not count them apart gives all blocks in use.
    pub data: u64,
}

/// The result of [`TierBlocks::read_or_resolve`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TierRead {
    /// So many bytes were read. The count is smaller than the buffer only at the end of the file.
    Done(usize),
    /// The next byte is in a block on a tier.
    OnTier {
        /// Bytes that were read before it.
        done: usize,
        /// The extent on the tier with that byte, or a part of the extent.
        extent: PlacedExtent,
        /// The size of the file.
        size: u64,
    },
}

/// Allocation of blocks on tiers, and reads of files with such blocks.
pub trait TierBlocks: TierTable {
    /// Reads as [`Data::read`](crate::Data::read) does, up to the first block on a tier. That block's place is found on
    /// the same way through the file's index. atime is updated only if no block is on a tier.
    fn read_or_resolve(
        &self,
        node: &Self::Node,
        offset: u64,
        buf: &mut [u8],
        now: Option<Timestamp>,
    ) -> Result<TierRead>;

    /// The use of PM.
    fn pm_use(&self) -> PmUse;

    /// Takes blocks of a tier, from `goal` on as far as these are free, in as few runs as possible.
    /// [`NoSpace`](crate::Kind::NoSpace) if too few are free. This is in DRAM only: blocks that are not committed are
    /// free again after a crash.
    fn allocate_on(&self, tier: u8, goal: Option<Block>, blocks: u64) -> Result<Vec<TierRun>>;

    /// Takes blocks of the first run of at least `least` free blocks on a tier from block `from` on. It takes at most
    /// `most` blocks, up to the next multiple of that. The caller [puts them back](TierBlocks::put_back_on) soon; other
    /// allocations do not find them meanwhile.
    fn take_free_on(&self, tier: u8, from: Block, least: u64, most: u64) -> Result<FreeRun>;

    /// Frees them as before. They were never given to a file, so they have no readers.
    fn put_back_on(&self, run: TierRun);

    /// Frees blocks that were taken and not committed.
    fn free_on(&self, run: TierRun);

    /// Begins reads of tiers. No block of a tier that was in use is reused until [`TierBlocks::end_reads`] with the
    /// same number.
    fn begin_reads(&self) -> u64;

    /// Ends reads of tiers.
    fn end_reads(&self, ticket: u64);
}
