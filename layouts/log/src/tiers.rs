//! Free blocks of tiers, of which some are known only once images were read.
//!
//! Free blocks of a tier are found like free blocks of PM: by the checkpoint, or by reading the logs. A part
//! that all layouts share keeps the free blocks; here are the tiers on which nothing is free until images were counted.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::AtomicU64;

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicBool, Ordering};
use nacre_engine::{Block, Result, TierRun, TierSpace};
use nacre_layout_parts::tiers::TierSpaces;

use crate::alloc::{Run, for_each_mask};
use crate::blockmap::Piece;
use crate::format::place;
use crate::image::{Image, Whose};
use crate::places::Reach;

/// The tiers of a mounted file system.
#[derive(Default)]
pub(crate) struct Tiers {
    spaces: TierSpaces,
    /// Tiers whose images name blocks that are not counted since a crash.
    uncounted: Mutex<BTreeMap<u8, Uncounted>>,
    /// There are such.
    has_uncounted: AtomicBool,
    /// Leaked blocks (in use without an owner) of each tier, so that the next mount is to count.
    leaks: Mutex<BTreeMap<u8, u64>>,
}

impl Deref for Tiers {
    type Target = TierSpaces;

    fn deref(&self) -> &TierSpaces {
        &self.spaces
    }
}

/// A tier on which nothing is free until images were read.
struct Uncounted {
    /// Blocks that logs and images name, and those of them that were counted.
    marks: Vec<AtomicU64>,
    /// Images that were not counted: of which inode, its generation, and the image.
    images: BTreeMap<u64, (u32, Image)>,
    /// All were looked at: those that are still there cannot be read, and nothing is free as long as they are.
    is_read: bool,
    /// Two name one block: then the free blocks are unknown.
    is_contradictory: bool,
}

impl Tiers {
    /// Tiers on which nothing is free yet.
    pub(crate) fn new(reach: &Reach) -> Result<Tiers> {
        Ok(Tiers { spaces: TierSpaces::new(reach.tiers())?, ..Tiers::default() })
    }

    /// These blocks are not in use: for a mount that looks for the free blocks.
    pub(crate) fn found_free(&self, run: TierRun) {
        if self.has_uncounted.load(Ordering::Acquire)
            && let Some(uncounted) = self.uncounted.lock().get(&run.tier)
        {
            for_each_mask(run.start.0, run.len, |word, mask| {
                uncounted.marks[word].fetch_and(!mask, Ordering::Relaxed);
            });
            return;
        }
        self.put_back(run);
    }

    /// Frees blocks, as soon as no read can be using them.
    pub(crate) fn free(&self, run: TierRun) {
        self.spaces.free(run).into_iter().for_each(|run| self.found_free(run));
    }

    pub(crate) fn end_reads(&self, ticket: u64) {
        self.spaces.end_reads(ticket).into_iter().for_each(|run| self.found_free(run));
    }

    pub(crate) fn space(&self, tier: u8) -> Result<TierSpace> {
        let space = self.spaces.space(tier)?;
        let is_counted =
            !self.has_uncounted.load(Ordering::Acquire) || !self.uncounted.lock().contains_key(&tier);
        let leaked = self.leaks.lock().get(&tier).copied().unwrap_or(0);
        Ok(TierSpace { is_counted, leaked, ..space })
    }

    /// Nothing is free on a tier until these images were read. The marks are of all else that is in use there.
    pub(crate) fn leave_uncounted(
        &self,
        tier: u8,
        marks: Vec<AtomicU64>,
        images: impl IntoIterator<Item = (Whose, Image)>,
    ) {
        let images = images.into_iter();
        let images = images.map(|(whose, image)| (whose.number, (whose.generation, image))).collect();
        self.uncounted
            .lock()
            .insert(tier, Uncounted { marks, images, is_read: false, is_contradictory: false });
        self.has_uncounted.store(true, Ordering::Release);
    }

    /// Images on a tier may not be read for files, since its blocks are still to be counted.
    pub(crate) fn waits_for_count(&self, tier: u8) -> bool {
        self.has_uncounted.load(Ordering::Acquire)
            && self.uncounted.lock().get(&tier).is_some_and(|uncounted| !uncounted.is_read)
    }

