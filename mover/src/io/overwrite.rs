//! A full file system: blocks that a file has can be written all the same, and unwritten blocks are demoted to make
//! room for written ones.
//!
//! **Blocks that were never written** have no content to copy: an entry of the log allocates them on a tier instead of
//! on PM. Otherwise a PM full of them would be a full file system, however empty its tiers are.
//!
//! **A write that finds no space**, and no block that can move, goes to blocks that the file has already. Unwritten
//! blocks of tiers are written where they are. Blocks on PM are overwritten with the layout's reserve for that. Written
//! blocks of tiers are promoted first. Their old places on the tier make room for other blocks of PM, which are demoted
//! at once.

use std::io::IoSlice;

use nacre_engine::{
    Attr, BLOCK_SIZE, Draw, FileBlock, Kind, Place, PlacedExtent, Result, TierRun, Tiered, Timestamp,
    WriteAt, Written, unless_full,
};
use nacre_media::Durable;
use nacre_media::block::{BlockDevice, Pages};

use crate::engine::executor::Why;
use crate::engine::reclaim::ATTEMPTS;
use crate::io::direct::cut;
use crate::io::write::Held;
use crate::io::{Files, segments};
use crate::places::Reading;

/// Blocks among which neighbours are looked for that become written ones together.
const ZEROED: u64 = 512;

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Files<'_, L, D> {
    /// Writes over blocks that the file has already, if no room can be made; `None` when it lacks some of them.
    pub(crate) fn write_on_full(
        &self,
        node: &L::Node,
        at: WriteAt,
        data: &[IoSlice<'_>],
        draw: Draw<'_>,
        now: Timestamp,
    ) -> Result<Option<u64>> {
        if self.places.has_tiers()
            && let Some(offset) = unless_full(self.write_where_allocated(node, at, data, now))?.flatten()
        {
            return Ok(Some(offset));
        }
        if let Some(offset) = self.overwrite_on_pm(node, at, data, draw, now)? {
            return Ok(Some(offset));
        }
        let (WriteAt::Offset(offset), true) = (at, self.places.has_tiers()) else { return Ok(None) };
        let end = offset + segments::length(data);
        let (first, last) = (offset / BLOCK_SIZE, end.div_ceil(BLOCK_SIZE));
        let found = self.places.layout.resolve_allocated(node, FileBlock(first), last - first)?;
        let has = |extent: &PlacedExtent| extent.place != Place::Hole;
        let blocks: u64 = found.iter().filter(|extent| has(extent)).map(|extent| extent.len).sum();
        if blocks < last - first || end > self.places.layout.size(node)? {
            return Ok(None);
        }
        // Each block where it is, one after another.
        for block in first..last {
            let (from, to) = (offset.max(block * BLOCK_SIZE), end.min((block + 1) * BLOCK_SIZE));
            let part = cut(data, from - offset..to - offset);
            if !self.overwrite_block(node, from, &part, draw, now)? {
                return Ok(None);
            }
        }
        Ok(Some(offset))
    }

    /// On a full file system: writes blocks of a tier that the file has already, allocated and not written. `None` when
    /// the range is not all of that kind.
    pub(crate) fn write_where_allocated(
        &self,
        node: &L::Node,
        at: WriteAt,
        data: &[IoSlice<'_>],
        now: Timestamp,
    ) -> Result<Option<u64>> {
        let len = segments::length(data);
        let Attr { size, flags, .. } = self.places.layout.getattr(node)?;
        let offset = match at {
            WriteAt::Offset(offset) => offset,
            // To the layout it is none that appends.
            WriteAt::End if flags & Attr::APPEND_ONLY != 0 => return Ok(None),
            // A concurrent append changes its first block.
            WriteAt::End => size,
        };
        let (first, end) = (offset / BLOCK_SIZE, (offset + len).div_ceil(BLOCK_SIZE));
        // Of two that write to one block at once, the second would undo the first.
        let _alone = self.io.fills.begin(self.places.layout.id(node), first..end);
        let reading = Reading::begin(&self.places.layout);
        let found = self.places.layout.resolve_allocated(node, FileBlock(first), end - first)?;
        let mut written = Vec::new();
        for PlacedExtent { start, len, place } in found {
            let Place::UnwrittenOnTier { tier, block } = place else { return Ok(None) };
            written.push(Written { start, run: TierRun { tier, start: block, len } });
        }
        let blocks: u64 = written.iter().map(|part| part.run.len).sum();
        if blocks != end - first {
            return Ok(None);
        }
        // Unwritten bytes of them read as zeros.
        let content = segments::gather(blocks, (offset % BLOCK_SIZE) as usize, data);
        self.write_in_place(&segments::split(written.iter().map(|part| part.run), &content))?;
        let flush = || self.places.tiers.flush(written.iter().map(|part| part.run.tier));
        let publish =
            |proof| self.places.layout.publish_first_write(node, &written, offset + len, now, proof, false);
        let is_done = match publish(flush()?) {
            // The bytes behind the end of its last block would show: if that is on a tier, it is promoted.
            Err(error) if error.kind() == Kind::Elsewhere => {
                let _moved = self.places.promote(node, FileBlock(size / BLOCK_SIZE), 1)?;
                publish(flush()?)?
            }
            done => done?,
        };
        drop(reading);
        Ok(is_done.then_some(offset))
    }

    /// Overwrites blocks on PM with the layout's reserve; `None` when that is not enough, or they are on a tier.
    fn overwrite_on_pm(
        &self,
        node: &L::Node,
        at: WriteAt,
        data: &[IoSlice<'_>],
        draw: Draw<'_>,
        now: Timestamp,
    ) -> Result<Option<u64>> {
        match self.places.layout.overwrite(node, at, data, draw, now) {
            Err(error) if error.kind() == Kind::Elsewhere => Ok(None),
            written => unless_full(written),
        }
    }

    /// Overwrites one block, or a part of it, wherever it is; false where even that is too much.
    fn overwrite_block(
        &self,
        node: &L::Node,
        offset: u64,
        data: &[IoSlice<'_>],
        draw: Draw<'_>,
        now: Timestamp,
    ) -> Result<bool> {
        let at = WriteAt::Offset(offset);
        let block = offset / BLOCK_SIZE;
        let mut held = Held::new(&self.mover.engine.held, self.places.layout.id(node));
        held.hold(&[block]);
        for _ in 0..ATTEMPTS {
            if self.overwrite_on_pm(node, at, data, draw, now)?.is_some()
                || unless_full(self.write_where_allocated(node, at, data, now))?.flatten().is_some()
            {
                return Ok(true);
            }
            if self.borrow_up(node, block)? {
                continue;
            }
            if self.overwrite_below(node, offset, data, now)? {
                return Ok(true);
            }
            if !self.write_zeros(node, block, now)? {
                break;
            }
        }
        Ok(false)
    }

    /// Makes blocks of a tier written ones that are allocated and were never written: the one that is given, and its
    /// neighbours. One entry of the log says of all that lie together where they are, also of those that were written.
    /// False when there are none, or there is no space for that.
    fn write_zeros(&self, node: &L::Node, block: u64, now: Timestamp) -> Result<bool> {
        let first = block - block % ZEROED;
        let _alone = self.io.fills.begin(self.places.layout.id(node), first..first + ZEROED);
        let _reading = Reading::begin(&self.places.layout);
        let size = self.places.layout.size(node)?;
        let end = (first + ZEROED).min(size.div_ceil(BLOCK_SIZE));
        let found =
            self.places.layout.resolve_allocated(node, FileBlock(first), end.saturating_sub(first))?;
        let run = run_around(&found, block);
        if run.is_empty() {
            return Ok(false);
        }
        let zeros = vec![0; (ZEROED * BLOCK_SIZE) as usize];
        let unwritten = run.iter().filter(|(_, is_written)| !is_written);
        let pieces: Vec<_> =
            unwritten.map(|(part, _)| (part.run, &zeros[..(part.run.len * BLOCK_SIZE) as usize])).collect();
        self.write_in_place(&pieces)?;
        let proof = self.places.tiers.flush(run.iter().map(|(part, _)| part.run.tier))?;
        let written: Vec<Written> = run.into_iter().map(|(part, _)| part).collect();
        let done = self.places.layout.publish_first_write(node, &written, size, now, proof, true);
        Ok(unless_full(done)?.unwrap_or(false))
    }

    /// Overwrites a block, or a part of it, where it is on a tier; false where it is not.
    fn overwrite_below(
        &self,
        node: &L::Node,
        offset: u64,
        data: &[IoSlice<'_>],
        now: Timestamp,
    ) -> Result<bool> {
        let _reading = Reading::begin(&self.places.layout);
        let found = self.places.layout.resolve_movable(node, FileBlock(offset / BLOCK_SIZE), 1)?;
        let Some((from, PlacedExtent { place: Place::Tier { tier, block }, .. })) =
            found.first().map(|from| (from, from.extent))
        else {
            return Ok(false);
        };
        let run = TierRun { tier, start: block, len: 1 };
        self.places.layout.change_below(node, from, now, &mut || {
            let mut content = Pages::lent(BLOCK_SIZE as usize);
            self.places.tiers.read(block.offset(), &mut content, run, 0)?;
            let mut at = (offset % BLOCK_SIZE) as usize;
            for part in data {
                content[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
            self.write_in_place(&[(run, &content[..])])?;
            self.places.tiers.flush([tier]).map(drop)
        })
    }

    /// Writes blocks of tiers that a file has. A reader may have found them when they were written before: an operation
    /// that zeroes a range may leave them where they are. It may put their old bytes into DRAM until the write is over.
    /// Of a write that failed a part may be on the disk.
    fn write_in_place(&self, pieces: &[(TierRun, &[u8])]) -> Result<()> {
        let written = self.places.tiers.write(pieces);
        for (run, _) in pieces {
            self.places.tiers.pages().rewritten(run.tier, run.start, run.len);
        }
        written
    }

    /// Promotes a block of a tier into the space that the layout keeps for overwriting, and has others demoted for it.
    /// False if that is not possible.
    fn borrow_up(&self, node: &L::Node, block: u64) -> Result<bool> {
        let modified = self.places.layout.getattr(node)?.mtime;
        {
            let _reading = Reading::begin(&self.places.layout);
            let found = self.places.layout.resolve_movable(node, FileBlock(block), 1)?;
            let Some(from) = found.first() else { return Ok(false) };
            // It may be here by now.
            let Place::Tier { tier, block } = from.extent.place else { return Ok(true) };
            let mut content = Pages::lent(BLOCK_SIZE as usize);
            self.places.read_all(node, &found, &mut content)?;
            let came = self.places.layout.bring_up(node, from, &content, Draw::Overwrite, modified);
            if unless_full(came)?.is_none() {
                return Ok(false);
            }
            self.places.tiers.pages().drop_range(tier, block, 1);
        }
        // Where nothing goes down, less can be borrowed the next time.
        let _ = self.mover.reclaim(1, Why::Space)?;
        Ok(true)
    }
}

/// The allocated blocks that lie together on a tier around a block, and whether they are written.
fn run_around(found: &[PlacedExtent], block: u64) -> Vec<(Written, bool)> {
    let mut run: Vec<(Written, bool)> = Vec::new();
    for &PlacedExtent { start, len, place } in found {
        let (tier, there, is_written) = match place {
            Place::Tier { tier, block } => (tier, block, true),
            Place::UnwrittenOnTier { tier, block } => (tier, block, false),
            _ => continue,
        };
        let follows = |(last, _): &(Written, bool)| {
            let behind = last.run.start.0 + last.run.len;
            last.start.0 + last.run.len == start.0 && last.run.tier == tier && behind == there.0
        };
        if !run.last().is_some_and(follows) {
            if run.last().is_some_and(|(last, _)| last.start.0 + last.run.len > block) {
                break;
            }
            run.clear();
        }
        run.push((Written { start, run: TierRun { tier, start: there, len } }, is_written));
    }
    let has = |(part, _): &(Written, bool)| (part.start.0..part.start.0 + part.run.len).contains(&block);
    if run.iter().any(has) { run } else { Vec::new() }
}
