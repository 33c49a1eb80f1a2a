//! Blocks of tiers in DRAM.
//!
//! A block is known by its place on its tier, not by file. The content of a block in use never changes, because a
//! write to a file goes to other blocks. Before a free block is written, its old content is dropped; see
//! [`PageCache::drop_range`].
//!
//! The cache knows chunks of 16 neighbouring blocks, in shards with a lock each. Any blocks of a chunk may be there,
//! and only those take space. [`queues`](crate::queues) chooses the block of a shard that is evicted. A read only
//! adds to a count of two bits for each block.
//!
//! The DRAM of the cache is [`Frames`], which it may share. Then the cache may use idle frames of other users in
//! addition to its own, and [gives them up](PageCache::give_up) when they are wanted back. The number of idle frames
//! is read under the lock of a shard, and giving up takes each of these locks in turn. So when [`PageCache::give_up`]
//! returns, no more frames are used than are idle then.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use nacre_engine::sync::RwLock;
use nacre_engine::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use nacre_engine::{BLOCK_SIZE, Block, InodeHasher};
use nacre_media::{Frame, Frames};
use smallvec::SmallVec;

use crate::queues::{self, OFTEN, Queues, Turn};

/// Blocks of a chunk.
const CHUNK: u64 = 16;
const CHUNK_BYTES: u64 = CHUNK * BLOCK_SIZE;
/// Locks.
const SHARDS: usize = 16;
const BLOCK_BYTES: usize = BLOCK_SIZE as usize;
/// With less it remembers nothing.
const LEAST_BYTES: u64 = SHARDS as u64 * CHUNK_BYTES;

/// Tier, and number of the chunk on it.
type Key = (u8, u64);

/// The cache; see the [module](self).
pub struct PageCache {
    shards: Vec<RwLock<Shard>>,
    frames: Arc<Frames>,
    /// Bytes that it was told to have, and how many of them it leaves to another user of the frames.
    size: AtomicU64,
    lent: AtomicU64,
    /// Blocks that a shard may have in any case.
    most: AtomicU64,
    /// How often blocks were dropped; see [`PageCache::drops`].
    drops: AtomicU64,
    /// How often blocks were written that a file had; see [`PageCache::rewritten`].
    rewrites: AtomicU64,
    misses: AtomicU64,
    evicted: AtomicU64,
}

#[derive(Default)]
struct Shard {
    // The numbers are ours, and a multiplication spreads them.
    chunks: HashMap<Key, Chunk, BuildHasherDefault<InodeHasher>>,
    /// Blocks of all chunks.
    blocks: u64,
    queues: Queues,
    /// Bytes read from the shard. It lies beside the lock, whose cache line a reader has anyway.
    hits: AtomicU64,
}

/// Neighbours in one place: a read that finds its block there has little else to look at.
#[derive(Default)]
struct Chunk {
    /// Two bits for each block: how often it was read, up to three times.
    reads: AtomicU32,
    /// A bit for each block that is an old one.
    old: u16,
    /// A bit for each block that [`PageCache::expire`] found without a read.
    unread: u16,
    /// Those that are there.
    blocks: [Option<Frame>; CHUNK as usize],
}

/// Frames of blocks that were removed, or are to be put in.
type Copies = SmallVec<[Frame; CHUNK as usize]>;

impl Chunk {
    /// Counts a read of these blocks.
    fn note_read(&self, blocks: std::ops::Range<usize>) {
        let one = blocks.fold(0, |bits, block| bits | 1 << (2 * block));
        let before = self.reads.load(Ordering::Relaxed);
        let at_most = before & before >> 1 & 0x5555_5555;
        // Of two who read at once one may not count. Not stored for those that are read all the time: others have its line,
        // too.
        if one & !at_most != 0 {
            self.reads.store(before + (one & !at_most), Ordering::Relaxed);
        }
    }

    /// How often a block was read, up to three times.
    fn reads_of(&self, block: usize) -> u32 {
        self.reads.load(Ordering::Relaxed) >> (2 * block) & 3
    }

