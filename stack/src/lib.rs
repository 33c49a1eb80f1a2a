//! A file system for persistent memory, used as a library.
//!
//! nacre keeps files on byte-addressable persistent memory: a devdax device, a file on an fsdax mount, or, as
//! emulation, any plain file. This crate opens such a device and offers files and directories in the manner of
//! [`std::fs`], in the process itself: no mount, no kernel module.
//!
//! Names and attributes are durable when the operation returns, within the [persistence domain](DeviceInfo::promise) of
//! the device. So are contents with the presets `nova`, `pmfs`, `spfs` and `bpfs`, and with [`WriteBuffer::Never`].
//! With the other ones, the default among them, writes may wait in DRAM for half a minute at most, as they do in a file
//! system of the kernel: [`File::sync_all`], [`FileSystem::sync`] and [`FileSystem::close`] make them durable.
//!
//! ```
//! use std::io::{Read, Write};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("pm");
//! // A file system of 64 MiB in a file, as if it were persistent memory.
//! nacre::mkfs(&path, &nacre::MkfsOptions::with_size(64 << 20))?;
//! let fs = nacre::FileSystem::open(&path, &nacre::OpenOptions::default())?;
//!
//! fs.create_dir_all("/letters/drafts")?;
//! let mut file = fs.create_file("/letters/drafts/first")?;
//! file.write_all(b"Dear reader,\n")?;
//! file.write_at(b"D", 0)?;
//! drop(file);
//! fs.rename("/letters/drafts/first", "/letters/sent")?;
//! fs.close()?;
//!
//! // Another process may open it now; what was written is there.
//! let fs = nacre::FileSystem::open(&path, &nacre::OpenOptions::default())?;
//! let mut text = String::new();
//! fs.open_file("/letters/sent")?.read_to_string(&mut text)?;
//! assert_eq!(text, "Dear reader,\n");
//! assert_eq!(fs.metadata("/letters/sent")?.len(), 13);
//! for entry in fs.read_dir("/letters")? {
//!     println!("{}", entry?.path().display());
//! }
//! fs.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! Paths start at the root of the file system, with or without a slash. Errors are [`Error`], with a [`Kind`] as the
//! cause; they convert to [`std::io::Error`].
//!
//! A process that can open the device can do anything with it. [`Identity`] says in whose name files are made, and
//! whether permissions are checked nevertheless.
//!
//! | where | content |
//! | --- | --- |
//! | [`mkfs`](fn@mkfs), [`MkfsOptions`], [`Preset`] | making a file system |
//! | [`FileSystem`], [`OpenOptions`] | opening one; names and attributes |
//! | [`File`], [`FileOptions`], [`Mapping`] | contents; a part of a file read and written where it lies |
//! | [`info`](fn@info), [`check`](fn@check) | the content of a device, and whether it is sound |
//! | [`signature`] | marks of other formats on a device |

mod buffered;
mod check;
mod cost;
mod dir;
mod file;
mod fs;
mod identity;
mod in_use;
mod info;
mod keeper;
mod layout;
mod mapping;
mod metadata;
mod mkfs;
mod mover;
mod names;
mod preset;
mod probe;
pub mod signature;
mod tier_admin;
mod tier_check;
mod tier_settings;
mod tiers;
mod volumes;

pub use nacre_cache::{CacheOptions, Checker, Granularity, Latencies, Settings as CacheSettings};
pub use nacre_engine::{
    Attr, Block, Capabilities, Durability, Error, FallocateMode, FileBlock, FileKind, FsStat, InodeId, Kind,
    Place, PlacedExtent, RenameMode, Result, SeekTo, SetAttr, Timestamp, WriteAt, XattrMode,
};
pub use nacre_layout_parts::findings::Findings;
pub use nacre_layout_parts::report::RecoveryReport;
pub use nacre_media::disk::Disk;
pub use nacre_media::usage::made_of;
pub use nacre_media::{Emulation, Promise};
pub use nacre_vfs::{Caller, SetTime, Vfs};

pub use buffered::{Buffered, BufferedNode};
pub use check::{CheckOptions, CheckReport, Problem, Repair, UncheckedTier, check};
pub use dir::{DirEntry, ReadDir};
pub use file::{File, FileOptions};
pub use fs::{FileSystem, OpenOptions, WriteBuffer};
pub use identity::Identity;
pub use info::info;
pub use layout::{AnyLayout, AnyNode};
pub use mapping::Mapping;
pub use metadata::Metadata;
pub use mkfs::{MkfsOptions, WouldMake, mkfs, signatures, would_make};
pub use nacre_control::{
    AgesInfo, CacheInfo, CounterInfo, DeviceInfo, DoingInfo, Features, HotFileInfo, Info, MountInfo,
    MoverInfo, QueueInfo, QueuedInfo, ScrubInfo, SpaceInfo, TemperatureInfo, TierInfo, TierScrubInfo,
    TrafficInfo, VolumeInfo, VolumeRow,
};
pub use nacre_mover::{Budget, Drained, Hours, PIN, TIER, TrimFrom, Trimmed};
pub use preset::{LayoutKind, Preset};
pub use tier_admin::MovedFiles;
pub use tier_settings::{AntiCache, MoverLimit, TierSettings};
pub use tiers::{NewTier, TierDevice, lost_tiers};
pub use volumes::{
    VolumeOptions, canonical_device, create_volume, device_and_volume, remove_volume, volumes, with_volume,
    would_create_volume, would_remove_volume, zone_bytes,
};
