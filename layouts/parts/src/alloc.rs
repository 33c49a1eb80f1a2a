//! Free blocks: a bitmap in DRAM, in lanes.
//!
//! A lane owns a contiguous part of the device and is one lock. A thread allocates from its own lane and goes on to the
//! others when that is empty; a block is freed to the lane that owns it. One bit a block (0.003 % of the device) costs
//! less than any structure of extents once a device is fragmented. It allocates and frees in constant time, and shows a
//! double free at once.
//!
//! Invariants: a bit is set exactly when its block is free; `Lane::free` is the number of set bits of the lane.

mod bitmap;
mod reserved;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use nacre_engine::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use nacre_engine::sync::{Mutex, explored_thread};
use nacre_engine::{Block, Draw, ReservedBlocks, Result};
use smallvec::SmallVec;

pub use self::bitmap::for_each_mask;
use self::bitmap::{LaneMap, Take};
use self::reserved::Lanes;

/// Blocks in a group.
const GROUP: u64 = 512;
/// An allocation of so many blocks first looks for words that are free as a whole: a run of that length contains one
/// wherever it starts.
const LONG: u64 = 127;

/// Contiguous blocks on PM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first.
    pub start: Block,
    /// Their number.
    pub len: u64,
}

/// The result of [`Allocator::take_next`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Next {
    /// The blocks that it took.
    pub run: Option<Run>,
    /// Where the next look goes on; `None` where all was looked at.
    pub next: Option<Block>,
    /// The blocks from there on are of the same run.
    pub is_within: bool,
}

/// Runs that are too short of which one look takes in so many: others wait for the lock meanwhile.
const LOOKED_AT: u64 = 4096;

/// The runs of one allocation; nearly always one.
pub type Runs = SmallVec<[Run; 2]>;

/// The purpose of an allocation. A part of the device is kept so that a full file system can still be emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Contents and new names: leaves the whole reserve.
    Data,
    /// The log of something that exists, and pages that a kernel accepted: leaves half of it.
    Metadata,
    /// Blocks that a full device needs to overwrite existing ones: leaves a quarter.
    Overwrite,
    /// The log of a write on a full device that could do with fewer pieces: leaves three quarters.
    Pieces,
    /// The log of a removal, which gives more back than it takes: leaves nothing.
    Removal,
    /// Writes with a reservation, and their metadata: leaves nothing, not even the reserved blocks.
    Reserved,
}

impl Purpose {
    /// The purpose of a write's blocks.
    pub fn of_write<'r>(draw: impl Into<Draw<'r>>) -> Purpose {
        match draw.into() {
            Draw::Available => Purpose::Data,
            Draw::Accepted => Purpose::Metadata,
            Draw::Overwrite => Purpose::Overwrite,
            Draw::Reserved(_) => Purpose::Reserved,
        }
    }
}

#[repr(align(128))]
struct Lane {
    /// Free blocks; changed only under the lock, read without it.
    free: AtomicU64,
    map: Mutex<LaneMap>,
}

/// All free blocks of a device.
pub struct Allocator {
    lanes: Vec<Lane>,
    /// Blocks of a lane; a multiple of [`GROUP`].
    lane_blocks: u64,
    /// Blocks that only metadata may use.
    reserve: u64,
    /// Blocks that only [`Purpose::Reserved`] may use; see [`reserved`].
    reserved: Arc<ReservedBlocks>,
    blocks: u64,
    /// Blocks with media errors: once they are not in use they are in no lane's map any more. Its lock comes after
    /// those of lanes.
    bad: Mutex<Vec<Block>>,
    has_bad: AtomicBool,
    freed_again: AtomicBool,
}

