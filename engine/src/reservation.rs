//! Reservations of space, for writes that a buffering layer accepts now and makes later: [`Reservation`].

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

use crate::content::Durability;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The shape of buffered writes: an upper bound of their data, from which a layout knows the space to reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteShape {
    /// Blocks of files. A block that is written in several operations, without a truncation or a hole between them,
    /// counts once.
    pub blocks: u64,
    /// Aligned groups of [`WriteCost::group_blocks`] blocks of a file that have some of these blocks.
    pub groups: u64,
    /// Files with waiting data or waiting times.
    pub files: u64,
    /// Blocks of space in addition, which the caller has counted.
    pub extra: u64,
}

/// An upper bound of the space, in blocks, that a layout needs for buffered writes: data and its metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteCost {
    /// For each block of a file.
    pub block: u64,
    /// Once for all blocks of a file in the same aligned group, while the first of them waits.
    pub group: u64,
    /// Blocks of a file in a group; a power of two.
    pub group_blocks: u64,
    /// Once for each file with waiting data or waiting times.
    pub file: u64,
}

impl WriteCost {
    /// The space for writes of this shape.
    pub const fn of(&self, shape: &WriteShape) -> u64 {
        shape.blocks * self.block + shape.groups * self.group + shape.files * self.file + shape.extra
    }
}

/// Reserved space, in blocks. Dropping it gives the space back.
///
/// A write that [is given it](crate::BelowBuffer::write_back) may take space that no other operation takes. If all
/// waiting writes have the space that `reserve_for` reserved for them, they find space, in any order and beside other
/// operations. A write leaves the reservation as it is, because a layout may need the space once more for another part
/// of the same block. The caller [gives the space back](Reservation::give_back) when nothing of it waits.
///
/// A reservation is in DRAM only: a mount starts without. It does not borrow the layout.
#[derive(Debug, Default)]
#[must_use = "dropping it gives the space back"]
pub struct Reservation {
    blocks: u64,
    account: Option<Arc<ReservedBlocks>>,
}

impl Reservation {
    /// The number of blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Takes a part of it out.
    pub fn split(&mut self, blocks: u64) -> Reservation {
        let mut part = Reservation::default();
        part.take_from(self, blocks);
        part
    }

    /// Adds another one of the same layout.
    pub fn merge(&mut self, mut other: Reservation) {
        let all = other.blocks;
        self.take_from(&mut other, all);
    }

    /// Adds a part of another one of the same layout.
    pub fn take_from(&mut self, other: &mut Reservation, blocks: u64) {
        other.shrink(blocks);
        match (&self.account, &other.account) {
            (Some(own), Some(account)) => assert!(Arc::ptr_eq(own, account), "reservations of two layouts"),
            (None, account) => self.account.clone_from(account),
            (Some(_), None) => {}
        }
        self.blocks += blocks;
    }

    /// Gives a part of it back.
    pub fn give_back(&mut self, blocks: u64) {
        self.shrink(blocks);
        self.end(blocks);
    }

    /// Adds blocks that a layer above the layout has reserved elsewhere. From now on that layer decides which of the
    /// blocks that come back are the layout's, also for other reservations. There is one such layer.
    pub fn add_elsewhere(&mut self, blocks: u64, layer: &Arc<impl ReservedElsewhere + 'static>) {
        if let Some(account) = &self.account {
            let known = account.elsewhere.get_or_init(|| Arc::clone(layer) as Arc<dyn ReservedElsewhere>);
            assert!(std::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(layer)), "two layers above one layout");
            self.blocks += blocks;
        }
    }

    /// Ends the value and keeps its blocks reserved. The layer of [`Reservation::add_elsewhere`] counts them from now
    /// on.
    pub fn hand_over(mut self) {
        self.blocks = 0;
    }

    fn shrink(&mut self, blocks: u64) {
        assert!(self.blocks >= blocks, "{blocks} blocks of {} that are reserved", self.blocks);
        self.blocks -= blocks;
    }

    fn end(&self, blocks: u64) {
        if let Some(account) = self.account.as_ref().filter(|_| blocks > 0) {
            account.take_back(blocks);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.end(self.blocks);
    }
}

/// The account of a layout's reservations: the number of reserved blocks.
#[derive(Debug, Default)]
pub struct ReservedBlocks {
    blocks: AtomicU64,
    elsewhere: OnceLock<Arc<dyn ReservedElsewhere>>,
}

