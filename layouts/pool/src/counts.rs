//! Counts of free blocks and inodes, and hints for the search: all that a mount keeps of free space in DRAM.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};

use nacre_engine::{BLOCK_SIZE, Durability, Error, Resource, Result};
use smallvec::SmallVec;

use crate::bits::{self, Bits};
use crate::format::{GROUP_BLOCKS, INODE_SIZE, RawVolume, RawZone};
use crate::geometry::{Geometry, Use};

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

/// Counts of blocks and inodes. Those of a damaged row may be too low, so that none falls below zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Free blocks in the volume's groups of data, and in groups of no volume.
    pub(crate) free: u64,
    /// Those of them in groups of no volume.
    pub(crate) unowned: u64,
    /// Free blocks in groups of pool blocks.
    pub(crate) in_pools: u64,
    /// Groups without a block in use.
    pub(crate) whole: u64,
    /// Blocks in use.
    pub(crate) used: u64,
    /// The most blocks in use.
    pub(crate) quota: u64,
    /// Blocks that new data leaves free.
    pub(crate) reserve: u64,
    /// Blocks that new data leaves to pool blocks: in their groups, or whole groups.
    pub(crate) for_pools: u64,
    /// Blocks below the quota that data leaves to metadata, so that a full volume can be made smaller.
    kept_of_quota: u64,
    /// Blocks of a pool block.
    pool_block: u64,
    /// Inodes in use.
    pub(crate) inodes: u64,
}

impl Counts {
    /// Nothing is counted yet.
    pub(crate) fn none(geometry: &Geometry, quota: u64) -> Counts {
        // A node for each group of a file that is changed block by block takes 1 in 256 blocks, copies included.
        let part = (geometry.end_group - geometry.first_group) * GROUP_BLOCKS / 128;
        let quota = if quota == 0 { u64::MAX } else { quota };
        let pool_block = geometry.pool_block / BLOCK_SIZE;
        // Two pools may need a pool block more for an operation that ends in fewer blocks.
        let kept_of_quota = (2 * pool_block).min(quota / 8);
        let (reserve, for_pools) = (part.max(32), part.max(64));
        Counts { reserve, for_pools, quota, kept_of_quota, pool_block, ..Counts::default() }
    }

    /// Counts a group.
    pub(crate) fn add(&mut self, group: &GroupCounts) {
        self.replace(&GroupCounts::default(), group);
    }

    /// A group that was counted counts for something else now.
    pub(crate) fn replace(&mut self, old: &GroupCounts, new: &GroupCounts) {
        let changed = |count: &mut u64, old: u64, new: u64| *count = (*count + new).saturating_sub(old);
        changed(&mut self.free, old.free, new.free);
        changed(&mut self.unowned, old.unowned, new.unowned);
        changed(&mut self.in_pools, old.in_pools, new.in_pools);
        changed(&mut self.whole, old.whole, new.whole);
        changed(&mut self.used, old.used, new.used);
        changed(&mut self.inodes, old.inodes, new.inodes);
    }

    /// Whether what clean unmounts kept can be so.
    pub(crate) fn can_be(row: &RawVolume, zone: &RawZone, geometry: &Geometry) -> bool {
        let blocks = [zone.free_blocks, row.free_blocks, row.free_in_pools, row.used_blocks];
        let inodes = geometry.blocks() * (BLOCK_SIZE / INODE_SIZE);
        blocks.into_iter().all(|blocks| blocks <= geometry.blocks())
            && zone.whole_groups <= geometry.blocks() / GROUP_BLOCKS
            && row.inodes <= inodes
    }

    /// The counts that clean unmounts kept.
    pub(crate) fn kept(geometry: &Geometry, row: &RawVolume, zone: &RawZone) -> Counts {
        Counts {
            free: row.free_blocks + zone.free_blocks,
            unowned: zone.free_blocks,
            in_pools: row.free_in_pools,
            whole: zone.whole_groups,
            used: row.used_blocks,
            inodes: row.inodes,
            ..Counts::none(geometry, row.quota)
        }
    }

