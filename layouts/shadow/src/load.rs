//! Inodes of the table: read from media, written as far as they are kept lazily, freed.

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{Block, Error, FileKind, Kind, Result};
use nacre_layout_parts::table::inodes::Inodes;
use nacre_layout_parts::table::{Before, Free, Table};
use nacre_layout_parts::xattr;
use nacre_media::Pm;

use crate::alloc::Run;
use crate::directory::Directory;
use crate::format::{RawHeader, inode_seed};
use crate::fs::{Shared, on_pm};
use crate::inode::{Identity, Inode};
use crate::state::State;

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
        let (header, state) = self.read_state(number, address)?;
        self.build(number, address, &header, state)
    }

    fn settle(&self, inode: &mut Inode) -> bool {
        self.persist_lazy(inode).is_ok() && !inode.lazy.load(Ordering::Acquire)
    }

    /// Frees the contents and the number of an inode that is unreachable. Media says so already: it has no links.
    /// Unreadable parts stay taken until the next mount.
    fn free_inode(&self, inode: &Inode) {
        if self.is_broken() {
            return; // the removal may not count
        }
        let body = inode.body.read();
        let mut freed = Vec::new();
        if let Ok(data) = self.map(inode.tree(&body)).add_runs(&mut freed) {
            if inode.kind == FileKind::Regular {
                let all: u64 = freed.iter().map(|run| run.len).sum();
                self.count_data(0, on_pm(&freed) - (all - data));
            }
            self.free_runs(&freed);
        }
        let xattrs = body.state.slot.xattrs();
        if xattrs != 0 {
            let owner = self.owner_of(inode.number, inode.generation);
            for block in xattr::blocks_of(&owner, xattrs).into_iter().flatten() {
                self.alloc.free(Run { start: Block(block), len: 1 });
            }
        }
        // The first slot may not be on media: that of an inode of which the creation failed is not.
        let before = match body.state.slot.sequence {
            1 => Before::Unknown,
            _ => Before::Inode { generation: inode.generation, slot: body.state.which as u8 },
        };
        drop(body);
        self.table.free(Free { number: inode.number, before });
    }

    fn is_broken(&self) -> bool {
        Shared::is_broken(self)
    }
}

impl<P: Pm> Shared<P> {
    /// The header and the state of an inode in use; [`Stale`](Kind::Stale) when it is free.
    pub(crate) fn read_state(&self, number: u64, address: u64) -> Result<(RawHeader, State)> {
        self.with_judge(|judge| {
            let raw = judge.read(address)?;
            if !raw.header.is_valid(self.seed, number) {
                // One that is in use would have been found to be damaged at the mount.
                return Err(Error::new(Kind::Stale));
            }
            match judge.state(&raw, number, address)?.filter(|state| state.slot.links != 0) {
                Some(state) => Ok((raw.header, state)),
                None => Err(Error::new(Kind::Stale)),
            }
        })
    }

    /// The inode of a valid state, with the state in DRAM of its contents.
    fn build(&self, number: u64, address: u64, header: &RawHeader, state: State) -> Result<Inode> {
        let kind = FileKind::from_u8(header.kind);
        let tree = kind.map(|kind| state.tree(kind)).unwrap_or_default();
        let map = self.map(tree);
        let mut blocks = 0;
        map.for_each(0, u64::MAX, &mut |piece| blocks += piece.len)
            .map_err(|error| error.object(format!("inode {number}")))?;
        let directory = match kind {
            Some(FileKind::Directory) => {
                let is_reached = |tag| self.is_reached(tag);
                Some(Box::new(Directory::load(&map, self.hash_seed, &is_reached)?))
            }
            _ => None,
        };
        let identity = Identity { number, address, seed: inode_seed(self.seed, number, header.generation) };
        let inode = Inode::new(identity, header, state, self.times, directory, &self.table.graveyard)?;
        inode.blocks.store(blocks, Ordering::Relaxed);
        // Larger than before the mount, and than when its state was dropped, for any count at that time.
        let changes = self.first_change.max(self.table.dropped_changes.load(Ordering::Relaxed));
        inode.change.store(changes, Ordering::Relaxed);
        Ok(inode)
    }
}
