//! Compaction of a file's log to the least that says the same (paper 002, section 5.6), when PM is short.
//!
//! Collection ([`collect`](crate::collect)) copies live entries page by page when a log has grown. A compaction takes a
//! [portion](Loose::PAGES) of pages at once, the tail among them, and splits their live write entries into blocks. All blocks of
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

use std::sync::Arc;

use nacre_engine::{CompactedLog, Result, unless_full};
use nacre_layout_parts::format::incompatible;
use nacre_media::Pm;
use zerocopy::FromBytes;

use crate::alloc::Purpose;
use crate::format::{EntryHeader, INLINE_LINES, LINE};
use crate::fs::Shared;
use crate::inode::Inode;
use crate::log::{INLINE, InlineLine, Log, NO_PAGE};
use crate::survivor::{Gathered, Loose, Survivor, line_count, name_anew, pack};

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
        // If there is no space for the copies, nothing has changed.
        Ok(unless_full(log.compact(self, inode, begin))?.unwrap_or(nothing))
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
        while count < Loose::PAGES && behind != NO_PAGE {
            last = behind;
            self.gather(fs, inode, last, &mut gathered)?;
            behind = self.index.pages[last as usize].next;
            count += 1;
        }
        let Gathered { mut survivors, dead, stuck, loose, .. } = gathered;
        let loose = loose.unwrap_or_default();
        let is_readable = loose.blocks.len() <= Loose::MOST_PIECES;
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
