//! Several threads on one file system, and a crash.
//!
//! The threads run in turns ([`turns`](super::turns)), and their stores to simulated PM are recorded. The images are
//! those of that record, and a violation keeps it ([`ThreadsCase`]), because the same run cannot be repeated.
//!
//! The oracle: an operation that its thread saw return is there. Each operation in flight is there or not. An operation
//! is there only if all operations that it needed are there. Operations of different threads commute, or one waits for
//! a result of another: it is tried again until the result is visible. All have the same time, so that the order does
//! not matter.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nacre_engine::{Durability, Error, FallocateMode, FileKind, Kind, RenameMode, Result};
use nacre_media::crash::{CrashImage, Replay, Sampling};
use nacre_media::sim::Site;
use nacre_media::{Image, Trace};

use super::full::fill;
use super::op::{Hands, Op, Runner, Writing};
use super::record::{Flaw, Rig, sites_of};
use super::recovery::{in_words, trace_recovery};
use super::report::{Again, Case, Recovery, Report, Violation, lines_of};
use super::subject::{Mounting, Overwrites, Subject};
use super::thread_case::ThreadsCase;
use super::tree::Tree;
use super::turns::Turns;
use super::verify::{Depth, Expected, Remaking, free_when_empty, judge, turn_of};
use super::workload::many;
use crate::model::MemLayout;

/// Violations of one run.
const MAX_VIOLATIONS: usize = 3;
/// In the recovery of one image in so many there is another crash.
const RECOVERY_EVERY: u64 = 64;
/// The images of each point of such a recovery.
const RECOVERY_SAMPLING: Sampling = Sampling { exhaustive_up_to: 8, samples: 8, seed: 0 };
/// Number of times that an operation is tried until its prerequisites are visible.
const MAX_TRIES: usize = 1000;
/// The step, and so the time, of all operations of threads.
const STEP: u64 = 500;

/// The operations of several threads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Threads {
    /// Its name.
    pub name: String,
    /// Done before.
    pub setup: Vec<Op>,
    /// The operations of each thread.
    pub threads: Vec<Vec<Op>>,
    /// How the file system is mounted.
    pub mounting: Mounting,
    /// The preparation fills the device. An operation that finds it full is tried again until there is space.
    pub fills: bool,
}

/// The workloads whose threads do not depend on each other.
fn apart() -> Vec<Threads> {
    let file = |path| Op::Create(path, FileKind::Regular);
    let dir = |path| Op::Create(path, FileKind::Directory);
    let base = vec![dir("d"), dir("e"), file("d/a"), file("d/b"), file("e/c"), Op::Write("d/b", 0, 9000)];
    let of = |name: &str, threads: &[&[Op]]| Threads {
        name: name.to_string(),
        setup: base.clone(),
        threads: threads.iter().map(|ops| ops.to_vec()).collect(),
        ..Threads::default()
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
            "names in two directories",
            &[&[file("d/1"), file("d/2"), file("d/3")], &[file("e/1"), file("e/2"), file("e/3")]],
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
            name: "inodes run out".to_string(),
            setup: many(253),
            threads: vec![vec![file("x"), file("y")], vec![file("z"), dir("w")]],
            ..Threads::default()
        },
    ]
}

/// All of them.
pub fn threads() -> Vec<Threads> {
    let mut all = apart();
    all.extend(handed_over());
    all.extend(in_the_background());
    all.push(reused());
    all
}

/// Those of them that are for a subject.
pub(super) fn threads_for<S: Subject>(subject: &S) -> Vec<Threads> {
    threads().into_iter().filter(|workload| subject.takes(&workload.name)).collect()
}

