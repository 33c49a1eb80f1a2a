//! `nacre bench run` on nacre with a tier: it is the device that a peer on the same disk has, blocks move to it, and nothing
//! of it is left, also after Ctrl-C and after SIGKILL.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::bench::{LIMIT, Run, can_run, interrupt, list};
use crate::harness::{nacre, text};

/// Memory for half of the data, so that the other half has to be on the tier.
const WORK: &str = "micro.write,file=64m";
const HALF: u64 = 32 << 20;

/// Bytes that were written to loop devices over disks of tiers, by the name of the target's directory.
fn written_to_tiers(run: &Run) -> BTreeMap<String, u64> {
    let place = run.temporary();
    let found = list(Path::new("/sys/block")).into_iter().filter_map(|device| {
        let file = fs::read_to_string(device.join("loop/backing_file")).ok()?;
        let rest = Path::new(file.trim_end()).strip_prefix(&place).ok()?;
        let name = rest.components().nth(1)?.as_os_str().to_str()?.strip_suffix("-tier-disk")?.to_owned();
        // Sectors of 512 bytes, as ever.
        let stat = fs::read_to_string(device.join("stat")).ok()?;
        let sectors: u64 = stat.split_whitespace().nth(6)?.parse().ok()?;
        Some((name, sectors * 512))
    });
    found.collect()
}

/// Waits until so many targets have tiers to which something was written.
fn wait_for_tiers(run: &Run, count: usize) {
    let end = Instant::now() + LIMIT;
    while written_to_tiers(run).values().filter(|bytes| **bytes > 1 << 20).count() < count {
        assert!(
            Instant::now() < end,
            "nothing reached the tiers: {:?}\n{}",
            written_to_tiers(run),
            run.said()
        );
        thread::sleep(Duration::from_millis(10));
    }
}

/// The most that reached each tier while the run was there, and its report.
fn watch(run: &Run, mut child: Child) -> (BTreeMap<String, u64>, Value) {
    let mut most = BTreeMap::new();
    while child.try_wait().expect("it can be waited for").is_none() {
        for (name, bytes) in written_to_tiers(run) {
            let seen = most.entry(name).or_insert(0);
            *seen = bytes.max(*seen);
        }
        thread::sleep(Duration::from_millis(5));
    }
    (most, run.finish(child))
}

#[test]
fn a_tier_is_the_disk_that_a_peer_has_and_takes_what_memory_has_no_room_for() {
    if !can_run("a_tier_is_the_disk_that_a_peer_has_and_takes_what_memory_has_no_room_for") {
        return;
    }
    let run = Run::new("tiers");
    let targets = [
        "preset:nova,tier=nvme,pm=32m,cache=8m",
        "mount:nova,tier=nvme,pm=32m,cache=8m",
        "preset:nova,tier=file,pm=32m",
        "peer:ext4-disk,disk=nvme",
    ];
    let child = run.start(WORK, &targets, &["--effort", "quick"]);
    let process = child.id();
    let (most, report) = watch(&run, child);
    run.assert_gone(process);
    assert_eq!(report["complete"], true, "{report}");
    let series = report["experiments"][0]["series"].as_array().expect("series");
    let about = |kind: &str, disk: &str| {
        let of = |target: &str| target.starts_with(kind) && target.contains(disk);
        let found = series.iter().find(|series| series["target"].as_str().is_some_and(of));
        let found = found.unwrap_or_else(|| panic!("{kind}: {}\n{}", report["absent"], run.said()));
        found["about"].as_str().expect("text").to_owned()
    };
    // Of one kind, and of one speed.
    let disk = "a loop device over an emulated disk: nvme";
    for kind in ["preset:", "mount:", "peer:"] {
        assert!(about(kind, "nvme").contains(disk), "{}", about(kind, "nvme"));
    }
    assert!(about("mount:", "nvme").contains("8 MiB of DRAM for it"), "{}", about("mount:", "nvme"));
    assert!(about("preset:", "file").contains("64 MiB of DRAM for it, on a loop device over a file"));
    let reached: Vec<u64> = ["preset", "mount"]
        .iter()
        .map(|kind| most.iter().find(|(name, _)| name.starts_with(kind)).map_or(0, |(_, bytes)| *bytes))
        .collect();
    assert!(reached.iter().all(|bytes| *bytes >= HALF), "{most:?}");
}

