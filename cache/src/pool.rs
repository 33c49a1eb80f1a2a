//! The pool: a bounded number of blocks, and the list of those in use by when they were last written.
//!
//! A block is *permitted* first ([`Pool::try_take`]: the number is bounded there) and *placed* later, when it gets its
//! bytes, its owner and its place at the end of the list. Writeback takes from the front; a block that is in flight is in
//! no list. Every change that may let a writer go on is an *event*; a writer that waits says which it has seen.

use std::sync::Arc;
use std::time::Duration;

use nacre_engine::sync::atomic::{AtomicU64, Ordering};
use nacre_engine::sync::{Condvar, Mutex};

use crate::buffer::{BLOCK, Buffer};

/// The number of a placed block.
pub(crate) type Slot = u32;

const NONE: Slot = Slot::MAX;
/// Places of the list that one search for candidates looks at.
const SEARCH: usize = 256;

struct Place<F> {
    previous: Slot,
    next: Slot,
    listed: bool,
    owner: Option<(Arc<F>, u64)>,
    placed_ms: u64,
    written_ms: u64,
}

struct State<F> {
    free: u64,
    /// Buffers that nobody uses.
    spare: Vec<Arc<Buffer>>,
    places: Vec<Place<F>>,
    empty: Vec<Slot>,
    /// The least recently written block, and the most recently written one.
    oldest: Slot,
    newest: Slot,
    events: u64,
    /// How often the threads were called.
    calls: u64,
    /// Writers that wait.
    waiting: u32,
    stopping: bool,
    /// So many want everything written.
    draining: u32,
}

/// Blocks of DRAM for files of type `F`.
pub(crate) struct Pool<F> {
    capacity: u64,
    state: Mutex<State<F>>,
    /// The number of free blocks, to be looked at without the lock.
    free: AtomicU64,
    /// The threads are to work when less than this is free.
    low: AtomicU64,
    /// Milliseconds for which writing to a block again renews it.
    renewal_ms: AtomicU64,
    /// Writers wait here for room.
    room: Condvar,
    /// Threads wait here for work.
    work: Condvar,
}

/// Somebody wants everything written.
pub(crate) struct Draining<'p, F>(&'p Pool<F>);

impl<F> Drop for Draining<'_, F> {
    fn drop(&mut self) {
        self.0.state.lock().draining -= 1;
    }
}

impl<F> Pool<F> {
    pub(crate) fn new(capacity: u64) -> Pool<F> {
        let state = State {
            free: capacity,
            spare: Vec::new(),
            places: Vec::new(),
            empty: Vec::new(),
            oldest: NONE,
            newest: NONE,
            events: 0,
            calls: 0,
            waiting: 0,
            stopping: false,
            draining: 0,
        };
        Pool {
            capacity,
            state: Mutex::new(state),
            free: AtomicU64::new(capacity),
            low: AtomicU64::new(0),
            renewal_ms: AtomicU64::new(u64::MAX),
            room: Condvar::new(),
            work: Condvar::new(),
        }
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(crate) fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// When the threads are called: as soon as less than `low` blocks are free. A block that was placed longer than
    /// `renewal_ms` ago keeps its place in the list, however often it is written to: it is to reach media some time.
    pub(crate) fn configure(&self, low: u64, renewal_ms: u64) {
        self.low.store(low, Ordering::Relaxed);
        self.renewal_ms.store(renewal_ms, Ordering::Relaxed);
    }

    pub(crate) fn low(&self) -> u64 {
        self.low.load(Ordering::Relaxed)
    }

    /// Permits `count` blocks, or tells the events so far.
    pub(crate) fn try_take(&self, count: u64) -> Result<(), u64> {
        let mut state = self.state.lock();
        if state.free < count {
            return Err(state.events);
        }
        state.free -= count;
        self.free.store(state.free, Ordering::Relaxed);
        Ok(())
    }

    /// Gives blocks back that were permitted and not placed.
    pub(crate) fn give_back(&self, count: u64) {
        if count > 0 {
            let mut state = self.state.lock();
            self.freed(&mut state, count);
        }
    }

    /// Waits until something happened after the events `seen`.
    pub(crate) fn wait_for_room(&self, seen: u64) {
        let mut state = self.state.lock();
        state.waiting += 1;
        self.call(&mut state);
        while state.events == seen {
            self.room.wait(&mut state);
        }
        state.waiting -= 1;
    }

    /// Something happened that may let a writer go on.
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
        self.free.store(state.free, Ordering::Relaxed);
        self.event(state);
    }

