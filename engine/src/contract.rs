//! The contract of a layout: [`Names`], [`Data`] and [`Extents`].
//!
//! A *node* is an inode that the caller holds. While a node exists, its inode is not reclaimed, even if all its links
//! are removed. Cloning a node is cheap. Dropping the last node of an inode without links reclaims the inode.
//!
//! **Durability.** When an operation returns, it is durable ([`Data::sync`] has then nothing to do), unless the
//! layout's [`Capabilities::durable_on_return`] is false. Each operation is all or nothing after a crash. For data,
//! the capabilities tell.
//!
//! **Permissions** are not checked here but in `vfs`. The layout enforces the flags of an inode (immutable,
//! append-only) and the structure of the tree (no cycles, no hard links to directories).
//!
//! **Names** are 1 to 255 bytes without `/` and NUL, and never `.` or `..`.

use std::io::IoSlice;
use std::ops::ControlFlow;

use crate::attr::{Attr, FileKind, NewInode, SetAttr};
use crate::error::Result;
use crate::units::{Block, FileBlock, InodeId, Timestamp};

/// The capabilities of a layout, which select the tests of the behaviour suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Every operation is durable when it returns.
    pub durable_on_return: bool,
    /// A write of any size is all or nothing after a crash. On a full device an overwrite is atomic in pieces only. If
    /// even its metadata finds no space, it is not atomic.
    pub atomic_write: bool,
    /// A rename is all or nothing after a crash, across directories and with exchange.
    pub atomic_rename: bool,
    /// Largest size of a file in bytes.
    pub max_file_size: u64,
    /// Largest value of an extended attribute in bytes.
    pub max_xattr_size: usize,
}

/// One entry that [`Names::read_dir`] reports.
#[derive(Debug, Clone, Copy)]
pub struct DirEntry<'a> {
    /// The cookie with which to continue after this entry.
    pub cookie: u64,
    /// Its name.
    pub name: &'a [u8],
    /// The inode it refers to.
    pub id: InodeId,
    /// The kind of that inode.
    pub kind: FileKind,
}

/// The effect of a rename on the target name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameMode {
    /// An existing target is replaced atomically.
    Replace,
    /// An existing target is an error.
    NoReplace,
    /// Both names must exist and swap their inodes.
    Exchange,
    /// As [`RenameMode::Replace`], and the old name refers to a whiteout afterwards: a new character device 0:0
    /// without permissions. Union file systems read it as "removed".
    Whiteout {
        /// The owner of the whiteout.
        uid: u32,
        /// Its group.
        gid: u32,
    },
}

impl RenameMode {
    /// A rename that leaves a whiteout of root.
    pub const WHITEOUT: RenameMode = RenameMode::Whiteout { uid: 0, gid: 0 };
}

/// The condition for setting an extended attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace.
    Set,
    /// It must not exist.
    Create,
    /// It must exist.
    Replace,
}

/// Inodes with state in DRAM. Beyond the limit, the layout drops the state of inodes that are not held and not used
/// lately. It reads that state from media again on demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeCache {
    /// Inodes with state in DRAM.
    pub loaded: u64,
    /// The largest number of them, without held inodes.
    pub limit: u64,
}

impl InodeCache {
    /// The default limit: about 200 MB of DRAM.
    pub const DEFAULT_LIMIT: u64 = 1 << 18;
    /// The smallest limit.
    pub const MIN_LIMIT: u64 = 1024;
}

impl Default for InodeCache {
    /// A layout that keeps the state of all inodes.
    fn default() -> InodeCache {
        InodeCache { loaded: 0, limit: u64::MAX }
    }
}

