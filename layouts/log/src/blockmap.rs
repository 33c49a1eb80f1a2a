//! Where the blocks of a file are: the index in DRAM, rebuilt from the log.
//!
//! A file is cut into leaves of 512 blocks (2 MiB). A leaf is a sorted list of extents while it has few, and an array
//! of slots when it has many. Leaves hang in a radix tree of fan-out 512. The first leaf is in the file itself, so that
//! a small file needs nothing else. Costs: 16 bytes for an extent, 16 bytes for a block of a fragmented leaf (0.4 % of
//! the data).
//!
//! **Concurrency.** Readers take no lock on a fragmented leaf: they read a slot, copy the data, and look whether the
//! leaf's version is still the same. A writer changes a leaf under its lock between two increments of the version (odd
//! while it changes), and frees the old blocks only afterwards. So a reader that copied from a freed block sees a new
//! version and tries again. Callers change leaves only under the file's commit lock, so the order of changes is the
//! order of the log.

use nacre_engine::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use nacre_engine::sync::{EXPLORED, OnceLock, RwLock, SMALL, hint};
use nacre_engine::{BLOCK_SIZE, Result};
use smallvec::SmallVec;

use crate::format::MAX_FILE_SIZE;
use crate::log::Owner;

/// Blocks in a leaf.
pub(crate) const LEAF: u64 = if SMALL { 8 } else { 512 };
const FANOUT: usize = 512;
const TOP: usize = (MAX_FILE_SIZE / BLOCK_SIZE / LEAF) as usize / FANOUT / FANOUT;
/// A leaf with more extents becomes an array.
const MAX_EXTENTS: usize = if EXPLORED { 2 } else { 32 };
/// Optimistic reads before a reader takes the leaf's lock.
const OPTIMISTIC_READS: usize = if EXPLORED { 2 } else { 8 };
const NOWHERE: u64 = u64::MAX;

/// Blocks of a file in one place, and the part of the log that says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// First block in the file.
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// The place of the first block, as media has it (tier, bits, block); the others follow.
    pub(crate) place: u64,
    /// The part of the log that has the entry.
    pub(crate) owner: Owner,
}

#[derive(Debug, Clone, Copy)]
struct Extent {
    start: u16,
    len: u16,
    owner: Owner,
    place: u64,
}

/// Place and owner of a block, side by side: one cache miss for both.
struct SlotOfBlock {
    place: AtomicU64,
    owner: AtomicU32,
}

struct Dense {
    slots: [SlotOfBlock; LEAF as usize],
}

/// The extents of a leaf that has few, sorted. Most files have one, which needs no heap memory of its own.
type ExtentList = SmallVec<[Extent; 1]>;

#[derive(Default)]
struct Leaf {
    version: AtomicU64,
    extents: RwLock<ExtentList>,
    dense: OnceLock<Box<Dense>>,
}

type Branch<T> = Box<[OnceLock<T>]>;

/// The index of one file.
#[derive(Default)]
pub(crate) struct BlockMap {
    first: Leaf,
    rest: OnceLock<Branch<Branch<Branch<Box<Leaf>>>>>,
}

fn branch<T>(len: usize) -> Branch<T> {
    (0..len).map(|_| OnceLock::new()).collect()
}

impl BlockMap {
    /// Calls `read` with the place of `block` (or `None` for a hole) and the number of blocks, at most `limit`, that
    /// follow it there. Calls it again as long as the place changed meanwhile. Bytes that `read` copied in a failed
    /// turn are garbage.
    pub(crate) fn read_at<R>(
        &self,
        block: u64,
        limit: u64,
        mut read: impl FnMut(Option<u64>, u64) -> Result<R>,
    ) -> Result<R> {
        let within = block % LEAF;
        let limit = limit.min(LEAF - within);
        let Some(leaf) = self.leaf(block) else { return read(None, limit) };
        for _ in 0..OPTIMISTIC_READS {
            let version = leaf.version.load(Ordering::Acquire);
            if version % 2 == 1 {
                hint::spin_loop();
                continue;
            }
            let (place, len) = leaf.find(within, limit);
            let result = read(place, len);
            fence(Ordering::Acquire);
            if leaf.version.load(Ordering::Relaxed) == version {
                return result;
            }
        }
        let extents = leaf.extents.read();
        let (place, len) = leaf.find_locked(&extents, within, limit);
        read(place, len)
    }

