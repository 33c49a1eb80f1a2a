//! `nacre bench run program.*`: real programs on a mount and on a peer, refused where there is no directory, absent where
//! they are not installed, and gone with the run that started them. Recorded ones (`trace.*`) run everywhere.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::bench::{LIMIT, Run};
use crate::harness::{can_mount, left_out};

/// Each with what its times are of.
const PROGRAMS: [(&str, &str); 8] = [
    ("program.leveldb,bench=fillseq,keys=3000", "write"),
    ("program.pgbench,transactions=30,threads=2", "other"),
    ("program.rocksdb,bench=readrandom,keys=3000,threads=2", "read"),
    ("program.sqlite,bench=insert,keys=60", "write"),
    ("trace.git", "rename"),
    ("trace.mail", "fsync"),
    ("trace.postgresql", "read"),
    ("trace.sqlite", "write"),
];

fn absent(report: &Value, what: &str) -> Option<String> {
    let all = report["absent"].as_array().expect("absent");
    all.iter().find(|absent| absent["what"] == what).map(|absent| absent["why"].to_string())
}

#[test]
fn programs_run_where_they_find_a_directory() {
    let test = "programs_run_where_they_find_a_directory";
    if !can_mount(test) {
        return;
    }
    for (workload, operation) in PROGRAMS {
        let run = Run::new("programs");
        let targets = ["mount:nova", "preset:nova", "peer:tmpfs"];
        let child = run.start(workload, &targets, &["--effort", "quick"]);
        let process = child.id();
        let report = run.finish_any(child);
        run.assert_gone(process);
        if let Some(why) = absent(&report, workload) {
            assert!(why.contains("package "), "{workload}: {why}");
            left_out(test, &format!("{workload}: {why}"));
            continue;
        }
        let series = report["experiments"][0]["series"].as_array().expect("series");
        let found: Vec<_> = series.iter().map(|series| series["target"].as_str().expect("a name")).collect();
        if workload.starts_with("program.") {
            assert_eq!(found, ["mount:nova", "peer:tmpfs"], "{workload}\n{}", run.said());
            let why = absent(&report, "preset:nova").expect("it is refused");
            assert!(why.contains("use mount:NAME"), "{why}");
        } else {
            assert_eq!(found, targets, "{workload}\n{}", run.said());
        }
        for series in series {
            let point = &series["points"][0];
            assert!(point["median"].as_f64().expect("a number") > 0.0, "{workload}: {point}");
            let kinds = point["latency"].as_array().expect("times");
            assert!(kinds.iter().any(|kind| kind["operation"] == operation), "{workload}: {kinds:?}");
            for counter in ["trace.failed", "trace.succeeded"] {
                assert_eq!(point["counters"][counter].as_f64().unwrap_or(0.0), 0.0, "{workload}: {counter}");
            }
        }
    }
}

/// Whether a server and its client run, both of this run.
fn is_at_work(run: &Run) -> bool {
    let processes = run.processes();
    processes.iter().any(|line| line.contains("pgbench -h @"))
        && processes.iter().any(|line| line.contains("postgres -D"))
}

#[test]
fn programs_end_with_the_run_also_when_it_is_killed() {
    let test = "programs_end_with_the_run_also_when_it_is_killed";
    if !can_mount(test) {
        return;
    }
    for signal in [Signal::INT, Signal::KILL] {
        let run = Run::new("programs-killed");
        let workload = "program.pgbench,transactions=100000000";
        let child = run.start(workload, &["mount:nova", "peer:tmpfs"], &["--effort", "high"]);
        let process = child.id();
        let end = Instant::now() + LIMIT;
        while !is_at_work(&run) {
            if run.said().contains("package ") {
                left_out(test, "PostgreSQL is not installed");
                run.finish_any(child);
                return;
            }
            assert!(Instant::now() < end, "it does not begin\n{}", run.said());
            thread::sleep(Duration::from_millis(20));
        }
        kill_process(Pid::from_raw(process as i32).expect("a process"), signal).expect("kill");
        if signal == Signal::INT {
            let report = run.finish(child);
            assert_eq!(report["complete"], false);
            assert_eq!(report["absent"].as_array().map(Vec::len), Some(0), "{}", report["absent"]);
        } else {
            run.finish_any(child);
            let gone = Instant::now() + Duration::from_secs(20);
            // The server of the mount ends when the next run has unmounted it.
            while run.processes().iter().any(|line| line.contains("postgres") || line.contains("pgbench")) {
                assert!(Instant::now() < gone, "left: {:#?}", run.processes());
                thread::sleep(Duration::from_millis(20));
            }
            let child = run.start("micro.write,file=4m", &["peer:tmpfs"], &["--effort", "quick"]);
            run.finish(child);
        }
        run.assert_gone(process);
    }
}
