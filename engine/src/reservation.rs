//! Space for writes that a buffering layer accepts now and makes later.

/// An upper bound of the space, in blocks, that a layout needs to write buffered writes: data and its metadata. If a
/// caller reserves this for all waiting writes and writes them with `Durability::Promised`, they find space, in any
/// order and beside other operations. A block that is written in several operations, without a truncation or a hole
/// between them, counts once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromiseCost {
    /// For each block of a file.
    pub block: u64,
    /// Once for all blocks of a file in the same aligned group, while the first of them waits.
    pub group: u64,
    /// Blocks of a file in a group; a power of two.
    pub group_blocks: u64,
    /// Once for each file with waiting data or a promised [`SetAttr`](crate::SetAttr).
    pub file: u64,
}
