//! A file's blocks by number, in order. A lookup is one step below a small tree, for dense and sparse files alike.
//!
//! Groups of 64 neighbours form a tree. A group has one bit for each block that is present, and keeps these in a row
//! without gaps. The place of a block in the row is the number of bits before its own.

use std::collections::BTreeMap;
use std::ops::Range;

const GROUP: u64 = 64;

/// An ordered map of the blocks of a file.
pub(crate) struct Index<E> {
    groups: BTreeMap<u64, Group<E>>,
    len: usize,
}

struct Group<E> {
    there: u64,
    entries: Vec<E>,
}

impl<E> Default for Index<E> {
    fn default() -> Index<E> {
        Index { groups: BTreeMap::new(), len: 0 }
    }
}

/// The bits `from..to`; none for an empty range.
fn bits(from: u64, to: u64) -> u64 {
    if from < to { (u64::MAX >> (GROUP - (to - from))) << from } else { 0 }
}

/// The positions of the bits of a set, in order.
fn positions(mut set: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let first = u64::from(set.trailing_zeros());
        // Clears the lowest bit.
        set &= set.wrapping_sub(1);
        (first < GROUP).then_some(first)
    })
}

impl<E> Group<E> {
    fn place(&self, bit: u64) -> usize {
        (self.there & bits(0, bit)).count_ones() as usize
    }

    fn has(&self, bit: u64) -> bool {
        self.there >> bit & 1 == 1
    }

    /// The blocks of a range that are present, as bits, in a group that begins with the block `base`; and their
    /// places.
    fn part(&self, base: u64, range: &Range<u64>) -> (u64, Range<usize>) {
        let within = |block: u64| block.saturating_sub(base).min(GROUP);
        let set = self.there & bits(within(range.start), within(range.end));
        let first = self.place(within(range.start).min(GROUP - 1));
        (set, first..first + set.count_ones() as usize)
    }
}

/// The groups that overlap a range.
fn groups(range: &Range<u64>) -> std::ops::RangeInclusive<u64> {
    let (first, last) = (range.start / GROUP, range.end.saturating_sub(1) / GROUP);
    first..=last.max(first)
}

