//! Writeback in the background, and by writers that wait for free blocks.

use std::sync::Arc;
use std::time::Duration;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{BLOCK_SIZE, BelowBuffer, Extents, Kind, Reservation, Result, Timestamp, background};

use crate::collect::{Dirty, bytes_of};
use crate::evict::Leaving;
use crate::file::{Blocks, Entry, File, Flight};
use crate::fs::Shared;
use crate::order::Slot;

/// The largest number of blocks in one writeback.
pub(crate) const BATCH: u64 = 256;
/// The number of files that one search for blocks to write back visits.
const CANDIDATES: usize = 16;
/// The largest lag of neighbours, in milliseconds: they go with the least recently written block if last written
/// within this time of it.
const NEIGHBOUR_MS: u64 = 1000;

/// Blocks of one file on their way to media.
struct Batch<N> {
    file: Arc<File>,
    node: N,
    dirty: Vec<Dirty>,
    now: Timestamp,
    epoch: u64,
    /// It extends the size on media.
    extending: bool,
    /// The layout's space for the blocks.
    reservation: Reservation,
}

/// The result for a candidate.
enum Taken<N> {
    Batch(Batch<N>),
    /// Blocks left the index without a write.
    Freed,
    /// Another writeback has the block, or the block has left.
    Nothing,
}

impl<L: BelowBuffer + Extents> Shared<L> {
    /// The loop of each thread until its end. It helps while everything is to be written.
    pub(crate) fn run_writeback(&self, number: usize) {
        background::begin();
        let mut shift = self.pool.begin_shift();
        loop {
            let period = Duration::from_millis(self.settings().period_ms);
            if !self.pool.wait_for_work(&mut shift, period) {
                return;
            }
            // They may have changed during the wait.
            let settings = self.settings();
            let high = self.blocks_of(settings.high_percent);
            let now_ms = self.clock.now_ms();
            // The oldest blocks first, until High_f blocks are free, and then blocks that are too old (section 4.1).
            while !self.pool.is_stopping() {
                let wanted = if self.pool.is_draining() { self.pool.capacity() } else { high };
                let missing = wanted.saturating_sub(self.pool.free());
                if missing == 0 || !self.write_some_back(now_ms, u64::MAX, missing) {
                    break;
                }
                shift.is_idle = false;
            }
            let now_ms = self.clock.now_ms();
            if let Some(until) = now_ms.checked_sub(settings.max_age_ms) {
                while !self.pool.is_stopping() && self.write_some_back(now_ms, until, BATCH) {}
            }
            if number == 0 {
                self.give_up_hopeless();
                self.forget_old_history(now_ms);
            }
        }
    }

    /// Drops the model's state of files without a sync for long, because it predicts nothing any more.
    fn forget_old_history(&self, now_ms: u64) {
        let model = self.model_of(&self.rules());
        for file in self.table.collect(|file| file.ghosts.load(Ordering::Relaxed) > 0) {
            let mut history = file.history.lock();
            self.drop_ghosts(history.forget_old(now_ms, &model));
            file.ghosts.store(history.len(), Ordering::Relaxed);
        }
    }

    /// Writes back some of the least recently written blocks: at most `limit`, last written at `until_ms` at the
    /// latest. False if no block is left but those of files in backoff beyond `now_ms`. A caller that repeats until
    /// then keeps passing its own start time. It then tries no failed file twice, however long that takes.
    pub(crate) fn write_some_back(&self, now_ms: u64, until_ms: u64, limit: u64) -> bool {
        let _flying = self.flying.read();
        let limit = limit.clamp(1, BATCH) as usize;
        // Unlocked files first, because a sync holds its file for as long as a slow device takes. If nothing else is
        // left, it waits for the skipped files, because no call might come when they are free.
        let mut busy = Vec::new();
        let rests_until = |file: &File| file.rests_until_ms();
        for (file, block) in self.pool.candidates(CANDIDATES, until_ms, now_ms, rests_until) {
            let Some(blocks) = file.blocks.try_write() else {
                busy.push((file, block));
                continue;
            };
            drop(blocks);
            if self.write_one_back(&file, block, limit) {
                return true;
            }
        }
        busy.into_iter().any(|(file, block)| self.write_one_back(&file, block, limit))
    }

