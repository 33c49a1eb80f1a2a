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

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{Block, Result, unless_full};
use nacre_media::{Durable, Pm};
use zerocopy::FromBytes;

use crate::alloc::{Purpose, Run};
use crate::blockmap::{BlockMap, Piece};
use crate::format::{EntryHeader, LINE, PAGE_LINES, seal_word};
use crate::fs::Shared;
use crate::inode::{Body, Inode};
use crate::log::{GROWTH, Log, MIN_COLLECTED_PAGES, NO_PAGE, NOT_LISTED, Owner, Page, dentry_name};
use crate::pages::write_page;
use crate::seeded::fault;
use crate::survivor::{Gathered, Packed, Pieces, References, Survivor, only_places, pack};

/// Pages that one portion copies.
const PORTION: usize = 4;

impl Log {
    /// Collects a portion of garbage. Called before a page is added.
    pub(crate) fn collect<P: Pm>(&mut self, fs: &Shared<P>, inode: &Inode) -> Result<()> {
        // If copies find no space now, nothing has changed, and the operation that adds the page may find some.
        unless_full(self.collect_portion(fs, inode)).map(drop)
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
            if unless_full(self.collect_portion(fs, inode))?.is_none() {
                break;
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
