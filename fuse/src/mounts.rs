//! The kernel's table of mounts, and mounts of dead servers.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use nacre_engine::{Error, Kind, Result};
use rustix::mount::UnmountFlags;

/// The type of a nacre mount in the kernel's table.
pub const FSTYPE: &str = "fuse.nacre";

/// The program that mounts and unmounts for unprivileged users.
pub(crate) const FUSERMOUNT: &str = "fusermount3";

/// The largest number of stacked dead nacre mounts on one directory; more are a mistake.
const DEAD_LAYERS: usize = 16;

/// One mount, from `/proc/self/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// The number of the mount, and of the mount that holds it.
    pub id: u64,
    /// See `id`.
    pub parent: u64,
    /// The device number that stat(2) shows for its files, as (major, minor).
    pub device: (u32, u32),
    /// The directory of the file system that is mounted there: `/`, or another one of a bind mount.
    pub root: PathBuf,
    /// The mountpoint.
    pub mountpoint: PathBuf,
    /// Its type, as `fuse.nacre`.
    pub fstype: String,
    /// The source: for a nacre mount, the path of the device.
    pub source: OsString,
    /// The flags of the mount, as `nosuid`, as the kernel shows them.
    pub flags: Vec<String>,
    /// The flags of the file system, which all its mounts share.
    pub super_flags: Vec<String>,
}

impl MountEntry {
    fn parse(line: &[u8]) -> Option<MountEntry> {
        let text = |bytes: &[u8]| OsString::from_vec(unescape(bytes));
        let mut fields = line.split(|byte| *byte == b' ');
        let number = |field: &[u8]| std::str::from_utf8(field).ok()?.parse().ok();
        let (id, parent) = (number(fields.next()?)?, number(fields.next()?)?);
        let device = std::str::from_utf8(fields.next()?).ok()?;
        let (major, minor) = device.split_once(':')?;
        let (root, mountpoint) = (text(fields.next()?).into(), text(fields.next()?).into());
        let words = |field: &[u8]| -> Option<Vec<String>> {
            Some(std::str::from_utf8(field).ok()?.split(',').map(str::to_owned).collect())
        };
        let flags = words(fields.next()?)?;
        // Optional fields stand before the dash.
        let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
        let fstype = String::from_utf8(unescape(rest.next()?)).ok()?;
        let source = text(rest.next()?);
        let super_flags = rest.next().and_then(words).unwrap_or_default();
        let device = (major.parse().ok()?, minor.parse().ok()?);
        Some(MountEntry { id, parent, device, root, mountpoint, fstype, source, flags, super_flags })
    }
}

/// Decodes the octal escapes with which the kernel writes blanks and backslashes.
pub fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        rest = match (first, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) => {
                bytes.push(((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0'));
                after
            }
            _ => {
                bytes.push(*first);
                tail
            }
        };
    }
    bytes
}

/// All mounts that this process sees, in the order in which they were mounted.
pub fn list() -> Result<Vec<MountEntry>> {
    const TABLE: &str = "/proc/self/mountinfo";
    let table = fs::read(TABLE).map_err(|error| Error::io("read the table of mounts", TABLE, error))?;
    Ok(in_table(&table))
}

/// The mounts in a table, which may be that of another process.
pub fn in_table(table: &[u8]) -> Vec<MountEntry> {
    table.split(|byte| *byte == b'\n').filter_map(MountEntry::parse).collect()
}

/// The uppermost mount on this directory, if any.
pub fn at(mountpoint: &Path) -> Result<Option<MountEntry>> {
    at_absolute(&absolute(mountpoint)?)
}

/// The same for an absolute path. It sends no request to the mount, which may not answer.
pub(crate) fn at_absolute(path: &Path) -> Result<Option<MountEntry>> {
    Ok(list()?.into_iter().rfind(|mount| mount.mountpoint == path))
}

/// The largest number of symbolic links in a row at the end of a mountpoint's path, as in the kernel.
const MAX_LINKS: usize = 40;

