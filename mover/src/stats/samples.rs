//! Samples that foreground operations leave. An operation leaves a sample if there is room for it and the buffer is not
//! locked at that moment; it never waits. Times are those of the operations, in milliseconds since 1970.

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use nacre_engine::{InodeId, Timestamp};
use nacre_media::thread_number;
use nacre_policy::migration::{Access, AccessKind};
use nacre_policy::temperature::Span;
use nacre_policy::thresholds::Recent;

/// Samples that wait, at most.
const MAX_SAMPLES: usize = 4096;

/// Blocks of a sample to which others are added, at most.
const MAX_RUN: u64 = 256;

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

    /// Adds blocks to the last sample, if they are of the same file and go on where it ends, or in its last block.
    pub(crate) fn goes_on(&self, file: InodeId, kind: AccessKind, blocks: Span) -> bool {
        let Some(mut samples) = self.samples.try_lock() else { return false };
        let Some(last) = samples.last_mut() else { return false };
        let end = last.start + last.blocks;
        let goes_on = blocks.start == end || blocks.start + 1 == end;
        if (last.file, last.kind) != (file, kind) || !goes_on || last.blocks > MAX_RUN {
            return false;
        }
        last.blocks = (blocks.start + blocks.len).max(end) - last.start;
        last.size = last.size.max(last.start + last.blocks);
        true
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

#[cfg(test)]
mod tests {
    use nacre_engine::InodeId;
    use nacre_policy::migration::{Access, AccessKind};
    use nacre_policy::temperature::Span;

    use super::{MAX_RUN, SampleBuffer};

    fn file(number: u64) -> InodeId {
        InodeId { number, generation: 1, volume: 0 }
    }

    /// Leaves accesses of a kind to a file, and gives what waits then, as starts and lengths.
    fn left(accesses: &[(u64, AccessKind, u64, u64)]) -> Vec<(u64, u64)> {
        let buffer = SampleBuffer::default();
        for &(number, kind, start, blocks) in accesses {
            if !buffer.goes_on(file(number), kind, Span { start, len: blocks }) {
                let (size, file) = (start + blocks, file(number));
                buffer.note(|| Some(Access { file, kind, start, blocks, size, modified_ms: 0, at_ms: 0 }));
            }
        }
        let samples = buffer.take();
        assert!(samples.iter().all(|sample| sample.size >= sample.start + sample.blocks));
        samples.iter().map(|sample| (sample.start, sample.blocks)).collect()
    }

    #[test]
    fn what_goes_on_is_one_sample() {
        use AccessKind::{Read, Written};
        assert_eq!(left(&[(1, Written, 0, 1), (1, Written, 0, 1), (1, Written, 1, 2)]), [(0, 3)]);
        assert_eq!(left(&[(1, Written, 5, 3), (1, Written, 5, 1)]), [(5, 3), (5, 1)], "used again");
        assert_eq!(left(&[(1, Written, 0, 1), (2, Written, 1, 1)]), [(0, 1), (1, 1)], "another file");
        assert_eq!(left(&[(1, Written, 0, 1), (1, Read, 1, 1)]), [(0, 1), (1, 1)], "another kind");
        let run: Vec<_> = (0..2 * MAX_RUN).map(|block| (1, Read, block, 1)).collect();
        assert!(left(&run).len() > 1, "a long run is several");
    }
}
