//! The log of an inode in DRAM: its pages, which of its entries are live, and how far collection and compaction are.
//!
//! A log is read into this by [`load`](crate::load), and changed with each [`commit`](crate::commit), each
//! [`collection`](crate::collect) and each [`compaction`](crate::compact).

use nacre_engine::Block;
use nacre_media::Pm;
use zerocopy::FromBytes;

use crate::alloc::Run;
use crate::format::{
    DENTRY_NAME_OFFSET, DentryEntry, EntryHeader, FIRST_SEQUENCE, INLINE_LINES, RemoveEntry, flag, kind,
};
use crate::seeded::fault;

/// A page of the log by its index in [`LiveIndex::pages`], or, from [`INLINE`] on, a line of the inode.
pub(crate) type Owner = u32;
/// The owner of the inode's first line.
pub(crate) const INLINE: Owner = u32::MAX - 8;
/// The owner of blocks that an image names, wherever in the log its entry is. They are not counted: no single one of
/// them leaves the image.
pub(crate) const IN_IMAGE: Owner = u32::MAX - 4;
/// No page.
pub(crate) const NO_PAGE: u32 = u32::MAX;

/// Pages that a log has before collection is thought of.
pub(crate) const MIN_COLLECTED_PAGES: u32 = 8;
/// A log is collected when it has grown so many times.
pub(crate) const GROWTH: u32 = 3;

/// Not in the list of dead pages.
pub(crate) const NOT_LISTED: u32 = u32::MAX - 1;

/// One page of a log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Page {
    pub(crate) block: Block,
    pub(crate) first_sequence: u64,
    /// References to entries of this page: blocks of the map, names, attributes.
    pub(crate) live: u32,
    /// Lines that hold entries.
    pub(crate) lines: u16,
    /// Entries that take something away (holes, removals, truncations): they must stay while an older page may hold its
    /// entries.
    pub(crate) negatives: u16,
    pub(crate) previous: u32,
    /// The page behind it, or, of a slot that is not in use, the next such slot.
    pub(crate) next: u32,
    /// The next page of the list of dead pages, [`NOT_LISTED`] when it is not in that list.
    pub(crate) next_dead: u32,
}

/// The use of one of the inode's lines.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct InlineLine {
    /// Kind of the entry that starts here, 0 when the line is free or continues the one before.
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    /// Lines of that entry.
    pub(crate) lines: u8,
    pub(crate) live: u32,
    pub(crate) sequence: u64,
    /// For a removal: the sequence number of its victim.
    pub(crate) victim: u64,
}

impl Page {
    /// A page at a block, without entries and neighbours.
    pub(crate) const fn empty(block: Block) -> Page {
        Page {
            block,
            first_sequence: 0,
            live: 0,
            lines: 0,
            negatives: 0,
            previous: NO_PAGE,
            next: NO_PAGE,
            next_dead: NOT_LISTED,
        }
    }
}

/// The log of one inode.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) state: LogState,
    pub(crate) index: LiveIndex,
    pub(crate) collector: Collector,
    pub(crate) compaction: Compaction,
}

/// The numbers of a log, and whether it can be continued.
pub(crate) struct LogState {
    pub(crate) next_sequence: u64,
    /// The greatest transaction in this log.
    pub(crate) last_transaction: u64,
    /// A write to media failed in the middle: the log cannot be continued.
    pub(crate) broken: bool,
    /// The inode was reclaimed.
    pub(crate) dead_inode: bool,
}

/// The pages of a log, and references to its live entries.
pub(crate) struct LiveIndex {
    /// The first page, [`NO_PAGE`] while the entries are in the inode.
    pub(crate) head: u32,
    pub(crate) tail: u32,
    /// Pages by owner; slots that are not in use are chained from `free_slot`.
    pub(crate) pages: Vec<Page>,
    pub(crate) free_slot: u32,
    /// Number of pages.
    pub(crate) page_count: u32,
    /// First of the pages without a live entry that collection has not looked at.
    pub(crate) dead: u32,
    pub(crate) inline: [InlineLine; INLINE_LINES],
    /// Where the last attribute entry is, and its sequence number.
    pub(crate) last_attr: Option<(Owner, u64)>,
    /// Where the last entry is that says mtime, and the size of a file, and its sequence number: it stays, even when
    /// nothing else of it counts.
    pub(crate) last_touch: Option<(Owner, u64)>,
    /// Where the last entry is that says a later ctime than that one.
    pub(crate) last_ctime: Option<(Owner, u64)>,
}

