//! Whoever asked why a file does not move heard how many others do not, either. What comes first is named, with a cause.

use std::cell::RefCell;
use std::sync::{Arc, Mutex};

use nacre_engine::{BLOCK_SIZE, FileBlock, Names, XattrMode};
use nacre_mover::{Budget, Cause, MoverOptions, Phase, Queued, TIER as WHERE, Way};

use super::machine::{Layout, Machine, Node, TIER, time};

/// When the first file was written, in milliseconds.
const BEGUN_MS: u64 = 1_700_000_000_000;
/// All files are old by then.
const LATER_MS: u64 = BEGUN_MS + 10_000_000;

fn first<L: Layout>(machine: &Machine<L>) -> Vec<Queued> {
    machine.fs.status().queue.first
}

fn cold<L: Layout>(machine: &Machine<L>, node: &Node<L>, blocks: u64, cause: Cause) -> Queued {
    Queued { inode: machine.fs.id(node).number, bytes: blocks * BLOCK_SIZE, way: Way::Space, cause }
}

/// Files until more of memory is in use than is to be, with numbers from this one on.
fn fill_from<L: Layout>(machine: &Machine<L>, number: usize) -> Vec<Node<L>> {
    let mut files = Vec::new();
    while machine.fs.usage() < 75.0 {
        files.push(machine.file(number + files.len(), 2));
    }
    files
}

fn fill<L: Layout>(machine: &Machine<L>) -> Vec<Node<L>> {
    fill_from(machine, 0)
}

fn what_is_cold_waits_for_its_turn_or_for_what_keeps_the_mover<L: Layout>() {
    let machine = Machine::<L>::new(64 << 20);
    let files = fill(&machine);
    machine.fs.tick(LATER_MS, &Budget::default().unless(&|| true)).expect("it looks");
    let eight =
        |cause| -> Vec<Queued> { files[..8].iter().map(|node| cold(&machine, node, 2, cause)).collect() };
    assert_eq!(first(&machine), eight(Cause::Turn));
    let queue = machine.fs.status().queue;
    assert_eq!((queue.files, queue.young), (files.len() as u64, 0));
    machine.fs.pause(true);
    assert_eq!(first(&machine), eight(Cause::Mover(Phase::Paused)));
    machine.fs.pause(false);
    let outside = MoverOptions { hours: "02:00-03:00".parse().expect("hours"), ..MoverOptions::default() };
    machine.fs.change(&outside);
    assert_eq!(first(&machine), eight(Cause::Mover(Phase::OutsideHours)));
    machine.fs.change(&MoverOptions { balance: false, ..MoverOptions::default() });
    machine.fs.tiers().detach(TIER, "it was pulled out");
    assert_eq!(first(&machine), eight(Cause::Mover(Phase::NoTier)));
}

fn what_moved_as_much_as_the_limit_allows_waits_for_that<L: Layout>() {
    let machine = Machine::<L>::new(64 << 20);
    let files = fill(&machine);
    machine.fs.limit(Some(2 * BLOCK_SIZE));
    machine.fs.tick(LATER_MS, &Budget::default()).expect("it moves a file");
    assert_eq!(machine.below(&files[0]), 2);
    // The first one, too: that nothing of it is left is seen when it is its turn.
    let limited = |file: usize| cold(&machine, &files[file], 2, Cause::Mover(Phase::Limited));
    assert_eq!(first(&machine)[..2], [limited(0), limited(1)]);
    let set = machine.fs.set_xattr(&files[9], WHERE, b"1", XattrMode::Set, None, time(0));
    set.expect("an order");
    let told = Queued { way: Way::Told, ..limited(9) };
    assert_eq!(first(&machine)[0], told);
    machine.fs.limit(None);
    // What it was told to do keeps what it does by itself from nothing.
    assert_eq!(first(&machine)[0].cause, Cause::Turn);
    machine.fs.tick(LATER_MS + 1000, &Budget::default()).expect("it moves them");
    assert!(machine.fs.usage() <= machine.fs.threshold());
    let queue = machine.fs.status().queue;
    assert!(
        queue.first.iter().all(|queued| queued.cause == Cause::Mover(Phase::BelowThreshold)),
        "{queue:?}"
    );
    assert!(queue.files > 0 && queue.first.len() == 8, "{queue:?}");
}

