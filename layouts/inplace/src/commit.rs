//! The commit protocol: metadata changes in place, under an undo journal.
//!
//! An operation is one [`Transaction`]: words, each with its address and new value.
//!
//! 1. The data, nodes and new inodes that the new words refer to are on their way to media, where nothing leads to them
//!    yet.
//! 2. The old values of all words go to a lane of the journal, as entries that validate themselves, with the lane's
//!    next generation. One fence: they and everything of step 1 are durable.
//! 3. The words are stored in place and flushed. One fence.
//! 4. The commit entry, one word, takes the generation. One fence, and the operation is acknowledged.
//!
//! Recovery puts back the old words of entries with a generation above that of their lane's commit entry. A transaction
//! of a single word needs no journal: after the fence of step 1 the word is stored at once.
//!
//! A commit holds the locks of all inodes concerned until it is acknowledged. So no two transactions that are under way
//! have a word in common, and lanes can be undone in any order.

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{Error, Kind, Result};
use nacre_media::{Durable, Flushed, Pm, Stored};
use smallvec::SmallVec;
use zerocopy::IntoBytes;

use crate::format::{ENTRY_WORDS, LANE_ENTRIES, LINE, RawUndo, seal_word};
use crate::fs::Shared;
use crate::seeded::Mistake;
use crate::transaction::{Lane, Transaction, Word, join};

/// Neighbouring words: their address, old values and new values.
struct Run {
    address: u64,
    old: SmallVec<[u64; ENTRY_WORDS]>,
    new: SmallVec<[u64; ENTRY_WORDS]>,
}

impl<P: Pm> Shared<P> {
    /// Commits a transaction after `pending`, the data that it refers to. An error of kind
    /// [`Media`](nacre_engine::Kind::Media) may leave it half done: nothing is changed any more then, and the next
    /// mount undoes it.
    pub(crate) fn commit(&self, transaction: Transaction, pending: Option<Flushed>) -> Result<()> {
        self.commit_after(transaction, pending, Durable::nothing_before())
    }

    /// The same, if some of the data that it refers to is `ready` already.
    pub(crate) fn commit_after(
        &self,
        mut transaction: Transaction,
        pending: Option<Flushed>,
        ready: Durable,
    ) -> Result<()> {
        self.check_unbroken()?;
        let mut runs = Vec::new();
        let mut entries = 0;
        let mut count = 0;
        for &(address, new) in transaction.sorted().iter() {
            let old = self.pm.load_u64(address)?;
            if old == new {
                continue;
            }
            count += 1;
            let follows =
                |run: &Run| run.address + run.new.len() as u64 * 8 == address && run.new.len() < ENTRY_WORDS;
            match runs.last_mut().filter(|run| follows(run)) {
                Some(run) => {
                    run.old.push(old);
                    run.new.push(new);
                }
                None => {
                    entries += 1;
                    runs.push(Run {
                        address,
                        old: SmallVec::from_elem(old, 1),
                        new: SmallVec::from_elem(new, 1),
                    });
                }
            }
        }
        if entries > LANE_ENTRIES {
            return Err(Error::new(Kind::InvalidInput).object(format!("a transaction of {entries} entries")));
        }
        let result = match (count, &runs[..]) {
            (0, _) => self.settle(pending),
            (1, [run]) => self.store_word(run.address, run.new[0], &transaction.idle, pending, ready),
            _ => self.in_lane(&runs, &transaction.idle, pending, ready),
        };
        if result.is_err() {
            self.broken.store(true, Ordering::Release);
        }
        result
    }

    /// Nothing changes in place.
    fn settle(&self, pending: Option<Flushed>) -> Result<()> {
        if let Some(pending) = pending {
            self.pm.fence(pending);
        }
        Ok(())
    }

    /// One word, which is there or is not.
    fn store_word(
        &self,
        address: u64,
        value: u64,
        idle: &[Word],
        pending: Option<Flushed>,
        ready: Durable,
    ) -> Result<()> {
        let before = match self.store_idle(idle, pending)? {
            Some(_) if Mistake::WordBeforeData.is_made(&*self.pm) => Durable::nothing_before(),
            Some(pending) => self.pm.fence(pending),
            None => ready,
        };
        let stored = self.pm.publish_u64(address, value, before)?;
        let flushed = self.pm.flush(stored);
        self.pm.fence(flushed);
        Ok(())
    }

    fn store_idle(&self, idle: &[Word], mut pending: Option<Flushed>) -> Result<Option<Flushed>> {
        let stored = idle.iter().map(|(address, value)| self.pm.store(*address, value.as_bytes()));
        let stored: Result<SmallVec<[Stored; 8]>> = stored.collect();
        if let Some(flushed) = self.pm.flush_all(stored?) {
            pending = join(pending, flushed);
        }
        Ok(pending)
    }

