//! Judging one image: recover it and compare.

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once};

use nacre_engine::{Data, Extents, FileKind, Kind, Names, NewInode, Result, Timestamp};
use nacre_media::SimPm;

use super::op::{Op, Runner, payload};
use super::subject::{Mounting, Subject};
use super::tree::{Ctime, Tree};
use super::volumes::{Others, alone, joined, look_around};

/// The tests of an image beyond mounting and comparing it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Depth {
    /// Mount and compare.
    Look,
    /// Check before that, too.
    Check,
    /// Also unmount, check, mount, write, empty, and check again.
    Empty,
}

impl Depth {
    /// For image `image` of a point. One image in `check_every` is checked, and one in `empty_every` is emptied. The
    /// choice changes from point to point, so that images of the same kind are not always chosen.
    pub(super) fn by_turn(image: u64, point: usize, check_every: u64, empty_every: u64) -> Depth {
        let turn = turn_of(image, point);
        match () {
            () if turn.is_multiple_of(empty_every) => Depth::Empty,
            () if turn.is_multiple_of(check_every) => Depth::Check,
            () => Depth::Look,
        }
    }
}

/// The number of an image, by which deeper tests and crashes in recovery are spread over images and points.
pub(super) fn turn_of(image: u64, point: usize) -> u64 {
    image + 5 * point as u64 + 1
}

/// The states that a recovered file system may have.
#[derive(Debug, Clone)]
pub(super) struct Expected<'e> {
    /// The states of the workload.
    pub(super) states: &'e [Tree],
    /// One of these.
    pub(super) allowed: RangeInclusive<usize>,
    /// Where data is overwritten in place: in the first of these states, words of the content of the second may show.
    pub(super) torn: &'e [(usize, usize)],
    /// A new file system was being made over it.
    pub(super) remaking: Remaking,
    /// So many blocks are free again when everything is removed.
    pub(super) free_when_empty: u64,
    /// How it is mounted after the crash.
    pub(super) mounting: Mounting,
    /// The device may be full.
    pub(super) fills: bool,
    /// One copy of some structures was damaged before, and may still be.
    pub(super) damaged: bool,
}

/// How far the making of a new file system is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Remaking {
    /// None is made.
    No,
    /// It is being made: there may be the old one, or none, or the new one.
    Begun,
    /// It was made, and is mounted for the first time.
    Made,
}

/// The verdict on an image.
#[derive(Debug, Default)]
pub(super) struct Judged {
    /// The state that was found.
    pub(super) state: Option<usize>,
    /// The problems of the image.
    pub(super) problems: Vec<String>,
}

/// Blocks that may be in use beyond that: the log of the root has more entries after a crash in the middle of it all.
const SPARE_BLOCKS: u64 = 4;

/// The free blocks of a file system when everything on it is removed. Before that it has so many inodes, or more.
pub(super) fn free_when_empty<S: Subject>(subject: &S, fs: S::Fs, fills: bool, inodes: usize) -> Result<u64> {
    let tree = Tree::of(&fs)?;
    subject.use_lane(0);
    let file = NewInode::of_root(FileKind::Regular, 0o600, Timestamp::default());
    for number in tree.inodes()..inodes {
        match fs.create(&fs.root(), format!("as-many-{number}").as_bytes(), &file) {
            Err(error) if fills && error.kind() == Kind::NoSpace => break,
            result => result?,
        };
    }
    let fs = write_and_empty(fs, &tree, fills, &mut Vec::new())?;
    let free = subject.free_blocks(&fs);
    subject.abandon(fs);
    Ok(free)
}

/// Recovers the image in `pm` and returns its problems.
pub(super) fn judge<S: Subject>(
    subject: &S,
    pm: &Arc<SimPm>,
    expected: &Expected<'_>,
    depth: Depth,
) -> Judged {
    match caught(|| recover(subject, pm, expected, depth)) {
        Ok(Ok(judged)) => judged,
        Ok(Err(error)) => Judged { state: None, problems: vec![error.to_string()] },
        Err(panic) => Judged { state: None, problems: vec![format!("panic: {}", panic_words(&*panic))] },
    }
}

/// Runs code that may panic. A panic is a finding: it is reported with its context and not printed here.
pub(super) fn caught<R>(run: impl FnOnce() -> R) -> std::thread::Result<R> {
    static HOOK: Once = Once::new();
    thread_local!(static DEPTH: Cell<usize> = const { Cell::new(0) });
    HOOK.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if DEPTH.get() == 0 {
                hook(info);
            }
        }));
    });
    DEPTH.set(DEPTH.get() + 1);
    let result = catch_unwind(AssertUnwindSafe(run));
    DEPTH.set(DEPTH.get() - 1);
    result
}

/// The message of a panic.
pub(super) fn panic_words(panic: &(dyn std::any::Any + Send)) -> &str {
    let words = panic.downcast_ref::<&str>().copied();
    words.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without words")
}

