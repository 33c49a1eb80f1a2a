//! The reference model with one flaw on purpose.

use std::io::IoSlice;
use std::ops::ControlFlow;

use nacre_engine::{
    Attr, Capabilities, Data, DirEntry, Durability, Extents, FallocateMode, FileBlock, FileKind, FsStat,
    InodeId, Names, NewInode, PlacedExtent, PromiseCost, RenameMode, Result, SeekTo, SetAttr, Timestamp,
    WriteAt, XattrMode,
};

use super::{MemLayout, MemNode};

/// The flaw of a [`Mutant`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// An exchange replaces the target.
    ExchangeReplaces,
    /// A rename without replacing replaces.
    NoReplaceReplaces,
    /// A write over two blocks or more loses its last byte.
    WriteLosesLastByte,
    /// Punching a hole takes whole blocks, also those that the range only touches.
    PunchRoundsOut,
    /// Removing an extended attribute does nothing.
    XattrStays,
    /// A second link of the same file is a success and does nothing.
    LinkForgotten,
    /// Reading a directory misses its fourth entry.
    ReadDirMisses,
    /// Changing the owner sets the group to 0.
    ChownLosesGroup,
    /// An append goes to the end of the last block.
    AppendRoundsUp,
}

impl Flaw {
    /// All of them.
    pub const ALL: [Flaw; 9] = [
        Flaw::ExchangeReplaces,
        Flaw::NoReplaceReplaces,
        Flaw::WriteLosesLastByte,
        Flaw::PunchRoundsOut,
        Flaw::XattrStays,
        Flaw::LinkForgotten,
        Flaw::ReadDirMisses,
        Flaw::ChownLosesGroup,
        Flaw::AppendRoundsUp,
    ];
}

/// The reference model with one flaw, to prove that a comparison with the model can fail.
pub struct Mutant {
    inner: MemLayout,
    flaw: Flaw,
}

impl Mutant {
    /// A flawed file system.
    pub fn new(inner: MemLayout, flaw: Flaw) -> Mutant {
        Mutant { inner, flaw }
    }

    /// As [`MemLayout::remount`].
    #[must_use]
    pub fn remount(&self) -> Mutant {
        Mutant { inner: self.inner.remount(), flaw: self.flaw }
    }
}

impl Names for Mutant {
    type Node = MemNode;

    fn root(&self) -> MemNode {
        self.inner.root()
    }

    fn node(&self, id: InodeId) -> Result<MemNode> {
        self.inner.node(id)
    }

    fn node_by_number(&self, number: u64) -> Result<MemNode> {
        self.inner.node_by_number(number)
    }

    fn id(&self, node: &MemNode) -> InodeId {
        self.inner.id(node)
    }

    fn kind(&self, node: &MemNode) -> FileKind {
        self.inner.kind(node)
    }

    fn lookup(&self, dir: &MemNode, name: &[u8]) -> Result<MemNode> {
        self.inner.lookup(dir, name)
    }

    fn parent(&self, dir: &MemNode) -> Result<MemNode> {
        self.inner.parent(dir)
    }

    fn create(&self, dir: &MemNode, name: &[u8], new: &NewInode<'_>) -> Result<MemNode> {
        self.inner.create(dir, name, new)
    }

    fn create_unnamed(&self, new: &NewInode<'_>) -> Result<MemNode> {
        self.inner.create_unnamed(new)
    }

    fn link(&self, node: &MemNode, dir: &MemNode, name: &[u8], now: Timestamp) -> Result<()> {
        if self.flaw == Flaw::LinkForgotten && self.getattr(node)?.links > 1 {
            return Ok(());
        }
        self.inner.link(node, dir, name, now)
    }

    fn unlink(&self, dir: &MemNode, name: &[u8], now: Timestamp) -> Result<()> {
        self.inner.unlink(dir, name, now)
    }

    fn rmdir(&self, dir: &MemNode, name: &[u8], now: Timestamp) -> Result<()> {
        self.inner.rmdir(dir, name, now)
    }

