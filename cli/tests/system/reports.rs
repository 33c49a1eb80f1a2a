//! `nacre bench report` and `nacre bench compare` as scripts call them. What they draw and compute is tested in the bench.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{self, nacre};

const LIMIT: Duration = Duration::from_secs(60);

fn bench(arguments: &[&str], paths: &[&Path]) -> Output {
    let mut command: Command = nacre();
    harness::run(command.arg("bench").args(arguments).args(paths), LIMIT).expect("the command ends")
}

/// A report of one point with eight rounds, each `factor` times the one of the first report.
fn report(path: PathBuf, factor: f64) -> PathBuf {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/tests/data/report-1.json");
    let text = fs::read_to_string(kept).expect("a report");
    let mut report: Value = serde_json::from_str(&text).expect("JSON");
    let samples: Vec<f64> = (0..8).map(|round| factor * (3000.0 + f64::from(round))).collect();
    report["experiments"][0]["series"][0]["points"][0]["samples"] = json!(samples);
    fs::write(&path, report.to_string()).expect("a report");
    path
}

#[test]
fn a_report_becomes_text_and_a_page() {
    let dir = harness::scratch();
    let a = report(dir.path().join("a.json"), 1.0);
    let b = report(dir.path().join("b.json"), 0.9);
    let output = bench(&["report"], &[&a]);
    let text = harness::text(&output);
    assert!(output.status.success() && text.contains("overwrites by size"), "{text}");
    assert!(text.contains("interrupted") && text.contains("absent: peer:nilfs2"), "{text}");
    let page = dir.path().join("page.html");
    let output = bench(&["report", "--html"], &[&page, &a, &b]);
    assert!(output.status.success() && output.stdout.is_empty(), "{}", harness::text(&output));
    let page = fs::read_to_string(page).expect("the page");
    assert!(page.contains("preset:nova · a") && page.contains("preset:nova · b"), "both are in the page");
    let output = bench(&["report", "--html", "-"], &[&a]);
    assert!(output.stdout.starts_with(b"<!doctype html>"), "{}", harness::text(&output));
    fs::write(dir.path().join("no.json"), "[]").expect("a file");
    let output = bench(&["report"], &[&dir.path().join("no.json")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(harness::text(&output).contains("no.json: no report"), "{}", harness::text(&output));
}

#[test]
fn compare_ends_with_1_when_something_got_worse() {
    let dir = harness::scratch();
    let a = report(dir.path().join("a.json"), 1.0);
    let b = report(dir.path().join("b.json"), 0.9);
    for (arguments, before, after, code) in [
        (&["compare"][..], &a, &a, 0),
        (&["compare"], &a, &b, 1),
        (&["compare"], &b, &a, 0),
        (&["compare", "--threshold", "15"], &a, &b, 0),
        (&["compare", "--threshold", "x"], &a, &b, 2),
    ] {
        let output = bench(arguments, &[before, after]);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", harness::text(&output));
        assert_eq!(output.stderr.is_empty(), code == 0, "{}", harness::text(&output));
    }
    let output = bench(&["compare", "--json"], &[&a, &b]);
    assert_eq!(output.status.code(), Some(1));
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON on standard output");
    assert_eq!((&found["schema"], &found["changes"][0]["verdict"]), (&json!(2), &json!("worse")));
    // The other point was not measured in either report.
    assert_eq!(found["changes"][1]["verdict"], "unsure");
}
