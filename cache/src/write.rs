//! Writes through DRAM, and writes that bypass it.

use std::io::IoSlice;
use std::sync::Arc;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{
    BLOCK_SIZE, BelowBuffer, Durability, Error, Extents, FileBlock, Kind, Place, Reservation, Result, Step,
    Timestamp, WriteAt, WriteCost, WriteShape, made_room,
};
use nacre_media::Frame;
use nacre_policy::{Block as ModelBlock, Checker, Model, Path};

use crate::buffer::{BLOCK, Source, covered, parts, touched};
use crate::file::{Birth, Blocks, CacheNode, Entry, File, Times};
use crate::fs::Shared;
use crate::settings::Granularity;
use crate::writeback::BATCH;

/// Blocks of the pool, and of the layout's space, that a write may use.
pub(crate) struct Permit<'a, L: BelowBuffer + Extents> {
    shared: &'a Shared<L>,
    blocks: u64,
    reservation: Reservation,
}

impl<L: BelowBuffer + Extents> Permit<'_, L> {
    /// Moves one block and `space` from the permit to a placed block of the file with this reservation. The release of
    /// the block gives them back.
    fn use_one(&mut self, of_file: &mut Reservation, space: u64) {
        assert!(self.blocks > 0, "a write uses no more blocks than it was permitted");
        self.blocks -= 1;
        of_file.take_from(&mut self.reservation, space);
    }
}

impl<L: BelowBuffer + Extents> Drop for Permit<'_, L> {
    fn drop(&mut self) {
        self.shared.pool.give_back(self.blocks);
    }
}

/// The way of a write.
enum Choice {
    Lazy,
    Eager,
    /// The same, predicted from earlier appends or by the new-file predictor alone.
    Inherited,
    /// Bypasses DRAM, because such a write cannot gain there. The model need not track it.
    Past,
    /// To DRAM, and these blocks from there to media at once.
    Mixed(Vec<u64>),
}

/// A write after its checks.
pub(crate) struct Request<'a> {
    pub(crate) at: WriteAt,
    pub(crate) data: &'a [IoSlice<'a>],
    pub(crate) len: u64,
    pub(crate) durability: Durability,
    pub(crate) now: Timestamp,
}

impl Request<'_> {
    /// The offset, in a file of this size.
    pub(crate) fn offset(&self, size: u64) -> u64 {
        match self.at {
            WriteAt::Offset(offset) => offset,
            WriteAt::End => size,
        }
    }

    /// An upper bound of the blocks that it touches.
    fn blocks(&self) -> u64 {
        match self.at {
            WriteAt::Offset(offset) => (offset + self.len).div_ceil(BLOCK_SIZE) - offset / BLOCK_SIZE,
            WriteAt::End => self.len.div_ceil(BLOCK_SIZE) + 1,
        }
    }

    /// An upper bound of the data of their writeback.
    fn shape(&self, group_blocks: u64) -> WriteShape {
        let blocks = self.blocks();
        // The first and the last group may be partial, and the last block comes before those that it follows.
        let groups = blocks.min(blocks.div_ceil(group_blocks) + 2);
        WriteShape { blocks, groups, files: 1, extra: 0 }
    }
}

