//! `nacre umount`, and `umount.nacre` as umount(8) calls it: it returns when the server has ended and its device is
//! free.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::Args;
use nacre_fuse::mounts::{self, MountEntry};
use rustix::fs::FlockOperation;
use rustix::mount::UnmountFlags;

use crate::control::Order;
use crate::daemon::OtherProcess;
use crate::failure::Failure;
use crate::mounted;

/// How long a server may take to end: it writes down what makes the next mount fast.
const PATIENCE_S: u32 = 120;

/// What `nacre umount` is told.
#[derive(Debug, Args)]
pub(crate) struct UmountArgs {
    /// Take it out of the tree now and let the programs that use it go on; does not wait for its end
    #[arg(short, long)]
    lazy: bool,
    /// End it though programs use it, which get errors, and though what it accepted cannot be written
    #[arg(short, long, conflicts_with = "lazy")]
    force: bool,
    /// Say what would be done, and do nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// The directory, or the device that is mounted on it
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Unmounts a file system.
pub(crate) fn run(args: UmountArgs) -> Result<(), Failure> {
    let mount = find(&args.dir)?;
    if args.dry_run {
        println!(
            "{}: would be unmounted from {}",
            mount.source.to_string_lossy(),
            mount.mountpoint.display()
        );
        return Ok(());
    }
    let device = PathBuf::from(&mount.source);
    if !args.lazy && !args.force {
        write_down(&mount)?;
    }
    let server = server_of(&device);
    let flags = match (args.lazy, args.force) {
        (true, _) => UnmountFlags::DETACH,
        (_, true) => UnmountFlags::DETACH | UnmountFlags::FORCE,
        _ => UnmountFlags::empty(),
    };
    mounts::unmount(&mount.mountpoint, flags)?;
    if args.lazy || is_served(&mount)? {
        return Ok(());
    }
    let was_served = matches!(server, Server::One(_));
    if !is_free_now(server, &device) {
        return Err(Failure::new("umount", device.display(), "the server of this device has not ended yet")
            .advice("it may be writing; its log says more"));
    }
    let is_read_only = mount.flags.iter().any(|flag| flag == "ro");
    if was_served && !is_read_only && nacre::info(&device).is_ok_and(|info| !info.volume.clean) {
        return Err(Failure::new(
            "umount",
            device.display(),
            "it came off, but its server did not end in order",
        )
        .advice("its log says more; what was synchronised is there, and the next mount recovers"));
    }
    Ok(())
}

/// Has the server write what it accepted and keeps in DRAM. What cannot be written would be lost with it.
fn write_down(mount: &MountEntry) -> Result<(), Failure> {
    let (told, answer) = mpsc::channel();
    let dir = mount.mountpoint.clone();
    // A disk may hang, and whoever waits for it.
    std::thread::spawn(move || told.send(mounted::order("umount", &dir, Order::Sync)));
    let stays = |cause: &str| Failure::new("umount", mount.mountpoint.display(), cause);
    let answer = match answer.recv_timeout(Duration::from_secs(PATIENCE_S.into())) {
        Ok(Ok(answer)) => answer,
        // Who does not answer, because it is dead or another one covers its directory, keeps nobody from unmounting it.
        Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
        Err(RecvTimeoutError::Timeout) => {
            return Err(stays("what waits in DRAM is still being written")
                .advice("it stays mounted; try again, or --lazy has it written behind your back"));
        }
    };
    match answer["unwritten"].as_str() {
        None => Ok(()),
        Some(why) => Err(stays(&format!("what waits in DRAM cannot be written: {why}")).advice(
            "it stays mounted; make room or bring the device back, and try again, or --force gives it up",
        )),
    }
}

/// Whether the same mount is still somewhere else in the tree, as one that was bound: its server goes on.
fn is_served(mount: &MountEntry) -> Result<bool, Failure> {
    let others = mounts::list()?;
    Ok(others.iter().any(|other| other.fstype == mounts::FSTYPE && other.device == mount.device))
}

/// Unmounts as the helper of umount(8): `umount.nacre DIR [-flnrv] [-N NAMESPACE] [-t TYPE]`.
pub(crate) fn run_helper(args: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    run(parse_helper(args)?)
}

pub(crate) fn parse_helper(args: impl IntoIterator<Item = OsString>) -> Result<UmountArgs, Failure> {
    let (mut dir, mut lazy, mut force) = (None, false, false);
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("-N" | "-t") => {
                args.next();
            }
            Some(flags) if flags.len() > 1 && flags.starts_with('-') => {
                lazy |= flags.contains('l');
                force |= flags.contains('f');
            }
            _ => dir = Some(PathBuf::from(arg)),
        }
    }
    let dir = dir.ok_or_else(|| Failure::usage("umount.nacre: give a directory"))?;
    Ok(UmountArgs { lazy, force: force && !lazy, dry_run: false, dir })
}

/// Whether a program name is that of the helper for umount(8).
pub(crate) fn is_helper(name: &Path) -> bool {
    matches!(name.file_name().and_then(|name| name.to_str()), Some("umount.nacre" | "umount.fuse.nacre"))
}

/// The mount on a directory, or else of a device.
fn find(path: &Path) -> Result<MountEntry, Failure> {
    let on_it = mounts::at(path).ok().flatten();
    let mount = match on_it {
        Some(mount) => Some(mount),
        None => {
            let device = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
            mounts::list()?
                .into_iter()
                .rfind(|mount| mount.fstype == mounts::FSTYPE && mount.source == *device)
        }
    };
    let wrong = |cause| Err(Failure::new("umount", path.display(), cause));
    match mount {
        Some(mount) if mount.fstype == mounts::FSTYPE => Ok(mount),
        Some(mount) => wrong(format!("a mount of type {}, not of nacre", mount.fstype)),
        None => wrong("nothing is mounted there".to_owned()),
    }
}

/// Who serves a device.
enum Server {
    /// A process that can be seen.
    One(OtherProcess),
    /// Several, which only read, so that none has anything to write.
    Readers,
    /// In another container, or on a file system that counts its files in another way.
    Unknown,
}

/// The process that has the device, as the kernel's table of locks says.
fn server_of(device: &Path) -> Server {
    let owners = || {
        let metadata = std::fs::metadata(device).ok()?;
        let (major, minor) = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
        let locks = std::fs::read_to_string("/proc/locks").ok()?;
        Some(owners_in(&locks, &format!("{major:02x}:{minor:02x}:{}", metadata.ino())))
    };
    match owners().unwrap_or_default()[..] {
        [] => Server::Unknown,
        [owner] => OtherProcess::open(owner).map_or(Server::Unknown, Server::One),
        _ => Server::Readers,
    }
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

/// Waits until the server is gone and the device can be had; false when that takes too long.
fn is_free_now(server: Server, device: &Path) -> bool {
    match server {
        Server::One(server) => server.wait(PATIENCE_S),
        Server::Readers => true,
        Server::Unknown => is_unlocked_in_time(device),
    }
}

fn is_unlocked_in_time(device: &Path) -> bool {
    let Ok(file) = File::open(device) else { return true };
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(u64::from(PATIENCE_S)) {
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{is_helper, owners_in};

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
    fn names_of_the_helper() {
        assert!(is_helper(Path::new("/sbin/umount.nacre")) && is_helper(Path::new("umount.fuse.nacre")));
        assert!(!is_helper(Path::new("mount.nacre")));
    }
}
