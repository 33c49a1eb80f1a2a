//! Sizes, attributes, allocation and holes.

use std::ops::Range;
use std::sync::Arc;

use nacre_engine::sync::MutexGuard;
use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{
    Attr, BLOCK_SIZE, Error, FallocateMode, FileBlock, FileKind, Kind, Place, PlacedExtent, Result, SeekTo,
    SetAttr, Timestamp, unless_full,
};
use nacre_layout_parts::ranges::{edges, whole_blocks};
use nacre_layout_parts::rules::{InodeFacts, check_fallocate};
use nacre_media::{Durable, Flushed, Pm};

use crate::alloc::{Purpose, Runs};
use crate::attributes::Attributes;
use crate::batch::Batch;
use crate::blockmap::{BlockMap, Piece};
use crate::commit::Commit;
use crate::file::{Change, Changes, Freed, join};
use crate::format::{MAX_FILE_SIZE, flag, place};
use crate::fs::Shared;
use crate::inode::{Body, FREE_AT_ONCE, Inode, NO_TRIM};
use crate::places::{follows, is_written, media_offset, place_of};

impl<P: Pm> Shared<P> {
    pub(crate) fn setattr(&self, inode: &Arc<Inode>, change: &SetAttr, now: Timestamp) -> Result<Attr> {
        change.check_times(self.times)?;
        inode.check_flags(change.forbidden_by())?;
        if inode.kind == FileKind::Regular && change.guards() {
            self.superblock.lock().note_guarded(&*self.pm)?;
        }
        match change.size {
            None => {
                let mut log = inode.log.lock();
                let before = inode.attr.get();
                let after = before.after(change, now, false);
                let commit = Commit::of(inode, &mut log);
                commit.attributes(self, (before, after), inode.size(), 0)?;
            }
            Some(size) => self.set_size(inode, size, change, now)?,
        }
        Ok(inode.attr())
    }

