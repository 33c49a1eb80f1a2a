//! Where the structures of an image are, and how a changed one is made to validate again: for fuzzing and for tests
//! that damage images on purpose.

use nacre_engine::{BLOCK_SIZE, Block, Result, TierRun};
use nacre_media::Pm;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::badblocks::seed as bad_blocks_seed;
use crate::format::{
    CHECKPOINT_MAGIC, CHUNK_INODES, CheckpointHeader, EntryHeader, INLINE_LINES, INODE_CACHED_OFFSET,
    INODE_HEAD_OFFSET, ImageEntry, LINE, PAGE_LINES, PAGE_NEXT_OFFSET, RawCached, RawInode, RawPageHeader,
    RawSuperblock, SUPERBLOCK_COPY_OFFSET, SUPERBLOCK_OFFSET, inode_seed, kind, open_word, place, region,
    seal, seal_word,
};
use crate::scan::{parse_entry, read_inode};
use crate::table::{InodeTable, chunk_seed};

/// The kind of a structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A copy of the superblock.
    Superblock,
    /// A word of the chunk table.
    ChunkWord,
    /// The fixed part of an inode's header.
    Inode,
    /// The head of an inode's log.
    Head,
    /// The cached fields of an inode.
    Cached,
    /// The fixed part of a log page's header.
    PageHeader,
    /// The link of a log page.
    Link,
    /// An entry of a log.
    Entry,
    /// A block of the checkpoint.
    Checkpoint,
    /// A word of the list of bad blocks.
    BadBlock,
}

/// One structure of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Structure {
    /// Its kind.
    pub kind: Kind,
    /// Its first byte.
    pub offset: u64,
    /// Its size in bytes.
    pub len: u64,
    /// The inode that it belongs to; 0 for none.
    pub inode: u64,
    /// The seed of its checksum.
    seed: u32,
}

impl Structure {
    /// An entry, anywhere, of the log that this structure belongs to.
    #[must_use]
    pub fn entry_at(&self, offset: u64, len: u64) -> Structure {
        Structure { kind: Kind::Entry, offset, len, ..*self }
    }
}

/// Words of the list of bad blocks that are listed; the rest of it is empty in any image that tests make.
const BAD_BLOCKS_LISTED: u64 = 8;

/// The structures of a sound image.
pub fn structures<P: Pm>(pm: &P) -> Result<Vec<Structure>> {
    let superblock = crate::superblock::read(pm)?.superblock;
    let seed = superblock.seed();
    let table = superblock.region(region::CHUNK_TABLE)?;
    let inodes = InodeTable::of(&superblock, 1, u64::MAX)?;
    let (chunks, _) = inodes.load_chunks(pm)?;
    let mut found = Vec::new();
    let mut add = |kind, offset, len, inode, seed| found.push(Structure { kind, offset, len, inode, seed });
    for offset in [SUPERBLOCK_OFFSET, SUPERBLOCK_COPY_OFFSET] {
        add(Kind::Superblock, offset, BLOCK_SIZE, 0, 0);
    }
    for chunk in 0..chunks {
        let offset = Block(table.start).offset() + chunk * 8;
        add(Kind::ChunkWord, offset, 8, 0, chunk_seed(seed, chunk));
    }
    for number in 1..chunks * CHUNK_INODES {
        let address = inodes.address(number)?;
        let raw = read_inode(pm, address)?;
        let seed = inode_seed(seed, number, raw.generation);
        if !raw.is_valid(seed) {
            continue;
        }
        add(Kind::Inode, address, INODE_HEAD_OFFSET, number, seed);
        add(Kind::Head, address + INODE_HEAD_OFFSET, 8, number, seed);
        add(Kind::Cached, address + INODE_CACHED_OFFSET, size_of::<RawCached>() as u64, number, seed);
        if raw.head == 0 {
            let lines = raw.lines.as_flattened();
            entries(lines, INLINE_LINES, seed, |line, len| {
                add(Kind::Entry, address + ((1 + line) * LINE) as u64, len, number, seed);
            });
        }
        let mut next = open_word(raw.head, seed, &String::new).ok().flatten();
        while let Some(block) = next {
            let offset = Block(block).offset();
            let mut bytes = [0u8; BLOCK_SIZE as usize];
            if pm.read(offset, &mut bytes).is_err() {
                break;
            }
            add(Kind::PageHeader, offset, PAGE_NEXT_OFFSET, number, seed);
            add(Kind::Link, offset + PAGE_NEXT_OFFSET, 8, number, seed);
            entries(&bytes[LINE..], PAGE_LINES, seed, |line, len| {
                add(Kind::Entry, offset + ((1 + line) * LINE) as u64, len, number, seed);
            });
            let word = RawPageHeader::read_from_prefix(&bytes).map_or(0, |(header, _)| header.next);
            next = open_word(word, seed, &String::new).ok().flatten();
        }
    }
    let bad = superblock.region(region::BAD_BLOCKS)?;
    for index in 0..(bad.blocks * BLOCK_SIZE / 8).min(BAD_BLOCKS_LISTED) {
        add(Kind::BadBlock, Block(bad.start).offset() + index * 8, 8, 0, bad_blocks_seed(&superblock));
    }
    let mut block = if superblock.is_clean() { superblock.raw.checkpoint } else { 0 };
    while block != 0 {
        add(Kind::Checkpoint, Block(block).offset(), BLOCK_SIZE, 0, seed);
        let mut header = CheckpointHeader::new_zeroed();
        pm.read(Block(block).offset(), header.as_mut_bytes())?;
        block = if header.magic == CHECKPOINT_MAGIC { header.next } else { 0 };
    }
    Ok(found)
}

