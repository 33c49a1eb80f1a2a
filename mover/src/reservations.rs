//! Reservations of space for the data that a write buffer above has accepted.
//!
//! Reserved data is written later, to PM or to a tier, and must find space then. With all reservations in PM, a buffer
//! could hold no more than a small PM has free, however much room the tiers have. Most reservations are therefore on
//! the tiers. If reserved data finds PM full, other blocks are demoted, and the same number of reservations moves from
//! the tiers to PM. If nothing can be demoted, the data itself goes to a tier. A part is reserved in PM from the
//! beginning, for the log entries that locate the data and the log pages of these.
//!
//! No other operation may take reserved space. The layout ensures this in PM, [`Places::take_on`] and
//! [`Places::beside_reserved`] on tiers.

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicBool, Ordering};
use nacre_engine::{
    Block, Error, FreeRun, Reservation, ReservedElsewhere, Resource, Result, Tier, TierRun, TierState,
    Tiered, WriteShape,
};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;

use crate::places::Places;

/// One of this many reserved blocks is a PM block. It holds 63 log entries. Each entry covers at least one block, for
/// which two are reserved. The first entries of a small file are in its inode.
const SHARE: u64 = 32;

/// Blocks of tiers for which room is checked at once, because every buffered write makes a reservation.
const AT_ONCE: u64 = 512;

const ADVICE: &str = "the rest is reserved for buffered data: sync, and try again";

/// The reservations since the file system has tiers, in blocks.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    shares: Mutex<Shares>,
    /// Whether there are any reservations. Without tiers no operation takes the lock.
    some: AtomicBool,
}

#[derive(Debug, Default)]
struct Shares {
    /// Reserved in PM; the layout knows of these.
    here: u64,
    /// On tiers.
    below: u64,
    /// So many more may be reserved on tiers without another check.
    credit: u64,
    /// Blocks placed on tiers for reserved data whose reservation was not given back yet.
    placed: u64,
}

impl Shares {
    /// How much of a reservation of this many more blocks must be in PM.
    fn split(&self, blocks: u64) -> u64 {
        ((self.here + self.below + blocks) / SHARE).saturating_sub(self.here).min(blocks)
    }

    /// Gives back a reservation of this many blocks. Reservations on tiers go first, for data that was placed there;
    /// otherwise they would exceed the room of the tiers. Those in PM follow, as far as they exceed their share,
    /// because the other data was most likely written to PM. Gives the number of blocks that are not on tiers.
    fn give_back(&mut self, blocks: u64) -> u64 {
        let went = self.placed.min(blocks);
        self.placed -= went;
        let went = went.min(self.below);
        self.below -= went;
        let left = (self.here + self.below).saturating_sub(blocks - went);
        let here = self.here.saturating_sub(left / SHARE).min(blocks - went);
        let below = (blocks - went - here).min(self.below);
        self.below -= below;
        let here = blocks - went - below;
        self.here = self.here.saturating_sub(here);
        if self.here + self.below == 0 {
            // Blocks that were written again since a part of a write failed counted more than once.
            self.placed = 0;
        }
        here
    }
}

impl ReservedElsewhere for Reservations {
    fn take_back(&self, blocks: u64) -> u64 {
        // Reservations made on tiers after this are not those that come back here.
        if !self.some.load(Ordering::Acquire) {
            return blocks;
        }
        let mut shares = self.shares.lock();
        let here = shares.give_back(blocks);
        self.some.store(shares.here + shares.below > 0, Ordering::Release);
        here
    }
}

