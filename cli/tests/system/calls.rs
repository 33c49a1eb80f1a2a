//! Random sequences of system calls on a mount, beside the reference model; crashes are the business of `kill`.
//!
//! `NACRE_MODEL_SECONDS` is how long it looks for differences (5 by default), `NACRE_SEED` runs one seed only.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nacre_lab::calls::{Settings, Stats, check};
use nacre_lab::model::MemLayout;
use nacre_lab::suite::{DirectoryTarget, VfsTarget};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::harness::{self, Ground};

const SETTINGS: Settings =
    Settings { calls: 1500, compare_every: 200, remount_every: Some(500), exact_allocation: true };

#[test]
fn a_mount_is_like_the_model() {
    if !harness::can_mount("random system calls on a mount") {
        return;
    }
    let ground = Ground::nacre("256M", None);
    let dir = ground.dir();
    let ground = Arc::new(Mutex::new(ground));
    let mounted = Arc::clone(&ground);
    let remount = Box::new(move || {
        let mut ground = mounted.lock().expect("no remount has panicked");
        ground.unmount();
        ground.fsck();
        ground.mount();
    });
    let mut mount = DirectoryTarget::new(&dir, &[], Some(remount));
    let layout = MemLayout::new(1 << 16, 1 << 16);
    let reopen = Arc::new(|old: MemLayout| old.remount());
    let mut model = VfsTarget::new("the reference model", layout, reopen, &[]);

    let variable = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    let limit = Duration::from_secs(variable("NACRE_MODEL_SECONDS").unwrap_or(5));
    let asked = variable("NACRE_SEED");
    let (start, mut rng, mut total) = (Instant::now(), SmallRng::from_os_rng(), Stats::default());
    loop {
        let seed = asked.unwrap_or_else(|| rng.random_range(0..1 << 32));
        match check(&mut mount, &mut model, seed, SETTINGS) {
            Ok(stats) => total.add(&stats),
            Err(failure) => panic!("{failure}"),
        }
        if asked.is_some() || start.elapsed() > limit {
            break;
        }
    }
    let (made, succeeded) = total.total();
    println!("{made} calls, {succeeded} succeeded: {:?}", total.calls);
    let mut ground = ground.lock().expect("no remount has panicked");
    ground.unmount();
    ground.fsck();
}
