//! The process that serves a mount: finds it, reports its state, and waits for its end.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nacre::{FileSystem, Kind, OpenOptions};
use nacre_control::{Info, Question};
use nacre_fuse::mounts::MountEntry;
use rustix::fs::FlockOperation;

use crate::asking::NOTICE;
use crate::daemon::OtherProcess;
use crate::{mounted, users};

/// The server of a device.
pub(crate) enum Server {
    /// A visible process.
    One(libc::pid_t, OtherProcess),
    /// Several processes that only read, so that none has anything to write.
    Readers(Vec<libc::pid_t>),
    /// A process in another container, or on a file system with other device or inode numbers in the table of locks.
    Unknown,
}

impl Server {
    /// The process that has the device, by the kernel's table of locks.
    pub(crate) fn of(device: &Path) -> Server {
        match owners(device)[..] {
            [] => Server::Unknown,
            [owner] => {
                OtherProcess::open(owner).map_or(Server::Unknown, |process| Server::One(owner, process))
            }
            ref owners => Server::Readers(owners.to_vec()),
        }
    }

    /// The server in words, as the subject of a sentence.
    pub(crate) fn name(&self) -> String {
        match self {
            Server::One(pid, _) => format!("its server (process {pid})"),
            Server::Readers(pids) => format!("its server (one of the processes {})", users::join(pids)),
            Server::Unknown => "its server".to_owned(),
        }
    }

    /// True if the server is stopped, so that it does nothing until it is continued.
    pub(crate) fn is_stopped(&self) -> bool {
        match self {
            Server::One(pid, _) => is_stopped(*pid),
            Server::Readers(pids) => pids.iter().any(|pid| is_stopped(*pid)),
            Server::Unknown => false,
        }
    }

    /// The reason that the server does not answer, in words.
    pub(crate) fn silence(&self) -> String {
        let what = if self.is_stopped() { "is stopped" } else { "does not answer" };
        format!("{} {what}", self.name())
    }

    /// The command that continues a stopped server; empty for others.
    pub(crate) fn wake(&self) -> String {
        match self {
            Server::One(pid, _) if is_stopped(*pid) => format!("kill -CONT {pid} lets it continue, "),
            _ => String::new(),
        }
    }

    /// Waits until the server is gone and the device is free; false if that takes longer than `limit`. `notice` is
    /// called once after a second. For a stopped server the wait then ends.
    pub(crate) fn has_ended(&self, device: &Path, limit: Duration, notice: impl FnOnce()) -> bool {
        let ended = |limit| match self {
            Server::One(_, process) => process.wait(limit),
            Server::Readers(_) => true,
            Server::Unknown => is_unlocked_in_time(device, limit),
        };
        if ended(NOTICE) {
            return true;
        }
        notice();
        !self.is_stopped() && ended(limit.saturating_sub(NOTICE))
    }
}

/// The processes that have the device of an operation, and its mountpoint, in words; empty if neither is visible.
pub(crate) fn who_has(operation: &str, device: &Path) -> String {
    let (bare, volume) = nacre::device_and_volume(device);
    // Others use one zone.
    let takes_all = volume.is_none() || matches!(operation, "volume create" | "volume remove");
    let name = |pid: &libc::pid_t| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        format!("process {pid} ({}) has it", name.trim_end())
    };
    let mut pids = owners(if takes_all { &bare } else { device });
    // This command had a lock, too, and may still have one.
    pids.retain(|&pid| pid.cast_unsigned() != std::process::id());
    let mut said: Vec<String> = pids.iter().map(name).collect();
    let same = mounted::of_device(device).ok().flatten();
    let is_it = |mount: &MountEntry| {
        let (_, mounted) = nacre::device_and_volume(Path::new(&mount.source));
        mounted.is_none() || mounted == volume
    };
    let place = || {
        let mount = same.filter(is_it).or_else(|| under_another_name(&bare))?;
        Some(format!("it is mounted on {}", mount.mountpoint.display()))
    };
    let volumes = if takes_all { mounted_volumes(&bare) } else { None };
    said.extend(
        volumes.or_else(place).or_else(|| other_volume_of(&pids, device)).or_else(|| unlisted(device)),
    );
    said.join(", ")
}

