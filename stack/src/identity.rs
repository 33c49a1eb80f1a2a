//! The identity in whose name the library acts.

use nacre_vfs::Caller;

/// The user that owns new files and, on request, is subject to permission checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The user.
    pub uid: u32,
    /// The user's group.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
    /// Permission bits that new files do not get.
    pub umask: u32,
    /// Whether permissions are checked. Otherwise everything is allowed, because a user that can open the device can
    /// read all of it anyway.
    pub check: bool,
}

impl Default for Identity {
    /// The user of this process, with a umask of 022 and without checks.
    fn default() -> Identity {
        let groups = rustix::process::getgroups().unwrap_or_default();
        Identity {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(|group| group.as_raw()).collect(),
            umask: 0o022,
            check: false,
        }
    }
}

impl Identity {
    /// A user for whom permissions are checked.
    pub fn checked(uid: u32, gid: u32) -> Identity {
        Identity { uid, gid, groups: Vec::new(), umask: 0o022, check: true }
    }

    #[inline]
    pub(crate) fn caller(&self) -> Caller<'_> {
        Caller { uid: self.uid, gid: self.gid, groups: &self.groups, umask: self.umask, check: self.check }
    }
}
