//! The users of a device, under any name: of the device or file that the name stands for, of all that it is made of,
//! and of all that is made of it.
//!
//! A lock is on one inode. A loop device over a file, a partition, a device of the device mapper, and another node of
//! a block device all lead to the same bytes past that lock. So a device that is to be overwritten is looked at
//! together with all below it, with its own partitions, and with the loop devices above any of these.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nacre_engine::{Error, Kind, Result};

use crate::backing::{self, Access, Backing, backing_file};
use crate::device::{lock, open_error, open_with};

/// Layers of devices on one another; more are a circle.
const MOST_LAYERS: usize = 64;
const NOT_OVERWRITTEN: &str = "end its user first: a device in use is never overwritten, even with -f";

/// The file or device that a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Identity {
    /// A file: the device of its file system, and its inode.
    File(u64, u64),
    /// A device, by its number.
    Block(u64),
    Character(u64),
}

impl Identity {
    fn of(path: &Path) -> Option<Identity> {
        let metadata = fs::metadata(path).ok()?;
        let kind = metadata.file_type();
        if kind.is_block_device() {
            Some(Identity::Block(metadata.rdev()))
        } else if kind.is_char_device() {
            Some(Identity::Character(metadata.rdev()))
        } else {
            Some(Identity::File(metadata.dev(), metadata.ino()))
        }
    }
}

/// A device or file under one of its names.
#[derive(Debug, Clone)]
struct Place {
    path: PathBuf,
    identity: Identity,
}

impl Place {
    fn at(path: PathBuf) -> Option<Place> {
        let identity = Identity::of(&path)?;
        Some(Place { path, identity })
    }
}

/// Fails if the device or file at a path is in use, under this or another name: [`Busy`](Kind::Busy). Nothing is
/// changed.
pub fn require_unused(path: &Path) -> Result<()> {
    let name = path.display().to_string();
    let target = Place::at(path.to_owned()).ok_or_else(|| {
        open_error(&name, fs::metadata(path).err().unwrap_or(io::ErrorKind::NotFound.into()))
    })?;
    let mounts = mounts();
    require_place_unused(&target, &name, true)?;
    // Other bytes of the file below a loop device may be another device's.
    let backings = backings_of(&target);
    let held = backing::hold_all(&backings, &name, Access { writes: true, is_part: false });
    drop(held.map_err(|error| {
        Error::new(Kind::Busy).operation("use").object(error.object_name()).advice(NOT_OVERWRITTEN)
    })?);
    let is_backing =
        |place: &Place| backings.iter().any(|backing| Identity::of(&backing.path) == Some(place.identity));
    let below = everything_below(&target);
    let is_other = |place: &&Place| place.identity != target.identity && !is_backing(place);
    for place in below.iter().filter(is_other) {
        // The kernel claims the devices below for the one that is made of them.
        require_place_unused(place, &name, false)?;
    }
    let above = everything_above(&below, &mounts);
    for place in &above {
        require_place_unused(place, &name, true)?;
    }
    // A node of its own has a lock of its own.
    let is_reached = |source: Place| is_of(&source, &below) || is_of(&source, &above);
    for mount in mounts.iter().filter(|mount| mount.is_ours()) {
        if Place::at(PathBuf::from(&mount.source)).is_some_and(is_reached) {
            return Err(Error::new(Kind::Busy)
                .operation("use")
                .object(format!("{name}, mounted on {}", mount.mountpoint.display()))
                .advice(NOT_OVERWRITTEN));
        }
    }
    Ok(())
}

fn backings_of(place: &Place) -> Vec<Backing> {
    match place.identity {
        Identity::Block(number) => backing::below(number),
        Identity::File(..) | Identity::Character(_) => Vec::new(),
    }
}

/// The devices and files that one is made of, itself included: files below loop devices, disks below partitions.
pub fn made_of(path: &Path) -> Vec<PathBuf> {
    let places = Place::at(path.to_owned()).map(|place| everything_below(&place)).unwrap_or_default();
    places.into_iter().map(|place| place.path).collect()
}

