//! Names: create, link, unlink, remove a directory.
//!
//! A name, its inode and its directory change by one switch: a record that is born or dying, and new slots of both
//! inodes. A new inode is written to a free place of the table. Its header makes the old slots there invalid, and its
//! slot goes where the free inode's state is not. So whatever part of it a crash leaves, the place is free.
//!
//! Lookups, locks and checks are those of `nacre-layout-parts`, which has removals and renames up to their commits.

use std::sync::Arc;

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{Error, FileKind, Kind, NewInode, Result, Timestamp};
use nacre_layout_parts::locked::{Locked, lock_all, lock_as_given};
use nacre_layout_parts::names::Name;
use nacre_layout_parts::namespace::{Names, Namespace};
use nacre_layout_parts::rules::{Asked, MAX_TARGET};
use nacre_layout_parts::table::inodes::Inodes;
use nacre_layout_parts::table::{Before, Free};
use nacre_layout_parts::tree::edit::join;
use nacre_media::{Flushed, Pm};
use smallvec::SmallVec;
use zerocopy::IntoBytes;

use crate::alloc::{Purpose, Runs};
use crate::directory::{Directory, Found};
use crate::format::{INLINE_TARGET, INODE_MAGIC, INODE_VERSION, MAX_XATTR_SIZE, RawHeader, inode_seed};
use crate::fs::Shared;
use crate::inode::{Body, Identity, Inode, Node};
use crate::names::Edit;
use crate::seeded::Mistake;
use crate::state::{NewSlot, State};

/// A new inode, which nothing leads to: its slot is not written yet.
struct Made {
    node: Node,
    header: RawHeader,
    new: NewSlot,
    pending: Option<Flushed>,
}

impl<P: Pm> Namespace for Shared<P> {
    type Found = Found;

    const MAX_XATTR_SIZE: usize = MAX_XATTR_SIZE;

    fn move_directories(&self) -> &Mutex<()> {
        &self.move_directories
    }

    fn hash_seed(&self) -> u64 {
        self.hash_seed
    }

    fn find(&self, body: &Body, name: Name<'_>) -> Result<Option<Found>> {
        body.directory()?.find(&*self.pm, name)
    }

    /// A later operation gives it a name.
    fn make_unnamed(&self, new: &NewInode<'_>) -> Result<Node> {
        self.check_unbroken()?;
        let Made { node, header, new: mut slot, pending } = self.make_inode(new, 0, 0)?;
        // Durable before a later link can name it.
        let written = self
            .put_header(&node.inode, &header, pending)
            .and_then(|pending| self.put_slot(&mut slot, pending));
        if let Some(pending) = self.unless_broken(written)? {
            self.pm.fence(pending);
        }
        node.inode.unnamed.store(true, Ordering::Release);
        Ok(node)
    }

    fn commit_removal(
        &self,
        locked: &mut Locked<'_, Inode>,
        dir: &Arc<Inode>,
        (name, found): (Name<'_>, Found),
        child: &Node,
        now: Timestamp,
    ) -> Result<u32> {
        let (mut slot, left) = self.one_name_fewer(&child.inode, locked.body(&child.inode)?, now);
        let mut edit = Edit::new(self, dir);
        edit.remove(&found, name);
        let body = locked.body(dir)?;
        let mut parent = edit.slot(body, now);
        let switched =
            self.commit_tagged(&mut [&mut slot, &mut parent], |tag| edit.write(body, tag, None))?;
        body.state = parent.state();
        edit.follow(body);
        locked.body(&child.inode)?.state = slot.state();
        drop(switched);
        edit.show(locked.body(dir)?);
        Ok(left)
    }

    fn commit_rename(
        &self,
        locked: &mut Locked<'_, Inode>,
        asked: &Asked<'_, Inode>,
        names: &Names<'_, Self>,
    ) -> Result<Option<u32>> {
        self.rename_locked(locked, asked, names)
    }

    /// The whiteout has a slot in the commit.
    fn lock_for_rename<'a>(
        &self,
        mut inodes: SmallVec<[&'a Arc<Inode>; 5]>,
        whiteout: Option<&'a Arc<Inode>>,
    ) -> Locked<'a, Inode> {
        inodes.extend(whiteout);
        match Mistake::LockedAsCalled.is_made(&*self.pm) {
            true => lock_as_given(&inodes),
            false => lock_all(&inodes),
        }
    }
}

