//! Contents of files: read, write, allocate, seek, copy, sync.

use std::cell::RefCell;
use std::io::IoSlice;
use std::ops::Range;

use fuser::{INodeNo, OpenFlags, Request};
use nacre_engine::{
    Attr, Durability, FallocateMode, Kind, Result, SeekTo, SetAttr, Step, WriteAt, or_another_way,
};
use nacre_vfs::{Caller, Layout};

use crate::server::{Server, caller};

/// The largest read or write in one request.
pub(crate) const MAX_IO: u32 = 1 << 20;
/// The most bytes that one request copies; the caller asks again for the rest.
const COPY_MAX: u64 = 16 << 20;

thread_local! {
    /// The read buffer of a thread. It grows to the largest request and stays.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Calls `with` with `size` bytes of this thread's buffer.
fn with_buffer<T>(size: usize, with: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < size {
            buffer.resize(size, 0);
        }
        with(&mut buffer[..size])
    })
}

/// A search for data or a hole.
pub(crate) struct Seek<N> {
    node: N,
    offset: u64,
    to: SeekTo,
}

impl<L: Layout> Server<L> {
    /// Reads, and passes the bytes to `reply`. Write-only handles are read from, too: with its writeback cache the
    /// kernel fills pages before it changes parts of them.
    pub(crate) fn read(
        &self,
        id: INodeNo,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        reply: impl FnOnce(Result<&[u8]>),
    ) {
        let node = match self.node(id) {
            Ok(node) => node,
            Err(error) => return reply(Err(error)),
        };
        with_buffer(size.min(MAX_IO) as usize, |buffer| {
            let count = if flags.0 & libc::O_NOATIME == 0 {
                self.vfs.read(&node, offset, buffer)
            } else {
                self.vfs.read_unnoticed(&node, offset, buffer)
            };
            match count {
                Ok(count) => reply(Ok(&buffer[..count])),
                Err(error) => reply(Err(error)),
            }
        });
    }

    /// Writes pages that the kernel accepted before, through a mapping or its writeback cache. That cache has times of
    /// its own, which arrive in another request, before or after this one. A time that arrived before is used.
    pub(crate) fn write_pages(&self, id: INodeNo, offset: u64, data: &[u8]) -> Result<u32> {
        let node = self.node(id)?;
        let known = || if self.settings.writeback { self.kernel.mtime(id) } else { None };
        let time = known();
        let slices = [IoSlice::new(data)];
        let write = |durability| self.vfs.write_pages(&node, offset, &slices, durability, time);
        let written = self.room.find(|| write(durability(self.settings.sync)));
        // No program can be told any more, so these pages may take a part of the reserve of a full device.
        or_another_way(Step::Accepted, written, || write(Durability::Accepted).map(Some))?;
        // A request that set another time meanwhile may have been done before this one.
        if let Some(mtime) = known().filter(|&mtime| Some(mtime) != time) {
            let change = SetAttr { mtime: Some(mtime), ..SetAttr::default() };
            self.vfs.set_times_as_of(&node, &change, self.vfs.getattr(&node)?.ctime.max(mtime))?;
        }
        Ok(data.len() as u32)
    }

    /// Whether the flags of a file allow opening it like this.
    pub(crate) fn check_open(&self, id: INodeNo, flags: OpenFlags) -> Result<()> {
        if flags.0 & libc::O_ACCMODE == libc::O_RDONLY {
            return Ok(());
        }
        self.vfs.check_guards(&self.node(id)?, flags.0 & libc::O_APPEND != 0)
    }

    /// Writes. The kernel sends absolute offsets for `O_APPEND`, too, and holds its lock on the inode meanwhile.
    pub(crate) fn write(
        &self,
        request: &Request,
        id: INodeNo,
        offset: u64,
        data: &[u8],
        flags: OpenFlags,
        kill_suidgid: bool,
    ) -> Result<u32> {
        let node = self.node(id)?;
        let now = self.settings.sync || flags.0 & (libc::O_SYNC | libc::O_DSYNC) != 0;
        let durability = durability(now);
        let slices = [IoSlice::new(data)];
        let groups = self.groups_for(request, &node, kill_suidgid)?;
        let caller = Caller { groups: &groups, ..caller(request, 0) };
        let write =
            |at| self.room.find(|| self.vfs.write(&caller, &node, at, &slices, durability, kill_suidgid));
        match write(WriteAt::Offset(offset)) {
            Err(error) if error.kind() == Kind::NotPermitted && self.is_append(&node, offset, flags)? => {
                write(WriteAt::End)?
            }
            written => written?,
        };
        Ok(data.len() as u32)
    }

