//! The index of a directory in DRAM: a hash table of its names, rebuilt from the log.
//!
//! A slot has 26 bits of the name's hash and the address of the dentry on media, where the name itself is compared; 16
//! bytes a name. The order for reading the directory is built when it is read, and goes when it is not read any more.
//!
//! That order is by the hash of names ([`position`]), and not by their age. A name that is replaced, or comes again,
//! has its place again. A name that is made while a reader goes on is as likely behind it as before it. By age, a
//! program that renames each name that is reported would put it at the end, to be reported again, and so on for ever.

use std::collections::BTreeSet;
use std::ops::Bound;

use hashbrown::HashTable;
use nacre_engine::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use nacre_engine::sync::{EXPLORED, RwLock, RwLockWriteGuard};
use nacre_engine::{Error, FileKind, InodeId, Kind, Result};
use nacre_layout_parts::contract::Listed;
use nacre_layout_parts::rules::MAX_NAME;
use nacre_media::Pm;
use zerocopy::FromBytes;

use crate::format::{DENTRY_NAME_OFFSET, DentryEntry, LINE};
use crate::log::Owner;

/// Bits of the hash that a slot keeps.
const HASH_BITS: u32 = 26;
/// Bits of the hash in a cookie, above those of the sequence number: 63 in all.
const COOKIE_HASH_BITS: u32 = 36;
const COOKIE_SEQUENCE_BITS: u32 = 27;
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
            packed: (address / LINE as u64) | (hash.short() << (64 - HASH_BITS)),
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

    /// The bits of the name's hash that it keeps.
    fn short(self) -> u64 {
        self.packed >> (64 - HASH_BITS)
    }

    fn spread(self) -> u64 {
        spread(self.short())
    }
}

/// The hash of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NameHash(u64);

impl NameHash {
    pub(crate) fn of(name: &[u8], seed: u64) -> NameHash {
        NameHash(xxhash_rust::xxh3::xxh3_64_with_seed(name, seed))
    }

    /// The bits that a slot keeps.
    fn short(self) -> u64 {
        self.0 >> (64 - HASH_BITS)
    }
}