impl<L: BelowBuffer + Extents> Shared<L> {
    pub(crate) fn write(
        &self,
        node: &CacheNode<L::Node>,
        at: WriteAt,
        data: &[IoSlice<'_>],
        durability: Durability,
        now: Timestamp,
    ) -> Result<u64> {
        let len = data.iter().map(|slice| slice.len() as u64).sum();
        let Ok(file) = self.file_ref(node) else {
            return self.layout.write(&node.inner, at, data, durability, now);
        };
        if self.read_only || !file.check_flags(at) {
            // Flags change under `blocks`, exclusively. If they still forbid the write, the layout refuses it with the
            // reason.
            let _blocks = file.blocks.read();
            if self.read_only || !file.check_flags(at) {
                return self.layout.write(&node.inner, at, data, durability, now);
            }
        }
        let request = Request { at, data, len, durability, now };
        self.check_end(request.offset(0), len)?;
        if len == 0 {
            return Ok(request.offset(file.size()));
        }
        let rules = self.rules();
        let must = durability != Durability::Lazy
            || rules.sync
            || file.pinned.load(Ordering::Acquire) > 0
            || self.is_preallocated(&node.inner, file)?;
        let model = self.model_of(&rules);
        let (mut may_pay, mut is_inherited) = (true, false);
        if !must && request.blocks() <= self.pool.capacity() / 2 {
            if let Some(offset) = self.overwrite(node, file, &request, &model, rules.granularity) {
                return Ok(offset);
            }
            let eager = match self.choose(node, file, &request, &model) {
                Choice::Lazy => Some(Vec::new()),
                Choice::Mixed(blocks) => Some(blocks),
                Choice::Eager => None,
                Choice::Inherited => {
                    is_inherited = true;
                    None
                }
                Choice::Past => {
                    may_pay = false;
                    None
                }
            };
            if let Some(eager) = eager
                && let Some(offset) =
                    self.write_lazily(node, file, &request, &eager, &model, rules.granularity)?
            {
                return Ok(offset);
            }
        }
        let eagerly = || self.write_eagerly(node, file, &request, Some(&model).filter(|_| may_pay));
        if is_inherited {
            // A write through DRAM may find space when an immediate write finds none.
            if let Some(offset) = made_room(Step::Flush, eagerly(), |_| Ok(true))? {
                return Ok(offset);
            }
            file.set_birth(Birth::Over, self.clock.now_ms());
            if let Some(offset) = self.write_lazily(node, file, &request, &[], &model, rules.granularity)? {
                return Ok(offset);
            }
        }
        self.with_space(eagerly)
    }

    /// Whether a file has blocks behind its size: more than it has before its size.
    fn is_preallocated(&self, node: &L::Node, file: &File) -> Result<bool> {
        if let Some(known) = file.is_preallocated() {
            return Ok(known);
        }
        let attr = self.layout.getattr(node)?;
        let extents = self.layout.resolve(node, FileBlock(0), attr.size.div_ceil(BLOCK_SIZE))?;
        let before: u64 =
            extents.iter().filter(|extent| extent.place != Place::Hole).map(|extent| extent.len).sum();
        if before == attr.size.div_ceil(BLOCK_SIZE) {
            file.learn_dense();
        }
        Ok(file.learn_preallocated(attr.allocated > before * BLOCK_SIZE))
    }

    fn check_end(&self, offset: u64, len: u64) -> Result<u64> {
        let end = offset.checked_add(len).filter(|&end| end <= self.max_file_size);
        end.ok_or(Error::new(Kind::FileTooBig))
    }

    /// Asks the model. Writes to blocks in DRAM stay there. Of the other blocks the model knows those that it tracks.
    fn choose(&self, node: &CacheNode<L::Node>, file: &File, request: &Request<'_>, model: &Model) -> Choice {
        let offset = request.offset(file.size());
        if self.layout.goes_to_disk(&node.inner, offset, request.len) {
            return Choice::Lazy;
        }
        if model.checker == Checker::Disk {
            return Choice::Eager;
        }
        if !model.can_pay(offset, offset.saturating_add(request.len), file.size()) {
            return Choice::Past;
        }
        if model.inherits && self.appends_past(file, offset, model) {
            return Choice::Inherited;
        }
        if file.ghosts.load(Ordering::Relaxed) == 0 {
            return Choice::Lazy;
        }
        let now_ms = self.clock.now_ms();
        let mut history = file.history.lock();
        let mut eager = Vec::new();
        let mut count = 0;
        for (block, _, _) in parts(offset, request.len) {
            count += 1;
            if history.path_of_write(block, now_ms, model) == Path::Eager {
                eager.push(block);
            }
        }
        match eager.len() {
            0 => Choice::Lazy,
            all if all == count => Choice::Eager,
            _ => Choice::Mixed(eager),
        }
    }

    /// Whether a write appends to a file without waiting blocks, and such appends bypass DRAM.
    fn appends_past(&self, file: &File, offset: u64, model: &Model) -> bool {
        if offset < file.size() || file.is_cached() {
            return false;
        }
        let now_ms = self.clock.now_ms();
        let path = match file.birth() {
            // It was written to in another way.
            Birth::Empty if file.size() > 0 => {
                file.set_birth(Birth::Over, now_ms);
                Path::Lazy
            }
            Birth::Empty => {
                let path = self.newcomers.lock().path(now_ms, model.forget_ms);
                file.set_birth(if path == Path::Eager { Birth::Past } else { Birth::Watched }, now_ms);
                path
            }
            Birth::Watched => Path::Lazy,
            Birth::Past if now_ms.saturating_sub(file.born_ms()) > model.forget_ms => Path::Lazy,
            Birth::Past if file.history.lock().appends().is_repetitive() => Path::Lazy,
            Birth::Past => Path::Eager,
            Birth::Over => file.history.lock().path_of_append(now_ms, model),
        };
        path == Path::Eager
    }

    /// A write whose blocks are all in DRAM, in buffers of their own, with the lines that it covers in part. It takes
    /// no block and no space, and the model is not asked. `None` for any other write.
    fn overwrite(
        &self,
        node: &CacheNode<L::Node>,
        file: &Arc<File>,
        request: &Request<'_>,
        model: &Model,
        granularity: Granularity,
    ) -> Option<u64> {
        let WriteAt::Offset(offset) = request.at else { return None };
        let end = offset + request.len;
        if !file.is_cached() || end > file.size() || !model.can_pay(offset, end, u64::MAX) {
            return None;
        }
        let mut blocks = file.blocks.write();
        if end > file.size() || !file.may_wait(request.at) {
            return None;
        }
        let placing = Placing {
            shared: self,
            node: &node.inner,
            file,
            model,
            granularity,
            now_ms: self.clock.now_ms(),
        };
        let mut source = Source::new(request.data);
        let range = offset / BLOCK_SIZE..end.div_ceil(BLOCK_SIZE);
        if range.end - range.start == 1 {
            let (from, to) = ((offset % BLOCK_SIZE) as usize, ((end - 1) % BLOCK_SIZE + 1) as usize);
            let entry = blocks.index.get_mut(range.start)?;
            if !placing.is_ready(entry, from, to) {
                return None;
            }
            placing.overwrite(entry, from, to, &mut source);
        } else {
            let all_ready = {
                let mut found = blocks.index.range_mut(range.clone());
                parts(offset, request.len).all(|(block, from, to)| {
                    let next = found.next();
                    next.is_some_and(|(there, entry)| there == block && placing.is_ready(entry, from, to))
                })
            };
            if !all_ready {
                return None;
            }
            for ((_, from, to), (_, entry)) in parts(offset, request.len).zip(blocks.index.range_mut(range)) {
                placing.overwrite(entry, from, to, &mut source);
            }
        }
        self.accept(node, file, request, offset);
        Some(offset)
    }

    /// Accepts a write that is in DRAM. Under `blocks`, exclusively.
    fn accept(&self, node: &CacheNode<L::Node>, file: &File, request: &Request<'_>, offset: u64) {
        let mut times = file.times.lock();
        let atime = times.and_then(|times| times.atime);
        *times = Some(Times { mtime: request.now, ctime: request.now, atime });
        drop(times);
        file.changes.fetch_add(1, Ordering::Relaxed);
        self.counters.written_lazily.add(request.len);
        self.layout.accepted(&node.inner, offset, request.len);
    }

    /// Permits the blocks of a write, and writes back while too few are free. `None` if the layout has no space to
    /// reserve; everything that waits for media was then written. `None` also if files in backoff hold too many
    /// blocks, so that the writer need not wait for the next attempt.
    fn permit(&self, request: &Request<'_>) -> Result<Option<Permit<'_, L>>> {
        let blocks = request.blocks();
        let mut since_ms = None;
        while let Err(seen) = self.pool.try_take(blocks, || self.layout.give_up_dram()) {
            let since_ms = *since_ms.get_or_insert_with(|| {
                self.counters.stalls.add(1);
                self.clock.now_ms()
            });
            // The end of the last thread after this point is a change, and so is a lower High_f, above which the
            // threads free nothing. They most likely have more blocks ready than this writer would write in the same
            // time.
            let settings = self.settings();
            let is_theirs = settings.threads > 0 && blocks <= self.blocks_of(settings.high_percent);
            if is_theirs && self.pool.wait_for_threads(seen, blocks) {
                continue;
            }
            if self.write_some_back(since_ms, u64::MAX, BATCH) {
                continue;
            }
            if self.pool.is_stuck(blocks) {
                return Ok(None);
            }
            self.pool.wait_for_room(seen);
        }
        let reserved = self.layout.reserve_for(&request.shape(self.cost.group_blocks));
        if reserved.is_err() {
            self.pool.give_back(blocks);
        }
        let reserved = made_room(Step::Flush, reserved, |_| Ok(self.flush_for_space()))?;
        Ok(reserved.map(|reservation| Permit { shared: self, blocks, reservation }))
    }

    /// Writes into DRAM, and the blocks `eager` from there to media. `None` if the layout must do it: the write is not
    /// permitted any blocks, flags forbid it, or the file is mapped.
    fn write_lazily(
        &self,
        node: &CacheNode<L::Node>,
        file: &Arc<File>,
        request: &Request<'_>,
        eager: &[u64],
        model: &Model,
        granularity: Granularity,
    ) -> Result<Option<u64>> {
        self.layout.expect_write(&node.inner)?;
        let Some(mut permit) = self.permit(request)? else { return Ok(None) };
        let mut blocks = if eager.is_empty() { file.blocks.write() } else { self.still(file) };
        if !file.may_wait(request.at) {
            // Changed since the first checks: the layout refuses the write, blocks are mapped, or the file has blocks
            // behind its end.
            return Ok(None);
        }
        let offset = request.offset(file.size());
        let end = self.check_end(offset, request.len)?;
        file.check_for_hole(offset);
        let now_ms = self.clock.now_ms();
        let mut place = Placing { shared: self, node: &node.inner, file, model, granularity, now_ms };
        // Steps that can fail come first: fetching the parts of the edge blocks that stay.
        let (first, last) = (offset / BLOCK_SIZE, (end - 1) / BLOCK_SIZE);
        for (block, from, to) in parts(offset, request.len).filter(|part| part.0 == first || part.0 == last) {
            place.prepare(&mut blocks, block, from, to, &mut permit)?;
        }
        let mut source = Source::new(request.data);
        for (block, from, to) in parts(offset, request.len) {
            if block != first && block != last {
                place.prepare(&mut blocks, block, from, to, &mut permit)?;
            }
            place.put(&mut blocks, block, from, to, &mut source);
        }
        drop(permit);
        file.size.fetch_max(end, Ordering::AcqRel);
        self.accept(node, file, request, offset);
        if let (Some(&first), Some(&last)) = (eager.first(), eager.last()) {
            self.flush_range(&node.inner, file, &mut blocks, first..last + 1)?;
        }
        Ok(Some(offset))
    }

    /// Writes past DRAM. Dirty data of the blocks that it touches goes with it, and data that its size would cover
    /// goes before it. The model learns of the write, if one is given.
    fn write_eagerly(
        &self,
        node: &CacheNode<L::Node>,
        file: &Arc<File>,
        request: &Request<'_>,
        model: Option<&Model>,
    ) -> Result<u64> {
        let range = |offset: u64| offset / BLOCK_SIZE..(offset + request.len).div_ceil(BLOCK_SIZE);
        {
            let blocks = file.blocks.read();
            let offset = request.offset(file.size());
            let end = self.check_end(offset, request.len)?;
            let shows_nothing =
                file.size() == file.below() || end <= file.below() && request.at != WriteAt::End;
            let is_alone = || blocks.index.is_empty() || blocks.index.range(range(offset)).next().is_none();
            if shows_nothing && is_alone() {
                return self.write_past(node, file, &blocks, request, model);
            }
        }
        let mut blocks = self.still(file);
        self.check_end(request.offset(file.size()), request.len)?;
        if !file.check_flags(WriteAt::Offset(0)) {
            // Only writes accepted before may be written ahead of its end.
            self.flush_range(&node.inner, file, &mut blocks, 0..u64::MAX)?;
            return self.write_past(node, file, &blocks, request, model);
        }
        let size = file.size();
        let offset = self.write_over(node, file, &mut blocks, request)?;
        self.note_eager(file, request, offset, size, model);
        Ok(offset)
    }

    /// Writes to the layout, with nothing in DRAM in the way. Under `blocks`.
    fn write_past(
        &self,
        node: &CacheNode<L::Node>,
        file: &File,
        blocks: &Blocks,
        request: &Request<'_>,
        model: Option<&Model>,
    ) -> Result<u64> {
        let &Request { at, data, len, durability, now } = request;
        let size = file.size();
        file.check_for_hole(request.offset(size));
        let offset = self.layout.write(&node.inner, at, data, durability, now)?;
        file.grew_below(offset + len);
        // Without blocks there are no times.
        if !blocks.index.is_empty()
            && let Some(times) = &mut *file.times.lock()
        {
            (times.mtime, times.ctime) = (now, now);
        }
        self.counters.written_eagerly.add(len);
        self.note_eager(file, request, offset, size, model);
        Ok(offset)
    }

    /// Reports a write past DRAM to the model. `size` is the file's size before the write.
    fn note_eager(&self, file: &File, request: &Request<'_>, offset: u64, size: u64, model: Option<&Model>) {
        let can_pay = |model: &&Model| model.can_pay(offset, offset + request.len, size);
        let Some(model) = model.filter(can_pay) else { return };
        let mut history = file.history.lock();
        if model.inherits && offset >= size {
            // Other blocks are not tracked, because they did not exist.
            if let Some((first, from, to)) = parts(offset, request.len).next() {
                history.wrote_known(first, touched(from, to), model);
            }
            let first = offset / BLOCK_SIZE;
            history.appends().wrote(first..(offset + request.len).div_ceil(BLOCK_SIZE));
            return;
        }
        if history.last_sync_ms().is_none() || !history.is_synced_lately(self.clock.now_ms(), model) {
            return;
        }
        for (block, from, to) in parts(offset, request.len) {
            let may_grow = self.may_grow();
            let grew = history.wrote(block, touched(from, to), model, may_grow);
            self.drop_ghosts(u64::from(may_grow && !grew));
        }
        file.ghosts.store(history.len(), Ordering::Relaxed);
    }
}

/// Puts a write's bytes into blocks of one file. Under its `blocks`, exclusively.
struct Placing<'a, L: BelowBuffer + Extents> {
    shared: &'a Shared<L>,
    node: &'a L::Node,
    file: &'a Arc<File>,
    model: &'a Model,
    granularity: Granularity,
    now_ms: u64,
}

impl<L: BelowBuffer + Extents> Placing<'_, L> {
    /// Brings a block into DRAM, in a buffer of its own, with the lines that the bytes `from..to` cover in part.
    fn prepare(
        &mut self,
        blocks: &mut Blocks,
        block: u64,
        from: usize,
        to: usize,
        permit: &mut Permit<'_, L>,
    ) -> Result<()> {
        let Placing { shared, file, .. } = *self;
        let space = self.space_for(blocks, block);
        if let Some(entry) = blocks.index.get_mut(block) {
            shared.counters.write_hits.add(1);
            if entry.buffer.get_mut().is_some() {
                self.renew(entry);
            } else {
                permit.use_one(&mut blocks.reservation, space);
                let (slot, mut buffer) = shared.pool.place(file, block, self.now_ms);
                *own(&mut buffer) = *entry.buffer;
                (entry.slot, entry.buffer, entry.space) = (slot, buffer, space);
                entry.listed_at = shared.pool.age(self.now_ms);
            }
        } else {
            shared.counters.write_misses.add(1);
            if blocks.index.is_empty() {
                blocks.space = shared.cost.file;
                blocks.reservation.take_from(&mut permit.reservation, blocks.space);
            }
            permit.use_one(&mut blocks.reservation, space);
            let (slot, buffer) = shared.pool.place(file, block, self.now_ms);
            let model = self.recall(block);
            let listed_at = shared.pool.age(self.now_ms);
            let entry = Entry { buffer, valid: 0, dirty: 0, model, slot, listed_at, flight: None, space };
            blocks.index.insert(block, entry);
            file.cached.fetch_add(1, Ordering::AcqRel);
        }
        let Some(entry) = blocks.index.get_mut(block) else { unreachable!("it was found or made") };
        let missing = self.kept(from, to) & !entry.valid;
        if missing != 0 {
            shared.fetch(self.node, file, block, missing, own(&mut entry.buffer))?;
            entry.valid |= missing;
        }
        Ok(())
    }

