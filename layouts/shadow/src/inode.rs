//! An inode in DRAM: its attributes, and its state on media. A [`Node`] holds an inode for a caller.
//!
//! `body` is the lock of the inode. An operation that changes anything of it on media holds it exclusively until the
//! commit is acknowledged: so nobody else writes a slot of it, or a word of its tree. A reader of contents or names
//! holds it shared. Several are locked in the order of their numbers. Attributes are read without it. Below it come, in
//! this order, the table, a lane, the allocator; `attr` and the orphan list are held for moments and nothing is locked
//! below them.

use std::sync::Arc;

use nacre_engine::sync::RwLock;
use nacre_engine::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use nacre_engine::{Attr, BLOCK_SIZE, Error, FileKind, InodeId, Kind, Result, TimeRange, Timestamp};
use nacre_layout_parts::held::{Held, Holdable};
use nacre_layout_parts::locked::Lockable;
use nacre_layout_parts::relatime::Relatime;
use nacre_layout_parts::rules::{InodeFacts, check_flags};
use nacre_layout_parts::table::{Graveyard, TableInode};
use nacre_layout_parts::tree::Tree;
use nacre_layout_parts::versions::LastChange;

use crate::attributes::{AttributeCell, Attributes};
use crate::directory::Directory;
use crate::format::{ROOT_INODE, RawHeader, RawSlot};
use crate::state::{NewSlot, State, check_slot};

/// The state of an inode on media.
pub struct Body {
    pub(crate) state: State,
    /// Of a directory, the state of its names.
    pub(crate) directory: Option<Box<Directory>>,
}

impl Body {
    /// The state of its names, if it is a directory's.
    pub(crate) fn directory(&self) -> Result<&Directory> {
        self.directory.as_deref().ok_or(Error::new(Kind::NotDirectory))
    }

    /// The same, to change it.
    pub(crate) fn directory_mut(&mut self) -> Result<&mut Directory> {
        self.directory.as_deref_mut().ok_or(Error::new(Kind::NotDirectory))
    }
}

/// One inode.
pub struct Inode {
    pub(crate) number: u64,
    pub(crate) generation: u32,
    pub(crate) rdev: u32,
    pub(crate) kind: FileKind,
    pub(crate) btime: Timestamp,
    /// Where its 256 bytes are on media.
    pub(crate) address: u64,
    /// The seed of its slots.
    pub(crate) seed: u32,
    /// Callers that hold it.
    pub(crate) holds: AtomicU32,
    /// Names that refer to it, as on media.
    pub(crate) links: AtomicU32,
    pub(crate) size: AtomicU64,
    /// Blocks of data.
    pub(crate) blocks: AtomicU64,
    /// Grows with every change.
    pub(crate) change: AtomicU64,
    pub(crate) attr: AttributeCell,
    /// The flags of `attr`, for checks without its lock.
    pub(crate) flags: AtomicU32,
    /// Of a directory: the directory that it is in, its names, and how many of these are directories.
    pub(crate) parent: AtomicU64,
    pub(crate) entries: AtomicU64,
    pub(crate) subdirectories: AtomicU32,
    /// It was used since the last sweep for inodes to evict.
    pub(crate) used: AtomicBool,
    /// It never had a name and may still be given one.
    pub(crate) unnamed: AtomicBool,
    /// The number of direct readers and writers of its blocks: unless it is 0, the blocks stay where they are. Grows
    /// under the lock under which they move.
    pub(crate) pins: AtomicU32,
    /// Whether the next read changes atime.
    pub(crate) relatime: Relatime,
    /// atime in DRAM is newer than on media.
    pub(crate) lazy: AtomicBool,
    pub(crate) body: RwLock<Body>,
    /// Changed under `body`.
    pub(crate) last_change: LastChange,
    pub(crate) graveyard: Arc<Graveyard>,
}

/// The fixed facts of an inode.
pub(crate) struct Identity {
    pub(crate) number: u64,
    pub(crate) address: u64,
    pub(crate) seed: u32,
}

