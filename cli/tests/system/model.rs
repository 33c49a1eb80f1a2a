//! What `nacre info` tells of the benefit model of a mount's write buffer: its verdicts are counted, and how many of them
//! were those of the sync before (paper 000, figure 4).

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{self, Ground, nacre};
use crate::lazy::LAZY;

const LIMIT: Duration = Duration::from_secs(30);
const BLOCKS: u64 = 8;
const BLOCK: usize = 4096;
/// Syncs with one habit of writing between them.
const SYNCS: u64 = 4;

/// What it says to programs about the buffer, and what to people.
fn info(ground: &Ground) -> (Value, String) {
    let json = harness::succeed(nacre().args(["info", "--json"]).arg(ground.dir()), LIMIT);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    (json["cache"].clone(), harness::succeed(nacre().arg("info").arg(ground.dir()), LIMIT))
}

#[test]
fn info_tells_how_often_a_verdict_was_that_of_the_sync_before() {
    if !harness::can_mount("what info tells of the benefit model") {
        return;
    }
    for preset in ["nacre", "hinfs", "hinfs-wb", "hinfs-nclfw"] {
        follow(preset);
    }
}

/// Blocks that are written once between two syncs cost more in DRAM than past it; blocks that are written six times, less.
/// Each sync judges them as the one before did, but for the first with the other habit.
fn follow(preset: &str) {
    let mut ground = Ground::preset(preset, "64M", Some(LAZY));
    let path = ground.dir().join("file");
    let file = OpenOptions::new().write(true).create_new(true).open(path).expect("create");
    let work = |writes: u64| {
        for turn in 0..SYNCS {
            for write in 0..writes {
                let content = vec![(turn * writes + write) as u8; BLOCKS as usize * BLOCK];
                file.write_all_at(&content, 0).expect("write");
            }
            file.sync_data().expect("fdatasync");
        }
    };
    let number =
        |cache: &Value, field: &str| cache[field].as_u64().unwrap_or_else(|| panic!("{field}: {cache}"));
    let verdicts = |cache: &Value| (number(cache, "model_accurate"), number(cache, "model_inaccurate"));

    let (cache, text) = info(&ground);
    assert_eq!(verdicts(&cache), (0, 0), "{preset}");
    assert!(text.contains("no block was judged twice"), "{preset}: {text}");
    work(1);
    let (cache, _) = info(&ground);
    let (accurate, inaccurate) = verdicts(&cache);
    assert!(accurate > 0 && inaccurate < accurate, "{preset}: {cache}");
    assert!(
        accurate + inaccurate <= BLOCKS * (SYNCS - 1),
        "{preset}: the first verdict has none before: {cache}"
    );
    assert!(number(&cache, "written_lazily") > 0, "{preset}: a new block is lazy: {cache}");
    assert_eq!(
        number(&cache, "written_eagerly") > 0,
        preset != "hinfs-wb",
        "{preset}: who has a model uses it: {cache}"
    );

    work(6);
    let (cache, text) = info(&ground);
    let (now_accurate, now_inaccurate) = verdicts(&cache);
    assert!(now_accurate > accurate, "{preset}: {cache}");
    assert!(now_inaccurate > inaccurate, "{preset}: the habit has changed: {cache}");
    let judged = now_accurate + now_inaccurate;
    assert!(judged <= BLOCKS * (2 * SYNCS - 1), "{preset}: {cache}");
    let percent = now_accurate * 100 / judged;
    assert!((1..100).contains(&percent), "{preset}: {cache}");
    let said = format!("{percent} % of {judged} verdicts were those of the sync before");
    assert!(text.contains("benefit model:") && text.contains(&said), "{preset}: {said:?} is not in {text}");
    drop(file);
    ground.unmount();
    ground.fsck();
}

#[test]
fn a_mount_without_our_buffer_has_no_model_to_tell_of() {
    if !harness::can_mount("info of a mount without a write buffer") {
        return;
    }
    let ground = Ground::preset("hinfs", "64M", None);
    let (cache, text) = info(&ground);
    assert!(cache.is_null(), "{cache}");
    assert!(!text.contains("benefit model"), "{text}");
}
