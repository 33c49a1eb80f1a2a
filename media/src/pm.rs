//! The interface to persistent memory.

use std::ops::Range;

use nacre_engine::Result;

use crate::token::{Durable, Flushed, Stored};

/// Persistent memory: bytes that are loaded and stored at offsets, with explicit flushes and fences.
///
/// Offsets and lengths are in bytes. An access outside `0..len()` is an error
/// ([`InvalidInput`](nacre_engine::Kind::InvalidInput)). A load or store of bytes that the hardware has lost is the
/// error [`Media`](nacre_engine::Kind::Media). No reference to the bytes is ever given out.
///
/// The crash model: an aligned 8-byte store is atomic. Ordinary stores to one line (64 bytes) reach media in order.
/// Non-temporal stores reach it in any combination of their 8-byte words. A line that was not flushed, or flushed and
/// not fenced, may or may not be on media after a crash.
pub trait Pm: Send + Sync {
    /// Size in bytes.
    fn len(&self) -> u64;

    /// True for a device without a byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `buf.len()` bytes at `offset` into `buf`.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Loads the aligned 8 bytes at `offset` atomically (acquire), as a little-endian number.
    fn load_u64(&self, offset: u64) -> Result<u64>;

    /// Stores through the CPU cache, in order of address within each line.
    fn store(&self, offset: u64, bytes: &[u8]) -> Result<Stored>;

    /// Copies past the CPU cache with the widest non-temporal stores that the CPU has. Parts of a line at the edges
    /// that are not multiples of 8 bytes are stored and flushed.
    ///
    /// Media errors refuse stores as they refuse loads. Only a copy, or zeros, that cover a whole aligned block of 4096
    /// bytes are written over them, where the system can clear them. Such a block may then be durable before a fence.
    fn copy(&self, offset: u64, bytes: &[u8]) -> Result<Flushed>;

    /// Fills with zeros past the CPU cache.
    fn zero(&self, offset: u64, len: u64) -> Result<Flushed>;

    /// Starts writing back the lines of a store.
    fn flush(&self, stored: Stored) -> Flushed;

    /// Starts writing back the lines of several stores; a line that neighbours share, in the order of their
    /// addresses, once.
    #[track_caller]
    fn flush_all(&self, stored: impl IntoIterator<Item = Stored>) -> Option<Flushed> {
        let mut stored = stored.into_iter();
        let mut before = stored.next()?;
        for next in stored {
            match before.with(next) {
                Ok(both) => before = both,
                Err((alone, next)) => {
                    // The last one's flush stands for all of them.
                    self.flush(alone).may_be_lost();
                    before = next;
                }
            }
        }
        Some(self.flush(before))
    }

    /// Waits until everything that this thread flushed is durable.
    fn fence(&self, flushed: Flushed) -> Durable;

    /// Publishes what `after` proves durable: the aligned 8 bytes at `offset` become `value` at once (release).
    fn publish_u64(&self, offset: u64, value: u64, after: Durable) -> Result<Stored>;

    /// Publishes what `after` proves durable by an entry that validates itself: `bytes` (whole lines at a line's
    /// start) are copied past the CPU cache; the entry counts only when all of it is there.
    fn publish_entry(&self, offset: u64, bytes: &[u8], after: Durable) -> Result<Flushed>;

    /// Ranges that are known to be bad before anything accesses them: from the kernel's list of the device, and from
    /// its signals to this process. Empty where no list is kept.
    fn known_errors(&self) -> Vec<Range<u64>> {
        Vec::new()
    }

    /// Other processes may write to other parts of the device.
    fn is_shared(&self) -> bool {
        false
    }

    /// True when the layout shall make the mistake with this number here, so that a test can be seen to find it. Only
    /// simulated memory ever asks for one; over any other the answer is a constant, and the mistake is not compiled.
    #[inline(always)]
    fn is_seeded(&self, _mistake: u32) -> bool {
        false
    }
}

/// Forwards the interface through a pointer.
macro_rules! forward_pm {
    ($pointer:ty) => {
        impl<P: Pm + ?Sized> Pm for $pointer {
            #[inline]
            fn len(&self) -> u64 {
                (**self).len()
            }

            fn is_shared(&self) -> bool {
                (**self).is_shared()
            }

            #[inline]
            fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
                (**self).read(offset, buf)
            }

            #[inline]
            fn load_u64(&self, offset: u64) -> Result<u64> {
                (**self).load_u64(offset)
            }

            #[inline]
            #[track_caller]
            fn store(&self, offset: u64, bytes: &[u8]) -> Result<Stored> {
                (**self).store(offset, bytes)
            }

            #[inline]
            #[track_caller]
            fn copy(&self, offset: u64, bytes: &[u8]) -> Result<Flushed> {
                (**self).copy(offset, bytes)
            }

            #[inline]
            #[track_caller]
            fn zero(&self, offset: u64, len: u64) -> Result<Flushed> {
                (**self).zero(offset, len)
            }

            #[inline]
            #[track_caller]
            fn flush(&self, stored: Stored) -> Flushed {
                (**self).flush(stored)
            }

            #[inline]
            #[track_caller]
            fn fence(&self, flushed: Flushed) -> Durable {
                (**self).fence(flushed)
            }

            #[inline]
            #[track_caller]
            fn publish_u64(&self, offset: u64, value: u64, after: Durable) -> Result<Stored> {
                (**self).publish_u64(offset, value, after)
            }

            #[inline]
            #[track_caller]
            fn publish_entry(&self, offset: u64, bytes: &[u8], after: Durable) -> Result<Flushed> {
                (**self).publish_entry(offset, bytes, after)
            }

            fn known_errors(&self) -> Vec<Range<u64>> {
                (**self).known_errors()
            }

            #[inline(always)]
            fn is_seeded(&self, mistake: u32) -> bool {
                (**self).is_seeded(mistake)
            }
        }
    };
}

forward_pm!(std::sync::Arc<P>);
forward_pm!(&P);
