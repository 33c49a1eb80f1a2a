//! Reading and changing attributes: the rules of chmod, chown, truncate and utimens.

use nacre_engine::{Attr, FileKind, Kind, Result, SetAttr, Timestamp, XattrMode};

use crate::caller::{Caller, WANT_WRITE};
use crate::xattr::ACL_ACCESS;
use crate::{Layout, Vfs};

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o0010;

/// The set-id bits that a change of content removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// None.
    Nothing,
    /// Bits that give rights. Set-gid without execution by the group has another meaning, and stays for a member.
    Rights,
    /// All.
    All,
}

impl Lost {
    /// The bits that a change by this caller removes from a file of this group, if it removes bits at all.
    pub(crate) fn by(caller: &Caller<'_>, gid: u32) -> Lost {
        if caller.privileged() || caller.in_group(gid) { Lost::Rights } else { Lost::All }
    }

    /// The mode after the change.
    pub(crate) fn from(self, mode: u32) -> u32 {
        match self {
            Lost::Nothing => mode,
            Lost::Rights if mode & GROUP_EXECUTE == 0 => mode & !SET_UID,
            Lost::Rights | Lost::All => mode & !(SET_UID | SET_GID),
        }
    }
}

/// The change of a time, as in utimensat(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// It stays.
    Omit,
    /// It becomes the time of the change.
    Now,
    /// It becomes this time.
    At(Timestamp),
}

impl SetTime {
    fn resolve(self, now: Timestamp) -> Option<Timestamp> {
        match self {
            SetTime::Omit => None,
            SetTime::Now => Some(now),
            SetTime::At(time) => Some(time),
        }
    }
}

impl<L: Layout> Vfs<L> {
    /// The attributes.
    #[inline]
    pub fn getattr(&self, node: &L::Node) -> Result<Attr> {
        self.layout.getattr(node)
    }

    /// Changes attributes and returns the new ones.
    ///
    /// - Only the owner changes mode and times, and gives the file to one of its own groups. Other changes of
    ///   ownership and of flags take privilege ([`NotPermitted`](Kind::NotPermitted)). The size takes the right to
    ///   write. All of this applies only to a caller with checks.
    /// - The mode of a file with an access ACL changes the ACL, too. Set-gid is dropped if the caller is not in the
    ///   group of the file.
    /// - A change of owner or group drops the set-id bits, except of directories. So does a change of size by a
    ///   checked, unprivileged caller, and any change with `kill_suidgid`.
    pub fn setattr(
        &self,
        caller: &Caller<'_>,
        node: &L::Node,
        change: &SetAttr,
        kill_suidgid: bool,
    ) -> Result<Attr> {
        self.setattr_at(caller, node, change, kill_suidgid, self.now())
    }

    /// The same at a time that a kernel gave the change.
    pub fn setattr_at(
        &self,
        caller: &Caller<'_>,
        node: &L::Node,
        change: &SetAttr,
        kill_suidgid: bool,
        ctime: Timestamp,
    ) -> Result<Attr> {
        self.writable()?;
        if caller.restricted() {
            self.check_setattr(caller, node, change)?;
        }
        let lost = |gid| if kill_suidgid { Lost::by(caller, gid) } else { Lost::Nothing };
        self.apply(caller, node, change, &lost, ctime)
    }

    /// Sets times that a kernel gave a file by itself, and their ctime.
    pub fn set_times_as_of(&self, node: &L::Node, change: &SetAttr, ctime: Timestamp) -> Result<Attr> {
        self.writable()?;
        self.apply(&Caller::ROOT, node, change, &|_| Lost::Nothing, ctime)
    }