    /// Blocks that a user can still take, beside `reserved` ones.
    pub(crate) fn available(&self, reserved: u64) -> u64 {
        let left = self.free.saturating_sub(self.left_by(Purpose::Data, reserved));
        // The first name takes a pool block beside that of the root.
        let for_name = if self.used <= self.pool_block { self.pool_block } else { 0 };
        left.min(self.quota.saturating_sub(self.used + reserved + self.kept_of_quota + for_name))
    }

    /// Whether the quota leaves room for so many blocks, beside `reserved` ones. Reserved blocks were counted when they
    /// were reserved, and an overwrite frees as many as it takes.
    pub(crate) fn check_quota(&self, blocks: u64, purpose: Purpose, reserved: u64) -> Result<()> {
        let left = match purpose {
            Purpose::Data => reserved + self.kept_of_quota,
            Purpose::Metadata => reserved,
            Purpose::Overwrite | Purpose::Reserved => return Ok(()),
        };
        if self.used.saturating_add(blocks).saturating_add(left) <= self.quota {
            return Ok(());
        }
        Err(Error::no_space(Resource::Pm, blocks).object("the quota of the volume"))
    }

    /// Blocks that an allocation leaves free, of which `reserved` have a reservation.
    pub(crate) fn left_by(&self, purpose: Purpose, reserved: u64) -> u64 {
        match purpose {
            Purpose::Data => {
                // Pool blocks come from whole groups. Of scattered free blocks a part is kept all the same, for nodes
                // and for what replaces blocks.
                let missing = self.for_pools.saturating_sub(self.in_pools).next_multiple_of(GROUP_BLOCKS);
                self.reserve + reserved + missing.min((self.whole * GROUP_BLOCKS).max(self.reserve))
            }
            Purpose::Metadata => reserved,
            Purpose::Overwrite | Purpose::Reserved => 0,
        }
    }

    /// Whether hardly more is free than what new data leaves.
    pub(crate) fn is_full(&self) -> bool {
        self.free < self.left_by(Purpose::Data, 0) + 2 * SHORT
    }

    /// Whether blocks of files may be taken from a group that has none in use.
    pub(crate) fn may_break_group(&self) -> bool {
        self.in_pools + self.whole * GROUP_BLOCKS >= self.for_pools + GROUP_BLOCKS
    }

    pub(crate) fn take(&mut self, blocks: u64, purpose: Purpose, reserved: u64) -> Result<()> {
        if self.free < blocks + self.left_by(purpose, reserved) {
            return Err(Error::no_space(Resource::Pm, blocks));
        }
        self.check_quota(blocks, purpose, reserved)?;
        self.free = self.free.saturating_sub(blocks);
        self.used += blocks;
        Ok(())
    }

    /// Takes a pool block of so many blocks from a group that has others.
    pub(crate) fn take_slot(&mut self, blocks: u64, purpose: Purpose, reserved: u64) -> Result<()> {
        self.check_quota(blocks, purpose, reserved)?;
        self.used += blocks;
        Ok(())
    }

    /// The pool block is a part of its group, or was not made.
    pub(crate) fn give_slot_back(&mut self, blocks: u64) {
        self.used = self.used.saturating_sub(blocks);
    }

    /// Takes a whole group for pool blocks, the first of which has so many blocks, from those that are kept for them,
    /// too.
    pub(crate) fn take_group(&mut self, blocks: u64, purpose: Purpose, reserved: u64) -> Result<()> {
        // The rest of the group is free for other pool blocks, and does not count.
        self.check_quota(blocks, purpose, reserved)?;
        let left = match purpose {
            Purpose::Data => self.reserve + reserved,
            purpose => self.left_by(purpose, reserved),
        };
        if self.free < GROUP_BLOCKS + left {
            return Err(Error::no_space(Resource::Pm, GROUP_BLOCKS));
        }
        self.free = self.free.saturating_sub(GROUP_BLOCKS);
        self.used += GROUP_BLOCKS;
        Ok(())
    }

    /// Blocks that were taken are counted with their groups, or the operation does not happen.
    pub(crate) fn give_back(&mut self, blocks: u64) {
        self.free += blocks;
        self.used = self.used.saturating_sub(blocks);
    }
}

