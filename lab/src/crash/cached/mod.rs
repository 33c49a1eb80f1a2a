//! The write buffer over a layout, crashed at every fence. Synchronised data must be there, any part of the rest may be
//! missing, and nothing may be torn against the guarantees of the layout.
//!
//! Random sequences run over a small pool without threads, so that writers write back and the same sequence leaves the
//! same trace. After a crash the names must be those before or after the operation in flight. Each file must be
//! *explained*:
//!
//! - its size is one between those that it had since it was synchronised;
//! - each unit of it holds its content of some time since then, at which the file was so long.
//!
//! A unit is a block if data is copied on write, a word if it is written in place. A unit may also hold the part of
//! that content that is left after a cut, or after another unit's write let the file grow.
//!
//! | file | contents |
//! | --- | --- |
//! | `promise` | the guarantees after each operation; whether an image keeps them |
//! | `explore` | running a sequence and crashing it everywhere |
//! | `case` | one crash as text; making it smaller |
//! | `mistakes` | mistakes of a buffer that a crash must show |

mod case;
mod explore;
mod mistakes;
mod promise;

use nacre_cache::{Checker, Granularity};
use nacre_engine::{FallocateMode, RenameMode};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::op::Op;
use super::subject::{Mounting, Subject};
use super::workload::file;
pub use case::CachedCase;
pub(super) use case::{WORD, minimise, reproduce};
pub(super) use explore::sites_of_cached;
pub use explore::{CachedSettings, explore_cached};
pub use mistakes::BufferMistake;
pub use promise::Belief;
use promise::State;

const BLOCK: usize = 4096;
/// Operations of a sequence.
const LENGTH: usize = 60;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// Operations on files in the root, through a write buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cached {
    /// Its name.
    pub name: String,
    /// Blocks of the pool.
    pub pool: u64,
    /// The pieces in which data is fetched and written back.
    pub granularity: Granularity,
    /// Whether blocks that are soon synchronised bypass.
    pub checker: Checker,
    /// Whether appended blocks bypass as the ones appended before them.
    pub inherits: bool,
    /// How the layout below is mounted.
    pub mounting: Mounting,
    /// Blocks of PM that are left for data in the beginning; all of them if `None`.
    pub left: Option<u64>,
    /// At each fence of these there is a crash.
    pub ops: Vec<Op>,
}

impl Default for Cached {
    fn default() -> Cached {
        Cached {
            name: String::new(),
            pool: 8,
            granularity: Granularity::Lines,
            checker: Checker::Full,
            inherits: false,
            mounting: Mounting::default(),
            left: None,
            ops: Vec::new(),
        }
    }
}

/// A random sequence for a subject: of every seed another one. Where that has a disk, blocks move meanwhile.
pub fn cached<S: Subject>(subject: &S, seed: u64) -> Cached {
    let mut rng = SmallRng::seed_from_u64(seed);
    let disks = subject.disks().len();
    let mut moves = (disks > 0).then_some(Moves { disks, tiers: 1, next: None });
    let mut sequence = Cached {
        name: format!("cached-{seed}"),
        pool: [4, 8, 8, 32][rng.random_range(0..4)],
        granularity: if one_of_four(&mut rng) { Granularity::Blocks } else { Granularity::Lines },
        checker: match rng.random_range(0..4) {
            0 => Checker::Off,
            // Only what is for the disk waits, as in TPFS.
            1 if moves.is_some() => Checker::Disk,
            _ => Checker::Full,
        },
        inherits: seed.is_multiple_of(2),
        mounting: Mounting { lanes: rng.random_range(1..3), ..Mounting::default() },
        left: None,
        ops: Vec::new(),
    };
    let mut state = State::default();
    for number in 1..=LENGTH {
        let moved = moves.as_mut().and_then(|moves| moves.choose(&state, &mut rng));
        let op = moved.unwrap_or_else(|| choose(&state, moves.is_some(), &mut rng));
        state = state.after(&op, number, Belief::Right);
        sequence.ops.push(op);
    }
    // Accepted writes then have space on the disk.
    if moves.is_some() && one_of_four(&mut rng) {
        sequence.left = Some([4, 12, 24][rng.random_range(0..3)]);
    }
    sequence
}

fn one_of_four(rng: &mut SmallRng) -> bool {
    rng.random_range(0..4) == 0
}