/// What a target did in the only experiment of a report.
fn counter(run: &Run, report: &Value, target: &str, name: &str) -> f64 {
    let series = report["experiments"][0]["series"].as_array().expect("series");
    let found =
        series.iter().find(|series| series["target"].as_str().is_some_and(|is| is.starts_with(target)));
    let found = found.unwrap_or_else(|| panic!("{target}: {}\n{}", report["absent"], run.said()));
    let counters = &found["points"][0]["counters"];
    counters[name].as_f64().unwrap_or_else(|| panic!("{target}: {name}: {counters}"))
}

#[test]
fn files_move_in_the_process_and_through_a_mount_and_a_peer_writes_as_much() {
    if !can_run("files_move_in_the_process_and_through_a_mount_and_a_peer_writes_as_much") {
        return;
    }
    let run = Run::new("tiers-migrate");
    let nacre = ["preset:nova,pm=64m,tier=nvme", "mount:nova,pm=64m,tier=nvme"];
    let targets = [nacre[0], nacre[1], "peer:ext4-disk,disk=nvme"];
    let child = run.start("tier.migrate,files=2,size=4m", &targets, &["--effort", "quick"]);
    let process = child.id();
    let report = run.finish(child);
    run.assert_gone(process);
    assert_eq!(report["experiments"][0]["metric"]["unit"], "MB/s");
    for target in targets {
        assert_eq!(counter(&run, &report, target, "user.written"), f64::from(8 << 20), "{target}");
        // All that is said to be there was written to the disk, by each of two files.
        let reached = counter(&run, &report, target, "disk.bytes");
        assert!(reached >= f64::from(4 << 20), "{target}: {reached}");
    }

    let run = Run::new("tiers-beside");
    let child = run.start("tier.beside,files=2,size=4m,file=2m", &nacre, &["--effort", "quick"]);
    let process = child.id();
    let report = run.finish(child);
    run.assert_gone(process);
    assert_eq!(report["experiments"][0]["metric"]["unit"], "ns");
    for target in nacre {
        assert!(counter(&run, &report, target, "tier.moved") > 0.0, "{target}");
    }
}

#[test]
fn an_interrupted_run_leaves_nothing_of_tiers() {
    if !can_run("an_interrupted_run_leaves_nothing_of_tiers") {
        return;
    }
    let run = Run::new("tiers-interrupted");
    let targets = ["preset:nova,tier=hdd,pm=32m", "mount:nova,tier=hdd,pm=32m"];
    let child = run.start(WORK, &targets, &["--effort", "high"]);
    let process = child.id();
    wait_for_tiers(&run, 2);
    interrupt(&child);
    let report = run.finish(child);
    run.assert_gone(process);
    assert_eq!(report["complete"], false);
}

#[test]
fn the_next_run_takes_away_the_tiers_that_a_killed_one_left() {
    if !can_run("the_next_run_takes_away_the_tiers_that_a_killed_one_left") {
        return;
    }
    let run = Run::new("tiers-killed");
    let targets =
        ["preset:nova,tier=hdd,pm=32m", "mount:nova,tier=hdd,pm=32m", "mount:nova,tier=file,pm=32m"];
    let mut child = run.start(WORK, &targets, &["--effort", "high"]);
    let process = child.id();
    wait_for_tiers(&run, 2);
    child.kill().expect("kill");
    child.wait().expect("wait");
    assert!(!run.traces(process).is_empty());
    let child = run.start("micro.write,file=4m", &["peer:tmpfs"], &["--effort", "quick"]);
    let next = child.id();
    assert_eq!(run.finish(child)["complete"], true);
    assert!(run.said().contains("a run that was killed had left it"), "{}", run.said());
    run.assert_gone(process);
    run.assert_gone(next);
}

#[test]
fn a_tier_that_cannot_be_had_is_refused() {
    for (target, why) in [
        ("preset:pmfs,tier=nvme,pm=32m", "the layout inplace has no tiers"),
        ("mount:nova,tier=nvme", "give pm="),
        ("preset:nova,tier=tape,pm=32m", "optane-ssd"),
    ] {
        let output = nacre().args(["bench", "run", WORK, "-t", target]).output().expect("nacre runs");
        assert!(!output.status.success() && text(&output).contains(why), "{target}: {}", text(&output));
    }
}
