//! While blocks move all the time, the behaviour suite passes and random calls are like the reference model.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nacre_engine::Extents;
use nacre_lab::calls::{Settings, check_for};
use nacre_lab::environment::{model_time, number};
use nacre_lab::model::MemLayout;
use nacre_lab::suite::{VfsTarget, all_cases, run};

use super::{Fs, Layout, Machine};

fn target<L: Layout>(machine: &Machine<L>, fs: Arc<Fs<L>>) -> VfsTarget<Arc<Fs<L>>> {
    let (again, after) = (machine.clone(), machine.clone());
    let reopen = Arc::new(move |old: Arc<Fs<L>>| {
        again.unmount(old);
        again.mount()
    });
    let crash = Arc::new(move |old: Arc<Fs<L>>| {
        after.crash(old);
        after.mount()
    });
    VfsTarget::new("a layout over memory and a disk", fs, reopen, &[]).with_crash(crash)
}

fn passes<L: Layout>(is_calm: bool, which: fn(&str) -> bool) -> u64 {
    let (machine, fs) = Machine::<L>::new(is_calm);
    let mut target = target(&machine, fs);
    let cases: Vec<_> = all_cases().into_iter().filter(|case| which(case.name)).collect();
    assert!(cases.len() > 4);
    let report = run(&mut target, &cases, &[]);
    machine.unmount(target.into_layout());
    report.assert_clean();
    machine.unrest.moved.load(Ordering::Relaxed)
}

/// Does it until enough blocks have moved to tell something: on a machine that is busy the thread that moves them hardly runs.
fn is_told(mut run: impl FnMut() -> u64) {
    let enough = (0..20).map(|_| run()).any(|moved| moved > 100);
    assert!(enough, "hardly a block was moved, or no log");
}

fn the_suite_passes_while_blocks_move<L: Layout>() {
    is_told(|| passes::<L>(false, |name| !counts_space(name)));
}

/// A copy that is being made takes space, and who makes it keeps the file, so that how much there is can only be told when nobody
/// does.
pub(crate) fn counts_space(name: &str) -> bool {
    name.starts_with("full-") || name == "space-is-counted"
}

/// Whether a test of a full file system is left out, which then says so. Without maps in DRAM the tree of each file is
/// read for each operation: that takes minutes.
pub(crate) fn takes_minutes<L: Layout>() -> bool {
    let (machine, fs) = Machine::<L>::new(true);
    let has_maps = fs.layout().has_logs();
    machine.unmount(fs);
    let is_left_out = !has_maps && number("NACRE_MODEL_SECONDS").is_none();
    if is_left_out {
        println!("left out: a full file system without maps in DRAM (NACRE_MODEL_SECONDS runs it)");
    }
    is_left_out
}

fn a_file_system_is_full_when_all_of_its_devices_are<L: Layout>() {
    if !takes_minutes::<L>() {
        passes::<L>(true, counts_space);
    }
}

fn random_calls_are_like_the_model_while_blocks_move<L: Layout>() {
    let (machine, fs) = Machine::<L>::new(false);
    let has_logs = fs.layout().has_logs();
    let mut target = target(&machine, fs);
    let layout = MemLayout::new(1 << 20, 1 << 20);
    let reopen = Arc::new(|old: MemLayout| old.remount());
    let mut model = VfsTarget::new("the reference model", layout, reopen, &[]);
    let settings =
        Settings { calls: 1500, compare_every: 100, remount_every: Some(400), exact_allocation: true };
    let unrest = Arc::clone(&machine.unrest);
    is_told(|| {
        let seed = number("NACRE_SEED");
        let total = match check_for(&mut target, &mut model, settings, seed, model_time()) {
            Ok(total) => total,
            Err(failure) => panic!("{failure}"),
        };
        total.assert_mixed();
        let moved = unrest.moved.load(Ordering::Relaxed);
        let changed = unrest.changed.load(Ordering::Relaxed);
        let logs = unrest.logs.load(Ordering::Relaxed);
        println!("{:?}, {moved} blocks moved, {changed} changed meanwhile, {logs} logs", total.total());
        if logs > 0 || !has_logs { moved } else { 0 }
    });
    let fs = target.into_layout();
    assert!(fs.stat().free > 0);
    machine.unmount(fs);
}

over_each_layout!(
    the_suite_passes_while_blocks_move,
    a_file_system_is_full_when_all_of_its_devices_are,
    random_calls_are_like_the_model_while_blocks_move,
);
