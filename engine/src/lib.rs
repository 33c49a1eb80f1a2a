//! The contract between the parts of nacre.
//!
//! - [`error`]: the one error type: kind, operation, object, source. Errno exists only in the front ends.
//! - [`units`]: media blocks, file blocks, times and inode names as distinct types.
//! - [`attr`]: the attributes of an inode and their changes.
//! - [`size`]: sizes as people write them.
//! - [`namespace`], [`content`], [`space`]: the three traits that a layout implements: [`Names`], [`Data`],
//!   [`Extents`]. Its [`capabilities`] are constants.
//! - [`below_buffer`]: the layer below a write buffer: writeback with a [`reservation`] of space, and questions.
//! - [`reclaim`]: the one chain of steps that make room if an operation finds no space.
//! - [`tiering`]: the traits of a layout whose files may have blocks on disks.
//! - `forward`: macros that forward methods of the contract to another layout.
//! - `shared`: a shared layout is a layout, too.
//! - [`background`]: threads that no operation waits for.
//! - [`sync`]: locks, atomics and threads. Tests replace them by primitives that explore interleavings.
//!
//! Nothing here depends on another crate of nacre, does I/O, or reads a clock.

pub mod attr;
pub mod background;
pub mod below_buffer;
pub mod capabilities;
pub mod content;
pub mod error;
mod forward;
pub mod namespace;
pub mod reclaim;
pub mod reservation;
mod shared;
pub mod size;
pub mod space;
pub mod sync;
pub mod tiering;
pub mod units;

pub use attr::{Attr, FileKind, NewInode, SetAttr};
pub use below_buffer::BelowBuffer;
pub use capabilities::Capabilities;
pub use content::{Data, Durability, FallocateMode, SeekTo, WriteAt};
pub use error::{Error, Kind, Result, without_number};
pub use namespace::{DirEntry, InodeCache, Names, RenameMode, XattrMode};
pub use reclaim::{Resource, Shortage, Step, made_room, or_another_way, unless_full, with_room};
pub use reservation::{Draw, Reservation, ReservedBlocks, ReservedElsewhere, WriteCost, WriteShape};
pub use space::{Extents, FsStat, Place, PlacedExtent};
pub use tiering::{
    CompactedLog, Copied, CopiedFile, DamagedCopy, FreeRun, LogImage, LogOffload, MAX_TIERS, Movable, PmUse,
    Relocate, Tier, TierBlocks, TierChange, TierRead, TierReader, TierRun, TierSpace, TierState, TierTable,
    Tiered, WriteToTier, Written,
};
pub use units::{BLOCK_SIZE, Block, FileBlock, InodeHasher, InodeId, LINE_SIZE, TimeRange, Timestamp};
