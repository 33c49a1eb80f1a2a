//! The places of a range of a file's blocks, as an operation will leave them. The tree is changed once, at the end.

use nacre_engine::{BLOCK_SIZE, Result};
use nacre_layout_parts::tree::edit::join;
use nacre_media::Pm;

use crate::blockmap::{Piece, Pieces, Tree};
use crate::commit::Change;
use crate::counts::{Purpose, Runs};
use crate::format::RawInode;
use crate::fs::Shared;
use crate::seeded::Mistake;
use crate::tree_edit::Edit;

/// The pieces of a range, in order.
pub(crate) struct Places {
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) pieces: Pieces,
    /// The block of the file before the range.
    before: Option<u64>,
}

impl Places {
    /// Those of a tree.
    pub(crate) fn of<P: Pm>(fs: &Shared<P>, tree: Tree, first: u64, last: u64) -> Result<Places> {
        let mut places = Places { first, last, pieces: Pieces::new(), before: None };
        fs.for_each(tree, first.saturating_sub(1), last, &mut |piece| {
            places.before = places.before.or(piece.within(0, first).map(|piece| piece.block));
            places.pieces.extend(piece.within(first, last));
            Ok(())
        })?;
        Ok(places)
    }

    /// The block behind that of the file's block before `start`, which is in the range.
    pub(crate) fn goal(&self, start: u64) -> Option<u64> {
        let before = match start == self.first {
            true => self.before,
            false => self.within(start - 1, start).next().map(|piece| piece.block),
        };
        before.map(|block| block + 1)
    }

    /// The pieces, or parts of them, in a range.
    pub(crate) fn within(&self, first: u64, last: u64) -> impl Iterator<Item = Piece> {
        self.pieces.iter().filter_map(move |piece| piece.within(first, last))
    }

    /// A range gets these places, in order; the rest of it become holes.
    pub(crate) fn set(&mut self, first: u64, last: u64, new: impl IntoIterator<Item = Piece>) {
        let mut all: Pieces = self.within(0, first).collect();
        all.extend(new);
        all.extend(self.within(last, u64::MAX));
        self.pieces = all;
    }

    /// The holes of a range: first block and number of blocks.
    pub(crate) fn holes(&self, first: u64, last: u64) -> Vec<(u64, u64)> {
        let mut at = first;
        let mut holes = Vec::new();
        for piece in self.within(first, last) {
            holes.push((at, piece.start - at));
            at = piece.end();
        }
        holes.push((at, last - at));
        holes.retain(|&(_, len)| len > 0);
        holes
    }

    /// Written blocks of a range are never written from now on.
    pub(crate) fn unwrite(&mut self, first: u64, last: u64) {
        let new: Pieces =
            self.within(first, last).map(|piece| Piece { is_written: false, ..piece }).collect();
        self.set(first, last, new);
    }

    /// Blocks wholly behind a file's size, of a truncation that a crash interrupted, become holes.
    pub(crate) fn drop_written(&mut self, first: u64, last: u64) {
        let kept: Pieces = self.within(first, last).filter(|piece| !piece.is_written).collect();
        self.set(first, last, kept);
    }
}

impl<P: Pm> Change<'_, P> {
    /// The places of a range, and of what lies between the file's end and it, if its size is about to grow to `size`.
    /// The bytes between them become zeros.
    pub(crate) fn places(
        &mut self,
        raw: &RawInode,
        tree: Tree,
        (first, last): (u64, u64),
        size: u64,
    ) -> Result<Places> {
        let behind = raw.size.div_ceil(BLOCK_SIZE);
        if size <= raw.size {
            return Places::of(self.fs, tree, first, last);
        }
        self.zero_tail(raw.size, tree, size)?;
        let last = last.max(size.div_ceil(BLOCK_SIZE));
        let mut places = Places::of(self.fs, tree, first.min(behind), last)?;
        places.drop_written(behind, last);
        Ok(places)
    }

    /// Makes the bytes of the file's last block from its size to `end` zeros, where they are.
    fn zero_tail(&mut self, size: u64, tree: Tree, end: u64) -> Result<()> {
        let pm = &*self.fs.pm;
        if size.is_multiple_of(BLOCK_SIZE) || Mistake::GapNotZeroed.is_made(pm) {
            return Ok(());
        }
        let block = size / BLOCK_SIZE;
        if let Some(piece) = self.fs.pieces(tree, block, block + 1)?.first().filter(|piece| piece.is_written)
        {
            let until = end.min(size.next_multiple_of(BLOCK_SIZE));
            let zeroed = pm.zero(piece.offset() + size % BLOCK_SIZE, until - size)?;
            self.pending = join(self.pending.take(), zeroed);
        }
        Ok(())
    }

    /// Blocks that are never written yet, for the holes of a range.
    pub(crate) fn fill_holes(&mut self, places: &mut Places, first: u64, last: u64) -> Result<()> {
        for (start, len) in places.holes(first, last) {
            let mut runs = Runs::new();
            self.allocate(None, len, Purpose::Data, &mut runs)?;
            let mut at = start;
            let pieces: Pieces = runs
                .into_iter()
                .map(|run| {
                    at += run.len;
                    Piece { start: at - run.len, len: run.len, block: run.start, is_written: false }
                })
                .collect();
            places.set(start, start + len, pieces);
        }
        Ok(())
    }

    /// The tree of an inode gets these places.
    pub(crate) fn put_places(
        &mut self,
        number: u64,
        tree: Tree,
        places: &Places,
        purpose: Purpose,
    ) -> Result<()> {
        let Places { first, last, pieces, .. } = places;
        let edited = self.edit_tree(tree, &Edit { first: *first, last: *last, new: pieces, purpose })?;
        self.set_root(number, edited.tree.height, edited.tree.root)?;
        let inode = self.edit(number)?;
        // A damaged count may be too low.
        inode.entries = inode.entries.saturating_add_signed(edited.blocks);
        Ok(())
    }

    /// A range of a file's blocks becomes a hole.
    pub(crate) fn clear(&mut self, number: u64, first: u64, last: u64) -> Result<()> {
        let raw = *self.edit(number)?;
        let tree = self.fs.tree(number, &raw)?;
        let nothing = Places { first, last, pieces: Pieces::new(), before: None };
        self.put_places(number, tree, &nothing, Purpose::Metadata)
    }
}
