//! The times of operations: one chained reading of the time-stamp counter for each.
//!
//! Threads that all have a core measure themselves: the preparation time of each is taken off its own time. More
//! threads than cores take turns, so that the time of one is none in which all worked. There, the time is that from
//! the first beginning to the last end, less the share of it that cores prepared.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::clock::{in_ticks, nanos_per_tick, ticks};

/// Kinds of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// A read.
    Read,
    /// A write within the file.
    Write,
    /// A write at its end.
    Append,
    /// fsync or fdatasync.
    Sync,
    /// A file made and opened.
    Create,
    /// A file opened.
    Open,
    /// A file closed.
    Close,
    /// A name removed.
    Unlink,
    /// A file renamed.
    Rename,
    /// A file found by path.
    Stat,
    /// A directory listed.
    ReadDir,
    /// A directory made.
    Mkdir,
    /// Anything else.
    Other,
}

impl Op {
    /// All of them.
    pub const ALL: [Op; 13] = [
        Op::Read,
        Op::Write,
        Op::Append,
        Op::Sync,
        Op::Create,
        Op::Open,
        Op::Close,
        Op::Unlink,
        Op::Rename,
        Op::Stat,
        Op::ReadDir,
        Op::Mkdir,
        Op::Other,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Append => "append",
            Op::Sync => "fsync",
            Op::Create => "create",
            Op::Open => "open",
            Op::Close => "close",
            Op::Unlink => "unlink",
            Op::Rename => "rename",
            Op::Stat => "stat",
            Op::ReadDir => "readdir",
            Op::Mkdir => "mkdir",
            Op::Other => "other",
        }
    }
}

/// The longest operation that is told from longer ones: 100 s.
const LONGEST_TICKS: u64 = 1 << 38;

/// Histograms of ticks, with two digits, one for each kind of operation that was seen.
#[derive(Clone, Default)]
pub struct Times([Option<Histogram<u64>>; Op::ALL.len()]);

impl Times {
    #[inline]
    fn add(&mut self, op: usize, ticks: u64) {
        let histogram = self.0[op].get_or_insert_with(new_histogram);
        histogram.saturating_record(ticks.max(1));
    }

    /// Takes in a program's report: so many operations took this long, in nanoseconds.
    pub(crate) fn add_many(&mut self, op: Op, nanos: f64, count: u64) {
        let ticks = ((nanos / nanos_per_tick()) as u64).max(1);
        self.0[op as usize].get_or_insert_with(new_histogram).saturating_record_n(ticks, count);
    }

    /// Takes in the times of others.
    pub fn merge(&mut self, other: &Times) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            if let Some(theirs) = theirs {
                // Both are made alike, so that every value of one fits the other.
                let _ = mine.get_or_insert_with(new_histogram).add(theirs);
            }
        }
    }

    /// Each kind that was seen.
    pub fn iter(&self) -> impl Iterator<Item = (Op, &Histogram<u64>)> {
        Op::ALL.into_iter().filter_map(|op| Some((op, self.0[op as usize].as_ref()?)))
    }

    /// The most that this share of all operations took, in ticks; nothing where there were none.
    pub fn quantile(&self, share: f64) -> u64 {
        let mut all = new_histogram();
        for (_, times) in self.iter() {
            // All are made alike, so that every value of one fits the others.
            let _ = all.add(times);
        }
        all.value_at_quantile(share)
    }

    /// To be sent: for each kind, values and how often each was seen.
    pub fn encode(&self) -> Encoded {
        let pairs = |histogram: &Histogram<u64>| {
            histogram.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect()
        };
        self.iter().map(|(op, histogram)| (op, pairs(histogram))).collect()
    }

    /// From the result of [`encode`](Times::encode).
    pub fn decode(encoded: &Encoded) -> Times {
        let mut times = Times::default();
        for (op, pairs) in encoded {
            let histogram = times.0[*op as usize].get_or_insert_with(new_histogram);
            pairs.iter().for_each(|&(value, count)| histogram.saturating_record_n(value, count));
        }
        times
    }
}

