//! The log layout, crashed at every fence: a slice of what `nacre crash` explores for as long as one likes. What is found
//! here, that command finds with the same seed, and writes a trace of it.
//!
//! `NACRE_CRASH_SEED` is what samples and random workloads depend on (1 by default), `NACRE_CRASH_IMAGES` how many images
//! of pairs of operations are explored.

use std::path::Path;

use nacre_lab::crash::sequences::{Length, sequences};
use nacre_lab::crash::{
    Campaign, Case, Flaw, Limits, Log, MEMORY, Mistake, Mounting, Op, Outcome, Rig, Runner, Settings, Stage,
    Subject, ThreadsCase, Tree, Workload, WorkloadCase, deep, explore, explore_threads, fixed, full, lanes,
    minimise, random, reproduce, threads,
};
use nacre_lab::environment::number;
use nacre_media::SimPm;
use nacre_media::crash::{Replay, Sampling};
use nacre_media::sim::{Defect, Event};

fn limits() -> Limits {
    Limits { jobs: 1, time: None, images: None, violations: 5 }
}

fn campaign(stages: &[Stage]) -> Campaign {
    Campaign { seed: number("NACRE_CRASH_SEED").unwrap_or(1), stages: stages.to_vec() }
}

/// Explores, prints what was tried, and fails when something is wrong.
fn run(stages: &[Stage], limits: &Limits, file: Option<&Path>) -> Outcome {
    let outcome = campaign(stages).run(&Log, limits, file, &mut |_| {}).expect("it can be run");
    println!("{:?}: {}", outcome.elapsed, outcome.report);
    for (count, name) in outcome.report.commit_points.iter().zip(Log.commit_points()) {
        println!("{count:8} {name}");
    }
    assert!(outcome.is_good(), "{:#?}\n{}", outcome.failures, outcome.report);
    outcome
}

#[test]
fn scripts_survive() {
    run(&[Stage::Fixed], &limits(), None);
}

#[test]
fn random_workloads_survive() {
    run(&[Stage::Random(4)], &limits(), None);
}

#[test]
fn threads_survive() {
    run(&[Stage::Threads(3)], &limits(), None);
}

/// Each operation on a device that is full, some of all.
#[test]
fn full_devices_survive() {
    run(&[Stage::Full(6)], &limits(), None);
}

/// All workloads that overwrite on a full device.
#[test]
fn what_is_overwritten_on_a_full_device_survives() {
    let mut rig = Rig::new(&Log, MEMORY);
    for workload in full().iter().filter(|workload| workload.name.starts_with("overwritten")) {
        let settings = Settings {
            sampling: Sampling { exhaustive_up_to: 16, samples: 16, seed: 1 },
            empty_every: 64,
            recovery_every: 512,
            ..Settings::default()
        };
        let report = explore(&mut rig, workload, &settings).expect("it can be run");
        assert!(report.violations.is_empty() && report.images > 1, "{}: {report}", workload.name);
    }
}

/// Of operations on full devices some fail before they store anything, some after it, and some are done.
#[test]
fn full_devices_are_full() {
    let mut rig = Rig::new(&Log, MEMORY);
    let (mut clean, mut late, mut done) = (0, 0, 0);
    for workload in full().iter().skip(4).step_by(11) {
        let recording = rig.record(workload, Flaw::None).expect("it can be run");
        assert_eq!(recording.live_differences, Vec::<String>::new(), "{}", workload.name);
        let marks =
            recording.trace.events.iter().enumerate().filter(|(_, event)| matches!(event, Event::Mark(_)));
        let ends: Vec<usize> = marks.map(|(index, _)| index).take(2).collect();
        let stores = recording.trace.events[ends[0]..ends[1]].iter();
        let stores = stores.filter(|event| matches!(event, Event::Store { .. })).count();
        match recording.states[0] == recording.states[1] {
            true if stores == 0 => clean += 1,
            true => late += 1,
            false => done += 1,
        }
    }
    println!(
        "{clean} stored nothing and changed nothing, {late} stored and changed nothing, {done} were done"
    );
    assert!(clean >= 10 && late >= 2 && done >= 10);
}

