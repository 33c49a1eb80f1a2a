//! The commit: one protocol for every operation.
//!
//! An operation is a list of items, each some words of metadata with their new bytes. Entries, nodes and data to which
//! nothing leads yet are no items: they are written before, entries and nodes in both copies.
//!
//! 1. The intent: the lane says, in both copies, which items there are, with a check of the new bytes of each. Fence.
//! 2. The backups of all items. Fence. From here on the operation is committed.
//! 3. The primaries. Fence. The operation is over.
//! 4. The lane's `done` becomes its number, which is written back with the intent of the lane's next operation.
//!
//! Until the fence of step 2 each primary is old and whole; from then on each backup is new and whole. The intent tells
//! which of them counts (`recover`). It stays sound without step 4, because recovery replays in descending order: an
//! operation that is over finds its backups changed by later ones, or equal to its primaries.
//!
//! Nothing is changed before the commit: an operation that fails is dropped, and its locks with it.

use nacre_engine::reclaim::{Step, made_room};
use nacre_engine::sync::MutexGuard;
use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{BLOCK_SIZE, Error, Kind, Result};
use nacre_layout_parts::tree::edit::join;
use nacre_media::{Flushed, Pm};
use smallvec::SmallVec;
use zerocopy::IntoBytes;

use crate::edits::{BitsEdit, GroupEdit, InodeEdit};
use crate::format::{RawIntent, intent_checksum};
use crate::fs::{GROUP_LOCKS, Shared};
use crate::lanes::{Items, Lane, write_intent};
use crate::seeded::Mistake;

/// Bytes of a lane's scratch that are kept between operations.
const KEPT: usize = 12 << 10;
/// How often one operation is prepared again for damage that was met: each time it may meet more.
const MENDS: u32 = 4;

