//! Sizes, attributes, allocation and holes.

use std::ops::Range;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{
    Attr, BLOCK_SIZE, Error, FallocateMode, FileBlock, FileKind, Kind, PlacedExtent, Result, SeekTo, SetAttr,
    Timestamp,
};
use nacre_layout_parts::ranges::{edges, whole_blocks};
use nacre_layout_parts::rules::{InodeFacts, check_fallocate};
use nacre_layout_parts::tree::place_on_pm;
use nacre_media::{Durable, Flushed, Pm};

use crate::alloc::{Purpose, Runs};
use crate::attributes::Attributes;
use crate::blockmap::{Piece, open, pack};
use crate::file::PIECE_BLOCKS;
use crate::format::{MAX_FILE_SIZE, word};
use crate::fs::Shared;
use crate::inode::{Body, Inode, MAX_BLOCKS, links_word};
use crate::seeded::Mistake;
use crate::transaction::{Transaction, join};
use crate::tree_edit::{Edit, end_of_part, finish};

/// The word of an inode that has mode, policy and owner.
pub(crate) fn mode_word(attributes: &Attributes) -> u64 {
    u64::from(attributes.mode) | u64::from(attributes.policy) << 16 | u64::from(attributes.uid) << 32
}

/// Words for all attributes.
fn put_attributes(inode: &Inode, transaction: &mut Transaction, attributes: &Attributes) {
    transaction.word(inode.address + word::LINKS, links_word(inode.links(), attributes.flags));
    transaction.word(inode.address + word::MODE, mode_word(attributes));
    transaction.word(inode.address + word::GID, u64::from(attributes.gid));
    inode.put_times(transaction, attributes.mtime, attributes.ctime);
    transaction.word(inode.address + word::ATIME, inode.pack(attributes.atime));
}

/// Where one transaction that makes a hole ends.
fn end_of_hole(offset: u64, end: u64) -> u64 {
    let Range { start: first, end: last } = whole_blocks(offset, end);
    if last - first <= PIECE_BLOCKS {
        return end;
    }
    let cut = end_of_part(first, last);
    if cut < last { cut * BLOCK_SIZE } else { end }
}

impl<P: Pm> Shared<P> {
    pub(crate) fn setattr(&self, inode: &Inode, change: &SetAttr, now: Timestamp) -> Result<Attr> {
        change.check_times(self.times)?;
        inode.check_flags(change.forbidden_by())?;
        if inode.kind == FileKind::Regular && change.guards() {
            self.superblock.lock().note_guarded(&*self.pm)?;
        }
        match change.size {
            None => {
                let _body = inode.body.write();
                let before = inode.attr.get();
                self.commit_attributes(inode, before, before.after(change, now, false))?;
            }
            Some(size) => self.set_size(inode, size, change, now)?,
        }
        Ok(inode.attr())
    }

