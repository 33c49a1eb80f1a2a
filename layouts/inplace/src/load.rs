//! The inodes of the table as `nacre-layout-parts` holds, frees and evicts them: reading one from media.

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{Error, FileKind, Kind, Result};
use nacre_layout_parts::table::Table;
use nacre_layout_parts::table::inodes::Inodes;
use nacre_media::Pm;

use crate::directory::Directory;
use crate::format::RawInode;
use crate::fs::Shared;
use crate::inode::{Inode, MAX_BLOCKS, has_tree};
use crate::table::read_inode;

impl<P: Pm> Inodes for Shared<P> {
    type Inode = Inode;

    fn table(&self) -> &Table<Inode> {
        &self.table
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

    fn settle(&self, inode: &mut Inode) -> bool {
        self.persist_lazy(inode).is_ok() && !inode.lazy.load(Ordering::Acquire)
    }

    fn free_inode(&self, inode: &Inode) {
        self.free_contents(inode);
    }

    fn is_broken(&self) -> bool {
        Shared::is_broken(self)
    }
}

impl<P: Pm> Shared<P> {
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
        let inode = Inode::new(number, address, raw, self.times, directory, &self.table.graveyard)?;
        inode.blocks.store(blocks, Ordering::Relaxed);
        // Larger than before the mount, and than when its state was dropped, for any count at that time.
        let changes = (self.superblock.lock().raw.mount_epoch << 32)
            .max(self.table.dropped_changes.load(Ordering::Relaxed));
        inode.change.store(changes, Ordering::Relaxed);
        Ok(inode)
    }
}
