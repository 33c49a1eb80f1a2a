//! A load that can be checked after a crash: every operation is written to a ledger on another file system when it
//! begins and when it is acknowledged, so that the ledger says what must be there afterwards.
//!
//! - [`Load`]: workers, each in a directory of its own, doing a random sequence of operations until told to stop or
//!   until the file system fails under them.
//! - [`check`]: compares the tree with the ledger. What was acknowledged must be there byte for byte; the one operation
//!   of each worker that was in flight must be there wholly or not at all (an append may end at a block's end).
//!
//! The whole-system tests and the demo share this file.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

/// Size of a block that is overwritten in place.
const BLOCK: u64 = 4096;
/// Largest record that is appended.
const MAX_RECORD: u64 = 16 * 1024;
/// A file that grew to this size is deleted rather than extended.
const MAX_FILE: usize = 256 * 1024;
/// Files that a worker keeps at most.
const MAX_FILES: usize = 48;
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

/// Content that a seed stands for.
fn content(seed: u64, len: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes = Vec::with_capacity(len as usize + 8);
    while (bytes.len() as u64) < len {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(len as usize);
    bytes
}

/// One operation of a worker on its directory.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Operation {
    /// Write a new file beside, sync it, rename it over the name.
    Replace { name: String, seed: u64, len: u64 },
    /// Append to a file.
    Append { name: String, seed: u64, len: u64 },
    /// Overwrite one block of a file.
    Overwrite { name: String, block: u64, seed: u64 },
    /// Give a file another name.
    Rename { from: String, to: String },
    /// Remove a file.
    Unlink { name: String },
}

impl Operation {
    fn to_line(&self) -> String {
        match self {
            Operation::Replace { name, seed, len } => format!("replace {name} {seed} {len}"),
            Operation::Append { name, seed, len } => format!("append {name} {seed} {len}"),
            Operation::Overwrite { name, block, seed } => format!("overwrite {name} {block} {seed}"),
            Operation::Rename { from, to } => format!("rename {from} {to}"),
            Operation::Unlink { name } => format!("unlink {name}"),
        }
    }

    fn from_words(words: &[&str]) -> Option<Operation> {
        let name = |index: usize| words.get(index).map(|word| (*word).to_owned());
        let number = |index: usize| words.get(index)?.parse::<u64>().ok();
        Some(match *words.first()? {
            "replace" => Operation::Replace { name: name(1)?, seed: number(2)?, len: number(3)? },
            "append" => Operation::Append { name: name(1)?, seed: number(2)?, len: number(3)? },
            "overwrite" => Operation::Overwrite { name: name(1)?, block: number(2)?, seed: number(3)? },
            "rename" => Operation::Rename { from: name(1)?, to: name(2)? },
            "unlink" => Operation::Unlink { name: name(1)? },
            _ => return None,
        })
    }

    /// Does it to the expected state.
    fn apply(&self, files: &mut Files) {
        match self {
            Operation::Replace { name, seed, len } => {
                files.insert(name.clone(), content(*seed, *len));
            }
            Operation::Append { name, seed, len } => {
                files.entry(name.clone()).or_default().extend(content(*seed, *len));
            }
            Operation::Overwrite { name, block, seed } => {
                let start = (block * BLOCK) as usize;
                if let Some(file) = files.get_mut(name).filter(|file| file.len() >= start + BLOCK as usize) {
                    file[start..start + BLOCK as usize].copy_from_slice(&content(*seed, BLOCK));
                }
            }
            Operation::Rename { from, to } => {
                if let Some(file) = files.remove(from) {
                    files.insert(to.clone(), file);
                }
            }
            Operation::Unlink { name } => {
                files.remove(name);
            }
        }
    }