    /// The place of `block` without regard to changes; under the commit lock it is exact.
    pub(crate) fn find(&self, block: u64, limit: u64) -> (Option<u64>, u64) {
        let within = block % LEAF;
        let limit = limit.min(LEAF - within);
        match self.leaf(block) {
            None => (None, limit),
            Some(leaf) => leaf.find(within, limit),
        }
    }

    /// The version of the leaf that holds `block`: as long as it stays the same, no block of it changed its place.
    pub(crate) fn version(&self, block: u64) -> u64 {
        self.leaf(block).map_or(0, |leaf| leaf.version.load(Ordering::Acquire))
    }

    /// Bytes of `block` changed in place, behind the size: readers of them read again. Only under the commit lock.
    pub(crate) fn note_change(&self, block: u64) {
        self.change_in_place(block, || ());
    }

    /// Bytes of any blocks may have changed in place. Only under the commit lock.
    pub(crate) fn note_all_changes(&self) {
        self.note_change(0);
        let mut next = self.next_leaf(LEAF);
        while let Some(start) = next {
            self.note_change(start);
            next = self.next_leaf(start + LEAF);
        }
    }

    /// Changes bytes of blocks that are mapped, in the leaf of `block`, in place: no reader sees a part of that. Only
    /// under the commit lock.
    pub(crate) fn change_in_place<R>(&self, block: u64, change: impl FnOnce() -> R) -> Option<R> {
        let leaf = self.leaf(block)?;
        let _extents = leaf.extents.write();
        let version = leaf.version.load(Ordering::Relaxed);
        leaf.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        let result = change();
        leaf.version.store(version + 2, Ordering::Release);
        Some(result)
    }

    /// Gives the blocks `start..start + len` a new place, or none, and reports their old places. Only under the commit
    /// lock.
    pub(crate) fn replace(
        &self,
        start: u64,
        len: u64,
        place: Option<u64>,
        owner: Owner,
        removed: impl FnMut(Piece),
    ) {
        self.replace_and(start, len, place, owner, || {}, removed);
    }

    /// The same; readers of the blocks see the changes by `also` at the same moment. It is called for each leaf that
    /// they are in.
    pub(crate) fn replace_and(
        &self,
        start: u64,
        len: u64,
        place: Option<u64>,
        owner: Owner,
        also: impl Fn(),
        mut removed: impl FnMut(Piece),
    ) {
        let end = start + len;
        let mut at = start;
        while at < end {
            let step = (LEAF - at % LEAF).min(end - at);
            let leaf = match place {
                Some(_) => self.leaf_or_new(at),
                None => match self.leaf(at) {
                    Some(leaf) => leaf,
                    None => {
                        at = self.next_leaf(at + step).map_or(end, |block| block.min(end));
                        continue;
                    }
                },
            };
            leaf.replace(at, step, place.map(|place| place + (at - start)), owner, &also, &mut removed);
            at += step;
        }
    }

    /// Moves the ownership of blocks that still are at `place` from one part of the log to another; reports each run
    /// of blocks that moved. Only under the commit lock.
    pub(crate) fn change_owner(&self, piece: Piece, new_owner: Owner) {
        let mut at = piece.start;
        while at < piece.start + piece.len {
            let step = (LEAF - at % LEAF).min(piece.start + piece.len - at);
            if let Some(leaf) = self.leaf(at) {
                let place = piece.place + (at - piece.start);
                leaf.replace(at, step, Some(place), new_owner, &|| {}, &mut |_| {});
            }
            at += step;
        }
    }

    /// Calls `visit` with the pieces of `start..start + len` in order. Exact under the commit lock.
    pub(crate) fn for_each(&self, start: u64, len: u64, mut visit: impl FnMut(Piece)) {
        let end = start + len;
        let mut at = start;
        while at < end {
            let step = (LEAF - at % LEAF).min(end - at);
            match self.leaf(at) {
                Some(leaf) => leaf.for_each(at, step, &mut visit),
                None => {
                    at = self.next_leaf(at + step).map_or(end, |block| block.min(end));
                    continue;
                }
            }
            at += step;
        }
    }