    /// It counts as read so often. Under the lock of its shard, alone.
    fn set_reads(&mut self, block: usize, count: u32) {
        let reads = self.reads.get_mut();
        *reads = *reads & !(3 << (2 * block)) | count << (2 * block);
    }

    /// Whether the last [expiry](PageCache::expire) found it without a read; the next one will find that this one did.
    fn was_unread(&mut self, block: usize) -> bool {
        let before = self.unread;
        self.unread |= 1 << block;
        before >> block & 1 == 1
    }

    fn is_old(&self, block: usize) -> bool {
        self.old >> block & 1 == 1
    }

    fn set_old(&mut self, block: usize, is_old: bool) {
        self.old = self.old & !(1 << block) | u16::from(is_old) << block;
    }

    fn count(&self) -> u64 {
        self.blocks.iter().flatten().count() as u64
    }
}

/// Counters of a page cache, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PageCounters {
    /// Bytes that were read from it.
    pub hit_bytes: u64,
    /// Bytes that were not there.
    pub missed_bytes: u64,
    /// Bytes that were given up for others.
    pub evicted_bytes: u64,
}

impl PageCache {
    /// A cache of at most so many bytes; less than a chunk for each of its shards is none at all.
    pub fn new(bytes: u64) -> PageCache {
        PageCache::of(bytes, Arc::default())
    }

    /// A cache of `bytes` bytes, and of the [idle](Frames::idle) part of these frames in addition.
    pub(crate) fn of(bytes: u64, frames: Arc<Frames>) -> PageCache {
        let cache = PageCache {
            shards: (0..SHARDS).map(|_| RwLock::new(Shard::default())).collect(),
            frames,
            size: AtomicU64::new(0),
            lent: AtomicU64::new(0),
            most: AtomicU64::new(0),
            drops: AtomicU64::new(0),
            rewrites: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        };
        cache.resize(bytes);
        cache
    }

    /// Sets the size in bytes, including the part that is [lent](PageCache::lend).
    pub fn resize(&self, bytes: u64) {
        self.size.store(bytes, Ordering::Relaxed);
        self.fit();
    }

    /// Lends half of the bytes of the cache to another user of the frames, and returns their number. That user leaves
    /// unused frames idle. This is called once.
    pub fn lend(&self) -> u64 {
        let size = self.size();
        let lent = (size / 2).min(size.saturating_sub(LEAST_BYTES)) / BLOCK_SIZE * BLOCK_SIZE;
        self.lent.store(lent, Ordering::Relaxed);
        self.fit();
        lent
    }

