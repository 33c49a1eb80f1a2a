//! Several tiers: one that fails, cannot be read, is missing or drained, and those that are as fast as each other.

use std::io::IoSlice;

use nacre_engine::{
    Block, Data, Durability, Extents, FileBlock, FileKind, Kind, Names, TierState, Timestamp, WriteAt,
};
use nacre_layout_parts::lifecycle::Lifecycle;
use nacre_mover::Budget;

use super::{Fs, Layout, MEMORY, Machine, TIER, new_inode};

fn time(at: u64) -> Timestamp {
    Timestamp::new(1_700_000_000 + at as i64, 0)
}

/// Blocks of a tier that are in use.
fn used<L: Layout>(fs: &Fs<L>, tier: u8) -> u64 {
    fs.layout().tier_space(tier).map(|space| space.blocks - space.free).expect("a tier")
}

/// A tier that took no writes failed whoever needed room, although there was another one; and the mover tried it with the
/// same file again and again.
fn a_tier_that_fails_to_take_writes_leaves_them_to_others<L: Layout>() {
    const FILE: u64 = 1 << 20;
    let (machine, fs, disks) = Machine::<L>::with_disks(16 << 20, &[1, 2]);
    let put = |number: u64| {
        let new = new_inode(FileKind::Regular, time(number));
        let node = fs.create(&fs.root(), format!("{number}").as_bytes(), &new)?;
        let bytes = vec![number as u8; FILE as usize];
        fs.write(&node, WriteAt::Offset(0), &[IoSlice::new(&bytes)], Durability::Now, time(number))
    };
    let keep = |second: u64| fs.tick((1_700_000_000 + second) * 1000, &Budget::default());
    let used = |tier| used(&fs, tier);
    let errors = || fs.tiers().attachment(TIER).expect("it is there").errors;
    keep(0).expect("there is nothing to do");
    disks[0].fail_writes(true);
    (0..40).for_each(|number| assert_eq!(put(number).expect("the other one has room"), 0));
    assert!(used(1) == 0 && used(2) > 20 * 256);
    assert_eq!(errors(), 1, "it was tried once");
    let failing = || fs.tiers().attachment(TIER).expect("it is there").failing;
    assert!(failing().is_some_and(|why| why.contains("asked for")));
    // Not before its time, and then once more.
    let mut next = 40..;
    let mut fill = || {
        while fs.usage() <= fs.threshold() {
            assert_eq!(put(next.next().expect("a number")).expect("there is room"), 0);
        }
    };
    fill();
    keep(100).expect("what is cold moves");
    assert_eq!(errors(), 2);
    fill();
    keep(101).expect("what is cold moves");
    assert_eq!(errors(), 2);
    // With both it is as if there were no room, and nobody is told that a device fails.
    disks[1].fail_writes(true);
    let error = (1000..1040).find_map(|number| put(number).err()).expect("memory is full");
    assert_eq!(error.kind(), Kind::NoSpace);
    assert!(keep(102).is_ok() || fs.status().failure.is_some());
    disks.iter().for_each(|disk| disk.fail_writes(false));
    let before = used(1);
    assert!(keep(400).expect("they work again") > 0);
    assert!(used(1) > before && failing().is_none());
    Lifecycle::unmount(fs.into_layout()).expect("unmount");
    machine.assert_sound();
}

/// Blocks went on to where others could not be read any more; but where there is no other tier that is better than no space.
fn a_tier_that_cannot_be_read_is_filled_last<L: Layout>() {
    let (machine, fs, disks) = Machine::<L>::with_disks(16 << 20, &[1, 2]);
    let mut next = 0..;
    let mut fill_and_keep = |second: u64| {
        while fs.usage() <= fs.threshold() {
            let number = next.next().expect("a number");
            let new = new_inode(FileKind::Regular, time(number));
            let node = fs.create(&fs.root(), format!("{number}").as_bytes(), &new).expect("create");
            let bytes = IoSlice::new(&[5; 1 << 20]);
            fs.write(&node, WriteAt::Offset(0), &[bytes], Durability::Now, time(number)).expect("write");
        }
        fs.tick((1_700_000_000 + second) * 1000, &Budget::default()).expect("it keeps")
    };
    let used = || [1, 2].map(|tier| used(&fs, tier));
    assert!(fill_and_keep(1000) > 0);
    let [first, 0] = used() else { panic!("the fastest is filled first: {:?}", used()) };
    disks[0].poison(500 * 4096, 1);
    fs.tiers().read_blocks(1, Block(500), &mut [0; 4096]).expect_err("it cannot be read");
    assert!(fill_and_keep(1000) > 0);
    let [same, second] = used();
    assert!(same == first && second > 0 && fs.tiers().attachment(1).expect("there").failing.is_some());
    // It is all that there is.
    fs.tiers().detach(2, "it was taken offline");
    assert!(fill_and_keep(1000) > 0 && used()[0] > first);
    Lifecycle::unmount(fs.into_layout()).expect("unmount");
    machine.assert_sound();
}

