//! Reads a log from media, entry by entry, and finds where it ends.
//!
//! A log ends at its first line that is not a valid entry. After a crash that may be an entry, or a batch, that was on
//! its way (*torn*). It is dropped, and recovery erases it so that it can never be taken for part of a later batch. An
//! invalid line that is followed by complete operations, or any invalid line after a clean unmount, cannot be such a
//! batch. It is damage and an error.

use nacre_engine::{BLOCK_SIZE, Block, Error, Result};
use nacre_media::Pm;
use zerocopy::{FromBytes, IntoBytes};

use crate::format::{
    EntryHeader, INLINE_LINES, LINE, MAX_ENTRY_LINES, PAGE_LINES, PAGE_MAGIC, RawInode, RawPageHeader,
    TransactionEntry, checksum_of, flag, kind, open_word,
};

/// Where an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spot {
    /// In this line of the inode.
    Inline(usize),
    /// In this page, counted from the head of the log.
    Page(usize),
}

/// A valid entry on media.
pub(crate) struct Entry<'a> {
    pub(crate) header: EntryHeader,
    /// All its lines.
    pub(crate) bytes: &'a [u8],
    pub(crate) spot: Spot,
    pub(crate) address: u64,
}

impl Entry<'_> {
    /// The entry as a struct.
    pub(crate) fn get<T: FromBytes>(&self) -> Result<T> {
        T::read_from_prefix(self.bytes)
            .map(|(value, _)| value)
            .map_err(|_| Error::corrupt(format!("entry at byte {}: too short", self.address)))
    }
}

/// A page of a log as it is on media.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScannedPage {
    pub(crate) block: Block,
    pub(crate) first_sequence: u64,
}

/// The result of a scan besides the entries.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    pub(crate) pages: Vec<ScannedPage>,
    /// One more than the greatest sequence number seen, torn entries included.
    pub(crate) next_sequence: u64,
    /// Byte ranges that a torn batch left behind, to be erased; in the order of the log.
    pub(crate) torn: Vec<(u64, u64)>,
    /// The last batch, when it belongs to a transaction.
    pub(crate) last_transaction: Option<PendingTransaction>,
    /// The last batch's entries, in case they are not committed after all: (address, bytes).
    pub(crate) last_batch: Vec<(u64, u64)>,
    /// The greatest transaction number of the log.
    pub(crate) greatest_transaction: u64,
}

/// A transaction of which a log has the entries at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PendingTransaction {
    pub(crate) number: u64,
    pub(crate) peer: u64,
    pub(crate) peer_generation: u32,
}

/// Whether the end of a log may be torn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// After a clean unmount, or a recovery: nothing torn.
    Clean,
    /// After a crash: one batch may be torn.
    MayBeTorn,
}

/// Where a log is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogSource {
    pub(crate) number: u64,
    pub(crate) generation: u32,
    pub(crate) seed: u32,
    /// Address of the inode.
    pub(crate) address: u64,
}

/// Reads the log of the inode `raw` and calls `visit` with each committed entry in order. Whether the last batch,
/// when it is part of a transaction, is committed, the caller finds out from [`Scan::last_transaction`] first: with
/// `drop_last`, it is not visited.
pub(crate) fn scan_log(
    pm: &impl Pm,
    source: LogSource,
    raw: &RawInode,
    ending: Ending,
    drop_last: bool,
    visit: &mut dyn FnMut(&Entry<'_>) -> Result<()>,
) -> Result<Scan> {
    let mut scanner = Scanner {
        pm,
        source,
        ending,
        scan: Scan { next_sequence: crate::format::FIRST_SEQUENCE, ..Scan::default() },
        batch: Vec::new(),
        last: Vec::new(),
        drop_last,
        visit,
    };
    let head = open_word(raw.head, source.seed, &|| format!("inode {}: head of its log", source.number))?;
    match head {
        None => scanner.scan_inline(raw)?,
        Some(block) => scanner.scan_pages(Block(block))?,
    }
    scanner.finish()
}

/// An entry that waits for the rest of its batch, or for the end of the log.
struct Held {
    header: EntryHeader,
    bytes: Vec<u8>,
    spot: Spot,
    address: u64,
}

struct Scanner<'a, P> {
    pm: &'a P,
    source: LogSource,
    ending: Ending,
    scan: Scan,
    /// The entries so far of a batch that is not complete.
    batch: Vec<Held>,
    /// The last complete batch that began with a transaction; held back until something follows it.
    last: Vec<Held>,
    drop_last: bool,
    visit: &'a mut dyn FnMut(&Entry<'_>) -> Result<()>,
}

