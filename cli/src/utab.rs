//! The entry that umount(8) reads to find nacre's helper, in the table of user space, `/run/mount/utab`.
//!
//! The kernel reports the type `fuse` for a directory, and nacre has no helper for that type. With an entry for the
//! directory, umount(8) reads the kernel's table of mounts instead and finds `fuse.nacre` there. It then calls
//! `umount.fuse.nacre` or, for a user, `umount.nacre`. mount(8) writes an entry only for options of user space, and
//! `nacre mount` is called without it, too. So the server writes one for each directory where its mount is, such as
//! those of bind mounts, and removes them. It looks every few seconds, because the kernel tells it of none.
//!
//! The table may be that of several mount namespaces. The entries are those of the namespace of the server: a command
//! in another one changes nothing.
//!
//! Format, lock and replacement are those of libmount. Each mount has one line, with octal escapes in values. The lock
//! is `flock` on `utab.lock`. A new file is renamed over the old one.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nacre_fuse::mounts::{self, FSTYPE, MountEntry, unescape};
use rustix::fs::FlockOperation;

/// The path of the table, unless the variable names another one, as for libmount.
const TABLE: &str = "/run/mount/utab";
const TABLE_VARIABLE: &str = "LIBMOUNT_UTAB";
/// The options of the entry: the suffix of the helper for users.
const OPTIONS: &str = "uhelper=nacre";

/// Writes the entry of a mount, in the place of older ones. A user cannot write it, and then only `nacre umount` waits
/// for the server. No mount fails for that.
pub(crate) fn note(device: &Path, dir: &Path) {
    // Only root may write there. A user's mount does not fail for that.
    let _ = change(&table(), |old| {
        renewed(&without(old, |entry| is_of(entry, device, dir) || is_stale(entry)), device)
    });
}

/// Writes the entries of a device anew: one for each directory where it is mounted now. To be called in the mount
/// namespace of its server. It is cheap if all entries are right.
pub(crate) fn renew(device: &Path) {
    let table = table();
    if fs::read(&table).is_ok_and(|now| renewed(&now, device) == now) {
        return;
    }
    // Only root may write there.
    let _ = change(&table, |old| renewed(old, device));
}

/// Keeps the entry of a directory that is unmounted in another mount namespace than that of the server. When its helper
/// has succeeded, umount(8) removes one entry of the directory itself, also where the server's namespace has the same
/// table. So it finds two.
pub(crate) fn keep(device: &Path, dir: &Path) {
    let _ = change(&table(), |old| {
        let mut its = old.split_inclusive(|byte| *byte == b'\n').filter(|line| is_of(line, device, dir));
        match (its.next(), its.next()) {
            (Some(one), None) => [old, one].concat(),
            _ => old.to_vec(),
        }
    });
}

/// The table with the right entries of a device: without those of directories where it is not mounted, and with one for
/// each where it is.
fn renewed(old: &[u8], device: &Path) -> Vec<u8> {
    let Ok(mut mounts) = mounts::list() else { return old.to_vec() };
    // The source of a mount is text.
    let source = device.to_string_lossy();
    mounts.retain(|mount| mount.fstype == FSTYPE && mount.source.to_string_lossy() == source);
    corrected(old, device, &mounts)
}

fn corrected(old: &[u8], device: &Path, mounts: &[MountEntry]) -> Vec<u8> {
    let is_there = |line: &[u8]| mounts.iter().any(|mount| is_of(line, device, &mount.mountpoint));
    let mut new = without(old, |line| is_by(line, device) && !is_there(line));
    for mount in mounts {
        let mut lines = new.split(|byte| *byte == b'\n');
        if !lines.any(|line| is_of(line, device, &mount.mountpoint)) {
            new.extend(entry(device, &mount.mountpoint, &mount.root));
        }
    }
    new
}

fn table() -> PathBuf {
    std::env::var_os(TABLE_VARIABLE).map_or_else(|| TABLE.into(), PathBuf::from)
}

fn beside(table: &Path, suffix: &str) -> PathBuf {
    let mut name = table.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Replaces the table under its lock. A missing table counts as empty.
fn change(table: &Path, new: impl FnOnce(&[u8]) -> Vec<u8>) -> io::Result<()> {
    if let Some(dir) = table.parent() {
        // As libmount does.
        DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
    }
    let lock = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o644)
        .open(beside(table, ".lock"))?;
    take(&lock)?;
    let old = match fs::read(table) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        old => old?,
    };
    let new = new(&old);
    if new == old {
        return Ok(());
    }
    let draft = beside(table, &format!(".nacre-{}", std::process::id()));
    let written = write(&draft, &new).and_then(|()| fs::rename(&draft, table));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written
}

/// Takes the lock, which others hold for moments. Gives up with an error after two seconds.
fn take(lock: &File) -> io::Result<()> {
    const TRIES: u32 = 100;
    for _ in 0..TRIES {
        match rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(20)),
            outcome => return outcome.map_err(io::Error::from),
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(bytes)
}

fn entry(device: &Path, dir: &Path, root: &Path) -> Vec<u8> {
    let mut line = Vec::new();
    for (name, path) in [("SRC=", device), (" TARGET=", dir), (" ROOT=", root)] {
        line.extend(name.bytes());
        line.extend(escape(path.as_os_str().as_bytes()));
    }
    line.extend(format!(" OPTS={OPTIONS}\n").bytes());
    line
}

