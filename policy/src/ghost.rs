//! The ghost buffer: the state of the blocks of a file that are not in DRAM, for the model.
//!
//! It acts as if every write went to DRAM, and holds the state of a block without its bytes (paper 000, section 3.2):
//! that is how `Ncf` of a block that bypasses DRAM is known. The sum over all files is held under 1 % of the pool by
//! the caller of [`FileHistory::put`], who passes the right to grow, see [`ghosts_for`]. A block that is forgotten is
//! lazy again, as one that was never seen.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::appends::Appends;
use crate::benefit::{Block, Model, Path, Verdict};

/// DRAM that one remembered block takes, in bytes: its number three times and its state, where it is the only one of
/// its file. One of many takes half of that; one that others have left, up to twice that until the next leaves.
pub const GHOST_BYTES: u64 = 256;

/// Blocks that may be remembered in all beside a pool of `pool_bytes`: less than 1 % of it.
pub const fn ghosts_for(pool_bytes: u64) -> u64 {
    pool_bytes / 100 / GHOST_BYTES
}

/// The verdicts of a synchronisation on the blocks of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Judged {
    /// Blocks that are lazy now.
    pub lazy: u64,
    /// Blocks that are eager now.
    pub eager: u64,
    /// Blocks with the same verdict as in the synchronisation before.
    pub accurate: u64,
    /// Blocks with another verdict than in the synchronisation before.
    pub inaccurate: u64,
}

impl Judged {
    /// Counts one verdict.
    pub fn count(&mut self, verdict: Verdict) {
        match verdict.path {
            Path::Lazy => self.lazy += 1,
            Path::Eager => self.eager += 1,
        }
        match verdict.as_before {
            Some(true) => self.accurate += 1,
            Some(false) => self.inaccurate += 1,
            None => {}
        }
    }
}

/// The history of one file: the time of its last synchronisation, and its blocks that are not in DRAM.
#[derive(Debug, Default)]
pub struct FileHistory {
    last_sync_ms: Option<u64>,
    ghosts: HashMap<u64, Block>,
    /// The remembered blocks, the oldest first. A block that was taken out meanwhile is passed over.
    order: VecDeque<u64>,
    /// Remembered blocks that were written since the last synchronisation.
    written: Vec<u64>,
    appends: Appends,
}

impl FileHistory {
    /// When the file was last synchronised.
    pub fn last_sync_ms(&self) -> Option<u64> {
        self.last_sync_ms
    }

    /// It was synchronised so lately that its blocks are worth remembering.
    pub fn is_synced_lately(&self, now_ms: u64, model: &Model) -> bool {
        self.last_sync_ms.is_some_and(|last| now_ms.saturating_sub(last) <= model.forget_ms)
    }

    /// Number of blocks remembered.
    pub fn len(&self) -> u64 {
        self.ghosts.len() as u64
    }

    /// True when no block is remembered.
    pub fn is_empty(&self) -> bool {
        self.ghosts.is_empty()
    }

    /// The path of an asynchronous write to a block that is not in DRAM.
    pub fn path_of_write(&mut self, block: u64, now_ms: u64, model: &Model) -> Path {
        match self.ghosts.get_mut(&block) {
            Some(ghost) => ghost.path_of_write(self.last_sync_ms, now_ms, model),
            None => Path::Lazy,
        }
    }

    /// The path of an append now, if appends follow earlier appends.
    pub fn path_of_append(&self, now_ms: u64, model: &Model) -> Path {
        let is_known = self.is_synced_lately(now_ms, model) && !self.appends.is_repetitive();
        self.appends.path().filter(|_| is_known).unwrap_or(Path::Lazy)
    }

    /// The appends since the last synchronisation.
    pub fn appends(&mut self) -> &mut Appends {
        &mut self.appends
    }

    /// The same as [`wrote`](FileHistory::wrote), where the block is remembered.
    pub fn wrote_known(&mut self, block: u64, lines: u64, model: &Model) {
        if self.ghosts.contains_key(&block) {
            self.wrote(block, lines, model, false);
        }
    }

