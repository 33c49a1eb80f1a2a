//! The work done on targets.
//!
//! A [`Workload`] is prepared once on a target and then runs in rounds: slices of time, or all of a job
//! ([`Length::Whole`]). It sees the target only through [`Target`], and takes the time of each operation with a
//! [`Recorder`]. It does the same on every target: randomness comes from the seed and the number of the round.
//!
//! - [`micro`]: one kind of operation on one file, in every size and pattern. [`iozone`]: that program's six phases.
//! - [`meta`]: names in small and large directories. [`filebench`]: file server, web server, web proxy, mail.
//! - [`postmark`]: many small files with a short life. [`mount`]: mounts of many files, and the DRAM that these leave.
//! - [`tier`]: files that move between PM and a disk, and the effect on others.
//! - [`bpfs`]: AC-BPFS's own. [`tree`]: a tree of sources searched and built. [`trace`]: system calls that were recorded, again.
//! - [`program`]: real programs, where they are installed.
//! - [`recorder`]: times. [`set`]: files to work on. [`group`]: workloads that belong together.

pub mod bpfs;
pub mod filebench;
pub mod group;
pub mod iozone;
pub mod meta;
pub mod micro;
pub mod mount;
#[cfg(test)]
mod noted;
pub mod postmark;
pub mod program;
pub mod recorder;
pub mod set;
pub mod tier;
pub mod trace;
pub mod tree;

use std::time::Duration;

use crate::Error;
use crate::clock::nanos_per_tick;
use crate::report::schema::{Better, Metric};
use crate::spec::Spec;
use crate::target::Target;
pub use recorder::{Measured, Op, Recorder};

/// Work on a target, with its parameters.
pub trait Workload: Send + Sync {
    /// In one plain sentence, with its sizes.
    fn describe(&self) -> String;
    /// Bytes that it has on the target at most.
    fn bytes(&self) -> u64;
    /// Files and directories that it has at most.
    fn files(&self) -> u64;
    /// Bytes of the write-ahead logs that a program has at most at once, by the sizes of its memtables.
    fn logs(&self) -> u64 {
        0
    }
    /// How its value is calculated.
    fn value(&self) -> Value;
    /// Whether a round is a slice of time or the whole of a job.
    fn length(&self) -> Length {
        Length::Slice
    }
    /// How the target is opened again before each round; none where it stays open.
    fn reopens(&self) -> Option<Reopening> {
        None
    }
    /// The programs that are not installed here, with the package that brings them, and other things that it needs.
    fn missing(&self) -> Option<String> {
        None
    }
    /// Makes the files that it works on, durably.
    fn prepare(&self, target: &dyn Target) -> Result<(), Error>;
    /// Runs one round.
    fn round(&self, target: &dyn Target, round: Round) -> Result<Measured, Error>;
    /// Runs one round on a target that was opened again ([`Workload::reopens`]), which took so long.
    fn opened(&self, target: &dyn Target, round: Round, _took: Duration) -> Result<Measured, Error> {
        self.round(target, round)
    }
}

/// How a target is opened again before a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reopening {
    /// It was not closed: the process that had it open was killed.
    pub after_kill: bool,
    /// The time is that of `nacre mount`, and not that of the layout's own mount.
    pub by_command: bool,
}

/// The length of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// As long as it is told.
    Slice,
    /// The same, and as short as may be: its operations are all alike.
    Short,
    /// Until its work is done.
    Whole,
}

/// A round.
#[derive(Debug, Clone, Copy)]
pub struct Round {
    /// Its number; the same on every target. Rounds to warm up count, too.
    pub number: u64,
    /// The seed of the run.
    pub seed: u64,
    /// How long it takes.
    pub slice: Duration,
}

impl Round {
    /// A seed for one thread in this round.
    pub fn seed_of(&self, thread: u64) -> u64 {
        self.seed
            ^ self.number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ (thread + 1).wrapping_mul(0xd1b5_4a32_d192_ed03)
    }
}

