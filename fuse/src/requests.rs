//! The requests of the protocol, parsed and answered: `fuser`'s trait over [`Server`].
//!
//! Requests without an answer of ours are refused once with `ENOSYS`, which the kernel remembers:
//!
//! - `OPEN` and `OPENDIR`: files then cost no round trip to open or close, and their pages are kept. If a file was
//!   ever made immutable or append-only, `OPEN` is answered, because the kernel does not know these flags.
//! - `FLUSH` and `FSYNC` if every operation is durable on return. The kernel writes its buffered pages before it would
//!   ask for a sync.
//! - `LSEEK` if the kernel buffers writes.
//!
//! Locks are not implemented, so the kernel keeps them itself.

use std::ffi::OsStr;
use std::io;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use nacre_engine::{BLOCK_SIZE, Kind, Result};
use nacre_vfs::{Create, Layout};

use crate::attributes::{Change, sets_flags};
use crate::content::MAX_IO;
use crate::convert::{system_time, timestamp};
use crate::directory::Rename;
use crate::kernel::{LIFETIME, lifetime};
use crate::server::Server;
use crate::workers::Workers;

/// The largest number of background requests (read-ahead, writeback) that the kernel has under way.
const MAX_BACKGROUND: u16 = 64;

/// The reason for refusing direct_io.
const NO_SHARED_MAPPINGS: &str = "direct_io: with it, this kernel refuses shared mappings of files (Linux 6.6 is the \
                                  first that allows them); mount without it";

/// The features requested from the kernel in every mount, each used only if the kernel has it.
const WANTED: [InitFlags; 13] = [
    InitFlags::FUSE_EXPORT_SUPPORT,
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_POSIX_ACL,
    // Without it every write asks for the file's capabilities first.
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_CACHE_SYMLINKS,
    // Pages stay when attributes change, because contents change only through this kernel.
    InitFlags::FUSE_EXPLICIT_INVAL_DATA,
    InitFlags::FUSE_HAS_IOCTL_DIR,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_NO_OPEN_SUPPORT,
    InitFlags::FUSE_NO_OPENDIR_SUPPORT,
];

/// A handle that was opened with O_SYNC or O_DSYNC. Writes come with the flags of their handle, a copy only with the
/// handle.
const SYNCHRONOUS: FileHandle = FileHandle(1);
/// A handle that was opened without these flags. A handle that the kernel opens by itself has neither number.
const PLAIN: FileHandle = FileHandle(2);

/// The handle with these open flags, which the kernel sends with each request on it.
fn handle_of(flags: i32) -> FileHandle {
    if flags & (libc::O_SYNC | libc::O_DSYNC) != 0 { SYNCHRONOUS } else { PLAIN }
}

impl<L: Layout> Server<L> {
    fn open_flags(&self) -> FopenFlags {
        if self.settings.direct_io {
            FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
        } else {
            let flush =
                if self.settings.durable_on_return { FopenFlags::FOPEN_NOFLUSH } else { FopenFlags::empty() };
            FopenFlags::FOPEN_KEEP_CACHE | flush
        }
    }

    fn reply_entry(&self, entry: Result<(FileAttr, Generation)>, reply: ReplyEntry) {
        match entry {
            Ok((attr, generation)) => reply.entry_with_ttls(&lifetime(&attr), &LIFETIME, &attr, generation),
            Err(error) => reply.error(self.refuse(&error)),
        }
    }

    fn reply_attr(&self, attr: Result<FileAttr>, reply: ReplyAttr) {
        match attr {
            Ok(attr) => reply.attr(&lifetime(&attr), &attr),
            Err(error) => reply.error(self.refuse(&error)),
        }
    }

    fn reply_offset(&self, offset: Result<u64>, reply: ReplyLseek) {
        match offset {
            Ok(offset) => reply.offset(offset as i64),
            Err(error) => reply.error(self.refuse(&error)),
        }
    }

    fn reply_empty(&self, result: Result<()>, reply: ReplyEmpty) {
        match result {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.refuse(&error)),
        }
    }

    /// Answers a request for bytes of an extended attribute, or for their number when `size` is 0.
    fn reply_xattr(&self, bytes: Result<Vec<u8>>, size: u32, reply: ReplyXattr) {
        match bytes {
            Ok(bytes) if size == 0 => reply.size(bytes.len() as u32),
            Ok(bytes) if bytes.len() > size as usize => reply.error(Errno::ERANGE),
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(self.refuse(&error)),
        }
    }
}

/// The reply that makes the kernel remember the absence of a name: an entry with the node id 0.
fn absent() -> FileAttr {
    let epoch = system_time(nacre_engine::Timestamp::default());
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: epoch,
        mtime: epoch,
        ctime: epoch,
        crtime: epoch,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK_SIZE as u32,
        flags: 0,
    }
}

/// The receiver of requests from `fuser`: the server, and the threads for answers that wait for other requests.
pub(crate) struct Requests<L: Layout> {
    server: Arc<Server<L>>,
    workers: Workers,
}

