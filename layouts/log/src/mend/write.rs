//! Writes the decided changes: new logs, names in lost+found, words of the chunk table.

use nacre_engine::{BLOCK_SIZE, Block, Error, FileKind, Kind, Resource, Result};
use nacre_layout_parts::renew::{copy_of_what_is_left, is_lost, renew, store_word};
use nacre_media::{Flushed, Pm};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::survey::{ChunkBlocks, Survey};
use super::take::Claim;
use super::tree::{Append, Edit, Tree, names_of};
use super::{LOST_AND_FOUND, chunk_run, device_blocks, new_directory};
use crate::alloc::{Run, for_each_mask};
use crate::badblocks;
use crate::file::join;
use crate::format::{
    CHUNK_BLOCKS, CHUNK_INODES, CHUNK_SCATTERED, DENTRY_NAME_OFFSET, DentryEntry, EntryHeader, HoleEntry,
    INODE_HEAD_OFFSET, LINE, PAGE_LINES, PAGE_MAGIC, ROOT_INODE, RawInode, RawPageHeader, WriteEntry, kind,
    lines_for, seal_word,
};
use crate::scan::{LogSource, MAX_SEQUENCE};
use crate::superblock::Superblock;
use crate::survivor::reseal;
use crate::table::chunk_seed;

/// Writes into blocks that nothing uses, known or forgotten.
pub(super) struct Writer<'w, P> {
    pm: &'w P,
    used: Vec<u64>,
    blocks: u64,
    cursor: u64,
}

