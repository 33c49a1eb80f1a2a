//! The superblock of this layout; the part that all layouts share is in `nacre-layout-parts`.

use nacre_engine::Result;
pub(crate) use nacre_layout_parts::superblock::{Found, Superblock};
use nacre_layout_parts::superblock::{LayoutFormat, has_mark};
use nacre_media::Pm;

pub use nacre_layout_parts::superblock::Summary;

use crate::format::{
    CHECKSUM_CRC32C, FORMAT_VERSION, KNOWN_INCOMPATIBLE, KNOWN_READ_ONLY_COMPATIBLE, MAGIC, OLDEST_READER,
    XATTR_MAGIC, region,
};

pub(crate) static LAYOUT: LayoutFormat = LayoutFormat {
    magic: MAGIC,
    version: FORMAT_VERSION,
    oldest_reader: OLDEST_READER,
    checksum_algorithm: CHECKSUM_CRC32C,
    known_incompatible: KNOWN_INCOMPATIBLE,
    known_read_only_compatible: KNOWN_READ_ONLY_COMPATIBLE,
    regions: &[(region::BAD_BLOCKS, 1), (region::INODE_TABLE, 1), (region::JOURNAL, 1)],
};

/// Reads both copies and takes the newer valid one.
pub(crate) fn read(pm: &impl Pm) -> Result<Found> {
    Superblock::read(pm, &LAYOUT)
}

/// A block looks like one of this layout: a copy of a superblock, or the first one of attributes. For devices without
/// superblocks: no checksum can be tried on them. Inodes look like those of the layout `log`.
pub fn leaves_trace(block: &[u8]) -> bool {
    block.starts_with(&MAGIC) || has_mark(block, 4, &XATTR_MAGIC.to_le_bytes())
}
