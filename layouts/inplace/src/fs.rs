//! The state of a mounted file system, kept apart from the state of its inodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicBool, Ordering};
use nacre_engine::{Block, Error, InodeId, Kind, Result, TimeRange};
use nacre_media::{Durable, Pm};

use crate::alloc::{Allocator, Purpose, Run, Runs};
use crate::blockmap::{BlockMap, Bounds, Edit};
use crate::commit::Journal;
use crate::format::word;
use crate::inode::{Graveyard, Inode, Node};
use crate::superblock::Superblock;
use crate::table::{Loaded, Table, read_inode};

/// The state that all operations share.
pub(crate) struct Shared<P> {
    pub(crate) pm: Arc<P>,
    pub(crate) seed: u32,
    /// The times that the format holds.
    pub(crate) times: TimeRange,
    /// Extended attributes are a tree of blocks, and not written anew as a whole: since version 2.
    pub(crate) xattr_trees: bool,
    pub(crate) hash_seed: u64,
    pub(crate) superblock: Mutex<Superblock>,
    pub(crate) alloc: Allocator,
    pub(crate) table: Table,
    pub(crate) journal: Journal,
    pub(crate) graveyard: Arc<Graveyard>,
    /// Directories that move to another directory do so one at a time, so that no cycle can arise.
    pub(crate) move_directories: Mutex<()>,
    pub(crate) read_only: bool,
    /// Names are indexed in DRAM.
    pub(crate) name_index: bool,
    /// A commit failed on the media: only the next mount can know the words in place.
    pub(crate) broken: AtomicBool,
    /// Inodes that cannot be read, on a read-only mount of a damaged file system.
    pub(crate) damaged: BTreeSet<u64>,
    pub(crate) bounds: Bounds,
}

impl<P: Pm> Shared<P> {
    /// Holds an inode; reads it from media when it is not in DRAM.
    pub(crate) fn hold(&self, number: u64) -> Result<Node> {
        let loaded = self.table.shard(number).read();
        if let Some(inode) = loaded.inodes.get(&number) {
            return hold_loaded(&loaded, inode);
        }
        drop(loaded);
        let mut shard = self.table.shard(number).write();
        if let Some(inode) = shard.inodes.get(&number) {
            return hold_loaded(&shard, inode);
        }
        let inode = Arc::new(self.load(number)?);
        inode.holds.fetch_add(1, Ordering::Relaxed);
        shard.inodes.insert(number, Arc::clone(&inode));
        drop(shard);
        if self.table.eviction.one_loaded(self.table.in_use()) {
            self.sweep();
        }
        Ok(Node::from_held(inode))
    }

    /// Holds the inode with this name.
    pub(crate) fn hold_id(&self, id: InodeId) -> Result<Node> {
        let node = self.hold(id.number)?;
        if node.inode.generation != id.generation || id.volume != 0 {
            return Err(Error::new(Kind::Stale));
        }
        Ok(node)
    }

    fn load(&self, number: u64) -> Result<Inode> {
        let address = self.table.address(number)?;
        if self.damaged.contains(&number) {
            return Err(Error::corrupt(format!("inode {number}: its blocks")));
        }
        let raw = read_inode(&*self.pm, address)?;
        if raw.links == 0 {
            return Err(Error::new(Kind::Stale));
        }
        if !raw.is_valid(self.seed, number) {
            return Err(Error::corrupt(format!("inode {number}: header")));
        }
        Inode::load(self, number, address, &raw)
    }

    /// The tree of a root.
    pub(crate) fn map(&self, root: u64) -> BlockMap<'_, P> {
        BlockMap { pm: &*self.pm, root, bounds: self.bounds }
    }

    /// Refuses changes on a read-only mount.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.read_only { Err(Error::new(Kind::ReadOnly)) } else { Ok(()) }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Refuses changes after a commit that failed half way.
    pub(crate) fn check_unbroken(&self) -> Result<()> {
        if self.is_broken() {
            return Err(Error::new(Kind::Media)
                .object("the journal")
                .advice("a commit failed: unmount and mount again, which undoes it"));
        }
        Ok(())
    }

    /// Allocates blocks; when there are none, first frees the blocks that wait to be freed.
    pub(crate) fn allocate(
        &self,
        goal: Option<Block>,
        blocks: u64,
        purpose: Purpose,
        runs: &mut Runs,
    ) -> Result<()> {
        if self.alloc.allocate_near(goal, blocks, purpose, runs).is_ok() {
            return Ok(());
        }
        self.reclaim_buried();
        self.alloc.allocate_near(goal, blocks, purpose, runs)
    }

    pub(crate) fn free_runs(&self, runs: &[Run]) {
        for &run in runs {
            self.alloc.free(run);
        }
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
        let mut edit = Edit::new(self, body.root);
        if edit.clear(0, u64::MAX).is_ok() {
            self.free_runs(&edit.freed);
        }
        if body.xattrs != 0 {
            for block in self.owner_of(inode).blocks_of(body.xattrs).into_iter().flatten() {
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

    /// Writes attributes that are newer in DRAM: the time of the last read. One word, which needs no transaction.
    pub(crate) fn persist_lazy(&self, inode: &Inode) -> Result<()> {
        if self.read_only || !inode.lazy.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        self.write_atime(inode).inspect_err(|_| inode.lazy.store(true, Ordering::Release))
    }

    fn write_atime(&self, inode: &Inode) -> Result<()> {
        let _body = inode.body.write();
        self.check_unbroken()?;
        if inode.links() == 0 {
            return Ok(());
        }
        let atime = inode.pack(inode.attr.get().atime);
        let stored = self.pm.publish_u64(inode.address + word::ATIME, atime, Durable::nothing_before())?;
        let flushed = self.pm.flush(stored);
        self.pm.fence(flushed);
        Ok(())
    }
}

/// Holds an inode that is in DRAM. Under its shard's lock.
fn hold_loaded(shard: &Loaded, inode: &Arc<Inode>) -> Result<Node> {
    let others = inode.holds.fetch_add(1, Ordering::Relaxed);
    inode.note_use();
    let node = Node::from_held(Arc::clone(inode));
    // Without names and holders it only waits to be reclaimed.
    let is_gone = others == 0 && inode.links() == 0 && !shard.parked.contains(&inode.number);
    if is_gone { Err(Error::new(Kind::Stale)) } else { Ok(node) }
}