impl ReservedBlocks {
    /// Blocks of the layout that are reserved.
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::SeqCst)
    }

    /// Counts blocks as reserved, and then asks whether so many are free. `None` if not.
    pub fn reserve(self: &Arc<Self>, blocks: u64, are_free: impl FnOnce() -> bool) -> Option<Reservation> {
        self.blocks.fetch_add(blocks, Ordering::SeqCst);
        if are_free() {
            return Some(Reservation { blocks, account: Some(Arc::clone(self)) });
        }
        self.subtract(blocks);
        None
    }

    fn take_back(&self, blocks: u64) {
        match self.elsewhere.get().map_or(blocks, |layer| layer.take_back(blocks)) {
            0 => {}
            own => self.subtract(own),
        }
    }

    fn subtract(&self, blocks: u64) {
        let before = self.blocks.fetch_sub(blocks, Ordering::SeqCst);
        assert!(before >= blocks, "more was given back than was reserved");
    }
}

/// A layer above a layout that has a part of the reservations in another place.
pub trait ReservedElsewhere: Debug + Send + Sync {
    /// Takes reserved blocks back. Returns how many of them are the layout's.
    fn take_back(&self, blocks: u64) -> u64;
}

/// The space that an operation may take.
#[derive(Debug, Clone, Copy)]
pub enum Draw<'r> {
    /// Available space.
    Available,
    /// Available space, and the space kept for the logs of existing files; see [`Durability::Accepted`].
    Accepted,
    /// The layout's reserve for overwriting.
    Overwrite,
    /// Space of a reservation.
    Reserved(&'r Reservation),
}

impl Draw<'_> {
    /// Whether it has a reservation.
    pub fn is_reserved(&self) -> bool {
        matches!(self, Draw::Reserved(_))
    }
}

impl From<Durability> for Draw<'_> {
    fn from(durability: Durability) -> Self {
        match durability {
            Durability::Lazy | Durability::Now => Draw::Available,
            Durability::Accepted => Draw::Accepted,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Reservation, ReservedBlocks, ReservedElsewhere, WriteCost, WriteShape};

    fn reserve(account: &Arc<ReservedBlocks>, blocks: u64) -> Reservation {
        account.reserve(blocks, || true).unwrap()
    }

    #[test]
    fn all_parts_come_back_once() {
        let account = Arc::new(ReservedBlocks::default());
        let mut all = Reservation::default();
        all.merge(reserve(&account, 10));
        all.merge(reserve(&account, 5));
        let part = all.split(4);
        assert_eq!((all.blocks(), part.blocks(), account.blocks()), (11, 4, 15));
        all.give_back(1);
        drop(part);
        assert_eq!((all.blocks(), account.blocks()), (10, 10));
        drop(all);
        assert!(account.reserve(7, || false).is_none());
        assert_eq!(account.blocks(), 0);
    }

    #[test]
    #[should_panic(expected = "reservations of two layouts")]
    fn reservations_of_two_layouts_do_not_mix() {
        let accounts = [(); 2].map(|()| Arc::new(ReservedBlocks::default()));
        let mut one = reserve(&accounts[0], 1);
        one.merge(reserve(&accounts[1], 1));
    }

    /// A layer that has reserved every second block.
    #[derive(Debug)]
    struct Half;

    impl ReservedElsewhere for Half {
        fn take_back(&self, blocks: u64) -> u64 {
            blocks / 2
        }
    }

    #[test]
    fn a_layer_above_decides_which_blocks_come_back() {
        let account = Arc::new(ReservedBlocks::default());
        let mut both = reserve(&account, 3);
        both.add_elsewhere(3, &Arc::new(Half));
        both.give_back(4);
        assert_eq!((both.blocks(), account.blocks()), (2, 1));
        reserve(&account, 2).hand_over();
        drop(both);
        assert_eq!(account.blocks(), 2, "blocks that were handed over stay reserved");
    }

    #[test]
    fn a_shape_has_a_cost() {
        let cost = WriteCost { block: 2, group: 10, group_blocks: 512, file: 1 };
        assert_eq!(cost.of(&WriteShape { blocks: 4, groups: 1, files: 1, extra: 3 }), 22);
    }
}
