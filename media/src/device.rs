//! Devices below media: a plain file, a file on an fsdax mount, a block device or a devdax character device, opened
//! and locked against a second owner.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nacre_engine::{Error, Kind, LINE_SIZE, Result};
use rustix::fs::{
    Access, FallocateFlags, FlockOperation, MemfdFlags, access, fallocate, flock, fstatvfs, ftruncate,
    memfd_create,
};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, ioctl, opcode};

use crate::backing;
use crate::usage::user_of;

/// The kind of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// A regular file; whether it is on an fsdax mount shows when it is mapped.
    File,
    /// A block device, mapped through the page cache.
    Block,
    /// A devdax character device.
    Devdax,
}

impl DeviceKind {
    /// The kind in words.
    pub fn as_str(self) -> &'static str {
        match self {
            DeviceKind::File => "file",
            DeviceKind::Block => "block device",
            DeviceKind::Devdax => "devdax device",
        }
    }
}

/// An open device, locked for as long as it lives.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) file: File,
    pub(crate) kind: DeviceKind,
    /// Usable bytes, a multiple of a line.
    pub(crate) len: u64,
    /// The alignment that a mapping needs, at least a page.
    pub(crate) align: u64,
    pub(crate) name: String,
    /// The files below a loop device, locked with it.
    _below: Vec<File>,
}

const PAGE: u64 = 4096;
/// How long a busy device is tried again: a process that its last owner just started keeps it until it runs its own
/// program.
const PATIENCE: Duration = Duration::from_millis(200);

impl Device {
    /// Opens an existing device. A writer owns it, or a part of it, alone; readers share it. The same holds for the file
    /// below a loop device.
    pub(crate) fn open(path: &Path, read_only: bool, part: Option<&Range<u64>>) -> Result<Device> {
        let name = path.display().to_string();
        let metadata = fs::metadata(path).map_err(|e| open_error(&name, e))?;
        let kind = kind_of(&metadata, &name)?;
        // On a block device O_EXCL keeps mounts and other exclusive owners out.
        let exclusive = if kind == DeviceKind::Block && !read_only { libc::O_EXCL } else { 0 };
        let file = match part {
            None => open_locked(path, &name, read_only, exclusive)?,
            Some(part) => open_part(path, &name, read_only, exclusive, part)?,
        };
        if kind == DeviceKind::Block && !read_only && is_write_protected(&file) {
            return Err(Error::new(Kind::ReadOnly)
                .operation("open")
                .object(name)
                .advice("the device is write-protected; it can be used read-only"));
        }
        let access = backing::Access { writes: !read_only, is_part: part.is_some() };
        let below = backing::hold_all(&backing::below_file(&file), &name, access)?;
        if kind != DeviceKind::Devdax && read_only && part.is_none() {
            backing::lock_to_look(&file).map_err(|_| busy(&name))?;
        }
        Ok(Device { _below: below, ..Device::from_locked(file, kind, name)? })
    }

