//! Telling the devices of tiers which blocks are free, as fstrim(8) asks of a file system.
//!
//! Blocks are taken before the device is told, and given back behind that; otherwise it might forget data that is
//! written meanwhile. Free blocks may be forgotten at any time, after a crash, too, because a new owner could have
//! overwritten them as well. A trim goes by pieces, so that others find room, and takes no
//! [reserved](crate::reservations) blocks.

use std::collections::BTreeSet;
use std::time::Duration;

use nacre_engine::sync::Mutex;
use nacre_engine::{BLOCK_SIZE, Block, Error, Kind, MAX_TIERS, Result, TierState, Tiered};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;

use crate::engine::budget::Budget;
use crate::places::Places;

/// Blocks of a piece, at most: an allocation finds this much less room while the device works. Pieces end at multiples
/// of their length, because devices forget by granules.
const PIECE: u64 = (64 << 20) / BLOCK_SIZE;

/// A piece is at most this part of the free blocks of a tier, or a block, so that a tier that is nearly full does not
/// seem full.
const SHARE: u64 = 16;

/// From one check whether a device is done with a piece to the next.
const WAIT: Duration = Duration::from_millis(2);

/// Where a trim of a tier begins, or goes on; by default at its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrimFrom {
    /// The first block that was not looked at.
    pub block: Block,
    /// The block belongs to a run that is long enough, whose blocks before it were trimmed.
    pub is_within: bool,
}

impl Default for TrimFrom {
    fn default() -> TrimFrom {
        TrimFrom { block: Block(0), is_within: false }
    }
}

/// How far a tier was trimmed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// Bytes that its device was told of.
    pub bytes: u64,
    /// Where the next call goes on; `None` where all was looked at.
    pub next: Option<TrimFrom>,
    /// The device has no use for it, and so it ended.
    pub is_useless: bool,
}

/// Which tiers are trimmed.
#[derive(Debug)]
pub(crate) struct Trims {
    running: Mutex<BTreeSet<u8>>,
    /// By number: held for a piece, while its blocks are taken.
    pieces: Box<[Mutex<()>]>,
}

impl Default for Trims {
    fn default() -> Trims {
        Trims { running: Mutex::default(), pieces: (0..=MAX_TIERS).map(|_| Mutex::default()).collect() }
    }
}

impl Trims {
    fn piece(&self, tier: u8) -> &Mutex<()> {
        &self.pieces[usize::from(tier.min(MAX_TIERS))]
    }

    /// See [`TieredFs::trim`](crate::TieredFs::trim).
    pub(crate) fn trim<L: Tiered<Proof = Durable>, D: BlockDevice + 'static>(
        &self,
        places: &Places<L, D>,
        tier: u8,
        from: TrimFrom,
        least: u64,
        budget: &Budget<'_>,
    ) -> Result<Trimmed> {
        let described = |error: Error| error.operation("trim").object(format!("tier {tier}"));
        if !self.running.lock().insert(tier) {
            return Err(described(Kind::Busy.into()).advice("it is trimmed already"));
        }
        let _running = Running { trims: self, tier };
        let mut done = Trimmed { next: Some(from), ..Trimmed::default() };
        while let Some(from) = done.next.filter(|_| budget.goes_on()) {
            let least = if from.is_within { 1 } else { least.div_ceil(BLOCK_SIZE).max(1) };
            let (next, told) = self.trim_piece(places, tier, from.block, least).map_err(described)?;
            match told {
                Told::Bytes(bytes) => (done.bytes, done.next) = (done.bytes + bytes, next),
                Told::Useless => (done.next, done.is_useless) = (None, true),
            }
        }
        Ok(done)
    }

    /// The first piece of a run of at least so many blocks, and where the next one begins.
    fn trim_piece<L: Tiered<Proof = Durable>, D: BlockDevice + 'static>(
        &self,
        places: &Places<L, D>,
        tier: u8,
        from: Block,
        least: u64,
    ) -> Result<(Option<TrimFrom>, Told)> {
        // A drain waits for it, and is seen here before the next one.
        let _piece = self.piece(tier).lock();
        let share = places.layout.tier_space(tier)?.free / SHARE;
        let known = places.layout.tiers();
        if !known.iter().any(|one| one.number == tier && one.state == TierState::Active) {
            return Ok((None, Told::Bytes(0)));
        }
        let most = 1 << share.clamp(1, PIECE).ilog2();
        let found = places.take_for_trim(tier, from, least, most)?;
        let next = found.next.map(|block| TrimFrom { block, is_within: found.is_within });
        let Some(run) = found.run else { return Ok((next, Told::Bytes(0))) };
        let told = places.tiers.discard(run);
        places.layout.put_back_on(run);
        Ok((next, if told? { Told::Bytes(run.len * BLOCK_SIZE) } else { Told::Useless }))
    }

    /// Runs `act`, which must not meet a piece of a tier that is taken and will be free again at once;
    /// [`Busy`](Kind::Busy) while there is one.
    pub(crate) fn without<T>(&self, tier: u8, act: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.piece(tier).try_lock() {
            Some(_piece) => act(),
            None => Err(Error::new(Kind::Busy)
                .object(format!("tier {tier}"))
                .advice("it is trimmed: try it again")),
        }
    }

    /// Waits until no piece of a tier is taken; false where the budget is over before.
    pub(crate) fn outlast(&self, tier: u8, budget: &Budget<'_>) -> bool {
        while self.piece(tier).try_lock().is_none() {
            if !budget.goes_on() {
                return false;
            }
            std::thread::sleep(WAIT);
        }
        true
    }
}

/// One that goes on.
struct Running<'t> {
    trims: &'t Trims,
    tier: u8,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.trims.running.lock().remove(&self.tier);
    }
}

/// The range that a device was told of.
pub(crate) enum Told {
    Bytes(u64),
    Useless,
}
