//! Limits of work that can be interrupted: a background pass, a drain, a trim, an order.

use std::time::Instant;

use nacre_engine::BLOCK_SIZE;
use nacre_engine::sync::atomic::{AtomicI64, Ordering};

/// How long work goes on, and how much it moves. By default there is no limit. Work asks between steps, so that it ends
/// some time after the limit; all that it has done by then stays done.
#[derive(Clone, Copy, Default)]
pub struct Budget<'b> {
    deadline: Option<Instant>,
    /// Bytes that may still move; less than none after a step that was larger.
    bytes: Option<&'b AtomicI64>,
    cancel: Option<&'b dyn Fn() -> bool>,
}

impl<'b> Budget<'b> {
    /// Work until a time.
    pub fn until(deadline: Instant) -> Budget<'b> {
        Budget { deadline: Some(deadline), ..Budget::default() }
    }

    /// The same budget, which also ends as soon as `cancel` returns true.
    #[must_use]
    pub fn unless(self, cancel: &'b dyn Fn() -> bool) -> Budget<'b> {
        Budget { cancel: Some(cancel), ..self }
    }

    /// Work that moves at most so many bytes, and ends where another budget does.
    pub(crate) fn within(outer: &'b dyn Fn() -> bool, bytes: &'b AtomicI64) -> Budget<'b> {
        Budget { deadline: None, bytes: Some(bytes), cancel: Some(outer) }
    }

    /// Whether time is left, and the work is not cancelled.
    pub fn goes_on(&self) -> bool {
        self.deadline.is_none_or(|deadline| Instant::now() < deadline)
            && !self.cancel.is_some_and(|cancel| cancel())
    }

    /// Blocks that may still move, the last of which may exceed the limit.
    pub(crate) fn blocks(&self) -> u64 {
        let left = |bytes: &AtomicI64| bytes.load(Ordering::Relaxed).max(0).unsigned_abs();
        self.bytes.map_or(u64::MAX, |bytes| left(bytes).div_ceil(BLOCK_SIZE))
    }

    /// So many blocks have moved.
    pub(crate) fn spend(&self, blocks: u64) {
        if let Some(bytes) = self.bytes {
            let left = bytes.load(Ordering::Relaxed).saturating_sub_unsigned(blocks * BLOCK_SIZE);
            bytes.store(left, Ordering::Relaxed);
        }
    }
}
