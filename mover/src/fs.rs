//! The file system: the layout, the devices of its tiers, and the engine that moves blocks between them, as one.

use std::sync::Arc;
use std::time::Duration;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{FileBlock, Result, TierState, Tiered, Timestamp};
use nacre_media::block::BlockDevice;
use nacre_media::{Durable, Frames};
use nacre_policy::migration::anticache::PERIOD_MS;
use nacre_tiers::TierSet;
use uuid::Uuid;

use crate::admin::devices::NOT_ATTACHED;
use crate::admin::status::{MoverStatus, Temperature};
use crate::engine::budget::Budget;
use crate::engine::demote::MovedFiles;
use crate::engine::evacuate::Drained;
use crate::engine::executor::Moved;
use crate::engine::trim::{TrimFrom, Trimmed};
use crate::engine::{Engine, Mover};
use crate::io::readahead::{Ahead, Fetch};
use crate::io::{Files, Io};
use crate::places::Places;
use crate::settings::{LargeWrites, MoverOptions, Settings};
use crate::stats::Stats;

/// How often the mover looks, without anti-caching.
const PERIOD: Duration = Duration::from_millis(100);

/// A layout whose files may have blocks on tiers, presented as one whose files are in one place.
pub struct TieredFs<L: Tiered, D> {
    pub(crate) places: Places<L, D>,
    pub(crate) io: Io,
    pub(crate) stats: Stats,
    pub(crate) engine: Engine,
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> TieredFs<L, D> {
    /// Over a mounted layout, none of whose tiers is attached yet.
    pub fn new(layout: L, options: MoverOptions) -> TieredFs<L, D> {
        TieredFs::with_frames(layout, options, Arc::default())
    }

    /// The same, with a page cache that takes its DRAM from these frames, and uses the part that the other owner leaves
    /// unused.
    pub fn with_frames(layout: L, options: MoverOptions, frames: Arc<Frames>) -> TieredFs<L, D> {
        let tiers = Arc::new(TierSet::with_frames(options.page_cache, frames));
        layout.read_images_with(Arc::clone(&tiers) as _);
        for tier in layout.tiers() {
            tiers.detach(tier.number, NOT_ATTACHED);
        }
        let (io, engine) = (Io::new(options.read_ahead), Engine::new(options.known_files));
        let settings = Arc::new(Settings::new(options));
        let stats = Stats::new(Arc::clone(&settings));
        let fs = TieredFs { places: Places::new(layout, tiers, settings), io, stats, engine };
        fs.mover().steer();
        fs
    }

    /// Where large asynchronous writes go as long as the options say nothing of it; else to disk, as in TPFS.
    #[must_use]
    pub fn with_large_writes(self, usual: LargeWrites) -> TieredFs<L, D> {
        self.places.settings.set_large_writes(usual);
        self.mover().steer();
        self
    }

    /// Lends half of the page cache's DRAM to the other user of its [frames](TieredFs::with_frames), as long as that one
    /// leaves its own unused DRAM idle. Gives the bytes.
    pub fn lend_dram(&self) -> u64 {
        self.places.tiers.pages().lend()
    }

    /// Hours are those of local time, which is ahead of UTC by as many seconds as this says, for a time in milliseconds
    /// since 1970. Without it they are of UTC.
    #[must_use]
    pub fn with_local_time(self, ahead_s: fn(u64) -> i64) -> TieredFs<L, D> {
        self.places.settings.set_local_time(ahead_s);
        self
    }

    /// Applies these options from now on. They are the page cache, the group of blocks, the rules of the predictors,
    /// moves for the sake of reads, the hours and the limit of the mover, and three thresholds. These are the usage for
    /// compacting logs, for rebalancing tiers and for large writes to disk. The other options stay as they were set up.
    pub fn change(&self, options: &MoverOptions) {
        self.places.tiers.pages().resize(options.page_cache);
        self.places.settings.set_options(options.clone());
        self.mover().steer();
        self.stats.predictors.changed();
    }

    /// Sets the bytes that are moved in a second, at most; direct reclaim is exempt. The limit is at least a block.
    pub fn limit(&self, rate: Option<u64>) {
        self.places.settings.set_rate(rate);
    }

    /// Moves blocks only for direct reclaim, or as usual again.
    pub fn pause(&self, paused: bool) {
        self.engine.paused.store(paused, Ordering::Relaxed);
    }

    /// The ranges to be read ahead, for threads that [fetch](TieredFs::fetch) them.
    pub fn ahead(&self) -> &Arc<Ahead> {
        &self.io.ahead
    }

    /// The layout below.
    pub fn layout(&self) -> &L {
        &self.places.layout
    }

    /// The layout below, to unmount it.
    pub fn into_layout(self) -> L {
        self.places.layout
    }

    /// The devices.
    pub fn tiers(&self) -> &TierSet<D> {
        &self.places.tiers
    }

    /// The engine at work.
    #[inline]
    pub(crate) fn mover(&self) -> Mover<'_, L, D> {
        Mover { places: &self.places, stats: &self.stats, engine: &self.engine }
    }

