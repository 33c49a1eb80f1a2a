//! Policies of nacre as pure state transitions: events go in, a choice comes out.
//!
//! - [`benefit`]: HiNFS's buffer benefit model (paper 000, section 3.2): whether a block's writes are buffered in DRAM
//!   (lazy) or go to persistent memory at once (eager).
//! - [`appends`]: the same for new blocks, by the blocks that came before them.
//! - [`ghost`]: the state of the blocks of a file that are not in DRAM, within a bound.
//! - [`migration`]: policies of migration between PM, DRAM and tiers: accesses go in, a choice comes out.
//! - [`placement`]: TPFS's predictors (paper 002, section 4): whether a write goes to PM or through DRAM to disk.
//! - [`read_ahead`]: how much of a file on disk is read ahead, by its earlier reads in order.
//! - [`schedule`]: in which hours of the day data moves by itself.
//! - [`thresholds`], [`temperature`]: when data moves between persistent memory and disk, and which (paper 002,
//!   section 5).
//!
//! Nothing here does I/O, reads a clock, starts a thread or locks. Times are given in milliseconds since any start. A
//! caller that shares a state between threads brings the lock.

pub mod appends;
pub mod benefit;
pub mod ghost;
pub mod migration;
pub mod placement;
pub mod read_ahead;
pub mod schedule;
pub mod temperature;
pub mod thresholds;

pub use appends::{Appends, Newcomers};
pub use benefit::{Block, Checker, Latencies, Model, Path, Verdict};
pub use ghost::{FileHistory, Judged};
pub use migration::Migration;
pub use placement::{FileAccess, Rules};
pub use read_ahead::ReadAhead;
pub use schedule::{Hours, Minute};
pub use temperature::{Heat, Temperatures};
pub use thresholds::{Dataflow, DiskReads, Flow};
