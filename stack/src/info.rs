//! Information about a device and the file system on it.

use std::path::Path;

use nacre_cache::{CacheStatus, Settings};
use nacre_control::{
    CacheInfo, CounterInfo, DeviceInfo, Features, Info, ScrubInfo, SpaceInfo, TierScrubInfo, VolumeInfo,
};
use nacre_engine::{BLOCK_SIZE, Extents, FsStat, InodeCache, Names, Result, Timestamp};
use nacre_layout_parts::scrub::{ScrubStatus, TierScrub};
use nacre_layout_parts::superblock::Summary;
use nacre_media::{PmOptions, RealPm};

use crate::layout::AnyLayout;
use crate::preset::LayoutKind;
use crate::probe::probe_volume;
use crate::volumes;

/// A superblock as it is reported.
pub(crate) fn volume_info(layout: LayoutKind, summary: &Summary) -> VolumeInfo {
    let [compatible, read_only_compatible, incompatible] = summary.features;
    let seconds = |time: Timestamp| time.secs;
    let has = layout.capabilities();
    VolumeInfo {
        uuid: summary.uuid.to_string(),
        label: summary.label.clone(),
        layout: layout.as_str().to_owned(),
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
        mended: summary.mended,
        last_error: summary.last_error.map(seconds),
        superblock_copies: summary.valid_copies,
    }
}

/// A device as it is reported.
pub(crate) fn device_info(pm: &RealPm) -> DeviceInfo {
    let promise = pm.promise();
    DeviceInfo {
        name: pm.name().to_owned(),
        kind: pm.kind().map_or("memory", |kind| kind.as_str()).to_owned(),
        size: nacre_media::Pm::len(pm),
        promise: promise.as_str().to_owned(),
        promise_explanation: pm.promise_explanation(),
        instructions: pm.instructions().to_owned(),
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

/// Space as it is reported.
pub(crate) fn space_info(stat: FsStat, layout: &AnyLayout) -> SpaceInfo {
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

/// The write buffer as it is reported.
pub(crate) fn cache_info(status: CacheStatus, settings: Settings) -> CacheInfo {
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
            device: device_info(&pm),
            volume: volume_info(layout, &summary),
            volumes: if volume.is_some() { Vec::new() } else { volumes::of_device(&pm, layout)? },
            ..Info::default()
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

/// The limit of every scrub: nothing on media records the intended contents of files.
const NO_CHECKSUMS: &str =
    "contents of files have no checksums: wrong data that a device returns without an error is not found";
/// The same of tiers.
const FREE_ON_TIERS: &str = "free blocks of tiers are not read";

/// A scrub as it is reported.
pub(crate) fn scrub_info(status: ScrubStatus) -> ScrubInfo {
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
        state: state.to_owned(),
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