    /// Writes back times.
    pub(crate) fn write_back_times(
        &self,
        inode: &Inode,
        mtime: Timestamp,
        atime: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<()> {
        let _body = inode.body.write();
        let before = inode.attr.get();
        self.commit_attributes(inode, before, before.written_back(mtime, atime, now))
    }

    /// Commits attributes. Under `body`, exclusively.
    fn commit_attributes(&self, inode: &Inode, before: Attributes, after: Attributes) -> Result<()> {
        let mut transaction = Transaction::default();
        put_attributes(inode, &mut transaction, &after);
        self.commit(transaction, None)?;
        inode.attributes_changed(before, after, true);
        Ok(())
    }

    /// Writes attributes that are newer in DRAM: the time of the last read. One word, which needs no transaction.
    pub(crate) fn persist_lazy(&self, inode: &Inode) -> Result<()> {
        if self.read_only || !inode.lazy.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        self.write_atime(inode).inspect_err(|_| inode.lazy.store(true, Ordering::Release))
    }

    fn write_atime(&self, inode: &Inode) -> Result<()> {
        let _body = inode.body.write();
        self.check_unbroken()?;
        if inode.links() == 0 {
            return Ok(());
        }
        let atime = inode.pack(inode.attr.get().atime);
        let stored = self.pm.publish_u64(inode.address + word::ATIME, atime, Durable::nothing_before())?;
        let flushed = self.pm.flush(stored);
        self.pm.fence(flushed);
        Ok(())
    }

    fn set_size(&self, inode: &Inode, size: u64, change: &SetAttr, now: Timestamp) -> Result<()> {
        inode.check_file()?;
        inode.check_flags(Attr::IMMUTABLE | Attr::APPEND_ONLY)?;
        if size > MAX_FILE_SIZE {
            return Err(Error::new(Kind::FileTooBig));
        }
        let _stay = inode.stay.write();
        let mut body = inode.body.write();
        self.check_unbroken()?;
        let old = inode.size();
        let before = inode.attr.get();
        let after = before.after(change, now, true);
        let mut edit = Edit::new(self, open(body.root));
        let mut pending = None;
        if size > old {
            pending = self.zero_gap(body.root, old, size)?;
        } else {
            // To the same size, too: blocks that were allocated beyond it go.
            if size < old {
                inode.check_pins()?;
            }
            edit.clear(size.div_ceil(BLOCK_SIZE), MAX_BLOCKS)?;
        }
        let too_soon = Mistake::BlocksFreedTooSoon.is_made(&*self.pm);
        if too_soon {
            self.reuse_now(&edit);
        }
        let mut transaction = Transaction::default();
        let pending = finish(&edit, &mut transaction, pending)?;
        transaction.word(inode.address + word::ROOT, pack(edit.tree));
        transaction.word(inode.address + word::SIZE, size);
        put_attributes(inode, &mut transaction, &after);
        self.commit(transaction, pending)?;
        inode.size.store(size, Ordering::Release);
        self.tree_changed(inode, &mut body, &edit, 0);
        inode.attributes_changed(before, after, true);
        Ok(())
    }

    /// Of the mistake to free blocks too soon: overwrites one, as its next user would.
    fn reuse_now(&self, edit: &Edit<'_, P>) {
        if let Some(run) = edit.freed.first()
            && let Ok(flushed) = self.pm.copy(run.start.offset(), &[0xdb; 64])
        {
            self.pm.fence(flushed);
        }
    }

    /// Updates the state in DRAM after the commit of a tree; frees the blocks that it gave up.
    fn tree_changed(&self, inode: &Inode, body: &mut Body, edit: &Edit<'_, P>, new_blocks: u64) {
        body.root = pack(edit.tree);
        inode.blocks.fetch_add(new_blocks, Ordering::Relaxed);
        inode.blocks.fetch_sub(edit.freed_data, Ordering::Relaxed);
        self.free_runs(&edit.freed);
    }

    pub(crate) fn fallocate(
        &self,
        inode: &Inode,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        now: Timestamp,
    ) -> Result<()> {
        inode.check_file()?;
        let end = check_fallocate(inode.flags(), mode, offset, len, MAX_FILE_SIZE)?;
        let _stay = inode.stay.write();
        let mut body = inode.body.write();
        self.check_unbroken()?;
        if !matches!(mode, FallocateMode::Allocate | FallocateMode::AllocateKeepSize) {
            inode.check_pins()?;
        }
        let size = match mode {
            FallocateMode::Allocate | FallocateMode::ZeroRange => inode.size().max(end),
            _ => inode.size(),
        };
        if mode != FallocateMode::PunchHole {
            self.check_room(&body, offset, end)?;
        }
        let mut at = offset;
        while at < end {
            let until = match mode {
                FallocateMode::PunchHole => end_of_hole(at, end),
                _ => ((at / BLOCK_SIZE + PIECE_BLOCKS) * BLOCK_SIZE).min(end),
            };
            let size = (until == end).then_some(size);
            self.fallocate_piece(inode, &mut body, mode, (at, until), size, now)?;
            at = until;
        }
        Ok(())
    }

    /// One transaction of an allocation; the last one has the size.
    fn fallocate_piece(
        &self,
        inode: &Inode,
        body: &mut Body,
        mode: FallocateMode,
        (offset, end): (u64, u64),
        size: Option<u64>,
        now: Timestamp,
    ) -> Result<()> {
        let mut edit = Edit::new(self, open(body.root));
        let mut allocated = Runs::new();
        let mut pending = None;
        let old = inode.size();
        let Range { start: first, end: last } = whole_blocks(offset, end);
        // The edges are zeroed in place, where everybody sees it: when nothing can be missing any more.
        let prepared = match mode {
            FallocateMode::Allocate | FallocateMode::AllocateKeepSize => {
                self.fill_holes(&mut edit, offset, end, &mut allocated)
            }
            FallocateMode::PunchHole if first < last => edit.clear(first, last),
            FallocateMode::PunchHole => Ok(()),
            FallocateMode::ZeroRange | FallocateMode::ZeroRangeKeepSize => self
                .unwrite(&mut edit, first, last)
                .and_then(|()| self.fill_holes(&mut edit, offset, end, &mut allocated)),
        };
        let result = prepared.and_then(|()| {
            if !matches!(mode, FallocateMode::Allocate | FallocateMode::AllocateKeepSize) {
                self.zero_edges(body.root, offset, end, old, &mut pending)?;
            }
            if let Some(size) = size.filter(|&size| size > old)
                && let Some(gap) = self.zero_gap(body.root, old, size)?
            {
                pending = join(pending.take(), gap);
            }
            let mut transaction = Transaction::default();
            let pending = finish(&edit, &mut transaction, pending.take())?;
            transaction.word(inode.address + word::ROOT, pack(edit.tree));
            if let Some(size) = size {
                transaction.word(inode.address + word::SIZE, size);
            }
            inode.put_modified(&mut transaction, now);
            self.commit(transaction, pending)
        });
        if let Err(error) = result {
            if !self.is_broken() {
                edit.give_up();
                self.free_runs(&allocated);
            }
            return Err(error);
        }
        if let Some(size) = size {
            inode.size.store(size, Ordering::Release);
        }
        self.tree_changed(inode, body, &edit, allocated.iter().map(|run| run.len).sum());
        inode.modified(now);
        Ok(())
    }

    /// Unwritten blocks for the holes of a range.
    fn fill_holes(&self, edit: &mut Edit<'_, P>, offset: u64, end: u64, allocated: &mut Runs) -> Result<()> {
        let (first, last) = (offset / BLOCK_SIZE, end.div_ceil(BLOCK_SIZE));
        let mut holes = Vec::new();
        let mut at = first;
        self.map(pack(edit.before)).for_each(first, last, &mut |piece| {
            holes.push((at, piece.start - at));
            at = piece.start + piece.len;
        })?;
        holes.push((at, last - at));
        for (mut start, len) in holes.into_iter().filter(|&(_, len)| len > 0) {
            let mut runs = Runs::new();
            self.allocate(None, len, Purpose::Data, &mut runs)?;
            allocated.extend(runs.iter().copied());
            for run in runs {
                edit.set(Piece { start, len: run.len, place: run.start.0, is_written: false })?;
                start += run.len;
            }
        }
        Ok(())
    }

    /// The written blocks of a range read as zeros from now on, and stay allocated.
    fn unwrite(&self, edit: &mut Edit<'_, P>, first: u64, last: u64) -> Result<()> {
        let mut written: Vec<Piece> = Vec::new();
        self.map(pack(edit.before)).for_each(first, last, &mut |piece| {
            if piece.is_written {
                written.push(piece);
            }
        })?;
        written.into_iter().try_for_each(|piece| edit.set(Piece { is_written: false, ..piece }))
    }

    /// Zeros the parts of blocks at the edges of a range, in place.
    fn zero_edges(
        &self,
        root: u64,
        offset: u64,
        end: u64,
        size: u64,
        pending: &mut Option<Flushed>,
    ) -> Result<()> {
        for (block, Range { start: from, end: to }) in edges(offset, end) {
            // Bytes behind the size need no zeros: no reader gets them before they are zeroed.
            let to = to.min(size.saturating_sub(block * BLOCK_SIZE));
            let Some(piece) = self.map(root).find(block)? else { continue };
            if piece.is_written && from < to {
                let media = piece.block().offset() + from;
                *pending = join(pending.take(), self.pm.zero(media, to - from)?);
            }
        }
        Ok(())
    }

    pub(crate) fn seek(&self, inode: &Inode, offset: u64, to: SeekTo) -> Result<u64> {
        inode.check_file()?;
        let body = inode.body.read();
        self.map(body.root).seek(inode.size(), offset, to)
    }

    /// Holds the blocks of a file where they are, and says where that is.
    pub(crate) fn pin(&self, inode: &Inode, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>> {
        inode.check_file()?;
        {
            let _body = inode.body.write();
            inode.pins.fetch_add(1, Ordering::AcqRel);
        }
        self.resolve(inode, start, len).inspect_err(|_| inode.unpin())
    }

    pub(crate) fn resolve(&self, inode: &Inode, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>> {
        if !matches!(inode.kind, FileKind::Regular | FileKind::Symlink | FileKind::Directory) {
            return Ok(Vec::new());
        }
        let body = inode.body.read();
        let end = start.0.saturating_add(len).min(inode.size().div_ceil(BLOCK_SIZE));
        if inode.is_directory() {
            return Ok(Vec::new());
        }
        self.map(body.root).extents(start.0, end, place_on_pm)
    }
}