/// Namespace and attributes.
pub trait Names: Send + Sync + 'static {
    /// An inode that is held.
    type Node: Clone + Send + Sync + 'static;

    /// The root directory.
    fn root(&self) -> Self::Node;

    /// Holds the inode with this identity. [`Stale`](crate::Kind::Stale) if it is gone or has another generation.
    fn node(&self, id: InodeId) -> Result<Self::Node>;

    /// The inode with this number and any generation (for protocols that use the number alone).
    fn node_by_number(&self, number: u64) -> Result<Self::Node>;

    /// The identity of a held inode.
    fn id(&self, node: &Self::Node) -> InodeId;

    /// The kind of a held inode.
    fn kind(&self, node: &Self::Node) -> FileKind;

    /// Drops a node that is not needed soon. The layout may drop its state in DRAM, too.
    fn let_go(&self, node: Self::Node) {
        drop(node);
    }

    /// Drops a node and keeps its inode. Until [`Names::unpark`], the inode is not reclaimed even without names, and
    /// [`Names::node_by_number`] finds it. Unlike a node, a parked inode costs the layout almost no DRAM. One caller
    /// parks an inode, once. A layout that cannot park returns the node.
    fn park(&self, node: Self::Node) -> Option<Self::Node> {
        Some(node)
    }

    /// Ends one [`Names::park`]. Without names and nodes the inode is reclaimed.
    fn unpark(&self, _number: u64) {}

    /// Inodes with state in DRAM, and the limit of those that are not held.
    fn inode_cache(&self) -> InodeCache {
        InodeCache::default()
    }

    /// The inode that `name` in `dir` refers to; [`NotFound`](crate::Kind::NotFound) or
    /// [`NotDirectory`](crate::Kind::NotDirectory).
    fn lookup(&self, dir: &Self::Node, name: &[u8]) -> Result<Self::Node>;

    /// The parent of a directory; the root for the root.
    fn parent(&self, dir: &Self::Node) -> Result<Self::Node>;

    /// Creates an inode and its name.
    fn create(&self, dir: &Self::Node, name: &[u8], new: &NewInode<'_>) -> Result<Self::Node>;

    /// Creates a regular file without a name. It is gone with its last node unless linked before.
    fn create_unnamed(&self, new: &NewInode<'_>) -> Result<Self::Node>;

    /// Adds a name to a non-directory.
    fn link(&self, node: &Self::Node, dir: &Self::Node, name: &[u8], now: Timestamp) -> Result<()>;

    /// Removes the name of a non-directory.
    fn unlink(&self, dir: &Self::Node, name: &[u8], now: Timestamp) -> Result<()>;

    /// Removes an empty directory.
    fn rmdir(&self, dir: &Self::Node, name: &[u8], now: Timestamp) -> Result<()>;

    /// Moves a name. Renaming onto another name of the same inode does nothing, in any mode. A directory is never moved below
    /// itself ([`InvalidInput`](crate::Kind::InvalidInput)).
    fn rename(
        &self,
        from_dir: &Self::Node,
        from: &[u8],
        to_dir: &Self::Node,
        to: &[u8],
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<()>;

    /// Reports the entries after `cookie` (0 for the first) in a stable order, without `.` and `..`, until `visit`
    /// breaks. A name that exists throughout is reported exactly once, even if another inode takes it. A name that
    /// appears or moves meanwhile is reported a few times at most. Reading ends, however many names appear. Cookies
    /// are 3 or greater, below 2^63, and stay valid after a remount. Their order is the layout's.
    fn read_dir(
        &self,
        dir: &Self::Node,
        cookie: u64,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()>;

    /// The target of a symbolic link.
    fn read_link(&self, node: &Self::Node) -> Result<Vec<u8>>;

    /// Notes a read outside [`Data::read`], such as one of a directory or a symbolic link. It updates atime by the
    /// rules of relatime. The new atime is kept in DRAM, and written with the next change or at the unmount.
    fn note_read(&self, node: &Self::Node, now: Timestamp);

    /// Whether a regular file was ever made immutable or append-only. If so, opening a file for writing must be
    /// checked. This state is durable before the first such flag is.
    fn has_guarded(&self) -> bool;

    /// The attributes.
    fn getattr(&self, node: &Self::Node) -> Result<Attr>;

    /// The attributes of the inode that `name` in `dir` refers to. As [`Names::lookup`] and [`Names::getattr`], but
    /// without a held inode, which may cost a layout less.
    #[inline]
    fn getattr_at(&self, dir: &Self::Node, name: &[u8]) -> Result<Attr> {
        self.getattr(&self.lookup(dir, name)?)
    }

    /// Changes attributes in one commit and returns the new ones. `now` becomes ctime, and mtime if the size changes
    /// and no mtime is given. [`InvalidInput`](crate::Kind::InvalidInput) for a time that the format cannot hold
    /// ([`TimeRange`](crate::TimeRange)). In a `promised` change it is clamped, as the time of a clock is.
    fn setattr(&self, node: &Self::Node, change: &SetAttr, now: Timestamp) -> Result<Attr>;

    /// The value of an extended attribute; [`NoAttribute`](crate::Kind::NoAttribute) if it does not exist.
    fn get_xattr(&self, node: &Self::Node, name: &[u8]) -> Result<Vec<u8>>;

    /// The names of all extended attributes.
    fn list_xattrs(&self, node: &Self::Node) -> Result<Vec<Vec<u8>>>;

    /// Sets an extended attribute. If `mode` is given, the permission bits change in the same commit (an ACL implies
    /// them).
    fn set_xattr(
        &self,
        node: &Self::Node,
        name: &[u8],
        value: &[u8],
        how: XattrMode,
        mode: Option<u32>,
        now: Timestamp,
    ) -> Result<()>;

    /// Removes an extended attribute.
    fn remove_xattr(&self, node: &Self::Node, name: &[u8], now: Timestamp) -> Result<()>;
}

/// The position of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteAt {
    /// At this offset.
    Offset(u64),
    /// At the end of the file at the time of the commit.
    End,
}

/// The durability of a write on return, which only buffering layers read, and the space that it may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// It may wait for a sync.
    Lazy,
    /// It must be durable on return (O_SYNC, O_DSYNC).
    Now,
    /// As [`Durability::Now`], for pages that a kernel accepted before without a reservation. It may take the space
    /// kept for the logs of existing files.
    Accepted,
    /// As [`Durability::Now`], for a write that a buffering layer accepted before. It and its metadata may take the
    /// space reserved by [`Extents::reserve`], so that it cannot fail for lack of space. Flags set since do not forbid
    /// it. If the inode changed since, ctime does not go back: the write takes that ctime as its time. Other callers
    /// may read the bytes that it overwrites before it is durable.
    Promised,
}

/// The effect of fallocate(2) on the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FallocateMode {
    /// Allocate; holes read as zeros and the size grows to the end of the range.
    Allocate,
    /// Allocate; the size stays.
    AllocateKeepSize,
    /// Free the whole blocks in the range and zero the rest of it; the size stays.
    PunchHole,
    /// Zero the range and keep it allocated; the size grows to its end.
    ZeroRange,
    /// Zero the range and keep it allocated; the size stays.
    ZeroRangeKeepSize,
}