/// The names that there are in this state, and those that are free.
fn names(state: &State) -> (Vec<&'static str>, Vec<&'static str>) {
    NAMES.iter().copied().partition(|name| state.has(name))
}

fn pick(names: &[&'static str], rng: &mut SmallRng) -> Option<&'static str> {
    (!names.is_empty()).then(|| names[rng.random_range(0..names.len())])
}

/// Chooses operations that move blocks.
struct Moves {
    /// Disks that there are, and those that are tiers.
    disks: usize,
    tiers: usize,
    /// The operation that must come next.
    next: Option<Op>,
}

impl Moves {
    /// One operation in six moves something, as soon as there is something.
    fn choose(&mut self, state: &State, rng: &mut SmallRng) -> Option<Op> {
        if self.next.is_some() {
            return self.next.take();
        }
        if rng.random_range(0..6) > 0 {
            return None;
        }
        if self.tiers == 0 || self.tiers < self.disks && one_of_four(rng) {
            self.tiers += 1;
            return Some(Op::AddTier);
        }
        let (known, _) = names(state);
        let (one, other) = (pick(&known, rng)?, pick(&known, rng)?);
        let blocks = state.content(one).len().div_ceil(BLOCK) as u64 + 1;
        // All of it, or a part.
        let (start, count) = match rng.random_range(0..2) {
            0 => (0, blocks),
            _ => (rng.random_range(0..blocks), rng.random_range(1..=blocks)),
        };
        if self.tiers > 1 && one_of_four(rng) {
            return Some(if one_of_four(rng) { Op::Descend } else { Op::DemoteLast(one) });
        }
        Some(match rng.random_range(0..17) {
            0..5 => Op::Demote(one, start, count),
            5 => Op::DemoteBoth(one, other),
            6..11 => Op::Promote(one, start, count),
            11 => Op::Compact(one),
            // Only the log of a file moves that is there as a whole.
            12..15 => {
                self.next = Some(Op::MoveLog(one));
                Op::Demote(one, 0, blocks)
            }
            15 => Op::Trim,
            _ => {
                self.tiers -= 1;
                Op::RemoveTier
            }
        })
    }
}

/// An operation that can be done in this state; `is_large` when a write may be of more blocks.
fn choose(state: &State, is_large: bool, rng: &mut SmallRng) -> Op {
    let (known, free) = names(state);
    let Some(name) = pick(&known, rng) else { return file("a") };
    let other = |rng: &mut SmallRng| pick(&known, rng).filter(|other| !state.are_one(name, other));
    let chmod = Op::SetAttr(name, 0o600);
    let len = state.content(name).len();
    let size = |rng: &mut SmallRng| match rng.random_range(0..if is_large { 4 } else { 3 }) {
        0 => rng.random_range(1..200),
        1 => rng.random_range(1..3 * BLOCK),
        2 => BLOCK * rng.random_range(1..4),
        _ => rng.random_range(2 * BLOCK..7 * BLOCK),
    };
    let offset = match rng.random_range(0..3) {
        0 => rng.random_range(0..=len),
        1 => rng.random_range(0..8) * BLOCK,
        _ => rng.random_range(0..8 * BLOCK),
    } as u64;
    match rng.random_range(0..45) {
        0..16 => Op::Write(name, offset, size(rng)),
        16..18 => Op::WriteThrough(name, offset, size(rng)),
        18..23 => Op::Append(name, size(rng)),
        23..25 => Op::Truncate(name, rng.random_range(0..=len + BLOCK) as u64),
        25 => Op::Truncate(name, 0),
        26 => Op::Fallocate(name, FallocateMode::PunchHole, offset, size(rng) as u64),
        27 => Op::Fallocate(name, FallocateMode::ZeroRange, offset, size(rng) as u64),
        28..30 => other(rng).map_or(chmod, |to| Op::Rename(name, to, RenameMode::Replace)),
        30 => other(rng).map_or(chmod, |to| Op::Rename(name, to, RenameMode::Exchange)),
        31 => pick(&free, rng).map_or(chmod, |to| Op::Rename(name, to, RenameMode::NoReplace)),
        32 => pick(&free, rng).map_or(chmod, |to| Op::Link(name, to)),
        33 => Op::Unlink(name),
        34..37 => pick(&free, rng).map_or(Op::Sync(name), file),
        37..39 => Op::Close(name),
        39..43 => Op::Sync(name),
        43 => Op::SyncAll,
        _ => Op::Remount,
    }
}
