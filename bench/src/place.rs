//! Where the measurements happen: a directory, and tmpfs mounts of our own where that is permitted.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};

use crate::{leftovers, say};

/// A directory of our own that is removed at the end.
#[derive(Debug)]
pub struct Workplace {
    path: PathBuf,
    keep: bool,
    /// Says to other runs that it is in use.
    _lock: fs::File,
}

impl Workplace {
    pub(crate) fn new(keep: bool) -> io::Result<Workplace> {
        Self::new_in(&std::env::temp_dir(), keep)
    }

    /// In another directory than that for temporary files, where a process can have one only.
    pub(crate) fn new_in(dir: &Path, keep: bool) -> io::Result<Workplace> {
        let path = dir.join(format!("{}{}", leftovers::PREFIX, std::process::id()));
        fs::create_dir(&path)?;
        let lock = leftovers::lock(&path)?;
        Ok(Workplace { path, keep, _lock: lock })
    }

    /// An empty directory, to mount on; with a number behind the name when it is taken.
    pub(crate) fn directory(&self, name: &str) -> io::Result<PathBuf> {
        let mut path = self.path.join(name);
        for number in 2.. {
            match fs::create_dir(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    path = self.path.join(format!("{name}-{number}"));
                }
                other => return other.map(|()| path),
            }
        }
        unreachable!("numbers do not end")
    }

    /// A tmpfs. Without the right to mount, a plain one is a directory in /dev/shm; huge pages cannot be had then.
    pub(crate) fn tmpfs(&self, name: &str, huge: bool) -> io::Result<Tmpfs> {
        let path = self.directory(name)?;
        let size = crate::machine::memory("MemTotal").unwrap_or(1 << 30);
        let options =
            format!("size={size},nr_inodes=0,mode=700,huge={}", if huge { "always" } else { "never" });
        let options = std::ffi::CString::new(options).expect("no NUL");
        match rustix::mount::mount("nacre-bench", &path, "tmpfs", MountFlags::empty(), options.as_c_str()) {
            Ok(()) => Ok(Tmpfs { path, mounted: true, keep: self.keep }),
            Err(error) => {
                fs::remove_dir(&path)?;
                let path = PathBuf::from(format!("/dev/shm/nacre-bench-{}-{name}", std::process::id()));
                if huge || fs::create_dir(&path).is_err() {
                    return Err(error.into());
                }
                Ok(Tmpfs { path, mounted: false, keep: self.keep })
            }
        }
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        if self.keep && leftovers::keep(&self.path).is_ok() {
            say::note(format_args!("kept: {}", self.path.display()));
        } else {
            // Only empty directories are removed: a mount that could not be undone keeps its directory. A directory to
            // mount on is left where its target was interrupted before the mount.
            let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
            entries.for_each(|entry| drop(fs::remove_dir(entry.path())));
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// A directory for a worker's files outside its target. It goes away with this value; if the worker was killed, the
/// process that started it removes it ([`Scratch::remove`]).
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    pub(crate) fn new() -> io::Result<Scratch> {
        let path = Self::of(std::process::id());
        fs::create_dir(&path)?;
        Ok(Scratch { path })
    }

    fn of(process: u32) -> PathBuf {
        std::env::temp_dir().join(format!("{}{process}", leftovers::PREFIX))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes that of a worker that has ended.
    pub(crate) fn remove(process: u32) {
        let _ = fs::remove_dir_all(Self::of(process));
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A tmpfs that goes away with this value.
#[derive(Debug)]
pub(crate) struct Tmpfs {
    path: PathBuf,
    mounted: bool,
    keep: bool,
}

impl Tmpfs {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        let removed = if self.mounted {
            rustix::mount::unmount(&self.path, UnmountFlags::DETACH)
                .map_err(io::Error::from)
                .and_then(|()| fs::remove_dir(&self.path))
        } else {
            fs::remove_dir_all(&self.path)
        };
        if let Err(error) = removed {
            say::failed(self.path.display(), format_args!("cannot be removed: {error}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::Workplace;

    #[test]
    fn a_workplace_goes_with_directories_that_nothing_was_mounted_on() {
        let root = tempfile::tempdir().unwrap();
        let place = Workplace::new_in(root.path(), false).unwrap();
        place.directory("target").unwrap();
        drop(place);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);

        let place = Workplace::new_in(root.path(), false).unwrap();
        let used = place.directory("target").unwrap();
        fs::write(used.join("file"), "x").unwrap();
        drop(place);
        assert!(used.join("file").exists(), "what is not empty stays");
    }
}
