//! The log layout, crashed at every fence.
//!
//! `NACRE_CRASH_SEEDS` is how many random workloads run (6 by default), `NACRE_CRASH_SEED` the first of them and of
//! all samples. `NACRE_CRASH_REPLAY=WORKLOAD,POINT,IMAGE[,POINT,IMAGE]` produces one crash again.

use std::sync::Arc;

use nacre_engine::Result;
use nacre_lab::crash::{
    Ctime, Place, Report, Runner, Settings, Subject, Tree, Workload, explore, explore_one, fixed, growing,
    random, record,
};
use nacre_layout_log::check::check;
use nacre_layout_log::{LogFs, MkfsOptions, MountOptions, mkfs};
use nacre_media::SimPm;
use nacre_media::crash::Replay;
use nacre_media::sim::Defect;

struct Log;

fn options() -> MountOptions {
    // One lane and no threads: the same workload leaves the same trace each time.
    MountOptions { lanes: Some(1), background: false, ..MountOptions::default() }
}

impl Subject for Log {
    type Fs = LogFs<SimPm>;

    fn name(&self) -> &'static str {
        "log"
    }

    fn ctime(&self) -> Ctime {
        // Link, unlink and rename commit in the directory's log alone; the ctime of what they name is kept lazily.
        Ctime::MayLag
    }

    fn mkfs(&self, pm: &Arc<SimPm>) -> Result<()> {
        let uuid = Some(uuid::Uuid::from_u128(0x6e61_6372_6500_4000_8000_0000_0000_0001));
        mkfs(&**pm, &MkfsOptions { uuid, ..MkfsOptions::default() }).map(drop)
    }

    fn mount(&self, pm: &Arc<SimPm>) -> Result<LogFs<SimPm>> {
        LogFs::mount(Arc::clone(pm), &options())
    }

    fn unmount(&self, fs: LogFs<SimPm>) -> Result<()> {
        fs.unmount()
    }

    fn check(&self, pm: &Arc<SimPm>, crashed: bool) -> Result<Vec<String>> {
        let problems = check(&**pm, false)?.problems.into_iter().map(|problem| problem.what);
        // A crash may tear the copy that was being written; nothing can tell that from damage, and a mount mends it.
        let torn = |what: &String| crashed && what.ends_with("of the superblock is damaged");
        Ok(problems.filter(|what| !torn(what)).collect())
    }
}

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.sampling.seed = variable("NACRE_CRASH_SEED", 1);
    settings
}

/// Explores workloads and prints what was tried.
fn run(workloads: &[Workload]) {
    run_with(workloads, &settings());
}

fn run_with(workloads: &[Workload], settings: &Settings) {
    let mut all = Report::default();
    for workload in workloads {
        let report = explore(&Log, workload, settings).unwrap_or_else(|e| panic!("{}: {e}", workload.name));
        println!("{}: {report}", workload.name);
        all.add(report);
    }
    assert!(all.images > 0, "nothing was explored");
    assert!(all.violations.is_empty(), "{all}");
}

fn group(wanted: impl Fn(&str) -> bool) -> Vec<Workload> {
    fixed().into_iter().filter(|workload| wanted(&workload.name)).collect()
}

const CONTENTS: [&str; 9] =
    ["write", "write-small", "append", "overwrite", "overwrite-all", "truncate", "allocate", "punch", "zero"];

#[test]
fn contents_survive() {
    run(&group(|name| CONTENTS.contains(&name)));
}

#[test]
fn renames_survive() {
    run(&group(|name| name.starts_with("rename")));
}

#[test]
fn names_and_attributes_survive() {
    run(&group(|name| !name.starts_with("rename") && !CONTENTS.contains(&name)));
}

#[test]
fn growing_logs_survive() {
    run_with(&growing(), &settings_for_growth());
}

/// Of many operations a few images each.
fn settings_for_growth() -> Settings {
    let mut settings = settings();
    settings.sampling.exhaustive_up_to = 4;
    settings.sampling.samples = 6;
    settings.samples_per_line = 1;
    settings
}

#[test]
fn random_workloads_survive() {
    let first = variable("NACRE_CRASH_SEED", 1);
    let workloads: Vec<Workload> =
        (first..first + variable("NACRE_CRASH_SEEDS", 6)).map(|seed| random(seed, 14)).collect();
    run(&workloads);
}

