//! The state of a mounted file system, kept apart from the state of its inodes.

use std::sync::Arc;

use nacre_engine::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use nacre_engine::sync::{Mutex, RwLock};
use nacre_engine::{Attr, Block, Error, InodeId, Kind, Result, TierReader, TierRun, TimeRange};
use nacre_layout_parts::versions::Versions;
use nacre_media::{Flushed, Pm};
use zerocopy::IntoBytes;

use crate::alloc::{Allocator, Run};
use crate::blockmap::Piece;
use crate::format::{INODE_CACHED_OFFSET, RawCached, inode_seed, place};
use crate::inode::{Body, Graveyard, Inode, Node};
use crate::load::{LoadContext, load_inode};
use crate::places::Reach;
use crate::scan::{Ending, LogSource, read_inode};
use crate::superblock::Superblock;
use crate::table::InodeTable;
use crate::tiers::Tiers;

/// Numbers of transactions: operations that span two logs.
pub(crate) struct Transactions {
    pub(crate) next: AtomicU64,
    /// All smaller ones are committed in both their logs, durably so in the superblock.
    pub(crate) settled: AtomicU64,
    /// Held shared from taking a number to the fence, and exclusively to settle.
    pub(crate) gate: RwLock<()>,
}

/// The state of inodes that have left, and is not freed yet.
#[derive(Default)]
pub(crate) struct Evicted {
    pub(crate) inodes: Vec<Arc<Inode>>,
    pub(crate) bytes: u64,
}

/// The state that all operations share.
pub(crate) struct Shared<P> {
    pub(crate) pm: Arc<P>,
    pub(crate) seed: u32,
    /// The times that the format holds.
    pub(crate) times: TimeRange,
    pub(crate) hash_seed: u64,
    pub(crate) superblock: Mutex<Superblock>,
    pub(crate) alloc: Allocator,
    pub(crate) tiers: Tiers,
    /// The versions of blocks of files, for those that are copied meanwhile.
    pub(crate) versions: Versions,
    pub(crate) reach: RwLock<Reach>,
    /// The reader of images of logs.
    pub(crate) image_reader: RwLock<Option<Arc<dyn TierReader>>>,
    pub(crate) inodes: InodeTable,
    pub(crate) graveyard: Arc<Graveyard>,
    pub(crate) transactions: Transactions,
    /// Directories that move to another directory do so one at a time, so that no cycle can arise.
    pub(crate) move_directories: Mutex<()>,
    /// Held by a write on a full device: one at a time borrows from the reserve.
    pub(crate) overwriting: Mutex<()>,
    pub(crate) read_only: bool,
    /// Inodes to be freed after their images are read. Bounded by the number of inodes.
    pub(crate) unread: Mutex<Vec<u64>>,
    /// Truncated files with blocks still to be freed. Bounded by the number of files.
    pub(crate) trims: Mutex<Vec<Arc<Inode>>>,
    /// The background thread is freeing, and holds no lock that it waits for.
    pub(crate) freeing: AtomicBool,
    /// A background thread frees large inodes and truncated ranges.
    pub(crate) background: bool,
    /// There is a background thread, at least for inodes that leave DRAM.
    pub(crate) has_thread: bool,
    pub(crate) evicted: Mutex<Evicted>,
    pub(crate) stopping: AtomicBool,
    /// First block that files may use.
    pub(crate) first_data_block: u64,
    pub(crate) device_blocks: u64,
}

impl<P: Pm> Shared<P> {
    /// Holds an inode; reads it from media when it is not in DRAM.
    #[inline]
    pub(crate) fn hold(&self, number: u64) -> Result<Node> {
        let slot = self.inodes.slot(number)?;
        if let Some(inode) = &*slot.read() {
            return self.hold_loaded(inode);
        }
        self.hold_from_media(number)
    }

    /// The attributes of an inode that has a name.
    #[inline]
    pub(crate) fn attr_of(&self, number: u64) -> Result<Attr> {
        if let Some(inode) = &*self.inodes.slot(number)?.read() {
            inode.note_use();
            return Ok(inode.attr());
        }
        Ok(self.hold_from_media(number)?.inode.attr())
    }

