//! Random sequences of system calls beside the reference model. A tmpfs proves the model; each layout is held to it.
//!
//! `NACRE_MODEL_SECONDS` is how long each test looks for differences (4 by default), `NACRE_SEED` runs one seed only.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nacre_lab::calls::{Settings, check_for};
use nacre_lab::model::MemLayout;
use nacre_lab::suite::{DirectoryTarget, Need, Target, VfsTarget};
use nacre_media::SimPm;

const SETTINGS: Settings =
    Settings { calls: 1500, compare_every: 100, remount_every: Some(400), exact_allocation: true };

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn model() -> VfsTarget<MemLayout> {
    let layout = MemLayout::new(1 << 20, 1 << 20);
    VfsTarget::new("the reference model", layout, Arc::new(|old: MemLayout| old.remount()), &[])
}

fn run(subject: &mut dyn Target, settings: Settings) {
    let time = Duration::from_secs(variable("NACRE_MODEL_SECONDS").unwrap_or(4));
    let total = match check_for(subject, &mut model(), settings, variable("NACRE_SEED"), time) {
        Ok(total) => total,
        Err(failure) => panic!("{failure}"),
    };
    let (made, succeeded) = total.total();
    println!("{}: {made} calls, {succeeded} succeeded: {:?}", subject.describe(), total.calls);
}

#[test]
fn the_model_is_like_a_tmpfs() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory on a tmpfs");
    let lacking = [
        (Need::ZeroRange, "tmpfs has no FALLOC_FL_ZERO_RANGE"),
        (Need::SeekHole, "tmpfs counts what was allocated twice, and not written, as data"),
    ];
    let mut target = DirectoryTarget::new(Path::new(dir.path()), &lacking, None);
    run(&mut target, Settings { remount_every: None, ..SETTINGS });
}

/// The same for a layout.
macro_rules! layout {
    ($name:ident, $layout:ident, $fs:ident, $words:literal) => {
        #[test]
        fn $name() {
            use $layout::{MkfsOptions, MountOptions, mkfs, $fs};

            let pm = Arc::new(SimPm::new(64 << 20));
            mkfs(&*pm, &MkfsOptions::default()).expect("mkfs");
            let mount = |pm: Arc<SimPm>| $fs::mount(pm, &MountOptions::default()).expect("mount");
            let reopen = Arc::new(move |old: $fs<SimPm>| {
                let pm = Arc::clone(old.pm());
                old.unmount().expect("unmount");
                mount(pm)
            });
            run(&mut VfsTarget::new($words, mount(pm), reopen, &[]), SETTINGS);
        }
    };
}

layout!(the_log_layout_is_like_the_model, nacre_layout_log, LogFs, "the log layout");
layout!(the_in_place_layout_is_like_the_model, nacre_layout_inplace, InplaceFs, "the in-place layout");
