//! Where the structures of a device are, and where their copies are.

use std::ops::Range;

use nacre_engine::{BLOCK_SIZE, Block, Error, Result};
use nacre_layout_parts::superblock::Superblock;

use crate::format::{
    GROUP_BLOCKS, GROUP_BYTES, INODE_SIZE, LANE_ITEMS, POOL_HEAD, RawItem, RawMap, RawVolume, RawZone,
    purpose, region, seed_at,
};

/// A region with its copies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Halves {
    /// The first byte of the primaries.
    pub(crate) start: u64,
    /// Bytes of the primaries; the backups are right behind them.
    pub(crate) len: u64,
}

impl Halves {
    pub(crate) fn of(superblock: &Superblock, kind: u32) -> Result<Halves> {
        let region = superblock.region(kind)?;
        Ok(Halves { start: Block(region.start).offset(), len: region.blocks / 2 * BLOCK_SIZE })
    }

    fn has(&self, address: u64) -> bool {
        (self.start..self.start + self.len).contains(&address)
    }
}

/// The places of everything that does not move, as a volume of a zone sees them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Geometry {
    pub(crate) volume_seed: u32,
    /// The number of the volume's row.
    pub(crate) volume: u32,
    pub(crate) zone: u32,
    pub(crate) volumes: Halves,
    pub(crate) zones: Halves,
    pub(crate) maps: Halves,
    pub(crate) lanes_at: Halves,
    /// Pool blocks and data are behind this block.
    pub(crate) first_data_block: u64,
    /// Groups of the zone.
    pub(crate) first_group: u64,
    pub(crate) end_group: u64,
    /// Bytes of a pool block, both halves.
    pub(crate) pool_block: u64,
    /// Lanes of the zone.
    pub(crate) lanes: u64,
    /// Bytes of a lane.
    pub(crate) lane_bytes: u64,
}

/// The use of a group, from its word of purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Free space of no volume. The first group of a device has the regions, too.
    Free,
    /// Blocks of the volume's files.
    Data,
    /// Pool blocks of the volume.
    Pool,
    /// Another volume has it: the one with this row.
    Other(u64),
}

impl Geometry {
    /// The places of what the superblock has, for a zone and a volume in it.
    pub(crate) fn new(superblock: &Superblock, zone: u32, row: &RawZone, volume: u32) -> Result<Geometry> {
        let geometry = Geometry {
            volume_seed: superblock.seed(),
            volume,
            zone,
            volumes: Halves::of(superblock, region::VOLUMES)?,
            zones: Halves::of(superblock, region::ZONES)?,
            maps: Halves::of(superblock, region::MAPS)?,
            lanes_at: Halves::of(superblock, region::LANES)?,
            first_data_block: superblock.first_data_block(),
            first_group: row.first_group,
            end_group: row.first_group.saturating_add(row.groups),
            pool_block: row.pool_block.into(),
            lanes: row.lanes.into(),
            lane_bytes: row.lane_bytes.into(),
        };
        let fits = geometry.first_group < geometry.end_group
            && geometry.end_group <= superblock.raw.device_blocks / GROUP_BLOCKS
            && geometry.end_group * size_of::<RawMap>() as u64 <= geometry.maps.len
            && geometry.pool_block.is_power_of_two()
            && (4 * POOL_HEAD..=GROUP_BYTES).contains(&geometry.pool_block)
            && (1..=64).contains(&geometry.lanes)
            && geometry.lane_bytes > LANE_ITEMS
            && geometry.lane_bytes.is_multiple_of(64)
            && (u64::from(zone) + 1) * geometry.lanes * geometry.lane_bytes <= geometry.lanes_at.len;
        if fits { Ok(geometry) } else { Err(Error::corrupt(format!("the row of zone {zone}"))) }
    }

    /// The groups of the zone.
    pub(crate) fn groups(&self) -> Range<u64> {
        self.first_group..self.end_group
    }

    /// The groups of the zone, from one of them on.
    pub(crate) fn groups_from(&self, first: u64) -> impl Iterator<Item = u64> + use<> {
        let Range { start, end } = self.groups();
        (first..end).chain(start..first)
    }

    /// The number of blocks of the zone that can be used.
    pub(crate) fn blocks(&self) -> u64 {
        let regions = self.first_data_block.saturating_sub(self.first_group * GROUP_BLOCKS);
        (self.end_group - self.first_group) * GROUP_BLOCKS - regions
    }

    /// Blocks of a group that the regions are in.
    pub(crate) fn regions_in(&self, group: u64) -> u64 {
        self.first_data_block.saturating_sub(group * GROUP_BLOCKS).min(GROUP_BLOCKS)
    }

    /// The row of the volume.
    pub(crate) fn row(&self) -> u64 {
        self.volumes.start + u64::from(self.volume) * size_of::<RawVolume>() as u64
    }

