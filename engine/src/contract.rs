//! The contract of a layout: [`Names`], [`Data`] and [`Extents`].
//!
//! A *node* is an inode that the caller holds: as long as a node exists, its inode is not reclaimed, however many of
//! its links are removed. Cloning a node is cheap; dropping the last one of an inode without links reclaims it.
//!
//! **Durability.** When an operation returns, it is durable ([`Data::sync`] has then nothing to do), unless the
//! layout's [`Capabilities::durable_on_return`] is false. Each operation is all or nothing after a crash; the
//! capabilities say so for data.
//!
//! **Permissions** are not checked here; that is the business of `vfs`. Flags of an inode (immutable, append-only) and
//! the structure of the tree (no cycles, no hard links to directories) are.
//!
//! **Names** are 1 to 255 bytes without `/` and NUL, and never `.` or `..`.

use std::io::IoSlice;
use std::ops::ControlFlow;

use crate::attr::{Attr, FileKind, NewInode, SetAttr};
use crate::error::Result;
use crate::units::{Block, FileBlock, InodeId, Timestamp};

/// What a layout can do; the behaviour suite is gated by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Every operation is durable when it returns.
    pub durable_on_return: bool,
    /// A write of any size is all or nothing after a crash. On a full device one that overwrites is so in pieces, and where
    /// not even the metadata finds space, not at all.
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
    /// Where to go on after this entry.
    pub cookie: u64,
    /// Its name.
    pub name: &'a [u8],
    /// The inode it refers to.
    pub id: InodeId,
    /// The kind of that inode.
    pub kind: FileKind,
}

/// What a rename does with the target name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameMode {
    /// An existing target is replaced atomically.
    Replace,
    /// An existing target is an error.
    NoReplace,
    /// Both names must exist and swap their inodes.
    Exchange,
}

/// What setting an extended attribute demands of the state before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace.
    Set,
    /// It must not exist.
    Create,
    /// It must exist.
    Replace,
}

/// Inodes whose state a layout keeps in DRAM. Beyond the limit the state of those goes that nobody holds and that were not
/// used lately; it is read from media again when it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeCache {
    /// Inodes whose state is in DRAM.
    pub loaded: u64,
    /// The most that there may be, beside those that are held.
    pub limit: u64,
}

impl InodeCache {
    /// The limit where nothing is said: some 200 MB of DRAM.
    pub const DEFAULT_LIMIT: u64 = 1 << 18;
    /// The least limit that can be set.
    pub const MIN_LIMIT: u64 = 1024;
}

impl Default for InodeCache {
    /// A layout that keeps all of them.
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

    /// Holds the inode with this name. [`Stale`](crate::Kind::Stale) when it is gone or the generation is another.
    fn node(&self, id: InodeId) -> Result<Self::Node>;

    /// The inode with this number, whatever its generation (for protocols that name by number alone).
    fn node_by_number(&self, number: u64) -> Result<Self::Node>;

    /// The name of a held inode.
    fn id(&self, node: &Self::Node) -> InodeId;

    /// The kind of a held inode.
    fn kind(&self, node: &Self::Node) -> FileKind;

    /// Lets go of a node whose inode is not expected to be asked for soon: what the layout keeps of it in DRAM may go, too.
    fn let_go(&self, node: Self::Node) {
        drop(node);
    }

    /// Lets go of a node and keeps its inode: until [`Names::unpark`] it is not reclaimed, however many of its names go,
    /// and [`Names::node_by_number`] finds it. Unlike a node, that costs the layout next to no DRAM. One caller parks an
    /// inode, once. A layout that cannot gives the node back.
    fn park(&self, node: Self::Node) -> Option<Self::Node> {
        Some(node)
    }

    /// Ends what [`Names::park`] began. Without names and nodes the inode is reclaimed.
    fn unpark(&self, _number: u64) {}

    /// Inodes whose state is in DRAM, and how many of them there may be that nobody holds.
    fn inode_cache(&self) -> InodeCache {
        InodeCache::default()
    }

    /// The inode that `name` in `dir` refers to; [`NotFound`](crate::Kind::NotFound) or
    /// [`NotDirectory`](crate::Kind::NotDirectory).
    fn lookup(&self, dir: &Self::Node, name: &[u8]) -> Result<Self::Node>;

    /// The directory that a directory is in; the root's is the root.
    fn parent(&self, dir: &Self::Node) -> Result<Self::Node>;