/// Writes separators in values as octal escapes.
fn escape(bytes: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => escaped.extend(format!("\\{byte:03o}").bytes()),
            _ => escaped.push(*byte),
        }
    }
    escaped
}

fn without(table: &[u8], goes: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    table.split_inclusive(|byte| *byte == b'\n').filter(|line| !goes(line)).flatten().copied().collect()
}

/// The value of a field of an entry, without escapes.
fn field(entry: &[u8], name: &str) -> Option<Vec<u8>> {
    let mut fields = entry.split(|byte| byte.is_ascii_whitespace());
    fields.find_map(|field| field.strip_prefix(name.as_bytes())?.strip_prefix(b"=")).map(unescape)
}

fn is(entry: &[u8], name: &str, path: &Path) -> bool {
    field(entry, name).is_some_and(|value| value == path.as_os_str().as_bytes())
}

fn is_by(entry: &[u8], device: &Path) -> bool {
    is(entry, "SRC", device)
}

fn is_of(entry: &[u8], device: &Path, dir: &Path) -> bool {
    is_by(entry, device) && is(entry, "TARGET", dir)
}

/// True if a killed server left the entry: one of nacre's without a mount here and without a process that has its
/// device. A mount may be in another namespace, which shares the table.
fn is_stale(entry: &[u8]) -> bool {
    let path = |name| Some(PathBuf::from(std::ffi::OsStr::from_bytes(&field(entry, name)?)));
    let (Some(device), Some(dir)) = (path("SRC"), path("TARGET")) else { return false };
    let is_ours = field(entry, "OPTS").is_some_and(|options| options == OPTIONS.as_bytes());
    is_ours
        && !mounts::list().map_or(true, |mounts| {
            mounts.iter().any(|mount| mount.fstype == FSTYPE && mount.mountpoint == dir)
        })
        && crate::servers::owners(&device).is_empty()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use nacre_fuse::mounts;

    use super::{change, corrected, entry, is_of, is_stale, without};

    #[test]
    fn an_entry_is_found_again_by_what_it_names() {
        let (device, dir) = (Path::new("/dev/pm em\\0"), Path::new("/mnt/a\tb"));
        let line = entry(device, dir, Path::new("/"));
        let text = String::from_utf8(line.clone()).unwrap();
        assert_eq!(text, "SRC=/dev/pm\\040em\\1340 TARGET=/mnt/a\\011b ROOT=/ OPTS=uhelper=nacre\n");
        assert!(is_of(&line, device, dir) && !is_of(&line, device, Path::new("/mnt")));
        assert!(!is_of(&line, Path::new("/dev/pmem0"), dir));
        let other = b"SRC=//server/share TARGET=/mnt/a ROOT=/ OPTS=user=joe\n";
        let table = [&other[..], &line, other].concat();
        assert_eq!(without(&table, |entry| is_of(entry, device, dir)), [&other[..], other].concat());
    }

    /// Entries named the directory of the time of the mount: the server of a bind mount that was left, or of a directory
    /// that was renamed, was not waited for.
    #[test]
    fn entries_are_of_the_directories_where_the_mount_is_now() {
        let device = Path::new("/dev/pmem0");
        let mounts = mounts::in_table(
            b"77 29 0:61 / /mnt/a rw - fuse.nacre /dev/pmem0 rw\n\
              78 29 0:61 /sub /mnt/b\\040c rw - fuse.nacre /dev/pmem0 rw\n\
              79 29 0:61 / /mnt/a rw - fuse.nacre /dev/pmem0 rw\n",
        );
        let line = |dir: &str, root: &str| entry(device, Path::new(dir), Path::new(root));
        let other = entry(Path::new("/dev/pmem1"), Path::new("/mnt/old"), Path::new("/"));
        let right = [&other[..], &line("/mnt/a", "/"), &line("/mnt/b c", "/sub")].concat();
        let old = [&other[..], &line("/mnt/old", "/")].concat();
        assert_eq!(corrected(&old, device, &mounts), right);
        assert_eq!(corrected(&right, device, &mounts), right, "nothing is to be done");
        assert_eq!(corrected(&right, device, &[]), other);
        // One that umount(8) is about to remove.
        let twice = [&right[..], &line("/mnt/a", "/")].concat();
        assert_eq!(corrected(&twice, device, &mounts), twice);
    }

    #[test]
    fn an_entry_that_a_killed_server_left_is_stale() {
        let (device, dir) = (Path::new("/nowhere/pmem0"), Path::new("/nowhere/mnt"));
        assert!(is_stale(&entry(device, dir, Path::new("/"))));
        let of_another = b"SRC=/nowhere/pmem0 TARGET=/nowhere/mnt ROOT=/ OPTS=uhelper=udisks2\n";
        assert!(!is_stale(of_another) && !is_stale(b"\n"));
    }

    #[test]
    fn the_table_is_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let table = dir.path().join("run/mount/utab");
        change(&table, |old| [old, b"one\n"].concat()).unwrap();
        let first = fs::File::open(&table).unwrap();
        change(&table, |old| [old, b"two\n"].concat()).unwrap();
        assert_eq!(fs::read(&table).unwrap(), b"one\ntwo\n");
        assert_eq!(std::io::read_to_string(first).unwrap(), "one\n", "readers see the old or the new one");
        let names = fs::read_dir(table.parent().unwrap()).unwrap().count();
        assert_eq!(names, 2, "the table and its lock");
    }
}
