//! Open files.

use std::fs::Permissions;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use nacre_engine::{Extents, FallocateMode, FileBlock, PlacedExtent, Result, SeekTo, SetAttr, XattrMode};
use nacre_vfs::{Handle, OpenFlags, SetTime};

use crate::fs::{FileSystem, Inner};
use crate::layout::AnyLayout;
use crate::metadata::Metadata;
use crate::names::bytes;

/// How a file is opened, like [`std::fs::OpenOptions`].
///
/// ```
/// # fn main() -> nacre::Result<()> {
/// # let fs = nacre::FileSystem::in_memory(32 << 20, &nacre::OpenOptions::default())?;
/// let log = nacre::FileOptions::new().append(true).create(true).mode(0o600).open(&fs, "/log")?;
/// assert_eq!(log.append(b"first\n")?, 0);
/// assert_eq!(log.append(b"second\n")?, 6);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct FileOptions {
    flags: OpenFlags,
    mode: u32,
}

impl Default for FileOptions {
    fn default() -> FileOptions {
        FileOptions::new()
    }
}

macro_rules! setter {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        pub fn $name(&mut self, $name: bool) -> &mut FileOptions {
            self.flags.$name = $name;
            self
        }
    };
}

impl FileOptions {
    /// Nothing is asked for yet. A file that is made gets the mode 0666, narrowed by the umask.
    pub fn new() -> FileOptions {
        FileOptions { flags: OpenFlags::default(), mode: 0o666 }
    }

    setter!(
        /// For reading.
        read
    );
    setter!(
        /// For writing.
        write
    );
    setter!(
        /// Each write goes to the end of the file.
        append
    );
    setter!(
        /// Make the file when it is not there.
        create
    );
    setter!(
        /// Make the file; it must not be there.
        create_new
    );
    setter!(
        /// Cut the file to no bytes.
        truncate
    );
    setter!(
        /// It must be a directory.
        directory
    );
    setter!(
        /// Do not follow a symbolic link at the path's end.
        nofollow
    );
    setter!(
        /// Make a file without a name; the path names a directory. [`File::link`] gives it a name.
        tmpfile
    );
    setter!(
        /// Each write is durable on return.
        sync
    );
    setter!(
        /// The data of each write is durable on return.
        dsync
    );
    setter!(
        /// Only hold the inode, without the right to read or write.
        path
    );

    /// Permission bits of a file that is made.
    pub fn mode(&mut self, mode: u32) -> &mut FileOptions {
        self.mode = mode;
        self
    }

    /// Opens the file.
    pub fn open(&self, fs: &FileSystem, path: impl AsRef<Path>) -> Result<File> {
        let inner = &fs.inner;
        let caller = inner.identity.caller();
        let handle =
            inner.vfs.open(&caller, inner.vfs.root(), bytes(path.as_ref()), self.flags, self.mode)?;
        Ok(File { inner: inner.clone(), handle })
    }
}

/// An open file. It keeps its file system open.
///
/// [`Read`], [`Write`] and [`Seek`] use an offset of their own, as on a [`std::fs::File`]; `read_at` and `write_at` run
/// in parallel from any number of threads. A write of any size is one operation: after a crash all of it is there or
/// nothing. (On the layout `inplace`, overwritten data may be there in part.)
pub struct File {
    inner: Arc<Inner>,
    handle: Handle<AnyLayout>,
}

