//! What came to a tier first stayed there, however cold it became, and what was moved down later went past it to a slower one.

use std::cell::Cell;
use std::collections::BTreeMap;

use nacre_engine::{BLOCK_SIZE, Data, Extents, FileBlock, InodeId, Names, Place, XattrMode};
use nacre_mover::{Budget, Cause, MoverOptions, PIN, Phase, Queued, Way};

use super::machine::{Layout, Machine, Node, OTHER, TIER, content, time};

/// All files are old by then, in milliseconds.
const LATER_MS: u64 = 1_700_000_000_000 + 10_000_000;
/// Bytes of the first tier.
const SMALL: u64 = 4 << 20;
/// Blocks of each file.
const BLOCKS: usize = 8;

fn usual() -> MoverOptions {
    MoverOptions { balance: false, ..MoverOptions::default() }
}

/// Files of which the first tier is nearly full, with a slower one beside it.
fn full<L: Layout>(options: MoverOptions) -> (Machine<L>, Vec<Node<L>>) {
    let machine = Machine::<L>::with(&[SMALL, 64 << 20], options);
    let files = machine.files([BLOCKS; 120]);
    assert!(machine.fs.demote_files(&files, TIER, false).iter().all(Result::is_ok));
    assert!(share(&machine) >= 93);
    (machine, files)
}

/// Percent of the first tier that are in use.
fn share<L: Layout>(machine: &Machine<L>) -> u64 {
    machine.used(TIER) * 100 / machine.fs.layout().tier_space(TIER).expect("a tier").blocks
}

/// How many blocks of a file are on each tier.
fn places<L: Layout>(machine: &Machine<L>, node: &Node<L>) -> BTreeMap<u8, u64> {
    let mut places = BTreeMap::new();
    for extent in machine.fs.resolve(node, FileBlock(0), u64::MAX).expect("resolve") {
        let Place::Tier { tier, .. } = extent.place else { panic!("{extent:?}") };
        *places.entry(tier).or_default() += extent.len;
    }
    places
}

fn descending<L: Layout>(machine: &Machine<L>) -> Vec<Queued> {
    let first = machine.fs.status().queue.first;
    first.into_iter().filter(|queued| queued.way == Way::Descended).collect()
}

fn what_was_used_longest_ago_goes_to_the_slower_tier_until_there_is_room<L: Layout>() {
    let (machine, files) = full::<L>(usual());
    // Those that were written first were read later than all others were written.
    for node in &files[..10] {
        // A block of many: it is the file that is used.
        machine.fs.read(node, BLOCK_SIZE, &mut [0; 100], Some(time(9980))).expect("read");
    }
    machine.fs.set_xattr(&files[12], PIN, b"1", XattrMode::Set, None, time(12)).expect("set");
    let flushes = machine.flushes(OTHER);
    machine.fs.tick(LATER_MS, &Budget::default()).expect("blocks move");
    let on = |number: usize| places(&machine, &files[number]);
    let all = BLOCKS as u64;
    let gone: Vec<usize> = (0..120).filter(|number| on(*number) == BTreeMap::from([(OTHER, all)])).collect();
    // One more than it takes to be at the threshold may be enough.
    let expected: Vec<usize> = (10..10 + gone.len() + 1).filter(|number| *number != 12).collect();
    assert!(gone == expected && gone.len() >= 4, "{gone:?}");
    assert!((0..120).all(|number| gone.contains(&number) || on(number) == BTreeMap::from([(TIER, all)])));
    assert!((89..=90).contains(&share(&machine)), "{}", share(&machine));
    let status = machine.fs.status();
    assert_eq!(status.descended, gone.len() as u64 * all * BLOCK_SIZE);
    assert!(status.is_idle && status.doing.is_none());
    assert_eq!(machine.flushes(OTHER), flushes + 1, "they are one batch");
    // There is nothing to do any more.
    machine.fs.tick(LATER_MS + 60_000, &Budget::default()).expect("it looks");
    assert_eq!((machine.fs.status().descended, machine.flushes(OTHER)), (status.descended, flushes + 1));
    let expected: Vec<_> = (0..120).map(|number| content(number, BLOCKS)).collect();
    drop(files);
    machine.crash(&expected);
}

