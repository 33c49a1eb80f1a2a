//! Reservations of blocks, and the locks of several lanes.
//!
//! A caller that accepts data and writes it later reserves the blocks that this may take: [`Allocator::reserve_blocks`].
//! From then on allocations for every [`Purpose`] but [`Reserved`](Purpose::Reserved) leave so many free, and those for that
//! one take any free block. So a write that takes no more than its reservation always finds space:
//!
//! 1. A reservation is counted first. Then it looks for the blocks, in its own lane under that lane's lock, or else in
//!    all lanes under all their locks.
//! 2. While anything is reserved, every other allocation has the locks of all lanes from looking to taking.
//! 3. An allocation that began when nothing was reserved looks at the count under the lock of each lane that it takes
//!    from, and begins again when that has changed.
//!
//! Such an allocation has no locks from looking to taking, and others may take the same last blocks meanwhile. So it
//! looks once more when it has taken ([`Lanes::have_left`]). If too little is left then, it frees the blocks that it
//! took, and decides under all locks.

use nacre_engine::sync::MutexGuard;
use nacre_engine::sync::atomic::{Ordering, fence};
use nacre_engine::{Error, Reservation, Resource, Result};
use smallvec::SmallVec;

use super::bitmap::LaneMap;
use super::{Allocator, Lane, Purpose, Run};

/// How the maps of lanes are reached.
pub(super) struct Lanes<'a> {
    allocator: &'a Allocator,
    /// All of them, locked; else each is locked when it is used.
    held: SmallVec<[MutexGuard<'a, LaneMap>; 8]>,
    /// Ends when something is reserved.
    until_reserved: bool,
    /// Blocks that were left free in the lane that was used last.
    left: u64,
    /// More was taken than may be.
    overdrawn: bool,
}

impl Lanes<'_> {
    /// Uses a lane. `None` when that may not be done.
    pub(super) fn with<R>(&mut self, index: usize, act: impl FnOnce(&Lane, &mut LaneMap) -> R) -> Option<R> {
        let lane = &self.allocator.lanes[index];
        if let Some(map) = self.held.get_mut(index) {
            return Some(act(lane, map));
        }
        let mut map = lane.map.lock();
        if self.until_reserved && self.allocator.reserved_blocks() > 0 {
            return None;
        }
        let result = act(lane, &mut map);
        self.left = lane.free.load(Ordering::Relaxed);
        Some(result)
    }

    /// True when the taken blocks have left as many free as this purpose requires. If not, they are to be freed.
    ///
    /// Enough in the lane that was used last is enough: an allocation that takes from that lane later has its lock
    /// after us, and sees all that we took. Else all are counted, and of two that do so at once one sees what the other
    /// took, because of the fence. So the last one to look has seen everything.
    pub(super) fn have_left(&mut self, purpose: Purpose) -> bool {
        if !self.until_reserved {
            return true; // it was counted under all locks, or takes what it finds
        }
        let left = self.allocator.left_by(purpose);
        if self.left < left {
            fence(Ordering::SeqCst);
            self.overdrawn = self.allocator.free_blocks() < left;
        }
        !self.overdrawn
    }

    /// Frees the taken blocks.
    pub(super) fn free(&mut self, run: Run) {
        self.until_reserved = false;
        self.allocator.free_by(self, run);
    }
}

impl Allocator {
    /// Reserved blocks.
    pub fn reserved_blocks(&self) -> u64 {
        self.reserved.blocks()
    }

    /// Reserves blocks for [`Purpose::Reserved`]; [`NoSpace`](nacre_engine::Kind::NoSpace) when data could not have so many. Of two
    /// that ask for the last ones at once both may be refused.
    pub fn reserve_blocks(&self, blocks: u64) -> Result<Reservation> {
        self.reserved
            .reserve(blocks, || self.are_there())
            .ok_or_else(|| Error::no_space(Resource::Pm, blocks))
    }