thread_local! {
    static LANE_OF_THREAD: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// A number for this thread, small and evenly spread, from which it takes its lane.
pub fn lane_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    if let Some(number) = explored_thread() {
        return number;
    }
    LANE_OF_THREAD.with(|lane| {
        if lane.get() == usize::MAX {
            lane.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        lane.get()
    })
}

/// Makes this thread allocate from lane `lane` (modulo their number) of every file system from now on. Threads are
/// spread over the lanes as they come; this is for callers that need the same blocks and inodes each time, such as the
/// crash explorer.
pub fn use_lane(lane: usize) {
    LANE_OF_THREAD.set(lane);
}

impl Allocator {
    /// An allocator in which no block is free.
    pub fn new(blocks: u64, lanes: usize, reserve: u64) -> Allocator {
        let groups = blocks.div_ceil(GROUP);
        let lanes = (lanes.max(1) as u64).min(groups.div_ceil(4)).max(1);
        let lane_blocks = groups.div_ceil(lanes) * GROUP;
        let lanes = (0..lanes)
            .map(|_| Lane {
                free: AtomicU64::new(0),
                map: Mutex::new(LaneMap::new((lane_blocks / 64) as usize)),
            })
            .collect();
        Allocator {
            lanes,
            lane_blocks,
            reserve,
            reserved: Arc::default(),
            blocks,
            bad: Mutex::default(),
            has_bad: AtomicBool::new(false),
            freed_again: AtomicBool::new(false),
        }
    }

    /// Blocks of the device.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Blocks that are kept for operations that must still work on a full device.
    pub fn reserve(&self) -> u64 {
        self.reserve
    }

    /// Number of free blocks, the reserve included.
    pub fn free_blocks(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.free.load(Ordering::Relaxed)).sum()
    }

    /// Blocks that data can still take.
    pub fn available_blocks(&self) -> u64 {
        self.free_blocks().saturating_sub(self.reserve + self.reserved_blocks())
    }

    /// Free blocks beyond the reserve, including those with reservations.
    pub fn unreserved_blocks(&self) -> u64 {
        self.free_blocks().saturating_sub(self.reserve)
    }

    /// Bytes of DRAM that the bitmap takes.
    pub fn index_bytes(&self) -> u64 {
        self.lanes.len() as u64 * self.lane_blocks / 8
    }

    /// Allocates `want` blocks in as few runs as it can find, all or nothing.
    pub fn allocate(&self, want: u64, purpose: Purpose, runs: &mut Runs) -> Result<()> {
        self.allocate_near(None, want, purpose, runs)
    }

    /// Allocates `want` blocks, from `goal` on as far as these are free.
    pub fn allocate_near(
        &self,
        goal: Option<Block>,
        want: u64,
        purpose: Purpose,
        runs: &mut Runs,
    ) -> Result<()> {
        let kept = runs.len();
        self.with_lanes(want, purpose, |lanes| {
            if self.take_near(lanes, goal, want, runs) && lanes.have_left(purpose) {
                return Some(());
            }
            // Under the locks of the lanes it cannot be freed by the way that takes them.
            runs.drain(kept..).for_each(|run| lanes.free(run));
            None
        })
    }

    /// Takes `want` blocks; fewer when there are not so many.
    fn take_near(&self, lanes: &mut Lanes<'_>, goal: Option<Block>, want: u64, runs: &mut Runs) -> bool {
        let (kept, first) = (runs.len(), self.own_lane());
        let mut missing = want;
        if let Some(goal) = goal.filter(|goal| goal.0 < self.blocks) {
            let len = lanes.with((goal.0 / self.lane_blocks) as usize, |lane, map| {
                let len = map.take_at(goal.0 % self.lane_blocks, want);
                lane.count_taken(len);
                len
            });
            let len = len.unwrap_or(0);
            if len > 0 {
                missing -= len;
                runs.push(Run { start: goal, len });
            }
        }
        // Another lane's long run is better than the own lane's holes: each run is an entry of a log.
        let takes: &[Take] = if missing >= LONG { &[Take::Long, Take::Any] } else { &[Take::Any] };
        for take in takes {
            for turn in 0..self.lanes.len() {
                if missing == 0 {
                    return true;
                }
                let index = (first + turn) % self.lanes.len();
                missing -= self.take_from(lanes, index, missing, *take, runs, kept);
            }
        }
        missing == 0
    }

    /// Takes up to `want` blocks from one lane; gives their number.
    fn take_from(
        &self,
        lanes: &mut Lanes<'_>,
        index: usize,
        want: u64,
        take: Take,
        runs: &mut Runs,
        kept: usize,
    ) -> u64 {
        if self.lanes[index].free.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let base = index as u64 * self.lane_blocks;
        let taken = lanes.with(index, |lane, map| {
            let mut taken = 0;
            while taken < want {
                let Some((start, len)) = map.take(want - taken, take) else { break };
                lane.count_taken(len);
                taken += len;
                push_run(runs, kept, Run { start: Block(base + start), len });
            }
            taken
        });
        taken.unwrap_or(0)
    }

    /// Allocates one contiguous run.
    pub fn allocate_contiguous(&self, want: u64, purpose: Purpose) -> Result<Run> {
        self.with_lanes(want, purpose, |lanes| {
            let run = self.take_contiguous(lanes, want)?;
            if lanes.have_left(purpose) {
                return Some(run);
            }
            lanes.free(run);
            None
        })
    }

    fn take_contiguous(&self, lanes: &mut Lanes<'_>, want: u64) -> Option<Run> {
        let first = self.own_lane();
        (0..self.lanes.len()).map(|turn| (first + turn) % self.lanes.len()).find_map(|index| {
            if self.lanes[index].free.load(Ordering::Relaxed) < want {
                return None;
            }
            let start = lanes.with(index, |lane, map| {
                let start = map.take_exactly(want)?;
                lane.count_taken(want);
                Some(start)
            });
            let start = Block(index as u64 * self.lane_blocks + start.flatten()?);
            Some(Run { start, len: want })
        })
    }

    /// Takes blocks of the first run of at least `least` free ones from one on: no more than `most`, and up to the next
    /// multiple of that, without regard to reservations. Runs end at lanes, and of those that are shorter some are
    /// looked at. For a caller that frees them soon.
    pub fn take_next(&self, from: Block, least: u64, most: u64) -> Next {
        let (mut from, mut looked_at) = (from.0, 0);
        while let Some(lane) = self.lanes.get((from / self.lane_blocks) as usize) {
            let base = from / self.lane_blocks * self.lane_blocks;
            let mut map = lane.map.lock();
            let mut at = from - base;
            while let Some(start) = map.next_set(at) {
                let found = map.run_length(start, least.max(most) + 1);
                if found >= least {
                    let len = map.take_at(start, most - (base + start) % most);
                    lane.count_taken(len);
                    let run = Run { start: Block(base + start), len };
                    let next = Some(Block(run.start.0 + len));
                    return Next { run: Some(run), next, is_within: len < found };
                }
                at = start + found;
                // A word of the map takes as long as a run.
                looked_at += 1 + found / 64;
                if looked_at >= LOOKED_AT {
                    return Next { next: Some(Block(base + at)), ..Next::default() };
                }
            }
            from = base + self.lane_blocks;
        }
        Next::default()
    }

    /// The lane that this thread allocates from first.
    fn own_lane(&self) -> usize {
        lane_of_thread() % self.lanes.len()
    }

    /// Gives blocks back. Each must have been allocated; one that was not is noted, see
    /// [`Allocator::contradicts_itself`].
    pub fn free(&self, run: Run) {
        assert!(run.start.0 + run.len <= self.blocks, "freed beyond the device: {run:?}");
        self.free_by(&mut self.each_lane(), run);
    }

    fn free_by(&self, lanes: &mut Lanes<'_>, run: Run) {
        let (mut start, mut left) = (run.start.0, run.len);
        while left > 0 {
            let within = start % self.lane_blocks;
            let len = left.min(self.lane_blocks - within);
            let part = Run { start: Block(start), len };
            let freed_once = lanes.with((start / self.lane_blocks) as usize, |lane, map| {
                // Under the lock: a block that goes bad now is seen here, or free when it is withdrawn.
                self.usable_parts(part).into_iter().fold(true, |once, usable| {
                    let freed = map.set(usable.start.0 % self.lane_blocks, usable.len);
                    lane.count_freed(freed);
                    once && freed == usable.len
                })
            });
            if freed_once != Some(true) {
                self.freed_again.store(true, Ordering::Release);
            }
            start += len;
            left -= len;
        }
    }

    /// A block that was free was freed again: the record that it was in use, or free, was wrong. The file system must
    /// be counted anew.
    pub fn contradicts_itself(&self) -> bool {
        self.freed_again.load(Ordering::Acquire)
    }

    /// Something that was counted at the last unmount is not as it was counted.
    pub fn note_contradiction(&self) {
        self.freed_again.store(true, Ordering::Release);
    }

    /// A run without its bad blocks.
    fn usable_parts(&self, run: Run) -> Runs {
        let mut parts = Runs::new();
        if !self.has_bad.load(Ordering::Acquire) {
            parts.push(run);
            return parts;
        }
        let (mut start, end) = (run.start.0, run.start.0 + run.len);
        for bad in self.bad.lock().iter().filter(|bad| (run.start.0..end).contains(&bad.0)) {
            if bad.0 > start {
                parts.push(Run { start: Block(start), len: bad.0 - start });
            }
            start = bad.0 + 1;
        }
        if start < end {
            parts.push(Run { start: Block(start), len: end - start });
        }
        parts
    }

    /// Takes a block out of use for good: now where it is free, else when it is freed.
    pub fn withdraw(&self, block: Block) {
        let mut bad = self.bad.lock();
        let Err(position) = bad.binary_search(&block) else { return };
        bad.insert(position, block);
        self.has_bad.store(true, Ordering::Release);
        drop(bad);
        let lane = &self.lanes[(block.0 / self.lane_blocks) as usize];
        let mut map = lane.map.lock();
        let taken = map.take_at(block.0 % self.lane_blocks, 1);
        lane.count_taken(taken);
    }

    /// The blocks that were taken out of use, in order.
    pub fn bad_blocks(&self) -> Vec<Block> {
        self.bad.lock().clone()
    }

    /// Calls `visit` with each maximal run of free blocks, in order of address. Runs end at lanes.
    pub fn for_each_free_run(&self, mut visit: impl FnMut(Run)) {
        for (index, lane) in self.lanes.iter().enumerate() {
            let base = index as u64 * self.lane_blocks;
            let map = lane.map.lock();
            let mut at = 0;
            while let Some(start) = map.next_set(at) {
                let len = map.run_length(start, u64::MAX);
                visit(Run { start: Block(base + start), len });
                at = start + len;
            }
        }
    }

    /// True when `want` more blocks may be taken. Only when the thread's own lane is nearly empty are all summed up.
    pub fn fits(&self, want: u64, purpose: Purpose) -> bool {
        let left = self.left_by(purpose);
        let own = self.lanes[self.own_lane()].free.load(Ordering::Relaxed);
        own >= want + left || self.free_blocks() >= want + left
    }

    /// Blocks that an allocation leaves free.
    fn left_by(&self, purpose: Purpose) -> u64 {
        match purpose {
            Purpose::Data => self.reserve + self.reserved_blocks(),
            Purpose::Metadata => self.reserve / 2 + self.reserved_blocks(),
            Purpose::Overwrite => self.reserve / 4 + self.reserved_blocks(),
            Purpose::Pieces => self.reserve / 4 * 3 + self.reserved_blocks(),
            Purpose::Removal => self.reserved_blocks(),
            Purpose::Reserved => 0,
        }
    }
}

