//! Eviction of unused inodes from DRAM: their state is dropped, and read from media when it is asked for.
//!
//! That happens on the last release of an inode that is not expected back soon ([`Shared::let_go`]), and beyond a limit
//! ([`Shared::sweep`]), by second chance: an inode that was used since the last sweep stays.
//!
//! **Candidates.** Only an inode that is in its shard and nowhere else can go: the shard is locked, and the inode's
//! count of references is one. A reference is made from the shard or from another reference. So none is made meanwhile,
//! and the inode's own lock is free. So atime, which is all that is kept lazily, is written under the lock of the
//! shard. An inode that cannot be written stays. So does one without names, to which nothing leads. After a failed
//! commit all of them stay, because the state in place may be undone.

use std::sync::Arc;

use nacre_engine::sync::atomic::Ordering;
use nacre_media::Pm;

use crate::fs::Shared;
use crate::inode::{Inode, Node};
use crate::table::{Loaded, SHARDS};

/// A shard with room for fewer inodes keeps it.
const SPARSE: usize = 64;

impl<P: Pm> Shared<P> {
    /// One more inode was made.
    #[inline]
    pub(crate) fn note_made(&self) {
        if self.table.eviction.one_made(self.table.in_use()) {
            self.sweep();
        }
    }

    /// Lets go of an inode that is not expected to be asked for soon.
    pub(crate) fn let_go(&self, node: Node) {
        let number = node.inode.number;
        drop(node);
        self.evict(number);
    }

    fn evict(&self, number: u64) {
        let mut shard = self.table.shard(number).write();
        let can_go =
            shard.inodes.get_mut(&number).and_then(Arc::get_mut).is_some_and(|inode| self.can_go(inode));
        let gone = if can_go { shard.inodes.remove(&number) } else { None };
        shard.shrink();
        drop(shard);
        if let Some(gone) = gone {
            self.drop_state(gone);
        }
    }

    fn drop_state(&self, inode: Arc<Inode>) {
        let bytes = inode.bytes();
        self.table.eviction.one_left();
        drop(inode);
        self.table.eviction.freed(bytes, self.table.in_use());
    }

    /// Whether media has all the state of an inode that no other thread has, and the inode can be found by a name.
    /// Writes lazily kept values.
    fn can_go(&self, inode: &mut Inode) -> bool {
        let is_free = inode.holds.load(Ordering::Acquire) == 0 && inode.pins.load(Ordering::Acquire) == 0;
        if !is_free || inode.links() == 0 || self.is_broken() {
            return false;
        }
        let is_written = self.persist_lazy(inode).is_ok() && !inode.lazy.load(Ordering::Acquire);
        if is_written {
            self.table.dropped_changes.fetch_max(inode.change.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        is_written
    }

    /// Lets go of a node and keeps its inode.
    pub(crate) fn park(&self, node: Node) {
        let number = node.inode.number;
        self.table.shard(number).write().parked.insert(number);
    }

    /// Ends that. One without holders goes: for good without names, else from DRAM.
    pub(crate) fn unpark(&self, number: u64) {
        let is_gone = {
            let mut shard = self.table.shard(number).write();
            shard.parked.remove(&number);
            shard.inodes.get(&number).is_some_and(|inode| inode.links() == 0)
        };
        // Both look under the lock whether it is held.
        if is_gone { self.graveyard.bury(number) } else { self.evict(number) }
    }

    /// Brings the number of inodes in DRAM below the limit, as far as they are not held. Locks nothing but a shard at a
    /// time, so that the caller may hold inodes and their locks.
    pub(crate) fn sweep(&self) {
        let eviction = &self.table.eviction;
        let Some(mut hand) = eviction.hand.try_lock() else { return };
        // Again where other threads loaded as many meanwhile.
        while self.sweep_shards(&mut hand) {}
    }

    /// Goes through the shards. True when that is to be done again.
    fn sweep_shards(&self, hand: &mut u64) -> bool {
        let eviction = &self.table.eviction;
        let mut went = 0;
        // In the first round those are found that were not used, in the second all.
        for _ in 0..2 * SHARDS as u64 {
            if !eviction.is_beyond_target(self.table.in_use()) {
                break;
            }
            *hand = (*hand + 1) % SHARDS as u64;
            let mut gone = Vec::new();
            let mut shard = self.table.shard(*hand).write();
            shard.inodes.retain(|_, inode| {
                let is_held = inode.holds.load(Ordering::Acquire) > 0;
                let was_used = !is_held && inode.used.swap(false, Ordering::Relaxed);
                let stays =
                    is_held || was_used || !Arc::get_mut(inode).is_some_and(|inode| self.can_go(inode));
                if !stays {
                    gone.push(Arc::clone(inode));
                }
                stays
            });
            shard.shrink();
            drop(shard);
            went += gone.len() as u64;
            gone.into_iter().for_each(|inode| self.drop_state(inode));
        }
        eviction.swept(self.table.in_use(), went)
    }
}

impl Loaded {
    /// Gives room back that most of the inodes left.
    fn shrink(&mut self) {
        let Loaded { inodes, parked } = self;
        if inodes.capacity() > SPARSE && inodes.len() < inodes.capacity() / 8 {
            inodes.shrink_to(2 * inodes.len());
        }
        if parked.capacity() > SPARSE && parked.len() < parked.capacity() / 8 {
            parked.shrink_to(2 * parked.len());
        }
    }
}
