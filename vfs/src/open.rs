//! Opening files.

use nacre_engine::{Attr, FileKind, Kind, Result};

use crate::attributes::Lost;
use crate::caller::{Caller, WANT_READ, WANT_WRITE};
use crate::namespace::Create;
use crate::path::PathEnd;
use crate::{Handle, Layout, Vfs};

/// The flags of open(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenFlags {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// Each write goes to the end of the file (`write` is implied).
    pub append: bool,
    /// Create the file if it does not exist.
    pub create: bool,
    /// Create the file, which must not exist. A symbolic link counts as existing.
    pub create_new: bool,
    /// Truncate the file to zero bytes.
    pub truncate: bool,
    /// It must be a directory.
    pub directory: bool,
    /// A symbolic link at the path's end is an error, unless `path` is given; then the link itself is opened.
    pub nofollow: bool,
    /// The path names a directory in which a file without a name is created.
    pub tmpfile: bool,
    /// Each write is durable on return, with its attributes and the metadata needed to read it back.
    pub sync: bool,
    /// Each write is durable on return, with the metadata needed to read it back.
    pub dsync: bool,
    /// Only the inode is held: no reading, no writing, and no permission on it is needed.
    pub path: bool,
}

impl OpenFlags {
    pub(crate) fn writes(&self) -> bool {
        self.write || self.append
    }

    fn creates(&self) -> bool {
        self.create || self.create_new
    }

    fn check(&self) -> Result<()> {
        let opens = self.read || self.writes() || self.path;
        let truncates_what_it_writes = self.writes() || !self.truncate;
        let directory_exists = !(self.directory && self.creates());
        let unnamed_is_written = !self.tmpfile || self.writes() && !self.creates() && !self.path;
        let held_only = !(self.path && (self.creates() || self.truncate));
        let sensible =
            opens && truncates_what_it_writes && directory_exists && unnamed_is_written && held_only;
        if sensible { Ok(()) } else { Err(Kind::InvalidInput.into()) }
    }

    fn wants(&self) -> u32 {
        let mut want = 0;
        if self.path {
            return want;
        }
        if self.read {
            want |= WANT_READ;
        }
        if self.writes() {
            want |= WANT_WRITE;
        }
        want
    }
}

/// Refuses to create a file at a name with a trailing slash, whether the name exists or not.
fn refuse_slash(name: &[u8], slash: bool) -> Result<()> {
    if slash && !matches!(name, b"." | b"..") { Err(Kind::IsDirectory.into()) } else { Ok(()) }
}

impl<L: Layout> Vfs<L> {
    /// Opens the inode that a path names, or creates a regular file with this mode if the flags say so.
    pub fn open(
        &self,
        caller: &Caller<'_>,
        start: &L::Node,
        path: &[u8],
        flags: OpenFlags,
        mode: u32,
    ) -> Result<Handle<L>> {
        flags.check()?;
        if flags.tmpfile {
            let dir = self.resolve(caller, start, path, true)?;
            let node = self.create_unnamed(caller, &dir, mode)?;
            return self.handle(node, flags, caller);
        }
        if flags.create_new {
            let place = self.resolve_place(caller, start, path)?;
            refuse_slash(place.name, place.must_be_dir)?;
            return self.open_created(caller, &place, flags, mode);
        }
        if flags.create {
            return self.open_or_create(caller, start, path, flags, mode, &mut Vfs::<L>::symlink_budget());
        }
        let node = self.resolve(caller, start, path, !flags.nofollow)?;
        self.open_existing(caller, node, flags, false)
    }

    /// Opens a held inode, as if by its path.
    pub fn open_node(&self, caller: &Caller<'_>, node: L::Node, flags: OpenFlags) -> Result<Handle<L>> {
        flags.check()?;
        if flags.creates() || flags.tmpfile {
            return Err(Kind::InvalidInput.into());
        }
        self.open_existing(caller, node, flags, false)
    }

