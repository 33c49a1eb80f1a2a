//! Writes that go to a tier at once, and writes on a full device.

use std::io::IoSlice;

use crate::below_buffer::BelowBuffer;
use crate::content::WriteAt;
use crate::error::Result;
use crate::reservation::Draw;
use crate::units::{FileBlock, Timestamp};

use super::relocate::{Movable, Relocate};
use super::space::TierRun;

/// Whole blocks of a file that were written to a tier instead of to persistent memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// The first block in the file.
    pub start: FileBlock,
    /// The place of the first block's content; the others follow.
    pub run: TierRun,
}

/// Writes of whole blocks to tiers. Optional: without it, new blocks are on PM first.
pub trait WriteToTier: Relocate + BelowBuffer {
    /// Commits a write of whole blocks on tiers, as one operation. The last block may reach behind `size`. The file
    /// has at least that size afterwards.
    fn publish_write(
        &self,
        node: &Self::Node,
        written: &[Written],
        size: u64,
        draw: Draw<'_>,
        now: Timestamp,
        proof: Self::Proof,
    ) -> Result<()>;

    /// The same for a write that comes now, to blocks that the file has at these places already, allocated and not
    /// written. False, without a change, if one of them is not. If it `joins`, the blocks were written before or are
    /// zeros. The log then needs fewer entries, and more space is there for that.
    fn publish_first_write(
        &self,
        node: &Self::Node,
        written: &[Written],
        size: u64,
        now: Timestamp,
        proof: Self::Proof,
        joins: bool,
    ) -> Result<bool>;

    /// Writes if direct reclaim failed: blocks on PM are overwritten with the layout's reserve for that, as
    /// [`write`](crate::Data::write) does without tiers. [`NoSpace`](crate::Kind::NoSpace), without a change, if other
    /// blocks are written, too.
    fn overwrite(
        &self,
        node: &Self::Node,
        at: WriteAt,
        data: &[IoSlice<'_>],
        draw: Draw<'_>,
        now: Timestamp,
    ) -> Result<u64>;

    /// Lets `change` overwrite blocks of one [`Movable`] in place on their tier, if there is no space for other ways.
    /// No log entry records it, and a crash may leave a part. No other thread changes the file meanwhile, or moves the
    /// blocks. False, without a change, if the version has changed.
    fn change_below(
        &self,
        node: &Self::Node,
        from: &Movable,
        now: Timestamp,
        change: &mut dyn FnMut() -> Result<()>,
    ) -> Result<bool>;
}
