//! The interface that the suite tests: a file system as a program sees it, by paths and open files.

use std::io::IoSlice;

use nacre_engine::{FallocateMode, FileKind, Kind, RenameMode, SeekTo, Timestamp, XattrMode};
pub use nacre_vfs::SetTime;

/// The result of an operation: errors are compared by kind only.
pub type Outcome<T> = Result<T, Kind>;

/// Capabilities that a case may need and that not every file system has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Operations as another user ([`Target::as_user`]).
    Users,
    /// Extended attributes of the `user` namespace.
    UserXattrs,
    /// Extended attributes of the `trusted` namespace.
    TrustedXattrs,
    /// Values of extended attributes up to 64 KiB.
    BigXattrs,
    /// POSIX ACLs as extended attributes.
    Acls,
    /// Device nodes.
    DeviceNodes,
    /// fallocate: allocate.
    Allocate,
    /// fallocate: punch a hole.
    PunchHole,
    /// fallocate: zero a range.
    ZeroRange,
    /// SEEK_HOLE and SEEK_DATA that know of holes.
    SeekHole,
    /// Files of 16 TiB with holes.
    HugeFiles,
    /// A largest file size of at most 2^62 bytes, so that it can be exceeded.
    SizeLimit,
    /// rename with RENAME_EXCHANGE.
    Exchange,
    /// rename with RENAME_WHITEOUT.
    Whiteout,
    /// Immutable and append-only files.
    InodeFlags,
    /// Files without a name (O_TMPFILE).
    Unnamed,
    /// Unmount and mount again ([`Target::remount`]).
    Remount,
    /// Cookies of readdir survive the removal of their entry and closing the directory.
    StableCookies,
    /// A device small enough to be filled (at most 256 MiB).
    SmallDevice,
    /// Times from 1700 to 2200 with nanoseconds.
    WideTimes,
    /// A read sees each block of a write that runs at the same time whole or not at all.
    WholeBlocks,
    /// Allocated space is counted by blocks of 4 KiB that were written.
    ExactAllocation,
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct Open {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// Writes go to the end.
    pub append: bool,
    /// Made when missing.
    pub create: bool,
    /// It must be missing.
    pub exclusive: bool,
    /// Emptied.
    pub truncate: bool,
    /// It must be a directory.
    pub directory: bool,
    /// A symbolic link at the end of the path is not followed.
    pub no_follow: bool,
    /// Every write is durable on return.
    pub sync: bool,
    /// Permission bits of a file that is made.
    pub mode: u32,
}

impl Open {
    /// For reading.
    pub const READ: Open = Open {
        read: true,
        write: false,
        append: false,
        create: false,
        exclusive: false,
        truncate: false,
        directory: false,
        no_follow: false,
        sync: false,
        mode: 0o644,
    };
    /// For writing.
    pub const WRITE: Open = Open { read: false, write: true, ..Open::READ };
    /// For reading and writing.
    pub const BOTH: Open = Open { write: true, ..Open::READ };
    /// For reading and writing, made when missing.
    pub const CREATE: Open = Open { create: true, ..Open::BOTH };
    /// For reading and writing, made now.
    pub const NEW: Open = Open { exclusive: true, ..Open::CREATE };
    /// For appending, made when missing.
    pub const APPEND: Open = Open { append: true, ..Open::CREATE };

    /// With these permission bits.
    #[must_use]
    pub const fn mode(self, mode: u32) -> Open {
        Open { mode, ..self }
    }
}

/// The result of stat(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Number of the inode.
    pub number: u64,
    /// Its kind.
    pub kind: FileKind,
    /// Permission bits (07777).
    pub mode: u32,
    /// Links.
    pub links: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u64,
    /// Size in bytes.
    pub size: u64,
    /// Bytes allocated.
    pub allocated: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of data.
    pub mtime: Timestamp,
    /// Last change of anything.
    pub ctime: Timestamp,
}

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Where to go on after it.
    pub cookie: u64,
    /// Its name.
    pub name: Vec<u8>,
    /// Number of the inode.
    pub number: u64,
    /// Its kind.
    pub kind: FileKind,
}

/// Space and its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Bytes in all.
    pub total: u64,
    /// Bytes not in use.
    pub free: u64,
    /// Bytes that can still be used.
    pub available: u64,
    /// Inodes in all.
    pub inodes: u64,
    /// Inodes that can still be made.
    pub inodes_free: u64,
}

/// The user that operations run as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User<'a> {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Further groups.
    pub groups: &'a [u32],
}