    fn hold_from_media(&self, number: u64) -> Result<Node> {
        let slot = self.inodes.slot(number)?;
        let mut slot = slot.write();
        if let Some(inode) = &*slot {
            return self.hold_loaded(inode);
        }
        if !self.inodes.is_readable(number) {
            return Err(Error::new(Kind::Stale));
        }
        let inode = Arc::new(self.load(number)?);
        inode.holds.fetch_add(1, Ordering::Relaxed);
        *slot = Some(Arc::clone(&inode));
        drop(slot);
        if self.inodes.eviction.one_loaded(self.inodes.in_use()) {
            self.graveyard.nudge();
        }
        Ok(Node::from_held(inode))
    }

    /// One more inode was made.
    #[inline]
    pub(crate) fn note_made(&self) {
        if self.inodes.eviction.one_made(self.inodes.in_use()) {
            self.graveyard.nudge();
        }
    }

    /// Holds an inode that is in its slot. Under the slot's lock.
    #[inline]
    fn hold_loaded(&self, inode: &Arc<Inode>) -> Result<Node> {
        let others = inode.holds.fetch_add(1, Ordering::Relaxed);
        inode.note_use();
        let node = Node::from_held(Arc::clone(inode));
        // Without names and holders it only waits to be reclaimed.
        let is_gone = others == 0 && inode.links() == 0 && !self.inodes.is_parked(inode.number);
        if is_gone { Err(Error::new(Kind::Stale)) } else { Ok(node) }
    }

    /// Holds the inode with this name.
    pub(crate) fn hold_id(&self, id: InodeId) -> Result<Node> {
        let node = self.hold(id.number)?;
        if node.inode.generation != id.generation || id.volume != 0 {
            return Err(Error::new(Kind::Stale));
        }
        Ok(node)
    }

    /// Reads an inode from media.
    pub(crate) fn load(&self, number: u64) -> Result<Inode> {
        let address = self.inodes.address(number)?;
        let raw = read_inode(&*self.pm, address)?;
        let seed = inode_seed(self.seed, number, raw.generation);
        if !raw.is_valid(seed) || !raw.cached_is_valid(seed) {
            return Err(Error::corrupt(format!("inode {number}: header")));
        }
        let context = LoadContext {
            hash_seed: self.hash_seed,
            times: self.times,
            graveyard: &self.graveyard,
            reach: &self.reach.read(),
            ending: Ending::Clean,
            drop_last: false,
        };
        let source = LogSource { number, generation: raw.generation, seed, address };
        Ok(load_inode(&*self.pm, source, &raw, &context)?.inode)
    }

    /// Refuses changes on a read-only mount.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.read_only { Err(Error::new(Kind::ReadOnly)) } else { Ok(()) }
    }

    pub(crate) fn free_runs(&self, runs: &[Run]) {
        for &run in runs {
            self.alloc.free(run);
        }
    }

    /// Frees the blocks of pieces that left a block map.
    pub(crate) fn free_piece(&self, piece: Piece) {
        let (start, len) = (Block(piece.place & place::BLOCK_MASK), piece.len);
        match place::tier(piece.place) {
            0 => self.alloc.free(Run { start, len }),
            tier => self.tiers.free(TierRun { tier, start, len }),
        }
    }

    /// Writes the cached fields of an inode. The caller fences.
    pub(crate) fn write_cached(&self, inode: &Inode) -> Result<Flushed> {
        let parent = match &inode.body {
            Body::Directory(directory) => directory.parent.load(Ordering::Relaxed),
            _ => 0,
        };
        let links = if inode.is_directory() { 2 } else { inode.links() };
        write_cached_fields(&*self.pm, inode.address, inode.seed, links, parent)
    }

    /// Makes every transaction so far settled: a later reader of a log need not look for its other half.
    pub(crate) fn settle(&self) -> Result<()> {
        let _gate = self.transactions.gate.write();
        let next = self.transactions.next.load(Ordering::Relaxed);
        if self.transactions.settled.load(Ordering::Relaxed) < next {
            let mut superblock = self.superblock.lock();
            superblock.raw.settled_transactions = next;
            superblock.write(&*self.pm)?;
            self.transactions.settled.store(next, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Writes the cached fields of the inode at `address`. The caller fences.
#[track_caller]
pub(crate) fn write_cached_fields(
    pm: &impl Pm,
    address: u64,
    seed: u32,
    links: u32,
    parent: u64,
) -> Result<Flushed> {
    let cached = RawCached::sealed(links, parent, seed);
    let stored = pm.store(address + INODE_CACHED_OFFSET, cached.as_bytes())?;
    Ok(pm.flush(stored))
}
