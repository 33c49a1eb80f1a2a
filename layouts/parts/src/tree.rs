//! Where a file's blocks are: a tree on media, of nodes of 512 words, as high as the file needs.
//!
//! The root of a tree of height 0 leads to the file's only block. Each level above takes nine bits of a file block. A
//! tree grows at its root: the new root's first word leads to the old one. Nodes are read where they are; no index of
//! them is kept. Words from the tree's end on do not count: they are never read. How a tree changes is in `edit`.

pub mod edit;

use std::marker::PhantomData;

use nacre_engine::{BLOCK_SIZE, Block, Error, FileBlock, Kind, Place, PlacedExtent, Result, SeekTo};
use nacre_media::Pm;
use zerocopy::IntoBytes;

use crate::alloc::Run;
use crate::superblock::Superblock;

/// Words in a node.
pub const NODE_WORDS: usize = 512;
/// Bits of a file block that one level takes.
pub const LEVEL_BITS: u32 = 9;
/// Enough for the largest file, of 16 TiB.
pub const MAX_HEIGHT: u32 = 4;

/// The blocks that files may have.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The first one.
    pub first: u64,
    /// The one behind the last.
    pub end: u64,
}

impl Bounds {
    /// Those behind the regions of a superblock.
    pub fn of(superblock: &Superblock) -> Bounds {
        Bounds { first: superblock.first_data_block(), end: superblock.raw.device_blocks }
    }

    /// A block, if it can be one of a file.
    pub fn block(self, block: u64) -> Result<u64> {
        if (self.first..self.end).contains(&block) {
            Ok(block)
        } else {
            Err(Error::corrupt(format!("a tree leads to block {block:#x}")))
        }
    }
}

/// The words of a layout's trees. A word that leads to a node is the number of its block; 0 is nowhere.
pub trait Words {
    /// The bit of a block of data that is allocated and not written: it reads as zeros.
    const UNWRITTEN: u64;

    /// Fails for a place (a word without that bit) at which no block of data can be.
    fn check(bounds: Bounds, place: u64) -> Result<()> {
        bounds.block(place).map(drop)
    }
}

/// Blocks of a file that follow each other on media, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The first file block.
    pub start: u64,
    /// How many there are.
    pub len: u64,
    /// The place of the first one: its word, without the bit of unwritten blocks.
    pub place: u64,
    /// They are written.
    pub is_written: bool,
}

impl Piece {
    /// The first block on PM.
    pub fn block(&self) -> Block {
        Block(self.place)
    }

    /// The file block behind the last one.
    pub fn end(&self) -> u64 {
        self.start + self.len
    }

    /// Reads the blocks, which are on PM, into a buffer of bytes of the file from `offset` on. It is filled up to byte
    /// `at` of the file, and the hole from there to the blocks becomes zeros.
    #[inline]
    pub fn read(&self, pm: &impl Pm, offset: u64, at: &mut u64, buffer: &mut [u8]) -> Result<()> {
        let end = offset + buffer.len() as u64;
        let from = (self.start * BLOCK_SIZE).max(offset);
        let to = (self.end() * BLOCK_SIZE).min(end);
        buffer[(*at - offset) as usize..(from - offset) as usize].fill(0);
        let media = self.block().offset() + (from - self.start * BLOCK_SIZE);
        pm.read(media, &mut buffer[(from - offset) as usize..(to - offset) as usize])?;
        *at = to;
        Ok(())
    }
}

/// A block in use, as [`BlockMap::for_each_used`] finds it.
pub enum Found {
    /// A node.
    Node(u64),
    /// A file block and its place.
    Data(Piece),
}

/// A tree, as an inode has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tree {
    /// The word of the root's block; 0 for a tree without blocks.
    pub root: u64,
    /// Levels of nodes above the file's blocks.
    pub height: u32,
    /// File blocks from here on are nowhere, whatever the words of nodes say.
    pub end: u64,
}

/// A tree on media.
pub struct BlockMap<'a, P, W> {
    /// The media.
    pub pm: &'a P,
    /// The tree.
    pub tree: Tree,
    /// The blocks that files may have.
    pub bounds: Bounds,
    words: PhantomData<W>,
}

/// Blocks that a tree of this height covers.
pub fn span(height: u32) -> u64 {
    1 << (LEVEL_BITS * height)
}

