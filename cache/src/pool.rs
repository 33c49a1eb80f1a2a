//! The pool: a bounded number of blocks, and the list of used blocks in the order of their last write.
//!
//! A block is *permitted* first by [`Pool::try_take`], which bounds the number. It is *placed* later, when it gets its
//! bytes, its owner and its place at the end of the list. Writeback takes blocks from the front, and a block in flight
//! is in no list. Blocks of a file in retry backoff move to a list of their own, so that no search passes them each
//! time.
//!
//! Every change that may let a writer continue is an *event*. A writer that finds nothing to write back waits for an
//! event after the last one it has seen. A writer that leaves the work to the threads says how many blocks it wants.
//! It wakes when so many blocks are free, or when no thread works for it any more.

use std::sync::Arc;
use std::time::Duration;

use nacre_engine::sync::atomic::{AtomicU64, Ordering};
use nacre_engine::sync::{Condvar, Mutex};
use nacre_media::{Frame, Frames};

use crate::buffer::BLOCK;
use crate::order::{Order, Place, Slot, Where};

/// The part of its blocks that the pool always claims. It claims more in steps of half of that, and the rest is idle.
const LEAST_CLAIM: u64 = 8;
/// See [`Pool::age`].
const STALE_AFTER_MS: u64 = 1000;
/// The number of places of the list that one search for candidates visits.
const SEARCH: usize = 256;

/// The state that a writer saw when it found too few blocks free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    events: u64,
    changes: u64,
}

struct State<F> {
    free: u64,
    /// The number of blocks that may be in use before idle blocks are reclaimed from other users.
    claimed: u64,
    order: Order<F>,
    empty: Vec<Slot>,
    events: u64,
    /// The number of changes of the settings.
    changes: u64,
    /// The number of calls to the threads, and the last call that a thread has seen.
    calls: u64,
    heard: u64,
    /// Threads that do not wait.
    at_work: u32,
    /// Writers that wait for an event.
    waiting: u32,
    /// The number of blocks that each writer wants that waits for the threads.
    wants: Vec<u64>,
    stopping: bool,
    /// The number of operations that want everything written.
    draining: u32,
}

/// Blocks of DRAM for files of type `F`.
pub(crate) struct Pool<F> {
    capacity: u64,
    /// The DRAM of the blocks. Other users may have the idle part of it.
    frames: Arc<Frames>,
    state: Mutex<State<F>>,
    /// The number of free blocks, to be read without the lock.
    free: AtomicU64,
    /// The number of blocks placed so far.
    placed: AtomicU64,
    /// The threads work when fewer blocks than this are free.
    low: AtomicU64,
    /// The time for which rewrites renew a block, in milliseconds.
    renewal_ms: AtomicU64,
    /// Writers wait here for an event.
    room: Condvar,
    /// Writers wait here for blocks that the threads free.
    enough: Condvar,
    /// Threads wait here for work.
    work: Condvar,
}

/// A thread's part in the work of the pool.
pub(crate) struct Shift<'p, F> {
    pool: &'p Pool<F>,
    /// The calls that the thread has seen.
    calls: u64,
    /// The thread has found no work since then.
    pub(crate) is_idle: bool,
    at_work: bool,
}

impl<F> Shift<'_, F> {
    fn leave(&mut self, state: &mut State<F>) {
        if std::mem::take(&mut self.at_work) {
            state.at_work -= 1;
            if state.at_work == 0 && !state.wants.is_empty() {
                self.pool.enough.notify_all();
            }
        }
    }
}

impl<F> Drop for Shift<'_, F> {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        self.leave(&mut state);
    }
}

/// A request to write everything, in force until it is dropped.
pub(crate) struct Draining<'p, F>(&'p Pool<F>);

impl<F> Drop for Draining<'_, F> {
    fn drop(&mut self) {
        self.0.state.lock().draining -= 1;
    }
}

