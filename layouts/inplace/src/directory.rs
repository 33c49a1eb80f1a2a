//! Directories: blocks of records, searched from their start; an index of names in DRAM is a setting.
//!
//! The records of a block fill it; what a record does not need for its name is free, and a free record (no inode) is
//! only at a block's start. A record stays where it is as long as its name does, so its place in the directory is its
//! cookie. How names change is in `names`.

use hashbrown::HashTable;
use nacre_engine::{BLOCK_SIZE, Block, Error, FileKind, InodeId, Kind, Result};
use nacre_media::Pm;
use smallvec::SmallVec;
use zerocopy::FromBytes;

use crate::format::{DENTRY_HEADER, RawDentry, RawInode};
use crate::fs::Shared;
use crate::inode::Body;

pub(crate) const BLOCK: usize = BLOCK_SIZE as usize;
/// The longest name.
pub(crate) const MAX_NAME: usize = 255;
/// Cookies below are those of `.` and `..` in front ends.
const FIRST_COOKIE: u64 = 3;

pub(crate) type Page = [u8; BLOCK];

/// What is known of a directory in DRAM.
#[derive(Default)]
pub(crate) struct Directory {
    /// Its blocks, in order.
    pub(crate) blocks: Vec<u64>,
    pub(crate) entries: u64,
    pub(crate) subdirectories: u32,
    /// Where names are, when they are indexed.
    index: Option<Index>,
}

/// Hash of a name and place of its record.
#[derive(Clone, Copy)]
struct Slot {
    hash: u64,
    offset: u64,
}

#[derive(Default)]
struct Index {
    table: HashTable<Slot>,
    /// For each block, no record has more room than this.
    room: Vec<u16>,
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

/// One entry of a directory that is read.
pub(crate) struct Listed {
    pub(crate) cookie: u64,
    pub(crate) name: SmallVec<[u8; 32]>,
    pub(crate) id: InodeId,
    pub(crate) kind: FileKind,
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

pub(crate) fn hash(name: &[u8], seed: u64) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(name, seed)
}

impl Directory {
    /// A directory without names.
    pub(crate) fn new(indexed: bool) -> Directory {
        Directory { index: indexed.then(Index::default), ..Directory::default() }
    }

    /// Reads all of a directory: counts its names, and indexes them where that is asked for.
    pub(crate) fn load<P: Pm>(fs: &Shared<P>, raw: &RawInode) -> Result<Directory> {
        let mut directory = Directory::new(fs.name_index);
        let count = raw.size / BLOCK_SIZE;
        fs.map(raw.root).for_each(0, count, &mut |piece| {
            let start = piece.block().0;
            directory.blocks.extend(start..start + piece.len);
        })?;
        if directory.blocks.len() as u64 != count {
            return Err(Error::corrupt("directory: a block is missing"));
        }
        let mut page = [0; BLOCK];
        for at in 0..directory.blocks.len() {
            directory.read_page(&*fs.pm, at, &mut page)?;
            let mut room = 0;
            find_record(&page, |record| {
                room = room.max(record.len() - record.needed());
                if record.is_used() {
                    directory.entries += 1;
                    directory.subdirectories += u32::from(record.kind()? == FileKind::Directory);
                    let offset = (at * BLOCK + record.at) as u64;
                    directory.remember(hash(record.name(&page), fs.hash_seed), offset);
                }
                Ok(None::<()>)
            })?;
            directory.note_room(at, room);
        }
        Ok(directory)
    }

    pub(crate) fn read_page(&self, pm: &impl Pm, at: usize, page: &mut Page) -> Result<()> {
        pm.read(Block(self.blocks[at]).offset(), page)
    }

    pub(crate) fn remember(&mut self, hash: u64, offset: u64) {
        if let Some(index) = &mut self.index {
            index.table.insert_unique(hash, Slot { hash, offset }, |slot| slot.hash);
        }
    }

    pub(crate) fn forget(&mut self, hash: u64, offset: u64) {
        if let Some(index) = &mut self.index
            && let Ok(entry) = index.table.find_entry(hash, |slot| slot.offset == offset)
        {
            entry.remove();
        }
    }

    pub(crate) fn note_room(&mut self, at: usize, room: usize) {
        if let Some(index) = &mut self.index {
            if index.room.len() <= at {
                index.room.resize(at + 1, 0);
            }
            index.room[at] = room as u16;
        }
    }

    /// The most room that a record of a block may have, if that is known.
    pub(crate) fn room(&self, at: usize) -> Option<usize> {
        self.index.as_ref()?.room.get(at).map(|&room| usize::from(room))
    }

    /// Looks a name up.
    pub(crate) fn find<P: Pm>(&self, fs: &Shared<P>, name: &[u8]) -> Result<Option<Found>> {
        let mut page = [0; BLOCK];
        if let Some(index) = &self.index {
            let hash = hash(name, fs.hash_seed);
            let candidates = index.table.iter_hash(hash).filter(|slot| slot.hash == hash);
            for slot in candidates {
                let (at, within) = ((slot.offset as usize) / BLOCK, (slot.offset as usize) % BLOCK);
                self.read_page(&*fs.pm, at, &mut page)?;
                let record = record_at(&page, within)?;
                if record.is_used() && record.name(&page) == name {
                    return found(at, record).map(Some);
                }
            }
            return Ok(None);
        }
        for at in 0..self.blocks.len() {
            self.read_page(&*fs.pm, at, &mut page)?;
            let is_it = |record: Record| match record.is_used() && record.name(&page) == name {
                true => found(at, record).map(Some),
                false => Ok(None),
            };
            if let Some(found) = find_record(&page, is_it)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Up to `limit` entries with cookies greater than `after`, in order.
    pub(crate) fn read(&self, pm: &impl Pm, after: u64, limit: usize) -> Result<Vec<Listed>> {
        let mut listed = Vec::new();
        let from =
            after.checked_sub(FIRST_COOKIE).map_or(0, |place| place.saturating_mul(8).saturating_add(8));
        let mut page = [0; BLOCK];
        for at in (from / BLOCK_SIZE) as usize..self.blocks.len() {
            self.read_page(pm, at, &mut page)?;
            find_record(&page, |record| {
                let offset = (at * BLOCK + record.at) as u64;
                if record.is_used() && offset >= from {
                    listed.push(Listed {
                        cookie: offset / 8 + FIRST_COOKIE,
                        name: SmallVec::from_slice(record.name(&page)),
                        id: record.id(),
                        kind: record.kind()?,
                    });
                }
                Ok((listed.len() >= limit).then_some(()))
            })?;
            if listed.len() >= limit {
                break;
            }
        }
        Ok(listed)
    }

    pub(crate) fn heap_bytes(&self) -> u64 {
        let index =
            self.index.as_ref().map_or(0, |index| index.table.allocation_size() + index.room.capacity() * 2);
        (size_of::<Directory>() + self.blocks.capacity() * 8 + index) as u64
    }
}

fn found(at: usize, record: Record) -> Result<Found> {
    Ok(Found { offset: (at * BLOCK + record.at) as u64, id: record.id(), kind: record.kind()? })
}

/// What is known of the directory with this body.
pub(crate) fn directory_of(body: &Body) -> Result<&Directory> {
    body.directory.as_deref().ok_or(Error::new(Kind::NotDirectory))
}
