//! Scrubbing: reads everything while the file system is mounted, and reports parts that cannot be read or do not
//! validate.
//!
//! Four parts: the superblock's copies, each inode with its metadata, every block of the device, and the blocks of
//! files on [tiers]. A thread does it at a bounded rate, so that it costs the mount at most that much bandwidth. A bad
//! copy of the superblock is written anew. A block with a media error is put into the list of bad blocks, and is never
//! allocated (again). Other damage is for fsck. The part of each layout is in [`Scrubbed`].

mod tiers;

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicBool, Ordering};
use nacre_engine::sync::thread::{self, JoinHandle};
use nacre_engine::{
    BLOCK_SIZE, Block, DamagedCopy, Error, Kind, LINE_SIZE, Result, TierRun, background, size,
};
use nacre_media::Pm;

use crate::alloc::Allocator;
use crate::badblocks::{self, Share};
use crate::superblock::{Found, Superblock};
pub use tiers::{TierPart, TierScrub};

/// Bytes that are read at a time.
const PIECE: u64 = 256 << 10;
/// The smallest rate, in bytes per second: one read a second.
pub const LEAST_RATE: u64 = PIECE;
/// The rate that is taken when none is given: bytes per second.
pub const DEFAULT_RATE: u64 = 1 << 30;
/// An inode that is being made does not validate for a moment: it is looked at again so often, after so long.
const BIRTH_TURNS: usize = 3;
const BIRTH: Duration = Duration::from_millis(5);
/// Findings that are described one by one.
const MAX_FINDINGS: usize = 1000;

/// The progress of a scrub and its findings.
#[derive(Debug, Clone, Default)]
pub struct ScrubStatus {
    /// It has not ended.
    pub running: bool,
    /// It came to its end, and was not stopped by the unmount.
    pub finished: bool,
    /// Inodes with metadata that was read.
    pub inodes: u64,
    /// Bytes of the device that were read.
    pub bytes: u64,
    /// Bytes to read in all.
    pub total: u64,
    /// Descriptions of damage, with file and range if it is in a file. The first thousand.
    pub findings: Vec<String>,
    /// The same of media errors in blocks that were in the list of bad blocks when this scrub began. The run that put
    /// them there has reported them, and nothing is left to be done about them.
    pub known: Vec<String>,
    /// The number of repaired findings.
    pub repaired: u64,
    /// Blocks in the list of bad blocks.
    pub bad_blocks: u64,
    /// How far it is on each tier; none before their turn comes.
    pub tiers: Vec<TierScrub>,
}

/// Receives a name, its inode, and whether that is a directory.
pub type NameVisitor<'a> = dyn FnMut(&[u8], u64, bool) -> ControlFlow<()> + 'a;

/// The parts of a mount that every layout has.
pub struct Volume<'a, P> {
    /// The media.
    pub pm: &'a P,
    /// The superblock, as the mount has it.
    pub superblock: &'a Mutex<Superblock>,
    /// Its blocks with media errors.
    pub retired: &'a dyn Retired,
    /// Nothing may be written.
    pub read_only: bool,
    /// Other processes may have parts of the device mounted: the superblock is not for this one alone to write.
    pub is_shared: bool,
    /// Its places in the list of bad blocks.
    pub share: Share,
    /// The inode that all names begin at.
    pub root: u64,
}

impl<'a, P> Volume<'a, P> {
    /// The parts of a mount that has the whole device.
    pub fn of_device(
        pm: &'a P,
        superblock: &'a Mutex<Superblock>,
        retired: &'a Allocator,
        read_only: bool,
        root: u64,
    ) -> Volume<'a, P> {
        Volume { pm, superblock, retired, read_only, is_shared: false, share: Share::ALL, root }
    }
}

/// The blocks with media errors of a mount: they are not allocated (again).
pub trait Retired: Sync {
    /// All of them, in order.
    fn bad_blocks(&self) -> Vec<Block>;

    /// Takes a block out of use. One that is in use is so when it is freed.
    fn withdraw(&self, block: Block);
}

