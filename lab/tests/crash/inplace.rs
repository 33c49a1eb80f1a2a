//! The in-place layout, crashed at every fence, as `log.rs` does it with the log layout: a slice of what
//! `nacre crash --layout inplace` explores.
//!
//! `NACRE_CRASH_SEED` is what samples and random workloads depend on (1 by default), `NACRE_CRASH_IMAGES` how many images
//! of pairs of operations are explored.

use nacre_lab::crash::sequences::Length;
use nacre_lab::crash::{
    Campaign, Case, Flaw, Inplace, InplaceLinear, Limits, MEMORY, Rig, Settings, Stage, Subject, Workload,
    deep, explore, explore_threads, fixed, minimise, reproduce, threads,
};
use nacre_lab::environment::number;
use nacre_media::crash::Sampling;
use nacre_media::sim::Defect;

/// Explores, prints what was tried, and fails when something is wrong.
fn run(stages: &[Stage], images: Option<u64>) {
    run_on(&Inplace, stages, images);
}

fn run_on<S: Subject>(subject: &S, stages: &[Stage], images: Option<u64>) {
    let campaign = Campaign { seed: number("NACRE_CRASH_SEED").unwrap_or(1), stages: stages.to_vec() };
    let limits = Limits { jobs: 1, time: None, images, violations: 5 };
    let outcome = campaign.run(subject, &limits, None, &mut |_| {}).expect("it can be run");
    println!("{:?}: {}", outcome.elapsed, outcome.report);
    for (count, name) in outcome.report.commit_points.iter().zip(subject.commit_points()) {
        println!("{count:8} {name}");
    }
    assert!(outcome.is_good(), "{:#?}\n{}", outcome.failures, outcome.report);
}

#[test]
fn scripts_survive() {
    run(&[Stage::Fixed], None);
}

#[test]
fn random_workloads_survive() {
    run(&[Stage::Random(4)], None);
}

#[test]
fn threads_survive() {
    run(&[Stage::Threads(3)], None);
}

#[test]
fn full_devices_survive() {
    run(&[Stage::Full(6)], None);
}

#[test]
fn short_sequences_survive() {
    let images = number("NACRE_CRASH_IMAGES").unwrap_or(10_000);
    run(&[Stage::Sequences(Length::One), Stage::Sequences(Length::Two)], Some(images));
}

/// What the presets `pmfs` and `hinfs` are: directories without an index of names. Scripts, each operation, a random
/// workload, threads in one lane.
#[test]
fn directories_without_an_index_survive() {
    let images = number("NACRE_CRASH_IMAGES").unwrap_or(4_000);
    let sequences = [Stage::Fixed, Stage::Random(1), Stage::Sequences(Length::One)];
    run_on(&InplaceLinear, &sequences, Some(images));
    run_on(&InplaceLinear, &[Stage::Threads(1)], Some(images));
}

/// Names that are not searched for through an index are no less looked at.
#[test]
fn flaws_in_directories_without_an_index_are_found() {
    let mut rig = Rig::new(&InplaceLinear, MEMORY);
    for (flaw, name) in [
        (Flaw::Memory(Defect::NoFences), "create"),
        (mistake("words are stored before the undo entries are durable"), "rename-across"),
        (mistake("a new inode is not written before its name"), "create"),
        (mistake("a rename is two transactions"), "rename-across"),
        (mistake("recovery does not undo"), "create"),
    ] {
        let found = explore(&mut rig, &by_name(name), &quick(flaw));
        assert_ne!(found.map(|report| report.violations.len()).ok(), Some(0), "{flaw:?}, in {name}");
    }
}

fn by_name(name: &str) -> Workload {
    let all = fixed().into_iter().chain(deep());
    all.into_iter().find(|workload| workload.name == name).unwrap_or_else(|| panic!("{name} is a workload"))
}

