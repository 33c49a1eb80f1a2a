//! Tiers of this layout: which there are, and blocks on them that no write fills yet.

use nacre_engine::{Result, Tier, TierChange};
use nacre_layout_parts::table::inodes::Inodes;
use nacre_layout_parts::tier_table::{self, listed};
use nacre_layout_parts::tree::Tree;
use nacre_media::Pm;

use crate::alloc::{Purpose, Run, Runs};
use crate::blockmap::{on_tier, tier_of};
use crate::fs::Shared;

impl<P: Pm> Shared<P> {
    pub(crate) fn tier_list(&self) -> Vec<Tier> {
        listed(&self.superblock.lock().raw)
    }

    /// Adds a tier, changes one, or takes one out that nothing is on.
    pub(crate) fn change_tier(&self, change: TierChange) -> Result<()> {
        tier_table::change(&mut self.superblock.lock(), &*self.pm, &self.tiers, change)
    }

    /// Whether so many blocks may be had, on PM or on tiers.
    pub(crate) fn has_room_for(&self, blocks: u64) -> bool {
        let free = |tier: &Tier| self.tiers.space(tier.number).map_or(0, |space| space.free);
        let below: u64 = self.tier_list().iter().map(free).sum();
        blocks + blocks / 256 <= self.alloc.available_blocks() + below
    }

    /// Places for so many blocks of a file, from one on, that no write fills yet. They are on PM, or on tiers when they
    /// do not fit on PM.
    pub(crate) fn allocate_unwritten(&self, tree: Tree, start: u64, blocks: u64) -> Result<Runs> {
        let mut runs = Runs::new();
        let Err(error) = self.with_deferred_frees(|| self.alloc.allocate(blocks, Purpose::Data, &mut runs))
        else {
            return Ok(runs);
        };
        let before = match start.checked_sub(1) {
            Some(before) => self.map(tree).find(before)?.map(|piece| tier_of(piece.place)),
            None => None,
        };
        let mut missing = blocks;
        for tier in self.tiers.takers(self.tier_list(), before) {
            let free = self.tiers.space(tier).map_or(0, |space| space.free).min(missing);
            // Blocks that wait for readers are not free yet.
            if free > 0
                && let Ok(taken) = self.tiers.allocate(tier, None, free)
            {
                let place = |run: nacre_engine::TierRun| nacre_engine::Block(on_tier(tier, run.start));
                runs.extend(taken.into_iter().map(|run| Run { start: place(run), len: run.len }));
                missing -= free;
            }
        }
        let mut rest = Runs::new();
        if missing < blocks && missing > 0 && self.alloc.allocate(missing, Purpose::Data, &mut rest).is_ok() {
            runs.extend(rest);
            missing = 0;
        }
        if missing > 0 {
            self.free_runs(&runs);
            return Err(error);
        }
        Ok(runs)
    }
}
