//! The engine of relocations: when blocks move, and how.
//!
//! | file | content |
//! | --- | --- |
//! | `tick` | background passes |
//! | `executor`, `batch` | relocation: gather, copy, flush, commit; the blocks of many files that move as one |
//! | `evict` | anti-caching: what PM holds above a threshold, the blocks that were not used for longest first |
//! | `walk` | the search for blocks that its list does not know |
//! | `demote`, `promote` | given files, and ranges of files |
//! | `cold`, `scan`, `trail` | cold data; the search for files of which nothing is known |
//! | `reclaim` | direct reclaim: a write that finds no space demotes blocks itself |
//! | `reads` | relocation for the sake of reads: by their source, and by the waits for a disk |
//! | `rebalance` | cold files on a tier that is nearly full go to slower ones |
//! | `evacuate` | taking everything from a tier before it goes |
//! | `log_offload` | compacting the logs of files, and offloading their extent maps |
//! | `trim` | telling devices which blocks are free |
//! | `state`, `progress`, `budget` | the state between passes; status; limits of work that can be interrupted |

pub(crate) mod batch;
pub(crate) mod budget;
mod cold;
pub(crate) mod demote;
pub(crate) mod evacuate;
mod evict;
pub(crate) mod executor;
mod log_offload;
pub(crate) mod progress;
mod promote;
mod reads;
mod rebalance;
pub(crate) mod reclaim;
mod scan;
pub(crate) mod state;
mod tick;
mod trail;
pub(crate) mod trim;
mod walk;

use std::collections::{BTreeMap, BTreeSet};

use nacre_engine::InodeId;
use nacre_engine::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use nacre_engine::sync::{Condvar, Mutex};

use crate::admin::hints::Hints;
use crate::engine::evacuate::Drain;
use crate::engine::progress::{AllDoing, Queue};
use crate::engine::state::State;
use crate::engine::trim::Trims;
use crate::places::Places;
use crate::stats::Stats;

/// Counts of relocations since the mount, in blocks, unless said otherwise.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Because space was short.
    pub(crate) moved: AtomicU64,
    /// Down, into DRAM, because they were read.
    pub(crate) lowered: AtomicU64,
    /// Up, because they were read.
    pub(crate) raised: AtomicU64,
    /// From a tier that is nearly full to a slower one.
    pub(crate) descended: AtomicU64,
    /// By anti-caching, because PM held more than the threshold.
    pub(crate) evicted: AtomicU64,
    /// Up again by anti-caching, because they were read.
    pub(crate) promoted: AtomicU64,
    /// Logs that are smaller since they were compacted.
    pub(crate) logs_compacted: AtomicU64,
    /// Blocks that compaction and offloading freed.
    pub(crate) log_blocks_freed: AtomicU64,
    /// Logs that were offloaded to a tier.
    pub(crate) logs_moved: AtomicU64,
}

/// The engine's own state.
pub(crate) struct Engine {
    pub(crate) state: Mutex<State>,
    /// Some work of direct reclaim in flight has ended.
    pub(crate) landed: Condvar,
    pub(crate) counts: Counts,
    /// Blocks that stay on PM during direct reclaim.
    pub(crate) held: Mutex<Vec<(InodeId, u64)>>,
    /// Files with blocks that were allocated and may never have been written, for anti-caching.
    pub(crate) allocated: Mutex<BTreeSet<InodeId>>,
    /// Drains that were begun and are not done; none while one goes on.
    pub(crate) drains: Mutex<BTreeMap<u8, Option<Drain>>>,
    pub(crate) trims: Trims,
    /// Files with a requested placement.
    pub(crate) hints: Hints,
    /// Blocks are moved only for direct reclaim.
    pub(crate) paused: AtomicBool,
    /// Bytes that the rate allows to be moved now; less than none after a group was larger.
    pub(crate) allowance: AtomicI64,
    /// Large asynchronous writes go to disk now.
    pub(crate) large_to_disk: AtomicBool,
    /// The files whose blocks are moving, for status queries.
    pub(crate) doing: Mutex<AllDoing>,
    /// The queue when blocks were last chosen, for status queries while they move.
    pub(crate) queue: Mutex<Queue>,
    /// The last direct reclaim found no blocks to move.
    pub(crate) is_stuck: AtomicBool,
    /// Files may move that did not before.
    pub(crate) scan_again: AtomicBool,
    /// It was told that there is no room while a tier is drained that has some.
    pub(crate) has_told_full: AtomicBool,
}

impl Engine {
    /// It knows at most so many files of each kind.
    pub(crate) fn new(known_files: usize) -> Engine {
        Engine {
            state: Mutex::new(State::new(known_files)),
            landed: Condvar::new(),
            counts: Counts::default(),
            held: Mutex::default(),
            allocated: Mutex::default(),
            drains: Mutex::default(),
            trims: Trims::default(),
            hints: Hints::default(),
            paused: AtomicBool::new(false),
            allowance: AtomicI64::new(0),
            large_to_disk: AtomicBool::new(true),
            doing: Mutex::default(),
            queue: Mutex::default(),
            is_stuck: AtomicBool::new(false),
            scan_again: AtomicBool::new(false),
            has_told_full: AtomicBool::new(false),
        }
    }
}

/// The engine at work: its state, the places that it moves blocks between, and the statistics by which it chooses.
pub(crate) struct Mover<'f, L, D> {
    pub(crate) places: &'f Places<L, D>,
    pub(crate) stats: &'f Stats,
    pub(crate) engine: &'f Engine,
}

impl<L, D> Clone for Mover<'_, L, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L, D> Copy for Mover<'_, L, D> {}