impl<F> Pool<F> {
    pub(crate) fn new(capacity: u64, frames: Arc<Frames>) -> Pool<F> {
        frames.grow(capacity);
        let claimed = capacity.div_ceil(LEAST_CLAIM);
        frames.set_idle(capacity - claimed);
        let state = State {
            free: capacity,
            claimed,
            order: Order::new(),
            empty: Vec::new(),
            events: 0,
            changes: 0,
            calls: 0,
            heard: 0,
            at_work: 0,
            waiting: 0,
            wants: Vec::new(),
            stopping: false,
            draining: 0,
        };
        Pool {
            capacity,
            frames,
            state: Mutex::new(state),
            free: AtomicU64::new(capacity),
            placed: AtomicU64::new(0),
            low: AtomicU64::new(0),
            renewal_ms: AtomicU64::new(u64::MAX),
            room: Condvar::new(),
            enough: Condvar::new(),
            work: Condvar::new(),
        }
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(crate) fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// Whether no write has a block or is about to take one. A caller that sees this also sees all earlier writebacks.
    pub(crate) fn is_empty(&self) -> bool {
        self.free.load(Ordering::Acquire) == self.capacity
    }

    /// Sets the number of free blocks below which the threads are called. A block that was placed more than
    /// `renewal_ms` ago keeps its place in the list despite rewrites, so that it reaches media at some time.
    pub(crate) fn configure(&self, low: u64, renewal_ms: u64) {
        self.low.store(low, Ordering::Relaxed);
        self.renewal_ms.store(renewal_ms, Ordering::Relaxed);
    }

    pub(crate) fn low(&self) -> u64 {
        self.low.load(Ordering::Relaxed)
    }

    /// Permits `count` blocks, or returns the events so far. `reclaim` asks other users for blocks that are not idle
    /// any more, and they have returned them when it ends.
    pub(crate) fn try_take(&self, count: u64, reclaim: impl FnOnce()) -> Result<(), Seen> {
        let mut state = self.state.lock();
        if state.free < count {
            return Err(Seen { events: state.events, changes: state.changes });
        }
        let used = self.capacity - state.free + count;
        if used > state.claimed {
            state.claimed = (used + self.step()).min(self.capacity);
            self.frames.set_idle(self.capacity - state.claimed);
            // Under the lock, so that no other writer is permitted blocks that are still in use elsewhere.
            reclaim();
        }
        state.free -= count;
        self.free.store(state.free, Ordering::Release);
        Ok(())
    }

    /// Gives blocks back that were permitted and not placed.
    pub(crate) fn give_back(&self, count: u64) {
        if count > 0 {
            let mut state = self.state.lock();
            self.freed(&mut state, count);
        }
    }

    /// Waits for an event after those that were `seen`.
    pub(crate) fn wait_for_room(&self, seen: Seen) {
        let mut state = self.state.lock();
        state.waiting += 1;
        self.call(&mut state);
        while state.events == seen.events {
            self.room.wait(&mut state);
        }
        state.waiting -= 1;
    }

    /// Calls the threads and waits until `count` blocks are free. Returns false if fewer are free and no thread works
    /// for this writer any more, or the settings changed after `seen`.
    pub(crate) fn wait_for_threads(&self, seen: Seen, count: u64) -> bool {
        let mut state = self.state.lock();
        self.call(&mut state);
        let called = state.calls;
        state.wants.push(count);
        while state.free < count
            && (state.at_work > 0 || state.heard < called)
            && state.changes == seen.changes
        {
            self.enough.wait(&mut state);
        }
        if let Some(at) = state.wants.iter().position(|&wanted| wanted == count) {
            state.wants.swap_remove(at);
        }
        state.free >= count
    }

    /// Makes all waiting writers read the settings again.
    pub(crate) fn settings_changed(&self) {
        let mut state = self.state.lock();
        state.changes += 1;
        self.event(&mut state);
        self.enough.notify_all();
    }

    /// Records an event that may let a writer continue.
    pub(crate) fn note_event(&self) {
        let mut state = self.state.lock();
        self.event(&mut state);
    }

    fn event(&self, state: &mut State<F>) {
        state.events += 1;
        if state.waiting > 0 {
            self.room.notify_all();
        }
    }

    fn freed(&self, state: &mut State<F>, count: u64) {
        state.free += count;
        debug_assert!(state.free <= self.capacity);
        self.free.store(state.free, Ordering::Release);
        let used = self.capacity - state.free;
        // Not at once, because a later claim costs other users the contents of these blocks.
        if used + self.step() <= state.claimed / 2 {
            let least = self.capacity.div_ceil(LEAST_CLAIM);
            state.claimed = (used + self.step()).max(least).min(state.claimed);
            self.frames.set_idle(self.capacity - state.claimed);
        }
        self.event(state);
        if state.wants.iter().any(|&wanted| wanted <= state.free) {
            self.enough.notify_all();
        }
    }

    /// Places a permitted block at the end of the list. Its bytes are undefined.
    pub(crate) fn place(&self, owner: &Arc<F>, block: u64, now_ms: u64) -> (Slot, Frame) {
        let frame = self.frames.take();
        let mut state = self.state.lock();
        let owner = Some((Arc::clone(owner), block));
        let place = Place::new(owner, now_ms);
        let slot = match state.empty.pop() {
            Some(slot) => {
                state.order.places[slot as usize] = place;
                slot
            }
            None => {
                state.order.places.push(place);
                state.order.places.len() as Slot - 1
            }
        };
        state.order.append(slot, Where::Listed);
        self.placed.fetch_add(1, Ordering::Relaxed);
        // A writer that found nothing to write back finds this block.
        self.event(&mut state);
        if state.free < self.low() {
            state.calls += 1;
            self.work.notify_one();
        }
        drop(state);
        (slot, frame)
    }

    /// A write to the block makes it the most recently written one, unless its renewal has ended. Order within a
    /// millisecond is not kept.
    pub(crate) fn touch(&self, slot: Slot, now_ms: u64) {
        let mut state = self.state.lock();
        let place = &mut state.order.places[slot as usize];
        let renews = now_ms.saturating_sub(place.placed_ms) <= self.renewal_ms.load(Ordering::Relaxed);
        if renews && place.written_ms != now_ms && place.is == Where::Listed {
            place.written_ms = now_ms;
            state.order.unlink(slot);
            state.order.append(slot, Where::Listed);
        }
    }

    /// The time as the list measures it. It advances with each placed block and with the clock, and wraps around. By
    /// the clock alone, a block is stale after one second ([`Pool::is_stale`]).
    pub(crate) fn age(&self, now_ms: u64) -> u32 {
        let by_clock = now_ms.wrapping_mul(self.stale_after().div_ceil(STALE_AFTER_MS));
        self.placed.load(Ordering::Relaxed).wrapping_add(by_clock) as u32
    }

    /// Whether an eighth of the pool was placed since the age `then`, when a block was last put at the end of the
    /// list. If so, moving it there again is worth the lock. If no block is placed, none has to leave, and the order
    /// has no effect.
    pub(crate) fn is_stale(&self, then: u32, age: u32) -> bool {
        u64::from(age.wrapping_sub(then)) >= self.stale_after()
    }

    fn stale_after(&self) -> u64 {
        (self.capacity / 8).clamp(1, u64::from(u32::MAX / 2))
    }

    /// Takes blocks out of the list.
    pub(crate) fn unlist_all(&self, slots: impl IntoIterator<Item = Slot>) {
        let mut state = self.state.lock();
        slots.into_iter().for_each(|slot| state.order.unlink(slot));
    }

    /// Puts a block back as the newest one, because its writeback did not happen.
    pub(crate) fn relist(&self, slot: Slot) {
        let mut state = self.state.lock();
        state.order.append(slot, Where::Listed);
        self.event(&mut state);
    }

    /// Gives placed blocks back with their bytes.
    pub(crate) fn release_all(&self, released: impl IntoIterator<Item = (Slot, Frame)>) {
        let (mut owners, mut frames) = (Vec::new(), Vec::new());
        let mut state = self.state.lock();
        for (slot, frame) in released {
            if state.order.places[slot as usize].is != Where::Nowhere {
                state.order.unlink(slot);
            }
            let owner = state.order.places[slot as usize].owner.take();
            debug_assert!(owner.is_some(), "released twice");
            owners.push(owner);
            state.empty.push(slot);
            frames.push(frame);
        }
        // First, because permitted writers take them.
        self.frames.give_back(frames);
        if !owners.is_empty() {
            self.freed(&mut state, owners.len() as u64);
        }
        drop(state);
        // Not under the lock, because the file may go with its last owner.
        drop(owners);
    }

    /// Up to `count` of the least recently written blocks, of different files, last written at `until_ms` at the
    /// latest. Blocks of files in backoff beyond `now_ms` move to their own list.
    pub(crate) fn candidates(
        &self,
        count: usize,
        until_ms: u64,
        now_ms: u64,
        rests_until: impl Fn(&F) -> u64,
    ) -> Vec<(Arc<F>, u64)> {
        let mut state = self.state.lock();
        if state.order.wakes_ms <= now_ms {
            state.order.wake();
            // Writers that took them for blocked search again.
            self.event(&mut state);
        }
        let mut found: Vec<(Arc<F>, u64)> = Vec::new();
        let (mut slot, mut looked_at) = (state.order.listed.oldest, 0);
        while looked_at < SEARCH && found.len() < count {
            let Some(place) = state.order.places.get(slot as usize) else { break };
            if place.written_ms > until_ms {
                break;
            }
            let (this, next) = (slot, place.next);
            slot = next;
            let Some((file, block)) = &place.owner else { continue };
            let wakes_ms = rests_until(file);
            if wakes_ms > now_ms {
                state.order.put_to_rest(this, wakes_ms);
                continue;
            }
            looked_at += 1;
            if !found.iter().any(|(known, _)| Arc::ptr_eq(known, file)) {
                found.push((Arc::clone(file), *block));
            }
        }
        found
    }

    /// Whether `count` blocks cannot become free before the end of a backoff, because too many blocks belong to such
    /// files.
    pub(crate) fn is_stuck(&self, count: u64) -> bool {
        self.state.lock().order.resting_blocks() + count > self.capacity
    }

    /// The number of these blocks, from the first on, that were last written at most `within_ms` later than the first.
    pub(crate) fn written_together(&self, slots: &[Slot], within_ms: u64) -> usize {
        let state = self.state.lock();
        let written = |slot: &Slot| state.order.places[*slot as usize].written_ms;
        let Some(until) = slots.first().map(|first| written(first).saturating_add(within_ms)) else {
            return 0;
        };
        slots.iter().take_while(|slot| written(slot) <= until).count()
    }

    /// Begins the work of a thread.
    pub(crate) fn begin_shift(&self) -> Shift<'_, F> {
        Shift { pool: self, calls: 0, is_idle: false, at_work: false }
    }

