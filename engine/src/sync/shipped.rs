//! The primitives that ship.

pub use std::sync::OnceLock;

pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Atomics, as in `std`.
pub mod atomic {
    pub use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
}

/// Hints, as in `std`.
pub mod hint {
    pub use std::hint::spin_loop;
}

/// Threads, as in `std`.
pub mod thread {
    pub use std::thread::{Builder, JoinHandle, sleep, yield_now};
}

/// A point where another thread may run. It does nothing where threads are real.
#[inline(always)]
pub fn point() {}

/// The number of this thread in an explorer, the same in each run of a schedule. `None` here.
#[inline(always)]
pub fn explored_thread() -> Option<usize> {
    None
}