    /// Writes a block back with its neighbours, or starts the backoff of its file. False if there was nothing to do.
    fn write_one_back(&self, file: &Arc<File>, block: u64, limit: usize) -> bool {
        match self.take_off(file, block, limit) {
            Ok(Taken::Batch(batch)) => {
                self.fly(batch);
                true
            }
            Ok(Taken::Freed) => true,
            Ok(Taken::Nothing) => false,
            Err(error) => {
                self.failed(file, error.kind());
                // Writers that wait for these blocks need not wait for them now.
                self.pool.note_event();
                true
            }
        }
    }

    /// Takes a block and its neighbours out of the dirty ones.
    fn take_off(&self, file: &Arc<File>, block: u64, limit: usize) -> Result<Taken<L::Node>> {
        let node = match self.layout.node(file.id) {
            Ok(node) => node,
            Err(error) if error.kind() == Kind::Stale => {
                self.discard(file);
                return Ok(Taken::Freed);
            }
            Err(error) => return Err(error),
        };
        let mut blocks = file.blocks.write();
        match blocks.index.get(block) {
            None => return Ok(Taken::Nothing),
            Some(entry) if entry.flight.is_some() => return Ok(Taken::Nothing),
            Some(entry) if entry.dirty == 0 => {
                if blocks.index.len() == 1 {
                    self.settle_times(&node, file, &blocks.reservation)?;
                }
                self.leave_all(file, &mut blocks, [block]);
                return Ok(Taken::Freed);
            }
            Some(_) => {}
        }
        let unseen = file.below() / BLOCK_SIZE;
        let extending = block >= unseen;
        if extending && blocks.extending {
            return Ok(Taken::Nothing);
        }
        let chosen = self.choose_batch(&blocks, block, unseen, limit);
        let now = self.time_of(&node, file)?;
        let (size, mut dirty) = (file.size(), Vec::with_capacity(chosen.len()));
        for &block in &chosen {
            let Some(entry) = blocks.index.get_mut(block) else { continue };
            dirty.push(self.dirty_parts(&node, file, block, entry, size)?);
        }
        let (mut taken, mut reserved) = (Vec::with_capacity(chosen.len()), 0);
        for block in chosen {
            let Some(entry) = blocks.index.get_mut(block) else { continue };
            let lines = std::mem::take(&mut entry.dirty);
            entry.model.written_back(lines);
            let Entry { slot, space, .. } = *entry;
            entry.flight = Some(Box::new(Flight { slot, buffer: entry.buffer.clone(), lines, space }));
            taken.push(entry.slot);
            reserved += space;
        }
        self.pool.unlist_all(taken);
        blocks.extending |= extending;
        file.take_off();
        let epoch = file.epoch.load(Ordering::Acquire);
        let reservation = blocks.reservation.split(reserved);
        let file = Arc::clone(file);
        Ok(Taken::Batch(Batch { file, node, dirty, now, epoch, extending, reservation }))
    }

    /// The blocks of a writeback, at most `limit`: `block` and those behind it without a gap. If the size on media
    /// grows, blocks that it would cover come first.
    fn choose_batch(&self, blocks: &Blocks, block: u64, unseen: u64, limit: usize) -> Vec<u64> {
        let ready = |(_, entry): &(u64, &Entry)| entry.dirty != 0 && entry.flight.is_none();
        let (mut chosen, end) = if block >= unseen {
            let shown = blocks.index.range(unseen..block).filter(ready).map(|(block, _)| block);
            (shown.take(limit).collect(), u64::MAX)
        } else {
            (Vec::new(), unseen)
        };
        let follow = blocks.index.range(block..end).take_while(ready).zip(block..);
        let together = follow.take_while(|((next, _), expected)| next == expected);
        let (next, slots): (Vec<u64>, Vec<Slot>) =
            together.take(limit - chosen.len()).map(|((next, entry), _)| (next, entry.slot)).unzip();
        let count = self.pool.written_together(&slots, NEIGHBOUR_MS);
        chosen.extend(&next[..count]);
        chosen
    }

    fn fly(&self, mut batch: Batch<L::Node>) {
        let Batch { file, node, dirty, now, epoch, reservation, .. } = &mut batch;
        let still_holds = || file.epoch.load(Ordering::Acquire) == *epoch;
        let (done, result) = self.write_dirty(node, file, dirty, reservation, *now, still_holds);
        // From here on the blocks in the index do not share their buffers.
        let flown: Vec<u64> = std::mem::take(dirty).into_iter().map(|dirty| dirty.block).collect();
        self.land(batch, &flown, done, result);
        self.pool.note_event();
    }

