//! The calls of a random sequence.

use std::fmt;

use nacre_engine::{FallocateMode, RenameMode, SeekTo, Timestamp, XattrMode};

use crate::suite::{Need, Open, SetTime};

/// Files that a sequence can have open.
pub(super) const SLOTS: u8 = 5;

/// Bytes of a path, shown as a string.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bytes(pub(super) Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.len() > 80 {
            write!(f, "<{} bytes, \"{}...\">", self.0.len(), self.0[..8].escape_ascii())
        } else {
            write!(f, "\"{}\"", self.0.escape_ascii())
        }
    }
}

/// One call. Slots are open files; the name of a variant is that of the call.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "they are the arguments of the calls")]
pub enum Call {
    Open { slot: u8, path: Bytes, how: Open },
    Close { slot: u8 },
    Pread { slot: u8, offset: u64, len: usize },
    Pwrite { slot: u8, offset: u64, len: usize, seed: u8 },
    Append { slot: u8, len: usize, seed: u8 },
    Ftruncate { slot: u8, size: u64 },
    Fallocate { slot: u8, mode: FallocateMode, offset: u64, len: u64 },
    Lseek { slot: u8, offset: u64, to: SeekTo },
    Fsync { slot: u8, only_data: bool },
    Fstat { slot: u8 },
    Fchmod { slot: u8, mode: u32 },
    Stat { path: Bytes, follow: bool },
    Mkdir { path: Bytes, mode: u32 },
    Rmdir { path: Bytes },
    Unlink { path: Bytes },
    Link { from: Bytes, to: Bytes },
    Symlink { target: Bytes, path: Bytes },
    Readlink { path: Bytes },
    Mknod { path: Bytes, mode: u32 },
    Rename { from: Bytes, to: Bytes, mode: RenameMode },
    Readdir { path: Bytes, piece: usize },
    Truncate { path: Bytes, size: u64 },
    Chmod { path: Bytes, mode: u32 },
    Chown { path: Bytes, uid: Option<u32>, gid: Option<u32>, follow: bool },
    Utimens { path: Bytes, atime: SetTime, mtime: SetTime, follow: bool },
    Getxattr { path: Bytes, name: u8 },
    Setxattr { path: Bytes, name: u8, len: usize, seed: u8, how: XattrMode },
    Removexattr { path: Bytes, name: u8 },
    Listxattr { path: Bytes },
    Remount,
    Crash,
}

impl Call {
    /// The name of the call, for counting.
    pub fn name(&self) -> &'static str {
        match self {
            Call::Open { .. } => "open",
            Call::Close { .. } => "close",
            Call::Pread { .. } => "pread",
            Call::Pwrite { .. } => "pwrite",
            Call::Append { .. } => "append",
            Call::Ftruncate { .. } => "ftruncate",
            Call::Fallocate { .. } => "fallocate",
            Call::Lseek { .. } => "lseek",
            Call::Fsync { .. } => "fsync",
            Call::Fstat { .. } => "fstat",
            Call::Fchmod { .. } => "fchmod",
            Call::Stat { .. } => "stat",
            Call::Mkdir { .. } => "mkdir",
            Call::Rmdir { .. } => "rmdir",
            Call::Unlink { .. } => "unlink",
            Call::Link { .. } => "link",
            Call::Symlink { .. } => "symlink",
            Call::Readlink { .. } => "readlink",
            Call::Mknod { .. } => "mknod",
            Call::Rename { .. } => "rename",
            Call::Readdir { .. } => "readdir",
            Call::Truncate { .. } => "truncate",
            Call::Chmod { .. } => "chmod",
            Call::Chown { .. } => "chown",
            Call::Utimens { .. } => "utimens",
            Call::Getxattr { .. } => "getxattr",
            Call::Setxattr { .. } => "setxattr",
            Call::Removexattr { .. } => "removexattr",
            Call::Listxattr { .. } => "listxattr",
            Call::Remount => "remount",
            Call::Crash => "crash",
        }
    }

    /// The capabilities that the call needs from a target.
    pub(super) fn needs(&self) -> &'static [Need] {
        match self {
            Call::Fallocate { mode: FallocateMode::Allocate | FallocateMode::AllocateKeepSize, .. } => {
                &[Need::Allocate]
            }
            Call::Fallocate { mode: FallocateMode::PunchHole, .. } => &[Need::PunchHole],
            Call::Fallocate { .. } => &[Need::ZeroRange],
            Call::Lseek { .. } => &[Need::SeekHole],
            Call::Rename { mode: RenameMode::Exchange, .. } => &[Need::Exchange],
            Call::Getxattr { .. }
            | Call::Setxattr { .. }
            | Call::Removexattr { .. }
            | Call::Listxattr { .. } => &[Need::UserXattrs],
            _ => &[],
        }
    }
}

/// The name of an extended attribute by its number.
pub(super) fn xattr_name(number: u8) -> Vec<u8> {
    match number {
        3 => [b"user.".as_slice(), &[b'n'; 250]].concat(), // the longest
        number => format!("user.x{number}").into_bytes(),
    }
}

/// Times before this one, in seconds, were set by a call; later ones are the clock's.
pub(super) const CLOCK: i64 = 1_000_000_000;

/// A time that every file system keeps exactly.
pub(super) fn plain_time(seed: u32) -> Timestamp {
    Timestamp::new(i64::from(seed) % CLOCK, seed % 1_000_000_000)
}
