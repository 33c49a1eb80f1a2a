//! The state of the engine. A background pass holds it as long as it lasts. Direct reclaim holds it to choose and to
//! settle, and not while it reads or writes a disk.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use nacre_engine::sync::atomic::{AtomicI64, Ordering};
use nacre_engine::{Error, InodeId};
use nacre_policy::migration::anticache::{AntiCache, Bounds};
use nacre_policy::migration::rebalance::Rebalance;
use nacre_policy::migration::tpfs::Tpfs;
use nacre_policy::migration::{Access, Chosen, Migration, PAUSE_MS};

use crate::engine::executor::Outcome;
use crate::engine::trail::Trail;

/// The way through all files, for their logs.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    pub(crate) trail: Trail,
    /// Files that were found and are still to be compacted.
    pub(crate) found: VecDeque<InodeId>,
    /// A scan goes on, or its files are still to be compacted.
    pub(crate) is_walking: bool,
    /// When the last scan ended, in milliseconds since 1970.
    pub(crate) ended_ms: Option<u64>,
}

impl Logs {
    /// Whether another scan may find something at this time.
    pub(crate) fn is_worth_it(&self, now_ms: u64) -> bool {
        self.ended_ms.is_none_or(|ended_ms| now_ms.abs_diff(ended_ms) >= PAUSE_MS)
    }
}

/// The work of direct reclaim in progress, of all operations that wait for room.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    count: u64,
    /// Blocks of PM that the relocations leave, if they succeed.
    blocks: u64,
}

impl InFlight {
    /// Whether there is any.
    pub(crate) fn is_any(&self) -> bool {
        self.count > 0
    }

    /// Blocks of PM that may become free by it.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Work begins, by which so many blocks may become free.
    pub(crate) fn begin(&mut self, blocks: u64) {
        self.count += 1;
        self.blocks += blocks;
    }

    /// It is over.
    pub(crate) fn end(&mut self, blocks: u64) {
        self.count -= 1;
        self.blocks -= blocks;
    }
}

/// The state of the mover.
pub(crate) struct State {
    /// The policy between PM, DRAM and tiers.
    pub(crate) tpfs: Tpfs<InodeId>,
    /// Through all files, for those of which it knows nothing.
    pub(crate) trail: Trail,
    /// The policy of anti-caching, in place of the others where it is on.
    pub(crate) anticache: AntiCache<InodeId>,
    /// Through all files, for blocks on PM that it does not know.
    pub(crate) evict_trail: Trail,
    /// When blocks that were read ahead in vain were looked for, in milliseconds since 1970.
    pub(crate) expired_ms: u64,
    /// The policy between tiers.
    pub(crate) rebalance: Rebalance<InodeId>,
    /// Through all files, for those on tiers that are nearly full.
    pub(crate) rebalance_trail: Trail,
    /// Through all files, for their logs.
    pub(crate) logs: Logs,
    /// Its own way, of those that wait for room: they take files that are not cold, too.
    pub(crate) logs_for_room: Logs,
    /// Relocations and compactions of direct reclaim in progress, which do without the lock of this state.
    pub(crate) in_flight: InFlight,
    /// Accesses of which samples were lost by the last tick.
    pub(crate) lost: u64,
    /// When the last tick was, in milliseconds since 1970.
    ticked_ms: u64,
    pub(crate) failure: Option<String>,
}

/// Blocks in the list of anti-caching for each file that the other policies may know. The index of the list doubles at
/// 7 times a power of two.
const BLOCKS_OF_A_FILE: usize = 7;

/// Files of one round of its walk, in the same way.
const FILES_OF_A_FILE: usize = 2;

/// The most time for which unused allowance is granted, in milliseconds.
const ALLOWANCE_MS: u64 = 1000;

impl State {
    /// It knows at most so many files of each kind.
    pub(crate) fn new(known_files: usize) -> State {
        let before = |id: InodeId| InodeId { generation: id.generation.wrapping_sub(1), ..id };
        State {
            tpfs: Tpfs::new(known_files, before),
            trail: Trail::default(),
            anticache: AntiCache::new(Bounds {
                blocks: known_files.saturating_mul(BLOCKS_OF_A_FILE),
                runs: known_files / 2,
                files: known_files.saturating_mul(FILES_OF_A_FILE),
            }),
            evict_trail: Trail::default(),
            expired_ms: 0,
            rebalance: Rebalance::default(),
            rebalance_trail: Trail::default(),
            logs: Logs::default(),
            logs_for_room: Logs::default(),
            in_flight: InFlight::default(),
            lost: 0,
            ticked_ms: 0,
            failure: None,
        }
    }

    /// Has the policies take in an access.
    pub(crate) fn observe(&mut self, access: &Access<InodeId>) {
        self.tpfs.observe(access);
        self.rebalance.observe(access);
    }

    /// Notes that a file does not move for the sake of reads; gives the error to report, if there is one.
    pub(crate) fn passed_by(&mut self, id: InodeId, outcome: Outcome) -> Option<Error> {
        match outcome {
            Outcome::Moved(_) | Outcome::Mapped(_) => None,
            Outcome::Gone(_) => {
                self.tpfs.on_pm.forget(id);
                self.tpfs.on_tiers.forget(id);
                None
            }
            Outcome::Full(_) => {
                self.tpfs.balance.has_no_room();
                None
            }
            Outcome::Failed(error) => Some(error),
        }
    }

    /// A file of which the rest comes later.
    pub(crate) fn put_back<N>(&mut self, cold: Option<Current<N>>) {
        if let Some(cold) = cold {
            self.tpfs.on_pm.put_back(cold.chosen.file);
        }
    }

    /// Blocks of a file that was chosen stay on PM.
    pub(crate) fn put_back_file(&mut self, id: InodeId) {
        self.tpfs.on_pm.put_back(id);
        self.anticache.miss();
    }

    /// Adds the allowance for the time that has passed, at `rate` bytes in a second.
    pub(crate) fn allow(&mut self, allowance: &AtomicI64, rate: Option<u64>, now_ms: u64) {
        let passed = now_ms.saturating_sub(self.ticked_ms).min(ALLOWANCE_MS);
        self.ticked_ms = now_ms;
        let each_second = rate.and_then(|rate| i64::try_from(rate).ok()).unwrap_or(i64::MAX);
        let more = each_second.saturating_mul(passed as i64) / 1000;
        let allowed = allowance.load(Ordering::Relaxed).saturating_add(more).min(each_second);
        allowance.store(allowed, Ordering::Relaxed);
    }
}

/// The next file to move; `Continue(None)` is a step on the way there, `Break` that there is nothing.
pub(crate) type Next = ControlFlow<(), Option<Chosen<InodeId>>>;

/// The file that is moving down, and its first block that was not looked at.
pub(crate) struct Current<N> {
    pub(crate) chosen: Chosen<InodeId>,
    pub(crate) node: N,
    pub(crate) at: u64,
}
