//! Where the structures of a device are, and where their copies are.

use nacre_engine::{BLOCK_SIZE, Block, Error, Result};
use nacre_layout_parts::superblock::Superblock;

use crate::format::{
    GROUP_BLOCKS, GROUP_BYTES, INODE_SIZE, LANE_ITEMS, MAP_WORDS, POOL_HEAD, RawItem, RawMap, RawZone,
    purpose, region, seed_at,
};

/// Whether a group with this word of its purpose has pool blocks.
pub(crate) fn is_pool(word: u64) -> bool {
    word & ((1 << purpose::BITS) - 1) == purpose::POOL
}

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

/// The places of everything that does not move, of one zone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Geometry {
    pub(crate) volume_seed: u32,
    pub(crate) volumes: Halves,
    pub(crate) zones: Halves,
    pub(crate) maps: Halves,
    pub(crate) lanes_at: Halves,
    /// Pool blocks and data are behind this block.
    pub(crate) first_data_block: u64,
    pub(crate) groups: u64,
    /// Bytes of a pool block, both halves.
    pub(crate) pool_block: u64,
    pub(crate) lanes: u64,
    /// Bytes of a lane.
    pub(crate) lane_bytes: u64,
}

impl Geometry {
    /// The places of what the superblock has, for a row of a zone.
    pub(crate) fn new(superblock: &Superblock, zone: &RawZone) -> Result<Geometry> {
        let geometry = Geometry {
            volume_seed: superblock.seed(),
            volumes: Halves::of(superblock, region::VOLUMES)?,
            zones: Halves::of(superblock, region::ZONES)?,
            maps: Halves::of(superblock, region::MAPS)?,
            lanes_at: Halves::of(superblock, region::LANES)?,
            first_data_block: superblock.first_data_block(),
            groups: zone.groups,
            pool_block: zone.pool_block.into(),
            lanes: zone.lanes.into(),
            lane_bytes: zone.lane_bytes.into(),
        };
        let fits = geometry.groups * GROUP_BLOCKS <= superblock.raw.device_blocks
            && geometry.groups * size_of::<RawMap>() as u64 <= geometry.maps.len
            && geometry.pool_block.is_power_of_two()
            && (4 * POOL_HEAD..=GROUP_BYTES).contains(&geometry.pool_block)
            && (1..=64).contains(&geometry.lanes)
            && geometry.lane_bytes > LANE_ITEMS
            && geometry.lane_bytes.is_multiple_of(64)
            && geometry.lanes * geometry.lane_bytes <= geometry.lanes_at.len;
        if fits && zone.first_group == 0 { Ok(geometry) } else { Err(Error::corrupt("the row of zone 0")) }
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

    /// The map of a group.
    pub(crate) fn map(&self, group: u64) -> u64 {
        self.maps.start + group * size_of::<RawMap>() as u64
    }

    /// The word of a map that has the group's purpose.
    pub(crate) fn purpose(&self, group: u64) -> u64 {
        self.map(group) + MAP_WORDS as u64 * 8
    }

    /// A lane.
    pub(crate) fn lane(&self, index: u64) -> u64 {
        self.lanes_at.start + index * self.lane_bytes
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
        block >= self.first_data_block
            && block.checked_add(count).is_some_and(|end| end <= self.groups * GROUP_BLOCKS)
    }

    /// Whether an entry of `size` bytes can be at an address.
    pub(crate) fn is_entry(&self, address: u64, size: u64) -> bool {
        let within = address % self.pool_block;
        address >= Block(self.first_data_block).offset()
            && address < self.groups * GROUP_BYTES
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
