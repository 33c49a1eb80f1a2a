//! What nobody uses on a tier its device may forget; a test disk forgets it at once.

use std::cell::{Cell, OnceCell};

use nacre_engine::{BLOCK_SIZE, BelowBuffer, Kind, Names, RenameMode, TierState, WriteShape};
use nacre_media::block::BlockDevice;
use nacre_mover::{Budget, MoverOptions, TrimFrom, Trimmed};

use super::machine::{BLOCK, Layout, Machine, TIER, content, time};

const DISK: u64 = 4 << 20;

/// Blocks of the disk that hold something of these files.
fn found<L: Layout>(machine: &Machine<L>, contents: &[Vec<u8>]) -> usize {
    let mut bytes = vec![0; DISK as usize];
    machine.disks[0].read(0, &mut bytes).expect("read");
    let holds = |block: &&[u8]| contents.iter().any(|content| content.chunks(BLOCK).any(|one| one == *block));
    bytes.chunks(BLOCK).filter(holds).count()
}

fn what_was_removed_is_forgotten_and_nothing_else<L: Layout>() {
    let machine = Machine::<L>::new(DISK);
    let files = machine.files([3, 4, 5, 6]);
    let expected: Vec<_> = (0..4).map(|number| content(number, number + 3)).collect();
    machine.fs.demote_files(&files, TIER, true).into_iter().for_each(|moved| assert!(moved.is_ok()));
    machine.fs.tiers().pages().drop_tier(TIER);
    assert_eq!(found(&machine, &expected), 18);
    for number in ["1", "3"] {
        machine.fs.unlink(&machine.fs.root(), number.as_bytes(), time(9)).expect("unlink");
    }
    let (before, gone) = (machine.used(TIER), [expected[1].clone(), expected[3].clone()]);
    // They are in use as long as they are open.
    assert!(before == 18 && machine.fs.trim(TIER, TrimFrom::default(), 0, &Budget::default()).is_ok());
    assert_eq!(found(&machine, &gone), 10);
    let mut files = files;
    files.remove(3);
    files.remove(1);
    // Who changes a name next frees them.
    machine
        .fs
        .rename(&machine.fs.root(), b"0", &machine.fs.root(), b"other", RenameMode::Replace, time(9))
        .expect("rename");
    let free = machine.fs.layout().tier_space(TIER).expect("space").free;
    assert_eq!(machine.used(TIER), 8);
    let done = machine.fs.trim(TIER, TrimFrom::default(), 0, &Budget::default()).expect("trim");
    assert_eq!(done, Trimmed { bytes: free * BLOCK_SIZE, next: None, is_useless: false });
    assert_eq!((machine.used(TIER), found(&machine, &gone)), (8, 0));
    for (node, number) in files.iter().zip([0, 2]) {
        assert!(machine.read(node) == expected[number], "file {number}");
    }
    // All of it can be used again.
    let last = machine.file(4, 40);
    machine.fs.demote_files(&[last], TIER, true).remove(0).expect("move");
    assert_eq!(machine.used(TIER), 48);
}

/// Who asks in parts is told where to go on, and short runs are left out.
fn it_goes_on_where_it_ended<L: Layout>() {
    let machine = Machine::<L>::new(DISK);
    let files = machine.files([1; 9]);
    machine.fs.demote_files(&files, TIER, true).into_iter().for_each(|moved| assert!(moved.is_ok()));
    let mut kept = Vec::new();
    for (number, node) in files.into_iter().enumerate() {
        if number % 2 == 0 {
            kept.push(node);
        } else {
            drop(node);
            machine.fs.unlink(&machine.fs.root(), number.to_string().as_bytes(), time(9)).expect("unlink");
        }
    }
    let space = machine.fs.layout().tier_space(TIER).expect("space");
    assert_eq!(space.blocks - space.free, 5);
    let (mut next, mut told, mut calls) = (Some(TrimFrom::default()), 0, 0);
    while let Some(from) = next {
        let turns = Cell::new(0);
        let is_over = || turns.replace(1) > 0;
        let done =
            machine.fs.trim(TIER, from, 2 * BLOCK_SIZE, &Budget::default().unless(&is_over)).expect("trim");
        assert!(done.next.is_none_or(|next| next.block > from.block), "{done:?} from {from:?}");
        (told, next, calls) = (told + done.bytes, done.next, calls + 1);
    }
    // Each of the four that were removed lies alone.
    assert_eq!(told, (space.free - 4) * BLOCK_SIZE);
    assert!(calls > 16, "a sixteenth of what is free at the most: {calls}");
    // In one call, too.
    let done = machine.fs.trim(TIER, TrimFrom::default(), 2 * BLOCK_SIZE, &Budget::default()).expect("trim");
    assert_eq!(done.bytes, told);
    assert_eq!(machine.fs.layout().tier_space(TIER).expect("space").free, space.free);
    // What comes behind a long run is looked at by its own length.
    for (number, node) in kept.into_iter().enumerate() {
        drop(node);
        let name = (2 * number).to_string();
        machine.fs.unlink(&machine.fs.root(), name.as_bytes(), time(9)).expect("unlink");
    }
    let runs =
        [40, 1, 30, 1, 1].map(|blocks| machine.fs.layout().allocate_on(TIER, None, blocks).expect("room"));
    let rest = machine.fs.layout().tier_space(TIER).expect("space").free;
    let last = machine.fs.layout().allocate_on(TIER, None, rest).expect("room");
    for (number, run) in runs.iter().flatten().chain(&last).enumerate() {
        assert!(run.len > 0 && (number < 5 || run.len == rest));
        if number % 2 == 0 {
            machine.fs.layout().free_on(*run);
        }
    }
    let done = machine.fs.trim(TIER, TrimFrom::default(), 20 * BLOCK_SIZE, &Budget::default()).expect("trim");
    assert_eq!(done.bytes, 70 * BLOCK_SIZE, "of 40, 30 and 1");
    assert!(
        machine.fs.trim(TIER + 1, TrimFrom::default(), 0, &Budget::default()).is_err(),
        "there is no such tier"
    );
}

