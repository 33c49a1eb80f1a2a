//! The layer that knows tiers, over whatever layout: the mover with its layout hidden.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nacre_engine::{Error, FileBlock, Kind, Result, Tier, TierSpace, TierState, Timestamp};
use nacre_layout_parts::lifecycle::OverTiers;
use nacre_media::RealPm;
use nacre_media::block::RealDisk;
use nacre_mover::{
    Ahead, Budget, Drained, Fetch, MoverOptions, MoverStatus, Temperature, TieredFs, TrimFrom, Trimmed,
};
use nacre_tiers::TierSet;
use uuid::Uuid;

use crate::preset::Preset;

/// How far files have moved.
#[derive(Debug, Default)]
pub struct MovedFiles {
    /// Bytes that are there now and were not before.
    pub moved: u64,
    /// The first file that is not done; their number when all are.
    pub next: usize,
    /// The block that the rest of it begins with.
    pub from: u64,
    /// Those before it that failed, wholly or in part, in order, and why.
    pub failed: Vec<(usize, Error)>,
}

/// A layout with its tiers, as administration sees it. Files are named by their inodes.
pub(crate) trait TierAdmin {
    /// The tiers.
    fn known(&self) -> Vec<Tier>;

    /// The space of a tier; nothing of one that there is not.
    fn space(&self, tier: u8) -> TierSpace;

    /// The devices.
    fn devices(&self) -> &TierSet<RealDisk>;

    /// Whether nothing may change.
    fn is_read_only(&self) -> bool;

    /// The file system's name for machines.
    fn volume(&self) -> Uuid;

    /// The preset that the file system was made for, if it is known.
    fn preset(&self) -> Option<Preset>;

    /// Where the PM is.
    fn pm_path(&self) -> &Path;

    /// Where the device of a tier was last, if that is known.
    fn tier_path(&self, number: u8) -> Option<PathBuf>;

    /// Notes where a tier is, for the next mount; false if it is not noted.
    fn note_tier_path(&self, number: u8, path: &Path) -> bool;

    /// See [`TieredFs::change`].
    fn change(&self, options: &MoverOptions);

    /// See [`TieredFs::limit`].
    fn limit(&self, rate: Option<u64>);

    /// See [`TieredFs::pause`].
    fn pause(&self, paused: bool);

    /// See [`TieredFs::ahead`].
    fn ahead(&self) -> &Arc<Ahead>;

    /// See [`TieredFs::fetch`].
    fn fetch(&self, fetch: &Fetch) -> Result<()>;

