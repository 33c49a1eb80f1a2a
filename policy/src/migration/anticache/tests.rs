use std::ops::Range;

use super::list::List;
use super::{AntiCache, Bounds, MARGIN, MOST_TOUCHED, Stage};
use crate::migration::{Access, AccessKind, Chosen, PAUSE_MS};
use crate::temperature::Span;

const LARGE: Bounds = Bounds { blocks: 10_000, runs: 100, files: 100 };

fn chosen(file: u32, spans: &[(u64, u64)]) -> Chosen<u32> {
    Chosen { file, spans: spans.iter().map(|&(start, len)| Span { start, len }).collect() }
}

fn access(file: u32, start: u64, blocks: u64) -> Access<u32> {
    let kind = AccessKind::Written;
    Access { file, kind, start, blocks, size: start.saturating_add(blocks), modified_ms: 0, at_ms: 0 }
}

/// Makes a round of a walk over files, of which each has a time of modification and one run of blocks on PM. Whether it
/// was worth it.
fn walk(list: &mut AntiCache<u32>, files: &[(u64, u32, Range<u64>)], now_ms: u64, is_needed: bool) -> bool {
    if !list.begin_walk(now_ms, is_needed) {
        return false;
    }
    for &(modified_ms, file, _) in files {
        list.found_file(modified_ms, file);
    }
    list.end_names(now_ms);
    while let Some((file, from)) = list.next_look() {
        assert_eq!(from, 0, "each file is looked at once");
        let blocks = files.iter().find(|found| found.1 == file).map(|found| found.2.clone());
        list.looked(&[blocks.expect("a file of these")], None, now_ms);
    }
    true
}

#[test]
fn the_block_that_was_not_used_for_longest_goes_first() {
    let mut list = AntiCache::new(LARGE);
    list.observe(&access(1, 0, 4));
    list.observe(&access(2, 7, 2));
    list.touch(1, 1);
    assert_eq!(list.coldest(2), [chosen(1, &[(0, 1), (2, 1)])]);
    assert_eq!(list.coldest(2), [chosen(1, &[(3, 1)]), chosen(2, &[(7, 1)])]);
    assert_eq!(list.coldest(9), [chosen(1, &[(1, 1)]), chosen(2, &[(8, 1)])]);
    assert!(list.is_empty() && list.coldest(1).is_empty());
}

#[test]
fn what_a_walk_finds_is_older_than_what_was_used() {
    let mut list = AntiCache::new(LARGE);
    list.touch(1, 5);
    assert!(walk(&mut list, &[(10, 2, 0..2), (5, 1, 4..6), (20, 3, 7..8)], 0, true));
    assert_eq!((list.len(), list.stage(), list.is_incomplete()), (5, Stage::Rest, false));
    list.touch(2, 0);
    assert_eq!(list.coldest(1), [chosen(1, &[(4, 1)])]);
    assert_eq!(list.coldest(9), [chosen(2, &[(1, 1)]), chosen(3, &[(7, 1)])], "and not those that were used");
    assert_eq!(list.coldest(9), [chosen(1, &[(5, 1)]), chosen(2, &[(0, 1)])]);
    assert!(list.is_empty());
    assert_eq!(list.len(), 0);
}

#[test]
fn what_stays_is_the_oldest_again_unless_it_was_used() {
    let mut list = AntiCache::new(LARGE);
    list.observe(&access(1, 0, 4));
    let taken = list.coldest(3);
    assert_eq!(taken, [chosen(1, &[(0, 3)])]);
    list.put_back(&taken[0]);
    list.touch(1, 1);
    assert_eq!(list.coldest(9), [chosen(1, &[(0, 1), (2, 1)])]);
    assert_eq!(list.coldest(9), [chosen(1, &[(1, 1), (3, 1)])]);
    // A block that comes back twice is chosen once.
    list.put_back(&chosen(1, &[(0, 4), (9, 1)]));
    list.put_back(&chosen(1, &[(2, 4)]));
    assert_eq!(list.coldest(99), [chosen(1, &[(0, 6), (9, 1)])]);
    assert!(list.is_empty());
}

#[test]
fn the_list_is_bounded_and_says_that_it_does_not_know_all() {
    let mut list = AntiCache::new(Bounds { blocks: 3, runs: 2, files: 2 });
    assert!(list.is_incomplete(), "nothing was walked over");
    assert!(walk(&mut list, &[], 0, true));
    assert!(!list.is_incomplete());
    list.observe(&access(1, 0, 3));
    assert!(!list.is_incomplete() && !list.is_short(3));
    list.touch(1, 3);
    assert!(list.is_incomplete() && list.is_short(4) && list.len() == 3);
    assert_eq!(list.coldest(9), [chosen(1, &[(1, 3)])]);
    // No more runs wait than have room.
    list.put_back(&chosen(2, &[(0, 1), (4, 1), (8, 1)]));
    assert_eq!(list.coldest(9), [chosen(2, &[(4, 1), (8, 1)])]);
    let mut list = AntiCache::new(LARGE);
    list.observe(&access(1, 0, u64::MAX));
    assert_eq!(list.len(), MOST_TOUCHED);
}