fn require_place_unused(place: &Place, target: &str, is_unclaimed: bool) -> Result<()> {
    let exclusive = matches!(place.identity, Identity::Block(_)) && is_unclaimed;
    let name = place.path.display().to_string();
    let unused = match open_with(&place.path, true, if exclusive { libc::O_EXCL } else { 0 }) {
        Ok(file) => lock(&file, false, &name),
        Err(error) => Err(open_error(&name, error)),
    };
    match unused {
        Err(error) if error.kind() == Kind::Busy && name != target => Err(Error::new(Kind::Busy)
            .operation("use")
            .object(format!("{target}: it leads to {}", error.object_name()))
            .advice(NOT_OVERWRITTEN)),
        // Below and above it is only looked at whether somebody uses it.
        Err(error) if error.kind() != Kind::Busy && name != target => Ok(()),
        other => other,
    }
}

fn everything_below(target: &Place) -> Vec<Place> {
    let mut found = vec![target.clone()];
    let mut at = 0;
    while at < found.len() && found.len() < MOST_LAYERS {
        let next: Vec<Place> = directly_below(&found[at]).into_iter().filter_map(Place::at).collect();
        for place in next {
            if found.iter().all(|known| known.identity != place.identity) {
                found.push(place);
            }
        }
        at += 1;
    }
    found
}

fn is_of(place: &Place, all: &[Place]) -> bool {
    all.iter().any(|one| one.identity == place.identity)
}

/// The partitions of the first of these, the loop devices over any of these, and all above them in turn. Partitions of
/// the others are left out, because their bytes are not those of the first.
fn everything_above(below: &[Place], mounts: &[MountLine]) -> Vec<Place> {
    let mut found: Vec<Place> = below.first().map(partitions_of).unwrap_or_default();
    for _ in 0..MOST_LAYERS {
        let reached: Vec<Place> = below.iter().chain(&found).cloned().collect();
        let over = loops_over(&reached, mounts).into_iter().filter(|over| !is_of(over, &reached));
        let next: Vec<Place> = over.flat_map(|over| [partitions_of(&over), vec![over]].concat()).collect();
        if next.is_empty() {
            break;
        }
        found.extend(next);
    }
    found
}

fn partitions_of(place: &Place) -> Vec<Place> {
    let Identity::Block(number) = place.identity else { return Vec::new() };
    let entries = fs::read_dir(sysfs_of_block(number)).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.path().join("partition").exists())
        .filter_map(|entry| Place::at(Path::new("/dev").join(entry.file_name())))
        .collect()
}

fn sysfs_of_block(number: u64) -> PathBuf {
    PathBuf::from(format!("/sys/dev/block/{}:{}", libc::major(number), libc::minor(number)))
}

fn directly_below(place: &Place) -> Vec<PathBuf> {
    let Identity::Block(number) = place.identity else { return Vec::new() };
    let sysfs = sysfs_of_block(number);
    let mut below: Vec<PathBuf> = backing_file(&sysfs).into_iter().collect();
    for slave in fs::read_dir(sysfs.join("slaves")).into_iter().flatten().flatten() {
        below.push(Path::new("/dev").join(slave.file_name()));
    }
    if sysfs.join("partition").exists()
        && let Some(disk) = fs::canonicalize(&sysfs).ok().as_deref().and_then(Path::parent)
        && let Some(name) = disk.file_name()
    {
        below.push(Path::new("/dev").join(name));
    }
    below
}

/// The loop devices over any of these.
fn loops_over(places: &[Place], mounts: &[MountLine]) -> Vec<Place> {
    let mut over: Vec<Place> = Vec::new();
    for device in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let Some(file) = backing_file(&device.path()) else { continue };
        // A server that answers late, or never, is asked nothing: it may be this process.
        let is_asked = mount_of(&file, mounts).is_none_or(|mount| !mount.fstype.starts_with("fuse"));
        let is_over = is_asked
            && Identity::of(&file).is_some_and(|below| places.iter().any(|place| place.identity == below));
        if is_over {
            over.extend(Place::at(Path::new("/dev").join(device.file_name())));
        }
    }
    over
}

/// A line of the kernel's table of mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountLine {
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// Its type, as `ext4`.
    pub fstype: String,
    /// The mounted device; of our mounts, the path of the PM.
    pub source: OsString,
}

impl MountLine {
    /// Whether it is a nacre file system.
    pub fn is_ours(&self) -> bool {
        self.fstype == "fuse.nacre"
    }

    fn parse(line: &[u8]) -> Option<MountLine> {
        let mut fields = line.split(|byte| *byte == b' ');
        let mountpoint = PathBuf::from(unescape(fields.nth(4)?));
        let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
        let fstype = String::from_utf8(rest.next()?.to_vec()).ok()?;
        Some(MountLine { mountpoint, fstype, source: unescape(rest.next()?) })
    }
}

