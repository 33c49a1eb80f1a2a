//! The findings of a walk over everything: the blocks in use, and contradictions to the format.

use std::fmt::Display;
use std::time::Instant;

use nacre_engine::{Block, Error, Kind, Result, size};

use crate::alloc::{Allocator, Run};
use crate::report::RecoveryReport;
use crate::tree::Bounds;

/// Damage that a report describes one by one.
const MAX_DAMAGE: usize = 100;

/// The findings of a walk.
pub struct Marks {
    bounds: Bounds,
    /// A bit for each block of the device.
    used: Vec<u64>,
    damage: Vec<String>,
    damage_count: u64,
}

impl Marks {
    /// Nothing is found yet.
    pub fn new(bounds: Bounds) -> Marks {
        let used = vec![0; bounds.end.div_ceil(64) as usize];
        Marks { bounds, used, damage: Vec::new(), damage_count: 0 }
    }

    /// Takes a block into use; false when it is already.
    pub fn take(&mut self, block: u64) -> bool {
        let (word, bit) = (&mut self.used[(block / 64) as usize], 1 << (block % 64));
        let is_free = *word & bit == 0;
        *word |= bit;
        is_free
    }

    /// The same for a block that may be outside the bounds; false for one that is.
    pub fn take_within(&mut self, block: u64) -> bool {
        (self.bounds.first..self.bounds.end).contains(&block) && self.take(block)
    }

    /// Takes the blocks of an inode's extended attributes into use, if they can be read.
    pub fn take_xattrs(&mut self, number: u64, blocks: Result<Vec<u64>>) -> Result<()> {
        for block in blocks.map_err(|error| error.object(format!("inode {number}: attributes")))? {
            if !self.take(block) {
                self.note(format!("inode {number}: attributes in block {block}, which is in use"));
            }
        }
        Ok(())
    }

    /// Gives everything that is not in use to the allocator.
    pub fn free_the_rest(&self, alloc: &Allocator) {
        let Bounds { first, end } = self.bounds;
        let mut start = None;
        for block in first..=end {
            let is_free = block < end && self.used[(block / 64) as usize] >> (block % 64) & 1 == 0;
            match (is_free, start) {
                (true, None) => start = Some(block),
                (false, Some(from)) => {
                    alloc.free(Run { start: Block(from), len: block - from });
                    start = None;
                }
                _ => {}
            }
        }
    }

    /// Something contradicts the format.
    pub fn note(&mut self, what: impl Display) {
        self.damage_count += 1;
        if self.damage.len() < MAX_DAMAGE {
            self.damage.push(what.to_string());
        }
    }

    /// How many contradictions there are.
    pub fn damage_count(&self) -> u64 {
        self.damage_count
    }

    /// The report of the walk, which found so many inodes, and of the recovery before it.
    pub fn report(&self, started: Instant, directories: u64, files: u64, rolled_back: u64) -> RecoveryReport {
        RecoveryReport {
            walked: true,
            directories,
            files,
            torn: 0,
            rolled_back,
            relinked: 0,
            damage: self.damage.clone(),
            damage_count: self.damage_count,
            duration: started.elapsed(),
        }
    }
}

/// Why a damaged file system is not mounted.
pub fn refuse(report: &RecoveryReport) -> Error {
    let first = report.damage.first().map_or("", String::as_str);
    Error::new(Kind::Corrupt)
        .object(format!("{first} ({})", size::count(report.damage_count, "finding", "findings")))
        .advice("run fsck, or mount it read-only")
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::{MAX_DAMAGE, Marks, refuse};
    use crate::alloc::Allocator;
    use crate::tree::Bounds;

    #[test]
    fn what_was_not_taken_is_free() {
        let mut marks = Marks::new(Bounds { first: 60, end: 200 });
        assert!(marks.take(60) && marks.take(64) && marks.take(199) && !marks.take(64));
        let alloc = Allocator::new(200, 1, 0);
        marks.free_the_rest(&alloc);
        assert_eq!(alloc.free_blocks(), 137);
        assert!(!alloc.contradicts_itself());
    }

    #[test]
    fn one_finding_is_not_several() {
        let mut marks = Marks::new(Bounds { first: 1, end: 2 });
        for (finding, count) in [("a", "a (1 finding)"), ("b", "a (2 findings)")] {
            marks.note(finding);
            let error = refuse(&marks.report(Instant::now(), 0, 0, 0));
            assert_eq!(error.object_name(), count);
        }
    }

    #[test]
    fn damage_is_counted_beyond_what_is_described() {
        let mut marks = Marks::new(Bounds { first: 1, end: 2 });
        (0..MAX_DAMAGE + 5).for_each(|number| marks.note(number));
        let report = marks.report(Instant::now(), 1, 2, 3);
        assert_eq!((report.damage.len(), report.damage_count), (MAX_DAMAGE, marks.damage_count()));
        assert_eq!(marks.damage_count(), 105);
        assert_eq!((report.directories, report.files, report.rolled_back), (1, 2, 3));
    }
}