    /// Does it to the real directory, and makes it durable as `sync` says.
    fn perform(&self, dir: &Path, sync: bool) -> io::Result<()> {
        match self {
            Operation::Replace { name, seed, len } => {
                let temporary = dir.join(TEMPORARY);
                let mut file = File::create(&temporary)?;
                file.write_all(&content(*seed, *len))?;
                if sync {
                    file.sync_all()?;
                }
                drop(file);
                fs::rename(&temporary, dir.join(name))?;
                sync_dir(dir, sync)
            }
            Operation::Append { name, seed, len } => {
                let mut file = OpenOptions::new().append(true).open(dir.join(name))?;
                file.write_all(&content(*seed, *len))?;
                if sync { file.sync_data() } else { Ok(()) }
            }
            Operation::Overwrite { name, block, seed } => {
                let file = OpenOptions::new().write(true).open(dir.join(name))?;
                file.write_all_at(&content(*seed, BLOCK), block * BLOCK)?;
                if sync { file.sync_data() } else { Ok(()) }
            }
            Operation::Rename { from, to } => {
                fs::rename(dir.join(from), dir.join(to))?;
                sync_dir(dir, sync)
            }
            Operation::Unlink { name } => {
                fs::remove_file(dir.join(name))?;
                sync_dir(dir, sync)
            }
        }
    }
}

fn sync_dir(dir: &Path, sync: bool) -> io::Result<()> {
    if sync { File::open(dir)?.sync_all() } else { Ok(()) }
}

/// Names and contents of the files in one worker's directory.
type Files = BTreeMap<String, Vec<u8>>;

/// What a ledger says about one worker: the state that was acknowledged, and the operation in flight.
#[derive(Default)]
struct Expected {
    files: Files,
    in_flight: Option<Operation>,
    acknowledged: u64,
}

impl Expected {
    /// Reads a worker's ledger: `begin OPERATION`, then `done`, or `lost` when a check found that it had not happened.
    fn read(ledger: &Path) -> io::Result<Expected> {
        let mut expected = Expected::default();
        for line in BufReader::new(File::open(ledger)?).lines() {
            let line = line?;
            let words: Vec<&str> = line.split(' ').collect();
            let torn = || io::Error::other(format!("{}: not a line of a ledger: {line:?}", ledger.display()));
            match words[0] {
                "begin" => expected.in_flight = Some(Operation::from_words(&words[1..]).ok_or_else(torn)?),
                "done" => {
                    let operation = expected.in_flight.take().ok_or_else(torn)?;
                    operation.apply(&mut expected.files);
                    expected.acknowledged += 1;
                }
                "lost" => expected.in_flight = None,
                _ => return Err(torn()),
            }
        }
        Ok(expected)
    }
}

/// How a load behaves.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Where the files go; made if it is not there.
    pub(crate) dir: PathBuf,
    /// Where the ledgers are, on another file system.
    pub(crate) ledgers: PathBuf,
    /// Number of workers.
    pub(crate) workers: usize,
    /// Where the random sequence starts.
    pub(crate) seed: u64,
    /// Call fsync before an operation counts as acknowledged. Without it, the return of the call must be enough.
    pub(crate) sync: bool,
}

impl Plan {
    fn worker_dir(&self, worker: usize) -> PathBuf {
        self.dir.join(format!("worker{worker}"))
    }

