//! The contract between a write buffer and the layer below it: [`BelowBuffer`].

use crate::content::Data;
use crate::error::Result;

/// A layer below a write buffer: the buffer asks for the place of a write, and tells of the writes that it accepts. A
/// layout without tiers implements it by [`no_tiers_below_buffer`](crate::no_tiers_below_buffer).
pub trait BelowBuffer: Data {
    /// Whether a write that may wait would go to a slow device. A buffering layer then takes it into DRAM, regardless
    /// of its own policy.
    fn goes_to_disk(&self, node: &Self::Node, offset: u64, len: u64) -> bool;

    /// A buffering layer accepted a write. It comes later, maybe in parts, as `Durability::Promised`.
    fn accepted(&self, node: &Self::Node, offset: u64, len: u64);

    /// A buffering layer is about to accept such a write. The layout provides everything it needs besides the reserved
    /// space. On an error the write is not accepted.
    fn expect_write(&self, node: &Self::Node) -> Result<()>;

    /// A buffering layer takes back DRAM that it had lent to the layers below. When this returns, they use at most the
    /// part still lent. It waits for no device and calls no layer above.
    fn give_up_dram(&self);
}

/// Implements [`BelowBuffer`] for a layout without tiers: all its writes go to PM, and it borrows no DRAM.
#[macro_export]
macro_rules! no_tiers_below_buffer {
    ($layout:ty $(where $param:ident: $bound:path)?) => {
        impl $(<$param: $bound + 'static>)? $crate::BelowBuffer for $layout {
            fn goes_to_disk(&self, _: &Self::Node, _: u64, _: u64) -> bool {
                false
            }

            fn accepted(&self, _: &Self::Node, _: u64, _: u64) {}

            fn expect_write(&self, _: &Self::Node) -> $crate::Result<()> {
                Ok(())
            }

            fn give_up_dram(&self) {}
        }
    };
}
