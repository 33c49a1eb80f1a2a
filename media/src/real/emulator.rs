//! Makes DRAM or PM as slow as the PM that is emulated, and counts the accesses to it.
//!
//! Each line that is flushed or stored past the cache adds to a debt of its thread. The fence pays the debt by
//! spinning on the time-stamp counter, less the time that the real flushes, stores past the cache and fence took. The
//! bandwidth of all writers is a clock that every write moves on by its share and no fence returns before
//! ([`Clock`]). Debt belongs to the thread, as the stores of a fence do, so several emulated devices may be used by
//! one thread.
//!
//! A thread in the background ([`background`](nacre_engine::background)) sleeps its delays, many small ones at once:
//! the emulated machine may have more cores for such threads than this one. Such a sleep pays for earlier accesses,
//! too. If it comes while a lock is held, others wait longer for that lock than they would on such PM.
//!
//! Counting must not cost what it measures. A store through the cache waits for its line in the fence, where the wait
//! is taken off the debt, unless something makes it wait before: a locked instruction would. So a thread counts in a
//! shard of its own, by plain loads and stores, and reads the clock for a write of many lines or under a cap only;
//! reading it costs as much as flushing a line.

use std::arch::x86_64::_rdtsc;
use std::cell::Cell;
use std::ops::Range;
use std::sync::{OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use nacre_engine::background;
use nacre_engine::sync::atomic::{AtomicU64, Ordering};
use nacre_engine::{LINE_SIZE, Result};

use super::RealPm;
use super::bandwidth::Clock;
use crate::emulation::Emulation;
use crate::pm::Pm;
use crate::thread::thread_number;

/// Counters of the accesses to a device since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Bytes stored, through the cache or past it.
    pub bytes_stored: u64,
    /// Those of them that were copied past the cache: data, and metadata that is written in whole blocks.
    pub bytes_copied: u64,
    /// Lines flushed or stored past the cache.
    pub lines_flushed: u64,
    /// Fences.
    pub fences: u64,
    /// Time in nanoseconds that threads spent on writes that fences made durable: flushes, stores past the cache and
    /// fences, with the delays. Of writes of few lines, the wait of their fence. Of several threads, the sum.
    pub write_ns: u64,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    bytes_stored: AtomicU64,
    bytes_copied: AtomicU64,
    lines_flushed: AtomicU64,
    fences: AtomicU64,
    busy_ticks: AtomicU64,
}

/// Each thread has a shard of its own, but for the last one, which all later threads share.
const SHARDS: usize = 64;
/// Writes of so few lines are over before the clock has been read; their waits are in the fence.
const FEW_LINES: u64 = 4;
/// A small read that takes less than this came from a cache of the CPU, and would have done so above slow PM, too.
const CACHE_HIT_NS: u64 = 50;
/// The shortest wait for which a thread in the background sleeps.
const NAP_NS: u64 = 50_000;

/// One emulated device.
#[derive(Debug)]
pub(super) struct Emulator {
    emulation: Emulation,
    shards: [Shard; SHARDS],
    write_ticks: u64,
    read_ticks: u64,
    /// The time to read the clock.
    clock_ticks: u64,
    /// The time for a line that its fence does not see.
    unseen_ticks: u64,
    cache_hit_ticks: u64,
    nap_ticks: u64,
    writers: Clock,
    readers: Clock,
    /// Lines that cannot be accessed, by their bytes; looked at only when there were some.
    poison: RwLock<Vec<Range<u64>>>,
    has_poison: bool,
}

/// The debt of a thread for its next fence, in ticks of the time-stamp counter.
#[derive(Debug, Clone, Copy)]
struct Debt {
    /// Delay of the lines since the last fence.
    owed: u64,
    /// Time that the real accesses took for them.
    spent: u64,
    /// The bandwidth allows them at this time.
    not_before: u64,
}

const NO_DEBT: Debt = Debt { owed: 0, spent: 0, not_before: 0 };

thread_local! {
    static DEBT: Cell<Debt> = const { Cell::new(NO_DEBT) };
    /// Ticks that a thread in the background has still to sleep; less than none when it overslept.
    static UNSLEPT: Cell<i64> = const { Cell::new(0) };
}

