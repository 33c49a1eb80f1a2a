//! Moving blocks: resolve, copy, publish. Down, many files share what is copied at once; see [`batch`](crate::batch).

use std::collections::VecDeque;

use nacre_engine::{
    BLOCK_SIZE, Block, Durability, Error, FileBlock, FileKind, Kind, Movable, Place, PlacedExtent, Result,
    SeekTo, TierRun, Tiered, Timestamp,
};
use nacre_media::Durable;
use nacre_media::block::{BlockDevice, Pages};

use crate::batch::{AT_ONCE, Batch, To};
use crate::budget::Budget;
use crate::data::Reading;
use crate::fs::MoverFs;

/// Times that blocks are tried to be brought up, each time half as many, where something near them is written meanwhile.
const REFUSALS: usize = 200;

/// The result of a migration, in blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// They are in the new place.
    pub moved: u64,
    /// They were written or freed while they were copied, and stay where they are.
    pub changed: u64,
}

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

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> MoverFs<L, D> {
    /// Demotes blocks of a file, of those in the range that are not there, to a tier: in groups, each with one write,
    /// one flush and one commit. With `keep`, moved blocks stay in DRAM.
    ///
    /// [`NoSpace`](Kind::NoSpace) when the tier is full; groups moved before stay moved. [`Busy`](Kind::Busy) while a
    /// program has the file mapped.
    pub fn move_down(
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

    /// Moves all blocks of files to a tier, as [`MoverFs::move_down`] does; files share groups, each with one write and
    /// one flush, and a commit for each file. Gives the result of each.
    pub fn move_files_down(&self, nodes: &[L::Node], tier: u8, keep: bool) -> Vec<Result<Moved>> {
        let ranges: Vec<_> = nodes.iter().map(|node| (node, FileBlock(0), u64::MAX)).collect();
        self.move_ranges(&ranges, tier, keep, |place| !is_on(place, tier))
    }

    /// The same as far as the budget goes, which is asked between files and between batches. Something is done in any
    /// case. The next call begins where this ended, with the files behind and a block of the first of them. Nothing
    /// stays in DRAM.
    pub fn move_some_down(
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

    /// Moves the next batch of ranges of files; where the budget is over, a part of it, and the course goes on behind that.
    fn move_batch(
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
        let came = self.move_parts(batch.parts(), To { tier, keep, promised: false, partly: false }, budget);
        if let Some(left) = batch.parts().get(came.len()) {
            (course.next, course.at) = (owners[came.len()], left.start());
        }
        for (owner, moved) in owners.into_iter().zip(came) {
            course.moved += moved.as_ref().map_or(0, |moved| moved.moved);
            add(&mut course.total[owner], moved);
        }
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
            let wanted = self.group().min(end - data);
            *at = data;
            if !self.add_to(batch, node, (FileBlock(data), wanted), &which)? {
                return Ok(false);
            }
            *at += wanted;
        }
        Ok(true)
    }

    /// The first block at `block` or behind it that has data: files may be far larger than their data.
    pub(crate) fn next_data(&self, node: &L::Node, block: u64) -> Result<Option<u64>> {
        match self.layout.seek(node, block.saturating_mul(BLOCK_SIZE), SeekTo::Data) {
            Ok(offset) => Ok(Some((offset / BLOCK_SIZE).max(block))),
            Err(error) if error.kind() == Kind::NoSuchOffset => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The content of blocks from where they were found, one behind the other; all of `content` is written to.
    pub(crate) fn read_all(&self, node: &L::Node, found: &[Movable], content: &mut [u8]) -> Result<()> {
        let mut rest = content;
        for at in found {
            let PlacedExtent { start, len, place } = at.extent;
            let (part, behind) = rest.split_at_mut((len * BLOCK_SIZE) as usize);
            match place {
                Place::Tier { tier, block } => {
                    let extent = TierRun { tier, start: block, len };
                    self.tiers.read(block.offset(), part, extent, 0)?;
                }
                _ => {
                    let count = match self.layout.read(node, start.offset(), part, None) {
                        // Where it is somewhere else by now, the version is another one, too.
                        Err(error) if error.kind() == Kind::Elsewhere => 0,
                        other => other?,
                    };
                    // The end of the file is in the last block.
                    part[count..].fill(0);
                }
            }
            rest = behind;
        }
        Ok(())
    }

    /// Brings blocks of a file up to persistent memory, as far as they are on tiers.
    pub fn bring_up(&self, node: &L::Node, start: FileBlock, len: u64) -> Result<Moved> {
        self.bring_up_from(node, start, len, Durability::Now, |_| true)
    }

    /// The same, as far as they are on some tiers.
    pub(crate) fn bring_up_from(
        &self,
        node: &L::Node,
        start: FileBlock,
        len: u64,
        durability: Durability,
        which: impl Fn(u8) -> bool,
    ) -> Result<Moved> {
        let mut total = Moved::default();
        if self.layout.kind(node) != FileKind::Regular {
            return Ok(total);
        }
        let modified = self.layout.getattr(node)?.mtime;
        let (mut at, end) = (start.0, start.0.saturating_add(len));
        while at < end {
            let rise = Rise { node, at, end, durability, modified };
            let (next, moved) = self.bring_next_up(&rise, &which)?;
            total.moved += moved.moved;
            total.changed += moved.changed;
            at = next;
        }
        Ok(total)
    }

    /// Promotes the first blocks that lie together; gives where the rest begins. Blocks that are written all the time
    /// meanwhile are passed over in the end, because the caller may hold a lock that others wait for.
    fn bring_next_up(&self, rise: &Rise<'_, L::Node>, which: &impl Fn(u8) -> bool) -> Result<(u64, Moved)> {
        let Rise { node, mut at, end, durability, modified } = *rise;
        // As long as it reads, what it has read stays where it was.
        let _reading = Reading::begin(&self.layout);
        let group = self.group().min(AT_ONCE);
        let mut piece = group;
        let mut fetched: Option<(u8, Block, Pages)> = None;
        for _ in 0..REFUSALS {
            // One at a time: each changes the version of its neighbours.
            let found = self.layout.resolve_movable(node, FileBlock(at), (end - at).min(piece))?;
            let Some(last) = found.last().map(|last| last.extent.start.0 + last.extent.len) else {
                // A hole as long as that, or the end.
                let next = self.next_data(node, at)?.map(|next| next.max(at.saturating_add(piece)));
                return Ok((next.unwrap_or(end), Moved::default()));
            };
            let on_tier = found.into_iter().find_map(|from| match from.extent.place {
                Place::Tier { tier, block } if which(tier) => Some((from, tier, block)),
                _ => None,
            });
            let Some((from, tier, block)) = on_tier else { return Ok((last, Moved::default())) };
            let len = from.extent.len;
            let bytes = (len * BLOCK_SIZE) as usize;
            let has_it = |at: &(u8, Block, Pages)| (at.0, at.1) == (tier, block) && at.2.len() >= bytes;
            let content = match fetched.take().filter(has_it) {
                Some((.., content)) => content,
                None => {
                    let mut content = Pages::lent(bytes);
                    let extent = TierRun { tier, start: block, len };
                    self.tiers.read(block.offset(), &mut content, extent, 0)?;
                    content
                }
            };
            at = from.extent.start.0;
            if self.layout.bring_up(node, &from, &content[..bytes], durability, modified)? {
                // They are not looked up there any more, and others may want the room.
                self.tiers.pages().drop_range(tier, block, len);
                return Ok((at + len, Moved { moved: len, changed: 0 }));
            }
            // Something near it was written meanwhile. Less takes less time.
            piece = (len / 2).max(1);
            fetched = Some((tier, block, content));
        }
        Ok((at + piece, Moved { moved: 0, changed: piece }))
    }

    /// Promotes files, the first one from a block on, as far as the budget goes, as [`MoverFs::move_some_down`] demotes
    /// them. There is no flush of a device that they could share: they are promoted one by one.
    pub fn bring_some_up(&self, nodes: &[L::Node], from: FileBlock, budget: &Budget<'_>) -> MovedFiles {
        let mut done = MovedFiles { from: from.0, ..MovedFiles::default() };
        while let Some(node) = nodes.get(done.next) {
            match self.bring_part_up(node, done.from) {
                Ok(Some((moved, from))) => (done.moved, done.from) = (done.moved + moved, from),
                other => {
                    done.failed.extend(other.err().map(|error| (done.next, error)));
                    (done.next, done.from) = (done.next + 1, 0);
                }
            }
            if !budget.goes_on() {
                break;
            }
        }
        done
    }

    /// Brings up a group of a file; gives the number of blocks, and where the next one begins. `None` behind its data.
    fn bring_part_up(&self, node: &L::Node, from: u64) -> Result<Option<(u64, u64)>> {
        if self.layout.kind(node) != FileKind::Regular {
            return Ok(None);
        }
        let Some(data) = self.next_data(node, from)? else { return Ok(None) };
        let group = self.group();
        let moved = self.bring_up(node, FileBlock(data), group)?;
        Ok(Some((moved.moved, data.saturating_add(group))))
    }
}

/// The blocks to be promoted.
struct Rise<'a, N> {
    node: &'a N,
    at: u64,
    end: u64,
    durability: Durability,
    modified: Timestamp,
}

/// Blocks of a tier that were taken, and are given back unless they are kept.
pub(crate) struct Taken<'f, L: Tiered<Proof = Durable>, D: BlockDevice + 'static> {
    fs: &'f MoverFs<L, D>,
    runs: Vec<TierRun>,
}

impl<'f, L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Taken<'f, L, D> {
    pub(crate) fn new(fs: &'f MoverFs<L, D>, runs: Vec<TierRun>) -> Taken<'f, L, D> {
        Taken { fs, runs }
    }

    pub(crate) fn runs(&self) -> &[TierRun] {
        &self.runs
    }

    /// Gives back all but the first blocks.
    pub(crate) fn give_back_behind(&mut self, blocks: u64) {
        let mut before = 0;
        for run in &mut self.runs {
            let kept = run.len.min(blocks.saturating_sub(before));
            before += kept;
            let rest = TierRun { start: run.start.plus(kept), len: run.len - kept, ..*run };
            run.len = kept;
            if rest.len > 0 {
                self.fs.layout.free_on(rest);
            }
        }
        self.runs.retain(|run| run.len > 0);
    }

    /// They are a file's now, or the caller frees them.
    pub(crate) fn keep(mut self) -> VecDeque<TierRun> {
        std::mem::take(&mut self.runs).into()
    }

    /// After a publication that failed: they are given back, unless its entry may be durable all the same. Then no
    /// other may use them before a recovery has found out.
    pub(crate) fn keep_unless_unpublished(self, error: Error) -> Error {
        if error.kind() == Kind::Media {
            drop(self.keep());
        }
        error
    }
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Drop for Taken<'_, L, D> {
    fn drop(&mut self) {
        self.runs.drain(..).for_each(|run| self.fs.layout.free_on(run));
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

pub(crate) fn is_on(place: &Place, tier: u8) -> bool {
    matches!(place, Place::Tier { tier: there, .. } if *there == tier)
}
