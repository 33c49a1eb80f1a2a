//! When blocks move: persistent memory is kept from being full. What moves for the sake of reads is in
//! [`balance`](crate::balance).
//!
//! Above the utilisation threshold (TPFS, equation 1) what was not written for longest moves to the fastest tier that has
//! room, until usage is below it. Whoever finds no space for a write does the same at once, for as much as the write needs:
//! then the file system is full only when all of its devices are.

use std::cell::Cell;
use std::ops::ControlFlow;

use nacre_engine::sync::atomic::{AtomicU64, Ordering};
use nacre_engine::{BLOCK_SIZE, Error, FileBlock, InodeId, Kind, Result, Tiered};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;
use nacre_policy::temperature::Span;
use nacre_policy::thresholds::utilisation_threshold;

use crate::balance::Balance;
use crate::fs::MoverFs;
use crate::status::{Doing, Way};
use crate::walk::{Left, Walk};
use crate::watch::{Access, Chosen, Heats};

/// What the mover knows. Held by whoever moves blocks because space is short: one at a time.
pub(crate) struct Keeper {
    /// Of files on persistent memory.
    pub(crate) heats: Heats,
    /// Of what was read from tiers.
    pub(crate) below: Heats,
    pub(crate) balance: Balance,
    /// Through all files, for those of which nothing is known.
    pub(crate) walk: Walk,
    /// Accesses of which it had not heard when it last looked.
    pub(crate) unheard: u64,
    /// Bytes that the rate allows to be moved now; less than none after a group was larger.
    pub(crate) allowance: i64,
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
            unheard: 0,
            allowance: 0,
            looked_ms: 0,
            failure: None,
        }
    }

    /// What may be moved at this time, at so many bytes in a second.
    fn allow(&mut self, rate: u64, now_ms: u64) {
        let passed = now_ms.saturating_sub(self.looked_ms).min(ALLOWANCE_MS);
        self.looked_ms = now_ms;
        let each_second = i64::try_from(rate).unwrap_or(i64::MAX);
        let more = each_second.saturating_mul(passed as i64) / 1000;
        self.allowance = self.allowance.saturating_add(more).min(each_second);
    }
}

/// Why blocks move down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// Space is short.
    Space,
    /// They are read, and are to be read from DRAM.
    Reads,
}

