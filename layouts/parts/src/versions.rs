//! Versions of blocks of files: a mover that copied blocks sees by them whether anything changed meanwhile.
//!
//! A version is the time at which a mover looked, of a clock that goes on with each look. Every change leaves the time
//! with its file, and in a counter of each block, or of each part of the file, whichever covers it. Counters have their
//! places by a hash, so that blocks share them: a move is then refused that could have been done, and its blocks stay.
//! A file that did not change at all is never refused. So files that move together do not refuse each other, nor does
//! a writer of another file refuse them. A relocation is a change: a block that left its place and came back to it may
//! have been copied in between. A change costs no more than loads before the next look.

use std::ops::Range;

use nacre_engine::sync::SMALL;
use nacre_engine::sync::atomic::{AtomicU64, Ordering};
use nacre_engine::{Copied, FileBlock, PlacedExtent};

/// Blocks of a part.
pub const PART: u64 = 512;
/// Blocks of a change that are noted one by one.
const FEW_BLOCKS: u64 = 2 * PART;
/// Parts of a change that are noted one by one.
const FEW_PARTS: u64 = 256;

/// The most blocks of a file.
pub const MOST_BLOCKS: u64 = 1 << 40;
/// Beside the numbers of blocks, those of parts, for changes of all of their blocks. Low enough to count in the hash.
const WHOLE: u64 = MOST_BLOCKS;

const PARTS: usize = if SMALL { 32 } else { 4096 };
const BLOCKS: usize = if SMALL { 256 } else { 32 << 10 };

/// Times of the last changes of all files: 288 KiB of DRAM.
pub struct Versions {
    clock: AtomicU64,
    /// Of parts with a change of few blocks, too.
    parts: Box<[AtomicU64]>,
    blocks: Box<[AtomicU64]>,
}

impl Default for Versions {
    fn default() -> Versions {
        let counters = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        Versions { clock: AtomicU64::new(0), parts: counters(PARTS), blocks: counters(BLOCKS) }
    }
}

/// The times of a file's last changes; kept as long as a caller holds the file. Changed under its lock.
#[derive(Default)]
pub struct LastChange {
    any: AtomicU64,
    /// A change of too many parts to note each.
    large: AtomicU64,
}

/// The versions of one file's blocks. Only under its lock.
#[derive(Clone, Copy)]
pub struct FileVersions<'v> {
    versions: &'v Versions,
    inode: u64,
    last: &'v LastChange,
}

fn parts_of(blocks: &Range<u64>) -> Range<u64> {
    blocks.start / PART..blocks.end.div_ceil(PART)
}

impl Versions {
    /// Those of a file.
    pub fn of<'v>(&'v self, inode: u64, last: &'v LastChange) -> FileVersions<'v> {
        FileVersions { versions: self, inode, last }
    }
}

