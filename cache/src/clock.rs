//! The clock that measures ages.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since any start, never going back.
#[derive(Debug, Clone, Default)]
pub enum Clock {
    /// The kernel's coarse clock, at the resolution of its tick, which costs no system call.
    #[default]
    Real,
    /// A time that a test sets.
    Set(Arc<AtomicU64>),
}

impl Clock {
    pub(crate) fn now_ms(&self) -> u64 {
        match self {
            Clock::Real => {
                let time = clock_gettime(ClockId::MonotonicCoarse);
                time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
            }
            Clock::Set(ms) => ms.load(Ordering::Relaxed),
        }
    }
}
