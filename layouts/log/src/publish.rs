//! Committing where blocks of files are that were moved, or written, past this layout.
//!
//! Blocks that are moved keep their content, and their file its size and times: their entries say so by a flag. The
//! version of blocks proves that the content did not change since it was copied. Every change of a place counts, and
//! every byte behind the end of the file that is written in place.

use std::sync::Arc;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{
    Attr, BLOCK_SIZE, Copied, Error, FileBlock, Kind, Movable, Place, PlacedExtent, Result, Timestamp,
    Written,
};
use nacre_media::{Durable, Flushed, Pm};

use crate::alloc::{Purpose, Runs};
use crate::batch::Batch;
use crate::blockmap::{BlockMap, LEAF, Piece};
use crate::commit::{Commit, if_reserved};
use crate::file::{Change, Changes, Freed, apply_change, join};
use crate::format::{MAX_FILE_SIZE, WriteEntry, flag, kind, place};
use crate::fs::Shared;
use crate::inode::Inode;
use crate::places::{follows, is_written, place_of};

/// How blocks on tiers become a write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AsWritten {
    pub(crate) purpose: Purpose,
    pub(crate) now: Timestamp,
    /// The file has them there already, allocated. The purpose of pages of the log in this case.
    pub(crate) has: Option<Purpose>,
}

/// Entries that are committed together, where that is no matter: two pages.
const MOST_ENTRIES: usize = 126;

impl<P: Pm> Shared<P> {
    /// The first blocks of a file on PM that are allocated and not written, in pieces of one place and version.
    pub(crate) fn resolve_unwritten(&self, inode: &Inode, most: u64) -> Result<Vec<Movable>> {
        let map = self.file(inode)?;
        let _log = inode.log.lock();
        let (mut left, version) = (most, self.versions_of(inode).now());
        let mut found = Vec::new();
        // Blocks that a truncation has still to free are not the file's any more.
        let end = inode.trim.load(Ordering::Acquire).min(MAX_FILE_SIZE / BLOCK_SIZE);
        map.for_each(0, end, |piece| {
            if left == 0 || is_written(piece.place) || place::tier(piece.place) != 0 {
                return;
            }
            let len = piece.len.min(left);
            left -= len;
            let extent = PlacedExtent { start: FileBlock(piece.start), len, place: place_of(piece.place) };
            found.push(Movable { extent, version });
        });
        Ok(found)
    }

    /// The written blocks of a range, in pieces of one place, cut where leaves of the index end.
    pub(crate) fn resolve_movable(&self, inode: &Inode, start: FileBlock, len: u64) -> Result<Vec<Movable>> {
        let map = self.file(inode)?;
        let _log = inode.log.lock();
        let end = start.0.saturating_add(len).min(inode.size().div_ceil(BLOCK_SIZE));
        let version = self.versions_of(inode).now();
        let mut found: Vec<Movable> = Vec::new();
        if start.0 < end {
            map.for_each(start.0, end - start.0, |piece| {
                if !is_written(piece.place) {
                    return;
                }
                let is_same_leaf = |last: &Movable| last.extent.start.0 / LEAF == piece.start / LEAF;
                if let Some(last) = found.last_mut().filter(|last| is_same_leaf(last))
                    && last.extent.start.0 + last.extent.len == piece.start
                    && follows(&last.extent, place_of(piece.place))
                {
                    last.extent.len += piece.len;
                    return;
                }
                let extent = PlacedExtent {
                    start: FileBlock(piece.start),
                    len: piece.len,
                    place: place_of(piece.place),
                };
                found.push(Movable { extent, version });
            });
        }
        Ok(found)
    }

