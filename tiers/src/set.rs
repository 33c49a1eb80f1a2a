//! The tiers of a mounted file system: reads, writes and flushes by place.
//!
//! If a tier is missing or offline, only accesses to its blocks fail. The errors of a device are returned to each
//! caller, and counted. A tier that fails to take writes gets no new blocks for a while, which grows. A tier whose
//! reads fail is the last choice for new blocks. See [`TierSet::takes_writes`] and [`TierSet::is_doubtful`].

use std::sync::Arc;
use std::time::Duration;

use nacre_engine::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use nacre_engine::sync::{Mutex, OnceLock, RwLock, thread};
use nacre_engine::{
    BLOCK_SIZE, Block, DamagedCopy, Error, Kind, MAX_TIERS, Result, TierReader, TierRun, background,
};
use nacre_media::block::{BlockDevice, Io, Transfer};
use nacre_media::{Durable, Frames};

use crate::failing::{Change, Failings};
use crate::fetched::Fetched;
use crate::fetching::Fetching;
use crate::label::{COPIES, Label};
use crate::pages::PageCache;
use crate::traffic::{Counts, TierTraffic};

/// Bytes of one transfer at the most: larger ones are split, so that a device works on several parts at once.
const TRANSFER: usize = 1 << 20;

/// Transfers that a thread in the background makes at once: then it lets those of others go first.
const IN_BACKGROUND: usize = 4;
/// How often it waits for these, each time for so long, before it goes on all the same: 5 ms.
const WAITS: u32 = 25;
const WAIT: Duration = Duration::from_micros(200);

/// Receives one message, in words, each time that a tier is missing, is there again, fails, or works again.
pub type Listener = Box<dyn Fn(&str) + Send + Sync>;

/// The tiers, by number.
pub struct TierSet<D> {
    slots: Vec<RwLock<Slot<D>>>,
    listener: OnceLock<Listener>,
    /// Messages kept for the listener until it is set; see [`TierSet::tell_later`].
    untold: Mutex<Vec<String>>,
    pages: PageCache,
    /// Blocks that are being fetched by read-ahead.
    fetching: Fetching,
    /// Transfers and flushes in the foreground that are under way.
    awaited: AtomicU64,
    /// About now, in milliseconds since 1970.
    time_ms: AtomicU64,
    /// By number; a tier that gets the number of one that was removed counts on from there.
    counts: Vec<Counts>,
}

enum Slot<D> {
    /// No such tier is known.
    None,
    /// It is known, and not there: why, in words.
    Missing(String),
    There(Arc<There<D>>),
}

struct There<D> {
    device: D,
    label: Mutex<Label>,
    errors: AtomicU64,
    failing: Mutex<Failings>,
    /// True while reads fail. A successful read takes the lock of `failing` only then.
    reads_fail: AtomicBool,
}

/// The device of a tier that is not used any more.
pub struct Detached<D>(Arc<There<D>>);

impl<D: BlockDevice> Detached<D> {
    /// As [`TierSet::write_token`].
    pub fn write_token(&self, token: u64) -> Result<()> {
        self.0.label.lock().write_token(&self.0.device, token)
    }

    /// It is no tier any more, and says so; durable when it returns.
    pub fn erase(&self) -> Result<()> {
        self.0.label.lock().erase(&self.0.device)
    }
}

/// Whether a transfer is in the foreground.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Urgency {
    IsAwaited,
    /// Foreground transfers go first.
    GivesWay,
}

impl Urgency {
    /// The urgency of transfers of this thread.
    fn usual() -> Urgency {
        if background::is() { Urgency::GivesWay } else { Urgency::IsAwaited }
    }
}

/// A foreground transfer or flush, counted as long as this lives.
struct Awaited<'s>(&'s AtomicU64);

