//! The closed set of layouts.

use std::io::IoSlice;
use std::ops::ControlFlow;
use std::sync::Arc;

use nacre_cache::{CacheFs, CacheStatus, Settings};
use nacre_engine::{
    Attr, Capabilities, Data, DirEntry, Durability, Extents, FallocateMode, FileBlock, FileKind, FsStat,
    InodeCache, InodeId, Names, NewInode, PlacedExtent, PromiseCost, RenameMode, Result, SeekTo, SetAttr,
    Timestamp, WriteAt, XattrMode,
};
use nacre_layout_inplace::InplaceFs;
use nacre_layout_log::{LogFs, RecoveryReport};
use nacre_layout_parts::scrub::ScrubStatus;
use nacre_media::RealPm;
use nacre_media::block::RealDisk;
use nacre_mover::TieredFs;

/// The `log` layout, with its tiers, if any.
pub(crate) type TieredLog = TieredFs<LogFs<RealPm>, RealDisk>;

/// Any layout that exists, on real media, with and without a write buffer. A branch on a closed enum stands where a
/// virtual call would.
#[expect(clippy::large_enum_variant, reason = "there is one for each mount")]
pub enum AnyLayout {
    /// The `inplace` layout.
    Inplace(InplaceFs<RealPm>),
    /// The `log` layout.
    Log(TieredLog),
    /// The `log` layout under a write buffer.
    LogCached(CacheFs<TieredLog>),
    /// The `inplace` layout under a write buffer.
    InplaceCached(CacheFs<InplaceFs<RealPm>>),
}

/// A held inode of [`AnyLayout`].
#[derive(Clone)]
pub enum AnyNode {
    /// Of the `inplace` layout.
    Inplace(<InplaceFs<RealPm> as Names>::Node),
    /// Of the `log` layout.
    Log(<TieredLog as Names>::Node),
    /// Of the `log` layout under a write buffer.
    LogCached(<CacheFs<TieredLog> as Names>::Node),
    /// Of the `inplace` layout under a write buffer.
    InplaceCached(<CacheFs<InplaceFs<RealPm>> as Names>::Node),
}

/// Evaluates an expression with the layout and its nodes in place of the enums around them. A new layout adds its line
/// here and in [`delegate_node`]; nodes of two layouts never meet, for each file system has one.
macro_rules! delegate {
    ($this:ident, |$layout:ident| $body:expr) => {
        match $this {
            AnyLayout::Log($layout) => $body,
            AnyLayout::LogCached($layout) => $body,
            AnyLayout::Inplace($layout) => $body,
            AnyLayout::InplaceCached($layout) => $body,
        }
    };
    ($this:ident, |$layout:ident, $($node:ident),+| $body:expr) => {
        match ($this, $($node),+) {
            (AnyLayout::Log($layout), $(AnyNode::Log($node)),+) => $body,
            (AnyLayout::LogCached($layout), $(AnyNode::LogCached($node)),+) => $body,
            (AnyLayout::Inplace($layout), $(AnyNode::Inplace($node)),+) => $body,
            (AnyLayout::InplaceCached($layout), $(AnyNode::InplaceCached($node)),+) => $body,
            _ => unreachable!("a node of another layout"),
        }
    };
}

/// As [`delegate`], for an expression that yields a node or an error.
macro_rules! delegate_node {
    ($this:ident, |$layout:ident| $body:expr) => {
        match $this {
            AnyLayout::Log($layout) => $body.map(AnyNode::Log),
            AnyLayout::LogCached($layout) => $body.map(AnyNode::LogCached),
            AnyLayout::Inplace($layout) => $body.map(AnyNode::Inplace),
            AnyLayout::InplaceCached($layout) => $body.map(AnyNode::InplaceCached),
        }
    };
    ($this:ident, |$layout:ident, $($node:ident),+| $body:expr) => {
        match ($this, $($node),+) {
            (AnyLayout::Log($layout), $(AnyNode::Log($node)),+) => $body.map(AnyNode::Log),
            (AnyLayout::LogCached($layout), $(AnyNode::LogCached($node)),+) => $body.map(AnyNode::LogCached),
            (AnyLayout::Inplace($layout), $(AnyNode::Inplace($node)),+) => $body.map(AnyNode::Inplace),
            (AnyLayout::InplaceCached($layout), $(AnyNode::InplaceCached($node)),+) => {
                $body.map(AnyNode::InplaceCached)
            }
            _ => unreachable!("a node of another layout"),
        }
    };
}

