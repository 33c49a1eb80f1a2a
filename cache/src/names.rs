//! Names of the contract, over those of the layout.

use std::sync::Arc;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{
    Attr, BLOCK_SIZE, BelowBuffer, Extents, FileBlock, FileKind, Kind, Names, NewInode, Place, RenameMode,
    Result, SetAttr, Timestamp, XattrMode, forward_names,
};

use crate::file::{Blocks, CacheNode, File};
use crate::fs::{CacheFs, Shared};

impl<L: BelowBuffer + Extents> Shared<L> {
    fn getattr(&self, node: &CacheNode<L::Node>) -> Result<Attr> {
        match self.known_file(node) {
            Some(file) if file.is_cached() => {
                let blocks = file.blocks.read();
                let attr = self.layout.getattr(&node.inner)?;
                Ok(self.overlay(&node.inner, file, &blocks, attr))
            }
            Some(file) => {
                let mut attr = self.layout.getattr(&node.inner)?;
                attr.change += file.changes.load(Ordering::Relaxed);
                Ok(attr)
            }
            None => self.layout.getattr(&node.inner).map(|attr| self.of_unknown(attr)),
        }
    }

    /// Attributes of a file that the cache does not know.
    fn of_unknown(&self, mut attr: Attr) -> Attr {
        if attr.kind == FileKind::Regular {
            attr.change += self.table.changes_of_unknown();
        }
        attr
    }

    /// The layout's attributes with the state in DRAM.
    pub(crate) fn overlay(&self, node: &L::Node, file: &File, blocks: &Blocks, mut attr: Attr) -> Attr {
        attr.change += file.changes.load(Ordering::Relaxed);
        if blocks.index.is_empty() {
            return attr;
        }
        if let Some(times) = *file.times.lock() {
            attr.mtime = times.mtime;
            attr.ctime = attr.ctime.max(times.ctime);
            attr.atime = times.atime.unwrap_or(attr.atime);
        }
        attr.allocated = self.blocks_in_all(node, file, blocks, &attr) * BLOCK_SIZE;
        attr.size = file.size();
        attr
    }

    /// Blocks that the file has when everything is written.
    fn blocks_in_all(&self, node: &L::Node, file: &File, blocks: &Blocks, attr: &Attr) -> u64 {
        let (has, end) = (attr.allocated / BLOCK_SIZE, attr.size.div_ceil(BLOCK_SIZE));
        let behind = count_from(blocks, end);
        let is_whole = has >= end || blocks.index.range(0..end).next().is_none();
        if is_whole && !file.has_flights() {
            // It has no holes, or the holes are empty in DRAM, too.
            return has + behind;
        }
        if file.is_dense() && file.is_preallocated() == Some(false) {
            return file.size().div_ceil(BLOCK_SIZE);
        }
        // During a writeback, only one look at all extents is consistent. After an error the number is a little too
        // small, until the blocks are written.
        let Ok(extents) = self.layout.resolve(node, FileBlock(0), u64::MAX) else { return has + behind };
        let (mut known, mut missing, mut end) = (0, 0, 0);
        for extent in extents {
            let range = extent.start.0..extent.start.0 + extent.len;
            end = range.end;
            match extent.place {
                Place::Hole => missing += blocks.index.range(range).count() as u64,
                _ => known += extent.len,
            }
        }
        let behind = count_from(blocks, end);
        if file.has_flights() { known + missing + behind } else { has + missing + behind }
    }

    /// Discards waiting data after a name was removed, if it was the last and the inode is not held.
    fn discard_if_gone(&self, victim: Option<L::Node>) {
        let Some(victim) = victim else { return };
        let id = self.layout.id(&victim);
        drop(victim);
        if let Some(file) = self.table.get(id)
            && self.layout.node(id).is_err_and(|error| error.kind() == Kind::Stale)
        {
            self.discard(&file);
        }
    }

    /// The regular file behind a name, if any data waits for media or was lost.
    fn victim(&self, dir: &L::Node, name: &[u8]) -> Option<L::Node> {
        if self.pool.free() == self.pool.capacity() && self.counters.lost.get() == 0 {
            return None;
        }
        let victim = self.layout.lookup(dir, name).ok()?;
        (self.layout.kind(&victim) == FileKind::Regular).then_some(victim)
    }

    /// Writes a file that is about to take the name of another. Fails if data of it was lost, because the other file
    /// is whole.
    fn flush_inner(&self, node: &L::Node) -> Result<()> {
        match self.table.get(self.layout.id(node)) {
            Some(file) => self.flush(node, &file).and_then(|()| file.check_lost()),
            None => Ok(()),
        }
    }
}

/// The layout below and its nodes, in place of the cache and its nodes.
macro_rules! below {
    ($this:ident, |$layout:ident $(, $node:ident)*| $body:expr) => {{
        let $layout = &$this.shared.layout;
        $(let $node = &$node.inner;)*
        $body
    }};
}

/// The same for an expression that gives a node.
macro_rules! node_below {
    ($($asked:tt)*) => {
        below!($($asked)*).map(CacheNode::new)
    };
}

