//! Space for what a buffer above has accepted.
//!
//! It is written later, to persistent memory or to a tier, and always finds space then: what it may take is set aside. Were
//! that all of memory, a buffer could hold no more than a small memory has free, whatever room the tiers have. So most of it
//! is set aside on the tiers: what finds memory full moves other blocks down there. A part for the entries that will say
//! where it is, is set aside in memory.
//!
//! Nobody else may take the last room of the tiers below that: see [`MoverFs::take_on`].

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicBool, Ordering};
use nacre_engine::{Block, Error, Kind, Result, TierRun, Tiered};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;

use crate::fs::MoverFs;
use crate::keeper::Why;

/// Of so many blocks that are set aside one is of persistent memory: it takes 63 entries of a log, each of which is for one
/// block at least, for which two were asked.
const SHARE: u64 = 64;
/// Blocks of tiers that are looked for at once: who sets aside does so for every write.
const AT_ONCE: u64 = 4096;

/// What is set aside on tiers, and in memory beside that, in blocks. What else is set aside in memory only the layout knows.
#[derive(Debug, Default)]
pub(crate) struct Promises {
    shares: Mutex<Shares>,
    /// Whether there are any: where there are no tiers nobody is to need the lock.
    some: AtomicBool,
}

#[derive(Debug, Default)]
struct Shares {
    here: u64,
    below: u64,
    /// So many more may be set aside on tiers without another look.
    credit: u64,
}

impl Shares {
    /// How much of so many blocks more is to be set aside in memory.
    fn split(&self, blocks: u64) -> u64 {
        ((self.here + self.below + blocks) / SHARE).saturating_sub(self.here).min(blocks)
    }

    /// Gives back so many, those on tiers first; gives how many of them are not on tiers.
    fn give_back(&mut self, blocks: u64) -> u64 {
        let below = blocks.min(self.below);
        self.below -= below;
        self.here = self.here.saturating_sub(blocks - below);
        blocks - below
    }
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> MoverFs<L, D> {
    /// Sets blocks aside.
    pub(crate) fn promise(&self, blocks: u64) -> Result<()> {
        if self.sink.is_on() {
            let mut shares = self.promises.shares.lock();
            let here = shares.split(blocks);
            let below = blocks - here;
            if self.has_credit(&mut shares, below) && self.layout.reserve(here).is_ok() {
                shares.here += here;
                shares.below += below;
                shares.credit -= below;
                self.promises.some.store(true, Ordering::Release);
                return Ok(());
            }
        }
        self.layout.reserve(blocks)
    }

    /// Gives blocks back that were set aside.
    pub(crate) fn end_promise(&self, blocks: u64) {
        // What was set aside on tiers after this look is not what comes back here.
        let here = match self.promises.some.load(Ordering::Acquire) {
            false => blocks,
            true => {
                let mut shares = self.promises.shares.lock();
                let here = shares.give_back(blocks);
                self.promises.some.store(shares.here + shares.below > 0, Ordering::Release);
                here
            }
        };
        if here > 0 {
            self.layout.release(here);
        }
    }

    /// Whether blocks of tiers are set aside.
    pub(crate) fn has_promised_below(&self) -> bool {
        self.promises.some.load(Ordering::Acquire)
    }

    /// Whether memory has room for so many blocks of data that was accepted, when what can move down has. A layout gives such
    /// data its last block, since all that it takes was set aside there. Of this data it was not, and without a block for the
    /// entries that say so nothing could move any more.
    pub(crate) fn has_room_for_promised(&self, blocks: u64) -> Result<bool> {
        let needed = self.layout.promise_cost().block * blocks;
        let has_room = || self.layout.stat().available >= needed;
        Ok(has_room() || self.make_room(needed, Why::Promise)? && has_room())
    }

    /// Blocks of tiers that are set aside.
    pub(crate) fn promised_below(&self) -> u64 {
        self.promises.shares.lock().below
    }

    /// Whether so many blocks more may be set aside on tiers: half of their room at the most, so that others find some.
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

    /// How many blocks of a tier may be [taken](MoverFs::take_on).
    pub(crate) fn room_on(&self, tier: u8, promised: bool) -> u64 {
        let free = self.layout.tier_space(tier).map_or(0, |space| space.free);
        match promised {
            true => free,
            false => free.min(self.room_below().saturating_sub(self.promised_below())),
        }
    }

    /// Takes blocks of a tier. [`NoSpace`](Kind::NoSpace), too, where tiers would have less room behind that than is set aside
    /// there, unless it is `promised`: for what was accepted before, or to make room for that.
    pub(crate) fn take_on(
        &self,
        tier: u8,
        goal: Option<Block>,
        blocks: u64,
        promised: bool,
    ) -> Result<Vec<TierRun>> {
        if promised {
            return self.layout.allocate_on(tier, goal, blocks);
        }
        let mut shares = self.promises.shares.lock();
        // Under the lock: nobody sets aside what is taken here.
        shares.credit = 0;
        if shares.below > 0 && self.room_below() < shares.below + blocks {
            return Err(Error::new(Kind::NoSpace).object(format!("tier {tier}")).advice(
                "what is left is for data that was accepted and waits in DRAM: sync, and try again",
            ));
        }
        self.layout.allocate_on(tier, goal, blocks)
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
            assert_eq!(shares.here, (shares.here + shares.below) / 64);
        }
        assert_eq!((shares.here, shares.below), (11, 717));
        // A hundred more for which tiers had no room.
        let back = [1, 99, 500, 200, 28].map(|blocks| shares.give_back(blocks));
        assert_eq!((back, shares.here, shares.below), ([0, 0, 0, 83, 28], 0, 0));
    }
}
