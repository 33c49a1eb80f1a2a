//! The inode table: a file of inodes, which grows and never shrinks, and the inodes that are in DRAM.
//!
//! Which numbers are free is known in DRAM only, from the walk at mount: an inode without links is free. How inodes come
//! to DRAM and go is in `inodes`; what all of them have there is in `core`. Each layout reads and writes the bytes of
//! its own.

pub mod core;
pub mod inodes;

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use nacre_engine::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use nacre_engine::sync::{Mutex, MutexGuard, RwLock};
use nacre_engine::{BLOCK_SIZE, Block, Error, InodeHasher, Kind, Resource, Result};

use crate::eviction::Eviction;
use crate::held::Holdable;
use crate::tree::Tree;

/// Bytes of an inode.
pub const INODE_SIZE: u64 = 256;
/// Inodes in a block of the table.
pub const BLOCK_INODES: u64 = BLOCK_SIZE / INODE_SIZE;
/// Blocks by which the table grows, where free space allows it.
pub const GROWTH_BLOCKS: u64 = 16;
/// A shard with room for fewer inodes keeps it.
const SPARSE: usize = 64;
/// Parts of the map of inodes in DRAM, so that threads seldom meet.
pub const SHARDS: usize = 64;

/// An inode of a table, in DRAM.
pub trait TableInode: Holdable + Send + Sync + 'static {
    /// Its number.
    fn number(&self) -> u64 {
        self.id().number
    }

    /// Its generation.
    fn generation(&self) -> u32 {
        self.id().generation
    }

    /// Names that refer to it.
    fn links(&self) -> u32;

    /// Its blocks must stay where they are.
    fn is_pinned(&self) -> bool;

    /// It was used since the last sweep for inodes to evict.
    fn used(&self) -> &AtomicBool;

    /// Grows with every change of it.
    fn change(&self) -> &AtomicU64;

    /// DRAM that it takes, an estimate.
    fn bytes(&self) -> u64;

    /// It was used: the next sweep leaves it.
    #[inline]
    fn note_use(&self) {
        // Written once between two sweeps, so that threads share the line.
        if !self.used().load(Ordering::Relaxed) {
            self.used().store(true, Ordering::Relaxed);
        }
    }
}

/// The state that changes when the table grows or inodes are made.
struct State {
    root: Tree,
    /// Numbers that can be given out, the next one last.
    free: Vec<u64>,
    /// The numbers from here on are of blocks of zeros that the table has grown by since it was mounted.
    grown_from: u64,
}

/// A number that a new inode may have.
#[derive(Debug, Clone, Copy)]
pub struct Free {
    /// It.
    pub number: u64,
    /// The content of its place in the table.
    pub before: Before,
}

/// The content of a free place of the table.
#[derive(Debug, Clone, Copy)]
pub enum Before {
    /// Zeros: no inode was ever there.
    Nothing,
    /// An inode that was removed during this mount.
    Inode {
        /// Its generation.
        generation: u32,
        /// Of a layout with several slots for the state of an inode, the one that it is in.
        slot: u8,
    },
    /// Only the media knows.
    Unknown,
}

/// The table that is to grow, which is locked meanwhile.
pub struct Full {
    /// The tree of its blocks.
    pub root: Tree,
    /// The blocks that it has.
    pub blocks: u64,
    /// The blocks that it is to get, if there are as many.
    pub want: u64,
}

/// The tree and the new blocks of a table that has grown.
pub struct Grown {
    /// The tree of all its blocks.
    pub root: Tree,
    /// The new ones.
    pub blocks: Vec<u64>,
}

/// Inodes in DRAM.
pub struct Loaded<I> {
    /// By their numbers.
    pub inodes: HashMap<u64, Arc<I>, BuildHasherDefault<InodeHasher>>,
    /// Those that are kept (parked) without a hold: they are not reclaimed.
    pub parked: HashSet<u64>,
}

impl<I> Loaded<I> {
    fn new() -> Loaded<I> {
        Loaded { inodes: HashMap::default(), parked: HashSet::new() }
    }

