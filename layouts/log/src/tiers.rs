//! Free blocks of tiers, and the moment when a freed block may be used again.
//!
//! Free blocks of a tier are found like free blocks of PM: by the checkpoint,
//! or by reading the logs. The first and the last block of a tier belong to its own superblock.
//!
//! A layout reads no blocks of files on tiers. A reader above it may find a block in the index and read it while its
//! file frees it. So freed blocks wait in limbo until all reads that began before have ended.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicU64;

use nacre_engine::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use nacre_engine::sync::{Mutex, RwLock};
use nacre_engine::{BLOCK_SIZE, Block, Error, FreeRun, Kind, Resource, Result, TierRun, TierSpace, size};

use crate::alloc::{Allocator, Purpose, Run, Runs, for_each_mask};
use crate::blockmap::Piece;
use crate::format::place;
use crate::image::{Image, Whose};
use crate::places::Reach;

/// The tiers of a mounted file system.
#[derive(Default)]
pub(crate) struct Tiers {
    /// The free blocks, by the number of the tier.
    space: RwLock<BTreeMap<u8, Allocator>>,
    limbo: Mutex<Limbo>,
    /// Tiers whose images name blocks that are not counted since a crash.
    uncounted: Mutex<BTreeMap<u8, Uncounted>>,
    /// There are such.
    has_uncounted: AtomicBool,
    /// Blocks are leaked (in use without an owner), so that the next mount is to count.
    leaks: AtomicBool,
    /// Which of the tiers of one rank is next.
    turn: AtomicUsize,
    /// Those that do not take blocks now, by number.
    unusable: AtomicU64,
}

/// A tier on which nothing is free until images were read.
struct Uncounted {
    /// Blocks that logs and images name, and those of them that were counted.
    marks: Vec<AtomicU64>,
    /// Images that were not counted: of which inode, its generation, and the image.
    images: BTreeMap<u64, (u32, Image)>,
    /// All were looked at: those that are still there cannot be read, and nothing is free as long as they are.
    is_read: bool,
    /// Two name one block: then the free blocks are unknown.
    is_contradictory: bool,
}

/// Blocks that were freed during a read.
#[derive(Default)]
struct Limbo {
    /// Grows with each free. Each read notes the value at its beginning.
    clock: u64,
    readers: BTreeMap<u64, u64>,
    freed: VecDeque<(u64, TierRun)>,
}

impl Limbo {
    /// Takes out the blocks that no read can still be using.
    fn settled(&mut self) -> Vec<TierRun> {
        let oldest = self.readers.keys().next().copied().unwrap_or(u64::MAX);
        let count = self.freed.partition_point(|(freed_at, _)| *freed_at < oldest);
        self.freed.drain(..count).map(|(_, run)| run).collect()
    }
}

impl Tiers {
    /// Tiers on which nothing is free yet.
    pub(crate) fn new(reach: &Reach) -> Result<Tiers> {
        let tiers = Tiers::default();
        // Also for an impossible size: the superblock may be another's.
        reach.tiers().try_for_each(|(number, blocks)| has_memory_for(number, blocks))?;
        let space = reach.tiers().map(|(number, blocks)| (number, Allocator::new(blocks, 1, 0)));
        *tiers.space.write() = space.collect();
        Ok(tiers)
    }

    /// These blocks are not in use: for a mount that looks for the free blocks.
    pub(crate) fn found_free(&self, run: TierRun) {
        if self.has_uncounted.load(Ordering::Acquire)
            && let Some(uncounted) = self.uncounted.lock().get(&run.tier)
        {
            for_each_mask(run.start.0, run.len, |word, mask| {
                uncounted.marks[word].fetch_and(!mask, Ordering::Relaxed);
            });
            return;
        }
        if let Some(alloc) = self.space.read().get(&run.tier) {
            alloc.free(Run { start: run.start, len: run.len });
        }
    }

    /// Frees blocks, as soon as no read can be using them.
    pub(crate) fn free(&self, run: TierRun) {
        let settled = {
            let mut limbo = self.limbo.lock();
            let at = limbo.clock;
            limbo.clock += 1;
            limbo.freed.push_back((at, run));
            limbo.settled()
        };
        settled.into_iter().for_each(|run| self.found_free(run));
    }

    /// Nothing is free on a tier until these images were read. The marks are of all else that is in use there.
    pub(crate) fn leave_uncounted(
        &self,
        tier: u8,
        marks: Vec<AtomicU64>,
        images: impl IntoIterator<Item = (Whose, Image)>,
    ) {
        let images = images.into_iter();
        let images = images.map(|(whose, image)| (whose.number, (whose.generation, image))).collect();
        self.uncounted
            .lock()
            .insert(tier, Uncounted { marks, images, is_read: false, is_contradictory: false });
        self.has_uncounted.store(true, Ordering::Release);
    }

