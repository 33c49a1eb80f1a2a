//! Direct reclaim: a write that finds no space demotes blocks itself, for as much as it needs. The file system is
//! therefore full only when all of its devices are.

use nacre_engine::sync::MutexGuard;
use nacre_engine::sync::atomic::{AtomicU64, Ordering};
use nacre_engine::{BLOCK_SIZE, FsStat, Kind, Result, Step, Tier, TierState, Tiered, size, with_room};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;
use nacre_policy::migration::Need;

use crate::engine::budget::Budget;
use crate::engine::executor::Why;
use crate::engine::state::State;
use crate::engine::{Engine, Mover};

/// Of a write that finds no space, as many blocks more are made free: the next ones need some, too.
const AT_LEAST: u64 = 2048;

/// With fewer blocks of PM than this, it may be impossible to make a file: inodes come in chunks of 17 blocks, and the
/// name may need a page.
const LEAST: u64 = 32;

/// Times that an operation is tried, with the blocks at its edges promoted before each: another thread may demote
/// them in between.
pub(crate) const ATTEMPTS: u32 = Step::Relocation.tries();

/// An operation that waits for room, as long as this lives.
struct Waiting<'f>(&'f AtomicU64);

impl<'f> Waiting<'f> {
    fn begin(count: &'f AtomicU64) -> Waiting<'f> {
        count.fetch_add(1, Ordering::Relaxed);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Work of direct reclaim without the lock of the state, as long as this lives.
pub(crate) struct Flight<'f> {
    engine: &'f Engine,
    blocks: u64,
    is_landed: bool,
}

impl<'f> Flight<'f> {
    /// Work by which so many blocks may become free.
    pub(crate) fn begin(engine: &'f Engine, state: &mut State, blocks: u64) -> Flight<'f> {
        state.in_flight.begin(blocks);
        Flight { engine, blocks, is_landed: false }
    }

    /// Ends it, with the state locked: others see its end and what the caller settles then at once.
    pub(crate) fn land(mut self) -> MutexGuard<'f, State> {
        let state = self.end();
        self.is_landed = true;
        state
    }

    fn end(&self) -> MutexGuard<'f, State> {
        let mut state = self.engine.state.lock();
        state.in_flight.end(self.blocks);
        self.engine.landed.notify_all();
        state
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        // It panicked: those that wait for it would wait for ever.
        if !self.is_landed {
            drop(self.end());
        }
    }
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Mover<'_, L, D> {
    /// Does something that needs a little space; when there is none, blocks move down first.
    pub(crate) fn with_reclaim<T>(&self, act: impl Fn() -> Result<T>) -> Result<T> {
        with_room(Step::Relocation, act, |_| self.make_room(1, Why::Space))
    }

    /// Makes at least so many blocks of PM free, if there are tiers.
    pub(crate) fn make_room(&self, blocks: u64, why: Why) -> Result<bool> {
        Ok(self.places.has_tiers() && self.reclaim(blocks, why)?)
    }

    /// Makes at least so many blocks of PM free; false when nothing more can be moved.
    pub(crate) fn reclaim(&self, blocks: u64, why: Why) -> Result<bool> {
        let has_room = self.try_reclaim(blocks, why);
        if let Ok(false) = has_room {
            self.tell_if_a_drain_keeps_room();
        }
        has_room
    }

    /// Says, once for each drain, that the tier being drained has room that goes unused. A full file system raises that
    /// question.
    fn tell_if_a_drain_keeps_room(&self) {
        let free = |tier: &Tier| self.places.layout.tier_space(tier.number).map_or(0, |space| space.free);
        let mut tiers = self.places.layout.tiers();
        tiers.retain(|tier| tier.state == TierState::Draining && free(tier) > 0);
        if tiers.is_empty() || self.engine.has_told_full.swap(true, Ordering::Relaxed) {
            return;
        }
        for tier in tiers {
            self.places.tiers.tell(&format!(
                "no space is left, and tier {} has {} free: it is being drained; nacre tier drain --cancel uses it \
                 again",
                tier.number,
                size::print(free(&tier) * BLOCK_SIZE)
            ));
        }
    }

    fn try_reclaim(&self, blocks: u64, why: Why) -> Result<bool> {
        if self.places.usable().is_empty() && !self.places.layout.has_logs() {
            return Ok(false);
        }
        // The room before this one waits: blocks moved by those before it in the queue are room for it, too. Otherwise,
        // of many, the last ones would want more than PM has.
        let before = self.room_here(why);
        let wanted = before + blocks.max(AT_LEAST);
        let _waiting = Waiting::begin(&self.places.waiting);
        // It is full for every operation.
        self.engine.large_to_disk.store(true, Ordering::Relaxed);
        let moved = match self.places.usable().is_empty() {
            true => Ok(0),
            false => self.demote_until(wanted, why),
        };
        // Where that was all that can move.
        let compacted = match &moved {
            Ok(_) => self.compact_until(wanted, why),
            Err(_) => 0,
        };
        // Another operation may have made room while this one waited.
        let is_made = moved? + compacted > 0 || self.room_here(why) > before;
        self.note_reclaim(is_made);
        Ok(is_made)
    }

    /// The blocks of PM that can be used for this.
    pub(crate) fn room_here(&self, why: Why) -> u64 {
        match why {
            Why::Reserved => self.places.layout.pm_use().unused,
            _ => self.places.layout.stat().available,
        }
    }

    /// Demotes the coldest data until this many blocks of PM are available, or nothing more can be moved; gives the
    /// number of blocks.
    ///
    /// The state is locked to choose and to settle, and not while blocks are copied. Blocks in flight count as room that
    /// is about to be: several operations together demote no more than they need. Nothing is over as long as anything
    /// is in flight, which may free blocks, or put files back.
    fn demote_until(&self, wanted: u64, why: Why) -> Result<u64> {
        let usage = self.usage_for(Need::Reclaim, self.stats.samples.time_ms());
        let (mut moved, mut cold) = (0, None);
        let mut state = self.engine.state.lock();
        let done = loop {
            let missing = wanted.saturating_sub(self.room_here(why));
            if missing == 0 {
                break Ok(());
            }
            let missing = missing.saturating_sub(state.in_flight.blocks());
            if missing == 0 {
                self.engine.landed.wait(&mut state);
                continue;
            }
            // Others have written meanwhile: that may move, too.
            self.take_in(&mut state);
            let wants = (missing, why);
            let (batch, mut went) =
                self.gather_cold(&mut state, &mut cold, &usage, wants, &Budget::default());
            if !batch.is_empty() {
                let flight = Flight::begin(self.engine, &mut state, batch.blocks());
                drop(state);
                let placed = self.place_cold(batch, why);
                state = flight.land();
                self.settle_cold(&mut state, &mut cold, placed, &mut went);
            }
            moved += went.moved;
            if why == Why::Reserved {
                self.places.moved_for_reserved(went.moved);
            }
            let is_over = match went.failure {
                // All tiers are full or fail, or there is no space for the entry that would say it.
                Some(error) if error.kind() == Kind::NoSpace => true,
                // One file cannot be read; others can.
                Some(error) if matches!(error.kind(), Kind::Media | Kind::Corrupt | Kind::Io) => false,
                Some(error) => break Err(error),
                None => went.is_over,
            };
            if is_over && !state.in_flight.is_any() {
                break Ok(());
            }
            if is_over {
                self.engine.landed.wait(&mut state);
            }
        };
        state.put_back(cold);
        done.map(|()| moved)
    }

    /// Whether PM has room for this many blocks of reserved data, after demotion if it must. A layout gives reserved
    /// data its last block, because it assumes a full reservation in PM. This data has none there, and without a block
    /// for the entries that locate it nothing could move any more.
    pub(crate) fn has_room_for_reserved(&self, blocks: u64) -> bool {
        let needed = self.places.layout.capabilities().write_cost.block * blocks;
        let has_room = || self.places.layout.pm_use().unused >= needed;
        has_room() || self.reclaim(needed, Why::Reserved).unwrap_or(false) && has_room()
    }

    /// Notes whether direct reclaim has moved anything.
    pub(crate) fn note_reclaim(&self, is_made: bool) {
        self.engine.is_stuck.store(!is_made, Ordering::Relaxed);
    }

    /// Whether PM is full of blocks that cannot move, so that no name can be made, however much room the tiers have.
    pub(crate) fn is_full_for_good(&self, available: u64) -> bool {
        available < LEAST
            && self.engine.is_stuck.load(Ordering::Relaxed)
            && !self.engine.scan_again.load(Ordering::Relaxed)
    }

    /// The space of PM and of all tiers.
    pub(crate) fn stat(&self) -> FsStat {
        let mut stat = self.places.layout.stat();
        let usable = self.places.usable();
        let is_full = self.places.has_tiers() && self.is_full_for_good(stat.available);
        for tier in self.places.layout.tiers() {
            // Blocks of every tier count; only tiers that take new blocks have room.
            if let Ok(space) = self.places.layout.tier_space(tier.number) {
                let is_usable = usable.iter().any(|one| one.number == tier.number);
                let free = if is_usable { space.free } else { 0 };
                stat.blocks += space.blocks;
                stat.free += free;
                stat.available += free;
            }
        }
        let reserved = self.places.reserved_on_tiers();
        stat.reserved += reserved;
        stat.free = stat.free.saturating_sub(reserved);
        stat.available = stat.available.saturating_sub(reserved);
        if is_full {
            // Room on tiers does not help to make a file, and space reported as available must be.
            stat.inodes -= stat.inodes_free;
            (stat.available, stat.inodes_free) = (0, 0);
        }
        stat
    }
}
