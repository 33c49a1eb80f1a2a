//! The heap of a server: DRAM that it has freed goes back to the system.
//!
//! The allocator of glibc gives back only what lies at the end of a heap. When the kernel forgets a million inodes, the
//! free blocks lie between others, and tens of MiB would stay.

/// Settings of glibc's allocator for a server, as names and values of `GLIBC_TUNABLES`.
///
/// Freed blocks of one size that a thread caches are 7 by default. These blocks lie anywhere in the heap, and each
/// keeps a page or two in use. The free end of each heap stays below the trim threshold. By default that grows to twice
/// the largest block that was ever freed, which is a buffer for requests of 16 MiB. Blocks up to the last size come
/// from a heap, as they do by default once such a buffer was freed: a mapping for each of them would cost page faults.
pub(crate) const SETTINGS: [(&str, &str); 3] = [
    ("glibc.malloc.tcache_count", "2"),
    ("glibc.malloc.trim_threshold", "524288"),
    ("glibc.malloc.mmap_threshold", "33554432"),
];

/// So much more that is free is worth a look at all of the heap.
const STEP: u64 = 1 << 20;

/// Gives back what was freed.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    /// The least free bytes since the last time.
    least: u64,
}

impl Heap {
    /// Gives pages back to the system if much was freed lately. To be called every few seconds.
    pub(crate) fn look(&mut self) {
        let free = free_bytes();
        if self.is_due(free) {
            give_back();
        }
    }

    fn is_due(&mut self, free: u64) -> bool {
        let is_due = free >= self.least.saturating_add(STEP);
        self.least = if is_due { free } else { self.least.min(free) };
        is_due
    }
}

/// Free bytes of all heaps. Those that were given back are among them.
#[cfg(target_env = "gnu")]
fn free_bytes() -> u64 {
    // SAFETY: it takes nothing and returns numbers.
    unsafe { libc::mallinfo2() }.fordblks as u64
}

#[cfg(target_env = "gnu")]
fn give_back() {
    // SAFETY: it takes a number, and changes nothing that is in use.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators give back by themselves, or cannot be asked.
#[cfg(not(target_env = "gnu"))]
fn free_bytes() -> u64 {
    0
}

#[cfg(not(target_env = "gnu"))]
fn give_back() {}

#[cfg(test)]
mod tests {
    use super::{Heap, STEP};

    #[test]
    fn what_is_freed_is_given_back_once() {
        let mut heap = Heap::default();
        let looks = [0, STEP - 1, STEP, STEP, 2 * STEP - 1, 2 * STEP, 100, STEP, STEP + 100];
        let due: Vec<bool> = looks.into_iter().map(|free| heap.is_due(free)).collect();
        assert_eq!(due, [false, false, true, false, false, true, false, false, true]);
    }
}