impl<'s> Awaited<'s> {
    fn begin(count: &'s AtomicU64) -> Awaited<'s> {
        count.fetch_add(1, Ordering::Relaxed);
        Awaited(count)
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Where a tier is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Its device, or why there is none.
    pub device: Result<String, String>,
    /// Operations of the device that failed.
    pub errors: u64,
    /// Why it does not take writes, or cannot be read, since one failed and until one succeeds again.
    pub failing: Option<String>,
    /// How its device makes transfers, when that is known.
    pub io: Option<Io>,
}

impl<D: BlockDevice> TierReader for TierSet<D> {
    fn read_image(&self, run: TierRun) -> Result<Vec<u8>> {
        let mut content = vec![0; (run.len * BLOCK_SIZE) as usize];
        self.read_blocks(run.tier, run.start, &mut content)?;
        Ok(content)
    }

    fn check_superblock(&self, tier: u8) -> Result<Vec<DamagedCopy>> {
        let there = self.there(tier)?;
        let label = there.label.lock();
        let damaged = label.damaged(&there.device);
        let is_repaired = damaged.contains(&true) && label.mend(&there.device, damaged).is_ok();
        let found = COPIES.into_iter().zip(damaged).filter(|(_, is_damaged)| *is_damaged);
        Ok(found.map(|(copy, _)| DamagedCopy { copy, is_repaired }).collect())
    }
}

impl<D: BlockDevice> TierSet<D> {
    /// No tiers yet, and a page cache of so many bytes.
    pub fn new(cache_bytes: u64) -> TierSet<D> {
        TierSet::with_frames(cache_bytes, Arc::default())
    }

    /// No tiers yet, and a page cache that takes its DRAM from these frames.
    pub fn with_frames(cache_bytes: u64, frames: Arc<Frames>) -> TierSet<D> {
        TierSet {
            slots: (0..=MAX_TIERS).map(|_| RwLock::new(Slot::None)).collect(),
            listener: OnceLock::new(),
            untold: Mutex::default(),
            pages: PageCache::of(cache_bytes, frames),
            fetching: Fetching::default(),
            awaited: AtomicU64::new(0),
            time_ms: AtomicU64::new(0),
            counts: (0..=MAX_TIERS).map(|_| Counts::default()).collect(),
        }
    }

    /// A tier is on this device.
    pub fn attach(&self, number: u8, device: D, label: Label) {
        let there = There {
            device,
            label: Mutex::new(label),
            errors: AtomicU64::new(0),
            failing: Mutex::default(),
            reads_fail: AtomicBool::new(false),
        };
        *self.slot(number).write() = Slot::There(Arc::new(there));
    }

    /// A tier is not there any more, or not yet. Reads and writes of it that are under way finish.
    pub fn detach(&self, number: u8, why: impl Into<String>) {
        drop(self.let_go(number, why));
    }

    /// As [`TierSet::detach`]; returns the device that it was on.
    pub fn let_go(&self, number: u8, why: impl Into<String>) -> Option<Detached<D>> {
        let why = why.into();
        let said = format!("tier {number} is missing: {why}");
        let device = self.replace(number, Slot::Missing(why));
        self.tell(&said);
        device
    }

    fn replace(&self, number: u8, slot: Slot<D>) -> Option<Detached<D>> {
        let before = std::mem::replace(&mut *self.slot(number).write(), slot);
        self.pages.drop_tier(number);
        match before {
            Slot::There(there) => Some(Detached(there)),
            _ => None,
        }
    }

    /// Sets the listener for changes of tiers, and tells it at once which tiers are missing. There is one listener;
    /// later ones are ignored.
    pub fn listen(&self, listener: Listener) {
        if self.listener.set(listener).is_err() {
            return;
        }
        for number in 1..=MAX_TIERS {
            if let Some(Attachment { device: Err(why), .. }) = self.attachment(number) {
                self.tell(&format!("tier {number} is missing: {why}"));
            }
        }
        let untold = std::mem::take(&mut *self.untold.lock());
        untold.iter().for_each(|what| self.tell(what));
    }

    /// Tells the listener, or keeps the message until there is one.
    pub fn tell_later(&self, what: String) {
        match self.listener.get() {
            Some(listener) => listener(&what),
            None => self.untold.lock().push(what),
        }
    }

    /// Tells the listener, if there is one.
    pub fn tell(&self, what: &str) {
        if let Some(listener) = self.listener.get() {
            listener(what);
        }
    }

    /// A tier is gone for good; returns the device that it was on.
    pub fn forget(&self, number: u8) -> Option<Detached<D>> {
        self.replace(number, Slot::None)
    }

    /// Where a tier is; `None` when it is not known.
    pub fn attachment(&self, number: u8) -> Option<Attachment> {
        match &*self.slot(number).read() {
            Slot::None => None,
            Slot::Missing(why) => {
                Some(Attachment { device: Err(why.clone()), errors: 0, failing: None, io: None })
            }
            Slot::There(there) => Some(Attachment {
                device: Ok(there.device.name().to_owned()),
                errors: there.errors.load(Ordering::Relaxed),
                failing: there.failing.lock().why().map(str::to_owned),
                io: there.device.io(),
            }),
        }
    }

    /// Sets the time, in milliseconds since 1970.
    pub fn set_time(&self, now_ms: u64) {
        self.time_ms.store(now_ms, Ordering::Relaxed);
    }

    fn time_ms(&self) -> u64 {
        self.time_ms.load(Ordering::Relaxed)
    }

    /// Whether new blocks may be placed on a tier: it is there, and did not fail to take some lately. It is tried again
    /// after a second, then two, and so on up to five minutes, or when it is attached again.
    pub fn takes_writes(&self, number: u8) -> bool {
        self.there(number).is_ok_and(|there| !there.failing.lock().is_out_of_use(self.time_ms()))
    }

    /// Whether reads of a tier failed lately, so that new blocks are better placed on another one. That ends as for
    /// writes.
    pub fn is_doubtful(&self, number: u8) -> bool {
        self.there(number).is_ok_and(|there| there.failing.lock().is_doubtful(self.time_ms()))
    }

    /// Notes a write that failed, or the result of a flush. A success counts only after a flush.
    fn wrote<T>(&self, tier: u8, there: &There<D>, result: Result<T>) -> Result<T> {
        // Otherwise nothing is wrong with the device.
        if result.as_ref().err().is_none_or(|error| error.kind() != Kind::InvalidInput) {
            let why = result.as_ref().err().map(ToString::to_string);
            self.note(tier, there, |failings, now_ms| failings.wrote(why, now_ms));
        }
        result
    }

    /// A read of a tier is over. Its caller gets the error; the tier notes whether its reads fail.
    fn was_read(&self, tier: u8, there: &There<D>, result: Result<()>) -> Result<()> {
        let is_news = match &result {
            Err(error) => error.kind() != Kind::InvalidInput,
            Ok(()) => there.reads_fail.load(Ordering::Relaxed),
        };
        if is_news {
            let why = result.as_ref().err().map(ToString::to_string);
            self.note(tier, there, |failings, now_ms| failings.read(why, now_ms));
        }
        result
    }

    /// Notes a change in the state of a tier, and tells the listener of it.
    fn note(&self, tier: u8, there: &There<D>, change: impl FnOnce(&mut Failings, u64) -> Option<Change>) {
        let mut failings = there.failing.lock();
        let change = change(&mut failings, self.time_ms());
        there.reads_fail.store(failings.reads_fail(), Ordering::Relaxed);
        let why = failings.why().unwrap_or_default().to_owned();
        drop(failings);
        match change {
            Some(Change::WritesFail) => {
                self.tell(&format!("tier {tier} is failing, blocks go to other places: {why}"));
            }
            Some(Change::ReadsFail) => {
                self.tell(&format!("tier {tier} fails reads; blocks go to other places if they can: {why}"));
            }
            Some(Change::Works) => self.tell(&format!("tier {tier} works again")),
            None => {}
        }
    }

    /// Blocks of tiers in DRAM.
    pub fn pages(&self) -> &PageCache {
        &self.pages
    }

    /// Bytes read from devices, and written to them.
    pub fn traffic(&self) -> (u64, u64) {
        self.counts
            .iter()
            .map(Counts::get)
            .fold((0, 0), |(read, written), of| (read + of.read_bytes, written + of.written_bytes))
    }

    /// Bytes and operations of reads and writes of a tier.
    pub fn traffic_of(&self, number: u8) -> TierTraffic {
        self.counts(number).get()
    }

    fn counts(&self, number: u8) -> &Counts {
        &self.counts[usize::from(number.min(MAX_TIERS))]
    }

    /// Says on the device that the mount that has chosen this number uses the tier; durable when it returns.
    pub fn write_token(&self, number: u8, token: u64) -> Result<()> {
        let there = self.there(number)?;
        let written = there.label.lock().write_token(&there.device, token);
        there.count(written)
    }

    /// Reads blocks from the device itself.
    pub fn read_blocks(&self, tier: u8, start: Block, into: &mut [u8]) -> Result<()> {
        let mut offset = start.offset();
        let mut batch = Vec::new();
        for part in into.chunks_mut(TRANSFER) {
            let len = part.len() as u64;
            batch.push(Transfer::Read { offset, into: part });
            offset += len;
        }
        self.read_batch(tier, &mut batch)
    }

    fn read_batch(&self, tier: u8, batch: &mut [Transfer<'_>]) -> Result<()> {
        let there = self.there(tier)?;
        self.counts(tier).read(batch.iter().map(|transfer| transfer.len() as usize).sum());
        let read = self.transfer(&there, batch, Urgency::usual());
        self.was_read(tier, &there, read)
    }

    /// Makes transfers: in the foreground all at once, in the background a few at a time. A device works on many at
    /// once, and later transfers wait for all of them.
    fn transfer(&self, there: &There<D>, batch: &mut [Transfer<'_>], urgency: Urgency) -> Result<()> {
        if urgency == Urgency::IsAwaited {
            let _awaited = Awaited::begin(&self.awaited);
            return there.count(there.device.transfer(batch));
        }
        let longest = batch.iter().map(Transfer::len).max().unwrap_or(0).clamp(BLOCK_SIZE, TRANSFER as u64);
        batch.chunks_mut(IN_BACKGROUND * (TRANSFER / longest as usize)).try_for_each(|some| {
            self.give_way();
            there.count(there.device.transfer(some))
        })
    }

    /// Waits for foreground transfers, but not for long: there may always be some.
    fn give_way(&self) {
        for _ in 0..WAITS {
            if self.awaited.load(Ordering::Relaxed) == 0 {
                return;
            }
            thread::sleep(WAIT);
        }
    }

    /// Reads bytes of a tier through the page cache. Missing blocks are fetched, with up to `ahead` blocks in all.
    /// The bytes lie within `extent`, and nothing else is fetched; its blocks are known not to be written meanwhile.
    /// Returns how many of the bytes asked for came from the device.
    pub fn read(&self, offset: u64, into: &mut [u8], extent: TierRun, ahead: u64) -> Result<u64> {
        let tier = extent.tier;
        let (first, end) = (extent.start.0, extent.start.0 + extent.len);
        debug_assert!(offset >= extent.start.offset() && offset + into.len() as u64 <= end * BLOCK_SIZE);
        let (mut done, mut missed) = (0, 0);
        loop {
            done += self.pages.read(tier, offset + done as u64, &mut into[done..]);
            if done == into.len() {
                return Ok(missed);
            }
            let at = offset + done as u64;
            let block = (at / BLOCK_SIZE).max(first);
            if self.fetching.wait_for(tier, block) {
                continue;
            }
            let needed = (offset + into.len() as u64).div_ceil(BLOCK_SIZE) - block;
            // Not what is there already.
            let missing =
                (1..needed).find(|next| self.pages.has(tier, Block(block + next))).unwrap_or(needed);
            let wanted = if missing < needed { missing } else { needed.max(ahead).min(end - block) };
            let mut fetched = Fetched::new(&self.pages, tier, Block(block), wanted);
            let mut have = wanted;
            let mut read = self.read_batch(tier, &mut fetched.transfers(wanted, TRANSFER));
            if read.is_err() && wanted > missing {
                // The unreadable block may be one that was not asked for.
                have = missing;
                read = self.read_batch(tier, &mut fetched.transfers(missing, TRANSFER));
            }
            read?;
            let within = (at - block * BLOCK_SIZE) as usize;
            let count = fetched.copy_to(&mut into[done..], within, have);
            fetched.keep(have);
            self.pages.note_missed(count);
            missed += count as u64;
            done += count;
        }
    }

    /// Fetches blocks into the page cache, as far as they are missing. The blocks are known not to be written
    /// meanwhile. Errors are not returned: a later read meets them.
    pub fn fetch(&self, run: TierRun) {
        let TierRun { tier, start, len } = run;
        let is_missing = |block: &u64| !self.pages.has(tier, Block(*block));
        let Some(first) = (start.0..start.0 + len).find(is_missing) else { return };
        let Some(last) = (first..start.0 + len).rfind(is_missing) else { return };
        let len = last + 1 - first;
        let _under_way = self.fetching.begin(TierRun { tier, start: Block(first), len });
        let mut fetched = Fetched::new(&self.pages, tier, Block(first), len);
        if self.read_batch(tier, &mut fetched.transfers(len, TRANSFER)).is_ok() {
            fetched.keep(len);
        }
    }

    /// Writes whole blocks that nobody reads, and drops them from the page cache. They are durable after a
    /// [flush](TierSet::flush). A thread in the background gives way to the foreground.
    pub fn write(&self, pieces: &[(TierRun, &[u8])]) -> Result<()> {
        self.write_as(pieces, Urgency::usual())
    }

    /// As [`TierSet::write`], without giving way in the background: foreground writes may wait for the space that
    /// this write frees.
    pub fn write_at_once(&self, pieces: &[(TierRun, &[u8])]) -> Result<()> {
        self.write_as(pieces, Urgency::IsAwaited)
    }

    fn write_as(&self, pieces: &[(TierRun, &[u8])], urgency: Urgency) -> Result<()> {
        let mut tiers: Vec<u8> = pieces.iter().map(|(run, _)| run.tier).collect();
        tiers.sort_unstable();
        tiers.dedup();
        for tier in tiers {
            let there = self.there(tier)?;
            let mut batch = Vec::new();
            for (run, bytes) in pieces.iter().filter(|(run, _)| run.tier == tier) {
                self.pages.drop_range(tier, run.start, run.len);
                let mut offset = run.start.offset();
                for from in bytes.chunks(TRANSFER) {
                    batch.push(Transfer::Write { offset, from });
                    offset += from.len() as u64;
                }
                self.counts(tier).wrote(bytes.len());
            }
            if let Err(error) = self.transfer(&there, &mut batch, urgency) {
                return self.wrote(tier, &there, Err(error));
            }
        }
        Ok(())
    }

    /// Makes earlier writes to these tiers durable.
    pub fn flush(&self, tiers: impl IntoIterator<Item = u8>) -> Result<Durable> {
        // One in the background is not put off: it holds what was written before it together.
        let _awaited = (Urgency::usual() == Urgency::IsAwaited).then(|| Awaited::begin(&self.awaited));
        let mut proof = Durable::nothing_before();
        for tier in tiers {
            let there = self.there(tier)?;
            proof = self.wrote(tier, &there, there.count(there.device.flush()))?;
        }
        Ok(proof)
    }

    /// Tells the device that these blocks are not in use any more; false where it has no use for that.
    pub fn discard(&self, run: TierRun) -> Result<bool> {
        let there = self.there(run.tier)?;
        self.pages.drop_range(run.tier, run.start, run.len);
        let told = there.device.discard(run.start.offset(), run.len * BLOCK_SIZE);
        match told {
            // It says nothing of the device.
            Err(error) if matches!(error.kind(), Kind::NotPermitted | Kind::InvalidInput) => Err(error),
            told => there.count(told),
        }
    }

    fn slot(&self, number: u8) -> &RwLock<Slot<D>> {
        &self.slots[usize::from(number.min(MAX_TIERS))]
    }

    fn there(&self, number: u8) -> Result<Arc<There<D>>> {
        match &*self.slot(number).read() {
            Slot::There(there) => Ok(Arc::clone(there)),
            Slot::Missing(why) => Err(Error::new(Kind::DeviceLost)
                .object(format!("tier {number}: {why}"))
                .advice("nacre tier list shows the tiers; give the place of one to nacre tier online")),
            Slot::None => Err(Error::new(Kind::InvalidInput).object(format!("tier {number}"))),
        }
    }
}

impl<D> There<D> {
    fn count<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nacre_engine::sync::Mutex;
    use nacre_engine::sync::atomic::Ordering;
    use nacre_engine::{BLOCK_SIZE, Block, Kind, Result, TierRun, Timestamp, background};
    use nacre_media::block::{BlockDevice, SimDisk, Transfer};
    use nacre_media::{Durable, SimPm};
    use uuid::Uuid;

    use super::{TRANSFER, TierSet, TierTraffic, WAIT, WAITS};
    use crate::label::{Label, NewLabel};

    const BLOCK: usize = BLOCK_SIZE as usize;

    fn set(cache: u64) -> (TierSet<SimDisk>, SimDisk) {
        let memory = Arc::new(SimPm::with_disks(BLOCK_SIZE, &[1000 * BLOCK_SIZE]));
        let disk = SimDisk::of(&memory, 0);
        let now = Timestamp::new(1, 0);
        let new = NewLabel { uuid: None, volume: Uuid::from_u128(6), number: 2, token: 1, now };
        let label = Label::create(&disk, &new).unwrap();
        let set = TierSet::new(cache);
        set.attach(2, disk.clone(), label);
        (set, disk)
    }

    fn run(start: u64, len: u64) -> TierRun {
        TierRun { tier: 2, start: Block(start), len }
    }

    fn content(first: u64, blocks: u64) -> Vec<u8> {
        (first..first + blocks).flat_map(|block| vec![block as u8; BLOCK]).collect()
    }

    #[test]
    fn what_is_read_again_comes_from_memory() {
        for (cache, again) in [(64 << 20, 0), (0, 9 * BLOCK_SIZE)] {
            let (set, _) = set(cache);
            set.write(&[(run(10, 30), &content(10, 30)), (run(50, 4), &content(50, 4))]).unwrap();
            set.flush([2]).unwrap();
            let mut seen = vec![0; 8 * BLOCK];
            let mut read = |offset: u64, ahead| {
                let before = set.traffic().0;
                set.read(offset, &mut seen, run(10, 30), ahead).unwrap();
                assert!(seen[..] == content(10, 30)[offset as usize - 10 * BLOCK..][..8 * BLOCK]);
                set.traffic().0 - before
            };
            assert_eq!(read(12 * BLOCK_SIZE + 7, 0), 9 * BLOCK_SIZE);
            assert_eq!(read(12 * BLOCK_SIZE + 7, 0), again);
            // Ahead, and not beyond the extent.
            let first = read(30 * BLOCK_SIZE, 100);
            assert_eq!(first, 10 * BLOCK_SIZE);
            // Around what is there already.
            if cache > 0 {
                assert_eq!(read(9 * BLOCK_SIZE + BLOCK_SIZE, 0), 2 * BLOCK_SIZE);
            }
            let (of, all) = (set.traffic_of(2), set.traffic());
            assert_eq!((of.read_bytes, of.written_bytes), all, "it is the only one");
            assert_eq!((of.writes, of.written_bytes), (2, 34 * BLOCK_SIZE));
            assert!(of.reads >= 2 && set.traffic_of(3) == TierTraffic::default(), "{of:?}");
        }
    }

    /// A disk that notes its transfers.
    struct Noting {
        disk: SimDisk,
        made: Mutex<Vec<usize>>,
        /// Held where a flush is to last.
        flushing: Mutex<()>,
    }

    impl BlockDevice for Noting {
        fn len(&self) -> u64 {
            self.disk.len()
        }
        fn name(&self) -> &str {
            self.disk.name()
        }
        fn transfer(&self, batch: &mut [Transfer<'_>]) -> Result<()> {
            self.made.lock().push(batch.len());
            self.disk.transfer(batch)
        }
        fn flush(&self) -> Result<Durable> {
            drop(self.flushing.lock());
            self.disk.flush()
        }
        fn discard(&self, offset: u64, len: u64) -> Result<bool> {
            self.disk.discard(offset, len)
        }
    }

    /// Whoever reads a few blocks would wait for all of a group that moves.
    #[test]
    fn large_transfers_in_the_background_leave_room_between_for_others() {
        let memory = Arc::new(SimPm::with_disks(1 << 20, &[16 << 20]));
        let set = TierSet::new(0);
        let label =
            NewLabel { uuid: None, volume: Uuid::nil(), number: 2, token: 1, now: Timestamp::new(1, 0) };
        let disk = SimDisk::of(&memory, 0);
        let label = Label::create(&disk, &label).unwrap();
        set.attach(2, Noting { disk, made: Mutex::default(), flushing: Mutex::default() }, label);
        let made = || std::mem::take(&mut *set.there(2).unwrap().device.made.lock());
        let bytes = content(0, 10 * (TRANSFER / BLOCK) as u64);
        let write = || set.write(&[(run(10, (bytes.len() / BLOCK) as u64), &bytes[..])]).unwrap();
        write();
        assert_eq!(made(), [10]);
        let in_background = |work: &(dyn Fn() + Sync)| {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    background::begin();
                    work();
                });
            });
        };
        in_background(&write);
        assert_eq!(made(), [4, 4, 2]);
        // There is always one, but that is no reason to wait for ever.
        set.awaited.fetch_add(1, Ordering::Relaxed);
        let begin = std::time::Instant::now();
        in_background(&write);
        assert!(begin.elapsed() >= 3 * WAITS * WAIT);
        assert_eq!(made(), [4, 4, 2]);
        in_background(&|| set.write_at_once(&[(run(10, (bytes.len() / BLOCK) as u64), &bytes[..])]).unwrap());
        assert_eq!(made(), [10]);
        set.awaited.fetch_sub(1, Ordering::Relaxed);
        // Not only reads are waited for.
        let there = set.there(2).unwrap();
        std::thread::scope(|scope| {
            let lasts = there.device.flushing.lock();
            scope.spawn(|| set.flush([2]).map(drop).unwrap());
            while set.awaited.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            let begin = std::time::Instant::now();
            in_background(&write);
            assert!(begin.elapsed() >= 3 * WAITS * WAIT);
            drop(lasts);
        });
        in_background(&|| set.flush([2]).map(drop).unwrap());
        assert_eq!(set.awaited.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_is_written_is_not_what_was_remembered() {
        let (set, _) = set(64 << 20);
        let mut seen = vec![0; 4 * BLOCK];
        for turn in 0..3 {
            set.write(&[(run(20, 4), &content(turn, 4))]).unwrap();
            set.read(20 * BLOCK_SIZE, &mut seen, run(20, 4), 0).unwrap();
            assert!(seen == content(turn, 4));
        }
    }

    #[test]
    fn a_block_that_cannot_be_read_is_no_matter_to_its_neighbours() {
        let (set, disk) = set(64 << 20);
        set.write(&[(run(10, 10), &content(10, 10))]).unwrap();
        disk.poison(15 * BLOCK_SIZE, 1);
        let mut seen = vec![0; 2 * BLOCK];
        set.read(13 * BLOCK_SIZE, &mut seen, run(10, 10), 10).unwrap();
        assert!(seen == content(13, 2));
        let error = set.read(14 * BLOCK_SIZE, &mut seen, run(10, 10), 10).unwrap_err();
        assert_eq!(error.kind(), Kind::Media);
        set.read(16 * BLOCK_SIZE, &mut seen, run(10, 10), 10).unwrap();
        assert!(set.attachment(2).unwrap().errors >= 2);
    }

    #[test]
    fn a_tier_that_takes_no_writes_is_out_of_use_for_a_while_and_says_so_once() {
        let (set, disk) = set(0);
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hears = Arc::clone(&heard);
        set.listen(Box::new(move |what| hears.lock().push(what.to_owned())));
        set.set_time(5000);
        let write = || set.write(&[(run(10, 1), &content(10, 1))]).and_then(|()| set.flush([2]).map(drop));
        disk.fail_writes(true);
        (0..3).for_each(|_| assert_eq!(write().unwrap_err().kind(), Kind::Media));
        let is_failing = || set.attachment(2).unwrap().failing.is_some();
        assert!(!set.takes_writes(2) && is_failing());
        disk.fail_writes(false);
        write().unwrap();
        assert!(!set.takes_writes(2), "its time has not come");
        set.set_time(6000);
        assert!(set.takes_writes(2) && is_failing(), "it is to be tried");
        write().unwrap();
        assert!(set.takes_writes(2) && !is_failing());
        let heard = heard.lock();
        assert!(heard.len() == 2 && heard[0].contains("tier 2 is failing"), "{heard:?}");
        assert_eq!(heard[1], "tier 2 works again");
    }

    /// It was never said to be failing, and blocks were placed there though they might not be read again.
    #[test]
    fn a_tier_whose_reads_fail_is_doubtful_for_a_while_and_says_so_once() {
        let (set, disk) = set(0);
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hears = Arc::clone(&heard);
        set.listen(Box::new(move |what| hears.lock().push(what.to_owned())));
        set.set_time(5000);
        let write = || set.write(&[(run(10, 1), &content(10, 1))]).and_then(|()| set.flush([2]).map(drop));
        let read = || set.read_blocks(2, Block(10), &mut vec![0; BLOCK]);
        write().unwrap();
        read().unwrap();
        disk.poison(10 * BLOCK_SIZE, 1);
        let is_failing = || set.attachment(2).unwrap().failing.is_some_and(|why| why.contains("media error"));
        (0..3).for_each(|_| assert_eq!(read().unwrap_err().kind(), Kind::Media));
        assert!(is_failing() && set.is_doubtful(2) && set.takes_writes(2));
        set.set_time(6000);
        // That it takes writes, and heals what it is written to, shows nothing of its reads.
        write().unwrap();
        assert!(is_failing() && !set.is_doubtful(2), "it is to be tried");
        read().unwrap();
        assert!(!is_failing() && !set.is_doubtful(2));
        let heard = heard.lock();
        assert!(heard.len() == 2 && heard[0].contains("tier 2 fails reads"), "{heard:?}");
        assert_eq!(heard[1], "tier 2 works again");
    }

    #[test]
    fn a_tier_that_is_not_there_says_so() {
        let (set, _) = set(64 << 20);
        set.write(&[(run(10, 1), &content(10, 1))]).unwrap();
        let mut seen = vec![0; BLOCK];
        set.read(10 * BLOCK_SIZE, &mut seen, run(10, 1), 0).unwrap();
        set.detach(2, "its device was taken away");
        let error = set.read(10 * BLOCK_SIZE, &mut seen, run(10, 1), 0).unwrap_err();
        assert_eq!(error.kind(), Kind::DeviceLost);
        assert!(error.to_string().contains("taken away"), "{error}");
        assert_eq!(set.attachment(2).unwrap().device, Err("its device was taken away".to_owned()));
        // Whoever listens hears of it, later, too, and of what follows.
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hears = Arc::clone(&heard);
        set.listen(Box::new(move |what| hears.lock().push(what.to_owned())));
        set.detach(2, "it is away still");
        let expected =
            ["its device was taken away", "it is away still"].map(|why| format!("tier 2 is missing: {why}"));
        assert_eq!(*heard.lock(), expected);
        assert_eq!(set.flush([2]).unwrap_err().kind(), Kind::DeviceLost);
        assert_eq!(set.write(&[(run(10, 1), &seen)]).unwrap_err().kind(), Kind::DeviceLost);
        assert_eq!(set.flush([3]).unwrap_err().kind(), Kind::InvalidInput);
        set.forget(2);
        assert_eq!(set.attachment(2), None);
        assert!(set.flush([]).is_ok());
    }
}
