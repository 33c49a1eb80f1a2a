//! Memory at page boundaries, as transfers past the page cache want it.

use std::fmt;
use std::ops::{Deref, DerefMut};

use nacre_engine::BLOCK_SIZE;

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; BLOCK_SIZE as usize]);

/// Bytes that start at a page boundary, a whole number of pages.
pub struct Pages(Box<[Page]>);

impl Pages {
    /// So many zero bytes, rounded up to whole pages.
    pub fn new(bytes: usize) -> Pages {
        let count = bytes.div_ceil(BLOCK_SIZE as usize);
        Pages(vec![Page([0; BLOCK_SIZE as usize]); count].into_boxed_slice())
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: pages are arrays of bytes without padding, one behind the other.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), size_of_val(&*self.0)) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else has the pages while we have them alone.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), size_of_val(&*self.0)) }
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pages({} bytes)", self.len())
    }
}
