//! Extended attributes: the rights to each namespace, and ACLs, in which attribute and mode are kept consistent.

use nacre_engine::{Attr, FileKind, Kind, Result, SetAttr, XattrMode};

use crate::acl::Acl;
use crate::caller::{Caller, WANT_READ, WANT_WRITE};
use crate::{Layout, Vfs};

/// The attribute of the ACL that governs access.
pub const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute of the ACL that new inodes in a directory inherit.
pub const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
/// The attribute of a program's capabilities.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

const SET_GID: u32 = 0o2000;

/// The longest name of an attribute in bytes, with its namespace.
const XATTR_NAME_MAX: usize = 255;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Namespace {
    User,
    Trusted,
    Security,
    AclAccess,
    AclDefault,
}

impl Namespace {
    fn of(name: &[u8]) -> Result<Namespace> {
        if name.is_empty() || name.len() > XATTR_NAME_MAX {
            return Err(Kind::NameTooLong.into());
        }
        if name.contains(&0) {
            return Err(Kind::InvalidInput.into());
        }
        let namespace = match name {
            ACL_ACCESS => return Ok(Namespace::AclAccess),
            ACL_DEFAULT => return Ok(Namespace::AclDefault),
            _ if name.starts_with(b"user.") => Namespace::User,
            _ if name.starts_with(b"trusted.") => Namespace::Trusted,
            _ if name.starts_with(b"security.") => Namespace::Security,
            _ => return Err(Kind::Unsupported.into()),
        };
        if name.ends_with(b".") && name.iter().filter(|byte| **byte == b'.').count() == 1 {
            return Err(Kind::InvalidInput.into());
        }
        Ok(namespace)
    }

    fn is_acl(self) -> bool {
        matches!(self, Namespace::AclAccess | Namespace::AclDefault)
    }
}

fn has_user_attributes(kind: FileKind) -> bool {
    matches!(kind, FileKind::Regular | FileKind::Directory)
}

impl<L: Layout> Vfs<L> {
    /// The value of an extended attribute. [`NoAttribute`](Kind::NoAttribute) if it does not exist or is hidden from
    /// the caller, [`Unsupported`](Kind::Unsupported) outside the namespaces `user`, `trusted`, `security` and the two
    /// ACLs of `system`.
    pub fn get_xattr(&self, caller: &Caller<'_>, node: &L::Node, name: &[u8]) -> Result<Vec<u8>> {
        let namespace = Namespace::of(name)?;
        let kind = self.layout.kind(node);
        match namespace {
            Namespace::AclAccess | Namespace::AclDefault if kind == FileKind::Symlink => {
                return Err(Kind::Unsupported.into());
            }
            Namespace::AclDefault if kind != FileKind::Directory => return Err(Kind::NoAttribute.into()),
            Namespace::User if !has_user_attributes(kind) => return Err(Kind::NoAttribute.into()),
            Namespace::User => self.permit(caller, node, WANT_READ)?,
            Namespace::Trusted if caller.restricted() => return Err(Kind::NoAttribute.into()),
            _ => {}
        }
        self.layout.get_xattr(node, name)
    }

    /// The names of all extended attributes that are visible to the caller.
    pub fn list_xattrs(&self, caller: &Caller<'_>, node: &L::Node) -> Result<Vec<Vec<u8>>> {
        let mut names = self.layout.list_xattrs(node)?;
        if caller.restricted() {
            names.retain(|name| !name.starts_with(b"trusted."));
        }
        Ok(names)
    }

    /// Sets an extended attribute. An ACL is validated. An access ACL changes the mode in the same commit, and is not
    /// kept if it says no more than the mode. It removes set-gid if the caller is outside the file's group.
    pub fn set_xattr(
        &self,
        caller: &Caller<'_>,
        node: &L::Node,
        name: &[u8],
        value: &[u8],
        how: XattrMode,
    ) -> Result<()> {
        let namespace = Namespace::of(name)?;
        self.writable()?;
        self.check_xattr_change(caller, node, namespace)?;
        if value.len() > self.layout.capabilities().max_xattr_size {
            return Err(Kind::TooBig.into());
        }
        if namespace.is_acl() {
            return self.set_acl(caller, node, namespace, name, value, how);
        }
        self.layout.set_xattr(node, name, value, how, None, self.now())?;
        if name == CAPABILITY {
            self.raise_privilege_epoch();
        }
        Ok(())
    }