#[test]
fn several_lanes_survive() {
    let mut rig = Rig::new(&Log, MEMORY);
    for workload in lanes(1).into_iter().step_by(19) {
        let report = explore(&mut rig, &workload, &quick(Flaw::None)).expect("it can be run");
        assert!(report.violations.is_empty(), "{}: {report}", workload.name);
    }
}

/// The operations that are to have blocks of two lanes do have them.
#[test]
fn extents_come_from_two_lanes() {
    let mut rig = Rig::new(&Log, MEMORY);
    for workload in lanes(1).iter().filter(|workload| workload.name.contains("extents of both")) {
        let recording = rig.record(workload, Flaw::None).expect("it can be run");
        assert_eq!(recording.live_differences, Vec::<String>::new(), "{}", workload.name);
        if workload.ops.iter().any(|op| matches!(op, Op::Fallocate(..))) {
            continue; // no data is stored
        }
        let of_data = recording.trace.events.iter().filter_map(|event| match event {
            Event::Store { offset, bytes, .. } if bytes.len() >= 4096 => Some(offset / (MEMORY / 2)),
            _ => None,
        });
        let halves: std::collections::BTreeSet<u64> = of_data.collect();
        assert_eq!(halves.len(), 2, "{}", workload.name);
    }
}

/// A crash of several threads is made smaller, written, read, and produced again, bit by bit, from the file alone.
#[test]
fn a_violation_of_threads_is_minimised_and_replayed() {
    let mut rig = Rig::new(&Log, MEMORY);
    let flaw = Flaw::Layout(mistake("an entry is published before its data is durable").number);
    let workload =
        threads().into_iter().find(|workload| workload.name == "files apart").expect("it is there");
    let sampling = Sampling { exhaustive_up_to: 64, samples: 48, seed: 1 };
    let find = |rig: &mut Rig<'_, Log>, seed: u64| {
        explore_threads(rig, &workload, seed, &sampling, flaw)
            .expect("it can be run")
            .violations
            .into_iter()
            .next()
    };
    let violation = (0..20).find_map(|seed| find(&mut rig, seed)).expect("the mistake is found");
    let smaller = minimise(&mut rig, &violation).expect("it can be made smaller");
    let Case::Threads(small) = &smaller.case else { panic!("threads ran: {smaller}") };
    let count = |case: &ThreadsCase| case.workload.threads.iter().map(Vec::len).sum::<usize>();
    assert!(count(small) <= 2 && small.workload.threads.len() == 1, "{small:?}");
    assert!(small.workload.setup.len() <= 2 && small.landed.len() <= 1, "{small:?}");

    let text = smaller.case.to_text(&Log, &smaller.problems);
    let (layout, case) = Case::parse(&text).expect("it can be read");
    let Case::Threads(read) = &case else { panic!("threads ran") };
    assert_eq!((layout.as_str(), &read.workload, &read.landed), ("log", &small.workload, &small.landed));
    let (situation, problems) = reproduce(&mut rig, &case).expect("it can be run");
    assert_eq!((&situation, &problems), (&smaller.situation, &smaller.problems));
    // What is recorded was done with the mistake; it stays done.
    let without = ThreadsCase { mistake: 0, ..read.clone() };
    let (_, problems) = reproduce(&mut rig, &Case::Threads(without)).expect("it can be run");
    assert_eq!(problems, smaller.problems);
    // Another image of the same run is as it should be, and bytes that were not stored cannot land.
    let nothing = ThreadsCase { landed: Vec::new(), ..read.clone() };
    assert_eq!(reproduce(&mut rig, &Case::Threads(nothing)).expect("it can be run").1, Vec::<String>::new());
    let strange = ThreadsCase { landed: vec![(3, [7; 64])], ..read.clone() };
    let (situation, problems) = reproduce(&mut rig, &Case::Threads(strange)).expect("it can be run");
    assert!(situation.contains("cannot happen") && problems.is_empty(), "{situation}");
    for wrong in
        ["thread 1 unlink a", "thread 0 unlink a\nreturned 0 1", "thread 0 unlink a\nflush 0 0xfffffff 64"]
    {
        Case::parse(&format!("nacre crash trace 1\nlayout log\nname x\n{wrong}\n")).unwrap_err();
    }
}

