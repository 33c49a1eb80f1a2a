//! Files over persistent memory and the disks below it: where each write goes, and what moves.
//!
//! [`MoverFs`] is a layout over which files may have blocks on tiers, and is one itself: the code above it sees files,
//! and not their places.
//!
//! | file | content |
//! | --- | --- |
//! | `fs` | setting it up; the tiers of a file system, added, removed and listed |
//! | `names`, `data` | the contract: an operation on blocks of tiers reads them there, or promotes them first |
//! | `ahead` | how much of a file on a tier is read ahead |
//! | `predict`, `place` | the history of files' writes and syncs; writes that go straight to disk |
//! | `promises` | reservations of space for data that a buffer above has accepted |
//! | `migrate`, `batch`, `pieces` | moving blocks: resolve, copy, publish; many files with one write and one flush |
//! | `drain` | taking everything from a tier before it goes |
//! | `trim` | telling devices which blocks are free |
//! | `full` | a full file system: overwriting existing data, blocks that were never written |
//! | `pin`, `wishes` | files that stay where they are; files that were told where to be |
//! | `watch`, `keeper` | samples of accesses, and temperatures; keeping PM from being full |
//! | `balance`, `missed` | moving for the sake of reads: by their source, and by the waits for a disk |
//! | `descent` | cold files on a tier that is nearly full go to slower ones |
//! | `compact` | making the logs of files as small as they can be, where persistent memory is nearly full |
//! | `settings`, `budget` | settings, which can be changed at any time; limits of work that can be interrupted |
//! | `status`, `queue` | status queries: the mover's phase, the queue and its causes, and the temperature of files |
//! | `walk` | looking for files of which nothing is known |
//!
//! **Reading.** The layout is asked first, so that files on persistent memory cost nothing more. When it says that blocks
//! are elsewhere, the range is resolved and each part read from where it is; blocks that are freed meanwhile are not used
//! again before that is over.
//!
//! **Writing** whole blocks replaces what was on tiers. An operation that keeps a part of such a block fails in the layout
//! before it has changed anything; the blocks at the edges of its range are brought up then, and it is tried again.
//!
//! **Writes that a buffer above accepted** go straight to disk where they are large, stable and asynchronous: written there
//! and flushed first, then committed as one operation. The others go to persistent memory.
//!
//! **Moving** takes no lock of files: blocks are resolved with a version, copied, made durable, and published with that
//! version. Files that move together share the write and the flush of the device, and have a commit of the layout each.
//! Where the version is another one by then, they stay, and the copy is forgotten.

mod ahead;
mod balance;
mod batch;
mod budget;
mod compact;
mod data;
mod descent;
mod drain;
mod fs;
mod full;
mod keeper;
mod migrate;
mod missed;
mod names;
mod pieces;
mod pin;
mod place;
mod predict;
mod promises;
mod queue;
mod settings;
mod status;
mod trim;
mod walk;
mod watch;
mod wishes;

pub use ahead::{Ahead, Fetch};
pub use budget::Budget;
pub use drain::Drained;
pub use fs::{MoverFs, NOT_ATTACHED};
pub use migrate::{Moved, MovedFiles};
pub use nacre_policy::{Hours, Rules};
pub use pin::PIN;
pub use predict::Accuracy;
pub use queue::{Cause, Queue, Queued};
pub use settings::{LargeWrites, MoverOptions, NextWindow};
pub use status::{AGES_S, Ages, Doing, HotFile, MoverStatus, Phase, Temperature, Way};
pub use trim::{TrimFrom, Trimmed};
pub use wishes::TIER;
