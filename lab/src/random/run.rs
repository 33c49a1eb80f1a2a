//! Running a sequence on a layout and on the model, and finding the shortest one that fails.

use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::io::IoSlice;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::thread;

use nacre_engine::{
    BLOCK_SIZE, Data, Durability, Extents, FileKind, Kind, Names, NewInode, SetAttr, Timestamp, WriteAt,
};

use super::compare::compare;
use super::generate::{Profile, sequence};
use super::op::{Op, SLOTS};
use super::shrink::shrink;
use super::world::{Answer, LastIds, Tolerance, World};
use crate::environment::seeds;
use crate::model::{MemLayout, MemNode};

/// Blocks of data that the model has. Operations beyond are left out, so that the layout under test needs only room for
/// these and for its own records of them.
const MODEL_BLOCKS: u64 = 4096;
const MODEL_INODES: u64 = 4096;

/// Blocks that may be gone when everything is removed: the format keeps them for directories that were once larger.
const LOST_BLOCKS: u64 = 64;

/// Blocks that are left to a sequence for which space is scarce.
const SCARCE_BLOCKS: u64 = 24;

/// A file system that is compared with the model.
pub trait Subject {
    /// The file system.
    type Layout: Data + Extents;

    /// The description of the subject, for messages.
    fn describe(&self) -> String;

    /// An empty file system.
    fn make(&mut self) -> Self::Layout;

    /// Unmounts and mounts.
    fn remount(&mut self, layout: Self::Layout) -> Self::Layout;

    /// The file system as the next process finds it if this one dies now, or `None` if the subject has no such state.
    fn crash(&mut self, layout: &Self::Layout) -> Option<Self::Layout>;

    /// The permitted differences from the model.
    fn tolerance(&self) -> Tolerance;

    /// The permitted differences just after a crash.
    fn tolerance_after_crash(&self) -> Tolerance {
        self.tolerance()
    }
}

/// Settings of the sequences to run.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// The operations to choose from.
    pub profile: Profile,
    /// Operations of each.
    pub operations: usize,
    /// Whole trees are compared after so many operations, and at the end.
    pub compare_every: usize,
    /// One operation in so many is followed by a mount or by a crash and a mount.
    pub mount_every: u32,
    /// The device is expected to be full at times. An operation that finds no space must have changed nothing, and
    /// removing a name always succeeds. Otherwise the model is small, and the layout does not get operations that the
    /// model has no room for.
    pub scarce: bool,
}

impl Settings {
    fn sequence(&self, seed: u64, mount_every: Option<u32>, parts: u64) -> Vec<Op> {
        sequence(seed, self.profile, self.operations, mount_every, self.model(parts))
    }

    fn model(&self, parts: u64) -> MemLayout {
        if self.scarce { MemLayout::default() } else { MemLayout::new(MODEL_BLOCKS / parts, MODEL_INODES) }
    }
}

/// Counts of the operations of a sequence.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// Operations that ran.
    pub operations: usize,
    /// Those among them that succeeded.
    pub succeeded: usize,
    /// Those for which there was no space.
    pub refused: usize,
    /// Mounts in the middle.
    pub mounts: usize,
    /// Operations that succeeded, by kind.
    pub kinds: BTreeMap<&'static str, usize>,
}

impl Stats {
    /// Adds the counts of another sequence.
    pub fn add(&mut self, other: &Stats) {
        self.operations += other.operations;
        self.succeeded += other.succeeded;
        self.refused += other.refused;
        self.mounts += other.mounts;
        for (kind, count) in &other.kinds {
            *self.kinds.entry(kind).or_default() += count;
        }
    }
}

/// A difference from the model, and how to see it again.
pub struct Failure {
    subject: String,
    seed: u64,
    message: String,
    /// The shortest sequence that was found to fail.
    pub sequence: Vec<Op>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} differs from the model: {}", self.subject, self.message)?;
        writeln!(
            f,
            "NACRE_SEED={} runs it again; {} operations are enough:",
            self.seed,
            self.sequence.len()
        )?;
        self.sequence.iter().enumerate().try_for_each(|(step, op)| writeln!(f, "  {step}. {op:?}"))
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Where a sequence failed, and why.
pub(super) struct Broken {
    pub(super) step: usize,
    pub(super) message: String,
}