/// One thread makes the last name of a directory. Another one removes both and writes a file, for which the blocks are
/// taken that the names had. Other places for metadata were full when the directory grew, so that its names have a large
/// place alone; and no other place has room for what is written.
fn reused() -> Threads {
    const BLOCK: u64 = 4096;
    /// The distance of two blocks of a file without a common node of its map.
    const APART: u64 = 512 * BLOCK;
    let file = |path| Op::Create(path, FileKind::Regular);
    let allocate = |path, at, len| Op::Fallocate(path, FallocateMode::AllocateKeepSize, at, len * BLOCK);
    let of_names =
        |text: &'static str| (0..15).map(move |i| Op::parse(&format!("{text} d/{i}")).expect("an operation"));
    let mut setup = vec![file("map"), Op::Create("d", FileKind::Directory), file("g"), file("full")];
    setup.extend((0..NODES).map(|i| allocate("map", i * APART, 1)));
    setup.extend(of_names("create file").chain(of_names("unlink")));
    setup.push(Op::Unlink("map"));
    setup.extend([256, 128, 2560].map(|blocks| allocate("full", blocks * BLOCK, blocks)));
    Threads {
        name: "blocks of names reused".to_string(),
        setup,
        threads: vec![
            vec![Op::Unlink("d/x"), Op::Rmdir("d"), Op::Write("g", 0, 128 * BLOCK as usize)],
            vec![file("d/x")],
        ],
        mounting: Mounting { lanes: 2, ..Mounting::default() },
        ..Threads::default()
    }
}

/// Nodes of the map of a file that fill the first place for metadata of the pool layout.
const NODES: u64 = 205;

/// The workloads in which a background thread of the layout frees a large file, and other threads take its blocks.
/// Hardly any other blocks are free.
fn in_the_background() -> Vec<Threads> {
    const BLOCK: u64 = 4096;
    /// More than is freed at once.
    const LARGE: u64 = 700 * BLOCK;
    /// Free bytes; one of the writes needs more.
    const LEFT: u64 = 12 * BLOCK;
    let file = |path| Op::Create(path, FileKind::Regular);
    let dir = |path| Op::Create(path, FileKind::Directory);
    let mut setup =
        vec![dir("d"), dir("e"), file("d/large"), Op::Write("d/large", 0, 3000), file("d/b"), file("e/x")];
    setup.push(Op::Fallocate("d/large", FallocateMode::AllocateKeepSize, 0, LARGE));
    setup.extend(fill());
    setup.push(Op::Fallocate("full", FallocateMode::PunchHole, 0, LEFT));
    let of = |name: &str, first: &[Op]| Threads {
        name: format!("{name} in the background"),
        setup: setup.clone(),
        threads: vec![
            first.to_vec(),
            vec![Op::Append("e/x", 60_000), Op::Append("e/x", 9000), Op::Unlink("e/x")],
            vec![Op::UnnamedThenLink("e/u", 30_000), Op::Truncate("e/u", 100)],
        ],
        mounting: Mounting { background: true, ..Mounting::default() },
        fills: true,
    };
    vec![
        of("unlinked", &[Op::Unlink("d/large"), file("d/new")]),
        of("truncated", &[Op::Truncate("d/large", 10), Op::Write("d/large", 0, 9000)]),
        of("replaced", &[Op::Rename("d/b", "d/large", RenameMode::Replace), Op::Append("d/large", 5000)]),
        of("closed", &[Op::UnlinkOpen("d/large"), Op::Release, dir("d/large")]),
        of("moved and unlinked", &[Op::Rename("d/large", "e/l", RenameMode::Replace), Op::Unlink("e/l")]),
    ]
}

