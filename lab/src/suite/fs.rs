//! The view of a case: the target below the case's own directory, with words that make cases short.

use std::path::Path;

use nacre_engine::{FallocateMode, FileKind, Kind, RenameMode, SeekTo, XattrMode};

use super::target::{File, Listed, Open, Outcome, SetTime, Stat, Target, User};

/// The case's own directory of a target. Paths are relative to it.
pub struct Fs<'a> {
    target: &'a mut dyn Target,
    case: &'static str,
}

/// The same for one user; see [`Fs::as_user`].
#[derive(Clone, Copy)]
pub struct View<'a> {
    target: &'a dyn Target,
    case: &'static str,
}

impl<'a> Fs<'a> {
    pub(super) fn new(target: &'a mut dyn Target, case: &'static str) -> Fs<'a> {
        Fs { target, case }
    }

    /// For operations; threads may share it.
    pub fn view(&self) -> View<'_> {
        View { target: &*self.target, case: self.case }
    }

    /// Unmounts and mounts again. Nothing is open meanwhile: the compiler sees to it.
    pub fn remount(&mut self) {
        self.target.remount();
    }
}

/// A byte for each position of a file that differs between positions, blocks and seeds.
pub(super) fn pattern(seed: u64, offset: u64, len: usize) -> Vec<u8> {
    let byte = |at: u64| {
        let mixed = (at ^ (seed << 40)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> 56) as u8 | 1
    };
    (0..len as u64).map(|index| byte(offset + index)).collect()
}

impl<'a> View<'a> {
    /// A path as the target knows it.
    fn at(&self, path: impl AsRef<[u8]>) -> Vec<u8> {
        let path = path.as_ref();
        if path.is_empty() {
            self.case.as_bytes().to_vec()
        } else {
            [self.case.as_bytes(), b"/", path].concat()
        }
    }