    /// See [`TieredFs::tick`].
    fn tick(&self, now_ms: u64, budget: &Budget<'_>) -> Result<u64>;

    /// See [`TieredFs::period`].
    fn period(&self) -> Duration;

    /// See [`TieredFs::status`].
    fn status(&self) -> MoverStatus;

    /// See [`TieredFs::temperature`].
    fn temperature(&self) -> Option<Temperature>;

    /// See [`TieredFs::attach`].
    fn attach(&self, device: RealDisk, volume: Uuid, token: Option<u64>) -> Result<u8>;

    /// See [`TieredFs::would_attach`].
    fn would_attach(&self, device: &RealDisk, volume: Uuid) -> Result<u8>;

    /// See [`TieredFs::detach`].
    fn detach(&self, number: u8, token: Option<u64>, why: &str) -> Result<()>;

    /// See [`TieredFs::add`].
    fn add(&self, device: RealDisk, volume: Uuid, rank: u8, token: u64, now: Timestamp) -> Result<u8>;

    /// See [`TieredFs::remove`].
    fn remove(&self, number: u8) -> Result<()>;

    /// See [`TieredFs::set_state`].
    fn set_state(&self, number: u8, state: TierState) -> Result<()>;

    /// See [`TieredFs::drain`].
    fn drain(&self, tier: u8, budget: &Budget<'_>) -> Result<Drained>;

    /// See [`TieredFs::would_drain`].
    fn would_drain(&self, tier: u8) -> Result<()>;

    /// See [`TieredFs::trim`].
    fn trim(&self, tier: u8, from: TrimFrom, least: u64, budget: &Budget<'_>) -> Result<Trimmed>;

    /// Moves the blocks of a file to a tier, or up to PM; gives the number of blocks that moved.
    fn move_file(&self, inode: u64, to: Option<u8>) -> Result<u64>;

    /// Moves files to a tier, or up to PM, from a block of the first one on. Those that are there no more have nothing
    /// to move. Blocks are counted.
    fn move_files(&self, inodes: &[u64], to: Option<u8>, from: FileBlock, budget: &Budget<'_>) -> MovedFiles;
}

impl<L: OverTiers<Pm = RealPm>> TierAdmin for TieredFs<L, RealDisk> {
    fn known(&self) -> Vec<Tier> {
        self.layout().tiers()
    }

    fn space(&self, tier: u8) -> TierSpace {
        self.layout().tier_space(tier).unwrap_or_default()
    }

    fn devices(&self) -> &TierSet<RealDisk> {
        self.tiers()
    }

    fn is_read_only(&self) -> bool {
        self.layout().is_read_only()
    }

    fn volume(&self) -> Uuid {
        self.layout().summary().uuid
    }

    fn preset(&self) -> Option<Preset> {
        self.layout().summary().preset.parse().ok()
    }

    fn pm_path(&self) -> &Path {
        Path::new(self.layout().pm().name())
    }

    fn tier_path(&self, number: u8) -> Option<PathBuf> {
        self.layout().tier_path(number)
    }

    fn note_tier_path(&self, number: u8, path: &Path) -> bool {
        self.layout().note_tier_path(number, path).unwrap_or(false)
    }

    fn change(&self, options: &MoverOptions) {
        TieredFs::change(self, options);
    }

    fn limit(&self, rate: Option<u64>) {
        TieredFs::limit(self, rate);
    }

    fn pause(&self, paused: bool) {
        TieredFs::pause(self, paused);
    }

    fn ahead(&self) -> &Arc<Ahead> {
        TieredFs::ahead(self)
    }

    fn fetch(&self, fetch: &Fetch) -> Result<()> {
        TieredFs::fetch(self, fetch)
    }

    fn tick(&self, now_ms: u64, budget: &Budget<'_>) -> Result<u64> {
        TieredFs::tick(self, now_ms, budget)
    }

    fn period(&self) -> Duration {
        TieredFs::period(self)
    }

    fn status(&self) -> MoverStatus {
        TieredFs::status(self)
    }

    fn temperature(&self) -> Option<Temperature> {
        TieredFs::temperature(self)
    }

    fn attach(&self, device: RealDisk, volume: Uuid, token: Option<u64>) -> Result<u8> {
        TieredFs::attach(self, device, volume, token)
    }

    fn would_attach(&self, device: &RealDisk, volume: Uuid) -> Result<u8> {
        TieredFs::would_attach(self, device, volume)
    }

    fn detach(&self, number: u8, token: Option<u64>, why: &str) -> Result<()> {
        TieredFs::detach(self, number, token, why)
    }

    fn add(&self, device: RealDisk, volume: Uuid, rank: u8, token: u64, now: Timestamp) -> Result<u8> {
        TieredFs::add(self, device, volume, rank, token, now)
    }

    fn remove(&self, number: u8) -> Result<()> {
        TieredFs::remove(self, number)
    }

    fn set_state(&self, number: u8, state: TierState) -> Result<()> {
        TieredFs::set_state(self, number, state)
    }

    fn drain(&self, tier: u8, budget: &Budget<'_>) -> Result<Drained> {
        TieredFs::drain(self, tier, budget)
    }

    fn would_drain(&self, tier: u8) -> Result<()> {
        TieredFs::would_drain(self, tier)
    }

    fn trim(&self, tier: u8, from: TrimFrom, least: u64, budget: &Budget<'_>) -> Result<Trimmed> {
        TieredFs::trim(self, tier, from, least, budget)
    }

    fn move_file(&self, inode: u64, to: Option<u8>) -> Result<u64> {
        let node = self.layout().node_by_number(inode)?;
        let moved = match to {
            Some(tier) => self.demote(&node, tier, FileBlock(0), u64::MAX, false),
            None => self.promote(&node, FileBlock(0), u64::MAX),
        };
        moved.map(|moved| moved.moved)
    }

    fn move_files(&self, inodes: &[u64], to: Option<u8>, from: FileBlock, budget: &Budget<'_>) -> MovedFiles {
        let (mut nodes, mut files, mut failed) = (Vec::new(), Vec::new(), Vec::<(usize, Error)>::new());
        for (file, inode) in inodes.iter().enumerate() {
            match self.layout().node_by_number(*inode) {
                Ok(node) => {
                    nodes.push(node);
                    files.push(file);
                }
                Err(error) if matches!(error.kind(), Kind::Stale | Kind::NotFound) => {}
                Err(error) => failed.push((file, error)),
            }
        }
        let from = if files.first() == Some(&0) { from } else { FileBlock(0) };
        let done = match to {
            Some(tier) => self.demote_some(&nodes, from, tier, budget),
            None => self.promote_some(&nodes, from, budget),
        };
        let next = files.get(done.next).copied().unwrap_or(inodes.len());
        failed.retain(|(file, _)| *file < next);
        failed.extend(done.failed.into_iter().map(|(file, error)| (files[file], error)));
        failed.sort_by_key(|(file, _)| *file);
        MovedFiles { moved: done.moved, next, from: done.from, failed }
    }
}