/// The bits that a slot keeps, spread over 64 as the table wants it.
fn spread(short: u64) -> u64 {
    (short + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Where a name stands when its directory is read: its cookie, which media says as long as the name is there. Names of
/// one hash stand together, the youngest first, so that one that was reported and replaced is not reported again.
pub(crate) fn position(hash: NameHash, sequence: u64) -> u64 {
    // Front ends have the first cookies, which are of no hash but 0.
    let hash = (hash.0 >> (64 - COOKIE_HASH_BITS)).max(1);
    let age = !sequence & ((1 << COOKIE_SEQUENCE_BITS) - 1);
    hash << COOKIE_SEQUENCE_BITS | age
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
    /// Built by a reader that finds none.
    order: Option<Order>,
}

/// The order for reading. A directory that changes and is not read pays for it with each change, and so it is dropped
/// after as many changes as its names are worth ([`Order::is_worth_keeping`]).
struct Order {
    /// Cookie and address of each name.
    names: BTreeSet<(u64, u64)>,
    /// Changes since the last reader.
    unread: AtomicUsize,
}

impl Order {
    /// Building it again costs a read of each name on media, a few changes' worth.
    const CHANGES_A_NAME: usize = if EXPLORED { 0 } else { 4 };

    /// Up to `limit` dentries with cookies greater than `after`.
    fn read(&self, pm: &impl Pm, after: u64, limit: usize) -> Result<Vec<Dentry>> {
        self.unread.store(0, Ordering::Relaxed);
        let behind = (Bound::Excluded((after, u64::MAX)), Bound::Unbounded);
        self.names.range(behind).take(limit).map(|&(_, address)| Dentry::read(pm, address)).collect()
    }

    fn change(&mut self) -> &mut BTreeSet<(u64, u64)> {
        // Changed alone, so that a plain store will do.
        self.unread.store(self.unread.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        &mut self.names
    }

    fn is_worth_keeping(&self) -> bool {
        self.unread.load(Ordering::Relaxed) <= Self::CHANGES_A_NAME * self.names.len().max(64)
    }
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

    /// The entry of a directory that is read.
    pub(crate) fn listed(&self, hash_seed: u64) -> Result<Listed> {
        let id = InodeId { number: self.raw.inode, generation: self.raw.generation, volume: 0 };
        Ok(Listed { cookie: self.cookie(hash_seed), name: self.name().into(), id, kind: self.kind()? })
    }

    fn kind(&self) -> Result<FileKind> {
        FileKind::from_u8(self.raw.kind).ok_or_else(|| Error::corrupt("dentry: kind"))
    }

    /// Where to go on reading behind it.
    pub(crate) fn cookie(&self, hash_seed: u64) -> u64 {
        position(NameHash::of(self.name(), hash_seed), self.raw.header.sequence)
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

    /// Locks the index for a change: no reader sees a part of it.
    pub(crate) fn change(&self) -> DirectoryChange<'_> {
        DirectoryChange { directory: self, inner: self.inner.write() }
    }

    /// Fills an empty index at once.
    pub(crate) fn fill(&self, slots: &[Slot], subdirectories: u32) {
        let mut inner = self.inner.write();
        inner.table.reserve(slots.len(), |slot| slot.spread());
        for &slot in slots {
            inner.table.insert_unique(slot.spread(), slot, |slot| slot.spread());
        }
        self.len.store(slots.len(), Ordering::Relaxed);
        self.subdirectories.store(subdirectories, Ordering::Relaxed);
    }

    /// A dentry has moved on media.
    pub(crate) fn moved(&self, name: &[u8], seed: u64, sequence: u64, old_address: u64, new: (Owner, u64)) {
        let hash = NameHash::of(name, seed);
        let mut inner = self.inner.write();
        let old = Slot::new(old_address, hash, 0, 0).packed;
        if let Some(slot) = inner.table.find_mut(spread(hash.short()), |slot| slot.packed == old) {
            *slot = Slot::new(new.1, hash, slot.inode(), new.0);
        }
        let cookie = position(hash, sequence);
        if let Some(order) = &mut inner.order
            && order.names.remove(&(cookie, old_address))
        {
            order.names.insert((cookie, new.1));
        }
    }

    /// True when the dentry at this address, with this name, is in the index.
    pub(crate) fn refers_to(&self, name: &[u8], seed: u64, address: u64) -> bool {
        let hash = NameHash::of(name, seed);
        let packed = Slot::new(address, hash, 0, 0).packed;
        self.inner.read().table.find(spread(hash.short()), |slot| slot.packed == packed).is_some()
    }

    /// Up to `limit` dentries with cookies greater than `after`, in order.
    pub(crate) fn read(&self, pm: &impl Pm, hash_seed: u64, after: u64, limit: usize) -> Result<Vec<Dentry>> {
        if let Some(order) = &self.inner.read().order {
            return order.read(pm, after, limit);
        }
        // Read under the lock that it is built under: a change between them could drop it.
        self.inner.write().built_order(pm, hash_seed)?.read(pm, after, limit)
    }

    pub(crate) fn heap_bytes(&self) -> u64 {
        let inner = self.inner.read();
        // Nodes of the tree are two thirds full, or more.
        let order = inner.order.as_ref().map_or(0, |order| order.names.len() * 24);
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
        inner.table.insert_unique(slot.spread(), slot, |slot| slot.spread());
        if let Some(order) = &mut inner.order {
            order.change().insert((cookie, slot.address()));
        }
        // Changed under the lock only, so that a plain store will do.
        directory.len.store(directory.len() + 1, Ordering::Relaxed);
        if kind == FileKind::Directory {
            directory.subdirectories.store(directory.subdirectories() + 1, Ordering::Relaxed);
        }
    }

    /// Removes a name that is there, by its sequence number; gives back its slot as it was, in case its dentry was
    /// moved since it was found.
    pub(crate) fn remove(
        &mut self,
        pm: &impl Pm,
        slot: Slot,
        (hash, sequence): (NameHash, u64),
        kind: FileKind,
    ) -> Slot {
        let DirectoryChange { directory, inner } = self;
        let spread = slot.spread();
        let mut removed = slot;
        match inner.table.find_entry(spread, |other| other.packed == slot.packed) {
            Ok(entry) => removed = entry.remove().0,
            Err(_) => {
                let same = |other: &Slot| {
                    other.short() == slot.short()
                        && other.inode == slot.inode
                        && Dentry::read_head(pm, other.address())
                            .is_ok_and(|dentry| dentry.header.sequence == sequence)
                };
                if let Ok(entry) = inner.table.find_entry(spread, same) {
                    removed = entry.remove().0;
                }
            }
        }
        if let Some(order) = &mut inner.order {
            order.change().remove(&(position(hash, sequence), removed.address()));
        }
        inner.order.take_if(|order| !order.is_worth_keeping());
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
        let found = self.table.find(spread(hash.short()), |slot| {
            slot.short() == hash.short()
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

    fn built_order(&mut self, pm: &impl Pm, hash_seed: u64) -> Result<&Order> {
        let order = match self.order.take() {
            Some(order) => order,
            None => {
                let mut entries = Vec::with_capacity(self.table.len());
                for slot in &self.table {
                    let dentry = Dentry::read(pm, slot.address())?;
                    entries.push((dentry.cookie(hash_seed), slot.address()));
                }
                Order { names: entries.into_iter().collect(), unread: AtomicUsize::new(0) }
            }
        };
        Ok(self.order.insert(order))
    }
}
