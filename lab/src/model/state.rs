//! The state of the reference model: a map of inodes, and the checks that every operation on names shares.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use nacre_engine::{
    Attr, BLOCK_SIZE, Error, FileKind, InodeId, Kind, NewInode, ReservedBlocks, Resource, Result, Timestamp,
};

/// Longest name in bytes.
pub(super) const MAX_NAME: usize = 255;
/// Longest target of a symbolic link in bytes.
const MAX_TARGET: usize = 4095;
/// The number of the root directory.
pub(super) const ROOT: u64 = 1;
/// The first cookie of a directory.
const FIRST_COOKIE: u64 = 3;

/// A cookie for a name that is not there. It depends on the hash, so that a name that comes again has the same
/// position. A reader of the directory therefore does not meet new names for ever.
fn free_cookie(name: &[u8], entries: &BTreeMap<u64, Entry>) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(name);
    let wanted = (hasher.finish() >> 2).max(FIRST_COOKIE);
    (wanted..).find(|cookie| !entries.contains_key(cookie)).expect("fewer names than cookies")
}

/// One block of a file that is not a hole.
#[derive(Debug, Clone)]
pub(super) struct FileBlockState {
    /// Where it would be on a device: unique for as long as the file system exists.
    pub(super) place: u64,
    /// Its bytes, or `None` while it is allocated and not written.
    pub(super) bytes: Option<Box<[u8]>>,
}

/// One entry of a directory.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) name: Vec<u8>,
    pub(super) number: u64,
}

/// The part of an inode that depends on its kind.
#[derive(Debug, Clone)]
pub(super) enum Body {
    /// A regular file: its blocks by index; a missing block is a hole.
    File(BTreeMap<u64, FileBlockState>),
    /// A directory: its entries by cookie, and by name.
    Directory { entries: BTreeMap<u64, Entry>, names: BTreeMap<Vec<u8>, u64>, parent: u64 },
    /// A symbolic link: its target.
    Symlink(Vec<u8>),
    /// A node or socket: nothing.
    Special,
}

/// One inode.
#[derive(Debug, Clone)]
pub(super) struct Inode {
    pub(super) attr: Attr,
    pub(super) body: Body,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Nodes that refer to it.
    pub(super) holds: u64,
    /// Made without a name, and never named since: it may still be linked.
    pub(super) linkable: bool,
}

impl Inode {
    /// Sets ctime and counts the change.
    pub(super) fn changed(&mut self, now: Timestamp) {
        self.attr.ctime = now;
        self.attr.change += 1;
    }

    /// Sets mtime and ctime and counts the change.
    pub(super) fn modified(&mut self, now: Timestamp) {
        self.attr.mtime = now;
        self.changed(now);
    }

    pub(super) fn is_directory(&self) -> bool {
        self.attr.kind == FileKind::Directory
    }

    pub(super) fn has_flag(&self, flag: u32) -> bool {
        self.attr.flags & flag != 0
    }

    /// Whether a flag forbids to remove, rename or link it, or to change its attributes.
    pub(super) fn is_locked(&self) -> bool {
        self.has_flag(Attr::IMMUTABLE | Attr::APPEND_ONLY)
    }

    /// The blocks of a regular file.
    pub(super) fn blocks(&self) -> Result<&BTreeMap<u64, FileBlockState>> {
        match &self.body {
            Body::File(blocks) => Ok(blocks),
            Body::Directory { .. } => Err(Kind::IsDirectory.into()),
            Body::Symlink(_) | Body::Special => Err(Kind::InvalidInput.into()),
        }
    }

    /// The blocks of a regular file, to change.
    pub(super) fn blocks_mut(&mut self) -> &mut BTreeMap<u64, FileBlockState> {
        match &mut self.body {
            Body::File(blocks) => blocks,
            _ => unreachable!("the caller has asked for the blocks before"),
        }
    }

    fn is_empty_directory(&self) -> bool {
        matches!(&self.body, Body::Directory { entries, .. } if entries.is_empty())
    }
}

/// The whole file system.
#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) inodes: BTreeMap<u64, Inode>,
    /// Numbers that were given back, with the generation that they had.
    free_numbers: Vec<(u64, u32)>,
    next_number: u64,
    next_place: u64,
    /// Blocks in all.
    pub(super) capacity: u64,
    /// Blocks in use.
    pub(super) used: u64,
    /// A regular file was made immutable or append-only once.
    pub(super) has_guarded: bool,
    /// Blocks that are reserved for later writes, once there are any. Its atomics are not for tests of interleavings,
    /// which use the model beside the threads that they explore.
    pub(super) reserved: Option<Arc<ReservedBlocks>>,
    /// Most inodes that may exist.
    pub(super) max_inodes: u64,
}