fn recover<S: Subject>(
    subject: &S,
    pm: &Arc<SimPm>,
    expected: &Expected<'_>,
    depth: Depth,
) -> Result<Judged> {
    let mut before = Vec::new();
    subject.use_lane(0);
    if depth >= Depth::Check && expected.remaking == Remaking::No {
        let mut found = subject.check(pm, true)?;
        found.retain(|what| !(expected.damaged && is_one_copy(what)));
        before = in_words("check before recovery", found);
    }
    // No background thread of the layout runs, because the same image must give the same findings. Later mounts have
    // one lane, however many this one has.
    let mounting = Mounting { background: false, ..expected.mounting };
    let later = Mounting { volume: mounting.volume, ..Mounting::default() };
    let fs = match subject.mount(pm, mounting) {
        Ok(fs) => fs,
        // Half a file system is no file system: what has a valid superblock must be whole.
        Err(_) if expected.remaking == Remaking::Begun && !subject.is_formatted(pm) => {
            return remake(subject, pm);
        }
        Err(error) => return Err(error.operation("mount after the crash")),
    };
    let own = Tree::of(&fs).map_err(|e| e.operation("walk after the crash"))?;
    let (fs, others) = look_around(subject, pm, fs, mounting)?;
    let found = joined(mounting, &own, &others);
    let (state, mut problems) = compare(expected, &found, subject.ctime());
    problems.extend(before);
    if !problems.is_empty() || depth < Depth::Empty {
        subject.abandon(fs);
        return Ok(Judged { state, problems });
    }
    subject.unmount(fs).map_err(|e| e.operation("unmount after the crash"))?;
    if expected.damaged {
        // Damage that no operation has read is mended by this alone.
        subject.repair(pm).map_err(|e| e.operation("repair after the crash"))?;
    }
    problems.extend(in_words("check after recovery", subject.check(pm, false)?));
    let fs = subject.mount(pm, later).map_err(|e| e.operation("mount after a clean unmount"))?;
    let again = Tree::of(&fs).map_err(|e| e.operation("walk after a clean unmount"))?;
    problems.extend(in_words("after a clean unmount", own.differences(&again)));
    let fs = write_and_empty(fs, &again, expected.fills, &mut problems)?;
    subject.unmount(fs).map_err(|e| e.operation("unmount of the emptied file system"))?;
    problems.extend(in_words("check of the emptied file system", subject.check(pm, false)?));
    end_others(subject, pm, later, &others, expected.fills, &mut problems)?;
    let fs = subject
        .mount(pm, Mounting::default())
        .map_err(|e| e.operation("mount of the emptied file system"))?;
    let empty = Tree::of(&fs)?;
    let free = subject.free_blocks(&fs);
    subject.abandon(fs);
    if free + SPARE_BLOCKS < expected.free_when_empty {
        problems
            .push(format!("{free} blocks are free when all is removed, not {}", expected.free_when_empty));
    }
    if !empty.is_empty() {
        problems.push(format!("{} entries are back after everything was removed", empty.len()));
    }
    Ok(Judged { state, problems })
}

/// Whether a problem is that one copy of a structure is damaged, while the other one is whole.
fn is_one_copy(what: &str) -> bool {
    let of_one = ["the primary of ", "the backup of "].iter().any(|start| what.starts_with(start));
    of_one && what.ends_with(" is damaged")
}

/// The other volumes are as they were found. Then all but the first one are removed, a new one takes their place, and the
/// first one is emptied. Nothing is done where the subject has no volumes.
fn end_others<S: Subject>(
    subject: &S,
    pm: &Arc<SimPm>,
    mounting: Mounting,
    found: &Others,
    fills: bool,
    problems: &mut Vec<String>,
) -> Result<()> {
    const NEW: &str = "made-after-the-crash";
    let Some(volumes) = subject.volumes() else { return Ok(()) };
    let fs = subject.mount(pm, mounting).map_err(|e| e.operation("mount of the emptied volume"))?;
    let (fs, others) = look_around(subject, pm, fs, mounting)?;
    for (name, tree) in found {
        let now = others.get(name).cloned().unwrap_or_default();
        problems.extend(in_words(&format!("volume {name}, which was not used"), tree.differences(&now)));
    }
    let fs = alone(subject, pm, fs).map_err(|e| e.operation("removal of volumes after the crash"))?;
    subject.unmount(fs)?;
    match volumes.make(pm, NEW, 0, Timestamp::new(STEP as i64, 0)) {
        Ok(()) => volumes.remove(pm, NEW).map_err(|e| e.operation("removal of a new volume"))?,
        Err(error) if fills && error.kind() == Kind::NoSpace => {}
        Err(error) => return Err(error.operation("a new volume after the crash")),
    }
    let fs = subject.mount(pm, Mounting::default())?;
    let tree = Tree::of(&fs)?;
    let fs = write_and_empty(fs, &tree, fills, problems)?;
    subject.unmount(fs).map_err(|e| e.operation("unmount of the only volume"))?;
    problems.extend(in_words("check of the only volume", subject.check(pm, false)?));
    Ok(())
}

