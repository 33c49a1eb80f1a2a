//! The blocks of many files that move as one.
//!
//! A [`Batch`] is gathered without a lock: each block has the version that it was found with. Blocks on tiers must not
//! be reused before they were read, so the gatherer of such holds a [`Reading`](crate::places::Reading) until the batch
//! has moved. Blocks in PM are read through their file and need none.

use std::collections::{HashSet, VecDeque};

use nacre_engine::{
    Copied, FileBlock, FileKind, InodeId, Movable, Place, PlacedExtent, Result, TierRun, Tiered, Timestamp,
};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;
use nacre_policy::temperature::Span;

use crate::engine::budget::Budget;
use crate::engine::progress::{Doing, Way};
use crate::places::Places;

/// Blocks of a file that are resolved at once, where several ranges of them are asked for.
const RESOLVED_AT_ONCE: u64 = 1 << 16;

/// Files of a batch, at most: they are held while it moves.
const MAX_FILES: usize = 4096;

/// Blocks that move as one; at most a group.
pub(crate) struct Batch<N> {
    pub(crate) parts: Vec<Part<N>>,
    /// The files that they are of.
    files: HashSet<InodeId>,
    blocks: u64,
}

/// The blocks of a file that move. A file has one part of a batch: outcomes are by file, and a block of two parts would
/// be copied twice.
pub(crate) struct Part<N> {
    pub(crate) id: InodeId,
    pub(crate) node: N,
    pub(crate) found: Vec<Movable>,
    pub(crate) blocks: u64,
    pub(crate) modified: Timestamp,
}

impl<N> Default for Batch<N> {
    fn default() -> Batch<N> {
        Batch { parts: Vec::new(), files: HashSet::new(), blocks: 0 }
    }
}

impl<N> Batch<N> {
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Blocks that move.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Its files, for status queries.
    pub(crate) fn doing(&self, way: Way) -> Doing {
        let inode = self.parts.first().map_or(0, |first| first.id.number);
        Doing { inode, files: self.parts.len() as u64, way }
    }

    /// The part of each file, in the order in which it was gathered.
    pub(crate) fn parts(&self) -> &[Part<N>] {
        &self.parts
    }
}

impl<N> Part<N> {
    pub(crate) fn id(&self) -> InodeId {
        self.id
    }

    /// The first block that moves.
    pub(crate) fn start(&self) -> u64 {
        self.found.first().map_or(0, |first| first.extent.start.0)
    }

    /// Blocks that move.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Its first blocks, at most `most`; `None` if that is none. If that were all, half of them: blocks still being
    /// read count as free but cannot be taken.
    pub(crate) fn first(&self, most: u64) -> Option<Part<N>>
    where
        N: Clone,
    {
        let blocks = if most < self.blocks { most } else { self.blocks / 2 };
        let (mut found, mut left) = (Vec::new(), blocks);
        for one in &self.found {
            let len = left.min(one.extent.len);
            if len == 0 {
                break;
            }
            found.push(one.part(0, len));
            left -= len;
        }
        let Part { id, node, modified, .. } = self;
        (blocks > 0).then(|| Part { id: *id, node: node.clone(), found, blocks, modified: *modified })
    }

    /// The block behind the last one that moves.
    fn end(&self) -> u64 {
        self.found.last().map_or(0, |last| last.extent.start.0 + last.extent.len)
    }
}

/// How far parts were read.
pub(crate) struct Intake<'p, N> {
    pub(crate) parts: &'p [Part<N>],
    /// Whether each that it got to could be read; and the blocks of it that could not, in order, where the others move.
    pub(crate) came: Vec<Result<Vec<u64>>>,
    /// The next piece of the last of these, and how many blocks of it were read.
    piece: usize,
    done: u64,
}

