//! Blocks with media errors, in DRAM: they are never allocated. Their bits on media may say that they are free.

use std::collections::BTreeSet;

use nacre_engine::Block;
use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicBool, Ordering};

use crate::bits::{self, Bits};
use crate::format::GROUP_BLOCKS;

/// The blocks of the list of bad blocks.
pub(crate) struct BadBlocks {
    any: AtomicBool,
    blocks: Mutex<BTreeSet<u64>>,
}

impl BadBlocks {
    pub(crate) fn of(blocks: Vec<Block>) -> BadBlocks {
        let blocks: BTreeSet<u64> = blocks.into_iter().map(|block| block.0).collect();
        BadBlocks { any: AtomicBool::new(!blocks.is_empty()), blocks: Mutex::new(blocks) }
    }

    /// One more. Under the lock of its group.
    pub(crate) fn insert(&self, block: Block) {
        self.blocks.lock().insert(block.0);
        self.any.store(true, Ordering::Release);
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Block> {
        self.blocks.lock().iter().map(|&block| Block(block)).collect()
    }

    /// Those of a group.
    pub(crate) fn of_group(&self, group: u64) -> Bits {
        let none = [0; 8];
        if !self.any.load(Ordering::Acquire) {
            return none;
        }
        let blocks = self.blocks.lock();
        let of_group = blocks.range(group * GROUP_BLOCKS..(group + 1) * GROUP_BLOCKS);
        of_group.fold(none, |found, block| bits::either(&found, &bits::run(block % GROUP_BLOCKS, 1)))
    }
}
