//! Where a file's blocks are: an extent in the inode, or a tree of nodes of 512 words, as high as the file needs.
//! Nodes are read where they are. How a tree changes is in `tree_edit`.

use nacre_engine::{BLOCK_SIZE, Block, Error, Result};
use nacre_media::Pm;
use smallvec::SmallVec;

use crate::format::{GROUP_BLOCKS, LEVEL_BITS, NODE_WORDS, RawInode, root, word};
use crate::fs::Shared;

/// Blocks of a file that follow each other, there and on PM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The first block in the file.
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// The first block on PM.
    pub(crate) block: u64,
    pub(crate) is_written: bool,
}

/// Pieces of a file, in order; of a small write at most four.
pub(crate) type Pieces = SmallVec<[Piece; 4]>;
/// Words of a node; of a small write at most eight.
pub(crate) type Words = SmallVec<[u64; 8]>;

impl Piece {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.len
    }

    /// The part of it in a range.
    pub(crate) fn within(&self, first: u64, last: u64) -> Option<Piece> {
        let (start, end) = (self.start.max(first), self.end().min(last));
        let block = self.block + (start - self.start);
        (start < end).then(|| Piece { start, len: end - start, block, ..*self })
    }

    /// The first byte on PM.
    pub(crate) fn offset(&self) -> u64 {
        Block(self.block).offset()
    }

    /// It goes on where the other one ends.
    fn continues(&self, other: &Piece) -> bool {
        other.end() == self.start
            && other.block + other.len == self.block
            && other.is_written == self.is_written
    }
}

/// The root of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tree {
    pub(crate) height: u8,
    /// Its value: an extent, or where the highest node is.
    pub(crate) root: u64,
}

impl Tree {
    /// The extent of a tree without nodes.
    pub(crate) fn extent(&self) -> Option<Piece> {
        (self.height == 0 && self.root != 0).then(|| Piece {
            start: 0,
            len: (self.root >> root::COUNT_SHIFT & root::COUNT_MASK) + 1,
            block: self.root & root::BLOCK_MASK,
            is_written: self.root & root::UNWRITTEN == 0,
        })
    }

    /// The tree of an extent at the file's start; `None` if it is too long.
    pub(crate) fn of_extent(piece: &Piece) -> Option<Tree> {
        let fits = piece.start == 0 && piece.len <= root::COUNT_MASK + 1;
        let unwritten = if piece.is_written { 0 } else { root::UNWRITTEN };
        fits.then(|| Tree { height: 0, root: piece.block | (piece.len - 1) << root::COUNT_SHIFT | unwritten })
    }

    /// Blocks that a tree of its height has words for.
    pub(crate) fn capacity(&self) -> u64 {
        if self.height == 0 { 0 } else { span(u32::from(self.height)) }
    }
}

/// Blocks below a node of a height.
pub(crate) fn span(height: u32) -> u64 {
    1 << (LEVEL_BITS * height)
}

/// The piece that a word of a lowest node says.
pub(crate) fn piece_of(value: u64, start: u64, len: u64) -> Piece {
    Piece { start, len, block: value & word::BLOCK_MASK, is_written: value & word::UNWRITTEN == 0 }
}

/// Where the node is that a word leads to.
pub(crate) fn node_of(value: u64) -> u64 {
    (value & word::BLOCK_MASK) << word::NODE_SHIFT
}

/// A visitor of pieces.
pub(crate) type Visit<'v> = dyn FnMut(Piece) -> Result<()> + 'v;

/// The error of a tree that leads to more nodes than there can be.
pub(crate) fn again_and_again(node: u64) -> Error {
    Error::corrupt(format!("a tree leads to the node at byte {node} again and again"))
}

/// Joins pieces that follow each other before they are visited.
struct Joined<'v, 'f> {
    last: Option<Piece>,
    /// More nodes than there can be are a damaged tree that leads to one node again and again.
    nodes_left: u64,
    visit: &'v mut Visit<'f>,
}

impl Joined<'_, '_> {
    fn put(&mut self, piece: Piece) -> Result<()> {
        if let Some(last) = &mut self.last
            && piece.continues(last)
        {
            last.len += piece.len;
            return Ok(());
        }
        self.last.replace(piece).map_or(Ok(()), |last| (self.visit)(last))
    }
}

impl<P: Pm> Shared<P> {
    /// The tree of a file, which is locked.
    pub(crate) fn tree(&self, number: u64, raw: &RawInode) -> Result<Tree> {
        Ok(Tree { height: raw.height, root: self.root_of(number, raw)? })
    }

    /// Words of a node.
    pub(crate) fn read_node(&self, node: u64, first: usize, words: &mut [u64]) -> Result<()> {
        if !self.geometry.is_entry(node, BLOCK_SIZE) {
            return Err(Error::corrupt(format!("a node at byte {node}")));
        }
        let seed = self.geometry.seed(node);
        self.read_words(node + first as u64 * 8, seed, words, || format!("the node at byte {node}"))
    }

