//! Random sequences beside the reference model.
//!
//! `NACRE_MODEL_SECONDS` is how long each test looks for differences (4 by default), `NACRE_MODEL_OPERATIONS` how long
//! the sequences are, `NACRE_SEED` runs one seed only.

use std::collections::BTreeMap;
use std::sync::Arc;

use nacre_lab::crash::{self, PoweredPm, Rig, fixed};
use nacre_lab::environment::{number, seeds};
use nacre_lab::model::{Flaw, MemLayout, Mutant};
use nacre_lab::random::{
    Op, Profile, Settings, Stats, Subject, Tolerance, check, check_seeds, check_threads, differs,
};
use nacre_layout_inplace::InplaceFs;
use nacre_layout_log::{LogFs, Mistake, MkfsOptions, MountOptions, mkfs};
use nacre_media::SimPm;
use nacre_media::sim::Defect;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const TREE: Settings =
    Settings { profile: Profile::Tree, operations: 700, compare_every: 50, mount_every: 150, scarce: false };
const NAMES: Settings = Settings { profile: Profile::Names, ..TREE };
const ONE_FILE: Settings = Settings { profile: Profile::OneFile, operations: 500, compare_every: 25, ..TREE };
const SCARCE: Settings =
    Settings { profile: Profile::Tree, operations: 2500, compare_every: 250, scarce: true, ..TREE };
/// Long sequences on a file system that is mounted for long.
const LONG: Settings = Settings { operations: 40_000, compare_every: 5000, mount_every: 10_000, ..TREE };

/// The settings with the length that is asked for.
fn sized(settings: Settings) -> Settings {
    match number("NACRE_MODEL_OPERATIONS") {
        Some(operations) => Settings { operations: operations as usize, ..settings },
        None => settings,
    }
}

fn run<S: Subject>(subject: S, settings: Settings) {
    check_seeds(subject, sized(settings));
}

fn run_threads<S: Subject>(mut subject: S, settings: Settings) {
    let settings = sized(settings);
    let (mut runs, mut operations) = (0, 0);
    for seed in seeds() {
        println!("seed {seed}");
        let verdict = check_threads(&mut subject, seed, 4, settings);
        operations += verdict.unwrap_or_else(|why| panic!("NACRE_SEED={seed}: {why}")).operations;
        runs += 1;
    }
    println!("{}: {runs} runs of 4 threads, {operations} operations", subject.describe());
}

/// The model beside itself: a difference is a flaw of the comparison.
struct Model;

impl Subject for Model {
    type Layout = MemLayout;

    fn describe(&self) -> String {
        "the model".to_owned()
    }

    fn make(&mut self) -> MemLayout {
        MemLayout::default()
    }

    fn remount(&mut self, layout: MemLayout) -> MemLayout {
        layout.remount()
    }

    fn crash(&mut self, layout: &MemLayout) -> Option<MemLayout> {
        Some(layout.remount())
    }

    fn tolerance(&self) -> Tolerance {
        Tolerance::NONE
    }
}

/// The model with a flaw.
struct Flawed(Flaw);

impl Subject for Flawed {
    type Layout = Mutant;

    fn describe(&self) -> String {
        format!("a model with the flaw {:?}", self.0)
    }

    fn make(&mut self) -> Mutant {
        Mutant::new(MemLayout::default(), self.0)
    }

    fn remount(&mut self, layout: Mutant) -> Mutant {
        layout.remount()
    }

    fn crash(&mut self, layout: &Mutant) -> Option<Mutant> {
        Some(layout.remount())
    }

    fn tolerance(&self) -> Tolerance {
        Tolerance::NONE
    }
}

#[test]
fn the_model_agrees_with_itself() {
    for settings in [TREE, NAMES, ONE_FILE] {
        for seed in 0..3 {
            check(&mut Model, seed, settings).unwrap_or_else(|failure| panic!("{failure}"));
        }
    }
    check_threads(&mut Model, 0, 4, TREE).expect("threads with a directory each");
}

#[test]
fn every_flaw_is_found_and_shown_in_few_operations() {
    for flaw in Flaw::ALL {
        let found = (0..200).find_map(|seed| check(&mut Flawed(flaw), seed, TREE).err());
        let failure = found.unwrap_or_else(|| panic!("{flaw:?} is not found"));
        println!("{failure}");
        assert!(failure.sequence.len() <= 10, "{flaw:?} takes {} operations", failure.sequence.len());
    }
}

/// The log layout on simulated memory.
struct Log {
    memory: PoweredPm,
    background: bool,
}

impl Log {
    fn new(size: u64, background: bool) -> Log {
        Log { memory: PoweredPm::new(size), background }
    }

    fn mount(&self) -> LogFs<SimPm> {
        let options = MountOptions { lanes: Some(2), background: self.background, ..MountOptions::default() };
        LogFs::mount(Arc::clone(self.memory.pm()), &options).expect("mount")
    }

