//! A disk for targets that need one: a loop device over a file, or over an emulated disk.
//!
//! Peers of the kernel and tiers of nacre get theirs here, so that both pay for the same device. Its parts are kept in
//! [`Pieces`], and end with them; the user of the device ends before.

use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command};

use nacre_media::disk::Disk;

use super::disk::{FILE, as_text};
use super::pieces::{Backing, LoopDevice, Pieces, Server};
use super::plan::Ground;
use crate::{Error, machine};

/// Where the data of a disk is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Medium {
    /// A file where `--disk` says.
    File,
    /// A disk that is emulated, its bytes in DRAM.
    Emulated(Box<Disk>),
}

/// A disk that is there.
#[derive(Debug)]
pub(super) struct Device {
    /// The loop device.
    pub(super) path: PathBuf,
    /// The medium, in words.
    pub(super) about: String,
    /// The standard input of an emulated disk: when that ends, it delays nothing any more.
    pub(super) hurry: Option<ChildStdin>,
}

impl Medium {
    /// From `file`, or a disk as [`Disk`] reads it with `+` for commas, which would end the parameter.
    pub(super) fn parse(text: &str) -> Result<Medium, String> {
        match text {
            "file" => Ok(Medium::File),
            disk => match disk.replace('+', ",").parse() {
                Ok(disk) => Ok(Medium::Emulated(Box::new(disk))),
                Err(error) => Err(nacre::Error::to_string(&error)),
            },
        }
    }

    /// Bytes of DRAM that one of this size takes.
    pub(super) fn memory(&self, size: u64) -> u64 {
        match self {
            Medium::File => 0,
            Medium::Emulated(_) => size,
        }
    }

    /// Bytes of a disk that one of this size takes.
    pub(super) fn on_disk(&self, size: u64) -> u64 {
        size - self.memory(size)
    }

    /// Makes one of this size, under a name that no other target has.
    pub(super) fn set_up(
        &self,
        name: &str,
        size: u64,
        ground: &Ground<'_>,
        pieces: &mut Pieces,
    ) -> Result<Device, Error> {
        match self {
            Medium::File => {
                let file = format!("nacre-bench-{}-{name}.img", std::process::id());
                let backing = Backing::new(ground.disk.join(file), size)?;
                // Past the page cache, because written data would otherwise be read back from there.
                let device = LoopDevice::new(&backing.path, true)?;
                pieces.keep(backing);
                let path = pieces.keep_loop(device);
                let about = format!("a loop device over a file in {}", where_it_is(ground.disk)?);
                Ok(Device { path, about, hurry: None })
            }
            Medium::Emulated(disk) => {
                let tmpfs = ground.place.tmpfs(&format!("{name}-platters"), false)?;
                let backing = Backing::new(tmpfs.path().join("data"), size)?;
                let dir = ground.place.directory(&format!("{name}-disk"))?;
                let mut command = Command::new(ground.program);
                command.args(["bench", "disk", "--as", &as_text(disk)]);
                command.arg(&backing.path).arg(&dir);
                pieces.keep(tmpfs);
                pieces.keep(backing);
                let mut server = Server::start(&mut command, dir)?;
                let hurry = server.take_hurry();
                let file = server.dir().join(FILE);
                pieces.keep_disk(server);
                let path = pieces.keep_loop(LoopDevice::new(&file, true)?);
                Ok(Device { path, about: format!("a loop device over an emulated disk: {disk}"), hurry })
            }
        }
    }
}

/// A directory for files that stand for disks, in words. Only its figures tell a directory in DRAM from one on a disk.
/// The directory for temporary files, where they go by default, lies in DRAM on many a machine.
fn where_it_is(dir: &Path) -> Result<String, Error> {
    let kind = machine::file_system(dir)?;
    let mut words = format!("{} ({kind})", dir.display());
    if matches!(kind.as_str(), "tmpfs" | "ramfs") {
        words.push_str(", which is memory and no disk: --disk names a directory on one");
    }
    Ok(words)
}

/// An emulated disk for measurements of the disk itself. It goes away with this value.
#[derive(Debug)]
pub(crate) struct EmulatedDisk {
    /// The loop device.
    pub(crate) path: PathBuf,
    // Dropped in this order: the source of delays is told to hurry, then all is taken down.
    _hurry: Option<ChildStdin>,
    _pieces: Pieces,
}

impl EmulatedDisk {
    /// Makes one of this size as targets have it; `name` is its own.
    pub(crate) fn set_up(
        name: &str,
        disk: Disk,
        size: u64,
        ground: &Ground<'_>,
    ) -> Result<EmulatedDisk, Error> {
        let mut pieces = Pieces::default();
        let Device { path, hurry, .. } =
            Medium::Emulated(Box::new(disk)).set_up(name, size, ground, &mut pieces)?;
        Ok(EmulatedDisk { path, _hurry: hurry, _pieces: pieces })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::where_it_is;

    #[test]
    fn a_file_in_memory_is_not_taken_for_a_disk() {
        let words = |dir| where_it_is(Path::new(dir)).unwrap();
        assert_eq!(words("/proc"), "/proc (0x9fa0)", "that of any disk is named and no more");
        if Path::new("/dev/shm").is_dir() {
            assert!(words("/dev/shm").contains("(tmpfs), which is memory and no disk: --disk"));
        }
    }
}
