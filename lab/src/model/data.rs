//! File contents and space of the reference model.

use std::io::IoSlice;

use nacre_engine::{
    Attr, BLOCK_SIZE, BelowBuffer, Block, Capabilities, Data, Durability, Extents, FallocateMode, FileBlock,
    FsStat, Kind, LINE_SIZE, Place, PlacedExtent, Reservation, Result, SeekTo, TimeRange, Timestamp, WriteAt,
    WriteCost, WriteShape, no_tiers_below_buffer,
};

use super::state::{FileBlockState, Inode, State};
use super::{MAX_FILE_SIZE, MAX_XATTR_SIZE, MemLayout, MemNode};

/// After so many seconds relatime renews atime in any case.
const RELATIME_SECS: i64 = 24 * 3600;

/// The space to reserve: metadata takes none.
const WRITE_COST: WriteCost = WriteCost { block: 1, group: 0, group_blocks: 1, file: 0 };

/// Refuses sizes beyond the largest file.
pub(super) fn check_size(size: u64) -> Result<()> {
    if size > MAX_FILE_SIZE { Err(Kind::FileTooBig.into()) } else { Ok(()) }
}

/// The end of a range, or [`Kind::FileTooBig`].
fn end_of(offset: u64, len: u64) -> Result<u64> {
    let end = offset.checked_add(len).ok_or(Kind::FileTooBig)?;
    check_size(end)?;
    Ok(end)
}

/// The parts of a range that lie in different blocks: (block, first byte in it, length, offset in the range).
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done;
        let within = at % BLOCK_SIZE;
        let count = (BLOCK_SIZE - within).min(len - done);
        let piece = (at / BLOCK_SIZE, within as usize, count as usize, done as usize);
        done += count;
        Some(piece)
    })
}

impl Data for MemLayout {
    fn read(&self, node: &MemNode, offset: u64, buf: &mut [u8], now: Option<Timestamp>) -> Result<usize> {
        let mut state = self.state.lock();
        let inode = state.get_mut(node.number());
        let blocks = inode.blocks()?;
        let len = inode.attr.size.saturating_sub(offset).min(buf.len() as u64);
        for (block, within, count, done) in pieces(offset, len) {
            let to = &mut buf[done..done + count];
            match blocks.get(&block).and_then(|block| block.bytes.as_ref()) {
                Some(bytes) => to.copy_from_slice(&bytes[within..within + count]),
                None => to.fill(0),
            }
        }
        // A read that finds nothing is no access. POSIX says otherwise, but the difference is not visible.
        if let Some(now) = now
            && len > 0
        {
            touch(inode, now);
        }
        Ok(len as usize)
    }

    fn write(
        &self,
        node: &MemNode,
        at: WriteAt,
        data: &[IoSlice<'_>],
        _: Durability,
        now: Timestamp,
    ) -> Result<u64> {
        let bytes: Vec<u8> = data.iter().flat_map(|slice| slice.iter().copied()).collect();
        self.state.lock().write(node.number(), at, &bytes, now)
    }

    fn fallocate(
        &self,
        node: &MemNode,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        now: Timestamp,
    ) -> Result<()> {
        self.state.lock().fallocate(node.number(), mode, offset, len, now)
    }

    fn seek(&self, node: &MemNode, offset: u64, to: SeekTo) -> Result<u64> {
        let state = self.state.lock();
        let inode = state.get(node.number());
        let blocks = inode.blocks()?;
        let size = inode.attr.size;
        if offset >= size {
            return Err(Kind::NoSuchOffset.into());
        }
        let first = offset / BLOCK_SIZE;
        let mut written =
            blocks.range(first..).filter(|(_, block)| block.bytes.is_some()).map(|(&index, _)| index);
        let found = match to {
            SeekTo::Data => written.next().ok_or(Kind::NoSuchOffset)?,
            SeekTo::Hole => {
                let run = written.zip(first..).take_while(|(index, expected)| index == expected).count();
                first + run as u64
            }
        };
        let found = (found * BLOCK_SIZE).max(offset);
        match to {
            SeekTo::Data if found >= size => Err(Kind::NoSuchOffset.into()),
            SeekTo::Data => Ok(found),
            SeekTo::Hole => Ok(found.min(size)),
        }
    }

    fn sync(&self, _node: &MemNode) -> Result<()> {
        Ok(())
    }

    fn closed(&self, _: &MemNode) -> Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> Result<()> {
        Ok(())
    }
}

impl Extents for MemLayout {
    fn resolve(&self, node: &MemNode, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>> {
        let state = self.state.lock();
        let inode = state.get(node.number());
        let blocks = inode.blocks()?;
        let end = start.0.saturating_add(len).min(inode.attr.size.div_ceil(BLOCK_SIZE));
        let mut extents = Vec::new();
        let mut next = start.0;
        for (&index, block) in blocks.range(start.0..end.max(start.0)) {
            if index > next {
                extents.push(PlacedExtent { start: FileBlock(next), len: index - next, place: Place::Hole });
            }
            let at = Block(block.place);
            let place = if block.bytes.is_some() { Place::Pm(at) } else { Place::Unwritten(at) };
            extents.push(PlacedExtent { start: FileBlock(index), len: 1, place });
            next = index + 1;
        }
        if next < end {
            extents.push(PlacedExtent { start: FileBlock(next), len: end - next, place: Place::Hole });
        }
        Ok(extents)
    }

    fn pin(&self, _: &MemNode, _: FileBlock, _: u64) -> Result<Vec<PlacedExtent>> {
        Err(Kind::Unsupported.into())
    }

    fn unpin(&self, _: &MemNode) {}

    fn stat(&self) -> FsStat {
        let state = self.state.lock();
        let reserved = state.reserved_blocks();
        let free = (state.capacity - state.used).saturating_sub(reserved);
        FsStat {
            blocks: state.capacity,
            free,
            available: free,
            reserved,
            inodes: state.max_inodes,
            inodes_free: state.max_inodes - state.inodes.len() as u64,
        }
    }

    fn index_bytes(&self) -> u64 {
        0
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            durable_on_return: true,
            atomic_write: true,
            in_place_feature: 0,
            max_file_size: MAX_FILE_SIZE,
            max_xattr_size: MAX_XATTR_SIZE,
            write_unit: LINE_SIZE,
            write_cost: WRITE_COST,
            max_tiers: 0,
            max_volumes: 1,
            always_indexes_names: true,
        }
    }
}

impl BelowBuffer for MemLayout {
    no_tiers_below_buffer!();

