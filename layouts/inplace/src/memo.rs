//! The name cache: facts in DRAM about the names of a directory that has no index.
//!
//! PMFS looks through such a directory, but below a kernel's cache of names, which knows both where names are that were
//! used and that others are not there. It does so here, in bounded space: two slots of 8 bytes for each name that is
//! there, and some absent names. Absent names are kept whole, because nothing less proves that one is absent.

use hashbrown::HashTable;
use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicU64, Ordering};
use smallvec::SmallVec;

/// Where the records of some names are. Names share sets of slots; where a set is full, another one goes.
#[derive(Default)]
pub(crate) struct Memo {
    /// A part of the hash above the record's place in units of 8 bytes, plus 1; or 0. Another part of the hash says
    /// which set.
    slots: Vec<AtomicU64>,
}

impl Memo {
    /// Slots of a set: half a line of the CPU's cache.
    const WAYS: usize = 4;
    const MIN_SLOTS: usize = 16;
    const MAX_SLOTS: usize = 1 << 20;

    /// The place of a name with this hash, perhaps.
    pub(crate) fn get(&self, hash: u64) -> Option<u64> {
        let slots = self.set(hash).iter().map(|slot| slot.load(Ordering::Relaxed));
        let mut those = slots.filter(|&slot| slot != 0 && slot >> 32 == hash >> 32);
        those.next().map(|slot| ((slot & u64::from(u32::MAX)) - 1) * 8)
    }

    pub(crate) fn put(&self, hash: u64, offset: u64) {
        let Some(value) = Self::value(hash, offset) else { return };
        let set = self.set(hash);
        let is_free = |slot: &&AtomicU64| {
            let slot = slot.load(Ordering::Relaxed);
            slot == 0 || slot >> 32 == hash >> 32
        };
        // The lowest bits of a hash say which one goes: no other use is made of them here.
        let taken = set.iter().find(is_free).or_else(|| set.get(hash as usize % Self::WAYS));
        if let Some(slot) = taken {
            slot.store(value, Ordering::Relaxed);
        }
    }

