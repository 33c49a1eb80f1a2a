//! The operations of the contract that every layout answers alike: a question goes to the method of the same name of
//! `self.shared`, and a change through `self.change`, which says whether it may happen. A layout writes
//! beside the macro the operations that it answers in its own way.
//!
//! A layout brings the field `shared`, with such a method for each operation, nodes with a field `inode`, and `change`.
//! `CAPABILITIES` are those of the layout. `Purpose` is its own: what a write takes its space for.

use std::ops::ControlFlow;

use nacre_engine::{DirEntry, FileKind, InodeId, Result};
use smallvec::SmallVec;

/// Methods of [`Names`](nacre_engine::Names): the root, identities, names, attributes.
#[macro_export]
macro_rules! names_by_inode {
    () => {
        fn root(&self) -> Self::Node {
            self.root.clone().unwrap_or_else(|| {
                unreachable!("the root is held until the unmount consumes the file system")
            })
        }

        fn id(&self, node: &Self::Node) -> ::nacre_engine::InodeId {
            node.inode.id()
        }

        fn kind(&self, node: &Self::Node) -> ::nacre_engine::FileKind {
            node.inode.kind
        }

        fn lookup(&self, dir: &Self::Node, name: &[u8]) -> ::nacre_engine::Result<Self::Node> {
            self.shared.lookup(&dir.inode, name)
        }

        fn create(
            &self,
            dir: &Self::Node,
            name: &[u8],
            new: &::nacre_engine::NewInode<'_>,
        ) -> ::nacre_engine::Result<Self::Node> {
            self.change(|fs| fs.create(&dir.inode, name, new))
        }

        fn create_unnamed(&self, new: &::nacre_engine::NewInode<'_>) -> ::nacre_engine::Result<Self::Node> {
            self.change(|fs| fs.create_unnamed(new))
        }

        fn link(
            &self,
            node: &Self::Node,
            dir: &Self::Node,
            name: &[u8],
            now: ::nacre_engine::Timestamp,
        ) -> ::nacre_engine::Result<()> {
            self.change(|fs| fs.link(&node.inode, &dir.inode, name, now))
        }

        fn unlink(
            &self,
            dir: &Self::Node,
            name: &[u8],
            now: ::nacre_engine::Timestamp,
        ) -> ::nacre_engine::Result<()> {
            self.change(|fs| fs.unlink(&dir.inode, name, now))
        }

        fn rmdir(
            &self,
            dir: &Self::Node,
            name: &[u8],
            now: ::nacre_engine::Timestamp,
        ) -> ::nacre_engine::Result<()> {
            self.change(|fs| fs.rmdir(&dir.inode, name, now))
        }

        fn rename(
            &self,
            from_dir: &Self::Node,
            from: &[u8],
            to_dir: &Self::Node,
            to: &[u8],
            mode: ::nacre_engine::RenameMode,
            now: ::nacre_engine::Timestamp,
        ) -> ::nacre_engine::Result<()> {
            let from = $crate::rules::Side { dir: &from_dir.inode, name: from };
            let to = $crate::rules::Side { dir: &to_dir.inode, name: to };
            self.change(|fs| fs.rename(&$crate::rules::Asked { from, to, mode, now }))
        }

        fn setattr(
            &self,
            node: &Self::Node,
            change: &::nacre_engine::SetAttr,
            now: ::nacre_engine::Timestamp,
        ) -> ::nacre_engine::Result<::nacre_engine::Attr> {
            self.change(|fs| fs.setattr(&node.inode, change, now))
        }

        fn get_xattr(&self, node: &Self::Node, name: &[u8]) -> ::nacre_engine::Result<Vec<u8>> {
            self.shared.get_xattr(&node.inode, name)
        }

        fn list_xattrs(&self, node: &Self::Node) -> ::nacre_engine::Result<Vec<Vec<u8>>> {
            self.shared.list_xattrs(&node.inode)
        }

        fn set_xattr(
            &self,
            node: &Self::Node,
            name: &[u8],
            value: &[u8],
            how: ::nacre_engine::XattrMode,
            mode: Option<u32>,
            now: ::nacre_engine::Timestamp,
        ) -> ::nacre_engine::Result<()> {
            self.change(|fs| {
                $crate::rules::check_xattr(name, value, CAPABILITIES.max_xattr_size)?;
                fs.change_xattrs(&node.inode, name, Some((value, how)), mode, now)
            })
        }

        fn remove_xattr(
            &self,
            node: &Self::Node,
            name: &[u8],
            now: ::nacre_engine::Timestamp,
        ) -> ::nacre_engine::Result<()> {
            self.change(|fs| {
                $crate::rules::check_xattr(name, &[], CAPABILITIES.max_xattr_size)?;
                fs.change_xattrs(&node.inode, name, None, None, now)
            })
        }
    };
}

