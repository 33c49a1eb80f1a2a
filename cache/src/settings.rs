//! Settings and counters of the cache.

use std::sync::Arc;

use nacre_engine::sync::atomic::{AtomicU64, Ordering};
use nacre_engine::{Error, Kind, Result};
use nacre_media::Frames;
use nacre_policy::{Checker, Latencies};

use crate::clock::Clock;

/// The unit in which data is fetched and written back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Granularity {
    /// Lines of 64 bytes. A write fetches lines that it covers in part, and writeback stores dirty lines.
    #[default]
    Lines,
    /// Blocks as a whole, as `hinfs-nclfw` does.
    Blocks,
}

/// Settings that can change while the cache runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Number of background writeback threads. Without threads, writers write back when the pool is full, and syncs
    /// do.
    pub threads: usize,
    /// Writeback starts when less than this part of the pool is free, in percent (`Low_f`).
    pub low_percent: u8,
    /// Writeback stops when more than this part is free, in percent (`High_f`).
    pub high_percent: u8,
    /// The interval of the background pass and of the retry backoff of a file whose writeback failed, in milliseconds.
    pub period_ms: u64,
    /// The age, in milliseconds since the last write, at which the next background pass writes a block back. Rewrites
    /// renew a block for at most this time, so a block that is rewritten all the time reaches media after twice this.
    pub max_age_ms: u64,
    /// Every write goes to media at once, as for a mount with `sync`.
    pub sync: bool,
    /// The rule by which blocks that are soon synchronised bypass the buffer.
    pub checker: Checker,
    /// Appended blocks take the verdict on earlier appended blocks. Otherwise appended blocks never bypass the buffer.
    /// Effective only with the checker [`Full`](Checker::Full).
    pub inherits: bool,
    /// The unit in which data is fetched and written back.
    pub granularity: Granularity,
    /// The time without a sync of its file after which an eager block is lazy again, in milliseconds.
    pub forget_ms: u64,
    /// The cost of a line, if set. Otherwise the opener of the file system measures or emulates it. If that does not
    /// happen, it is the default of [`Latencies`].
    pub latencies: Option<Latencies>,
}

impl Default for Settings {
    /// The paper's, section 4.1; two threads.
    fn default() -> Settings {
        Settings {
            threads: 2,
            low_percent: 5,
            high_percent: 20,
            period_ms: 5000,
            max_age_ms: 30_000,
            sync: false,
            checker: Checker::Full,
            inherits: false,
            granularity: Granularity::Lines,
            forget_ms: 5000,
            latencies: None,
        }
    }
}

/// The largest number of writeback threads.
pub(crate) const MAX_THREADS: usize = 64;

impl Settings {
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |what| Err(Error::new(Kind::InvalidInput).object(what));
        if self.threads > MAX_THREADS {
            return wrong("cache: more than 64 writeback threads");
        }
        if self.low_percent > self.high_percent || self.high_percent > 100 {
            return wrong("cache: Low_f must not exceed High_f, nor that 100");
        }
        if self.period_ms == 0 {
            return wrong("cache: a period of 0");
        }
        Ok(())
    }
}

/// The settings that each write reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rules {
    pub(crate) sync: bool,
    pub(crate) checker: Checker,
    pub(crate) inherits: bool,
    pub(crate) granularity: Granularity,
    pub(crate) forget_ms: u64,
    pub(crate) latencies: Latencies,
}

/// Rules that are read without a lock. A read during a change may see a mixture of old and new rules.
#[derive(Debug, Default)]
pub(crate) struct Posted {
    choices: AtomicU64,
    forget_ms: AtomicU64,
    latencies: AtomicU64,
}

impl Posted {
    pub(crate) fn new(settings: &Settings) -> Posted {
        let posted = Posted::default();
        posted.post(settings);
        posted
    }

