//! The mapping of a device into this process.

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// Huge pages need the same alignment of the address and of the offset in the file.
const HUGE_PAGE: u64 = 2 << 20;
/// Bytes that are prefaulted between two looks at the request to stop: about a millisecond of work.
const PREFAULT_STEP: u64 = 4 << 20;

/// How a device was mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    /// A store that was flushed and fenced is on the medium, its file's metadata included.
    Synchronous,
    /// Stores reach the file's page cache.
    PageCache,
    /// No other process sees the stores, and the mapped pages are the process's own.
    Anonymous,
    /// No other process sees the stores: a page that is stored to is copied to DRAM, and the file keeps its content.
    Private,
}

/// A mapping. It does not survive into a forked child and is left out of core dumps.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: u64,
    /// The address range that was reserved to get an aligned base, base and length.
    reserved: (usize, usize),
    writable: bool,
    /// Of a file that stays unchanged.
    is_private: bool,
}

// SAFETY: the mapping is plain memory that belongs to no thread; all accesses to its bytes go through machine code
// that Rust knows nothing about, by raw address.
unsafe impl Send for Mapping {}
// SAFETY: as above; concurrent accesses to the bytes are defined by the machine.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a file, at an address that is a multiple of `align` (a power of two).
    pub(super) fn of_file(
        fd: BorrowedFd<'_>,
        len: u64,
        align: u64,
        writable: bool,
        sharing: Sharing,
    ) -> Result<Mapping, Errno> {
        let flags = match sharing {
            Sharing::Synchronous => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
            Sharing::Private => MapFlags::PRIVATE | MapFlags::NORESERVE,
            _ => MapFlags::SHARED,
        };
        probe(fd, align.min(len), protection(writable), flags)?;
        let mut mapping = Mapping::reserve(len, align, writable, |at, protection| {
            // SAFETY: the address range was reserved by us just now and nothing else lives there.
            unsafe { mmap(at, len as usize, protection, flags | MapFlags::FIXED, fd, 0) }
        })?;
        mapping.is_private = sharing == Sharing::Private;
        Ok(mapping)
    }

    /// Maps `len` bytes of DRAM of this process.
    pub(crate) fn anonymous(len: u64) -> Result<Mapping, Errno> {
        Mapping::reserve(len, HUGE_PAGE, true, |at, protection| {
            // SAFETY: the address range was reserved by us just now and nothing else lives there.
            unsafe { mmap_anonymous(at, len as usize, protection, MapFlags::PRIVATE | MapFlags::FIXED) }
        })
    }

    /// Reserves addresses and has them mapped. If that fails, they stay reserved: the kernel may have removed the
    /// reservation, and another thread may have been given a part of them.
    fn reserve(
        len: u64,
        align: u64,
        writable: bool,
        map: impl FnOnce(*mut c_void, ProtFlags) -> Result<*mut c_void, Errno>,
    ) -> Result<Mapping, Errno> {
        let align = if len >= HUGE_PAGE { align.max(HUGE_PAGE) } else { align } as usize;
        let size = usize::try_from(len).ok().and_then(|len| len.checked_add(align)).ok_or(Errno::NOMEM)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let reserved = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                size,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let base = reserved.map_addr(|address| address.next_multiple_of(align));
        let base_ptr = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        map(base, protection(writable))?;
        let reserved = (reserved.addr(), size);
        let mapping = Mapping { base: base_ptr, len, reserved, writable, is_private: false };
        // A child that wrote to the device would break its one owner's promise; a core dump of it helps nobody.
        mapping.advise(0, len, Advice::LinuxDontFork)?;
        let _ = mapping.advise(0, len, Advice::LinuxDontDump);
        let _ = mapping.advise(0, len, Advice::LinuxHugepage);
        Ok(mapping)
    }

    /// The address of the first byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the DRAM of `offset..offset + len` to the kernel; these are whole pages of an
    /// [anonymous](Mapping::anonymous) mapping. They read as zeros after that. If the kernel refuses, they stay as
    /// they are.
    ///
    /// # Safety
    ///
    /// No reference to these bytes exists.
    pub(crate) unsafe fn discard(&self, offset: u64, len: u64) {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: the range is inside the mapping, which is ours for as long as we live; the caller vouches for its bytes.
        let _ = unsafe {
            madvise(self.base.as_ptr().add(offset as usize).cast(), len as usize, Advice::LinuxDontNeed)
        };
    }

    fn advise(&self, offset: u64, len: u64, advice: Advice) -> Result<(), Errno> {
        debug_assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: the range is inside the mapping, and no advice that is given here changes its bytes.
        unsafe { madvise(self.base.as_ptr().add(offset as usize).cast(), len as usize, advice) }
    }

    /// Makes the pages of `range` present, in pieces, until `stop` is true. Returns how far it came.
    pub(super) fn prefault(&self, range: Range<u64>, stop: &AtomicBool) -> Result<u64, Errno> {
        // To write to what is private would copy all of it.
        let is_written = self.writable && !self.is_private;
        let advice = if is_written { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
        let end = range.end.min(self.len);
        let mut at = (range.start & !4095).min(end);
        while at < end && !stop.load(Ordering::Relaxed) {
            let piece = PREFAULT_STEP.min(end - at);
            match self.advise(at, piece, advice) {
                Ok(()) => at += piece,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(at)
    }
}

fn protection(writable: bool) -> ProtFlags {
    if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ }
}

/// Whether the first `len` bytes of a file can be mapped in this manner. It is tried at an address of the kernel's
/// choice: at a fixed address, the kernel may remove the old mapping before it refuses.
fn probe(fd: BorrowedFd<'_>, len: u64, protection: ProtFlags, flags: MapFlags) -> Result<(), Errno> {
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists, and nobody else knows it.
    unsafe {
        let at = mmap(ptr::null_mut(), len as usize, protection, flags, fd, 0)?;
        munmap(at, len as usize)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (address, size) = self.reserved;
        // SAFETY: the range was mapped by us and every access borrows the owner of this mapping.
        let _ = unsafe { munmap(ptr::with_exposed_provenance_mut(address), size) };
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    use super::Mapping;

    /// A library is one of many in its process: ext4 refuses MAP_SYNC when the reservation is gone already, and what other
    /// threads then mapped there was unmapped with it.
    #[test]
    fn a_refused_mapping_takes_nothing_from_others() {
        const LEN: usize = 1 << 20;
        let mut theirs = None;
        let refused = Mapping::reserve(LEN as u64, 4096, true, |at, _| {
            // SAFETY: nobody uses the reserved addresses; what is mapped there is this test's.
            theirs = Some(unsafe {
                munmap(at, LEN).expect("gone");
                mmap_anonymous(at, LEN, ProtFlags::READ, MapFlags::PRIVATE | MapFlags::FIXED).expect("mapped")
            });
            Err(Errno::OPNOTSUPP)
        });
        assert_eq!(refused.unwrap_err(), Errno::OPNOTSUPP);
        let theirs = theirs.expect("it was called");
        // SAFETY: the advice changes nothing; it is refused where nothing is mapped.
        unsafe { madvise(theirs, LEN, Advice::Normal) }.expect("what they mapped is still there");
        // SAFETY: it is this test's, and used no more.
        unsafe { munmap(theirs, LEN) }.expect("unmapped");
    }
}
