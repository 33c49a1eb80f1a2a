//! Names: looking up, making, removing, listing.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;

use fuser::{Errno, FileAttr, Generation, INodeNo, RenameFlags, ReplyDirectory, ReplyDirectoryPlus, Request};
use nacre_engine::{FileKind, InodeId, Kind, RenameMode, Result};
use nacre_vfs::{Caller, Create, Layout};

use crate::convert::{file_type, kind_of_mode, rdev_from_kernel};
use crate::kernel::lifetime;
use crate::server::{Server, caller};

/// Entries that are collected before their attributes are fetched; about as many as fit the kernel's buffer.
const BATCH: usize = 64;

/// Directory entries copied from the layout, so that reading their inodes needs none of its locks.
#[derive(Default)]
struct Batch {
    entries: Vec<Listed>,
    names: Vec<u8>,
}

struct Listed {
    cookie: u64,
    id: InodeId,
    name_end: usize,
}

/// The rename that a request asks for.
pub(crate) struct Rename {
    caller: Caller<'static>,
    from: (INodeNo, OsString),
    to: (INodeNo, OsString),
    mode: RenameMode,
}

impl Rename {
    pub(crate) fn of(
        request: &Request,
        from: (INodeNo, &OsStr),
        to: (INodeNo, &OsStr),
        flags: RenameFlags,
    ) -> Result<Rename> {
        let mode = rename_mode(flags)?;
        let (from, to) = ((from.0, from.1.to_owned()), (to.0, to.1.to_owned()));
        Ok(Rename { caller: caller(request, 0), from, to, mode })
    }
}

thread_local! {
    static LISTED: RefCell<Batch> = RefCell::default();
}

impl<L: Layout> Server<L> {
    /// `.` asks for the node itself, of any kind. With it the kernel finds an inode that it knows by its id only
    /// (open_by_handle_at(2), NFS); likewise `..` for the parent.
    pub(crate) fn lookup(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
    ) -> Result<(FileAttr, Generation)> {
        let dir = self.node(parent)?;
        let node = match name.as_bytes() {
            b"." => dir,
            name => self.vfs.lookup(&caller(request, 0), &dir, name)?,
        };
        self.entry(node)
    }

    pub(crate) fn make(
        &self,
        request: &Request,
        umask: u32,
        parent: INodeNo,
        name: &OsStr,
        what: &Create<'_>,
    ) -> Result<(FileAttr, Generation)> {
        let dir = self.node(parent)?;
        let caller = caller(request, umask);
        let node = self.room.find(|| self.vfs.create(&caller, &dir, name.as_bytes(), what))?;
        if self.settings.writeback {
            self.note_mtime(&self.vfs.getattr(&node)?);
        }
        self.entry(node)
    }

