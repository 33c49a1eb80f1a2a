//! Changing a file's tree: a range of blocks gets new places, or none. Words of nodes are items of the operation; a
//! node of which many words change is replaced.

use std::ops::Range;

use nacre_engine::{BLOCK_SIZE, Result};
use nacre_media::Pm;
use smallvec::SmallVec;
use zerocopy::IntoBytes;

use crate::blockmap::{Piece, Pieces, Tree, Words, node_of, piece_of, span};
use crate::commit::Change;
use crate::counts::{Purpose, Run, SHORT};
use crate::format::pools::NODES;
use crate::format::{GROUP_BLOCKS, NODE_WORDS, seal_any, word};

/// Words of a node that are changed where they are. With more, the node is replaced.
const IN_PLACE: usize = 16;

/// A change of a tree.
pub(crate) struct Edit<'a> {
    /// The range that gets new places.
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// The new places in the range, in order; the rest of it become holes.
    pub(crate) new: &'a [Piece],
    pub(crate) purpose: Purpose,
}

/// The result of a change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Edited {
    pub(crate) tree: Tree,
    /// Blocks that the file has more, or fewer.
    pub(crate) blocks: i64,
}

/// The content of a node before the change.
#[derive(Clone, Copy)]
enum Old {
    Hole,
    Node(u64),
    /// A whole group.
    Huge(u64),
    /// A node above the root, that leads to it.
    Above(Tree),
}

struct Editor<'c, 'a, 'f, P: Pm> {
    change: &'c mut Change<'f, P>,
    edit: &'a Edit<'a>,
    removed: u64,
    /// Blocks that are to be freed, of which the next ones may follow.
    gone: Run,
}

impl<P: Pm> Change<'_, P> {
    /// Changes a tree. Blocks that are replaced are freed.
    pub(crate) fn edit_tree(&mut self, tree: Tree, edit: &Edit<'_>) -> Result<Edited> {
        let added: u64 = edit.new.iter().map(|piece| piece.len).sum();
        let (tree, removed) = if tree.height == 0 {
            self.edit_extent(tree, edit)?
        } else {
            let mut editor = Editor::new(self, edit);
            let tree = editor.root(tree)?;
            editor.change.free_run(editor.gone)?;
            (tree, editor.removed)
        };
        Ok(Edited { tree, blocks: added as i64 - removed as i64 })
    }

    fn edit_extent(&mut self, tree: Tree, edit: &Edit<'_>) -> Result<(Tree, u64)> {
        let extent = tree.extent();
        let mut removed = 0;
        let mut pieces = Pieces::new();
        if let Some(extent) = extent {
            pieces.extend(extent.within(0, edit.first));
            if let Some(gone) = extent.within(edit.first, edit.last) {
                removed = gone.len;
                self.free_replaced(gone, edit.new)?;
            }
        }
        pieces.extend_from_slice(edit.new);
        pieces.extend(extent.and_then(|extent| extent.within(edit.last, u64::MAX)));
        let pieces = joined(&pieces);
        if pieces.is_empty() {
            return Ok((Tree { height: 0, root: 0 }, removed));
        }
        // Space for a node is taken with blocks that are never written yet, so that a write into them needs none. A
        // short extent becomes zeros instead, and a written one that is zeroed needs no space now.
        let is_allocated =
            edit.new.iter().any(|piece| !piece.is_written) && extent.is_none_or(|extent| !extent.is_written);
        let is_long = is_allocated && pieces[0].len > SHORT;
        if let [piece] = pieces[..]
            && !is_long
            && let Some(tree) = Tree::of_extent(&piece)
        {
            return Ok((tree, removed));
        }
        let end = pieces.last().map_or(0, Piece::end);
        let height = height_for(end);
        let all = Edit { first: 0, last: span(height), new: &pieces, purpose: edit.purpose };
        let mut editor = Editor::new(self, &all);
        let root = editor.node(Old::Hole, height, 0)?;
        Ok((Tree { height: height as u8, root }, removed))
    }

    /// Frees the blocks of a piece that are not in use in the same place afterwards.
    fn free_replaced(&mut self, gone: Piece, new: &[Piece]) -> Result<()> {
        let mut at = gone.start;
        for piece in new.iter().filter_map(|piece| piece.within(gone.start, gone.end())) {
            if piece.block != gone.block + (piece.start - gone.start) {
                continue;
            }
            if at < piece.start {
                let start = gone.block + (at - gone.start);
                self.free_run(Run { start, len: piece.start - at })?;
            }
            at = piece.end();
        }
        if at < gone.end() {
            self.free_run(Run { start: gone.block + (at - gone.start), len: gone.end() - at })?;
        }
        Ok(())
    }

    /// Frees all blocks and nodes of a tree.
    pub(crate) fn free_tree(&mut self, tree: Tree) -> Result<()> {
        match tree.extent() {
            Some(extent) => self.free_run(Run { start: extent.block, len: extent.len }),
            None => self.free_below(tree.root, u32::from(tree.height) + 1).map(drop),
        }
    }

    /// Frees everything below a word of a node of height `above`.
    fn free_below(&mut self, value: u64, above: u32) -> Result<u64> {
        if value == 0 {
            return Ok(0);
        }
        if above == 1 || above == 2 && value & word::HUGE != 0 {
            let piece = piece_of(value, 0, span(above - 1));
            self.free_run(Run { start: piece.block, len: piece.len })?;
            return Ok(piece.len);
        }
        let node = node_of(value);
        let mut words = [0; NODE_WORDS];
        self.fs.read_node(node, 0, &mut words)?;
        let mut removed = 0;
        for value in words {
            removed += self.free_below(value, above - 1)?;
        }
        self.free_entry(NODES, node)?;
        Ok(removed)
    }
}

