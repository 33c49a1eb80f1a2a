//! Trees of blocks as an inode of this layout has them: root, height and end are in its slot; blocks of data may be on
//! tiers. How they are read and changed is in `nacre-layout-parts`.

use nacre_engine::{Block, Error, Place, Result};
use nacre_layout_parts::tree::{self, Tree, Words};
pub(crate) use nacre_layout_parts::tree::{Bounds, Found, Piece};
use nacre_media::Pm;

use crate::format;
use crate::format::tree::{BLOCK_MASK, ON_TIER, TIER_SHIFT};

/// The words of this layout's trees.
pub(crate) struct ShadowWords;

impl Words for ShadowWords {
    const UNWRITTEN: u64 = format::tree::UNWRITTEN;

    fn check(bounds: Bounds, place: u64) -> Result<()> {
        if place & ON_TIER == 0 {
            return bounds.block(place).map(drop);
        }
        let tier = u64::from(tier_of(place)) - 1;
        // Block 0 of a tier is its superblock's. Which tiers there are is looked at when the file system is mounted.
        if place == ON_TIER | tier << TIER_SHIFT | place & BLOCK_MASK && place & BLOCK_MASK != 0 {
            return Ok(());
        }
        Err(Error::corrupt(format!("a tree leads to {place:#x}")))
    }
}

/// A tree on media.
pub(crate) type BlockMap<'a, P> = tree::BlockMap<'a, P, ShadowWords>;

/// A tree on `pm`.
pub(crate) fn map<P: Pm>(pm: &P, tree: Tree, bounds: Bounds) -> BlockMap<'_, P> {
    BlockMap::new(pm, tree, bounds)
}

/// The tier of a place, 0 for PM.
pub(crate) fn tier_of(place: u64) -> u8 {
    match place & ON_TIER {
        0 => 0,
        _ => (place >> TIER_SHIFT) as u8 % 32 + 1,
    }
}

/// The block of a place, on PM or on its tier.
pub(crate) fn block_of(place: u64) -> Block {
    Block(place & BLOCK_MASK)
}

/// A place on a tier.
pub(crate) fn on_tier(tier: u8, block: Block) -> u64 {
    ON_TIER | (u64::from(tier) - 1) << TIER_SHIFT | block.0
}

/// The place of a piece as the contract names it.
pub(crate) fn place_of(piece: &Piece) -> Place {
    let block = block_of(piece.place);
    match (tier_of(piece.place), piece.is_written) {
        (0, true) => Place::Pm(block),
        (0, false) => Place::Unwritten(block),
        (tier, true) => Place::Tier { tier, block },
        (tier, false) => Place::UnwrittenOnTier { tier, block },
    }
}

#[cfg(test)]
mod tests {
    use nacre_engine::Block;
    use nacre_layout_parts::tree::Words;

    use super::{Bounds, ShadowWords, block_of, on_tier, tier_of};

    #[test]
    fn places_on_tiers_come_back() {
        let bounds = Bounds { first: 20, end: 4096 };
        for tier in [1, 2, 31, 32] {
            let place = on_tier(tier, Block((1 << 48) - 1));
            assert_eq!((tier_of(place), block_of(place).0), (tier, (1 << 48) - 1));
            ShadowWords::check(bounds, place).unwrap();
        }
        assert_eq!(tier_of(4095), 0);
        ShadowWords::check(bounds, 4095).unwrap();
        for place in [19, 4096, 1 << 62 | 20, 1 << 63, 1 << 63 | 1 << 56 | 1, 1 << 63 | 1 << 48 | 1] {
            ShadowWords::check(bounds, place).unwrap_err();
        }
    }
}
