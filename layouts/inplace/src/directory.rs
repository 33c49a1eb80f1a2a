//! Directories: blocks of records, searched from their start; an index of names in DRAM is a setting. The name cache of
//! directories without one is in `memo`.
//!
//! The records of a block fill it; the bytes of a record beyond its name are free, and a free record (no inode) is only
//! at a block's start. A record stays where it is as long as its name does, so its place in the directory is its
//! cookie. How names change is in `names`.

use nacre_engine::{BLOCK_SIZE, Block, Error, FileKind, InodeId, Result};
use nacre_layout_parts::contract::Listed;
use nacre_layout_parts::links;
use nacre_layout_parts::names::{Name, NameIndex, hash};
use nacre_layout_parts::namespace;
use nacre_layout_parts::rules::MAX_NAME;
use nacre_media::Pm;
use smallvec::SmallVec;
use zerocopy::FromBytes;

use crate::blockmap::{self, BlockMap, Bounds};
use crate::format::{DENTRY_HEADER, RawDentry, RawInode};
use crate::memo::{Absent, Memo};

pub(crate) const BLOCK: usize = BLOCK_SIZE as usize;
/// Cookies below are those of `.` and `..` in front ends.
const FIRST_COOKIE: u64 = 3;

pub(crate) type Page = [u8; BLOCK];

/// The state of a directory in DRAM.
#[derive(Default)]
pub(crate) struct Directory {
    /// Its blocks, in order.
    pub(crate) blocks: Vec<u64>,
    pub(crate) entries: u64,
    pub(crate) subdirectories: u32,
    /// For each block, no record has more room than this.
    room: Vec<u16>,
    /// Where names are, when they are indexed.
    index: Option<NameIndex>,
    /// Without an index, where some are that were found or added.
    memo: Memo,
    /// Without an index, some that are not there.
    absent: Absent,
}

/// A record of a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    /// Its first byte in the block.
    pub(crate) at: usize,
    pub(crate) raw: RawDentry,
}

impl Record {
    pub(crate) fn len(&self) -> usize {
        usize::from(self.raw.record_len)
    }

    pub(crate) fn is_used(&self) -> bool {
        self.raw.inode != 0
    }

    /// Bytes that its name needs.
    pub(crate) fn needed(&self) -> usize {
        if self.is_used() { needed(usize::from(self.raw.name_len)) } else { 0 }
    }

    pub(crate) fn name<'p>(&self, page: &'p Page) -> &'p [u8] {
        let start = self.at + DENTRY_HEADER;
        &page[start..start + usize::from(self.raw.name_len)]
    }

    pub(crate) fn kind(&self) -> Result<FileKind> {
        FileKind::from_u8(self.raw.kind).ok_or_else(|| Error::corrupt("directory: kind of a name"))
    }

    pub(crate) fn id(&self) -> InodeId {
        InodeId { number: self.raw.inode, generation: self.raw.generation, volume: 0 }
    }
}

/// Bytes of a record with a name of this length.
pub(crate) fn needed(name_len: usize) -> usize {
    (DENTRY_HEADER + name_len).next_multiple_of(8)
}

/// A name that was found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    /// The record's first byte in the directory.
    pub(crate) offset: u64,
    pub(crate) id: InodeId,
    pub(crate) kind: FileKind,
}

impl namespace::Record for Found {
    fn id(&self) -> InodeId {
        self.id
    }

    fn kind(&self) -> FileKind {
        self.kind
    }
}

/// The record at a place of a page, validated.
pub(crate) fn record_at(page: &Page, at: usize) -> Result<Record> {
    let damaged = || Error::corrupt("directory: a record");
    let bytes = page.get(at..).ok_or_else(damaged)?;
    let (raw, _) = RawDentry::read_from_prefix(bytes).map_err(|_| damaged())?;
    let record = Record { at, raw };
    let fits = record.len() >= DENTRY_HEADER && record.len().is_multiple_of(8) && at + record.len() <= BLOCK;
    if !fits || record.needed() > record.len() || (record.is_used() && raw.name_len == 0) {
        return Err(damaged());
    }
    Ok(record)
}

/// Calls `visit` with each record of a page until it gives something.
pub(crate) fn find_record<T>(
    page: &Page,
    mut visit: impl FnMut(Record) -> Result<Option<T>>,
) -> Result<Option<T>> {
    let mut at = 0;
    while at < BLOCK {
        let record = record_at(page, at)?;
        if let Some(found) = visit(record)? {
            return Ok(Some(found));
        }
        at += record.len();
    }
    Ok(None)
}