    /// Whether the reserved blocks are free, beside the reserve.
    fn are_there(&self) -> bool {
        let needed = self.reserved_blocks() + self.reserve;
        let own = &self.lanes[self.own_lane()];
        let has_enough = {
            let _map = own.map.lock();
            own.free.load(Ordering::Relaxed) >= needed
        };
        if has_enough {
            return true;
        }
        let _all = self.all_lanes();
        self.free_blocks() >= needed
    }

    /// Each lane is locked when it is used.
    pub(super) fn each_lane(&self) -> Lanes<'_> {
        Lanes { allocator: self, held: SmallVec::new(), until_reserved: false, left: 0, overdrawn: false }
    }

    /// All lanes, locked in order.
    fn all_lanes(&self) -> Lanes<'_> {
        Lanes { held: self.lanes.iter().map(|lane| lane.map.lock()).collect(), ..self.each_lane() }
    }

    /// Allocates with `take`, which takes `want` blocks or none, and none when [`Lanes::have_left`] says so.
    pub(super) fn with_lanes<R>(
        &self,
        want: u64,
        purpose: Purpose,
        mut take: impl FnMut(&mut Lanes<'_>) -> Option<R>,
    ) -> Result<R> {
        let no_space = || Error::no_space(Resource::Pm, want);
        if purpose == Purpose::Reserved {
            // Blocks may come to a lane that was looked at while those of the next ones go: all locks tell.
            return take(&mut self.each_lane()).or_else(|| take(&mut self.all_lanes())).ok_or_else(no_space);
        }
        if !self.fits(want, purpose) {
            return Err(no_space());
        }
        if self.reserved_blocks() == 0 {
            let mut each = Lanes { until_reserved: true, ..self.each_lane() };
            match take(&mut each) {
                None if each.overdrawn || self.reserved_blocks() > 0 => {}
                taken => return taken.ok_or_else(no_space),
            }
        }
        let mut all = self.all_lanes();
        if self.free_blocks() < want + self.left_by(purpose) {
            return Err(no_space());
        }
        take(&mut all).ok_or_else(no_space)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};

    use nacre_engine::Kind;

    use super::super::tests::full;
    use super::super::{Purpose, Runs};

    #[test]
    fn reserved_blocks_are_for_writes_with_a_reservation_alone() {
        let allocator = full(2048, 2, 100);
        let reservation = allocator.reserve_blocks(1900).unwrap();
        assert_eq!(allocator.available_blocks(), 48);
        assert_eq!(allocator.reserve_blocks(49).unwrap_err().kind(), Kind::NoSpace);
        let mut runs = Runs::new();
        assert_eq!(allocator.allocate(49, Purpose::Data, &mut runs).unwrap_err().kind(), Kind::NoSpace);
        allocator.allocate(48, Purpose::Data, &mut runs).unwrap();
        assert_eq!(allocator.allocate(51, Purpose::Metadata, &mut runs).unwrap_err().kind(), Kind::NoSpace);
        allocator.allocate(50, Purpose::Metadata, &mut runs).unwrap();
        allocator.allocate(50, Purpose::Removal, &mut runs).unwrap();
        assert!(allocator.allocate(1, Purpose::Removal, &mut runs).is_err());
        allocator.allocate(1900, Purpose::Reserved, &mut runs).unwrap();
        drop(reservation);
        assert_eq!(allocator.free_blocks(), 0);
    }

    /// Nobody takes from the reserve because another thread was as quick as he.
    #[test]
    fn the_reserve_is_left_whoever_allocates_at_once() {
        const RESERVE: u64 = 100;
        const THREADS: usize = 4;
        let allocator = full(8192, THREADS, RESERVE);
        let mut runs = Runs::new();
        allocator.allocate(8192 - RESERVE - 60, Purpose::Data, &mut runs).unwrap();
        let begin = Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for thread in 0..THREADS as u64 {
                let (allocator, begin) = (&allocator, &begin);
                scope.spawn(move || {
                    for round in 0..2000 {
                        begin.wait();
                        let mut runs = Runs::new();
                        if (thread + round) % 3 > 0 {
                            let _ = allocator.allocate(40, Purpose::Data, &mut runs);
                        } else {
                            runs.extend(allocator.allocate_contiguous(30, Purpose::Data).ok());
                        }
                        begin.wait();
                        assert!(allocator.free_blocks() >= RESERVE, "in round {round}");
                        begin.wait();
                        runs.into_iter().for_each(|run| allocator.free(run));
                    }
                });
            }
        });
        assert_eq!(allocator.available_blocks(), 60);
    }

    /// Some threads reserve blocks and take them, others take all that they get: reserved blocks are always there.
    #[test]
    fn reserved_blocks_are_there_beside_other_allocations() {
        const BLOCKS: u64 = 4096;
        for round in 0..20u64 {
            let allocator = full(BLOCKS, 4, 32);
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for thread in 0..2u64 {
                    let (allocator, done) = (&allocator, &done);
                    scope.spawn(move || {
                        let mut random = 2 * round + thread;
                        while !done.load(Ordering::Relaxed) {
                            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                            let (mut runs, want) = (Runs::new(), 1 + (random >> 40) % 600);
                            let purpose =
                                [Purpose::Data, Purpose::Metadata, Purpose::Removal][(want % 3) as usize];
                            if allocator.allocate(want, purpose, &mut runs).is_ok() {
                                runs.into_iter().for_each(|run| allocator.free(run));
                            }
                        }
                    });
                }
                let mut kept = Vec::new();
                for count in 0..400u64 {
                    let want = 1 + count % 97;
                    if let Ok(reservation) = allocator.reserve_blocks(want) {
                        let mut runs = Runs::new();
                        let found = allocator.allocate(want, Purpose::Reserved, &mut runs);
                        if want == 1
                            && let Ok(_one) = allocator.reserve_blocks(1)
                        {
                            kept.push(allocator.allocate_contiguous(1, Purpose::Reserved).map(|run| run.len));
                        }
                        drop(reservation);
                        done.store(found.is_err(), Ordering::Relaxed);
                        assert!(found.is_ok(), "{want} blocks were reserved");
                        if count % 5 > 0 {
                            runs.into_iter().for_each(|run| allocator.free(run));
                        }
                    }
                }
                done.store(true, Ordering::Relaxed);
                assert!(kept.iter().all(Result::is_ok));
            });
        }
    }
}

