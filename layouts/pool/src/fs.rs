//! The state of a mounted file system: locks, lanes, counts, and hints. Nothing of it tells of an inode or a name.

use std::sync::Arc;

use nacre_engine::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use nacre_engine::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use nacre_engine::{Error, Kind, ReservedBlocks, Result, TimeRange};
use nacre_layout_parts::alloc::lane_of_thread;
use nacre_media::Pm;
use smallvec::SmallVec;

use crate::bad::BadBlocks;
use crate::counting::Counting;
use crate::counts::{Counts, Hints};
use crate::format::RawVolume;
use crate::geometry::Geometry;
use crate::held::HeldTable;
use crate::lanes::Lane;
use crate::mend::Damaged;
use crate::superblock::Superblock;

/// Locks of inodes.
pub(crate) const STRIPES: usize = 4096;
/// Locks of groups.
pub(crate) const GROUP_LOCKS: usize = 1024;

/// The state that all operations share.
pub(crate) struct Shared<P> {
    pub(crate) pm: Arc<P>,
    pub(crate) geometry: Geometry,
    /// The number of zones of the device.
    pub(crate) zones: u32,
    /// The times that the format holds.
    pub(crate) times: TimeRange,
    pub(crate) superblock: Mutex<Superblock>,
    /// The row of the volume, as it is on media. Its lock comes after a lane's.
    pub(crate) row: Mutex<RawVolume>,
    /// Where the inode of the root is.
    pub(crate) root: u64,
    pub(crate) hash_seed: u64,
    pub(crate) read_only: bool,
    /// A commit failed on the media: only the next mount can tell which words are right.
    pub(crate) broken: AtomicBool,
    /// The last operation's number.
    pub(crate) sequence: AtomicU64,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) stripes: Vec<RwLock<()>>,
    pub(crate) group_locks: Vec<Mutex<()>>,
    /// The lock of the lists of orphans. It comes after stripes and before a lane.
    pub(crate) orphans: Mutex<()>,
    /// One write at a time copies blocks that stay together. Its lock comes after stripes and before a lane.
    pub(crate) copies_together: Mutex<()>,
    /// Some have no holder: the mount found them, or they could not be freed.
    pub(crate) orphans_left: AtomicBool,
    pub(crate) hints: Hints,
    pub(crate) counts: Mutex<Counts>,
    pub(crate) counting: Counting,
    /// Blocks with a reservation.
    pub(crate) reserved: Arc<ReservedBlocks>,
    pub(crate) held: Arc<HeldTable>,
    /// The number of held inodes above which the front end parks some.
    pub(crate) inode_cache: u64,
    pub(crate) damaged: Damaged,
    /// Directories that move to another directory do so one at a time, so that no cycle can arise.
    pub(crate) move_directories: Mutex<()>,
    /// Blocks with media errors: they are never free.
    pub(crate) bad: BadBlocks,
}

/// Inodes that are locked for a change, or for reading.
pub(crate) type Locked<'f> = SmallVec<[RwLockWriteGuard<'f, ()>; 4]>;

impl<P: Pm> Shared<P> {
    /// Refuses changes on a read-only mount, and after a commit that failed half way.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::new(Kind::ReadOnly));
        }
        if self.broken.load(Ordering::Acquire) {
            return Err(Error::new(Kind::Media)
                .object("a lane")
                .advice("a commit failed: unmount and mount again, which decides it"));
        }
        Ok(())
    }

    /// The lane of this thread.
    pub(crate) fn own_lane(&self) -> &Lane {
        &self.lanes[lane_of_thread() % self.lanes.len()]
    }

    fn stripe(number: u64) -> usize {
        // Inodes of one pool block have numbers that follow each other.
        number as usize % STRIPES
    }

    /// Locks an inode for reading.
    pub(crate) fn read_lock(&self, number: u64) -> RwLockReadGuard<'_, ()> {
        self.stripes[Self::stripe(number)].read()
    }

    /// Locks inodes for a change, in the order of their stripes, each stripe once.
    pub(crate) fn lock(&self, numbers: &[u64]) -> Locked<'_> {
        let mut stripes: SmallVec<[usize; 4]> = numbers.iter().map(|&number| Self::stripe(number)).collect();
        stripes.sort_unstable();
        stripes.dedup();
        stripes.into_iter().map(|stripe| self.stripes[stripe].write()).collect()
    }

    /// Bytes of DRAM: locks, lanes, hints, and held inodes.
    pub(crate) fn index_bytes(&self) -> u64 {
        let locks = STRIPES * size_of::<RwLock<()>>() + GROUP_LOCKS * size_of::<Mutex<()>>();
        let lanes = self.lanes.iter().map(|lane| {
            let scratch = lane.scratch.lock();
            size_of::<Lane>() + scratch.bytes.capacity() + scratch.list.capacity() * 16
        });
        (locks + lanes.sum::<usize>()) as u64 + self.hints.bytes() + self.held.bytes()
    }
}

/// The locks of inodes of a mount.
pub(crate) fn stripes() -> Vec<RwLock<()>> {
    (0..STRIPES).map(|_| RwLock::new(())).collect()
}
