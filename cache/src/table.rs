//! The known files, by inode.
//!
//! A file is known while it has blocks in DRAM or a node refers to it, and afterwards while its shard has room. The
//! model's state of the file lives as long.

use std::sync::Arc;

use hashbrown::HashMap;
use nacre_engine::sync::atomic::{AtomicU64, Ordering};
use nacre_engine::sync::{RwLock, SMALL};
use nacre_engine::{InodeHasher, InodeId, Result};

use crate::file::File;

const SHARDS: usize = if SMALL { 1 } else { 64 };
/// Files that a shard keeps without users: 65,536 in all.
const IDLE_FILES: usize = 1024;
/// A shard with fewer files keeps its allocation.
const SPARSE: usize = 16;

pub(crate) struct Table {
    shards: Box<[Shard]>,
    /// The largest change count of a forgotten file. Every unknown file counts as having this count, so that its
    /// change counter never goes back.
    forgotten_changes: AtomicU64,
}

type Shard = RwLock<HashMap<InodeId, Arc<File>, Hasher>>;

type Hasher = std::hash::BuildHasherDefault<InodeHasher>;

impl Table {
    pub(crate) fn new() -> Table {
        Table {
            shards: (0..SHARDS).map(|_| RwLock::new(HashMap::default())).collect(),
            forgotten_changes: AtomicU64::new(0),
        }
    }

    fn shard(&self, id: InodeId) -> &Shard {
        &self.shards[id.number as usize % SHARDS]
    }

    /// The file, if it is known.
    pub(crate) fn get(&self, id: InodeId) -> Option<Arc<File>> {
        self.shard(id).read().get(&id).cloned()
    }

    /// The changes to add to the layout's count, for a file that was just not found here.
    pub(crate) fn changes_of_unknown(&self) -> u64 {
        self.forgotten_changes.load(Ordering::Relaxed)
    }

    /// The file, made by `make` if it is unknown. `dropped` gets the files that are forgotten for it.
    pub(crate) fn get_or_make(
        &self,
        id: InodeId,
        make: impl FnOnce() -> Result<File>,
        mut dropped: impl FnMut(&File),
    ) -> Result<Arc<File>> {
        if let Some(file) = self.get(id) {
            return Ok(file);
        }
        let mut shard = self.shard(id).write();
        if let Some(file) = shard.get(&id) {
            return Ok(Arc::clone(file));
        }
        // That file is gone, otherwise this one would not have its number.
        let before = InodeId { generation: id.generation.wrapping_sub(1), ..id };
        if shard.get(&before).is_some_and(|file| Arc::strong_count(file) == 1 && !file.is_needed())
            && let Some(gone) = shard.remove(&before)
        {
            dropped(&gone);
        }
        if shard.len() >= IDLE_FILES && shard.len() == shard.capacity() {
            shard.retain(|_, file| {
                let keep = Arc::strong_count(file) > 1 || file.is_needed();
                if !keep {
                    self.forget(file);
                    dropped(file);
                }
                keep
            });
        }
        // Without this entry the file cannot change, so that the attributes read now stay true.
        let file = Arc::new(make()?);
        file.changes.store(self.changes_of_unknown(), Ordering::Relaxed);
        shard.insert(id, Arc::clone(&file));
        Ok(file)
    }

    /// Forgets a file without other users or waiting data; `dropped` gets it.
    pub(crate) fn let_go(&self, file: Arc<File>, dropped: impl FnOnce(&File)) {
        let mut shard = self.shard(file.id).write();
        // The reference of the table and this one.
        if Arc::strong_count(&file) > 2 || file.is_needed() {
            return;
        }
        self.forget(&file);
        shard.remove(&file.id);
        if shard.len() >= SPARSE && shard.len() < shard.capacity() / 8 || shard.is_empty() {
            shard.shrink_to_fit();
        }
        drop(shard);
        dropped(&file);
    }

