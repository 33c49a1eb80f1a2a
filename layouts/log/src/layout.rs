//! The contract of a layout, implemented: each operation checks that it may write and goes to its module.

use std::io::IoSlice;
use std::ops::ControlFlow;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{
    Attr, BLOCK_SIZE, Capabilities, Data, DirEntry, Durability, Error, Extents, FallocateMode, FileBlock,
    FileKind, FsStat, InodeCache, InodeId, Kind, MAX_TIERS, Names, NewInode, PlacedExtent, RenameMode,
    Result, SeekTo, SetAttr, Timestamp, WriteAt, WriteCost, XattrMode,
};
use nacre_layout_parts::rules::Side;
use nacre_media::Pm;

use crate::alloc::Purpose;
use crate::directory::Dentry;
use crate::format::{CHUNK_BLOCKS, CHUNK_INODES, MAX_FILE_SIZE, MAX_XATTR_SIZE, place};
use crate::fs::Shared;
use crate::inode::{Body, Node};
use crate::mount::LogFs;
use crate::places::is_written;
use crate::rename::Asked;

/// The capabilities of the layout.
pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    durable_on_return: true,
    atomic_write: true,
    in_place_feature: 0,
    max_file_size: MAX_FILE_SIZE,
    max_xattr_size: MAX_XATTR_SIZE,
    write_unit: BLOCK_SIZE,
    // A block, and a page of the log: a batch of `n` entries adds at most `n` pages, even where its log moves out of the
    // inode. How full the last page is when it comes is unknown. For the file one of an attribute entry.
    write_cost: WriteCost { block: 2, group: 0, group_blocks: 1, file: 1 },
    max_tiers: MAX_TIERS,
    max_volumes: 1,
    always_indexes_names: true,
};

/// Entries of a directory that are read under its lock at a time.
const READ_DIR_BATCH: usize = 128;

impl<P: Pm> LogFs<P> {
    pub(crate) fn writable(&self) -> Result<&Shared<P>> {
        self.shared.check_writable()?;
        Ok(&self.shared)
    }
}

impl<P: Pm + 'static> Names for LogFs<P> {
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
        self.shared.inodes.eviction.state(self.shared.inodes.in_use())
    }

    fn lookup(&self, dir: &Node, name: &[u8]) -> Result<Node> {
        self.shared.lookup(&dir.inode, name)
    }

    fn parent(&self, dir: &Node) -> Result<Node> {
        let parent = dir.inode.directory()?.parent.load(Ordering::Relaxed);
        self.shared.hold(parent)
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
        let directory = dir.inode.directory()?;
        let mut after = cookie;
        loop {
            let batch = directory.read(&*self.shared.pm, self.shared.hash_seed, after, READ_DIR_BATCH)?;
            for dentry in &batch {
                after = dentry.cookie(self.shared.hash_seed);
                if visit(dir_entry(dentry, after)?).is_break() {
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
        match &node.inode.body {
            Body::Symlink(target) => Ok(target.to_vec()),
            Body::File(map) if node.inode.kind == FileKind::Symlink => {
                let raw = map.find(0, 1).0.filter(|&raw| is_written(raw));
                let raw =
                    raw.ok_or_else(|| Error::corrupt(format!("inode {}: target", node.inode.number)))?;
                let mut target = vec![0; node.inode.size().min(4095) as usize];
                self.shared.pm.read(nacre_engine::Block(raw & place::BLOCK_MASK).offset(), &mut target)?;
                Ok(target)
            }
            _ => Err(Error::new(Kind::InvalidInput)),
        }
    }

    fn size(&self, node: &Node) -> Result<u64> {
        Ok(node.inode.size())
    }

    fn getattr(&self, node: &Node) -> Result<Attr> {
        Ok(node.inode.attr())
    }

    #[inline]
    fn getattr_at(&self, dir: &Node, name: &[u8]) -> Result<Attr> {
        self.shared.getattr_at(&dir.inode, name)
    }

    fn setattr(&self, node: &Node, change: &SetAttr, now: Timestamp) -> Result<Attr> {
        self.writable()?.setattr(&node.inode, change, now)
    }

    fn get_xattr(&self, node: &Node, name: &[u8]) -> Result<Vec<u8>> {
        self.shared.get_xattr(&node.inode, name)
    }

    fn list_xattrs(&self, node: &Node) -> Result<Vec<Vec<u8>>> {
        Ok(self.shared.list_xattrs(&node.inode))
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

impl<P: Pm + 'static> Data for LogFs<P> {
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
        self.writable()?.write(&node.inode, at, data, Purpose::of_write(durability), now, false)
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
        self.shared.inodes.for_each_loaded(|inode| {
            if inode.lazy.load(Ordering::Acquire) && inode.links() > 0 {
                lazy.push(std::sync::Arc::clone(inode));
            }
        });
        // All that can be: one that fails keeps no other.
        lazy.iter().map(|inode| self.shared.persist_lazy(inode)).fold(Ok(()), Result::and)
    }
}

impl<P: Pm + 'static> Extents for LogFs<P> {
    fn resolve(&self, node: &Node, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>> {
        self.shared.resolve(&node.inode, start, len, node.inode.size().div_ceil(BLOCK_SIZE))
    }

    fn pin(&self, node: &Node, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>> {
        self.shared.pin(&node.inode, start, len)
    }

    fn unpin(&self, node: &Node) {
        self.shared.unpin(&node.inode);
    }

    fn stat(&self) -> FsStat {
        let fs = &self.shared;
        fs.free_all_now();
        let reserved = fs.alloc.reserved_blocks();
        let free = fs.alloc.free_blocks().saturating_sub(reserved);
        let available = fs.alloc.available_blocks();
        let in_use = fs.inodes.in_use();
        let inodes = fs.device_blocks.max(CHUNK_INODES);
        // Space limits them like everything else: a chunk takes so many blocks, in the worst case.
        let more = match available {
            0 => 0,
            blocks => {
                fs.inodes.capacity().saturating_sub(in_use) + blocks / (CHUNK_BLOCKS + 1) * CHUNK_INODES
            }
        };
        let inodes_free = more.min(inodes.saturating_sub(in_use));
        let blocks = fs.device_blocks - fs.first_data_block;
        FsStat { blocks, free, available, reserved, inodes, inodes_free }
    }

    fn index_bytes(&self) -> u64 {
        let fs = &self.shared;
        let mut bytes = fs.alloc.index_bytes() + fs.tiers.index_bytes() + fs.inodes.index_bytes();
        fs.inodes.for_each_loaded(|inode| bytes += inode.bytes());
        bytes
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }
}

fn dir_entry(dentry: &Dentry, cookie: u64) -> Result<DirEntry<'_>> {
    Ok(DirEntry {
        cookie,
        name: dentry.name(),
        id: InodeId { number: dentry.raw.inode, generation: dentry.raw.generation, volume: 0 },
        kind: dentry.kind()?,
    })
}