impl<E> Index<E> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn get(&self, block: u64) -> Option<&E> {
        let group = self.groups.get(&(block / GROUP))?;
        if group.has(block % GROUP) { group.entries.get(group.place(block % GROUP)) } else { None }
    }

    pub(crate) fn get_mut(&mut self, block: u64) -> Option<&mut E> {
        let group = self.groups.get_mut(&(block / GROUP))?;
        if group.has(block % GROUP) {
            let place = group.place(block % GROUP);
            group.entries.get_mut(place)
        } else {
            None
        }
    }

    /// Inserts an entry. The block must be absent.
    pub(crate) fn insert(&mut self, block: u64, entry: E) {
        let empty = || Group { there: 0, entries: Vec::new() };
        let group = self.groups.entry(block / GROUP).or_insert_with(empty);
        debug_assert!(!group.has(block % GROUP), "block {block} is there");
        group.entries.insert(group.place(block % GROUP), entry);
        group.there |= 1 << (block % GROUP);
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, block: u64) -> Option<E> {
        let group = self.groups.get_mut(&(block / GROUP))?;
        if !group.has(block % GROUP) {
            return None;
        }
        let entry = group.entries.remove(group.place(block % GROUP));
        group.there &= !(1 << (block % GROUP));
        if group.there == 0 {
            self.groups.remove(&(block / GROUP));
        }
        self.len -= 1;
        Some(entry)
    }

    /// The entries of a range, in the order of the file.
    pub(crate) fn range(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &E)> {
        self.groups.range(groups(&range)).flat_map(move |(number, group)| {
            let base = number * GROUP;
            let (set, places) = group.part(base, &range);
            positions(set).map(move |bit| base + bit).zip(&group.entries[places])
        })
    }

    /// The same, mutable.
    pub(crate) fn range_mut(&mut self, range: Range<u64>) -> impl Iterator<Item = (u64, &mut E)> {
        self.groups.range_mut(groups(&range)).flat_map(move |(number, group)| {
            let base = number * GROUP;
            let (set, places) = group.part(base, &range);
            positions(set).map(move |bit| base + bit).zip(&mut group.entries[places])
        })
    }

    /// The last entry of a range.
    pub(crate) fn last_of(&self, range: Range<u64>) -> Option<&E> {
        self.groups.range(groups(&range)).rev().find_map(|(number, group)| {
            let (_, places) = group.part(number * GROUP, &range);
            group.entries[places].last()
        })
    }

    /// The first block.
    pub(crate) fn first(&self) -> Option<u64> {
        let (number, group) = self.groups.first_key_value()?;
        Some(number * GROUP + u64::from(group.there.trailing_zeros()))
    }

    /// The blocks, in order.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = u64> {
        self.groups
            .iter()
            .flat_map(|(number, group)| positions(group.there).map(move |bit| number * GROUP + bit))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &E> {
        self.groups.values().flat_map(|group| &group.entries)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut E> {
        self.groups.values_mut().flat_map(|group| &mut group.entries)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Index, bits, positions};

    #[test]
    fn sets_of_bits() {
        assert_eq!(
            (bits(0, 64), bits(0, 1), bits(63, 64), bits(3, 3), bits(5, 2)),
            (u64::MAX, 1, 1 << 63, 0, 0)
        );
        assert_eq!(positions(0b1011 | 1 << 63).collect::<Vec<_>>(), [0, 1, 3, 63]);
        assert_eq!(positions(0).next(), None);
    }

    /// Numbers that look like chance, and are the same each time.
    fn numbers() -> impl Iterator<Item = u64> {
        let mut state = 1u64;
        std::iter::from_fn(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            Some(state >> 33)
        })
    }

    #[test]
    fn it_is_a_tree_of_single_blocks() {
        let mut numbers = numbers();
        let mut next = |below: u64| numbers.next().unwrap_or_default() % below;
        let (mut index, mut tree) = (Index::default(), BTreeMap::new());
        for step in 0..20_000u64 {
            // Some far away, and at the very end.
            let block = match next(10) {
                0 => u64::MAX - next(70),
                1 => (1 << 40) + next(1000),
                _ => next(300),
            };
            if next(2) == 0 {
                assert_eq!(index.remove(block), tree.remove(&block));
            } else if let Some(entry) = index.get_mut(block) {
                *entry = step;
                assert!(tree.insert(block, step).is_some());
            } else {
                index.insert(block, step);
                assert!(tree.insert(block, step).is_none());
            }
            assert_eq!((index.len(), index.is_empty()), (tree.len(), tree.is_empty()));
            assert_eq!(index.get(block), tree.get(&block));
            let start = next(320);
            let range = match next(4) {
                0 => start..u64::MAX,
                1 => 0..start,
                2 => start..start,
                _ => start..start + next(200),
            };
            let expected: Vec<_> = tree.range(range.clone()).map(|(block, entry)| (*block, *entry)).collect();
            let found: Vec<_> = index.range(range.clone()).map(|(block, entry)| (block, *entry)).collect();
            assert_eq!(found, expected, "{range:?}");
            let found: Vec<_> =
                index.range_mut(range.clone()).map(|(block, entry)| (block, *entry)).collect();
            assert_eq!(found, expected, "{range:?}");
            assert_eq!(index.last_of(range).copied(), expected.last().map(|(_, entry)| *entry));
            assert_eq!(index.first(), tree.keys().next().copied());
        }
        assert!(index.blocks().eq(tree.keys().copied()) && index.values().eq(tree.values()));
        assert!(index.values_mut().map(|entry| *entry).eq(tree.values().copied()));
    }

    #[test]
    fn an_empty_range_that_ends_before_it_begins_has_nothing() {
        let mut index = Index::default();
        index.insert(100, ());
        let backwards = std::ops::Range { start: 200, end: 10 };
        assert_eq!(index.range(backwards.clone()).count() + index.range_mut(backwards).count(), 0);
    }
}
