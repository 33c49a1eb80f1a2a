//! The tiers of a mount, as it reports them. A field that an older mount does not report is zero.

use serde::{Deserialize, Serialize};

/// The tiers of a mount.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TiersInfo {
    /// In the order of their numbers.
    pub tiers: Vec<TierInfo>,
}

/// A tier of a file system.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TierInfo {
    /// Its number; 1 is the first that was added.
    pub number: u8,
    /// Its name for machines.
    pub uuid: String,
    /// Bytes that files can have on it.
    pub size: u64,
    /// Bytes of them that are free.
    pub free: u64,
    /// Bytes of removed files that are in use until the next mount: their extent maps could not be read.
    pub leaked: u64,
    /// Smaller is faster.
    pub rank: u8,
    /// Its blocks are on their way elsewhere.
    pub draining: bool,
    /// Its device, when it is there.
    pub device: Option<String>,
    /// Why it is not there.
    pub missing: Option<String>,
    /// Operations of the device that failed since it was opened.
    pub errors: u64,
    /// Why it does not take writes, or cannot be read, since one failed and until one succeeds again: blocks go
    /// elsewhere, if they can.
    pub failing: Option<String>,
    /// How its device makes transfers: `registered_buffers` or `io_uring` where the kernel offers it, else
    /// `system_calls`; none until that is known.
    pub io: Option<String>,
    /// Its reads and writes since the file system was opened.
    #[serde(flatten)]
    pub traffic: TrafficInfo,
}

impl TierInfo {
    /// Bytes of files.
    pub fn used(&self) -> u64 {
        self.size.saturating_sub(self.free)
    }

    /// New blocks can be placed on it.
    pub fn is_in_use(&self) -> bool {
        self.missing.is_none() && self.failing.is_none() && !self.draining
    }
}

/// Accesses of a tier's device since the file system was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrafficInfo {
    /// Reads, of however many blocks.
    pub reads: u64,
    /// Bytes that they read.
    pub read: u64,
    /// Writes, of however many blocks.
    pub writes: u64,
    /// Bytes that they wrote.
    pub written: u64,
}