    /// The images that are to be counted, as they lie on the tier; nothing where all were looked at.
    pub(crate) fn uncounted_images(&self, tier: u8) -> Option<Vec<(Whose, Image)>> {
        let all = self.uncounted.lock();
        let uncounted = all.get(&tier).filter(|uncounted| !uncounted.is_read)?;
        let whose =
            |(&number, &(generation, image)): (&u64, &(u32, Image))| (Whose { number, generation }, image);
        let mut images: Vec<_> = uncounted.images.iter().map(whose).collect();
        images.sort_unstable_by_key(|(_, image)| image.run.start);
        Some(images)
    }

    /// Counts the blocks that the image of an inode names, if that is still to be done.
    pub(crate) fn count_image(&self, tier: u8, inode: u64, extents: &[Piece]) {
        if !self.has_uncounted.load(Ordering::Acquire) {
            return;
        }
        let mut all = self.uncounted.lock();
        let Some(uncounted) = all.get_mut(&tier) else { return };
        if uncounted.images.remove(&inode).is_none() {
            return;
        }
        let mut twice = false;
        for piece in extents {
            for_each_mask(piece.place & place::BLOCK_MASK, piece.len, |word, mask| {
                twice |= uncounted.marks[word].fetch_or(mask, Ordering::Relaxed) & mask != 0;
            });
        }
        uncounted.is_contradictory |= twice;
        self.end_count(&mut all, tier);
    }

    /// All images of a tier were looked at. True when two of them name one block.
    pub(crate) fn all_are_read(&self, tier: u8) -> bool {
        let mut all = self.uncounted.lock();
        let Some(uncounted) = all.get_mut(&tier) else { return false };
        uncounted.is_read = true;
        let is_contradictory = uncounted.is_contradictory;
        self.end_count(&mut all, tier);
        is_contradictory
    }

    /// When all images of a tier are counted, the unmarked blocks are free.
    fn end_count(&self, all: &mut BTreeMap<u8, Uncounted>, tier: u8) {
        let is_counted = |one: &Uncounted| one.is_read && one.images.is_empty() && !one.is_contradictory;
        if !all.get(&tier).is_some_and(is_counted) {
            return;
        }
        let Some(uncounted) = all.remove(&tier) else { return };
        self.with(tier, |alloc| {
            for_each_unmarked(&uncounted.marks, 1, alloc.blocks(), |run| alloc.free(run));
        });
        self.has_uncounted.store(!all.is_empty(), Ordering::Release);
    }

    /// An inode is gone: its image need not be counted. False when it was.
    pub(crate) fn forget_uncounted(&self, tier: u8, inode: u64) -> bool {
        if !self.has_uncounted.load(Ordering::Acquire) {
            return false;
        }
        let mut all = self.uncounted.lock();
        let was_there = all.get_mut(&tier).is_some_and(|one| one.images.remove(&inode).is_some());
        self.end_count(&mut all, tier);
        was_there
    }

    /// The next mount is to count the free blocks, because so many more of a tier are in use without an owner.
    pub(crate) fn count_at_next_mount(&self, tier: u8, blocks: u64) {
        *self.leaks.lock().entry(tier).or_default() += blocks;
    }

    /// Whether all that is free is known to be.
    pub(crate) fn is_counted(&self) -> bool {
        self.leaks.lock().is_empty() && !self.has_uncounted.load(Ordering::Acquire)
    }
}

/// Calls `visit` with the runs of blocks from `first` to before `end` that are not marked.
pub(crate) fn for_each_unmarked(marks: &[AtomicU64], first: u64, end: u64, mut visit: impl FnMut(Run)) {
    let mut start = None;
    for block in first..=end {
        let free =
            block < end && marks[(block / 64) as usize].load(Ordering::Relaxed) >> (block % 64) & 1 == 0;
        match (free, start) {
            (true, None) => start = Some(block),
            (false, Some(first)) => {
                visit(Run { start: Block(first), len: block - first });
                start = None;
            }
            _ => {}
        }
    }
}