    /// The target, for operations that are not about a path.
    pub fn target(&self) -> &'a dyn Target {
        self.target
    }

    /// A path from the root of the target, for the targets of symbolic links and absolute operations.
    pub fn full_path(&self, path: impl AsRef<[u8]>) -> Vec<u8> {
        self.at(path)
    }

    /// Opens a file.
    pub fn open(&self, path: impl AsRef<[u8]>, how: Open) -> Outcome<Box<dyn File + 'a>> {
        self.target.open(&self.at(path), how)
    }

    /// Opens a file that is to open.
    pub fn opened(&self, path: impl AsRef<[u8]>, how: Open) -> Box<dyn File + 'a> {
        let path = path.as_ref();
        self.open(path, how).unwrap_or_else(|kind| panic!("open {}: {kind:?}", show(path)))
    }

    /// The kind of error that opening a file ends in.
    pub fn open_error(&self, path: impl AsRef<[u8]>, how: Open) -> Kind {
        let path = path.as_ref();
        match self.open(path, how) {
            Ok(_) => panic!("{} could be opened", show(path)),
            Err(kind) => kind,
        }
    }

    /// Opens a file without a name.
    pub fn open_unnamed(&self, dir: impl AsRef<[u8]>, mode: u32) -> Outcome<Box<dyn File + 'a>> {
        self.target.open_unnamed(&self.at(dir), mode)
    }

    /// Makes a file with these bytes.
    pub fn write_file(&self, path: impl AsRef<[u8]>, bytes: &[u8]) {
        let path = path.as_ref();
        let file = self.opened(path, Open { truncate: true, ..Open::CREATE });
        let mut done = 0;
        while done < bytes.len() {
            done += file
                .write_at(done as u64, &bytes[done..])
                .unwrap_or_else(|kind| panic!("write {}: {kind:?}", show(path)));
        }
    }

    /// Makes an empty file.
    pub fn touch(&self, path: impl AsRef<[u8]>) {
        self.write_file(path, b"");
    }

    /// All bytes of a file.
    pub fn read_file(&self, path: impl AsRef<[u8]>) -> Vec<u8> {
        let path = path.as_ref();
        let file = self.opened(path, Open::READ);
        let size = file.stat().unwrap_or_else(|kind| panic!("fstat {}: {kind:?}", show(path))).size;
        read_exactly(file.as_ref(), 0, size as usize)
    }

    /// stat(2) of a path that must exist, without following a symbolic link.
    pub fn stat(&self, path: impl AsRef<[u8]>) -> Stat {
        let path = path.as_ref();
        self.try_stat(path).unwrap_or_else(|kind| panic!("stat {}: {kind:?}", show(path)))
    }

    /// lstat(2).
    pub fn try_stat(&self, path: impl AsRef<[u8]>) -> Outcome<Stat> {
        self.target.stat(&self.at(path), false)
    }

    /// stat(2) through a symbolic link.
    pub fn stat_following(&self, path: impl AsRef<[u8]>) -> Outcome<Stat> {
        self.target.stat(&self.at(path), true)
    }

    /// Whether a name is there.
    pub fn exists(&self, path: impl AsRef<[u8]>) -> bool {
        match self.try_stat(path.as_ref()) {
            Ok(_) => true,
            Err(Kind::NotFound) => false,
            Err(kind) => panic!("stat {}: {kind:?}", show(path.as_ref())),
        }
    }

    /// mkdir(2) with mode 755.
    pub fn mkdir(&self, path: impl AsRef<[u8]>) -> Outcome<()> {
        self.target.mkdir(&self.at(path), 0o755)
    }

    /// mkdir(2).
    pub fn mkdir_mode(&self, path: impl AsRef<[u8]>, mode: u32) -> Outcome<()> {
        self.target.mkdir(&self.at(path), mode)
    }

    /// Makes a directory that can be made.
    pub fn directory(&self, path: impl AsRef<[u8]>) {
        let path = path.as_ref();
        self.mkdir(path).unwrap_or_else(|kind| panic!("mkdir {}: {kind:?}", show(path)));
    }

    /// Makes a directory unless the device is too full for it.
    pub fn directory_or_full(&self, path: impl AsRef<[u8]>) {
        match self.mkdir(path) {
            Ok(()) | Err(Kind::NoSpace) => {}
            Err(kind) => panic!("mkdir on a full device: {kind:?}"),
        }
    }

    /// rmdir(2).
    pub fn rmdir(&self, path: impl AsRef<[u8]>) -> Outcome<()> {
        self.target.rmdir(&self.at(path))
    }

    /// unlink(2).
    pub fn unlink(&self, path: impl AsRef<[u8]>) -> Outcome<()> {
        self.target.unlink(&self.at(path))
    }

    /// link(2).
    pub fn link(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Outcome<()> {
        self.target.link(&self.at(from), &self.at(to))
    }

    /// symlink(2); the target is taken as it is.
    pub fn symlink(&self, target: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Outcome<()> {
        self.target.symlink(target.as_ref(), &self.at(path))
    }

    /// readlink(2).
    pub fn read_link(&self, path: impl AsRef<[u8]>) -> Outcome<Vec<u8>> {
        self.target.read_link(&self.at(path))
    }

    /// mknod(2).
    pub fn mknod(&self, path: impl AsRef<[u8]>, kind: FileKind, mode: u32, rdev: u64) -> Outcome<()> {
        self.target.mknod(&self.at(path), kind, mode, rdev)
    }

    /// rename(2).
    pub fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Outcome<()> {
        self.rename_mode(from, to, RenameMode::Replace)
    }

    /// renameat2(2).
    pub fn rename_mode(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>, mode: RenameMode) -> Outcome<()> {
        self.target.rename(&self.at(from), &self.at(to), mode)
    }

    /// Some entries of a directory.
    pub fn read_dir(&self, path: impl AsRef<[u8]>, cookie: u64, max: usize) -> Outcome<Vec<Listed>> {
        self.target.read_dir(&self.at(path), cookie, max)
    }

    /// All entries of a directory that can be read.
    pub fn list(&self, path: impl AsRef<[u8]>) -> Vec<Listed> {
        let path = path.as_ref();
        self.read_dir(path, 0, usize::MAX).unwrap_or_else(|kind| panic!("readdir {}: {kind:?}", show(path)))
    }

    /// The names in a directory, sorted.
    pub fn names(&self, path: impl AsRef<[u8]>) -> Vec<Vec<u8>> {
        let mut names: Vec<_> = self.list(path).into_iter().map(|entry| entry.name).collect();
        names.sort();
        names
    }

    /// truncate(2).
    pub fn truncate(&self, path: impl AsRef<[u8]>, size: u64) -> Outcome<()> {
        self.target.truncate(&self.at(path), size)
    }

    /// chmod(2).
    pub fn chmod(&self, path: impl AsRef<[u8]>, mode: u32) -> Outcome<()> {
        self.target.chmod(&self.at(path), mode)
    }

    /// chown(2).
    pub fn chown(&self, path: impl AsRef<[u8]>, uid: Option<u32>, gid: Option<u32>) -> Outcome<()> {
        self.target.chown(&self.at(path), uid, gid, true)
    }

    /// lchown(2).
    pub fn lchown(&self, path: impl AsRef<[u8]>, uid: Option<u32>, gid: Option<u32>) -> Outcome<()> {
        self.target.chown(&self.at(path), uid, gid, false)
    }

    /// utimensat(2), without following a symbolic link.
    pub fn set_times(&self, path: impl AsRef<[u8]>, atime: SetTime, mtime: SetTime) -> Outcome<()> {
        self.target.set_times(&self.at(path), atime, mtime, false)
    }

    /// FS_IOC_SETFLAGS.
    pub fn set_flags(&self, path: impl AsRef<[u8]>, flags: u32) -> Outcome<()> {
        self.target.set_flags(&self.at(path), flags)
    }

    /// getxattr(2).
    pub fn get_xattr(&self, path: impl AsRef<[u8]>, name: impl AsRef<[u8]>) -> Outcome<Vec<u8>> {
        self.target.get_xattr(&self.at(path), name.as_ref())
    }

    /// setxattr(2).
    pub fn set_xattr(
        &self,
        path: impl AsRef<[u8]>,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        how: XattrMode,
    ) -> Outcome<()> {
        self.target.set_xattr(&self.at(path), name.as_ref(), value.as_ref(), how)
    }

    /// removexattr(2).
    pub fn remove_xattr(&self, path: impl AsRef<[u8]>, name: impl AsRef<[u8]>) -> Outcome<()> {
        self.target.remove_xattr(&self.at(path), name.as_ref())
    }

    /// The names of a namespace's extended attributes, sorted.
    pub fn xattr_names(&self, path: impl AsRef<[u8]>, namespace: &str) -> Vec<Vec<u8>> {
        let mut names = self.target.list_xattrs(&self.at(path)).expect("listxattr");
        names.retain(|name| name.starts_with(namespace.as_bytes()));
        names.sort();
        names
    }

    /// Runs operations as another user.
    pub fn as_user(&self, user: User<'_>, run: impl Fn(View<'_>) + Send + Sync) {
        let case = self.case;
        self.target.as_user(user, &mut |target| run(View { target, case }));
    }
}

