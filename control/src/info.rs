//! A device, its file system and its mount, as a mount reports them or a command finds them. A field that an older mount
//! does not report is zero.

use serde::{Deserialize, Serialize};

use crate::{MoverInfo, TierInfo};

/// The content of the superblock of a file system.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VolumeInfo {
    /// Its name for machines.
    pub uuid: String,
    /// Its name for people.
    pub label: String,
    /// The name of its layout.
    pub layout: String,
    /// The name of the preset that it was made for.
    pub preset: String,
    /// Version of its format.
    pub format_version: u32,
    /// Its feature bits.
    pub features: Features,
    /// A write below the write buffer is all or nothing after a crash. Otherwise it overwrites in place.
    pub atomic_write: bool,
    /// Size in bytes.
    pub size: u64,
    /// Bytes in a block.
    pub block_size: u64,
    /// Seconds since 1970 at which it was made.
    pub created: i64,
    /// Writable mounts so far.
    pub mount_epoch: u64,
    /// It was unmounted in order.
    pub clean: bool,
    /// Errors that were found and not repaired.
    pub errors: u32,
    /// Damaged copies of metadata that mounts wrote anew from the other ones.
    pub mended: u64,
    /// Seconds since 1970 at which the last error was found.
    pub last_error: Option<i64>,
    /// Copies of the superblock that are valid, of 2.
    pub superblock_copies: u32,
}

/// Feature bits of a format.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Features {
    /// Features that a mount may not know.
    pub compatible: u64,
    /// Must be known to write.
    pub read_only_compatible: u64,
    /// Must be known to read.
    pub incompatible: u64,
}

/// A device: its kind and its persistence domain.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceInfo {
    /// The path that it was opened with.
    pub name: String,
    /// `file`, `block device`, `devdax device` or, on the heap, `memory`.
    pub kind: String,
    /// Size in bytes.
    pub size: u64,
    /// Its persistence domain: `power`, `process`, `emulated` or `none`.
    pub promise: String,
    /// The same in a sentence, with the reason where it is less than against power loss.
    pub promise_explanation: String,
    /// The instructions that copies and flushes use.
    pub instructions: String,
    /// The emulation in effect, in words.
    pub emulation: Option<String>,
    /// Counters of stores since the device was opened; known when it is emulated.
    pub counters: Option<CounterInfo>,
}

/// The operations on a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CounterInfo {
    /// Bytes stored.
    pub bytes_stored: u64,
    /// Those of them that were copied past the CPU's cache: data, and metadata that is written in whole blocks.
    pub bytes_copied: u64,
    /// Lines of 64 bytes flushed or stored past the cache.
    pub lines_flushed: u64,
    /// Fences.
    pub fences: u64,
    /// Time in nanoseconds that threads spent on making stores durable, with the delays of the emulation.
    pub write_ns: u64,
}

/// Space and its use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpaceInfo {
    /// Bytes that files could use on an empty file system.
    pub total: u64,
    /// Bytes that are not in use, the reserve included.
    pub free: u64,
    /// Bytes that can still be allocated.
    pub available: u64,
    /// Inodes that can exist.
    pub inodes: u64,
    /// Inodes that can still be made.
    pub inodes_free: u64,
    /// Bytes of DRAM that indexes take.
    pub index_bytes: u64,
    /// Inodes whose state is in DRAM; it is a part of the indexes.
    pub inodes_in_dram: u64,
    /// How many of those that are not in use there may be.
    pub inode_cache: u64,
}

/// The write buffer. Counters are since the mount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheInfo {
    /// Bytes of DRAM for blocks.
    pub size: u64,
    /// Bytes of it in use.
    pub used: u64,
    /// Bytes that writes put into DRAM.
    pub written_lazily: u64,
    /// Bytes that writes put on media at once.
    pub written_eagerly: u64,
    /// Bytes that never reached media because they were overwritten in DRAM.
    pub overwritten: u64,
    /// Bytes that never reached media because their file was removed or cut.
    pub discarded: u64,
    /// Bytes that writes fetched from media.
    pub fetched: u64,
    /// Bytes that writeback and syncs gave to the layout.
    pub written_back: u64,
    /// Blocks that a buffered write found in DRAM.
    pub write_hits: u64,
    /// Blocks that it did not find there.
    pub write_misses: u64,
    /// Bytes that reads took from DRAM.
    pub read_from_dram: u64,
    /// Writes that waited for room.
    pub stalls: u64,
    /// Writebacks that failed.
    pub failures: u64,
    /// Bytes that were given up after repeated failures.
    pub lost: u64,
    /// Blocks that are not in DRAM and that the benefit model remembers.
    pub ghosts: u64,
    /// Verdicts of the benefit model that were those of the sync before.
    pub model_accurate: u64,
    /// Verdicts that were others.
    pub model_inaccurate: u64,
    /// The model's cost of writing a line in DRAM, in nanoseconds: measured when it was opened, or as set.
    pub line_dram_ns: u32,
    /// The same on PM: measured when it was opened, emulated, or as set.
    pub line_pm_ns: u32,
}

/// Everything about a device and its file system.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Info {
    /// The device.
    pub device: DeviceInfo,
    /// Its file system, as the superblock says.
    pub volume: VolumeInfo,
    /// Space, known while the file system is open.
    pub space: Option<SpaceInfo>,
    /// The write buffer, where the open file system has one.
    pub cache: Option<CacheInfo>,
    /// The tiers of the open file system.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<TierInfo>,
    /// The mover, where there are tiers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mover: Option<MoverInfo>,
    /// The mount, where one serves the file system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mount: Option<MountInfo>,
    /// Its directory, where the command that asked has found it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mountpoint: Option<String>,
    /// The directory of a mount whose server has ended, where the command that asked has found it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_mount: Option<String>,
    /// The volumes of the device, of a layout that can have several. If no mount answers, only where none of them is
    /// asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeRow>,
    /// Why a mount knows only the part about itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The process that serves a mount.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MountInfo {
    /// Its options.
    pub options: String,
    /// The number of the process.
    pub pid: u32,
    /// Whether it checks each open(2) for immutable and append-only files: `checked`, `unchecked`, or `checked from the
    /// next mount on`.
    pub opens: String,
    /// When data that programs write is durable, as a sentence; empty if it is read-only.
    pub durable: String,
    /// The mount began read-only, and cannot become writable.
    pub opened_to_read: bool,
    /// The rank of the process among those that the kernel ends when DRAM is short.
    pub oom_score_adj: Option<i32>,
    /// The file for its messages; none for the system's log. The options do not show it.
    pub log: Option<String>,
    /// The PM that it emulates, as after `tune=emulate:`. The options do not show it.
    pub emulate: Option<String>,
}

/// The options of a mount after it took up the kernel's flags.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FlagsTaken {
    /// All of them.
    pub options: String,
}

/// A volume of a device with several.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VolumeRow {
    /// Its name.
    pub name: String,
    /// Its name for machines.
    pub uuid: String,
    /// The zone that it is in.
    pub zone: u32,
    /// The most bytes that it may take.
    pub quota: Option<u64>,
    /// Bytes in use, as its mount says, or if it was unmounted in order.
    pub used: Option<u64>,
    /// Inodes in use, as its mount says, or if it was unmounted in order.
    pub inodes: Option<u64>,
    /// It was unmounted in order.
    pub clean: bool,
    /// Its making or its removal was interrupted. The next change of volumes ends that.
    pub going: bool,
    /// The directory that it is mounted on, where the command that asked has found it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mountpoint: Option<String>,
}
