//! Logs of files: compaction, and extent maps on tiers in place of logs on PM.

use std::sync::Arc;

use crate::error::Result;

use super::relocate::Relocate;
use super::space::TierRun;

/// The result of compacting a portion of a file's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompactedLog {
    /// Blocks of persistent memory that are free now.
    pub freed: u64,
    /// Whether there is no further portion.
    pub is_done: bool,
}

/// An offloaded extent map: the state of a file's log in a form that a tier may keep instead of persistent memory. All
/// blocks of the file are on that tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogImage {
    /// The tier.
    pub tier: u8,
    /// Whole blocks.
    pub content: Vec<u8>,
    /// Changes as soon as the file changes.
    pub version: u64,
}

/// Reads blocks of tiers for a layout that keeps extent maps there and scrubs data of files there.
pub trait TierReader: Send + Sync {
    /// The contents of blocks of a tier. [`DeviceLost`](crate::Kind::DeviceLost) if the tier is missing.
    fn read_image(&self, run: TierRun) -> Result<Vec<u8>>;

    /// Checks both copies of a tier's own superblock, and repairs a damaged one from the other. Returns the damaged
    /// ones. [`DeviceLost`](crate::Kind::DeviceLost) if the tier is missing.
    fn check_superblock(&self, tier: u8) -> Result<Vec<DamagedCopy>> {
        let _ = tier;
        Ok(Vec::new())
    }
}

/// A copy of a tier's superblock that does not validate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedCopy {
    /// The copy, in words.
    pub copy: &'static str,
    /// Whether it was rewritten from the other copy.
    pub is_repaired: bool,
}

/// Logs of files that become smaller, or move to tiers. Optional: for a layout whose files have logs.
pub trait LogOffload: Relocate {
    /// Whether files have logs, on persistent memory, that [`LogOffload::compact_log`] may make smaller.
    fn has_logs(&self) -> bool;

    /// Compacts a portion of a file's log: the first one if `begin`, otherwise the one behind the last. A log without
    /// changes since its compaction is skipped at once. It waits for no operation: if the file is being changed, or
    /// the copy finds no space, it does nothing. The visible state of the file does not change. Atomic, and durable on
    /// return. [`Unsupported`](crate::Kind::Unsupported) if files have no logs.
    fn compact_log(&self, node: &Self::Node, begin: bool) -> Result<CompactedLog>;

    /// Sets the reader of offloaded extent maps.
    fn read_images_with(&self, reader: Arc<dyn TierReader>);

    /// The extent map of a file to offload. `None` unless all blocks of the file are on one tier that `may_be_on`
    /// allows. `None` also if one is shared or about to be freed, or no persistent memory would become free. It does
    /// not wait: `None` for a file that is being changed.
    fn log_image(&self, node: &Self::Node, may_be_on: &dyn Fn(u8) -> bool) -> Result<Option<LogImage>>;

    /// Replaces the file's log by an extent map that was written to `run`: atomic, and durable on return. Returns the
    /// number of blocks of persistent memory that became free; none, without a change, if the file has changed since.
    fn publish_log_image(
        &self,
        node: &Self::Node,
        image: &LogImage,
        run: TierRun,
        proof: Self::Proof,
    ) -> Result<Option<u64>>;

    /// The place of a file's offloaded extent map, if it has one.
    fn log_image_at(&self, node: &Self::Node) -> Option<TierRun>;

    /// Moves a log back to persistent memory, as every change of places does; false if it was there.
    fn take_log_back(&self, node: &Self::Node) -> Result<bool>;
}
