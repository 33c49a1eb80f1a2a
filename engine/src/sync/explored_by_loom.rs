//! Loom's primitives in the shape of the shipped ones, with orderings that a test can weaken.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};

use loom::sync;

/// An ordering that [`fails_without`] weakens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weakening {
    /// Loads that acquire are relaxed.
    AcquireLoads,
    /// Stores that release are relaxed.
    ReleaseStores,
    /// Read-modify-write operations are relaxed.
    Updates,
    /// Fences that acquire do nothing.
    AcquireFences,
    /// Fences that release do nothing.
    ReleaseFences,
}

// Loom runs all threads of a model on one thread of the machine.
thread_local!(static WEAKENED: Cell<Option<Weakening>> = const { Cell::new(None) });

/// Explores all interleavings of a model in which a thread is interrupted at most `preemptions` times, with all values
/// that its loads may see.
pub fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Whether a model fails without one kind of ordering.
pub fn fails_without(weakening: Weakening, model: fn()) -> bool {
    struct Restore;
    impl Drop for Restore {
        fn drop(&mut self) {
            WEAKENED.set(None);
        }
    }
    WEAKENED.set(Some(weakening));
    let _restore = Restore;
    std::panic::catch_unwind(model).is_err()
}

fn lacks(weakening: Weakening) -> bool {
    WEAKENED.get() == Some(weakening)
}

/// Atomics.
pub mod atomic {
    pub use std::sync::atomic::Ordering;

    use loom::sync::atomic;

    use super::{Weakening, lacks};

    /// A fence.
    pub fn fence(order: Ordering) {
        let weakened = match order {
            Ordering::Acquire => lacks(Weakening::AcquireFences),
            Ordering::Release => lacks(Weakening::ReleaseFences),
            _ => false,
        };
        if !weakened {
            atomic::fence(order);
        }
    }

    fn load_order(order: Ordering) -> Ordering {
        if lacks(Weakening::AcquireLoads) { Ordering::Relaxed } else { order }
    }

    fn store_order(order: Ordering) -> Ordering {
        if lacks(Weakening::ReleaseStores) { Ordering::Relaxed } else { order }
    }

    fn update_order(order: Ordering) -> Ordering {
        if lacks(Weakening::Updates) { Ordering::Relaxed } else { order }
    }

    macro_rules! atomic {
        ($name:ident, $value:ty, { $($more:tt)* }) => {
            /// An atomic value with orderings that a test can weaken.
            #[derive(Debug)]
            pub struct $name(atomic::$name);

            impl Default for $name {
                fn default() -> $name {
                    $name::new(<$value>::default())
                }
            }

            impl $name {
                /// An atomic with this value.
                pub fn new(value: $value) -> $name {
                    $name(atomic::$name::new(value))
                }

                /// The value.
                pub fn load(&self, order: Ordering) -> $value {
                    self.0.load(load_order(order))
                }

                /// Sets the value.
                pub fn store(&self, value: $value, order: Ordering) {
                    self.0.store(value, store_order(order));
                }

                /// Sets the value and returns the old one.
                pub fn swap(&self, value: $value, order: Ordering) -> $value {
                    self.0.swap(value, update_order(order))
                }

                /// Sets the value if it is `old`.
                pub fn compare_exchange_weak(
                    &self,
                    old: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    self.0.compare_exchange_weak(old, new, update_order(success), load_order(failure))
                }

                /// Sets the value to the result of `change`, if any.
                pub fn fetch_update(
                    &self,
                    success: Ordering,
                    failure: Ordering,
                    change: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    self.0.fetch_update(update_order(success), load_order(failure), change)
                }

                $($more)*
            }
        };
    }

    macro_rules! number {
        ($name:ident, $value:ty) => {
            atomic!($name, $value, {
                /// Adds and returns the old value, as the next operations do.
                pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                    self.0.fetch_add(value, update_order(order))
                }

                /// Subtracts.
                pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                    self.0.fetch_sub(value, update_order(order))
                }

                /// Sets bits.
                pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                    self.0.fetch_or(value, update_order(order))
                }

                /// Keeps the greater value.
                pub fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                    self.0.fetch_max(value, update_order(order))
                }

