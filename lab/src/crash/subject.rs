//! The subject of an exploration: a layout on simulated PM.

use std::sync::Arc;

use nacre_engine::{Data, Durability, Error, Extents, Kind, Result};
use nacre_media::SimPm;
use nacre_media::sim::Site;

use super::op::Op;
use super::tree::Ctime;
use super::workload::Workload;

/// The file in which [`Subject::fill`] takes space.
pub(super) const FULL: &str = "full";

/// How the file system of a workload is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mounting {
    /// Parts that its allocators have; the steps of a workload, or its threads, use them in turn.
    pub lanes: usize,
    /// A background thread frees large inodes and truncated ranges, while operations go on.
    pub background: bool,
}

impl Default for Mounting {
    fn default() -> Mounting {
        Mounting { lanes: 1, background: false }
    }
}

/// The stores and the fence between two crash points.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'m> {
    /// The stores: site and offset.
    pub stores: &'m [(Site, u64)],
    /// The fence that comes next.
    pub fence: Option<Site>,
    /// The fence before.
    pub last_fence: Option<Site>,
}

/// A mistake that a layout can make on purpose.
#[derive(Debug, Clone, Copy)]
pub struct Mistake {
    /// Its number for [`SimPm::seed_mistake`].
    pub number: u32,
    /// The description of it.
    pub words: &'static str,
}

/// A flush or fence whose absence no crash shows, with the reason.
#[derive(Debug, Clone, Copy)]
pub struct Harmless {
    /// The site's name, as [`Subject::site_name`] gives it.
    pub site: &'static str,
    /// It is a fence.
    pub is_fence: bool,
    /// Why nothing is lost without it.
    pub argument: &'static str,
    /// Something may be, in an interleaving of threads that few runs meet.
    pub by_chance: bool,
}

/// Why the fence of an inode without a name does no harm here.
pub(super) const LINKED_BY_ITS_MAKER: &str = "the thread that links the file fences for it; this one is for a link by another thread, to which operations on \
     paths cannot hand an unnamed file";

/// A layout, as far as the explorer has to know it.
pub trait Subject: Sync {
    /// The mounted file system.
    type Fs: Data + Extents;

    /// Its name.
    fn name(&self) -> &'static str;

    /// The state of ctime after a crash.
    fn ctime(&self) -> Ctime;

    /// A write is all or nothing after a crash. Otherwise overwritten data may be old or new word by word.
    fn atomic_write(&self) -> bool;

    /// Blocks that are free, or would be on a disk that is no tier.
    fn free_blocks(&self, fs: &Self::Fs) -> u64 {
        fs.stat().free
    }

    /// Sizes in bytes of the disks beside PM.
    fn disks(&self) -> &'static [u64] {
        &[]
    }

    /// How writes are made that say nothing else, if there is no write buffer above. With
    /// [`Durability::Promised`] whole blocks are written as such a buffer does, later than they were accepted.
    fn durability(&self) -> Durability {
        Durability::Now
    }

    /// Workloads of this subject, in addition to those of all layouts.
    fn workloads(&self) -> Vec<Workload> {
        Vec::new()
    }

    /// Runs an operation that relocates blocks or logs and changes nothing that a user sees; `None` if it is none of
    /// these.
    fn relocate(&self, _fs: &Self::Fs, _op: &Op) -> Option<Result<()>> {
        None
    }

    /// Makes a file named [`FULL`] take all blocks of PM but so many. The file has no data that could move to a disk.
    fn fill(&self, _fs: &Self::Fs, _left: u64) -> Result<()> {
        Err(Error::new(Kind::Unsupported))
    }

    /// Makes an empty file system.
    fn mkfs(&self, pm: &Arc<SimPm>) -> Result<()>;

    /// True when there is a file system, whole or not.
    fn is_formatted(&self, pm: &Arc<SimPm>) -> bool;

    /// Mounts, and recovers if needed.
    fn mount(&self, pm: &Arc<SimPm>, mounting: Mounting) -> Result<Self::Fs>;

    /// Makes the calling thread allocate from this lane from now on.
    fn use_lane(&self, lane: usize);

    /// Unmounts cleanly.
    fn unmount(&self, fs: Self::Fs) -> Result<()>;

    /// Lets go of it without an unmount, as when its process dies.
    fn abandon(&self, fs: Self::Fs);

    /// Repairs an unmounted file system, as fsck does.
    fn repair(&self, pm: &Arc<SimPm>) -> Result<()>;

    /// Checks every invariant of the format on an unmounted file system; returns the problems. `crashed` means that
    /// there was no clean unmount, so that an interrupted write is no damage.
    fn check(&self, pm: &Arc<SimPm>, crashed: bool) -> Result<Vec<String>>;

    /// The places of its protocols where something is committed, by name.
    fn commit_points(&self) -> &'static [&'static str];

    /// Calls `hit` with each commit point (an index into [`Subject::commit_points`]) that a crash at this moment hits.
    fn commits_at(&self, moment: &Moment<'_>, hit: &mut dyn FnMut(usize));

    /// Which part of the layout's source stores, flushes or fences there; it stays the same when lines are added
    /// elsewhere.
    fn site_name(&self, site: Site) -> String;

    /// Mistakes that it can make on purpose.
    fn mistakes(&self) -> Vec<Mistake>;

    /// The flushes and fences that are there although no crash shows their absence.
    fn harmless(&self) -> &'static [Harmless];

    /// The lines of its source that flush or fence and are none of these sites, by name.
    fn unpassed(&self, passed: &[Site]) -> Vec<String>;

    /// Those of them that no workload has to pass: name and reason.
    fn passed_elsewhere(&self) -> &'static [(&'static str, &'static str)];
}
