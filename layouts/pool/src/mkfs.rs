//! Makes an empty file system.

use nacre_engine::{BLOCK_SIZE, Block, FileKind, Result, TimeRange};
use nacre_layout_parts::lifecycle::MkfsOptions;
use nacre_layout_parts::superblock::{check_size, erase};
use nacre_media::Pm;
use uuid::Uuid;
use zerocopy::{FromZeros, IntoBytes};

use crate::bits;
use crate::commit::join;
use crate::counts::Counts;
use crate::format::pools::{INODES, SIZES};
use crate::format::{
    CHECKSUM_CRC32C, FIRST_REGION_BLOCK, FORMAT_VERSION, GROUP_BLOCKS, GROUP_BYTES, INODE_SIZE, MAGIC,
    MAP_WORDS, OLDEST_READER, POOL_BITS, POOL_HEAD, POOL_MAGIC, ROOT_INODE, ROWS, RawHead, RawInode, RawMap,
    RawPoolHead, RawSuperblock, RawVolume, RawZone, Region, WORD_BITS, purpose, region, seal_any, state,
    status, volume_state,
};
use crate::geometry::Geometry;
use crate::lanes::store_done;
use crate::superblock::{Summary, Superblock, put_text};
use crate::volumes;

/// A device of less has few lanes with few items each, and the smallest pool blocks.
const SMALL_DEVICE: u64 = 64 << 20;
/// From this size on, a pool block is a group.
const LARGE_DEVICE: u64 = 1 << 30;
/// Groups whose maps are written at once.
const MAPS_AT_ONCE: u64 = 4096;

/// Makes an empty file system that fills the device. The old contents of the device are lost; the superblocks come
/// last, so a crash leaves the old file system, or none, or the new one.
pub(crate) fn mkfs<P: Pm>(pm: &P, options: &MkfsOptions) -> Result<Summary> {
    let blocks = pm.len() / BLOCK_SIZE;
    check_size(pm, "the pool layout takes 16 MiB to 16 TiB")?;
    let zone = zone_of(blocks);
    let mut superblock = describe(blocks, &zone, options)?;
    let geometry = Geometry::new(&superblock, &zone)?;

    // No old superblock may stand beside new structures.
    erase(pm)?;
    let regions = superblock.first_data_block() - FIRST_REGION_BLOCK;
    let zeroed = pm.zero(Block(FIRST_REGION_BLOCK).offset(), regions * BLOCK_SIZE)?;
    pm.fence(zeroed);
    let pool_group = geometry.first_data_block.div_ceil(GROUP_BLOCKS);
    write_maps(pm, &geometry, pool_group)?;
    write_root(pm, &geometry, pool_group * GROUP_BYTES, options)?;
    write_rows(pm, &geometry, zone, pool_group, options, &superblock)?;
    superblock.write(pm)?;
    let found = crate::superblock::read(pm)?;
    let row = volumes::read(pm, &geometry)?;
    Ok(volumes::summary(&found, &row))
}

/// The zone of a device.
fn zone_of(blocks: u64) -> RawZone {
    let size = blocks * BLOCK_SIZE;
    let mut zone = RawZone::new_zeroed();
    zone.state = 1;
    zone.groups = blocks / GROUP_BLOCKS;
    (zone.lanes, zone.lane_bytes) = if size < SMALL_DEVICE { (2, 1 << 10) } else { (16, 16 << 10) };
    zone.pool_block = match size {
        size if size < SMALL_DEVICE => 64 << 10,
        size if size < LARGE_DEVICE => 256 << 10,
        _ => GROUP_BYTES as u32,
    };
    zone
}

fn describe(blocks: u64, zone: &RawZone, options: &MkfsOptions) -> Result<Superblock> {
    let mut raw = RawSuperblock::new_zeroed();
    raw.magic = MAGIC;
    raw.checksum_algorithm = CHECKSUM_CRC32C;
    raw.version = FORMAT_VERSION;
    raw.oldest_reader = OLDEST_READER;
    raw.block_size = BLOCK_SIZE as u32;
    raw.line_size = 64;
    raw.uuid = options.uuid.unwrap_or_else(Uuid::new_v4).into_bytes();
    put_text(&mut raw.label, &options.label, "label")?;
    put_text(&mut raw.preset, &options.preset, "preset")?;
    raw.device_blocks = blocks;
    raw.created = TimeRange::of_version(raw.version).pack(options.now);
    raw.state = state::CLEAN;
    let twice = |bytes: u64| 2 * bytes.div_ceil(BLOCK_SIZE);
    let regions = [
        (region::BAD_BLOCKS, 1),
        (region::VOLUMES, twice(ROWS * size_of::<RawVolume>() as u64)),
        (region::ZONES, twice(ROWS * size_of::<RawZone>() as u64)),
        (region::LANES, twice(u64::from(zone.lanes) * u64::from(zone.lane_bytes))),
        (region::MAPS, twice(zone.groups * size_of::<RawMap>() as u64)),
    ];
    let mut start = FIRST_REGION_BLOCK;
    for (row, (kind, blocks)) in raw.regions.iter_mut().zip(regions) {
        *row = Region { kind, reserved: 0, start, blocks };
        start += blocks;
    }
    raw.region_count = regions.len() as u32;
    Ok(crate::superblock::of(raw))
}

/// The free blocks of a group of a new file system, and its purpose.
fn new_map(geometry: &Geometry, group: u64, pool_group: u64) -> (bits::Bits, u64) {
    let first = group * GROUP_BLOCKS;
    let used = geometry.first_data_block.saturating_sub(first).min(GROUP_BLOCKS);
    let free = bits::without(&[u64::MAX; 8], &bits::run(0, used));
    if group == pool_group {
        return (bits::without(&free, &bits::run(0, geometry.pool_block / BLOCK_SIZE)), purpose::POOL);
    }
    (free, purpose::DATA)
}

