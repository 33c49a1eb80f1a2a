//! The state of one file in the cache, and the nodes that callers hold.

use std::sync::Arc;

use nacre_engine::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use nacre_engine::sync::{Condvar, Mutex, OnceLock, RwLock};
use nacre_engine::{Attr, BLOCK_SIZE, Error, InodeId, Kind, Reservation, Result, Timestamp, WriteAt};
use nacre_media::Frame;
use nacre_policy::{Block as ModelBlock, FileHistory};

use crate::index::Index;
use crate::order::Slot;

/// The number of hopeless writebacks in a row, one period apart, after which the blocks are dropped.
const MAX_ATTEMPTS: u32 = 3;

/// See [`File::is_preallocated`] and [`File::is_dense`].
const UNKNOWN: u32 = 0;
const NO: u32 = 1;
const YES: u32 = 2;

/// A block of a file in DRAM. The fields that each write needs come first, in one cache line of the CPU.
#[repr(C, align(64))]
pub(crate) struct Entry {
    /// The bytes. Shared with the writeback in flight until the first write after it began.
    pub(crate) buffer: Frame,
    /// Lines that are valid here. The layout has the other lines.
    pub(crate) valid: u64,
    /// Lines that neither media nor a writeback in flight has. All of them are valid.
    pub(crate) dirty: u64,
    /// The state of the block in the model.
    pub(crate) model: ModelBlock,
    pub(crate) slot: Slot,
    /// The age of the pool when the block was last put at the end of its list.
    pub(crate) listed_at: u32,
    /// The part that a writeback has taken and not finished.
    pub(crate) flight: Option<Box<Flight>>,
    /// Blocks of the layout's space that are reserved for this block.
    pub(crate) space: u64,
}

const _: () = assert!(std::mem::offset_of!(Entry, flight) == 64, "the first part that is read is a line");

/// The part of a block that is being written back.
pub(crate) struct Flight {
    pub(crate) slot: Slot,
    pub(crate) buffer: Frame,
    pub(crate) lines: u64,
    /// As [`Entry::space`].
    pub(crate) space: u64,
}

/// A file's blocks in DRAM, by number.
#[derive(Default)]
pub(crate) struct Blocks {
    pub(crate) index: Index<Entry>,
    /// A writeback in flight extends the size on media. At most one does at a time, because they go in order.
    pub(crate) extending: bool,
    /// The layout's space for the file, and for its blocks that are not in flight.
    pub(crate) reservation: Reservation,
    /// The part of it that is for the file while it has blocks in DRAM.
    pub(crate) space: u64,
    /// The part of it that the last writeback in flight of a removed file returns at its end. Until then
    /// it may need space that is reserved for other files.
    pub(crate) owed: u64,
}

/// Times that media does not have yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
    /// The time of the last read since the write, by the rules of relatime; `None` without such a read.
    pub(crate) atime: Option<Timestamp>,
}

/// The state of a file for the new-file predictor, and where its first writes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Birth {
    /// It is not new: it was synchronised, or existed before the cache knew it.
    Over,
    /// It was never written to.
    Empty,
    /// Its writes go through DRAM. The verdict of its first sync is a sample for the new-file predictor.
    Watched,
    /// Its writes bypass DRAM, because the new-file predictor prefers that.
    Past,
}

impl Birth {
    const ALL: [Birth; 4] = [Birth::Over, Birth::Empty, Birth::Watched, Birth::Past];

    /// The state of a file that the cache learns of now.
    fn of(attr: &Attr) -> Birth {
        if attr.size == 0 && attr.allocated == 0 { Birth::Empty } else { Birth::Over }
    }
}

