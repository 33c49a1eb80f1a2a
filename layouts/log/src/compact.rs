//! Compaction of a file's log to the least that says the same (paper 002, section 5.6), when PM is short.
//!
//! Collection ([`collect`](crate::collect)) copies live entries page by page when a log has grown. A compaction takes a
//! [`PORTION`] of pages at once, the tail among them, and splits their live write entries into blocks. All blocks of
//! the portion are named anew, in the order of the file, neighbours together. The new entries (those of moved blocks)
//! say only where blocks are. The last entry that says size and times stays; if it named blocks that are elsewhere by
//! now, a hole of no blocks says them instead. If all that is left fits into the inode's three lines, it goes back
//! there.
//!
//! A compaction commits like a collection: copies where nothing reads, durable, then one store of the word that led to
//! the old ones. The inode's lines count only while the head is 0, so they are written before that is stored.
//!
//! **Numbers.** Entries stand in the order of their sequence numbers. The new ones stand behind all others of the
//! portion and have the greatest number that there was in it. So they come before the entries in later pages, and the
//! number of the last entry stays the same.
//!
//! **Portions.** The log is locked for one portion at a time. A compaction begins one only when the lock is free. The
//! next portion begins with the last page of the one before, which may have room left. It is a collection that began at
//! the head in all that the [`Collector`](crate::log::Collector) says; one that a foreground operation does goes
//! on from there, and the other way round.

use std::ops::Range;
use std::sync::Arc;

use nacre_engine::{BLOCK_SIZE, CompactedLog, Kind, Result};
use nacre_layout_parts::format::incompatible;
use nacre_media::Pm;
use smallvec::SmallVec;
use zerocopy::{FromBytes, IntoBytes};

use crate::alloc::Purpose;
use crate::blockmap::{BlockMap, Piece};
use crate::collect::{
    Gathered, OldEntry, References, Survivor, is_whole, line_count, live_pieces, pack, reseal,
};
use crate::format::{
    EntryHeader, HoleEntry, INLINE_LINES, LINE, MAX_FILE_SIZE, PAGE_LINES, WriteEntry, flag, kind, place,
};
use crate::fs::Shared;
use crate::inode::Inode;
use crate::log::{INLINE, InlineLine, Log, NO_PAGE};

/// Pages that are compacted at once: about as many as can be before other operations notice that the log is locked.
const PORTION: usize = 16;
/// Runs of blocks of a portion; with more of them it would not become smaller.
const MOST_PIECES: usize = PORTION * PAGE_LINES;

/// Blocks that are live in a portion, apart from their entries. Several entries may say the same of one block.
#[derive(Default)]
pub(crate) struct Loose {
    blocks: Vec<LooseBlocks>,
    /// All of a log is gathered, to say otherwise where its blocks are: of write entries, and of that of an image, none
    /// stays.
    pub(crate) is_whole: bool,
    /// Those of the last write: its entry stays as it is.
    kept: Range<u64>,
    /// The greatest sequence number of the portion.
    pub(crate) greatest: u64,
}

impl Loose {
    /// For all of a log.
    pub(crate) fn of_whole() -> Loose {
        Loose { is_whole: true, ..Loose::default() }
    }

    /// All blocks of a file, for a log that is gathered whole.
    pub(crate) fn take_all(&mut self, map: &BlockMap, modified: u64) {
        self.blocks.clear();
        map.for_each(0, MAX_FILE_SIZE / BLOCK_SIZE, |piece| {
            self.blocks.push(LooseBlocks { piece, modified });
        });
    }
}

struct LooseBlocks {
    piece: Piece,
    /// Packed, when they were written.
    modified: u64,
}

impl<P: Pm> Shared<P> {
    /// Compacts a portion of a file's log.
    pub(crate) fn compact_log(&self, inode: &Arc<Inode>, begin: bool) -> Result<CompactedLog> {
        inode.file_map()?;
        let nothing = CompactedLog { freed: 0, is_done: true };
        // Entries of blocks that were moved are of file systems with tiers.
        if self.superblock.lock().raw.features_incompatible & incompatible::TIERS == 0 {
            return Ok(nothing);
        }
        // A writer of it goes first, and it is not cold.
        let Some(mut log) = inode.log.try_lock() else { return Ok(nothing) };
        if log.state.broken || log.state.dead_inode || inode.trim_is_pending() {
            return Ok(nothing);
        }
        match log.compact(self, inode, begin) {
            // There is none for the copies; nothing has changed.
            Err(error) if error.kind() == Kind::NoSpace => Ok(nothing),
            done => done,
        }
    }
}