impl<P: Pm> Shared<P> {
    pub(crate) fn create(&self, dir: &Arc<Inode>, name: &[u8], new: &NewInode<'_>) -> Result<Node> {
        let name = self.name(name);
        let mut locked = self.lock_to_create(dir, name, new)?;
        self.check_unbroken()?;
        let Made { node, header, new: mut child, pending } = self.make_inode(new, 1, dir.number)?;
        let mut edit = Edit::new(self, dir);
        let body = locked.body(dir)?;
        let inserted = edit.insert(body, name, (node.inode.id(), new.kind), Purpose::Data);
        let mut parent = edit.slot(body, new.now);
        let result = inserted.and_then(|()| {
            self.commit_tagged(&mut [&mut child, &mut parent], |tag| {
                let pending = edit.write(body, tag, pending)?;
                self.put_header(&node.inode, &header, pending)
            })
        });
        let switched = match result {
            Ok(switched) => switched,
            Err(error) => {
                edit.give_up(body)?;
                drop(locked);
                self.unlinked(node);
                return Err(error);
            }
        };
        body.state = parent.state();
        edit.follow(body);
        drop(switched);
        node.inode.links.store(1, Ordering::Release);
        edit.show(body);
        dir.modified(new.now);
        Ok(node)
    }

    fn put_header(
        &self,
        inode: &Inode,
        header: &RawHeader,
        pending: Option<Flushed>,
    ) -> Result<Option<Flushed>> {
        if Mistake::InodeUnwritten.is_made(&*self.pm) {
            // As if it were on its way for ever: the bytes are there for the running system, and not flushed.
            self.pm.store(inode.address, header.as_bytes())?.may_be_lost();
            return Ok(pending);
        }
        Ok(join(pending, self.pm.copy(inode.address, header.as_bytes())?))
    }

    /// Makes an inode without a name. Its slot has `links`, and counts for nothing yet.
    fn make_inode(&self, new: &NewInode<'_>, links: u32, parent: u64) -> Result<Made> {
        let free = self.with_deferred_frees(|| self.allocate_number())?;
        let mut runs = Runs::new();
        let made = self.build_inode(free, new, (links, parent), &mut runs);
        if made.is_err() {
            self.free_runs(&runs);
            // If its place cannot be read the number stays taken until the next mount: it would be the next one again.
            let address = self.table.address(free.number);
            if address.and_then(|address| self.last_in(free.number, address)).is_ok() {
                self.table.free(free);
            }
        }
        made
    }

    fn build_inode(
        &self,
        free: Free,
        new: &NewInode<'_>,
        (links, parent): (u32, u64),
        runs: &mut Runs,
    ) -> Result<Made> {
        let Free { number, before } = free;
        let address = self.table.address(number)?;
        // The generation there, and the slot that is the state of the free inode.
        let (generation, which) = match before {
            Before::Nothing => (0, State::none().which),
            Before::Inode { generation, slot } => (generation, usize::from(slot)),
            Before::Unknown => self.last_in(number, address)?,
        };
        let generation = generation.wrapping_add(1).max(1);
        let now = self.times.pack(new.now);
        let mut header = RawHeader {
            magic: INODE_MAGIC,
            version: INODE_VERSION,
            kind: new.kind as u8,
            generation,
            rdev: new.rdev as u32,
            btime: now,
            atime: now,
            ..RawHeader::default()
        };
        let seed = inode_seed(self.seed, number, generation);
        let mut next = State { which, ..State::none() }.next(address, seed);
        let slot = &mut next.slot;
        slot.links = links;
        slot.mode = (new.mode & 0o7777) as u16;
        (slot.uid, slot.gid) = (new.uid, new.gid);
        (slot.mtime, slot.ctime) = (now, now);
        slot.parent_end = if new.kind == FileKind::Directory { parent } else { 0 };
        let mut pending = None;
        if new.kind == FileKind::Symlink {
            slot.size = new.target.len() as u64;
            if new.target.len() <= INLINE_TARGET {
                header.target[..new.target.len()].copy_from_slice(new.target);
            } else {
                self.allocate(None, 1, Purpose::Data, runs)?;
                slot.root = runs[0].start.0;
                pending = join(pending, self.pm.copy(runs[0].start.offset(), new.target)?);
            }
        }
        if !new.xattrs.is_empty() {
            let (place, written) = self.write_xattrs((number, generation), new.xattrs, runs)?;
            slot.set_xattrs(place);
            if let Some(written) = written {
                pending = join(pending, written);
            }
        }
        header.checksum = header.compute_checksum(self.seed, number);
        let directory = (new.kind == FileKind::Directory).then(|| Box::new(Directory::default()));
        let identity = Identity { number, address, seed };
        let inode =
            Inode::new(identity, &header, next.state(), self.times, directory, &self.table.graveyard)?;
        inode.links.store(0, Ordering::Relaxed);
        inode.blocks.store(u64::from(next.slot.root != 0), Ordering::Relaxed);
        inode.change.store(self.first_change, Ordering::Relaxed);
        Ok(Made { node: self.hold_made(inode), header, new: next, pending })
    }