/// The target of a seek.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekTo {
    /// The next byte that is allocated and written.
    Data,
    /// The next byte that is not allocated or not written, the end of the file at the latest.
    Hole,
}

/// File contents.
pub trait Data: Names {
    /// Reads up to `buf.len()` bytes at `offset`. The count is smaller only at the end of the file. Holes read as
    /// zeros. `now`, if given, updates atime by the rules of relatime.
    fn read(&self, node: &Self::Node, offset: u64, buf: &mut [u8], now: Option<Timestamp>) -> Result<usize>;

    /// Writes all of `data`, in order, as one operation, and returns its offset. Blocks that a file has, allocated or
    /// written, can be written on a full device, too.
    fn write(
        &self,
        node: &Self::Node,
        at: WriteAt,
        data: &[IoSlice<'_>],
        durability: Durability,
        now: Timestamp,
    ) -> Result<u64>;

    /// Whether a write that may wait would go to a slow device. A buffering layer then takes it into DRAM, regardless
    /// of its own policy.
    fn goes_to_disk(&self, _node: &Self::Node, _offset: u64, _len: u64) -> bool {
        false
    }

    /// A buffering layer accepted a write. It comes later, maybe in parts, as [`Durability::Promised`].
    fn accepted(&self, _node: &Self::Node, _offset: u64, _len: u64) {}

    /// A buffering layer is about to accept such a write. The layout provides everything it needs besides the reserved
    /// space. On an error the write is not accepted.
    fn expect_write(&self, _node: &Self::Node) -> Result<()> {
        Ok(())
    }

    /// A buffering layer takes back DRAM that it had lent to the layers below. When this returns, they use at most the
    /// part still lent. It waits for no device and calls no layer above.
    fn give_up_dram(&self) {}

    /// Allocates, frees or zeroes a range.
    fn fallocate(
        &self,
        node: &Self::Node,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        now: Timestamp,
    ) -> Result<()>;

    /// The next data or hole at or after `offset`; [`NoSuchOffset`](crate::Kind::NoSuchOffset) beyond the last.
    fn seek(&self, node: &Self::Node, offset: u64, to: SeekTo) -> Result<u64>;

    /// The unit, in bytes, that media writes for any write inside it, aligned: a line for updates in place, a block
    /// for copy on write. A power of two, from a line to a block.
    fn write_unit(&self) -> u64;

    /// Makes everything about this inode durable.
    fn sync(&self, node: &Self::Node) -> Result<()>;

    /// A handle that could write was closed. A buffering layer writes data that must survive from then on: new
    /// contents of a file that was truncated.
    fn closed(&self, _node: &Self::Node) -> Result<()> {
        Ok(())
    }

    /// Makes everything durable.
    fn sync_all(&self) -> Result<()>;
}

/// The place of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// No place: it reads as zeros and takes no space.
    Hole,
    /// On persistent memory, from this block on.
    Pm(Block),
    /// On persistent memory, allocated but not written: it reads as zeros.
    Unwritten(Block),
    /// On a tier, allocated but not written: it reads as zeros.
    UnwrittenOnTier {
        /// The tier; 1 is the fastest.
        tier: u8,
        /// The first block on it.
        block: Block,
    },
    /// On tier `tier`, from this block on.
    Tier {
        /// The tier; 1 is the fastest.
        tier: u8,
        /// The first block on it.
        block: Block,
    },
}

