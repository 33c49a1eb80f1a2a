//! Reads an inode and its log as far as anything of it validates.
//!
//! An entry proves itself and its place: its checksum covers the inode, the generation and the sequence number. So
//! entries behind a damaged one count, and are in order. An entry that does not validate is tried with each of its bits
//! turned. A CRC of 32 bits tells one flipped bit from everything else (at these lengths its Hamming distance is 6).

use std::collections::HashSet;

use nacre_engine::{BLOCK_SIZE, Block, TimeRange};
use nacre_media::Pm;
use zerocopy::{FromBytes, IntoBytes};

use super::survey::Survey;
use crate::format::{
    AttrEntry, EntryHeader, FIRST_SEQUENCE, HoleEntry, INLINE_LINES, LINE, MAX_ENTRY_LINES, MAX_FILE_SIZE,
    PAGE_LINES, PAGE_MAGIC, RawInode, RawPageHeader, TransactionEntry, WriteEntry, checksum_of, flag, kind,
    open_word, place,
};
use crate::scan::{Ending, LogSource, check_known, parse_entry};

/// The sequence number of an entry that does not validate is believed when it is so close to the one before.
const PLAUSIBLE_GAP: u64 = 1 << 20;

/// An entry that validates.
#[derive(Debug, Clone)]
pub(super) struct Saved {
    pub(super) header: EntryHeader,
    pub(super) bytes: Vec<u8>,
}

impl Saved {
    /// The contents of this entry, if it is the first one of an operation in two directories.
    pub(super) fn transaction(&self) -> Option<TransactionEntry> {
        let is_one = self.header.kind == kind::TRANSACTION;
        TransactionEntry::read_from_prefix(&self.bytes).ok().filter(|_| is_one).map(|(entry, _)| entry)
    }
}

/// The remains of a log.
#[derive(Debug, Default)]
pub(super) struct Salvage {
    pub(super) entries: Vec<Saved>,
    pub(super) pages: Vec<Block>,
    seen: HashSet<Block>,
    /// Descriptions of damage, and whether something is lost with it.
    pub(super) damage: Vec<(String, bool)>,
    /// First lines of entries that do not validate: lost only if something follows them, or if nothing may be torn.
    waiting: Vec<[u8; LINE]>,
    /// The number that the lost entry before this place says that it had, 0 where none was lost; nothing proves it.
    said: u64,
    /// No entry has a greater sequence number, lost ones included as far as can be seen.
    pub(super) greatest: u64,
}

impl Salvage {
    fn last_sequence(&self) -> u64 {
        self.entries.last().map_or(0, |entry| entry.header.sequence)
    }

    /// The waiting lines were no operation that was on its way.
    fn lose_waiting(&mut self, seed: u32) {
        for line in std::mem::take(&mut self.waiting) {
            note_lost(seed, &line, self, false);
        }
    }

    /// Something is lost.
    pub(super) fn loses(&self) -> bool {
        self.damage.iter().any(|&(_, lost)| lost)
    }

    /// The entries at the end that are one operation in two directories: where they begin, and the operation.
    pub(super) fn last_transaction(&self) -> Option<(usize, TransactionEntry)> {
        let before = self.entries.split_last()?.1;
        let is_part = |saved: &&Saved| saved.header.flags & flag::MORE != 0;
        let first = before.len() - before.iter().rev().take_while(is_part).count();
        Some((first, self.entries[first].transaction()?))
    }
}

/// Reads `bytes.len()` bytes line by line; a line that the media cannot give is filled with ones, which nothing
/// validates, and noted.
pub(super) fn read_lines(pm: &impl Pm, offset: u64, bytes: &mut [u8]) -> Vec<u64> {
    if pm.read(offset, bytes).is_ok() {
        return Vec::new();
    }
    let mut bad = Vec::new();
    for (index, line) in bytes.chunks_mut(LINE).enumerate() {
        let at = offset + (index * LINE) as u64;
        if pm.read(at, line).is_err() {
            line.fill(0xff);
            bad.push(at);
        }
    }
    bad
}

/// Turns the one bit of `bytes` that makes them valid, if there is one.
pub(super) fn turn_one_bit(bytes: &mut [u8], valid: impl Fn(&[u8]) -> bool) -> bool {
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        if valid(bytes) {
            return true;
        }
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    false
}