impl Lane {
    /// Under the lock of the map, so that a plain store will do.
    fn count_taken(&self, len: u64) {
        self.free.store(self.free.load(Ordering::Relaxed) - len, Ordering::Relaxed);
    }

    /// As [`Lane::count_taken`].
    fn count_freed(&self, len: u64) {
        self.free.store(self.free.load(Ordering::Relaxed) + len, Ordering::Relaxed);
    }
}

fn push_run(runs: &mut Runs, kept: usize, run: Run) {
    if runs.len() > kept
        && let Some(last) = runs.last_mut()
        && last.start.0 + last.len == run.start.0
    {
        last.len += run.len;
        return;
    }
    runs.push(run);
}

#[cfg(test)]
mod tests {
    use super::{Allocator, Next, Purpose, Run, Runs};
    use nacre_engine::{Block, Kind};

    /// An allocator in which all blocks are free.
    pub(super) fn full(blocks: u64, lanes: usize, reserve: u64) -> Allocator {
        let allocator = Allocator::new(blocks, lanes, reserve);
        allocator.free(Run { start: Block(0), len: blocks });
        allocator
    }

    #[test]
    fn free_runs_are_taken_one_after_the_other_in_all_lanes() {
        let allocator = full(10_000, 3, 100);
        let mut all = Runs::new();
        allocator.allocate(9_900, Purpose::Data, &mut all).unwrap();
        let rest = allocator.free_blocks();
        for start in [10, 300, 5_000, 9_999] {
            // Some may be what was left.
            if all.iter().any(|run| (run.start.0..run.start.0 + run.len).contains(&start)) {
                allocator.free(Run { start: Block(start), len: 1 });
            }
        }
        let free = allocator.free_blocks();
        assert!(free >= rest + 3);
        let (mut next, mut taken) = (Some(Block(0)), Vec::new());
        while let Some(from) = next {
            let found = allocator.take_next(from, 1, 8);
            next = found.next;
            let Some(run) = found.run else { continue };
            assert!(run.start >= from && (1..=8).contains(&run.len), "{run:?} from {from:?}");
            assert!(run.start.0 / 8 == (run.start.0 + run.len - 1) / 8, "over a multiple: {run:?}");
            taken.push(run);
        }
        assert_eq!((allocator.free_blocks(), taken.iter().map(|run| run.len).sum::<u64>()), (0, free));
        taken.into_iter().for_each(|run| allocator.free(run));
        assert_eq!((allocator.free_blocks(), allocator.contradicts_itself()), (free, false));
        assert_eq!(allocator.take_next(Block(10_000), 1, 1), Next::default(), "behind the device");
    }