/// Calls `visit` with the names of a directory as media has it.
pub(crate) fn for_each_name<P: Pm>(
    pm: &P,
    bounds: Bounds,
    raw: &RawInode,
    visit: &mut links::Visitor<'_>,
) -> Result<()> {
    let mut blocks = Vec::new();
    let count = raw.size.div_ceil(BLOCK_SIZE);
    blockmap::map(pm, raw.root, bounds).for_each(0, count, &mut |piece| {
        let start = piece.block().0;
        blocks.extend(start..start + piece.len);
    })?;
    let is_whole = blocks.len() as u64 == count && raw.size.is_multiple_of(BLOCK_SIZE);
    let mut page = [0; BLOCK];
    for block in blocks {
        pm.read(Block(block).offset(), &mut page)?;
        let stopped = find_record(&page, |record| {
            let RawDentry { inode, generation, kind, .. } = record.raw;
            let name = links::Name { bytes: record.name(&page), inode, generation, kind };
            Ok((record.is_used() && visit(&name).is_break()).then_some(()))
        })?;
        if stopped.is_some() {
            return Ok(());
        }
    }
    // After the names that are there.
    if is_whole { Ok(()) } else { Err(Error::corrupt("a block of a directory is missing")) }
}

/// The record of a page with this name. Without an index a directory spends its time here: the page is searched for the
/// last word of the name, which few others share. Its records are looked at only where that word stands.
pub(crate) fn find_name(page: &Page, name: &[u8]) -> Result<Option<Record>> {
    const WORD: usize = size_of::<u32>();
    const NAME_LEN: usize = std::mem::offset_of!(RawDentry, name_len);
    /// Words that are compared before anybody asks for the result.
    const STEP: usize = 64;
    let Some(last) = name.len().checked_sub(1).map(|end| end / WORD) else { return Ok(None) };
    let rest = &name[last * WORD..];
    let mut bytes = [0; WORD];
    bytes[..rest.len()].copy_from_slice(rest);
    let (wanted, mask) = (u32::from_le_bytes(bytes), u32::MAX >> (8 * (WORD - rest.len())));
    let (words, _) = page.as_chunks::<WORD>();
    let is_wanted = |word: &[u8; WORD]| u32::from_le_bytes(*word) & mask == wanted;
    for (step, some) in words.chunks_exact(STEP).enumerate() {
        if !some.iter().fold(false, |any, word| any | is_wanted(word)) {
            continue;
        }
        for (index, _) in some.iter().enumerate().filter(|(_, word)| is_wanted(word)) {
            let at = ((step * STEP + index) * WORD).checked_sub(last * WORD + DENTRY_HEADER);
            // The lengths first: a short name stands in many others, and its records would be looked at for each.
            if let Some(at) = at.filter(|at| at.is_multiple_of(8))
                && usize::from(page[at + NAME_LEN]) == name.len()
                && page[at + DENTRY_HEADER..].starts_with(name)
                && let Some(record) = used_record(page, at)?
                && record.name(page) == name
            {
                return Ok(Some(record));
            }
        }
    }
    Ok(None)
}

/// The record that begins at a place, if one does: the rest of a removed name may be there.
fn used_record(page: &Page, at: usize) -> Result<Option<Record>> {
    let begins = |record: Record| Ok((record.at >= at).then_some(record));
    let record = find_record(page, begins)?;
    Ok(record.filter(|record| record.at == at && record.is_used()))
}

impl Directory {
    /// A directory without names.
    pub(crate) fn new(indexed: bool) -> Directory {
        Directory { index: indexed.then(NameIndex::default), ..Directory::default() }
    }

    /// Reads all of a directory of this size: counts its names, and indexes them where that is asked for.
    pub(crate) fn load<P: Pm>(
        map: &BlockMap<'_, P>,
        size: u64,
        indexed: bool,
        hash_seed: u64,
    ) -> Result<Directory> {
        let mut directory = Directory::new(indexed);
        let count = size / BLOCK_SIZE;
        map.for_each(0, count, &mut |piece| {
            let start = piece.block().0;
            directory.blocks.extend(start..start + piece.len);
        })?;
        if directory.blocks.len() as u64 != count {
            return Err(Error::corrupt("directory: a block is missing"));
        }
        let mut page = [0; BLOCK];
        for at in 0..directory.blocks.len() {
            directory.read_page(map.pm, at, &mut page)?;
            let mut room = 0;
            find_record(&page, |record| {
                room = room.max(record.len() - record.needed());
                if record.is_used() {
                    directory.entries += 1;
                    directory.subdirectories += u32::from(record.kind()? == FileKind::Directory);
                    let offset = (at * BLOCK + record.at) as u64;
                    directory.remember(hash(record.name(&page), hash_seed), offset);
                }
                Ok(None::<()>)
            })?;
            directory.note_room(at, room);
        }
        directory.make_memo();
        Ok(directory)
    }

    pub(crate) fn read_page(&self, pm: &impl Pm, at: usize, page: &mut Page) -> Result<()> {
        pm.read(Block(self.blocks[at]).offset(), page)
    }

    /// A name was added, or is there.
    pub(crate) fn remember(&mut self, hash: u64, offset: u64) {
        match &mut self.index {
            Some(index) => index.insert(hash, offset),
            None => {
                self.absent.forget(hash);
                self.memo.put(hash, offset);
            }
        }
    }

