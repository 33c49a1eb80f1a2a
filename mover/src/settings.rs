//! The settings of the mover. They are kept once, and can be changed while the file system is mounted.

use std::sync::Arc;

use nacre_engine::BLOCK_SIZE;
use nacre_engine::sync::RwLock;
use nacre_engine::sync::atomic::{AtomicBool, Ordering};
use nacre_policy::{Hours, Minute, Rules};

/// Large asynchronous writes go to disk when usage is this many percent below the threshold, so that data written
/// between two ticks does not have to move.
const SOONER: f64 = 5.0;

/// How much data PM holds with anti-caching.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threshold {
    /// So many bytes.
    Bytes(u64),
    /// So many percent of PM.
    Percent(u8),
}

/// How it is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoverOptions {
    /// Bytes of DRAM for blocks of tiers; if this DRAM is shared, see
    /// [`TieredFs::with_frames`](crate::TieredFs::with_frames).
    pub page_cache: u64,
    /// Blocks that are fetched at once, at most, of a file that is read in order. It is fixed at setup.
    pub read_ahead: u64,
    /// Blocks that are moved as one.
    pub group: u64,
    /// The rules by which the predictors send writes that a write buffer has accepted to PM or to disk.
    pub rules: Rules,
    /// Blocks move for the sake of reads, too.
    pub balance: bool,
    /// When blocks move by themselves.
    pub hours: Hours,
    /// Bytes that are moved in a second, at most; direct reclaim is exempt. The limit is at least a block.
    pub rate: Option<u64>,
    /// The usage of PM above which the logs of files are compacted, in percent.
    pub log_threshold: u8,
    /// The usage of a tier above which cold files on it move to slower ones, in percent; they never do with 100.
    pub tier_threshold: u8,
    /// Usage of PM, in percent, above which large asynchronous writes go to disk at once: 0 for always. The default is
    /// that of [`TieredFs::with_large_writes`](crate::TieredFs::with_large_writes).
    pub disk_threshold: Option<u8>,
    /// Anti-caching in place of all other rules: PM holds data up to this, and what was not used for longest is on
    /// disk.
    pub anticache: Option<Threshold>,
    /// With anti-caching, how long a block that was read ahead to DRAM waits for its first read, at least, in
    /// milliseconds.
    pub prefetch_age_ms: u64,
    /// Files with a known temperature, at most, of those on PM and of those on tiers. It is fixed at setup.
    pub known_files: usize,
}

impl Default for MoverOptions {
    /// 16 MiB are moved at once (TPFS, 5.5). Logs are compacted when usage of PM is "extremely high" (5.6): higher than
    /// data that is left to be demoted ever keeps it.
    fn default() -> MoverOptions {
        MoverOptions {
            page_cache: 64 << 20,
            read_ahead: (1 << 20) / BLOCK_SIZE,
            group: (16 << 20) / BLOCK_SIZE,
            rules: Rules::default(),
            balance: true,
            hours: Hours::default(),
            rate: None,
            log_threshold: 95,
            tier_threshold: 90,
            disk_threshold: None,
            anticache: None,
            prefetch_age_ms: 5000,
            known_files: 1 << 16,
        }
    }
}

/// When large asynchronous writes go to disk at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LargeWrites {
    /// Always, as TPFS steers them.
    ToDisk,
    /// Where PM is used so much that blocks are demoted. Until then it has room for blocks that would not move, and is
    /// the faster place.
    WhereBlocksMove,
}

/// When the next window of the hours begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextWindow {
    /// In milliseconds since 1970.
    pub at_ms: u64,
    /// In local time.
    pub minute: Minute,
}

/// The settings at one time.
#[derive(Clone)]
pub(crate) struct Current {
    pub(crate) options: MoverOptions,
    /// For large writes, as long as the options say nothing of them.
    large_writes: LargeWrites,
    /// Seconds that local time is ahead of UTC at a time in milliseconds since 1970.
    ahead_s: fn(u64) -> i64,
}

/// The settings of a mounted file system.
pub(crate) struct Settings {
    current: RwLock<Arc<Current>>,
    /// Whether these have a threshold of anti-caching: each read and write asks.
    has_anticache: AtomicBool,
}