impl AnyLayout {
    /// The PM that it is on.
    pub(crate) fn pm(&self) -> &Arc<RealPm> {
        match self {
            AnyLayout::Log(layout) => layout.layout().pm(),
            AnyLayout::LogCached(cache) => cache.layout().layout().pm(),
            AnyLayout::Inplace(layout) => layout.pm(),
            AnyLayout::InplaceCached(cache) => cache.layout().pm(),
        }
    }

    /// The layer that knows tiers, where the layout may have some.
    pub(crate) fn mover(&self) -> Option<&TieredLog> {
        match self {
            AnyLayout::Log(mover) => Some(mover),
            AnyLayout::LogCached(cache) => Some(cache.layout()),
            AnyLayout::Inplace(_) | AnyLayout::InplaceCached(_) => None,
        }
    }

    /// A node as that layer knows it.
    pub(crate) fn node_below<'n>(&self, node: &'n AnyNode) -> Option<&'n <TieredLog as Names>::Node> {
        match node {
            AnyNode::Log(node) => Some(node),
            AnyNode::LogCached(node) => Some(node.below()),
            AnyNode::Inplace(_) | AnyNode::InplaceCached(_) => None,
        }
    }

    /// The report of the recovery.
    pub(crate) fn recovery(&self) -> &RecoveryReport {
        match self {
            AnyLayout::Log(layout) => layout.layout().recovery(),
            AnyLayout::LogCached(cache) => cache.layout().layout().recovery(),
            AnyLayout::Inplace(layout) => layout.recovery(),
            AnyLayout::InplaceCached(cache) => cache.layout().recovery(),
        }
    }

    /// Starts to read everything in the background.
    pub(crate) fn start_scrub(&self, rate: u64) -> Result<()> {
        match self {
            AnyLayout::Log(layout) => layout.layout().start_scrub(rate),
            AnyLayout::LogCached(cache) => cache.layout().layout().start_scrub(rate),
            AnyLayout::Inplace(layout) => layout.start_scrub(rate),
            AnyLayout::InplaceCached(cache) => cache.layout().start_scrub(rate),
        }
    }

    /// How far that is.
    pub(crate) fn scrub_status(&self) -> ScrubStatus {
        match self {
            AnyLayout::Log(layout) => layout.layout().scrub_status(),
            AnyLayout::LogCached(cache) => cache.layout().layout().scrub_status(),
            AnyLayout::Inplace(layout) => layout.scrub_status(),
            AnyLayout::InplaceCached(cache) => cache.layout().scrub_status(),
        }
    }

    /// State and counters of the write buffer, where there is one.
    pub(crate) fn cache_status(&self) -> Option<CacheStatus> {
        match self {
            AnyLayout::Log(_) | AnyLayout::Inplace(_) => None,
            AnyLayout::LogCached(cache) => Some(cache.status()),
            AnyLayout::InplaceCached(cache) => Some(cache.status()),
        }
    }

    /// The settings of the write buffer.
    pub(crate) fn cache_settings(&self) -> Option<Settings> {
        match self {
            AnyLayout::Log(_) | AnyLayout::Inplace(_) => None,
            AnyLayout::LogCached(cache) => Some(cache.settings()),
            AnyLayout::InplaceCached(cache) => Some(cache.settings()),
        }
    }

    /// Changes that.
    pub(crate) fn set_cache(&self, settings: Settings) -> Option<Result<()>> {
        match self {
            AnyLayout::Log(_) | AnyLayout::Inplace(_) => None,
            AnyLayout::LogCached(cache) => Some(cache.set(settings)),
            AnyLayout::InplaceCached(cache) => Some(cache.set(settings)),
        }
    }

    /// Writes back waiting data, and unmounts.
    pub(crate) fn unmount(self) -> Result<()> {
        match self {
            AnyLayout::Log(layout) => layout.into_layout().unmount(),
            AnyLayout::Inplace(layout) => layout.unmount(),
            AnyLayout::LogCached(cache) => {
                let (layout, flushed) = cache.unmount();
                let layout = layout.into_layout();
                match flushed {
                    Ok(()) => layout.unmount(),
                    // Accepted data is lost: the unmount is not clean, and its caller gets the error.
                    Err(error) => {
                        layout.abandon();
                        Err(error)
                    }
                }
            }
            AnyLayout::InplaceCached(cache) => {
                let (layout, flushed) = cache.unmount();
                match flushed {
                    Ok(()) => layout.unmount(),
                    Err(error) => {
                        layout.abandon();
                        Err(error)
                    }
                }
            }
        }
    }
}

