//! The contract of a layout whose files may have blocks on tiers. Such a layout implements [`TierTable`], [`TierBlocks`]
//! and [`Relocate`], and optionally [`WriteToTier`] and [`LogOffload`].
//!
//! A layout does no disk I/O. It knows which blocks of which tier belong to which file, allocates their space, and
//! commits the places of blocks. A component above it ("the mover") reads and writes them. If a log has moved to a
//! tier as an offloaded extent map ([`LogImage`]), the layout reads it through the mover's [`TierReader`].
//!
//! - **Reading.** The mover reads by [`TierBlocks::read_or_resolve`]. A read that meets a block on a tier gives the place
//!   of that block. If the page cache has not the block, the mover resolves the range again and reads the tier, between
//!   [`TierBlocks::begin_reads`] and [`TierBlocks::end_reads`], so that no block freed meanwhile is written by others.
//!   [`Data::read`](crate::Data::read) fails there with [`Elsewhere`](crate::Kind::Elsewhere).
//! - **Writing** whole blocks needs no old contents. An operation that keeps a part of a block on a tier fails with
//!   `Elsewhere`; the mover [promotes it](Relocate::bring_up) and tries again.
//! - **Moving.** Blocks are resolved with a version, copied without a lock, and [committed](Relocate::publish). The
//!   commit fails if the version has changed.

mod log_offload;
mod relocate;
mod space;
mod table;
mod write;

pub use log_offload::{CompactedLog, DamagedCopy, LogImage, LogOffload, TierReader};
pub use relocate::{Copied, CopiedFile, Movable, Relocate};
pub use space::{FreeRun, PmUse, TierBlocks, TierRead, TierRun, TierSpace};
pub use table::{MAX_TIERS, Tier, TierChange, TierState, TierTable};
pub use write::{WriteToTier, Written};

/// A layout with all of them.
pub trait Tiered: WriteToTier + LogOffload {}

impl<T: WriteToTier + LogOffload> Tiered for T {}
