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
use nacre_engine::{Block, Error, Kind, Resource, Result, Step, made_room};
use nacre_media::{Durable, Flushed, Pm};
use smallvec::SmallVec;
use zerocopy::FromBytes;

use crate::alloc::Purpose;
use crate::batch::Batch;
use crate::format::{EntryHeader, INLINE_LINES, LINE, PAGE_LINES};
use crate::fs::Shared;
use crate::inode::Inode;
use crate::log::{INLINE, InlineLine, Log, NO_PAGE, Page, dentry_name, is_negative};
use crate::pages::write_page;
use crate::scan::MAX_SEQUENCE;
use crate::seeded::fault;

/// One operation on one log, which is locked: room, then write.
///
/// The caller changes the index in DRAM while the entries are on their way. It fences before it unlocks the log and
/// frees the blocks that the operation set free.
pub(crate) struct Commit<'a> {
    pub(crate) inode: &'a Inode,
    pub(crate) log: &'a mut Log,
    /// The purpose of pages, if the entries do not say it.
    pages: Option<Purpose>,
    /// The stores that the entries refer to.
    after: Durable,
}

impl<'a> Commit<'a> {
    /// An operation with entries that refer to no stores before it.
    #[inline]
    pub(crate) fn of(inode: &'a Inode, log: &'a mut Log) -> Commit<'a> {
        Commit { inode, log, pages: None, after: Durable::nothing_before() }
    }

    /// Its entries refer to stores that are durable.
    #[inline]
    pub(crate) fn after(self, after: Durable) -> Commit<'a> {
        Commit { after, ..self }
    }

    /// Its pages have this purpose.
    #[inline]
    pub(crate) fn pages(self, pages: impl Into<Option<Purpose>>) -> Commit<'a> {
        Commit { pages: pages.into(), ..self }
    }

    /// Space was reserved for it: a page for as many blocks as it writes, or for a change of attributes.
    pub(crate) fn is_reserved(&self) -> bool {
        self.pages == Some(Purpose::Reserved)
    }

    /// Appends the entries to the log.
    pub(crate) fn append<P: Pm>(&mut self, fs: &Shared<P>, batch: &mut Batch) -> Result<Flushed> {
        batch.set_pages(self.pages);
        if self.inode.image.is_there() && batch.changes_blocks() {
            // Data that was accepted before may take blocks for removals: it took its log back then, so that this is
            // rare.
            let purpose = if self.is_reserved() { Purpose::Removal } else { batch.purpose() };
            self.log.take_image_back(fs, self.inode, purpose)?;
        }
        self.log.make_room(fs, self.inode, batch)?;
        self.log.write(fs, self.inode, batch, self.after.again())
    }
}

/// The purpose of pages for an operation of this purpose, if space was reserved for it.
pub(crate) fn if_reserved(purpose: Purpose) -> Option<Purpose> {
    (purpose == Purpose::Reserved).then_some(purpose)
}