    /// The first block at or after `block` that is mapped, and its place.
    pub(crate) fn next_mapped(&self, block: u64) -> Option<(u64, u64)> {
        let mut at = block;
        loop {
            if let Some(leaf) = self.leaf(at) {
                let mut found = None;
                leaf.for_each(at, LEAF - at % LEAF, &mut |piece| {
                    found.get_or_insert((piece.start, piece.place));
                });
                if found.is_some() {
                    return found;
                }
            }
            at = self.next_leaf(at - at % LEAF + LEAF)?;
        }
    }

    /// Bytes of DRAM that the index takes beside its own struct.
    pub(crate) fn heap_bytes(&self) -> u64 {
        let mut bytes = self.first.heap_bytes();
        if let Some(top) = self.rest.get() {
            bytes += (top.len() * size_of::<OnceLock<Branch<Branch<Box<Leaf>>>>>()) as u64;
            for middle in top.iter().filter_map(OnceLock::get) {
                bytes += (FANOUT * 16) as u64;
                for low in middle.iter().filter_map(OnceLock::get) {
                    bytes += (FANOUT * 16) as u64;
                    for leaf in low.iter().filter_map(OnceLock::get) {
                        bytes += size_of::<Leaf>() as u64 + leaf.heap_bytes();
                    }
                }
            }
        }
        bytes
    }

    #[inline]
    fn leaf(&self, block: u64) -> Option<&Leaf> {
        let index = (block / LEAF) as usize;
        if index == 0 {
            return Some(&self.first);
        }
        let low = self.rest.get()?.get(index / FANOUT / FANOUT)?.get()?[index / FANOUT % FANOUT].get()?;
        low[index % FANOUT].get().map(|leaf| &**leaf)
    }

    fn leaf_or_new(&self, block: u64) -> &Leaf {
        let index = (block / LEAF) as usize;
        if index == 0 {
            return &self.first;
        }
        let top = self.rest.get_or_init(|| branch(TOP));
        let middle = top[index / FANOUT / FANOUT].get_or_init(|| branch(FANOUT));
        let low = middle[index / FANOUT % FANOUT].get_or_init(|| branch(FANOUT));
        low[index % FANOUT].get_or_init(Box::default)
    }

    /// The first block, at or after `block`, of a leaf that exists.
    fn next_leaf(&self, block: u64) -> Option<u64> {
        let mut index = (block / LEAF) as usize;
        if index == 0 {
            return Some(0);
        }
        let top = self.rest.get()?;
        while index < TOP * FANOUT * FANOUT {
            let Some(middle) = top[index / FANOUT / FANOUT].get() else {
                index = (index / FANOUT / FANOUT + 1) * FANOUT * FANOUT;
                continue;
            };
            let Some(low) = middle[index / FANOUT % FANOUT].get() else {
                index = (index / FANOUT + 1) * FANOUT;
                continue;
            };
            if low[index % FANOUT].get().is_some() {
                return Some(index as u64 * LEAF);
            }
            index += 1;
        }
        None
    }
}

impl Leaf {
    /// The place of the block and how many follow it. Without the lock on a list of extents this takes it shared.
    #[inline]
    fn find(&self, within: u64, limit: u64) -> (Option<u64>, u64) {
        if let Some(dense) = self.dense.get() {
            return dense.find(within as usize, limit as usize);
        }
        let extents = self.extents.read();
        self.find_locked(&extents, within, limit)
    }

    fn find_locked(&self, extents: &[Extent], within: u64, limit: u64) -> (Option<u64>, u64) {
        if let Some(dense) = self.dense.get() {
            return dense.find(within as usize, limit as usize);
        }
        let next = extents.partition_point(|e| u64::from(e.start) <= within);
        if let Some(extent) = next.checked_sub(1).map(|i| extents[i]) {
            let skip = within - u64::from(extent.start);
            if skip < u64::from(extent.len) {
                let mut len = u64::from(extent.len) - skip;
                // Neighbours that differ only in their owner read as one run.
                let mut end = extent;
                for follower in &extents[next..] {
                    if len >= limit
                        || follower.start != end.start + end.len
                        || follower.place != end.place + u64::from(end.len)
                    {
                        break;
                    }
                    len += u64::from(follower.len);
                    end = *follower;
                }
                return (Some(extent.place + skip), len.min(limit));
            }
        }
        let hole = extents.get(next).map_or(LEAF, |e| u64::from(e.start)) - within;
        (None, hole.min(limit))
    }