impl Names for AnyLayout {
    type Node = AnyNode;

    fn root(&self) -> AnyNode {
        match self {
            AnyLayout::Log(layout) => AnyNode::Log(layout.root()),
            AnyLayout::Inplace(layout) => AnyNode::Inplace(layout.root()),
            AnyLayout::LogCached(layout) => AnyNode::LogCached(layout.root()),
            AnyLayout::InplaceCached(layout) => AnyNode::InplaceCached(layout.root()),
        }
    }

    fn node(&self, id: InodeId) -> Result<AnyNode> {
        delegate_node!(self, |layout| layout.node(id))
    }

    fn node_by_number(&self, number: u64) -> Result<AnyNode> {
        delegate_node!(self, |layout| layout.node_by_number(number))
    }

    #[inline]
    fn id(&self, node: &AnyNode) -> InodeId {
        delegate!(self, |layout, node| layout.id(node))
    }

    #[inline]
    fn kind(&self, node: &AnyNode) -> FileKind {
        delegate!(self, |layout, node| layout.kind(node))
    }

    fn let_go(&self, node: AnyNode) {
        delegate!(self, |layout, node| layout.let_go(node));
    }

    fn park(&self, node: AnyNode) -> Option<AnyNode> {
        delegate_node!(self, |layout, node| layout.park(node))
    }

    fn unpark(&self, number: u64) {
        delegate!(self, |layout| layout.unpark(number));
    }

    fn inode_cache(&self) -> InodeCache {
        delegate!(self, |layout| layout.inode_cache())
    }

    #[inline]
    fn lookup(&self, dir: &AnyNode, name: &[u8]) -> Result<AnyNode> {
        delegate_node!(self, |layout, dir| layout.lookup(dir, name))
    }

    fn parent(&self, dir: &AnyNode) -> Result<AnyNode> {
        delegate_node!(self, |layout, dir| layout.parent(dir))
    }

    fn create(&self, dir: &AnyNode, name: &[u8], new: &NewInode<'_>) -> Result<AnyNode> {
        delegate_node!(self, |layout, dir| layout.create(dir, name, new))
    }

    fn create_unnamed(&self, new: &NewInode<'_>) -> Result<AnyNode> {
        delegate_node!(self, |layout| layout.create_unnamed(new))
    }

    fn link(&self, node: &AnyNode, dir: &AnyNode, name: &[u8], now: Timestamp) -> Result<()> {
        delegate!(self, |layout, node, dir| layout.link(node, dir, name, now))
    }

    fn unlink(&self, dir: &AnyNode, name: &[u8], now: Timestamp) -> Result<()> {
        delegate!(self, |layout, dir| layout.unlink(dir, name, now))
    }

    fn rmdir(&self, dir: &AnyNode, name: &[u8], now: Timestamp) -> Result<()> {
        delegate!(self, |layout, dir| layout.rmdir(dir, name, now))
    }

