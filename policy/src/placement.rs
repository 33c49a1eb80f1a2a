//! Where the writes of a file go, and whether its reads are worth DRAM: TPFS's three predictors and decision trees
//! (paper 002, section 4 and figure 3).
//!
//! | predictor | knows | says |
//! | --- | --- | --- |
//! | synchronicity | blocks written to the file between two syncs | synchronous, when they were fewer than [`Rules::sync_blocks`] |
//! | write size | a counter in each write entry: rewrites in a row that covered at least half of what they replaced | large and stable, when it is above [`Rules::large_writes`] |
//! | read frequency | blocks read from the file since it was last written | read-dominated, when they are more than [`Rules::read_factor`] times the file's size |
//!
//! A synchronous or a small write belongs on PM, a large and asynchronous one on disk, through DRAM. The predictors
//! choose the device, and the buffer benefit model chooses whether DRAM stands before PM. The table of both is in
//! `docs/guide/tiering.md`.

/// The constants of the predictors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// A file that is synchronised before so many blocks were written is synchronous.
    pub sync_blocks: u64,
    /// A write entry whose counter is above this is large and stable.
    pub large_writes: u16,
    /// A write of fewer blocks is never large.
    pub large_blocks: u64,
    /// A file is read-dominated when more than so many times its size was read since it was written.
    pub read_factor: u64,
}

impl Default for Rules {
    /// The paper's: 1024 blocks, 4 writes, twice the size. It names no least size of a large write.
    fn default() -> Rules {
        Rules { sync_blocks: 1024, large_writes: 4, large_blocks: 1, read_factor: 2 }
    }
}

/// The accesses to one file so far, as the predictors see them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileAccess {
    /// The finding of the last interval between two syncs; `None` before the first.
    synchronous: Option<bool>,
    /// Blocks written since the last sync.
    written: u64,
    /// True once enough blocks were written since the last sync to decide this interval.
    decided: bool,
    /// Blocks read since the last write.
    read: u64,
}

impl FileAccess {
    /// Blocks were written. Once they are too many to be followed by a sync soon, whether that was expected; `None`
    /// when there is nothing to tell, or nothing was expected.
    pub fn wrote(&mut self, blocks: u64, rules: &Rules) -> Option<bool> {
        self.read = 0;
        self.written = self.written.saturating_add(blocks);
        if self.decided || self.written < rules.sync_blocks {
            return None;
        }
        self.decided = true;
        self.found(false)
    }

    /// The file was synchronised: whether that was expected so soon, where something was. A sync with nothing written
    /// before it says nothing.
    pub fn synced(&mut self) -> Option<bool> {
        let (written, decided) = (self.written, self.decided);
        self.written = 0;
        self.decided = false;
        if written == 0 || decided { None } else { self.found(true) }
    }

    fn found(&mut self, synchronous: bool) -> Option<bool> {
        self.synchronous.replace(synchronous).map(|expected| expected == synchronous)
    }

    /// The synchronicity predictor's answer. A file that has shown nothing yet is asynchronous.
    pub fn is_synchronous(&self) -> bool {
        self.synchronous == Some(true)
    }

    /// Blocks were read.
    pub fn read(&mut self, blocks: u64) {
        self.read = self.read.saturating_add(blocks);
    }

    /// The read frequency predictor's answer, for a file of so many blocks.
    pub fn is_read_dominated(&self, size_blocks: u64, rules: &Rules) -> bool {
        size_blocks > 0 && self.read > size_blocks.saturating_mul(rules.read_factor)
    }
}

/// A write entry that a write replaces in part or whole, or that it goes on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OldEntry {
    /// Blocks of it that were still valid.
    pub blocks: u64,
    /// Blocks that the write covers. None of an entry that ends where the write begins.
    pub covered: u64,
    /// Its counter.
    pub counter: u16,
}

/// The counter of a write entry of `blocks` blocks: one more than what it replaces had, when it covers at least half of
/// that, else 0.
///
/// Of several entries, those count of which it covers half; when they are not the greater part of the write it starts
/// again, else at the least of their counters. The paper does not speak of writes at the end of a file, which replace
/// nothing, though it steers them, too (section 6.4): such a write goes on from the entry before it, and is compared
/// with the length of that.
pub fn write_counter(blocks: u64, old: &[OldEntry]) -> u16 {
    let covered: u64 = old.iter().map(|entry| entry.covered).sum();
    if covered == 0 {
        let before = old.iter().find(|entry| entry.covered == 0 && blocks >= entry.blocks.div_ceil(2));
        return before.map_or(0, |entry| entry.counter.saturating_add(1));
    }
    let halved = old.iter().filter(|entry| entry.covered > 0 && entry.covered >= entry.blocks.div_ceil(2));
    let (stable, least) = halved
        .fold((0, u16::MAX), |(stable, least), entry| (stable + entry.covered, least.min(entry.counter)));
    if stable == 0 || stable * 2 < covered { 0 } else { least.saturating_add(1) }
}