impl Inode {
    /// DRAM that it takes, an estimate.
    pub(crate) fn bytes(&self) -> u64 {
        let body = self.body.read();
        let directory = body.directory.as_ref().map_or(0, |directory| directory.heap_bytes());
        size_of::<Inode>() as u64 + 32 + directory
    }

    /// Ends one pin.
    pub(crate) fn unpin(&self) {
        let before = self.pins.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "unpinned more often than pinned");
    }

    /// The inode with this header and state, without holders.
    pub(crate) fn new(
        Identity { number, address, seed }: Identity,
        header: &RawHeader,
        state: State,
        times: TimeRange,
        directory: Option<Box<Directory>>,
        graveyard: &Arc<Graveyard>,
    ) -> Result<Inode> {
        let damaged = |what: &str| Error::corrupt(format!("inode {number}: {what}"));
        let kind = FileKind::from_u8(header.kind).ok_or_else(|| damaged("kind"))?;
        let time = |packed| times.unpack(packed).ok_or_else(|| damaged("time"));
        let slot = &state.slot;
        check_slot(slot, kind, number)?;
        let attributes = Attributes {
            mode: slot.mode & 0o7777,
            policy: slot.policy,
            uid: slot.uid,
            gid: slot.gid,
            flags: slot.flags,
            atime: time(header.atime)?,
            mtime: time(slot.mtime)?,
            ctime: time(slot.ctime)?,
        };
        let (entries, subdirectories) =
            directory.as_ref().map_or((0, 0), |directory| (directory.entries, directory.subdirectories));
        let parent = if kind == FileKind::Directory { slot.parent_end } else { 0 };
        Ok(Inode {
            number,
            generation: header.generation,
            rdev: header.rdev,
            kind,
            btime: time(header.btime)?,
            address,
            seed,
            holds: AtomicU32::new(0),
            links: AtomicU32::new(slot.links),
            size: AtomicU64::new(slot.size),
            blocks: AtomicU64::new(0),
            change: AtomicU64::new(0),
            attr: AttributeCell::new(attributes, times),
            flags: AtomicU32::new(slot.flags),
            parent: AtomicU64::new(parent),
            entries: AtomicU64::new(entries),
            subdirectories: AtomicU32::new(subdirectories),
            used: AtomicBool::new(true),
            unnamed: AtomicBool::new(false),
            pins: AtomicU32::new(0),
            relatime: Relatime::of(&attributes),
            lazy: AtomicBool::new(false),
            body: RwLock::new(Body { state, directory }),
            last_change: LastChange::default(),
            graveyard: Arc::clone(graveyard),
        })
    }

    pub(crate) fn id(&self) -> InodeId {
        InodeId { number: self.number, generation: self.generation, volume: 0 }
    }

    pub(crate) fn check_directory(&self) -> Result<()> {
        if self.is_directory() { Ok(()) } else { Err(Error::new(Kind::NotDirectory)) }
    }

    /// It must be a regular file.
    pub(crate) fn check_file(&self) -> Result<()> {
        match self.kind {
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(Error::new(Kind::IsDirectory)),
            _ => Err(Error::new(Kind::InvalidInput)),
        }
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    pub(crate) fn links(&self) -> u32 {
        self.links.load(Ordering::Acquire)
    }

    /// Its tree of blocks.
    pub(crate) fn tree(&self, body: &Body) -> Tree {
        body.state.tree(self.kind)
    }

    pub(crate) fn attr(&self) -> Attr {
        let attributes = self.attr.get();
        let links = match self.links() {
            links if links == 0 || !self.is_directory() => links,
            _ => 2 + self.subdirectories.load(Ordering::Relaxed),
        };
        Attr {
            id: self.id(),
            kind: self.kind,
            mode: u32::from(attributes.mode),
            links,
            uid: attributes.uid,
            gid: attributes.gid,
            rdev: u64::from(self.rdev),
            size: self.size(),
            allocated: self.blocks.load(Ordering::Relaxed) * BLOCK_SIZE,
            atime: attributes.atime,
            mtime: attributes.mtime,
            ctime: attributes.ctime,
            btime: self.btime,
            flags: attributes.flags,
            change: self.change.load(Ordering::Relaxed),
        }
    }

    /// An error if a flag of the inode is among the forbidden ones.
    pub(crate) fn check_flags(&self, forbidden: u32) -> Result<()> {
        check_flags(self.flags.load(Ordering::Acquire), forbidden)
    }

    /// A time as media has it.
    pub(crate) fn pack(&self, time: Timestamp) -> u64 {
        self.attr.times().pack(time)
    }

    /// The next state of the inode, so far as this one.
    pub(crate) fn next(&self, body: &Body) -> NewSlot {
        body.state.next(self.address, self.seed)
    }

    /// The same with `now` as the time of the last change of data.
    pub(crate) fn next_modified(&self, body: &Body, now: Timestamp) -> NewSlot {
        let mut new = self.next(body);
        new.slot.mtime = self.pack(now);
        new.slot.ctime = new.slot.mtime;
        new
    }

    /// The same with `now` as the time of the last change.
    pub(crate) fn next_changed(&self, body: &Body, now: Timestamp) -> NewSlot {
        let mut new = self.next(body);
        new.slot.ctime = self.pack(now);
        new
    }

    /// mtime and ctime are `now`: after the commit.
    pub(crate) fn modified(&self, now: Timestamp) {
        self.attr.touch(now);
        self.noted();
    }

    /// ctime is `now`: after the commit.
    pub(crate) fn changed(&self, now: Timestamp) {
        self.attr.lock().ctime = now;
        self.noted();
    }

    /// Something of it was changed.
    pub(crate) fn noted(&self) {
        self.relatime.changed();
        self.change.fetch_add(1, Ordering::Relaxed);
    }
}

