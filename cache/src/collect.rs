//! What of a block is written, and in how many operations.

use std::io::IoSlice;
use std::ops::Range;

use nacre_engine::{BLOCK_SIZE, Data, Durability, Extents, Result, Timestamp, WriteAt};
use nacre_media::Frame;
use smallvec::SmallVec;

use crate::buffer::{BLOCK, LINE, runs, runs_by_unit};
use crate::file::{Entry, File};
use crate::fs::Shared;
use crate::write::own;

/// Bytes that one operation writes at the most.
const MAX_RUN: u64 = 1 << 20;

/// The dirty parts of one block, as bytes in it.
pub(crate) struct Dirty {
    pub(crate) block: u64,
    pub(crate) buffer: Frame,
    pub(crate) parts: SmallVec<[(usize, usize); 2]>,
}

impl<L: Data + Extents> Shared<L> {
    /// The dirty parts of a block, up to `limit` bytes of the file. Where the layout writes in units of more than a line,
    /// the dirty lines of a unit are one part, with what lies between them.
    pub(crate) fn dirty_parts(
        &self,
        node: &L::Node,
        file: &File,
        block: u64,
        entry: &mut Entry,
        limit: u64,
    ) -> Result<Dirty> {
        let mut parts = SmallVec::new();
        let start = block * BLOCK_SIZE;
        let inside = limit.saturating_sub(start).min(BLOCK_SIZE) as usize;
        for (first, end) in runs_by_unit(entry.dirty, self.unit_lines) {
            let between = crate::buffer::lines(first, end) & !entry.valid;
            if between != 0 {
                self.fetch(node, file, block, between, own(&mut entry.buffer))?;
                entry.valid |= between;
            }
            let (mut from, to) = (first * LINE, (end * LINE).min(inside));
            if self.unit_lines > 1 && from < to {
                from = self.without_old_end(node, file, start, from..to, entry)?;
            }
            if from < to {
                parts.push((from, to));
            }
        }
        Ok(Dirty { block, buffer: entry.buffer.clone(), parts })
    }

    /// Where a part of the block at `start` begins whose first line holds the end that media knows, and which appends to it:
    /// behind that end, if what is before it has stayed as it is. A layout that copies on write appends without a copy, and
    /// would copy the block for that line.
    fn without_old_end(
        &self,
        node: &L::Node,
        file: &File,
        start: u64,
        part: Range<usize>,
        entry: &Entry,
    ) -> Result<usize> {
        let end = file.below().saturating_sub(start) as usize;
        if !(part.start + 1..part.end).contains(&end) || end - part.start >= LINE {
            return Ok(part.start);
        }
        let mut old = [0; LINE];
        let old = &mut old[..end - part.start];
        let count = self.layout.read(node, start + part.start as u64, old, None)?;
        let is_same = count == old.len() && *old == entry.buffer[part.start..end];
        Ok(if is_same { end } else { part.start })
    }

    /// Writes dirty parts in order, those that lie together in one operation, as long as `go_on` says so. Gives the
    /// number of blocks that are written, and the error that ended it.
    pub(crate) fn write_dirty(
        &self,
        node: &L::Node,
        file: &File,
        dirty: &[Dirty],
        now: Timestamp,
        go_on: impl Fn() -> bool,
    ) -> (usize, Result<()>) {
        let mut done = 0;
        while done < dirty.len() && go_on() {
            let mut count = 1;
            while count < (MAX_RUN / BLOCK_SIZE) as usize
                && dirty.get(done + count).is_some_and(|next| follows(&dirty[done + count - 1], next))
            {
                count += 1;
            }
            if let Err(error) = self.write_run(node, file, &dirty[done..done + count], now) {
                return (done, Err(error));
            }
            done += count;
        }
        (done, Ok(()))
    }

    /// Writes blocks each of which follows the one before; their first and last may be there in several parts.
    fn write_run(&self, node: &L::Node, file: &File, dirty: &[Dirty], now: Timestamp) -> Result<()> {
        let mut slices: SmallVec<[IoSlice<'_>; 8]> = SmallVec::new();
        let mut start = 0;
        let mut end = 0;
        for part in dirty {
            for &(from, to) in &part.parts {
                let at = part.block * BLOCK_SIZE + from as u64;
                if at != end || slices.is_empty() {
                    self.write_slices(node, file, start, &slices, now)?;
                    slices.clear();
                    start = at;
                }
                slices.push(IoSlice::new(&part.buffer[from..to]));
                end = part.block * BLOCK_SIZE + to as u64;
            }
        }
        self.write_slices(node, file, start, &slices, now)
    }

    fn write_slices(
        &self,
        node: &L::Node,
        file: &File,
        at: u64,
        slices: &[IoSlice<'_>],
        now: Timestamp,
    ) -> Result<()> {
        if slices.is_empty() {
            return Ok(());
        }
        let len = slices.iter().map(|slice| slice.len() as u64).sum::<u64>();
        self.layout.write(node, WriteAt::Offset(at), slices, Durability::Promised, now)?;
        self.counters.written_back.add(len);
        file.grew_below(at + len);
        Ok(())
    }

    /// The time to write a file's data with: its newest change, unless the layout knows a newer one.
    pub(crate) fn time_of(&self, node: &L::Node, file: &File) -> Result<Timestamp> {
        match *file.times.lock() {
            Some(times) => Ok(times.ctime),
            None => Ok(self.layout.getattr(node)?.ctime),
        }
    }
}

/// The second goes on where the first ends.
fn follows(first: &Dirty, second: &Dirty) -> bool {
    first.block + 1 == second.block
        && first.parts.last().is_some_and(|part| part.1 == BLOCK)
        && second.parts.first().is_some_and(|part| part.0 == 0)
}

/// Bytes of the lines of a set.
pub(crate) fn bytes_of(set: u64) -> u64 {
    runs(set).map(|(first, end)| ((end - first) * LINE) as u64).sum()
}