    /// A name is not there any more. Alone.
    pub(crate) fn forget(&mut self, hash: u64, offset: u64) {
        let Some(value) = Self::value(hash, offset) else { return };
        for slot in self.set(hash) {
            if slot.load(Ordering::Relaxed) == value {
                slot.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Takes more space for a directory of so many names, as far as it may. Alone.
    pub(crate) fn grow(&mut self, entries: u64) {
        let wanted =
            (entries as usize).saturating_mul(2).clamp(Self::MIN_SLOTS, Self::MAX_SLOTS).next_power_of_two();
        if wanted <= self.slots.len() {
            return;
        }
        let old = std::mem::take(&mut self.slots);
        self.slots.resize_with(wanted, AtomicU64::default);
        for slot in old.iter().map(|slot| slot.load(Ordering::Relaxed)).filter(|&slot| slot != 0) {
            let free = self.set(slot).iter().find(|free| free.load(Ordering::Relaxed) == 0);
            if let Some(free) = free {
                free.store(slot, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<AtomicU64>()
    }

    /// The set that names with this hash share: by the part of it that slots hold, so that they can be moved to
    /// another.
    fn set(&self, hash: u64) -> &[AtomicU64] {
        let sets = self.slots.len() / Self::WAYS;
        let first = (hash >> 32) as usize % sets.max(1) * Self::WAYS;
        self.slots.get(first..first + Self::WAYS).unwrap_or(&[])
    }

    /// `None` for a place that does not fit: of a directory of over 32 GiB.
    fn value(hash: u64, offset: u64) -> Option<u64> {
        let place = u32::try_from(offset / 8 + 1).ok()?;
        Some(hash >> 32 << 32 | u64::from(place))
    }
}

/// Names that are not there: they were taken away, or looked for in vain. Most operations that add a name look for it
/// first, and those below look again.
#[derive(Default)]
pub(crate) struct Absent {
    names: Mutex<HashTable<(u64, SmallVec<[u8; 32]>)>>,
    /// As many names as this, and one that all directories remember.
    limit: usize,
}

impl Absent {
    const MAX: usize = 1 << 16;

    pub(crate) fn has(&self, hash: u64, name: &[u8]) -> bool {
        self.names.lock().find(hash, |(of, absent)| *of == hash && absent.as_slice() == name).is_some()
    }

    pub(crate) fn put(&self, hash: u64, name: &[u8]) {
        let mut names = self.names.lock();
        if names.find(hash, |(of, absent)| *of == hash && absent.as_slice() == name).is_some() {
            return;
        }
        // All at once: those that are asked for again come back one after the other.
        if names.len() > self.limit {
            names.clear();
        }
        names.insert_unique(hash, (hash, SmallVec::from_slice(name)), |(hash, _)| *hash);
    }

    /// A name with this hash is there now.
    pub(crate) fn forget(&mut self, hash: u64) {
        let names = self.names.get_mut();
        while let Ok(entry) = names.find_entry(hash, |(of, _)| *of == hash) {
            entry.remove();
        }
    }

    /// Remembers as many as half of the names that are there, as far as it may.
    pub(crate) fn grow(&mut self, entries: u64) {
        self.limit = self.limit.max((entries as usize / 2).min(Self::MAX));
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let names = self.names.lock();
        let long = names.iter().filter(|(_, name)| name.spilled()).map(|(_, name)| name.capacity());
        names.allocation_size() + long.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::{Absent, Memo};

    #[test]
    fn some_names_are_remembered_until_they_go_or_another_takes_their_place() {
        let mut memo = Memo::default();
        memo.put(1 << 32, 0);
        assert_eq!((memo.get(1 << 32), memo.get(0)), (None, None), "it has no space yet");
        memo.grow(0);
        // The four sets that there are share sixteen names.
        let hash = |number: u64| number << 32 | 7;
        for number in 0..16 {
            memo.put(hash(number), number * 24);
        }
        assert!((0..16).all(|number| memo.get(hash(number)) == Some(number * 24)));
        memo.grow(1000);
        assert!((0..16).all(|number| memo.get(hash(number)) == Some(number * 24)), "after it grew");
        // 2048 slots are 512 sets: one has four of these, and not a fifth.
        for number in 1..5 {
            memo.put(hash(3 + 512 * number), 8 * number);
        }
        let there = (0..5).filter(|number| memo.get(hash(3 + 512 * number)).is_some());
        assert_eq!(there.count(), 4);
        assert_eq!(memo.get(hash(3 + 512 * 4)), Some(32), "the last one stays");
        memo.put(hash(5), 40);
        memo.forget(hash(5), 48);
        memo.forget(hash(5 + 512), 40);
        assert_eq!(memo.get(hash(5)), Some(40), "another name went, and the same name elsewhere");
        memo.put(hash(5), 1 << 35);
        assert_eq!(memo.get(hash(5)), Some(40), "a place that does not fit");
        memo.put(hash(5), (1 << 35) - 16);
        assert_eq!(memo.get(hash(5)), Some((1 << 35) - 16), "the same name has one slot");
        memo.forget(hash(5), (1 << 35) - 16);
        assert_eq!(memo.get(hash(5)), None);
        memo.grow(u64::from(u32::MAX));
        assert_eq!(memo.slots.len(), Memo::MAX_SLOTS);
    }

    #[test]
    fn names_that_are_not_there_are_remembered_whole_until_they_are_or_are_too_many() {
        let mut absent = Absent::default();
        absent.put(1, b"first");
        assert!(absent.has(1, b"first") && !absent.has(1, b"firs") && !absent.has(2, b"first"));
        absent.put(2, b"second");
        assert!(absent.has(2, b"second") && !absent.has(1, b"first"), "an empty directory remembers one");
        absent.grow(20);
        for number in 2..12 {
            absent.put(number, b"second");
        }
        assert!((2..12).all(|number| absent.has(number, b"second")));
        absent.put(2, b"third, of the same hash");
        assert!(absent.has(2, b"second") && absent.has(2, b"third, of the same hash"));
        absent.forget(2);
        assert!(!absent.has(2, b"second") && !absent.has(2, b"third, of the same hash"));
        assert!((3..12).all(|number| absent.has(number, b"second")));
        absent.grow(0);
        absent.put(13, b"");
        absent.put(14, b"");
        assert!(absent.has(3, b"second"), "the limit does not shrink");
        absent.put(15, b"");
        assert!(absent.has(15, b"") && !absent.has(3, b"second"), "too many");
        absent.grow(u64::MAX);
        assert_eq!(absent.limit, Absent::MAX);
    }
}
