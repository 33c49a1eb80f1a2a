//! Holds of inodes: an inode that a caller has stays, with names and without.

use std::fmt;
use std::sync::Arc;

use nacre_engine::InodeId;
use nacre_engine::sync::atomic::{AtomicU32, Ordering};

/// An inode in DRAM with a count of its holds.
pub trait Holdable {
    /// Its name for machines.
    fn id(&self) -> InodeId;

    /// How many have it.
    fn holds(&self) -> &AtomicU32;

    /// The last hold was given up. Without names the inode is to be reclaimed.
    fn is_let_go(&self);
}

/// An inode that a caller holds.
pub struct Held<I: Holdable> {
    /// The inode.
    pub inode: Arc<I>,
    /// The hold was given up already.
    gone: bool,
}

impl<I: Holdable> Held<I> {
    /// Takes over one hold that was counted already.
    pub fn from_held(inode: Arc<I>) -> Held<I> {
        Held { inode, gone: false }
    }

    /// Drops the node without giving up its hold: that was done already.
    pub fn forget_hold(mut self) {
        self.gone = true;
    }
}

impl<I: Holdable> fmt::Debug for Held<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InodeId { number, generation, .. } = self.inode.id();
        write!(f, "Node({number}/{generation})")
    }
}

impl<I: Holdable> Clone for Held<I> {
    fn clone(&self) -> Held<I> {
        self.inode.holds().fetch_add(1, Ordering::Relaxed);
        Held { inode: Arc::clone(&self.inode), gone: false }
    }
}

impl<I: Holdable> Drop for Held<I> {
    fn drop(&mut self) {
        if !self.gone && self.inode.holds().fetch_sub(1, Ordering::AcqRel) == 1 {
            self.inode.is_let_go();
        }
    }
}
