//! The log layout in the crash explorer: its own workloads, beside those of `each.rs`.

use nacre_lab::crash::sequences::{Length, sequences};
use nacre_lab::crash::{
    Case, Flaw, Log, MEMORY, Op, Rig, Settings, ThreadsCase, WorkloadCase, explore, explore_threads, full,
    lanes, minimise, reproduce, threads,
};
use nacre_lab::environment::number;
use nacre_media::crash::Sampling;
use nacre_media::sim::{Defect, Event};

use crate::each::{by_name, mistake, quick};

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
    let flaw = Flaw::Layout(mistake(&Log, "an entry is committed before its data is durable").number);
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
    let mistake = mistake(&Log, "an entry is committed before its data is durable");
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
        let flaw = Flaw::Layout(mistake(&Log, words).number);
        let settings = Settings { recovery_every: 16, empty_every: 4, ..quick(flaw) };
        let found = explore(&mut rig, &by_name(name), &settings).map(|report| report.violations.len());
        // A mistake may also be such that the workload itself fails.
        assert_ne!(found.ok(), Some(0), "{words}, in {name}");
    }
}
