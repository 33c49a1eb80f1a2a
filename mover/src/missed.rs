//! Blocks that readers waited for a disk for, because DRAM did not have them: they get a place in persistent memory while it
//! has room below its threshold.
//!
//! They are known by windows of a file, in DRAM, from one look of the mover to the next.

use std::collections::{BTreeMap, HashMap};

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicU64, Ordering};
use nacre_engine::{Block, Durability, FileBlock, InodeId, Place, PlacedExtent, Result, Tiered};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;

use crate::fs::MoverFs;
use crate::keeper::Keeper;
use crate::predict::Span;
use crate::status::{Doing, Way};

/// Blocks that come up together, where none of them is in DRAM: a disk takes hardly longer for 64 KiB than for 4.
const WINDOW: u64 = 16;
/// Windows that are known between two looks; more are passed over, and missed again.
const MAX_WINDOWS: usize = 4096;

/// By file and window, a bit for each block that was waited for.
type Windows = HashMap<(InodeId, u64), u16>;

/// What was waited for.
#[derive(Default)]
pub(crate) struct Missed {
    windows: Mutex<Windows>,
    bytes: AtomicU64,
}

impl Missed {
    /// Of a read of these blocks so many bytes had to come from a disk.
    pub(crate) fn note(&self, id: InodeId, read: Span, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut windows = self.windows.lock();
        for block in read.start..read.end() {
            let key = (id, block / WINDOW);
            if windows.len() >= MAX_WINDOWS && !windows.contains_key(&key) {
                return;
            }
            *windows.entry(key).or_default() |= 1 << (block % WINDOW);
        }
    }

    /// Bytes until now, and the windows since this was asked last, in the order of files and blocks.
    pub(crate) fn take(&self) -> (u64, BTreeMap<(InodeId, u64), u16>) {
        let windows = std::mem::take(&mut *self.windows.lock());
        (self.bytes.load(Ordering::Relaxed), windows.into_iter().collect())
    }
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> MoverFs<L, D> {
    /// Brings up what was waited for, where that is worth it and there is room; gives the number of blocks.
    pub(crate) fn raise_missed(
        &self,
        keeper: &mut Keeper,
        windows: BTreeMap<(InodeId, u64), u16>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<u64> {
        let mut total = 0;
        for ((id, window), missed) in windows {
            let most = keeper.balance.left_of_missed().min(self.room_below_threshold());
            if most < WINDOW || keeper.allowance <= 0 || !self.may_move() || !goes_on() {
                break;
            }
            match self.raise_window(id, window * WINDOW, missed) {
                Ok(0) => {}
                Ok(moved) => {
                    total += moved;
                    keeper.account_missed(moved);
                    self.note_raised(keeper, id, moved);
                }
                Err(error) => {
                    if let Some(error) = keeper.passed_by(id, error) {
                        return Err(error);
                    }
                }
            }
        }
        Ok(total)
    }

    /// Brings up what of a window was waited for, or would be; gives the number of blocks.
    fn raise_window(&self, id: InodeId, start: u64, missed: u16) -> Result<u64> {
        let node = self.layout.node(id)?;
        if self.is_pinned(&node) {
            return Ok(0);
        }
        let _doing = self.begin(Doing { inode: id.number, files: 1, way: Way::Raised });
        let mut spans: Vec<Span> = Vec::new();
        for PlacedExtent { start: first, len, place } in
            self.layout.resolve(&node, FileBlock(start), WINDOW)?
        {
            let Place::Tier { tier, block } = place else { continue };
            for at in first.0.max(start)..(first.0 + len).min(start + WINDOW) {
                let was_missed = missed & 1 << (at - start) != 0;
                if !was_missed && self.tiers.pages().has(tier, Block(block.0 + (at - first.0))) {
                    continue;
                }
                match spans.last_mut() {
                    Some(last) if last.end() == at => last.len += 1,
                    _ => spans.push(Span { start: at, len: 1 }),
                }
            }
        }
        let mut moved = 0;
        for Span { start, len } in spans {
            moved += self.bring_up_from(&node, FileBlock(start), len, Durability::Now, |_| true)?.moved;
        }
        Ok(moved)
    }
}

#[cfg(test)]
mod tests {
    use nacre_engine::InodeId;

    use super::{MAX_WINDOWS, Missed, Span, WINDOW};

    #[test]
    fn blocks_are_known_by_window_and_not_more_than_there_is_room_for() {
        let id = |number| InodeId { number, generation: 1, volume: 0 };
        let missed = Missed::default();
        missed.note(id(1), Span { start: WINDOW - 1, len: 3 }, 4096);
        missed.note(id(1), Span { start: 0, len: 1 }, 4096);
        let (bytes, windows) = missed.take();
        assert_eq!((bytes, windows.len()), (8192, 2));
        assert_eq!((windows[&(id(1), 0)], windows[&(id(1), 1)]), (0x8001, 3));
        for number in 0..2 * MAX_WINDOWS as u64 {
            missed.note(id(number), Span { start: 0, len: u64::from(u16::MAX) }, 1);
        }
        assert_eq!(missed.take().1.len(), MAX_WINDOWS);
        assert!(missed.take().1.is_empty());
    }
}