    /// The layout's space to reserve for a block. It includes the space for its group, unless an earlier block of the
    /// group waits. That block is written first or together with this one.
    fn space_for(&self, blocks: &Blocks, block: u64) -> u64 {
        let &WriteCost { block: cost, group, group_blocks, .. } = &self.shared.cost;
        let first = block - block % group_blocks;
        let waits = |entry: &Entry| entry.dirty != 0 || entry.flight.is_some();
        if group == 0 || blocks.index.last_of(first..block).is_some_and(waits) { cost } else { cost + group }
    }

    /// The model's state of a block that enters DRAM.
    fn recall(&self, block: u64) -> ModelBlock {
        if self.file.ghosts.load(Ordering::Relaxed) == 0 {
            return ModelBlock::NEW;
        }
        let mut history = self.file.history.lock();
        let known = history.take(block);
        self.file.ghosts.store(history.len(), Ordering::Relaxed);
        self.shared.drop_ghosts(u64::from(known.is_some()));
        known.unwrap_or(ModelBlock::NEW)
    }

    /// The lines that keep old bytes when the bytes `from..to` are written.
    fn kept(&self, from: usize, to: usize) -> u64 {
        match self.granularity {
            Granularity::Lines => touched(from, to) & !covered(from, to),
            Granularity::Blocks => !covered(from, to),
        }
    }

