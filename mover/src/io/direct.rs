//! Writes of reserved data from a write buffer: to PM, or straight to disk.

use std::io::IoSlice;
use std::ops::Range;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{
    BLOCK_SIZE, Block, Draw, FileBlock, Kind, Place, Result, Tier, TierRun, Tiered, Timestamp, WriteAt,
    Written, unless_full,
};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;
use nacre_policy::temperature::Span;

use crate::engine::executor::Taken;
use crate::io::{Files, segments};
use crate::places::Reading;
use crate::stats::predictors::blocks_of;

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Files<'_, L, D> {
    /// Whether a write that may wait is to go to disk.
    pub(crate) fn is_for_disk(&self, node: &L::Node, offset: u64, len: u64) -> bool {
        len > 0
            && self.places.predicts()
            && self.mover.engine.large_to_disk.load(Ordering::Relaxed)
            && self.stats.predictors.is_for_disk(self.places.layout.id(node), blocks_of(offset, len))
            && !self.places.is_pinned(node)
    }

    /// Whether data of a write buffer may go to disk.
    pub(crate) fn may_go_to_disk(&self, data: &[IoSlice<'_>]) -> bool {
        // Whether nothing may be written is the layout's to say.
        self.mover.engine.large_to_disk.load(Ordering::Relaxed) && segments::length(data) > 0
    }

    /// Writes data that may go to disk. Its whole blocks that belong there go there, with one flush and one commit. The
    /// partly covered ones go to PM, in order: the size of the file never covers unwritten data.
    pub(crate) fn write_where_it_belongs(
        &self,
        node: &L::Node,
        offset: u64,
        data: &[IoSlice<'_>],
        draw: Draw<'_>,
        now: Timestamp,
    ) -> Result<()> {
        let len = segments::length(data);
        let end = offset + len;
        let part = |range: &Range<u64>| cut(data, range.start - offset..range.end - offset);
        let to_memory = |range: Range<u64>| match range.is_empty() {
            true => Ok(()),
            false => {
                let at = WriteAt::Offset(range.start);
                self.write_to_pm(node, at, &part(&range), draw, now).map(drop)
            }
        };
        let mut at = offset;
        for range in self.parts_for_disk(node, offset..end)? {
            to_memory(at..range.start)?;
            if !self.write_to_disk(node, range.start, &part(&range), draw, now)? {
                to_memory(range.clone())?;
            }
            at = range.end;
        }
        to_memory(at..end)
    }

    /// Writes reserved data to disk for which no room can be made in PM, because all of that is mapped, pinned, or of
    /// logs. Partly covered blocks go there whole. `None` when no tier takes it.
    pub(crate) fn write_below(
        &self,
        node: &L::Node,
        at: WriteAt,
        data: &[IoSlice<'_>],
        draw: Draw<'_>,
        now: Timestamp,
    ) -> Result<Option<u64>> {
        let WriteAt::Offset(offset) = at else { return Ok(None) };
        if !draw.is_reserved() {
            return Ok(None);
        }
        let (size, end) = (self.places.layout.size(node)?, offset + segments::length(data));
        // The bytes behind the end of the file in its last block are not the file's.
        let start = offset / BLOCK_SIZE * BLOCK_SIZE;
        let whole = start..end.max(end.next_multiple_of(BLOCK_SIZE).min(size));
        let (mut before, mut behind) =
            (vec![0; (offset - start) as usize], vec![0; (whole.end - end) as usize]);
        self.read(node, start, &mut before, None)?;
        self.read(node, end, &mut behind, None)?;
        let mut all = vec![IoSlice::new(&before)];
        all.extend(data.iter().map(|slice| IoSlice::new(slice)));
        all.push(IoSlice::new(&behind));
        let is_written = self.write_all_to_disk(node, whole, &all, draw, now)?;
        Ok(is_written.then_some(offset))
    }

    /// Writes whole blocks to disk, in order, in as many pieces as it takes where there is little room on each.
    fn write_all_to_disk(
        &self,
        node: &L::Node,
        range: Range<u64>,
        data: &[IoSlice<'_>],
        draw: Draw<'_>,
        now: Timestamp,
    ) -> Result<bool> {
        if self.write_to_disk(node, range.start, data, draw, now)? {
            return Ok(true);
        }
        let half = (range.end - range.start).div_ceil(BLOCK_SIZE) / 2 * BLOCK_SIZE;
        if half == 0 {
            return Ok(false);
        }
        let (middle, len) = (range.start + half, range.end - range.start);
        Ok(self.write_all_to_disk(node, range.start..middle, &cut(data, 0..half), draw, now)?
            && self.write_all_to_disk(node, middle..range.end, &cut(data, half..len), draw, now)?)
    }

    /// The bytes of a write that go to disk, in order: as they were written, and whole blocks.
    fn parts_for_disk(&self, node: &L::Node, write: Range<u64>) -> Result<Vec<Range<u64>>> {
        let whole = whole_blocks(write.start, write.end, self.places.layout.size(node)?);
        if whole.is_empty() || self.places.is_pinned(node) {
            return Ok(Vec::new());
        }
        let span = blocks_of(whole.start, whole.end - whole.start);
        let parts = self.stats.predictors.parts_for_disk(self.places.layout.id(node), span);
        let bytes = |part: Span| part.start * BLOCK_SIZE..(part.end() * BLOCK_SIZE).min(whole.end);
        Ok(parts.into_iter().map(bytes).collect())
    }

    /// Writes whole blocks, the last of which may be the end of the file, to the fastest tier that has room. False when
    /// none has, or they cannot be the file's now.
    fn write_to_disk(
        &self,
        node: &L::Node,
        offset: u64,
        data: &[IoSlice<'_>],
        draw: Draw<'_>,
        now: Timestamp,
    ) -> Result<bool> {
        let len = segments::length(data);
        let size = self.places.layout.size(node)?;
        if offset > size && !size.is_multiple_of(BLOCK_SIZE) {
            // The bytes behind the end in its block will show, as zeros.
            match self.places.promote_from(node, FileBlock(size / BLOCK_SIZE), 1, draw, |_| true) {
                Err(error) if matches!(error.kind(), Kind::NoSpace | Kind::Busy) => return Ok(false),
                other => other?,
            };
        }
        let blocks = len.div_ceil(BLOCK_SIZE);
        let content = segments::gather(blocks, 0, data);
        let before = self.place_before(node, offset);
        for Tier { number, .. } in self.places.takers(before.map(|(tier, _)| tier)) {
            let goal = before.filter(|(tier, _)| *tier == number).map(|(_, block)| block.plus(1));
            let taken = self.places.take_on(number, goal, blocks, draw.is_reserved());
            let Some(runs) = unless_full(taken)? else { continue };
            let runs = Taken::new(self.places, runs);
            let pieces = segments::split(runs.runs().iter().copied(), &content);
            let mut start = FileBlock(offset / BLOCK_SIZE);
            let mut written = Vec::new();
            for &run in runs.runs() {
                written.push(Written { start, run });
                start.0 += run.len;
            }
            // A device that fails is out of use for a while, and the data has another place.
            let stored =
                self.places.tiers.write_at_once(&pieces).and_then(|()| self.places.tiers.flush([number]));
            let Ok(proof) = stored else { continue };
            // Until the copy is in DRAM: blocks that the file gives up meanwhile must not be reused.
            let reading = Reading::begin(&self.places.layout);
            match self.places.layout.publish_write(node, &written, offset + len, draw, now, proof) {
                // There is no space for the entry, or a block is mapped, or the end of the file was demoted meanwhile:
                // the write to PM handles these.
                Err(error) if matches!(error.kind(), Kind::NoSpace | Kind::Busy | Kind::Elsewhere) => {
                    return Ok(false);
                }
                Err(error) => return Err(runs.keep_unless_unpublished(error)),
                Ok(()) => {}
            }
            if draw.is_reserved() {
                self.places.placed_reserved(blocks);
            }
            self.keep_in_dram(&pieces);
            drop(reading);
            drop(runs.keep());
            return Ok(true);
        }
        Ok(false)
    }

    /// On which tier the block before a write is, and where: a file that is written in order lies in order.
    fn place_before(&self, node: &L::Node, offset: u64) -> Option<(u8, Block)> {
        let before = (offset / BLOCK_SIZE).checked_sub(1)?;
        let found = self.places.layout.resolve(node, FileBlock(before), 1).ok()?;
        match found.first()?.place {
            Place::Tier { tier, block } => Some((tier, block)),
            _ => None,
        }
    }

    /// A copy stays in DRAM while that has room (TPFS, 5.3).
    fn keep_in_dram(&self, pieces: &[(TierRun, &[u8])]) {
        let pages = self.places.tiers.pages();
        for (run, part) in pieces {
            if pages.bytes() < pages.capacity() / 2 {
                pages.fill(run.tier, run.start, part);
            }
        }
    }
}

/// The bytes of a write that are whole blocks; the last one may end with the file.
fn whole_blocks(offset: u64, end: u64, size: u64) -> Range<u64> {
    let start = offset.next_multiple_of(BLOCK_SIZE);
    let last = if end >= size { end } else { end / BLOCK_SIZE * BLOCK_SIZE };
    start..last.max(start)
}

/// The bytes in `range` of the data in slices one behind the other.
pub(crate) fn cut<'a>(data: &'a [IoSlice<'a>], range: Range<u64>) -> Vec<IoSlice<'a>> {
    let mut at = 0;
    let mut part = Vec::new();
    for slice in data {
        let (from, to) = (at, at + slice.len() as u64);
        let (first, end) = (range.start.max(from), range.end.min(to));
        if first < end {
            part.push(IoSlice::new(&slice[(first - from) as usize..(end - from) as usize]));
        }
        at = to;
    }
    part
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use super::{cut, whole_blocks};

    #[test]
    fn the_end_of_a_file_is_a_whole_block() {
        assert_eq!(whole_blocks(0, 8192, 0), 0..8192);
        assert_eq!(whole_blocks(100, 9000, 9000), 4096..9000);
        assert_eq!(whole_blocks(100, 9000, 9001), 4096..8192, "what is behind it in its block stays");
        assert!(whole_blocks(100, 200, 4096).is_empty());
        assert!(whole_blocks(100, 4096, 10_000).is_empty());
    }

    #[test]
    fn slices_are_cut_at_bytes() {
        let data = [IoSlice::new(b"abc"), IoSlice::new(b"defg"), IoSlice::new(b"h")];
        let text = |range| cut(&data, range).iter().flat_map(|part| part.to_vec()).collect::<Vec<u8>>();
        assert_eq!(text(0..8), b"abcdefgh");
        assert_eq!(text(2..5), b"cde");
        assert_eq!(text(3..3), b"");
        assert_eq!(cut(&data, 3..7).len(), 1);
    }
}