    /// A write of these lines of a block went past DRAM. `may_grow` is the right to remember one block more; true when
    /// it was used.
    pub fn wrote(&mut self, block: u64, lines: u64, model: &Model, may_grow: bool) -> bool {
        if let Some(ghost) = self.ghosts.get_mut(&block) {
            if !ghost.was_written() {
                self.written.push(block);
            }
            ghost.wrote(lines, model);
            return false;
        }
        let mut state = Block::NEW;
        state.wrote(lines, model);
        self.put(block, state, may_grow)
    }

    /// Takes out the state of a block that enters DRAM.
    pub fn take(&mut self, block: u64) -> Option<Block> {
        let taken = self.ghosts.remove(&block)?;
        self.shrink();
        Some(taken)
    }

    /// Remembers a block that leaves DRAM, in the place of the oldest one when there is no right to grow. True when
    /// that right was used.
    pub fn put(&mut self, block: u64, state: Block, may_grow: bool) -> bool {
        if state == Block::NEW {
            return false;
        }
        if let Some(known) = self.ghosts.get_mut(&block) {
            *known = state;
            return false;
        }
        if !may_grow && !self.forget_oldest() {
            return false;
        }
        // Blocks that were taken out, or forgotten, are still in the lists.
        if self.order.len().max(self.written.len()) > self.ghosts.len() + self.ghosts.len() / 2 + 2 {
            self.tidy();
        }
        self.ghosts.insert(block, state);
        self.order.push_back(block);
        if state.was_written() {
            self.written.push(block);
        }
        may_grow
    }

    /// Leaves each remembered block in the lists once.
    fn tidy(&mut self) {
        let mut seen = HashSet::new();
        self.order.retain(|block| self.ghosts.contains_key(block) && seen.insert(*block));
        self.written.retain(|block| self.ghosts.contains_key(block));
        self.written.sort_unstable();
        self.written.dedup();
    }

    /// Shrinks the allocations once they are more than half empty, so that few blocks take little heap memory.
    fn shrink(&mut self) {
        let most = 2 * self.ghosts.len() + 2;
        if self.ghosts.capacity().max(self.order.capacity()).max(self.written.capacity()) > most {
            self.tidy();
            self.ghosts.shrink_to_fit();
            self.order.shrink_to_fit();
            self.written.shrink_to_fit();
        }
    }

    fn forget_oldest(&mut self) -> bool {
        while let Some(oldest) = self.order.pop_front() {
            if self.ghosts.remove(&oldest).is_some() {
                return true;
            }
        }
        false
    }

    /// The file was synchronised now. Counts the verdicts on the blocks that are not in DRAM.
    pub fn synced(&mut self, now_ms: u64, model: &Model, judged: &mut Judged) {
        self.last_sync_ms = Some(now_ms);
        for block in self.written.drain(..) {
            if let Some(verdict) = self.ghosts.get_mut(&block).and_then(|ghost| ghost.synced(model)) {
                judged.count(verdict);
            }
        }
    }

    /// Forgets the blocks from `block` on, which were cut off; gives their number.
    pub fn cut(&mut self, block: u64) -> u64 {
        let before = self.ghosts.len();
        self.ghosts.retain(|&ghost, _| ghost < block);
        self.shrink();
        (before - self.ghosts.len()) as u64
    }

    /// Forgets everything that a write at this time would not look at any more; gives the number of blocks forgotten.
    pub fn forget_old(&mut self, now_ms: u64, model: &Model) -> u64 {
        match self.last_sync_ms {
            Some(last) if now_ms.saturating_sub(last) <= model.forget_ms => 0,
            _ => self.clear(),
        }
    }

    /// Forgets all blocks; gives their number.
    pub fn clear(&mut self) -> u64 {
        let count = self.len();
        self.ghosts = HashMap::new();
        self.order = VecDeque::new();
        self.written = Vec::new();
        self.appends = Appends::default();
        count
    }
}

#[cfg(test)]
mod tests {
    use super::{FileHistory, Judged, ghosts_for};
    use crate::benefit::{Block, Model, Path};

