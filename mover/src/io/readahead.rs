//! Read-ahead of files on tiers: the read history, and how much is read ahead because of it.
//!
//! The history is in DRAM, for a limited number of files. If a file's history was dropped, its window grows anew.
//!
//! A read fetches its missing blocks itself, with the rest of its window. The blocks behind that are left to
//! [threads](Ahead::take), if there are any, that fetch them meanwhile. A reader that reaches a block being fetched
//! waits for it.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::ops::Range;

use nacre_engine::sync::atomic::{AtomicBool, Ordering};
use nacre_engine::sync::{Condvar, Mutex, SMALL};
use nacre_engine::{Draw, FileBlock, InodeHasher, InodeId, Place, Result, TierRun, Tiered};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;
use nacre_policy::ReadAhead;

use crate::engine::executor::Moved;
use crate::places::{Places, Reading};

const SHARDS: usize = if SMALL { 1 } else { 64 };

/// Files that a shard knows, at most: 16,384 in all, about 4 MiB.
const MAX_FILES: usize = 256;

/// Ranges that wait to be fetched, at most. Beyond that a reader fetches the blocks itself.
const MAX_WAITING: usize = 64;

type Files = HashMap<InodeId, ReadAhead, BuildHasherDefault<InodeHasher>>;

/// The read history of all files.
pub(crate) struct Readers {
    shards: Box<[Mutex<Files>]>,
    /// Blocks that are fetched at once, at most.
    most: u64,
}

impl Readers {
    pub(crate) fn new(most: u64) -> Readers {
        Readers { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), most }
    }

    /// Notes a read of blocks of a file. Gives how many are to be fetched at once, or 0 for only those that are read;
    /// and the range worth fetching meanwhile.
    pub(crate) fn read(&self, id: InodeId, start: u64, blocks: u64) -> (u64, Range<u64>) {
        let mut files = self.shards[id.number as usize % SHARDS].lock();
        if files.len() >= MAX_FILES && !files.contains_key(&id) {
            // It is unknown which of them is read on: all begin anew.
            files.clear();
        }
        files.entry(id).or_default().read_on(start, blocks, self.most)
    }
}

/// Blocks of a file that will be read soon. It keeps nothing of a file that is removed meanwhile.
#[derive(Debug, PartialEq, Eq)]
pub struct Fetch {
    id: InodeId,
    blocks: Range<u64>,
    /// They were read, and come up to PM; otherwise they come to DRAM.
    up: bool,
}

/// Ranges to be fetched by the read-ahead threads.
pub struct Ahead {
    queue: Mutex<Queue>,
    comes: Condvar,
    /// Read-ahead threads are running.
    is_served: AtomicBool,
}

struct Queue {
    waiting: VecDeque<Fetch>,
    is_over: bool,
}

impl Ahead {
    pub(crate) fn new() -> Ahead {
        Ahead {
            queue: Mutex::new(Queue { waiting: VecDeque::new(), is_over: false }),
            comes: Condvar::new(),
            is_served: AtomicBool::new(false),
        }
    }

    /// Starts read-ahead: from now on threads [take](Ahead::take) ranges.
    pub fn begin(&self) {
        self.queue.lock().is_over = false;
        self.is_served.store(true, Ordering::Relaxed);
    }

    /// Waits for something to fetch; `None` when it is [over](Ahead::end).
    pub fn take(&self) -> Option<Fetch> {
        let mut queue = self.queue.lock();
        while !queue.is_over {
            if let Some(next) = queue.waiting.pop_front() {
                return Some(next);
            }
            self.comes.wait(&mut queue);
        }
        None
    }

    /// Ends read-ahead.
    pub fn end(&self) {
        self.is_served.store(false, Ordering::Relaxed);
        let mut queue = self.queue.lock();
        queue.is_over = true;
        queue.waiting.clear();
        self.comes.notify_all();
    }

    /// Leaves blocks to be fetched, if there are read-ahead threads that are not far behind.
    pub(crate) fn leave(&self, id: InodeId, blocks: Range<u64>) {
        self.leave_fetch(Fetch { id, blocks, up: false });
    }

    /// Leaves blocks to be promoted that were read on a tier.
    pub(crate) fn leave_below(&self, id: InodeId, blocks: Range<u64>) {
        self.leave_fetch(Fetch { id, blocks, up: true });
    }

    fn leave_fetch(&self, fetch: Fetch) {
        if fetch.blocks.is_empty() || !self.is_served.load(Ordering::Relaxed) {
            return;
        }
        let mut queue = self.queue.lock();
        if !queue.is_over && queue.waiting.len() < MAX_WAITING {
            queue.waiting.push_back(fetch);
            self.comes.notify_one();
        }
    }
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Places<L, D> {
    /// See [`TieredFs::fetch`](crate::TieredFs::fetch). The blocks that came up to PM are added to `total`, also before
    /// an error.
    pub(crate) fn fetch(&self, fetch: &Fetch, total: &mut Moved) -> Result<()> {
        let Range { start, end } = fetch.blocks;
        let node = self.layout.node(fetch.id)?;
        if fetch.up {
            let (start, len) = (FileBlock(start), end - start);
            return self.promote_onto(&node, start, len, Draw::Available, |_| true, total);
        }
        let _reading = Reading::begin(&self.layout);
        for found in self.layout.resolve(&node, FileBlock(start), end - start)? {
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

    use super::{Ahead, Fetch, MAX_FILES, MAX_WAITING, Readers, SHARDS};

    fn id(number: u64) -> InodeId {
        InodeId { number, generation: 1, volume: 0 }
    }

    #[test]
    fn what_nobody_fetches_is_not_left_and_what_waits_is_bounded() {
        let ahead = Ahead::new();
        let waiting = || ahead.queue.lock().waiting.len();
        ahead.leave(id(1), 0..8);
        assert_eq!(waiting(), 0);
        // Also when it was over before: who looks after a file system begins and ends.
        for _ in 0..2 {
            ahead.begin();
            std::thread::scope(|scope| {
                let fetching = scope.spawn(|| std::iter::from_fn(|| ahead.take()).count());
                ahead.leave(id(1), 4..4);
                for number in 0..10 {
                    ahead.leave(id(number), 0..8);
                }
                while waiting() > 0 {
                    std::thread::yield_now();
                }
                ahead.end();
                assert_eq!(fetching.join().unwrap(), 10);
            });
            ahead.leave(id(1), 0..8);
            assert!(ahead.take().is_none() && waiting() == 0);
        }
        ahead.begin();
        (0..2 * MAX_WAITING as u64).for_each(|number| ahead.leave(id(number), 0..8));
        assert_eq!(waiting(), MAX_WAITING);
        assert_eq!(ahead.take(), Some(Fetch { id: id(0), blocks: 0..8, up: false }));
    }

    #[test]
    fn files_are_told_apart_and_there_are_no_more_than_so_many() {
        let readers = Readers::new(256);
        (0..200).for_each(|block| _ = readers.read(id(1), block, 1));
        assert_eq!((readers.read(id(1), 200, 1).0, readers.read(id(2), 201, 1).0), (256, 0));
        for number in 0..3 * (MAX_FILES * SHARDS) as u64 {
            readers.read(id(number), 0, 1);
        }
        assert!(readers.shards.iter().all(|shard| shard.lock().len() <= MAX_FILES));
    }
}
