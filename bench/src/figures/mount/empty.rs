//! A FUSE server that does nothing: the peer of the mount.
//!
//! It asks the kernel for the same capabilities as nacre's server, mounts with the same options and as many threads,
//! and answers everything at once from nothing. It has the root directory, and one file with a fixed size; names that
//! are made are given out and forgotten. The further cost of a mount of nacre is nacre's own.

use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, ReplyXattr, Request, Session, SessionACL, WriteFlags,
};
use rustix::mount::MountFlags;

/// The name of the file that exists.
pub(super) const FILE: &str = "file";
const FILE_INODE: INodeNo = INodeNo(2);
const LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);
const MAX_IO: u32 = 1 << 20;

/// As nacre's server asks.
const WANTED: [InitFlags; 13] = [
    InitFlags::FUSE_EXPORT_SUPPORT,
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_POSIX_ACL,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_EXPLICIT_INVAL_DATA,
    InitFlags::FUSE_HAS_IOCTL_DIR,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_NO_OPEN_SUPPORT,
    InitFlags::FUSE_NO_OPENDIR_SUPPORT,
];

struct Empty {
    size: u64,
    next: AtomicU64,
    zeros: Vec<u8>,
}

impl Empty {
    fn attr(&self, id: INodeNo) -> FileAttr {
        let directory = id == INodeNo::ROOT;
        let size = if id == FILE_INODE { self.size } else { 0 };
        FileAttr {
            ino: id,
            size,
            blocks: size / 512,
            atime: SystemTime::UNIX_EPOCH,
            mtime: SystemTime::UNIX_EPOCH,
            ctime: SystemTime::UNIX_EPOCH,
            crtime: SystemTime::UNIX_EPOCH,
            kind: if directory { FileType::Directory } else { FileType::RegularFile },
            perm: if directory { 0o755 } else { 0o644 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    fn open_flags() -> FopenFlags {
        FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH
    }
}

impl Filesystem for Empty {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in WANTED {
            // A capability that the kernel lacks is missing on both sides.
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_write(MAX_IO);
        let _ = config.set_max_readahead(MAX_IO);
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let id = if name == FILE { FILE_INODE } else { INodeNo(0) };
        reply.entry(&LIFETIME, &self.attr(id), Generation(0));
    }

    fn forget(&self, _request: &Request, _id: INodeNo, _count: u64) {}

    fn getattr(&self, _request: &Request, id: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&LIFETIME, &self.attr(id));
    }

    fn open(&self, _request: &Request, _id: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn create(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let id = INodeNo(self.next.fetch_add(1, Ordering::Relaxed));
        reply.created(&LIFETIME, &self.attr(id), Generation(0), FileHandle(0), Empty::open_flags());
    }

    fn unlink(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.ok();
    }

    fn read(
        &self,
        _request: &Request,
        _id: INodeNo,
        _handle: FileHandle,
        _offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        reply.data(&self.zeros[..size.min(MAX_IO) as usize]);
    }

    fn write(
        &self,
        _request: &Request,
        _id: INodeNo,
        _handle: FileHandle,
        _offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        reply.written(data.len() as u32);
    }

    fn flush(
        &self,
        _request: &Request,
        _id: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(
        &self,
        _request: &Request,
        _id: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn opendir(&self, _request: &Request, _id: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn getxattr(&self, _request: &Request, _id: INodeNo, _name: &OsStr, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENODATA);
    }
}

/// Mounts and serves until it is unmounted; as root only, as nacre does it there.
pub(super) fn serve(dir: &Path, size: u64, ready: impl FnOnce()) -> io::Result<()> {
    let server = Empty { size, next: AtomicU64::new(3), zeros: vec![0; MAX_IO as usize] };
    let device: OwnedFd = File::options().read(true).write(true).open("/dev/fuse")?.into();
    let data = format!(
        "fd={},rootmode={:o},user_id=0,group_id=0,default_permissions",
        device.as_raw_fd(),
        fs::metadata(dir)?.mode() & libc::S_IFMT
    );
    let data = CString::new(data)?;
    let flags = MountFlags::NODEV | MountFlags::NOSUID;
    rustix::mount::mount("nacre-bench", dir, "fuse.empty", flags, data.as_c_str())?;
    let mut config = Config::default();
    config.n_threads = Some(std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 16));
    config.clone_fd = true;
    let session = Session::from_fd(server, device, SessionACL::Owner, config)?;
    ready();
    session.run()
}
