//! Making, linking, renaming and removing names, by node.

use nacre_engine::{Attr, FileKind, Kind, NewInode, RenameMode, Result, Timestamp};

use crate::caller::{Caller, WANT_EXECUTE, WANT_WRITE};
use crate::xattr::{ACL_ACCESS, ACL_DEFAULT};
use crate::{Layout, Vfs, name};

const SET_GID: u32 = 0o2000;

/// The longest target of a symbolic link in bytes.
const TARGET_MAX: usize = 4095;

/// The parts of an inode for [`Vfs::create`].
#[derive(Debug, Clone, Copy)]
pub struct Create<'a> {
    /// The kind.
    pub kind: FileKind,
    /// Permission bits before umask or inheritance.
    pub mode: u32,
    /// Device number of a device node; otherwise 0.
    pub rdev: u64,
    /// Target of a symbolic link; otherwise empty.
    pub target: &'a [u8],
}

impl<'a> Create<'a> {
    /// A regular file.
    pub const fn file(mode: u32) -> Create<'a> {
        Create { kind: FileKind::Regular, mode, rdev: 0, target: &[] }
    }

    /// A directory.
    pub const fn directory(mode: u32) -> Create<'a> {
        Create { kind: FileKind::Directory, mode, rdev: 0, target: &[] }
    }

    /// A symbolic link.
    pub const fn symlink(target: &'a [u8]) -> Create<'a> {
        Create { kind: FileKind::Symlink, mode: 0o777, rdev: 0, target }
    }

    /// Checks the target of a symbolic link, before its name is checked.
    pub fn check_target(&self) -> Result<()> {
        match self.kind {
            FileKind::Symlink if self.target.is_empty() => Err(Kind::NotFound.into()),
            FileKind::Symlink if self.target.len() > TARGET_MAX => Err(Kind::NameTooLong.into()),
            FileKind::Symlink if self.target.contains(&0) => Err(Kind::InvalidInput.into()),
            _ => Ok(()),
        }
    }

    fn check(&self, caller: &Caller<'_>) -> Result<()> {
        self.check_target()?;
        match self.kind {
            FileKind::CharDevice | FileKind::BlockDevice if caller.restricted() => {
                Err(Kind::NotPermitted.into())
            }
            _ => Ok(()),
        }
    }
}

/// The parts of a new inode that its directory determines.
struct Inherited {
    mode: u32,
    gid: u32,
    access_acl: Option<Vec<u8>>,
    default_acl: Option<Vec<u8>>,
}

impl Inherited {
    /// Calls `make` with the initial extended attributes of the inode.
    fn with_xattrs<T>(&self, make: impl FnOnce(&[(&[u8], &[u8])]) -> T) -> T {
        match (&self.access_acl, &self.default_acl) {
            (None, None) => make(&[]),
            (Some(access), None) => make(&[(ACL_ACCESS, access)]),
            (None, Some(default)) => make(&[(ACL_DEFAULT, default)]),
            (Some(access), Some(default)) => make(&[(ACL_ACCESS, access), (ACL_DEFAULT, default)]),
        }
    }
}

impl<L: Layout> Vfs<L> {
    /// The inode that `name` in `dir` refers to; `.` and `..` are names, too.
    #[inline]
    pub fn lookup(&self, caller: &Caller<'_>, dir: &L::Node, name: &[u8]) -> Result<L::Node> {
        self.permit(caller, dir, WANT_EXECUTE)?;
        self.lookup_permitted(dir, name)
    }

    #[inline]
    pub(crate) fn lookup_permitted(&self, dir: &L::Node, name: &[u8]) -> Result<L::Node> {
        match name {
            b"." | b".." if self.layout.kind(dir) != FileKind::Directory => Err(Kind::NotDirectory.into()),
            b"." => Ok(dir.clone()),
            b".." => self.layout.parent(dir),
            _ => {
                name::check(name)?;
                self.layout.lookup(dir, name)
            }
        }
    }

    /// Creates an inode with a name.
    ///
    /// Its group is that of a set-gid directory, otherwise the caller's. A subdirectory of a set-gid directory is
    /// set-gid. Its permissions are narrowed by the default ACL of the directory, otherwise by the caller's umask.
    pub fn create(
        &self,
        caller: &Caller<'_>,
        dir: &L::Node,
        name: &[u8],
        create: &Create<'_>,
    ) -> Result<L::Node> {
        name::check_entry(name, Kind::Exists)?;
        self.writable_for_new(dir, name)?;
        create.check(caller)?;
        let dir_attr = self.layout.getattr(dir)?;
        if dir_attr.kind != FileKind::Directory {
            return Err(Kind::NotDirectory.into());
        }
        self.may_create(caller, dir, &dir_attr, name)?;
        let inherited = self.inherit(caller, dir, &dir_attr, create)?;
        inherited.with_xattrs(|xattrs| {
            let new = new_inode(caller, create, &inherited, xattrs, self.now());
            self.layout.create(dir, name, &new)
        })
    }

