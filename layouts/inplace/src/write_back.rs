//! Writes by a write buffer, with reserved blocks: they leave the inode's lock to others for most of their time.
//!
//! Its threads write a megabyte at once and may sleep until slow PM has it. A write that held `body` for so long would
//! keep readers and a removal of the file waiting, and with the removal all operations in its directory. So a write
//! does
//!
//! 1. under `body`: find the place of each part, and allocate missing blocks. A write that only overwrites, within the
//!    size, is copied to its blocks now: the lock is held for the copy, not until it is durable;
//! 2. under no lock but `stay`: copy to the blocks that were allocated, to which nothing leads, and fence;
//! 3. under `body`: the transaction. If blocks were allocated, the tree and the size must be as step 1 found them, and
//!    other overwritten parts are copied before. Otherwise the blocks are freed, and the ordinary write does it all. So
//!    readers find all of a write or nothing of it, as ever.
//!
//! `stay` is shared from 1 to 3, so that the blocks are the file's for so long: only truncation and fallocate give any
//! away, and they take it alone. A removal frees nothing while the inode is held, as it is by the caller. Readers may
//! see overwritten data before it is durable and before the times say so: they have seen its bytes in the write buffer
//! before. After a crash between 2 and 3, new blocks are free again, and overwritten parts are as after any interrupted
//! overwrite.

use std::io::IoSlice;
use std::ops::Range;

use nacre_engine::{BLOCK_SIZE, Result, Timestamp};
use nacre_layout_parts::content::{Content, gather};
use nacre_media::{Durable, Flushed, Pm};

use crate::alloc::{Purpose, Runs};
use crate::blockmap::{Piece, open, pack};
use crate::file::{PIECE_BLOCKS, Target, Write};
use crate::fs::Shared;
use crate::inode::{Body, Inode};
use crate::seeded::Mistake;
use crate::tree_edit::Edit;

/// A write after step 1.
struct Begun {
    /// The size of the file, and its blocks in the range.
    size: u64,
    pieces: Vec<Piece>,
    targets: Vec<Target>,
    /// It only overwrites, and has; else nothing is copied.
    overwritten: bool,
    pending: Option<Flushed>,
}

impl<P: Pm> Shared<P> {
    /// Writes a range; false when the ordinary write has to.
    pub(crate) fn write_back(
        &self,
        inode: &Inode,
        range: Range<u64>,
        data: &[IoSlice<'_>],
        now: Timestamp,
    ) -> Result<bool> {
        if range.end.div_ceil(BLOCK_SIZE) - range.start / BLOCK_SIZE > PIECE_BLOCKS {
            return Ok(false);
        }
        let gathered = gather(range.start, data);
        let content = Content::new(range.start, data, &gathered);
        let write = Write { range, content, purpose: Purpose::Reserved, now };
        let _stay = inode.stay.read();
        let mut allocated = Runs::new();
        let result = match self.begin(inode, &write, &mut allocated) {
            Ok(Some(begun)) => self.go_on(inode, &write, begun, &allocated),
            Ok(None) => Ok(false),
            Err(error) => Err(error),
        };
        if !matches!(result, Ok(true)) && !self.is_broken() {
            self.free_runs(&allocated);
        }
        result
    }

    /// Step 1. Nothing for blocks that are there and unwritten: the bytes around the data become zeros there, and until
    /// the transaction another write may fill them.
    fn begin(&self, inode: &Inode, write: &Write<'_>, allocated: &mut Runs) -> Result<Option<Begun>> {
        let range = &write.range;
        let body = inode.body.write();
        self.check_unbroken()?;
        let size = inode.size();
        let pieces = self.pieces(body.root, range)?;
        if !pieces.iter().all(|piece| piece.is_written) {
            return Ok(None);
        }
        let targets = self.targets(body.root, &pieces, allocated, write)?;
        let overwritten = allocated.is_empty() && range.end <= size;
        let mut pending = None;
        for target in targets.iter().filter(|_| overwritten) {
            pending = self.copy_to(target, write, size, pending)?;
        }
        Ok(Some(Begun { size, pieces, targets, overwritten, pending }))
    }

    /// Steps 2 and 3. False when the file has changed meanwhile.
    fn go_on(&self, inode: &Inode, write: &Write<'_>, mut begun: Begun, allocated: &Runs) -> Result<bool> {
        let range = &write.range;
        let mut pending = begun.pending.take();
        for target in begun.targets.iter().filter(|target| target.is_fresh) {
            pending = self.copy_to(target, write, begun.size, pending)?;
        }
        let ready = match pending {
            Some(_) if Mistake::WordBeforeData.is_made(&*self.pm) => Durable::nothing_before(),
            Some(pending) => self.pm.fence(pending),
            None => Durable::nothing_before(),
        };
        let mut body = inode.body.write();
        if !begun.overwritten
            && (inode.size() != begun.size || self.pieces(body.root, range)? != begun.pieces)
        {
            return Ok(false);
        }
        // Times that changed meanwhile stay changed.
        let now = write.now.max(inode.attr.get().ctime);
        let mut edit = Edit::new(self, open(body.root));
        edit.purpose = write.purpose;
        let shown = self
            .overwrite_rest(&body, write, &begun, &mut edit)
            .and_then(|pending| self.commit_write(inode, &mut edit, range.end, pending, ready, now));
        if let Err(error) = shown {
            if !self.is_broken() {
                edit.give_up();
            }
            return Err(error);
        }
        self.written(inode, &mut body, pack(edit.tree), allocated, range.end, now);
        Ok(true)
    }

    /// The changes in place by a write that does not only overwrite, after there is space for the nodes that it needs.
    fn overwrite_rest(
        &self,
        body: &Body,
        write: &Write<'_>,
        begun: &Begun,
        edit: &mut Edit<'_, P>,
    ) -> Result<Option<Flushed>> {
        let range = &write.range;
        if begun.overwritten {
            return Ok(None);
        }
        for target in begun.targets.iter().filter(|target| target.is_fresh) {
            edit.set(target.piece)?;
        }
        let mut pending = None;
        if range.start > begun.size {
            pending = self.zero_gap(body.root, begun.size, range.start)?;
        }
        for target in begun.targets.iter().filter(|target| !target.is_fresh) {
            pending = self.copy_to(target, write, begun.size, pending)?;
        }
        Ok(pending)
    }
}
