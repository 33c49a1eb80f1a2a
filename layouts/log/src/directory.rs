//! The index of a directory in DRAM: a hash table of its names, rebuilt from the log.
//!
//! A slot has 26 bits of the name's hash and the address of the dentry on media, where the name itself is compared; 16
//! bytes a name. The order for reading the directory (by cookie) is built when it is first read.

use hashbrown::HashTable;
use nacre_engine::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use nacre_engine::sync::{RwLock, RwLockWriteGuard};
use nacre_engine::{Error, FileKind, Kind, Result};
use nacre_media::Pm;
use zerocopy::FromBytes;

use crate::commit::Owner;
use crate::format::{DENTRY_NAME_OFFSET, DentryEntry, LINE};

/// Bits of the hash that a slot keeps.
const HASH_BITS: u32 = 26;
/// The longest name.
pub(crate) const MAX_NAME: usize = 255;
/// Lines of the longest dentry.
const MAX_DENTRY: usize = (DENTRY_NAME_OFFSET + MAX_NAME).div_ceil(LINE) * LINE;

/// One name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Address of the dentry in lines (38 bits), and the hash above it.
    packed: u64,
    inode: u32,
    pub(crate) owner: Owner,
}

impl Slot {
    pub(crate) fn new(address: u64, hash: NameHash, inode: u64, owner: Owner) -> Slot {
        debug_assert!(address.is_multiple_of(LINE as u64) && inode <= u64::from(u32::MAX));
        Slot {
            packed: (address / LINE as u64) | (u64::from(hash.0) << (64 - HASH_BITS)),
            inode: inode as u32,
            owner,
        }
    }

    pub(crate) fn address(self) -> u64 {
        (self.packed & ((1 << (64 - HASH_BITS)) - 1)) * LINE as u64
    }

    pub(crate) fn inode(self) -> u64 {
        u64::from(self.inode)
    }

    fn hash(self) -> NameHash {
        NameHash((self.packed >> (64 - HASH_BITS)) as u32)
    }
}

/// The hash of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NameHash(u32);

impl NameHash {
    pub(crate) fn of(name: &[u8], seed: u64) -> NameHash {
        NameHash((xxhash_rust::xxh3::xxh3_64_with_seed(name, seed) >> (64 - HASH_BITS)) as u32)
    }

