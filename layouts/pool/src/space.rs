//! Sizes, attributes, allocation and holes.

use std::ops::Range;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{
    Attr, BLOCK_SIZE, Block, Error, FallocateMode, FileBlock, FileKind, Kind, Place, PlacedExtent, Result,
    SeekTo, SetAttr, Timestamp,
};
use nacre_layout_parts::ranges::{edges, whole_blocks};
use nacre_layout_parts::rules::{check_fallocate, check_flags};
use nacre_layout_parts::tree::edit::join;
use nacre_media::Pm;

use crate::blockmap::Piece;
use crate::commit::Change;
use crate::counts::{Purpose, Runs};
use crate::file::check_pins;
use crate::format::{GROUP_BLOCKS, MAX_FILE_SIZE, RawInode, compatible};
use crate::fs::Shared;
use crate::held::HeldInode;
use crate::places::Places;

/// Blocks of a file that one operation frees. A file with more is freed in several.
pub(crate) const STEP: u64 = 4096 * GROUP_BLOCKS;
/// Behind the last block of any file.
const MAX_BLOCKS: u64 = MAX_FILE_SIZE / BLOCK_SIZE;

impl<P: Pm> Shared<P> {
    pub(crate) fn setattr(&self, inode: &HeldInode, change: &SetAttr, now: Timestamp) -> Result<Attr> {
        change.check_times(self.times)?;
        let _lock = self.lock(&[inode.number]);
        let raw = self.read_inode(inode.number)?;
        check_flags(raw.flags, change.forbidden_by())?;
        if inode.kind == FileKind::Regular && change.guards() {
            self.note_guarded()?;
        }
        if let Some(size) = change.size {
            inode.check_file()?;
            check_flags(raw.flags, Attr::IMMUTABLE | Attr::APPEND_ONLY)?;
            if size > MAX_FILE_SIZE {
                return Err(Error::new(Kind::FileTooBig));
            }
            if size < raw.size {
                check_pins(inode)?;
            }
        }
        self.change(|operation| {
            let number = inode.number;
            let raw = *operation.edit(number)?;
            if let Some(size) = change.size {
                operation.set_size(number, &raw, size)?;
            }
            let new = operation.edit(number)?;
            self.put_attributes(new, change, now);
            operation.commit()
        })?;
        if let Some(size) = change.size.filter(|&size| size <= raw.size) {
            self.free_behind(inode.number, size)?;
        }
        self.attr(inode.number, &self.read_inode(inode.number)?)
    }

