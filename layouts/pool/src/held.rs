//! Inodes that callers hold: all that is kept in DRAM of an inode, and only while it is held.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use hashbrown::HashTable;
use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use nacre_engine::{Error, FileKind, InodeHasher, InodeId, Kind, Result};
use nacre_layout_parts::held::{Held, Holdable};

use crate::buried::Buried;

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

/// A part of the table.
#[derive(Default)]
struct Shard {
    held: HashTable<Arc<HeldInode>>,
    /// Inodes that are kept without a hold; true if they have no name any more.
    parked: HashMap<u64, bool, BuildHasherDefault<InodeHasher>>,
}

impl Shard {
    fn get(&self, number: u64) -> Option<&Arc<HeldInode>> {
        self.held.find(hash(number), |inode| inode.number == number)
    }
}

fn hash(number: u64) -> u64 {
    let mut hasher = InodeHasher::default();
    hasher.write_u64(number);
    // The table takes the highest bits, too.
    hasher.finish().wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Whether an inode has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    /// It has one.
    There,
    /// It had one.
    Gone,
    /// It never had one, and can be given one.
    NotYet,
}

/// All held inodes of a mount.
pub(crate) struct HeldTable {
    /// The number of the volume's row.
    volume: u32,
    shards: Vec<Mutex<Shard>>,
    /// Inodes without names that were let go.
    pub(crate) buried: Buried,
}

impl HeldTable {
    pub(crate) fn new(volume: u32) -> Arc<HeldTable> {
        Arc::new(HeldTable {
            volume,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            buried: Buried::default(),
        })
    }

    fn shard(&self, number: u64) -> &Mutex<Shard> {
        &self.shards[number as usize % SHARDS]
    }

    /// Holds an inode. The caller knows that it is there: it is locked, or a directory that has its name.
    pub(crate) fn hold(self: &Arc<HeldTable>, id: InodeId, kind: FileKind, name: Name) -> Result<Node> {
        let mut shard = self.shard(id.number).lock();
        if let Some(inode) = shard.get(id.number) {
            if inode.generation != id.generation || inode.kind != kind {
                return Err(Error::corrupt(format!("inode {}: a name of another inode", id.number)));
            }
            inode.holds.fetch_add(1, Ordering::Relaxed);
            return Ok(Held::from_held(Arc::clone(inode)));
        }
        let inode = Arc::new(HeldInode {
            number: id.number,
            generation: id.generation,
            holds: AtomicU32::new(1),
            pins: AtomicU32::new(0),
            kind,
            removed: AtomicBool::new(name != Name::There),
            unnamed: AtomicBool::new(name == Name::NotYet),
            table: Arc::clone(self),
        });
        shard.held.insert_unique(hash(id.number), Arc::clone(&inode), |inode| hash(inode.number));
        Ok(Held::from_held(inode))
    }

    /// One more hold of an inode that is held. It may have no name.
    pub(crate) fn hold_again(&self, number: u64) -> Option<Node> {
        let shard = self.shard(number).lock();
        let inode = shard.get(number)?;
        inode.holds.fetch_add(1, Ordering::Relaxed);
        Some(Held::from_held(Arc::clone(inode)))
    }

    /// The last name of an inode went: it is reclaimed with its last hold, or soon if there is none.
    pub(crate) fn mark_removed(&self, number: u64) {
        let mut shard = self.shard(number).lock();
        if let Some(removed) = shard.parked.get_mut(&number) {
            *removed = true;
        }
        match shard.get(number) {
            Some(inode) => inode.removed.store(true, Ordering::Release),
            None if !shard.parked.contains_key(&number) => self.buried.add(number),
            None => {}
        }
    }

    /// Keeps an inode without a hold. One that never had a name must be held, because it can be given one.
    pub(crate) fn park(&self, node: Node) -> Option<Node> {
        if node.inode.unnamed.load(Ordering::Acquire) {
            return Some(node);
        }
        let removed = node.inode.removed.load(Ordering::Acquire);
        self.shard(node.inode.number).lock().parked.insert(node.inode.number, removed);
        None
    }

    /// Ends that.
    pub(crate) fn unpark(&self, number: u64) {
        let mut shard = self.shard(number).lock();
        let was_removed = shard.parked.remove(&number) == Some(true);
        if shard.parked.is_empty() {
            shard.parked.shrink_to_fit();
        }
        let is_held = shard.get(number).is_some();
        drop(shard);
        if was_removed && !is_held {
            self.buried.add(number);
        }
    }

    /// Whether an inode is kept, held or parked.
    pub(crate) fn is_held(&self, number: u64) -> bool {
        let shard = self.shard(number).lock();
        shard.get(number).is_some() || shard.parked.contains_key(&number)
    }

    /// How many are held.
    pub(crate) fn len(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().held.len() as u64).sum()
    }

    /// Bytes of DRAM.
    pub(crate) fn bytes(&self) -> u64 {
        // An `Arc` has two counts, and a table a byte for each of its places.
        const INODE: usize = size_of::<HeldInode>() + 16;
        const PARKED: usize = size_of::<(u64, bool)>() + 1;
        let bytes = self.shards.iter().map(|shard| {
            let shard = shard.lock();
            shard.held.len() * INODE + shard.held.allocation_size() + shard.parked.capacity() * PARKED
        });
        bytes.sum::<usize>() as u64
    }
}

impl Holdable for HeldInode {
    fn id(&self) -> InodeId {
        InodeId { number: self.number, generation: self.generation, volume: self.table.volume }
    }

    fn holds(&self) -> &AtomicU32 {
        &self.holds
    }

    fn is_let_go(&self) {
        let mut shard = self.table.shard(self.number).lock();
        // It may have been held again meanwhile, or let go by another thread.
        let is_it = |inode: &Arc<HeldInode>| std::ptr::eq(&**inode, self);
        let Ok(entry) = shard.held.find_entry(hash(self.number), is_it) else { return };
        // Blocks that are held for direct access stay held: the next hold finds the same inode.
        if self.holds.load(Ordering::Acquire) > 0 || self.pins.load(Ordering::Acquire) > 0 {
            return;
        }
        entry.remove();
        let (len, capacity) = (shard.held.len(), shard.held.capacity());
        if len == 0 && capacity > 7 || capacity > 16 && len < capacity / 4 {
            shard.held.shrink_to_fit(|inode| hash(inode.number));
        }
        let is_parked = shard.parked.contains_key(&self.number);
        drop(shard);
        if self.removed.load(Ordering::Acquire) && !is_parked {
            self.table.buried.add(self.number);
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
