use std::collections::{BTreeMap, BTreeSet};

use nacre_media::crash::Sampling;

use super::super::explore::{MEMORY, Settings, explore};
use super::super::record::Rig;
use super::super::report::Report;
use super::super::sequences::Length;
use super::super::workload::{deep, fixed};
use super::super::{
    Campaign, Inplace, InplaceLinear, Limits, Log, LogWithDisk, Outcome, Pool, PoolVolumes, Shadow,
    ShadowInPlace, ShadowWithDisk, Stage, Subject,
};
use super::{COVERED, FEW, Kinds, MORE, few, kind_of, own_points, short_of_images};

#[test]
fn a_kind_has_neither_numbers_nor_paths() {
    for (name, kind) in [
        ("create", "create"),
        ("create file d/n", "create file"),
        ("rename exchange d/a e/c", "rename exchange"),
        ("inode-chunk-scattered-17", "inode-chunk-scattered"),
        ("random-332-14", "random"),
        ("cached-5", "cached"),
        ("3 lanes: write d/a 0 4096", "lanes write"),
        ("extents of both, 3", "extents of both,"),
        ("full (Blocks(1), 2 entries): unlink d/a", "full entries) unlink"),
        // Of several operations the last one is crashed.
        ("unlink d/a; write d/a 0 4096", "write"),
        ("below: demote d/a 0 64; read d/a", "below read"),
        ("more-than-13-names", ""),
    ] {
        assert_eq!(kind_of(name), kind, "{name}");
    }
}

/// Five workloads of one kind, three of another, and one of a third one.
fn kinds(seed: u64) -> Kinds {
    Kinds::new((0..9).map(|workload| (workload, (0, kind(workload)))), seed)
}

/// The kind of a workload of these.
fn kind(workload: usize) -> usize {
    [0, 0, 0, 0, 0, 1, 1, 1, 2][workload]
}

fn sorted(workloads: impl IntoIterator<Item = usize>) -> Vec<usize> {
    let mut workloads: Vec<usize> = workloads.into_iter().collect();
    workloads.sort_unstable();
    workloads
}

#[test]
fn each_kind_has_its_turn() {
    let kinds = kinds(7);
    let (firsts, others) = (kinds.firsts(), kinds.others(&BTreeSet::new()));
    assert_eq!(sorted(firsts.iter().map(|workload| kind(*workload))), [0, 1, 2]);
    assert_eq!(sorted(firsts.iter().chain(&others).copied()), (0..9).collect::<Vec<_>>(), "each once");
    // The second and third of two kinds in turn, then those that only one of them has left.
    assert_eq!(sorted(others[..2].iter().map(|workload| kind(*workload))), [0, 1]);
    assert_eq!(sorted(others[2..4].iter().map(|workload| kind(*workload))), [0, 1]);
    assert_eq!(others[4..].iter().map(|workload| kind(*workload)).collect::<Vec<_>>(), [0, 0]);
}

#[test]
fn the_stages_are_in_their_order() {
    for seed in 0..8 {
        // Three workloads of one kind each in the first stage, six of two kinds in the second one.
        let stage = |workload: usize| (workload / 3).min(1);
        let kind = |workload: usize| if stage(workload) == 0 { workload } else { workload % 2 };
        let kinds = Kinds::new((0..9).map(|workload| (workload, (stage(workload), kind(workload)))), seed);
        let firsts: Vec<usize> = kinds.firsts().into_iter().map(stage).collect();
        assert_eq!(firsts, [0, 0, 0, 1, 1], "seed {seed}");
    }
}

#[test]
fn kinds_that_reach_what_is_short_go_first() {
    for seed in 0..8 {
        let kinds = kinds(seed);
        let of_one =
            kinds.firsts().into_iter().find(|workload| kind(*workload) == 1).expect("a workload of it");
        let wanted = BTreeSet::from([of_one]);
        let order: Vec<usize> = kinds.others(&wanted).into_iter().map(kind).collect();
        assert_eq!(order, [1, 1, 0, 0, 0, 0], "seed {seed}");
        let all = kinds.all(&wanted);
        assert_eq!(all[0], of_one, "seed {seed}");
        assert_eq!(sorted(all), (0..9).collect::<Vec<_>>());
    }
}

#[test]
fn the_order_is_that_of_the_seed() {
    let order = |seed| kinds(seed).all(&BTreeSet::new());
    assert_eq!(order(1), order(1));
    assert!((2..20).any(|seed| order(seed) != order(1)));
}

#[test]
fn what_reaches_a_commit_point_with_few_images_is_known() {
    let report =
        |commit_points: [u64; 3]| Report { commit_points: commit_points.to_vec(), ..Report::default() };
    let each = BTreeMap::from([(4, report([50, 0, 2])), (5, report([50, 0, 0])), (6, report([0, 0, 97]))]);
    let short = |own: [bool; 3], all: [u64; 3]| short_of_images(&own, &report(all), &each);
    assert_eq!(short([true; 3], [COVERED, 0, COVERED - 1]), BTreeSet::from([4, 6]));
    assert_eq!(short([true, true, false], [COVERED, 0, COVERED - 1]), BTreeSet::new(), "others cover it");
    assert_eq!(short([true; 3], [COVERED, 0, COVERED]), BTreeSet::new());
}

