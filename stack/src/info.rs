//! Information about a device and the file system on it.

use std::path::Path;

use nacre_cache::{CacheStatus, Settings};
use nacre_engine::{BLOCK_SIZE, Extents, FsStat, InodeCache, Names, Result, Timestamp};
use nacre_layout_parts::scrub::{ScrubStatus, TierScrub};
use nacre_layout_parts::superblock::Summary;
use nacre_media::{PmOptions, RealPm};
use serde::Serialize;

use crate::layout::AnyLayout;
use crate::preset::LayoutKind;
use crate::probe::probe_volume;
use crate::volumes::{self, VolumeRow};

/// The content of the superblock of a file system.
#[derive(Debug, Clone, Serialize)]
pub struct VolumeInfo {
    /// Its name for machines.
    pub uuid: String,
    /// Its name for people.
    pub label: String,
    /// The name of its layout.
    pub layout: &'static str,
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
    /// Seconds since 1970 at which the last error was found.
    pub last_error: Option<i64>,
    /// Copies of the superblock that are valid, of 2.
    pub superblock_copies: u32,
}

/// Feature bits of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Features {
    /// Features that a mount may not know.
    pub compatible: u64,
    /// Must be known to write.
    pub read_only_compatible: u64,
    /// Must be known to read.
    pub incompatible: u64,
}

impl VolumeInfo {
    pub(crate) fn of(layout: LayoutKind, summary: &Summary) -> VolumeInfo {
        let [compatible, read_only_compatible, incompatible] = summary.features;
        let seconds = |time: Timestamp| time.secs;
        let has = layout.capabilities();
        VolumeInfo {
            uuid: summary.uuid.to_string(),
            label: summary.label.clone(),
            layout: layout.as_str(),
            preset: summary.preset.clone(),
            format_version: summary.version,
            features: Features { compatible, read_only_compatible, incompatible },
            atomic_write: has.atomic_write && compatible & has.in_place_feature == 0,
            size: summary.blocks * BLOCK_SIZE,
            block_size: BLOCK_SIZE,
            created: seconds(summary.created),
            mount_epoch: summary.mount_epoch,
            clean: summary.clean,
            errors: summary.errors,
            last_error: summary.last_error.map(seconds),
            superblock_copies: summary.valid_copies,
        }
    }
}

/// A device: its kind and its persistence domain.
#[derive(Debug, Clone, Serialize)]
pub struct DeviceInfo {
    /// The path that it was opened with.
    pub name: String,
    /// `file`, `block device`, `devdax device` or, on the heap, `memory`.
    pub kind: &'static str,
    /// Size in bytes.
    pub size: u64,
    /// Its persistence domain: `power`, `process`, `emulated` or `none`.
    pub promise: &'static str,
    /// The same in a sentence, with the reason where it is less than against power loss.
    pub promise_explanation: String,
    /// The instructions that copies and flushes use.
    pub instructions: &'static str,
    /// The emulation in effect, in words.
    pub emulation: Option<String>,
    /// Counters of stores since the device was opened; known when it is emulated.
    pub counters: Option<CounterInfo>,
}

/// The operations on a device.
#[derive(Debug, Clone, Copy, Serialize, Default)]
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

impl DeviceInfo {
    pub(crate) fn of(pm: &RealPm) -> DeviceInfo {
        let promise = pm.promise();
        DeviceInfo {
            name: pm.name().to_owned(),
            kind: pm.kind().map_or("memory", |kind| kind.as_str()),
            size: nacre_media::Pm::len(pm),
            promise: promise.as_str(),
            promise_explanation: pm.promise_explanation(),
            instructions: pm.instructions(),
            emulation: pm.emulation().map(ToString::to_string),
            counters: pm.counters().map(|counters| CounterInfo {
                bytes_stored: counters.bytes_stored,
                bytes_copied: counters.bytes_copied,
                lines_flushed: counters.lines_flushed,
                fences: counters.fences,
                write_ns: counters.write_ns,
            }),
        }
    }
}

