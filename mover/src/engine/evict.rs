//! Anti-caching: PM holds data up to a threshold. Data above it goes to disk, beginning with the blocks that were not
//! used for longest. A block that is read from there comes up again, by the threads that read ahead.
//!
//! Blocks that are allocated and were never written count, too: they take space of PM. But they are never in use, and
//! to place them on disk copies nothing, so they go first. If they stayed, a file with more of them than the threshold
//! would send all data to disk, again and again. To count them for nothing instead would need a count of them, which
//! no layout has.

use std::collections::{HashMap, HashSet};

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{Error, InodeId, Place, Result, Tiered};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;
use nacre_policy::migration::Chosen;
use nacre_policy::temperature::Span;

use crate::engine::Mover;
use crate::engine::batch::Batch;
use crate::engine::budget::Budget;
use crate::engine::executor::{Outcome, Why};
use crate::engine::progress::Way;
use crate::engine::state::State;

/// Files that are known to have blocks that may never have been written, at most.
const MAX_ALLOCATED: usize = 4096;

/// The chosen blocks that a pass leaves on PM, until it is over.
#[derive(Default)]
struct Stayed {
    /// Parts of files with some.
    parts: Vec<Chosen<InodeId>>,
    /// Files with blocks that were never written.
    allocated: Vec<InodeId>,
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Mover<'_, L, D> {
    /// Anti-caching: gives up blocks in DRAM that were read ahead in vain, and evicts the excess on PM.
    pub(crate) fn anticache(&self, state: &mut State, now_ms: u64, budget: &Budget<'_>) -> Result<u64> {
        if now_ms.abs_diff(state.expired_ms) >= self.places.settings.now().options.prefetch_age_ms {
            state.expired_ms = now_ms;
            self.places.tiers.pages().expire();
        }
        self.walk_on(state, budget);
        self.evict(state, budget)
    }

    /// Whether PM holds more than the threshold of anti-caching; by how many blocks.
    pub(crate) fn above_threshold(&self) -> Option<u64> {
        let (data, threshold) = self.blocks_and_threshold()?;
        data.checked_sub(threshold).filter(|excess| *excess > 0)
    }

    /// Evicts exactly the excess over the threshold, as far as the budget goes; gives the number of blocks.
    fn evict(&self, state: &mut State, budget: &Budget<'_>) -> Result<u64> {
        let mut stayed = Stayed::default();
        let evicted = self.evict_excess(state, budget, &mut stayed);
        // Not before the pass is over: it would choose them again and again, as long as a program writes them.
        stayed.parts.iter().rev().for_each(|part| state.anticache.put_back(part));
        self.engine.allocated.lock().extend(stayed.allocated);
        evicted
    }

    /// The same; blocks that were chosen and did not leave are added to `stayed`.
    fn evict_excess(&self, state: &mut State, budget: &Budget<'_>, stayed: &mut Stayed) -> Result<u64> {
        let mut evicted = 0;
        let evict = |blocks: u64| {
            budget.spend(blocks);
            self.engine.counts.evicted.fetch_add(blocks, Ordering::Relaxed);
            blocks
        };
        while self.places.has_tiers() && self.may_move() && budget.goes_on() && budget.blocks() > 0 {
            let Some(excess) = self.above_threshold() else {
                // Nothing is to leave: that something could not is over.
                state.failure = None;
                break;
            };
            let unwritten = self.evict_unwritten(excess.min(budget.blocks()), stayed);
            if unwritten > 0 {
                evicted += evict(unwritten);
                continue;
            }
            self.look_at_oldest(state, budget);
            let chosen =
                state.anticache.coldest(excess.min(self.places.settings.group()).min(budget.blocks()));
            if chosen.is_empty() {
                if !self.look_for_blocks(state, budget) {
                    break;
                }
                continue;
            }
            let (moved, failure) = self.evict_chosen(state, chosen, &mut stayed.parts);
            evicted += evict(moved);
            state.failure = failure.as_ref().map(ToString::to_string);
            if let Some(failure) = failure {
                return Err(failure);
            }
        }
        Ok(evicted)
    }

    /// Gives at most so many blocks that were never written places on tiers, of the next known file that has some.
    /// Returns their number. Files that keep some are added to `stayed`.
    fn evict_unwritten(&self, most: u64, stayed: &mut Stayed) -> u64 {
        loop {
            let next = self.engine.allocated.lock().pop_first();
            let Some(id) = next else { return 0 };
            let whole = Chosen { file: id, spans: vec![Span { start: 0, len: u64::MAX }] };
            let moved = self.demote_unwritten_of(&whole, most, Why::Space);
            // A pinned file is known again when its pin ends.
            if let Ok(node) = self.places.layout.node(id)
                && !self.places.is_pinned(&node)
                && self.places.has_unwritten(&node)
            {
                stayed.allocated.push(id);
            }
            if moved > 0 {
                return moved;
            }
        }
    }

