//! An inode in DRAM: its attributes, and the root of its contents. A [`Node`] holds an inode for a caller.
//!
//! `body` is the lock of the inode. An operation that changes anything of it on media holds it exclusively until the
//! commit is acknowledged. A reader of contents or names holds it shared. Several are locked in the order of their
//! numbers ([`lock_all`](nacre_layout_parts::locked::lock_all)). Attributes are read without it. Below it come, in this order,
//! the table, a lane of the journal, the allocator; `attr` and the orphan list are held for moments and nothing is
//! locked below them. Above it is `stay`, of one inode. An operation that takes blocks away from a file that is held,
//! or makes them unwritten, takes it alone first; a write to its blocks without `body` shares it.

use std::sync::Arc;

use nacre_engine::sync::RwLock;
use nacre_engine::{BLOCK_SIZE, Error, FileKind, Kind, Result, TimeRange, Timestamp};
use nacre_layout_parts::held::Held;
use nacre_layout_parts::inode_with_core;
use nacre_layout_parts::table::Graveyard;
use nacre_layout_parts::table::core::{Core, Description};

use crate::directory::Directory;
use crate::format::{MAX_FILE_SIZE, ROOT_INODE, RawInode, word};
use crate::transaction::Transaction;

/// File blocks of the largest file.
pub(crate) const MAX_BLOCKS: u64 = MAX_FILE_SIZE / BLOCK_SIZE;

/// The root of an inode's contents.
pub struct Body {
    /// The root of its tree of blocks, as media has it.
    pub(crate) root: u64,
    /// The first block of its extended attributes, or 0.
    pub(crate) xattrs: u64,
    /// Of a directory, the state of its names.
    pub(crate) directory: Option<Box<Directory>>,
}

impl Body {
    /// The state of its names, if it is a directory's.
    pub(crate) fn directory(&self) -> Result<&Directory> {
        self.directory.as_deref().ok_or(Error::new(Kind::NotDirectory))
    }
}

/// One inode.
pub struct Inode {
    core: Core,
    /// Held shared, the blocks that the file has stay its own, and written.
    pub(crate) stay: RwLock<()>,
    pub(crate) body: RwLock<Body>,
}

impl Inode {
    /// The inode that `raw` describes, without holders and without its contents.
    pub(crate) fn new(
        number: u64,
        address: u64,
        raw: &RawInode,
        times: TimeRange,
        directory: Option<Box<Directory>>,
        graveyard: &Arc<Graveyard>,
    ) -> Result<Inode> {
        if raw.size > MAX_FILE_SIZE {
            return Err(Error::corrupt(format!("inode {number}: size")));
        }
        let (mtime, ctime) = match raw.modified {
            0 => (raw.mtime, raw.ctime),
            modified => (modified, modified),
        };
        let described = Description {
            number,
            address,
            generation: raw.generation,
            kind: raw.kind,
            rdev: raw.rdev,
            mode: raw.mode,
            policy: raw.policy,
            uid: raw.uid,
            gid: raw.gid,
            flags: raw.flags,
            links: raw.links,
            size: raw.size,
            parent: raw.parent,
            names: directory.as_ref().map_or((0, 0), |names| (names.entries, names.subdirectories)),
            atime: raw.atime,
            mtime,
            ctime,
            btime: raw.btime,
        };
        let core = Core::new(&described, times, graveyard)?;
        let root = if has_tree(core.kind) { raw.root } else { 0 };
        let body = RwLock::new(Body { root, xattrs: raw.xattrs, directory });
        Ok(Inode { core, stay: RwLock::new(()), body })
    }

    /// mtime and ctime will be `now`.
    pub(crate) fn put_modified(&self, transaction: &mut Transaction, now: Timestamp) {
        match self.pack(now) {
            0 => self.put_times(transaction, now, now),
            packed => transaction.word(self.address + word::MODIFIED, packed),
        }
    }

    /// ctime will be `now`.
    pub(crate) fn put_changed(&self, transaction: &mut Transaction, now: Timestamp) {
        self.put_times(transaction, self.attr.get().mtime, now);
    }

    /// mtime and ctime will be these.
    pub(crate) fn put_times(&self, transaction: &mut Transaction, mtime: Timestamp, ctime: Timestamp) {
        transaction.word(self.address + word::MODIFIED, 0);
        transaction.word(self.address + word::MTIME, self.pack(mtime));
        transaction.word(self.address + word::CTIME, self.pack(ctime));
    }

    /// The number of links will be this; flags stay.
    pub(crate) fn put_links(&self, transaction: &mut Transaction, links: u32) {
        transaction.word(self.address + word::LINKS, links_word(links, self.attr.get().flags));
    }
}

/// Whether an inode of this kind has a tree of blocks.
pub(crate) fn has_tree(kind: FileKind) -> bool {
    matches!(kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink)
}

/// Links and flags as the word that they share.
pub(crate) fn links_word(links: u32, flags: u32) -> u64 {
    u64::from(links) | u64::from(flags) << 32
}

inode_with_core!(Inode, Body, ROOT_INODE);

/// An inode that a caller holds.
pub type Node = Held<Inode>;
