//! The in-place layout in the crash explorer: its own workloads, beside those of `each.rs`.
//!
//! `NACRE_CRASH_IMAGES` is how many images of directories without an index are explored.

use nacre_lab::crash::sequences::Length;
use nacre_lab::crash::{
    Case, Flaw, Inplace, InplaceLinear, Limits, MEMORY, Rig, Settings, Stage, explore, explore_threads,
    minimise, reproduce, threads,
};
use nacre_lab::environment::number;
use nacre_media::crash::Sampling;
use nacre_media::sim::Defect;

use crate::each::{by_name, limits, run};

/// What the presets `pmfs` and `hinfs` are: directories without an index of names. Scripts, each operation, a random
/// workload, threads in one lane.
#[test]
fn directories_without_an_index_survive() {
    let images = number("NACRE_CRASH_IMAGES").unwrap_or(4_000);
    let sequences = [Stage::Fixed, Stage::Random(1), Stage::Sequences(Length::One)];
    let limits = Limits { images: Some(images), ..limits() };
    run(&InplaceLinear, &sequences, &limits, None);
    run(&InplaceLinear, &[Stage::Threads(1)], &limits, None);
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

fn quick(flaw: Flaw) -> Settings {
    Settings { recovery_every: 16, empty_every: 4, ..crate::each::quick(flaw) }
}

fn mistake(words: &str) -> Flaw {
    Flaw::Layout(crate::each::mistake(&Inplace, words).number)
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