/// Levels of nodes that a file of so many blocks needs.
fn height_for(blocks: u64) -> u32 {
    (1..).find(|&height| blocks <= span(height)).unwrap_or(1)
}

/// Pieces that follow each other as one.
fn joined(pieces: &[Piece]) -> Pieces {
    let mut all = Pieces::new();
    for piece in pieces {
        match all.last_mut() {
            Some(last)
                if last.end() == piece.start
                    && last.block + last.len == piece.block
                    && last.is_written == piece.is_written =>
            {
                last.len += piece.len;
            }
            _ => all.push(*piece),
        }
    }
    all
}

impl<'c, 'a, 'f, P: Pm> Editor<'c, 'a, 'f, P> {
    fn new(change: &'c mut Change<'f, P>, edit: &'a Edit<'a>) -> Editor<'c, 'a, 'f, P> {
        Editor { change, edit, removed: 0, gone: Run { start: 0, len: 0 } }
    }

    fn root(&mut self, tree: Tree) -> Result<Tree> {
        let needed = self.edit.new.last().map_or(1, |piece| height_for(piece.end()));
        let height = needed.max(u32::from(tree.height));
        let old = match tree.height {
            own if u32::from(own) == height => Old::Node(node_of(tree.root)),
            _ => Old::Above(tree),
        };
        let root = self.node(old, height, 0)?;
        Ok(if root == 0 { Tree { height: 0, root: 0 } } else { Tree { height: height as u8, root } })
    }

    /// The words of a node of a height that the change may concern.
    fn range(&self, height: u32, base: u64) -> Range<usize> {
        let below = span(height - 1);
        let end = (base + span(height)).min(self.edit.last.max(base));
        let from = (self.edit.first.max(base).min(base + span(height)) - base) / below;
        let to = (end - base).div_ceil(below);
        from.min(to) as usize..to as usize
    }

    /// Changes what is below a node; gives the word that leads to it afterwards.
    fn node(&mut self, old: Old, height: u32, base: u64) -> Result<u64> {
        if let Old::Node(node) = old {
            return self.known_node(node, height, base);
        }
        let below = span(height - 1);
        let mut words = [0; NODE_WORDS];
        match old {
            Old::Hole | Old::Node(_) => {}
            Old::Huge(value) => {
                for (index, word) in words.iter_mut().enumerate() {
                    *word = (value & !word::HUGE) + index as u64;
                }
            }
            Old::Above(tree) => {
                words[0] = match u32::from(tree.height) + 1 == height {
                    true => tree.root,
                    false => self.node(old, height - 1, base)?,
                };
            }
        }
        // Of a root that another node was put above, everything below is done.
        let is_done = |index: usize| {
            index == 0 && matches!(old, Old::Above(tree) if u32::from(tree.height) + 1 < height)
        };
        for index in self.range(height, base).filter(|&index| !is_done(index)) {
            words[index] = self.child(words[index], height - 1, base + index as u64 * below)?;
        }
        if words == [0; NODE_WORDS] { Ok(0) } else { self.new_node(&words) }
    }

    /// The same of a node that is there. Words that the change does not concern are read when they are needed.
    fn known_node(&mut self, node: u64, height: u32, base: u64) -> Result<u64> {
        let fs = self.change.fs;
        let range = self.range(height, base);
        let (from, below) = (range.start, span(height - 1));
        let mut words = Words::from_elem(0, range.len());
        fs.read_node(node, from, &mut words)?;
        let mut changed: SmallVec<[usize; IN_PLACE]> = SmallVec::new();
        for (index, word) in (from as u64..).zip(&mut words) {
            let new = self.child(*word, height - 1, base + index * below)?;
            if std::mem::replace(word, new) != new {
                changed.push(index as usize);
            }
        }
        if changed.is_empty() {
            return Ok(node >> word::NODE_SHIFT);
        }
        if changed.len() > IN_PLACE || changed.iter().all(|&index| words[index - from] == 0) {
            let mut all = [0; NODE_WORDS];
            fs.read_node(node, 0, &mut all[..from])?;
            all[range.clone()].copy_from_slice(&words);
            fs.read_node(node, range.end, &mut all[range.end..])?;
            let is_hole = all == [0; NODE_WORDS];
            if is_hole || changed.len() > IN_PLACE {
                let new = if is_hole { 0 } else { self.new_node(&all)? };
                self.change.free_entry(NODES, node)?;
                return Ok(new);
            }
        }
        let seed = fs.geometry.seed(node);
        for run in changed.chunk_by(|a, b| a + 1 == *b) {
            let sealed: Words = run.iter().map(|&index| seal_any(words[index - from], seed)).collect();
            self.change.item(node + run[0] as u64 * 8, sealed.as_bytes());
        }
        Ok(node >> word::NODE_SHIFT)
    }

    /// The word of a child after the change. Children of height 0 are blocks.
    fn child(&mut self, old: u64, height: u32, start: u64) -> Result<u64> {
        if height == 0 {
            let new = self.new_at(start);
            if old != 0 {
                self.removed += 1;
                if old & word::BLOCK_MASK != new & word::BLOCK_MASK || new == 0 {
                    self.free_block(old & word::BLOCK_MASK)?;
                }
            }
            return Ok(new);
        }
        let end = start + span(height);
        let has_new = self.has_new(start, end);
        let is_huge = height == 1 && old & word::HUGE != 0;
        if self.edit.first <= start && end <= self.edit.last {
            if !has_new {
                self.removed += self.change.free_below(old, height + 1)?;
                return Ok(0);
            }
            if height == 1
                && let Some(new) = self.huge_at(start)
            {
                let group = new & word::BLOCK_MASK;
                if is_huge && old & word::BLOCK_MASK == group {
                    self.removed += GROUP_BLOCKS;
                } else if is_huge || old == 0 {
                    self.removed += self.change.free_below(old, height + 1)?;
                } else {
                    self.free_words(node_of(old), group)?;
                }
                return Ok(new);
            }
        }
        match old {
            0 if !has_new => Ok(0),
            0 => self.node(Old::Hole, height, start),
            _ if is_huge => self.node(Old::Huge(old), height, start),
            _ => self.node(Old::Node(node_of(old)), height, start),
        }
    }

    /// Frees a lowest node and its blocks, but for those of a group that is led to as a whole from now on: blocks that
    /// lie together may have had words of a node until now.
    fn free_words(&mut self, node: u64, group: u64) -> Result<()> {
        let mut words = [0; NODE_WORDS];
        self.change.fs.read_node(node, 0, &mut words)?;
        for value in words.into_iter().filter(|&value| value != 0) {
            let block = value & word::BLOCK_MASK;
            self.removed += 1;
            if block / GROUP_BLOCKS != group / GROUP_BLOCKS {
                self.free_block(block)?;
            }
        }
        self.change.free_entry(NODES, node)
    }

    /// Frees a block, with those that it follows.
    fn free_block(&mut self, block: u64) -> Result<()> {
        if self.gone.start + self.gone.len != block {
            self.change.free_run(self.gone)?;
            self.gone = Run { start: block, len: 0 };
        }
        self.gone.len += 1;
        Ok(())
    }

    /// The word of a file's block in the new places.
    fn new_at(&self, block: u64) -> u64 {
        let index = self.edit.new.partition_point(|piece| piece.end() <= block);
        match self.edit.new.get(index) {
            Some(piece) if piece.start <= block => {
                let unwritten = if piece.is_written { 0 } else { word::UNWRITTEN };
                (piece.block + (block - piece.start)) | unwritten
            }
            _ => 0,
        }
    }

    fn has_new(&self, start: u64, end: u64) -> bool {
        let index = self.edit.new.partition_point(|piece| piece.end() <= start);
        self.edit.new.get(index).is_some_and(|piece| piece.start < end)
    }

    /// The word for 512 blocks that are a whole group.
    fn huge_at(&self, start: u64) -> Option<u64> {
        let index = self.edit.new.partition_point(|piece| piece.end() <= start);
        let piece = self.edit.new.get(index)?.within(start, start + GROUP_BLOCKS)?;
        let is_whole = piece.len == GROUP_BLOCKS && piece.block.is_multiple_of(GROUP_BLOCKS);
        is_whole.then(|| self.new_at(start) | word::HUGE)
    }

    /// Writes a node to which nothing leads yet.
    fn new_node(&mut self, words: &[u64; NODE_WORDS]) -> Result<u64> {
        let node = self.change.entry(NODES, self.edit.purpose)?;
        let seed = self.change.fs.geometry.seed(node);
        let sealed = words.map(|word| seal_any(word, seed));
        const { assert!(size_of::<[u64; NODE_WORDS]>() as u64 == BLOCK_SIZE) };
        self.change.write_new(node, sealed.as_bytes())?;
        Ok(node >> word::NODE_SHIFT)
    }
}
