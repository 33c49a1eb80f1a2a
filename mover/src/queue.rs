//! The queue of data to be moved: how much there is, and the next items, each with the cause for which it waits.
//!
//! The queue is bounded. Files are in lists of limited length, and orders are refused when too many wait. Accesses for
//! which the sample buffer has no room count as unheard: the mover then looks at all files.

use std::collections::BTreeSet;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{BLOCK_SIZE, TierState, Tiered};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;
use nacre_policy::Flow;
use nacre_policy::temperature::WHOLE_FILE_MS;

use crate::fs::MoverFs;
use crate::keeper::Keeper;
use crate::status::{Phase, Way};

/// Of each kind as many are named.
const NAMED: usize = 8;

/// The queue of data to be moved.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Queue {
    /// Files that move when it is their turn: the coldest first.
    pub files: u64,
    /// Files of which some blocks are too young.
    pub young: u64,
    /// Accesses that it will hear of when it looks.
    pub accesses: u64,
    /// It looks for files of which it knows nothing.
    pub is_looking: bool,
    /// The next items, a few of each kind: requested placements, tiers that wait for their drain to go on, cold files,
    /// young files, files that reads ask for, and files to be rebalanced to slower tiers.
    pub first: Vec<Queued>,
}

/// A file of which blocks wait to be moved, or a tier that waits to be drained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queued {
    /// The number of its inode; 0 of a tier.
    pub inode: u64,
    /// Bytes that the file has, wherever they are, or that are on the tier.
    pub bytes: u64,
    /// Why it is to move.
    pub way: Way,
    /// Why it has not.
    pub cause: Cause,
}

/// The cause for which something waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Those before it.
    Turn,
    /// Until its blocks are old enough: so many milliseconds more, if none is written.
    Young(u64),
    /// A caller that resumes an interrupted drain.
    Interrupted,
    /// PM with room below the threshold.
    NoRoom,
    /// The reason why the mover moves nothing by itself.
    Mover(Phase),
}

