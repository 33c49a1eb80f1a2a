//! Attributes in the manner of the standard library.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::SystemTime;

use nacre_engine::{Attr, FileKind};

/// The attributes of a file at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata {
    attr: Attr,
}

impl From<Attr> for Metadata {
    fn from(attr: Attr) -> Metadata {
        Metadata { attr }
    }
}

impl Metadata {
    /// All of them, as the contract has them.
    pub fn attr(&self) -> &Attr {
        &self.attr
    }

    /// Its kind.
    pub fn kind(&self) -> FileKind {
        self.attr.kind
    }

    /// A directory.
    pub fn is_dir(&self) -> bool {
        self.attr.kind == FileKind::Directory
    }

    /// A regular file.
    pub fn is_file(&self) -> bool {
        self.attr.kind == FileKind::Regular
    }

    /// A symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.attr.kind == FileKind::Symlink
    }

    /// Size in bytes.
    #[allow(clippy::len_without_is_empty, reason = "the name that std::fs::Metadata has, without is_empty")]
    pub fn len(&self) -> u64 {
        self.attr.size
    }

    /// Permission bits with set-id and sticky bits.
    pub fn permissions(&self) -> Permissions {
        Permissions::from_mode(self.attr.mode)
    }

    /// Permission bits with set-id and sticky bits (07777).
    pub fn mode(&self) -> u32 {
        self.attr.mode
    }

    /// Last change of data.
    pub fn modified(&self) -> SystemTime {
        self.attr.mtime.into()
    }

    /// Last read, by the rules of relatime.
    pub fn accessed(&self) -> SystemTime {
        self.attr.atime.into()
    }

    /// Last change of data or attributes.
    pub fn changed(&self) -> SystemTime {
        self.attr.ctime.into()
    }

    /// Creation.
    pub fn created(&self) -> SystemTime {
        self.attr.btime.into()
    }

    /// Inode number.
    pub fn ino(&self) -> u64 {
        self.attr.id.number
    }

    /// How often the inode number was given out.
    pub fn generation(&self) -> u32 {
        self.attr.id.generation
    }

    /// Names that refer to it.
    pub fn nlink(&self) -> u32 {
        self.attr.links
    }

    /// Owner.
    pub fn uid(&self) -> u32 {
        self.attr.uid
    }

    /// Group.
    pub fn gid(&self) -> u32 {
        self.attr.gid
    }

    /// Device number of a device node.
    pub fn rdev(&self) -> u64 {
        self.attr.rdev
    }

    /// Bytes of data allocated.
    pub fn allocated(&self) -> u64 {
        self.attr.allocated
    }
}