/// The value that is calculated from a round's measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// Operations a second.
    Operations,
    /// Bytes that were read and written, in MB (10^6) a second.
    Bytes,
    /// Seconds.
    Seconds,
    /// The most that 99 of 100 operations of any kind took, in nanoseconds.
    Tail,
}

impl Value {
    /// All of them.
    pub const ALL: [Value; 4] = [Value::Operations, Value::Bytes, Value::Seconds, Value::Tail];

    /// Its name on the command line: its unit, unless others have that, too.
    pub fn word(self) -> &'static str {
        match self {
            Value::Operations => "op/s",
            Value::Bytes => "MB/s",
            Value::Seconds => "s",
            Value::Tail => "p99",
        }
    }

    /// For the report.
    pub fn metric(self) -> Metric {
        let (name, unit, better) = match self {
            Value::Operations => ("throughput", "op/s", Better::More),
            Value::Bytes => ("throughput", "MB/s", Better::More),
            Value::Seconds => ("time", "s", Better::Less),
            Value::Tail => ("99th percentile of the latency", "ns", Better::Less),
        };
        Metric { name: name.into(), unit: unit.into(), better }
    }

    /// The value of a round.
    pub fn of(self, measured: &Measured) -> f64 {
        let seconds = measured.nanos / 1e9;
        match self {
            Value::Operations => measured.operations as f64 / seconds,
            Value::Bytes => (measured.read + measured.written) as f64 / 1e6 / seconds,
            Value::Seconds => seconds,
            Value::Tail => measured.times.quantile(0.99) as f64 * nanos_per_tick(),
        }
    }
}

/// A kind of workload.
pub struct Kind {
    /// Its name; the part before the dot is its family.
    pub name: &'static str,
    /// In a few words.
    pub about: &'static str,
    make: Make,
}

/// Makes a workload from its parameters, with its sizes multiplied.
type Make = fn(&Spec, f64) -> Result<Box<dyn Workload>, String>;

/// All that there are.
pub const KINDS: &[Kind] = &[
    Kind { name: "micro.read", about: "reads of one file, or of one for each thread", make: micro::make },
    Kind {
        name: "micro.write",
        about: "overwrites of one file, or of one for each thread",
        make: micro::make,
    },
    Kind { name: "micro.append", about: "appends to one file for each thread", make: micro::make },
    Kind { name: "micro.mix", about: "reads and overwrites of one file", make: micro::make },
    Kind {
        name: "iozone",
        about: "IOzone: write, rewrite, read, reread, random read, random write",
        make: iozone::make,
    },
    Kind { name: "meta.create", about: "makes empty files in one directory", make: meta::make },
    Kind { name: "meta.unlink", about: "removes empty files from one directory", make: meta::make },
    Kind {
        name: "meta.rename",
        about: "renames files within one directory, or to and fro between two",
        make: meta::make,
    },
    Kind { name: "meta.stat", about: "finds files of one directory by path", make: meta::make },
    Kind { name: "meta.readdir", about: "lists one directory", make: meta::make },
    Kind {
        name: "filebench.fileserver",
        about: "whole files written, appended to, read, removed",
        make: filebench::make,
    },
    Kind { name: "filebench.webserver", about: "whole files read, a log appended to", make: filebench::make },
    Kind {
        name: "filebench.webproxy",
        about: "files made, read five times, removed; a log",
        make: filebench::make,
    },
    Kind {
        name: "filebench.varmail",
        about: "mails made, appended to, read, removed, with fsync",
        make: filebench::make,
    },
    Kind { name: "mount.layout", about: "the layout's own mount, after many files", make: mount::make },
    Kind { name: "mount.command", about: "the command nacre mount, after many files", make: mount::make },
    Kind { name: "mount.lookup", about: "first lookups by path after a mount", make: mount::make },
    Kind { name: "mount.dram", about: "DRAM that many files leave behind", make: mount::make },
    Kind { name: "postmark", about: "Postmark: many small files with a short life", make: postmark::make },
    Kind { name: "bpfs.ops", about: "AC-BPFS's table 1: thirteen operations in turn", make: bpfs::make },
    Kind { name: "bpfs.append", about: "AC-BPFS: appends with fsync", make: bpfs::make },
    Kind { name: "bpfs.randwrite", about: "AC-BPFS: random writes with fsync", make: bpfs::make },
    Kind { name: "bpfs.coldness", about: "AC-BPFS: reads of hot and cold files", make: bpfs::make },
    Kind { name: "bpfs.filebench", about: "AC-BPFS: whole files, a third read", make: bpfs::make },
    Kind {
        name: "tier.migrate",
        about: "files moved to a tier; elsewhere written past the page cache",
        make: tier::make,
    },
    Kind {
        name: "tier.beside",
        about: "the tail of reads and writes while the mover moves others",
        make: tier::make,
    },
    Kind { name: "tree.grep", about: "a tree of sources searched for what it has not", make: tree::make },
    Kind { name: "tree.make", about: "the file-system side of a build", make: tree::make },
    Kind {
        name: "program.leveldb",
        about: "LevelDB's fillseq, readrandom, readhot, through its library",
        make: program::make,
    },
    Kind {
        name: "program.pgbench",
        about: "PostgreSQL under pgbench, its data on the target",
        make: program::make,
    },
    Kind {
        name: "program.rocksdb",
        about: "RocksDB's db_bench: fillseq, filluniquerandom, readseq, readrandom",
        make: program::make,
    },
    Kind {
        name: "program.sqlite",
        about: "SQLite's transactions, through its library: insert, update, read",
        make: program::make,
    },
    Kind { name: "trace.facebook", about: "MobiBench's Facebook trace, from=FILE", make: trace::make },
    Kind { name: "trace.file", about: "any trace, from=FILE", make: trace::make },
    Kind { name: "trace.git", about: "git, recorded: two commits and a clone of them", make: trace::make },
    Kind { name: "trace.mail", about: "mails, recorded: brought to a maildir, and read", make: trace::make },
    Kind {
        name: "trace.postgresql",
        about: "PostgreSQL, recorded: pgbench's transactions",
        make: trace::make,
    },
    Kind {
        name: "trace.sqlite",
        about: "SQLite, recorded: transactions with both journals",
        make: trace::make,
    },
];

