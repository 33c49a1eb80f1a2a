//! Reading and writing files.
//!
//! Written blocks are never overwritten, unless the file system was made to: their new contents go to other blocks, and
//! count with the word or the slot that leads to these. Blocks that were never written, and the bytes of the last block
//! behind the size, are filled where they are, since no reader sees them before the commit. An operation that raises the
//! size over such bytes makes them zeros first. No written block is wholly behind the size.

use std::io::IoSlice;
use std::ops::Range;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{
    BLOCK_SIZE, Block, Error, FileBlock, Kind, PlacedExtent, Result, Step, TierRead, Timestamp, WriteAt,
    made_room,
};
use nacre_layout_parts::content::{Content, gather};
use nacre_layout_parts::ranges::end_of;
use nacre_layout_parts::rules::{InodeFacts, check_write};
use nacre_layout_parts::tree::Tree;
use nacre_layout_parts::tree::edit::join;
use nacre_media::{Flushed, Pm};
use smallvec::SmallVec;

use crate::alloc::{Purpose, Run, Runs};
use crate::blockmap::{Piece, place_of, tier_of};
use crate::format::MAX_FILE_SIZE;
use crate::fs::Shared;
use crate::inode::{Body, Inode};
use crate::lift::Publish;
use crate::publish::Changes;
use crate::seeded::Mistake;

/// Blocks of the parts in which a full device overwrites, where it has no room for all of a write.
const PART: u64 = 64;

/// A write of a range.
#[derive(Clone)]
struct Write<'c, 'a> {
    range: Range<u64>,
    content: &'c Content<'a>,
    purpose: Purpose,
    now: Timestamp,
}

impl Write<'_, '_> {
    /// The purpose of blocks in place of others.
    fn purpose_of_replaced(&self) -> Purpose {
        if self.purpose == Purpose::Reserved { self.purpose } else { Purpose::Overwrite }
    }

    fn blocks(&self) -> Range<u64> {
        self.range.start / BLOCK_SIZE..self.range.end.div_ceil(BLOCK_SIZE)
    }

    /// Whether bytes of these blocks stay that a reader sees.
    fn keeps_a_part(&self, piece: &Piece, size: u64) -> bool {
        let (start, stop) = (piece.start * BLOCK_SIZE, (piece.end() * BLOCK_SIZE).min(size));
        self.range.start > start || self.range.end < stop
    }
}

/// The state of blocks before a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// Nothing that a reader sees: the new blocks hold zeros beside the data.
    Nothing,
    /// Allocated and never written: they are filled where they are.
    Unwritten(u64),
    /// The last block of the file, and the write begins behind its end: it is filled where it is.
    Tail(u64),
    /// Written: what is not overwritten is copied.
    Written(u64),
    /// Written, and overwritten where they are.
    InPlace(u64),
}

/// File blocks with one state.
#[derive(Debug, Clone, Copy)]
struct Part {
    start: u64,
    len: u64,
    before: Before,
    /// Blocks on a tier, of which nothing is kept.
    below: Option<u64>,
}

/// Where a part of a write goes.
struct Target {
    piece: Piece,
    before: Before,
}

impl<P: Pm> Shared<P> {
    pub(crate) fn read(
        &self,
        inode: &Inode,
        offset: u64,
        buffer: &mut [u8],
        now: Option<Timestamp>,
    ) -> Result<usize> {
        match self.read_or_resolve(inode, offset, buffer, now)? {
            TierRead::Done(count) => Ok(count),
            TierRead::OnTier { .. } => Err(Error::new(Kind::Elsewhere)),
        }
    }

