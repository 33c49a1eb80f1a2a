//! Names: create, link, unlink, remove a directory.
//!
//! A name and its inode change in one transaction: the directory's words, the inode's links, the times of both. A new
//! inode is written without links, where only its number's next user looks; its links are a word of the transaction
//! that names it.
//!
//! An operation that changes names holds every inode concerned exclusively, locked in the order of their numbers. An
//! inode that a name leads to is found first and locked then, so the name is looked up again under the locks.

use std::sync::Arc;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{Attr, Error, FileKind, Kind, NewInode, Result, Timestamp};
use nacre_layout_parts::locked::{self, lock_all};
use nacre_layout_parts::rules::{
    MAX_TARGET, check_link, check_lookup, check_name, check_new, check_removable,
};
use nacre_layout_parts::table::inodes::Inodes;
use nacre_layout_parts::table::{Before, Free};
use nacre_media::{Flushed, Pm};
use zerocopy::{FromZeros, IntoBytes};

use crate::alloc::{Purpose, Runs};
use crate::directory::{Directory, Found};
use crate::format::{INLINE_TARGET, INODE_MAGIC, INODE_VERSION, MAX_XATTR_SIZE, RawInode, word};
use crate::fs::Shared;
use crate::inode::{Inode, Node};
use crate::names::Edit;
use crate::seeded::Mistake;
use crate::table::read_inode;
use crate::transaction::{Transaction, join};

/// The most names of one inode.
const MAX_LINKS: u32 = u32::MAX / 2;

/// Inodes that are locked for a change.
pub(crate) type Locked<'a> = locked::Locked<'a, Inode>;

/// The directory state of an inode, which is locked, is a directory, and still has its name.
pub(crate) fn directory<'l>(locked: &'l mut Locked<'_>, inode: &Inode) -> Result<&'l Directory> {
    inode.check_directory()?;
    if inode.links() == 0 {
        return Err(Error::new(Kind::NotFound)); // it was removed
    }
    locked.body(inode)?.directory()
}

/// A new inode, which is on its way to media without links.
struct Made {
    node: Node,
    pending: Option<Flushed>,
}

impl<P: Pm> Shared<P> {
    /// Looks a name up in a directory, which is locked.
    pub(crate) fn find(&self, directory: &Directory, name: &[u8]) -> Result<Option<Found>> {
        directory.find(&*self.pm, self.hash_seed, name)
    }

    pub(crate) fn lookup(&self, dir: &Inode, name: &[u8]) -> Result<Node> {
        dir.check_directory()?;
        check_lookup(name)?;
        // Held before the name can go away, so that the inode cannot be reclaimed in between.
        let body = dir.body.read();
        let found = self.find(body.directory()?, name)?.ok_or(Error::new(Kind::NotFound))?;
        let node = self.hold(found.id.number)?;
        if node.inode.generation != found.id.generation || node.inode.kind != found.kind {
            return Err(Error::corrupt(format!("directory {}: a name of another inode", dir.number)));
        }
        Ok(node)
    }

    pub(crate) fn create(&self, dir: &Arc<Inode>, name: &[u8], new: &NewInode<'_>) -> Result<Node> {
        check_name(name)?;
        check_new(new, MAX_XATTR_SIZE)?;
        self.reclaim_buried();
        let mut locked = lock_all(&[dir]);
        if self.find(directory(&mut locked, dir)?, name)?.is_some() {
            return Err(Error::new(Kind::Exists));
        }
        dir.check_flags(Attr::IMMUTABLE)?;
        let made = self.make_inode(new, dir.number)?;
        let mut edit = Edit::new(self, dir);
        let body = locked.body(dir)?;
        let result = edit.insert(body, name, &made.node.inode, Purpose::Data).and_then(|()| {
            let mut transaction = Transaction::default();
            let pending = edit.finish(body.directory()?, &mut transaction, made.pending)?;
            made.node.inode.put_links(&mut transaction, 1);
            dir.put_modified(&mut transaction, new.now);
            self.commit(transaction, pending)
        });
        match result {
            Ok(()) => {
                made.node.inode.links.store(1, Ordering::Release);
                edit.done(body);
                dir.modified(new.now);
                Ok(made.node)
            }
            Err(error) => {
                edit.give_up();
                drop(locked);
                self.unlinked(made.node);
                Err(error)
            }
        }
    }

