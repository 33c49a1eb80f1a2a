//! The eviction order of the page cache: S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi; SOSP 2023).
//!
//! A block begins as a *young* one; these have a quarter of the cache. When there are more, the first of them is
//! evicted, unless it was read [`OFTEN`] times since it came: then it becomes an *old* one. When the young blocks
//! have no more than their part, the first old one is evicted. Each read of it, up to three, saves it from one turn.
//! The number of an evicted young block is remembered for a while: if the block comes again, it is old at once.
//!
//! TPFS evicts the least recently used block (its section 4). Here, data that is read once, as in a scan of a large
//! file, takes no more than a part. Among many blocks that are read alike, the present ones stay, instead of all of
//! them coming and going.

use std::collections::{HashSet, VecDeque};
use std::hash::BuildHasherDefault;

use nacre_engine::InodeHasher;

/// Reads after which a young block becomes an old one.
pub(crate) const OFTEN: u32 = 2;
/// Part of the cache that the young blocks have. The authors have a tenth. Blocks of read-ahead are young until they
/// are read, and a quarter of a small cache still holds those of several readers.
const YOUNG: u64 = 4;

/// A block of a tier: the tier in the upper 8 bits.
pub(crate) type Key = u64;

/// The queues of one shard. Blocks that were dropped leave their keys behind, which are passed over when it is their
/// turn.
#[derive(Default)]
pub(crate) struct Queues {
    young: VecDeque<Key>,
    old: VecDeque<Key>,
    /// Young blocks that are there.
    young_blocks: u64,
    /// Those that went young.
    gone: VecDeque<Key>,
    is_gone: HashSet<Key, BuildHasherDefault<InodeHasher>>,
}

/// The block to evict next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Young(Key),
    Old(Key),
}

impl Queues {
    /// A block comes that was not there. True when it is an old one.
    pub(crate) fn comes(&mut self, key: Key) -> bool {
        let is_old = self.is_gone.remove(&key);
        if is_old {
            self.old.push_back(key);
        } else {
            self.young.push_back(key);
            self.young_blocks += 1;
        }
        is_old
    }

    /// The next one, of so many blocks, to which there is room for `most`; it may be gone, or in the other queue by
    /// now.
    pub(crate) fn next(&mut self, blocks: u64, most: u64) -> Option<Turn> {
        let is_young = self.young_blocks > most / YOUNG || self.young_blocks == blocks;
        let young = |queues: &mut Queues| queues.young.pop_front().map(Turn::Young);
        let old = |queues: &mut Queues| queues.old.pop_front().map(Turn::Old);
        if is_young { young(self).or_else(|| old(self)) } else { old(self).or_else(|| young(self)) }
    }

    /// A young block was read often.
    pub(crate) fn becomes_old(&mut self, key: Key) {
        self.young_blocks -= 1;
        self.old.push_back(key);
    }

    /// An old block was read since it was last its turn.
    pub(crate) fn stays(&mut self, key: Key) {
        self.old.push_back(key);
    }

    /// A young block went because it was its turn; as many are remembered as there is room for blocks.
    pub(crate) fn went_young(&mut self, key: Key, most: u64) {
        self.young_blocks -= 1;
        if self.is_gone.insert(key) {
            self.gone.push_back(key);
        }
        while self.gone.len() as u64 > most
            && let Some(first) = self.gone.pop_front()
        {
            self.is_gone.remove(&first);
        }
    }

    /// A block was dropped.
    pub(crate) fn dropped(&mut self, was_old: bool) {
        self.young_blocks -= u64::from(!was_old);
    }

