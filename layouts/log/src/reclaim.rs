//! Freeing inodes without names and truncated ranges: at once, in the background thread, or before an allocation that
//! finds no blocks.

use std::sync::Arc;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::sync::thread;
use nacre_engine::{BLOCK_SIZE, Block, Result, Step, with_room};
use nacre_media::Pm;

use crate::alloc::{Purpose, Runs};
use crate::format::MAX_FILE_SIZE;
use crate::fs::Shared;
use crate::inode::{Body, FREE_AT_ONCE, Inode, Node};
use crate::table::FreeInode;

impl<P: Pm> Shared<P> {
    /// Allocates blocks; when there are none, first frees the blocks that wait to be freed.
    pub(crate) fn allocate(
        &self,
        goal: Option<Block>,
        blocks: u64,
        purpose: Purpose,
        runs: &mut Runs,
    ) -> Result<()> {
        self.with_deferred_frees(|| self.alloc.allocate_near(goal, blocks, purpose, runs))
    }

    /// Runs an operation. If it finds no space, blocks that wait to be freed are freed, and it runs again.
    #[inline]
    pub(crate) fn with_deferred_frees<T>(&self, act: impl FnMut() -> Result<T>) -> Result<T> {
        with_room(Step::DeferredFrees, act, |_| {
            self.free_all_now();
            Ok(true)
        })
    }

    /// Reclaims inodes without links and without holders.
    pub(crate) fn reclaim_buried(&self) {
        for number in self.graveyard.take() {
            self.reclaim(number);
        }
    }

    /// Gives an inode and everything it has back, unless it is held or linked again.
    pub(crate) fn reclaim(&self, number: u64) {
        self.reclaim_as(number, self.background && !self.stopping.load(Ordering::Acquire));
    }

    /// The same; where images may be read `later`, that is left to the background thread.
    fn reclaim_as(&self, number: u64, later: bool) {
        let Ok(slot) = self.inodes.slot(number) else { return };
        let inode = {
            let mut slot = slot.write();
            match &*slot {
                Some(inode) if inode.links() > 0 => None,
                Some(inode) if later && inode.image.is_unread() => {
                    self.unread.lock().push(number);
                    self.graveyard.nudge();
                    None
                }
                Some(inode) if inode.holds.load(Ordering::Acquire) == 0 && !self.inodes.is_parked(number) => {
                    self.inodes.forget_media(number);
                    slot.take()
                }
                _ => None,
            }
        };
        if let Some(inode) = inode {
            self.free_inode(&inode);
        }
    }

    /// Frees inodes after reading their images. No operation waits for it, because it may wait for a device.
    pub(crate) fn reclaim_unread(&self) {
        let numbers = std::mem::take(&mut *self.unread.lock());
        for number in numbers {
            let inode = self.inodes.slot(number).ok().and_then(|slot| slot.read().clone());
            if let Some(inode) = inode {
                // Unreadable files are counted by the next mount.
                let _ = self.file(&inode);
            }
            self.reclaim_as(number, false);
        }
    }

    /// Frees the contents and the number of an inode that is unreachable.
    pub(crate) fn free_inode(&self, inode: &Inode) {
        let mut log = inode.log.lock();
        if std::mem::replace(&mut log.state.dead_inode, true) {
            return;
        }
        if log.settle_own(self).is_err() {
            // Its pages cannot be reused before its transactions are settled: leave them to the next recovery.
            return;
        }
        self.let_go_of_image(inode);
        if let Body::File(map) = &inode.body {
            map.for_each(0, MAX_FILE_SIZE / BLOCK_SIZE, |piece| self.free_piece(piece));
        }
        self.free_runs(&self.xattr_runs(inode));
        for run in log.index.blocks() {
            self.alloc.free(run);
        }
        drop(log);
        self.inodes.free(FreeInode { number: inode.number, generation: Some(inode.generation) });
    }

    /// Reclaims an inode that just lost its last link: now when it is small, else in the background.
    pub(crate) fn unlinked(&self, node: Node) {
        if self.background && node.inode.blocks.load(Ordering::Relaxed) > FREE_AT_ONCE {
            return; // dropping the node buries it
        }
        let number = node.inode.number;
        if node.inode.holds.fetch_sub(1, Ordering::AcqRel) == 1 {
            // The hold is given up here instead of in `Node::drop`, which would bury the inode.
            node.forget_hold();
            self.reclaim(number);
        } else {
            node.forget_hold();
        }
    }

    /// Frees the blocks that wait to be freed, and waits for those that the background thread is just freeing: they
    /// count as free already.
    pub(crate) fn free_all_now(&self) {
        self.free_everything_waiting();
        while self.freeing.load(Ordering::Acquire) {
            thread::yield_now();
        }
    }

    /// Frees the blocks that wait to be freed and are not being changed. The caller may hold locks of files.
    pub(crate) fn free_everything_waiting(&self) {
        self.reclaim_buried();
        let waiting = std::mem::take(&mut *self.trims.lock());
        for inode in waiting {
            match inode.extend.try_lock() {
                Some(extend) => self.finish_trim(&inode, &extend),
                None => self.trims.lock().push(Arc::clone(&inode)),
            }
        }
    }

    /// The work of the background thread until the unmount.
    pub(crate) fn run_background(&self) {
        while !self.stopping.load(Ordering::Acquire) {
            self.graveyard.wait();
            self.freeing.store(true, Ordering::Release);
            self.free_everything_waiting();
            self.freeing.store(false, Ordering::Release);
            self.reclaim_unread();
            if self.inodes.eviction.is_due() {
                self.sweep();
            }
            self.drop_evicted();
            // A file whose size is being changed comes again when its lock is free. No operation waits for this thread
            // then.
            let waiting = self.trims.lock().last().cloned();
            if let Some(inode) = waiting {
                drop(inode.extend.lock());
                self.graveyard.nudge();
            }
        }
    }
}
