//! Reading and writing files.
//!
//! Written blocks are never overwritten: their new contents go to new blocks. Blocks that were never written, and the
//! bytes of the last block behind the size, are filled where they are, since no reader sees them before the commit.
//! An operation that raises the size over such bytes makes them zeros first. A written block wholly behind the size is
//! left of a truncation that a crash interrupted, or of a write that found no room for a node (`full`). It counts as a
//! hole, and is filled where it is.

use std::io::IoSlice;

use nacre_engine::{BLOCK_SIZE, Block, Error, Kind, Result, Step, Timestamp, WriteAt, made_room};
use nacre_layout_parts::content::{Content, gather};
use nacre_layout_parts::ranges::end_of;
use nacre_layout_parts::rules::check_write;
use nacre_layout_parts::tree::edit::join;
use nacre_media::Pm;
use smallvec::{SmallVec, smallvec};

use crate::blockmap::{Piece, Pieces, Tree, piece_of};
use crate::commit::Change;
use crate::counts::{Purpose, Run, Runs};
use crate::format::{MAX_FILE_SIZE, RawInode};
use crate::fs::Shared;
use crate::held::HeldInode;
use crate::places::Places;
use crate::seeded::Mistake;

/// Blocks of the parts in which a full device overwrites, where it has no room for all of a write.
const PART: u64 = 64;

/// A write of a range.
pub(crate) struct Write<'c, 'a> {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) content: &'c Content<'a>,
    pub(crate) purpose: Purpose,
    pub(crate) now: Timestamp,
}

impl Write<'_, '_> {
    /// The purpose of blocks in place of others.
    pub(crate) fn purpose_of_replaced(&self) -> Purpose {
        if self.purpose == Purpose::Reserved { self.purpose } else { Purpose::Overwrite }
    }
}

/// The state of a block before a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// Nothing that a reader sees: the new block holds zeros beside the data.
    Nothing,
    /// Allocated and never written, or wholly behind the size: it is filled where it is.
    Unwritten(u64),
    /// The last block of the file, and the write begins behind its end: it is filled where it is.
    Tail(u64),
    /// Written: the rest of it is copied.
    Written(u64),
}

/// The pieces that a write goes to, with the state of each.
type Targets = SmallVec<[(Piece, Before); 2]>;

impl<P: Pm> Shared<P> {
    pub(crate) fn read(
        &self,
        inode: &HeldInode,
        offset: u64,
        buffer: &mut [u8],
        now: Option<Timestamp>,
    ) -> Result<usize> {
        inode.check_file()?;
        let _lock = self.read_lock(inode.number);
        let raw = self.read_inode(inode.number)?;
        if offset >= raw.size || buffer.is_empty() {
            return Ok(0);
        }
        let len = buffer.len().min((raw.size - offset) as usize);
        let buffer = &mut buffer[..len];
        let end = offset + len as u64;
        let tree = self.tree(inode.number, &raw)?;
        let mut at = offset;
        let named = |error: Error, at: u64| error.object(format!("inode {} at byte {at}", inode.number));
        let mut failed_at = offset;
        self.for_each(tree, offset / BLOCK_SIZE, end.div_ceil(BLOCK_SIZE), &mut |piece| {
            if !piece.is_written {
                return Ok(());
            }
            let from = (piece.start * BLOCK_SIZE).max(offset);
            let to = (piece.end() * BLOCK_SIZE).min(end);
            failed_at = from;
            buffer[(at - offset) as usize..(from - offset) as usize].fill(0);
            let media = piece.offset() + (from - piece.start * BLOCK_SIZE);
            self.pm.read(media, &mut buffer[(from - offset) as usize..(to - offset) as usize])?;
            at = to;
            Ok(())
        })
        .map_err(|error| named(error, failed_at))?;
        buffer[(at - offset) as usize..].fill(0);
        if let Some(now) = now {
            self.note_read(inode.number, &raw, now)?;
        }
        Ok(len)
    }

