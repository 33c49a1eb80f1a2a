//! Changing a tree of blocks.
//!
//! [`Edit`] collects changes: new nodes are built in DRAM and written where nothing leads to them yet, words of nodes
//! that are in use go to the transaction. So a change of any shape counts wholly or not at all.

use std::collections::BTreeMap;

use nacre_engine::{BLOCK_SIZE, Block, Error, Kind, Result};
use nacre_media::{Flushed, Pm};
use zerocopy::IntoBytes;

use crate::alloc::{Purpose, Run, Runs};
use crate::blockmap::{Piece, height_of, span};
use crate::format::{BLOCK_WORDS, LANE_ENTRIES, MAX_FILE_SIZE, tree};
use crate::fs::Shared;
use crate::transaction::{INODE_ENTRIES, Transaction, join};

/// The level from which on a hole is cut in two: two of its edges in one node of this height fit a lane with that node.
const CUT_LEVEL: u32 = 2;
/// The maximum of undo entries that a part of a hole takes: every other word of a node in each level below the highest,
/// half of the words that the largest file has in the highest, and the inode's.
const HOLE_ENTRIES: u64 = (tree::MAX_HEIGHT as u64 - 1) * (BLOCK_WORDS as u64 / 2)
    + ((MAX_FILE_SIZE / BLOCK_SIZE) >> (tree::LEVEL_BITS * (tree::MAX_HEIGHT - 1))) / 2
    + INODE_ENTRIES;
const _: () = assert!(HOLE_ENTRIES <= LANE_ENTRIES as u64);

/// Where the first part of a hole ends, so that the transaction of each part fits a lane. Either edge of a hole may
/// take words of a node in each level. So it is cut where the nodes of its edges part: each side of the cut has one
/// edge, and there are no more than two parts. Within a node of height [`CUT_LEVEL`] it is one, too.
pub(crate) fn end_of_part(first: u64, end: u64) -> u64 {
    let mut cuts = (CUT_LEVEL..tree::MAX_HEIGHT).rev().map(|height| first.next_multiple_of(span(height)));
    cuts.find(|&cut| first < cut && cut < end).unwrap_or(end)
}

/// A node that nothing leads to yet.
type Node = Box<[u64; BLOCK_WORDS]>;

/// A change of a tree.
pub(crate) struct Edit<'a, P> {
    fs: &'a Shared<P>,
    /// The root as it is on media.
    pub(crate) before: u64,
    /// The root as it will be.
    pub(crate) root: u64,
    nodes: BTreeMap<u64, Node>,
    /// Words of nodes that are in use, by address.
    words: BTreeMap<u64, u64>,
    /// Blocks of new nodes.
    pub(crate) allocated: Runs,
    /// Blocks and nodes that nothing leads to any more.
    pub(crate) freed: Vec<Run>,
    /// How many of those are blocks of data.
    pub(crate) freed_data: u64,
    /// The purpose of new nodes.
    pub(crate) purpose: Purpose,
}

