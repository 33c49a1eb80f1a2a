//! Pools of entries. A pool block has entries of one size, in both of its halves; a bit for each in its head says
//! whether it is free. Those bits are the only truth, and a part of the operation that takes or frees an entry.

use std::collections::BTreeSet;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{BLOCK_SIZE, Error, Resource, Result};
use nacre_layout_parts::tree::edit::join;
use nacre_media::Pm;
use zerocopy::{FromZeros, IntoBytes};

use crate::bits;
use crate::commit::{Change, run};
use crate::counts::Purpose;
use crate::edits::BitsEdit;
use crate::format::pools::{INODES, POOLS, SIZES};
use crate::format::{
    GROUP_BLOCKS, GROUP_BYTES, INODE_SIZE, POOL_BITS, POOL_HEAD, POOL_MAGIC, RawInode, RawPoolHead,
    WORD_BITS, purpose, seal_any,
};
use crate::fs::Shared;
use crate::geometry::Use;
use crate::lanes::Items;
use crate::seeded::Mistake;

/// Groups that are looked at for a pool block with a free entry, before a new one is made.
const LOOKED_AT: u64 = 512;
/// With fewer free groups, all lanes share the pool blocks of the first.
const FEW_GROUPS: u64 = 64;

/// The sealed words of a new head: every entry is free.
fn free_words(count: u64) -> impl Iterator<Item = u64> {
    (0..words_of(count)).map(move |index| bits_of_word(count, index))
}

/// The bits of a word that are of entries, of so many entries.
fn bits_of_word(count: u64, index: u64) -> u64 {
    let bits = (count - index * WORD_BITS).min(WORD_BITS);
    u64::MAX >> (64 - bits)
}

/// The number of words of bits of a pool block.
fn words_of(count: u64) -> u64 {
    count.div_ceil(WORD_BITS)
}

impl<P: Pm> Shared<P> {
    /// The head of a pool block.
    pub(crate) fn read_head(&self, block: u64) -> Result<RawPoolHead> {
        let seed = self.geometry.seed(block);
        let mut head = RawPoolHead::new_zeroed();
        let mut bytes = [0; size_of::<RawPoolHead>()];
        let is_valid = |bytes: &[u8]| {
            let mut head = RawPoolHead::new_zeroed();
            head.as_mut_bytes().copy_from_slice(bytes);
            head.magic == POOL_MAGIC && head.checksum == head.compute_checksum(seed)
        };
        self.read_entry(block, &mut bytes, is_valid, || format!("the pool block at byte {block}"))?;
        head.as_mut_bytes().copy_from_slice(&bytes);
        let is_sane = (head.pool as usize) < POOLS
            && u64::from(head.entry_size) == SIZES[head.pool as usize]
            && u64::from(head.count) == self.entries_in_block(head.pool as usize);
        if is_sane { Ok(head) } else { Err(Error::corrupt(format!("the pool block at byte {block}"))) }
    }

    /// The head of a pool block of a pool, as if it was made now.
    pub(crate) fn new_head(&self, block: u64, pool: usize) -> RawPoolHead {
        let mut head = RawPoolHead::new_zeroed();
        head.magic = POOL_MAGIC;
        head.pool = pool as u32;
        head.entry_size = SIZES[pool] as u32;
        head.count = self.entries_in_block(pool) as u32;
        head.generation_seed = self.row.lock().generation_seed;
        head.checksum = head.compute_checksum(self.geometry.seed(block));
        head
    }

    /// The bits of a word of a pool block without an entry in use.
    pub(crate) fn all_bits(&self, pool: usize, index: u64) -> u64 {
        bits_of_word(self.entries_in_block(pool), index)
    }

    /// Entries in each half of a pool block.
    pub(crate) fn entries_in_block(&self, pool: usize) -> u64 {
        self.geometry.entry_bytes() / SIZES[pool]
    }

    /// A word of bits of a pool block. Bits behind its last entry, which only damage sets, are left out.
    fn read_bits(&self, block: u64, pool: usize, index: u64) -> Result<u64> {
        let address = block + POOL_BITS + index * 8;
        let lost = || format!("the pool block at byte {block}");
        let bits = self.read_word(address, self.geometry.seed(block), lost)?;
        Ok(bits & bits_of_word(self.entries_in_block(pool), index))
    }