    /// Makes an inode and its name.
    fn create(&self, dir: &Self::Node, name: &[u8], new: &NewInode<'_>) -> Result<Self::Node>;

    /// Makes a regular file without a name; it is gone with its last node unless linked before.
    fn create_unnamed(&self, new: &NewInode<'_>) -> Result<Self::Node>;

    /// Gives a non-directory another name.
    fn link(&self, node: &Self::Node, dir: &Self::Node, name: &[u8], now: Timestamp) -> Result<()>;

    /// Removes the name of a non-directory.
    fn unlink(&self, dir: &Self::Node, name: &[u8], now: Timestamp) -> Result<()>;

    /// Removes an empty directory.
    fn rmdir(&self, dir: &Self::Node, name: &[u8], now: Timestamp) -> Result<()>;

    /// Moves a name. Renaming onto another name of the same inode does nothing. A directory is never moved below
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
    /// breaks. A name that existed all the while is reported exactly once, whatever else changes meanwhile, also when
    /// another inode takes it. A name that comes meanwhile, or moves, is reported a few times at the most, and reading
    /// ends however many do. Cookies are 3 or greater, below 2^63, and stay valid after a remount; their order is the
    /// layout's.
    fn read_dir(
        &self,
        dir: &Self::Node,
        cookie: u64,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()>;

    /// The target of a symbolic link.
    fn read_link(&self, node: &Self::Node) -> Result<Vec<u8>>;

    /// The inode was read past [`Data::read`], as directories and symbolic links are: atime follows by the rules of
    /// relatime. It is kept in DRAM, and written with the next change or at the unmount.
    fn note_read(&self, node: &Self::Node, now: Timestamp);

    /// Whether a regular file was ever made immutable or append-only: opening a file for writing must then be checked. It
    /// is durable before the first such flag is.
    fn has_guarded(&self) -> bool;

    /// The attributes.
    fn getattr(&self, node: &Self::Node) -> Result<Attr>;

    /// The attributes of what `name` in `dir` refers to. As [`Names::lookup`] and [`Names::getattr`], but nobody has to
    /// hold the inode, which a layout may do at less cost.
    #[inline]
    fn getattr_at(&self, dir: &Self::Node, name: &[u8]) -> Result<Attr> {
        self.getattr(&self.lookup(dir, name)?)
    }

    /// Changes attributes in one commit and returns the new ones; `now` becomes ctime (and mtime, when the size
    /// changes and no mtime is given). A time that the format cannot hold ([`TimeRange`](crate::TimeRange)) is refused with
    /// [`InvalidInput`](crate::Kind::InvalidInput); where the change is `promised`, it is clamped, as the time of a clock is.
    fn setattr(&self, node: &Self::Node, change: &SetAttr, now: Timestamp) -> Result<Attr>;

    /// The value of an extended attribute; [`NoAttribute`](crate::Kind::NoAttribute) when it is not there.
    fn get_xattr(&self, node: &Self::Node, name: &[u8]) -> Result<Vec<u8>>;

    /// The names of all extended attributes.
    fn list_xattrs(&self, node: &Self::Node) -> Result<Vec<Vec<u8>>>;

    /// Sets an extended attribute, and the permission bits in the same commit when `mode` is given (an ACL implies
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

/// Where a write goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteAt {
    /// At this offset.
    Offset(u64),
    /// At the end of the file, whatever the end is when the write commits.
    End,
}

/// Whether a write must be durable when it returns, which only buffering layers look at, and whose space it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// It may wait for a sync.
    Lazy,
    /// It must be durable on return (O_SYNC, O_DSYNC).
    Now,
    /// As [`Durability::Now`], for pages that a kernel accepted before, for which nobody set space aside: it may take what is
    /// kept for the logs of what exists.
    Accepted,
    /// As [`Durability::Now`], for a write that a buffering layer accepted before: it and its metadata may take the space
    /// that was set aside by [`Extents::reserve`], so that it cannot fail for want of space. Nor do flags forbid it that
    /// were set since, and where the inode was changed since, ctime does not go back: the write's time is that one. Others
    /// may read what it overwrites before it is durable.
    Promised,
}

/// What fallocate(2) does with the range.
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

/// What a seek looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekTo {
    /// The next byte that is allocated and written.
    Data,
    /// The next byte that is not, the end of the file at the latest.
    Hole,
}

/// File contents.
pub trait Data: Names {
    /// Reads up to `buf.len()` bytes at `offset`; the count is smaller only at the end of the file. Holes read as
    /// zeros. `now`, when given, is taken for atime by the rules of relatime.
    fn read(&self, node: &Self::Node, offset: u64, buf: &mut [u8], now: Option<Timestamp>) -> Result<usize>;

