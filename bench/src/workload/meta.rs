//! Names in one directory: made, found, renamed, listed, removed.

use std::path::{Path, PathBuf};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::recorder::on_threads;
use super::{Length, Measured, Op, Recorder, Round, Value, Workload, scaled};
use crate::Error;
use crate::spec::Spec;
use crate::target::{Open, Target, create_dir_all};

/// The directory with the names that stay.
const DIR: &str = "names";

/// The directory that names are moved to when they are renamed across directories.
const OTHER: &str = "others";

/// Names that are made, or removed, in turn.
const BATCH: u64 = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Create,
    Unlink,
    Rename,
    Stat,
    ReadDir,
}

#[derive(Debug)]
struct Meta {
    kind: Kind,
    files: u64,
    threads: u64,
    /// Renames go to another directory.
    across: bool,
}

pub(super) fn make(spec: &Spec, scale: f64) -> Result<Box<dyn Workload>, String> {
    let kind = match spec.name() {
        "meta.create" => Kind::Create,
        "meta.unlink" => Kind::Unlink,
        "meta.rename" => Kind::Rename,
        "meta.stat" => Kind::Stat,
        _ => Kind::ReadDir,
    };
    let files = scaled(spec.number("files", 1000, 1)?, scale, 16);
    let threads = spec.number("threads", 1, 1)?;
    let across = kind == Kind::Rename && spec.word("across", "no", &[("no", false), ("yes", true)])?;
    Ok(Box::new(Meta { kind, files, threads, across }))
}

/// A name that stays.
fn name(number: u64) -> PathBuf {
    Path::new(DIR).join(format!("n{number:07}"))
}

impl Meta {
    /// The files that one thread renames.
    fn own(&self, thread: u64) -> std::ops::Range<u64> {
        let share = self.files / self.threads;
        thread * share..(thread + 1) * share
    }

    /// Makes and removes names of its own beside those that stay; one of both is the work.
    fn make_and_remove(
        &self,
        target: &dyn Target,
        thread: u64,
        recorder: &mut Recorder,
    ) -> Result<(), Error> {
        let names: Vec<_> =
            (0..BATCH).map(|number| Path::new(DIR).join(format!("t{thread}-{number:04}"))).collect();
        recorder.skip();
        let mut goes_on = true;
        while goes_on {
            let mut made = 0;
            for name in &names {
                drop(target.open(name, Open::CREATE)?);
                made += 1;
                if self.kind == Kind::Create {
                    goes_on = recorder.lap(Op::Create);
                    if !goes_on {
                        break;
                    }
                }
            }
            if self.kind == Kind::Unlink {
                recorder.skip();
            }
            for name in &names[..made] {
                target.remove_file(name)?;
                if self.kind == Kind::Unlink && goes_on {
                    goes_on = recorder.lap(Op::Unlink);
                }
            }
            if self.kind == Kind::Create && goes_on {
                recorder.skip();
            }
        }
        Ok(())
    }

    /// Renames files to their other names; those of the last round are found by trying.
    fn rename(&self, target: &dyn Target, thread: u64, recorder: &mut Recorder) -> Result<(), Error> {
        let dir = if self.across { OTHER } else { DIR };
        let pairs: Vec<_> = self
            .own(thread)
            .map(|number| (name(number), Path::new(dir).join(format!("r{number:07}"))))
            .collect();
        let mut there: Vec<bool> = pairs.iter().map(|(first, _)| target.stat(first).is_ok()).collect();
        recorder.skip();
        loop {
            for ((first, second), there) in pairs.iter().zip(&mut there) {
                let (from, to) = if *there { (first, second) } else { (second, first) };
                target.rename(from, to)?;
                *there = !*there;
                if !recorder.lap(Op::Rename) {
                    return Ok(());
                }
            }
        }
    }

    fn stat(&self, target: &dyn Target, seed: u64, recorder: &mut Recorder) -> Result<(), Error> {
        let mut random = SmallRng::seed_from_u64(seed);
        let names: Vec<_> = (0..4096).map(|_| name(random.random_range(0..self.files))).collect();
        recorder.skip();
        loop {
            for name in &names {
                target.stat(name)?;
                if !recorder.lap(Op::Stat) {
                    return Ok(());
                }
            }
        }
    }
}

impl Workload for Meta {
    fn describe(&self) -> String {
        let what = match self.kind {
            Kind::Create => "empty files made (open and close)",
            Kind::Unlink => "empty files removed",
            Kind::Rename if self.across => "files moved to another directory and back",
            Kind::Rename => "files renamed",
            Kind::Stat => "random files found by path",
            Kind::ReadDir => "the directory listed",
        };
        let threads = if self.threads > 1 { format!(", {} threads", self.threads) } else { String::new() };
        format!("{what}, in one directory of {}{threads}", self.files)
    }

    fn bytes(&self) -> u64 {
        // The space of names and inodes anywhere.
        self.files() * 512
    }

