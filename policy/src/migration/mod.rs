//! Migration policies: accesses go in, and a choice of what moves next comes out. An executor carries it out.
//!
//! | file | policy |
//! | --- | --- |
//! | [`tpfs`] | between PM, DRAM and tiers: cold data down, read-hot data to the place that is to serve it (paper 002, section 5) |
//! | [`anticache`] | between PM and a disk: the blocks that were not used for longest, as far as PM holds more than a threshold (paper 004) |
//! | [`rebalance`] | between tiers: cold files from one that is nearly full to slower ones |
//! | [`heat`] | the temperatures of files, which both choose by |
//!
//! A policy knows only files that it was told of. If it needs to know more of them, it chooses a [scan](Choice::Scan).

pub mod anticache;
pub mod heat;
pub mod rebalance;
pub mod tpfs;

use crate::placement::Rules;
use crate::temperature::Span;

/// Milliseconds between two scans of background passes. Under load some sample is always lost, and the space is not
/// needed at once.
pub const PAUSE_MS: u64 = 30_000;

/// The kind of an access to blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessKind {
    /// They were written to PM.
    Written,
    /// They were read from there.
    Read,
    /// They were read from a tier, or from DRAM before it.
    ReadBelow,
}

/// One access to blocks of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access<F> {
    /// The file.
    pub file: F,
    /// The kind of the access.
    pub kind: AccessKind,
    /// The first block.
    pub start: u64,
    /// How many blocks.
    pub blocks: u64,
    /// The size of the file in blocks, as far as the operation knows it.
    pub size: u64,
    /// When the file was modified, in milliseconds.
    pub modified_ms: u64,
    /// When the access was, in milliseconds.
    pub at_ms: u64,
}

/// The parts of a file that move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen<F> {
    /// The file.
    pub file: F,
    /// Its parts, in order.
    pub spans: Vec<Span>,
}

/// The need for which blocks are to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// A place is used above its threshold. Its space is not needed at once.
    Threshold,
    /// A write waits for the space.
    Reclaim,
    /// Reads are to be served from another place.
    Reads,
}

/// The use of the places between which blocks move, as far as a choice depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The need.
    pub need: Need,
    /// The time, in milliseconds.
    pub now_ms: u64,
    /// The rules of the predictors.
    pub rules: Rules,
}

/// A choice of what moves next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice<F> {
    /// These blocks go to the next slower place.
    Demote(Chosen<F>),
    /// These blocks go from PM to a tier and into DRAM, which serves them from then on.
    ToDram(Chosen<F>),
    /// These blocks go to PM.
    Promote(Chosen<F>),
    /// More files must be known first: a scan begins, or goes on by a step.
    Scan,
    /// Nothing moves.
    Nothing,
}

/// A policy of migration.
pub trait Migration<F> {
    /// Takes in an access.
    fn observe(&mut self, access: &Access<F>);

    /// Chooses what moves next for a need. The choice is taken out: the next call chooses something else.
    fn choose(&mut self, usage: &Usage) -> Choice<F>;
}
