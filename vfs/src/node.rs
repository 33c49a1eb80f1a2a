//! The file system over a layout, and contents by node.

use std::io::IoSlice;
use std::ops::ControlFlow;

use nacre_engine::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use nacre_engine::sync::{Mutex, MutexGuard};
use nacre_engine::{
    DirEntry, Durability, FallocateMode, FileKind, FsStat, InodeId, Kind, Result, SeekTo, SetAttr, Timestamp,
    WriteAt,
};
use rustix::time::{ClockId, clock_gettime};

use crate::Layout;
use crate::attributes::Lost;
use crate::caller::{Caller, WANT_READ};
use crate::xattr::CAPABILITY;

/// The number of locks for attribute changes that depend on old values. An inode takes the lock of its number.
const ATTRIBUTE_LOCKS: usize = 64;

/// The options of a [`Vfs`].
#[derive(Debug, Clone, Copy, Default)]
pub struct VfsOptions {
    /// Refuse every change.
    pub read_only: bool,
    /// Never update atime.
    pub no_atime: bool,
}

/// A file system: the rules of names and permissions over one layout.
pub struct Vfs<L: Layout> {
    pub(crate) layout: L,
    options: VfsOptions,
    /// The options that may change at run time, see [`Vfs::remount`].
    read_only: AtomicBool,
    no_atime: AtomicBool,
    /// Held, so that absolute paths do not count references on a node that every thread uses.
    pub(crate) root: L::Node,
    attribute_locks: Box<[Mutex<()>]>,
    /// Grows when a file may have got set-id bits or capabilities that a write must remove. Handles store the value at
    /// which they found none to remove.
    privilege_epoch: AtomicU64,
}

impl<L: Layout> Vfs<L> {
    /// A file system over this layout.
    pub fn new(layout: L, options: VfsOptions) -> Vfs<L> {
        Vfs {
            root: layout.root(),
            layout,
            options,
            read_only: AtomicBool::new(options.read_only),
            no_atime: AtomicBool::new(options.no_atime),
            attribute_locks: (0..ATTRIBUTE_LOCKS).map(|_| Mutex::new(())).collect(),
            privilege_epoch: AtomicU64::new(1),
        }
    }

    /// The layout below.
    pub fn layout(&self) -> &L {
        &self.layout
    }

    /// Returns the layout, to be unmounted. The caller has dropped all nodes.
    pub fn into_layout(self) -> L {
        let Vfs { layout, root, .. } = self;
        drop(root);
        layout
    }

    /// The options at the beginning.
    pub fn options(&self) -> &VfsOptions {
        &self.options
    }

    /// Changes the options. Operations under way keep the old ones.
    pub fn remount(&self, options: VfsOptions) {
        self.read_only.store(options.read_only, Ordering::Relaxed);
        self.no_atime.store(options.no_atime, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }

    /// The root directory.
    pub fn root(&self) -> &L::Node {
        &self.root
    }

    /// The identity of a held inode.
    pub fn id(&self, node: &L::Node) -> InodeId {
        self.layout.id(node)
    }

    /// The kind of a held inode.
    pub fn kind(&self, node: &L::Node) -> FileKind {
        self.layout.kind(node)
    }

    /// The time stamp of operations: the last tick of the kernel, which costs no system call.
    #[inline]
    pub fn now(&self) -> Timestamp {
        let time = clock_gettime(ClockId::RealtimeCoarse);
        Timestamp::new(time.tv_sec, time.tv_nsec as u32)
    }

    #[inline]
    pub(crate) fn writable(&self) -> Result<()> {
        if self.is_read_only() { Err(Kind::ReadOnly.into()) } else { Ok(()) }
    }

    /// Serialises attribute changes of this inode that depend on old values.
    pub(crate) fn attribute_lock(&self, node: &L::Node) -> MutexGuard<'_, ()> {
        let number = self.layout.id(node).number;
        self.attribute_locks[(number % ATTRIBUTE_LOCKS as u64) as usize].lock()
    }

    pub(crate) fn privilege_epoch(&self) -> u64 {
        self.privilege_epoch.load(Ordering::Acquire)
    }