    fn files(&self) -> u64 {
        self.files + self.threads * BATCH + 2
    }

    fn value(&self) -> Value {
        Value::Operations
    }

    fn length(&self) -> Length {
        Length::Short
    }

    fn prepare(&self, target: &dyn Target) -> Result<(), Error> {
        create_dir_all(target, Path::new(DIR))?;
        create_dir_all(target, Path::new(OTHER))?;
        for number in 0..self.files {
            drop(target.open(&name(number), Open::CREATE)?);
        }
        Ok(target.sync()?)
    }

    fn round(&self, target: &dyn Target, round: Round) -> Result<Measured, Error> {
        on_threads(self.threads, round.slice, |thread, recorder| match self.kind {
            Kind::Create | Kind::Unlink => self.make_and_remove(target, thread, recorder),
            Kind::Rename => self.rename(target, thread, recorder),
            Kind::Stat => self.stat(target, round.seed_of(thread), recorder),
            Kind::ReadDir => {
                let mut seen = 0;
                loop {
                    target.read_dir(Path::new(DIR), &mut |_| seen += 1)?;
                    if !recorder.lap(Op::ReadDir) {
                        return if seen > 0 { Ok(()) } else { Err("the directory is empty".into()) };
                    }
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use super::{BATCH, DIR, OTHER};
    use crate::target::{Open, Target};
    use crate::workload::noted::{Call, Calls, Noted};
    use crate::workload::{Measured, Round, make};

    /// Names of the directory that the tests have.
    const FILES: usize = 30;

    /// A short round, and one that ends with its first operation; the calls of both, and how many counted.
    fn rounds(spec: &str, each: impl Fn(&Noted, &Measured, Calls)) {
        let dir = tempfile::tempdir().unwrap();
        let target = Noted::new(dir.path());
        let work = make(&format!("{spec},files={FILES}").parse().unwrap(), 1.0).unwrap();
        work.prepare(&target).unwrap();
        target.take();
        for (number, slice) in [(0, Duration::from_millis(20)), (1, Duration::ZERO), (2, Duration::ZERO)] {
            let measured = work.round(&target, Round { number, seed: 1, slice }).unwrap();
            assert!(measured.operations >= 1 && (slice > Duration::ZERO || measured.operations <= 2));
            let calls = target.take();
            each(&target, &measured, calls);
        }
    }

    fn names(target: &Noted, dir: &str) -> usize {
        let mut count = 0;
        target.read_dir(dir.as_ref(), &mut |_| count += 1).unwrap();
        target.take();
        count
    }

    #[test]
    fn files_are_made_beside_those_that_stay_and_removed_again() {
        for (spec, creates) in [("meta.create,threads=2", true), ("meta.unlink,threads=2", false)] {
            rounds(spec, |target, measured, calls| {
                let made = calls.iter().filter(|(_, call)| *call == Call::Open(Open::CREATE)).count();
                let removed = calls.iter().filter(|(_, call)| *call == Call::Remove).count();
                assert_eq!((made, names(target, DIR)), (removed, FILES), "{spec}");
                // Names that are made, or removed, after the time is over do not count.
                let most = if creates { 0 } else { 2 * BATCH };
                assert!((made as u64 - measured.operations) <= most, "{spec}: {made}");
            });
        }
    }

    #[test]
    fn files_are_renamed_there_and_back() {
        for (spec, second) in [("meta.rename", DIR), ("meta.rename,across=yes", OTHER)] {
            rounds(spec, |target, measured, calls| {
                let renames: Vec<(PathBuf, PathBuf)> = calls
                    .into_iter()
                    .filter_map(|(from, call)| match call {
                        Call::Rename(to) => Some((from, to)),
                        _ => None,
                    })
                    .collect();
                assert_eq!(renames.len() as u64, measured.operations, "{spec}");
                for (from, to) in &renames {
                    let ends = [from, to].map(|path| path.parent() == Some(Path::new(second)));
                    assert!(ends[0] || ends[1], "{from:?} -> {to:?}");
                    assert_ne!(from, to);
                }
                let all = names(target, DIR) + if second == OTHER { names(target, OTHER) } else { 0 };
                assert_eq!(all, FILES, "{spec}");
            });
        }
    }

    #[test]
    fn files_are_found_and_listed() {
        rounds("meta.stat", |_, measured, calls| {
            assert_eq!(calls.len() as u64, measured.operations);
            assert!(calls.iter().all(|(path, call)| *call == Call::Stat && path.starts_with(DIR)));
            let different: std::collections::HashSet<_> = calls.iter().map(|(path, _)| path).collect();
            assert!(calls.len() < 1000 || different.len() == FILES, "{} of {FILES} names", different.len());
        });
        rounds("meta.readdir", |_, measured, calls| {
            assert_eq!(calls, vec![(DIR.into(), Call::ReadDir); measured.operations as usize]);
        });
    }
}
