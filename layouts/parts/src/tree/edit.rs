//! Changing a tree of blocks.
//!
//! An [`Edit`] collects changes: new nodes are built in DRAM and written where nothing leads to them yet, words of
//! nodes that are in use are the layout's to commit. So a change of any shape counts wholly or not at all. Words behind
//! the end of the tree are nobody's; they are set before the end grows, and need no commit of their own.

use std::collections::BTreeMap;

use nacre_engine::{Block, Error, Kind, Result};
use nacre_media::{Flushed, Pm};
use zerocopy::IntoBytes;

use super::{BlockMap, Bounds, MAX_HEIGHT, NODE_WORDS, Piece, Tree, Words, span};
use crate::alloc::{Purpose, Run, Runs};

/// The state of a layout that trees change in.
pub trait TreeSpace {
    /// The media of nodes.
    type Media: Pm;
    /// The words of the trees.
    type Words: Words;

    /// The media.
    fn media(&self) -> &Self::Media;

    /// The blocks that files may have.
    fn bounds(&self) -> Bounds;

    /// Allocates blocks.
    fn allocate(&self, goal: Option<Block>, blocks: u64, purpose: Purpose, runs: &mut Runs) -> Result<()>;

    /// Gives blocks back to which nothing leads.
    fn free_runs(&self, runs: &[Run]);
}

/// A node that nothing leads to yet.
type Node = Box<[u64; NODE_WORDS]>;

/// A word of a node in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// Its new value.
    pub word: u64,
    /// The first file block that it covers.
    pub at: u64,
    /// Levels from the node down to the file's blocks, at least 1.
    pub height: u32,
}

/// A change of a tree.
pub struct Edit<'a, S: TreeSpace> {
    space: &'a S,
    /// The tree as it is on media.
    pub before: Tree,
    /// The tree as it will be.
    pub tree: Tree,
    nodes: BTreeMap<u64, Node>,
    /// Words of nodes that are in use, by address.
    words: BTreeMap<u64, Changed>,
    /// Words behind the end of the tree, by address.
    idle: BTreeMap<u64, u64>,
    /// Blocks of new nodes.
    pub allocated: Runs,
    /// Blocks and nodes that nothing leads to any more.
    pub freed: Vec<Run>,
    /// How many of those are blocks of data.
    pub freed_data: u64,
    /// The purpose of new nodes.
    pub purpose: Purpose,
}

