//! Several threads on one file system, and a crash.
//!
//! One thread runs at a time; whoever is about to fence may have to wait there while others go on, as a seed says. So
//! the windows between a store and its fence are wide open, and other threads see what is not durable yet. A thread
//! that waits for a lock of one that stands still is noticed after [`PATIENCE`], and that one goes on: which
//! interleaving comes of it may differ from run to run, what is demanded of it does not.
//!
//! The oracle: an operation that its thread saw return is there; of those in flight, each is there or not; and nothing
//! is there that an operation needed which is not. Operations of different threads commute, or one waits for what
//! another has made (it is tried again until that can be seen). All have the same time, so that nothing depends on which
//! was last.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use nacre_engine::{Error, FileKind, Kind, RenameMode, Result};
use nacre_media::Trace;
use nacre_media::crash::{Replay, Sampling};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::op::{Hands, Op, Runner};
use super::record::{Flaw, Rig};
use super::report::Report;
use super::subject::{Moment, Subject};
use super::tree::Tree;
use super::verify::{Depth, Expected, Remaking, judge};
use super::workload::many;
use crate::model::MemLayout;

/// How long a thread may have its turn without a fence or an end before another goes on.
const PATIENCE: Duration = Duration::from_millis(20);
/// Times that an operation is tried until what it needs can be seen.
const MAX_TRIES: usize = 1000;
/// The step, and so the time, of all operations of threads.
const STEP: u64 = 500;

/// What several threads do.
#[derive(Debug, Clone)]
pub struct Threads {
    /// Its name.
    pub name: &'static str,
    /// Done before.
    pub setup: Vec<Op>,
    /// The operations of each thread.
    pub threads: Vec<Vec<Op>>,
}

/// The workloads whose threads need nothing of each other.
fn apart() -> Vec<Threads> {
    let file = |path| Op::Create(path, FileKind::Regular);
    let dir = |path| Op::Create(path, FileKind::Directory);
    let base = vec![dir("d"), dir("e"), file("d/a"), file("d/b"), file("e/c"), Op::Write("d/b", 0, 9000)];
    let of = |name, threads: &[&[Op]]| Threads {
        name,
        setup: base.clone(),
        threads: threads.iter().map(|ops| ops.to_vec()).collect(),
    };
    vec![
        of(
            "one directory",
            &[
                &[file("d/1"), Op::Unlink("d/a"), Op::Symlink("d/2", "x")],
                &[file("d/3"), Op::Rename("d/3", "d/4", RenameMode::Replace), dir("d/5")],
            ],
        ),
        of(
            "two directories",
            &[
                &[Op::Rename("d/a", "e/1", RenameMode::Replace), file("d/2")],
                &[Op::Rename("e/c", "d/3", RenameMode::Replace), file("e/4")],
            ],
        ),
        of(
            "one file",
            &[
                &[Op::Write("d/b", 0, 4096), Op::SetXattr("d/b", "user.a", 10)],
                &[Op::Write("d/b", 4096, 3000), Op::SetXattr("d/b", "user.b", 20)],
            ],
        ),
        of(
            "files apart",
            &[
                &[Op::Append("d/a", 5000), Op::Truncate("d/a", 100)],
                &[Op::Append("e/c", 100), Op::Append("e/c", 8000)],
                &[file("new"), Op::Write("new", 0, 300)],
            ],
        ),
        Threads {
            name: "inodes run out",
            setup: many(253),
            threads: vec![vec![file("x"), file("y")], vec![file("z"), dir("w")]],
        },
    ]
}

/// All of them.
pub fn threads() -> Vec<Threads> {
    let mut all = apart();
    all.extend(handed_over());
    all
}

/// The workloads in which a thread builds on what another one makes.
fn handed_over() -> Vec<Threads> {
    let file = |path| Op::Create(path, FileKind::Regular);
    let dir = |path| Op::Create(path, FileKind::Directory);
    let base = vec![dir("d"), dir("e")];
    let of = |name, first: &[Op], second: &[Op]| Threads {
        name,
        setup: base.clone(),
        threads: vec![first.to_vec(), second.to_vec()],
    };
    vec![
        of("into a new directory", &[dir("d/n")], &[file("d/n/x"), file("d/n/y")]),
        of("into a new file", &[file("d/f")], &[Op::Write("d/f", 0, 5000), Op::SetAttr("d/f", 0o600)]),
        of("a new file linked", &[file("d/f")], &[Op::Link("d/f", "e/g"), file("e/h")]),
        of("a new file renamed", &[file("d/f")], &[Op::Rename("d/f", "e/g", RenameMode::Replace)]),
        of("into a renamed directory", &[Op::Rename("d", "m", RenameMode::Replace)], &[file("m/x")]),
        of("into a moved directory", &[Op::Rename("d", "e/d", RenameMode::Replace)], &[file("e/d/x")]),
    ]
}