/// What was not moved in this time cannot be made up for.
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

    /// Looks at what was accessed, and moves files that were told to move, cold blocks down while usage is above the threshold,
    /// and blocks that are read to where reads want them; gives the number of blocks. For a thread that does it again and again, a few times in a second,
    /// at a time in milliseconds since 1970.
    ///
    /// Who needs room goes first: this ends after a group when somebody waits for some. What there is to move is less by
    /// then, and as it is not here again at once, the lock is theirs.
    pub fn keep(&self, now_ms: u64, goes_on: &dyn Fn() -> bool) -> Result<u64> {
        let mut keeper = self.keeper.lock();
        self.sink.set_time(now_ms);
        self.tiers.set_time(now_ms);
        self.take_in(&mut keeper);
        keeper.allow(self.rate.load(Ordering::Relaxed), now_ms);
        let mut moved = self.grant(&mut keeper, &|| goes_on() && !self.is_awaited());
        while goes_on() && self.is_too_full() && keeper.allowance > 0 {
            let cold = match self.next_cold(&mut keeper, Some(now_ms)) {
                ControlFlow::Continue(Some(cold)) => cold,
                ControlFlow::Continue(None) if self.is_awaited() => break,
                ControlFlow::Continue(None) => continue,
                ControlFlow::Break(()) => break,
            };
            let allowance = Cell::new(keeper.allowance);
            let is_enough = |blocks| {
                allowance.set(allowance.get().saturating_sub_unsigned(blocks * BLOCK_SIZE));
                allowance.get() <= 0 || self.is_awaited() || !self.is_too_full()
            };
            let done = self.move_cold(&mut keeper, &cold, &is_enough);
            keeper.allowance = allowance.get();
            keeper.failure = done.as_ref().err().map(ToString::to_string);
            moved += done?;
            if self.is_awaited() {
                break;
            }
        }
        Ok(moved + self.balance(&mut keeper, now_ms, &|| goes_on() && !self.is_awaited())?)
    }

    /// Whether somebody waits for room, and so for the mover.
    fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Whether cold blocks are to move down.
    pub(crate) fn is_too_full(&self) -> bool {
        self.sink.is_on() && self.usage() > self.threshold() && self.may_move()
    }

    /// Whether blocks may move of which nobody needs the space at once.
    pub(crate) fn may_move(&self) -> bool {
        !self.paused.load(Ordering::Relaxed) && !self.usable().is_empty()
    }

    /// Moves blocks only for who needs space now, or as usual again.
    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }

    /// Bytes that are moved in a second at the most, but for who needs space now. A block at least is.
    pub fn limit(&self, rate: Option<u64>) {
        self.rate.store(rate.map_or(u64::MAX, |rate| rate.max(BLOCK_SIZE)), Ordering::Relaxed);
    }

    /// Makes at least so many blocks of persistent memory free; false when nothing more can be moved.
    pub(crate) fn make_room(&self, blocks: u64) -> Result<bool> {
        if self.usable().is_empty() {
            return Ok(false);
        }
        // As it is before this one waits: what those before it in the queue have moved is room for it, too. Or else, of many, the
        // last ones would want more than memory has.
        let before = self.layout.stat().available;
        let wanted = before + blocks.max(AT_LEAST);
        let is_enough = |_| self.layout.stat().available >= wanted;
        let _waiting = Waiting::begin(&self.waiting);
        let mut keeper = self.keeper.lock();
        self.take_in(&mut keeper);
        let mut moved = 0;
        // Somebody else may have made room while this one waited.
        while !is_enough(0) {
            let cold = match self.next_cold(&mut keeper, None) {
                ControlFlow::Continue(Some(cold)) => cold,
                ControlFlow::Continue(None) => continue,
                ControlFlow::Break(()) => break,
            };
            match self.move_cold(&mut keeper, &cold, &is_enough) {
                Ok(count) => moved += count,
                // All tiers are full or fail, or there is no space for the entry that would say it.
                Err(error) if error.kind() == Kind::NoSpace => break,
                // One file cannot be read; others can.
                Err(error) if matches!(error.kind(), Kind::Media | Kind::Corrupt | Kind::Io) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(moved > 0 || self.layout.stat().available > before)
    }

    /// Does something that needs a little space; when there is none, blocks move down first.
    pub(crate) fn with_room<T>(&self, act: impl Fn() -> Result<T>) -> Result<T> {
        match act() {
            Err(error) if error.kind() == Kind::NoSpace && self.sink.is_on() => match self.make_room(1)? {
                true => act(),
                false => Err(error),
            },
            other => other,
        }
    }

    fn take_in(&self, keeper: &mut Keeper) {
        let (samples, unheard) = (self.sink.take(), self.sink.unheard());
        for sample in &samples {
            let heats =
                if sample.access == Access::ReadBelow { &mut keeper.below } else { &mut keeper.heats };
            heats.take_in(sample);
        }
        // Which files those were that it did not hear of, or has no room for, only a look at all of them tells. What it did
        // hear of it knows.
        let is_lost = std::mem::replace(&mut keeper.unheard, unheard) != unheard;
        if self.look_again.swap(false, Ordering::Relaxed) || is_lost || keeper.heats.has_dropped() {
            keeper.walk.leave(Left::Movable);
        }
    }

    /// Moves what of a file is cold, until it is enough: that is asked after each group, with the blocks that moved.
    fn move_cold(
        &self,
        keeper: &mut Keeper,
        chosen: &Chosen,
        is_enough: &dyn Fn(u64) -> bool,
    ) -> Result<u64> {
        let node = match self.layout.node(chosen.id) {
            Err(error) if error.kind() == Kind::Stale => {
                keeper.heats.forget(chosen.id);
                return Ok(0);
            }
            other => other?,
        };
        if self.is_pinned(&node) {
            return Ok(0);
        }
        let _doing = self.begin(Doing { inode: chosen.id.number, way: Way::Space });
        let mut moved = 0;
        let mut at = 0;
        while let Some(group) = self.next_group(&node, chosen, at)? {
            at = group.end();
            let blocks = match self.place_group(&node, FileBlock(group.start), group.len, Why::Space) {
                // A program has it mapped: it stays.
                Err(error) if error.kind() == Kind::Busy => break,
                Err(error) => {
                    match error.kind() {
                        // There may be room for it later.
                        Kind::NoSpace => keeper.heats.put_back(chosen.id),
                        // Others come first, or one that cannot be read would be tried for ever.
                        _ => keeper.walk.leave(Left::Failed),
                    }
                    self.moved.fetch_add(moved, Ordering::Relaxed);
                    // What did move made room.
                    return if moved > 0 && error.kind() == Kind::NoSpace { Ok(moved) } else { Err(error) };
                }
                Ok(blocks) => blocks,
            };
            moved += blocks;
            if blocks > 0 && is_enough(blocks) {
                keeper.heats.put_back(chosen.id);
                break;
            }
        }
        self.moved.fetch_add(moved, Ordering::Relaxed);
        Ok(moved)
    }

    /// What moves next of what was chosen, of the blocks from `at` on: where there is data.
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

    /// Moves a group to the fastest tier that has room. [`NoSpace`](Kind::NoSpace) when none takes it.
    pub(crate) fn place_group(&self, node: &L::Node, start: FileBlock, len: u64, why: Why) -> Result<u64> {
        let mut full: Error = Kind::NoSpace.into();
        for tier in self.takers(None) {
            // A copy stays in DRAM where it is to be read from there, and else while that has room (TPFS, 5.3).
            let keep = why == Why::Reads || self.tiers.pages().bytes() < self.tiers.pages().capacity() / 2;
            let moved = self.move_from_memory(node, tier.number, start, len, keep).map(|moved| moved.moved);
            match moved {
                Err(error) if self.passes_on(tier.number, &error) => {
                    full = match error.kind() {
                        Kind::NoSpace => error,
                        _ => Error::new(Kind::NoSpace).object(error.to_string()),
                    };
                }
                other => return other,
            }
        }
        Err(full)
    }

    /// Whether other tiers may take what this one did not: it is full, or its device failed or is gone.
    pub(crate) fn passes_on(&self, tier: u8, error: &Error) -> bool {
        error.kind() == Kind::NoSpace || !self.tiers.takes_writes(tier)
    }
}
