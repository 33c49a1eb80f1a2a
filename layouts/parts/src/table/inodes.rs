//! How inodes come to DRAM and go: holding them, freeing those without names, and eviction of unused ones, of which the
//! state is dropped, and read from media when it is asked for.
//!
//! Eviction happens on the last release of an inode that is not expected back soon ([`Inodes::let_go`]), and beyond a
//! limit ([`Inodes::sweep`]), by second chance: an inode that was used since the last sweep stays.
//!
//! **Candidates.** Only an inode that is in its shard and nowhere else can go: the shard is locked, and the inode's
//! count of references is one. A reference is made from the shard or from another reference. So none is made meanwhile,
//! and the inode's own lock is free. So what is kept lazily is written under the lock of the shard. An inode that
//! cannot be written stays. So does one without names, to which nothing leads. After a failed commit all of them stay,
//! because the state in place may be undone.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{Error, InodeId, Kind, Result, Step, with_room};

use super::{Loaded, SHARDS, Table, TableInode};
use crate::held::{Held, Holdable};

/// A layout with inodes in such a table: its state.
pub trait Inodes: Sized {
    /// An inode in DRAM.
    type Inode: TableInode;

    /// The table.
    fn table(&self) -> &Table<Self::Inode>;

    /// Reads an inode from media.
    fn load(&self, number: u64) -> Result<Self::Inode>;

    /// Writes lazily kept values. True when media has all the state of the inode.
    fn settle(&self, inode: &mut Self::Inode) -> bool;

    /// Frees the contents and the number of an inode that is unreachable. Media says so already: it has no links.
    fn free_inode(&self, inode: &Self::Inode);

    /// A commit failed half way, and the state in place may be undone.
    fn is_broken(&self) -> bool;

    /// Holds an inode; reads it from media when it is not in DRAM.
    fn hold(&self, number: u64) -> Result<Held<Self::Inode>> {
        let loaded = self.table().shard(number).read();
        if let Some(inode) = loaded.inodes.get(&number) {
            return hold_loaded(&loaded, inode);
        }
        drop(loaded);
        let mut shard = self.table().shard(number).write();
        if let Some(inode) = shard.inodes.get(&number) {
            return hold_loaded(&shard, inode);
        }
        let inode = Arc::new(self.load(number)?);
        inode.holds().fetch_add(1, Ordering::Relaxed);
        shard.inodes.insert(number, Arc::clone(&inode));
        drop(shard);
        if self.table().eviction.one_loaded(self.table().in_use()) {
            self.sweep();
        }
        Ok(Held::from_held(inode))
    }

    /// Holds the inode with this name.
    fn hold_id(&self, id: InodeId) -> Result<Held<Self::Inode>> {
        let node = self.hold(id.number)?;
        if node.inode.generation() != id.generation || id.volume != 0 {
            return Err(Error::new(Kind::Stale));
        }
        Ok(node)
    }

    /// Holds an inode that was just made.
    fn hold_made(&self, inode: Self::Inode) -> Held<Self::Inode> {
        let number = inode.number();
        inode.holds().store(1, Ordering::Relaxed);
        let inode = Arc::new(inode);
        self.table().shard(number).write().inodes.insert(number, Arc::clone(&inode));
        self.note_made();
        Held::from_held(inode)
    }

    /// One more inode was made.
    #[inline]
    fn note_made(&self) {
        if self.table().eviction.one_made(self.table().in_use()) {
            self.sweep();
        }
    }

    /// Runs an operation. If it finds no space, blocks that wait to be freed are freed, and it runs again.
    #[inline]
    fn with_deferred_frees<T>(&self, act: impl FnMut() -> Result<T>) -> Result<T> {
        with_room(Step::DeferredFrees, act, |_| {
            self.reclaim_buried();
            Ok(true)
        })
    }

    /// Reclaims inodes without links and without holders.
    fn reclaim_buried(&self) {
        for number in self.table().graveyard.take() {
            self.reclaim(number);
        }
    }

    /// Gives an inode and everything it has back, unless it is held or linked again.
    fn reclaim(&self, number: u64) {
        let inode = {
            let mut shard = self.table().shard(number).write();
            let Loaded { inodes, parked } = &mut *shard;
            let is_gone =
                |inode: &Arc<Self::Inode>| inode.links() == 0 && inode.holds().load(Ordering::Acquire) == 0;
            match inodes.entry(number) {
                Entry::Occupied(loaded) if is_gone(loaded.get()) && !parked.contains(&number) => {
                    Some(loaded.remove())
                }
                _ => None,
            }
        };
        if let Some(inode) = inode {
            self.free_inode(&inode);
        }
    }

