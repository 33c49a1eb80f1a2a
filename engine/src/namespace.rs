//! The contract of a layout, names and attributes: [`Names`].
//!
//! A *node* is an inode that the caller holds. While a node exists, its inode is not reclaimed, even if all its links
//! are removed. Cloning a node is cheap. Dropping the last node of an inode without links reclaims the inode.
//!
//! **Durability.** When an operation returns, it is durable (`Data::sync` has then nothing to do), unless the
//! layout's `Capabilities::durable_on_return` is false. Each operation is all or nothing after a crash. For data,
//! the capabilities tell.
//!
//! **Permissions** are not checked here but in `vfs`. The layout enforces the flags of an inode (immutable,
//! append-only) and the structure of the tree (no cycles, no hard links to directories).
//!
//! **Names** are 1 to 255 bytes without `/` and NUL, and never `.` or `..`.

use std::ops::ControlFlow;

use crate::attr::{Attr, FileKind, NewInode, SetAttr};
use crate::error::Result;
use crate::units::{InodeId, Timestamp};

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
    fn let_go(&self, node: Self::Node);

    /// Drops a node and keeps its inode. Until [`Names::unpark`], the inode is not reclaimed even without names, and
    /// [`Names::node_by_number`] finds it. Unlike a node, a parked inode costs the layout almost no DRAM. One caller
    /// parks an inode, once. A layout that cannot park returns the node.
    fn park(&self, node: Self::Node) -> Option<Self::Node>;

    /// Ends one [`Names::park`]. Without names and nodes the inode is reclaimed.
    fn unpark(&self, number: u64);

    /// Inodes with state in DRAM, and the limit of those that are not held.
    fn inode_cache(&self) -> InodeCache;

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

    /// Moves a name. Renaming onto another name of the same inode does nothing, in any mode. A directory is never moved
    /// below itself ([`InvalidInput`](crate::Kind::InvalidInput)).
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

    /// Notes a read outside `Data::read`, such as one of a directory or a symbolic link. It updates atime by the
    /// rules of relatime. The new atime is kept in DRAM, and written with the next change or at the unmount.
    fn note_read(&self, node: &Self::Node, now: Timestamp);

    /// Whether a regular file was ever made immutable or append-only. If so, opening a file for writing must be
    /// checked. This state is durable before the first such flag is.
    fn has_guarded(&self) -> bool;

    /// The attributes.
    fn getattr(&self, node: &Self::Node) -> Result<Attr>;

    /// The size of a regular file in bytes; of a symbolic link, that of its target.
    fn size(&self, node: &Self::Node) -> Result<u64>;

    /// The attributes of the inode that `name` in `dir` refers to. As [`Names::lookup`] and [`Names::getattr`], but
    /// without a held inode, which may cost a layout less.
    fn getattr_at(&self, dir: &Self::Node, name: &[u8]) -> Result<Attr>;

    /// Changes attributes in one commit and returns the new ones. `now` becomes ctime, and mtime if the size changes
    /// and no mtime is given. [`InvalidInput`](crate::Kind::InvalidInput) for a time that the format cannot hold
    /// ([`TimeRange`](crate::TimeRange)).
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
