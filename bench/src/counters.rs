//! Counters that are reported besides time.
//!
//! | counter | meaning |
//! | --- | --- |
//! | `operations` | operations of a round |
//! | `user.read`, `user.written` | bytes that the workload read and wrote in a round |
//! | `cpu` | processor time of an operation, client and server, in nanoseconds; not that of threads of the kernel |
//! | `pm.bytes`, `pm.lines`, `pm.fences` | stores of an operation: bytes, lines of 64 bytes flushed or past the cache, fences |
//! | `write.amplification` | bytes stored on persistent memory for each byte that the workload wrote |
//! | `writeback.amplification` | bytes of data stored on persistent memory by writeback for each byte of dirty lines; metadata that is written in whole blocks counts as data |
//! | `disk.bytes` | bytes that an operation wrote to the loop devices under a target: a peer's device, its journal or log, a tier of nacre |
//! | `disk.amplification` | bytes written to them for each byte that the workload wrote |
//! | `cpu.disk` | processor time of an operation that an emulated disk took, in nanoseconds: it waits for its latency with a core |
//! | `share.write` | the part of the threads' time that stores into persistent memory took, with the delays of the emulation, in percent |
//! | `share.read` | the part of the threads' time that operations of reading took, in percent |
//! | `share.synced` | the part of the bytes written that a sync made durable, in percent; counted where it is asked for |
//! | `model.accuracy` | how often, at a sync of a block, the buffer benefit model's answer was the one before, in percent |
//! | `predictor.accuracy` | how often a file on tiers was synchronised as soon, or as late, as the synchronicity predictor expected, in percent |
//! | `evicted.blocks`, `promoted.blocks` | blocks of data that anti-caching moved from persistent memory to a disk in a round, and that came up again because they were read |
//! | `dram` | bytes of DRAM that indexes and caches of nacre take |
//! | `memory.peak` | bytes of DRAM that worker and page cache took at most, where they have a limit; a server has none, and is not counted |
//! | `preempted` | how often the scheduler took a core away in a round |
//! | `trace.failed`, `trace.succeeded` | calls of a trace that failed here only in a round, and that succeeded here only |
//! | `tier.moved` | bytes that moved to a tier and from it in a round, during other work |
//! | `memory.grown` | bytes of DRAM by which the process with the indexes grew while files were made and let go |
//! | `space.metadata` | the part of the space in use that is not data of files, in percent; counted for Postmark's files from 20,000 on |
//! | `program.seconds` | how long a program ran in a round, from its start to its end |
//!
//! Those of persistent memory are known where it is emulated; `emulate=dram` counts and slows nothing. DRAM and the
//! model's accuracy are always known of nacre.

use std::collections::BTreeMap;

use nacre_engine::BLOCK_SIZE;

use crate::clock::nanos_per_tick;
use crate::report::schema::Better::{self, Less, More};
use crate::target::Traffic;
use crate::target::watch::Synced;
use crate::workload::{Measured, Op};

/// Every counter, its unit, and which of two values of it is the better one. Counters of the work done in a round of a
/// slice of time, and of correct guesses, are better when larger. The others are costs.
const COUNTERS: &[(&str, &str, Better)] = &[
    ("operations", "op", More),
    ("user.read", "B", More),
    ("user.written", "B", More),
    ("cpu", "ns", Less),
    ("pm.bytes", "B/op", Less),
    ("pm.lines", "lines/op", Less),
    ("pm.fences", "fences/op", Less),
    ("write.amplification", "B/B", Less),
    ("writeback.amplification", "B/B", Less),
    ("disk.bytes", "B/op", Less),
    ("disk.amplification", "B/B", Less),
    ("cpu.disk", "ns", Less),
    ("share.write", "%", Less),
    ("share.read", "%", Less),
    (SYNCED, "%", Less),
    ("model.accuracy", "%", More),
    ("predictor.accuracy", "%", More),
    ("evicted.blocks", "blocks", Less),
    ("promoted.blocks", "blocks", Less),
    ("dram", "B", Less),
    ("memory.peak", "B", Less),
    ("preempted", "times", Less),
    ("trace.failed", "calls", Less),
    ("trace.succeeded", "calls", Less),
    (MOVED, "B", More),
    ("program.seconds", "s", Less),
    (GROWN, "B", Less),
    (METADATA, "%", Less),
];

