//! A layout in this process, through the path level of `vfs`.

use std::io::IoSlice;
use std::ops::ControlFlow;
use std::sync::Arc;

use nacre_engine::{Attr, Error, FallocateMode, FileKind, RenameMode, SeekTo, SetAttr, XattrMode};
use nacre_vfs::{Caller, Create, Handle, Layout, OpenFlags, PathEnd, SetTime, Vfs, VfsOptions};

use super::target::{File, Listed, Need, Open, Outcome, Space, Stat, Target, User};

/// Unmounts a layout and mounts it again.
pub type Reopen<L> = Arc<dyn Fn(L) -> L + Send + Sync>;

/// A layout as a [`Target`].
pub struct VfsTarget<L: Layout> {
    /// `None` only while it is being mounted again.
    vfs: Option<Arc<Vfs<L>>>,
    what: &'static str,
    reopen: Reopen<L>,
    crash: Option<Reopen<L>>,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    lacking: Vec<(Need, String)>,
}

impl<L: Layout> VfsTarget<L> {
    /// A target for a mounted layout. `reopen` mounts it again; `lacking` lists the capabilities that it lacks, with
    /// the reasons.
    pub fn new(what: &'static str, layout: L, reopen: Reopen<L>, lacking: &[(Need, &str)]) -> VfsTarget<L> {
        VfsTarget {
            vfs: Some(Arc::new(Vfs::new(layout, VfsOptions::default()))),
            what,
            reopen,
            crash: None,
            uid: 0,
            gid: 0,
            groups: Vec::new(),
            lacking: lacking.iter().map(|&(need, why)| (need, why.to_owned())).collect(),
        }
    }

    /// Adds `crash`, which abandons the layout without an unmount, and mounts the image that a crash leaves.
    #[must_use]
    pub fn with_crash(self, crash: Reopen<L>) -> VfsTarget<L> {
        VfsTarget { crash: Some(crash), ..self }
    }

    /// Gives the layout back. No file may be open.
    pub fn into_layout(mut self) -> L {
        self.take_layout()
    }

    fn take_layout(&mut self) -> L {
        let vfs = self.vfs.take().expect("it is taken once");
        Arc::into_inner(vfs).expect("no file is open").into_layout()
    }

    fn mount_after(&mut self, end: &Reopen<L>) {
        let layout = end(self.take_layout());
        self.vfs = Some(Arc::new(Vfs::new(layout, VfsOptions::default())));
    }

    fn vfs(&self) -> &Vfs<L> {
        self.shared()
    }

    fn shared(&self) -> &Arc<Vfs<L>> {
        self.vfs.as_ref().expect("it is mounted")
    }

    fn caller(&self) -> Caller<'_> {
        Caller { uid: self.uid, gid: self.gid, groups: &self.groups, umask: 0, check: true }
    }

    fn node(&self, path: &[u8], follow: bool) -> Outcome<L::Node> {
        let vfs = self.vfs();
        if path.is_empty() {
            return Ok(vfs.root().clone());
        }
        vfs.resolve(&self.caller(), vfs.root(), path, follow).map_err(|error| error.kind())
    }

    /// Runs an operation on the last component of a path.
    fn at_place<T>(
        &self,
        path: &[u8],
        run: impl FnOnce(&Vfs<L>, &Caller<'_>, &PathEnd<'_, L::Node>) -> Result<T, Error>,
    ) -> Outcome<T> {
        let vfs = self.vfs();
        let caller = self.caller();
        let place = vfs.resolve_place(&caller, vfs.root(), path).map_err(|error| error.kind())?;
        run(vfs, &caller, &place).map_err(|error| error.kind())
    }

    fn setattr(&self, path: &[u8], follow: bool, change: &SetAttr) -> Outcome<()> {
        let node = self.node(path, follow)?;
        self.vfs().setattr(&self.caller(), &node, change, false).map(drop).map_err(|error| error.kind())
    }

    fn opened(&self, handle: Handle<L>) -> Box<dyn File + '_> {
        Box::new(OpenFile { handle, vfs: Arc::clone(self.shared()), target: self })
    }
}

fn stat_from(attr: &Attr) -> Stat {
    Stat {
        number: attr.id.number,
        kind: attr.kind,
        mode: attr.mode,
        links: attr.links.into(),
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        size: attr.size,
        allocated: attr.allocated,
        atime: attr.atime,
        mtime: attr.mtime,
        ctime: attr.ctime,
    }
}

/// An open file. The handle goes before the file system that it belongs to.
struct OpenFile<'a, L: Layout> {
    handle: Handle<L>,
    vfs: Arc<Vfs<L>>,
    target: &'a VfsTarget<L>,
}

