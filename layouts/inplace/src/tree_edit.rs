//! Changing a tree of blocks: its words go to a transaction. How it is changed is in `nacre-layout-parts`.

use nacre_engine::{BLOCK_SIZE, Block, Result};
use nacre_layout_parts::tree::edit::{self, TreeSpace};
use nacre_layout_parts::tree::{LEVEL_BITS, MAX_HEIGHT, NODE_WORDS};
use nacre_media::{Flushed, Pm};

use crate::alloc::{Purpose, Run, Runs};
use crate::blockmap::{Bounds, InplaceWords, span};
use crate::format::{LANE_ENTRIES, MAX_FILE_SIZE};
use crate::fs::Shared;
use crate::transaction::{INODE_ENTRIES, Transaction};

/// The level from which on a hole is cut in two: two of its edges in one node of this height fit a lane with that node.
const CUT_LEVEL: u32 = 2;
/// The maximum of undo entries that a part of a hole takes: every other word of a node in each level below the highest,
/// half of the words that the largest file has in the highest, and the inode's.
const HOLE_ENTRIES: u64 = (MAX_HEIGHT as u64 - 1) * (NODE_WORDS as u64 / 2)
    + ((MAX_FILE_SIZE / BLOCK_SIZE) >> (LEVEL_BITS * (MAX_HEIGHT - 1))) / 2
    + INODE_ENTRIES;
const _: () = assert!(HOLE_ENTRIES <= LANE_ENTRIES as u64);

/// Where the first part of a hole ends, so that the transaction of each part fits a lane. Either edge of a hole may
/// take words of a node in each level. So it is cut where the nodes of its edges part: each side of the cut has one
/// edge, and there are no more than two parts. Within a node of height [`CUT_LEVEL`] it is one, too.
pub(crate) fn end_of_part(first: u64, end: u64) -> u64 {
    let mut cuts = (CUT_LEVEL..MAX_HEIGHT).rev().map(|height| first.next_multiple_of(span(height)));
    cuts.find(|&cut| first < cut && cut < end).unwrap_or(end)
}

/// A change of a tree.
pub(crate) type Edit<'a, P> = edit::Edit<'a, Shared<P>>;

impl<P: Pm> TreeSpace for Shared<P> {
    type Media = P;
    type Words = InplaceWords;

    fn media(&self) -> &P {
        &self.pm
    }

    fn bounds(&self) -> Bounds {
        self.bounds
    }

    fn allocate(&self, goal: Option<Block>, blocks: u64, purpose: Purpose, runs: &mut Runs) -> Result<()> {
        Shared::allocate(self, goal, blocks, purpose, runs)
    }

    fn free_runs(&self, runs: &[Run]) {
        Shared::free_runs(self, runs);
    }
}

/// Writes the new nodes and adds the words to the transaction. The root is the caller's.
pub(crate) fn finish<P: Pm>(
    edit: &Edit<'_, P>,
    transaction: &mut Transaction,
    pending: Option<Flushed>,
) -> Result<Option<Flushed>> {
    for (address, changed) in edit.words() {
        transaction.word(address, changed.word);
    }
    edit.write(pending)
}