    #[test]
    fn runs_that_are_too_short_are_not_taken() {
        let allocator = Allocator::new(1000, 1, 0);
        for (start, len) in [(3, 4), (10, 5), (20, 40), (100, 7)] {
            allocator.free(Run { start: Block(start), len });
        }
        // Where it is, how long, and whether it goes on behind that.
        let take = |from, least, most| {
            let found = allocator.take_next(Block(from), least, most);
            found.run.inspect(|run| allocator.free(*run)).map(|run| (run.start.0, run.len, found.is_within))
        };
        assert_eq!((take(0, 1, 64), take(0, 5, 64)), (Some((3, 4, false)), Some((10, 5, false))));
        assert_eq!((take(0, 6, 64), take(0, 6, 16)), (Some((20, 40, false)), Some((20, 12, true))));
        assert_eq!((take(32, 6, 16), take(48, 6, 16)), (Some((32, 16, true)), Some((48, 12, false))));
        assert_eq!((take(56, 5, 16), take(56, 4, 16)), (Some((100, 7, false)), Some((56, 4, false))));
        assert_eq!((take(21, 40, 64), take(101, 7, 64)), (None, None));
        assert_eq!(allocator.free_blocks(), 56);
    }

    #[test]
    fn of_runs_that_are_too_short_some_are_looked_at_at_once() {
        let allocator = Allocator::new(40_000, 1, 0);
        (0..10_000).for_each(|number| allocator.free(Run { start: Block(2 * number), len: 1 }));
        allocator.free(Run { start: Block(30_000), len: 2 });
        let (mut next, mut looks) = (Some(Block(0)), 0);
        let found = loop {
            let found = allocator.take_next(next.expect("there is one"), 2, 8);
            looks += 1;
            if found.run.is_some() {
                break found.run;
            }
            next = found.next;
        };
        assert_eq!((found, looks), (Some(Run { start: Block(30_000), len: 2 }), 3));
    }

