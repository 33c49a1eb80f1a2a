//! Files over PM and the disks below it: where each write goes, and what moves.
//!
//! [`TieredFs`] is a layout over which files may have blocks on tiers, and is one itself: the code above it sees files,
//! and not their places.
//!
//! | file | content |
//! | --- | --- |
//! | `fs`, `names`, `data`, `extents` | the file system, and the contract: thin, over the parts below |
//! | `places`, `reservations` | the layout and the devices; space reserved for buffered data |
//! | `io/` | reads and writes; writes straight to disk, and on a full file system; read-ahead |
//! | `stats/` | samples of accesses, misses, predictors |
//! | `engine/` | background passes, direct reclaim, relocation; the choice is that of `nacre_policy::migration` |
//! | `admin/` | devices of tiers, status queries, requested placements |
//! | `settings` | settings, which can be changed at any time |
//!
//! **Reading.** The layout is asked first, so that files on PM cost nothing more. At a block on a tier it gives that
//! block's place, and the page cache is looked into. Without the block there, the range is resolved and each part read
//! from where it is; blocks that are freed meanwhile are not used again before that is over.
//!
//! **Writing** whole blocks replaces what was on tiers. An operation that keeps a part of such a block fails in the
//! layout before it has changed anything; the blocks at the edges of its range are promoted then, and it is tried
//! again.
//!
//! **Writes that a buffer above accepted** go straight to disk where they are large, stable and asynchronous: written
//! there and flushed first, then committed as one operation. The others go to PM.
//!
//! **Moving** takes no lock of files: blocks are resolved with a version, copied, made durable, and committed with that
//! version. Files that move together share the write and the flush of the device, and have a commit of the layout each.
//! Where the version is another one by then, they stay, and the copy is forgotten.

mod admin;
mod data;
mod engine;
mod extents;
mod fs;
mod io;
mod names;
mod places;
mod reservations;
mod settings;
mod stats;

pub use admin::devices::NOT_ATTACHED;
pub use admin::hints::TIER;
pub use admin::status::{AGES_S, Ages, HotFile, MoverStatus, Temperature};
pub use engine::budget::Budget;
pub use engine::demote::MovedFiles;
pub use engine::evacuate::Drained;
pub use engine::executor::Moved;
pub use engine::progress::{Cause, Doing, Phase, Queue, Queued, Way};
pub use engine::trim::{TrimFrom, Trimmed};
pub use fs::TieredFs;
pub use io::readahead::{Ahead, Fetch};
pub use nacre_policy::{Hours, Rules};
pub use places::PIN;
pub use settings::{LargeWrites, MoverOptions, NextWindow, Threshold};
pub use stats::predictors::Accuracy;
