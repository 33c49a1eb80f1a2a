//! Where a file's blocks are: a tree on media, of nodes of 512 words, as high as the file needs.
//!
//! A root of height 0 is the file's only block. Each level above takes nine bits of a file block. A tree grows at its
//! root: the new root's first word leads to the old one. Nodes are read where they are; no index of them is kept. How a
//! tree changes is in `tree_edit`.

use nacre_engine::{Block, Error, Result};
use nacre_media::Pm;
use zerocopy::IntoBytes;

use crate::alloc::Run;
use crate::format::{BLOCK_WORDS, tree};
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
pub(crate) fn height_of(root: u64) -> u32 {
    (root >> tree::HEIGHT_SHIFT) as u32
}

/// Blocks that a word of a node covers, if the children of the node are `height` levels high.
pub(crate) fn span(height: u32) -> u64 {
    1 << (tree::LEVEL_BITS * height)
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

    /// Adds the runs of all nodes and blocks to `runs`; gives the number of blocks of data.
    pub(crate) fn add_runs(&self, runs: &mut Vec<Run>) -> Result<u64> {
        let mut data = 0;
        self.for_each_used(&mut |found| {
            let block = match found {
                Found::Node(block) => block,
                Found::Data(_, place) => {
                    data += 1;
                    place & tree::BLOCK_MASK
                }
            };
            match runs.last_mut() {
                Some(last) if last.start.0 + last.len == block => last.len += 1,
                _ => runs.push(Run { start: Block(block), len: 1 }),
            }
            true
        })?;
        Ok(data)
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
