//! A scrub of a mount, as the mount reports it. A field that an older mount does not report is zero.

use serde::{Deserialize, Serialize};

/// The progress and the findings of a scrub.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScrubInfo {
    /// `never`, `running`, `finished` or `stopped`.
    pub state: String,
    /// Bytes that were read.
    pub bytes: u64,
    /// Bytes to read in all.
    pub total: u64,
    /// Inodes whose metadata were read.
    pub inodes: u64,
    /// Damaged places: path and range, if one is in a file. Only the first ones, as many as fit a message of the
    /// kernel.
    pub findings: Vec<String>,
    /// How many more there are.
    pub more_findings: u64,
    /// Media errors in blocks that were retired, and told of, before this scrub: as many as the rest of the message holds.
    pub known: Vec<String>,
    /// How many more there are of them.
    pub more_known: u64,
    /// How much of it was repaired.
    pub repaired: u64,
    /// Blocks that are never allocated again.
    pub bad_blocks: u64,
    /// How far it is on each tier; none before their turn comes.
    pub tiers: Vec<TierScrubInfo>,
    /// The limits of the scrub, in words.
    pub not_checked: Vec<String>,
}

/// How far a scrub is on a tier.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TierScrubInfo {
    /// Its number.
    pub tier: u8,
    /// Bytes of files that were read.
    pub bytes: u64,
    /// Bytes that were in use on it when the scrub began.
    pub used: u64,
    /// Why it was not read, or not to the end.
    pub unread: Option<String>,
}
