//! The state of a mounted file system, kept apart from the state of its inodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use nacre_engine::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use nacre_engine::sync::{Mutex, RwLock};
use nacre_engine::{Block, Error, Kind, Result, TierReader, TierRun, TimeRange};
use nacre_layout_parts::table::Table;
use nacre_layout_parts::table::inodes::Inodes;
use nacre_layout_parts::tiers::TierSpaces;
use nacre_layout_parts::tree::Tree;
use nacre_layout_parts::versions::{FileVersions, Versions};
use nacre_media::Pm;

use crate::alloc::{Allocator, Purpose, Run, Runs};
use crate::blockmap::{self, BlockMap, Bounds, block_of, tier_of};
use crate::format::Tag;
use crate::inode::Inode;
use crate::state::{Judge, State};
use crate::superblock::Superblock;
use crate::switches::Switches;

/// The state that all operations share.
pub(crate) struct Shared<P> {
    pub(crate) pm: Arc<P>,
    pub(crate) seed: u32,
    /// The times that the format holds.
    pub(crate) times: TimeRange,
    pub(crate) hash_seed: u64,
    /// The change counter of an inode of which nothing is known: larger than any before the mount.
    pub(crate) first_change: u64,
    pub(crate) superblock: Mutex<Superblock>,
    pub(crate) alloc: Allocator,
    pub(crate) tiers: TierSpaces,
    /// Reads tiers for a scrub.
    pub(crate) tier_reader: RwLock<Option<Arc<dyn TierReader>>>,
    /// Blocks of PM with data of regular files.
    pub(crate) data_on_pm: AtomicU64,
    /// The versions of blocks of files, for those that are copied meanwhile.
    pub(crate) versions: Versions,
    pub(crate) table: Table<Inode>,
    /// The state of the inode table's own inode, and where both copies of that are.
    pub(crate) table_state: Mutex<State>,
    pub(crate) table_addresses: [Option<u64>; 2],
    pub(crate) switches: Switches,
    /// Directories that move to another directory do so one at a time, so that no cycle can arise.
    pub(crate) move_directories: Mutex<()>,
    pub(crate) read_only: bool,
    /// Written blocks are overwritten where they are.
    pub(crate) in_place: bool,
    /// A commit failed on the media: only the next mount can know whether it counts.
    pub(crate) broken: AtomicBool,
    /// Inodes that cannot be read, on a read-only mount of a damaged file system.
    pub(crate) damaged: BTreeSet<u64>,
    pub(crate) bounds: Bounds,
}

/// The blocks of runs that are on PM.
pub(crate) fn on_pm(runs: &[Run]) -> u64 {
    runs.iter().filter(|run| tier_of(run.start.0) == 0).map(|run| run.len).sum()
}

impl<P: Pm> Shared<P> {
    /// A tree of blocks.
    pub(crate) fn map(&self, tree: Tree) -> BlockMap<'_, P> {
        blockmap::map(&*self.pm, tree, self.bounds)
    }

    /// Refuses changes on a read-only mount.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.read_only { Err(Error::new(Kind::ReadOnly)) } else { Ok(()) }
    }

    /// Whether something tagged with this counts.
    pub(crate) fn is_reached(&self, tag: Tag) -> bool {
        self.switches.is_reached(tag)
    }

    /// Calls `read` with the means to read inodes from media.
    pub(crate) fn with_judge<R>(&self, read: impl FnOnce(&Judge<'_, P>) -> R) -> R {
        let is_reached = |tag| self.is_reached(tag);
        read(&Judge { pm: &*self.pm, volume_seed: self.seed, bounds: self.bounds, is_reached: &is_reached })
    }

    /// Gives back blocks of PM, and of tiers by their places.
    pub(crate) fn free_runs(&self, runs: &[Run]) {
        for &Run { start, len } in runs {
            match tier_of(start.0) {
                0 => self.alloc.free(Run { start, len }),
                tier => self.free_on_tier(TierRun { tier, start: block_of(start.0), len }),
            }
        }
    }

    /// Counts blocks of data of a regular file that came to PM, and those that left.
    pub(crate) fn count_data(&self, came: u64, left: u64) {
        // All threads share the count: it is left alone where nothing changes.
        if came != 0 {
            self.data_on_pm.fetch_add(came, Ordering::Relaxed);
        }
        if left != 0 {
            self.data_on_pm.fetch_sub(left, Ordering::Relaxed);
        }
    }

    /// Frees blocks of a tier, as soon as no read can be using them.
    pub(crate) fn free_on_tier(&self, run: TierRun) {
        self.tiers.free(run).into_iter().for_each(|run| self.tiers.put_back(run));
    }

    /// Allocates blocks; when there are none, first frees the blocks that wait to be freed.
    pub(crate) fn allocate(
        &self,
        goal: Option<Block>,
        blocks: u64,
        purpose: Purpose,
        runs: &mut Runs,
    ) -> Result<()> {
        self.with_deferred_frees(|| self.alloc.allocate_near(goal, blocks, purpose, runs))
    }

    /// The versions of a file's blocks: whether they changed while they were copied.
    pub(crate) fn versions_of<'f>(&'f self, inode: &'f Inode) -> FileVersions<'f> {
        self.versions.of(inode.number, &inode.last_change)
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }
}
