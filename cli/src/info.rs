//! `nacre info`: the contents of a device, and its persistence domain.

use std::path::{Path, PathBuf};

use clap::Args;
use nacre::Kind;
use nacre_control::{CacheInfo, CounterInfo, Info, Question, TierInfo, VolumeInfo, VolumeRow};
use nacre_engine::size;
use nacre_fuse::mounts::MountEntry;
use serde_json::json;

use crate::failure::Failure;
use crate::{mounted, mover, output};

/// Examples and exit codes, for the help and the manual page.
const MANUAL: &str = "\
Examples:
  nacre info /dev/dax0.0
      Shows the persistence domain of a device, and its file system.
  nacre info --json /mnt
      Prints settings and counters of a mount for a script.

See also:
  nacre-df(8), nacre-top(8), nacre-stat(8)
";

/// Arguments of `nacre info`.
#[derive(Debug, Args)]
#[command(after_long_help = MANUAL)]
pub(crate) struct InfoArgs {
    /// Print it as JSON, with exact bytes
    #[arg(long)]
    json: bool,
    /// A device, or a file or directory on a mounted file system
    #[arg(value_name = "DEVICE|DIR")]
    path: PathBuf,
}

/// Reports on a device or a mount.
pub(crate) fn run(args: InfoArgs) -> Result<(), Failure> {
    let info = find(&args.path)?;
    if args.json { output::json(json!(info)) } else { output::text_out(&describe(&info)) }
}

/// The information from the mount, if there is one, otherwise from the device itself.
fn find(path: &Path) -> Result<Info, Failure> {
    if let Some(mount) = mounted::serving("info", path)? {
        return from_mount(path, &mount.mountpoint);
    }
    // A device with several zones can be read beside its mounts.
    let of_volume = if nacre::device_and_volume(path).1.is_some() { mounted::of_device(path)? } else { None };
    if let Some(mount) = of_volume
        && !is_dead(&mount)?
    {
        return from_mount(&mount.mountpoint, &mount.mountpoint);
    }
    match nacre::info(path) {
        Ok(info) => with_dead_mount(info, path),
        Err(error) if error.kind() == Kind::Busy => match mounted::of_device(path)? {
            Some(mount) => from_mount(&mount.mountpoint, &mount.mountpoint),
            None => Err(Failure::on("info", path, &error)),
        },
        Err(error) => Err(Failure::on("info", path, &error)),
    }
}

/// The information about a device without a server, with the dead mount that still has it, if any.
fn with_dead_mount(mut info: Info, path: &Path) -> Result<Info, Failure> {
    if let Some(mount) = mounted::of_device(path)?
        && is_dead(&mount).unwrap_or(false)
    {
        info.dead_mount = Some(mount.mountpoint.display().to_string());
    }
    Ok(info)
}

/// True if the server of a mount has died.
fn is_dead(mount: &MountEntry) -> Result<bool, Failure> {
    mounted::answers("info", mount).map(|answer| answer.is_none())
}

fn from_mount(path: &Path, mountpoint: &Path) -> Result<Info, Failure> {
    let mut info: Info = mounted::ask("info", path, Question::Info.attribute())?;
    info.mountpoint = Some(mountpoint.display().to_string());
    Ok(info)
}

