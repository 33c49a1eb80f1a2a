//! RocksDB, by its own db_bench: sequential and random inserts, and reads, as in section 6.5 of paper 002.
//!
//! All options that are not named here are db_bench's own: keys of 16 bytes, snappy. `keys` is the number that all
//! threads write together, and that the database of the reads has. `write_buffer` is the size of a memtable, 64 MB as
//! in db_bench; the scale is of it, too. Tables and the first level have the sizes of db_bench relative to it. So a
//! database that is a hundredth as large has as many tables and levels, and logs of a hundredth. The figure is
//! db_bench's own for a benchmark; its histogram has steps of half a power of two, and times are put into the middle
//! of a step.

use std::path::{Path, PathBuf};
use std::process::Command;

use nacre_engine::size;

use super::super::recorder::Times;
use super::super::{Length, Measured, Op, Round, Value, Workload, scaled};
use super::child::{find, run};
use super::{KEY, directory, fresh, remove};
use crate::Error;
use crate::spec::Spec;
use crate::target::Target;

/// Memtables at once, each with its log: one that is filled, and one that is written to a table.
const MEMTABLES: u64 = 2;
/// The first level, in memtables: 256 MB beside 64 MB.
const FIRST_LEVEL: u64 = 4;
/// Memtables of less make tables that are hardly more than their files and syncs.
const LEAST_WRITE_BUFFER: u64 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Bench {
    FillSeq,
    FillUniqueRandom,
    ReadSeq,
    ReadRandom,
}

impl Bench {
    fn name(self) -> &'static str {
        match self {
            Bench::FillSeq => "fillseq",
            Bench::FillUniqueRandom => "filluniquerandom",
            Bench::ReadSeq => "readseq",
            Bench::ReadRandom => "readrandom",
        }
    }

    fn reads(self) -> bool {
        matches!(self, Bench::ReadSeq | Bench::ReadRandom)
    }
}

struct RocksDb {
    bench: Bench,
    keys: u64,
    value: u64,
    threads: u64,
    sync: bool,
    /// Bytes of a memtable.
    write_buffer: u64,
}

pub(super) fn make(spec: &Spec, scale: f64) -> Result<Box<dyn Workload>, String> {
    let benches = [Bench::FillSeq, Bench::FillUniqueRandom, Bench::ReadSeq, Bench::ReadRandom];
    let bench = spec.word("bench", "fillseq", &benches.map(|bench| (bench.name(), bench)))?;
    let threads = spec.number("threads", 8, 1)?;
    let keys = scaled(spec.number("keys", 50_000, 1)?, scale, threads);
    let value = spec.size("value", "100")?;
    let sync = !bench.reads() && spec.word("sync", "1", &[("0", false), ("1", true)])?;
    let write_buffer = scaled(spec.size("write_buffer", "64m")?, scale, LEAST_WRITE_BUFFER);
    // More threads than one are refused by db_bench here.
    let threads = if bench == Bench::FillUniqueRandom { 1 } else { threads };
    Ok(Box::new(RocksDb { bench, keys, value, threads, sync, write_buffer }))
}

/// The output of db_bench for one benchmark.
#[derive(Debug, PartialEq)]
struct Said {
    operations: u64,
    per_second: f64,
    /// Steps of its histogram, in microseconds, and how many there were in each.
    steps: Vec<(f64, f64, u64)>,
}

impl Said {
    /// Takes the output apart; none where it has no result of this benchmark.
    fn parse(output: &str, bench: &str) -> Option<Said> {
        let result =
            output.lines().find_map(|line| line.strip_prefix(bench)?.trim_start().strip_prefix(':'))?;
        let words: Vec<&str> = result.split_whitespace().collect();
        let before =
            |unit: &str| words.get(words.iter().position(|word| *word == unit)?.checked_sub(1)?).copied();
        let steps = output.lines().filter_map(|line| {
            let line = line.trim_start().strip_prefix(['(', '['])?;
            let (range, rest) = line.split_once([']', ')'])?;
            let (low, high) = range.split_once(',')?;
            let count = rest.split_whitespace().next()?.parse().ok()?;
            Some((low.trim().parse().ok()?, high.trim().parse().ok()?, count))
        });
        Some(Said {
            operations: before("operations;")?.parse().ok()?,
            per_second: before("ops/sec")?.parse().ok()?,
            steps: steps.collect(),
        })
    }
}

impl RocksDb {
    fn program() -> Option<PathBuf> {
        find("db_bench")
    }

    /// Runs a benchmark, or several with commas between.
    fn db_bench(&self, dir: &Path, benches: &str, keys: u64, threads: u64) -> Result<Command, Error> {
        let mut command = Command::new(Self::program().ok_or("db_bench is not installed")?);
        command.arg(format!("--db={}", dir.display())).arg(format!("--benchmarks={benches}"));
        command.args([format!("--num={keys}"), format!("--threads={threads}")]);
        command.args([format!("--key_size={KEY}"), format!("--value_size={}", self.value)]);
        let Self { write_buffer, .. } = self;
        command.arg(format!("--write_buffer_size={write_buffer}"));
        command.arg(format!("--max_write_buffer_number={MEMTABLES}"));
        command.arg(format!("--target_file_size_base={write_buffer}"));
        command.arg(format!("--max_bytes_for_level_base={}", FIRST_LEVEL * write_buffer));
        Ok(command)
    }
}

