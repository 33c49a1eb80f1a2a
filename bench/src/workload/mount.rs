//! Mounts of a file system with many files, the first lookups after one, and the DRAM that files leave behind.
//!
//! - `mount.layout`: the layout's own mount, as it is told by the layout. It does not have the time in which the device
//!   is opened and mapped.
//! - `mount.command`: `nacre mount` as a command, from its start to its end.
//! - `mount.lookup`: files found by path, each in a directory that nothing has looked at since the mount.
//! - `mount.dram`: files that were made, found and let go: the DRAM that they leave (`dram`, `memory.grown`).
//!
//! The files are empty and lie in directories of equal size. Before each round of the first three the target is closed,
//! or with `end=kill` its process is killed, and opened again ([`Reopening`]).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nacre_engine::size;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::recorder::whole;
use super::{Length, Measured, Op, Reopening, Round, Value, Workload, scaled};
use crate::Error;
use crate::counters::GROWN;
use crate::spec::Spec;
use crate::target::{Open, Target};

/// The directory above all others.
const DIR: &str = "mount";
/// Files that a round finds, at most.
const LOOKUPS: u64 = 64;
/// The kernel tells a server within this time that it has forgotten inodes, and the server gives their DRAM back.
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(15);
/// A process that has grown by less than this is not waited for.
const SETTLED: u64 = 256 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Layout,
    Command,
    Lookup,
    Dram,
}

struct Mount {
    kind: Kind,
    files: u64,
    dirs: u64,
    after_kill: bool,
    /// Bytes by which the process that serves has grown.
    grown: AtomicU64,
}

pub(super) fn make(spec: &Spec, scale: f64) -> Result<Box<dyn Workload>, String> {
    let kind = match spec.name() {
        "mount.layout" => Kind::Layout,
        "mount.command" => Kind::Command,
        "mount.lookup" => Kind::Lookup,
        _ => Kind::Dram,
    };
    let files = scaled(spec.number("files", 100_000, 1)?, scale, 16);
    let dirs = scaled(spec.number("dirs", 1000, 1)?, scale, 1).min(files);
    let after_kill = kind != Kind::Dram && spec.word("end", "clean", &[("clean", false), ("kill", true)])?;
    Ok(Box::new(Mount { kind, files, dirs, after_kill, grown: AtomicU64::new(0) }))
}

/// Bytes of a process that belong to it alone.
fn anonymous(process: u32) -> Result<u64, Error> {
    let path = format!("/proc/{process}/status");
    let status = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok());
    Ok(kilobytes.ok_or_else(|| format!("{path} has no RssAnon"))? << 10)
}

/// The process with the indexes: that of a mount, or this one.
fn server(target: &dyn Target) -> Result<u32, Error> {
    let info = target.information().ok_or("only nacre says how much DRAM its indexes take")?;
    Ok(info.mount.map_or_else(std::process::id, |mount| mount.pid))
}

impl Mount {
    fn dir(number: u64) -> PathBuf {
        Path::new(DIR).join(format!("d{number:04}"))
    }

    fn per_dir(&self) -> u64 {
        self.files.div_ceil(self.dirs)
    }

    /// The directories that have files.
    fn filled(&self) -> u64 {
        self.files.div_ceil(self.per_dir())
    }

    fn path(&self, number: u64) -> PathBuf {
        Self::dir(number / self.per_dir()).join(format!("f{number:07}"))
    }

    fn make_files(&self, target: &dyn Target) -> Result<(), Error> {
        target.create_dir(DIR.as_ref())?;
        (0..self.filled()).try_for_each(|dir| target.create_dir(&Self::dir(dir)))?;
        for number in 0..self.files {
            drop(target.open(&self.path(number), Open::CREATE)?);
        }
        Ok(target.sync()?)
    }

    /// Files in different directories.
    fn chosen(&self, seed: u64) -> Vec<PathBuf> {
        let mut random = SmallRng::seed_from_u64(seed);
        let (filled, per_dir) = (self.filled(), self.per_dir());
        let count = LOOKUPS.min(filled);
        let first = random.random_range(0..filled);
        let one = |at: u64| {
            let begin = (first + at * filled / count) % filled * per_dir;
            self.path(random.random_range(begin..(begin + per_dir).min(self.files)))
        };
        (0..count).map(one).collect()
    }