    /// Spread over 64 bits, as the table wants it.
    fn spread(self) -> u64 {
        (u64::from(self.0) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// The names of a directory.
pub(crate) struct Directory {
    inner: RwLock<Inner>,
    /// The number of the directory that this one is in.
    pub(crate) parent: AtomicU64,
    subdirectories: AtomicU32,
    len: AtomicUsize,
}

#[derive(Default)]
struct Inner {
    table: HashTable<Slot>,
    /// (cookie, address) in the order of cookies, address 0 for names that are gone; built on first use.
    order: Option<Order>,
}

#[derive(Default)]
struct Order {
    entries: Vec<(u64, u64)>,
    gone: usize,
}

/// A dentry as it is read from media.
pub(crate) struct Dentry {
    pub(crate) raw: DentryEntry,
    bytes: [u8; MAX_DENTRY],
}

impl Dentry {
    /// Reads the dentry at `address` without its name.
    pub(crate) fn read_head(pm: &impl Pm, address: u64) -> Result<DentryEntry> {
        let mut line = [0; LINE];
        pm.read(address, &mut line)?;
        let (raw, _) = DentryEntry::read_from_prefix(&line).map_err(|_| damaged(address))?;
        if raw.header.kind != crate::format::kind::DENTRY || raw.name_len == 0 {
            return Err(damaged(address));
        }
        Ok(raw)
    }

    /// Reads the dentry at `address`.
    pub(crate) fn read(pm: &impl Pm, address: u64) -> Result<Dentry> {
        let raw = Dentry::read_head(pm, address)?;
        let mut bytes = [0; MAX_DENTRY];
        pm.read(address, &mut bytes[..LINE])?;
        let used = DENTRY_NAME_OFFSET + usize::from(raw.name_len);
        if used > LINE {
            pm.read(address + LINE as u64, &mut bytes[LINE..used])?;
        }
        Ok(Dentry { raw, bytes })
    }

    pub(crate) fn name(&self) -> &[u8] {
        &self.bytes[DENTRY_NAME_OFFSET..DENTRY_NAME_OFFSET + usize::from(self.raw.name_len)]
    }

    pub(crate) fn kind(&self) -> Result<FileKind> {
        FileKind::from_u8(self.raw.kind).ok_or_else(|| Error::corrupt("dentry: kind"))
    }

    pub(crate) fn cookie(&self) -> u64 {
        self.raw.header.sequence
    }
}

fn damaged(address: u64) -> Error {
    Error::corrupt(format!("dentry at byte {address}"))
}

/// True when the dentry at `address` has this name.
#[inline]
fn name_matches(pm: &impl Pm, address: u64, name: &[u8]) -> Result<bool> {
    let mut line = [0u8; LINE];
    pm.read(address, &mut line)?;
    if usize::from(line[DENTRY_NAME_LEN_OFFSET]) != name.len() {
        return Ok(false);
    }
    let first = name.len().min(LINE - DENTRY_NAME_OFFSET);
    if line[DENTRY_NAME_OFFSET..DENTRY_NAME_OFFSET + first] != name[..first] {
        return Ok(false);
    }
    if first == name.len() {
        return Ok(true);
    }
    let mut rest = [0u8; MAX_NAME];
    let rest = &mut rest[..name.len() - first];
    pm.read(address + LINE as u64, rest)?;
    Ok(*rest == name[first..])
}

const DENTRY_NAME_LEN_OFFSET: usize = std::mem::offset_of!(DentryEntry, name_len);

impl Directory {
    pub(crate) fn new(parent: u64) -> Directory {
        Directory {
            inner: RwLock::default(),
            parent: AtomicU64::new(parent),
            subdirectories: AtomicU32::new(0),
            len: AtomicUsize::new(0),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    pub(crate) fn subdirectories(&self) -> u32 {
        self.subdirectories.load(Ordering::Relaxed)
    }

    /// The slot of a name. `found` runs while the name cannot be removed from the index.
    #[inline]
    pub(crate) fn lookup<R>(
        &self,
        pm: &impl Pm,
        name: &[u8],
        hash: NameHash,
        found: impl FnOnce(Slot) -> Result<R>,
    ) -> Result<R> {
        let inner = self.inner.read();
        match inner.find(pm, name, hash)? {
            Some(slot) => found(slot),
            None => Err(Error::new(Kind::NotFound)),
        }
    }

    /// The slot of a name, or nothing.
    pub(crate) fn find(&self, pm: &impl Pm, name: &[u8], hash: NameHash) -> Result<Option<Slot>> {
        self.inner.read().find(pm, name, hash)
    }

    /// Locks the index for a change: nobody sees a part of it.
    pub(crate) fn change(&self) -> DirectoryChange<'_> {
        DirectoryChange { directory: self, inner: self.inner.write() }
    }

    /// Fills an empty index at once.
    pub(crate) fn fill(&self, slots: &[Slot], subdirectories: u32) {
        let mut inner = self.inner.write();
        inner.table.reserve(slots.len(), |slot| slot.hash().spread());
        for &slot in slots {
            inner.table.insert_unique(slot.hash().spread(), slot, |slot| slot.hash().spread());
        }
        self.len.store(slots.len(), Ordering::Relaxed);
        self.subdirectories.store(subdirectories, Ordering::Relaxed);
    }

    /// A dentry has moved on media.
    pub(crate) fn moved(&self, name: &[u8], seed: u64, cookie: u64, old_address: u64, new: (Owner, u64)) {
        let hash = NameHash::of(name, seed);
        let mut inner = self.inner.write();
        let old = Slot::new(old_address, hash, 0, 0).packed;
        if let Some(slot) = inner.table.find_mut(hash.spread(), |slot| slot.packed == old) {
            *slot = Slot::new(new.1, hash, slot.inode(), new.0);
        }
        if let Some(order) = &mut inner.order
            && let Ok(index) = order.entries.binary_search_by_key(&cookie, |&(cookie, _)| cookie)
            && order.entries[index].1 != 0
        {
            order.entries[index].1 = new.1;
        }
    }

    /// True when the dentry at this address, with this name, is in the index.
    pub(crate) fn refers_to(&self, name: &[u8], seed: u64, address: u64) -> bool {
        let hash = NameHash::of(name, seed);
        let packed = Slot::new(address, hash, 0, 0).packed;
        self.inner.read().table.find(hash.spread(), |slot| slot.packed == packed).is_some()
    }

    /// Up to `limit` dentries with cookies greater than `after`, in order.
    pub(crate) fn read(&self, pm: &impl Pm, after: u64, limit: usize) -> Result<Vec<Dentry>> {
        if self.inner.read().order.is_none() {
            self.inner.write().build_order(pm)?;
        }
        let inner = self.inner.read();
        let Some(order) = &inner.order else { return Ok(Vec::new()) };
        let from = order.entries.partition_point(|&(cookie, _)| cookie <= after);
        let present = order.entries[from..].iter().filter(|&&(_, address)| address != 0);
        present.take(limit).map(|&(_, address)| Dentry::read(pm, address)).collect()
    }

    pub(crate) fn heap_bytes(&self) -> u64 {
        let inner = self.inner.read();
        let order = inner.order.as_ref().map_or(0, |order| order.entries.capacity() * 16);
        (size_of::<Directory>() + inner.table.allocation_size() + order) as u64
    }
}

/// A change of a directory's names.
pub(crate) struct DirectoryChange<'a> {
    directory: &'a Directory,
    inner: RwLockWriteGuard<'a, Inner>,
}

impl DirectoryChange<'_> {
    /// Adds a name that is not there, or goes with the same change.
    pub(crate) fn insert(&mut self, slot: Slot, cookie: u64, kind: FileKind) {
        let DirectoryChange { directory, inner } = self;
        inner.table.insert_unique(slot.hash().spread(), slot, |slot| slot.hash().spread());
        if let Some(order) = &mut inner.order {
            order.entries.push((cookie, slot.address()));
        }
        // Changed under the lock only, so that a plain store will do.
        directory.len.store(directory.len() + 1, Ordering::Relaxed);
        if kind == FileKind::Directory {
            directory.subdirectories.store(directory.subdirectories() + 1, Ordering::Relaxed);
        }
    }

    /// Removes a name that is there; gives back its slot as it was, in case its dentry was moved since it was found.
    pub(crate) fn remove(&mut self, pm: &impl Pm, slot: Slot, cookie: u64, kind: FileKind) -> Slot {
        let DirectoryChange { directory, inner } = self;
        let hash = slot.hash().spread();
        let mut removed = slot;
        match inner.table.find_entry(hash, |other| other.packed == slot.packed) {
            Ok(entry) => removed = entry.remove().0,
            Err(_) => {
                let same = |other: &Slot| {
                    other.hash() == slot.hash()
                        && other.inode == slot.inode
                        && Dentry::read_head(pm, other.address())
                            .is_ok_and(|dentry| dentry.header.sequence == cookie)
                };
                if let Ok(entry) = inner.table.find_entry(hash, same) {
                    removed = entry.remove().0;
                }
            }
        }
        if let Some(order) = &mut inner.order {
            order.remove(cookie);
        }
        directory.len.store(directory.len() - 1, Ordering::Relaxed);
        if kind == FileKind::Directory {
            directory.subdirectories.store(directory.subdirectories() - 1, Ordering::Relaxed);
        }
        removed
    }
}

impl Inner {
    #[inline]
    fn find(&self, pm: &impl Pm, name: &[u8], hash: NameHash) -> Result<Option<Slot>> {
        let mut failed = None;
        let found = self.table.find(hash.spread(), |slot| {
            slot.hash() == hash
                && name_matches(pm, slot.address(), name).unwrap_or_else(|error| {
                    failed = Some(error);
                    false
                })
        });
        match (found, failed) {
            (Some(slot), _) => Ok(Some(*slot)),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(None),
        }
    }

    fn build_order(&mut self, pm: &impl Pm) -> Result<()> {
        if self.order.is_some() {
            return Ok(());
        }
        let mut entries = Vec::with_capacity(self.table.len());
        for slot in &self.table {
            let mut header = [0u8; 16];
            pm.read(slot.address(), &mut header)?;
            let cookie = u64::from_le_bytes(header[8..].try_into().unwrap_or_default());
            entries.push((cookie, slot.address()));
        }
        entries.sort_unstable();
        self.order = Some(Order { entries, gone: 0 });
        Ok(())
    }
}

impl Order {
    fn remove(&mut self, cookie: u64) {
        if let Ok(index) = self.entries.binary_search_by_key(&cookie, |&(cookie, _)| cookie) {
            self.entries[index].1 = 0;
            self.gone += 1;
        }
        if self.gone > 64 && self.gone * 2 > self.entries.len() {
            self.entries.retain(|&(_, address)| address != 0);
            self.gone = 0;
        }
    }
}
