//! The write buffer over each layout, crashed at every fence, and at every flush of the disk where there is one; see
//! `crash::Cached`.
//!
//! `NACRE_CRASH_SEED` is the first seed (1 by default), `NACRE_CRASH_IMAGES` how many images each layout has at least.

use nacre_lab::crash::{
    Belief, BufferMistake, CachedCase, CachedSettings, Campaign, Case, Flaw, Inplace, Limits, Log,
    LogWithDisk, MEMORY, Overwrites, Pool, Rig, Shadow, ShadowInPlace, Stage, Subject, cached,
    explore_cached, minimise, reproduce,
};
use nacre_lab::environment::number;
use nacre_media::sim::Defect;

/// More sequences than a run of the test gets to.
const SEQUENCES: u64 = 100_000;
/// Those that `nacre crash --self-test` looks for mistakes of the buffer in.
const OF_SELF_TEST: std::ops::Range<u64> = 1..25;

fn survives<S: Subject>(subject: &S) {
    let seed = number("NACRE_CRASH_SEED").unwrap_or(1);
    let images = number("NACRE_CRASH_IMAGES").unwrap_or(4000);
    let campaign = Campaign { seed, stages: vec![Stage::Cached(SEQUENCES)], per_point: None };
    let limits = Limits { jobs: 1, time: None, images: Some(images), violations: 1 };
    let outcome = campaign.run(subject, &limits, None, &mut |_| {}).expect("it can be run");
    println!("{}, {:?}: {}", subject.name(), outcome.elapsed, outcome.report);
    assert!(outcome.is_good(), "{:#?}\n{}", outcome.failures, outcome.report);
    assert!(outcome.images >= images);
}

/// Sequences with a flaw: in one of them a crash shows it. It can be made smaller, written, read, and seen again.
fn is_found<S: Subject>(subject: &S, belief: Belief, flaw: Flaw) {
    let mut rig = Rig::new(subject, MEMORY);
    let settings = CachedSettings { belief, flaw, max_violations: 1, ..CachedSettings::default() };
    let seeds = if let Flaw::Cache(_) = flaw { OF_SELF_TEST } else { 1..60 };
    let found = seeds.into_iter().find_map(|seed| {
        let report = explore_cached(&mut rig, &cached(subject, seed), &settings).expect("it can be run");
        report.violations.into_iter().next()
    });
    let found = found.unwrap_or_else(|| panic!("{}: {belief:?}, {flaw:?}: not found", subject.name()));
    println!("{}: {belief:?}, {flaw:?}: {found}", subject.name());
    // One mistake of the buffer stands for all: making a case smaller takes hundreds of explorations.
    let (Flaw::Layout(_) | Flaw::Cache(BufferMistake::SyncForgets)) = flaw else { return };
    let smaller = minimise(&mut rig, &found).expect("it can be made smaller");
    let Case::Cached(case) = &smaller.case else { panic!("it is one of a write buffer") };
    assert!(case.sequence.ops.len() < 20, "{:?}", case.sequence.ops);
    let text = smaller.case.to_text(subject, &smaller.problems);
    let (layout, again) = Case::parse(&text).expect("it can be read");
    assert_eq!((layout.as_str(), &again), (subject.name(), &smaller.case));
    let (situation, problems) = reproduce(&mut rig, &again).expect("it can be produced again");
    assert!(!problems.is_empty(), "{situation}");
    let without = CachedCase { mistake: 0, buffer_mistake: None, ..case.clone() };
    let sound = CachedSettings { belief, max_violations: 1, ..CachedSettings::default() };
    let report = explore_cached(&mut rig, &without.sequence, &sound).expect("it can be run");
    assert!(report.violations.is_empty(), "without {flaw:?}: {:#?}", report.violations);
    let (situation, problems) = reproduce(&mut rig, &Case::Cached(without)).expect("it can be run");
    assert!(problems.is_empty(), "without {flaw:?}: {situation}: {problems:?}");
}

fn mistake<S: Subject>(subject: &S, words: &str) -> Flaw {
    let all = subject.mistakes();
    let found = all.iter().find(|mistake| mistake.words == words);
    Flaw::Layout(found.unwrap_or_else(|| panic!("{words} is a mistake")).number)
}

#[test]
fn what_was_synchronised_survives_on_the_log_layout() {
    survives(&Log);
}

#[test]
fn what_was_synchronised_survives_on_the_inplace_layout() {
    survives(&Inplace);
}

#[test]
fn what_was_synchronised_survives_on_the_pool_layout() {
    survives(&Pool);
}

#[test]
fn what_was_synchronised_survives_on_the_shadow_layout() {
    survives(&Shadow);
    survives(&ShadowInPlace);
}