/// The counter that has to be asked for.
pub const SYNCED: &str = "share.synced";

/// The counter of the workload `tier.beside`.
pub const MOVED: &str = "tier.moved";

/// The counter of the workload `mount.dram`.
pub const GROWN: &str = "memory.grown";

/// The counter of the workload `postmark`.
pub const METADATA: &str = "space.metadata";

/// The unit of a counter; none where there is no such counter.
pub fn unit(name: &str) -> Option<&'static str> {
    COUNTERS.iter().find(|(known, ..)| *known == name).map(|(_, unit, _)| *unit)
}

/// Which of two values of a counter is better; none where there is no such counter.
pub fn better(name: &str) -> Option<Better> {
    COUNTERS.iter().find(|(known, ..)| *known == name).map(|(.., better)| *better)
}

/// Every counter.
pub fn names() -> impl Iterator<Item = &'static str> {
    COUNTERS.iter().map(|(name, ..)| *name)
}

/// Values that are counted outside of a workload, in one round.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counted {
    /// Processor time in nanoseconds.
    pub cpu: u64,
    /// Bytes that reached persistent memory.
    pub traffic: Option<Traffic>,
    /// How often the scheduler took a core away.
    pub preempted: u64,
    /// Bytes written and synced.
    pub synced: Option<Synced>,
    /// Bytes of DRAM that were taken at most so far.
    pub peak: Option<u64>,
    /// The work of the loop devices under the target, where it has some.
    pub disk: Option<DiskWork>,
}

/// The work of loop devices under a target, in a round or so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskWork {
    /// Bytes written.
    pub written: u64,
    /// Processor time of an emulated disk, in nanoseconds.
    pub cpu: Option<u64>,
}

impl DiskWork {
    /// The difference from an earlier moment.
    pub fn since(self, before: DiskWork) -> DiskWork {
        let cpu = self.cpu.zip(before.cpu).map(|(now, then)| now.saturating_sub(then));
        DiskWork { written: self.written.saturating_sub(before.written), cpu }
    }
}

/// Sums over the rounds of one target.
#[derive(Debug, Clone, Default)]
pub struct Counters {
    rounds: u64,
    operations: u64,
    read: u64,
    written: u64,
    busy: f64,
    /// Time that reads took, in nanoseconds.
    reading: f64,
    cpu: u64,
    preempted: u64,
    traffic: Option<Traffic>,
    told: BTreeMap<String, f64>,
    synced: Option<Synced>,
    peak: Option<u64>,
    disk: Option<DiskWork>,
}

impl Counters {
    /// Takes in a round.
    pub fn add(&mut self, measured: &Measured, counted: &Counted) {
        self.rounds += 1;
        self.operations += measured.operations;
        self.read += measured.read;
        self.written += measured.written;
        for (name, value) in &measured.told {
            *self.told.entry(name.clone()).or_default() += value;
        }
        self.busy += measured.busy;
        let reads = measured.times.iter().filter(|(op, _)| *op == Op::Read);
        self.reading +=
            reads.map(|(_, times)| times.mean() * times.len() as f64).sum::<f64>() * nanos_per_tick();
        self.cpu += counted.cpu;
        self.preempted += counted.preempted;
        if let Some(more) = counted.traffic {
            let sum = self.traffic.get_or_insert_default();
            sum.is_counted |= more.is_counted;
            sum.bytes += more.bytes;
            sum.lines += more.lines;
            sum.fences += more.fences;
            sum.nanos += more.nanos;
            sum.dram = more.dram;
            sum.copied += more.copied;
            sum.eager += more.eager;
            sum.written_back += more.written_back;
            sum.accurate += more.accurate;
            sum.inaccurate += more.inaccurate;
            sum.expected += more.expected;
            sum.unexpected += more.unexpected;
            sum.anticaches |= more.anticaches;
            sum.evicted += more.evicted;
            sum.promoted += more.promoted;
        }
        self.peak = self.peak.max(counted.peak);
        if let Some(more) = counted.disk {
            let sum = self.disk.get_or_insert_default();
            sum.written += more.written;
            sum.cpu = more.cpu.map(|more| more + sum.cpu.unwrap_or(0));
        }
        if let Some(more) = counted.synced {
            let sum = self.synced.get_or_insert_default();
            sum.written += more.written;
            sum.synced += more.synced;
        }
    }

