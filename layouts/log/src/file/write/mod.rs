//! Writing: a write is prepared without a lock and then committed, as often as it is outrun.

mod commit;
mod prepare;

use std::io::IoSlice;
use std::sync::Arc;

use nacre_engine::{BLOCK_SIZE, Block, Kind, Result, Step, Timestamp, WriteAt, or_another_way};
use nacre_layout_parts::ranges::end_of;
use nacre_layout_parts::rules::{InodeFacts, check_write};
use nacre_media::Pm;
pub(crate) use prepare::{Prepared, Target};

use super::Freed;
use crate::alloc::Purpose;
use crate::blockmap::BlockMap;
use crate::format::{MAX_FILE_SIZE, place};
use crate::fs::Shared;
use crate::inode::Inode;
use crate::places::is_written;
use crate::seeded::fault;

/// Times that a write prepares without the log's lock before it prepares under it.
const OPTIMISTIC_WRITES: usize = 4;

pub(crate) enum Attempt {
    Done,
    /// An old block changed meanwhile.
    Again,
    /// The file became shorter: this is no overwrite any more.
    Extends,
}

/// The range of a write, in bytes and in blocks that need a new place.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    pub(crate) offset: u64,
    pub(crate) end: u64,
    /// Bytes of the written data that are before it.
    pub(crate) before: u64,
    /// Bytes at the start that go to the last block in place, beyond the size.
    pub(crate) in_place: u64,
    /// The purpose of the blocks that it takes.
    pub(crate) purpose: Purpose,
    /// The purpose of a page of the log, if it differs.
    pub(crate) pages: Option<Purpose>,
    /// It may borrow from the reserve, whether there are tiers or not.
    pub(crate) borrows: bool,
}

/// A write that is under way.
#[derive(Clone, Copy)]
pub(crate) struct Write<'a> {
    pub(crate) inode: &'a Arc<Inode>,
    pub(crate) data: &'a [IoSlice<'a>],
    pub(crate) now: Timestamp,
    /// It changes the size, and holds `extend` of the inode.
    pub(crate) extends: bool,
}

impl Range {
    fn new(offset: u64, end: u64, in_place: u64, purpose: Purpose) -> Range {
        Range { offset, end, before: 0, in_place, purpose, pages: None, borrows: false }
    }

    pub(crate) fn first_block(&self) -> u64 {
        (self.offset + self.in_place) / BLOCK_SIZE
    }

    pub(crate) fn blocks(&self) -> u64 {
        if self.offset + self.in_place == self.end {
            0
        } else {
            self.end.div_ceil(BLOCK_SIZE) - self.first_block()
        }
    }
}