    fn rename(
        &self,
        from_dir: &MemNode,
        from: &[u8],
        to_dir: &MemNode,
        to: &[u8],
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<()> {
        let mode = match (self.flaw, mode) {
            (Flaw::ExchangeReplaces, RenameMode::Exchange) => RenameMode::Replace,
            (Flaw::NoReplaceReplaces, RenameMode::NoReplace) => RenameMode::Replace,
            _ => mode,
        };
        self.inner.rename(from_dir, from, to_dir, to, mode, now)
    }

    fn read_dir(
        &self,
        dir: &MemNode,
        cookie: u64,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut position = 0;
        self.inner.read_dir(dir, cookie, &mut |entry| {
            position += 1;
            if self.flaw == Flaw::ReadDirMisses && position == 4 {
                ControlFlow::Continue(())
            } else {
                visit(entry)
            }
        })
    }

    fn read_link(&self, node: &MemNode) -> Result<Vec<u8>> {
        self.inner.read_link(node)
    }

    fn note_read(&self, node: &MemNode, now: Timestamp) {
        self.inner.note_read(node, now);
    }

    fn has_guarded(&self) -> bool {
        self.inner.has_guarded()
    }

    fn getattr(&self, node: &MemNode) -> Result<Attr> {
        self.inner.getattr(node)
    }

    fn setattr(&self, node: &MemNode, change: &SetAttr, now: Timestamp) -> Result<Attr> {
        let mut change = *change;
        if self.flaw == Flaw::ChownLosesGroup && change.uid.is_some() {
            change.gid = Some(0);
        }
        self.inner.setattr(node, &change, now)
    }

    fn get_xattr(&self, node: &MemNode, name: &[u8]) -> Result<Vec<u8>> {
        self.inner.get_xattr(node, name)
    }

    fn list_xattrs(&self, node: &MemNode) -> Result<Vec<Vec<u8>>> {
        self.inner.list_xattrs(node)
    }

    fn set_xattr(
        &self,
        node: &MemNode,
        name: &[u8],
        value: &[u8],
        how: XattrMode,
        mode: Option<u32>,
        now: Timestamp,
    ) -> Result<()> {
        self.inner.set_xattr(node, name, value, how, mode, now)
    }

    fn remove_xattr(&self, node: &MemNode, name: &[u8], now: Timestamp) -> Result<()> {
        if self.flaw == Flaw::XattrStays {
            return self.inner.get_xattr(node, name).map(|_| ());
        }
        self.inner.remove_xattr(node, name, now)
    }
}

impl Data for Mutant {
    fn read(&self, node: &MemNode, offset: u64, buf: &mut [u8], now: Option<Timestamp>) -> Result<usize> {
        self.inner.read(node, offset, buf, now)
    }

    fn write(
        &self,
        node: &MemNode,
        at: WriteAt,
        data: &[IoSlice<'_>],
        durability: Durability,
        now: Timestamp,
    ) -> Result<u64> {
        let at = match (self.flaw, at) {
            (Flaw::AppendRoundsUp, WriteAt::End) => {
                WriteAt::Offset(self.getattr(node)?.size.next_multiple_of(nacre_engine::BLOCK_SIZE))
            }
            _ => at,
        };
        let mut bytes: Vec<u8> = data.iter().flat_map(|slice| slice.iter().copied()).collect();
        if self.flaw == Flaw::WriteLosesLastByte && bytes.len() as u64 > nacre_engine::BLOCK_SIZE {
            bytes.pop();
        }
        self.inner.write(node, at, &[IoSlice::new(&bytes)], durability, now)
    }

    fn fallocate(
        &self,
        node: &MemNode,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        now: Timestamp,
    ) -> Result<()> {
        let (mut start, mut end) = (offset, offset.saturating_add(len));
        if self.flaw == Flaw::PunchRoundsOut && mode == FallocateMode::PunchHole {
            start -= start % nacre_engine::BLOCK_SIZE;
            end = end.next_multiple_of(nacre_engine::BLOCK_SIZE);
        }
        self.inner.fallocate(node, mode, start, end - start, now)
    }

    fn seek(&self, node: &MemNode, offset: u64, to: SeekTo) -> Result<u64> {
        self.inner.seek(node, offset, to)
    }

    fn write_unit(&self) -> u64 {
        self.inner.write_unit()
    }

    fn sync(&self, node: &MemNode) -> Result<()> {
        self.inner.sync(node)
    }

    fn sync_all(&self) -> Result<()> {
        self.inner.sync_all()
    }
}

impl Extents for Mutant {
    fn resolve(&self, node: &MemNode, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>> {
        self.inner.resolve(node, start, len)
    }

    fn promise_cost(&self) -> PromiseCost {
        self.inner.promise_cost()
    }

    fn reserve(&self, blocks: u64) -> Result<()> {
        self.inner.reserve(blocks)
    }

    fn release(&self, blocks: u64) {
        self.inner.release(blocks);
    }

    fn stat(&self) -> FsStat {
        self.inner.stat()
    }

    fn index_bytes(&self) -> u64 {
        self.inner.index_bytes()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
}
