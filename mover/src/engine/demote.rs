//! Demotion of given files and ranges of files to a tier, in batches.

use nacre_engine::{Error, FileBlock, Place, Result, Tiered};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;

use crate::engine::batch::Batch;
use crate::engine::budget::Budget;
use crate::engine::executor::{Moved, To};
use crate::places::{Places, Reading, is_on};

/// How far files have moved that move one after another.
#[derive(Debug, Default)]
pub struct MovedFiles {
    /// Blocks that are there now and were not before.
    pub moved: u64,
    /// The first one that is not done; their number when all are.
    pub next: usize,
    /// The first block of it that was not looked at.
    pub from: u64,
    /// Those before it that failed, wholly or in part, in order, and why.
    pub failed: Vec<(usize, Error)>,
}

/// How far ranges of files have moved.
struct Course {
    /// The result of each, as far as it was moved.
    total: Vec<Result<Moved>>,
    /// Blocks that moved, also those of files that failed later.
    moved: u64,
    /// The range that comes next, and the block of its file.
    next: usize,
    at: u64,
}

impl Course {
    fn new(ranges: usize, at: u64) -> Course {
        Course { total: (0..ranges).map(|_| Ok(Moved::default())).collect(), moved: 0, next: 0, at }
    }

    /// Whether there is more to move. A range of which something fails is left at that.
    fn goes_on(&mut self) -> bool {
        while self.total.get(self.next).is_some_and(Result::is_err) {
            (self.next, self.at) = (self.next + 1, 0);
        }
        self.next < self.total.len()
    }
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Places<L, D> {
    /// See [`TieredFs::demote`](crate::TieredFs::demote).
    pub(crate) fn demote(
        &self,
        node: &L::Node,
        tier: u8,
        start: FileBlock,
        len: u64,
        keep: bool,
    ) -> Result<Moved> {
        self.move_ranges(&[(node, start, len)], tier, keep, |place| !is_on(place, tier))
            .pop()
            .unwrap_or_else(|| unreachable!("there is an answer for each file"))
    }

    /// See [`TieredFs::demote_files`](crate::TieredFs::demote_files).
    pub(crate) fn demote_files(&self, nodes: &[L::Node], tier: u8, keep: bool) -> Vec<Result<Moved>> {
        let ranges: Vec<_> = nodes.iter().map(|node| (node, FileBlock(0), u64::MAX)).collect();
        self.move_ranges(&ranges, tier, keep, |place| !is_on(place, tier))
    }

    /// See [`TieredFs::demote_some`](crate::TieredFs::demote_some).
    pub(crate) fn demote_some(
        &self,
        nodes: &[L::Node],
        from: FileBlock,
        tier: u8,
        budget: &Budget<'_>,
    ) -> MovedFiles {
        let ranges: Vec<_> = nodes.iter().map(|node| (node, FileBlock(0), u64::MAX)).collect();
        let mut course = Course::new(ranges.len(), from.0);
        while course.goes_on() {
            self.move_batch(&ranges, tier, false, &|place| !is_on(place, tier), &mut course, budget);
            if !budget.goes_on() {
                break;
            }
        }
        course.goes_on();
        let Course { total, moved, next, at } = course;
        // Files that failed behind that are tried again, and reported then.
        let came = total.into_iter().take(next).enumerate();
        let failed = came.filter_map(|(file, came)| Some((file, came.err()?))).collect();
        MovedFiles { moved, next, from: at, failed }
    }

    /// Moves blocks of ranges of files, in batches.
    fn move_ranges(
        &self,
        ranges: &[(&L::Node, FileBlock, u64)],
        tier: u8,
        keep: bool,
        which: impl Fn(&Place) -> bool,
    ) -> Vec<Result<Moved>> {
        let mut course = Course::new(ranges.len(), 0);
        while course.goes_on() {
            self.move_batch(ranges, tier, keep, &which, &mut course, &Budget::default());
        }
        course.total
    }

    /// Moves the next batch of ranges of files, and then the unwritten blocks of those that are whole files and were
    /// reached to their end.
    fn move_batch(
        &self,
        ranges: &[(&L::Node, FileBlock, u64)],
        tier: u8,
        keep: bool,
        which: &dyn Fn(&Place) -> bool,
        course: &mut Course,
        budget: &Budget<'_>,
    ) {
        let first = course.next;
        self.move_written(ranges, tier, keep, which, course, budget);
        for (&(node, start, len), total) in ranges.iter().zip(&mut course.total).take(course.next).skip(first)
        {
            if total.is_ok() && (start, len) == (FileBlock(0), u64::MAX) {
                let moved = self.demote_unwritten_to(node, tier);
                course.moved += moved.as_ref().map_or(0, |moved| moved.moved);
                add(total, moved);
            }
        }
    }

    /// Moves the written blocks of the next batch; where the budget is over, a part of it, and the course goes on
    /// behind that.
    fn move_written(
        &self,
        ranges: &[(&L::Node, FileBlock, u64)],
        tier: u8,
        keep: bool,
        which: &dyn Fn(&Place) -> bool,
        course: &mut Course,
        budget: &Budget<'_>,
    ) {
        // Blocks of other tiers must not be reused before they were read.
        let _reading = Reading::begin(&self.layout);
        let mut batch = Batch::default();
        // Of which range each part is.
        let mut owners = Vec::new();
        while course.goes_on() {
            let next = course.next;
            let added = self.add_range(&mut batch, ranges[next], &mut course.at, which);
            owners.resize(batch.parts().len(), next);
            match added {
                Ok(false) => break,
                Ok(true) => {}
                Err(error) => course.total[next] = Err(error),
            }
            (course.next, course.at) = (next + 1, 0);
        }
        if batch.is_empty() {
            return;
        }
        let to = To { tier, keep, reserved: false, partly: false, beside_lost: false };
        let came = self.move_parts(batch.parts(), to, budget);
        if let Some(left) = batch.parts().get(came.len()) {
            (course.next, course.at) = (owners[came.len()], left.start());
        }
        for (owner, moved) in owners.into_iter().zip(came) {
            course.moved += moved.as_ref().map_or(0, |moved| moved.moved);
            add(&mut course.total[owner], moved);
        }
    }
}

/// Adds the result of another part of the same file; an error replaces the total.
fn add(total: &mut Result<Moved>, more: Result<Moved>) {
    if let Ok(before) = total {
        match more {
            Ok(Moved { moved, changed }) => {
                before.moved += moved;
                before.changed += changed;
            }
            Err(error) => *total = Err(error),
        }
    }
}
