//! How many inodes have their state in DRAM, how many may, and when some are to go. The choice of inodes is in
//! `table/inodes.rs`, or in a layout's `evict.rs`.

use nacre_engine::InodeCache;
use nacre_engine::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use nacre_engine::sync::{EXPLORED, Mutex};
use nacre_media::trim_heap;

/// So many bytes go before the heap is looked at.
const MANY_BYTES: u64 = 192 << 10;

/// How many inodes are in DRAM, and how many may be. The counter counts those in use that are not in DRAM. So making or
/// removing inodes, which are in DRAM, needs no counter beside the table's count of inodes in use.
pub struct Eviction {
    limit: u64,
    /// Inodes in use with no state in DRAM.
    absent: AtomicU64,
    /// More than these, and a sweep is due. The limit, unless the last sweep found too few that could go.
    sweep_at: AtomicU64,
    is_due: AtomicBool,
    /// The most that were loaded since the heap gave back its free DRAM, and bytes that were freed since.
    peak: AtomicU64,
    freed: AtomicU64,
    /// Where the next sweep goes on. Locked by a sweep.
    pub hand: Mutex<u64>,
}

impl Eviction {
    /// At most `limit` inodes that are not held are to be in DRAM.
    pub fn new(limit: u64) -> Eviction {
        Eviction {
            limit,
            absent: AtomicU64::new(0),
            sweep_at: AtomicU64::new(limit),
            is_due: AtomicBool::new(false),
            peak: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            hand: Mutex::new(0),
        }
    }

    /// None of those in use is in DRAM.
    pub fn none_is_loaded(&self, in_use: u64) {
        self.absent.store(in_use, Ordering::Relaxed);
    }

    /// How many are, and may be.
    pub fn state(&self, in_use: u64) -> InodeCache {
        InodeCache { loaded: self.loaded(in_use), limit: self.limit }
    }

    fn loaded(&self, in_use: u64) -> u64 {
        in_use.saturating_sub(self.absent.load(Ordering::Relaxed))
    }

    /// One was made, and is in DRAM; it is one of those in use. True when a sweep is due.
    #[inline]
    pub fn one_made(&self, in_use: u64) -> bool {
        let (loaded, sweep_at) = (self.loaded(in_use), self.sweep_at.load(Ordering::Relaxed));
        if loaded > sweep_at {
            return !self.is_due.load(Ordering::Relaxed) && !self.is_due.swap(true, Ordering::AcqRel);
        }
        if sweep_at > self.limit && loaded < self.limit {
            self.sweep_at.store(self.limit, Ordering::Relaxed);
        }
        false
    }

    /// The state of one was read. True when a sweep is due.
    pub fn one_loaded(&self, in_use: u64) -> bool {
        self.absent.fetch_sub(1, Ordering::Relaxed);
        self.one_made(in_use)
    }

    /// A sweep is due.
    pub fn is_due(&self) -> bool {
        self.is_due.load(Ordering::Acquire)
    }

    /// There are more than a sweep leaves.
    pub fn is_beyond_target(&self, in_use: u64) -> bool {
        self.loaded(in_use) > self.limit - self.limit / 8
    }

    /// A sweep is over, which dropped the state of so many. True when another is due at once: others came as fast as
    /// those went. Inodes that a sweep had to leave are not looked at again before there are some more.
    pub fn swept(&self, in_use: u64, gone: u64) -> bool {
        let loaded = self.loaded(in_use);
        let is_outrun = loaded > self.limit && gone >= self.limit / 8;
        let sweep_at = if is_outrun { self.limit } else { self.limit.max(loaded + self.limit / 8) };
        self.sweep_at.store(sweep_at, Ordering::Relaxed);
        self.is_due.store(is_outrun, Ordering::Release);
        is_outrun
    }

    /// The state of one is no longer to be found.
    pub fn one_left(&self) {
        self.absent.fetch_add(1, Ordering::Relaxed);
    }

