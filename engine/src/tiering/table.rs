//! The tiers of a file system.

use crate::content::Data;
use crate::error::{Error, Result};
use crate::space::Extents;

use super::space::TierSpace;

/// The largest number of tiers of a file system; their numbers are 1 to this.
pub const MAX_TIERS: u8 = 32;

/// The use of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TierState {
    /// Blocks are placed on it.
    Active,
    /// Its blocks are moving to other places, and no new ones are placed on it.
    Draining,
}

/// A tier, as the file system knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tier {
    /// The number, from 1 on, by which places refer to the tier.
    pub number: u8,
    /// Its identifier for machines, which its own superblock has, too.
    pub uuid: [u8; 16],
    /// Blocks of the device.
    pub blocks: u64,
    /// The token in its superblock. Each mount chooses a new one, so that older copies are recognised.
    pub token: u64,
    /// The token that is being written there, or 0. If it is not 0, the superblock may have either.
    pub pending: u64,
    /// Smaller is faster; equal devices have the same.
    pub rank: u8,
    /// Its use.
    pub state: TierState,
}

/// How the list of tiers changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TierChange {
    /// Adds a tier, or changes one.
    Set(Tier),
    /// Removes the tier with this number, which holds no blocks.
    Remove(u8),
}

/// The list of tiers, on media, and the space of each.
pub trait TierTable: Data + Extents {
    /// The tiers, by number.
    fn tiers(&self) -> Vec<Tier>;

    /// Changes the list of tiers, durably. [`Busy`](crate::Kind::Busy) for the removal of a tier with blocks in use,
    /// [`InvalidInput`](crate::Kind::InvalidInput) for an unknown number.
    fn change_tier(&self, change: TierChange) -> Result<()>;

    /// Space statistics of a tier.
    fn tier_space(&self, tier: u8) -> Result<TierSpace>;

    /// Sets the tiers that take no blocks now, although they are active. Blocks that are allocated and not written
    /// then go to other tiers. Each call replaces the set.
    fn set_unusable(&self, tiers: &[u8]);

    /// Counts the blocks of a tier that can be read now. After a crash this counts the blocks that offloaded extent
    /// maps on it name. Until then nothing is free on it, and its maps are not read. Once for each mount; later calls
    /// do nothing.
    ///
    /// A map that is damaged or cannot be read fails for its file alone. Nothing is free on the tier then while that
    /// file exists. If two maps name one block, this lasts until the next mount. Returns the fault of the first such
    /// map. An error if the tier is missing after all.
    fn count_tier(&self, tier: u8) -> Result<Option<Error>>;
}
