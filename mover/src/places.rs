//! Where blocks of files are and can be: the layout, the devices of its tiers, and the space reserved on both.
//!
//! Everything that reads, writes or relocates blocks works on [`Places`]. Nothing here decides what moves.

use std::sync::Arc;

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use nacre_engine::{
    BLOCK_SIZE, Error, FileBlock, Kind, Movable, Names, Place, PlacedExtent, Result, SeekTo, Tier, TierRead,
    TierRun, TierState, Tiered,
};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;
use nacre_tiers::TierSet;

use crate::reservations::Reservations;
use crate::settings::Settings;

/// The extended attribute that pins a file, independent of its value. Files and directories inherit it from the
/// directory that they are made in.
pub const PIN: &[u8] = b"user.nacre.pin";

/// Blocks of a file that are resolved at once.
const RESOLVED_AT_ONCE: u64 = 1 << 16;

/// The layout, the devices of its tiers, and reservations over both.
pub(crate) struct Places<L, D> {
    pub(crate) layout: L,
    pub(crate) tiers: Arc<TierSet<D>>,
    pub(crate) reservations: Arc<Reservations>,
    pub(crate) settings: Arc<Settings>,
    /// Operations that wait for room on PM.
    pub(crate) waiting: AtomicU64,
    /// Held while the list of tiers changes.
    pub(crate) changing: Mutex<()>,
    /// There are tiers, or were since the mount: otherwise nothing is sampled or moved.
    has_tiers: AtomicBool,
    /// Which of the tiers of one rank is next.
    turn: AtomicUsize,
}

/// Blocks of tiers that are freed while this lives are not used again.
pub(crate) struct Reading<'l, L: Tiered> {
    layout: &'l L,
    ticket: u64,
}