fn entries(lines: &[u8], count: usize, seed: u32, mut add: impl FnMut(usize, u64)) {
    let mut line = 0;
    while line < count {
        match parse_entry(&lines[line * LINE..], seed) {
            Some(header) => {
                add(line, u64::from(header.lines) * LINE as u64);
                line += usize::from(header.lines);
            }
            None => line += 1,
        }
    }
}

/// Entries among these structures that name images of logs, and the blocks of tiers that those are in.
pub fn images<P: Pm>(pm: &P, structures: &[Structure]) -> Result<Vec<(Structure, TierRun)>> {
    let mut found = Vec::new();
    for structure in structures.iter().filter(|structure| structure.kind == Kind::Entry) {
        let mut entry = ImageEntry::default();
        pm.read(structure.offset, entry.as_mut_bytes())?;
        if entry.header.kind == kind::IMAGE {
            let start = Block(entry.place & place::BLOCK_MASK);
            found.push((
                *structure,
                TierRun { tier: place::tier(entry.place), start, len: entry.image_blocks.into() },
            ));
        }
    }
    Ok(found)
}

/// Makes an image validate again after a change of its content, by a new checksum in the entry that names it.
pub fn reseal_image<P: Pm>(pm: &P, entry: &Structure, content: &[u8]) -> Result<()> {
    let mut raw = ImageEntry::default();
    pm.read(entry.offset, raw.as_mut_bytes())?;
    raw.image_checksum = crc32c::crc32c_append(entry.seed, content);
    let copied = pm.copy(entry.offset, raw.as_bytes())?;
    pm.fence(copied);
    reseal(pm, entry)
}

/// Makes a structure validate again after a change of its contents.
pub fn reseal<P: Pm>(pm: &P, structure: &Structure) -> Result<()> {
    let Structure { kind, offset, len, inode, seed } = *structure;
    let mut bytes = vec![0; len as usize];
    pm.read(offset, &mut bytes)?;
    match kind {
        Kind::Superblock => {
            if let Ok(raw) = RawSuperblock::mut_from_bytes(&mut bytes) {
                raw.checksum = raw.compute_checksum();
            }
        }
        Kind::ChunkWord | Kind::Head | Kind::Link | Kind::BadBlock => {
            if let Ok(word) = u64::mut_from_bytes(&mut bytes) {
                let value = *word & place::BLOCK_MASK;
                *word = if value == 0 { 0 } else { seal_word(value, seed) };
            }
        }
        Kind::Inode => {
            // The generation, which may have been changed, is a part of the seed.
            let mut raw = RawInode::new_zeroed();
            raw.as_mut_bytes()[..bytes.len()].copy_from_slice(&bytes);
            let superblock = crate::superblock::read(pm)?.superblock;
            seal(&mut bytes, inode_seed(superblock.seed(), inode, raw.generation));
        }
        Kind::Cached => {
            if let Ok(cached) = RawCached::mut_from_bytes(&mut bytes) {
                *cached = RawCached::sealed(cached.links, cached.parent, seed);
            }
        }
        Kind::Entry => {
            if let Ok((header, _)) = EntryHeader::mut_from_prefix(&mut bytes) {
                header.lines = (len / LINE as u64) as u8;
            }
            seal(&mut bytes, seed);
        }
        Kind::PageHeader | Kind::Checkpoint => seal(&mut bytes, seed),
    }
    let copied = pm.copy(offset, &bytes)?;
    pm.fence(copied);
    Ok(())
}
