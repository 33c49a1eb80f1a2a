//! The contract of a layout, implemented: each operation checks that it may write and goes to its module.

use std::ops::ControlFlow;

use nacre_engine::{
    BelowBuffer, Capabilities, Data, DirEntry, Extents, FsStat, LINE_SIZE, Names, Reservation, Result,
    WriteCost, WriteShape, no_tiers_below_buffer,
};
use nacre_layout_parts::contract::read_dir;
use nacre_layout_parts::namespace::Namespace;
use nacre_layout_parts::table::inodes::Inodes;
use nacre_layout_parts::{
    changes_if_writable, data_by_inode, extents_by_inode, names_by_inode, names_of_loaded_inodes,
    names_of_table, syncs_of_table, writes_back_by_inode,
};
use nacre_media::Pm;

use crate::alloc::Purpose;
use crate::format::{MAX_FILE_SIZE, MAX_XATTR_SIZE, tree};
use crate::fs::Shared;
use crate::inode::Node;
use crate::mount::InplaceFs;

/// The capabilities of the layout.
pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    durable_on_return: true,
    // Data that is overwritten in place may be there in part.
    atomic_write: false,
    in_place_feature: 0,
    max_file_size: MAX_FILE_SIZE,
    max_xattr_size: MAX_XATTR_SIZE,
    write_unit: LINE_SIZE,
    // A block, and the nodes on its way from the root: of a tree that is too low for it first those that make it high
    // enough, then those below them. A file block before it in its leaf has the same way, but for the first of a file,
    // which needs no leaf as long as it is alone: the file's block is for that one. Attributes take no space.
    write_cost: WriteCost {
        block: 1,
        group: 2 * tree::MAX_HEIGHT as u64,
        group_blocks: 1 << tree::LEVEL_BITS,
        file: 1,
    },
    max_tiers: 0,
    max_volumes: 1,
    always_indexes_names: false,
};

impl<P: Pm> InplaceFs<P> {
    changes_if_writable!(Shared<P>);
}

impl<P: Pm + 'static> Names for InplaceFs<P> {
    type Node = Node;

    names_by_inode!();
    names_of_loaded_inodes!();
    names_of_table!();

    fn read_dir(
        &self,
        dir: &Node,
        cookie: u64,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        dir.inode.check_directory()?;
        let read = |after, limit| dir.inode.body.read().directory()?.read(&*self.shared.pm, after, limit);
        read_dir(cookie, read, visit)
    }
}

impl<P: Pm + 'static> Data for InplaceFs<P> {
    data_by_inode!(Purpose);
    syncs_of_table!();
}

impl<P: Pm + 'static> Extents for InplaceFs<P> {
    extents_by_inode!();

    fn unpin(&self, node: &Node) {
        node.inode.unpin();
    }

    fn stat(&self) -> FsStat {
        let fs = &self.shared;
        fs.reclaim_buried();
        fs.table.stat(&fs.alloc, fs.bounds.end - fs.bounds.first)
    }

    fn index_bytes(&self) -> u64 {
        let fs = &self.shared;
        fs.alloc.index_bytes() + fs.table.bytes()
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }
}

impl<P: Pm + 'static> BelowBuffer for InplaceFs<P> {
    no_tiers_below_buffer!();
    writes_back_by_inode!(Purpose);

    fn reserve_for(&self, shape: &WriteShape) -> Result<Reservation> {
        let fs = self.writable()?;
        let blocks = CAPABILITIES.write_cost.of(shape);
        fs.with_deferred_frees(|| fs.alloc.reserve_blocks(blocks))
    }
}
