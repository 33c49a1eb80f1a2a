//! The table of tiers in the superblock: its rows, and their changes.

use nacre_engine::{BLOCK_SIZE, Error, Kind, Result, Tier, TierChange, TierState, size};
use nacre_media::Pm;

use crate::format::{MAX_TIER_BLOCKS, MAX_TIERS, RawSuperblock, RawTier, incompatible, tier_state};
use crate::superblock::Superblock;
use crate::tier_paths;
use crate::tiers::{TierSpaces, has_memory_for, unknown};

/// The smallest tier: its superblock's blocks and some for files.
const MIN_BLOCKS: u64 = 256;
/// The largest number of a block of a tier, for which words of trees and entries of logs have 48 bits.
const MAX_BLOCK: u64 = (1 << 48) - 1;

/// The tiers that a superblock names.
pub fn listed(raw: &RawSuperblock) -> Vec<Tier> {
    let rows = (1..).zip(&raw.tiers).filter(|(_, row)| row.state != 0);
    rows.map(|(number, row)| tier_of(number, row)).collect()
}

fn tier_of(number: u8, row: &RawTier) -> Tier {
    let state = if row.state == tier_state::DRAINING { TierState::Draining } else { TierState::Active };
    let RawTier { uuid, blocks, token, pending, rank, .. } = *row;
    Tier { number, uuid, blocks, token, pending, rank, state }
}

/// A tier as a row of the superblock.
pub fn row_of(tier: &Tier) -> RawTier {
    let state = match tier.state {
        TierState::Active => tier_state::ACTIVE,
        TierState::Draining => tier_state::DRAINING,
    };
    let Tier { uuid, blocks, token, pending, rank, .. } = *tier;
    RawTier { uuid, blocks, token, pending, state, rank, ..RawTier::default() }
}

/// Adds a tier, changes one, or takes one out that nothing is on.
pub fn change(
    superblock: &mut Superblock,
    pm: &impl Pm,
    spaces: &TierSpaces,
    change: TierChange,
) -> Result<()> {
    let number = match change {
        TierChange::Set(tier) => tier.number,
        TierChange::Remove(number) => number,
    };
    let index = usize::from(number).wrapping_sub(1);
    if index >= MAX_TIERS {
        return Err(unknown(number));
    }
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
        superblock.write(pm)
    };
    match (before.state, row.state) {
        (_, 0) => spaces.remove(number, write),
        (0, _) => {
            write()?;
            spaces.add(number, row.blocks);
            Ok(())
        }
        _ => write(),
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
    if row.blocks < MIN_BLOCKS || row.blocks > MAX_BLOCK {
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