    /// Creates a regular file without a name (O_TMPFILE), with owner, group and permissions as if created in `dir`.
    pub fn create_unnamed(&self, caller: &Caller<'_>, dir: &L::Node, mode: u32) -> Result<L::Node> {
        self.writable()?;
        let dir_attr = self.layout.getattr(dir)?;
        if dir_attr.kind != FileKind::Directory {
            return Err(Kind::NotDirectory.into());
        }
        if caller.restricted() {
            self.check_rights(caller, dir, &dir_attr, WANT_WRITE | WANT_EXECUTE)?;
        }
        let create = Create::file(mode);
        let inherited = self.inherit(caller, dir, &dir_attr, &create)?;
        inherited.with_xattrs(|xattrs| {
            self.layout.create_unnamed(&new_inode(caller, &create, &inherited, xattrs, self.now()))
        })
    }

    /// Adds a name to a non-directory.
    pub fn link(&self, caller: &Caller<'_>, node: &L::Node, dir: &L::Node, name: &[u8]) -> Result<()> {
        name::check_entry(name, Kind::Exists)?;
        self.writable_for_new(dir, name)?;
        if caller.restricted() {
            let dir_attr = self.layout.getattr(dir)?;
            self.may_create(caller, dir, &dir_attr, name)?;
        }
        if self.layout.kind(node) == FileKind::Directory {
            // An existing name is reported first, as in Linux.
            let exists = self.layout.lookup(dir, name).is_ok();
            return Err(if exists { Kind::Exists } else { Kind::NotPermitted }.into());
        }
        self.layout.link(node, dir, name, self.now())
    }

    /// Removes the name of a non-directory.
    pub fn unlink(&self, caller: &Caller<'_>, dir: &L::Node, name: &[u8]) -> Result<()> {
        name::check_entry(name, Kind::IsDirectory)?;
        self.writable()?;
        self.check_removal(caller, dir, name)?;
        self.layout.unlink(dir, name, self.now())
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, caller: &Caller<'_>, dir: &L::Node, name: &[u8]) -> Result<()> {
        match name {
            b"." => return Err(Kind::InvalidInput.into()),
            b".." => return Err(Kind::NotEmpty.into()),
            _ => name::check(name)?,
        }
        self.writable()?;
        self.check_removal(caller, dir, name)?;
        self.layout.rmdir(dir, name, self.now())
    }

    /// Moves a name, replaces another with it, or swaps two. The caller owns the whiteout that a rename leaves.
    pub fn rename(
        &self,
        caller: &Caller<'_>,
        from_dir: &L::Node,
        from: &[u8],
        to_dir: &L::Node,
        to: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        name::check_entry(from, Kind::Busy)?;
        let dots = if mode == RenameMode::NoReplace { Kind::Exists } else { Kind::Busy };
        name::check_entry(to, dots)?;
        self.writable()?;
        if caller.restricted() {
            self.check_rename(caller, from_dir, from, to_dir, to, mode)?;
        }
        let mode = self.owned_by(caller, from_dir, mode)?;
        self.layout.rename(from_dir, from, to_dir, to, mode, self.now())
    }

    /// A whiteout belongs to the caller, and to the group of a set-gid directory, as any new inode.
    fn owned_by(&self, caller: &Caller<'_>, dir: &L::Node, mode: RenameMode) -> Result<RenameMode> {
        let RenameMode::Whiteout { .. } = mode else { return Ok(mode) };
        Ok(RenameMode::Whiteout { uid: caller.uid, gid: group_of_new(caller, &self.layout.getattr(dir)?) })
    }

