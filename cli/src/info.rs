//! `nacre info`: the contents of a device, and its persistence domain.

use std::path::{Path, PathBuf};

use clap::Args;
use nacre::Kind;
use nacre_control::{MoverInfo, Question};
use nacre_engine::size;
use nacre_fuse::mounts;
use serde_json::{Value, json};

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
    if args.json { output::json(info) } else { output::text_out(&describe(&info)) }
}

/// The information from the mount, if there is one, otherwise from the device itself.
fn find(path: &Path) -> Result<Value, Failure> {
    if let Some(mount) = mounted::serving("info", path)? {
        return from_mount(path, &mount.mountpoint);
    }
    // A device with several zones can be read beside its mounts.
    let of_volume = if nacre::device_and_volume(path).1.is_some() { mounted::of_device(path)? } else { None };
    if let Some(mount) = of_volume.filter(|mount| !mounts::is_dead(&mount.mountpoint)) {
        return from_mount(&mount.mountpoint, &mount.mountpoint);
    }
    match nacre::info(path) {
        Ok(info) => Ok(with_dead_mount(json!(info), path)?),
        Err(error) if error.kind() == Kind::Busy => match mounted::of_device(path)? {
            Some(mount) => from_mount(&mount.mountpoint, &mount.mountpoint),
            None => Err(Failure::on("info", path, &error)),
        },
        Err(error) => Err(Failure::on("info", path, &error)),
    }
}

/// The information about a device without a server, with the dead mount that still has it, if any.
fn with_dead_mount(mut info: Value, path: &Path) -> Result<Value, Failure> {
    if let Some(mount) = mounted::of_device(path)?.filter(|mount| mounts::is_dead(&mount.mountpoint)) {
        info["dead_mount"] = json!(mount.mountpoint.display().to_string());
    }
    Ok(info)
}

fn from_mount(path: &Path, mountpoint: &Path) -> Result<Value, Failure> {
    let mut info = mounted::ask("info", path, Question::Info.attribute())?;
    info["mountpoint"] = json!(mountpoint.display().to_string());
    Ok(info)
}

/// The information as text.
fn describe(info: &Value) -> String {
    let text = |part: &str, field: &str| match &info[part][field] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let bytes = |part: &str, field: &str| info[part][field].as_u64().map_or_else(String::new, size::print);
    let mut fields = vec![
        (
            "device",
            format!("{} ({}, {})", text("device", "name"), text("device", "kind"), bytes("device", "size")),
        ),
        ("persistence", text("device", "promise_explanation")),
        ("instructions", text("device", "instructions")),
    ];
    let mut add = |name: &'static str, value: String| {
        if !value.is_empty() {
            fields.push((name, value));
        }
    };
    add("emulation", text("device", "emulation"));
    if info["device"]["counters"].is_object() {
        let counter = |name: &str| info["device"]["counters"][name].as_u64().unwrap_or(0);
        let (lines, fences) = (counter("lines_flushed"), counter("fences"));
        add("stored", format!("{}, {lines} lines, {fences} fences", size::print(counter("bytes_stored"))));
    }
    add("mounted on", info["mountpoint"].as_str().unwrap_or_default().to_owned());
    if let Some(dir) = info["dead_mount"].as_str() {
        add(
            "dead mount",
            format!(
                "{dir}: its server has died: it was killed, or DRAM was short; unmount it and mount it again"
            ),
        );
    }
    add("options", text("mount", "options"));
    if !matches!(info["mount"]["opens"].as_str(), None | Some("unchecked")) {
        let opens = text("mount", "opens");
        add("opens", format!("{opens}: files are, or were, immutable or append-only"));
    }
    add("process", text("mount", "pid"));
    if let Some(score) = info["mount"]["oom_score_adj"].as_i64() {
        add("short of DRAM", short_of_memory(score));
    }
    add("file system", format!("layout {}, preset {}", text("volume", "layout"), text("volume", "preset")));
    if let Some(is_atomic) = info["volume"]["atomic_write"].as_bool() {
        let writes = match is_atomic {
            true => "all or nothing after a crash",
            false => "in place: after a crash a part of a write may be there",
        };
        add("overwrites", writes.to_owned());
    }
    add("size", bytes("volume", "size"));
    if info["space"].is_object() {
        let indexes = bytes("space", "index_bytes");
        add("available", format!("{} of {}", bytes("space", "available"), bytes("space", "total")));
        add("inodes", format!("{} free of {}", text("space", "inodes_free"), text("space", "inodes")));
        let inodes = format!(
            "{} inodes, of those not in use at most {}",
            text("space", "inodes_in_dram"),
            text("space", "inode_cache")
        );
        add("DRAM", format!("{indexes} for indexes; {inodes}"));
    }
    if info["cache"].is_object() {
        write_buffer(&info["cache"]).into_iter().for_each(|(name, value)| add(name, value));
    }
    info["tiers"].as_array().into_iter().flatten().for_each(|tier| add("tier", describe_tier(tier)));
    if info["mover"].is_object() {
        let status: MoverInfo = serde_json::from_value(info["mover"].clone()).unwrap_or_default();
        if status.next_window.is_some() {
            add("mover", mover::reason(&status));
        }
        add("predictor", mover::predictor(&status));
    }
    info["volumes"].as_array().into_iter().flatten().for_each(|row| add("volume", describe_volume(row)));
    add("label", text("volume", "label"));
    add("uuid", text("volume", "uuid"));
    add("format", format!("version {}", text("volume", "format_version")));
    add("superblock", format!("{} of 2 copies are valid", text("volume", "superblock_copies")));
    add("state", state(info));
    output::fields(&fields)
}