/// The mounts that this process sees; none where the kernel does not tell.
pub fn mounts() -> Vec<MountLine> {
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    table.split(|byte| *byte == b'\n').filter_map(MountLine::parse).collect()
}

/// The mount that a path is on, by its name only.
fn mount_of<'m>(path: &Path, mounts: &'m [MountLine]) -> Option<&'m MountLine> {
    let depth = |mount: &&MountLine| mount.mountpoint.components().count();
    // Of several on one directory the last one counts.
    mounts.iter().filter(|mount| path.starts_with(&mount.mountpoint)).max_by_key(depth)
}

/// The kernel writes blanks as octal numbers.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut at = 0;
    while let Some(byte) = field.get(at) {
        let digits = field.get(at + 1..at + 4).filter(|_| *byte == b'\\');
        let code = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(*byte));
        at += if code.is_some() { 4 } else { 1 };
    }
    OsString::from_vec(bytes)
}

/// The user of a file or device, in words, as far as the kernel tells: the process that has locked it, or the directory
/// that it is mounted on.
pub(crate) fn user_of(path: &Path) -> Option<String> {
    let identity = Identity::of(path)?;
    let is_it = |mount: &&MountLine| {
        mount.source.as_bytes().starts_with(b"/") && Identity::of(Path::new(&mount.source)) == Some(identity)
    };
    if let Some(mount) = mounts().iter().find(is_it) {
        return Some(format!("mounted on {}", mount.mountpoint.display()));
    }
    let metadata = fs::metadata(path).ok()?;
    let (major, minor) = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
    let wanted = format!("{major:02x}:{minor:02x}:{}", metadata.ino());
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let pids = locks.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().skip_while(|field| *field != "FLOCK");
        let pid = fields.nth(3)?;
        (fields.next()? == wanted).then_some(pid)
    });
    let pids: Vec<&str> = pids.collect();
    // A process that shares the device with others meets its own lock, too.
    let own = std::process::id().to_string();
    let Some(pid) = pids.iter().find(|pid| **pid != own) else {
        return pids.first().map(|_| "used by this process already".to_owned());
    };
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(format!("used by process {pid} ({})", name.trim()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use nacre_engine::Kind;

    use super::{MountLine, made_of, mount_of, require_unused};
    use crate::block::{DiskOptions, RealDisk};

    #[test]
    fn a_line_of_the_table_of_mounts() {
        let line =
            br"77 29 0:61 / /mnt/with\040blank rw,relatime shared:1 - fuse.nacre /dev/pm\134em rw,user_id=0";
        let mount = MountLine::parse(line).unwrap();
        assert_eq!(mount.mountpoint, PathBuf::from("/mnt/with blank"));
        assert!(mount.is_ours() && mount.source == r"/dev/pm\em");
        assert!(MountLine::parse(b"1 2 3").is_none());
        let below = MountLine { mountpoint: "/mnt".into(), fstype: "ext4".into(), source: "x".into() };
        let mounts = [mount.clone(), below];
        assert_eq!(mount_of(Path::new("/mnt/with blank/file"), &mounts), Some(&mounts[0]));
        assert_eq!(mount_of(Path::new("/mnt/with"), &mounts), Some(&mounts[1]));
    }

    #[test]
    fn what_is_used_under_another_name_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link, symlink) =
            (dir.path().join("file"), dir.path().join("link"), dir.path().join("symlink"));
        let disk = RealDisk::create(&file, 1 << 20, &DiskOptions::default()).unwrap();
        fs::hard_link(&file, &link).unwrap();
        std::os::unix::fs::symlink(&file, &symlink).unwrap();
        for name in [&file, &link, &symlink] {
            let error = require_unused(name).unwrap_err();
            assert_eq!(error.kind(), Kind::Busy, "{error}");
            assert!(error.to_string().contains("used by this process already"), "{error}");
        }
        drop(disk);
        // A reader keeps it from being overwritten, too.
        let readers =
            RealDisk::open(&file, &DiskOptions { read_only: true, ..DiskOptions::default() }).unwrap();
        assert_eq!(require_unused(&link).unwrap_err().kind(), Kind::Busy);
        drop(readers);
        require_unused(&link).unwrap();
        assert_eq!(made_of(&file), std::slice::from_ref(&file));
        assert_eq!(require_unused(&dir.path().join("nothing")).unwrap_err().kind(), Kind::NotFound);
    }
}
