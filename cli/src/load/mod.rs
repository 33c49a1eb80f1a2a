//! A load that can be checked after a crash. A worker writes every operation to a ledger on another file system, at its
//! begin and at its acknowledgement. So the ledger says which state must be there afterwards.
//!
//! - [`Load`]: workers, each in a directory of its own, doing a random sequence of operations until told to stop or
//!   until the file system fails. A [`Worker`] may also be a process of its own.
//! - `operation`: the operations on files, names, links, directories and attributes; `tree`: the resulting directory.
//! - [`check()`]: compares the tree with the ledger. Acknowledged data must be there byte for byte. The one operation
//!   in flight of each worker must be there completely or not at all. Two exceptions: an append may end at a block's
//!   end, and an overwrite in place may be torn.
//!
//! The whole-system tests and the demo share these files.

mod check;
mod operation;
mod tree;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

pub(crate) use check::check;

use check::Expected;
use operation::{Change, Operation};
use tree::{Entry, Tree, nested};

/// The size of a block that is overwritten in place, in bytes.
const BLOCK: u64 = 4096;
/// The largest record that is appended, in bytes.
const MAX_RECORD: u64 = 16 * 1024;
/// The size at which a file is deleted rather than extended, in bytes.
const MAX_FILE: u64 = 256 * 1024;
/// The largest file that is written at once, and the largest hole, in bytes.
const MAX_PIECE: u64 = 64 * 1024;
/// The most names that a worker keeps, and the most directories among them.
const MAX_NAMES: usize = 48;
const MAX_DIRECTORIES: usize = 8;
/// Directories that receive files; the others stay empty and can be removed.
const FULL_DIRECTORIES: usize = 3;
/// Attributes: the number of keys, and the largest value in bytes. All attributes of a file fit into one block, the
/// limit of some layouts.
const KEYS: u64 = 4;
const MAX_VALUE: u64 = 800;
/// The name under which a replacement is written before it is renamed.
const TEMPORARY: &str = "new";

/// A pseudorandom sequence (splitmix64): the same everywhere for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// The content that belongs to a seed.
fn content(seed: u64, len: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes = Vec::with_capacity(len as usize + 8);
    while (bytes.len() as u64) < len {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(len as usize);
    bytes
}

/// The parameters of a load.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// The directory of the files; created if it does not exist.
    pub(crate) dir: PathBuf,
    /// The directory of the ledgers, on another file system.
    pub(crate) ledgers: PathBuf,
    /// Number of workers.
    pub(crate) workers: usize,
    /// The seed of the random sequence.
    pub(crate) seed: u64,
    /// Call fsync before an operation counts as acknowledged. Otherwise the return of the call counts.
    pub(crate) sync: bool,
    /// True if the layout overwrites in place, so that a crash may tear an overwrite.
    pub(crate) in_place: bool,
}

/// The monotonic clock that all processes of a machine share, in nanoseconds. The ledger records the begin of each
/// operation with it.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Plan {
    fn worker_dir(&self, worker: usize) -> PathBuf {
        self.dir.join(format!("worker{worker}"))
    }

    pub(crate) fn ledger(&self, worker: usize) -> PathBuf {
        self.ledgers.join(format!("worker{worker}.ledger"))
    }
}

/// A running load.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    workers: Vec<JoinHandle<io::Error>>,
}

impl Load {
    /// Starts the workers of a plan, which continue from their ledgers.
    pub(crate) fn start(plan: &Plan) -> io::Result<Load> {
        let stop = Arc::new(AtomicBool::new(false));
        let acknowledged = Arc::new(AtomicU64::new(0));
        let mut workers = Vec::new();
        for number in 0..plan.workers {
            let mut worker = Worker::new(plan, number, Arc::clone(&acknowledged))?;
            let stop = Arc::clone(&stop);
            workers.push(thread::spawn(move || worker.run(&stop)));
        }
        Ok(Load { stop, acknowledged, workers })
    }

    /// Operations acknowledged since the start.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Ends the load. Returns the number of acknowledged operations, and the errors of workers before the end (none
    /// while the file system was there).
    pub(crate) fn stop(self) -> (u64, Vec<io::Error>) {
        self.stop.store(true, Ordering::Relaxed);
        let ends = self.workers.into_iter().map(|worker| worker.join().expect("a worker does not panic"));
        let errors = ends.filter(|end| end.kind() != io::ErrorKind::Interrupted).collect();
        (self.acknowledged.load(Ordering::Relaxed), errors)
    }
}

/// A worker with a directory of its own.
pub(crate) struct Worker {
    dir: PathBuf,
    ledger: File,
    random: Random,
    tree: Tree,
    next_name: u64,
    sync: bool,
    acknowledged: Arc<AtomicU64>,
}

impl Worker {
    /// A worker that continues from its ledger, and counts acknowledged operations.
    pub(crate) fn new(plan: &Plan, number: usize, acknowledged: Arc<AtomicU64>) -> io::Result<Worker> {
        fs::create_dir_all(plan.worker_dir(number))?;
        let path = plan.ledger(number);
        let ledger = OpenOptions::new().create(true).append(true).open(&path)?;
        let before = Expected::read(&path)?;
        let seed = plan.seed ^ (number as u64) << 32 ^ before.acknowledged;
        Ok(Worker {
            dir: plan.worker_dir(number),
            ledger,
            random: Random(seed),
            tree: before.tree,
            next_name: before.acknowledged,
            sync: plan.sync,
            acknowledged,
        })
    }

