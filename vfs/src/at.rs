//! Making, linking, renaming and removing names, by path, with the meaning of a trailing slash for each.

use nacre_engine::{FileKind, Kind, RenameMode, Result};

use crate::caller::Caller;
use crate::namespace::Create;
use crate::path::PathEnd;
use crate::{Layout, Vfs};

impl<L: Layout> Vfs<L> {
    /// Creates an inode with a name. Only the name of a directory may end in a slash.
    pub fn create_at(
        &self,
        caller: &Caller<'_>,
        place: &PathEnd<'_, L::Node>,
        create: &Create<'_>,
    ) -> Result<L::Node> {
        create.check_target()?;
        if create.kind != FileKind::Directory {
            self.refuse_slash(caller, place)?;
        }
        self.create(caller, place.dir.node(), place.name, create)
    }

    /// Adds a name to a non-directory.
    pub fn link_at(&self, caller: &Caller<'_>, node: &L::Node, place: &PathEnd<'_, L::Node>) -> Result<()> {
        self.refuse_slash(caller, place)?;
        self.link(caller, node, place.dir.node(), place.name)
    }

    /// Removes the name of a non-directory.
    pub fn unlink_at(&self, caller: &Caller<'_>, place: &PathEnd<'_, L::Node>) -> Result<()> {
        if place.must_be_dir && !matches!(place.name, b"." | b"..") {
            let node = self.lookup(caller, place.dir.node(), place.name)?;
            let is_directory = self.kind(&node) == FileKind::Directory;
            return Err(if is_directory { Kind::IsDirectory } else { Kind::NotDirectory }.into());
        }
        self.unlink(caller, place.dir.node(), place.name)
    }

    /// Removes an empty directory.
    pub fn rmdir_at(&self, caller: &Caller<'_>, place: &PathEnd<'_, L::Node>) -> Result<()> {
        self.rmdir(caller, place.dir.node(), place.name)
    }

    /// Moves a name, replaces another with it, or swaps two. A source with a trailing slash must be a directory. If
    /// the target has a trailing slash, the source must be one, too.
    pub fn rename_at(
        &self,
        caller: &Caller<'_>,
        from: &PathEnd<'_, L::Node>,
        to: &PathEnd<'_, L::Node>,
        mode: RenameMode,
    ) -> Result<()> {
        let has_dots = |place: &PathEnd<'_, L::Node>| matches!(place.name, b"." | b"..");
        if (from.must_be_dir || to.must_be_dir) && !has_dots(from) && !has_dots(to) {
            let source = self.lookup(caller, from.dir.node(), from.name)?;
            let target = match self.lookup(caller, to.dir.node(), to.name) {
                Ok(_) if mode == RenameMode::NoReplace => return Err(Kind::Exists.into()),
                Err(error) if error.kind() == Kind::NotFound && mode != RenameMode::Exchange => None,
                found => Some(found?),
            };
            let is_file = |node: &L::Node| self.kind(node) != FileKind::Directory;
            let swaps = mode == RenameMode::Exchange;
            let target_refuses = swaps && to.must_be_dir && target.as_ref().is_some_and(is_file);
            let source_refuses = is_file(&source) && (from.must_be_dir || to.must_be_dir && !swaps);
            if target_refuses || source_refuses {
                return Err(Kind::NotDirectory.into());
            }
        }
        self.rename(caller, from.dir.node(), from.name, to.dir.node(), to.name, mode)
    }

    /// Refuses a name with a trailing slash for a non-directory.
    fn refuse_slash(&self, caller: &Caller<'_>, place: &PathEnd<'_, L::Node>) -> Result<()> {
        if !place.must_be_dir || matches!(place.name, b"." | b"..") {
            return Ok(());
        }
        let found = self.lookup(caller, place.dir.node(), place.name);
        match found.map_err(|error| error.kind()) {
            Ok(_) => Err(Kind::Exists.into()),
            Err(kind) => Err(kind.into()),
        }
    }
}