    /// Whether the bytes `from..to` of a block can be written without further steps.
    fn is_ready(&self, entry: &mut Entry, from: usize, to: usize) -> bool {
        self.kept(from, to) & !entry.valid == 0 && entry.buffer.get_mut().is_some()
    }

    /// Puts the next bytes into a block that is ready.
    fn overwrite(&self, entry: &mut Entry, from: usize, to: usize, source: &mut Source<'_>) {
        self.shared.counters.write_hits.add(1);
        self.renew(entry);
        self.put_into(entry, from, to, source);
    }

    /// Moves the block to the most recently written ones.
    fn renew(&self, entry: &mut Entry) {
        let pool = &self.shared.pool;
        if pool.is_stale(entry.listed_at, pool.age(self.now_ms)) {
            pool.touch(entry.slot, self.now_ms);
            entry.listed_at = pool.age(self.now_ms);
        }
    }

    /// Copies the next bytes into a prepared block.
    fn put(&self, blocks: &mut Blocks, block: u64, from: usize, to: usize, source: &mut Source<'_>) {
        let Some(entry) = blocks.index.get_mut(block) else { unreachable!("it was prepared") };
        self.put_into(entry, from, to, source);
    }

    fn put_into(&self, entry: &mut Entry, from: usize, to: usize, source: &mut Source<'_>) {
        source.fill(&mut own(&mut entry.buffer)[from..to]);
        let lines = touched(from, to);
        let again = (entry.dirty & covered(from, to)).count_ones();
        if again > 0 {
            self.shared.counters.overwritten.add(u64::from(again) * 64);
        }
        entry.model.wrote(lines, self.model);
        entry.dirty |= if self.granularity == Granularity::Blocks { u64::MAX } else { lines };
        entry.valid |= lines;
    }
}

/// The bytes of a buffer that no writeback in flight shares.
pub(crate) fn own(buffer: &mut Frame) -> &mut [u8; BLOCK] {
    buffer.get_mut().unwrap_or_else(|| unreachable!("a block that is written to has a buffer of its own"))
}
