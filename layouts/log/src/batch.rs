//! The entries of one operation on one log, before they are written.

use smallvec::SmallVec;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::alloc::Purpose;
use crate::format::{EntryHeader, FIRST_SEQUENCE, LINE, TransactionEntry, flag, kind, lines_for, seal};
use crate::log::{Owner, is_negative};

/// The entries of one operation on one log.
#[derive(Default)]
pub(crate) struct Batch {
    lines: SmallVec<[[u8; LINE]; 4]>,
    /// First line and number of lines of each entry.
    entries: SmallVec<[(u32, u32); 4]>,
    /// The places of the entries, in order, after room was made for them: the owner, and the address on media.
    placed: SmallVec<[(Owner, u64); 4]>,
    /// The purpose of its pages, where its entries do not say it.
    pages: Option<Purpose>,
}

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

    /// Says the purpose of pages for this batch, if its entries do not.
    pub(crate) fn set_pages(&mut self, pages: Option<Purpose>) {
        self.pages = pages;
    }

    /// Numbers the transaction: the batch begins with its entry.
    pub(crate) fn set_transaction(&mut self, number: u64) {
        if let Ok((entry, _)) = TransactionEntry::mut_from_prefix(&mut self.lines[0]) {
            entry.transaction = number;
        }
    }

    fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Lines of an entry.
    pub(crate) fn lines_of(&self, index: usize) -> usize {
        self.entries[index].1 as usize
    }

    /// Says where the next entry will go.
    pub(crate) fn place(&mut self, owner: Owner, address: u64) {
        self.placed.push((owner, address));
    }

    /// The owner of an entry, and its address on media.
    pub(crate) fn placed(&self, index: usize) -> (Owner, u64) {
        self.placed[index]
    }

    /// Whether it says anything of where blocks of a file are.
    pub(crate) fn changes_blocks(&self) -> bool {
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
    pub(crate) fn seal(&mut self, first_sequence: u64, seed: u32, chained: bool) {
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

    /// The bytes of an entry.
    pub(crate) fn entry(&self, index: usize) -> &[u8] {
        let (first, count) = self.entries[index];
        self.lines[first as usize..(first + count) as usize].as_flattened()
    }

    /// The bytes of an entry and of those behind it, `length` in all.
    pub(crate) fn bytes_from(&self, index: usize, length: usize) -> &[u8] {
        let first = self.entries[index].0 as usize;
        self.lines[first..first + length / LINE].as_flattened()
    }

    /// The header of an entry.
    pub(crate) fn header(&self, index: usize) -> EntryHeader {
        EntryHeader::read_from_prefix(self.entry(index))
            .map_or_else(|_| EntryHeader::default(), |(header, _)| header)
    }
}

/// Entry headers that lie in a built inode: for logs that begin with the inode.
pub(crate) fn seal_inline(batch: &mut Batch, seed: u32) -> (Vec<u8>, u64) {
    if batch.is_empty() {
        return (Vec::new(), FIRST_SEQUENCE);
    }
    batch.seal(FIRST_SEQUENCE, seed, true);
    (batch.lines.as_flattened().to_vec(), FIRST_SEQUENCE + batch.entries.len() as u64)
}
