//! Reading and writing files.
//!
//! Data is written to new blocks (copy-on-write) without any lock, then the log is locked, one entry for each run of
//! blocks is committed, and the index changes. A write that keeps a part of an old block has read it before; if that
//! block changed meanwhile, the write prepares again. A write that changes the size holds `extend`, so sizes change one
//! at a time; overwrites do not.
//!
//! Bytes of the last block beyond the size are undefined on media: nothing reads them, an append writes them in place,
//! and an operation that grows the size over them zeroes them first.

use std::io::IoSlice;
use std::sync::Arc;

use nacre_engine::sync::MutexGuard;
use nacre_engine::sync::atomic::{Ordering, fence};
use nacre_engine::{BLOCK_SIZE, Block, Durability, Error, Kind, Result, Timestamp, WriteAt};
use nacre_layout_parts::ranges::end_of;
use nacre_layout_parts::rules::{InodeFacts, check_write};
use nacre_media::{Durable, Flushed, Pm};
use smallvec::SmallVec;

use crate::alloc::{Purpose, Run, Runs};
use crate::batch::Batch;
use crate::blockmap::{BlockMap, Piece};
use crate::commit::{Commit, promised};
use crate::format::{MAX_FILE_SIZE, WriteEntry, kind, place};
use crate::fs::Shared;
use crate::inode::{Inode, NO_TRIM};
use crate::log::{INLINE, Log, NO_PAGE};
use crate::seeded::fault;

const BLOCK: usize = BLOCK_SIZE as usize;
/// Times that a write prepares without the log's lock before it prepares under it.
const OPTIMISTIC_WRITES: usize = 4;

/// Where a part of a file goes in one commit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change {
    /// First block in the file, and number of blocks.
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// The new place; `None` for a hole.
    pub(crate) place: Option<u64>,
    /// So many of the first blocks were at this place before, and stay allocated.
    pub(crate) kept: u64,
}

impl Change {
    /// The part of this change from one block to before another.
    fn part(&self, from: u64, to: u64) -> Change {
        Change {
            start: from,
            len: to - from,
            place: self.place.map(|raw| raw + (from - self.start)),
            kept: (self.start + self.kept).clamp(from, to) - from,
        }
    }
}

pub(crate) type Changes = SmallVec<[Change; 4]>;
pub(crate) type Freed = SmallVec<[Piece; 4]>;

/// Bytes to write, gathered from several slices.
pub(crate) struct Source<'a> {
    slices: &'a [IoSlice<'a>],
    /// Position: which slice, and the offset in it.
    index: usize,
    within: usize,
}

impl<'a> Source<'a> {
    fn new(slices: &'a [IoSlice<'a>]) -> Source<'a> {
        Source { slices, index: 0, within: 0 }
    }

    /// From the byte `from` on.
    pub(crate) fn from(slices: &'a [IoSlice<'a>], from: u64) -> Source<'a> {
        let mut source = Source::new(slices);
        skip(&mut source, from);
        source
    }

    /// The next bytes, at most `limit`, from one slice.
    pub(crate) fn next(&mut self, limit: usize) -> &'a [u8] {
        while self.index < self.slices.len() && self.within == self.slices[self.index].len() {
            self.index += 1;
            self.within = 0;
        }
        let Some(slice) = self.slices.get(self.index) else { return &[] };
        let slice: &'a [u8] = &slice[self.within..];
        let part = &slice[..slice.len().min(limit)];
        self.within += part.len();
        part
    }

    fn fill(&mut self, mut buffer: &mut [u8]) {
        while !buffer.is_empty() {
            let part = self.next(buffer.len());
            buffer[..part.len()].copy_from_slice(part);
            buffer = &mut buffer[part.len()..];
        }
    }
}

/// A block of which a write keeps a part: where it was when it was read.
#[derive(Clone, Copy)]
pub(crate) struct Edge {
    block: u64,
    place: Option<u64>,
    version: u64,
}

/// A write that is prepared: its data is on its way to new blocks.
pub(crate) struct Prepared {
    /// Blocks that were allocated for it.
    pub(crate) runs: Runs,
    /// Where the range goes, in order: those, and blocks that the file has already, allocated and not written.
    pub(crate) targets: SmallVec<[Target; 2]>,
    edges: SmallVec<[Edge; 2]>,
    /// The size of the file when it was prepared.
    size: u64,
    flushed: Option<Flushed>,
}

impl Prepared {
    /// Nothing yet, for a file of this size.
    pub(crate) fn new(size: u64) -> Prepared {
        let (targets, edges) = (SmallVec::new(), SmallVec::new());
        Prepared { runs: Runs::new(), targets, edges, size, flushed: None }
    }
}