    /// Checks what is not mounted.
    fn assert_sound(&self) {
        let report = nacre_layout_log::check::check(&**self.memory.pm(), false).expect("check");
        assert!(report.problems.is_empty(), "the check finds: {:?}", report.problems);
    }
}

impl Subject for Log {
    type Layout = LogFs<SimPm>;

    fn describe(&self) -> String {
        "the log layout".to_owned()
    }

    fn make(&mut self) -> LogFs<SimPm> {
        self.memory = self.memory.fresh();
        mkfs(&**self.memory.pm(), &MkfsOptions::default()).expect("mkfs");
        self.memory.lose_power();
        self.mount()
    }

    fn remount(&mut self, layout: LogFs<SimPm>) -> LogFs<SimPm> {
        layout.unmount().expect("unmount");
        self.memory.lose_power();
        self.assert_sound();
        self.mount()
    }

    fn crash(&mut self, _: &LogFs<SimPm>) -> Option<LogFs<SimPm>> {
        // Every operation is durable when it returns.
        self.memory.lose_power();
        self.assert_sound();
        Some(self.mount())
    }

    fn tolerance(&self) -> Tolerance {
        // An inode without links is reclaimed by the next change of a name, or in the background.
        Tolerance { exact_stale: false, ..Tolerance::NONE }
    }

    fn tolerance_after_crash(&self) -> Tolerance {
        // atime, and ctime as a changed link count sets it, are kept in DRAM and written down lazily.
        Tolerance { exact_atime: false, exact_ctime: false, ..self.tolerance() }
    }
}

#[test]
fn the_log_layout_is_the_model() {
    run(Log::new(48 << 20, true), TREE);
}

/// `NACRE_MODEL_LONG` operations (40,000 by default). Each kind must succeed often enough to say something.
fn run_for_long<S: Subject>(mut subject: S) {
    let wanted = number("NACRE_MODEL_LONG").unwrap_or(LONG.operations as u64) as usize;
    let mut rng = SmallRng::from_os_rng();
    let mut total = Stats::default();
    while total.operations < wanted {
        let seed = number("NACRE_SEED").unwrap_or_else(|| rng.random_range(0..1 << 32));
        let stats = check(&mut subject, seed, LONG).unwrap_or_else(|failure| panic!("{failure}"));
        total.add(&stats);
    }
    println!("{}: {total:?}", subject.describe());
    for kind in Op::KINDS {
        let count = total.kinds.get(kind).copied().unwrap_or(0);
        assert!(count * 100 >= total.operations, "{kind}: {count} successes of {}", total.operations);
    }
    let unknown: Vec<_> = total.kinds.keys().filter(|kind| !Op::KINDS.contains(kind)).collect();
    assert!(unknown.is_empty(), "kinds that are not counted above: {unknown:?}");
}

#[test]
fn the_log_layout_is_the_model_for_long() {
    run_for_long(Log::new(64 << 20, true));
}

#[test]
fn the_inplace_layout_is_the_model_for_long() {
    run_for_long(Inplace::new(64 << 20, true));
}

#[test]
fn the_log_layout_is_the_model_in_names() {
    run(Log::new(48 << 20, false), NAMES);
}

#[test]
fn the_log_layout_is_the_model_in_one_file() {
    run(Log::new(48 << 20, true), ONE_FILE);
}

#[test]
fn the_log_layout_is_the_model_for_each_of_four_threads() {
    run_threads(Log::new(48 << 20, true), TREE);
}

#[test]
fn the_log_layout_is_the_model_when_space_is_scarce() {
    run(Log::new(16 << 20, true), SCARCE);
    run(Log::new(16 << 20, false), SCARCE);
}

/// The in-place layout on simulated memory.
struct Inplace {
    memory: PoweredPm,
    name_index: bool,
}

impl Inplace {
    fn new(size: u64, name_index: bool) -> Inplace {
        Inplace { memory: PoweredPm::new(size), name_index }
    }

    fn mount(&self) -> InplaceFs<SimPm> {
        let options = nacre_layout_inplace::MountOptions {
            lanes: Some(2),
            name_index: Some(self.name_index),
            ..Default::default()
        };
        InplaceFs::mount(Arc::clone(self.memory.pm()), &options).expect("mount")
    }

    /// Checks what is not mounted.
    fn assert_sound(&self) {
        let report = nacre_layout_inplace::check::check(&**self.memory.pm(), false).expect("check");
        assert!(report.problems.is_empty(), "the check finds: {:?}", report.problems);
    }
}

impl Subject for Inplace {
    type Layout = InplaceFs<SimPm>;

    fn describe(&self) -> String {
        "the in-place layout".to_owned()
    }

    fn make(&mut self) -> InplaceFs<SimPm> {
        self.memory = self.memory.fresh();
        nacre_layout_inplace::mkfs(&**self.memory.pm(), &nacre_layout_inplace::MkfsOptions::default())
            .expect("mkfs");
        self.memory.lose_power();
        self.mount()
    }