/// The information as text.
fn describe(info: &Info) -> String {
    let Info { device, volume, .. } = info;
    let mut fields = vec![
        ("device", format!("{} ({}, {})", device.name, device.kind, size::print(device.size))),
        ("persistence", device.promise_explanation.clone()),
        ("instructions", device.instructions.clone()),
    ];
    let mut add = |name: &'static str, value: String| {
        if !value.is_empty() {
            fields.push((name, value));
        }
    };
    add("emulation", device.emulation.clone().unwrap_or_default());
    if let Some(CounterInfo { bytes_stored, lines_flushed, fences, .. }) = device.counters {
        add("stored", format!("{}, {lines_flushed} lines, {fences} fences", size::print(bytes_stored)));
    }
    add("mounted on", info.mountpoint.clone().unwrap_or_default());
    if let Some(dir) = &info.dead_mount {
        add(
            "dead mount",
            format!(
                "{dir}: its server has died: it was killed, or DRAM was short; unmount it and mount it again"
            ),
        );
    }
    if let Some(mount) = &info.mount {
        add("options", mount.options.clone());
        add("durable", mount.durable.clone());
        if mount.opens != "unchecked" {
            add("opens", format!("{}: files are, or were, immutable or append-only", mount.opens));
        }
        add("process", mount.pid.to_string());
        add("short of DRAM", mount.oom_score_adj.map_or_else(String::new, short_of_memory));
    }
    add("error", info.error.clone().unwrap_or_default());
    add("file system", format!("layout {}, preset {}", volume.layout, volume.preset));
    let writes = match (volume.atomic_write, &info.mount) {
        (true, None) => "all or nothing after a crash",
        // The kernel makes several requests of some writes.
        (true, Some(_)) => "each request is all or nothing after a crash",
        (false, _) => "in place: after a crash a part of a write may be there",
    };
    add("overwrites", writes.to_owned());
    add("size", size::print(volume.size));
    if let Some(space) = &info.space {
        add("available", format!("{} of {}", size::print(space.available), size::print(space.total)));
        add("inodes", format!("{} free of {}", space.inodes_free, space.inodes));
        let inodes = output::count(space.inodes_in_dram, "inode", "inodes");
        let inodes = format!("{inodes}, of those not in use at most {}", space.inode_cache);
        add("DRAM", format!("{} for indexes; {inodes}", size::print(space.index_bytes)));
    }
    info.cache.iter().flat_map(write_buffer).for_each(|(name, value)| add(name, value));
    info.tiers.iter().for_each(|tier| add("tier", describe_tier(tier)));
    if let Some(status) = &info.mover {
        if status.next_window.is_some() {
            add("mover", mover::reason(status));
        }
        add("predictor", mover::predictor(status));
    }
    if info.volumes.len() > 1 {
        info.volumes.iter().for_each(|row| add("volume", describe_volume(row)));
    }
    add("label", volume.label.clone());
    add("uuid", volume.uuid.clone());
    add("format", format!("version {}", volume.format_version));
    let copies = volume.superblock_copies;
    add("superblock", format!("{copies} of 2 copies {} valid", if copies == 1 { "is" } else { "are" }));
    add("state", state(info));
    output::fields(&fields)
}

/// The rank of the server among those that the kernel ends when DRAM is short, in words.
fn short_of_memory(oom_score_adj: i32) -> String {
    let is_protected = oom_score_adj <= -999;
    let said = if is_protected { "ends other processes first" } else { "may end the server first" };
    format!("the kernel {said} (oom_score_adj {oom_score_adj})")
}

/// A volume of a device with several, in words.
fn describe_volume(row: &VolumeRow) -> String {
    let used = row.used.map_or_else(String::new, |used| format!(", {} in use", size::print(used)));
    let quota = row.quota.map_or_else(String::new, |quota| format!(", a quota of {}", size::print(quota)));
    format!("{}: zone {}{used}{quota}", row.name, row.zone)
}

/// A tier, in words.
fn describe_tier(tier: &TierInfo) -> String {
    let place = match (&tier.device, &tier.missing) {
        (Some(device), None) => device.clone(),
        (_, why) => format!("missing ({})", why.as_deref().unwrap_or_default()),
    };
    let (used, size) = (size::print(tier.used()), size::print(tier.size));
    let traffic = match (tier.traffic.read, tier.traffic.written) {
        (0, 0) => String::new(),
        (read, written) => format!(", {} read, {} written", size::print(read), size::print(written)),
    };
    format!("{}: {place}, {used} of {size} in use{traffic}", tier.number)
}

/// The counters of the write buffer, in words.
fn write_buffer(cache: &CacheInfo) -> Vec<(&'static str, String)> {
    let bytes = size::print;
    let judged = cache.model_accurate + cache.model_inaccurate;
    let model = match judged {
        0 => "no block was judged twice".to_owned(),
        _ => format!(
            "{} % of {judged} verdicts were those of the sync before",
            cache.model_accurate * 100 / judged
        ),
    };
    let costs =
        format!("a line costs {} ns in DRAM and {} ns on the device", cache.line_dram_ns, cache.line_pm_ns);
    let (lazily, eagerly) = (bytes(cache.written_lazily), bytes(cache.written_eagerly));
    let mut fields = vec![
        ("write buffer", format!("{} of {} in use", bytes(cache.used), bytes(cache.size))),
        ("writes", format!("{lazily} into DRAM, {eagerly} past it")),
        (
            "written back",
            format!(
                "{}; {} overwritten before and {} removed before, {} fetched",
                bytes(cache.written_back),
                bytes(cache.overwritten),
                bytes(cache.discarded),
                bytes(cache.fetched)
            ),
        ),
        ("benefit model", format!("{costs}; {model}")),
    ];
    if cache.failures > 0 {
        fields.push(("failures", format!("{} of writeback, {} lost", cache.failures, bytes(cache.lost))));
    }
    fields
}

