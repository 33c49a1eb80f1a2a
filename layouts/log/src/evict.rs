//! Eviction of unused inodes from DRAM: their state is dropped, and read from their logs when it is asked for.
//!
//! That happens on the last release of an inode that is not expected back soon ([`Shared::let_go`]), and beyond a limit
//! ([`Shared::sweep`]), by second chance: an inode that was used since the last sweep stays.
//!
//! **Candidates.** Only an inode that is in its slot and nowhere else can go: the slot is locked, and its count of
//! references is one. A reference is made from the slot or from another reference, so none is made meanwhile. A thread
//! that asks for the inode then waits for the slot, and reads the log. So no two states of one inode are ever in use.
//!
//! **Writes before eviction.** The lazily kept state (times, the cached links and parent) is written first, while the
//! inode is held and its slot is not locked. An inode that cannot be written stays. So does one without names (nothing
//! leads to it), with blocks to be freed, or with a log that a failed write has left behind.
//!
//! The bits of an evicted inode stay in its chunk. Its blocks stay in use in the allocator, which knows no owners.

use std::sync::Arc;

use nacre_engine::sync::EXPLORED;
use nacre_engine::sync::atomic::Ordering;
use nacre_media::Pm;

use crate::format::CHUNK_INODES;
use crate::fs::{Evicted, Shared};
use crate::inode::{Inode, Node};

/// Bytes that wait to be freed before the background thread is called.
const CALL_BYTES: u64 = 64 << 10;
/// With so many, the thread that brings the next one frees them itself.
const MANY: usize = 8192;

impl Inode {
    /// Media has all the state that is in DRAM, and the inode can be found by a name. Asked while no other thread has
    /// it.
    fn can_go(&self) -> bool {
        let is_quiet = self.holds.load(Ordering::Acquire) == 0
            && self.pins.load(Ordering::Acquire) == 0
            && !self.trim_is_pending();
        let is_written = !self.lazy.load(Ordering::Acquire) && !self.cached_changed.load(Ordering::Acquire);
        let log = self.log.lock();
        is_quiet && is_written && self.links() > 0 && !log.state.broken && !log.state.dead_inode
    }
}

impl<P: Pm> Shared<P> {
    /// Lets go of an inode that is not expected to be asked for soon. True when its state went.
    pub(crate) fn let_go(&self, node: Node) -> bool {
        let number = node.inode.number;
        let is_wanted = node.inode.holds.load(Ordering::Acquire) > 1 || node.inode.links() == 0;
        if is_wanted || self.write_out(&node.inode).is_err() {
            return false; // dropping the node may bury it
        }
        drop(node);
        self.evict(number)
    }