    /// Files at work.
    #[inline]
    pub(crate) fn files(&self) -> Files<'_, L, D> {
        Files { places: &self.places, stats: &self.stats, io: &self.io, mover: self.mover() }
    }

    /// Fetches into DRAM those of these blocks that are on tiers, or up to PM with anti-caching. The error for an unreadable block goes to its reader.
    pub fn fetch(&self, fetch: &Fetch) -> Result<()> {
        let mut total = Moved::default();
        let came = self.places.fetch(fetch, &mut total);
        self.engine.counts.promoted.fetch_add(total.moved, Ordering::Relaxed);
        came
    }

    /// How often [`TieredFs::tick`] is to be called.
    pub fn period(&self) -> Duration {
        if self.places.settings.has_anticache() { Duration::from_millis(PERIOD_MS) } else { PERIOD }
    }

    /// Attaches the device of a tier that the file system has. `token` is a number that no other mount chooses, and not
    /// 0; without one nothing is written to it, or to the file system, and it may only be read.
    ///
    /// A device that was last used by another mount than the file system says is an older copy of the tier, or the file
    /// system is an older copy: [`Corrupt`](nacre_engine::Kind::Corrupt).
    /// [`InvalidInput`](nacre_engine::Kind::InvalidInput) for a device that is no tier of this file system.
    /// [`Busy`](nacre_engine::Kind::Busy) while the tier has a device, of which this one may be a copy.
    /// [`DeviceLost`](nacre_engine::Kind::DeviceLost) for one that was cut short, also when it was made longer again.
    pub fn attach(&self, device: D, volume: Uuid, token: Option<u64>) -> Result<u8> {
        self.mover().attach(device, volume, token)
    }

    /// The number of the tier that [`attach`](TieredFs::attach) would attach, with the errors that it would give;
    /// nothing is changed.
    pub fn would_attach(&self, device: &D, volume: Uuid) -> Result<u8> {
        self.mover().would_attach(device, volume)
    }

    /// Takes a tier's device away: accesses to data on it fail until it is attached again. `token` is as for
    /// [`TieredFs::attach`]: copies of the device made until now are older copies from then on, unless the device, or
    /// the file system, cannot take it.
    pub fn detach(&self, number: u8, token: Option<u64>, why: &str) -> Result<()> {
        self.mover().detach(number, token, why)
    }

    /// Makes a device a tier of the file system; the data on it is lost. Gives its number. `token` is as for
    /// [`TieredFs::attach`].
    pub fn add(&self, device: D, volume: Uuid, rank: u8, token: u64, now: Timestamp) -> Result<u8> {
        self.mover().add(device, volume, rank, token, now)
    }

    /// The same with a given, unique UUID: for callers that must do the same each time.
    pub fn add_as(
        &self,
        uuid: Option<Uuid>,
        device: D,
        volume: Uuid,
        rank: u8,
        token: u64,
        now: Timestamp,
    ) -> Result<u8> {
        self.mover().add_as(uuid, device, volume, rank, token, now)
    }

    /// Removes a tier on which nothing is any more: [`Busy`](nacre_engine::Kind::Busy) otherwise.
    pub fn remove(&self, number: u8) -> Result<()> {
        self.mover().remove(number)
    }

    /// No new blocks are placed on a tier from now on, or again. Then a drain that was begun is to begin anew.
    pub fn set_state(&self, number: u8, state: TierState) -> Result<()> {
        self.mover().set_state(number, state)
    }

    /// Moves everything that is on a tier to others or, if these have no room, promotes it to PM. Nothing new is placed
    /// on the tier from then on. It ends with its budget; moved blocks stay moved, and the next call goes on from
    /// there. A file that fails does not stop the others: its error comes after all of them.
    ///
    /// [`Busy`](nacre_engine::Kind::Busy) while another call does it; [`NoSpace`](nacre_engine::Kind::NoSpace) when
    /// nothing else has room.
    pub fn drain(&self, tier: u8, budget: &Budget<'_>) -> Result<Drained> {
        self.mover().drain(tier, budget)
    }

    /// Refuses a [drain](TieredFs::drain) that cannot end: of a tier with more on it than all other places have room
    /// for, or of a missing tier that holds data. Nothing is changed.
    pub fn would_drain(&self, tier: u8) -> Result<()> {
        self.mover().would_drain(tier)
    }

    /// Tells the device of a tier which blocks are free, from one on, as far as the budget goes. Runs of fewer bytes
    /// than `least` are left out. It ends where the tier is drained.
    ///
    /// [`Busy`](nacre_engine::Kind::Busy) while another call does it; [`DeviceLost`](nacre_engine::Kind::DeviceLost)
    /// where the device is missing, [`Media`](nacre_engine::Kind::Media) where it fails;
    /// [`ReadOnly`](nacre_engine::Kind::ReadOnly).
    pub fn trim(&self, tier: u8, from: TrimFrom, least: u64, budget: &Budget<'_>) -> Result<Trimmed> {
        self.engine.trims.trim(&self.places, tier, from, least, budget)
    }

    /// Demotes blocks of a file, of those in the range that are not there, to a tier: in groups, each with one write,
    /// one flush and one commit. With `keep`, moved blocks stay in DRAM. A range that is the whole file includes the
    /// blocks on PM that are allocated and not written; these are not copied.
    ///
    /// [`NoSpace`](nacre_engine::Kind::NoSpace) when the tier is full; groups moved before stay moved.
    /// [`Busy`](nacre_engine::Kind::Busy) while a program has the file mapped.
    pub fn demote(&self, node: &L::Node, tier: u8, start: FileBlock, len: u64, keep: bool) -> Result<Moved> {
        self.places.demote(node, tier, start, len, keep)
    }

    /// Moves all blocks of files to a tier, as [`TieredFs::demote`] does; files share groups, each with one write and
    /// one flush, and a commit for each file. Gives the result of each.
    pub fn demote_files(&self, nodes: &[L::Node], tier: u8, keep: bool) -> Vec<Result<Moved>> {
        self.places.demote_files(nodes, tier, keep)
    }

    /// The same as far as the budget goes, which is asked between files and between batches. Something is done in any
    /// case. The next call begins where this ended, with the files behind and a block of the first of them. Nothing
    /// stays in DRAM.
    pub fn demote_some(
        &self,
        nodes: &[L::Node],
        from: FileBlock,
        tier: u8,
        budget: &Budget<'_>,
    ) -> MovedFiles {
        self.places.demote_some(nodes, from, tier, budget)
    }

    /// Promotes blocks of a file to PM, as far as they are on tiers.
    pub fn promote(&self, node: &L::Node, start: FileBlock, len: u64) -> Result<Moved> {
        let moved = self.places.promote(node, start, len);
        self.mover().note_unheard();
        moved
    }

    /// Promotes files, the first one from a block on, as far as the budget goes, as [`TieredFs::demote_some`] demotes
    /// them. There is no flush of a device that they could share: they are promoted one by one.
    pub fn promote_some(&self, nodes: &[L::Node], from: FileBlock, budget: &Budget<'_>) -> MovedFiles {
        let moved = self.places.promote_some(nodes, from, budget);
        self.mover().note_unheard();
        moved
    }

    /// Offloads the extent map in a file's log to the tier that all of its blocks are on, if there is one; gives the
    /// number of blocks of PM that are free now.
    pub fn move_log(&self, node: &L::Node) -> Result<u64> {
        self.mover().move_log(node)
    }

    /// Blocks of PM that are in use, in percent of those that can be.
    pub fn usage(&self) -> f64 {
        self.places.usage()
    }

    /// The usage above which cold blocks move down now, in percent.
    pub fn threshold(&self) -> f64 {
        self.mover().threshold()
    }

    /// One background pass: takes in access samples, and moves blocks. These are files with a requested placement, cold
    /// blocks while usage is above the threshold, blocks that reads want elsewhere, and cold files on tiers that are
    /// nearly full. Gives the number of blocks. Logs are compacted while usage is above their threshold. A thread calls
    /// it a few times in a second, with the time in milliseconds since 1970.
    ///
    /// It may take as long as there is something to move. The hours are checked against the given time: if hours are
    /// set, the budget ends after a while.
    ///
    /// Operations that wait for room go first: this ends after a group when there is one. Less is left to move by then,
    /// and the lock is theirs because this does not return at once.
    pub fn tick(&self, now_ms: u64, budget: &Budget<'_>) -> Result<u64> {
        self.mover().tick(now_ms, budget)
    }

    /// The status of the mover.
    pub fn status(&self) -> MoverStatus {
        self.mover().status()
    }

    /// How hot the files are that it knows; `None` while it moves blocks.
    pub fn temperature(&self) -> Option<Temperature> {
        self.mover().temperature()
    }
}