/// The workloads in which a thread builds on the result of another one.
fn handed_over() -> Vec<Threads> {
    let file = |path| Op::Create(path, FileKind::Regular);
    let dir = |path| Op::Create(path, FileKind::Directory);
    let base = vec![dir("d"), dir("e")];
    let of = |name: &str, first: &[Op], second: &[Op]| Threads {
        name: name.to_string(),
        setup: base.clone(),
        threads: vec![first.to_vec(), second.to_vec()],
        ..Threads::default()
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

/// How far the threads were at a crash: for each, the operations that returned, and whether one was in flight.
pub(super) type Progress = Vec<(usize, bool)>;

/// A note in the trace: an operation of a thread begins, or has returned.
pub(super) fn mark(thread: usize, index: usize, ends: bool) -> u64 {
    (thread as u64) << 32 | (index as u64) << 1 | u64::from(ends)
}

/// The arguments that [`mark`] was given.
pub(super) fn of_mark(mark: u64) -> (usize, usize, bool) {
    ((mark >> 32) as usize, (mark as u32 >> 1) as usize, mark & 1 == 1)
}

/// One run of the threads, from a file system on which everything was durable.
pub(super) struct Run {
    pub(super) start: Image,
    pub(super) trace: Trace,
    /// So many blocks are free when everything is removed, without a crash.
    pub(super) free_when_empty: u64,
}

/// Runs the threads with the interleaving of a seed and crashes them everywhere. An error means that they could not be
/// run.
pub fn explore_threads<S: Subject>(
    rig: &mut Rig<'_, S>,
    workload: &Threads,
    seed: u64,
    sampling: &Sampling,
    flaw: Flaw,
) -> Result<Report> {
    let (run, model) = record(rig, workload, seed, flaw)?;
    let mut report = Report::new(rig.subject.commit_points().len());
    let mut seen = HashSet::new();
    let mut walk = Walk::new(workload, &model, &run, rig.subject.overwrites());
    let mut recoveries = 0;
    rig.pm.seed_mistake(flaw.mistake());
    while let Some(point) = walk.advance()? {
        rig.pm.load(walk.replay.media());
        let before = report.images;
        for image in walk.replay.images(sampling).iter() {
            if !seen.insert((walk.replay.hash_of(&image), walk.progress.clone())) {
                report.repeated += 1;
                continue;
            }
            let depth = if image.index % 32 == 31 { Depth::Empty } else { Depth::Check };
            let problems = walk.judge(rig, &image, depth);
            report.images += 1;
            report.checked += 1;
            report.emptied += u64::from(depth == Depth::Empty);
            if !problems.is_empty() && report.violations.len() < MAX_VIOLATIONS {
                let situation = format!("seed {seed}, {}; {image:?}", walk.in_words());
                let case = ThreadsCase::new(workload, flaw.mistake(), &run, point.index, lines_of(&image));
                report.violations.push(Violation { case: Case::Threads(case), situation, problems });
            } else if turn_of(image.index, point.index).is_multiple_of(RECOVERY_EVERY) {
                recoveries += 1;
                let by = Recovery::by_turn(recoveries);
                let found = walk.crash_recovery(rig, &image, by, flaw, &mut report);
                if let Some((again, situation, problems)) = found
                    && report.violations.len() < MAX_VIOLATIONS
                {
                    let case =
                        ThreadsCase::new(workload, flaw.mistake(), &run, point.index, lines_of(&image));
                    let case = Case::Threads(ThreadsCase { recovery: Some(again), ..case });
                    let situation = format!("seed {seed}, {}; {image:?}{situation}", walk.in_words());
                    report.violations.push(Violation { case, situation, problems });
                }
            }
            rig.pm.load(walk.replay.media());
        }
        report.points += 1;
        let count = report.images - before;
        report.count_commits(rig.subject, &walk.replay, point, count);
    }
    rig.pm.seed_mistake(0);
    Ok(report)
}

/// A walk from one crash point of a run to the next, and the states that may be seen after each.
pub(super) struct Walk<'r> {
    pub(super) replay: Replay<'r>,
    run: &'r Run,
    oracle: Oracle<'r>,
    progress: Progress,
    states: Arc<States>,
    /// Events whose marks count already.
    events: usize,
}

impl<'r> Walk<'r> {
    pub(super) fn new(
        workload: &'r Threads,
        model: &'r MemLayout,
        run: &'r Run,
        overwrites: Overwrites,
    ) -> Walk<'r> {
        Walk {
            replay: Replay::new(run.start.clone(), &run.trace),
            run,
            oracle: Oracle { workload, model, overwrites, allowed: BTreeMap::new() },
            progress: vec![(0, false); workload.threads.len()],
            states: Arc::default(),
            events: 0,
        }
    }

    pub(super) fn advance(&mut self) -> Result<Option<nacre_media::crash::Point>> {
        let Some(point) = self.replay.advance() else { return Ok(None) };
        for mark in self.replay.marks(self.events..point.events) {
            let (thread, index, ends) = of_mark(mark);
            self.progress[thread] = if ends { (index + 1, false) } else { (index, true) };
        }
        self.events = point.events;
        self.states = self.oracle.states(&self.progress)?;
        if self.states.trees.is_empty() {
            return Err(
                Error::new(Kind::InvalidInput).object("threads that wait for what none of them makes")
            );
        }
        Ok(Some(point))
    }

    /// The problems of an image of this point. Simulated PM must hold the durable bytes of this point.
    pub(super) fn judge<S: Subject>(
        &self,
        rig: &Rig<'_, S>,
        image: &CrashImage,
        depth: Depth,
    ) -> Vec<String> {
        image.apply(&rig.pm);
        self.judge_memory(rig, depth)
    }

    /// Recovers an image of this point with a trace, and crashes at every point of that, which the report counts.
    /// Returns the first crash that leaves a problem, in words, and the problems.
    fn crash_recovery<S: Subject>(
        &self,
        rig: &Rig<'_, S>,
        image: &CrashImage,
        by: Recovery,
        flaw: Flaw,
        report: &mut Report,
    ) -> Option<(Again, String, Vec<String>)> {
        let crashed = self.replay.crashed(image);
        let trace = trace_recovery(rig, &crashed, by, flaw.defect());
        let mut recovery = Replay::new(crashed, &trace);
        while let Some(at) = recovery.advance() {
            let images = recovery.images(&RECOVERY_SAMPLING);
            report.count_commits(rig.subject, &recovery, at, images.len());
            for again in images.iter() {
                rig.pm.load(recovery.media());
                report.recovery_crashes += 1;
                let problems = self.judge(rig, &again, Depth::Empty);
                if !problems.is_empty() {
                    let words = in_words(by, &again);
                    return Some((Again { by, point: at.index, landed: lines_of(&again) }, words, problems));
                }
            }
        }
        None
    }

    /// The problems of the image in simulated PM.
    pub(super) fn judge_memory<S: Subject>(&self, rig: &Rig<'_, S>, depth: Depth) -> Vec<String> {
        let expected = Expected {
            states: &self.states.trees,
            allowed: 0..=self.states.trees.len() - 1,
            torn: &self.states.torn,
            remaking: Remaking::No,
            free_when_empty: self.run.free_when_empty,
            mounting: self.oracle.workload.mounting,
            fills: self.oracle.workload.fills,
            damaged: false,
        };
        judge(rig.subject, &rig.pm, &expected, depth).problems
    }

    /// The operation of each thread at this point.
    pub(super) fn in_words(&self) -> String {
        let threads = self.oracle.workload.threads.iter().zip(&self.progress).enumerate();
        let words = threads.map(|(thread, (ops, &(returned, in_flight)))| {
            if in_flight {
                format!("thread {thread} during \"{:?}\"", ops[returned])
            } else if returned == 0 {
                format!("thread {thread} before all")
            } else {
                format!("thread {thread} after \"{:?}\"", ops[returned - 1])
            }
        });
        words.collect::<Vec<_>>().join(", ")
    }
}