    /// Keeps its change counter from going back.
    fn forget(&self, file: &File) {
        self.forgotten_changes.fetch_max(file.changes.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Forgets a file that is gone.
    pub(crate) fn remove(&self, id: InodeId) {
        self.shard(id).write().remove(&id);
    }

    /// All files for which `which` is true.
    pub(crate) fn collect(&self, which: impl Fn(&File) -> bool) -> Vec<Arc<File>> {
        let mut files = Vec::new();
        for shard in &self.shards {
            files.extend(shard.read().values().filter(|file| which(file)).cloned());
        }
        files
    }

    /// An estimate of the bytes of DRAM for the table, without blocks, which are the pool's.
    pub(crate) fn bytes(&self) -> u64 {
        let files: usize = self.shards.iter().map(|shard| shard.read().capacity()).sum();
        (files * (size_of::<File>() + size_of::<(InodeId, usize)>() + 2)) as u64
    }
}

#[cfg(test)]
mod tests {
    use nacre_engine::sync::atomic::Ordering;
    use nacre_engine::{Attr, FileKind, InodeId, Timestamp};

    use super::{IDLE_FILES, SHARDS, Table};
    use crate::file::File;

    fn attr(number: u64) -> Attr {
        let time = Timestamp::new(0, 0);
        Attr {
            id: InodeId { volume: 0, number, generation: 1 },
            kind: FileKind::Regular,
            mode: 0o644,
            links: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            allocated: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            change: 0,
            flags: 0,
        }
    }

    /// Who makes files and removes them again would fill the table with those that are gone.
    #[test]
    fn a_file_takes_the_place_of_the_one_that_had_its_number_before() {
        let table = Table::new();
        let of = |generation| InodeId { generation, ..attr(5).id };
        let know = |generation, dropped: &mut u32| {
            let made = Attr { id: of(generation), ..attr(5) };
            table.get_or_make(of(generation), || Ok(File::new(&made)), |_| *dropped += 1).unwrap()
        };
        let mut dropped = 0;
        for generation in 1..100 {
            assert_eq!(know(generation, &mut dropped).id, of(generation));
        }
        assert!(dropped == 98 && table.get(of(98)).is_none() && table.get(of(99)).is_some());
        // One that somebody has, or that has something that waits, stays until that is over.
        let held = know(100, &mut dropped);
        know(101, &mut dropped);
        held.cached.store(1, Ordering::Relaxed);
        drop(held);
        know(102, &mut dropped);
        assert!(table.get(of(100)).is_some() && table.get(of(101)).is_none() && dropped == 100);
    }

    /// A file that was looked at once stayed in DRAM from then on.
    #[test]
    fn what_is_not_expected_back_is_forgotten() {
        let table = Table::new();
        let known =
            |number| table.get_or_make(attr(number).id, || Ok(File::new(&attr(number))), |_| ()).unwrap();
        let is_known = |number| table.get(attr(number).id).is_some();
        known(1).changes.store(5, Ordering::Relaxed);
        let mut told = 0;
        table.let_go(known(1), |_| told += 1);
        assert!(!is_known(1) && told == 1);
        assert_eq!(table.changes_of_unknown(), 5, "its counter does not go back");
        // One that somebody has, or of which something waits, stays.
        let held = known(2);
        table.let_go(known(2), |_| told += 1);
        known(3).cached.store(1, Ordering::Relaxed);
        table.let_go(known(3), |_| told += 1);
        assert!(is_known(2) && is_known(3) && told == 1);
        table.let_go(held, |_| told += 1);
        assert!(!is_known(2) && told == 2);
        (10..5000).for_each(|number| drop(known(number)));
        let bytes = table.bytes();
        (10..5000).for_each(|number| table.let_go(known(number), |_| ()));
        assert!(table.bytes() < bytes / 8, "{} of {bytes} bytes", table.bytes());
    }

    /// The change counter grows whether a file is known, forgotten, or known again.
    #[test]
    fn changes_outlive_what_is_forgotten() {
        let table = Table::new();
        let known =
            |number| table.get_or_make(attr(number).id, || Ok(File::new(&attr(number))), |_| ()).unwrap();
        known(0).changes.store(7, Ordering::Relaxed);
        let held = known(SHARDS as u64);
        held.changes.store(3, Ordering::Relaxed);
        // All of one shard.
        let mut number = 2 * SHARDS as u64;
        while table.get(attr(0).id).is_some() {
            known(number);
            number += SHARDS as u64;
            assert!(number < (4 * IDLE_FILES * SHARDS) as u64, "nothing is ever forgotten");
        }
        assert_eq!(table.changes_of_unknown(), 7);
        assert_eq!(known(0).changes.load(Ordering::Relaxed), 7);
        assert_eq!(known(number).changes.load(Ordering::Relaxed), 7, "it was said to have so many");
        assert_eq!(known(SHARDS as u64).changes.load(Ordering::Relaxed), 3, "a file in use is not forgotten");
    }
}