/// The absolute path of a mountpoint. It sends no request to a mount there, which may be dead or never answer.
pub fn absolute(mountpoint: &Path) -> Result<PathBuf> {
    let wrong = |error| Error::io("find the mountpoint", mountpoint.display().to_string(), error);
    let mounts = list()?;
    let is_mountpoint = |path: &Path| mounts.iter().any(|mount| mount.mountpoint == path);
    let mut path = std::path::absolute(mountpoint).map_err(wrong)?;
    for _ in 0..MAX_LINKS {
        if is_mountpoint(&path) {
            break;
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return path.canonicalize().map_err(wrong);
        };
        path = if is_mountpoint(parent) {
            parent.join(name)
        } else {
            parent.canonicalize().map_err(wrong)?.join(name)
        };
        if is_mountpoint(&path) {
            break;
        }
        // A path that is no symbolic link, or does not exist, is the final one.
        let Ok(target) = fs::read_link(&path) else { break };
        path = path.parent().unwrap_or(Path::new("/")).join(target);
    }
    Ok(path)
}

/// The nacre mounts through which a path leads, in their order, and the absolute path. It sends no request to any of
/// them: symbolic links are followed up to the first one, and behind it the path is taken by its words.
pub fn passed(path: &Path) -> Result<(Vec<MountEntry>, PathBuf)> {
    let wrong = |error| Error::io("find the path", path.display().to_string(), error);
    let mounts = list()?;
    let absolute = std::path::absolute(path).map_err(wrong)?;
    let mut passed = Vec::new();
    let mut at = PathBuf::from("/");
    let mut rest: VecDeque<OsString> = names(&absolute).collect();
    let mut links = 0;
    loop {
        let mount = mounts.iter().rfind(|mount| mount.mountpoint == at);
        passed.extend(mount.filter(|mount| mount.fstype == FSTYPE).cloned());
        let Some(name) = rest.pop_front() else { return Ok((passed, at)) };
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&name);
        let is_mountpoint = mounts.iter().any(|mount| mount.mountpoint == next);
        let is_looked_at = passed.is_empty() && !is_mountpoint && links < MAX_LINKS;
        match is_looked_at.then(|| fs::read_link(&next).ok()).flatten() {
            Some(target) => {
                links += 1;
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                for name in names(&target).collect::<Vec<_>>().into_iter().rev() {
                    rest.push_front(name);
                }
            }
            None => at = next,
        }
    }
}

/// The names in a path, from the first directory on.
fn names(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    let named = |part| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().filter(move |part| named(*part)).map(|part| part.as_os_str().to_owned())
}

/// Whether the server of the mount on this directory has died.
pub fn is_dead(mountpoint: &Path) -> bool {
    rustix::fs::statfs(mountpoint).is_err_and(|error| error == rustix::io::Errno::NOTCONN)
}

/// Detaches a dead nacre mount from this directory: one that answers every request with `ENOTCONN`. Live mounts and
/// those of other file systems stay. True if there was one.
///
/// The test is statfs(2), which the kernel never answers itself; attributes of a dead mount may still be cached.
pub fn clear_dead(mountpoint: &Path) -> Result<bool> {
    for layer in 0..DEAD_LAYERS {
        let ours = is_dead(mountpoint) && at(mountpoint)?.is_some_and(|mount| mount.fstype == FSTYPE);
        if !ours {
            return Ok(layer > 0);
        }
        unmount(&absolute(mountpoint)?, UnmountFlags::DETACH)?;
    }
    Err(Error::new(Kind::Busy).operation("clear a dead mount").object(mountpoint.display().to_string()))
}

/// Unmounts a directory, through fusermount3 if this process may not.
pub fn unmount(mountpoint: &Path, flags: UnmountFlags) -> Result<()> {
    match rustix::mount::unmount(mountpoint, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::PERM) => unmount_as_user(mountpoint, flags.contains(UnmountFlags::DETACH)),
        Err(error) => Err(refused(mountpoint, error.into())),
    }
}