    /// Several words, by way of a lane. A lane in which a commit failed is not used again: it has the entries that the
    /// next mount undoes.
    fn in_lane(&self, runs: &[Run], idle: &[Word], pending: Option<Flushed>, ready: Durable) -> Result<()> {
        let lane = self.journal.lane();
        let mut next = lane.next.lock();
        // Also after a failure of another commit while this waited for the lane.
        self.check_unbroken()?;
        let result = self.journal(lane, *next, runs, idle, pending, ready);
        match result {
            Err(_) => self.broken.store(true, Ordering::Release), // before the lane is unlocked
            Ok(()) if Mistake::GenerationKept.is_made(&*self.pm) => {}
            Ok(()) => *next += 1,
        }
        result
    }

    /// A transaction of a lane that is locked.
    fn journal(
        &self,
        lane: &Lane,
        generation: u64,
        runs: &[Run],
        idle: &[Word],
        pending: Option<Flushed>,
        ready: Durable,
    ) -> Result<()> {
        let mut entries = Vec::with_capacity(runs.len());
        for run in runs {
            let mut entry = RawUndo { words: run.old.len() as u8, generation, ..RawUndo::default() };
            entry.address = run.address;
            entry.old[..run.old.len()].copy_from_slice(&run.old);
            entry.checksum = entry.compute_checksum(lane.seed);
            entries.push(entry);
        }
        let written = self.pm.publish_entry(lane.address + LINE, entries.as_bytes(), ready)?;
        let mut flushed = self.store_idle(idle, join(pending, written))?;
        if !Mistake::UndoNotDurable.is_made(&*self.pm)
            && let Some(undo) = flushed.take()
        {
            self.pm.fence(undo);
        }
        let stored = runs.iter().map(|run| self.pm.store(run.address, run.new.as_bytes()));
        let stored: Result<SmallVec<[Stored; 8]>> = stored.collect();
        if let Some(stored) = self.pm.flush_all(stored?) {
            flushed = join(flushed, stored);
        }
        let done = match flushed.take() {
            Some(_) if Mistake::CommittedEarly.is_made(&*self.pm) => Durable::nothing_before(),
            Some(flushed) => self.pm.fence(flushed),
            None => Durable::nothing_before(),
        };
        let stored = self.pm.publish_u64(lane.address, seal_word(generation, lane.seed), done)?;
        let flushed = self.pm.flush(stored);
        self.pm.fence(flushed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use nacre_engine::{FileKind, Names, NewInode, SetAttr, Timestamp};
    use nacre_media::{Pm, SimPm};

    use crate::alloc::use_lane;
    use crate::format::LINE;
    use crate::{InplaceFs, MountOptions};
    use crate::{MkfsOptions, mkfs};

    /// The next mount undoes a transaction that failed, whoever waited for its lane meanwhile.
    #[test]
    fn nobody_uses_the_lane_of_a_commit_that_failed() {
        let (now, later) = (Timestamp::new(1_700_000_000, 0), Timestamp::new(1_700_000_001, 0));
        let pm = Arc::new(SimPm::new(16 << 20));
        mkfs(&*pm, &MkfsOptions::default()).unwrap();
        let fs = InplaceFs::mount(Arc::clone(&pm), &MountOptions::default()).unwrap();
        let kind = FileKind::Regular;
        let new = NewInode { kind, mode: 0o644, uid: 0, gid: 0, rdev: 0, target: b"", xattrs: &[], now };
        let files = [b"a", b"b"].map(|name| fs.create(&fs.root(), name, &new).unwrap());
        use_lane(0);
        let lane = fs.shared.journal.lane();
        let commit_entry = lane.address;
        pm.poison(commit_entry, LINE);
        let waited_for = lane.next.lock();
        let change = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        std::thread::scope(|scope| {
            let threads = files.each_ref().map(|file| {
                let (fs, change) = (&fs, &change);
                scope.spawn(move || {
                    use_lane(0);
                    fs.setattr(file, change, later).is_err()
                })
            });
            std::thread::sleep(Duration::from_millis(100));
            drop(waited_for);
            assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
        });
        // The hardware has other lines.
        let bytes = pm.snapshot()[commit_entry as usize..][..4096].to_vec();
        pm.fence(pm.copy(commit_entry, &bytes).unwrap());
        drop(files);
        fs.abandon();
        let fs = InplaceFs::mount(pm, &MountOptions::default()).unwrap();
        assert_eq!(fs.recovery().rolled_back, 1);
        for name in [b"a", b"b"] {
            let file = fs.lookup(&fs.root(), name).unwrap();
            assert_eq!(fs.getattr(&file).unwrap().mode, 0o644);
        }
    }
}
