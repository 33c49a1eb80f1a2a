//! What reads of files on tiers have shown, and how much is read ahead for that.
//!
//! It is known in DRAM, of so many files at the most: of one that was forgotten the window grows anew.

use std::collections::HashMap;

use nacre_engine::InodeId;
use nacre_engine::sync::{Mutex, SMALL};
use nacre_policy::ReadAhead;

const SHARDS: usize = if SMALL { 1 } else { 64 };
/// Files that a shard knows at the most: 16,384 in all, about 2 MiB.
const MAX_FILES: usize = 256;

/// What is known of all files.
pub(crate) struct Readers {
    shards: Box<[Mutex<HashMap<InodeId, ReadAhead>>]>,
}

impl Readers {
    pub(crate) fn new() -> Readers {
        Readers { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    /// A read of blocks of a file; gives how many are to be fetched at once, `most` at the most, or 0 for only those that are
    /// read.
    pub(crate) fn read(&self, id: InodeId, start: u64, blocks: u64, most: u64) -> u64 {
        let mut files = self.shards[id.number as usize % SHARDS].lock();
        if files.len() >= MAX_FILES && !files.contains_key(&id) {
            // Which of them is read on nobody knows: all begin anew.
            files.clear();
        }
        files.entry(id).or_default().read(start, blocks, most)
    }
}

#[cfg(test)]
mod tests {
    use nacre_engine::InodeId;

    use super::{MAX_FILES, Readers, SHARDS};

    #[test]
    fn files_are_told_apart_and_there_are_no_more_than_so_many() {
        let readers = Readers::new();
        let id = |number| InodeId { number, generation: 1, volume: 0 };
        (0..200).for_each(|block| _ = readers.read(id(1), block, 1, 256));
        assert_eq!((readers.read(id(1), 200, 1, 256), readers.read(id(2), 201, 1, 256)), (256, 0));
        for number in 0..3 * (MAX_FILES * SHARDS) as u64 {
            readers.read(id(number), 0, 1, 256);
        }
        assert!(readers.shards.iter().all(|shard| shard.lock().len() <= MAX_FILES));
    }
}
