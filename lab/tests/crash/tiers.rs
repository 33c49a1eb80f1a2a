//! Memory and a disk, crashed together at every fence and every flush of the disk, while blocks move between them: a slice
//! of what is explored for longer with `NACRE_CRASH_IMAGES`.
//!
//! `NACRE_CRASH_SEED` is what samples and the order of workloads depend on (1 by default).

use nacre_lab::crash::{
    Flaw, LogWithDisk, MEMORY, Report, Rig, Settings, ShadowInPlaceWithDisk, ShadowWithDisk, Subject,
    Workload, anticached, between_tiers, explore, tiered,
};
use nacre_lab::environment::number;
use nacre_media::crash::Sampling;
use nacre_media::sim::Defect;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use crate::each::mistake;

fn settings(flaw: Flaw) -> Settings {
    Settings {
        sampling: Sampling {
            exhaustive_up_to: 64,
            samples: 48,
            seed: number("NACRE_CRASH_SEED").unwrap_or(1),
        },
        recovery_every: 64,
        empty_every: 4,
        max_violations: 3,
        flaw,
        ..Settings::default()
    }
}

#[test]
fn blocks_that_move_survive() {
    survives(&LogWithDisk::default(), |_| true, number("NACRE_CRASH_IMAGES").unwrap_or(6_000));
}

#[test]
fn writes_that_go_straight_to_the_disk_survive() {
    survives(&LogWithDisk::ON_DISK, |_| true, number("NACRE_CRASH_IMAGES").unwrap_or(4_000));
}

#[test]
fn logs_that_are_compacted_survive() {
    let images = number("NACRE_CRASH_IMAGES").unwrap_or(4_000);
    survives(&LogWithDisk::default(), |name| name.contains("compact"), images);
}

/// Images of logs are written, read and taken back.
#[test]
fn logs_that_move_survive() {
    let images = number("NACRE_CRASH_IMAGES").unwrap_or(6_000);
    survives(&LogWithDisk::default(), |name| name.contains("move-log") || name.contains("logs"), images);
}

/// Blocks go from one disk to another: a tier is drained while there is another one, and files are moved between them.
#[test]
fn blocks_that_move_between_disks_survive() {
    survives(&LogWithDisk::with_two(), |_| true, number("NACRE_CRASH_IMAGES").unwrap_or(6_000));
}

/// The same over the shadow layout, which has no logs: evictions, promotions, drains, writes straight to the disk.
#[test]
fn blocks_of_the_shadow_layout_that_move_survive() {
    let images = number("NACRE_CRASH_IMAGES").unwrap_or(4_000);
    let has_no_log = |name: &str| !name.contains("log") && !name.contains("compact");
    survives(&ShadowWithDisk::default(), has_no_log, images);
    survives(&ShadowWithDisk::ON_DISK, has_no_log, images / 2);
    survives(&ShadowWithDisk::with_two(), has_no_log, images / 2);
}

/// Ticks of anti-caching evict blocks, and reads bring them up again, while PM and the disk are crashed together.
#[test]
fn blocks_that_anticaching_moves_survive() {
    let images = number("NACRE_CRASH_IMAGES").unwrap_or(4_000);
    survives(&ShadowWithDisk::anticached(), |_| true, images / 2);
    survives(&ShadowInPlaceWithDisk::anticached(), |_| true, images);
}

/// Explores workloads that are meant by their name, until there were so many images.
fn survives(subject: &impl Subject, is_meant: impl Fn(&str) -> bool, limit: u64) {
    let mut workloads = subject.workloads();
    workloads.retain(|workload| is_meant(&workload.name));
    let all = workloads.len();
    workloads.shuffle(&mut SmallRng::seed_from_u64(number("NACRE_CRASH_SEED").unwrap_or(1)));
    let mut rig = Rig::new(subject, MEMORY);
    let mut total: Option<Report> = None;
    let mut explored = 0;
    for workload in workloads {
        let report = explore(&mut rig, &workload, &settings(Flaw::None)).expect("it can be run");
        assert!(report.violations.is_empty(), "{}: {report}", workload.name);
        explored += 1;
        match &mut total {
            Some(total) => total.add(report),
            None => total = Some(report),
        }
        if total.as_ref().is_some_and(|total| total.images >= limit) {
            break;
        }
    }
    println!("{explored} of {all} workloads: {}", total.expect("there are workloads"));
}

