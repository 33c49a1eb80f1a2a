//! The shadow layout in the crash explorer, beside `each.rs`: the explorer is not blind to its flaws.

use std::sync::Arc;

use nacre_engine::{FileKind, Names};
use nacre_lab::crash::{
    Flaw, MEMORY, Mounting, Op, Rig, Runner, Settings, Shadow, Subject, explore, explore_threads, sites,
    threads,
};
use nacre_media::crash::{Replay, Sampling};
use nacre_media::sim::Defect;
use nacre_media::{Image, SimPm, Trace};

use crate::each::{by_name, mistake, quick};

fn settings(flaw: Flaw) -> Settings {
    Settings { recovery_every: 16, empty_every: 4, ..quick(flaw) }
}

/// Without any fence, and with a mistake of each shape of commit and of recovery.
#[test]
fn flaws_are_found() {
    let mut rig = Rig::new(&Shadow, MEMORY);
    for name in ["create", "append", "overwrite", "rename-across", "truncate", "setattr", "xattr"] {
        let report = explore(&mut rig, &by_name(name), &settings(Flaw::Memory(Defect::NoFences)));
        assert!(report.map_or(true, |report| !report.violations.is_empty()), "{name} without any fence");
    }
    for (words, name) in [
        ("a slot is written before its data is durable", "append"),
        ("a slot that goes with a word has no condition", "overwrite"),
        ("a word is stored before its slot is durable", "overwrite"),
        ("a switch is stored before what it makes count", "create"),
        ("recovery leaves what uncommitted operations tagged", "create"),
        ("an operation has the generation of the one before", "create"),
        ("a slot keeps the sequence of the one before", "setattr"),
        ("blocks are free before the commit that takes them away", "truncate"),
        ("a new inode is not written before its name", "create"),
        ("a directory that moves keeps its parent", "rename-directory"),
        ("the last name goes and the inode keeps its link", "unlink"),
        ("a rename is two operations", "rename-across"),
        ("a file grows over bytes that were not zeroed", "truncate"),
        ("the rest of a new block is not written", "overwrite"),
        ("several words of a node in use are stored in place", "overwrite-all"),
        ("the end of a tree passes words that were not written", "cut-and-extended"),
        ("a word behind the end of a tree is taken for its block's", "written-where-it-was-cut"),
        ("every line of a name is tagged", "create"),
        ("a record does not say how many lines it has", "create"),
        ("lines of dead names are joined before they are free", "names-of-other-lengths"),
    ] {
        let flaw = Flaw::Layout(mistake(&Shadow, words).number);
        let found = explore(&mut rig, &by_name(name), &settings(flaw));
        // A mistake may also be such that the workload itself fails.
        assert_ne!(found.map(|report| report.violations.len()).ok(), Some(0), "{words}, in {name}");
    }
}

/// Two operations in one lane: the switch of one makes what the other has not finished count, or takes back what was
/// acknowledged. The explorer crashes threads that take turns at their fences.
#[test]
fn a_lane_that_two_operations_share_is_seen() {
    let mut rig = Rig::new(&Shadow, MEMORY);
    let all = threads();
    let workload = all.iter().find(|workload| workload.name == "names in two directories");
    let workload = workload.expect("a workload");
    let flaw = Flaw::Layout(mistake(&Shadow, "two operations are in one lane").number);
    let mut finds = |flaw, seed| {
        let sampling = Sampling { exhaustive_up_to: 32, samples: 16, seed };
        let report = explore_threads(&mut rig, workload, seed, &sampling, flaw);
        // A mistake may also be such that the workload itself fails.
        report.map_or(true, |report| !report.violations.is_empty())
    };
    let found = (0..20).find(|&seed| finds(flaw, seed)).expect("one of these interleavings shows it");
    assert!(!finds(Flaw::None, found), "and nothing is wrong without it");
}