/// Where pages may be.
pub(super) struct Grounds<'a, P> {
    pub(super) pm: &'a P,
    pub(super) survey: &'a Survey,
    pub(super) ending: Ending,
    /// A block that cannot be a log page.
    pub(super) is_taken: &'a dyn Fn(Block) -> bool,
}

impl<P: Pm> Grounds<'_, P> {
    /// Reads the log of an inode with a valid header.
    pub(super) fn salvage(&self, source: LogSource, raw: &RawInode) -> Salvage {
        let mut salvage = Salvage::default();
        if raw.head == 0 || self.was_inline(source, raw, &mut salvage) {
            self.salvage_inline(source, raw, &mut salvage);
        } else {
            self.salvage_pages(source, raw.head, &mut salvage);
        }
        self.settle(&mut salvage);
        let pages = self.survey.of(source.number, source.generation).map(|page| page.first_sequence);
        salvage.greatest = salvage
            .entries
            .iter()
            .map(|e| e.header.sequence)
            .chain(pages)
            .max()
            .unwrap_or(0)
            .max(salvage.greatest);
        salvage
    }

    /// Whether a head that does not validate was 0: it is one bit away from that, or no page of this log is newer than
    /// the entries in the inode.
    fn was_inline(&self, source: LogSource, raw: &RawInode, salvage: &mut Salvage) -> bool {
        let head = raw.head;
        let mut pages = self.survey.of(source.number, source.generation).peekable();
        let has_no_page = pages.peek().is_none();
        let sealed = |block: Block| crate::format::seal_word(block.0, source.seed);
        if open_word(head, source.seed, &String::new).is_ok()
            || pages.any(|page| (sealed(page.block) ^ head).count_ones() == 1)
            || !(has_no_page || head.count_ones() == 1 || self.lines_are_newest(source, raw))
        {
            return false;
        }
        let flipped = head.count_ones() == 1;
        let words = if flipped {
            "a flipped bit in the head of its log"
        } else {
            "the head of its log, which has no page that is newer than the inode"
        };
        salvage.damage.push((words.to_owned(), !flipped));
        true
    }

    /// Whether the lines of an inode hold an entry that is as new as any in a page of its log, forgotten pages
    /// included. A log that was compacted into the lines leaves its pages behind. One that moved to a page went on
    /// there.
    pub(super) fn lines_are_newest(&self, source: LogSource, raw: &RawInode) -> bool {
        let newest = |lines: &[u8]| {
            let numbers = (0..lines.len() / LINE).filter_map(|line| {
                parse_entry(&lines[line * LINE..], source.seed).map(|header| header.sequence)
            });
            numbers.max()
        };
        let in_pages = self.survey.of(source.number, source.generation).filter_map(|page| {
            let mut bytes = [0u8; BLOCK_SIZE as usize];
            read_lines(self.pm, page.block.offset(), &mut bytes);
            newest(&bytes[LINE..])
        });
        let in_pages = in_pages.max();
        newest(raw.lines.as_flattened()).is_some_and(|lines| in_pages.is_none_or(|pages| lines >= pages))
    }

    fn salvage_inline(&self, source: LogSource, raw: &RawInode, salvage: &mut Salvage) {
        let bytes = raw.lines.as_flattened();
        let mut line = 0;
        while line < INLINE_LINES {
            let rest = &bytes[line * LINE..];
            line += 1;
            if rest[..LINE].iter().all(|&byte| byte == 0) {
                continue;
            }
            match read_entry(rest, source.seed) {
                Some((saved, turned)) => {
                    line += saved.bytes.len() / LINE - 1;
                    if turned {
                        salvage.damage.push(("a flipped bit in its inode".to_owned(), false));
                    }
                    salvage.entries.push(saved);
                }
                // After a crash that may be an operation that was on its way.
                None if self.ending == Ending::MayBeTorn => {}
                None => note_lost(source.seed, rest, salvage, true),
            }
        }
        salvage.entries.sort_by_key(|saved| saved.header.sequence);
    }

    fn salvage_pages(&self, source: LogSource, head: u64, salvage: &mut Salvage) {
        let mut next = self.follow(source, head, salvage);
        while let Some(block) = next {
            let mut bytes = [0u8; BLOCK_SIZE as usize];
            let bad = read_lines(self.pm, block.offset(), &mut bytes);
            if !self.is_page(source, block, &bytes) {
                // The word that led here was right, so the page was here.
                salvage.damage.push((format!("the page of its log at block {} is gone", block.0), true));
                next = self.find_next(source, salvage);
                continue;
            }
            if !header_is_valid(source, &bytes) {
                salvage
                    .damage
                    .push((format!("the header of the page of its log at block {}", block.0), false));
            }
            salvage.pages.push(block);
            salvage.seen.insert(block);
            self.salvage_page(source, &bytes, salvage);
            // An operation on its way cannot have made them so.
            let in_entries = bad.iter().filter(|&&at| at != block.offset());
            salvage
                .damage
                .extend(in_entries.map(|at| (format!("a media error in its log, at byte {at}"), true)));
            let word = RawPageHeader::read_from_prefix(&bytes).map_or(0, |(header, _)| header.next);
            next = if word == 0 { None } else { self.follow(source, word, salvage) };
        }
    }

    /// The page that a word of the log leads to; where it does not validate, the page that it must have led to.
    fn follow(&self, source: LogSource, word: u64, salvage: &mut Salvage) -> Option<Block> {
        let usable = |block: Block, salvage: &Salvage| {
            (block.0 + 1) * BLOCK_SIZE <= self.pm.len()
                && !(self.is_taken)(block)
                && !salvage.seen.contains(&block)
        };
        match open_word(word, source.seed, &String::new) {
            Ok(Some(block)) if usable(Block(block), salvage) => return Some(Block(block)),
            Ok(Some(_)) => {
                salvage
                    .damage
                    .push(("a link of its log leads to a block that is no page of it".to_owned(), true));
                return self.find_next(source, salvage);
            }
            Ok(None) => return None,
            Err(_) => {}
        }
        let last = salvage.last_sequence();
        let mut candidates = self.survey.of(source.number, source.generation).filter(|page| {
            let sealed = crate::format::seal_word(page.block.0, source.seed);
            (sealed ^ word).count_ones() == 1 && usable(page.block, salvage) && page.first_sequence >= last
        });
        if let (Some(page), None) = (candidates.next(), candidates.next()) {
            salvage.damage.push(("a flipped bit in a link of its log".to_owned(), false));
            return Some(page.block);
        }
        if word.count_ones() == 1 && self.later_pages(source, salvage).is_empty() {
            salvage.damage.push(("a flipped bit in the link at the end of its log".to_owned(), false));
            return None;
        }
        self.find_next(source, salvage)
    }

    /// Pages that may be behind those that were found. Entries that were gathered all have one number, and so may
    /// several pages begin.
    fn later_pages(&self, source: LogSource, salvage: &Salvage) -> Vec<super::survey::Found> {
        let last = salvage.last_sequence();
        let later = self.survey.of(source.number, source.generation).filter(|page| {
            page.first_sequence >= last && !salvage.seen.contains(&page.block) && !(self.is_taken)(page.block)
        });
        later.copied().collect()
    }

    /// Whether a page that was not found, in this log or forgotten, leads to a block.
    fn is_led_to(&self, source: LogSource, block: Block, salvage: &Salvage) -> bool {
        let word = crate::format::seal_word(block.0, source.seed);
        self.survey
            .of(source.number, source.generation)
            .any(|page| page.next == word && !salvage.seen.contains(&page.block))
    }

    /// The page that must be the next one: the only one that begins where the log ends here, and that no other page
    /// leads to. One that begins with the last number may be a forgotten one.
    fn find_next(&self, source: LogSource, salvage: &mut Salvage) -> Option<Block> {
        let later = self.later_pages(source, salvage);
        let expected = match salvage.last_sequence().max(salvage.said) {
            0 => FIRST_SEQUENCE,
            last => last + 1,
        };
        let mut starts = later
            .iter()
            .filter(|page| page.first_sequence <= expected && !self.is_led_to(source, page.block, salvage));
        match (starts.next(), starts.next()) {
            (Some(page), None) if page.first_sequence == expected => {
                let words = "a link of its log; the sequence numbers prove which page is the next one";
                salvage.damage.push((words.to_owned(), false));
                Some(page.block)
            }
            (Some(page), None) => {
                let words = "a link of its log; only one page can be the next one, if it is not an old one";
                salvage.damage.push((words.to_owned(), true));
                Some(page.block)
            }
            _ if later.is_empty() && !salvage.pages.is_empty() => {
                salvage.damage.push(("the link at the end of its log".to_owned(), false));
                None
            }
            _ => {
                let what = format!(
                    "its log from operation {expected} on: nothing proves which page is the next one"
                );
                salvage.damage.push((what, true));
                None
            }
        }
    }

    /// A page with a valid header, or with an entry of this log.
    fn is_page(&self, source: LogSource, block: Block, bytes: &[u8; BLOCK_SIZE as usize]) -> bool {
        let holds_entry =
            || (1..=PAGE_LINES).any(|line| parse_entry(&bytes[line * LINE..], source.seed).is_some());
        !(self.is_taken)(block) && (header_is_valid(source, bytes) || holds_entry())
    }

    fn salvage_page(&self, source: LogSource, bytes: &[u8; BLOCK_SIZE as usize], salvage: &mut Salvage) {
        let mut begins = true;
        let mut gap = false;
        let mut line = 1;
        while line <= PAGE_LINES {
            let rest = &bytes[line * LINE..];
            line += 1;
            if rest[..LINE].iter().all(|&byte| byte == 0) {
                gap = true;
                continue;
            }
            // A batch on its way is in one page.
            if std::mem::take(&mut begins) {
                salvage.lose_waiting(source.seed);
            }
            // Entries follow one another: one that was here is gone.
            if std::mem::take(&mut gap) {
                salvage.waiting.push([0; LINE]);
            }
            let Some((saved, turned)) = read_entry(rest, source.seed) else {
                salvage.waiting.extend(rest.first_chunk::<LINE>());
                continue;
            };
            line += saved.bytes.len() / LINE - 1;
            salvage.lose_waiting(source.seed);
            Self::keep(saved, turned, salvage);
        }
        if self.ending == Ending::Clean {
            salvage.lose_waiting(source.seed);
        }
    }

    /// Takes an entry that validates, if it is in order.
    fn keep(saved: Saved, turned: bool, salvage: &mut Salvage) {
        if saved.header.sequence < salvage.last_sequence() {
            let number = saved.header.sequence;
            salvage.damage.push((format!("operation {number} of its log is out of order"), true));
            return;
        }
        if turned {
            salvage.damage.push(("a flipped bit in an operation of its log".to_owned(), false));
        }
        salvage.said = 0;
        salvage.entries.push(saved);
    }

    /// Drops a batch that is not complete at the end of the log.
    fn settle(&self, salvage: &mut Salvage) {
        while let Some(last) = salvage.entries.last()
            && last.header.flags & flag::MORE != 0
        {
            if self.ending == Ending::Clean {
                salvage.damage.push(("the last operation of its log is incomplete".to_owned(), true));
                break;
            }
            salvage.entries.pop();
        }
        let too_small = |saved: &Saved| saved.header.sequence < FIRST_SEQUENCE;
        if salvage.entries.iter().any(too_small) {
            salvage.damage.push(("operations of its log with numbers that none has".to_owned(), true));
            salvage.entries.retain(|saved| !too_small(saved));
        }
    }
}

