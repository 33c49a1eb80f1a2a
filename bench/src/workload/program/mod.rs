//! Real programs, where they are installed: RocksDB's db_bench, LevelDB and SQLite through their libraries, PostgreSQL
//! under pgbench.
//!
//! They need a directory, so that they run on everything except `preset:NAME`. Programs that are not installed are
//! reported with the package that brings them.
//!
//! - [`rocksdb`], [`pgbench`]: programs with an output of their own, which is where figures come from; [`child`] runs them.
//! - [`leveldb`], [`sqlite`]: libraries that are loaded when they are used ([`library`]), and timed call by call.

pub(crate) mod child;
mod leveldb;
mod library;
mod pgbench;
mod rocksdb;
mod sqlite;

use std::path::{Path, PathBuf};

use super::Workload;
use crate::Error;
use crate::spec::Spec;
use crate::target::Target;

/// Where programs work.
const ROOT: &str = "program";
/// Bytes of a key of RocksDB and LevelDB, as their db_bench has them.
const KEY: usize = 16;

/// Makes one of them.
pub(super) fn make(spec: &Spec, scale: f64) -> Result<Box<dyn Workload>, String> {
    match spec.name() {
        "program.leveldb" => leveldb::make(spec, scale),
        "program.pgbench" => pgbench::make(spec, scale),
        "program.rocksdb" => rocksdb::make(spec, scale),
        _ => sqlite::make(spec, scale),
    }
}

/// The directory of a target in which a program works: its path.
fn directory(target: &dyn Target) -> Result<PathBuf, Error> {
    let root =
        target.directory().ok_or("a program needs a directory: use mount:NAME in place of preset:NAME")?;
    // Programs start in other directories.
    Ok(std::path::absolute(root)?.join(ROOT))
}

/// An empty directory to work in.
fn fresh(target: &dyn Target) -> Result<PathBuf, Error> {
    let path = directory(target)?;
    remove(&path)?;
    std::fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

fn remove(path: &Path) -> Result<(), Error> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", path.display()).into())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::workload::tests::targets;
    use crate::workload::{Op, Round, make};

    /// Each, as small as it goes, with what its times are of.
    const SMALL: [(&str, Op); 10] = [
        ("program.rocksdb,bench=fillseq,keys=2000,threads=2,sync=0", Op::Write),
        ("program.rocksdb,bench=filluniquerandom,keys=1000,threads=2", Op::Write),
        ("program.rocksdb,bench=readseq,keys=2000,threads=2", Op::Read),
        ("program.rocksdb,bench=readrandom,keys=2000,threads=2", Op::Read),
        ("program.leveldb,bench=fillseq,keys=2000", Op::Write),
        ("program.leveldb,bench=readrandom,keys=2000,threads=2", Op::Read),
        ("program.leveldb,bench=readhot,keys=2000", Op::Read),
        ("program.sqlite,bench=insert,keys=100,rows=3,journal=wal", Op::Write),
        ("program.sqlite,bench=update,keys=100,journal=delete", Op::Write),
        ("program.sqlite,bench=read,keys=100", Op::Read),
    ];

    #[test]
    fn programs_that_are_installed_run_in_a_directory_and_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let targets = targets(&dir);
        let [library, directory] = &targets[..] else { panic!("two targets") };
        for (spec, op) in SMALL {
            let work = make(&spec.parse().unwrap(), 1.0).unwrap();
            if let Some(why) = work.missing() {
                assert!(why.contains("package "), "{why}");
                eprintln!("left out: {spec}: {why}");
                continue;
            }
            let refused = work.prepare(&**library).unwrap_err().to_string();
            assert!(refused.contains("use mount:NAME"), "{refused}");
            work.prepare(&**directory).unwrap_or_else(|error| panic!("{spec}: {error}"));
            for number in 0..2 {
                let round = Round { number, seed: 1, slice: Duration::from_millis(20) };
                let measured =
                    work.round(&**directory, round).unwrap_or_else(|error| panic!("{spec}: {error}"));
                let kinds: Vec<_> = measured.times.iter().map(|(kind, times)| (kind, times.len())).collect();
                assert_eq!(kinds, [(op, measured.operations)], "{spec}");
                assert!(measured.nanos > 0.0 && measured.read + measured.written > 0, "{spec}");
                if spec.contains("keys=100,rows=3") {
                    assert_eq!(measured.operations, 34, "a hundred rows by threes");
                } else if spec.contains("fill") {
                    assert_eq!(
                        measured.operations,
                        if spec.contains("unique") { 1000 } else { 2000 },
                        "{spec}"
                    );
                }
            }
        }
    }
}