impl Log {
    fn compact<P: Pm>(&mut self, fs: &Shared<P>, inode: &Inode, begin: bool) -> Result<CompactedLog> {
        let before = self.index.page_count;
        if self.index.head == NO_PAGE || begin && self.compaction.done_at == self.state.next_sequence {
            return Ok(CompactedLog { freed: 0, is_done: true });
        }
        self.drop_dead_pages(fs, inode)?;
        if begin {
            self.begin_collection();
            self.compaction.begun_at = self.state.next_sequence;
        }
        // A page that was dropped meanwhile ends it, as it ends a collection.
        let from = self.collector.from;
        let goes_on = from != NO_PAGE && self.index.pages[from as usize].block.0 != 0;
        if goes_on {
            self.collector.from = self.compact_portion(fs, inode, from)?;
        }
        let is_done = !goes_on || self.collector.from == NO_PAGE;
        if is_done {
            self.end_collection();
            // Blocks that died since it began have an entry that says so.
            self.compaction.done_at = self.compaction.begun_at;
        }
        Ok(CompactedLog { freed: u64::from(before.saturating_sub(self.index.page_count)), is_done })
    }

    /// Compacts pages from `from` on; gives the one to go on with, or [`NO_PAGE`].
    fn compact_portion<P: Pm>(&mut self, fs: &Shared<P>, inode: &Inode, from: u32) -> Result<u32> {
        let at_head = from == self.index.head;
        let mut gathered = Gathered::new(at_head, Some(Loose::default()));
        let (mut last, mut count, mut behind) = (from, 0, from);
        while count < PORTION && behind != NO_PAGE {
            last = behind;
            self.gather(fs, inode, last, &mut gathered)?;
            behind = self.index.pages[last as usize].next;
            count += 1;
        }
        let Gathered { mut survivors, dead, stuck, loose, .. } = gathered;
        let loose = loose.unwrap_or_default();
        let is_readable = loose.blocks.len() <= MOST_PIECES;
        if is_readable {
            name_anew(loose, inode.seed, &mut survivors);
        }
        let pages = pack(&survivors);
        let is_all = at_head && behind == NO_PAGE;
        let next = if is_readable && is_all && line_count(&survivors) <= INLINE_LINES {
            self.put_into_inode(fs, inode, last, &survivors)?;
            NO_PAGE
        } else if is_readable && pages.len() < count {
            self.replace_pages(fs, inode, Some((from, last)), &pages, Purpose::Removal)?;
            let goes_on =
                if behind == NO_PAGE { NO_PAGE } else { self.index.pages[behind as usize].previous };
            // Nothing may be left of the portion.
            if goes_on == NO_PAGE { behind } else { goes_on }
        } else {
            if dead {
                self.collector.gone_before = 0;
            }
            behind
        };
        if stuck {
            self.collector.gone_before = 0;
        }
        Ok(if behind == NO_PAGE { NO_PAGE } else { next })
    }

    /// Moves all of a log with the last page `last` back into the inode's lines.
    pub(crate) fn put_into_inode<P: Pm>(
        &mut self,
        fs: &Shared<P>,
        inode: &Inode,
        last: u32,
        survivors: &[Survivor],
    ) -> Result<()> {
        self.settle_own(fs)?;
        let address = inode.address + LINE as u64;
        let mut bytes = [0u8; LINE * INLINE_LINES];
        let mut line = 0;
        for survivor in survivors {
            bytes[line * LINE..][..survivor.bytes.len()].copy_from_slice(&survivor.bytes);
            if let Ok((header, _)) = EntryHeader::read_from_prefix(&survivor.bytes) {
                let EntryHeader { kind, flags, lines, sequence, .. } = header;
                // Only directories have removals, which name a victim.
                self.index.inline[line] = InlineLine { kind, flags, lines, live: 0, sequence, victim: 0 };
            }
            line += survivor.bytes.len() / LINE;
        }
        let written = fs.pm.copy(address, &bytes).map(|copied| fs.pm.fence(copied));
        let linked = written.and_then(|after| self.link(fs, inode, NO_PAGE, None, after));
        match linked {
            Ok(flushed) => fs.pm.fence(flushed),
            Err(error) => {
                self.index.inline = [InlineLine::default(); INLINE_LINES];
                return Err(error);
            }
        };
        self.move_references(fs, inode, survivors, |line| INLINE + line as u32, address);
        self.give_back(fs, self.index.head, last, false);
        (self.index.head, self.index.tail, self.index.dead) = (NO_PAGE, NO_PAGE, NO_PAGE);
        (self.index.pages, self.index.free_slot) = (Vec::new(), NO_PAGE);
        Ok(())
    }
}

