//! The superblock of a new file system: the fields that every layout fills alike.

use nacre_engine::{BLOCK_SIZE, Result, TimeRange};
use uuid::Uuid;
use zerocopy::FromZeros;

use crate::format::{CHECKSUM_CRC32C, FIRST_REGION_BLOCK, RawSuperblock, Region};
use crate::lifecycle::MkfsOptions;
use crate::superblock::{LayoutFormat, Superblock, put_text};

/// The superblock of a new file system of so many blocks, without a state and a seed of hashes, which the layout says.
/// Its regions are of these kinds and of so many blocks, one behind the other.
pub fn describe(
    format: &'static LayoutFormat,
    blocks: u64,
    options: &MkfsOptions,
    regions: &[(u32, u64)],
) -> Result<Superblock> {
    let mut raw = RawSuperblock::new_zeroed();
    raw.magic = format.magic;
    raw.checksum_algorithm = CHECKSUM_CRC32C;
    raw.version = format.version;
    raw.oldest_reader = format.oldest_reader;
    raw.block_size = BLOCK_SIZE as u32;
    raw.line_size = 64;
    raw.uuid = options.uuid.unwrap_or_else(Uuid::new_v4).into_bytes();
    put_text(&mut raw.label, &options.label, "label")?;
    put_text(&mut raw.preset, &options.preset, "preset")?;
    raw.device_blocks = blocks;
    raw.created = TimeRange::of_version(raw.version).pack(options.now);
    let mut start = FIRST_REGION_BLOCK;
    for (row, &(kind, blocks)) in raw.regions.iter_mut().zip(regions) {
        *row = Region { kind, reserved: 0, start, blocks };
        start += blocks;
    }
    raw.region_count = regions.len() as u32;
    Ok(Superblock::of(raw, format))
}