    pub(crate) fn raise_privilege_epoch(&self) {
        self.privilege_epoch.fetch_add(1, Ordering::Release);
    }

    #[inline]
    pub(crate) fn require_regular(&self, node: &L::Node) -> Result<()> {
        match self.layout.kind(node) {
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(Kind::IsDirectory.into()),
            _ => Err(Kind::InvalidInput.into()),
        }
    }

    /// Reads up to `buf.len()` bytes at `offset`. The count is smaller only at the end of the file.
    #[inline]
    pub fn read(&self, node: &L::Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.require_regular(node)?;
        self.layout.read(node, offset, buf, self.stamps().then(|| self.now()))
    }

    /// The same without an update of atime (O_NOATIME).
    pub fn read_unnoticed(&self, node: &L::Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.require_regular(node)?;
        self.layout.read(node, offset, buf, None)
    }

    /// Whether reading updates atime.
    #[inline]
    fn stamps(&self) -> bool {
        !self.no_atime.load(Ordering::Relaxed) && !self.is_read_only()
    }

    fn note_read(&self, node: &L::Node) {
        if self.stamps() {
            self.layout.note_read(node, self.now());
        }
    }

    /// Writes all of `data` as one operation, and returns its offset.
    ///
    /// Removes file capabilities. Removes set-id bits with `kill_suidgid`, or if the caller's permissions are to be
    /// checked and it is not privileged.
    pub fn write(
        &self,
        caller: &Caller<'_>,
        node: &L::Node,
        at: WriteAt,
        data: &[IoSlice<'_>],
        durability: Durability,
        kill_suidgid: bool,
    ) -> Result<u64> {
        self.writable()?;
        self.require_regular(node)?;
        self.drop_privileges_by(caller, node, kill_suidgid)?;
        self.write_content(node, at, data, durability)
    }

    /// Writes to a regular file of a writable file system, without a check of its set-id bits and capabilities.
    #[inline]
    pub(crate) fn write_content(
        &self,
        node: &L::Node,
        at: WriteAt,
        data: &[IoSlice<'_>],
        durability: Durability,
    ) -> Result<u64> {
        if data.iter().all(|slice| slice.is_empty()) {
            return match at {
                WriteAt::Offset(offset) => Ok(offset),
                WriteAt::End => self.layout.size(node),
            };
        }
        self.layout.write(node, at, data, durability, self.now())
    }

    /// Writes pages of a regular file that a kernel accepted before, from a mapping or its page cache. The caller is
    /// unknown, and file capabilities go. The time is that of the write, if known.
    pub fn write_pages(
        &self,
        node: &L::Node,
        offset: u64,
        data: &[IoSlice<'_>],
        durability: Durability,
        time: Option<Timestamp>,
    ) -> Result<()> {
        self.writable()?;
        self.require_regular(node)?;
        self.drop_capability(node)?;
        let time = time.unwrap_or_else(|| self.now());
        self.layout.write(node, WriteAt::Offset(offset), data, durability, time).map(drop)
    }

    /// Removes file capabilities before a change of content, and the set-id bits that the caller loses or that are
    /// asked for.
    fn drop_privileges_by(&self, caller: &Caller<'_>, node: &L::Node, kill_suidgid: bool) -> Result<()> {
        let lost = if kill_suidgid { self.lost_to(caller, node)? } else { self.lost_by(caller, node)? };
        self.drop_privileges(node, lost)
    }

    /// The set-id bits that changes of content by this caller remove, if the file system checks permissions itself.
    pub(crate) fn lost_by(&self, caller: &Caller<'_>, node: &L::Node) -> Result<Lost> {
        if caller.restricted() { self.lost_to(caller, node) } else { Ok(Lost::Nothing) }
    }

    fn lost_to(&self, caller: &Caller<'_>, node: &L::Node) -> Result<Lost> {
        Ok(Lost::by(caller, self.layout.getattr(node)?.gid))
    }

    /// The same, for known bits.
    pub(crate) fn drop_privileges(&self, node: &L::Node, lost: Lost) -> Result<()> {
        if lost != Lost::Nothing {
            let mode = self.layout.getattr(node)?.mode;
            if lost.from(mode) != mode {
                let _guard = self.attribute_lock(node);
                let mode = lost.from(self.layout.getattr(node)?.mode);
                self.layout.setattr(node, &SetAttr { mode: Some(mode), ..SetAttr::default() }, self.now())?;
            }
        }
        self.drop_capability(node)
    }

    /// Removes file capabilities.
    pub(crate) fn drop_capability(&self, node: &L::Node) -> Result<()> {
        match self.layout.get_xattr(node, CAPABILITY) {
            Ok(_) => match self.layout.remove_xattr(node, CAPABILITY, self.now()) {
                Err(error) if error.kind() != Kind::NoAttribute => Err(error),
                _ => Ok(()),
            },
            Err(error) if matches!(error.kind(), Kind::NoAttribute | Kind::Unsupported) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Allocates, frees or zeroes a range of a regular file. Set-id bits and capabilities go as with [`Vfs::write`],
    /// with the same meaning of `kill_suidgid`.
    pub fn fallocate(
        &self,
        caller: &Caller<'_>,
        node: &L::Node,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        kill_suidgid: bool,
    ) -> Result<()> {
        self.writable()?;
        self.require_regular(node)?;
        if len == 0 {
            return Err(Kind::InvalidInput.into());
        }
        if offset.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Kind::FileTooBig.into());
        }
        self.drop_privileges_by(caller, node, kill_suidgid)?;
        self.layout.fallocate(node, mode, offset, len, self.now())
    }

    /// The next data or hole at or after `offset`; [`NoSuchOffset`](Kind::NoSuchOffset) beyond the last.
    pub fn seek(&self, node: &L::Node, offset: u64, to: SeekTo) -> Result<u64> {
        if self.layout.kind(node) != FileKind::Regular {
            return Err(Kind::InvalidInput.into());
        }
        self.layout.seek(node, offset, to)
    }

    /// Makes everything about this inode durable.
    pub fn sync(&self, node: &L::Node) -> Result<()> {
        self.layout.sync(node)
    }

    /// A handle that could write was closed; see [`nacre_engine::Data::closed`].
    pub fn closed(&self, node: &L::Node) -> Result<()> {
        self.layout.closed(node)
    }

    /// Makes everything durable.
    pub fn sync_all(&self) -> Result<()> {
        self.layout.sync_all()
    }

    /// Reports the entries after `cookie` (0 for the first) until `visit` breaks: first `.` and `..`, with the cookies
    /// 1 and 2, then those of the layout. `visit` must not use this directory.
    pub fn read_dir(
        &self,
        caller: &Caller<'_>,
        dir: &L::Node,
        cookie: u64,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        if self.layout.kind(dir) != FileKind::Directory {
            return Err(Kind::NotDirectory.into());
        }
        self.permit(caller, dir, WANT_READ)?;
        self.read_dir_content(dir, cookie, visit)
    }

    pub(crate) fn read_dir_content(
        &self,
        dir: &L::Node,
        cookie: u64,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.note_read(dir);
        let kind = FileKind::Directory;
        if cookie == 0 {
            let dot = DirEntry { cookie: 1, name: b".", id: self.layout.id(dir), kind };
            if visit(dot).is_break() {
                return Ok(());
            }
        }
        if cookie <= 1 {
            let parent = self.layout.parent(dir)?;
            let dots = DirEntry { cookie: 2, name: b"..", id: self.layout.id(&parent), kind };
            if visit(dots).is_break() {
                return Ok(());
            }
        }
        self.layout.read_dir(dir, if cookie <= 2 { 0 } else { cookie }, visit)
    }

    /// The target of a symbolic link; [`InvalidInput`](Kind::InvalidInput) for other inodes.
    pub fn read_link(&self, node: &L::Node) -> Result<Vec<u8>> {
        if self.layout.kind(node) != FileKind::Symlink {
            return Err(Kind::InvalidInput.into());
        }
        self.note_read(node);
        self.layout.read_link(node)
    }

    /// Space statistics.
    pub fn stat(&self) -> FsStat {
        self.layout.stat()
    }
}
