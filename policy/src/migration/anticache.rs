//! Anti-caching (paper 004): PM holds the data that was used last, up to a threshold. Data above it goes to disk, from
//! the other end of one list of blocks in the order of their last use.
//!
//! The list knows blocks of which it was told, up to a limit, and gives up the oldest ones first. Blocks that it does not
//! know are found by a walk over all files, and wait as runs, in the order of the last modification of their files. A
//! block of such a run that is not in the list was not used for longer than those in the list, so it leaves before
//! them. Walks go on, a bounded step at a time, as long as PM holds more blocks than are known.

mod list;
#[cfg(test)]
mod tests;
mod walk;

use std::collections::VecDeque;
use std::hash::Hash;
use std::ops::Range;

use super::{Access, AccessKind, Chosen};
use crate::temperature::Span;
use list::List;
pub use walk::Stage;
use walk::Walk;

/// Milliseconds between two looks at the threshold.
pub const PERIOD_MS: u64 = 10;
/// Blocks that one access touches at most: the last ones of a large access count as used.
const MOST_TOUCHED: u64 = 4096;
/// Blocks on PM that may be unknown before a walk looks for them: lost samples, and what is no data.
const MARGIN: u64 = 1024;
/// The same as a part of all blocks on PM.
const MARGIN_PART: u64 = 64;

/// How much is known at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Blocks in the list: 32 bytes each for an identity of a file of 16 bytes, and at most 12 of an index.
    pub blocks: usize,
    /// Runs of blocks that a walk found before it waits: 32 bytes each.
    pub runs: usize,
    /// Files of one round of a walk: 24 bytes each.
    pub files: usize,
}

/// Blocks of a file that a walk found, one behind the other.
#[derive(Debug, Clone, Copy)]
struct Run<F> {
    file: F,
    start: u64,
    len: u64,
}

/// The known blocks on PM.
#[derive(Debug)]
pub struct AntiCache<F> {
    /// Those that were used, in the order of their last use.
    list: List<F>,
    /// Blocks that are older than all in the list, the oldest first. One that was used since is in the list, too.
    found: VecDeque<Run<F>>,
    /// The blocks of all these runs.
    found_blocks: u64,
    most_found: usize,
    walk: Walk<F>,
}

impl<F: Copy + Eq + Hash + Ord> AntiCache<F> {
    /// Nothing is known of any file.
    pub fn new(bounds: Bounds) -> AntiCache<F> {
        AntiCache {
            list: List::new(bounds.blocks),
            found: VecDeque::new(),
            found_blocks: 0,
            most_found: bounds.runs.max(1),
            walk: Walk::new(bounds.files),
        }
    }

    /// How many blocks it knows. A block that a walk found and that was used since counts twice.
    pub fn len(&self) -> u64 {
        self.list.len() as u64 + self.found_blocks
    }

    /// A walk has found blocks that did not leave yet.
    pub fn has_found(&self) -> bool {
        !self.found.is_empty()
    }

    /// It knows none.
    pub fn is_empty(&self) -> bool {
        self.list.len() == 0 && self.found.is_empty()
    }

    /// Whether blocks may be on PM that it does not know.
    pub fn is_incomplete(&self) -> bool {
        self.walk.is_incomplete()
    }

    /// An access was not heard, or blocks were given up that stay on PM.
    pub fn miss(&mut self) {
        self.walk.miss();
    }

    /// Whether it knows too few of the blocks on PM: with the next ones to leave, it might pass older ones by.
    pub fn is_short(&self, on_pm: u64) -> bool {
        let known = (self.list.len() as u64).saturating_add(MARGIN).saturating_add(on_pm / MARGIN_PART);
        self.found.is_empty() && (self.walk.has_dropped() || on_pm > known)
    }

    /// Takes in an access: its blocks were used last. Blocks that were read from below come up, and are used, too.
    pub fn observe(&mut self, access: &Access<F>) {
        let end = access.start.saturating_add(access.blocks);
        let first = access.start.max(end.saturating_sub(MOST_TOUCHED));
        match access.kind {
            AccessKind::Written | AccessKind::Read | AccessKind::ReadBelow => {
                (first..end).for_each(|block| self.touch(access.file, block));
            }
        }
    }

    /// A block was used last.
    pub fn touch(&mut self, file: F, block: u64) {
        if !self.list.touch(file, block) {
            self.walk.drop_one();
        }
    }

    /// Blocks that were chosen stay on PM: unless they were used since, they are the oldest ones again.
    pub fn put_back(&mut self, part: &Chosen<F>) {
        for &Span { start, len } in part.spans.iter().rev() {
            if self.found.len() >= self.most_found {
                self.walk.miss();
                return;
            }
            self.found.push_front(Run { file: part.file, start, len });
            self.found_blocks = self.found_blocks.saturating_add(len);
        }
    }

