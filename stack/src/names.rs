//! Operations on names: the part of [`FileSystem`] that is like the functions of [`std::fs`].

use std::fs::Permissions;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nacre_engine::{
    Extents, FileBlock, FileKind, Kind, PlacedExtent, RenameMode, Result, SeekTo, SetAttr, XattrMode,
};
use nacre_vfs::{Create, PathEnd, SetTime};

use crate::dir::{self, ReadDir};
use crate::file::{File, FileOptions};
use crate::fs::{FileSystem, Inner};
use crate::layout::AnyNode;
use crate::metadata::Metadata;

/// Bytes that a copy moves at once.
const COPY_STEP: usize = 1 << 20;

#[inline]
pub(crate) fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

impl Inner {
    #[inline]
    pub(crate) fn node(&self, path: &Path, follow: bool) -> Result<AnyNode> {
        self.vfs.resolve(&self.identity.caller(), self.vfs.root(), bytes(path), follow)
    }

    #[inline]
    fn stat(&self, path: &Path, follow: bool) -> Result<Metadata> {
        let attr = self.vfs.getattr_at(&self.identity.caller(), self.vfs.root(), bytes(path), follow)?;
        Ok(attr.into())
    }

    fn place<'a>(&'a self, path: &'a Path) -> Result<PathEnd<'a, AnyNode>> {
        self.vfs.resolve_place(&self.identity.caller(), self.vfs.root(), bytes(path))
    }
}

impl FileSystem {
    /// Opens a file for reading.
    pub fn open_file(&self, path: impl AsRef<Path>) -> Result<File> {
        FileOptions::new().read(true).open(self, path)
    }

    /// Opens a file for writing; it is made, or cut to no bytes.
    pub fn create_file(&self, path: impl AsRef<Path>) -> Result<File> {
        FileOptions::new().write(true).create(true).truncate(true).open(self, path)
    }