    /// Writes the lazily kept values of an inode that is held.
    fn write_out(&self, inode: &Inode) -> nacre_engine::Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.persist_lazy(inode)?;
        if !inode.cached_changed.load(Ordering::Acquire) {
            return Ok(());
        }
        // One after the other, or the older of two could be written last. A thread that changes them says so
        // afterwards.
        let _log = inode.log.lock();
        if inode.cached_changed.swap(false, Ordering::AcqRel) {
            let flushed = self.write_cached(inode).inspect_err(|_| {
                inode.cached_changed.store(true, Ordering::Release);
            })?;
            self.pm.fence(flushed);
        }
        Ok(())
    }

    /// Drops the state of an inode if it can go. True when it went.
    pub(crate) fn evict(&self, number: u64) -> bool {
        let Ok(slot) = self.inodes.slot(number) else { return false };
        let mut slot = slot.write();
        // No other reference exists, and none can be made before the slot is unlocked.
        let can_go = slot.as_mut().and_then(Arc::get_mut).is_some_and(|inode| inode.can_go());
        let Some(gone) = slot.take_if(|_| can_go) else { return false };
        self.inodes.is_on_media(number);
        drop(slot);
        self.inodes.eviction.one_left();
        self.drop_state(gone);
        true
    }

    /// Frees the DRAM that the state of an inode took, or leaves that to the background thread.
    fn drop_state(&self, inode: Arc<Inode>) {
        let bytes = inode.bytes();
        if !self.has_thread {
            drop(inode);
            self.inodes.eviction.freed(bytes, self.inodes.in_use());
            return;
        }
        let mut evicted = self.evicted.lock();
        let before = evicted.bytes;
        evicted.bytes += bytes;
        evicted.inodes.push(inode);
        let is_full = evicted.inodes.len() >= MANY;
        let calls = before < CALL_BYTES && evicted.bytes >= CALL_BYTES;
        drop(evicted);
        if is_full {
            self.drop_evicted();
        } else if calls {
            self.graveyard.nudge();
        }
    }

    /// Frees the state of inodes that have left.
    pub(crate) fn drop_evicted(&self) {
        let Evicted { inodes, bytes } = std::mem::take(&mut *self.evicted.lock());
        if inodes.is_empty() {
            return;
        }
        if !EXPLORED && bytes >= CALL_BYTES {
            // A thread keeps some of the pieces that it freed last, which may lie anywhere, and each such piece keeps a
            // page from being given back. One that ends keeps nothing. Where there can be no other thread, this one
            // frees them.
            std::thread::scope(|scope| {
                let thread = std::thread::Builder::new().name("nacre-evict".to_owned());
                drop(thread.spawn_scoped(scope, move || drop(inodes)));
            });
        } else {
            drop(inodes);
        }
        self.inodes.eviction.freed(bytes, self.inodes.in_use());
    }

    /// Lets go of a node and keeps its inode.
    pub(crate) fn park(&self, node: Node) {
        self.inodes.set_parked(node.inode.number, true);
    }

    /// Ends that. One without holders goes: for good without names, else from DRAM.
    pub(crate) fn unpark(&self, number: u64) {
        let Ok(slot) = self.inodes.slot(number) else { return };
        let node = {
            // A thread that reclaims it looks under this lock.
            let slot = slot.write();
            self.inodes.set_parked(number, false);
            let Some(inode) = slot.as_ref().filter(|inode| inode.holds.load(Ordering::Acquire) == 0) else {
                return;
            };
            inode.holds.fetch_add(1, Ordering::Relaxed);
            Node::from_held(Arc::clone(inode))
        };
        self.let_go(node);
    }

    /// Brings the number of inodes in DRAM below the limit, as far as they are not held.
    pub(crate) fn sweep(&self) {
        let eviction = &self.inodes.eviction;
        let Some(mut hand) = eviction.hand.try_lock() else { return };
        let chunks = self.inodes.chunks();
        let mut gone = 0;
        // In the first round those are found that were not used, in the second all.
        for _ in 0..2 * chunks {
            if !eviction.is_beyond_target(self.inodes.in_use()) {
                break;
            }
            *hand = if *hand + 1 < chunks { *hand + 1 } else { 0 };
            let first = *hand * CHUNK_INODES;
            for number in first..first + CHUNK_INODES {
                gone += u64::from(self.sweep_one(number));
            }
        }
        if eviction.swept(self.inodes.in_use(), gone) {
            self.graveyard.nudge();
        }
    }

    /// Lets go of an inode that was not used. True when its state went.
    fn sweep_one(&self, number: u64) -> bool {
        let Ok(slot) = self.inodes.slot(number) else { return false };
        let node = {
            let slot = slot.read();
            let Some(inode) = slot.as_ref() else { return false };
            let is_held = inode.holds.load(Ordering::Acquire) > 0 || inode.links() == 0;
            if is_held || inode.used.swap(false, Ordering::Relaxed) {
                return false;
            }
            inode.holds.fetch_add(1, Ordering::Relaxed);
            Node::from_held(Arc::clone(inode))
        };
        self.let_go(node)
    }
}
