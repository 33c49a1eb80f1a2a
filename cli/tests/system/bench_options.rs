//! Options of `nacre bench run`: each has its effect, and the report shows it. Targets in the process where that is enough,
//! so that all of them together take some seconds.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::bench::{Run, can_run, list};
use crate::harness::{self, has_program, left_out};

/// Memory so slow that a round of 20 ms writes some hundred kilobytes: what an option adds to that is seen.
const SLOW: &str = "preset:nova,emulate=latency=2000";
const WORK: &str = "micro.write,file=4m,io=4k";

/// The report of a short run with these options, and the process that it had.
fn measured(run: &Run, workload: &str, targets: &[&str], options: &[&str]) -> (Value, u32) {
    let child = run.start(workload, targets, &[&["--effort", "quick"], options].concat());
    let process = child.id();
    (run.finish(child), process)
}

fn point(report: &Value) -> &Value {
    &report["experiments"][0]["series"][0]["points"][0]
}

#[test]
fn a_sweep_has_a_point_for_each_value_and_its_metric_is_what_was_asked_for() {
    let run = Run::new("sweep");
    let (report, process) = measured(&run, "micro.write,file=4m", &[SLOW], &["--sweep", "io=1k,4k"]);
    run.assert_gone(process);
    let swept = &report["experiments"][0];
    assert_eq!((&swept["axis"]["name"], &swept["axis"]["unit"]), (&"io".into(), &"B".into()));
    let points = swept["series"][0]["points"].as_array().expect("points");
    let at: Vec<_> = points.iter().filter_map(|point| point["x"].as_f64()).collect();
    assert_eq!(at, [1024.0, 4096.0]);
    assert_eq!(points[1]["workload"], "micro.write,file=4m,io=4k");

    for (metric, unit, better) in [
        ("MB/s", "MB/s", "more"),
        ("latency:write", "ns", "less"),
        ("counter:pm.bytes", "B/op", "less"),
        ("counter:user.written", "B", "more"),
    ] {
        let (report, _) = measured(&run, WORK, &[SLOW], &["--metric", metric]);
        let found = &report["experiments"][0]["metric"];
        assert_eq!((&found["unit"], &found["better"]), (&unit.into(), &better.into()), "{metric}");
        let value = point(&report)["median"].as_f64().expect("a value");
        match metric {
            "latency:write" => assert!(value > 64.0 * 2000.0, "each of its lines takes that long: {value}"),
            "counter:pm.bytes" => assert!((4096.0..8192.0).contains(&value), "{value}"),
            _ => assert!(value > 0.0, "{metric}: {value}"),
        }
    }
}

/// The machine would have killed it.
#[test]
fn what_there_is_no_room_for_is_refused_before_it_begins() {
    let run = Run::new("room");
    let disk = harness::scratch();
    let on_disk = format!("dir:{}", disk.path().display());
    for (target, words) in [("preset:nova", "of memory together"), (&on_disk, "together, and")] {
        let child = run.start("micro.write,file=4096g", &[target], &["--effort", "quick"]);
        let process = child.id();
        let said = run.refused(child);
        for words in [words, "micro.write,file=4096g: its targets take up to", "are free", "--scale"] {
            assert!(said.contains(words), "{said}");
        }
        assert!(!run.report().exists(), "nothing was measured");
        run.assert_gone(process);
    }
}