impl<L: BelowBuffer + Extents> Names for CacheFs<L> {
    type Node = CacheNode<L::Node>;

    fn root(&self) -> Self::Node {
        CacheNode::new(self.shared.layout.root())
    }

    forward_names!(below, node_below:
        node node_by_number id kind unpark inode_cache lookup parent read_dir read_link note_read has_guarded get_xattr
        list_xattrs);

    fn let_go(&self, node: Self::Node) {
        let inner = node.into_below();
        // The model's state of such a file is not worth its DRAM.
        if let Some(file) = self.shared.table.get(self.shared.layout.id(&inner)) {
            self.shared.table.let_go(file, |dropped| self.shared.forget_ghosts(dropped));
        }
        self.shared.layout.let_go(inner);
    }

    fn park(&self, node: Self::Node) -> Option<Self::Node> {
        // Until it is written, waiting data is better found through its node.
        let waits = |file: &Arc<File>| file.is_needed() || file.replaced.load(Ordering::Acquire);
        if node.file.get().is_some_and(waits) {
            return Some(node);
        }
        self.shared.layout.park(node.into_below()).map(CacheNode::new)
    }

    fn create(&self, dir: &Self::Node, name: &[u8], new: &NewInode<'_>) -> Result<Self::Node> {
        self.shared.with_space(|| self.shared.layout.create(&dir.inner, name, new)).map(CacheNode::new)
    }

    fn create_unnamed(&self, new: &NewInode<'_>) -> Result<Self::Node> {
        self.shared.with_space(|| self.shared.layout.create_unnamed(new)).map(CacheNode::new)
    }

    fn link(&self, node: &Self::Node, dir: &Self::Node, name: &[u8], now: Timestamp) -> Result<()> {
        self.shared.flush_node(node)?;
        self.shared.with_space(|| self.shared.layout.link(&node.inner, &dir.inner, name, now))
    }

    fn unlink(&self, dir: &Self::Node, name: &[u8], now: Timestamp) -> Result<()> {
        let victim = self.shared.victim(&dir.inner, name);
        self.shared.with_space(|| self.shared.layout.unlink(&dir.inner, name, now))?;
        self.shared.discard_if_gone(victim);
        Ok(())
    }

    fn rmdir(&self, dir: &Self::Node, name: &[u8], now: Timestamp) -> Result<()> {
        self.shared.with_space(|| self.shared.layout.rmdir(&dir.inner, name, now))
    }

    fn rename(
        &self,
        from_dir: &Self::Node,
        from: &[u8],
        to_dir: &Self::Node,
        to: &[u8],
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<()> {
        let shared = &*self.shared;
        let replaced = shared.victim(&to_dir.inner, to);
        if let Some(replaced) = &replaced
            && mode != RenameMode::NoReplace
            && let Some(source) = shared.victim(&from_dir.inner, from)
        {
            shared.flush_inner(&source)?;
            if mode == RenameMode::Exchange {
                shared.flush_inner(replaced)?;
            }
        }
        shared.with_space(|| shared.layout.rename(&from_dir.inner, from, &to_dir.inner, to, mode, now))?;
        shared.discard_if_gone(replaced);
        Ok(())
    }

    #[inline]
    fn getattr(&self, node: &Self::Node) -> Result<Attr> {
        self.shared.getattr(node)
    }

    fn size(&self, node: &Self::Node) -> Result<u64> {
        match self.shared.known_file(node) {
            Some(file) if file.is_cached() => self.getattr(node).map(|attr| attr.size),
            _ => self.shared.layout.size(&node.inner),
        }
    }

    #[inline]
    fn getattr_at(&self, dir: &Self::Node, name: &[u8]) -> Result<Attr> {
        let attr = self.shared.layout.getattr_at(&dir.inner, name)?;
        if attr.kind != FileKind::Regular || self.shared.table.get(attr.id).is_none() {
            return Ok(self.shared.of_unknown(attr));
        }
        self.getattr(&self.lookup(dir, name)?)
    }

    fn setattr(&self, node: &Self::Node, change: &SetAttr, now: Timestamp) -> Result<Attr> {
        self.shared.with_space(|| self.shared.setattr(node, change, now))
    }

    fn set_xattr(
        &self,
        node: &Self::Node,
        name: &[u8],
        value: &[u8],
        how: XattrMode,
        mode: Option<u32>,
        now: Timestamp,
    ) -> Result<()> {
        self.shared.with_space(|| self.shared.layout.set_xattr(&node.inner, name, value, how, mode, now))
    }

    fn remove_xattr(&self, node: &Self::Node, name: &[u8], now: Timestamp) -> Result<()> {
        self.shared.with_space(|| self.shared.layout.remove_xattr(&node.inner, name, now))
    }
}

/// The number of blocks from this one on. For a file that grows, that may be all of many.
fn count_from(blocks: &Blocks, from: u64) -> u64 {
    match blocks.index.first() {
        Some(first) if first < from => blocks.index.range(from..u64::MAX).count() as u64,
        _ => blocks.index.len() as u64,
    }
}