    /// Reads up to the first block on a tier.
    pub(crate) fn read_or_resolve(
        &self,
        inode: &Inode,
        offset: u64,
        buffer: &mut [u8],
        now: Option<Timestamp>,
    ) -> Result<TierRead> {
        inode.check_file()?;
        let body = inode.body.read();
        let size = inode.size();
        if offset >= size || buffer.is_empty() {
            return Ok(TierRead::Done(0));
        }
        let len = buffer.len().min((size - offset) as usize);
        let buffer = &mut buffer[..len];
        let end = offset + len as u64;
        let mut at = offset;
        let mut result = Ok(());
        let mut on_tier = None;
        self.map(inode.tree(&body))
            .for_each(offset / BLOCK_SIZE, end.div_ceil(BLOCK_SIZE), &mut |piece| {
                if result.is_err() || on_tier.is_some() || !piece.is_written {
                    return;
                }
                if tier_of(piece.place) == 0 {
                    result = piece.read(&*self.pm, offset, &mut at, buffer);
                    return;
                }
                let from = (piece.start * BLOCK_SIZE).max(offset);
                buffer[(at - offset) as usize..(from - offset) as usize].fill(0);
                at = from;
                let (start, place) = (FileBlock(piece.start), place_of(&piece));
                on_tier = Some(PlacedExtent { start, len: piece.len, place });
            })
            .map_err(|error| error.object(format!("inode {}", inode.number)))?;
        // Less than was asked for would say that the file ends here, and the kernel would believe it.
        result.map_err(|error| error.object(format!("inode {} at byte {at}", inode.number)))?;
        if let Some(extent) = on_tier {
            return Ok(TierRead::OnTier { done: (at - offset) as usize, extent, size });
        }
        buffer[(at - offset) as usize..].fill(0);
        drop(body);
        if let Some(now) = now {
            self.note_read(inode, now);
        }
        Ok(TierRead::Done(len))
    }

    /// atime follows a read where relatime says so.
    pub(crate) fn note_read(&self, inode: &Inode, now: Timestamp) {
        if !self.read_only {
            inode.note_read(now);
        }
    }