/// The inode table grows.
#[test]
fn a_table_that_grows_survives() {
    let mut rig = Rig::new(&Shadow, MEMORY);
    let settings = Settings {
        sampling: Sampling { exhaustive_up_to: 4, samples: 4, seed: 1 },
        empty_every: 64,
        recovery_every: 512,
        ..Settings::default()
    };
    for name in ["inode-chunk-0", "grow-sparse", "cross-directories-remove"] {
        let report = explore(&mut rig, &by_name(name), &settings).expect("it can be run");
        println!("{name}: {report}");
        assert!(report.violations.is_empty() && report.images > 0, "{name}: {report}");
    }
}

/// There are more inodes at a crash than at the end: the table that is emptied afterwards is larger than without it.
#[test]
fn a_table_that_would_have_grown_is_no_leak() {
    let settings = Settings { empty_every: 1, ..quick(Flaw::None) };
    let report = explore(&mut Rig::new(&Shadow, MEMORY), &by_name("inode-chunk-3"), &settings);
    let report = report.expect("it can be run");
    assert!(report.violations.is_empty() && report.emptied > 8, "{report}");
}

/// A tag that recovery neutralised stays so when its generation is used and power is lost again. The explorer changes
/// nothing between two crashes.
#[test]
fn what_is_neutralised_stays_so() {
    let mut rig = Rig::new(&Shadow, MEMORY);
    let (flushes, _) = sites(&mut rig, &by_name("create")).expect("it can be run");
    let flush = flushes.into_iter().find(|site| Shadow.site_name(site) == "recover.rs neutralise 2");
    let flush = flush.expect("it is passed");
    assert!(!is_lost_after_two_crashes(None), "as it is");
    assert!(is_lost_after_two_crashes(Some(Defect::SkipFlushAt(flush))), "without the flush");
}

/// There is a crash while a name is removed, then a recovery, another operation, and a crash. Whether a name that was
/// there after the first crash is not there after the second one, or the other way round.
fn is_lost_after_two_crashes(defect: Option<Defect>) -> bool {
    let pm = Arc::new(SimPm::new(MEMORY));
    Shadow.mkfs(&pm).expect("mkfs");
    let mut runner = Runner::new(Shadow.mount(&pm, Mounting::default()).expect("a mount"));
    runner.run(1, &Op::Create("a", FileKind::Regular)).expect("a file");
    let base = pm.snapshot();
    pm.start_recording();
    runner.run(2, &Op::Unlink("a")).expect("it is removed");
    let trace = pm.stop_recording();
    Shadow.abandon(runner.into_fs());
    let mut replay = Replay::new(base, &trace);
    let mut is_lost = false;
    while replay.advance().is_some() {
        for image in replay.images(&Sampling { samples: 16, ..Sampling::default() }).iter() {
            let crashed = replay.crashed(&image);
            pm.load(&crashed);
            pm.start_recording_with(defect);
            let mut runner = Runner::new(Shadow.mount(&pm, Mounting::default()).expect("a mount"));
            let was_there = runner.fs.lookup(&runner.fs.root(), b"a").is_ok();
            runner.run(3, &Op::Create("b", FileKind::Regular)).expect("a file");
            let trace = pm.stop_recording();
            Shadow.abandon(runner.into_fs());
            pm.load(&durable(crashed, &trace));
            is_lost |= Shadow.mount(&pm, Mounting::default()).map_or(true, |fs| {
                let is_there = fs.lookup(&fs.root(), b"a").is_ok();
                Shadow.abandon(fs);
                is_there != was_there
            });
        }
    }
    is_lost
}

/// The state of the media after a trace when power is lost.
fn durable(start: Image, trace: &Trace) -> Image {
    let mut replay = Replay::new(start, trace);
    while replay.advance().is_some() {}
    replay.media().clone()
}

/// A campaign begins with these.
#[test]
fn what_comes_first_is_there() {
    assert!(!Shadow.first().is_empty());
    for name in Shadow.first() {
        by_name(name);
    }
}
