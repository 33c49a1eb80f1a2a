//! Open files.

use std::io::{IoSlice, IoSliceMut};
use std::ops::ControlFlow;

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicU64, Ordering};
use nacre_engine::{Attr, DirEntry, Durability, FallocateMode, FileKind, Kind, Result, SeekTo, WriteAt};

use crate::attributes::Lost;
use crate::caller::Caller;
use crate::open::OpenFlags;
use crate::{Layout, Vfs};

/// An open file: an inode, its open flags, and an offset for sequential use.
///
/// Reads and writes at offsets do not touch the shared offset. Sequential ones hold it while they run, so that two of
/// them never get the same bytes.
pub struct Handle<L: Layout> {
    node: L::Node,
    flags: OpenFlags,
    /// The set-id bits that a write removes: some if the opener's permissions were checked and it was not privileged.
    lost: Lost,
    /// The epoch of the file system at which this file had no bits to drop.
    nothing_to_drop: AtomicU64,
    offset: Mutex<u64>,
}

impl<L: Layout> Handle<L> {
    pub(crate) fn new(node: L::Node, flags: OpenFlags, lost: Lost) -> Handle<L> {
        Handle { node, flags, lost, nothing_to_drop: AtomicU64::new(0), offset: Mutex::new(0) }
    }

    /// The inode.
    pub fn node(&self) -> &L::Node {
        &self.node
    }

    /// The open flags.
    pub fn flags(&self) -> OpenFlags {
        self.flags
    }

    fn require_read(&self) -> Result<()> {
        if self.flags.read && !self.flags.path { Ok(()) } else { Err(Kind::BadHandle.into()) }
    }

    fn require_write(&self, vfs: &Vfs<L>) -> Result<()> {
        if !self.flags.writes() || self.flags.path {
            return Err(Kind::BadHandle.into());
        }
        vfs.writable()
    }

    /// Drops set-id bits and capabilities before a change of content. It costs nothing while no file got any.
    #[inline]
    fn drop_privileges(&self, vfs: &Vfs<L>) -> Result<()> {
        let epoch = vfs.privilege_epoch();
        if self.nothing_to_drop.load(Ordering::Relaxed) == epoch {
            return Ok(());
        }
        vfs.drop_privileges(&self.node, self.lost)?;
        self.nothing_to_drop.store(epoch, Ordering::Relaxed);
        Ok(())
    }

    fn durability(&self) -> Durability {
        if self.flags.sync || self.flags.dsync { Durability::Now } else { Durability::Lazy }
    }

    /// Reads up to `buf.len()` bytes at `offset`. The count is smaller only at the end of the file.
    #[inline]
    pub fn read_at(&self, vfs: &Vfs<L>, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.require_read()?;
        vfs.read(&self.node, offset, buf)
    }

    /// Reads into several buffers, one after the other.
    pub fn readv_at(&self, vfs: &Vfs<L>, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        self.require_read()?;
        let mut total = 0;
        for buf in bufs.iter_mut().filter(|buf| !buf.is_empty()) {
            let count = vfs.read(&self.node, offset + total as u64, buf)?;
            total += count;
            if count < buf.len() {
                break;
            }
        }
        Ok(total)
    }

    /// Writes all of `data` at `offset`, or at the end of a file that is open for appending, as one operation. Returns
    /// the number of bytes.
    #[inline]
    pub fn write_at(&self, vfs: &Vfs<L>, data: &[u8], offset: u64) -> Result<usize> {
        self.writev_at(vfs, &[IoSlice::new(data)], offset)
    }

