//! The inode table: chunks of 256 inodes on media, and for each inode in use its state in DRAM.
//!
//! A chunk is 64 KiB somewhere on the device; the chunk table, a region, has one checked word for each. Chunks are
//! added when a lane has no free inode left and are never given back. Whether an inode is in use is not on media: it is
//! in use exactly when a dentry refers to it (or it is held).

use std::sync::Arc;

use nacre_engine::sync::atomic::{AtomicU64, Ordering};
use nacre_engine::sync::{Mutex, OnceLock, RwLock};
use nacre_engine::{BLOCK_SIZE, Block, Error, Kind, Resource, Result};
use nacre_layout_parts::eviction::Eviction;
use nacre_media::{Durable, Pm};
use zerocopy::IntoBytes;

use crate::alloc::{Allocator, Purpose, Run, Runs, lane_of_thread};
use crate::format::{
    BLOCK_INODES, CHUNK_BLOCKS, CHUNK_INODES, CHUNK_SCATTERED, INODE_SIZE, Region, open_word, region,
    seal_word,
};
use crate::inode::Inode;
use crate::seeded::fault;
use crate::superblock::Superblock;

/// Chunks in one segment of the table in DRAM.
const SEGMENT: usize = 1024;

/// The seed of a chunk's word in the chunk table.
pub(crate) fn chunk_seed(volume_seed: u32, chunk: u64) -> u32 {
    crc32c::crc32c_append(volume_seed, &chunk.to_le_bytes())
}

type Slot = RwLock<Option<Arc<Inode>>>;

struct Chunk {
    blocks: [Block; CHUNK_BLOCKS as usize],
    used: [AtomicU64; 4],
    /// Inodes that were in use at the mount, or left DRAM, and were not reclaimed since: only they are read from media.
    readable: [AtomicU64; 4],
    /// Inodes that are kept (parked) without a hold: they are not reclaimed.
    parked: [AtomicU64; 4],
    slots: [Slot; CHUNK_INODES as usize],
}

type Segment = Box<[OnceLock<Box<Chunk>>]>;

/// An inode that is not in use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FreeInode {
    pub(crate) number: u64,
    /// The last generation that it had, where that is known without a look at media.
    pub(crate) generation: Option<u32>,
}

/// All inodes.
pub(crate) struct InodeTable {
    region: Region,
    volume_seed: u32,
    segments: Vec<OnceLock<Segment>>,
    /// Free inodes that lanes have taken.
    lanes: Vec<Mutex<Vec<FreeInode>>>,
    /// Free inodes of chunks that no lane has taken: (chunk, free bits). And the first chunk that does not exist.
    spare: Mutex<Spare>,
    in_use: AtomicU64,
    /// How many of them are kept without a hold; mostly none.
    parked: AtomicU64,
    /// How many of them have their state in DRAM.
    pub(crate) eviction: Eviction,
}

#[derive(Default)]
struct Spare {
    chunks: Vec<(u64, [u64; 4])>,
    next_chunk: u64,
}

impl InodeTable {
    /// The table that a superblock names, without chunks. `limit` is the number of inodes with state in DRAM.
    pub(crate) fn of(superblock: &Superblock, lanes: usize, limit: u64) -> Result<InodeTable> {
        let max_chunks = superblock.raw.device_blocks.div_ceil(CHUNK_INODES);
        Ok(InodeTable {
            region: superblock.region(region::CHUNK_TABLE)?,
            volume_seed: superblock.seed(),
            segments: (0..max_chunks.div_ceil(SEGMENT as u64)).map(|_| OnceLock::new()).collect(),
            lanes: (0..lanes.max(1)).map(|_| Mutex::default()).collect(),
            spare: Mutex::default(),
            in_use: AtomicU64::new(0),
            parked: AtomicU64::new(0),
            eviction: Eviction::new(limit),
        })
    }

    /// Reads the chunk table. Afterwards no inode is in use. Returns the number of chunks and the blocks that they
    /// take.
    pub(crate) fn load_chunks(&self, pm: &impl Pm) -> Result<(u64, Vec<Run>)> {
        let mut found = Vec::new();
        let mut count = 0;
        for index in 0..self.max_chunks() {
            let seed = chunk_seed(self.volume_seed, index);
            let word = pm.load_u64(self.word_offset(index))?;
            let Some(block) = open_word(word, seed, &|| format!("chunk table: word {index}"))? else { break };
            let scattered = block & CHUNK_SCATTERED != 0;
            let first = block & !CHUNK_SCATTERED;
            let len = if scattered { 1 } else { CHUNK_BLOCKS };
            if first + len > pm.len() / BLOCK_SIZE {
                return Err(Error::corrupt(format!("chunk table: word {index} is beyond the device")));
            }
            found.push(Run { start: Block(first), len });
            let blocks = if scattered {
                let blocks = read_list(pm, Block(first), seed, index)?;
                found.extend(blocks.iter().map(|&start| Run { start, len: 1 }));
                blocks
            } else {
                std::array::from_fn(|i| Block(first + i as u64))
            };
            self.insert_chunk(index, blocks);
            count += 1;
        }
        self.spare.lock().next_chunk = count;
        Ok((count, found))
    }

