//! The attributes of an inode, the parts of a new one, and changes of attributes.

use crate::error::Result;
use crate::units::{InodeId, TimeRange, Timestamp};

/// The kind of an inode. It never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// A regular file.
    Regular = 1,
    /// A directory.
    Directory = 2,
    /// A symbolic link.
    Symlink = 3,
    /// A character device.
    CharDevice = 4,
    /// A block device.
    BlockDevice = 5,
    /// A named pipe.
    Fifo = 6,
    /// A socket.
    Socket = 7,
}

impl FileKind {
    /// The kind from its media form.
    pub const fn from_u8(value: u8) -> Option<FileKind> {
        Some(match value {
            1 => FileKind::Regular,
            2 => FileKind::Directory,
            3 => FileKind::Symlink,
            4 => FileKind::CharDevice,
            5 => FileKind::BlockDevice,
            6 => FileKind::Fifo,
            7 => FileKind::Socket,
            _ => return None,
        })
    }
}

/// The attributes of an inode, as stat(2) shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// The number and the generation of the inode.
    pub id: InodeId,
    /// Its kind.
    pub kind: FileKind,
    /// Permission bits with set-id and sticky bits (07777).
    pub mode: u32,
    /// Directory entries that refer to it (for a directory, 2 and one for each subdirectory).
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, as `makedev(3)` composes it; otherwise 0.
    pub rdev: u64,
    /// Size in bytes.
    pub size: u64,
    /// Bytes of data allocated, in every place.
    pub allocated: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of data.
    pub mtime: Timestamp,
    /// Last change of data or attributes.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// Flags of the inode ([`Attr::IMMUTABLE`] and others).
    pub flags: u32,
    /// Grows with every change of data or attributes.
    pub change: u64,
}

impl Attr {
    /// The inode cannot be changed, renamed, linked or removed.
    pub const IMMUTABLE: u32 = 1 << 0;
    /// The file can only be appended to.
    pub const APPEND_ONLY: u32 = 1 << 1;
}

/// The parts of a new inode.
#[derive(Debug, Clone, Copy)]
pub struct NewInode<'a> {
    /// Kind.
    pub kind: FileKind,
    /// Permission bits (07777); the caller has applied umask and inheritance.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group; the caller has applied set-gid inheritance.
    pub gid: u32,
    /// Device number of a device node; otherwise 0.
    pub rdev: u64,
    /// Target of a symbolic link (1 to 4095 bytes); otherwise empty.
    pub target: &'a [u8],
    /// Initial extended attributes (inherited ACLs), as (name, value); all or nothing with the inode.
    pub xattrs: &'a [(&'a [u8], &'a [u8])],
    /// Creation time; also its first atime, mtime and ctime, and the directory's mtime and ctime.
    pub now: Timestamp,
}

impl NewInode<'static> {
    /// An inode of root without extended attributes; no device node and no symbolic link.
    pub const fn of_root(kind: FileKind, mode: u32, now: Timestamp) -> NewInode<'static> {
        NewInode { kind, mode, uid: 0, gid: 0, rdev: 0, target: b"", xattrs: &[], now }
    }
}

/// A change of attributes. A field that is `None` stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits (07777).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last read.
    pub atime: Option<Timestamp>,
    /// Last change of data.
    pub mtime: Option<Timestamp>,
    /// Flags of the inode.
    pub flags: Option<u32>,
    /// Size, for a regular file: truncates or extends with a hole, in the same commit as the rest.
    pub size: Option<u64>,
    /// The times are set to now without a choice of the caller (touch(1)). An append-only inode allows that, too. No
    /// other field is given then.
    pub touch: bool,
}

impl SetAttr {
    /// The flags of an inode that forbid this change. Flags can always be changed, because the caller has checked the
    /// permission.
    pub fn forbidden_by(&self) -> u32 {
        if *self == (SetAttr { flags: self.flags, ..SetAttr::default() }) {
            0
        } else if *self
            == (SetAttr { atime: self.atime, mtime: self.mtime, touch: true, ..SetAttr::default() })
        {
            Attr::IMMUTABLE
        } else {
            Attr::IMMUTABLE | Attr::APPEND_ONLY
        }
    }

    /// Whether the change makes an inode immutable or append-only.
    pub fn guards(&self) -> bool {
        self.flags.is_some_and(|flags| flags & (Attr::IMMUTABLE | Attr::APPEND_ONLY) != 0)
    }

    /// An error if the format cannot hold a given time.
    pub fn check_times(&self, times: TimeRange) -> Result<()> {
        let mut given = [self.atime, self.mtime].into_iter().flatten();
        given.try_for_each(|time| times.check(time))
    }
}
