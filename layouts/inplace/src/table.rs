//! The inode table: a file of inodes, which grows and never shrinks, and the inodes that are in DRAM.
//!
//! Which numbers are free is known in DRAM only, from the walk at mount: an inode without links is free. The table's
//! own inode is in a region of its own, so that growing it is a transaction like any other.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use nacre_engine::sync::atomic::{AtomicU64, Ordering};
use nacre_engine::sync::{Mutex, RwLock};
use nacre_engine::{BLOCK_SIZE, Block, Error, Kind, Result};
use nacre_layout_parts::eviction::Eviction;
use nacre_media::Pm;
use zerocopy::{FromZeros, IntoBytes};

use crate::alloc::{Purpose, Runs};
use crate::blockmap::Edit;
use crate::commit::{Transaction, join};
use crate::format::{BLOCK_INODES, GROWTH_BLOCKS, INODE_SIZE, RawInode, region, word};
use crate::fs::Shared;
use crate::inode::Inode;
use crate::seeded::Mistake;
use crate::superblock::Superblock;

/// Parts of the map of inodes in DRAM, so that threads seldom meet.
pub(crate) const SHARDS: usize = 64;

/// The state that changes when the table grows or inodes are made.
struct State {
    root: u64,
    /// Numbers that can be given out, the next one last.
    free: Vec<u64>,
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

impl<P: Pm> Shared<P> {
    /// A number for a new inode; the table grows when none is free.
    pub(crate) fn allocate_number(&self) -> Result<u64> {
        let mut state = self.table.state.lock();
        let freed = self.table.freed.lock().pop();
        if let Some(number) = freed {
            self.table.in_use.fetch_add(1, Ordering::Relaxed);
            return Ok(number);
        }
        if state.free.is_empty() {
            self.grow_table(&mut state)?;
        }
        let number = state.free.pop().ok_or(Error::new(Kind::NoSpace))?;
        self.table.in_use.fetch_add(1, Ordering::Relaxed);
        Ok(number)
    }

    fn grow_table(&self, state: &mut State) -> Result<()> {
        let old = self.table.blocks.read().len() as u64;
        let room = self.table.limit().saturating_sub(old * BLOCK_INODES) / BLOCK_INODES;
        let want = GROWTH_BLOCKS.min(room);
        if want == 0 {
            return Err(Error::new(Kind::NoSpace).object("the inode table"));
        }
        let mut runs = Runs::new();
        // One block will do where there are no more.
        let count = match self.alloc.allocate(want, Purpose::Data, &mut runs) {
            Ok(()) => want,
            Err(_) => self.alloc.allocate(1, Purpose::Data, &mut runs).map(|()| 1)?,
        };
        let mut edit = Edit::new(self, state.root);
        let mut pending = None;
        let mut new = Vec::new();
        let mut at = old;
        let prepared = runs.iter().try_for_each(|run| {
            if !Mistake::TableUnwritten.is_made(&*self.pm) {
                pending = join(pending.take(), self.pm.zero(run.start.offset(), run.len * BLOCK_SIZE)?);
            }
            edit.set(at, run.len, run.start.0)?;
            at += run.len;
            new.extend(run.start.0..run.start.0 + run.len);
            Ok(())
        });
        let mut transaction = Transaction::default();
        let prepared = prepared.and_then(|()| edit.finish(&mut transaction, pending));
        transaction.word(self.table.address + word::SIZE, (old + count) * BLOCK_SIZE);
        transaction.word(self.table.address + word::ROOT, edit.root);
        let result = prepared.and_then(|pending| self.commit(transaction, pending));
        if let Err(error) = result {
            if !self.is_broken() {
                edit.give_up();
                self.free_runs(&runs);
            }
            return Err(error);
        }
        state.root = edit.root;
        self.table.blocks.write().extend(new);
        state.free.extend((old * BLOCK_INODES..(old + count) * BLOCK_INODES).rev());
        Ok(())
    }
}
