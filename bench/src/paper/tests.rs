use std::collections::HashSet;
use std::fs;
use std::path::Path;

use super::{
    Across, Amount, Answers, Asked, OverAt, Reading, Settings, Source, Taken, Value, Way, experiments, find,
    papers, read,
};
use crate::counters;
use crate::report::schema::{Bound, Claim, Meant, Verdict};
use crate::spec::Spec;
use crate::workload;

const TARGETS: &[&str] = &[
    "preset:nacre",
    "preset:nova",
    "preset:pmfs",
    "preset:hinfs",
    "preset:hinfs-wb",
    "preset:hinfs-nclfw",
    "preset:tpfs",
    "preset:bpfs",
    "preset:acbpfs",
    "preset:spfs",
    "peer:tmpfs",
    "peer:ramfs",
    "peer:ext4",
    "peer:ext4-disk",
    "peer:ext4-disk,copy=held",
    "mount:spfs",
    "peer:xfs-disk",
    "peer:ext4-dj",
    "peer:xfs-ml",
    "peer:ext4-dax",
    "peer:nilfs2",
    "peer:f2fs",
    "peer:dm-writecache",
    "peer:dm-writecache,fs=xfs",
    "peer:ext2",
];

/// A small catalog with one of each.
const SMALL: &str = r#"
name = "small"
short = "Small"
title = "Small."

[settings]
emulate = "pcm"
dram = "1g"

[[system]]
name = "New"
target = "preset:hinfs"
settings = { dram = "2g" }

[[system]]
name = "Old"
target = "preset:nova"

[[system]]
name = "Third"
target = "peer:ext4"

[[system]]
name = "Lost"
absent = "nobody has Lost"

[[overall]]
of = "New"
over = ["Old", "Third"]
ratio = 4
across = "most"
experiments = ["small-fig1"]
goal = { at_least = 4 }

[[experiment]]
name = "small-fig1"
figure = "figure 1"
title = "Sizes"
about = "Sizes."
differs = "Nothing."
metric = { name = "throughput", unit = "op/s", better = "more" }
axis = { name = "I/O size", unit = "B", log2 = true }
systems = ["New", "Old", "Third", "Lost"]
settings = { emulate = "pcm,latency={}" }
sweep = ["64", "4k"]

[[experiment.panel]]
name = "a"
workload = "micro.read,io={}"
values = [
    { of = "New", over = "Old", ratio = 2, goal = { at_least = 1.5 }, note = "twice" },
    { of = "New", over = ["Old", "Third", "Lost"], at = "4k", ratio = 3, is = "at most", across = "mean" },
    { of = "New", over = "Lost", ratio = 3, across = "most" },
    { of = "New", at = "64", over = "New", over_at = "best", ratio = 0.5, source = "nacre", goal = { at_least = 0.4, at_most = 0.6 } },
    { of = "Old", at = "4k", value = 7, counter = "pm.lines", source = "table" },
]

[[experiment.panel]]
name = "b"
workload = "program.rocksdb,value={}"
values = []
"#;

/// 100 for the first system at the first point; others have multiples.
fn answer(asked: Asked<'_>) -> Result<Reading, String> {
    if let Some(counter) = asked.counter {
        assert_eq!(counter, "pm.lines");
        return Ok(Reading { median: 7.0, interval: None });
    }
    let one = |(system, point): (&super::System, &str)| {
        let size = if point == "4k" { 2.0 } else { 1.0 };
        match system.name.as_str() {
            "New" => 100.0 * size,
            "Old" => 50.0 * size,
            "Third" => 25.0 * size,
            other => panic!("{other} cannot be measured"),
        }
    };
    let median = match asked.over {
        None => one(asked.of),
        Some(over) => one(asked.of) / one(over),
    };
    Ok(Reading { median, interval: Some((median - 1.0, median + 1.0)) })
}

fn small_claims(answers: &mut Answers<'_>) -> Vec<Claim> {
    read::paper(SMALL).expect("it is well-formed").experiments[0].claims(answers)
}