/// With a tier that nothing is placed on, what was on it was gone from df, as if it had been removed.
fn what_is_on_a_tier_is_counted_while_nothing_is_placed_there<L: Layout>() {
    const FILE: u64 = 1 << 20;
    let (machine, fs) = Machine::<L>::new(true);
    let now = Timestamp::new(1_700_000_000, 0);
    let node = fs.create(&fs.root(), b"file", &new_inode(FileKind::Regular, now)).expect("create");
    let bytes = vec![1; FILE as usize];
    fs.write(&node, WriteAt::Offset(0), &[IoSlice::new(&bytes)], Durability::Now, now).expect("write");
    fs.demote(&node, TIER, FileBlock(0), u64::MAX, false).expect("it moves");
    let before = fs.stat();
    let free = fs.layout().tier_space(TIER).expect("a tier").free;
    let assert_full = |what: &str| {
        let stat = fs.stat();
        assert_eq!(
            (stat.blocks, stat.free, stat.available),
            (before.blocks, before.free - free, before.available - free),
            "{what}"
        );
    };
    fs.set_state(TIER, TierState::Draining).expect("it drains");
    assert_full("draining");
    fs.set_state(TIER, TierState::Active).expect("it is used again");
    assert_eq!(fs.stat(), before);
    fs.tiers().detach(TIER, "it was pulled out");
    assert_full("missing");
    drop(node);
    machine.unmount(fs);
}

/// Of two tiers of one rank, the second got nothing before the first was full.
fn tiers_of_one_rank_take_turns<L: Layout>() {
    const FILE: u64 = 1 << 20;
    let (machine, fs, _) = Machine::<L>::with_disks(MEMORY, &[2, 1, 1]);
    for number in 0..50 {
        let new = new_inode(FileKind::Regular, time(number));
        let node = fs.create(&fs.root(), format!("{number}").as_bytes(), &new).expect("create");
        let bytes = vec![number as u8; FILE as usize];
        fs.write(&node, WriteAt::Offset(0), &[IoSlice::new(&bytes)], Durability::Now, time(number))
            .expect("there is room");
    }
    let moved = fs.tick(1_700_010_000_000, &Budget::default()).expect("blocks move");
    let used = |tier| used(&fs, tier);
    assert!(moved > 1000 && used(1) == 0 && used(2).abs_diff(used(3)) <= 32, "{} and {}", used(2), used(3));
    Lifecycle::unmount(fs.into_layout()).expect("unmount");
    machine.assert_sound();
}

/// A drain that had no room began all the same: nothing new was placed on the tier any more, and all was full.
fn a_drain_that_cannot_end_is_refused_and_one_that_was_begun_says_what_is_missing<L: Layout>() {
    const FILE: u64 = 1 << 20;
    let (machine, fs) = Machine::<L>::new(true);
    let put = |number: u64| {
        let new = new_inode(FileKind::Regular, time(number));
        let node = fs.create(&fs.root(), format!("{number}").as_bytes(), &new)?;
        let bytes = vec![number as u8; FILE as usize];
        fs.write(&node, WriteAt::Offset(0), &[IoSlice::new(&bytes)], Durability::Now, time(number))
    };
    // More bytes than PM has.
    (0..100).for_each(|number| assert_eq!(put(number).expect("there is room"), 0));
    let before = fs.stat();
    let refused = fs.would_drain(TIER).expect_err("it cannot end");
    assert_eq!(refused.kind(), Kind::NoSpace);
    let words = refused.to_string();
    assert!(words.contains("tier 1: ") && words.contains("too little"), "{words}");
    assert_eq!((fs.stat(), fs.layout().tiers()[0].state), (before, TierState::Active), "nothing is changed");

    // A drain that is begun all the same fails. The log says once that a write found no room meanwhile.
    let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = std::sync::Arc::clone(&told);
    fs.tiers().listen(Box::new(move |what| log.lock().unwrap().push(what.to_owned())));
    let error = fs.drain(TIER, &Budget::default()).expect_err("it cannot end");
    assert_eq!(error.kind(), Kind::NoSpace);
    let words = error.to_string();
    assert!(words.contains("MiB are on it") && words.contains("too little"), "{words}");
    let full = (1000..1100).find_map(|number| put(number).err()).expect("it is full");
    assert_eq!(full.kind(), Kind::NoSpace);
    put(2000).expect_err("it is full still");
    let said = |words: &str| told.lock().unwrap().iter().filter(|what| what.contains(words)).count();
    assert_eq!([said("tier 1 is being drained"), said("no space is left, and tier 1 has")], [1, 1]);

    // Taken back, it has room at once.
    fs.set_state(TIER, TierState::Active).expect("it is used again");
    assert_eq!(said("tier 1 is used again"), 1);
    put(3000).expect("there is room again");
    machine.unmount(fs);
}

fn a_drain_of_a_tier_that_is_missing_is_refused_unless_nothing_is_there<L: Layout>() {
    let (machine, fs, _) = Machine::<L>::with_disks(MEMORY, &[1, 2]);
    let node = fs.create(&fs.root(), b"file", &new_inode(FileKind::Regular, time(0))).expect("create");
    fs.write(&node, WriteAt::Offset(0), &[IoSlice::new(&[1; 4096])], Durability::Now, time(0))
        .expect("write");
    fs.demote(&node, TIER, FileBlock(0), u64::MAX, false).expect("it moves");
    (1..=2).for_each(|tier| fs.tiers().detach(tier, "it was taken offline"));
    let error = fs.would_drain(1).expect_err("what is there cannot be read");
    assert_eq!(error.kind(), Kind::DeviceLost);
    assert!(error.to_string().contains("tier 1: it was taken offline"), "{error}");
    fs.would_drain(2).expect("nothing is there");
    drop(node);
    Lifecycle::unmount(fs.into_layout()).expect("unmount");
    machine.assert_sound();
}

over_each_layout!(
    a_tier_that_fails_to_take_writes_leaves_them_to_others,
    a_tier_that_cannot_be_read_is_filled_last,
    what_is_on_a_tier_is_counted_while_nothing_is_placed_there,
    tiers_of_one_rank_take_turns,
    a_drain_that_cannot_end_is_refused_and_one_that_was_begun_says_what_is_missing,
    a_drain_of_a_tier_that_is_missing_is_refused_unless_nothing_is_there,
);
