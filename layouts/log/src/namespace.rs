//! Names: create, link, unlink, rename.
//!
//! A name is an entry in its directory's log, and the only truth about existence: an inode is in use because a dentry
//! refers to it. So each operation commits in one log, with one fence; only a move between two directories commits in
//! two, as a transaction.
//!
//! An operation that changes names holds the log of every directory concerned; the index in DRAM follows the commit.
//! Two logs are locked in the order of their inode numbers.

use std::sync::Arc;

use nacre_engine::sync::MutexGuard;
use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{Attr, Error, FileKind, Kind, NewInode, Result, Step, Timestamp, with_room};
use nacre_layout_parts::rules::{check_link, check_lookup, check_name, check_new, check_removable};
use nacre_media::{Durable, Flushed, Pm};
use smallvec::SmallVec;
use zerocopy::{FromZeros, IntoBytes};

use crate::alloc::{Purpose, Run};
use crate::batch::{Batch, seal_inline};
use crate::commit::Commit;
use crate::directory::{Dentry, Directory, DirectoryChange, NameHash, Slot, position};
use crate::format::{
    DENTRY_NAME_OFFSET, DentryEntry, INLINE_LINES, INODE_GENERATION_OFFSET, INODE_MAGIC, INODE_VERSION, LINE,
    MAX_XATTR_SIZE, RawInode, RemoveEntry, SYMLINK_INLINE_MAX, SYMLINK_TARGET_OFFSET, SymlinkEntry,
    WriteEntry, inode_seed, kind,
};
use crate::fs::Shared;
use crate::inode::{Inode, Node};
use crate::load::{LoadContext, load_inode};
use crate::log::Log;
use crate::scan::{Ending, LogSource};
use crate::seeded::fault;
use crate::table::FreeInode;

/// The most names of one inode.
const MAX_LINKS: u32 = u32::MAX / 2;

/// A directory with its log locked.
pub(crate) struct Locked<'a> {
    pub(crate) inode: &'a Arc<Inode>,
    pub(crate) directory: &'a Directory,
    pub(crate) log: MutexGuard<'a, Log>,
}

/// A name that is there: its slot, its dentry, and the inode it refers to.
pub(crate) struct Named {
    pub(crate) slot: Slot,
    pub(crate) hash: NameHash,
    /// By which it is removed.
    pub(crate) sequence: u64,
    pub(crate) kind: FileKind,
    pub(crate) node: Node,
}

impl<'a> Locked<'a> {
    /// Locks a directory for a change of its names.
    pub(crate) fn new(inode: &'a Arc<Inode>) -> Result<Locked<'a>> {
        let directory = inode.directory()?;
        let log = inode.log.lock();
        if inode.links() == 0 {
            return Err(Error::new(Kind::NotFound)); // it was removed
        }
        Ok(Locked { inode, directory, log })
    }
}

impl<P: Pm> Shared<P> {
    pub(crate) fn hash(&self, name: &[u8]) -> NameHash {
        NameHash::of(name, self.hash_seed)
    }

    #[inline]
    pub(crate) fn lookup(&self, dir: &Inode, name: &[u8]) -> Result<Node> {
        check_lookup(name)?;
        fault!(self.pm, HeldLate => return self.lookup_and_hold_late(dir, name));
        // Held before the name can go away, so that the inode cannot be reclaimed in between.
        dir.directory()?.lookup(&*self.pm, name, self.hash(name), |slot| self.hold(slot.inode()))
    }

    /// Looks a name up, and holds its inode after its directory was let go, as a mistake.
    fn lookup_and_hold_late(&self, dir: &Inode, name: &[u8]) -> Result<Node> {
        let slot = dir.directory()?.find(&*self.pm, name, self.hash(name))?;
        self.hold(slot.ok_or(Error::new(Kind::NotFound))?.inode())
    }

    /// The attributes of the inode that a name refers to. The inode needs no hold, because its name cannot be removed
    /// meanwhile.
    #[inline]
    pub(crate) fn getattr_at(&self, dir: &Inode, name: &[u8]) -> Result<Attr> {
        check_lookup(name)?;
        dir.directory()?.lookup(&*self.pm, name, self.hash(name), |slot| self.attr_of(slot.inode()))
    }

