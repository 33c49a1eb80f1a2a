//! The contract of a layout, implemented: each operation checks that it may write and goes to its module.

use std::io::IoSlice;
use std::ops::ControlFlow;

use nacre_engine::{
    Attr, BLOCK_SIZE, BelowBuffer, Capabilities, Data, DirEntry, Durability, Error, Extents, FallocateMode,
    FileBlock, FileKind, FsStat, InodeCache, InodeId, Kind, Names, NewInode, PlacedExtent, RenameMode,
    Reservation, Resource, Result, SeekTo, SetAttr, Step, Timestamp, WriteAt, WriteCost, WriteShape,
    XattrMode, no_tiers_below_buffer, with_room,
};
use nacre_media::Pm;

use crate::counts::Purpose;
use crate::format::{GROUP_BLOCKS, MAX_FILE_SIZE, MAX_XATTR_SIZE, ROWS, compatible};
use crate::fs::Shared;
use crate::held::Node;
use crate::mount::PoolFs;
use crate::rename::{Asked, Side};

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

/// Entries of a directory that are read under its lock at a time.
const READ_DIR_BATCH: usize = 128;

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

    fn root(&self) -> Node {
        self.root
            .clone()
            .unwrap_or_else(|| unreachable!("the root is held until the unmount consumes the file system"))
    }

    fn node(&self, id: InodeId) -> Result<Node> {
        if id.volume != self.shared.geometry.volume {
            return Err(Error::new(Kind::Stale));
        }
        self.shared.hold(id.number, Some(id.generation))
    }

    fn node_by_number(&self, number: u64) -> Result<Node> {
        self.shared.hold(number, None)
    }

    fn id(&self, node: &Node) -> InodeId {
        node.inode.id()
    }

    fn kind(&self, node: &Node) -> FileKind {
        node.inode.kind
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

    fn lookup(&self, dir: &Node, name: &[u8]) -> Result<Node> {
        self.shared.lookup(&dir.inode, name)
    }

    fn parent(&self, dir: &Node) -> Result<Node> {
        dir.inode.check_directory()?;
        let parent = {
            let _lock = self.shared.read_lock(dir.inode.number);
            self.shared.read_inode(dir.inode.number)?.parent
        };
        self.shared.hold(parent, None)
    }

    fn create(&self, dir: &Node, name: &[u8], new: &NewInode<'_>) -> Result<Node> {
        self.change(|fs| fs.create(&dir.inode, name, new))
    }

    fn create_unnamed(&self, new: &NewInode<'_>) -> Result<Node> {
        self.change(|fs| fs.create_unnamed(new))
    }

    fn link(&self, node: &Node, dir: &Node, name: &[u8], now: Timestamp) -> Result<()> {
        self.change(|fs| fs.link(&node.inode, &dir.inode, name, now))
    }

    fn unlink(&self, dir: &Node, name: &[u8], now: Timestamp) -> Result<()> {
        self.change(|fs| fs.unlink(&dir.inode, name, now))
    }

    fn rmdir(&self, dir: &Node, name: &[u8], now: Timestamp) -> Result<()> {
        self.change(|fs| fs.rmdir(&dir.inode, name, now))
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
        self.change(|fs| fs.rename(&Asked { from, to, mode, now }))
    }

    fn read_dir(
        &self,
        dir: &Node,
        cookie: u64,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        dir.inode.check_directory()?;
        let fs = &*self.shared;
        let mut after = cookie;
        loop {
            let batch = {
                let _lock = fs.read_lock(dir.inode.number);
                let raw = fs.read_inode(dir.inode.number)?;
                fs.list(fs.directory(dir.inode.number, &raw)?, after, READ_DIR_BATCH)?
            };
            for listed in &batch {
                after = listed.cookie;
                let entry =
                    DirEntry { cookie: listed.cookie, name: &listed.name, id: listed.id, kind: listed.kind };
                if visit(entry).is_break() {
                    return Ok(());
                }
            }
            if batch.len() < READ_DIR_BATCH {
                return Ok(());
            }
        }
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

    fn setattr(&self, node: &Node, change: &SetAttr, now: Timestamp) -> Result<Attr> {
        self.change(|fs| fs.setattr(&node.inode, change, now))
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
        self.change(|fs| fs.set_xattr(&node.inode, name, value, how, mode, now))
    }

    fn remove_xattr(&self, node: &Node, name: &[u8], now: Timestamp) -> Result<()> {
        self.change(|fs| fs.remove_xattr(&node.inode, name, now))
    }
}

impl<P: Pm + 'static> Data for PoolFs<P> {
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
        self.change(|fs| fs.write(&node.inode, at, data, Purpose::of_write(durability), now))
    }

    fn fallocate(
        &self,
        node: &Node,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        now: Timestamp,
    ) -> Result<()> {
        self.change(|fs| fs.fallocate(&node.inode, mode, offset, len, now))
    }

    fn seek(&self, node: &Node, offset: u64, to: SeekTo) -> Result<u64> {
        self.shared.seek(&node.inode, offset, to)
    }

    fn sync(&self, _: &Node) -> Result<()> {
        Ok(())
    }

    fn closed(&self, _: &Node) -> Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> Result<()> {
        Ok(())
    }
}

impl<P: Pm + 'static> Extents for PoolFs<P> {
    fn resolve(&self, node: &Node, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>> {
        self.shared.resolve(&node.inode, start, len)
    }

    fn pin(&self, node: &Node, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>> {
        self.shared.pin(&node.inode, start, len)
    }

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

    fn write_back(
        &self,
        node: &Node,
        offset: u64,
        data: &[IoSlice<'_>],
        _: &Reservation,
        now: Timestamp,
    ) -> Result<()> {
        let at = WriteAt::Offset(offset);
        self.change(|fs| fs.write(&node.inode, at, data, Purpose::Reserved, now)).map(drop)
    }

    fn write_back_times(
        &self,
        node: &Node,
        mtime: Timestamp,
        atime: Option<Timestamp>,
        _: &Reservation,
        now: Timestamp,
    ) -> Result<()> {
        self.change(|fs| fs.write_back_times(&node.inode, mtime, atime, now))
    }
}