/// For each kind of operation, values and how often each was seen.
pub type Encoded = Vec<(Op, Vec<(u64, u64)>)>;

fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_TICKS, 2).expect("the bounds are in order")
}

/// Laps that are kept before they go into histograms, in time that does not count: 8 KiB of them, which take little of
/// the processor's first cache from the work.
const PENDING: usize = 1024;
/// Bits of a lap that are ticks; those above are the kind of operation.
const TICK_BITS: u32 = 56;

/// Where threads take turns, a preparation counts up to this length: the rest was waiting for a core.
const LONGEST_PAUSE: Duration = Duration::from_micros(250);

/// The record of one thread.
pub struct Recorder {
    pending: Vec<u64>,
    begin: u64,
    last: u64,
    end: u64,
    paused: u64,
    /// Others take turns with it: its end does not move, and a pause counts up to so many ticks.
    taking_turns: Option<u64>,
    operations: u64,
    read: u64,
    written: u64,
    times: Times,
}

impl Recorder {
    /// Begins now, and is over after this time.
    pub fn start(slice: Duration) -> Recorder {
        // Measured here, before it matters.
        let length = in_ticks(slice);
        let pending = Vec::with_capacity(PENDING);
        let begin = ticks();
        Recorder {
            pending,
            begin,
            last: begin,
            end: begin.saturating_add(length),
            paused: 0,
            taking_turns: None,
            operations: 0,
            read: 0,
            written: 0,
            times: Times::default(),
        }
    }

    /// An operation ended just now that began when the one before it ended. Whether there is time left.
    #[inline]
    pub fn lap(&mut self, op: Op) -> bool {
        let now = ticks();
        self.pending.push((op as u64) << TICK_BITS | now.wrapping_sub(self.last) & ((1 << TICK_BITS) - 1));
        self.last = now;
        if self.pending.len() == PENDING {
            self.settle();
        }
        now < self.end
    }

    /// Puts pending laps into histograms; the time for it does not count.
    #[cold]
    fn settle(&mut self) {
        // A thread that has done nothing has no time to take off, not even the short time of this check.
        if self.pending.is_empty() {
            return;
        }
        self.operations += self.pending.len() as u64;
        for lap in self.pending.drain(..) {
            self.times.add((lap >> TICK_BITS) as usize, lap & ((1 << TICK_BITS) - 1));
        }
        self.skip();
    }

    /// As [`lap`](Recorder::lap), of one that read bytes.
    #[inline]
    pub fn lap_read(&mut self, op: Op, bytes: usize) -> bool {
        self.read += bytes as u64;
        self.lap(op)
    }

    /// As [`lap`](Recorder::lap), of one that wrote bytes.
    #[inline]
    pub fn lap_write(&mut self, op: Op, bytes: usize) -> bool {
        self.written += bytes as u64;
        self.lap(op)
    }

    /// Whether there is time left.
    #[inline]
    pub fn goes_on(&self) -> bool {
        self.last < self.end
    }

    /// The time since the last operation is not part of the work: it was preparation.
    pub fn skip(&mut self) {
        let now = ticks();
        let skipped = now.wrapping_sub(self.last);
        self.last = now;
        match self.taking_turns {
            Some(longest) => self.paused += skipped.min(longest),
            None => {
                self.paused += skipped;
                self.end = self.end.saturating_add(skipped);
            }
        }
    }

    /// The time since the last operation was waiting: it is no operation, and counts in the time of the work.
    pub fn wait(&mut self) {
        self.last = ticks();
    }

    fn finish(mut self) -> Measured {
        self.settle();
        let worked = self.last.wrapping_sub(self.begin).saturating_sub(self.paused);
        Measured {
            operations: self.operations,
            read: self.read,
            written: self.written,
            nanos: worked as f64 * nanos_per_tick(),
            busy: worked as f64 * nanos_per_tick(),
            times: self.times,
            told: BTreeMap::new(),
        }
    }
}