    /// Looks a name up under its directory's lock.
    pub(crate) fn named(&self, dir: &Directory, name: &[u8]) -> Result<Option<Named>> {
        let hash = self.hash(name);
        let Some(slot) = dir.find(&*self.pm, name, hash)? else { return Ok(None) };
        let dentry = Dentry::read_head(&*self.pm, slot.address())?;
        let node = self.hold(slot.inode())?;
        Ok(Some(Named { slot, hash, sequence: dentry.header.sequence, kind: node.inode.kind, node }))
    }

    pub(crate) fn create(&self, dir: &Arc<Inode>, name: &[u8], new: &NewInode<'_>) -> Result<Node> {
        check_name(name)?;
        dir.directory()?;
        self.reclaim_buried();
        let made = self.make_inode(new, dir.number)?;
        match self.name_new(dir, name, &made, new.now) {
            Ok(()) => Ok(made.node),
            Err(error) => {
                self.unmake(made.node);
                Err(error)
            }
        }
    }

    fn name_new(&self, dir: &Arc<Inode>, name: &[u8], made: &Made, now: Timestamp) -> Result<()> {
        let seeks = || Ok::<_, Error>(dir.directory()?.find(&*self.pm, name, self.hash(name))?.is_some());
        let mut early = None;
        fault!(self.pm, NameSoughtEarly => early = Some(seeks()?));
        let mut locked = Locked::new(dir)?;
        if early.map_or_else(seeks, Ok)? {
            return Err(Error::new(Kind::Exists));
        }
        dir.check_flags(Attr::IMMUTABLE)?;
        self.add_name(&mut locked, name, &made.node.inode, made.unwritten.as_ref(), now)
    }

    /// Commits one new name, and takes it into the index. The inode's bytes, where they are not on media yet, go out
    /// beside the name: one wait for both.
    fn add_name(
        &self,
        locked: &mut Locked<'_>,
        name: &[u8],
        inode: &Inode,
        unwritten: Option<&RawInode>,
        now: Timestamp,
    ) -> Result<()> {
        let mut batch = Batch::default();
        push_dentry(&mut batch, name, inode, now);
        locked.log.make_room(self, locked.inode, &mut batch)?;
        let written = unwritten.map(|raw| self.pm.copy(inode.address, raw.as_bytes())).transpose()?;
        let after = Durable::nothing_before();
        let mut flushed = locked.log.write(self, locked.inode, &mut batch, after)?;
        if let Some(written) = written {
            flushed = flushed.and(written);
        }
        // Durable before anybody sees it: another thread may build on it, in logs that this fence is not for.
        self.pm.fence(flushed);
        let sequence = locked.log.state.next_sequence - 1;
        self.name_added(
            &mut locked.directory.change(),
            &mut locked.log,
            name,
            inode,
            batch.placed(0),
            sequence,
        );
        locked.inode.touch(now);
        Ok(())
    }

    /// The index after a dentry was committed.
    pub(crate) fn name_added(
        &self,
        names: &mut DirectoryChange<'_>,
        log: &mut Log,
        name: &[u8],
        inode: &Inode,
        placed: (u32, u64),
        sequence: u64,
    ) {
        let hash = self.hash(name);
        let slot = Slot::new(placed.1, hash, inode.number, placed.0);
        log.index.hold(placed.0, 1);
        names.insert(slot, position(hash, sequence), inode.kind);
    }

    /// The index after a removal was committed.
    pub(crate) fn name_removed(&self, names: &mut DirectoryChange<'_>, log: &mut Log, named: &Named) {
        // The batch that was just committed may have moved the dentry to a page.
        let slot = names.remove(&*self.pm, named.slot, (named.hash, named.sequence), named.kind);
        log.index.release(slot.owner, 1);
    }

    /// Makes an inode without a name.
    fn make_inode(&self, new: &NewInode<'_>, parent: u64) -> Result<Made> {
        check_new(new, MAX_XATTR_SIZE)?;
        let allocate = || self.inodes.allocate(&*self.pm, &self.alloc);
        // The caller has locks of directories.
        let free = with_room(Step::DeferredFrees, allocate, |_| {
            self.free_everything_waiting();
            Ok(true)
        })?;
        let mut used = Used { number: free.number, runs: SmallVec::new() };
        let built = self.build_inode(new, parent, free, &mut used);
        if built.is_err() && used.number != 0 {
            self.free_runs(&used.runs);
            // Which generation is on media now is not known.
            self.inodes.free(FreeInode { generation: None, ..free });
        }
        if built.is_err() {
            self.set_aside_unless_readable(free.number);
        }
        built
    }