/// An operation that is being prepared.
pub(crate) struct Change<'f, P: Pm> {
    pub(crate) fs: &'f Shared<P>,
    pub(crate) lane: &'f Lane,
    pub(crate) items: MutexGuard<'f, Items>,
    locks: SmallVec<[(usize, MutexGuard<'f, ()>); 8]>,
    /// The lock that another operation has, and that this one is to wait for.
    pub(crate) taken: Option<usize>,
    pub(crate) groups: SmallVec<[GroupEdit; 2]>,
    pub(crate) bits: SmallVec<[BitsEdit; 8]>,
    pub(crate) inodes: SmallVec<[InodeEdit; 4]>,
    /// Stores that are durable with the first fence.
    pub(crate) pending: Option<Flushed>,
    /// Blocks that were taken from the count of free ones.
    pub(crate) taken_space: u64,
    /// The device was full when these were taken.
    pub(crate) is_full: bool,
    /// Pool blocks that may have no entry any more.
    pub(crate) emptied: SmallVec<[u64; 2]>,
}

impl<P: Pm> Shared<P> {
    /// Runs an operation. It is prepared again when another one has what it needs, when damage was mended, and when
    /// free space was counted.
    pub(crate) fn change<T>(&self, mut act: impl FnMut(&mut Change<'_, P>) -> Result<T>) -> Result<T> {
        self.check_writable()?;
        let mut wanted: SmallVec<[usize; 8]> = SmallVec::new();
        let mut mends = 0;
        loop {
            if self.damaged.is_any() {
                self.mend_noted()?;
            }
            let is_counted = self.is_counted();
            if !is_counted && self.counts.lock().quota != u64::MAX {
                // Otherwise the room below the quota is unknown.
                self.finish_counting();
            }
            let (result, taken, emptied) = {
                let mut change = Change::begin(self, &wanted);
                let result = act(&mut change);
                (result, change.taken.take(), std::mem::take(&mut change.emptied))
            };
            match result {
                Err(error) if error.kind() == Kind::Busy && taken.is_some() => {
                    wanted.extend(taken);
                    wanted.sort_unstable();
                    wanted.dedup();
                }
                Err(error) if error.kind() == Kind::Media && self.damaged.is_any() && mends < MENDS => {
                    mends += 1;
                }
                Ok(value) => {
                    for block in emptied {
                        self.release_pool_block(block)?;
                    }
                    return Ok(value);
                }
                failed => {
                    let count = |_| {
                        self.finish_counting();
                        Ok(!is_counted)
                    };
                    if let Some(value) = made_room(Step::Counting, failed, count)? {
                        return Ok(value);
                    }
                }
            }
        }
    }
}

impl<'f, P: Pm> Change<'f, P> {
    /// Begins with these locks of groups, which are in order.
    pub(crate) fn begin(fs: &'f Shared<P>, wanted: &[usize]) -> Change<'f, P> {
        let lane = fs.own_lane();
        let mut items = lane.scratch.lock();
        items.clear();
        Change {
            fs,
            lane,
            items,
            locks: wanted.iter().map(|&lock| (lock, fs.group_locks[lock].lock())).collect(),
            taken: None,
            groups: SmallVec::new(),
            bits: SmallVec::new(),
            inodes: SmallVec::new(),
            pending: None,
            taken_space: 0,
            is_full: false,
            emptied: SmallVec::new(),
        }
    }

    /// Locks a group until the end of the operation. [`Busy`](Kind::Busy) when another operation has it: this one is
    /// then prepared again, and waits for it while it has nothing else.
    pub(crate) fn lock_group(&mut self, group: u64) -> Result<()> {
        let lock = group as usize % GROUP_LOCKS;
        if self.locks.iter().any(|(held, _)| *held == lock) {
            return Ok(());
        }
        match self.fs.group_locks[lock].try_lock() {
            Some(guard) => {
                self.locks.push((lock, guard));
                Ok(())
            }
            None => {
                self.taken = Some(lock);
                Err(Error::new(Kind::Busy))
            }
        }
    }

    /// The bytes at an address will be these.
    pub(crate) fn item(&mut self, address: u64, bytes: &[u8]) {
        self.items.put(address, bytes);
    }

    /// The checked word at an address will have this value. Its seed is that of `owner`.
    pub(crate) fn word(&mut self, address: u64, owner: u64, value: u64) {
        self.items.put_word(address, value, self.fs.geometry.seed(owner));
    }

    /// Writes an entry to which nothing leads yet, both copies.
    pub(crate) fn write_new(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        self.write_one(address, bytes)?;
        if Mistake::FreshBackupForgotten.is_made(&*self.fs.pm) {
            return Ok(());
        }
        self.write_one(self.fs.geometry.twin(address), bytes)
    }

    fn write_one(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        let copied = self.fs.pm.copy(address, bytes).inspect_err(|error| self.note(error, address, bytes))?;
        self.pending = join(self.pending.take(), copied);
        Ok(())
    }

    /// A store to metadata failed: the lines are to be mended before the next try.
    fn note(&self, error: &Error, address: u64, bytes: &[u8]) {
        if error.kind() == Kind::Media {
            self.fs.damaged.note(address, bytes.len() as u64);
        }
    }

    /// Commits everything. The operation has all its locks and keeps them until it is dropped.
    pub(crate) fn commit(&mut self) -> Result<()> {
        self.put_inodes();
        self.put_bits();
        self.put_groups();
        self.check_mended()?;
        if self.items.list.is_empty() {
            // Nothing changes.
            if let Some(pending) = self.pending.take() {
                self.fs.pm.fence(pending);
            }
        } else {
            let list = self.place_list()?;
            let pending = self.pending.take();
            run(self.fs, self.lane, &self.items, list, pending)?;
        }
        self.is_over();
        Ok(())
    }

    /// Ends an operation that met damage while it was prepared: it is mended, and the operation prepared again. The
    /// primary of an item must be whole, or a crash between the backups would leave neither copy.
    pub(crate) fn check_mended(&self) -> Result<()> {
        match self.fs.damaged.is_any() {
            true => Err(Error::new(Kind::Media).object("metadata that this operation found damaged")),
            false => Ok(()),
        }
    }

    /// Commits a part of an operation now: a mistake on purpose.
    pub(crate) fn commit_part(&mut self) -> Result<()> {
        let pending = self.pending.take();
        if !self.items.list.is_empty() {
            run(self.fs, self.lane, &self.items, None, pending)?;
        }
        self.items.clear();
        Ok(())
    }

    /// Room for the list of items, if the lane has too little: blocks that are free, and locked until the end.
    fn place_list(&mut self) -> Result<Option<(u64, u64)>> {
        let count = self.items.list.len();
        if count <= self.fs.geometry.lane_items() {
            return Ok(None);
        }
        let blocks = (count as u64 * 16).div_ceil(BLOCK_SIZE);
        let list = self.borrow_run(blocks)?;
        let backup = self.borrow_run(blocks)?;
        for place in [list, backup] {
            let copied = self.fs.pm.copy(place, self.items.list.as_bytes())?;
            self.pending = join(self.pending.take(), copied);
        }
        Ok(Some((list, backup)))
    }

    /// Counts what was taken and freed, after the commit.
    fn is_over(&mut self) {
        self.count();
        self.hint_groups();
        self.groups.clear();
        self.bits.clear();
        self.inodes.clear();
        self.items.clear();
    }
}

impl<P: Pm> Drop for Change<'_, P> {
    fn drop(&mut self) {
        // Blocks that a failed operation took from the count are free.
        if self.taken_space > 0 {
            self.fs.counts.lock().give_back(self.taken_space);
        }
        if self.items.bytes.capacity() > KEPT {
            *self.items = Items::default();
        }
    }
}

/// The protocol, for a list of items. `list` is where the list is, if the lane has no room for it.
pub(crate) fn run<P: Pm>(
    fs: &Shared<P>,
    lane: &Lane,
    items: &Items,
    list: Option<(u64, u64)>,
    mut pending: Option<Flushed>,
) -> Result<()> {
    let (pm, geometry) = (&*fs.pm, &fs.geometry);
    let sequence = fs.sequence.fetch_add(1, Ordering::Relaxed) + 1;
    let (place, backup) = list.unwrap_or_default();
    let mut intent = RawIntent {
        items: items.list.len() as u32,
        sequence,
        list: place,
        list_backup: backup,
        ..RawIntent::default()
    };
    let bytes = items.list.as_bytes();
    intent.checksum = intent_checksum(&intent, bytes, geometry.seed(lane.address));
    if !Mistake::NoIntent.is_made(pm) {
        let written = lane
            .flush_done(pm, geometry)
            .and_then(|done| Ok(done.and(write_intent(pm, geometry, lane.address, &intent, &items.list)?)))
            .inspect_err(|_| note_lane(fs, lane, bytes.len()))?;
        pending = join(pending, written);
    }
    if !Mistake::IntentWithBackups.is_made(pm)
        && let Some(pending) = pending.take()
    {
        pm.fence(pending);
    }
    let mut backups = pending;
    for (index, (address, bytes)) in items.iter().enumerate() {
        match pm.copy(geometry.twin(address), bytes) {
            Ok(copied) => backups = join(backups, copied),
            Err(error) => {
                fs.damaged.note(geometry.twin(address), bytes.len() as u64);
                take_back(fs, items, index)?;
                return Err(error);
            }
        }
    }
    if Mistake::DoneEarly.is_made(pm) {
        lane.is_done(pm, geometry, sequence)?;
        backups = join(backups, lane.flush_done(pm, geometry)?);
    }
    if !Mistake::BackupsWithPrimaries.is_made(pm)
        && let Some(backups) = backups.take()
    {
        pm.fence(backups);
    }
    let mut primaries = backups;
    for (address, bytes) in items.iter() {
        match pm.store(address, bytes) {
            Ok(stored) => primaries = join(primaries, pm.flush(stored)),
            // It is committed: readers take the backup, and the primary is mended.
            Err(error) if error.kind() == Kind::Media => fs.damaged.note(address, bytes.len() as u64),
            Err(error) => {
                fs.broken.store(true, Ordering::Release);
                return Err(error);
            }
        }
    }
    if let Some(primaries) = primaries {
        pm.fence(primaries);
    }
    // A lane that cannot say that it is done is looked at by recovery, which finds nothing to do.
    if lane.is_done(pm, geometry, sequence).is_err() {
        note_lane(fs, lane, 0);
    }
    Ok(())
}

/// Both copies of a lane may have lines that cannot be stored to.
#[cold]
fn note_lane<P: Pm>(fs: &Shared<P>, lane: &Lane, items: usize) {
    let len = crate::format::LANE_ITEMS + items as u64;
    let len = len.min(fs.geometry.lane_bytes);
    for copy in [lane.address, fs.geometry.twin(lane.address)] {
        for line in (copy..copy + len).step_by(64) {
            let mut bytes = [0; 64];
            if fs.pm.read(line, &mut bytes).is_err() {
                fs.damaged.note(line, 64);
            }
        }
    }
}

/// The backups of some items become what the primaries are: the operation does not happen.
#[cold]
fn take_back<P: Pm>(fs: &Shared<P>, items: &Items, count: usize) -> Result<()> {
    let mut pending = None;
    for (address, bytes) in items.iter().take(count) {
        let mut old = vec![0; bytes.len()];
        fs.pm.read(address, &mut old).inspect_err(|_| fs.broken.store(true, Ordering::Release))?;
        pending = join(pending, fs.pm.copy(fs.geometry.twin(address), &old)?);
    }
    if let Some(pending) = pending {
        fs.pm.fence(pending);
    }
    Ok(())
}
