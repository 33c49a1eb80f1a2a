//! Samples that foreground operations leave. An operation leaves a sample if there is room for it and the buffer is not
//! locked at that moment; it never waits. Times are those of the operations, in milliseconds since 1970.

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use nacre_engine::{InodeId, Timestamp};
use nacre_media::thread_number;
use nacre_policy::migration::{Access, AccessKind};
use nacre_policy::thresholds::Recent;

/// Samples that wait, at most.
const MAX_SAMPLES: usize = 4096;

/// The counters of some threads: on their own cache lines, so that other threads do not wait for them.
#[derive(Default)]
#[repr(align(128))]
struct Counts {
    read: AtomicU64,
    read_below: AtomicU64,
    written: AtomicU64,
    lost: AtomicU64,
}

/// So many; a thread has its own while there are no more of them.
const COUNTS: usize = 16;

/// Where samples wait.
#[derive(Default)]
pub(crate) struct SampleBuffer {
    samples: Mutex<Vec<Access<InodeId>>>,
    /// There is no room for more.
    is_full: AtomicBool,
    counts: [Counts; COUNTS],
    /// About now, in milliseconds since 1970, for operations that bring no time.
    time_ms: AtomicU64,
    recent: Mutex<Recent>,
}

impl SampleBuffer {
    /// Sets the current time.
    pub(crate) fn set_time(&self, now_ms: u64) {
        self.time_ms.store(now_ms, Ordering::Relaxed);
        self.recent.lock().look(now_ms, self.traffic());
    }

    /// Bytes that were read from PM lately, and written to it.
    pub(crate) fn recent_traffic(&self) -> (u64, u64) {
        self.recent.lock().bytes(self.traffic())
    }

    /// The last time that was set.
    pub(crate) fn time_ms(&self) -> u64 {
        self.time_ms.load(Ordering::Relaxed)
    }

    fn own(&self) -> &Counts {
        &self.counts[thread_number() as usize % COUNTS]
    }

    fn sum(&self, of: fn(&Counts) -> &AtomicU64) -> u64 {
        self.counts.iter().map(|counts| of(counts).load(Ordering::Relaxed)).sum()
    }

    /// Counts bytes.
    pub(crate) fn count(&self, kind: AccessKind, bytes: u64) {
        let own = self.own();
        let sum = match kind {
            AccessKind::Written => &own.written,
            AccessKind::Read => &own.read,
            AccessKind::ReadBelow => &own.read_below,
        };
        sum.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Leaves a sample, if there is room; else it is not even made.
    pub(crate) fn note(&self, sample: impl FnOnce() -> Option<Access<InodeId>>) {
        if self.is_full.load(Ordering::Relaxed) {
            self.own().lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let Some(sample) = sample() else { return };
        match self.samples.try_lock() {
            Some(mut samples) if samples.len() < MAX_SAMPLES => {
                samples.push(sample);
                self.is_full.store(samples.len() == MAX_SAMPLES, Ordering::Relaxed);
            }
            _ => {
                self.own().lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn take(&self) -> Vec<Access<InodeId>> {
        let mut samples = self.samples.lock();
        self.is_full.store(false, Ordering::Relaxed);
        std::mem::take(&mut *samples)
    }

    /// Whether no samples were left since they were taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Samples that wait.
    pub(crate) fn len(&self) -> usize {
        self.samples.lock().len()
    }

    /// Samples for which there was no room.
    pub(crate) fn lost(&self) -> u64 {
        self.sum(|counts| &counts.lost)
    }

    /// Bytes that were read from PM, and from tiers.
    pub(crate) fn reads(&self) -> (u64, u64) {
        (self.sum(|counts| &counts.read), self.sum(|counts| &counts.read_below))
    }

    /// Bytes that were read from PM, and written to it.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        (self.sum(|counts| &counts.read), self.sum(|counts| &counts.written))
    }
}

/// Milliseconds since 1970; what is before that is at its start.
pub(crate) fn millis(time: Timestamp) -> u64 {
    u64::try_from(time.secs)
        .unwrap_or(0)
        .saturating_mul(1000)
        .saturating_add(u64::from(time.nanos) / 1_000_000)
}