/// The explorer sees what happens when a disk, or the memory, is not waited for.
#[test]
fn flaws_are_found() {
    let workloads = [tiered(), between_tiers(), anticached()].concat();
    let (moves, two) = (LogWithDisk::default(), LogWithDisk::with_two());
    for (subject, name) in [
        (ShadowWithDisk::default(), "above: demote d/a 0 64"),
        (ShadowWithDisk::default(), "above: demote-both d/a d/b"),
        (ShadowWithDisk::default(), "below: promote d/a 0 64"),
        (ShadowWithDisk::anticached(), "above: evict 2"),
        (ShadowWithDisk::anticached(), "below: bring-up d/a"),
        (ShadowWithDisk::ON_DISK, "below: write d/a 0 4096"),
        (ShadowWithDisk::with_two(), "between: remove-tier"),
    ] {
        flaws_are_found_in(&subject, &workloads, name);
    }
    for (subject, name) in [
        (moves, "above: demote d/a 0 64"),
        (moves, "above: demote-both d/a d/b"),
        (moves, "below: promote d/a 0 64"),
        (moves, "above: compact d/worn"),
        (moves, "below: move-log d/large"),
        (moves, "logs below: write d/worn 0 4096"),
        (LogWithDisk::ON_DISK, "below: write d/a 0 4096"),
        (two, "between: demote-last d/large"),
        (two, "between: remove-tier"),
        (two, "between: add-tier; remove-tier"),
    ] {
        flaws_are_found_in(&subject, &workloads, name);
    }
}

fn flaws_are_found_in(subject: &impl Subject, workloads: &[Workload], name: &str) {
    let mut rig = Rig::new(subject, MEMORY);
    let workload = workloads.iter().find(|workload| workload.name == name).expect("a workload");
    let report = explore(&mut rig, workload, &settings(Flaw::Memory(Defect::NoFences)));
    assert!(report.map_or(true, |report| !report.violations.is_empty()), "{name} without any fence");
    // Each fence and each flush of the disk alone.
    let sound = explore(&mut rig, workload, &settings(Flaw::None)).expect("it can be run");
    let fences = sound.points - 1;
    let found = (0..fences).filter(|&fence| {
        let flaw = Flaw::Memory(Defect::SkipFence(fence));
        explore(&mut rig, workload, &settings(flaw)).map_or(true, |report| !report.violations.is_empty())
    });
    let found: Vec<u64> = found.collect();
    println!("{name}: {fences} fences, of which {found:?} are missed");
    assert!(!found.is_empty(), "{name}: no fence is missed");
}

/// Mistakes of the shadow layout, and between it and the disk, while blocks move.
#[test]
fn mistakes_of_the_shadow_layout_with_a_disk_are_found() {
    let early = "blocks that come up from a disk are free there before the commit";
    let without_slot = "blocks move by a word, without a slot";
    let before_flush = "a block on a disk is named before the disk was flushed";
    for (subject, name, words) in [
        (ShadowWithDisk::default(), "below: promote d/a 0 64", early),
        (ShadowWithDisk::default(), "overwritten: demote d/a 1 1", without_slot),
        (ShadowWithDisk::default(), "above: write d/a 4096 4096; demote d/a 1 1", without_slot),
        (ShadowWithDisk::anticached(), "overwritten: evict 0", without_slot),
        (ShadowWithDisk::with_two(), "between, overwritten: demote d/a 1 1", without_slot),
        (ShadowWithDisk::default(), "above: demote d/a 1 1", before_flush),
        (ShadowWithDisk::anticached(), "above: evict 2", before_flush),
    ] {
        let workloads = subject.workloads();
        let workload = workloads.iter().find(|workload| workload.name == name).expect("a workload");
        let flaw = Flaw::Layout(mistake(&subject, words).number);
        let mut rig = Rig::new(&subject, MEMORY);
        let found = explore(&mut rig, workload, &settings(flaw));
        // A mistake may also be such that the workload itself fails.
        assert_ne!(found.map(|report| report.violations.len()).ok(), Some(0), "{words}, in {name}");
        let sound = explore(&mut rig, workload, &settings(Flaw::None)).expect("it can be run");
        assert!(sound.violations.is_empty() && sound.images > 0, "{name}: {sound}");
    }
}

/// Blocks that only images name would be given away.
#[test]
fn images_that_nobody_counts_are_seen() {
    let workloads = tiered();
    let workload = workloads.iter().find(|workload| workload.name == "logs below: write d/worn 0 4096");
    let subject = LogWithDisk::default();
    let mut rig = Rig::new(&subject, MEMORY);
    let flaw = Flaw::Layout(nacre_layout_log::Mistake::ImagesNotCounted as u32);
    let report = explore(&mut rig, workload.expect("a workload"), &settings(flaw)).expect("it can be run");
    assert!(!report.violations.is_empty());
}
