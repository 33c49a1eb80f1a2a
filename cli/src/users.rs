//! The processes that use a mount, or have it in a mount namespace of their own. All is read from /proc alone, without
//! a query to the mount.

use std::collections::HashSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nacre_fuse::mounts::{self, FSTYPE, MountEntry};

/// The most users that are named; the others are counted.
const MAX_NAMED: usize = 5;

/// The users that keep a mount from being unmounted, in words; empty if none is visible.
pub(crate) fn of(mount: &MountEntry) -> String {
    let below = mounts::list().unwrap_or_default().into_iter().filter(|other| other.parent == mount.id);
    let mut users: Vec<String> =
        below.map(|other| format!("another mount is on {}", other.mountpoint.display())).collect();
    users.extend(loop_devices(mount));
    for pid in processes() {
        users.extend(use_by(mount, pid));
    }
    listed(users)
}

/// The use of a mount by a process, in words.
fn use_by(mount: &MountEntry, pid: libc::pid_t) -> Option<String> {
    let link = |name: &str| fs::read_link(format!("/proc/{pid}/{name}")).ok();
    let on_it = |path: &PathBuf| path.starts_with(&mount.mountpoint);
    let what = if let Some(path) = open_file(mount, pid, |_| true) {
        format!("has {} open", path.display())
    } else if link("cwd").filter(on_it).is_some() {
        "has its working directory there".to_owned()
    } else if link("root").filter(on_it).is_some() {
        "has its root directory there".to_owned()
    } else if let Some(path) = mapped_file(mount, pid) {
        format!("has {path} mapped")
    } else {
        return None;
    };
    Some(format!("process {pid} ({}) {what}", name_of(pid)))
}

/// The processes with files of a mount open for writing, in words; empty if none is visible.
pub(crate) fn writers(mount: &MountEntry) -> String {
    let writer = |pid| {
        let path = open_file(mount, pid, is_for_writing)?;
        Some(format!("process {pid} ({}) has {} open for writing", name_of(pid), path.display()))
    };
    listed(processes().into_iter().filter_map(writer).collect())
}

/// The first users, and the number of the others.
fn listed(mut users: Vec<String>) -> String {
    let more = users.len().saturating_sub(MAX_NAMED);
    users.truncate(MAX_NAMED);
    if more > 0 {
        users.push(format!("and {more} more"));
    }
    users.join(", ")
}

fn name_of(pid: libc::pid_t) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// A file of the mount that a process has open, and whose fdinfo passes the test `says`.
fn open_file(mount: &MountEntry, pid: libc::pid_t, says: impl Fn(&str) -> bool) -> Option<PathBuf> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    descriptors.flatten().find_map(|descriptor| {
        let number = descriptor.file_name();
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", number.display())).ok()?;
        let is_there = mount_of_descriptor(&info) == Some(mount.id) && says(&info);
        is_there.then(|| fs::read_link(descriptor.path()).ok()).flatten()
    })
}

fn mount_of_descriptor(info: &str) -> Option<u64> {
    info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

fn is_for_writing(info: &str) -> bool {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY && flags & libc::O_PATH == 0)
}

fn mapped_file(mount: &MountEntry, pid: libc::pid_t) -> Option<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    mapped_from(&maps, mount.device).map(str::to_owned)
}

/// The first file of a device among the mappings of a process.
fn mapped_from(maps: &str, device: (u32, u32)) -> Option<&str> {
    let device = format!("{:02x}:{:02x}", device.0, device.1);
    maps.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        (fields.nth(3) == Some(&device)).then(|| line.find('/').map_or("a file", |start| &line[start..]))
    })
}

/// Loop devices on files of the mount. They keep a file open that no process has.
fn loop_devices(mount: &MountEntry) -> Vec<String> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let user = |device: fs::DirEntry| {
        let file = fs::read(device.path().join("loop/backing_file")).ok()?;
        let file = Path::new(std::ffi::OsStr::from_bytes(file.trim_ascii_end()));
        let is_there = file.starts_with(&mount.mountpoint);
        is_there.then(|| format!("/dev/{} is of {}", device.file_name().display(), file.display()))
    };
    devices.filter_map(user).collect()
}

/// Process numbers, separated by commas.
pub(crate) fn join(pids: &[libc::pid_t]) -> String {
    pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// All other processes.
fn processes() -> Vec<libc::pid_t> {
    let own = std::process::id() as libc::pid_t;
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut pids: Vec<libc::pid_t> = numbers.filter(|pid| *pid != own).collect();
    pids.sort_unstable();
    pids
}

/// The mount namespace of a process; `None` if it is not visible.
fn namespace(pid: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/mnt")).ok()
}

/// True if a process is in the mount namespace of this one.
pub(crate) fn is_here(pid: libc::pid_t) -> bool {
    namespace("self").is_some_and(|here| namespace(&pid.to_string()) == Some(here))
}

/// The nacre mounts that a process sees.
pub(crate) fn mounts_of(pid: libc::pid_t) -> Vec<MountEntry> {
    let table = fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    mounts::in_table(&table).into_iter().filter(|mount| mount.fstype == FSTYPE).collect()
}

/// The other mount namespaces that have the same mount, each with one of its processes, in words; empty if none is
/// visible.
pub(crate) fn elsewhere(mount: &MountEntry) -> String {
    let mut seen: HashSet<PathBuf> = namespace("self").into_iter().collect();
    let mut pids = Vec::new();
    for pid in processes() {
        let Some(place) = namespace(&pid.to_string()) else { continue };
        if seen.insert(place) && mounts_of(pid).iter().any(|other| other.device == mount.device) {
            pids.push(pid);
        }
    }
    match pids[..] {
        [] => String::new(),
        [pid] => format!("another mount namespace, that of process {pid}, still has it"),
        _ => format!("other mount namespaces, those of the processes {}, still have it", join(&pids)),
    }
}

#[cfg(test)]
mod tests {
    use super::{is_for_writing, mapped_from, mount_of_descriptor};

    #[test]
    fn what_the_kernel_says_of_files() {
        let info = "pos:\t0\nflags:\t0100000\nmnt_id:\t77\nino:\t5\n";
        assert_eq!(mount_of_descriptor(info), Some(77));
        assert_eq!(mount_of_descriptor("pos:\t0\n"), None);
        assert!(
            !is_for_writing(info) && is_for_writing("flags:\t0100002\n") && is_for_writing("flags:\t01\n")
        );
        let maps = "7f00-7f01 r--p 00000000 08:01 9      /usr/lib/libc.so.6\n\
                    7f02-7f03 rw-s 00000000 00:3d 5      /mnt/a file\n\
                    7f04-7f05 rw-p 00000000 00:00 0 \n";
        assert_eq!(mapped_from(maps, (0, 0x3d)), Some("/mnt/a file"));
        assert_eq!(mapped_from(maps, (0, 0x3e)), None);
    }
}