impl FileVersions<'_> {
    /// The version of the blocks that are looked at now.
    pub fn now(self) -> u64 {
        self.versions.clock.fetch_add(1, Ordering::AcqRel)
    }

    /// These blocks change. Under the lock exclusively.
    pub fn change(self, blocks: Range<u64>) {
        let now = self.versions.clock.load(Ordering::Acquire);
        if now == 0 || blocks.is_empty() {
            return;
        }
        self.last.any.store(now, Ordering::Relaxed);
        let note = |counter: &AtomicU64| {
            // Changes of other files leave their times there, too.
            if counter.load(Ordering::Relaxed) < now {
                counter.fetch_max(now, Ordering::AcqRel);
            }
        };
        let (parts, len) = (parts_of(&blocks), blocks.end - blocks.start);
        if parts.end - parts.start > FEW_PARTS {
            self.last.large.store(now, Ordering::Relaxed);
            return;
        }
        let is_few = len <= FEW_BLOCKS;
        parts.for_each(|part| {
            note(self.counter(&self.versions.parts, part));
            if !is_few {
                // All of its blocks: more than there are of them.
                note(self.counter(&self.versions.blocks, WHOLE | part));
            }
        });
        if is_few {
            blocks.for_each(|block| note(self.counter(&self.versions.blocks, block)));
        }
    }

    /// Whether blocks did not change since a version was theirs.
    pub fn is_unchanged(self, blocks: Range<u64>, version: u64) -> bool {
        let is_old = |counter: &AtomicU64| counter.load(Ordering::Acquire) <= version;
        if is_old(&self.last.any) {
            return true;
        }
        if !is_old(&self.last.large) {
            return false;
        }
        let Versions { parts: of_parts, blocks: of_blocks, .. } = self.versions;
        parts_of(&blocks).all(|part| {
            let within = blocks.start.max(part * PART)..blocks.end.min((part + 1) * PART);
            is_old(self.counter(of_parts, part))
                || is_old(self.counter(of_blocks, WHOLE | part))
                    && within.into_iter().all(|block| is_old(self.counter(of_blocks, block)))
        })
    }

    /// Copied blocks that did not change since their version was theirs, in as few pieces as can be, and the others.
    pub fn unchanged(self, copied: &Copied) -> (Vec<Copied>, Vec<Copied>) {
        let PlacedExtent { start: FileBlock(start), len, .. } = copied.from.extent;
        let is_unchanged = |blocks| self.is_unchanged(blocks, copied.from.version);
        if len == 0 || is_unchanged(start..start + len) {
            return (vec![*copied], Vec::new());
        }
        let (mut unchanged, mut changed) = (Vec::new(), Vec::new());
        let mut at = 0;
        while at < len {
            let is_same = is_unchanged(start + at..start + at + 1);
            let other = |block: &u64| is_unchanged(start + block..start + block + 1) != is_same;
            let end = (at + 1..len).find(other).unwrap_or(len);
            let list = if is_same { &mut unchanged } else { &mut changed };
            list.push(part_of(copied, at, end - at));
            at = end;
        }
        (unchanged, changed)
    }

    /// The counter of a part or a block.
    fn counter(self, counters: &[AtomicU64], number: u64) -> &AtomicU64 {
        // A large odd number spreads both. Without the first product, all of one file's part 0 was a block of another.
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let hash = (self.inode.wrapping_mul(ODD) ^ number).wrapping_mul(ODD);
        &counters[(hash >> 40) as usize % counters.len()]
    }
}

/// So many of the copied blocks, from the one with number `skip` on.
pub fn part_of(copied: &Copied, skip: u64, len: u64) -> Copied {
    Copied { from: copied.from.part(skip, len), block: copied.block.plus(skip), ..*copied }
}

#[cfg(test)]
mod tests {
    use nacre_engine::{Block, Copied, FileBlock, Movable, Place, PlacedExtent};

    use super::{LastChange, PART, Versions};

    #[test]
    fn a_change_is_seen_by_those_who_looked_before_and_by_no_others() {
        let (versions, last) = (Versions::default(), LastChange::default());
        let file = versions.of(7, &last);
        file.change(0..10);
        let before = file.now();
        assert!(file.is_unchanged(0..PART, before), "nobody had looked");
        file.change(5..6);
        assert!(!file.is_unchanged(0..6, before) && !file.is_unchanged(5..9, before));
        assert!(file.is_unchanged(0..5, before) && file.is_unchanged(6..PART, before));
        let after = file.now();
        assert!(file.is_unchanged(0..PART, after));
    }

