//! Random sequences beside the reference model.
//!
//! `NACRE_MODEL_SECONDS` is how long each test looks for differences (2 by default), `NACRE_MODEL_OPERATIONS` how long
//! the sequences are, `NACRE_SEED` runs one seed only.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::layouts::each_layout;
use nacre_lab::crash::{self, Ctime, Inplace, Log, PoweredPm, Registered, Rig, fixed};
use nacre_lab::environment::{number, seeds};
use nacre_lab::model::{Flaw, MemLayout, Mutant};
use nacre_lab::random::{
    Op, Profile, Settings, Stats, Subject, Tolerance, check, check_seeds, check_threads, differs,
};
use nacre_layout_parts::lifecycle::{Lifecycle, MkfsOptions, MountOptions};
use nacre_layout_parts::report::Repair;
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

/// A layout on simulated PM.
struct OnPm<R> {
    layout: R,
    pm: PoweredPm,
    options: MountOptions,
}

impl<R: Registered> OnPm<R> {
    fn new(size: u64) -> OnPm<R> {
        let options = MountOptions { lanes: Some(2), ..MountOptions::default() };
        OnPm { layout: R::default(), pm: PoweredPm::new(size), options }
    }

    /// Everything happens in the threads of the callers.
    fn without_background(mut self) -> OnPm<R> {
        self.options.background = false;
        self
    }

    /// From the next loss of power on the hardware has this defect.
    fn with_defect(mut self, defect: Defect) -> OnPm<R> {
        self.pm.set_defect(Some(defect));
        self
    }

    fn mount(&self) -> R::Fs {
        R::Fs::mount(Arc::clone(self.pm.pm()), &self.options).expect("mount")
    }

    /// Checks an unmounted file system.
    fn assert_sound(&self) {
        let report = R::Fs::check(self.pm.pm(), Repair::None, None).expect("check");
        assert!(report.problems.is_empty(), "the check finds: {:?}", report.problems);
    }
}

impl<R: Registered> Subject for OnPm<R> {
    type Layout = R::Fs;

    fn describe(&self) -> String {
        format!("the {} layout", self.layout.name())
    }

    fn make(&mut self) -> R::Fs {
        self.pm = self.pm.fresh();
        let options = MkfsOptions { uuid: None, ..self.layout.properties() };
        R::Fs::mkfs(self.pm.pm(), &options).expect("mkfs");
        self.pm.lose_power();
        self.mount()
    }

    fn remount(&mut self, layout: R::Fs) -> R::Fs {
        layout.unmount().expect("unmount");
        self.pm.lose_power();
        self.assert_sound();
        self.mount()
    }

    fn crash(&mut self, _: &R::Fs) -> Option<R::Fs> {
        // Every operation is durable when it returns.
        self.pm.lose_power();
        self.assert_sound();
        Some(self.mount())
    }

    fn tolerance(&self) -> Tolerance {
        // An inode without links is reclaimed by the next change of a name, or in the background.
        Tolerance { exact_stale: false, ..Tolerance::NONE }
    }

    fn tolerance_after_crash(&self) -> Tolerance {
        // atime is kept in DRAM and written down lazily, and in some layouts ctime as a changed link count sets it, too.
        Tolerance { exact_atime: false, exact_ctime: R::CTIME == Ctime::Exact, ..self.tolerance() }
    }
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
        assert!(count * 200 >= total.operations, "{kind}: {count} successes of {}", total.operations);
    }
    let unknown: Vec<_> = total.kinds.keys().filter(|kind| !Op::KINDS.contains(kind)).collect();
    assert!(unknown.is_empty(), "kinds that are not counted above: {unknown:?}");
}

macro_rules! model {
    ($layout:ident, $registered:ty) => {
        mod $layout {
            use super::*;

            fn on_pm(size: u64) -> OnPm<$registered> {
                OnPm::new(size)
            }

            #[test]
            fn it_is_the_model() {
                run(on_pm(48 << 20), TREE);
            }

            #[test]
            fn it_is_the_model_for_long() {
                run_for_long(on_pm(64 << 20));
            }

            #[test]
            fn it_is_the_model_in_names() {
                run(on_pm(48 << 20).without_background(), NAMES);
            }

            #[test]
            fn it_is_the_model_in_one_file() {
                run(on_pm(48 << 20), ONE_FILE);
            }

            #[test]
            fn it_is_the_model_for_each_of_four_threads() {
                run_threads(on_pm(48 << 20), TREE);
            }

            #[test]
            fn it_is_the_model_when_space_is_scarce() {
                run(on_pm(16 << 20), SCARCE);
                run(on_pm(16 << 20).without_background(), SCARCE);
            }
        }
    };
}

each_layout!(model);

#[test]
fn the_inplace_layout_without_an_index_is_the_model_in_names() {
    let mut subject = OnPm::<Inplace>::new(48 << 20);
    subject.options.name_index = Some(false);
    run(subject, NAMES);
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

/// Leaves out each flush and each fence in turn: the share that shows, in percent. One that is there only for the order
/// within an operation cannot show, as no operation is under way in these crashes; the explorer is for that.
fn share_that_shows<R: Registered>() -> usize {
    let all = omissions(&R::default());
    let mut shown = 0;
    for (place, defect) in &all {
        let mut subject = scarce::<R>().with_defect(*defect);
        let failure = (0..DEFECT_SEEDS).find_map(|seed| differs(&mut subject, seed, DEFECTS));
        println!("without the {place}: {}", failure.as_deref().unwrap_or("nothing shows"));
        shown += usize::from(failure.is_some());
    }
    println!("{shown} of {} show", all.len());
    shown * 100 / all.len()
}

fn scarce<R: Registered>() -> OnPm<R> {
    OnPm::new(16 << 20).without_background()
}

/// Hardware that does nothing at fences, flushes and fences left out, and a mistake of the layout.
fn omissions_show<R: Registered>(mistake: u32) {
    let mut without_fences = scarce::<R>().with_defect(Defect::NoFences);
    let failure = check(&mut without_fences, 0, DEFECTS).expect_err("nothing is durable");
    assert!(failure.sequence.len() <= 3, "{failure}");
    assert!(share_that_shows::<R>() >= 33);
    let mut subject = scarce::<R>();
    subject.pm.set_mistake(mistake);
    assert!((0..DEFECT_SEEDS).any(|seed| differs(&mut subject, seed, DEFECTS).is_some()), "{mistake}");
}

#[test]
fn flushes_and_fences_that_the_log_layout_leaves_out_show_after_a_crash() {
    omissions_show::<Log>(nacre_layout_log::Mistake::NotMarkedDirty as u32);
}

#[test]
fn flushes_and_fences_that_the_inplace_layout_leaves_out_show_after_a_crash() {
    omissions_show::<Inplace>(nacre_layout_inplace::Mistake::LinksForgotten as u32);
}
