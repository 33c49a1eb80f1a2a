//! Reading and writing files.
//!
//! Data is written in place. Blocks that the file does not have yet, or has and never wrote, are filled before the
//! transaction that shows them. Overwritten data changes at once, word by word, so that a crash may leave any part of
//! an overwrite, and nothing outside it. Size, times and tree change in one transaction after that; of a write that is
//! longer than [`PIECE_BLOCKS`], piece by piece. Writeback of a write buffer takes a way of its own to the same end
//! (`write_back`).
//!
//! Bytes of the last block beyond the size are undefined on media: nothing reads them, an append writes them in place,
//! and an operation that grows the size over them zeroes them first. No written block is wholly beyond the size.

use std::io::IoSlice;
use std::ops::Range;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{BLOCK_SIZE, Block, Error, Resource, Result, Timestamp, WriteAt};
use nacre_layout_parts::content::{Content, gather};
use nacre_layout_parts::ranges::end_of;
use nacre_layout_parts::rules::{InodeFacts, check_write};
use nacre_layout_parts::table::inodes::Inodes;
use nacre_layout_parts::tree::{MAX_HEIGHT, NODE_WORDS};
use nacre_media::{Durable, Flushed, Pm};

use crate::alloc::{Purpose, Runs};
use crate::blockmap::{Piece, open, pack};
use crate::format::{LANE_ENTRIES, MAX_FILE_SIZE, word};
use crate::fs::Shared;
use crate::inode::{Body, Inode};
use crate::seeded::Mistake;
use crate::transaction::{INODE_ENTRIES, Transaction, join};
use crate::tree_edit::{Edit, finish};

/// Blocks that one transaction can take into a tree, or change in it.
pub(crate) const PIECE_BLOCKS: u64 = 1024;
/// Leaves that so many blocks are in, wherever they begin.
const PIECE_LEAVES: u64 = PIECE_BLOCKS / NODE_WORDS as u64 + 1;
/// Only neighbouring words share an undo entry. So a piece takes most of them if every other word of its leaves
/// changes. With these come the words that lead to the leaves, two in each level above those, and the inode's.
const PIECE_ENTRIES: u64 =
    (PIECE_BLOCKS + PIECE_LEAVES) / 2 + PIECE_LEAVES + 2 * (MAX_HEIGHT as u64 - 2) + INODE_ENTRIES;
const _: () = assert!(PIECE_ENTRIES <= LANE_ENTRIES as u64);

/// A part of a write, which one transaction shows.
pub(crate) struct Write<'a> {
    pub(crate) range: Range<u64>,
    pub(crate) content: Content<'a>,
    pub(crate) purpose: Purpose,
    pub(crate) now: Timestamp,
}

/// Where a part of a write goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) piece: Piece,
    /// These blocks are unreadable before the transaction: their unwritten parts must be zeroed.
    pub(crate) is_fresh: bool,
}

impl<P: Pm> Shared<P> {
    pub(crate) fn read(
        &self,
        inode: &Inode,
        offset: u64,
        buffer: &mut [u8],
        now: Option<Timestamp>,
    ) -> Result<usize> {
        inode.check_file()?;
        let body = inode.body.read();
        let size = inode.size();
        if offset >= size || buffer.is_empty() {
            return Ok(0);
        }
        let len = buffer.len().min((size - offset) as usize);
        let buffer = &mut buffer[..len];
        let end = offset + len as u64;
        let mut at = offset;
        let mut result = Ok(());
        self.map(body.root)
            .for_each(offset / BLOCK_SIZE, end.div_ceil(BLOCK_SIZE), &mut |piece| {
                if result.is_ok() && piece.is_written {
                    result = piece.read(&*self.pm, offset, &mut at, buffer);
                }
            })
            .map_err(|error| error.object(format!("inode {}", inode.number)))?;
        // Less than was asked for would say that the file ends here, and the kernel would believe it.
        result.map_err(|error| error.object(format!("inode {} at byte {at}", inode.number)))?;
        buffer[(at - offset) as usize..].fill(0);
        drop(body);
        if let Some(now) = now {
            self.note_read(inode, now);
        }
        Ok(len)
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
        if let (Purpose::Reserved, WriteAt::Offset(offset)) = (purpose, at)
            && len > 0
            && self.write_back(inode, offset..end_of(offset, len, MAX_FILE_SIZE)?, data, now)?
        {
            return Ok(offset);
        }
        let mut body = inode.body.write();
        // Times that changed while this waited stay changed then.
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
        if purpose != Purpose::Reserved {
            // Missing space is found before anything is written.
            self.check_room(&body, offset, end)?;
        }
        let mut write = Write { range: offset..end, content, purpose, now };
        while write.range.start < end {
            write.range.end = ((write.range.start / BLOCK_SIZE + PIECE_BLOCKS) * BLOCK_SIZE).min(end);
            self.write_piece(inode, &mut body, &write)?;
            write.range.start = write.range.end;
        }
        Ok(offset)
    }