    /// Removes an extended attribute; [`NoAttribute`](Kind::NoAttribute) if it does not exist. Removing a missing ACL
    /// succeeds.
    pub fn remove_xattr(&self, caller: &Caller<'_>, node: &L::Node, name: &[u8]) -> Result<()> {
        let namespace = Namespace::of(name)?;
        self.writable()?;
        self.check_xattr_change(caller, node, namespace)?;
        if namespace.is_acl() {
            let _guard = self.attribute_lock(node);
            return self.remove_acl(node, name);
        }
        self.layout.remove_xattr(node, name, self.now())
    }

    fn check_xattr_change(&self, caller: &Caller<'_>, node: &L::Node, namespace: Namespace) -> Result<()> {
        let kind = self.layout.kind(node);
        if namespace == Namespace::User && !has_user_attributes(kind) {
            return Err(Kind::NotPermitted.into());
        }
        if namespace.is_acl() && kind == FileKind::Symlink {
            return Err(Kind::Unsupported.into());
        }
        if !caller.restricted() {
            return Ok(());
        }
        let attr = self.layout.getattr(node)?;
        match namespace {
            Namespace::Trusted | Namespace::Security => Err(Kind::NotPermitted.into()),
            Namespace::AclAccess | Namespace::AclDefault if !caller.owns(&attr) => {
                Err(Kind::NotPermitted.into())
            }
            Namespace::AclAccess | Namespace::AclDefault => Ok(()),
            Namespace::User => {
                let sticky_dir = kind == FileKind::Directory && attr.mode & 0o1000 != 0;
                if sticky_dir && !caller.owns(&attr) {
                    return Err(Kind::NotPermitted.into());
                }
                self.check_rights(caller, node, &attr, WANT_WRITE)
            }
        }
    }

    fn set_acl(
        &self,
        caller: &Caller<'_>,
        node: &L::Node,
        namespace: Namespace,
        name: &[u8],
        value: &[u8],
        how: XattrMode,
    ) -> Result<()> {
        let acl = Acl::parse(value)?;
        let _guard = self.attribute_lock(node);
        let attr = self.layout.getattr(node)?;
        if namespace == Namespace::AclDefault && attr.kind != FileKind::Directory {
            return if acl.is_some() { Err(Kind::AccessDenied.into()) } else { Ok(()) };
        }
        let Some(acl) = acl else {
            return self.remove_acl(node, name);
        };
        if namespace == Namespace::AclDefault {
            return self.layout.set_xattr(node, name, &acl.to_bytes(), how, None, self.now());
        }
        let mode = mode_with_acl(caller, &attr, &acl);
        if !acl.is_only_mode() {
            return self.layout.set_xattr(node, name, &acl.to_bytes(), how, Some(mode), self.now());
        }
        // An ACL that says no more than the mode replaces a longer one in one commit and then goes. Thus the mode's
        // group bits never grant rights that only the mask of the old ACL allowed.
        match self.layout.set_xattr(node, name, &acl.to_bytes(), XattrMode::Replace, Some(mode), self.now()) {
            Err(error) if error.kind() == Kind::NoAttribute => {
                let change = SetAttr { mode: Some(mode), ..SetAttr::default() };
                self.layout.setattr(node, &change, self.now()).map(drop)
            }
            Err(error) => Err(error),
            Ok(()) => self.remove_acl(node, name),
        }
    }

    fn remove_acl(&self, node: &L::Node, name: &[u8]) -> Result<()> {
        match self.layout.remove_xattr(node, name, self.now()) {
            Err(error) if error.kind() == Kind::NoAttribute => Ok(()),
            verdict => verdict,
        }
    }
}

/// The mode of an inode that gets this access ACL. Set-gid goes for a caller outside the group, even if its
/// permissions were checked before. A front end that does not know the caller's groups thus errs on the safe side.
fn mode_with_acl(caller: &Caller<'_>, attr: &Attr, acl: &Acl) -> u32 {
    let mode = attr.mode & 0o7000 | acl.mode();
    if caller.privileged() || caller.in_group(attr.gid) { mode } else { mode & !SET_GID }
}

#[cfg(test)]
mod tests {
    use nacre_engine::Kind;

    use super::Namespace;

    #[test]
    fn only_known_namespaces_are_served() {
        assert_eq!(Namespace::of(b"user.a").unwrap(), Namespace::User);
        assert_eq!(Namespace::of(b"user.a.").unwrap(), Namespace::User);
        assert_eq!(Namespace::of(b"system.posix_acl_default").unwrap(), Namespace::AclDefault);
        for (name, kind) in [
            (&b"system.other"[..], Kind::Unsupported),
            (b"plain", Kind::Unsupported),
            (b"user.", Kind::InvalidInput),
            (b"", Kind::NameTooLong),
            (&[b'x'; 256], Kind::NameTooLong),
        ] {
            assert_eq!(Namespace::of(name).unwrap_err().kind(), kind);
        }
    }
}
