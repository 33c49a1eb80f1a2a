//! The behaviour suite on each layout: on simulated memory, and on a mapped file.

use std::sync::Arc;

use nacre_lab::older::make_version_1;
use nacre_lab::suite::{Need, VfsTarget, all_cases, run};
use nacre_media::{Pm, PmOptions, RealPm, SimPm};

/// Small enough to be filled.
const SIZE: u64 = 64 << 20;

/// The same for a layout; in a module of its own, whose name the tests bear.
macro_rules! suite {
    ($module:ident, $layout:ident, $fs:ident, $words:literal) => {
        mod $module {
            use $layout::check::check;
            use $layout::{MkfsOptions, MountOptions, mkfs, $fs};

            use super::*;

            fn mount<P: Pm + 'static>(pm: Arc<P>) -> $fs<P> {
                $fs::mount(pm, &MountOptions::default()).expect("mount")
            }

            /// Every unmounted file system is checked before it is mounted again.
            fn assert_sound<P: Pm>(pm: &P) {
                let report = check(pm, false).expect("check");
                assert!(report.problems.is_empty(), "the check finds: {:?}", report.problems);
            }

            #[test]
            fn the_suite_passes_in_simulated_memory() {
                let pm = Arc::new(SimPm::new(SIZE));
                mkfs(&*pm, &MkfsOptions::default()).expect("mkfs");
                let memory = Arc::clone(&pm);
                let reopen = Arc::new(move |old: $fs<SimPm>| {
                    old.unmount().expect("unmount");
                    assert_sound(&*memory);
                    mount(Arc::clone(&memory))
                });
                let mut target = VfsTarget::new(
                    concat!($words, " on simulated memory"),
                    mount(Arc::clone(&pm)),
                    reopen,
                    &[],
                );
                let report = run(&mut target, &all_cases(), &[]);
                target.into_layout().unmount().expect("unmount");
                report.assert_clean();
                assert_sound(&*pm);
            }

            /// File systems of version 1, of which those that are in use stay such.
            #[test]
            fn the_suite_passes_on_version_1() {
                let pm = Arc::new(SimPm::new(SIZE));
                mkfs(&*pm, &MkfsOptions::default()).expect("mkfs");
                make_version_1(&*pm).expect("an older version");
                let memory = Arc::clone(&pm);
                let reopen = Arc::new(move |old: $fs<SimPm>| {
                    old.unmount().expect("unmount");
                    assert_sound(&*memory);
                    mount(Arc::clone(&memory))
                });
                let words = concat!($words, " of version 1");
                let lacks = [(Need::WideTimes, "its times end in 2242")];
                let mut target = VfsTarget::new(words, mount(Arc::clone(&pm)), reopen, &lacks);
                let report = run(&mut target, &all_cases(), &[]);
                target.into_layout().unmount().expect("unmount");
                report.assert_clean();
                assert_sound(&*pm);
            }

            #[test]
            fn the_suite_passes_in_a_mapped_file() {
                let dir = tempfile::tempdir().expect("a directory");
                let path = dir.path().join("pm");
                let pm = RealPm::create(&path, SIZE, &PmOptions::default()).expect("a file");
                mkfs(&pm, &MkfsOptions::default()).expect("mkfs");
                let file = path.clone();
                let open = move || RealPm::open(&file, &PmOptions::default()).expect("open");
                let again = open.clone();
                let reopen = Arc::new(move |old: $fs<RealPm>| {
                    old.unmount().expect("unmount");
                    mount(Arc::new(again()))
                });
                let mut target =
                    VfsTarget::new(concat!($words, " on a mapped file"), mount(Arc::new(pm)), reopen, &[]);
                let report = run(&mut target, &all_cases(), &[]);
                target.into_layout().unmount().expect("unmount");
                report.assert_clean();
                assert_sound(&open());
            }
        }
    };
}

suite!(log, nacre_layout_log, LogFs, "the log layout");
suite!(inplace, nacre_layout_inplace, InplaceFs, "the in-place layout");