    /// Changes owner and group, as chown(2) does: set-id bits of non-directories go even if both stay. An immutable
    /// inode is refused ([`NotPermitted`](Kind::NotPermitted)), even if both stay.
    pub fn chown(
        &self,
        caller: &Caller<'_>,
        node: &L::Node,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<Attr> {
        let changes_nothing = uid.is_none() && gid.is_none();
        let kill_suidgid = changes_nothing && self.layout.kind(node) != FileKind::Directory;
        if changes_nothing {
            // The layout refuses changes only.
            self.check_guards(node, true)?;
        }
        if kill_suidgid {
            // It then changes the mode, which is the owner's right, even for a caller without other checks.
            let attr = self.layout.getattr(node)?;
            if attr.mode & (SET_UID | SET_GID) != 0 && !caller.owns(&attr) {
                return Err(Kind::NotPermitted.into());
            }
        }
        self.setattr(caller, node, &SetAttr { uid, gid, ..SetAttr::default() }, kill_suidgid)
    }

    /// Sets the times. Setting both to now takes the right to write or ownership, other changes take ownership.
    pub fn set_times(
        &self,
        caller: &Caller<'_>,
        node: &L::Node,
        atime: SetTime,
        mtime: SetTime,
    ) -> Result<Attr> {
        self.writable()?;
        let attr = self.layout.getattr(node)?;
        if atime == SetTime::Omit && mtime == SetTime::Omit {
            return Ok(attr);
        }
        if caller.restricted() && !caller.owns(&attr) {
            if atime != SetTime::Now || mtime != SetTime::Now {
                return Err(Kind::NotPermitted.into());
            }
            self.check_rights(caller, node, &attr, WANT_WRITE)?;
        }
        let now = self.now();
        let touch = atime == SetTime::Now && mtime == SetTime::Now;
        let (atime, mtime) = (atime.resolve(now), mtime.resolve(now));
        let change = SetAttr { atime, mtime, touch, ..SetAttr::default() };
        self.layout.setattr(node, &change, now)
    }

    /// Changes the size through a handle that had the right to write when it was opened.
    pub(crate) fn set_len(&self, node: &L::Node, size: u64, lost: Lost) -> Result<()> {
        self.writable()?;
        let change = SetAttr { size: Some(size), ..SetAttr::default() };
        self.apply(&Caller::ROOT, node, &change, &|_| lost, self.now()).map(drop)
    }

    fn check_setattr(&self, caller: &Caller<'_>, node: &L::Node, change: &SetAttr) -> Result<()> {
        let attr = self.layout.getattr(node)?;
        let owns = caller.owns(&attr);
        let needs_owner = change.mode.is_some() || change.atime.is_some() || change.mtime.is_some();
        let takes_owner = change.uid.is_some_and(|uid| uid != attr.uid || !owns);
        let takes_group = change.gid.is_some_and(|gid| !owns || gid != attr.gid && !caller.in_group(gid));
        if needs_owner && !owns || takes_owner || takes_group || change.flags.is_some() {
            return Err(Kind::NotPermitted.into());
        }
        if change.size.is_some() {
            self.check_rights(caller, node, &attr, WANT_WRITE)?;
        }
        Ok(())
    }

    fn apply(
        &self,
        caller: &Caller<'_>,
        node: &L::Node,
        change: &SetAttr,
        lost: &dyn Fn(u32) -> Lost,
        now: Timestamp,
    ) -> Result<Attr> {
        if change.size.is_some() {
            self.require_regular(node)?;
        }
        let chown = change.uid.is_some() || change.gid.is_some();
        if change.mode.is_none() && !chown && change.size.is_none() && lost(0) == Lost::Nothing {
            return self.layout.setattr(node, change, now);
        }
        let guard = self.attribute_lock(node);
        let before = self.layout.getattr(node)?;
        let mut change = *change;
        change.mode = match change.mode {
            Some(_) if before.kind == FileKind::Symlink => return Err(Kind::Unsupported.into()),
            Some(mode) => Some(asked_mode(caller, &before, &change, mode, lost(before.gid))),
            None => implied_mode(caller, &before, &change, lost(before.gid)),
        };
        if before.kind == FileKind::Regular && (chown || change.size.is_some()) {
            self.drop_capability(node)?;
        }
        let attr = self.commit_attributes(node, &before, change)?;
        drop(guard);
        if attr.mode & (SET_UID | SET_GID) != 0 && attr.mode != before.mode {
            self.raise_privilege_epoch();
        }
        Ok(attr)
    }

    /// Changes attributes, and the access ACL with the permission bits. The attribute lock is held.
    fn commit_attributes(&self, node: &L::Node, before: &Attr, mut change: SetAttr) -> Result<Attr> {
        let permissions = |mode: u32| mode & 0o777;
        if let Some(mode) = change.mode
            && permissions(mode) != permissions(before.mode)
            && let Some(mut acl) = self.stored_acl(node, ACL_ACCESS)?
        {
            acl.set_mode(mode);
            let value = acl.to_bytes();
            self.layout.set_xattr(node, ACL_ACCESS, &value, XattrMode::Set, Some(mode), self.now())?;
            change.mode = None;
            if change == SetAttr::default() {
                return self.layout.getattr(node);
            }
        }
        self.layout.setattr(node, &change, self.now())
    }
}

/// The mode that results from a request for this one.
fn asked_mode(caller: &Caller<'_>, before: &Attr, change: &SetAttr, mode: u32, lost: Lost) -> u32 {
    let mut mode = mode & 0o7777;
    if caller.restricted() && !caller.in_group(change.gid.unwrap_or(before.gid)) {
        mode &= !SET_GID;
    }
    if before.kind != FileKind::Directory { lost.from(mode) } else { mode }
}

/// The mode that another change implies, if it differs from the old one.
fn implied_mode(caller: &Caller<'_>, before: &Attr, change: &SetAttr, lost: Lost) -> Option<u32> {
    let chown = change.uid.is_some() || change.gid.is_some();
    let truncated = change.size.is_some() && caller.restricted();
    if before.kind == FileKind::Directory || !(chown || truncated || lost != Lost::Nothing) {
        return None;
    }
    let mut mode = Lost::by(caller, before.gid).from(before.mode);
    if chown && caller.restricted() && !caller.in_group(change.gid.unwrap_or(before.gid)) {
        mode &= !SET_GID;
    }
    (mode != before.mode).then_some(mode)
}

#[cfg(test)]
mod tests {
    use super::Lost;

    #[test]
    fn set_gid_without_execution_by_the_group_stays_for_a_member() {
        assert_eq!(Lost::Rights.from(0o6755), 0o755);
        assert_eq!(Lost::Rights.from(0o6745), 0o2745);
        assert_eq!(Lost::Rights.from(0o1644), 0o1644);
        assert_eq!(Lost::All.from(0o6745), 0o745);
        assert_eq!(Lost::Nothing.from(0o6755), 0o6755);
    }
}