    /// A write of several transactions must not begin if it will find no space.
    pub(crate) fn check_room(&self, body: &Body, offset: u64, end: u64) -> Result<()> {
        let (first, last) = (offset / BLOCK_SIZE, end.div_ceil(BLOCK_SIZE));
        if last - first <= PIECE_BLOCKS {
            return Ok(());
        }
        let mut missing = last - first;
        self.map(body.root).for_each(first, last, &mut |piece| missing -= piece.len)?;
        if missing + missing / 256 > self.alloc.available_blocks() {
            self.reclaim_buried();
        }
        if missing + missing / 256 > self.alloc.available_blocks() {
            return Err(Error::no_space(Resource::Pm, missing));
        }
        Ok(())
    }

    fn write_piece(&self, inode: &Inode, body: &mut Body, write: &Write<'_>) -> Result<()> {
        let mut allocated = Runs::new();
        let mut edit = Edit::new(self, open(body.root));
        if write.purpose == Purpose::Reserved {
            edit.purpose = write.purpose;
        }
        let result = self.write_and_commit(inode, &mut edit, &mut allocated, write);
        if result.is_err() {
            if !self.is_broken() {
                edit.give_up();
                self.free_runs(&allocated);
            }
            return result;
        }
        self.written(inode, body, pack(edit.tree), &allocated, write.range.end, write.now);
        Ok(())
    }

    /// Updates the state in DRAM after the commit of a write.
    pub(crate) fn written(
        &self,
        inode: &Inode,
        body: &mut Body,
        root: u64,
        allocated: &Runs,
        end: u64,
        now: Timestamp,
    ) {
        body.root = root;
        let blocks: u64 = allocated.iter().map(|run| run.len).sum();
        inode.blocks.fetch_add(blocks, Ordering::Relaxed);
        inode.size.fetch_max(end, Ordering::AcqRel);
        inode.modified(now);
    }

    fn write_and_commit(
        &self,
        inode: &Inode,
        edit: &mut Edit<'_, P>,
        allocated: &mut Runs,
        write: &Write<'_>,
    ) -> Result<()> {
        let range = &write.range;
        let size = inode.size();
        let before = pack(edit.before);
        let pieces = self.pieces(before, range)?;
        let targets = self.targets(before, &pieces, allocated, write)?;
        // Nodes first: when there is no space for them, nothing may be overwritten.
        for target in targets.iter().filter(|target| target.is_fresh) {
            edit.set(target.piece)?;
        }
        let mut pending = None;
        if range.start > size {
            pending = self.zero_gap(before, size, range.start)?;
        }
        for target in &targets {
            pending = self.copy_to(target, write, size, pending)?;
        }
        self.commit_write(inode, edit, range.end, pending, Durable::nothing_before(), write.now)
    }

    /// The transaction of a write of data that is durable (`ready`) or `pending`.
    pub(crate) fn commit_write(
        &self,
        inode: &Inode,
        edit: &mut Edit<'_, P>,
        end: u64,
        pending: Option<Flushed>,
        ready: Durable,
        now: Timestamp,
    ) -> Result<()> {
        let mut transaction = Transaction::default();
        let pending = finish(edit, &mut transaction, pending)?;
        transaction.word(inode.address + word::ROOT, pack(edit.tree));
        if end > inode.size() {
            transaction.word(inode.address + word::SIZE, end);
        }
        inode.put_modified(&mut transaction, now);
        self.commit_after(transaction, pending, ready)
    }

