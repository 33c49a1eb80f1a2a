//! The part of an inode of a table in DRAM that is the same in each layout.

use std::ops::Deref;
use std::sync::Arc;

use nacre_engine::sync::RwLock;
use nacre_engine::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use nacre_engine::{Attr, BLOCK_SIZE, Error, FileKind, FsStat, InodeId, Kind, Result, TimeRange, Timestamp};

use super::{BLOCK_INODES, Graveyard, Table, TableInode};
use crate::alloc::Allocator;
use crate::attributes::{AttributeCell, Attributes};
use crate::held::Holdable;
use crate::locked::Lockable;
use crate::relatime::Relatime;
use crate::rules::{InodeFacts, check_flags};

/// The part of an inode that does not depend on its layout.
pub struct Core {
    /// Its number.
    pub number: u64,
    /// Which inode of this number it is.
    pub generation: u32,
    /// Of a device, its number.
    pub rdev: u32,
    /// Its kind.
    pub kind: FileKind,
    /// When it was made.
    pub btime: Timestamp,
    /// Where its bytes are on media.
    pub address: u64,
    /// Callers that hold it.
    pub holds: AtomicU32,
    /// Names that refer to it, as on media.
    pub links: AtomicU32,
    /// Bytes.
    pub size: AtomicU64,
    /// Blocks of data.
    pub blocks: AtomicU64,
    /// Grows with every change, under its layout's lock of it.
    pub change: AtomicU64,
    /// Its attributes.
    pub attr: AttributeCell,
    /// The flags of `attr`, for checks without its lock.
    pub flags: AtomicU32,
    /// Of a directory: the directory that it is in.
    pub parent: AtomicU64,
    /// Of a directory: its names.
    pub entries: AtomicU64,
    /// Of a directory: how many of its names are directories.
    pub subdirectories: AtomicU32,
    /// It was used since the last sweep for inodes to evict.
    pub used: AtomicBool,
    /// It never had a name and may still be given one.
    pub unnamed: AtomicBool,
    /// The number of direct readers and writers of its blocks: unless it is 0, the blocks stay where they are. Grows
    /// under the lock under which they move.
    pub pins: AtomicU32,
    /// Whether the next read changes atime.
    pub relatime: Relatime,
    /// atime in DRAM is newer than on media.
    pub lazy: AtomicBool,
    graveyard: Arc<Graveyard>,
}

/// An inode as media describes it. Its kind and times are not validated.
pub struct Description {
    /// Its number.
    pub number: u64,
    /// Where its bytes are.
    pub address: u64,
    /// Which inode of this number it is.
    pub generation: u32,
    /// Its kind.
    pub kind: u8,
    /// Of a device, its number.
    pub rdev: u32,
    /// Permission bits.
    pub mode: u16,
    /// Policy bits.
    pub policy: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Flags.
    pub flags: u32,
    /// Names that refer to it.
    pub links: u32,
    /// Bytes.
    pub size: u64,
    /// Of a directory: the directory that it is in.
    pub parent: u64,
    /// Of a directory: its names, and how many of these are directories.
    pub names: (u64, u32),
    /// Last read, packed.
    pub atime: u64,
    /// Last change of data, packed.
    pub mtime: u64,
    /// Last change of data or attributes, packed.
    pub ctime: u64,
    /// When it was made, packed.
    pub btime: u64,
}

impl Core {
    /// An inode without holders.
    pub fn new(described: &Description, times: TimeRange, graveyard: &Arc<Graveyard>) -> Result<Core> {
        let number = described.number;
        let damaged = |what: &str| Error::corrupt(format!("inode {number}: {what}"));
        let time = |packed| times.unpack(packed).ok_or_else(|| damaged("time"));
        let attributes = Attributes {
            mode: described.mode & 0o7777,
            policy: described.policy,
            uid: described.uid,
            gid: described.gid,
            flags: described.flags,
            atime: time(described.atime)?,
            mtime: time(described.mtime)?,
            ctime: time(described.ctime)?,
        };
        Ok(Core {
            number,
            generation: described.generation,
            rdev: described.rdev,
            kind: FileKind::from_u8(described.kind).ok_or_else(|| damaged("kind"))?,
            btime: time(described.btime)?,
            address: described.address,
            holds: AtomicU32::new(0),
            links: AtomicU32::new(described.links),
            size: AtomicU64::new(described.size),
            blocks: AtomicU64::new(0),
            change: AtomicU64::new(0),
            attr: AttributeCell::new(attributes, times),
            flags: AtomicU32::new(described.flags),
            parent: AtomicU64::new(described.parent),
            entries: AtomicU64::new(described.names.0),
            subdirectories: AtomicU32::new(described.names.1),
            used: AtomicBool::new(true),
            unnamed: AtomicBool::new(false),
            pins: AtomicU32::new(0),
            relatime: Relatime::of(&attributes),
            lazy: AtomicBool::new(false),
            graveyard: Arc::clone(graveyard),
        })
    }