    /// Makes an inode without a name, which has no links yet.
    fn make_inode(&self, new: &NewInode<'_>, parent: u64) -> Result<Made> {
        let free = self.with_deferred_frees(|| self.allocate_number())?;
        let mut runs = Runs::new();
        let made = self.build_inode(free, new, parent, &mut runs);
        if made.is_err() {
            self.free_runs(&runs);
            // If its place cannot be read the number stays taken until the next mount: it would be the next one again.
            let address = self.table.address(free.number);
            if address.and_then(|address| read_inode(&*self.pm, address)).is_ok() {
                self.table.free(free);
            }
        }
        made
    }

    fn build_inode(&self, free: Free, new: &NewInode<'_>, parent: u64, runs: &mut Runs) -> Result<Made> {
        let Free { number, before } = free;
        let address = self.table.address(number)?;
        let generation = match before {
            Before::Nothing => 0,
            Before::Inode { generation, .. } => generation,
            Before::Unknown => read_inode(&*self.pm, address)?.generation,
        };
        let mut raw = RawInode::new_zeroed();
        raw.magic = INODE_MAGIC;
        raw.version = INODE_VERSION;
        raw.kind = new.kind as u8;
        raw.generation = generation.wrapping_add(1).max(1);
        raw.rdev = new.rdev as u32;
        raw.mode = (new.mode & 0o7777) as u16;
        (raw.uid, raw.gid) = (new.uid, new.gid);
        let now = self.times.pack(new.now);
        (raw.btime, raw.mtime, raw.ctime, raw.atime) = (now, now, now, now);
        raw.parent = if new.kind == FileKind::Directory { parent } else { 0 };
        raw.checksum = raw.compute_checksum(self.seed, number);
        let mut pending = None;
        if new.kind == FileKind::Symlink {
            raw.size = new.target.len() as u64;
            if new.target.len() <= INLINE_TARGET {
                raw.target[..new.target.len()].copy_from_slice(new.target);
            } else {
                self.allocate(None, 1, Purpose::Data, runs)?;
                raw.root = runs[0].start.0;
                pending = join(pending, self.pm.copy(runs[0].start.offset(), new.target)?);
            }
        }
        if !new.xattrs.is_empty() {
            let mut taken = Runs::new();
            let place = self.write_xattrs(number, raw.generation, new.xattrs, &mut taken, &mut pending);
            runs.extend(taken);
            raw.xattrs = place?;
        }
        if Mistake::InodeUnwritten.is_made(&*self.pm) {
            // As if it were on its way for ever: the bytes are there for the running system, and not flushed.
            self.pm.store(address, raw.as_bytes())?.may_be_lost();
        } else {
            // Only the target of a symbolic link is read.
            let is_whole = new.kind == FileKind::Symlink;
            let len = if is_whole { size_of::<RawInode>() } else { std::mem::offset_of!(RawInode, target) };
            pending = join(pending, self.pm.copy(address, &raw.as_bytes()[..len])?);
        }
        let directory = (new.kind == FileKind::Directory).then(|| Box::new(Directory::new(self.name_index)));
        let inode = Inode::new(number, address, &raw, self.times, directory, &self.table.graveyard)?;
        inode.blocks.store(u64::from(raw.root != 0), Ordering::Relaxed);
        inode.change.store(self.superblock.lock().raw.mount_epoch << 32, Ordering::Relaxed);
        inode.holds.store(1, Ordering::Relaxed);
        let inode = Arc::new(inode);
        self.table.shard(number).write().inodes.insert(number, Arc::clone(&inode));
        self.note_made();
        Ok(Made { node: Node::from_held(inode), pending })
    }

    pub(crate) fn create_unnamed(&self, new: &NewInode<'_>) -> Result<Node> {
        if new.kind != FileKind::Regular {
            return Err(Error::new(Kind::InvalidInput));
        }
        check_new(new, MAX_XATTR_SIZE)?;
        self.make_unnamed(new)
    }

