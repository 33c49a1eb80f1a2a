//! A drain flushed for each file that it moved.

use std::cell::{Cell, RefCell};
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use nacre_engine::{
    BLOCK_SIZE, Data, Durability, Extents, FileBlock, FileKind, Kind, Names, NewInode, Place, WriteAt,
};
use nacre_mover::{Budget, Doing, Drained, MoverOptions, Way};

use super::machine::{BLOCK, Layout, Machine, Node, OTHER, TIER, content, time};

/// Files of so many blocks each that are on the first tier, above a second one.
fn below<L: Layout>(sizes: impl IntoIterator<Item = usize>, other: u64) -> (Machine<L>, Vec<Node<L>>) {
    let options = MoverOptions { balance: false, ..MoverOptions::default() };
    let machine = Machine::<L>::with(&[32 << 20, other], options);
    let files = machine.files(sizes);
    assert!(machine.fs.demote_files(&files, TIER, false).iter().all(Result::is_ok));
    machine.fs.tiers().pages().drop_tier(TIER);
    (machine, files)
}

fn drained(blocks: u64) -> Drained {
    Drained { moved: blocks * BLOCK_SIZE, left: 0, is_done: true }
}

fn many_small_files_leave_a_tier_with_one_flush<L: Layout>() {
    for count in [40, 400] {
        let (machine, files) = below::<L>([2].repeat(count), 32 << 20);
        let root = machine.fs.root();
        let dir = NewInode {
            kind: FileKind::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            rdev: 0,
            now: time(0),
            xattrs: &[],
            target: &[],
        };
        let links = machine.fs.create(&root, b"links", &dir).expect("create");
        // A second name beside the first one, and one elsewhere.
        machine.fs.link(&files[7], &root, b"7 again", time(1)).expect("link");
        machine.fs.link(&files[8], &links, b"8 again", time(1)).expect("link");
        let done = machine.fs.drain(TIER, &Budget::default()).expect("it drains");
        assert_eq!(done, drained(2 * count as u64));
        assert_eq!((machine.used(TIER), machine.used(OTHER)), (0, 2 * count as u64));
        // Whoever comes with a second name ends a batch.
        assert!(machine.flushes(OTHER) <= 3, "{} flushes for {count} files", machine.flushes(OTHER));
        let expected: Vec<_> = (0..count).map(|number| content(number, 2)).collect();
        for (number, node) in files.iter().enumerate() {
            assert!(machine.read(node) == expected[number], "file {number}");
        }
        drop((files, root, links));
        machine.crash(&expected);
    }
}

/// Whoever asked what the mover does heard nothing of drains.
fn who_asks_hears_of_a_drain<L: Layout>() {
    let (machine, files) = below::<L>([3; 60], 32 << 20);
    let (fs, told) = (Arc::clone(&machine.fs), Arc::new(Mutex::new(None)));
    let tell = Arc::clone(&told);
    *machine.disks[1].meanwhile.lock().unwrap() =
        Some(Box::new(move || *tell.lock().unwrap() = fs.status().doing));
    let (fs, looking) = (Arc::clone(&machine.fs), RefCell::new(Vec::new()));
    let look = || {
        looking.borrow_mut().extend(fs.status().doing);
        false
    };
    let done = machine.fs.drain(TIER, &Budget::default().unless(&look));
    assert_eq!(done.expect("it drains"), drained(180));
    let way = Way::Drained { tier: TIER, left: 180 * BLOCK_SIZE };
    assert_eq!(looking.borrow()[0], Doing { inode: 0, files: 0, way }, "the root is looked at");
    let doing = told.lock().unwrap().expect("blocks moved");
    assert_eq!((doing.files, doing.way), (60, way));
    let numbers: Vec<u64> = files.iter().map(|node| machine.fs.id(node).number).collect();
    assert!(numbers.contains(&doing.inode), "{doing:?}");
    assert_eq!(machine.fs.status().doing, None, "it is over");
}

