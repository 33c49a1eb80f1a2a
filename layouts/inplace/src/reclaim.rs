//! Freeing inodes without names: at once, or before an allocation that finds no blocks.

use std::sync::Arc;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{Block, Result, Step, with_room};
use nacre_media::Pm;

use crate::alloc::{Purpose, Run, Runs};
use crate::fs::Shared;
use crate::inode::{Inode, Node};
use crate::xattr;

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
            self.reclaim_buried();
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
        let inode = {
            let mut shard = self.table.shard(number).write();
            let is_gone =
                |inode: &&Arc<Inode>| inode.links() == 0 && inode.holds.load(Ordering::Acquire) == 0;
            match shard.inodes.get(&number).filter(is_gone) {
                Some(_) if !shard.parked.contains(&number) => shard.inodes.remove(&number),
                _ => None,
            }
        };
        if let Some(inode) = inode {
            self.free_inode(&inode);
        }
    }

    /// Frees the contents and the number of an inode that is unreachable. Media says so already: it has no links.
    /// Unreadable parts stay taken until the next mount.
    pub(crate) fn free_inode(&self, inode: &Inode) {
        if self.is_broken() {
            return; // the removal may be undone
        }
        let body = inode.body.read();
        let mut freed = Vec::new();
        if self.map(body.root).add_runs(&mut freed).is_ok() {
            self.free_runs(&freed);
        }
        if body.xattrs != 0 {
            for block in xattr::blocks_of(&self.owner_of(inode), body.xattrs).into_iter().flatten() {
                self.alloc.free(Run { start: Block(block), len: 1 });
            }
        }
        drop(body);
        self.table.free(inode.number);
    }

    /// Reclaims an inode that just lost its last link, unless it is held.
    pub(crate) fn unlinked(&self, node: Node) {
        let number = node.inode.number;
        let was_last = node.inode.holds.fetch_sub(1, Ordering::AcqRel) == 1;
        // The hold is given up here instead of in `Node::drop`, which would bury the inode.
        node.forget_hold();
        if was_last {
            self.reclaim(number);
        }
    }
}