/// The rank of the server among those that the kernel ends when DRAM is short, in words.
fn short_of_memory(oom_score_adj: i64) -> String {
    let is_protected = oom_score_adj <= -999;
    let said = if is_protected { "ends other processes first" } else { "may end the server first" };
    format!("the kernel {said} (oom_score_adj {oom_score_adj})")
}

/// A volume of a device with several, in words.
fn describe_volume(row: &Value) -> String {
    let bytes = |field: &str| row[field].as_u64().map(size::print);
    let used = bytes("used").map_or_else(String::new, |used| format!(", {used} in use"));
    let quota = bytes("quota").map_or_else(String::new, |quota| format!(", a quota of {quota}"));
    let name = row["name"].as_str().unwrap_or_default();
    format!("{name}: zone {}{used}{quota}", row["zone"])
}

/// A tier, in words.
fn describe_tier(tier: &Value) -> String {
    let number = |field: &str| tier[field].as_u64().unwrap_or(0);
    let (size, free) = (number("size"), number("free"));
    let place = match (tier["device"].as_str(), tier["missing"].as_str()) {
        (Some(device), None) => device.to_owned(),
        (_, why) => format!("missing ({})", why.unwrap_or_default()),
    };
    let (used, size) = (size::print(size.saturating_sub(free)), size::print(size));
    let traffic = match (number("read"), number("written")) {
        (0, 0) => String::new(),
        (read, written) => format!(", {} read, {} written", size::print(read), size::print(written)),
    };
    format!("{}: {place}, {used} of {size} in use{traffic}", number("number"))
}

/// The counters of the write buffer, in words.
fn write_buffer(cache: &Value) -> Vec<(&'static str, String)> {
    let number = |field: &str| cache[field].as_u64().unwrap_or(0);
    let bytes = |field: &str| size::print(number(field));
    let (accurate, judged) =
        (number("model_accurate"), number("model_accurate") + number("model_inaccurate"));
    let model = match judged {
        0 => "no block was judged twice".to_owned(),
        _ => format!("{} % of {judged} verdicts were those of the sync before", accurate * 100 / judged),
    };
    let costs = format!(
        "a line costs {} ns in DRAM and {} ns on the device",
        number("line_dram_ns"),
        number("line_pm_ns")
    );
    let mut fields = vec![
        ("write buffer", format!("{} of {} in use", bytes("used"), bytes("size"))),
        ("writes", format!("{} into DRAM, {} past it", bytes("written_lazily"), bytes("written_eagerly"))),
        (
            "written back",
            format!(
                "{}; {} overwritten before and {} removed before, {} fetched",
                bytes("written_back"),
                bytes("overwritten"),
                bytes("discarded"),
                bytes("fetched")
            ),
        ),
        ("benefit model", format!("{costs}; {model}")),
    ];
    if number("failures") > 0 {
        fields.push(("failures", format!("{} of writeback, {} lost", number("failures"), bytes("lost"))));
    }
    fields
}

fn state(info: &Value) -> String {
    let volume = &info["volume"];
    let errors = volume["errors"].as_u64().unwrap_or(0);
    let epoch = volume["mount_epoch"].as_u64().unwrap_or(0);
    let clean = if info["mountpoint"].is_string() {
        "mounted"
    } else if volume["clean"] == true {
        "clean unmount"
    } else if epoch == 0 {
        "new"
    } else {
        "no clean unmount; the next mount recovers it"
    };
    let errors = match errors {
        0 => String::new(),
        errors => {
            format!(", {} found and not repaired: run nacre fsck", output::count(errors, "error", "errors"))
        }
    };
    format!("{clean}, mounted {} for writing{errors}", output::count(epoch, "time", "times"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::describe;

    #[test]
    fn people_see_what_is_known() {
        let info = json!({
            "device": { "name": "/dev/pmem0", "kind": "block device", "size": 1u64 << 30, "promise": "power",
                "promise_explanation": "safe against power loss", "instructions": "avx2", "emulation": null,
                "counters": { "bytes_stored": 4096, "lines_flushed": 64, "fences": 2 } },
            "volume": { "layout": "log", "preset": "nacre", "size": 1u64 << 30, "label": "", "uuid": "u",
                "format_version": 1, "superblock_copies": 2, "clean": false, "errors": 3, "mount_epoch": 7 },
            "space": null,
                "tiers": [{ "number": 1, "device": "/dev/sdb", "missing": null, "size": 8192, "free": 4096,
                    "read": 12288, "written": 4096 },
                { "number": 3, "device": null, "missing": "it is gone", "size": 8192, "free": 0 }],
            "mover": { "phase": "outside_hours", "hours": "22:00-06:00", "next_window": "22:00" },
        });
        let text = describe(&info);
        assert!(text.contains("device:        /dev/pmem0 (block device, 1 GiB)\n"), "{text}");
        assert!(text.contains("4 KiB, 64 lines, 2 fences"), "{text}");
        assert!(text.contains("no clean unmount") && text.contains("3 errors"), "{text}");
        assert!(text.contains("1: /dev/sdb, 4 KiB of 8 KiB in use, 12 KiB read, 4 KiB written\n"), "{text}");
        assert!(text.contains("3: missing (it is gone), 8 KiB of 8 KiB in use"), "{text}");
        assert!(text.contains("outside its hours, 22:00-06:00, until 22:00\n"), "{text}");
        assert!(!text.contains("label") && !text.contains("available"), "{text}");
    }
}
