//! Looking for files that have blocks to move and of which no list knows: all of them after a mount, and later those
//! that were accessed without a sample, or for which the lists had no room.
//!
//! A scan takes a step at a time and goes on from there: an operation that needs space does not wait for all of it, and
//! no file is looked at twice. It finds only files with some blocks on PM. Files that are on tiers as a whole, however
//! many they are, take no room in the lists from others.

use std::ops::ControlFlow;

use nacre_engine::{BLOCK_SIZE, InodeId, Place, Tiered};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;

use crate::engine::Mover;
use crate::engine::state::{Left, State};
use crate::engine::trail::AT_ONCE;
use crate::stats::heat::Chosen;
use crate::stats::samples::millis;

/// Names that are looked at in a step.
pub(crate) const STEP: usize = 1024;

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Mover<'_, L, D> {
    /// Chooses the next file to demote: the one that was not written for longest. The background pass gives a time: it
    /// takes only those parts that are cold by then, after all files were seen, or as many as can be known. Direct
    /// reclaim gives none, and takes the files that a step has found. `Continue(None)` is a step of the way there;
    /// `Break` is that there is nothing.
    pub(crate) fn next_cold(
        &self,
        state: &mut State,
        now_ms: Option<u64>,
    ) -> ControlFlow<(), Option<Chosen>> {
        let has_enough = match now_ms {
            Some(_) => state.on_pm.room() == 0,
            None => !state.on_pm.is_empty() || state.on_pm.is_any_in_backoff(),
        };
        if state.scan.goes_on() && !has_enough {
            self.step(state);
            return ControlFlow::Continue(None);
        }
        let cold = match now_ms {
            Some(now_ms) => state.on_pm.coldest(now_ms),
            None => state.on_pm.coldest_whole(),
        };
        if cold.is_some() {
            return ControlFlow::Continue(cold);
        }
        if !state.scan.is_worth_it(now_ms) {
            return ControlFlow::Break(());
        }
        state.scan.left = Left::Nothing;
        state.scan.trail.begin(self.places.layout.id(&self.places.layout.root()));
        ControlFlow::Continue(None)
    }

    /// Looks at some more names.
    fn step(&self, state: &mut State) {
        let mut looked_at = 0;
        while looked_at < STEP {
            let most = AT_ONCE.min(state.on_pm.room());
            if most == 0 {
                break;
            }
            let Some(found) = self.places.advance(&mut state.scan.trail, most) else { break };
            looked_at += found.names + 1;
            found.files.into_iter().for_each(|id| self.look_at(state, id));
        }
        if !state.scan.goes_on() {
            state.scan.ended_ms = Some(self.stats.samples.time_ms());
        }
    }

    /// Notes a file that has something to move. A pinned file stays, and a removed one is skipped.
    fn look_at(&self, state: &mut State, id: InodeId) {
        if let Ok(node) = self.places.layout.node(id)
            && let Ok(attr) = self.places.layout.getattr(&node)
            && !self.places.is_pinned(&node)
            && (self.places.has_blocks(&node, |_| false, |place| matches!(place, Place::Pm(_)))
                || self.places.has_unwritten(&node))
        {
            state.on_pm.found(id, attr.size.div_ceil(BLOCK_SIZE).max(1), millis(attr.mtime));
        }
    }
}