/// Reads this many bytes, which must be there.
pub(super) fn read_exactly(file: &dyn File, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xAA; len];
    let mut done = 0;
    while done < len {
        let count = file.read_at(offset + done as u64, &mut bytes[done..]).expect("read");
        assert!(count > 0, "end of file at {} of {len} bytes from {offset}", done);
        done += count;
    }
    bytes
}

/// Writes all of this at an offset.
pub(super) fn write_all(file: &dyn File, offset: u64, bytes: &[u8]) {
    let mut done = 0;
    while done < bytes.len() {
        let count = file.write_at(offset + done as u64, &bytes[done..]).expect("write");
        assert!(count > 0, "a write wrote nothing");
        done += count;
    }
}

/// Fails with the first difference rather than with two long arrays.
pub(super) fn assert_same(found: &[u8], expected: &[u8], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    if let Some(at) = (0..found.len()).find(|&at| found[at] != expected[at]) {
        panic!("{what}: byte {at} of {} is {:#x}, not {:#x}", found.len(), found[at], expected[at]);
    }
}

/// The extents of a file as SEEK_DATA and SEEK_HOLE see them: (start, end) of each run of data.
pub(super) fn data_runs(file: &dyn File) -> Vec<(u64, u64)> {
    let mut runs = Vec::new();
    let mut offset = 0;
    loop {
        match file.seek(offset, SeekTo::Data) {
            Ok(start) => {
                let end = file.seek(start, SeekTo::Hole).expect("a hole after data");
                assert!(end > start, "data at {start} ends at {end}");
                runs.push((start, end));
                offset = end;
            }
            Err(Kind::NoSuchOffset) => return runs,
            Err(kind) => panic!("seek: {kind:?}"),
        }
    }
}

/// A shorthand for fallocate that must succeed.
pub(super) fn fallocate(file: &dyn File, mode: FallocateMode, offset: u64, len: u64) {
    file.fallocate(mode, offset, len)
        .unwrap_or_else(|kind| panic!("fallocate {mode:?} {offset}+{len}: {kind:?}"));
}

fn show(path: &[u8]) -> std::path::Display<'_> {
    use std::os::unix::ffi::OsStrExt;
    Path::new(std::ffi::OsStr::from_bytes(path)).display()
}