/// The state of one file.
///
/// Invariants: without blocks in the index, `size == below` and there are no `times`; `below <= size`.
pub(crate) struct File {
    pub(crate) id: InodeId,
    /// The size that callers see. It changes under `blocks`.
    pub(crate) size: AtomicU64,
    /// The size in the layout below.
    pub(crate) below: AtomicU64,
    /// Flags of the inode.
    pub(crate) flags: AtomicU32,
    pub(crate) blocks: RwLock<Blocks>,
    /// Blocks in the index, to be read without the lock.
    pub(crate) cached: AtomicU64,
    pub(crate) times: Mutex<Option<Times>>,
    pub(crate) history: Mutex<FileHistory>,
    /// Blocks in `history`, to be read without the lock.
    pub(crate) ghosts: AtomicU64,
    /// A [`Birth`] as a number, and the time at which it was set, by the clock of the cache.
    birth: AtomicU32,
    born_ms: AtomicU64,
    /// Raised by operations that make writebacks in flight pointless.
    pub(crate) epoch: AtomicU64,
    /// The inode is gone, and the rest of its state has no owner.
    pub(crate) gone: AtomicBool,
    /// Writebacks in flight, raised under `blocks`.
    flights: Mutex<u32>,
    landed: Condvar,
    /// The error that the next sync of the file reports.
    error: Mutex<Option<Kind>>,
    /// Data of the file was dropped, and no sync has reported it yet.
    has_lost: AtomicBool,
    /// Hopeless writebacks in a row, each after the backoff of the one before.
    attempts: AtomicU32,
    /// The end of the retry backoff by the clock of the cache. Until then only a sync tries again.
    rests_until_ms: AtomicU64,
    /// Whether the file has preallocated blocks behind its size: [`UNKNOWN`], [`NO`] or [`YES`]. Only the layout knows
    /// which blocks these are. A write there takes no space, and a truncation frees them by the size that the layout
    /// has. Writes to such a file go to media at once.
    preallocated: AtomicU32,
    /// Whether each block before the size is in DRAM or on media. An operation that may make a hole clears this first,
    /// and holes are not searched again.
    dense: AtomicU32,
    /// The file was truncated to zero, and its old contents are gone. New contents wait until the next close at most.
    pub(crate) replaced: AtomicBool,
    /// The number of callers that bypass the buffer, such as mappings.
    pub(crate) pinned: AtomicU32,
    /// The lead of the change counter over the layout's. It grows with each buffered write.
    pub(crate) changes: AtomicU64,
}

impl File {
    pub(crate) fn new(attr: &Attr) -> File {
        File {
            id: attr.id,
            size: AtomicU64::new(attr.size),
            below: AtomicU64::new(attr.size),
            flags: AtomicU32::new(attr.flags),
            blocks: RwLock::new(Blocks::default()),
            cached: AtomicU64::new(0),
            times: Mutex::new(None),
            history: Mutex::new(FileHistory::default()),
            ghosts: AtomicU64::new(0),
            birth: AtomicU32::new(Birth::of(attr) as u32),
            born_ms: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            gone: AtomicBool::new(false),
            flights: Mutex::new(0),
            landed: Condvar::new(),
            error: Mutex::new(None),
            has_lost: AtomicBool::new(false),
            attempts: AtomicU32::new(0),
            rests_until_ms: AtomicU64::new(0),
            preallocated: AtomicU32::new(if attr.allocated == 0 { NO } else { UNKNOWN }),
            dense: AtomicU32::new(if attr.size == 0 { YES } else { UNKNOWN }),
            replaced: AtomicBool::new(false),
            pinned: AtomicU32::new(0),
            changes: AtomicU64::new(0),
        }
    }

    /// The state for the new-file predictor.
    pub(crate) fn birth(&self) -> Birth {
        let number = self.birth.load(Ordering::Relaxed);
        Birth::ALL.into_iter().find(|birth| *birth as u32 == number).unwrap_or(Birth::Over)
    }

    /// Sets the state, as of now.
    pub(crate) fn set_birth(&self, birth: Birth, now_ms: u64) {
        self.born_ms.store(now_ms, Ordering::Relaxed);
        self.birth.store(birth as u32, Ordering::Relaxed);
    }

    pub(crate) fn born_ms(&self) -> u64 {
        self.born_ms.load(Ordering::Relaxed)
    }

    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    pub(crate) fn below(&self) -> u64 {
        self.below.load(Ordering::Acquire)
    }

    /// Whether it has blocks in DRAM.
    pub(crate) fn is_cached(&self) -> bool {
        self.cached.load(Ordering::Acquire) > 0
    }

    /// The layout wrote up to `end`.
    pub(crate) fn grew_below(&self, end: u64) {
        // Most writes overwrite, and it never shrinks while one is under way.
        if end > self.below() {
            self.size.fetch_max(end, Ordering::AcqRel);
            self.below.fetch_max(end, Ordering::AcqRel);
        }
    }