    fn replace(
        &self,
        at: u64,
        len: u64,
        place: Option<u64>,
        owner: Owner,
        also: &impl Fn(),
        removed: &mut impl FnMut(Piece),
    ) {
        let within = at % LEAF;
        let base = at - within;
        let mut extents = self.extents.write();
        // Changed under the lock only, so that plain stores will do.
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        if let Some(dense) = self.dense.get() {
            dense.replace(base, within, len, place, owner, removed);
        } else {
            replace_extents(&mut extents, base, within, len, place, owner, removed);
            if extents.len() > MAX_EXTENTS {
                let dense = Dense::from_extents(&extents);
                *extents = ExtentList::new();
                // Only this lock's holder sets it, and it was not set.
                let _ = self.dense.set(dense);
            }
        }
        also();
        self.version.store(version + 2, Ordering::Release);
    }

    fn for_each(&self, at: u64, len: u64, visit: &mut impl FnMut(Piece)) {
        let (first, last) = (at % LEAF, at % LEAF + len);
        let base = at - first;
        if let Some(dense) = self.dense.get() {
            return dense.for_each(base, first, last, visit);
        }
        let extents = self.extents.read();
        // The list may have become that meanwhile, and is empty then.
        if let Some(dense) = self.dense.get() {
            return dense.for_each(base, first, last, visit);
        }
        for extent in extents.iter() {
            let start = u64::from(extent.start).max(first);
            let end = (u64::from(extent.start) + u64::from(extent.len)).min(last);
            if start < end {
                let place = extent.place + (start - u64::from(extent.start));
                visit(Piece { start: base + start, len: end - start, place, owner: extent.owner });
            }
        }
    }

    fn heap_bytes(&self) -> u64 {
        let dense = if self.dense.get().is_some() { size_of::<Dense>() } else { 0 };
        let extents = self.extents.read();
        let listed = if extents.spilled() { extents.capacity() * size_of::<Extent>() } else { 0 };
        (listed + dense) as u64
    }
}

/// Replaces `within..within + len` in a sorted list of extents, splitting extents that are cut and merging those that
/// continue one another.
fn replace_extents(
    extents: &mut ExtentList,
    base: u64,
    within: u64,
    len: u64,
    place: Option<u64>,
    owner: Owner,
    removed: &mut impl FnMut(Piece),
) {
    let end = within + len;
    let first = extents.partition_point(|e| u64::from(e.start) + u64::from(e.len) <= within);
    let mut last = first;
    let mut left = None;
    let mut right = None;
    while last < extents.len() && u64::from(extents[last].start) < end {
        let old = extents[last];
        let (old_start, old_end) = (u64::from(old.start), u64::from(old.start) + u64::from(old.len));
        let (cut_start, cut_end) = (old_start.max(within), old_end.min(end));
        let cut_place = old.place + (cut_start - old_start);
        removed(Piece {
            start: base + cut_start,
            len: cut_end - cut_start,
            place: cut_place,
            owner: old.owner,
        });
        if old_start < within {
            left = Some(Extent { len: (within - old_start) as u16, ..old });
        }
        if old_end > end {
            let len = (old_end - end) as u16;
            right = Some(Extent { start: end as u16, len, place: old.place + (end - old_start), ..old });
        }
        last += 1;
    }
    let new = place.map(|place| Extent { start: within as u16, len: len as u16, owner, place });
    let parts = [left, new, right];
    if last == first + 1 && parts.iter().flatten().count() == 1 {
        extents[first] = parts.into_iter().flatten().next().unwrap_or(extents[first]);
    } else {
        extents.drain(first..last);
        extents.insert_many(first, parts.into_iter().flatten());
    }
    let around = first.saturating_sub(1);
    merge_neighbours(extents, around, (first + 3).min(extents.len()));
}

