//! What is told of a recovery, and of a search for media errors, and what a repair may do.

use std::ops::Range;
use std::time::Duration;

use nacre_engine::BLOCK_SIZE;

/// How much a repair may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Repair {
    /// Nothing.
    None,
    /// What loses nothing that is still there; nothing where that is not all.
    Safe,
    /// Also what gives up what cannot be saved.
    All,
}

/// What recovery found and did.
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
    /// Operations that had begun to change what is in place, and were undone.
    pub rolled_back: u64,
    /// Inodes whose link count was corrected.
    pub relinked: u64,
    /// What contradicts the format, in words (the first hundred).
    pub damage: Vec<String>,
    /// All that was found, described or not.
    pub damage_count: u64,
    /// How long it took.
    pub duration: Duration,
}

/// What a search for media errors found.
#[derive(Debug, Clone, Default)]
pub struct MediaReport {
    /// Each media error, in words: path and range, where it is in a file.
    pub errors: Vec<String>,
    /// Those in files whose blocks are out of use already: they were told of before.
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