fn it_waits_for_what_keeps_the_mover_and_says_so<L: Layout>() {
    let (machine, files) = full::<L>(MoverOptions { tier_threshold: 100, ..usual() });
    let keep = |now_ms| machine.fs.tick(now_ms, &Budget::default()).expect("it looks");
    keep(LATER_MS);
    assert_eq!((machine.fs.status().descended, descending(&machine)), (0, Vec::new()), "it never does");
    machine.fs.change(&usual());
    machine.fs.pause(true);
    assert!(machine.fs.status().is_idle);
    keep(LATER_MS);
    machine.fs.pause(false);
    assert!(!machine.fs.status().is_idle, "it will look for some");
    // Until it has looked for them, and not longer.
    for most in 1..100 {
        let asked = Cell::new(0);
        let is_over = || asked.replace(asked.get() + 1) >= most;
        machine.fs.tick(LATER_MS, &Budget::default().unless(&is_over)).expect("it looks");
        if !descending(&machine).is_empty() {
            break;
        }
    }
    assert_eq!(machine.fs.status().descended, 0);
    let bytes = BLOCKS as u64 * BLOCK_SIZE;
    let queued = |node: &Node<L>, cause| {
        let InodeId { number, .. } = machine.fs.id(node);
        Queued { inode: number, bytes, way: Way::Descended, cause }
    };
    let eight = |cause| -> Vec<Queued> { files[..8].iter().map(|node| queued(node, cause)).collect() };
    assert_eq!(descending(&machine), eight(Cause::Turn));
    machine.fs.pause(true);
    assert_eq!(descending(&machine), eight(Cause::Mover(Phase::Paused)));
    machine.fs.pause(false);
    let hours = "02:00-03:00".parse().expect("hours");
    machine.fs.change(&MoverOptions { hours, ..usual() });
    keep(LATER_MS);
    assert_eq!(descending(&machine), eight(Cause::Mover(Phase::OutsideHours)));
    machine.fs.change(&MoverOptions { rate: Some(4096), ..usual() });
    keep(LATER_MS + 1000);
    let moved = machine.fs.status().descended;
    assert!(moved > 0 && moved <= 2 * bytes, "{moved}");
    machine.fs.change(&usual());
    keep(LATER_MS + 2000);
    assert!((89..=90).contains(&share(&machine)), "{}", share(&machine));
}

/// It began anew with each look that was to end early, or forgot what it had not got to.
fn a_look_that_ends_at_any_question_is_gone_on_with<L: Layout>() {
    for group in [16, 4096] {
        let (machine, files) = full::<L>(MoverOptions { group, ..usual() });
        look_until_there_is_room(&machine);
        let on = |number: usize| places(&machine, &files[number]).into_keys().collect::<Vec<_>>();
        assert!([0, 1, 2, 119].map(on) == [vec![OTHER], vec![OTHER], vec![OTHER], vec![TIER]]);
        let expected: Vec<_> = (0..120).map(|number| content(number, BLOCKS)).collect();
        drop(files);
        machine.crash(&expected);
    }
}

/// In looks of which each ends at one of its first questions; all are at one time.
fn look_until_there_is_room<L: Layout>(machine: &Machine<L>) {
    let mut looks = 0;
    while share(machine) > 90 || machine.fs.status().descended == 0 {
        let asked = Cell::new(0);
        let is_over = || asked.replace(asked.get() + 1) >= 5 + looks % 7;
        machine.fs.tick(LATER_MS, &Budget::default().unless(&is_over)).expect("it looks");
        looks += 1;
        assert!(looks < 100, "{} blocks moved", machine.used(OTHER));
    }
}

fn what_was_used_lately_stays_until_it_was_not<L: Layout>() {
    let machine = Machine::<L>::with(&[SMALL, 64 << 20], usual());
    let files = machine.files([BLOCKS; 120]);
    assert!(machine.fs.demote_files(&files, TIER, false).iter().all(Result::is_ok));
    // The last of them is 119 seconds younger than the first.
    let now_ms = 1_700_000_000_000 + 20_000;
    machine.fs.tick(now_ms, &Budget::default()).expect("it looks");
    assert_eq!(machine.fs.status().descended, 0);
    let queue = descending(&machine);
    assert_eq!(queue.first().map(|first| first.cause), Some(Cause::Young(10_001)), "{queue:?}");
    machine.fs.tick(now_ms + 13_000, &Budget::default()).expect("blocks move");
    let gone = (0..120).filter(|number| places(&machine, &files[*number]).contains_key(&OTHER)).count();
    assert_eq!(gone, 3, "those that are older than thirty seconds");
    // One that was used since is passed by.
    machine.read_at(&files[3], Some(time(200)));
    machine.fs.tick(now_ms + 15_000, &Budget::default()).expect("blocks move");
    let on = |number: usize| places(&machine, &files[number]).into_keys().collect::<Vec<_>>();
    assert_eq!([2, 3, 4, 5].map(on), [vec![OTHER], vec![TIER], vec![OTHER], vec![TIER]]);
}

