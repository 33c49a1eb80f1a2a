//! A shared layout is a layout, too.

use std::io::IoSlice;
use std::sync::Arc;

use crate::below_buffer::BelowBuffer;
use crate::content::Data;
use crate::error::Result;
use crate::namespace::Names;
use crate::reservation::{Reservation, WriteShape};
use crate::space::Extents;
use crate::units::Timestamp;
use crate::{forward_data, forward_extents, forward_names};

macro_rules! below {
    ($this:ident, |$layout:ident $(, $node:ident)*| $body:expr) => {{
        let $layout = &**$this;
        $body
    }};
}

impl<T: Names> Names for Arc<T> {
    type Node = T::Node;

    fn root(&self) -> T::Node {
        (**self).root()
    }

    forward_names!(below, below:
        node node_by_number id kind let_go park unpark inode_cache lookup parent create create_unnamed link unlink rmdir
        rename read_dir read_link note_read has_guarded getattr size getattr_at setattr get_xattr list_xattrs set_xattr
        remove_xattr);
}

impl<T: Data> Data for Arc<T> {
    forward_data!(below, below: read write fallocate seek sync closed sync_all);
}

impl<T: Extents> Extents for Arc<T> {
    forward_extents!(below, below:
        resolve pin unpin stat index_bytes capabilities);
}

impl<T: BelowBuffer> BelowBuffer for Arc<T> {
    fn reserve_for(&self, shape: &WriteShape) -> Result<Reservation> {
        (**self).reserve_for(shape)
    }

    fn write_back(
        &self,
        node: &T::Node,
        offset: u64,
        data: &[IoSlice<'_>],
        reservation: &Reservation,
        now: Timestamp,
    ) -> Result<()> {
        (**self).write_back(node, offset, data, reservation, now)
    }

    fn write_back_times(
        &self,
        node: &T::Node,
        mtime: Timestamp,
        atime: Option<Timestamp>,
        reservation: &Reservation,
        now: Timestamp,
    ) -> Result<()> {
        (**self).write_back_times(node, mtime, atime, reservation, now)
    }

    fn goes_to_disk(&self, node: &T::Node, offset: u64, len: u64) -> bool {
        (**self).goes_to_disk(node, offset, len)
    }

    fn accepted(&self, node: &T::Node, offset: u64, len: u64) {
        (**self).accepted(node, offset, len);
    }

    fn expect_write(&self, node: &T::Node) -> Result<()> {
        (**self).expect_write(node)
    }

    fn give_up_dram(&self) {
        (**self).give_up_dram();
    }
}