impl State {
    /// A file system with an empty root directory.
    pub(super) fn new(capacity: u64, max_inodes: u64) -> State {
        let mut state = State {
            inodes: BTreeMap::new(),
            free_numbers: Vec::new(),
            next_number: ROOT,
            next_place: 0,
            capacity,
            used: 0,
            has_guarded: false,
            reserved: None,
            max_inodes,
        };
        let root = NewInode {
            kind: FileKind::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: &[],
            xattrs: &[],
            now: Timestamp::default(),
        };
        state.insert(&root, ROOT);
        state.get_mut(ROOT).attr.links = 2;
        state
    }

    /// The state after a remount: nothing is held, and inodes without a name are gone.
    pub(super) fn remounted(&self) -> State {
        let mut state = self.clone();
        state.reserved = None;
        let numbers: Vec<u64> = state.inodes.keys().copied().collect();
        for number in numbers {
            state.get_mut(number).holds = 0;
            state.reclaim_if_unused(number);
        }
        state
    }

    pub(super) fn get(&self, number: u64) -> &Inode {
        &self.inodes[&number]
    }

    pub(super) fn get_mut(&mut self, number: u64) -> &mut Inode {
        self.inodes.get_mut(&number).expect("a held or named inode exists")
    }

    /// Adds an inode without links and returns its number. The caller has validated `new`.
    pub(super) fn insert(&mut self, new: &NewInode<'_>, parent: u64) -> u64 {
        let (number, generation) = match self.free_numbers.pop() {
            Some((number, generation)) => (number, generation + 1),
            None => {
                self.next_number += 1;
                (self.next_number - 1, 1)
            }
        };
        let body = match new.kind {
            FileKind::Regular => Body::File(BTreeMap::new()),
            FileKind::Directory => {
                Body::Directory { entries: BTreeMap::new(), names: BTreeMap::new(), parent }
            }
            FileKind::Symlink => Body::Symlink(new.target.to_vec()),
            _ => Body::Special,
        };
        let attr = Attr {
            id: InodeId { number, generation, volume: 0 },
            kind: new.kind,
            mode: new.mode & 0o7777,
            links: 0,
            uid: new.uid,
            gid: new.gid,
            rdev: new.rdev,
            size: new.target.len() as u64,
            allocated: 0,
            atime: new.now,
            mtime: new.now,
            ctime: new.now,
            btime: new.now,
            flags: 0,
            change: 1,
        };
        let xattrs = new.xattrs.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        self.inodes.insert(number, Inode { attr, body, xattrs, holds: 0, linkable: false });
        number
    }

    /// Whether `new` is sensible and there is room for it.
    pub(super) fn check_new(&self, new: &NewInode<'_>) -> Result<()> {
        match new.kind {
            FileKind::Symlink if new.target.is_empty() => return Err(Kind::InvalidInput.into()),
            FileKind::Symlink if new.target.len() > MAX_TARGET => return Err(Kind::NameTooLong.into()),
            FileKind::Symlink => {}
            _ if !new.target.is_empty() => return Err(Kind::InvalidInput.into()),
            _ => {}
        }
        if self.inodes.len() as u64 >= self.max_inodes {
            Err(Error::no_space(Resource::Inodes, 0))
        } else {
            Ok(())
        }
    }

    /// Gives back an inode that has neither links nor nodes.
    pub(super) fn reclaim_if_unused(&mut self, number: u64) {
        let inode = self.get(number);
        if inode.attr.links > 0 || inode.holds > 0 {
            return;
        }
        let generation = inode.attr.id.generation;
        if let Body::File(blocks) = &inode.body {
            self.used -= blocks.len() as u64;
        }
        self.inodes.remove(&number);
        self.free_numbers.push((number, generation));
    }

    /// A place for a new block.
    pub(super) fn new_place(&mut self) -> u64 {
        self.next_place += 1;
        self.next_place
    }

    /// The number of reserved blocks.
    pub(super) fn reserved_blocks(&self) -> u64 {
        self.reserved.as_ref().map_or(0, |reserved| reserved.blocks())
    }

    /// Refuses to use `blocks` more blocks than there are.
    pub(super) fn check_space(&self, blocks: u64) -> Result<()> {
        if blocks > (self.capacity - self.used).saturating_sub(self.reserved_blocks()) {
            Err(Error::no_space(Resource::Pm, blocks))
        } else {
            Ok(())
        }
    }

