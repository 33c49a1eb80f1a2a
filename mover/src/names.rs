//! The contract's names: the layout's, except for a change of size, which may need a block that is on a tier.

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{
    Attr, BLOCK_SIZE, Draw, FileKind, Names, NewInode, RenameMode, Result, SetAttr, Tiered, Timestamp,
    XattrMode, forward_names,
};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;

use crate::admin::hints::TIER;
use crate::fs::TieredFs;
use crate::places::PIN;

/// The layout below in place of the mover. Its nodes are the mover's.
macro_rules! below {
    ($this:ident, |$layout:ident $(, $node:ident)*| $body:expr) => {{
        let $layout = &$this.places.layout;
        $body
    }};
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Names for TieredFs<L, D> {
    type Node = L::Node;

    fn root(&self) -> L::Node {
        self.places.layout.root()
    }

    forward_names!(below, below:
        node node_by_number id kind let_go park unpark inode_cache lookup parent unlink rmdir read_dir read_link note_read
        has_guarded getattr size getattr_at list_xattrs);

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

    fn setattr(&self, node: &L::Node, change: &SetAttr, now: Timestamp) -> Result<Attr> {
        let edge = |_: u64| change.size.map(|size| size / BLOCK_SIZE).into_iter().collect();
        self.files()
            .with_edges(node, 1, Draw::Available, edge, || self.places.layout.setattr(node, change, now))
    }

    fn get_xattr(&self, node: &L::Node, name: &[u8]) -> Result<Vec<u8>> {
        if name == TIER {
            return self.places.whereabouts(node);
        }
        self.places.layout.get_xattr(node, name)
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