/// Runs the sequence of this seed; a failure comes with the shortest sequence that could be found for it.
pub fn check<S: Subject>(subject: &mut S, seed: u64, settings: Settings) -> Result<Stats, Failure> {
    let ops = settings.sequence(seed, Some(settings.mount_every), 1);
    let broken = match run(subject, &ops, settings) {
        Ok(stats) => return Ok(stats),
        Err(broken) => broken,
    };
    println!("seed {seed}, step {}: {}; looking for a shorter sequence", broken.step, broken.message);
    let (sequence, broken) = shrink(ops, broken, |ops| {
        let compare_every = if ops.len() <= 100 { 1 } else { settings.compare_every };
        run(subject, ops, Settings { compare_every, ..settings }).err()
    });
    let message = format!("step {}: {}", broken.step, broken.message);
    Err(Failure { subject: subject.describe(), seed, message, sequence })
}

/// Runs sequences of [`seeds`] and panics at a failure, or when most operations fail: such sequences say little. A busy
/// machine has time for one or two, which can be unlucky ones, and so it gets more.
pub fn check_seeds<S: Subject>(mut subject: S, settings: Settings) {
    let (mut total, mut runs) = (Stats::default(), 0);
    let is_telling = (0..5).any(|_| {
        for seed in seeds() {
            total.add(&check(&mut subject, seed, settings).unwrap_or_else(|failure| panic!("{failure}")));
            runs += 1;
        }
        total.succeeded * 4 > total.operations
    });
    println!("{}: {runs} sequences, {total:?}", subject.describe());
    assert!(is_telling, "most operations fail: the sequences say little");
}

/// Runs the sequence of this seed; of a failure only the words, without a search for a shorter sequence.
pub fn differs<S: Subject>(subject: &mut S, seed: u64, settings: Settings) -> Option<String> {
    let ops = settings.sequence(seed, Some(settings.mount_every), 1);
    run(subject, &ops, settings).err().map(|broken| format!("step {}: {}", broken.step, broken.message))
}

/// Runs one sequence for each thread at once, each in a directory of its own with a model of its own.
pub fn check_threads<S>(subject: &mut S, seed: u64, threads: u64, settings: Settings) -> Result<Stats, String>
where
    S: Subject,
{
    let tolerance = subject.tolerance();
    let layout = subject.make();
    let dir = |thread: u64| format!("w{thread}");
    let models: Vec<MemLayout> = (0..threads).map(|_| settings.model(threads)).collect();
    let verdicts: Vec<Result<Stats, String>> = thread::scope(|scope| {
        let layout = &layout;
        let run = |(thread, model)| {
            scope.spawn(move || {
                let ops = settings.sequence(seed + thread, None, threads);
                let mut left = World::open(layout, &dir(thread), no_ids(), tolerance);
                let mut right = World::open(model, &dir(thread), no_ids(), tolerance);
                let step = Cell::new(0);
                let mut progress = Progress::new(&step);
                segment(&mut left, &mut right, &ops, &mut progress, settings, tolerance)
                    .map_err(|message| format!("thread {thread}, step {}: {message}", step.get()))
            })
        };
        let running: Vec<_> = (0..threads).zip(&models).map(run).collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| Err(message_of(&*panic))))
            .collect()
    });
    let mut total = Stats::default();
    for verdict in verdicts {
        total.add(&verdict?);
    }
    // What all threads have done must be there after a crash as well as after an unmount.
    let crashed = if seed.is_multiple_of(2) { subject.crash(&layout) } else { None };
    let (layout, after, what) = match crashed {
        Some(crashed) => (crashed, subject.tolerance_after_crash(), "the crash"),
        None => (subject.remount(layout), tolerance, "the mount"),
    };
    for (thread, model) in (0..threads).zip(&models) {
        let model = model.remount();
        let left = World::open(&layout, &dir(thread), no_ids(), tolerance);
        let right = World::open(&model, &dir(thread), no_ids(), tolerance);
        compare(&left, &right, after).map_err(|why| format!("thread {thread}, after {what}: {why}"))?;
    }
    Ok(total)
}

fn no_ids() -> LastIds {
    vec![None; SLOTS.into()]
}

/// How far a sequence has come. The step is seen from outside, also when a panic ends the sequence.
struct Progress<'a> {
    step: &'a Cell<usize>,
    stats: Stats,
}

