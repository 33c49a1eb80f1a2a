//! Garbage collection of logs.
//!
//! *Fast*: a page without a live entry is unlinked, by one store of the word that pointed to it. *Thorough*: when a log
//! has grown to [`GROWTH`] times its size after the last collection, the live entries of its pages are copied, a few
//! pages at a time. The copies replace the pages, again by one store. Both are done by the operation that adds a page
//! to the log, under its lock, in small portions; the tail is never touched.
//!
//! Entries keep their sequence numbers, of which cookies are made, too. An entry that takes something away (a hole, a
//! removal, a truncation) must stay as long as an older page may hold that. In a copy that begins at the head there is
//! no older page. Behind that, a collection that began at the head has copied every page that held anything dead, also
//! where that saves no page. So entries taken away before it began are in no page that it has passed
//! ([`Collector::gone_before`](crate::log::Collector::gone_before)), unless it had to leave one as it is. Without this, a directory with many names that stay
//! would keep each removal for ever. Entries of a transaction are copied without it, so all transactions are settled
//! first.

use std::ops::ControlFlow;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{Block, Kind, Result};
use nacre_media::{Durable, Pm};
use smallvec::SmallVec;
use zerocopy::{FromBytes, IntoBytes};

use crate::alloc::{Purpose, Run};
use crate::blockmap::{BlockMap, Piece};
use crate::commit::write_page;
use crate::compact::{Loose, gather_loose};
use crate::format::{
    EntryHeader, INLINE_LINES, LINE, PAGE_LINES, TransactionEntry, WriteEntry, flag, kind, place, seal,
    seal_word,
};
use crate::fs::Shared;
use crate::inode::{Body, Inode};
use crate::log::{
    GROWTH, INLINE, LiveIndex, Log, MIN_COLLECTED_PAGES, NO_PAGE, NOT_LISTED, Owner, Page, dentry_name,
    is_negative,
};
use crate::scan::parse_entry;
use crate::seeded::fault;
use crate::xattr;

/// Pages that one portion copies.
const PORTION: usize = 4;

/// Blocks of an entry that are looked at before the limit of its pieces is.
const LIVE_STEP: u64 = 1 << 12;

/// A live entry, sealed for its new place, and the references to it.
#[derive(Clone)]
pub(crate) struct Survivor {
    pub(crate) bytes: SmallVec<[u8; LINE]>,
    pub(crate) sequence: u64,
    pub(crate) old_owner: Owner,
    pub(crate) old_address: u64,
    pub(crate) references: References,
}

/// Runs of blocks; of an entry for one block, one.
pub(crate) type Pieces = SmallVec<[Piece; 1]>;

/// An entry where it is before a collection.
pub(crate) struct OldEntry<'a> {
    pub(crate) owner: Owner,
    pub(crate) address: u64,
    pub(crate) header: EntryHeader,
    /// All its lines.
    pub(crate) bytes: &'a [u8],
}

/// The live entries of some pages.
pub(crate) struct Gathered {
    /// The pages begin at the head of the log: nothing is older.
    at_head: bool,
    pub(crate) survivors: Vec<Survivor>,
    /// Something of these pages is dead that an entry in a later page may have taken away.
    pub(crate) dead: bool,
    /// A copy holds such a thing, too.
    pub(crate) stuck: bool,
    /// Blocks apart from the entries that name them, for a compaction.
    pub(crate) loose: Option<Loose>,
}

impl Gathered {
    /// Nothing yet.
    pub(crate) fn new(at_head: bool, loose: Option<Loose>) -> Gathered {
        Gathered { at_head, survivors: Vec::new(), dead: false, stuck: false, loose }
    }

    /// Keeps an entry, sealed for its new place.
    pub(crate) fn keep(&mut self, old: &OldEntry<'_>, bytes: &[u8], references: References, seed: u32) {
        let mut bytes = SmallVec::from_slice(bytes);
        reseal(&mut bytes, seed);
        let (old_owner, old_address, sequence) = (old.owner, old.address, old.header.sequence);
        self.survivors.push(Survivor { bytes, sequence, old_owner, old_address, references });
    }
}