    /// Opens or creates the file that the path names. Symbolic links at its end are followed even if they dangle.
    fn open_or_create(
        &self,
        caller: &Caller<'_>,
        start: &L::Node,
        path: &[u8],
        flags: OpenFlags,
        mode: u32,
        budget: &mut u32,
    ) -> Result<Handle<L>> {
        let place = self.walk_to_place(caller, start, path, budget)?;
        refuse_slash(place.name, place.must_be_dir)?;
        let dir = place.dir.node();
        match self.lookup(caller, dir, place.name) {
            Ok(link) if self.layout.kind(&link) == FileKind::Symlink && !flags.nofollow => {
                let target = self.follow_link(&link, budget)?;
                self.open_or_create(caller, dir, &target, flags, mode, budget)
            }
            Ok(node) => self.open_existing(caller, node, flags, place.must_be_dir),
            Err(error) if error.kind() == Kind::NotFound => {
                self.open_created_or_raced(caller, &place, flags, mode)
            }
            Err(error) => Err(error),
        }
    }

    /// Creates the file, or opens it if another operation has created it meanwhile.
    fn open_created_or_raced(
        &self,
        caller: &Caller<'_>,
        place: &PathEnd<'_, L::Node>,
        flags: OpenFlags,
        mode: u32,
    ) -> Result<Handle<L>> {
        match self.open_created(caller, place, flags, mode) {
            Err(error) if error.kind() == Kind::Exists => {
                let node = self.lookup(caller, place.dir.node(), place.name)?;
                self.open_existing(caller, node, flags, place.must_be_dir)
            }
            verdict => verdict,
        }
    }

    fn open_created(
        &self,
        caller: &Caller<'_>,
        place: &PathEnd<'_, L::Node>,
        flags: OpenFlags,
        mode: u32,
    ) -> Result<Handle<L>> {
        let node = self.create(caller, place.dir.node(), place.name, &Create::file(mode))?;
        self.handle(node, flags, caller)
    }

    fn open_existing(
        &self,
        caller: &Caller<'_>,
        node: L::Node,
        flags: OpenFlags,
        must_be_dir: bool,
    ) -> Result<Handle<L>> {
        let kind = self.layout.kind(&node);
        match kind {
            FileKind::Directory if flags.writes() || flags.creates() => return Err(Kind::IsDirectory.into()),
            FileKind::Directory => {}
            _ if flags.directory || must_be_dir => return Err(Kind::NotDirectory.into()),
            FileKind::Symlink if !flags.path => return Err(Kind::TooManySymlinks.into()),
            _ => {}
        }
        self.check_open(caller, &node, flags)?;
        if flags.truncate && kind == FileKind::Regular {
            self.set_len(&node, 0, self.lost_by(caller, &node)?)?;
        }
        self.handle(node, flags, caller)
    }

    fn handle(&self, node: L::Node, flags: OpenFlags, caller: &Caller<'_>) -> Result<Handle<L>> {
        let lost = if flags.writes() { self.lost_by(caller, &node)? } else { Lost::Nothing };
        Ok(Handle::new(node, flags, lost))
    }

    fn check_open(&self, caller: &Caller<'_>, node: &L::Node, flags: OpenFlags) -> Result<()> {
        if flags.path {
            return Ok(());
        }
        if flags.writes() && self.is_read_only() && self.layout.kind(node) == FileKind::Regular {
            return Err(Kind::ReadOnly.into());
        }
        if flags.writes() {
            self.check_guards(node, flags.append && !flags.truncate)?;
        }
        if !caller.restricted() {
            return Ok(());
        }
        let attr = self.layout.getattr(node)?;
        self.check_rights(caller, node, &attr, flags.wants())
    }

    /// Whether the flags of an inode allow opening it for writing; `appends` if only for appending.
    pub fn check_guards(&self, node: &L::Node, appends: bool) -> Result<()> {
        let forbidden = if appends { Attr::IMMUTABLE } else { Attr::IMMUTABLE | Attr::APPEND_ONLY };
        let is_forbidden = self.layout.getattr(node)?.flags & forbidden != 0;
        if is_forbidden { Err(Kind::NotPermitted.into()) } else { Ok(()) }
    }
}
