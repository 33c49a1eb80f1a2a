//! Where a file's blocks are: a tree on media, of nodes of 512 words, as high as the file needs.
//!
//! A root of height 0 is the file's only block. Each level above takes nine bits of a file block. A tree grows at its
//! root: the new root's first word leads to the old one. Nodes are read where they are; no index of them is kept.
//!
//! [`Edit`] collects changes: new nodes are built in DRAM and written where nothing leads to them yet, words of nodes
//! that are in use go to the transaction. So a change of any shape counts wholly or not at all.

use std::collections::BTreeMap;

use nacre_engine::{BLOCK_SIZE, Block, Error, Kind, Result};
use nacre_media::{Flushed, Pm};
use zerocopy::IntoBytes;

use crate::alloc::{Purpose, Run, Runs};
use crate::commit::{INODE_ENTRIES, Transaction, join};
use crate::format::{BLOCK_WORDS, LANE_ENTRIES, MAX_FILE_SIZE, tree};
use crate::fs::Shared;
use crate::superblock::Superblock;

/// The blocks that files may have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) first: u64,
    pub(crate) end: u64,
}

impl Bounds {
    pub(crate) fn of(superblock: &Superblock) -> Bounds {
        Bounds { first: superblock.first_data_block(), end: superblock.raw.device_blocks }
    }

    /// The block of a word, if it can be one.
    pub(crate) fn block(self, word: u64) -> Result<u64> {
        let block = word & tree::BLOCK_MASK;
        if (self.first..self.end).contains(&block) && word & !(tree::BLOCK_MASK | tree::UNWRITTEN) == 0 {
            Ok(block)
        } else {
            Err(Error::corrupt(format!("a tree leads to block {word:#x}")))
        }
    }
}

/// Blocks of a file that follow each other on media, too. The place has the bit of unwritten blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) place: u64,
}

impl Piece {
    pub(crate) fn is_written(&self) -> bool {
        self.place & tree::UNWRITTEN == 0
    }

    pub(crate) fn block(&self) -> Block {
        Block(self.place & tree::BLOCK_MASK)
    }
}

/// A block in use, as [`BlockMap::for_each_used`] finds it.
pub(crate) enum Found {
    /// A node.
    Node(u64),
    /// A file block and its place.
    Data(u64, u64),
}

/// A tree of blocks.
pub(crate) struct BlockMap<'a, P> {
    pub(crate) pm: &'a P,
    pub(crate) root: u64,
    pub(crate) bounds: Bounds,
}

/// The height that a root says.
fn height_of(root: u64) -> u32 {
    (root >> tree::HEIGHT_SHIFT) as u32
}

/// Blocks that a word of a node covers, if the children of the node are `height` levels high.
fn span(height: u32) -> u64 {
    1 << (tree::LEVEL_BITS * height)
}

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