#[derive(Clone)]
pub(crate) enum References {
    /// Blocks of the map.
    Pieces(Pieces),
    /// A name of the directory.
    Name,
    /// An extended attribute.
    Attribute,
    /// The target of the symbolic link that the inode is, or the image that says where its blocks are.
    Inode,
    /// Nothing but its being the last of its kind, or an entry that it takes away.
    Nothing,
}

impl Log {
    /// Collects a portion of garbage. Called before a page is added.
    pub(crate) fn collect<P: Pm>(&mut self, fs: &Shared<P>, inode: &Inode) -> Result<()> {
        match self.collect_portion(fs, inode) {
            // Copies find no space now; nothing has changed, and the operation that adds the page may find some.
            Err(error) if error.kind() == Kind::NoSpace => Ok(()),
            result => result,
        }
    }

    fn collect_portion<P: Pm>(&mut self, fs: &Shared<P>, inode: &Inode) -> Result<()> {
        self.drop_dead_pages(fs, inode)?;
        if self.collector.from == NO_PAGE && self.index.page_count >= self.collector.at {
            self.begin_collection();
        }
        let from = self.collector.from;
        // While a truncation is pending, the map still has the blocks that it took away.
        if from == NO_PAGE || inode.trim_is_pending() {
            return Ok(());
        }
        let next = self.copy_portion(fs, inode, from)?;
        self.collector.from = if next == self.index.tail { NO_PAGE } else { next };
        if self.collector.from == NO_PAGE {
            self.end_collection();
        }
        Ok(())
    }

    /// Collects all of it before it has grown as much as it may, for an operation that found no page: the device is
    /// full. Not again before a quarter as many entries were added as it has lines. True when pages are free that were
    /// not.
    pub(crate) fn collect_all<P: Pm>(&mut self, fs: &Shared<P>, inode: &Inode) -> Result<bool> {
        let before = self.index.page_count;
        let due = self.collector.all_at + u64::from(before) * PAGE_LINES as u64 / 4;
        if before < 2 || self.state.next_sequence < due || inode.trim_is_pending() {
            return Ok(false);
        }
        self.collector.all_at = self.state.next_sequence;
        self.begin_collection();
        while self.collector.from != NO_PAGE {
            match self.collect_portion(fs, inode) {
                Err(error) if error.kind() == Kind::NoSpace => break,
                result => result?,
            }
        }
        Ok(self.index.page_count < before)
    }

    /// A collection begins at the head.
    pub(crate) fn begin_collection(&mut self) {
        self.collector.from = self.index.head;
        let mut negatives = self.index.pages.iter().filter(|page| page.block.0 != 0 && page.negatives > 0);
        self.collector.gone_before = negatives.next().map_or(0, |_| self.state.next_sequence);
    }

    /// It is over, and the next one begins when the log has grown.
    pub(crate) fn end_collection(&mut self) {
        self.collector.from = NO_PAGE;
        self.collector.at = (self.index.page_count * GROWTH).max(MIN_COLLECTED_PAGES);
    }

    pub(crate) fn drop_dead_pages<P: Pm>(&mut self, fs: &Shared<P>, inode: &Inode) -> Result<()> {
        let mut next = std::mem::replace(&mut self.index.dead, NO_PAGE);
        while next != NO_PAGE {
            let page = next;
            let entry = self.index.pages[page as usize];
            next = std::mem::replace(&mut self.index.pages[page as usize].next_dead, NOT_LISTED);
            let in_log = entry.block.0 != 0 && page != self.index.tail && entry.live == 0;
            if in_log && (entry.negatives == 0 || page == self.index.head) {
                self.replace_pages(fs, inode, Some((page, page)), &[], Purpose::Removal)?;
            }
        }
        // A page that became the head needs its removals no more.
        while self.index.head != self.index.tail && self.index.pages[self.index.head as usize].live == 0 {
            self.replace_pages(fs, inode, Some((self.index.head, self.index.head)), &[], Purpose::Removal)?;
        }
        Ok(())
    }