    /// The pieces of a tree in a range, in order.
    pub(crate) fn pieces(&self, root: u64, range: &Range<u64>) -> Result<Vec<Piece>> {
        let (first, last) = (range.start / BLOCK_SIZE, range.end.div_ceil(BLOCK_SIZE));
        let mut pieces = Vec::new();
        self.map(root).for_each(first, last, &mut |piece| pieces.push(piece))?;
        Ok(pieces)
    }

    /// Where each part of a write goes, if a tree has `pieces` in its range, in order.
    pub(crate) fn targets(
        &self,
        root: u64,
        pieces: &[Piece],
        allocated: &mut Runs,
        write: &Write<'_>,
    ) -> Result<Vec<Target>> {
        let Write { range, purpose, .. } = write;
        let (first, last) = (range.start / BLOCK_SIZE, range.end.div_ceil(BLOCK_SIZE));
        let map = self.map(root);
        let mut goal = match first.checked_sub(1) {
            Some(before) => map.find(before)?.map(|piece| Block(piece.place + 1)),
            None => None,
        };
        let mut targets = Vec::new();
        let mut at = first;
        let mut fill = |at: &mut u64, until: u64, goal: Option<Block>, targets: &mut Vec<Target>| {
            if *at >= until {
                return Ok(());
            }
            let mut runs = Runs::new();
            self.allocate(goal, until - *at, *purpose, &mut runs)?;
            for run in &runs {
                let piece = Piece { start: *at, len: run.len, place: run.start.0, is_written: true };
                targets.push(Target { piece, is_fresh: true });
                *at += run.len;
            }
            allocated.extend(runs);
            Ok::<(), Error>(())
        };
        for &piece in pieces {
            fill(&mut at, piece.start, goal, &mut targets)?;
            let is_fresh = !piece.is_written;
            let piece = Piece { is_written: true, ..piece };
            targets.push(Target { piece, is_fresh });
            at = piece.start + piece.len;
            goal = Some(Block(piece.place + piece.len));
        }
        fill(&mut at, last, goal, &mut targets)?;
        Ok(targets)
    }

    /// Copies the part of a write that goes to a target.
    pub(crate) fn copy_to(
        &self,
        target: &Target,
        write: &Write<'_>,
        size: u64,
        mut pending: Option<Flushed>,
    ) -> Result<Option<Flushed>> {
        let Write { range, content, .. } = write;
        let Target { piece, is_fresh } = *target;
        let (start, stop) = (piece.start * BLOCK_SIZE, (piece.start + piece.len) * BLOCK_SIZE);
        let (from, to) = (start.max(range.start), stop.min(range.end));
        let media = piece.block().offset();
        if is_fresh && !Mistake::EdgesNotZeroed.is_made(&*self.pm) {
            if from > start {
                pending = join(pending, self.pm.zero(media, from - start)?);
            }
            // Bytes behind the end of the file are not read.
            let until = stop.min(size.max(range.end));
            if to < until {
                pending = join(pending, self.pm.zero(media + (to - start), until - to)?);
            }
        }
        for (at, bytes) in content.between(from..to) {
            pending = join(pending, self.pm.copy(media + (at - start), bytes)?);
        }
        Ok(pending)
    }

    /// Zeros the bytes of the last block behind the size, before that grows to `end`.
    pub(crate) fn zero_gap(&self, root: u64, size: u64, end: u64) -> Result<Option<Flushed>> {
        if size.is_multiple_of(BLOCK_SIZE) || Mistake::GapNotZeroed.is_made(&*self.pm) {
            return Ok(None);
        }
        let piece = self.map(root).find(size / BLOCK_SIZE)?;
        let Some(piece) = piece.filter(|piece| piece.is_written) else { return Ok(None) };
        let until = end.min(size.next_multiple_of(BLOCK_SIZE));
        let media = piece.block().offset() + size % BLOCK_SIZE;
        self.pm.zero(media, until - size).map(Some)
    }
}
