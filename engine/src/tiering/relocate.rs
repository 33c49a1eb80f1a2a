//! Blocks of files that move between PM and tiers.

use crate::error::Result;
use crate::reservation::Draw;
use crate::space::PlacedExtent;
use crate::units::{Block, FileBlock, Timestamp};

use super::space::TierBlocks;

/// Blocks of a file, and their version when they were looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Movable {
    /// The blocks and their place.
    pub extent: PlacedExtent,
    /// It is not theirs any more when one of them has another place or, behind the end of the file, other bytes.
    pub version: u64,
}

impl Movable {
    /// So many of the blocks, from the one with number `skip` on.
    #[must_use]
    pub const fn part(&self, skip: u64, len: u64) -> Movable {
        let PlacedExtent { start, place, .. } = self.extent;
        let extent = PlacedExtent { start: FileBlock(start.0 + skip), len, place: place.plus(skip) };
        Movable { extent, version: self.version }
    }
}

/// Blocks of a file that were copied to a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// Their old place and its version: at most one [`Movable`], or a part of it.
    pub from: Movable,
    /// The tier with the copies, which are contiguous.
    pub tier: u8,
    /// The block with the first copy.
    pub block: Block,
}

/// Blocks of one file that were copied to a tier.
#[derive(Debug, Clone, Copy)]
pub struct CopiedFile<'c, N> {
    /// The file.
    pub node: &'c N,
    /// The blocks and the places of their copies.
    pub copied: &'c [Copied],
    /// The time at which the blocks were written.
    pub modified: Timestamp,
}

/// Relocation of blocks of files.
pub trait Relocate: TierBlocks {
    /// Proof that data written to a tier is durable.
    type Proof;

    /// As [`resolve`](crate::Extents::resolve), and behind the end of the file, too.
    fn resolve_allocated(&self, node: &Self::Node, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>>;

    /// The places of the blocks from `start` on, each with its version. At most `len` blocks, without holes, up to the
    /// end of the file's last block.
    fn resolve_movable(&self, node: &Self::Node, start: FileBlock, len: u64) -> Result<Vec<Movable>>;

    /// The first blocks of a file that are on PM, allocated and not written, each with its version. At most `most`
    /// blocks, also behind the end of the file. They move without being copied.
    fn resolve_unwritten(&self, node: &Self::Node, most: u64) -> Result<Vec<Movable>>;

    /// Commits relocations: the places of copies, and the places allocated for unwritten blocks. Each file has
    /// operations of its own. For each file, in order, it returns the blocks that stay as they are, because their
    /// version has changed or the log had no space. An error of one file, or blocks left by it, does not affect the
    /// others. Contents, sizes and times of the files do not change. Replaced blocks are free afterwards. The proof
    /// covers all copies: one flush of the device is enough for any number of files.
    fn publish(&self, files: &[CopiedFile<'_, Self::Node>], proof: Self::Proof) -> Vec<Result<Vec<Copied>>>;

    /// Promotes blocks of one [`Movable`] to persistent memory; `content` is their contents. False, without a change,
    /// if the version has changed. A write with a reservation returns the blocks that its promotion takes from there.
    /// With [`Draw::Overwrite`] as many other blocks must be demoted then. It is durable in any case.
    fn bring_up(
        &self,
        node: &Self::Node,
        from: &Movable,
        content: &[u8],
        draw: Draw<'_>,
        modified: Timestamp,
    ) -> Result<bool>;

    /// Moves blocks in the range that a file has allocated and not written on a draining tier. They go to persistent
    /// memory or, if that is full, to active tiers. Returns their number.
    fn replace_unwritten(&self, node: &Self::Node, tier: u8, start: FileBlock, len: u64) -> Result<u64>;
}
