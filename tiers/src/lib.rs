//! The disks below persistent memory: which they are, their I/O, and a page cache of their blocks.
//!
//! | file | what is there |
//! | --- | --- |
//! | `format` | the bytes of a tier's superblock; nothing else defines them |
//! | `label` | reading and writing it: the file system of a tier, and how recent it is |
//! | `set` | the tiers of a mounted file system: attached or not, reads, writes and flushes by place |
//! | `failing` | for how long blocks go elsewhere than to a tier that fails to take writes, or to be read |
//! | `pages` | blocks of tiers in DRAM |
//! | `traffic` | bytes and operations of reads and writes, by tier |
//!
//! The layout knows which block of a tier belongs to which file; the mover decides which blocks move. Neighbours: the
//! devices are in `nacre-media`, the contract in `nacre-engine`. The format is drawn in `docs/format/tier.md`.

mod failing;
mod fetched;
mod fetching;
mod format;
mod label;
mod pages;
mod queues;
mod set;
mod traffic;

pub use label::{COPIES, Label, MIN_TIER_SIZE, NewLabel};
pub use pages::{PageCache, PageCounters};
pub use set::{Attachment, Detached, Listener, TierSet};
pub use traffic::TierTraffic;