impl<'a> Progress<'a> {
    fn new(step: &'a Cell<usize>) -> Progress<'a> {
        Progress { step, stats: Stats::default() }
    }
}

/// The time of a step: later than the one before, by enough for relatime to notice.
pub(super) fn time_of(step: usize) -> Timestamp {
    Timestamp::new(1_000_000 + step as i64 * 1000, (step as u64 * 12_345_677 % 1_000_000_000) as u32)
}

/// Runs a sequence; panics of the subject are failures like others.
fn run<S: Subject>(subject: &mut S, ops: &[Op], settings: Settings) -> Result<Stats, Broken> {
    let step = Cell::new(0);
    match quietly(|| run_unguarded(subject, ops, settings, &step)) {
        Ok(Ok(stats)) => Ok(stats),
        Ok(Err(message)) => Err(Broken { step: step.get(), message }),
        Err(panic) => Err(Broken { step: step.get(), message: format!("panic: {}", message_of(&*panic)) }),
    }
}

fn run_unguarded<S: Subject>(
    subject: &mut S,
    ops: &[Op],
    settings: Settings,
    step: &Cell<usize>,
) -> Result<Stats, String> {
    let tolerance = subject.tolerance();
    let mut layout = subject.make();
    let mut model = settings.model(1);
    let free = layout.stat().free;
    if settings.scarce {
        ballast(&layout).map_err(|error| format!("while the device was filled: {error}"))?;
    }
    let (mut left_ids, mut right_ids) = (no_ids(), no_ids());
    let mut progress = Progress::new(step);
    for part in ops.split_inclusive(|op| matches!(op, Op::Remount | Op::Crash)) {
        let mut left = World::open(&layout, "w", left_ids, tolerance);
        let mut right = World::open(&model, "w", right_ids, tolerance);
        segment(&mut left, &mut right, part, &mut progress, settings, tolerance)?;
        let crashed = match part.last() {
            Some(Op::Crash) => subject.crash(&layout),
            _ => None,
        };
        (left_ids, right_ids) = (left.close(), right.close());
        let (after, what) = match crashed {
            Some(_) => (subject.tolerance_after_crash(), "after the crash"),
            None => (tolerance, "after the mount"),
        };
        let has_crashed = crashed.is_some();
        layout = match crashed {
            Some(crashed) => crashed,
            None => subject.remount(layout),
        };
        model = model.remount();
        progress.stats.mounts += 1;
        let left = World::open(&layout, "w", left_ids, tolerance);
        let right = World::open(&model, "w", right_ids, tolerance);
        compare(&left, &right, after).map_err(|why| format!("{what}: {why}"))?;
        if has_crashed {
            adopt_times(&left, &left.root, &model, &right.root)
                .map_err(|error| format!("{what}: {error}"))?;
        }
        (left_ids, right_ids) = (left.close(), right.close());
    }
    empty(&layout).map_err(|why| format!("while everything was removed: {why}"))?;
    let layout = subject.remount(layout);
    let left = layout.stat().free;
    if left + LOST_BLOCKS < free {
        return Err(format!("of {free} free blocks {left} are left when everything is removed"));
    }
    Ok(progress.stats)
}

/// Runs the operations up to the next mount.
fn segment<A: Data + Extents, B: Data + Extents>(
    left: &mut World<'_, A>,
    right: &mut World<'_, B>,
    ops: &[Op],
    progress: &mut Progress<'_>,
    settings: Settings,
    tolerance: Tolerance,
) -> Result<Stats, String> {
    for op in ops {
        let step = progress.step.get() + 1;
        progress.step.set(step);
        if matches!(op, Op::Remount | Op::Crash) {
            break;
        }
        let now = time_of(step);
        let (found, expected) = if settings.scarce {
            let found = left.apply(op, now);
            if found == Some(Answer::Failed(Kind::NoSpace)) {
                if matches!(op, Op::Unlink { .. } | Op::Rmdir { .. }) {
                    return Err(format!("{op:?}: no space to remove something"));
                }
                progress.stats.refused += 1;
                continue;
            }
            (found, right.apply(op, now))
        } else {
            let expected = right.apply(op, now);
            if expected == Some(Answer::Failed(Kind::NoSpace)) {
                continue;
            }
            (left.apply(op, now), expected)
        };
        let Some(expected) = expected else { continue };
        if let (Op::HoldById { slot }, Answer::Failed(Kind::Stale), Some(Answer::Done)) =
            (op, &expected, &found)
            && !tolerance.exact_stale
        {
            left.apply(&Op::Release { slot: *slot }, now);
            continue;
        }
        if found.as_ref().is_none_or(|found| !agree(op, found, &expected)) {
            return Err(format!("{op:?}: found {found:?}, the model says {expected:?}"));
        }
        progress.stats.operations += 1;
        if expected.is_success() {
            progress.stats.succeeded += 1;
            *progress.stats.kinds.entry(op.kind()).or_default() += 1;
        }
        if step.is_multiple_of(settings.compare_every) {
            compare(left, right, tolerance).map_err(|why| format!("after {op:?}: {why}"))?;
        }
    }
    compare(left, right, tolerance)?;
    Ok(progress.stats.clone())
}

/// Whether both answers are the same, as far as the contract specifies them.
fn agree(op: &Op, found: &Answer, expected: &Answer) -> bool {
    if found == expected {
        return true;
    }
    match (found, expected) {
        // Names that cannot be are refused by `vfs`; which of two errors the layout sees first is nowhere promised.
        (Answer::Failed(_), Answer::Failed(Kind::NameTooLong)) => true,
        (Answer::Failed(Kind::NameTooLong), Answer::Failed(_)) => true,
        // The same for the flags of an inode and any other error.
        (Answer::Failed(_), Answer::Failed(Kind::NotPermitted)) => true,
        (Answer::Failed(Kind::NotPermitted), Answer::Failed(_)) => true,
        // And for a directory that is to move below itself, and what is or is not there.
        (Answer::Failed(Kind::InvalidInput), Answer::Failed(Kind::NotFound | Kind::Exists)) => {
            matches!(op, Op::Rename { .. })
        }
        // A removed directory has no entries, whether that is an error or not.
        (Answer::Entries(entries), Answer::Failed(Kind::NotFound)) => entries.is_empty(),
        _ => false,
    }
}

/// Gives every inode of the model the atime and ctime that the layout has after a crash: they may be older.
fn adopt_times<L: Data + Extents>(
    left: &World<'_, L>,
    a: &L::Node,
    model: &MemLayout,
    b: &MemNode,
) -> Result<(), nacre_engine::Error> {
    let attr = left.fs.getattr(a)?;
    model.set_lazy_times(b, attr.atime, attr.ctime);
    if attr.kind != FileKind::Directory {
        return Ok(());
    }
    let mut names = Vec::new();
    left.fs.read_dir(a, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        std::ops::ControlFlow::Continue(())
    })?;
    names
        .iter()
        .try_for_each(|name| adopt_times(left, &left.fs.lookup(a, name)?, model, &model.lookup(b, name)?))
}

