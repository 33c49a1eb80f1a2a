//! The behaviour suite on each layout: on simulated PM, and for those that ship on a mapped file and in version 1 of
//! their formats.

use std::sync::Arc;

use crate::layouts::each_layout;
use nacre_lab::crash::Registered;
use nacre_lab::older::make_version_1;
use nacre_lab::suite::{Need, VfsTarget, all_cases, run};
use nacre_layout_inplace::InplaceFs;
use nacre_layout_log::LogFs;
use nacre_layout_parts::lifecycle::{Lifecycle, MkfsOptions, MountOptions};
use nacre_layout_parts::report::Repair;
use nacre_media::{PmOptions, RealPm, SimPm};

/// Small enough to be filled. The largest case has 28 MiB of data, and a layout may need twice the room.
const SIZE: u64 = 96 << 20;

/// Runs all cases on the file system of `open`, which is checked before each mount and at the end.
fn passes<F, O>(words: &'static str, open: O, lacks: &[(Need, &str)])
where
    F: Lifecycle + 'static,
    O: Fn() -> Arc<F::Pm> + Clone + Send + Sync + 'static,
{
    let assert_sound = |pm: &F::Pm| {
        let report = F::check(pm, Repair::None, None).expect("check");
        assert!(report.problems.is_empty(), "the check finds: {:?}", report.problems);
    };
    let open_again = open.clone();
    let mount = move || {
        let pm = open_again();
        assert_sound(&pm);
        F::mount(pm, &MountOptions::default()).expect("mount")
    };
    let first = mount();
    let reopen = Arc::new(move |old: F| {
        old.unmount().expect("unmount");
        mount()
    });
    let mut target = VfsTarget::new(words, first, reopen, lacks);
    let report = run(&mut target, &all_cases(), &[]);
    target.into_layout().unmount().expect("unmount");
    report.assert_clean();
    assert_sound(&open());
}

fn passes_on_simulated_pm<R: Registered>() {
    let pm = Arc::new(SimPm::new(SIZE));
    R::Fs::mkfs(&pm, &R::default().properties()).expect("mkfs");
    passes::<R::Fs, _>(R::default().name(), move || Arc::clone(&pm), &[]);
}

macro_rules! suite {
    ($layout:ident, $registered:ty) => {
        mod $layout {
            #[test]
            fn the_suite_passes_on_simulated_pm() {
                super::passes_on_simulated_pm::<$registered>();
            }
        }
    };
}

each_layout!(suite);
suite!(shadow_in_place, nacre_lab::crash::ShadowInPlace);

/// A file system of version 1 stays one while it is in use.
fn passes_on_version_1<F: Lifecycle<Pm = SimPm> + 'static>(words: &'static str) {
    let pm = Arc::new(SimPm::new(SIZE));
    F::mkfs(&pm, &MkfsOptions::default()).expect("mkfs");
    make_version_1(&*pm).expect("an older version");
    passes::<F, _>(words, move || Arc::clone(&pm), &[(Need::WideTimes, "its times end in 2242")]);
}

#[test]
fn the_suite_passes_on_version_1_of_the_log_layout() {
    passes_on_version_1::<LogFs<SimPm>>("the log layout of version 1");
}

#[test]
fn the_suite_passes_on_version_1_of_the_inplace_layout() {
    passes_on_version_1::<InplaceFs<SimPm>>("the in-place layout of version 1");
}

fn passes_in_a_mapped_file<F: Lifecycle<Pm = RealPm> + 'static>(words: &'static str) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pm");
    let pm = RealPm::create(&path, SIZE, &PmOptions::default()).expect("a file");
    F::mkfs(&pm, &MkfsOptions::default()).expect("mkfs");
    drop(pm);
    let open = move || Arc::new(RealPm::open(&path, &PmOptions::default()).expect("open"));
    passes::<F, _>(words, open, &[]);
}

#[test]
fn the_suite_passes_on_the_log_layout_in_a_mapped_file() {
    passes_in_a_mapped_file::<LogFs<RealPm>>("the log layout on a mapped file");
}

#[test]
fn the_suite_passes_on_the_inplace_layout_in_a_mapped_file() {
    passes_in_a_mapped_file::<InplaceFs<RealPm>>("the in-place layout on a mapped file");
}
