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

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{
    BLOCK_SIZE, CopiedFile, Durability, FileBlock, FileKind, Kind, Place, PlacedExtent, Result, TierRun,
    Tiered, Timestamp, WriteAt, Written,
};
use nacre_media::Durable;
use nacre_media::block::{BlockDevice, Pages};

use crate::batch::copies;
use crate::data::{Held, Reading};
use crate::fs::MoverFs;
use crate::keeper::Why;
use crate::migrate::{Moved, Taken};
use crate::pieces;
use crate::place::cut;
use crate::watch::Chosen;

/// With fewer blocks of PM than this, it may be impossible to make a file: inodes come in chunks of 17 blocks, and the
/// name may need a page.
const LEAST: u64 = 32;

/// Blocks among which neighbours are looked for that become written ones together.
const ZEROED: u64 = 512;

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> MoverFs<L, D> {
    /// Has unwritten blocks that a file has on PM allocated on tiers instead: at most `most` of them. Gives their
    /// number.
    pub(crate) fn lower_unwritten(&self, node: &L::Node, most: u64, why: Why) -> Result<u64> {
        let promised = why == Why::Promise;
        let mut total = 0;
        for tier in self.takers(None) {
            loop {
                let room = self.room_on(tier.number, promised).min(most - total);
                match self.lower_unwritten_to(node, tier.number, room, promised) {
                    // Blocks that wait for readers are not free yet.
                    Err(error) if error.kind() == Kind::NoSpace => break,
                    lowered => match lowered?.moved {
                        0 => break,
                        moved => total += moved,
                    },
                }
            }
        }
        Ok(total)
    }

    /// Demotes all unwritten blocks that a file has on PM to a tier. [`NoSpace`](Kind::NoSpace) if the tier has too
    /// little room for them; they all stay then.
    pub(crate) fn demote_unwritten(&self, node: &L::Node, tier: u8) -> Result<Moved> {
        if self.layout.kind(node) != FileKind::Regular || !self.has_unwritten(node) {
            return Ok(Moved::default());
        }
        self.lower_unwritten_to(node, tier, u64::MAX, false)
    }

    /// Demotes at most `most` unwritten blocks to a tier, in one commit.
    fn lower_unwritten_to(&self, node: &L::Node, tier: u8, most: u64, promised: bool) -> Result<Moved> {
        let found = if most > 0 { self.layout.resolve_unwritten(node, most)? } else { Vec::new() };
        let blocks = found.iter().map(|at| at.extent.len).sum::<u64>();
        if blocks == 0 {
            return Ok(Moved::default());
        }
        let taken = Taken::new(self, self.take_on(tier, None, blocks, promised)?);
        let copied = copies(&found, &mut taken.keep());
        let modified = self.layout.getattr(node)?.mtime;
        // Nothing was written, so there is nothing to flush.
        let proof = Durable::nothing_before();
        let published = self.layout.publish(&[CopiedFile { node, copied: &copied, modified }], proof);
        let published = published.into_iter().next();
        self.settle(&copied, published.unwrap_or_else(|| unreachable!("there is an answer for each file")))
    }

    /// The same for a file that was chosen to move, if it may.
    pub(crate) fn lower_unwritten_of(&self, chosen: &Chosen, most: u64, why: Why) -> u64 {
        let Ok(node) = self.layout.node(chosen.id) else { return 0 };
        // One that is too young to move has nothing that moves.
        if chosen.spans.is_empty()
            || !self.has_unwritten(&node)
            || self.is_pinned(&node)
            || self.layout.kind(&node) != FileKind::Regular
        {
            return 0;
        }
        // Where there is no room for them they stay, and something else moves.
        self.lower_unwritten(&node, most, why).unwrap_or(0)
    }

    /// Whether a file has any.
    pub(crate) fn has_unwritten(&self, node: &L::Node) -> bool {
        // A file whose log is on a tier has all its blocks there.
        self.layout.log_image_at(node).is_none()
            && self.layout.resolve_unwritten(node, 1).is_ok_and(|found| !found.is_empty())
    }

    /// Notes whether direct reclaim has moved anything.
    pub(crate) fn note_room(&self, is_made: bool) {
        self.is_stuck.store(!is_made, Ordering::Relaxed);
    }

    /// Whether PM is full of blocks that cannot move, so that no name can be made, however much room the tiers have.
    pub(crate) fn is_full_for_good(&self, available: u64) -> bool {
        available < LEAST && self.is_stuck.load(Ordering::Relaxed) && !self.look_again.load(Ordering::Relaxed)
    }

    /// Writes over blocks that the file has already, if no room can be made; `None` when it lacks some of them.
    pub(crate) fn write_on_full(
        &self,
        node: &L::Node,
        at: WriteAt,
        data: &[IoSlice<'_>],
        durability: Durability,
        now: Timestamp,
    ) -> Result<Option<u64>> {
        if self.sink.is_on()
            && let Some(offset) = or_none(self.write_where_allocated(node, at, data, now))?
        {
            return Ok(Some(offset));
        }
        match self.layout.overwrite(node, at, data, durability, now) {
            Err(error) if matches!(error.kind(), Kind::NoSpace | Kind::Elsewhere) => {}
            written => return written.map(Some),
        }
        let (WriteAt::Offset(offset), true) = (at, self.sink.is_on()) else { return Ok(None) };
        let end = offset + pieces::length(data);
        let (first, last) = (offset / BLOCK_SIZE, end.div_ceil(BLOCK_SIZE));
        let found = self.layout.resolve_allocated(node, FileBlock(first), last - first)?;
        let has = |extent: &PlacedExtent| extent.place != Place::Hole;
        let blocks: u64 = found.iter().filter(|extent| has(extent)).map(|extent| extent.len).sum();
        if blocks < last - first || end > self.layout.getattr(node)?.size {
            return Ok(None);
        }
        // Each block where it is, one after another.
        for block in first..last {
            let (from, to) = (offset.max(block * BLOCK_SIZE), end.min((block + 1) * BLOCK_SIZE));
            let part = cut(data, from - offset..to - offset);
            if !self.overwrite_block(node, from, &part, durability, now)? {
                return Ok(None);
            }
        }
        Ok(Some(offset))
    }

    /// Overwrites one block, or a part of it, wherever it is; false where even that is too much.
    fn overwrite_block(
        &self,
        node: &L::Node,
        offset: u64,
        data: &[IoSlice<'_>],
        durability: Durability,
        now: Timestamp,
    ) -> Result<bool> {
        let at = WriteAt::Offset(offset);
        let block = offset / BLOCK_SIZE;
        let mut held = Held::new(&self.held, self.layout.id(node));
        held.hold(&[block]);
        for _ in 0..crate::data::ATTEMPTS {
            match self.layout.overwrite(node, at, data, durability, now) {
                Err(error) if matches!(error.kind(), Kind::NoSpace | Kind::Elsewhere) => {}
                written => return written.map(|_| true),
            }
            if or_none(self.write_where_allocated(node, at, data, now))?.is_some() {
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

    /// Makes blocks of a tier written ones that are allocated and were never written: the one that is given, and its neighbours.
    /// One entry of the log says of all that lie together where they are, also of those that were written. False when there
    /// are none, or there is no space for that.
    fn write_zeros(&self, node: &L::Node, block: u64, now: Timestamp) -> Result<bool> {
        let _alone = self.filling.lock();
        let _reading = Reading::begin(&self.layout);
        let size = self.layout.getattr(node)?.size;
        let first = block - block % ZEROED;
        let end = (first + ZEROED).min(size.div_ceil(BLOCK_SIZE));
        let found = self.layout.resolve_allocated(node, FileBlock(first), end.saturating_sub(first))?;
        let run = run_around(&found, block);
        if run.is_empty() {
            return Ok(false);
        }
        let zeros = vec![0; (ZEROED * BLOCK_SIZE) as usize];
        let unwritten = run.iter().filter(|(_, is_written)| !is_written);
        let pieces: Vec<_> =
            unwritten.map(|(part, _)| (part.run, &zeros[..(part.run.len * BLOCK_SIZE) as usize])).collect();
        self.tiers.write(&pieces)?;
        let proof = self.tiers.flush(run.iter().map(|(part, _)| part.run.tier))?;
        let written: Vec<Written> = run.into_iter().map(|(part, _)| part).collect();
        let done = self.layout.publish_first_write(node, &written, size, now, proof, true);
        Ok(or_none(done.map(|done| done.then_some(size)))?.is_some())
    }

    /// Overwrites a block, or a part of it, where it is on a tier; false where it is not.
    fn overwrite_below(
        &self,
        node: &L::Node,
        offset: u64,
        data: &[IoSlice<'_>],
        now: Timestamp,
    ) -> Result<bool> {
        let _reading = Reading::begin(&self.layout);
        let found = self.layout.resolve_movable(node, FileBlock(offset / BLOCK_SIZE), 1)?;
        let Some((from, PlacedExtent { place: Place::Tier { tier, block }, .. })) =
            found.first().map(|from| (from, from.extent))
        else {
            return Ok(false);
        };
        let run = TierRun { tier, start: block, len: 1 };
        self.layout.change_below(node, from, now, &mut || {
            let mut content = Pages::lent(BLOCK_SIZE as usize);
            self.tiers.read(block.offset(), &mut content, run, 0)?;
            let mut at = (offset % BLOCK_SIZE) as usize;
            for part in data {
                content[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
            self.tiers.write(&[(run, &content[..])])?;
            self.tiers.pages().rewritten(tier, block, 1);
            self.tiers.flush([tier]).map(drop)
        })
    }

    /// Promotes a block of a tier into the space that the layout keeps for overwriting, and has others demoted for it.
    /// False if that is not possible.
    fn borrow_up(&self, node: &L::Node, block: u64) -> Result<bool> {
        let modified = self.layout.getattr(node)?.mtime;
        {
            let _reading = Reading::begin(&self.layout);
            let found = self.layout.resolve_movable(node, FileBlock(block), 1)?;
            let Some(from) = found.first() else { return Ok(false) };
            // It may be here by now.
            let Place::Tier { tier, block } = from.extent.place else { return Ok(true) };
            let mut content = Pages::lent(BLOCK_SIZE as usize);
            self.read_all(node, &found, &mut content)?;
            match self.layout.bring_up(node, from, &content, Durability::Lazy, modified) {
                Err(error) if error.kind() == Kind::NoSpace => return Ok(false),
                came => came.map(|_| self.tiers.pages().drop_range(tier, block, 1))?,
            }
        }
        // Where nothing goes down, less can be borrowed the next time.
        let _ = self.make_room(1, Why::Space)?;
        Ok(true)
    }
}

/// Where there is no space for that, there may be for something else.
fn or_none(written: Result<Option<u64>>) -> Result<Option<u64>> {
    match written {
        Err(error) if error.kind() == Kind::NoSpace => Ok(None),
        written => written,
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