    fn remount(&mut self, layout: InplaceFs<SimPm>) -> InplaceFs<SimPm> {
        layout.unmount().expect("unmount");
        self.memory.lose_power();
        self.assert_sound();
        self.mount()
    }

    fn crash(&mut self, _: &InplaceFs<SimPm>) -> Option<InplaceFs<SimPm>> {
        // Every operation is durable when it returns.
        self.memory.lose_power();
        self.assert_sound();
        Some(self.mount())
    }

    fn tolerance(&self) -> Tolerance {
        // An inode without links is reclaimed by the next change of a name.
        Tolerance { exact_stale: false, ..Tolerance::NONE }
    }

    fn tolerance_after_crash(&self) -> Tolerance {
        // atime is kept in DRAM and written down lazily.
        Tolerance { exact_atime: false, ..self.tolerance() }
    }
}

#[test]
fn the_inplace_layout_is_the_model() {
    run(Inplace::new(48 << 20, true), TREE);
}

#[test]
fn the_inplace_layout_without_an_index_is_the_model_in_names() {
    run(Inplace::new(48 << 20, false), NAMES);
}

#[test]
fn the_inplace_layout_is_the_model_in_one_file() {
    run(Inplace::new(48 << 20, true), ONE_FILE);
}

#[test]
fn the_inplace_layout_is_the_model_for_each_of_four_threads() {
    run_threads(Inplace::new(48 << 20, true), TREE);
}

#[test]
fn the_inplace_layout_is_the_model_when_space_is_scarce() {
    run(Inplace::new(16 << 20, true), SCARCE);
}

/// Short sequences with many crashes.
const DEFECTS: Settings = Settings { operations: 80, compare_every: 80, mount_every: 8, ..TREE };
/// Sequences in which a defect is looked for.
const DEFECT_SEEDS: u64 = 4;

/// Each line of a layout that flushes, or stores past the cache, and each that fences, as the defect that leaves it out.
fn omissions<L: crash::Subject>(layout: &L) -> BTreeMap<String, Defect> {
    let mut rig = Rig::new(layout, 16 << 20);
    let mut all = BTreeMap::new();
    for workload in fixed() {
        let (flushes, fences) = rig.record(&workload, crash::Flaw::None).expect("it runs").sites();
        for site in flushes {
            all.insert(format!("flush at {}", layout.site_name(site)), Defect::SkipFlushAt(site));
        }
        for site in fences {
            all.insert(format!("fence at {}", layout.site_name(site)), Defect::SkipFenceAt(site));
        }
    }
    // The file system is made before the defect is there.
    all.retain(|place, _| !place.contains("mkfs.rs"));
    all
}

/// Leaves out each flush and each fence in turn: the share that shows, in percent. What is there only for the order
/// within an operation cannot show, as no operation is under way in these crashes; the explorer is for that.
fn share_that_shows<L, S>(layout: &L, make: impl Fn(Defect) -> S) -> usize
where
    L: crash::Subject,
    S: Subject,
{
    let all = omissions(layout);
    let mut shown = 0;
    for (place, defect) in &all {
        let failure = (0..DEFECT_SEEDS).find_map(|seed| differs(&mut make(*defect), seed, DEFECTS));
        println!("without the {place}: {}", failure.as_deref().unwrap_or("nothing shows"));
        shown += usize::from(failure.is_some());
    }
    println!("{shown} of {} show", all.len());
    shown * 100 / all.len()
}

#[test]
fn flushes_and_fences_that_the_log_layout_leaves_out_show_after_a_crash() {
    let with = |defect| {
        let mut log = Log::new(16 << 20, false);
        log.memory.set_defect(Some(defect));
        log
    };
    let failure = check(&mut with(Defect::NoFences), 0, DEFECTS).expect_err("nothing is durable");
    assert!(failure.sequence.len() <= 3, "{failure}");
    assert!(share_that_shows(&crash::Log, with) >= 33);
    let mut log = Log::new(16 << 20, false);
    log.memory.set_mistake(Mistake::NotMarkedDirty as u32);
    assert!((0..DEFECT_SEEDS).any(|seed| differs(&mut log, seed, DEFECTS).is_some()), "old free blocks");
}

#[test]
fn flushes_and_fences_that_the_inplace_layout_leaves_out_show_after_a_crash() {
    let with = |defect| {
        let mut inplace = Inplace::new(16 << 20, true);
        inplace.memory.set_defect(Some(defect));
        inplace
    };
    let failure = check(&mut with(Defect::NoFences), 0, DEFECTS).expect_err("nothing is durable");
    assert!(failure.sequence.len() <= 3, "{failure}");
    assert!(share_that_shows(&crash::Inplace, with) >= 33);
    let mut inplace = Inplace::new(16 << 20, true);
    inplace.memory.set_mistake(nacre_layout_inplace::Mistake::LinksForgotten as u32);
    assert!((0..DEFECT_SEEDS).any(|seed| differs(&mut inplace, seed, DEFECTS).is_some()), "forgotten links");
}