impl Settings {
    /// Hours are those of UTC, and large writes go to disk.
    pub(crate) fn new(options: MoverOptions) -> Settings {
        let current = Current { options, large_writes: LargeWrites::ToDisk, ahead_s: |_| 0 };
        let has_anticache = AtomicBool::new(current.options.anticache.is_some());
        Settings { current: RwLock::new(Arc::new(current)), has_anticache }
    }

    /// The settings now.
    pub(crate) fn now(&self) -> Arc<Current> {
        Arc::clone(&self.current.read())
    }

    fn change(&self, change: impl FnOnce(&mut Current)) {
        let mut now = self.current.write();
        let mut next = Current::clone(&now);
        change(&mut next);
        self.has_anticache.store(next.options.anticache.is_some(), Ordering::Relaxed);
        *now = Arc::new(next);
    }

    /// Sets the options.
    pub(crate) fn set_options(&self, options: MoverOptions) {
        self.change(|now| now.options = options);
    }

    /// Sets the rate alone.
    pub(crate) fn set_rate(&self, rate: Option<u64>) {
        self.change(|now| now.options.rate = rate);
    }

    /// Sets the rule for large writes of which the options say nothing.
    pub(crate) fn set_large_writes(&self, large_writes: LargeWrites) {
        self.change(|now| now.large_writes = large_writes);
    }

    /// Sets the offset of local time.
    pub(crate) fn set_local_time(&self, ahead_s: fn(u64) -> i64) {
        self.change(|now| now.ahead_s = ahead_s);
    }

    /// Blocks that are moved as one; they may be others the next time.
    pub(crate) fn group(&self) -> u64 {
        self.current.read().options.group
    }

    /// The rules of the predictors, for writes: without a count of references that all threads share.
    pub(crate) fn rules(&self) -> Rules {
        self.current.read().options.rules
    }

    /// Whether anti-caching places blocks: those that are read on tiers come up, and no write goes to disk by itself.
    #[inline]
    pub(crate) fn has_anticache(&self) -> bool {
        self.has_anticache.load(Ordering::Relaxed)
    }

    /// Bytes that are moved in a second, at most.
    pub(crate) fn rate(&self) -> Option<u64> {
        self.current.read().options.rate.map(|rate| rate.max(BLOCK_SIZE))
    }
}

impl Current {
    /// The blocks of data that PM, of so many blocks, holds with anti-caching; none without it.
    pub(crate) fn anticache_blocks(&self, pm_blocks: u64) -> Option<u64> {
        Some(match self.options.anticache? {
            Threshold::Bytes(bytes) => bytes / BLOCK_SIZE,
            Threshold::Percent(percent) => (u128::from(pm_blocks) * u128::from(percent) / 100) as u64,
        })
    }

    /// The usage of PM, in percent, above which large asynchronous writes go to disk, if blocks are demoted above
    /// `demotion` percent. `None` for always.
    pub(crate) fn disk_threshold(&self, demotion: f64) -> Option<f64> {
        match (self.options.disk_threshold, self.large_writes) {
            (Some(0), _) | (None, LargeWrites::ToDisk) => None,
            (Some(above), _) => Some(above.into()),
            (None, LargeWrites::WhereBlocksMove) => Some(demotion - SOONER),
        }
    }

    /// Whether blocks may move by themselves at the time of the last tick. Before the first tick nothing moves anyway,
    /// and status queries must not report the hours of 1970.
    pub(crate) fn is_in_hours(&self, now_ms: u64) -> bool {
        let hours = self.options.hours;
        now_ms == 0 || hours.is_always() || hours.is_open(Minute::of(now_ms, (self.ahead_s)(now_ms)))
    }

    /// The next time at which they may; `None` if they may at this time.
    pub(crate) fn next_window(&self, now_ms: u64) -> Option<NextWindow> {
        if self.is_in_hours(now_ms) {
            return None;
        }
        let at_ms = self.options.hours.opens_ms(now_ms, &self.ahead_s)?;
        Some(NextWindow { at_ms, minute: Minute::of(at_ms, (self.ahead_s)(at_ms)) })
    }
}
