//! Blocks of files that are moved, or written, past this layout: their places are committed here.
//!
//! Blocks that are moved keep their content, and their file its size and times. Their version proves that nothing of
//! them changed since they were copied. As any change of a tree, a move goes with a new slot: one word and a slot for
//! blocks that meet in one word, else what the lifted tree asks for. A block that is left is free after the commit, so
//! one valid copy of it is left.

use std::sync::Arc;

use nacre_engine::{
    Attr, BLOCK_SIZE, Block, Copied, Error, FileBlock, Kind, Movable, Place, PlacedExtent, Result, Timestamp,
    Written,
};
use nacre_layout_parts::tree::edit::join;
use nacre_layout_parts::versions::{MOST_BLOCKS, PART, part_of};
use nacre_media::{Durable, Flushed, Pm};

use crate::alloc::{Purpose, Run, Runs};
use crate::blockmap::{Piece, on_tier, place_of, tier_of};
use crate::fs::Shared;
use crate::inode::{Body, Inode};
use crate::publish::Changes;
use crate::state::MAX_BLOCKS;

/// How blocks on tiers become a write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AsWritten {
    pub(crate) purpose: Purpose,
    pub(crate) now: Timestamp,
    /// The file has the blocks there already, allocated and not written.
    pub(crate) has: bool,
}

const _: () = assert!(MAX_BLOCKS <= MOST_BLOCKS);

impl<P: Pm> Shared<P> {
    /// The pieces in a range that `is_meant`, cut where parts of the file end.
    fn movable(
        &self,
        inode: &Inode,
        body: &Body,
        (first, end): (u64, u64),
        is_meant: impl Fn(&Piece) -> bool,
    ) -> Result<Vec<Movable>> {
        let mut found = Vec::new();
        let version = self.versions_of(inode).now();
        self.map(inode.tree(body)).for_each(first, end, &mut |piece| {
            let mut at = piece.start;
            while at < piece.end() && is_meant(&piece) {
                let stop = piece.end().min((at / PART + 1) * PART);
                let part =
                    Piece { start: at, len: stop - at, place: piece.place + (at - piece.start), ..piece };
                let extent = PlacedExtent { start: FileBlock(at), len: part.len, place: place_of(&part) };
                found.push(Movable { extent, version });
                at = stop;
            }
        })?;
        Ok(found)
    }

    /// The written blocks of a range, in pieces of one place and one version.
    pub(crate) fn resolve_movable(&self, inode: &Inode, start: FileBlock, len: u64) -> Result<Vec<Movable>> {
        let body = inode.body.read();
        let end = start.0.saturating_add(len).min(inode.size().div_ceil(BLOCK_SIZE));
        self.movable(inode, &body, (start.0, end), |piece| piece.is_written)
    }

    /// The first blocks of a file on PM that are allocated and not written.
    pub(crate) fn resolve_unwritten(&self, inode: &Inode, most: u64) -> Result<Vec<Movable>> {
        let body = inode.body.read();
        let is_meant = |piece: &Piece| !piece.is_written && tier_of(piece.place) == 0;
        let mut found = self.movable(inode, &body, (0, MAX_BLOCKS), is_meant)?;
        let mut left = most;
        found.retain_mut(|movable| {
            movable.extent.len = movable.extent.len.min(left);
            left -= movable.extent.len;
            movable.extent.len > 0
        });
        Ok(found)
    }

    /// As [`Shared::resolve`], and behind the end of the file, too.
    pub(crate) fn resolve_allocated(
        &self,
        inode: &Inode,
        start: FileBlock,
        len: u64,
    ) -> Result<Vec<PlacedExtent>> {
        let body = inode.body.read();
        let tree = inode.tree(&body);
        let end = start.0.saturating_add(len).min(tree.end.max(inode.size().div_ceil(BLOCK_SIZE)));
        self.map(tree).extents(start.0, end, place_of)
    }