    /// Gives room back that most of the inodes left.
    fn shrink(&mut self) {
        let Loaded { inodes, parked } = self;
        if inodes.capacity() > SPARSE && inodes.len() < inodes.capacity() / 8 {
            inodes.shrink_to(2 * inodes.len());
        }
        if parked.capacity() > SPARSE && parked.len() < parked.capacity() / 8 {
            parked.shrink_to(2 * parked.len());
        }
    }
}

/// The orphan list: inodes without links and holders that are not reclaimed yet. Bounded by the number of inodes.
#[derive(Default)]
pub struct Graveyard {
    numbers: Mutex<Vec<u64>>,
    /// There are numbers; looked at without the lock.
    filled: AtomicBool,
}

impl Graveyard {
    /// Notes an inode, which the next change of names reclaims.
    pub fn bury(&self, number: u64) {
        let mut numbers = self.numbers.lock();
        numbers.push(number);
        self.filled.store(true, Ordering::Release);
    }

    /// Those that were noted since it was last called.
    pub fn take(&self) -> Vec<u64> {
        if !self.filled.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut numbers = self.numbers.lock();
        self.filled.store(false, Ordering::Release);
        std::mem::take(&mut numbers)
    }
}

/// The inode table of a mounted file system.
pub struct Table<I> {
    /// The table's blocks.
    blocks: RwLock<Vec<u64>>,
    state: Mutex<State>,
    /// Numbers that are free again. Apart from the rest, because growing the table may free inodes to find space.
    freed: Mutex<Vec<Free>>,
    /// Changed under the lock of `freed`, read without it.
    in_use: AtomicU64,
    shards: Vec<RwLock<Loaded<I>>>,
    /// How many of them have their state in DRAM.
    pub eviction: Eviction,
    /// The greatest change counter of inodes that left DRAM: counters never go back.
    pub dropped_changes: AtomicU64,
    /// Inodes without names that wait to be reclaimed.
    pub graveyard: Arc<Graveyard>,
    /// There are never more inodes than this.
    limit: u64,
}

impl<I> Table<I> {
    /// The table in these blocks, which `root` leads to; none of its inodes is in DRAM.
    pub fn new(
        root: Tree,
        blocks: Vec<u64>,
        mut free: Vec<u64>,
        device_blocks: u64,
        inode_cache: u64,
    ) -> Table<I> {
        free.reverse();
        let count = blocks.len() as u64 * BLOCK_INODES;
        let in_use = count - free.len() as u64 - 1;
        let eviction = Eviction::new(inode_cache);
        eviction.none_is_loaded(in_use);
        Table {
            blocks: RwLock::new(blocks),
            state: Mutex::new(State { root, free, grown_from: count }),
            freed: Mutex::default(),
            in_use: AtomicU64::new(in_use),
            shards: (0..SHARDS).map(|_| RwLock::new(Loaded::new())).collect(),
            eviction,
            dropped_changes: AtomicU64::new(0),
            graveyard: Arc::default(),
            // As many as fit the device; numbers have 32 bits where others see them.
            limit: (device_blocks * BLOCK_INODES).min(u64::from(u32::MAX)),
        }
    }

    /// Where an inode is on media.
    pub fn address(&self, number: u64) -> Result<u64> {
        let blocks = self.blocks.read();
        let block = blocks.get((number / BLOCK_INODES) as usize).filter(|_| number != 0);
        let block = block.ok_or(Error::new(Kind::Stale))?;
        Ok(Block(*block).offset() + number % BLOCK_INODES * INODE_SIZE)
    }

    /// Numbers are below this.
    pub fn numbers(&self) -> u64 {
        self.blocks.read().len() as u64 * BLOCK_INODES
    }

    /// The part of the map that an inode is in.
    pub fn shard(&self, number: u64) -> &RwLock<Loaded<I>> {
        &self.shards[number as usize % SHARDS]
    }

    /// Calls `visit` with each inode that is in DRAM.
    pub fn for_each_loaded(&self, mut visit: impl FnMut(&Arc<I>)) {
        for shard in &self.shards {
            shard.read().inodes.values().for_each(&mut visit);
        }
    }

