//! Blocks of tiers in DRAM.
//!
//! They are known by where they are on their tier, not by file: the content of a block that is in use never changes, as
//! whoever writes a file writes other blocks. Who writes a block (of a tier that was free until then) drops what was
//! remembered of it before; see [`PageCache::drop_range`].
//!
//! The cache knows chunks of 16 neighbouring blocks, of which any may be there and take room, in shards with a lock each, and
//! gives up the chunk that was not used for longest (by the clock algorithm, in each shard).

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::BuildHasherDefault;

use nacre_engine::sync::RwLock;
use nacre_engine::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use nacre_engine::{BLOCK_SIZE, Block, InodeHasher};
use smallvec::SmallVec;

/// Blocks of a chunk.
const CHUNK: u64 = 16;
const CHUNK_BYTES: u64 = CHUNK * BLOCK_SIZE;
/// Locks.
const SHARDS: usize = 16;
const BLOCK_BYTES: usize = BLOCK_SIZE as usize;

/// Tier, and number of the chunk on it.
type Key = (u8, u64);

/// The cache; see the [module](self).
pub struct PageCache {
    shards: Vec<RwLock<Shard>>,
    /// Blocks that a shard may have.
    most: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    evicted: AtomicU64,
}

#[derive(Default)]
struct Shard {
    // The numbers are ours, and a multiplication spreads them.
    chunks: HashMap<Key, Chunk, BuildHasherDefault<InodeHasher>>,
    /// Blocks of all chunks.
    blocks: u64,
    /// Each chunk once, and perhaps some that are gone.
    clock: VecDeque<Key>,
}

/// Neighbours in one place: a read that finds its block there has little else to look at.
#[derive(Default)]
struct Chunk {
    used: AtomicBool,
    /// Those that are there.
    blocks: [Option<Content>; CHUNK as usize],
}

type Content = Box<[u8; BLOCK_BYTES]>;

impl Chunk {
    /// Somebody reads it.
    fn use_it(&self) {
        // Stored once: others have its line, too.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    fn count(&self) -> u64 {
        self.blocks.iter().flatten().count() as u64
    }
}