    /// Bytes that it was told to have.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    fn fit(&self) {
        let (size, lent) = (self.size(), self.lent.load(Ordering::Relaxed));
        // Lent bytes stay so when the size shrinks: reads have half in any case.
        let own = size.saturating_sub(lent).max(size / 2);
        let most = match own / BLOCK_SIZE / SHARDS as u64 {
            few if few < CHUNK => 0,
            most => most,
        };
        let before = self.most.swap(most, Ordering::Relaxed);
        self.frames.grow(most.saturating_sub(before) * SHARDS as u64);
        self.give_up();
        self.frames.shrink(before.saturating_sub(most) * SHARDS as u64);
    }

    /// Evicts the blocks above the present limit, because idle frames are wanted back.
    pub fn give_up(&self) {
        for shard in &self.shards {
            let mut gone = Copies::new();
            let mut shard = shard.write();
            self.shrink(&mut shard, self.most(), &mut gone);
            drop(shard);
            self.give_back(gone);
        }
    }

    /// Evicts the blocks without a read that an earlier call found so, too. Called every N seconds, it leaves a block
    /// from N to 2 N seconds for its first read.
    pub fn expire(&self) {
        for shard in &self.shards {
            let mut gone = Copies::new();
            let mut locked = shard.write();
            let Shard { chunks, blocks, queues, .. } = &mut *locked;
            chunks.retain(|_, chunk| {
                for block in 0..CHUNK as usize {
                    if chunk.reads_of(block) > 0 || !chunk.was_unread(block) {
                        continue;
                    }
                    if let Some(frame) = chunk.blocks[block].take() {
                        gone.push(frame);
                        queues.dropped(chunk.is_old(block));
                    }
                }
                chunk.count() > 0
            });
            *blocks -= gone.len() as u64;
            drop(locked);
            self.evicted.fetch_add(gone.len() as u64 * BLOCK_SIZE, Ordering::Relaxed);
            self.give_back(gone);
        }
    }

    /// The number of blocks that a shard may have now. Blocks above a lower limit are evicted; see
    /// [`PageCache::give_up`].
    fn most(&self) -> u64 {
        match self.most.load(Ordering::Relaxed) {
            0 => 0,
            most => most + self.frames.idle() / SHARDS as u64,
        }
    }

    /// Bytes of DRAM that it may take now.
    pub fn capacity(&self) -> u64 {
        self.most() * BLOCK_SIZE * SHARDS as u64
    }

    /// Bytes of DRAM that it takes.
    pub fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.read().blocks * BLOCK_SIZE).sum()
    }

    /// The counters so far.
    pub fn counters(&self) -> PageCounters {
        PageCounters {
            hit_bytes: self.shards.iter().map(|shard| shard.read().hits.load(Ordering::Relaxed)).sum(),
            missed_bytes: self.misses.load(Ordering::Relaxed),
            evicted_bytes: self.evicted.load(Ordering::Relaxed),
        }
    }

    /// Reads from this byte of a tier on as far as blocks are there; gives the number of bytes. Not all that were
    /// asked for means that the block behind them is missing.
    pub fn read(&self, tier: u8, offset: u64, into: &mut [u8]) -> usize {
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            let key = (tier, at / CHUNK_BYTES);
            let shard = self.shard(key).read();
            let Some(chunk) = shard.chunks.get(&key) else { break };
            let first = (at % CHUNK_BYTES) as usize / BLOCK_BYTES;
            let (mut from, end) = ((at % CHUNK_BYTES) as usize, into.len());
            let before = done;
            while done < end && from < CHUNK_BYTES as usize {
                let Some(block) = &chunk.blocks[from / BLOCK_BYTES] else { break };
                let part = &block[from % BLOCK_BYTES..];
                let len = part.len().min(end - done);
                into[done..done + len].copy_from_slice(&part[..len]);
                (done, from) = (done + len, from + len);
            }
            chunk.note_read(first..from.div_ceil(BLOCK_BYTES));
            shard.hits.fetch_add((done - before) as u64, Ordering::Relaxed);
            if done == before || done < end && from < CHUNK_BYTES as usize {
                break;
            }
        }
        done
    }

    /// How often blocks were dropped so far, to be asked before it is [resolved](nacre_engine::Extents::resolve)
    /// where data is.
    pub fn drops(&self) -> u64 {
        self.drops.load(Ordering::Acquire)
    }

    /// As [`PageCache::read`], for a reader that has not announced itself, so that the block may be freed and written
    /// anew meanwhile. `drops` is the count from before the block was resolved. Returns true if all bytes were there
    /// and were still those of the resolved block; otherwise the bytes read mean nothing.
    ///
    /// A writer of a block drops it from the cache first. If nothing was dropped since before the block was resolved,
    /// no write of it has begun since. The cached content is then that of the file. If the block was dropped earlier,
    /// for a write by another file, it was free then. Its own file had given it up, and would not have resolved to
    /// it.
    pub fn read_unannounced(&self, tier: u8, offset: u64, into: &mut [u8], drops: u64) -> bool {
        // Each part is read under a lock that is taken after that by who remembers what was written.
        self.read(tier, offset, into) == into.len() && self.drops() == drops
    }

    /// Counts bytes that were missing and were fetched for a reader.
    pub fn note_missed(&self, bytes: usize) {
        self.misses.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Whether a block is there.
    pub fn has(&self, tier: u8, block: Block) -> bool {
        let key = (tier, block.0 / CHUNK);
        let shard = self.shard(key).read();
        shard.chunks.get(&key).is_some_and(|chunk| chunk.blocks[(block.0 % CHUNK) as usize].is_some())
    }

    /// Caches whole blocks. The caller knows that they are not written meanwhile.
    pub fn fill(&self, tier: u8, start: Block, bytes: &[u8]) {
        self.fill_unless(tier, start, bytes, None);
    }

    /// Caches whole blocks that were read after `rewrites` was [seen](PageCache::rewrites). Not if blocks were rewritten
    /// since, because these may be among them.
    pub(crate) fn fill_read(&self, tier: u8, start: Block, bytes: &[u8], rewrites: u64) {
        self.fill_unless(tier, start, bytes, Some(rewrites));
    }

    fn fill_unless(&self, tier: u8, start: Block, bytes: &[u8], rewrites: Option<u64>) {
        if self.most() == 0 {
            return;
        }
        let mut rest = bytes;
        for (key, first, count) in chunks_of(tier, start, bytes.len() as u64 / BLOCK_SIZE) {
            let part;
            (part, rest) = rest.split_at(count * BLOCK_BYTES);
            let mut frames = self.room(key, first, count);
            // Copied without the lock, of which readers have a part for as long as they copy.
            for (frame, bytes) in frames.iter_mut().zip(part.chunks_exact(BLOCK_BYTES)) {
                match frame.get_mut() {
                    Some(content) => content.copy_from_slice(bytes),
                    None => {
                        unreachable!("a reader of a block has its shard's lock, and no part of the frame")
                    }
                }
            }
            self.put(key, first, frames, rewrites);
        }
    }

    /// Frames for blocks that are about to be read from a tier and [kept](PageCache::keep); no other reference to
    /// them exists. If the cache is full, they come from evicted blocks. `None` if the cache holds nothing. The
    /// caller [gives back](PageCache::give_back) frames that are not kept.
    pub(crate) fn frames(&self, tier: u8, start: Block, blocks: u64) -> Option<Vec<Frame>> {
        if self.most() == 0 {
            return None;
        }
        let mut frames = Vec::with_capacity(blocks as usize);
        for (key, first, count) in chunks_of(tier, start, blocks) {
            frames.extend(self.room(key, first, count));
        }
        Some(frames)
    }

    /// As [`PageCache::fill_read`], with blocks that were read into frames.
    pub(crate) fn keep(
        &self,
        tier: u8,
        start: Block,
        mut frames: impl ExactSizeIterator<Item = Frame>,
        rewrites: u64,
    ) {
        let blocks = frames.len() as u64;
        for (key, first, count) in chunks_of(tier, start, blocks) {
            self.put(key, first, frames.by_ref().take(count).collect(), Some(rewrites));
        }
    }

    /// Blocks of a file were overwritten in place, where readers may be. A reader that fetched them meanwhile may have
    /// their old content. It caches the content only while the number of such writes is the same, under the lock that
    /// this call takes behind the change of the number. So the content is dropped here, or not cached.
    pub fn rewritten(&self, tier: u8, start: Block, blocks: u64) {
        self.rewrites.fetch_add(1, Ordering::AcqRel);
        self.drop_range(tier, start, blocks);
    }

    /// How often that was.
    pub(crate) fn rewrites(&self) -> u64 {
        self.rewrites.load(Ordering::Acquire)
    }

    /// Forgets blocks: they are about to be written by others, or their tier is gone.
    pub fn drop_range(&self, tier: u8, start: Block, blocks: u64) {
        // First: see `read_unannounced`.
        self.drops.fetch_add(1, Ordering::AcqRel);
        let (mut at, end) = (start.0, start.0 + blocks);
        let mut gone = Copies::new();
        while at < end {
            let count = (CHUNK - at % CHUNK).min(end - at);
            let key = (tier, at / CHUNK);
            let Shard { chunks, blocks, queues, .. } = &mut *self.shard(key).write();
            if let Some(chunk) = chunks.get_mut(&key) {
                for block in (at % CHUNK) as usize..(at % CHUNK + count) as usize {
                    if let Some(frame) = chunk.blocks[block].take() {
                        gone.push(frame);
                        queues.dropped(chunk.is_old(block));
                        *blocks -= 1;
                    }
                }
                if chunk.count() == 0 {
                    chunks.remove(&key);
                }
            }
            at += count;
        }
        self.give_back(gone);
    }

    /// Forgets all blocks of a tier.
    pub fn drop_tier(&self, tier: u8) {
        self.drops.fetch_add(1, Ordering::AcqRel);
        for shard in &self.shards {
            let mut gone = Copies::new();
            let Shard { chunks, blocks, queues, .. } = &mut *shard.write();
            chunks.retain(|key, chunk| {
                if key.0 != tier {
                    return true;
                }
                for block in 0..CHUNK as usize {
                    if let Some(frame) = chunk.blocks[block].take() {
                        gone.push(frame);
                        queues.dropped(chunk.is_old(block));
                    }
                }
                false
            });
            *blocks -= gone.len() as u64;
            self.give_back(gone);
        }
    }

    /// Returns frames that are not used any more.
    pub(crate) fn give_back(&self, gone: impl IntoIterator<Item = Frame, IntoIter: ExactSizeIterator>) {
        let gone = gone.into_iter();
        if gone.len() > 0 {
            self.frames.give_back(gone);
        }
    }

    fn shard(&self, key: Key) -> &RwLock<Shard> {
        // Neighbours are in different shards, and so are the same chunks of different tiers.
        &self.shards[(key.1 as usize).wrapping_add(usize::from(key.0) * 5) % SHARDS]
    }

    /// Frames for blocks of a chunk; where there would be too many with them, those of others.
    fn room(&self, key: Key, first: usize, count: usize) -> Copies {
        let mut frames = Copies::new();
        self.make_room(&mut self.shard(key).write(), key, first..first + count, &mut frames);
        if frames.len() > count {
            self.frames.give_back(frames.drain(count..));
        }
        self.frames.take_some(count - frames.len(), &mut frames);
        frames
    }

    /// Gives blocks up for those of a chunk that are to be put in.
    fn make_room(&self, shard: &mut Shard, key: Key, blocks: std::ops::Range<usize>, gone: &mut Copies) {
        let count = blocks.len() as u64;
        let there = shard.chunks.get(&key).map_or(0, |chunk| chunk.blocks[blocks].iter().flatten().count());
        if (there as u64) < count {
            // This chunk may be one of those that go, with what was there.
            self.shrink(shard, self.most().saturating_sub(count), gone);
        }
    }

    /// Puts blocks of a chunk in, the first of them there; where there are too many with them, others go.
    fn put(&self, key: Key, first: usize, copies: Copies, rewrites: Option<u64>) {
        let mut gone = Copies::new();
        let mut shard = self.shard(key).write();
        // Others came meanwhile, or what they may have is less.
        self.make_room(&mut shard, key, first..first + copies.len(), &mut gone);
        let most = self.most();
        let Shard { chunks, blocks, queues, .. } = &mut *shard;
        if most == 0 || rewrites.is_some_and(|seen| seen != self.rewrites()) {
            gone.extend(copies);
        } else {
            // It may be one of those that went.
            let chunk = chunks.entry(key).or_default();
            for (block, copy) in (first..).zip(copies) {
                match chunk.blocks[block].replace(copy) {
                    Some(before) => gone.push(before),
                    None => {
                        chunk.set_reads(block, 0);
                        chunk.unread &= !(1 << block);
                        chunk.set_old(block, queues.comes(number_of(key, block)));
                        *blocks += 1;
                    }
                }
            }
        }
        queues.tidy(most, |number| {
            let (key, block) = key_of(number);
            let chunk = chunks.get(&key).filter(|chunk| chunk.blocks[block].is_some());
            chunk.map(|chunk| chunk.is_old(block))
        });
        drop(shard);
        self.give_back(gone);
    }

    /// Gives blocks up until there are at most so many.
    fn shrink(&self, shard: &mut Shard, most: u64, gone: &mut Copies) {
        let Shard { chunks, blocks, queues, .. } = shard;
        let before = gone.len();
        while *blocks > most
            && let Some(turn) = queues.next(*blocks, most)
        {
            let (Turn::Young(number) | Turn::Old(number)) = turn;
            let (key, block) = key_of(number);
            let Some(chunk) = chunks.get_mut(&key) else { continue };
            let is_its = chunk.is_old(block) == matches!(turn, Turn::Old(_));
            if chunk.blocks[block].is_none() || !is_its {
                continue;
            }
            let reads = chunk.reads_of(block);
            match turn {
                Turn::Young(_) if reads >= OFTEN => {
                    chunk.set_reads(block, 0);
                    chunk.set_old(block, true);
                    queues.becomes_old(number);
                    continue;
                }
                Turn::Old(_) if reads > 0 => {
                    chunk.set_reads(block, reads - 1);
                    queues.stays(number);
                    continue;
                }
                Turn::Young(_) => queues.went_young(number, most),
                Turn::Old(_) => {}
            }
            gone.extend(chunk.blocks[block].take());
            *blocks -= 1;
            if chunk.count() == 0 {
                chunks.remove(&key);
            }
        }
        self.evicted.fetch_add((gone.len() - before) as u64 * BLOCK_SIZE, Ordering::Relaxed);
    }
}

