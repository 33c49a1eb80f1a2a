//! The caller of an operation.

use nacre_engine::Attr;

/// The right to read, in the argument of [`Vfs::access`](crate::Vfs::access).
pub const WANT_READ: u32 = 4;
/// The right to write.
pub const WANT_WRITE: u32 = 2;
/// The right to execute a file or to pass through a directory.
pub const WANT_EXECUTE: u32 = 1;

/// The identity for which an operation runs.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    /// The user, owner of what is created.
    pub uid: u32,
    /// The group of what is created.
    pub gid: u32,
    /// Further groups of the user.
    pub groups: &'a [u32],
    /// Permission bits that new inodes do not get, unless their directory has a default ACL.
    pub umask: u32,
    /// Whether permissions are still to be checked; false if the kernel has done it (`default_permissions`).
    pub check: bool,
}

impl Caller<'_> {
    /// The super-user, without checks.
    pub const ROOT: Caller<'static> = Caller { uid: 0, gid: 0, groups: &[], umask: 0o022, check: false };

    /// Whether the caller may override permissions.
    pub fn privileged(&self) -> bool {
        self.uid == 0
    }

    /// Whether the caller is a member of the group.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Whether permissions must be checked for this caller.
    pub(crate) fn restricted(&self) -> bool {
        self.check && self.uid != 0
    }

    /// Whether the caller may act as the owner of the inode.
    pub fn owns(&self, attr: &Attr) -> bool {
        self.privileged() || self.uid == attr.uid
    }
}
