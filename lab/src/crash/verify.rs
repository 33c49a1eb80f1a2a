//! Judging one image: recover it and compare.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use nacre_engine::{Extents, FileKind, Result};
use nacre_media::SimPm;

use super::op::{Op, Runner, payload};
use super::subject::Subject;
use super::tree::{Ctime, Tree};

/// What is done with an image beyond mounting it and looking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// Mount and compare.
    Look,
    /// Also unmount, check, mount, write, empty, and check again.
    Empty,
}

/// What a recovered file system must be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected<'e> {
    /// One of these.
    pub(super) allowed: &'e [Tree],
    /// So many blocks are free again when everything is removed.
    pub(super) free_when_empty: u64,
}

/// Blocks that may stay in use: the logs of the root, which had more entries than that of a new file system.
const SPARE_BLOCKS: u64 = 4;

/// The free blocks of a new file system on which files were written and removed.
pub(super) fn free_when_empty<S: Subject>(subject: &S, len: u64) -> Result<u64> {
    let pm = Arc::new(SimPm::new(len));
    subject.mkfs(&pm)?;
    let fs = subject.mount(&pm)?;
    let tree = Tree::of(&fs)?;
    subject.unmount(write_and_empty(fs, &tree, &mut Vec::new())?)?;
    Ok(subject.mount(&pm)?.stat().free)
}

/// Recovers the image in `pm` and says what is wrong with it.
pub(super) fn judge<S: Subject>(
    subject: &S,
    pm: &Arc<SimPm>,
    expected: &Expected<'_>,
    depth: Depth,
) -> Vec<String> {
    let judged = catch_unwind(AssertUnwindSafe(|| recover(subject, pm, expected, depth)));
    match judged {
        Ok(Ok(problems)) => problems,
        Ok(Err(error)) => vec![error.to_string()],
        Err(panic) => vec![format!("panic: {}", panic_words(&*panic))],
    }
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
) -> Result<Vec<String>> {
    let mut before = Vec::new();
    if depth == Depth::Empty {
        before = in_words("check before recovery", subject.check(pm, true)?);
    }
    let fs = subject.mount(pm).map_err(|e| e.operation("mount after the crash"))?;
    let found = Tree::of(&fs).map_err(|e| e.operation("walk after the crash"))?;
    let mut problems = compare(expected.allowed, &found, subject.ctime());
    problems.extend(before);
    if !problems.is_empty() || depth == Depth::Look {
        return Ok(problems);
    }
    subject.unmount(fs).map_err(|e| e.operation("unmount after the crash"))?;
    let mut problems = in_words("check after recovery", subject.check(pm, false)?);
    let fs = subject.mount(pm).map_err(|e| e.operation("mount after a clean unmount"))?;
    let again = Tree::of(&fs).map_err(|e| e.operation("walk after a clean unmount"))?;
    problems.extend(in_words("after a clean unmount", found.differences(&again)));
    let fs = write_and_empty(fs, &again, &mut problems)?;
    subject.unmount(fs).map_err(|e| e.operation("unmount of the emptied file system"))?;
    problems.extend(in_words("check of the emptied file system", subject.check(pm, false)?));
    let fs = subject.mount(pm).map_err(|e| e.operation("mount of the emptied file system"))?;
    let empty = Tree::of(&fs)?;
    let free = fs.stat().free;
    if free + SPARE_BLOCKS < expected.free_when_empty {
        problems
            .push(format!("{free} blocks are free when all is removed, not {}", expected.free_when_empty));
    }
    if !empty.is_empty() {
        problems.push(format!("{} entries are back after everything was removed", empty.len()));
    }
    Ok(problems)
}

/// Nothing, when `found` is one of the allowed states; else how it differs from the one that it differs from least.
fn compare(allowed: &[Tree], found: &Tree, ctime: Ctime) -> Vec<String> {
    let differences = allowed.iter().map(|state| state.differences_with(found, ctime));
    let least = differences.min_by_key(Vec::len).unwrap_or_else(|| vec!["no state is allowed".to_string()]);
    let words = if allowed.len() > 1 { "neither before nor after" } else { "what was acknowledged" };
    in_words(words, least)
}

fn in_words(prefix: &str, list: Vec<String>) -> Vec<String> {
    list.into_iter().map(|item| format!("{prefix}: {item}")).collect()
}

/// Uses the recovered file system: a new file, an append to an old one, then removes everything.
fn write_and_empty<F: Extents + nacre_engine::Data>(
    fs: F,
    tree: &Tree,
    problems: &mut Vec<String>,
) -> Result<F> {
    const STEP: u64 = 900_000;
    let mut runner = Runner::new(fs);
    let old = tree.paths().find(|(_, kind)| *kind == FileKind::Regular).map(|(path, _)| path.to_string());
    let mut script = vec![
        Op::Create("written-after-the-crash", FileKind::Regular),
        Op::Write("written-after-the-crash", 0, 70_000),
        Op::Write("written-after-the-crash", 5000, 5000),
    ];
    script.push(Op::Append("written-after-the-crash", 10));
    for (index, op) in script.iter().enumerate() {
        runner.run(STEP + index as u64, op).map_err(|e| e.object(format!("{op:?} after the crash")))?;
    }
    let node = runner.fs.lookup(&runner.fs.root(), b"written-after-the-crash")?;
    let mut content = vec![0; 80_000];
    let len = runner.fs.read(&node, 0, &mut content, None)?;
    let mut expected = payload(STEP + 1, 70_000);
    expected[5000..10_000].copy_from_slice(&payload(STEP + 2, 5000));
    expected.extend(payload(STEP + 3, 10));
    if content[..len] != expected {
        problems.push("what is written after the crash is not read back".to_string());
    }
    if let Some(old) = old {
        runner.append(STEP, &old, 5000).map_err(|e| e.object(format!("append to /{old} after the crash")))?;
    }
    drop(node);
    let all = Tree::of(&runner.fs)?;
    for (path, kind) in all.paths().rev() {
        runner.remove(STEP, path, kind).map_err(|e| e.object(format!("remove /{path} after the crash")))?;
    }
    Ok(runner.into_fs())
}