    /// The attributes of the object at a path; symbolic links are followed.
    #[inline]
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.inner.stat(path.as_ref(), true)
    }

    /// The attributes of the object at a path, even if that is a symbolic link.
    #[inline]
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.inner.stat(path.as_ref(), false)
    }

    /// Whether a path names anything.
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match self.inner.node(path.as_ref(), true) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == Kind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes a directory with the mode 0777, narrowed by the umask.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.create_dir_with_mode(path, 0o777)
    }

    /// Makes a directory with these permission bits, narrowed by the umask.
    pub fn create_dir_with_mode(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        self.make(path.as_ref(), &Create::directory(mode))
    }

    /// Makes a directory and those above it that are not there.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        match self.create_dir(path) {
            Err(error) if error.kind() == Kind::NotFound => {
                let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) else {
                    return Err(error);
                };
                self.create_dir_all(parent)?;
                match self.create_dir(path) {
                    Err(error) if error.kind() == Kind::Exists => self.require_dir(path),
                    verdict => verdict,
                }
            }
            Err(error) if error.kind() == Kind::Exists => self.require_dir(path),
            verdict => verdict,
        }
    }

    fn require_dir(&self, path: &Path) -> Result<()> {
        if self.metadata(path)?.is_dir() { Ok(()) } else { Err(Kind::NotDirectory.into()) }
    }

    /// Makes a symbolic link at `link` that points to `target`.
    pub fn symlink(&self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        self.make(link.as_ref(), &Create::symlink(bytes(target.as_ref())))
    }

    /// Makes a device node, a fifo, a socket or an empty file, as mknod(2) does.
    pub fn create_node(&self, path: impl AsRef<Path>, kind: FileKind, mode: u32, rdev: u64) -> Result<()> {
        if matches!(kind, FileKind::Directory | FileKind::Symlink) {
            return Err(Kind::InvalidInput.into());
        }
        self.make(path.as_ref(), &Create { kind, mode, rdev, target: &[] })
    }

    fn make(&self, path: &Path, create: &Create<'_>) -> Result<()> {
        // Before the path is looked at, as symlink(2) does.
        create.check_target()?;
        let place = self.inner.place(path)?;
        self.inner.vfs.create_at(&self.inner.identity.caller(), &place, create).map(drop)
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let node = self.inner.node(path.as_ref(), false)?;
        Ok(std::ffi::OsString::from_vec(self.inner.vfs.read_link(&node)?).into())
    }

    /// Gives a file another name.
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let node = self.inner.node(original.as_ref(), false)?;
        self.link_node(&node, link.as_ref())
    }

    pub(crate) fn link_node(&self, node: &AnyNode, link: &Path) -> Result<()> {
        self.inner.vfs.link_at(&self.inner.identity.caller(), node, &self.inner.place(link)?)
    }

    /// Removes a name of a file.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        self.inner.vfs.unlink_at(&self.inner.identity.caller(), &self.inner.place(path.as_ref())?)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.inner.vfs.rmdir_at(&self.inner.identity.caller(), &self.inner.place(path.as_ref())?)
    }

    /// Removes a directory with everything in it. Symbolic links are removed, not followed.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let place = self.inner.place(path.as_ref())?;
        let caller = self.inner.identity.caller();
        let node = self.inner.vfs.lookup(&caller, place.dir.node(), place.name)?;
        if self.inner.vfs.kind(&node) != FileKind::Directory {
            return Err(Kind::NotDirectory.into());
        }
        dir::remove_tree(&self.inner.vfs, &caller, place.dir.node(), place.name, node)
    }

    /// Renames; an object that has the new name already is replaced atomically.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_with(from, to, RenameMode::Replace)
    }

    /// Swaps the objects of two names, atomically.
    pub fn exchange(&self, a: impl AsRef<Path>, b: impl AsRef<Path>) -> Result<()> {
        self.rename_with(a, b, RenameMode::Exchange)
    }

    /// Renames in one of the modes of renameat2(2).
    pub fn rename_with(&self, from: impl AsRef<Path>, to: impl AsRef<Path>, mode: RenameMode) -> Result<()> {
        let from = self.inner.place(from.as_ref())?;
        let to = self.inner.place(to.as_ref())?;
        self.inner.vfs.rename_at(&self.inner.identity.caller(), &from, &to, mode)
    }

    /// The entries of a directory, without `.` and `..`.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        let path = path.as_ref();
        let node = self.inner.node(path, true)?;
        ReadDir::new(self.clone(), node, path.to_path_buf())
    }

    /// All of a file.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        self.open_file(path)?.read_all()
    }

    /// All of a file, which must be UTF-8.
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> Result<String> {
        String::from_utf8(self.read(path)?)
            .map_err(|error| nacre_engine::Error::new(Kind::InvalidInput).object("text").source(error))
    }

    /// Makes or replaces the contents of a file.
    pub fn write(&self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Result<()> {
        self.create_file(path)?.write_at(contents.as_ref(), 0).map(drop)
    }

    /// Copies contents and permissions of a file; holes stay holes. Returns the number of bytes.
    pub fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64> {
        let source = self.open_file(from)?;
        let metadata = source.metadata()?;
        if !metadata.is_file() {
            return Err(Kind::InvalidInput.into());
        }
        let target = FileOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(metadata.mode() & 0o777)
            .open(self, to)?;
        let mut buf = vec![0; COPY_STEP.min(metadata.len() as usize)];
        let mut offset = 0;
        loop {
            offset = match source.seek_content(offset, SeekTo::Data) {
                Ok(data) => data,
                Err(error) if error.kind() == Kind::NoSuchOffset => break,
                Err(error) => return Err(error),
            };
            let hole = source.seek_content(offset, SeekTo::Hole)?;
            while offset < hole {
                let step = buf.len().min((hole - offset) as usize);
                let count = source.read_at(&mut buf[..step], offset)?;
                if count == 0 {
                    break;
                }
                target.write_at(&buf[..count], offset)?;
                offset += count as u64;
            }
        }
        target.set_len(metadata.len())?;
        target.set_permissions(metadata.permissions())?;
        Ok(metadata.len())
    }

    /// Changes attributes; see [`Vfs::setattr`](nacre_vfs::Vfs::setattr).
    pub fn set_attr(&self, path: impl AsRef<Path>, change: &SetAttr) -> Result<Metadata> {
        let node = self.inner.node(path.as_ref(), true)?;
        let attr = self.inner.vfs.setattr(&self.inner.identity.caller(), &node, change, false)?;
        Ok(attr.into())
    }

    /// Changes the permission bits.
    pub fn set_permissions(&self, path: impl AsRef<Path>, permissions: Permissions) -> Result<()> {
        let mode = Some(permissions.mode() & 0o7777);
        self.set_attr(path, &SetAttr { mode, ..SetAttr::default() }).map(drop)
    }

    /// Changes owner and group, each when it is given.
    pub fn chown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.chown_node(&self.inner.node(path.as_ref(), true)?, uid, gid)
    }

    /// Changes the owner and group of a symbolic link itself.
    pub fn lchown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.chown_node(&self.inner.node(path.as_ref(), false)?, uid, gid)
    }

    fn chown_node(&self, node: &AnyNode, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.inner.vfs.chown(&self.inner.identity.caller(), node, uid, gid).map(drop)
    }

    /// Cuts or extends a file.
    pub fn truncate(&self, path: impl AsRef<Path>, size: u64) -> Result<()> {
        self.set_attr(path, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
    }

    /// Changes the times of the last read and the last change of data. One that the format cannot hold (1901 to 2446; 1697 to
    /// 2242 where version 1 of nacre's formats made it) is refused with [`InvalidInput`](crate::Kind::InvalidInput).
    pub fn set_times(&self, path: impl AsRef<Path>, accessed: SetTime, modified: SetTime) -> Result<()> {
        let node = self.inner.node(path.as_ref(), true)?;
        self.inner.vfs.set_times(&self.inner.identity.caller(), &node, accessed, modified).map(drop)
    }

    /// Whether the user may do everything in `want`: 4 to read, 2 to write, 1 to execute, or a sum of them.
    pub fn access(&self, path: impl AsRef<Path>, want: u32) -> Result<()> {
        let node = self.inner.node(path.as_ref(), true)?;
        self.inner.vfs.access(&self.inner.identity.caller(), &node, want & 7)
    }

    /// The value of an extended attribute.
    pub fn get_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let node = self.inner.node(path.as_ref(), true)?;
        self.inner.vfs.get_xattr(&self.inner.identity.caller(), &node, name.as_ref())
    }

    /// The names of all extended attributes.
    pub fn list_xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<Vec<u8>>> {
        let node = self.inner.node(path.as_ref(), true)?;
        self.inner.vfs.list_xattrs(&self.inner.identity.caller(), &node)
    }

    /// Sets an extended attribute.
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<[u8]>,
        value: &[u8],
        how: XattrMode,
    ) -> Result<()> {
        let node = self.inner.node(path.as_ref(), true)?;
        self.inner.vfs.set_xattr(&self.inner.identity.caller(), &node, name.as_ref(), value, how)
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>) -> Result<()> {
        let node = self.inner.node(path.as_ref(), true)?;
        self.inner.vfs.remove_xattr(&self.inner.identity.caller(), &node, name.as_ref())
    }

    /// Where the blocks of a file are.
    pub fn extents(&self, path: impl AsRef<Path>) -> Result<Vec<PlacedExtent>> {
        let node = self.inner.node(path.as_ref(), true)?;
        self.inner.vfs.layout().resolve(&node, FileBlock(0), u64::MAX)
    }
}
