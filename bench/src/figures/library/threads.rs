//! The gain of a second thread.
//!
//! In each round both sides run their batch with two threads, then with one; the figure is the work of two threads in a time over that of one. tmpfs is measured likewise, and so is bare
//! computation: where that does not gain two, the machine had no second core to give.

use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::Instant;

use rustix::io::{pread, pwrite};

use crate::figures::context::{Context, Outcome};
use crate::figures::cores::Cores;
use crate::figures::library::content::Both;
use crate::figures::library::names::{Roots, create_peer, unlink_peer};
use crate::figures::measure::{Pairs, times_taken_away};
use crate::figures::report::Figure;
use crate::figures::rows::{self, Side};
use crate::figures::work::{BLOCK, Names, buffer, create_ours, offsets};
use crate::report::schema::Pays;
use crate::stats::median;

/// Operations of one thread in a batch, as a multiple of the usual one: starting together takes some microseconds.
const LONGER: u64 = 5;

/// Ours, tmpfs, bare computation.
const SIDES: usize = 3;

/// One side.
struct Work<'a> {
    /// A thread's work in a round; inside the time.
    run: &'a (dyn Fn(usize, u64) + Sync),
    /// Undoes a thread's batch; outside the time.
    undo: &'a dyn Fn(usize, u64),
}

/// Nanoseconds an operation with one thread and with two, for each round.
#[derive(Default)]
struct Gain {
    one: Vec<f64>,
    two: Vec<f64>,
    disturbed: (Vec<f64>, Vec<f64>),
}

impl Gain {
    fn add(&mut self, two: Span, one: Span, operations: u64) {
        let time = |span: Span| (span.end - span.begin).as_nanos() as f64 / operations as f64;
        let (ones, twos) = match two.disturbed || one.disturbed {
            false => (&mut self.one, &mut self.two),
            true => (&mut self.disturbed.0, &mut self.disturbed.1),
        };
        ones.push(time(one));
        twos.push(time(two) / 2.0);
    }

    /// Takes the disturbed rounds in, too, where there are too few others; gives the number of those left out.
    fn complete(&mut self, least: usize) -> usize {
        if self.one.len() < least {
            self.one.append(&mut self.disturbed.0);
            self.two.append(&mut self.disturbed.1);
        }
        self.disturbed.0.len()
    }

    fn ratios(&self) -> Vec<f64> {
        self.one.iter().zip(&self.two).map(|(one, two)| one / two).collect()
    }
}

/// Two threads that start together: this one and a second, which sleeps between the batches. Each keeps to a core of
/// its own meanwhile. On a busy machine the scheduler would otherwise leave them on one for longer than a batch, and
/// the scheduler would be measured.
struct Team {
    /// Counts batches in which the second thread works; [`END`] sends it home.
    call: AtomicU64,
    /// The last call that it has received, and the last that it has finished.
    heard: AtomicU64,
    done: AtomicU64,
    round: AtomicU64,
    side: AtomicUsize,
    span: Mutex<Span>,
}

/// A batch of one thread.
#[derive(Clone, Copy)]
struct Span {
    begin: Instant,
    end: Instant,
    /// The scheduler ran another process meanwhile.
    disturbed: bool,
}

impl Span {
    fn of(batch: impl FnOnce()) -> Span {
        let taken_away = times_taken_away();
        let begin = Instant::now();
        batch();
        let end = Instant::now();
        Span { begin, end, disturbed: times_taken_away() != taken_away }
    }
}

const END: u64 = u64::MAX;

/// A panic of one thread would leave the other spinning for ever.
struct EndOnPanic;

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// Waits for an event that takes microseconds. A loop with `pause` would do on bare metal; a hypervisor takes the core
/// away for it.
fn wait_for(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::yield_now();
    }
}

type Batch<'a> = &'a (dyn Fn(usize, u64) + Sync);

impl Team {
    fn new() -> Team {
        Team {
            call: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            done: AtomicU64::new(0),
            round: AtomicU64::new(0),
            side: AtomicUsize::new(0),
            span: Mutex::new(Span::of(|| {})),
        }
    }