    /// Reclaims an inode that just lost its last link, unless it is held.
    fn unlinked(&self, node: Held<Self::Inode>) {
        let number = node.inode.number();
        let was_last = node.inode.holds().fetch_sub(1, Ordering::AcqRel) == 1;
        // The hold is given up here instead of in `Held::drop`, which would bury the inode.
        node.forget_hold();
        if was_last {
            self.reclaim(number);
        }
    }

    /// Lets go of an inode that is not expected to be asked for soon.
    fn let_go(&self, node: Held<Self::Inode>) {
        let number = node.inode.number();
        drop(node);
        evict(self, number);
    }

    /// Lets go of a node and keeps its inode.
    fn park(&self, node: Held<Self::Inode>) {
        let number = node.inode.number();
        self.table().shard(number).write().parked.insert(number);
    }

    /// Ends that. One without holders goes: for good without names, else from DRAM.
    fn unpark(&self, number: u64) {
        let is_gone = {
            let mut shard = self.table().shard(number).write();
            shard.parked.remove(&number);
            shard.inodes.get(&number).is_some_and(|inode| inode.links() == 0)
        };
        // Both look under the lock whether it is held.
        if is_gone { self.table().graveyard.bury(number) } else { evict(self, number) }
    }

    /// Brings the number of inodes in DRAM below the limit, as far as they are not held. Locks nothing but a shard at a
    /// time, so that the caller may hold inodes and their locks.
    fn sweep(&self) {
        let Some(mut hand) = self.table().eviction.hand.try_lock() else { return };
        // Again where other threads loaded as many meanwhile.
        while sweep_shards(self, &mut hand) {}
    }
}

/// Holds an inode that is in DRAM. Under its shard's lock.
fn hold_loaded<I: TableInode>(shard: &Loaded<I>, inode: &Arc<I>) -> Result<Held<I>> {
    let others = inode.holds().fetch_add(1, Ordering::Relaxed);
    inode.note_use();
    let node = Held::from_held(Arc::clone(inode));
    // Without names and holders it only waits to be reclaimed.
    let is_gone = others == 0 && inode.links() == 0 && !shard.parked.contains(&inode.number());
    if is_gone { Err(Error::new(Kind::Stale)) } else { Ok(node) }
}

fn evict<F: Inodes>(fs: &F, number: u64) {
    let mut shard = fs.table().shard(number).write();
    let can_go = shard.inodes.get_mut(&number).and_then(Arc::get_mut).is_some_and(|inode| can_go(fs, inode));
    let gone = if can_go { shard.inodes.remove(&number) } else { None };
    shard.shrink();
    drop(shard);
    if let Some(gone) = gone {
        drop_state(fs, gone);
    }
}

fn drop_state<F: Inodes>(fs: &F, inode: Arc<F::Inode>) {
    let bytes = inode.bytes();
    fs.table().eviction.one_left();
    drop(inode);
    fs.table().eviction.freed(bytes, fs.table().in_use());
}

/// Whether media has all the state of an inode that no other thread has, and the inode can be found by a name. Writes
/// lazily kept values.
fn can_go<F: Inodes>(fs: &F, inode: &mut F::Inode) -> bool {
    let is_free = inode.holds().load(Ordering::Acquire) == 0 && !inode.is_pinned();
    if !is_free || inode.links() == 0 || fs.is_broken() {
        return false;
    }
    let is_written = fs.settle(inode);
    if is_written {
        fs.table().dropped_changes.fetch_max(inode.change().load(Ordering::Relaxed), Ordering::Relaxed);
    }
    is_written
}

/// Goes through the shards. True when that is to be done again.
fn sweep_shards<F: Inodes>(fs: &F, hand: &mut u64) -> bool {
    let (table, eviction) = (fs.table(), &fs.table().eviction);
    let mut went = 0;
    // In the first round those are found that were not used, in the second all.
    for _ in 0..2 * SHARDS as u64 {
        if !eviction.is_beyond_target(table.in_use()) {
            break;
        }
        *hand = (*hand + 1) % SHARDS as u64;
        let mut gone = Vec::new();
        let mut shard = table.shard(*hand).write();
        shard.inodes.retain(|_, inode| {
            let is_held = inode.holds().load(Ordering::Acquire) > 0;
            let was_used = !is_held && inode.used().swap(false, Ordering::Relaxed);
            let stays = is_held || was_used || !Arc::get_mut(inode).is_some_and(|inode| can_go(fs, inode));
            if !stays {
                gone.push(Arc::clone(inode));
            }
            stays
        });
        shard.shrink();
        drop(shard);
        went += gone.len() as u64;
        gone.into_iter().for_each(|inode| drop_state(fs, inode));
    }
    eviction.swept(table.in_use(), went)
}
