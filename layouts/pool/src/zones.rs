//! The rows of zones.

use nacre_engine::Result;
use nacre_layout_parts::superblock::Superblock;
use nacre_media::Pm;
use zerocopy::{FromZeros, IntoBytes};

use crate::format::{RawZone, region, seed_at};
use crate::geometry::{Geometry, Halves};
use crate::mend::read_either;

/// Reads the row of the zone.
pub(crate) fn read_geometry(pm: &impl Pm, superblock: &Superblock) -> Result<Geometry> {
    let halves = Halves::of(superblock, region::ZONES)?;
    let seed = seed_at(superblock.seed(), halves.start);
    let mut row = RawZone::new_zeroed();
    let is_valid = |bytes: &[u8]| {
        let mut row = RawZone::new_zeroed();
        row.as_mut_bytes().copy_from_slice(bytes);
        row.state == 1 && row.checksum == row.compute_checksum(seed)
    };
    read_either(pm, [halves.start, halves.start + halves.len], row.as_mut_bytes(), is_valid)
        .map_err(|error| error.object("the row of zone 0"))?;
    Geometry::new(superblock, &row)
}