    /// The life of the second thread.
    fn second(&self, work: &[Batch<'_>; SIDES]) {
        let _end = EndOnPanic;
        for call in 1.. {
            while self.call.load(Ordering::SeqCst) < call {
                std::thread::park();
            }
            if self.call.load(Ordering::SeqCst) == END {
                return;
            }
            let work = work[self.side.load(Ordering::SeqCst)];
            let round = self.round.load(Ordering::SeqCst);
            self.heard.store(call, Ordering::SeqCst);
            *self.span.lock().expect("no panic") = Span::of(|| work(1, round));
            self.done.store(call, Ordering::SeqCst);
        }
    }

    /// Runs a batch on both threads; gives the time from the first start to the last end.
    fn both(&self, second: &Thread, side: usize, round: u64, work: Batch<'_>) -> Span {
        self.side.store(side, Ordering::SeqCst);
        self.round.store(round, Ordering::SeqCst);
        let call = self.call.fetch_add(1, Ordering::SeqCst) + 1;
        second.unpark();
        wait_for(|| self.heard.load(Ordering::SeqCst) == call);
        let first = Span::of(|| work(0, round));
        wait_for(|| self.done.load(Ordering::SeqCst) == call);
        let second = *self.span.lock().expect("no panic");
        Span {
            begin: first.begin.min(second.begin),
            end: first.end.max(second.end),
            disturbed: first.disturbed || second.disturbed,
        }
    }
}

fn measure(context: &Context, operations: u64, sides: [Work<'_>; 2]) -> [Gain; SIDES] {
    let compute: Batch<'_> = &|_, _| compute(operations);
    let work = [sides[0].run, sides[1].run, compute];
    let mut gains: [Gain; SIDES] = Default::default();
    let team = Team::new();
    let cores = Cores::of_this_thread();
    std::thread::scope(|scope| {
        let _end = EndOnPanic;
        cores.keep_to(0);
        let second = scope.spawn(|| {
            cores.keep_to(1);
            team.second(&work);
        });
        let begin = Instant::now();
        let (least, most) = context.budget.rounds;
        for turn in 0..context.budget.warm_up + most {
            let is_enough =
                turn >= context.budget.warm_up + least && begin.elapsed() >= context.budget.time * 2;
            if is_enough || turn > context.budget.warm_up && context.is_interrupted() {
                break;
            }
            for (side, gain) in gains.iter_mut().enumerate() {
                let undo = |thread: usize, round: u64| {
                    if let Some(work) = sides.get(side) {
                        (work.undo)(thread, round);
                    }
                };
                // Each batch has a round of its own, so that no two get the same offsets.
                let round = turn as u64 * 2;
                let two = team.both(second.thread(), side, round, work[side]);
                (0..2).for_each(|thread| undo(thread, round));
                let one = Span::of(|| work[side](0, round + 1));
                undo(0, round + 1);
                if turn >= context.budget.warm_up {
                    gain.add(two, one, operations);
                }
            }
        }
        team.call.store(END, Ordering::SeqCst);
        second.thread().unpark();
        cores.release();
    });
    gains
}

/// Work that needs a core and nothing else, about as long as that many operations.
fn compute(operations: u64) {
    let mut state = operations;
    for _ in 0..operations * 200 {
        state = std::hint::black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}

fn report(context: &Context, row: &str, [mut ours, mut peer, mut bare]: [Gain; SIDES]) -> Outcome {
    let least = context.budget.rounds.0;
    let disturbed = [&mut ours, &mut peer, &mut bare].map(|gain| gain.complete(least))[0];
    let gain = |gain: &Gain| median(&gain.ratios());
    let note = format!("beside one thread; tmpfs {:.2}, bare computation {:.2}", gain(&peer), gain(&bare));
    let ratios = ours.ratios();
    let pairs = Pairs { ours: ours.two, peer: ours.one, disturbed };
    let mut figure = Figure::compared(rows::find(row), &pairs).value(median(&ratios), None, ratios);
    let beside = [(BESIDE[0], peer.two), (BESIDE[1], peer.one), (BESIDE[2], bare.two), (BESIDE[3], bare.one)];
    for (side, samples) in beside {
        figure = figure.beside(side, samples);
    }
    context.report(figure.note(note))
}

/// The other sides that work in each round.
const BESIDE: [Side; 4] = [
    Side { name: "peer:tmpfs, two threads", about: "tmpfs", pays: Pays::Kernel },
    Side { name: "peer:tmpfs, one thread", about: "tmpfs", pays: Pays::Kernel },
    Side { name: "computation, two threads", about: "work without memory", pays: Pays::Library },
    Side { name: "computation, one thread", about: "work without memory", pays: Pays::Library },
];

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
        report(context, "overwrite-4k.2threads", measure(context, operations, sides))?;
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
        report(context, "read-4k.2threads", measure(context, operations, sides))?;
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
    report(context, "create.2threads", measure(context, operations, sides))
}
