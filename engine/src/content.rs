//! The contract of a layout, contents of files: [`Data`].

use std::io::IoSlice;

use crate::error::Result;
use crate::namespace::Names;
use crate::units::Timestamp;

/// The position of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteAt {
    /// At this offset.
    Offset(u64),
    /// At the end of the file at the time of the commit.
    End,
}

/// The durability of a write on return, which only buffering layers read, and the space that it may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// It may wait for a sync.
    Lazy,
    /// It must be durable on return (O_SYNC, O_DSYNC).
    Now,
    /// As [`Durability::Now`], for pages that a kernel accepted before without a reservation. It may take the space
    /// kept for the logs of existing files.
    Accepted,
}

/// The effect of fallocate(2) on the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FallocateMode {
    /// Allocate; holes read as zeros and the size grows to the end of the range.
    Allocate,
    /// Allocate; the size stays.
    AllocateKeepSize,
    /// Free the whole blocks in the range and zero the rest of it; the size stays.
    PunchHole,
    /// Zero the range and keep it allocated; the size grows to its end.
    ZeroRange,
    /// Zero the range and keep it allocated; the size stays.
    ZeroRangeKeepSize,
}

/// The target of a seek.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekTo {
    /// The next byte that is allocated and written.
    Data,
    /// The next byte that is not allocated or not written, the end of the file at the latest.
    Hole,
}

/// File contents.
pub trait Data: Names {
    /// Reads up to `buf.len()` bytes at `offset`. The count is smaller only at the end of the file. Holes read as
    /// zeros. `now`, if given, updates atime by the rules of relatime.
    fn read(&self, node: &Self::Node, offset: u64, buf: &mut [u8], now: Option<Timestamp>) -> Result<usize>;

    /// Writes all of `data`, in order, as one operation, and returns its offset. Blocks that a file has, allocated or
    /// written, can be written on a full device, too.
    fn write(
        &self,
        node: &Self::Node,
        at: WriteAt,
        data: &[IoSlice<'_>],
        durability: Durability,
        now: Timestamp,
    ) -> Result<u64>;

    /// Allocates, frees or zeroes a range.
    fn fallocate(
        &self,
        node: &Self::Node,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        now: Timestamp,
    ) -> Result<()>;

    /// The next data or hole at or after `offset`; [`NoSuchOffset`](crate::Kind::NoSuchOffset) beyond the last.
    fn seek(&self, node: &Self::Node, offset: u64, to: SeekTo) -> Result<u64>;

    /// Makes everything about this inode durable.
    fn sync(&self, node: &Self::Node) -> Result<()>;

    /// A handle that could write was closed. A buffering layer writes data that must survive from then on: new
    /// contents of a file that was truncated.
    fn closed(&self, node: &Self::Node) -> Result<()>;

    /// Makes everything durable.
    fn sync_all(&self) -> Result<()>;
}