impl<'a, P: Pm, W: Words> BlockMap<'a, P, W> {
    /// A tree on `pm`.
    pub fn new(pm: &'a P, tree: Tree, bounds: Bounds) -> BlockMap<'a, P, W> {
        BlockMap { pm, tree, bounds, words: PhantomData }
    }

    fn check_height(&self) -> Result<()> {
        match self.tree.height {
            ..=MAX_HEIGHT => Ok(()),
            height => Err(Error::corrupt(format!("a tree of height {height}"))),
        }
    }

    /// The piece of one block of data.
    fn piece(&self, start: u64, word: u64) -> Result<Piece> {
        let place = word & !W::UNWRITTEN;
        W::check(self.bounds, place)?;
        Ok(Piece { start, len: 1, place, is_written: word & W::UNWRITTEN == 0 })
    }

    /// Calls `visit` with the pieces in `first..end`, in order.
    pub fn for_each(&self, first: u64, end: u64, visit: &mut dyn FnMut(Piece)) -> Result<()> {
        let end = end.min(self.tree.end);
        if self.tree.root == 0 || first >= end {
            return Ok(());
        }
        self.check_height()?;
        let mut last: Option<Piece> = None;
        let mut add = |next: Piece| match &mut last {
            Some(piece)
                if piece.end() == next.start
                    && piece.place + piece.len == next.place
                    && piece.is_written == next.is_written =>
            {
                piece.len += 1;
            }
            _ => {
                if let Some(piece) = last.replace(next) {
                    visit(piece);
                }
            }
        };
        self.descend(self.tree.root, self.tree.height, 0, (first, end), &mut add)?;
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
        (first, end): (u64, u64),
        add: &mut dyn FnMut(Piece),
    ) -> Result<()> {
        if height == 0 {
            if base >= first && base < end {
                add(self.piece(base, word)?);
            }
            return Ok(());
        }
        let block = self.bounds.block(word)?;
        let width = span(height - 1);
        let from = first.saturating_sub(base) / width;
        let to = end.saturating_sub(base).div_ceil(width).min(NODE_WORDS as u64);
        if from >= to {
            return Ok(());
        }
        let mut words = [0u64; NODE_WORDS];
        let words = &mut words[from as usize..to as usize];
        self.pm.read(Block(block).offset() + from * 8, words.as_mut_bytes())?;
        for (index, &word) in (from..).zip(words.iter()) {
            if word != 0 {
                self.descend(word, height - 1, base + index * width, (first, end), add)?;
            }
        }
        Ok(())
    }

    /// The piece of one file block, if it is somewhere.
    pub fn find(&self, block: u64) -> Result<Option<Piece>> {
        let mut found = None;
        self.for_each(block, block + 1, &mut |piece| found = Some(piece))?;
        Ok(found)
    }

    /// Where the word of a file block is, if there is a node for it. The word counts if the block is before the end.
    pub fn leaf_word(&self, block: u64) -> Result<Option<u64>> {
        let Tree { root, height, end } = self.tree;
        if root == 0 || height == 0 || block >= span(height) {
            return Ok(None);
        }
        self.check_height()?;
        let (mut node, mut base) = (root, 0);
        for level in (1..=height).rev() {
            let width = span(level - 1);
            let index = (block - base) / width;
            let address = Block(self.bounds.block(node)?).offset() + index * 8;
            base += index * width;
            if level == 1 {
                return Ok(Some(address));
            }
            node = if base < end { self.pm.load_u64(address)? } else { 0 };
            if node == 0 {
                break;
            }
        }
        Ok(None)
    }

    /// The piece that the word of a file block says.
    pub fn piece_of(&self, block: u64, word: u64) -> Result<Option<Piece>> {
        if word == 0 { Ok(None) } else { self.piece(block, word).map(Some) }
    }

    /// The first piece at or after a file block.
    pub fn next_mapped(&self, block: u64, end: u64) -> Result<Option<Piece>> {
        // Leaf by leaf: a file may be long.
        let end = end.min(self.tree.end);
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
            at = self.skip(until, end)?.max(until);
        }
        Ok(None)
    }

    /// The first file block at or after `at` with an existing leaf, or the end of the tree.
    fn skip(&self, at: u64, end: u64) -> Result<u64> {
        let Tree { root, height, .. } = self.tree;
        if root == 0 || at >= end || at >= span(height) {
            return Ok(u64::MAX);
        }
        let (mut block, mut base) = (root, 0);
        for level in (2..=height).rev() {
            let width = span(level - 1);
            let index = (at - base) / width;
            let word = self.pm.load_u64(Block(self.bounds.block(block)?).offset() + index * 8)?;
            base += index * width;
            if word == 0 {
                return Ok(base + width);
            }
            block = word;
        }
        Ok(at)
    }

