//! Reading and writing files that may be on tiers.

use std::io::IoSlice;

use nacre_engine::sync::Mutex;
use nacre_engine::{
    Attr, BLOCK_SIZE, Data, Durability, Extents, FallocateMode, FileBlock, InodeId, Kind, Place,
    PlacedExtent, Result, SeekTo, TierRun, Tiered, Timestamp, WriteAt, Written,
};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;

use crate::fs::MoverFs;
use crate::keeper::Why;
use crate::pieces;
use crate::predict::Span;
use crate::watch::{Access, Sample, millis};

/// Times that an operation is tried, with the blocks at its edges brought up before each: another thread may move them
/// down in between.
pub(crate) const ATTEMPTS: usize = 16;

/// Blocks of tiers that are freed while this lives are not used again.
pub(crate) struct Reading<'l, L: Tiered> {
    layout: &'l L,
    ticket: u64,
}

impl<'l, L: Tiered> Reading<'l, L> {
    pub(crate) fn begin(layout: &'l L) -> Reading<'l, L> {
        Reading { layout, ticket: layout.begin_reads() }
    }
}

impl<L: Tiered> Drop for Reading<'_, L> {
    fn drop(&mut self) {
        self.layout.end_reads(self.ticket);
    }
}

/// Blocks at the edges of an operation: as long as this lives, direct reclaim demotes others. Otherwise, if PM is
/// small, blocks just promoted would be demoted again, and so on.
pub(crate) struct Held<'f> {
    held: &'f Mutex<Vec<(InodeId, u64)>>,
    id: InodeId,
    blocks: Vec<u64>,
}

