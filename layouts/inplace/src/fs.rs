//! The state of a mounted file system, kept apart from the state of its inodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicBool, Ordering};
use nacre_engine::{Error, Kind, Result, TimeRange};
use nacre_layout_parts::table::Table;
use nacre_media::Pm;

use crate::alloc::{Allocator, Run};
use crate::blockmap::{self, BlockMap, Bounds};
use crate::inode::Inode;
use crate::superblock::Superblock;
use crate::transaction::Journal;

/// The state that all operations share.
pub(crate) struct Shared<P> {
    pub(crate) pm: Arc<P>,
    pub(crate) seed: u32,
    /// The times that the format holds.
    pub(crate) times: TimeRange,
    /// Extended attributes are a tree of blocks, and not written anew as a whole: since version 2.
    pub(crate) xattr_trees: bool,
    pub(crate) hash_seed: u64,
    pub(crate) superblock: Mutex<Superblock>,
    pub(crate) alloc: Allocator,
    pub(crate) table: Table<Inode>,
    /// Where the inode of the table is.
    pub(crate) table_address: u64,
    pub(crate) journal: Journal,
    /// Directories that move to another directory do so one at a time, so that no cycle can arise.
    pub(crate) move_directories: Mutex<()>,
    pub(crate) read_only: bool,
    /// Names are indexed in DRAM.
    pub(crate) name_index: bool,
    /// A commit failed on the media: only the next mount can know the words in place.
    pub(crate) broken: AtomicBool,
    /// Inodes that cannot be read, on a read-only mount of a damaged file system.
    pub(crate) damaged: BTreeSet<u64>,
    pub(crate) bounds: Bounds,
}

impl<P: Pm> Shared<P> {
    /// The tree of a root.
    pub(crate) fn map(&self, root: u64) -> BlockMap<'_, P> {
        blockmap::map(&*self.pm, root, self.bounds)
    }

    /// Refuses changes on a read-only mount.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.read_only { Err(Error::new(Kind::ReadOnly)) } else { Ok(()) }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Refuses changes after a commit that failed half way.
    pub(crate) fn check_unbroken(&self) -> Result<()> {
        if self.is_broken() {
            return Err(Error::new(Kind::Media)
                .object("the journal")
                .advice("a commit failed: unmount and mount again, which undoes it"));
        }
        Ok(())
    }

    pub(crate) fn free_runs(&self, runs: &[Run]) {
        for &run in runs {
            self.alloc.free(run);
        }
    }
}
