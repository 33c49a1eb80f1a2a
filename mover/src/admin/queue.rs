//! The queue of data to be moved: how much there is, and the next items, each with the cause for which it waits.
//!
//! The queue is bounded. Files are in lists of limited length, and orders are refused when too many wait. Accesses for
//! which the sample buffer has no room are lost: the mover then scans all files.

use std::collections::BTreeSet;

use nacre_engine::{BLOCK_SIZE, TierState, Tiered};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;
use nacre_policy::Flow;
use nacre_policy::migration::anticache::Stage;
use nacre_policy::temperature::WHOLE_FILE_MS;

use crate::engine::Mover;
use crate::engine::progress::{Cause, Phase, Queue, Queued, Way};
use crate::engine::state::State;

/// Of each kind as many are named.
const NAMED: usize = 8;

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Mover<'_, L, D> {
    /// Keeps a copy of the queue for status queries while blocks move.
    pub(crate) fn note_queue(&self, state: &State) {
        let queue = self.queue(state);
        *self.engine.queue.lock() = queue;
    }

    pub(crate) fn queue(&self, state: &State) -> Queue {
        let mut first = Vec::new();
        self.add_told(&mut first);
        self.add_drains(&mut first);
        let accesses = self.stats.samples.len() as u64;
        if self.places.settings.has_anticache() {
            let is_looking = state.anticache.stage() != Stage::Rest;
            return Queue { accesses, is_looking, first, ..Queue::default() };
        }
        let (files, young) = state.tpfs.on_pm.counts();
        let is_looking = self.places.has_tiers() && !state.tpfs.scan.is_done();
        self.add_cold(state, &mut first);
        self.add_read(state, &mut first);
        self.add_rebalanced(state, &mut first);
        Queue { files: files as u64, young: young as u64, accesses, is_looking, first }
    }

    /// Neither a pause nor the hours keep them.
    fn add_told(&self, first: &mut Vec<Queued>) {
        let cause = if self.is_limited() { Cause::Mover(Phase::Limited) } else { Cause::Turn };
        for id in self.engine.hints.first_ones(NAMED) {
            let size = self.places.layout.node(id).and_then(|node| self.places.layout.getattr(&node));
            // One that is gone is passed over when it is its turn.
            let bytes = size.map_or(0, |attr| attr.size);
            first.push(Queued { inode: id.number, bytes, way: Way::Told, cause });
        }
    }

    fn add_drains(&self, first: &mut Vec<Queued>) {
        let going_on: BTreeSet<u8> = {
            let drains = self.engine.drains.lock();
            drains.iter().filter(|(_, rest)| rest.is_none()).map(|(tier, _)| *tier).collect()
        };
        for tier in self.places.layout.tiers() {
            if tier.state == TierState::Draining
                && !going_on.contains(&tier.number)
                && let Ok(space) = self.places.layout.tier_space(tier.number)
                && space.free < space.blocks
            {
                let left = (space.blocks - space.free) * BLOCK_SIZE;
                let way = Way::Drained { tier: tier.number, left };
                first.push(Queued { inode: 0, bytes: left, way, cause: Cause::Interrupted });
            }
        }
    }

    fn add_cold(&self, state: &State, first: &mut Vec<Queued>) {
        if !self.places.has_tiers() {
            return;
        }
        let held = Cause::of(self.phase_of_itself(state));
        let queued = |inode, blocks: u64, cause| Queued {
            inode,
            bytes: blocks.saturating_mul(BLOCK_SIZE),
            way: Way::Space,
            cause,
        };
        let cold = state.tpfs.on_pm.coldest_ones(NAMED);
        first.extend(cold.map(|(id, blocks)| queued(id.number, blocks, held)));
        let now_ms = self.stats.samples.time_ms();
        let young = state.tpfs.on_pm.young_ones(NAMED).map(|(id, blocks, due_ms)| {
            let cause = if held == Cause::Turn { Cause::Young(due_ms.saturating_sub(now_ms)) } else { held };
            queued(id.number, blocks, cause)
        });
        first.extend(young);
    }

    /// Adds the files that the reads of the last seconds ask for.
    fn add_read(&self, state: &State, first: &mut Vec<Queued>) {
        let Some(flow) = state.tpfs.balance.flow().filter(|_| self.places.settings.now().options.balance)
        else {
            return;
        };
        let (on_pm, way) = match flow {
            Flow::ToDram => (&state.tpfs.on_pm, Way::Lowered),
            Flow::ToPm => (&state.tpfs.on_tiers, Way::Raised),
        };
        let cause = match self.phase_of_itself(state) {
            phase @ (Phase::Paused | Phase::NoTier | Phase::OutsideHours) => Cause::Mover(phase),
            _ if self.is_limited() || state.tpfs.balance.is_spent() => Cause::Mover(Phase::Limited),
            _ if flow == Flow::ToPm && self.room_below_threshold() == 0 => Cause::NoRoom,
            _ => Cause::Turn,
        };
        let hot = on_pm.hottest_ones(NAMED);
        first.extend(hot.map(|(id, blocks)| Queued {
            inode: id.number,
            bytes: blocks.saturating_mul(BLOCK_SIZE),
            way,
            cause,
        }));
    }

    /// Where tiers are nearly full.
    fn add_rebalanced(&self, state: &State, first: &mut Vec<Queued>) {
        if self.places.imbalance().is_none() {
            return;
        }
        let held = match self.phase_of_itself(state) {
            phase @ (Phase::Paused | Phase::NoTier | Phase::OutsideHours) => Some(Cause::Mover(phase)),
            _ => self.is_limited().then_some(Cause::Mover(Phase::Limited)),
        };
        let now_ms = self.stats.samples.time_ms();
        for (used_ms, id) in state.rebalance.coldest_ones(NAMED) {
            let young_ms = used_ms.saturating_add(WHOLE_FILE_MS + 1).saturating_sub(now_ms);
            let cause = held.unwrap_or(if young_ms > 0 { Cause::Young(young_ms) } else { Cause::Turn });
            let size = self.places.layout.node(id).and_then(|node| self.places.layout.getattr(&node));
            let bytes = size.map_or(0, |attr| attr.size);
            first.push(Queued { inode: id.number, bytes, way: Way::Descended, cause });
        }
    }
}