    pub(crate) fn write(
        &self,
        inode: &Inode,
        at: WriteAt,
        data: &[IoSlice<'_>],
        purpose: Purpose,
        now: Timestamp,
    ) -> Result<u64> {
        inode.check_file()?;
        let len: u64 = data.iter().map(|slice| slice.len() as u64).sum();
        if purpose != Purpose::Reserved {
            check_write(inode.flags(), at)?;
        }
        let mut body = inode.body.write();
        // Times that changed since the write was accepted stay changed.
        let now = if purpose == Purpose::Reserved { now.max(inode.attr.get().ctime) } else { now };
        let offset = match at {
            WriteAt::Offset(offset) => offset,
            WriteAt::End => inode.size(),
        };
        let end = end_of(offset, len, MAX_FILE_SIZE)?;
        if len == 0 {
            return Ok(offset);
        }
        self.check_unbroken()?;
        let joined = gather(offset, data);
        let content = Content::new(offset, data, &joined);
        let write = Write { range: offset..end, content: &content, purpose, now };
        if self.write_block(inode, &mut body, &write)? {
            return Ok(offset);
        }
        // A full device has no room for all new blocks at once. In parts, each frees the blocks of the one before.
        let is_small = write.blocks().count() <= 1;
        let tree = inode.tree(&body);
        let overwrites = |_| if is_small { Ok(false) } else { self.overwrites(tree, write.blocks()) };
        if made_room(Step::Reserve, self.write_range(inode, &mut body, &write), overwrites)?.is_none() {
            self.write_in_parts(inode, &mut body, write)?;
        }
        Ok(offset)
    }

    /// Writes in parts, the last ones of one block each.
    fn write_in_parts(&self, inode: &Inode, body: &mut Body, mut write: Write<'_, '_>) -> Result<()> {
        let end = write.range.end;
        for part in [PART, 1] {
            while write.range.start < end {
                write.range.end = ((write.range.start / BLOCK_SIZE + part) * BLOCK_SIZE).min(end);
                match made_room(Step::Reserve, self.write_range(inode, body, &write), |_| Ok(part > 1))? {
                    Some(()) => write.range.start = write.range.end,
                    None => break,
                }
            }
        }
        Ok(())
    }

    /// Whether every block of a range is there already.
    fn overwrites(&self, tree: Tree, blocks: Range<u64>) -> Result<bool> {
        let mut missing = blocks.end - blocks.start;
        self.map(tree).for_each(blocks.start, blocks.end, &mut |piece| {
            missing -= if tier_of(piece.place) == 0 { piece.len } else { 0 };
        })?;
        Ok(missing == 0)
    }

    /// Most small writes: one block within the size takes the place of another, or one comes behind the last, and its
    /// word is in a node that is there. Nothing else of the tree is looked at. False for any other write.
    fn write_block(&self, inode: &Inode, body: &mut Body, write: &Write<'_, '_>) -> Result<bool> {
        let (tree, size) = (inode.tree(body), inode.size());
        let (block, end) = (write.range.start / BLOCK_SIZE, write.range.end);
        let is_append = block == tree.end && size == block * BLOCK_SIZE;
        // A word behind the end of the tree is left over, and is nobody's.
        let has_word = block < tree.end || Mistake::LeftoverWord.is_made(&*self.pm);
        let is_there = has_word && end <= size;
        if end > (block + 1) * BLOCK_SIZE || !is_there && !is_append {
            return Ok(false);
        }
        let map = self.map(tree);
        let Some(address) = map.leaf_word(block)?.filter(|address| !address.is_multiple_of(BLOCK_SIZE))
        else {
            return Ok(false);
        };
        let old = match is_append {
            true => None,
            false => map.piece_of(block, self.pm.load_u64(address)?)?,
        };
        let before = match old {
            Some(old) if !old.is_written || tier_of(old.place) != 0 => return Ok(false),
            Some(old) if self.in_place => Before::InPlace(old.place),
            Some(old) => Before::Written(old.place),
            None if is_append => Before::Nothing,
            None => return Ok(false),
        };
        let mut runs = Runs::new();
        let place = match before {
            Before::InPlace(place) => place,
            _ => {
                let behind = map.piece_of(block - 1, self.pm.load_u64(address - 8)?)?;
                self.place_of_block(inode, write, before, behind, &mut runs)?
            }
        };
        let piece = Piece { start: block, len: 1, place, is_written: true };
        let result = self.commit_block(inode, body, write, &Target { piece, before }, address);
        if let Err(error) = result {
            if !self.is_broken() {
                self.free_runs(&runs);
            }
            return Err(error);
        }
        match before {
            Before::Written(old) => self.free_runs(&[Run { start: Block(old), len: 1 }]),
            Before::Nothing => {
                inode.blocks.fetch_add(1, Ordering::Relaxed);
                self.count_data(1, 0);
            }
            _ => {}
        }
        inode.size.fetch_max(end, Ordering::AcqRel);
        inode.modified(write.now);
        Ok(true)
    }

    /// Allocates a block for that, behind the block of another piece.
    fn place_of_block(
        &self,
        inode: &Inode,
        write: &Write<'_, '_>,
        before: Before,
        behind: Option<Piece>,
        runs: &mut Runs,
    ) -> Result<u64> {
        let purpose = match before {
            Before::Nothing => write.purpose,
            _ => {
                inode.check_pins()?;
                write.purpose_of_replaced()
            }
        };
        let goal = behind.filter(|piece| tier_of(piece.place) == 0).map(|piece| Block(piece.place + 1));
        self.allocate(goal, 1, purpose, runs)?;
        Ok(runs[0].start.0)
    }

    /// Commits that; `address` is the block's word.
    fn commit_block(
        &self,
        inode: &Inode,
        body: &mut Body,
        write: &Write<'_, '_>,
        target: &Target,
        address: u64,
    ) -> Result<()> {
        let Target { piece, before } = target;
        let size = inode.size();
        self.versions_of(inode).change(piece.start..piece.end());
        let mut new = inode.next_modified(body, write.now);
        let publish = match before {
            Before::InPlace(_) => Publish::Together,
            Before::Nothing => {
                new.slot.parent_end = piece.end();
                new.slot.size = write.range.end;
                Publish::Slot
            }
            _ => Publish::Word { address, value: piece.place },
        };
        self.commit(&mut new, publish, || {
            let pending = self.copy_to(target, size, write, None)?;
            if *before != Before::Nothing {
                return Ok(pending);
            }
            // The word is behind the end of the tree: it is nobody's before the slot says otherwise.
            let stored = self.pm.store(address, &piece.place.to_le_bytes())?;
            Ok(join(pending, self.pm.flush(stored)))
        })?;
        body.state = new.state();
        Ok(())
    }

    /// One operation: a range, the size, the times.
    fn write_range(&self, inode: &Inode, body: &mut Body, write: &Write<'_, '_>) -> Result<()> {
        let size = inode.size();
        let mut changes = Changes::of(self, inode, body);
        let Range { start: first, end: last } = write.blocks();
        changes.touches(first.min(size / BLOCK_SIZE)..last);
        if write.purpose == Purpose::Reserved {
            changes.edit.purpose = write.purpose;
        }
        let prepared = self.prepare_write(inode, &mut changes, size, write);
        changes.unless_failed(prepared)?;
        let mut new = inode.next_modified(body, write.now);
        new.slot.size = size.max(write.range.end);
        changes.commit(inode, body, new)?;
        inode.size.store(size.max(write.range.end), Ordering::Release);
        inode.modified(write.now);
        Ok(())
    }

    /// Finds places for a write, and writes to them.
    fn prepare_write(
        &self,
        inode: &Inode,
        changes: &mut Changes<'_, P>,
        size: u64,
        write: &Write<'_, '_>,
    ) -> Result<()> {
        let tree = changes.edit.before;
        let parts = self.parts(tree, size, write)?;
        let targets = self.targets(inode, changes, &parts, write)?;
        for target in &targets {
            match target.before {
                Before::Tail(_) | Before::InPlace(_) => {}
                _ => changes.edit.set(target.piece)?,
            }
        }
        changes.lift()?;
        let in_place = targets.iter().all(|target| matches!(target.before, Before::InPlace(_)));
        if in_place && write.range.end <= size {
            changes.publish = Publish::Together;
        }
        if write.range.start > size {
            let gap = self.zero_gap(tree, size, write.range.start)?;
            changes.pending = gap.into_iter().fold(changes.pending.take(), join);
        }
        for target in &targets {
            changes.pending = self.copy_to(target, size, write, changes.pending.take())?;
        }
        Ok(())
    }

    /// The parts of a write, with their states.
    fn parts(&self, tree: Tree, size: u64, write: &Write<'_, '_>) -> Result<SmallVec<[Part; 4]>> {
        let Range { start: first, end: last } = write.blocks();
        let mut parts = SmallVec::new();
        let mut at = first;
        let tail = size / BLOCK_SIZE;
        let mut keeps_below = false;
        self.map(tree).for_each(first, last, &mut |piece| {
            if at < piece.start {
                parts.push(Part { start: at, len: piece.start - at, before: Before::Nothing, below: None });
            }
            let is_below = tier_of(piece.place) != 0;
            keeps_below |= is_below && piece.is_written && write.keeps_a_part(&piece, size);
            let before = match piece.is_written {
                _ if is_below => Before::Nothing,
                false => Before::Unwritten(piece.place),
                true if piece.start == tail && write.range.start >= size => Before::Tail(piece.place),
                true if self.in_place => Before::InPlace(piece.place),
                true => Before::Written(piece.place),
            };
            let below = is_below.then_some(piece.place);
            parts.push(Part { start: piece.start, len: piece.len, before, below });
            at = piece.end();
        })?;
        if at < last {
            parts.push(Part { start: at, len: last - at, before: Before::Nothing, below: None });
        }
        if keeps_below { Err(Error::new(Kind::Elsewhere)) } else { Ok(parts) }
    }

    /// Where the parts of a write go. New blocks are allocated for those that do not stay.
    fn targets(
        &self,
        inode: &Inode,
        changes: &mut Changes<'_, P>,
        parts: &[Part],
        write: &Write<'_, '_>,
    ) -> Result<SmallVec<[Target; 2]>> {
        let mut goal = match write.blocks().start.checked_sub(1) {
            Some(before) => self.map(changes.edit.before).find(before)?,
            None => None,
        }
        .filter(|piece| tier_of(piece.place) == 0)
        .map(|piece| Block(piece.place + 1));
        let mut targets = SmallVec::new();
        for &Part { start, len, before, below } in parts {
            changes.replaced.extend(below.map(|place| Run { start: Block(place), len }));
            let purpose = match before {
                Before::Nothing => write.purpose,
                Before::Written(place) => {
                    inode.check_pins()?;
                    changes.replaced.push(Run { start: Block(place), len });
                    write.purpose_of_replaced()
                }
                Before::Unwritten(place) | Before::Tail(place) | Before::InPlace(place) => {
                    let piece = Piece { start, len, place, is_written: true };
                    targets.push(Target { piece, before });
                    goal = Some(Block(place + len));
                    continue;
                }
            };
            let mut runs = Runs::new();
            self.allocate(goal, len, purpose, &mut runs)?;
            changes.allocated.extend(runs.iter().copied());
            let mut at = start;
            for run in runs {
                let piece = Piece { start: at, len: run.len, place: run.start.0, is_written: true };
                let before = match before {
                    Before::Written(place) => Before::Written(place + (at - start)),
                    before => before,
                };
                targets.push(Target { piece, before });
                at += run.len;
                goal = Some(Block(run.start.0 + run.len));
            }
        }
        Ok(targets)
    }

    /// Copies the part of a write that goes to a target, and what else is to be there.
    fn copy_to(
        &self,
        target: &Target,
        size: u64,
        write: &Write<'_, '_>,
        mut pending: Option<Flushed>,
    ) -> Result<Option<Flushed>> {
        let Target { piece, before } = target;
        let (start, stop) = (piece.start * BLOCK_SIZE, piece.end() * BLOCK_SIZE);
        let (from, to) = (start.max(write.range.start), stop.min(write.range.end));
        let media = piece.block().offset();
        // Bytes behind the new size are nobody's.
        let until = stop.min(size.max(write.range.end));
        let old = match before {
            Before::Written(place) => Some(Block(*place).offset()),
            _ => None,
        };
        if !matches!(before, Before::Tail(_) | Before::InPlace(_))
            && !Mistake::EdgesNotZeroed.is_made(&*self.pm)
        {
            for edge in [start..from, to..until] {
                let within = edge.start - start..edge.end - start;
                let kept = size.saturating_sub(start).clamp(within.start, within.end);
                if let Some(old) = old {
                    pending = self.copy_bytes(old, media, within.start..kept, pending)?;
                }
                let zeros = if old.is_some() { kept } else { within.start }..within.end;
                if !zeros.is_empty() {
                    pending = join(pending, self.pm.zero(media + zeros.start, zeros.end - zeros.start)?);
                }
            }
        }
        for (at, bytes) in write.content.between(from..to) {
            pending = join(pending, self.pm.copy(media + (at - start), bytes)?);
        }
        Ok(pending)
    }

    /// Copies a range of bytes behind `old` to the same range behind `media`.
    pub(crate) fn copy_bytes(
        &self,
        old: u64,
        media: u64,
        range: Range<u64>,
        mut pending: Option<Flushed>,
    ) -> Result<Option<Flushed>> {
        let mut bytes = [0; BLOCK_SIZE as usize];
        let mut at = range.start;
        while at < range.end {
            let bytes = &mut bytes[..(range.end - at).min(BLOCK_SIZE) as usize];
            self.pm.read(old + at, bytes)?;
            pending = join(pending, self.pm.copy(media + at, bytes)?);
            at += bytes.len() as u64;
        }
        Ok(pending)
    }

    /// Zeros the bytes of the last block behind the size, before that grows to `end`.
    pub(crate) fn zero_gap(&self, tree: Tree, size: u64, end: u64) -> Result<Option<Flushed>> {
        if size.is_multiple_of(BLOCK_SIZE) || Mistake::GapNotZeroed.is_made(&*self.pm) {
            return Ok(None);
        }
        let piece = self.map(tree).find(size / BLOCK_SIZE)?;
        let Some(piece) = piece.filter(|piece| piece.is_written) else { return Ok(None) };
        check_on_pm(&piece)?;
        let until = end.min(size.next_multiple_of(BLOCK_SIZE));
        self.pm.zero(piece.block().offset() + size % BLOCK_SIZE, until - size).map(Some)
    }
}

/// Fails for a block of which a part is kept, and that is on a tier: a layer above promotes it first.
fn check_on_pm(piece: &Piece) -> Result<()> {
    if tier_of(piece.place) == 0 { Ok(()) } else { Err(Error::new(Kind::Elsewhere)) }
}

/// A file block and the bytes of it that become zeros.
pub(crate) type Edge = (u64, Range<u64>);

impl<P: Pm> Shared<P> {
    /// A copy of a written block takes its place, with zeros in a range of its bytes.
    pub(crate) fn zero_edge(
        &self,
        inode: &Inode,
        changes: &mut Changes<'_, P>,
        size: u64,
        (block, range): Edge,
    ) -> Result<()> {
        let within_size = size.saturating_sub(block * BLOCK_SIZE).min(BLOCK_SIZE);
        let piece = self.map(changes.edit.before).find(block)?.filter(|piece| piece.is_written);
        // Bytes behind the size are zeroed when it grows over them.
        let Some(piece) = piece.filter(|_| range.start < within_size) else { return Ok(()) };
        check_on_pm(&piece)?;
        inode.check_pins()?;
        let mut runs = Runs::new();
        self.allocate(None, 1, Purpose::Overwrite, &mut runs)?;
        let place = runs[0].start;
        changes.allocated.extend(runs);
        changes.replaced.push(Run { start: piece.block(), len: 1 });
        changes.edit.set(Piece { place: place.0, ..piece })?;
        let (old, media) = (piece.block().offset(), place.offset());
        let mut pending = self.copy_bytes(old, media, 0..range.start, changes.pending.take())?;
        pending = join(pending, self.pm.zero(media + range.start, range.end - range.start)?);
        if range.end < within_size {
            pending = self.copy_bytes(old, media, range.end..within_size, pending)?;
        }
        changes.pending = pending;
        Ok(())
    }
}
