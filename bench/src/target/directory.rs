//! Any directory, through system calls.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nacre_control::{ANSWER_MAX, Info, Question};
use rustix::fs::{Advice, AtFlags, Dir, FileType, Mode, OFlags, XattrFlags};

use super::{Below, File, Known, Open, Target, Traffic, control};

/// The description of the file system of a directory, if it is a mount of nacre.
pub(super) fn information(dir: &Path) -> Option<Info> {
    let mut text = vec![0; ANSWER_MAX];
    let length = rustix::fs::getxattr(dir, Question::Info.attribute(), text.as_mut_slice()).ok()?;
    serde_json::from_slice(&text[..length]).ok()
}

/// An open directory.
pub struct Directory {
    path: PathBuf,
    root: OwnedFd,
}

impl Directory {
    /// Opens it.
    pub fn open(path: &Path) -> io::Result<Directory> {
        let root =
            rustix::fs::open(path, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Directory { path: path.to_owned(), root })
    }

    fn to_read(&self, path: &Path) -> io::Result<OwnedFd> {
        Ok(rustix::fs::openat(&self.root, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }
}

impl Target for Directory {
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn File>> {
        let mut flags = OFlags::CLOEXEC
            | match (how.read, how.write) {
                (true, true) => OFlags::RDWR,
                (_, false) => OFlags::RDONLY,
                (false, true) => OFlags::WRONLY,
            };
        flags.set(OFlags::APPEND, how.append);
        flags.set(OFlags::CREATE, how.create);
        flags.set(OFlags::TRUNC, how.truncate);
        flags.set(OFlags::SYNC, how.sync);
        flags.set(OFlags::DIRECT, how.direct);
        let file = rustix::fs::openat(&self.root, path, flags, Mode::from_raw_mode(0o644))?;
        Ok(Box::new(DirectoryFile(file)))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        Ok(rustix::fs::mkdirat(&self.root, path, Mode::from_raw_mode(0o755))?)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.root, path, AtFlags::empty())?)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.root, path, AtFlags::REMOVEDIR)?)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.root, from, &self.root, to)?)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        Ok(rustix::fs::linkat(&self.root, from, &self.root, to, AtFlags::empty())?)
    }

    fn symlink(&self, text: &Path, path: &Path) -> io::Result<()> {
        Ok(rustix::fs::symlinkat(text, &self.root, path)?)
    }

    fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        Ok(rustix::fs::chmodat(&self.root, path, Mode::from_raw_mode(mode), AtFlags::empty())?)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(rustix::fs::fsync(rustix::fs::openat(&self.root, path, flags, Mode::empty())?)?)
    }

    fn stat(&self, path: &Path) -> io::Result<u64> {
        Ok(rustix::fs::statat(&self.root, path, AtFlags::empty())?.st_size as u64)
    }

    fn read_dir(&self, path: &Path, each: &mut dyn FnMut(&OsStr)) -> io::Result<()> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&self.root, path, flags, Mode::empty())?;
        for entry in Dir::new(dir)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if !(entry.file_type() == FileType::Directory && (name == "." || name == "..")) {
                each(name);
            }
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.root)?)
    }

    fn below(&self) -> io::Result<Option<Below>> {
        control::below(&self.root)
    }

    fn move_file(&self, path: &Path, to: Option<u8>) -> io::Result<u64> {
        control::move_file(&self.to_read(path)?, to)
    }

    fn attribute(&self, path: &Path, name: &[u8]) -> io::Result<Vec<u8>> {
        control::attribute(&self.to_read(path)?, name)
    }

    fn set_attribute(&self, path: &Path, name: &[u8], value: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::fsetxattr(self.to_read(path)?, name, value, XattrFlags::empty())?)
    }

    fn traffic(&self) -> Option<Traffic> {
        None
    }

    fn information(&self) -> Option<Info> {
        information(&self.path)
    }

    fn mounted_in(&self) -> Option<Duration> {
        None
    }

    fn drop_pages(&self, path: &Path) -> io::Result<()> {
        let file = self.to_read(path)?;
        Ok(rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?)
    }

    fn directory(&self) -> Option<&Path> {
        Some(&self.path)
    }

    fn close(self: Box<Self>) -> io::Result<()> {
        Ok(())
    }
}

/// An open file.
#[derive(Debug)]
pub struct DirectoryFile(OwnedFd);

impl File for DirectoryFile {
    fn known(&self) -> Known<'_> {
        Known::Directory(self)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let wanted = buffer.len();
        let mut read = 0;
        while read < wanted {
            match rustix::io::pread(&self.0, &mut buffer[read..], offset + read as u64) {
                Ok(0) => break,
                Ok(count) => read += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(read)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let mut written = 0;
        while written < data.len() {
            match rustix::io::pwrite(&self.0, &data[written..], offset + written as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn append(&self, data: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while written < data.len() {
            match rustix::io::write(&self.0, &data[written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn sync(&self, data_only: bool) -> io::Result<()> {
        let synced = if data_only { rustix::fs::fdatasync(&self.0) } else { rustix::fs::fsync(&self.0) };
        Ok(synced?)
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        Ok(rustix::fs::ftruncate(&self.0, size)?)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(&self.0, rustix::fs::FallocateFlags::empty(), offset, len)?)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(&self.0)?.st_size as u64)
    }
}
