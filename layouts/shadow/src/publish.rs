//! A change of a file's blocks on its way: what it has allocated, what it has written, and what is free after its
//! commit.

use std::ops::Range;

use nacre_engine::Result;
use nacre_engine::sync::atomic::Ordering;
use nacre_media::{Flushed, Pm};

use crate::alloc::{Run, Runs};
use crate::fs::{Shared, on_pm};
use crate::inode::{Body, Inode};
use crate::lift::{Edit, Publish, lift, store_in_place, write};
use crate::seeded::Mistake;
use crate::state::NewSlot;

/// A change of the blocks of one inode.
pub(crate) struct Changes<'a, P: Pm> {
    fs: &'a Shared<P>,
    pub(crate) edit: Edit<'a, P>,
    /// Blocks of data that it has allocated.
    pub(crate) allocated: Runs,
    /// Blocks of data in whose place others come.
    pub(crate) replaced: Vec<Run>,
    /// Data on its way to media.
    pub(crate) pending: Option<Flushed>,
    /// Blocks that come at places which the caller has taken.
    pub(crate) arrived: u64,
    touched: Range<u64>,
    /// Blocks go to other places, and their content stays.
    pub(crate) moves: bool,
    /// How it is published.
    pub(crate) publish: Publish,
}

impl<'a, P: Pm> Changes<'a, P> {
    /// Nothing is changed yet.
    pub(crate) fn of(fs: &'a Shared<P>, inode: &Inode, body: &Body) -> Changes<'a, P> {
        Changes {
            fs,
            edit: Edit::new(fs, inode.tree(body)),
            allocated: Runs::new(),
            replaced: Vec::new(),
            pending: None,
            arrived: 0,
            touched: 0..u64::MAX,
            moves: false,
            publish: Publish::Slot,
        }
    }

    /// Nothing but these file blocks changes.
    pub(crate) fn touches(&mut self, blocks: Range<u64>) {
        self.touched = blocks;
    }

    /// Finds space for the nodes that have to be copied. The tree is not changed any more.
    pub(crate) fn lift(&mut self) -> Result<()> {
        let (before, after) = (self.edit.before, &mut self.edit.tree);
        if Mistake::GarbageBehindEnd.is_made(&*self.fs.pm) && after.end > before.end && after.height > 0 {
            after.end = after.end.next_multiple_of(8);
        }
        self.publish = match store_in_place(self.fs, &self.edit)? {
            Some(publish) => publish,
            None => lift(&mut self.edit)?,
        };
        Ok(())
    }

    /// Gives back what a change took that failed before its commit.
    pub(crate) fn unless_failed<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|_| self.give_up())
    }

    fn give_up(&self) {
        if !self.fs.is_broken() {
            self.edit.give_up();
            self.fs.free_runs(&self.allocated);
        }
    }

    /// Commits the change with the rest of the next slot. The blocks that it gave up are free afterwards.
    pub(crate) fn commit(mut self, inode: &Inode, body: &mut Body, mut new: NewSlot) -> Result<()> {
        new.set_tree(self.edit.tree);
        self.fs.versions_of(inode).change(self.touched.clone());
        if Mistake::BlocksFreedTooSoon.is_made(&*self.fs.pm) {
            self.reuse_now();
        }
        let pending = self.pending.take();
        let write = || write(&self.edit, pending);
        let without_slot = self.moves && Mistake::MovedWithoutSlot.is_made(&*self.fs.pm);
        let (committed, state) = match self.publish {
            Publish::Word { address, value } if without_slot => {
                (self.fs.commit_word(address, value, write), body.state)
            }
            publish => (self.fs.commit(&mut new, publish, write), new.state()),
        };
        self.unless_failed(committed)?;
        body.state = state;
        let count = |runs: &[Run]| -> u64 { runs.iter().map(|run| run.len).sum() };
        let freed = self.edit.freed_data + count(&self.replaced);
        inode.blocks.fetch_add(count(&self.allocated) + self.arrived, Ordering::Relaxed);
        inode.blocks.fetch_sub(freed, Ordering::Relaxed);
        // Nodes are on PM, and count for nothing here.
        let nodes = count(&self.edit.freed) - self.edit.freed_data;
        let left = on_pm(&self.edit.freed) - nodes + on_pm(&self.replaced);
        self.fs.count_data(on_pm(&self.allocated), left);
        self.fs.free_runs(&self.edit.freed);
        self.fs.free_runs(&self.replaced);
        Ok(())
    }

    /// Of the mistake to free blocks too soon: overwrites one, as its next user would.
    fn reuse_now(&self) {
        if let Some(run) = self.replaced.iter().chain(&self.edit.freed).next()
            && let Ok(flushed) = self.fs.pm.copy(run.start.offset(), &[0xdb; 64])
        {
            self.fs.pm.fence(flushed);
        }
    }
}