    /// Ends a writeback: `done` of its blocks are written.
    fn land(&self, batch: Batch<L::Node>, flown: &[u64], done: usize, result: Result<()>) {
        let Batch { file, node, extending, reservation, .. } = batch;
        let file = &*file;
        match result {
            Ok(()) => file.wrote(self.clock.now_ms()),
            Err(error) => self.failed(file, error.kind()),
        }
        let mut blocks = file.blocks.write();
        blocks.reservation.merge(reservation);
        let is_whole = |entry: &Entry| entry.dirty == 0;
        let all_leave = done == flown.len()
            && blocks.index.len() == done
            && blocks.index.values().all(is_whole)
            && !file.is_gone();
        if all_leave && let Err(error) = self.settle_times(&node, file, &blocks.reservation) {
            file.note_error(error.kind());
            *file.times.lock() = None;
        }
        let mut leaving = Leaving::default();
        for (number, &block) in flown.iter().enumerate() {
            self.land_block(file, &mut blocks, block, number < done || file.is_gone(), &mut leaving);
        }
        self.let_go(file, &mut blocks, leaving);
        if extending {
            blocks.extending = false;
        }
        drop(blocks);
        file.land();
        if file.is_gone() {
            self.settle_debt(file);
        }
    }

    /// Returns the space of a file that is gone, after its last writeback in flight.
    fn settle_debt(&self, file: &File) {
        let mut blocks = file.blocks.write();
        if !file.has_flights() {
            let owed = std::mem::take(&mut blocks.owed);
            blocks.reservation.give_back(owed);
        }
    }

    /// `over`: the block is on media, or need not be there.
    fn land_block(&self, file: &File, blocks: &mut Blocks, block: u64, over: bool, leaving: &mut Leaving) {
        let Some(entry) = blocks.index.get_mut(block) else { return };
        let Some(flight) = entry.flight.take() else { return };
        let Flight { slot, buffer, lines, space } = *flight;
        if !over {
            entry.dirty |= lines;
        } else if file.is_gone() {
            self.counters.discarded.add(bytes_of(std::mem::take(&mut entry.dirty)));
        }
        let is_clean = entry.dirty == 0;
        if entry.slot != slot {
            // It was written to meanwhile, in another buffer.
            leaving.add(slot, buffer, space);
        } else {
            drop(buffer);
            if !over {
                self.pool.relist(slot);
            }
        }
        if is_clean {
            self.leave(file, blocks, block, leaving);
        }
    }

    /// Notes a failed writeback. Until the next period of the threads only a sync tries the file again, because the
    /// fault may pass.
    fn failed(&self, file: &File, kind: Kind) {
        self.counters.failures.add(1);
        file.note_error(kind);
        self.error.lock().get_or_insert(kind);
        let now_ms = self.clock.now_ms();
        // Space may be freed, and a device come back. The rest of a block that cannot be read does not.
        let is_hopeless = matches!(kind, Kind::Media | Kind::Corrupt);
        file.rest(now_ms, now_ms.saturating_add(self.settings().period_ms), is_hopeless);
    }

    /// Drops the data of all files that have used up their attempts. Only a thread does this. An operation that waits
    /// for a sync or for free blocks gets the error, and its data stays.
    fn give_up_hopeless(&self) {
        if self.counters.failures.get() > 0 {
            self.table.collect(File::is_hopeless).iter().for_each(|file| self.give_up(file));
        }
    }

    /// Drops data that cannot be written. The sync of the file reports it, and the listener hears of it.
    fn give_up(&self, file: &File) {
        let lost = self.drop_all(file);
        if lost > 0
            && let Some(listener) = self.on_loss.get()
        {
            listener(file.id, lost);
        }
    }

