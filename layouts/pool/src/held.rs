//! Inodes that callers hold: all that is kept in DRAM of an inode, and only while it is held.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use nacre_engine::{Error, FileKind, InodeHasher, InodeId, Kind, Result};
use nacre_layout_parts::held::{Held, Holdable};

/// Parts of the table, so that threads seldom meet.
const SHARDS: usize = 64;

/// An inode that a caller holds.
pub type Node = Held<HeldInode>;

/// The state of a held inode.
pub struct HeldInode {
    pub(crate) number: u64,
    pub(crate) generation: u32,
    holds: AtomicU32,
    /// Holds of its blocks for direct reads and writes.
    pub(crate) pins: AtomicU32,
    pub(crate) kind: FileKind,
    /// It has no name.
    pub(crate) removed: AtomicBool,
    /// It never had one, and can be given one.
    pub(crate) unnamed: AtomicBool,
    table: Arc<HeldTable>,
}

type Shard = Mutex<HashMap<u64, Arc<HeldInode>, BuildHasherDefault<InodeHasher>>>;

/// All held inodes of a mount.
pub(crate) struct HeldTable {
    shards: Vec<Shard>,
    /// Inodes without names that were let go.
    graveyard: Mutex<Vec<u64>>,
    filled: AtomicBool,
}

impl HeldTable {
    pub(crate) fn new() -> Arc<HeldTable> {
        Arc::new(HeldTable {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            graveyard: Mutex::default(),
            filled: AtomicBool::new(false),
        })
    }

    fn shard(&self, number: u64) -> &Shard {
        &self.shards[number as usize % SHARDS]
    }

    /// Holds an inode. The caller knows that it is there: it is locked, or a directory that has its name.
    pub(crate) fn hold(self: &Arc<HeldTable>, id: InodeId, kind: FileKind, unnamed: bool) -> Result<Node> {
        let mut shard = self.shard(id.number).lock();
        let inode = shard.entry(id.number).or_insert_with(|| {
            Arc::new(HeldInode {
                number: id.number,
                generation: id.generation,
                holds: AtomicU32::new(0),
                pins: AtomicU32::new(0),
                kind,
                removed: AtomicBool::new(unnamed),
                unnamed: AtomicBool::new(unnamed),
                table: Arc::clone(self),
            })
        });
        if inode.generation != id.generation || inode.kind != kind {
            return Err(Error::corrupt(format!("inode {}: a name of another inode", id.number)));
        }
        inode.holds.fetch_add(1, Ordering::Relaxed);
        Ok(Held::from_held(Arc::clone(inode)))
    }

    /// One more hold of an inode that is held. It may have no name.
    pub(crate) fn hold_again(&self, number: u64) -> Option<Node> {
        let shard = self.shard(number).lock();
        let inode = shard.get(&number)?;
        inode.holds.fetch_add(1, Ordering::Relaxed);
        Some(Held::from_held(Arc::clone(inode)))
    }

    /// The last name of an inode went: it is reclaimed with its last hold, or soon if there is none.
    pub(crate) fn mark_removed(&self, number: u64) {
        match self.shard(number).lock().get(&number) {
            Some(inode) => inode.removed.store(true, Ordering::Release),
            None => self.bury(number),
        }
    }

    pub(crate) fn is_held(&self, number: u64) -> bool {
        self.shard(number).lock().contains_key(&number)
    }

    /// An inode without names is to be reclaimed.
    pub(crate) fn bury(&self, number: u64) {
        self.graveyard.lock().push(number);
        self.filled.store(true, Ordering::Release);
    }

    /// Inodes that are to be reclaimed.
    pub(crate) fn take_buried(&self) -> Vec<u64> {
        if !self.filled.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut graveyard = self.graveyard.lock();
        self.filled.store(false, Ordering::Release);
        std::mem::take(&mut *graveyard)
    }

    /// How many are held.
    pub(crate) fn len(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().len() as u64).sum()
    }

    /// Bytes of DRAM.
    pub(crate) fn bytes(&self) -> u64 {
        // An `Arc` has two counts, and a table a byte for each of its places.
        const INODE: usize = size_of::<HeldInode>() + 16;
        const PLACE: usize = size_of::<(u64, usize)>() + 1;
        let bytes = self.shards.iter().map(|shard| {
            let shard = shard.lock();
            shard.len() * INODE + shard.capacity() * PLACE
        });
        bytes.sum::<usize>() as u64
    }
}

impl Holdable for HeldInode {
    fn id(&self) -> InodeId {
        InodeId { number: self.number, generation: self.generation, volume: 0 }
    }

    fn holds(&self) -> &AtomicU32 {
        &self.holds
    }

    fn is_let_go(&self) {
        let mut shard = self.table.shard(self.number).lock();
        // It may have been held again meanwhile, or let go by another thread.
        let is_it = shard.get(&self.number).is_some_and(|inode| std::ptr::eq(&**inode, self));
        if !is_it || self.holds.load(Ordering::Acquire) > 0 {
            return;
        }
        shard.remove(&self.number);
        if shard.capacity() > 64 && shard.len() < shard.capacity() / 4 {
            shard.shrink_to_fit();
        }
        drop(shard);
        if self.removed.load(Ordering::Acquire) {
            self.table.bury(self.number);
        }
    }
}

impl HeldInode {
    pub(crate) fn id(&self) -> InodeId {
        Holdable::id(self)
    }

    pub(crate) fn check_directory(&self) -> Result<()> {
        if self.kind == FileKind::Directory { Ok(()) } else { Err(Error::new(Kind::NotDirectory)) }
    }

    /// It must be a regular file.
    pub(crate) fn check_file(&self) -> Result<()> {
        match self.kind {
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(Error::new(Kind::IsDirectory)),
            _ => Err(Error::new(Kind::InvalidInput)),
        }
    }

    /// Ends one pin.
    pub(crate) fn unpin(&self) {
        let before = self.pins.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "unpinned more often than pinned");
    }
}