    /// Its name for machines.
    pub fn id(&self) -> InodeId {
        InodeId { number: self.number, generation: self.generation, volume: 0 }
    }

    /// It must be a directory.
    pub fn check_directory(&self) -> Result<()> {
        if self.is_directory() { Ok(()) } else { Err(Error::new(Kind::NotDirectory)) }
    }

    /// It must be a regular file.
    pub fn check_file(&self) -> Result<()> {
        match self.kind {
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(Error::new(Kind::IsDirectory)),
            _ => Err(Error::new(Kind::InvalidInput)),
        }
    }

    /// It is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Names that refer to it; of a directory 1 while it has its name.
    pub fn links(&self) -> u32 {
        self.links.load(Ordering::Acquire)
    }

    /// Its attributes.
    pub fn attr(&self) -> Attr {
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
    pub fn check_flags(&self, forbidden: u32) -> Result<()> {
        check_flags(self.flags.load(Ordering::Acquire), forbidden)
    }

    /// A time as media has it.
    pub fn pack(&self, time: Timestamp) -> u64 {
        self.attr.times().pack(time)
    }

    /// mtime and ctime are `now`: after the commit.
    pub fn modified(&self, now: Timestamp) {
        self.attr.touch(now);
        self.noted();
    }

    /// It has names now: after the commit.
    pub fn named(&self, links: u32) {
        self.links.store(links, Ordering::Release);
        self.unnamed.store(false, Ordering::Release);
    }

    /// ctime is `now`: after the commit.
    pub fn changed(&self, now: Timestamp) {
        self.attr.touch_ctime(now);
        self.noted();
    }

    /// Something of it was changed. Under its layout's lock of it, exclusively, as the two before.
    pub fn noted(&self) {
        self.relatime.changed();
        // No other thread counts meanwhile, so that no locked instruction is needed.
        self.change.store(self.change.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// atime follows a read where relatime says so. It is kept in DRAM.
    pub fn note_read(&self, now: Timestamp) {
        if !self.relatime.is_due(now) {
            return;
        }
        let mut attr = self.attr.lock();
        attr.atime = now;
        self.relatime.set(&attr);
        self.lazy.store(true, Ordering::Release);
    }

    /// The attributes are these: after the commit, which wrote atime, too, if `with_atime`, or else if it changed.
    pub fn attributes_changed(&self, before: Attributes, after: Attributes, with_atime: bool) {
        let mut attr = self.attr.lock();
        // Another thread may have read meanwhile: the change wins only where it says something about atime.
        let read_since = attr.atime != before.atime && after.atime == before.atime;
        let stays_lazy = || self.lazy.load(Ordering::Acquire) && after.atime == before.atime;
        let is_lazy = read_since || !with_atime && stays_lazy();
        *attr = Attributes { atime: if read_since { attr.atime } else { after.atime }, ..after };
        self.lazy.store(is_lazy, Ordering::Release);
        self.flags.store(after.flags, Ordering::Release);
        self.noted();
        self.relatime.set(&attr);
    }

    /// Fails when blocks of this file are mapped. Under its lock.
    pub fn check_pins(&self) -> Result<()> {
        if self.pins.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        Err(Error::new(Kind::Busy).advice("a program has mapped the file; it must unmap it first"))
    }

    /// Ends one pin.
    pub fn unpin(&self) {
        let before = self.pins.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "unpinned more often than pinned");
    }
}

/// An inode that is such a core, and the state of its layout behind one lock.
pub trait WithCore: Deref<Target = Core> + Send + Sync + 'static {
    /// The number of the root directory.
    const ROOT: u64;
    /// The state that the lock guards.
    type Body;

    /// The lock.
    fn body(&self) -> &RwLock<Self::Body>;

    /// DRAM that it takes, an estimate.
    fn bytes(&self) -> u64;
}

/// Makes a type with the fields `core` and `body` an inode with a core. Its body has a `directory`, or none; `$root` is
/// the number of the root directory.
#[macro_export]
macro_rules! inode_with_core {
    ($Inode:ty, $Body:ty, $root:expr) => {
        impl ::std::ops::Deref for $Inode {
            type Target = $crate::table::core::Core;

            fn deref(&self) -> &$crate::table::core::Core {
                &self.core
            }
        }

        impl $crate::table::core::WithCore for $Inode {
            const ROOT: u64 = $root;
            type Body = $Body;

            fn body(&self) -> &::nacre_engine::sync::RwLock<$Body> {
                &self.body
            }

            fn bytes(&self) -> u64 {
                let body = self.body.read();
                let directory = body.directory.as_ref().map_or(0, |directory| directory.heap_bytes());
                size_of::<$Inode>() as u64 + 32 + directory
            }
        }
    };
}

impl<I: WithCore> Table<I> {
    /// Inodes in DRAM of which values are kept lazily.
    pub fn lazy(&self) -> Vec<Arc<I>> {
        self.loaded(|inode| inode.lazy.load(Ordering::Acquire))
    }

