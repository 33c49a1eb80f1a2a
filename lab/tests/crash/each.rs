//! Each layout, crashed at every fence: a slice of the exploration by `nacre crash`, which may be as long as one likes.
//! With the same seed, that command finds the same violations and writes a trace of each.
//!
//! `NACRE_CRASH_SEED` is what samples and random workloads depend on (1 by default), `NACRE_CRASH_IMAGES` how many images
//! of pairs of operations are explored.

use std::path::Path;
use std::sync::Arc;

use nacre_lab::crash::sequences::Length;
use nacre_lab::crash::{
    Campaign, Flaw, Limits, MEMORY, Mistake, Mounting, Outcome, Runner, Settings, Stage, Subject, Tree,
    Workload, deep, fixed, random,
};
use nacre_lab::environment::number;
use nacre_media::SimPm;
use nacre_media::crash::{Replay, Sampling};

use crate::layouts::each_layout;

pub(crate) fn limits() -> Limits {
    Limits { jobs: 1, time: None, images: None, violations: 5 }
}

pub(crate) fn campaign(stages: &[Stage]) -> Campaign {
    let seed = number("NACRE_CRASH_SEED").unwrap_or(1);
    Campaign { seed, stages: stages.to_vec(), per_point: Some(64) }
}

/// Explores, prints what was tried, and fails when something is wrong.
pub(crate) fn run<S: Subject>(
    subject: &S,
    stages: &[Stage],
    limits: &Limits,
    file: Option<&Path>,
) -> Outcome {
    let outcome = campaign(stages).run(subject, limits, file, &mut |_| {}).expect("it can be run");
    println!("{:?}: {}", outcome.elapsed, outcome.report);
    for (count, name) in outcome.report.commit_points.iter().zip(subject.commit_points()) {
        println!("{count:8} {name}");
    }
    assert!(outcome.is_good(), "{:#?}\n{}", outcome.failures, outcome.report);
    outcome
}

/// The workload of this name.
pub(crate) fn by_name(name: &str) -> Workload {
    let all = fixed().into_iter().chain(deep());
    all.into_iter().find(|workload| workload.name == name).unwrap_or_else(|| panic!("{name} is a workload"))
}

/// The mistake of a layout with this description.
pub(crate) fn mistake<S: Subject>(subject: &S, words: &str) -> Mistake {
    let all = subject.mistakes();
    *all.iter().find(|mistake| mistake.words == words).unwrap_or_else(|| panic!("{words} is a mistake"))
}

/// Settings that look for the first violation.
pub(crate) fn quick(flaw: Flaw) -> Settings {
    Settings {
        sampling: Sampling { exhaustive_up_to: 256, samples: 64, seed: 1 },
        max_violations: 1,
        flaw,
        ..Settings::default()
    }
}

/// A short exploration goes on where it was stopped, and a file of another one is refused.
fn short_sequences_survive_in_two_runs<S: Subject>(subject: &S) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("progress");
    let images = number("NACRE_CRASH_IMAGES").unwrap_or(4_000);
    let stages = [Stage::Sequences(Length::One), Stage::Sequences(Length::Two)];
    let half = Limits { images: Some(images / 2), ..limits() };
    let first = run(subject, &stages, &half, Some(&file));
    assert!(first.workloads.0 > 0 && first.workloads.0 < first.workloads.1);
    let second = run(subject, &stages, &half, Some(&file));
    assert!(second.workloads.0 > first.workloads.0, "it goes on");
    assert!(second.report.images >= first.report.images + second.images / 2, "it counts on");
    let other = campaign(&[Stage::Fixed]).run(subject, &limits(), Some(&file), &mut |_| {});
    assert!(other.is_err(), "the file is of another exploration");
}

/// A crash while a file system is made on PM that holds none, or some bytes, leaves none or a whole one.
fn mkfs_leaves_none_or_a_whole_one<S: Subject>(subject: &S) {
    let pm = Arc::new(SimPm::new(MEMORY));
    subject.mkfs(&pm).expect("mkfs");
    let mut runner = Runner::new(subject.mount(&pm, Mounting::default()).expect("mount"));
    for (step, op) in random(1, 0).setup.iter().enumerate() {
        runner.run(step as u64, op).expect("an operation");
    }
    let old = Tree::of(&runner.fs).expect("a tree");
    subject.unmount(runner.into_fs()).expect("unmount");
    for base in [vec![0; MEMORY as usize], pm.snapshot()] {
        let pm = Arc::new(SimPm::from_image(&base));
        pm.start_recording();
        subject.mkfs(&pm).expect("mkfs");
        let trace = pm.stop_recording();
        let (mut none, mut some) = (0, 0);
        let mut replay = Replay::new(base, &trace);
        while let Some(point) = replay.advance() {
            pm.load(replay.media());
            for image in replay.images(&Sampling { samples: 64, ..Sampling::default() }).iter() {
                image.apply(&pm);
                match subject.mount(&pm, Mounting::default()) {
                    Ok(fs) => {
                        let tree = Tree::of(&fs).expect("a tree");
                        assert!(tree.is_empty() || tree == old, "{point:?}, {image:?}");
                        subject.abandon(fs);
                        some += 1;
                    }
                    Err(_) => {
                        assert!(!subject.is_formatted(&pm), "half a file system: {point:?}, {image:?}");
                        none += 1;
                    }
                }
                pm.load(replay.media());
            }
        }
        assert!(none > 0 && some > 0);
    }
}

macro_rules! survives {
    ($layout:ident, $registered:ty) => {
        mod $layout {
            use nacre_lab::crash::Stage;

            fn run(stage: Stage) {
                super::run(&<$registered>::default(), &[stage], &super::limits(), None);
            }

            #[test]
            fn scripts_survive() {
                run(Stage::Fixed);
            }

            #[test]
            fn random_workloads_survive() {
                run(Stage::Random(2));
            }

            #[test]
            fn threads_survive() {
                run(Stage::Threads(1));
            }

            /// Each operation on a device that is full, some of all.
            #[test]
            fn full_devices_survive() {
                run(Stage::Full(30));
            }

            #[test]
            fn short_sequences_survive_in_two_runs() {
                super::short_sequences_survive_in_two_runs(&<$registered>::default());
            }

            #[test]
            fn mkfs_leaves_none_or_a_whole_one() {
                super::mkfs_leaves_none_or_a_whole_one(&<$registered>::default());
            }
        }
    };
}

each_layout!(survives);
// Overwrites in place are a matter of crashes: elsewhere the layout is the same.
survives!(shadow_in_place, nacre_lab::crash::ShadowInPlace);