    /// How many inodes are in use.
    pub fn in_use(&self) -> u64 {
        self.in_use.load(Ordering::Relaxed)
    }

    /// The most inodes that there can be.
    pub fn limit(&self) -> u64 {
        self.limit.max(GROWTH_BLOCKS * BLOCK_INODES)
    }

    /// A number for a new inode. When none is free, `grow` commits a larger table.
    pub fn allocate(&self, grow: impl FnOnce(&Full) -> Result<Grown>) -> Result<Free> {
        // Counted under the lock that is needed anyway: a locked instruction fewer.
        let freed = {
            let mut freed = self.freed.lock();
            self.in_use.store(self.in_use() + 1, Ordering::Relaxed);
            freed.pop()
        };
        if let Some(free) = freed {
            return Ok(free);
        }
        self.allocate_unused(grow).inspect_err(|_| self.count_one_fewer(&self.freed.lock()))
    }

    /// A number that was not in use since the mount.
    fn allocate_unused(&self, grow: impl FnOnce(&Full) -> Result<Grown>) -> Result<Free> {
        let mut state = self.state.lock();
        if state.free.is_empty() {
            let old = self.blocks.read().len() as u64;
            let room = self.limit().saturating_sub(old * BLOCK_INODES) / BLOCK_INODES;
            let want = GROWTH_BLOCKS.min(room);
            if want == 0 {
                return Err(Error::no_space(Resource::Inodes, 0).object("the inode table"));
            }
            let grown = grow(&Full { root: state.root, blocks: old, want })?;
            let end = old + grown.blocks.len() as u64;
            state.root = grown.root;
            self.blocks.write().extend(grown.blocks);
            state.free.extend((old * BLOCK_INODES..end * BLOCK_INODES).rev());
        }
        let number = state.free.pop().ok_or_else(|| Error::no_space(Resource::Inodes, 0))?;
        let before = if number < state.grown_from { Before::Unknown } else { Before::Nothing };
        Ok(Free { number, before })
    }

    /// A number is free again.
    pub fn free(&self, free: Free) {
        let mut freed = self.freed.lock();
        freed.push(free);
        self.count_one_fewer(&freed);
    }

    /// One fewer is in use.
    fn count_one_fewer(&self, _lock: &MutexGuard<'_, Vec<Free>>) {
        self.in_use.store(self.in_use() - 1, Ordering::Relaxed);
    }

    /// Bytes of DRAM that it takes, without the inodes.
    pub fn index_bytes(&self) -> u64 {
        let words = self.blocks.read().capacity() + self.state.lock().free.capacity();
        (8 * words + size_of::<Free>() * self.freed.lock().capacity()) as u64
    }
}

#[cfg(test)]
mod tests {
    use nacre_engine::{Error, Kind};

    use super::{Before, Free, Full, Grown, Table};
    use crate::tree::Tree;

    #[test]
    fn a_number_that_could_not_be_had_is_not_in_use() {
        // One block of 16, of which 0 is the table's own.
        let table = Table::<()>::new(Tree::default(), vec![20], vec![3, 4], 4096, 100);
        let fails = |_: &Full| Err(Error::new(Kind::Media));
        assert_eq!(table.in_use(), 13);
        let numbers = [(); 2].map(|()| table.allocate(fails).unwrap().number);
        assert_eq!((numbers, table.in_use()), ([3, 4], 15));
        assert_eq!(table.allocate(fails).unwrap_err().kind(), Kind::Media);
        assert_eq!(table.in_use(), 15);
        table.free(Free { number: 4, before: Before::Nothing });
        assert_eq!(table.in_use(), 14);
        assert_eq!((table.allocate(fails).unwrap().number, table.in_use()), (4, 15));
        let grow = |full: &Full| {
            assert_eq!((full.blocks, full.want), (1, 16));
            Ok(Grown { root: full.root, blocks: vec![30] })
        };
        assert_eq!((table.allocate(grow).unwrap().number, table.in_use()), (16, 16));
    }
}