/// Runs the threads once; returns the run, and the model of the file system before it.
fn record<S: Subject>(
    rig: &mut Rig<'_, S>,
    workload: &Threads,
    seed: u64,
    flaw: Flaw,
) -> Result<(Run, MemLayout)> {
    let (start, model, prepared_free) = rig.prepare(workload)?;
    rig.pm.load(&start);
    let fs = rig.subject.mount(&rig.pm, workload.mounting)?;
    let start = rig.pm.image();
    rig.pm.seed_mistake(flaw.mistake());
    let trace = run(rig, &fs, workload, seed, flaw);
    rig.pm.seed_mistake(0);
    let trace = trace?;
    // Without a crash; the threads may have made something that stays, as chunks of inodes do.
    let free_when_empty = prepared_free.min(free_when_empty(rig.subject, fs, workload.fills, 0)?);
    Ok((Run { start, trace, free_when_empty }, model))
}

/// The lines of the program that flush and that fence when the threads run with the interleaving of a seed.
pub(super) fn sites_of_threads<S: Subject>(
    rig: &mut Rig<'_, S>,
    workload: &Threads,
    seed: u64,
) -> Result<(Vec<Site>, Vec<Site>)> {
    let (run, _) = record(rig, workload, seed, Flaw::None)?;
    Ok(sites_of(&run.trace))
}

