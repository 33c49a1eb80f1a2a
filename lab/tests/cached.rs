//! The write buffer over each layout: the behaviour suite, and random sequences beside the reference model.
//!
//! `NACRE_MODEL_SECONDS` is how long each random test looks for differences (4 by default), `NACRE_SEED` runs one seed
//! only.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nacre_cache::{CacheFs, CacheOptions, Granularity, Settings as CacheSettings};
use nacre_engine::{Data, Extents, Result};
use nacre_lab::random::{Profile, Settings, Stats, Subject, Tolerance, check, check_threads};
use nacre_lab::suite::{VfsTarget, all_cases, run};
use nacre_layout_inplace::InplaceFs;
use nacre_layout_log::LogFs;
use nacre_media::SimPm;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// A layout on simulated memory, of any kind.
trait Layout: Data + Extents + Sized + 'static {
    const WORDS: &'static str;

    fn mkfs(pm: &SimPm);
    fn mount(pm: &Arc<SimPm>) -> Self;
    fn pm(&self) -> &SimPm;
    fn unmount(self) -> Result<()>;
    fn problems(pm: &SimPm) -> Vec<String>;
}

macro_rules! layout {
    ($layout:ident, $fs:ident, $words:literal) => {
        impl Layout for $fs<SimPm> {
            const WORDS: &'static str = $words;

            fn mkfs(pm: &SimPm) {
                $layout::mkfs(pm, &$layout::MkfsOptions::default()).expect("mkfs");
            }

            fn mount(pm: &Arc<SimPm>) -> Self {
                let options = $layout::MountOptions { lanes: Some(2), ..Default::default() };
                $fs::mount(Arc::clone(pm), &options).expect("mount")
            }

            fn pm(&self) -> &SimPm {
                $fs::pm(self)
            }

            fn unmount(self) -> Result<()> {
                $fs::unmount(self)
            }

            fn problems(pm: &SimPm) -> Vec<String> {
                let report = $layout::check::check(pm, false).expect("check");
                report.problems.iter().map(|problem| format!("{problem:?}")).collect()
            }
        }
    };
}

layout!(nacre_layout_log, LogFs, "the log layout");
layout!(nacre_layout_inplace, InplaceFs, "the in-place layout");

fn mount<L: Layout>(pm: &Arc<SimPm>, options: &CacheOptions) -> CacheFs<L> {
    CacheFs::new(L::mount(pm), options).expect("a cache")
}

fn unmount<L: Layout>(fs: CacheFs<L>) {
    let (layout, flushed) = fs.unmount();
    flushed.expect("everything is written");
    layout.unmount().expect("unmount");
}

fn assert_sound<L: Layout>(pm: &SimPm) {
    let problems = L::problems(pm);
    assert!(problems.is_empty(), "the check finds: {problems:?}");
}

/// A pool of so many blocks, whose threads look every few milliseconds.
fn restless(blocks: u64, threads: usize) -> CacheOptions {
    let settings = CacheSettings { threads, period_ms: 2, max_age_ms: 5, ..CacheSettings::default() };
    CacheOptions { settings, ..CacheOptions::new(blocks * 4096) }
}

fn suite<L: Layout>(options: CacheOptions) {
    let pm = Arc::new(SimPm::new(64 << 20));
    L::mkfs(&pm);
    let (memory, again) = (Arc::clone(&pm), options.clone());
    let reopen = Arc::new(move |old: CacheFs<L>| {
        unmount(old);
        assert_sound::<L>(&memory);
        mount(&memory, &again)
    });
    let what = if options.size > 1 << 20 { "a large cache" } else { "a small cache" };
    let mut target = VfsTarget::new(what, mount::<L>(&pm, &options), reopen, &[]);
    let report = run(&mut target, &all_cases(), &[]);
    unmount(target.into_layout());
    report.assert_clean();
    assert_sound::<L>(&pm);
}

/// A layout on simulated memory under a cache.
struct Cached<L> {
    pm: Arc<SimPm>,
    size: u64,
    options: CacheOptions,
    layout: PhantomData<L>,
}

impl<L: Layout> Cached<L> {
    fn new(size: u64, options: CacheOptions) -> Cached<L> {
        Cached { pm: Arc::new(SimPm::new(size)), size, options, layout: PhantomData }
    }
}

impl<L: Layout> Subject for Cached<L> {
    type Layout = CacheFs<L>;

    fn describe(&self) -> String {
        format!("{} under a cache of {} blocks", L::WORDS, self.options.size / 4096)
    }

    fn make(&mut self) -> CacheFs<L> {
        self.pm = Arc::new(SimPm::new(self.size));
        L::mkfs(&self.pm);
        mount(&self.pm, &self.options)
    }