    #[test]
    fn large_changes_are_seen_in_each_of_their_blocks() {
        for (changed, other) in [
            (PART - 1..PART + 1, 3 * PART),
            (PART..4 * PART, 5 * PART),
            (3 * PART + 1..7 * PART, 2 * PART),
            (9 * PART..u64::MAX, 8 * PART),
        ] {
            let (versions, last, others) =
                (Versions::default(), LastChange::default(), LastChange::default());
            let (file, another) = (versions.of(7, &last), versions.of(8, &others));
            let before = file.now();
            file.change(changed.clone());
            for block in [changed.start, changed.start + 1, changed.end.min(20 * PART) - 1] {
                assert!(!file.is_unchanged(block..block + 1, before), "{block} of {changed:?}");
            }
            let is_of_file = changed.end == u64::MAX;
            assert_eq!(file.is_unchanged(other..other + 1, before), !is_of_file, "{changed:?}");
            assert!(another.is_unchanged(0..1, before), "another file");
        }
    }

    /// The change of a block was taken for one of the whole part with the same number.
    #[test]
    fn a_block_and_a_part_of_one_number_are_two() {
        let (versions, last) = (Versions::default(), LastChange::default());
        let file = versions.of(7, &last);
        let before = file.now();
        for number in 1..20 {
            file.change(number..number + 1);
            file.change(number * PART..number * PART + 1);
        }
        let is_kept = |part: &u64| file.is_unchanged(part * PART + 100..part * PART + 101, before);
        assert_eq!((1..20).filter(is_kept).count(), 19);
    }

    /// Counters that files share refused 462 of 5,000 files that moved together.
    #[test]
    fn files_that_move_together_do_not_refuse_each_other() {
        let versions = Versions::default();
        let all: Vec<LastChange> = (0..20_000).map(|_| LastChange::default()).collect();
        let files = || all.iter().enumerate().map(|(number, last)| versions.of(number as u64, last));
        let looked: Vec<u64> = files().map(super::FileVersions::now).collect();
        for (file, version) in files().zip(looked) {
            assert!(file.is_unchanged(0..3, version), "it did not change");
            file.change(0..3);
            assert!(!file.is_unchanged(0..3, version), "it is elsewhere now");
        }
    }

    #[test]
    fn a_change_refuses_its_block_while_other_files_change() {
        let versions = Versions::default();
        let all: Vec<LastChange> = (0..64).map(|_| LastChange::default()).collect();
        let files = || all.iter().enumerate().map(|(number, last)| versions.of(number as u64, last));
        let version = files().next().unwrap().now();
        files().for_each(|file| file.change(0..1));
        for file in files() {
            assert!(!file.is_unchanged(0..1, version) && file.is_unchanged(1..3, version));
        }
    }

    #[test]
    fn what_did_not_change_is_found_in_pieces() {
        let (versions, last) = (Versions::default(), LastChange::default());
        let file = versions.of(9, &last);
        let version = file.now();
        let extent = PlacedExtent { start: FileBlock(100), len: 50, place: Place::Pm(Block(1000)) };
        let copied = Copied { from: Movable { extent, version }, tier: 3, block: Block(7) };
        assert_eq!(file.unchanged(&copied), (vec![copied], vec![]));
        file.change(100..101);
        file.change(110..112);
        let part =
            |skip: u64, len| Copied { from: copied.from.part(skip, len), block: Block(7 + skip), ..copied };
        let (unchanged, changed) = file.unchanged(&copied);
        assert_eq!(unchanged, [part(1, 9), part(12, 38)]);
        assert_eq!(changed, [part(0, 1), part(10, 2)]);
        assert_eq!(unchanged[1].from.extent.place, Place::Pm(Block(1012)));
        file.change(0..u64::MAX);
        assert_eq!(file.unchanged(&copied), (vec![], vec![copied]));
    }

    #[test]
    fn a_look_does_not_hide_a_change_from_an_earlier_one() {
        let (versions, last) = (Versions::default(), LastChange::default());
        let file = versions.of(7, &last);
        let first = file.now();
        file.change(3..4);
        let second = file.now();
        file.change(1..2);
        assert!(!file.is_unchanged(3..4, first));
        assert!(file.is_unchanged(3..4, second) && !file.is_unchanged(1..2, second));
    }
}