impl<'w, P: Pm> Writer<'w, P> {
    pub(super) fn new(
        pm: &'w P,
        tree: &Tree<'_, P>,
        survey: &Survey,
        first_data_block: u64,
        bad: &[Block],
    ) -> Writer<'w, P> {
        let mut used = tree.used.clone();
        for block in bad {
            used[(block.0 / 64) as usize] |= 1 << (block.0 % 64);
        }
        // Pages that no log leads to are evidence until everything is repaired.
        for block in survey.blocks() {
            used[(block.0 / 64) as usize] |= 1 << (block.0 % 64);
        }
        Writer { pm, used, blocks: device_blocks(pm), cursor: first_data_block }
    }

    fn allocate(&mut self) -> Result<Block> {
        while self.cursor < self.blocks {
            let block = self.cursor;
            self.cursor += 1;
            let free = self.used[(block / 64) as usize] >> (block % 64) & 1 == 0;
            if free && !is_lost(self.pm, Block(block)) {
                self.mark(Run { start: Block(block), len: 1 });
                return Ok(Block(block));
            }
        }
        Err(Error::no_space(Resource::Pm, 1).object("the repair"))
    }

    fn mark(&mut self, run: Run) {
        for_each_mask(run.start.0, run.len, |word, mask| self.used[word] |= mask);
    }

    /// Writes the log of an inode anew and puts it in the place of the old one.
    pub(super) fn relog(&mut self, edit: Edit) -> Result<()> {
        let Edit { taken, drop, append, .. } = edit;
        let source = taken.source;
        let mut entries: Vec<Vec<u8>> = Vec::new();
        for (index, saved) in taken.entries.iter().enumerate() {
            if !drop.contains(&index) && !saved.bytes.is_empty() {
                let mut bytes = saved.bytes.clone();
                reseal(&mut bytes, source.seed);
                entries.push(bytes);
            }
        }
        let inode = &taken.loaded.inode;
        let attributes = inode.attr.get();
        let (size, now) = (inode.size(), inode.pack(attributes.mtime));
        let mut sequence = taken.next_sequence;
        let appended = append.iter().map(|append| match append {
            Append::Copy { blocks, .. } => *blocks,
            Append::Hole { .. } | Append::Name { .. } => 1,
        });
        if sequence.saturating_add(appended.sum::<u64>() + 1) > MAX_SEQUENCE {
            return Err(Error::corrupt(format!("inode {}: its log has no numbers left", source.number)));
        }
        let mut copied: Option<Flushed> = None;
        let mut add = |mut bytes: Vec<u8>| {
            seal(&mut bytes, &mut sequence, source.seed);
            entries.push(bytes);
        };
        for append in append {
            match append {
                Append::Hole { start, blocks } => {
                    let mut hole =
                        HoleEntry { file_block: start, blocks, size, mtime: now, ..HoleEntry::default() };
                    hole.header.kind = kind::HOLE;
                    add(hole.as_bytes().to_vec());
                }
                Append::Copy { start, blocks, from } => {
                    for index in 0..blocks {
                        let (to, flushed) = self.copy_block(Block(from + index))?;
                        join(&mut copied, Some(flushed));
                        let mut write = WriteEntry {
                            place: to.0,
                            file_block: start + index,
                            blocks: 1,
                            size,
                            mtime: now,
                            ..WriteEntry::default()
                        };
                        write.header.kind = kind::WRITE;
                        add(write.as_bytes().to_vec());
                    }
                }
                Append::Name { name, claim } => add(dentry(&name, claim, now)),
            }
        }
        // The last entry says how everything is now, with a number that no lost entry had.
        add(inode.attr_entry(&attributes, size).as_bytes().to_vec());
        let head = self.write_pages(source, &entries, copied)?;
        self.publish(source, &taken.raw, head, taken.rewrite)
    }

    /// Makes a block of a chunk with media errors good again, or puts the rest of it elsewhere.
    pub(super) fn renew(
        &mut self,
        superblock: &Superblock,
        index: u64,
        blocks: &ChunkBlocks,
        at: usize,
    ) -> Result<()> {
        match renew(self.pm, blocks[at], |_| {}) {
            Err(error) if error.kind() == Kind::Media => {}
            done => return done,
        }
        let mut blocks = *blocks;
        // Before it is free.
        if !badblocks::read(self.pm, superblock)?.blocks.contains(&blocks[at]) {
            badblocks::add(self.pm, superblock, blocks[at], badblocks::Share::ALL)?;
        }
        let to = self.allocate()?;
        copy_of_what_is_left(self.pm, blocks[at], to)?;
        blocks[at] = to;
        let list = self.allocate()?;
        let seed = chunk_seed(superblock.seed(), index);
        write_list(self.pm, list, &blocks, seed)?;
        store_word(self.pm, chunk_word(superblock, index)?, seal_word(list.0 | CHUNK_SCATTERED, seed))
    }

    fn copy_block(&mut self, from: Block) -> Result<(Block, Flushed)> {
        let mut bytes = [0u8; BLOCK_SIZE as usize];
        self.pm.read(from.offset(), &mut bytes)?;
        let to = self.allocate()?;
        Ok((to, self.pm.copy(to.offset(), &bytes)?))
    }

    /// Writes entries into new pages, the last page first; gives the first. Blocks that were `copied` for them are
    /// durable with them.
    fn write_pages(
        &mut self,
        source: LogSource,
        entries: &[Vec<u8>],
        mut copied: Option<Flushed>,
    ) -> Result<Block> {
        let mut pages: Vec<Vec<u8>> = vec![Vec::new()];
        let mut first_sequences = vec![None];
        for entry in entries {
            if pages.last().is_some_and(|page| page.len() + entry.len() > PAGE_LINES * LINE) {
                pages.push(Vec::new());
                first_sequences.push(None);
            }
            let (page, first) = (pages.last_mut(), first_sequences.last_mut());
            if let (Some(page), Some(first)) = (page, first) {
                page.extend_from_slice(entry);
                let sequence = EntryHeader::read_from_prefix(entry).map_or(0, |(header, _)| header.sequence);
                *first = Some(first.map_or(sequence, |first: u64| first.min(sequence)));
            }
        }
        let mut next = 0;
        let mut block = Block(0);
        for (lines, first) in pages.iter().zip(first_sequences).rev() {
            block = self.allocate()?;
            let mut header = RawPageHeader {
                magic: PAGE_MAGIC,
                inode: source.number,
                generation: source.generation,
                first_sequence: first.unwrap_or(0),
                next,
                ..RawPageHeader::new_zeroed()
            };
            header.checksum = header.compute_checksum(source.seed);
            let mut bytes = [0u8; BLOCK_SIZE as usize];
            bytes[..LINE].copy_from_slice(header.as_bytes());
            bytes[LINE..LINE + lines.len()].copy_from_slice(lines);
            join(&mut copied, Some(self.pm.copy(block.offset(), &bytes)?));
            if let Some(copied) = copied.take() {
                self.pm.fence(copied);
            }
            next = seal_word(block.0, source.seed);
        }
        Ok(block)
    }

    /// Turns the inode to its new log: by one store, or, where its header must be written, with it.
    fn publish(&mut self, source: LogSource, raw: &RawInode, head: Block, rewrite: bool) -> Result<()> {
        let word = seal_word(head.0, source.seed);
        let flushed = if rewrite {
            let raw = RawInode { head: word, lines: [[0; LINE]; 3], ..*raw };
            let (header, lines) = raw.as_bytes().split_at(LINE);
            // A header that is torn on its way is made again from parts that prove themselves: the lines that are still
            // there, or the new page. So the lines go later.
            let copied = self.pm.copy(source.address, header)?;
            self.pm.fence(copied);
            self.pm.copy(source.address + LINE as u64, lines)?
        } else {
            let after = nacre_media::Durable::nothing_before();
            let stored = self.pm.publish_u64(source.address + INODE_HEAD_OFFSET, word, after)?;
            self.pm.flush(stored)
        };
        self.pm.fence(flushed);
        Ok(())
    }

    /// Gives inodes names in lost+found, which is made where it is missing. Gives the directory that must have its log
    /// written first.
    pub(super) fn name_orphans(&mut self, tree: &mut Tree<'_, P>, orphans: Vec<Claim>) -> Result<u64> {
        let root = tree.edit_of(ROOT_INODE).ok_or(Error::new(Kind::Corrupt))?;
        let there = names_of(&root.taken).into_iter().find(|name| name.name == LOST_AND_FOUND);
        let names = orphans
            .into_iter()
            .map(|claim| Append::Name { name: format!("#{}", claim.number).into_bytes(), claim });
        if let Some(name) = there.as_ref().filter(|name| name.claim.kind == FileKind::Directory) {
            let edit = tree.edit_of(name.claim.number).ok_or(Error::new(Kind::Corrupt))?;
            edit.append.extend(names);
            return Ok(name.claim.number);
        }
        let free = (ROOT_INODE + 1..tree.chunks.list.len() as u64 * CHUNK_INODES)
            .find(|&number| !tree.is_known(number) && tree.chunks.address(number).is_some());
        let number = free.ok_or_else(|| Error::no_space(Resource::Inodes, 0))?;
        let generation = tree.generation_of(number).wrapping_add(1).max(1);
        let mut new = Edit::of(new_directory(tree.taker, number, generation, ROOT_INODE)?);
        new.append.extend(names);
        self.relog(new)?;
        let claim = Claim { number, generation, kind: FileKind::Directory };
        let root = tree.edit_of(ROOT_INODE).ok_or(Error::new(Kind::Corrupt))?;
        let name = match there {
            None => LOST_AND_FOUND.to_vec(),
            Some(_) => [LOST_AND_FOUND, format!("-{number}").as_bytes()].concat(),
        };
        root.append.push(Append::Name { name, claim });
        Ok(ROOT_INODE)
    }
}

