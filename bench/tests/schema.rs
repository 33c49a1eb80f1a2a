//! Reports that people have kept can be read: `data/report-1.json` was written when the document had version 1,
//! `data/report-2.json` with version 2, and so on, and none is ever changed. A new version gets a file of its own.

use std::path::{Path, PathBuf};

use nacre_bench::report::merge::{Document, Named};
use nacre_bench::report::{file, html, text};
use serde_json::Value;

fn kept(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// Everything in `old` is in `new` with the same value; `new` may have more.
fn holds(old: &Value, new: &Value, at: &str) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            for (name, value) in old {
                holds(value, new.get(name).unwrap_or(&Value::Null), &format!("{at}.{name}"));
            }
        }
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            old.iter().zip(new).for_each(|(old, new)| holds(old, new, at));
        }
        _ => assert_eq!(old, new, "{at}"),
    }
}

#[test]
fn version_1_is_read_whole_and_drawn() {
    let path = kept("report-1.json");
    let report = file::read(&path).unwrap_or_else(|why| panic!("{why}"));
    let old = serde_json::from_str(&std::fs::read_to_string(&path).expect("the file")).expect("JSON");
    holds(&old, &serde_json::to_value(&report).expect("JSON"), "report");
    assert!(report.experiments[0].series[0].points[1].median.is_nan(), "null is no number");
    let document = Document::new(vec![Named { name: "kept".to_owned(), report }]);
    let page = html::page(&document);
    assert!(page.contains("overwrites by size") && page.contains("waits for the preset hinfs"));
    assert!(!page.contains("NaN"));
    assert!(text::document(&document).contains("repeat it: nacre bench run micro.write"));
}

#[test]
fn version_2_is_read_whole_and_drawn_beside_the_papers() {
    let path = kept("report-2.json");
    let report = file::read(&path).unwrap_or_else(|why| panic!("{why}"));
    let old = serde_json::from_str(&std::fs::read_to_string(&path).expect("the file")).expect("JSON");
    holds(&old, &serde_json::to_value(&report).expect("JSON"), "report");
    assert!(report.options.scale.is_nan(), "each experiment has its own");
    let document = Document::new(vec![Named { name: "kept".to_owned(), report }]);
    let page = html::page(&document);
    assert!(page.contains("at least 10.0") && page.contains("2400 MB/s"), "what the papers say");
    assert!(page.contains("<strong>BPFS</strong>: preset:bpfs is not built yet") && !page.contains("NaN"));
    let text = text::document(&document);
    assert!(text.contains("TPFS, table 2 says 2400 MB/s, found 144 MB/s"), "{text}");
    assert!(text.contains("waits: AC-BPFS: preset:acbpfs is not built yet"), "{text}");
}

#[test]
fn version_3_says_all_that_its_run_was_asked_for() {
    let path = kept("report-3.json");
    let report = file::read(&path).unwrap_or_else(|why| panic!("{why}"));
    let old = serde_json::from_str(&std::fs::read_to_string(&path).expect("the file")).expect("JSON");
    holds(&old, &serde_json::to_value(&report).expect("JSON"), "report");
    let options = &report.options;
    assert_eq!(
        (options.cold.as_deref(), options.warm_up, options.flush),
        (Some("never"), Some(2), Some(8 << 20))
    );
    assert_eq!(options.disk.as_ref().map(|disk| disk.file_system.as_str()), Some("ext4"));
    let point = &report.experiments[0].series[0].points[0];
    assert_eq!((&point.sittings[..], report.experiments[0].scale), (&[3][..], Some(1.0)));
    let page = html::page(&Document::new(vec![Named { name: "kept".to_owned(), report }]));
    assert!(page.contains("a round writes and syncs") && page.contains("/tmp (ext4)"), "what was asked for");
}

#[test]
fn a_newer_version_is_refused_in_words() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("newer.json");
    let newer = std::fs::read_to_string(kept("report-1.json")).expect("the file");
    std::fs::write(&path, newer.replacen("\"schema\": 1", "\"schema\": 4", 1)).expect("a file");
    let error = file::read(&path).expect_err("it is newer").to_string();
    assert!(error.contains("newer.json: the report has schema 4, and this nacre reads up to 3"), "{error}");
    let error = file::read(&dir.path().join("none.json")).expect_err("there is none").to_string();
    assert!(error.contains("none.json") && error.contains("No such file"), "{error}");
}
