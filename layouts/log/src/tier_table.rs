//! The table of tiers in the superblock: its changes, and the tiers that new blocks go to.

use nacre_engine::{BLOCK_SIZE, Result, Tier, TierChange, TierRun};
use nacre_layout_parts::tier_table::{self, listed};
use nacre_media::Pm;

use crate::alloc::{Purpose, Runs};
use crate::blockmap::{BlockMap, Piece};
use crate::format::place;
use crate::fs::Shared;
use crate::places::Reach;

impl<P: Pm> Shared<P> {
    pub(crate) fn tier_list(&self) -> Vec<Tier> {
        listed(&self.superblock.lock().raw)
    }

    /// Places for so many blocks of a file, from one on, that no write fills yet. They are on PM, or on tiers when they
    /// do not fit on PM. Gives the raw places, and how many blocks are at each.
    pub(crate) fn allocate_unwritten(
        &self,
        map: &BlockMap,
        start: u64,
        blocks: u64,
    ) -> Result<Vec<(u64, u64)>> {
        let mut runs = Runs::new();
        let Err(error) = self.alloc.allocate(blocks, Purpose::Data, &mut runs) else {
            return Ok(runs.into_iter().map(|run| (run.start.0 | place::UNWRITTEN, run.len)).collect());
        };
        let mut places = Vec::new();
        let mut missing = blocks;
        let before = start.checked_sub(1).and_then(|before| map.find(before, 1).0).map(place::tier);
        for tier in self.tiers.takers(self.tier_list(), before) {
            let free = self.tiers.space(tier).map_or(0, |space| space.free).min(missing);
            // Blocks that wait for readers are not free yet.
            if free > 0
                && let Ok(taken) = self.tiers.allocate(tier, None, free)
            {
                let raw = |run: TierRun| (place::on_tier(tier, run.start.0) | place::UNWRITTEN, run.len);
                places.extend(taken.into_iter().map(raw));
                missing -= free;
            }
        }
        if missing < blocks && missing > 0 && self.alloc.allocate(missing, Purpose::Data, &mut runs).is_ok() {
            places.extend(runs.into_iter().map(|run| (run.start.0 | place::UNWRITTEN, run.len)));
            missing = 0;
        }
        if missing == 0 {
            return Ok(places);
        }
        places.into_iter().for_each(|(place, len)| self.free_piece(Piece { start: 0, len, place, owner: 0 }));
        Err(error)
    }

    /// Adds a tier, changes one, or takes one out that nothing is on.
    pub(crate) fn change_tier(&self, change: TierChange) -> Result<()> {
        let mut superblock = self.superblock.lock();
        tier_table::change(&mut superblock, &*self.pm, &self.tiers, change)?;
        *self.reach.write() = Reach::of(self.pm.len() / BLOCK_SIZE, &superblock.raw);
        Ok(())
    }
}
