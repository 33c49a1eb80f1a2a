//! Shuttle's primitives in the shape of the shipped ones: locks without poison, guards that a condition variable
//! borrows.

use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};

pub use shuttle;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync;

/// Atomics.
pub mod atomic {
    pub use shuttle::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

    /// A fence. All orderings are the strongest one here.
    pub fn fence(_order: Ordering) {
        super::point();
    }
}

/// Hints.
pub mod hint {
    pub use shuttle::hint::spin_loop;
}

/// Threads.
pub mod thread {
    pub use shuttle::thread::{Builder, JoinHandle, sleep, yield_now};
}

/// A point where another thread may run.
pub fn point() {
    // Every access to an atomic is such a point. Outside an exploring test there is no other thread.
    if explored_thread().is_some() {
        atomic::AtomicBool::new(false).load(atomic::Ordering::SeqCst);
    }
}

/// The number of this thread.
pub fn explored_thread() -> Option<usize> {
    shuttle::current::try_get_current_task().map(usize::from)
}

/// A lock.
#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

/// The guard of a [`Mutex`]. It is present except while a condition variable waits with it.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    held: Option<sync::MutexGuard<'a, T>>,
    lock: &'a Mutex<T>,
}

impl<T> Mutex<T> {
    /// A free lock.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    /// Takes the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.guard(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn guard<'a>(&'a self, held: sync::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        MutexGuard { held: Some(held), lock: self }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(held) => Some(self.guard(held)),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.guard(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The value without locking, since the caller has the only reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value, without the lock.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_ref().expect("no condition variable waits with it")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect("no condition variable waits with it")
    }
}

/// A condition variable.
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

impl Condvar {
    /// A condition variable without waiters.
    pub const fn new() -> Condvar {
        Condvar(sync::Condvar::new())
    }

    /// Releases the lock, waits, and takes the lock again.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if let Some(held) = guard.held.take() {
            guard.held = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// As [`Condvar::wait`], or a timeout, at random. Without a timeout, a thread that is never notified waits for
    /// ever, so that a test finds code that relies on the time alone.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _time: std::time::Duration) {
        if thread_rng().gen_bool(0.5) {
            drop(guard.held.take());
            // Other threads run in that time.
            thread::yield_now();
            *guard = guard.lock.lock();
        } else {
            self.wait(guard);
        }
    }

    /// Wakes one thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A lock that readers share.
#[derive(Debug, Default)]
pub struct RwLock<T>(sync::RwLock<T>);

pub use shuttle::sync::{RwLockReadGuard, RwLockWriteGuard};

impl<T> RwLock<T> {
    /// A free lock.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock(sync::RwLock::new(value))
    }

    /// Takes the lock shared.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock exclusively.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock exclusively if it is free.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.0.try_write().ok()
    }
}

/// A value that is set once. No thread waits while it is made, because the initialiser takes no lock.
#[derive(Debug)]
pub struct OnceLock<T>(std::sync::OnceLock<T>);

impl<T> Default for OnceLock<T> {
    fn default() -> OnceLock<T> {
        OnceLock::new()
    }
}

impl<T> OnceLock<T> {
    /// An unset value.
    pub const fn new() -> OnceLock<T> {
        OnceLock(std::sync::OnceLock::new())
    }

    /// The value if it is set.
    pub fn get(&self) -> Option<&T> {
        point();
        self.0.get()
    }

    /// Sets the value; an error with the new value if it is set already.
    pub fn set(&self, value: T) -> Result<(), T> {
        point();
        self.0.set(value)
    }

    /// The value, made if it is not set.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        point();
        self.0.get_or_init(make)
    }
}