    #[test]
    fn everything_can_be_allocated_and_freed() {
        let allocator = full(10_000, 3, 0);
        let mut runs = Runs::new();
        for len in [1, 2, 63, 64, 65, 500, 513, 8_792] {
            allocator.allocate(len, Purpose::Data, &mut runs).unwrap();
        }
        assert_eq!(allocator.free_blocks(), 0);
        assert_eq!(
            allocator.allocate(1, Purpose::Metadata, &mut Runs::new()).unwrap_err().kind(),
            Kind::NoSpace
        );
        let mut seen = vec![false; 10_000];
        for run in &runs {
            for block in run.start.0..run.start.0 + run.len {
                assert!(!std::mem::replace(&mut seen[block as usize], true), "block {block} given out twice");
            }
        }
        for run in runs {
            allocator.free(run);
        }
        assert_eq!(allocator.free_blocks(), 10_000);
    }

    #[test]
    fn the_reserve_is_for_metadata_and_removal() {
        let allocator = full(2048, 2, 100);
        let mut runs = Runs::new();
        assert_eq!(allocator.allocate(1949, Purpose::Data, &mut runs).unwrap_err().kind(), Kind::NoSpace);
        assert!(runs.is_empty());
        allocator.allocate(1948, Purpose::Data, &mut runs).unwrap();
        assert_eq!(allocator.available_blocks(), 0);
        assert!(allocator.allocate(51, Purpose::Metadata, &mut runs).is_err());
        allocator.allocate(50, Purpose::Metadata, &mut runs).unwrap();
        allocator.allocate(50, Purpose::Removal, &mut runs).unwrap();
    }

