//! Leftovers of a run that was killed: mounts, loop devices, mapped devices, files, cgroups and directories.
//!
//! A run locks its workplace, `nacre-bench-PROCESS` in the directory for temporary files, as long as it lives. All
//! that it makes has that name in its own. The same holds for a directory that it makes in one that the user named.
//! The next run removes everything of a directory that has no lock and belongs to a process that is gone. Directories
//! that were kept on purpose (`--keep`) are marked, and stay.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::mount::UnmountFlags;

use crate::run::memory::Groups;
use crate::say;

/// The first part of the names of everything that a run makes.
pub(crate) const PREFIX: &str = "nacre-bench-";
/// The file in a workplace that says that it stays.
const KEPT: &str = ".kept";
/// How long the children of a run that was killed are waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Locks a workplace: a value to hold as long as it is in use.
pub(crate) fn lock(path: &Path) -> io::Result<File> {
    let dir = File::open(path)?;
    flock(&dir, FlockOperation::NonBlockingLockExclusive)?;
    Ok(dir)
}

/// Marks a workplace that is to stay.
pub(crate) fn keep(path: &Path) -> io::Result<()> {
    fs::write(path.join(KEPT), "")
}

/// Removes leftovers of runs that are gone: workplaces in `temporary`, and images in `disk`.
pub(crate) fn sweep(temporary: &Path, disk: &Path) {
    for (process, path) in workplaces(temporary) {
        remove_left(process, &path, || take_away(process, &path, disk));
    }
}

/// Removes the directories that such runs have made in one that the user named.
pub(crate) fn sweep_directory(dir: &Path) {
    for (process, path) in made_in(dir, |rest| rest.split_once('-').map(|(process, _)| process)) {
        remove_left(process, &path, || ());
    }
}

/// Removes a directory of a process that is gone, after the things that it holds outside of it.
fn remove_left(process: u32, path: &Path, first: impl FnOnce()) {
    if path.join(KEPT).exists() || is_alive(process) {
        return;
    }
    let Ok(_lock) = lock_left(path) else { return };
    first();
    match fs::remove_dir_all(path) {
        Ok(()) => {
            say::note(format_args!("{}: a run that was killed had left it; it is removed", path.display()));
        }
        Err(error) => say::failed(path.display(), format_args!("left by a run that was killed: {error}")),
    }
}

/// Locks a workplace of a process that cannot be found here. A child that was just being made when the process was
/// killed holds the lock until it has become its program. Only a live run in another namespace of processes holds it
/// longer.
fn lock_left(path: &Path) -> io::Result<File> {
    let end = Instant::now() + PATIENCE;
    loop {
        match lock(path) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => {
                thread::sleep(PATIENCE / 20);
            }
            locked => return locked,
        }
    }
}

/// Workplaces of our own user, and the processes that made them.
fn workplaces(temporary: &Path) -> Vec<(u32, PathBuf)> {
    made_in(temporary, |process| Some(process))
}

/// Directories of our own user with names that begin as ours do, and the process that `process_of` finds in the rest.
fn made_in(dir: &Path, process_of: fn(&str) -> Option<&str>) -> Vec<(u32, PathBuf)> {
    let ours = rustix::process::geteuid().as_raw();
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let process = process_of(entry.file_name().to_str()?.strip_prefix(PREFIX)?)?.parse().ok()?;
        // Not through a link: that of another user may lead anywhere.
        let about = entry.metadata().ok()?;
        (about.is_dir() && about.uid() == ours).then(|| (process, entry.path()))
    });
    found.collect()
}

fn is_alive(process: u32) -> bool {
    Path::new("/proc").join(process.to_string()).exists()
}

fn take_away(process: u32, path: &Path, disk: &Path) {
    // Asked for first: the kernel forgets where a file is when its file system is detached.
    let loops = loop_devices();
    // The last one first, as they lie on one another; a process that still holds one lets go below.
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for dir in mounts_below(&mounts, path).iter().rev() {
        let _ = rustix::mount::unmount(dir, UnmountFlags::empty())
            .or_else(|_| rustix::mount::unmount(dir, UnmountFlags::DETACH));
    }
    let name = format!("{PREFIX}{process}-");
    for entry in fs::read_dir("/dev/mapper").into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&name) {
            quietly(Command::new("dmsetup").args(["remove", "--retry"]).arg(entry.file_name()));
        }
    }
    let mut images = Vec::new();
    for (device, file) in loops {
        let image = file.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&name));
        if image || file.starts_with(path) {
            quietly(Command::new("losetup").arg("--detach").arg(device));
        }
        if image {
            images.push(file);
        }
    }
    for dir in [disk, Path::new("/dev/shm")] {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        images.extend(entries.filter_map(|entry| {
            entry.file_name().to_string_lossy().starts_with(&name).then(|| entry.path())
        }));
    }
    for image in images {
        // In /dev/shm they are directories.
        let _ = fs::remove_file(&image).or_else(|_| fs::remove_dir_all(&image));
    }
    Groups::sweep(process);
}