    /// Places a permitted block at the end of the list. Its bytes are anything.
    pub(crate) fn place(&self, owner: &Arc<F>, block: u64, now_ms: u64) -> (Slot, Arc<Buffer>) {
        let mut state = self.state.lock();
        let owner = Some((Arc::clone(owner), block));
        let place =
            Place { previous: NONE, next: NONE, listed: false, owner, placed_ms: now_ms, written_ms: now_ms };
        let slot = match state.empty.pop() {
            Some(slot) => {
                state.places[slot as usize] = place;
                slot
            }
            None => {
                state.places.push(place);
                state.places.len() as Slot - 1
            }
        };
        state.append(slot);
        let spare = state.spare.pop();
        // Whoever found nothing to write back finds this one.
        self.event(&mut state);
        if state.free < self.low() {
            state.calls += 1;
            self.work.notify_one();
        }
        drop(state);
        (slot, spare.unwrap_or_else(|| Arc::new(Buffer([0; BLOCK]))))
    }

    /// The block was written: it is the most recently written one, unless that was renewed for too long. Order within a
    /// millisecond is not kept.
    pub(crate) fn touch(&self, slot: Slot, now_ms: u64) {
        let mut state = self.state.lock();
        let place = &mut state.places[slot as usize];
        let renews = now_ms.saturating_sub(place.placed_ms) <= self.renewal_ms.load(Ordering::Relaxed);
        if renews && place.written_ms != now_ms && place.listed {
            place.written_ms = now_ms;
            state.unlink(slot);
            state.append(slot);
        }
    }

    /// Takes a block out of the list.
    pub(crate) fn unlist(&self, slot: Slot) {
        self.state.lock().unlink(slot);
    }

    /// Puts a block back whose writeback did not happen, as the newest one.
    pub(crate) fn relist(&self, slot: Slot) {
        let mut state = self.state.lock();
        state.append(slot);
        self.event(&mut state);
    }

    /// Gives a placed block back with its bytes.
    pub(crate) fn release(&self, slot: Slot, mut buffer: Arc<Buffer>) {
        let mut state = self.state.lock();
        if state.places[slot as usize].listed {
            state.unlink(slot);
        }
        let owner = state.places[slot as usize].owner.take();
        debug_assert!(owner.is_some(), "released twice");
        state.empty.push(slot);
        if Arc::get_mut(&mut buffer).is_some() {
            state.spare.push(buffer);
        }
        self.freed(&mut state, 1);
        drop(state);
        // The file may go with its last owner: not under the lock.
        drop(owner);
    }

    /// Up to `count` of the least recently written blocks, of different files, last written at `until_ms` at the latest.
    pub(crate) fn candidates(&self, count: usize, until_ms: u64) -> Vec<(Arc<F>, u64)> {
        let state = self.state.lock();
        let mut found: Vec<(Arc<F>, u64)> = Vec::new();
        let mut slot = state.oldest;
        for _ in 0..SEARCH {
            let Some(place) = state.places.get(slot as usize) else { break };
            if place.written_ms > until_ms {
                break;
            }
            if let Some((file, block)) = &place.owner
                && !found.iter().any(|(known, _)| Arc::ptr_eq(known, file))
            {
                found.push((Arc::clone(file), *block));
                if found.len() == count {
                    break;
                }
            }
            slot = place.next;
        }
        found
    }

    /// When a block was last written.
    pub(crate) fn written_ms(&self, slot: Slot) -> u64 {
        self.state.lock().places[slot as usize].written_ms
    }

    /// A thread waits for work: `None` when it is to end, else the calls so far. It returns after `period`, when it is
    /// called, and at once when it was called after the calls `seen`, or when too few blocks are free or a writer waits,
    /// unless it found nothing to do the last time (`idle`).
    pub(crate) fn wait_for_work(&self, seen: u64, idle: bool, period: Duration) -> Option<u64> {
        let mut state = self.state.lock();
        let has_work = state.free < self.low() || state.waiting > 0 || state.draining > 0;
        if !state.stopping && state.calls == seen && (idle || !has_work) {
            self.work.wait_for(&mut state, period);
        }
        (!state.stopping).then_some(state.calls)
    }

    /// Calls the threads.
    pub(crate) fn call_threads(&self) {
        let mut state = self.state.lock();
        self.call(&mut state);
    }

    /// Calls the threads, also those that do not wait yet: they look once more before they do.
    fn call(&self, state: &mut State<F>) {
        state.calls += 1;
        self.work.notify_all();
    }

    /// Everything is to be written, as long as this is kept.
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