    /// Whether blocks are where they were, with the same content. Under the inode's lock.
    fn is_current(&self, inode: &Inode, body: &Body, from: &Movable) -> Result<bool> {
        let PlacedExtent { start: FileBlock(start), len, place } = from.extent;
        let is_same = len > 0 && self.versions_of(inode).is_unchanged(start..start + len, from.version);
        let is_within = !matches!(place, Place::Pm(_) | Place::Tier { .. })
            || start + len <= inode.size().div_ceil(BLOCK_SIZE);
        let mut pieces = Vec::new();
        self.map(inode.tree(body)).for_each(start, start + len, &mut |piece| pieces.push(piece))?;
        let is_there = matches!(&pieces[..], [one] if one.len == len && place_of(one) == place);
        Ok(is_same && is_within && is_there)
    }

    /// The old place of blocks, as runs that become free.
    fn old_run(&self, inode: &Inode, body: &Body, start: u64, len: u64) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        self.map(inode.tree(body)).for_each(start, start + len, &mut |piece| {
            runs.push(Run { start: Block(piece.place), len: piece.len });
        })?;
        Ok(runs)
    }

    /// Commits the relocation of the copied blocks that still have their version; gives the rest.
    pub(crate) fn publish(
        &self,
        inode: &Arc<Inode>,
        copied: &[Copied],
        _proof: Durable,
    ) -> Result<Vec<Copied>> {
        let mut body = inode.body.write();
        self.check_unbroken()?;
        let (mut current, mut refused) = (Vec::new(), Vec::new());
        for copy in copied {
            self.check_on_tier(copy.tier, copy.block, copy.from.extent.len)?;
            let (unchanged, changed) = self.versions_of(inode).unchanged(copy);
            refused.extend(changed);
            for part in unchanged {
                match self.is_current(inode, &body, &part.from)? {
                    true => current.push(part),
                    false => refused.push(part),
                }
            }
        }
        if current.is_empty() {
            return Ok(refused);
        }
        inode.check_pins()?;
        refused.extend(self.publish_most(inode, &mut body, current)?);
        Ok(refused)
    }

    /// Commits the relocation of blocks, all at once where there is room for the nodes that are copied for it. Else in
    /// parts: the first one makes room for the second. Gives those that are not committed; an error says that none is.
    fn publish_most(
        &self,
        inode: &Arc<Inode>,
        body: &mut Body,
        mut pieces: Vec<Copied>,
    ) -> Result<Vec<Copied>> {
        let error = match self.publish_pieces(inode, body, &pieces) {
            Err(error) if error.kind() == Kind::NoSpace => error,
            done => return done.map(|()| Vec::new()),
        };
        let second = match &mut pieces[..] {
            [] => return Err(error),
            // The nodes of one block are too many.
            [one] if one.from.extent.len < 2 => return Err(error),
            [one] => {
                let len = one.from.extent.len;
                let second = part_of(one, len / 2, len - len / 2);
                *one = part_of(one, 0, len / 2);
                vec![second]
            }
            more => {
                let half = more.len() / 2;
                pieces.split_off(half)
            }
        };
        let mut left = self.publish_most(inode, body, pieces)?;
        if !left.is_empty() {
            left.extend(second);
            return Ok(left);
        }
        match self.publish_most(inode, body, second.clone()) {
            // The copies of the first part are the file's, and an error says that all are unused. After a media error
            // none is used again.
            Err(error) if error.kind() != Kind::Media => Ok(second),
            published => published,
        }
    }

    /// Commits the relocation of blocks that still have their version.
    fn publish_pieces(&self, inode: &Arc<Inode>, body: &mut Body, pieces: &[Copied]) -> Result<()> {
        let mut changes = Changes::of(self, inode, body);
        changes.moves = true;
        let mut prepared = Ok(());
        for copy in pieces {
            let PlacedExtent { start: FileBlock(start), len, place } = copy.from.extent;
            if matches!(place, Place::Pm(_) | Place::Unwritten(_)) {
                // Blocks that leave PM give back more than the nodes take that are copied for that.
                changes.edit.purpose = Purpose::Removal;
            }
            let is_written = matches!(place, Place::Pm(_) | Place::Tier { .. });
            let piece = Piece { start, len, place: on_tier(copy.tier, copy.block), is_written };
            // An error gives up what the pieces before this one have allocated.
            prepared = prepared.and_then(|()| {
                changes.replaced.extend(self.old_run(inode, body, start, len)?);
                changes.edit.set(piece)
            });
            changes.arrived += len;
            self.versions_of(inode).change(start..start + len);
        }
        changes.touches(0..0);
        let prepared = prepared.and_then(|()| changes.lift());
        changes.unless_failed(prepared)?;
        let new = inode.next(body);
        changes.commit(inode, body, new)
    }

    /// Fails for blocks that a tier does not have for files.
    fn check_on_tier(&self, tier: u8, block: Block, len: u64) -> Result<()> {
        let blocks = self.tiers.with(tier, crate::alloc::Allocator::blocks).unwrap_or(0);
        // The first and the last block are its superblock's.
        if block.0 > 0 && len > 0 && block.0.saturating_add(len) < blocks {
            return Ok(());
        }
        let object = format!("blocks {} to {} of tier {tier}", block.0, block.0.saturating_add(len));
        Err(Error::new(Kind::InvalidInput).object(object))
    }

    /// Commits a write with its content on tiers; false when the file does not have the expected blocks there.
    pub(crate) fn publish_write(
        &self,
        inode: &Arc<Inode>,
        written: &[Written],
        size: u64,
        write: AsWritten,
        _proof: Durable,
    ) -> Result<bool> {
        let AsWritten { purpose, now, has } = write;
        let mut body = inode.body.write();
        self.check_unbroken()?;
        if purpose != Purpose::Reserved {
            inode.check_flags(Attr::IMMUTABLE | Attr::APPEND_ONLY)?;
        }
        let before = inode.size();
        let (mut pieces, mut arrived, mut replaced) = (Vec::new(), 0, Vec::new());
        for Written { start: FileBlock(start), run } in written {
            let (start, len) = (*start, run.len);
            self.check_on_tier(run.tier, run.start, len)?;
            if start.saturating_add(len) > MAX_BLOCKS {
                return Err(Error::new(Kind::FileTooBig));
            }
            let place = on_tier(run.tier, run.start);
            pieces.push(Piece { start, len, place, is_written: true });
            let old = self.old_run(inode, &body, start, len)?;
            if !matches!(&old[..], [one] if one.start.0 == place && one.len == len) {
                if has {
                    return Ok(false);
                }
                replaced.extend(old);
                arrived += len;
            }
        }
        if !replaced.is_empty() {
            inode.check_pins()?;
        }
        let mut changes = Changes::of(self, inode, &body);
        (changes.arrived, changes.replaced) = (arrived, replaced);
        if purpose == Purpose::Reserved {
            changes.edit.purpose = purpose;
        }
        let prepared = pieces.iter().try_for_each(|piece| changes.edit.set(*piece));
        let end = pieces.iter().map(Piece::end).max().unwrap_or(0);
        let begin = pieces.iter().map(|piece| piece.start).min().unwrap_or(0);
        changes.touches(begin.min(before / BLOCK_SIZE)..end);
        let first = written.first().map_or(u64::MAX, |written| written.start.0.saturating_mul(BLOCK_SIZE));
        let prepared = prepared.and_then(|()| changes.lift()).and_then(|()| {
            // Bytes between the old end and the first block would become visible.
            let gap = self.zero_gap(changes.edit.before, before, first.min(size).max(before))?;
            changes.pending = gap;
            Ok(())
        });
        changes.unless_failed(prepared)?;
        // Data that was accepted before does not bring the newest time.
        let now = if purpose == Purpose::Reserved { now.max(inode.attr.get().ctime) } else { now };
        let mut new = inode.next_modified(&body, now);
        new.slot.size = size.max(before);
        changes.commit(inode, &mut body, new)?;
        inode.size.store(size.max(before), nacre_engine::sync::atomic::Ordering::Release);
        inode.modified(now);
        Ok(true)
    }

    /// Promotes blocks: copies them from a tier to PM.
    pub(crate) fn bring_up(
        &self,
        inode: &Arc<Inode>,
        from: &Movable,
        content: &[u8],
        purpose: Purpose,
    ) -> Result<bool> {
        let PlacedExtent { start: FileBlock(start), len, .. } = from.extent;
        if content.len() as u64 != len * BLOCK_SIZE {
            let object = format!("{} bytes of {len} blocks", content.len());
            return Err(Error::new(Kind::InvalidInput).object(object));
        }
        let mut runs = Runs::new();
        self.allocate(None, len, purpose, &mut runs)?;
        // Copied before the file is locked: nothing leads there yet.
        let pending = match self.copy_runs(&runs, content) {
            Ok(pending) => pending,
            Err(error) => {
                self.free_runs(&runs);
                return Err(error);
            }
        };
        let mut body = inode.body.write();
        let mut changes = Changes::of(self, inode, &body);
        changes.moves = true;
        changes.edit.purpose = if purpose == Purpose::Data { Purpose::Metadata } else { purpose };
        changes.allocated.extend(runs.iter().copied());
        changes.pending = pending;
        let current = self.check_unbroken().and_then(|()| self.is_current(inode, &body, from));
        if !changes.unless_failed(current)? {
            self.free_runs(&runs);
            return Ok(false);
        }
        let mut at = start;
        let prepared = runs.iter().try_for_each(|run| {
            let piece = Piece { start: at, len: run.len, place: run.start.0, is_written: true };
            at += run.len;
            changes.edit.set(piece)
        });
        let prepared = prepared.and_then(|()| changes.lift());
        let old = prepared.and_then(|()| self.old_run(inode, &body, start, len));
        let old = changes.unless_failed(old)?;
        changes.replaced.extend(old);
        changes.touches(start..start + len);
        let new = inode.next(&body);
        changes.commit(inode, &mut body, new)?;
        Ok(true)
    }

    fn copy_runs(&self, runs: &Runs, content: &[u8]) -> Result<Option<Flushed>> {
        let (mut pending, mut rest) = (None, content);
        for run in runs {
            let (part, behind) = rest.split_at((run.len * BLOCK_SIZE) as usize);
            pending = join(pending, self.pm.copy(run.start.offset(), part)?);
            rest = behind;
        }
        Ok(pending)
    }

    /// Has blocks changed where they are on a tier. A slot says the times, which needs no space.
    pub(crate) fn change_below(
        &self,
        inode: &Inode,
        from: &Movable,
        now: Timestamp,
        change: &mut dyn FnMut() -> Result<()>,
    ) -> Result<bool> {
        let mut body = inode.body.write();
        self.check_unbroken()?;
        inode.check_flags(Attr::IMMUTABLE)?;
        if !self.is_current(inode, &body, from)? {
            return Ok(false);
        }
        let PlacedExtent { start: FileBlock(start), len, .. } = from.extent;
        self.versions_of(inode).change(start..start + len);
        change()?;
        let mut new = inode.next_modified(&body, now);
        self.commit_slot(&mut new, None)?;
        body.state = new.state();
        inode.modified(now);
        Ok(true)
    }

    /// Gives blocks of a tier that were never written other places.
    pub(crate) fn replace_unwritten(
        &self,
        inode: &Arc<Inode>,
        tier: u8,
        start: FileBlock,
        len: u64,
    ) -> Result<u64> {
        let mut body = inode.body.write();
        self.check_unbroken()?;
        let mut found: Vec<Piece> = Vec::new();
        let tree = inode.tree(&body);
        self.map(tree).for_each(start.0, start.0.saturating_add(len), &mut |piece| {
            if tier_of(piece.place) == tier && !piece.is_written {
                found.push(piece);
            }
        })?;
        let blocks = found.iter().map(|piece| piece.len).sum();
        let (Some(first), Some(last)) = (found.first(), found.last()) else { return Ok(0) };
        let touched = first.start..last.end();
        let mut places = self.allocate_unwritten(tree, first.start, blocks)?.into_iter();
        let mut changes = Changes::of(self, inode, &body);
        changes.touches(touched);
        changes.allocated.extend(places.clone());
        let mut place: Option<Run> = None;
        let mut prepared = Ok(());
        for piece in found {
            changes.replaced.push(Run { start: Block(piece.place), len: piece.len });
            let mut at = piece.start;
            while at < piece.end() {
                let Some(run) = place.take().or_else(|| places.next()) else { break };
                let count = run.len.min(piece.end() - at);
                let part = Piece { start: at, len: count, place: run.start.0, is_written: false };
                prepared = prepared.and_then(|()| changes.edit.set(part));
                let rest = Run { start: Block(run.start.0 + count), len: run.len - count };
                place = (rest.len > 0).then_some(rest);
                at += count;
            }
        }
        let prepared = prepared.and_then(|()| changes.lift());
        changes.unless_failed(prepared)?;
        let new = inode.next(&body);
        changes.commit(inode, &mut body, new)?;
        Ok(blocks)
    }
}
