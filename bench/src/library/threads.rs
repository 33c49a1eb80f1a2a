//! What a second thread adds.
//!
//! Two workers live for the whole row. In each round both sides run their batch with two threads, then with one; the
//! figure is the work of two threads in a time over that of one. tmpfs is measured likewise, and so is bare
//! computation: where that does not gain two, the machine had no second core to give.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::Instant;

use rustix::io::{pread, pwrite};

use crate::context::{Context, Outcome};
use crate::library::content::Both;
use crate::library::names::{Roots, create_peer, unlink_peer};
use crate::measure::quantile;
use crate::report::Figure;
use crate::rows;
use crate::work::{BLOCK, Names, buffer, create_ours, offsets};

/// Operations of one thread in a batch, as a multiple of the usual one: starting together takes some microseconds.
const LONGER: u64 = 5;

/// Ours, tmpfs, bare computation.
const SIDES: usize = 3;

/// One side.
struct Work<'a> {
    /// What a thread does in a round; inside the time.
    run: &'a (dyn Fn(usize, u64) + Sync),
    /// What is undone after a thread's batch; outside the time.
    undo: &'a dyn Fn(usize, u64),
}

/// Nanoseconds an operation with one thread and with two, for each round.
#[derive(Default)]
struct Gain {
    one: Vec<f64>,
    two: Vec<f64>,
}

impl Gain {
    fn ratios(&self) -> Vec<f64> {
        self.one.iter().zip(&self.two).map(|(one, two)| one / two).collect()
    }
}

/// Two threads that start together.
struct Team {
    barrier: Barrier,
    active: AtomicUsize,
    round: AtomicU64,
    ready: AtomicUsize,
    side: AtomicUsize,
    spans: [Mutex<Option<(Instant, Instant)>>; 2],
}

/// A panicking worker would leave the others waiting for ever.
struct EndOnPanic;

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

impl Team {
    fn worker(&self, thread: usize, sides: &[&(dyn Fn(usize, u64) + Sync); SIDES]) {
        let _end = EndOnPanic;
        loop {
            self.barrier.wait();
            let threads = self.active.load(Ordering::SeqCst);
            if threads == 0 {
                return;
            }
            let round = self.round.load(Ordering::SeqCst);
            if runs(threads, thread, round) {
                let work = sides[self.side.load(Ordering::SeqCst)];
                self.ready.fetch_add(1, Ordering::SeqCst);
                while self.ready.load(Ordering::SeqCst) < threads {
                    std::hint::spin_loop();
                }
                let begin = Instant::now();
                work(thread, round);
                *self.spans[thread].lock().expect("no panic") = Some((begin, Instant::now()));
            }
            self.barrier.wait();
        }
    }

    /// Nanoseconds from the first start to the last end, an operation.
    fn batch(&self, side: usize, threads: usize, round: u64, operations: u64) -> f64 {
        self.side.store(side, Ordering::SeqCst);
        self.active.store(threads, Ordering::SeqCst);
        self.round.store(round, Ordering::SeqCst);
        self.ready.store(0, Ordering::SeqCst);
        self.barrier.wait();
        self.barrier.wait();
        let spans: Vec<_> =
            self.spans.iter().filter_map(|span| span.lock().expect("no panic").take()).collect();
        let begin = spans.iter().map(|span| span.0).min().expect("one ran");
        let end = spans.iter().map(|span| span.1).max().expect("one ran");
        (end - begin).as_nanos() as f64 / (operations * threads as u64) as f64
    }
}

/// Work that needs a core and nothing else, about as long as that many operations.
fn compute(operations: u64) {
    let mut state = operations;
    for _ in 0..operations * 200 {
        state = std::hint::black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}

/// With one thread the two workers take turns.
fn runs(threads: usize, thread: usize, round: u64) -> bool {
    threads == 2 || thread as u64 == round % 2
}

fn measure(context: &Context, operations: u64, sides: [Work<'_>; 2]) -> [Gain; SIDES] {
    let team = Team {
        barrier: Barrier::new(3),
        active: AtomicUsize::new(0),
        round: AtomicU64::new(0),
        ready: AtomicUsize::new(0),
        side: AtomicUsize::new(0),
        spans: Default::default(),
    };
    let compute: &(dyn Fn(usize, u64) + Sync) = &|_, _| compute(operations);
    let work = [sides[0].run, sides[1].run, compute];
    let mut gains: [Gain; SIDES] = Default::default();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (team, work) = (&team, &work);
            scope.spawn(move || team.worker(thread, work));
        }
        let _end = EndOnPanic;
        let begin = Instant::now();
        let (least, most) = context.budget.rounds;
        for turn in 0..context.budget.warm_up + most {
            if turn >= context.budget.warm_up + least && begin.elapsed() >= context.budget.time * 2 {
                break;
            }
            for (side, gain) in gains.iter_mut().enumerate() {
                for threads in [2, 1] {
                    // Each batch has a round of its own, so that no two get the same offsets.
                    let round = turn as u64 * 2 + threads as u64 % 2;
                    let time = team.batch(side, threads, round, operations);
                    if let Some(work) = sides.get(side) {
                        (0..2)
                            .filter(|&thread| runs(threads, thread, round))
                            .for_each(|thread| (work.undo)(thread, round));
                    }
                    if turn >= context.budget.warm_up {
                        if threads == 2 { &mut gain.two } else { &mut gain.one }.push(time);
                    }
                }
            }
        }
        team.active.store(0, Ordering::SeqCst);
        team.barrier.wait();
    });
    gains
}