impl Log {
    /// Where each entry of a batch will go. Everything that can fail for want of space happens here.
    pub(crate) fn make_room<P: Pm>(
        &mut self,
        fs: &Shared<P>,
        inode: &Inode,
        batch: &mut Batch,
    ) -> Result<()> {
        if self.state.broken {
            return Err(Error::new(Kind::Media).object(format!("log of inode {}", inode.number)));
        }
        if self.state.dead_inode {
            return Err(Error::new(Kind::NotFound));
        }
        if self.state.next_sequence + batch.len() as u64 > MAX_SEQUENCE {
            return Err(Error::no_space(Resource::Limit, 0)
                .object(format!("log of inode {}: all its numbers are used", inode.number))
                .advice("copy the file: the copy has new numbers"));
        }
        if self.index.head == NO_PAGE {
            if batch.len() == 1
                && let Some(line) = self.index.free_inline_lines(&*fs.pm, batch.lines_of(0))
            {
                let address = inode.address + (1 + line as u64) * LINE as u64;
                batch.place(INLINE + line as u32, address);
                return Ok(());
            }
            self.spill(fs, inode, batch.purpose())?;
        }
        let mut collected = false;
        let (mut page, mut line) =
            (self.index.tail, u32::from(self.index.pages[self.index.tail as usize].lines));
        for index in 0..batch.len() {
            let count = batch.lines_of(index) as u32;
            if line + count > PAGE_LINES as u32 {
                // An entry of the tail ends the operation before it. The last entries of that may be dead and go with
                // their page: behind a tail without entries it would look incomplete.
                let has_end = self.index.pages[self.index.tail as usize].lines > 0;
                let may_collect = !std::mem::replace(&mut collected, true) && has_end;
                if may_collect {
                    self.collect(fs, inode)?;
                }
                let added = self.add_page(fs, inode, batch.purpose(), &[]);
                let collect = |_| Ok(may_collect && self.collect_all(fs, inode)?);
                page = match made_room(Step::Collection, added, collect)? {
                    Some(page) => page,
                    None => self.add_page(fs, inode, batch.purpose(), &[])?,
                };
                line = 0;
            }
            let address =
                self.index.pages[page as usize].block.offset() + (1 + u64::from(line)) * LINE as u64;
            batch.place(page, address);
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
        after: Durable,
    ) -> Result<Flushed> {
        let mut chained = true;
        fault!(fs.pm, BatchNotChained => chained = false);
        batch.seal(self.state.next_sequence, inode.seed, chained);
        let result = self.write_lines(fs, batch, after);
        match result {
            Ok(flushed) => {
                self.note_written(batch);
                inode.change.store(self.state.next_sequence, Ordering::Relaxed);
                Ok(flushed)
            }
            Err(error) => {
                self.state.broken = true;
                Err(error)
            }
        }
    }

    fn write_lines<P: Pm>(&mut self, fs: &Shared<P>, batch: &Batch, after: Durable) -> Result<Flushed> {
        let (owner, address) = batch.placed(0);
        if owner >= INLINE {
            let first = (owner - INLINE) as usize;
            let entry = batch.entry(0);
            let mut old = usize::from(self.index.inline[first].lines).max(1);
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
        while index < batch.len() {
            // Entries that are neighbours on media go out in one copy.
            let mut end = index + 1;
            let mut length = batch.entry(index).len();
            let (_, address) = batch.placed(index);
            while end < batch.len() && batch.placed(end).1 == address + length as u64 {
                length += batch.entry(end).len();
                end += 1;
            }
            let bytes = batch.bytes_from(index, length);
            // A batch that spans pages goes out page by page, so that a torn one is torn in its last page only.
            let proof = match flushed.take() {
                None => after.take().unwrap_or_else(Durable::nothing_before),
                Some(earlier) => fs.pm.fence(earlier),
            };
            flushed = Some(fs.pm.publish_entry(address, bytes, proof)?);
            index = end;
        }
        flushed.ok_or_else(|| Error::new(Kind::InvalidInput).object("an empty batch"))
    }

    fn note_written(&mut self, batch: &Batch) {
        for index in 0..batch.len() {
            self.index.note_entry(batch.placed(index).0, &batch.header(index), batch.entry(index));
        }
        self.state.next_sequence += batch.len() as u64;
    }

    /// Moves the log from the inode's lines to a page.
    fn spill<P: Pm>(&mut self, fs: &Shared<P>, inode: &Inode, purpose: Purpose) -> Result<()> {
        let mut lines = Vec::new();
        let mut moved: SmallVec<[(usize, usize); INLINE_LINES]> = SmallVec::new();
        let mut order: SmallVec<[usize; INLINE_LINES]> = (0..INLINE_LINES)
            .filter(|&line| self.index.inline[line].kind != 0 && self.index.is_inside_live(&*fs.pm, line))
            .collect();
        order.sort_by_key(|&line| self.index.inline[line].sequence);
        for line in order {
            let count = usize::from(self.index.inline[line].lines);
            let mut bytes = vec![0u8; count * LINE];
            fs.pm.read(inode.address + (1 + line as u64) * LINE as u64, &mut bytes)?;
            moved.push((line, lines.len()));
            lines.extend_from_slice(&bytes);
        }
        let page = self.add_page(fs, inode, purpose, &lines)?;
        for (line, offset) in moved {
            let old = self.index.inline[line];
            let new = &mut self.index.pages[page as usize];
            new.live += old.live;
            new.lines += u16::from(old.lines);
            new.negatives += u16::from(is_negative(old.kind, old.flags));
            let new_address = new.block.offset() + (LINE + offset) as u64;
            let owner = INLINE + line as u32;
            for last in self.index.last_entries() {
                if last.0 == owner {
                    last.0 = page;
                }
            }
            let old_address = inode.address + (1 + line as u64) * LINE as u64;
            let name = dentry_name(&lines[offset..]);
            let name = name.map(|name| (name, fs.hash_seed));
            inode.entry_moved(old.sequence, (owner, old_address), (page, new_address), name);
        }
        self.index.inline = [InlineLine::default(); INLINE_LINES];
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
        let first_sequence = self.state.next_sequence.min(first_sequence_of(lines).unwrap_or(u64::MAX));
        let page = Page { first_sequence, previous: self.index.tail, ..Page::empty(run.start) };
        match self.index.tail {
            NO_PAGE => fault!(fs.pm, HeadStoredEarly => self.link_early(fs, inode, run.start)?),
            _ => fault!(fs.pm, PageLinkedEarly => self.link_early(fs, inode, run.start)?),
        }
        let linked = write_page(fs, inode, &page, 0, lines)
            .and_then(|after| self.link(fs, inode, self.index.tail, Some(run.start), after));
        let flushed = match linked {
            Ok(flushed) => flushed,
            Err(error) => {
                fs.alloc.free(run);
                return Err(error);
            }
        };
        flushed.may_be_lost();
        Ok(self.index.insert_page(page))
    }

    /// Links a page before it is written, as a mistake.
    fn link_early<P: Pm>(&self, fs: &Shared<P>, inode: &Inode, page: Block) -> Result<()> {
        self.link(fs, inode, self.index.tail, Some(page), Durable::nothing_before())?.may_be_lost();
        Ok(())
    }
}

fn first_sequence_of(lines: &[u8]) -> Option<u64> {
    EntryHeader::read_from_prefix(lines).ok().map(|(header, _)| header.sequence)
}