impl<L: Layout> Requests<L> {
    pub(crate) fn new(server: Server<L>) -> Requests<L> {
        Requests { server: Arc::new(server), workers: Workers::default() }
    }
}

impl<L: Layout> Deref for Requests<L> {
    type Target = Server<L>;

    fn deref(&self) -> &Server<L> {
        &self.server
    }
}

impl<L: Layout> Filesystem for Requests<L> {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut wanted = WANTED.to_vec();
        if self.settings.writeback {
            wanted.push(InitFlags::FUSE_WRITEBACK_CACHE);
        }
        if self.settings.direct_io {
            wanted.push(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        }
        for flag in wanted {
            let refused = config.add_capabilities(flag).is_err();
            if refused && flag == InitFlags::FUSE_WRITEBACK_CACHE {
                return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
            }
            // Without it a shared mapping of any file fails, which breaks programs and databases.
            if refused && flag == InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP {
                return Err(io::Error::new(io::ErrorKind::Unsupported, NO_SHARED_MAPPINGS));
            }
        }
        let offered = config.capabilities();
        let server = Arc::get_mut(&mut self.server).expect("no request is served yet");
        let settings = &mut server.settings;
        settings.zero_message_open = !settings.direct_io
            && !server.vfs.layout().has_guarded()
            && offered.contains(InitFlags::FUSE_NO_OPEN_SUPPORT);
        settings.zero_message_opendir = offered.contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        // If it refuses a value, each of these returns the nearest possible one.
        if let Err(nearest) = config.set_max_write(MAX_IO) {
            let _ = config.set_max_write(nearest);
        }
        if let Err(nearest) = config.set_max_readahead(MAX_IO) {
            let _ = config.set_max_readahead(nearest);
        }
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn destroy(&mut self) {
        self.nodes.clear(self.vfs.layout());
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match Server::lookup(self, request, parent, name) {
            Err(error) if error.kind() == Kind::NotFound => reply.entry(&LIFETIME, &absent(), Generation(0)),
            entry => self.reply_entry(entry, reply),
        }
    }

    fn forget(&self, _request: &Request, id: INodeNo, count: u64) {
        self.nodes.forget(self.vfs.layout(), id, count);
        self.kernel.forgotten(id, self.settings.writeback);
    }

    fn getattr(&self, _request: &Request, id: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        if self.settings.writeback
            && handle.is_some()
            && let Some(failure) = self.kernel.take_failure(id)
        {
            return reply.error(failure);
        }
        self.reply_attr(Server::getattr(self, id), reply);
    }

    fn setattr(
        &self,
        request: &Request,
        id: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = Change { mode, uid, gid, size, atime, mtime, ctime: ctime.map(timestamp) };
        self.reply_attr(Server::setattr(self, request, id, &change), reply);
    }

    fn readlink(&self, _request: &Request, id: INodeNo, reply: ReplyData) {
        match Server::readlink(self, id) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(self.refuse(&error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        self.reply_entry(Server::mknod(self, request, parent, name, (mode, umask), rdev), reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let what = Create::directory(mode & 0o7777);
        self.reply_entry(self.make(request, umask, parent, name, &what), reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.reply_empty(Server::unlink(self, request, parent, name), reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.reply_empty(Server::rmdir(self, request, parent, name), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let what = Create::symlink(target.as_os_str().as_bytes());
        self.reply_entry(self.make(request, 0, parent, name, &what), reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let rename = match Rename::of(request, (parent, name), (new_parent, new_name), flags) {
            Ok(rename) => rename,
            Err(error) => return reply.error(self.refuse(&error)),
        };
        let moved = self.moved_with_pages(&rename);
        if moved.is_empty() {
            return self.reply_empty(Server::rename(self, &rename), reply);
        }
        let server = Arc::clone(&self.server);
        self.workers.add(move || match server.write_moved(&moved) {
            Some(failure) => reply.error(failure),
            None => server.reply_empty(Server::rename(&server, &rename), reply),
        });
    }

    fn link(&self, request: &Request, id: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.reply_entry(Server::link(self, request, id, parent, name), reply);
    }

    fn open(&self, _request: &Request, id: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if self.settings.zero_message_open {
            return reply.error(Errno::ENOSYS);
        }
        match self.check_open(id, flags) {
            Ok(()) => reply.opened(handle_of(flags.0), self.open_flags()),
            Err(error) => reply.error(self.refuse(&error)),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        match self.make(request, umask, parent, name, &Create::file(mode & 0o7777)) {
            Ok((attr, generation)) => {
                reply.created(&lifetime(&attr), &attr, generation, handle_of(flags), self.open_flags());
            }
            Err(error) => reply.error(self.refuse(&error)),
        }
    }

    fn read(
        &self,
        _request: &Request,
        id: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        Server::read(self, id, offset, size, flags, |bytes| match bytes {
            Ok(bytes) => reply.data(bytes),
            Err(error) => reply.error(self.refuse(&error)),
        });
    }

    fn write(
        &self,
        request: &Request,
        id: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let kill_suidgid = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        if write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            return match Server::write_pages(self, id, offset, data) {
                Ok(count) => reply.written(count),
                Err(error) => {
                    let errno = self.refuse(&error);
                    self.kernel.failed(id, errno);
                    reply.error(errno);
                }
            };
        }
        match Server::write(self, request, id, offset, data, flags, kill_suidgid) {
            Ok(count) => reply.written(count),
            Err(error) => reply.error(self.refuse(&error)),
        }
    }

    fn flush(
        &self,
        _request: &Request,
        id: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        if self.settings.durable_on_return {
            reply.error(Errno::ENOSYS);
        } else {
            self.reply_empty(Server::closed(self, id), reply);
        }
    }

    fn fsync(
        &self,
        _request: &Request,
        id: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        // Told once, the kernel asks no more. Beside its own buffer it asks all the same: beside a server that has ended,
        // only this request fails an fsync(2). Pages that cannot be sent then are dropped without an error.
        if self.settings.durable_on_return && !self.settings.writeback {
            reply.error(Errno::ENOSYS);
        } else {
            // The kernel asks only if all pages are written, or the caller was told of their failure before.
            let _ = self.kernel.take_failure(id);
            self.reply_empty(Server::fsync(self, id), reply);
        }
    }

    fn opendir(&self, _request: &Request, _id: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.settings.zero_message_opendir {
            reply.error(Errno::ENOSYS);
        } else {
            reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR);
        }
    }

    fn readdir(
        &self,
        request: &Request,
        id: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        match Server::readdir(self, request, id, offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.refuse(&error)),
        }
    }

    fn readdirplus(
        &self,
        request: &Request,
        id: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        match Server::readdirplus(self, request, id, offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.refuse(&error)),
        }
    }

    fn fsyncdir(
        &self,
        request: &Request,
        id: INodeNo,
        handle: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        Filesystem::fsync(self, request, id, handle, datasync, reply);
    }

    fn statfs(&self, _request: &Request, _id: INodeNo, reply: ReplyStatfs) {
        let stat = self.vfs.stat();
        let block = BLOCK_SIZE as u32;
        reply.statfs(
            stat.blocks,
            stat.free,
            stat.available,
            stat.inodes,
            stat.inodes_free,
            block,
            255,
            block,
        );
    }

    fn setxattr(
        &self,
        request: &Request,
        id: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        self.reply_empty(Server::setxattr(self, request, id, name.as_bytes(), value, flags), reply);
    }

    fn getxattr(&self, request: &Request, id: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.reply_xattr(Server::getxattr(self, request, id, name.as_bytes()), size, reply);
    }

    fn listxattr(&self, request: &Request, id: INodeNo, size: u32, reply: ReplyXattr) {
        self.reply_xattr(Server::listxattr(self, request, id), size, reply);
    }

    fn removexattr(&self, request: &Request, id: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.reply_empty(Server::removexattr(self, request, id, name.as_bytes()), reply);
    }

    fn ioctl(
        &self,
        request: &Request,
        id: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        argument: &[u8],
        out_size: u32,
        reply: ReplyIoctl,
    ) {
        let answer = Server::ioctl(self, request, id, command, argument);
        if sets_flags(command) {
            // Also after a failure, because the kernel does not know that ctime may have changed.
            self.kernel.attributes_changed(id);
        }
        match answer {
            Ok(bytes) if bytes.len() <= out_size as usize => reply.ioctl(0, &bytes),
            Ok(_) => reply.error(Errno::EINVAL), // not the argument that the command takes
            Err(errno) => reply.error(errno),
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        id: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.reply_empty(Server::fallocate(self, request, id, offset, length, mode), reply);
    }

    fn lseek(
        &self,
        _request: &Request,
        id: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        if self.settings.writeback {
            // The server does not know the data that waits in the kernel. After ENOSYS the kernel takes all of a file
            // for data.
            return reply.error(Errno::ENOSYS);
        }
        let seek = match self.seek_of(id, offset, whence) {
            Ok(seek) => seek,
            Err(error) => return reply.error(self.refuse(&error)),
        };
        let (found, passed) = self.seek(&seek);
        if passed.is_empty() {
            return self.reply_offset(found, reply);
        }
        let server = Arc::clone(&self.server);
        self.workers.add(move || server.reply_offset(server.seek_with_pages(id, &seek), reply));
    }

    fn copy_file_range(
        &self,
        request: &Request,
        from: INodeNo,
        _from_handle: FileHandle,
        from_offset: u64,
        to: INodeNo,
        to_handle: FileHandle,
        to_offset: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        if self.kernel.failure(from).is_some() {
            // The layout has not got all contents. After this error the kernel copies its own pages, as for a reader.
            return reply.error(Errno::EXDEV);
        }
        let now = self.settings.sync || to_handle != PLAIN;
        let copied = self.copy_range(request, (from, from_offset), (to, to_offset), len, now);
        // Its atime may have changed.
        self.kernel.attributes_changed(from);
        match copied {
            Ok(count) => reply.written(count),
            Err(error) => reply.error(self.refuse(&error)),
        }
    }
}
