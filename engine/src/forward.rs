//! Forwarding of the contract: a wrapper lists the methods that it hands on to the layout below, and writes the others.
//! A method in neither list does not compile, so no forward is forgotten.
//!
//! A wrapper brings two macros. `plain!(self, |layout, node...| expression)` evaluates an expression with the layout
//! below and its nodes in place of the wrapper and its nodes. `node!` does the same for an expression that gives a node,
//! in a `Result` or an `Option`, and makes it a node of the wrapper. `Names::root` is the wrapper's own.

/// Methods of [`Names`](crate::Names) for the layout below.
#[macro_export]
macro_rules! forward_names {
    ($plain:ident, $node:ident: $($method:ident)+) => {
        $($crate::forward_names!(@$method $plain $node);)+
    };
    (@node $plain:ident $node:ident) => {
        #[inline]
        fn node(&self, id: $crate::InodeId) -> $crate::Result<Self::Node> {
            $node!(self, |layout| layout.node(id))
        }
    };
    (@node_by_number $plain:ident $node:ident) => {
        #[inline]
        fn node_by_number(&self, number: u64) -> $crate::Result<Self::Node> {
            $node!(self, |layout| layout.node_by_number(number))
        }
    };
    (@id $plain:ident $node:ident) => {
        #[inline]
        fn id(&self, node: &Self::Node) -> $crate::InodeId {
            $plain!(self, |layout, node| layout.id(node))
        }
    };
    (@kind $plain:ident $node:ident) => {
        #[inline]
        fn kind(&self, node: &Self::Node) -> $crate::FileKind {
            $plain!(self, |layout, node| layout.kind(node))
        }
    };
    (@let_go $plain:ident $node:ident) => {
        #[inline]
        fn let_go(&self, node: Self::Node) {
            $plain!(self, |layout, node| layout.let_go(node))
        }
    };
    (@park $plain:ident $node:ident) => {
        #[inline]
        fn park(&self, node: Self::Node) -> Option<Self::Node> {
            $node!(self, |layout, node| layout.park(node))
        }
    };
    (@unpark $plain:ident $node:ident) => {
        #[inline]
        fn unpark(&self, number: u64) {
            $plain!(self, |layout| layout.unpark(number))
        }
    };
    (@inode_cache $plain:ident $node:ident) => {
        #[inline]
        fn inode_cache(&self) -> $crate::InodeCache {
            $plain!(self, |layout| layout.inode_cache())
        }
    };
    (@lookup $plain:ident $node:ident) => {
        #[inline]
        fn lookup(&self, dir: &Self::Node, name: &[u8]) -> $crate::Result<Self::Node> {
            $node!(self, |layout, dir| layout.lookup(dir, name))
        }
    };
    (@parent $plain:ident $node:ident) => {
        #[inline]
        fn parent(&self, dir: &Self::Node) -> $crate::Result<Self::Node> {
            $node!(self, |layout, dir| layout.parent(dir))
        }
    };
    (@create $plain:ident $node:ident) => {
        #[inline]
        fn create(
            &self,
            dir: &Self::Node,
            name: &[u8],
            new: &$crate::NewInode<'_>,
        ) -> $crate::Result<Self::Node> {
            $node!(self, |layout, dir| layout.create(dir, name, new))
        }
    };
    (@create_unnamed $plain:ident $node:ident) => {
        #[inline]
        fn create_unnamed(&self, new: &$crate::NewInode<'_>) -> $crate::Result<Self::Node> {
            $node!(self, |layout| layout.create_unnamed(new))
        }
    };
    (@link $plain:ident $node:ident) => {
        #[inline]
        fn link(
            &self,
            node: &Self::Node,
            dir: &Self::Node,
            name: &[u8],
            now: $crate::Timestamp,
        ) -> $crate::Result<()> {
            $plain!(self, |layout, node, dir| layout.link(node, dir, name, now))
        }
    };
    (@unlink $plain:ident $node:ident) => {
        #[inline]
        fn unlink(&self, dir: &Self::Node, name: &[u8], now: $crate::Timestamp) -> $crate::Result<()> {
            $plain!(self, |layout, dir| layout.unlink(dir, name, now))
        }
    };
    (@rmdir $plain:ident $node:ident) => {
        #[inline]
        fn rmdir(&self, dir: &Self::Node, name: &[u8], now: $crate::Timestamp) -> $crate::Result<()> {
            $plain!(self, |layout, dir| layout.rmdir(dir, name, now))
        }
    };
    (@rename $plain:ident $node:ident) => {
        #[inline]
        fn rename(
            &self,
            from_dir: &Self::Node,
            from: &[u8],
            to_dir: &Self::Node,
            to: &[u8],
            mode: $crate::RenameMode,
            now: $crate::Timestamp,
        ) -> $crate::Result<()> {
            $plain!(self, |layout, from_dir, to_dir| layout.rename(from_dir, from, to_dir, to, mode, now))
        }
    };
    (@read_dir $plain:ident $node:ident) => {
        #[inline]
        fn read_dir(
            &self,
            dir: &Self::Node,
            cookie: u64,
            visit: &mut dyn FnMut($crate::DirEntry<'_>) -> std::ops::ControlFlow<()>,
        ) -> $crate::Result<()> {
            $plain!(self, |layout, dir| layout.read_dir(dir, cookie, visit))
        }
    };
    (@read_link $plain:ident $node:ident) => {
        #[inline]
        fn read_link(&self, node: &Self::Node) -> $crate::Result<Vec<u8>> {
            $plain!(self, |layout, node| layout.read_link(node))
        }
    };
    (@note_read $plain:ident $node:ident) => {
        #[inline]
        fn note_read(&self, node: &Self::Node, now: $crate::Timestamp) {
            $plain!(self, |layout, node| layout.note_read(node, now))
        }
    };
    (@has_guarded $plain:ident $node:ident) => {
        #[inline]
        fn has_guarded(&self) -> bool {
            $plain!(self, |layout| layout.has_guarded())
        }
    };
    (@getattr $plain:ident $node:ident) => {
        #[inline]
        fn getattr(&self, node: &Self::Node) -> $crate::Result<$crate::Attr> {
            $plain!(self, |layout, node| layout.getattr(node))
        }
    };
    (@size $plain:ident $node:ident) => {
        #[inline]
        fn size(&self, node: &Self::Node) -> $crate::Result<u64> {
            $plain!(self, |layout, node| layout.size(node))
        }
    };
    (@getattr_at $plain:ident $node:ident) => {
        #[inline]
        fn getattr_at(&self, dir: &Self::Node, name: &[u8]) -> $crate::Result<$crate::Attr> {
            $plain!(self, |layout, dir| layout.getattr_at(dir, name))
        }
    };
    (@setattr $plain:ident $node:ident) => {
        #[inline]
        fn setattr(
            &self,
            node: &Self::Node,
            change: &$crate::SetAttr,
            now: $crate::Timestamp,
        ) -> $crate::Result<$crate::Attr> {
            $plain!(self, |layout, node| layout.setattr(node, change, now))
        }
    };
    (@get_xattr $plain:ident $node:ident) => {
        #[inline]
        fn get_xattr(&self, node: &Self::Node, name: &[u8]) -> $crate::Result<Vec<u8>> {
            $plain!(self, |layout, node| layout.get_xattr(node, name))
        }
    };
    (@list_xattrs $plain:ident $node:ident) => {
        #[inline]
        fn list_xattrs(&self, node: &Self::Node) -> $crate::Result<Vec<Vec<u8>>> {
            $plain!(self, |layout, node| layout.list_xattrs(node))
        }
    };
    (@set_xattr $plain:ident $node:ident) => {
        #[inline]
        fn set_xattr(
            &self,
            node: &Self::Node,
            name: &[u8],
            value: &[u8],
            how: $crate::XattrMode,
            mode: Option<u32>,
            now: $crate::Timestamp,
        ) -> $crate::Result<()> {
            $plain!(self, |layout, node| layout.set_xattr(node, name, value, how, mode, now))
        }
    };
    (@remove_xattr $plain:ident $node:ident) => {
        #[inline]
        fn remove_xattr(&self, node: &Self::Node, name: &[u8], now: $crate::Timestamp) -> $crate::Result<()> {
            $plain!(self, |layout, node| layout.remove_xattr(node, name, now))
        }
    };
}

/// Methods of [`Data`](crate::Data) for the layout below.
#[macro_export]
macro_rules! forward_data {
    ($plain:ident, $node:ident: $($method:ident)+) => {
        $($crate::forward_data!(@$method $plain $node);)+
    };
    (@read $plain:ident $node:ident) => {
        #[inline]
        fn read(
            &self,
            node: &Self::Node,
            offset: u64,
            buf: &mut [u8],
            now: Option<$crate::Timestamp>,
        ) -> $crate::Result<usize> {
            $plain!(self, |layout, node| layout.read(node, offset, buf, now))
        }
    };
    (@write $plain:ident $node:ident) => {
        #[inline]
        fn write(
            &self,
            node: &Self::Node,
            at: $crate::WriteAt,
            data: &[std::io::IoSlice<'_>],
            durability: $crate::Durability,
            now: $crate::Timestamp,
        ) -> $crate::Result<u64> {
            $plain!(self, |layout, node| layout.write(node, at, data, durability, now))
        }
    };
    (@fallocate $plain:ident $node:ident) => {
        #[inline]
        fn fallocate(
            &self,
            node: &Self::Node,
            mode: $crate::FallocateMode,
            offset: u64,
            len: u64,
            now: $crate::Timestamp,
        ) -> $crate::Result<()> {
            $plain!(self, |layout, node| layout.fallocate(node, mode, offset, len, now))
        }
    };
    (@seek $plain:ident $node:ident) => {
        #[inline]
        fn seek(&self, node: &Self::Node, offset: u64, to: $crate::SeekTo) -> $crate::Result<u64> {
            $plain!(self, |layout, node| layout.seek(node, offset, to))
        }
    };
    (@sync $plain:ident $node:ident) => {
        #[inline]
        fn sync(&self, node: &Self::Node) -> $crate::Result<()> {
            $plain!(self, |layout, node| layout.sync(node))
        }
    };
    (@closed $plain:ident $node:ident) => {
        #[inline]
        fn closed(&self, node: &Self::Node) -> $crate::Result<()> {
            $plain!(self, |layout, node| layout.closed(node))
        }
    };
    (@sync_all $plain:ident $node:ident) => {
        #[inline]
        fn sync_all(&self) -> $crate::Result<()> {
            $plain!(self, |layout| layout.sync_all())
        }
    };
}

/// Methods of [`Extents`](crate::Extents) for the layout below.
#[macro_export]
macro_rules! forward_extents {
    ($plain:ident, $node:ident: $($method:ident)+) => {
        $($crate::forward_extents!(@$method $plain $node);)+
    };
    (@resolve $plain:ident $node:ident) => {
        #[inline]
        fn resolve(
            &self,
            node: &Self::Node,
            start: $crate::FileBlock,
            len: u64,
        ) -> $crate::Result<Vec<$crate::PlacedExtent>> {
            $plain!(self, |layout, node| layout.resolve(node, start, len))
        }
    };
    (@pin $plain:ident $node:ident) => {
        #[inline]
        fn pin(
            &self,
            node: &Self::Node,
            start: $crate::FileBlock,
            len: u64,
        ) -> $crate::Result<Vec<$crate::PlacedExtent>> {
            $plain!(self, |layout, node| layout.pin(node, start, len))
        }
    };
    (@unpin $plain:ident $node:ident) => {
        #[inline]
        fn unpin(&self, node: &Self::Node) {
            $plain!(self, |layout, node| layout.unpin(node))
        }
    };
    (@stat $plain:ident $node:ident) => {
        #[inline]
        fn stat(&self) -> $crate::FsStat {
            $plain!(self, |layout| layout.stat())
        }
    };
    (@index_bytes $plain:ident $node:ident) => {
        #[inline]
        fn index_bytes(&self) -> u64 {
            $plain!(self, |layout| layout.index_bytes())
        }
    };
    (@capabilities $plain:ident $node:ident) => {
        #[inline]
        fn capabilities(&self) -> $crate::Capabilities {
            $plain!(self, |layout| layout.capabilities())
        }
    };
}