    fn find(&self, target: &dyn Target, round: Round) -> Result<Measured, Error> {
        let chosen = self.chosen(round.seed_of(0));
        whole(|recorder| {
            recorder.skip();
            for path in &chosen {
                target.stat(path)?;
                recorder.lap(Op::Stat);
            }
            Ok(())
        })
    }

    /// Bytes by which a process has grown, once the kernel holds none of its inodes.
    fn growth(target: &dyn Target, process: u32, before: u64) -> Result<u64, Error> {
        let grown = || Ok::<_, Error>(anonymous(process)?.saturating_sub(before));
        if target.directory().is_none() {
            return grown();
        }
        const FILE: &str = "/proc/sys/vm/drop_caches";
        fs::write(FILE, "2")
            .map_err(|error| format!("the kernel keeps names and inodes: {FILE}: {error}"))?;
        let (begin, mut least) = (Instant::now(), grown()?);
        while least > SETTLED && begin.elapsed() < FORGOTTEN_WITHIN {
            thread::sleep(Duration::from_millis(100));
            least = least.min(grown()?);
        }
        Ok(least)
    }
}

impl Workload for Mount {
    fn describe(&self) -> String {
        let files = size::count(self.files, "file", "files");
        let of = format!("{files} in {}", size::count(self.filled(), "directory", "directories"));
        let after = if self.after_kill { "kill -9" } else { "a clean unmount" };
        match self.kind {
            Kind::Layout => format!("the layout's own mount of {of} after {after}"),
            Kind::Command => format!("the command nacre mount on {of} after {after}"),
            Kind::Lookup => format!("the first lookups by path after a mount of {of}, after {after}"),
            Kind::Dram => format!("the DRAM that {of} leave when they were made and let go"),
        }
    }

    fn bytes(&self) -> u64 {
        // The space of names and inodes anywhere.
        self.files() * 512
    }

    fn files(&self) -> u64 {
        self.files + self.filled() + 2
    }

    fn value(&self) -> Value {
        match self.kind {
            Kind::Layout | Kind::Command => Value::Seconds,
            Kind::Lookup | Kind::Dram => Value::Operations,
        }
    }

    fn length(&self) -> Length {
        Length::Whole
    }

    fn reopens(&self) -> Option<Reopening> {
        let by_command = self.kind == Kind::Command;
        (self.kind != Kind::Dram).then_some(Reopening { after_kill: self.after_kill, by_command })
    }

    fn missing(&self) -> Option<String> {
        if self.kind != Kind::Command
            || rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists()
        {
            return None;
        }
        Some("nacre mount needs root and /dev/fuse".to_owned())
    }

    fn prepare(&self, target: &dyn Target) -> Result<(), Error> {
        if self.kind != Kind::Dram {
            return self.make_files(target);
        }
        let process = server(target)?;
        let before = anonymous(process)?;
        self.make_files(target)?;
        self.find(target, Round { number: 0, seed: 0, slice: Duration::ZERO })?;
        self.grown.store(Self::growth(target, process, before)?, Ordering::Relaxed);
        Ok(())
    }

    fn round(&self, target: &dyn Target, round: Round) -> Result<Measured, Error> {
        let mut measured = self.find(target, round)?;
        if self.kind == Kind::Dram {
            measured.told.insert(GROWN.to_owned(), self.grown.load(Ordering::Relaxed) as f64);
        }
        Ok(measured)
    }

