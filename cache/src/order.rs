//! The lists of the pool: blocks in the order of their last write, and blocks of files in backoff.

use std::sync::Arc;

/// The number of a placed block.
pub(crate) type Slot = u32;

const NONE: Slot = Slot::MAX;

/// The list that holds a placed block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Where {
    /// In flight, or about to be listed.
    Nowhere,
    /// In the list by last write.
    Listed,
    /// In the list of files in backoff.
    Resting,
}

/// The ends of a list.
#[derive(Clone, Copy)]
pub(crate) struct List {
    pub(crate) oldest: Slot,
    newest: Slot,
}

impl List {
    const EMPTY: List = List { oldest: NONE, newest: NONE };
}

/// A placed block.
pub(crate) struct Place<F> {
    previous: Slot,
    pub(crate) next: Slot,
    pub(crate) is: Where,
    pub(crate) owner: Option<(Arc<F>, u64)>,
    pub(crate) placed_ms: u64,
    pub(crate) written_ms: u64,
}

impl<F> Place<F> {
    pub(crate) fn new(owner: Option<(Arc<F>, u64)>, now_ms: u64) -> Place<F> {
        Place { previous: NONE, next: NONE, is: Where::Nowhere, owner, placed_ms: now_ms, written_ms: now_ms }
    }
}

/// All places, and the lists through them.
pub(crate) struct Order<F> {
    pub(crate) places: Vec<Place<F>>,
    /// Blocks by their last write.
    pub(crate) listed: List,
    resting: List,
    /// Blocks of files in backoff, and the first time at which one may be tried again.
    rest: u64,
    pub(crate) wakes_ms: u64,
}

impl<F> Order<F> {
    pub(crate) fn new() -> Order<F> {
        Order { places: Vec::new(), listed: List::EMPTY, resting: List::EMPTY, rest: 0, wakes_ms: u64::MAX }
    }

    pub(crate) fn resting_blocks(&self) -> u64 {
        self.rest
    }

    fn list(&mut self, which: Where) -> &mut List {
        if which == Where::Resting { &mut self.resting } else { &mut self.listed }
    }

    /// Puts a block that is in no list at the end of one.
    pub(crate) fn append(&mut self, slot: Slot, to: Where) {
        self.rest += u64::from(to == Where::Resting);
        let newest = std::mem::replace(&mut self.list(to).newest, slot);
        let place = &mut self.places[slot as usize];
        debug_assert!(place.is == Where::Nowhere);
        (place.previous, place.next, place.is) = (newest, NONE, to);
        match self.places.get_mut(newest as usize) {
            Some(place) => place.next = slot,
            None => self.list(to).oldest = slot,
        }
    }

    pub(crate) fn unlink(&mut self, slot: Slot) {
        let place = &mut self.places[slot as usize];
        let from = std::mem::replace(&mut place.is, Where::Nowhere);
        debug_assert!(from != Where::Nowhere);
        let (previous, next) = (place.previous, place.next);
        self.rest -= u64::from(from == Where::Resting);
        match self.places.get_mut(previous as usize) {
            Some(place) => place.next = next,
            None => self.list(from).oldest = next,
        }
        match self.places.get_mut(next as usize) {
            Some(place) => place.previous = previous,
            None => self.list(from).newest = previous,
        }
    }

    /// Moves a block of a file in backoff until `wakes_ms` to its list.
    pub(crate) fn put_to_rest(&mut self, slot: Slot, wakes_ms: u64) {
        self.unlink(slot);
        self.append(slot, Where::Resting);
        self.wakes_ms = self.wakes_ms.min(wakes_ms);
    }

    /// Lists all blocks in backoff again, by their last write. A search by age ends at the first block that is too
    /// young.
    pub(crate) fn wake(&mut self) {
        self.wakes_ms = u64::MAX;
        let mut behind = self.listed.oldest;
        while self.resting.oldest != NONE {
            let slot = self.resting.oldest;
            let written_ms = self.places[slot as usize].written_ms;
            self.unlink(slot);
            while self.places.get(behind as usize).is_some_and(|place| place.written_ms < written_ms) {
                behind = self.places[behind as usize].next;
            }
            self.insert_before(behind, slot);
        }
    }

    /// Puts a block that is in no list before `behind` in the list by last write, or at its end.
    fn insert_before(&mut self, behind: Slot, slot: Slot) {
        let Some(place) = self.places.get_mut(behind as usize) else {
            return self.append(slot, Where::Listed);
        };
        let previous = std::mem::replace(&mut place.previous, slot);
        let place = &mut self.places[slot as usize];
        (place.previous, place.next, place.is) = (previous, behind, Where::Listed);
        match self.places.get_mut(previous as usize) {
            Some(place) => place.next = slot,
            None => self.listed.oldest = slot,
        }
    }
}
