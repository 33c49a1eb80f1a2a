//! Checks of a caller's rights.

use nacre_engine::{Attr, FileKind, Kind, Result};

use crate::acl::Acl;
use crate::caller::{Caller, WANT_EXECUTE, WANT_READ, WANT_WRITE};
use crate::xattr::ACL_ACCESS;
use crate::{Layout, Vfs};

impl<L: Layout> Vfs<L> {
    /// Whether the caller has all the rights in `want` ([`WANT_READ`], [`WANT_WRITE`], [`WANT_EXECUTE`]) by permission
    /// bits, ACL, and the state of the file system. It is checked even for a caller with `check: false`.
    ///
    /// [`ReadOnly`](Kind::ReadOnly) for writing on a read-only mount, [`NotPermitted`](Kind::NotPermitted) for writing
    /// to an immutable inode, otherwise [`AccessDenied`](Kind::AccessDenied).
    pub fn access(&self, caller: &Caller<'_>, node: &L::Node, want: u32) -> Result<()> {
        let attr = self.layout.getattr(node)?;
        if want & WANT_WRITE != 0 {
            let has_content =
                matches!(attr.kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink);
            if self.is_read_only() && has_content {
                return Err(Kind::ReadOnly.into());
            }
            if attr.flags & Attr::IMMUTABLE != 0 {
                return Err(Kind::NotPermitted.into());
            }
        }
        self.check_rights(caller, node, &attr, want)
    }

    /// Checks the rights of a restricted caller; for others it costs nothing.
    #[inline]
    pub(crate) fn permit(&self, caller: &Caller<'_>, node: &L::Node, want: u32) -> Result<()> {
        if !caller.restricted() {
            return Ok(());
        }
        let attr = self.layout.getattr(node)?;
        self.check_rights(caller, node, &attr, want)
    }

    /// The rights by permission bits and ACL.
    pub(crate) fn check_rights(
        &self,
        caller: &Caller<'_>,
        node: &L::Node,
        attr: &Attr,
        want: u32,
    ) -> Result<()> {
        if self.has_rights(caller, node, attr, want)? { Ok(()) } else { Err(Kind::AccessDenied.into()) }
    }

    fn has_rights(&self, caller: &Caller<'_>, node: &L::Node, attr: &Attr, want: u32) -> Result<bool> {
        debug_assert!(want <= (WANT_READ | WANT_WRITE | WANT_EXECUTE));
        if caller.privileged() {
            // Even the super-user may execute only files with an execute bit.
            let executes = want & WANT_EXECUTE != 0 && attr.kind != FileKind::Directory;
            return Ok(!executes || attr.mode & 0o111 != 0);
        }
        if caller.uid == attr.uid {
            return Ok(attr.mode >> 6 & want == want);
        }
        // The bits of the group are the mask of an ACL. If they are 0, an ACL grants rights only to the owner and the
        // others, and Linux does not read it either.
        if attr.mode & 0o070 != 0
            && attr.kind != FileKind::Symlink
            && let Some(acl) = self.stored_acl(node, ACL_ACCESS)?
        {
            return Ok(acl.allows(caller, attr, want));
        }
        let class = if caller.in_group(attr.gid) { 3 } else { 0 };
        Ok(attr.mode >> class & want == want)
    }

    /// The ACL that the layout holds for this inode.
    pub(crate) fn stored_acl(&self, node: &L::Node, name: &[u8]) -> Result<Option<Acl>> {
        match self.layout.get_xattr(node, name) {
            Ok(value) => Acl::parse(&value),
            Err(error) if matches!(error.kind(), Kind::NoAttribute | Kind::Unsupported) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether a restricted caller may remove or replace `victim` in `dir`: the right to write there and the sticky
    /// rule.
    pub(crate) fn may_delete(&self, caller: &Caller<'_>, dir: &L::Node, victim: &L::Node) -> Result<()> {
        if !caller.restricted() {
            return Ok(());
        }
        let dir_attr = self.layout.getattr(dir)?;
        self.check_rights(caller, dir, &dir_attr, WANT_WRITE | WANT_EXECUTE)?;
        let sticky = dir_attr.mode & 0o1000 != 0;
        if sticky && caller.uid != dir_attr.uid && caller.uid != self.layout.getattr(victim)?.uid {
            return Err(Kind::NotPermitted.into());
        }
        Ok(())
    }
}