fn quietly(command: &mut Command) {
    let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// Mount points below a directory, in the order in which they were mounted.
fn mounts_below(mounts: &str, path: &Path) -> Vec<PathBuf> {
    let dirs = mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
    dirs.filter(|dir| dir.starts_with(path) && dir != path).collect()
}

/// Loop devices, and the files that they are over, as far as the kernel still knows their paths.
fn loop_devices() -> Vec<(PathBuf, PathBuf)> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let file = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        Some((Path::new("/dev").join(entry.file_name()), file.trim_end().into()))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::thread;

    use super::{PATIENCE, PREFIX, keep, lock, mounts_below, sweep};

    /// A process number that nobody has: beyond the largest that Linux gives.
    const NOBODY: u32 = (1 << 22) + 1;

    #[test]
    fn what_the_dead_left_goes_and_what_is_held_or_kept_stays() {
        let root = std::env::temp_dir().join(format!("nacre-sweep-{}", std::process::id()));
        let place = |process: u32| root.join(format!("{PREFIX}{process}"));
        let (dead, locked, kept) = (place(NOBODY), place(NOBODY + 1), place(NOBODY + 2));
        let alive = place(std::process::id());
        for dir in [&dead, &locked, &kept, &alive] {
            std::fs::create_dir_all(dir.join("inside")).unwrap();
        }
        let image = root.join(format!("{PREFIX}{NOBODY}-peer-xfs-disk.img"));
        std::fs::write(&image, "x").unwrap();
        std::fs::create_dir(root.join("nacre-bench-figures")).unwrap();
        let _held = lock(&locked).unwrap();
        keep(&kept).unwrap();
        sweep(&root, &root);
        let left = [&dead, &image, &locked, &kept, &alive, &root.join("nacre-bench-figures")]
            .map(|path| path.exists());
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(left, [false, false, true, true, true, true]);
    }

    #[test]
    fn what_the_dead_left_goes_though_a_child_lets_go_of_it_late() {
        let root = tempfile::tempdir().unwrap();
        let dead = root.path().join(format!("{PREFIX}{NOBODY}"));
        std::fs::create_dir(&dead).unwrap();
        let held = lock(&dead).unwrap();
        let child = thread::spawn(move || {
            thread::sleep(PATIENCE / 5);
            drop(held);
        });
        sweep(root.path(), root.path());
        assert!(!dead.exists());
        child.join().unwrap();
    }

    #[test]
    fn in_a_directory_of_somebody_only_what_dead_runs_made_goes() {
        let dir = tempfile::tempdir().unwrap();
        let names = [
            format!("{PREFIX}{NOBODY}-dir--mnt"),
            format!("{PREFIX}{}-dir--mnt", std::process::id()),
            format!("{PREFIX}results-1"),
            format!("{PREFIX}{NOBODY}"),
            // Of a process that this namespace does not show.
            format!("{PREFIX}{}-dir--mnt", NOBODY + 1),
        ];
        names.iter().for_each(|name| std::fs::create_dir(dir.path().join(name)).unwrap());
        let _held = lock(&dir.path().join(&names[4])).unwrap();
        super::sweep_directory(dir.path());
        assert_eq!(names.map(|name| dir.path().join(name).exists()), [false, true, true, true, true]);
    }

    #[test]
    fn only_mounts_below_are_ours() {
        let mounts = "a /tmp/nacre-bench-7 tmpfs rw 0 0\nb /tmp/nacre-bench-7/x ext4 rw 0 0\n\
                      c /tmp/nacre-bench-77/x xfs rw 0 0\nd /tmp/nacre-bench-7/x/y tmpfs rw 0 0\n";
        let found = mounts_below(mounts, Path::new("/tmp/nacre-bench-7"));
        assert_eq!(found, [Path::new("/tmp/nacre-bench-7/x"), Path::new("/tmp/nacre-bench-7/x/y")]);
    }
}
