//! The commit protocol: appending entries to an inode's log.
//!
//! An operation is one *batch* of entries in one log (a rename across directories: one batch in each of two logs).
//!
//! 1. The data and new inodes that the entries refer to are on their way to media or durable.
//! 2. Room is made: a line of the inode, or a page. A page is zeroed and its header written, durable, before the word
//!    that links it is stored.
//! 3. The lines are copied past the cache. Each entry's checksum covers the inode, its generation and a sequence number
//!    that never repeats. So an entry is there wholly or not at all. All but the last of a batch say that more follows,
//!    so the same holds for the batch.
//! 4. The index in DRAM changes while the lines are on their way; then one fence, after which blocks that the operation
//!    set free may be used again and it is acknowledged. Because the log is locked from 3 to 4, everything before an
//!    acknowledged entry is durable. Another thread may see the change a fence earlier than it is durable, and never
//!    get an acknowledgement for it. Only a new name waits for the fence: otherwise a file that another thread makes
//!    under it would be acknowledged by a fence that is not for the name.
//!
//! While `head` is 0 the entries are in the three lines of the inode, in any position; a line with a dead entry is used
//! again. Batches of several entries, and entries that find no line, move the log to a page. Its copy of the live
//! entries becomes the log when `head` is stored, and the inode's lines count no more.

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{BLOCK_SIZE, Block, Error, Kind, Result};
use nacre_media::{Durable, Flushed, Pm};
use smallvec::SmallVec;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::alloc::{Purpose, Run};
use crate::format::{
    DENTRY_NAME_OFFSET, DentryEntry, EntryHeader, INLINE_LINES, INODE_HEAD_OFFSET, LINE, PAGE_LINES,
    PAGE_MAGIC, PAGE_NEXT_OFFSET, RawPageHeader, RemoveEntry, TransactionEntry, flag, kind, lines_for, seal,
    seal_word,
};
use crate::fs::Shared;
use crate::inode::Inode;
use crate::scan::MAX_SEQUENCE;
use crate::seeded::fault;

/// A page of the log by its index in [`Log::pages`], or, from [`INLINE`] on, a line of the inode.
pub(crate) type Owner = u32;
/// The owner of the inode's first line.
pub(crate) const INLINE: Owner = u32::MAX - 8;
/// The owner of blocks that an image names, wherever in the log its entry is. They are not counted: no single one of
/// them leaves the image.
pub(crate) const IN_IMAGE: Owner = u32::MAX - 4;
/// No page.
pub(crate) const NO_PAGE: u32 = u32::MAX;

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

/// The log of one inode.
pub(crate) struct Log {
    pub(crate) next_sequence: u64,
    /// The first page, [`NO_PAGE`] while the entries are in the inode.
    pub(crate) head: u32,
    pub(crate) tail: u32,
    /// Pages by owner; slots that are not in use are chained from `free_slot`.
    pub(crate) pages: Vec<Page>,
    pub(crate) free_slot: u32,
    pub(crate) inline: [InlineLine; INLINE_LINES],
    /// Where the last attribute entry is, and its sequence number.
    pub(crate) last_attr: Option<(Owner, u64)>,
    /// Where the last entry is that says mtime, and the size of a file, and its sequence number: it stays, even when
    /// nothing else of it counts.
    pub(crate) last_touch: Option<(Owner, u64)>,
    /// Where the last entry is that says a later ctime than that one.
    pub(crate) last_ctime: Option<(Owner, u64)>,
    /// The greatest transaction in this log.
    pub(crate) last_transaction: u64,
    /// First of the pages without a live entry that collection has not looked at.
    pub(crate) dead: u32,
    /// Collection of half-dead pages starts when the log has this many pages.
    pub(crate) collect_at: u32,
    /// Number of pages.
    pub(crate) page_count: u32,
    /// Where the collection that is under way goes on.
    pub(crate) collect_from: Option<u32>,
    /// The next sequence number when all of it was last collected because there was no page.
    pub(crate) collected_all: u64,
    /// Entries taken away before this sequence number are in no page that the collection under way has passed. Zero if
    /// that is unknown.
    pub(crate) gone_before: u64,
    /// The next sequence number when the log was last compacted; zero when it never was.
    pub(crate) compacted: u64,
    /// The same when the compaction began that is under way.
    pub(crate) compacting: u64,
    /// The next sequence number when an image was found not to be for this log.
    pub(crate) no_image_at: u64,
    /// A write to media failed in the middle: the log cannot be continued.
    pub(crate) broken: bool,
    /// The inode was reclaimed.
    pub(crate) dead_inode: bool,
}