fn header_is_valid(source: LogSource, bytes: &[u8]) -> bool {
    RawPageHeader::read_from_prefix(bytes).is_ok_and(|(header, _)| {
        header.magic == PAGE_MAGIC
            && header.checksum == header.compute_checksum(source.seed)
            && header.inode == source.number
            && header.generation == source.generation
            && header.reserved == 0
            && header.reserved2 == [0; 2]
            && header.reserved3 == 0
    })
}

/// The entry at the start of `bytes`, and whether a bit of it had to be turned.
fn read_entry(bytes: &[u8], seed: u32) -> Option<(Saved, bool)> {
    let take = |bytes: &[u8], turned| {
        let header = parse_entry(bytes, seed).filter(|header| check_known(header).is_ok())?;
        Some((Saved { header, bytes: bytes[..usize::from(header.lines) * LINE].to_vec() }, turned))
    };
    if let Some(entry) = take(bytes, false) {
        return Some(entry);
    }
    let lines = usize::from(bytes[6]).clamp(1, MAX_ENTRY_LINES.min(bytes.len() / LINE));
    let mut copy = bytes[..lines * LINE].to_vec();
    if turn_one_bit(&mut copy, |copy| parse_entry(copy, seed).is_some()) {
        return take(&copy, true);
    }
    // The flipped bit may be in the number of lines.
    let mut copy = bytes[..bytes.len().min(MAX_ENTRY_LINES * LINE)].to_vec();
    for bit in 0..8 {
        copy[6] ^= 1 << bit;
        if let Some(entry) = take(&copy, true) {
            return Some(entry);
        }
        copy[6] ^= 1 << bit;
    }
    None
}