    /// After an inode could not be made, and its number is free again. If its place cannot be read, it is not given out
    /// until the next mount: it would be the next one again.
    fn set_aside_unless_readable(&self, number: u64) {
        let mut raw = RawInode::new_zeroed();
        let address = self.inodes.address(number);
        if address.and_then(|address| self.pm.read(address, raw.as_mut_bytes())).is_err() {
            self.inodes.set_aside(number);
        }
    }

    /// The generation for an inode that is made: the next one.
    fn next_generation(&self, free: FreeInode, address: u64) -> Result<u32> {
        let old = match free.generation {
            Some(generation) => generation,
            None => {
                let mut generation = 0u32;
                self.pm.read(address + INODE_GENERATION_OFFSET, generation.as_mut_bytes())?;
                generation
            }
        };
        let mut generation = old.wrapping_add(1).max(1);
        fault!(self.pm, GenerationKept => generation = old.max(1));
        Ok(generation)
    }

    /// The bytes of a new inode, without entries.
    fn raw_inode(&self, new: &NewInode<'_>, parent: u64, generation: u32, seed: u32) -> RawInode {
        let mut raw = RawInode::new_zeroed();
        raw.magic = INODE_MAGIC;
        raw.version = INODE_VERSION;
        raw.kind = new.kind as u8;
        raw.generation = generation;
        raw.rdev = new.rdev as u32;
        raw.btime = self.times.pack(new.now);
        raw.mode = (new.mode & 0o7777) as u16;
        (raw.uid, raw.gid) = (new.uid, new.gid);
        raw.links = if new.kind == FileKind::Directory { 2 } else { 1 };
        raw.parent = if new.kind == FileKind::Directory { parent } else { 0 };
        raw.checksum = raw.compute_checksum(seed);
        raw.cached_checksum = RawInode::compute_cached_checksum(raw.links, raw.parent, seed);
        raw
    }

    fn build_inode(&self, new: &NewInode<'_>, parent: u64, free: FreeInode, used: &mut Used) -> Result<Made> {
        let number = free.number;
        let address = self.inodes.address(number)?;
        let generation = self.next_generation(free, address)?;
        let seed = inode_seed(self.seed, number, generation);
        let mut raw = self.raw_inode(new, parent, generation, seed);
        let mut pending: Option<Flushed> = None;
        let mut batch = Batch::default();
        if new.kind == FileKind::Symlink {
            self.push_target(&mut batch, new, used, &mut pending)?;
        }
        let (lines, _) = seal_inline(&mut batch, seed);
        raw.lines.as_flattened_mut()[..lines.len()].copy_from_slice(&lines);
        let has_entries = !lines.is_empty() || !new.xattrs.is_empty();
        if has_entries {
            // The header does not vouch for its log: the first entries of the log must be durable before the name.
            let written = self.pm.copy(address, raw.as_bytes())?;
            self.pm.fence(match pending {
                Some(pending) => written.and(pending),
                None => written,
            });
        }
        let source = LogSource { number, generation, seed, address };
        let context = LoadContext {
            hash_seed: self.hash_seed,
            times: self.times,
            graveyard: &self.graveyard,
            reach: &self.reach.read(),
            ending: Ending::Clean,
            drop_last: false,
        };
        let inode = if lines.is_empty() {
            let btime = (self.times.clamp(new.now), self.times);
            Inode::new_empty(source, &raw, new.kind, btime, &self.graveyard)
        } else {
            load_inode(&*self.pm, source, &raw, &context)?.inode
        };
        for &(name, value) in new.xattrs {
            if let Err(error) =
                self.change_xattrs(&inode, name, Some((value, nacre_engine::XattrMode::Set)), None, new.now)
            {
                self.free_inode(&inode);
                used.number = 0; // that freed the number and the runs, too
                return Err(error);
            }
        }
        inode.holds.store(1, Ordering::Relaxed);
        inode.links.store(1, Ordering::Relaxed);
        let inode = Arc::new(inode);
        *self.inodes.slot(number)?.write() = Some(Arc::clone(&inode));
        self.note_made();
        Ok(Made { node: Node::from_held(inode), unwritten: (!has_entries).then_some(raw) })
    }

