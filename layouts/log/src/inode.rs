//! An inode in DRAM: its attributes, its log, and the index of its contents.
//!
//! This state is rebuilt from the log when the inode is first used, and goes when it is no longer used
//! ([`evict`](crate::evict)). A [`Node`] holds an inode for a caller.
//!
//! Locks, in the order in which they are taken: `extend`, `log`, then `attr`, a directory's index, a leaf of the block
//! map, `xattrs`. Two logs are locked in the order of their inode numbers.

use std::ops::ControlFlow;
use std::sync::Arc;

use nacre_engine::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use nacre_engine::sync::{Condvar, EXPLORED, Mutex};
use nacre_engine::{Attr, BLOCK_SIZE, Error, FileKind, InodeId, Kind, Result, TimeRange, Timestamp};
use nacre_layout_parts::held::{Held, Holdable};
use nacre_layout_parts::relatime::Relatime;
use nacre_layout_parts::rules::{InodeFacts, check_flags};
use nacre_layout_parts::versions::LastChange;

use crate::attributes::{AttributeCell, Attributes};
use crate::blockmap::BlockMap;
use crate::directory::Directory;
use crate::format::{AttrEntry, MAX_FILE_SIZE, ROOT_INODE, RawInode, kind};
use crate::image::{Image, ImageSlot, Whose};
use crate::log::{Log, Owner};
use crate::scan::LogSource;
use crate::xattr_index::{self, XattrSlot};

/// The contents of an inode.
pub(crate) enum Body {
    /// A regular file, or a symbolic link with its target in a block.
    File(BlockMap),
    Directory(Box<Directory>),
    /// The target of a symbolic link that is in the inode.
    Symlink(Box<[u8]>),
    /// A device node, fifo or socket.
    Special,
}

/// One inode. Fields that a lookup and a stat need come first, in neighbouring cache lines.
#[repr(C)]
pub struct Inode {
    /// Callers that hold it.
    pub(crate) holds: AtomicU32,
    /// Names that refer to it. Changed under the `attr` lock. Of a directory: 1 while it has its name, 0 after.
    pub(crate) links: AtomicU32,
    pub(crate) size: AtomicU64,
    pub(crate) attr: AttributeCell,
    pub(crate) number: u64,
    pub(crate) generation: u32,
    pub(crate) rdev: u32,
    /// Blocks of data.
    pub(crate) blocks: AtomicU64,
    /// The next sequence number of the log: it grows with every commit.
    pub(crate) change: AtomicU64,
    pub(crate) btime: Timestamp,
    pub(crate) kind: FileKind,
    /// It was used since the last sweep for inodes to evict.
    pub(crate) used: AtomicBool,
    /// It never had a name and may still be given one.
    pub(crate) unnamed: AtomicBool,
    /// The number of direct readers and writers of its blocks: unless it is 0, the blocks stay where they are. Grows
    /// under the lock under which they move.
    pub(crate) pins: AtomicU32,
    /// Whether the next read changes atime.
    pub(crate) relatime: Relatime,
    /// Attributes in DRAM are newer than in the log (atime, and ctime after a change of links).
    pub(crate) lazy: AtomicBool,
    /// The links or the parent differ from those cached on media; the unmount writes them.
    pub(crate) cached_changed: AtomicBool,
    /// The flags of `attr`, for checks without its lock.
    pub(crate) flags: AtomicU32,
    /// Seed of the checksums of everything that belongs to this inode.
    pub(crate) seed: u32,
    /// Where its 256 bytes are on media.
    pub(crate) address: u64,
    /// Blocks from this one on are beyond the size and still to be freed by a truncation; [`NO_TRIM`] when there are
    /// none. Changed under `extend`.
    pub(crate) trim: AtomicU64,
    /// No change of size is under way while this is held; see `file`.
    pub(crate) extend: Mutex<()>,
    /// Held, after the locks of directories, while a name is added to those that it has, or is taken from them.
    /// Otherwise a name that is not visible yet would keep a file from being gone. Not for directories, which have one
    /// name.
    pub(crate) naming: Mutex<()>,
    pub(crate) body: Body,
    pub(crate) log: Mutex<Log>,
    /// Changed under `log`.
    pub(crate) last_change: LastChange,
    /// The image that says where its blocks are instead of the log.
    pub(crate) image: ImageSlot,
    pub(crate) xattrs: XattrSlot,
    pub(crate) graveyard: Arc<Graveyard>,
}

