//! Counting free space and inodes: what a mount does not know after a crash, and what each operation changes.
//!
//! A clean unmount keeps the counts. After a crash the bits are counted group by group, in the background, and sooner
//! if an operation finds too little space or asks for the counts. An operation holds the lock of each group that
//! it changes until it is over, and so does the counting. So each operation sees whether a group is counted already,
//! and counts its change only then.

use std::ops::Range;

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use nacre_engine::{BLOCK_SIZE, Result};
use nacre_media::Pm;

use crate::bits::{self, Bits};
use crate::commit::Change;
use crate::counts::{Counts, GroupCounts};
use crate::edits::GroupEdit;
use crate::format::GROUP_BYTES;
use crate::format::pools::INODES;
use crate::fs::{GROUP_LOCKS, Shared};
use crate::geometry::Use;

/// Groups that are counted at once, in about a millisecond.
pub(crate) const COUNTED_AT_ONCE: u64 = 1024;

/// How far a mount has counted.
pub(crate) struct Counting {
    /// The lock of the counting itself. It comes before those of groups, after all others.
    turn: Mutex<()>,
    /// The next group: those below it are counted. Changes under `turn` and the group's lock.
    next: AtomicU64,
    /// A group could not be read, and counts for nothing.
    failed: AtomicBool,
}

impl Counting {
    /// Nothing is counted yet of these groups.
    pub(crate) fn of(groups: &Range<u64>) -> Counting {
        Counting { turn: Mutex::new(()), next: AtomicU64::new(groups.start), failed: AtomicBool::new(false) }
    }

    /// Whether a group is counted. Under its lock.
    fn has(&self, group: u64) -> bool {
        group < self.next.load(Ordering::Acquire)
    }
}

impl<P: Pm> Shared<P> {
    /// Whether all groups are counted.
    pub(crate) fn is_counted(&self) -> bool {
        self.counting.next.load(Ordering::Acquire) == self.geometry.end_group
    }

    /// Whether all groups are counted and could be read.
    pub(crate) fn counts_are_right(&self) -> bool {
        self.is_counted() && !self.counting.failed.load(Ordering::Acquire)
    }

    /// The counts are known.
    pub(crate) fn take_up(&self, counts: Counts) {
        let _turn = self.counting.turn.lock();
        *self.counts.lock() = counts;
        self.counting.next.store(self.geometry.end_group, Ordering::Release);
    }

    /// Counts some more groups, and gives back pool blocks without an entry, which a crash left.
    pub(crate) fn count_some(&self, groups: u64) {
        let mut unused = Vec::new();
        {
            let _turn = self.counting.turn.lock();
            let first = self.counting.next.load(Ordering::Acquire);
            for group in first..self.geometry.end_group.min(first.saturating_add(groups)) {
                let _group = self.group_locks[group as usize % GROUP_LOCKS].lock();
                match self.count_group(group, &mut unused) {
                    Ok(counted) => self.counts.lock().add(&counted),
                    Err(_) => self.counting.failed.store(true, Ordering::Release),
                }
                self.counting.next.store(group + 1, Ordering::Release);
            }
        }
        if !self.read_only {
            // One that cannot be given back is found by the next count.
            unused.into_iter().for_each(|block| drop(self.release_pool_block(block)));
        }
    }

    /// Counts all that is not counted yet.
    pub(crate) fn finish_counting(&self) {
        while !self.is_counted() {
            self.count_some(u64::MAX);
        }
    }

    /// Counts free blocks and inodes, from the bits. No operation is under way.
    pub(crate) fn count(&self) -> Result<Counts> {
        let mut counts = Counts::none(&self.geometry, self.row.lock().quota);
        for group in self.geometry.groups() {
            counts.add(&self.count_group(group, &mut Vec::new())?);
        }
        Ok(counts)
    }

    /// The same of what can be read: a group with damage counts for nothing.
    pub(crate) fn count_readable(&self) -> Counts {
        let mut counts = Counts::none(&self.geometry, self.row.lock().quota);
        let counted =
            self.geometry.groups().filter_map(|group| self.count_group(group, &mut Vec::new()).ok());
        counted.for_each(|group| counts.add(&group));
        counts
    }

    /// Counts a group, and finds its pool blocks without an entry in use.
    fn count_group(&self, group: u64, unused: &mut Vec<u64>) -> Result<GroupCounts> {
        let geometry = self.geometry;
        let (free, purpose) = self.read_map(group)?;
        let of = geometry.use_of(purpose);
        let usable = bits::without(&free, &self.bad.of_group(group));
        self.hints.note(group, of, &usable);
        let mut counts = GroupCounts::of(of, &usable, geometry.regions_in(group));
        if of != Use::Pool {
            return Ok(counts);
        }
        for slot in 0..geometry.pool_blocks_in_group() {
            let block = group * GROUP_BYTES + slot * geometry.pool_block;
            let within = block % GROUP_BYTES / BLOCK_SIZE;
            if bits::meet(&free, &bits::run(within, 1)) {
                continue;
            }
            let pool = self.read_head(block)?.pool as usize;
            let in_use = self.entries_in_use(block, pool)?;
            if pool == INODES {
                counts.inodes += in_use;
            }
            unused.extend((in_use == 0).then_some(block));
        }
        Ok(counts)
    }