/// Where the predictors send few writes to the disk, and where they send nearly all; while blocks move up and down.
#[test]
fn what_was_synchronised_survives_beside_a_disk() {
    survives(&LogWithDisk::default());
}

#[test]
fn what_was_synchronised_survives_on_a_disk() {
    survives(&LogWithDisk::ON_DISK);
}

/// The judge is not blind: whoever believes in more than is promised is shown a crash, and so is a broken machine.
#[test]
fn wrong_beliefs_and_flaws_are_found() {
    for belief in [Belief::LostSync, Belief::DurableOnReturn, Belief::RenameSyncs, Belief::CloseSyncs] {
        is_found(&Log, belief, Flaw::None);
        is_found(&Inplace, belief, Flaw::None);
    }
    is_found(&Log, Belief::Right, Flaw::Memory(Defect::NoFences));
    is_found(&Pool, Belief::Right, Flaw::Memory(Defect::NoFences));
    is_found(&Shadow, Belief::Right, Flaw::Memory(Defect::NoFences));
    is_found(&Inplace, Belief::Right, Flaw::Memory(Defect::NoFences));
    let early = mistake(&Inplace, "a single word is stored before its data is durable");
    is_found(&Inplace, Belief::Right, early);
    let early = mistake(&Log, "an entry is committed before its data is durable");
    is_found(&Log, Belief::Right, early);
}

/// What was acknowledged rests on a disk that nobody has flushed, or not at the right time.
#[test]
fn a_commit_that_does_not_wait_for_the_disk_is_found() {
    for words in [
        "a block on a disk is named before the disk was flushed",
        "a disk is flushed before the last write that the flush is for",
    ] {
        for subject in [LogWithDisk::default(), LogWithDisk::ON_DISK] {
            is_found(&subject, Belief::Right, mistake(&subject, words));
        }
    }
}

/// Each mistake of a buffer is found in the sequences of the self-test. Over other layouts than the log layout with
/// `NACRE_CRASH_ALL`, as in `make nightly`: it takes minutes.
fn mistakes_of_the_buffer_are_found<S: Subject>(subject: &S) {
    if std::env::var_os("NACRE_CRASH_ALL").is_none() && subject.name() != Log.name() {
        println!("left out: mistakes of the buffer over {} (NACRE_CRASH_ALL)", subject.name());
        return;
    }
    for mistake in BufferMistake::ALL
        .into_iter()
        .filter(|mistake| mistake.is_one(subject.overwrites() == Overwrites::Whole))
    {
        is_found(subject, Belief::Right, Flaw::Cache(mistake));
    }
}

#[test]
fn mistakes_of_the_buffer_are_found_over_the_log_layout() {
    mistakes_of_the_buffer_are_found(&Log);
}

#[test]
fn mistakes_of_the_buffer_are_found_over_the_inplace_layout() {
    mistakes_of_the_buffer_are_found(&Inplace);
}

#[test]
fn mistakes_of_the_buffer_are_found_over_the_pool_layout() {
    mistakes_of_the_buffer_are_found(&Pool);
}

#[test]
fn mistakes_of_the_buffer_are_found_over_the_shadow_layout() {
    mistakes_of_the_buffer_are_found(&Shadow);
}

#[test]
fn mistakes_of_the_buffer_are_found_beside_a_disk() {
    mistakes_of_the_buffer_are_found(&LogWithDisk::default());
}

#[test]
fn mistakes_of_the_buffer_are_found_on_a_disk() {
    mistakes_of_the_buffer_are_found(&LogWithDisk::ON_DISK);
}

/// What only a crash within recovery shows is found, and can be seen again.
#[test]
fn a_crash_within_recovery_is_found() {
    let mut rig = Rig::new(&Inplace, MEMORY);
    let flaw = mistake(&Inplace, "recovery ends a transaction before it is undone");
    let settings = CachedSettings { flaw, max_violations: 1, recovery_every: 4, ..CachedSettings::default() };
    let found = (1..60).find_map(|seed| {
        let report = explore_cached(&mut rig, &cached(&Inplace, seed), &settings).expect("it can be run");
        report.violations.into_iter().next()
    });
    let found = found.expect("it is found");
    let smaller = minimise(&mut rig, &found).expect("it can be made smaller");
    let Case::Cached(case) = &smaller.case else { panic!("it is one of a write buffer") };
    assert!(case.recovery.is_some(), "{smaller}");
    let text = smaller.case.to_text(&Inplace, &smaller.problems);
    let (_, again) = Case::parse(&text).expect("it can be read");
    assert_eq!(again, smaller.case);
    let (situation, problems) = reproduce(&mut rig, &again).expect("it can be produced again");
    assert!(!problems.is_empty() && situation.contains("during recovery"), "{situation}");
}
