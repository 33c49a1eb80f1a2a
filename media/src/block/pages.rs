//! Buffers at page boundaries, as transfers past the page cache need them.

use std::fmt;
use std::ops::{Deref, DerefMut};

use nacre_engine::BLOCK_SIZE;

use super::buffers::Loan;

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; BLOCK_SIZE as usize]);

/// Bytes that start at a page boundary, a whole number of pages.
pub struct Pages(Memory);

enum Memory {
    Own(Box<[Page]>),
    Lent(Loan),
}

impl Pages {
    /// So many zero bytes, rounded up to whole pages.
    pub fn new(bytes: usize) -> Pages {
        let count = bytes.div_ceil(BLOCK_SIZE as usize);
        Pages(Memory::Own(vec![Page([0; BLOCK_SIZE as usize]); count].into_boxed_slice()))
    }

    /// So many bytes for a transfer, rounded up to whole pages, from the registered pool, which is less work for a
    /// device. The pool is small, so the caller drops them soon. They hold any content, also of other callers. If the
    /// pool has no room, they are as [new](Pages::new).
    pub fn lent(bytes: usize) -> Pages {
        match Loan::of(bytes.next_multiple_of(BLOCK_SIZE as usize)) {
            Some(loan) => Pages(Memory::Lent(loan)),
            None => Pages::new(bytes),
        }
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            // SAFETY: pages are arrays of bytes without padding, one behind the other.
            Memory::Own(pages) => unsafe {
                std::slice::from_raw_parts(pages.as_ptr().cast(), size_of_val(&**pages))
            },
            Memory::Lent(loan) => loan.bytes(),
        }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            // SAFETY: as above, and nobody else has the pages while we have them alone.
            Memory::Own(pages) => unsafe {
                std::slice::from_raw_parts_mut(pages.as_mut_ptr().cast(), size_of_val(&**pages))
            },
            Memory::Lent(loan) => loan.bytes_mut(),
        }
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if matches!(self.0, Memory::Lent(_)) { "lent bytes" } else { "bytes" };
        write!(f, "Pages({} {what})", self.len())
    }
}