    #[test]
    fn a_failed_allocation_takes_nothing() {
        let allocator = full(1000, 1, 0);
        assert!(allocator.allocate(1001, Purpose::Metadata, &mut Runs::new()).is_err());
        assert_eq!(allocator.free_blocks(), 1000);
    }

    #[test]
    fn long_runs_are_preferred_to_holes() {
        let allocator = full(4096, 1, 0);
        let mut all = Runs::new();
        allocator.allocate(4096, Purpose::Data, &mut all).unwrap();
        for block in (0..1024).step_by(2) {
            allocator.free(Run { start: Block(block), len: 1 });
        }
        allocator.free(Run { start: Block(2048), len: 256 });
        let mut runs = Runs::new();
        allocator.allocate(256, Purpose::Data, &mut runs).unwrap();
        assert_eq!(runs.as_slice(), [Run { start: Block(2048), len: 256 }]);
        assert_eq!(allocator.allocate_contiguous(2, Purpose::Data).unwrap_err().kind(), Kind::NoSpace);
    }

    #[test]
    fn a_long_run_is_found_far_behind_holes() {
        let blocks = 1 << 18;
        let allocator = full(blocks, 1, 0);
        allocator.allocate(blocks, Purpose::Data, &mut Runs::new()).unwrap();
        for block in (0..200_000).step_by(2) {
            allocator.free(Run { start: Block(block), len: 1 });
        }
        allocator.free(Run { start: Block(200_100), len: 200 });
        allocator.free(Run { start: Block(250_001), len: 256 });
        let mut runs = Runs::new();
        allocator.allocate(256, Purpose::Data, &mut runs).unwrap();
        assert_eq!(runs.as_slice(), [Run { start: Block(250_001), len: 256 }]);
    }

