//! Inodes that are locked together for a change: in the order of their numbers, so that no two operations wait for each
//! other.

use std::sync::Arc;

use nacre_engine::sync::{RwLock, RwLockWriteGuard};
use nacre_engine::{Error, Kind, Result};
use smallvec::SmallVec;

/// An inode with a lock.
pub trait Lockable {
    /// The state that the lock guards.
    type Body;

    /// Its number.
    fn number(&self) -> u64;

    /// The lock.
    fn body(&self) -> &RwLock<Self::Body>;
}

/// Inodes that are locked for a change.
pub struct Locked<'a, I: Lockable> {
    list: SmallVec<[(u64, RwLockWriteGuard<'a, I::Body>); 4]>,
}

/// Locks inodes in the order of their numbers, each once.
pub fn lock_all<'a, I: Lockable>(inodes: &[&'a Arc<I>]) -> Locked<'a, I> {
    let mut order: SmallVec<[&'a Arc<I>; 4]> = SmallVec::from_slice(inodes);
    order.sort_unstable_by_key(|inode| inode.number());
    order.dedup_by_key(|inode| inode.number());
    Locked { list: order.into_iter().map(|inode| (inode.number(), inode.body().write())).collect() }
}

/// Locks inodes as they are given, each once: a mistake that layouts make on purpose, by which two operations may wait
/// for each other.
pub fn lock_as_given<'a, I: Lockable>(inodes: &[&'a Arc<I>]) -> Locked<'a, I> {
    let mut list: SmallVec<[(u64, RwLockWriteGuard<'a, I::Body>); 4]> = SmallVec::new();
    for inode in inodes {
        if list.iter().all(|(number, _)| *number != inode.number()) {
            list.push((inode.number(), inode.body().write()));
        }
    }
    Locked { list }
}

impl<I: Lockable> Locked<'_, I> {
    /// The state of one of them.
    pub fn body(&mut self, inode: &I) -> Result<&mut I::Body> {
        let found = self.list.iter_mut().find(|(number, _)| *number == inode.number());
        found.map(|(_, body)| &mut **body).ok_or(Error::new(Kind::InvalidInput))
    }
}
