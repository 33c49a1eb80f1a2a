//! `nacre bench paper`: every figure is listed, what can run runs and stands beside what the paper says, what cannot is
//! named with the reason, and the runs can be had as commands.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::bench::{Run, interrupt};
use crate::harness::{can_mount, has_program, nacre, run, scratch, text};

const LIMIT: Duration = Duration::from_secs(300);
/// Figures that nacre alone can run, without root: six latencies, and eleven sizes of records.
const LATENCIES: &str = "compare-fig8";
const RECORDS: &str = "spfs-fig7a.read";

/// The command in a directory of its own, small and quick.
fn paper(dir: &Path) -> Command {
    let mut command: Command = nacre();
    command.args(["bench", "paper"]).env("TMPDIR", dir);
    command
}

fn small(dir: &Path, names: &[&str]) -> Command {
    scaled(dir, names, "0.01")
}

fn scaled(dir: &Path, names: &[&str], scale: &str) -> Command {
    let mut command = paper(dir);
    command.args(names).args(["--effort", "quick", "--scale", scale]);
    command
}

fn report(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("a report")).expect("a report is JSON")
}

#[test]
fn every_experiment_is_listed_with_what_it_waits_for() {
    let dir = scratch();
    let output = paper(dir.path()).arg("--list").output().expect("nacre runs");
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    let states = ["runs", "in part", "waits"];
    let listed = said.lines().filter(|line| {
        let mut words = line.strip_prefix("  ").unwrap_or_default().splitn(2, ' ');
        let (name, rest) = (words.next().unwrap_or_default(), words.next().unwrap_or_default().trim_start());
        name.contains('-') && states.iter().any(|state| rest.starts_with(state))
    });
    assert_eq!(listed.count(), 101, "{said}");
    assert!(said.contains("Usr1: the traces of FIU cannot be had"), "{said}");
}

#[test]
fn an_unknown_name_is_told_with_those_near_it() {
    let dir = scratch();
    let output = paper(dir.path()).arg("hinfs-fig77").output().expect("nacre runs");
    assert!(!output.status.success());
    assert!(text(&output).contains("hinfs-fig7"), "{}", text(&output));
}

#[test]
fn a_dry_run_prints_commands_that_repeat_the_runs() {
    let dir = scratch();
    let output = small(dir.path(), &[RECORDS, "-n"]).output().expect("nacre runs");
    let said = text(&output);
    let commands: Vec<&str> = said.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(commands.len(), 11, "{said}");
    // With the time of each, of the experiment, and of all.
    assert_eq!(said.matches("(about ").count(), 12, "{said}");
    assert!(said.contains("# 11 points of 1 experiment, about "), "{said}");
    let words: Vec<&str> = commands[0].split(' ').collect();
    assert_eq!(&words[..3], ["nacre", "bench", "run"], "{said}");
    let json = dir.path().join("report.json");
    let mut again: Command = nacre();
    again.args(&words[1..]).arg("--json").arg(&json).env("TMPDIR", dir.path());
    let output = run(&mut again, LIMIT).expect("it ends");
    assert!(output.status.success(), "{}", text(&output));
    let report = report(&json);
    let experiment = &report["experiments"][0];
    assert_eq!(experiment["metric"]["unit"], "MB/s", "the figure's");
    assert_eq!(experiment["series"][0]["target"], "preset:spfs,emulate=dram");
}

#[test]
fn our_values_stand_beside_those_of_the_paper() {
    let dir = scratch();
    let json = dir.path().join("report.json");
    let mut command = small(dir.path(), &[LATENCIES]);
    let output = run(command.arg("--json").arg(&json), LIMIT).expect("it ends");
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    let report = report(&json);
    assert_eq!((&report["schema"], &report["complete"]), (&Value::from(3), &Value::from(true)));
    let experiment = &report["experiments"][0];
    assert_eq!(experiment["paper"], "the comparison, figure 8");
    assert_eq!(experiment["series"][0]["target"], "NOVA (preset:nova)");
    let points = experiment["series"][0]["points"].as_array().expect("points");
    let targets: Vec<&str> = points.iter().filter_map(|point| point["target"].as_str()).collect();
    assert_eq!(targets.len(), 6);
    assert_eq!(targets[5], "preset:nova,emulate=latency=1200");
    let claims = experiment["claims"].as_array().expect("claims");
    let claim = |what: &str| {
        let found =
            claims.iter().find(|claim| claim["what"].as_str().is_some_and(|text| text.contains(what)));
        found.unwrap_or_else(|| panic!("{what}: {claims:#?}"))
    };
    let slowest = claim("NOVA at 1200 over NOVA at 50");
    assert_eq!((&slowest["said"], slowest["found"].is_f64()), (&Value::from(0.55), true));

    let output = nacre().args(["bench", "report"]).arg(&json).output().expect("nacre runs");
    let said = text(&output);
    assert!(said.contains("the comparison, figure 8 says 0.550, found"), "{said}");
    assert!(said.contains("repeat it: nacre bench paper compare-fig8 --effort quick --scale 0.01"), "{said}");
}