/// What was trimmed came back only when all were done who were reading.
fn nobody_who_reads_keeps_what_is_trimmed<L: Layout>() {
    let machine = Machine::<L>::new(DISK);
    let layout = machine.fs.layout();
    let ticket = layout.begin_reads();
    let free = layout.tier_space(TIER).expect("space").free;
    assert_eq!(
        machine.fs.trim(TIER, TrimFrom::default(), 0, &Budget::default()).expect("trim").bytes,
        free * BLOCK_SIZE
    );
    let taken = layout.allocate_on(TIER, None, free).expect("all of it");
    taken.into_iter().for_each(|run| layout.free_on(run));
    layout.end_reads(ticket);
}

fn one_at_a_time_and_none_of_a_tier_that_is_drained<L: Layout>() {
    let machine =
        Machine::<L>::with(&[DISK, DISK], MoverOptions { balance: false, ..MoverOptions::default() });
    let trim = |tier, budget: &Budget<'_>| machine.fs.trim(tier, TrimFrom::default(), 0, budget);
    let inner = OnceCell::new();
    let begin = || {
        inner.get_or_init(|| (trim(TIER, &Budget::default()), trim(TIER + 1, &Budget::default())));
        false
    };
    let done = trim(TIER, &Budget::default().unless(&begin));
    let (same, other) = inner.into_inner().expect("it asked");
    assert_eq!(same.expect_err("two at once").kind(), Kind::Busy);
    let (done, other) = (done.expect("trim"), other.expect("another tier"));
    assert!(done.bytes > 0 && done.bytes == other.bytes && done.next.is_none());
    machine.fs.set_state(TIER, TierState::Draining).expect("drain");
    assert_eq!(trim(TIER, &Budget::default()).expect("trim"), Trimmed::default());
    // From one piece to the next.
    let pieces = Cell::new(0);
    let drain_third = || {
        if pieces.replace(pieces.get() + 1) == 2 {
            machine.fs.set_state(TIER + 1, TierState::Draining).expect("drain");
        }
        false
    };
    let cut = trim(TIER + 1, &Budget::default().unless(&drain_third)).expect("trim");
    assert!(cut.bytes > 0 && cut.bytes < done.bytes / 4 && cut.next.is_none(), "{cut:?}");
}

fn reserved_blocks_are_not_trimmed<L: Layout>() {
    let machine = Machine::<L>::new(DISK);
    let shape = WriteShape { extra: 300, ..WriteShape::default() };
    let reservation = machine.fs.reserve_for(&shape).expect("there is room");
    // As much as others may have.
    let mut files = 0;
    loop {
        let file = machine.file(files, 10);
        files += 1;
        match machine.fs.demote_files(&[file], TIER, true).remove(0) {
            Ok(moved) if moved.moved == 10 => assert!(files < 200, "nothing is reserved"),
            _ => break,
        }
    }
    let free = machine.fs.layout().tier_space(TIER).expect("space").free;
    assert!(free > 200, "{free}");
    let done = machine.fs.trim(TIER, TrimFrom::default(), 0, &Budget::default()).expect("trim");
    assert!(done.bytes < 20 * BLOCK_SIZE && done.next.is_none(), "{done:?} of {free} blocks");
    drop(reservation);
    let done = machine.fs.trim(TIER, TrimFrom::default(), 0, &Budget::default()).expect("trim");
    assert_eq!(done.bytes, free * BLOCK_SIZE);
}

over_each_layout!(
    what_was_removed_is_forgotten_and_nothing_else,
    it_goes_on_where_it_ended,
    nobody_who_reads_keeps_what_is_trimmed,
    one_at_a_time_and_none_of_a_tier_that_is_drained,
    reserved_blocks_are_not_trimmed,
);
