//! The write buffer over each layout: the behaviour suite, and random sequences beside the reference model.
//!
//! `NACRE_MODEL_SECONDS` is how long each random test looks for differences (2 by default), `NACRE_SEED` runs one seed
//! only.

use std::sync::Arc;

use nacre_cache::{CacheFs, CacheOptions, Granularity, Settings as CacheSettings};
use nacre_engine::Data;
use nacre_lab::crash::{Inplace, Log, LogWithDisk, Mounting, Pool, PoweredPm, Subject as Layout};
use nacre_lab::environment::seeds;
use nacre_lab::random::{Profile, Settings, Subject, Tolerance, check_seeds, check_threads, differs};
use nacre_lab::suite::{VfsTarget, all_cases, run};
use nacre_media::SimPm;
use nacre_media::sim::Defect;

fn mount<L: Layout>(layout: &L, pm: &Arc<SimPm>, options: &CacheOptions) -> CacheFs<L::Fs> {
    let below =
        layout.mount(pm, Mounting { lanes: 2, background: true, ..Mounting::default() }).expect("mount");
    CacheFs::new(below, options).expect("a cache")
}

fn unmount<L: Layout>(layout: &L, fs: CacheFs<L::Fs>) {
    let (below, flushed) = fs.unmount();
    flushed.expect("everything is written");
    layout.unmount(below).expect("unmount");
}

fn assert_sound<L: Layout>(layout: &L, pm: &Arc<SimPm>) {
    let problems = layout.check(pm, false).expect("check");
    assert!(problems.is_empty(), "the check finds: {problems:?}");
}

/// A pool of so many blocks, whose threads look every few milliseconds.
fn restless(blocks: u64, threads: usize) -> CacheOptions {
    let settings = CacheSettings { threads, period_ms: 2, max_age_ms: 5, ..CacheSettings::default() };
    CacheOptions { settings, ..CacheOptions::new(blocks * 4096) }
}

fn suite<L: Layout<Fs: 'static> + Copy + Send + 'static>(layout: L, options: CacheOptions) {
    let pm = Arc::new(SimPm::with_disks(64 << 20, layout.disks()));
    layout.mkfs(&pm).expect("mkfs");
    let (memory, again) = (Arc::clone(&pm), options.clone());
    let reopen = Arc::new(move |old: CacheFs<L::Fs>| {
        unmount(&layout, old);
        assert_sound(&layout, &memory);
        mount(&layout, &memory, &again)
    });
    let what = if options.size > 1 << 20 { "a large cache" } else { "a small cache" };
    let mut target = VfsTarget::new(what, mount(&layout, &pm, &options), reopen, &[]);
    let report = run(&mut target, &all_cases(), &[]);
    unmount(&layout, target.into_layout());
    report.assert_clean();
    assert_sound(&layout, &pm);
}

/// A layout on simulated memory under a cache.
struct Cached<L> {
    layout: L,
    memory: PoweredPm,
    options: CacheOptions,
    /// Everything is synchronised before a crash.
    syncs: bool,
}

impl<L: Layout> Cached<L> {
    fn new(layout: L, size: u64, options: CacheOptions) -> Cached<L> {
        let memory = PoweredPm::with_disks(size, layout.disks());
        Cached { layout, memory, options, syncs: true }
    }

    fn mount(&self) -> CacheFs<L::Fs> {
        mount(&self.layout, self.memory.pm(), &self.options)
    }
}

