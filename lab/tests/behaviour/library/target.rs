//! The crate `nacre` as a target of the suite: what a program sees that opens a device without a mount.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::io::IoSlice;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use nacre::{
    FallocateMode, FileKind, FileOptions, FileSystem, Identity, Metadata, MkfsOptions, OpenOptions, Preset,
    RenameMode, Repair, SeekTo, SetAttr, SetTime, XattrMode,
};
use nacre_lab::suite::{File, Listed, Need, Open, Outcome, Space, Stat, Target, User};

/// What the crate has no word for.
const LACKING: [(Need, &str); 1] = [(Need::StableCookies, "a listing is an iterator, without cookies")];

/// A file system on a device, which is checked each time that it was closed.
pub(crate) struct Library {
    device: PathBuf,
    preset: Preset,
    /// `None` only while it is opened again.
    fs: Option<FileSystem>,
    /// The last listing: what is read behind a cookie belongs to it.
    listing: Mutex<Vec<Listed>>,
}

fn options() -> OpenOptions {
    let identity = Identity { umask: 0, ..Identity::checked(0, 0) };
    OpenOptions { identity, ..OpenOptions::default() }
}

impl Library {
    /// A new one of this size at this path.
    pub(crate) fn create(device: &Path, preset: Preset, size: u64) -> Library {
        let make = MkfsOptions { preset, ..MkfsOptions::with_size(size) };
        let fs = FileSystem::create(device, &make, &options()).expect("create");
        Library { device: device.to_owned(), preset, fs: Some(fs), listing: Mutex::default() }
    }

    /// Closes and checks it.
    pub(crate) fn end(mut self) {
        self.close();
    }

    fn close(&mut self) {
        self.fs.take().expect("it is open").close().expect("close");
        let report =
            nacre::check(&self.device, Repair::None, &nacre::CheckOptions::default()).expect("check");
        assert!(report.is_sound(), "the check finds: {:?}", report.problems);
    }

    fn fs(&self) -> &FileSystem {
        self.fs.as_ref().expect("it is open")
    }

    /// What a path names, a symbolic link itself, too.
    fn inode(&self, at: &[u8]) -> Outcome<nacre::File> {
        let mut options = FileOptions::new();
        options.path(true).nofollow(true);
        kind(options.open(self.fs(), path(at)))
    }
}

fn path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

fn kind<T>(result: nacre::Result<T>) -> Outcome<T> {
    result.map_err(|error| error.kind())
}

fn stat_from(metadata: &Metadata) -> Stat {
    let attr = metadata.attr();
    Stat {
        number: metadata.ino(),
        kind: metadata.kind(),
        mode: metadata.mode(),
        links: metadata.nlink().into(),
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev: metadata.rdev(),
        size: metadata.len(),
        allocated: metadata.allocated(),
        atime: attr.atime,
        mtime: attr.mtime,
        ctime: attr.ctime,
    }
}

struct OpenFile(nacre::File);

impl File for OpenFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Outcome<usize> {
        kind(self.0.read_at(buf, offset))
    }

    fn write_vectored_at(&self, offset: u64, data: &[IoSlice<'_>]) -> Outcome<usize> {
        kind(self.0.write_vectored_at(data, offset))
    }

    fn append(&self, data: &[u8]) -> Outcome<usize> {
        // It says where they went; a write is whole or an error.
        kind(self.0.append(data)).map(|_| data.len())
    }

    fn set_len(&self, size: u64) -> Outcome<()> {
        kind(self.0.set_len(size))
    }

    fn fallocate(&self, mode: FallocateMode, offset: u64, len: u64) -> Outcome<()> {
        kind(self.0.fallocate(mode, offset, len))
    }

    fn seek(&self, offset: u64, to: SeekTo) -> Outcome<u64> {
        kind(match to {
            SeekTo::Data => self.0.seek_data(offset),
            SeekTo::Hole => self.0.seek_hole(offset),
        })
    }

    fn sync(&self, only_data: bool) -> Outcome<()> {
        kind(if only_data { self.0.sync_data() } else { self.0.sync_all() })
    }

    fn stat(&self) -> Outcome<Stat> {
        kind(self.0.metadata()).map(|metadata| stat_from(&metadata))
    }

    fn chmod(&self, mode: u32) -> Outcome<()> {
        kind(self.0.set_permissions(Permissions::from_mode(mode)))
    }
}

impl Target for Library {
    fn describe(&self) -> String {
        format!("the library, preset {}", self.preset)
    }

    fn lacks(&self, need: Need) -> Option<&str> {
        LACKING.iter().find(|(lacking, _)| *lacking == need).map(|(_, why)| *why)
    }