/// The shape of so many blocks of PM.
fn on_pm(blocks: u64) -> WriteShape {
    WriteShape { extra: blocks, ..WriteShape::default() }
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Places<L, D> {
    /// Reserves space for writes.
    pub(crate) fn reserve_for(&self, shape: &WriteShape) -> Result<Reservation> {
        if !self.has_tiers() {
            return self.layout.reserve_for(shape);
        }
        let blocks = self.layout.capabilities().write_cost.of(shape);
        let mut shares = self.reservations.shares.lock();
        let here = shares.split(blocks);
        let below = blocks - here;
        let partly = match self.has_credit(&mut shares, below) {
            true => self.layout.reserve_for(&on_pm(here)).ok(),
            false => None,
        };
        let mut reservation = match partly {
            Some(reservation) => {
                shares.below += below;
                shares.credit -= below;
                reservation
            }
            None => self.layout.reserve_for(shape)?,
        };
        shares.here += reservation.blocks();
        reservation.add_elsewhere(blocks - reservation.blocks(), &self.reservations);
        self.reservations.some.store(true, Ordering::Release);
        Ok(reservation)
    }

    /// Whether anything is reserved, in PM or on tiers, since there are tiers.
    pub(crate) fn has_reserved(&self) -> bool {
        self.reservations.some.load(Ordering::Acquire)
    }

    /// This many blocks moved from PM to tiers to make room for reserved data. The same number of reservations moves to
    /// PM: no other operation may take the room, and the tiers have less.
    pub(crate) fn moved_for_reserved(&self, blocks: u64) {
        let mut shares = self.reservations.shares.lock();
        let blocks = blocks.min(shares.below);
        // Where the layout does not have them it is as it was.
        let _ = self.reserve_on_pm(&mut shares, blocks);
    }

    /// This many blocks of reserved data were placed on tiers; their reservation is given back later.
    pub(crate) fn placed_reserved(&self, blocks: u64) {
        if self.has_reserved() {
            self.reservations.shares.lock().placed += blocks;
        }
    }

    /// Moves reservations of this many blocks from the tiers to PM.
    fn reserve_on_pm(&self, shares: &mut Shares, blocks: u64) -> Result<()> {
        self.layout.reserve_for(&on_pm(blocks))?.hand_over();
        shares.here += blocks;
        shares.below -= blocks;
        Ok(())
    }

    /// Runs `act`, which ends placement on a tier, after its reservations have found room on other tiers or in PM. The
    /// lock is held meanwhile, so that no new reservation counts on the tier.
    pub(crate) fn without<T>(&self, tier: u8, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut shares = self.reservations.shares.lock();
        shares.credit = 0;
        let free = |tier: u8| self.layout.tier_space(tier).map_or(0, |space| space.free);
        let others: u64 =
            self.usable().iter().map(|one| one.number).filter(|number| *number != tier).map(free).sum();
        let lacking = shares.below.saturating_sub(others);
        if lacking > 0 {
            self.reserve_on_pm(&mut shares, lacking)
                .map_err(|error| error.object(format!("tier {tier}")).advice(ADVICE))?;
        }
        act()
    }

    /// Runs `act`, which takes at most `blocks` blocks of PM, or of tiers without [`Places::take_on`].
    /// [`NoSpace`](nacre_engine::Kind::NoSpace) when neither PM nor, beside the reservations, the tiers have that many.
    pub(crate) fn beside_reserved<T>(&self, blocks: u64, act: impl FnOnce() -> Result<T>) -> Result<T> {
        if !self.has_tiers() {
            return act();
        }
        let mut shares = self.reservations.shares.lock();
        shares.credit = 0;
        let is_beside = || blocks <= self.room_below().saturating_sub(shares.below);
        if shares.below > 0 && self.layout.stat().available < blocks && !is_beside() {
            return Err(Error::no_space(Resource::Pm, blocks).advice(ADVICE));
        }
        act()
    }

    /// Blocks of tiers that are reserved.
    pub(crate) fn reserved_on_tiers(&self) -> u64 {
        self.reservations.shares.lock().below
    }

    /// Whether this many blocks more may be reserved on tiers: at most half of their room, so that others find some.
    fn has_credit(&self, shares: &mut Shares, blocks: u64) -> bool {
        if shares.credit < blocks {
            let most = (self.room_below() / 2).saturating_sub(shares.below);
            shares.credit = most.min(blocks.max(AT_ONCE));
        }
        shares.credit >= blocks
    }

    /// Free blocks of the tiers that new blocks can be placed on.
    fn room_below(&self) -> u64 {
        let free = |tier: u8| self.layout.tier_space(tier).map_or(0, |space| space.free);
        self.usable().iter().map(|tier| free(tier.number)).sum()
    }

    /// How many blocks of a tier may be [taken](Places::take_on).
    pub(crate) fn room_on(&self, tier: u8, reserved: bool) -> u64 {
        let free = self.layout.tier_space(tier).map_or(0, |space| space.free);
        match reserved {
            true => free,
            false => free.min(self.room_below().saturating_sub(self.reserved_on_tiers())),
        }
    }

    /// Takes blocks of a tier. [`NoSpace`](nacre_engine::Kind::NoSpace) also while the tier is being drained, and when tiers would
    /// have less room left than is reserved there. The latter does not hold for `reserved` blocks: those of reserved
    /// data, or of demotions that make room for it.
    pub(crate) fn take_on(
        &self,
        tier: u8,
        goal: Option<Block>,
        blocks: u64,
        reserved: bool,
    ) -> Result<Vec<TierRun>> {
        let mut shares = self.reservations.shares.lock();
        // Under the lock: no reservation counts on blocks taken here, and a drain begins before or behind it.
        shares.credit = 0;
        let is_draining = |one: &Tier| one.number == tier && one.state == TierState::Draining;
        if self.layout.tiers().iter().any(is_draining) {
            return Err(Error::no_space(Resource::Tier(tier), blocks)
                .object(format!("tier {tier}"))
                .advice("it is being drained: tier drain --cancel places blocks there again"));
        }
        if !reserved && shares.below > 0 && self.room_below() < shares.below + blocks {
            return Err(Error::no_space(Resource::Tier(tier), blocks)
                .object(format!("tier {tier}"))
                .advice(ADVICE));
        }
        self.layout.allocate_on(tier, goal, blocks)
    }

    /// Takes blocks of a tier that are put back soon, as [`Tiered::take_free_on`] does, but none of the reserved ones.
    pub(crate) fn take_for_trim(&self, tier: u8, from: Block, least: u64, most: u64) -> Result<FreeRun> {
        let mut shares = self.reservations.shares.lock();
        shares.credit = 0;
        if shares.below > 0 && self.room_below() < shares.below + most {
            return Ok(FreeRun::default());
        }
        self.layout.take_free_on(tier, from, least, most)
    }
}

#[cfg(test)]
mod tests {
    use super::Shares;

    #[test]
    fn a_part_is_in_memory_and_all_comes_back() {
        let mut shares = Shares::default();
        for blocks in [3, 9, 200, 1, 513, 2] {
            let here = shares.split(blocks);
            assert!(here <= blocks);
            shares.here += here;
            shares.below += blocks - here;
            assert_eq!(shares.here, (shares.here + shares.below) / 32);
        }
        assert_eq!((shares.here, shares.below), (22, 706));
        // A hundred more for which tiers had no room.
        shares.here += 100;
        let back = [1, 99, 500, 200, 28].map(|blocks| shares.give_back(blocks));
        assert_eq!((back, shares.here, shares.below), ([1, 99, 15, 7, 0], 0, 0));
    }

    /// Tiers are full when all is written for which something was reserved there: never is more reserved than they
    /// have.
    #[test]
    fn what_goes_to_tiers_ends_what_is_set_aside_there() {
        // 96 blocks of data, two for each, of which the last were reserved on PM: tiers have 100.
        let mut shares = Shares { here: 92, below: 100, credit: 0, placed: 0 };
        let mut room = 100;
        for _ in 0..96 {
            room -= 1;
            shares.placed += 1;
            shares.give_back(2);
            assert!(shares.below <= room, "{shares:?}, room for {room}");
        }
        assert_eq!((shares.here, shares.below, shares.placed), (0, 0, 0));
    }
}
