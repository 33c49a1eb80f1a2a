//! Reports of a recovery, of a check, and of a search for media errors, and the levels of repair.

use std::ops::Range;
use std::time::Duration;

use nacre_engine::{BLOCK_SIZE, Tier, size};

use crate::superblock::{Found, Summary};

/// How much a repair may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Repair {
    /// Nothing.
    None,
    /// Repair without loss of data that is still there, or change nothing.
    Safe,
    /// Repair everything, and give up objects that cannot be saved.
    All,
}

/// The report of a recovery.
#[derive(Debug, Clone, Default)]
pub struct RecoveryReport {
    /// Everything was read; false after a clean unmount, when a checkpoint was enough.
    pub walked: bool,
    /// Directories and other inodes found.
    pub directories: u64,
    /// See `directories`.
    pub files: u64,
    /// Operations that were on their way at the crash and were erased.
    pub torn: u64,
    /// Operations that had begun to change data in place, and were undone.
    pub rolled_back: u64,
    /// Inodes with a corrected link count.
    pub relinked: u64,
    /// Descriptions of contradictions to the format (the first hundred).
    pub damage: Vec<String>,
    /// All that was found, described or not.
    pub damage_count: u64,
    /// How long it took.
    pub duration: Duration,
}

/// One thing that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The object, and its error, in words.
    pub what: String,
    /// The repair of it; empty when nothing can be proved.
    pub repair: &'static str,
    /// The repair gives up data that cannot be saved.
    pub loses: bool,
    /// It was repaired.
    pub repaired: bool,
}

impl Problem {
    /// One whose repair gave up data that could not be saved.
    pub fn loss(what: String, repair: &'static str) -> Problem {
        Problem { what, repair, loses: true, repaired: true }
    }
}

/// The result of a check.
#[derive(Debug, Clone)]
pub struct CheckReport {
    /// The contents of the superblock.
    pub summary: Summary,
    /// Its tiers, in a layout that has some. Their devices are not looked at.
    pub tiers: Vec<Tier>,
    /// The errors found. An operation that a crash interrupted is none: the next mount completes, erases or undoes it.
    pub problems: Vec<Problem>,
    /// A copy of the superblock was being written at the crash.
    pub interrupted_superblock: bool,
    /// The report of the walk over everything.
    pub walk: RecoveryReport,
    /// Blocks in the list of bad blocks.
    pub bad_blocks: u64,
    /// Blocks in use, bad ones included, and free.
    pub used_blocks: u64,
    /// See `used_blocks`.
    pub free_blocks: u64,
}

impl CheckReport {
    /// The report of a check that has read the superblock: its problems are in it.
    pub fn begin(found: &Found) -> CheckReport {
        let Found { superblock, valid, interrupted } = found;
        let mut report = CheckReport {
            summary: found.summary(),
            tiers: Vec::new(),
            problems: Vec::new(),
            interrupted_superblock: *interrupted,
            walk: RecoveryReport::default(),
            bad_blocks: 0,
            used_blocks: 0,
            free_blocks: 0,
        };
        for (index, _) in valid.iter().enumerate().filter(|&(_, &valid)| !valid && !interrupted) {
            report.add(format!("copy {} of the superblock is damaged", index + 1), "write it from the other");
        }
        if superblock.raw.errors != 0 {
            let errors = size::count(superblock.raw.errors.into(), "error was", "errors were");
            report.add(format!("{errors} noted while it was mounted"), "forget them");
        }
        report
    }

    /// Nothing is wrong, or everything that was is repaired.
    pub fn is_sound(&self) -> bool {
        self.problems.iter().all(|problem| problem.repaired)
    }

    /// Every problem has a repair.
    pub fn is_provable(&self) -> bool {
        self.problems.iter().all(|problem| !problem.repair.is_empty())
    }

    /// Adds a problem with a repair that loses nothing.
    pub fn add(&mut self, what: impl Into<String>, repair: &'static str) {
        self.problems.push(Problem { what: what.into(), repair, loses: false, repaired: false });
    }

    /// A repair would give something up.
    pub fn loses(&self) -> bool {
        self.problems.iter().any(|problem| problem.loses)
    }
}

/// The result of a search for media errors.
#[derive(Debug, Clone, Default)]
pub struct MediaReport {
    /// Each media error, in words: path and range, where it is in a file.
    pub errors: Vec<String>,
    /// Media errors in files, in blocks that are out of use already: they were reported before.
    pub told: Vec<String>,
    /// Blocks that were not in the list of bad blocks.
    pub new_blocks: u64,
}

/// Says of bad bytes of a device that no file has them.
pub fn in_no_file(Range { start, end }: Range<u64>) -> String {
    format!(
        "a media error in bytes {start} to {end} of the device, in no file (block {})",
        start / BLOCK_SIZE
    )
}