/// Whose turn it is.
struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    turn: usize,
    /// Threads that are not done.
    running: Vec<usize>,
    rng: SmallRng,
    /// Grows with each sign of life.
    events: u64,
}

thread_local!(static ME: std::cell::Cell<usize> = const { std::cell::Cell::new(usize::MAX) });

impl Turns {
    fn new(threads: usize, seed: u64) -> Turns {
        let state =
            State { turn: 0, running: (0..threads).collect(), rng: SmallRng::seed_from_u64(seed), events: 0 };
        Turns { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Gives the turn to a random thread, perhaps this one, and waits for it to come back. With `on`, to another one
    /// when there is one.
    fn pass(&self, on: bool) {
        let me = ME.get();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.events += 1;
        let State { turn, running, rng, .. } = &mut *state;
        if *turn == me {
            let others: Vec<usize> = running.iter().copied().filter(|&other| other != me || !on).collect();
            if !others.is_empty() {
                *turn = others[rng.random_range(0..others.len())];
            }
        }
        self.changed.notify_all();
        self.wait(state, me);
    }

    fn wait(&self, mut state: std::sync::MutexGuard<'_, State>, me: usize) {
        while state.turn != me {
            let events = state.events;
            let waited = self.changed.wait_timeout(state, PATIENCE);
            let (locked, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = locked;
            // Whoever has the turn waits, presumably for a lock that is held here.
            if timeout.timed_out() && state.events == events {
                state.turn = me;
                state.events += 1;
            }
        }
    }

    fn begin(&self, me: usize) {
        ME.set(me);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.wait(state, me);
    }

    fn end(&self) {
        let me = ME.get();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.events += 1;
        state.running.retain(|&other| other != me);
        if state.turn == me
            && let Some(&next) = state.running.first()
        {
            state.turn = next;
        }
        self.changed.notify_all();
    }
}

/// How far the threads were at a crash: for each, the operations that returned, and whether one was in flight.
type Progress = Vec<(usize, bool)>;

fn mark(thread: usize, index: usize, ends: bool) -> u64 {
    (thread as u64) << 32 | (index as u64) << 1 | u64::from(ends)
}

fn take_mark(progress: &mut Progress, mark: u64) {
    let (thread, index, ends) = ((mark >> 32) as usize, (mark as u32 >> 1) as usize, mark & 1 == 1);
    progress[thread] = if ends { (index + 1, false) } else { (index, true) };
}

/// Runs the threads with the interleaving of a seed and crashes them everywhere.
pub fn explore_threads<S: Subject>(
    rig: &mut Rig<'_, S>,
    workload: &Threads,
    seed: u64,
    sampling: &Sampling,
    flaw: Flaw,
) -> Result<(Report, Vec<String>)> {
    let (start, model, prepared_free) = rig.prepare(&workload.setup)?;
    rig.pm.load(&start);
    let fs = rig.subject.mount(&rig.pm)?;
    let start = rig.pm.image();
    rig.pm.seed_mistake(flaw.mistake());
    let trace = run(rig, &fs, workload, seed, flaw);
    rig.pm.seed_mistake(0);
    let trace = trace?;
    // Without a crash; the threads may have made something that stays, as chunks of inodes do.
    let free_when_empty = prepared_free.min(super::verify::free_when_empty(rig.subject, fs)?);
    let mut explorer = Oracle { workload, model: &model, allowed: BTreeMap::new() };
    let mut report =
        Report { commit_points: vec![0; rig.subject.commit_points().len()], ..Report::default() };
    let mut problems = Vec::new();
    let mut seen = HashSet::new();
    let mut replay = Replay::new(start, &trace);
    let mut progress: Progress = vec![(0, false); workload.threads.len()];
    let mut events = 0;
    while let Some(point) = replay.advance() {
        replay.marks(events..point.events).for_each(|mark| take_mark(&mut progress, mark));
        events = point.events;
        let states = explorer.states(&progress)?;
        let expected = Expected {
            states: &states,
            allowed: 0..=states.len() - 1,
            remaking: Remaking::No,
            free_when_empty,
        };
        rig.pm.load(replay.media());
        let before = report.images;
        for image in replay.images(sampling).iter() {
            if !seen.insert((replay.hash_of(&image), progress.clone())) {
                report.repeated += 1;
                continue;
            }
            image.apply(&rig.pm);
            let depth = if image.index % 32 == 31 { Depth::Empty } else { Depth::Check };
            let judged = judge(rig.subject, &rig.pm, &expected, depth);
            report.images += 1;
            report.checked += 1;
            report.emptied += u64::from(depth == Depth::Empty);
            if let Some(problem) = judged.problems.first().filter(|_| problems.len() < 3) {
                problems.push(format!(
                    "threads: {}, seed {seed}, {progress:?} (returned, in flight), {image:?}: {problem}",
                    workload.name
                ));
            }
            rig.pm.load(replay.media());
        }
        report.points += 1;
        let moment = Moment { stores: replay.stores(), fence: point.fence, last_fence: replay.last_fence() };
        let count = report.images - before;
        let counts = &mut report.commit_points;
        rig.subject.commits_at(&moment, &mut |commit| counts[commit] += count);
    }
    Ok((report, problems))
}

/// Runs the threads and records what they store.
fn run<S: Subject>(rig: &Rig<'_, S>, fs: &S::Fs, workload: &Threads, seed: u64, flaw: Flaw) -> Result<Trace> {
    let turns = Arc::new(Turns::new(workload.threads.len(), seed));
    let at_fence = Arc::clone(&turns);
    rig.pm.set_fence_hook(Some(Box::new(move || at_fence.pass(false))));
    rig.pm.start_recording_with(flaw.defect());
    let failed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for (me, ops) in workload.threads.iter().enumerate() {
            let (turns, pm, failed) = (&turns, &rig.pm, &failed);
            scope.spawn(move || {
                turns.begin(me);
                let mut held = Vec::new();
                for (index, op) in ops.iter().enumerate() {
                    pm.mark(mark(me, index, false));
                    let mut tries = 0;
                    while let Err(error) = (Hands { fs }).run(STEP, op, &mut held) {
                        tries += 1;
                        if error.kind() != Kind::NotFound || tries > MAX_TRIES {
                            failed.fetch_add(1, Ordering::Relaxed);
                            break;
                        }
                        // What it needs is still to be made by another thread.
                        turns.pass(true);
                    }
                    pm.mark(mark(me, index, true));
                }
                turns.end();
            });
        }
    });
    let trace = rig.pm.stop_recording();
    rig.pm.set_fence_hook(None);
    match failed.into_inner() {
        0 => Ok(trace),
        count => Err(Error::corrupt(format!("threads: {}: {count} operations failed", workload.name))),
    }
}

/// The states that a crash may leave.
struct Oracle<'w> {
    workload: &'w Threads,
    model: &'w MemLayout,
    allowed: BTreeMap<Progress, Arc<Vec<Tree>>>,
}