fn a_large_file_goes_group_by_group_and_one_that_cannot_keeps_no_other<L: Layout>() {
    let machine = Machine::<L>::with(&[SMALL, 64 << 20], MoverOptions { group: 16, ..usual() });
    let sizes = [200, 40, 700];
    let files = machine.files(sizes);
    assert!(machine.fs.demote_files(&files, TIER, false).iter().all(Result::is_ok));
    // A block of the first one cannot be read.
    let place = machine.fs.resolve(&files[0], FileBlock(0), 1).expect("resolve")[0].place;
    let Place::Tier { block, .. } = place else { panic!("{place:?}") };
    machine.disks[0].unreadable.lock().unwrap().push(block.0 + 1);
    machine.fs.change(&MoverOptions { group: 16, tier_threshold: 50, ..usual() });
    let error = machine.fs.tick(LATER_MS, &Budget::default()).expect_err("a block cannot be read");
    assert!(error.to_string().contains("media"), "{error}");
    machine.fs.tick(LATER_MS, &Budget::default()).expect("the disk is left alone for a while");
    assert_eq!(machine.fs.status().descended, 0);
    machine.fs.tick(LATER_MS + 10_000, &Budget::default()).expect("the others move");
    let gone = |number: usize| places(&machine, &files[number]).get(&OTHER).copied().unwrap_or(0);
    assert_eq!(gone(1), 40);
    assert!((300..700).contains(&gone(2)) && gone(0) < 200, "{} {}", gone(2), gone(0));
    assert!((48..=50).contains(&share(&machine)), "{}", share(&machine));
    machine.disks[0].unreadable.lock().unwrap().clear();
    let expected: Vec<_> = sizes.into_iter().enumerate().map(|(number, len)| content(number, len)).collect();
    drop(files);
    machine.crash(&expected);
}

/// One that had gone in parts, and came back, was looked at from where the last of these had begun.
fn a_large_file_that_comes_back_goes_down_as_a_whole_again<L: Layout>() {
    let options = MoverOptions { group: 16, tier_threshold: 50, ..usual() };
    let machine = Machine::<L>::with(&[SMALL, 64 << 20], options);
    let files = machine.files([300, 510]);
    for turn in 0..3 {
        assert!(machine.fs.demote_files(&files, TIER, false).iter().all(Result::is_ok));
        let now_s = 10_000 + turn * 100;
        machine.fs.read(&files[1], 0, &mut [0; 100], Some(time(now_s as usize))).expect("read");
        machine.fs.tick((1_700_000_000 + now_s) * 1000, &Budget::default()).expect("blocks move");
        let gone = [0, 1].map(|number: usize| places(&machine, &files[number]));
        assert_eq!(gone, [BTreeMap::from([(OTHER, 300)]), BTreeMap::from([(TIER, 510)])], "turn {turn}");
    }
}

/// Where no slower one has room, or none is slower, all stays where it is.
fn it_does_not_go_where_it_is_as_full<L: Layout>() {
    let machine = Machine::<L>::with(&[SMALL, SMALL], usual());
    let files = machine.files([BLOCKS; 240]);
    let (first, second) = files.split_at(120);
    for (files, tier) in [(first, TIER), (second, OTHER)] {
        assert!(machine.fs.demote_files(files, tier, false).iter().all(Result::is_ok));
    }
    machine.fs.tick(LATER_MS, &Budget::default()).expect("it looks");
    assert_eq!(machine.fs.status().descended, 0);
    assert!(machine.fs.status().is_idle);
}

over_each_layout!(
    what_was_used_longest_ago_goes_to_the_slower_tier_until_there_is_room,
    it_waits_for_what_keeps_the_mover_and_says_so,
    a_look_that_ends_at_any_question_is_gone_on_with,
    what_was_used_lately_stays_until_it_was_not,
    a_large_file_goes_group_by_group_and_one_that_cannot_keeps_no_other,
    a_large_file_that_comes_back_goes_down_as_a_whole_again,
    it_does_not_go_where_it_is_as_full,
);
