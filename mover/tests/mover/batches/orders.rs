//! Who was told to move many files moved one after another. They move together, as far as whoever asks has time.

use std::cell::Cell;

use nacre_engine::{Extents, FileBlock, Kind, Names, Place};
use nacre_mover::{Budget, MovedFiles, MoverOptions};

use super::machine::{Layout, Machine, Node, TIER, content};

/// Calls it until all is done, with so many questions whether it goes on in each call; gives the blocks that moved, the files
/// that failed, and the number of calls.
fn all<L: Layout>(
    files: &[Node<L>],
    questions: usize,
    mut some: impl FnMut(&[Node<L>], FileBlock, &Budget<'_>) -> MovedFiles,
) -> (u64, Vec<(usize, Kind)>, usize) {
    let (mut moved, mut failed, mut calls) = (0, Vec::new(), 0);
    let (mut done, mut from) = (0, 0);
    while done < files.len() {
        let asked = Cell::new(1);
        let is_over = || asked.replace(asked.get() + 1) >= questions;
        let came = some(&files[done..], FileBlock(from), &Budget::default().unless(&is_over));
        assert!((came.next, came.from) > (0, from), "nothing was done: {came:?} from {from}");
        moved += came.moved;
        failed.extend(came.failed.iter().map(|(file, error)| (done + file, error.kind())));
        (done, from, calls) = (done + came.next, came.from, calls + 1);
    }
    assert_eq!((done, from), (files.len(), 0));
    (moved, failed, calls)
}

fn files_that_are_told_to_move_share_a_flush_and_are_cut_at_any_file<L: Layout>() {
    let machine = Machine::<L>::new(64 << 20);
    let files = machine.files([3; 60]);
    let down =
        |files: &[Node<L>], from, budget: &Budget<'_>| machine.fs.demote_some(files, from, TIER, budget);
    // Of each batch a file is read without a question.
    assert_eq!(all::<L>(&files, 10, down), (180, Vec::new(), 6));
    assert_eq!((machine.used(TIER), machine.flushes(TIER)), (180, 6));
    // What is there already takes neither a write nor a flush.
    assert_eq!(all::<L>(&files, 10, down), (0, Vec::new(), 1));
    assert_eq!(machine.flushes(TIER), 6);
    machine.fs.tiers().pages().drop_tier(TIER);
    let up = |files: &[Node<L>], from, budget: &Budget<'_>| machine.fs.promote_some(files, from, budget);
    let (moved, failed, calls) = all::<L>(&files, 10, up);
    assert_eq!((moved, failed.len(), machine.used(TIER)), (180, 0, 0));
    assert!(calls > 6, "{calls}");
    assert_eq!(all::<L>(&files, usize::MAX, down), (180, Vec::new(), 1));
    assert_eq!((machine.used(TIER), machine.flushes(TIER)), (180, 7));
    let expected: Vec<_> = (0..60).map(|number| content(number, 3)).collect();
    for (number, node) in files.iter().enumerate() {
        assert!(machine.read(node) == expected[number], "file {number}");
    }
    drop(files);
    machine.crash(&expected);
}

/// A file of several groups between small ones, and nobody ever has time for more than the least.
fn a_large_file_goes_on_where_the_order_before_ended<L: Layout>() {
    let options = MoverOptions { balance: false, group: 16, ..MoverOptions::default() };
    let machine = Machine::<L>::with(&[32 << 20], options);
    let sizes = [1, 200, 2, 0, 90, 3];
    let files = machine.files(sizes);
    let root = machine.fs.root();
    let mut with_root = files.clone();
    with_root.insert(2, root.clone());
    for questions in [1, 3] {
        let (moved, failed, calls) = all::<L>(&with_root, questions, |files, from, budget| {
            machine.fs.demote_some(files, from, TIER, budget)
        });
        assert_eq!((moved, failed.len(), machine.used(TIER)), (296, 0, 296));
        assert!((6..=30).contains(&calls), "{calls}");
        let (moved, failed, _) = all::<L>(&with_root, questions, |files, from, budget| {
            machine.fs.promote_some(files, from, budget)
        });
        assert_eq!((moved, failed.len(), machine.used(TIER)), (296, 0, 0));
    }
    let expected: Vec<_> = sizes.iter().enumerate().map(|(number, size)| content(number, *size)).collect();
    drop((files, with_root, root));
    machine.crash(&expected);
}

/// One that cannot be read, and one that a program has mapped: they are named, and the others move.
fn a_file_that_cannot_move_stops_no_other<L: Layout>() {
    for questions in [1, 7, usize::MAX] {
        let machine = Machine::<L>::new(64 << 20);
        let files = machine.files([3; 40]);
        machine.poison(&files[7], 1);
        machine.fs.layout().pin(&files[30], FileBlock(0), 3).expect("pin");
        let (moved, failed, _) = all::<L>(&files, questions, |files, from, budget| {
            machine.fs.demote_some(files, from, TIER, budget)
        });
        assert_eq!((moved, machine.used(TIER)), (38 * 3, 38 * 3));
        assert_eq!(failed, [(7, Kind::Media), (30, Kind::Busy)], "{questions} questions");
        // And up: one of which the tier has lost a block.
        machine.fs.tiers().pages().drop_tier(TIER);
        let lost = machine.fs.resolve(&files[20], FileBlock(2), 1).expect("resolve")[0].place;
        let Place::Tier { block, .. } = lost else { panic!("it is on {lost:?}") };
        machine.disks[0].disk.poison(block.offset(), 64);
        let (moved, failed, _) =
            all::<L>(&files, questions, |files, from, budget| machine.fs.promote_some(files, from, budget));
        assert_eq!(failed.iter().map(|(file, _)| *file).collect::<Vec<_>>(), [20], "{questions} questions");
        assert_eq!((moved, machine.below(&files[20])), (37 * 3, 3));
        machine.fs.layout().unpin(&files[30]);
        for (number, node) in files.iter().enumerate().filter(|(number, _)| !matches!(number, 7 | 20)) {
            assert!(machine.read(node) == content(number, 3), "file {number}");
        }
    }
}

/// Of a file that PM has no room for, what moved before the error was not counted: the answer was 0.
fn what_moved_before_an_error_counts<L: Layout>() {
    let machine = Machine::<L>::new(64 << 20);
    let large = machine.scattered(0, 2000);
    // Room is left for a part of it.
    let mut number = 1;
    while machine.fs.usage() < 75.0 {
        machine.file(number, 2);
        number += 1;
    }
    let done = machine.fs.promote_some(std::slice::from_ref(&large), FileBlock(0), &Budget::default());
    let failed: Vec<_> = done.failed.iter().map(|(file, error)| (*file, error.kind())).collect();
    assert_eq!((done.next, failed), (1, vec![(0, Kind::NoSpace)]));
    let below = machine.below(&large);
    assert!((1..2000).contains(&below), "{below} blocks are on the tier");
    assert_eq!(done.moved, 2000 - below);
    assert!(machine.read(&large) == content(0, 2000));
}

over_each_layout!(
    what_moved_before_an_error_counts,
    files_that_are_told_to_move_share_a_flush_and_are_cut_at_any_file,
    a_large_file_goes_on_where_the_order_before_ended,
    a_file_that_cannot_move_stops_no_other,
);
