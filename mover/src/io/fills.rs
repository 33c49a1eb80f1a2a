//! First writes of blocks that a file has on a tier, allocated and not written.
//!
//! Such a write puts whole blocks where they are, with zeros around its own bytes. Two of them at one block would each
//! overwrite the bytes of the other. So a write waits for those of the same blocks of the same file, and for no other:
//! it may take as long as a disk needs.

use std::ops::Range;

use nacre_engine::InodeId;
use nacre_engine::sync::{Condvar, Mutex};

/// The ranges of files that are being written.
#[derive(Default)]
pub(crate) struct Fills {
    /// At most one for each thread that writes.
    ranges: Mutex<Vec<(InodeId, Range<u64>)>>,
    ended: Condvar,
}

/// A range of a file is written as long as this lives.
pub(crate) struct Fill<'f> {
    fills: &'f Fills,
    id: InodeId,
    blocks: Range<u64>,
}

impl Fills {
    /// Waits until no other thread writes any of these blocks.
    pub(crate) fn begin(&self, id: InodeId, blocks: Range<u64>) -> Fill<'_> {
        let mut ranges = self.ranges.lock();
        let meets = |(of, other): &(InodeId, Range<u64>)| {
            *of == id && other.start < blocks.end && blocks.start < other.end
        };
        while ranges.iter().any(meets) {
            self.ended.wait(&mut ranges);
        }
        ranges.push((id, blocks.clone()));
        Fill { fills: self, id, blocks }
    }
}

impl Drop for Fill<'_> {
    fn drop(&mut self) {
        let mut ranges = self.fills.ranges.lock();
        let is_this = |(of, range): &(InodeId, Range<u64>)| *of == self.id && *range == self.blocks;
        if let Some(at) = ranges.iter().position(is_this) {
            ranges.swap_remove(at);
        }
        self.fills.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use nacre_engine::InodeId;

    use super::Fills;

    #[test]
    fn a_write_waits_for_the_same_blocks_alone() {
        let id = |number| InodeId { number, generation: 1, volume: 0 };
        let (fills, has_waited) = (Fills::default(), AtomicBool::new(false));
        let first = fills.begin(id(1), 10..20);
        // Neighbours, and the same blocks of another file.
        drop((fills.begin(id(1), 0..10), fills.begin(id(1), 20..30), fills.begin(id(2), 10..20)));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let _second = fills.begin(id(1), 19..21);
                has_waited.store(true, Ordering::SeqCst);
            });
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!has_waited.load(Ordering::SeqCst));
            drop(first);
            waiting.join().expect("it ends");
        });
        assert!(has_waited.into_inner() && fills.ranges.lock().is_empty());
    }
}