    /// The generation of the inode that was in a free place, and the slot that is its state. That one stays as it is
    /// until the new header is on media.
    fn last_in(&self, number: u64, address: u64) -> Result<(u32, usize)> {
        self.with_judge(|judge| {
            let old = judge.read(address)?;
            let state = match old.header.is_valid(self.seed, number) {
                true => judge.state(&old, number, address)?,
                false => None,
            };
            Ok((old.header.generation, state.map_or(State::none().which, |state| state.which)))
        })
    }

    pub(crate) fn link(
        &self,
        inode: &Arc<Inode>,
        dir: &Arc<Inode>,
        name: &[u8],
        now: Timestamp,
    ) -> Result<()> {
        let name = self.name(name);
        let (mut locked, links) = self.lock_to_link(inode, dir, name)?;
        let mut child = inode.next_changed(locked.body(inode)?, now);
        child.slot.links = links;
        let mut edit = Edit::new(self, dir);
        let body = locked.body(dir)?;
        let inserted = edit.insert(body, name, (inode.id(), inode.kind), Purpose::Data);
        let mut parent = edit.slot(body, now);
        let result = inserted.and_then(|()| {
            self.commit_tagged(&mut [&mut child, &mut parent], |tag| edit.write(body, tag, None))
        });
        let switched = match result {
            Ok(switched) => switched,
            Err(error) => {
                edit.give_up(body)?;
                return Err(error);
            }
        };
        body.state = parent.state();
        edit.follow(body);
        locked.body(inode)?.state = child.state();
        drop(switched);
        edit.show(locked.body(dir)?);
        inode.named(links);
        inode.changed(now);
        dir.modified(now);
        Ok(())
    }

    /// The next slot of an inode with one name fewer; gives how many are left, too.
    pub(crate) fn one_name_fewer(&self, inode: &Inode, body: &Body, now: Timestamp) -> (NewSlot, u32) {
        let left = inode.links().saturating_sub(1);
        let mut new = inode.next_changed(body, now);
        new.slot.links = if Mistake::LinksForgotten.is_made(&*self.pm) { left.max(1) } else { left };
        (new, left)
    }

    /// The target of a symbolic link.
    pub(crate) fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        if inode.kind != FileKind::Symlink {
            return Err(Error::new(Kind::InvalidInput));
        }
        let damaged = || Error::corrupt(format!("inode {}: target", inode.number));
        let body = inode.body.read();
        let mut target = vec![0; inode.size().min(MAX_TARGET as u64) as usize];
        let at = match body.state.slot.root {
            0 if target.len() <= INLINE_TARGET => {
                inode.address + std::mem::offset_of!(RawHeader, target) as u64
            }
            0 => return Err(damaged()),
            _ => {
                let piece = self.map(inode.tree(&body)).find(0)?;
                piece.ok_or_else(damaged)?.block().offset()
            }
        };
        self.pm.read(at, &mut target)?;
        Ok(target)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nacre_engine::{FileKind, Kind, Names, NewInode, Timestamp};
    use nacre_media::SimPm;

    use crate::{MkfsOptions, MountOptions, ShadowFs, mkfs};

    /// Removals of older and younger inodes than their directory are in the suite.
    #[test]
    fn no_name_goes_from_a_directory_that_was_removed() {
        let pm = Arc::new(SimPm::new(16 << 20));
        mkfs(&*pm, &MkfsOptions::default()).unwrap();
        let fs = ShadowFs::mount(pm, &MountOptions::default()).unwrap();
        let (root, now) = (fs.root(), Timestamp::new(1, 0));
        let dir = fs.create(&root, b"dir", &NewInode::of_root(FileKind::Directory, 0o755, now)).unwrap();
        assert_eq!(fs.unlink(&root, b"dir", now).unwrap_err().kind(), Kind::IsDirectory);
        fs.rmdir(&root, b"dir", now).unwrap();
        assert_eq!(fs.unlink(&dir, b"old", now).unwrap_err().kind(), Kind::NotFound);
    }
}
