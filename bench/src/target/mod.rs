//! The targets that workloads run on.
//!
//! One generator drives all targets through [`Target`]: the library in the same process ([`library`]), or any directory
//! through system calls ([`directory`]). A call through the trait costs some 2 ns on each side.
//!
//! - [`plan`]: which targets there are, their parts, and how they are set up and torn down by the process that runs
//!   the benchmark. The processes that do the work get a [`plan::Opening`].
//! - `command`: `nacre mount` as a command, timed.
//! - [`watch`]: a target around another that sees synced bytes. [`control`]: orders to a mount of nacre.
//! - `peer`: the file systems of the kernel. [`disk`]: an emulated disk for them. `medium`: that, or a file, as a
//!   block device, for peers and for `tier`s of nacre. `pieces`: the parts of targets.

pub(crate) mod command;
pub mod control;
pub mod directory;
pub mod disk;
pub mod library;
pub(crate) mod medium;
mod peer;
mod pieces;
pub mod plan;
mod tier;
pub mod watch;

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::Duration;

use nacre_control::{Info, MoverInfo};
use serde::{Deserialize, Serialize};

use crate::Error;

/// How a file is opened. Files that are made get the mode 0644.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Open {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// Each write goes to the end.
    pub append: bool,
    /// Make it when it is not there.
    pub create: bool,
    /// Cut it to no bytes.
    pub truncate: bool,
    /// Each write is durable on return (O_SYNC).
    pub sync: bool,
    /// Past the page cache (O_DIRECT), where there is one: buffers and offsets are whole blocks.
    pub direct: bool,
}

impl Open {
    /// For reading.
    pub const READ: Open = Open {
        read: true,
        write: false,
        append: false,
        create: false,
        truncate: false,
        sync: false,
        direct: false,
    };
    /// For writing existing files.
    pub const WRITE: Open = Open { write: true, read: false, ..Open::READ };
    /// Made, or cut to nothing, for writing.
    pub const CREATE: Open = Open { create: true, truncate: true, ..Open::WRITE };
    /// Made when it is not there, for writing at its end.
    pub const APPEND: Open = Open { create: true, append: true, ..Open::WRITE };
}

/// A file system, or a directory of one. Paths are relative to its root.
pub trait Target: Send + Sync {
    /// Opens a file.
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn File>>;
    /// Makes a directory.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// Renames a file, over one that is there.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes another name for a file.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes a symbolic link with this text.
    fn symlink(&self, text: &Path, path: &Path) -> io::Result<()>;
    /// Sets permission bits.
    fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Size in bytes, found by path.
    fn stat(&self, path: &Path) -> io::Result<u64>;
    /// Gives each name in a directory, without `.` and `..`.
    fn read_dir(&self, path: &Path, each: &mut dyn FnMut(&OsStr)) -> io::Result<()>;
    /// Makes everything durable.
    fn sync(&self) -> io::Result<()>;
    /// The disk below its PM; none where it has no such thing, as all targets except nacre. An error where it is
    /// nacre, and has no tier that takes blocks.
    fn below(&self) -> io::Result<Option<Below>>;
    /// Moves all of a file to a tier, or up to PM where that is none; gives the number of bytes that moved.
    fn move_file(&self, path: &Path, to: Option<u8>) -> io::Result<u64>;
    /// The value of an extended attribute of a file.
    fn attribute(&self, path: &Path, name: &[u8]) -> io::Result<Vec<u8>>;
    /// Sets it.
    fn set_attribute(&self, path: &Path, name: &[u8], value: &[u8]) -> io::Result<()>;
    /// The traffic that reached media so far, where that is counted.
    fn traffic(&self) -> Option<Traffic>;
    /// The description that nacre gives of itself; none of other file systems.
    fn information(&self) -> Option<Info>;
    /// How long the layout's own mount took when it was opened, where nacre is in this process.
    fn mounted_in(&self) -> Option<Duration>;
    /// Bytes of data on PM above the threshold of anti-caching; none where there is no such threshold.
    fn above_threshold(&self) -> Option<u64> {
        above_threshold(&self.information()?)
    }
    /// Drops what the kernel has cached of a file's content, once it is durable.
    fn drop_pages(&self, path: &Path) -> io::Result<()>;
    /// The directory for programs that cannot run in this process; none for a library.
    fn directory(&self) -> Option<&Path>;
    /// Closes it cleanly. Its data in DRAM of its own is durable then, and no longer in DRAM.
    fn close(self: Box<Self>) -> io::Result<()>;
}

/// An open file.
pub trait File: Send + Sync {
    /// Reads; gives the number of bytes, less than asked for at the end of the file only.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of it.
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()>;
    /// Writes all of it at the end. The file was opened for that.
    fn append(&self, data: &[u8]) -> io::Result<()>;
    /// Makes its content durable (fdatasync), or its attributes, too (fsync).
    fn sync(&self, data_only: bool) -> io::Result<()>;
    /// Cuts or grows it.
    fn set_len(&self, size: u64) -> io::Result<()>;
    /// Sees to it that a range has its blocks; the file grows where it ends before it.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Size in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Its concrete type, where a loop is to be made for it alone.
    fn known(&self) -> Known<'_> {
        Known::Other
    }
}