    fn push_target(
        &self,
        batch: &mut Batch,
        new: &NewInode<'_>,
        used: &mut Used,
        pending: &mut Option<Flushed>,
    ) -> Result<()> {
        if new.target.len() <= SYMLINK_INLINE_MAX {
            let mut entry = SymlinkEntry { target_len: new.target.len() as u64, ..SymlinkEntry::default() };
            entry.header.kind = kind::SYMLINK;
            batch.push(&entry, SYMLINK_TARGET_OFFSET, &[new.target]);
            debug_assert!(SYMLINK_TARGET_OFFSET + new.target.len() <= INLINE_LINES * LINE);
            return Ok(());
        }
        let run = self.alloc.allocate_contiguous(1, Purpose::Data)?;
        used.runs.push(run);
        *pending = Some(self.pm.copy(run.start.offset(), new.target)?);
        let mut entry = WriteEntry {
            place: run.start.0,
            blocks: 1,
            size: new.target.len() as u64,
            mtime: self.times.pack(new.now),
            ..WriteEntry::default()
        };
        entry.header.kind = kind::WRITE;
        batch.push_line(&entry);
        Ok(())
    }

    /// Takes back an inode that got no name.
    fn unmake(&self, node: Node) {
        let number = node.inode.number;
        node.inode.links.store(0, Ordering::Release);
        self.unlinked(node);
        self.set_aside_unless_readable(number);
    }

    pub(crate) fn create_unnamed(&self, new: &NewInode<'_>) -> Result<Node> {
        if new.kind != FileKind::Regular {
            return Err(Error::new(Kind::InvalidInput));
        }
        self.make_unnamed(new)
    }

    /// Makes an inode that a later commit gives a name. Without one it is reclaimed with its last node.
    pub(crate) fn make_unnamed(&self, new: &NewInode<'_>) -> Result<Node> {
        let Made { node, unwritten } = self.make_inode(new, 0)?;
        // Durable before a later link can name it.
        if let Some(raw) = unwritten {
            match self.pm.copy(node.inode.address, raw.as_bytes()) {
                Ok(written) => drop(self.pm.fence(written)),
                Err(error) => {
                    self.unmake(node);
                    return Err(error);
                }
            }
        }
        node.inode.unnamed.store(true, Ordering::Release);
        node.inode.links.store(0, Ordering::Release);
        node.inode.cached_changed.store(true, Ordering::Release);
        Ok(node)
    }

    pub(crate) fn link(
        &self,
        inode: &Arc<Inode>,
        dir: &Arc<Inode>,
        name: &[u8],
        now: Timestamp,
    ) -> Result<()> {
        check_name(name)?;
        let mut locked = Locked::new(dir)?;
        // The error for an existing name comes before those that forbid the link, as in the kernel.
        if locked.directory.find(&*self.pm, name, self.hash(name))?.is_some() {
            return Err(Error::new(Kind::Exists));
        }
        check_link::<Inode>(inode, dir)?;
        let naming = inode.naming.lock();
        self.take_link(inode)?;
        if let Err(error) = self.add_name(&mut locked, name, inode, None, now) {
            self.return_link(inode);
            return Err(error);
        }
        inode.unnamed.store(false, Ordering::Release);
        drop(naming);
        self.links_changed(inode, now);
        Ok(())
    }

    /// Counts one more name, unless the last one is gone already.
    pub(crate) fn take_link(&self, inode: &Inode) -> Result<()> {
        let _attr = inode.attr.lock();
        let mut is_gone = inode.links() == 0 && !inode.unnamed.load(Ordering::Acquire);
        fault!(self.pm, LinkedWhenGone => is_gone = false);
        match inode.links() {
            _ if is_gone => Err(Error::new(Kind::NotFound)),
            MAX_LINKS.. => Err(Error::new(Kind::TooManyLinks)),
            _ => {
                inode.links.fetch_add(1, Ordering::AcqRel);
                Ok(())
            }
        }
    }