#[test]
fn no_more_images_are_made_than_without() {
    let sampling = Sampling { exhaustive_up_to: 8, samples: 48, seed: 3 };
    assert_eq!(few(sampling, true), Sampling { exhaustive_up_to: 8, samples: MORE, seed: 3 });
    assert_eq!(few(sampling, false), Sampling { exhaustive_up_to: FEW, samples: FEW, seed: 3 });
}

#[test]
fn few_images_reach_what_many_reach() {
    let workload = fixed().into_iter().find(|workload| workload.name == "create").expect("a workload");
    let mut rig = Rig::new(&Log, MEMORY);
    let sampling = Sampling { exhaustive_up_to: 64, samples: 48, seed: 1 };
    let many = Settings { sampling, ..Settings::default() };
    let few = explore(&mut rig, &workload, &Settings { few: true, ..many }).expect("it can be run");
    let many = explore(&mut rig, &workload, &many).expect("it can be run");
    assert!(few.violations.is_empty() && many.violations.is_empty(), "{few}{many}");
    assert_eq!(few.points, many.points);
    assert!(few.images > 0 && few.images < many.images, "{} and {}", few.images, many.images);
    assert!(few.commit_points[0] > 0, "an inode is made: {:?}", few.commit_points);
}

/// Images at the time of a read, in each workload that is there for it.
fn images_of_reads<S: Subject>(subject: &S) -> Vec<u64> {
    let name = "the time of a read";
    let point = subject.commit_points().iter().position(|point| *point == name).expect("a commit point");
    let mut rig = Rig::new(subject, MEMORY);
    let sampling = Sampling { exhaustive_up_to: 8, samples: 8, seed: 1 };
    let settings = Settings { sampling, few: true, ..Settings::default() };
    let reads = deep().into_iter().filter(|workload| workload.name.starts_with("times-of-reads"));
    let images = reads.map(|workload| {
        let report = explore(&mut rig, &workload, &settings).expect("it can be run");
        assert!(report.violations.is_empty(), "{}: {report}", workload.name);
        report.commit_points[point]
    });
    images.collect()
}

/// A run of the pool layout had 61 such images, one of the shadow layout 8.
#[test]
fn times_of_reads_are_covered() {
    for images in [images_of_reads(&Pool), images_of_reads(&Shadow)] {
        assert!(
            images.iter().all(|images| *images > 10) && images.iter().sum::<u64>() >= COVERED,
            "{images:?}"
        );
    }
}

fn names_elsewhere_are_commit_points<S: Subject>(subject: &S) {
    for other in subject.covered_elsewhere().iter().chain(subject.covered_unbuffered()) {
        for point in other.points {
            assert!(subject.commit_points().contains(point), "{}: {point}", subject.name());
        }
    }
}

#[test]
fn what_other_runs_cover_is_a_commit_point() {
    names_elsewhere_are_commit_points(&Log);
    names_elsewhere_are_commit_points(&LogWithDisk::with_two());
    names_elsewhere_are_commit_points(&InplaceLinear);
    names_elsewhere_are_commit_points(&PoolVolumes);
    names_elsewhere_are_commit_points(&ShadowInPlace);
    names_elsewhere_are_commit_points(&ShadowWithDisk::anticached());
    let own = own_points(&Pool, true);
    assert_eq!(own.iter().filter(|is_own| !**is_own).count(), Pool.covered_unbuffered()[0].points.len());
    assert!(own_points(&Pool, false).iter().all(|is_own| *is_own));
    // The layouts themselves leave none to others.
    let own = [Log.covered_elsewhere(), Inplace.covered_elsewhere(), Pool.covered_elsewhere()];
    assert!(own.concat().is_empty() && Shadow.covered_elsewhere().is_empty());
}

fn run(stages: &[Stage], images: Option<u64>) -> Outcome {
    let campaign = Campaign { seed: 5, stages: stages.to_vec(), per_point: Some(8) };
    let limits = Limits { jobs: 1, time: None, images, violations: 1 };
    let outcome = campaign.run(&Log, &limits, None, &mut |_| {}).expect("it can be run");
    assert!(outcome.is_good(), "{:#?}\n{}", outcome.failures, outcome.report);
    outcome
}

/// A workload that was explored twice counts once, with all its images.
#[test]
fn a_limit_that_is_not_reached_changes_nothing() {
    let all = run(&[Stage::Random(2)], None);
    let limited = run(&[Stage::Random(2)], Some(u64::MAX));
    assert_eq!((limited.workloads, limited.visited), ((2, 2), 2));
    assert!(limited.images > all.images, "it looked twice");
    assert_eq!(limited.report.to_string(), all.report.to_string());
    assert_eq!(limited.report.commit_points, all.report.commit_points);
}

#[test]
fn a_limit_is_spread_over_workloads() {
    let stages = [Stage::Sequences(Length::One)];
    let one = run(&stages, Some(1));
    assert_eq!((one.workloads.0, one.visited), (0, 1), "it ends at its limit");
    let some = run(&stages, Some(300));
    assert_eq!(some.workloads.0, 0, "none is explored in full before each kind has been");
    assert!(some.visited >= 3 && some.images >= 300, "{} workloads", some.visited);
}
