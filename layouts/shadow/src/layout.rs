//! The contract of a layout, implemented: each operation checks that it may write and goes to its module.

use std::io::IoSlice;
use std::ops::ControlFlow;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{
    Attr, BLOCK_SIZE, BelowBuffer, Capabilities, Data, DirEntry, Durability, Extents, FallocateMode,
    FileBlock, FileKind, FsStat, InodeCache, InodeId, LINE_SIZE, MAX_TIERS, Names, NewInode, PlacedExtent,
    RenameMode, Reservation, Result, SeekTo, SetAttr, Timestamp, WriteAt, WriteCost, WriteShape, XattrMode,
    no_tiers_below_buffer,
};
use nacre_layout_parts::rules::Side;
use nacre_layout_parts::table::inodes::Inodes;
use nacre_media::Pm;

use crate::alloc::Purpose;
use crate::directory::Listed;
use crate::format::{LEVEL_BITS, MAX_FILE_SIZE, MAX_HEIGHT, MAX_XATTR_SIZE, feature};
use crate::fs::Shared;
use crate::inode::Node;
use crate::mount::ShadowFs;
use crate::rename::Asked;

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

/// Entries of a directory that are read under its lock at a time.
const READ_DIR_BATCH: usize = 128;

impl<P: Pm> ShadowFs<P> {
    pub(crate) fn writable(&self) -> Result<&Shared<P>> {
        self.shared.check_writable()?;
        Ok(&self.shared)
    }
}

impl<P: Pm + 'static> Names for ShadowFs<P> {
    type Node = Node;

    fn root(&self) -> Node {
        self.root
            .clone()
            .unwrap_or_else(|| unreachable!("the root is held until the unmount consumes the file system"))
    }

    fn node(&self, id: InodeId) -> Result<Node> {
        self.shared.hold_id(id)
    }

    fn node_by_number(&self, number: u64) -> Result<Node> {
        self.shared.hold(number)
    }

    fn id(&self, node: &Node) -> InodeId {
        node.inode.id()
    }

    fn kind(&self, node: &Node) -> FileKind {
        node.inode.kind
    }

    fn let_go(&self, node: Node) {
        self.shared.let_go(node);
    }

    fn park(&self, node: Node) -> Option<Node> {
        self.shared.park(node);
        None
    }

    fn unpark(&self, number: u64) {
        self.shared.unpark(number);
    }

    fn inode_cache(&self) -> InodeCache {
        self.shared.table.eviction.state(self.shared.table.in_use())
    }

    fn lookup(&self, dir: &Node, name: &[u8]) -> Result<Node> {
        self.shared.lookup(&dir.inode, name)
    }

    fn parent(&self, dir: &Node) -> Result<Node> {
        dir.inode.check_directory()?;
        self.shared.hold(dir.inode.parent.load(Ordering::Relaxed))
    }

    fn create(&self, dir: &Node, name: &[u8], new: &NewInode<'_>) -> Result<Node> {
        self.writable()?.create(&dir.inode, name, new)
    }

    fn create_unnamed(&self, new: &NewInode<'_>) -> Result<Node> {
        self.writable()?.create_unnamed(new)
    }

    fn link(&self, node: &Node, dir: &Node, name: &[u8], now: Timestamp) -> Result<()> {
        self.writable()?.link(&node.inode, &dir.inode, name, now)
    }

    fn unlink(&self, dir: &Node, name: &[u8], now: Timestamp) -> Result<()> {
        self.writable()?.unlink(&dir.inode, name, now)
    }

    fn rmdir(&self, dir: &Node, name: &[u8], now: Timestamp) -> Result<()> {
        self.writable()?.rmdir(&dir.inode, name, now)
    }

    fn rename(
        &self,
        from_dir: &Node,
        from: &[u8],
        to_dir: &Node,
        to: &[u8],
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<()> {
        let from = Side { dir: &from_dir.inode, name: from };
        let to = Side { dir: &to_dir.inode, name: to };
        self.writable()?.rename(&Asked { from, to, mode, now })
    }

    fn read_dir(
        &self,
        dir: &Node,
        cookie: u64,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        dir.inode.check_directory()?;
        let mut after = cookie;
        loop {
            let batch = {
                let body = dir.inode.body.read();
                let is_reached = |tag| self.shared.is_reached(tag);
                body.directory()?.read(&*self.shared.pm, after, READ_DIR_BATCH, &is_reached)?
            };
            for listed in &batch {
                after = listed.cookie;
                if visit(dir_entry(listed)).is_break() {
                    return Ok(());
                }
            }
            if batch.len() < READ_DIR_BATCH {
                return Ok(());
            }
        }
    }

    fn note_read(&self, node: &Node, now: Timestamp) {
        self.shared.note_read(&node.inode, now);
    }

    fn has_guarded(&self) -> bool {
        self.shared.superblock.lock().has_guarded()
    }

    fn read_link(&self, node: &Node) -> Result<Vec<u8>> {
        self.shared.read_link(&node.inode)
    }

    fn size(&self, node: &Node) -> Result<u64> {
        Ok(node.inode.size())
    }

    fn getattr_at(&self, dir: &Node, name: &[u8]) -> Result<Attr> {
        self.getattr(&self.lookup(dir, name)?)
    }

    fn getattr(&self, node: &Node) -> Result<Attr> {
        Ok(node.inode.attr())
    }

    fn setattr(&self, node: &Node, change: &SetAttr, now: Timestamp) -> Result<Attr> {
        self.writable()?.setattr(&node.inode, change, now)
    }

    fn get_xattr(&self, node: &Node, name: &[u8]) -> Result<Vec<u8>> {
        self.shared.get_xattr(&node.inode, name)
    }

    fn list_xattrs(&self, node: &Node) -> Result<Vec<Vec<u8>>> {
        self.shared.list_xattrs(&node.inode)
    }

    fn set_xattr(
        &self,
        node: &Node,
        name: &[u8],
        value: &[u8],
        how: XattrMode,
        mode: Option<u32>,
        now: Timestamp,
    ) -> Result<()> {
        self.writable()?.set_xattr(&node.inode, name, value, how, mode, now)
    }

    fn remove_xattr(&self, node: &Node, name: &[u8], now: Timestamp) -> Result<()> {
        self.writable()?.remove_xattr(&node.inode, name, now)
    }
}

