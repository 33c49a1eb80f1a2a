//! Writes that find no room for a node: blocks that one word leads to stay together.
//!
//! Some blocks of an extent, or of a whole group, cannot be told from the others without a node. If they were never
//! written, the others become zeros where they are, and all of them are written blocks afterwards: one word changes. If
//! the write replaces bytes that a reader sees, all of them are copied to other blocks that lie together, and the old
//! ones are free again.
//!
//! It is atomic: no reader sees blocks that were never written, or bytes behind the size, before the commit. Zeros and
//! data are durable before the word changes.

use nacre_engine::{BLOCK_SIZE, Result, Step, or_another_way};
use nacre_layout_parts::tree::edit::join;
use nacre_media::Pm;

use crate::blockmap::Piece;
use crate::commit::Change;
use crate::counts::{Purpose, SHORT};
use crate::file::{Before, Write, check_pins};
use crate::format::RawInode;
use crate::fs::Shared;
use crate::held::HeldInode;
use crate::places::Places;

impl<P: Pm> Shared<P> {
    /// Writes a range in one operation, with whatever room there is. A short extent leaves the reserve to longer ones,
    /// as it can be copied.
    pub(crate) fn write_with_room(
        &self,
        inode: &HeldInode,
        raw: &RawInode,
        write: &Write<'_, '_>,
    ) -> Result<()> {
        let is_short = self.tree(inode.number, raw)?.extent().is_some_and(|extent| extent.len <= SHORT);
        let reserve = if write.purpose == Purpose::Data { Purpose::Metadata } else { write.purpose };
        let from_reserve = || self.write_range(inode, raw, write, reserve);
        let together = || self.write_together(inode, raw, write);
        if !is_short {
            return or_another_way(Step::Reserve, from_reserve(), together);
        }
        let written = self.write_range(inode, raw, write, write.purpose);
        let written = or_another_way(Step::Reserve, written, together);
        or_another_way(Step::Reserve, written, || from_reserve().map(Some))
    }

    /// One operation without a new node. `None` if the range is not within blocks that one word leads to.
    fn write_together(&self, inode: &HeldInode, raw: &RawInode, write: &Write<'_, '_>) -> Result<Option<()>> {
        let (number, tree) = (inode.number, self.tree(inode.number, raw)?);
        let (first, last) = (write.start / BLOCK_SIZE, write.end.div_ceil(BLOCK_SIZE));
        let all = match tree.extent() {
            Some(extent) => Some(self.checked(extent)?),
            None => self.whole_group(tree, first)?,
        };
        // Blocks before a group may be behind the size.
        let has_range =
            |all: &Piece| all.start * BLOCK_SIZE <= raw.size.min(write.start) && last <= all.end();
        let Some(all) = all.filter(has_range) else { return Ok(None) };
        // A copy takes a large part of the reserve until its end: one at a time.
        let _turn = self.copies_together.lock();
        self.change(|change| {
            change.know(number, raw)?;
            let (piece, before) = change.place_together(inode, raw, all, write)?;
            let mut places = Places::of(self, tree, all.start, all.end())?;
            places.set(all.start, all.end(), [piece]);
            change.put_places(number, tree, &places, Purpose::Metadata)?;
            change.copy_part(raw.size, write, piece, before)?;
            change.commit_write(number, raw, write)
        })
        .map(Some)
    }
}

impl<P: Pm> Change<'_, P> {
    /// The place of all of the blocks afterwards, and their state before.
    fn place_together(
        &mut self,
        inode: &HeldInode,
        raw: &RawInode,
        all: Piece,
        write: &Write<'_, '_>,
    ) -> Result<(Piece, Before)> {
        let new = Piece { is_written: true, ..all };
        if !all.is_written {
            return Ok((new, Before::Unwritten(all.block)));
        }
        if write.start < raw.size {
            check_pins(inode)?;
            let block = self.allocate_together(all.len, write.purpose_of_replaced())?;
            return Ok((Piece { block, ..new }, Before::Written(all.block)));
        }
        if raw.size < write.start {
            let gap = all.offset() + (raw.size - all.start * BLOCK_SIZE);
            let zeroed = self.fs.pm.zero(gap, write.start - raw.size)?;
            self.pending = join(self.pending.take(), zeroed);
        }
        Ok((new, Before::Tail(all.block)))
    }
}