/// Makes a workload from its name and parameters; its sizes are multiplied by `scale`.
pub fn make(spec: &Spec, scale: f64) -> Result<Box<dyn Workload>, String> {
    let kind = KINDS
        .iter()
        .find(|kind| kind.name == spec.name())
        .ok_or_else(|| format!("{} is no workload; 'nacre bench list' shows them", spec.name()))?;
    let workload = (kind.make)(spec, scale)?;
    spec.finish()?;
    Ok(workload)
}

/// A count after scaling: at least `least`.
fn scaled(count: u64, scale: f64, least: u64) -> u64 {
    ((count as f64 * scale).round() as u64).max(least)
}

#[cfg(test)]
mod tests {
    use super::{KINDS, make};
    use crate::target::Target;
    use crate::target::directory::Directory;
    use crate::target::library::Library;

    /// The library on a file in a directory, and another directory in it.
    pub(super) fn targets(dir: &tempfile::TempDir) -> Vec<Box<dyn Target>> {
        let library = Library::create(
            &dir.path().join("pm"),
            128 << 20,
            nacre::Preset::Nova,
            None,
            &nacre::OpenOptions::default(),
        )
        .unwrap();
        std::fs::create_dir(dir.path().join("d")).unwrap();
        vec![Box::new(library), Box::new(Directory::open(&dir.path().join("d")).unwrap())]
    }

    #[test]
    fn every_kind_can_be_made_without_parameters() {
        for kind in KINDS {
            let workload = make(&kind.name.parse().unwrap(), 0.01).unwrap_or_else(|why| panic!("{why}"));
            assert!(!workload.describe().is_empty() && workload.bytes() > 0, "{}", kind.name);
        }
        assert!(make(&"micro.write,thread=2".parse().unwrap(), 1.0).is_err());
        assert!(make(&"nothing".parse().unwrap(), 1.0).is_err());
    }
}