    /// The words of a pool block's bits that have some behind the last entry: their addresses, and what they should be.
    pub(crate) fn bits_behind_the_end(&self, block: u64, pool: usize) -> Result<Vec<(u64, u64)>> {
        let mut found = Vec::new();
        for index in 0..words_of(self.entries_in_block(pool)) {
            let address = block + POOL_BITS + index * 8;
            let bits = self.read_word(address, self.geometry.seed(block), String::new)?;
            let right = self.read_bits(block, pool, index)?;
            found.extend((bits != right).then_some((address, right)));
        }
        Ok(found)
    }

    /// Whether the entry at an address is in use. The caller knows that a pool block with entries of this size is there.
    pub(crate) fn is_in_use(&self, pool: usize, address: u64) -> Result<bool> {
        let block = self.geometry.pool_of(address);
        let index = (address - block - POOL_HEAD) / SIZES[pool];
        Ok(self.read_bits(block, pool, index / WORD_BITS)? >> (index % WORD_BITS) & 1 == 0)
    }

    /// The lane whose pool blocks an operation of a lane uses.
    fn lane_of_pools<'f>(&'f self, own: &'f crate::lanes::Lane) -> &'f crate::lanes::Lane {
        let few = self.is_counted() && self.counts.lock().free < FEW_GROUPS * GROUP_BLOCKS;
        if few { &self.lanes[0] } else { own }
    }

    /// Entries in use of a pool block.
    pub(crate) fn entries_in_use(&self, block: u64, pool: usize) -> Result<u64> {
        let words = 0..words_of(self.entries_in_block(pool));
        let free =
            words.map(|index| self.read_bits(block, pool, index).map(|bits| u64::from(bits.count_ones())));
        let in_use = self.entries_in_block(pool).checked_sub(free.sum::<Result<u64>>()?);
        in_use.ok_or_else(|| Error::corrupt(format!("the bits of the pool block at byte {block}")))
    }

    /// No lane takes entries from any pool block from now on; those without an entry are given back.
    pub(crate) fn release_active(&self) -> Result<()> {
        let active = self.lanes.iter().flat_map(|lane| &lane.active);
        let blocks: BTreeSet<u64> = active.map(|active| active.swap(0, Ordering::AcqRel)).collect();
        blocks.into_iter().filter(|&block| block != 0).try_for_each(|block| self.release_pool_block(block))
    }

    /// Blocks of pool blocks that lanes take entries from, and that have none in use.
    pub(crate) fn unused_active(&self) -> u64 {
        let active = self.lanes.iter().flat_map(|lane| lane.active.iter().enumerate());
        // Several lanes may have the same one.
        let blocks: BTreeSet<(u64, usize)> =
            active.map(|(pool, active)| (active.load(Ordering::Acquire), pool)).collect();
        let unused = blocks.into_iter().filter(|&(block, pool)| {
            block != 0 && self.entries_in_use(block, pool).is_ok_and(|in_use| in_use == 0)
        });
        unused.count() as u64 * self.geometry.pool_block / BLOCK_SIZE
    }

    fn is_active(&self, block: u64) -> bool {
        let active =
            |lane: &crate::lanes::Lane| lane.active.iter().any(|a| a.load(Ordering::Acquire) == block);
        self.lanes.iter().any(active)
    }

    /// Every lane's `done` reaches media: no operation of before is looked at by a recovery. After that, what metadata
    /// was in may be used for something else.
    pub(crate) fn settle_lanes(&self) -> Result<()> {
        if Mistake::StaleIntent.is_made(&*self.pm) {
            return Ok(());
        }
        let mut pending = None;
        for lane in &self.lanes {
            pending = join(pending, lane.flush_done(&*self.pm, &self.geometry)?);
        }
        if let Some(pending) = pending {
            self.pm.fence(pending);
        }
        Ok(())
    }

