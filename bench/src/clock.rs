//! The time-stamp counter, and the length of its ticks.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The counter now. It runs at one rate on all cores (constant_tsc), which kernels of the last fifteen years check.
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this architecture has the instruction; it reads a counter and accesses no data.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// Nanoseconds of one tick, measured once.
pub fn nanos_per_tick() -> f64 {
    static RATE: OnceLock<f64> = OnceLock::new();
    *RATE.get_or_init(|| {
        let (begin, from) = (Instant::now(), ticks());
        while begin.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let (time, passed) = (begin.elapsed(), ticks().wrapping_sub(from));
        time.as_nanos() as f64 / passed.max(1) as f64
    })
}

/// Ticks of a duration.
pub fn in_ticks(time: Duration) -> u64 {
    (time.as_nanos() as f64 / nanos_per_tick()) as u64
}