/// A short exploration goes on where it was stopped, and a file of another one is refused.
#[test]
fn short_sequences_survive_in_two_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("progress");
    let images = number("NACRE_CRASH_IMAGES").unwrap_or(10_000);
    let stages = [Stage::Sequences(Length::One), Stage::Sequences(Length::Two)];
    let first = run(&stages, &Limits { images: Some(images / 2), ..limits() }, Some(&file));
    assert!(first.workloads.0 > 0 && first.workloads.0 < first.workloads.1);
    let second = run(&stages, &Limits { images: Some(images / 2), ..limits() }, Some(&file));
    assert!(second.workloads.0 > first.workloads.0, "it goes on");
    assert!(second.report.images >= first.report.images + second.images / 2, "it counts on");
    let other = campaign(&[Stage::Fixed]).run(&Log, &limits(), Some(&file), &mut |_| {});
    assert!(other.is_err(), "the file is of another exploration");
}

/// All pairs are there once, triples are drawn from the seed, and crashes are in the last operation only.
#[test]
fn sequences_are_complete() {
    let ones = sequences(Length::One, 1);
    let twos = sequences(Length::Two, 1);
    assert_eq!(twos.len(), ones.len() * ones.len());
    let names: std::collections::BTreeSet<&str> =
        twos.iter().map(|workload| workload.name.as_str()).collect();
    assert_eq!(names.len(), twos.len());
    assert!(twos.iter().all(|workload| workload.ops.len() == 2 && workload.explored_from == 1));
    assert_eq!(sequences(Length::Three(9), 1), sequences(Length::Three(9), 1));
    assert_ne!(sequences(Length::Three(9), 1), sequences(Length::Three(9), 2));
}

fn by_name(name: &str) -> Workload {
    let all = fixed().into_iter().chain(deep());
    all.into_iter().find(|workload| workload.name == name).unwrap_or_else(|| panic!("{name} is a workload"))
}

fn mistake(words: &str) -> Mistake {
    let all = Log.mistakes();
    *all.iter().find(|mistake| mistake.words == words).unwrap_or_else(|| panic!("{words} is a mistake"))
}

fn quick(flaw: Flaw) -> Settings {
    Settings {
        sampling: Sampling { exhaustive_up_to: 256, samples: 64, seed: 1 },
        max_violations: 1,
        flaw,
        ..Settings::default()
    }
}

/// Logs that grow over pages and are collected, directories that are removed after a move, a new chunk of inodes.
#[test]
fn grown_logs_survive() {
    let mut rig = Rig::new(&Log, MEMORY);
    let settings = Settings {
        sampling: Sampling { exhaustive_up_to: 4, samples: 4, seed: number("NACRE_CRASH_SEED").unwrap_or(1) },
        empty_every: 64,
        recovery_every: 512,
        ..Settings::default()
    };
    for name in
        ["grow-sparse", "grow-overwrites", "cross-page-exchange", "cross-directories-remove", "inode-chunk-0"]
    {
        let report = explore(&mut rig, &by_name(name), &settings).expect("it can be run");
        println!("{name}: {report}");
        assert!(report.violations.is_empty() && report.images > 0, "{name}: {report}");
    }
}

/// A violation is made smaller, written, read, and produced again; without the mistake it is gone.
#[test]
fn a_violation_is_minimised_and_replayed() {
    let mut rig = Rig::new(&Log, MEMORY);
    let mistake = mistake("an entry is published before its data is durable");
    let workload = by_name("overwrite");
    let report = explore(&mut rig, &workload, &quick(Flaw::Layout(mistake.number))).expect("it can be run");
    let violation = report.violations.first().expect("the mistake is found");
    let smaller = minimise(&mut rig, violation).expect("it can be made smaller");
    let Case::Workload(small) = &smaller.case else { panic!("one thread ran: {smaller}") };
    assert!(small.workload.ops.len() == 1 && small.workload.setup.len() < workload.setup.len());
    assert!(small.landed.len() <= 1, "one entry that landed is enough: {smaller}");
    let text = smaller.case.to_text(&Log, &smaller.problems);
    let (layout, case) = Case::parse(&text).expect("it can be read");
    assert_eq!((layout.as_str(), &case), ("log", &smaller.case));
    let (_, problems) = reproduce(&mut rig, &case).expect("it can be run");
    assert!(!problems.is_empty());
    let without = Case::Workload(WorkloadCase { mistake: 0, ..small.clone() });
    let (_, problems) = reproduce(&mut rig, &without).expect("it can be run");
    assert_eq!(problems, Vec::<String>::new());
    for wrong in
        ["", "nacre crash trace 1\nop fly", "nacre crash trace 1\nlanded 0x40 00", "nacre crash trace 2"]
    {
        Case::parse(wrong).unwrap_err();
    }
}