    /// Keys in them.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Keys that blocks have left behind are forgotten where they are more than blocks may be. `is_there` says of a
    /// key whether its block is there, and an old one.
    pub(crate) fn tidy(&mut self, most: u64, is_there: impl Fn(Key) -> Option<bool>) {
        if (self.young.len() + self.old.len()) as u64 <= 2 * most + 16 {
            return;
        }
        for (queue, is_old) in [(&mut self.young, false), (&mut self.old, true)] {
            let mut seen = HashSet::new();
            queue.retain(|key| is_there(*key) == Some(is_old) && seen.insert(*key));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{Key, OFTEN, Queues, Turn};

    /// A cache of so many blocks, as a shard uses the queues.
    struct Cache {
        queues: Queues,
        most: u64,
        /// Reads, and whether it is an old one.
        there: HashMap<Key, (u32, bool)>,
    }

    impl Cache {
        /// How many of these blocks were there.
        fn read_all(&mut self, keys: std::ops::Range<Key>) -> usize {
            keys.filter(|key| self.read(*key)).count()
        }

        fn new(most: u64) -> Cache {
            Cache { queues: Queues::default(), most, there: HashMap::new() }
        }

        /// Reads a block; true when it was there.
        fn read(&mut self, key: Key) -> bool {
            if let Some((reads, _)) = self.there.get_mut(&key) {
                *reads = (*reads + 1).min(3);
                return true;
            }
            while self.there.len() as u64 >= self.most {
                let turn =
                    self.queues.next(self.there.len() as u64, self.most - 1).expect("blocks are there");
                self.take_turn(turn);
            }
            let is_old = self.queues.comes(key);
            self.there.insert(key, (0, is_old));
            let there = &self.there;
            self.queues.tidy(self.most, |key| there.get(&key).map(|(_, is_old)| *is_old));
            false
        }

        fn take_turn(&mut self, turn: Turn) {
            let (Turn::Young(key) | Turn::Old(key)) = turn;
            let Some((reads, is_old)) = self.there.get_mut(&key) else { return };
            match turn {
                _ if *is_old != matches!(turn, Turn::Old(_)) => return,
                Turn::Young(_) if *reads >= OFTEN => {
                    (*reads, *is_old) = (0, true);
                    return self.queues.becomes_old(key);
                }
                Turn::Old(_) if *reads > 0 => {
                    *reads -= 1;
                    return self.queues.stays(key);
                }
                Turn::Young(_) => self.queues.went_young(key, self.most),
                Turn::Old(_) => {}
            }
            self.there.remove(&key);
        }
    }

    #[test]
    fn what_is_read_once_takes_a_part_only() {
        let mut cache = Cache::new(100);
        for _ in 0..4 {
            cache.read_all(0..60);
        }
        // Some of the young ones are still to become old.
        cache.read_all(1000..1100);
        for round in 0..50 {
            cache.read_all(2000 + round * 40..2040 + round * 40);
            assert_eq!(cache.read_all(0..60), 60, "round {round}");
        }
    }

    #[test]
    fn of_many_that_are_read_in_turn_some_stay() {
        let mut cache = Cache::new(100);
        let mut hits = 0;
        for round in 0..40 {
            let there = cache.read_all(0..150);
            hits += if round < 20 { 0 } else { there };
        }
        // The one that was not used for longest would be the next one that is asked for, each time.
        assert!(hits > 20 * 150 / 4, "{hits}");
    }

    #[test]
    fn what_comes_again_soon_is_old() {
        let mut queues = Queues::default();
        assert!(!queues.comes(7) && !queues.comes(8));
        assert_eq!(queues.next(2, 1), Some(Turn::Young(7)));
        queues.went_young(7, 4);
        assert!(queues.comes(7), "it is remembered");
        assert_eq!(queues.next(2, 8), Some(Turn::Old(7)), "the young one has its part");
        queues.stays(7);
        queues.dropped(false);
        // Its key is still there.
        assert_eq!(queues.next(1, 0), Some(Turn::Old(7)));
        assert_eq!(queues.next(1, 0), Some(Turn::Young(8)));
        assert_eq!(queues.next(1, 0), None);
        for key in 100..200 {
            queues.comes(key);
            queues.went_young(key, 4);
        }
        assert!(queues.comes(196) && !queues.comes(195), "as many are remembered as there is room for");
    }

    #[test]
    fn keys_of_what_is_gone_do_not_stay() {
        let mut cache = Cache::new(10);
        for turn in 0..1000 {
            cache.read(turn % 5);
            let (_, is_old) = cache.there.remove(&(turn % 5)).expect("it was read");
            cache.queues.dropped(is_old);
            assert!(cache.queues.len() <= 37);
        }
    }
}