impl Oracle<'_> {
    fn states(&mut self, progress: &Progress) -> Result<Arc<Vec<Tree>>> {
        if let Some(states) = self.allowed.get(progress) {
            return Ok(Arc::clone(states));
        }
        let in_flight: Vec<usize> = (0..progress.len()).filter(|&thread| progress[thread].1).collect();
        let mut states: Vec<Tree> = Vec::new();
        for landed in 0..1usize << in_flight.len() {
            let mut counts: Vec<usize> = progress.iter().map(|(returned, _)| *returned).collect();
            for (bit, &thread) in in_flight.iter().enumerate() {
                counts[thread] += landed >> bit & 1;
            }
            if let Some(state) = self.state(&counts)?
                && !states.contains(&state)
            {
                states.push(state);
            }
        }
        let states = Arc::new(states);
        self.allowed.insert(progress.clone(), Arc::clone(&states));
        Ok(states)
    }

    /// The model after so many operations of each thread; `None` when one of them needs what is not there.
    fn state(&self, counts: &[usize]) -> Result<Option<Tree>> {
        let mut model = Runner::new(self.model.remount());
        let mut done = vec![0; counts.len()];
        // Whichever can go next does; what waits for another thread comes later.
        loop {
            let mut moved = false;
            for thread in 0..counts.len() {
                if done[thread] < counts[thread]
                    && model.run(STEP, &self.workload.threads[thread][done[thread]]).is_ok()
                {
                    done[thread] += 1;
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        if done != counts {
            return Ok(None);
        }
        Tree::of(&model.fs).map(Some)
    }
}
