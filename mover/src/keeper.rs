//! The background pass: when blocks move, so that PM does not become full. Moves for the sake of reads are in
//! [`balance`](crate::balance).
//!
//! Above the utilisation threshold (TPFS, equation 1), data that was not written for longest moves to the fastest tier
//! that has room, until usage is below it. A write that finds no space does the same at once, for as much as it needs
//! (direct reclaim). The file system is therefore full only when all of its devices are.

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::ControlFlow;

use nacre_engine::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use nacre_engine::{
    BLOCK_SIZE, Durability, Error, FileBlock, InodeId, Kind, Place, Result, Tier, TierState, Tiered, size,
};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;
use nacre_policy::temperature::Span;
use nacre_policy::thresholds::utilisation_threshold;

use crate::balance::Balance;
use crate::batch::{Batch, Part};
use crate::budget::Budget;
use crate::compact::Logs;
use crate::data::ATTEMPTS;
use crate::descent::Descent;
use crate::fs::MoverFs;
use crate::status::{Doing, Way};
use crate::walk::{Left, Walk};
use crate::watch::{Access, Chosen, Heats};

/// The state of the mover. The thread that moves blocks because space is short holds it: one at a time.
pub(crate) struct Keeper {
    /// Of files on persistent memory.
    pub(crate) heats: Heats,
    /// Of what was read from tiers.
    pub(crate) below: Heats,
    pub(crate) balance: Balance,
    /// Through all files, for those of which nothing is known.
    pub(crate) walk: Walk,
    /// Of files on tiers that are nearly full.
    pub(crate) descent: Descent,
    /// Through all files, for their logs.
    pub(crate) logs: Logs,
    /// Its own way, of those that wait for room: they take files that are not cold, too.
    pub(crate) logs_for_room: Logs,
    /// Accesses of which it had not heard when it last looked.
    pub(crate) unheard: u64,
    /// When it was looked at, in milliseconds since 1970.
    looked_ms: u64,
    pub(crate) failure: Option<String>,
}

impl Keeper {
    /// It knows at most so many files of each kind.
    pub(crate) fn new(known_files: usize) -> Keeper {
        Keeper {
            heats: Heats::new(known_files),
            below: Heats::new(known_files),
            balance: Balance::default(),
            walk: Walk::default(),
            descent: Descent::default(),
            logs: Logs::default(),
            logs_for_room: Logs::default(),
            unheard: 0,
            looked_ms: 0,
            failure: None,
        }
    }

    /// A file of which the rest comes later.
    fn put_back<N>(&mut self, cold: Option<Current<N>>) {
        if let Some(cold) = cold {
            self.heats.put_back(cold.chosen.id);
        }
    }

    /// Adds the allowance for the time that has passed, at `rate` bytes in a second.
    fn allow(&mut self, allowance: &AtomicI64, rate: Option<u64>, now_ms: u64) {
        let passed = now_ms.saturating_sub(self.looked_ms).min(ALLOWANCE_MS);
        self.looked_ms = now_ms;
        let each_second = rate.and_then(|rate| i64::try_from(rate).ok()).unwrap_or(i64::MAX);
        let more = each_second.saturating_mul(passed as i64) / 1000;
        let allowed = allowance.load(Ordering::Relaxed).saturating_add(more).min(each_second);
        allowance.store(allowed, Ordering::Relaxed);
    }
}

/// The file that is moving down, and its first block that was not looked at.
pub(crate) struct Current<N> {
    pub(crate) chosen: Chosen,
    node: N,
    at: u64,
}

/// The result of a batch.
struct Went {
    /// Blocks that are on a tier now.
    moved: u64,
    /// The error of a part of it, if there is one.
    failure: Option<Error>,
    /// There was nothing to move.
    is_over: bool,
}

/// Why blocks move to a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// Space is short.
    Space,
    /// It is short for reserved data.
    Promise,
    /// They are read, and are to be read from DRAM.
    Reads,
    /// The tier that they are on is to be empty.
    Drain,
    /// It is nearly full, and slower ones are not.
    Descent,
}