impl Retired for Allocator {
    fn bad_blocks(&self) -> Vec<Block> {
        Allocator::bad_blocks(self)
    }

    fn withdraw(&self, block: Block) {
        Allocator::withdraw(self, block);
    }
}

/// A mounted file system, as a scrub sees it.
pub trait Scrubbed: Send + Sync + 'static {
    /// The media.
    type Media: Pm;

    /// Its parts.
    fn volume(&self) -> Volume<'_, Self::Media>;

    /// Reads the superblock's copies on media.
    fn read_superblock(&self) -> Result<Found>;

    /// Numbers of inodes in use.
    fn inodes(&self) -> Vec<u64>;

    /// Reads an inode and its metadata; gives the bytes of both. [`Stale`](Kind::Stale) when it is there no more.
    fn check_inode(&self, number: u64) -> Result<u64>;

    /// Descriptions of the parts of an inode that the bad lines are in. Those lines are added to `told`.
    fn hits(&self, number: u64, bad: &BTreeSet<u64>, told: &mut BTreeSet<u64>) -> Result<Vec<String>>;

    /// Calls `visit` with the names in a directory. Nothing when it is none.
    fn for_each_name(&self, number: u64, visit: &mut NameVisitor<'_>) -> Result<()>;

    /// Compares second copies of metadata, in a layout that keeps them, and mends damaged ones. Calls `found` with a
    /// description, and whether it is mended; `spend` with bytes that were read, until that says to stop.
    fn check_copies(&self, found: &mut dyn FnMut(String, bool), spend: &mut dyn FnMut(u64) -> bool) {
        let _ = (found, spend);
    }

    /// The bytes of the device that are read, of which it has `end`.
    fn range(&self, end: u64) -> Range<u64> {
        0..end
    }

    /// Whether a block may be one of this file system, and not of another one on the device.
    fn is_ours(&self, block: Block) -> bool {
        let _ = block;
        true
    }

    /// The numbers of its tiers, and the bytes in use on each.
    fn tiers(&self) -> Vec<(u8, u64)> {
        Vec::new()
    }

    /// Checks the superblock of a tier; see [`check_superblock`](nacre_engine::TierReader::check_superblock).
    fn check_tier(&self, number: u8) -> Result<Vec<DamagedCopy>> {
        let _ = number;
        Ok(Vec::new())
    }

    /// Whether the device of a tier is there.
    fn is_there(&self, number: u8) -> bool {
        self.check_tier(number).is_ok()
    }

    /// The parts of an inode that are on tiers. [`Corrupt`](Kind::Corrupt) where the record of them is damaged.
    fn on_tiers(&self, number: u64) -> Result<Vec<TierPart>> {
        let _ = number;
        Ok(Vec::new())
    }

    /// Reads blocks of a tier.
    fn read_tier(&self, run: TierRun) -> Result<()> {
        let _ = run;
        Ok(())
    }
}