    fn rename(
        &self,
        from_dir: &AnyNode,
        from: &[u8],
        to_dir: &AnyNode,
        to: &[u8],
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<()> {
        delegate!(self, |layout, from_dir, to_dir| layout.rename(from_dir, from, to_dir, to, mode, now))
    }

    fn read_dir(
        &self,
        dir: &AnyNode,
        cookie: u64,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        delegate!(self, |layout, dir| layout.read_dir(dir, cookie, visit))
    }

    fn read_link(&self, node: &AnyNode) -> Result<Vec<u8>> {
        delegate!(self, |layout, node| layout.read_link(node))
    }

    fn note_read(&self, node: &AnyNode, now: Timestamp) {
        delegate!(self, |layout, node| layout.note_read(node, now))
    }

    fn has_guarded(&self) -> bool {
        delegate!(self, |layout| layout.has_guarded())
    }

    #[inline]
    fn getattr(&self, node: &AnyNode) -> Result<Attr> {
        delegate!(self, |layout, node| layout.getattr(node))
    }

    #[inline]
    fn getattr_at(&self, dir: &AnyNode, name: &[u8]) -> Result<Attr> {
        delegate!(self, |layout, dir| layout.getattr_at(dir, name))
    }

    fn setattr(&self, node: &AnyNode, change: &SetAttr, now: Timestamp) -> Result<Attr> {
        delegate!(self, |layout, node| layout.setattr(node, change, now))
    }

    fn get_xattr(&self, node: &AnyNode, name: &[u8]) -> Result<Vec<u8>> {
        delegate!(self, |layout, node| layout.get_xattr(node, name))
    }

    fn list_xattrs(&self, node: &AnyNode) -> Result<Vec<Vec<u8>>> {
        delegate!(self, |layout, node| layout.list_xattrs(node))
    }

    fn set_xattr(
        &self,
        node: &AnyNode,
        name: &[u8],
        value: &[u8],
        how: XattrMode,
        mode: Option<u32>,
        now: Timestamp,
    ) -> Result<()> {
        delegate!(self, |layout, node| layout.set_xattr(node, name, value, how, mode, now))
    }

    fn remove_xattr(&self, node: &AnyNode, name: &[u8], now: Timestamp) -> Result<()> {
        delegate!(self, |layout, node| layout.remove_xattr(node, name, now))
    }
}

impl Data for AnyLayout {
    #[inline]
    fn read(&self, node: &AnyNode, offset: u64, buf: &mut [u8], now: Option<Timestamp>) -> Result<usize> {
        delegate!(self, |layout, node| layout.read(node, offset, buf, now))
    }

    #[inline]
    fn write(
        &self,
        node: &AnyNode,
        at: WriteAt,
        data: &[IoSlice<'_>],
        durability: Durability,
        now: Timestamp,
    ) -> Result<u64> {
        delegate!(self, |layout, node| layout.write(node, at, data, durability, now))
    }

    fn fallocate(
        &self,
        node: &AnyNode,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        now: Timestamp,
    ) -> Result<()> {
        delegate!(self, |layout, node| layout.fallocate(node, mode, offset, len, now))
    }

    fn seek(&self, node: &AnyNode, offset: u64, to: SeekTo) -> Result<u64> {
        delegate!(self, |layout, node| layout.seek(node, offset, to))
    }

    fn write_unit(&self) -> u64 {
        delegate!(self, |layout| layout.write_unit())
    }

    fn sync(&self, node: &AnyNode) -> Result<()> {
        delegate!(self, |layout, node| layout.sync(node))
    }

    fn closed(&self, node: &AnyNode) -> Result<()> {
        delegate!(self, |layout, node| layout.closed(node))
    }

    fn sync_all(&self) -> Result<()> {
        delegate!(self, |layout| layout.sync_all())
    }
}

impl Extents for AnyLayout {
    fn resolve(&self, node: &AnyNode, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>> {
        delegate!(self, |layout, node| layout.resolve(node, start, len))
    }

    fn pin(&self, node: &AnyNode, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>> {
        delegate!(self, |layout, node| layout.pin(node, start, len))
    }

    fn unpin(&self, node: &AnyNode) {
        delegate!(self, |layout, node| layout.unpin(node));
    }

    fn promise_cost(&self) -> PromiseCost {
        delegate!(self, |layout| layout.promise_cost())
    }

    fn reserve(&self, blocks: u64) -> Result<()> {
        delegate!(self, |layout| layout.reserve(blocks))
    }

    fn release(&self, blocks: u64) {
        delegate!(self, |layout| layout.release(blocks))
    }

    fn stat(&self) -> FsStat {
        delegate!(self, |layout| layout.stat())
    }

    fn index_bytes(&self) -> u64 {
        delegate!(self, |layout| layout.index_bytes())
    }

    fn capabilities(&self) -> Capabilities {
        delegate!(self, |layout| layout.capabilities())
    }
}