impl<'l, L: Tiered> Reading<'l, L> {
    pub(crate) fn begin(layout: &'l L) -> Reading<'l, L> {
        Reading { layout, ticket: layout.begin_reads() }
    }
}

impl<L: Tiered> Drop for Reading<'_, L> {
    fn drop(&mut self) {
        self.layout.end_reads(self.ticket);
    }
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Places<L, D> {
    /// Over a mounted layout, none of whose tiers is attached yet.
    pub(crate) fn new(layout: L, tiers: Arc<TierSet<D>>, settings: Arc<Settings>) -> Places<L, D> {
        Places {
            layout,
            tiers,
            reservations: Arc::default(),
            settings,
            waiting: AtomicU64::new(0),
            changing: Mutex::new(()),
            has_tiers: AtomicBool::new(false),
            turn: AtomicUsize::new(0),
        }
    }

    /// Whether there are tiers, or were since the mount.
    #[inline]
    pub(crate) fn has_tiers(&self) -> bool {
        self.has_tiers.load(Ordering::Relaxed)
    }

    /// Whether writes may go to disk because of the writes before them.
    #[inline]
    pub(crate) fn predicts(&self) -> bool {
        self.has_tiers() && !self.settings.has_anticache()
    }

    /// There are tiers from now on.
    pub(crate) fn note_tiers(&self) {
        self.has_tiers.store(true, Ordering::Relaxed);
    }

    /// The tiers that blocks can be placed on, the fastest first; behind them those whose reads fail.
    pub(crate) fn usable(&self) -> Vec<Tier> {
        let mut tiers = self.layout.tiers();
        tiers.retain(|tier| tier.state == TierState::Active && self.tiers.takes_writes(tier.number));
        tiers.sort_by_cached_key(|tier| (self.tiers.is_doubtful(tier.number), tier.rank, tier.number));
        tiers
    }

    /// Runs `act`, for which the layout allocates blocks that are not written yet, on tiers that take some.
    pub(crate) fn on_usable<T>(&self, act: impl FnOnce() -> T) -> T {
        let usable = self.usable();
        let is_left_out = |number: &u8| usable.iter().all(|tier| tier.number != *number);
        let others: Vec<u8> =
            self.layout.tiers().iter().map(|tier| tier.number).filter(is_left_out).collect();
        self.layout.set_unusable(&others);
        act()
    }

    /// The same in the order in which new blocks are offered to them: those of one rank take turns, but that blocks go
    /// where those before them in the file are.
    pub(crate) fn takers(&self, before: Option<u8>) -> Vec<Tier> {
        let mut tiers = self.usable();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let key = |tier: &Tier| (self.tiers.is_doubtful(tier.number), tier.rank);
        for alike in tiers.chunk_by_mut(|one, other| key(one) == key(other)) {
            let first = alike.iter().position(|tier| Some(tier.number) == before);
            let first = first.unwrap_or(turn % alike.len());
            alike.rotate_left(first);
        }
        tiers
    }

    /// Blocks of a tier that are in use above the threshold; `None` where that is not known.
    pub(crate) fn excess_on(&self, tier: u8) -> Option<u64> {
        let space = self.layout.tier_space(tier).ok().filter(|space| space.is_counted)?;
        let used = space.blocks.saturating_sub(space.free);
        Some(used.saturating_sub(space.blocks * u64::from(self.settings.now().options.tier_threshold) / 100))
    }

    /// Whether cold files go from a tier to slower ones, where there are such.
    pub(crate) fn is_nearly_full(&self, tier: u8) -> bool {
        self.excess_on(tier).is_some_and(|excess| excess > 0)
    }

    /// See [`TieredFs::usage`](crate::TieredFs::usage).
    pub(crate) fn usage(&self) -> f64 {
        let stat = self.layout.stat();
        100.0 * (stat.blocks - stat.available.min(stat.blocks)) as f64 / stat.blocks.max(1) as f64
    }

    /// Whether an operation waits for room, and so for the mover.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Whether other tiers may take what this one did not: it is full, or its device failed or is gone.
    pub(crate) fn passes_on(&self, tier: u8, error: &Error) -> bool {
        error.kind() == Kind::NoSpace || !self.tiers.takes_writes(tier)
    }

    /// The usage above which logs are compacted, in percent.
    pub(crate) fn log_threshold(&self) -> u8 {
        self.settings.now().options.log_threshold
    }

    pub(crate) fn is_pinned(&self, node: &<L as Names>::Node) -> bool {
        // A file with an unreadable attribute is left alone, too.
        !matches!(self.layout.get_xattr(node, PIN), Err(error) if error.kind() == Kind::NoAttribute)
    }

    /// The value for files and directories made in a directory.
    pub(crate) fn inherited_pin(&self, dir: &<L as Names>::Node) -> Option<Vec<u8>> {
        // Without tiers, too: there may be some later.
        self.layout.get_xattr(dir, PIN).ok()
    }

    /// The first block at `block` or behind it that has data: files may be far larger than their data.
    pub(crate) fn next_data(&self, node: &L::Node, block: u64) -> Result<Option<u64>> {
        match self.layout.seek(node, block.saturating_mul(BLOCK_SIZE), SeekTo::Data) {
            Ok(offset) => Ok(Some((offset / BLOCK_SIZE).max(block))),
            Err(error) if error.kind() == Kind::NoSuchOffset => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The content of blocks from where they were found, one behind the other; all of `content` is written to. Blocks that
    /// changed meanwhile, or went elsewhere, have any content: their version is another one, and their neighbours' is not.
    pub(crate) fn read_all(&self, node: &L::Node, found: &[Movable], content: &mut [u8]) -> Result<()> {
        let mut rest = content;
        for at in found {
            let PlacedExtent { start, len, place } = at.extent;
            let (part, behind) = rest.split_at_mut((len * BLOCK_SIZE) as usize);
            match place {
                Place::Tier { tier, block } => {
                    let extent = TierRun { tier, start: block, len };
                    self.tiers.read(block.offset(), part, extent, 0)?;
                }
                _ => self.read_from_pm(node, start, part)?,
            }
            rest = behind;
        }
        Ok(())
    }

    /// The content of blocks on PM. A block that is on a tier by now is passed over.
    fn read_from_pm(&self, node: &L::Node, start: FileBlock, content: &mut [u8]) -> Result<()> {
        let mut at = 0;
        while at < content.len() {
            let rest = &mut content[at..];
            match self.layout.read_or_resolve(node, start.offset() + at as u64, rest, None)? {
                TierRead::Done(count) => {
                    // The end of the file is in the last block.
                    rest[count..].fill(0);
                    return Ok(());
                }
                TierRead::OnTier { done, .. } => {
                    let block = done..rest.len().min(done + BLOCK_SIZE as usize);
                    at += block.end;
                    rest[block].fill(0);
                }
            }
        }
        Ok(())
    }

    /// Whether some blocks of a file are where `is_there` says. For a file that is on one tier as a whole, `is_tier`
    /// decides without a look-up of its blocks.
    pub(crate) fn has_blocks(
        &self,
        node: &L::Node,
        is_tier: impl Fn(u8) -> bool,
        is_there: impl Fn(&Place) -> bool,
    ) -> bool {
        if let Some(image) = self.layout.log_image_at(node) {
            return is_tier(image.tier);
        }
        let mut at = 0;
        while let Ok(Some(data)) = self.next_data(node, at) {
            let Ok(found) = self.layout.resolve(node, FileBlock(data), RESOLVED_AT_ONCE) else {
                return false;
            };
            if found.iter().any(|extent| is_there(&extent.place)) {
                return true;
            }
            at = data.saturating_add(RESOLVED_AT_ONCE);
        }
        false
    }

    /// Whether a file has any.
    pub(crate) fn has_unwritten(&self, node: &L::Node) -> bool {
        // A file whose log is on a tier has all its blocks there.
        self.layout.log_image_at(node).is_none()
            && self.layout.resolve_unwritten(node, 1).is_ok_and(|found| !found.is_empty())
    }

    /// Whether the log of a file is in PM, as it must be for its blocks to move; an offloaded one is brought back if
    /// there is room.
    pub(crate) fn has_log_at_hand(&self, node: &L::Node) -> bool {
        self.layout.log_image_at(node).is_none()
            || self.usage() <= f64::from(self.log_threshold()) && self.layout.take_log_back(node).is_ok()
    }
}

pub(crate) fn is_on(place: &Place, tier: u8) -> bool {
    matches!(place, Place::Tier { tier: there, .. } if *there == tier)
}
