//! The pool layout in the crash explorer, beside `each.rs`: the explorer is not blind to its flaws.

use std::sync::Arc;

use nacre_engine::{FileKind, Names};
use nacre_lab::crash::{
    Flaw, Limits, MEMORY, Mounting, Op, Pool, PoolVolumes, Rig, Runner, Settings, Stage, Subject, deep,
    explore, sites, with_damage, with_volumes,
};
use nacre_lab::environment::number;
use nacre_media::SimPm;
use nacre_media::crash::Sampling;
use nacre_media::sim::{Defect, Site};

use crate::each::{by_name, limits, mistake, quick, run};

fn settings(flaw: Flaw) -> Settings {
    Settings { recovery_every: 16, empty_every: 4, ..quick(flaw) }
}

/// Without any fence, and with a mistake of each step of the commit and of recovery.
#[test]
fn flaws_are_found() {
    let mut rig = Rig::new(&Pool, MEMORY);
    for name in ["create", "append", "rename-across", "truncate", "xattr"] {
        let report = explore(&mut rig, &by_name(name), &settings(Flaw::Memory(Defect::NoFences)));
        assert!(report.map_or(true, |report| !report.violations.is_empty()), "{name} without any fence");
    }
    for (words, name) in [
        ("an operation records no intent", "create"),
        ("the intent and the backups share a fence", "rename-across"),
        ("the backups and the primaries share a fence", "rename-across"),
        ("recovery goes forward without checks", "rename-across"),
        ("recovery leaves the backups of what it takes back", "create"),
        ("a new entry is written in one copy", "create"),
        ("data is not durable before what leads to it", "overwrite"),
        ("bits of free blocks are no items", "append"),
        ("a rename is two operations", "rename-across"),
        ("an inode without names is on no list", "unlink-held"),
        ("a file grows over bytes that were not zeroed", "truncate"),
    ] {
        let flaw = Flaw::Layout(mistake(&Pool, words).number);
        let found = explore(&mut rig, &by_name(name), &settings(flaw));
        // A mistake may also be such that the workload itself fails.
        assert_ne!(found.map(|report| report.violations.len()).ok(), Some(0), "{words}, in {name}");
    }
}

/// Operations mend what they find damaged, and only then change what the other copy has. A line that is mended and not
/// flushed is found out by that.
#[test]
fn damage_is_mended_before_it_is_built_on() {
    let mut rig = Rig::new(&Pool, MEMORY);
    for workload in with_damage() {
        let sampling = Sampling { exhaustive_up_to: 32, samples: 24, seed: 1 };
        let few = Settings { sampling, ..settings(Flaw::None) };
        let report = explore(&mut rig, &workload, &few).expect("it can be run");
        println!("{}: {report}", workload.name);
        assert!(report.violations.is_empty() && report.emptied > 0, "{}: {report}", workload.name);
    }
    let workload =
        with_damage().into_iter().find(|workload| workload.name == "mended-inode").expect("it is one");
    let (flushes, _) = sites(&mut rig, &workload).expect("it can be run");
    let is_mend = |site: &Site| Pool.site_name(site) == "mend.rs mend_page 1";
    let site = flushes.into_iter().find(is_mend).expect("it mends a line");
    let report = explore(&mut rig, &workload, &settings(Flaw::Memory(Defect::SkipFlushAt(site))));
    assert!(!report.expect("it can be run").violations.is_empty(), "a line that is mended is not flushed");
}

/// Volumes are made and removed as a whole, by whichever mount comes after the crash.
#[test]
fn volumes_survive() {
    let images = number("NACRE_CRASH_IMAGES").unwrap_or(2_000);
    let outcome = run(&PoolVolumes, &[Stage::Own], &Limits { images: Some(images), ..limits() }, None);
    assert!(outcome.report.emptied > 100, "{}", outcome.report);
}

/// The explorer sees a volume that is made or removed in steps, and one that nothing waits for.
#[test]
fn flaws_of_volumes_are_found() {
    let mut rig = Rig::new(&PoolVolumes, MEMORY);
    let all = with_volumes();
    let by_name = |name| all.iter().find(|workload| workload.name == name).expect("it is a workload");
    let few = |flaw| Settings {
        sampling: Sampling { exhaustive_up_to: 32, samples: 32, seed: 1 },
        ..settings(flaw)
    };
    for (words, name) in [
        ("the row of a volume is there before its root", "volume-made"),
        ("the row of a volume goes before its groups", "volume-removed"),
        ("an operation records no intent", "volume-made"),
        ("recovery leaves the backups of what it takes back", "volume-removed"),
    ] {
        let flaw = Flaw::Layout(mistake(&PoolVolumes, words).number);
        let found = explore(&mut rig, by_name(name), &few(flaw));
        assert_ne!(found.map(|report| report.violations.len()).ok(), Some(0), "{words}, in {name}");
    }
    for name in ["volume-made", "volume-removed"] {
        let report = explore(&mut rig, by_name(name), &few(Flaw::Memory(Defect::NoFences)));
        assert!(report.map_or(true, |report| !report.violations.is_empty()), "{name} without any fence");
        let report = explore(&mut rig, by_name(name), &few(Flaw::None)).expect("it can be run");
        assert!(report.violations.is_empty() && report.images > 10, "{name}: {report}");
    }
}

/// The number of an inode is used again with another generation, after a crash as well. No crash shows the mistake, which
/// is about what a caller kept from before.
#[test]
fn a_number_used_again_has_another_generation() {
    let words = "the number of an inode keeps its generation";
    for (mistake, expected) in [(0, [false, false]), (mistake(&Pool, words).number, [true, true])] {
        let pm = Arc::new(SimPm::new(MEMORY));
        Pool.mkfs(&pm).expect("mkfs");
        pm.seed_mistake(mistake);
        let id_of_next = |runner: &mut Runner<<Pool as Subject>::Fs>, step| {
            runner.run(step, &Op::Create("f", FileKind::Regular)).expect("a file");
            let id = runner.fs.id(&runner.fs.lookup(&runner.fs.root(), b"f").expect("the file"));
            runner.run(step + 1, &Op::Unlink("f")).expect("it is removed");
            id
        };
        let mut runner = Runner::new(Pool.mount(&pm, Mounting::default()).expect("a mount"));
        let (first, second) = (id_of_next(&mut runner, 1), id_of_next(&mut runner, 3));
        Pool.abandon(runner.into_fs());
        let mut runner = Runner::new(Pool.mount(&pm, Mounting::default()).expect("a mount"));
        let third = id_of_next(&mut runner, 5);
        Pool.abandon(runner.into_fs());
        assert_eq!([second.number, third.number], [first.number; 2], "the entry is used again");
        assert_eq!([first == second, second == third], expected);
    }
}

/// A workload is left out only where it cannot be run.
#[test]
fn workloads_that_are_left_out_cannot_be_run() {
    let mut rig = Rig::new(&Pool, MEMORY);
    for (name, reason) in Pool.left_out() {
        let workload = deep().into_iter().find(|workload| workload.name.starts_with(name));
        let recording = rig.record(&workload.expect(name), Flaw::None).expect("it is recorded");
        let no_space = recording.live_differences.iter().any(|words| words.contains("NoSpace"));
        assert!(no_space, "{name}: {reason}: {:?}", recording.live_differences);
    }
}
