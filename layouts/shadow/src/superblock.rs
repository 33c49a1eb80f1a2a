//! The superblock of this layout; the part that all layouts share is in `nacre-layout-parts`.

use std::mem::offset_of;

use nacre_engine::Result;
pub(crate) use nacre_layout_parts::superblock::{Found, Superblock};
use nacre_layout_parts::superblock::{LayoutFormat, has_mark, holds_inodes};
use nacre_layout_parts::xattr::format::XATTR_LEAF_MAGIC;
use nacre_media::Pm;

pub use nacre_layout_parts::superblock::Summary;

use crate::format::{
    CHECKSUM_CRC32C, FORMAT_VERSION, INODE_MAGIC, INODE_SIZE, INODE_VERSION, KNOWN_INCOMPATIBLE,
    KNOWN_READ_ONLY_COMPATIBLE, MAGIC, OLDEST_READER, RawHeader, region,
};

pub(crate) static LAYOUT: LayoutFormat = LayoutFormat {
    magic: MAGIC,
    version: FORMAT_VERSION,
    oldest_reader: OLDEST_READER,
    checksum_algorithm: CHECKSUM_CRC32C,
    known_incompatible: KNOWN_INCOMPATIBLE,
    known_read_only_compatible: KNOWN_READ_ONLY_COMPATIBLE,
    regions: &[(region::BAD_BLOCKS, 1), (region::INODE_TABLE, 2), (region::SWITCHES, 2)],
};

/// Reads both copies and takes the newer valid one.
pub(crate) fn read(pm: &impl Pm) -> Result<Found> {
    Superblock::read(pm, &LAYOUT)
}

/// A block looks like one of this layout: a copy of a superblock, one of attributes, or inodes. For devices without
/// superblocks: no checksum can be tried on them.
pub fn leaves_trace(block: &[u8]) -> bool {
    let is_inode = |slot: &[u8]| {
        has_mark(slot, offset_of!(RawHeader, magic), &INODE_MAGIC.to_le_bytes())
            && has_mark(slot, offset_of!(RawHeader, version), &[INODE_VERSION])
    };
    block.starts_with(&MAGIC)
        || has_mark(block, 4, &XATTR_LEAF_MAGIC.to_le_bytes())
        || holds_inodes(block, INODE_SIZE, is_inode)
}
