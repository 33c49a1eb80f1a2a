//! A survey of a whole device: the pages of logs, wherever they are, and the chunks that no word leads to.

use std::collections::{BTreeMap, HashMap};

use nacre_engine::{BLOCK_SIZE, Block};
use nacre_media::Pm;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::format::{
    BLOCK_INODES, CHUNK_BLOCKS, CHUNK_INODES, CHUNK_SCATTERED, INODE_MAGIC, INODE_SIZE, LINE, PAGE_MAGIC,
    RawInode, RawPageHeader, Region, inode_seed, open_word,
};
use crate::table::{chunk_seed, read_list};

/// The blocks of a chunk.
pub(super) type ChunkBlocks = [Block; CHUNK_BLOCKS as usize];

/// A log page that validates, in a log or forgotten.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) block: Block,
    pub(super) generation: u32,
    pub(super) first_sequence: u64,
    /// As it is on media.
    pub(super) next: u64,
}

/// Every log page of a device that validates, by inode.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pages: HashMap<u64, Vec<Found>>,
}

impl Survey {
    /// Looks at the first line of every block. Unreadable blocks are no pages.
    pub(super) fn new(pm: &impl Pm, volume_seed: u32, first_data_block: u64) -> Survey {
        let mut survey = Survey::default();
        let mut line = [0u8; LINE];
        for block in first_data_block..pm.len() / BLOCK_SIZE {
            let block = Block(block);
            if pm.read(block.offset(), &mut line).is_err() {
                continue;
            }
            let Ok(header) = RawPageHeader::read_from_bytes(&line) else { continue };
            let seed = inode_seed(volume_seed, header.inode, header.generation);
            if header.magic == PAGE_MAGIC && header.checksum == header.compute_checksum(seed) {
                survey.pages.entry(header.inode).or_default().push(Found {
                    block,
                    generation: header.generation,
                    first_sequence: header.first_sequence,
                    next: header.next,
                });
            }
        }
        survey
    }

    /// The pages of one inode.
    pub(super) fn of(&self, inode: u64, generation: u32) -> impl Iterator<Item = &Found> {
        self.pages.get(&inode).into_iter().flatten().filter(move |page| page.generation == generation)
    }

    /// The greatest generation that any page of an inode has.
    pub(super) fn greatest_generation(&self, inode: u64) -> u32 {
        self.pages.get(&inode).into_iter().flatten().map(|page| page.generation).max().unwrap_or(0)
    }

    /// The greatest number of an inode that has a page.
    pub(super) fn greatest_inode(&self) -> u64 {
        self.pages.keys().copied().max().unwrap_or(0)
    }

    /// All blocks that hold a page.
    pub(super) fn blocks(&self) -> impl Iterator<Item = Block> {
        self.pages.values().flatten().map(|page| page.block)
    }
}

/// The words of the chunk table: the chunks that they lead to, and their errors.
pub(super) struct Chunks {
    pub(super) list: Vec<Option<ChunkBlocks>>,
    /// Blocks of lists of scattered chunks.
    pub(super) lists: Vec<Block>,
    /// Chunks with a word, or list, that does not validate or is missing before one that does.
    pub(super) bad: Vec<u64>,
}

impl Chunks {
    pub(super) fn read(pm: &impl Pm, region: Region, volume_seed: u32, max_chunks: u64) -> Chunks {
        let mut chunks = Chunks { list: Vec::new(), lists: Vec::new(), bad: Vec::new() };
        let count = (region.blocks * BLOCK_SIZE / 8).min(max_chunks);
        let mut last = 0;
        for index in 0..count {
            let word = pm.load_u64(Block(region.start).offset() + index * 8);
            if word.as_ref().is_ok_and(|&word| word == 0) {
                chunks.list.push(None);
                continue;
            }
            last = index + 1;
            let seed = chunk_seed(volume_seed, index);
            let blocks = word.and_then(|word| open_word(word, seed, &String::new)).ok().flatten();
            let blocks = blocks.and_then(|value| chunks.blocks_of(pm, seed, index, value));
            chunks.list.push(blocks);
        }
        chunks.list.truncate(last as usize);
        let missing =
            |(index, blocks): (usize, &Option<ChunkBlocks>)| blocks.is_none().then_some(index as u64);
        chunks.bad = chunks.list.iter().enumerate().filter_map(missing).collect();
        chunks
    }

    fn blocks_of(&mut self, pm: &impl Pm, seed: u32, index: u64, value: u64) -> Option<ChunkBlocks> {
        let first = value & !CHUNK_SCATTERED;
        let device = pm.len() / BLOCK_SIZE;
        if value & CHUNK_SCATTERED != 0 {
            let list = (first < device).then(|| read_list(pm, Block(first), seed, index).ok()).flatten()?;
            self.lists.push(Block(first));
            return Some(list);
        }
        (first + CHUNK_BLOCKS <= device).then(|| std::array::from_fn(|i| Block(first + i as u64)))
    }

    /// Where an inode is.
    pub(super) fn address(&self, number: u64) -> Option<u64> {
        let blocks = self.list.get(usize::try_from(number / CHUNK_INODES).ok()?)?.as_ref()?;
        let block = blocks[(number % CHUNK_INODES / BLOCK_INODES) as usize];
        Some(block.offset() + number % BLOCK_INODES * INODE_SIZE)
    }

    pub(super) fn blocks(&self) -> impl Iterator<Item = Block> {
        self.list.iter().flatten().flatten().chain(&self.lists).copied()
    }
}

/// Inodes of a block that are tried; each is tried as every inode that is missing.
const TRIES: usize = 2;

/// Looks for chunks by their content: the checksum of an inode's header is seeded with its number, so a header that
/// validates proves which chunk its block is a part of. Gives the parts that were found of each.
pub(super) fn find_chunks(
    pm: &impl Pm,
    volume_seed: u32,
    wanted: &[u64],
    first_data_block: u64,
) -> BTreeMap<u64, [Option<Block>; CHUNK_BLOCKS as usize]> {
    let mut found: BTreeMap<u64, [Option<Block>; CHUNK_BLOCKS as usize]> = BTreeMap::new();
    for block in (first_data_block..pm.len() / BLOCK_SIZE).map(Block) {
        let mut tries = 0;
        for slot in 0..BLOCK_INODES {
            let mut raw = RawInode::new_zeroed();
            let header = &mut raw.as_mut_bytes()[..LINE];
            if pm.read(block.offset() + slot * INODE_SIZE, header).is_err() || raw.magic != INODE_MAGIC {
                continue;
            }
            tries += 1;
            if tries > TRIES {
                break;
            }
            let part = wanted.iter().flat_map(|&chunk| (0..CHUNK_BLOCKS).map(move |part| (chunk, part)));
            let place = part.into_iter().find(|&(chunk, part)| {
                let number = chunk * CHUNK_INODES + part * BLOCK_INODES + slot;
                raw.is_valid(inode_seed(volume_seed, number, raw.generation))
            });
            if let Some((chunk, part)) = place {
                found.entry(chunk).or_default()[part as usize] = Some(block);
                break;
            }
        }
    }
    found
}