/// An open file.
pub trait File: Send + Sync {
    /// pread(2).
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Outcome<usize>;
    /// pwritev(2).
    fn write_vectored_at(&self, offset: u64, data: &[IoSlice<'_>]) -> Outcome<usize>;
    /// write(2) to a file opened for appending.
    fn append(&self, data: &[u8]) -> Outcome<usize>;
    /// ftruncate(2).
    fn set_len(&self, size: u64) -> Outcome<()>;
    /// fallocate(2).
    fn fallocate(&self, mode: FallocateMode, offset: u64, len: u64) -> Outcome<()>;
    /// lseek(2) with SEEK_DATA and SEEK_HOLE.
    fn seek(&self, offset: u64, to: SeekTo) -> Outcome<u64>;
    /// fsync(2), or fdatasync(2) when only data is asked for.
    fn sync(&self, only_data: bool) -> Outcome<()>;
    /// fstat(2).
    fn stat(&self) -> Outcome<Stat>;
    /// fchmod(2).
    fn chmod(&self, mode: u32) -> Outcome<()>;

    /// pwrite(2).
    fn write_at(&self, offset: u64, data: &[u8]) -> Outcome<usize> {
        self.write_vectored_at(offset, &[IoSlice::new(data)])
    }
}

/// A file system by paths. Paths are relative to its root, without a slash at their start.
pub trait Target: Sync {
    /// The description of the target, for messages.
    fn describe(&self) -> String;
    /// Why it cannot do something, or `None` when it can.
    fn lacks(&self, need: Need) -> Option<&str>;

    /// open(2).
    fn open(&self, path: &[u8], how: Open) -> Outcome<Box<dyn File + '_>>;
    /// open(2) with O_TMPFILE in a directory.
    fn open_unnamed(&self, dir: &[u8], mode: u32) -> Outcome<Box<dyn File + '_>>;
    /// stat(2) or lstat(2).
    fn stat(&self, path: &[u8], follow: bool) -> Outcome<Stat>;
    /// mkdir(2).
    fn mkdir(&self, path: &[u8], mode: u32) -> Outcome<()>;
    /// rmdir(2).
    fn rmdir(&self, path: &[u8]) -> Outcome<()>;
    /// unlink(2).
    fn unlink(&self, path: &[u8]) -> Outcome<()>;
    /// link(2), which does not follow symbolic links.
    fn link(&self, from: &[u8], to: &[u8]) -> Outcome<()>;
    /// symlink(2).
    fn symlink(&self, target: &[u8], path: &[u8]) -> Outcome<()>;
    /// readlink(2).
    fn read_link(&self, path: &[u8]) -> Outcome<Vec<u8>>;
    /// mknod(2).
    fn mknod(&self, path: &[u8], kind: FileKind, mode: u32, rdev: u64) -> Outcome<()>;
    /// renameat2(2).
    fn rename(&self, from: &[u8], to: &[u8], mode: RenameMode) -> Outcome<()>;
    /// Opens a directory and reads at most `max` entries after the cookie (0 for the first), without `.` and `..`.
    fn read_dir(&self, path: &[u8], cookie: u64, max: usize) -> Outcome<Vec<Listed>>;
    /// truncate(2).
    fn truncate(&self, path: &[u8], size: u64) -> Outcome<()>;
    /// chmod(2).
    fn chmod(&self, path: &[u8], mode: u32) -> Outcome<()>;
    /// chown(2) or lchown(2).
    fn chown(&self, path: &[u8], uid: Option<u32>, gid: Option<u32>, follow: bool) -> Outcome<()>;
    /// utimensat(2).
    fn set_times(&self, path: &[u8], atime: SetTime, mtime: SetTime, follow: bool) -> Outcome<()>;
    /// Sets the inode's flags as engine names them (FS_IOC_SETFLAGS).
    fn set_flags(&self, path: &[u8], flags: u32) -> Outcome<()>;
    /// getxattr(2).
    fn get_xattr(&self, path: &[u8], name: &[u8]) -> Outcome<Vec<u8>>;
    /// setxattr(2).
    fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8], how: XattrMode) -> Outcome<()>;
    /// removexattr(2).
    fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Outcome<()>;
    /// listxattr(2).
    fn list_xattrs(&self, path: &[u8]) -> Outcome<Vec<Vec<u8>>>;
    /// statfs(2).
    fn space(&self) -> Outcome<Space>;
    /// Runs operations as another user, with a umask of 0.
    fn as_user(&self, user: User<'_>, run: &mut (dyn FnMut(&dyn Target) + Send));
    /// Unmounts and mounts again.
    fn remount(&mut self);
    /// Dies without an unmount and is mounted again. If there is no way to kill it, it is unmounted instead.
    fn crash(&mut self) {
        self.remount();
    }
}