    /// Writes all of `data`, in order, as one operation; returns the offset that it went to. Blocks that a file has,
    /// allocated or written, can be written on a full device, too.
    fn write(
        &self,
        node: &Self::Node,
        at: WriteAt,
        data: &[IoSlice<'_>],
        durability: Durability,
        now: Timestamp,
    ) -> Result<u64>;

    /// Whether a write that may wait would go to a slow device, and is better taken by DRAM first, whatever else a buffering
    /// layer thinks of it.
    fn goes_to_disk(&self, _node: &Self::Node, _offset: u64, _len: u64) -> bool {
        false
    }

    /// A buffering layer accepted a write, which comes later and may come in parts, as [`Durability::Promised`].
    fn accepted(&self, _node: &Self::Node, _offset: u64, _len: u64) {}

    /// A buffering layer is about to accept such a write. What the layout needs for it beside the space that is set aside it has
    /// when this returns; where that is an error, the write is not accepted.
    fn expect_write(&self, _node: &Self::Node) -> Result<()> {
        Ok(())
    }

    /// A buffering layer takes DRAM back that it had left to what is below: before this returns, nobody there uses more than
    /// is left to it now. It waits for no device and calls nobody above.
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

    /// Bytes that media takes for any write inside an aligned piece of so many: a line where data is updated in place, a
    /// block where it is copied on write. A power of two, from a line to a block.
    fn write_unit(&self) -> u64;

    /// Makes everything about this inode durable.
    fn sync(&self, node: &Self::Node) -> Result<()>;

    /// A handle that could write was closed. A layer that buffers writes what must not be lost from then on: the contents
    /// that replace what a truncation took away.
    fn closed(&self, _node: &Self::Node) -> Result<()> {
        Ok(())
    }

    /// Makes everything durable.
    fn sync_all(&self) -> Result<()>;
}

/// Where an extent lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Nowhere: it reads as zeros and takes no space.
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
    /// Where they are.
    pub place: Place,
}

/// Space and its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FsStat {
    /// Blocks that files could use on an empty file system.
    pub blocks: u64,
    /// Blocks that are not in use, the reserve included.
    pub free: u64,
    /// Blocks that a user can still allocate.
    pub available: u64,
    /// Inodes that can exist.
    pub inodes: u64,
    /// Inodes that can still be made.
    pub inodes_free: u64,
}

/// The space, in blocks, that a layout needs at the most to write what a buffering layer accepted: data, and the metadata
/// of it. Who sets so much aside for all that waits, and writes it with [`Durability::Promised`] in any order, beside any
/// other operations, finds space. A block of a file that is written in several operations, with no truncation and no
/// hole between them, counts once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromiseCost {
    /// For each block of a file.
    pub block: u64,
    /// Once for all blocks of a file that lie in the same aligned group, as long as the first of them waits.
    pub group: u64,
    /// Blocks of a file in a group; a power of two.
    pub group_blocks: u64,
    /// Once for each file of which anything waits: for a [`SetAttr`] that is promised, too.
    pub file: u64,
}

/// Space: where things are and how much is left.
pub trait Extents: Names {
    /// The places of the blocks from `start` on, at most `len` blocks, holes included, clipped to the end of the file's
    /// last block.
    fn resolve(&self, node: &Self::Node, start: FileBlock, len: u64) -> Result<Vec<PlacedExtent>>;

    /// The same, and holds them: until as many calls of [`Extents::unpin`], whatever would give a written block of the file
    /// another place, or free one, fails with [`Busy`](crate::Kind::Busy). For who reads and writes the blocks directly.
    /// A pin is DRAM only.
    fn pin(&self, _node: &Self::Node, _start: FileBlock, _len: u64) -> Result<Vec<PlacedExtent>> {
        Err(crate::Kind::Unsupported.into())
    }

    /// Ends what one [`Extents::pin`] of the file began.
    fn unpin(&self, _node: &Self::Node) {}

    /// What writes need that are accepted now and made later.
    fn promise_cost(&self) -> PromiseCost;

    /// Sets `blocks` blocks of space aside, which only writes with [`Durability::Promised`] may take from then on;
    /// [`NoSpace`](crate::Kind::NoSpace) when there is not so much. It is DRAM only: a mount starts without. Such a write
    /// leaves the sum as it is: who reserved releases, after it.
    fn reserve(&self, blocks: u64) -> Result<()>;

    /// Gives back what was set aside: at most as much as was.
    fn release(&self, blocks: u64);

    /// Space and its use. What is set aside is not available.
    fn stat(&self) -> FsStat;

    /// Bytes of DRAM that indexes take now, an estimate from their sizes. Looks at every index.
    fn index_bytes(&self) -> u64;

    /// What this layout can do.
    fn capabilities(&self) -> Capabilities;
}