impl<P: Pm> Scanner<'_, P> {
    fn scan_inline(&mut self, raw: &RawInode) -> Result<()> {
        let bytes = raw.lines.as_flattened();
        let mut found: [Option<(u64, usize, usize)>; INLINE_LINES] = [None; INLINE_LINES];
        let mut line = 0;
        while line < INLINE_LINES {
            let address = self.source.address + ((1 + line) * LINE) as u64;
            match parse_entry(&bytes[line * LINE..], self.source.seed) {
                Some(header) => {
                    found[line] = Some((header.sequence, line, usize::from(header.lines)));
                    line += usize::from(header.lines);
                }
                None => {
                    let here = &bytes[line * LINE..(line + 1) * LINE];
                    if here.iter().any(|&byte| byte != 0) {
                        if self.ending == Ending::Clean {
                            return Err(self.damaged(address, "invalid entry in the inode"));
                        }
                        self.scan.torn.push((address, LINE as u64));
                    }
                    line += 1;
                }
            }
        }
        let mut order: Vec<_> = found.into_iter().flatten().collect();
        order.sort_unstable();
        for (_, line, count) in order {
            let address = self.source.address + ((1 + line) * LINE) as u64;
            self.entry(&bytes[line * LINE..(line + count) * LINE], Spot::Inline(line), address)?;
        }
        Ok(())
    }

    fn scan_pages(&mut self, head: Block) -> Result<()> {
        let mut next = Some(head);
        let mut bytes = [0u8; BLOCK_SIZE as usize];
        let limit = self.pm.len() / BLOCK_SIZE;
        let mut torn_in = None;
        while let Some(block) = next {
            let header = self.read_page(block, &mut bytes)?;
            if self.scan.pages.len() as u64 > limit {
                return Err(self.damaged(block.offset(), "the pages of the log form a cycle"));
            }
            let index = self.scan.pages.len();
            self.scan.pages.push(ScannedPage { block, first_sequence: header.first_sequence });
            next = open_word(header.next, self.source.seed, &|| {
                format!("inode {}: link of the log page at block {}", self.source.number, block.0)
            })?
            .map(Block);
            self.scan_page(block, index, &bytes[LINE..], &mut torn_in)?;
        }
        Ok(())
    }

    fn read_page(&self, block: Block, bytes: &mut [u8; BLOCK_SIZE as usize]) -> Result<RawPageHeader> {
        let offset = block.offset();
        if offset + BLOCK_SIZE > self.pm.len() {
            return Err(self.damaged(offset, "a log page beyond the device"));
        }
        self.pm.read(offset, bytes)?;
        let header = RawPageHeader::read_from_bytes(&bytes[..LINE])
            .map_err(|_| self.damaged(offset, "a log page that cannot be read"))?;
        let valid = header.magic == PAGE_MAGIC
            && header.checksum == header.compute_checksum(self.source.seed)
            && header.inode == self.source.number
            && header.generation == self.source.generation
            && header.reserved == 0
            && header.reserved2 == [0; 2]
            && header.reserved3 == 0;
        if valid { Ok(header) } else { Err(self.damaged(offset, "header of a log page")) }
    }

    /// Visits the entries of a page. A page may end early; bytes behind an empty line are a torn batch. A batch goes to
    /// media page by page, so a torn one is in one page, and later pages are empty.
    fn scan_page(
        &mut self,
        block: Block,
        index: usize,
        lines: &[u8],
        torn_in: &mut Option<usize>,
    ) -> Result<()> {
        let mut line = 0;
        let mut empty_line = false;
        let mut batch_ended = false;
        while line < PAGE_LINES {
            let address = block.offset() + ((1 + line) * LINE) as u64;
            let rest = &lines[line * LINE..];
            if rest[..LINE].iter().all(|&byte| byte == 0) {
                empty_line = true;
                line += 1;
                continue;
            }
            let entry = parse_entry(rest, self.source.seed);
            let in_order = !empty_line && torn_in.is_none();
            match entry {
                Some(header) if in_order => {
                    let count = usize::from(header.lines);
                    self.entry(&rest[..count * LINE], Spot::Page(index), address)?;
                    line += count;
                    continue;
                }
                _ if self.ending == Ending::Clean => return Err(self.damaged(address, "invalid entry")),
                _ if torn_in.is_some_and(|torn| torn != index) || batch_ended => {
                    return Err(self.damaged(address, "operations behind an invalid entry"));
                }
                _ => {}
            }
            *torn_in = Some(index);
            let count = entry.map_or(1, |header| usize::from(header.lines));
            self.scan.torn.push((address, (count * LINE) as u64));
            if let Some(header) = entry {
                self.scan.next_sequence = self.scan.next_sequence.max(header.sequence + 1);
                batch_ended = header.flags & flag::MORE == 0;
            }
            line += count;
        }
        Ok(())
    }

    /// Takes a valid entry in order.
    fn entry(&mut self, bytes: &[u8], spot: Spot, address: u64) -> Result<()> {
        let (header, _) = EntryHeader::read_from_prefix(bytes)
            .map_err(|_| self.damaged(address, "an entry that cannot be read"))?;
        check_known(&header).map_err(|what| self.damaged(address, what))?;
        if header.kind == kind::TRANSACTION {
            let number =
                TransactionEntry::read_from_prefix(bytes).map_or(u64::MAX, |(raw, _)| raw.transaction);
            if number >= MAX_SEQUENCE {
                return Err(self.damaged(address, "a transaction with a number that none has"));
            }
        }
        // Parts of one write may share a number; a name is found by its number when it is removed.
        if header.sequence + 1 < self.scan.next_sequence && self.scan.torn.is_empty() {
            return Err(self.damaged(address, "an entry that is older than the one before it"));
        }
        self.scan.next_sequence = self.scan.next_sequence.max(header.sequence + 1);
        // Garbage collection leaves gaps: an entry that follows with another number shows that the batch was complete.
        let continues = self.batch.last().is_some_and(|held| held.header.sequence + 1 == header.sequence);
        if !self.batch.is_empty() && !continues {
            self.complete_batch()?;
        }
        if header.flags & flag::MORE != 0 {
            self.batch.push(Held { header, bytes: bytes.to_vec(), spot, address });
            return Ok(());
        }
        if self.batch.is_empty() {
            self.flush_last()?;
            self.scan.last_batch.clear();
            self.scan.last_batch.push((address, bytes.len() as u64));
            return self.deliver(&Entry { header, bytes, spot, address });
        }
        self.batch.push(Held { header, bytes: bytes.to_vec(), spot, address });
        self.complete_batch()
    }

    /// A batch is complete: everything before it is settled.
    fn complete_batch(&mut self) -> Result<()> {
        self.flush_last()?;
        self.scan.last_batch.clear();
        self.scan.last_batch.extend(self.batch.iter().map(|held| (held.address, held.bytes.len() as u64)));
        let batch = std::mem::take(&mut self.batch);
        if batch[0].header.kind == kind::TRANSACTION {
            self.last = batch;
            return Ok(());
        }
        self.deliver_all(&batch)
    }

    fn flush_last(&mut self) -> Result<()> {
        let last = std::mem::take(&mut self.last);
        self.deliver_all(&last)
    }

    fn deliver_all(&mut self, batch: &[Held]) -> Result<()> {
        for held in batch {
            let Held { header, bytes, spot, address } = held;
            self.deliver(&Entry { header: *header, bytes, spot: *spot, address: *address })?;
        }
        Ok(())
    }

    fn deliver(&mut self, entry: &Entry<'_>) -> Result<()> {
        if entry.header.kind == kind::TRANSACTION {
            let transaction = entry.get::<TransactionEntry>()?.transaction;
            self.scan.greatest_transaction = self.scan.greatest_transaction.max(transaction);
        }
        (self.visit)(entry)
    }

    fn finish(mut self) -> Result<Scan> {
        if !self.batch.is_empty() {
            // The log ends in the middle of a batch.
            if self.ending == Ending::Clean {
                return Err(self.damaged(self.batch[0].address, "an incomplete operation"));
            }
            // It is before the torn batch behind it.
            let batch = std::mem::take(&mut self.batch);
            self.scan.torn.splice(0..0, batch.iter().map(|held| (held.address, held.bytes.len() as u64)));
        }
        if let Some(first) = self.last.first() {
            let entry =
                Entry { header: first.header, bytes: &first.bytes, spot: first.spot, address: first.address };
            let raw: TransactionEntry = entry.get()?;
            self.scan.greatest_transaction = self.scan.greatest_transaction.max(raw.transaction);
            self.scan.last_transaction = Some(PendingTransaction {
                number: raw.transaction,
                peer: raw.peer,
                peer_generation: raw.peer_generation,
            });
            if !self.drop_last {
                self.flush_last()?;
            }
        }
        Ok(self.scan)
    }

    fn damaged(&self, address: u64, what: &str) -> Error {
        Error::corrupt(format!("inode {}: log at byte {address}: {what}", self.source.number))
    }
}