    /// Means, by name.
    pub fn finish(&self) -> BTreeMap<String, f64> {
        let (rounds, operations) = (self.rounds.max(1) as f64, self.operations.max(1) as f64);
        let mut all = BTreeMap::from([
            ("operations".to_owned(), self.operations as f64 / rounds),
            ("user.read".to_owned(), self.read as f64 / rounds),
            ("user.written".to_owned(), self.written as f64 / rounds),
            ("cpu".to_owned(), self.cpu as f64 / operations),
            ("preempted".to_owned(), self.preempted as f64 / rounds),
        ]);
        if let Some(traffic) = self.traffic {
            all.insert("dram".to_owned(), traffic.dram as f64);
            let judged = traffic.accurate + traffic.inaccurate;
            if judged > 0 {
                all.insert("model.accuracy".to_owned(), 100.0 * traffic.accurate as f64 / judged as f64);
            }
            let predicted = traffic.expected + traffic.unexpected;
            if predicted > 0 {
                let percent = 100.0 * traffic.expected as f64 / predicted as f64;
                all.insert("predictor.accuracy".to_owned(), percent);
            }
            if traffic.anticaches {
                for (name, bytes) in
                    [("evicted.blocks", traffic.evicted), ("promoted.blocks", traffic.promoted)]
                {
                    all.insert(name.to_owned(), bytes as f64 / BLOCK_SIZE as f64 / rounds);
                }
            }
        }
        if let Some(traffic) = self.traffic.filter(|traffic| traffic.is_counted) {
            all.insert("pm.bytes".to_owned(), traffic.bytes as f64 / operations);
            all.insert("pm.lines".to_owned(), traffic.lines as f64 / operations);
            all.insert("pm.fences".to_owned(), traffic.fences as f64 / operations);
            if self.busy > 0.0 {
                all.insert("share.write".to_owned(), 100.0 * traffic.nanos as f64 / self.busy);
            }
            if self.written > 0 {
                all.insert("write.amplification".to_owned(), traffic.bytes as f64 / self.written as f64);
            }
        }
        if self.reading > 0.0 && self.busy > 0.0 {
            all.insert("share.read".to_owned(), 100.0 * self.reading / self.busy);
        }
        if let Some(disk) = self.disk {
            all.insert("disk.bytes".to_owned(), disk.written as f64 / operations);
            if self.written > 0 {
                all.insert("disk.amplification".to_owned(), disk.written as f64 / self.written as f64);
            }
            all.extend(disk.cpu.map(|cpu| ("cpu.disk".to_owned(), cpu as f64 / operations)));
        }
        // Data that the buffer passed on at once counts as data, too: as much of it as was written.
        if let Some(traffic) = self.traffic.filter(|traffic| traffic.is_counted && traffic.written_back > 0) {
            let stored = traffic.copied.saturating_sub(traffic.eager) as f64;
            all.insert("writeback.amplification".to_owned(), stored / traffic.written_back as f64);
        }
        all.extend(self.peak.map(|peak| ("memory.peak".to_owned(), peak as f64)));
        all.extend(self.told.iter().map(|(name, sum)| (name.clone(), sum / rounds)));
        if let Some(Synced { written, synced }) = self.synced.filter(|synced| synced.written > 0) {
            all.insert(SYNCED.to_owned(), 100.0 * synced as f64 / written as f64);
        }
        all
    }
}

/// The difference between two moments.
pub fn difference(before: Traffic, after: Traffic) -> Traffic {
    Traffic {
        is_counted: after.is_counted,
        bytes: after.bytes.saturating_sub(before.bytes),
        lines: after.lines.saturating_sub(before.lines),
        fences: after.fences.saturating_sub(before.fences),
        nanos: after.nanos.saturating_sub(before.nanos),
        dram: after.dram,
        copied: after.copied.saturating_sub(before.copied),
        eager: after.eager.saturating_sub(before.eager),
        written_back: after.written_back.saturating_sub(before.written_back),
        accurate: after.accurate.saturating_sub(before.accurate),
        inaccurate: after.inaccurate.saturating_sub(before.inaccurate),
        expected: after.expected.saturating_sub(before.expected),
        unexpected: after.unexpected.saturating_sub(before.unexpected),
        anticaches: after.anticaches,
        evicted: after.evicted.saturating_sub(before.evicted),
        promoted: after.promoted.saturating_sub(before.promoted),
    }
}

