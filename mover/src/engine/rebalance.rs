//! Rebalancing of cold files from a tier that is nearly full to a slower one. Otherwise the oldest data would fill the
//! faster tiers for ever, and data demoted from PM later, which is warmer, would go past them.
//!
//! Of the tiers of each rank those go first of which more than a threshold is in use, while slower ones are below
//! theirs. All files are searched for blocks there, some names at a time. The file that was used longest ago goes
//! first: written, or read, as far as that was sampled. It ends at the first file that was used lately. Blocks move as
//! [batches](crate::engine::batch), like those demoted from PM. A background pass does some of that, because the room
//! is not needed at once.

use std::collections::{HashMap, HashSet};

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{BLOCK_SIZE, Error, FileBlock, InodeId, Place, Result, Tier, Tiered};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;
use nacre_policy::migration::{Choice, Chosen, Migration, Need};

use crate::engine::Mover;
use crate::engine::batch::{Batch, Part};
use crate::engine::budget::Budget;
use crate::engine::executor::{Outcome, Why};
use crate::engine::progress::Way;
use crate::engine::state::State;
use crate::engine::trail::{AT_ONCE, Trail};
use crate::places::{Places, Reading, is_on};
use crate::stats::samples::millis;

/// Names that are looked at in a tick.
const NAMES: usize = 4096;

/// Blocks that move in one, at most, and a batch more.
const BLOCKS: u64 = (64 << 20) / BLOCK_SIZE;

/// From where blocks go, and to where.
#[derive(Debug)]
pub(crate) struct Imbalance {
    rank: u8,
    /// Tiers of that rank of which too much is in use.
    from: Vec<u8>,
    /// Slower ones, the fastest first.
    to: Vec<Tier>,
    /// Blocks that are too many there.
    excess: u64,
}

/// Blocks that leave tiers that are nearly full.
struct Gathered<N> {
    batch: Batch<N>,
    /// The files of which some are in it, and the block from which the next batch goes on, if one does.
    rests: HashMap<InodeId, Option<u64>>,
    /// The error of a file that could not be gathered.
    failure: Option<Error>,
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Mover<'_, L, D> {
    /// Whether cold files go down to slower tiers, or are looked for.
    pub(crate) fn is_rebalancing(&self, state: &State) -> bool {
        self.places.has_tiers()
            && !self.places.settings.has_anticache()
            && self.may_move()
            && state.rebalance.is_at_work(self.stats.samples.time_ms())
            && self.places.imbalance().is_some()
    }

    /// Moves cold files from tiers that are nearly full to slower ones, some of them; gives the number of blocks.
    pub(crate) fn rebalance(&self, state: &mut State, now_ms: u64, budget: &Budget<'_>) -> Result<u64> {
        let (mut moved, mut names) = (0, 0);
        while moved < BLOCKS
            && names < NAMES
            && budget.goes_on()
            && budget.blocks() > 0
            && self.may_move()
            && let Some(imbalance) = self.places.imbalance()
        {
            if state.rebalance.turn_to(imbalance.rank) {
                state.rebalance_trail = Trail::default();
            }
            match state.rebalance.choose(&self.usage_for(Need::Threshold, now_ms)) {
                Choice::Demote(first) => {
                    moved += self.rebalance_batch(state, first, &imbalance, (now_ms, budget))?;
                }
                Choice::Scan if state.rebalance_trail.goes_on() => names += self.scan_more(state, now_ms),
                Choice::Scan => {
                    state.rebalance_trail.begin(self.places.layout.id(&self.places.layout.root()));
                }
                Choice::ToDram(_) | Choice::Promote(_) | Choice::Nothing => break,
            }
        }
        Ok(moved)
    }

    /// Looks at some more names; gives their number, and one more.
    fn scan_more(&self, state: &mut State, now_ms: u64) -> usize {
        let rank = state.rebalance.rank();
        let alike: Vec<u8> = self
            .places
            .layout
            .tiers()
            .iter()
            .filter(|tier| tier.rank == rank)
            .map(|tier| tier.number)
            .collect();
        let found = self.places.advance(&mut state.rebalance_trail, AT_ONCE);
        let is_there = |place: &Place| alike.iter().any(|tier| is_on(place, *tier));
        for id in found.iter().flat_map(|found| found.files.iter().copied()) {
            // A removed file is skipped, and the user of an unreadable one gets the error.
            if let Ok(node) = self.places.layout.node(id)
                && !self.places.is_pinned(&node)
                && self.places.has_blocks(&node, |tier| alike.contains(&tier), is_there)
                && let Ok(used_ms) = self.used_ms(state, id, &node, now_ms)
            {
                state.rebalance.found(id, used_ms, self.places.settings.now().options.known_files);
            }
        }
        if !state.rebalance_trail.goes_on() {
            state.rebalance.end_scan(now_ms);
        }
        found.map_or(0, |found| found.names) + 1
    }

    /// When a file was used, as far as is known: written or changed in another way, independent of its modification
    /// time, or read.
    fn used_ms(&self, state: &State, id: InodeId, node: &L::Node, now_ms: u64) -> Result<u64> {
        let changed_ms = millis(self.places.layout.getattr(node)?.ctime);
        let sampled_ms = state.tpfs.on_pm.last_used_ms(id).max(state.tpfs.on_tiers.last_used_ms(id));
        Ok(changed_ms.max(sampled_ms).min(now_ms))
    }