/// Numbers an entry and seals it.
fn seal(bytes: &mut [u8], sequence: &mut u64, seed: u32) {
    let lines = (bytes.len() / LINE) as u8;
    if let Ok((header, _)) = EntryHeader::mut_from_prefix(bytes) {
        header.sequence = *sequence;
        header.lines = lines;
    }
    *sequence += 1;
    crate::format::seal(bytes, seed);
}

fn dentry(name: &[u8], claim: Claim, time: u64) -> Vec<u8> {
    let mut entry = DentryEntry {
        inode: claim.number,
        generation: claim.generation,
        kind: claim.kind as u8,
        name_len: name.len() as u8,
        time,
        ..DentryEntry::default()
    };
    entry.header.kind = kind::DENTRY;
    let mut bytes = vec![0; lines_for((DENTRY_NAME_OFFSET + name.len()).max(LINE)) * LINE];
    bytes[..LINE].copy_from_slice(entry.as_bytes());
    bytes[DENTRY_NAME_OFFSET..DENTRY_NAME_OFFSET + name.len()].copy_from_slice(name);
    bytes
}

/// Where the word of a chunk is.
pub(super) fn chunk_word(superblock: &Superblock, index: u64) -> Result<u64> {
    Ok(Block(superblock.region(crate::format::region::CHUNK_TABLE)?.start).offset() + index * 8)
}

/// Writes the word of a chunk that lies in one piece, or a list of its blocks, new ones where they are not known. Gives
/// the blocks, and the one of the list.
pub(super) fn write_chunk(
    pm: &impl Pm,
    superblock: &Superblock,
    index: u64,
    whole: Option<ChunkBlocks>,
    parts: &[Option<Block>; CHUNK_BLOCKS as usize],
    used: &dyn Fn(u64) -> bool,
) -> Result<(ChunkBlocks, Option<Block>)> {
    let seed = chunk_seed(superblock.seed(), index);
    let word_offset = chunk_word(superblock, index)?;
    let (blocks, list, word) = match whole {
        Some(blocks) => {
            let run = chunk_run(blocks[0].0);
            if run.start.0 + run.len > device_blocks(pm) {
                return Err(Error::corrupt("a chunk beyond the device"));
            }
            (blocks, None, blocks[0].0)
        }
        None => {
            // Nothing is known of other blocks in use: those that are all zeros are not.
            let mut free = (superblock.first_data_block()..device_blocks(pm))
                .rev()
                .filter(|&block| !used(block) && is_zero(pm, Block(block)))
                .map(Block);
            let mut next =
                || free.next().ok_or_else(|| Error::no_space(Resource::Pm, 1).object("the repair"));
            let mut blocks = [Block(0); CHUNK_BLOCKS as usize];
            for (block, part) in blocks.iter_mut().zip(parts) {
                *block = match part {
                    Some(part) => *part,
                    None => next()?,
                };
            }
            let list = next()?;
            write_list(pm, list, &blocks, seed)?;
            (blocks, Some(list), list.0 | CHUNK_SCATTERED)
        }
    };
    store_word(pm, word_offset, seal_word(word, seed))?;
    Ok((blocks, list))
}

/// Writes the list of the blocks of a chunk, durable when it returns.
fn write_list(pm: &impl Pm, list: Block, blocks: &ChunkBlocks, seed: u32) -> Result<()> {
    let mut bytes = [0u8; BLOCK_SIZE as usize];
    let words = blocks.map(|block| seal_word(block.0, seed));
    bytes[..size_of_val(&words)].copy_from_slice(words.as_bytes());
    let copied = pm.copy(list.offset(), &bytes)?;
    pm.fence(copied);
    Ok(())
}

pub(super) fn is_zero(pm: &impl Pm, block: Block) -> bool {
    let mut bytes = [0u8; BLOCK_SIZE as usize];
    pm.read(block.offset(), &mut bytes).is_ok() && bytes.iter().all(|&byte| byte == 0)
}