    /// Runs of random lengths, taken and given back in another order.
    #[test]
    fn runs_never_overlap() {
        let blocks = 40_000;
        let allocator = full(blocks, 2, 0);
        let mut taken = vec![false; blocks as usize];
        let mut held: Vec<Run> = Vec::new();
        let mut random = 7u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mut runs = Runs::new();
            let want = 1 + (random >> 33) % [1, 30, 200, 900][(random >> 50) as usize % 4];
            if allocator.allocate(want, Purpose::Removal, &mut runs).is_ok() {
                assert_eq!(runs.iter().map(|run| run.len).sum::<u64>(), want);
                for block in runs.iter().flat_map(|run| run.start.0..run.start.0 + run.len) {
                    assert!(!std::mem::replace(&mut taken[block as usize], true), "block {block} twice");
                }
                held.extend(runs);
            }
            while held.len() > 100 {
                let run = held.swap_remove((random >> 40) as usize % held.len());
                taken[run.start.0 as usize..][..run.len as usize].fill(false);
                allocator.free(run);
            }
        }
        let free = taken.iter().filter(|&&taken| !taken).count() as u64;
        assert_eq!(allocator.free_blocks(), free);
        let mut reported = 0;
        allocator.for_each_free_run(|run| reported += run.len);
        assert_eq!(reported, free);
    }

    #[test]
    fn a_double_free_is_seen() {
        let allocator = full(512, 1, 0);
        assert!(!allocator.contradicts_itself());
        allocator.free(Run { start: Block(7), len: 1 });
        assert!(allocator.contradicts_itself());
        assert_eq!(allocator.free_blocks(), 512);
    }

    /// Random allocation and freeing of single blocks in a map that is nearly full, against a plain set.
    #[test]
    fn a_nearly_full_map_agrees_with_a_set() {
        let blocks = 300_000;
        let allocator = full(blocks, 2, 0);
        let mut runs = Runs::new();
        allocator.allocate(blocks, Purpose::Removal, &mut runs).unwrap();
        let mut free = std::collections::BTreeSet::new();
        let mut random = 1u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let block = (random >> 33) % blocks;
            if free.insert(block) {
                allocator.free(Run { start: Block(block), len: 1 });
            }
            if random & 1 << 20 != 0 {
                let mut runs = Runs::new();
                allocator.allocate(1, Purpose::Removal, &mut runs).unwrap();
                assert!(free.remove(&runs[0].start.0));
            }
        }
        assert_eq!(allocator.free_blocks(), free.len() as u64);
        let mut seen = std::collections::BTreeSet::new();
        allocator.for_each_free_run(|run| seen.extend(run.start.0..run.start.0 + run.len));
        assert_eq!(seen, free);
    }

    #[test]
    fn a_bad_block_is_never_given_out() {
        let allocator = full(1024, 1, 0);
        allocator.withdraw(Block(5));
        let mut runs = Runs::new();
        allocator.allocate(1023, Purpose::Data, &mut runs).unwrap();
        assert!(runs.iter().all(|run| !(run.start.0..run.start.0 + run.len).contains(&5)), "{runs:?}");
        // One that is in use goes when it is freed.
        allocator.withdraw(Block(700));
        runs.into_iter().for_each(|run| allocator.free(run));
        assert_eq!(allocator.free_blocks(), 1022);
        assert_eq!(allocator.bad_blocks(), [Block(5), Block(700)]);
    }

    #[test]
    fn runs_are_reported_whole() {
        let allocator = full(2048, 1, 0);
        let mut runs = Runs::new();
        allocator.allocate(1, Purpose::Data, &mut runs).unwrap();
        let mut seen = Vec::new();
        allocator.for_each_free_run(|run| seen.push(run));
        assert_eq!(seen, [Run { start: Block(1), len: 2047 }]);
    }
}

#[cfg(all(test, nacre_loom))]
mod interleavings {
    use std::sync::Arc;

    use nacre_engine::Block;
    use nacre_engine::sync::{explore, thread};

    use super::{Allocator, Purpose, Run, Runs};

    /// The counter of a lane is read without its lock, and changed by plain stores under it.
    #[test]
    fn a_lane_counts_its_free_blocks() {
        explore(3, || {
            let alloc = Arc::new(Allocator::new(512, 1, 0));
            alloc.free(Run { start: Block(0), len: 8 });
            let frees = thread::spawn({
                let alloc = Arc::clone(&alloc);
                move || alloc.free(Run { start: Block(8), len: 4 })
            });
            let mut runs = Runs::new();
            alloc.allocate(2, Purpose::Data, &mut runs).unwrap();
            let seen = alloc.free_blocks();
            assert!(seen == 6 || seen == 10, "{seen} blocks");
            frees.join().unwrap();
            assert_eq!(alloc.free_blocks(), 10);
        });
    }

    /// A block that goes bad while it is freed is not free after it.
    #[test]
    fn a_block_that_goes_bad_while_it_is_freed_stays_away() {
        explore(3, || {
            let alloc = Arc::new(Allocator::new(512, 1, 0));
            let frees = thread::spawn({
                let alloc = Arc::clone(&alloc);
                move || alloc.free(Run { start: Block(6), len: 4 })
            });
            alloc.withdraw(Block(7));
            frees.join().unwrap();
            assert_eq!(alloc.free_blocks(), 3);
            assert!(!alloc.contradicts_itself());
        });
    }
}