/// Contiguous blocks of a file in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacedExtent {
    /// First block in the file.
    pub start: FileBlock,
    /// Number of blocks.
    pub len: u64,
    /// Their place.
    pub place: Place,
}

/// Space statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FsStat {
    /// Blocks that files could use on an empty file system.
    pub blocks: u64,
    /// Unused blocks, with the layout's reserve.
    pub free: u64,
    /// Blocks that a user can still allocate.
    pub available: u64,
    /// Inodes that can exist.
    pub inodes: u64,
    /// Inodes that can still be made.
    pub inodes_free: u64,
}

/// An upper bound of the space, in blocks, that a layout needs to write buffered writes: data and its metadata. If a
/// caller reserves this for all waiting writes and writes them with [`Durability::Promised`], they find space, in any
/// order and beside other operations. A block that is written in several operations, without a truncation or a hole
/// between them, counts once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromiseCost {
    /// For each block of a file.
    pub block: u64,
    /// Once for all blocks of a file in the same aligned group, while the first of them waits.
    pub group: u64,
    /// Blocks of a file in a group; a power of two.
    pub group_blocks: u64,
    /// Once for each file with waiting data or a promised [`SetAttr`].
    pub file: u64,
}

/// Space: the places of blocks, and the space left.
pub trait Extents: Names {
    /// The places of the blocks from `start` on, at most `len` blocks, with holes, up to the end of the file's last
    /// block.
    fn resolve(&self, node: &Self::Node, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>>;

    /// The same, and holds the blocks for direct reads and writes. Until as many calls of [`Extents::unpin`],
    /// operations that would move or free a written block of the file fail with [`Busy`](crate::Kind::Busy). The hold
    /// is in DRAM only.
    fn pin(&self, _node: &Self::Node, _start: FileBlock, _len: u64) -> Result<Vec<PlacedExtent>> {
        Err(crate::Kind::Unsupported.into())
    }

    /// Ends one [`Extents::pin`] of the file.
    fn unpin(&self, _node: &Self::Node) {}

    /// The space to reserve for writes that are accepted now and made later.
    fn promise_cost(&self) -> PromiseCost;

    /// Reserves `blocks` blocks of space, which only writes with [`Durability::Promised`] may take from then on;
    /// [`NoSpace`](crate::Kind::NoSpace) if fewer are free. The reservation is in DRAM only: a mount starts without.
    /// Such a write leaves the sum as it is. The caller that reserved releases after it.
    fn reserve(&self, blocks: u64) -> Result<()>;

    /// Releases reserved space, at most as much as was reserved.
    fn release(&self, blocks: u64);

    /// Space statistics. Reserved space is not available.
    fn stat(&self) -> FsStat;

    /// Bytes of DRAM that indexes take now, estimated from their sizes. It visits every index.
    fn index_bytes(&self) -> u64;

    /// The capabilities of this layout.
    fn capabilities(&self) -> Capabilities;
}
