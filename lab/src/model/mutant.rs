//! The reference model with one flaw on purpose.

use std::io::IoSlice;
use std::ops::ControlFlow;

use nacre_engine::{
    Attr, Data, DirEntry, Durability, Extents, FallocateMode, Names, RenameMode, Result, SetAttr, Timestamp,
    WriteAt, forward_data, forward_extents, forward_names,
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

macro_rules! inner {
    ($this:ident, |$layout:ident $(, $node:ident)*| $body:expr) => {{
        let $layout = &$this.inner;
        $body
    }};
}

impl Names for Mutant {
    type Node = MemNode;

    fn root(&self) -> MemNode {
        self.inner.root()
    }

    forward_names!(inner, inner:
        node node_by_number id kind let_go park unpark inode_cache lookup parent create create_unnamed unlink rmdir
        read_link note_read has_guarded getattr size getattr_at get_xattr list_xattrs set_xattr);

    fn link(&self, node: &MemNode, dir: &MemNode, name: &[u8], now: Timestamp) -> Result<()> {
        if self.flaw == Flaw::LinkForgotten && self.getattr(node)?.links > 1 {
            return Ok(());
        }
        self.inner.link(node, dir, name, now)
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

    fn setattr(&self, node: &MemNode, change: &SetAttr, now: Timestamp) -> Result<Attr> {
        let mut change = *change;
        if self.flaw == Flaw::ChownLosesGroup && change.uid.is_some() {
            change.gid = Some(0);
        }
        self.inner.setattr(node, &change, now)
    }

    fn remove_xattr(&self, node: &MemNode, name: &[u8], now: Timestamp) -> Result<()> {
        if self.flaw == Flaw::XattrStays {
            return self.inner.get_xattr(node, name).map(|_| ());
        }
        self.inner.remove_xattr(node, name, now)
    }
}

impl Data for Mutant {
    forward_data!(inner, inner: read seek sync closed sync_all);

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
                WriteAt::Offset(self.size(node)?.next_multiple_of(nacre_engine::BLOCK_SIZE))
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
}

impl Extents for Mutant {
    forward_extents!(inner, inner:
        resolve pin unpin stat index_bytes capabilities);
}