#[test]
fn panels_and_sweeps_become_experiments_and_points() {
    let paper = read::paper(SMALL).expect("it is well-formed");
    let [a, b] = &paper.experiments[..] else { panic!("two panels are two experiments") };
    assert_eq!((a.name.as_str(), b.name.as_str()), ("small-fig1.a", "small-fig1.b"));
    let point = a.point("4k").expect("the sweep has it");
    assert_eq!((point.label.as_str(), point.x), ("4 KiB", Some(4096.0)));
    assert_eq!(point.workload.as_deref(), Ok("micro.read,io=4k"));
    let settings = a.settings(&a.systems[0], point);
    assert_eq!(settings.emulate.as_deref(), Some("pcm,latency=4k"), "the point's own");
    assert_eq!(settings.dram.as_deref(), Some("2g"), "the system's before what is common");
    assert_eq!(a.settings(&a.systems[1], point).dram.as_deref(), Some("1g"));
    assert_eq!(a.ways(), [Way::Library, Way::Mount], "a peer pays for system calls");
    assert_eq!(b.ways(), [Way::Mount], "a program needs a directory");
    assert_eq!(a.systems[0].target(Way::Mount).as_deref(), Some("mount:hinfs"));
    assert_eq!(a.systems[2].target(Way::Mount).as_deref(), Some("peer:ext4"));
    assert_eq!(a.systems[3].target(Way::Library), None);
}

#[test]
fn what_is_wrong_in_a_catalog_is_told() {
    for (from, to) in [
        ("goal = { at_least = 1.5 }", "goal = {}"),
        ("ratio = 2,", "value = 2,"),
        ("target = \"peer:ext4\"", "target = \"peer:ext4\"\nabsent = \"and not\""),
        ("systems = [\"New\"", "systems = [\"Unknown\""),
        ("sweep = [\"64\"", "sweep = [\"many\""),
        ("note = \"twice\"", "noted = \"twice\""),
    ] {
        assert!(SMALL.contains(from), "{from}");
        assert!(read::paper(&SMALL.replace(from, to)).is_err(), "{to}");
    }
}

#[test]
fn claims_stand_beside_what_was_found() {
    let claims = small_claims(&mut answer);
    let said: Vec<_> =
        claims.iter().map(|claim| (claim.what.as_str(), claim.found, claim.verdict())).collect();
    assert_eq!(
        said,
        [
            ("New over Old; 64 B: twice", Some(2.0), Verdict::Holds),
            ("New over Old; 4 KiB: twice", Some(2.0), Verdict::Holds),
            ("New over Old, Third; 4 KiB (mean)", Some(3.0), Verdict::Beside),
            ("New over Old, Third; 4 KiB (mean), mounted", Some(3.0), Verdict::Beside),
            ("New over Lost; all points (largest)", None, Verdict::Waits),
            ("New at 64 B, over its best", Some(0.5), Verdict::Holds),
            ("Old; 4 KiB", Some(7.0), Verdict::Beside),
        ]
    );
    assert_eq!(claims[0].interval, Some((1.0, 3.0)));
    assert_eq!((claims[2].interval, claims[2].meant), (None, Meant::AtMost), "a mean has none");
    assert_eq!(claims[4].waits_for.as_deref(), Some("nobody has Lost"));
    assert_eq!((claims[0].source.as_str(), claims[5].source.as_str()), ("Small, figure 1", "nacre"));
    assert_eq!(claims[5].holds_if, Some(Bound::Between(0.4, 0.6)));
    assert_eq!((claims[5].unit.as_deref(), claims[6].unit.as_deref()), (None, Some("lines/op")));
}

/// A goal of the process is none of a mount, where the same value is shown.
#[test]
fn a_goal_of_one_way_is_not_held_against_the_other() {
    let bound = r#"over = ["Old", "Third", "Lost"], at = "4k", ratio = 3, is = "at most", across = "mean""#;
    let verdicts = |goal: &str| {
        let catalog = SMALL.replace(bound, &format!("{bound}, {goal}"));
        assert_ne!(catalog, SMALL);
        let claims = read::paper(&catalog).expect("it is well-formed").experiments[0].claims(&mut answer);
        let of_peers = claims.iter().filter(|claim| claim.what.starts_with("New over Old, Third"));
        of_peers.map(Claim::verdict).collect::<Vec<_>>()
    };
    assert_eq!(verdicts("goal = { at_most = 2 }"), [Verdict::Missed, Verdict::Missed]);
    assert_eq!(verdicts("goal = { at_most = 2, on = \"process\" }"), [Verdict::Missed, Verdict::Beside]);
    assert_eq!(verdicts("goal = { at_most = 2, on = \"mount\" }"), [Verdict::Beside, Verdict::Missed]);
}