    pub(crate) fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        (mode, umask): (u32, u32),
        rdev: u32,
    ) -> Result<(FileAttr, Generation)> {
        let kind = kind_of_mode(mode).ok_or(Kind::InvalidInput)?;
        let what = Create { kind, mode: mode & 0o7777, rdev: rdev_from_kernel(rdev), target: &[] };
        self.make(request, umask, parent, name, &what)
    }

    pub(crate) fn link(
        &self,
        request: &Request,
        id: INodeNo,
        parent: INodeNo,
        name: &OsStr,
    ) -> Result<(FileAttr, Generation)> {
        let (node, dir) = (self.node(id)?, self.node(parent)?);
        self.room.find(|| self.vfs.link(&caller(request, 0), &node, &dir, name.as_bytes()))?;
        self.entry(node)
    }

    pub(crate) fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr) -> Result<()> {
        self.vfs.unlink(&caller(request, 0), &self.node(parent)?, name.as_bytes())?;
        self.room.removed();
        Ok(())
    }

    pub(crate) fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr) -> Result<()> {
        self.vfs.rmdir(&caller(request, 0), &self.node(parent)?, name.as_bytes())?;
        self.room.removed();
        Ok(())
    }

    /// The files that this rename moves over another name, with pages in the kernel that may be newer. These pages
    /// must be written first, so that a crash leaves the old or the new contents under the name.
    ///
    /// Without `writeback` the kernel has only pages of mappings. They are all of the contents where the layout has a
    /// hole, as in a file that a linker has just made. Elsewhere they overwrite contents, and no file system writes
    /// these for a rename.
    pub(crate) fn moved_with_pages(&self, rename: &Rename) -> Vec<INodeNo> {
        if rename.mode == RenameMode::NoReplace {
            return Vec::new();
        }
        let file = |(dir, name): &(INodeNo, OsString)| {
            let node =
                self.node(*dir).and_then(|dir| self.vfs.layout().lookup(&dir, name.as_bytes())).ok()?;
            (self.vfs.kind(&node) == FileKind::Regular).then_some(node)
        };
        // The target first: most renames have none.
        let Some(to) = file(&rename.to) else { return Vec::new() };
        let Some(from) = file(&rename.from) else { return Vec::new() };
        let to = (rename.mode == RenameMode::Exchange).then_some(to);
        let may_have_pages = |node: &L::Node| self.settings.writeback || self.has_hole(node);
        let moved = [from].into_iter().chain(to).filter(may_have_pages);
        moved.map(|node| self.node_id(self.vfs.id(&node))).collect()
    }

    /// Makes the kernel write its newer pages of these files. It waits for requests of the kernel.
    ///
    /// Returns the failure of a page, also of an earlier one. The contents are lost then, so the file that they should
    /// replace must stay. With `writeback` the failure stays noted for the next write(2). After an earlier failure the
    /// pages are left in the kernel, where readers find them.
    pub(crate) fn write_moved(&self, moved: &[INodeNo]) -> Option<Errno> {
        let noted = |id| {
            if self.settings.writeback { self.kernel.failure(id) } else { self.kernel.take_failure(id) }
        };
        moved.iter().find_map(|&id| {
            noted(id).or_else(|| {
                self.kernel.write_pages(id, 0..u64::MAX);
                noted(id)
            })
        })
    }

    pub(crate) fn rename(&self, rename: &Rename) -> Result<()> {
        let Rename { caller, from, to, mode } = rename;
        let (from_dir, to_dir) = (self.node(from.0)?, self.node(to.0)?);
        let (from, to) = (from.1.as_bytes(), to.1.as_bytes());
        self.room.find(|| self.vfs.rename(caller, &from_dir, from, &to_dir, to, *mode))?;
        self.room.removed();
        Ok(())
    }

    pub(crate) fn readlink(&self, id: INodeNo) -> Result<Vec<u8>> {
        self.vfs.read_link(&self.node(id)?)
    }

    /// Fills a reply with names.
    pub(crate) fn readdir(
        &self,
        request: &Request,
        id: INodeNo,
        cookie: u64,
        reply: &mut ReplyDirectory,
    ) -> Result<()> {
        let dir = self.node(id)?;
        self.vfs.read_dir(&caller(request, 0), &dir, cookie, &mut |entry| {
            let id = self.node_id(entry.id);
            if reply.add(id, entry.cookie, file_type(entry.kind), OsStr::from_bytes(entry.name)) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
    }

    /// Fills a reply with names and attributes. The kernel counts a lookup of each of them, except `.` and `..`.
    pub(crate) fn readdirplus(
        &self,
        request: &Request,
        id: INodeNo,
        cookie: u64,
        reply: &mut ReplyDirectoryPlus,
    ) -> Result<()> {
        let dir = self.node(id)?;
        let mut added = false;
        let filled = LISTED.with_borrow_mut(|batch| {
            let mut cookie = cookie;
            loop {
                self.collect(request, &dir, cookie, batch)?;
                let mut start = 0;
                for listed in &batch.entries {
                    let name = &batch.names[start..listed.name_end];
                    start = listed.name_end;
                    if self.add_plus(listed, name, reply)? {
                        return Ok(());
                    }
                    cookie = listed.cookie;
                    added = true;
                }
                if batch.entries.len() < BATCH {
                    return Ok(());
                }
            }
        });
        // Entries in the reply are held for the kernel already, so they must reach it. The next request meets the
        // error again.
        if added { Ok(()) } else { filled }
    }

    fn collect(&self, request: &Request, dir: &L::Node, cookie: u64, batch: &mut Batch) -> Result<()> {
        batch.entries.clear();
        batch.names.clear();
        self.vfs.read_dir(&caller(request, 0), dir, cookie, &mut |entry| {
            batch.names.extend_from_slice(entry.name);
            batch.entries.push(Listed { cookie: entry.cookie, id: entry.id, name_end: batch.names.len() });
            if batch.entries.len() == BATCH { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    }

    /// Adds one entry; true if the reply is full. An entry that was removed meanwhile is skipped.
    fn add_plus(&self, listed: &Listed, name: &[u8], reply: &mut ReplyDirectoryPlus) -> Result<bool> {
        let layout = self.vfs.layout();
        let found = layout.node(listed.id).and_then(|node| Ok((self.vfs.getattr(&node)?, node)));
        let (attr, node) = match found {
            Ok(found) => found,
            Err(error) if matches!(error.kind(), Kind::Stale | Kind::NotFound) => return Ok(false),
            Err(error) => return Err(error),
        };
        let generation = Generation(u64::from(attr.id.generation));
        let attr = self.file_attr(&attr);
        let kept = lifetime(&attr);
        let full = reply.add(attr.ino, listed.cookie, OsStr::from_bytes(name), &kept, &attr, generation);
        if !full && !matches!(name, b"." | b"..") {
            self.nodes.hold(self.vfs.layout(), listed.id.number, node);
        }
        Ok(full)
    }
}

fn rename_mode(flags: RenameFlags) -> Result<RenameMode> {
    if flags.is_empty() {
        Ok(RenameMode::Replace)
    } else if flags == RenameFlags::RENAME_NOREPLACE {
        Ok(RenameMode::NoReplace)
    } else if flags == RenameFlags::RENAME_EXCHANGE {
        Ok(RenameMode::Exchange)
    } else if flags.difference(RenameFlags::RENAME_NOREPLACE) == RenameFlags::RENAME_WHITEOUT {
        // The kernel has seen that the new name is free where it must be, and keeps both directories locked.
        Ok(RenameMode::WHITEOUT)
    } else {
        Err(Kind::InvalidInput.into())
    }
}

#[cfg(test)]
mod tests {
    use fuser::RenameFlags;
    use nacre_engine::{Kind, RenameMode};

    use super::rename_mode;

    #[test]
    fn only_known_renames_are_done() {
        assert_eq!(rename_mode(RenameFlags::empty()).unwrap(), RenameMode::Replace);
        assert_eq!(rename_mode(RenameFlags::RENAME_NOREPLACE).unwrap(), RenameMode::NoReplace);
        assert_eq!(rename_mode(RenameFlags::RENAME_EXCHANGE).unwrap(), RenameMode::Exchange);
        let whiteout = RenameFlags::RENAME_WHITEOUT;
        assert_eq!(rename_mode(whiteout).unwrap(), RenameMode::WHITEOUT);
        assert_eq!(rename_mode(whiteout | RenameFlags::RENAME_NOREPLACE).unwrap(), RenameMode::WHITEOUT);
        for flags in [whiteout, RenameFlags::RENAME_NOREPLACE] {
            let flags = flags | RenameFlags::RENAME_EXCHANGE;
            assert_eq!(rename_mode(flags).unwrap_err().kind(), Kind::InvalidInput);
        }
    }
}