fn merge_neighbours(extents: &mut ExtentList, from: usize, to: usize) {
    let mut index = from;
    let mut to = to;
    while index + 1 < to.min(extents.len()) {
        let (a, b) = (extents[index], extents[index + 1]);
        if a.start + a.len == b.start && a.place + u64::from(a.len) == b.place && a.owner == b.owner {
            extents[index].len += b.len;
            extents.remove(index + 1);
            to -= 1;
        } else {
            index += 1;
        }
    }
}

impl SlotOfBlock {
    fn set(&self, place: u64, owner: Owner) {
        self.place.store(place, Ordering::Relaxed);
        self.owner.store(owner, Ordering::Relaxed);
    }
}

impl Dense {
    fn from_extents(extents: &[Extent]) -> Box<Dense> {
        let dense = Box::new(Dense {
            slots: std::array::from_fn(|_| SlotOfBlock {
                place: AtomicU64::new(NOWHERE),
                owner: AtomicU32::new(0),
            }),
        });
        for extent in extents {
            for i in 0..extent.len {
                let slot = usize::from(extent.start + i);
                dense.slots[slot].set(extent.place + u64::from(i), extent.owner);
            }
        }
        dense
    }

    #[inline]
    fn find(&self, within: usize, limit: usize) -> (Option<u64>, u64) {
        let place = self.slots[within].place.load(Ordering::Relaxed);
        let mut len = 1;
        let next = |len: usize| self.slots[within + len].place.load(Ordering::Relaxed);
        if place == NOWHERE {
            while len < limit && next(len) == NOWHERE {
                len += 1;
            }
            return (None, len as u64);
        }
        while len < limit && next(len) == place + len as u64 {
            len += 1;
        }
        (Some(place), len as u64)
    }

    fn replace(
        &self,
        base: u64,
        within: u64,
        len: u64,
        place: Option<u64>,
        owner: Owner,
        removed: &mut impl FnMut(Piece),
    ) {
        self.for_each(base, within, within + len, removed);
        for i in 0..len {
            let slot = (within + i) as usize;
            self.slots[slot].set(place.map_or(NOWHERE, |place| place + i), owner);
        }
    }

    fn for_each(&self, base: u64, first: u64, last: u64, visit: &mut impl FnMut(Piece)) {
        let mut run: Option<Piece> = None;
        for slot in first..last {
            let place = self.slots[slot as usize].place.load(Ordering::Relaxed);
            let owner = self.slots[slot as usize].owner.load(Ordering::Relaxed);
            if let Some(piece) = &mut run {
                if place != NOWHERE && place == piece.place + piece.len && owner == piece.owner {
                    piece.len += 1;
                    continue;
                }
                visit(*piece);
            }
            run = (place != NOWHERE).then_some(Piece { start: base + slot, len: 1, place, owner });
        }
        if let Some(piece) = run {
            visit(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BlockMap, Piece};
    use std::collections::BTreeMap;

    fn check(map: &BlockMap, model: &BTreeMap<u64, (u64, u32)>, end: u64) {
        let mut seen = BTreeMap::new();
        map.for_each(0, end, |piece: Piece| {
            for i in 0..piece.len {
                assert!(seen.insert(piece.start + i, (piece.place + i, piece.owner)).is_none());
            }
        });
        assert_eq!(&seen, model);
        for block in 0..end.min(2000) {
            let (place, len) = map.find(block, 16);
            assert_eq!(place, model.get(&block).map(|&(place, _)| place));
            for i in 0..len {
                let expected = place.map(|place| place + i);
                assert_eq!(model.get(&(block + i)).map(|&(place, _)| place), expected, "block {block} + {i}");
            }
            let next = map.next_mapped(block);
            assert_eq!(next, model.range(block..).next().map(|(&at, &(place, _))| (at, place)));
        }
    }

    /// Random replacements of every length, against a map of single blocks.
    #[test]
    fn it_agrees_with_a_plain_map() {
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = |limit: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % limit
        };
        for max_len in [3, 40, 1500] {
            let map = BlockMap::default();
            let mut model = BTreeMap::new();
            for turn in 0..600u64 {
                let start = next(1800);
                let len = 1 + next(max_len);
                let place = (next(4) > 0).then(|| turn * 10_000);
                let mut removed = 0;
                map.replace(start, len, place, turn as u32 % 3, |piece| removed += piece.len);
                let mut expected = 0;
                for i in 0..len {
                    let old = match place {
                        Some(place) => model.insert(start + i, (place + i, turn as u32 % 3)),
                        None => model.remove(&(start + i)),
                    };
                    expected += u64::from(old.is_some());
                }
                assert_eq!(removed, expected);
                if turn % 50 == 0 {
                    check(&map, &model, 4000);
                }
            }
            check(&map, &model, 4000);
        }
    }

    #[test]
    fn far_blocks_are_found() {
        let map = BlockMap::default();
        let far = (1u64 << 32) - 1;
        map.replace(far, 1, Some(5), 1, |_| {});
        map.replace(1 << 20, 2, Some(77), 2, |_| {});
        assert_eq!(map.next_mapped(3), Some((1 << 20, 77)));
        assert_eq!(map.next_mapped((1 << 20) + 2), Some((far, 5)));
        let mut removed = Vec::new();
        map.replace(0, 1 << 32, None, 0, |piece| removed.push(piece.start));
        assert_eq!(removed, [1 << 20, far]);
        assert_eq!(map.next_mapped(0), None);
    }
}

#[cfg(all(test, nacre_loom))]
mod interleavings {
    use std::sync::Arc;