    /// A name was taken away.
    pub(crate) fn forget(&mut self, name: Name<'_>, offset: u64) {
        match &mut self.index {
            Some(index) => index.remove(name.hash, offset),
            None => {
                self.memo.forget(name.hash, offset);
                self.absent.put(name.hash, name.bytes);
            }
        }
    }

    /// Grows the name cache with the number of names.
    pub(crate) fn make_memo(&mut self) {
        if self.index.is_none() {
            self.memo.grow(self.entries);
            self.absent.grow(self.entries);
        }
    }

    pub(crate) fn note_room(&mut self, at: usize, room: usize) {
        if self.room.len() <= at {
            self.room.resize(at + 1, BLOCK as u16);
        }
        self.room[at] = room as u16;
    }

    /// The most room that a record of a block may have.
    pub(crate) fn room(&self, at: usize) -> usize {
        self.room.get(at).map_or(BLOCK, |&room| usize::from(room))
    }

    /// Looks a name up.
    pub(crate) fn find(&self, pm: &impl Pm, name: Name<'_>) -> Result<Option<Found>> {
        if let Some(index) = &self.index {
            for offset in index.find(name.hash) {
                if let Some(found) = self.found_at(pm, offset, name.bytes)? {
                    return Ok(Some(found));
                }
            }
            return Ok(None);
        }
        if let Some(offset) = self.memo.get(name.hash)
            && let Some(found) = self.found_at(pm, offset, name.bytes)?
        {
            return Ok(Some(found));
        }
        if self.absent.has(name.hash, name.bytes) {
            return Ok(None);
        }
        let found = self.search(pm, name.bytes)?;
        match found {
            Some(found) => self.memo.put(name.hash, found.offset),
            None => self.absent.put(name.hash, name.bytes),
        }
        Ok(found)
    }

    /// The inode in the record of a name at a place, if it is this name.
    fn found_at(&self, pm: &impl Pm, offset: u64, name: &[u8]) -> Result<Option<Found>> {
        let (at, within) = ((offset as usize) / BLOCK, (offset as usize) % BLOCK);
        let mut bytes = [0; DENTRY_HEADER + MAX_NAME];
        let Some(bytes) = bytes.get_mut(..DENTRY_HEADER + name.len()) else { return Ok(None) };
        if within + bytes.len() > BLOCK {
            return Ok(None);
        }
        pm.read(Block(self.blocks[at]).offset() + within as u64, bytes)?;
        let (raw, rest) =
            RawDentry::read_from_prefix(bytes).map_err(|_| Error::corrupt("directory: a record"))?;
        if raw.inode == 0 || usize::from(raw.name_len) != name.len() || rest != name {
            return Ok(None);
        }
        found(at, Record { at: within, raw }).map(Some)
    }

    fn search(&self, pm: &impl Pm, name: &[u8]) -> Result<Option<Found>> {
        let mut page = [0; BLOCK];
        for at in 0..self.blocks.len() {
            self.read_page(pm, at, &mut page)?;
            if let Some(record) = find_name(&page, name)? {
                return found(at, record).map(Some);
            }
        }
        Ok(None)
    }

    /// Up to `limit` entries behind the one with the cookie `after`, or from the first one on where that is 0.
    ///
    /// They are read from the last one to the first. Names that come meanwhile where the directory grows are not
    /// reported, and few fit in the room that others left. In the other order, a caller that makes a name for each
    /// reported one would meet these, too, and so on for ever.
    pub(crate) fn read(&self, pm: &impl Pm, after: u64, limit: usize) -> Result<Vec<Listed>> {
        let mut listed = Vec::new();
        let end = self.blocks.len() as u64 * BLOCK_SIZE;
        let end = after.checked_sub(FIRST_COOKIE).map_or(end, |place| place.saturating_mul(8).min(end));
        let mut page = [0; BLOCK];
        for at in (0..end.div_ceil(BLOCK_SIZE) as usize).rev() {
            self.read_page(pm, at, &mut page)?;
            let before = listed.len();
            find_record(&page, |record| {
                let offset = (at * BLOCK + record.at) as u64;
                if offset >= end {
                    return Ok(Some(()));
                }
                if record.is_used() {
                    listed.push(Listed {
                        cookie: offset / 8 + FIRST_COOKIE,
                        name: SmallVec::from_slice(record.name(&page)),
                        id: record.id(),
                        kind: record.kind()?,
                    });
                }
                Ok(None)
            })?;
            listed[before..].reverse();
            if listed.len() >= limit {
                listed.truncate(limit);
                break;
            }
        }
        Ok(listed)
    }

    pub(crate) fn heap_bytes(&self) -> u64 {
        let index = self.index.as_ref().map_or(0, NameIndex::heap_bytes);
        (size_of::<Directory>()
            + self.blocks.capacity() * 8
            + self.room.capacity() * 2
            + self.memo.heap_bytes()
            + self.absent.heap_bytes()
            + index) as u64
    }
}

fn found(at: usize, record: Record) -> Result<Found> {
    Ok(Found { offset: (at * BLOCK + record.at) as u64, id: record.id(), kind: record.kind()? })
}