fn refused(mountpoint: &Path, error: io::Error) -> Error {
    let object = mountpoint.display().to_string();
    match error.raw_os_error() {
        Some(libc::EBUSY) => Error::new(Kind::Busy)
            .operation("unmount")
            .object(object)
            .advice("programs use files on it; fuser -vm DIR shows which"),
        Some(libc::EINVAL) => Error::new(Kind::InvalidInput)
            .operation("unmount")
            .object(object)
            .advice("nothing is mounted there"),
        _ => Error::io("unmount", object, error),
    }
}

fn unmount_as_user(mountpoint: &Path, lazily: bool) -> Result<()> {
    let object = || mountpoint.display().to_string();
    let mut command = Command::new(FUSERMOUNT);
    command.arg("-u").args(lazily.then_some("-z")).arg("--").arg(mountpoint);
    let output = command.output().map_err(|error| {
        Error::io("run fusermount3", object(), error).advice("install the package fuse3, or unmount as root")
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
    let error = if said.contains("busy") {
        Error::new(Kind::Busy)
    } else {
        Error::new(Kind::NotPermitted).advice("only root and the user that mounted it may unmount it")
    };
    Err(error.operation("unmount").object(object()).source(said))
}

/// Escapes a path for the options of fusermount3, which are separated by commas.
pub(crate) fn escape_option(value: &str) -> String {
    let mut escaped = Vec::with_capacity(value.len());
    for byte in value.bytes() {
        if matches!(byte, b',' | b'\\') {
            escaped.push(b'\\');
        }
        escaped.push(byte);
    }
    String::from_utf8_lossy(&escaped).into_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::path::{Path, PathBuf};

    use super::{MountEntry, absolute, at, escape_option, list, passed, unescape};

    #[test]
    fn a_line_of_the_table() {
        let line = br"77 29 0:61 / /mnt/with\040blank rw,relatime shared:1 master:2 - fuse.nacre /dev/pm\134em rw,user_id=0";
        let mount = MountEntry::parse(line).unwrap();
        assert_eq!((mount.id, mount.parent, mount.device), (77, 29, (0, 61)));
        assert_eq!((mount.root, mount.mountpoint), (PathBuf::from("/"), PathBuf::from("/mnt/with blank")));
        assert_eq!(mount.fstype, "fuse.nacre");
        assert_eq!(mount.source.as_bytes(), br"/dev/pm\em");
        assert_eq!(mount.flags, ["rw", "relatime"]);
        assert_eq!(mount.super_flags, ["rw", "user_id=0"]);
        assert_eq!(MountEntry::parse(b""), None);
        assert_eq!(MountEntry::parse(b"1 2 x:y / /"), None);
    }

    #[test]
    fn escapes() {
        assert_eq!(unescape(br"a\040b\011c\12"), b"a b\tc\\12");
        assert_eq!(escape_option(r"/a,b\c"), r"/a\,b\\c");
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(list().unwrap().iter().any(|mount| mount.mountpoint == Path::new("/")));
        assert!(at(Path::new("/")).unwrap().is_some());
        assert_eq!(absolute(Path::new("/proc/../proc")).unwrap(), Path::new("/proc"));
        assert_eq!(absolute(Path::new("/not-there")).unwrap(), Path::new("/not-there"));
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        std::os::unix::fs::symlink("/proc/./self/../", top.join("first")).unwrap();
        std::os::unix::fs::symlink("first", top.join("second")).unwrap();
        assert_eq!(absolute(&top.join("second")).unwrap(), Path::new("/proc"));
        std::os::unix::fs::symlink("loop", top.join("loop")).unwrap();
        assert_eq!(absolute(&top.join("loop")).unwrap(), top.join("loop"), "it ends");
        let way = |path: &Path| {
            let (mounts, way) = passed(path).unwrap();
            assert!(mounts.is_empty(), "there is no nacre mount");
            way
        };
        assert_eq!(way(&top.join("second/not-there/..")), Path::new("/proc"));
        assert_eq!(way(&top.join("./first/cpuinfo")), Path::new("/proc/cpuinfo"));
        assert_eq!(way(Path::new("/..")), Path::new("/"));
        assert!(way(&top.join("loop/below")).ends_with("loop/below"), "it ends");
    }
}
