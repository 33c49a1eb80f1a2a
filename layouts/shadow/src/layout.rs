//! The contract of a layout, implemented: each operation checks that it may write and goes to its module.

use std::ops::ControlFlow;

use nacre_engine::{
    BLOCK_SIZE, BelowBuffer, Capabilities, Data, DirEntry, Extents, FsStat, LINE_SIZE, MAX_TIERS, Names,
    Reservation, Result, WriteCost, WriteShape, no_tiers_below_buffer,
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
use crate::format::{LEVEL_BITS, MAX_FILE_SIZE, MAX_HEIGHT, MAX_XATTR_SIZE, feature};
use crate::fs::Shared;
use crate::inode::Node;
use crate::mount::ShadowFs;

/// The capabilities of the layout.
pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    durable_on_return: true,
    atomic_write: true,
    in_place_feature: feature::OVERWRITE_IN_PLACE,
    max_file_size: MAX_FILE_SIZE,
    max_xattr_size: MAX_XATTR_SIZE,
    write_unit: BLOCK_SIZE,
    // A block, and the nodes on its way from the root: each is copied at most once, and a tree that is too low gets as
    // many above it.
    write_cost: WriteCost { block: 1, group: 2 * MAX_HEIGHT as u64, group_blocks: 1 << LEVEL_BITS, file: 1 },
    max_tiers: MAX_TIERS,
    max_volumes: 1,
    always_indexes_names: true,
};

impl<P: Pm> ShadowFs<P> {
    changes_if_writable!(Shared<P>);
}

impl<P: Pm + 'static> Names for ShadowFs<P> {
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
        let is_reached = |tag| self.shared.is_reached(tag);
        let read = |after, limit| {
            dir.inode.body.read().directory()?.read(&*self.shared.pm, after, limit, &is_reached)
        };
        read_dir(cookie, read, visit)
    }
}

impl<P: Pm + 'static> Data for ShadowFs<P> {
    data_by_inode!(Purpose);
    syncs_of_table!();
}

impl<P: Pm + 'static> Extents for ShadowFs<P> {
    extents_by_inode!();

    fn unpin(&self, node: &Node) {
        self.shared.unpin(&node.inode);
    }

    fn stat(&self) -> FsStat {
        let fs = &self.shared;
        fs.reclaim_buried();
        fs.table.stat(&fs.alloc, fs.bounds.end - fs.bounds.first)
    }

    fn index_bytes(&self) -> u64 {
        let fs = &self.shared;
        fs.alloc.index_bytes() + fs.tiers.index_bytes() + fs.table.bytes()
    }

    fn capabilities(&self) -> Capabilities {
        match self.shared.in_place {
            true => Capabilities { atomic_write: false, write_unit: LINE_SIZE, ..CAPABILITIES },
            false => CAPABILITIES,
        }
    }
}

impl<P: Pm + 'static> BelowBuffer for ShadowFs<P> {
    no_tiers_below_buffer!();
    writes_back_by_inode!(Purpose);

    fn reserve_for(&self, shape: &WriteShape) -> Result<Reservation> {
        let fs = self.writable()?;
        let blocks = CAPABILITIES.write_cost.of(shape);
        fs.with_deferred_frees(|| fs.alloc.reserve_blocks(blocks))
    }
}