    fn remount(&mut self, layout: CacheFs<L>) -> CacheFs<L> {
        unmount(layout);
        assert_sound::<L>(&self.pm);
        mount(&self.pm, &self.options)
    }

    fn crash(&mut self, layout: &CacheFs<L>) -> Option<CacheFs<L>> {
        // What was synchronised is what a crash leaves.
        layout.sync_all().expect("sync");
        self.pm = Arc::new(SimPm::from_image(&layout.layout().pm().snapshot()));
        assert_sound::<L>(&self.pm);
        Some(mount(&self.pm, &self.options))
    }

    fn tolerance(&self) -> Tolerance {
        // An inode without links is reclaimed by the next change of a name, or in the background.
        Tolerance { exact_stale: false, ..Tolerance::NONE }
    }

    fn tolerance_after_crash(&self) -> Tolerance {
        Tolerance { exact_atime: false, exact_ctime: false, ..self.tolerance() }
    }
}

const TREE: Settings =
    Settings { profile: Profile::Tree, operations: 700, compare_every: 50, mount_every: 150, scarce: false };
const ONE_FILE: Settings = Settings { profile: Profile::OneFile, operations: 500, compare_every: 25, ..TREE };
const SCARCE: Settings =
    Settings { profile: Profile::Tree, operations: 2500, compare_every: 250, scarce: true, ..TREE };

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// The seeds to run: the one that is asked for, or random ones until the time is over.
fn seeds() -> impl Iterator<Item = u64> {
    let asked = variable("NACRE_SEED");
    let limit = Duration::from_secs(variable("NACRE_MODEL_SECONDS").unwrap_or(4));
    let start = Instant::now();
    let mut rng = SmallRng::from_os_rng();
    let mut first = true;
    std::iter::from_fn(move || match asked {
        Some(seed) => std::mem::take(&mut first).then_some(seed),
        None if first || start.elapsed() < limit => {
            first = false;
            Some(rng.random_range(0..1 << 32))
        }
        None => None,
    })
}

fn compare<L: Layout>(mut subject: Cached<L>, settings: Settings) {
    let (mut total, mut runs) = (Stats::default(), 0);
    for seed in seeds() {
        let stats = check(&mut subject, seed, settings).unwrap_or_else(|failure| panic!("{failure}"));
        total.add(&stats);
        runs += 1;
    }
    println!("{}: {runs} sequences, {total:?}", subject.describe());
    assert!(total.succeeded * 4 > total.operations, "most operations fail: the sequences say little");
}

/// The tests of a layout, in a module of its own, whose name they bear.
macro_rules! tests {
    ($module:ident, $fs:ident) => {
        mod $module {
            use super::*;

            type Subject = Cached<$fs<SimPm>>;

            #[test]
            fn the_suite_passes_over_a_large_pool() {
                suite::<$fs<SimPm>>(CacheOptions::new(16 << 20));
            }

            #[test]
            fn the_suite_passes_over_a_small_and_restless_pool() {
                suite::<$fs<SimPm>>(restless(16, 2));
            }

            #[test]
            fn what_is_buffered_is_the_model() {
                compare(Subject::new(48 << 20, CacheOptions::new(16 << 20)), TREE);
            }

            #[test]
            fn what_is_buffered_is_the_model_in_one_file() {
                compare(Subject::new(48 << 20, CacheOptions::new(16 << 20)), ONE_FILE);
            }

            #[test]
            fn a_small_and_restless_pool_is_the_model() {
                compare(Subject::new(48 << 20, restless(8, 2)), TREE);
                compare(Subject::new(48 << 20, restless(8, 2)), ONE_FILE);
            }

            #[test]
            fn a_pool_of_whole_blocks_is_the_model_in_one_file() {
                let mut options = restless(64, 0);
                options.settings.granularity = Granularity::Blocks;
                compare(Subject::new(48 << 20, options), ONE_FILE);
            }

            #[test]
            fn what_is_buffered_is_the_model_when_space_is_scarce() {
                compare(Subject::new(16 << 20, CacheOptions::new(16 << 20)), SCARCE);
            }

            #[test]
            fn what_is_buffered_is_the_model_for_each_of_four_threads() {
                let mut subject = Subject::new(48 << 20, restless(32, 2));
                for seed in seeds() {
                    check_threads(&mut subject, seed, 4, TREE)
                        .unwrap_or_else(|why| panic!("NACRE_SEED={seed}: {why}"));
                }
            }
        }
    };
}

tests!(log, LogFs);
tests!(inplace, InplaceFs);