    /// Rebalances the coldest files as one batch, from the chosen one on; gives the number of blocks. A file that fails,
    /// or stays, is not tried again before all files were looked at anew.
    fn rebalance_batch(
        &self,
        state: &mut State,
        first: Chosen<InodeId>,
        imbalance: &Imbalance,
        (now_ms, budget): (u64, &Budget<'_>),
    ) -> Result<u64> {
        // Blocks of the tiers must not be reused before they were read.
        let _reading = Reading::begin(&self.places.layout);
        let mut gathered = self.gather_rebalanced(state, first, imbalance, (now_ms, budget));
        let Gathered { batch, rests, failure } = &mut gathered;
        let mut failure = failure.take();
        if batch.is_empty() {
            state.rebalance.settle(0, false);
            return failure.map_or(Ok(0), Err);
        }
        self.note_queue(state);
        let _doing = self.begin(batch.doing(Way::Descended));
        let (mut moved, mut is_full) = (0, false);
        for (id, outcome) in
            self.places.place_on(&imbalance.to, std::mem::take(batch), Why::Rebalance, budget)
        {
            let rest = rests.remove(&id);
            match outcome {
                Outcome::Moved(placed) => {
                    moved += placed.moved;
                    // A file that was written meanwhile is not cold.
                    if let Some(Some(at)) = rest.filter(|_| placed.changed == 0) {
                        state.rebalance.moved_up_to(id, at);
                    }
                }
                Outcome::Mapped(_) | Outcome::Gone(_) => {}
                // On the tiers, or in PM for the entry that would locate it.
                Outcome::Full(_) => is_full = true,
                Outcome::Failed(error) => failure = failure.or(Some(error)),
            }
        }
        // Those that it did not get to.
        for id in rests.keys() {
            state.rebalance.put_back(*id, state.rebalance.used_ms(*id));
        }
        state.rebalance.settle(moved, is_full);
        self.engine.counts.descended.fetch_add(moved, Ordering::Relaxed);
        budget.spend(moved);
        failure.map_or(Ok(moved), Err)
    }

    /// Gathers blocks of the coldest files, the chosen one first, until these are as many as are too many.
    fn gather_rebalanced(
        &self,
        state: &mut State,
        first: Chosen<InodeId>,
        imbalance: &Imbalance,
        (now_ms, budget): (u64, &Budget<'_>),
    ) -> Gathered<L::Node> {
        let wanted = imbalance.excess.clamp(1, budget.blocks());
        let (mut batch, mut rests, mut failure) = (Batch::default(), HashMap::new(), None);
        let mut first = Some(first);
        while batch.blocks() < wanted
            && budget.goes_on()
            && let Some(Chosen { file: id, spans }) =
                first.take().or_else(|| state.rebalance.choose_cold(now_ms))
        {
            let Ok(node) = self.places.layout.node(id) else { continue };
            let Ok(used_ms) = self.used_ms(state, id, &node, now_ms) else { continue };
            if used_ms > state.rebalance.used_ms(id) {
                state.rebalance.put_back(id, used_ms);
                continue;
            }
            if self.places.is_pinned(&node) || !self.places.has_log_at_hand(&node) {
                continue;
            }
            let mut at = spans.first().map_or(0, |span| span.start);
            let is_meant = |place: &Place| imbalance.from.iter().any(|tier| is_on(place, *tier));
            match self.places.add_range(&mut batch, (&node, FileBlock(0), u64::MAX), &mut at, is_meant) {
                Ok(true) => drop(rests.insert(id, None)),
                Ok(false) => {
                    rests.insert(id, Some(at));
                    break;
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        if let Some(first) = first {
            state.rebalance.put_back(first.file, state.rebalance.used_ms(first.file));
        }
        // Others have nothing there any more.
        let in_batch: HashSet<InodeId> = batch.parts().iter().map(Part::id).collect();
        rests.retain(|id, at: &mut Option<u64>| at.is_some() || in_batch.contains(id));
        Gathered { batch, rests, failure }
    }
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Places<L, D> {
    /// From where cold files go down to slower tiers now, if from anywhere.
    pub(crate) fn imbalance(&self) -> Option<Imbalance> {
        // A tier with failing reads is not read for this, nor written.
        let mut tiers = self.usable();
        tiers.retain(|tier| !self.tiers.is_doubtful(tier.number));
        let known = |tier: Tier| Some((tier, self.excess_on(tier.number)?));
        let mut tiers: Vec<(Tier, u64)> = tiers.into_iter().filter_map(known).collect();
        tiers.sort_by_key(|(tier, _)| (tier.rank, tier.number));
        tiers.chunk_by(|(one, _), (other, _)| one.rank == other.rank).find_map(|alike| {
            let rank = alike.first()?.0.rank;
            let full = || alike.iter().filter(|(_, excess)| *excess > 0);
            let lower = tiers.iter().filter(|(tier, excess)| tier.rank > rank && *excess == 0);
            let imbalance = Imbalance {
                rank,
                from: full().map(|(tier, _)| tier.number).collect(),
                to: lower.map(|(tier, _)| *tier).collect(),
                excess: full().map(|(_, excess)| excess).sum(),
            };
            (!imbalance.from.is_empty() && !imbalance.to.is_empty()).then_some(imbalance)
        })
    }
}
