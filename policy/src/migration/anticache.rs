//! Anti-caching (paper 004): PM holds the data that was used last, up to a threshold. Data above it goes to disk, from
//! the other end of one list of blocks in the order of their last use.
//!
//! The list knows blocks of which it was told, up to a limit. The oldest ones are forgotten first: they are found again
//! by a walk over all files, in the order of their last modification.

use std::collections::HashMap;
use std::hash::Hash;

use super::{Access, AccessKind, Chosen};
use crate::temperature::Span;

/// Milliseconds between two looks at the threshold.
pub const PERIOD_MS: u64 = 10;
/// Blocks that one access touches at most: the last ones of a large access count as used.
const MOST_TOUCHED: u64 = 4096;
/// No entry.
const NONE: u32 = u32::MAX;

/// A block in the list.
#[derive(Debug, Clone, Copy)]
struct Entry<F> {
    file: F,
    block: u64,
    /// The entries used next after it, and last before it.
    newer: u32,
    older: u32,
}

/// The list of blocks on PM in the order of their last use.
#[derive(Debug)]
pub struct AntiCache<F> {
    entries: Vec<Entry<F>>,
    /// Entries that are in no list.
    unused: Vec<u32>,
    places: HashMap<(F, u64), u32>,
    newest: u32,
    oldest: u32,
    limit: usize,
    /// Blocks are on PM that it does not know.
    is_incomplete: bool,
}

impl<F: Copy + Eq + Hash + Ord> AntiCache<F> {
    /// An empty list of at most so many blocks; nothing is known of any file.
    pub fn new(limit: usize) -> AntiCache<F> {
        AntiCache {
            entries: Vec::new(),
            unused: Vec::new(),
            places: HashMap::new(),
            newest: NONE,
            oldest: NONE,
            limit: limit.clamp(1, NONE as usize - 1),
            is_incomplete: true,
        }
    }

    /// How many blocks it knows.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// It knows none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether blocks may be on PM that it does not know.
    pub fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    /// All files were walked over, or something was missed since.
    pub fn set_incomplete(&mut self, is_incomplete: bool) {
        self.is_incomplete = is_incomplete;
    }

    /// Takes in an access: its blocks were used last. Blocks that were read from below come up, and are used, too.
    pub fn observe(&mut self, access: &Access<F>) {
        let end = access.start.saturating_add(access.blocks);
        let first = access.start.max(end.saturating_sub(MOST_TOUCHED));
        match access.kind {
            AccessKind::Written | AccessKind::Read | AccessKind::ReadBelow => {
                (first..end).for_each(|block| self.touch(access.file, block));
            }
        }
    }

    /// A block was used last.
    pub fn touch(&mut self, file: F, block: u64) {
        match self.places.get(&(file, block)) {
            Some(&at) => self.unlink(at),
            None => self.add(file, block),
        }
        let at = self.places[&(file, block)];
        self.link_newest(at);
    }

    /// Adds blocks that were not used for longer than all that are known, each longer than the one before it.
    pub fn seed(&mut self, blocks: impl IntoIterator<Item = (F, u64)>) {
        for (file, block) in blocks {
            if self.places.len() >= self.limit {
                self.is_incomplete = true;
                return;
            }
            if !self.places.contains_key(&(file, block)) {
                self.add(file, block);
                self.link_oldest(self.places[&(file, block)]);
            }
        }
    }

    /// Forgets a block, which is not on PM any more.
    pub fn forget(&mut self, file: F, block: u64) {
        if let Some(at) = self.places.remove(&(file, block)) {
            self.unlink(at);
            self.unused.push(at);
        }
    }

    /// Takes out the blocks that were not used for longest, at most so many, as parts of their files.
    pub fn coldest(&mut self, blocks: u64) -> Vec<Chosen<F>> {
        let mut taken = Vec::new();
        while (taken.len() as u64) < blocks && self.oldest != NONE {
            let Entry { file, block, .. } = self.entries[self.oldest as usize];
            self.forget(file, block);
            taken.push((file, block));
        }
        taken.sort_unstable();
        let mut chosen: Vec<Chosen<F>> = Vec::new();
        for (file, block) in taken {
            match chosen.last_mut().filter(|last| last.file == file) {
                Some(last) => match last.spans.last_mut() {
                    Some(span) if span.start + span.len == block => span.len += 1,
                    _ => last.spans.push(Span { start: block, len: 1 }),
                },
                None => chosen.push(Chosen { file, spans: vec![Span { start: block, len: 1 }] }),
            }
        }
        chosen
    }

