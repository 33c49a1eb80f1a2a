//! Scrubbing: reads everything while the file system is mounted, and says what cannot be read or does not validate.
//!
//! Three parts: the superblock's copies, each inode with its log, and every block of the device. A thread does it at a
//! bounded rate, so that it costs the mount at most that much bandwidth. A bad copy of the superblock is written anew.
//! A block with a media error is put into the list of bad blocks, and is never allocated (again). What else is
//! damaged is for fsck.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicBool, Ordering};
use nacre_engine::sync::thread::{self, JoinHandle};
use nacre_engine::{BLOCK_SIZE, Block, Error, FileKind, Kind, LINE_SIZE, Result};
use nacre_media::Pm;

use crate::alloc::Run;
use crate::badblocks;
use crate::format::{CHUNK_INODES, INODE_SIZE, MAX_FILE_SIZE, ROOT_INODE, place};
use crate::fs::Shared;
use crate::inode::{Body, Inode};
use crate::mount::LogFs;
use crate::scan::{Ending, LogSource, read_inode, scan_log};

/// Bytes that are read at a time.
const PIECE: u64 = 256 << 10;
/// The rate that is taken when none is given: bytes per second.
pub const DEFAULT_RATE: u64 = 1 << 30;
/// An inode that is being made does not validate for a moment: it is looked at again so often, after so long.
const BIRTH_TURNS: usize = 3;
const BIRTH: Duration = Duration::from_millis(5);
/// Findings that are described one by one.
const MAX_FINDINGS: usize = 1000;

/// How far a scrub is and what it found.
#[derive(Debug, Clone, Default)]
pub struct ScrubStatus {
    /// It has not ended.
    pub running: bool,
    /// It came to its end, and was not stopped by the unmount.
    pub finished: bool,
    /// Inodes whose logs were read.
    pub inodes: u64,
    /// Bytes of the device that were read.
    pub bytes: u64,
    /// Bytes to read in all.
    pub total: u64,
    /// What is damaged, in words: file and range where it is in a file. The first thousand.
    pub findings: Vec<String>,
    /// What of it was repaired.
    pub repaired: u64,
    /// Blocks in the list of bad blocks.
    pub bad_blocks: u64,
}

