//! The contract of a layout, implemented: each operation checks that it may write and goes to its module.

use std::ops::ControlFlow;

use nacre_engine::{
    Attr, BLOCK_SIZE, BelowBuffer, Capabilities, Data, DirEntry, Error, Extents, FsStat, InodeCache, InodeId,
    Kind, Names, Reservation, Resource, Result, Step, Timestamp, WriteCost, WriteShape,
    no_tiers_below_buffer, with_room,
};
use nacre_layout_parts::contract::read_dir;
use nacre_layout_parts::{data_by_inode, extents_by_inode, names_by_inode, writes_back_by_inode};
use nacre_media::Pm;

use crate::counts::Purpose;
use crate::format::{GROUP_BLOCKS, MAX_FILE_SIZE, MAX_XATTR_SIZE, ROWS, compatible};
use crate::fs::Shared;
use crate::held::Node;
use crate::mount::PoolFs;

/// The capabilities of the layout.
pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    durable_on_return: true,
    atomic_write: true,
    in_place_feature: 0,
    max_file_size: MAX_FILE_SIZE,
    max_xattr_size: MAX_XATTR_SIZE,
    write_unit: BLOCK_SIZE,
    // A block, and the nodes on its way from the root, of which both copies take a block, each replaced at most once.
    write_cost: WriteCost { block: 1, group: 16, group_blocks: GROUP_BLOCKS, file: 2 },
    max_tiers: 0,
    max_volumes: ROWS as u32,
    always_indexes_names: true,
};

impl<P: Pm> PoolFs<P> {
    /// Runs an operation that may take space, once more if inodes were freed for it.
    fn change<T>(&self, act: impl Fn(&Shared<P>) -> Result<T>) -> Result<T> {
        let fs = &*self.shared;
        fs.check_writable()?;
        fs.reclaim_some();
        let before = fs.held.buried.freed();
        let made_room = |_| {
            fs.reclaim_all();
            Ok(fs.held.buried.freed() != before)
        };
        with_room(Step::DeferredFrees, || act(fs), made_room)
    }
}

impl<P: Pm + 'static> Names for PoolFs<P> {
    type Node = Node;

    names_by_inode!();

    fn node(&self, id: InodeId) -> Result<Node> {
        if id.volume != self.shared.geometry.volume {
            return Err(Error::new(Kind::Stale));
        }
        self.shared.hold(id.number, Some(id.generation))
    }

    fn node_by_number(&self, number: u64) -> Result<Node> {
        self.shared.hold(number, None)
    }

    fn let_go(&self, node: Node) {
        drop(node);
    }

    fn park(&self, node: Node) -> Option<Node> {
        self.shared.held.park(node)
    }

    fn unpark(&self, number: u64) {
        self.shared.held.unpark(number);
    }

    fn inode_cache(&self) -> InodeCache {
        InodeCache { loaded: self.shared.held.len(), limit: self.shared.inode_cache }
    }

    fn parent(&self, dir: &Node) -> Result<Node> {
        dir.inode.check_directory()?;
        let parent = {
            let _lock = self.shared.read_lock(dir.inode.number);
            self.shared.read_inode(dir.inode.number)?.parent
        };
        self.shared.hold(parent, None)
    }

    fn read_dir(
        &self,
        dir: &Node,
        cookie: u64,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        dir.inode.check_directory()?;
        let fs = &*self.shared;
        let read = |after, limit| {
            let _lock = fs.read_lock(dir.inode.number);
            let raw = fs.read_inode(dir.inode.number)?;
            fs.list(fs.directory(dir.inode.number, &raw)?, after, limit)
        };
        read_dir(cookie, read, visit)
    }

    fn note_read(&self, node: &Node, now: Timestamp) {
        let fs = &*self.shared;
        let _lock = fs.read_lock(node.inode.number);
        // A time of access that cannot be stored is no reason for a read to fail.
        let _ = fs.read_inode(node.inode.number).and_then(|raw| fs.note_read(node.inode.number, &raw, now));
    }

    fn has_guarded(&self) -> bool {
        self.shared.row.lock().features_compatible & compatible::GUARDED != 0
    }

    fn read_link(&self, node: &Node) -> Result<Vec<u8>> {
        self.shared.read_link(&node.inode)
    }

    fn size(&self, node: &Node) -> Result<u64> {
        Ok(self.shared.peek_inode(node.inode.number)?.size)
    }

    fn getattr_at(&self, dir: &Node, name: &[u8]) -> Result<Attr> {
        self.getattr(&self.lookup(dir, name)?)
    }

    fn getattr(&self, node: &Node) -> Result<Attr> {
        self.shared.attr_of(node.inode.id())
    }
}

impl<P: Pm + 'static> Data for PoolFs<P> {
    data_by_inode!(Purpose);

    fn sync(&self, _: &Node) -> Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> Result<()> {
        Ok(())
    }
}

impl<P: Pm + 'static> Extents for PoolFs<P> {
    extents_by_inode!();

    fn unpin(&self, node: &Node) {
        node.inode.unpin();
    }

    fn stat(&self) -> FsStat {
        let fs = &self.shared;
        fs.reclaim_all();
        fs.finish_counting();
        let counts = *fs.counts.lock();
        let reserved = fs.reserved.blocks();
        let blocks = fs.geometry.blocks().min(counts.quota);
        let unused = fs.unused_active();
        let free = (counts.free + counts.in_pools + unused).saturating_sub(reserved);
        let free = free.min(blocks.saturating_sub(counts.used.saturating_sub(unused)));
        // Both copies of an inode and of its name take less than a block.
        let available = counts.available(reserved);
        FsStat {
            blocks,
            free,
            available,
            reserved,
            inodes: counts.inodes + available,
            inodes_free: available,
        }
    }

    fn index_bytes(&self) -> u64 {
        self.shared.index_bytes()
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }
}

impl<P: Pm + 'static> BelowBuffer for PoolFs<P> {
    no_tiers_below_buffer!();
    writes_back_by_inode!(Purpose);

    fn reserve_for(&self, shape: &WriteShape) -> Result<Reservation> {
        let blocks = CAPABILITIES.write_cost.of(shape);
        self.change(|fs| {
            let are_free = || {
                let (counts, reserved) = (fs.counts.lock(), fs.reserved.blocks());
                // Those that are asked for are among the reserved ones.
                counts.free >= counts.left_by(Purpose::Data, reserved)
                    && counts.check_quota(0, Purpose::Data, reserved).is_ok()
            };
            fs.reserved.reserve(blocks, are_free).ok_or_else(|| Error::no_space(Resource::Pm, blocks))
        })
    }
}