fn report(context: &Context, row: &str, [ours, peer, bare]: &[Gain; SIDES]) -> Outcome {
    let row = rows::find(row);
    let ratios = ours.ratios();
    let gain = |gain: &Gain| quantile(&gain.ratios(), 0.5);
    let value = quantile(&ratios, 0.5);
    let mut figure = Figure::single(row.name, row.what, "ns", row.target, value)
        .value(value, (quantile(&ratios, 0.1), quantile(&ratios, 0.9)));
    figure.ours = quantile(&ours.two, 0.5);
    figure.peer = Some(quantile(&ours.one, 0.5));
    figure.rounds = ratios.len();
    let note = format!("beside one thread; tmpfs {:.2}, bare computation {:.2}", gain(peer), gain(bare));
    context.report(figure.note(note))
}

/// Two threads on one file, each on its half.
pub(super) fn content(context: &Context, both: &Both) -> Outcome {
    let operations = context.sizes.batch * LONGER;
    let half = both.size / 2;
    // The offsets of a round are made outside the time: there are few sets, which take turns.
    let sets: Vec<Vec<u64>> = (0..8).map(|seed| offsets(seed, operations, half, BLOCK as u64)).collect();
    let at = |thread: usize, round: u64| {
        let set = &sets[(round as usize * 2 + thread) % sets.len()];
        set.iter().map(move |offset| offset + thread as u64 * half)
    };
    let nothing = |_, _| {};
    if context.wants("overwrite-4k.2threads") {
        let data = buffer(BLOCK);
        let ours = |thread, round| {
            for at in at(thread, round) {
                both.ours.write_at(&data, at).expect("a write of ours");
            }
        };
        let peer = |thread, round| {
            for at in at(thread, round) {
                pwrite(&both.peer, &data, at).expect("a write to tmpfs");
            }
        };
        let sides = [Work { run: &ours, undo: &nothing }, Work { run: &peer, undo: &nothing }];
        report(context, "overwrite-4k.2threads", &measure(context, operations, sides))?;
    }
    if context.wants("read-4k.2threads") {
        let ours = |thread, round| {
            let mut data = buffer(BLOCK);
            for at in at(thread, round) {
                both.ours.read_at(&mut data, at).expect("a read of ours");
            }
        };
        let peer = |thread, round| {
            let mut data = buffer(BLOCK);
            for at in at(thread, round) {
                pread(&both.peer, &mut data[..], at).expect("a read of tmpfs");
            }
        };
        let sides = [Work { run: &ours, undo: &nothing }, Work { run: &peer, undo: &nothing }];
        report(context, "read-4k.2threads", &measure(context, operations, sides))?;
    }
    Ok(())
}

/// Two threads that create in one directory.
pub(super) fn create(context: &Context, roots: &Roots) -> Outcome {
    roots.make_dir("shared")?;
    let operations = context.sizes.batch * LONGER;
    let names = ["a-", "b-"].map(|prefix| Names::new("shared", prefix, operations));
    let root = roots.peer.as_fd();
    let ours = |thread: usize, _| names[thread].ours.iter().for_each(|path| create_ours(&roots.fs, path));
    let peer = |thread: usize, _| names[thread].peer.iter().for_each(|path| create_peer(root, path));
    let undo_ours = |thread: usize, _| {
        names[thread].ours.iter().for_each(|path| roots.fs.remove_file(path).expect("ours unlinks"));
    };
    let undo_peer = |thread: usize, _| names[thread].peer.iter().for_each(|path| unlink_peer(root, path));
    let sides = [Work { run: &ours, undo: &undo_ours }, Work { run: &peer, undo: &undo_peer }];
    report(context, "create.2threads", &measure(context, operations, sides))
}