    fn open(&self, at: &[u8], how: Open) -> Outcome<Box<dyn File + '_>> {
        let mut options = FileOptions::new();
        options.read(how.read).write(how.write).append(how.append).truncate(how.truncate).sync(how.sync);
        options.create(how.create).create_new(how.create && how.exclusive).mode(how.mode);
        options.directory(how.directory).nofollow(how.no_follow);
        Ok(Box::new(OpenFile(kind(options.open(self.fs(), path(at)))?)))
    }

    fn open_unnamed(&self, dir: &[u8], mode: u32) -> Outcome<Box<dyn File + '_>> {
        let mut options = FileOptions::new();
        options.read(true).write(true).tmpfile(true).mode(mode);
        Ok(Box::new(OpenFile(kind(options.open(self.fs(), path(dir)))?)))
    }

    fn stat(&self, at: &[u8], follow: bool) -> Outcome<Stat> {
        let found = if follow { self.fs().metadata(path(at)) } else { self.fs().symlink_metadata(path(at)) };
        kind(found).map(|metadata| stat_from(&metadata))
    }

    fn mkdir(&self, at: &[u8], mode: u32) -> Outcome<()> {
        kind(self.fs().create_dir_with_mode(path(at), mode))
    }

    fn rmdir(&self, at: &[u8]) -> Outcome<()> {
        kind(self.fs().remove_dir(path(at)))
    }

    fn unlink(&self, at: &[u8]) -> Outcome<()> {
        kind(self.fs().remove_file(path(at)))
    }

    fn link(&self, from: &[u8], to: &[u8]) -> Outcome<()> {
        kind(self.fs().hard_link(path(from), path(to)))
    }

    fn symlink(&self, target: &[u8], at: &[u8]) -> Outcome<()> {
        kind(self.fs().symlink(path(target), path(at)))
    }

    fn read_link(&self, at: &[u8]) -> Outcome<Vec<u8>> {
        kind(self.fs().read_link(path(at))).map(|target| target.into_os_string().into_vec())
    }

    fn mknod(&self, at: &[u8], what: FileKind, mode: u32, rdev: u64) -> Outcome<()> {
        kind(self.fs().create_node(path(at), what, mode, rdev))
    }

    fn rename(&self, from: &[u8], to: &[u8], mode: RenameMode) -> Outcome<()> {
        kind(self.fs().rename_with(path(from), path(to), mode))
    }

    fn read_dir(&self, at: &[u8], cookie: u64, max: usize) -> Outcome<Vec<Listed>> {
        let mut listing = self.listing.lock().expect("nobody panicked");
        if cookie == 0 {
            let listed = (1..).zip(kind(self.fs().read_dir(path(at)))?).map(|(cookie, entry)| {
                let entry = kind(entry)?;
                let name = entry.file_name().as_bytes().to_vec();
                Ok(Listed { cookie, name, number: entry.ino(), kind: entry.kind() })
            });
            *listing = listed.collect::<Outcome<_>>()?;
        }
        Ok(listing.iter().skip(cookie as usize).take(max).cloned().collect())
    }

    fn truncate(&self, at: &[u8], size: u64) -> Outcome<()> {
        kind(self.fs().truncate(path(at), size))
    }

    fn chmod(&self, at: &[u8], mode: u32) -> Outcome<()> {
        kind(self.fs().set_permissions(path(at), Permissions::from_mode(mode)))
    }

    fn chown(&self, at: &[u8], uid: Option<u32>, gid: Option<u32>, follow: bool) -> Outcome<()> {
        let fs = self.fs();
        kind(if follow { fs.chown(path(at), uid, gid) } else { fs.lchown(path(at), uid, gid) })
    }

    fn set_times(&self, at: &[u8], atime: SetTime, mtime: SetTime, follow: bool) -> Outcome<()> {
        if follow {
            return kind(self.fs().set_times(path(at), atime, mtime));
        }
        kind(self.inode(at)?.set_times(atime, mtime))
    }

    fn set_flags(&self, at: &[u8], flags: u32) -> Outcome<()> {
        let change = SetAttr { flags: Some(flags), ..SetAttr::default() };
        kind(self.fs().set_attr(path(at), &change)).map(drop)
    }

    fn get_xattr(&self, at: &[u8], name: &[u8]) -> Outcome<Vec<u8>> {
        kind(self.inode(at)?.get_xattr(name))
    }

    fn set_xattr(&self, at: &[u8], name: &[u8], value: &[u8], how: XattrMode) -> Outcome<()> {
        kind(self.inode(at)?.set_xattr(name, value, how))
    }

    fn remove_xattr(&self, at: &[u8], name: &[u8]) -> Outcome<()> {
        kind(self.inode(at)?.remove_xattr(name))
    }

    fn list_xattrs(&self, at: &[u8]) -> Outcome<Vec<Vec<u8>>> {
        kind(self.inode(at)?.list_xattrs())
    }

    fn space(&self) -> Outcome<Space> {
        let stat = self.fs().statfs();
        let bytes = |blocks: u64| blocks * 4096;
        Ok(Space {
            total: bytes(stat.blocks),
            free: bytes(stat.free),
            available: bytes(stat.available),
            inodes: stat.inodes,
            inodes_free: stat.inodes_free,
        })
    }

    fn as_user(&self, user: User<'_>, run: &mut (dyn FnMut(&dyn Target) + Send)) {
        let identity =
            Identity { groups: user.groups.to_vec(), umask: 0, ..Identity::checked(user.uid, user.gid) };
        let fs = Some(self.fs().as_user(identity));
        run(&Library { device: self.device.clone(), preset: self.preset, fs, listing: Mutex::default() });
    }

    fn remount(&mut self) {
        self.close();
        self.fs = Some(FileSystem::open(&self.device, &options()).expect("open"));
    }
}