/// Sequence numbers are smaller: as cookies they must fit the kernel's signed offsets. So are those of transactions.
pub(crate) const MAX_SEQUENCE: u64 = 1 << 62;

/// The header of the valid entry at the start of `bytes`, or nothing.
pub(crate) fn parse_entry(bytes: &[u8], seed: u32) -> Option<EntryHeader> {
    let (header, _) = EntryHeader::read_from_prefix(bytes).ok()?;
    let count = usize::from(header.lines);
    // A log that counts to the end of all numbers cannot be continued.
    let is_number = header.sequence < MAX_SEQUENCE;
    if header.kind == 0 || !is_number || count == 0 || count > MAX_ENTRY_LINES || count * LINE > bytes.len() {
        return None;
    }
    (header.checksum == checksum_of(&bytes[..count * LINE], seed)).then_some(header)
}

pub(crate) fn check_known(header: &EntryHeader) -> Result<(), &'static str> {
    if header.reserved != 0 || header.flags & !flag::KNOWN != 0 {
        return Err("reserved bits of an entry that are not zero");
    }
    let known = (kind::WRITE..=kind::IMAGE).contains(&header.kind);
    if !known && header.flags & flag::SKIP_UNKNOWN == 0 {
        return Err("an entry of an unknown kind");
    }
    Ok(())
}

/// Reads an inode from media.
pub(crate) fn read_inode(pm: &impl Pm, address: u64) -> Result<RawInode> {
    let mut raw = <RawInode as zerocopy::FromZeros>::new_zeroed();
    pm.read(address, raw.as_mut_bytes())?;
    Ok(raw)
}
