//! Synchronisation, and the data that must be on media before an operation of the layout.

use std::ops::Range;
use std::sync::Arc;

use nacre_engine::sync::RwLockWriteGuard;
use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{
    Attr, BLOCK_SIZE, BelowBuffer, Extents, FallocateMode, Kind, Result, SetAttr, Step, Timestamp, with_room,
};
use nacre_policy::Judged;

use crate::collect::Dirty;
use crate::file::{Birth, Blocks, CacheNode, File, Times};
use crate::fs::Shared;

impl<L: BelowBuffer + Extents> Shared<L> {
    /// The blocks of a file, exclusively and with no writeback in flight.
    pub(crate) fn still<'f>(&self, file: &'f File) -> RwLockWriteGuard<'f, Blocks> {
        loop {
            let blocks = file.blocks.write();
            if !file.has_flights() {
                return blocks;
            }
            drop(blocks);
            file.wait_for_flights();
        }
    }

    /// Writes the dirty blocks in a range in order, and removes them from DRAM. Blocks before them that the size would
    /// cover go first. On an error the blocks stay. No writeback is in flight. Under `blocks`, exclusively.
    pub(crate) fn flush_range(
        &self,
        node: &L::Node,
        file: &File,
        blocks: &mut Blocks,
        range: Range<u64>,
    ) -> Result<()> {
        let unseen = file.below() / BLOCK_SIZE;
        let first = if range.end > unseen { range.start.min(unseen) } else { range.start };
        if blocks.index.range(first..range.end).next().is_none() {
            return Ok(());
        }
        let size = file.size();
        let mut dirty: Vec<Dirty> = Vec::new();
        let mut leaving = Vec::new();
        for (block, entry) in blocks.index.range_mut(first..range.end) {
            debug_assert!(entry.flight.is_none());
            leaving.push(block);
            if entry.dirty != 0 {
                dirty.push(self.dirty_parts(node, file, block, entry, size)?);
            }
        }
        let now = self.time_of(node, file)?;
        let (_, result) = self.write_dirty(node, file, &dirty, &blocks.reservation, now, || true);
        drop(dirty);
        result?;
        if leaving.len() == blocks.index.len() {
            self.settle_times(node, file, &blocks.reservation)?;
        }
        for block in &leaving {
            if let Some(entry) = blocks.index.get_mut(*block) {
                entry.dirty = 0;
            }
        }
        self.leave_all(file, blocks, leaving);
        if blocks.index.is_empty() {
            file.recovered();
        }
        Ok(())
    }

    /// Writes everything of a file that waits for media.
    pub(crate) fn flush(&self, node: &L::Node, file: &File) -> Result<()> {
        if !file.is_cached() {
            return Ok(());
        }
        let mut blocks = self.still(file);
        self.flush_range(node, file, &mut blocks, 0..u64::MAX)
    }

    /// As [`Shared::flush`], for a node that may be no regular file or not known here.
    pub(crate) fn flush_node(&self, node: &CacheNode<L::Node>) -> Result<()> {
        match self.known_file(node) {
            Some(file) => self.flush(&node.inner, file),
            None => Ok(()),
        }
    }

    /// fsync: the model judges the blocks that were written since the last one, and everything is written.
    pub(crate) fn sync(&self, node: &CacheNode<L::Node>) -> Result<()> {
        let Some(file) = self.known_file(node) else { return self.layout.sync(&node.inner) };
        let flushed = {
            let mut blocks = self.still(file);
            self.judge(file, &mut blocks);
            self.flush_range(&node.inner, file, &mut blocks, 0..u64::MAX)
        };
        let synced = self.layout.sync(&node.inner);
        // An earlier error is reported once, whatever the result of this sync.
        file.take_error().and(flushed).and(synced)
    }

    /// Writes a file that was truncated to zero and rewritten. A crash after the close therefore leaves the old or the
    /// new contents, not an empty file for as long as blocks may wait. A close before anything was written changes
    /// nothing: a shell, for example, closes an extra handle of its output. An error if data of the file was dropped.
    pub(crate) fn closed(&self, node: &CacheNode<L::Node>) -> Result<()> {
        let Some(file) = self.known_file(node) else { return Ok(()) };
        if file.size() > 0 && file.replaced.swap(false, Ordering::AcqRel) {
            self.flush(&node.inner, file).inspect_err(|_| file.replaced.store(true, Ordering::Release))?;
        }
        file.check_lost()
    }

    fn judge(&self, file: &File, blocks: &mut Blocks) {
        let model = self.model_of(&self.rules());
        let mut judged = Judged::default();
        let now_ms = self.clock.now_ms();
        let mut history = file.history.lock();
        history.synced(now_ms, &model, &mut judged);
        for entry in blocks.index.values_mut() {
            if let Some(verdict) = entry.model.synced(&model) {
                judged.count(verdict);
            }
        }
        history.appends().synced(&judged);
        drop(history);
        if model.inherits && file.birth() != Birth::Over && file.size() > 0 {
            match file.birth() {
                Birth::Watched => self.newcomers.lock().synced(judged.eager > judged.lazy, now_ms),
                Birth::Past => self.newcomers.lock().past_one_synced(now_ms),
                Birth::Empty | Birth::Over => {}
            }
            file.set_birth(Birth::Over, now_ms);
        }
        self.counters.accurate.add(judged.accurate);
        self.counters.inaccurate.add(judged.inaccurate);
    }

    /// Writes everything of all files, with the help of the threads. It tries all files and returns the first error.
    pub(crate) fn flush_everything(&self) -> Result<()> {
        let draining = self.pool.drain();
        if self.settings().threads > 0 {
            self.help_to_drain();
        }
        let result = self.flush_each();
        drop(draining);
        // Writebacks in flight of removed files hold space until they end.
        drop(self.flying.write());
        result
    }

    /// Shares the work of the threads while there is some, so that no large file is left to one thread.
    fn help_to_drain(&self) {
        let now_ms = self.clock.now_ms();
        while self.write_some_back(now_ms, now_ms, u64::MAX) {}
    }

    fn flush_each(&self) -> Result<()> {
        let mut result = Ok(());
        for file in self.table.collect(File::is_cached) {
            let flushed = match self.layout.node(file.id) {
                Ok(node) => self.flush(&node, &file),
                Err(error) if error.kind() == Kind::Stale => {
                    self.discard(&file);
                    Ok(())
                }
                Err(error) => Err(error),
            };
            result = result.and(flushed);
        }
        result
    }

    /// Runs an operation of the layout. If it finds no space, everything is written, which frees reserved space, and
    /// it runs again.
    pub(crate) fn with_space<R>(&self, act: impl FnMut() -> Result<R>) -> Result<R> {
        with_room(Step::Flush, act, |_| Ok(self.pool.free() < self.pool.capacity() && self.flush_for_space()))
    }

    /// Writes everything, for space that is reserved. True: it may be free then.
    pub(crate) fn flush_for_space(&self) -> bool {
        // Blocks that cannot be written stay, and the sync of their file reports the error.
        let _ = self.flush_everything();
        true
    }

    pub(crate) fn sync_all(&self) -> Result<()> {
        let flushed = self.flush_everything();
        let synced = self.layout.sync_all();
        self.take_error().and(flushed).and(synced)
    }

    /// setattr: a truncation if a size is given. Otherwise it sets the times that wait for media.
    pub(crate) fn setattr(
        &self,
        node: &CacheNode<L::Node>,
        change: &SetAttr,
        now: Timestamp,
    ) -> Result<Attr> {
        let Some(file) = self.known_or_made(node, change) else {
            return self.layout.setattr(&node.inner, change, now);
        };
        if let Some(size) = change.size {
            return self.set_size(node, file, change, size, now);
        }
        let mut blocks = self.still(file);
        if change.flags.is_some() {
            // The new flags may forbid accepted writes.
            self.flush_range(&node.inner, file, &mut blocks, 0..u64::MAX)?;
        }
        let attr = self.layout.setattr(&node.inner, change, now)?;
        file.flags.store(attr.flags, Ordering::Release);
        if let Some(times) = &mut *file.times.lock() {
            times.mtime = change.mtime.map_or(times.mtime, |_| attr.mtime);
            times.ctime = attr.ctime;
            times.atime = change.atime.map(|_| attr.atime).or(times.atime);
        }
        Ok(self.overlay(&node.inner, file, &blocks, attr))
    }

    /// The file, if this change concerns the cache. If the flags of a file change while it becomes known, the cache
    /// must not keep the old flags.
    fn known_or_made<'n>(&self, node: &'n CacheNode<L::Node>, change: &SetAttr) -> Option<&'n Arc<File>> {
        let concerns = change.size.is_some() || change.flags.is_some();
        if concerns { self.file_ref(node).ok() } else { self.known_file(node) }
    }

    fn set_size(
        &self,
        node: &CacheNode<L::Node>,
        file: &File,
        change: &SetAttr,
        size: u64,
        now: Timestamp,
    ) -> Result<Attr> {
        file.raise_epoch();
        let mut blocks = self.still(file);
        // Flags change under `blocks`, exclusively. The layout refuses whatever they forbid.
        let protected = file.flags.load(Ordering::Acquire) & (Attr::IMMUTABLE | Attr::APPEND_ONLY) != 0;
        if protected || self.read_only || size > self.max_file_size {
            return self.layout.setattr(&node.inner, change, now);
        }
        if change.flags.is_some() {
            // The new flags may forbid accepted writes.
            self.flush_range(&node.inner, file, &mut blocks, 0..size.div_ceil(BLOCK_SIZE))?;
        } else if size > file.below() {
            // The new size covers them.
            let unseen = file.below() / BLOCK_SIZE;
            self.flush_range(&node.inner, file, &mut blocks, unseen..size.div_ceil(BLOCK_SIZE))?;
        }
        // A read that media does not have, too.
        let noted = file.times.lock().and_then(|times| times.atime);
        let change = SetAttr { atime: change.atime.or(noted), ..*change };
        if size > file.size() {
            file.may_get_hole();
        }
        let attr = self.layout.setattr(&node.inner, &change, now)?;
        if size == 0 {
            // The lost data no longer matters.
            file.set_lost(false);
        }
        if size == 0 && file.below() > 0 {
            file.replaced.store(true, Ordering::Release);
        }
        if size <= file.below() {
            // Blocks behind the new size are gone.
            file.set_preallocated(false);
        }
        self.cut(&node.inner, file, &mut blocks, size);
        file.set_size(size);
        file.flags.store(attr.flags, Ordering::Release);
        let mut times = file.times.lock();
        match &mut *times {
            Some(_) if blocks.index.is_empty() => *times = None,
            Some(times) => {
                *times = Times { mtime: attr.mtime, ctime: attr.ctime, atime: None };
            }
            None => {}
        }
        drop(times);
        Ok(self.overlay(&node.inner, file, &blocks, attr))
    }

    /// Before an allocation, everything is written. A hole or zeros replace whole blocks inside their range.
    pub(crate) fn fallocate(
        &self,
        node: &CacheNode<L::Node>,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        now: Timestamp,
    ) -> Result<()> {
        let Ok(file) = self.file_ref(node) else {
            return self.layout.fallocate(&node.inner, mode, offset, len, now);
        };
        file.raise_epoch();
        let mut blocks = self.still(file);
        // Blocks that the size does not cover yet are written, because the size must grow over them nevertheless.
        let replaced = match mode {
            FallocateMode::Allocate | FallocateMode::AllocateKeepSize => 0..0,
            _ => {
                let end = offset.saturating_add(len) / BLOCK_SIZE;
                offset.div_ceil(BLOCK_SIZE)..end.min(file.below() / BLOCK_SIZE)
            }
        };
        let before = if replaced.is_empty() { 0..u64::MAX } else { 0..replaced.start };
        self.flush_range(&node.inner, file, &mut blocks, replaced.end.max(before.start)..u64::MAX)?;
        self.flush_range(&node.inner, file, &mut blocks, before)?;
        file.may_get_hole();
        self.layout.fallocate(&node.inner, mode, offset, len, now)?;
        if matches!(mode, FallocateMode::AllocateKeepSize | FallocateMode::ZeroRangeKeepSize) {
            file.set_preallocated(true);
        }
        let kept: Vec<u64> = blocks.index.blocks().collect();
        self.leave_all(file, &mut blocks, kept);
        // The layout has the times of this operation, which is the newest.
        let times = file.times.lock().take();
        if let Some(Times { atime: Some(atime), .. }) = times {
            self.layout.setattr(&node.inner, &SetAttr { atime: Some(atime), ..SetAttr::default() }, now)?;
        }
        file.set_size(self.layout.size(&node.inner)?);
        Ok(())
    }
}