/// A file with more blocks is freed in the background.
pub(crate) const FREE_AT_ONCE: u64 = if EXPLORED { 8 } else { 512 };

/// No truncation has blocks to free.
pub(crate) const NO_TRIM: u64 = u64::MAX;

/// So many small inodes wake the background thread after all.
const MANY_BURIED: usize = 256;

/// The orphan list: inodes without links and holders that are not reclaimed yet. Bounded by the number of inodes.
#[derive(Default)]
pub(crate) struct Graveyard {
    waiting: Mutex<Waiting>,
    /// There are numbers; looked at without the lock.
    filled: AtomicBool,
    waker: Condvar,
}

#[derive(Default)]
struct Waiting {
    numbers: Vec<u64>,
    /// Something else is to be done.
    nudged: bool,
}

impl Graveyard {
    /// Notes an inode. Small ones are left to the next operation that changes names, as waking a thread would cost
    /// more than freeing them does.
    pub(crate) fn bury(&self, number: u64, is_large: bool) {
        let mut waiting = self.waiting.lock();
        waiting.numbers.push(number);
        self.filled.store(true, Ordering::Release);
        if is_large || waiting.numbers.len() >= MANY_BURIED {
            self.waker.notify_one();
        }
    }

    pub(crate) fn take(&self) -> Vec<u64> {
        if !self.filled.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut waiting = self.waiting.lock();
        self.filled.store(false, Ordering::Release);
        std::mem::take(&mut waiting.numbers)
    }

    /// Waits until there may be something to do.
    pub(crate) fn wait(&self) {
        let mut waiting = self.waiting.lock();
        if waiting.numbers.is_empty() && !waiting.nudged {
            self.waker.wait(&mut waiting);
        }
        waiting.nudged = false;
    }

    /// Wakes the background thread: there is something other than an inode to free, or it is to end.
    pub(crate) fn nudge(&self) {
        self.waiting.lock().nudged = true;
        self.waker.notify_all();
    }
}

/// The attributes that an inode is made with.
pub(crate) fn first_attributes(raw: &RawInode, btime: Timestamp) -> Attributes {
    Attributes {
        mode: raw.mode,
        policy: raw.policy,
        uid: raw.uid,
        gid: raw.gid,
        flags: raw.flags,
        atime: btime,
        mtime: btime,
        ctime: btime,
    }
}

/// The contents of a log about an inode, beside its attributes.
pub(crate) struct Contents {
    pub(crate) body: Body,
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    pub(crate) log: Log,
    pub(crate) image: Option<Image>,
    pub(crate) xattrs: XattrSlot,
}