impl<L: Layout<Fs: 'static>> Subject for Cached<L> {
    type Layout = CacheFs<L::Fs>;

    fn describe(&self) -> String {
        format!("{} under a cache of {} blocks", self.layout.name(), self.options.size / 4096)
    }

    fn make(&mut self) -> CacheFs<L::Fs> {
        self.memory = self.memory.fresh();
        self.layout.mkfs(self.memory.pm()).expect("mkfs");
        self.memory.lose_power();
        self.mount()
    }

    fn remount(&mut self, fs: CacheFs<L::Fs>) -> CacheFs<L::Fs> {
        unmount(&self.layout, fs);
        self.memory.lose_power();
        assert_sound(&self.layout, self.memory.pm());
        self.mount()
    }

    fn crash(&mut self, fs: &CacheFs<L::Fs>) -> Option<CacheFs<L::Fs>> {
        // What was synchronised is what a crash leaves.
        if self.syncs {
            fs.sync_all().expect("sync");
        }
        self.memory.lose_power();
        assert_sound(&self.layout, self.memory.pm());
        Some(self.mount())
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

/// Short sequences with many crashes.
const DEFECTS: Settings = Settings { operations: 80, compare_every: 80, mount_every: 8, ..TREE };

/// A crash shows what was promised and not kept: nothing is durable, or nobody has synchronised.
fn broken_promises_show<L: Layout<Fs: 'static> + Copy>(layout: L) {
    let subject = || Cached::new(layout, 16 << 20, CacheOptions::new(4 << 20));
    let mut without_fences = subject();
    without_fences.memory.set_defect(Some(Defect::NoFences));
    let mut without_syncs = Cached { syncs: false, ..subject() };
    for seed in 0..3 {
        assert_eq!(differs(&mut subject(), seed, DEFECTS), None);
    }
    for (what, broken) in [("fences", &mut without_fences), ("syncs", &mut without_syncs)] {
        let failure = (0..20).find_map(|seed| differs(broken, seed, DEFECTS));
        println!("without {what}: {}", failure.unwrap_or_else(|| panic!("nothing shows without {what}")));
    }
}

/// The tests of a layout, in a module of its own, whose name they bear.
macro_rules! tests {
    ($module:ident, $layout:ident) => {
        mod $module {
            use super::*;

            #[test]
            fn the_suite_passes_over_a_large_pool() {
                suite($layout, CacheOptions::new(16 << 20));
            }

            #[test]
            fn the_suite_passes_over_a_small_and_restless_pool() {
                suite($layout, restless(16, 2));
            }

            #[test]
            fn what_is_buffered_is_the_model() {
                check_seeds(Cached::new($layout, 48 << 20, CacheOptions::new(16 << 20)), TREE);
            }

            #[test]
            fn what_is_buffered_is_the_model_in_one_file() {
                check_seeds(Cached::new($layout, 48 << 20, CacheOptions::new(16 << 20)), ONE_FILE);
            }

            #[test]
            fn a_small_and_restless_pool_is_the_model() {
                check_seeds(Cached::new($layout, 48 << 20, restless(8, 2)), TREE);
                check_seeds(Cached::new($layout, 48 << 20, restless(8, 2)), ONE_FILE);
            }

            #[test]
            fn a_pool_of_whole_blocks_is_the_model_in_one_file() {
                let mut options = restless(64, 0);
                options.settings.granularity = Granularity::Blocks;
                check_seeds(Cached::new($layout, 48 << 20, options), ONE_FILE);
            }

            #[test]
            fn what_is_buffered_is_the_model_when_space_is_scarce() {
                check_seeds(Cached::new($layout, 16 << 20, CacheOptions::new(16 << 20)), SCARCE);
            }

            #[test]
            fn a_crash_shows_what_was_not_synchronised_or_not_fenced() {
                broken_promises_show($layout);
            }

            #[test]
            fn what_is_buffered_is_the_model_for_each_of_four_threads() {
                let mut subject = Cached::new($layout, 48 << 20, restless(32, 2));
                for seed in seeds() {
                    check_threads(&mut subject, seed, 4, TREE)
                        .unwrap_or_else(|why| panic!("NACRE_SEED={seed}: {why}"));
                }
            }
        }
    };
}

tests!(log, Log);
tests!(inplace, Inplace);
tests!(pool, Pool);

/// With a tier, to which whole blocks go that leave the buffer, from the second write in a row on, until it is full.
const LOG_ON_DISK: LogWithDisk = LogWithDisk::ON_DISK;

tests!(log_on_disk, LOG_ON_DISK);
