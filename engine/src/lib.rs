//! The contract between the parts of nacre.
//!
//! - [`error`]: the one error type: kind, operation, object, source. Errno exists only in the front ends.
//! - [`units`]: media blocks, file blocks, times and inode names as distinct types.
//! - [`attr`]: the attributes of an inode and their changes.
//! - [`size`]: sizes as people write them.
//! - [`contract`]: the three traits that a layout implements: [`Names`], [`Data`], [`Extents`].
//! - [`tiered`]: a fourth, of a layout whose files may have blocks on disks: [`Tiered`].
//! - `shared`: a shared layout is a layout, too.
//! - [`background`]: threads that no operation waits for.
//! - [`sync`]: locks, atomics and threads. Tests replace them by primitives that explore interleavings.
//!
//! Nothing here depends on another crate of nacre, does I/O, or reads a clock.

pub mod attr;
pub mod background;
pub mod contract;
pub mod error;
mod shared;
pub mod size;
pub mod sync;
pub mod tiered;
pub mod units;

pub use attr::{Attr, FileKind, NewInode, SetAttr};
pub use contract::{
    Capabilities, Data, DirEntry, Durability, Extents, FallocateMode, FsStat, InodeCache, Names, Place,
    PlacedExtent, PromiseCost, RenameMode, SeekTo, WriteAt, XattrMode,
};
pub use error::{Error, Kind, Result, without_number};
pub use tiered::{
    CompactedLog, Copied, CopiedFile, DamagedCopy, FreeRun, LogImage, MAX_TIERS, Movable, Tier, TierChange,
    TierReader, TierRun, TierSpace, TierState, Tiered, Written,
};
pub use units::{BLOCK_SIZE, Block, FileBlock, InodeHasher, InodeId, LINE_SIZE, TimeRange, Timestamp};