    /// Sets both sizes, with nothing in DRAM behind them. Under `blocks`, exclusively.
    pub(crate) fn set_size(&self, size: u64) {
        if size == 0 {
            self.dense.store(YES, Ordering::Release);
        }
        self.size.store(size, Ordering::Release);
        self.below.store(size, Ordering::Release);
    }

    /// Whether the file has blocks behind its size; `None` if unknown.
    pub(crate) fn is_preallocated(&self) -> Option<bool> {
        match self.preallocated.load(Ordering::Acquire) {
            UNKNOWN => None,
            known => Some(known == YES),
        }
    }

    /// An operation added such blocks, or removed them.
    pub(crate) fn set_preallocated(&self, is: bool) {
        self.preallocated.store(if is { YES } else { NO }, Ordering::Release);
    }

    /// Whether the file is known to have no hole.
    pub(crate) fn is_dense(&self) -> bool {
        self.dense.load(Ordering::Acquire) == YES
    }

    /// A search found no hole. Without effect if an operation made one meanwhile.
    pub(crate) fn learn_dense(&self) {
        // Fails if another operation knows better.
        let _ = self.dense.compare_exchange(UNKNOWN, YES, Ordering::AcqRel, Ordering::Acquire);
    }

    /// An operation may make a hole.
    pub(crate) fn may_get_hole(&self) {
        self.dense.store(NO, Ordering::Release);
    }

    /// A write begins at `offset`. A block that it skips before `offset` is a hole.
    pub(crate) fn check_for_hole(&self, offset: u64) {
        if offset / BLOCK_SIZE > self.size().div_ceil(BLOCK_SIZE) {
            self.may_get_hole();
        }
    }

