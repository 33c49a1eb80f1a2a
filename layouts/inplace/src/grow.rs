//! Growing the inode table.

use nacre_engine::{BLOCK_SIZE, Result};
use nacre_layout_parts::table::{Free, Full, Grown};
use nacre_media::Pm;

use crate::alloc::{Purpose, Runs};
use crate::blockmap::{Piece, pack};
use crate::format::word;
use crate::fs::Shared;
use crate::seeded::Mistake;
use crate::transaction::{Transaction, join};
use crate::tree_edit::{Edit, finish};

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
        let mut pending = None;
        let mut blocks = Vec::new();
        let mut at = table.blocks;
        let prepared = runs.iter().try_for_each(|run| {
            if !Mistake::TableUnwritten.is_made(&*self.pm) {
                pending = join(pending.take(), self.pm.zero(run.start.offset(), run.len * BLOCK_SIZE)?);
            }
            edit.set(Piece { start: at, len: run.len, place: run.start.0, is_written: true })?;
            at += run.len;
            blocks.extend(run.start.0..run.start.0 + run.len);
            Ok(())
        });
        let mut transaction = Transaction::default();
        let prepared = prepared.and_then(|()| finish(&edit, &mut transaction, pending));
        transaction.word(self.table_address + word::SIZE, at * BLOCK_SIZE);
        transaction.word(self.table_address + word::ROOT, pack(edit.tree));
        let result = prepared.and_then(|pending| self.commit(transaction, pending));
        if let Err(error) = result {
            if !self.is_broken() {
                edit.give_up();
                self.free_runs(&runs);
            }
            return Err(error);
        }
        Ok(Grown { root: edit.tree, blocks })
    }
}