impl<'f> Held<'f> {
    /// None yet, of a file.
    pub(crate) fn new(held: &'f Mutex<Vec<(InodeId, u64)>>, id: InodeId) -> Held<'f> {
        Held { held, id, blocks: Vec::new() }
    }

    pub(crate) fn hold(&mut self, blocks: &[u64]) {
        let mut held = self.held.lock();
        for &block in blocks {
            if !self.blocks.contains(&block) {
                self.blocks.push(block);
                held.push((self.id, block));
            }
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.blocks.is_empty() {
            return;
        }
        let mut held = self.held.lock();
        for block in self.blocks.drain(..) {
            // Another operation may hold it, too.
            if let Some(at) = held.iter().position(|one| *one == (self.id, block)) {
                held.swap_remove(at);
            }
        }
    }
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> MoverFs<L, D> {
    /// Reads a range of which some blocks are on tiers, or were a moment ago.
    fn read_from_tiers(
        &self,
        node: &L::Node,
        offset: u64,
        buffer: &mut [u8],
        now: Option<Timestamp>,
    ) -> Result<usize> {
        let size = self.layout.getattr(node)?.size;
        if offset >= size {
            return Ok(0);
        }
        let len = buffer.len().min((size - offset) as usize);
        let ahead = self.read_ahead(node, offset, len as u64, size);
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let count = self.read_piece(node, at, &mut buffer[done..len], ahead)?;
            if count == 0 {
                break;
            }
            done += count;
        }
        // A truncation may have come first: the bytes behind its end are not the file's.
        let size = self.layout.getattr(node)?.size;
        done = done.min(size.saturating_sub(offset) as usize);
        if let Some(now) = now {
            self.layout.note_read(node, now);
        }
        if self.sink.is_on() {
            self.note(node, Access::ReadBelow, offset, done as u64, now);
        }
        Ok(done)
    }

    /// Blocks that are worth fetching at once for a read of these bytes, as far as they lie together; 0 for only the
    /// blocks that are read. Blocks behind them are left to the read-ahead threads.
    fn read_ahead(&self, node: &L::Node, offset: u64, len: u64, size: u64) -> u64 {
        // Nothing is remembered, or nothing is behind it: a file that is read at once takes no room from others.
        if self.tiers.pages().capacity() == 0 || offset == 0 && len == size {
            return 0;
        }
        let span = Span::of(offset, len);
        let id = self.layout.id(node);
        let (now, behind) = self.readers.read(id, span.start, span.len);
        self.ahead.leave(id, behind.start..behind.end.min(size.div_ceil(BLOCK_SIZE)));
        now
    }

    /// On a full file system: writes blocks of a tier that the file has already, allocated and not written. `None` when the
    /// range is not all of that kind.
    pub(crate) fn write_where_allocated(
        &self,
        node: &L::Node,
        at: WriteAt,
        data: &[IoSlice<'_>],
        now: Timestamp,
    ) -> Result<Option<u64>> {
        let len = pieces::length(data);
        let Attr { size, flags, .. } = self.layout.getattr(node)?;
        let offset = match at {
            WriteAt::Offset(offset) => offset,
            // To the layout it is none that appends.
            WriteAt::End if flags & Attr::APPEND_ONLY != 0 => return Ok(None),
            // A concurrent append changes its first block.
            WriteAt::End => size,
        };
        let (first, end) = (offset / BLOCK_SIZE, (offset + len).div_ceil(BLOCK_SIZE));
        // One at a time, or of two that write to one block the second would undo the first.
        let _alone = self.filling.lock();
        let reading = Reading::begin(&self.layout);
        let found = self.layout.resolve_allocated(node, FileBlock(first), end - first)?;
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
        let content = pieces::gather(blocks, (offset % BLOCK_SIZE) as usize, data);
        self.tiers.write(&pieces::split(written.iter().map(|part| part.run), &content))?;
        let flush = || self.tiers.flush(written.iter().map(|part| part.run.tier));
        let publish =
            |proof| self.layout.publish_first_write(node, &written, offset + len, now, proof, false);
        let is_done = match publish(flush()?) {
            // The bytes behind the end of its last block would show: if that is on a tier, it is promoted.
            Err(error) if error.kind() == Kind::Elsewhere => {
                let _moved = self.bring_up(node, FileBlock(size / BLOCK_SIZE), 1)?;
                publish(flush()?)?
            }
            done => done?,
        };
        drop(reading);
        Ok(is_done.then_some(offset))
    }

    /// Writes to PM.
    pub(crate) fn write_to_memory(
        &self,
        node: &L::Node,
        at: WriteAt,
        data: &[IoSlice<'_>],
        durability: Durability,
        now: Timestamp,
    ) -> Result<u64> {
        let len = pieces::length(data);
        let edges = |size: u64| {
            let offset = if let WriteAt::Offset(offset) = at { offset } else { size };
            vec![offset / BLOCK_SIZE, (offset + len).saturating_sub(1) / BLOCK_SIZE]
        };
        let write = || self.layout.write(node, at, data, durability, now);
        let blocks = len / BLOCK_SIZE + 2;
        let is_promised = durability == Durability::Promised && self.has_promised();
        let below = match is_promised && !self.has_room_for_promised(blocks) {
            true => self.write_below(node, at, data, durability, now)?,
            false => None,
        };
        let in_memory = || self.with_edges(node, blocks, durability, edges, write);
        let written = match below.map_or_else(in_memory, Ok) {
            Err(error) if error.kind() == Kind::NoSpace => {
                let written = match self.write_below(node, at, data, durability, now)? {
                    None => self.write_on_full(node, at, data, durability, now)?,
                    written => written,
                };
                written.ok_or(error)?
            }
            other => other?,
        };
        if self.sink.is_on() {
            self.sink.count(Access::Written, len);
            self.note(node, Access::Written, written, len, Some(now));
        }
        Ok(written)
    }

    /// Leaves a sample of blocks that were allocated, as of some that were written: the mover is to know of the file.
    fn note_allocated(&self, node: &L::Node, mode: FallocateMode, offset: u64, len: u64, now: Timestamp) {
        if self.sink.is_on() && mode != FallocateMode::PunchHole {
            self.note(node, Access::Written, offset, len, Some(now));
        }
    }

    /// Leaves a sample of an access.
    fn note(&self, node: &L::Node, access: Access, offset: u64, len: u64, now: Option<Timestamp>) {
        self.sink.note(|| {
            let attr = self.layout.getattr(node).ok()?;
            let start = offset / BLOCK_SIZE;
            Some(Sample {
                id: attr.id,
                access,
                start,
                blocks: (offset + len).div_ceil(BLOCK_SIZE) - start,
                size: attr.size.div_ceil(BLOCK_SIZE),
                modified_ms: millis(attr.mtime),
                at_ms: now.map_or_else(|| self.sink.time_ms(), millis),
            })
        });
    }

    /// Reads the bytes that lie together from `at` on if all of them are in the page cache. The read is not recorded as
    /// a sample: that takes a lock that all reads of tiers share, twice.
    fn read_remembered(
        &self,
        node: &L::Node,
        at: u64,
        buffer: &mut [u8],
        block: u64,
        blocks: u64,
    ) -> Result<Option<usize>> {
        let pages = self.tiers.pages();
        let drops = pages.drops();
        let found = self.layout.resolve(node, FileBlock(block), blocks)?;
        let Some(PlacedExtent { start, len, place: Place::Tier { tier, block: first } }) =
            found.first().copied()
        else {
            return Ok(None);
        };
        let count = buffer.len().min(((start.0 + len - block) * BLOCK_SIZE - at % BLOCK_SIZE) as usize);
        let on_tier = first.offset() + (at - start.offset());
        if !pages.read_unannounced(tier, on_tier, &mut buffer[..count], drops) {
            return Ok(None);
        }
        self.sink.count(Access::ReadBelow, count as u64);
        Ok(Some(count))
    }

    /// Reads the bytes that lie together from `at` on, and some blocks `ahead`; 0 at the end of the file.
    fn read_piece(&self, node: &L::Node, at: u64, buffer: &mut [u8], ahead: u64) -> Result<usize> {
        let block = at / BLOCK_SIZE;
        let blocks = (at + buffer.len() as u64).div_ceil(BLOCK_SIZE) - block;
        if let Some(count) = self.read_remembered(node, at, buffer, block, blocks)? {
            return Ok(count);
        }
        loop {
            let reading = Reading::begin(&self.layout);
            // The blocks behind it on the tier may be read ahead.
            let found = self.layout.resolve(node, FileBlock(block), blocks + ahead)?;
            let Some(PlacedExtent { start, len, place }) = found.first().copied() else { return Ok(0) };
            let here = start.0 + len - block;
            let count = buffer.len().min((here * BLOCK_SIZE - at % BLOCK_SIZE) as usize);
            if let Place::Tier { tier, block: first } = place {
                let extent = TierRun { tier, start: first, len };
                let on_tier = first.offset() + (at - start.offset());
                let id = self.layout.id(node);
                let missed =
                    self.tiers.read(on_tier, &mut buffer[..count], extent, ahead).map_err(|error| {
                        error.operation("read").object(format!("inode {} at byte {at}", id.number))
                    })?;
                self.sink.count(Access::ReadBelow, count as u64);
                // A sequential reader waits seldom, on any tier.
                if missed > 0 && ahead == 0 && self.sink.is_on() {
                    self.missed.note(id, Span::of(at, count as u64), missed);
                }
                return Ok(count);
            }
            drop(reading);
            match self.layout.read(node, at, &mut buffer[..count], None) {
                // It was moved since.
                Err(error) if error.kind() == Kind::Elsewhere => {}
                read => {
                    let count = read?;
                    self.sink.count(Access::Read, count as u64);
                    return Ok(count);
                }
            }
        }
    }

    /// Runs `act`, which fails if it keeps a part of a block that is on a tier. Then the blocks at its edges, which
    /// `edges` gives for the size of the file, and the last block of the file are promoted, and it is run again. If it
    /// finds no space for the `blocks` that it needs, others are demoted first.
    pub(crate) fn with_edges<T>(
        &self,
        node: &L::Node,
        blocks: u64,
        durability: Durability,
        edges: impl Fn(u64) -> Vec<u64>,
        act: impl Fn() -> Result<T>,
    ) -> Result<T> {
        let mut held = Held::new(&self.held, self.layout.id(node));
        for _ in 0..ATTEMPTS {
            match act() {
                Err(error) if error.kind() == Kind::Elsewhere => {}
                Err(error) if error.kind() == Kind::NoSpace && self.sink.is_on() => {
                    if !self.make_room(blocks, Why::room_for(durability))? {
                        return Err(error);
                    }
                    continue;
                }
                other => return other,
            }
            let size = self.layout.getattr(node)?.size;
            let mut edges = edges(size);
            edges.push(size / BLOCK_SIZE);
            held.hold(&edges);
            for block in edges {
                let up = || self.bring_up_from(node, FileBlock(block), 1, durability, |_| true);
                self.with_room_for(Why::room_for(durability), up)?;
            }
        }
        act()
    }
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Data for MoverFs<L, D> {
    fn read(&self, node: &L::Node, offset: u64, buf: &mut [u8], now: Option<Timestamp>) -> Result<usize> {
        match self.layout.read(node, offset, buf, now) {
            Err(error) if error.kind() == Kind::Elsewhere => self.read_from_tiers(node, offset, buf, now),
            Ok(count) if self.sink.is_on() => {
                self.sink.count(Access::Read, count as u64);
                self.note(node, Access::Read, offset, count as u64, now);
                Ok(count)
            }
            other => other,
        }
    }

    fn write(
        &self,
        node: &L::Node,
        at: WriteAt,
        data: &[IoSlice<'_>],
        durability: Durability,
        now: Timestamp,
    ) -> Result<u64> {
        match at {
            // It was noted when it was accepted.
            WriteAt::Offset(offset) if self.sink.is_on() && self.may_go_to_disk(data, durability) => {
                self.write_where_it_belongs(node, offset, data, durability, now)?;
                Ok(offset)
            }
            _ => {
                let written = self.write_to_memory(node, at, data, durability, now)?;
                if self.sink.is_on() {
                    let len = pieces::length(data);
                    let (id, durable) = (self.layout.id(node), durability == Durability::Now);
                    self.predictors.wrote(id, Span::of(written, len), durable);
                }
                Ok(written)
            }
        }
    }

    fn goes_to_disk(&self, node: &L::Node, offset: u64, len: u64) -> bool {
        self.is_for_disk(node, offset, len)
    }

    fn accepted(&self, node: &L::Node, offset: u64, len: u64) {
        if self.sink.is_on() {
            self.predictors.wrote(self.layout.id(node), Span::of(offset, len), false);
        }
    }

    fn expect_write(&self, node: &L::Node) -> Result<()> {
        self.with_room(|| self.layout.expect_write(node))
    }

    fn give_up_dram(&self) {
        self.tiers.pages().give_up();
    }

    fn fallocate(
        &self,
        node: &L::Node,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        now: Timestamp,
    ) -> Result<()> {
        let edges = |_: u64| vec![offset / BLOCK_SIZE, offset.saturating_add(len) / BLOCK_SIZE];
        let blocks = if mode == FallocateMode::PunchHole { 0 } else { len / BLOCK_SIZE + 2 };
        let allocate = || self.layout.fallocate(node, mode, offset, len, now);
        let act = || self.beside_promises(blocks, || self.on_usable(allocate));
        match act() {
            Err(error) if error.kind() == Kind::NoSpace => {
                // Of all that it wants the file has no more than it has.
                let has = self.layout.getattr(node)?.allocated.div_ceil(BLOCK_SIZE);
                if blocks.saturating_sub(has + 2) > self.stat().available {
                    return Err(error);
                }
            }
            Err(error) if error.kind() == Kind::Elsewhere => {}
            done => {
                done?;
                self.note_allocated(node, mode, offset, len, now);
                return Ok(());
            }
        }
        // Blocks without a place in PM have one on tiers: only those at the edges need PM.
        self.with_edges(node, 2, Durability::Now, edges, act)?;
        self.note_allocated(node, mode, offset, len, now);
        Ok(())
    }

    fn seek(&self, node: &L::Node, offset: u64, to: SeekTo) -> Result<u64> {
        self.layout.seek(node, offset, to)
    }

    fn write_unit(&self) -> u64 {
        self.layout.write_unit()
    }

    fn sync(&self, node: &L::Node) -> Result<()> {
        if self.sink.is_on() {
            self.predictors.synced(self.layout.id(node));
        }
        self.layout.sync(node)
    }

    fn closed(&self, node: &L::Node) -> Result<()> {
        self.layout.closed(node)
    }

    fn sync_all(&self) -> Result<()> {
        self.layout.sync_all()
    }
}