    /// Takes out the blocks that were not used for longest, at most so many, as parts of their files. Those that a walk
    /// found come first, and alone: more of them may follow that are older than the list.
    pub fn coldest(&mut self, blocks: u64) -> Vec<Chosen<F>> {
        let mut taken = Vec::new();
        self.take_found(blocks, &mut taken);
        if taken.is_empty() {
            let oldest = std::iter::from_fn(|| self.list.pop_oldest());
            let most = usize::try_from(blocks).unwrap_or(usize::MAX);
            taken.extend(oldest.take(most).map(|(file, block)| (file, block..block + 1)));
        }
        parts(taken)
    }

    /// Takes out the oldest blocks that a walk found, at most so many, without those that were used since.
    fn take_found(&mut self, blocks: u64, taken: &mut Vec<(F, Range<u64>)>) {
        let AntiCache { list, found, found_blocks, .. } = self;
        let mut left = blocks;
        while let Some(run) = found.front_mut().filter(|_| left > 0) {
            let Run { file, start, len } = *run;
            let end = start.saturating_add(len);
            let Range { start: first, end: last } = unlisted(list, file, start..end, left);
            *found_blocks = found_blocks.saturating_sub(last - start);
            (run.start, run.len) = (last, end - last);
            if last == end {
                found.pop_front();
            }
            if first < last {
                taken.push((file, first..last));
                left -= last - first;
            }
        }
    }

    /// The part of a walk that goes on.
    pub fn stage(&self) -> Stage {
        self.walk.stage
    }

    /// Begins a round of a walk, with the names of all files. False where that is not worth it at this time, or one goes
    /// on. `is_needed`: nothing is known that could leave PM.
    pub fn begin_walk(&mut self, now_ms: u64, is_needed: bool) -> bool {
        self.walk.begin(now_ms, is_needed)
    }

    /// A name leads to a file that has blocks on PM and was modified at this time.
    pub fn found_file(&mut self, modified_ms: u64, file: F) {
        self.walk.keep(modified_ms, file);
    }

    /// All names were looked at: blocks come next.
    pub fn end_names(&mut self, now_ms: u64) {
        self.walk.end_names(now_ms);
    }

    /// The file whose blocks are looked at next, and the first one of them. None while enough are known.
    pub fn next_look(&self) -> Option<(F, u64)> {
        if self.found.len() < self.most_found { self.walk.next() } else { None }
    }

    /// These blocks of that file are on PM, in order, as far as it was looked at: up to a block, or to its end.
    pub fn looked(&mut self, on_pm: &[Range<u64>], up_to: Option<u64>, now_ms: u64) {
        let Some((file, _)) = self.walk.next() else { return };
        let mut has_found = false;
        for &Range { start, end } in on_pm {
            let mut at = start;
            while at < end {
                let older = unlisted(&self.list, file, at..end, u64::MAX);
                at = older.end;
                if !older.is_empty() {
                    self.add_found(file, older);
                    has_found = true;
                }
            }
        }
        self.walk.looked(up_to, has_found, now_ms);
    }

    /// Blocks are older than the list, and newer than all that were found before.
    fn add_found(&mut self, file: F, Range { start, end }: Range<u64>) {
        let len = end - start;
        self.found_blocks = self.found_blocks.saturating_add(len);
        match self.found.back_mut().filter(|last| last.file == file && last.start + last.len == start) {
            Some(last) => last.len += len,
            None => self.found.push_back(Run { file, start, len }),
        }
    }
}

/// The first blocks of a range, at most so many, that are together and not in the list; an empty range at its end when
/// all are.
fn unlisted<F: Copy + Eq + Hash>(list: &List<F>, file: F, blocks: Range<u64>, most: u64) -> Range<u64> {
    let Range { start, end } = blocks;
    let first = (start..end).find(|&block| !list.has(file, block)).unwrap_or(end);
    let most = end.min(first.saturating_add(most));
    first..(first..most).find(|&block| list.has(file, block)).unwrap_or(most)
}

/// Blocks as parts of their files. A block that comes twice is in one span: twice in a batch it would be copied twice.
fn parts<F: Copy + Ord>(mut taken: Vec<(F, Range<u64>)>) -> Vec<Chosen<F>> {
    taken.sort_unstable_by_key(|(file, blocks)| (*file, blocks.start));
    let mut chosen: Vec<Chosen<F>> = Vec::new();
    for (file, Range { start, end }) in taken {
        let span = Span { start, len: end - start };
        match chosen.last_mut().filter(|last| last.file == file) {
            Some(last) => match last.spans.last_mut() {
                Some(before) if before.end() >= start => before.len = before.end().max(end) - before.start,
                _ => last.spans.push(span),
            },
            None => chosen.push(Chosen { file, spans: vec![span] }),
        }
    }
    chosen
}