    /// Works until told to stop (an `Interrupted` error) or until an operation fails (its error).
    pub(crate) fn run(&mut self, stop: &AtomicBool) -> io::Error {
        while !stop.load(Ordering::Relaxed) {
            if let Err(error) = self.one() {
                return error;
            }
        }
        io::ErrorKind::Interrupted.into()
    }

    fn one(&mut self) -> io::Result<()> {
        let operation = self.choose();
        // Each line is one write, so that a concurrent reader of the ledger sees whole lines.
        self.ledger.write_all(format!("begin {} {}\n", now_ns(), operation.to_line()).as_bytes())?;
        operation.perform(&self.dir, self.sync)?;
        self.ledger.write_all(b"done\n")?;
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
        operation.apply(&mut self.tree);
        Ok(())
    }

    fn choose(&mut self) -> Operation {
        let files = self.names(|entry| matches!(entry, Entry::File(_)));
        if files.len() < 4 {
            return self.replace(None);
        }
        let name = self.pick(&files);
        if self.len(&name) > MAX_FILE || self.tree.names.len() > MAX_NAMES {
            return Operation::Unlink { name };
        }
        match self.random.below(100) {
            0..55 => Operation::Change { change: self.choose_change(&name), name },
            55..66 => self.replace(None),
            66..70 => self.replace(Some(name)),
            70..74 => Operation::Rename { from: name, to: self.new_name() },
            74..77 => match self.other(&files, &name) {
                Some(to) => Operation::Rename { from: name, to },
                None => Operation::Unlink { name },
            },
            77..81 => match self.other(&self.names(|_| true), &name) {
                Some(other) => Operation::Exchange { one: name, other },
                None => Operation::Unlink { name },
            },
            81..84 => Operation::Link { from: name, to: self.new_name() },
            84..87 => Operation::Symlink { target: name, name: self.new_name() },
            87..94 => self.choose_directory_change(),
            _ => Operation::Unlink { name: self.pick(&self.names(|entry| *entry != Entry::Directory)) },
        }
    }

    fn choose_change(&mut self, name: &str) -> Change {
        let (size, seed) = (self.len(name), self.random.next());
        let random = &mut self.random;
        let key = format!("user.{}", random.below(KEYS));
        match random.below(55) {
            0..12 if size >= BLOCK => Change::Overwrite { block: random.below(size / BLOCK), seed },
            12..19 => Change::Truncate { len: random.below((2 * size + BLOCK).min(MAX_FILE)) },
            19..25 if size > 0 => {
                Change::Punch { offset: random.below(size), len: 1 + random.below(MAX_PIECE) }
            }
            25..29 if self.tree.file(name).is_some_and(|file| file.xattrs.contains_key(&key)) => {
                Change::RemoveXattr { key }
            }
            25..33 => Change::SetXattr { key, seed, len: random.below(MAX_VALUE) },
            33..36 => Change::Sync,
            _ => Change::Append { seed, len: 1 + random.below(MAX_RECORD) },
        }
    }

    fn choose_directory_change(&mut self) -> Operation {
        let directories = self.names(|entry| *entry == Entry::Directory);
        let mut empty = directories.clone();
        empty.retain(|name| self.tree.is_empty_directory(name));
        match self.random.below(7) {
            0..2 if !empty.is_empty() => Operation::RemoveDirectory { name: self.pick(&empty) },
            2..4 if !directories.is_empty() => {
                Operation::Rename { from: self.pick(&directories), to: self.new_name_at_top() }
            }
            _ if directories.len() < MAX_DIRECTORIES => {
                Operation::MakeDirectory { name: self.new_name_at_top() }
            }
            _ => self.replace(None),
        }
    }

    fn replace(&mut self, name: Option<String>) -> Operation {
        let name = name.unwrap_or_else(|| self.new_name());
        Operation::Replace { name, seed: self.random.next(), len: self.random.below(MAX_PIECE) }
    }

    fn len(&self, name: &str) -> u64 {
        self.tree.file(name).map_or(0, |file| file.bytes.len() as u64)
    }

    fn names(&self, which: impl Fn(&Entry) -> bool) -> Vec<String> {
        self.tree.names.iter().filter(|(_, entry)| which(entry)).map(|(name, _)| name.clone()).collect()
    }

    fn pick(&mut self, names: &[String]) -> String {
        names[self.random.below(names.len() as u64) as usize].clone()
    }

    /// One of `names` that is neither `name` nor above or below it.
    fn other(&mut self, names: &[String], name: &str) -> Option<String> {
        let others: Vec<_> = names.iter().filter(|other| !nested(other, name)).cloned().collect();
        (!others.is_empty()).then(|| self.pick(&others))
    }

    /// A new name, in one case of three within a directory.
    fn new_name(&mut self) -> String {
        let name = self.new_name_at_top();
        let mut directories = self.names(|entry| *entry == Entry::Directory);
        directories.truncate(FULL_DIRECTORIES);
        if directories.is_empty() || self.random.below(3) > 0 {
            return name;
        }
        format!("{}/{name}", self.pick(&directories))
    }

    fn new_name_at_top(&mut self) -> String {
        self.next_name += 1;
        format!("name{}", self.next_name)
    }
}