    use nacre_engine::sync::atomic::{AtomicU64, Ordering};
    use nacre_engine::sync::{Weakening, explore, fails_without, thread};

    use super::BlockMap;

    const OLD: u64 = 1;
    const NEW: u64 = 2;
    const OTHER: u64 = 3;

    /// Blocks 0, 2 and 4 of a file; that many extents make an array of slots with the next one.
    fn file(extents: u64) -> BlockMap {
        let map = BlockMap::default();
        for index in 0..extents {
            map.replace(index * 2, 1, Some(10 * index), 0, |_| {});
        }
        map
    }

    /// A reader beside a writer who gives block 0 a new place and then lets another file have the old one.
    fn read_beside_a_writer(extents: u64) {
        explore(2, move || {
            let map = Arc::new(file(extents));
            // The block at place 0 and the one at place 1.
            let media = Arc::new([AtomicU64::new(OLD), AtomicU64::new(0)]);
            let writer = thread::spawn({
                let (map, media) = (Arc::clone(&map), Arc::clone(&media));
                move || {
                    media[1].store(NEW, Ordering::Relaxed);
                    map.replace(0, 1, Some(1), 0, |_| {});
                    media[0].store(OTHER, Ordering::Relaxed);
                }
            });
            let read = map.read_at(0, 1, |place, _| {
                Ok(media[place.expect("no hole") as usize].load(Ordering::Relaxed))
            });
            assert!(matches!(read, Ok(OLD | NEW)), "read {read:?}");
            writer.join().unwrap();
        });
    }

    fn read_an_array() {
        read_beside_a_writer(3);
    }

    #[test]
    fn a_reader_of_a_list_gets_the_old_block_or_the_new_one() {
        read_beside_a_writer(1);
    }

    #[test]
    fn a_reader_of_an_array_gets_the_old_block_or_the_new_one() {
        read_an_array();
    }

    #[test]
    fn a_reader_gets_its_block_while_the_list_becomes_an_array() {
        explore(2, || {
            let map = Arc::new(file(2));
            let writer = thread::spawn({
                let map = Arc::clone(&map);
                move || map.replace(4, 1, Some(20), 0, |_| {})
            });
            let place = map.read_at(0, 1, |place, _| Ok(place)).unwrap();
            assert_eq!(place, Some(0));
            writer.join().unwrap();
        });
    }

    #[test]
    fn each_order_of_the_array_is_needed() {
        for order in [
            Weakening::AcquireLoads,
            Weakening::ReleaseStores,
            Weakening::AcquireFences,
            Weakening::ReleaseFences,
        ] {
            assert!(fails_without(order, read_an_array), "nothing shows without {order:?}");
        }
    }
}