/// What a cache did.
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
        let cache = PageCache {
            shards: (0..SHARDS).map(|_| RwLock::new(Shard::default())).collect(),
            most: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        };
        cache.resize(bytes);
        cache
    }

    /// From now on it has at most so many bytes.
    pub fn resize(&self, bytes: u64) {
        let most = match bytes / BLOCK_SIZE / SHARDS as u64 {
            few if few < CHUNK => 0,
            most => most,
        };
        self.most.store(most, Ordering::Relaxed);
        self.shards.iter().for_each(|shard| self.shrink(&mut shard.write(), most));
    }

    /// Bytes of DRAM that it may take.
    pub fn capacity(&self) -> u64 {
        self.most.load(Ordering::Relaxed) * BLOCK_SIZE * SHARDS as u64
    }

    /// Bytes of DRAM that it takes.
    pub fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.read().blocks * BLOCK_SIZE).sum()
    }

    /// What it did so far.
    pub fn counters(&self) -> PageCounters {
        PageCounters {
            hit_bytes: self.hits.load(Ordering::Relaxed),
            missed_bytes: self.misses.load(Ordering::Relaxed),
            evicted_bytes: self.evicted.load(Ordering::Relaxed),
        }
    }

    /// Reads from this byte of a tier on as far as blocks are there; gives the number of bytes. Not all that were asked for
    /// means that the block behind them is missing.
    pub fn read(&self, tier: u8, offset: u64, into: &mut [u8]) -> usize {
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            let key = (tier, at / CHUNK_BYTES);
            let shard = self.shard(key).read();
            let Some(chunk) = shard.chunks.get(&key) else { break };
            chunk.use_it();
            let (mut from, end) = ((at % CHUNK_BYTES) as usize, into.len());
            let before = done;
            while done < end && from < CHUNK_BYTES as usize {
                let Some(block) = &chunk.blocks[from / BLOCK_BYTES] else { break };
                let part = &block[from % BLOCK_BYTES..];
                let len = part.len().min(end - done);
                into[done..done + len].copy_from_slice(&part[..len]);
                (done, from) = (done + len, from + len);
            }
            if done == before || done < end && from < CHUNK_BYTES as usize {
                break;
            }
        }
        self.hits.fetch_add(done as u64, Ordering::Relaxed);
        done
    }

    /// Bytes that were not there were fetched for who asked for them.
    pub fn note_missed(&self, bytes: usize) {
        self.misses.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Whether a block is there.
    pub fn has(&self, tier: u8, block: Block) -> bool {
        let key = (tier, block.0 / CHUNK);
        let shard = self.shard(key).read();
        shard.chunks.get(&key).is_some_and(|chunk| chunk.blocks[(block.0 % CHUNK) as usize].is_some())
    }

    /// Remembers whole blocks. The caller knows that nobody writes them meanwhile.
    pub fn fill(&self, tier: u8, start: Block, bytes: &[u8]) {
        let most = self.most.load(Ordering::Relaxed);
        if most == 0 {
            return;
        }
        let mut at = start.0;
        for part in split(start, bytes) {
            // Copied before the lock is taken, of which readers have a part for as long as they copy.
            let copies =
                part.chunks_exact(BLOCK_BYTES).filter_map(|bytes| Content::try_from(bytes.to_vec()).ok());
            let copies: SmallVec<[Content; CHUNK as usize]> = copies.collect();
            let count = copies.len() as u64;
            self.put((tier, at / CHUNK), (at % CHUNK) as usize, copies, most);
            at += count;
        }
    }

    /// Forgets blocks: they are about to be written by others, or their tier is gone.
    pub fn drop_range(&self, tier: u8, start: Block, blocks: u64) {
        let (mut at, end) = (start.0, start.0 + blocks);
        while at < end {
            let count = (CHUNK - at % CHUNK).min(end - at);
            let key = (tier, at / CHUNK);
            let Shard { chunks, blocks, .. } = &mut *self.shard(key).write();
            if let Some(chunk) = chunks.get_mut(&key) {
                let gone = &mut chunk.blocks[(at % CHUNK) as usize..][..count as usize];
                *blocks -= gone.iter().flatten().count() as u64;
                gone.fill_with(|| None);
                if chunk.count() == 0 {
                    chunks.remove(&key);
                }
            }
            at += count;
        }
    }

    /// Forgets all blocks of a tier.
    pub fn drop_tier(&self, tier: u8) {
        for shard in &self.shards {
            let Shard { chunks, blocks, .. } = &mut *shard.write();
            chunks.retain(|key, chunk| {
                let stays = key.0 != tier;
                *blocks -= if stays { 0 } else { chunk.count() };
                stays
            });
        }
    }

    fn shard(&self, key: Key) -> &RwLock<Shard> {
        // Neighbours are in different shards, and so are the same chunks of different tiers.
        &self.shards[(key.1 as usize).wrapping_add(usize::from(key.0) * 5) % SHARDS]
    }

    /// Puts blocks of a chunk in, the first of them there; where there are too many with them, others go.
    fn put(&self, key: Key, first: usize, copies: SmallVec<[Content; CHUNK as usize]>, most: u64) {
        let mut shard = self.shard(key).write();
        let there = shard
            .chunks
            .get(&key)
            .map_or(0, |chunk| chunk.blocks[first..][..copies.len()].iter().flatten().count() as u64);
        let more = copies.len() as u64 - there;
        if more > 0 {
            // This chunk may be one of those that go, with what was there.
            self.shrink(&mut shard, most.saturating_sub(copies.len() as u64));
        }
        let Shard { chunks, blocks, clock } = &mut *shard;
        // It may be one of those that went.
        let chunk = chunks.entry(key).or_insert_with(|| {
            clock.push_back(key);
            Chunk::default()
        });
        for (block, copy) in chunk.blocks[first..].iter_mut().zip(copies) {
            *blocks += u64::from(block.replace(copy).is_none());
        }
        // Keys of what was dropped go when it is their turn; there must not be ever more of them.
        if clock.len() as u64 > 2 * most + 16 {
            let mut seen = HashSet::new();
            clock.retain(|key| chunks.contains_key(key) && seen.insert(*key));
        }
    }

    /// Gives chunks up until there are at most so many blocks.
    fn shrink(&self, shard: &mut Shard, most: u64) {
        let Shard { chunks, blocks, clock } = shard;
        while *blocks > most {
            let Some(key) = clock.pop_front() else { break };
            match chunks.get(&key) {
                Some(chunk) if chunk.used.swap(false, Ordering::Relaxed) => clock.push_back(key),
                Some(chunk) => {
                    let gone = chunk.count();
                    *blocks -= gone;
                    chunks.remove(&key);
                    self.evicted.fetch_add(gone * BLOCK_SIZE, Ordering::Relaxed);
                }
                None => {}
            }
        }
    }
}

/// Whole blocks, cut where chunks end.
fn split(start: Block, bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let first = ((CHUNK - start.0 % CHUNK) * BLOCK_SIZE) as usize;
    let (head, rest) = bytes.split_at(first.min(bytes.len()));
    std::iter::once(head).chain(rest.chunks(CHUNK_BYTES as usize)).filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use nacre_engine::{BLOCK_SIZE, Block};

    use super::{CHUNK, CHUNK_BYTES, PageCache, SHARDS};

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
        let keys: usize = cache.shards.iter().map(|shard| shard.read().clock.len()).sum();
        assert!(keys <= 3 * (CHUNK as usize + 16) * SHARDS, "{keys}");
    }
}