/// Notes that the entry at the start of `bytes` is lost. If its bytes say that it was a write, the blocks that were
/// there before must not come back: they were free since. So a hole takes its place, with the number of the entry
/// before it: its own number may be damaged, and would put later entries out of order. Only where order is not position
/// it keeps its own.
fn note_lost(seed: u32, bytes: &[u8], salvage: &mut Salvage, keeps_number: bool) {
    let Ok((header, _)) = EntryHeader::read_from_prefix(bytes) else { return };
    let last = salvage.last_sequence();
    // Several entries may share a number, as those of a log that was compacted.
    let is_next = header.sequence >= last && header.sequence < last + PLAUSIBLE_GAP;
    if is_next {
        salvage.greatest = salvage.greatest.max(header.sequence);
        salvage.said = salvage.said.max(header.sequence);
    }
    let write = WriteEntry::read_from_prefix(bytes).ok().map(|(write, _)| write);
    let write = write.filter(|_| is_next && header.kind == kind::WRITE && header.lines == 1);
    let range = write.map(|write| (write.file_block & place::BLOCK_MASK, u64::from(write.blocks)));
    let words = match (write, range) {
        (Some(write), Some((start, blocks)))
            if blocks > 0 && (start + blocks) * BLOCK_SIZE <= MAX_FILE_SIZE =>
        {
            let sequence = if keeps_number { header.sequence } else { last.max(FIRST_SEQUENCE) };
            let hole = hole_instead(seed, sequence, (start, blocks), write.mtime, salvage);
            salvage.entries.push(hole);
            let (from, to) = (start * BLOCK_SIZE, (start + blocks) * BLOCK_SIZE);
            format!("a write of bytes {from} to {to} cannot be read")
        }
        _ => format!("an operation behind number {last} of its log cannot be read"),
    };
    // The lines of one entry are told once.
    if salvage.damage.last().is_none_or(|(last, _)| *last != words) {
        salvage.damage.push((words, true));
    }
}

