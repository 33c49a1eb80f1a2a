//! Sizes, attributes, allocation and holes.

use std::ops::Range;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{
    Attr, BLOCK_SIZE, Error, FallocateMode, FileBlock, FileKind, Kind, PlacedExtent, Resource, Result,
    SeekTo, SetAttr, Timestamp,
};
use nacre_layout_parts::ranges::{edges, whole_blocks};
use nacre_layout_parts::rules::{InodeFacts, check_fallocate};
use nacre_layout_parts::table::inodes::Inodes;
use nacre_layout_parts::tree::Tree;
use nacre_layout_parts::tree::edit::join;
use nacre_media::{Durable, Pm};

use crate::attributes::Attributes;
use crate::blockmap::{Piece, place_of};
use crate::format::{ATIME, Condition, MAX_FILE_SIZE};
use crate::fs::Shared;
use crate::inode::{Body, Inode, put_attributes};
use crate::lift::Publish;
use crate::publish::Changes;

/// Holes of more blocks are filled only if there is room for all of them: the search costs less than a failure.
const LARGE: u64 = 1024;

impl<P: Pm> Shared<P> {
    pub(crate) fn setattr(&self, inode: &Inode, change: &SetAttr, now: Timestamp) -> Result<Attr> {
        change.check_times(self.times)?;
        inode.check_flags(change.forbidden_by())?;
        if inode.kind == FileKind::Regular && change.guards() {
            self.superblock.lock().note_guarded(&*self.pm)?;
        }
        match change.size {
            None => {
                let mut body = inode.body.write();
                let before = inode.attr.get();
                self.commit_attributes(inode, &mut body, before, before.after(change, now, false))?;
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
        let mut body = inode.body.write();
        let before = inode.attr.get();
        self.commit_attributes(inode, &mut body, before, before.written_back(mtime, atime, now))
    }

    /// Commits attributes. A new atime, which has a word of its own, turns with the slot.
    fn commit_attributes(
        &self,
        inode: &Inode,
        body: &mut Body,
        before: Attributes,
        after: Attributes,
    ) -> Result<()> {
        let mut new = inode.next(body);
        put_attributes(&mut new.slot, &after, self.times);
        let publish = match after.atime == before.atime {
            true => Publish::Slot,
            false => Publish::Word { address: inode.address + ATIME, value: inode.pack(after.atime) },
        };
        self.commit(&mut new, publish, || Ok(None))?;
        body.state = new.state();
        inode.attributes_changed(before, after, false);
        Ok(())
    }

    /// Writes attributes that are newer in DRAM: the time of the last read. One word, which needs no commit.
    pub(crate) fn persist_lazy(&self, inode: &Inode) -> Result<()> {
        if self.read_only || !inode.lazy.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        self.write_atime(inode).inspect_err(|_| inode.lazy.store(true, Ordering::Release))
    }

    fn write_atime(&self, inode: &Inode) -> Result<()> {
        let mut body = inode.body.write();
        self.check_unbroken()?;
        if inode.links() == 0 {
            return Ok(());
        }
        let address = inode.address + ATIME;
        // The state may count because of that word: it must count without it first.
        if matches!(body.state.slot.condition(), Some(Condition::Word { address: word, .. }) if word == address)
        {
            let mut new = inode.next(&body);
            self.commit_slot(&mut new, None)?;
            body.state = new.state();
        }
        let atime = inode.pack(inode.attr.get().atime);
        let stored = self.pm.publish_u64(address, atime, Durable::nothing_before())?;
        self.pm.fence(self.pm.flush(stored));
        Ok(())
    }

    fn set_size(&self, inode: &Inode, size: u64, change: &SetAttr, now: Timestamp) -> Result<()> {
        inode.check_file()?;
        inode.check_flags(Attr::IMMUTABLE | Attr::APPEND_ONLY)?;
        if size > MAX_FILE_SIZE {
            return Err(Error::new(Kind::FileTooBig));
        }
        let mut body = inode.body.write();
        self.check_unbroken()?;
        let old = inode.size();
        let before = inode.attr.get();
        let after = before.after(change, now, true);
        let mut changes = Changes::of(self, inode, &body);
        changes.touches(old.min(size) / BLOCK_SIZE..old.max(size).div_ceil(BLOCK_SIZE));
        if size > old {
            changes.pending = self.zero_gap(changes.edit.before, old, size)?;
        } else {
            // To the same size, too: blocks that were allocated beyond it go.
            if size < old {
                inode.check_pins()?;
            }
            changes.edit.cut(size.div_ceil(BLOCK_SIZE))?;
        }
        let mut new = inode.next(&body);
        put_attributes(&mut new.slot, &after, self.times);
        new.slot.size = size;
        changes.commit(inode, &mut body, new)?;
        inode.size.store(size, Ordering::Release);
        // A new time of the last read comes apart, as no call asks for both.
        let sized = Attributes { atime: before.atime, ..after };
        inode.attributes_changed(before, sized, false);
        if after.atime != before.atime {
            self.commit_attributes(inode, &mut body, sized, after)?;
        }
        Ok(())
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
        let mut body = inode.body.write();
        self.check_unbroken()?;
        let is_allocation = matches!(mode, FallocateMode::Allocate | FallocateMode::AllocateKeepSize);
        if !is_allocation {
            inode.check_pins()?;
        }
        let old = inode.size();
        let size = match mode {
            FallocateMode::Allocate | FallocateMode::ZeroRange => old.max(end),
            _ => old,
        };
        let mut changes = Changes::of(self, inode, &body);
        changes.touches(offset.min(old) / BLOCK_SIZE..end.max(size).div_ceil(BLOCK_SIZE));
        let Range { start: first, end: last } = whole_blocks(offset, end);
        let prepared = match mode {
            FallocateMode::Allocate | FallocateMode::AllocateKeepSize => Ok(()),
            FallocateMode::PunchHole if first < last => changes.edit.clear(first, last),
            FallocateMode::PunchHole => Ok(()),
            FallocateMode::ZeroRange | FallocateMode::ZeroRangeKeepSize => {
                self.unwrite(&mut changes, first, last)
            }
        };
        let prepared = prepared.and_then(|()| {
            if mode != FallocateMode::PunchHole {
                self.fill_holes(&mut changes, offset, end)?;
            }
            if !is_allocation {
                edges(offset, end)
                    .into_iter()
                    .try_for_each(|edge| self.zero_edge(inode, &mut changes, old, edge))?;
            }
            changes.lift()?;
            if size > old {
                let gap = self.zero_gap(changes.edit.before, old, size)?;
                changes.pending = gap.into_iter().fold(changes.pending.take(), join);
            }
            Ok(())
        });
        changes.unless_failed(prepared)?;
        let mut new = inode.next_modified(&body, now);
        new.slot.size = size;
        changes.commit(inode, &mut body, new)?;
        inode.size.store(size, Ordering::Release);
        inode.modified(now);
        Ok(())
    }

    /// Unwritten blocks for the holes of a range.
    fn fill_holes(&self, changes: &mut Changes<'_, P>, offset: u64, end: u64) -> Result<()> {
        let (first, last) = (offset / BLOCK_SIZE, end.div_ceil(BLOCK_SIZE));
        let mut holes = Vec::new();
        let mut at = first;
        self.map(changes.edit.before).for_each(first, last, &mut |piece| {
            holes.push((at, piece.start - at));
            at = piece.end();
        })?;
        holes.push((at, last - at));
        holes.retain(|&(_, len)| len > 0);
        let missing: u64 = holes.iter().map(|(_, len)| len).sum();
        if missing > LARGE && !self.has_room_for(missing) {
            self.reclaim_buried();
            if !self.has_room_for(missing) {
                return Err(Error::no_space(Resource::Pm, missing));
            }
        }
        for (mut start, len) in holes {
            let runs = self.allocate_unwritten(changes.edit.before, start, len)?;
            changes.allocated.extend(runs.iter().copied());
            for run in runs {
                let piece = Piece { start, len: run.len, place: run.start.0, is_written: false };
                changes.edit.set(piece)?;
                start += run.len;
            }
        }
        Ok(())
    }

    /// The written blocks of a range read as zeros from now on, and stay allocated.
    fn unwrite(&self, changes: &mut Changes<'_, P>, first: u64, last: u64) -> Result<()> {
        let mut written: Vec<Piece> = Vec::new();
        self.map(changes.edit.before).for_each(first, last, &mut |piece| {
            if piece.is_written {
                written.push(piece);
            }
        })?;
        written.into_iter().try_for_each(|piece| changes.edit.set(Piece { is_written: false, ..piece }))
    }

    pub(crate) fn seek(&self, inode: &Inode, offset: u64, to: SeekTo) -> Result<u64> {
        inode.check_file()?;
        let body = inode.body.read();
        self.map(inode.tree(&body)).seek(inode.size(), offset, to)
    }

    /// Ends one hold. Stores through it changed the blocks without a commit: copies of them that the mover made before
    /// are refused.
    pub(crate) fn unpin(&self, inode: &Inode) {
        let _body = inode.body.write();
        self.versions_of(inode).change(0..u64::MAX);
        inode.unpin();
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
        let body = inode.body.read();
        let end = start.0.saturating_add(len).min(inode.size().div_ceil(BLOCK_SIZE));
        let tree = match inode.kind {
            FileKind::Regular | FileKind::Symlink => inode.tree(&body),
            FileKind::Directory => return Ok(Vec::new()),
            _ => Tree::default(),
        };
        self.map(tree).extents(start.0, end, place_of)
    }
}