    pub(crate) fn write(
        &self,
        inode: &HeldInode,
        at: WriteAt,
        data: &[IoSlice<'_>],
        purpose: Purpose,
        now: Timestamp,
    ) -> Result<u64> {
        inode.check_file()?;
        let len: u64 = data.iter().map(|slice| slice.len() as u64).sum();
        let _lock = self.lock(&[inode.number]);
        let raw = self.read_inode(inode.number)?;
        if purpose != Purpose::Reserved {
            check_write(raw.flags, at)?;
        }
        let offset = match at {
            WriteAt::Offset(offset) => offset,
            WriteAt::End => raw.size,
        };
        let end = end_of(offset, len, MAX_FILE_SIZE)?;
        if len == 0 {
            return Ok(offset);
        }
        let joined = gather(offset, data);
        let content = Content::new(offset, data, &joined);
        let mut write = Write { start: offset, end, content: &content, purpose, now };
        let is_small = end.div_ceil(BLOCK_SIZE) - offset / BLOCK_SIZE <= 1;
        // A full device has no room for all new blocks at once. In parts, each frees the blocks of the one before.
        let overwrites = |_| if is_small { Ok(false) } else { self.overwrites(inode, offset, end) };
        if made_room(Step::Reserve, self.write_with_room(inode, &raw, &write), overwrites)?.is_none() {
            self.write_in_parts(inode, &mut write)?;
        }
        Ok(offset)
    }

    /// Writes in parts, the last ones of one block each.
    fn write_in_parts(&self, inode: &HeldInode, write: &mut Write<'_, '_>) -> Result<()> {
        let end = write.end;
        for part in [PART, 1] {
            while write.start < end {
                write.end = ((write.start / BLOCK_SIZE + part) * BLOCK_SIZE).min(end);
                let raw = self.read_inode(inode.number)?;
                match made_room(Step::Reserve, self.write_with_room(inode, &raw, write), |_| Ok(part > 1))? {
                    Some(()) => write.start = write.end,
                    None => break,
                }
            }
        }
        Ok(())
    }

    /// Whether every block of a range is there already.
    fn overwrites(&self, inode: &HeldInode, start: u64, end: u64) -> Result<bool> {
        let raw = self.read_inode(inode.number)?;
        let tree = self.tree(inode.number, &raw)?;
        let (first, last) = (start / BLOCK_SIZE, end.div_ceil(BLOCK_SIZE));
        let mut there = 0;
        self.for_each(tree, first, last, &mut |piece| {
            there += piece.len;
            Ok(())
        })?;
        Ok(there == last - first)
    }

    /// One operation: a range, the size, the times. New nodes have a purpose of their own.
    pub(crate) fn write_range(
        &self,
        inode: &HeldInode,
        raw: &RawInode,
        write: &Write<'_, '_>,
        of_nodes: Purpose,
    ) -> Result<()> {
        let number = inode.number;
        let tree = self.tree(number, raw)?;
        let (first, last) = (write.start / BLOCK_SIZE, write.end.div_ceil(BLOCK_SIZE));
        self.change(|change| {
            change.know(number, raw)?;
            let targets = match change.place_block(inode, raw, tree, write)? {
                Some(target) => smallvec![target],
                None => {
                    let mut places = change.places(raw, tree, (first, last), write.start)?;
                    let targets = change.targets(inode, raw, &mut places, write)?;
                    change.put_places(number, tree, &places, of_nodes)?;
                    targets
                }
            };
            // The data is on its way to media while the rest is computed: a lock would wait for it.
            targets
                .iter()
                .try_for_each(|&(piece, before)| change.copy_part(raw.size, write, piece, before))?;
            change.commit_write(number, raw, write)
        })
    }

    /// The later of two packed times.
    pub(crate) fn later(&self, first: u64, second: u64) -> u64 {
        let time = |packed| self.times.unpack(packed).unwrap_or_default();
        if time(first) >= time(second) { first } else { second }
    }
}

impl<P: Pm> Change<'_, P> {
    /// The size and the times of a file after a write, and the commit.
    pub(crate) fn commit_write(&mut self, number: u64, raw: &RawInode, write: &Write<'_, '_>) -> Result<()> {
        let mut now = self.fs.times.pack(write.now);
        if write.purpose == Purpose::Reserved {
            // Times that changed since the write was accepted stay changed.
            now = self.fs.later(now, raw.ctime);
        }
        let new = self.edit(number)?;
        new.size = raw.size.max(write.end);
        new.modified(now);
        self.commit()
    }

