//! Writing on a full device.
//!
//! Written blocks of a file can be written again, however full the device is, and allocated ones can be written for the
//! first time:
//!
//! 1. Blocks that are allocated and not written are written where they are.
//! 2. Written blocks are replaced by blocks of the reserve, and as many are free again with the commit. One thread does
//!    so at a time, with a part of the reserve: a long write goes in pieces, each of which is all or nothing.
//! 3. A file that is overwritten so in any order is in more and more pieces, and each is an entry of its log. That may
//!    take a quarter of the reserve. Then blocks are overwritten where they are, without an entry: the log stays as it
//!    was. A crash may leave a part of such a write. Blocks that were never written need an entry, for which the log
//!    may take more of the reserve. The entry makes all their neighbours written ones, too, so that the log does not
//!    grow with each write.
//!
//! All other blocks of a write must find space as always; where they find none, nothing has changed.

use std::collections::VecDeque;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{BLOCK_SIZE, Block, Error, Kind, Resource, Result, Timestamp, unless_full};
use nacre_layout_parts::content::{Content, gather};
use nacre_media::{Durable, Flushed, Pm};
use smallvec::SmallVec;

use crate::alloc::{Purpose, Run, Runs};
use crate::blockmap::{LEAF, Piece};
use crate::commit::Commit;
use crate::file::{Attempt, Change, Freed, Prepared, Range, Target, Write, join};
use crate::format::place;
use crate::fs::Shared;
use crate::inode::Inode;
use crate::log::Log;
use crate::places::{is_written, media_offset};

/// One block in so many of the reserve is borrowed at once, at the most.
const BORROWED: u64 = 2;
/// Places that a piece goes to at the most: two pages of a log have entries for them.
const MAX_TARGETS: usize = 126;

/// Blocks that were found for parts that the file does not have yet.
struct Supply(VecDeque<Run>);

impl Supply {
    /// As many as there are, `want` at the most, in one piece.
    fn take(&mut self, want: u64) -> Option<Run> {
        let first = self.0.front_mut()?;
        let taken = Run { start: first.start, len: first.len.min(want) };
        (first.start, first.len) = (first.start.plus(taken.len), first.len - taken.len);
        if first.len == 0 {
            self.0.pop_front();
        }
        Some(taken)
    }
}

/// Where a piece of a write goes.
struct Targets {
    range: Range,
    prepared: Prepared,
    /// Of the reserve.
    borrowed: Runs,
    /// Of the supply.
    supplied: Runs,
}

impl<P: Pm> Shared<P> {
    /// Writes a range for which there is no space as a whole; `None` when it should be an overwrite and is none any
    /// more.
    pub(crate) fn write_on_full(&self, write: &Write<'_>, range: Range) -> Result<Option<u64>> {
        let range = Range { borrows: range.borrows || self.tier_list().is_empty(), ..range };
        let missing = self.missing(write, range)?;
        let mut found = Runs::new();
        if missing > 0 {
            self.allocate(None, missing, range.purpose, &mut found)?;
        }
        let mut supply = Supply(found.into_iter().collect());
        let alone = self.overwriting.lock();
        let mut rest = range;
        let written = loop {
            match self.write_next(write, rest, &mut supply) {
                Ok(Some(end)) if end == range.end => break Ok(Some(range.offset)),
                Ok(Some(end)) if end == rest.offset => {} // what it was to go to has changed
                Ok(Some(end)) => {
                    rest = Range { offset: end, before: end - range.offset, in_place: 0, ..range };
                }
                Ok(None) => break Ok(None),
                Err(error) => break Err(error),
            }
        };
        drop(alone);
        supply.0.into_iter().for_each(|run| self.alloc.free(run));
        written
    }

    /// Blocks of a range for which space must be found.
    fn missing(&self, write: &Write<'_>, range: Range) -> Result<u64> {
        let map = self.file(write.inode)?;
        let _log = write.inode.log.lock();
        let mut here = 0;
        map.for_each(range.first_block(), range.blocks(), |piece| {
            if is_here(range, piece.place) {
                here += piece.len;
            }
        });
        Ok(range.blocks() - here)
    }