    /// Commits the relocation of the copied blocks that still have their version; gives the rest.
    pub(crate) fn publish(
        &self,
        inode: &Arc<Inode>,
        copied: &[Copied],
        modified: Timestamp,
        proof: Durable,
    ) -> Result<Vec<Copied>> {
        let map = self.file(inode)?;
        let mut log = inode.log.lock();
        let (mut current, mut refused) = (Vec::new(), Vec::new());
        let mut unchanged = Vec::with_capacity(copied.len());
        for copy in copied {
            let (same, changed) = self.versions_of(inode).unchanged(copy);
            unchanged.extend(same);
            refused.extend(changed);
        }
        for copy in unchanged {
            let PlacedExtent { start, len, place } = copy.from.extent;
            if !self.is_current(inode, map, &copy.from) {
                refused.push(copy);
                continue;
            }
            let unwritten = if matches!(place, Place::Unwritten(_)) { place::UNWRITTEN } else { 0 };
            let raw = place::on_tier(copy.tier, copy.block.0) | unwritten;
            if len == 0 || !self.reach.read().holds(raw, len) {
                return Err(Error::new(Kind::InvalidInput).object(format!(
                    "blocks {} to {} of tier {}",
                    copy.block.0,
                    copy.block.0 + len,
                    copy.tier
                )));
            }
            current.push((copy, start.0, raw));
        }
        // Blocks that leave PM give back more than their entries take.
        let leaves = |copy: &Copied| matches!(copy.from.extent.place, Place::Pm(_) | Place::Unwritten(_));
        let pages = if copied.iter().all(leaves) { Purpose::Removal } else { Purpose::Metadata };
        // In parts: the pages for all of it might be more than the layout keeps, and the first part makes room for the
        // second.
        let mut done = 0;
        for part in current.chunks(MOST_ENTRIES) {
            let (mut changes, mut freed) = (Changes::new(), Freed::new());
            for (copy, start, raw) in part {
                push_change(&mut changes, *start, copy.from.extent.len, *raw);
            }
            let commit = Commit::of(inode, &mut log).pages(pages).after(proof.again());
            match commit.moved(self, &changes, modified, &mut freed) {
                // The copies of the parts before this one are the file's, and an error says that all are unused. After
                // a media error none is used again.
                Err(error) if error.kind() != Kind::Media && done > 0 => break,
                result => result?,
            }
            freed.into_iter().for_each(|piece| self.free_piece(piece));
            done += part.len();
        }
        refused.extend(current[done..].iter().map(|(copy, ..)| *copy));
        Ok(refused)
    }

    /// Commits a write with its content on tiers; false when the file does not have the expected blocks there.
    pub(crate) fn publish_write(
        &self,
        inode: &Arc<Inode>,
        written: &[Written],
        size: u64,
        write: AsWritten,
        proof: Durable,
    ) -> Result<bool> {
        let AsWritten { purpose, now, has } = write;
        let map = self.file(inode)?;
        let extend = inode.extend.lock();
        self.finish_trim(inode, &extend);
        let mut changes = Changes::new();
        for Written { start, run } in written {
            let raw = place::on_tier(run.tier, run.start.0);
            let end = start.0.saturating_add(run.len);
            if run.len == 0 || end > MAX_FILE_SIZE / BLOCK_SIZE || !self.reach.read().holds(raw, run.len) {
                return Err(Error::new(Kind::InvalidInput).object(format!("blocks of tier {}", run.tier)));
            }
            push_change(&mut changes, start.0, run.len, raw);
        }
        let mut log = inode.log.lock();
        if purpose != Purpose::Reserved {
            inode.check_flags(Attr::IMMUTABLE | Attr::APPEND_ONLY)?;
        }
        if let Some(pages) = has {
            self.check_pieces(&log, pages)?;
            if !changes.iter_mut().all(|change| keep_allocated(map, change)) {
                return Ok(false);
            }
        }
        let before = inode.size();
        let first = changes.first().map_or(u64::MAX, |change| change.start * BLOCK_SIZE);
        // Bytes between the old end and the first block would become visible.
        let gap = self.zero_gap(inode, before, first.min(size).max(before))?;
        let proof = match gap {
            Some(flushed) => self.pm.fence(flushed),
            None => proof,
        };
        let mut freed = Freed::new();
        // Data that was accepted before may take its reserved blocks, and its time is not the newest one.
        let now = if purpose == Purpose::Reserved { now.max(inode.attr.get().ctime) } else { now };
        let size = size.max(before);
        // Allocated blocks can be written however full the file system is.
        let commit = Commit::of(inode, &mut log).pages(has.or(if_reserved(purpose))).after(proof);
        self.note_changes(inode, &changes);
        commit.changes(self, &changes, size, now, &mut freed)?;
        drop(log);
        freed.into_iter().for_each(|piece| self.free_piece(piece));
        Ok(true)
    }

