//! A target around another that sees how much of the written data is synced: for `share.synced`.
//!
//! It takes some time for each open and each write, so it stands between only where that share is measured. A byte
//! counts as synced when its file is synced after it was written, once for each time it was written.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nacre_control::Info;
use serde::{Deserialize, Serialize};

use super::{Below, File, Open, Target, Traffic};

/// Bytes written, and bytes of them that a sync made durable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Synced {
    /// All of them.
    pub written: u64,
    /// Those that were synced, or written with O_SYNC.
    pub synced: u64,
}

/// Sums over all files.
#[derive(Debug, Default)]
pub struct Sums {
    written: AtomicU64,
    synced: AtomicU64,
}

impl Sums {
    /// So far.
    pub fn get(&self) -> Synced {
        Synced { written: self.written.load(Ordering::Relaxed), synced: self.synced.load(Ordering::Relaxed) }
    }
}

/// Bytes of one file that wait for a sync.
type Waiting = Arc<AtomicU64>;

/// The target.
pub struct Watched {
    target: Box<dyn Target>,
    sums: Arc<Sums>,
    files: Mutex<HashMap<PathBuf, Waiting>>,
}

impl Watched {
    /// Around a target.
    pub fn new(target: Box<dyn Target>) -> Watched {
        Watched { target, sums: Arc::default(), files: Mutex::default() }
    }

    /// Its sums so far.
    pub fn sums(&self) -> Arc<Sums> {
        Arc::clone(&self.sums)
    }

    fn files(&self) -> std::sync::MutexGuard<'_, HashMap<PathBuf, Waiting>> {
        // No entry is ever half changed.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Target for Watched {
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn File>> {
        let file = self.target.open(path, how)?;
        let waiting = Arc::clone(self.files().entry(path.to_owned()).or_default());
        if how.truncate {
            waiting.store(0, Ordering::Relaxed);
        }
        Ok(Box::new(WatchedFile { file, sums: Arc::clone(&self.sums), waiting, durable: how.sync }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.target.create_dir(path)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.target.remove_file(path)?;
        self.files().remove(path);
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.target.remove_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.target.rename(from, to)?;
        let mut files = self.files();
        if let Some(waiting) = files.remove(from) {
            files.insert(to.to_owned(), waiting);
        }
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.target.link(from, to)?;
        let mut files = self.files();
        let waiting = Arc::clone(files.entry(from.to_owned()).or_default());
        files.insert(to.to_owned(), waiting);
        Ok(())
    }

    fn symlink(&self, text: &Path, path: &Path) -> io::Result<()> {
        self.target.symlink(text, path)
    }

    fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.target.set_mode(path, mode)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.target.sync_dir(path)
    }

    fn stat(&self, path: &Path) -> io::Result<u64> {
        self.target.stat(path)
    }

    fn read_dir(&self, path: &Path, each: &mut dyn FnMut(&OsStr)) -> io::Result<()> {
        self.target.read_dir(path, each)
    }

    fn sync(&self) -> io::Result<()> {
        self.target.sync()?;
        for waiting in self.files().values() {
            self.sums.synced.fetch_add(waiting.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
        Ok(())
    }

    fn below(&self) -> io::Result<Option<Below>> {
        self.target.below()
    }

    fn move_file(&self, path: &Path, to: Option<u8>) -> io::Result<u64> {
        self.target.move_file(path, to)
    }

    fn attribute(&self, path: &Path, name: &[u8]) -> io::Result<Vec<u8>> {
        self.target.attribute(path, name)
    }

    fn set_attribute(&self, path: &Path, name: &[u8], value: &[u8]) -> io::Result<()> {
        self.target.set_attribute(path, name, value)
    }

    fn traffic(&self) -> Option<Traffic> {
        self.target.traffic()
    }

    fn information(&self) -> Option<Info> {
        self.target.information()
    }

    fn mounted_in(&self) -> Option<Duration> {
        self.target.mounted_in()
    }

    fn drop_pages(&self, path: &Path) -> io::Result<()> {
        self.target.drop_pages(path)
    }

    fn directory(&self) -> Option<&Path> {
        self.target.directory()
    }

    fn close(self: Box<Self>) -> io::Result<()> {
        self.target.close()
    }
}

/// An open file.
struct WatchedFile {
    file: Box<dyn File>,
    sums: Arc<Sums>,
    waiting: Waiting,
    durable: bool,
}

impl WatchedFile {
    fn written(&self, bytes: usize) {
        self.sums.written.fetch_add(bytes as u64, Ordering::Relaxed);
        let sum = if self.durable { &self.sums.synced } else { &*self.waiting };
        sum.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl File for WatchedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(data, offset)?;
        self.written(data.len());
        Ok(())
    }

    fn append(&self, data: &[u8]) -> io::Result<()> {
        self.file.append(data)?;
        self.written(data.len());
        Ok(())
    }

    fn sync(&self, data_only: bool) -> io::Result<()> {
        self.file.sync(data_only)?;
        self.sums.synced.fetch_add(self.waiting.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        Ok(())
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        self.file.set_len(size)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.allocate(offset, len)
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Synced, Watched};
    use crate::target::directory::Directory;
    use crate::target::{Open, Target};

    #[test]
    fn bytes_are_synced_through_any_handle_and_any_name_or_never() {
        let dir = tempfile::tempdir().unwrap();
        let target = Watched::new(Box::new(Directory::open(dir.path()).unwrap()));
        let sums = target.sums();
        let seen = |written, synced| assert_eq!(sums.get(), Synced { written, synced });
        let (a, b, c) = (Path::new("a"), Path::new("b"), Path::new("c"));
        target.open(a, Open::CREATE).unwrap().write_at(&[1; 100], 0).unwrap();
        seen(100, 0);
        target.rename(a, b).unwrap();
        target.link(b, c).unwrap();
        target.open(c, Open::READ).unwrap().sync(false).unwrap();
        seen(100, 100);
        let other = target.open(a, Open::APPEND).unwrap();
        other.append(&[1; 10]).unwrap();
        target.remove_file(a).unwrap();
        target.sync().unwrap();
        seen(110, 100);
        let durable = target.open(b, Open { sync: true, ..Open::WRITE }).unwrap();
        durable.write_at(&[1; 5], 0).unwrap();
        seen(115, 105);
        let file = target.open(b, Open::WRITE).unwrap();
        file.write_at(&[1; 7], 0).unwrap();
        drop(target.open(b, Open::CREATE).unwrap());
        file.sync(true).unwrap();
        seen(122, 105);
    }
}