    /// Images on a tier may not be read for files, since its blocks are still to be counted.
    pub(crate) fn waits_for_count(&self, tier: u8) -> bool {
        self.has_uncounted.load(Ordering::Acquire)
            && self.uncounted.lock().get(&tier).is_some_and(|uncounted| !uncounted.is_read)
    }

    /// The images that are to be counted, as they lie on the tier; nothing where all were looked at.
    pub(crate) fn uncounted_images(&self, tier: u8) -> Option<Vec<(Whose, Image)>> {
        let all = self.uncounted.lock();
        let uncounted = all.get(&tier).filter(|uncounted| !uncounted.is_read)?;
        let whose =
            |(&number, &(generation, image)): (&u64, &(u32, Image))| (Whose { number, generation }, image);
        let mut images: Vec<_> = uncounted.images.iter().map(whose).collect();
        images.sort_unstable_by_key(|(_, image)| image.run.start);
        Some(images)
    }

    /// Counts the blocks that the image of an inode names, if that is still to be done.
    pub(crate) fn count_image(&self, tier: u8, inode: u64, extents: &[Piece]) {
        if !self.has_uncounted.load(Ordering::Acquire) {
            return;
        }
        let mut all = self.uncounted.lock();
        let Some(uncounted) = all.get_mut(&tier) else { return };
        if uncounted.images.remove(&inode).is_none() {
            return;
        }
        let mut twice = false;
        for piece in extents {
            for_each_mask(piece.place & place::BLOCK_MASK, piece.len, |word, mask| {
                twice |= uncounted.marks[word].fetch_or(mask, Ordering::Relaxed) & mask != 0;
            });
        }
        uncounted.is_contradictory |= twice;
        self.end_count(&mut all, tier);
    }

    /// All images of a tier were looked at. True when two of them name one block.
    pub(crate) fn all_are_read(&self, tier: u8) -> bool {
        let mut all = self.uncounted.lock();
        let Some(uncounted) = all.get_mut(&tier) else { return false };
        uncounted.is_read = true;
        let is_contradictory = uncounted.is_contradictory;
        self.end_count(&mut all, tier);
        is_contradictory
    }

    /// When all images of a tier are counted, the unmarked blocks are free.
    fn end_count(&self, all: &mut BTreeMap<u8, Uncounted>, tier: u8) {
        let is_counted = |one: &Uncounted| one.is_read && one.images.is_empty() && !one.is_contradictory;
        if !all.get(&tier).is_some_and(is_counted) {
            return;
        }
        let Some(uncounted) = all.remove(&tier) else { return };
        if let Some(alloc) = self.space.read().get(&tier) {
            for_each_unmarked(&uncounted.marks, 1, alloc.blocks(), |run| alloc.free(run));
        }
        self.has_uncounted.store(!all.is_empty(), Ordering::Release);
    }

    /// An inode is gone: its image need not be counted. False when it was.
    pub(crate) fn forget_uncounted(&self, tier: u8, inode: u64) -> bool {
        if !self.has_uncounted.load(Ordering::Acquire) {
            return false;
        }
        let mut all = self.uncounted.lock();
        let was_there = all.get_mut(&tier).is_some_and(|one| one.images.remove(&inode).is_some());
        self.end_count(&mut all, tier);
        was_there
    }

    /// The next mount is to count the free blocks, because blocks are in use without an owner.
    pub(crate) fn count_at_next_mount(&self) {
        self.leaks.store(true, Ordering::Relaxed);
    }

    /// Whether all that is free is known to be.
    pub(crate) fn is_counted(&self) -> bool {
        !self.leaks.load(Ordering::Relaxed) && !self.has_uncounted.load(Ordering::Acquire)
    }

    pub(crate) fn begin_reads(&self) -> u64 {
        let mut limbo = self.limbo.lock();
        let now = limbo.clock;
        *limbo.readers.entry(now).or_default() += 1;
        now
    }

    pub(crate) fn end_reads(&self, ticket: u64) {
        let settled = {
            let mut limbo = self.limbo.lock();
            if let Some(count) = limbo.readers.get_mut(&ticket) {
                *count -= 1;
                if *count == 0 {
                    limbo.readers.remove(&ticket);
                }
            }
            limbo.settled()
        };
        settled.into_iter().for_each(|run| self.found_free(run));
    }

    pub(crate) fn allocate(&self, tier: u8, goal: Option<Block>, blocks: u64) -> Result<Vec<TierRun>> {
        let space = self.space.read();
        let alloc = space.get(&tier).ok_or_else(|| unknown(tier))?;
        let mut runs = Runs::new();
        let taken = alloc.allocate_near(goal, blocks, Purpose::Data, &mut runs);
        taken.map_err(|_| Error::no_space(Resource::Tier(tier), blocks))?;
        Ok(runs.into_iter().map(|Run { start, len }| TierRun { tier, start, len }).collect())
    }