/// The mounts of all volumes of a device, in words; none if there are none.
fn mounted_volumes(bare: &Path) -> Option<String> {
    let name = |mount: MountEntry| {
        let (_, volume) = nacre::device_and_volume(Path::new(&mount.source));
        Some(format!("volume {} is mounted on {}", volume?, mount.mountpoint.display()))
    };
    let mounts: Vec<String> = mounted::all_of_device(bare).ok()?.into_iter().filter_map(name).collect();
    let all = "all volumes of the device must be unmounted for this";
    (!mounts.is_empty()).then(|| format!("{}; {all}", mounts.join(", ")))
}

/// The mount of a device that the table of mounts does not show under its name, and the way to unmount it, in words. It
/// was made in another mount namespace, or the file has another name since.
pub(crate) fn unlisted(device: &Path) -> Option<String> {
    owners(device).into_iter().find_map(|pid| {
        let mount = mount_by(pid)?;
        let (dir, source) = (mount.mountpoint.display(), Path::new(&mount.source).display());
        Some(if users::is_here(pid) {
            format!("it is mounted on {dir} under the name {source}; nacre umount {dir} unmounts it")
        } else {
            format!(
                "it is mounted on {dir} in another mount namespace, that of its server; nsenter -t {pid} -m nacre umount \
                 {dir} unmounts it, and kill -TERM {pid} does if no program uses it"
            )
        })
    })
}

/// The mount that a server has, by its own table of mounts: the one whose source it has locked. If the file of a source
/// has another name by now, the mount itself says which server it has.
fn mount_by(server: libc::pid_t) -> Option<MountEntry> {
    let root = PathBuf::from(format!("/proc/{server}/root"));
    let there = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
    let says_so = |mount: &MountEntry| {
        let dir = there(&mount.mountpoint);
        let answer = mounted::ask_silently::<Info>("ask", &dir, Question::Info.attribute());
        answer
            .ok()
            .flatten()
            .and_then(|info| info.mount)
            .is_some_and(|mount| libc::pid_t::try_from(mount.pid) == Ok(server))
    };
    users::mounts_of(server).into_iter().rfind(|mount| {
        let owners = owners(&there(Path::new(&mount.source)));
        owners.contains(&server) || owners.is_empty() && says_so(mount)
    })
}

/// The mount of another volume of the same zone by one of these processes, in words.
fn other_volume_of(pids: &[libc::pid_t], device: &Path) -> Option<String> {
    let (bare, _) = nacre::device_and_volume(device);
    let mounts = mounted::all_of_device(&bare).ok()?;
    // A device with one zone is locked as a whole.
    let zone = |path: &Path| nacre::zone_bytes(path).ok().flatten();
    let here = zone(device);
    let is_theirs = |mount: &&MountEntry| {
        let source = Path::new(&mount.source);
        zone(source) == here && owners(source).iter().any(|pid| pids.contains(pid))
    };
    let mount = mounts.iter().find(is_theirs)?;
    let (_, other) = nacre::device_and_volume(Path::new(&mount.source));
    let dir = mount.mountpoint.display();
    Some(format!(
        "volume {} of the same zone is mounted on {dir}; a zone is mounted by one process at a time",
        other?
    ))
}

/// The mount of the same bytes under another name: by a loop device over a file, or by the file below one.
pub(crate) fn under_another_name(bare: &Path) -> Option<MountEntry> {
    let here = nacre::made_of(bare);
    let is_it = |mount: &MountEntry| {
        let (source, _) = nacre::device_and_volume(Path::new(&mount.source));
        let there = nacre::made_of(&source);
        let are_alike = matches!((&here[..], &there[..]), ([_, below], [_, other]) if below == other);
        source != bare && (there.iter().any(|place| place == bare) || here.contains(&source) || are_alike)
    };
    mounted::all().ok()?.into_iter().find(is_it)
}

