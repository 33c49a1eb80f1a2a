//! The files below loop devices, which are locked together with them.
//!
//! A lock is on one inode. The lock of a loop device protects neither the file below it nor another loop device over
//! that file. So each user of such a device, or of a partition or a mapped device on it, also locks the files below.
//! It shares them with the users of other bytes:
//!
//! - The user of a whole device locks its bytes, and the same bytes counted from [`LOOKS`]: alone to write.
//! - The user of a part locks the bytes of the device together with the users of other parts. These use the same loop
//!   device, because the page caches of two are not coherent.
//! - A reader of the file itself locks all bytes from [`LOOKS`] on. It reads beside the users of parts.
//!
//! The owner of the whole file has its own lock alone, and the owner of a part of the file has locked its bytes.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nacre_engine::{Error, Kind, Result};

use crate::device::{is_busy, lock_bytes, open_with, parse_number, patiently, try_lock};
use crate::usage::user_of;

/// Layers of devices on one another; more are a circle.
const MOST_LAYERS: usize = 64;
/// The unit of sizes in sysfs.
const SECTOR: u64 = 512;
/// Locks beyond all bytes of a file: where those begin that readers of the whole file have.
const LOOKS: u64 = 1 << 61;
/// The number of these.
const ALL_LOOKS: u64 = 1 << 60;
/// The lock of loop device 0; those of the others follow.
const LOOPS: u64 = 1 << 62;
/// A bound of their number.
const ALL_LOOPS: u64 = 1 << 32;
/// Where the kernel describes block devices by their numbers.
const BLOCK_DEVICES: &str = "/sys/dev/block";

/// The use of a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    /// It is written.
    pub(crate) writes: bool,
    /// Other processes use other parts of it.
    pub(crate) is_part: bool,
}

/// The file or device below a loop device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Backing {
    /// Its name for the kernel.
    pub(crate) path: PathBuf,
    /// The number of the loop device.
    loop_device: u64,
    /// The bytes in use; none where they are not known, as below a mapped device.
    bytes: Option<Range<u64>>,
}

/// The files and devices below the loop devices that a block device with this number is, or is made of.
pub(crate) fn below(device: u64) -> Vec<Backing> {
    let mut found = Vec::new();
    look_below(Path::new(BLOCK_DEVICES), device, None, true, &mut found);
    found
}

/// The same of an open device; none of a file.
pub(crate) fn below_file(file: &File) -> Vec<Backing> {
    match file.metadata() {
        Ok(metadata) if metadata.file_type().is_block_device() => below(metadata.rdev()),
        _ => Vec::new(),
    }
}

/// Adds those below these bytes of a device, or below all of it.
fn look_below(
    devices: &Path,
    device: u64,
    bytes: Option<Range<u64>>,
    is_known: bool,
    found: &mut Vec<Backing>,
) {
    if found.len() >= MOST_LAYERS {
        return;
    }
    let sysfs = devices.join(format!("{}:{}", libc::major(device), libc::minor(device)));
    let number = |name: &str| parse_number(&fs::read_to_string(sysfs.join(name)).ok()?);
    let all = || Some(0..number("size")?.checked_mul(SECTOR)?);
    let bytes = bytes.or_else(all).filter(|_| is_known);
    let moved_by = |offset: u64| {
        let Range { start, end } = bytes.clone()?;
        Some(start.checked_add(offset)?..end.checked_add(offset)?)
    };
    if let Some(path) = backing_file(&sysfs) {
        let bytes = moved_by(number("loop/offset").unwrap_or(0));
        let metadata = fs::metadata(&path);
        let loop_device = libc::minor(device).into();
        found.push(Backing { path, loop_device, bytes: bytes.clone() });
        if let Ok(metadata) = metadata
            && metadata.file_type().is_block_device()
        {
            look_below(devices, metadata.rdev(), bytes, is_known, found);
        }
    }
    if sysfs.join("partition").exists()
        && let Some(disk) = fs::canonicalize(&sysfs).ok().as_deref().and_then(Path::parent)
        && let Some(disk) = number_of(disk)
    {
        let start = number("start").and_then(|start| moved_by(start.checked_mul(SECTOR)?));
        look_below(devices, disk, start.clone(), start.is_some(), found);
    }
    for slave in fs::read_dir(sysfs.join("slaves")).into_iter().flatten().flatten() {
        if let Some(slave) = number_of(&slave.path()) {
            look_below(devices, slave, None, false, found);
        }
    }
}