    /// Makes a file of `len` bytes, by default with all its space allocated: a store to a hole could find the file
    /// system full, and that would be a bus error.
    pub(crate) fn create(path: &Path, len: u64, allocated: bool) -> Result<Device> {
        let name = path.display().to_string();
        check_size(len, &name)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_CLOEXEC)
            .open(path)
            .map_err(|e| match e.kind() {
                io::ErrorKind::AlreadyExists => Error::new(Kind::Exists).operation("create").object(&name),
                _ => Error::io("create", &name, e),
            })?;
        let made = lock(&file, false, &name)
            .and_then(|()| match allocated {
                true => allocate(&file, len, &name),
                false => file.set_len(len).map_err(|e| Error::io("create", &name, e)),
            })
            .and_then(|()| Device::from_locked(file, DeviceKind::File, name));
        if made.is_err() {
            // No other process can have come to need this file, so half of one need not stay behind.
            let _ = fs::remove_file(path);
        }
        made
    }

    /// A file as it would be with `len` bytes: the one that is there, or one without a name that is like the one that
    /// [`create`](Device::create) would make. It fails where these would fail, as far as that shows. Nothing is changed,
    /// and no byte is to be accessed.
    pub(crate) fn as_if(path: &Path, len: u64, allocated: bool) -> Result<Device> {
        let name = path.display().to_string();
        check_size(len, &name)?;
        let (file, has) = match fs::metadata(path) {
            Ok(metadata) => (open_locked(path, &name, false, 0)?, metadata.blocks() * 512),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let file = unnamed_beside(path).map_err(|error| Error::io("create", &name, error))?;
                // A file system has a largest size of files.
                ftruncate(&file, len).map_err(|errno| allocation_error(&name, errno))?;
                (file, 0)
            }
            Err(error) => return Err(open_error(&name, error)),
        };
        if allocated {
            require_space(&file, len.saturating_sub(has), &name)?;
        }
        Ok(Device { file, kind: DeviceKind::File, len, align: PAGE, name, _below: Vec::new() })
    }

    fn from_locked(file: File, kind: DeviceKind, name: String) -> Result<Device> {
        let metadata = file.metadata().map_err(|e| Error::io("stat", &name, e))?;
        if kind_of(&metadata, &name)? != kind {
            return Err(Error::new(Kind::Busy)
                .operation("open")
                .object(name)
                .advice("it was replaced meanwhile"));
        }
        let (len, align) = match kind {
            DeviceKind::File => (metadata.len(), PAGE),
            DeviceKind::Block => {
                ((&file).seek(SeekFrom::End(0)).map_err(|e| Error::io("find the size of", &name, e))?, PAGE)
            }
            DeviceKind::Devdax => {
                let sysfs = sysfs_of(metadata.rdev());
                let size = number_in(&sysfs.join("size"))?;
                (size, number_in(&sysfs.join("align")).unwrap_or(2 << 20).max(PAGE))
            }
        };
        let len = len - len % LINE_SIZE;
        if len == 0 {
            let advice = match metadata.len() {
                0 => "it is empty: give another one, or restore its content",
                _ => "it is too small to hold anything of nacre: give another one, or restore its size",
            };
            return Err(Error::new(Kind::InvalidInput).operation("open").object(name).advice(advice));
        }
        Ok(Device { file, kind, len, align, name, _below: Vec::new() })
    }

    /// Writes a block by write(2), durable when it returns: the kernel clears media errors in it. The error is the
    /// remedy where that cannot be had.
    pub(crate) fn write_block(&self, offset: u64, block: &[u8]) -> Result<(), &'static str> {
        const FAILED: &str = "write(2) does not clear it: see the kernel's log";
        if self.kind == DeviceKind::Devdax {
            return Err("unmount it and clear it with ndctl clear-errors: a devdax device has no write(2)");
        }
        // A file that was cut shorter under its owner must not grow again.
        let end = offset + block.len() as u64;
        let is_there = match self.kind {
            DeviceKind::File => self.file.metadata().is_ok_and(|metadata| metadata.len() >= end),
            _ => end <= self.len,
        };
        if !is_there {
            return Err("the file is shorter than it was");
        }
        self.file.write_all_at(block, offset).and_then(|()| self.file.sync_data()).map_err(|_| FAILED)
    }

    /// Allocates the missing space of a file, without changing its bytes.
    pub(crate) fn allocate(&self) -> Result<()> {
        if self.kind != DeviceKind::File {
            return Ok(());
        }
        let metadata = self.file.metadata().map_err(|e| Error::io("stat", &self.name, e))?;
        if metadata.blocks() * 512 >= self.len {
            return Ok(());
        }
        match fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, self.len) {
            // Without fallocate the holes stay; a store to one may then fail as a media error.
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
            Err(errno) => Err(allocation_error(&self.name, errno)),
        }
    }
}

/// Opens an existing device, with more flags, and locks it: to read with others, or alone.
fn open_locked(path: &Path, name: &str, read_only: bool, flags: i32) -> Result<File> {
    let file = open_with(path, read_only, flags).map_err(|e| open_error(name, e))?;
    lock(&file, read_only, name)?;
    Ok(file)
}

pub(crate) fn open_with(path: &Path, read_only: bool, flags: i32) -> io::Result<File> {
    patiently(|| open_once(path, read_only, flags))
}

fn open_once(path: &Path, read_only: bool, flags: i32) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(!read_only)
        .custom_flags(flags | libc::O_NOCTTY | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)
}

/// Tries again for a while what finds a device in use.
pub(crate) fn patiently<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let begin = Instant::now();
    loop {
        match attempt() {
            Err(error) if is_busy(&error) && begin.elapsed() < PATIENCE => sleep(PATIENCE / 100),
            done => return done,
        }
    }
}

pub(crate) fn is_busy(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy)
}