/// Space and its use, as [`FileSystem::info`](crate::FileSystem::info) tells it.
#[derive(Debug, Clone, Copy, Serialize)]
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

impl SpaceInfo {
    pub(crate) fn new(stat: FsStat, layout: &AnyLayout) -> SpaceInfo {
        let InodeCache { loaded, limit } = layout.inode_cache();
        SpaceInfo {
            total: stat.blocks * BLOCK_SIZE,
            free: stat.free * BLOCK_SIZE,
            available: stat.available * BLOCK_SIZE,
            inodes: stat.inodes,
            inodes_free: stat.inodes_free,
            index_bytes: layout.index_bytes(),
            inodes_in_dram: loaded,
            inode_cache: limit,
        }
    }
}

/// The write buffer, as [`FileSystem::cache`](crate::FileSystem::cache) tells it. Counters are since the mount.
#[derive(Debug, Clone, Copy, Serialize)]
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

impl CacheInfo {
    pub(crate) fn of(status: CacheStatus, settings: Settings) -> CacheInfo {
        let latencies = settings.latencies.unwrap_or_default();
        CacheInfo {
            size: status.blocks * BLOCK_SIZE,
            used: status.used * BLOCK_SIZE,
            written_lazily: status.written_lazily,
            written_eagerly: status.written_eagerly,
            overwritten: status.overwritten,
            discarded: status.discarded,
            fetched: status.fetched,
            written_back: status.written_back,
            write_hits: status.write_hits,
            write_misses: status.write_misses,
            read_from_dram: status.read_from_dram,
            stalls: status.stalls,
            failures: status.failures,
            lost: status.lost,
            ghosts: status.ghosts,
            model_accurate: status.accurate,
            model_inaccurate: status.inaccurate,
            line_dram_ns: latencies.dram_ns,
            line_pm_ns: latencies.pm_ns,
        }
    }
}

/// Everything about a device and its file system.
#[derive(Debug, Clone, Serialize)]
pub struct Info {
    /// The device.
    pub device: DeviceInfo,
    /// Its file system, as the superblock says.
    pub volume: VolumeInfo,
    /// Space, known while the file system is open.
    pub space: Option<SpaceInfo>,
    /// The write buffer, where the open file system has one.
    pub cache: Option<CacheInfo>,
    /// The volumes of a device with several, if none of them is asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeRow>,
}

/// Information about a device and its content, without opening its file system. [`Busy`](nacre_engine::Kind::Busy)
/// while it is open for writing elsewhere.
pub fn info(path: impl AsRef<Path>) -> Result<Info> {
    let name = path.as_ref().display().to_string();
    let options = PmOptions { read_only: true, ..PmOptions::default() };
    let read = || {
        let (device, volume) = volumes::place(path.as_ref(), None)?;
        let pm = RealPm::open(device, &options)?;
        let (layout, summary) = probe_volume(&pm, volume.as_deref())?;
        Ok(Info {
            device: DeviceInfo::of(&pm),
            volume: VolumeInfo::of(layout, &summary),
            space: None,
            cache: None,
            volumes: if volume.is_some() { Vec::new() } else { volumes::of_device(&pm, layout)? },
        })
    };
    read().map_err(|error: nacre_engine::Error| error.operation("info").object(name))
}

/// Bytes of findings in one answer of a mount, which has 64 KiB: half, as each byte of a path may take two in JSON.
const FINDINGS_BYTES: usize = 30 << 10;

/// The first findings, as many as fit so many bytes, and how many more there are; and the bytes that are left.
fn first_that_fit(mut findings: Vec<String>, mut room: usize) -> ((Vec<String>, u64), usize) {
    let fit = findings.iter().take_while(|finding| {
        // Control characters take six.
        let bytes = finding.chars().map(|c| if c.is_control() { 6 } else { c.len_utf8() }).sum::<usize>() + 8;
        let fits = bytes <= room;
        room = room.saturating_sub(bytes);
        fits
    });
    let fit = fit.count();
    let more = findings.len() - fit;
    findings.truncate(fit);
    ((findings, more as u64), room)
}

