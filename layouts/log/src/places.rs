//! Places of blocks: on which device they are, and which of them can be.

use nacre_engine::{Block, Error, Kind, Place, PlacedExtent, Result};
use nacre_layout_parts::format::MAX_TIERS;

use crate::format::{RawSuperblock, place};

/// The number of blocks of PM and of each tier. A valid place lies within them.
#[derive(Debug, Clone)]
pub(crate) struct Reach([u64; MAX_TIERS + 1]);

/// Bits of a place that nothing is known of, and the one that no code sets yet.
const UNKNOWN_BITS: u64 = ((1 << place::TIER_SHIFT) - 1) & !place::BLOCK_MASK & !place::UNWRITTEN;

impl Reach {
    /// Of a device of so many blocks, of which no more than those are the file system's that its superblock says.
    pub(crate) fn of(pm_blocks: u64, superblock: &RawSuperblock) -> Reach {
        let mut blocks = [0; MAX_TIERS + 1];
        blocks[0] = superblock.device_blocks.min(pm_blocks);
        for (index, row) in superblock.tiers.iter().enumerate() {
            blocks[index + 1] = row.blocks;
        }
        Reach(blocks)
    }

    /// Whether blocks can be there: on a device that there is, and not where its superblock is.
    pub(crate) fn holds(&self, raw: u64, len: u64) -> bool {
        let (tier, first) = (usize::from(place::tier(raw)), raw & place::BLOCK_MASK);
        // The last block of a tier is its superblock's.
        let last = if tier == 0 { 0 } else { 1 };
        let Some(&blocks) = self.0.get(tier) else { return false };
        Reach::can_be(raw) && first + len + last <= blocks
    }

    /// Whether blocks could be there, or once were, if there is or was such a tier.
    pub(crate) fn can_be(raw: u64) -> bool {
        let (tier, first) = (usize::from(place::tier(raw)), raw & place::BLOCK_MASK);
        raw & UNKNOWN_BITS == 0 && first > 0 && tier <= MAX_TIERS
    }

    /// Blocks of a tier, if there is one.
    pub(crate) fn blocks_of(&self, tier: u8) -> u64 {
        self.0.get(usize::from(tier)).copied().unwrap_or(0)
    }

    /// All blocks.
    pub(crate) fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The number of a block among all, PM first: for marks on them.
    pub(crate) fn index(&self, raw: u64) -> u64 {
        let before: u64 = self.0[..usize::from(place::tier(raw)).min(MAX_TIERS)].iter().sum();
        before + (raw & place::BLOCK_MASK)
    }

    /// The numbers of the tiers that there are.
    pub(crate) fn tiers(&self) -> impl Iterator<Item = (u8, u64)> + Clone + '_ {
        (1..).zip(&self.0[1..]).filter(|(_, blocks)| **blocks > 0).map(|(tier, blocks)| (tier, *blocks))
    }
}

/// True for a place that holds data.
pub(crate) fn is_written(raw: u64) -> bool {
    raw & place::UNWRITTEN == 0
}

/// The offset on PM of blocks that are there.
pub(crate) fn media_offset(raw: u64) -> Result<u64> {
    match place::tier(raw) {
        0 => Ok(Block(raw & place::BLOCK_MASK).offset()),
        _ => Err(Error::new(Kind::Elsewhere)),
    }
}

/// A place of media as the contract names it.
pub(crate) fn place_of(raw: u64) -> Place {
    let block = Block(raw & place::BLOCK_MASK);
    let tier = (raw >> place::TIER_SHIFT) as u8;
    match (tier, is_written(raw)) {
        (0, true) => Place::Pm(block),
        (0, false) => Place::Unwritten(block),
        (tier, true) => Place::Tier { tier, block },
        (tier, false) => Place::UnwrittenOnTier { tier, block },
    }
}

/// Whether a place continues an extent.
pub(crate) fn follows(last: &PlacedExtent, place: Place) -> bool {
    match (last.place, place) {
        (Place::Hole, Place::Hole) => true,
        (Place::Pm(a), Place::Pm(b)) | (Place::Unwritten(a), Place::Unwritten(b)) => a.0 + last.len == b.0,
        (Place::Tier { tier: one, block: a }, Place::Tier { tier: other, block: b })
        | (
            Place::UnwrittenOnTier { tier: one, block: a },
            Place::UnwrittenOnTier { tier: other, block: b },
        ) => one == other && a.0 + last.len == b.0,
        _ => false,
    }
}