    /// Promotes blocks: copies them from a tier to PM.
    pub(crate) fn bring_up(
        &self,
        inode: &Arc<Inode>,
        from: &Movable,
        content: &[u8],
        purpose: Purpose,
        modified: Timestamp,
    ) -> Result<bool> {
        let map = self.file(inode)?;
        let PlacedExtent { start, len, .. } = from.extent;
        if content.len() as u64 != len * BLOCK_SIZE {
            return Err(
                Error::new(Kind::InvalidInput).object(format!("{} bytes of {len} blocks", content.len()))
            );
        }
        let mut runs = Runs::new();
        self.allocate(None, len, purpose, &mut runs)?;
        let mut freed = Freed::new();
        let committed = self.copy_runs(&runs, content).and_then(|copied| {
            let proof = copied.map_or_else(Durable::nothing_before, |copied| self.pm.fence(copied));
            let mut log = inode.log.lock();
            if !self.is_current(inode, map, from) {
                return Ok(false);
            }
            let pages = match purpose {
                Purpose::Overwrite => Some(Purpose::Pieces),
                purpose => if_reserved(purpose),
            };
            self.check_pieces(&log, pages.unwrap_or(purpose))?;
            let mut changes = Changes::new();
            let mut at = start.0;
            for run in &runs {
                push_change(&mut changes, at, run.len, run.start.0);
                at += run.len;
            }
            let commit = Commit::of(inode, &mut log).pages(pages).after(proof);
            commit.moved(self, &changes, modified, &mut freed).map(|()| true)
        });
        // After a media error it is unknown whether the entry is there: then the blocks stay taken.
        let is_taken = committed.as_ref().map_or_else(|error| error.kind() == Kind::Media, |done| *done);
        if !is_taken {
            self.free_runs(&runs);
        }
        freed.into_iter().for_each(|piece| self.free_piece(piece));
        committed
    }

    /// Has blocks changed where they are on a tier, without an entry.
    pub(crate) fn change_below(
        &self,
        inode: &Inode,
        from: &Movable,
        now: Timestamp,
        change: &mut dyn FnMut() -> Result<()>,
    ) -> Result<bool> {
        let map = self.file(inode)?;
        let log = inode.log.lock();
        inode.check_flags(Attr::IMMUTABLE)?;
        if log.state.dead_inode || !self.is_current(inode, map, from) {
            return Ok(false);
        }
        let PlacedExtent { start: FileBlock(first), len, .. } = from.extent;
        self.versions_of(inode).change(first..first + len);
        map.change_in_place(first, change).transpose()?;
        inode.touch(now);
        // No entry says the times.
        inode.lazy.store(true, Ordering::Release);
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
        let map = self.file(inode)?;
        let extend = inode.extend.lock();
        // Blocks that a truncation has still to free are not the file's any more.
        self.finish_trim(inode, &extend);
        let modified = inode.attr.get().mtime;
        let mut log = inode.log.lock();
        let mut found = Vec::new();
        let last = MAX_FILE_SIZE / BLOCK_SIZE;
        map.for_each(start.0.min(last), len.min(last.saturating_sub(start.0)), |piece| {
            if place::tier(piece.place) == tier && !is_written(piece.place) {
                found.push((piece.start, piece.len));
            }
        });
        let blocks = found.iter().map(|(_, len)| len).sum();
        let Some(&(first, _)) = found.first() else { return Ok(0) };
        let taken = self.allocate_unwritten(map, first, blocks)?;
        let mut changes = Changes::new();
        let mut places = taken.iter().copied();
        let (mut raw, mut left) = (0, 0);
        for (mut at, mut missing) in found {
            while missing > 0 {
                if left == 0 {
                    (raw, left) = places.next().unwrap_or((0, missing));
                }
                let count = left.min(missing);
                push_change(&mut changes, at, count, raw);
                (at, missing, raw, left) = (at + count, missing - count, raw + count, left - count);
            }
        }
        let mut parts = changes.chunks(MOST_ENTRIES);
        let (mut done, mut freed) = (Ok(()), Freed::new());
        let mut unused: Vec<Change> = Vec::new();
        for part in parts.by_ref() {
            done = Commit::of(inode, &mut log).moved(self, part, modified, &mut freed);
            if let Err(error) = &done {
                // After a media error it is unknown whether the entry is there: then the blocks stay taken.
                unused.extend(part.iter().filter(|_| error.kind() != Kind::Media));
                break;
            }
        }
        unused.extend(parts.flatten());
        drop(log);
        for Change { start, len, place, .. } in unused {
            self.free_piece(Piece { start, len, place: place.unwrap_or_default(), owner: 0 });
        }
        freed.into_iter().for_each(|piece| self.free_piece(piece));
        done.map(|()| blocks)
    }

