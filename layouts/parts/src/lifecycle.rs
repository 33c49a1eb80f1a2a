//! The life of a layout, from mkfs to fsck: [`Lifecycle`]. A layout implements it beside the contract of
//! `nacre-engine`, and everything that makes, mounts, checks and explores file systems is generic over it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nacre_engine::{
    BelowBuffer, Capabilities, Extents, InodeCache, Result, Tier, TierReader, Tiered, Timestamp,
};
use nacre_media::{Durable, Pm};
use uuid::Uuid;

use crate::findings::Findings;
use crate::report::{CheckReport, MediaReport, RecoveryReport, Repair};
use crate::scrub::ScrubStatus;
use crate::superblock::Summary;

/// The properties of a new file system.
#[derive(Debug, Clone, Default)]
pub struct MkfsOptions {
    /// Its name for machines; a random one when not given.
    pub uuid: Option<Uuid>,
    /// Its name for people, at most 64 bytes.
    pub label: String,
    /// The preset that it is made for, at most 16 bytes.
    pub preset: String,
    /// Owner and group of the root directory.
    pub root_owner: (u32, u32),
    /// Its time of creation.
    pub now: Timestamp,
    /// Mounts without an option for it keep no index of names in DRAM. A layout with
    /// [`Capabilities::always_indexes_names`] ignores this.
    pub linear_names: bool,
    /// Written blocks are overwritten where they are. A layout without [`Capabilities::in_place_feature`] ignores this.
    pub overwrite_in_place: bool,
    /// Zones, which volumes are in; 0 is one. Of a layout with [`Capabilities::max_volumes`] above 1; another ignores this.
    pub zones: u32,
}

/// How a file system is mounted.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// Nothing may change. A file system without a clean unmount is still recovered, which writes.
    pub read_only: bool,
    /// The media itself cannot be written.
    pub media_read_only: bool,
    /// Lanes for allocation; the number of CPUs when not given.
    pub lanes: Option<usize>,
    /// Free large files in a background thread. Without it everything happens in the calling thread, always in the
    /// same order. A layout without such a thread ignores this.
    pub background: bool,
    /// Keep an index of names in DRAM; the choice of mkfs when not given. A layout with
    /// [`Capabilities::always_indexes_names`] ignores this.
    pub name_index: Option<bool>,
    /// The maximum number of inodes with state in DRAM, beside those that are held.
    pub inode_cache: u64,
    /// The volume, by its name; the only one when not given. Of a layout with [`Capabilities::max_volumes`] above 1;
    /// another ignores this.
    pub volume: Option<String>,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            read_only: false,
            media_read_only: false,
            lanes: None,
            background: true,
            name_index: None,
            inode_cache: InodeCache::DEFAULT_LIMIT,
            volume: None,
        }
    }
}

/// A layout, mounted on PM.
pub trait Lifecycle: BelowBuffer + Extents + Sized {
    /// The PM that it is on.
    type Pm: Pm + 'static;

    /// The name of the layout.
    const NAME: &'static str;

    /// The first bytes of each copy of its superblock. It marks devices that `mkfs` must not overwrite by mistake.
    const MAGIC: [u8; 8];

    /// The capabilities of every file system with this layout.
    const CAPABILITIES: Capabilities;

    /// The contents of the superblock. [`InvalidInput`](nacre_engine::Kind::InvalidInput) if there is none of this
    /// layout, [`Corrupt`](nacre_engine::Kind::Corrupt) if there is one and no copy of it is whole.
    fn probe(pm: &Self::Pm) -> Result<Summary>;

    /// True for a block, without a superblock, that looks like one of this layout.
    fn leaves_trace(block: &[u8]) -> bool;

    /// The tiers, as the superblock of an unmounted file system lists them.
    fn known_tiers(pm: &Self::Pm) -> Result<Vec<Tier>>;

    /// The paths at which tiers were mounted last, by number, as far as they are known.
    fn known_tier_paths(pm: &Self::Pm) -> Result<Vec<(u8, PathBuf)>>;

    /// Whether a mount may write: an error names the feature that this version does not know.
    fn check_writable(pm: &Self::Pm) -> Result<()>;

    /// Makes an empty file system that fills the device. The old contents of the device are lost. The superblocks come
    /// last, so a crash leaves the old file system, or none, or the new one.
    fn mkfs(pm: &Self::Pm, options: &MkfsOptions) -> Result<Summary>;

    /// Mounts the file system, and recovers it if it was not cleanly unmounted.
    fn mount(pm: Arc<Self::Pm>, options: &MountOptions) -> Result<Self>;

    /// Unmounts: writes the lazily kept values and marks the file system clean. Inodes without links are reclaimed,
    /// held or not.
    fn unmount(self) -> Result<()>;

    /// Goes away without unmounting, like a process that was killed: the next mount recovers.
    fn abandon(self);

    /// The media.
    fn pm(&self) -> &Arc<Self::Pm>;

    /// The contents of the superblock at this mount.
    fn summary(&self) -> &Summary;

    /// The report of the recovery at this mount.
    fn recovery(&self) -> &RecoveryReport;

