//! Names: create, link, unlink, remove a directory.
//!
//! A name and its inode change in one transaction: the directory's words, the inode's links, the times of both. A new
//! inode is written without links, where only its number's next user looks; its links are a word of the transaction
//! that names it.
//!
//! Lookups, locks and checks are those of `nacre-layout-parts`, which has removals and renames up to their commits.

use std::sync::Arc;

use nacre_engine::sync::Mutex;
use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{Error, FileKind, Kind, NewInode, Result, Timestamp};
use nacre_layout_parts::locked::Locked;
use nacre_layout_parts::names::Name;
use nacre_layout_parts::namespace::{Names, Namespace};
use nacre_layout_parts::rules::{Asked, MAX_TARGET};
use nacre_layout_parts::table::inodes::Inodes;
use nacre_layout_parts::table::{Before, Free};
use nacre_media::{Flushed, Pm};
use zerocopy::{FromZeros, IntoBytes};

use crate::alloc::{Purpose, Runs};
use crate::directory::{Directory, Found};
use crate::format::{INLINE_TARGET, INODE_MAGIC, INODE_VERSION, MAX_XATTR_SIZE, RawInode, word};
use crate::fs::Shared;
use crate::inode::{Body, Inode, Node};
use crate::names::Edit;
use crate::seeded::Mistake;
use crate::table::read_inode;
use crate::transaction::{Transaction, join};

/// A new inode, which is on its way to media without links.
struct Made {
    node: Node,
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

    /// A later transaction gives it a name.
    fn make_unnamed(&self, new: &NewInode<'_>) -> Result<Node> {
        self.check_unbroken()?;
        let Made { node, pending } = self.make_inode(new, 0)?;
        // Durable before a later link can name it.
        if let Some(pending) = pending {
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
        let mut edit = Edit::new(self, dir);
        let mut transaction = Transaction::default();
        let body = locked.body(dir)?;
        edit.remove(body.directory()?, &found, name)?;
        let pending = edit.finish(body.directory()?, &mut transaction, None)?;
        let left = self.put_one_name_fewer(&child.inode, &mut transaction, now);
        dir.put_modified(&mut transaction, now);
        self.commit(transaction, pending)?;
        edit.done(body);
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
}

impl<P: Pm> Shared<P> {
    pub(crate) fn create(&self, dir: &Arc<Inode>, name: &[u8], new: &NewInode<'_>) -> Result<Node> {
        let name = self.name(name);
        let mut locked = self.lock_to_create(dir, name, new)?;
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
        Ok(Made { node: self.hold_made(inode), pending })
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
        inode.named(links);
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