fn what_is_young_says_how_long<L: Layout>() {
    let machine = Machine::<L>::new(64 << 20);
    let files = fill(&machine);
    // Each was written a second after the one before it.
    machine.fs.tick(BEGUN_MS + 10_000, &Budget::default()).expect("it looks");
    let status = machine.fs.status();
    assert_eq!((status.phase, status.moved), (Phase::Young, 0));
    assert_eq!(status.queue.young, files.len() as u64);
    // They are old a millisecond after 30 seconds, and first come those that are old first.
    let young = |at: usize| cold(&machine, &files[at], 2, Cause::Young(at as u64 * 1000 + 20_001));
    assert_eq!(status.queue.first, (0..8).map(young).collect::<Vec<_>>());
}

fn a_drain_that_was_interrupted_waits_for_somebody<L: Layout>() {
    let machine = Machine::<L>::new(64 << 20);
    let files = machine.files([3; 60]);
    assert!(machine.fs.demote_files(&files, TIER, false).iter().all(Result::is_ok));
    let seen = RefCell::new(Vec::new());
    let is_over = || {
        seen.borrow_mut().extend(first(&machine));
        true
    };
    let drained = machine.fs.drain(TIER, &Budget::default().unless(&is_over));
    let seen = seen.into_inner();
    assert!(!drained.expect("it is interrupted").is_done && seen.is_empty(), "it went on: {seen:?}");
    let left = machine.used(TIER) * BLOCK_SIZE;
    let way = Way::Drained { tier: TIER, left };
    assert!(left > 0);
    assert_eq!(first(&machine), [Queued { inode: 0, bytes: left, way, cause: Cause::Interrupted }]);
    machine.fs.drain(TIER, &Budget::default()).expect("it goes on");
    assert_eq!(first(&machine), []);
}

/// Nobody heard anything of the queue while blocks moved.
fn who_asks_while_blocks_move_hears_what_waits_behind_them<L: Layout>() {
    let machine = Machine::<L>::new(64 << 20);
    let files = fill(&machine);
    let (fs, told) = (Arc::clone(&machine.fs), Arc::new(Mutex::new(None)));
    let tell = Arc::clone(&told);
    *machine.disks[0].meanwhile.lock().unwrap() =
        Some(Box::new(move || *tell.lock().unwrap() = Some(fs.status())));
    machine.fs.tick(LATER_MS, &Budget::default()).expect("blocks move");
    let status = told.lock().unwrap().take().expect("blocks moved");
    let moving = status.doing.expect("they move").files;
    assert_eq!((status.phase, status.queue.files), (Phase::Moving, files.len() as u64 - moving));
    let next = &files[usize::try_from(moving).expect("few")];
    assert_eq!(status.queue.first[0], cold(&machine, next, 2, Cause::Turn));
}

fn what_reads_ask_for_waits_for_the_second_and_for_room<L: Layout>() {
    let machine = Machine::<L>::with(&[64 << 20], MoverOptions::default());
    let files = machine.files([4; 12]);
    assert!(machine.fs.demote_files(&files, TIER, false).iter().all(Result::is_ok));
    // Four seconds in which all reads come from the tier.
    for second in 0..6 {
        machine.fs.tick(LATER_MS + second * 1000, &Budget::default().unless(&|| true)).expect("it looks");
        for node in &files {
            machine.read_at(node, Some(time(10_000 + second as usize)));
        }
    }
    let raised = |queued: &Queued| queued.way == Way::Raised;
    let queue = first(&machine);
    assert!(queue.iter().any(|queued| raised(queued) && queued.cause == Cause::Turn), "{queue:?}");
    machine.fs.pause(true);
    let paused = Cause::Mover(Phase::Paused);
    assert!(first(&machine).iter().filter(|queued| raised(queued)).all(|queued| queued.cause == paused));
    machine.fs.pause(false);
    // No room below the threshold.
    let more = fill_from(&machine, 100);
    let queue = first(&machine);
    assert!(queue.iter().any(|queued| raised(queued) && queued.cause == Cause::NoRoom), "{queue:?}");
    machine.fs.promote(&files[0], FileBlock(0), 4).expect("an order finds room");
    drop(more);
}

over_each_layout!(
    what_is_cold_waits_for_its_turn_or_for_what_keeps_the_mover,
    what_moved_as_much_as_the_limit_allows_waits_for_that,
    what_is_young_says_how_long,
    a_drain_that_was_interrupted_waits_for_somebody,
    who_asks_while_blocks_move_hears_what_waits_behind_them,
    what_reads_ask_for_waits_for_the_second_and_for_room,
);