/// Opens an existing device of which this process has a part. The lock of the device says that it is shared.
fn open_part(path: &Path, name: &str, read_only: bool, flags: i32, part: &Range<u64>) -> Result<File> {
    let opened = patiently(|| match open_once(path, read_only, flags) {
        // Another owner has the block device exclusively. It is one of ours if the device is locked.
        Err(error) if flags & libc::O_EXCL != 0 && error.kind() == io::ErrorKind::ResourceBusy => {
            let file = open_once(path, read_only, 0)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => Err(error),
                Err(_) => Ok(file),
            }
        }
        opened => opened,
    });
    let file = opened.map_err(|error| open_error(name, error))?;
    lock(&file, true, name)?;
    match lock_bytes(&file, !read_only, part) {
        Ok(()) => Ok(file),
        Err(error) if is_busy(&error) => Err(busy(name)),
        Err(error) => Err(Error::io("lock a part of", name, error)),
    }
}

/// Locks bytes of an open file, alone or with others, for as long as it is open.
pub(crate) fn lock_bytes(file: &File, alone: bool, bytes: &Range<u64>) -> io::Result<()> {
    let kind = if alone { libc::F_WRLCK } else { libc::F_RDLCK };
    let range = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: bytes.start as libc::off_t,
        l_len: (bytes.end - bytes.start) as libc::off_t,
        // Zero, as a lock of an open file description must have it.
        l_pid: 0,
    };
    patiently(|| {
        // SAFETY: the descriptor is open, and `range` is read by the call only.
        match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &range) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    })
}

/// Gives a plain file another size, unless it has an owner: [`Busy`](Kind::Busy).
pub fn resize_unowned(path: &Path, len: u64) -> Result<()> {
    let name = path.display().to_string();
    let file = open_locked(path, &name, false, 0)?;
    file.set_len(len).map_err(|e| Error::io("set the size of", &name, e))
}

pub(crate) fn open_error(name: &str, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => Kind::NotFound,
        io::ErrorKind::PermissionDenied => return no_access(name, &error),
        io::ErrorKind::ReadOnlyFilesystem => Kind::ReadOnly,
        io::ErrorKind::ResourceBusy => return busy(name),
        _ => return Error::io("open", name, error),
    };
    Error::new(kind).operation("open").object(name)
}

/// The error of a user without the permission to open a device or a file, for this error of open(2).
pub fn no_access(name: &str, error: &io::Error) -> Error {
    let advice = if error.raw_os_error() == Some(libc::EPERM) {
        "the kernel refuses it to root, too: lsattr shows whether the file is immutable or append-only, and chattr -ia \
         ends that"
    } else if rustix::process::geteuid().is_root() {
        "root may not open it here: its file system refuses root, or the rights of this process are limited"
    } else {
        "this user may not open it: do it as root, or have its owner change its mode"
    };
    Error::new(Kind::AccessDenied).operation("open").object(name).advice(advice)
}

fn busy(name: &str) -> Error {
    let user = user_of(Path::new(name)).map_or_else(String::new, |user| format!(", {user}"));
    Error::new(Kind::Busy)
        .operation("open")
        .object(format!("{name}{user}"))
        .advice("another process uses this device; unmount it first")
}

pub(crate) fn lock(file: &File, shared: bool, name: &str) -> Result<()> {
    try_lock(file, shared).map_err(|error| match is_busy(&error) {
        true => busy(name),
        false => Error::io("lock", name, error),
    })
}

pub(crate) fn try_lock(file: &File, shared: bool) -> io::Result<()> {
    let how =
        if shared { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
    patiently(|| Ok(flock(file, how)?))
}

/// Whether a block device takes no writes. Some can be opened to write all the same.
fn is_write_protected(device: &File) -> bool {
    const BLKROGET: Opcode = opcode::none(0x12, 94);
    // SAFETY: the request writes one number of type int.
    unsafe { ioctl(device, Getter::<BLKROGET, libc::c_int>::new()) }
        .is_ok_and(|is_protected| is_protected != 0)
}

fn check_size(len: u64, name: &str) -> Result<()> {
    if len > 0 && len.is_multiple_of(PAGE) {
        return Ok(());
    }
    Err(Error::new(Kind::InvalidInput)
        .operation("create")
        .object(name)
        .advice("give a size that is a multiple of 4096 and not zero"))
}

/// A file without a name, in the directory of a path. On a file system that has none it is in DRAM.
fn unnamed_beside(path: &Path) -> io::Result<File> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let unnamed = libc::O_TMPFILE | libc::O_CLOEXEC;
    let opened = OpenOptions::new().read(true).write(true).mode(0o600).custom_flags(unnamed).open(dir);
    match opened {
        Err(error) if has_no_unnamed_files(&error) => {
            access(dir, Access::WRITE_OK | Access::EXEC_OK)?;
            Ok(memfd_create("nacre", MemfdFlags::CLOEXEC)?.into())
        }
        opened => opened,
    }
}

fn has_no_unnamed_files(error: &io::Error) -> bool {
    // An old kernel takes it for an open of the directory.
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::ENOSYS))
}