impl<P: Pm> Shared<P> {
    /// Writes. On a full device without tiers, existing data may be overwritten with borrowed blocks.
    pub(crate) fn write(
        &self,
        inode: &Arc<Inode>,
        at: WriteAt,
        data: &[IoSlice<'_>],
        purpose: Purpose,
        now: Timestamp,
    ) -> Result<u64> {
        self.write_or_borrow(inode, at, data, purpose, now, false)
    }

    /// Writes. If `borrows` is set blocks may be borrowed with tiers, too: when direct reclaim finds no other room.
    pub(crate) fn write_or_borrow(
        &self,
        inode: &Arc<Inode>,
        at: WriteAt,
        data: &[IoSlice<'_>],
        purpose: Purpose,
        now: Timestamp,
        borrows: bool,
    ) -> Result<u64> {
        self.file(inode)?;
        let len: u64 = data.iter().map(|slice| slice.len() as u64).sum();
        if purpose != Purpose::Reserved {
            check_write(inode.flags(), at)?;
        }
        if let WriteAt::Offset(offset) = at {
            let end = end_of(offset, len, MAX_FILE_SIZE)?;
            if len == 0 {
                return Ok(offset);
            }
            if end <= inode.size() {
                let range = Range { borrows, ..Range::new(offset, end, 0, purpose) };
                let write = Write { inode, data, now, extends: false };
                if let Some(offset) = self.write_range(&write, range)? {
                    return Ok(offset);
                }
            }
        }
        let mut early = None;
        fault!(self.pm, SizeReadEarly => early = Some(inode.size()));
        let extend = inode.extend.lock();
        self.finish_trim(inode, &extend);
        let size = early.unwrap_or_else(|| inode.size());
        let offset = match at {
            WriteAt::Offset(offset) => offset,
            WriteAt::End => size,
        };
        let end = end_of(offset, len, MAX_FILE_SIZE)?;
        if len == 0 {
            return Ok(offset);
        }
        let in_place = self.bytes_in_place(self.file(inode)?, size, offset, end);
        let range = Range { borrows, ..Range::new(offset, end, in_place, purpose) };
        // While `extend` is held no write "becomes" an extension: `None` cannot be.
        let write = Write { inode, data, now, extends: true };
        self.write_range(&write, range).map(|offset| offset.unwrap_or(range.offset))
    }

    /// How many bytes of an extending write go into the file's last block, beyond its size.
    fn bytes_in_place(&self, map: &BlockMap, size: u64, offset: u64, end: u64) -> u64 {
        let last = size / BLOCK_SIZE;
        if size.is_multiple_of(BLOCK_SIZE) || offset < size || offset / BLOCK_SIZE != last {
            return 0;
        }
        match map.find(last, 1).0 {
            Some(raw) if is_written(raw) && place::tier(raw) == 0 => {
                end.min((last + 1) * BLOCK_SIZE) - offset
            }
            _ => 0,
        }
    }

    /// Writes a range; `None` when it should be an overwrite and is none any more.
    fn write_range(&self, write: &Write<'_>, range: Range) -> Result<Option<u64>> {
        let Write { inode, extends, .. } = *write;
        let goal = if extends { self.end_of_data(self.file(inode)?, range.first_block()) } else { None };
        let mut freed = Freed::new();
        let mut is_freed = false;
        fault!(self.pm, BlocksFreedTooSoon => is_freed = self.free_early(inode, range, extends)?);
        for turn in 0.. {
            let mut prepared = Prepared::new(inode.size());
            let locked = (turn >= OPTIMISTIC_WRITES).then(|| inode.log.lock());
            let allocated = match locked {
                Some(_) => self.alloc.allocate(range.blocks(), range.purpose, &mut prepared.runs),
                None => self.allocate(goal, range.blocks(), range.purpose, &mut prepared.runs),
            };
            match allocated {
                Ok(()) => {
                    let new = prepared.runs.iter().map(|&run| Target { run, kept: false });
                    prepared.targets.extend(new);
                }
                Err(_) => {
                    drop(locked);
                    return self.write_on_full(write, range);
                }
            }
            let attempt = match self.copy_data(write, range, &mut prepared) {
                Err(error) => Err(error),
                Ok(()) => {
                    // Loads that the commit will need go out while the copies are on their way to media.
                    std::hint::black_box(self.file(inode)?.find(range.first_block(), 1));
                    let log = locked.unwrap_or_else(|| inode.log.lock());
                    self.commit_write(write, log, range, &mut prepared, &mut freed)
                }
            };
            match attempt {
                Ok(Attempt::Done) => {
                    for piece in freed.into_iter().filter(|_| !is_freed) {
                        self.free_piece(piece);
                    }
                    return Ok(Some(range.offset));
                }
                Ok(Attempt::Again) => self.free_runs(&prepared.runs),
                Ok(Attempt::Extends) => {
                    self.free_runs(&prepared.runs);
                    return Ok(None);
                }
                // After a media error it is unknown whether the entry is there: then the blocks stay taken.
                Err(error) => {
                    if error.kind() != Kind::Media {
                        self.free_runs(&prepared.runs);
                    }
                    // The log may have found no page for its entries.
                    return or_another_way(Step::Reserve, Err(error), || match is_freed {
                        true => Ok(None),
                        false => self.write_on_full(write, range).map(Some),
                    });
                }
            }
        }
        Ok(None)
    }

    /// Frees the blocks that an overwrite replaces before it has others, as a mistake. False for other writes.
    fn free_early(&self, inode: &Inode, range: Range, extends: bool) -> Result<bool> {
        if !extends {
            self.file(inode)?.for_each(range.first_block(), range.blocks(), |piece| self.free_piece(piece));
        }
        Ok(!extends)
    }

    /// The block behind the one before `block`: a file that grows should go on there.
    fn end_of_data(&self, map: &BlockMap, block: u64) -> Option<Block> {
        let raw = map.find(block.checked_sub(1)?, 1).0.filter(|&raw| place::tier(raw) == 0)?;
        Some(Block((raw & place::BLOCK_MASK) + 1))
    }
}
