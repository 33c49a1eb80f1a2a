//! A damaged image of the pool layout.
//!
//! The first byte chooses the image. Edits follow, as `edit.rs` reads them. Kinds of structures are superblocks, and both
//! copies of rows, lists of orphans, lanes, maps, heads and bits of pool blocks, inodes, names, nodes and bytes.

use std::sync::OnceLock;

use nacre_layout_pool::PoolFs;
use nacre_layout_pool::anatomy::{Structure, reseal, structures};
use nacre_media::SimPm;

use super::damaged;
use super::ground::Ground;

type Fs = PoolFs<SimPm>;

fn grounds() -> &'static [Ground<Structure>; 2] {
    static GROUNDS: OnceLock<[Ground<Structure>; 2]> = OnceLock::new();
    GROUNDS.get_or_init(|| damaged::grounds::<Fs, _, _>(structures, |structure| structure.kind))
}

/// Damages an image, checks it, uses it as it is, repairs it, and uses it again.
///
/// Panics when a repaired file system is not sound, cannot be mounted, or cannot be read.
pub fn damaged_pool(data: &[u8]) {
    let range = |structure: &Structure| (structure.offset, structure.len);
    damaged::use_and_repair::<Fs>(damaged::edited(grounds(), data, range, reseal));
}