/// Where a part of a write goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) run: Run,
    /// The file had these blocks before.
    pub(crate) kept: bool,
}

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

/// True for a place that holds data.
pub(crate) fn is_written(raw: u64) -> bool {
    raw & place::UNWRITTEN == 0
}

/// The offset on PM of blocks that are there.
pub(crate) fn media_offset(raw: u64) -> Result<u64> {
    match place::tier(raw) {
        0 => Ok(Block(raw & place::BLOCK_MASK).offset()),
        _ => Err(Error::new(Kind::Elsewhere)),
    }
}

impl<P: Pm> Shared<P> {
    pub(crate) fn read(
        &self,
        inode: &Inode,
        offset: u64,
        buffer: &mut [u8],
        now: Option<Timestamp>,
    ) -> Result<usize> {
        let map = self.file(inode)?;
        let mut size = inode.size();
        if offset >= size || buffer.is_empty() {
            return Ok(0);
        }
        let mut len = buffer.len().min((size - offset) as usize);
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            match self.read_run(inode, map, at, &mut buffer[done..len], size) {
                Ok((count, size_now)) => {
                    if size_now > size && done + count == len && len < buffer.len() {
                        // The write that made it grow may be in the last block, with its other part behind the old end.
                        size = size_now;
                        len = buffer.len().min((size - offset) as usize);
                        continue;
                    }
                    done += count;
                    if size_now < offset + done as u64 {
                        // A truncation came first: bytes behind its end are free, or of a later append.
                        len = size_now.saturating_sub(offset) as usize;
                        done = len;
                    }
                }
                // Less than was asked for would say that the file ends here, and the kernel would believe it.
                Err(error) => return Err(error.object(format!("inode {} at byte {at}", inode.number))),
            }
        }
        if let Some(now) = now {
            self.note_read(inode, now);
        }
        Ok(done)
    }

    /// Reads the contiguous data from `at` on: its length, and the size of the file after that; `size` was it before.
    #[inline]
    fn read_run(
        &self,
        inode: &Inode,
        map: &BlockMap,
        at: u64,
        buffer: &mut [u8],
        size: u64,
    ) -> Result<(usize, u64)> {
        let within = (at % BLOCK_SIZE) as usize;
        let blocks = ((within + buffer.len()) as u64).div_ceil(BLOCK_SIZE);
        map.read_at(at / BLOCK_SIZE, blocks, |place, len| {
            let count = (len as usize * BLOCK - within).min(buffer.len());
            match place {
                Some(raw) if is_written(raw) => {
                    self.pm.read(media_offset(raw)? + within as u64, &mut buffer[..count])?;
                }
                _ => buffer[..count].fill(0),
            }
            // Before the version is looked at: an operation that grows the size again has changed the leaf before that.
            fence(Ordering::Acquire);
            let mut size_now = inode.size();
            fault!(self.pm, SizeNotReadAgain => size_now = size);
            Ok((count, size_now))
        })
    }

    /// atime follows a read where relatime says so. It is kept in DRAM.
    pub(crate) fn note_read(&self, inode: &Inode, now: Timestamp) {
        if self.read_only || !inode.relatime.is_due(now) {
            return;
        }
        let mut attr = inode.attr.lock();
        attr.atime = now;
        inode.relatime.set(&attr);
        inode.lazy.store(true, Ordering::Release);
    }

    /// Writes. On a full device, existing data may be overwritten with borrowed blocks. With tiers only if `borrows` is
    /// set: when direct reclaim finds no other room.
    pub(crate) fn write(
        &self,
        inode: &Arc<Inode>,
        at: WriteAt,
        data: &[IoSlice<'_>],
        durability: Durability,
        now: Timestamp,
        borrows: bool,
    ) -> Result<u64> {
        self.file(inode)?;
        let purpose = Purpose::of_write(durability);
        let len: u64 = data.iter().map(|slice| slice.len() as u64).sum();
        if durability != Durability::Promised {
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
                    if error.kind() == Kind::NoSpace && !is_freed {
                        // The log found no page for its entries.
                        return self.write_on_full(write, range);
                    }
                    return Err(error);
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

    /// Copies the data to new blocks, with the kept bytes of the old ones.
    pub(crate) fn copy_data(&self, write: &Write<'_>, range: Range, prepared: &mut Prepared) -> Result<()> {
        let map = self.file(write.inode)?;
        let size = prepared.size;
        let mut source = Source::from(write.data, range.before + range.in_place);
        let mut at = range.offset + range.in_place;
        let flushed = &mut prepared.flushed;
        for Target { run, .. } in &prepared.targets {
            let mut media = run.start.offset();
            let media_end = media + run.len * BLOCK_SIZE;
            while media < media_end && at < range.end {
                let within = (at % BLOCK_SIZE) as usize;
                let left = (range.end - at) as usize;
                // A partial block keeps the old bytes before the data, and those behind it up to the size.
                let ends_inside = within + left < BLOCK && range.end < size;
                if within != 0 || ends_inside {
                    let count = left.min(BLOCK - within);
                    let mut block = [0u8; BLOCK];
                    let edge = self.read_edge(map, at / BLOCK_SIZE, size, &mut block)?;
                    prepared.edges.push(edge);
                    source.fill(&mut block[within..within + count]);
                    join(flushed, Some(self.pm.copy(media, &block)?));
                    at += count as u64;
                    media += BLOCK_SIZE;
                    continue;
                }
                // Whole blocks; the last may be short when nothing of the file lies behind it.
                let mut count = left.min((media_end - media) as usize);
                if !count.is_multiple_of(BLOCK) && range.end < size {
                    count -= count % BLOCK;
                }
                let part = source.next(count);
                join(flushed, Some(self.pm.copy(media, part)?));
                let mut copied = part.len();
                while copied < count {
                    let part = source.next(count - copied);
                    join(flushed, Some(self.pm.copy(media + copied as u64, part)?));
                    copied += part.len();
                }
                at += count as u64;
                media += (count as u64).next_multiple_of(BLOCK_SIZE);
            }
        }
        Ok(())
    }

    /// Reads an old block of which a part is kept. Bytes beyond the size, holes and unwritten blocks are zeros.
    fn read_edge(&self, map: &BlockMap, block: u64, size: u64, buffer: &mut [u8; BLOCK]) -> Result<Edge> {
        let version = map.version(block);
        let place = map.read_at(block, 1, |place, _| {
            match place {
                Some(raw) if is_written(raw) => self.pm.read(media_offset(raw)?, buffer)?,
                _ => buffer.fill(0),
            }
            Ok(place)
        })?;
        let valid = size.saturating_sub(block * BLOCK_SIZE).min(BLOCK_SIZE) as usize;
        buffer[valid..].fill(0);
        Ok(Edge { block, place, version })
    }

    /// Commits a write that is prepared, as one operation; the replaced blocks go to `freed`.
    pub(crate) fn commit_write(
        &self,
        write: &Write<'_>,
        mut log: MutexGuard<'_, Log>,
        range: Range,
        prepared: &mut Prepared,
        freed: &mut Freed,
    ) -> Result<Attempt> {
        let Write { inode, data, now, extends } = *write;
        let map = self.file(inode)?;
        let size = inode.size();
        if !extends && range.end > size {
            return Ok(Attempt::Extends);
        }
        let is_outrun = !extends && self.has_grown(range, prepared, size);
        if is_outrun || self.has_other_edges(map, prepared) {
            return Ok(Attempt::Again);
        }
        let mut flushed = prepared.flushed.take();
        let mut changes = Changes::new();
        if extends {
            let gap_end = if range.in_place > 0 { range.offset } else { range.offset.max(size) };
            join(&mut flushed, self.zero_gap(map, size, gap_end)?);
        }
        if range.in_place > 0 {
            let block = range.offset / BLOCK_SIZE;
            let Some(raw) = map.find(block, 1).0.filter(|&raw| is_written(raw)) else {
                return Ok(Attempt::Again);
            };
            let mut source = Source::from(data, range.before);
            let mut at = media_offset(raw)? + range.offset % BLOCK_SIZE;
            let mut left = range.in_place as usize;
            while left > 0 {
                let part = source.next(left);
                join(&mut flushed, Some(self.pm.copy(at, part)?));
                at += part.len() as u64;
                left -= part.len();
            }
            changes.push(Change { start: block, len: 1, place: Some(raw), kept: 1 });
        }
        let mut start = range.first_block();
        for &Target { run, kept } in &prepared.targets {
            let kept = if kept { run.len } else { 0 };
            changes.push(Change { start, len: run.len, place: Some(run.start.0), kept });
            start += run.len;
        }
        if log.index.head == NO_PAGE {
            restate(map, &mut changes);
        }
        fault!(self.pm, EntryBeforeData => flushed = None);
        let after = flushed.map_or_else(Durable::nothing_before, |flushed| self.pm.fence(flushed));
        // Times that changed while this waited stay changed then.
        let now = if range.purpose == Purpose::Promised { now.max(inode.attr.get().ctime) } else { now };
        let pages = range.pages.or(promised(range.purpose));
        let commit = Commit::of(inode, &mut log).pages(pages).after(after);
        commit.changes(self, &changes, size.max(range.end), now, freed)?;
        Ok(Attempt::Done)
    }

    /// Whether bytes beyond the size that a write found may have been written since. A block of which a part is kept has
    /// zeros there, also when it was read after that write: the size was read before.
    fn has_grown(&self, range: Range, prepared: &Prepared, size: u64) -> bool {
        fault!(self.pm, GrowthNotSeen => return false);
        let last_is_short = !range.end.is_multiple_of(BLOCK_SIZE) && range.end >= prepared.size;
        let has_zeros = |edge: &Edge| (edge.block + 1) * BLOCK_SIZE > prepared.size;
        size > prepared.size && (last_is_short || prepared.edges.iter().any(has_zeros))
    }

    /// Whether a block of which a part is kept is another one by now, or has other bytes.
    fn has_other_edges(&self, map: &BlockMap, prepared: &Prepared) -> bool {
        fault!(self.pm, EdgeNotChecked => return false);
        let is_other =
            |edge: &Edge| map.find(edge.block, 1).0 != edge.place || map.version(edge.block) != edge.version;
        prepared.edges.iter().any(is_other)
    }

    /// Zeroes the part of the last block that lies behind the size, before the size grows to `until` or beyond.
    pub(crate) fn zero_gap(&self, map: &BlockMap, size: u64, until: u64) -> Result<Option<Flushed>> {
        fault!(self.pm, GapNotZeroed => return Ok(None));
        let end = until.min(size.next_multiple_of(BLOCK_SIZE));
        if end <= size {
            return Ok(None);
        }
        match map.find(size / BLOCK_SIZE, 1).0 {
            Some(raw) if is_written(raw) => {
                let zeroed = self.pm.zero(media_offset(raw)? + size % BLOCK_SIZE, end - size)?;
                map.note_change(size / BLOCK_SIZE);
                Ok(Some(zeroed))
            }
            _ => Ok(None),
        }
    }

    /// Frees the blocks that a truncation left behind.
    pub(crate) fn finish_trim(&self, inode: &Inode, _extend: &MutexGuard<'_, ()>) {
        let first = inode.trim.load(Ordering::Acquire);
        if first == NO_TRIM {
            return;
        }
        let Ok(map) = inode.file_map() else { return };
        let mut freed = Vec::new();
        {
            let mut log = inode.log.lock();
            if log.state.dead_inode {
                return;
            }
            map.replace(first, MAX_FILE_SIZE / BLOCK_SIZE - first, None, 0, |piece| {
                log.index.release(piece.owner, piece.len);
                freed.push(piece);
            });
            inode.trim.store(NO_TRIM, Ordering::Release);
        }
        for piece in freed {
            inode.blocks.fetch_sub(piece.len, Ordering::Relaxed);
            self.free_piece(piece);
        }
    }
}

impl Commit<'_> {
    /// Commits new places of parts of a file, and its size and times, as one operation; the replaced blocks go to
    /// `freed`.
    pub(crate) fn changes<P: Pm>(
        mut self,
        fs: &Shared<P>,
        changes: &[Change],
        size: u64,
        now: Timestamp,
        freed: &mut Freed,
    ) -> Result<()> {
        let inode = self.inode;
        let map = fs.file(inode)?;
        fs.check_pins(inode, map, changes)?;
        let mut batch = Batch::default();
        let mtime = inode.pack(now);
        for change in changes {
            match change.place {
                Some(raw) => push_extents(&mut batch, change, raw, size, mtime),
                None => batch.push_line(&hole_entry(change, size, mtime)),
            }
        }
        let flushed = self.append(fs, &mut batch)?;
        let log = &mut *self.log;
        // Where the file grows within a block that changes, its end and that block become new at once, and last:
        // otherwise a reader would see a part of the data there, up to the old end.
        let before = inode.size();
        let at_end = (size > before && !before.is_multiple_of(BLOCK_SIZE)).then_some(before / BLOCK_SIZE);
        let mut last = None;
        let mut entry = 0;
        for change in changes {
            let mut at = change.start;
            let end = change.start + change.len;
            while at < end {
                // One entry names any hole, and an extent up to a limit.
                let len = if change.place.is_some() { (end - at).min(MAX_ENTRY_BLOCKS) } else { end - at };
                let owner = batch.placed(entry).0;
                entry += 1;
                match at_end.filter(|block| (at..at + len).contains(block)) {
                    Some(block) => {
                        for part in [change.part(at, block), change.part(block + 1, at + len)] {
                            apply_change(inode, map, log, &part, owner, freed, None);
                        }
                        last = Some((change.part(block, block + 1), owner));
                    }
                    None => apply_change(inode, map, log, &change.part(at, at + len), owner, freed, None),
                }
                at += len;
            }
        }
        if let Some((part, owner)) = last {
            apply_change(inode, map, log, &part, owner, freed, Some(size));
        }
        inode.size.store(size, Ordering::Release);
        if self.pages == Some(Purpose::Promised) {
            inode.touch_late(now);
        } else {
            inode.touch(now);
        }
        fs.pm.fence(flushed);
        Ok(())
    }
}

/// Blocks that one entry can name.
const MAX_ENTRY_BLOCKS: u64 = u32::MAX as u64;

fn push_extents(batch: &mut Batch, change: &Change, raw: u64, size: u64, mtime: u64) {
    let mut done = 0;
    while done < change.len {
        let len = (change.len - done).min(MAX_ENTRY_BLOCKS);
        let mut entry = WriteEntry {
            place: raw + done,
            file_block: change.start + done,
            blocks: len as u32,
            size,
            mtime,
            ..WriteEntry::default()
        };
        entry.header.kind = kind::WRITE;
        batch.push_line(&entry);
        done += len;
    }
}

fn hole_entry(change: &Change, size: u64, mtime: u64) -> crate::format::HoleEntry {
    let mut entry = crate::format::HoleEntry {
        file_block: change.start,
        blocks: change.len,
        size,
        mtime,
        ..crate::format::HoleEntry::default()
    };
    entry.header.kind = kind::HOLE;
    entry
}

/// Changes the index after a commit. The old places of the kept blocks stay allocated; the rest goes to `freed`. If one
/// block changes, readers see the new `size` at the same moment.
pub(crate) fn apply_change(
    inode: &Inode,
    map: &BlockMap,
    log: &mut Log,
    change: &Change,
    owner: u32,
    freed: &mut Freed,
    size: Option<u64>,
) {
    if change.len == 0 {
        return;
    }
    let mut removed = 0;
    let grow = || {
        if let Some(size) = size {
            inode.size.store(size, Ordering::Release);
        }
    };
    if change.place.is_some() {
        log.index.hold(owner, change.len);
    }
    if change.kept > 0 {
        map.replace_and(change.start, change.kept, change.place, owner, grow, |piece| {
            log.index.release(piece.owner, piece.len);
            removed += piece.len;
        });
    }
    if change.len > change.kept {
        let place = change.place.map(|raw| raw + change.kept);
        map.replace_and(change.start + change.kept, change.len - change.kept, place, owner, grow, |piece| {
            log.index.release(piece.owner, piece.len);
            removed += piece.len;
            freed.push(piece);
        });
    }
    let added = if change.place.is_some() { change.len } else { 0 };
    if added != removed {
        inode.blocks.fetch_add(added.wrapping_sub(removed), Ordering::Relaxed);
    }
}

/// While the log is in the inode's few lines: joins the changes with each other and with the extent before them, if
/// they continue it on media. So one entry replaces several, and the lines of these become free.
fn restate(map: &BlockMap, changes: &mut Changes) {
    if changes.len() == 2 && changes[1].kept == 0 && continues(&changes[0], &changes[1]) {
        changes[0].len += changes[1].len;
        changes.pop();
    }
    let [change] = changes.as_mut_slice() else { return };
    let Some(raw) = change.place else { return };
    let leaf_start = change.start - change.start % 512;
    let mut before: Option<Piece> = None;
    map.for_each(leaf_start, change.start - leaf_start, |piece| before = Some(piece));
    if let Some(piece) = before
        && piece.owner >= INLINE
        && piece.start + piece.len == change.start
        && piece.place + piece.len == raw
    {
        *change = Change {
            start: piece.start,
            len: piece.len + change.len,
            place: Some(piece.place),
            kept: piece.len + change.kept,
        };
    }
}

fn continues(first: &Change, second: &Change) -> bool {
    first.start + first.len == second.start
        && first.kept == first.len
        && first.place.is_some_and(|raw| second.place == Some(raw + first.len))
}

pub(crate) fn join(flushed: &mut Option<Flushed>, next: Option<Flushed>) {
    if let Some(next) = next {
        *flushed = Some(match flushed.take() {
            Some(earlier) => earlier.and(next),
            None => next,
        });
    }
}

fn skip(source: &mut Source<'_>, mut count: u64) {
    while count > 0 {
        count -= source.next(count as usize).len() as u64;
    }
}