/// The scrub of a mounted file system.
#[derive(Default)]
pub struct Scrubber {
    status: Arc<Mutex<ScrubStatus>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Scrubber {
    /// Starts to read everything, at most `rate` bytes in a second. [`Busy`](Kind::Busy) while that is under way,
    /// [`InvalidInput`](Kind::InvalidInput) for a rate of less than [`LEAST_RATE`].
    pub fn start<F: Scrubbed>(&mut self, fs: &Arc<F>, rate: u64) -> Result<()> {
        if rate < LEAST_RATE {
            return Err(Error::new(Kind::InvalidInput)
                .operation("scrub")
                .object(format!("{} in a second", size::exact(rate)))
                .advice("give at least 256 KiB"));
        }
        if self.status.lock().running {
            return Err(Error::new(Kind::Busy).operation("scrub").advice("a scrub is running"));
        }
        self.stop();
        self.stop.store(false, Ordering::Release);
        let (end, first_data_block) = {
            let superblock = fs.volume().superblock.lock();
            (superblock.raw.device_blocks * BLOCK_SIZE, superblock.first_data_block())
        };
        let range = fs.range(end);
        let total = range.end - range.start;
        *self.status.lock() = ScrubStatus { running: true, total, ..ScrubStatus::default() };
        let scrub = Scrub {
            fs: Arc::clone(fs),
            range,
            first_data_block,
            status: Arc::clone(&self.status),
            stop: Arc::clone(&self.stop),
            retired: fs.volume().retired.bad_blocks().into_iter().collect(),
            unread: Vec::new(),
            pace: Pace { started: Instant::now(), done: 0, rate },
        };
        let thread = thread::Builder::new().name("nacre-scrub".to_owned()).spawn(move || scrub.run());
        self.thread = Some(thread.map_err(|error| Error::io("scrub", "its thread", error))?);
        Ok(())
    }

    /// How far the last one is.
    pub fn status(&self, fs: &impl Scrubbed) -> ScrubStatus {
        let mut status = self.status.lock().clone();
        status.bad_blocks = fs.volume().retired.bad_blocks().len() as u64;
        status
    }

    /// Ends the one that is under way.
    pub fn stop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
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

struct Scrub<F> {
    fs: Arc<F>,
    /// The bytes to read.
    range: Range<u64>,
    first_data_block: u64,
    status: Arc<Mutex<ScrubStatus>>,
    stop: Arc<AtomicBool>,
    /// The list of bad blocks, as it was when this began.
    retired: BTreeSet<Block>,
    /// Inodes that a media error makes unreadable, and the finding for each. Whether it was known shows when all blocks
    /// are read.
    unread: Vec<(u64, String)>,
    pace: Pace,
}

impl<F: Scrubbed> Scrub<F> {
    fn run(mut self) {
        background::begin();
        self.copies();
        let read = self.superblocks().and_then(|()| self.inodes()).and_then(|()| self.blocks());
        let ended = read.and_then(|bad| self.tell(&bad)).and_then(|()| self.tiers());
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
        note(&mut self.status.lock().findings, words);
    }

    /// Second copies of metadata must be like the first.
    fn copies(&mut self) {
        let (status, stop, pace) = (&self.status, &self.stop, &mut self.pace);
        let mut found = |words: String, is_mended: bool| {
            let mut status = status.lock();
            note(&mut status.findings, words);
            status.repaired += u64::from(is_mended);
        };
        self.fs.check_copies(&mut found, &mut |bytes| {
            pace.spend(bytes);
            !stop.load(Ordering::Acquire)
        });
    }

    /// Both copies must validate; a bad one is written from the superblock of the mount.
    fn superblocks(&self) -> Result<()> {
        let volume = self.fs.volume();
        let mut superblock = volume.superblock.lock();
        let valid = self.fs.read_superblock().map_or([false; 2], |found| {
            superblock.note_copies(&found);
            found.valid
        });
        for (index, _) in valid.iter().enumerate().filter(|(_, valid)| !**valid) {
            let copy = index + 1;
            if volume.read_only || volume.is_shared {
                self.found(format!("copy {copy} of the superblock is damaged"));
                continue;
            }
            superblock.write(volume.pm)?;
            self.found(format!("copy {copy} of the superblock was damaged and is written again"));
            self.status.lock().repaired += 1;
        }
        Ok(())
    }

    /// Every inode in use must validate, with its metadata.
    fn inodes(&mut self) -> Result<()> {
        for number in self.fs.inodes() {
            if self.is_stopped() {
                return Ok(());
            }
            let bytes = match self.inode(number) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == Kind::Stale => 0, // it was removed meanwhile
                Err(error) => {
                    let words = format!("{} (inode {number}): {error}", self.path_of(number));
                    match error.kind() {
                        Kind::Media => self.unread.push((number, words)),
                        _ => self.found(words),
                    }
                    0
                }
            };
            self.status.lock().inodes += 1;
            self.pace.spend(bytes);
        }
        Ok(())
    }

    fn inode(&self, number: u64) -> Result<u64> {
        for _ in 0..BIRTH_TURNS {
            match self.fs.check_inode(number) {
                Err(error) if error.kind() != Kind::Stale => thread::sleep(BIRTH),
                done => return done,
            }
        }
        self.fs.check_inode(number)
    }

    /// Every block must be readable; gives the lines that are not, or that the media lists as bad.
    fn blocks(&mut self) -> Result<BTreeSet<u64>> {
        let Range { start, end } = self.range;
        let mut bad = listed_lines(self.fs.volume().pm, end).split_off(&start);
        let mut bytes = vec![0u8; PIECE as usize];
        let mut at = start;
        while at < end && !self.is_stopped() {
            let count = PIECE.min(end - at);
            if self.fs.volume().pm.read(at, &mut bytes[..count as usize]).is_err() {
                bad.extend(bad_lines(self.fs.volume().pm, at, count));
            }
            at += count;
            self.status.lock().bytes = at - start;
            self.pace.spend(count);
        }
        // Another file system on the device finds its own losses, and reports them to its own users.
        bad.retain(|line| self.fs.is_ours(Block(line / BLOCK_SIZE)));
        Ok(bad)
    }

    /// Says which files the bad lines are in, and retires their blocks.
    fn tell(&mut self, bad: &BTreeSet<u64>) -> Result<()> {
        let is_retired = |line: &u64| self.retired.contains(&Block(line / BLOCK_SIZE));
        let (known, new): (BTreeSet<u64>, BTreeSet<u64>) = bad.iter().partition(|line| is_retired(line));
        for (number, words) in std::mem::take(&mut self.unread) {
            let hit_by =
                |lines| self.fs.hits(number, lines, &mut BTreeSet::new()).is_ok_and(|hits| !hits.is_empty());
            // Of an inode with bad lines of its own no layout says where they are: with nothing new, it was reported
            // before.
            let was_told = hit_by(&known) || new.is_empty() && !known.is_empty();
            if hit_by(&new) || !was_told {
                self.found(words);
            } else {
                note(&mut self.status.lock().known, words);
            }
        }
        self.tell_owners(&known, &mut |words| note(&mut self.status.lock().known, words));
        self.tell_owners(&new, &mut |words| self.found(words));
        self.withdraw(&new)
    }

    fn tell_owners(&self, bad: &BTreeSet<u64>, tell: &mut dyn FnMut(String)) {
        if bad.is_empty() {
            return;
        }
        let mut told = BTreeSet::new();
        for number in self.fs.inodes() {
            // One that cannot be loaded was reported before.
            let Ok(hits) = self.fs.hits(number, bad, &mut told) else { continue };
            if !hits.is_empty() {
                let path = self.path_of(number);
                hits.iter().for_each(|hit| tell(format!("{path} (inode {number}): {hit}")));
            }
        }
        for range in untold(bad, &mut told) {
            let block = range.start / BLOCK_SIZE;
            let where_ =
                if block < self.first_data_block { "superblocks and tables" } else { "free or a table" };
            let Range { start, end } = range;
            tell(format!("a media error in bytes {start} to {end} of the device (block {block}: {where_})"));
        }
    }

    /// Puts blocks into the list of bad blocks.
    fn withdraw(&self, bad: &BTreeSet<u64>) -> Result<()> {
        let Volume { pm, superblock, retired, read_only, share, .. } = self.fs.volume();
        let superblock = superblock.lock();
        for block in blocks_of(bad).into_iter().filter(|block| block.0 >= self.first_data_block) {
            if !retired.bad_blocks().contains(&block) {
                if !read_only {
                    badblocks::add(pm, &superblock, block, share)?;
                }
                retired.withdraw(block);
            }
        }
        Ok(())
    }

    /// The first path that leads to an inode, found by looking at all names.
    fn path_of(&self, wanted: u64) -> String {
        let mut pending = vec![(String::new(), self.fs.volume().root)];
        while let Some((path, number)) = pending.pop() {
            if number == wanted {
                return if path.is_empty() { "/".to_owned() } else { path };
            }
            let mut found = None;
            // An unreadable directory leads nowhere.
            let _ = self.fs.for_each_name(number, &mut |name, inode, is_directory| {
                let child = format!("{path}/{}", String::from_utf8_lossy(name));
                if inode == wanted {
                    found = Some(child);
                    return ControlFlow::Break(());
                }
                if is_directory {
                    pending.push((child, inode));
                }
                ControlFlow::Continue(())
            });
            if let Some(path) = found {
                return path;
            }
        }
        "a file without a name".to_owned()
    }
}

/// Adds to the findings that are described one by one.
fn note(findings: &mut Vec<String>, words: String) {
    if findings.len() < MAX_FINDINGS {
        findings.push(words);
    }
}

/// The bad lines in a range, by their bytes, those that follow each other as one: of a bad page that is one range. They
/// are added to `told`.
pub fn bad_ranges(bad: &BTreeSet<u64>, within: Range<u64>, told: &mut BTreeSet<u64>) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for &line in bad.range(within) {
        told.insert(line);
        match ranges.last_mut() {
            Some(range) if range.end == line => range.end += LINE_SIZE,
            _ => ranges.push(line..line + LINE_SIZE),
        }
    }
    ranges
}