    /// Files are looked up in each round, so that a mount that has lost them is no result.
    fn opened(&self, target: &dyn Target, round: Round, took: Duration) -> Result<Measured, Error> {
        let found = self.round(target, round)?;
        if self.kind == Kind::Lookup {
            return Ok(found);
        }
        let nanos = took.as_nanos() as f64;
        let mut measured = Measured { operations: 1, nanos, busy: nanos, ..Measured::default() };
        measured.times.add_many(Op::Other, nanos, 1);
        Ok(measured)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use super::{GROWN, Kind, LOOKUPS, Mount};
    use crate::target::Target;
    use crate::workload::noted::{Call, Noted};
    use crate::workload::tests::targets;
    use crate::workload::{Reopening, Round, make};

    fn round(number: u64) -> Round {
        Round { number, seed: 1, slice: Duration::ZERO }
    }

    #[test]
    fn files_lie_in_directories_of_equal_size() {
        let dir = tempfile::tempdir().unwrap();
        let target = Noted::new(dir.path());
        make(&"mount.layout,files=100,dirs=9".parse().unwrap(), 1.0).unwrap().prepare(&target).unwrap();
        let names = |path: &str| {
            let mut names = Vec::new();
            target.read_dir(path.as_ref(), &mut |name| names.push(name.to_owned())).unwrap();
            names.len()
        };
        // Nine directories of twelve: the last one has the rest.
        assert_eq!(names("mount"), 9);
        assert_eq!((names("mount/d0000"), names("mount/d0007"), names("mount/d0008")), (12, 12, 4));
    }

    #[test]
    fn each_file_that_is_looked_up_is_in_another_directory() {
        let dir = tempfile::tempdir().unwrap();
        let target = Noted::new(dir.path());
        for (dirs, expected) in [(200, LOOKUPS), (5, 5)] {
            let spec = format!("mount.lookup,files=1000,dirs={dirs}");
            let work = make(&spec.parse().unwrap(), 1.0).unwrap();
            work.prepare(&target).unwrap();
            let mut all = HashSet::new();
            for number in 0..5 {
                target.take();
                let measured = work.opened(&target, round(number), Duration::from_secs(9)).unwrap();
                let calls = target.take();
                assert!(calls.iter().all(|(_, call)| *call == Call::Stat), "{calls:?}");
                let parents: HashSet<_> = calls.iter().map(|(path, _)| path.parent().unwrap()).collect();
                assert_eq!((parents.len(), calls.len()), (expected as usize, expected as usize), "{spec}");
                assert_eq!(measured.operations, expected);
                assert!(measured.nanos < 9e9, "lookups, not the mount");
                all.extend(calls.into_iter().map(|(path, _)| path));
            }
            assert!(all.len() as u64 > expected, "others each time");
            crate::target::remove_dir_all(&target, "mount".as_ref()).unwrap();
        }
    }

    #[test]
    fn a_mount_is_one_operation_that_took_as_long_as_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let target = Noted::new(dir.path());
        for (spec, reopening) in [
            ("mount.layout,end=clean", Reopening { after_kill: false, by_command: false }),
            ("mount.layout,end=kill", Reopening { after_kill: true, by_command: false }),
            ("mount.command,end=kill", Reopening { after_kill: true, by_command: true }),
        ] {
            let work = make(&format!("{spec},files=40,dirs=2").parse().unwrap(), 1.0).unwrap();
            assert_eq!(work.reopens(), Some(reopening), "{spec}");
            work.prepare(&target).unwrap();
            let measured = work.opened(&target, round(0), Duration::from_millis(3)).unwrap();
            assert_eq!((measured.operations, measured.nanos), (1, 3e6), "{spec}");
            let times: Vec<u64> = measured.times.iter().map(|(_, times)| times.len()).collect();
            assert_eq!(times, [1], "{spec}");
            crate::target::remove_dir_all(&target, "mount".as_ref()).unwrap();
            // A mount that has lost the files is no result.
            assert!(work.opened(&target, round(1), Duration::from_millis(3)).is_err(), "{spec}");
        }
    }

    #[test]
    fn dram_is_known_of_nacre_alone() {
        let dir = tempfile::tempdir().unwrap();
        let targets = targets(&dir);
        let work = make(&"mount.dram,files=200,dirs=4".parse().unwrap(), 1.0).unwrap();
        assert_eq!(work.reopens(), None);
        work.prepare(&*targets[0]).unwrap();
        let measured = work.round(&*targets[0], round(0)).unwrap();
        // Other tests of this process take DRAM, too.
        assert_eq!((measured.operations, measured.told.contains_key(GROWN)), (4, true));
        let why = work.prepare(&*targets[1]).unwrap_err().to_string();
        assert!(why.contains("only nacre"), "{why}");
    }

    #[test]
    fn counts_are_scaled_together() {
        let work = make(&"mount.dram,files=1000000,dirs=1000".parse().unwrap(), 0.001).unwrap();
        assert_eq!(
            work.describe(),
            "the DRAM that 1000 files in 1 directory leave when they were made and let go"
        );
        let one = Mount { kind: Kind::Dram, files: 10, dirs: 4, after_kill: false, grown: 0.into() };
        assert_eq!((one.per_dir(), one.filled()), (3, 4));
    }
}