impl<'a, P: Pm> Edit<'a, P> {
    pub(crate) fn new(fs: &'a Shared<P>, root: u64) -> Edit<'a, P> {
        Edit {
            fs,
            before: root,
            root,
            nodes: BTreeMap::new(),
            words: BTreeMap::new(),
            allocated: Runs::new(),
            freed: Vec::new(),
            freed_data: 0,
            purpose: Purpose::Metadata,
        }
    }

    fn get(&self, node: u64, index: u64) -> Result<u64> {
        if let Some(words) = self.nodes.get(&node) {
            return Ok(words[index as usize]);
        }
        let address = Block(node).offset() + index * 8;
        match self.words.get(&address) {
            Some(&word) => Ok(word),
            None => self.fs.pm.load_u64(address),
        }
    }

    fn put(&mut self, node: u64, index: u64, word: u64) {
        match self.nodes.get_mut(&node) {
            Some(words) => words[index as usize] = word,
            None => {
                self.words.insert(Block(node).offset() + index * 8, word);
            }
        }
    }

    fn new_node(&mut self) -> Result<u64> {
        let mut runs = Runs::new();
        self.fs.allocate(None, 1, self.purpose, &mut runs)?;
        let block = runs[0].start.0;
        self.allocated.extend(runs);
        self.nodes.insert(block, Box::new([0; BLOCK_WORDS]));
        Ok(block)
    }

    /// The file blocks from `start` on get the places from `place` on, which have the bit of unwritten blocks or not.
    pub(crate) fn set(&mut self, start: u64, len: u64, place: u64) -> Result<()> {
        self.grow(start + len)?;
        let height = height_of(self.root);
        if height == 0 {
            self.root = place;
            return Ok(());
        }
        let node = self.root & tree::BLOCK_MASK;
        self.set_below(node, height, 0, Piece { start, len, place })
    }

    /// Makes the tree high enough for `end` blocks.
    fn grow(&mut self, end: u64) -> Result<()> {
        if self.root == 0 {
            let height = (0..=tree::MAX_HEIGHT).find(|&height| span(height) >= end);
            let height = height.ok_or(Error::new(Kind::FileTooBig))?;
            if height > 0 {
                self.root = self.new_node()? | u64::from(height) << tree::HEIGHT_SHIFT;
            }
            return Ok(());
        }
        while span(height_of(self.root)) < end {
            let height = height_of(self.root);
            if height == tree::MAX_HEIGHT {
                return Err(Error::new(Kind::FileTooBig));
            }
            let old = self.root & ((1 << tree::HEIGHT_SHIFT) - 1);
            let node = self.new_node()?;
            self.put(node, 0, old);
            self.root = node | u64::from(height + 1) << tree::HEIGHT_SHIFT;
        }
        Ok(())
    }

    fn set_below(&mut self, node: u64, height: u32, base: u64, piece: Piece) -> Result<()> {
        let width = span(height - 1);
        let end = piece.start + piece.len;
        for index in (piece.start - base) / width..(end - base).div_ceil(width) {
            let at = base + index * width;
            let from = piece.start.max(at);
            let part = Piece {
                start: from,
                len: end.min(at + width) - from,
                place: piece.place + (from - piece.start),
            };
            if height == 1 {
                self.put(node, index, part.place);
                continue;
            }
            let child = match self.get(node, index)? {
                0 => {
                    let child = self.new_node()?;
                    self.put(node, index, child);
                    child
                }
                word => self.fs.bounds.block(word)?,
            };
            self.set_below(child, height - 1, at, part)?;
        }
        Ok(())
    }

    /// The file blocks `first..end` are nowhere any more.
    pub(crate) fn clear(&mut self, first: u64, end: u64) -> Result<()> {
        if self.root == 0 {
            return Ok(());
        }
        let height = height_of(self.root);
        if height > tree::MAX_HEIGHT {
            return Err(Error::corrupt(format!("a tree of height {height}")));
        }
        let word = self.root & ((1 << tree::HEIGHT_SHIFT) - 1);
        if first == 0 && end >= span(height) {
            self.free_below(word, height)?;
            self.root = 0;
            return Ok(());
        }
        if height == 0 || first >= span(height) {
            return Ok(());
        }
        self.clear_below(self.fs.bounds.block(word)?, height, 0, first, end)
    }

    fn clear_below(&mut self, node: u64, height: u32, base: u64, first: u64, end: u64) -> Result<()> {
        let width = span(height - 1);
        let from = first.saturating_sub(base) / width;
        let to = end.saturating_sub(base).div_ceil(width).min(BLOCK_WORDS as u64);
        for index in from..to {
            let word = self.get(node, index)?;
            if word == 0 {
                continue;
            }
            let at = base + index * width;
            if first <= at && at + width <= end {
                self.free_below(word, height - 1)?;
                self.put(node, index, 0);
            } else {
                self.clear_below(self.fs.bounds.block(word)?, height - 1, at, first, end)?;
            }
        }
        Ok(())
    }

    fn free_below(&mut self, word: u64, height: u32) -> Result<()> {
        let root = word | u64::from(height) << tree::HEIGHT_SHIFT;
        self.freed_data += self.fs.map(root).add_runs(&mut self.freed)?;
        Ok(())
    }

    /// Writes the new nodes and adds the words to the transaction. The root is the caller's.
    pub(crate) fn finish(
        &self,
        transaction: &mut Transaction,
        mut pending: Option<Flushed>,
    ) -> Result<Option<Flushed>> {
        for (&node, words) in &self.nodes {
            pending = join(pending, self.fs.pm.copy(Block(node).offset(), words.as_bytes())?);
        }
        for (&address, &word) in &self.words {
            transaction.word(address, word);
        }
        Ok(pending)
    }

    /// Gives the new nodes back: the change was not committed.
    pub(crate) fn give_up(&self) {
        self.fs.free_runs(&self.allocated);
    }
}
