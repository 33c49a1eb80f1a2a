//! The capabilities of a layout.

use crate::reservation::WriteCost;

/// The capabilities of a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Every operation is durable when it returns.
    pub durable_on_return: bool,
    /// A write of any size is all or nothing after a crash. On a full device an overwrite is atomic in pieces only. If
    /// even its metadata finds no space, it is not atomic.
    pub atomic_write: bool,
    /// The compatible feature bit of a file system whose writes overwrite in place and are not atomic: mkfs chooses. 0
    /// in a layout without that choice.
    pub in_place_feature: u64,
    /// Largest size of a file in bytes.
    pub max_file_size: u64,
    /// Largest value of an extended attribute in bytes.
    pub max_xattr_size: usize,
    /// The unit, in bytes, that media writes for any write inside it, aligned: a line for updates in place, a block
    /// for copy on write. A power of two, from a line to a block.
    pub write_unit: u64,
    /// The space to reserve for writes that a buffering layer accepts.
    pub write_cost: WriteCost,
    /// Tiers that a file system can have.
    pub max_tiers: u8,
    /// The most volumes of a device. With 1 a device is a volume.
    pub max_volumes: u32,
    /// Every mount has an index of names in DRAM. Otherwise mkfs or the mount chooses.
    pub always_indexes_names: bool,
}