    /// Notes that blocks may have come to PM without an access, so that the list does not know them. Behind their commit:
    /// a walk that begins from here on finds them.
    pub(crate) fn note_unheard(&self) {
        if self.places.settings.has_anticache() {
            self.engine.scan_again.store(true, Ordering::Relaxed);
        }
    }

    /// Notes that blocks of a file were allocated. Without anti-caching the list is incomplete, and a walk finds them.
    pub(crate) fn note_allocated(&self, id: InodeId) {
        if !self.places.settings.has_anticache() {
            return;
        }
        let mut files = self.engine.allocated.lock();
        if files.insert(id) && files.len() > MAX_ALLOCATED {
            let other = files.iter().copied().find(|other| *other != id);
            if let Some(other) = other {
                files.remove(&other);
            }
            // The walk over all files finds it again.
            self.engine.scan_again.store(true, Ordering::Relaxed);
        }
    }

    /// The blocks that were not used for longest, at most so many, for a write that finds no space; empty when the list
    /// has none on PM.
    pub(crate) fn gather_unused(&self, state: &mut State, most: u64) -> (Batch<L::Node>, Option<Error>) {
        loop {
            let chosen = state.anticache.coldest(most.min(self.places.settings.group()));
            let (batch, failure) = self.batch_of(state, &chosen);
            if chosen.is_empty() || failure.is_some() || !batch.is_empty() {
                return (batch, failure);
            }
        }
    }

    /// A batch of those chosen blocks that are on PM. Those for which it has no room are known again, as the oldest.
    fn batch_of(&self, state: &mut State, chosen: &[Chosen<InodeId>]) -> (Batch<L::Node>, Option<Error>) {
        let mut batch = Batch::default();
        let mut failure = None;
        for part in chosen {
            // A removed file has nothing to move.
            let Ok(node) = self.places.layout.node(part.file) else { continue };
            if self.places.is_pinned(&node) {
                continue;
            }
            let is_on_pm = |place: &Place| matches!(place, Place::Pm(_));
            match self.places.add_spans(&mut batch, &node, &part.spans, is_on_pm) {
                Ok(true) => {}
                Ok(false) => state.anticache.put_back(part),
                Err(error) => {
                    // The list does not know them any more.
                    state.anticache.miss();
                    failure = Some(error);
                }
            }
        }
        (batch, failure)
    }

    /// Moves chosen blocks to a tier with one write and one flush; gives how many did. Parts of files of which some
    /// blocks stay, for lack of room or because they were written meanwhile, are added to `stayed`. Those that cannot
    /// be read are known again as the newest.
    fn evict_chosen(
        &self,
        state: &mut State,
        chosen: Vec<Chosen<InodeId>>,
        stayed: &mut Vec<Chosen<InodeId>>,
    ) -> (u64, Option<Error>) {
        let (batch, mut failure) = self.batch_of(state, &chosen);
        if batch.is_empty() {
            return (0, failure);
        }
        let _doing = self.begin(batch.doing(Way::Space));
        let blocks: HashMap<_, _> = batch.parts().iter().map(|part| (part.id(), part.blocks())).collect();
        let mut moved = 0;
        let mut stays = HashSet::new();
        for (id, outcome) in self.places.place_batch(batch, Why::Space, &Budget::default()) {
            match outcome {
                Outcome::Moved(done) => {
                    moved += done.moved;
                    if done.moved < blocks[&id] {
                        stays.insert(id);
                    }
                }
                Outcome::Mapped(_) | Outcome::Gone(_) => {}
                Outcome::Full(error) => {
                    stays.insert(id);
                    failure = Some(error);
                }
                Outcome::Failed(error) => {
                    // Behind all others: as the oldest it would be chosen each time, and nothing else would leave.
                    chosen.iter().filter(|part| part.file == id).for_each(|part| make_newest(state, part));
                    failure = Some(error);
                }
            }
        }
        // Those of their blocks that did leave are passed over when they are chosen again.
        stayed.extend(chosen.into_iter().filter(|part| stays.contains(&part.file)));
        (moved, failure)
    }
}

/// Blocks of a file count as used last.
fn make_newest(state: &mut State, part: &Chosen<InodeId>) {
    for span in &part.spans {
        (span.start..span.start + span.len).for_each(|block| state.anticache.touch(part.file, block));
    }
}
