//! Free blocks of tiers in DRAM, and the moment when a freed block may be used again.
//!
//! The first and the last block of a tier belong to its own superblock.
//!
//! A layout reads no blocks of files on tiers. A reader above it may find a block in the index and read it while its
//! file frees it. So freed blocks wait in limbo until all reads that began before have ended.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicU64;

use nacre_engine::sync::atomic::{AtomicUsize, Ordering};
use nacre_engine::sync::{Mutex, RwLock};
use nacre_engine::{
    BLOCK_SIZE, Block, Error, FreeRun, Kind, Resource, Result, Tier, TierRun, TierSpace, TierState, size,
};

use crate::alloc::{Allocator, Purpose, Run, Runs};

/// The space of all tiers of a mounted file system.
#[derive(Default)]
pub struct TierSpaces {
    /// The free blocks, by the number of the tier.
    space: RwLock<BTreeMap<u8, Allocator>>,
    limbo: Mutex<Limbo>,
    /// Which of the tiers of one rank is next.
    turn: AtomicUsize,
    /// Those that do not take blocks now, by number.
    unusable: AtomicU64,
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

impl TierSpaces {
    /// Tiers of so many blocks, by number, on which nothing is free yet.
    pub fn new(tiers: impl Iterator<Item = (u8, u64)> + Clone) -> Result<TierSpaces> {
        // Also for an impossible size: the superblock may be another's.
        tiers.clone().try_for_each(|(number, blocks)| has_memory_for(number, blocks))?;
        let spaces = TierSpaces::default();
        *spaces.space.write() =
            tiers.map(|(number, blocks)| (number, Allocator::new(blocks, 1, 0))).collect();
        Ok(spaces)
    }

    /// Calls `act` with the free blocks of a tier, if there is such a tier.
    pub fn with<R>(&self, tier: u8, act: impl FnOnce(&Allocator) -> R) -> Option<R> {
        self.space.read().get(&tier).map(act)
    }

    /// These blocks are free from now on.
    pub fn put_back(&self, run: TierRun) {
        self.with(run.tier, |alloc| alloc.free(Run { start: run.start, len: run.len }));
    }

    /// Frees blocks, as soon as no read can be using them; gives those that are free now.
    #[must_use]
    pub fn free(&self, run: TierRun) -> Vec<TierRun> {
        let mut limbo = self.limbo.lock();
        let at = limbo.clock;
        limbo.clock += 1;
        limbo.freed.push_back((at, run));
        limbo.settled()
    }

    /// Begins reads; gives their ticket.
    pub fn begin_reads(&self) -> u64 {
        let mut limbo = self.limbo.lock();
        let now = limbo.clock;
        *limbo.readers.entry(now).or_default() += 1;
        now
    }

    /// Ends them; gives the blocks that are free now.
    #[must_use]
    pub fn end_reads(&self, ticket: u64) -> Vec<TierRun> {
        let mut limbo = self.limbo.lock();
        if let Some(count) = limbo.readers.get_mut(&ticket) {
            *count -= 1;
            if *count == 0 {
                limbo.readers.remove(&ticket);
            }
        }
        limbo.settled()
    }

    /// Takes blocks of a tier.
    pub fn allocate(&self, tier: u8, goal: Option<Block>, blocks: u64) -> Result<Vec<TierRun>> {
        let mut runs = Runs::new();
        let taken = self.with(tier, |alloc| alloc.allocate_near(goal, blocks, Purpose::Data, &mut runs));
        taken.ok_or_else(|| unknown(tier))?.map_err(|_| Error::no_space(Resource::Tier(tier), blocks))?;
        Ok(runs.into_iter().map(|Run { start, len }| TierRun { tier, start, len }).collect())
    }

    /// Takes the next free run.
    pub fn take_free(&self, tier: u8, from: Block, least: u64, most: u64) -> Result<FreeRun> {
        let found = self.with(tier, |alloc| alloc.take_next(from, least, most));
        let found = found.ok_or_else(|| unknown(tier))?;
        let run = found.run.map(|Run { start, len }| TierRun { tier, start, len });
        Ok(FreeRun { run, next: found.next, is_within: found.is_within })
    }

    /// The space of a tier whose free blocks are known.
    pub fn space(&self, tier: u8) -> Result<TierSpace> {
        let (all, free) =
            self.with(tier, |alloc| (alloc.blocks(), alloc.free_blocks())).ok_or_else(|| unknown(tier))?;
        // Blocks that wait for readers will be free.
        let limbo = self.limbo.lock();
        let waiting: u64 =
            limbo.freed.iter().filter(|(_, run)| run.tier == tier).map(|(_, run)| run.len).sum();
        Ok(TierSpace { blocks: all - 2, free: free + waiting, is_counted: true, leaked: 0 })
    }

    /// Free runs of all tiers, in order.
    pub fn for_each_free_run(&self, mut visit: impl FnMut(TierRun)) {
        for (&tier, alloc) in &*self.space.read() {
            alloc.for_each_free_run(|Run { start, len }| visit(TierRun { tier, start, len }));
        }
    }

    /// Those of the tiers of a file system that new blocks may be on, the fastest first. Tiers of one rank take turns,
    /// but blocks go where those before them in the file are.
    pub fn takers(&self, mut tiers: Vec<Tier>, before: Option<u8>) -> Vec<u8> {
        tiers.retain(|tier| tier.state == TierState::Active && self.is_usable(tier.number));
        tiers.sort_by_key(|tier| (tier.rank, tier.number));
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        for alike in tiers.chunk_by_mut(|one, other| one.rank == other.rank) {
            let first = alike.iter().position(|tier| Some(tier.number) == before);
            alike.rotate_left(first.unwrap_or(turn % alike.len()));
        }
        tiers.into_iter().map(|tier| tier.number).collect()
    }

    /// There is a new tier, all of it free except the blocks of its superblock.
    pub fn add(&self, tier: u8, blocks: u64) {
        let alloc = Allocator::new(blocks, 1, 0);
        alloc.free(Run { start: Block(1), len: blocks - 2 });
        self.space.write().insert(tier, alloc);
    }

    /// Takes a tier out if nothing on it is in use, and `is_gone` says so durably.
    pub fn remove(&self, tier: u8, is_gone: impl FnOnce() -> Result<()>) -> Result<()> {
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

    /// Sets the tiers that take no blocks now.
    pub fn set_unusable(&self, tiers: &[u8]) {
        let bits = tiers.iter().fold(0, |bits, tier| bits | 1 << tier);
        self.unusable.store(bits, Ordering::Relaxed);
    }

    fn is_usable(&self, tier: u8) -> bool {
        self.unusable.load(Ordering::Relaxed) & 1 << tier == 0
    }

    /// DRAM that the maps of free blocks take.
    pub fn index_bytes(&self) -> u64 {
        self.space.read().values().map(Allocator::index_bytes).sum()
    }

    /// A block was freed that was free.
    pub fn contradicts_itself(&self) -> bool {
        self.space.read().values().any(Allocator::contradicts_itself)
    }
}

/// The error for a tier that there is not.
pub fn unknown(tier: u8) -> Error {
    Error::new(Kind::InvalidInput).object(format!("tier {tier}")).advice("there is no such tier")
}

/// Whether a map of the free blocks of a tier could be allocated. Nothing of it is kept, or touched.
pub fn has_memory_for(number: u8, blocks: u64) -> Result<()> {
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
