//! Trees of blocks as an inode of this layout has them: root, height and end are in its slot. How they are read and
//! changed is in `nacre-layout-parts`.

use nacre_layout_parts::tree::{self, Tree, Words};
pub(crate) use nacre_layout_parts::tree::{Bounds, Found, Piece};
use nacre_media::Pm;

use crate::format;

/// The words of this layout's trees.
pub(crate) struct ShadowWords;

impl Words for ShadowWords {
    const UNWRITTEN: u64 = format::tree::UNWRITTEN;
}

/// A tree on media.
pub(crate) type BlockMap<'a, P> = tree::BlockMap<'a, P, ShadowWords>;

/// A tree on `pm`.
pub(crate) fn map<P: Pm>(pm: &P, tree: Tree, bounds: Bounds) -> BlockMap<'_, P> {
    BlockMap::new(pm, tree, bounds)
}
