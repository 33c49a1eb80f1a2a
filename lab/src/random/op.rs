//! The operations of a random sequence.

use std::fmt;

use nacre_engine::{FallocateMode, FileKind, RenameMode, SeekTo, SetAttr, XattrMode};

/// Handles that a sequence can hold.
pub(super) const SLOTS: u8 = 6;

/// How many names there are.
pub(super) const NAMES: u8 = 14;

/// The name with this index; the last one is longer than a name may be.
pub(super) fn name(index: u8) -> Vec<u8> {
    match index {
        0..=9 => vec![b'a' + index],
        10 => b"a name of forty bytes, which is not short".to_vec(),
        11 => vec![b'l'; 255],
        12 => b"\xff any \n\x01 byte".to_vec(),
        _ => vec![b't'; 256],
    }
}

/// A path of names by index; empty for the root.
#[derive(Clone, PartialEq, Eq)]
pub struct Path(pub(super) Vec<u8>);

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for index in &self.0 {
            match index {
                10 => write!(f, "/<40 bytes>")?,
                11 => write!(f, "/<255 bytes>")?,
                12 => write!(f, "/<any bytes>")?,
                13 => write!(f, "/<256 bytes>")?,
                index => write!(f, "/{}", char::from(b'a' + index))?,
            }
        }
        if self.0.is_empty() { write!(f, "/") } else { Ok(()) }
    }
}

/// The inode that an operation is about.
#[derive(Clone, PartialEq, Eq)]
pub enum Who {
    /// The inode that a slot holds.
    Slot(u8),
    /// The inode that a path names.
    Path(Path),
}

impl fmt::Debug for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::Slot(slot) => write!(f, "#{slot}"),
            Who::Path(path) => write!(f, "{path:?}"),
        }
    }
}

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of the fields are those of the contract's arguments")]
pub enum Op {
    /// Holds the inode that a path names in a slot.
    Hold {
        slot: u8,
        path: Path,
    },
    /// Lets go of a slot.
    Release {
        slot: u8,
    },
    /// Holds the inode that has the name (number and generation) of the slot's last inode.
    HoldById {
        slot: u8,
    },
    /// Makes an inode; it is held in a slot.
    Create {
        path: Path,
        kind: FileKind,
        slot: u8,
        mode: u32,
        with_xattr: bool,
    },
    /// Makes a file without a name, held in a slot.
    CreateUnnamed {
        slot: u8,
    },
    Link {
        node: Who,
        path: Path,
    },
    Unlink {
        path: Path,
    },
    Rmdir {
        path: Path,
    },
    Rename {
        from: Path,
        to: Path,
        mode: RenameMode,
    },
    ReadDir {
        dir: Who,
        piece: usize,
    },
    ReadLink {
        node: Who,
    },
    Parent {
        dir: Who,
    },
    GetAttr {
        node: Who,
    },
    SetAttr {
        node: Who,
        change: SetAttr,
    },
    Read {
        node: Who,
        offset: u64,
        len: usize,
        stamped: bool,
    },
    Write {
        node: Who,
        offset: u64,
        len: usize,
        seed: u8,
        split: usize,
    },
    Append {
        node: Who,
        len: usize,
        seed: u8,
    },
    Fallocate {
        node: Who,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    },
    Seek {
        node: Who,
        offset: u64,
        to: SeekTo,
    },
    Resolve {
        node: Who,
        start: u64,
        len: u64,
    },
    GetXattr {
        node: Who,
        name: u8,
    },
    SetXattr {
        node: Who,
        name: u8,
        len: usize,
        seed: u8,
        how: XattrMode,
        mode: Option<u32>,
    },
    RemoveXattr {
        node: Who,
        name: u8,
    },
    ListXattrs {
        node: Who,
    },
    Sync {
        node: Who,
    },
    /// Lets go of everything, unmounts and mounts.
    Remount,
    /// The process dies with everything that it holds, and the next one mounts.
    Crash,
}

impl Op {
    /// The kinds that one file system, mounted once, is asked for.
    pub const KINDS: [&str; 25] = [
        "hold",
        "release",
        "hold_by_id",
        "create",
        "create_unnamed",
        "link",
        "unlink",
        "rmdir",
        "rename",
        "read_dir",
        "read_link",
        "parent",
        "get_attr",
        "set_attr",
        "read",
        "write",
        "append",
        "fallocate",
        "seek",
        "resolve",
        "get_xattr",
        "set_xattr",
        "remove_xattr",
        "list_xattrs",
        "sync",
    ];

    /// The name of its kind, for counting: one of [`KINDS`](Op::KINDS), `remount`, or `crash`.
    pub fn kind(&self) -> &'static str {
        match self {
            Op::Hold { .. } => "hold",
            Op::Release { .. } => "release",
            Op::HoldById { .. } => "hold_by_id",
            Op::Create { .. } => "create",
            Op::CreateUnnamed { .. } => "create_unnamed",
            Op::Link { .. } => "link",
            Op::Unlink { .. } => "unlink",
            Op::Rmdir { .. } => "rmdir",
            Op::Rename { .. } => "rename",
            Op::ReadDir { .. } => "read_dir",
            Op::ReadLink { .. } => "read_link",
            Op::Parent { .. } => "parent",
            Op::GetAttr { .. } => "get_attr",
            Op::SetAttr { .. } => "set_attr",
            Op::Read { .. } => "read",
            Op::Write { .. } => "write",
            Op::Append { .. } => "append",
            Op::Fallocate { .. } => "fallocate",
            Op::Seek { .. } => "seek",
            Op::Resolve { .. } => "resolve",
            Op::GetXattr { .. } => "get_xattr",
            Op::SetXattr { .. } => "set_xattr",
            Op::RemoveXattr { .. } => "remove_xattr",
            Op::ListXattrs { .. } => "list_xattrs",
            Op::Sync { .. } => "sync",
            Op::Remount => "remount",
            Op::Crash => "crash",
        }
    }
}

/// The name of an extended attribute.
pub(super) fn xattr_name(index: u8) -> Vec<u8> {
    match index % 5 {
        0 => b"user.a".to_vec(),
        1 => b"user.b".to_vec(),
        2 => b"trusted.of some length, so that it does not fit everywhere, not even into a line".to_vec(),
        3 => b"system.posix_acl_access".to_vec(),
        _ => [&b"user."[..], &[b'x'; 250]].concat(),
    }
}

/// Bytes that differ by seed and position, and are never zero.
pub(super) fn bytes(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8).wrapping_add(seed) | 1)
        .collect()
}