    fn reserve_for(&self, shape: &WriteShape) -> Result<Reservation> {
        let mut state = self.state.lock();
        let blocks = WRITE_COST.of(shape);
        state.check_space(blocks)?;
        state
            .reserved
            .get_or_insert_default()
            .reserve(blocks, || true)
            .ok_or_else(|| unreachable!("they were counted"))
    }

    fn write_back(
        &self,
        node: &MemNode,
        offset: u64,
        data: &[IoSlice<'_>],
        _: &Reservation,
        now: Timestamp,
    ) -> Result<()> {
        let bytes: Vec<u8> = data.iter().flat_map(|slice| slice.iter().copied()).collect();
        let mut state = self.state.lock();
        // Neither flags nor reservations prevent it, and a later ctime stays.
        let reserved = std::mem::take(&mut state.reserved);
        let attr = state.get(node.number()).attr;
        let now = now.max(attr.ctime);
        state.get_mut(node.number()).attr.flags = 0;
        let written = state.write(node.number(), WriteAt::Offset(offset), &bytes, now);
        state.get_mut(node.number()).attr.flags = attr.flags;
        state.reserved = reserved;
        written.map(drop)
    }

    fn write_back_times(
        &self,
        node: &MemNode,
        mtime: Timestamp,
        atime: Option<Timestamp>,
        _: &Reservation,
        now: Timestamp,
    ) -> Result<()> {
        let mut state = self.state.lock();
        let times = TimeRange::default();
        let inode = state.get_mut(node.number());
        inode.attr.mtime = times.clamp(mtime);
        inode.attr.atime = atime.map_or(inode.attr.atime, |time| times.clamp(time));
        inode.changed(now.max(inode.attr.ctime));
        Ok(())
    }
}

/// Sets atime by the rules of relatime.
pub(super) fn touch(inode: &mut Inode, now: Timestamp) {
    let attr = &mut inode.attr;
    let stale = attr.mtime >= attr.atime || attr.ctime >= attr.atime;
    if stale || now.secs - attr.atime.secs >= RELATIME_SECS {
        attr.atime = now;
    }
}

impl State {
    fn write(&mut self, number: u64, at: WriteAt, bytes: &[u8], now: Timestamp) -> Result<u64> {
        let inode = self.get(number);
        let blocks = inode.blocks()?;
        let size = inode.attr.size;
        let (offset, appends) = match at {
            WriteAt::Offset(offset) => (offset, false),
            WriteAt::End => (size, true),
        };
        if inode.has_flag(Attr::IMMUTABLE) || (inode.has_flag(Attr::APPEND_ONLY) && !appends) {
            return Err(Kind::NotPermitted.into());
        }
        let end = end_of(offset, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(offset);
        }
        let new =
            pieces(offset, bytes.len() as u64).filter(|(block, ..)| !blocks.contains_key(block)).count();
        self.check_space(new as u64)?;
        for (block, within, count, done) in pieces(offset, bytes.len() as u64) {
            self.written_block(number, block)[within..within + count]
                .copy_from_slice(&bytes[done..done + count]);
        }
        let inode = self.get_mut(number);
        inode.attr.size = inode.attr.size.max(end);
        inode.modified(now);
        self.recount(number);
        Ok(offset)
    }