    /// Drops the dirty data of a file that is hopeless; gives the bytes.
    fn drop_all(&self, file: &File) -> u64 {
        let mut blocks = self.still(file);
        if !file.is_hopeless() {
            // A sync has written it meanwhile.
            return 0;
        }
        let mut lost = 0;
        file.may_get_hole();
        let all: Vec<u64> = blocks.index.blocks().collect();
        // An earlier sync may have reported the error before data was lost.
        file.note_error(Kind::Io);
        self.error.lock().get_or_insert(Kind::Io);
        for block in &all {
            if let Some(entry) = blocks.index.get_mut(*block) {
                lost += bytes_of(std::mem::take(&mut entry.dirty));
            }
        }
        self.counters.lost.add(lost);
        // First, because an operation that finds nothing waiting then asks whether data was lost.
        file.set_lost(true);
        self.leave_all(file, &mut blocks, all);
        *file.times.lock() = None;
        file.size.store(file.below(), Ordering::Release);
        file.recovered();
        lost
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use nacre_engine::{
        Data, Durability, Extents, FileBlock, FileKind, Names, NewInode, Place, Timestamp, WriteAt,
    };
    use nacre_layout_log::{LogFs, MkfsOptions, MountOptions, Node, mkfs};
    use nacre_media::SimPm;

    use crate::{CacheFs, CacheNode, CacheOptions, Clock, Settings};

    type Fs = CacheFs<LogFs<SimPm>>;

    /// A cache without threads.
    fn cache(clock: Clock) -> (Arc<SimPm>, Fs) {
        let pm = Arc::new(SimPm::new(16 << 20));
        mkfs(&*pm, &MkfsOptions::default()).unwrap();
        let options = MountOptions { background: false, ..MountOptions::default() };
        let layout = LogFs::mount(Arc::clone(&pm), &options).unwrap();
        let settings = Settings { threads: 0, ..Settings::default() };
        let options = CacheOptions { settings, clock, ..CacheOptions::new(1 << 20) };
        (pm, CacheFs::new(layout, &options).unwrap())
    }

    fn create(fs: &Fs, name: &[u8]) -> CacheNode<Node> {
        let new = NewInode {
            kind: FileKind::Regular,
            mode: 0o644,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: b"",
            xattrs: &[],
            now: Timestamp::default(),
        };
        fs.create(&fs.root(), name, &new).unwrap()
    }

    fn write(fs: &Fs, node: &CacheNode<Node>, bytes: &[u8], durability: Durability) {
        let data = [IoSlice::new(bytes)];
        fs.write(node, WriteAt::Offset(0), &data, durability, Timestamp::default()).unwrap();
    }

    #[test]
    fn what_somebody_uses_is_passed_over_while_there_is_something_else() {
        let (_, fs) = cache(Clock::default());
        let [oldest, newest] = [b"oldest", b"newest"].map(|name| {
            let node = create(&fs, name);
            write(&fs, &node, &[1; 4096], Durability::Lazy);
            Arc::clone(node.file.get().unwrap())
        });
        let (written, was_written) = channel();
        std::thread::scope(|scope| {
            let in_use = oldest.blocks.read();
            scope.spawn(|| {
                written.send(fs.shared.write_some_back(0, u64::MAX, 1)).unwrap();
                written.send(fs.shared.write_some_back(0, u64::MAX, 1)).unwrap();
            });
            let first = was_written.recv_timeout(Duration::from_secs(20));
            assert_eq!((first, newest.is_cached(), oldest.is_cached()), (Ok(true), false, true));
            drop(in_use);
            let second = was_written.recv_timeout(Duration::from_secs(20));
            assert_eq!((second, oldest.is_cached()), (Ok(true), false), "it is waited for, then");
        });
        fs.sync_all().unwrap();
    }

    /// A device may take longer to fail than a file rests: a sync would not end.
    #[test]
    fn whoever_goes_on_tries_nothing_again_that_has_failed() {
        let clock = Arc::new(AtomicU64::new(1));
        let (pm, fs) = cache(Clock::Set(Arc::clone(&clock)));
        let node = create(&fs, b"file");
        write(&fs, &node, &[1; 4096], Durability::Now);
        let extents = fs.resolve(&node, FileBlock(0), 1).unwrap();
        let Place::Pm(block) = extents[0].place else { panic!("{extents:?}") };
        pm.poison(block.offset() + 1024, 64);
        write(&fs, &node, &[2; 64], Durability::Lazy);
        assert!(fs.shared.write_some_back(1, u64::MAX, 1), "it is tried");
        clock.fetch_add(2 * Settings::default().period_ms, Ordering::Relaxed);
        assert!(!fs.shared.write_some_back(1, u64::MAX, 1), "who began before that has tried it");
        let now_ms = clock.load(Ordering::Relaxed);
        assert!(fs.shared.write_some_back(now_ms, u64::MAX, 1));
        assert!(!fs.shared.write_some_back(now_ms, u64::MAX, 1));
        assert_eq!(fs.status().failures, 2);
    }
}