/// The write size predictor's answer for a write of so many blocks that got this counter.
pub fn is_large(blocks: u64, counter: u16, rules: &Rules) -> bool {
    counter > rules.large_writes && blocks >= rules.large_blocks
}

#[cfg(test)]
mod tests {
    use super::{FileAccess, OldEntry, Rules, is_large, write_counter};

    #[test]
    fn few_blocks_before_a_sync_are_synchronous() {
        let rules = Rules::default();
        let mut file = FileAccess::default();
        assert!(!file.is_synchronous(), "nothing is known of it");
        assert_eq!(file.wrote(24, &rules), None);
        assert_eq!(file.synced(), None, "nothing was expected");
        assert!(file.is_synchronous());
        assert_eq!(file.wrote(1023, &rules), None);
        assert_eq!(file.synced(), Some(true));
        assert_eq!(file.wrote(1023, &rules), None);
        assert_eq!(file.wrote(1, &rules), Some(false), "known before the sync comes");
        assert!(!file.is_synchronous());
        assert_eq!(file.wrote(5000, &rules), None, "told once");
        assert_eq!(file.synced(), None);
        assert_eq!(file.wrote(2000, &rules), Some(true), "as expected");
        assert_eq!(file.synced(), None);
        file.wrote(1, &rules);
        assert_eq!(file.synced(), Some(false));
    }

    #[test]
    fn a_sync_after_no_write_says_nothing() {
        let rules = Rules::default();
        let mut file = FileAccess::default();
        assert_eq!((file.synced(), file.is_synchronous()), (None, false));
        file.wrote(5000, &rules);
        file.synced();
        assert_eq!((file.synced(), file.is_synchronous()), (None, false));
    }

    #[test]
    fn a_file_read_more_than_twice_since_its_last_write_is_read_dominated() {
        let rules = Rules::default();
        let mut file = FileAccess::default();
        file.read(20);
        assert!(!file.is_read_dominated(10, &rules), "twice is not more than twice");
        file.read(1);
        assert!(file.is_read_dominated(10, &rules) && !file.is_read_dominated(0, &rules));
        file.wrote(1, &rules);
        assert!(!file.is_read_dominated(10, &rules));
        file.read(u64::MAX);
        file.read(u64::MAX);
        assert!(file.is_read_dominated(10, &rules) && !file.is_read_dominated(u64::MAX, &rules));
    }

    fn old(blocks: u64, covered: u64, counter: u16) -> OldEntry {
        OldEntry { blocks, covered, counter }
    }

    #[test]
    fn half_of_an_entry_carries_its_counter_on() {
        assert_eq!(write_counter(8, &[]), 0, "into a hole");
        assert_eq!(write_counter(8, &[old(8, 8, 3)]), 4);
        assert_eq!(write_counter(4, &[old(8, 4, 3)]), 4);
        assert_eq!(write_counter(3, &[old(8, 3, 3)]), 0);
        assert_eq!(write_counter(3, &[old(7, 3, 3)]), 0, "half of 7 is more than 3");
        assert_eq!(write_counter(1, &[old(1, 1, u16::MAX)]), u16::MAX);
    }

    #[test]
    fn of_several_entries_the_greater_part_decides() {
        assert_eq!(write_counter(16, &[old(8, 8, 3), old(8, 8, 5)]), 4, "the least counter");
        // Ends of two large entries, and one whole small one.
        assert_eq!(write_counter(10, &[old(100, 4, 9), old(2, 2, 9), old(100, 4, 9)]), 0);
        assert_eq!(write_counter(10, &[old(100, 4, 9), old(6, 6, 1)]), 2);
    }

    #[test]
    fn writes_at_the_end_go_on_from_what_is_before_them() {
        let mut counter = 0;
        for _ in 0..6 {
            counter = write_counter(256, &[old(256, 0, counter)]);
        }
        assert!(counter == 6 && is_large(256, counter, &Rules::default()));
        assert_eq!(write_counter(1, &[old(256, 0, counter)]), 0, "a small one is none of them");
        assert_eq!(write_counter(4, &[old(4, 4, 1), old(8, 0, 7)]), 2, "what is replaced decides");
    }

    #[test]
    fn large_is_above_the_threshold() {
        let rules = Rules::default();
        assert!(!is_large(1, 4, &rules) && is_large(1, 5, &rules));
        assert!(!is_large(15, 5, &Rules { large_blocks: 16, ..rules }));
    }
}
