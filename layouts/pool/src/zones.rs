//! The rows of zones.

use nacre_engine::{BLOCK_SIZE, Error, Kind, Result};
use nacre_layout_parts::superblock::Superblock;
use nacre_media::Pm;
use zerocopy::{FromZeros, IntoBytes};

use crate::commit::Change;
use crate::counts::Counts;
use crate::format::{GROUP_BLOCKS, GROUP_BYTES, ROWS, RawZone, region, seed_at};
use crate::geometry::{Geometry, Halves};
use crate::mend::read_either;

/// Reads the row of a zone. `None` for one that is not in use.
pub(crate) fn read_row(pm: &impl Pm, superblock: &Superblock, zone: u32) -> Result<Option<RawZone>> {
    let halves = Halves::of(superblock, region::ZONES)?;
    let address = halves.start + u64::from(zone) * size_of::<RawZone>() as u64;
    let seed = seed_at(superblock.seed(), address);
    let mut row = RawZone::new_zeroed();
    read_either(pm, [address, address + halves.len], row.as_mut_bytes(), |bytes| is_row(bytes, seed))
        .map_err(|error| error.object(format!("the row of zone {zone}")))?;
    Ok((row.state == 1).then_some(row))
}

/// Whether bytes are those of a row. Zeros are one that is not in use.
pub(crate) fn is_row(bytes: &[u8], seed: u32) -> bool {
    let mut row = RawZone::new_zeroed();
    row.as_mut_bytes().copy_from_slice(bytes);
    bytes.iter().all(|&byte| byte == 0) || row.is_whole(seed)
}

/// The places of a zone, as one of its volumes sees them.
pub(crate) fn geometry(pm: &impl Pm, superblock: &Superblock, zone: u32, volume: u32) -> Result<Geometry> {
    let row = if u64::from(zone) < ROWS { read_row(pm, superblock, zone)? } else { None };
    let row = row.ok_or_else(|| {
        Error::new(Kind::NotFound)
            .object(format!("zone {zone}"))
            .advice("zones are made by nacre mkfs --zones, and are counted from 0")
    })?;
    Geometry::new(superblock, zone, &row, volume)
}

/// The zones whose rows can be read.
pub(crate) fn readable(pm: &impl Pm, superblock: &Superblock) -> Vec<u32> {
    (0..count(pm, superblock)).filter(|&zone| read_row(pm, superblock, zone).is_ok()).collect()
}

/// A device of less has few lanes with few items each, and the smallest pool blocks.
const SMALL_DEVICE: u64 = 64 << 20;
/// From this size on, a pool block is a group.
const LARGE_DEVICE: u64 = 1 << 30;

/// The rows of so many zones of a device with so many blocks, without their checksums.
pub(crate) fn rows_of(blocks: u64, count: u64) -> Vec<RawZone> {
    let (size, groups) = (blocks * BLOCK_SIZE, blocks / GROUP_BLOCKS);
    let mut zone = RawZone::new_zeroed();
    zone.state = 1;
    (zone.lanes, zone.lane_bytes) = if size < SMALL_DEVICE { (2, 1 << 10) } else { (16, 16 << 10) };
    zone.pool_block = match size {
        size if size < SMALL_DEVICE => 64 << 10,
        size if size < LARGE_DEVICE => 256 << 10,
        _ => GROUP_BYTES as u32,
    };
    let mut zones = vec![zone; count as usize];
    for (index, zone) in (0..count).zip(&mut zones) {
        zone.first_group = groups / count * index;
        // The last one has the rest.
        zone.groups = if index + 1 == count { groups - zone.first_group } else { groups / count };
    }
    zones
}

/// The rows that mkfs gave the device, whatever they are now: its size and the region of lanes say so.
pub(crate) fn expected(superblock: &Superblock) -> Result<Vec<RawZone>> {
    let blocks = superblock.raw.device_blocks;
    let lanes = Halves::of(superblock, region::LANES)?;
    let of_zone = |row: &RawZone| u64::from(row.lanes) * u64::from(row.lane_bytes);
    let one = rows_of(blocks, 1);
    // Several zones are on large devices alone, where their lanes fill blocks.
    let count = match one.first().map(of_zone) {
        Some(bytes) if bytes.is_multiple_of(BLOCK_SIZE) => (lanes.len / bytes).clamp(1, ROWS),
        _ => 1,
    };
    Ok(rows_of(blocks, count))
}

/// The row of a zone as its address makes it validate, and the address.
pub(crate) fn sealed(superblock: &Superblock, zone: u32, mut row: RawZone) -> Result<(u64, RawZone)> {
    let address =
        Halves::of(superblock, region::ZONES)?.start + u64::from(zone) * size_of::<RawZone>() as u64;
    row.checksum = row.compute_checksum(seed_at(superblock.seed(), address));
    Ok((address, row))
}

/// The number of zones. One whose row cannot be read leaves the others alone.
pub(crate) fn count(pm: &impl Pm, superblock: &Superblock) -> u32 {
    let is_none = |zone: &u32| matches!(read_row(pm, superblock, *zone), Ok(None));
    (0..ROWS as u32).find(is_none).unwrap_or(ROWS as u32)
}

impl RawZone {
    /// The counts, as a clean unmount keeps them.
    pub(crate) fn counts(&self) -> [u64; 3] {
        [self.counted.into(), self.free_blocks, self.whole_groups]
    }

    /// Takes these counts.
    pub(crate) fn keep(&mut self, counts: &Counts) {
        (self.counted, self.free_blocks, self.whole_groups) = (1, counts.unowned, counts.whole);
    }
}

/// The row of the zone, after the recovery of its lanes.
pub(crate) fn row(pm: &impl Pm, superblock: &Superblock, geometry: &Geometry) -> Result<RawZone> {
    let row = read_row(pm, superblock, geometry.zone)?;
    row.ok_or_else(|| Error::corrupt(format!("the row of zone {}", geometry.zone)))
}

impl<P: Pm> Change<'_, P> {
    /// The row of the zone, edited, is a part of this operation. Only mounts and unmounts change it.
    pub(crate) fn put_zone(&mut self, edit: impl Fn(&mut RawZone)) -> Result<()> {
        let (fs, address) = (self.fs, self.fs.geometry.zone_row());
        let lost = || format!("the row of zone {}", fs.geometry.zone);
        let mut before = RawZone::new_zeroed();
        let is_valid = |bytes: &[u8]| is_row(bytes, fs.geometry.seed(address));
        fs.read_entry(address, before.as_mut_bytes(), is_valid, lost)?;
        if before.state != 1 {
            return Err(Error::corrupt(lost()));
        }
        let mut after = before;
        edit(&mut after);
        if after.counts() == before.counts() {
            return Ok(());
        }
        after.checksum = after.compute_checksum(fs.geometry.seed(address));
        self.item(address, after.as_bytes());
        Ok(())
    }
}
