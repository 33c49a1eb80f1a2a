//! Versions of parts of files: a mover that copied blocks of a file sees by them whether anything changed meanwhile.
//!
//! There is a fixed number of counters, and each part of a file, of as many blocks as a node has words, has one. Several
//! parts may share one. A change of one part then refuses moves of another, which are tried again.

use std::ops::Range;

use nacre_engine::sync::atomic::{AtomicU64, Ordering};

use crate::format::NODE_WORDS;

/// Blocks of a part.
pub(crate) const PART: u64 = NODE_WORDS as u64;
/// Counters: 32 KiB of DRAM.
const COUNTERS: usize = 4096;

/// The counters.
pub(crate) struct Versions(Vec<AtomicU64>);

impl Default for Versions {
    fn default() -> Versions {
        Versions((0..COUNTERS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Versions {
    fn counter(&self, inode: u64, part: u64) -> &AtomicU64 {
        // A large odd number spreads both.
        let hash = (inode << 20 ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.0[(hash >> 52) as usize % COUNTERS]
    }

    /// The version of the part that a file block is in. Under the lock of the inode.
    pub(crate) fn get(&self, inode: u64, block: u64) -> u64 {
        self.counter(inode, block / PART).load(Ordering::Acquire)
    }

    /// These blocks change. Under the lock of the inode, exclusively.
    pub(crate) fn raise(&self, inode: u64, blocks: Range<u64>) {
        let parts = blocks.start / PART..blocks.end.div_ceil(PART);
        if parts.end.saturating_sub(parts.start) >= COUNTERS as u64 {
            self.0.iter().for_each(|counter| _ = counter.fetch_add(1, Ordering::Release));
            return;
        }
        parts.for_each(|part| _ = self.counter(inode, part).fetch_add(1, Ordering::Release));
    }
}

#[cfg(test)]
mod tests {
    use super::{PART, Versions};

    #[test]
    fn a_change_raises_the_versions_of_its_parts() {
        let versions = Versions::default();
        let all = |versions: &Versions| [0, 1, 2].map(|part| versions.get(7, part * PART));
        versions.raise(7, PART - 1..PART + 1);
        assert_eq!(all(&versions), [1, 1, 0]);
        versions.raise(7, 0..u64::MAX);
        assert_eq!(all(&versions), [2, 2, 1]);
        versions.raise(7, 5..5);
        assert_eq!(versions.get(7, 0), 3, "the part of a range without blocks is raised, too");
    }
}