impl File {
    /// Reads up to `buf.len()` bytes at `offset`; the count is smaller only at the end of the file.
    #[inline]
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.handle.read_at(&self.inner.vfs, buf, offset)
    }

    /// Reads into several buffers at `offset`.
    pub fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        self.handle.readv_at(&self.inner.vfs, bufs, offset)
    }

    /// All of the file.
    pub fn read_all(&self) -> Result<Vec<u8>> {
        let mut contents = vec![0; self.metadata()?.len() as usize];
        let count = self.read_at(&mut contents, 0)?;
        contents.truncate(count);
        Ok(contents)
    }

    /// Writes all of `data` at `offset`, as one operation; returns the number of bytes. A file that is open for
    /// appending is written at its end, as pwrite(2) does on Linux.
    #[inline]
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        self.handle.write_at(&self.inner.vfs, data, offset)
    }

    /// Writes several buffers, one after the other, at `offset`, as one operation.
    pub fn write_vectored_at(&self, data: &[IoSlice<'_>], offset: u64) -> Result<usize> {
        self.handle.writev_at(&self.inner.vfs, data, offset)
    }

    /// Writes at the end of the file, wherever that is by then; returns the offset that the data went to.
    pub fn append(&self, data: &[u8]) -> Result<u64> {
        self.handle.append(&self.inner.vfs, &[IoSlice::new(data)])
    }

    /// Cuts or extends the file.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.handle.set_len(&self.inner.vfs, size)
    }

    /// Allocates space for a range, so that writes to it cannot fail for want of space; the file grows to its end.
    pub fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.fallocate(FallocateMode::Allocate, offset, len)
    }

    /// Frees the space of a range, which then reads as zeros; the size stays.
    pub fn punch_hole(&self, offset: u64, len: u64) -> Result<()> {
        self.fallocate(FallocateMode::PunchHole, offset, len)
    }

    /// Allocates, frees or zeroes a range.
    pub fn fallocate(&self, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        self.handle.fallocate(&self.inner.vfs, mode, offset, len)
    }

    /// The next data at or after `offset`.
    pub fn seek_data(&self, offset: u64) -> Result<u64> {
        self.seek_content(offset, SeekTo::Data)
    }

    /// The next hole at or after `offset`, the end of the file at the latest.
    pub fn seek_hole(&self, offset: u64) -> Result<u64> {
        self.seek_content(offset, SeekTo::Hole)
    }

    pub(crate) fn seek_content(&self, offset: u64, to: SeekTo) -> Result<u64> {
        self.handle.seek_content(&self.inner.vfs, offset, to)
    }

    /// Makes the file durable.
    pub fn sync_all(&self) -> Result<()> {
        self.handle.sync_all(&self.inner.vfs)
    }

    /// Makes the contents of the file durable.
    pub fn sync_data(&self) -> Result<()> {
        self.handle.sync_data(&self.inner.vfs)
    }

    /// The attributes.
    pub fn metadata(&self) -> Result<Metadata> {
        Ok(self.handle.getattr(&self.inner.vfs)?.into())
    }

    /// Changes the permission bits.
    pub fn set_permissions(&self, permissions: Permissions) -> Result<()> {
        let change = SetAttr { mode: Some(permissions.mode() & 0o7777), ..SetAttr::default() };
        self.set_attr(&change)
    }

    /// Changes owner and group, each when it is given.
    pub fn chown(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let caller = self.inner.identity.caller();
        self.inner.vfs.chown(&caller, self.handle.node(), uid, gid).map(drop)
    }

    fn set_attr(&self, change: &SetAttr) -> Result<()> {
        let caller = self.inner.identity.caller();
        self.inner.vfs.setattr(&caller, self.handle.node(), change, false).map(drop)
    }

    /// Changes the times of the last read and the last change of data. One that the format cannot hold (1901 to 2446; 1697 to
    /// 2242 where version 1 of nacre's formats made it) is refused with [`InvalidInput`](crate::Kind::InvalidInput).
    pub fn set_times(&self, accessed: SetTime, modified: SetTime) -> Result<()> {
        let caller = self.inner.identity.caller();
        self.inner.vfs.set_times(&caller, self.handle.node(), accessed, modified).map(drop)
    }

    /// The value of an extended attribute.
    pub fn get_xattr(&self, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.inner.vfs.get_xattr(&self.inner.identity.caller(), self.handle.node(), name.as_ref())
    }

    /// The names of all extended attributes.
    pub fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        self.inner.vfs.list_xattrs(&self.inner.identity.caller(), self.handle.node())
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&self, name: impl AsRef<[u8]>, value: &[u8], how: XattrMode) -> Result<()> {
        let caller = self.inner.identity.caller();
        self.inner.vfs.set_xattr(&caller, self.handle.node(), name.as_ref(), value, how)
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, name: impl AsRef<[u8]>) -> Result<()> {
        self.inner.vfs.remove_xattr(&self.inner.identity.caller(), self.handle.node(), name.as_ref())
    }

    /// Gives the file a name, or another one.
    pub fn link(&self, path: impl AsRef<Path>) -> Result<()> {
        FileSystem { inner: self.inner.clone() }.link_node(self.handle.node(), path.as_ref())
    }

    pub(crate) fn handle(&self) -> &Handle<AnyLayout> {
        &self.handle
    }

    pub(crate) fn layout(&self) -> &AnyLayout {
        self.inner.vfs.layout()
    }

    /// Where the blocks of the file are.
    pub fn extents(&self) -> Result<Vec<PlacedExtent>> {
        self.inner.vfs.layout().resolve(self.handle.node(), FileBlock(0), u64::MAX)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let flags = self.handle.flags();
        if flags.write || flags.append {
            // Data that cannot be written stays in the buffer, and the next sync gives the error.
            let _ = self.inner.vfs.closed(self.handle.node());
        }
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let inode = self.inner.vfs.id(self.handle.node()).number;
        f.debug_struct("File")
            .field("inode", &inode)
            .field("flags", &self.handle.flags())
            .finish_non_exhaustive()
    }
}

impl Read for &File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(self.handle.read(&self.inner.vfs, buf)?)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Ok(self.handle.readv(&self.inner.vfs, bufs)?)
    }
}

impl Write for &File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        Ok(self.handle.write(&self.inner.vfs, data)?)
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(self.handle.writev(&self.inner.vfs, data)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        Ok(self.handle.seek(&self.inner.vfs, to)?)
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buf)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(bufs)
    }
}

impl Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        (&*self).write(data)
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}