/// How far the collection of a log is.
pub(crate) struct Collector {
    /// Collection of half-dead pages starts when the log has this many pages.
    pub(crate) at: u32,
    /// Where the collection that is under way goes on; [`NO_PAGE`] if none is.
    pub(crate) from: u32,
    /// The next sequence number when all of it was last collected because there was no page.
    pub(crate) all_at: u64,
    /// Entries taken away before this sequence number are in no page that the collection under way has passed. Zero if
    /// that is unknown.
    pub(crate) gone_before: u64,
}

/// When a log was compacted and looked at for an image, by its next sequence number. It has not changed while that is
/// the same.
#[derive(Default)]
pub(crate) struct Compaction {
    /// When it was last compacted; zero when it never was.
    pub(crate) done_at: u64,
    /// When the compaction began that is under way.
    pub(crate) begun_at: u64,
    /// When an image was found not to be for this log.
    pub(crate) no_image_at: u64,
}

impl Default for LogState {
    fn default() -> LogState {
        LogState { next_sequence: FIRST_SEQUENCE, last_transaction: 0, broken: false, dead_inode: false }
    }
}

impl Default for LiveIndex {
    fn default() -> LiveIndex {
        LiveIndex {
            head: NO_PAGE,
            tail: NO_PAGE,
            pages: Vec::new(),
            free_slot: NO_PAGE,
            page_count: 0,
            dead: NO_PAGE,
            inline: [InlineLine::default(); INLINE_LINES],
            last_attr: None,
            last_touch: None,
            last_ctime: None,
        }
    }
}

impl Default for Collector {
    fn default() -> Collector {
        Collector { at: MIN_COLLECTED_PAGES, from: NO_PAGE, all_at: 0, gone_before: 0 }
    }
}

impl LiveIndex {
    /// Counts an entry that is on media at `owner`: after it was written, or when a log is read.
    pub(crate) fn note_entry(&mut self, owner: Owner, header: &EntryHeader, entry: &[u8]) {
        let negative = is_negative(header.kind, header.flags);
        if owner >= INLINE {
            let first = (owner - INLINE) as usize;
            let victim = match header.kind {
                kind::REMOVE => RemoveEntry::read_from_prefix(entry).map_or(0, |(entry, _)| entry.cookie),
                _ => 0,
            };
            self.inline[first] = InlineLine {
                kind: header.kind,
                flags: header.flags,
                lines: header.lines,
                live: 0,
                sequence: header.sequence,
                victim,
            };
            for line in first + 1..first + usize::from(header.lines) {
                self.inline[line] = InlineLine::default();
            }
        } else {
            let page = &mut self.pages[owner as usize];
            page.lines += u16::from(header.lines);
            page.negatives += u16::from(negative);
        }
        let here = Some((owner, header.sequence));
        if header.kind == kind::ATTR {
            self.hold(owner, 1);
            if let Some((old, _)) = std::mem::replace(&mut self.last_attr, here) {
                self.release(old, 1);
            }
        }
        match header.kind {
            // They stay until the log is another one, and nothing in the index refers to them.
            kind::SYMLINK | kind::IMAGE => self.hold(owner, 1),
            // Blocks that were moved say nothing of the file.
            kind::WRITE if header.flags & flag::MOVED != 0 => {}
            kind::WRITE | kind::ATTR | kind::HOLE | kind::DENTRY | kind::REMOVE => {
                self.hold(owner, 1);
                let before = [std::mem::replace(&mut self.last_touch, here), self.last_ctime.take()];
                for (old, _) in before.into_iter().flatten() {
                    self.release(old, 1);
                }
            }
            kind::XATTR | kind::XATTR_REMOVE => {
                self.hold(owner, 1);
                if let Some((old, _)) = std::mem::replace(&mut self.last_ctime, here) {
                    self.release(old, 1);
                }
            }
            _ => {}
        }
    }

    /// `count` more references to entries at `owner`.
    pub(crate) fn hold(&mut self, owner: Owner, count: u64) {
        if owner >= INLINE {
            self.inline[(owner - INLINE) as usize].live += count as u32;
        } else {
            self.pages[owner as usize].live += count as u32;
        }
    }

    /// `count` references fewer.
    pub(crate) fn release(&mut self, owner: Owner, count: u64) {
        let live = if owner >= INLINE {
            &mut self.inline[(owner - INLINE) as usize].live
        } else {
            &mut self.pages[owner as usize].live
        };
        debug_assert!(u64::from(*live) >= count, "owner {owner:#x} has {live} references, {count} go");
        *live = live.saturating_sub(count as u32);
        if *live == 0 && owner < INLINE && owner != self.tail {
            self.note_dead(owner);
        }
    }

    /// Takes a page into the list of dead ones.
    pub(crate) fn note_dead(&mut self, page: u32) {
        let entry = &mut self.pages[page as usize];
        if entry.next_dead == NOT_LISTED {
            entry.next_dead = self.dead;
            self.dead = page;
        }
    }