    /// A new place for a block that is written or a hole: most small writes. Its word is changed, and nothing else of the
    /// tree is looked at. `None` for any other write, and where no node has the word and the one before.
    fn place_block(
        &mut self,
        inode: &HeldInode,
        raw: &RawInode,
        tree: Tree,
        write: &Write<'_, '_>,
    ) -> Result<Option<(Piece, Before)>> {
        let start = write.start / BLOCK_SIZE;
        let is_behind = raw.size == start * BLOCK_SIZE;
        if write.end > (start + 1) * BLOCK_SIZE || write.end > raw.size && !is_behind {
            return Ok(None);
        }
        let Some((node, index)) = self.fs.lowest_node(tree, start)?.filter(|(_, index)| *index > 0) else {
            return Ok(None);
        };
        let mut words = [0; 2];
        self.fs.read_node(node, index - 1, &mut words)?;
        let [before, old] = words.map(|word| (word != 0).then(|| piece_of(word, start, 1)));
        let mut runs = Runs::new();
        let goal = before.map(|before| before.block + 1);
        let before = match old {
            Some(old) if old.is_written && !is_behind => {
                check_pins(inode)?;
                let old = self.fs.checked(old)?;
                self.allocate(goal, 1, write.purpose_of_replaced(), &mut runs)?;
                self.free_run(Run { start: old.block, len: 1 })?;
                Before::Written(old.block)
            }
            None => {
                self.allocate(goal, 1, write.purpose, &mut runs)?;
                self.edit(inode.number)?.entries += 1;
                Before::Nothing
            }
            Some(_) => return Ok(None),
        };
        let new = Piece { start, len: 1, block: runs[0].start, is_written: true };
        self.word(node + index as u64 * 8, node, new.block);
        Ok(Some((new, before)))
    }

    /// The places that a write goes to, and what they are before it. New ones are allocated.
    fn targets(
        &mut self,
        inode: &HeldInode,
        raw: &RawInode,
        places: &mut Places,
        write: &Write<'_, '_>,
    ) -> Result<Targets> {
        let (first, last) = (write.start / BLOCK_SIZE, write.end.div_ceil(BLOCK_SIZE));
        let old: Pieces = places.within(first, last).collect();
        let parts = self.parts(raw.size, &old, write, (first, last));
        let count = |is: fn(&Before) -> bool| -> u64 {
            parts.iter().filter(|(_, _, before)| is(before)).map(|(_, len, _)| len).sum()
        };
        let replaced = count(|before| matches!(before, Before::Written(_)));
        let fresh = count(|before| *before == Before::Nothing);
        if replaced > 0 {
            check_pins(inode)?;
        }
        let mut runs = Runs::new();
        if replaced + fresh > 0 {
            let goal = places.goal(first);
            self.take_space(replaced, write.purpose_of_replaced())?;
            self.take_space(fresh, write.purpose)?;
            self.find_runs(goal, replaced + fresh, &mut runs)?;
        }
        let mut targets = Targets::new();
        let mut fresh = runs.into_iter();
        let mut run = fresh.next();
        for (start, len, before) in parts {
            if let Before::Unwritten(block) | Before::Tail(block) = before {
                targets.push((Piece { start, len, block, is_written: true }, before));
                continue;
            }
            let mut at = start;
            while at < start + len {
                let Some(have) = &mut run else {
                    return Err(Error::corrupt("an allocation that is too short"));
                };
                let count = have.len.min(start + len - at);
                let piece = Piece { start: at, len: count, block: have.start, is_written: true };
                let before = match before {
                    Before::Written(block) => Before::Written(block + (at - start)),
                    before => before,
                };
                targets.push((piece, before));
                at += count;
                (have.start, have.len) = (have.start + count, have.len - count);
                if have.len == 0 {
                    run = fresh.next();
                }
            }
        }
        places.set(first, last, targets.iter().map(|(piece, _)| *piece));
        Ok(targets)
    }

