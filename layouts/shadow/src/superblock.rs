//! The superblock of this layout; the part that all layouts share is in `nacre-layout-parts`.

use std::mem::offset_of;

use nacre_engine::{Error, Result};
pub(crate) use nacre_layout_parts::superblock::{Found, Superblock, put_text};
use nacre_layout_parts::superblock::{LayoutFormat, has_mark, holds_inodes};
use nacre_layout_parts::xattr::format::XATTR_LEAF_MAGIC;
use nacre_media::Pm;

pub use nacre_layout_parts::superblock::Summary;

use crate::format::{
    FIRST_REGION_BLOCK, FORMAT_VERSION, INODE_MAGIC, INODE_SIZE, INODE_VERSION, KNOWN_INCOMPATIBLE,
    KNOWN_READ_ONLY_COMPATIBLE, MAGIC, RawHeader, RawSuperblock, region,
};

static LAYOUT: LayoutFormat = LayoutFormat {
    magic: MAGIC,
    version: FORMAT_VERSION,
    known_incompatible: KNOWN_INCOMPATIBLE,
    known_read_only_compatible: KNOWN_READ_ONLY_COMPATIBLE,
};

/// The superblock with these contents, of which both copies are alike.
pub(crate) fn of(raw: RawSuperblock) -> Superblock {
    Superblock::of(raw, &LAYOUT)
}

/// Reads both copies and takes the newer valid one.
pub(crate) fn read(pm: &impl Pm) -> Result<Found> {
    let found = Superblock::read(pm, &LAYOUT)?;
    check_regions(&found.superblock)?;
    Ok(found)
}

/// The regions of this layout are there, behind the superblocks, and none is in another.
fn check_regions(superblock: &Superblock) -> Result<()> {
    let mut ends = FIRST_REGION_BLOCK;
    let mut regions = [(region::BAD_BLOCKS, 1), (region::INODE_TABLE, 2), (region::SWITCHES, 2)]
        .into_iter()
        .map(|(kind, least)| superblock.region(kind).map(|region| (region, least)))
        .collect::<Result<Vec<_>>>()?;
    regions.sort_by_key(|(region, _)| region.start);
    for (region, least) in regions {
        if region.start < ends || region.blocks < least {
            return Err(Error::corrupt("superblock: regions"));
        }
        ends = region.start + region.blocks;
    }
    Ok(())
}

/// The summary of the file system on a device, without mounting it. Reads the superblock only.
pub fn probe(pm: &impl Pm) -> Result<Summary> {
    let found = read(pm)?;
    Ok(found.superblock.summary(found.valid))
}

/// An error when the file system on a device can only be read; see [`Superblock::check_writable`].
pub fn check_writable(pm: &impl Pm) -> Result<()> {
    read(pm)?.superblock.check_writable()
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