    /// Copies the live entries of some pages from `from` on; gives the page to go on with.
    fn copy_portion<P: Pm>(&mut self, fs: &Shared<P>, inode: &Inode, from: u32) -> Result<u32> {
        if self.index.pages[from as usize].block.0 == 0 {
            return Ok(NO_PAGE); // it was dropped meanwhile: the next collection starts anew
        }
        let mut gathered = Gathered::new(from == self.index.head, None);
        gathered.survivors.reserve(PORTION * PAGE_LINES);
        let mut last = from;
        let mut count = 0;
        let mut page = from;
        while count < PORTION && page != self.index.tail && page != NO_PAGE {
            let (before, last_before) = (gathered.survivors.len(), gathered.survivors.last().cloned());
            self.gather(fs, inode, page, &mut gathered)?;
            if gathered.survivors.len() > before + PAGE_LINES {
                // The blocks that its entries name are in more pieces by now than it has lines: a copy would be larger.
                gathered.survivors.truncate(before);
                if let (Some(survivor), Some(was)) = (gathered.survivors.last_mut(), last_before) {
                    *survivor = was; // the page's first entry may have joined it
                }
                if count == 0 {
                    self.collector.gone_before = 0;
                    return Ok(self.index.pages[page as usize].next);
                }
                break;
            }
            last = page;
            count += 1;
            page = self.index.pages[page as usize].next;
        }
        let Gathered { survivors, dead, stuck, .. } = gathered;
        let pages = pack(&survivors);
        // With `gone_before`, a copy that saves no page is worth its cost: removals behind it can go.
        let is_worth =
            pages.len() < count || (dead && self.collector.gone_before > 0 && pages.len() == count);
        if count > 0 && is_worth {
            self.replace_pages(fs, inode, Some((from, last)), &pages, Purpose::Removal)?;
        }
        if stuck || (dead && !is_worth) {
            self.collector.gone_before = 0;
        }
        Ok(page)
    }

    /// Adds the live entries of a page; not all of them when they are more than fit in one, but where their blocks are
    /// gathered apart.
    pub(crate) fn gather<P: Pm>(
        &self,
        fs: &Shared<P>,
        inode: &Inode,
        page: u32,
        gathered: &mut Gathered,
    ) -> Result<()> {
        let block = self.index.pages[page as usize].block;
        let mut bytes = [0u8; LINE * PAGE_LINES];
        fs.pm.read(block.offset() + LINE as u64, &mut bytes)?;
        let mut line = 0;
        let limit = if gathered.loose.is_some() { usize::MAX } else { gathered.survivors.len() + PAGE_LINES };
        while line < PAGE_LINES && gathered.survivors.len() <= limit {
            let Some(header) = parse_entry(&bytes[line * LINE..], inode.seed) else {
                line += 1;
                continue;
            };
            let count = usize::from(header.lines);
            let bytes = &bytes[line * LINE..(line + count) * LINE];
            let address = block.offset() + ((1 + line) * LINE) as u64;
            self.gather_entry(fs, inode, &OldEntry { owner: page, address, header, bytes }, gathered)?;
            line += count;
        }
        Ok(())
    }

    /// Adds the live entries of the inode's lines, by their numbers.
    pub(crate) fn gather_inline<P: Pm>(
        &self,
        fs: &Shared<P>,
        inode: &Inode,
        gathered: &mut Gathered,
    ) -> Result<()> {
        let address = inode.address + LINE as u64;
        let mut bytes = [0u8; LINE * INLINE_LINES];
        fs.pm.read(address, &mut bytes)?;
        let mut order: SmallVec<[usize; INLINE_LINES]> =
            (0..INLINE_LINES).filter(|&line| self.index.inline[line].kind != 0).collect();
        order.sort_by_key(|&line| (self.index.inline[line].sequence, line));
        for line in order {
            let Some(header) = parse_entry(&bytes[line * LINE..], inode.seed) else { continue };
            let bytes = &bytes[line * LINE..][..usize::from(header.lines) * LINE];
            let (owner, address) = (INLINE + line as u32, address + (line * LINE) as u64);
            self.gather_entry(fs, inode, &OldEntry { owner, address, header, bytes }, gathered)?;
        }
        Ok(())
    }