/// Pages that a log has before collection is thought of.
pub(crate) const MIN_COLLECTED_PAGES: u32 = 8;

impl Default for Log {
    fn default() -> Log {
        Log {
            next_sequence: crate::format::FIRST_SEQUENCE,
            head: NO_PAGE,
            tail: NO_PAGE,
            pages: Vec::new(),
            free_slot: NO_PAGE,
            inline: [InlineLine::default(); INLINE_LINES],
            last_attr: None,
            last_touch: None,
            last_ctime: None,
            last_transaction: 0,
            dead: NO_PAGE,
            collect_at: MIN_COLLECTED_PAGES,
            page_count: 0,
            collect_from: None,
            collected_all: 0,
            gone_before: 0,
            compacted: 0,
            compacting: 0,
            no_image_at: 0,
            broken: false,
            dead_inode: false,
        }
    }
}

/// The entries of one operation on one log.
#[derive(Default)]
pub(crate) struct Batch {
    lines: SmallVec<[[u8; LINE]; 4]>,
    /// First line and number of lines of each entry.
    entries: SmallVec<[(u32, u32); 4]>,
    /// The purpose of its pages, where its entries do not say it.
    pages: Option<Purpose>,
}

/// Where the entries of a batch went, in order: the owner, and the address on media.
pub(crate) type Placed = SmallVec<[(Owner, u64); 4]>;