/// The counts of one group.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct GroupCounts {
    free: u64,
    unowned: u64,
    in_pools: u64,
    whole: u64,
    used: u64,
    /// Inodes in use in its pool blocks.
    pub(crate) inodes: u64,
}

impl GroupCounts {
    /// Those of the blocks of a group.
    pub(crate) fn of(of: Use, free: &Bits, regions: u64) -> GroupCounts {
        let (free, none) = (bits::count(free), GroupCounts::default());
        match of {
            Use::Free => GroupCounts { free, unowned: free, whole: u64::from(free == GROUP_BLOCKS), ..none },
            Use::Data => GroupCounts { free, used: (GROUP_BLOCKS - regions).saturating_sub(free), ..none },
            Use::Pool => GroupCounts { in_pools: free, used: GROUP_BLOCKS - free, ..none },
            Use::Other(_) => none,
        }
    }

    /// Those of inodes alone.
    pub(crate) fn of_inodes(inodes: u32) -> GroupCounts {
        GroupCounts { inodes: inodes.into(), ..GroupCounts::default() }
    }
}

/// A byte for each group: what a search need not look at. Nothing depends on it.
pub(crate) struct Hints {
    first: u64,
    groups: Vec<AtomicU8>,
}

/// Blocks of an extent that is copied as a whole if there is no room for a node.
pub(crate) const SHORT: u64 = 16;

/// Nothing is known of the group.
pub(crate) const UNKNOWN: u8 = 0;
/// Its longest free run is of this class, added; class 0 is none.
const CLASS: u8 = 1;
/// It has pool blocks.
const POOL: u8 = u8::MAX;
/// It is another volume's.
const OTHER: u8 = POOL - 1;
/// Classes of runs have one length up to this one, and eight lengths above.
const EXACT: u64 = 64;
/// The hint of a group without a block in use.
pub(crate) const WHOLE: u8 = CLASS + (EXACT + (GROUP_BLOCKS - EXACT) / 8) as u8;

impl Hints {
    pub(crate) fn new(groups: Range<u64>) -> Hints {
        Hints { first: groups.start, groups: groups.map(|_| AtomicU8::new(UNKNOWN)).collect() }
    }

    pub(crate) fn get(&self, group: u64) -> u8 {
        self.groups[(group - self.first) as usize].load(Ordering::Relaxed)
    }

    fn set(&self, group: u64, hint: u8) {
        let cell = &self.groups[(group - self.first) as usize];
        if cell.load(Ordering::Relaxed) != hint {
            cell.store(hint, Ordering::Relaxed);
        }
    }

    /// The group is used so, and has these free blocks.
    pub(crate) fn note(&self, group: u64, of: Use, free: &Bits) {
        let hint = match of {
            Use::Free | Use::Data => {
                let longest = bits::longest(free);
                CLASS + (longest.min(EXACT) + longest.saturating_sub(EXACT) / 8) as u8
            }
            Use::Pool => POOL,
            Use::Other(_) => OTHER,
        };
        self.set(group, hint);
    }

    /// Whether a run of so many blocks may be free in a group. A group that only just has it may be passed over.
    pub(crate) fn may_have(hint: u8, len: u64) -> bool {
        let class = len.min(EXACT) + len.saturating_sub(EXACT).div_ceil(8);
        hint == UNKNOWN || (CLASS + class as u8..=WHOLE).contains(&hint)
    }

    /// Whether the longest run of a group is at most [`SHORT`].
    pub(crate) fn has_short_runs(hint: u8) -> bool {
        (CLASS + 1..=CLASS + SHORT as u8).contains(&hint)
    }

    /// Whether the group may have free blocks of data.
    pub(crate) fn may_be_data(&self, group: u64) -> bool {
        self.get(group) < OTHER
    }

    /// The group may have pool blocks.
    pub(crate) fn may_be_pool(&self, group: u64) -> bool {
        matches!(self.get(group), UNKNOWN | POOL)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.groups.len() as u64
    }
}