#[test]
fn peers_stand_beside_nacre_in_the_process_and_mounted() {
    let test = "peers_stand_beside_nacre_in_the_process_and_mounted";
    if !can_mount(test) || !["losetup", "mkfs.ext4"].iter().all(|program| has_program(test, program)) {
        return;
    }
    let dir = scratch();
    let json = dir.path().join("report.json");
    // Each round of the many targets fills a buffer three times.
    let mut command = scaled(dir.path(), &["hinfs-fig7"], "0.002");
    let output = run(command.arg("--json").arg(&json), LIMIT).expect("it ends");
    assert!(output.status.success(), "{}", text(&output));
    let report = report(&json);
    let experiment = &report["experiments"][0];
    let series = experiment["series"].as_array().expect("series");
    let names: Vec<&str> = series.iter().filter_map(|series| series["target"].as_str()).collect();
    for name in ["NOVA (preset:nova)", "NOVA (mount:nova)", "EXT4+NVMMBD (peer:ext4)"] {
        assert!(names.contains(&name), "{name}: {names:?} {}", experiment["waits"]);
    }
    let claims = experiment["claims"].as_array().expect("claims");
    let found: Vec<&str> = claims
        .iter()
        .filter(|claim| claim["found"].is_f64())
        .filter_map(|claim| claim["what"].as_str())
        .collect();
    let over = "EXT4+NVMMBD over NOVA; webproxy";
    assert!(found.contains(&over) && found.contains(&format!("{over}, mounted").as_str()), "{found:?}");
}

/// Small file systems: each time was measured, and is more than nothing.
#[test]
fn mounts_after_a_clean_end_and_after_a_kill_are_timed() {
    let dir = scratch();
    let json = dir.path().join("report.json");
    let names = ["spfs-mount", "spfs-lookup", "acbpfs-recovery"];
    let mut command = scaled(dir.path(), &names, "0.001");
    let output = run(command.arg("--json").arg(&json), LIMIT).expect("it ends");
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    let report = report(&json);
    assert_eq!(report["complete"], true, "{said}");
    let claims = report["experiments"].as_array().expect("experiments").iter();
    let claims: Vec<&Value> = claims.flat_map(|one| one["claims"].as_array().expect("claims")).collect();
    assert_eq!(claims.len(), 7, "{claims:#?}");
    let can_mount = can_mount("the command nacre mount, timed");
    for claim in claims {
        let what = claim["what"].as_str().expect("words");
        if !what.contains("nacre mount") || can_mount {
            let found = claim["found"].as_f64().unwrap_or_else(|| panic!("{claim:#?}"));
            assert!(found > 0.0, "{claim:#?}");
        }
    }
    // In the process, no mount is made.
    let output = small(dir.path(), &["spfs-mount", "-n", "--in-process"]).output().expect("nacre runs");
    let said = text(&output);
    assert_eq!(said.matches("it was left out (--in-process)").count(), 2, "{said}");
}

/// Ctrl-C goes to all processes of the terminal, and what kill(1) sends to one.
#[test]
fn an_interrupted_run_has_the_experiments_that_were_finished_and_leaves_nothing() {
    for by_terminal in [true, false] {
        let run = Run::new("paper");
        let json = run.report();
        // Figure 5 has peers on loop devices, where they can be had, in the midst of which it ends.
        let mut command = nacre();
        command.args(["bench", "paper", RECORDS, "spfs-fig5", "tpfs-fig7", "--effort", "quick"]);
        command.args(["--scale", "0.01", "--json"]).arg(&json);
        let child = run.spawn(command);
        let process = child.id();
        let end = Instant::now() + LIMIT;
        while !json.exists() {
            assert!(Instant::now() < end, "no report was written\n{}", run.said());
            thread::sleep(Duration::from_millis(5));
        }
        if by_terminal {
            interrupt(&child);
        } else {
            kill_process(Pid::from_raw(process as i32).expect("a process"), Signal::TERM).expect("kill");
        }
        let report = run.finish(child);
        run.assert_gone(process);
        assert_eq!(report["complete"], false);
        let experiments = report["experiments"].as_array().expect("experiments");
        assert!(experiments.len() < 5, "panels of figure 5 and four of figure 7 come behind it");
        assert_eq!(experiments[0]["name"], RECORDS);
        assert_eq!(experiments[0]["waits"].as_array().map(Vec::len), Some(0));
        for series in experiments[0]["series"].as_array().expect("series") {
            assert_eq!(series["points"].as_array().map(Vec::len), Some(11), "{series}");
        }
    }
}