    /// Calls `visit` with every node and block, parents first, until it says no.
    pub fn for_each_used(&self, visit: &mut dyn FnMut(Found) -> bool) -> Result<()> {
        if self.tree.root == 0 {
            return Ok(());
        }
        self.check_height()?;
        self.used(self.tree.root, self.tree.height, 0, visit).map(drop)
    }

    /// Adds the runs of all nodes and blocks to `runs`; gives the number of blocks of data.
    pub fn add_runs(&self, runs: &mut Vec<Run>) -> Result<u64> {
        if self.tree.root == 0 {
            return Ok(0);
        }
        self.check_height()?;
        self.add_runs_below(self.tree.root, self.tree.height, 0, runs)
    }

    /// The same below a word of a node.
    pub(crate) fn add_runs_below(
        &self,
        word: u64,
        height: u32,
        base: u64,
        runs: &mut Vec<Run>,
    ) -> Result<u64> {
        let mut data = 0;
        self.used(word, height, base, &mut |found| {
            let block = match found {
                Found::Node(block) => block,
                Found::Data(piece) => {
                    data += 1;
                    piece.place
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
        if height == 0 {
            return Ok(visit(Found::Data(self.piece(base, word)?)));
        }
        let block = self.bounds.block(word)?;
        if !visit(Found::Node(block)) {
            return Ok(false);
        }
        let width = span(height - 1);
        let count = self.tree.end.saturating_sub(base).div_ceil(width).min(NODE_WORDS as u64);
        let mut words = [0u64; NODE_WORDS];
        let words = &mut words[..count as usize];
        self.pm.read(Block(block).offset(), words.as_mut_bytes())?;
        for (index, &word) in (0u64..).zip(words.iter()) {
            if word != 0 && !self.used(word, height - 1, base + index * width, visit)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The first data or hole of a file of `size` bytes at or after `offset`.
    pub fn seek(&self, size: u64, offset: u64, to: SeekTo) -> Result<u64> {
        use nacre_engine::BLOCK_SIZE;
        if offset >= size {
            return Err(Error::new(Kind::NoSuchOffset));
        }
        let end = size.div_ceil(BLOCK_SIZE);
        let mut block = offset / BLOCK_SIZE;
        while block < end {
            match (self.next_mapped(block, end)?, to) {
                (None, SeekTo::Hole) => return Ok((block * BLOCK_SIZE).max(offset)),
                (None, SeekTo::Data) => return Err(Error::new(Kind::NoSuchOffset)),
                (Some(piece), SeekTo::Hole) if piece.start > block || !piece.is_written => {
                    return Ok((block * BLOCK_SIZE).max(offset));
                }
                (Some(piece), SeekTo::Data) if piece.is_written => {
                    return Ok((piece.start.max(block) * BLOCK_SIZE).max(offset));
                }
                (Some(piece), _) => block = piece.end(),
            }
        }
        match to {
            SeekTo::Data => Err(Error::new(Kind::NoSuchOffset)),
            SeekTo::Hole => Ok(size),
        }
    }

    /// Where the file blocks `start..end` are, holes among them; `place_of` says it of a piece.
    pub fn extents(
        &self,
        start: u64,
        end: u64,
        place_of: impl Fn(&Piece) -> Place,
    ) -> Result<Vec<PlacedExtent>> {
        let mut extents = Vec::new();
        if start >= end {
            return Ok(extents);
        }
        let mut at = start;
        let mut push = |from: u64, len: u64, place: Place| {
            if len > 0 {
                extents.push(PlacedExtent { start: FileBlock(from), len, place });
            }
        };
        self.for_each(start, end, &mut |piece| {
            push(at, piece.start - at, Place::Hole);
            push(piece.start, piece.len, place_of(&piece));
            at = piece.end();
        })?;
        push(at, end - at, Place::Hole);
        Ok(extents)
    }
}

/// The place of a piece on PM.
pub fn place_on_pm(piece: &Piece) -> Place {
    if piece.is_written { Place::Pm(piece.block()) } else { Place::Unwritten(piece.block()) }
}
