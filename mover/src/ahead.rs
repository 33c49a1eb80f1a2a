//! What reads of files on tiers have shown, and how much is read ahead for that.
//!
//! It is known in DRAM, of so many files at the most: of one that was forgotten the window grows anew.
//!
//! What a read finds missing it fetches itself, with the rest of its window. What comes behind that is left to
//! [threads](Ahead::take) that fetch it meanwhile, where there are any: who comes to a block that one of them is fetching
//! waits for that.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::ops::Range;

use nacre_engine::sync::atomic::{AtomicBool, Ordering};
use nacre_engine::sync::{Condvar, Mutex, SMALL};
use nacre_engine::{FileBlock, InodeHasher, InodeId, Place, Result, TierRun, Tiered};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;
use nacre_policy::ReadAhead;

use crate::data::Reading;
use crate::fs::MoverFs;

const SHARDS: usize = if SMALL { 1 } else { 64 };
/// Files that a shard knows at the most: 16,384 in all, about 3 MiB.
const MAX_FILES: usize = 256;
/// Ranges that wait to be fetched at the most: of more, who reads fetches them himself.
const MAX_WAITING: usize = 64;

type Files = HashMap<InodeId, ReadAhead, BuildHasherDefault<InodeHasher>>;

/// What is known of all files.
pub(crate) struct Readers {
    shards: Box<[Mutex<Files>]>,
}

impl Readers {
    pub(crate) fn new() -> Readers {
        Readers { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    /// A read of blocks of a file; gives how many are to be fetched at once, `most` at the most, or 0 for only those that are
    /// read; and what is worth fetching meanwhile.
    pub(crate) fn read(&self, id: InodeId, start: u64, blocks: u64, most: u64) -> (u64, Range<u64>) {
        let mut files = self.shards[id.number as usize % SHARDS].lock();
        if files.len() >= MAX_FILES && !files.contains_key(&id) {
            // Which of them is read on nobody knows: all begin anew.
            files.clear();
        }
        files.entry(id).or_default().read_on(start, blocks, most)
    }
}

/// Blocks of a file that somebody will read soon.
pub struct Fetch<N> {
    node: N,
    blocks: Range<u64>,
}

/// What is to be fetched by those who have nothing else to do.
pub struct Ahead<N> {
    queue: Mutex<Queue<N>>,
    comes: Condvar,
    /// Somebody fetches.
    is_served: AtomicBool,
}

struct Queue<N> {
    waiting: VecDeque<Fetch<N>>,
    is_over: bool,
}

impl<N> Ahead<N> {
    pub(crate) fn new() -> Ahead<N> {
        Ahead {
            queue: Mutex::new(Queue { waiting: VecDeque::new(), is_over: false }),
            comes: Condvar::new(),
            is_served: AtomicBool::new(false),
        }
    }

    /// Waits for something to fetch; `None` when it is [over](Ahead::end).
    pub fn take(&self) -> Option<Fetch<N>> {
        self.is_served.store(true, Ordering::Relaxed);
        let mut queue = self.queue.lock();
        while !queue.is_over {
            if let Some(next) = queue.waiting.pop_front() {
                return Some(next);
            }
            self.comes.wait(&mut queue);
        }
        None
    }

    /// Nobody fetches any more.
    pub fn end(&self) {
        self.is_served.store(false, Ordering::Relaxed);
        let mut queue = self.queue.lock();
        queue.is_over = true;
        queue.waiting.clear();
        self.comes.notify_all();
    }

    /// Leaves blocks to be fetched, if somebody does that and is not far behind.
    pub(crate) fn leave(&self, blocks: Range<u64>, node: impl FnOnce() -> N) {
        if blocks.is_empty() || !self.is_served.load(Ordering::Relaxed) {
            return;
        }
        let mut queue = self.queue.lock();
        if !queue.is_over && queue.waiting.len() < MAX_WAITING {
            queue.waiting.push_back(Fetch { node: node(), blocks });
            self.comes.notify_one();
        }
    }
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> MoverFs<L, D> {
    /// Fetches into DRAM what of these blocks is on tiers. What cannot be read is told to who reads it.
    pub fn fetch(&self, fetch: &Fetch<L::Node>) -> Result<()> {
        let Range { start, end } = fetch.blocks;
        let _reading = Reading::begin(&self.layout);
        for found in self.layout.resolve(&fetch.node, FileBlock(start), end - start)? {
            let Place::Tier { tier, block } = found.place else { continue };
            // An extent may begin before, and end behind.
            let (from, to) = (found.start.0.max(start), (found.start.0 + found.len).min(end));
            let first = block.plus(from - found.start.0);
            self.tiers.fetch(TierRun { tier, start: first, len: to.saturating_sub(from) });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use nacre_engine::InodeId;

    use super::{Ahead, MAX_FILES, MAX_WAITING, Readers, SHARDS};

    #[test]
    fn what_nobody_fetches_is_not_left_and_what_waits_is_bounded() {
        let ahead = Ahead::new();
        ahead.leave(0..8, || unreachable!("nobody would fetch it"));
        std::thread::scope(|scope| {
            let fetching = scope.spawn(|| std::iter::from_fn(|| ahead.take()).count());
            while !ahead.is_served.load(std::sync::atomic::Ordering::Relaxed) {
                std::thread::yield_now();
            }
            ahead.leave(4..4, || unreachable!("there is nothing"));
            for number in 0..10 {
                ahead.leave(0..8, || number);
            }
            while !ahead.queue.lock().waiting.is_empty() {
                std::thread::yield_now();
            }
            ahead.end();
            assert_eq!(fetching.join().unwrap(), 10);
        });
        ahead.leave(0..8, || unreachable!("it is over"));
        assert!(ahead.take().is_none());
        let ahead = Ahead::new();
        ahead.is_served.store(true, std::sync::atomic::Ordering::Relaxed);
        (0..2 * MAX_WAITING).for_each(|number| ahead.leave(0..8, || number));
        assert_eq!(ahead.queue.lock().waiting.len(), MAX_WAITING);
        let first = ahead.take().unwrap();
        assert_eq!((first.node, first.blocks), (0, 0..8));
    }

    #[test]
    fn files_are_told_apart_and_there_are_no_more_than_so_many() {
        let readers = Readers::new();
        let id = |number| InodeId { number, generation: 1, volume: 0 };
        (0..200).for_each(|block| _ = readers.read(id(1), block, 1, 256));
        assert_eq!((readers.read(id(1), 200, 1, 256).0, readers.read(id(2), 201, 1, 256).0), (256, 0));
        for number in 0..3 * (MAX_FILES * SHARDS) as u64 {
            readers.read(id(number), 0, 1, 256);
        }
        assert!(readers.shards.iter().all(|shard| shard.lock().len() <= MAX_FILES));
    }
}