    fn gather_entry<P: Pm>(
        &self,
        fs: &Shared<P>,
        inode: &Inode,
        old: &OldEntry<'_>,
        gathered: &mut Gathered,
    ) -> Result<()> {
        let OldEntry { owner, address, header, bytes } = *old;
        // An entry that only says where blocks are may share the number of an entry that says more of the file.
        let says = |last: Option<(Owner, u64)>| {
            last.is_some_and(|(_, sequence)| sequence == header.sequence) && !only_places(&header)
        };
        let LiveIndex { last_touch, last_attr, last_ctime, .. } = self.index;
        let is_last_touch = says(last_touch);
        let is_last = is_last_touch || says(last_attr) || says(last_ctime);
        if let Some(loose) = &mut gathered.loose {
            loose.greatest = loose.greatest.max(header.sequence);
        }
        let references = match header.kind {
            kind::WRITE if gathered.loose.is_some() => {
                gather_loose(inode, old, is_last_touch, gathered);
                return Ok(());
            }
            kind::WRITE if !is_last_touch => return gather_write(inode, old, gathered),
            kind::WRITE => {
                let pieces = live_pieces(inode, owner, bytes, usize::MAX);
                gathered.stuck |= !is_whole(bytes, &pieces);
                References::Pieces(pieces)
            }
            kind::DENTRY | kind::XATTR => {
                let (is_live, references) = match header.kind {
                    kind::DENTRY => (has_name(inode, bytes, fs.hash_seed, address), References::Name),
                    _ => (has_attribute(inode, address), References::Attribute),
                };
                gathered.dead |= !is_live;
                gathered.stuck |= !is_live && is_last;
                match is_live {
                    true => references,
                    false if is_last => References::Nothing,
                    false => return Ok(()),
                }
            }
            kind::TRANSACTION => return settle_before(fs, bytes),
            kind::IMAGE if gathered.loose.as_ref().is_some_and(|loose| loose.is_whole) => return Ok(()),
            kind::SYMLINK | kind::IMAGE => References::Inode,
            other
                if is_negative(other, header.flags)
                    && !gathered.at_head
                    && !self.is_gone(fs, header.sequence) =>
            {
                References::Nothing
            }
            _ if is_last => References::Nothing,
            kind::ATTR | kind::HOLE | kind::REMOVE | kind::XATTR_REMOVE => return Ok(()),
            _ => References::Nothing, // an entry of a newer program
        };
        gathered.keep(old, bytes, references, inode.seed);
        Ok(())
    }

    /// Whether no page before an entry with this sequence number holds an entry that it took away.
    fn is_gone<P: Pm>(&self, fs: &Shared<P>, sequence: u64) -> bool {
        fault!(fs.pm, RemovalForgotten => return true);
        sequence < self.collector.gone_before
    }