    /// DRAM that the table and its inodes take.
    pub fn bytes(&self) -> u64 {
        // An inode's own lock is not taken below that of its shard.
        let inodes: u64 = self.loaded(|_| true).iter().map(|inode| WithCore::bytes(&**inode)).sum();
        self.index_bytes() + inodes
    }

    /// Calls `look` while an inode does not change. A change needs the lock of the inode, and while the table is locked
    /// no inode outside DRAM is taken into use.
    pub fn unchanged<R>(&self, number: u64, look: impl FnOnce() -> R) -> R {
        let shard = self.shard(number).read();
        match shard.inodes.get(&number).map(Arc::clone) {
            Some(inode) => {
                drop(shard);
                let _body = WithCore::body(&*inode).read();
                look()
            }
            None => look(),
        }
    }

    fn loaded(&self, wanted: impl Fn(&I) -> bool) -> Vec<Arc<I>> {
        let mut found = Vec::new();
        self.for_each_loaded(|inode| found.extend(wanted(inode).then(|| Arc::clone(inode))));
        found
    }

    /// The space of a file system of so many blocks.
    pub fn stat(&self, alloc: &Allocator, blocks: u64) -> FsStat {
        let reserved = alloc.reserved_blocks();
        let available = alloc.available_blocks();
        // An inode takes a sixteenth of a block; space limits them like everything else.
        let in_use = self.in_use();
        let inodes_free = (available * BLOCK_INODES).min(self.limit().saturating_sub(in_use));
        FsStat {
            blocks,
            free: alloc.free_blocks().saturating_sub(reserved),
            available,
            reserved,
            inodes: in_use + inodes_free,
            inodes_free,
        }
    }
}

impl<I: WithCore> InodeFacts for I {
    const ROOT: u64 = <I as WithCore>::ROOT;

    fn number(&self) -> u64 {
        self.number
    }

    fn is_directory(&self) -> bool {
        Core::is_directory(self)
    }

    fn links(&self) -> u32 {
        Core::links(self)
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

impl<I: WithCore> Lockable for I {
    type Body = <I as WithCore>::Body;

    fn number(&self) -> u64 {
        self.number
    }

    fn body(&self) -> &RwLock<<I as WithCore>::Body> {
        WithCore::body(self)
    }
}

impl<I: WithCore> Holdable for I {
    fn id(&self) -> InodeId {
        Core::id(self)
    }

    fn holds(&self) -> &AtomicU32 {
        &self.holds
    }

    fn is_let_go(&self) {
        if Core::links(self) == 0 {
            self.graveyard.bury(self.number);
        }
    }
}

impl<I: WithCore> TableInode for I {
    fn links(&self) -> u32 {
        Core::links(self)
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
        WithCore::bytes(self)
    }
}