impl<P: Pm + 'static> Data for ShadowFs<P> {
    fn read(&self, node: &Node, offset: u64, buf: &mut [u8], now: Option<Timestamp>) -> Result<usize> {
        self.shared.read(&node.inode, offset, buf, now)
    }

    fn write(
        &self,
        node: &Node,
        at: WriteAt,
        data: &[IoSlice<'_>],
        durability: Durability,
        now: Timestamp,
    ) -> Result<u64> {
        self.writable()?.write(&node.inode, at, data, Purpose::of_write(durability), now)
    }

    fn fallocate(
        &self,
        node: &Node,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        now: Timestamp,
    ) -> Result<()> {
        self.writable()?.fallocate(&node.inode, mode, offset, len, now)
    }

    fn seek(&self, node: &Node, offset: u64, to: SeekTo) -> Result<u64> {
        self.shared.seek(&node.inode, offset, to)
    }

    fn sync(&self, node: &Node) -> Result<()> {
        self.shared.persist_lazy(&node.inode)
    }

    fn closed(&self, _: &Node) -> Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> Result<()> {
        let mut lazy = Vec::new();
        self.shared.table.for_each_loaded(|inode| {
            if inode.lazy.load(Ordering::Acquire) && inode.links() > 0 {
                lazy.push(std::sync::Arc::clone(inode));
            }
        });
        lazy.iter().try_for_each(|inode| self.shared.persist_lazy(inode))
    }
}

impl<P: Pm + 'static> Extents for ShadowFs<P> {
    fn resolve(&self, node: &Node, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>> {
        self.shared.resolve(&node.inode, start, len)
    }

    fn pin(&self, node: &Node, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>> {
        self.shared.pin(&node.inode, start, len)
    }

    fn unpin(&self, node: &Node) {
        self.shared.unpin(&node.inode);
    }

    fn stat(&self) -> FsStat {
        let fs = &self.shared;
        fs.reclaim_buried();
        let reserved = fs.alloc.reserved_blocks();
        let free = fs.alloc.free_blocks().saturating_sub(reserved);
        let available = fs.alloc.available_blocks();
        let inodes = fs.table.limit();
        // An inode takes a sixteenth of a block; space limits them like everything else.
        let inodes_free = (available * 16).min(inodes.saturating_sub(fs.table.in_use()));
        let blocks = fs.bounds.end - fs.bounds.first;
        FsStat { blocks, free, available, reserved, inodes, inodes_free }
    }

    fn index_bytes(&self) -> u64 {
        let fs = &self.shared;
        let mut bytes = fs.alloc.index_bytes() + fs.tiers.index_bytes() + fs.table.index_bytes();
        let mut loaded = Vec::new();
        fs.table.for_each_loaded(|inode| loaded.push(std::sync::Arc::clone(inode)));
        loaded.iter().for_each(|inode| bytes += inode.bytes());
        bytes
    }

    fn capabilities(&self) -> Capabilities {
        match self.shared.in_place {
            true => Capabilities { atomic_write: false, write_unit: LINE_SIZE, ..CAPABILITIES },
            false => CAPABILITIES,
        }
    }
}

fn dir_entry(listed: &Listed) -> DirEntry<'_> {
    DirEntry { cookie: listed.cookie, name: &listed.name, id: listed.id, kind: listed.kind }
}

impl<P: Pm + 'static> BelowBuffer for ShadowFs<P> {
    no_tiers_below_buffer!();

    fn reserve_for(&self, shape: &WriteShape) -> Result<Reservation> {
        let fs = self.writable()?;
        let blocks = CAPABILITIES.write_cost.of(shape);
        fs.with_deferred_frees(|| fs.alloc.reserve_blocks(blocks))
    }

    fn write_back(
        &self,
        node: &Node,
        offset: u64,
        data: &[IoSlice<'_>],
        _: &Reservation,
        now: Timestamp,
    ) -> Result<()> {
        let at = WriteAt::Offset(offset);
        self.writable()?.write(&node.inode, at, data, Purpose::Reserved, now).map(drop)
    }

    fn write_back_times(
        &self,
        node: &Node,
        mtime: Timestamp,
        atime: Option<Timestamp>,
        _: &Reservation,
        now: Timestamp,
    ) -> Result<()> {
        self.writable()?.write_back_times(&node.inode, mtime, atime, now)
    }
}