    /// Puts `pages` in the place of old ones, the first and the last of which are given, or else of the inode's lines,
    /// durably. Points the references to their entries to the copies, and frees the old ones.
    pub(crate) fn replace_pages<P: Pm>(
        &mut self,
        fs: &Shared<P>,
        inode: &Inode,
        old: Option<(u32, u32)>,
        pages: &[Packed<'_>],
        purpose: Purpose,
    ) -> Result<()> {
        self.settle_own(fs)?;
        let (previous, behind) = old.map_or((NO_PAGE, NO_PAGE), |(first, last)| {
            (self.index.pages[first as usize].previous, self.index.pages[last as usize].next)
        });
        let mut first_is_free = false;
        fault!(fs.pm, PageFreedTooSoon => first_is_free = self.free_early(fs, old, pages));
        let blocks = allocate_pages(fs, pages.len(), purpose)?;
        let written = self.write_chain(fs, inode, pages, &blocks, behind);
        let linked = written.and_then(|after| {
            let next = blocks.first().copied().or_else(|| self.block_of(behind));
            self.link(fs, inode, previous, next, after)
        });
        match linked {
            Ok(flushed) => fs.pm.fence(flushed),
            Err(error) => {
                free_pages(fs, &blocks);
                return Err(error);
            }
        };
        let mut new = Vec::with_capacity(pages.len());
        let mut at = previous;
        for (packed, &block) in pages.iter().zip(&blocks) {
            let index = self.index.take_slot(Page { previous: at, ..packed.page(block) });
            self.index.page_count += 1;
            self.set_next(at, index);
            new.push(index);
            at = index;
        }
        self.set_next(at, behind);
        match behind {
            NO_PAGE => self.index.tail = at,
            behind => self.index.pages[behind as usize].previous = at,
        }
        for (packed, owner) in pages.iter().zip(new) {
            let address = self.index.pages[owner as usize].block.offset() + LINE as u64;
            self.move_references(fs, inode, packed.survivors, |_| owner, address);
        }
        // Readers find the copies by now.
        match old {
            Some((first, last)) => self.give_back(fs, first, last, first_is_free),
            None => self.index.inline = Default::default(),
        }
        Ok(())
    }

    /// Frees the first of the pages that copies are to replace, as a mistake. False if there is none.
    fn free_early<P: Pm>(&self, fs: &Shared<P>, old: Option<(u32, u32)>, copies: &[Packed<'_>]) -> bool {
        let first = old.filter(|_| !copies.is_empty());
        if let Some((first, _)) = first {
            fs.alloc.free(Run { start: self.index.pages[first as usize].block, len: 1 });
        }
        first.is_some()
    }

    /// Pages are to go that may hold transactions: these are settled first.
    pub(crate) fn settle_own<P: Pm>(&self, fs: &Shared<P>) -> Result<()> {
        fault!(fs.pm, NotSettled => return Ok(()));
        let settled = fs.transactions.settled.load(Ordering::Relaxed);
        if self.state.last_transaction >= settled && self.state.last_transaction != 0 {
            fs.settle()?;
        }
        Ok(())
    }

    fn block_of(&self, page: u32) -> Option<Block> {
        (page != NO_PAGE).then(|| self.index.pages[page as usize].block)
    }

    /// Writes new pages, the last one first, each with the word that links the one behind it.
    fn write_chain<P: Pm>(
        &self,
        fs: &Shared<P>,
        inode: &Inode,
        pages: &[Packed<'_>],
        blocks: &[Block],
        behind: u32,
    ) -> Result<Durable> {
        let mut after = Durable::nothing_before();
        let mut next = self.block_of(behind);
        for (packed, &block) in pages.iter().zip(blocks).rev() {
            let page = Page { first_sequence: packed.first_sequence(), ..Page::empty(block) };
            let word = next.map_or(0, |next| seal_word(next.0, inode.seed));
            after = write_page(fs, inode, &page, word, &packed.lines())?;
            next = Some(block);
        }
        Ok(after)
    }

    /// Frees pages that are not in the chain any more and have no entry that anything refers to.
    pub(crate) fn give_back<P: Pm>(&mut self, fs: &Shared<P>, first: u32, last: u32, first_is_free: bool) {
        let behind = self.index.pages[last as usize].next;
        let mut page = first;
        loop {
            let next = self.index.pages[page as usize].next;
            if page != first || !first_is_free {
                fs.alloc.free(Run { start: self.index.pages[page as usize].block, len: 1 });
            }
            self.index.pages[page as usize].block = Block(0);
            self.index.pages[page as usize].next = self.index.free_slot;
            self.index.free_slot = page;
            self.index.page_count -= 1;
            if self.collector.from == page {
                self.collector.from = behind;
            }
            if page == last {
                return;
            }
            page = next;
        }
    }

    fn set_next(&mut self, page: u32, next: u32) {
        if page == NO_PAGE {
            self.index.head = next;
        } else {
            self.index.pages[page as usize].next = next;
        }
    }

    /// Points the references to the old entries to the copies, which lie one behind the other from `address` on. Their
    /// owners are those that `owner_at` gives for their first lines.
    pub(crate) fn move_references<P: Pm>(
        &mut self,
        fs: &Shared<P>,
        inode: &Inode,
        survivors: &[Survivor],
        owner_at: impl Fn(usize) -> Owner,
        address: u64,
    ) {
        let mut line = 0;
        for survivor in survivors {
            let owner = owner_at(line);
            let address = address + (line * LINE) as u64;
            let old = (survivor.old_owner, survivor.old_address);
            let mut live = 0;
            match &survivor.references {
                References::Pieces(pieces) => {
                    if let Body::File(map) = &inode.body {
                        for &piece in pieces {
                            live += change_owner(map, piece, owner);
                        }
                    }
                }
                References::Name => {
                    let name = dentry_name(&survivor.bytes).map(|name| (name, fs.hash_seed));
                    inode.entry_moved(survivor.sequence, old, (owner, address), name);
                    live += 1;
                }
                References::Attribute => {
                    inode.attribute_moved(survivor.sequence, old, (owner, address));
                    live += 1;
                }
                References::Inode => live += 1,
                References::Nothing => {}
            }
            let says =
                EntryHeader::read_from_prefix(&survivor.bytes).is_ok_and(|(header, _)| !only_places(&header));
            for last in self.index.last_entries() {
                if says && last.1 == survivor.sequence {
                    last.0 = owner;
                    live += 1;
                }
            }
            self.index.hold(owner, live);
            line += survivor.bytes.len() / LINE;
        }
    }
}

/// Gives blocks another owner, except those that have another one already, because their entries said the same twice;
/// gives their number.
fn change_owner(map: &BlockMap, piece: Piece, owner: Owner) -> u64 {
    let mut changed: Pieces = Pieces::new();
    map.for_each(piece.start, piece.len, |part| {
        if part.owner == piece.owner {
            changed.push(part);
        }
    });
    changed.into_iter().fold(0, |sum, part| {
        map.change_owner(part, owner);
        sum + part.len
    })
}

/// An entry that says nothing of the file but where its blocks are: one for blocks that were moved, or for an image.
fn only_places(header: &EntryHeader) -> bool {
    header.kind == kind::WRITE && header.flags & flag::MOVED != 0 || header.kind == kind::IMAGE
}

/// Whether a dentry of media is the one that the index of a directory has.
fn has_name(inode: &Inode, entry: &[u8], hash_seed: u64, address: u64) -> bool {
    let name = dentry_name(entry).unwrap_or_default();
    matches!(&inode.body, Body::Directory(directory) if directory.refers_to(name, hash_seed, address))
}

/// Whether an inode has the extended attribute of this entry.
fn has_attribute(inode: &Inode, address: u64) -> bool {
    let mut is_there = false;
    xattr::for_each(&inode.xattrs, |xattr| {
        is_there |= xattr.address == address;
        ControlFlow::Continue(())
    });
    is_there
}

/// Settles a transaction whose entries are copied without it.
fn settle_before<P: Pm>(fs: &Shared<P>, entry: &[u8]) -> Result<()> {
    let number = TransactionEntry::read_from_prefix(entry).map_or(0, |(entry, _)| entry.transaction);
    fault!(fs.pm, NotSettled => return Ok(()));
    if number >= fs.transactions.settled.load(Ordering::Relaxed) {
        fs.settle()?;
    }
    Ok(())
}

/// Adds the live part of a write: an entry for each run of blocks, joined with the entry before where it continues it.
/// Live blocks are live wherever in the log they are named, so their order among themselves is free.
fn gather_write(inode: &Inode, old: &OldEntry<'_>, gathered: &mut Gathered) -> Result<()> {
    let Ok((raw, _)) = WriteEntry::read_from_prefix(old.bytes) else { return Ok(()) };
    let pieces = live_pieces(inode, old.owner, old.bytes, PAGE_LINES);
    gathered.dead |= !is_whole(old.bytes, &pieces);
    for piece in pieces {
        if let Some(last) = gathered.survivors.last_mut()
            && let References::Pieces(pieces) = &mut last.references
            && let Ok((mut joined, _)) = WriteEntry::read_from_prefix(&last.bytes)
            && joined.file_block + u64::from(joined.blocks) == piece.start
            && joined.place + u64::from(joined.blocks) == piece.place
            && joined.header.flags & flag::MOVED == raw.header.flags & flag::MOVED
            && u64::from(joined.blocks) + piece.len <= u64::from(u32::MAX)
        {
            joined.blocks += piece.len as u32;
            joined.size = raw.size;
            joined.mtime = raw.mtime;
            joined.header.sequence = raw.header.sequence;
            last.bytes.copy_from_slice(joined.as_bytes());
            last.sequence = raw.header.sequence;
            pieces.push(piece);
            reseal(&mut last.bytes, inode.seed);
            continue;
        }
        let counter = raw.file_block & !place::BLOCK_MASK;
        let copy = WriteEntry {
            file_block: piece.start | counter,
            blocks: piece.len as u32,
            place: piece.place,
            ..raw
        };
        let references = References::Pieces(SmallVec::from_slice(&[piece]));
        gathered.keep(old, copy.as_bytes(), references, inode.seed);
    }
    Ok(())
}

/// The blocks of a write entry that are still where it says, by its word. Not all of them when they are in more than
/// `limit` pieces.
pub(crate) fn live_pieces(inode: &Inode, page: u32, entry: &[u8], limit: usize) -> Pieces {
    let mut pieces = Pieces::new();
    let (Body::File(map), Ok((raw, _))) = (&inode.body, WriteEntry::read_from_prefix(entry)) else {
        return pieces;
    };
    let start = raw.file_block & place::BLOCK_MASK;
    let end = start + u64::from(raw.blocks);
    let mut at = start;
    while at < end && pieces.len() <= limit {
        let step = LIVE_STEP.min(end - at);
        map.for_each(at, step, |piece| {
            if piece.owner == page && piece.place == raw.place + (piece.start - start) {
                pieces.push(piece);
            }
        });
        at += step;
    }
    pieces
}

/// Whether all blocks of a write entry are live.
pub(crate) fn is_whole(entry: &[u8], pieces: &Pieces) -> bool {
    let live: u64 = pieces.iter().map(|piece| piece.len).sum();
    WriteEntry::read_from_prefix(entry).is_ok_and(|(raw, _)| live == u64::from(raw.blocks))
}

/// Survivors that go to one page.
pub(crate) struct Packed<'a> {
    survivors: &'a [Survivor],
}

impl Packed<'_> {
    fn first_sequence(&self) -> u64 {
        self.survivors.first().map_or(0, |survivor| survivor.sequence)
    }

    /// The page that they make at a block.
    fn page(&self, block: Block) -> Page {
        Page {
            first_sequence: self.first_sequence(),
            lines: line_count(self.survivors) as u16,
            negatives: self.negatives(),
            ..Page::empty(block)
        }
    }

    fn negatives(&self) -> u16 {
        let negative = |survivor: &&Survivor| {
            EntryHeader::read_from_prefix(&survivor.bytes)
                .is_ok_and(|(header, _)| is_negative(header.kind, header.flags))
        };
        self.survivors.iter().filter(negative).count() as u16
    }

    fn lines(&self) -> Vec<u8> {
        let mut lines = Vec::with_capacity(LINE * PAGE_LINES);
        for survivor in self.survivors {
            lines.extend_from_slice(&survivor.bytes);
        }
        lines
    }
}

/// Lines that survivors take.
pub(crate) fn line_count(survivors: &[Survivor]) -> usize {
    survivors.iter().map(|survivor| survivor.bytes.len() / LINE).sum()
}

/// Cuts survivors into pages.
pub(crate) fn pack(survivors: &[Survivor]) -> Vec<Packed<'_>> {
    let mut pages = Vec::new();
    let mut first = 0;
    let mut lines = 0;
    for (index, survivor) in survivors.iter().enumerate() {
        let count = survivor.bytes.len() / LINE;
        if lines + count > PAGE_LINES {
            pages.push(Packed { survivors: &survivors[first..index] });
            (first, lines) = (index, 0);
        }
        lines += count;
    }
    if first < survivors.len() {
        pages.push(Packed { survivors: &survivors[first..] });
    }
    pages
}

/// An entry that is copied stands alone: the rest of its batch is committed, too.
pub(crate) fn reseal(bytes: &mut [u8], seed: u32) {
    if let Ok((header, _)) = EntryHeader::mut_from_prefix(bytes) {
        header.flags &= !flag::MORE;
    }
    seal(bytes, seed);
}

fn allocate_pages<P: Pm>(fs: &Shared<P>, count: usize, purpose: Purpose) -> Result<Vec<Block>> {
    let mut blocks = Vec::with_capacity(count);
    for _ in 0..count {
        match fs.alloc.allocate_contiguous(1, purpose) {
            Ok(run) => blocks.push(run.start),
            Err(error) => {
                free_pages(fs, &blocks);
                return Err(error);
            }
        }
    }
    Ok(blocks)
}

fn free_pages<P: Pm>(fs: &Shared<P>, blocks: &[Block]) {
    for &block in blocks {
        fs.alloc.free(Run { start: block, len: 1 });
    }
}