    /// Takes back a link that got no name.
    pub(crate) fn return_link(&self, inode: &Inode) {
        let _attr = inode.attr.lock();
        inode.links.fetch_sub(1, Ordering::AcqRel);
    }

    /// After a change of links: ctime, which is kept lazily, as the commit is in the directory's log.
    pub(crate) fn links_changed(&self, inode: &Inode, now: Timestamp) {
        inode.attr.lock().ctime = now;
        inode.relatime.changed();
        inode.lazy.store(true, Ordering::Release);
        inode.cached_changed.store(true, Ordering::Release);
    }

    pub(crate) fn unlink(&self, dir: &Arc<Inode>, name: &[u8], now: Timestamp) -> Result<()> {
        check_name(name)?;
        self.reclaim_buried();
        let mut locked = Locked::new(dir)?;
        let named = self.named(locked.directory, name)?.ok_or(Error::new(Kind::NotFound))?;
        if named.kind == FileKind::Directory {
            return Err(Error::new(Kind::IsDirectory));
        }
        check_removable::<Inode>(dir, &named.node.inode)?;
        let left = {
            let _naming = named.node.inode.naming.lock();
            self.remove_name(&mut locked, &named, now)?
        };
        drop(locked);
        self.name_gone(named.node, left, now);
        Ok(())
    }

    /// Commits the removal of a name; gives how many its inode has left.
    fn remove_name(&self, locked: &mut Locked<'_>, named: &Named, now: Timestamp) -> Result<u32> {
        let mut batch = Batch::default();
        push_remove(&mut batch, named, now);
        let flushed = Commit::of(locked.inode, &mut locked.log).append(self, &mut batch)?;
        let left = {
            let mut names = locked.directory.change();
            self.name_removed(&mut names, &mut locked.log, named);
            self.one_name_fewer(&named.node.inode, now)
        };
        locked.inode.touch(now);
        self.pm.fence(flushed);
        Ok(left)
    }

    /// Counts one name fewer; gives how many are left. The index that the name was in is locked: a thread that sees
    /// that it is gone sees the count, too.
    pub(crate) fn one_name_fewer(&self, inode: &Inode, now: Timestamp) -> u32 {
        if inode.is_directory() {
            inode.links.store(0, Ordering::Release);
            return 0;
        }
        let mut attr = inode.attr.lock();
        attr.ctime = now;
        inode.relatime.changed(); // also for whoever still holds the file
        let fewer = |links: u32| links.checked_sub(1);
        match inode.links.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer) {
            Ok(links) => links - 1,
            Err(none) => {
                // It has more names than it said when it was loaded.
                self.alloc.note_contradiction();
                none
            }
        }
    }

    /// A name was removed, and no lock is held: with the last one the inode goes as soon as it has no holders.
    pub(crate) fn name_gone(&self, node: Node, left: u32, now: Timestamp) {
        if left == 0 {
            self.unlinked(node);
        } else {
            self.links_changed(&node.inode, now);
        }
    }

    pub(crate) fn rmdir(&self, dir: &Arc<Inode>, name: &[u8], now: Timestamp) -> Result<()> {
        check_name(name)?;
        loop {
            let child = self.lookup(dir, name)?;
            if !child.inode.is_directory() {
                return Err(Error::new(Kind::NotDirectory));
            }
            let mut logs = match lock_directories(&*self.pm, &[dir, &child.inode]) {
                Err(_) if child.inode.links() == 0 => continue, // removed: its name is free, or another one's
                logs => logs?,
            };
            let directory = dir.directory()?;
            let named = self.named(directory, name)?.ok_or(Error::new(Kind::NotFound))?;
            if named.node.inode.number != child.inode.number {
                continue; // another directory took the name before the locks
            }
            check_removable::<Inode>(dir, &child.inode)?;
            if child.inode.directory()?.len() > 0 {
                return Err(Error::new(Kind::NotEmpty));
            }
            let locked = logs.of(dir)?;
            self.remove_name(locked, &named, now)?;
            drop(logs);
            drop(named);
            self.unlinked(child);
            return Ok(());
        }
    }
}

/// A new inode.
struct Made {
    node: Node,
    /// Its bytes, where nothing else has to be durable before its name: they are not on media yet.
    unwritten: Option<RawInode>,
}

