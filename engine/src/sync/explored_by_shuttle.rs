//! Shuttle's primitives in the shape of those that ship: locks without poison, guards that a condition variable borrows.

use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};

pub use shuttle;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync;

/// Atomics.
pub mod atomic {
    pub use shuttle::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

    /// All orders are the strongest one here.
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

/// Another thread may go on here.
pub fn point() {
    // Every access to an atomic is such a point. Outside of a test that explores there is no other thread.
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

/// The right to use what a [`Mutex`] guards. It is there except while a condition variable waits with it.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    held: Option<sync::MutexGuard<'a, T>>,
    lock: &'a Mutex<T>,
}

impl<T> Mutex<T> {
    /// An open lock.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    /// Takes it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.guard(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn guard<'a>(&'a self, held: sync::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        MutexGuard { held: Some(held), lock: self }
    }

    /// Takes it if it is open.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(held) => Some(self.guard(held)),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.guard(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The value without the lock, which nobody else has.
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
    /// One that nobody waits for.
    pub const fn new() -> Condvar {
        Condvar(sync::Condvar::new())
    }

    /// Opens the lock, waits, and takes the lock again.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if let Some(held) = guard.held.take() {
            guard.held = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// As [`Condvar::wait`], or nobody calls within the time: what comes is drawn. A thread that nobody calls waits for
    /// ever otherwise, so that a test finds who relies on the time alone.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _time: std::time::Duration) {
        if thread_rng().gen_bool(0.5) {
            drop(guard.held.take());
            // Whatever others do in that time.
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

    /// Wakes all.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A lock that readers share.
#[derive(Debug, Default)]
pub struct RwLock<T>(sync::RwLock<T>);

pub use shuttle::sync::{RwLockReadGuard, RwLockWriteGuard};

impl<T> RwLock<T> {
    /// An open lock.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock(sync::RwLock::new(value))
    }

    /// Takes it shared.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes it alone.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes it alone, if nobody has it.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.0.try_write().ok()
    }
}

/// A value that is set once. Nobody waits while it is made: what makes one takes no lock.
#[derive(Debug)]
pub struct OnceLock<T>(std::sync::OnceLock<T>);

impl<T> Default for OnceLock<T> {
    fn default() -> OnceLock<T> {
        OnceLock::new()
    }
}

impl<T> OnceLock<T> {
    /// Not set.
    pub const fn new() -> OnceLock<T> {
        OnceLock(std::sync::OnceLock::new())
    }

    /// The value where it is set.
    pub fn get(&self) -> Option<&T> {
        point();
        self.0.get()
    }

    /// Sets it; gives the value back when it is set already.
    pub fn set(&self, value: T) -> Result<(), T> {
        point();
        self.0.set(value)
    }

    /// The value, made where it is not set.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        point();
        self.0.get_or_init(make)
    }
}