fn a_drain_that_is_interrupted_at_any_file_goes_on_there<L: Layout>() {
    let (machine, files) = below::<L>([3; 60], 32 << 20);
    let (mut calls, mut before) = (0, 0);
    loop {
        let asked = Cell::new(0);
        let is_over = || asked.replace(asked.get() + 1) >= 9;
        let now = machine.fs.drain(TIER, &Budget::default().unless(&is_over)).expect("it drains");
        let asked = asked.get();
        calls += 1;
        assert_eq!((now.left, now.moved + now.left), (machine.used(TIER) * BLOCK_SIZE, 180 * BLOCK_SIZE));
        if now.is_done {
            break;
        }
        // The root is looked at, and nine files are read; after that it is ten.
        assert!(asked == 10 && now.moved >= before + 9 * 3 * BLOCK_SIZE, "{asked} times, {now:?}");
        assert!(now.moved <= before + 10 * 3 * BLOCK_SIZE, "{now:?}");
        before = now.moved;
    }
    assert_eq!((machine.used(TIER), machine.used(OTHER)), (0, 180));
    assert!(calls >= 6 && machine.flushes(OTHER) <= calls, "{} of {calls}", machine.flushes(OTHER));
    // What is placed there again is drained anew.
    machine.fs.set_state(TIER, nacre_engine::TierState::Active).expect("set");
    assert!(machine.fs.demote_files(&files, TIER, false).iter().all(Result::is_ok));
    assert_eq!(machine.fs.drain(TIER, &Budget::default()).expect("it drains"), drained(180));
    let expected: Vec<_> = (0..60).map(|number| content(number, 3)).collect();
    drop(files);
    machine.crash(&expected);
}

/// One is written while the batch is on its way, and one is mapped.
fn a_file_that_does_not_leave_keeps_no_other<L: Layout>() {
    let (machine, files) = below::<L>([3; 40], 32 << 20);
    machine.fs.layout().pin(&files[30], FileBlock(0), 3).expect("pin");
    let (fs, node) = (Arc::clone(&machine.fs), files[20].clone());
    let newer = content(99, 1);
    let bytes = newer.clone();
    *machine.disks[1].meanwhile.lock().unwrap() = Some(Box::new(move || {
        fs.write(&node, WriteAt::Offset(BLOCK_SIZE), &[IoSlice::new(&bytes)], Durability::Now, time(100))
            .expect("write");
    }));
    let error = machine.fs.drain(TIER, &Budget::default()).expect_err("it is mapped");
    assert_eq!(error.kind(), Kind::Busy);
    assert_eq!((machine.used(TIER), machine.used(OTHER), machine.flushes(OTHER)), (3, 39 * 3 - 1, 1));
    assert_eq!((machine.below(&files[20]), machine.below(&files[30])), (2, 3));
    machine.fs.layout().unpin(&files[30]);
    // All but the block that was written there.
    assert_eq!(machine.fs.drain(TIER, &Budget::default()).expect("it drains"), drained(40 * 3 - 1));
    let mut expected: Vec<_> = (0..40).map(|number| content(number, 3)).collect();
    expected[20][BLOCK..2 * BLOCK].copy_from_slice(&newer);
    for (number, node) in files.iter().enumerate() {
        assert!(machine.read(node) == expected[number], "file {number}");
    }
    drop(files);
    machine.crash(&expected);
}

fn what_the_other_tier_has_no_room_for_is_brought_up<L: Layout>() {
    let (machine, files) = below::<L>([3; 150], 256 * BLOCK_SIZE);
    assert_eq!(machine.fs.drain(TIER, &Budget::default()).expect("it drains"), drained(450));
    // Of 256 blocks the first and the last are the tier's own, and two are no room for a file.
    assert_eq!((machine.used(TIER), machine.used(OTHER)), (0, 252));
    assert!(machine.flushes(OTHER) <= 12, "{}", machine.flushes(OTHER));
    let expected: Vec<_> = (0..150).map(|number| content(number, 3)).collect();
    drop(files);
    machine.crash(&expected);
}