impl<L: Layout> File for OpenFile<'_, L> {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Outcome<usize> {
        self.handle.read_at(&self.vfs, buf, offset).map_err(|error| error.kind())
    }

    fn write_vectored_at(&self, offset: u64, data: &[IoSlice<'_>]) -> Outcome<usize> {
        self.handle.writev_at(&self.vfs, data, offset).map_err(|error| error.kind())
    }

    fn append(&self, data: &[u8]) -> Outcome<usize> {
        self.handle.write(&self.vfs, data).map_err(|error| error.kind())
    }

    fn set_len(&self, size: u64) -> Outcome<()> {
        self.handle.set_len(&self.vfs, size).map_err(|error| error.kind())
    }

    fn fallocate(&self, mode: FallocateMode, offset: u64, len: u64) -> Outcome<()> {
        self.handle.fallocate(&self.vfs, mode, offset, len).map_err(|error| error.kind())
    }

    fn seek(&self, offset: u64, to: SeekTo) -> Outcome<u64> {
        self.handle.seek_content(&self.vfs, offset, to).map_err(|error| error.kind())
    }

    fn sync(&self, only_data: bool) -> Outcome<()> {
        let result =
            if only_data { self.handle.sync_data(&self.vfs) } else { self.handle.sync_all(&self.vfs) };
        result.map_err(|error| error.kind())
    }

    fn stat(&self) -> Outcome<Stat> {
        self.handle.getattr(&self.vfs).map(|attr| stat_from(&attr)).map_err(|error| error.kind())
    }

    fn chmod(&self, mode: u32) -> Outcome<()> {
        let change = SetAttr { mode: Some(mode), ..SetAttr::default() };
        let result = self.vfs.setattr(&self.target.caller(), self.handle.node(), &change, false);
        result.map(drop).map_err(|error| error.kind())
    }
}

impl<L: Layout> Target for VfsTarget<L> {
    fn describe(&self) -> String {
        format!("{} in this process", self.what)
    }

    fn lacks(&self, need: Need) -> Option<&str> {
        self.lacking.iter().find(|(lacking, _)| *lacking == need).map(|(_, why)| why.as_str())
    }