/// Runs the threads and records their stores.
fn run<S: Subject>(rig: &Rig<'_, S>, fs: &S::Fs, workload: &Threads, seed: u64, flaw: Flaw) -> Result<Trace> {
    let turns = Arc::new(Turns::new(workload.threads.len(), seed));
    let at_fence = Arc::clone(&turns);
    rig.pm.set_fence_hook(Some(Box::new(move || at_fence.pass(false))));
    rig.pm.start_recording_with(flaw.defect());
    let failed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for (me, ops) in workload.threads.iter().enumerate() {
            let (turns, pm, subject, failed) = (&turns, &rig.pm, rig.subject, &failed);
            scope.spawn(move || {
                turns.begin(me);
                subject.use_lane(me);
                let mut held = Vec::new();
                for (index, op) in ops.iter().enumerate() {
                    pm.mark(mark(me, index, false));
                    let mut tries = 0;
                    while let Err(error) =
                        (Hands { fs, writing: Writing::As(Durability::Now) }).run(STEP, op, &mut held)
                    {
                        tries += 1;
                        let waits = matches!(error.kind(), Kind::NotFound | Kind::NoSpace);
                        if !waits || tries > MAX_TRIES {
                            failed.fetch_add(1, Ordering::Relaxed);
                            break;
                        }
                        // Another thread has yet to make, or to free, the things that the operation needs.
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
    overwrites: Overwrites,
    allowed: BTreeMap<Progress, Arc<States>>,
}

/// The states that a crash may leave, and of which of them parts may show in which.
#[derive(Default)]
struct States {
    trees: Vec<Tree>,
    torn: Vec<(usize, usize)>,
}

impl Oracle<'_> {
    fn states(&mut self, progress: &Progress) -> Result<Arc<States>> {
        if let Some(states) = self.allowed.get(progress) {
            return Ok(Arc::clone(states));
        }
        let in_flight: Vec<usize> = (0..progress.len()).filter(|&thread| progress[thread].1).collect();
        let mut states = States::default();
        // Which operations in flight have landed, a bit each, and the state that this is.
        let mut indices: Vec<(usize, usize)> = Vec::new();
        for landed in 0..1usize << in_flight.len() {
            let mut counts: Vec<usize> = progress.iter().map(|(returned, _)| *returned).collect();
            for (bit, &thread) in in_flight.iter().enumerate() {
                counts[thread] += landed >> bit & 1;
            }
            if let Some(state) = self.state(&counts)? {
                let index = states.trees.iter().position(|other| *other == state).unwrap_or_else(|| {
                    states.trees.push(state);
                    states.trees.len() - 1
                });
                indices.push((landed, index));
            }
        }
        let overwrites = |bit: usize| {
            let thread = in_flight[bit];
            self.workload.threads[thread][progress[thread].0].overwrites()
        };
        for &(some, base) in indices.iter().filter(|_| self.overwrites != Overwrites::Whole) {
            let more = indices.iter().filter(|&&(landed, index)| landed & some == some && index != base);
            let torn = more.filter(|&&(landed, _)| {
                (0..in_flight.len()).all(|bit| (landed & !some) >> bit & 1 == 0 || overwrites(bit))
            });
            for &(_, index) in torn {
                states.torn.push((base, index));
                if self.overwrites == Overwrites::InPartsWithTimes {
                    states.torn.push((index, base));
                }
            }
        }
        let states = Arc::new(states);
        self.allowed.insert(progress.clone(), Arc::clone(&states));
        Ok(states)
    }

    /// The model after so many operations of each thread; `None` if one of them needs a result that is not there.
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