impl Workload for RocksDb {
    fn describe(&self) -> String {
        let (name, value, threads) = (self.bench.name(), self.value, self.threads);
        let sync = if self.sync { ", synced" } else { "" };
        let threads = if threads == 1 { "one thread".to_owned() } else { format!("{threads} threads") };
        let memtables = size::print(self.write_buffer);
        format!(
            "RocksDB, {name} on {threads}: {} keys of {KEY} bytes with {value} bytes, memtables of {memtables}{sync}",
            self.keys
        )
    }

    fn bytes(&self) -> u64 {
        self.keys * (KEY as u64 + self.value) * 3 / 2 + self.logs() + (32 << 20)
    }

    fn logs(&self) -> u64 {
        MEMTABLES * self.write_buffer
    }

    fn files(&self) -> u64 {
        // Tables of compressed data.
        self.bytes() / (self.write_buffer / 4) + 64
    }

    fn value(&self) -> Value {
        Value::Operations
    }

    fn length(&self) -> Length {
        Length::Whole
    }

    fn missing(&self) -> Option<String> {
        Self::program().is_none().then(|| "db_bench is not installed (package rocksdb-tools)".into())
    }

    fn prepare(&self, target: &dyn Target) -> Result<(), Error> {
        let dir = fresh(target)?;
        if self.bench.reads() {
            // Neither synced nor by several threads: only the database counts.
            let mut command = self.db_bench(&dir, "filluniquerandom,waitforcompaction", self.keys, 1)?;
            run(command.arg("--seed=1"))?;
        }
        Ok(())
    }

    fn round(&self, target: &dyn Target, round: Round) -> Result<Measured, Error> {
        let dir = directory(target)?;
        // Each thread of readseq reads all, as in db_bench; the others share the work.
        let share = self.keys / self.threads;
        let keys = if self.bench.reads() { self.keys } else { share };
        let mut command = self.db_bench(&dir, self.bench.name(), keys, self.threads)?;
        command.args(["--histogram=1", &format!("--seed={}", round.seed_of(0) >> 1 | 1)]);
        match self.bench {
            Bench::ReadSeq => command.arg("--use_existing_db=1"),
            Bench::ReadRandom => command.args(["--use_existing_db=1", &format!("--reads={share}")]),
            _ => {
                remove(&dir)?;
                command.arg(format!("--sync={}", u8::from(self.sync)))
            }
        };
        let (output, took) = run(&mut command)?;
        let name = self.bench.name();
        let said = Said::parse(&output, name)
            .ok_or_else(|| format!("db_bench has no result of {name} in its output: {output}"))?;
        let op = if self.bench.reads() { Op::Read } else { Op::Write };
        let mut times = Times::default();
        for (low, high, count) in said.steps {
            times.add_many(op, (low + high) / 2.0 * 1e3, count);
        }
        let mut measured = Measured {
            operations: said.operations,
            nanos: said.operations as f64 / said.per_second.max(f64::MIN_POSITIVE) * 1e9,
            times,
            told: [("program.seconds".to_owned(), took.as_secs_f64())].into(),
            ..Measured::default()
        };
        let bytes = said.operations * (KEY as u64 + self.value);
        if self.bench.reads() {
            measured.read = bytes;
        } else {
            measured.written = bytes;
        }
        Ok(measured)
    }
}

#[cfg(test)]
mod tests {
    use super::{Said, make};

    /// db_bench of RocksDB 7.8.3.
    const OUTPUT: &str = "Set seed to 7\nRocksDB:    version 7.8.3\nDB path: [/x/r]\n\
        readrandom   :       5.649 micros/op 301286 ops/sec 0.133 seconds 40000 operations;   33.3 MB/s (20000 of 20000 found)\n\n\
        Microseconds per read:\nCount: 40000 Average: 0.9358  StdDev: 50.58\n\
        Min: 0  Median: 0.5128  Max: 7841\nPercentiles: P50: 0.51 P75: 0.77 P99: 7.17 P99.9: 14.00 P99.99: 76.00\n\
        ------------------------------------------------------\n\
        [       0,       1 ]    39002  97.505%  97.505% ####################\n\
        (       1,       2 ]      998   2.495% 100.000% \n";

    #[test]
    fn its_logs_and_tables_shrink_with_its_data() {
        let at = |spec: &str, scale| make(&spec.parse().unwrap(), scale).unwrap();
        let keys = "program.rocksdb,keys=296000000";
        assert_eq!(at(keys, 1.0).logs(), 128 << 20, "what paper 002 says");
        assert_eq!(at(keys, 0.25).logs(), 32 << 20);
        assert_eq!(at(keys, 0.001).logs(), 2 << 20, "the least");
        assert_eq!(at("program.rocksdb,write_buffer=16m", 1.0).logs(), 32 << 20);
        assert!(at(keys, 0.25).describe().contains("memtables of 16 MiB"), "{}", at(keys, 0.25).describe());
    }

    #[test]
    fn its_output_is_understood() {
        let said = Said::parse(OUTPUT, "readrandom").unwrap();
        assert_eq!((said.operations, said.per_second), (40000, 301_286.0));
        assert_eq!(said.steps, [(0.0, 1.0, 39002), (1.0, 2.0, 998)]);
        assert_eq!(Said::parse(OUTPUT, "fillseq"), None);
    }
}