    /// Writes back times that were accepted before: ctime does not go back.
    pub(crate) fn write_back_times(
        &self,
        inode: &HeldInode,
        mtime: Timestamp,
        atime: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<()> {
        let _lock = self.lock(&[inode.number]);
        self.change(|change| {
            let new = change.edit(inode.number)?;
            new.mtime = self.times.pack(mtime);
            new.atime = atime.map_or(new.atime, |time| self.times.pack(time));
            new.changed(self.later(self.times.pack(now), new.ctime));
            change.commit()
        })
    }

    /// A regular file was made immutable or append-only: that is on media when this returns.
    fn note_guarded(&self) -> Result<()> {
        if self.row.lock().features_compatible & compatible::GUARDED != 0 {
            return Ok(());
        }
        self.change_row(|row| row.features_compatible |= compatible::GUARDED)
    }

    fn put_attributes(&self, raw: &mut RawInode, change: &SetAttr, now: Timestamp) {
        let packed = self.times.pack(now);
        raw.mode = change.mode.map_or(raw.mode, |mode| (mode & 0o7777) as u16);
        raw.uid = change.uid.unwrap_or(raw.uid);
        raw.gid = change.gid.unwrap_or(raw.gid);
        raw.flags = change.flags.unwrap_or(raw.flags);
        if change.size.is_some() {
            raw.mtime = packed;
        }
        raw.mtime = change.mtime.map_or(raw.mtime, |time| self.times.pack(time));
        raw.atime = change.atime.map_or(raw.atime, |time| self.times.pack(time));
        raw.changed(packed);
    }

    /// Frees the blocks that are wholly behind the size, in as many operations as it takes. Under the inode's lock.
    fn free_behind(&self, number: u64, size: u64) -> Result<()> {
        let mut at = size.div_ceil(BLOCK_SIZE);
        loop {
            let raw = self.read_inode(number)?;
            let Some(piece) = self.first_piece(self.tree(number, &raw)?, at, MAX_BLOCKS)? else {
                return Ok(());
            };
            at = (piece.start + STEP).min(MAX_BLOCKS);
            self.clear(number, piece.start, at)?;
        }
    }

    /// Makes a range of blocks a hole, beside everything else. Under the inode's lock.
    pub(crate) fn clear(&self, number: u64, first: u64, last: u64) -> Result<()> {
        self.change(|change| {
            change.clear(number, first, last)?;
            change.commit()
        })
    }

    pub(crate) fn fallocate(
        &self,
        inode: &HeldInode,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        now: Timestamp,
    ) -> Result<()> {
        inode.check_file()?;
        let _lock = self.lock(&[inode.number]);
        let number = inode.number;
        let raw = self.read_inode(number)?;
        let end = check_fallocate(raw.flags, mode, offset, len, MAX_FILE_SIZE)?;
        let allocates = matches!(mode, FallocateMode::Allocate | FallocateMode::AllocateKeepSize);
        if !allocates {
            check_pins(inode)?;
        }
        let mut at = offset;
        if mode == FallocateMode::PunchHole {
            // Of very large holes all but the last part, which has the edges.
            let blocks = whole_blocks(offset, end);
            let mut first = blocks.start;
            while blocks.end.saturating_sub(first) > STEP {
                self.clear(number, first, first + STEP)?;
                first += STEP;
                at = first * BLOCK_SIZE;
            }
        }
        let grows = matches!(mode, FallocateMode::Allocate | FallocateMode::ZeroRange);
        let range = (offset / BLOCK_SIZE, end.div_ceil(BLOCK_SIZE));
        self.change(|change| {
            let raw = *change.edit(number)?;
            let size = if grows { raw.size.max(end) } else { raw.size };
            let tree = self.tree(number, &raw)?;
            let mut places = change.places(&raw, tree, range, size)?;
            if !allocates {
                change.zero_edges(&mut places, (raw.size, size), (offset, end))?;
                let Range { start: first, end: last } = whole_blocks(at, end);
                if mode == FallocateMode::PunchHole {
                    places.set(first, last, []);
                } else {
                    places.unwrite(first, last);
                }
            }
            if mode != FallocateMode::PunchHole {
                change.fill_holes(&mut places, range.0, range.1)?;
            }
            change.put_places(number, tree, &places, Purpose::Metadata)?;
            let new = change.edit(number)?;
            new.size = size;
            new.modified(self.times.pack(now));
            change.commit()
        })
    }

    pub(crate) fn seek(&self, inode: &HeldInode, offset: u64, to: SeekTo) -> Result<u64> {
        inode.check_file()?;
        let _lock = self.read_lock(inode.number);
        let raw = self.read_inode(inode.number)?;
        if offset >= raw.size {
            return Err(Error::new(Kind::NoSuchOffset));
        }
        let tree = self.tree(inode.number, &raw)?;
        let end = raw.size.div_ceil(BLOCK_SIZE);
        let mut block = offset / BLOCK_SIZE;
        while block < end {
            match (self.first_piece(tree, block, end)?, to) {
                (None, SeekTo::Hole) => return Ok((block * BLOCK_SIZE).max(offset)),
                (None, SeekTo::Data) => return Err(Error::new(Kind::NoSuchOffset)),
                (Some(piece), SeekTo::Hole) if piece.start > block || !piece.is_written => {
                    return Ok((block * BLOCK_SIZE).max(offset));
                }
                (Some(piece), SeekTo::Data) if piece.is_written => {
                    return Ok((piece.start.max(block) * BLOCK_SIZE).max(offset));
                }
                (Some(piece), _) => block = piece.end(),
            }
        }
        match to {
            SeekTo::Data => Err(Error::new(Kind::NoSuchOffset)),
            SeekTo::Hole => Ok(raw.size),
        }
    }

    /// Holds the blocks of a file where they are, and says where that is.
    pub(crate) fn pin(&self, inode: &HeldInode, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>> {
        inode.check_file()?;
        {
            let _lock = self.lock(&[inode.number]);
            inode.pins.fetch_add(1, Ordering::AcqRel);
        }
        self.resolve(inode, start, len).inspect_err(|_| inode.unpin())
    }

    pub(crate) fn resolve(&self, inode: &HeldInode, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>> {
        let mut extents = Vec::new();
        if inode.kind != FileKind::Regular {
            return Ok(extents);
        }
        let _lock = self.read_lock(inode.number);
        let raw = self.read_inode(inode.number)?;
        let end = start.0.saturating_add(len).min(raw.size.div_ceil(BLOCK_SIZE));
        if start.0 >= end {
            return Ok(extents);
        }
        let mut at = start.0;
        let mut push = |from: u64, len: u64, place: Place| {
            if len > 0 {
                extents.push(PlacedExtent { start: FileBlock(from), len, place });
            }
        };
        self.for_each(self.tree(inode.number, &raw)?, start.0, end, &mut |piece| {
            push(at, piece.start - at, Place::Hole);
            let block = Block(piece.block);
            let place = if piece.is_written { Place::Pm(block) } else { Place::Unwritten(block) };
            push(piece.start, piece.len, place);
            at = piece.end();
            Ok(())
        })?;
        push(at, end - at, Place::Hole);
        Ok(extents)
    }
}

impl<P: Pm> Change<'_, P> {
    /// The size of a file becomes this. Blocks behind it go with it, as many as one operation frees.
    fn set_size(&mut self, number: u64, raw: &RawInode, size: u64) -> Result<()> {
        let tree = self.fs.tree(number, raw)?;
        let first = size.div_ceil(BLOCK_SIZE);
        if size > raw.size {
            let places = self.places(raw, tree, (raw.size.div_ceil(BLOCK_SIZE), first), size)?;
            self.put_places(number, tree, &places, Purpose::Metadata)?;
        } else if raw.entries <= STEP {
            // To the same size, too: blocks that were allocated beyond it go.
            self.clear(number, first, MAX_BLOCKS)?;
        }
        self.edit(number)?.size = size;
        Ok(())
    }

    /// The parts of blocks at the edges of a range become zeros, in new blocks.
    fn zero_edges(
        &mut self,
        places: &mut Places,
        (size, new_size): (u64, u64),
        (offset, end): (u64, u64),
    ) -> Result<()> {
        let fs = self.fs;
        for (block, Range { start: from, end: to }) in edges(offset, end) {
            // Bytes behind the size are nobody's, before and after.
            let of_block = |size: u64| size.saturating_sub(block * BLOCK_SIZE).min(BLOCK_SIZE);
            let (seen, kept) = (of_block(size), of_block(new_size));
            let to = to.min(seen);
            let Some(piece) = places.within(block, block + 1).next() else { continue };
            if !piece.is_written || from >= to {
                continue;
            }
            let mut bytes = [0; BLOCK_SIZE as usize];
            fs.pm.read(piece.offset(), &mut bytes[..seen as usize])?;
            bytes[from as usize..to as usize].fill(0);
            let bytes = &bytes[..kept as usize];
            let mut runs = Runs::new();
            self.allocate(None, 1, Purpose::Overwrite, &mut runs)?;
            let new = Piece { block: runs[0].start, ..piece };
            let copied = fs.pm.copy(new.offset(), bytes)?;
            self.pending = join(self.pending.take(), copied);
            places.set(block, block + 1, [new]);
        }
        Ok(())
    }
}