impl<P: Pm> BlockMap<'_, P> {
    /// The word of the root's block, and the height.
    fn open(&self) -> Result<(u64, u32)> {
        let height = height_of(self.root);
        if height > tree::MAX_HEIGHT {
            return Err(Error::corrupt(format!("a tree of height {height}")));
        }
        Ok((self.root & ((1 << tree::HEIGHT_SHIFT) - 1), height))
    }

    /// Calls `visit` with the pieces in `first..end`, in order.
    pub(crate) fn for_each(&self, first: u64, end: u64, visit: &mut dyn FnMut(Piece)) -> Result<()> {
        if self.root == 0 || first >= end {
            return Ok(());
        }
        let (word, height) = self.open()?;
        let mut last: Option<Piece> = None;
        let mut add = |at: u64, place: u64| match &mut last {
            Some(piece) if piece.start + piece.len == at && piece.place + piece.len == place => {
                piece.len += 1
            }
            _ => {
                if let Some(piece) = last.replace(Piece { start: at, len: 1, place }) {
                    visit(piece);
                }
            }
        };
        self.descend(word, height, 0, first, end, &mut add)?;
        if let Some(piece) = last {
            visit(piece);
        }
        Ok(())
    }

    fn descend(
        &self,
        word: u64,
        height: u32,
        base: u64,
        first: u64,
        end: u64,
        add: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        let block = self.bounds.block(word)?;
        if height == 0 {
            if base >= first && base < end {
                add(base, word);
            }
            return Ok(());
        }
        let width = span(height - 1);
        let from = first.saturating_sub(base) / width;
        let to = end.saturating_sub(base).div_ceil(width).min(BLOCK_WORDS as u64);
        if from >= to {
            return Ok(());
        }
        let mut words = [0u64; BLOCK_WORDS];
        let words = &mut words[from as usize..to as usize];
        self.pm.read(Block(block).offset() + from * 8, words.as_mut_bytes())?;
        for (index, &word) in (from..).zip(words.iter()) {
            if word != 0 {
                self.descend(word, height - 1, base + index * width, first, end, add)?;
            }
        }
        Ok(())
    }

    /// The piece that a file block is in, from there on, of at most `limit` blocks.
    pub(crate) fn find(&self, block: u64) -> Result<Option<u64>> {
        let mut place = None;
        self.for_each(block, block + 1, &mut |piece| place = Some(piece.place))?;
        Ok(place)
    }

    /// The first piece at or after a file block.
    pub(crate) fn next_mapped(&self, block: u64, end: u64) -> Result<Option<Piece>> {
        // Leaf by leaf: a file may be long.
        let mut at = block;
        while at < end {
            let until = (at / span(1) + 1).saturating_mul(span(1)).min(end);
            let mut first = None;
            self.for_each(at, until, &mut |piece| {
                first.get_or_insert(piece);
            })?;
            if first.is_some() {
                return Ok(first);
            }
            at = self.skip(until)?.max(until);
        }
        Ok(None)
    }

    /// The first file block at or after `at` with an existing leaf, or the end of the tree.
    fn skip(&self, at: u64) -> Result<u64> {
        if self.root == 0 {
            return Ok(u64::MAX);
        }
        let (word, height) = self.open()?;
        if at >= span(height) {
            return Ok(u64::MAX);
        }
        let (mut block, mut base) = (self.bounds.block(word)?, 0);
        for level in (2..=height).rev() {
            let width = span(level - 1);
            let index = (at - base) / width;
            let word = self.pm.load_u64(Block(block).offset() + index * 8)?;
            base += index * width;
            if word == 0 {
                return Ok(base + width);
            }
            block = self.bounds.block(word)?;
        }
        Ok(at)
    }

    /// Calls `visit` with every node and block, parents first, until it says no.
    pub(crate) fn for_each_used(&self, visit: &mut dyn FnMut(Found) -> bool) -> Result<()> {
        if self.root == 0 {
            return Ok(());
        }
        let (word, height) = self.open()?;
        self.used(word, height, 0, visit).map(drop)
    }

    fn used(&self, word: u64, height: u32, base: u64, visit: &mut dyn FnMut(Found) -> bool) -> Result<bool> {
        let block = self.bounds.block(word)?;
        if height == 0 {
            return Ok(visit(Found::Data(base, word)));
        }
        if word & tree::UNWRITTEN != 0 {
            return Err(Error::corrupt(format!("a node in block {word:#x}")));
        }
        if !visit(Found::Node(block)) {
            return Ok(false);
        }
        let mut words = [0u64; BLOCK_WORDS];
        self.pm.read(Block(block).offset(), words.as_mut_bytes())?;
        for (index, &word) in (0u64..).zip(&words) {
            if word != 0 && !self.used(word, height - 1, base + index * span(height - 1), visit)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
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
        let map = BlockMap { pm: &*self.fs.pm, root, bounds: self.fs.bounds };
        let (mut freed, mut data) = (std::mem::take(&mut self.freed), 0);
        let result = map.for_each_used(&mut |found| {
            let block = match found {
                Found::Node(block) => block,
                Found::Data(_, place) => {
                    data += 1;
                    place & tree::BLOCK_MASK
                }
            };
            match freed.last_mut() {
                Some(last) if last.start.0 + last.len == block => last.len += 1,
                _ => freed.push(Run { start: Block(block), len: 1 }),
            }
            true
        });
        self.freed = freed;
        self.freed_data += data;
        result
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
