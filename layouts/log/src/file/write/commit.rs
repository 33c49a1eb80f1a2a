//! Committing a write that is prepared, unless the file has changed meanwhile.

use nacre_engine::sync::MutexGuard;
use nacre_engine::{BLOCK_SIZE, Result};
use nacre_media::{Durable, Pm};

use super::prepare::{Edge, Prepared, Source, Target};
use super::{Attempt, Range, Write};
use crate::alloc::Purpose;
use crate::blockmap::{BlockMap, Piece};
use crate::commit::{Commit, if_reserved};
use crate::file::{Change, Changes, Freed, join};
use crate::fs::Shared;
use crate::log::{INLINE, Log, NO_PAGE};
use crate::places::{is_written, media_offset};
use crate::seeded::fault;

impl<P: Pm> Shared<P> {
    /// Commits a write that is prepared, as one operation; the replaced blocks go to `freed`.
    pub(crate) fn commit_write(
        &self,
        write: &Write<'_>,
        mut log: MutexGuard<'_, Log>,
        range: Range,
        prepared: &mut Prepared,
        freed: &mut Freed,
    ) -> Result<Attempt> {
        let Write { inode, data, now, extends } = *write;
        let map = self.file(inode)?;
        let size = inode.size();
        if !extends && range.end > size {
            return Ok(Attempt::Extends);
        }
        let is_outrun = !extends && self.has_grown(range, prepared, size);
        if is_outrun || self.has_other_edges(map, prepared) {
            return Ok(Attempt::Again);
        }
        let mut flushed = prepared.flushed.take();
        let mut changes = Changes::new();
        if extends {
            let gap_end = if range.in_place > 0 { range.offset } else { range.offset.max(size) };
            join(&mut flushed, self.zero_gap(inode, size, gap_end)?);
        }
        if range.in_place > 0 {
            let block = range.offset / BLOCK_SIZE;
            let Some(raw) = map.find(block, 1).0.filter(|&raw| is_written(raw)) else {
                return Ok(Attempt::Again);
            };
            let mut source = Source::from(data, range.before);
            let mut at = media_offset(raw)? + range.offset % BLOCK_SIZE;
            let mut left = range.in_place as usize;
            while left > 0 {
                let part = source.next(left);
                join(&mut flushed, Some(self.pm.copy(at, part)?));
                at += part.len() as u64;
                left -= part.len();
            }
            changes.push(Change { start: block, len: 1, place: Some(raw), kept: 1 });
        }
        let mut start = range.first_block();
        for &Target { run, kept } in &prepared.targets {
            let kept = if kept { run.len } else { 0 };
            changes.push(Change { start, len: run.len, place: Some(run.start.0), kept });
            start += run.len;
        }
        self.note_changes(inode, &changes);
        if log.index.head == NO_PAGE {
            restate(map, &mut changes);
        }
        fault!(self.pm, EntryBeforeData => flushed = None);
        let after = flushed.map_or_else(Durable::nothing_before, |flushed| self.pm.fence(flushed));
        // Times that changed while this waited stay changed then.
        let now = if range.purpose == Purpose::Reserved { now.max(inode.attr.get().ctime) } else { now };
        let pages = range.pages.or(if_reserved(range.purpose));
        let commit = Commit::of(inode, &mut log).pages(pages).after(after);
        commit.changes(self, &changes, size.max(range.end), now, freed)?;
        Ok(Attempt::Done)
    }

    /// Whether bytes beyond the size that a write found may have been written since. A block of which a part is kept has
    /// zeros there, also when it was read after that write: the size was read before.
    fn has_grown(&self, range: Range, prepared: &Prepared, size: u64) -> bool {
        fault!(self.pm, GrowthNotSeen => return false);
        let last_is_short = !range.end.is_multiple_of(BLOCK_SIZE) && range.end >= prepared.size;
        let has_zeros = |edge: &Edge| (edge.block + 1) * BLOCK_SIZE > prepared.size;
        size > prepared.size && (last_is_short || prepared.edges.iter().any(has_zeros))
    }

    /// Whether a block of which a part is kept is another one by now, or has other bytes.
    fn has_other_edges(&self, map: &BlockMap, prepared: &Prepared) -> bool {
        fault!(self.pm, EdgeNotChecked => return false);
        let is_other =
            |edge: &Edge| map.find(edge.block, 1).0 != edge.place || map.version(edge.block) != edge.version;
        prepared.edges.iter().any(is_other)
    }
}

/// While the log is in the inode's few lines: joins the changes with each other and with the extent before them, if
/// they continue it on media. So one entry replaces several, and the lines of these become free.
fn restate(map: &BlockMap, changes: &mut Changes) {
    if changes.len() == 2 && changes[1].kept == 0 && continues(&changes[0], &changes[1]) {
        changes[0].len += changes[1].len;
        changes.pop();
    }
    let [change] = changes.as_mut_slice() else { return };
    let Some(raw) = change.place else { return };
    let leaf_start = change.start - change.start % 512;
    let mut before: Option<Piece> = None;
    map.for_each(leaf_start, change.start - leaf_start, |piece| before = Some(piece));
    if let Some(piece) = before
        && piece.owner >= INLINE
        && piece.start + piece.len == change.start
        && piece.place + piece.len == raw
    {
        *change = Change {
            start: piece.start,
            len: piece.len + change.len,
            place: Some(piece.place),
            kept: piece.len + change.kept,
        };
    }
}

fn continues(first: &Change, second: &Change) -> bool {
    first.start + first.len == second.start
        && first.kept == first.len
        && first.place.is_some_and(|raw| second.place == Some(raw + first.len))
}
