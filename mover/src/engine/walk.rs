//! The walk of anti-caching over all files, for blocks on PM that its list does not know. These are all blocks after a
//! mount. Later they are those of accesses that left no sample, and those that the list gave up because it is full.
//!
//! A walk takes bounded steps, one in each pass of the mover, as long as PM is near its threshold or above it. If nothing
//! is known that could leave PM, it goes on at once, until something is.

use std::ops::Range;

use nacre_engine::{FileBlock, FileKind, InodeId, Place, Tiered};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;
use nacre_policy::migration::anticache::Stage;

use crate::engine::Mover;
use crate::engine::budget::Budget;
use crate::engine::scan::STEP;
use crate::engine::state::State;
use crate::engine::trail::AT_ONCE;
use crate::stats::samples::millis;

/// Blocks of a file that are looked at together; each look waits for the operations on the file.
const LOOK: u64 = 4096;

/// Names that a look at blocks costs as much as, at most.
const COST_OF_LOOK: usize = 64;

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Mover<'_, L, D> {
    /// Goes on by a step with the walk that was begun. Another one begins if PM will soon hold more than the threshold,
    /// and too few of its blocks are known.
    pub(crate) fn walk_on(&self, state: &mut State, budget: &Budget<'_>) {
        let Some((data, threshold)) = self.blocks_and_threshold() else { return };
        // Seven eighths of the threshold.
        let is_near = data >= threshold - threshold / 8;
        if !self.places.has_tiers() || !self.may_move() || data == 0 || !is_near {
            return;
        }
        if state.anticache.stage() == Stage::Rest && state.anticache.is_short(data) {
            self.begin_walk(state, false);
        }
        let mut left = STEP;
        while left > 0 && budget.goes_on() {
            match self.walk_step(state) {
                0 => break,
                cost => left = left.saturating_sub(cost),
            }
        }
    }

    /// Goes on with the walk until blocks are known that can leave PM; false when there are none, or the budget is over.
    pub(crate) fn look_for_blocks(&self, state: &mut State, budget: &Budget<'_>) -> bool {
        while budget.goes_on() {
            if state.anticache.stage() == Stage::Rest && !self.begin_walk(state, true) {
                return false;
            }
            self.walk_step(state);
            if !state.anticache.is_empty() || !self.engine.allocated.lock().is_empty() {
                return true;
            }
        }
        // The next tick goes on from here.
        false
    }

    /// Looks at the blocks of the next file that the walk has kept, if none are known that are older than the list.
    pub(crate) fn look_at_oldest(&self, state: &mut State, budget: &Budget<'_>) {
        while state.anticache.stage() == Stage::Blocks && !state.anticache.has_found() && budget.goes_on() {
            self.walk_step(state);
        }
    }

    fn begin_walk(&self, state: &mut State, is_needed: bool) -> bool {
        let begins = state.anticache.begin_walk(self.stats.samples.time_ms(), is_needed);
        if begins {
            state.evict_trail.begin(self.places.layout.id(&self.places.layout.root()));
        }
        begins
    }

    /// Looks at some names, or at some blocks of a file. Gives what it cost, in names; 0 when there is nothing to look at.
    fn walk_step(&self, state: &mut State) -> usize {
        let now_ms = self.stats.samples.time_ms();
        match state.anticache.stage() {
            Stage::Rest => 0,
            Stage::Names => match self.places.advance(&mut state.evict_trail, AT_ONCE) {
                Some(found) => {
                    found.files.into_iter().for_each(|id| self.keep_file(state, id));
                    found.names + 1
                }
                None => {
                    state.anticache.end_names(now_ms);
                    1
                }
            },
            Stage::Blocks => {
                let Some((id, from)) = state.anticache.next_look() else { return 0 };
                let (on_pm, up_to) = self.look_at_blocks(state, id, from);
                state.anticache.looked(&on_pm, up_to, now_ms);
                COST_OF_LOOK
            }
        }
    }

    /// Notes a file that has blocks on PM. A pinned file stays, and is known again when its pin ends.
    fn keep_file(&self, state: &mut State, id: InodeId) {
        let Ok(node) = self.places.layout.node(id) else { return };
        let Ok(attr) = self.places.layout.getattr(&node) else { return };
        if attr.kind != FileKind::Regular || self.places.is_pinned(&node) {
            return;
        }
        if self.places.has_unwritten(&node) {
            self.note_allocated(id);
        }
        if self.places.has_blocks(&node, |_| false, |place| matches!(place, Place::Pm(_))) {
            state.anticache.found_file(millis(attr.mtime), id);
        }
    }

    /// The blocks of a file on PM, from one on, and up to which it was looked at; nothing for its end. If it cannot be
    /// read on, a later walk tries again.
    fn look_at_blocks(&self, state: &mut State, id: InodeId, from: u64) -> (Vec<Range<u64>>, Option<u64>) {
        let mut on_pm: Vec<Range<u64>> = Vec::new();
        let Ok(node) = self.places.layout.node(id) else { return (on_pm, None) };
        if self.places.is_pinned(&node) {
            return (on_pm, None);
        }
        let data = self.places.next_data(&node, from);
        let found = data.and_then(|data| {
            let Some(data) = data else { return Ok(None) };
            Ok(Some((data, self.places.layout.resolve_movable(&node, FileBlock(data), LOOK)?)))
        });
        match found {
            Ok(None) => (on_pm, None),
            Ok(Some((data, found))) => {
                for extent in found.into_iter().map(|movable| movable.extent) {
                    if matches!(extent.place, Place::Pm(_)) {
                        on_pm.push(extent.start.0..extent.start.0 + extent.len);
                    }
                }
                (on_pm, Some(data.saturating_add(LOOK)))
            }
            Err(_) => {
                state.anticache.miss();
                (on_pm, None)
            }
        }
    }

    /// Blocks of data on PM, and those that it holds with anti-caching, if that is on.
    pub(crate) fn blocks_and_threshold(&self) -> Option<(u64, u64)> {
        let threshold = self.places.settings.now().anticache_blocks(self.places.layout.stat().blocks)?;
        Some((self.places.layout.pm_use().data, threshold))
    }
}