impl Batch {
    /// Adds an entry: its struct, and bytes that go on behind the field at `offset`.
    pub(crate) fn push(&mut self, entry: &(impl IntoBytes + Immutable), offset: usize, bytes: &[&[u8]]) {
        let extra: usize = bytes.iter().map(|b| b.len()).sum();
        let count = lines_for((offset + extra).max(LINE));
        let first = self.lines.len();
        self.lines.resize(first + count, [0; LINE]);
        let flat = self.lines[first..].as_flattened_mut();
        flat[..LINE].copy_from_slice(entry.as_bytes());
        let mut at = offset;
        for part in bytes {
            flat[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        if let Ok((header, _)) = EntryHeader::mut_from_prefix(flat) {
            header.lines = count as u8;
        }
        self.entries.push((first as u32, count as u32));
    }

    /// Adds an entry of one line.
    pub(crate) fn push_line(&mut self, entry: &(impl IntoBytes + Immutable)) {
        self.push(entry, LINE, &[]);
    }

    /// A batch for which space was reserved: a page for as many blocks as it writes, or for a change of attributes.
    pub(crate) fn promised(purpose: Purpose) -> Batch {
        Batch { pages: (purpose == Purpose::Promised).then_some(purpose), ..Batch::default() }
    }

    /// A batch with pages for this purpose.
    pub(crate) fn with_pages(pages: Purpose) -> Batch {
        Batch { pages: Some(pages), ..Batch::default() }
    }

    pub(crate) fn is_promised(&self) -> bool {
        self.pages == Some(Purpose::Promised)
    }

    /// Numbers the transaction: the batch begins with its entry.
    pub(crate) fn set_transaction(&mut self, number: u64) {
        if let Ok((entry, _)) = TransactionEntry::mut_from_prefix(&mut self.lines[0]) {
            entry.transaction = number;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether it says anything of where blocks of a file are.
    fn changes_blocks(&self) -> bool {
        (0..self.entries.len()).any(|index| {
            let EntryHeader { kind, flags, .. } = self.header(index);
            matches!(kind, kind::WRITE | kind::HOLE) || kind == kind::ATTR && flags & flag::TRUNCATE != 0
        })
    }

    /// The purpose of a page for this batch.
    pub(crate) fn purpose(&self) -> Purpose {
        if let Some(purpose) = self.pages {
            return purpose;
        }
        let mut takes = false;
        let mut names = false;
        for index in 0..self.entries.len() {
            let header = self.header(index);
            takes |= is_negative(header.kind, header.flags);
            names |= header.kind == kind::DENTRY;
        }
        match (names, takes) {
            (true, false) => Purpose::Data,
            (false, true) => Purpose::Removal,
            _ => Purpose::Metadata,
        }
    }

    /// Numbers the entries, chains them, and computes their checksums.
    fn seal(&mut self, first_sequence: u64, seed: u32, chained: bool) {
        let last = self.entries.len() - 1;
        for (index, &(first, count)) in self.entries.iter().enumerate() {
            let bytes = self.lines[first as usize..(first + count) as usize].as_flattened_mut();
            if let Ok((header, _)) = EntryHeader::mut_from_prefix(bytes) {
                header.sequence = first_sequence + index as u64;
                if index < last && chained {
                    header.flags |= flag::MORE;
                }
            }
            seal(bytes, seed);
        }
    }

    fn entry(&self, index: usize) -> &[u8] {
        let (first, count) = self.entries[index];
        self.lines[first as usize..(first + count) as usize].as_flattened()
    }

    fn header(&self, index: usize) -> EntryHeader {
        EntryHeader::read_from_prefix(self.entry(index))
            .map_or_else(|_| EntryHeader::default(), |(header, _)| header)
    }
}

/// Entry headers that lie in a built inode: for logs that begin with the inode.
pub(crate) fn seal_inline(batch: &mut Batch, seed: u32) -> (Vec<u8>, u64) {
    if batch.is_empty() {
        return (Vec::new(), crate::format::FIRST_SEQUENCE);
    }
    batch.seal(crate::format::FIRST_SEQUENCE, seed, true);
    (batch.lines.as_flattened().to_vec(), crate::format::FIRST_SEQUENCE + batch.entries.len() as u64)
}

/// An entry takes something away that older entries gave.
pub(crate) fn is_negative(kind: u8, flags: u8) -> bool {
    matches!(kind, kind::HOLE | kind::REMOVE | kind::XATTR_REMOVE)
        || (kind == kind::ATTR && flags & flag::TRUNCATE != 0)
}

impl Log {
    /// Where each entry of a batch will go. Everything that can fail for want of space happens here.
    pub(crate) fn make_room<P: Pm>(
        &mut self,
        fs: &Shared<P>,
        inode: &Inode,
        batch: &Batch,
        placed: &mut Placed,
    ) -> Result<()> {
        if self.broken {
            return Err(Error::new(Kind::Media).object(format!("log of inode {}", inode.number)));
        }
        if self.dead_inode {
            return Err(Error::new(Kind::NotFound));
        }
        if self.next_sequence + batch.entries.len() as u64 > MAX_SEQUENCE {
            return Err(Error::new(Kind::NoSpace)
                .object(format!("log of inode {}: all its numbers are used", inode.number))
                .advice("copy it: the copy counts anew"));
        }
        if self.head == NO_PAGE {
            if batch.entries.len() == 1
                && let Some(line) = self.free_inline_lines(&*fs.pm, batch.entries[0].1 as usize)
            {
                let address = inode.address + (1 + line as u64) * LINE as u64;
                placed.push((INLINE + line as u32, address));
                return Ok(());
            }
            self.spill(fs, inode, batch.purpose())?;
        }
        let mut collected = false;
        let (mut page, mut line) = (self.tail, u32::from(self.pages[self.tail as usize].lines));
        for &(_, count) in &batch.entries {
            if line + count > PAGE_LINES as u32 {
                // An entry of the tail ends the operation before it. The last entries of that may be dead and go with
                // their page: behind a tail without entries it would look incomplete.
                let has_end = self.pages[self.tail as usize].lines > 0;
                let may_collect = !std::mem::replace(&mut collected, true) && has_end;
                if may_collect {
                    self.collect(fs, inode)?;
                }
                page = match self.add_page(fs, inode, batch.purpose(), &[]) {
                    Err(error) if error.kind() == Kind::NoSpace && may_collect => {
                        if !self.collect_all(fs, inode)? {
                            return Err(error);
                        }
                        self.add_page(fs, inode, batch.purpose(), &[])?
                    }
                    page => page?,
                };
                line = 0;
            }
            let address = self.pages[page as usize].block.offset() + (1 + u64::from(line)) * LINE as u64;
            placed.push((page, address));
            line += count;
        }
        Ok(())
    }

    /// Writes a batch where room was made for it. The caller fences before it lets go of the log.
    pub(crate) fn write<P: Pm>(
        &mut self,
        fs: &Shared<P>,
        inode: &Inode,
        batch: &mut Batch,
        placed: &Placed,
        after: Durable,
    ) -> Result<Flushed> {
        let mut chained = true;
        fault!(fs.pm, BatchNotChained => chained = false);
        batch.seal(self.next_sequence, inode.seed, chained);
        let result = self.write_lines(fs, batch, placed, after);
        match result {
            Ok(flushed) => {
                self.note_written(batch, placed);
                inode.change.store(self.next_sequence, Ordering::Relaxed);
                Ok(flushed)
            }
            Err(error) => {
                self.broken = true;
                Err(error)
            }
        }
    }

    fn write_lines<P: Pm>(
        &mut self,
        fs: &Shared<P>,
        batch: &Batch,
        placed: &Placed,
        after: Durable,
    ) -> Result<Flushed> {
        let (owner, address) = placed[0];
        if owner >= INLINE {
            let first = (owner - INLINE) as usize;
            let entry = batch.entry(0);
            let mut old = usize::from(self.inline[first].lines).max(1);
            let count = entry.len() / LINE;
            fault!(fs.pm, StaleLines => old = count);
            if old <= count {
                return fs.pm.publish_entry(address, entry, after);
            }
            // The rest of a longer entry that was here must not stay behind.
            let mut lines = [0u8; LINE * INLINE_LINES];
            lines[..entry.len()].copy_from_slice(entry);
            return fs.pm.publish_entry(address, &lines[..old * LINE], after);
        }
        let mut after = Some(after);
        let mut flushed: Option<Flushed> = None;
        let mut index = 0;
        while index < placed.len() {
            // Entries that are neighbours on media go out in one copy.
            let mut end = index + 1;
            let mut length = batch.entry(index).len();
            while end < placed.len() && placed[end].1 == placed[index].1 + length as u64 {
                length += batch.entry(end).len();
                end += 1;
            }
            let first = batch.entries[index].0 as usize;
            let bytes = batch.lines[first..first + length / LINE].as_flattened();
            // A batch that spans pages goes out page by page, so that a torn one is torn in its last page only.
            let proof = match flushed.take() {
                None => after.take().unwrap_or_else(Durable::nothing_before),
                Some(earlier) => fs.pm.fence(earlier),
            };
            flushed = Some(fs.pm.publish_entry(placed[index].1, bytes, proof)?);
            index = end;
        }
        flushed.ok_or_else(|| Error::new(Kind::InvalidInput).object("an empty batch"))
    }

    fn note_written(&mut self, batch: &Batch, placed: &Placed) {
        for (index, &(owner, _)) in placed.iter().enumerate() {
            let header = batch.header(index);
            self.note_entry(owner, &header, batch.entry(index));
        }
        self.next_sequence += batch.entries.len() as u64;
    }

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
    fn free_inline_lines(&self, pm: &impl Pm, count: usize) -> Option<usize> {
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
    fn is_inside_live(&self, pm: &impl Pm, line: usize) -> bool {
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

    /// Moves the log from the inode's lines to a page.
    fn spill<P: Pm>(&mut self, fs: &Shared<P>, inode: &Inode, purpose: Purpose) -> Result<()> {
        let mut lines = Vec::new();
        let mut moved: SmallVec<[(usize, usize); INLINE_LINES]> = SmallVec::new();
        let mut order: SmallVec<[usize; INLINE_LINES]> = (0..INLINE_LINES)
            .filter(|&line| self.inline[line].kind != 0 && self.is_inside_live(&*fs.pm, line))
            .collect();
        order.sort_by_key(|&line| self.inline[line].sequence);
        for line in order {
            let count = usize::from(self.inline[line].lines);
            let mut bytes = vec![0u8; count * LINE];
            fs.pm.read(inode.address + (1 + line as u64) * LINE as u64, &mut bytes)?;
            moved.push((line, lines.len()));
            lines.extend_from_slice(&bytes);
        }
        let page = self.add_page(fs, inode, purpose, &lines)?;
        for (line, offset) in moved {
            let old = self.inline[line];
            let new = &mut self.pages[page as usize];
            new.live += old.live;
            new.lines += u16::from(old.lines);
            new.negatives += u16::from(is_negative(old.kind, old.flags));
            let new_address = new.block.offset() + (LINE + offset) as u64;
            let owner = INLINE + line as u32;
            for last in
                [&mut self.last_attr, &mut self.last_touch, &mut self.last_ctime].into_iter().flatten()
            {
                if last.0 == owner {
                    last.0 = page;
                }
            }
            let old_address = inode.address + (1 + line as u64) * LINE as u64;
            let name = dentry_name(&lines[offset..]);
            let name = name.map(|name| (name, fs.hash_seed));
            inode.entry_moved(old.sequence, (owner, old_address), (page, new_address), name);
        }
        self.inline = [InlineLine::default(); INLINE_LINES];
        Ok(())
    }

    /// Adds a page to the end of the log: written whole, then linked. The link is durable with the next fence.
    fn add_page<P: Pm>(
        &mut self,
        fs: &Shared<P>,
        inode: &Inode,
        purpose: Purpose,
        lines: &[u8],
    ) -> Result<u32> {
        let run = fs.alloc.allocate_contiguous(1, purpose)?;
        let page = Page {
            block: run.start,
            first_sequence: self.next_sequence.min(first_sequence_of(lines).unwrap_or(u64::MAX)),
            live: 0,
            lines: 0,
            negatives: 0,
            previous: self.tail,
            next: NO_PAGE,
            next_dead: NOT_LISTED,
        };
        match self.tail {
            NO_PAGE => fault!(fs.pm, HeadStoredEarly => self.link_early(fs, inode, run.start)?),
            _ => fault!(fs.pm, PageLinkedEarly => self.link_early(fs, inode, run.start)?),
        }
        let linked = write_page(fs, inode, &page, 0, lines)
            .and_then(|after| self.link(fs, inode, self.tail, Some(run.start), after));
        let flushed = match linked {
            Ok(flushed) => flushed,
            Err(error) => {
                fs.alloc.free(run);
                return Err(error);
            }
        };
        flushed.may_be_lost();
        Ok(self.insert_page(page))
    }

    /// Links a page before it is written, as a mistake.
    fn link_early<P: Pm>(&self, fs: &Shared<P>, inode: &Inode, page: Block) -> Result<()> {
        self.link(fs, inode, self.tail, Some(page), Durable::nothing_before())?.may_be_lost();
        Ok(())
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

    /// Stores the word that names the page after `page` (or the first page, after [`NO_PAGE`]).
    #[track_caller]
    pub(crate) fn link<P: Pm>(
        &self,
        fs: &Shared<P>,
        inode: &Inode,
        page: u32,
        next: Option<Block>,
        after: Durable,
    ) -> Result<Flushed> {
        let word = next.map_or(0, |block| seal_word(block.0, inode.seed));
        let offset = match page {
            NO_PAGE => inode.address + INODE_HEAD_OFFSET,
            page => self.pages[page as usize].block.offset() + PAGE_NEXT_OFFSET,
        };
        let stored = fs.pm.publish_u64(offset, word, after)?;
        Ok(fs.pm.flush(stored))
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
}

/// The name in an entry, when it is a dentry.
pub(crate) fn dentry_name(lines: &[u8]) -> Option<&[u8]> {
    let (dentry, _) = DentryEntry::read_from_prefix(lines).ok()?;
    if dentry.header.kind != kind::DENTRY {
        return None;
    }
    lines.get(DENTRY_NAME_OFFSET..DENTRY_NAME_OFFSET + usize::from(dentry.name_len))
}

fn first_sequence_of(lines: &[u8]) -> Option<u64> {
    EntryHeader::read_from_prefix(lines).ok().map(|(header, _)| header.sequence)
}

/// Writes a whole page, its lines and zeros behind them, and makes it durable.
#[track_caller]
pub(crate) fn write_page<P: Pm>(
    fs: &Shared<P>,
    inode: &Inode,
    page: &Page,
    next_word: u64,
    lines: &[u8],
) -> Result<Durable> {
    let mut bytes = [0u8; BLOCK_SIZE as usize];
    let mut header = RawPageHeader {
        checksum: 0,
        magic: PAGE_MAGIC,
        inode: inode.number,
        generation: inode.generation,
        reserved: 0,
        first_sequence: page.first_sequence,
        reserved2: [0; 2],
        next: next_word,
        reserved3: 0,
    };
    header.checksum = header.compute_checksum(inode.seed);
    bytes[..LINE].copy_from_slice(header.as_bytes());
    bytes[LINE..LINE + lines.len()].copy_from_slice(lines);
    let copied = fs.pm.copy(page.block.offset(), &bytes)?;
    Ok(fs.pm.fence(copied))
}

/// Appends a batch to one log: room, then write. `placed` says where its entries went. The caller changes the index in
/// DRAM while the entries are on their way, and fences before it unlocks the log and frees the blocks that the batch
/// set free.
pub(crate) fn commit<P: Pm>(
    fs: &Shared<P>,
    inode: &Inode,
    log: &mut Log,
    batch: &mut Batch,
    after: Durable,
    placed: &mut Placed,
) -> Result<Flushed> {
    if inode.image.is_there() && batch.changes_blocks() {
        // Data that was accepted before may take blocks for removals: it took its log back then, so that this is rare.
        let purpose = if batch.is_promised() { Purpose::Removal } else { batch.purpose() };
        log.take_image_back(fs, inode, purpose)?;
    }
    log.make_room(fs, inode, batch, placed)?;
    log.write(fs, inode, batch, placed, after)
}
