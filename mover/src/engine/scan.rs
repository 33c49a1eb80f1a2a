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
use nacre_policy::migration::{Choice, Migration, Need, Usage};

use crate::engine::Mover;
use crate::engine::state::{Next, State};
use crate::engine::trail::AT_ONCE;
use crate::stats::samples::millis;

/// Names that are looked at in a step.
pub(crate) const STEP: usize = 1024;

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Mover<'_, L, D> {
    /// Has the policy choose the next file to demote. `Continue(None)` is a step of a scan; `Break` is that there is
    /// nothing.
    pub(crate) fn next_cold(&self, state: &mut State, usage: &Usage) -> Next {
        match state.tpfs.choose(usage) {
            Choice::Demote(chosen) => ControlFlow::Continue(Some(chosen)),
            Choice::Scan => {
                if state.trail.goes_on() {
                    self.step(state);
                } else {
                    state.trail.begin(self.places.layout.id(&self.places.layout.root()));
                }
                ControlFlow::Continue(None)
            }
            Choice::ToDram(_) | Choice::Promote(_) | Choice::Nothing => ControlFlow::Break(()),
        }
    }

    /// Looks at some more names.
    fn step(&self, state: &mut State) {
        let mut looked_at = 0;
        while looked_at < STEP {
            let most = AT_ONCE.min(state.tpfs.on_pm.room());
            if most == 0 {
                break;
            }
            let Some(found) = self.places.advance(&mut state.trail, most) else { break };
            looked_at += found.names + 1;
            found.files.into_iter().for_each(|id| self.look_at(state, id));
        }
        if !state.trail.goes_on() {
            state.tpfs.scan.end(self.stats.samples.time_ms());
        }
    }

    /// The use of places for a choice of the policies.
    pub(crate) fn usage_for(&self, need: Need, now_ms: u64) -> Usage {
        Usage { need, now_ms, rules: self.places.settings.rules() }
    }

    /// Notes a file that has something to move. A pinned file stays, and a removed one is skipped.
    fn look_at(&self, state: &mut State, id: InodeId) {
        if let Ok(node) = self.places.layout.node(id)
            && let Ok(attr) = self.places.layout.getattr(&node)
            && !self.places.is_pinned(&node)
            && (self.places.has_blocks(&node, |_| false, |place| matches!(place, Place::Pm(_)))
                || self.places.has_unwritten(&node))
        {
            state.tpfs.on_pm.found(id, attr.size.div_ceil(BLOCK_SIZE).max(1), millis(attr.mtime));
        }
    }
}