    /// Puts a page into a slot.
    pub(crate) fn take_slot(&mut self, page: Page) -> u32 {
        if self.free_slot == NO_PAGE {
            self.pages.push(page);
            return self.pages.len() as u32 - 1;
        }
        let index = self.free_slot;
        self.free_slot = self.pages[index as usize].next;
        self.pages[index as usize] = page;
        index
    }

    /// Neighbouring lines of the inode that can be written, `count` of them.
    pub(crate) fn free_inline_lines(&self, pm: &impl Pm, count: usize) -> Option<usize> {
        (0..=INLINE_LINES.checked_sub(count)?).find(|&first| {
            // Not from the middle of an older entry on: its beginning would stay behind.
            if self.covering(first).is_some_and(|start| start != first) {
                return false;
            }
            // Nothing that is overwritten, or zeroed because it belongs to the entry that was here, may be live, and no
            // entry that begins in these lines may reach beyond them.
            let spans = count.max(usize::from(self.inline[first].lines));
            (first..first + spans).all(|line| !self.is_inside_live(pm, line))
                && (first + 1..first + spans)
                    .all(|line| line + usize::from(self.inline[line].lines) <= first + spans)
        })
    }

    /// The line where the entry starts that this line belongs to.
    fn covering(&self, line: usize) -> Option<usize> {
        let start = (0..=line).rev().find(|&start| self.inline[start].kind != 0)?;
        (line < start + usize::from(self.inline[start].lines)).then_some(start)
    }

    /// True when the line belongs to an entry that must stay.
    pub(crate) fn is_inside_live(&self, pm: &impl Pm, line: usize) -> bool {
        let Some(start) = self.covering(line) else { return false };
        let entry = &self.inline[start];
        if entry.live > 0 {
            return true;
        }
        // A removal must stay while its victim is there.
        match entry.kind {
            kind::REMOVE => self.inline.iter().any(|e| e.kind == kind::DENTRY && e.sequence == entry.victim),
            kind::XATTR_REMOVE => self.has_older(entry.sequence, kind::XATTR),
            kind::HOLE => self.has_older(entry.sequence, kind::WRITE),
            kind::ATTR if entry.flags & flag::TRUNCATE != 0 => {
                fault!(pm, TruncationForgotten => return false);
                self.has_older(entry.sequence, kind::WRITE)
            }
            _ => false,
        }
    }

    fn has_older(&self, sequence: u64, kind: u8) -> bool {
        self.inline.iter().any(|entry| entry.kind == kind && entry.sequence < sequence)
    }

    /// Takes a page into the list, at the end.
    pub(crate) fn insert_page(&mut self, page: Page) -> u32 {
        let index = self.take_slot(page);
        self.page_count += 1;
        if self.tail == NO_PAGE {
            self.head = index;
        } else {
            self.pages[self.tail as usize].next = index;
            if self.pages[self.tail as usize].live == 0 {
                self.note_dead(self.tail);
            }
        }
        self.tail = index;
        index
    }

    /// The pages from first to last.
    pub(crate) fn page_order(&self) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors((self.head != NO_PAGE).then_some(self.head), |&page| {
            let next = self.pages[page as usize].next;
            (next != NO_PAGE).then_some(next)
        })
    }

    /// Bytes of DRAM beside its own struct.
    pub(crate) fn heap_bytes(&self) -> u64 {
        (self.pages.capacity() * size_of::<Page>()) as u64
    }

    /// All blocks of the log, for giving them back.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = Run> + '_ {
        self.page_order().map(|page| Run { start: self.pages[page as usize].block, len: 1 })
    }

    /// The entries that say attributes, times or the size last.
    pub(crate) fn last_entries(&mut self) -> impl Iterator<Item = &mut (Owner, u64)> {
        [&mut self.last_attr, &mut self.last_touch, &mut self.last_ctime].into_iter().flatten()
    }
}

/// An entry takes something away that older entries gave.
pub(crate) fn is_negative(kind: u8, flags: u8) -> bool {
    matches!(kind, kind::HOLE | kind::REMOVE | kind::XATTR_REMOVE)
        || (kind == kind::ATTR && flags & flag::TRUNCATE != 0)
}

/// The name in an entry, when it is a dentry.
pub(crate) fn dentry_name(lines: &[u8]) -> Option<&[u8]> {
    let (dentry, _) = DentryEntry::read_from_prefix(lines).ok()?;
    if dentry.header.kind != kind::DENTRY {
        return None;
    }
    lines.get(DENTRY_NAME_OFFSET..DENTRY_NAME_OFFSET + usize::from(dentry.name_len))
}