    /// Writes back times.
    pub(crate) fn write_back_times(
        &self,
        inode: &Arc<Inode>,
        mtime: Timestamp,
        atime: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<()> {
        let mut log = inode.log.lock();
        let before = inode.attr.get();
        let after = before.written_back(mtime, atime, now);
        let commit = Commit::of(inode, &mut log).pages(Purpose::Reserved);
        commit.attributes(self, (before, after), inode.size(), 0)
    }

    fn set_size(&self, inode: &Arc<Inode>, size: u64, change: &SetAttr, now: Timestamp) -> Result<()> {
        let map = self.file(inode)?;
        inode.check_flags(Attr::IMMUTABLE | Attr::APPEND_ONLY)?;
        if size > MAX_FILE_SIZE {
            return Err(Error::new(Kind::FileTooBig));
        }
        let extend = inode.extend.lock();
        self.finish_trim(inode, &extend);
        let mut log = inode.log.lock();
        let old = inode.size();
        let before = inode.attr.get();
        let attributes = (before, before.after(change, now, true));
        let gap = if size > old { self.zero_gap(inode, old, size)? } else { None };
        let after = gap.map_or_else(Durable::nothing_before, |gap| self.pm.fence(gap));
        let first = size.div_ceil(BLOCK_SIZE);
        // To the same size, too: blocks that were allocated beyond it go.
        let cuts = size < old || size == old && map.next_mapped(first).is_some();
        if cuts && inode.pins.load(Ordering::Acquire) > 0 {
            return Err(pinned());
        }
        let truncates = if cuts { flag::TRUNCATE } else { 0 };
        Commit::of(inode, &mut log).after(after).attributes(self, attributes, size, truncates)?;
        if cuts {
            // Under the log's lock: a collection of the log must know. Otherwise its copies would say behind the
            // truncation that these blocks are the file's.
            inode.trim.store(first, Ordering::Release);
        }
        drop(log);
        if cuts {
            self.trim(inode, &extend);
        }
        Ok(())
    }

    /// Frees the blocks that a truncation has cut off, at once when they are few.
    fn trim(&self, inode: &Arc<Inode>, extend: &MutexGuard<'_, ()>) {
        if self.background && inode.blocks.load(Ordering::Relaxed) > FREE_AT_ONCE {
            self.trims.lock().push(Arc::clone(inode));
            self.graveyard.nudge();
        } else {
            self.finish_trim(inode, extend);
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
            self.versions_of(inode).change(first..MAX_FILE_SIZE / BLOCK_SIZE);
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

    /// Writes attributes that are newer in DRAM to the log.
    pub(crate) fn persist_lazy(&self, inode: &Inode) -> Result<()> {
        if !inode.lazy.load(Ordering::Acquire) || self.read_only {
            return Ok(());
        }
        let mut log = inode.log.lock();
        if log.state.dead_inode {
            // Its last name went meanwhile, and its times are not needed any more.
            return Ok(());
        }
        let attributes = inode.attr.get();
        // These times may be older after a crash. On a full device, where no log finds a page for them, they stay in
        // DRAM: that is no reason to tell a sync that data is missing.
        for pages in [None, Some(Purpose::Overwrite)] {
            let commit = Commit::of(inode, &mut log).pages(pages);
            let committed = commit.attributes(self, (attributes, attributes), inode.size(), 0);
            if unless_full(committed)?.is_some() {
                break;
            }
        }
        Ok(())
    }

    pub(crate) fn fallocate(
        &self,
        inode: &Arc<Inode>,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        now: Timestamp,
    ) -> Result<()> {
        let map = self.file(inode)?;
        let end = check_fallocate(inode.flags(), mode, offset, len, MAX_FILE_SIZE)?;
        let extend = inode.extend.lock();
        self.finish_trim(inode, &extend);
        let mut log = inode.log.lock();
        let size = inode.size();
        let new_size = match mode {
            FallocateMode::Allocate | FallocateMode::ZeroRange => size.max(end),
            _ => size,
        };
        let mut freed = Freed::new();
        let mut plan = Plan::new(map, offset..end, size, new_size);
        let mut is_planned = false;
        let result = self.plan_fallocate(inode, mode, &mut plan).and_then(|()| {
            is_planned = true;
            let after =
                plan.flushed.take().map_or_else(Durable::nothing_before, |flushed| self.pm.fence(flushed));
            let commit = Commit::of(inode, &mut log).after(after);
            if plan.changes.is_empty() {
                // The times change all the same, as with the kernel's file systems.
                let change = SetAttr { size: Some(new_size), ..SetAttr::default() };
                let before = inode.attr.get();
                return commit.attributes(self, (before, before.after(&change, now, true)), new_size, 0);
            }
            self.note_changes(inode, &plan.changes);
            commit.changes(self, &plan.changes, new_size, now, &mut freed)
        });
        drop(log);
        match result {
            Ok(()) => freed.into_iter().for_each(|piece| self.free_piece(piece)),
            // It is unknown whether the entry that names them is there.
            Err(error) if is_planned && error.kind() == Kind::Media => return Err(error),
            Err(error) => {
                self.drop_plan(plan);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Frees the blocks that a plan has taken.
    fn drop_plan(&self, plan: Plan<'_>) {
        self.free_runs(&plan.allocated);
        for (place, len) in plan.unwritten {
            self.free_piece(Piece { start: 0, len, place, owner: 0 });
        }
    }

    fn plan_fallocate(&self, inode: &Inode, mode: FallocateMode, plan: &mut Plan<'_>) -> Result<()> {
        let (map, Range { start: offset, end }) = (plan.map, plan.bytes.clone());
        if plan.new_size > plan.size {
            join(&mut plan.flushed, self.zero_gap(inode, plan.size, plan.new_size)?);
        }
        match mode {
            FallocateMode::Allocate | FallocateMode::AllocateKeepSize => {
                self.plan_holes(offset / BLOCK_SIZE, end.div_ceil(BLOCK_SIZE), plan)
            }
            FallocateMode::PunchHole => {
                let Range { start: first, end: last } = self.plan_edges(plan)?;
                if first < last && map.next_mapped(first).is_some_and(|(block, _)| block < last) {
                    plan.changes.push(Change { start: first, len: last - first, place: None, kept: 0 });
                }
                Ok(())
            }
            FallocateMode::ZeroRange | FallocateMode::ZeroRangeKeepSize => {
                let Range { start: first, end: last } = self.plan_edges(plan)?;
                let mut pieces = Vec::new();
                if first < last {
                    map.for_each(first, last - first, |piece| pieces.push(piece));
                }
                for piece in pieces.into_iter().filter(|piece| is_written(piece.place)) {
                    if place::tier(piece.place) != 0 {
                        self.plan_unwritten(piece.start, piece.len, plan)?;
                        continue;
                    }
                    // The same blocks, not written any more.
                    let place = Some(piece.place | place::UNWRITTEN);
                    plan.changes.push(Change { start: piece.start, len: piece.len, place, kept: piece.len });
                }
                // The blocks at the edges are there already, or are allocated like the rest.
                self.plan_holes(offset / BLOCK_SIZE, end.div_ceil(BLOCK_SIZE), plan)
            }
        }
    }

    /// Plans unwritten blocks for the holes in `first..last`.
    fn plan_holes(&self, first: u64, last: u64, plan: &mut Plan<'_>) -> Result<()> {
        let mut holes = Vec::new();
        let mut at = first;
        plan.map.for_each(first, last - first, |piece: Piece| {
            if piece.start > at {
                holes.push((at, piece.start - at));
            }
            at = piece.start + piece.len;
        });
        if at < last {
            holes.push((at, last - at));
        }
        holes.into_iter().try_for_each(|(start, len)| self.plan_unwritten(start, len, plan))
    }

    /// Plans unwritten blocks for a range.
    fn plan_unwritten(&self, mut start: u64, len: u64, plan: &mut Plan<'_>) -> Result<()> {
        for (raw, len) in self.allocate_unwritten(plan.map, start, len)? {
            plan.unwritten.push((raw, len));
            plan.changes.push(Change { start, len, place: Some(raw), kept: 0 });
            start += len;
        }
        Ok(())
    }

    /// Plans zeros for the parts of blocks at the edges of the range; gives the whole blocks between them.
    fn plan_edges(&self, plan: &mut Plan<'_>) -> Result<Range<u64>> {
        let Range { start: offset, end } = plan.bytes;
        // Bytes behind the size need no zeros: no reader gets them before they are zeroed.
        for (block, Range { start: from, end: to }) in edges(offset, end) {
            let Some(raw) = plan.map.find(block, 1).0.filter(|&raw| is_written(raw)) else { continue };
            if block * BLOCK_SIZE + from >= plan.size {
                continue;
            }
            let mut bytes = [0u8; BLOCK_SIZE as usize];
            self.pm.read(media_offset(raw)?, &mut bytes)?;
            bytes[from as usize..to as usize].fill(0);
            let mut runs = Runs::new();
            // The block that it replaces is free again with the commit.
            self.alloc.allocate(1, Purpose::Overwrite, &mut runs)?;
            let start = runs[0].start;
            plan.allocated.extend(runs);
            join(&mut plan.flushed, Some(self.pm.copy(start.offset(), &bytes)?));
            plan.changes.push(Change { start: block, len: 1, place: Some(start.0), kept: 0 });
        }
        Ok(whole_blocks(offset, end))
    }

    pub(crate) fn seek(&self, inode: &Inode, offset: u64, to: SeekTo) -> Result<u64> {
        let map = self.file(inode)?;
        let size = inode.size();
        if offset >= size {
            return Err(Error::new(Kind::NoSuchOffset));
        }
        let mut at = offset;
        while at < size {
            let block = at / BLOCK_SIZE;
            let (place, len) = map.find(block, u64::MAX);
            let is_data = place.is_some_and(is_written);
            if is_data == (to == SeekTo::Data) {
                return Ok(at);
            }
            let next = match (place, map.next_mapped(block)) {
                (Some(_), _) => block + len,
                (None, Some((next, _))) => next.max(block + 1),
                (None, None) => break,
            };
            at = next * BLOCK_SIZE;
        }
        match to {
            SeekTo::Data => Err(Error::new(Kind::NoSuchOffset)),
            SeekTo::Hole => Ok(size),
        }
    }

    /// The places of a file's blocks.
    pub(crate) fn resolve(&self, inode: &Inode, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>> {
        self.resolve_to(inode, start, len, inode.size().div_ceil(BLOCK_SIZE))
    }

    /// The places of a file's blocks, clipped to its first `blocks`.
    pub(crate) fn resolve_to(
        &self,
        inode: &Inode,
        start: FileBlock,
        len: u64,
        blocks: u64,
    ) -> Result<Vec<PlacedExtent>> {
        let map = match &inode.body {
            Body::File(_) if inode.kind == FileKind::Regular => self.file(inode)?,
            Body::File(map) => map,
            _ => return Ok(Vec::new()),
        };
        let _log = inode.log.lock();
        let end = start.0.saturating_add(len).min(blocks);
        let mut extents: Vec<PlacedExtent> = Vec::new();
        let mut push = |start: u64, len: u64, place: Place| {
            if let Some(last) = extents.last_mut()
                && last.start.0 + last.len == start
                && follows(last, place)
            {
                last.len += len;
                return;
            }
            extents.push(PlacedExtent { start: FileBlock(start), len, place });
        };
        let mut at = start.0;
        if at < end {
            map.for_each(start.0, end - start.0, |piece| {
                if piece.start > at {
                    push(at, piece.start - at, Place::Hole);
                }
                push(piece.start, piece.len, place_of(piece.place));
                at = piece.start + piece.len;
            });
            if at < end {
                push(at, end - at, Place::Hole);
            }
        }
        Ok(extents)
    }
}

impl<P: Pm> Shared<P> {
    /// Holds the blocks of a file where they are, and says where that is.
    pub(crate) fn pin(&self, inode: &Inode, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>> {
        self.file(inode)?;
        let extend = inode.extend.lock();
        self.finish_trim(inode, &extend);
        {
            let _log = inode.log.lock();
            inode.pins.fetch_add(1, Ordering::AcqRel);
        }
        self.resolve(inode, start, len).inspect_err(|_| inode.unpin())
    }

    /// Ends one hold. Stores through it changed the blocks without a commit: copies of them that were made before are
    /// refused, be they those of the mover, or edges of a write.
    pub(crate) fn unpin(&self, inode: &Inode) {
        let _log = inode.log.lock();
        self.versions_of(inode).change(0..MAX_FILE_SIZE / BLOCK_SIZE);
        if let Ok(map) = inode.file_map() {
            map.note_all_changes();
        }
        inode.unpin();
    }

    /// Fails when these changes would free a mapped block. Under the log's lock.
    pub(crate) fn check_pins(&self, inode: &Inode, map: &BlockMap, changes: &[Change]) -> Result<()> {
        if inode.pins.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let mut moves = false;
        for change in changes {
            map.for_each(change.start, change.len, |piece| {
                let stays = change.place.map(|raw| raw + (piece.start - change.start));
                moves |= is_written(piece.place) && stays != Some(piece.place);
            });
        }
        if moves { Err(pinned()) } else { Ok(()) }
    }
}

impl Commit<'_> {
    /// Commits all attributes, which were as the first and shall be as the second, with a size, as one operation.
    fn attributes<P: Pm>(
        mut self,
        fs: &Shared<P>,
        (before, attributes): (Attributes, Attributes),
        size: u64,
        flags: u8,
    ) -> Result<()> {
        let inode = self.inode;
        let mut entry = inode.attr_entry(&attributes, size);
        entry.header.flags = flags;
        let mut batch = Batch::default();
        batch.push_line(&entry);
        let flushed = self.append(fs, &mut batch)?;
        if inode.kind == FileKind::Regular {
            inode.size.store(size, Ordering::Release);
        }
        let mut attr = inode.attr.lock();
        // Without the log, a read may have moved atime meanwhile: the change wins only where it says something about
        // it.
        let read_since = attr.atime != before.atime && attributes.atime == before.atime;
        // So may a change of links have moved ctime: the later one stays.
        let linked_since = attr.ctime != before.ctime && attr.ctime > attributes.ctime;
        *attr = Attributes {
            atime: if read_since { attr.atime } else { attributes.atime },
            ctime: if linked_since { attr.ctime } else { attributes.ctime },
            ..attributes
        };
        inode.lazy.store(read_since || linked_since, Ordering::Release);
        inode.flags.store(attributes.flags, Ordering::Release);
        inode.relatime.set(&attr);
        drop(attr);
        fs.pm.fence(flushed);
        Ok(())
    }
}

/// The error of an operation that would free a mapped block.
fn pinned() -> Error {
    Error::new(Kind::Busy).advice("a program has mapped the file; it must unmap it first")
}

/// The changes that fallocate will commit to a range of a file.
struct Plan<'a> {
    map: &'a BlockMap,
    /// The range, in bytes.
    bytes: Range<u64>,
    /// The size of the file, before and after.
    size: u64,
    new_size: u64,
    changes: Changes,
    allocated: Runs,
    /// The other allocations: places, and blocks there.
    unwritten: Vec<(u64, u64)>,
    flushed: Option<Flushed>,
}

impl<'a> Plan<'a> {
    /// Nothing yet.
    fn new(map: &'a BlockMap, bytes: Range<u64>, size: u64, new_size: u64) -> Plan<'a> {
        let (changes, allocated, unwritten) = (Changes::new(), Runs::new(), Vec::new());
        Plan { map, bytes, size, new_size, changes, allocated, unwritten, flushed: None }
    }
}