/// Fails if the file system of a file has not so much space.
fn require_space(file: &File, len: u64, name: &str) -> Result<()> {
    let Ok(space) = fstatvfs(file) else { return Ok(()) };
    let blocks = if rustix::process::geteuid().is_root() { space.f_bfree } else { space.f_bavail };
    // A tmpfs without a limit has no blocks.
    if space.f_blocks == 0 || blocks.saturating_mul(space.f_frsize) >= len {
        return Ok(());
    }
    Err(allocation_error(name, Errno::NOSPC))
}

fn allocate(file: &File, len: u64, name: &str) -> Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, len) {
        Ok(()) => return Ok(()),
        Err(Errno::OPNOTSUPP) => {}
        Err(errno) => return Err(allocation_error(name, errno)),
    }
    // A file system without fallocate: only written zeros are space for certain.
    let zeros = vec![0; 1 << 20];
    let mut at = 0;
    while at < len {
        let piece = zeros.len().min((len - at) as usize);
        let written =
            rustix::io::pwrite(file, &zeros[..piece], at).map_err(|errno| allocation_error(name, errno))?;
        at += written as u64;
    }
    Ok(())
}

fn allocation_error(name: &str, errno: Errno) -> Error {
    match errno {
        Errno::NOSPC | Errno::DQUOT => Error::new(Kind::NoSpace)
            .operation("allocate")
            .object(name)
            .advice("free space on the file system of that file, or make it smaller"),
        Errno::FBIG => Error::new(Kind::FileTooBig).operation("allocate").object(name),
        _ => Error::io("allocate", name, errno.into()),
    }
}

fn kind_of(metadata: &fs::Metadata, name: &str) -> Result<DeviceKind> {
    let file_type = metadata.file_type();
    let refuse = |kind, advice| Err(Error::new(kind).operation("open").object(name).advice(advice));
    if file_type.is_file() {
        Ok(DeviceKind::File)
    } else if file_type.is_block_device() {
        Ok(DeviceKind::Block)
    } else if file_type.is_char_device() {
        let subsystem = fs::read_link(sysfs_of(metadata.rdev()).join("subsystem"));
        if subsystem.is_ok_and(|target| target.ends_with("dax")) {
            Ok(DeviceKind::Devdax)
        } else {
            refuse(Kind::Unsupported, "this character device is not a devdax device")
        }
    } else if file_type.is_dir() {
        refuse(Kind::IsDirectory, "give a file, a block device or a devdax device")
    } else {
        refuse(Kind::Unsupported, "give a file, a block device or a devdax device")
    }
}

fn sysfs_of(device_number: u64) -> PathBuf {
    let (major, minor) = (libc::major(device_number), libc::minor(device_number));
    PathBuf::from(format!("/sys/dev/char/{major}:{minor}"))
}

fn number_in(path: &Path) -> Result<u64> {
    let text = fs::read_to_string(path).map_err(|e| Error::io("read", path.display().to_string(), e))?;
    parse_number(&text).ok_or_else(|| Error::corrupt(format!("{}: \"{}\"", path.display(), text.trim())))
}

/// Numbers in sysfs are decimal, or hexadecimal with a prefix.
pub(crate) fn parse_number(text: &str) -> Option<u64> {
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use nacre_engine::Kind;

    use super::{Device, no_access, parse_number};

    #[test]
    fn what_is_no_memory_is_refused() {
        assert_eq!(Device::open(Path::new("/dev/null"), false, None).unwrap_err().kind(), Kind::Unsupported);
        assert_eq!(Device::open(Path::new("/dev"), true, None).unwrap_err().kind(), Kind::IsDirectory);
        assert_eq!(
            Device::open(Path::new("/dev/no-such-device"), true, None).unwrap_err().kind(),
            Kind::NotFound
        );
    }

    /// Root was told to do it as root.
    #[test]
    fn root_is_not_told_to_be_root() {
        let said = |number| no_access("disk", &std::io::Error::from_raw_os_error(number)).to_string();
        assert!(said(libc::EPERM).contains("immutable") && !said(libc::EPERM).contains("do it as root"));
        let is_root = rustix::process::geteuid().is_root();
        assert_eq!(said(libc::EACCES).contains("do it as root"), !is_root);
        assert_eq!(said(libc::EACCES).contains("root may not"), is_root);
    }

    #[test]
    fn numbers_of_sysfs() {
        assert_eq!(parse_number("2097152\n"), Some(2 << 20));
        assert_eq!(parse_number("0x200000\n"), Some(2 << 20));
        assert_eq!(parse_number("two\n"), None);
    }
}