    /// Writes several buffers, one after the other, as one operation.
    #[inline]
    pub fn writev_at(&self, vfs: &Vfs<L>, data: &[IoSlice<'_>], offset: u64) -> Result<usize> {
        let at = if self.flags.append { WriteAt::End } else { WriteAt::Offset(offset) };
        self.put(vfs, at, data).map(|(_, count)| count)
    }

    /// Writes at the end of the file at the time of the commit, and returns the offset of the data.
    pub fn append(&self, vfs: &Vfs<L>, data: &[IoSlice<'_>]) -> Result<u64> {
        self.put(vfs, WriteAt::End, data).map(|(offset, _)| offset)
    }

    #[inline]
    fn put(&self, vfs: &Vfs<L>, at: WriteAt, data: &[IoSlice<'_>]) -> Result<(u64, usize)> {
        self.require_write(vfs)?;
        vfs.require_regular(&self.node)?;
        self.drop_privileges(vfs)?;
        let offset = vfs.write_content(&self.node, at, data, self.durability())?;
        Ok((offset, data.iter().map(|slice| slice.len()).sum()))
    }

    /// Reads at the handle's offset and advances it.
    pub fn read(&self, vfs: &Vfs<L>, buf: &mut [u8]) -> Result<usize> {
        self.readv(vfs, &mut [IoSliceMut::new(buf)])
    }

    /// Reads into several buffers at the handle's offset and advances it.
    pub fn readv(&self, vfs: &Vfs<L>, bufs: &mut [IoSliceMut<'_>]) -> Result<usize> {
        let mut offset = self.offset.lock();
        let count = self.readv_at(vfs, bufs, *offset)?;
        *offset += count as u64;
        Ok(count)
    }

    /// Writes at the handle's offset, or at the end of a file that is open for appending, and advances it.
    pub fn write(&self, vfs: &Vfs<L>, data: &[u8]) -> Result<usize> {
        self.writev(vfs, &[IoSlice::new(data)])
    }

    /// Writes several buffers at the handle's offset and advances it.
    pub fn writev(&self, vfs: &Vfs<L>, data: &[IoSlice<'_>]) -> Result<usize> {
        let mut offset = self.offset.lock();
        let at = if self.flags.append { WriteAt::End } else { WriteAt::Offset(*offset) };
        let (start, count) = self.put(vfs, at, data)?;
        *offset = start + count as u64;
        Ok(count)
    }

    /// The handle's offset.
    pub fn offset(&self) -> u64 {
        *self.offset.lock()
    }

    /// Moves the handle's offset, which may lie beyond the end, and returns the new one.
    pub fn seek(&self, vfs: &Vfs<L>, to: std::io::SeekFrom) -> Result<u64> {
        if self.flags.path {
            return Err(Kind::BadHandle.into());
        }
        let mut offset = self.offset.lock();
        let (base, delta) = match to {
            std::io::SeekFrom::Start(offset) => (offset, 0),
            std::io::SeekFrom::Current(delta) => (*offset, delta),
            std::io::SeekFrom::End(delta) => (vfs.getattr(&self.node)?.size, delta),
        };
        let new = base.checked_add_signed(delta).filter(|new| *new <= i64::MAX as u64);
        *offset = new.ok_or(Kind::InvalidInput)?;
        Ok(*offset)
    }

    /// The next data or hole at or after `offset`.
    pub fn seek_content(&self, vfs: &Vfs<L>, offset: u64, to: SeekTo) -> Result<u64> {
        if self.flags.path {
            return Err(Kind::BadHandle.into());
        }
        vfs.seek(&self.node, offset, to)
    }

    /// Truncates or extends the file.
    pub fn set_len(&self, vfs: &Vfs<L>, size: u64) -> Result<()> {
        if !self.flags.writes() {
            return Err(Kind::InvalidInput.into());
        }
        vfs.set_len(&self.node, size, self.lost)
    }

    /// Allocates, frees or zeroes a range.
    pub fn fallocate(&self, vfs: &Vfs<L>, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Err(Kind::InvalidInput.into()); // before the question of rights, as in Linux
        }
        self.require_write(vfs)?;
        let caller = Caller { check: false, ..Caller::ROOT };
        if vfs.kind(&self.node) == FileKind::Regular {
            self.drop_privileges(vfs)?;
        }
        vfs.fallocate(&caller, &self.node, mode, offset, len, false)
    }

    /// Makes the file durable.
    pub fn sync_all(&self, vfs: &Vfs<L>) -> Result<()> {
        vfs.sync(&self.node)
    }

    /// Makes the file's contents durable, and the metadata needed to read them back.
    pub fn sync_data(&self, vfs: &Vfs<L>) -> Result<()> {
        vfs.sync(&self.node)
    }

    /// The attributes.
    pub fn getattr(&self, vfs: &Vfs<L>) -> Result<Attr> {
        vfs.getattr(&self.node)
    }

    /// Reports the entries of a directory that is open for reading; see [`Vfs::read_dir`].
    pub fn read_dir(
        &self,
        vfs: &Vfs<L>,
        cookie: u64,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.require_read()?;
        if vfs.kind(&self.node) != FileKind::Directory {
            return Err(Kind::NotDirectory.into());
        }
        vfs.read_dir_content(&self.node, cookie, visit)
    }
}