    /// Gives the space of a pool block back, if it has no entry and no lane takes entries from it.
    pub(crate) fn release_pool_block(&self, block: u64) -> Result<()> {
        self.change(|change| {
            let group = self.geometry.group_of(block);
            let index = change.group(group)?;
            let within = block % GROUP_BYTES / BLOCK_SIZE;
            let blocks = self.geometry.pool_block / BLOCK_SIZE;
            let slot = bits::run(within, blocks);
            let edit = &change.groups[index];
            let is_pool = self.geometry.use_of(edit.old_purpose) == Use::Pool;
            if !is_pool || bits::meet(&edit.old, &slot) || self.is_active(block) {
                return Ok(());
            }
            let head = self.read_head(block)?;
            let mut words = free_words(head.count.into()).zip(0..);
            if !words.try_fold(true, |all, (free, at)| {
                Ok::<_, Error>(all && self.read_bits(block, head.pool as usize, at)? == free)
            })? {
                return Ok(());
            }
            self.settle_lanes()?;
            let edit = &mut change.groups[index];
            edit.freed = slot;
            if edit.new_bits() == [u64::MAX; 8] {
                edit.purpose = purpose::FREE;
            }
            let seed = match head.pool as usize {
                INODES => self.greatest_generation(block, &head),
                _ => 0,
            };
            {
                let mut row = self.row.lock();
                let mut after = None;
                if seed > row.generation_seed {
                    after = Some(change.put_row(&row, |row| row.generation_seed = seed));
                }
                change.commit()?;
                if let Some(after) = after {
                    *row = after;
                }
            }
            Ok(())
        })
    }

    /// The greatest generation of the inodes that a pool block ever had.
    fn greatest_generation(&self, block: u64, head: &RawPoolHead) -> u32 {
        let generations = (0..u64::from(head.count))
            .map(|index| self.generation_at(block + POOL_HEAD + index * INODE_SIZE, head.generation_seed));
        generations.max().unwrap_or(0).max(head.generation_seed)
    }

    /// The greatest generation that an inode's entry had, in either copy.
    pub(crate) fn generation_at(&self, address: u64, seed: u32) -> u32 {
        let at = std::mem::offset_of!(RawInode, generation) as u64;
        let copies = [address, self.geometry.twin(address)].map(|copy| {
            // A free entry that cannot be read has no generation to tell.
            self.pm.load_u64(copy + at).map_or(0, |word| word as u32)
        });
        copies[0].max(copies[1]).max(seed)
    }
}