    /// The first check of every operation on a name: the directory is one, it is not removed, and the name can be one.
    pub(super) fn check_name(&self, dir: u64, name: &[u8]) -> Result<()> {
        let inode = self.get(dir);
        if !inode.is_directory() {
            return Err(Kind::NotDirectory.into());
        }
        if inode.attr.links == 0 {
            return Err(Kind::NotFound.into());
        }
        if name.len() > MAX_NAME {
            return Err(Kind::NameTooLong.into());
        }
        let impossible = matches!(name, b"" | b"." | b"..") || name.iter().any(|b| matches!(b, b'/' | 0));
        if impossible { Err(Kind::InvalidInput.into()) } else { Ok(()) }
    }

    /// The inode that a name refers to.
    pub(super) fn find(&self, dir: u64, name: &[u8]) -> Option<u64> {
        match &self.get(dir).body {
            Body::Directory { entries, names, .. } => names.get(name).map(|cookie| entries[cookie].number),
            _ => None,
        }
    }

    /// The directory that a directory is in.
    pub(super) fn parent_of(&self, dir: u64) -> u64 {
        match &self.get(dir).body {
            Body::Directory { parent, .. } => *parent,
            _ => unreachable!("only directories are asked for their parent"),
        }
    }

    /// Updates the parent that a directory stores.
    pub(super) fn set_parent(&mut self, dir: u64, new_parent: u64) {
        match &mut self.get_mut(dir).body {
            Body::Directory { parent, .. } => *parent = new_parent,
            _ => unreachable!("only directories have a parent"),
        }
    }

    /// Whether `inner` is `outer` or somewhere below it.
    pub(super) fn is_at_or_below(&self, inner: u64, outer: u64) -> bool {
        let mut dir = inner;
        while dir != outer {
            if dir == ROOT {
                return false;
            }
            dir = self.parent_of(dir);
        }
        true
    }

    /// Refuses to add a name to a directory that a flag protects.
    pub(super) fn check_may_add(&self, dir: u64) -> Result<()> {
        if self.get(dir).has_flag(Attr::IMMUTABLE) { Err(Kind::NotPermitted.into()) } else { Ok(()) }
    }

    /// The kernel's `may_delete`: flags of directory and victim, then the kind of the victim.
    pub(super) fn check_may_remove(&self, dir: u64, victim: u64, want_directory: bool) -> Result<()> {
        if self.get(dir).is_locked() || self.get(victim).is_locked() {
            return Err(Kind::NotPermitted.into());
        }
        match (want_directory, self.get(victim).is_directory()) {
            (true, false) => Err(Kind::NotDirectory.into()),
            (false, true) => Err(Kind::IsDirectory.into()),
            _ => Ok(()),
        }
    }

    /// Refuses to remove a directory that has entries.
    pub(super) fn check_empty(&self, victim: u64) -> Result<()> {
        let inode = self.get(victim);
        if inode.is_directory() && !inode.is_empty_directory() { Err(Kind::NotEmpty.into()) } else { Ok(()) }
    }

    /// Adds a name; a name that is there already refers to `number` from now on and keeps its cookie.
    pub(super) fn set_entry(&mut self, dir: u64, name: &[u8], number: u64) {
        match &mut self.get_mut(dir).body {
            Body::Directory { entries, names, .. } => {
                let cookie = *names.entry(name.to_vec()).or_insert_with(|| free_cookie(name, entries));
                entries.insert(cookie, Entry { name: name.to_vec(), number });
            }
            _ => unreachable!("the caller has checked that it is a directory"),
        }
    }

    /// Removes a name.
    pub(super) fn remove_entry(&mut self, dir: u64, name: &[u8]) {
        match &mut self.get_mut(dir).body {
            Body::Directory { entries, names, .. } => {
                let cookie = names.remove(name).expect("the caller has found the name");
                entries.remove(&cookie);
            }
            _ => unreachable!("the caller has checked that it is a directory"),
        }
    }

    /// Takes one link from an inode that lost a name; a directory loses its own `.` with it, and its parent `..`.
    pub(super) fn drop_link(&mut self, dir: u64, victim: u64, now: Timestamp) {
        let inode = self.get_mut(victim);
        inode.changed(now);
        if inode.is_directory() {
            inode.attr.links = 0;
            self.get_mut(dir).attr.links -= 1;
        } else {
            inode.attr.links -= 1;
        }
        self.reclaim_if_unused(victim);
    }

    /// Counts the blocks of a file anew.
    pub(super) fn recount(&mut self, number: u64) {
        let inode = self.get_mut(number);
        let blocks = inode.blocks_mut().len() as u64;
        let before = inode.attr.allocated / BLOCK_SIZE;
        inode.attr.allocated = blocks * BLOCK_SIZE;
        self.used = self.used + blocks - before;
    }
}
