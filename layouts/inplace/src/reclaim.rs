//! Freeing what inodes without names have: at once, or before an allocation that finds no blocks.

use nacre_engine::{Block, Result};
use nacre_layout_parts::table::inodes::Inodes;
use nacre_layout_parts::table::{Before, Free};
use nacre_media::Pm;

use crate::alloc::{Purpose, Run, Runs};
use crate::fs::Shared;
use crate::inode::Inode;
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

    /// Frees the contents and the number of an inode that is unreachable. Media says so already: it has no links.
    /// Unreadable parts stay taken until the next mount.
    pub(crate) fn free_contents(&self, inode: &Inode) {
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
        let before = Before::Inode { generation: inode.generation, slot: 0 };
        self.table.free(Free { number: inode.number, before });
    }
}
