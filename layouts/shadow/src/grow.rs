//! Growing the inode table: a new slot of the table's own inode, in both copies of it.

use nacre_engine::{BLOCK_SIZE, Result};
use nacre_layout_parts::table::{Free, Full, Grown};
use nacre_layout_parts::tree::edit::join;
use nacre_media::Pm;

use crate::alloc::{Purpose, Runs};
use crate::blockmap::Piece;
use crate::format::{TABLE_INODE, inode_seed, slot_offset};
use crate::fs::Shared;
use crate::lift::{Edit, lift, write};
use crate::seeded::Mistake;
use crate::state::NewSlot;

/// The generation of the table's own inode.
pub(crate) const TABLE_GENERATION: u32 = 1;

impl<P: Pm> Shared<P> {
    /// A number for a new inode; the table grows when none is free.
    pub(crate) fn allocate_number(&self) -> Result<Free> {
        self.table.allocate(|full| self.grow_table(full))
    }

    fn grow_table(&self, table: &Full) -> Result<Grown> {
        let mut runs = Runs::new();
        // One block will do where there are no more.
        if self.alloc.allocate(table.want, Purpose::Data, &mut runs).is_err() {
            self.alloc.allocate(1, Purpose::Data, &mut runs)?;
        }
        let mut edit = Edit::new(self, table.root);
        let result = self.publish_growth(&mut edit, table.blocks, &runs);
        if let Err(error) = result {
            if !self.is_broken() {
                edit.give_up();
                self.free_runs(&runs);
            }
            return Err(error);
        }
        let blocks = runs.iter().flat_map(|run| run.start.0..run.start.0 + run.len).collect();
        Ok(Grown { root: edit.tree, blocks })
    }

    fn publish_growth(&self, edit: &mut Edit<'_, P>, mut at: u64, runs: &Runs) -> Result<()> {
        let mut pending = None;
        for run in runs {
            if !Mistake::TableUnwritten.is_made(&*self.pm) {
                pending = join(pending, self.pm.zero(run.start.offset(), run.len * BLOCK_SIZE)?);
            }
            edit.set(Piece { start: at, len: run.len, place: run.start.0, is_written: true })?;
            at += run.len;
        }
        // Only words behind the end change: nothing is lifted.
        lift(edit)?;
        let pending = write(edit, pending)?;
        let mut state = self.table_state.lock();
        let seed = inode_seed(self.seed, TABLE_INODE, TABLE_GENERATION);
        let mut new = state.next(0, seed);
        new.set_blocks(edit.tree);
        self.check_unbroken()?;
        if let Some(pending) = pending {
            self.pm.fence(pending);
        }
        let mut both = None;
        for copy in self.table_addresses.into_iter().flatten() {
            let mut slot = NewSlot { address: copy + slot_offset(new.which), ..new };
            both = self.unless_broken(self.put_slot(&mut slot, both))?;
        }
        if let Some(both) = both {
            self.pm.fence(both);
        }
        *state = new.state();
        Ok(())
    }
}
