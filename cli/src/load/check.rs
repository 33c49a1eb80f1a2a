//! Comparison of the tree with the ledgers.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use super::operation::{Change, Operation};
use super::tree::Tree;
use super::{BLOCK, Plan, TEMPORARY};

/// The expected state of one worker, from its ledger: the acknowledged state, and the operation in flight.
#[derive(Default)]
pub(super) struct Expected {
    pub(super) tree: Tree,
    in_flight: Option<Operation>,
    pub(super) acknowledged: u64,
}

impl Expected {
    /// Reads a worker's ledger. It has `begin TIME OPERATION`, then `done`, or `lost` if a check found that the
    /// operation had not happened.
    pub(super) fn read(ledger: &Path) -> io::Result<Expected> {
        let mut expected = Expected::default();
        for line in BufReader::new(File::open(ledger)?).lines() {
            let line = line?;
            let words: Vec<&str> = line.split(' ').collect();
            let torn = || io::Error::other(format!("{}: not a line of a ledger: {line:?}", ledger.display()));
            match words[..] {
                ["begin", _, ref words @ ..] => {
                    expected.in_flight = Some(Operation::from_words(words).ok_or_else(torn)?);
                }
                ["done"] => {
                    let operation = expected.in_flight.take().ok_or_else(torn)?;
                    operation.apply(&mut expected.tree);
                    expected.acknowledged += 1;
                }
                ["lost"] => expected.in_flight = None,
                _ => return Err(torn()),
            }
        }
        Ok(expected)
    }
}

/// The result of a successful check.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Checked {
    /// Acknowledged operations.
    pub(crate) acknowledged: u64,
    /// Names compared.
    pub(crate) names: u64,
    /// Bytes compared.
    pub(crate) bytes: u64,
    /// Operations in flight that had happened.
    pub(crate) kept: u64,
    /// Operations in flight that had not happened.
    pub(crate) lost: u64,
    /// Changes in place in flight that had happened in part, if the layout allows that.
    pub(crate) torn: u64,
}

/// Compares the tree with its ledgers. Records the outcome of operations in flight in the ledgers, so that a load can
/// continue. An error names every difference.
pub(crate) fn check(plan: &Plan) -> Result<Checked, String> {
    let mut checked = Checked::default();
    let mut wrong = Vec::new();
    for number in 0..plan.workers {
        let dir = plan.worker_dir(number);
        match check_worker(plan, number, &mut checked) {
            Ok(differences) if differences.is_empty() => {}
            Ok(differences) => wrong.push(format!("{}: {}", dir.display(), differences.join(", "))),
            Err(error) => wrong.push(format!("{}: {error}", dir.display())),
        }
    }
    if wrong.is_empty() { Ok(checked) } else { Err(wrong.join("\n")) }
}

/// Checks one worker, and returns the differences.
fn check_worker(plan: &Plan, number: usize, checked: &mut Checked) -> io::Result<Vec<String>> {
    let (dir, ledger) = (plan.worker_dir(number), plan.ledger(number));
    let Expected { tree: before, in_flight, acknowledged } = Expected::read(&ledger)?;
    let mut real = Tree::read(&dir)?;
    checked.acknowledged += acknowledged;
    if matches!(in_flight, Some(Operation::Replace { .. })) && real.names.contains_key(TEMPORARY) {
        fs::remove_file(dir.join(TEMPORARY))?;
        real.remove(TEMPORARY);
    }
    checked.names += real.names.len() as u64;
    checked.bytes += real.bytes();
    let Some(operation) = in_flight else { return Ok(before.differences(&real)) };
    let mut after = before.clone();
    operation.apply(&mut after);
    let word = if before.is(&real) {
        checked.lost += 1;
        "lost"
    } else if after.is(&real) {
        checked.kept += 1;
        "done"
    } else if let Some((name, len)) = cut_append(&operation, &before, &after, &real) {
        OpenOptions::new().write(true).open(dir.join(name))?.set_len(len)?;
        checked.lost += 1;
        "lost"
    } else if plan.in_place && is_torn(&operation, &before, &after, &real) {
        operation.perform(&dir, true)?;
        checked.torn += 1;
        "done"
    } else {
        let mut wrong = after.differences(&real);
        wrong.push(format!("with {:?} in flight", operation.to_line()));
        return Ok(wrong);
    };
    let mut ledger = OpenOptions::new().append(true).open(&ledger)?;
    writeln!(ledger, "{word}")?;
    Ok(Vec::new())
}

/// The file and its old length, if a crash cut an append at the end of a block; otherwise `None`. The kernel splits a
/// write that begins within a page that is not cached, and hands a FUSE server two pieces. One piece may be lost while
/// nothing was acknowledged.
fn cut_append<'a>(
    operation: &'a Operation,
    before: &Tree,
    after: &Tree,
    real: &Tree,
) -> Option<(&'a str, u64)> {
    let Operation::Change { name, change: Change::Append { .. } } = operation else { return None };
    let old = before.file(name)?.bytes.len();
    let cut = real.file(name)?.bytes.len();
    let mut part = after.clone();
    part.file_mut(name)?.bytes.truncate(cut);
    (cut > old && (cut as u64).is_multiple_of(BLOCK) && part.is(real)).then_some((name.as_str(), old as u64))
}

/// True if an overwrite or a hole is torn: some words of 8 bytes are old and others new. A layout that overwrites in
/// place guarantees no more. Data outside the range must not differ.
fn is_torn(operation: &Operation, before: &Tree, after: &Tree, real: &Tree) -> bool {
    let Operation::Change { name, change: Change::Overwrite { .. } | Change::Punch { .. } } = operation
    else {
        return false;
    };
    let (Some(old), Some(new), Some(found)) = (before.file(name), after.file(name), real.file(name)) else {
        return false;
    };
    let (words, changes) = (found.bytes.chunks(8), old.bytes.chunks(8).zip(new.bytes.chunks(8)));
    let mixed = words.zip(changes).all(|(word, (old, new))| word == old || word == new);
    let mut part = before.clone();
    if let Some(file) = part.file_mut(name) {
        file.bytes.clone_from(&found.bytes);
    }
    mixed && found.bytes.len() == old.bytes.len() && part.is(real)
}