    /// Writes the first piece of the rest; gives where it ends.
    fn write_next(&self, write: &Write<'_>, rest: Range, supply: &mut Supply) -> Result<Option<u64>> {
        // A write that was accepted before has all its pages reserved.
        let takes = |pages| Range { pages: (rest.purpose == Purpose::Data).then_some(pages), ..rest };
        if !rest.borrows {
            return self.write_piece(write, rest, supply);
        }
        if let Some(end) = unless_full(self.write_piece(write, takes(Purpose::Pieces), supply))? {
            return Ok(end);
        }
        match self.write_in_place(write, rest)? {
            None => self.write_piece(write, takes(Purpose::Overwrite), supply),
            end => Ok(end),
        }
    }

    fn write_piece(&self, write: &Write<'_>, rest: Range, supply: &mut Supply) -> Result<Option<u64>> {
        let Write { inode, extends, .. } = *write;
        let log = inode.log.lock();
        if !extends && rest.end > inode.size() {
            return Ok(None);
        }
        self.check_pieces(&log, rest.pages.unwrap_or(rest.purpose))?;
        let Targets { range, mut prepared, borrowed, supplied } = self.target(write, rest, supply)?;
        let mut freed = Freed::new();
        let attempt = self
            .copy_data(write, range, &mut prepared)
            .and_then(|()| self.commit_write(write, log, range, &mut prepared, &mut freed));
        // After a media error it is unknown whether the entry is there: then the blocks stay taken.
        let is_unused = match &attempt {
            Ok(Attempt::Done) => false,
            Ok(Attempt::Again | Attempt::Extends) => true,
            Err(error) => error.kind() != Kind::Media,
        };
        if is_unused {
            self.free_runs(&borrowed);
            supplied.into_iter().rev().for_each(|run| supply.0.push_front(run));
        }
        freed.into_iter().for_each(|piece| self.free_piece(piece));
        Ok(match attempt? {
            Attempt::Done => Some(range.end),
            Attempt::Again => Some(rest.offset),
            Attempt::Extends => None,
        })
    }

    /// Lines of a page that was taken for something else are not for more pieces.
    pub(crate) fn check_pieces(&self, log: &Log, pages: Purpose) -> Result<()> {
        match pages == Purpose::Pieces && log.index.page_count > 1 && !self.alloc.fits(1, pages) {
            true => Err(Error::no_space(Resource::Pm, 1)),
            false => Ok(()),
        }
    }

    /// Finds places for the first piece of the rest. Under the log's lock.
    fn target(&self, write: &Write<'_>, rest: Range, supply: &mut Supply) -> Result<Targets> {
        let map = self.file(write.inode)?;
        let mut prepared = Prepared::new(write.inode.size());
        let (mut borrowed, mut supplied) = (Runs::new(), Runs::new());
        let mut left = (self.alloc.reserve() / BORROWED).max(1);
        let (mut at, end) = (rest.first_block(), rest.first_block() + rest.blocks());
        while at < end && prepared.targets.len() < MAX_TARGETS {
            let (found, len) = map.find(at, end - at);
            let here = found.filter(|&raw| is_here(rest, raw));
            let runs: Runs = match here {
                Some(raw) if !is_written(raw) => {
                    let run = Run { start: Block(raw & place::BLOCK_MASK), len };
                    prepared.targets.push(Target { run, kept: true });
                    at += len;
                    continue;
                }
                Some(_) => self.borrow(len.min(left)),
                None => supply.take(len).into_iter().collect(),
            };
            let taken: u64 = runs.iter().map(|run| run.len).sum();
            if taken == 0 {
                break;
            }
            prepared.targets.extend(runs.iter().map(|&run| Target { run, kept: false }));
            at += taken;
            if here.is_some() {
                left -= taken;
                borrowed.extend(runs);
            } else {
                supplied.extend(runs);
            }
        }
        let piece_end = if at == end { rest.end } else { at * BLOCK_SIZE };
        if piece_end <= rest.offset {
            return Err(Error::no_space(Resource::Pm, end - at));
        }
        Ok(Targets { range: Range { end: piece_end, ..rest }, prepared, borrowed, supplied })
    }

    /// Takes blocks of the reserve: `want` of them, or half as many, and so on.
    fn borrow(&self, mut want: u64) -> Runs {
        let mut runs = Runs::new();
        while want > 0 && self.alloc.allocate(want, Purpose::Overwrite, &mut runs).is_err() {
            want /= 2;
        }
        runs
    }