/// A file of several groups, between small ones.
fn a_large_file_leaves_in_groups<L: Layout>() {
    let options = MoverOptions { balance: false, group: 16, ..MoverOptions::default() };
    let machine = Machine::<L>::with(&[32 << 20, 32 << 20], options);
    let sizes = [1, 200, 2, 90, 3];
    let files = machine.files(sizes);
    assert!(machine.fs.demote_files(&files, TIER, false).iter().all(Result::is_ok));
    let steps = RefCell::new(Vec::new());
    let look = || {
        steps.borrow_mut().push(296 - machine.used(TIER));
        false
    };
    let done = machine.fs.drain(TIER, &Budget::default().unless(&look));
    assert_eq!(done.expect("it drains"), drained(296));
    let steps = steps.into_inner();
    assert!(steps.windows(2).all(|pair| pair[1] - pair[0] <= 16), "{steps:?}");
    assert!((19..=24).contains(&machine.flushes(OTHER)), "{}", machine.flushes(OTHER));
    let expected: Vec<_> = sizes.iter().enumerate().map(|(number, size)| content(number, *size)).collect();
    drop(files);
    machine.crash(&expected);
}

/// It was the first to be tried again, with each call, and filled the batch that others would have been in.
fn a_part_of_a_large_file_that_cannot_be_read_keeps_no_other<L: Layout>() {
    let options = MoverOptions { balance: false, group: 16, ..MoverOptions::default() };
    let machine = Machine::<L>::with(&[32 << 20, 32 << 20], options);
    let sizes = [3, 200, 2, 90, 3];
    let files = machine.files(sizes);
    assert!(machine.fs.demote_files(&files, TIER, false).iter().all(Result::is_ok));
    machine.fs.tiers().pages().drop_tier(TIER);
    let place =
        |file: usize, block| machine.fs.resolve(&files[file], FileBlock(block), 1).expect("resolve")[0].place;
    let Place::Tier { block, .. } = place(1, 40) else { panic!("it is below") };
    machine.disks[0].unreadable.lock().unwrap().push(block.0);
    for _ in 0..3 {
        let error = machine.fs.drain(TIER, &Budget::default()).expect_err("a block cannot be read");
        assert_eq!(error.kind(), Kind::Media);
        assert_eq!(machine.used(TIER), 1, "all others left");
    }
    // Who ends it before all others were looked at hears of it later.
    machine.fs.set_state(TIER, nacre_engine::TierState::Active).expect("set");
    machine.disks[0].unreadable.lock().unwrap().clear();
    assert_eq!(machine.fs.drain(TIER, &Budget::default()).expect("it drains").left, 0);
    let expected: Vec<_> = sizes.iter().enumerate().map(|(number, size)| content(number, *size)).collect();
    drop(files);
    machine.crash(&expected);
}