/// A block of a chunk, in one number.
fn number_of((tier, chunk): Key, block: usize) -> queues::Key {
    u64::from(tier) << 56 | (chunk * CHUNK + block as u64)
}

fn key_of(number: queues::Key) -> (Key, usize) {
    let block = number & ((1 << 56) - 1);
    (((number >> 56) as u8, block / CHUNK), (block % CHUNK) as usize)
}

/// Blocks, cut where chunks end: which chunk, the first block of it, and how many.
fn chunks_of(tier: u8, start: Block, blocks: u64) -> impl Iterator<Item = (Key, usize, usize)> {
    let (mut at, end) = (start.0, start.0 + blocks);
    std::iter::from_fn(move || {
        let (key, first) = ((tier, at / CHUNK), at % CHUNK);
        let count = (CHUNK - first).min(end - at);
        at += count;
        (count > 0).then_some((key, first as usize, count as usize))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use nacre_engine::{BLOCK_SIZE, Block};
    use nacre_media::Frames;

    use super::{CHUNK, CHUNK_BYTES, LEAST_BYTES, PageCache, SHARDS};

    const BLOCK: usize = BLOCK_SIZE as usize;

    fn content(first: u64, blocks: u64) -> Vec<u8> {
        (first..first + blocks).flat_map(|block| vec![block as u8; BLOCK]).collect()
    }

    #[test]
    fn what_was_filled_is_read_as_far_as_it_is_there() {
        let cache = PageCache::new(64 << 20);
        cache.fill(1, Block(10), &content(10, 40));
        let mut seen = vec![0xff; 60 * BLOCK];
        let count = cache.read(1, 10 * BLOCK_SIZE + 100, &mut seen);
        assert_eq!(count, 40 * BLOCK - 100);
        assert!(seen[..count] == content(10, 40)[100..]);
        assert_eq!(cache.read(1, 9 * BLOCK_SIZE, &mut seen), 0);
        assert_eq!(cache.read(2, 10 * BLOCK_SIZE, &mut seen), 0, "another tier");
        cache.drop_range(1, Block(15), 20);
        assert_eq!(cache.read(1, 10 * BLOCK_SIZE, &mut seen), 5 * BLOCK);
        assert!(!cache.has(1, Block(34)) && cache.has(1, Block(35)));
        assert_eq!(cache.read(1, 35 * BLOCK_SIZE, &mut seen[..BLOCK]), BLOCK);
        // Part of a chunk that is there already.
        cache.fill(1, Block(16), &content(16, 3));
        assert_eq!(cache.read(1, 16 * BLOCK_SIZE, &mut seen), 3 * BLOCK);
        cache.drop_tier(1);
        assert_eq!((cache.read(1, 35 * BLOCK_SIZE, &mut seen), cache.bytes()), (0, 0));
    }

    #[test]
    fn blocks_that_are_not_read_in_time_go() {
        let cache = PageCache::new(64 << 20);
        cache.fill(1, Block(10), &content(10, 20));
        cache.expire();
        let mut seen = vec![0; 2 * BLOCK];
        assert_eq!(cache.read(1, 12 * BLOCK_SIZE, &mut seen), 2 * BLOCK);
        cache.fill(1, Block(40), &content(40, 1));
        cache.expire();
        let there =
            |cache: &PageCache| (0..64).filter(|block| cache.has(1, Block(*block))).collect::<Vec<_>>();
        assert_eq!(there(&cache), [12, 13, 40], "one came since");
        cache.expire();
        assert_eq!((there(&cache), cache.bytes()), (vec![12, 13], 2 * BLOCK_SIZE));
        assert_eq!(cache.counters().evicted_bytes, 19 * BLOCK_SIZE);
        // Blocks that come again are new ones.
        cache.fill(1, Block(10), &content(10, 2));
        cache.expire();
        assert_eq!(there(&cache), [10, 11, 12, 13]);
    }

    #[test]
    fn it_is_bounded_and_keeps_what_is_used() {
        let size = CHUNK * SHARDS as u64 * BLOCK_SIZE;
        let cache = PageCache::new(size);
        assert_eq!(cache.capacity(), size);
        let mut seen = vec![0; BLOCK];
        let mut kept = 0;
        for round in 0..4000u64 {
            cache.fill(1, Block(1000 + round * CHUNK), &content(round, 1));
            // Read all the while.
            kept += cache.read(1, 0, &mut seen);
            cache.fill(1, Block(0), &content(0, 1));
            assert!(cache.bytes() <= size);
        }
        assert!(kept >= 3900 * BLOCK, "{kept}");
        assert!(cache.counters().evicted_bytes > 3000 * BLOCK_SIZE);
        cache.fill(1, Block(1 << 40), &content(0, 4 * CHUNK * SHARDS as u64));
        assert_eq!(cache.bytes(), size, "four times as much as there is room for");
        cache.resize(0);
        cache.fill(1, Block(0), &content(0, 1));
        assert_eq!((cache.bytes(), cache.capacity()), (0, 0));
    }

    /// The whole chunk stayed for the sake of one block, or went with it.
    #[test]
    fn of_a_chunk_those_blocks_stay_that_are_used() {
        let most = CHUNK * SHARDS as u64;
        let cache = PageCache::new(most * BLOCK_SIZE);
        let mut seen = vec![0; BLOCK];
        // All of one shard.
        let chunk = |number: u64| number * most;
        cache.fill(1, Block(chunk(0)), &content(0, CHUNK));
        for round in 1..100 {
            assert_eq!(cache.read(1, (chunk(0) + 5) * BLOCK_SIZE, &mut seen), BLOCK);
            cache.fill(1, Block(chunk(round)), &content(round, 1));
        }
        assert!(seen == content(5, 1));
        let there: Vec<u64> = (0..CHUNK).filter(|block| cache.has(1, Block(chunk(0) + block))).collect();
        assert_eq!(there, [5]);
        let blocks = cache.bytes() / BLOCK_SIZE;
        assert!((2..=CHUNK).contains(&blocks), "{blocks}");
    }

    #[test]
    fn what_others_leave_idle_is_used_and_given_up() {
        let frames = Arc::new(Frames::default());
        let (size, others) = (4 * LEAST_BYTES, 8 * LEAST_BYTES);
        let cache = PageCache::of(size, Arc::clone(&frames));
        let fill = || cache.fill(1, Block(0), &content(0, 4 * (size + others) / BLOCK_SIZE));
        fill();
        assert_eq!((cache.bytes(), frames.bytes()), (size, size));
        frames.grow(others / BLOCK_SIZE);
        for idle in [others, others / 2, others, 0] {
            frames.set_idle(idle / BLOCK_SIZE);
            cache.give_up();
            assert!(cache.bytes() <= size + idle);
            fill();
            assert_eq!((cache.bytes(), cache.capacity()), (size + idle, size + idle));
        }
        assert_eq!(frames.bytes(), size + others);
        // Half of its own may be another's, who has said nothing yet.
        assert_eq!((cache.lend(), cache.bytes()), (size / 2, size / 2));
        cache.resize(2 * size);
        assert_eq!(cache.capacity(), 2 * size - size / 2);
        cache.resize(size / 2);
        assert_eq!(cache.capacity(), size / 4, "half of it in any case");
        cache.resize(LEAST_BYTES);
        let tiny = PageCache::new(LEAST_BYTES);
        assert_eq!((tiny.lend(), tiny.capacity()), (0, LEAST_BYTES), "with less it would have none");
    }

    /// One thread takes back and leaves again what is idle, others fill: never is there more than both may have.
    #[test]
    fn what_is_given_up_is_not_in_use_when_that_returns() {
        let frames = Arc::new(Frames::default());
        let others = 4 * LEAST_BYTES;
        let cache = PageCache::of(LEAST_BYTES, Arc::clone(&frames));
        frames.grow(others / BLOCK_SIZE);
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (cache, ends) = (&cache, &ends);
                scope.spawn(move || {
                    let bytes = content(thread, 40);
                    let mut at = thread << 30;
                    while !ends.load(Ordering::Relaxed) {
                        cache.fill(1, Block(at), &bytes);
                        at += 40;
                    }
                });
            }
            for round in 0..2000u64 {
                let idle = round * 37 % 5 * LEAST_BYTES;
                frames.set_idle(idle / BLOCK_SIZE);
                cache.give_up();
                for _ in 0..3 {
                    let bytes = cache.bytes();
                    assert!(bytes <= LEAST_BYTES + idle, "round {round}: {bytes} beside {idle}");
                }
                // With what each of them has in its hands.
                assert!(frames.bytes() <= LEAST_BYTES + others + 3 * CHUNK_BYTES);
            }
            ends.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn who_reads_unannounced_hears_of_what_is_dropped_meanwhile() {
        let cache = PageCache::new(64 << 20);
        cache.fill(1, Block(10), &content(10, 4));
        let mut seen = vec![0; 2 * BLOCK];
        let drops = cache.drops();
        assert!(cache.read_unannounced(1, 10 * BLOCK_SIZE, &mut seen, drops) && seen == content(10, 2));
        assert!(!cache.read_unannounced(1, 13 * BLOCK_SIZE, &mut seen, drops), "half of it");
        // Written by others.
        cache.drop_range(1, Block(11), 1);
        cache.fill(1, Block(11), &content(70, 1));
        assert!(!cache.read_unannounced(1, 10 * BLOCK_SIZE, &mut seen, drops));
        assert!(cache.read_unannounced(1, 10 * BLOCK_SIZE, &mut seen, cache.drops()));
        let drops = cache.drops();
        cache.drop_tier(2);
        assert!(!cache.read_unannounced(1, 10 * BLOCK_SIZE, &mut seen, drops));
    }

    /// A chunk of sixteen blocks was there for each of them, and so few were remembered.
    #[test]
    fn blocks_that_lie_here_and_there_take_the_room_of_blocks() {
        let blocks = 4 * CHUNK * SHARDS as u64;
        let cache = PageCache::new(blocks * BLOCK_SIZE);
        (0..blocks).for_each(|at| cache.fill(1, Block(at * 3 * CHUNK), &content(at, 1)));
        assert_eq!((cache.bytes(), cache.counters().evicted_bytes), (blocks * BLOCK_SIZE, 0));
        // What is there twice takes no more, nor what is dropped.
        (0..blocks).for_each(|at| cache.fill(1, Block(at * 3 * CHUNK), &content(at, 1)));
        cache.drop_range(1, Block(0), 3 * CHUNK * blocks / 2);
        assert_eq!(cache.bytes(), blocks / 2 * BLOCK_SIZE);
        let mut seen = vec![0; BLOCK];
        assert_eq!(cache.read(1, 3 * CHUNK * (blocks - 1) * BLOCK_SIZE, &mut seen), BLOCK);
        assert_eq!(seen, content(blocks - 1, 1));
        cache.drop_tier(1);
        assert_eq!(cache.bytes(), 0);
    }

    #[test]
    fn what_is_dropped_and_filled_again_and_again_leaves_nothing_behind() {
        let cache = PageCache::new(SHARDS as u64 * CHUNK_BYTES);
        for _ in 0..1000 {
            cache.fill(1, Block(0), &content(0, 1));
            cache.drop_range(1, Block(0), 1);
        }
        let keys: usize = cache.shards.iter().map(|shard| shard.read().queues.len()).sum();
        assert!(keys <= 3 * (CHUNK as usize + 16) * SHARDS, "{keys}");
    }
}