    /// Checks every structure of an unmounted file system, and repairs what `repair` allows. `tiers` reads those tiers
    /// that are there.
    fn check(pm: &Self::Pm, repair: Repair, tiers: Option<&dyn TierReader>) -> Result<CheckReport>;

    /// Reads every block of an unmounted file system. With `record`, new blocks with media errors enter the list of bad
    /// blocks.
    fn check_media(pm: &Self::Pm, record: bool) -> Result<MediaReport>;

    /// Enters the bad blocks that the kernel lists into the list of bad blocks. Returns their number.
    fn retire_listed(pm: &Self::Pm) -> Result<u64>;

    /// Starts to read everything, at most `rate` bytes in a second. [`Busy`](nacre_engine::Kind::Busy) while that is
    /// under way.
    fn start_scrub(&self, rate: u64) -> Result<()>;

    /// The progress and the findings of the last scrub.
    fn scrub_status(&self) -> ScrubStatus;

    /// Damage that was met outside a scrub, in a layout that can read on. It may be held longer than the file system.
    fn findings(&self) -> Arc<Findings> {
        Arc::default()
    }
}

/// A layout whose files may have blocks on tiers, mounted.
pub trait OverTiers: Lifecycle + Tiered<Proof = Durable> {
    /// Whether nothing may change.
    fn is_read_only(&self) -> bool;

    /// Where the device of a tier was last, if that is known.
    fn tier_path(&self, number: u8) -> Option<PathBuf>;

    /// Notes where the device of a tier is, durably, for the next mount. False where there is no room for it: 255 bytes
    /// for one path, about 1000 for all.
    fn note_tier_path(&self, number: u8, path: &Path) -> Result<bool>;
}

/// Methods of [`Lifecycle`] that every layout answers alike: by its modules `superblock` and `mkfs`, by the methods of
/// [`mounted`](crate::mounted), and by a field `scrubber` beside `shared`.
#[macro_export]
macro_rules! lifecycle_by_modules {
    () => {
        fn leaves_trace(block: &[u8]) -> bool {
            superblock::leaves_trace(block)
        }

        fn known_tiers(pm: &Self::Pm) -> ::nacre_engine::Result<Vec<::nacre_engine::Tier>> {
            Ok($crate::tier_table::listed(&superblock::read(pm)?.superblock.raw))
        }

        fn known_tier_paths(pm: &Self::Pm) -> ::nacre_engine::Result<Vec<(u8, ::std::path::PathBuf)>> {
            Ok($crate::tier_paths::known(&superblock::read(pm)?.superblock))
        }

        fn check_writable(pm: &Self::Pm) -> ::nacre_engine::Result<()> {
            superblock::read(pm)?.superblock.check_writable()
        }

        fn mkfs(
            pm: &Self::Pm,
            options: &$crate::lifecycle::MkfsOptions,
        ) -> ::nacre_engine::Result<$crate::superblock::Summary> {
            mkfs::mkfs(pm, options)
        }

        fn mount(
            pm: ::std::sync::Arc<Self::Pm>,
            options: &$crate::lifecycle::MountOptions,
        ) -> ::nacre_engine::Result<Self> {
            Self::mount(pm, options)
        }

        fn unmount(self) -> ::nacre_engine::Result<()> {
            Self::unmount(self)
        }

        fn abandon(self) {
            Self::abandon(self);
        }

        fn pm(&self) -> &::std::sync::Arc<Self::Pm> {
            Self::pm(self)
        }

        fn summary(&self) -> &$crate::superblock::Summary {
            Self::summary(self)
        }

        fn recovery(&self) -> &$crate::report::RecoveryReport {
            Self::recovery(self)
        }

        fn start_scrub(&self, rate: u64) -> ::nacre_engine::Result<()> {
            self.scrubber.lock().start(&self.shared, rate)
        }

        fn scrub_status(&self) -> $crate::scrub::ScrubStatus {
            self.scrubber.lock().status(&*self.shared)
        }
    };
}

/// Methods of a mounted file system that every layout has alike, over media of the type `$P`. A layout brings the
/// fields `shared`, `root`, `recovery` and `summary`, and the methods `shut_down` and `stop_threads`.
#[macro_export]
macro_rules! mounted {
    ($P:ident) => {
        /// The report of the recovery at this mount.
        pub fn recovery(&self) -> &$crate::report::RecoveryReport {
            &self.recovery
        }

        /// The contents of the superblock at this mount.
        pub fn summary(&self) -> &$crate::superblock::Summary {
            &self.summary
        }

        /// The media.
        pub fn pm(&self) -> &::std::sync::Arc<$P> {
            &self.shared.pm
        }

        /// Unmounts: writes the lazily kept values and marks the file system clean. Inodes without links are reclaimed,
        /// held or not.
        pub fn unmount(mut self) -> ::nacre_engine::Result<()> {
            self.shut_down()
        }

        /// Goes away without unmounting, like a process that was killed: the next mount recovers.
        pub fn abandon(mut self) {
            self.stop_threads();
            self.root = None;
        }
    };
}
