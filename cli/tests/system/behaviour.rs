//! The behaviour suite of the lab through a mount, with the kernel and its caches between; in process it runs on each
//! layout, and on tmpfs as its control.

use nacre_lab::suite::{Need, all_cases, run};

use crate::harness::{self, BUFFERED, PRESETS, Remounted};

/// What cannot be had through FUSE.
const LACKING: &[(Need, &str)] = &[
    (Need::Unnamed, "the library that speaks the protocol does not know FUSE_TMPFILE"),
    (Need::WholeBlocks, "the kernel copies into cached pages without a lock that readers would take"),
];

/// What cannot be had where the kernel buffers, either.
const LACKING_IN_WRITEBACK: (Need, &str) =
    (Need::SmallDevice, "the kernel takes what there is no space for, and tells of it at the next sync");

/// Cases that the kernel answers in another way.
const EXCLUSIONS: &[(&str, &str)] = &[
    ("relatime", "the kernel answers reads of cached pages itself, so that the server cannot note them"),
    ("immutable", "opens are not sent to the server; it refuses the write instead of the open"),
    ("append-only-open", "opens are not sent to the server; it refuses the write instead of the open"),
    (
        "space-is-counted",
        "space comes back when the kernel's FORGET arrives, which may be a moment after unlink",
    ),
];

/// And those that it answers in another way where it buffers.
const EXCLUSIONS_IN_WRITEBACK: &[(&str, &str)] = &[
    ("beyond-the-largest-file", "the kernel takes the write and tells of it at the next sync"),
    ("append-only", "it does not know of flags, and would write back what they forbid: files are given none"),
    ("punch-frees", UNWRITTEN),
    ("seek-runs", ALL_DATA),
    ("seek-after-punch", ALL_DATA),
    ("seek-after-truncate", ALL_DATA),
    ("allocated-is-counted", UNWRITTEN),
    ("fallocate-remount", UNWRITTEN),
];

const UNWRITTEN: &str = "what waits in the kernel is not allocated for whoever asks the server";
const ALL_DATA: &str = "as the server does not know what waits in the kernel, files are data up to their end";

#[test]
fn the_suite_passes_on_a_mount() {
    if !harness::can_mount("the behaviour suite on a mount") {
        return;
    }
    for preset in PRESETS {
        println!("preset {preset}");
        let ground = Remounted::new(preset, "64M");
        run(&mut ground.target(LACKING), &all_cases(), EXCLUSIONS).assert_clean();
        ground.end();
    }
}

/// With `NACRE_ALL_MOUNTS` on each of them.
#[test]
fn the_suite_passes_on_mounts_that_buffer() {
    if !harness::can_mount("the behaviour suite on mounts that buffer") {
        return;
    }
    let count = if harness::all_mounts() { BUFFERED.len() } else { 3 };
    for kind in &BUFFERED[..count] {
        println!("{kind:?}");
        let ground = Remounted::of(*kind, "64M");
        let (mut lacking, mut exclusions) = (LACKING.to_vec(), EXCLUSIONS.to_vec());
        if kind.options == "writeback" {
            lacking.push(LACKING_IN_WRITEBACK);
            exclusions.extend(EXCLUSIONS_IN_WRITEBACK);
        }
        run(&mut ground.target(&lacking), &all_cases(), &exclusions).assert_clean();
        ground.end();
    }
}