/// Processor time of a process so far, in nanoseconds, its threads together; zero when it is gone.
pub fn processor_time(process: u32) -> u64 {
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both calls only write to the references that they are given.
    let known = unsafe {
        libc::clock_getcpuclockid(process as libc::pid_t, &mut clock) == 0
            && libc::clock_gettime(clock, &mut time) == 0
    };
    if known { time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64 } else { 0 }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{
        Counted, Counters, DiskWork, GROWN, METADATA, MOVED, Synced, Traffic, names, processor_time, unit,
    };
    use crate::workload::{Measured, Op};

    #[test]
    fn counters_are_for_an_operation() {
        let mut counters = Counters::default();
        let told = ["trace.failed", "trace.succeeded", "program.seconds", MOVED, GROWN, METADATA];
        let told = BTreeMap::from(told.map(|name| (name.to_owned(), 3.0)));
        let mut measured =
            Measured { operations: 10, written: 40960, busy: 8e6, told, ..Measured::default() };
        measured.times.add_many(Op::Read, 1e6, 2);
        measured.times.add_many(Op::Write, 1e6, 4);
        let traffic = Traffic {
            is_counted: true,
            bytes: 45056,
            lines: 704,
            fences: 20,
            nanos: 2_000_000,
            dram: 7,
            copied: 2500,
            eager: 500,
            written_back: 1000,
            accurate: 9,
            inaccurate: 1,
            expected: 49,
            unexpected: 1,
            anticaches: true,
            evicted: 8 << 12,
            promoted: 4 << 12,
        };
        let synced = Synced { written: 1000, synced: 250 };
        let disk = Some(DiskWork { written: 81920, cpu: Some(700) });
        let counted = Counted {
            cpu: 5000,
            traffic: Some(traffic),
            preempted: 0,
            synced: Some(synced),
            peak: Some(9),
            disk,
        };
        counters.add(&measured, &counted);
        counters.add(&measured, &Counted { preempted: 1, peak: Some(8), ..counted });
        let all = counters.finish();
        assert!(all.keys().all(|name| unit(name).is_some()));
        assert_eq!(names().count(), all.len(), "all of them are there");
        assert_eq!((all["share.write"], all["share.synced"]), (25.0, 25.0));
        // Two of one millisecond in eight; histograms have two digits.
        assert!((all["share.read"] - 25.0).abs() < 0.5, "{}", all["share.read"]);
        assert_eq!((all["cpu"], all["pm.fences"], all["write.amplification"]), (500.0, 2.0, 1.1));
        assert_eq!(all["writeback.amplification"], 2.0);
        assert_eq!((all["disk.bytes"], all["disk.amplification"], all["cpu.disk"]), (8192.0, 2.0, 70.0));
        assert_eq!((all["operations"], all["dram"], all["preempted"]), (10.0, 7.0, 0.5));
        assert_eq!((all["trace.failed"], all["memory.peak"], all["model.accuracy"]), (3.0, 9.0, 90.0));
        assert_eq!(all["predictor.accuracy"], 98.0);
        assert_eq!((all["evicted.blocks"], all["promoted.blocks"]), (8.0, 4.0));

        let mut plain = Counters::default();
        let traffic = Traffic { dram: 7, ..Traffic::default() };
        let disk = Some(DiskWork { written: 10, cpu: None });
        plain.add(&measured, &Counted { traffic: Some(traffic), disk, ..Counted::default() });
        let all = plain.finish();
        assert!(all["dram"] == 7.0 && all["disk.bytes"] == 1.0 && !all.contains_key("cpu.disk"));
        assert!(!all.keys().any(|name| name.starts_with("pm.") || name.contains("write.amplif")));
    }

    #[test]
    fn our_own_processor_time_grows() {
        let before = processor_time(std::process::id());
        let begin = std::time::Instant::now();
        while processor_time(std::process::id()) <= before {
            assert!(begin.elapsed().as_secs() < 60, "no processor time in a minute");
        }
        // No process has this number: the kernel gives none above 2^22.
        assert_eq!(processor_time((1 << 22) + 1), 0);
    }
}
