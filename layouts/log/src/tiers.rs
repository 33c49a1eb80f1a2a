//! Tiers: the list of them, their free blocks, and the moment when a freed block may be used again.
//!
//! The superblock has a row for each tier. Free blocks of a tier are found like free blocks of PM: by the checkpoint,
//! or by reading the logs. The first and the last block of a tier belong to its own superblock.
//!
//! A layout reads no blocks of files on tiers. A reader above it may find a block in the index and read it while its
//! file frees it. So freed blocks wait in limbo until all reads that began before have ended.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicU64;

use nacre_engine::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use nacre_engine::sync::{Mutex, RwLock};
use nacre_engine::{
    BLOCK_SIZE, Block, Error, FreeRun, Kind, Result, Tier, TierChange, TierRun, TierSpace, TierState, size,
};
use nacre_layout_parts::format::{MAX_TIER_BLOCKS, MAX_TIERS, RawTier, incompatible, tier_state};
use nacre_media::Pm;

use crate::alloc::{Allocator, Purpose, Run, Runs, for_each_mask};
use crate::blockmap::{BlockMap, Piece};
use crate::format::{RawSuperblock, place};
use crate::fs::Shared;
use crate::image::{Image, Whose};
use crate::recover::for_each_unmarked;
use crate::tier_paths;

/// The smallest tier: its superblock's blocks and some for files.
const MIN_BLOCKS: u64 = 256;

/// The number of blocks of PM and of each tier. A valid place lies within them.
#[derive(Debug, Clone)]
pub(crate) struct Reach([u64; MAX_TIERS + 1]);

/// Bits of a place that nothing is known of, and the one that no code sets yet.
const UNKNOWN_BITS: u64 = ((1 << place::TIER_SHIFT) - 1) & !place::BLOCK_MASK & !place::UNWRITTEN;

impl Reach {
    /// Of a device of so many blocks, of which no more than those are the file system's that its superblock says.
    pub(crate) fn of(pm_blocks: u64, superblock: &RawSuperblock) -> Reach {
        let mut blocks = [0; MAX_TIERS + 1];
        blocks[0] = superblock.device_blocks.min(pm_blocks);
        for (index, row) in superblock.tiers.iter().enumerate() {
            blocks[index + 1] = row.blocks;
        }
        Reach(blocks)
    }

    /// Whether blocks can be there: on a device that there is, and not where its superblock is.
    pub(crate) fn holds(&self, raw: u64, len: u64) -> bool {
        let (tier, first) = (usize::from(place::tier(raw)), raw & place::BLOCK_MASK);
        // The last block of a tier is its superblock's.
        let last = if tier == 0 { 0 } else { 1 };
        let Some(&blocks) = self.0.get(tier) else { return false };
        Reach::can_be(raw) && first + len + last <= blocks
    }

    /// Whether blocks could be there, or once were, if there is or was such a tier.
    pub(crate) fn can_be(raw: u64) -> bool {
        let (tier, first) = (usize::from(place::tier(raw)), raw & place::BLOCK_MASK);
        raw & UNKNOWN_BITS == 0 && first > 0 && tier <= MAX_TIERS
    }

    /// Blocks of a tier, if there is one.
    pub(crate) fn blocks_of(&self, tier: u8) -> u64 {
        self.0.get(usize::from(tier)).copied().unwrap_or(0)
    }

    /// All blocks.
    pub(crate) fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The number of a block among all, PM first: for marks on them.
    pub(crate) fn index(&self, raw: u64) -> u64 {
        let before: u64 = self.0[..usize::from(place::tier(raw)).min(MAX_TIERS)].iter().sum();
        before + (raw & place::BLOCK_MASK)
    }