impl Why {
    /// For a write that finds no space.
    pub(crate) fn room_for(durability: Durability) -> Why {
        match durability {
            Durability::Promised => Why::Promise,
            _ => Why::Space,
        }
    }
}

/// The most time for which unused allowance is granted, in milliseconds.
const ALLOWANCE_MS: u64 = 1000;

/// Of a write that finds no space, as many blocks more are made free: the next ones need some, too.
const AT_LEAST: u64 = 2048;

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

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> MoverFs<L, D> {
    /// Moves blocks only for direct reclaim, or as usual again.
    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }

    /// Whether an operation waits for room, and so for the mover.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Sets the bytes that are moved in a second, at most; direct reclaim is exempt. The limit is at least a block.
    pub fn limit(&self, rate: Option<u64>) {
        self.settings.set_rate(rate);
    }
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> MoverFs<L, D> {
    /// Blocks of persistent memory that are in use, in percent of those that can be.
    pub fn usage(&self) -> f64 {
        let stat = self.layout.stat();
        100.0 * (stat.blocks - stat.available.min(stat.blocks)) as f64 / stat.blocks.max(1) as f64
    }

    /// The usage above which cold blocks move down now, in percent.
    pub fn threshold(&self) -> f64 {
        let (read, written) = self.sink.recent_traffic();
        utilisation_threshold(read, written)
    }

    /// Looks whether persistent memory is used so much that large asynchronous writes go to disk now.
    pub(crate) fn look_at_large_writes(&self) {
        let threshold = self.settings.now().disk_threshold(self.threshold());
        self.large_to_disk.store(threshold.is_none_or(|above| self.usage() > above), Ordering::Relaxed);
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
    pub fn keep(&self, now_ms: u64, budget: &Budget<'_>) -> Result<u64> {
        let mut keeper = self.keeper.lock();
        self.sink.set_time(now_ms);
        self.tiers.set_time(now_ms);
        self.look_at_large_writes();
        self.take_in(&mut keeper);
        keeper.allow(&self.allowance, self.settings.rate(), now_ms);
        let is_over = || !budget.goes_on() || self.is_awaited();
        let free = Budget::within(&is_over, &self.allowance);
        let granted = self.grant(&mut keeper, &free);
        let mut cold = None;
        // Some of them: the demotion from PM behind that, for as long as it takes, would leave no time for it.
        let descended = self.descend(&mut keeper, now_ms, &free);
        let lowered = self.lower_coldest(&mut keeper, &mut cold, (now_ms, budget), &free);
        keeper.put_back(cold);
        self.compact_cold(&mut keeper, now_ms, &free);
        let balanced = self.balance(&mut keeper, now_ms, &free);
        Ok(granted + lowered? + balanced? + descended?)
    }

    /// Demotes the coldest data while usage is above the threshold, and as much as is allowed; gives the number of
    /// blocks.
    fn lower_coldest(
        &self,
        keeper: &mut Keeper,
        cold: &mut Option<Current<L::Node>>,
        (now_ms, budget): (u64, &Budget<'_>),
        free: &Budget<'_>,
    ) -> Result<u64> {
        let mut moved = 0;
        if self.usage() <= self.threshold() {
            // Nothing is to move: that something could not is over.
            keeper.failure = None;
        }
        while budget.goes_on() && self.is_too_full() && free.blocks() > 0 {
            let wanted = self.excess().clamp(1, free.blocks());
            let went = self.lower_batch(keeper, cold, Some(now_ms), (wanted, Why::Space), free);
            moved += went.moved;
            free.spend(went.moved);
            keeper.failure = went.failure.as_ref().map(ToString::to_string);
            if went.is_over && went.failure.is_none() {
                break;
            }
            if let Some(failure) = went.failure {
                return Err(failure);
            }
            if self.is_awaited() {
                break;
            }
        }
        Ok(moved)
    }

    /// Blocks that are in use above the threshold.
    fn excess(&self) -> u64 {
        let share = (self.usage() - self.threshold()).max(0.0) / 100.0;
        (share * self.layout.stat().blocks as f64).ceil() as u64
    }

    /// Whether cold blocks are to move down.
    pub(crate) fn is_too_full(&self) -> bool {
        self.sink.is_on() && self.usage() > self.threshold() && self.may_move()
    }

    /// Whether blocks may move whose space is not needed at once.
    pub(crate) fn may_move(&self) -> bool {
        !self.paused.load(Ordering::Relaxed)
            && self.settings.now().is_in_hours(self.sink.time_ms())
            && !self.usable().is_empty()
    }

    /// Makes at least so many blocks of persistent memory free; false when nothing more can be moved.
    pub(crate) fn make_room(&self, blocks: u64, why: Why) -> Result<bool> {
        let has_room = self.try_to_make_room(blocks, why);
        if let Ok(false) = has_room {
            self.tell_if_a_drain_keeps_room();
        }
        has_room
    }

    /// Says, once for each drain, that the tier being drained has room that goes unused. A full file system raises that
    /// question.
    fn tell_if_a_drain_keeps_room(&self) {
        let free = |tier: &Tier| self.layout.tier_space(tier.number).map_or(0, |space| space.free);
        let mut tiers = self.layout.tiers();
        tiers.retain(|tier| tier.state == TierState::Draining && free(tier) > 0);
        if tiers.is_empty() || self.has_told_full.swap(true, Ordering::Relaxed) {
            return;
        }
        for tier in tiers {
            self.tiers.tell(&format!(
                "no space is left, and tier {} has {} free: it is being drained; nacre tier drain --cancel has it used again",
                tier.number,
                size::print(free(&tier) * BLOCK_SIZE)
            ));
        }
    }

    fn try_to_make_room(&self, blocks: u64, why: Why) -> Result<bool> {
        if self.usable().is_empty() && !self.layout.has_logs() {
            return Ok(false);
        }
        // The room before this one waits: blocks moved by those before it in the queue are room for it, too. Otherwise,
        // of many, the last ones would want more than PM has.
        let before = self.room_here(why);
        let wanted = before + blocks.max(AT_LEAST);
        let _waiting = Waiting::begin(&self.waiting);
        // It is full for every operation.
        self.large_to_disk.store(true, Ordering::Relaxed);
        let mut keeper = self.keeper.lock();
        self.take_in(&mut keeper);
        let mut cold = None;
        let moved = match self.usable().is_empty() {
            true => Ok(0),
            false => self.lower_until(&mut keeper, &mut cold, wanted, why),
        };
        keeper.put_back(cold);
        // Where that was all that can move.
        let compacted = match &moved {
            Ok(_) => self.compact_until(&mut keeper, wanted, why),
            Err(_) => 0,
        };
        // Another operation may have made room while this one waited.
        let is_made = moved? + compacted > 0 || self.room_here(why) > before;
        self.note_room(is_made);
        Ok(is_made)
    }

    /// The blocks of PM that can be used for this.
    pub(crate) fn room_here(&self, why: Why) -> u64 {
        match why {
            Why::Promise => self.layout.memory_left(),
            _ => self.layout.stat().available,
        }
    }

    /// Demotes the coldest data until this many blocks of PM are available, or nothing more can be moved; gives the
    /// number of blocks.
    fn lower_until(
        &self,
        keeper: &mut Keeper,
        cold: &mut Option<Current<L::Node>>,
        wanted: u64,
        why: Why,
    ) -> Result<u64> {
        let mut moved = 0;
        loop {
            let missing = wanted.saturating_sub(self.room_here(why));
            if missing == 0 {
                return Ok(moved);
            }
            let went = self.lower_batch(keeper, cold, None, (missing, why), &Budget::default());
            moved += went.moved;
            if why == Why::Promise {
                self.moved_for_promised(went.moved);
            }
            match went.failure {
                // All tiers are full or fail, or there is no space for the entry that would say it.
                Some(error) if error.kind() == Kind::NoSpace => return Ok(moved),
                // One file cannot be read; others can.
                Some(error) if matches!(error.kind(), Kind::Media | Kind::Corrupt | Kind::Io) => {}
                Some(error) => return Err(error),
                None if went.is_over => return Ok(moved),
                None => {}
            }
        }
    }

    /// Does something that needs a little space; when there is none, blocks move down first.
    pub(crate) fn with_room<T>(&self, act: impl Fn() -> Result<T>) -> Result<T> {
        self.with_room_for(Why::Space, act)
    }

    pub(crate) fn with_room_for<T>(&self, why: Why, act: impl Fn() -> Result<T>) -> Result<T> {
        // Others may take it before this one does.
        for _ in 0..ATTEMPTS {
            match act() {
                Err(error) if error.kind() == Kind::NoSpace && self.sink.is_on() => {
                    if !self.make_room(1, why)? {
                        return Err(error);
                    }
                }
                other => return other,
            }
        }
        act()
    }

    fn take_in(&self, keeper: &mut Keeper) {
        let (samples, unheard) = (self.sink.take(), self.sink.unheard());
        for sample in &samples {
            let heats =
                if sample.access == Access::ReadBelow { &mut keeper.below } else { &mut keeper.heats };
            heats.take_in(sample);
        }
        // Only a look at all files tells which ones were not sampled, or had no room in the lists. The sampled ones are
        // known.
        let is_lost = std::mem::replace(&mut keeper.unheard, unheard) != unheard;
        if self.look_again.swap(false, Ordering::Relaxed) || is_lost || keeper.heats.has_dropped() {
            keeper.walk.leave(Left::Movable);
        }
        self.note_queue(keeper);
    }

    /// Demotes the coldest data as one batch: until it is `wanted` blocks, a group, or all that there is. It may be
    /// less if the budget is over.
    fn lower_batch(
        &self,
        keeper: &mut Keeper,
        cold: &mut Option<Current<L::Node>>,
        now_ms: Option<u64>,
        (wanted, why): (u64, Why),
        budget: &Budget<'_>,
    ) -> Went {
        let mut batch = Batch::default();
        // Blocks of a file that were never written go first: nothing is copied.
        let unwritten = Cell::new(0);
        let next = |keeper: &mut Keeper| {
            if unwritten.get() >= wanted {
                return ControlFlow::Break(());
            }
            let next = self.next_cold(keeper, now_ms);
            if let ControlFlow::Continue(Some(chosen)) = &next {
                let missing = wanted - unwritten.get();
                unwritten.set(unwritten.get() + self.lower_unwritten_of(chosen, missing, why));
            }
            next
        };
        let gathered = self.gather(keeper, cold, &next, (wanted, u64::MAX), budget, &mut batch);
        let unwritten = unwritten.get();
        self.moved.fetch_add(unwritten, Ordering::Relaxed);
        let is_over = batch.is_empty() && unwritten == 0 && matches!(gathered, Ok(ControlFlow::Break(())));
        let mut went = Went { moved: unwritten, failure: gathered.err(), is_over };
        if went.failure.is_some() {
            // Others come first, or one that cannot be read would be tried for ever.
            keeper.walk.leave(Left::Failed);
            *cold = None;
        }
        let Some(first) = batch.parts().first().map(Part::id) else { return went };
        let files = batch.parts().len() as u64;
        self.note_queue(keeper);
        let _doing = self.begin(Doing { inode: first.number, files, way: Way::Space });
        let all: HashMap<InodeId, u64> =
            batch.parts().iter().map(|part| (part.id(), part.blocks())).collect();
        for (id, placed) in self.place_batch(batch, why, &Budget::default()) {
            let error = match placed {
                Ok(placed) => {
                    went.moved += placed.moved;
                    if placed.moved + placed.changed < all[&id] {
                        // The tier has no room for the rest: it begins anew with the next one.
                        cold.take_if(|cold| cold.chosen.id == id);
                        keeper.heats.put_back(id);
                    }
                    continue;
                }
                Err(error) => error,
            };
            cold.take_if(|cold| cold.chosen.id == id);
            match error.kind() {
                // A program has it mapped: it stays.
                Kind::Busy => continue,
                // There may be room for it later.
                Kind::NoSpace => keeper.heats.put_back(id),
                _ => keeper.walk.leave(Left::Failed),
            }
            // That there was no room for all is told only when nothing else is.
            if went.failure.as_ref().is_none_or(|before| before.kind() == Kind::NoSpace) {
                went.failure = Some(error);
            }
        }
        self.moved.fetch_add(went.moved - unwritten, Ordering::Relaxed);
        // The blocks that did move made room.
        went.failure.take_if(|error| error.kind() == Kind::NoSpace && went.moved > 0);
        went
    }

    /// Gathers the next blocks to move, of one file after another, which come from `next`: until it is `enough` blocks,
    /// and never more than `most`. `Break` is that there is nothing more, or that it may not go on looking.
    pub(crate) fn gather(
        &self,
        keeper: &mut Keeper,
        current: &mut Option<Current<L::Node>>,
        next: &dyn Fn(&mut Keeper) -> ControlFlow<(), Option<Chosen>>,
        (enough, most): (u64, u64),
        budget: &Budget<'_>,
        batch: &mut Batch<L::Node>,
    ) -> Result<ControlFlow<()>> {
        while batch.blocks() < enough.min(most) {
            let Some(file) = current else {
                match next(keeper) {
                    ControlFlow::Continue(Some(chosen)) => *current = self.hold_chosen(keeper, chosen)?,
                    ControlFlow::Continue(None) if budget.goes_on() => {}
                    _ => return Ok(ControlFlow::Break(())),
                }
                continue;
            };
            let Some(group) = self.next_group(&file.node, &file.chosen, file.at)? else {
                *current = None;
                continue;
            };
            let range = (FileBlock(group.start), group.len.min(most - batch.blocks()));
            if !self.add_to(batch, &file.node, range, |place| matches!(place, Place::Pm(_)))? {
                break;
            }
            file.at = group.start + range.1;
            if !batch.is_empty() && !budget.goes_on() {
                break;
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Holds a file that was chosen; `None` when it is gone, or stays.
    fn hold_chosen(&self, keeper: &mut Keeper, chosen: Chosen) -> Result<Option<Current<L::Node>>> {
        match self.layout.node(chosen.id) {
            Err(error) if error.kind() == Kind::Stale => {
                keeper.heats.forget(chosen.id);
                Ok(None)
            }
            node => {
                let node = node?;
                Ok((!self.is_pinned(&node)).then_some(Current { chosen, node, at: 0 }))
            }
        }
    }

    /// The next group of the chosen blocks that has data, from `at` on.
    pub(crate) fn next_group(&self, node: &L::Node, chosen: &Chosen, mut at: u64) -> Result<Option<Span>> {
        for span in &chosen.spans {
            if span.end() <= at {
                continue;
            }
            match self.next_data(node, at.max(span.start))? {
                Some(data) if data < span.end() => {
                    let group = self.without_held(chosen.id, span.group(data, self.group()));
                    if group.len > 0 {
                        return Ok(Some(group));
                    }
                    return self.next_group(node, chosen, data + 1);
                }
                Some(data) => at = data,
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    /// A group up to the first of its blocks that stays.
    fn without_held(&self, id: InodeId, group: Span) -> Span {
        let held = self.held.lock();
        let inside =
            held.iter().filter(|(of, block)| *of == id && (group.start..group.end()).contains(block));
        let end = inside.map(|(_, block)| *block).min().unwrap_or(group.end());
        Span { start: group.start, len: end - group.start }
    }

    /// Whether other tiers may take what this one did not: it is full, or its device failed or is gone.
    pub(crate) fn passes_on(&self, tier: u8, error: &Error) -> bool {
        error.kind() == Kind::NoSpace || !self.tiers.takes_writes(tier)
    }
}