    #[test]
    fn a_block_that_bypasses_is_judged_as_if_it_were_buffered() {
        let model = Model::default();
        let mut file = FileHistory::default();
        assert!(file.wrote(7, 0b11, &model, true), "the right to grow was used");
        assert!(!file.wrote(7, 0b11, &model, true));
        let mut judged = Judged::default();
        // 4 * 15 + 2 * 200 = 460 < 4 * 200.
        file.synced(10, &model, &mut judged);
        assert_eq!(judged, Judged { lazy: 1, ..Judged::default() });
        assert_eq!(file.path_of_write(7, 11, &model), Path::Lazy);
        file.wrote(7, 0b11, &model, false);
        file.synced(12, &model, &mut judged);
        assert_eq!(judged, Judged { lazy: 1, eager: 1, inaccurate: 1, ..Judged::default() });
        assert_eq!(file.path_of_write(7, 13, &model), Path::Eager);
        assert_eq!(file.path_of_write(8, 13, &model), Path::Lazy, "another block is as new");
        assert_eq!(file.path_of_write(7, 5013, &model), Path::Lazy, "5 s later it is forgotten");
    }

    #[test]
    fn without_room_the_oldest_is_forgotten() {
        let model = Model::default();
        let mut file = FileHistory::default();
        assert!(!file.wrote(1, 1, &model, false), "nothing to forget: not remembered");
        assert!(file.is_empty());
        file.wrote(1, 1, &model, true);
        file.wrote(2, 1, &model, false);
        assert_eq!((file.len(), file.take(1), file.take(2).is_some()), (1, None, true));
        assert!(file.is_empty());
    }

    #[test]
    fn lists_are_bounded_by_what_is_remembered() {
        let model = Model::default();
        let mut file = FileHistory::default();
        for block in 0..4 {
            file.wrote(block, 1, &model, true);
        }
        for block in 4..10_000 {
            assert!(!file.wrote(block, 1, &model, false), "no right to grow");
            assert!(file.order.len().max(file.written.len()) <= 4 + 2 + 3, "{}", file.written.len());
        }
        let mut judged = Judged::default();
        file.synced(0, &model, &mut judged);
        assert_eq!((file.len(), judged.lazy + judged.eager), (4, 4), "each of those that are left, once");
    }

    #[test]
    fn what_was_cut_off_or_is_old_is_forgotten() {
        let model = Model::default();
        let mut file = FileHistory::default();
        for block in 0..4 {
            file.wrote(block, 1, &model, true);
        }
        assert_eq!(file.cut(2), 2);
        file.synced(0, &model, &mut Judged::default());
        assert_eq!(file.forget_old(5000, &model), 0);
        assert_eq!(file.forget_old(5001, &model), 2);
        assert!(!file.put(0, Block::NEW, true), "of a new block there is nothing to remember");
    }

    #[test]
    fn ghosts_take_less_than_a_hundredth_of_the_pool() {
        let pool = 1 << 30;
        assert!(ghosts_for(pool) * super::GHOST_BYTES <= pool / 100);
        let model = Model::default();
        for count in [1, 2, 3, 4, 5, 7, 8, 14, 15, 28, 29, 100, 448, 449, 1000, 1793] {
            let mut file = FileHistory::default();
            for block in 0..count {
                file.wrote(block, 1, &model, true);
            }
            // Others take their places, and some come back.
            for block in 0..10 * count {
                file.wrote(block * 7 % (3 * count), 1, &model, false);
                let bytes = heap_bytes(&file);
                assert!(bytes <= super::GHOST_BYTES * count, "{count} ghosts: {bytes} bytes");
            }
            assert_eq!(file.len(), count);
            // Others enter DRAM, but for one.
            let mut left: Vec<u64> = file.ghosts.keys().copied().collect();
            while left.len() > 1 {
                file.take(left.pop().unwrap()).unwrap();
                let bytes = heap_bytes(&file);
                assert!(bytes <= 2 * super::GHOST_BYTES * file.len(), "{} of {count}: {bytes}", file.len());
            }
        }
    }

    /// What a history has allocated. A map of the standard library has a power of two of places, of which seven eighths may
    /// be taken (three of four at the least), a byte beside each, and 16 bytes at its end.
    fn heap_bytes(file: &FileHistory) -> u64 {
        let places = (file.ghosts.capacity() * 8 / 7).next_power_of_two();
        let map = places * (size_of::<(u64, Block)>() + 1) + 16;
        (map + (file.order.capacity() + file.written.capacity()) * size_of::<u64>()) as u64
    }
}
