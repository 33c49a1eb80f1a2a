//! Holding inodes: those that are not in DRAM are read from media.

use std::sync::Arc;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{Error, FileKind, InodeId, Kind, Result};
use nacre_media::Pm;

use crate::directory::Directory;
use crate::format::RawInode;
use crate::fs::Shared;
use crate::inode::{Inode, MAX_BLOCKS, Node, has_tree};
use crate::table::{Loaded, read_inode};

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
        self.build(number, address, &raw)
    }

    /// The inode of valid bytes, with the state in DRAM of its contents.
    fn build(&self, number: u64, address: u64, raw: &RawInode) -> Result<Inode> {
        let kind = FileKind::from_u8(raw.kind);
        let map = self.map(raw.root);
        let mut blocks = 0;
        if kind.is_some_and(has_tree) {
            map.for_each(0, MAX_BLOCKS, &mut |piece| blocks += piece.len)
                .map_err(|error| error.object(format!("inode {number}")))?;
        }
        let directory = match kind {
            Some(FileKind::Directory) => {
                Some(Box::new(Directory::load(&map, raw.size, self.name_index, self.hash_seed)?))
            }
            _ => None,
        };
        let inode = Inode::new(number, address, raw, self.times, directory, &self.graveyard)?;
        inode.blocks.store(blocks, Ordering::Relaxed);
        // Larger than before the mount, and than when its state was dropped, for any count at that time.
        let changes = (self.superblock.lock().raw.mount_epoch << 32)
            .max(self.table.dropped_changes.load(Ordering::Relaxed));
        inode.change.store(changes, Ordering::Relaxed);
        Ok(inode)
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