#[test]
fn a_walk_over_many_files_goes_in_rounds_from_the_oldest_on() {
    let mut list = AntiCache::new(Bounds { files: 2, ..LARGE });
    let files = [(50, 1, 0..1), (10, 2, 0..1), (40, 3, 0..1), (20, 4, 0..1), (30, 5, 0..1)];
    assert!(walk(&mut list, &files, 0, true));
    assert_eq!(list.coldest(9), [chosen(2, &[(0, 1)]), chosen(4, &[(0, 1)])]);
    assert!(list.is_incomplete(), "three were passed by");
    assert!(walk(&mut list, &files, 0, false), "the next round needs no pause");
    assert_eq!(list.coldest(9), [chosen(3, &[(0, 1)]), chosen(5, &[(0, 1)])]);
    assert!(walk(&mut list, &files, 0, false));
    assert_eq!(list.coldest(9), [chosen(1, &[(0, 1)])]);
    assert!(!list.is_incomplete() && !list.begin_walk(0, true));
}

#[test]
fn a_file_with_two_names_is_found_once() {
    let mut list = AntiCache::new(LARGE);
    assert!(walk(&mut list, &[(1, 7, 0..2), (1, 7, 0..2)], 0, true));
    assert_eq!((list.len(), list.coldest(9)), (2, vec![chosen(7, &[(0, 2)])]));
}

/// The walk waits while enough blocks are known that it found.
#[test]
fn no_more_runs_are_found_than_have_room() {
    let mut list = AntiCache::new(Bounds { runs: 2, ..LARGE });
    assert!(walk(&mut list, &[(1, 1, 0..1), (2, 2, 0..1), (3, 3, 0..1), (4, 4, 0..1)], 0, true));
    assert_eq!((list.stage(), list.len()), (Stage::Blocks, 2));
    assert_eq!(list.coldest(1), [chosen(1, &[(0, 1)])]);
    assert_eq!(list.next_look(), Some((3, 0)));
    // A large file is looked at in parts, and what lies together is one run.
    list.looked(&[0..2, 3..4], Some(4), 0);
    assert_eq!(list.next_look(), None);
    assert_eq!(list.coldest(3), [chosen(2, &[(0, 1)]), chosen(3, &[(0, 2)])]);
    assert_eq!(list.next_look(), Some((3, 4)));
    list.looked(std::slice::from_ref(&(4..6)), None, 0);
    assert_eq!(list.coldest(9), [chosen(3, &[(3, 3)])]);
    list.looked(&[], None, 0);
    assert_eq!((list.stage(), list.next_look(), list.is_incomplete()), (Stage::Rest, None, false));
}

#[test]
fn a_walk_that_finds_nothing_is_not_made_again_at_once() {
    let mut list = AntiCache::new(LARGE);
    assert!(walk(&mut list, &[], 0, false));
    assert!(!list.begin_walk(PAUSE_MS, true), "nothing was missed");
    list.miss();
    assert!(!list.begin_walk(PAUSE_MS - 1, true), "the last one found nothing");
    assert!(walk(&mut list, &[(1, 1, 0..1)], PAUSE_MS, true));
    list.miss();
    assert!(!list.begin_walk(PAUSE_MS, false) && list.begin_walk(PAUSE_MS, true), "this one found something");
    assert!(!list.begin_walk(10 * PAUSE_MS, true), "one goes on");
    list.miss();
    list.end_names(2 * PAUSE_MS);
    assert!(list.is_incomplete(), "blocks that it missed may be behind it");
    assert!(walk(&mut list, &[], 3 * PAUSE_MS, true));
    assert!(!list.begin_walk(13 * PAUSE_MS - 1, true) && list.begin_walk(13 * PAUSE_MS, false));
}

#[test]
fn some_unknown_blocks_are_no_reason_for_a_walk() {
    let mut list = AntiCache::new(LARGE);
    assert!(!list.is_short(MARGIN) && list.is_short(2 * MARGIN));
    (0..MARGIN).for_each(|block| list.touch(1, block));
    assert!(!list.is_short(2 * MARGIN) && list.is_short(3 * MARGIN));
    assert!(walk(&mut list, &[(1, 2, 0..1)], 0, false));
    assert!(!list.is_short(3 * MARGIN), "blocks that it found did not leave yet");
}

/// A block took about 100 bytes of DRAM, and the list was short for that.
#[test]
fn a_block_takes_few_bytes() {
    let limit = 7 << 12;
    let mut list: List<(u64, u32, u32)> = List::new(limit);
    for block in 0..4 * limit as u64 {
        let file = (block % 97, 1, 0);
        assert_eq!(list.touch(file, block), block < limit as u64);
    }
    assert_eq!(list.len(), limit);
    assert!(list.heap_bytes() <= 44 * limit, "{} bytes for {limit} blocks", list.heap_bytes());
    for block in 3 * limit as u64..4 * limit as u64 {
        assert!(list.has((block % 97, 1, 0), block));
        assert_eq!(list.pop_oldest(), Some(((block % 97, 1, 0), block)));
    }
    assert!(list.pop_oldest().is_none() && list.len() == 0);
}