    /// Makes an inode that a later transaction gives a name. Without one it is reclaimed with its last node.
    pub(crate) fn make_unnamed(&self, new: &NewInode<'_>) -> Result<Node> {
        self.check_unbroken()?;
        let Made { node, pending } = self.make_inode(new, 0)?;
        // Durable before a later link can name it.
        if let Some(pending) = pending {
            self.pm.fence(pending);
        }
        node.inode.unnamed.store(true, Ordering::Release);
        Ok(node)
    }

    pub(crate) fn link(
        &self,
        inode: &Arc<Inode>,
        dir: &Arc<Inode>,
        name: &[u8],
        now: Timestamp,
    ) -> Result<()> {
        check_name(name)?;
        let mut locked = lock_all(&[dir, inode]);
        // The error for an existing name comes before those that forbid the link, as in the kernel.
        if self.find(directory(&mut locked, dir)?, name)?.is_some() {
            return Err(Error::new(Kind::Exists));
        }
        check_link::<Inode>(inode, dir)?;
        let links = match inode.links() {
            0 if !inode.unnamed.load(Ordering::Acquire) => return Err(Error::new(Kind::NotFound)),
            MAX_LINKS.. => return Err(Error::new(Kind::TooManyLinks)),
            links => links + 1,
        };
        let mut edit = Edit::new(self, dir);
        let body = locked.body(dir)?;
        let result = edit.insert(body, name, inode, Purpose::Data).and_then(|()| {
            let mut transaction = Transaction::default();
            let pending = edit.finish(body.directory()?, &mut transaction, None)?;
            inode.put_links(&mut transaction, links);
            inode.put_changed(&mut transaction, now);
            dir.put_modified(&mut transaction, now);
            self.commit(transaction, pending)
        });
        if let Err(error) = result {
            edit.give_up();
            return Err(error);
        }
        edit.done(body);
        inode.links.store(links, Ordering::Release);
        inode.unnamed.store(false, Ordering::Release);
        inode.changed(now);
        dir.modified(now);
        Ok(())
    }

    /// Words for one name fewer; gives how many are left.
    pub(crate) fn put_one_name_fewer(
        &self,
        inode: &Inode,
        transaction: &mut Transaction,
        now: Timestamp,
    ) -> u32 {
        let left = inode.links().saturating_sub(1);
        let said = if Mistake::LinksForgotten.is_made(&*self.pm) { left.max(1) } else { left };
        inode.put_links(transaction, said);
        inode.put_changed(transaction, now);
        left
    }

    pub(crate) fn unlink(&self, dir: &Arc<Inode>, name: &[u8], now: Timestamp) -> Result<()> {
        check_name(name)?;
        self.reclaim_buried();
        loop {
            let child = self.lookup(dir, name)?;
            if child.inode.is_directory() {
                return Err(Error::new(Kind::IsDirectory));
            }
            let mut locked = lock_all(&[dir, &child.inode]);
            let Some(found) = self.found_again(&mut locked, dir, name, &child)? else { continue };
            let left = self.remove(&mut locked, dir, name, found, &child, now)?;
            drop(locked);
            self.name_gone(child, left);
            return Ok(());
        }
    }

    pub(crate) fn rmdir(&self, dir: &Arc<Inode>, name: &[u8], now: Timestamp) -> Result<()> {
        check_name(name)?;
        self.reclaim_buried();
        loop {
            let child = self.lookup(dir, name)?;
            child.inode.check_directory()?;
            let mut locked = lock_all(&[dir, &child.inode]);
            let Some(found) = self.found_again(&mut locked, dir, name, &child)? else { continue };
            check_removable::<Inode>(dir, &child.inode)?;
            if child.inode.entries.load(Ordering::Relaxed) > 0 {
                return Err(Error::new(Kind::NotEmpty));
            }
            let left = self.remove(&mut locked, dir, name, found, &child, now)?;
            drop(locked);
            self.name_gone(child, left);
            return Ok(());
        }
    }