    fn open(&self, path: &[u8], how: Open) -> Outcome<Box<dyn File + '_>> {
        let flags = OpenFlags {
            read: how.read,
            write: how.write,
            append: how.append,
            create: how.create,
            create_new: how.create && how.exclusive,
            truncate: how.truncate,
            directory: how.directory,
            nofollow: how.no_follow,
            sync: how.sync,
            ..OpenFlags::default()
        };
        let vfs = self.vfs();
        let handle = vfs.open(&self.caller(), vfs.root(), path, flags, how.mode);
        Ok(self.opened(handle.map_err(|error| error.kind())?))
    }

    fn open_unnamed(&self, dir: &[u8], mode: u32) -> Outcome<Box<dyn File + '_>> {
        let flags = OpenFlags { read: true, write: true, tmpfile: true, ..OpenFlags::default() };
        let vfs = self.vfs();
        let handle = vfs.open(&self.caller(), vfs.root(), dir, flags, mode);
        Ok(self.opened(handle.map_err(|error| error.kind())?))
    }

    fn stat(&self, path: &[u8], follow: bool) -> Outcome<Stat> {
        let node = self.node(path, follow)?;
        self.vfs().getattr(&node).map(|attr| stat_from(&attr)).map_err(|error| error.kind())
    }

    fn mkdir(&self, path: &[u8], mode: u32) -> Outcome<()> {
        self.at_place(path, |vfs, caller, place| {
            vfs.create_at(caller, place, &Create::directory(mode)).map(drop)
        })
    }

    fn rmdir(&self, path: &[u8]) -> Outcome<()> {
        self.at_place(path, |vfs, caller, place| vfs.rmdir_at(caller, place))
    }

    fn unlink(&self, path: &[u8]) -> Outcome<()> {
        self.at_place(path, |vfs, caller, place| vfs.unlink_at(caller, place))
    }

    fn link(&self, from: &[u8], to: &[u8]) -> Outcome<()> {
        let node = self.node(from, false)?;
        self.at_place(to, |vfs, caller, place| vfs.link_at(caller, &node, place))
    }

    fn symlink(&self, target: &[u8], path: &[u8]) -> Outcome<()> {
        Create::symlink(target).check_target().map_err(|error| error.kind())?;
        self.at_place(path, |vfs, caller, place| {
            vfs.create_at(caller, place, &Create::symlink(target)).map(drop)
        })
    }

    fn read_link(&self, path: &[u8]) -> Outcome<Vec<u8>> {
        let node = self.node(path, false)?;
        self.vfs().read_link(&node).map_err(|error| error.kind())
    }

    fn mknod(&self, path: &[u8], kind: FileKind, mode: u32, rdev: u64) -> Outcome<()> {
        let create = Create { kind, mode, rdev, target: &[] };
        self.at_place(path, |vfs, caller, place| vfs.create_at(caller, place, &create).map(drop))
    }

    fn rename(&self, from: &[u8], to: &[u8], mode: RenameMode) -> Outcome<()> {
        let vfs = self.vfs();
        let caller = self.caller();
        let from = vfs.resolve_place(&caller, vfs.root(), from).map_err(|error| error.kind())?;
        let to = vfs.resolve_place(&caller, vfs.root(), to).map_err(|error| error.kind())?;
        vfs.rename_at(&caller, &from, &to, mode).map_err(|error| error.kind())
    }

    fn read_dir(&self, path: &[u8], cookie: u64, max: usize) -> Outcome<Vec<Listed>> {
        let node = self.node(path, true)?;
        let mut listed = Vec::new();
        let result = self.vfs().read_dir(&self.caller(), &node, cookie, &mut |entry| {
            if listed.len() == max {
                return ControlFlow::Break(());
            }
            if entry.name != b"." && entry.name != b".." {
                listed.push(Listed {
                    cookie: entry.cookie,
                    name: entry.name.to_vec(),
                    number: entry.id.number,
                    kind: entry.kind,
                });
            }
            ControlFlow::Continue(())
        });
        result.map(|()| listed).map_err(|error| error.kind())
    }

    fn truncate(&self, path: &[u8], size: u64) -> Outcome<()> {
        self.setattr(path, true, &SetAttr { size: Some(size), ..SetAttr::default() })
    }

    fn chmod(&self, path: &[u8], mode: u32) -> Outcome<()> {
        self.setattr(path, true, &SetAttr { mode: Some(mode), ..SetAttr::default() })
    }

    fn chown(&self, path: &[u8], uid: Option<u32>, gid: Option<u32>, follow: bool) -> Outcome<()> {
        let node = self.node(path, follow)?;
        self.vfs().chown(&self.caller(), &node, uid, gid).map(drop).map_err(|error| error.kind())
    }

    fn set_times(&self, path: &[u8], atime: SetTime, mtime: SetTime, follow: bool) -> Outcome<()> {
        let node = self.node(path, follow)?;
        let result = self.vfs().set_times(&self.caller(), &node, atime, mtime);
        result.map(drop).map_err(|error| error.kind())
    }

    fn set_flags(&self, path: &[u8], flags: u32) -> Outcome<()> {
        self.setattr(path, true, &SetAttr { flags: Some(flags), ..SetAttr::default() })
    }

    fn get_xattr(&self, path: &[u8], name: &[u8]) -> Outcome<Vec<u8>> {
        let node = self.node(path, false)?;
        self.vfs().get_xattr(&self.caller(), &node, name).map_err(|error| error.kind())
    }

    fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8], how: XattrMode) -> Outcome<()> {
        let node = self.node(path, false)?;
        self.vfs().set_xattr(&self.caller(), &node, name, value, how).map_err(|error| error.kind())
    }

    fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Outcome<()> {
        let node = self.node(path, false)?;
        self.vfs().remove_xattr(&self.caller(), &node, name).map_err(|error| error.kind())
    }

    fn list_xattrs(&self, path: &[u8]) -> Outcome<Vec<Vec<u8>>> {
        let node = self.node(path, false)?;
        self.vfs().list_xattrs(&self.caller(), &node).map_err(|error| error.kind())
    }

    fn space(&self) -> Outcome<Space> {
        let stat = self.vfs().stat();
        let bytes = |blocks: u64| blocks * nacre_engine::BLOCK_SIZE;
        Ok(Space {
            total: bytes(stat.blocks),
            free: bytes(stat.free),
            available: bytes(stat.available),
            inodes: stat.inodes,
            inodes_free: stat.inodes_free,
        })
    }

    fn as_user(&self, user: User<'_>, run: &mut (dyn FnMut(&dyn Target) + Send)) {
        let other = VfsTarget {
            vfs: self.vfs.clone(),
            what: self.what,
            reopen: Arc::clone(&self.reopen),
            crash: self.crash.clone(),
            uid: user.uid,
            gid: user.gid,
            groups: user.groups.to_vec(),
            lacking: self.lacking.clone(),
        };
        run(&other);
    }

    fn remount(&mut self) {
        let reopen = Arc::clone(&self.reopen);
        self.mount_after(&reopen);
    }

    fn crash(&mut self) {
        let crash = self.crash.as_ref().unwrap_or(&self.reopen);
        let crash = Arc::clone(crash);
        self.mount_after(&crash);
    }
}