    /// The bytes of a block, zeros when it was not written before.
    fn written_block(&mut self, number: u64, block: u64) -> &mut [u8] {
        let place = self.new_place();
        let block =
            self.get_mut(number).blocks_mut().entry(block).or_insert(FileBlockState { place, bytes: None });
        block.bytes.get_or_insert_with(|| vec![0; BLOCK_SIZE as usize].into())
    }

    /// Truncates or extends a file; the bytes cut off read as zeros ever after.
    pub(super) fn resize(&mut self, number: u64, size: u64) {
        let inode = self.get_mut(number);
        let old = inode.attr.size;
        inode.attr.size = size;
        if size <= old {
            // To the same size, too: what was allocated beyond it goes.
            inode.blocks_mut().split_off(&size.div_ceil(BLOCK_SIZE));
            let tail = BLOCK_SIZE - size % BLOCK_SIZE;
            if tail < BLOCK_SIZE {
                self.zero_written(number, size, tail);
            }
        }
        self.recount(number);
    }

    /// Zeroes the bytes of a range, in blocks that were written.
    fn zero_written(&mut self, number: u64, offset: u64, len: u64) {
        let blocks = self.get_mut(number).blocks_mut();
        for (block, within, count, _) in pieces(offset, len) {
            if let Some(bytes) = blocks.get_mut(&block).and_then(|block| block.bytes.as_mut()) {
                bytes[within..within + count].fill(0);
            }
        }
    }

    fn fallocate(
        &mut self,
        number: u64,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        now: Timestamp,
    ) -> Result<()> {
        let inode = self.get(number);
        inode.blocks()?;
        if len == 0 {
            return Err(Kind::InvalidInput.into());
        }
        let erases = !matches!(mode, FallocateMode::Allocate | FallocateMode::AllocateKeepSize);
        if inode.has_flag(Attr::IMMUTABLE) || (erases && inode.has_flag(Attr::APPEND_ONLY)) {
            return Err(Kind::NotPermitted.into());
        }
        let end = end_of(offset, len)?;
        let grows =
            matches!(mode, FallocateMode::Allocate | FallocateMode::ZeroRange) && end > inode.attr.size;
        match mode {
            FallocateMode::Allocate | FallocateMode::AllocateKeepSize => {
                self.allocate(number, offset, end)?;
            }
            FallocateMode::PunchHole => self.erase(number, offset, end),
            FallocateMode::ZeroRange | FallocateMode::ZeroRangeKeepSize => {
                self.allocate(number, offset, end)?;
                self.unwrite(number, offset, end);
            }
        }
        let inode = self.get_mut(number);
        if grows {
            inode.attr.size = end;
        }
        inode.modified(now);
        self.recount(number);
        Ok(())
    }

    /// Allocates every block that a range touches; returns whether one was missing.
    fn allocate(&mut self, number: u64, offset: u64, end: u64) -> Result<()> {
        let (first, last) = (offset / BLOCK_SIZE, end.div_ceil(BLOCK_SIZE));
        let present = self.get(number).blocks()?.range(first..last).count() as u64;
        self.check_space(last - first - present)?;
        for block in first..last {
            let place = self.new_place();
            let blocks = self.get_mut(number).blocks_mut();
            blocks.entry(block).or_insert(FileBlockState { place, bytes: None });
        }
        Ok(())
    }

    /// Frees the whole blocks of a range and zeroes the rest.
    fn erase(&mut self, number: u64, offset: u64, end: u64) {
        let blocks = self.get_mut(number).blocks_mut();
        blocks.retain(|&block, _| block < offset.div_ceil(BLOCK_SIZE) || block >= end / BLOCK_SIZE);
        self.zero_edges(number, offset, end);
    }

    /// Makes the whole blocks of a range unwritten and zeroes the rest.
    fn unwrite(&mut self, number: u64, offset: u64, end: u64) {
        let (first, last) = (offset.div_ceil(BLOCK_SIZE), end / BLOCK_SIZE);
        if first < last {
            let blocks = self.get_mut(number).blocks_mut();
            blocks.range_mut(first..last).for_each(|(_, block)| block.bytes = None);
        }
        self.zero_edges(number, offset, end);
    }

    /// Zeroes the parts of a range that are not whole blocks.
    fn zero_edges(&mut self, number: u64, offset: u64, end: u64) {
        let head = (offset.next_multiple_of(BLOCK_SIZE)).min(end);
        let tail = (end / BLOCK_SIZE * BLOCK_SIZE).max(head);
        for (start, end) in [(offset, head), (tail, end)] {
            self.zero_written(number, start, end - start);
        }
    }
}
