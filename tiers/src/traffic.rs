//! Bytes and operations of reads and writes, by tier.

use nacre_engine::sync::atomic::{AtomicU64, Ordering};

/// Accesses of one device since the mount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierTraffic {
    /// Reads, of however many blocks.
    pub reads: u64,
    /// Bytes that they read.
    pub read_bytes: u64,
    /// Writes, of however many blocks.
    pub writes: u64,
    /// Bytes that they wrote.
    pub written_bytes: u64,
}

/// The same while it grows. A tier has its own, and they are beside an access of a disk.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Counts {
    pub(crate) fn read(&self, bytes: usize) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn wrote(&self, bytes: usize) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.written_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> TierTraffic {
        TierTraffic {
            reads: self.reads.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
        }
    }
}