    fn check_rename(
        &self,
        caller: &Caller<'_>,
        from_dir: &L::Node,
        from: &[u8],
        to_dir: &L::Node,
        to: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.permit(caller, from_dir, WANT_EXECUTE)?;
        self.permit(caller, to_dir, WANT_EXECUTE)?;
        let source = self.layout.lookup(from_dir, from)?;
        let target = match self.layout.lookup(to_dir, to) {
            Ok(target) => Some(target),
            Err(error) if error.kind() == Kind::NotFound => None,
            Err(error) => return Err(error),
        };
        self.may_delete(caller, from_dir, &source)?;
        match &target {
            Some(_) if mode == RenameMode::NoReplace => return Err(Kind::Exists.into()),
            None if mode == RenameMode::Exchange => return Err(Kind::NotFound.into()),
            Some(target) => self.may_delete(caller, to_dir, target)?,
            None => self.permit(caller, to_dir, WANT_WRITE | WANT_EXECUTE)?,
        }
        if self.layout.id(from_dir) == self.layout.id(to_dir) {
            return Ok(());
        }
        // A directory that gets another parent is itself changed, because its `..` is.
        if self.layout.kind(&source) == FileKind::Directory {
            self.permit(caller, &source, WANT_WRITE)?;
        }
        match target {
            Some(target)
                if mode == RenameMode::Exchange && self.layout.kind(&target) == FileKind::Directory =>
            {
                self.permit(caller, &target, WANT_WRITE)
            }
            _ => Ok(()),
        }
    }

    /// A read-only file system refuses a new name, but reports an existing one first, as in Linux.
    fn writable_for_new(&self, dir: &L::Node, name: &[u8]) -> Result<()> {
        match self.writable() {
            Err(_) if self.layout.lookup(dir, name).is_ok() => Err(Kind::Exists.into()),
            verdict => verdict,
        }
    }

    /// The right to create a name; an existing one is reported first.
    fn may_create(&self, caller: &Caller<'_>, dir: &L::Node, dir_attr: &Attr, name: &[u8]) -> Result<()> {
        if !caller.restricted() {
            return Ok(());
        }
        self.check_rights(caller, dir, dir_attr, WANT_EXECUTE)?;
        let verdict = self.check_rights(caller, dir, dir_attr, WANT_WRITE | WANT_EXECUTE);
        match verdict {
            Err(_) if self.layout.lookup(dir, name).is_ok() => Err(Kind::Exists.into()),
            verdict => verdict,
        }
    }

    fn check_removal(&self, caller: &Caller<'_>, dir: &L::Node, name: &[u8]) -> Result<()> {
        if !caller.restricted() {
            return Ok(());
        }
        self.permit(caller, dir, WANT_EXECUTE)?;
        let victim = self.layout.lookup(dir, name)?;
        self.may_delete(caller, dir, &victim)
    }

    fn inherit(
        &self,
        caller: &Caller<'_>,
        dir: &L::Node,
        dir_attr: &Attr,
        create: &Create<'_>,
    ) -> Result<Inherited> {
        let is_directory = create.kind == FileKind::Directory;
        let mut mode = create.mode & if is_directory { 0o1777 } else { 0o7777 };
        let gid = group_of_new(caller, dir_attr);
        if dir_attr.mode & SET_GID != 0 {
            if is_directory {
                mode |= SET_GID;
            } else if mode & 0o2010 == 0o2010 && caller.restricted() && !caller.in_group(gid) {
                mode &= !SET_GID;
            }
        }
        let mut inherited = Inherited { mode, gid, access_acl: None, default_acl: None };
        if create.kind == FileKind::Symlink {
            inherited.mode = 0o777;
            return Ok(inherited);
        }
        let Some(mut acl) = self.stored_acl(dir, ACL_DEFAULT)? else {
            inherited.mode &= !(caller.umask & 0o777);
            return Ok(inherited);
        };
        if is_directory {
            inherited.default_acl = Some(acl.to_bytes());
        }
        inherited.mode = acl.narrow(mode);
        if !acl.is_only_mode() {
            inherited.access_acl = Some(acl.to_bytes());
        }
        Ok(inherited)
    }
}

/// The group of a new inode in a directory.
fn group_of_new(caller: &Caller<'_>, dir: &Attr) -> u32 {
    if dir.mode & SET_GID != 0 { dir.gid } else { caller.gid }
}

fn new_inode<'a>(
    caller: &Caller<'_>,
    create: &Create<'a>,
    inherited: &Inherited,
    xattrs: &'a [(&'a [u8], &'a [u8])],
    now: Timestamp,
) -> NewInode<'a> {
    let is_device = matches!(create.kind, FileKind::CharDevice | FileKind::BlockDevice);
    NewInode {
        kind: create.kind,
        mode: inherited.mode,
        uid: caller.uid,
        gid: inherited.gid,
        rdev: if is_device { create.rdev } else { 0 },
        target: create.target,
        xattrs,
        now,
    }
}