    /// Number of chunks that there could be.
    pub(crate) fn max_chunks(&self) -> u64 {
        (self.region.blocks * BLOCK_SIZE / 8).min(self.segments.len() as u64 * SEGMENT as u64)
    }

    /// Marks an inode as in use, during recovery. False when it was already.
    pub(crate) fn mark_used(&self, number: u64) -> bool {
        let Some(chunk) = self.chunk(number / CHUNK_INODES) else { return false };
        let (word, bit) = bit_of(number);
        let first = chunk.used[word].fetch_or(bit, Ordering::Relaxed) & bit == 0;
        if first {
            chunk.readable[word].fetch_or(bit, Ordering::Relaxed);
            self.in_use.fetch_add(1, Ordering::Relaxed);
        }
        first
    }

    /// Marks inodes as in use from a checkpoint.
    pub(crate) fn mark_chunk_used(&self, index: u64, used: [u64; 4]) -> Result<()> {
        let chunk = self
            .chunk(index)
            .ok_or_else(|| Error::corrupt(format!("checkpoint: inode chunk {index} does not exist")))?;
        for (word, bits) in used.into_iter().enumerate() {
            chunk.used[word].store(bits, Ordering::Relaxed);
            chunk.readable[word].store(bits, Ordering::Relaxed);
            self.in_use.fetch_add(u64::from(bits.count_ones()), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Offers all inodes that are not in use, after recovery or a checkpoint has marked the others.
    pub(crate) fn offer_free(&self) {
        self.eviction.none_is_loaded(self.in_use());
        let mut spare = self.spare.lock();
        for index in 0..spare.next_chunk {
            let Some(chunk) = self.chunk(index) else { continue };
            let mut free = chunk.used.each_ref().map(|word| !word.load(Ordering::Relaxed));
            if index == 0 {
                free[0] &= !1; // number 0 names no inode
            }
            if free.iter().any(|&bits| bits != 0) {
                spare.chunks.push((index, free));
            }
        }
        spare.chunks.reverse();
    }

    /// Calls `visit` with each chunk's index and the bits of its inodes in use.
    pub(crate) fn for_each_chunk(&self, mut visit: impl FnMut(u64, [u64; 4])) {
        for index in 0..self.chunks() {
            if let Some(chunk) = self.chunk(index) {
                visit(index, chunk.used.each_ref().map(|word| word.load(Ordering::Relaxed)));
            }
        }
    }

    /// Inodes for which there is a place, in use or not.
    pub(crate) fn capacity(&self) -> u64 {
        self.spare.lock().next_chunk * CHUNK_INODES
    }

    pub(crate) fn in_use(&self) -> u64 {
        self.in_use.load(Ordering::Relaxed)
    }

    /// Whether an inode that is not in its slot may be read from media. Under the slot's lock, like changes of this.
    pub(crate) fn is_readable(&self, number: u64) -> bool {
        let (word, bit) = bit_of(number);
        self.chunk(number / CHUNK_INODES)
            .is_some_and(|chunk| chunk.readable[word].load(Ordering::Relaxed) & bit != 0)
    }

    /// The state of an inode is about to leave its slot: media says all of it. Under the slot's lock.
    pub(crate) fn is_on_media(&self, number: u64) {
        let (word, bit) = bit_of(number);
        if let Some(chunk) = self.chunk(number / CHUNK_INODES) {
            chunk.readable[word].fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Notes that an inode is kept without being held, or no longer is.
    pub(crate) fn set_parked(&self, number: u64, is: bool) {
        let (word, bit) = bit_of(number);
        let Some(chunk) = self.chunk(number / CHUNK_INODES) else { return };
        if is {
            self.parked.fetch_add(1, Ordering::AcqRel);
            chunk.parked[word].fetch_or(bit, Ordering::AcqRel);
        } else if chunk.parked[word].fetch_and(!bit, Ordering::AcqRel) & bit != 0 {
            self.parked.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Whether an inode is kept without being held. The caller has seen that it has no holder any more, or has its
    /// slot's lock.
    #[inline]
    pub(crate) fn is_parked(&self, number: u64) -> bool {
        let (word, bit) = bit_of(number);
        self.parked.load(Ordering::Acquire) > 0
            && self
                .chunk(number / CHUNK_INODES)
                .is_some_and(|chunk| chunk.parked[word].load(Ordering::Acquire) & bit != 0)
    }

    /// Chunks that there are.
    pub(crate) fn chunks(&self) -> u64 {
        self.spare.lock().next_chunk
    }

    /// The bytes of an inode on media are no longer valid: it is being reclaimed, and its number may be another one's
    /// soon.
    pub(crate) fn forget_media(&self, number: u64) {
        let (word, bit) = bit_of(number);
        if let Some(chunk) = self.chunk(number / CHUNK_INODES) {
            chunk.readable[word].fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Takes a free inode; makes a chunk when there is none.
    pub(crate) fn allocate(&self, pm: &impl Pm, blocks: &Allocator) -> Result<FreeInode> {
        let own = lane_of_thread() % self.lanes.len();
        let taken = self.lanes[own].lock().pop();
        let free = match taken {
            Some(free) => free,
            None => self.refill(own, pm, blocks)?,
        };
        let number = free.number;
        let (word, bit) = bit_of(number);
        if let Some(chunk) = self.chunk(number / CHUNK_INODES) {
            let before = chunk.used[word].fetch_or(bit, Ordering::AcqRel);
            assert_eq!(before & bit, 0, "inode {number} was given out twice");
        }
        self.in_use.fetch_add(1, Ordering::Relaxed);
        Ok(free)
    }

    /// Gives an inode back.
    pub(crate) fn free(&self, free: FreeInode) {
        let number = free.number;
        let (word, bit) = bit_of(number);
        if let Some(chunk) = self.chunk(number / CHUNK_INODES) {
            let before = chunk.used[word].fetch_and(!bit, Ordering::AcqRel);
            assert_ne!(before & bit, 0, "inode {number} was freed twice");
        }
        self.in_use.fetch_sub(1, Ordering::Relaxed);
        self.lanes[lane_of_thread() % self.lanes.len()].lock().push(free);
    }

    /// A free inode is not given out any more, until the next mount.
    pub(crate) fn set_aside(&self, number: u64) {
        self.lanes.iter().for_each(|lane| lane.lock().retain(|free| free.number != number));
    }

    /// Where the inode's bytes are.
    pub(crate) fn address(&self, number: u64) -> Result<u64> {
        let chunk = self.chunk(number / CHUNK_INODES).ok_or(Error::new(Kind::Stale))?;
        let block = chunk.blocks[(number % CHUNK_INODES / BLOCK_INODES) as usize];
        Ok(block.offset() + number % BLOCK_INODES * INODE_SIZE)
    }

    /// The inode's slot in DRAM.
    #[inline]
    pub(crate) fn slot(&self, number: u64) -> Result<&Slot> {
        let chunk = self.chunk(number / CHUNK_INODES).ok_or(Error::new(Kind::Stale))?;
        Ok(&chunk.slots[(number % CHUNK_INODES) as usize])
    }

    /// Calls `visit` with every inode that is in DRAM.
    pub(crate) fn for_each_loaded(&self, mut visit: impl FnMut(&Arc<Inode>)) {
        for segment in self.segments.iter().filter_map(OnceLock::get) {
            for chunk in segment.iter().filter_map(OnceLock::get) {
                for slot in &chunk.slots {
                    let inode = slot.read().clone();
                    if let Some(inode) = inode {
                        visit(&inode);
                    }
                }
            }
        }
    }

    /// Bytes of DRAM that the table takes, without the inodes.
    pub(crate) fn index_bytes(&self) -> u64 {
        self.chunks() * size_of::<Chunk>() as u64
    }

    fn refill(&self, own: usize, pm: &impl Pm, blocks: &Allocator) -> Result<FreeInode> {
        let mut spare = self.spare.lock();
        let (index, free) = match spare.chunks.pop() {
            Some(chunk) => chunk,
            None => match self.add_chunk(&mut spare, pm, blocks) {
                Ok(index) => (index, [u64::MAX; 4]),
                Err(error) => return self.steal(own).ok_or(error),
            },
        };
        drop(spare);
        let mut numbers = Vec::with_capacity(CHUNK_INODES as usize);
        for (word, bits) in free.iter().enumerate().rev() {
            for bit in (0..64).rev().filter(|bit| bits >> bit & 1 == 1) {
                let number = index * CHUNK_INODES + word as u64 * 64 + bit;
                numbers.push(FreeInode { number, generation: None });
            }
        }
        if index == 0 {
            numbers.retain(|free| free.number != 0); // number 0 names no inode
        }
        let free = numbers.pop().ok_or_else(|| Error::no_space(Resource::Inodes, 0))?;
        self.lanes[own].lock().append(&mut numbers);
        Ok(free)
    }

    fn steal(&self, own: usize) -> Option<FreeInode> {
        let others = (1..=self.lanes.len()).map(|turn| (own + turn) % self.lanes.len());
        others.into_iter().find_map(|lane| self.lanes[lane].lock().pop())
    }

    /// Makes a chunk: zeros first, durable before the word that publishes it.
    fn add_chunk(&self, spare: &mut Spare, pm: &impl Pm, blocks: &Allocator) -> Result<u64> {
        let index = spare.next_chunk;
        if index >= self.max_chunks() {
            return Err(Error::no_space(Resource::Inodes, 0));
        }
        let mut runs = Runs::new();
        match blocks.allocate_contiguous(CHUNK_BLOCKS, Purpose::Data) {
            Ok(run) => runs.push(run),
            Err(_) => blocks.allocate(CHUNK_BLOCKS + 1, Purpose::Data, &mut runs)?,
        }
        match self.publish_chunk(pm, index, &runs) {
            Ok(list) => {
                self.insert_chunk(index, list);
                spare.next_chunk += 1;
                Ok(index)
            }
            Err(error) => {
                runs.into_iter().for_each(|run| blocks.free(run));
                Err(error)
            }
        }
    }

    /// Writes a chunk that consists of one run, or of single blocks the last of which lists the others.
    fn publish_chunk(&self, pm: &impl Pm, index: u64, runs: &Runs) -> Result<[Block; CHUNK_BLOCKS as usize]> {
        let seed = chunk_seed(self.volume_seed, index);
        let all: Vec<Block> = runs.iter().flat_map(|run| (0..run.len).map(|i| run.start.plus(i))).collect();
        let list: [Block; CHUNK_BLOCKS as usize] = std::array::from_fn(|i| all[i]);
        let mut flushed = pm.zero(0, 0)?;
        for run in runs {
            flushed = flushed.and(pm.zero(run.start.offset(), run.len * BLOCK_SIZE)?);
        }
        let list_block = all.get(CHUNK_BLOCKS as usize);
        if let Some(list_block) = list_block {
            let words = list.map(|block| seal_word(block.0, seed));
            let listed =
                pm.publish_entry(list_block.offset(), words.as_bytes(), Durable::nothing_before())?;
            flushed = flushed.and(listed);
        }
        let after = pm.fence(flushed);
        let word = self.word_offset(index);
        let stored = match list_block {
            Some(block) => pm.publish_u64(word, seal_word(block.0 | CHUNK_SCATTERED, seed), after)?,
            None => pm.publish_u64(word, seal_word(list[0].0, seed), after)?,
        };
        fault!(pm, ChunkNotPublished => { stored.may_be_lost(); return Ok(list) });
        let flushed = pm.flush(stored);
        pm.fence(flushed);
        Ok(list)
    }

    fn insert_chunk(&self, index: u64, blocks: [Block; CHUNK_BLOCKS as usize]) {
        let segment = self.segments[index as usize / SEGMENT]
            .get_or_init(|| (0..SEGMENT).map(|_| OnceLock::new()).collect());
        segment[index as usize % SEGMENT].get_or_init(|| {
            Box::new(Chunk {
                blocks,
                used: std::array::from_fn(|_| AtomicU64::new(0)),
                readable: std::array::from_fn(|_| AtomicU64::new(0)),
                parked: std::array::from_fn(|_| AtomicU64::new(0)),
                slots: std::array::from_fn(|_| RwLock::new(None)),
            })
        });
    }

    #[inline]
    fn chunk(&self, index: u64) -> Option<&Chunk> {
        let segment = self.segments.get(index as usize / SEGMENT)?.get()?;
        segment[index as usize % SEGMENT].get().map(|chunk| &**chunk)
    }

    fn word_offset(&self, index: u64) -> u64 {
        Block(self.region.start).offset() + index * 8
    }
}

/// The blocks of a scattered chunk.
pub(crate) fn read_list(
    pm: &impl Pm,
    list: Block,
    seed: u32,
    index: u64,
) -> Result<[Block; CHUNK_BLOCKS as usize]> {
    let mut words = [0u64; CHUNK_BLOCKS as usize];
    pm.read(list.offset(), words.as_mut_bytes())?;
    let mut blocks = [Block(0); CHUNK_BLOCKS as usize];
    for (block, word) in blocks.iter_mut().zip(words) {
        let damaged = || format!("the list of blocks of inode chunk {index}");
        let value = open_word(word, seed, &damaged)?.filter(|&value| value < pm.len() / BLOCK_SIZE);
        *block = Block(value.ok_or_else(|| Error::corrupt(damaged()))?);
    }
    Ok(blocks)
}

fn bit_of(number: u64) -> (usize, u64) {
    ((number % CHUNK_INODES / 64) as usize, 1 << (number % 64))
}