/// Puts attributes into a slot; atime is elsewhere.
pub(crate) fn put_attributes(slot: &mut RawSlot, attributes: &Attributes, times: TimeRange) {
    slot.mode = attributes.mode;
    slot.policy = attributes.policy;
    (slot.uid, slot.gid, slot.flags) = (attributes.uid, attributes.gid, attributes.flags);
    (slot.mtime, slot.ctime) = (times.pack(attributes.mtime), times.pack(attributes.ctime));
}

impl InodeFacts for Inode {
    const ROOT: u64 = ROOT_INODE;

    fn number(&self) -> u64 {
        self.number
    }

    fn is_directory(&self) -> bool {
        Inode::is_directory(self)
    }

    fn links(&self) -> u32 {
        Inode::links(self)
    }

    fn flags(&self) -> u32 {
        self.flags.load(Ordering::Acquire)
    }

    fn parent(&self) -> Result<u64> {
        self.check_directory()?;
        Ok(self.parent.load(Ordering::Relaxed))
    }

    fn is_empty(&self) -> Result<bool> {
        self.check_directory()?;
        Ok(self.entries.load(Ordering::Relaxed) == 0)
    }
}

impl Lockable for Inode {
    type Body = Body;

    fn number(&self) -> u64 {
        self.number
    }

    fn body(&self) -> &RwLock<Body> {
        &self.body
    }
}

/// An inode that a caller holds.
pub type Node = Held<Inode>;

impl Holdable for Inode {
    fn id(&self) -> InodeId {
        Inode::id(self)
    }

    fn holds(&self) -> &AtomicU32 {
        &self.holds
    }

    fn is_let_go(&self) {
        if self.links() == 0 {
            self.graveyard.bury(self.number);
        }
    }
}

impl TableInode for Inode {
    fn links(&self) -> u32 {
        Inode::links(self)
    }

    fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 0
    }

    fn used(&self) -> &AtomicBool {
        &self.used
    }

    fn change(&self) -> &AtomicU64 {
        &self.change
    }

    fn bytes(&self) -> u64 {
        Inode::bytes(self)
    }
}