    /// Waits for work, and returns false if the thread is to end. It returns after `period` or when it is called. It
    /// returns at once if it was called since its last return. Unless the thread found no work, too few free blocks or
    /// a waiting writer also make it return at once.
    pub(crate) fn wait_for_work(&self, shift: &mut Shift<'_, F>, period: Duration) -> bool {
        let mut state = self.state.lock();
        let writers = state.waiting > 0 || !state.wants.is_empty();
        let has_work = state.free < self.low() || writers || state.draining > 0;
        if !state.stopping && state.calls == shift.calls && (shift.is_idle || !has_work) {
            shift.leave(&mut state);
            self.work.wait_for(&mut state, period);
        }
        if state.stopping {
            shift.leave(&mut state);
            return false;
        }
        state.at_work += u32::from(!std::mem::replace(&mut shift.at_work, true));
        (shift.calls, shift.is_idle) = (state.calls, true);
        state.heard = state.calls;
        true
    }

    /// Calls the threads.
    pub(crate) fn call_threads(&self) {
        let mut state = self.state.lock();
        self.call(&mut state);
    }

    /// Calls the threads. Threads that do not wait yet search once more before they do.
    fn call(&self, state: &mut State<F>) {
        state.calls += 1;
        self.work.notify_all();
    }

    /// Everything is to be written while the result exists.
    pub(crate) fn drain(&self) -> Draining<'_, F> {
        let mut state = self.state.lock();
        state.draining += 1;
        self.call(&mut state);
        drop(state);
        Draining(self)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.state.lock().draining > 0
    }

    /// Whether the threads are to end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.state.lock().stopping
    }

    /// Ends the threads, or allows them again.
    pub(crate) fn set_stopping(&self, stopping: bool) {
        let mut state = self.state.lock();
        state.stopping = stopping;
        self.work.notify_all();
    }

    fn step(&self) -> u64 {
        (self.capacity / LEAST_CLAIM / 2).max(1)
    }

    /// Bytes of DRAM that the blocks and the list take now.
    pub(crate) fn bytes(&self) -> u64 {
        let state = self.state.lock();
        let blocks = self.capacity - state.free + self.frames.spare();
        blocks * BLOCK as u64 + (state.order.places.capacity() * size_of::<Place<F>>()) as u64
    }
}

