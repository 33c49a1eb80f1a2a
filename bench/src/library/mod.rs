//! The library in this process beside tmpfs through the kernel.
//!
//! Our side is a file system on a file in a plain tmpfs, with all its pages present; every operation is durable when
//! it returns. The peer is another plain tmpfs, reached through system calls on open files and directories. Both get
//! the same offsets and names in the same order.

mod content;
mod names;
mod threads;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use nacre::{FileSystem, MkfsOptions, OpenOptions};
use rustix::fs::{Mode, OFlags};

use crate::context::{Context, Outcome};

/// Runs all rows of the library that are wanted.
pub(crate) fn run(context: &Context) -> Outcome {
    content::run(context, content::Variant::Plain)?;
    content::run(context, content::Variant::Small)?;
    names::run(context)?;
    content::run(context, content::Variant::Huge)
}

/// A new file system in a file of this size, with all pages present.
pub(crate) fn file_system(path: &Path, size: u64) -> Result<FileSystem, nacre::Error> {
    let fs = FileSystem::create(path, &MkfsOptions::with_size(size), &OpenOptions::default())?;
    fs.prefault(&AtomicBool::new(false))?;
    Ok(fs)
}

/// A directory of the peer, for the `at` calls.
fn open_directory(path: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}