#[test]
fn a_value_without_a_peer_is_looked_for_mounted_where_it_says_so() {
    let note = r#"goal = { at_least = 1.5 }, note = "twice""#;
    let catalog = SMALL.replace(note, &format!("both_ways = true, {note}"));
    assert_ne!(catalog, SMALL);
    let mut ways = Vec::new();
    let claims = read::paper(&catalog).expect("it is well-formed").experiments[0].claims(&mut |asked| {
        if asked.of.0.name == "New" && asked.over.is_some_and(|(over, _)| over.name == "Old") {
            ways.push(asked.way);
        }
        answer(asked)
    });
    let twice: Vec<&str> = claims
        .iter()
        .filter(|claim| claim.what.ends_with("twice"))
        .map(|claim| claim.what.as_str())
        .collect();
    assert_eq!(
        twice,
        [
            "New over Old; 64 B: twice",
            "New over Old; 4 KiB: twice",
            "New over Old; 64 B, mounted: twice",
            "New over Old; 4 KiB, mounted: twice",
        ]
    );
    assert_eq!(ways[..4], [Way::Library, Way::Library, Way::Mount, Way::Mount]);
}

/// The paper's system is as good as a peer at the most; ours is twice as good.
#[test]
fn a_value_above_a_weak_spot_is_better_and_not_only_another_one() {
    let value = r#"{ of = "New", over = "Lost", ratio = 3, across = "most" }"#;
    let verdict = |instead: &str| {
        let catalog = SMALL.replace(value, instead);
        assert_ne!(catalog, SMALL);
        let claims = read::paper(&catalog).expect("it is well-formed").experiments[0].claims(&mut answer);
        // Two points of the first value, and two ways of the second come before it.
        claims[4].verdict()
    };
    // 4 is found of New over Third, 2 of New over Old.
    let of = |of: &str, over: &str, rest: &str| {
        verdict(&format!(r#"{{ of = "{of}", over = "{over}", at = "4k", {rest} }}"#))
    };
    assert_eq!(of("New", "Third", r#"ratio = 1, is = "at most""#), Verdict::Better);
    assert_eq!(of("New", "Third", "ratio = 0.8"), Verdict::Better);
    assert_eq!(of("New", "Third", "ratio = 1.8"), Verdict::Beside, "no weak spot");
    assert_eq!(of("New", "Third", r#"ratio = 1, is = "at least""#), Verdict::Beside, "no weak spot");
    assert_eq!(of("New", "Old", r#"ratio = 1, is = "at most""#), Verdict::Beside, "both are ours");
    assert_eq!(of("Third", "New", "ratio = 1.5"), Verdict::Better, "the other way round");
    assert_eq!(of("Third", "New", "ratio = 0.1"), Verdict::Beside, "no weak spot");
    let goal = "goal = { at_least = 9 }";
    assert_eq!(of("New", "Third", &format!("ratio = 0.8, {goal}")), Verdict::Missed, "a goal is held to");
}

/// The figures to reach of both papers' issues are held to, so that a run of each can miss.
#[test]
fn every_figure_to_reach_of_papers_001_and_004_is_a_goal() {
    for (name, least) in [
        ("spfs-fig5.a", 3),
        ("spfs-fig5.b", 1),
        ("spfs-fig5.c", 1),
        ("spfs-fig6.a", 4),
        ("spfs-fig6.b", 1),
        ("spfs-fig6.c", 1),
        ("spfs-fig7a.read", 1),
        ("spfs-fig7a.randread", 1),
        ("spfs-fig7a.write", 1),
        ("spfs-fig7a.reread", 1),
        ("spfs-fig7a.rewrite", 1),
        ("spfs-fig7a.randwrite", 1),
        ("spfs-fig7b", 2),
        ("spfs-fig7c", 2),
        ("acbpfs-table1", 1),
        ("acbpfs-fig3.a", 3),
        ("acbpfs-fig3.b", 2),
        ("acbpfs-fig3.c", 2),
        ("acbpfs-fig4", 7),
        ("acbpfs-fig5a", 6),
        ("acbpfs-fig5b", 2),
        ("acbpfs-nova", 1),
        ("acbpfs-recovery", 1),
        ("spfs-copies", 1),
        ("spfs-mount", 3),
        ("spfs-lookup", 1),
        ("spfs-dram", 2),
    ] {
        let found = find(name);
        assert_eq!(found.len(), 1, "{name}");
        let goals = found[0].values.iter().filter(|value| value.goal.is_some()).count();
        assert!(goals >= least, "{name}: {goals} goals");
    }
    let table = find("acbpfs-table1")[0];
    let each = table.values.iter().find(|value| value.goal.is_some()).expect("a goal");
    assert_eq!(
        (each.at.len(), each.across, each.on_both),
        (13, Across::Each, true),
        "each operation, both ways"
    );
}

#[test]
fn claims_wait_for_what_is_not_there_yet() {
    let mut without_new = |asked: Asked<'_>| {
        if asked.of.0.name == "New" { Err("preset:hinfs is not there yet".to_owned()) } else { answer(asked) }
    };
    let claims = small_claims(&mut without_new);
    assert!(claims[..6].iter().all(|claim| claim.found.is_none() && claim.verdict() == Verdict::Waits));
    assert_eq!(claims[0].waits_for.as_deref(), Some("preset:hinfs is not there yet"));
    assert_eq!(
        claims[2].waits_for.as_deref(),
        Some("nobody has Lost; preset:hinfs is not there yet"),
        "each reason once"
    );
    assert_eq!(claims[6].found, Some(7.0));
}

#[test]
fn what_is_said_of_all_sweeps_is_the_best_of_what_ran() {
    let paper = read::paper(SMALL).expect("it is well-formed");
    let all: Vec<_> = paper.experiments.iter().collect();
    let claims = paper.overall_claims(&paper.overall[0], &all, &mut answer);
    assert_eq!(claims.len(), 2);
    assert_eq!((claims[0].found, claims[0].verdict()), (Some(4.0), Verdict::Holds));
    // A program works on mounts only: in the process there is one panel.
    assert_eq!(claims[0].what, "New over Old, Third; all points (largest)");
    assert_eq!(claims[1].what, "New over Old, Third; all sweeps (largest), mounted");
    assert!(paper.overall_claims(&paper.overall[0], &[], &mut answer).is_empty());
}

#[test]
fn every_figure_that_was_promised_is_there() {
    let mut promised: Vec<String> = Vec::new();
    for (paper, figures) in [
        ("hinfs", [1, 2, 4, 7, 8, 9, 10, 11, 12, 13, 14].as_slice()),
        ("tpfs", &[7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]),
        ("spfs", &[5, 6, 7]),
        ("acbpfs", &[3, 4, 5]),
        ("compare", &[2, 3, 4, 5, 6, 7, 8]),
    ] {
        promised.extend(figures.iter().map(|figure| format!("{paper}-fig{figure}")));
    }
    promised.extend(
        [
            "hinfs-default",
            "acbpfs-table1",
            "acbpfs-nova",
            "acbpfs-recovery",
            "spfs-copies",
            "spfs-mount",
            "spfs-lookup",
            "spfs-dram",
            "tpfs-table1",
            "tpfs-table2",
            "tpfs-predictor",
            "tiers-migration",
            "tiers-foreground",
            "tiers-routes",
        ]
        .map(str::to_owned),
    );
    for name in &promised {
        assert!(!find(name).is_empty(), "{name}");
    }
    for experiment in experiments() {
        assert!(promised.iter().any(|name| experiment.answers_to(name)), "{}", experiment.name);
    }
}

#[test]
fn names_are_unique_and_found() {
    let names: Vec<_> = experiments().map(|experiment| experiment.name.as_str()).collect();
    let unique: HashSet<_> = names.iter().collect();
    assert_eq!(unique.len(), names.len());
    for name in &names {
        assert_eq!(find(name).len(), 1, "{name}");
    }
    let found = |name: &str| find(name).iter().map(|found| found.name.as_str()).collect::<Vec<_>>();
    assert_eq!(found("hinfs-fig10"), ["hinfs-fig10a", "hinfs-fig10b"]);
    assert_eq!(found("hinfs-fig1"), ["hinfs-fig1"], "not figures 10 to 14");
    assert_eq!(found("compare-fig2"), ["compare-fig2.a", "compare-fig2.b"]);
    assert_eq!(found("hinfs").len(), papers()[0].experiments.len());
    assert!(found("hinfs-fig3").is_empty() && found("").is_empty() && found("hin").is_empty());
}

#[test]
fn every_value_refers_to_what_is_there() {
    for experiment in experiments() {
        let name = &experiment.name;
        assert!(!experiment.points.is_empty() && !experiment.systems.is_empty(), "{name}");
        let keys: HashSet<_> = experiment.points.iter().map(|point| &point.key).collect();
        assert_eq!(keys.len(), experiment.points.len(), "{name}");
        let systems: HashSet<_> = experiment.systems.iter().map(|system| &system.name).collect();
        assert_eq!(systems.len(), experiment.systems.len(), "{name}");
        assert!(experiment.baseline.iter().all(|baseline| experiment.system(baseline).is_some()), "{name}");
        for value in &experiment.values {
            for system in value.of.iter().chain(&value.over) {
                assert!(experiment.system(system).is_some(), "{name}: {system}");
            }
            let over_at = match &value.over_at {
                Some(OverAt::Point(key)) => Some(key),
                _ => None,
            };
            for key in value.at.iter().chain(over_at) {
                assert!(experiment.point(key).is_some(), "{name}: {key}");
            }
            assert!(!value.of.is_empty() && !value.at.is_empty() && value.said >= 0.0, "{name}");
            let same = value.over_at.is_none() && value.of.iter().any(|of| value.over.contains(of));
            assert!(!same, "{name}: {:?} over itself is 1", value.of);
            if value.source == Source::Nacre {
                assert!(value.goal.is_some(), "{name}: what we say ourselves is a goal");
            }
            if value.across != Across::Each {
                assert!(value.of.len() * value.over.len().max(1) * value.at.len() > 1, "{name}: one of one");
            }
        }
    }
    for paper in papers() {
        for overall in &paper.overall {
            for name in &overall.experiments {
                let over_at = match &overall.value.over_at {
                    Some(OverAt::Point(key)) => Some(key),
                    _ => None,
                };
                for key in overall.value.at.iter().chain(over_at) {
                    let known = find(name).iter().all(|found| found.point(key).is_some());
                    assert!(known, "{}: {name}: {key}", paper.name);
                }
                let has = |list: &[String]| {
                    list.iter().any(|system| find(name).iter().any(|found| found.system(system).is_some()))
                };
                assert!(has(&overall.value.of) && has(&overall.value.over), "{}: {name}", paper.name);
            }
        }
    }
}

/// The default is to be as good as the paper's system, and is held to that by bounds of its own, not by what both are to each
/// other.
#[test]
fn the_default_has_the_bound_beside_ext4_that_tpfs_has() {
    let mut panels = 0;
    for experiment in find("tpfs").into_iter().filter(|experiment| experiment.system("nacre-2").is_some()) {
        let bound = |name: &str| {
            let both = |value: &&Value| {
                let names: Vec<&str> = value.of.iter().chain(&value.over).map(String::as_str).collect();
                value.source == Source::Nacre && (names == [name, "EXT4"] || names == ["EXT4", name])
            };
            experiment.values.iter().find(both).map(|value| (value.at.clone(), value.across, value.goal))
        };
        assert_eq!(bound("nacre-2"), bound("TPFS-2"), "{}", experiment.name);
        let there = experiment.system("EXT4").is_some();
        assert_eq!(bound("nacre-2").is_some(), there, "{}", experiment.name);
        panels += usize::from(there);
    }
    assert_eq!(panels, 16, "figures 8, 9 and 11 to 16, each with two disks");
}

/// Figure 17 says of the average of all workloads, and of none by itself, where it peaks.
#[test]
fn what_is_said_at_one_point_of_several_experiments_is_their_mean_there() {
    let paper = papers().iter().find(|paper| paper.name == "tpfs").expect("it is there");
    let panels = find("tpfs-fig17");
    let mut answer = |asked: Asked<'_>| {
        let one = |at: &str| match at {
            "16m" => 8.0,
            "64m" => 16.0,
            _ => 4.0,
        };
        let over = asked.over.map_or(1.0, |(_, at)| one(at));
        Ok(Reading { median: one(asked.of.1) / over, interval: None })
    };
    let peaks = paper.overall.iter().filter(|overall| overall.experiments == ["tpfs-fig17"]);
    let claims: Vec<Claim> =
        peaks.flat_map(|overall| paper.overall_claims(overall, &panels, &mut answer)).collect();
    let said: Vec<_> = claims.iter().map(|claim| (&*claim.what, claim.found, claim.verdict())).collect();
    let peak = "(mean): the average of all workloads peaks here";
    assert_eq!(
        said,
        [
            (&*format!("TPFS-2 at 16 MiB, over its best {peak}"), Some(0.5), Verdict::Missed),
            (&*format!("TPFS-2 at 16 MiB over TPFS-2 at 4 KiB {peak}"), Some(2.0), Verdict::Holds),
        ]
    );
}

#[test]
fn every_experiment_says_all_that_it_takes_to_run_it() {
    for experiment in experiments() {
        let name = &experiment.name;
        for text in [&experiment.title, &experiment.about, &experiment.differs, &experiment.figure] {
            assert!(!text.trim().is_empty() && !text.contains("{}"), "{name}: {text}");
        }
        for target in experiment.systems.iter().filter_map(|system| system.target.as_ref().ok()) {
            assert!(TARGETS.contains(&target.as_str()), "{name}: {target}");
        }
        for point in &experiment.points {
            if let Ok(workload) = &point.workload {
                check_workload(name, workload);
            }
            assert_eq!(point.x.is_some(), experiment.axis.unit.is_some(), "{name}: {}", point.key);
            for system in &experiment.systems {
                check_settings(name, &experiment.settings(system, point));
            }
        }
        assert!(!experiment.ways().is_empty(), "{name}");
        let counter = match &experiment.taken {
            Taken::Counter(counter) => Some(counter),
            _ => None,
        };
        let counters = experiment.values.iter().filter_map(|value| value.counter.as_ref()).chain(counter);
        for counter in counters {
            assert!(counters::unit(counter).is_some(), "{name}: nobody counts {counter}");
        }
        let better = counter.and_then(|counter| counters::better(counter));
        assert!(better.is_none_or(|better| better == experiment.metric.better), "{name}: which is better");
    }
}

fn check_workload(name: &str, workload: &str) {
    let spec: Spec = workload.parse().unwrap_or_else(|why| panic!("{name}: {why}"));
    assert_eq!(spec.to_string().matches("{}").count(), 0, "{name}: {workload}");
    workload::make(&spec, 0.001).map(drop).unwrap_or_else(|why| panic!("{name}: {why}"));
}

fn check_settings(name: &str, settings: &Settings) {
    let emulate = settings.emulate.as_deref().expect("every paper has an emulation");
    emulate.parse::<nacre::Emulation>().unwrap_or_else(|error| panic!("{name}: {emulate}: {error}"));
    for amount in [&settings.dram, &settings.pm].into_iter().flatten() {
        amount.parse::<Amount>().unwrap_or_else(|why| panic!("{name}: {why}"));
    }
    if let Some(disk) = &settings.disk {
        assert!(["optane-ssd", "nvme", "sata-ssd", "hdd"].contains(&disk.as_str()), "{name}: {disk}");
    }
    if let Some(data) = &settings.data {
        assert!(matches!(data.parse(), Ok(Amount::Bytes(_))), "{name}: {data}");
    }
    assert!(settings.options.iter().all(|options| !options.contains("{}")), "{name}");
}

#[test]
fn amounts_are_bytes_or_shares() {
    assert_eq!("2g".parse(), Ok(Amount::Bytes(2 << 30)));
    assert_eq!("10%".parse(), Ok(Amount::Share(0.1)));
    for wrong in ["%", "-1%", "0%", "much", ""] {
        assert!(wrong.parse::<Amount>().is_err(), "{wrong}");
    }
}

#[test]
fn the_document_names_every_figure() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/papers.md");
    let document = fs::read_to_string(path).expect("docs/reference/papers.md can be read");
    for experiment in experiments() {
        let figure = experiment.name.split('.').next().expect("a name has a first part");
        assert!(document.contains(&format!("`{figure}`")), "docs/reference/papers.md does not name {figure}");
    }
}