/// The progress and the findings of a scrub.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ScrubInfo {
    /// `never`, `running`, `finished` or `stopped`.
    pub state: &'static str,
    /// Bytes that were read.
    pub bytes: u64,
    /// Bytes to read in all.
    pub total: u64,
    /// Inodes whose metadata were read.
    pub inodes: u64,
    /// Damaged places: path and range, if one is in a file. Only the first ones, as many as fit a message of the
    /// kernel.
    pub findings: Vec<String>,
    /// How many more there are.
    pub more_findings: u64,
    /// Media errors in blocks that were retired, and told of, before this scrub: as many as the rest of the message holds.
    pub known: Vec<String>,
    /// How many more there are of them.
    pub more_known: u64,
    /// How much of it was repaired.
    pub repaired: u64,
    /// Blocks that are never allocated again.
    pub bad_blocks: u64,
    /// How far it is on each tier; none before their turn comes.
    pub tiers: Vec<TierScrubInfo>,
    /// The limits of the scrub, in words.
    pub not_checked: Vec<String>,
}

/// How far a scrub is on a tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TierScrubInfo {
    /// Its number.
    pub tier: u8,
    /// Bytes of files that were read.
    pub bytes: u64,
    /// Bytes that were in use on it when the scrub began.
    pub used: u64,
    /// Why it was not read, or not to the end.
    pub unread: Option<String>,
}

/// The limit of every scrub: nothing on media records the intended contents of files.
const NO_CHECKSUMS: &str =
    "contents of files have no checksums: wrong data that a device returns without an error is not found";
/// The same of tiers.
const FREE_ON_TIERS: &str = "free blocks of tiers are not read";

impl ScrubInfo {
    pub(crate) fn of(status: ScrubStatus) -> ScrubInfo {
        let state = match (status.running, status.finished, status.total) {
            (true, ..) => "running",
            (_, true, _) => "finished",
            (.., 0) => "never",
            _ => "stopped",
        };
        let ScrubStatus { bytes, total, inodes, findings, known, repaired, bad_blocks, tiers, .. } = status;
        let ((findings, more_findings), room) = first_that_fit(findings, FINDINGS_BYTES);
        let ((known, more_known), _) = first_that_fit(known, room);
        let mut not_checked = vec![NO_CHECKSUMS.to_owned()];
        not_checked.extend((!tiers.is_empty()).then(|| FREE_ON_TIERS.to_owned()));
        let unread = |tier: &TierScrub| Some(format!("tier {}: {}", tier.number, tier.unread.as_ref()?));
        not_checked.extend(tiers.iter().filter_map(unread));
        let info = |tier: TierScrub| {
            let TierScrub { number, bytes, used, unread } = tier;
            TierScrubInfo { tier: number, bytes, used, unread }
        };
        let tiers = tiers.into_iter().map(info).collect();
        ScrubInfo {
            state,
            bytes,
            total,
            inodes,
            findings,
            more_findings,
            known,
            more_known,
            repaired,
            bad_blocks,
            tiers,
            not_checked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FINDINGS_BYTES, first_that_fit};

    #[test]
    fn the_first_findings_fit_an_answer_and_the_rest_is_counted() {
        let few = vec!["/a: damaged".to_owned(); 3];
        let (fit, room) = first_that_fit(few.clone(), FINDINGS_BYTES);
        assert_eq!((fit, room), ((few.clone(), 0), FINDINGS_BYTES - 3 * 19));
        assert_eq!(first_that_fit(few.clone(), 40).0, (few[..2].to_vec(), 1));
        // In JSON each byte takes one, two, or six.
        for name in ["x", "\"", "\u{1}"] {
            let ((first, more), _) = first_that_fit(vec![name.repeat(100); 1000], FINDINGS_BYTES);
            assert_eq!(first.len() as u64 + more, 1000);
            let bytes = serde_json::to_string(&first).unwrap().len();
            assert!((20 << 10..62 << 10).contains(&bytes), "{bytes} bytes of {name:?}");
        }
    }
}
