//! A mounted file system, or any directory, through system calls.

use std::io::IoSlice;
use std::path::{Path, PathBuf};

use nacre_engine::{
    Attr, BLOCK_SIZE, FallocateMode, FileKind, Kind, RenameMode, SeekTo, Timestamp, XattrMode,
};
use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, CWD, Dir, FallocateFlags, FileType, Gid, IFlags, Mode, OFlags, RenameFlags, SeekFrom, Timespec,
    Timestamps, UTIME_NOW, UTIME_OMIT, Uid, XattrFlags,
};
use rustix::io::Errno;
use rustix::{fs, process, thread};

use super::target::{File, Listed, Need, Open, Outcome, SetTime, Space, Stat, Target, User};

/// Unmounts and mounts again, somewhere outside.
pub type Remount = Box<dyn FnMut() + Send + Sync>;

/// A directory of this machine as a [`Target`].
pub struct DirectoryTarget {
    root: PathBuf,
    lacking: Vec<(Need, String)>,
    remount: Option<Remount>,
    crash: Option<Remount>,
    /// A remount has failed. The directory that the mount was on is of another file system, which no case may fill.
    is_gone: bool,
}

impl DirectoryTarget {
    /// A directory as a target. `lacking` lists the capabilities that it lacks, with the reasons; `remount` unmounts
    /// and mounts it. The umask of this process becomes 0.
    pub fn new(root: &Path, lacking: &[(Need, &str)], remount: Option<Remount>) -> DirectoryTarget {
        process::umask(Mode::empty());
        let mut lacking: Vec<_> = lacking.iter().map(|&(need, why)| (need, why.to_owned())).collect();
        if remount.is_none() {
            lacking.push((Need::Remount, "nobody said how to remount it".to_owned()));
        }
        if !process::geteuid().is_root() {
            for need in [Need::Users, Need::TrustedXattrs, Need::DeviceNodes, Need::InodeFlags] {
                lacking.push((need, "only root may do this, and this is not root".to_owned()));
            }
        }
        DirectoryTarget { root: root.to_owned(), lacking, remount, crash: None, is_gone: false }
    }

    /// With a way to kill and mount it.
    #[must_use]
    pub fn with_crash(self, crash: Remount) -> DirectoryTarget {
        DirectoryTarget { crash: Some(crash), ..self }
    }

    fn at(&self, path: &[u8]) -> Vec<u8> {
        assert!(!self.is_gone, "a remount before this failed");
        use std::os::unix::ffi::OsStrExt;
        let mut full = self.root.as_os_str().as_bytes().to_vec();
        if !path.is_empty() {
            full.push(b'/');
            full.extend_from_slice(path);
        }
        full
    }
}

/// The kind that an error number stands for.
pub fn kind_of(errno: Errno) -> Kind {
    match errno {
        Errno::NOENT => Kind::NotFound,
        Errno::EXIST => Kind::Exists,
        Errno::NOTDIR => Kind::NotDirectory,
        Errno::ISDIR => Kind::IsDirectory,
        Errno::NOTEMPTY => Kind::NotEmpty,
        Errno::NAMETOOLONG => Kind::NameTooLong,
        Errno::INVAL => Kind::InvalidInput,
        Errno::NOSPC | Errno::DQUOT => Kind::NoSpace,
        Errno::FBIG | Errno::OVERFLOW => Kind::FileTooBig,
        Errno::ACCESS => Kind::AccessDenied,
        Errno::PERM => Kind::NotPermitted,
        Errno::ROFS => Kind::ReadOnly,
        Errno::XDEV => Kind::CrossDevice,
        Errno::MLINK => Kind::TooManyLinks,
        Errno::LOOP => Kind::TooManySymlinks,
        Errno::NODATA => Kind::NoAttribute,
        Errno::RANGE => Kind::BufferTooSmall,
        Errno::TOOBIG => Kind::TooBig,
        Errno::STALE => Kind::Stale,
        Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY => Kind::Unsupported,
        Errno::BUSY | Errno::TXTBSY => Kind::Busy,
        Errno::BADF => Kind::BadHandle,
        Errno::NXIO => Kind::NoSuchOffset,
        _ => Kind::Io,
    }
}

fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits & 0o7777)
}

fn kind_from(file_type: FileType) -> FileKind {
    match file_type {
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        _ => FileKind::Regular,
    }
}

fn type_from(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::CharDevice => FileType::CharacterDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
    }
}

fn stat_from(stat: &fs::Stat) -> Stat {
    let time = |secs: i64, nanos: u64| Timestamp::new(secs, nanos as u32);
    Stat {
        number: stat.st_ino,
        kind: kind_from(FileType::from_raw_mode(stat.st_mode)),
        mode: stat.st_mode & 0o7777,
        links: stat.st_nlink,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: stat.st_rdev,
        size: stat.st_size as u64,
        // Whole blocks: a mount reports one sector at least for a file with a size.
        allocated: stat.st_blocks as u64 * 512 / BLOCK_SIZE * BLOCK_SIZE,
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
    }
}

fn timespec(time: SetTime) -> Timespec {
    match time {
        SetTime::Omit => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        SetTime::Now => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        SetTime::At(time) => Timespec { tv_sec: time.secs, tv_nsec: time.nanos.into() },
    }
}

fn follow_flag(follow: bool) -> AtFlags {
    if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW }
}

/// An open file of this machine.
struct OpenFile(OwnedFd);

impl File for OpenFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Outcome<usize> {
        rustix::io::pread(&self.0, buf, offset).map_err(kind_of)
    }

    fn write_vectored_at(&self, offset: u64, data: &[IoSlice<'_>]) -> Outcome<usize> {
        rustix::io::pwritev(&self.0, data, offset).map_err(kind_of)
    }

    fn append(&self, data: &[u8]) -> Outcome<usize> {
        rustix::io::write(&self.0, data).map_err(kind_of)
    }

    fn set_len(&self, size: u64) -> Outcome<()> {
        fs::ftruncate(&self.0, size).map_err(kind_of)
    }

    fn fallocate(&self, mode: FallocateMode, offset: u64, len: u64) -> Outcome<()> {
        let flags = match mode {
            FallocateMode::Allocate => FallocateFlags::empty(),
            FallocateMode::AllocateKeepSize => FallocateFlags::KEEP_SIZE,
            FallocateMode::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            FallocateMode::ZeroRange => FallocateFlags::ZERO_RANGE,
            FallocateMode::ZeroRangeKeepSize => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        };
        fs::fallocate(&self.0, flags, offset, len).map_err(kind_of)
    }

    fn seek(&self, offset: u64, to: SeekTo) -> Outcome<u64> {
        let from = match to {
            SeekTo::Data => SeekFrom::Data(offset),
            SeekTo::Hole => SeekFrom::Hole(offset),
        };
        fs::seek(&self.0, from).map_err(kind_of)
    }

    fn sync(&self, only_data: bool) -> Outcome<()> {
        if only_data { fs::fdatasync(&self.0) } else { fs::fsync(&self.0) }.map_err(kind_of)
    }

    fn stat(&self) -> Outcome<Stat> {
        fs::fstat(&self.0).map(|stat| stat_from(&stat)).map_err(kind_of)
    }

    fn chmod(&self, bits: u32) -> Outcome<()> {
        fs::fchmod(&self.0, mode(bits)).map_err(kind_of)
    }
}

impl DirectoryTarget {
    fn open_fd(&self, path: &[u8], flags: OFlags, bits: u32) -> Outcome<OwnedFd> {
        fs::open(self.at(path), flags | OFlags::CLOEXEC, mode(bits)).map_err(kind_of)
    }
}

impl Target for DirectoryTarget {
    fn describe(&self) -> String {
        self.root.display().to_string()
    }

    fn lacks(&self, need: Need) -> Option<&str> {
        self.lacking.iter().find(|(lacking, _)| *lacking == need).map(|(_, why)| why.as_str())
    }

