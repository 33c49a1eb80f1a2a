//! A bandwidth that threads share, as times at which granted lines are through.
//!
//! PM takes the lines of its writers in turn. So a writer in the foreground queues only for its own lines. A thread
//! in the background asks for many lines at once, sleeps until they are through, and queues for everything. As long
//! as some of that waits, a line in the foreground goes after one in the background, and a thread's line after one of
//! each thread there: the foreground has its share and the background the rest.
//!
//! The two times are two words, which no lock joins: if writers come at the same moment, one may miss the lines of
//! the other once.

use nacre_engine::LINE_SIZE;
use nacre_engine::sync::atomic::{AtomicU64, Ordering};

/// Bandwidth is kept in parts of a tick for each line.
const TICK_PARTS: u64 = 1024;

/// The times of one device and direction, in ticks.
#[derive(Debug)]
pub(super) struct Clock {
    /// In parts of a tick; 0 is no limit.
    ticks_per_line: u64,
    /// The time at which the granted lines of the foreground are through.
    foreground: AtomicU64,
    /// When everything is, while something in the background waits; else some time that has passed.
    everything: AtomicU64,
    /// Threads in the background that wait.
    waiting: AtomicU64,
}

impl Clock {
    pub(super) fn new(bytes_per_second: u64, ticks_per_ns: f64) -> Clock {
        let ticks_per_line = match bytes_per_second {
            0 => 0,
            rate => (LINE_SIZE as f64 * 1e9 / rate as f64 * ticks_per_ns * TICK_PARTS as f64).max(1.0) as u64,
        };
        Clock::with(ticks_per_line)
    }

    fn with(ticks_per_line: u64) -> Clock {
        Clock {
            ticks_per_line,
            foreground: AtomicU64::new(0),
            everything: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(super) fn is_limited(&self) -> bool {
        self.ticks_per_line != 0
    }

    /// Grants `lines` to a thread in the foreground; returns when they are through.
    pub(super) fn advance(&self, now: u64, lines: u64) -> u64 {
        if !self.is_limited() {
            return 0;
        }
        let cost = lines * self.ticks_per_line / TICK_PARTS;
        let mut seen = self.foreground.load(Ordering::Relaxed);
        loop {
            let begin = seen.max(now);
            let behind = self.everything.load(Ordering::Relaxed).saturating_sub(begin);
            let until = begin + cost + behind.min(cost);
            match self.foreground.compare_exchange_weak(seen, until, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) if behind == 0 => return until,
                Ok(_) => {
                    let end = self.everything.fetch_add(cost, Ordering::Relaxed) + cost;
                    let others = self.waiting.load(Ordering::Relaxed).saturating_sub(1);
                    return until + (others * cost).min(end.saturating_sub(until));
                }
                Err(other) => seen = other,
            }
        }
    }

    /// Grants `lines` to a thread in the background; returns when they are through.
    pub(super) fn advance_behind(&self, now: u64, lines: u64) -> u64 {
        if !self.is_limited() {
            return 0;
        }
        let cost = lines * self.ticks_per_line / TICK_PARTS;
        let mut seen = self.everything.load(Ordering::Relaxed);
        loop {
            let until = seen.max(self.foreground.load(Ordering::Relaxed)).max(now) + cost;
            match self.everything.compare_exchange_weak(seen, until, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return until,
                Err(other) => seen = other,
            }
        }
    }

    /// A thread in the background waits for its granted lines.
    pub(super) fn wait_behind(&self, wait: impl FnOnce()) {
        if !self.is_limited() {
            return wait();
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        wait();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(any(nacre_loom, nacre_shuttle))))]
mod tests {
    use std::sync::atomic::Ordering;

    use super::{Clock, TICK_PARTS};

    /// A thread that writes `lines` lines, waits until they are through and takes `latency` for each, again and again.
    struct Writer {
        lines: u64,
        latency: u64,
        is_behind: bool,
        ready: u64,
        /// Lines that are through, and the longest wait for a write.
        through: u64,
        longest: u64,
    }

    fn writer(lines: u64, latency: u64, is_behind: bool) -> Writer {
        Writer { lines, latency, is_behind, ready: 0, through: 0, longest: 0 }
    }