impl<F> Drop for Pool<F> {
    fn drop(&mut self) {
        // No user of the pool is left to reclaim the blocks.
        self.frames.set_idle(0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use nacre_media::{Frame, Frames};

    use super::{Pool, Shift};
    use crate::buffer::BLOCK;
    use crate::order::Slot;

    type Placed = (Slot, Frame);

    fn blocks(pool: &Pool<u32>) -> Vec<u64> {
        pool.candidates(usize::MAX, u64::MAX, 0, |_| 0).into_iter().map(|(_, block)| block).collect()
    }

    #[test]
    fn the_number_of_blocks_is_bounded() {
        let pool = Pool::new(2, Arc::default());
        pool.try_take(2, || ()).unwrap();
        let seen = pool.try_take(1, || ()).unwrap_err();
        let (slot, buffer) = pool.place(&Arc::new(0), 7, 0);
        // It can be written back now: who found nothing to do goes on.
        let placed = pool.try_take(1, || ()).unwrap_err();
        assert_ne!(placed, seen, "that was an event");
        pool.wait_for_room(seen);
        pool.release_all([(slot, buffer)]);
        assert_ne!(pool.try_take(2, || ()).unwrap_err(), placed, "and so was that");
        pool.wait_for_room(placed);
        pool.give_back(1);
        assert_eq!((pool.free(), pool.capacity()), (2, 2));
    }

    #[test]
    fn the_least_recently_written_comes_first() {
        let pool = Pool::new(4, Arc::default());
        pool.try_take(4, || ()).unwrap();
        let placed: Vec<_> = (0..4).map(|block| pool.place(&Arc::new(block as u32), block, block)).collect();
        assert_eq!(blocks(&pool), [0, 1, 2, 3]);
        pool.touch(placed[1].0, 9);
        pool.touch(placed[3].0, 3);
        assert_eq!(blocks(&pool), [0, 2, 3, 1]);
        pool.unlist_all([placed[0].0]);
        assert_eq!(blocks(&pool), [2, 3, 1]);
        pool.relist(placed[0].0);
        assert_eq!(blocks(&pool), [2, 3, 1, 0]);
        let old: Vec<_> = pool.candidates(9, 3, 0, |_| 0).into_iter().map(|(_, block)| block).collect();
        assert_eq!(old, [2, 3]);
        let seen = pool.try_take(1, || ()).unwrap_err();
        pool.release_all(placed);
        assert_eq!(seen.events + 1, pool.try_take(5, || ()).unwrap_err().events, "one event for all of them");
        assert_eq!((blocks(&pool), pool.free()), (vec![], 4));
    }

    #[test]
    fn a_block_is_renewed_for_so_long_and_no_longer() {
        let pool = Pool::new(2, Arc::default());
        pool.configure(0, 30);
        pool.try_take(2, || ()).unwrap();
        let hot = pool.place(&Arc::new(0), 0, 100);
        for now in [110, 120, 130, 131, 140] {
            pool.touch(hot.0, now);
        }
        let written_by = |until_ms| pool.candidates(9, until_ms, 0, |_| 0).len();
        assert_eq!((written_by(129), written_by(130)), (0, 1));
        let cold = pool.place(&Arc::new(1), 1, 140);
        assert_eq!(pool.written_together(&[hot.0, cold.0], 9), 1);
        assert_eq!(pool.written_together(&[hot.0, cold.0], 10), 2);
        pool.touch(hot.0, 150);
        assert_eq!(blocks(&pool), [0, 1], "its turn comes");
        pool.release_all([hot, cold]);
    }

    #[test]
    fn a_block_is_stale_behind_an_eighth_of_the_pool_or_after_a_second() {
        let pool = Pool::new(80_000, Arc::default());
        pool.try_take(20_000, || ()).unwrap();
        let owner = Arc::new(0);
        let then = pool.age(5);
        for block in 0..9_999 {
            pool.place(&owner, block, 5);
        }
        assert!(!pool.is_stale(then, pool.age(5)));
        pool.place(&owner, 9_999, 5);
        assert!(pool.is_stale(then, pool.age(5)));
        let then = pool.age(5);
        assert!(!pool.is_stale(then, pool.age(5 + 999)) && pool.is_stale(then, pool.age(5 + 1000)));
        // One that was put there long ago, and wrapped around.
        let then = pool.age(u64::MAX / 4);
        assert!(!pool.is_stale(then, pool.age(u64::MAX / 4 + 999)));
        let tiny: Pool<u32> = Pool::new(3, Arc::default());
        assert!(!tiny.is_stale(tiny.age(7), tiny.age(7)) && tiny.is_stale(tiny.age(7), tiny.age(8)));
    }

    #[test]
    fn one_candidate_of_a_file_is_enough() {
        let pool = Pool::new(2, Arc::default());
        pool.try_take(2, || ()).unwrap();
        let file = Arc::new(5);
        let _placed = [pool.place(&file, 1, 0), pool.place(&file, 2, 0)];
        assert_eq!(blocks(&pool), [1]);
    }

    #[test]
    fn what_rests_is_passed_over_until_its_time_comes() {
        let pool = Pool::new(600, Arc::default());
        pool.try_take(600, || ()).unwrap();
        // More of one that rests than a search looks at.
        let (failing, other) = (Arc::new(20), Arc::new(0));
        let mut placed: Vec<Placed> = (0..500).map(|block| pool.place(&failing, block, block)).collect();
        placed.push(pool.place(&other, 1000, 1000));
        let found = |now_ms| {
            let found = pool.candidates(9, u64::MAX, now_ms, |file| u64::from(*file));
            found.into_iter().map(|(_, block)| block).collect::<Vec<_>>()
        };
        assert_eq!(found(19), [1000]);
        assert!(!pool.is_stuck(100) && pool.is_stuck(101));
        // In a list or not, one can leave; a write renews none of them.
        pool.touch(placed[1].0, 2000);
        pool.unlist_all([placed[0].0]);
        pool.release_all(placed.drain(..300));
        assert!(!pool.is_stuck(400) && pool.is_stuck(401));
        assert_eq!((found(20), found(20)), (vec![300, 1000], vec![300, 1000]));
        // What was written before it comes before it, and what was written behind it behind.
        let young = pool.place(&failing, 2000, 2000);
        assert_eq!(found(19), [1000]);
        let by_age = pool.candidates(9, 1000, 20, |file| u64::from(*file));
        assert_eq!(by_age.into_iter().map(|(_, block)| block).collect::<Vec<_>>(), [300, 1000]);
        assert_eq!(blocks(&pool), [300, 1000]);
        pool.release_all([young]);
        assert!(!pool.is_stuck(600), "nothing rests any more");
        pool.unlist_all([placed[1].0]);
        pool.relist(placed[1].0);
        pool.release_all(placed);
        assert_eq!((blocks(&pool), pool.free()), (vec![], 502));
    }

    #[test]
    fn what_is_not_claimed_is_idle_and_asked_for_before_it_is_used() {
        let frames = Arc::new(Frames::default());
        let pool: Pool<u32> = Pool::new(160, Arc::clone(&frames));
        assert_eq!(frames.idle(), 140, "an eighth is never left to others");
        let mut asked = 0;
        for taken in 1..=160 {
            pool.try_take(1, || asked += 1).unwrap();
            assert!(taken + frames.idle() <= 160);
        }
        assert_eq!((asked, frames.idle()), (13, 0), "in steps");
        // What comes and goes asks nobody.
        for _ in 0..100 {
            pool.give_back(60);
            pool.try_take(60, || panic!("it is claimed")).unwrap();
        }
        pool.give_back(90);
        assert_eq!(frames.idle(), 160 - 80);
        pool.give_back(70);
        assert_eq!(frames.idle(), 140);
        drop(pool);
        assert_eq!(frames.idle(), 0);
    }

    #[test]
    fn bytes_are_those_of_blocks_in_use_and_of_what_they_left() {
        let pool = Pool::new(30, Arc::default());
        pool.try_take(30, || ()).unwrap();
        let placed: Vec<Placed> = (0..30).map(|block| pool.place(&Arc::new(0), block, 0)).collect();
        let lent: Vec<Frame> = placed[..20].iter().map(|(_, frame)| frame.clone()).collect();
        pool.release_all(placed);
        assert!((30..40).contains(&(pool.bytes() / BLOCK as u64)));
        pool.try_take(30, || ()).unwrap();
        let mut placed: Vec<Placed> = (0..30).map(|block| pool.place(&Arc::new(0), block, 0)).collect();
        assert!(placed.iter_mut().all(|(_, frame)| frame.get_mut().is_some()), "shared with nobody");
        assert!(pool.bytes() >= 50 * BLOCK as u64);
        drop(lent);
    }

    /// A pool of three blocks in use, a thread at work and a writer that wants all of them.
    fn with_a_writer<R: Send>(
        act: impl FnOnce(&Pool<u32>, &mut Shift<'_, u32>, Vec<Placed>) -> R,
    ) -> (R, bool) {
        let pool = Pool::new(3, Arc::default());
        pool.try_take(3, || ()).unwrap();
        let placed = (0..3).map(|block| pool.place(&Arc::new(0), block, 0)).collect();
        let mut shift = pool.begin_shift();
        pool.call_threads();
        assert!(pool.wait_for_work(&mut shift, Duration::ZERO));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| pool.wait_for_threads(pool.try_take(3, || ()).unwrap_err(), 3));
            while pool.state.lock().wants.is_empty() {
                std::thread::yield_now();
            }
            (act(&pool, &mut shift, placed), writer.join().unwrap())
        })
    }

    /// Each block that was freed woke it, and it wrote back beside the threads for the rest.
    #[test]
    fn a_writer_waits_for_all_that_it_wants() {
        let (stayed, is_enough) = with_a_writer(|pool, _, placed| {
            let stays = placed.into_iter().map(|block| {
                let stays = !pool.state.lock().wants.is_empty();
                pool.release_all([block]);
                stays
            });
            stays.collect::<Vec<_>>()
        });
        assert_eq!((stayed, is_enough), (vec![true; 3], true));
    }

    #[test]
    fn a_writer_waits_no_longer_than_a_thread_works() {
        let ((), is_enough) = with_a_writer(|pool, shift, placed| {
            // It has called once more; after that the thread finds nothing to do.
            assert!(pool.wait_for_work(shift, Duration::ZERO));
            pool.release_all(placed.into_iter().take(2));
            assert!(pool.wait_for_work(shift, Duration::from_millis(1)));
        });
        assert!(!is_enough);
        let ((), is_enough) = with_a_writer(|pool, _, _| pool.settings_changed());
        assert!(!is_enough);
    }
}
