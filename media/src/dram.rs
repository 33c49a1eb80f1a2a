//! DRAM in huge pages, handed out in frames of a block.
//!
//! Blocks of the write buffer are accessed in any order. In pieces of the heap each of them needs its own entry of
//! the TLB, and walks of page tables cost a fifth of a write to DRAM. The kernel gives huge pages on request, and its
//! own page cache is mapped by them throughout.
//!
//! A [`Frame`] counts its owners, as an `Arc` does. The counts lie together beside the frames, not before each of
//! them, where every access to a count would take a line of the cache more.

use std::alloc::{Layout, handle_alloc_error};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use nacre_engine::BLOCK_SIZE;

use crate::real::map::Mapping;

const BLOCK: usize = BLOCK_SIZE as usize;
/// The most owners of one frame: the counts of a huge page's frames are eight lines of the cache. Threads that add an
/// owner at the same time are fewer than the counts between this and an overflow.
const MOST: u8 = 100;

/// Frames that were allocated together. Their DRAM is freed with the last of them.
struct Region {
    mapping: Mapping,
    /// The number of owners of each frame; 0 when it is not used again.
    counts: Box<[AtomicU8]>,
}

/// A block of DRAM: 4096 bytes at a multiple of that, which any number share, and which the only one to have it may
/// change.
pub struct Frame {
    region: Arc<Region>,
    number: u32,
}

impl Frame {
    /// So many frames of zeros, which lie together. They take DRAM when they are first written to; huge pages take it
    /// 2 MiB at once.
    ///
    /// If the kernel has no addresses for them, that is handled as an allocation error of the heap.
    pub fn allocate(count: u32) -> Vec<Frame> {
        let size = count as usize * BLOCK;
        let Ok(mapping) = Mapping::anonymous(size as u64) else {
            handle_alloc_error(Layout::new::<[u8; BLOCK]>());
        };
        let counts = (0..count).map(|_| AtomicU8::new(1)).collect();
        let region = Arc::new(Region { mapping, counts });
        (0..count).map(|number| Frame { region: Arc::clone(&region), number }).collect()
    }

    /// The bytes, to be changed, if the frame has no other owner.
    pub fn get_mut(&mut self) -> Option<&mut [u8; BLOCK]> {
        // The owner that gave it up has read from it before.
        if self.count().load(Ordering::Acquire) != 1 {
            return None;
        }
        // SAFETY: the address is one of this region, which lives as long as we do; only frames of this number reach these
        // bytes. There is no other, and none can be made of this one while it is borrowed alone.
        Some(unsafe { &mut *self.bytes() })
    }

    /// Drops a frame that is not used again. Its DRAM goes back to the kernel, if it has no other owner.
    pub(crate) fn discard(mut self) {
        if self.get_mut().is_some() {
            // SAFETY: nobody else has the frame, and it ends here: there is no reference to its bytes.
            unsafe { self.region.mapping.discard(u64::from(self.number) * BLOCK_SIZE, BLOCK_SIZE) };
        }
    }

    fn count(&self) -> &AtomicU8 {
        &self.region.counts[self.number as usize]
    }

    fn bytes(&self) -> *mut [u8; BLOCK] {
        // SAFETY: the region has as many blocks as it has counts, and frames with lower numbers only.
        unsafe { self.region.mapping.base().as_ptr().add(self.number as usize * BLOCK).cast() }
    }
}

impl Deref for Frame {
    type Target = [u8; BLOCK];

    fn deref(&self) -> &[u8; BLOCK] {
        // SAFETY: the address is one of this region, which lives as long as we do, and its bytes were zeros or written since.
        // Nobody changes them while there is a frame that is not borrowed alone: see `get_mut`.
        unsafe { &*self.bytes() }
    }
}

impl Clone for Frame {
    fn clone(&self) -> Frame {
        // Ours keeps it alive: nothing depends on when others see this.
        let before = self.count().fetch_add(1, Ordering::Relaxed);
        assert!(before < MOST, "a frame is had by few");
        Frame { region: Arc::clone(&self.region), number: self.number }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        self.count().fetch_sub(1, Ordering::Release);
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({} of {})", self.number, self.region.counts.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::{BLOCK, Frame};

    #[test]
    fn frames_are_zeros_at_block_boundaries_that_do_not_touch() {
        let mut frames = Frame::allocate(600);
        assert_eq!(frames.len(), 600);
        for (number, frame) in frames.iter_mut().enumerate() {
            assert!(frame.as_ptr().addr().is_multiple_of(BLOCK) && frame.iter().all(|&byte| byte == 0));
            frame.get_mut().expect("nobody else has it").fill(number as u8);
        }
        for (number, frame) in frames.iter().enumerate() {
            assert!(frame.iter().all(|&byte| byte == number as u8), "{frame:?}");
        }
    }

    #[test]
    fn who_shares_a_frame_does_not_change_it() {
        let mut frames = Frame::allocate(2);
        let (mut second, mut first) = (frames.pop().unwrap(), frames.pop().unwrap());
        let mut copy = first.clone();
        assert!(first.get_mut().is_none() && copy.get_mut().is_none());
        second.get_mut().expect("another one").fill(2);
        assert!(copy.iter().all(|&byte| byte == 0), "{copy:?}");
        drop(first);
        copy.get_mut().expect("the only one now")[0] = 1;
        drop(second);
        // Its region lives on with it.
        assert_eq!(copy.clone()[..2], [1, 0]);
    }

    #[test]
    fn what_one_thread_read_another_may_change_when_it_is_given_up() {
        let mut frame = Frame::allocate(1).remove(0);
        let (to_reader, for_reader) = channel::<Frame>();
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || {
                for (round, shared) in for_reader.iter().enumerate() {
                    assert!(shared.iter().all(|&byte| byte == round as u8), "{round}");
                }
            });
            for round in 0..=255 {
                loop {
                    if let Some(bytes) = frame.get_mut() {
                        bytes.fill(round);
                        break;
                    }
                    std::thread::yield_now();
                }
                to_reader.send(frame.clone()).expect("the reader lives");
            }
            drop(to_reader);
            reader.join().expect("what was shared did not change");
        });
    }
}