    /// An operation on a group is over, whose lock it has. It took so many blocks from the count of free ones.
    pub(crate) fn count_change(&self, edit: &GroupEdit, taken: u64) {
        let mut counts = self.counts.lock();
        counts.give_back(taken);
        if self.counting.has(edit.group) {
            let (old, new) = self.counts_of(edit);
            counts.replace(&old, &new);
        }
    }

    /// A free block of a locked group turns out to have a media error.
    pub(crate) fn count_bad(&self, edit: &GroupEdit, bad: &Bits) {
        if self.counting.has(edit.group) {
            let (before, _) = self.counts_of(edit);
            let regions = self.geometry.regions_in(edit.group);
            let usable = bits::without(&bits::without(&edit.old, &edit.bad), bad);
            let after = GroupCounts::of(self.geometry.use_of(edit.old_purpose), &usable, regions);
            self.counts.lock().replace(&before, &after);
        }
    }

    fn counts_of(&self, edit: &GroupEdit) -> (GroupCounts, GroupCounts) {
        let regions = self.geometry.regions_in(edit.group);
        let of = |purpose, free: &Bits| {
            GroupCounts::of(self.geometry.use_of(purpose), &bits::without(free, &edit.bad), regions)
        };
        (of(edit.old_purpose, &edit.old), of(edit.purpose, &edit.new_bits()))
    }
}

impl<P: Pm> Change<'_, P> {
    /// Counts what was taken and freed. The operation is over, and still has its locks.
    pub(crate) fn count(&mut self) {
        let Change { fs, groups, bits, taken_space, .. } = self;
        let mut counts = fs.counts.lock();
        counts.give_back(std::mem::take(taken_space));
        for edit in groups.iter().filter(|edit| fs.counting.has(edit.group)) {
            let (old, new) = fs.counts_of(edit);
            counts.replace(&old, &new);
        }
        for edit in bits.iter().filter(|edit| edit.pool == INODES) {
            if fs.counting.has(fs.geometry.group_of(edit.block)) {
                let [old, new] =
                    [edit.freed, edit.taken].map(|bits| GroupCounts::of_inodes(bits.count_ones()));
                counts.replace(&old, &new);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::sync::Arc;

    use nacre_engine::{Data, Durability, FileKind, Names, NewInode, SetAttr, Timestamp, WriteAt};
    use nacre_layout_parts::lifecycle::{Lifecycle, MkfsOptions, MountOptions};
    use nacre_media::SimPm;

    use super::Counting;
    use crate::counts::Counts;
    use crate::mount::PoolFs;

    fn mounted() -> PoolFs<SimPm> {
        let pm = Arc::new(SimPm::new(64 << 20));
        <PoolFs<SimPm> as Lifecycle>::mkfs(&pm, &MkfsOptions::default()).unwrap();
        let options = MountOptions { background: false, ..MountOptions::default() };
        <PoolFs<SimPm> as Lifecycle>::mount(pm, &options).unwrap()
    }

    /// Nothing is counted, as after a crash.
    fn forget(fs: &mut PoolFs<SimPm>) {
        let shared = Arc::get_mut(&mut fs.shared).unwrap();
        shared.counting = Counting::of(&shared.geometry.groups());
        *shared.counts.lock() = Counts::none(&shared.geometry, 0);
    }

    /// Makes, grows, cuts and removes files, the choice by a number.
    fn operate(fs: &PoolFs<SimPm>, turn: u64) {
        let now = Timestamp::new(1_700_000_000, 0);
        let root = fs.root();
        let name = format!("file-{}", turn % 23);
        let file = match fs.lookup(&root, name.as_bytes()) {
            Ok(file) => file,
            Err(_) => {
                let new = NewInode::of_root(FileKind::Regular, 0o644, now);
                fs.create(&root, name.as_bytes(), &new).unwrap()
            }
        };
        let content = vec![turn as u8; 4096 * (turn % 41) as usize + 100];
        let at = WriteAt::Offset(turn % 7 * 4096);
        fs.write(&file, at, &[IoSlice::new(&content)], Durability::Now, now).unwrap();
        match turn % 3 {
            0 => fs.unlink(&root, name.as_bytes(), now).unwrap(),
            1 => {
                let cut = SetAttr { size: Some(turn % 100 * 1000), ..SetAttr::default() };
                fs.setattr(&file, &cut, now).unwrap();
            }
            _ => {}
        }
    }

    #[test]
    fn operations_while_free_space_is_counted_are_counted_once() {
        let mut fs = mounted();
        (0..100).for_each(|turn| operate(&fs, turn));
        fs.shared.reclaim_all();
        forget(&mut fs);
        for turn in 100..400 {
            operate(&fs, turn);
            if turn % 5 == 0 {
                fs.shared.count_some(1);
            }
        }
        fs.shared.reclaim_all();
        assert!(fs.shared.is_counted(), "all groups were passed");
        assert_eq!(*fs.shared.counts.lock(), fs.shared.count().unwrap());
    }

    #[test]
    fn an_operation_that_finds_too_little_has_all_counted() {
        let mut fs = mounted();
        forget(&mut fs);
        operate(&fs, 2);
        assert!(fs.shared.is_counted());
        assert_eq!(*fs.shared.counts.lock(), fs.shared.count().unwrap());
    }
}