/// The explorer is not blind: memory whose fences do nothing is found in every script that stores anything, and so are
/// mistakes of each part. (`nacre crash --self-test` tries every flush, fence and mistake.)
#[test]
fn flaws_are_found() {
    let mut rig = Rig::new(&Log, MEMORY);
    for name in ["create", "append", "overwrite", "rename-across", "unlink", "truncate", "setattr", "xattr"] {
        let report = explore(&mut rig, &by_name(name), &quick(Flaw::Memory(Defect::NoFences)));
        assert!(!report.expect("it can be run").violations.is_empty(), "{name} without any fence");
    }
    for (words, name) in [
        ("the head of a log is stored before its page is written", "rename-replacing"),
        ("the entries of a batch do not say that more follows", "rename-replacing"),
        ("an overwrite frees old blocks before it allocates new ones", "overwrite"),
        ("a reused inode keeps its generation", "unlink"),
        ("recovery keeps half a transaction", "rename-across"),
        ("recovery does not count links", "link"),
        ("a mount does not mark the file system dirty", "create"),
        ("an unmount marks it clean before it is done", "remount"),
        ("a file grows over bytes that were not zeroed", "truncate"),
    ] {
        let flaw = Flaw::Layout(mistake(words).number);
        let settings = Settings { recovery_every: 16, empty_every: 4, ..quick(flaw) };
        let found = explore(&mut rig, &by_name(name), &settings).map(|report| report.violations.len());
        // A mistake may also be such that the workload itself fails.
        assert_ne!(found.ok(), Some(0), "{words}, in {name}");
    }
}

/// A crash while a file system is made on memory that holds none, or some bytes, leaves none or a whole one.
#[test]
fn mkfs_leaves_none_or_a_whole_one() {
    let pm = std::sync::Arc::new(SimPm::new(MEMORY));
    Log.mkfs(&pm).expect("mkfs");
    let mut runner = Runner::new(Log.mount(&pm, Mounting::default()).expect("mount"));
    for (step, op) in random(1, 0).setup.iter().enumerate() {
        runner.run(step as u64, op).expect("an operation");
    }
    let old = Tree::of(&runner.fs).expect("a tree");
    Log.unmount(runner.into_fs()).expect("unmount");
    for base in [vec![0; MEMORY as usize], pm.snapshot()] {
        let pm = std::sync::Arc::new(SimPm::from_image(&base));
        pm.start_recording();
        Log.mkfs(&pm).expect("mkfs");
        let trace = pm.stop_recording();
        let (mut none, mut some) = (0, 0);
        let mut replay = Replay::new(base, &trace);
        while let Some(point) = replay.advance() {
            pm.load(replay.media());
            for image in replay.images(&Sampling { samples: 64, ..Sampling::default() }).iter() {
                image.apply(&pm);
                match Log.mount(&pm, Mounting::default()) {
                    Ok(fs) => {
                        let tree = Tree::of(&fs).expect("a tree");
                        assert!(tree.is_empty() || tree == old, "{point:?}, {image:?}");
                        Log.abandon(fs);
                        some += 1;
                    }
                    Err(_) => {
                        assert!(!Log.is_formatted(&pm), "half a file system: {point:?}, {image:?}");
                        none += 1;
                    }
                }
                pm.load(replay.media());
            }
        }
        assert!(none > 0 && some > 0);
    }
}