fn state(info: &Info) -> String {
    let VolumeInfo { errors, mended, mount_epoch, .. } = info.volume;
    let clean = if info.mountpoint.is_some() {
        "mounted"
    } else if info.volume.clean {
        "clean unmount"
    } else if mount_epoch == 0 {
        "new"
    } else {
        "no clean unmount; the next mount recovers it"
    };
    let errors = match errors {
        0 => String::new(),
        errors => {
            let errors = output::count(u64::from(errors), "error", "errors");
            format!(", {errors} found and not repaired: run nacre fsck")
        }
    };
    let mended = match mended {
        0 => String::new(),
        mended => format!(", {} mended so far", output::count(mended, "damaged copy", "damaged copies")),
    };
    let times = output::count(mount_epoch, "time", "times");
    format!("{clean}, mounted {times} for writing{errors}{mended}")
}

#[cfg(test)]
mod tests {
    use nacre_control::{Info, MountInfo};
    use serde_json::{from_value, json};

    use super::describe;
    use crate::mount_options::MountSettings;

    /// Nothing said what a mount that buffers does not keep.
    #[test]
    fn a_mount_says_when_data_is_durable() {
        let said = |options: &str| {
            let mut settings = MountSettings::default();
            settings.take(options, false).unwrap();
            let mount = MountInfo { durable: settings.durable(), ..MountInfo::default() };
            let text = describe(&Info { mount: Some(mount), ..Info::default() });
            let line = text.lines().find_map(|line| line.strip_prefix("durable:"));
            line.unwrap_or_default().trim().to_owned()
        };
        for options in ["rw", "sync", "direct_io"] {
            assert!(said(options).starts_with("when a write returns"), "{options}: {}", said(options));
        }
        assert_eq!(
            said("buffer,buffer_age=7000"),
            "when fsync(2) returns, otherwise 7000 ms after a write, or twice that (buffer_age); sync(2) and \
             syncfs(2) do not wait"
        );
        assert_eq!(
            said("writeback"),
            "when fsync(2) returns; sync(2) and syncfs(2) do not wait, and a full device is told later"
        );
        assert_eq!(said("ro,writeback"), "");
    }

    #[test]
    fn people_see_what_is_known() {
        let info = json!({
            "device": { "name": "/dev/pmem0", "kind": "block device", "size": 1u64 << 30, "promise": "power",
                "promise_explanation": "safe against power loss", "instructions": "avx2", "emulation": null,
                "counters": { "bytes_stored": 4096, "lines_flushed": 64, "fences": 2 } },
            "volume": { "layout": "log", "preset": "nacre", "size": 1u64 << 30, "label": "", "uuid": "u",
                "format_version": 1, "superblock_copies": 2, "clean": false, "errors": 3, "mended": 2,
                "mount_epoch": 7 },
            "space": null,
                "tiers": [{ "number": 1, "device": "/dev/sdb", "missing": null, "size": 8192, "free": 4096,
                    "read": 12288, "written": 4096 },
                { "number": 3, "device": null, "missing": "it is gone", "size": 8192, "free": 0 }],
            "mover": { "phase": "outside_hours", "hours": "22:00-06:00", "next_window": "22:00" },
        });
        let text = describe(&from_value(info).unwrap());
        assert!(text.contains("device:        /dev/pmem0 (block device, 1 GiB)\n"), "{text}");
        assert!(text.contains("4 KiB, 64 lines, 2 fences"), "{text}");
        assert!(text.contains("no clean unmount") && text.contains("3 errors"), "{text}");
        assert!(text.contains("2 damaged copies mended so far"), "{text}");
        assert!(text.contains("1: /dev/sdb, 4 KiB of 8 KiB in use, 12 KiB read, 4 KiB written\n"), "{text}");
        assert!(text.contains("3: missing (it is gone), 8 KiB of 8 KiB in use"), "{text}");
        assert!(text.contains("outside its hours, 22:00-06:00, until 22:00\n"), "{text}");
        assert!(!text.contains("label") && !text.contains("available"), "{text}");
        assert!(text.contains("superblock:    2 of 2 copies are valid\n"), "{text}");
    }

    #[test]
    fn one_thing_is_no_many() {
        let info = json!({ "volume": { "superblock_copies": 1 }, "space": { "inodes_in_dram": 1, "inode_cache": 9 } });
        let text = describe(&from_value(info).unwrap());
        assert!(text.contains("1 of 2 copies is valid\n"), "{text}");
        assert!(text.contains("1 inode, of those not in use at most 9\n"), "{text}");
    }
}
