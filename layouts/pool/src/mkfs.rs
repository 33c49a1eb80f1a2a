//! Makes an empty file system.

use std::sync::Arc;

use nacre_engine::{BLOCK_SIZE, Block, Error, Kind, Result, size};
use nacre_layout_parts::lifecycle::MkfsOptions;
use nacre_layout_parts::mkfs;
use nacre_layout_parts::superblock::{check_size, erase};
use nacre_media::Pm;
use uuid::Uuid;
use zerocopy::{FromZeros, IntoBytes};

use crate::bits;
use crate::edits::with_purpose;
use crate::format::{
    FIRST_REGION_BLOCK, GROUP_BLOCKS, MAP_WORDS, ROWS, RawMap, RawVolume, RawZone, WORD_BITS, purpose,
    region, seal_any, state,
};
use crate::geometry::Geometry;
use crate::lanes::write_done;
use crate::superblock::{LAYOUT, Summary, Superblock};
use crate::volumes::{self, NewVolume};
use crate::zones;

/// Groups of each of several zones, at least.
const GROUPS_OF_ZONE: u64 = 64;
/// Groups whose maps are written at once.
const MAPS_AT_ONCE: u64 = 4096;

/// Makes an empty file system that fills the device, with one volume. The old contents of the device are lost; the
/// superblocks come last, so a crash leaves the old file system, or none, or the new one.
pub(crate) fn mkfs<P: Pm>(pm: &P, options: &MkfsOptions) -> Result<Summary> {
    let blocks = pm.len() / BLOCK_SIZE;
    check_size(pm, "the pool layout takes 16 MiB to 16 TiB")?;
    let zones = zones_of(blocks, options.zones)?;
    let mut superblock = describe(blocks, &zones, options)?;

    // No old superblock may stand beside new structures.
    erase(pm)?;
    let regions = superblock.first_data_block() - FIRST_REGION_BLOCK;
    let zeroed = pm.zero(Block(FIRST_REGION_BLOCK).offset(), regions * BLOCK_SIZE)?;
    pm.fence(zeroed);
    for (index, zone) in zones.iter().enumerate() {
        write_zone(pm, &Geometry::new(&superblock, index as u32, zone, 0)?, *zone)?;
    }
    let main = NewVolume {
        name: volumes::MAIN.to_owned(),
        uuid: Some(Uuid::from_bytes(superblock.raw.uuid)),
        root_owner: options.root_owner,
        now: options.now,
        ..NewVolume::default()
    };
    volumes::make(Arc::new(pm), &superblock, &main)?;
    superblock.write(pm)?;
    volumes::probe(pm)
}

/// The error of [`mkfs`] on a device of `size` bytes that so many zones do not fit.
pub fn check_zones(size: u64, zones: u32) -> Result<()> {
    zones_of(size / BLOCK_SIZE, zones).map(drop)
}

/// The zones of a device.
fn zones_of(blocks: u64, count: u32) -> Result<Vec<RawZone>> {
    let size = blocks * BLOCK_SIZE;
    let count = u64::from(count.max(1));
    let groups = blocks / GROUP_BLOCKS;
    if count > ROWS || count > 1 && groups / count < GROUPS_OF_ZONE {
        return Err(Error::new(Kind::InvalidInput)
            .object(format!("{count} zones on {}", size::print(size)))
            .advice("a device has at most 64 zones, and each of several has at least 128 MiB"));
    }
    Ok(zones::rows_of(blocks, count))
}

fn describe(blocks: u64, zones: &[RawZone], options: &MkfsOptions) -> Result<Superblock> {
    let lanes = zones.iter().map(|zone| u64::from(zone.lanes) * u64::from(zone.lane_bytes)).sum();
    let groups = blocks / GROUP_BLOCKS;
    let twice = |bytes: u64| 2 * bytes.div_ceil(BLOCK_SIZE);
    let regions = [
        (region::BAD_BLOCKS, 1),
        (region::VOLUMES, twice(ROWS * size_of::<RawVolume>() as u64)),
        (region::ZONES, twice(ROWS * size_of::<RawZone>() as u64)),
        (region::LANES, twice(lanes)),
        (region::MAPS, twice(groups * size_of::<RawMap>() as u64)),
    ];
    let mut superblock = mkfs::describe(&LAYOUT, blocks, options, &regions)?;
    superblock.raw.state = state::CLEAN;
    Ok(superblock)
}

/// Writes the maps, the lanes and the row of a zone without volumes.
fn write_zone<P: Pm>(pm: &P, geometry: &Geometry, mut zone: RawZone) -> Result<()> {
    let mut group = geometry.first_group;
    while group < geometry.end_group {
        let end = (group + MAPS_AT_ONCE).min(geometry.end_group);
        let mut bytes = Vec::new();
        for group in group..end {
            let free = bits::without(&[u64::MAX; 8], &bits::run(0, geometry.regions_in(group)));
            let seed = geometry.seed(geometry.map(group));
            let words = with_purpose(&free, purpose::FREE).map(|word| seal_any(word, seed));
            let mut map = RawMap::new_zeroed();
            map.as_mut_bytes()[..words.as_bytes().len()].copy_from_slice(words.as_bytes());
            bytes.extend_from_slice(map.as_bytes());
        }
        let at = geometry.map(group);
        let copied = pm.copy(at, &bytes)?.and(pm.copy(geometry.twin(at), &bytes)?);
        pm.fence(copied);
        group = end;
    }
    let at = geometry.zone_row();
    zone.checksum = zone.compute_checksum(geometry.seed(at));
    let mut pending = pm.copy(at, zone.as_bytes())?.and(pm.copy(geometry.twin(at), zone.as_bytes())?);
    for index in 0..geometry.lanes {
        pending = pending.and(write_done(pm, geometry, geometry.lane(index), 0)?);
    }
    pm.fence(pending);
    const { assert!(MAP_WORDS as u64 * WORD_BITS >= GROUP_BLOCKS) };
    Ok(())
}
