//! The inode table: a file of inodes, which grows and never shrinks, and the inodes that are in DRAM.
//!
//! Which numbers are free is known in DRAM only, from the walk at mount: an inode without links is free. The table's
//! own inode is in a region of its own, so that growing it is a transaction like any other.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use nacre_engine::sync::atomic::{AtomicU64, Ordering};
use nacre_engine::sync::{Mutex, RwLock};
use nacre_engine::{Block, Error, Kind, Resource, Result};
use nacre_layout_parts::eviction::Eviction;
use nacre_media::Pm;
use zerocopy::{FromZeros, IntoBytes};

use crate::format::{BLOCK_INODES, GROWTH_BLOCKS, INODE_SIZE, RawInode, region};
use crate::inode::Inode;
use crate::superblock::Superblock;

/// Parts of the map of inodes in DRAM, so that threads seldom meet.
pub(crate) const SHARDS: usize = 64;

/// The state that changes when the table grows or inodes are made.
struct State {
    root: u64,
    /// Numbers that can be given out, the next one last.
    free: Vec<u64>,
}

/// The table that is to grow, which is locked meanwhile.
pub(crate) struct Full {
    /// Where its inode is.
    pub(crate) address: u64,
    pub(crate) root: u64,
    /// The blocks that it has.
    pub(crate) blocks: u64,
    /// The blocks that it is to get, if there are as many.
    pub(crate) want: u64,
}

/// The root and the new blocks of a table that has grown.
pub(crate) struct Grown {
    pub(crate) root: u64,
    pub(crate) blocks: Vec<u64>,
}

type Shard = RwLock<Loaded>;

/// Inodes in DRAM.
#[derive(Default)]
pub(crate) struct Loaded {
    pub(crate) inodes: HashMap<u64, Arc<Inode>>,
    /// Those that are kept (parked) without a hold: they are not reclaimed.
    pub(crate) parked: HashSet<u64>,
}

/// The inode table of a mounted file system.
pub(crate) struct Table {
    /// Where the table's inode is.
    address: u64,
    /// The table's blocks.
    blocks: RwLock<Vec<u64>>,
    state: Mutex<State>,
    /// Numbers that are free again. Apart from the rest, because growing the table may free inodes to find space.
    freed: Mutex<Vec<u64>>,
    in_use: AtomicU64,
    shards: Vec<Shard>,
    /// How many of them have their state in DRAM.
    pub(crate) eviction: Eviction,
    /// The greatest change counter of inodes that left DRAM: counters never go back.
    pub(crate) dropped_changes: AtomicU64,
    /// There are never more inodes than this.
    limit: u64,
}

/// Where the inode of the table is.
pub(crate) fn table_address(superblock: &Superblock) -> Result<u64> {
    Ok(Block(superblock.region(region::INODE_TABLE)?.start).offset())
}

/// Reads the inode at `address`, which may be anything.
pub(crate) fn read_inode(pm: &impl Pm, address: u64) -> Result<RawInode> {
    let mut raw = RawInode::new_zeroed();
    pm.read(address, raw.as_mut_bytes())?;
    Ok(raw)
}

impl Table {
    pub(crate) fn new(
        address: u64,
        root: u64,
        blocks: Vec<u64>,
        mut free: Vec<u64>,
        device_blocks: u64,
        inode_cache: u64,
    ) -> Table {
        free.reverse();
        let count = blocks.len() as u64 * BLOCK_INODES;
        let in_use = count - free.len() as u64 - 1;
        let eviction = Eviction::new(inode_cache);
        eviction.none_is_loaded(in_use);
        Table {
            address,
            blocks: RwLock::new(blocks),
            state: Mutex::new(State { root, free }),
            freed: Mutex::default(),
            in_use: AtomicU64::new(in_use),
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            eviction,
            dropped_changes: AtomicU64::new(0),
            // As many as fit the device; numbers have 32 bits where others see them.
            limit: (device_blocks * BLOCK_INODES).min(u64::from(u32::MAX)),
        }
    }

    /// Where an inode is on media.
    pub(crate) fn address(&self, number: u64) -> Result<u64> {
        let blocks = self.blocks.read();
        let block = blocks.get((number / BLOCK_INODES) as usize).filter(|_| number != 0);
        let block = block.ok_or(Error::new(Kind::Stale))?;
        Ok(Block(*block).offset() + number % BLOCK_INODES * INODE_SIZE)
    }

    /// Numbers are below this.
    pub(crate) fn numbers(&self) -> u64 {
        self.blocks.read().len() as u64 * BLOCK_INODES
    }

    pub(crate) fn shard(&self, number: u64) -> &Shard {
        &self.shards[number as usize % SHARDS]
    }

    /// Calls `visit` with each inode that is in DRAM.
    pub(crate) fn for_each_loaded(&self, mut visit: impl FnMut(&Arc<Inode>)) {
        for shard in &self.shards {
            shard.read().inodes.values().for_each(&mut visit);
        }
    }

    pub(crate) fn in_use(&self) -> u64 {
        self.in_use.load(Ordering::Relaxed)
    }

    /// The most inodes that there can be.
    pub(crate) fn limit(&self) -> u64 {
        self.limit.max(GROWTH_BLOCKS * BLOCK_INODES)
    }

    /// A number for a new inode. When none is free, `grow` commits a larger table.
    pub(crate) fn allocate(&self, grow: impl FnOnce(&Full) -> Result<Grown>) -> Result<u64> {
        let mut state = self.state.lock();
        let freed = self.freed.lock().pop();
        if let Some(number) = freed {
            self.in_use.fetch_add(1, Ordering::Relaxed);
            return Ok(number);
        }
        if state.free.is_empty() {
            let old = self.blocks.read().len() as u64;
            let room = self.limit().saturating_sub(old * BLOCK_INODES) / BLOCK_INODES;
            let want = GROWTH_BLOCKS.min(room);
            if want == 0 {
                return Err(Error::no_space(Resource::Inodes, 0).object("the inode table"));
            }
            let grown = grow(&Full { address: self.address, root: state.root, blocks: old, want })?;
            let end = old + grown.blocks.len() as u64;
            state.root = grown.root;
            self.blocks.write().extend(grown.blocks);
            state.free.extend((old * BLOCK_INODES..end * BLOCK_INODES).rev());
        }
        let number = state.free.pop().ok_or_else(|| Error::no_space(Resource::Inodes, 0))?;
        self.in_use.fetch_add(1, Ordering::Relaxed);
        Ok(number)
    }

    /// A number is free again.
    pub(crate) fn free(&self, number: u64) {
        self.freed.lock().push(number);
        self.in_use.fetch_sub(1, Ordering::Relaxed);
    }

    /// Bytes of DRAM that it takes, without the inodes.
    pub(crate) fn index_bytes(&self) -> u64 {
        (self.blocks.read().capacity() + self.state.lock().free.capacity()) as u64 * 8
    }
}