    /// The parts of a write: first block, blocks, and what they are.
    fn parts(
        &self,
        size: u64,
        old: &[Piece],
        write: &Write<'_, '_>,
        (first, last): (u64, u64),
    ) -> SmallVec<[(u64, u64, Before); 4]> {
        let mut parts = SmallVec::new();
        let mut at = first;
        for piece in old {
            if at < piece.start {
                parts.push((at, piece.start - at, Before::Nothing));
            }
            let behind = size.div_ceil(BLOCK_SIZE);
            let tail = size / BLOCK_SIZE;
            let mut start = piece.start;
            if !piece.is_written {
                parts.push((start, piece.len, Before::Unwritten(piece.block)));
            } else {
                // The write begins behind the end of the file in the file's last block.
                if start == tail && behind > tail && start == first && write.start >= size {
                    parts.push((start, 1, Before::Tail(piece.block)));
                    start += 1;
                }
                let seen = behind.clamp(start, piece.end());
                if start < seen {
                    parts.push((start, seen - start, Before::Written(piece.block + (start - piece.start))));
                }
                if seen < piece.end() {
                    let block = piece.block + (seen - piece.start);
                    parts.push((seen, piece.end() - seen, Before::Unwritten(block)));
                }
            }
            at = piece.end();
        }
        if at < last {
            parts.push((at, last - at, Before::Nothing));
        }
        parts
    }

    /// Copies the data of a piece to its blocks, and what else they hold.
    pub(crate) fn copy_part(
        &mut self,
        size: u64,
        write: &Write<'_, '_>,
        piece: Piece,
        before: Before,
    ) -> Result<()> {
        let (start, stop) = (piece.start * BLOCK_SIZE, piece.end() * BLOCK_SIZE);
        let (from, to) = (start.max(write.start), stop.min(write.end));
        let media = piece.offset();
        // Bytes behind the new size are nobody's.
        let until = stop.min(size.max(write.end));
        if !Mistake::EdgesNotZeroed.is_made(&*self.fs.pm) && !matches!(before, Before::Tail(_)) {
            for (edge, end) in [(start, from), (to, until)] {
                if edge < end {
                    self.copy_edge(size, before, media + (edge - start), edge, end, start)?;
                }
            }
        }
        for (at, bytes) in write.content.between(from..to) {
            let place = media + (at - start);
            if Mistake::DataAfterIntent.is_made(&*self.fs.pm) {
                let _never_flushed = self.fs.pm.store(place, bytes)?;
                continue;
            }
            let copied = self.fs.pm.copy(place, bytes)?;
            self.pending = join(self.pending.take(), copied);
        }
        Ok(())
    }

    /// Bytes of a new block that are not written: the old ones as far as the file goes, then zeros.
    fn copy_edge(
        &mut self,
        size: u64,
        before: Before,
        media: u64,
        from: u64,
        end: u64,
        start: u64,
    ) -> Result<()> {
        let pm = &*self.fs.pm;
        let mut at = from;
        if let Before::Written(block) = before {
            let old_end = end.min(size).max(from);
            let mut bytes = [0; BLOCK_SIZE as usize];
            while at < old_end {
                let count = (BLOCK_SIZE - at % BLOCK_SIZE).min(old_end - at);
                let bytes = &mut bytes[..count as usize];
                pm.read(Block(block).offset() + (at - start), bytes)?;
                let copied = pm.copy(media + (at - from), bytes)?;
                self.pending = join(self.pending.take(), copied);
                at += count;
            }
        }
        if at < end {
            let zeroed = pm.zero(media + (at - from), end - at)?;
            self.pending = join(self.pending.take(), zeroed);
        }
        Ok(())
    }
}

/// Fails when blocks of this file are mapped. Under its lock.
pub(crate) fn check_pins(inode: &HeldInode) -> Result<()> {
    if inode.pins.load(nacre_engine::sync::atomic::Ordering::Acquire) == 0 {
        return Ok(());
    }
    Err(Error::new(Kind::Busy).advice("a program has mapped the file; it must let go of it first"))
}