/// The scrub of a mounted file system.
#[derive(Default)]
pub(crate) struct Scrubber {
    status: Arc<Mutex<ScrubStatus>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Scrubber {
    pub(crate) fn stop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl<P: Pm + 'static> LogFs<P> {
    /// Starts to read everything, at most `rate` bytes in a second. [`Busy`](Kind::Busy) while that is under way.
    pub fn start_scrub(&self, rate: u64) -> Result<()> {
        let mut scrubber = self.scrubber.lock();
        if scrubber.status.lock().running {
            return Err(Error::new(Kind::Busy).operation("scrub").advice("one is under way"));
        }
        scrubber.stop();
        scrubber.stop.store(false, Ordering::Release);
        let total = self.shared.device_blocks * BLOCK_SIZE;
        *scrubber.status.lock() = ScrubStatus { running: true, total, ..ScrubStatus::default() };
        let scrub = Scrub {
            fs: Arc::clone(&self.shared),
            status: Arc::clone(&scrubber.status),
            stop: Arc::clone(&scrubber.stop),
            pace: Pace { started: Instant::now(), done: 0, rate: rate.max(PIECE) },
        };
        let thread = thread::Builder::new().name("nacre-scrub".to_owned()).spawn(move || scrub.run());
        scrubber.thread = Some(thread.map_err(|error| Error::io("scrub", "its thread", error))?);
        Ok(())
    }

    /// How far the last scrub is.
    pub fn scrub_status(&self) -> ScrubStatus {
        let mut status = self.scrubber.lock().status.lock().clone();
        status.bad_blocks = self.shared.alloc.bad_blocks().len() as u64;
        status
    }
}

/// Keeps to a rate.
struct Pace {
    started: Instant,
    done: u64,
    rate: u64,
}

impl Pace {
    fn spend(&mut self, bytes: u64) {
        self.done += bytes;
        let due = Duration::from_secs_f64(self.done as f64 / self.rate as f64);
        thread::sleep(due.saturating_sub(self.started.elapsed()));
    }
}

struct Scrub<P> {
    fs: Arc<Shared<P>>,
    status: Arc<Mutex<ScrubStatus>>,
    stop: Arc<AtomicBool>,
    pace: Pace,
}

impl<P: Pm> Scrub<P> {
    fn run(mut self) {
        let ended = self.superblocks().and_then(|()| self.inodes()).and_then(|()| self.blocks());
        let mut status = self.status.lock();
        status.running = false;
        status.finished = ended.is_ok() && !self.stop.load(Ordering::Acquire);
        if let Err(error) = ended {
            status.findings.push(format!("the scrub ended early: {error}"));
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn found(&self, words: String) {
        let mut status = self.status.lock();
        if status.findings.len() < MAX_FINDINGS {
            status.findings.push(words);
        }
    }

    /// Both copies must validate; a bad one is written from what the mount knows.
    fn superblocks(&self) -> Result<()> {
        let mut superblock = self.fs.superblock.lock();
        let valid = crate::superblock::read(&*self.fs.pm).map_or([false; 2], |found| found.valid);
        for (index, _) in valid.iter().enumerate().filter(|(_, valid)| !**valid) {
            let copy = index + 1;
            if self.fs.read_only {
                self.found(format!("copy {copy} of the superblock is damaged"));
                continue;
            }
            superblock.write(&*self.fs.pm)?;
            self.found(format!("copy {copy} of the superblock was damaged and is written anew"));
            self.status.lock().repaired += 1;
        }
        Ok(())
    }

    /// Every inode in use must validate, with its log.
    fn inodes(&mut self) -> Result<()> {
        for number in self.in_use() {
            if self.is_stopped() {
                return Ok(());
            }
            let bytes = match self.inode(number) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == Kind::Stale => 0, // it was removed meanwhile
                Err(error) => {
                    let path = self.path_of(number);
                    self.found(format!("{path} (inode {number}): {error}"));
                    0
                }
            };
            self.status.lock().inodes += 1;
            self.pace.spend(bytes);
        }
        Ok(())
    }

    fn in_use(&self) -> Vec<u64> {
        let mut numbers = Vec::new();
        self.fs.inodes.for_each_chunk(|chunk, used| {
            let set = |index: &u64| used[(index / 64) as usize] >> (index % 64) & 1 == 1;
            numbers.extend((0..CHUNK_INODES).filter(set).map(|index| chunk * CHUNK_INODES + index));
        });
        numbers
    }

    /// Calls `look` with an inode: the one that is in DRAM (true), or else one that is read for this only, so that a
    /// scrub fills no memory. Nobody changes that one meanwhile, for nobody can take it into use.
    fn with_inode<R>(&self, number: u64, look: impl FnOnce(&Inode, bool) -> Result<R>) -> Result<R> {
        let slot = self.fs.inodes.slot(number)?.read();
        if let Some(inode) = &*slot {
            let inode = Arc::clone(inode);
            drop(slot);
            return look(&inode, true);
        }
        if !self.fs.inodes.is_used(number) {
            return Err(Error::new(Kind::Stale));
        }
        look(&self.fs.load(number)?, false)
    }

    /// Reads an inode and its log; gives the bytes of both.
    fn inode(&self, number: u64) -> Result<u64> {
        for _ in 0..BIRTH_TURNS {
            match self.try_inode(number) {
                Err(error) if error.kind() != Kind::Stale => thread::sleep(BIRTH),
                done => return done,
            }
        }
        self.try_inode(number)
    }

    fn try_inode(&self, number: u64) -> Result<u64> {
        self.with_inode(number, |inode, in_use| {
            let mut pages = inode.log.lock().page_count;
            if in_use {
                let log = inode.log.lock();
                if log.dead_inode {
                    return Ok(0);
                }
                let raw = read_inode(&*self.fs.pm, inode.address)?;
                if !raw.is_valid(inode.seed) {
                    return Err(Error::corrupt("header"));
                }
                let (generation, seed, address) = (inode.generation, inode.seed, inode.address);
                let source = LogSource { number, generation, seed, address };
                pages = scan_log(&*self.fs.pm, source, &raw, Ending::Clean, false, &mut |_| Ok(()))?
                    .pages
                    .len() as u32;
            }
            self.values(inode)?;
            Ok((1 + u64::from(pages)) * BLOCK_SIZE)
        })
    }

    /// Values of attributes in blocks have checksums.
    fn values(&self, inode: &Inode) -> Result<()> {
        for name in self.fs.list_xattrs(inode) {
            match self.fs.get_xattr(inode, &name) {
                Err(error) if error.kind() != Kind::NoAttribute => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Every block must be readable.
    fn blocks(&mut self) -> Result<()> {
        let mut bad = BTreeSet::new();
        let mut bytes = vec![0u8; PIECE as usize];
        let end = self.fs.device_blocks * BLOCK_SIZE;
        let mut at = 0;
        while at < end && !self.is_stopped() {
            let count = PIECE.min(end - at);
            if self.fs.pm.read(at, &mut bytes[..count as usize]).is_err() {
                bad.extend(bad_lines(&*self.fs.pm, at, count));
            }
            at += count;
            self.status.lock().bytes = at;
            self.pace.spend(count);
        }
        if !bad.is_empty() {
            self.tell_owners(&bad);
            self.withdraw(&bad)?;
        }
        Ok(())
    }

    /// Says which files the bad lines are in.
    fn tell_owners(&self, bad: &BTreeSet<u64>) {
        let mut told = BTreeSet::new();
        for number in self.in_use() {
            // One that cannot be loaded was told of before.
            let Ok(hits) = self.with_inode(number, |inode, _| Ok(hits(inode, bad, &mut told))) else {
                continue;
            };
            if !hits.is_empty() {
                let path = self.path_of(number);
                hits.iter().for_each(|hit| self.found(format!("{path} (inode {number}): {hit}")));
            }
        }
        for &line in bad.difference(&told) {
            let block = line / BLOCK_SIZE;
            let where_ =
                if block < self.fs.first_data_block { "superblocks and tables" } else { "free or a table" };
            self.found(format!("a media error at byte {line} (block {block}: {where_})"));
        }
    }

    /// Puts blocks into the list of bad blocks.
    fn withdraw(&self, bad: &BTreeSet<u64>) -> Result<()> {
        let blocks: BTreeSet<Block> = bad.iter().map(|line| Block(line / BLOCK_SIZE)).collect();
        let superblock = self.fs.superblock.lock();
        for block in blocks.into_iter().filter(|block| block.0 >= self.fs.first_data_block) {
            if !self.fs.alloc.bad_blocks().contains(&block) {
                if !self.fs.read_only {
                    badblocks::add(&*self.fs.pm, &superblock, block)?;
                }
                self.fs.alloc.withdraw(block);
            }
        }
        Ok(())
    }

    /// The first path that leads to an inode, found by looking at all names.
    fn path_of(&self, wanted: u64) -> String {
        let mut pending = vec![(String::new(), ROOT_INODE)];
        while let Some((path, number)) = pending.pop() {
            if number == wanted {
                return if path.is_empty() { "/".to_owned() } else { path };
            }
            let Ok(node) = self.fs.hold(number) else { continue };
            let Ok(directory) = node.inode.directory() else { continue };
            let mut after = 0;
            while let Ok(batch) = directory.read(&*self.fs.pm, after, 128) {
                for dentry in &batch {
                    after = dentry.cookie();
                    let child = format!("{path}/{}", String::from_utf8_lossy(dentry.name()));
                    if dentry.raw.inode == wanted {
                        return child;
                    }
                    if dentry.raw.kind == FileKind::Directory as u8 {
                        pending.push((child, dentry.raw.inode));
                    }
                }
                if batch.len() < 128 {
                    break;
                }
            }
        }
        "a file without a name".to_owned()
    }
}

/// The lines of a range that cannot be read, by their first bytes.
pub(crate) fn bad_lines(pm: &impl Pm, at: u64, count: u64) -> Vec<u64> {
    let mut bad = Vec::new();
    let mut block = [0u8; BLOCK_SIZE as usize];
    for start in (at..at + count).step_by(BLOCK_SIZE as usize) {
        if pm.read(start, &mut block).is_ok() {
            continue;
        }
        let lines = (start..start + BLOCK_SIZE).step_by(LINE_SIZE as usize);
        bad.extend(lines.filter(|&line| pm.read(line, &mut block[..LINE_SIZE as usize]).is_err()));
    }
    bad
}

/// What of an inode the bad lines are in.
pub(crate) fn hits(inode: &Inode, bad: &BTreeSet<u64>, told: &mut BTreeSet<u64>) -> Vec<String> {
    let mut hits = Vec::new();
    for &line in bad.range(inode.address..inode.address + INODE_SIZE) {
        told.insert(line);
        hits.push(format!("a media error in its inode, at byte {line}"));
    }
    let mut look = |run: Run, told: &mut BTreeSet<u64>, words: &dyn Fn(u64) -> String| {
        let start = run.start.offset();
        for &line in bad.range(start..start + run.len * BLOCK_SIZE) {
            told.insert(line);
            hits.push(words(line - start));
        }
    };
    for run in inode.log.lock().blocks() {
        look(run, told, &|within| {
            format!("a media error in its log, at byte {}", run.start.offset() + within)
        });
    }
    if let Body::File(map) = &inode.body {
        map.for_each(0, MAX_FILE_SIZE / BLOCK_SIZE, |piece| {
            let run = Run { start: Block(piece.place & place::BLOCK_MASK), len: piece.len };
            look(run, told, &|within| {
                let from = piece.start * BLOCK_SIZE + within;
                format!("a media error in bytes {from} to {}", from + LINE_SIZE)
            });
        });
    }
    crate::xattr::for_each(&inode.xattrs, |xattr| {
        if let Some(run) = xattr.run {
            let name = String::from_utf8_lossy(&xattr.name).into_owned();
            look(run, told, &|_| format!("a media error in the value of attribute {name}"));
        }
        ControlFlow::Continue(())
    });
    hits
}
