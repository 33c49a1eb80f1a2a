//! Trees of blocks as an inode of this layout has them: the root says the height, too. How they are read and changed is
//! in `nacre-layout-parts`.

use nacre_layout_parts::tree::{self, Tree, Words};
pub(crate) use nacre_layout_parts::tree::{Bounds, Found, Piece, span};
use nacre_media::Pm;

use crate::format;

/// The words of this layout's trees.
pub(crate) struct InplaceWords;

impl Words for InplaceWords {
    const UNWRITTEN: u64 = format::tree::UNWRITTEN;
}

/// A tree on media.
pub(crate) type BlockMap<'a, P> = tree::BlockMap<'a, P, InplaceWords>;

/// The tree of a root.
pub(crate) fn open(root: u64) -> Tree {
    let height = (root >> format::tree::HEIGHT_SHIFT) as u32;
    Tree { root: root & ((1 << format::tree::HEIGHT_SHIFT) - 1), height, end: u64::MAX }
}

/// The root of a tree.
pub(crate) fn pack(tree: Tree) -> u64 {
    tree.root | u64::from(tree.height) << format::tree::HEIGHT_SHIFT
}

/// The tree of a root on `pm`.
pub(crate) fn map<P: Pm>(pm: &P, root: u64, bounds: Bounds) -> BlockMap<'_, P> {
    BlockMap::new(pm, open(root), bounds)
}