    /// Stores the result of a search, unless an operation knew better meanwhile, and returns the state.
    pub(crate) fn learn_preallocated(&self, is: bool) -> bool {
        let found = if is { YES } else { NO };
        match self.preallocated.compare_exchange(UNKNOWN, found, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => is,
            Err(known) => known == YES,
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    pub(crate) fn raise_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// A writeback begins. Under `blocks`, exclusively.
    pub(crate) fn take_off(&self) {
        *self.flights.lock() += 1;
    }

    pub(crate) fn land(&self) {
        *self.flights.lock() -= 1;
        self.landed.notify_all();
    }

    pub(crate) fn has_flights(&self) -> bool {
        *self.flights.lock() > 0
    }

    /// Waits until no writeback is in flight. The caller holds no locks.
    pub(crate) fn wait_for_flights(&self) {
        let mut flights = self.flights.lock();
        while *flights > 0 {
            self.landed.wait(&mut flights);
        }
    }

    /// A writeback has failed. Until `until_ms` only a sync tries again. If the file `is_hopeless`, that is an attempt.
    /// Concurrent writebacks that fail count as one.
    pub(crate) fn rest(&self, now_ms: u64, until_ms: u64, is_hopeless: bool) {
        let before = self.rests_until_ms();
        let rests =
            self.rests_until_ms.compare_exchange(before, until_ms, Ordering::AcqRel, Ordering::Acquire);
        if rests.is_ok() && before <= now_ms && is_hopeless {
            self.attempts.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(crate) fn rests_until_ms(&self) -> u64 {
        self.rests_until_ms.load(Ordering::Acquire)
    }

    /// A writeback has succeeded. During a backoff this says nothing about the part that failed.
    pub(crate) fn wrote(&self, now_ms: u64) {
        if self.rests_until_ms() <= now_ms {
            self.attempts.store(0, Ordering::Release);
        }
    }

    /// The file has nothing left that failed before.
    pub(crate) fn recovered(&self) {
        self.attempts.store(0, Ordering::Release);
        self.rests_until_ms.store(0, Ordering::Release);
    }

    /// Whether the file has used up its attempts.
    pub(crate) fn is_hopeless(&self) -> bool {
        self.attempts.load(Ordering::Acquire) >= MAX_ATTEMPTS
    }

    /// Keeps an error for the next sync.
    pub(crate) fn note_error(&self, kind: Kind) {
        self.error.lock().get_or_insert(kind);
    }

    /// The error for a sync to report, once.
    pub(crate) fn take_error(&self) -> Result<()> {
        let mut error = self.error.lock();
        self.set_lost(false);
        self.told(error.take())
    }

    /// Data of the file was dropped, or lost data no longer matters because its file is empty.
    pub(crate) fn set_lost(&self, lost: bool) {
        self.has_lost.store(lost, Ordering::Release);
    }

    /// The error that the next sync reports, if data was dropped. A caller that asks earlier must not take the file
    /// for the written data.
    pub(crate) fn check_lost(&self) -> Result<()> {
        if self.has_lost.load(Ordering::Acquire) { self.told(*self.error.lock()) } else { Ok(()) }
    }

    fn told(&self, error: Option<Kind>) -> Result<()> {
        let tell = |kind| Error::new(kind).operation("writeback").object(format!("inode {}", self.id.number));
        error.map_or(Ok(()), |kind| Err(tell(kind)))
    }

    /// Whether the file must stay known without users.
    pub(crate) fn is_needed(&self) -> bool {
        self.is_cached() || self.pinned.load(Ordering::Acquire) > 0 || self.error.lock().is_some()
    }

    /// Whether a write may wait in DRAM. The flags of the inode allow it, no block is mapped, and no block lies behind
    /// the end. Under `blocks`.
    pub(crate) fn may_wait(&self, at: WriteAt) -> bool {
        let is_pinned = self.pinned.load(Ordering::Acquire) > 0;
        self.check_flags(at) && !is_pinned && self.is_preallocated() == Some(false)
    }

    /// Whether the flags of the inode allow this write.
    pub(crate) fn check_flags(&self, at: WriteAt) -> bool {
        let forbidden =
            if at == WriteAt::End { Attr::IMMUTABLE } else { Attr::IMMUTABLE | Attr::APPEND_ONLY };
        self.flags.load(Ordering::Acquire) & forbidden == 0
    }
}

/// A held inode of a [`CacheFs`](crate::CacheFs) over a layout whose nodes are `N`.
pub struct CacheNode<N> {
    pub(crate) inner: N,
    /// The state of the file in the cache, looked up when its data is first used.
    pub(crate) file: OnceLock<Arc<File>>,
}

impl<N> CacheNode<N> {
    /// The node of the layout below.
    pub fn below(&self) -> &N {
        &self.inner
    }

    pub(crate) fn into_below(self) -> N {
        self.inner
    }

    pub(crate) fn new(inner: N) -> CacheNode<N> {
        CacheNode { inner, file: OnceLock::new() }
    }
}

impl<N: Clone> Clone for CacheNode<N> {
    fn clone(&self) -> CacheNode<N> {
        let file = OnceLock::new();
        if let Some(known) = self.file.get() {
            // It is new: nobody has set it.
            let _ = file.set(Arc::clone(known));
        }
        CacheNode { inner: self.inner.clone(), file }
    }
}

#[cfg(test)]
mod tests {
    use nacre_engine::{Attr, BLOCK_SIZE, FileKind, InodeId, Timestamp};

    use super::File;

    fn file(size: u64) -> File {
        let time = Timestamp::default();
        File::new(&Attr {
            id: InodeId { volume: 0, number: 1, generation: 1 },
            kind: FileKind::Regular,
            mode: 0o644,
            links: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            allocated: size,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            flags: 0,
            change: 0,
        })
    }

    #[test]
    fn a_hole_is_noted_before_it_is_there() {
        let grows = file(0);
        for (offset, end) in [(0, 5000), (5000, 5001), (2 * BLOCK_SIZE, 3 * BLOCK_SIZE)] {
            grows.check_for_hole(offset);
            assert!(grows.is_dense(), "a write at {offset} leaves out no block");
            grows.grew_below(end);
        }
        grows.check_for_hole(4 * BLOCK_SIZE);
        assert!(!grows.is_dense());
        grows.learn_dense();
        assert!(!grows.is_dense(), "who looked before is too late");
        grows.set_size(0);
        assert!(grows.is_dense());
    }

    #[test]
    fn what_nobody_has_looked_at_may_have_holes() {
        let found = file(3 * BLOCK_SIZE);
        assert!(!found.is_dense());
        found.learn_dense();
        assert!(found.is_dense());
        found.may_get_hole();
        assert!(!found.is_dense());
    }
}