/// Methods of [`Names`](nacre_engine::Names) of a layout that keeps inodes in DRAM: holds, and attributes from there.
#[macro_export]
macro_rules! names_of_loaded_inodes {
    () => {
        fn node(&self, id: ::nacre_engine::InodeId) -> ::nacre_engine::Result<Self::Node> {
            self.shared.hold_id(id)
        }

        fn node_by_number(&self, number: u64) -> ::nacre_engine::Result<Self::Node> {
            self.shared.hold(number)
        }

        fn let_go(&self, node: Self::Node) {
            self.shared.let_go(node);
        }

        fn park(&self, node: Self::Node) -> Option<Self::Node> {
            self.shared.park(node);
            None
        }

        fn unpark(&self, number: u64) {
            self.shared.unpark(number);
        }

        fn note_read(&self, node: &Self::Node, now: ::nacre_engine::Timestamp) {
            self.shared.note_read(&node.inode, now);
        }

        fn has_guarded(&self) -> bool {
            self.shared.superblock.lock().has_guarded()
        }

        fn size(&self, node: &Self::Node) -> ::nacre_engine::Result<u64> {
            Ok(node.inode.size())
        }

        fn getattr(&self, node: &Self::Node) -> ::nacre_engine::Result<::nacre_engine::Attr> {
            Ok(node.inode.attr())
        }
    };
}

/// Methods of [`Names`](nacre_engine::Names) of a layout with inodes in a table.
#[macro_export]
macro_rules! names_of_table {
    () => {
        fn inode_cache(&self) -> ::nacre_engine::InodeCache {
            self.shared.table.eviction.state(self.shared.table.in_use())
        }

        fn parent(&self, dir: &Self::Node) -> ::nacre_engine::Result<Self::Node> {
            self.shared.hold($crate::rules::InodeFacts::parent(&*dir.inode)?)
        }

        fn read_link(&self, node: &Self::Node) -> ::nacre_engine::Result<Vec<u8>> {
            self.shared.read_link(&node.inode)
        }

        fn getattr_at(&self, dir: &Self::Node, name: &[u8]) -> ::nacre_engine::Result<::nacre_engine::Attr> {
            self.getattr(&self.lookup(dir, name)?)
        }
    };
}

/// Syncs of [`Data`](nacre_engine::Data) of a layout with inodes in a table.
#[macro_export]
macro_rules! syncs_of_table {
    () => {
        fn sync(&self, node: &Self::Node) -> ::nacre_engine::Result<()> {
            self.shared.persist_lazy(&node.inode)
        }

        fn sync_all(&self) -> ::nacre_engine::Result<()> {
            let lazy = self.shared.table.lazy();
            let mut named = lazy.iter().filter(|inode| inode.links() > 0);
            named.try_for_each(|inode| self.shared.persist_lazy(inode))
        }
    };
}

/// Methods of a mounted file system, before changes of its state of the type `$Shared`.
#[macro_export]
macro_rules! changes_if_writable {
    ($Shared:ty) => {
        pub(crate) fn writable(&self) -> ::nacre_engine::Result<&$Shared> {
            self.shared.check_writable()?;
            Ok(&self.shared)
        }

        /// Changes the file system, if it may be changed.
        pub(crate) fn change<T>(
            &self,
            act: impl FnOnce(&$Shared) -> ::nacre_engine::Result<T>,
        ) -> ::nacre_engine::Result<T> {
            act(self.writable()?)
        }
    };
}

