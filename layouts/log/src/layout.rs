//! The contract of a layout, implemented: each operation checks that it may write and goes to its module.

use std::ops::ControlFlow;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{
    Attr, BLOCK_SIZE, Capabilities, Data, DirEntry, Error, Extents, FileKind, FsStat, InodeCache, Kind,
    MAX_TIERS, Names, Result, WriteCost,
};
use nacre_layout_parts::contract::read_dir;
use nacre_layout_parts::{
    changes_if_writable, data_by_inode, extents_by_inode, names_by_inode, names_of_loaded_inodes,
};
use nacre_media::Pm;

use crate::alloc::Purpose;
use crate::format::{CHUNK_BLOCKS, CHUNK_INODES, MAX_FILE_SIZE, MAX_XATTR_SIZE, place};
use crate::fs::Shared;
use crate::inode::{Body, Node};
use crate::mount::LogFs;
use crate::places::is_written;

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

impl<P: Pm> LogFs<P> {
    changes_if_writable!(Shared<P>);
}

impl<P: Pm + 'static> Names for LogFs<P> {
    type Node = Node;

    names_by_inode!();
    names_of_loaded_inodes!();

    fn inode_cache(&self) -> InodeCache {
        self.shared.inodes.eviction.state(self.shared.inodes.in_use())
    }

    fn parent(&self, dir: &Node) -> Result<Node> {
        let parent = dir.inode.directory()?.parent.load(Ordering::Relaxed);
        self.shared.hold(parent)
    }

    fn read_dir(
        &self,
        dir: &Node,
        cookie: u64,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let directory = dir.inode.directory()?;
        let fs = &*self.shared;
        let read = |after, limit| {
            let batch = directory.read(&*fs.pm, fs.hash_seed, after, limit)?;
            batch.iter().map(|dentry| dentry.listed(fs.hash_seed)).collect()
        };
        read_dir(cookie, read, visit)
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

    #[inline]
    fn getattr_at(&self, dir: &Node, name: &[u8]) -> Result<Attr> {
        self.shared.getattr_at(&dir.inode, name)
    }
}

impl<P: Pm + 'static> Data for LogFs<P> {
    data_by_inode!(Purpose);

    fn sync(&self, node: &Node) -> Result<()> {
        self.shared.persist_lazy(&node.inode)
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
    extents_by_inode!();

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
        let limit = fs.device_blocks.max(CHUNK_INODES);
        // Space limits them like everything else: a chunk takes so many blocks, in the worst case.
        let more = match available {
            0 => 0,
            blocks => {
                fs.inodes.capacity().saturating_sub(in_use) + blocks / (CHUNK_BLOCKS + 1) * CHUNK_INODES
            }
        };
        let inodes_free = more.min(limit.saturating_sub(in_use));
        let blocks = fs.device_blocks - fs.first_data_block;
        FsStat { blocks, free, available, reserved, inodes: in_use + inodes_free, inodes_free }
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