    /// Overwrites the written blocks at the start of a range in place, without an entry; gives where they end. `None`
    /// if they are not all that is there.
    fn write_in_place(&self, write: &Write<'_>, rest: Range) -> Result<Option<u64>> {
        let Write { inode, data, now, .. } = *write;
        let map = self.file(inode)?;
        let mut log = inode.log.lock();
        let block = rest.offset / BLOCK_SIZE;
        let (found, len) = map.find(block, rest.end.div_ceil(BLOCK_SIZE) - block);
        let Some(raw) = found.filter(|&raw| is_here(rest, raw)) else { return Ok(None) };
        let end = rest.end.min((block + len) * BLOCK_SIZE);
        if log.state.broken || log.state.dead_inode || end > inode.size() {
            return Ok(None);
        }
        if !is_written(raw) {
            self.write_zeros(inode, &mut log, block, now)?;
        }
        let at = media_offset(written(raw))? + rest.offset % BLOCK_SIZE;
        let first = rest.offset - rest.before;
        let gathered = gather(first, data);
        let content = Content::new(first, data, &gathered);
        self.versions_of(inode).change(block..end.div_ceil(BLOCK_SIZE));
        let copied = map.change_in_place(block, || -> Result<Option<Flushed>> {
            let mut flushed = None;
            for (place, part) in content.between(rest.offset..end) {
                join(&mut flushed, Some(self.pm.copy(at + (place - rest.offset), part)?));
            }
            Ok(flushed)
        });
        if let Some(flushed) = copied.transpose()?.flatten() {
            self.pm.fence(flushed);
        }
        match rest.purpose {
            Purpose::Reserved => inode.touch_late(now),
            _ => inode.touch(now),
        }
        // No entry says the times.
        inode.lazy.store(true, Ordering::Release);
        Ok(Some(end))
    }

    /// Makes blocks written ones that are allocated and were never written: the one that is given, and its neighbours.
    /// One entry says of all that lie together where they are, also of those that were written.
    fn write_zeros(&self, inode: &Inode, log: &mut Log, block: u64, now: Timestamp) -> Result<()> {
        let map = self.file(inode)?;
        let first = block - block % LEAF;
        // Blocks behind the end stay as they are.
        let end = (first + LEAF).min(inode.size().div_ceil(BLOCK_SIZE));
        let mut run: SmallVec<[Piece; 4]> = SmallVec::new();
        let mut is_whole = false;
        map.for_each(first, end.saturating_sub(first), |piece| {
            let Some(last) = run.last().filter(|_| !is_whole) else {
                run.extend((!is_whole).then_some(piece));
                return;
            };
            let (behind, there) = (last.start + last.len, written(last.place) + last.len);
            if behind != piece.start || there != written(piece.place) {
                is_whole = behind > block;
                if !is_whole {
                    run.clear();
                }
            }
            run.extend((!is_whole).then_some(piece));
        });
        let (Some(&from), Some(last)) = (run.first(), run.last()) else {
            return Err(Error::no_space(Resource::Pm, 1));
        };
        let mut zeroed = None;
        for piece in run.iter().filter(|piece| !is_written(piece.place)) {
            let offset = media_offset(written(piece.place))?;
            join(&mut zeroed, Some(self.pm.zero(offset, piece.len * BLOCK_SIZE)?));
        }
        let after = zeroed.map_or_else(Durable::nothing_before, |zeroed| self.pm.fence(zeroed));
        let len = last.start + last.len - from.start;
        let change = Change { start: from.start, len, place: Some(written(from.place)), kept: len };
        let commit = Commit::of(inode, log).pages(Purpose::Overwrite).after(after);
        self.note_changes(inode, &[change]);
        commit.changes(self, &[change], inode.size(), now, &mut Freed::new())
    }
}

/// The same place, of blocks that are written.
fn written(raw: u64) -> u64 {
    raw & !place::UNWRITTEN
}

/// Whether blocks with this place can be written again without space.
fn is_here(range: Range, raw: u64) -> bool {
    place::tier(raw) == 0 && (range.borrows || !is_written(raw))
}