    /// The name under the locks; `None` when it refers to another inode by now.
    pub(crate) fn found_again(
        &self,
        locked: &mut Locked<'_>,
        dir: &Inode,
        name: &[u8],
        node: &Node,
    ) -> Result<Option<Found>> {
        let found = self.find(directory(locked, dir)?, name)?.ok_or(Error::new(Kind::NotFound))?;
        Ok((found.id == node.inode.id()).then_some(found))
    }

    /// Commits the removal of a name; its directory and inode are locked; gives how many names the inode has left.
    fn remove(
        &self,
        locked: &mut Locked<'_>,
        dir: &Arc<Inode>,
        name: &[u8],
        found: Found,
        child: &Node,
        now: Timestamp,
    ) -> Result<u32> {
        check_removable::<Inode>(dir, &child.inode)?;
        let mut edit = Edit::new(self, dir);
        let mut transaction = Transaction::default();
        let body = locked.body(dir)?;
        edit.remove(body.directory()?, &found, name)?;
        let pending = edit.finish(body.directory()?, &mut transaction, None)?;
        let left = self.put_one_name_fewer(&child.inode, &mut transaction, now);
        dir.put_modified(&mut transaction, now);
        self.commit(transaction, pending)?;
        edit.done(body);
        child.inode.links.store(left, Ordering::Release);
        child.inode.changed(now);
        dir.modified(now);
        Ok(left)
    }

    /// A name was removed, and no lock is held: with the last one the inode goes as soon as it has no holders.
    pub(crate) fn name_gone(&self, node: Node, left: u32) {
        if left == 0 {
            self.unlinked(node);
        }
    }

    /// The target of a symbolic link.
    pub(crate) fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        if inode.kind != FileKind::Symlink {
            return Err(Error::new(Kind::InvalidInput));
        }
        let body = inode.body.read();
        let mut target = vec![0; inode.size().min(MAX_TARGET as u64) as usize];
        match body.root {
            0 if target.len() <= INLINE_TARGET => {
                let offset = std::mem::offset_of!(RawInode, target) as u64;
                self.pm.read(inode.address + offset, &mut target)?;
            }
            0 => return Err(Error::corrupt(format!("inode {}: target", inode.number))),
            root => {
                let piece = self.map(root).find(0)?;
                let piece = piece.ok_or_else(|| Error::corrupt(format!("inode {}: target", inode.number)))?;
                self.pm.read(piece.block().offset(), &mut target)?;
            }
        }
        Ok(target)
    }
}

/// The parent of a directory will be this.
pub(crate) fn put_parent(inode: &Inode, transaction: &mut Transaction, parent: u64) {
    if inode.is_directory() {
        transaction.word(inode.address + word::PARENT, parent);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nacre_engine::{FileKind, Kind, Names, NewInode, Timestamp};
    use nacre_media::SimPm;

    use crate::{InplaceFs, MkfsOptions, MountOptions, mkfs};

    /// Its number was given back, and was the next one again: no file could be made any more.
    #[test]
    fn a_free_inode_that_cannot_be_read_fails_one_create() {
        let pm = Arc::new(SimPm::new(16 << 20));
        mkfs(&*pm, &MkfsOptions::default()).unwrap();
        let fs = InplaceFs::mount(Arc::clone(&pm), &MountOptions::default()).unwrap();
        let new = NewInode::of_root(FileKind::Regular, 0o644, Timestamp::new(1, 0));
        let first = fs.create(&fs.root(), b"first", &new).unwrap();
        let number = fs.id(&first).number;
        pm.poison(fs.shared.table.address(number + 1).unwrap(), 1);
        let error = fs.create(&fs.root(), b"second", &new).map(drop).unwrap_err();
        assert_eq!(error.kind(), Kind::Media);
        let second = fs.create(&fs.root(), b"second", &new).unwrap();
        assert_eq!(fs.id(&second).number, number + 2);
        // One that was removed since the mount, too, which is only written.
        drop(first);
        fs.unlink(&fs.root(), b"first", Timestamp::new(2, 0)).unwrap();
        pm.poison(fs.shared.table.address(number).unwrap(), 1);
        fs.create(&fs.root(), b"third", &new).map(drop).unwrap_err();
        fs.create(&fs.root(), b"third", &new).unwrap();
    }
}
