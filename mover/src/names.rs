//! The contract's names: the layout's, except for a change of size, which may need a block that is on a tier.

use std::ops::ControlFlow;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{
    Attr, BLOCK_SIZE, DirEntry, Durability, FileKind, InodeCache, InodeId, Names, NewInode, RenameMode,
    Result, SetAttr, Tiered, Timestamp, XattrMode,
};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;

use crate::admin::hints::TIER;
use crate::fs::TieredFs;
use crate::places::PIN;

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Names for TieredFs<L, D> {
    type Node = L::Node;

    fn root(&self) -> L::Node {
        self.places.layout.root()
    }

    fn node(&self, id: InodeId) -> Result<L::Node> {
        self.places.layout.node(id)
    }

    fn node_by_number(&self, number: u64) -> Result<L::Node> {
        self.places.layout.node_by_number(number)
    }

    #[inline]
    fn id(&self, node: &L::Node) -> InodeId {
        self.places.layout.id(node)
    }

    #[inline]
    fn kind(&self, node: &L::Node) -> FileKind {
        self.places.layout.kind(node)
    }

    fn let_go(&self, node: L::Node) {
        self.places.layout.let_go(node);
    }

    fn park(&self, node: L::Node) -> Option<L::Node> {
        self.places.layout.park(node)
    }

    fn unpark(&self, number: u64) {
        self.places.layout.unpark(number);
    }

    fn inode_cache(&self) -> InodeCache {
        self.places.layout.inode_cache()
    }

    #[inline]
    fn lookup(&self, dir: &L::Node, name: &[u8]) -> Result<L::Node> {
        self.places.layout.lookup(dir, name)
    }

    fn parent(&self, dir: &L::Node) -> Result<L::Node> {
        self.places.layout.parent(dir)
    }

    fn create(&self, dir: &L::Node, name: &[u8], new: &NewInode<'_>) -> Result<L::Node> {
        let pin = self.places.inherited_pin(dir);
        let mut xattrs = new.xattrs.to_vec();
        let mut new = NewInode { ..*new };
        if let Some(pin) = &pin
            && matches!(new.kind, FileKind::Regular | FileKind::Directory)
        {
            xattrs.push((PIN, pin));
            new.xattrs = &xattrs;
        }
        self.mover().with_reclaim(|| self.places.layout.create(dir, name, &new))
    }

    fn create_unnamed(&self, new: &NewInode<'_>) -> Result<L::Node> {
        self.mover().with_reclaim(|| self.places.layout.create_unnamed(new))
    }

    fn link(&self, node: &L::Node, dir: &L::Node, name: &[u8], now: Timestamp) -> Result<()> {
        self.mover().with_reclaim(|| self.places.layout.link(node, dir, name, now))
    }

    fn unlink(&self, dir: &L::Node, name: &[u8], now: Timestamp) -> Result<()> {
        self.places.layout.unlink(dir, name, now)
    }

    fn rmdir(&self, dir: &L::Node, name: &[u8], now: Timestamp) -> Result<()> {
        self.places.layout.rmdir(dir, name, now)
    }

    fn rename(
        &self,
        from_dir: &L::Node,
        from: &[u8],
        to_dir: &L::Node,
        to: &[u8],
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<()> {
        self.mover().with_reclaim(|| self.places.layout.rename(from_dir, from, to_dir, to, mode, now))
    }

    fn read_dir(
        &self,
        dir: &L::Node,
        cookie: u64,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.places.layout.read_dir(dir, cookie, visit)
    }

    fn read_link(&self, node: &L::Node) -> Result<Vec<u8>> {
        self.places.layout.read_link(node)
    }

    fn note_read(&self, node: &L::Node, now: Timestamp) {
        self.places.layout.note_read(node, now);
    }

    fn has_guarded(&self) -> bool {
        self.places.layout.has_guarded()
    }

    #[inline]
    fn getattr(&self, node: &L::Node) -> Result<Attr> {
        self.places.layout.getattr(node)
    }

    #[inline]
    fn getattr_at(&self, dir: &L::Node, name: &[u8]) -> Result<Attr> {
        self.places.layout.getattr_at(dir, name)
    }

    fn setattr(&self, node: &L::Node, change: &SetAttr, now: Timestamp) -> Result<Attr> {
        let edge = |_: u64| change.size.map(|size| size / BLOCK_SIZE).into_iter().collect();
        let durability = if change.promised { Durability::Promised } else { Durability::Now };
        self.files().with_edges(node, 1, durability, edge, || self.places.layout.setattr(node, change, now))
    }

    fn get_xattr(&self, node: &L::Node, name: &[u8]) -> Result<Vec<u8>> {
        if name == TIER {
            return self.places.whereabouts(node);
        }
        self.places.layout.get_xattr(node, name)
    }

    fn list_xattrs(&self, node: &L::Node) -> Result<Vec<Vec<u8>>> {
        self.places.layout.list_xattrs(node)
    }

    fn set_xattr(
        &self,
        node: &L::Node,
        name: &[u8],
        value: &[u8],
        how: XattrMode,
        mode: Option<u32>,
        now: Timestamp,
    ) -> Result<()> {
        if name == TIER {
            return self.mover().hint(node, value, how);
        }
        self.mover().with_reclaim(|| self.places.layout.set_xattr(node, name, value, how, mode, now))
    }

    fn remove_xattr(&self, node: &L::Node, name: &[u8], now: Timestamp) -> Result<()> {
        if name == TIER && self.engine.hints.take_back(self.places.layout.id(node)) {
            return Ok(());
        }
        self.places.layout.remove_xattr(node, name, now)?;
        if name == PIN {
            self.engine.scan_again.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}