/// A file of a kind that is worth a loop of its own. Behind a system call a processor mispredicts a call through a
/// table, which costs as much as a time-stamp.
pub enum Known<'a> {
    /// Of a directory.
    Directory(&'a directory::DirectoryFile),
    /// Of the library.
    Library(&'a library::LibraryFile),
    /// Any other.
    Other,
}

/// Reads all of a buffer, in one read. A read that ends early is an error, because the workload means to measure whole
/// ones.
#[inline]
pub fn read_all<F: File + ?Sized>(file: &F, buffer: &mut [u8], offset: u64) -> Result<(), Error> {
    match file.read_at(buffer, offset)? {
        count if count == buffer.len() => Ok(()),
        count => Err(format!("a read at {offset} gave {count} bytes of {}", buffer.len()).into()),
    }
}

/// A tier of nacre.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Below {
    /// Its number: of several, that of the fastest.
    pub tier: u8,
    /// Bytes that were read from it and written to it so far.
    pub moved: u64,
}

/// Counters of nacre itself: bytes that reached persistent memory, and bytes in DRAM.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Whether bytes, lines, fences and nanoseconds are counted: where PM is emulated.
    pub is_counted: bool,
    /// Bytes stored.
    pub bytes: u64,
    /// Lines of 64 bytes that were flushed or stored past the cache.
    pub lines: u64,
    /// Fences.
    pub fences: u64,
    /// Nanoseconds that stores took, of all threads together.
    pub nanos: u64,
    /// Bytes of DRAM that indexes and caches take.
    pub dram: u64,
    /// Bytes among those stored that were copied past the cache of the CPU: data.
    pub copied: u64,
    /// Bytes that the write buffer passed on at once.
    pub eager: u64,
    /// Bytes of dirty lines that it wrote back.
    pub written_back: u64,
    /// How often, at a sync of a block, the buffer benefit model's answer was the one before.
    pub accurate: u64,
    /// How often it was another one.
    pub inaccurate: u64,
    /// How often a file with tiers below was synchronised as soon, or as late, as was expected of it.
    pub expected: u64,
    /// How often it was not.
    pub unexpected: u64,
    /// Whether PM holds data up to a threshold: anti-caching.
    pub anticaches: bool,
    /// Bytes of data that anti-caching moved from PM to a disk.
    pub evicted: u64,
    /// Bytes of data that came up again because they were read.
    pub promoted: u64,
}

impl Traffic {
    /// The counters of a file system, as it reports them.
    fn of(info: &Info) -> Traffic {
        let counters = info.device.counters.unwrap_or_default();
        let cache = info.cache.unwrap_or_default();
        let of_mover = |field: fn(&MoverInfo) -> u64| info.mover.as_ref().map_or(0, field);
        Traffic {
            is_counted: info.device.counters.is_some(),
            bytes: counters.bytes_stored,
            lines: counters.lines_flushed,
            fences: counters.fences,
            nanos: counters.write_ns,
            dram: info.space.map_or(0, |space| space.index_bytes),
            copied: counters.bytes_copied,
            eager: cache.written_eagerly,
            written_back: cache.written_back,
            accurate: cache.model_accurate,
            inaccurate: cache.model_inaccurate,
            expected: of_mover(|mover| mover.synchronicity_right),
            unexpected: of_mover(|mover| mover.synchronicity_wrong),
            anticaches: info.mover.as_ref().is_some_and(|mover| mover.anticache.is_some()),
            evicted: of_mover(|mover| mover.evicted),
            promoted: of_mover(|mover| mover.promoted),
        }
    }
}

/// Bytes of data on PM above the threshold of anti-caching; none without it.
fn above_threshold(info: &Info) -> Option<u64> {
    let mover = info.mover.as_ref()?;
    Some(mover.data.saturating_sub(mover.anticache?))
}

/// Makes every directory on the way to a path, the last part included.
pub fn create_dir_all(target: &dyn Target, path: &Path) -> io::Result<()> {
    match target.create_dir(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).ok_or(error)?;
            create_dir_all(target, parent)?;
            target.create_dir(path)
        }
        Err(error) => Err(error),
    }
}

/// Removes a directory with everything in it; none is there is fine.
pub fn remove_dir_all(target: &dyn Target, path: &Path) -> io::Result<()> {
    let mut names = Vec::new();
    match target.read_dir(path, &mut |name| names.push(name.to_owned())) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    }
    for name in names {
        let path = path.join(name);
        match target.remove_file(&path) {
            // EISDIR, from the library as a kind, or EPERM as POSIX has it.
            Err(error)
                if error.kind() == io::ErrorKind::IsADirectory
                    || error.raw_os_error() == Some(libc::EPERM) =>
            {
                remove_dir_all(target, &path)?;
            }
            other => other?,
        }
    }
    target.remove_dir(path)
}
