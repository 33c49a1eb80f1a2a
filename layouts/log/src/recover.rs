//! Recovery: finds the blocks in use by walking the tree from the root and reading every log.
//!
//! Only dentries prove existence: an inode that no dentry refers to is free, for any bytes in it. So files that were
//! open and unlinked at the crash need no list. Recovery can be repeated any number of times: it erases torn batches,
//! rolls back transactions that only one directory has, and recounts links.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use nacre_engine::{BLOCK_SIZE, Block, Error, FileKind, Kind, Result, TierReader, TierRun, TimeRange, size};
use nacre_layout_parts::report::RecoveryReport;
use nacre_media::Pm;
use parking_lot::Mutex;
use rayon::prelude::*;

use crate::alloc::{Allocator, Run, for_each_mask};
use crate::format::{
    CHUNK_INODES, ROOT_INODE, RawInode, TransactionEntry, inode_seed, kind, open_word, place,
};
use crate::fs::write_cached_fields;
use crate::image::{Image, Whose};
use crate::inode::{Body, Graveyard};
use crate::load::{Child, LoadContext, Loaded, load_inode};
use crate::places::Reach;
use crate::scan::{Ending, LogSource, PendingTransaction, read_inode, scan_log};
use crate::seeded::fault;
use crate::superblock::Superblock;
use crate::table::InodeTable;
use crate::tiers::{Tiers, for_each_unmarked};

/// Files that one task of the walk reads.
const BATCH: usize = 1024;
/// Damage that a report describes one by one.
const MAX_DAMAGE: usize = 100;

/// The answer of the other directory of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    /// It has it: both have.
    Has,
    /// All of it can be read, and it has it not.
    HasNot,
    /// It cannot be read: the answer is unknown.
    Unreadable,
}

/// A walk over everything that is reachable.
pub(crate) struct Walk<'a, P> {
    pub(crate) pm: &'a P,
    pub(crate) volume_seed: u32,
    pub(crate) hash_seed: u64,
    times: TimeRange,
    pub(crate) inodes: &'a InodeTable,
    /// Transactions below are committed.
    pub(crate) settled: u64,
    pub(crate) ending: Ending,
    reach: &'a Reach,
    used: Vec<AtomicU64>,
    /// The same of each tier, by number; nothing of those that there are not.
    tiers_used: Vec<Vec<AtomicU64>>,
    /// Images on tiers, with content that is not counted yet.
    images: Mutex<Vec<(Whose, Image)>>,
    links: Vec<AtomicU32>,
    cached_links: Vec<AtomicU32>,
    greatest_transaction: AtomicU64,
    directories: AtomicU64,
    files: AtomicU64,
    rolled_back: AtomicU64,
    torn: AtomicU64,
    /// Byte ranges to erase.
    erase: Mutex<Vec<(u64, u64)>>,
    /// The same of transactions that only one directory has; believed if nothing is damaged.
    roll_back: Mutex<Vec<(u64, u64)>>,
    /// Directories with a wrong cached parent: (number, parent).
    parents: Mutex<Vec<(u64, u64)>>,
    damage: Mutex<Vec<String>>,
    damage_count: AtomicU64,
    graveyard: Arc<Graveyard>,
}

