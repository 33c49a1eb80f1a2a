//! Devices of blocks: the disks below persistent memory.
//!
//! [`BlockDevice`] is the interface; [`RealDisk`] is a file or a block device of the machine, slowed down where it
//! stands for another [`Disk`](crate::disk::Disk); [`SimDisk`] is simulated, and knows its possible contents after a
//! crash. [`Pages`] are buffers that transfers need not copy, [lent](Pages::lent) for one transfer.
//!
//! # What a write promises
//!
//! Nothing until [`BlockDevice::flush`] returns: before that, any of its sectors of 512 bytes may be on the medium or
//! not, in any combination with those of other writes. A read sees every write that returned.

mod buffers;
mod pages;
mod real;
mod ring;
mod sim;
#[cfg(test)]
mod tests;

use nacre_engine::{BLOCK_SIZE, Error, Kind, Result};

use crate::disk::Access;
use crate::token::Durable;

pub use buffers::{MOST_LENT, transfer_memory};
pub use pages::Pages;
pub use real::{DiskOptions, RealDisk};
pub use sim::SimDisk;

/// The unit that a disk writes whole or not at all, in bytes.
pub const SECTOR_SIZE: u64 = 512;

/// Bytes that move between a buffer and a device. Offsets and lengths are multiples of a block.
#[derive(Debug)]
pub enum Transfer<'m> {
    /// From the device.
    Read {
        /// The first byte on the device.
        offset: u64,
        /// Where the bytes go.
        into: &'m mut [u8],
    },
    /// To the device.
    Write {
        /// The first byte on the device.
        offset: u64,
        /// The bytes.
        from: &'m [u8],
    },
}

impl Transfer<'_> {
    /// The first byte on the device.
    pub fn offset(&self) -> u64 {
        match self {
            Transfer::Read { offset, .. } | Transfer::Write { offset, .. } => *offset,
        }
    }

    /// How many bytes.
    pub fn len(&self) -> u64 {
        match self {
            Transfer::Read { into, .. } => into.len() as u64,
            Transfer::Write { from, .. } => from.len() as u64,
        }
    }

    /// True when there is nothing to move.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address of the buffer.
    fn memory(&self) -> *const u8 {
        match self {
            Transfer::Read { into, .. } => into.as_ptr(),
            Transfer::Write { from, .. } => from.as_ptr(),
        }
    }

    fn access(&self) -> Access {
        let (offset, len) = (self.offset(), self.len());
        match self {
            Transfer::Read { .. } => Access::Read { offset, len },
            Transfer::Write { .. } => Access::Write { offset, len },
        }
    }

    fn verb(&self) -> &'static str {
        match self {
            Transfer::Read { .. } => "read",
            Transfer::Write { .. } => "write",
        }
    }

    fn describe(&self, name: &str) -> String {
        format!("{name}: bytes {} to {}", self.offset(), self.offset().saturating_add(self.len()))
    }
}

/// How a device of the machine makes its transfers, the best way first. If the kernel refuses one, or it does not
/// suit a transfer, the device uses the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Io {
    /// Through io_uring, with registered buffers for large transfers.
    RegisteredBuffers,
    /// Through io_uring.
    Ring,
    /// pread and pwrite.
    SystemCalls,
}

impl Io {
    /// Its name for machines.
    pub fn as_str(self) -> &'static str {
        match self {
            Io::RegisteredBuffers => "registered_buffers",
            Io::Ring => "io_uring",
            Io::SystemCalls => "system_calls",
        }
    }
}

/// A device of blocks of 4096 bytes. It may be used by any number of threads at once.
pub trait BlockDevice: Send + Sync {
    /// Its size in bytes, a multiple of a block.
    fn len(&self) -> u64;

    /// True of a device without a block.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its name in messages.
    fn name(&self) -> &str;

    /// How it makes transfers; `None` when it has not found out yet, or is no device of the machine.
    fn io(&self) -> Option<Io> {
        None
    }

    /// Makes all transfers, in any order and as far as the device can at once, and returns when none is under way. They
    /// must not overlap where one of them writes.
    ///
    /// Errors: the first in the order of the slice; the others may have been made or not.
    /// [`Media`](Kind::Media) when the device reports an error or ends early, [`DeviceLost`](Kind::DeviceLost) when
    /// it is gone, [`InvalidInput`](Kind::InvalidInput) for blocks that are not on it.
    fn transfer(&self, batch: &mut [Transfer<'_>]) -> Result<()>;

    /// Makes every write durable that returned before; the proof is for the commit that refers to these writes.
    ///
    /// After an error the content of the medium is unknown: data written since the last flush is to be written again,
    /// elsewhere, or given up.
    fn flush(&self) -> Result<Durable>;

    /// These bytes are not needed any more, and may read as anything. It is a hint: false where the device has no use
    /// for it.
    fn discard(&self, offset: u64, len: u64) -> Result<bool>;

    /// Reads one range.
    #[track_caller]
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.transfer(&mut [Transfer::Read { offset, into }])
    }

    /// Writes one range.
    #[track_caller]
    fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.transfer(&mut [Transfer::Write { offset, from }])
    }
}

/// The transfer is of whole blocks of a device of `len` bytes.
fn check(transfer: &Transfer<'_>, device: &impl BlockDevice) -> Result<()> {
    let (offset, len) = (transfer.offset(), transfer.len());
    let inside = offset.checked_add(len).is_some_and(|end| end <= device.len());
    if inside && offset.is_multiple_of(BLOCK_SIZE) && len.is_multiple_of(BLOCK_SIZE) {
        return Ok(());
    }
    Err(Error::new(Kind::InvalidInput).operation(transfer.verb()).object(format!(
        "{} of {}",
        transfer.describe(device.name()),
        device.len()
    )))
}
