//! The objects of the measurements: file systems, names, buffers, offsets.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use nacre::{FileOptions, FileSystem, MkfsOptions, OpenOptions, Preset, WriteBuffer};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::fs::{Mode, OFlags};

pub(crate) use crate::workload::set::buffer;

/// Bytes of the unit of allocation.
pub(crate) const BLOCK: usize = 4096;

/// A new file system in a file of this size, with all pages present.
pub(crate) fn file_system(path: &Path, size: u64) -> Result<FileSystem, nacre::Error> {
    let make = MkfsOptions { preset: Preset::Nova, ..MkfsOptions::with_size(size) };
    let fs = FileSystem::create(path, &make, &OpenOptions::default())?;
    fs.prefault(&AtomicBool::new(false))?;
    Ok(fs)
}

/// How a file system that was made already is opened: every operation is durable when it returns.
pub(crate) fn durable() -> OpenOptions {
    OpenOptions { buffer: WriteBuffer::Never, ..OpenOptions::default() }
}

/// A directory of the peer, for the `at` calls.
pub(crate) fn open_directory(path: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Names in one directory, for both sides: the same path below the root.
pub(crate) struct Names {
    pub(crate) ours: Vec<PathBuf>,
    pub(crate) peer: Vec<CString>,
}

impl Names {
    pub(crate) fn new(dir: &str, prefix: &str, count: u64) -> Names {
        let ours: Vec<PathBuf> =
            (0..count).map(|number| PathBuf::from(format!("/{dir}/{prefix}{number:07}"))).collect();
        let relative = |path: &PathBuf| CString::new(&path.to_str().expect("ASCII").as_bytes()[1..]);
        let peer = ours.iter().map(|path| relative(path).expect("no NUL")).collect();
        Names { ours, peer }
    }
}

/// Makes an empty file.
pub(crate) fn create_ours(fs: &FileSystem, path: &Path) {
    FileOptions::new().write(true).create_new(true).open(fs, path).expect("ours creates");
}

/// Multiples of `unit` below `size`, at random.
pub(crate) fn offsets(seed: u64, count: u64, size: u64, unit: u64) -> Vec<u64> {
    let mut random = SmallRng::seed_from_u64(seed);
    (0..count).map(|_| random.random_range(0..size / unit) * unit).collect()
}