    pub(crate) fn post(&self, settings: &Settings) {
        let &Settings { sync, checker, inherits, granularity, forget_ms, latencies, .. } = settings;
        let checker = match checker {
            Checker::Full => 0,
            Checker::Off => 1,
            Checker::Disk => 2,
        };
        let choices = u64::from(sync)
            | u64::from(granularity == Granularity::Blocks) << 1
            | u64::from(inherits) << 2
            | checker << 3;
        self.choices.store(choices, Ordering::Relaxed);
        self.forget_ms.store(forget_ms, Ordering::Relaxed);
        let latencies = latencies.unwrap_or_default();
        let latencies = u64::from(latencies.dram_ns) << 32 | u64::from(latencies.pm_ns);
        self.latencies.store(latencies, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Rules {
        let choices = self.choices.load(Ordering::Relaxed);
        let latencies = self.latencies.load(Ordering::Relaxed);
        Rules {
            sync: choices & 1 != 0,
            inherits: choices & 4 != 0,
            checker: match choices >> 3 {
                0 => Checker::Full,
                1 => Checker::Off,
                _ => Checker::Disk,
            },
            granularity: if choices & 2 != 0 { Granularity::Blocks } else { Granularity::Lines },
            forget_ms: self.forget_ms.load(Ordering::Relaxed),
            latencies: Latencies { dram_ns: (latencies >> 32) as u32, pm_ns: latencies as u32 },
        }
    }
}

/// How a cache is set up.
#[derive(Debug, Clone)]
pub struct CacheOptions {
    /// The largest amount of DRAM for blocks, in bytes, at least 4 blocks. The index and the model add about 3 %.
    pub size: u64,
    /// The mount is read-only, so nothing is buffered.
    pub read_only: bool,
    /// Settings that can change later.
    pub settings: Settings,
    /// The opener of the file system may change the number of threads to suit its PM.
    pub fits_threads: bool,
    /// The clock that measures the age of blocks.
    pub clock: Clock,
    /// DRAM shared with a layout below. The layout may use the idle part of it, and gives it up when a write needs it
    /// (`BelowBuffer::give_up_dram`). Without it, only the cache uses its DRAM.
    pub frames: Option<Arc<Frames>>,
}

impl CacheOptions {
    /// A cache of `size` bytes with the defaults.
    pub fn new(size: u64) -> CacheOptions {
        CacheOptions {
            size,
            read_only: false,
            settings: Settings::default(),
            fits_threads: true,
            clock: Clock::default(),
            frames: None,
        }
    }
}

/// State and counters since the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStatus {
    /// Blocks of the pool.
    pub blocks: u64,
    /// Blocks in use.
    pub used: u64,
    /// Blocks that are not in DRAM and that the model still tracks.
    pub ghosts: u64,
    /// Bytes that writes put into DRAM.
    pub written_lazily: u64,
    /// Bytes that writes put on media at once.
    pub written_eagerly: u64,
    /// Bytes of dirty lines that a later write replaced in DRAM and that never reached media.
    pub overwritten: u64,
    /// Bytes of dirty lines that never reached media, because their file was removed or truncated.
    pub discarded: u64,
    /// Bytes that writes fetched from the layout.
    pub fetched: u64,
    /// Bytes that writeback and syncs gave to the layout.
    pub written_back: u64,
    /// Blocks that a buffered write found in DRAM.
    pub write_hits: u64,
    /// Blocks that a buffered write did not find in DRAM.
    pub write_misses: u64,
    /// Bytes that reads took from DRAM.
    pub read_from_dram: u64,
    /// Writes that waited for free blocks.
    pub stalls: u64,
    /// Writebacks that failed. The next sync of the file reports each.
    pub failures: u64,
    /// Bytes that the threads dropped after repeated failures.
    pub lost: u64,
    /// Verdicts of the model that agree with the verdict at the sync before (figure 4 of the paper).
    pub accurate: u64,
    /// Verdicts of the model that differ from the verdict at the sync before.
    pub inaccurate: u64,
}

impl CacheStatus {
    /// The model's accuracy, from 0 to 1, once two syncs have judged one block.
    pub fn accuracy(&self) -> Option<f64> {
        let judged = self.accurate + self.inaccurate;
        (judged > 0).then(|| self.accurate as f64 / judged as f64)
    }
}

/// A counter that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters behind [`CacheStatus`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) written_lazily: Counter,
    pub(crate) written_eagerly: Counter,
    pub(crate) overwritten: Counter,
    pub(crate) discarded: Counter,
    pub(crate) fetched: Counter,
    pub(crate) written_back: Counter,
    pub(crate) write_hits: Counter,
    pub(crate) write_misses: Counter,
    pub(crate) read_from_dram: Counter,
    pub(crate) stalls: Counter,
    pub(crate) failures: Counter,
    pub(crate) lost: Counter,
    pub(crate) accurate: Counter,
    pub(crate) inaccurate: Counter,
}

#[cfg(test)]
mod tests {
    use nacre_policy::{Checker, Latencies};

    use super::{Granularity, Posted, Rules, Settings};

    #[test]
    fn what_is_posted_is_read() {
        for checker in [Checker::Full, Checker::Off, Checker::Disk] {
            for granularity in [Granularity::Lines, Granularity::Blocks] {
                for (sync, inherits) in [(false, false), (true, false), (false, true), (true, true)] {
                    let latencies = Latencies { dram_ns: 7, pm_ns: u32::MAX };
                    let forget_ms = u64::MAX - 1;
                    let settings = Settings {
                        sync,
                        checker,
                        inherits,
                        granularity,
                        forget_ms,
                        latencies: Some(latencies),
                        ..Settings::default()
                    };
                    let expected = Rules { sync, checker, inherits, granularity, forget_ms, latencies };
                    assert_eq!(Posted::new(&settings).read(), expected);
                }
            }
        }
    }
}