    /// The numbers of the tiers that there are.
    pub(crate) fn tiers(&self) -> impl Iterator<Item = (u8, u64)> + '_ {
        (1..).zip(&self.0[1..]).filter(|(_, blocks)| **blocks > 0).map(|(tier, blocks)| (tier, *blocks))
    }
}

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
        alloc.allocate_near(goal, blocks, Purpose::Data, &mut runs)?;
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

    pub(crate) fn set_unusable(&self, tiers: &[u8]) {
        let bits = tiers.iter().fold(0, |bits, tier| bits | 1 << tier);
        self.unusable.store(bits, Ordering::Relaxed);
    }

    fn is_usable(&self, tier: u8) -> bool {
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

fn unknown(tier: u8) -> Error {
    Error::new(Kind::InvalidInput).object(format!("tier {tier}")).advice("there is no such tier")
}

impl<P: Pm> Shared<P> {
    pub(crate) fn tier_list(&self) -> Vec<Tier> {
        listed(&self.superblock.lock().raw)
    }

    /// The tiers that new blocks may be on, the fastest first; those of one rank take turns, but that blocks go where
    /// those before them in the file are.
    fn takers(&self, before: Option<u8>) -> Vec<u8> {
        let mut tiers = self.tier_list();
        tiers.retain(|tier| tier.state == TierState::Active && self.tiers.is_usable(tier.number));
        tiers.sort_by_key(|tier| (tier.rank, tier.number));
        let turn = self.tiers.turn.fetch_add(1, Ordering::Relaxed);
        for alike in tiers.chunk_by_mut(|one, other| one.rank == other.rank) {
            let first = alike.iter().position(|tier| Some(tier.number) == before);
            alike.rotate_left(first.unwrap_or(turn % alike.len()));
        }
        tiers.into_iter().map(|tier| tier.number).collect()
    }

    /// Places for so many blocks of a file, from one on, that no write fills yet. They are on PM, or on tiers when they
    /// do not fit on PM. Gives the raw places, and how many blocks are at each.
    pub(crate) fn allocate_unwritten(
        &self,
        map: &BlockMap,
        start: u64,
        blocks: u64,
    ) -> Result<Vec<(u64, u64)>> {
        let mut runs = Runs::new();
        let Err(error) = self.alloc.allocate(blocks, Purpose::Data, &mut runs) else {
            return Ok(runs.into_iter().map(|run| (run.start.0 | place::UNWRITTEN, run.len)).collect());
        };
        let mut places = Vec::new();
        let mut missing = blocks;
        let before = start.checked_sub(1).and_then(|before| map.find(before, 1).0).map(place::tier);
        for tier in self.takers(before) {
            let free = self.tiers.space(tier).map_or(0, |space| space.free).min(missing);
            // Blocks that wait for readers are not free yet.
            if free > 0
                && let Ok(taken) = self.tiers.allocate(tier, None, free)
            {
                let raw = |run: TierRun| (place::on_tier(tier, run.start.0) | place::UNWRITTEN, run.len);
                places.extend(taken.into_iter().map(raw));
                missing -= free;
            }
        }
        if missing < blocks && missing > 0 && self.alloc.allocate(missing, Purpose::Data, &mut runs).is_ok() {
            places.extend(runs.into_iter().map(|run| (run.start.0 | place::UNWRITTEN, run.len)));
            missing = 0;
        }
        if missing == 0 {
            return Ok(places);
        }
        places.into_iter().for_each(|(place, len)| self.free_piece(Piece { start: 0, len, place, owner: 0 }));
        Err(error)
    }

    pub(crate) fn change_tier(&self, change: TierChange) -> Result<()> {
        let number = match change {
            TierChange::Set(tier) => tier.number,
            TierChange::Remove(number) => number,
        };
        let index = usize::from(number).wrapping_sub(1);
        if index >= MAX_TIERS {
            return Err(unknown(number));
        }
        let mut superblock = self.superblock.lock();
        let before = superblock.raw.tiers[index];
        let row = match change {
            TierChange::Remove(_) if before.state == 0 => return Err(unknown(number)),
            TierChange::Remove(_) => RawTier::default(),
            TierChange::Set(tier) => row_of(&tier),
        };
        let raw = &superblock.raw;
        let is_new = before.state == 0;
        let others = raw.tiers.iter().enumerate().filter(|(other, _)| *other != index);
        if row.state != 0 && others.into_iter().any(|(_, other)| other.state != 0 && other.uuid == row.uuid) {
            return Err(
                Error::new(Kind::Exists).object(format!("tier {number}: its device is another tier's"))
            );
        }
        if row.state != 0 && (row.blocks < MIN_BLOCKS || row.blocks > place::BLOCK_MASK) {
            return Err(Error::new(Kind::InvalidInput)
                .object(format!("tier {number} of {}", size::exact(row.blocks.saturating_mul(BLOCK_SIZE))))
                .advice("a tier takes at least 1 MiB, and all of a file system 256 TiB at most"));
        }
        let all: u64 = raw.tiers.iter().map(|tier| tier.blocks).sum();
        if is_new && row.state != 0 && all.saturating_add(row.blocks) > MAX_TIER_BLOCKS {
            return Err(Error::new(Kind::InvalidInput)
                .object(format!("tier {number} of {}", size::exact(row.blocks.saturating_mul(BLOCK_SIZE))))
                .advice("all tiers of a file system have 256 TiB at most"));
        }
        if is_new && row.state != 0 {
            has_memory_for(number, row.blocks)?;
        }
        if !is_new && row.state != 0 && row.blocks != before.blocks {
            return Err(Error::new(Kind::InvalidInput)
                .object(format!("tier {number}: {} blocks instead of {}", row.blocks, before.blocks)));
        }
        let mut space = self.tiers.space.write();
        if row.state == 0 {
            let limbo = self.tiers.limbo.lock();
            let used = space.get(&number).is_some_and(|alloc| alloc.free_blocks() < alloc.blocks() - 2);
            if used || limbo.freed.iter().any(|(_, run)| run.tier == number) {
                return Err(Error::new(Kind::Busy)
                    .object(format!("tier {number}"))
                    .advice("drain it first: there are blocks of files on it"));
            }
        }
        superblock.raw.tiers[index] = row;
        if row.state == 0 {
            tier_paths::forget(&mut superblock.raw.tier_paths, number);
        }
        superblock.raw.features_incompatible |= incompatible::TIERS;
        superblock.write(&*self.pm)?;
        match (is_new, row.state) {
            (true, _) => {
                let alloc = Allocator::new(row.blocks, 1, 0);
                alloc.free(Run { start: Block(1), len: row.blocks - 2 });
                space.insert(number, alloc);
            }
            (false, 0) => drop(space.remove(&number)),
            (false, _) => {}
        }
        *self.reach.write() = Reach::of(self.pm.len() / BLOCK_SIZE, &superblock.raw);
        Ok(())
    }
}

/// Whether a map of the free blocks of a tier could be allocated. Nothing of it is kept, or touched.
fn has_memory_for(number: u8, blocks: u64) -> Result<()> {
    let words = usize::try_from(blocks.div_ceil(64)).unwrap_or(usize::MAX);
    Vec::<u64>::new().try_reserve_exact(words).map_err(|_| {
        Error::new(Kind::NoSpace)
            .object(format!(
                "tier {number} of {}: {} of DRAM for a map of what is free",
                size::exact(blocks.saturating_mul(BLOCK_SIZE)),
                size::print((words as u64).saturating_mul(8))
            ))
            .advice("use a machine with more memory")
    })
}

/// The tiers that a superblock names.
pub(crate) fn listed(raw: &RawSuperblock) -> Vec<Tier> {
    let rows = (1..).zip(&raw.tiers).filter(|(_, row)| row.state != 0);
    rows.map(|(number, row)| tier_of(number, row)).collect()
}

fn tier_of(number: u8, row: &RawTier) -> Tier {
    let state = if row.state == tier_state::DRAINING { TierState::Draining } else { TierState::Active };
    let RawTier { uuid, blocks, token, pending, rank, .. } = *row;
    Tier { number, uuid, blocks, token, pending, rank, state }
}

fn row_of(tier: &Tier) -> RawTier {
    let state = match tier.state {
        TierState::Active => tier_state::ACTIVE,
        TierState::Draining => tier_state::DRAINING,
    };
    let Tier { uuid, blocks, token, pending, rank, .. } = *tier;
    RawTier { uuid, blocks, token, pending, state, rank, ..RawTier::default() }
}
