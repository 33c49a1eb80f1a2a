//! Counts of free blocks and inodes, and hints for the search: all that a mount keeps of free space in DRAM.

use std::sync::atomic::{AtomicU8, Ordering};

use nacre_engine::{Durability, Error, Resource, Result};
use smallvec::SmallVec;

use crate::bits::{self, Bits};
use crate::format::GROUP_BLOCKS;

/// Blocks that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

pub(crate) type Runs = SmallVec<[Run; 4]>;

/// The use of blocks, which decides how many an allocation leaves free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// New data, and names.
    Data,
    /// Changes that let a user tidy up a full file system.
    Metadata,
    /// In place of blocks that the same operation frees.
    Overwrite,
    /// A write that was accepted before; its blocks are reserved.
    Reserved,
}

impl Purpose {
    pub(crate) fn of_write(durability: Durability) -> Purpose {
        match durability {
            Durability::Accepted => Purpose::Metadata,
            Durability::Lazy | Durability::Now => Purpose::Data,
        }
    }
}

/// Counts of blocks and inodes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Free blocks in groups of data.
    pub(crate) free: u64,
    /// Free blocks in groups of pool blocks.
    pub(crate) in_pools: u64,
    /// Groups of data without a block in use.
    pub(crate) whole: u64,
    /// Blocks that new data leaves free.
    pub(crate) reserve: u64,
    /// Blocks that new data leaves to pool blocks: in their groups, or whole groups.
    pub(crate) for_pools: u64,
    /// Inodes in use.
    pub(crate) inodes: u64,
}

impl Counts {
    /// Without anything in use, of a zone of so many groups.
    pub(crate) fn of_zone(groups: u64) -> Counts {
        // A node for each group of a file that is changed block by block takes 1 in 256 blocks, copies included.
        let part = groups * GROUP_BLOCKS / 128;
        Counts { reserve: part.max(32), for_pools: part.max(64), ..Counts::default() }
    }

    /// Blocks that a user can still take, beside `reserved` ones.
    pub(crate) fn available(&self, reserved: u64) -> u64 {
        self.free.saturating_sub(self.left_by(Purpose::Data, reserved))
    }

    /// Blocks that an allocation leaves free, of which `reserved` have a reservation.
    pub(crate) fn left_by(&self, purpose: Purpose, reserved: u64) -> u64 {
        match purpose {
            Purpose::Data => {
                let missing = self.for_pools.saturating_sub(self.in_pools);
                self.reserve + reserved + missing.next_multiple_of(GROUP_BLOCKS)
            }
            Purpose::Metadata => reserved,
            Purpose::Overwrite | Purpose::Reserved => 0,
        }
    }

    /// Whether blocks of files may be taken from a group that has none in use.
    pub(crate) fn may_break_group(&self) -> bool {
        self.in_pools + self.whole * GROUP_BLOCKS >= self.for_pools + GROUP_BLOCKS
    }

    pub(crate) fn take(&mut self, blocks: u64, purpose: Purpose, reserved: u64) -> Result<()> {
        if blocks > 0 && self.free < blocks + self.left_by(purpose, reserved) {
            return Err(Error::no_space(Resource::Pm, blocks));
        }
        self.free -= blocks;
        Ok(())
    }

    /// Takes a whole group for pool blocks, from those that are kept for them, too.
    pub(crate) fn take_group(&mut self, purpose: Purpose, reserved: u64) -> Result<()> {
        let left = match purpose {
            Purpose::Data => self.reserve + reserved,
            purpose => self.left_by(purpose, reserved),
        };
        if self.free < GROUP_BLOCKS + left {
            return Err(Error::no_space(Resource::Pm, GROUP_BLOCKS));
        }
        self.free -= GROUP_BLOCKS;
        Ok(())
    }

    /// An operation is over.
    pub(crate) fn is_over(&mut self, account: &Account) {
        self.free += account.freed;
        self.whole = self.whole.saturating_add_signed(account.whole);
        self.inodes = self.inodes.saturating_add_signed(account.inodes);
    }

    /// An operation does not happen.
    pub(crate) fn give_back(&mut self, account: &Account) {
        self.free += account.taken;
    }
}

/// A byte for each group: what a search need not look at. Nothing depends on it.
pub(crate) struct Hints {
    groups: Vec<AtomicU8>,
}

/// Nothing is known of the group.
pub(crate) const UNKNOWN: u8 = 0;
/// Its longest free run is of this class, added; class 0 is none.
const CLASS: u8 = 1;
/// It has pool blocks.
const POOL: u8 = u8::MAX;
/// Classes of runs have one length up to this one, and eight lengths above.
const EXACT: u64 = 64;
/// The hint of a group without a block in use.
pub(crate) const WHOLE: u8 = CLASS + (EXACT + (GROUP_BLOCKS - EXACT) / 8) as u8;

impl Hints {
    pub(crate) fn new(groups: u64) -> Hints {
        Hints { groups: (0..groups).map(|_| AtomicU8::new(UNKNOWN)).collect() }
    }

    pub(crate) fn get(&self, group: u64) -> u8 {
        self.groups[group as usize].load(Ordering::Relaxed)
    }

    fn set(&self, group: u64, hint: u8) {
        let cell = &self.groups[group as usize];
        if cell.load(Ordering::Relaxed) != hint {
            cell.store(hint, Ordering::Relaxed);
        }
    }

    /// The group has pool blocks.
    pub(crate) fn set_pool(&self, group: u64) {
        self.set(group, POOL);
    }

    /// The group has data, with these free blocks.
    pub(crate) fn set_data(&self, group: u64, free: &Bits) {
        let longest = bits::longest(free);
        let class = longest.min(EXACT) + longest.saturating_sub(EXACT) / 8;
        self.set(group, CLASS + class as u8);
    }

    /// Whether a run of so many blocks may be free in a group. A group that only just has it may be passed over.
    pub(crate) fn may_have(hint: u8, len: u64) -> bool {
        let class = len.min(EXACT) + len.saturating_sub(EXACT).div_ceil(8);
        hint == UNKNOWN || (CLASS + class as u8..=WHOLE).contains(&hint)
    }

    /// The group has pool blocks, as far as is known.
    pub(crate) fn is_pool(&self, group: u64) -> bool {
        self.get(group) == POOL
    }

    /// The group may have pool blocks.
    pub(crate) fn may_be_pool(&self, group: u64) -> bool {
        matches!(self.get(group), UNKNOWN | POOL)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.groups.len() as u64
    }
}

/// The blocks and inodes that an operation takes and gives, counted when it is over.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Account {
    /// Blocks that it took from the count of free ones.
    pub(crate) taken: u64,
    /// Blocks that are free with the commit.
    pub(crate) freed: u64,
    /// More groups without a block in use, or fewer.
    pub(crate) whole: i64,
    /// More inodes, or fewer.
    pub(crate) inodes: i64,
}