/// It kept all blocks of its part of the file on the tier, also where there was nowhere else to go but PM.
fn a_block_that_cannot_be_read_stays_alone<L: Layout>() {
    for tiers in [2, 1] {
        let options = MoverOptions { balance: false, ..MoverOptions::default() };
        let machine = Machine::<L>::with(&[32 << 20; 2][..tiers], options);
        let files = machine.files([2, 8, 3]);
        assert!(machine.fs.demote_files(&files, TIER, false).iter().all(Result::is_ok));
        machine.fs.tiers().pages().drop_tier(TIER);
        let found = machine.fs.resolve(&files[1], FileBlock(3), 1).expect("resolve")[0];
        let Place::Tier { block, .. } = found.place else { panic!("it is at {found:?}") };
        machine.disks[0].unreadable.lock().unwrap().push(block.0 + 3 - found.start.0);
        for _ in 0..2 {
            let error = machine.fs.drain(TIER, &Budget::default()).expect_err("a block cannot be read");
            assert_eq!((error.kind(), machine.used(TIER)), (Kind::Media, 1), "{tiers} tiers");
            assert_eq!(machine.below(&files[1]), if tiers == 2 { 8 } else { 1 });
        }
        // Not as zeros.
        let mut seen = vec![0; BLOCK];
        let read = machine.fs.read(&files[1], 3 * BLOCK_SIZE, &mut seen, None);
        assert_eq!(read.map_err(|error| error.kind()), Err(Kind::Media));
        machine.disks[0].unreadable.lock().unwrap().clear();
        let expected: Vec<_> = [2, 8, 3].into_iter().enumerate().map(|(at, len)| content(at, len)).collect();
        for (node, expected) in files.iter().zip(&expected) {
            assert!(machine.read(node) == *expected, "{tiers} tiers");
        }
        assert_eq!(machine.fs.drain(TIER, &Budget::default()).expect("it drains").left, 0);
        drop(files);
        machine.crash(&expected);
    }
}

/// Whoever brought blocks up began anew, with all of them, as long as another wrote near them.
fn blocks_come_up_while_their_neighbours_are_written_all_the_time<L: Layout>() {
    let machine = Machine::<L>::new(32 << 20);
    let node = machine.file(0, 512);
    machine.fs.demote(&node, TIER, FileBlock(1), 511, false).expect("room");
    let (ends, writes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let bytes = content(3, 1);
            while !ends.load(Ordering::Relaxed) {
                let at = WriteAt::Offset(0);
                let data = [IoSlice::new(&bytes)];
                machine.fs.write(&node, at, &data, Durability::Now, time(1)).expect("write");
                writes.fetch_add(1, Ordering::Relaxed);
            }
        });
        while writes.load(Ordering::Relaxed) < 10 {
            std::hint::spin_loop();
        }
        let mut moved = 0;
        // What was passed over comes with the next call.
        while moved < 511 {
            moved += machine.fs.promote(&node, FileBlock(0), 512).expect("room").moved;
        }
        ends.store(true, Ordering::Relaxed);
    });
    assert_eq!(machine.used(TIER), 0);
    let mut expected = content(0, 512);
    expected[..BLOCK].copy_from_slice(&content(3, 1));
    drop(node);
    machine.crash(&[expected]);
}

/// The next call of a drain that failed for a lack of space forgot the blocks that had come up before.
fn what_came_up_before_a_drain_failed_counts<L: Layout>() {
    let machine = Machine::<L>::new(32 << 20);
    let large = machine.scattered(0, 2000);
    let mut others = 1;
    while machine.fs.usage() < 75.0 {
        machine.file(others, 2);
        others += 1;
    }
    let error = machine.fs.drain(TIER, &Budget::default()).expect_err("PM has too little room");
    assert_eq!(error.kind(), Kind::NoSpace);
    let below = machine.below(&large);
    assert!((1..2000).contains(&below), "{below} blocks are on the tier");
    let root = machine.fs.root();
    for number in 1..others {
        machine.fs.unlink(&root, number.to_string().as_bytes(), time(1)).expect("unlink");
    }
    assert_eq!(machine.fs.drain(TIER, &Budget::default()).expect("it drains"), drained(2000));
    drop((root, large));
    machine.crash(&[content(0, 2000)]);
}

over_each_layout!(
    what_came_up_before_a_drain_failed_counts,
    many_small_files_leave_a_tier_with_one_flush,
    who_asks_hears_of_a_drain,
    a_drain_that_is_interrupted_at_any_file_goes_on_there,
    a_file_that_does_not_leave_keeps_no_other,
    what_the_other_tier_has_no_room_for_is_brought_up,
    a_large_file_leaves_in_groups,
    a_part_of_a_large_file_that_cannot_be_read_keeps_no_other,
    a_block_that_cannot_be_read_stays_alone,
    blocks_come_up_while_their_neighbours_are_written_all_the_time,
);