    /// Calls `visit` with the pieces in a range of blocks, in order.
    pub(crate) fn for_each(&self, tree: Tree, first: u64, last: u64, visit: &mut Visit<'_>) -> Result<()> {
        let mut joined = Joined { last: None, nodes_left: self.geometry.blocks(), visit };
        if let Some(extent) = tree.extent() {
            if let Some(piece) = extent.within(first, last) {
                joined.put(self.checked(piece)?)?;
            }
        } else if tree.height > 0 {
            let last = last.min(tree.capacity());
            if first < last {
                self.walk(node_of(tree.root), u32::from(tree.height), 0, (first, last), &mut joined)?;
            }
        }
        joined.last.take().map_or(Ok(()), |piece| (joined.visit)(piece))
    }

    fn walk(
        &self,
        node: u64,
        height: u32,
        base: u64,
        (first, last): (u64, u64),
        joined: &mut Joined<'_, '_>,
    ) -> Result<()> {
        joined.nodes_left = joined.nodes_left.checked_sub(1).ok_or_else(|| again_and_again(node))?;
        let below = span(height - 1);
        let from = ((first.max(base) - base) / below) as usize;
        let to = ((last.min(base + span(height)) - 1 - base) / below) as usize;
        let mut words = Words::from_elem(0, to + 1 - from);
        self.read_node(node, from, &mut words)?;
        for (index, &value) in (from as u64..).zip(&words) {
            let start = base + index * below;
            if value == 0 {
                continue;
            }
            if height == 1 || height == 2 && value & word::HUGE != 0 {
                let piece = piece_of(value, start, below);
                if let Some(piece) = piece.within(first, last) {
                    joined.put(self.checked(piece)?)?;
                }
            } else {
                self.walk(node_of(value), height - 1, start, (first, last), joined)?;
            }
        }
        Ok(())
    }

    /// The lowest node with a word for a block, and the word's index. `None` where none is.
    pub(crate) fn lowest_node(&self, tree: Tree, block: u64) -> Result<Option<(u64, usize)>> {
        if block >= tree.capacity() {
            return Ok(None);
        }
        let mut node = node_of(tree.root);
        let mut height = u32::from(tree.height);
        loop {
            height -= 1;
            let index = block as usize >> (LEVEL_BITS * height) & (NODE_WORDS - 1);
            if height == 0 {
                return Ok(Some((node, index)));
            }
            let mut word = [0];
            self.read_node(node, index, &mut word)?;
            if word[0] == 0 || word[0] & word::HUGE != 0 {
                return Ok(None);
            }
            node = node_of(word[0]);
        }
    }

    /// The group that one word of a tree leads to, with a block of the file. `None` where no such word is.
    pub(crate) fn whole_group(&self, tree: Tree, block: u64) -> Result<Option<Piece>> {
        if tree.height < 2 || self.lowest_node(tree, block)?.is_some() {
            return Ok(None);
        }
        let start = block / GROUP_BLOCKS * GROUP_BLOCKS;
        let pieces = self.pieces(tree, start, start.saturating_add(GROUP_BLOCKS))?;
        Ok(pieces.first().copied().filter(|piece| piece.len == GROUP_BLOCKS))
    }

    /// A piece that is where pieces can be.
    pub(crate) fn checked(&self, piece: Piece) -> Result<Piece> {
        if self.geometry.is_data(piece.block, piece.len) {
            return Ok(piece);
        }
        Err(Error::corrupt(format!("block {} of a file, where no file has one", piece.start)))
    }

    /// The pieces in a range.
    pub(crate) fn pieces(&self, tree: Tree, first: u64, last: u64) -> Result<Pieces> {
        let mut pieces = Pieces::new();
        self.for_each(tree, first, last, &mut |piece| {
            pieces.push(piece);
            Ok(())
        })?;
        Ok(pieces)
    }

    /// The first piece in a range.
    pub(crate) fn first_piece(&self, tree: Tree, first: u64, last: u64) -> Result<Option<Piece>> {
        // A group at a time: a file may have very many pieces behind the first.
        let mut at = first;
        let end = last.min(tree.extent().map_or(tree.capacity(), |extent| extent.end()));
        while at < end {
            let until = (at / GROUP_BLOCKS + 1).saturating_mul(GROUP_BLOCKS).min(end);
            let mut found = None;
            self.for_each(tree, at, until, &mut |piece| {
                found.get_or_insert(piece);
                Ok(())
            })?;
            if found.is_some() {
                return Ok(found);
            }
            at = self.next_node(tree, until)?;
        }
        Ok(None)
    }

    /// The first block from `at` on below a word that is no hole.
    fn next_node(&self, tree: Tree, at: u64) -> Result<u64> {
        if tree.height < 2 {
            return Ok(at);
        }
        let mut node = node_of(tree.root);
        let mut base = 0;
        for height in (2..=u32::from(tree.height)).rev() {
            let below = span(height - 1);
            let from = ((at.max(base) - base) / below) as usize;
            if from >= NODE_WORDS {
                return Ok(base + span(height));
            }
            let mut words = Words::from_elem(0, NODE_WORDS - from);
            self.read_node(node, from, &mut words)?;
            let Some(index) = words.iter().position(|&value| value != 0) else {
                return Ok(base + span(height));
            };
            let start = base + (from + index) as u64 * below;
            if index > 0 || height == 2 {
                return Ok(start.max(at));
            }
            (node, base) = (node_of(words[0]), start);
        }
        Ok(at)
    }
}