    /// The row of the zone.
    pub(crate) fn zone_row(&self) -> u64 {
        self.zones.start + u64::from(self.zone) * size_of::<RawZone>() as u64
    }

    /// The use of a group with this word of its purpose.
    pub(crate) fn use_of(&self, word: u64) -> Use {
        match (word & ((1 << purpose::BITS) - 1), word >> purpose::BITS) {
            _ if word == purpose::FREE => Use::Free,
            (purpose::DATA, owner) if owner == self.owner() => Use::Data,
            (purpose::POOL, owner) if owner == self.owner() => Use::Pool,
            (_, owner) => Use::Other(owner.wrapping_sub(1)),
        }
    }

    fn owner(&self) -> u64 {
        u64::from(self.volume) + 1
    }

    /// The word of the purpose of a group with files of this volume.
    pub(crate) fn data(&self) -> u64 {
        purpose::DATA | self.owner() << purpose::BITS
    }

    /// The word of the purpose of a group with pool blocks of this volume.
    pub(crate) fn pool(&self) -> u64 {
        purpose::POOL | self.owner() << purpose::BITS
    }

    /// The seed of what is at an address.
    pub(crate) fn seed(&self, address: u64) -> u32 {
        seed_at(self.volume_seed, address)
    }

    /// The backup of metadata at an address.
    pub(crate) fn twin(&self, address: u64) -> u64 {
        let regions = [self.maps, self.lanes_at, self.volumes, self.zones];
        match regions.iter().find(|halves| halves.has(address)) {
            Some(halves) => address + halves.len,
            None => address + self.pool_block / 2,
        }
    }

    /// The primary of metadata of which the address is of either copy.
    pub(crate) fn primary(&self, address: u64) -> u64 {
        let regions = [self.maps, self.lanes_at, self.volumes, self.zones];
        match regions.iter().find(|halves| (halves.start..halves.start + 2 * halves.len).contains(&address)) {
            Some(halves) if halves.has(address) => address,
            Some(halves) => address - halves.len,
            None if address % self.pool_block < self.pool_block / 2 => address,
            None => address - self.pool_block / 2,
        }
    }

    /// Whether an address is in the tables of rows, of volumes or of zones.
    pub(crate) fn has_rows(&self, address: u64) -> bool {
        let is_in = |halves: &Halves| (halves.start..halves.start + 2 * halves.len).contains(&address);
        [self.volumes, self.zones].iter().any(is_in)
    }

    /// The map of a group.
    pub(crate) fn map(&self, group: u64) -> u64 {
        self.maps.start + group * size_of::<RawMap>() as u64
    }

    /// A lane.
    pub(crate) fn lane(&self, index: u64) -> u64 {
        self.lanes_at.start + (u64::from(self.zone) * self.lanes + index) * self.lane_bytes
    }

    /// Items that a lane has room for.
    pub(crate) fn lane_items(&self) -> usize {
        (self.lane_bytes - LANE_ITEMS) as usize / size_of::<RawItem>()
    }

    /// The group that has an address.
    pub(crate) fn group_of(&self, address: u64) -> u64 {
        address / GROUP_BYTES
    }

    /// The first byte of the pool block that has an address.
    pub(crate) fn pool_of(&self, address: u64) -> u64 {
        address / self.pool_block * self.pool_block
    }

    /// Bytes of entries in each half of a pool block.
    pub(crate) fn entry_bytes(&self) -> u64 {
        self.pool_block / 2 - POOL_HEAD
    }

    /// Pool blocks of a group.
    pub(crate) fn pool_blocks_in_group(&self) -> u64 {
        GROUP_BYTES / self.pool_block
    }

    /// Whether a block can be one of a file.
    pub(crate) fn is_data(&self, block: u64, count: u64) -> bool {
        block >= self.first_data_block.max(self.first_group * GROUP_BLOCKS)
            && block.checked_add(count).is_some_and(|end| end <= self.end_group * GROUP_BLOCKS)
    }

    /// Whether an entry of `size` bytes can be at an address.
    pub(crate) fn is_entry(&self, address: u64, size: u64) -> bool {
        let within = address % self.pool_block;
        self.is_data(address / BLOCK_SIZE, 1)
            && within >= POOL_HEAD
            && within + size <= self.pool_block / 2
            && (within - POOL_HEAD).is_multiple_of(size)
    }

    /// Where the inode with a number is, in a volume whose root is at `root`. `None` for no number of an inode.
    pub(crate) fn inode(&self, number: u64, root: u64) -> Option<u64> {
        let address =
            if number == crate::format::ROOT_INODE { root } else { number.checked_mul(INODE_SIZE)? };
        self.is_entry(address, INODE_SIZE).then_some(address)
    }
}
