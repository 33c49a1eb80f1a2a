//! Random sequences of system calls on a mount, beside the reference model. Between two calls the mount may be unmounted,
//! or its server killed: what a call has done is there when it has returned. Kills under load are the business of `kill`.
//!
//! `NACRE_MODEL_SECONDS` is how long it looks for differences on each layout (5 by default), `NACRE_SEED` runs one seed only.

use std::sync::Arc;
use std::time::Duration;

use nacre_lab::calls::{Settings, check_for};
use nacre_lab::model::MemLayout;
use nacre_lab::suite::VfsTarget;

use crate::harness::{self, PRESETS, Remounted};

const SETTINGS: Settings =
    Settings { calls: 1500, compare_every: 200, remount_every: Some(250), exact_allocation: true };

#[test]
fn a_mount_is_like_the_model() {
    if !harness::can_mount("random system calls on a mount") {
        return;
    }
    for preset in PRESETS {
        look_for_differences(preset);
    }
}

fn look_for_differences(preset: &str) {
    let ground = Remounted::new(preset, "256M");
    let mut mount = ground.target(&[]);
    let layout = MemLayout::new(1 << 16, 1 << 16);
    let reopen = Arc::new(|old: MemLayout| old.remount());
    let mut model = VfsTarget::new("the reference model", layout, reopen, &[]);

    let variable = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    let time = Duration::from_secs(variable("NACRE_MODEL_SECONDS").unwrap_or(5));
    let total = match check_for(&mut mount, &mut model, SETTINGS, variable("NACRE_SEED"), time) {
        Ok(total) => total,
        Err(failure) => panic!("preset {preset}: {failure}"),
    };
    let (made, succeeded) = total.total();
    println!("{preset}: {made} calls, {succeeded} succeeded: {:?}", total.calls);
    total.assert_mixed();
    ground.end();
}
