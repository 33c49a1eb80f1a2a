//! Blocks that leave DRAM: written, cut off, or without an owner.

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{BelowBuffer, Extents, FileBlock, Place, Reservation, Result};
use nacre_media::Frame;
use nacre_policy::Block as ModelBlock;

use crate::buffer::{BLOCK, LINE, LINES, lines};
use crate::collect::bytes_of;
use crate::file::{Blocks, Entry, File, Times};
use crate::fs::Shared;
use crate::order::Slot;
use crate::write::own;

/// Buffers and reserved space of blocks that leave a file's index. They are given back together, because each return
/// takes the locks of the pool and the layout.
#[derive(Default)]
pub(crate) struct Leaving {
    blocks: u64,
    space: u64,
    buffers: Vec<(Slot, Frame)>,
}

impl Leaving {
    pub(crate) fn add(&mut self, slot: Slot, buffer: Frame, space: u64) {
        self.space += space;
        self.buffers.push((slot, buffer));
    }
}

impl<L: BelowBuffer + Extents> Shared<L> {
    /// Takes a block that is not in flight out of the index. Under `blocks`, exclusively, until [`Shared::let_go`].
    pub(crate) fn leave(&self, file: &File, blocks: &mut Blocks, block: u64, leaving: &mut Leaving) {
        let Some(entry) = blocks.index.remove(block) else { return };
        let Entry { slot, buffer, dirty, flight, model, space, .. } = entry;
        debug_assert!(flight.is_none(), "block {block} is in flight");
        if dirty != 0 {
            self.counters.discarded.add(bytes_of(dirty));
        } else if !file.is_gone() {
            self.remember(file, block, model);
        }
        let of_file = if blocks.index.is_empty() { std::mem::take(&mut blocks.space) } else { 0 };
        leaving.blocks += 1;
        leaving.add(slot, buffer, space + of_file);
    }

    /// Gives back buffers and space of blocks that left. Under `blocks`, exclusively.
    pub(crate) fn let_go(&self, file: &File, blocks: &mut Blocks, leaving: Leaving) {
        if leaving.buffers.is_empty() {
            return;
        }
        // First, because a writer that finds nothing waiting then tries to reserve space.
        self.give_back(file, blocks, leaving.space);
        file.cached.fetch_sub(leaving.blocks, Ordering::AcqRel);
        self.pool.release_all(leaving.buffers);
    }

    /// Takes blocks that are not in flight out of the index. Under `blocks`, exclusively.
    pub(crate) fn leave_all(&self, file: &File, blocks: &mut Blocks, which: impl IntoIterator<Item = u64>) {
        let mut leaving = Leaving::default();
        which.into_iter().for_each(|block| self.leave(file, blocks, block, &mut leaving));
        self.let_go(file, blocks, leaving);
    }

    /// Gives space of the layout back. Under `blocks`, exclusively.
    fn give_back(&self, file: &File, blocks: &mut Blocks, space: u64) {
        if file.is_gone() && file.has_flights() {
            blocks.owed += space;
        } else {
            blocks.reservation.give_back(space);
        }
    }

    /// Tracks a block that leaves, if the model may be asked about it before long.
    fn remember(&self, file: &File, block: u64, state: ModelBlock) {
        let mut history = file.history.lock();
        if history.last_sync_ms().is_none()
            || !history.is_synced_lately(self.clock.now_ms(), &self.model_of(&self.rules()))
        {
            return;
        }
        let may_grow = self.may_grow();
        let grew = history.put(block, state, may_grow);
        self.drop_ghosts(u64::from(may_grow && !grew));
        file.ghosts.store(history.len(), Ordering::Relaxed);
    }

    /// Drops all blocks of a file whose inode is gone.
    pub(crate) fn discard(&self, file: &File) {
        file.gone.store(true, Ordering::Release);
        file.raise_epoch();
        let mut blocks = file.blocks.write();
        let landed: Vec<u64> = blocks
            .index
            .range(0..u64::MAX)
            .filter(|(_, entry)| entry.flight.is_none())
            .map(|(block, _)| block)
            .collect();
        self.leave_all(file, &mut blocks, landed);
        *file.times.lock() = None;
        drop(blocks);
        self.forget_ghosts(file);
        self.table.remove(file.id);
    }

    /// Cuts the blocks at `size` and behind it, after the layout has. No writeback is in flight. Under `blocks`,
    /// exclusively.
    pub(crate) fn cut(&self, node: &L::Node, file: &File, blocks: &mut Blocks, size: u64) {
        let behind: Vec<u64> =
            blocks.index.range(size.div_ceil(BLOCK as u64)..u64::MAX).map(|(block, _)| block).collect();
        self.leave_all(file, blocks, behind);
        let (last, within) = (size / BLOCK as u64, (size % BLOCK as u64) as usize);
        if let Some(entry) = blocks.index.get_mut(last)
            && within > 0
        {
            // The rest of a line that stays reads as zeros when the file grows again.
            let line_end = within.next_multiple_of(LINE);
            own(&mut entry.buffer)[within..line_end].fill(0);
            let behind = if line_end < BLOCK { lines(line_end / LINE, LINES) } else { 0 };
            self.counters.discarded.add(bytes_of(entry.dirty & behind));
            entry.model.written_back(behind);
            entry.valid &= !behind;
            entry.dirty &= !behind;
            if entry.dirty == 0 && self.was_never_written(node, last) {
                // The block was written to, and the file keeps it. The end of the remaining part is written, all
                // zeros.
                let first = (within - 1) / LINE;
                let line = lines(first, first + 1);
                if entry.valid & line == 0 {
                    own(&mut entry.buffer)[first * LINE..][..LINE].fill(0);
                }
                (entry.valid, entry.dirty) = (entry.valid | line, line);
            } else if entry.dirty == 0 {
                self.leave_all(file, blocks, [last]);
            }
        }
        let mut history = file.history.lock();
        let forgotten = history.cut(size.div_ceil(BLOCK as u64));
        file.ghosts.store(history.len(), Ordering::Relaxed);
        self.drop_ghosts(forgotten);
    }

    /// Whether the layout has no data for a block of a file. False on an error.
    fn was_never_written(&self, node: &L::Node, block: u64) -> bool {
        let extents = self.layout.resolve(node, FileBlock(block), 1).unwrap_or_default();
        extents.first().is_some_and(|extent| {
            matches!(extent.place, Place::Hole | Place::Unwritten(_) | Place::UnwrittenOnTier { .. })
        })
    }

    /// Copies the times that callers see to the layout, before the last block of a file leaves. Under `blocks`,
    /// exclusively; `reservation` is theirs.
    pub(crate) fn settle_times(&self, node: &L::Node, file: &File, reservation: &Reservation) -> Result<()> {
        let Some(times) = *file.times.lock() else { return Ok(()) };
        if self.layout.getattr(node)?.mtime != times.mtime || times.atime.is_some() {
            let Times { mtime, ctime, atime } = times;
            self.layout.write_back_times(node, mtime, atime, reservation, ctime)?;
        }
        *file.times.lock() = None;
        Ok(())
    }
}