    /// Whether a write is an append to an append-only file. The kernel does not know the flags of our inodes, and
    /// allows opening such a file without `O_APPEND`. It sends the open flags with each write. Its lock keeps the end
    /// of the file in place meanwhile. Pages that it writes back itself come without those flags.
    fn is_append(&self, node: &L::Node, offset: u64, flags: OpenFlags) -> Result<bool> {
        if flags.0 & libc::O_APPEND == 0 {
            return Ok(false);
        }
        let attr = self.vfs.getattr(node)?;
        let restricted = attr.flags & (Attr::APPEND_ONLY | Attr::IMMUTABLE);
        Ok(restricted == Attr::APPEND_ONLY && attr.size == offset)
    }

    /// A handle was closed; the kernel does not tell its open flags.
    pub(crate) fn closed(&self, id: INodeNo) -> Result<()> {
        self.vfs.closed(&self.node(id)?)
    }

    pub(crate) fn fallocate(
        &self,
        request: &Request,
        id: INodeNo,
        offset: u64,
        len: u64,
        mode: i32,
    ) -> Result<()> {
        let mode = fallocate_mode(mode)?;
        let node = self.node(id)?;
        // The kernel leaves this to us, and does not tell in this request.
        let kill_suidgid = self.kills_set_id(request, &node)?;
        let groups = self.groups_for(request, &node, kill_suidgid)?;
        let caller = Caller { groups: &groups, ..caller(request, 0) };
        self.room.find(|| self.vfs.fallocate(&caller, &node, mode, offset, len, kill_suidgid))
    }

    /// The seek that a request asks for.
    pub(crate) fn seek_of(&self, id: INodeNo, offset: i64, whence: i32) -> Result<Seek<L::Node>> {
        let to = match whence {
            libc::SEEK_DATA => SeekTo::Data,
            libc::SEEK_HOLE => SeekTo::Hole,
            _ => return Err(Kind::InvalidInput.into()),
        };
        let offset = u64::try_from(offset).map_err(|_| Kind::NoSuchOffset)?;
        Ok(Seek { node: self.node(id)?, offset, to })
    }

    /// The layout's answer, and the bytes of a hole that it depends on. The kernel may have data for them, which a
    /// program has stored through a mapping. The range is empty if the answer depends on no hole.
    pub(crate) fn seek(&self, seek: &Seek<L::Node>) -> (Result<u64>, Range<u64>) {
        let Seek { node, offset, to } = seek;
        let found = self.vfs.seek(node, *offset, *to);
        let size = || self.vfs.getattr(node).map_or(0, |attr| attr.size);
        let passed = match (&found, to) {
            (Ok(data), SeekTo::Data) => *offset..*data,
            (Err(error), SeekTo::Data) if error.kind() == Kind::NoSuchOffset => *offset..size(),
            (Ok(hole), SeekTo::Hole) => {
                *hole..self.vfs.seek(node, *hole, SeekTo::Data).unwrap_or_else(|_| size())
            }
            _ => 0..0,
        };
        (found, passed)
    }

    /// Whether the file has a hole or unwritten blocks below its end.
    pub(crate) fn has_hole(&self, node: &L::Node) -> bool {
        let size = self.vfs.getattr(node).map_or(0, |attr| attr.size);
        self.vfs.seek(node, 0, SeekTo::Hole).is_ok_and(|hole| hole < size)
    }

    /// The answer of [`Server::seek`] after the kernel has written its pages in the hole. It waits for requests of the
    /// kernel.
    pub(crate) fn seek_with_pages(&self, id: INodeNo, seek: &Seek<L::Node>) -> Result<u64> {
        let mut written = 0;
        loop {
            let (found, passed) = self.seek(seek);
            if passed.is_empty() || passed.end <= written {
                return found;
            }
            written = passed.end;
            self.kernel.write_pages(id, passed);
        }
    }

