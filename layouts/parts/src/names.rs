//! The index in DRAM of the names of a directory: where the record of each is, by the hash of the name.

use hashbrown::HashTable;
use uuid::Uuid;

/// The hash of a name.
pub fn hash(name: &[u8], seed: u64) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(name, seed)
}

/// The seed of the hashes of a new file system or volume with that name for machines.
pub fn seed_of(uuid: [u8; 16]) -> u64 {
    let (low, high) = Uuid::from_bytes(uuid).as_u64_pair();
    low.rotate_left(17) ^ high
}

/// A name with its hash. An operation hashes it once.
#[derive(Debug, Clone, Copy)]
pub struct Name<'n> {
    /// The name itself.
    pub bytes: &'n [u8],
    /// Its hash in the indexes of a file system.
    pub hash: u64,
}

impl<'n> Name<'n> {
    /// A name in a file system with this seed of its hashes.
    #[inline]
    pub fn new(bytes: &'n [u8], seed: u64) -> Name<'n> {
        Name { bytes, hash: hash(bytes, seed) }
    }
}

/// Hash of a name and place of its record.
#[derive(Clone, Copy)]
struct Slot {
    hash: u64,
    place: u64,
}

/// Where names are. Those of one hash are told apart by their records.
#[derive(Default)]
pub struct NameIndex {
    slots: HashTable<Slot>,
}

impl NameIndex {
    /// A name with this hash has its record at a place, where no other has.
    pub fn insert(&mut self, hash: u64, place: u64) {
        self.slots.insert_unique(hash, Slot { hash, place }, |slot| slot.hash);
    }

    /// The name with this hash and this place is gone.
    pub fn remove(&mut self, hash: u64, place: u64) {
        if let Ok(entry) = self.slots.find_entry(hash, |slot| slot.place == place) {
            entry.remove();
        }
    }

    /// The places of names with this hash.
    pub fn find(&self, hash: u64) -> impl Iterator<Item = u64> {
        self.slots.iter_hash(hash).filter(move |slot| slot.hash == hash).map(|slot| slot.place)
    }

    /// DRAM that it takes beside itself.
    pub fn heap_bytes(&self) -> usize {
        self.slots.allocation_size()
    }
}

#[cfg(test)]
mod tests {
    use super::{NameIndex, hash};

    #[test]
    fn names_of_one_hash_are_told_apart_by_their_places() {
        let mut index = NameIndex::default();
        let (one, other) = (hash(b"one", 1), hash(b"other", 1));
        index.insert(one, 8);
        index.insert(one, 16);
        index.insert(other, 24);
        index.remove(one, 24);
        let places = |index: &NameIndex, hash| {
            let mut places: Vec<u64> = index.find(hash).collect();
            places.sort_unstable();
            places
        };
        assert_eq!((places(&index, one), places(&index, other)), (vec![8, 16], vec![24]));
        index.remove(one, 8);
        assert_eq!((places(&index, one), places(&index, hash(b"one", 2))), (vec![16], Vec::new()));
        assert!(index.heap_bytes() > 0);
    }
}