impl Cause {
    /// Its name for machines: that of the phase, where this is what keeps it.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Turn => "turn",
            Cause::Young(_) => Phase::Young.as_str(),
            Cause::Interrupted => "interrupted",
            Cause::NoRoom => "no_room",
            Cause::Mover(phase) => phase.as_str(),
        }
    }

    /// The cause that keeps a movable item waiting while the mover is in this phase.
    fn of(phase: Phase) -> Cause {
        match phase {
            // It is about to, or it was about to when it looked last.
            Phase::Moving | Phase::Beginning | Phase::Young | Phase::Nothing => Cause::Turn,
            Phase::Paused
            | Phase::NoTier
            | Phase::OutsideHours
            | Phase::Failed
            | Phase::BelowThreshold
            | Phase::Limited => Cause::Mover(phase),
        }
    }
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> MoverFs<L, D> {
    /// Keeps a copy of the queue for status queries while blocks move.
    pub(crate) fn note_queue(&self, keeper: &Keeper) {
        let queue = self.queue(keeper);
        *self.queue.lock() = queue;
    }

    pub(crate) fn queue(&self, keeper: &Keeper) -> Queue {
        let (files, young) = keeper.heats.counts();
        let is_looking = self.sink.is_on() && !keeper.walk.is_done();
        let mut first = Vec::new();
        self.add_told(&mut first);
        self.add_drains(&mut first);
        self.add_cold(keeper, &mut first);
        self.add_read(keeper, &mut first);
        self.add_descending(keeper, &mut first);
        Queue {
            files: files as u64,
            young: young as u64,
            accesses: self.sink.len() as u64,
            is_looking,
            first,
        }
    }

    /// Neither a pause nor the hours keep them.
    fn add_told(&self, first: &mut Vec<Queued>) {
        let cause = if self.is_limited() { Cause::Mover(Phase::Limited) } else { Cause::Turn };
        for id in self.wishes.first_ones(NAMED) {
            let size = self.layout.node(id).and_then(|node| self.layout.getattr(&node));
            // One that is gone is passed over when it is its turn.
            let bytes = size.map_or(0, |attr| attr.size);
            first.push(Queued { inode: id.number, bytes, way: Way::Told, cause });
        }
    }

    fn add_drains(&self, first: &mut Vec<Queued>) {
        let going_on: BTreeSet<u8> = {
            let drains = self.drains.lock();
            drains.iter().filter(|(_, rest)| rest.is_none()).map(|(tier, _)| *tier).collect()
        };
        for tier in self.layout.tiers() {
            if tier.state == TierState::Draining
                && !going_on.contains(&tier.number)
                && let Ok(space) = self.layout.tier_space(tier.number)
                && space.free < space.blocks
            {
                let left = (space.blocks - space.free) * BLOCK_SIZE;
                let way = Way::Drained { tier: tier.number, left };
                first.push(Queued { inode: 0, bytes: left, way, cause: Cause::Interrupted });
            }
        }
    }

    fn add_cold(&self, keeper: &Keeper, first: &mut Vec<Queued>) {
        if !self.sink.is_on() {
            return;
        }
        let held = Cause::of(self.phase_of_itself(keeper));
        let queued = |inode, blocks: u64, cause| Queued {
            inode,
            bytes: blocks.saturating_mul(BLOCK_SIZE),
            way: Way::Space,
            cause,
        };
        let cold = keeper.heats.coldest_ones(NAMED);
        first.extend(cold.map(|(id, blocks)| queued(id.number, blocks, held)));
        let now_ms = self.sink.time_ms();
        let young = keeper.heats.young_ones(NAMED).map(|(id, blocks, due_ms)| {
            let cause = if held == Cause::Turn { Cause::Young(due_ms.saturating_sub(now_ms)) } else { held };
            queued(id.number, blocks, cause)
        });
        first.extend(young);
    }

    /// Adds the files that the reads of the last seconds ask for.
    fn add_read(&self, keeper: &Keeper, first: &mut Vec<Queued>) {
        let Some(flow) = keeper.balance.flow().filter(|_| self.balances()) else { return };
        let (heats, way) = match flow {
            Flow::ToDram => (&keeper.heats, Way::Lowered),
            Flow::ToPm => (&keeper.below, Way::Raised),
        };
        let cause = match self.phase_of_itself(keeper) {
            phase @ (Phase::Paused | Phase::NoTier | Phase::OutsideHours) => Cause::Mover(phase),
            _ if self.is_limited() || keeper.balance.is_spent() => Cause::Mover(Phase::Limited),
            _ if flow == Flow::ToPm && self.room_below_threshold() == 0 => Cause::NoRoom,
            _ => Cause::Turn,
        };
        let hot = heats.hottest_ones(NAMED);
        first.extend(hot.map(|(id, blocks)| Queued {
            inode: id.number,
            bytes: blocks.saturating_mul(BLOCK_SIZE),
            way,
            cause,
        }));
    }

    /// Where tiers are nearly full.
    fn add_descending(&self, keeper: &Keeper, first: &mut Vec<Queued>) {
        if self.slope().is_none() {
            return;
        }
        let held = match self.phase_of_itself(keeper) {
            phase @ (Phase::Paused | Phase::NoTier | Phase::OutsideHours) => Some(Cause::Mover(phase)),
            _ => self.is_limited().then_some(Cause::Mover(Phase::Limited)),
        };
        let now_ms = self.sink.time_ms();
        for (used_ms, id) in keeper.descent.coldest_ones(NAMED) {
            let young_ms = used_ms.saturating_add(WHOLE_FILE_MS + 1).saturating_sub(now_ms);
            let cause = held.unwrap_or(if young_ms > 0 { Cause::Young(young_ms) } else { Cause::Turn });
            let size = self.layout.node(id).and_then(|node| self.layout.getattr(&node));
            let bytes = size.map_or(0, |attr| attr.size);
            first.push(Queued { inode: id.number, bytes, way: Way::Descended, cause });
        }
    }

    /// Whether as much was moved as the limit allows for now.
    pub(crate) fn is_limited(&self) -> bool {
        self.settings.rate().is_some() && self.allowance.load(Ordering::Relaxed) <= 0
    }
}
