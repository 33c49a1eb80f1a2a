//! The superblock of this layout; the part that all layouts share is in `nacre-layout-parts`.

use std::mem::offset_of;

use nacre_engine::Result;
pub(crate) use nacre_layout_parts::superblock::{Found, Superblock};
use nacre_layout_parts::superblock::{LayoutFormat, has_mark, holds_inodes};
use nacre_media::Pm;
use zerocopy::IntoBytes;

pub use nacre_layout_parts::superblock::Summary;

use crate::format::{
    CHECKPOINT_MAGIC, CHECKSUM_CRC32C, FORMAT_VERSION, INODE_MAGIC, INODE_SIZE, INODE_VERSION,
    KNOWN_INCOMPATIBLE, KNOWN_READ_ONLY_COMPATIBLE, MAGIC, OLDEST_READER, PAGE_MAGIC, RawInode,
    RawPageHeader,
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
    Superblock::read(pm, &LAYOUT)
}

/// A block looks like one of this layout: a copy of a superblock, a page of a log, a checkpoint, or inodes. For devices
/// without superblocks: no checksum can be tried on them.
pub fn leaves_trace(block: &[u8]) -> bool {
    let is_inode = |slot: &[u8]| {
        has_mark(slot, offset_of!(RawInode, magic), INODE_MAGIC.as_bytes())
            && has_mark(slot, offset_of!(RawInode, version), &[INODE_VERSION])
    };
    let magics = [PAGE_MAGIC, CHECKPOINT_MAGIC];
    block.starts_with(&MAGIC)
        || magics.iter().any(|magic| has_mark(block, offset_of!(RawPageHeader, magic), magic.as_bytes()))
        || holds_inodes(block, INODE_SIZE, is_inode)
}
