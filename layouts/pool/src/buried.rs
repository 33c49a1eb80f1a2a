//! Inodes that an operation is to free before its own work.

use nacre_engine::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use nacre_engine::sync::{Mutex, RwLock};

/// Inodes without names or holders that are to be freed.
#[derive(Default)]
pub(crate) struct Buried {
    numbers: Mutex<Vec<u64>>,
    pub(crate) some: AtomicBool,
    /// Shared by threads that free inodes, so that an operation without space can wait for them.
    pub(crate) freeing: RwLock<()>,
    /// The number of inodes that were freed.
    pub(crate) freed: AtomicU64,
}

impl Buried {
    /// An inode is to be freed.
    pub(crate) fn add(&self, number: u64) {
        self.numbers.lock().push(number);
        self.some.store(true, Ordering::Release);
    }

    /// The number of inodes that were freed since the mount.
    pub(crate) fn freed(&self) -> u64 {
        self.freed.load(Ordering::Acquire)
    }

    /// Takes some, to free them.
    pub(crate) fn take(&self, count: usize) -> Vec<u64> {
        let mut numbers = self.numbers.lock();
        let left = numbers.len().saturating_sub(count);
        let taken = numbers.split_off(left);
        self.some.store(left > 0, Ordering::Release);
        if left == 0 {
            *numbers = Vec::new();
        }
        taken
    }
}