/// Where mkfs left no file system, another one makes one.
fn remake<S: Subject>(subject: &S, pm: &Arc<SimPm>) -> Result<Judged> {
    subject.mkfs(pm).map_err(|e| e.operation("mkfs after the crash"))?;
    let fs =
        subject.mount(pm, Mounting::default()).map_err(|e| e.operation("mount of the new file system"))?;
    let tree = Tree::of(&fs)?;
    subject.abandon(fs);
    let problem = (!tree.is_empty()).then(|| format!("a new file system has {} entries", tree.len()));
    Ok(Judged { state: None, problems: problem.into_iter().collect() })
}

/// Which of the allowed states was found; if none, how it differs from the one that it differs from least.
fn compare(expected: &Expected<'_>, found: &Tree, ctime: Ctime) -> (Option<usize>, Vec<String>) {
    let mut least: Option<Vec<String>> = None;
    if expected.remaking == Remaking::Made {
        let words = format!("{} entries are in the file system that was made", found.len());
        return (None, if found.is_empty() { Vec::new() } else { vec![words] });
    }
    // The later one first: most images are of operations that are complete but for their last line.
    for state in expected.allowed.clone().rev() {
        let differences = expected.states[state].differences_with(found, ctime);
        if differences.is_empty() {
            return (Some(state), Vec::new());
        }
        if least.as_ref().is_none_or(|least| differences.len() < least.len()) {
            least = Some(differences);
        }
    }
    if expected.remaking != Remaking::No && found.is_empty() {
        return (None, Vec::new());
    }
    for state in expected.allowed.clone() {
        let through = expected.torn.iter().filter(|(base, _)| *base == state);
        let through: Vec<&Tree> = through.map(|&(_, other)| &expected.states[other]).collect();
        if !through.is_empty() && expected.states[state].is_torn(found, &through, ctime) {
            return (None, Vec::new());
        }
    }
    let words = match expected.allowed.clone().count() {
        1 => "what was acknowledged",
        _ => "neither before nor after",
    };
    (None, in_words(words, least.unwrap_or_default()))
}

fn in_words(prefix: &str, list: Vec<String>) -> Vec<String> {
    list.into_iter().map(|item| format!("{prefix}: {item}")).collect()
}

/// Uses the recovered file system: a new file, an append to an old one, then removes everything. If the device may be
/// full, the writes may fail for lack of space, but never the removals; and then all of it must go.
pub(super) fn write_and_empty<F: Extents + Data>(
    fs: F,
    tree: &Tree,
    fills: bool,
    problems: &mut Vec<String>,
) -> Result<F> {
    let mut runner = Runner::new(fs);
    let is_old = |(path, kind): &(&str, FileKind)| {
        *kind == FileKind::Regular && !tree.protected().any(|protected| protected == *path)
    };
    let old = tree.paths().find(is_old).map(|(path, _)| path.to_string());
    match write(&mut runner, old.as_deref(), problems) {
        Err(error) if fills && error.kind() == Kind::NoSpace => {
            empty(&runner)?;
            write(&mut runner, None, problems)?;
        }
        result => result?,
    }
    empty(&runner)?;
    Ok(runner.into_fs())
}

const STEP: u64 = 900_000;

fn write<F: Data + Extents>(
    runner: &mut Runner<F>,
    old: Option<&str>,
    problems: &mut Vec<String>,
) -> Result<()> {
    const NAME: &str = "written-after-the-crash";
    let script = [
        Op::Create(NAME, FileKind::Regular),
        Op::Write(NAME, 0, 30_000),
        Op::Write(NAME, 5000, 5000),
        Op::Append(NAME, 10),
    ];
    for (index, op) in script.iter().enumerate() {
        runner.run(STEP + index as u64, op).map_err(|e| e.object(format!("{op:?} after the crash")))?;
    }
    let node = runner.fs.lookup(&runner.fs.root(), NAME.as_bytes())?;
    let mut content = vec![0; 40_000];
    let len = runner.fs.read(&node, 0, &mut content, None)?;
    let mut expected = payload(STEP + 1, 30_000);
    expected[5000..10_000].copy_from_slice(&payload(STEP + 2, 5000));
    expected.extend(payload(STEP + 3, 10));
    if content[..len] != expected {
        problems.push("what is written after the crash is not read back".to_string());
    }
    if let Some(old) = old {
        runner.append(STEP, old, 5000).map_err(|e| e.object(format!("append to /{old} after the crash")))?;
    }
    Ok(())
}

fn empty<F: Data + Extents>(runner: &Runner<F>) -> Result<()> {
    let tree = Tree::of(&runner.fs)?;
    // Protected paths can be removed after their flags are cleared.
    for path in tree.protected() {
        runner.unprotect(STEP, path).map_err(|e| e.object(format!("flags of /{path} after the crash")))?;
    }
    for (path, kind) in tree.paths().rev() {
        runner.remove(STEP, path, kind).map_err(|e| e.object(format!("remove /{path} after the crash")))?;
    }
    Ok(())
}
