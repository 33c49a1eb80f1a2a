//! For tests: a target around another that notes the calls to it.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nacre_control::Info;

use crate::target::directory::Directory;
use crate::target::{Below, File, Open, Target, Traffic};

/// A call. Each is of a path; those on an open file of the path that it was opened by.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Call {
    Open(Open),
    Close,
    /// Where, and how much there was to read.
    Read(u64, usize),
    /// Where, and how much.
    Write(u64, usize),
    Append(usize),
    Sync {
        data_only: bool,
    },
    SetLen(u64),
    Stat,
    Remove,
    Rename(PathBuf),
    ReadDir,
    SyncAll,
}

/// Paths and calls, in order.
pub(super) type Calls = Vec<(PathBuf, Call)>;

pub(super) struct Noted {
    target: Directory,
    calls: Arc<Mutex<Calls>>,
}

impl Noted {
    pub(super) fn new(dir: &Path) -> Noted {
        Noted { target: Directory::open(dir).unwrap(), calls: Arc::default() }
    }

    /// The calls since the last time.
    pub(super) fn take(&self) -> Calls {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    fn note(&self, path: &Path, call: Call) {
        self.calls.lock().unwrap().push((path.to_owned(), call));
    }
}

impl Target for Noted {
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn File>> {
        let file = self.target.open(path, how)?;
        self.note(path, Call::Open(how));
        Ok(Box::new(NotedFile { file, path: path.to_owned(), calls: Arc::clone(&self.calls) }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.target.create_dir(path)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.note(path, Call::Remove);
        self.target.remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.target.remove_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.note(from, Call::Rename(to.to_owned()));
        self.target.rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.target.link(from, to)
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
        self.note(path, Call::Stat);
        self.target.stat(path)
    }

    fn read_dir(&self, path: &Path, each: &mut dyn FnMut(&OsStr)) -> io::Result<()> {
        self.note(path, Call::ReadDir);
        self.target.read_dir(path, each)
    }

    fn sync(&self) -> io::Result<()> {
        self.note(Path::new(""), Call::SyncAll);
        self.target.sync()
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
        Box::new(self.target).close()
    }
}

struct NotedFile {
    file: Box<dyn File>,
    path: PathBuf,
    calls: Arc<Mutex<Calls>>,
}

impl NotedFile {
    fn note(&self, call: Call) {
        self.calls.lock().unwrap().push((self.path.clone(), call));
    }
}

impl Drop for NotedFile {
    fn drop(&mut self) {
        self.note(Call::Close);
    }
}

impl File for NotedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let count = self.file.read_at(buffer, offset)?;
        self.note(Call::Read(offset, count));
        Ok(count)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.note(Call::Write(offset, data.len()));
        self.file.write_at(data, offset)
    }

    fn append(&self, data: &[u8]) -> io::Result<()> {
        self.note(Call::Append(data.len()));
        self.file.append(data)
    }

    fn sync(&self, data_only: bool) -> io::Result<()> {
        self.note(Call::Sync { data_only });
        self.file.sync(data_only)
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        self.note(Call::SetLen(size));
        self.file.set_len(size)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.allocate(offset, len)
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
}