impl<'a, S: TreeSpace> Edit<'a, S> {
    /// Nothing is changed yet.
    pub fn new(space: &'a S, tree: Tree) -> Edit<'a, S> {
        Edit {
            space,
            before: tree,
            tree,
            nodes: BTreeMap::new(),
            words: BTreeMap::new(),
            idle: BTreeMap::new(),
            allocated: Runs::new(),
            freed: Vec::new(),
            freed_data: 0,
            purpose: Purpose::Metadata,
        }
    }

    fn get(&self, node: u64, index: u64, at: u64) -> Result<u64> {
        if let Some(words) = self.nodes.get(&node) {
            return Ok(words[index as usize]);
        }
        let address = Block(node).offset() + index * 8;
        if let Some(changed) = self.words.get(&address) {
            return Ok(changed.word);
        }
        match self.idle.get(&address) {
            Some(&word) => Ok(word),
            None if at >= self.before.end => Ok(0),
            None => self.space.media().load_u64(address),
        }
    }

    /// The word at `index` of a node of this height, from file block `at` on.
    fn put(&mut self, (node, height): (u64, u32), index: u64, at: u64, word: u64) {
        if let Some(words) = self.nodes.get_mut(&node) {
            words[index as usize] = word;
            return;
        }
        let address = Block(node).offset() + index * 8;
        if at >= self.before.end {
            self.idle.insert(address, word);
        } else {
            self.words.insert(address, Changed { word, at, height });
        }
    }

    fn new_node(&mut self, words: Node) -> Result<u64> {
        let mut runs = Runs::new();
        self.space.allocate(None, 1, self.purpose, &mut runs)?;
        let block = runs[0].start.0;
        self.allocated.extend(runs);
        self.nodes.insert(block, words);
        Ok(block)
    }

    /// The file blocks of a piece get its places.
    pub fn set(&mut self, piece: Piece) -> Result<()> {
        self.grow(piece.end())?;
        self.extend(piece.end())?;
        if self.tree.height == 0 {
            self.tree.root = word_of::<S>(&piece);
            return Ok(());
        }
        self.set_below(self.tree.root, self.tree.height, 0, piece)
    }

    /// Makes the tree high enough for `end` blocks.
    fn grow(&mut self, end: u64) -> Result<()> {
        if self.tree.root == 0 {
            let height = (0..=MAX_HEIGHT).find(|&height| span(height) >= end);
            self.tree.height = height.ok_or(Error::new(Kind::FileTooBig))?;
            if self.tree.height > 0 {
                self.tree.root = self.new_node(Box::new([0; NODE_WORDS]))?;
            }
            return Ok(());
        }
        while span(self.tree.height) < end {
            if self.tree.height == MAX_HEIGHT {
                return Err(Error::new(Kind::FileTooBig));
            }
            let mut words = Box::new([0; NODE_WORDS]);
            words[0] = self.tree.root;
            self.tree.root = self.new_node(words)?;
            self.tree.height += 1;
        }
        Ok(())
    }

    /// Moves the end of the tree to `end`, if it is before that. Words of nodes in use that come to count become 0.
    fn extend(&mut self, end: u64) -> Result<()> {
        let old = self.tree.end;
        if end <= old {
            return Ok(());
        }
        self.tree.end = end;
        let (mut node, mut height, mut base) = (self.tree.root, self.tree.height, 0);
        // The nodes that have the last block before the old end: all others are new, or end before it.
        while height > 0 && old > 0 {
            let width = span(height - 1);
            let index = (old - 1 - base) / width;
            let stop = (end - base).div_ceil(width).min(NODE_WORDS as u64);
            for next in index + 1..stop {
                self.put((node, height), next, base + next * width, 0);
            }
            let word = self.get(node, index, base + index * width)?;
            height -= 1;
            base += index * width;
            if word == 0 || height == 0 {
                break;
            }
            node = self.space.bounds().block(word)?;
        }
        Ok(())
    }

    fn set_below(&mut self, node: u64, height: u32, base: u64, piece: Piece) -> Result<()> {
        let width = span(height - 1);
        for index in (piece.start - base) / width..(piece.end() - base).div_ceil(width).min(NODE_WORDS as u64)
        {
            let at = base + index * width;
            let from = piece.start.max(at);
            let part = Piece {
                start: from,
                len: piece.end().min(at + width) - from,
                place: piece.place + (from - piece.start),
                ..piece
            };
            if height == 1 {
                self.put((node, height), index, at, word_of::<S>(&part));
                continue;
            }
            let child = match self.get(node, index, at)? {
                0 => {
                    let child = self.new_node(Box::new([0; NODE_WORDS]))?;
                    self.put((node, height), index, at, child);
                    child
                }
                word => self.space.bounds().block(word)?,
            };
            self.set_below(child, height - 1, at, part)?;
        }
        Ok(())
    }

    /// The file blocks `first..end` are nowhere any more.
    pub fn clear(&mut self, first: u64, end: u64) -> Result<()> {
        let Tree { root, height, .. } = self.tree;
        let end = end.min(self.tree.end);
        if root == 0 || first >= end {
            return Ok(());
        }
        self.map().check_height()?;
        if first == 0 && (end >= span(height) || end == self.tree.end) {
            self.free_below(root, height, 0)?;
            self.tree = Tree { root: 0, height: 0, end: self.none() };
            return Ok(());
        }
        if height == 0 || first >= span(height) {
            return Ok(());
        }
        self.clear_below(self.space.bounds().block(root)?, height, 0, (first, end))
    }

    /// The end of a tree without blocks: where it counts, nothing is before it.
    fn none(&self) -> u64 {
        if self.before.end == u64::MAX { u64::MAX } else { 0 }
    }

    fn clear_below(&mut self, node: u64, height: u32, base: u64, (first, end): (u64, u64)) -> Result<()> {
        let width = span(height - 1);
        let from = first.saturating_sub(base) / width;
        let to = end.saturating_sub(base).div_ceil(width).min(NODE_WORDS as u64);
        for index in from..to {
            let at = base + index * width;
            let word = self.get(node, index, at)?;
            if word == 0 {
                continue;
            }
            // Behind the end there is nothing that a part could keep.
            if first <= at && (at + width <= end || end == self.tree.end) {
                self.free_below(word, height - 1, at)?;
                self.put((node, height), index, at, 0);
            } else {
                self.clear_below(self.space.bounds().block(word)?, height - 1, at, (first, end))?;
            }
        }
        Ok(())
    }

    /// The tree ends at `end`, if it goes on there: no word changes for that.
    pub fn cut(&mut self, end: u64) -> Result<()> {
        let Tree { root, height, end: old } = self.tree;
        if root == 0 || end >= old {
            return Ok(());
        }
        self.map().check_height()?;
        if end == 0 {
            self.free_below(root, height, 0)?;
            self.tree = Tree::default();
            return Ok(());
        }
        if height > 0 {
            self.cut_below(self.space.bounds().block(root)?, height, 0, end)?;
        }
        self.tree.end = end;
        Ok(())
    }

    fn cut_below(&mut self, node: u64, height: u32, base: u64, end: u64) -> Result<()> {
        let width = span(height - 1);
        let from = (end - 1 - base) / width;
        let to = self.tree.end.saturating_sub(base).div_ceil(width).min(NODE_WORDS as u64);
        for index in from..to {
            let at = base + index * width;
            let word = self.get(node, index, at)?;
            if word == 0 {
                continue;
            }
            if at >= end {
                self.free_below(word, height - 1, at)?;
            } else if height > 1 && at + width > end {
                self.cut_below(self.space.bounds().block(word)?, height - 1, at, end)?;
            }
        }
        Ok(())
    }

    fn map(&self) -> BlockMap<'_, S::Media, S::Words> {
        BlockMap::new(self.space.media(), self.before, self.space.bounds())
    }

