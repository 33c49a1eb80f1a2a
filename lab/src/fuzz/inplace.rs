//! A damaged image of the in-place layout.
//!
//! The first byte chooses the image. Edits follow, as `edit.rs` reads them. Kinds of structures are superblocks, commit
//! entries, lines of the journal, the table, inodes, nodes of trees, blocks of directories, attributes.

use std::sync::{Arc, OnceLock};

use nacre_engine::Result;
use nacre_layout_inplace::InplaceFs;
use nacre_layout_inplace::anatomy::{Structure, reseal, structures};
use nacre_media::{Image, SimPm};

use super::damaged;
use super::ground::Ground;

type Fs = InplaceFs<SimPm>;

fn grounds() -> &'static [Ground<Structure>; 2] {
    static GROUNDS: OnceLock<[Ground<Structure>; 2]> = OnceLock::new();
    GROUNDS.get_or_init(|| damaged::grounds::<Fs, _, _>(structures, |structure| structure.kind))
}

/// The image after a clean unmount (0), or the one as a crash leaves it (1).
pub(super) fn image(which: usize) -> &'static Image {
    &grounds()[which].image
}

pub(super) fn mount(pm: &Arc<SimPm>) -> Result<Fs> {
    damaged::mount(pm)
}

/// Damages an image, checks it, uses it as it is, repairs it, and uses it again.
///
/// Panics when a repaired file system is not sound, cannot be mounted, or cannot be read.
pub fn damaged_inplace(data: &[u8]) {
    let range = |structure: &Structure| (structure.offset, structure.len);
    damaged::use_and_repair::<Fs>(damaged::edited(grounds(), data, range, reseal));
}