    /// True when the threads are to end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.state.lock().stopping
    }

    /// Ends the threads, or allows them again.
    pub(crate) fn set_stopping(&self, stopping: bool) {
        let mut state = self.state.lock();
        state.stopping = stopping;
        self.work.notify_all();
    }

    /// Bytes of DRAM that the blocks and the list take now.
    pub(crate) fn bytes(&self) -> u64 {
        let state = self.state.lock();
        let used = self.capacity - state.free + state.spare.len() as u64;
        used * BLOCK as u64 + (state.places.capacity() * size_of::<Place<F>>()) as u64
    }
}

impl<F> State<F> {
    fn append(&mut self, slot: Slot) {
        let newest = std::mem::replace(&mut self.newest, slot);
        let place = &mut self.places[slot as usize];
        debug_assert!(!place.listed);
        (place.previous, place.next, place.listed) = (newest, NONE, true);
        match self.places.get_mut(newest as usize) {
            Some(place) => place.next = slot,
            None => self.oldest = slot,
        }
    }

    fn unlink(&mut self, slot: Slot) {
        let place = &mut self.places[slot as usize];
        debug_assert!(place.listed);
        place.listed = false;
        let (previous, next) = (place.previous, place.next);
        match self.places.get_mut(previous as usize) {
            Some(place) => place.next = next,
            None => self.oldest = next,
        }
        match self.places.get_mut(next as usize) {
            Some(place) => place.previous = previous,
            None => self.newest = previous,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Pool;

    fn blocks(pool: &Pool<u32>) -> Vec<u64> {
        pool.candidates(usize::MAX, u64::MAX).into_iter().map(|(_, block)| block).collect()
    }

    #[test]
    fn the_number_of_blocks_is_bounded() {
        let pool = Pool::new(2);
        pool.try_take(2).unwrap();
        let seen = pool.try_take(1).unwrap_err();
        let (slot, buffer) = pool.place(&Arc::new(0), 7, 0);
        // It can be written back now: who found nothing to do goes on.
        let placed = pool.try_take(1).unwrap_err();
        assert_ne!(placed, seen, "that was an event");
        pool.wait_for_room(seen);
        pool.release(slot, buffer);
        assert_ne!(pool.try_take(2).unwrap_err(), placed, "and so was that");
        pool.wait_for_room(placed);
        pool.give_back(1);
        assert_eq!((pool.free(), pool.capacity()), (2, 2));
    }

    #[test]
    fn the_least_recently_written_comes_first() {
        let pool = Pool::new(4);
        pool.try_take(4).unwrap();
        let placed: Vec<_> = (0..4).map(|block| pool.place(&Arc::new(block as u32), block, block)).collect();
        assert_eq!(blocks(&pool), [0, 1, 2, 3]);
        pool.touch(placed[1].0, 9);
        pool.touch(placed[3].0, 3);
        assert_eq!(blocks(&pool), [0, 2, 3, 1]);
        pool.unlist(placed[0].0);
        assert_eq!(blocks(&pool), [2, 3, 1]);
        pool.relist(placed[0].0);
        assert_eq!(blocks(&pool), [2, 3, 1, 0]);
        let old: Vec<_> = pool.candidates(9, 3).into_iter().map(|(_, block)| block).collect();
        assert_eq!(old, [2, 3]);
        placed.into_iter().for_each(|(slot, buffer)| pool.release(slot, buffer));
        assert_eq!((blocks(&pool), pool.free()), (vec![], 4));
    }

    #[test]
    fn a_block_is_renewed_for_so_long_and_no_longer() {
        let pool = Pool::new(2);
        pool.configure(0, 30);
        pool.try_take(2).unwrap();
        let hot = pool.place(&Arc::new(0), 0, 100);
        for now in [110, 120, 130, 131, 140] {
            pool.touch(hot.0, now);
        }
        assert_eq!(pool.written_ms(hot.0), 130);
        let cold = pool.place(&Arc::new(1), 1, 140);
        pool.touch(hot.0, 150);
        assert_eq!(blocks(&pool), [0, 1], "its turn comes");
        pool.release(hot.0, hot.1);
        pool.release(cold.0, cold.1);
    }

    #[test]
    fn one_candidate_of_a_file_is_enough() {
        let pool = Pool::new(2);
        pool.try_take(2).unwrap();
        let file = Arc::new(5);
        let _placed = [pool.place(&file, 1, 0), pool.place(&file, 2, 0)];
        assert_eq!(blocks(&pool), [1]);
    }
}