    fn free_below(&mut self, word: u64, height: u32, base: u64) -> Result<()> {
        let mut freed = std::mem::take(&mut self.freed);
        let data = self.map().add_runs_below(word, height, base, &mut freed);
        self.freed = freed;
        self.freed_data += data?;
        Ok(())
    }

    /// The words of nodes in use that change, with their addresses.
    pub fn words(&self) -> impl ExactSizeIterator<Item = (u64, Changed)> {
        self.words.iter().map(|(&address, &changed)| (address, changed))
    }

    /// A new block takes the place of a node in use: its changed words are those of the copy, and the word that leads
    /// to it changes. `at` is a file block below it.
    pub fn replace_node(&mut self, at: u64, height: u32) -> Result<()> {
        let mut above = None;
        let (mut node, mut base) = (self.tree.root, 0);
        for level in (height + 1..=self.tree.height).rev() {
            let width = span(level - 1);
            let index = (at - base) / width;
            base += index * width;
            above = Some(((node, level), index));
            node = self.get(node, index, base)?;
        }
        self.space.bounds().block(node)?;
        let mut words = Box::new([0; NODE_WORDS]);
        let width = span(height - 1);
        let until = |end: u64| end.saturating_sub(base).div_ceil(width).min(NODE_WORDS as u64) as usize;
        let count = until(self.tree.end);
        let on_media = &mut words[..count.min(until(self.before.end))];
        let start = Block(node).offset();
        self.space.media().read(start, on_media.as_mut_bytes())?;
        let range = start..start + size_of_val(&*words) as u64;
        let changed = self.words.extract_if(range.clone(), |_, _| true);
        let changed = changed.map(|(address, changed)| (address, changed.word));
        for (address, word) in changed.chain(self.idle.extract_if(range, |_, _| true)) {
            let index = ((address - start) / 8) as usize;
            words[index] = if index < count { word } else { 0 };
        }
        let copy = self.new_node(words)?;
        self.freed.push(Run { start: Block(node), len: 1 });
        match above {
            Some((above, index)) => self.put(above, index, base, copy),
            None => self.tree.root = copy,
        }
        Ok(())
    }

    /// Writes the new nodes, and the words behind the end.
    #[track_caller]
    pub fn write(&self, mut pending: Option<Flushed>) -> Result<Option<Flushed>> {
        let pm = self.space.media();
        for (&node, words) in &self.nodes {
            pending = join(pending, pm.copy(Block(node).offset(), words.as_bytes())?);
        }
        let mut stored = Vec::with_capacity(self.idle.len());
        for (&address, word) in &self.idle {
            stored.push(pm.store(address, word.as_bytes())?);
        }
        if let Some(flushed) = pm.flush_all(stored) {
            pending = join(pending, flushed);
        }
        Ok(pending)
    }

    /// Gives the new nodes back: the change was not committed.
    pub fn give_up(&self) {
        self.space.free_runs(&self.allocated);
    }
}

fn word_of<S: TreeSpace>(piece: &Piece) -> u64 {
    piece.place | if piece.is_written { 0 } else { <S::Words as Words>::UNWRITTEN }
}

/// Joins flushes that one fence will cover.
pub fn join(earlier: Option<Flushed>, next: Flushed) -> Option<Flushed> {
    Some(match earlier {
        Some(earlier) => earlier.and(next),
        None => next,
    })
}
