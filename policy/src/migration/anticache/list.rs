//! A list of blocks in the order of their last use. A block takes 32 bytes for an identity of a file of 16 bytes, and
//! at most 12 bytes of an index, so that the list can be long.

use std::hash::{BuildHasher, Hash, RandomState};

use hashbrown::HashTable;

/// No entry.
const NONE: u32 = u32::MAX;

/// Entries for which there is room at first.
const FIRST: usize = 1024;

/// A block in the list.
#[derive(Debug, Clone, Copy)]
struct Entry<F> {
    file: F,
    block: u64,
    /// The entry used next after it.
    newer: u32,
    /// The entry used last before it; the next unused entry of one that is unused.
    older: u32,
}

const _: () = assert!(size_of::<Entry<(u64, u32, u32)>>() == 32);

/// Blocks in the order of their last use, up to a limit.
#[derive(Debug)]
pub(super) struct List<F> {
    entries: Vec<Entry<F>>,
    /// The entry of each block.
    index: HashTable<u32>,
    hasher: RandomState,
    newest: u32,
    oldest: u32,
    /// The first entry of those that are unused.
    unused: u32,
    limit: usize,
}

impl<F: Copy + Eq + Hash> List<F> {
    /// An empty list of at most so many blocks.
    pub(super) fn new(limit: usize) -> List<F> {
        List {
            entries: Vec::new(),
            index: HashTable::new(),
            hasher: RandomState::new(),
            newest: NONE,
            oldest: NONE,
            unused: NONE,
            limit: limit.clamp(1, NONE as usize - 1),
        }
    }

    /// How many blocks are in it.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether a block is in it.
    pub(super) fn has(&self, file: F, block: u64) -> bool {
        self.find(self.hash(file, block), file, block).is_some()
    }

    /// A block was used last. False when the oldest block was given up for it.
    pub(super) fn touch(&mut self, file: F, block: u64) -> bool {
        let hash = self.hash(file, block);
        if let Some(at) = self.find(hash, file, block) {
            if at != self.newest {
                self.unlink(at);
                self.link_newest(at);
            }
            return true;
        }
        let has_room = self.index.len() < self.limit;
        if !has_room {
            self.pop_oldest();
        }
        let at = self.add(hash, file, block);
        self.link_newest(at);
        has_room
    }

    /// Takes out the block that was not used for longest.
    pub(super) fn pop_oldest(&mut self) -> Option<(F, u64)> {
        let at = self.oldest;
        let &Entry { file, block, .. } = self.entries.get(at as usize)?;
        let hash = self.hash(file, block);
        if let Ok(entry) = self.index.find_entry(hash, |other| *other == at) {
            entry.remove();
        }
        self.unlink(at);
        self.entries[at as usize].older = std::mem::replace(&mut self.unused, at);
        Some((file, block))
    }

    fn hash(&self, file: F, block: u64) -> u64 {
        self.hasher.hash_one((file, block))
    }

    fn find(&self, hash: u64, file: F, block: u64) -> Option<u32> {
        let is_it = |at: &u32| {
            let entry = &self.entries[*at as usize];
            entry.block == block && entry.file == file
        };
        self.index.find(hash, is_it).copied()
    }

    /// An entry for a block, in no order yet.
    fn add(&mut self, hash: u64, file: F, block: u64) -> u32 {
        let entry = Entry { file, block, newer: NONE, older: NONE };
        let at = match self.unused {
            NONE => {
                if self.entries.len() == self.entries.capacity() {
                    // Never more than the limit: doubling would leave up to as much again unused.
                    let more = self.entries.len().max(FIRST).min(self.limit - self.entries.len());
                    self.entries.reserve_exact(more);
                }
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
            at => {
                self.unused = self.entries[at as usize].older;
                self.entries[at as usize] = entry;
                at
            }
        };
        let List { entries, index, hasher, .. } = self;
        index.insert_unique(hash, at, |other| {
            let Entry { file, block, .. } = entries[*other as usize];
            hasher.hash_one((file, block))
        });
        at
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

    /// DRAM that it takes, in bytes.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry<F>>() + self.index.allocation_size()
    }
}
