//! The words of an operation, and the lanes of the journal that take their old values. How a transaction is committed
//! is in `commit`.

use nacre_engine::sync::Mutex;
use nacre_engine::{BLOCK_SIZE, Block};
pub(crate) use nacre_layout_parts::tree::edit::join;
use smallvec::SmallVec;

use crate::alloc::lane_of_thread;
use crate::format::{INLINE_TARGET, INODE_SIZE, LANE_BLOCKS, Region, lane_seed};

/// Undo entries that all words of an inode take at the most, from its links to its parent.
pub(crate) const INODE_ENTRIES: u64 = (INODE_SIZE - INLINE_TARGET as u64) / 16;

/// A word and its place.
pub(crate) type Word = (u64, u64);

/// The words that one operation changes in place.
#[derive(Default)]
pub(crate) struct Transaction {
    /// Words that count: each is undone unless all are committed.
    words: SmallVec<[Word; 16]>,
    /// Words that say nothing until those count: free space of directories.
    pub(crate) idle: Vec<Word>,
}

impl Transaction {
    /// The word at `address` becomes `value`; an earlier value for it is overruled.
    pub(crate) fn word(&mut self, address: u64, value: u64) {
        debug_assert!(address.is_multiple_of(8));
        self.words.push((address, value));
    }

    /// The same for a word with an old value that is never read.
    pub(crate) fn idle_word(&mut self, address: u64, value: u64) {
        self.idle.push((address, value));
    }

    /// The words in order, the last for each address.
    pub(crate) fn sorted(&mut self) -> &mut SmallVec<[Word; 16]> {
        self.words.sort_by_key(|&(address, _)| address); // stable: the last one said comes last
        self.words.reverse();
        self.words.dedup_by_key(|&mut (address, _)| address);
        self.words.reverse();
        &mut self.words
    }
}

/// A lane of the journal.
pub(crate) struct Lane {
    pub(crate) address: u64,
    pub(crate) seed: u32,
    /// The generation of the next transaction.
    pub(crate) next: Mutex<u64>,
}

/// The journal.
pub(crate) struct Journal {
    lanes: Vec<Lane>,
}

impl Journal {
    /// The journal in a region, of which nothing is to be undone; `next` is each lane's next generation.
    pub(crate) fn new(region: Region, volume_seed: u32, next: &[u64]) -> Journal {
        let lane = |(index, &next): (usize, &u64)| Lane {
            address: lane_address(region, index as u64),
            seed: lane_seed(volume_seed, index as u64),
            next: Mutex::new(next),
        };
        Journal { lanes: next.iter().enumerate().map(lane).collect() }
    }

    /// The lane of this thread.
    pub(crate) fn lane(&self) -> &Lane {
        &self.lanes[lane_of_thread() % self.lanes.len()]
    }
}

/// Bytes of a lane.
pub(crate) const LANE_BYTES: u64 = LANE_BLOCKS * BLOCK_SIZE;

/// The first byte of a lane.
pub(crate) fn lane_address(region: Region, lane: u64) -> u64 {
    Block(region.start + lane * LANE_BLOCKS).offset()
}

/// How many lanes a region has.
pub(crate) fn lane_count(region: Region) -> u64 {
    region.blocks / LANE_BLOCKS
}

#[cfg(test)]
mod tests {
    use super::Transaction;

    #[test]
    fn the_last_value_of_a_word_counts() {
        let mut transaction = Transaction::default();
        for (address, value) in [(16, 1), (8, 2), (16, 3), (24, 4), (8, 5)] {
            transaction.word(address, value);
        }
        assert_eq!(transaction.sorted().as_slice(), [(8, 5), (16, 3), (24, 4)]);
    }
}
