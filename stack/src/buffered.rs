//! A layout with or without a write buffer over it: [`Buffered`].

use nacre_cache::{CacheFs, CacheNode, CacheOptions};
use nacre_engine::{BelowBuffer, Data, Extents, Names, Result, forward_data, forward_extents, forward_names};

/// A layout with or without a write buffer over it.
pub enum Buffered<L: BelowBuffer + Extents> {
    /// Without one.
    Plain(L),
    /// Under a write buffer.
    Cached(CacheFs<L>),
}

/// A held inode of [`Buffered`].
#[derive(Clone)]
pub enum BufferedNode<N> {
    /// Without a write buffer.
    Plain(N),
    /// Under a write buffer.
    Cached(CacheNode<N>),
}

impl<L: BelowBuffer + Extents> Buffered<L> {
    pub(crate) fn new(layout: L, buffer: Option<CacheOptions>) -> Result<Buffered<L>> {
        match buffer {
            None => Ok(Buffered::Plain(layout)),
            Some(options) => CacheFs::new(layout, &options).map(Buffered::Cached),
        }
    }

    /// The layout.
    pub(crate) fn below(&self) -> &L {
        match self {
            Buffered::Plain(layout) => layout,
            Buffered::Cached(cache) => cache.layout(),
        }
    }

    /// The write buffer.
    pub(crate) fn buffer(&self) -> Option<&CacheFs<L>> {
        match self {
            Buffered::Plain(_) => None,
            Buffered::Cached(cache) => Some(cache),
        }
    }

    /// Writes back waiting data and gives the layout. On an error, accepted data is lost.
    pub(crate) fn into_below(self) -> (L, Result<()>) {
        match self {
            Buffered::Plain(layout) => (layout, Ok(())),
            Buffered::Cached(cache) => cache.unmount(),
        }
    }
}

macro_rules! delegate {
    ($this:ident, |$layout:ident| $body:expr) => {
        match $this {
            Buffered::Plain($layout) => $body,
            Buffered::Cached($layout) => $body,
        }
    };
    ($this:ident, |$layout:ident, $($node:ident),+| $body:expr) => {
        match ($this, $($node),+) {
            (Buffered::Plain($layout), $(BufferedNode::Plain($node)),+) => $body,
            (Buffered::Cached($layout), $(BufferedNode::Cached($node)),+) => $body,
            _ => unreachable!("a node of another file system"),
        }
    };
}

macro_rules! delegate_node {
    ($this:ident, |$layout:ident| $body:expr) => {
        match $this {
            Buffered::Plain($layout) => $body.map(BufferedNode::Plain),
            Buffered::Cached($layout) => $body.map(BufferedNode::Cached),
        }
    };
    ($this:ident, |$layout:ident, $($node:ident),+| $body:expr) => {
        match ($this, $($node),+) {
            (Buffered::Plain($layout), $(BufferedNode::Plain($node)),+) => $body.map(BufferedNode::Plain),
            (Buffered::Cached($layout), $(BufferedNode::Cached($node)),+) => $body.map(BufferedNode::Cached),
            _ => unreachable!("a node of another file system"),
        }
    };
}

impl<L: BelowBuffer + Extents> Names for Buffered<L> {
    type Node = BufferedNode<L::Node>;

    fn root(&self) -> Self::Node {
        match self {
            Buffered::Plain(layout) => BufferedNode::Plain(layout.root()),
            Buffered::Cached(cache) => BufferedNode::Cached(cache.root()),
        }
    }

    forward_names!(delegate, delegate_node:
        node node_by_number id kind let_go park unpark inode_cache lookup parent create create_unnamed link unlink rmdir
        rename read_dir read_link note_read has_guarded getattr size getattr_at setattr get_xattr list_xattrs set_xattr
        remove_xattr);
}

impl<L: BelowBuffer + Extents> Data for Buffered<L> {
    forward_data!(delegate, delegate_node: read write fallocate seek sync closed sync_all);
}

impl<L: BelowBuffer + Extents> Extents for Buffered<L> {
    forward_extents!(delegate, delegate_node:
        resolve pin unpin stat index_bytes capabilities);
}
