//! The contract between a write buffer and the layer below it: [`BelowBuffer`].

use std::io::IoSlice;

use crate::content::Data;
use crate::error::Result;
use crate::reservation::{Reservation, WriteShape};
use crate::units::Timestamp;

/// A layer below a write buffer. The buffer reserves space for the writes that it accepts, tells of them, and makes them
/// later. [`no_tiers_below_buffer`](crate::no_tiers_below_buffer) has a part of it for a layout without tiers.
pub trait BelowBuffer: Data {
    /// Reserves space for writes of this shape; [`NoSpace`](crate::Kind::NoSpace) if too little is free. It is as much
    /// as [`Capabilities::write_cost`](crate::Capabilities::write_cost) says.
    fn reserve_for(&self, shape: &WriteShape) -> Result<Reservation>;

    /// Writes data that was accepted before, durably. The data and its metadata take reserved space, so that the write
    /// cannot fail for lack of space. Flags set since do not forbid it. If the inode changed since, ctime does not go
    /// back: the write takes that ctime as its time. Other callers may read the bytes that it overwrites before it is
    /// durable.
    fn write_back(
        &self,
        node: &Self::Node,
        offset: u64,
        data: &[IoSlice<'_>],
        reservation: &Reservation,
        now: Timestamp,
    ) -> Result<()>;

    /// Sets the times of a file as [`BelowBuffer::write_back`] writes data: with reserved space, regardless of flags, and
    /// without a ctime that goes back. Without `atime` that time stays. Times that the format cannot hold are clamped.
    fn write_back_times(
        &self,
        node: &Self::Node,
        mtime: Timestamp,
        atime: Option<Timestamp>,
        reservation: &Reservation,
        now: Timestamp,
    ) -> Result<()>;

    /// Whether a write that may wait would go to a slow device. A buffering layer then takes it into DRAM, regardless
    /// of its own policy.
    fn goes_to_disk(&self, node: &Self::Node, offset: u64, len: u64) -> bool;

    /// A buffering layer accepted a write. It comes later, maybe in parts, as [`BelowBuffer::write_back`].
    fn accepted(&self, node: &Self::Node, offset: u64, len: u64);

    /// A buffering layer is about to accept such a write. The layout provides everything it needs besides the reserved
    /// space. On an error the write is not accepted.
    fn expect_write(&self, node: &Self::Node) -> Result<()>;

    /// A buffering layer takes back DRAM that it had lent to the layers below. When this returns, they use at most the
    /// part still lent. It waits for no device and calls no layer above.
    fn give_up_dram(&self);
}

/// The methods of [`BelowBuffer`] that are alike for layouts without tiers: all writes go to PM, and the layout borrows
/// no DRAM.
#[macro_export]
macro_rules! no_tiers_below_buffer {
    () => {
        fn goes_to_disk(&self, _: &Self::Node, _: u64, _: u64) -> bool {
            false
        }

        fn accepted(&self, _: &Self::Node, _: u64, _: u64) {}

        fn expect_write(&self, _: &Self::Node) -> $crate::Result<()> {
            Ok(())
        }

        fn give_up_dram(&self) {}
    };
}
