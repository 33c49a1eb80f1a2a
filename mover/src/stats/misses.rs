//! Blocks for which readers waited for a disk, because DRAM did not have them. While PM has room below its threshold,
//! they are promoted when that happens a second time to them or their neighbours.
//!
//! They are known by windows of a file, in DRAM, from one tick to the next.

use std::collections::{BTreeMap, HashMap, HashSet};

use nacre_engine::InodeId;
use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicU64, Ordering};
use nacre_policy::temperature::Span;

/// Blocks that are promoted together, where none of them is in DRAM: a disk takes hardly longer for 64 KiB than for 4.
const WINDOW: u64 = 16;

/// Windows that are known between two looks; more are passed over, and missed again.
const MAX_WINDOWS: usize = 4096;

/// Windows that are promoted in a tick: reads of others go first, for some milliseconds each.
const AT_ONCE: usize = 256;

/// Windows that were missed once and are remembered for that, up to twice as many.
const MAX_ONCE: usize = 1 << 15;

/// By file and window, a bit for each block that was waited for.
pub(crate) type Windows = BTreeMap<(InodeId, u64), u16>;

/// The blocks that readers waited for.
#[derive(Default)]
pub(crate) struct Misses {
    noted: Mutex<NotedMisses>,
    bytes: AtomicU64,
}

#[derive(Default)]
struct NotedMisses {
    windows: HashMap<(InodeId, u64), u16>,
    /// Windows of which a block was missed, and none before: blocks read once are not worth a place.
    once: HashSet<(InodeId, u64)>,
    /// Those that were so before these.
    once_before: HashSet<(InodeId, u64)>,
}

impl NotedMisses {
    /// Whether something of a window was missed before, not too long ago.
    fn is_missed_again(&mut self, key: (InodeId, u64)) -> bool {
        if self.once.contains(&key) || self.once_before.contains(&key) {
            return true;
        }
        if self.once.len() >= MAX_ONCE {
            self.once_before = std::mem::take(&mut self.once);
        }
        self.once.insert(key);
        false
    }
}

impl Misses {
    /// Of a read of these blocks so many bytes had to come from a disk.
    pub(crate) fn note(&self, id: InodeId, read: Span, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut noted = self.noted.lock();
        let (first, last) = (read.start / WINDOW, read.end().saturating_sub(1) / WINDOW);
        for window in first..=last.min(first.saturating_add(MAX_WINDOWS as u64)) {
            let key = (id, window);
            if !noted.is_missed_again(key) || noted.windows.len() >= MAX_WINDOWS {
                continue;
            }
            let blocks = read.start.max(window * WINDOW)..read.end().min((window + 1) * WINDOW);
            let bits = blocks.map(|block| 1 << (block % WINDOW)).fold(0, |all, bit: u16| all | bit);
            *noted.windows.entry(key).or_default() |= bits;
        }
    }

    /// Bytes until now, and windows that were missed again since this was asked last, in the order of files and blocks.
    pub(crate) fn take(&self) -> (u64, Windows) {
        let windows = std::mem::take(&mut self.noted.lock().windows);
        // Which of more, chance says.
        (self.bytes.load(Ordering::Relaxed), windows.into_iter().take(AT_ONCE).collect())
    }
}

#[cfg(test)]
mod tests {
    use nacre_engine::InodeId;

    use std::collections::BTreeMap;

    use super::{AT_ONCE, MAX_ONCE, MAX_WINDOWS, Misses, Span, WINDOW};

    #[test]
    fn blocks_are_known_by_window_and_not_more_than_there_is_room_for() {
        let id = |number| InodeId { number, generation: 1, volume: 0 };
        let missed = Misses::default();
        missed.note(id(1), Span { start: 0, len: 2 * WINDOW }, 4096);
        assert_eq!(missed.take(), (4096, BTreeMap::new()), "what is read once stays");
        missed.note(id(1), Span { start: WINDOW - 1, len: 3 }, 4096);
        missed.note(id(1), Span { start: 0, len: 1 }, 4096);
        let (bytes, windows) = missed.take();
        assert_eq!(bytes, 3 * 4096);
        assert_eq!(windows, BTreeMap::from([((id(1), 0), 0x8001), ((id(1), 1), 3)]));
        let read_all = || {
            for number in 0..10 {
                missed.note(id(number), Span { start: 0, len: u64::MAX }, 1);
            }
            let noted = missed.noted.lock();
            (noted.windows.len(), noted.once.len().max(noted.once_before.len()) <= MAX_ONCE)
        };
        assert_eq!([read_all(), read_all()], [(2, true), (MAX_WINDOWS, true)]);
        assert_eq!(missed.take().1.len(), AT_ONCE);
        assert!(missed.take().1.is_empty());
    }
}
