//! Setting it up; the tiers of a file system.

use std::collections::BTreeMap;
use std::sync::Arc;

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use nacre_engine::{Capabilities, Extents, PlacedExtent, PromiseCost};
use nacre_engine::{
    Error, FileBlock, FsStat, InodeId, Kind, MAX_TIERS, Place, Result, Tier, TierChange, TierState, Tiered,
    Timestamp,
};
use nacre_media::block::BlockDevice;
use nacre_media::{Durable, Frames};
use nacre_tiers::{Attachment, Label, NewLabel, TierSet};
use uuid::Uuid;

use crate::ahead::{Ahead, Readers};
use crate::data::ATTEMPTS;
use crate::drain::Drain;
use crate::keeper::Keeper;
use crate::missed::Missed;
use crate::predict::Predictors;
use crate::promises::Promises;
use crate::queue::Queue;
use crate::settings::{LargeWrites, MoverOptions, Settings};
use crate::status::AllDoing;
use crate::trim::Trims;
use crate::watch::Sink;
use crate::wishes::Wishes;

/// Why a tier is missing before anybody has attached its device.
pub const NOT_ATTACHED: &str = "it is not attached";
/// A layout whose files may have blocks on tiers, presented as one whose files are in one place; see the
/// [crate](crate).
pub struct MoverFs<L: Tiered, D> {
    pub(crate) layout: L,
    pub(crate) tiers: Arc<TierSet<D>>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) sink: Sink,
    /// Reads that a disk was waited for.
    pub(crate) missed: Missed,
    pub(crate) predictors: Predictors,
    pub(crate) readers: Readers,
    /// Read-ahead behind reads.
    pub(crate) ahead: Arc<Ahead>,
    pub(crate) keeper: Mutex<Keeper>,
    pub(crate) promises: Promises,
    /// Blocks that stay up while room is made.
    pub(crate) held: Mutex<Vec<(InodeId, u64)>>,
    /// Held while blocks of a tier are written that a file has already.
    pub(crate) filling: Mutex<()>,
    /// Drains that were begun and are not done; none while one goes on.
    pub(crate) drains: Mutex<BTreeMap<u8, Option<Drain>>>,
    pub(crate) trims: Trims,
    /// Files that were told to move.
    pub(crate) wishes: Wishes,
    /// Blocks that were moved because space was short.
    pub(crate) moved: AtomicU64,
    /// Blocks that were moved down, and up, because they were read.
    pub(crate) lowered: AtomicU64,
    pub(crate) raised: AtomicU64,
    /// Blocks that moved from a tier that is nearly full to a slower one.
    pub(crate) descended: AtomicU64,
    /// Blocks are moved only for direct reclaim.
    pub(crate) paused: AtomicBool,
    /// Bytes that the rate allows to be moved now; less than none after a group was larger.
    pub(crate) allowance: AtomicI64,
    /// Large asynchronous writes go to disk now.
    pub(crate) large_to_disk: AtomicBool,
    /// Logs that are smaller since they were compacted, and the blocks that this freed.
    pub(crate) logs_compacted: AtomicU64,
    pub(crate) log_blocks_freed: AtomicU64,
    /// Logs that went to a tier.
    pub(crate) logs_moved: AtomicU64,
    /// The files whose blocks are moving, for status queries.
    pub(crate) doing: Mutex<AllDoing>,
    /// The queue when blocks were last chosen, for status queries while they move.
    pub(crate) queue: Mutex<Queue>,
    /// Which of the tiers of one rank is next.
    turn: AtomicUsize,
    /// Operations that wait for room.
    pub(crate) waiting: AtomicU64,
    /// The last direct reclaim found no blocks to move.
    pub(crate) is_stuck: AtomicBool,
    /// Files may move that did not before.
    pub(crate) look_again: AtomicBool,
    /// Held while the list of tiers changes.
    changing: Mutex<()>,
    /// It was told that there is no room while a tier is drained that has some.
    pub(crate) has_told_full: AtomicBool,
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> MoverFs<L, D> {
    /// Over a mounted layout, none of whose tiers is attached yet.
    pub fn new(layout: L, options: MoverOptions) -> MoverFs<L, D> {
        MoverFs::with_frames(layout, options, Arc::default())
    }

    /// The same, with a page cache that takes its DRAM from these frames, and uses the part that the other owner leaves
    /// unused.
    pub fn with_frames(layout: L, options: MoverOptions, frames: Arc<Frames>) -> MoverFs<L, D> {
        let tiers = Arc::new(TierSet::with_frames(options.page_cache, frames));
        layout.read_images_with(Arc::clone(&tiers) as _);
        for tier in layout.tiers() {
            tiers.detach(tier.number, NOT_ATTACHED);
        }
        let (read_ahead, known_files) = (options.read_ahead, options.known_files);
        let settings = Arc::new(Settings::new(options));
        let fs = MoverFs {
            layout,
            tiers,
            predictors: Predictors::new(Arc::clone(&settings)),
            readers: Readers::new(read_ahead),
            ahead: Arc::new(Ahead::new()),
            sink: Sink::default(),
            missed: Missed::default(),
            promises: Promises::default(),
            held: Mutex::default(),
            keeper: Mutex::new(Keeper::new(known_files)),
            filling: Mutex::new(()),
            drains: Mutex::new(BTreeMap::new()),
            trims: Trims::default(),
            wishes: Wishes::default(),
            moved: AtomicU64::new(0),
            lowered: AtomicU64::new(0),
            raised: AtomicU64::new(0),
            descended: AtomicU64::new(0),
            paused: AtomicBool::new(false),
            allowance: AtomicI64::new(0),
            large_to_disk: AtomicBool::new(true),
            logs_compacted: AtomicU64::new(0),
            log_blocks_freed: AtomicU64::new(0),
            logs_moved: AtomicU64::new(0),
            doing: Mutex::default(),
            queue: Mutex::default(),
            turn: AtomicUsize::new(0),
            waiting: AtomicU64::new(0),
            is_stuck: AtomicBool::new(false),
            look_again: AtomicBool::new(false),
            changing: Mutex::new(()),
            has_told_full: AtomicBool::new(false),
            settings,
        };
        fs.steer();
        fs
    }

    /// Where large asynchronous writes go as long as the options say nothing of it; else to disk, as in TPFS.
    #[must_use]
    pub fn with_large_writes(self, usual: LargeWrites) -> MoverFs<L, D> {
        self.settings.set_large_writes(usual);
        self.steer();
        self
    }

    /// Sends large asynchronous writes to disk if they always go there. Otherwise the next tick decides.
    fn steer(&self) {
        let is_always = self.settings.now().disk_threshold(self.threshold()).is_none();
        self.large_to_disk.store(is_always, Ordering::Relaxed);
    }

    /// Lends half of the page cache's DRAM to the other user of its [frames](MoverFs::with_frames), as long as that one
    /// leaves its own unused DRAM idle. Gives the bytes.
    pub fn lend_dram(&self) -> u64 {
        self.tiers.pages().lend()
    }

    /// Hours are those of local time, which is ahead of UTC by as many seconds as this says, for a time in milliseconds since
    /// 1970. Without it they are of UTC.
    pub fn with_local_time(self, ahead_s: fn(u64) -> i64) -> MoverFs<L, D> {
        self.settings.set_local_time(ahead_s);
        self
    }

    /// Applies these options from now on. They are the page cache, the group of blocks, the rules of the predictors,
    /// moves for the sake of reads, the hours and the limit of the mover, and three thresholds. These are the usage for
    /// compacting logs, for rebalancing tiers and for large writes to disk. The other options stay as they were set up.
    pub fn change(&self, options: &MoverOptions) {
        self.tiers.pages().resize(options.page_cache);
        self.settings.set_options(options.clone());
        self.steer();
        self.predictors.changed();
    }

    /// Blocks that are moved as one; they may be others the next time.
    pub(crate) fn group(&self) -> u64 {
        self.settings.group()
    }

    /// Whether blocks move for the sake of reads, too.
    pub(crate) fn balances(&self) -> bool {
        self.settings.now().options.balance
    }

    /// The ranges to be read ahead, for threads that [fetch](MoverFs::fetch) them.
    pub fn ahead(&self) -> &Arc<Ahead> {
        &self.ahead
    }

    /// The layout below.
    pub fn layout(&self) -> &L {
        &self.layout
    }

    /// The layout below, to unmount it.
    pub fn into_layout(self) -> L {
        self.layout
    }

    /// The devices.
    pub fn tiers(&self) -> &TierSet<D> {
        &self.tiers
    }

    /// Attaches the device of a tier that the file system has. `token` is a number that no other mount chooses, and not 0;
    /// without one nothing is written to it, or to the file system, and it may only be read.
    ///
    /// A device that was last used by another mount than the file system says is an older copy of the tier, or the file
    /// system is an older copy: [`Corrupt`](Kind::Corrupt). [`InvalidInput`](Kind::InvalidInput) for a device that is
    /// no tier of this file system. [`Busy`](Kind::Busy) while the tier has a device, of which this one may be a copy.
    /// [`DeviceLost`](Kind::DeviceLost) for one that was cut short, also when it was made longer again.
    pub fn attach(&self, device: D, volume: Uuid, token: Option<u64>) -> Result<u8> {
        let _changing = self.changing.lock();
        let (label, tier) = self.recognize(&device, volume)?;
        let has = label.token();
        self.tiers.attach(tier.number, device, label);
        let counted = self.layout.count_tier(tier.number);
        match counted.inspect_err(|error| self.tiers.detach(tier.number, error.to_string()))? {
            None => {}
            Some(error) => self.tiers.tell_later(format!(
                "tier {}: what is free on it is not known, and nothing new is placed there: {error}",
                tier.number
            )),
        }
        if let Some(token) = token {
            self.use_from(&Tier { token: has, ..tier }, token)
                .inspect_err(|error| self.tiers.detach(tier.number, error.to_string()))?;
        }
        if let Some(Attachment { device: Ok(name), .. }) = self.tiers.attachment(tier.number) {
            self.tiers.tell(&format!("tier {} is there: {name}", tier.number));
        }
        self.sink.set(true);
        Ok(tier.number)
    }

    /// The number of the tier that [`attach`](MoverFs::attach) would attach, with the errors that it would give; nothing is changed.
    pub fn would_attach(&self, device: &D, volume: Uuid) -> Result<u8> {
        let _changing = self.changing.lock();
        self.recognize(device, volume).map(|(_, tier)| tier.number)
    }

    /// The superblock of a device that may become that of a tier, and the tier.
    fn recognize(&self, device: &D, volume: Uuid) -> Result<(Label, Tier)> {
        let label = Label::read(device)?.ok_or_else(|| {
            Error::new(Kind::InvalidInput)
                .operation("attach")
                .object(device.name())
                .advice("it is no tier; nacre tier add makes it one")
        })?;
        let is_this = |tier: &&Tier| tier.uuid == label.uuid().into_bytes() && label.volume() == volume;
        let known = self.layout.tiers();
        let Some(tier) = known.iter().find(is_this).copied() else {
            return Err(Error::new(Kind::InvalidInput)
                .operation("attach")
                .object(format!(
                    "{}: tier {} of file system {}",
                    device.name(),
                    label.number(),
                    label.volume()
                ))
                .advice("it belongs to another file system, or was removed from this one"));
        };
        if let Some(Attachment { device: Ok(there), .. }) = self.tiers.attachment(tier.number) {
            return Err(Error::new(Kind::Busy)
                .operation("attach")
                .object(format!("{}: tier {} is on {there}", device.name(), tier.number))
                .advice("take it offline first"));
        }
        let has = label.token();
        let is_current = has == tier.token || tier.pending != 0 && has == tier.pending;
        if !is_current || label.blocks() != tier.blocks {
            return Err(Error::corrupt(format!(
                "tier {} on {}: it was not used together with this file system last",
                tier.number,
                device.name()
            ))
            .operation("attach")
            .advice("one of them is an older copy: give the one that belongs to the other"));
        }
        if label.was_cut(device) {
            return Err(Error::new(Kind::DeviceLost)
                .operation("attach")
                .object(format!(
                    "tier {} on {}: it was cut short, and made longer again",
                    tier.number,
                    device.name()
                ))
                .advice(
                    "what was cut off is gone: restore it from a copy, or remove the files that were on it",
                ));
        }
        Ok((label, tier))
    }

    /// Takes a tier's device away: accesses to data on it fail until it is attached again. `token` is as for
    /// [`MoverFs::attach`]: copies of the device made until now are older copies from then on, unless the device, or
    /// the file system, cannot take it.
    pub fn detach(&self, number: u8, token: Option<u64>, why: &str) -> Result<()> {
        let changing = self.changing.lock();
        let known = self.layout.tiers();
        let tier = known.iter().find(|tier| tier.number == number).ok_or_else(|| {
            Error::new(Kind::InvalidInput).operation("detach").object(format!("tier {number}"))
        })?;
        let noted = |token: &u64| {
            let change = TierChange::Set(Tier { pending: *token, ..*tier });
            self.layout.change_tier(change).is_ok()
        };
        let is_there = self.tiers.attachment(number).is_some_and(|at| at.device.is_ok());
        let token = token.filter(|_| is_there).filter(noted);
        let device = self.tiers.let_go(number, why);
        drop(changing);
        // A device that hangs blocks no other operation: it is detached by now. The file system knows both numbers
        // until this is done.
        if let (Some(token), Some(device)) = (token, device)
            && device.write_token(token).is_ok()
        {
            let _changing = self.changing.lock();
            let known = self.layout.tiers();
            let is_same = |now: &&Tier| now.uuid == tier.uuid && now.pending == token;
            if let Some(now) = known.iter().find(is_same) {
                self.layout.change_tier(TierChange::Set(Tier { token, pending: 0, ..*now }))?;
            }
        }
        Ok(())
    }

    /// Notes in the file system, on the device, and in the file system again that this mount uses the tier. Nothing of it
    /// may change before that; a crash in between leaves the device with one of the two numbers that the file system has.
    fn use_from(&self, tier: &Tier, token: u64) -> Result<()> {
        self.layout.change_tier(TierChange::Set(Tier { pending: token, ..*tier }))?;
        self.tiers.write_token(tier.number, token)?;
        self.layout.change_tier(TierChange::Set(Tier { token, pending: 0, ..*tier }))
    }

    /// Makes a device a tier of the file system; the data on it is lost. Gives its number. `token` is as for
    /// [`MoverFs::attach`].
    pub fn add(&self, device: D, volume: Uuid, rank: u8, token: u64, now: Timestamp) -> Result<u8> {
        self.add_as(None, device, volume, rank, token, now)
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
        let _changing = self.changing.lock();
        let known = self.layout.tiers();
        let is_free = |number: &u8| known.iter().all(|tier| tier.number != *number);
        let number = (1..=MAX_TIERS).find(is_free).ok_or_else(|| {
            Error::new(Kind::NoSpace)
                .operation("add")
                .object(format!("the {MAX_TIERS} tiers of a file system"))
        })?;
        let label = Label::create(&device, &NewLabel { uuid, volume, number, token, now })?;
        let uuid = label.uuid().into_bytes();
        let blocks = label.blocks();
        let tier = Tier { number, uuid, blocks, token, pending: 0, rank, state: TierState::Active };
        self.tiers.attach(number, device, label);
        self.layout.change_tier(TierChange::Set(tier)).inspect_err(|_| drop(self.tiers.forget(number)))?;
        self.sink.set(true);
        Ok(number)
    }

    /// Removes a tier on which nothing is any more: [`Busy`](Kind::Busy) otherwise.
    pub fn remove(&self, number: u8) -> Result<()> {
        let changing = self.changing.lock();
        self.without_trim(number, || self.layout.change_tier(TierChange::Remove(number)))?;
        self.drains.lock().remove(&number);
        let device = self.tiers.forget(number);
        drop(changing);
        if let Some(device) = device {
            // It is free for other uses, which look at the device; an error here loses nothing.
            let _ = device.erase();
        }
        Ok(())
    }

    /// No new blocks are placed on a tier from now on, or again. Then a drain that was begun is to begin anew.
    pub fn set_state(&self, number: u8, state: TierState) -> Result<()> {
        let _changing = self.changing.lock();
        let known = self.layout.tiers();
        let tier = known.iter().find(|tier| tier.number == number);
        let tier = tier.ok_or_else(|| Error::new(Kind::InvalidInput).object(format!("tier {number}")))?;
        if tier.state == state {
            return Ok(());
        }
        let change = || self.layout.change_tier(TierChange::Set(Tier { state, ..*tier }));
        match state {
            TierState::Draining => self.without(number, change)?,
            TierState::Active => change()?,
        }
        self.has_told_full.store(false, Ordering::Relaxed);
        if state == TierState::Active {
            self.drains.lock().retain(|drained, drain| *drained != number || drain.is_none());
            // Blocks that no tier took find room now.
            self.look_again.store(true, Ordering::Relaxed);
            self.tiers.tell(&format!("tier {number} is used again"));
        } else {
            self.tiers.tell(&format!("tier {number} is being drained: nothing new is placed on it"));
        }
        Ok(())
    }

    /// The tiers that blocks can be placed on, the fastest first; behind them those whose reads fail.
    pub(crate) fn usable(&self) -> Vec<Tier> {
        let mut tiers = self.layout.tiers();
        tiers.retain(|tier| tier.state == TierState::Active && self.tiers.takes_writes(tier.number));
        tiers.sort_by_cached_key(|tier| (self.tiers.is_doubtful(tier.number), tier.rank, tier.number));
        tiers
    }

    /// Runs `act`, for which the layout allocates blocks that are not written yet, on tiers that take some.
    pub(crate) fn on_usable<T>(&self, act: impl FnOnce() -> T) -> T {
        let usable = self.usable();
        let is_left_out = |number: &u8| usable.iter().all(|tier| tier.number != *number);
        let others: Vec<u8> =
            self.layout.tiers().iter().map(|tier| tier.number).filter(is_left_out).collect();
        self.layout.set_unusable(&others);
        act()
    }

    /// The same in the order in which new blocks are offered to them: those of one rank take turns, but that blocks go where
    /// those before them in the file are.
    pub(crate) fn takers(&self, before: Option<u8>) -> Vec<Tier> {
        let mut tiers = self.usable();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let key = |tier: &Tier| (self.tiers.is_doubtful(tier.number), tier.rank);
        for alike in tiers.chunk_by_mut(|one, other| key(one) == key(other)) {
            let first = alike.iter().position(|tier| Some(tier.number) == before);
            let first = first.unwrap_or(turn % alike.len());
            alike.rotate_left(first);
        }
        tiers
    }
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Extents for MoverFs<L, D> {
    fn resolve(&self, node: &L::Node, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>> {
        self.layout.resolve(node, start, len)
    }

    fn pin(&self, node: &L::Node, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>> {
        // A mapping wants PM. Until it is pinned, others may demote it again.
        for _ in 0..ATTEMPTS {
            let _moved = self.with_room(|| self.bring_up(node, start, len))?;
            let extents = self.layout.pin(node, start, len)?;
            if !extents.iter().any(|extent| matches!(extent.place, Place::Tier { .. })) {
                return Ok(extents);
            }
            self.layout.unpin(node);
        }
        Err(Error::new(Kind::Busy)
            .operation("map")
            .object(format!("inode {}", self.layout.id(node).number))
            .advice("blocks of it move all the time"))
    }

    fn unpin(&self, node: &L::Node) {
        self.layout.unpin(node);
        // While it was mapped it stayed, and every walk has passed it by.
        self.look_again.store(true, Ordering::Relaxed);
    }

    fn promise_cost(&self) -> PromiseCost {
        self.layout.promise_cost()
    }

    fn reserve(&self, blocks: u64) -> Result<()> {
        self.promise(blocks)
    }

    fn release(&self, blocks: u64) {
        self.end_promise(blocks);
    }

    fn stat(&self) -> FsStat {
        let mut stat = self.layout.stat();
        let usable = self.usable();
        let is_full = self.sink.is_on() && self.is_full_for_good(stat.available);
        for tier in self.layout.tiers() {
            // Blocks of every tier count; only tiers that take new blocks have room.
            if let Ok(space) = self.layout.tier_space(tier.number) {
                let is_usable = usable.iter().any(|one| one.number == tier.number);
                let free = if is_usable { space.free } else { 0 };
                stat.blocks += space.blocks;
                stat.free += free;
                stat.available += free;
            }
        }
        let promised = self.promised_below();
        stat.free = stat.free.saturating_sub(promised);
        stat.available = stat.available.saturating_sub(promised);
        if is_full {
            // Room on tiers does not help to make a file, and space reported as available must be.
            (stat.available, stat.inodes_free) = (0, 0);
        }
        stat
    }

    fn index_bytes(&self) -> u64 {
        self.layout.index_bytes() + self.tiers.pages().bytes()
    }

    fn capabilities(&self) -> Capabilities {
        self.layout.capabilities()
    }
}