/// The number of the device that a directory of sysfs describes.
fn number_of(sysfs: &Path) -> Option<u64> {
    let text = fs::read_to_string(sysfs.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// The file below a loop device, as the kernel names it.
pub(crate) fn backing_file(sysfs: &Path) -> Option<PathBuf> {
    let mut name = fs::read(sysfs.join("loop/backing_file")).ok()?;
    name.pop_if(|last| *last == b'\n');
    Some(PathBuf::from(OsString::from_vec(name)))
}

/// Locks the files below a device for its user, for as long as they stay open. [`Busy`](Kind::Busy) if another process
/// uses the same bytes. Files that this process may not open are left out.
pub(crate) fn hold_all(below: &[Backing], name: &str, access: Access) -> Result<Vec<File>> {
    let mut held = Vec::new();
    for backing in below {
        held.extend(hold(backing, name, access)?);
    }
    Ok(held)
}

fn hold(backing: &Backing, name: &str, access: Access) -> Result<Option<File>> {
    let open = |read_only| open_with(&backing.path, read_only, 0);
    // A lock alone takes a file that is open to be written.
    let opened = if access.writes { open(false).or_else(|_| open(true)) } else { open(true) };
    let Ok(file) = opened else { return Ok(None) };
    match lock_for(&file, backing, access) {
        Err(error) if is_busy(&error) => {
            let path = &backing.path;
            let user = user_of(path).map_or_else(String::new, |user| format!(", {user}"));
            Err(Error::new(Kind::Busy)
                .operation("open")
                .object(format!("{name}: it leads to {}{user}", path.display()))
                .advice("another process uses this device; unmount it first"))
        }
        // A file system without such locks has no others that could be in the way.
        _ => Ok(Some(file)),
    }
}

fn lock_for(file: &File, backing: &Backing, access: Access) -> io::Result<()> {
    try_lock(file, true)?;
    let Backing { loop_device, bytes, .. } = backing;
    let this = LOOPS + loop_device..LOOPS + loop_device + 1;
    lock_bytes(file, false, &this)?;
    let Some(bytes) = bytes.as_ref().filter(|bytes| !bytes.is_empty()) else { return Ok(()) };
    if access.is_part {
        lock_bytes(file, false, bytes)?;
        return patiently(|| {
            let others = [LOOPS..this.start, this.end..LOOPS + ALL_LOOPS];
            match others.iter().any(|others| !others.is_empty() && is_locked_by_another(file, others)) {
                true => Err(io::ErrorKind::WouldBlock.into()),
                false => Ok(()),
            }
        });
    }
    lock_bytes(file, access.writes, bytes)?;
    lock_bytes(file, access.writes, &(LOOKS + bytes.start..LOOKS + bytes.end))
}

/// Locks an open file for its reader, against writers through a loop device.
pub(crate) fn lock_to_look(file: &File) -> io::Result<()> {
    match lock_bytes(file, false, &(LOOKS..LOOKS + ALL_LOOKS)) {
        Err(error) if is_busy(&error) => Err(error),
        // As above.
        _ => Ok(()),
    }
}

/// Whether another open file has a lock of some of these bytes.
fn is_locked_by_another(file: &File, bytes: &Range<u64>) -> bool {
    let mut found = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: bytes.start as libc::off_t,
        l_len: (bytes.end - bytes.start) as libc::off_t,
        // Zero, as a lock of an open file description must have it.
        l_pid: 0,
    };
    // SAFETY: the descriptor is open, and `found` is read and written by the call only.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut found) };
    asked == 0 && found.l_type != libc::F_UNLCK as libc::c_short
}

#[cfg(test)]
mod tests;