fn write_maps<P: Pm>(pm: &P, geometry: &Geometry, pool_group: u64) -> Result<()> {
    let mut group = 0;
    while group < geometry.groups {
        let end = (group + MAPS_AT_ONCE).min(geometry.groups);
        let mut bytes = Vec::new();
        for group in group..end {
            let (free, purpose) = new_map(geometry, group, pool_group);
            let seed = geometry.seed(geometry.map(group));
            let mut map = RawMap::new_zeroed();
            map.bits = bits::to_words(&free).map(|word| seal_any(word, seed));
            map.purpose = seal_any(purpose, seed);
            bytes.extend_from_slice(map.as_bytes());
        }
        let at = geometry.map(group);
        let copied = pm.copy(at, &bytes)?.and(pm.copy(geometry.twin(at), &bytes)?);
        pm.fence(copied);
        group = end;
    }
    const { assert!(MAP_WORDS as u64 * WORD_BITS >= GROUP_BLOCKS) };
    Ok(())
}

/// The pool block with the root's inode, and that inode.
fn write_root<P: Pm>(pm: &P, geometry: &Geometry, block: u64, options: &MkfsOptions) -> Result<()> {
    let seed = geometry.seed(block);
    let count = geometry.entry_bytes() / SIZES[INODES];
    let mut head = RawPoolHead::new_zeroed();
    head.magic = POOL_MAGIC;
    head.pool = INODES as u32;
    head.entry_size = SIZES[INODES] as u32;
    head.count = count as u32;
    head.checksum = head.compute_checksum(seed);
    let mut page = [0u8; BLOCK_SIZE as usize];
    page[..size_of::<RawPoolHead>()].copy_from_slice(head.as_bytes());
    let words = page[POOL_BITS as usize..].chunks_exact_mut(8);
    for (index, place) in words.enumerate().take(count.div_ceil(WORD_BITS) as usize) {
        let bits = (count - index as u64 * WORD_BITS).min(WORD_BITS);
        // The first entry is the root's.
        let free = u64::MAX >> (64 - bits) & !u64::from(index == 0);
        place.copy_from_slice(&seal_any(free, seed).to_le_bytes());
    }
    let address = block + POOL_HEAD;
    let seed = geometry.seed(address);
    let now = TimeRange::of_version(FORMAT_VERSION).pack(options.now);
    let mut root = RawInode::new_zeroed();
    root.head = RawHead { status: status::CONSISTENT, pool: INODES as u8, ..RawHead::default() };
    (root.generation, root.links) = (1, 1);
    (root.mode, root.kind) = (0o755, FileKind::Directory as u8);
    (root.uid, root.gid) = options.root_owner;
    (root.mtime, root.ctime, root.atime, root.btime) = (now, now, now, now);
    root.parent = ROOT_INODE;
    root.root = seal_any(0, seed);
    (root.next_orphan, root.previous_orphan) = (seal_any(0, seed), seal_any(0, seed));
    root.head.checksum = root.compute_checksum(seed);
    let mut pending = None;
    for half in [block, geometry.twin(block)] {
        pending = join(pending, pm.zero(half + POOL_HEAD, geometry.entry_bytes())?);
        pending = join(pending, pm.copy(half, &page)?);
    }
    pending.map(|pending| pm.fence(pending));
    let copied = pm.copy(address, root.as_bytes())?.and(pm.copy(geometry.twin(address), root.as_bytes())?);
    pm.fence(copied);
    const { assert!(INODE_SIZE == SIZES[INODES]) };
    Ok(())
}

/// The rows of the zone and of the volume, and the lanes.
fn write_rows<P: Pm>(
    pm: &P,
    geometry: &Geometry,
    mut zone: RawZone,
    pool_group: u64,
    options: &MkfsOptions,
    superblock: &Superblock,
) -> Result<()> {
    let mut counts = Counts { inodes: 1, ..Counts::default() };
    for group in 0..geometry.groups {
        let (free, purpose) = new_map(geometry, group, pool_group);
        match purpose {
            purpose::DATA => {
                counts.free += bits::count(&free);
                counts.whole += u64::from(free == [u64::MAX; 8]);
            }
            _ => counts.in_pools += bits::count(&free),
        }
    }
    let mut row = RawVolume::new_zeroed();
    row.state = volume_state::LIVE;
    row.uuid = superblock.raw.uuid;
    put_text(&mut row.label, "main", "the name of a volume")?;
    row.preset = superblock.raw.preset;
    row.clean = 1;
    row.root = pool_group * GROUP_BYTES + POOL_HEAD;
    let (low, high) = Uuid::from_bytes(row.uuid).as_u64_pair();
    row.hash_seed = low.rotate_left(17) ^ high;
    row.created = TimeRange::of_version(FORMAT_VERSION).pack(options.now);
    row.keep(&counts);
    let at = geometry.volumes.start;
    row.orphans = row.orphans.map(|_| seal_any(0, geometry.seed(at)));
    row.checksum = row.compute_checksum(geometry.seed(at));
    let mut pending = pm.copy(at, row.as_bytes())?.and(pm.copy(geometry.twin(at), row.as_bytes())?);
    let at = geometry.zones.start;
    zone.checksum = zone.compute_checksum(geometry.seed(at));
    pending = pending.and(pm.copy(at, zone.as_bytes())?).and(pm.copy(geometry.twin(at), zone.as_bytes())?);
    for index in 0..geometry.lanes {
        pending = pending.and(store_done(pm, geometry, geometry.lane(index), 0)?);
    }
    pm.fence(pending);
    Ok(())
}
