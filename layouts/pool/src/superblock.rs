//! The superblock of this layout; the part that all layouts share is in `nacre-layout-parts`.

use nacre_engine::{Error, Result};
pub(crate) use nacre_layout_parts::superblock::{Found, Superblock, put_text};
use nacre_layout_parts::superblock::{LayoutFormat, has_mark};
use nacre_media::Pm;

pub use nacre_layout_parts::superblock::Summary;

use crate::format::{
    CHECKSUM_CRC32C, FORMAT_VERSION, KNOWN_INCOMPATIBLE, KNOWN_READ_ONLY_COMPATIBLE, MAGIC, OLDEST_READER,
    POOL_MAGIC, Region, region,
};

pub(crate) static LAYOUT: LayoutFormat = LayoutFormat {
    magic: MAGIC,
    version: FORMAT_VERSION,
    oldest_reader: OLDEST_READER,
    checksum_algorithm: CHECKSUM_CRC32C,
    known_incompatible: KNOWN_INCOMPATIBLE,
    known_read_only_compatible: KNOWN_READ_ONLY_COMPATIBLE,
    regions: &[],
};

/// Reads both copies and takes the newer valid one.
pub(crate) fn read(pm: &impl Pm) -> Result<Found> {
    let found = Superblock::read(pm, &LAYOUT)?;
    for kind in [region::BAD_BLOCKS, region::VOLUMES, region::ZONES, region::MAPS, region::LANES] {
        let Region { blocks, .. } = found.superblock.region(kind)?;
        let has_halves = kind == region::BAD_BLOCKS || blocks.is_multiple_of(2);
        if blocks == 0 || !has_halves {
            return Err(Error::corrupt("superblock: regions"));
        }
    }
    Ok(found)
}

/// A block looks like one of this layout: a copy of a superblock, or the head of a pool block.
pub(crate) fn leaves_trace(block: &[u8]) -> bool {
    block.starts_with(&MAGIC) || has_mark(block, 4, &POOL_MAGIC.to_le_bytes())
}