    fn open(&self, path: &[u8], how: Open) -> Outcome<Box<dyn File + '_>> {
        let mut flags = match (how.read, how.write) {
            (true, true) => OFlags::RDWR,
            (false, true) => OFlags::WRONLY,
            _ => OFlags::RDONLY,
        };
        let wanted = [
            (how.append, OFlags::APPEND),
            (how.create, OFlags::CREATE),
            (how.exclusive, OFlags::EXCL),
            (how.truncate, OFlags::TRUNC),
            (how.directory, OFlags::DIRECTORY),
            (how.no_follow, OFlags::NOFOLLOW),
            (how.sync, OFlags::SYNC),
        ];
        wanted.iter().filter(|(want, _)| *want).for_each(|(_, flag)| flags |= *flag);
        Ok(Box::new(OpenFile(self.open_fd(path, flags, how.mode)?)))
    }

    fn open_unnamed(&self, dir: &[u8], bits: u32) -> Outcome<Box<dyn File + '_>> {
        Ok(Box::new(OpenFile(self.open_fd(dir, OFlags::TMPFILE | OFlags::RDWR, bits)?)))
    }

    fn stat(&self, path: &[u8], follow: bool) -> Outcome<Stat> {
        fs::statat(CWD, self.at(path), follow_flag(follow)).map(|stat| stat_from(&stat)).map_err(kind_of)
    }

    fn mkdir(&self, path: &[u8], bits: u32) -> Outcome<()> {
        fs::mkdir(self.at(path), mode(bits)).map_err(kind_of)
    }

    fn rmdir(&self, path: &[u8]) -> Outcome<()> {
        fs::rmdir(self.at(path)).map_err(kind_of)
    }

    fn unlink(&self, path: &[u8]) -> Outcome<()> {
        fs::unlink(self.at(path)).map_err(kind_of)
    }

    fn link(&self, from: &[u8], to: &[u8]) -> Outcome<()> {
        fs::link(self.at(from), self.at(to)).map_err(kind_of)
    }

    fn symlink(&self, target: &[u8], path: &[u8]) -> Outcome<()> {
        fs::symlink(target, self.at(path)).map_err(kind_of)
    }

    fn read_link(&self, path: &[u8]) -> Outcome<Vec<u8>> {
        fs::readlink(self.at(path), Vec::new()).map(|target| target.into_bytes()).map_err(kind_of)
    }

    fn mknod(&self, path: &[u8], kind: FileKind, bits: u32, rdev: u64) -> Outcome<()> {
        fs::mknodat(CWD, self.at(path), type_from(kind), mode(bits), rdev).map_err(kind_of)
    }

    fn rename(&self, from: &[u8], to: &[u8], mode: RenameMode) -> Outcome<()> {
        let flags = match mode {
            RenameMode::Replace => RenameFlags::empty(),
            RenameMode::NoReplace => RenameFlags::NOREPLACE,
            RenameMode::Exchange => RenameFlags::EXCHANGE,
            RenameMode::Whiteout { .. } => RenameFlags::WHITEOUT,
        };
        fs::renameat_with(CWD, self.at(from), CWD, self.at(to), flags).map_err(kind_of)
    }

    fn read_dir(&self, path: &[u8], cookie: u64, max: usize) -> Outcome<Vec<Listed>> {
        let mut dir = Dir::new(self.open_fd(path, OFlags::DIRECTORY, 0)?).map_err(kind_of)?;
        if cookie != 0 {
            dir.seek(cookie as i64).map_err(kind_of)?;
        }
        let mut listed = Vec::new();
        while listed.len() < max {
            let Some(entry) = dir.read() else { break };
            let entry = entry.map_err(kind_of)?;
            let name = entry.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                listed.push(Listed {
                    cookie: entry.offset() as u64,
                    name,
                    number: entry.ino(),
                    kind: kind_from(entry.file_type()),
                });
            }
        }
        Ok(listed)
    }

    fn truncate(&self, path: &[u8], size: u64) -> Outcome<()> {
        // rustix has no truncate(2) by path; on the whole this is the same for users that may write.
        fs::ftruncate(self.open_fd(path, OFlags::WRONLY, 0)?, size).map_err(kind_of)
    }

    fn chmod(&self, path: &[u8], bits: u32) -> Outcome<()> {
        fs::chmod(self.at(path), mode(bits)).map_err(kind_of)
    }

    fn chown(&self, path: &[u8], uid: Option<u32>, gid: Option<u32>, follow: bool) -> Outcome<()> {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        fs::chownat(CWD, self.at(path), uid, gid, follow_flag(follow)).map_err(kind_of)
    }

    fn set_times(&self, path: &[u8], atime: SetTime, mtime: SetTime, follow: bool) -> Outcome<()> {
        let times = Timestamps { last_access: timespec(atime), last_modification: timespec(mtime) };
        fs::utimensat(CWD, self.at(path), &times, follow_flag(follow)).map_err(kind_of)
    }

    fn set_flags(&self, path: &[u8], flags: u32) -> Outcome<()> {
        let mut wanted = IFlags::empty();
        wanted.set(IFlags::IMMUTABLE, flags & Attr::IMMUTABLE != 0);
        wanted.set(IFlags::APPEND, flags & Attr::APPEND_ONLY != 0);
        let file = self.open_fd(path, OFlags::RDONLY, 0)?;
        let mut all = fs::ioctl_getflags(&file).map_err(kind_of)?;
        all.remove(IFlags::IMMUTABLE | IFlags::APPEND);
        fs::ioctl_setflags(&file, all | wanted).map_err(kind_of)
    }

    fn get_xattr(&self, path: &[u8], name: &[u8]) -> Outcome<Vec<u8>> {
        let mut value = Vec::with_capacity(128 << 10);
        fs::lgetxattr(self.at(path), name, rustix::buffer::spare_capacity(&mut value)).map_err(kind_of)?;
        Ok(value)
    }

    fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8], how: XattrMode) -> Outcome<()> {
        let flags = match how {
            XattrMode::Set => XattrFlags::empty(),
            XattrMode::Create => XattrFlags::CREATE,
            XattrMode::Replace => XattrFlags::REPLACE,
        };
        fs::lsetxattr(self.at(path), name, value, flags).map_err(kind_of)
    }

    fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Outcome<()> {
        fs::lremovexattr(self.at(path), name).map_err(kind_of)
    }

    fn list_xattrs(&self, path: &[u8]) -> Outcome<Vec<Vec<u8>>> {
        let mut list: Vec<u8> = Vec::with_capacity(128 << 10);
        fs::llistxattr(self.at(path), rustix::buffer::spare_capacity(&mut list)).map_err(kind_of)?;
        Ok(list.split(|&byte| byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
    }

    fn space(&self) -> Outcome<Space> {
        let stat = fs::statvfs(&self.root).map_err(kind_of)?;
        Ok(Space {
            total: stat.f_blocks * stat.f_frsize,
            free: stat.f_bfree * stat.f_frsize,
            available: stat.f_bavail * stat.f_frsize,
            inodes: stat.f_files,
            inodes_free: stat.f_ffree,
        })
    }

    fn as_user(&self, user: User<'_>, run: &mut (dyn FnMut(&dyn Target) + Send)) {
        // Credentials belong to a thread of the kernel: one that ends afterwards may give up its own.
        let result = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
                    let groups: Vec<Gid> = user.groups.iter().map(|&gid| Gid::from_raw(gid)).collect();
                    thread::set_thread_groups(&groups).expect("root may set groups");
                    thread::set_thread_res_gid(gid, gid, gid).expect("root may set the group");
                    thread::set_thread_res_uid(uid, uid, uid).expect("root may set the user");
                    run(self);
                })
                .join()
        });
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    }

    fn remount(&mut self) {
        self.is_gone = true;
        self.remount.as_mut().expect("the case needs a remount, and the runner has asked for it")();
        self.is_gone = false;
    }

    fn crash(&mut self) {
        let Some(crash) = &mut self.crash else { return self.remount() };
        self.is_gone = true;
        crash();
        self.is_gone = false;
    }
}