                /// Keeps the given bits.
                pub fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                    self.0.fetch_and(value, update_order(order))
                }
            });
        };
    }

    atomic!(AtomicBool, bool, {});
    number!(AtomicU32, u32);
    number!(AtomicU64, u64);
    number!(AtomicI64, i64);
    number!(AtomicUsize, usize);
}

/// Hints.
pub mod hint {
    pub use loom::hint::spin_loop;
}

/// Threads.
pub mod thread {
    pub use loom::thread::{Builder, JoinHandle, spawn, yield_now};

    /// Yields, because time stands still in a model.
    pub fn sleep(_time: std::time::Duration) {
        yield_now();
    }
}

/// A point where another thread may run. Loom tries that at its own primitives only.
pub fn point() {}

/// Threads of a model have no numbers of their own.
pub fn explored_thread() -> Option<usize> {
    Some(0)
}

/// A lock.
#[derive(Debug)]
pub struct Mutex<T>(sync::Mutex<T>);

/// The guard of a [`Mutex`]. It is present except while a condition variable waits with it.
#[derive(Debug)]
pub struct MutexGuard<'a, T>(Option<sync::MutexGuard<'a, T>>);

pub use loom::sync::{RwLockReadGuard, RwLockWriteGuard};

impl<T> Mutex<T> {
    /// A free lock.
    pub fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    /// Takes the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(MutexGuard(Some(guard))),
            Err(TryLockError::Poisoned(poisoned)) => Some(MutexGuard(Some(poisoned.into_inner()))),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("no condition variable waits with it")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("no condition variable waits with it")
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Mutex<T> {
        Mutex::new(T::default())
    }
}

/// A condition variable.
#[derive(Debug)]
pub struct Condvar(sync::Condvar);

impl Default for Condvar {
    fn default() -> Condvar {
        Condvar(sync::Condvar::new())
    }
}

impl Condvar {
    /// Releases the lock, waits, and takes the lock again.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if let Some(held) = guard.0.take() {
            guard.0 = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// As [`Condvar::wait`], because time does not pass in a model.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _time: std::time::Duration) {
        self.wait(guard);
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
#[derive(Debug)]
pub struct RwLock<T>(sync::RwLock<T>);

impl<T> RwLock<T> {
    /// A free lock.
    pub fn new(value: T) -> RwLock<T> {
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

impl<T: Default> Default for RwLock<T> {
    fn default() -> RwLock<T> {
        RwLock::new(T::default())
    }
}

/// A value that is set once. A reader that sees it set has acquired the writes that made it.
#[derive(Debug)]
pub struct OnceLock<T> {
    is_set: sync::atomic::AtomicBool,
    making: sync::Mutex<()>,
    value: std::sync::OnceLock<T>,
}

impl<T> Default for OnceLock<T> {
    fn default() -> OnceLock<T> {
        OnceLock::new()
    }
}

impl<T> OnceLock<T> {
    /// An unset value.
    pub fn new() -> OnceLock<T> {
        OnceLock {
            is_set: sync::atomic::AtomicBool::new(false),
            making: sync::Mutex::new(()),
            value: std::sync::OnceLock::new(),
        }
    }

    /// The value if it is set.
    pub fn get(&self) -> Option<&T> {
        if self.is_set.load(atomic::Ordering::Acquire) { self.value.get() } else { None }
    }

    /// Sets the value; an error with the new value if it is set already.
    pub fn set(&self, value: T) -> Result<(), T> {
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let result = self.value.set(value);
        self.is_set.store(true, atomic::Ordering::Release);
        result
    }

    /// The value, made if it is not set.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if self.get().is_none() {
            let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
            if self.value.get().is_none() {
                let _ = self.value.set(make());
            }
            self.is_set.store(true, atomic::Ordering::Release);
        }
        self.value.get().expect("it was just set")
    }
}
