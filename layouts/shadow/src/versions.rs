//! Versions of blocks of files: a mover that copied blocks sees by them whether anything changed meanwhile.
//!
//! A version is the time at which a mover looked, of a clock that goes on with each look. Every change leaves the time
//! in counters: one of its file, of each part of it, or of each block, whatever is the least that covers it. Each has
//! its place by a hash, and may have it together with others: then a move is refused that could have been done, and is
//! tried again. A change costs no more than loads before the next look.

use std::ops::Range;

use nacre_engine::sync::SMALL;
use nacre_engine::sync::atomic::{AtomicU64, Ordering};

use crate::format::NODE_WORDS;
use crate::state::MAX_BLOCKS;

/// Blocks of a part.
pub(crate) const PART: u64 = NODE_WORDS as u64;
/// Blocks of a change that are noted one by one.
const FEW_BLOCKS: u64 = 2 * PART;
/// Parts of a change that are noted one by one.
const FEW_PARTS: u64 = 256;

/// Beside the numbers of blocks, those of parts, for changes of all of their blocks. Low enough to count in the hash.
const WHOLE: u64 = 1 << 40;
const _: () = assert!(MAX_BLOCKS <= WHOLE);

const FILES: usize = if SMALL { 8 } else { 1024 };
const PARTS: usize = if SMALL { 32 } else { 4096 };
const BLOCKS: usize = if SMALL { 256 } else { 32 << 10 };

/// Times of the last changes: 300 KiB of DRAM.
pub(crate) struct Versions {
    clock: AtomicU64,
    files: Box<[AtomicU64]>,
    /// Of parts with a change of few blocks, too.
    parts: Box<[AtomicU64]>,
    blocks: Box<[AtomicU64]>,
}

impl Default for Versions {
    fn default() -> Versions {
        let counters = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        let (files, parts, blocks) = (counters(FILES), counters(PARTS), counters(BLOCKS));
        Versions { clock: AtomicU64::new(0), files, parts, blocks }
    }
}

/// The counter of a part or a block of an inode.
fn counter(counters: &[AtomicU64], inode: u64, number: u64) -> &AtomicU64 {
    // A large odd number spreads both.
    let hash = (inode << 36 ^ inode >> 28 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &counters[(hash >> 40) as usize % counters.len()]
}

fn parts_of(blocks: &Range<u64>) -> Range<u64> {
    blocks.start / PART..blocks.end.div_ceil(PART)
}

impl Versions {
    /// The version of the blocks of an inode that are looked at now. Under its lock.
    pub(crate) fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::AcqRel)
    }

    /// These blocks change. Under the lock of the inode, exclusively.
    pub(crate) fn change(&self, inode: u64, blocks: Range<u64>) {
        let now = self.clock.load(Ordering::Acquire);
        if now == 0 || blocks.is_empty() {
            return;
        }
        let note = |counter: &AtomicU64| {
            // Changes of other inodes leave their times there, too.
            if counter.load(Ordering::Relaxed) < now {
                counter.fetch_max(now, Ordering::AcqRel);
            }
        };
        let (parts, len) = (parts_of(&blocks), blocks.end - blocks.start);
        if parts.end - parts.start > FEW_PARTS {
            return note(counter(&self.files, inode, 0));
        }
        let is_few = len <= FEW_BLOCKS;
        parts.for_each(|part| {
            note(counter(&self.parts, inode, part));
            if !is_few {
                // All of its blocks: more than there are of them.
                note(counter(&self.blocks, inode, WHOLE | part));
            }
        });
        if is_few {
            blocks.for_each(|block| note(counter(&self.blocks, inode, block)));
        }
    }

    /// Whether blocks did not change since a version was theirs. Under the lock of the inode.
    pub(crate) fn is_unchanged(&self, inode: u64, blocks: Range<u64>, version: u64) -> bool {
        let is_old = |counter: &AtomicU64| counter.load(Ordering::Acquire) <= version;
        if !is_old(counter(&self.files, inode, 0)) {
            return false;
        }
        parts_of(&blocks).all(|part| {
            let within = blocks.start.max(part * PART)..blocks.end.min((part + 1) * PART);
            is_old(counter(&self.parts, inode, part))
                || is_old(counter(&self.blocks, inode, WHOLE | part))
                    && within.into_iter().all(|block| is_old(counter(&self.blocks, inode, block)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{PART, Versions};

    #[test]
    fn a_change_is_seen_by_those_who_looked_before_and_by_no_others() {
        let versions = Versions::default();
        versions.change(7, 0..10);
        let before = versions.now();
        assert!(versions.is_unchanged(7, 0..PART, before), "nobody had looked");
        versions.change(7, 5..6);
        assert!(!versions.is_unchanged(7, 0..6, before) && !versions.is_unchanged(7, 5..9, before));
        assert!(versions.is_unchanged(7, 0..5, before) && versions.is_unchanged(7, 6..PART, before));
        let after = versions.now();
        assert!(versions.is_unchanged(7, 0..PART, after));
    }

    #[test]
    fn large_changes_are_seen_in_each_of_their_blocks() {
        for (changed, other) in [
            (PART - 1..PART + 1, 3 * PART),
            (PART..4 * PART, 5 * PART),
            (3 * PART + 1..7 * PART, 2 * PART),
            (9 * PART..u64::MAX, 8 * PART),
        ] {
            let versions = Versions::default();
            let before = versions.now();
            versions.change(7, changed.clone());
            for block in [changed.start, changed.start + 1, changed.end.min(20 * PART) - 1] {
                assert!(!versions.is_unchanged(7, block..block + 1, before), "{block} of {changed:?}");
            }
            let is_of_file = changed.end == u64::MAX;
            assert_eq!(versions.is_unchanged(7, other..other + 1, before), !is_of_file, "{changed:?}");
            assert!(versions.is_unchanged(8, 0..1, before), "another file");
        }
    }

    /// The change of a block was taken for one of the whole part with the same number.
    #[test]
    fn a_block_and_a_part_of_one_number_are_two() {
        let versions = Versions::default();
        let before = versions.now();
        for number in 1..20 {
            versions.change(7, number..number + 1);
            versions.change(7, number * PART..number * PART + 1);
        }
        let is_kept = |part: &u64| versions.is_unchanged(7, part * PART + 100..part * PART + 101, before);
        assert_eq!((1..20).filter(is_kept).count(), 19);
    }

    #[test]
    fn a_look_does_not_hide_a_change_from_an_earlier_one() {
        let versions = Versions::default();
        let first = versions.now();
        versions.change(7, 3..4);
        let second = versions.now();
        versions.change(7, 1..2);
        assert!(!versions.is_unchanged(7, 3..4, first));
        assert!(versions.is_unchanged(7, 3..4, second) && !versions.is_unchanged(7, 1..2, second));
    }
}