    /// The state of one that left was freed. Once much was freed, the system gets back all free DRAM of the heap. That
    /// includes gaps between blocks in use, which glibc would keep.
    pub fn freed(&self, bytes: u64, in_use: u64) {
        if self.is_much_freed(bytes, self.loaded(in_use)) && !EXPLORED {
            trim_heap();
        }
    }

    /// Whether half of the inodes are gone that there were since this was last true, and much with them. So it is true
    /// a few times while all of them are dropped, and never while as many are dropped as loaded.
    fn is_much_freed(&self, bytes: u64, left: u64) -> bool {
        let freed = self.freed.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let peak = self.peak.fetch_max(left + 1, Ordering::Relaxed).max(left + 1);
        let is_much = left <= peak / 2 && freed >= MANY_BYTES;
        // For one of the threads that see it.
        if !is_much || self.freed.swap(0, Ordering::Relaxed) < MANY_BYTES {
            return false;
        }
        self.peak.store(left, Ordering::Relaxed);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{Eviction, MANY_BYTES};

    #[test]
    fn a_sweep_is_due_once_beyond_the_limit() {
        let eviction = Eviction::new(80);
        eviction.none_is_loaded(200);
        assert_eq!(eviction.state(200).loaded, 0);
        assert!((0..79).all(|_| !eviction.one_loaded(200)));
        assert!(!eviction.one_made(201) && !eviction.is_due());
        assert!(eviction.one_made(202) && eviction.is_due());
        assert!(!eviction.one_loaded(202), "somebody sweeps already");
        assert_eq!((eviction.state(202).loaded, eviction.state(202).limit), (82, 80));
        while eviction.is_beyond_target(202) {
            eviction.one_left();
        }
        assert_eq!(eviction.state(202).loaded, 70);
        assert!(!eviction.swept(202, 12));
        assert!(!eviction.is_due());
    }

    /// Others came while a sweep let go of as many: the limit was passed until the next one came.
    #[test]
    fn a_sweep_that_was_outrun_is_due_again() {
        let eviction = Eviction::new(80);
        assert!((1..=81).any(|in_use| eviction.one_made(in_use)));
        assert!(eviction.swept(90, 81) && eviction.is_due());
        assert!(!eviction.one_made(91), "it is due already");
        assert!(!eviction.swept(90, 9), "the others cannot go");
        assert!(!eviction.is_due());
        assert!(!eviction.swept(70, 20), "enough went");
    }

    #[test]
    fn those_that_cannot_go_are_not_looked_at_for_each_that_comes() {
        let eviction = Eviction::new(80);
        assert_eq!((1..=200).filter(|&in_use| eviction.one_made(in_use)).count(), 1);
        eviction.swept(200, 0);
        assert_eq!((201..=300).filter(|&in_use| eviction.one_made(in_use)).count(), 1, "when an eighth came");
        // Once they are gone the limit counts.
        eviction.swept(60, 0);
        assert_eq!((61..=81).filter(|&in_use| eviction.one_made(in_use)).count(), 1);
        eviction.swept(300, 0);
        assert!(!eviction.one_made(60));
        assert_eq!((61..=81).filter(|&in_use| eviction.one_made(in_use)).count(), 1);
    }

    #[test]
    fn the_heap_is_looked_at_when_half_is_gone() {
        let eviction = Eviction::new(u64::MAX);
        let told = |bytes: u64, from: u64| {
            (0..from).rev().filter(|&left| eviction.is_much_freed(bytes, left)).count()
        };
        let many = told(800, 100_000);
        assert!((8..=10).contains(&many), "{many} times");
        // Few may be large.
        let large = told(MANY_BYTES / 4, 64);
        assert!((3..=5).contains(&large), "{large} times");
        assert!((0..100_000).all(|_| !eviction.is_much_freed(800, 50_000)), "as many come as go");
    }
}
