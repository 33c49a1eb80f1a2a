//! The table of tiers in the superblock: its changes, and the tiers that new blocks go to.

use nacre_engine::{BLOCK_SIZE, Error, Kind, Result, Tier, TierChange, TierRun, TierState, size};
use nacre_layout_parts::format::{MAX_TIER_BLOCKS, MAX_TIERS, RawTier, incompatible};
use nacre_media::Pm;

use crate::alloc::{Purpose, Runs};
use crate::blockmap::{BlockMap, Piece};
use crate::format::{RawSuperblock, place};
use crate::fs::Shared;
use crate::places::Reach;
use crate::superblock::{listed, row_of};
use crate::tier_paths;
use crate::tiers::{has_memory_for, unknown};

/// The smallest tier: its superblock's blocks and some for files.
const MIN_BLOCKS: u64 = 256;

impl<P: Pm> Shared<P> {
    pub(crate) fn tier_list(&self) -> Vec<Tier> {
        listed(&self.superblock.lock().raw)
    }

    /// The tiers that new blocks may be on, the fastest first; those of one rank take turns, but that blocks go where
    /// those before them in the file are.
    fn takers(&self, before: Option<u8>) -> Vec<u8> {
        let mut tiers = self.tier_list();
        tiers.retain(|tier| tier.state == TierState::Active && self.tiers.is_usable(tier.number));
        tiers.sort_by_key(|tier| (tier.rank, tier.number));
        let turn = self.tiers.next_turn();
        for alike in tiers.chunk_by_mut(|one, other| one.rank == other.rank) {
            let first = alike.iter().position(|tier| Some(tier.number) == before);
            alike.rotate_left(first.unwrap_or(turn % alike.len()));
        }
        tiers.into_iter().map(|tier| tier.number).collect()
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
        for tier in self.takers(before) {
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
        let number = match change {
            TierChange::Set(tier) => tier.number,
            TierChange::Remove(number) => number,
        };
        let index = usize::from(number).wrapping_sub(1);
        if index >= MAX_TIERS {
            return Err(unknown(number));
        }
        let mut superblock = self.superblock.lock();
        let before = superblock.raw.tiers[index];
        let row = match change {
            TierChange::Remove(_) if before.state == 0 => return Err(unknown(number)),
            TierChange::Remove(_) => RawTier::default(),
            TierChange::Set(tier) => row_of(&tier),
        };
        if row.state != 0 {
            check_row(&superblock.raw, number, &row)?;
        }
        let mut write = || {
            superblock.raw.tiers[index] = row;
            if row.state == 0 {
                tier_paths::forget(&mut superblock.raw.tier_paths, number);
            }
            superblock.raw.features_incompatible |= incompatible::TIERS;
            superblock.write(&*self.pm)
        };
        match (before.state, row.state) {
            (_, 0) => self.tiers.remove(number, write)?,
            (0, _) => {
                write()?;
                self.tiers.add(number, row.blocks);
            }
            _ => write()?,
        }
        *self.reach.write() = Reach::of(self.pm.len() / BLOCK_SIZE, &superblock.raw);
        Ok(())
    }
}

/// Whether a tier can be as a row says, beside the other ones.
fn check_row(raw: &RawSuperblock, number: u8, row: &RawTier) -> Result<()> {
    let index = usize::from(number) - 1;
    let before = raw.tiers[index];
    let is_new = before.state == 0;
    let mut others = raw.tiers.iter().enumerate().filter(|(other, _)| *other != index);
    if others.any(|(_, other)| other.state != 0 && other.uuid == row.uuid) {
        return Err(Error::new(Kind::Exists).object(format!("tier {number}: its device is another tier's")));
    }
    let of_its_size = || {
        let bytes = size::exact(row.blocks.saturating_mul(BLOCK_SIZE));
        Error::new(Kind::InvalidInput).object(format!("tier {number} of {bytes}"))
    };
    if row.blocks < MIN_BLOCKS || row.blocks > place::BLOCK_MASK {
        return Err(
            of_its_size().advice("a tier takes at least 1 MiB, and all of a file system 256 TiB at most")
        );
    }
    let all: u64 = raw.tiers.iter().map(|tier| tier.blocks).sum();
    if is_new && all.saturating_add(row.blocks) > MAX_TIER_BLOCKS {
        return Err(of_its_size().advice("all tiers of a file system have 256 TiB at most"));
    }
    if is_new {
        has_memory_for(number, row.blocks)?;
    }
    if !is_new && row.blocks != before.blocks {
        return Err(Error::new(Kind::InvalidInput)
            .object(format!("tier {number}: {} blocks instead of {}", row.blocks, before.blocks)));
    }
    Ok(())
}
