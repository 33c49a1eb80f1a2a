//! A damaged image of the shadow layout.
//!
//! The first byte chooses the image. Edits follow, as `edit.rs` reads them. Kinds of structures are superblocks, copies
//! of switches, headers and slots of both copies of the table's inode, headers and slots of inodes, nodes of trees,
//! blocks of directories, attributes.

use std::sync::OnceLock;

use nacre_layout_shadow::ShadowFs;
use nacre_layout_shadow::anatomy::{Structure, reseal, structures};
use nacre_media::SimPm;

use super::damaged;
use super::ground::Ground;

type Fs = ShadowFs<SimPm>;

fn grounds() -> &'static [Ground<Structure>; 2] {
    static GROUNDS: OnceLock<[Ground<Structure>; 2]> = OnceLock::new();
    GROUNDS.get_or_init(|| damaged::grounds::<Fs, _, _>(structures, |structure| structure.kind))
}

/// Damages an image, checks it, uses it as it is, repairs it, and uses it again.
///
/// Panics when a repaired file system is not sound, cannot be mounted, or cannot be read.
pub fn damaged_shadow(data: &[u8]) {
    let range = |structure: &Structure| (structure.offset, structure.len);
    damaged::use_and_repair::<Fs>(damaged::edited(grounds(), data, range, reseal));
}