#[test]
fn one_crash_again() {
    let Ok(text) = std::env::var("NACRE_CRASH_REPLAY") else { return };
    let parts: Vec<&str> = text.split(',').collect();
    let number = |index: usize| parts[index].parse::<u64>().expect("a number");
    let workload = fixed()
        .into_iter()
        .chain(growing())
        .find(|workload| workload.name == parts[0])
        .unwrap_or_else(|| {
            let (seed, len) =
                parts[0].strip_prefix("random-").and_then(|rest| rest.split_once('-')).expect("a workload");
            random(seed.parse().expect("a seed"), len.parse().expect("a length"))
        });
    let recovery = (parts.len() > 3).then(|| (number(3) as usize, number(4)));
    let place = Place { point: number(1) as usize, image: number(2), recovery };
    let settings = if workload.name.starts_with("grow") { settings_for_growth() } else { settings() };
    let report = explore_one(&Log, &workload, &settings, place).expect("a workload that runs");
    assert!(report.images + report.recovery_crashes > 0, "there is no such crash");
    assert!(report.violations.is_empty(), "{report}");
}

/// A crash while a file system is made leaves the old one, none, or the new one, and mkfs can be run again.
#[test]
fn mkfs_leaves_the_old_or_the_new_or_none() {
    let len = settings().len;
    let pm = Arc::new(SimPm::new(len));
    Log.mkfs(&pm).unwrap();
    let mut runner = Runner::new(Log.mount(&pm).unwrap());
    for (step, op) in random(1, 0).setup.iter().enumerate() {
        runner.run(step as u64, op).unwrap();
    }
    let old = Tree::of(&runner.fs).unwrap();
    Log.unmount(runner.into_fs()).unwrap();
    for base in [vec![0; len as usize], pm.snapshot()] {
        let pm = Arc::new(SimPm::from_image(&base));
        pm.start_recording();
        Log.mkfs(&pm).unwrap();
        let trace = pm.stop_recording();
        let (mut none, mut some) = (0, 0);
        let mut replay = Replay::new(base, &trace);
        while let Some(point) = replay.advance() {
            pm.load(replay.media());
            for image in replay.images(&settings().sampling).iter() {
                image.apply(&pm);
                match Log.mount(&pm).and_then(|fs| Tree::of(&fs)) {
                    Ok(tree) => {
                        assert!(tree.is_empty() || tree == old, "{point:?}, {image:?}");
                        some += 1;
                    }
                    Err(_) => none += 1,
                }
                if image.index % 16 == 0 {
                    Log.mkfs(&pm).unwrap();
                    assert!(Tree::of(&Log.mount(&pm).unwrap()).unwrap().is_empty());
                }
                pm.load(replay.media());
            }
        }
        println!("mkfs: {none} images without a file system, {some} with one");
        assert!(none > 0 && some > 0);
    }
}

/// Gives the memory one defect after another and counts those that are found.
fn found(workload: &Workload, defects: impl Iterator<Item = Defect>) -> (usize, usize) {
    let (mut tried, mut found) = (0, 0);
    for defect in defects {
        let settings = Settings {
            defect: Some(defect),
            max_violations: 1,
            empty_every: u64::MAX,
            recovery_every: u64::MAX,
            ..settings()
        };
        tried += 1;
        let report = explore(&Log, workload, &settings).expect("a workload that runs");
        if report.violations.is_empty() {
            println!("{}: {defect:?} makes no difference", workload.name);
        } else {
            found += 1;
        }
    }
    (tried, found)
}

#[test]
fn a_missing_flush_or_fence_is_found() {
    for name in ["create", "append", "overwrite", "rename-across", "unlink", "truncate"] {
        let workload = &group(|other| other == name)[0];
        let recording = record(&Log, workload, settings().len, None).expect("a workload that runs");
        let fences = (recording.fences.0..recording.fences.1).map(Defect::SkipFence);
        let flushes = (recording.flushes.0..recording.flushes.1).map(Defect::SkipFlush);
        let (tried_fences, found_fences) = found(workload, fences);
        let (tried_flushes, found_flushes) = found(workload, flushes);
        println!(
            "{name}: {found_fences} of {tried_fences} fences, {found_flushes} of {tried_flushes} flushes matter"
        );
        assert!(found_fences > 0 && found_flushes > 0, "{name}: the explorer is blind");
        assert_eq!(found(workload, [Defect::NoFences].into_iter()), (1, 1), "{name}: no fence at all");
    }
}