    /// Lets them write until `end`, at a line a tick. Threads in the background never stop waiting.
    fn simulate(writers: &mut [Writer], end: u64) -> f64 {
        let clock = Clock::with(TICK_PARTS);
        clock.waiting.store(writers.iter().filter(|one| one.is_behind).count() as u64, Ordering::Relaxed);
        loop {
            let writer = writers.iter_mut().min_by_key(|writer| writer.ready).expect("there are some");
            let (now, lines) = (writer.ready, writer.lines);
            if now >= end {
                let through: u64 = writers.iter().map(|writer| writer.through).sum();
                return through as f64 / end as f64;
            }
            let until =
                if writer.is_behind { clock.advance_behind(now, lines) } else { clock.advance(now, lines) };
            writer.ready = until.max(now + lines * writer.latency);
            writer.longest = writer.longest.max(writer.ready - now);
            writer.through += if writer.ready <= end { lines } else { 0 };
        }
    }

    /// 256 ms at 1 GB/s.
    const LONG: u64 = 4_000_000;

    /// Single lines waited for megabytes, so that the foreground stood still while writeback ran.
    #[test]
    fn a_line_waits_for_one_of_each_thread_in_the_background() {
        let mut writers = vec![writer(1, 3, false)];
        writers.extend((0..4).map(|_| writer(16_384, 3, true)));
        let used = simulate(&mut writers, LONG);
        assert_eq!(writers[0].longest, 5);
        assert!((0.95..=1.05).contains(&used), "{used} of the bandwidth");
        assert!(writers[1..].iter().all(|writer| writer.through > LONG / 8), "all write");
    }

    #[test]
    fn both_have_half_where_both_could_use_all() {
        let mut writers: Vec<Writer> = (0..4).map(|_| writer(64, 0, false)).collect();
        writers.extend((0..4).map(|_| writer(16_384, 0, true)));
        let used = simulate(&mut writers, LONG);
        let foreground: u64 = writers[..4].iter().map(|writer| writer.through).sum();
        assert!((0.95..=1.05).contains(&used), "{used} of the bandwidth");
        let part = foreground as f64 / LONG as f64;
        assert!((0.45..=0.55).contains(&part), "{part} is the foreground's");
    }

    #[test]
    fn the_foreground_alone_has_all_of_it_in_order() {
        let clock = Clock::with(TICK_PARTS);
        assert_eq!(clock.advance_behind(0, 100), 100);
        let granted = [(100, 5), (101, 3), (200, 1)].map(|(now, lines)| clock.advance(now, lines));
        assert_eq!(granted, [105, 108, 201], "what was through before is no matter");
        assert_eq!(clock.advance_behind(150, 10), 211, "and the background comes after it");
        let mut writers: Vec<Writer> = (0..3).map(|number| writer(1 << (2 * number), 0, false)).collect();
        let used = simulate(&mut writers, LONG / 10);
        assert!((0.999..=1.0).contains(&used), "{used} of the bandwidth");
    }
}

#[cfg(all(test, nacre_loom))]
mod interleavings {
    use std::sync::Arc;

    use nacre_engine::sync::{explore, thread};

    use super::{Clock, TICK_PARTS};

    #[test]
    fn no_line_is_granted_twice() {
        explore(3, || {
            let clock = Arc::new(Clock::with(TICK_PARTS));
            let other = thread::spawn({
                let clock = Arc::clone(&clock);
                move || clock.advance(0, 3)
            });
            let mine = clock.advance(0, 5);
            let granted = (mine, other.join().unwrap());
            assert!(granted == (5, 8) || granted == (8, 3), "{granted:?}");
        });
    }

    /// They miss each other at the most once.
    #[test]
    fn the_background_queues_behind_the_foreground() {
        explore(3, || {
            let clock = Arc::new(Clock::with(TICK_PARTS));
            let other = thread::spawn({
                let clock = Arc::clone(&clock);
                move || clock.advance_behind(0, 3)
            });
            let mine = clock.advance(0, 5);
            let granted = (mine, other.join().unwrap());
            assert!(matches!(granted, (5, 8) | (8, 3) | (5, 3)), "{granted:?}");
            assert!(clock.advance_behind(0, 1) >= 6);
        });
    }
}
