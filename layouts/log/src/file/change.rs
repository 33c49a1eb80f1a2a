//! New places for parts of a file: their commit, and the change of the index after it.

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{BLOCK_SIZE, Result, Timestamp};
use nacre_layout_parts::versions::FileVersions;
use nacre_media::{Flushed, Pm};
use smallvec::SmallVec;

use crate::batch::Batch;
use crate::blockmap::{BlockMap, Piece};
use crate::commit::Commit;
use crate::format::{HoleEntry, WriteEntry, kind};
use crate::fs::Shared;
use crate::inode::Inode;
use crate::log::Log;
use crate::places::{is_written, media_offset};
use crate::seeded::fault;

/// Where a part of a file goes in one commit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change {
    /// First block in the file, and number of blocks.
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// The new place; `None` for a hole.
    pub(crate) place: Option<u64>,
    /// So many of the first blocks were at this place before, and stay allocated.
    pub(crate) kept: u64,
}

impl Change {
    /// The part of this change from one block to before another.
    fn part(&self, from: u64, to: u64) -> Change {
        Change {
            start: from,
            len: to - from,
            place: self.place.map(|raw| raw + (from - self.start)),
            kept: (self.start + self.kept).clamp(from, to) - from,
        }
    }
}

pub(crate) type Changes = SmallVec<[Change; 4]>;
pub(crate) type Freed = SmallVec<[Piece; 4]>;

impl<P: Pm> Shared<P> {
    /// Zeroes the part of the last block that lies behind the size, before the size grows to `until` or beyond.
    pub(crate) fn zero_gap(&self, inode: &Inode, size: u64, until: u64) -> Result<Option<Flushed>> {
        fault!(self.pm, GapNotZeroed => return Ok(None));
        let end = until.min(size.next_multiple_of(BLOCK_SIZE));
        if end <= size {
            return Ok(None);
        }
        let (map, block) = (self.file(inode)?, size / BLOCK_SIZE);
        match map.find(block, 1).0 {
            Some(raw) if is_written(raw) => {
                let zeroed = self.pm.zero(media_offset(raw)? + size % BLOCK_SIZE, end - size)?;
                map.note_change(block);
                self.versions_of(inode).change(block..block + 1);
                Ok(Some(zeroed))
            }
            _ => Ok(None),
        }
    }

    /// The versions of a file's blocks: whether they changed while they were copied.
    pub(crate) fn versions_of<'f>(&'f self, inode: &'f Inode) -> FileVersions<'f> {
        self.versions.of(inode.number, &inode.last_change)
    }

    /// These blocks change, for those that copy them meanwhile. Under the log's lock.
    pub(crate) fn note_changes(&self, inode: &Inode, changes: &[Change]) {
        let versions = self.versions_of(inode);
        changes.iter().for_each(|Change { start, len, .. }| versions.change(*start..start + len));
    }
}

