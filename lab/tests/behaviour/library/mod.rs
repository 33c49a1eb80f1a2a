//! The crate `nacre`, each layout of it: the behaviour suite, and random calls beside the reference model.
//!
//! `NACRE_MODEL_SECONDS` is how long it looks for differences (2 by default), `NACRE_SEED` runs one seed only.

mod target;

use std::sync::Arc;

use nacre::Preset;
use nacre_lab::calls::{Settings, check_for};
use nacre_lab::environment::{model_time, number};
use nacre_lab::model::MemLayout;
use nacre_lab::suite::{VfsTarget, all_cases, run};
use target::Library;

const SETTINGS: Settings =
    Settings { calls: 1500, compare_every: 100, remount_every: Some(400), exact_allocation: true };

fn suite(preset: Preset) {
    let dir = tempfile::tempdir().expect("a directory");
    // Small enough to be filled.
    let mut library = Library::create(&dir.path().join("pm"), preset, 64 << 20);
    run(&mut library, &all_cases(), &[]).assert_clean();
    library.end();
}

fn calls(preset: Preset) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut library = Library::create(&dir.path().join("pm"), preset, 64 << 20);
    let layout = MemLayout::new(1 << 20, 1 << 20);
    let reopen = Arc::new(|old: MemLayout| old.remount());
    let mut model = VfsTarget::new("the reference model", layout, reopen, &[]);
    let total = match check_for(&mut library, &mut model, SETTINGS, number("NACRE_SEED"), model_time()) {
        Ok(total) => total,
        Err(failure) => panic!("preset {preset}: {failure}"),
    };
    let (made, succeeded) = total.total();
    println!("preset {preset}: {made} calls, {succeeded} succeeded: {:?}", total.calls);
    total.assert_mixed();
    library.end();
}

#[test]
fn the_suite_passes_on_the_log_layout() {
    suite(Preset::Nova);
}

#[test]
fn the_suite_passes_on_the_in_place_layout() {
    suite(Preset::Pmfs);
}

#[test]
fn the_suite_passes_on_the_shadow_layout() {
    suite(Preset::Bpfs);
}

#[test]
fn the_log_layout_is_like_the_model() {
    calls(Preset::Nova);
}

#[test]
fn the_in_place_layout_is_like_the_model() {
    calls(Preset::Pmfs);
}

#[test]
fn the_shadow_layout_is_like_the_model() {
    calls(Preset::Bpfs);
}
