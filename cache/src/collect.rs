//! The parts of a block to write, and the operations that write them.

use std::io::IoSlice;
use std::ops::Range;

use nacre_engine::{BLOCK_SIZE, BelowBuffer, Extents, Reservation, Result, Timestamp};
use nacre_media::Frame;
use smallvec::SmallVec;

use crate::buffer::{BLOCK, LINE, runs, runs_by_unit};
use crate::file::{Entry, File};
use crate::fs::Shared;
use crate::write::own;

/// The largest number of bytes that one operation writes.
const MAX_RUN: u64 = 1 << 20;

/// The dirty parts of one block, as bytes in it.
pub(crate) struct Dirty {
    pub(crate) block: u64,
    pub(crate) buffer: Frame,
    pub(crate) parts: SmallVec<[(usize, usize); 2]>,
}

impl<L: BelowBuffer + Extents> Shared<L> {
    /// The dirty parts of a block, up to `limit` bytes of the file. If the layout writes in units of more than a line,
    /// the dirty lines of a unit and the lines between them form one part.
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

    /// The start of `part` of the block at `start`, without old bytes. The part begins at the end on media if that
    /// lies in its first line and the bytes before it are unchanged. A layout that copies on write then appends
    /// without a copy, and would otherwise copy the block for that line.
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

    /// Writes dirty parts in order, contiguous ones in one operation, while `go_on` is true. Returns the number of
    /// blocks written, and the error that ended it.
    pub(crate) fn write_dirty(
        &self,
        node: &L::Node,
        file: &File,
        dirty: &[Dirty],
        reservation: &Reservation,
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
            if let Err(error) = self.write_run(node, file, &dirty[done..done + count], reservation, now) {
                return (done, Err(error));
            }
            done += count;
        }
        (done, Ok(()))
    }

    /// Writes consecutive blocks. The first and the last may have several parts.
    fn write_run(
        &self,
        node: &L::Node,
        file: &File,
        dirty: &[Dirty],
        reservation: &Reservation,
        now: Timestamp,
    ) -> Result<()> {
        let mut slices: SmallVec<[IoSlice<'_>; 8]> = SmallVec::new();
        let mut start = 0;
        let mut end = 0;
        for part in dirty {
            for &(from, to) in &part.parts {
                let at = part.block * BLOCK_SIZE + from as u64;
                if at != end || slices.is_empty() {
                    self.write_slices(node, file, start, &slices, reservation, now)?;
                    slices.clear();
                    start = at;
                }
                slices.push(IoSlice::new(&part.buffer[from..to]));
                end = part.block * BLOCK_SIZE + to as u64;
            }
        }
        self.write_slices(node, file, start, &slices, reservation, now)
    }

    fn write_slices(
        &self,
        node: &L::Node,
        file: &File,
        at: u64,
        slices: &[IoSlice<'_>],
        reservation: &Reservation,
        now: Timestamp,
    ) -> Result<()> {
        if slices.is_empty() {
            return Ok(());
        }
        let len = slices.iter().map(|slice| slice.len() as u64).sum::<u64>();
        self.layout.write_back(node, at, slices, reservation, now)?;
        self.counters.written_back.add(len);
        file.grew_below(at + len);
        Ok(())
    }

    /// The time to write a file's data with: its newest change, unless the layout has a newer one.
    pub(crate) fn time_of(&self, node: &L::Node, file: &File) -> Result<Timestamp> {
        match *file.times.lock() {
            Some(times) => Ok(times.ctime),
            None => Ok(self.layout.getattr(node)?.ctime),
        }
    }
}

/// Whether the second continues at the end of the first.
fn follows(first: &Dirty, second: &Dirty) -> bool {
    first.block + 1 == second.block
        && first.parts.last().is_some_and(|part| part.1 == BLOCK)
        && second.parts.first().is_some_and(|part| part.0 == 0)
}

/// The number of bytes of the lines of a set.
pub(crate) fn bytes_of(set: u64) -> u64 {
    runs(set).map(|(first, end)| ((end - first) * LINE) as u64).sum()
}