impl Emulator {
    pub(super) fn new(emulation: Emulation) -> Emulator {
        Emulator { unseen_ticks: unseen_ticks(), ..Emulator::uncalibrated(emulation) }
    }

    fn uncalibrated(emulation: Emulation) -> Emulator {
        let ticks = |ns: u64| (ns as f64 * ticks_per_ns()).round() as u64;
        Emulator {
            shards: std::array::from_fn(|_| Shard::default()),
            clock_ticks: clock_ticks(),
            unseen_ticks: 0,
            write_ticks: ticks(emulation.write_latency_ns),
            read_ticks: ticks(emulation.read_latency_ns),
            cache_hit_ticks: ticks(CACHE_HIT_NS),
            nap_ticks: ticks(NAP_NS),
            writers: Clock::new(emulation.write_bandwidth, ticks_per_ns()),
            readers: Clock::new(emulation.read_bandwidth, ticks_per_ns()),
            has_poison: !emulation.poison.is_empty(),
            poison: RwLock::new(emulation.poison.iter().map(lines_of).collect()),
            emulation,
        }
    }

    pub(super) fn emulation(&self) -> &Emulation {
        &self.emulation
    }

    /// The first byte of a range that cannot be accessed.
    #[inline]
    pub(super) fn poisoned(&self, offset: u64, len: u64) -> Option<u64> {
        if !self.has_poison {
            return None;
        }
        let poison = self.poison.read().unwrap_or_else(PoisonError::into_inner);
        let end = offset.saturating_add(len);
        let touched = poison.iter().filter(|bad| bad.start < end && offset < bad.end);
        touched.map(|bad| bad.start.max(offset)).min()
    }

    /// Makes a range accessible again.
    pub(super) fn heal(&self, healed: Range<u64>) {
        let mut poison = self.poison.write().unwrap_or_else(PoisonError::into_inner);
        let rest = |bad: &Range<u64>| {
            let parts = [bad.start..bad.end.min(healed.start), bad.start.max(healed.end)..bad.end];
            parts.into_iter().filter(|part| !part.is_empty())
        };
        *poison = poison.iter().flat_map(rest).collect();
    }

    pub(super) fn counters(&self) -> Counters {
        let sum = |field: fn(&Shard) -> &AtomicU64| -> u64 {
            self.shards.iter().map(|shard| field(shard).load(Ordering::Relaxed)).sum()
        };
        Counters {
            bytes_stored: sum(|shard| &shard.bytes_stored),
            bytes_copied: sum(|shard| &shard.bytes_copied),
            lines_flushed: sum(|shard| &shard.lines_flushed),
            fences: sum(|shard| &shard.fences),
            write_ns: (sum(|shard| &shard.busy_ticks) as f64 / ticks_per_ns()) as u64,
        }
    }