impl Commit<'_> {
    /// Commits new places of parts of a file, and its size and times, as one operation; the replaced blocks go to
    /// `freed`. The caller has noted what changes: blocks that are only stated again do not.
    pub(crate) fn changes<P: Pm>(
        mut self,
        fs: &Shared<P>,
        changes: &[Change],
        size: u64,
        now: Timestamp,
        freed: &mut Freed,
    ) -> Result<()> {
        let inode = self.inode;
        let map = fs.file(inode)?;
        fs.check_pins(inode, map, changes)?;
        let mut batch = Batch::default();
        let mtime = inode.pack(now);
        for change in changes {
            match change.place {
                Some(raw) => push_extents(&mut batch, change, raw, size, mtime),
                None => batch.push_line(&hole_entry(change, size, mtime)),
            }
        }
        let flushed = self.append(fs, &mut batch)?;
        let log = &mut *self.log;
        // Where the file grows within a block that changes, its end and that block become new at once, and last:
        // otherwise a reader would see a part of the data there, up to the old end.
        let before = inode.size();
        let at_end = (size > before && !before.is_multiple_of(BLOCK_SIZE)).then_some(before / BLOCK_SIZE);
        let mut last = None;
        let mut entry = 0;
        for change in changes {
            let mut at = change.start;
            let end = change.start + change.len;
            while at < end {
                // One entry names any hole, and an extent up to a limit.
                let len = if change.place.is_some() { (end - at).min(MAX_ENTRY_BLOCKS) } else { end - at };
                let owner = batch.placed(entry).0;
                entry += 1;
                match at_end.filter(|block| (at..at + len).contains(block)) {
                    Some(block) => {
                        for part in [change.part(at, block), change.part(block + 1, at + len)] {
                            apply_change(inode, map, log, &part, owner, freed, None);
                        }
                        last = Some((change.part(block, block + 1), owner));
                    }
                    None => apply_change(inode, map, log, &change.part(at, at + len), owner, freed, None),
                }
                at += len;
            }
        }
        if let Some((part, owner)) = last {
            apply_change(inode, map, log, &part, owner, freed, Some(size));
        }
        inode.size.store(size, Ordering::Release);
        if self.is_reserved() {
            inode.touch_late(now);
        } else {
            inode.touch(now);
        }
        fs.pm.fence(flushed);
        Ok(())
    }
}

/// Blocks that one entry can name.
const MAX_ENTRY_BLOCKS: u64 = u32::MAX as u64;

fn push_extents(batch: &mut Batch, change: &Change, raw: u64, size: u64, mtime: u64) {
    let mut done = 0;
    while done < change.len {
        let len = (change.len - done).min(MAX_ENTRY_BLOCKS);
        let mut entry = WriteEntry {
            place: raw + done,
            file_block: change.start + done,
            blocks: len as u32,
            size,
            mtime,
            ..WriteEntry::default()
        };
        entry.header.kind = kind::WRITE;
        batch.push_line(&entry);
        done += len;
    }
}

fn hole_entry(change: &Change, size: u64, mtime: u64) -> HoleEntry {
    let mut entry =
        HoleEntry { file_block: change.start, blocks: change.len, size, mtime, ..HoleEntry::default() };
    entry.header.kind = kind::HOLE;
    entry
}

/// Changes the index after a commit. The old places of the kept blocks stay allocated; the rest goes to `freed`. If one
/// block changes, readers see the new `size` at the same moment.
pub(crate) fn apply_change(
    inode: &Inode,
    map: &BlockMap,
    log: &mut Log,
    change: &Change,
    owner: u32,
    freed: &mut Freed,
    size: Option<u64>,
) {
    if change.len == 0 {
        return;
    }
    let mut removed = 0;
    let grow = || {
        if let Some(size) = size {
            inode.size.store(size, Ordering::Release);
        }
    };
    if change.place.is_some() {
        log.index.hold(owner, change.len);
    }
    if change.kept > 0 {
        map.replace_and(change.start, change.kept, change.place, owner, grow, |piece| {
            log.index.release(piece.owner, piece.len);
            removed += piece.len;
        });
    }
    if change.len > change.kept {
        let place = change.place.map(|raw| raw + change.kept);
        map.replace_and(change.start + change.kept, change.len - change.kept, place, owner, grow, |piece| {
            log.index.release(piece.owner, piece.len);
            removed += piece.len;
            freed.push(piece);
        });
    }
    let added = if change.place.is_some() { change.len } else { 0 };
    if added != removed {
        inode.blocks.fetch_add(added.wrapping_sub(removed), Ordering::Relaxed);
    }
}

/// One proof for stores that are flushed, of those before and the next ones.
pub(crate) fn join(flushed: &mut Option<Flushed>, next: Option<Flushed>) {
    if let Some(next) = next {
        *flushed = Some(match flushed.take() {
            Some(earlier) => earlier.and(next),
            None => next,
        });
    }
}