    pub(crate) fn take_free(&self, tier: u8, from: Block, least: u64, most: u64) -> Result<FreeRun> {
        let space = self.space.read();
        let found = space.get(&tier).ok_or_else(|| unknown(tier))?.take_next(from, least, most);
        let run = found.run.map(|Run { start, len }| TierRun { tier, start, len });
        Ok(FreeRun { run, next: found.next, is_within: found.is_within })
    }

    pub(crate) fn space(&self, tier: u8) -> Result<TierSpace> {
        let space = self.space.read();
        let alloc = space.get(&tier).ok_or_else(|| unknown(tier))?;
        let blocks = alloc.blocks() - 2;
        // Blocks that wait for readers will be free.
        let limbo = self.limbo.lock();
        let waiting: u64 =
            limbo.freed.iter().filter(|(_, run)| run.tier == tier).map(|(_, run)| run.len).sum();
        let is_counted =
            !self.has_uncounted.load(Ordering::Acquire) || !self.uncounted.lock().contains_key(&tier);
        Ok(TierSpace { blocks, free: alloc.free_blocks() + waiting, is_counted })
    }

    /// Free runs of all tiers, in order.
    pub(crate) fn for_each_free_run(&self, mut visit: impl FnMut(TierRun)) {
        for (&tier, alloc) in &*self.space.read() {
            alloc.for_each_free_run(|Run { start, len }| visit(TierRun { tier, start, len }));
        }
    }

    /// Number of the next turn, for tiers of one rank.
    pub(crate) fn next_turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// There is a new tier, all of it free except the blocks of its superblock.
    pub(crate) fn add(&self, tier: u8, blocks: u64) {
        let alloc = Allocator::new(blocks, 1, 0);
        alloc.free(Run { start: Block(1), len: blocks - 2 });
        self.space.write().insert(tier, alloc);
    }

    /// Takes a tier out if nothing on it is in use, and `is_gone` says so durably.
    pub(crate) fn remove(&self, tier: u8, is_gone: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut space = self.space.write();
        let used = space.get(&tier).is_some_and(|alloc| alloc.free_blocks() < alloc.blocks() - 2);
        if used || self.limbo.lock().freed.iter().any(|(_, run)| run.tier == tier) {
            return Err(Error::new(Kind::Busy)
                .object(format!("tier {tier}"))
                .advice("drain it first: there are blocks of files on it"));
        }
        is_gone()?;
        space.remove(&tier);
        Ok(())
    }

    pub(crate) fn set_unusable(&self, tiers: &[u8]) {
        let bits = tiers.iter().fold(0, |bits, tier| bits | 1 << tier);
        self.unusable.store(bits, Ordering::Relaxed);
    }

    /// Whether a tier takes blocks now.
    pub(crate) fn is_usable(&self, tier: u8) -> bool {
        self.unusable.load(Ordering::Relaxed) & 1 << tier == 0
    }

    pub(crate) fn index_bytes(&self) -> u64 {
        self.space.read().values().map(Allocator::index_bytes).sum()
    }

    /// A block was freed that was free.
    pub(crate) fn contradicts_itself(&self) -> bool {
        self.space.read().values().any(Allocator::contradicts_itself)
    }
}

/// The error for a tier that there is not.
pub(crate) fn unknown(tier: u8) -> Error {
    Error::new(Kind::InvalidInput).object(format!("tier {tier}")).advice("there is no such tier")
}

/// Whether a map of the free blocks of a tier could be allocated. Nothing of it is kept, or touched.
pub(crate) fn has_memory_for(number: u8, blocks: u64) -> Result<()> {
    let words = usize::try_from(blocks.div_ceil(64)).unwrap_or(usize::MAX);
    Vec::<u64>::new().try_reserve_exact(words).map_err(|_| {
        Error::no_space(Resource::Limit, 0)
            .object(format!(
                "tier {number} of {}: {} of DRAM for a map of free blocks",
                size::exact(blocks.saturating_mul(BLOCK_SIZE)),
                size::print((words as u64).saturating_mul(8))
            ))
            .advice("use a machine with more DRAM")
    })
}

/// Calls `visit` with the runs of blocks from `first` to before `end` that are not marked.
pub(crate) fn for_each_unmarked(marks: &[AtomicU64], first: u64, end: u64, mut visit: impl FnMut(Run)) {
    let mut start = None;
    for block in first..=end {
        let free =
            block < end && marks[(block / 64) as usize].load(Ordering::Relaxed) >> (block % 64) & 1 == 0;
        match (free, start) {
            (true, None) => start = Some(block),
            (false, Some(first)) => {
                visit(Run { start: Block(first), len: block - first });
                start = None;
            }
            _ => {}
        }
    }
}