    fn ledger(&self, worker: usize) -> PathBuf {
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
    /// Starts the workers of a plan, which go on from what their ledgers say.
    pub(crate) fn start(plan: &Plan) -> io::Result<Load> {
        let stop = Arc::new(AtomicBool::new(false));
        let acknowledged = Arc::new(AtomicU64::new(0));
        let mut workers = Vec::new();
        for number in 0..plan.workers {
            fs::create_dir_all(plan.worker_dir(number))?;
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

    /// Ends the load and returns the operations acknowledged, and the errors that workers met before (none, as long
    /// as the file system was there).
    pub(crate) fn stop(self) -> (u64, Vec<io::Error>) {
        self.stop.store(true, Ordering::Relaxed);
        let ends = self.workers.into_iter().map(|worker| worker.join().expect("a worker does not panic"));
        let errors = ends.filter(|end| end.kind() != io::ErrorKind::Interrupted).collect();
        (self.acknowledged.load(Ordering::Relaxed), errors)
    }
}

struct Worker {
    dir: PathBuf,
    ledger: File,
    random: Random,
    /// Name and size of each file.
    files: BTreeMap<String, usize>,
    next_name: u64,
    sync: bool,
    acknowledged: Arc<AtomicU64>,
}

impl Worker {
    fn new(plan: &Plan, number: usize, acknowledged: Arc<AtomicU64>) -> io::Result<Worker> {
        let path = plan.ledger(number);
        let ledger = OpenOptions::new().create(true).append(true).open(&path)?;
        let before = Expected::read(&path)?;
        let seed = plan.seed ^ (number as u64) << 32 ^ before.acknowledged;
        Ok(Worker {
            dir: plan.worker_dir(number),
            ledger,
            random: Random(seed),
            files: before.files.iter().map(|(name, bytes)| (name.clone(), bytes.len())).collect(),
            next_name: before.acknowledged,
            sync: plan.sync,
            acknowledged,
        })
    }

    /// Works until told to stop (an `Interrupted` error) or until an operation fails.
    fn run(&mut self, stop: &AtomicBool) -> io::Error {
        while !stop.load(Ordering::Relaxed) {
            if let Err(error) = self.one() {
                return error;
            }
        }
        io::ErrorKind::Interrupted.into()
    }

    fn one(&mut self) -> io::Result<()> {
        let operation = self.choose();
        writeln!(self.ledger, "begin {}", operation.to_line())?;
        operation.perform(&self.dir, self.sync)?;
        writeln!(self.ledger, "done")?;
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
        match operation {
            Operation::Replace { name, len, .. } => {
                self.files.insert(name, len as usize);
            }
            Operation::Append { name, len, .. } => {
                *self.files.entry(name).or_default() += len as usize;
            }
            Operation::Overwrite { .. } => {}
            Operation::Rename { from, to } => {
                let size = self.files.remove(&from).unwrap_or(0);
                self.files.insert(to, size);
            }
            Operation::Unlink { name } => {
                self.files.remove(&name);
            }
        }
        Ok(())
    }

    fn choose(&mut self) -> Operation {
        let seed = self.random.next();
        if self.files.len() < 4 {
            return Operation::Replace { name: self.new_name(), seed, len: self.random.below(64 * 1024) };
        }
        let index = self.random.below(self.files.len() as u64) as usize;
        let (name, size) =
            self.files.iter().nth(index).map(|(name, size)| (name.clone(), *size)).expect("in range");
        if size > MAX_FILE || self.files.len() > MAX_FILES {
            return Operation::Unlink { name };
        }
        match self.random.below(100) {
            0..45 => Operation::Append { name, seed, len: 1 + self.random.below(MAX_RECORD) },
            45..70 if size as u64 >= BLOCK => {
                Operation::Overwrite { name, block: self.random.below(size as u64 / BLOCK), seed }
            }
            45..80 => Operation::Replace { name: self.new_name(), seed, len: self.random.below(64 * 1024) },
            80..86 => Operation::Replace { name, seed, len: self.random.below(64 * 1024) },
            86..93 => Operation::Rename { from: name, to: self.new_name() },
            _ => Operation::Unlink { name },
        }
    }

    fn new_name(&mut self) -> String {
        self.next_name += 1;
        format!("file{}", self.next_name)
    }
}

/// What a check found to be right.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Checked {
    /// Operations that had been acknowledged.
    pub(crate) acknowledged: u64,
    /// Files compared.
    pub(crate) files: u64,
    /// Bytes compared.
    pub(crate) bytes: u64,
    /// Operations that were in flight and had happened.
    pub(crate) kept: u64,
    /// Operations that were in flight and had not happened.
    pub(crate) lost: u64,
}

/// Compares the tree with its ledgers, and settles in the ledgers what became of operations in flight, so that a load
/// can go on. An error names every difference.
pub(crate) fn check(plan: &Plan) -> Result<Checked, String> {
    let mut checked = Checked::default();
    let mut wrong = Vec::new();
    for number in 0..plan.workers {
        if let Err(text) = check_worker(plan, number, &mut checked) {
            wrong.push(text);
        }
    }
    if wrong.is_empty() { Ok(checked) } else { Err(wrong.join("\n")) }
}

fn check_worker(plan: &Plan, number: usize, checked: &mut Checked) -> Result<(), String> {
    let dir = plan.worker_dir(number);
    let ledger = plan.ledger(number);
    let text = |error: io::Error| format!("{}: {error}", dir.display());
    let expected = Expected::read(&ledger).map_err(text)?;
    let mut real = read_files(&dir).map_err(text)?;
    checked.acknowledged += expected.acknowledged;
    if matches!(expected.in_flight, Some(Operation::Replace { .. })) && real.remove(TEMPORARY).is_some() {
        fs::remove_file(dir.join(TEMPORARY)).map_err(text)?;
    }
    checked.files += real.len() as u64;
    checked.bytes += real.values().map(|bytes| bytes.len() as u64).sum::<u64>();
    let settle = |word: &str| {
        let mut ledger = OpenOptions::new().append(true).open(&ledger).map_err(text)?;
        writeln!(ledger, "{word}").map_err(text)
    };
    let Some(operation) = expected.in_flight else {
        return differences(&expected.files, &real).map_err(|text| format!("{}: {text}", dir.display()));
    };
    if real == expected.files {
        checked.lost += 1;
        return settle("lost");
    }
    let mut after = expected.files.clone();
    operation.apply(&mut after);
    if let Operation::Append { name, .. } = &operation
        && cut_append(&expected.files[name], &after[name], real.get(name))
    {
        let kept = expected.files[name].len() as u64;
        let file = OpenOptions::new().write(true).open(dir.join(name)).map_err(text)?;
        file.set_len(kept).map_err(text)?;
        real.insert(name.clone(), expected.files[name].clone());
        differences(&expected.files, &real).map_err(|text| format!("{}: {text}", dir.display()))?;
        checked.lost += 1;
        return settle("lost");
    }
    differences(&after, &real)
        .map_err(|text| format!("{}: with {:?} in flight: {text}", dir.display(), operation.to_line()))?;
    checked.kept += 1;
    settle("done")
}

/// True when a file is what it was before an append and a part of what was to come, up to a block's end: the kernel hands
/// a write that begins within a page that it has not cached to a FUSE server in two pieces, of which one may be lost
/// while nothing was acknowledged.
fn cut_append(before: &[u8], after: &[u8], real: Option<&Vec<u8>>) -> bool {
    real.is_some_and(|real| {
        let cut = real.len() as u64;
        real.len() > before.len() && cut.is_multiple_of(BLOCK) && after.starts_with(real)
    })
}

fn read_files(dir: &Path) -> io::Result<Files> {
    let mut files = Files::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        files.insert(entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?);
    }
    Ok(files)
}

fn differences(expected: &Files, real: &Files) -> Result<(), String> {
    let mut wrong = Vec::new();
    for (name, bytes) in expected {
        match real.get(name) {
            None => wrong.push(format!("{name} is missing ({} bytes)", bytes.len())),
            Some(found) if found == bytes => {}
            Some(found) => {
                let at =
                    found.iter().zip(bytes).position(|(a, b)| a != b).unwrap_or(found.len().min(bytes.len()));
                let (is, should) = (found.len(), bytes.len());
                wrong
                    .push(format!("{name} differs from byte {at} on (it has {is} bytes, {should} expected)"));
            }
        }
    }
    wrong.extend(
        real.keys().filter(|name| !expected.contains_key(*name)).map(|name| format!("{name} is too much")),
    );
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join(", ")) }
}