/// The measurements of a round.
#[derive(Clone, Default)]
pub struct Measured {
    /// Operations.
    pub operations: u64,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Nanoseconds that the work took; of several threads, the longest, and of threads that take turns, all together.
    pub nanos: f64,
    /// Of several threads, the sum.
    pub busy: f64,
    /// How long each operation took.
    pub times: Times,
    /// Further values that the workload counted, by the name of their counter ([`crate::counters`]).
    pub told: BTreeMap<String, f64>,
}

impl Measured {
    /// Takes in work that was done after it.
    pub fn append(&mut self, other: &Measured) {
        let nanos = self.nanos + other.nanos;
        self.join(other);
        self.nanos = nanos;
        for (name, value) in &other.told {
            *self.told.entry(name.clone()).or_default() += value;
        }
    }

    /// It took so much longer, and one thread waited for that.
    pub fn wait(&mut self, time: Duration) {
        self.nanos += time.as_nanos() as f64;
        self.busy += time.as_nanos() as f64;
    }

    /// Takes in another thread's work in the same time.
    fn join(&mut self, other: &Measured) {
        self.operations += other.operations;
        self.read += other.read;
        self.written += other.written;
        self.nanos = self.nanos.max(other.nanos);
        self.busy += other.busy;
        self.times.merge(&other.times);
    }
}

/// When the threads of a round work that take turns.
struct Turns {
    cores: u64,
    /// The beginning of the first that says so, in ticks, or 0: another may have begun a moment before it.
    begin: AtomicU64,
    /// The last end.
    end: AtomicU64,
    /// Ticks that threads prepared.
    paused: AtomicU64,
}

impl Turns {
    fn start(&self, slice: Duration) -> Recorder {
        let mut recorder = Recorder::start(slice);
        let first = self.begin.compare_exchange(0, recorder.begin, Ordering::Relaxed, Ordering::Relaxed);
        // All are over together.
        recorder.end = first.err().unwrap_or(recorder.begin) + (recorder.end - recorder.begin);
        recorder.taking_turns = Some(in_ticks(LONGEST_PAUSE));
        recorder
    }

    fn is_over(&self, recorder: &Recorder) {
        self.end.fetch_max(recorder.last, Ordering::Relaxed);
        self.paused.fetch_add(recorder.paused, Ordering::Relaxed);
    }

    /// How long all worked, in nanoseconds.
    fn nanos(&self) -> f64 {
        let [begin, end, paused] =
            [&self.begin, &self.end, &self.paused].map(|at| at.load(Ordering::Relaxed));
        end.saturating_sub(begin).saturating_sub(paused / self.cores) as f64 * nanos_per_tick()
    }
}

/// Runs a body on several threads that begin together; each is given its number and a recorder. More threads than cores
/// work for as much longer, so that each has its turn.
pub fn on_threads(
    threads: u64,
    slice: Duration,
    body: impl Fn(u64, &mut Recorder) -> Result<(), Error> + Sync,
) -> Result<Measured, Error> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    on_threads_of(cores, threads, slice, body)
}

fn on_threads_of(
    cores: u64,
    threads: u64,
    slice: Duration,
    body: impl Fn(u64, &mut Recorder) -> Result<(), Error> + Sync,
) -> Result<Measured, Error> {
    let turns = (threads > cores).then(|| Turns {
        cores,
        begin: AtomicU64::new(0),
        end: AtomicU64::new(0),
        paused: AtomicU64::new(0),
    });
    let slice = slice.saturating_mul(u32::try_from(threads.div_ceil(cores)).unwrap_or(u32::MAX));
    let run = |thread: u64| {
        let mut recorder = match &turns {
            Some(turns) => turns.start(slice),
            None => Recorder::start(slice),
        };
        body(thread, &mut recorder).map_err(|error| error.to_string())?;
        recorder.settle();
        if let Some(turns) = &turns {
            turns.is_over(&recorder);
        }
        Ok::<_, String>(recorder.finish())
    };
    if threads == 1 {
        return Ok(run(0)?);
    }
    let (barrier, run) = (Barrier::new(threads as usize), &run);
    let parts: Vec<Result<Measured, String>> = std::thread::scope(|scope| {
        let barrier = &barrier;
        let started: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    barrier.wait();
                    run(thread)
                })
            })
            .collect();
        started
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into())))
            .collect()
    });
    let mut all = Measured::default();
    for part in parts {
        all.join(&part?);
    }
    if let Some(turns) = &turns {
        all.nanos = turns.nanos();
    }
    Ok(all)
}

