//! A shared layout is a layout, too.

use std::io::IoSlice;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::attr::{Attr, FileKind, NewInode, SetAttr};
use crate::contract::{
    Capabilities, Data, DirEntry, Durability, Extents, FallocateMode, FsStat, InodeCache, Names,
    PlacedExtent, PromiseCost, RenameMode, SeekTo, WriteAt, XattrMode,
};
use crate::error::Result;
use crate::units::{FileBlock, InodeId, Timestamp};

impl<T: Names> Names for Arc<T> {
    type Node = T::Node;

    fn root(&self) -> T::Node {
        (**self).root()
    }

    fn node(&self, id: InodeId) -> Result<T::Node> {
        (**self).node(id)
    }

    fn node_by_number(&self, number: u64) -> Result<T::Node> {
        (**self).node_by_number(number)
    }

    fn id(&self, node: &T::Node) -> InodeId {
        (**self).id(node)
    }

    fn kind(&self, node: &T::Node) -> FileKind {
        (**self).kind(node)
    }

    fn let_go(&self, node: T::Node) {
        (**self).let_go(node);
    }

    fn park(&self, node: T::Node) -> Option<T::Node> {
        (**self).park(node)
    }

    fn unpark(&self, number: u64) {
        (**self).unpark(number);
    }

    fn inode_cache(&self) -> InodeCache {
        (**self).inode_cache()
    }

    fn lookup(&self, dir: &T::Node, name: &[u8]) -> Result<T::Node> {
        (**self).lookup(dir, name)
    }

    fn parent(&self, dir: &T::Node) -> Result<T::Node> {
        (**self).parent(dir)
    }

    fn create(&self, dir: &T::Node, name: &[u8], new: &NewInode<'_>) -> Result<T::Node> {
        (**self).create(dir, name, new)
    }

    fn create_unnamed(&self, new: &NewInode<'_>) -> Result<T::Node> {
        (**self).create_unnamed(new)
    }

    fn link(&self, node: &T::Node, dir: &T::Node, name: &[u8], now: Timestamp) -> Result<()> {
        (**self).link(node, dir, name, now)
    }

    fn unlink(&self, dir: &T::Node, name: &[u8], now: Timestamp) -> Result<()> {
        (**self).unlink(dir, name, now)
    }

    fn rmdir(&self, dir: &T::Node, name: &[u8], now: Timestamp) -> Result<()> {
        (**self).rmdir(dir, name, now)
    }

    fn rename(
        &self,
        from_dir: &T::Node,
        from: &[u8],
        to_dir: &T::Node,
        to: &[u8],
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<()> {
        (**self).rename(from_dir, from, to_dir, to, mode, now)
    }

    fn read_dir(
        &self,
        dir: &T::Node,
        cookie: u64,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        (**self).read_dir(dir, cookie, visit)
    }

    fn read_link(&self, node: &T::Node) -> Result<Vec<u8>> {
        (**self).read_link(node)
    }

    fn note_read(&self, node: &T::Node, now: Timestamp) {
        (**self).note_read(node, now);
    }

    fn has_guarded(&self) -> bool {
        (**self).has_guarded()
    }

    fn getattr(&self, node: &T::Node) -> Result<Attr> {
        (**self).getattr(node)
    }

    fn getattr_at(&self, dir: &T::Node, name: &[u8]) -> Result<Attr> {
        (**self).getattr_at(dir, name)
    }

    fn setattr(&self, node: &T::Node, change: &SetAttr, now: Timestamp) -> Result<Attr> {
        (**self).setattr(node, change, now)
    }

    fn get_xattr(&self, node: &T::Node, name: &[u8]) -> Result<Vec<u8>> {
        (**self).get_xattr(node, name)
    }

    fn list_xattrs(&self, node: &T::Node) -> Result<Vec<Vec<u8>>> {
        (**self).list_xattrs(node)
    }

    fn set_xattr(
        &self,
        node: &T::Node,
        name: &[u8],
        value: &[u8],
        how: XattrMode,
        mode: Option<u32>,
        now: Timestamp,
    ) -> Result<()> {
        (**self).set_xattr(node, name, value, how, mode, now)
    }

    fn remove_xattr(&self, node: &T::Node, name: &[u8], now: Timestamp) -> Result<()> {
        (**self).remove_xattr(node, name, now)
    }
}

impl<T: Data> Data for Arc<T> {
    fn read(&self, node: &T::Node, offset: u64, buf: &mut [u8], now: Option<Timestamp>) -> Result<usize> {
        (**self).read(node, offset, buf, now)
    }

    fn write(
        &self,
        node: &T::Node,
        at: WriteAt,
        data: &[IoSlice<'_>],
        durability: Durability,
        now: Timestamp,
    ) -> Result<u64> {
        (**self).write(node, at, data, durability, now)
    }

    fn goes_to_disk(&self, node: &T::Node, offset: u64, len: u64) -> bool {
        (**self).goes_to_disk(node, offset, len)
    }

    fn accepted(&self, node: &T::Node, offset: u64, len: u64) {
        (**self).accepted(node, offset, len);
    }

    fn expect_write(&self, node: &T::Node) -> Result<()> {
        (**self).expect_write(node)
    }

    fn give_up_dram(&self) {
        (**self).give_up_dram();
    }

    fn fallocate(
        &self,
        node: &T::Node,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        now: Timestamp,
    ) -> Result<()> {
        (**self).fallocate(node, mode, offset, len, now)
    }

    fn seek(&self, node: &T::Node, offset: u64, to: SeekTo) -> Result<u64> {
        (**self).seek(node, offset, to)
    }

    fn write_unit(&self) -> u64 {
        (**self).write_unit()
    }

    fn sync(&self, node: &T::Node) -> Result<()> {
        (**self).sync(node)
    }

    fn closed(&self, node: &T::Node) -> Result<()> {
        (**self).closed(node)
    }

    fn sync_all(&self) -> Result<()> {
        (**self).sync_all()
    }
}

impl<T: Extents> Extents for Arc<T> {
    fn resolve(&self, node: &T::Node, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>> {
        (**self).resolve(node, start, len)
    }

    fn pin(&self, node: &T::Node, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>> {
        (**self).pin(node, start, len)
    }

    fn unpin(&self, node: &T::Node) {
        (**self).unpin(node);
    }

    fn promise_cost(&self) -> PromiseCost {
        (**self).promise_cost()
    }

    fn reserve(&self, blocks: u64) -> Result<()> {
        (**self).reserve(blocks)
    }

    fn release(&self, blocks: u64) {
        (**self).release(blocks);
    }

    fn stat(&self) -> FsStat {
        (**self).stat()
    }

    fn index_bytes(&self) -> u64 {
        (**self).index_bytes()
    }

    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }
}