    /// Whether blocks are where they were, with the same content. Under the log's lock.
    fn is_current(&self, inode: &Inode, map: &BlockMap, from: &Movable) -> bool {
        let PlacedExtent { start, len, place } = from.extent;
        let mut covered = 0;
        let blocks = start.0..start.0 + len;
        let mut is_same = len > 0 && self.versions_of(inode).is_unchanged(blocks, from.version);
        map.for_each(start.0, len, |piece: Piece| {
            let expected = PlacedExtent { start, len: piece.start - start.0, place };
            let here = place_of(piece.place);
            is_same &= if piece.start == start.0 { here == place } else { follows(&expected, here) };
            covered += piece.len;
        });
        // A truncation that has still to free them took them away.
        let end = match place {
            Place::Unwritten(_) => inode.trim.load(Ordering::Acquire),
            _ => inode.size().div_ceil(BLOCK_SIZE),
        };
        is_same && covered == len && start.0 + len <= end
    }

    fn copy_runs(&self, runs: &Runs, content: &[u8]) -> Result<Option<Flushed>> {
        let (mut flushed, mut rest) = (None, content);
        for run in runs {
            let (part, behind) = rest.split_at((run.len * BLOCK_SIZE) as usize);
            join(&mut flushed, Some(self.pm.copy(run.start.offset(), part)?));
            rest = behind;
        }
        Ok(flushed)
    }
}

impl Commit<'_> {
    /// Commits other places of the same content, as one operation; the replaced blocks go to `freed`.
    fn moved<P: Pm>(
        mut self,
        fs: &Shared<P>,
        changes: &[Change],
        modified: Timestamp,
        freed: &mut Freed,
    ) -> Result<()> {
        let inode = self.inode;
        let map = fs.file(inode)?;
        fs.check_pins(inode, map, changes)?;
        let mut batch = Batch::default();
        for change in changes {
            let mut entry = WriteEntry {
                place: change.place.unwrap_or_default(),
                file_block: change.start,
                blocks: u32::try_from(change.len).map_err(|_| Error::new(Kind::InvalidInput))?,
                mtime: inode.pack(modified),
                ..WriteEntry::default()
            };
            entry.header.kind = kind::WRITE;
            entry.header.flags = flag::MOVED;
            batch.push_line(&entry);
        }
        let flushed = self.append(fs, &mut batch)?;
        fs.note_changes(inode, changes);
        for (index, change) in changes.iter().enumerate() {
            apply_change(inode, map, self.log, change, batch.placed(index).0, freed, None);
        }
        fs.pm.fence(flushed);
        Ok(())
    }
}

/// Blocks that the file has at this place already stay its own; false when there are others.
fn keep_allocated(map: &BlockMap, change: &mut Change) -> bool {
    let Some(raw) = change.place else { return false };
    let mut same = 0;
    map.for_each(change.start, change.len, |piece| {
        let there = (raw + (piece.start - change.start)) | place::UNWRITTEN;
        same += if piece.place | place::UNWRITTEN == there { piece.len } else { 0 };
    });
    change.kept = same;
    same == change.len
}

/// Adds blocks, to the change before them where they continue it.
fn push_change(changes: &mut Changes, start: u64, len: u64, raw: u64) {
    if let Some(last) = changes.last_mut()
        && last.start + last.len == start
        && last.place.is_some_and(|before| before + last.len == raw)
        && last.len + len <= u64::from(u32::MAX)
    {
        last.len += len;
        return;
    }
    changes.push(Change { start, len, place: Some(raw), kept: 0 });
}