/// Writes a file beside the compared directory, until little space is left.
fn ballast<L: Data + Extents>(fs: &L) -> Result<(), nacre_engine::Error> {
    let new = NewInode::of_root(FileKind::Regular, 0o600, Timestamp::default());
    let node = fs.create(&fs.root(), b"ballast", &new)?;
    let bytes = vec![1; BLOCK_SIZE as usize * 16];
    while fs.stat().available > SCARCE_BLOCKS + 16 {
        fs.write(&node, WriteAt::End, &[IoSlice::new(&bytes)], Durability::Lazy, Timestamp::default())?;
    }
    Ok(())
}

/// Removes everything.
fn empty<L: Data + Extents>(fs: &L) -> Result<(), nacre_engine::Error> {
    fn below<L: Names>(fs: &L, dir: &L::Node) -> Result<(), nacre_engine::Error> {
        let now = time_of(1 << 20);
        let no_flags = SetAttr { flags: Some(0), ..SetAttr::default() };
        let mut names = Vec::new();
        fs.read_dir(dir, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            std::ops::ControlFlow::Continue(())
        })?;
        fs.setattr(dir, &no_flags, now)?;
        for name in names {
            let node = fs.lookup(dir, &name)?;
            fs.setattr(&node, &no_flags, now)?;
            if fs.kind(&node) == FileKind::Directory {
                below(fs, &node)?;
                fs.rmdir(dir, &name, now)?;
            } else {
                fs.unlink(dir, &name, now)?;
            }
        }
        Ok(())
    }
    below(fs, &fs.root())
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs code whose panics are answers, without their messages on standard error.
fn quietly<T>(run: impl FnOnce() -> T) -> Result<T, Box<dyn Any + Send>> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                before(info);
            }
        }));
    });
    QUIET.set(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    QUIET.set(false);
    result
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "without a message".to_owned())
}