impl<P: Pm> Change<'_, P> {
    /// A free entry of a pool, which this operation takes.
    pub(crate) fn entry(&mut self, pool: usize, purpose: Purpose) -> Result<u64> {
        let lane = self.fs.lane_of_pools(self.lane);
        loop {
            let active = lane.active[pool].load(Ordering::Acquire);
            if active != 0 {
                self.lock_group(self.fs.geometry.group_of(active))?;
                if lane.active[pool].load(Ordering::Acquire) != active {
                    continue;
                }
                if let Some(entry) = self.take_entry(active, pool, &lane.cursor[pool])? {
                    return Ok(entry);
                }
            }
            let block = match self.find_pool_block(pool)? {
                Some(block) => block,
                None => self.make_pool_block(pool, purpose)?,
            };
            lane.active[pool].store(block, Ordering::Release);
            lane.cursor[pool].store(0, Ordering::Relaxed);
        }
    }

    /// Takes a free entry of a pool block, from the word at the cursor on.
    fn take_entry(
        &mut self,
        block: u64,
        pool: usize,
        cursor: &nacre_engine::sync::atomic::AtomicUsize,
    ) -> Result<Option<u64>> {
        let count = words_of(self.fs.entries_in_block(pool));
        let first = cursor.load(Ordering::Relaxed) as u64 % count;
        for word in (first..count).chain(0..first) {
            // Entries whose bits are lost may be in use.
            let Ok(index) = self.bits_edit(block, pool, word) else { continue };
            let edit = &mut self.bits[index];
            let free = edit.old & !edit.taken;
            if free == 0 {
                if edit.taken == 0 && edit.freed == 0 {
                    self.bits.swap_remove(index);
                }
                continue;
            }
            let bit = free.trailing_zeros();
            edit.taken |= 1 << bit;
            cursor.store(word as usize, Ordering::Relaxed);
            let entry = word * WORD_BITS + u64::from(bit);
            return Ok(Some(block + POOL_HEAD + entry * SIZES[pool]));
        }
        Ok(None)
    }

    fn bits_edit(&mut self, block: u64, pool: usize, word: u64) -> Result<usize> {
        let address = block + POOL_BITS + word * 8;
        if let Some(index) = self.bits.iter().position(|edit| edit.address == address) {
            return Ok(index);
        }
        let old = self.fs.read_bits(block, pool, word)?;
        self.bits.push(BitsEdit { address, block, pool, old, taken: 0, freed: 0 });
        Ok(self.bits.len() - 1)
    }

    /// Frees an entry. It can be taken after the commit.
    pub(crate) fn free_entry(&mut self, pool: usize, address: u64) -> Result<()> {
        if !self.fs.geometry.is_entry(address, SIZES[pool]) {
            return Err(Error::corrupt(format!("an entry at byte {address}")));
        }
        let block = self.fs.geometry.pool_of(address);
        self.lock_group(self.fs.geometry.group_of(address))?;
        let entry = (address - block - POOL_HEAD) / SIZES[pool];
        let index = self.bits_edit(block, pool, entry / WORD_BITS)?;
        let edit = &mut self.bits[index];
        let bit = 1 << (entry % WORD_BITS);
        if (edit.old | edit.freed) & bit != 0 {
            return Err(Error::corrupt(format!("a free entry at byte {address} is freed")));
        }
        edit.freed |= bit;
        Ok(())
    }

    /// Items for the bits that change.
    pub(crate) fn put_bits(&mut self) {
        let Change { fs, items, bits, emptied, .. } = self;
        for edit in bits.iter() {
            let new = edit.old & !edit.taken | edit.freed;
            if new != edit.old {
                items.put_word(edit.address, new, fs.geometry.seed(edit.block));
            }
            // A look at all words is due when nothing of this one is in use.
            let word = (edit.address - edit.block - POOL_BITS) / 8;
            let all = free_words(fs.entries_in_block(edit.pool)).nth(word as usize);
            if edit.freed != 0 && all == Some(new) {
                emptied.push(edit.block);
            }
        }
        emptied.sort_unstable();
        emptied.dedup();
    }

    /// A pool block of a pool, not far from the last one, that may have a free entry.
    fn find_pool_block(&mut self, pool: usize) -> Result<Option<u64>> {
        let geometry = self.fs.geometry;
        let first = self.lane.pool_group.load(Ordering::Relaxed);
        let count = words_of(self.fs.entries_in_block(pool));
        for group in geometry.groups_from(first).take(LOOKED_AT as usize) {
            if !self.fs.hints.may_be_pool(group) {
                continue;
            }
            self.lock_group(group)?;
            let (free, purpose) = self.fs.read_map(group)?;
            let of = geometry.use_of(purpose);
            self.fs.hints.note(group, of, &free);
            if of != Use::Pool {
                continue;
            }
            for slot in 0..geometry.pool_blocks_in_group() {
                let block = group * GROUP_BYTES + slot * geometry.pool_block;
                let within = block % GROUP_BYTES / BLOCK_SIZE;
                // One without a head has entries of some pool, which a check finds.
                let is_of_pool = || self.fs.read_head(block).is_ok_and(|head| head.pool as usize == pool);
                if bits::meet(&free, &bits::run(within, 1)) || !is_of_pool() {
                    continue;
                }
                for word in 0..count {
                    let Ok(index) = self.bits_edit(block, pool, word) else { continue };
                    let edit = &self.bits[index];
                    let has_free = edit.old & !edit.taken != 0;
                    if edit.taken == 0 && edit.freed == 0 {
                        self.bits.swap_remove(index);
                    }
                    if has_free {
                        self.lane.pool_group.store(group, Ordering::Relaxed);
                        return Ok(Some(block));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Makes a pool block, in an operation of its own, which is over when this returns. Its group is locked.
    fn make_pool_block(&mut self, pool: usize, purpose: Purpose) -> Result<u64> {
        let geometry = self.fs.geometry;
        let blocks = geometry.pool_block / BLOCK_SIZE;
        if let Some(block) = self.slot_of_pools(blocks)? {
            self.fs.counts.lock().take_slot(blocks, purpose, self.fs.reserved.blocks())?;
            let written = self.write_pool_block(pool, block, 0);
            self.fs.counts.lock().give_slot_back(blocks);
            return written.map(|()| block);
        }
        self.fs.counts.lock().take_group(blocks, purpose, self.fs.reserved.blocks())?;
        self.taken_space += GROUP_BLOCKS;
        let group = match self.whole_group()? {
            Some(index) => self.groups[index].group,
            None => {
                return Err(
                    Error::no_space(Resource::Pm, GROUP_BLOCKS).object("a group of 2 MiB for metadata")
                );
            }
        };
        let block = group * GROUP_BYTES;
        self.write_pool_block(pool, block, GROUP_BLOCKS)?;
        self.taken_space -= GROUP_BLOCKS;
        self.lane.pool_group.store(group, Ordering::Relaxed);
        Ok(block)
    }

    /// Room for a pool block in a group that has others.
    fn slot_of_pools(&mut self, blocks: u64) -> Result<Option<u64>> {
        let geometry = self.fs.geometry;
        let has_room = !self.fs.is_counted() || self.fs.counts.lock().in_pools > 0;
        if geometry.pool_blocks_in_group() == 1 || !has_room {
            return Ok(None);
        }
        let first = self.lane.pool_group.load(Ordering::Relaxed);
        for group in geometry.groups_from(first).take(LOOKED_AT as usize) {
            if !self.fs.hints.may_be_pool(group) {
                continue;
            }
            let index = self.group(group)?;
            let edit = &self.groups[index];
            if geometry.use_of(edit.purpose) == Use::Pool
                && let Some(start) = bits::find_aligned(&bits::without(&edit.old, &edit.bad), blocks)
            {
                return Ok(Some(group * GROUP_BYTES + start * BLOCK_SIZE));
            }
            if edit.is_untouched() {
                self.groups.swap_remove(index);
            }
        }
        Ok(None)
    }

    /// Writes an empty pool block and commits that it is one. Nothing of its group's map is changed by the operation
    /// around it, which took so many blocks from the count of free ones.
    fn write_pool_block(&mut self, pool: usize, block: u64, taken: u64) -> Result<()> {
        let fs = self.fs;
        let geometry = fs.geometry;
        let count = fs.entries_in_block(pool);
        let seed = geometry.seed(block);
        let head = fs.new_head(block, pool);
        let mut page = [0u8; BLOCK_SIZE as usize];
        page[..size_of::<RawPoolHead>()].copy_from_slice(head.as_bytes());
        let words = page[POOL_BITS as usize..].chunks_exact_mut(8);
        for (place, value) in words.zip(free_words(count)) {
            place.copy_from_slice(&seal_any(value, seed).to_le_bytes());
        }
        fs.settle_lanes()?;
        let mut pending = None;
        for half in [block, geometry.twin(block)] {
            pending = join(pending, fs.pm.copy(half, &page)?);
            if pool == INODES {
                // The generations of its entries are read before they are written.
                pending = join(pending, fs.pm.zero(half + POOL_HEAD, geometry.entry_bytes())?);
            }
        }
        let group = geometry.group_of(block);
        let index = self.group(group)?;
        self.check_mended()?;
        let (within, blocks) = (block % GROUP_BYTES / BLOCK_SIZE, geometry.pool_block / BLOCK_SIZE);
        let edit = &mut self.groups[index];
        debug_assert!(edit.is_untouched(), "the operation has blocks of this group");
        edit.taken = bits::run(within, blocks);
        edit.purpose = geometry.pool();
        // An operation within the other one, whose items are not in the lane yet.
        let mut items = Items::default();
        let map = geometry.map(group);
        let map_seed = geometry.seed(map);
        let mut bytes = Vec::new();
        for word in edit.new_words() {
            bytes.extend_from_slice(&seal_any(word, map_seed).to_le_bytes());
        }
        items.put(map, &bytes);
        let edit = self.groups.swap_remove(index);
        run(fs, self.lane, &items, None, pending)?;
        fs.count_change(&edit, taken);
        fs.hints.note(group, Use::Pool, &[0; 8]);
        Ok(())
    }
}