    /// An entry for a block, in no list; the oldest one makes room.
    fn add(&mut self, file: F, block: u64) {
        if self.places.len() >= self.limit {
            let Entry { file, block, .. } = self.entries[self.oldest as usize];
            self.forget(file, block);
            self.is_incomplete = true;
        }
        let entry = Entry { file, block, newer: NONE, older: NONE };
        let at = match self.unused.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        self.places.insert((file, block), at);
    }

    fn unlink(&mut self, at: u32) {
        let Entry { newer, older, .. } = self.entries[at as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.entries[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.entries[older as usize].newer = newer,
        }
    }

    fn link_newest(&mut self, at: u32) {
        let before = std::mem::replace(&mut self.newest, at);
        (self.entries[at as usize].older, self.entries[at as usize].newer) = (before, NONE);
        match before {
            NONE => self.oldest = at,
            before => self.entries[before as usize].newer = at,
        }
    }

    fn link_oldest(&mut self, at: u32) {
        let before = std::mem::replace(&mut self.oldest, at);
        (self.entries[at as usize].newer, self.entries[at as usize].older) = (before, NONE);
        match before {
            NONE => self.newest = at,
            before => self.entries[before as usize].older = at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AntiCache, MOST_TOUCHED};
    use crate::migration::{Access, AccessKind, Chosen};
    use crate::temperature::Span;

    fn chosen(file: u32, spans: &[(u64, u64)]) -> Chosen<u32> {
        Chosen { file, spans: spans.iter().map(|&(start, len)| Span { start, len }).collect() }
    }

    fn access(file: u32, start: u64, blocks: u64) -> Access<u32> {
        let kind = AccessKind::Written;
        Access { file, kind, start, blocks, size: start + blocks, modified_ms: 0, at_ms: 0 }
    }

    #[test]
    fn the_block_that_was_not_used_for_longest_goes_first() {
        let mut list = AntiCache::new(100);
        list.observe(&access(1, 0, 4));
        list.observe(&access(2, 7, 2));
        list.touch(1, 1);
        assert_eq!(list.coldest(2), [chosen(1, &[(0, 1), (2, 1)])]);
        assert_eq!(list.coldest(2), [chosen(1, &[(3, 1)]), chosen(2, &[(7, 1)])]);
        assert_eq!(list.coldest(9), [chosen(1, &[(1, 1)]), chosen(2, &[(8, 1)])]);
        assert!(list.is_empty() && list.coldest(1).is_empty());
    }

    #[test]
    fn seeds_are_older_than_what_was_used() {
        let mut list = AntiCache::new(100);
        list.touch(1, 5);
        list.seed([(2, 0), (1, 5), (2, 1)]);
        list.forget(2, 0);
        list.forget(2, 77);
        list.touch(3, 0);
        assert_eq!(list.len(), 3);
        for expected in [(2, 1), (1, 5), (3, 0)] {
            assert_eq!(list.coldest(1), [chosen(expected.0, &[(expected.1, 1)])]);
        }
    }

    #[test]
    fn the_list_is_bounded_and_says_that_it_does_not_know_all() {
        let mut list = AntiCache::new(3);
        assert!(list.is_incomplete(), "nothing was walked over");
        list.set_incomplete(false);
        list.observe(&access(1, 0, 3));
        assert!(!list.is_incomplete());
        list.touch(1, 3);
        assert!(list.is_incomplete() && list.len() == 3);
        assert_eq!(list.coldest(3), [chosen(1, &[(1, 3)])]);
        list.set_incomplete(false);
        list.seed((0..4).map(|block| (2, block)));
        assert!(list.is_incomplete() && list.len() == 3);
        assert_eq!(list.entries.len(), 3, "entries are used again");
        let mut list = AntiCache::new(10_000);
        list.observe(&access(1, 0, u64::MAX));
        assert_eq!(list.len() as u64, MOST_TOUCHED);
    }
}