    /// Adds to a counter of this thread.
    #[inline]
    fn count(&self, counter: fn(&Shard) -> &AtomicU64, by: u64) {
        let number = thread_number() as usize;
        if number < SHARDS - 1 {
            let own = counter(&self.shards[number]);
            own.store(own.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
        } else {
            counter(&self.shards[SHARDS - 1]).fetch_add(by, Ordering::Relaxed);
        }
    }

    /// Counts a store through the cache. It costs nothing until it is flushed.
    #[inline]
    pub(super) fn stored(&self, bytes: u64) {
        self.count(|shard| &shard.bytes_stored, bytes);
    }

    /// The begin of a write of so many lines, if it is measured.
    #[inline]
    pub(super) fn write_start(&self, lines: u64) -> Option<u64> {
        (lines > FEW_LINES || self.writers.is_limited()).then(now)
    }

    /// Charges lines that were flushed or stored past the cache since `start`.
    #[inline]
    pub(super) fn flushed(&self, start: Option<u64>, bytes: u64, lines: u64) {
        if bytes != 0 {
            self.count(|shard| &shard.bytes_stored, bytes);
            self.count(|shard| &shard.bytes_copied, bytes);
        }
        self.count(|shard| &shard.lines_flushed, lines);
        let (took, free_at) = match start {
            None => (0, 0),
            Some(start) => {
                let now = now();
                let free_at = match background::is() {
                    true => self.writers.advance_behind(now, lines),
                    false => self.writers.advance(now, lines),
                };
                (self.took(start, now), free_at)
            }
        };
        DEBT.with(|debt| {
            let Debt { owed, spent, not_before } = debt.get();
            debt.set(Debt {
                owed: owed + lines * self.write_ticks,
                spent: spent + took,
                not_before: not_before.max(free_at),
            });
        });
    }

    /// The time between two readings of the clock, and the time of one reading.
    #[inline]
    fn took(&self, start: u64, end: u64) -> u64 {
        end.saturating_sub(start) + self.clock_ticks
    }

    /// Pays the debt of this thread after a fence that began at `start`.
    #[inline]
    pub(super) fn fenced(&self, start: u64) {
        self.count(|shard| &shard.fences, 1);
        let debt = DEBT.replace(NO_DEBT);
        let now = now();
        let spent = debt.spent + self.took(start, now) + self.unseen_ticks;
        if background::is() {
            let delay = debt.owed.saturating_sub(spent);
            self.count(|shard| &shard.busy_ticks, spent + delay);
            self.writers.wait_behind(|| self.sleep(delay, debt.not_before.saturating_sub(now)));
            return;
        }
        let end = (now + debt.owed.saturating_sub(spent)).max(debt.not_before);
        // Before the delay, so that it costs nothing beside it.
        self.count(|shard| &shard.busy_ticks, spent + (end - now));
        if end > now {
            // The last look at the clock takes time, too: half of it is behind the reading.
            spin_until(end.saturating_sub(self.clock_ticks / 2));
        }
    }

    /// A thread in the background pays a delay, and waits for its share of the bandwidth: when both together are long
    /// enough to sleep.
    fn sleep(&self, delay: u64, share: u64) {
        let unslept = UNSLEPT.get() + delay as i64;
        let wait = unslept.max(share as i64);
        if wait < self.nap_ticks as i64 {
            UNSLEPT.set(unslept);
            return;
        }
        let begin = now();
        std::thread::sleep(Duration::from_nanos((wait as f64 / ticks_per_ns()) as u64));
        let left = unslept - (now() - begin) as i64;
        // A thread that was kept from its core for long has not slept for its next accesses.
        UNSLEPT.set(left.max(-2 * self.nap_ticks as i64));
    }

    /// Pays for a read that began at `start`.
    pub(super) fn read(&self, start: u64, bytes: u64) {
        if self.read_ticks == 0 && !self.readers.is_limited() {
            return;
        }
        let now = now();
        let small = bytes <= 4 * LINE_SIZE;
        if small && now.saturating_sub(start) < self.cache_hit_ticks {
            return;
        }
        let free_at = self.readers.advance(start, bytes.div_ceil(LINE_SIZE));
        spin_until((start + self.read_ticks).max(free_at));
    }
}

/// Hardware loses whole lines.
fn lines_of(&(offset, len): &(u64, u64)) -> Range<u64> {
    let end = offset.saturating_add(len);
    offset - offset % LINE_SIZE..end.checked_next_multiple_of(LINE_SIZE).unwrap_or(end)
}

/// The time-stamp counter.
#[inline]
pub(super) fn now() -> u64 {
    // SAFETY: every x86-64 processor has this instruction, and Linux lets user space execute it.
    unsafe { _rdtsc() }
}

/// Without the hint to the processor that this is a loop: under a hypervisor a pause is longer than a line.
fn spin_until(deadline: u64) {
    while now() < deadline {}
}

/// Ticks that reading the clock takes, measured once.
fn clock_ticks() -> u64 {
    static TICKS: OnceLock<u64> = OnceLock::new();
    *TICKS.get_or_init(|| {
        // The fastest of several: an interruption must not be taken for the clock.
        let fastest = (0..64).map(|_| {
            let start = now();
            for _ in 0..15 {
                std::hint::black_box(now());
            }
            (now() - start) / 16
        });
        fastest.min().unwrap_or(0)
    })
}

/// Ticks of the time-stamp counter in a nanosecond, measured once against the monotonic clock.
fn ticks_per_ns() -> f64 {
    static RATE: OnceLock<f64> = OnceLock::new();
    *RATE.get_or_init(|| {
        // An interruption between the two clocks spoils a measurement; the median of several does not mind.
        let mut rates: Vec<f64> = (0..5)
            .map(|_| {
                let (start, first) = (Instant::now(), now());
                while start.elapsed() < Duration::from_millis(4) {
                    std::hint::spin_loop();
                }
                let last = now();
                (last - first) as f64 / start.elapsed().as_nanos() as f64
            })
            .collect();
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    })
}

/// Ticks that a line takes and its fence does not see: to issue the store and the flush, and to count them.
/// Measured once, in DRAM.
fn unseen_ticks() -> u64 {
    static TICKS: OnceLock<u64> = OnceLock::new();
    *TICKS.get_or_init(|| {
        let owed = DEBT.replace(NO_DEBT);
        let ticks = measure_unseen_ticks().unwrap_or(0);
        DEBT.set(owed);
        ticks
    })
}

fn measure_unseen_ticks() -> Result<u64> {
    const LINES: u64 = 64;
    const SCRATCH: u64 = 256 << 10;
    // A delay that hides the fence: what a line takes above it is what the fence does not see.
    let dram = Emulation::preset("dram").expect("a preset");
    let emulator = Emulator::uncalibrated(Emulation { write_latency_ns: 1000, ..dram });
    let delay = emulator.write_ticks;
    let mut pm = RealPm::in_memory(SCRATCH)?;
    pm.emulator = Some(Box::new(emulator));
    let mut fastest = u64::MAX;
    // The first times over, the pages are not there yet.
    for _ in 0..2 {
        for at in (0..SCRATCH).step_by((LINES * LINE_SIZE) as usize) {
            let start = now();
            for line in 0..LINES {
                let stored = pm.store(at + line * LINE_SIZE, &[1; LINE_SIZE as usize])?;
                pm.fence(pm.flush(stored));
            }
            // The fastest: an interruption must not be taken for a store.
            fastest = fastest.min((now() - start).saturating_sub(LINES * delay) / LINES);
        }
    }
    Ok(fastest)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use nacre_engine::background;

    use super::Counters;
    use crate::emulation::Emulation;
    use crate::pm::Pm;
    use crate::real::RealPm;

    fn emulated(text: &str) -> RealPm {
        let mut pm = RealPm::in_memory(1 << 20).unwrap();
        pm.emulate(text.parse::<Emulation>().unwrap());
        pm
    }

    #[test]
    fn stores_flushes_and_fences_are_counted() {
        let pm = emulated("dram");
        let stored = pm.store(10, &[1; 100]).unwrap();
        pm.fence(pm.flush(stored));
        pm.fence(pm.copy(64, &[2; 4096]).unwrap());
        pm.fence(pm.zero(0, 100).unwrap());
        let counters = pm.counters().unwrap();
        let (bytes_stored, lines_flushed) = (100 + 4096 + 100, 2 + 64 + 2);
        // Of what is zeroed, whole lines go past the cache.
        let bytes_copied = 4096 + 64;
        assert_eq!(counters, Counters { bytes_stored, bytes_copied, lines_flushed, fences: 3, ..counters });
        assert_eq!(RealPm::in_memory(4096).unwrap().counters(), None);
    }

    #[test]
    fn each_line_takes_its_time_and_a_store_without_flush_none() {
        // Far above what the real memory takes, so that the lower bound is sharp; a busy machine only adds.
        let pm = emulated("latency=20000");
        let start = Instant::now();
        for _ in 0..10 {
            pm.fence(pm.copy(0, &[1; 640]).unwrap());
        }
        assert!(start.elapsed().as_micros() >= 1900, "{:?} for 100 lines of 20 us", start.elapsed());
        let fastest = (0..20).map(|_| {
            let start = Instant::now();
            pm.store(0, &[1; 640]).unwrap().may_be_lost();
            start.elapsed()
        });
        assert!(fastest.min().unwrap().as_micros() < 200);
    }

    #[test]
    fn the_time_of_writers_is_counted_with_its_delays() {
        let pm = emulated("latency=20000");
        let start = Instant::now();
        pm.fence(pm.copy(0, &[1; 640]).unwrap());
        let stored = pm.store(0, &[1; 64]).unwrap();
        pm.fence(pm.flush(stored));
        let elapsed = start.elapsed().as_nanos() as u64;
        let counted = pm.counters().unwrap().write_ns;
        // A hundredth for two clocks.
        assert!(counted >= 11 * 19_800 && counted <= elapsed + elapsed / 100, "{counted} of {elapsed}");
    }

    #[test]
    fn writers_share_the_bandwidth() {
        let pm = emulated("bandwidth=50M");
        let start = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..4 {
                        pm.fence(pm.copy(0, &[1; 64 << 10]).unwrap());
                    }
                });
            }
        });
        // Twice 256 KiB at 50 MB/s are 10.5 ms.
        assert!(start.elapsed().as_micros() >= 10_000, "{:?}", start.elapsed());
    }

    #[test]
    fn a_thread_in_the_background_sleeps_as_long_as_others_spin() {
        let pm = emulated("latency=2000");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                background::begin();
                let (start, first) = (Instant::now(), own_processor_time());
                for _ in 0..1000 {
                    pm.fence(pm.copy(0, &[1; 640]).unwrap());
                }
                // 10,000 lines of 2 us, but for what was not slept at the end.
                let (elapsed, worked) = (start.elapsed(), own_processor_time() - first);
                assert!(elapsed.as_micros() >= 19_800, "{elapsed:?}");
                assert!(worked < elapsed / 2, "{worked:?} of {elapsed:?}");
            });
        });
    }

    fn own_processor_time() -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    /// A store to a line that cannot be read succeeded, so that a repair did in the emulation what no hardware lets it do.
    #[test]
    fn media_errors_refuse_stores_until_a_whole_block_is_written() {
        let pm = emulated("dram,poison=4160+1,poison=12288+8192");
        let bad = [(4160, 64), (4100, 100), (4223, 1), (4096, 4095), (16_384, 8)].map(|range| (range, true));
        for ((offset, len), bad) in bad.into_iter().chain([((8000, 300), false), ((4224, 64), false)]) {
            let bytes = vec![1; len];
            let kinds = [
                pm.read(offset, &mut vec![0; len]).err(),
                pm.store(offset, &bytes).err(),
                pm.copy(offset, &bytes).err(),
                pm.zero(offset, len as u64).err(),
            ];
            assert!(kinds.iter().all(|error| error.is_some() == bad), "{len} bytes at {offset}: {kinds:?}");
        }
        pm.store(4096, &[2; 64]).unwrap().may_be_lost();
        // Two whole blocks and a part of one before and behind them.
        let bytes: Vec<u8> = (0..8192 + 200u32).map(|at| (at % 251) as u8).collect();
        assert!(pm.copy(4096 - 100, &bytes).unwrap_err().to_string().contains("at 12288"));
        pm.copy(4096 - 100, &bytes[..4096 + 100]).unwrap().may_be_lost();
        let mut seen = vec![0; 4196];
        pm.read(4096 - 100, &mut seen).unwrap();
        assert_eq!(seen, bytes[..4196]);
        pm.zero(12_288, 4096).unwrap().may_be_lost();
        pm.read(12_288, &mut seen[..4096]).unwrap();
        assert!(pm.read(16_384, &mut seen[..64]).is_err() && seen[..4096] == [0; 4096]);
    }

    #[test]
    fn reads_can_be_slow_too() {
        let pm = emulated("read-latency=100000,read-bandwidth=1G");
        let mut buf = vec![0; 64 << 10];
        let start = Instant::now();
        pm.read(0, &mut buf).unwrap();
        assert!(start.elapsed().as_micros() >= 95, "{:?}", start.elapsed());
    }
}