/// A hole in the place of a write that is lost; the size stays as it was before.
fn hole_instead(seed: u32, sequence: u64, range: (u64, u64), mtime: u64, salvage: &Salvage) -> Saved {
    let sizes = salvage.entries.iter().rev().filter_map(|saved| size_after(&saved.bytes, saved.header.kind));
    let mut hole = HoleEntry {
        file_block: range.0,
        blocks: range.1,
        size: sizes.into_iter().next().unwrap_or(0),
        mtime: if TimeRange::is_packed(mtime) { mtime } else { 0 },
        ..HoleEntry::default()
    };
    hole.header.kind = kind::HOLE;
    hole.header.lines = 1;
    hole.header.sequence = sequence;
    hole.header.checksum = checksum_of(hole.as_bytes(), seed);
    Saved { header: hole.header, bytes: hole.as_bytes().to_vec() }
}

fn size_after(bytes: &[u8], kind: u8) -> Option<u64> {
    match kind {
        kind::WRITE => WriteEntry::read_from_prefix(bytes)
            .ok()
            .filter(|(entry, _)| entry.header.flags & flag::MOVED == 0)
            .map(|(entry, _)| entry.size),
        kind::HOLE => HoleEntry::read_from_prefix(bytes).ok().map(|(entry, _)| entry.size),
        kind::ATTR => AttrEntry::read_from_prefix(bytes).ok().map(|(entry, _)| entry.size),
        _ => None,
    }
}

/// An inode as far as the media can give it, and the lines that they cannot.
pub(super) fn read_inode_lines(pm: &impl Pm, address: u64) -> (RawInode, Vec<u64>) {
    let mut raw = <RawInode as zerocopy::FromZeros>::new_zeroed();
    let bad = read_lines(pm, address, raw.as_mut_bytes());
    (raw, bad)
}