/// The same of the bad lines that were not reported.
pub fn untold(bad: &BTreeSet<u64>, told: &mut BTreeSet<u64>) -> Vec<Range<u64>> {
    let rest: BTreeSet<u64> = bad.difference(told).copied().collect();
    bad_ranges(&rest, 0..u64::MAX, told)
}

/// The lines before `end` that the media lists as bad, whether they can be read or not.
fn listed_lines(pm: &impl Pm, end: u64) -> BTreeSet<u64> {
    let lines = |range: Range<u64>| {
        let first = range.start - range.start % LINE_SIZE;
        (first..range.end.min(end)).step_by(LINE_SIZE as usize)
    };
    pm.known_errors().into_iter().flat_map(lines).collect()
}

/// The lines of a range that cannot be read, by their first bytes.
pub fn bad_lines(pm: &impl Pm, at: u64, count: u64) -> Vec<u64> {
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

/// The blocks that lines are in.
fn blocks_of(lines: &BTreeSet<u64>) -> BTreeSet<Block> {
    lines.iter().map(|line| Block(line / BLOCK_SIZE)).collect()
}

/// The lines of a file system that cannot be read or are listed as bad: those in blocks that may still be allocated,
/// and those in blocks that are out of use. The losses in the latter were reported when they were taken out.
pub fn all_bad_lines(pm: &impl Pm, superblock: &Superblock) -> Result<(BTreeSet<u64>, BTreeSet<u64>)> {
    let end = superblock.raw.device_blocks * BLOCK_SIZE;
    let mut lines = listed_lines(pm, end);
    lines.extend(bad_lines(pm, 0, end));
    let retired = badblocks::read(pm, superblock)?.blocks;
    Ok(lines.into_iter().partition(|line| retired.binary_search(&Block(line / BLOCK_SIZE)).is_err()))
}

/// Puts blocks that the media lists as bad into the list of bad blocks; gives how many those are. The file system must
/// not be mounted.
pub fn retire_listed(pm: &impl Pm, superblock: &Superblock) -> Result<u64> {
    let lines = listed_lines(pm, superblock.raw.device_blocks * BLOCK_SIZE);
    new_bad_blocks(pm, superblock, &lines, Some(Share::ALL))
}

/// The blocks of these lines that the list of bad blocks does not have. With `record` they are put there, at places of
/// that share. The file system must not be mounted.
pub fn new_bad_blocks(
    pm: &impl Pm,
    superblock: &Superblock,
    lines: &BTreeSet<u64>,
    record: Option<Share>,
) -> Result<u64> {
    let known = badblocks::read(pm, superblock)?.blocks;
    let first = superblock.first_data_block();
    let mut count = 0;
    for block in blocks_of(lines).into_iter().filter(|block| block.0 >= first && !known.contains(block)) {
        count += 1;
        if let Some(share) = record {
            badblocks::add(pm, superblock, block, share)?;
        }
    }
    Ok(count)
}