impl<'p, N> Intake<'p, N> {
    pub(crate) fn of(parts: &'p [Part<N>]) -> Intake<'p, N> {
        Intake { parts, came: Vec::new(), piece: 0, done: 0 }
    }

    /// The next pieces of a part, at most `blocks` blocks. `None` behind the last part. Before each part except the
    /// first, the budget is asked; where it is over, it ends there.
    pub(crate) fn next(&mut self, blocks: u64, budget: &Budget<'_>) -> Option<(usize, Vec<Movable>)> {
        if blocks == 0 {
            return None;
        }
        let last = self.came.len().checked_sub(1);
        if last.is_none_or(|last| self.piece == self.parts[last].found.len()) {
            let is_end = self.came.len() == self.parts.len();
            if is_end || last.is_some() && !budget.goes_on() {
                self.parts = &self.parts[..self.came.len()];
                return None;
            }
            self.came.push(Ok(Vec::new()));
            (self.piece, self.done) = (0, 0);
        }
        let part = self.came.len() - 1;
        let (mut pieces, mut left) = (Vec::new(), blocks);
        while let Some(found) = self.parts[part].found.get(self.piece).filter(|_| left > 0) {
            let len = left.min(found.extent.len - self.done);
            pieces.push(found.part(self.done, len));
            left -= len;
            self.done += len;
            if self.done == found.extent.len {
                (self.piece, self.done) = (self.piece + 1, 0);
            }
        }
        Some((part, pieces))
    }
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Places<L, D> {
    /// Adds blocks of a file to a batch, of those in the range that are where `which` says. False, and nothing is
    /// added, when there is no room for them behind others: then they are for the next batch. So are those of a file
    /// that comes a second time, as one with several names does.
    pub(crate) fn add_to(
        &self,
        batch: &mut Batch<L::Node>,
        node: &L::Node,
        (start, len): (FileBlock, u64),
        which: impl Fn(&Place) -> bool,
    ) -> Result<bool> {
        self.add_spans(batch, node, &[Span { start: start.0, len }], which)
    }

    /// The same of several ranges, which are in order.
    pub(crate) fn add_spans(
        &self,
        batch: &mut Batch<L::Node>,
        node: &L::Node,
        spans: &[Span],
        which: impl Fn(&Place) -> bool,
    ) -> Result<bool> {
        let modified = self.layout.getattr(node)?.mtime;
        let mut found = Vec::new();
        let mut rest = spans;
        while let Some(&Span { start, .. }) = rest.first() {
            // Together: each look waits for the operations on the file.
            let end = start.saturating_add(RESOLVED_AT_ONCE);
            let count = rest.partition_point(|span| span.start.saturating_add(span.len) <= end).max(1);
            let (near, far) = rest.split_at(count);
            let end = near.last().map_or(start, |last| last.start.saturating_add(last.len));
            found.extend(within(&self.layout.resolve_movable(node, FileBlock(start), end - start)?, near));
            rest = far;
        }
        found.retain(|at| which(&at.extent.place));
        let Some(start) = spans.first().map(|first| FileBlock(first.start)) else { return Ok(true) };
        let blocks: u64 = found.iter().map(|at| at.extent.len).sum();
        if blocks == 0 {
            return Ok(true);
        }
        let id = self.layout.id(node);
        let is_full = batch.parts.len() >= MAX_FILES;
        let has_room = batch.is_empty() || batch.blocks + blocks <= self.settings.group();
        match batch.parts.last_mut().filter(|last| last.id == id) {
            Some(last) if has_room && last.end() <= start.0 => {
                last.found.extend(found);
                last.blocks += blocks;
            }
            None if has_room && !is_full && !batch.files.contains(&id) => {
                batch.files.insert(id);
                batch.parts.push(Part { id, node: node.clone(), found, blocks, modified });
            }
            _ => return Ok(false),
        }
        batch.blocks += blocks;
        Ok(true)
    }

    /// Adds those blocks of a range that are where `which` says, from the block `at` on. False when the batch had no
    /// room for all; the blocks before `at` are done then.
    pub(crate) fn add_range(
        &self,
        batch: &mut Batch<L::Node>,
        (node, start, len): (&L::Node, FileBlock, u64),
        at: &mut u64,
        which: impl Fn(&Place) -> bool,
    ) -> Result<bool> {
        if self.layout.kind(node) != FileKind::Regular {
            return Ok(true);
        }
        let end = start.0.saturating_add(len);
        *at = start.0.max(*at);
        while let Some(data) = self.next_data(node, *at)?.filter(|data| *data < end) {
            let wanted = self.settings.group().min(end - data);
            *at = data;
            if !self.add_to(batch, node, (FileBlock(data), wanted), &which)? {
                return Ok(false);
            }
            *at += wanted;
        }
        Ok(true)
    }
}

/// The copies that place the found blocks of a file on the tier; takes the blocks from the runs.
pub(crate) fn copies(found: &[Movable], runs: &mut VecDeque<TierRun>) -> Vec<Copied> {
    let mut copied = Vec::new();
    for from in found {
        let mut done = 0;
        while done < from.extent.len {
            let Some(here) = runs.front_mut() else { return copied };
            let len = here.len.min(from.extent.len - done);
            copied.push(Copied { from: from.part(done, len), tier: here.tier, block: here.start });
            (here.start, here.len) = (here.start.plus(len), here.len - len);
            if here.len == 0 {
                runs.pop_front();
            }
            done += len;
        }
    }
    copied
}

/// The copies of all blocks of a file but these, and the copies of these; all are in order.
pub(crate) fn without(copied: &[Copied], lost: &[u64]) -> (Vec<Copied>, Vec<Copied>) {
    let (mut others, mut of_lost) = (Vec::new(), Vec::new());
    for copy in copied {
        let PlacedExtent { start: FileBlock(start), len, .. } = copy.from.extent;
        let part = |from: u64, len| {
            let skip = from - start;
            Copied { from: copy.from.part(skip, len), block: copy.block.plus(skip), ..*copy }
        };
        let mut at = start;
        for &block in lost.iter().filter(|block| (start..start + len).contains(*block)) {
            if at < block {
                others.push(part(at, block - at));
            }
            of_lost.push(part(block, 1));
            at = block + 1;
        }
        if at < start + len {
            others.push(part(at, start + len - at));
        }
    }
    (others, of_lost)
}

/// The parts of pieces that are in spans; both are in order.
fn within(pieces: &[Movable], spans: &[Span]) -> Vec<Movable> {
    let mut parts = Vec::new();
    let mut at = 0;
    for span in spans {
        let end = span.start.saturating_add(span.len);
        while let Some(piece) = pieces.get(at) {
            let PlacedExtent { start: FileBlock(start), len, .. } = piece.extent;
            let (from, to) = (start.max(span.start), (start + len).min(end));
            if from < to {
                parts.push(piece.part(from - start, to - from));
            }
            if start + len > end {
                break; // the rest of it may be in the next span
            }
            at += 1;
        }
    }
    parts
}

/// Takes so many blocks from the runs.
pub(crate) fn take(runs: &mut VecDeque<TierRun>, blocks: u64) -> Vec<TierRun> {
    let (mut taken, mut left) = (Vec::new(), blocks);
    while let Some(first) = runs.front_mut().filter(|_| left > 0) {
        let len = first.len.min(left);
        taken.push(TierRun { len, ..*first });
        (first.start, first.len) = (first.start.plus(len), first.len - len);
        if first.len == 0 {
            runs.pop_front();
        }
        left -= len;
    }
    taken
}

#[cfg(test)]
mod tests {
    use nacre_engine::{Block, Copied, FileBlock, Movable, Place, PlacedExtent};
    use nacre_policy::temperature::Span;

    use super::{within, without};

    #[test]
    fn of_pieces_there_is_what_was_asked_for() {
        let piece = |start, len, block| {
            let extent = PlacedExtent { start: FileBlock(start), len, place: Place::Pm(Block(block)) };
            Movable { extent, version: start }
        };
        let pieces = [piece(0, 4, 100), piece(4, 2, 200), piece(10, 5, 300)];
        let parts = |spans: &[(u64, u64)]| -> Vec<(u64, u64, Place, u64)> {
            let spans: Vec<Span> = spans.iter().map(|&(start, len)| Span { start, len }).collect();
            let found = within(&pieces, &spans).into_iter();
            found.map(|at| (at.extent.start.0, at.extent.len, at.extent.place, at.version)).collect()
        };
        let pm = |block| Place::Pm(Block(block));
        assert_eq!(
            parts(&[(1, 1), (3, 2), (5, 6), (14, u64::MAX)]),
            [
                (1, 1, pm(101), 0),
                (3, 1, pm(103), 0),
                (4, 1, pm(200), 4),
                (5, 1, pm(201), 4),
                (10, 1, pm(300), 10),
                (14, 1, pm(304), 10),
            ]
        );
        assert_eq!(parts(&[(0, u64::MAX)]).len(), 3);
        assert!(parts(&[(6, 4), (15, 3)]).is_empty() && parts(&[]).is_empty());
    }

    #[test]
    fn copies_are_parted_from_those_of_lost_blocks() {
        let copy = |start, len, block| {
            let extent = PlacedExtent { start: FileBlock(start), len, place: Place::Pm(Block(100 + start)) };
            Copied { from: Movable { extent, version: 7 }, tier: 1, block: Block(block) }
        };
        let copied = [copy(0, 4, 10), copy(4, 1, 50), copy(8, 3, 20)];
        assert_eq!(without(&copied, &[]), (copied.to_vec(), vec![]));
        let (others, of_lost) = without(&copied, &[0, 2, 4, 10]);
        assert_eq!(others, [copy(1, 1, 11), copy(3, 1, 13), copy(8, 2, 20)]);
        assert_eq!(of_lost, [copy(0, 1, 10), copy(2, 1, 12), copy(4, 1, 50), copy(10, 1, 22)]);
    }
}