/// Methods of [`Data`](nacre_engine::Data): everything but syncs.
#[macro_export]
macro_rules! data_by_inode {
    ($Purpose:ident) => {
        fn read(
            &self,
            node: &Self::Node,
            offset: u64,
            buf: &mut [u8],
            now: Option<::nacre_engine::Timestamp>,
        ) -> ::nacre_engine::Result<usize> {
            self.shared.read(&node.inode, offset, buf, now)
        }

        fn write(
            &self,
            node: &Self::Node,
            at: ::nacre_engine::WriteAt,
            data: &[::std::io::IoSlice<'_>],
            durability: ::nacre_engine::Durability,
            now: ::nacre_engine::Timestamp,
        ) -> ::nacre_engine::Result<u64> {
            self.change(|fs| fs.write(&node.inode, at, data, $Purpose::of_write(durability), now))
        }

        fn fallocate(
            &self,
            node: &Self::Node,
            mode: ::nacre_engine::FallocateMode,
            offset: u64,
            len: u64,
            now: ::nacre_engine::Timestamp,
        ) -> ::nacre_engine::Result<()> {
            self.change(|fs| fs.fallocate(&node.inode, mode, offset, len, now))
        }

        fn seek(
            &self,
            node: &Self::Node,
            offset: u64,
            to: ::nacre_engine::SeekTo,
        ) -> ::nacre_engine::Result<u64> {
            self.shared.seek(&node.inode, offset, to)
        }

        fn closed(&self, _: &Self::Node) -> ::nacre_engine::Result<()> {
            Ok(())
        }
    };
}

/// Methods of [`Extents`](nacre_engine::Extents): where data is, and that it stays there.
#[macro_export]
macro_rules! extents_by_inode {
    () => {
        fn resolve(
            &self,
            node: &Self::Node,
            start: ::nacre_engine::FileBlock,
            len: u64,
        ) -> ::nacre_engine::Result<Vec<::nacre_engine::PlacedExtent>> {
            self.shared.resolve(&node.inode, start, len)
        }

        fn pin(
            &self,
            node: &Self::Node,
            start: ::nacre_engine::FileBlock,
            len: u64,
        ) -> ::nacre_engine::Result<Vec<::nacre_engine::PlacedExtent>> {
            self.shared.pin(&node.inode, start, len)
        }
    };
}

/// Methods of [`BelowBuffer`](nacre_engine::BelowBuffer): writes of what was accepted before.
#[macro_export]
macro_rules! writes_back_by_inode {
    ($Purpose:ident) => {
        fn write_back(
            &self,
            node: &Self::Node,
            offset: u64,
            data: &[::std::io::IoSlice<'_>],
            _: &::nacre_engine::Reservation,
            now: ::nacre_engine::Timestamp,
        ) -> ::nacre_engine::Result<()> {
            let at = ::nacre_engine::WriteAt::Offset(offset);
            self.change(|fs| fs.write(&node.inode, at, data, $Purpose::Reserved, now)).map(drop)
        }

        fn write_back_times(
            &self,
            node: &Self::Node,
            mtime: ::nacre_engine::Timestamp,
            atime: Option<::nacre_engine::Timestamp>,
            _: &::nacre_engine::Reservation,
            now: ::nacre_engine::Timestamp,
        ) -> ::nacre_engine::Result<()> {
            self.change(|fs| fs.write_back_times(&node.inode, mtime, atime, now))
        }
    };
}

/// One entry of a directory that is read.
pub struct Listed {
    /// Where to go on behind it.
    pub cookie: u64,
    /// Its name.
    pub name: SmallVec<[u8; 40]>,
    /// The inode that it leads to.
    pub id: InodeId,
    /// The kind of that inode.
    pub kind: FileKind,
}

impl Listed {
    fn entry(&self) -> DirEntry<'_> {
        DirEntry { cookie: self.cookie, name: &self.name, id: self.id, kind: self.kind }
    }
}

/// Entries of a directory that are read under its lock at a time.
const BATCH: usize = 128;

/// Visits the entries behind a cookie. `read` reads as many as it is told to behind a cookie, or all that are left. It
/// locks the directory, and no lock is held for a visit.
pub fn read_dir(
    cookie: u64,
    mut read: impl FnMut(u64, usize) -> Result<Vec<Listed>>,
    visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
) -> Result<()> {
    let mut after = cookie;
    loop {
        let batch = read(after, BATCH)?;
        for listed in &batch {
            after = listed.cookie;
            if visit(listed.entry()).is_break() {
                return Ok(());
            }
        }
        if batch.len() < BATCH {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use nacre_engine::{FileKind, InodeId};

    use super::{BATCH, Listed, read_dir};

    /// The entries from `after` on, of so many.
    fn entries(count: u64, after: u64, limit: usize) -> Vec<Listed> {
        let listed = |cookie| Listed {
            cookie,
            name: cookie.to_string().into_bytes().into(),
            id: InodeId { number: cookie, generation: 1, volume: 0 },
            kind: FileKind::Regular,
        };
        (after + 1..=count).take(limit).map(listed).collect()
    }

    #[test]
    fn each_entry_is_visited_once_until_the_visitor_has_enough() {
        for (count, enough) in [(0, 9), (5, 9), (BATCH as u64, 999), (3 * BATCH as u64 + 1, 999), (500, 300)]
        {
            let mut seen = Vec::new();
            let mut visit = |entry: nacre_engine::DirEntry<'_>| {
                assert_eq!(entry.name, entry.cookie.to_string().as_bytes());
                seen.push(entry.cookie);
                if seen.len() == enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            read_dir(2, |after, limit| Ok(entries(count, after, limit)), &mut visit).unwrap();
            let expected: Vec<u64> = (3..=count).take(enough).collect();
            assert_eq!(seen, expected);
        }
    }
}