/// The processes that have a device open as a file system.
pub(crate) fn owners(device: &Path) -> Vec<libc::pid_t> {
    let owners = || {
        // An image on a mount that hangs must not hang the command, too.
        if !mounted::is_reachable(device) {
            return None;
        }
        let metadata = fs::metadata(nacre::device_and_volume(device).0).ok()?;
        let (major, minor) = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
        let locks = fs::read_to_string("/proc/locks").ok()?;
        let file = format!("{major:02x}:{minor:02x}:{}", metadata.ino());
        let mut owners = owners_in(&locks, &file);
        // Each mount of a device with several zones has locked its own.
        if let Ok(Some(zone)) = nacre::zone_bytes(device) {
            owners.retain(|&pid| has_lock(pid, &file, &zone));
        }
        Some(owners)
    };
    owners().unwrap_or_default()
}

/// Whether an open file of a process has a lock of these bytes.
fn has_lock(pid: libc::pid_t, file: &str, bytes: &Range<u64>) -> bool {
    let (first, last) = (bytes.start.to_string(), (bytes.end - 1).to_string());
    let is_it = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        matches!(fields[..], [.., "OFDLCK", _, _, _, locked, start, end]
            if locked == file && start == first && end == last)
    };
    let Ok(open) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else { return false };
    let infos = open.filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok());
    infos.into_iter().any(|info| info.lines().any(is_it))
}

fn owners_in(locks: &str, file: &str) -> Vec<libc::pid_t> {
    let owner = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        match fields[..] {
            [_, "FLOCK", _, _, pid, locked, ..] if locked == file => pid.parse().ok().filter(|pid| *pid > 0),
            _ => None,
        }
    };
    locks.lines().filter_map(owner).collect()
}

fn is_stopped(pid: libc::pid_t) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name of the program, in parentheses, may hold anything.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    matches!(state, Some('T' | 't'))
}

fn is_unlocked_in_time(device: &Path, limit: Duration) -> bool {
    if !mounted::is_reachable(device) {
        return false;
    }
    let (path, volume) = nacre::device_and_volume(device);
    let Ok(file) = File::open(path) else { return true };
    let is_unlocked = || match volume {
        None => rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok(),
        Some(_) => {
            let look = OpenOptions { read_only: true, ..OpenOptions::default() };
            !FileSystem::would_open(device, &look).is_err_and(|error| error.kind() == Kind::Busy)
        }
    };
    let start = Instant::now();
    loop {
        if is_unlocked() {
            return true;
        }
        if start.elapsed() >= limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::owners_in;

    #[test]
    fn the_owners_of_a_lock() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 08:01:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 12 00:2e:78 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 13 00:2e:77 0 EOF\n\
                     4: FLOCK  ADVISORY  READ 14 00:2e:77 0 EOF\n\
                     5: FLOCK  ADVISORY  WRITE 0 00:2e:79 0 EOF\n";
        assert_eq!(owners_in(locks, "00:2e:77"), [13, 14]);
        assert_eq!(owners_in(locks, "00:2e:78"), [12]);
        assert!(owners_in(locks, "08:01:77").is_empty());
        assert!(owners_in(locks, "00:2e:79").is_empty(), "a process that this one cannot see");
    }

    #[test]
    fn a_stopped_process_is_told_from_one_that_runs() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id() as i32;
        assert!(!super::is_stopped(pid));
        // SAFETY: the child is ours.
        unsafe {
            libc::kill(pid, libc::SIGSTOP);
            libc::waitpid(pid, std::ptr::null_mut(), libc::WUNTRACED);
        }
        assert!(super::is_stopped(pid));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
