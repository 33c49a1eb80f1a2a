//! The superblock of this layout; what all layouts share of it is in `nacre-layout-parts`.

use nacre_engine::{Result, Tier};
use nacre_layout_parts::superblock::LayoutFormat;
pub(crate) use nacre_layout_parts::superblock::{Found, Superblock, put_text};
use nacre_media::Pm;

pub use nacre_layout_parts::superblock::Summary;

use crate::format::{FORMAT_VERSION, KNOWN_INCOMPATIBLE, KNOWN_READ_ONLY_COMPATIBLE, MAGIC, RawSuperblock};
use crate::tiers::listed;

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
    Superblock::read(pm, &LAYOUT)
}

/// What a device holds, without mounting it. Reads the superblock only.
pub fn probe(pm: &impl Pm) -> Result<Summary> {
    let found = read(pm)?;
    Ok(found.superblock.summary(found.valid))
}

/// The tiers of the file system on a device, without mounting it. Reads the superblock only.
pub fn known_tiers(pm: &impl Pm) -> Result<Vec<Tier>> {
    Ok(listed(&read(pm)?.superblock.raw))
}