/// Runs one job from beginning to end.
pub fn whole(job: impl FnOnce(&mut Recorder) -> Result<(), Error>) -> Result<Measured, Error> {
    let begin = Instant::now();
    let mut recorder = Recorder::start(Duration::from_secs(24 * 3600));
    job(&mut recorder)?;
    let paused = recorder.paused as f64 * nanos_per_tick();
    let nanos = begin.elapsed().as_nanos() as f64 - paused;
    Ok(Measured { nanos, busy: nanos, ..recorder.finish() })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use super::{Op, Times, on_threads, on_threads_of};

    /// Rare ones of one kind are a share of all, not of their kind.
    #[test]
    fn a_quantile_is_of_all_kinds_together() {
        let mut times = Times::default();
        assert_eq!(times.quantile(0.99), 0);
        times.add_many(Op::Read, 1e3, 980);
        times.add_many(Op::Write, 1e6, 20);
        let nanos = |share| times.quantile(share) as f64 * crate::clock::nanos_per_tick();
        let is_near = |nanos: f64, wanted: f64| (nanos / wanted - 1.0).abs() < 0.05;
        assert!(is_near(nanos(0.97), 1e3) && is_near(nanos(0.99), 1e6), "{} {}", nanos(0.97), nanos(0.99));
    }

    #[test]
    fn threads_are_joined_and_what_prepares_does_not_count() {
        let slice = Duration::from_millis(20);
        let measured = on_threads(2, slice, |thread, recorder| {
            std::thread::sleep(Duration::from_millis(30));
            recorder.skip();
            while recorder.lap_write(if thread == 0 { Op::Write } else { Op::Append }, 10) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        })
        .unwrap();
        assert!(measured.operations >= 4 && measured.written == measured.operations * 10);
        assert!(measured.nanos >= 20e6);
        let kinds: Vec<_> = measured.times.iter().map(|(op, _)| op).collect();
        assert_eq!(kinds, [Op::Write, Op::Append]);
        let again = Times::decode(&measured.times.encode());
        let counts = |times: &Times| times.iter().map(|(op, times)| (op, times.len())).collect::<Vec<_>>();
        assert_eq!(counts(&again), counts(&measured.times));
        assert!(on_threads(2, slice, |_, _| Err("no".into())).is_err());
    }

    /// Each of four threads works while no other does, as on one core: together they took four times as long as one.
    #[test]
    fn threads_that_take_turns_took_the_time_of_all() {
        let (core, slice) = (Mutex::new(()), Duration::from_millis(5));
        let measured = on_threads_of(1, 4, slice, |_, recorder| {
            let _turn = core.lock().unwrap();
            for _ in 0..10 {
                std::thread::sleep(Duration::from_millis(1));
                recorder.lap(Op::Other);
            }
            // Preparing is taken off, but not that one waits for his turn.
            std::thread::sleep(Duration::from_millis(1));
            recorder.skip();
            Ok(())
        })
        .unwrap();
        assert_eq!(measured.operations, 40);
        assert!(measured.nanos >= 40e6, "{} ns", measured.nanos);
        // As long as each of them may work, where only one is done at a time.
        let alone = on_threads_of(1, 2, slice, |thread, recorder| {
            let mut laps = 0;
            while thread == 0 && recorder.lap(Op::Other) {
                std::thread::sleep(Duration::from_micros(100));
                laps += 1;
            }
            assert!(thread == 1 || laps > 1);
            Ok(())
        })
        .unwrap();
        assert!(alone.nanos >= 2.0 * slice.as_nanos() as f64, "{} ns", alone.nanos);
    }
}