/// The number and blocks that a new inode has taken so far.
struct Used {
    number: u64,
    runs: SmallVec<[Run; 2]>,
}

/// Directories with locked logs, in the order of their numbers.
pub(crate) struct LockedDirectories<'a> {
    list: SmallVec<[Locked<'a>; 4]>,
}

/// Locks the logs of several directories, each once.
pub(crate) fn lock_directories<'a>(
    pm: &impl Pm,
    directories: &[&'a Arc<Inode>],
) -> Result<LockedDirectories<'a>> {
    let mut order: SmallVec<[&'a Arc<Inode>; 4]> = SmallVec::from_slice(directories);
    order.sort_unstable_by_key(|inode| inode.number);
    fault!(pm, LockedAsCalled => order = SmallVec::from_slice(directories));
    order.dedup_by_key(|inode| inode.number);
    let mut locked = LockedDirectories { list: SmallVec::new() };
    for inode in order {
        locked.list.push(Locked::new(inode)?);
    }
    Ok(locked)
}

impl<'a> LockedDirectories<'a> {
    /// One of them.
    pub(crate) fn of(&mut self, inode: &Inode) -> Result<&mut Locked<'a>> {
        let found = self.list.iter_mut().find(|locked| locked.inode.number == inode.number);
        found.ok_or(Error::new(Kind::InvalidInput))
    }

    /// Two different ones.
    pub(crate) fn pair(&mut self, a: &Inode, b: &Inode) -> Result<(&mut Locked<'a>, &mut Locked<'a>)> {
        let position =
            |inode: &Inode| self.list.iter().position(|locked| locked.inode.number == inode.number);
        let (Some(a), Some(b)) = (position(a), position(b)) else {
            return Err(Error::new(Kind::InvalidInput));
        };
        let [a, b] = self.list.get_disjoint_mut([a, b]).map_err(|_| Error::new(Kind::InvalidInput))?;
        Ok((a, b))
    }
}

pub(crate) fn push_dentry(batch: &mut Batch, name: &[u8], inode: &Inode, now: Timestamp) {
    let mut entry = DentryEntry {
        inode: inode.number,
        generation: inode.generation,
        kind: inode.kind as u8,
        name_len: name.len() as u8,
        time: inode.pack(now),
        ..DentryEntry::default()
    };
    entry.header.kind = kind::DENTRY;
    batch.push(&entry, DENTRY_NAME_OFFSET, &[name]);
}

pub(crate) fn push_remove(batch: &mut Batch, named: &Named, now: Timestamp) {
    let mut entry = RemoveEntry {
        cookie: named.sequence,
        time: named.node.inode.pack(now),
        inode: named.node.inode.number,
        ..RemoveEntry::default()
    };
    entry.header.kind = kind::REMOVE;
    batch.push_line(&entry);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nacre_engine::{FileKind, Kind, Names, NewInode, Timestamp};
    use nacre_media::SimPm;

    use crate::format::LINE;
    use crate::{LogFs, MkfsOptions, MountOptions, mkfs};

    /// Its number was given back, and was the next one again: no file could be made any more.
    #[test]
    fn a_free_inode_that_cannot_be_read_fails_one_create() {
        // The generation is in the first line, and is read; the others are only written.
        for line in 0..4 {
            let pm = Arc::new(SimPm::new(16 << 20));
            mkfs(&*pm, &MkfsOptions::default()).unwrap();
            let fs = LogFs::mount(Arc::clone(&pm), &MountOptions::default()).unwrap();
            let new = NewInode::of_root(FileKind::Regular, 0o644, Timestamp::new(1, 0));
            let first = fs.create(&fs.root(), b"first", &new).unwrap();
            let (number, in_use) = (fs.id(&first).number, fs.shared.inodes.in_use());
            pm.poison(fs.shared.inodes.address(number + 1).unwrap() + line * LINE as u64, 1);
            let error = fs.create(&fs.root(), b"second", &new).map(drop).unwrap_err();
            assert_eq!((error.kind(), fs.shared.inodes.in_use()), (Kind::Media, in_use), "line {line}");
            let second = fs.create(&fs.root(), b"second", &new).unwrap();
            assert_eq!(fs.id(&second).number, number + 2, "line {line}");
        }
    }
}