#[cfg(all(test, nacre_loom))]
mod interleavings {
    use std::sync::Arc;

    use nacre_engine::Block;
    use nacre_engine::sync::{explore, thread};

    use super::super::{Allocator, Purpose, Run, Runs};

    /// The last blocks go to a reservation or to data, never to both.
    #[test]
    fn the_last_blocks_are_reserved_or_taken() {
        explore(3, || {
            let alloc = Arc::new(Allocator::new(4096, 2, 0));
            alloc.free(Run { start: Block(0), len: 2 });
            alloc.free(Run { start: Block(2048), len: 2 });
            let takes = thread::spawn({
                let alloc = Arc::clone(&alloc);
                move || alloc.allocate(3, Purpose::Data, &mut Runs::new()).is_ok()
            });
            let reservation = alloc.reserve_blocks(2);
            let is_reserved = reservation.is_ok();
            if is_reserved {
                alloc.allocate(2, Purpose::Reserved, &mut Runs::new()).unwrap();
            }
            let taken = takes.join().unwrap();
            assert!(!(is_reserved && taken));
            assert_eq!(alloc.free_blocks(), 4 - 2 * u64::from(is_reserved) - 3 * u64::from(taken));
        });
    }

    /// Of two that want what only one can have, one has it, and the reserve stays.
    #[test]
    fn the_reserve_is_left_by_two_at_once() {
        explore(3, || {
            let alloc = Arc::new(Allocator::new(4096, 2, 2));
            alloc.free(Run { start: Block(0), len: 2 });
            alloc.free(Run { start: Block(2048), len: 2 });
            let takes = thread::spawn({
                let alloc = Arc::clone(&alloc);
                move || alloc.allocate(2, Purpose::Data, &mut Runs::new()).is_ok()
            });
            let here = alloc.allocate_contiguous(2, Purpose::Data).is_ok();
            let there = takes.join().unwrap();
            assert!(here != there);
            assert_eq!(alloc.free_blocks(), 2);
        });
    }
}