#[test]
fn a_flush_makes_rounds_longer_and_who_warms_up_or_settles_has_more_of_them() {
    let run = Run::new("flush");
    let written = |report: &Value| point(report)["counters"]["user.written"].as_f64().expect("a counter");
    let (plain, _) = measured(&run, WORK, &[SLOW], &[]);
    let (flushed, _) = measured(&run, WORK, &[SLOW], &["--flush", "4m"]);
    let four = f64::from(4 << 20);
    assert!(written(&plain) < four && written(&flushed) >= four, "{plain} {flushed}");
    assert_eq!((&plain["options"]["flush"], &flushed["options"]["flush"]), (&Value::Null, &(4 << 20).into()));

    let (warm, _) = measured(&run, WORK, &[SLOW], &["--warm-up", "50"]);
    assert_eq!((&plain["options"]["warm_up"], &warm["options"]["warm_up"]), (&0.into(), &50.into()));
    // Rounds that do not count are in no sample; they take their 20 ms each.
    assert_eq!(point(&warm)["samples"].as_array().map(Vec::len), Some(3));
    assert_eq!(point(&warm)["sittings"], serde_json::json!([3]));
    assert!(warm["seconds"].as_f64().expect("a time") >= 1.0, "{warm}");

    let (settled, _) = measured(&run, WORK, &[SLOW], &["--settle", "1"]);
    assert_eq!((&plain["options"]["settle"], &settled["options"]["settle"]), (&0.into(), &1.into()));
    assert_eq!(point(&settled)["sittings"], serde_json::json!([3]));
    assert!(settled["seconds"].as_f64().expect("a time") >= 1.0, "{settled}");
}

#[test]
fn what_is_kept_is_there_after_the_next_run_too() {
    let run = Run::new("keep");
    let (_, process) = measured(&run, WORK, &["preset:nova"], &["--keep"]);
    let kept = run.temporary().join(format!("nacre-bench-{process}"));
    assert!(kept.is_dir() && run.said().contains("kept: "), "{}", run.said());
    let (_, next) = measured(&run, WORK, &["preset:nova"], &[]);
    assert!(kept.is_dir(), "the next run takes away only what nobody wanted: {}", run.said());
    assert!(!run.temporary().join(format!("nacre-bench-{next}")).exists());
    // Where it could mount, what it kept is a mount.
    for place in list(&kept) {
        let _ = Command::new("umount").arg(place).output();
    }
    for place in list(Path::new("/dev/shm")) {
        if place.to_string_lossy().contains(&format!("nacre-bench-{process}-")) {
            let _ = fs::remove_dir_all(place);
        }
    }
    fs::remove_dir_all(kept).expect("it can be removed");
    run.assert_gone(process);
}

#[test]
fn cold_rounds_read_from_the_disk_and_dram_holds_one_target() {
    let test = "cold_rounds_read_from_the_disk_and_dram_holds_one_target";
    if !can_run(test) || !has_program(test, "mkfs.ext4") {
        return;
    }
    let run = Run::new("cold");
    // A head that moves takes milliseconds, memory less than one of them.
    let disk = "peer:ext4-disk,disk=hdd";
    let held = format!("{disk},dram=64m");
    let work = "micro.read,file=8m,io=4k";
    let median = |report: &Value| {
        let read = &point(report)["latency"][0];
        assert_eq!(read["operation"], "read");
        read["quantiles"][0][1].as_f64().expect("a median")
    };
    let (warm, _) = measured(&run, work, &[disk], &[]);
    let (cold, process) = measured(&run, work, &[disk], &["--cold", "rounds"]);
    run.assert_gone(process);
    assert_eq!((&warm["options"]["cold"], &cold["options"]["cold"]), (&"never".into(), &"rounds".into()));
    assert!(median(&warm) < 1e6 && median(&cold) > 1e6, "{} {}", median(&warm), median(&cold));

    let child = run.start(work, &[&held, "peer:tmpfs"], &["--effort", "quick"]);
    let report = run.finish_any(child);
    if run.said().contains("memory cgroup") {
        left_out(test, "no memory cgroup can be made");
        return;
    }
    let series = report["experiments"][0]["series"].as_array().expect("series");
    let about = |at: usize| series[at]["about"].as_str().expect("text");
    assert!(about(0).contains("held to 64 MiB") && !about(1).contains("held to"), "{series:?}");
    let peak = series[0]["points"][0]["counters"]["memory.peak"].as_f64().expect("a counter");
    assert!(peak > 0.0 && peak <= f64::from(64 << 20), "{peak}");
}
