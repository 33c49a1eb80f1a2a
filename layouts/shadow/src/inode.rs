//! An inode in DRAM: its attributes, and its state on media. A [`Node`] holds an inode for a caller.
//!
//! `body` is the lock of the inode. An operation that changes anything of it on media holds it exclusively until the
//! commit is acknowledged: so nobody else writes a slot of it, or a word of its tree. A reader of contents or names
//! holds it shared. Several are locked in the order of their numbers. Attributes are read without it. Below it come, in
//! this order, the table, a lane, the allocator; `attr` and the orphan list are held for moments and nothing is locked
//! below them.

use std::sync::Arc;

use nacre_engine::sync::RwLock;
use nacre_engine::{Error, FileKind, Kind, Result, TimeRange, Timestamp};
use nacre_layout_parts::held::Held;
use nacre_layout_parts::inode_with_core;
use nacre_layout_parts::table::Graveyard;
use nacre_layout_parts::table::core::{Core, Description};
use nacre_layout_parts::tree::Tree;
use nacre_layout_parts::versions::LastChange;

use crate::attributes::Attributes;
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
    core: Core,
    /// The seed of its slots.
    pub(crate) seed: u32,
    pub(crate) body: RwLock<Body>,
    /// Changed under `body`.
    pub(crate) last_change: LastChange,
}

/// The fixed facts of an inode.
pub(crate) struct Identity {
    pub(crate) number: u64,
    pub(crate) address: u64,
    pub(crate) seed: u32,
}

impl Inode {
    /// The inode with this header and state, without holders.
    pub(crate) fn new(
        Identity { number, address, seed }: Identity,
        header: &RawHeader,
        state: State,
        times: TimeRange,
        directory: Option<Box<Directory>>,
        graveyard: &Arc<Graveyard>,
    ) -> Result<Inode> {
        let slot = &state.slot;
        let described = Description {
            number,
            address,
            generation: header.generation,
            kind: header.kind,
            rdev: header.rdev,
            mode: slot.mode,
            policy: slot.policy,
            uid: slot.uid,
            gid: slot.gid,
            flags: slot.flags,
            links: slot.links,
            size: slot.size,
            parent: if header.kind == FileKind::Directory as u8 { slot.parent_end } else { 0 },
            names: directory.as_ref().map_or((0, 0), |names| (names.entries, names.subdirectories)),
            atime: header.atime,
            mtime: slot.mtime,
            ctime: slot.ctime,
            btime: header.btime,
        };
        let core = Core::new(&described, times, graveyard)?;
        check_slot(slot, core.kind, number)?;
        let body = RwLock::new(Body { state, directory });
        Ok(Inode { core, seed, body, last_change: LastChange::default() })
    }

    /// Its tree of blocks.
    pub(crate) fn tree(&self, body: &Body) -> Tree {
        body.state.tree(self.kind)
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
}

/// Puts attributes into a slot; atime is elsewhere.
pub(crate) fn put_attributes(slot: &mut RawSlot, attributes: &Attributes, times: TimeRange) {
    slot.mode = attributes.mode;
    slot.policy = attributes.policy;
    (slot.uid, slot.gid, slot.flags) = (attributes.uid, attributes.gid, attributes.flags);
    (slot.mtime, slot.ctime) = (times.pack(attributes.mtime), times.pack(attributes.ctime));
}

inode_with_core!(Inode, Body, ROOT_INODE);

/// An inode that a caller holds.
pub type Node = Held<Inode>;