fn quick(flaw: Flaw) -> Settings {
    Settings {
        sampling: Sampling { exhaustive_up_to: 256, samples: 64, seed: 1 },
        max_violations: 1,
        recovery_every: 16,
        empty_every: 4,
        flaw,
        ..Settings::default()
    }
}

fn mistake(words: &str) -> Flaw {
    let all = Inplace.mistakes();
    let found = all.iter().find(|mistake| mistake.words == words);
    Flaw::Layout(found.unwrap_or_else(|| panic!("{words} is a mistake")).number)
}

/// The inode table grows.
#[test]
fn a_table_that_grows_survives() {
    let mut rig = Rig::new(&Inplace, MEMORY);
    let settings = Settings {
        sampling: Sampling { exhaustive_up_to: 4, samples: 4, seed: number("NACRE_CRASH_SEED").unwrap_or(1) },
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

/// The explorer is not blind to what this layout could do wrong, although it lets overwritten data be torn.
#[test]
fn flaws_are_found() {
    let mut rig = Rig::new(&Inplace, MEMORY);
    for name in ["create", "append", "rename-across", "unlink", "truncate", "setattr", "xattr"] {
        let report = explore(&mut rig, &by_name(name), &quick(Flaw::Memory(Defect::NoFences)));
        assert!(report.map_or(true, |report| !report.violations.is_empty()), "{name} without any fence");
    }
    for (words, name) in [
        ("words are stored before the undo entries are durable", "rename-across"),
        ("a transaction is committed before its words are durable", "create"),
        ("a single word is stored before its data is durable", "overwrite"),
        ("recovery does not undo", "create"),
        ("a file grows over bytes that were not zeroed", "truncate"),
        ("blocks are free before the commit that takes them away", "truncate"),
        ("a new inode is not written before its name", "create"),
        ("a rename is two transactions", "rename-across"),
    ] {
        let found = explore(&mut rig, &by_name(name), &quick(mistake(words)));
        // A mistake may also be such that the workload itself fails.
        assert_ne!(found.map(|report| report.violations.len()).ok(), Some(0), "{words}, in {name}");
    }
}

/// A violation is made smaller, written, read, and produced again.
#[test]
fn a_violation_is_minimised_and_replayed() {
    let mut rig = Rig::new(&Inplace, MEMORY);
    let flaw = mistake("a transaction is committed before its words are durable");
    let report = explore(&mut rig, &by_name("create"), &quick(flaw)).expect("it can be run");
    let violation = report.violations.first().expect("the mistake is found");
    let smaller = minimise(&mut rig, violation).expect("it can be made smaller");
    let text = smaller.case.to_text(&Inplace, &smaller.problems);
    let (layout, case) = Case::parse(&text).expect("it can be read");
    assert_eq!((layout.as_str(), &case), ("inplace", &smaller.case));
    let (_, problems) = reproduce(&mut rig, &case).expect("it can be run");
    assert!(!problems.is_empty());
}

/// What only a crash within recovery shows is found in what threads leave, too, and can be seen again.
#[test]
fn a_crash_of_threads_and_within_recovery_is_found() {
    let mut rig = Rig::new(&Inplace, MEMORY);
    let flaw = mistake("recovery ends a transaction before it is undone");
    let sampling = Sampling { exhaustive_up_to: 64, samples: 48, seed: 1 };
    let found = threads().iter().find_map(|workload| {
        let report = explore_threads(&mut rig, workload, 1, &sampling, flaw).expect("it can be run");
        report.violations.into_iter().next()
    });
    let found = found.expect("it is found");
    let Case::Threads(case) = &found.case else { panic!("threads ran: {found}") };
    assert!(case.recovery.is_some(), "{found}");
    let text = found.case.to_text(&Inplace, &found.problems);
    let (_, case) = Case::parse(&text).expect("it can be read");
    let (situation, problems) = reproduce(&mut rig, &case).expect("it can be run");
    assert!(!problems.is_empty() && situation.contains("during recovery"), "{situation}");
}