impl<'a, P: Pm> Walk<'a, P> {
    pub(crate) fn new(
        pm: &'a P,
        inodes: &'a InodeTable,
        chunks: &(u64, Vec<Run>),
        superblock: &Superblock,
        reach: &'a Reach,
        ending: Ending,
    ) -> Walk<'a, P> {
        let (seeds, first_data_block) =
            ((superblock.seed(), superblock.raw.hash_seed), superblock.first_data_block());
        let settled = superblock.raw.settled_transactions;
        let blocks = pm.len() / BLOCK_SIZE;
        let count = (chunks.0 * CHUNK_INODES) as usize;
        let mut walk = Walk {
            pm,
            volume_seed: seeds.0,
            hash_seed: seeds.1,
            times: superblock.times(),
            inodes,
            settled,
            ending,
            reach,
            used: bits(blocks),
            tiers_used: Vec::new(),
            images: Mutex::default(),
            links: (0..count).map(|_| AtomicU32::new(0)).collect(),
            cached_links: (0..count).map(|_| AtomicU32::new(0)).collect(),
            greatest_transaction: AtomicU64::new(0),
            directories: AtomicU64::new(0),
            files: AtomicU64::new(0),
            rolled_back: AtomicU64::new(0),
            torn: AtomicU64::new(0),
            erase: Mutex::default(),
            roll_back: Mutex::default(),
            parents: Mutex::default(),
            damage: Mutex::default(),
            damage_count: AtomicU64::new(0),
            graveyard: Arc::default(),
        };
        walk.mark(Run { start: Block(0), len: first_data_block.min(blocks) }, "superblocks and regions");
        for &run in &chunks.1 {
            walk.mark(run, "a chunk of inodes");
        }
        for (tier, blocks) in reach.tiers() {
            walk.tiers_used.resize_with(usize::from(tier) + 1, Vec::new);
            walk.tiers_used[usize::from(tier)] = bits(blocks);
            for start in [0, blocks - 1] {
                walk.mark_place(place::on_tier(tier, start), 1, "the superblock of a tier");
            }
        }
        walk
    }

    /// Walks the tree.
    pub(crate) fn run(&self) {
        self.inodes.mark_used(ROOT_INODE);
        rayon::scope(|scope| self.directory(scope, ROOT_INODE, ROOT_INODE));
    }

    /// Reads a directory and everything below it.
    fn directory<'s>(&'s self, scope: &rayon::Scope<'s>, number: u64, parent: u64) {
        self.directories.fetch_add(1, Ordering::Relaxed);
        let children = match self.read_directory(number, parent) {
            Ok(children) => children,
            Err(error) => return self.note_damage(&error),
        };
        let (directories, files): (Vec<Child>, Vec<Child>) =
            children.into_iter().partition(|child| child.kind == FileKind::Directory);
        for child in directories {
            if self.inodes.mark_used(child.number) {
                scope.spawn(move |scope| self.directory(scope, child.number, number));
            } else {
                self.note_damage(&Error::corrupt(format!(
                    "directory {} has two names, one in directory {number}",
                    child.number
                )));
            }
        }
        files.par_chunks(BATCH).for_each(|batch| {
            for child in batch {
                self.file(*child, number);
            }
        });
    }

    fn read_directory(&self, number: u64, parent: u64) -> Result<Vec<Child>> {
        let (raw, source) = self.inode(number)?;
        if raw.kind != FileKind::Directory as u8 {
            return Err(Error::corrupt(format!("inode {number}: named as a directory, but is none")));
        }
        let mut loaded = self.load(source, &raw, false)?;
        if self.ends_in_half(&loaded, number) {
            self.rolled_back.fetch_add(1, Ordering::Relaxed);
            self.roll_back.lock().extend_from_slice(&loaded.scan.last_batch);
            loaded = self.load(source, &raw, true)?;
        }
        self.greatest_transaction.fetch_max(loaded.scan.greatest_transaction, Ordering::Relaxed);
        self.note_contents(&loaded);
        if raw.parent != parent || !raw.cached_is_valid(source.seed) {
            self.parents.lock().push((number, parent));
        }
        self.drop_unborn(&mut loaded);
        Ok(loaded.children)
    }

    /// Whether the last batch of a directory is half a transaction: the other directory does not have it.
    fn ends_in_half(&self, loaded: &Loaded, number: u64) -> bool {
        fault!(self.pm, HalfTransactionKept => return false);
        loaded.scan.last_transaction.is_some_and(|transaction| {
            transaction.number >= self.settled && self.peer_has(transaction, number) == Peer::HasNot
        })
    }

    /// A create writes the inode and its name under one fence. When the last name of the log refers to an inode that
    /// is not there, that create was on its way.
    fn drop_unborn(&self, loaded: &mut Loaded) {
        fault!(self.pm, UnbornKept => return);
        let &[(address, len)] = loaded.scan.last_batch.as_slice() else { return };
        let Some(position) = loaded.children.iter().position(|child| child.address == address) else {
            return;
        };
        let child = loaded.children[position];
        if self.ending == Ending::MayBeTorn && !self.is_born(child) {
            self.torn.fetch_add(1, Ordering::Relaxed);
            self.erase.lock().push((address, len));
            loaded.children.remove(position);
        }
    }

    fn is_born(&self, child: Child) -> bool {
        let Ok((raw, source)) = self.inode(child.number) else { return false };
        raw.generation == child.generation
            && raw.kind == child.kind as u8
            && raw.cached_is_valid(source.seed)
            && open_word(raw.head, source.seed, &String::new).is_ok()
    }

    /// Whether the other directory of a transaction has it, too.
    fn peer_has(&self, transaction: PendingTransaction, asking: u64) -> Peer {
        let Ok((raw, source)) = self.inode(transaction.peer) else { return Peer::Unreadable };
        if raw.generation != transaction.peer_generation {
            return Peer::HasNot;
        }
        let mut found = false;
        // In a log that is damaged later on, the entries before count.
        let scanned = scan_log(self.pm, source, &raw, self.ending, false, &mut |entry| {
            if entry.header.kind == kind::TRANSACTION {
                let other: TransactionEntry = entry.get()?;
                found |= other.transaction == transaction.number && other.peer == asking;
            }
            Ok(())
        });
        match scanned {
            _ if found => Peer::Has,
            Ok(_) => Peer::HasNot,
            Err(_) => Peer::Unreadable,
        }
    }

    /// Reads an inode that is no directory.
    fn file(&self, child: Child, directory: u64) {
        let Some(links) = self.links.get(child.number as usize) else {
            return self.note_damage(&Error::corrupt(format!(
                "directory {directory}: a name refers to inode {}, which cannot exist",
                child.number
            )));
        };
        links.fetch_add(1, Ordering::Relaxed);
        let is_first = self.inodes.mark_used(child.number);
        let result = if is_first {
            self.files.fetch_add(1, Ordering::Relaxed);
            self.read_file(child)
        } else {
            // The inode of another name was read; this name may refer to a different one.
            self.named(child).map(drop)
        };
        if let Err(error) = result {
            self.note_damage(&error);
        }
    }

    /// The inode, if it is the one that the name refers to.
    fn named(&self, child: Child) -> Result<(RawInode, LogSource)> {
        let (raw, source) = self.inode(child.number)?;
        if raw.generation != child.generation || raw.kind != child.kind as u8 {
            return Err(Error::corrupt(format!(
                "inode {}: not the one that its name refers to",
                child.number
            )));
        }
        Ok((raw, source))
    }

    fn read_file(&self, child: Child) -> Result<()> {
        let (raw, source) = self.named(child)?;
        let loaded = self.load(source, &raw, false)?;
        let cached = if raw.cached_is_valid(source.seed) { raw.links } else { 0 };
        self.cached_links[child.number as usize].store(cached, Ordering::Relaxed);
        self.note_contents(&loaded);
        Ok(())
    }

    /// Marks the blocks that a log and its inode use, and notes its torn batches.
    fn note_contents(&self, loaded: &Loaded) {
        let inode = &loaded.inode;
        let what = || format!("inode {}", inode.number);
        for page in &loaded.scan.pages {
            self.mark(Run { start: page.block, len: 1 }, what());
        }
        if let Body::File(map) = &inode.body {
            map.for_each(0, crate::format::MAX_FILE_SIZE / BLOCK_SIZE, |piece| {
                self.mark_place(piece.place, piece.len, what());
            });
        }
        if let Some(image) = inode.image.get() {
            self.mark_place(image.place(), image.run.len, what());
            self.images.lock().push((inode.whose(), image));
        }
        crate::xattr_index::for_each(&inode.xattrs, |xattr| {
            if let Some(run) = xattr.run {
                self.mark(run, what());
            }
            std::ops::ControlFlow::Continue(())
        });
        for (_, error) in crate::xattr_index::damaged_values(self.pm, inode.number, &inode.xattrs) {
            self.note_damage(&error);
        }
        if !loaded.scan.torn.is_empty() {
            self.torn.fetch_add(1, Ordering::Relaxed);
            self.erase.lock().extend_from_slice(&loaded.scan.torn);
        }
    }

    fn mark(&self, run: Run, what: impl std::fmt::Display) {
        self.mark_place(run.start.0, run.len, what);
    }

    /// Marks blocks of a place, which is one that there is.
    fn mark_place(&self, raw: u64, len: u64, what: impl std::fmt::Display) {
        let (tier, start) = (place::tier(raw), raw & place::BLOCK_MASK);
        let used = if tier == 0 { &self.used } else { &self.tiers_used[usize::from(tier)] };
        let mut twice = false;
        for_each_mask(start, len, |word, mask| {
            twice |= used[word].fetch_or(mask, Ordering::Relaxed) & mask != 0;
        });
        if twice {
            let whose = if tier == 0 { String::new() } else { format!(" of tier {tier}") };
            self.note_damage(&Error::corrupt(format!(
                "{what}: a block of {start}..{}{whose} belongs to another, too",
                start + len
            )));
        }
    }

    fn inode(&self, number: u64) -> Result<(RawInode, LogSource)> {
        let missing = |_| Error::corrupt(format!("inode {number}: it is in no chunk"));
        let address = self.inodes.address(number).map_err(missing)?;
        let raw = read_inode(self.pm, address)?;
        let seed = inode_seed(self.volume_seed, number, raw.generation);
        if !raw.is_valid(seed) {
            return Err(Error::corrupt(format!("inode {number}: header")));
        }
        Ok((raw, LogSource { number, generation: raw.generation, seed, address }))
    }

    fn load(&self, source: LogSource, raw: &RawInode, drop_last: bool) -> Result<Loaded> {
        let context = LoadContext {
            hash_seed: self.hash_seed,
            times: self.times,
            graveyard: &self.graveyard,
            reach: self.reach,
            ending: self.ending,
            drop_last,
        };
        load_inode(self.pm, source, raw, &context)
    }

    fn note_damage(&self, error: &Error) {
        self.damage_count.fetch_add(1, Ordering::Relaxed);
        let mut damage = self.damage.lock();
        if damage.len() < MAX_DAMAGE {
            damage.push(error.to_string());
        }
    }

    /// Writes the corrections of recovery, durable when it returns. If something is damaged nothing is rolled back: an
    /// entry that the other directory does not seem to have may be the damaged one.
    pub(crate) fn repair(&self) -> Result<()> {
        // The last token stands for all stores of this thread: one fence covers them.
        let mut flushed = self.pm.zero(0, 0)?;
        // From the end of each log to its beginning, with a fence between pages: a crash in between leaves a batch
        // that is torn in one page and has nothing behind it, as every other crash does.
        let mut page = None;
        let mut erase = std::mem::take(&mut *self.roll_back.lock());
        if self.damage_count.load(Ordering::Relaxed) > 0 {
            erase.clear();
        }
        // Torn batches are behind those that are rolled back.
        erase.extend_from_slice(&self.erase.lock());
        fault!(self.pm, TornNotErased => erase.clear());
        for &(address, len) in erase.iter().rev() {
            if page.is_some_and(|page| page != address / BLOCK_SIZE) {
                self.pm.fence(flushed);
                flushed = self.pm.zero(0, 0)?;
            }
            page = Some(address / BLOCK_SIZE);
            flushed = flushed.and(self.pm.zero(address, len)?);
        }
        for (number, count, _) in self.wrong_links() {
            fault!(self.pm, LinksNotCounted => break);
            // One that cannot be read is damage, which the report names.
            let Ok((_, source)) = self.inode(number) else { continue };
            flushed = flushed.and(write_cached_fields(self.pm, source.address, source.seed, count, 0)?);
        }
        for &(number, parent) in self.parents.lock().iter() {
            let (_, source) = self.inode(number)?;
            flushed = flushed.and(write_cached_fields(self.pm, source.address, source.seed, 2, parent)?);
        }
        self.pm.fence(flushed);
        Ok(())
    }

    /// Inodes with a wrong cached count of links: (number, right count, cached count).
    pub(crate) fn wrong_links(&self) -> impl Iterator<Item = (u64, u32, u32)> + '_ {
        self.links.iter().zip(&self.cached_links).enumerate().filter_map(|(number, (links, cached))| {
            let (links, cached) = (links.load(Ordering::Relaxed), cached.load(Ordering::Relaxed));
            (links != 0 && links != cached).then_some((number as u64, links, cached))
        })
    }

    /// Gives everything that is not in use to an allocator.
    pub(crate) fn free_the_rest(&self, alloc: &Allocator, first_data_block: u64, blocks: u64) {
        for_each_unmarked(&self.used, first_data_block, blocks, |run| alloc.free(run));
    }

    /// The same for the tiers; those with images that were not read wait for that.
    pub(crate) fn free_the_rest_of_tiers(&mut self, tiers: &Tiers) {
        let mut images = std::mem::take(self.images.get_mut());
        for (tier, blocks) in self.reach.tiers() {
            let used = &mut self.tiers_used[usize::from(tier)];
            let (mut here, others): (Vec<_>, Vec<_>) =
                images.into_iter().partition(|(_, image)| image.run.tier == tier);
            images = others;
            fault!(self.pm, ImagesNotCounted => here.clear());
            if !here.is_empty() {
                tiers.leave_uncounted(tier, std::mem::take(used), here);
                continue;
            }
            for_each_unmarked(used, 1, blocks, |Run { start, len }| {
                tiers.found_free(TierRun { tier, start, len });
            });
        }
    }

    /// Reads images and marks the blocks that they name. Images on missing tiers stay uncounted, and so do unreadable
    /// ones. Gives the errors of these.
    pub(crate) fn read_images(&self, reader: &dyn TierReader) -> Vec<String> {
        let mut errors = Vec::new();
        let images = std::mem::take(&mut *self.images.lock());
        for (whose, image) in images {
            match image.read(reader, whose, self.volume_seed, self.reach) {
                Ok(extents) => extents.iter().for_each(|piece| {
                    self.mark_place(piece.place, piece.len, format!("inode {}", whose.number));
                }),
                Err(error) => {
                    self.images.lock().push((whose, image));
                    match error.kind() {
                        Kind::DeviceLost => {}
                        Kind::Corrupt => errors.push(error.to_string()),
                        // The error of the device names no file.
                        _ => errors.push(format!("{}: {error}", image.damaged(whose))),
                    }
                }
            }
        }
        errors
    }

    pub(crate) fn greatest_transaction(&self) -> u64 {
        self.greatest_transaction.load(Ordering::Relaxed)
    }

    /// Directories with a wrong cached parent: (number, right parent).
    pub(crate) fn wrong_parents(&self) -> Vec<(u64, u64)> {
        self.parents.lock().clone()
    }

    pub(crate) fn report(&self, started: Instant) -> RecoveryReport {
        RecoveryReport {
            walked: true,
            directories: self.directories.load(Ordering::Relaxed),
            files: self.files.load(Ordering::Relaxed),
            torn: self.torn.load(Ordering::Relaxed),
            rolled_back: self.rolled_back.load(Ordering::Relaxed),
            relinked: self.wrong_links().count() as u64 + self.parents.lock().len() as u64,
            damage: self.damage.lock().clone(),
            damage_count: self.damage_count.load(Ordering::Relaxed),
            duration: started.elapsed(),
        }
    }
}

/// A bit for each block, none of them set.
fn bits(blocks: u64) -> Vec<AtomicU64> {
    (0..blocks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect()
}

/// The error of a mount that recovery does not allow.
pub(crate) fn refuse(report: &RecoveryReport) -> Error {
    let first = report.damage.first().cloned().unwrap_or_default();
    Error::new(Kind::Corrupt)
        .object(format!("{}, the first: {first}", size::count(report.damage_count, "place", "places")))
        .advice("run fsck, or mount read-only to save the files that can be read")
}