    /// Copies within the server, which saves a caller two requests for each megabyte.
    pub(crate) fn copy_range(
        &self,
        request: &Request,
        from: (INodeNo, u64),
        to: (INodeNo, u64),
        len: u64,
        now: bool,
    ) -> Result<u32> {
        let (source, target) = (self.node(from.0)?, self.node(to.0)?);
        let len = len.min(COPY_MAX);
        let kill_suidgid = self.kills_set_id(request, &target)?;
        let groups = self.groups_for(request, &target, kill_suidgid)?;
        let caller = Caller { groups: &groups, ..caller(request, 0) };
        with_buffer(MAX_IO as usize, |buffer| {
            let mut done = 0;
            while done < len {
                let piece = (len - done).min(u64::from(MAX_IO)) as usize;
                let count = self.vfs.read(&source, from.1 + done, &mut buffer[..piece])?;
                if count == 0 {
                    break;
                }
                let slices = [IoSlice::new(&buffer[..count])];
                let at = WriteAt::Offset(to.1 + done);
                let write = || self.vfs.write(&caller, &target, at, &slices, durability(now), kill_suidgid);
                let written = self.room.find(write);
                match written {
                    // The bytes copied before count; the next call meets the error.
                    Err(_) if done > 0 => break,
                    Err(error) => return Err(error),
                    Ok(_) => done += count as u64,
                }
            }
            Ok(done as u32)
        })
    }

    /// Makes a file durable, unless it is durable already.
    pub(crate) fn fsync(&self, id: INodeNo) -> Result<()> {
        self.vfs.sync(&self.node(id)?)
    }
}

/// The durability of a write on return.
fn durability(now: bool) -> Durability {
    if now { Durability::Now } else { Durability::Lazy }
}

/// The modes of fallocate(2) that nacre has.
fn fallocate_mode(mode: i32) -> Result<FallocateMode> {
    const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
    const ZERO_KEEP: i32 = libc::FALLOC_FL_ZERO_RANGE | KEEP;
    Ok(match mode {
        0 => FallocateMode::Allocate,
        KEEP => FallocateMode::AllocateKeepSize,
        PUNCH => FallocateMode::PunchHole,
        libc::FALLOC_FL_ZERO_RANGE => FallocateMode::ZeroRange,
        ZERO_KEEP => FallocateMode::ZeroRangeKeepSize,
        _ => return Err(Kind::Unsupported.into()),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nacre_engine::{FallocateMode, FileKind, Kind, Names as _, NewInode, Timestamp};
    use nacre_lab::model::MemLayout;
    use nacre_vfs::{Vfs, VfsOptions};

    use super::{fallocate_mode, with_buffer};
    use crate::server::{Server, Settings};

    #[test]
    fn modes_of_fallocate() {
        assert_eq!(fallocate_mode(0).unwrap(), FallocateMode::Allocate);
        assert_eq!(fallocate_mode(1).unwrap(), FallocateMode::AllocateKeepSize);
        assert_eq!(fallocate_mode(3).unwrap(), FallocateMode::PunchHole);
        assert_eq!(fallocate_mode(0x10).unwrap(), FallocateMode::ZeroRange);
        assert_eq!(fallocate_mode(0x11).unwrap(), FallocateMode::ZeroRangeKeepSize);
        // Punching without keeping the size, collapsing, inserting.
        for mode in [2, 8, 0x20, 0x40] {
            assert_eq!(fallocate_mode(mode).unwrap_err().kind(), Kind::Unsupported);
        }
    }

    /// They come behind the request that sets the time, which was the case with background writeback: the time was that of
    /// their arrival after a remount.
    #[test]
    fn pages_keep_the_time_that_the_kernel_gave() {
        let layout = MemLayout::default();
        let (first, later) = (Timestamp::new(1000, 1), Timestamp::new(2000, 2));
        let node =
            layout.create(&layout.root(), b"a", &NewInode::of_root(FileKind::Regular, 0o644, first)).unwrap();
        let vfs = Arc::new(Vfs::new(layout, VfsOptions::default()));
        let settings = Settings { writeback: true, ..Settings::default() };
        let server = Server::new(vfs, settings, Arc::new(|_| ()), None);
        let id = server.node_id(server.vfs.id(&node));
        let mtime = || server.vfs.getattr(&node).unwrap().mtime;
        server.write_pages(id, 0, b"unknown").unwrap();
        assert!(mtime() > later);
        server.kernel.note_mtime(id, later);
        server.write_pages(id, 0, b"late").unwrap();
        assert_eq!(mtime(), later);
        server.kernel.forgotten(id, true);
        server.write_pages(id, 0, b"unknown").unwrap();
        assert!(mtime() > later);
    }

    #[test]
    fn the_buffer_of_a_thread_is_kept() {
        let first = with_buffer(4096, |buffer| buffer.as_ptr() as usize);
        assert_eq!(with_buffer(100, |buffer| (buffer.len(), buffer.as_ptr() as usize)), (100, first));
    }
}