impl Inode {
    /// Ends one pin.
    pub(crate) fn unpin(&self) {
        let before = self.pins.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "unpinned more often than pinned");
    }

    /// An inode in DRAM, without holders.
    pub(crate) fn new(
        source: LogSource,
        raw: &RawInode,
        kind: FileKind,
        btime: Timestamp,
        (attributes, times): (Attributes, TimeRange),
        contents: Contents,
        graveyard: &Arc<Graveyard>,
    ) -> Inode {
        Inode {
            number: source.number,
            generation: source.generation,
            kind,
            seed: source.seed,
            rdev: raw.rdev,
            btime,
            address: source.address,
            holds: AtomicU32::new(0),
            links: AtomicU32::new(if kind == FileKind::Directory { 1 } else { raw.links }),
            size: AtomicU64::new(contents.size),
            blocks: AtomicU64::new(contents.blocks),
            flags: AtomicU32::new(attributes.flags),
            used: AtomicBool::new(true),
            unnamed: AtomicBool::new(false),
            pins: AtomicU32::new(0),
            change: AtomicU64::new(contents.log.state.next_sequence),
            relatime: Relatime::of(&attributes),
            lazy: AtomicBool::new(false),
            trim: AtomicU64::new(NO_TRIM),
            cached_changed: AtomicBool::new(false),
            extend: Mutex::new(()),
            naming: Mutex::new(()),
            log: Mutex::new(contents.log),
            last_change: LastChange::default(),
            attr: AttributeCell::new(attributes, times),
            image: ImageSlot::unread(contents.image),
            xattrs: contents.xattrs,
            body: contents.body,
            graveyard: Arc::clone(graveyard),
        }
    }

    /// An inode that was just made, with an empty log.
    pub(crate) fn new_empty(
        source: LogSource,
        raw: &RawInode,
        kind: FileKind,
        (btime, times): (Timestamp, TimeRange),
        graveyard: &Arc<Graveyard>,
    ) -> Inode {
        let body = match kind {
            FileKind::Directory => Body::Directory(Box::new(Directory::new(raw.parent))),
            FileKind::Regular | FileKind::Symlink => Body::File(BlockMap::default()),
            _ => Body::Special,
        };
        let contents =
            Contents { body, size: 0, blocks: 0, log: Log::default(), image: None, xattrs: Mutex::new(None) };
        let attributes = first_attributes(raw, btime);
        Inode::new(source, raw, kind, btime, (attributes, times), contents, graveyard)
    }

    pub(crate) fn id(&self) -> InodeId {
        InodeId { number: self.number, generation: self.generation, volume: 0 }
    }

    pub(crate) fn directory(&self) -> Result<&Directory> {
        match &self.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(Error::new(Kind::NotDirectory)),
        }
    }

    /// The block map of a regular file, as far as it was read: [`Shared::file`](crate::fs::Shared::file) has all of it.
    pub(crate) fn file_map(&self) -> Result<&BlockMap> {
        match &self.body {
            Body::File(map) if self.kind == FileKind::Regular => Ok(map),
            Body::Directory(_) => Err(Error::new(Kind::IsDirectory)),
            _ => Err(Error::new(Kind::InvalidInput)),
        }
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// A truncation has not yet freed the blocks that it took away.
    pub(crate) fn trim_is_pending(&self) -> bool {
        self.trim.load(Ordering::Acquire) != NO_TRIM
    }

    pub(crate) fn links(&self) -> u32 {
        self.links.load(Ordering::Acquire)
    }

    pub(crate) fn attr(&self) -> Attr {
        let attributes = self.attr.get();
        let (links, size) = match &self.body {
            Body::Directory(directory) => {
                let links = if self.links() == 0 { 0 } else { 2 + directory.subdirectories() };
                (links, directory.len() as u64 * 64)
            }
            _ => (self.links(), self.size()),
        };
        Attr {
            id: self.id(),
            kind: self.kind,
            mode: u32::from(attributes.mode),
            links,
            uid: attributes.uid,
            gid: attributes.gid,
            rdev: u64::from(self.rdev),
            size,
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

    /// Sets mtime and ctime after a commit.
    pub(crate) fn touch(&self, now: Timestamp) {
        self.attr.touch(now);
        self.relatime.changed();
    }

    /// As [`Inode::touch`], for a write that was accepted before: a change of links, which takes no log, may be later.
    pub(crate) fn touch_late(&self, now: Timestamp) {
        let mut attr = self.attr.lock();
        attr.mtime = now;
        attr.ctime = attr.ctime.max(now);
        drop(attr);
        self.relatime.changed();
    }

    /// The entry that says all attributes.
    pub(crate) fn attr_entry(&self, attributes: &Attributes, size: u64) -> AttrEntry {
        let mut entry = AttrEntry {
            mode: attributes.mode,
            policy: attributes.policy,
            uid: attributes.uid,
            gid: attributes.gid,
            flags: attributes.flags,
            size: if self.kind == FileKind::Regular { size } else { 0 },
            atime: self.pack(attributes.atime),
            mtime: self.pack(attributes.mtime),
            ctime: self.pack(attributes.ctime),
            ..AttrEntry::default()
        };
        entry.header.kind = kind::ATTR;
        entry
    }

    /// DRAM that it takes, an estimate.
    pub(crate) fn bytes(&self) -> u64 {
        let body = match &self.body {
            Body::File(map) => map.heap_bytes(),
            Body::Directory(directory) => directory.heap_bytes(),
            Body::Symlink(target) => target.len() as u64,
            Body::Special => 0,
        };
        let log = self.log.lock().index.heap_bytes();
        let xattrs = self.xattrs.lock().as_ref().map_or(0, |index| index.heap_bytes());
        size_of::<Inode>() as u64 + 16 + body + log + xattrs
    }

    pub(crate) fn whose(&self) -> Whose {
        Whose { number: self.number, generation: self.generation }
    }

    /// It was used: the next sweep leaves it.
    #[inline]
    pub(crate) fn note_use(&self) {
        // Written once between two sweeps, so that threads share the line.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// An entry of this inode's log was copied to another place.
    pub(crate) fn entry_moved(
        &self,
        sequence: u64,
        old: (Owner, u64),
        new: (Owner, u64),
        name: Option<(&[u8], u64)>,
    ) {
        match &self.body {
            Body::File(map) => {
                let mut pieces = Vec::new();
                map.for_each(0, MAX_FILE_SIZE / BLOCK_SIZE, |piece| {
                    if piece.owner == old.0 {
                        pieces.push(piece);
                    }
                });
                for piece in pieces {
                    map.change_owner(piece, new.0);
                }
            }
            Body::Directory(directory) => {
                if let Some((name, seed)) = name {
                    directory.moved(name, seed, sequence, old.1, new);
                }
            }
            Body::Symlink(_) | Body::Special => {}
        }
        self.attribute_moved(sequence, old, new);
    }

    /// An extended attribute's entry was copied to another place.
    pub(crate) fn attribute_moved(&self, sequence: u64, old: (Owner, u64), new: (Owner, u64)) {
        xattr_index::for_each(&self.xattrs, |xattr| {
            if xattr.sequence != sequence || xattr.address != old.1 {
                return ControlFlow::Continue(());
            }
            (xattr.owner, xattr.address) = new;
            ControlFlow::Break(())
        });
    }
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
        Ok(self.directory()?.parent.load(Ordering::Relaxed))
    }

    fn is_empty(&self) -> Result<bool> {
        Ok(self.directory()?.len() == 0)
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
            let is_large = self.blocks.load(Ordering::Relaxed) > FREE_AT_ONCE;
            self.graveyard.bury(self.number, is_large);
        }
    }
}

#[cfg(all(test, nacre_loom))]
mod interleavings {
    use std::sync::Arc;

    use nacre_engine::sync::atomic::Ordering;
    use nacre_engine::sync::{Weakening, explore, fails_without, thread};
    use nacre_engine::{FileKind, TimeRange, Timestamp};
    use zerocopy::FromZeros;

    use super::{Graveyard, Inode, Node};
    use crate::format::RawInode;
    use crate::scan::LogSource;

    /// A node whose last name goes, and another one, are let go at once.
    fn let_go_twice() {
        explore(3, || {
            let graveyard = Arc::new(Graveyard::default());
            let source = LogSource { number: 7, generation: 1, seed: 0, address: 0 };
            let (raw, btime) = (RawInode::new_zeroed(), Timestamp::default());
            let inode =
                Inode::new_empty(source, &raw, FileKind::Fifo, (btime, TimeRange::default()), &graveyard);
            inode.holds.store(1, Ordering::Relaxed);
            inode.links.store(1, Ordering::Relaxed);
            let unlinked = Node::from_held(Arc::new(inode));
            let open = unlinked.clone();
            let closes = thread::spawn(move || drop(open));
            unlinked.inode.links.store(0, Ordering::Release);
            drop(unlinked);
            closes.join().unwrap();
            assert_eq!(graveyard.take(), [7], "whoever lets go last buries it");
        });
    }

    #[test]
    fn an_inode_without_names_is_buried_by_its_last_holder() {
        let_go_twice();
    }

    #[test]
    fn the_order_of_holds_is_needed() {
        assert!(fails_without(Weakening::Updates, let_go_twice));
    }

    #[test]
    fn what_is_buried_is_taken_once() {
        explore(3, || {
            let graveyard = Arc::new(Graveyard::default());
            let buries = thread::spawn({
                let graveyard = Arc::clone(&graveyard);
                move || graveyard.bury(7, false)
            });
            let mut taken = graveyard.take();
            buries.join().unwrap();
            taken.extend(graveyard.take());
            assert_eq!(taken, [7]);
        });
    }

    /// A model in which a thread waits for ever fails.
    #[test]
    fn no_call_of_the_background_thread_is_lost() {
        explore(3, || {
            let graveyard = Arc::new(Graveyard::default());
            let waits = thread::spawn({
                let graveyard = Arc::clone(&graveyard);
                move || graveyard.wait()
            });
            graveyard.nudge();
            waits.join().unwrap();
        });
    }
}