/// Takes the live blocks of a write entry apart. Its size and times stay if no later entry says them.
pub(crate) fn gather_loose(inode: &Inode, old: &OldEntry<'_>, is_last_touch: bool, gathered: &mut Gathered) {
    let Ok((raw, _)) = WriteEntry::read_from_prefix(old.bytes) else { return };
    let pieces = live_pieces(inode, old.owner, old.bytes, MOST_PIECES);
    let is_live = is_whole(old.bytes, &pieces);
    gathered.dead |= !is_live;
    let Some(loose) = &mut gathered.loose else { return };
    if is_last_touch && is_live && !loose.is_whole {
        let start = raw.file_block & place::BLOCK_MASK;
        loose.kept = start..start + u64::from(raw.blocks);
        gathered.keep(old, old.bytes, References::Pieces(pieces), inode.seed);
        return;
    }
    // With too many of them none is looked at.
    let most = MOST_PIECES + 1;
    let blocks = pieces.into_iter().map(|piece| LooseBlocks { piece, modified: raw.mtime });
    loose.blocks.extend(blocks.take(most.saturating_sub(loose.blocks.len())));
    if is_last_touch {
        let header = EntryHeader { kind: kind::HOLE, flags: 0, ..raw.header };
        let hole = HoleEntry { header, size: raw.size, mtime: raw.mtime, ..HoleEntry::default() };
        gathered.keep(old, hole.as_bytes(), References::Nothing, inode.seed);
    }
}

/// Names loose blocks by new entries, in the order of the file, those together that lie together, each block once.
pub(crate) fn name_anew(loose: Loose, seed: u32, survivors: &mut Vec<Survivor>) {
    let Loose { mut blocks, kept, greatest, .. } = loose;
    blocks.sort_unstable_by_key(|blocks| blocks.piece.start);
    let first = survivors.len();
    let mut named = 0;
    for LooseBlocks { piece, modified } in blocks {
        let before = clip(piece, named..kept.start);
        let behind = clip(piece, named.max(kept.end)..u64::MAX);
        for piece in before.into_iter().chain(behind) {
            name(piece, modified, greatest, first, survivors);
        }
        named = named.max(piece.start + piece.len);
    }
    survivors[first..].iter_mut().for_each(|survivor| reseal(&mut survivor.bytes, seed));
}

/// The blocks of a piece that are in a range.
fn clip(piece: Piece, range: Range<u64>) -> Option<Piece> {
    let start = piece.start.max(range.start);
    let end = (piece.start + piece.len).min(range.end);
    let place = piece.place + (start - piece.start);
    (start < end).then(|| Piece { start, len: end - start, place, ..piece })
}

/// Names blocks by the last of the new entries, from `first` on, where they continue it, or by another one.
fn name(piece: Piece, modified: u64, sequence: u64, first: usize, survivors: &mut Vec<Survivor>) {
    if let Some(last) = survivors[first..].last_mut()
        && let References::Pieces(pieces) = &mut last.references
        && let Ok((entry, _)) = WriteEntry::mut_from_prefix(&mut last.bytes)
        && entry.file_block + u64::from(entry.blocks) == piece.start
        && entry.place + u64::from(entry.blocks) == piece.place
        && u64::from(entry.blocks) + piece.len <= u64::from(u32::MAX)
    {
        entry.blocks += piece.len as u32;
        entry.mtime = entry.mtime.max(modified);
        pieces.push(piece);
        return;
    }
    let mut entry = WriteEntry {
        place: piece.place,
        file_block: piece.start,
        blocks: piece.len as u32,
        mtime: modified,
        ..WriteEntry::default()
    };
    entry.header = EntryHeader { kind: kind::WRITE, flags: flag::MOVED, lines: 1, sequence, ..entry.header };
    survivors.push(Survivor {
        bytes: SmallVec::from_slice(entry.as_bytes()),
        sequence,
        old_owner: piece.owner,
        old_address: 0,
        references: References::Pieces(SmallVec::from_slice(&[piece])),
    });
}
