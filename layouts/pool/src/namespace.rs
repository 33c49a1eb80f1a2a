//! Names: create, link, unlink, remove a directory.
//!
//! A name and its inode change in one operation: the place of the name, the directory, the inode, and the bits of what
//! is taken or freed. An operation that changes names holds every inode concerned exclusively, locked in the order of
//! their stripes. An inode that a name leads to is found first and locked then, so the name is looked up again under
//! the locks.

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{Attr, Error, FileKind, InodeId, Kind, NewInode, Result, Timestamp};
use nacre_layout_parts::rules::{
    MAX_TARGET, check_flags, check_link, check_lookup, check_name, check_new, check_removable,
};
use nacre_media::Pm;

use crate::commit::Change;
use crate::counts::Purpose;
use crate::directory::Found;
use crate::format::{GROUP_BLOCKS, INLINE_TARGET, MAX_XATTR_SIZE, RawInode};
use crate::fs::Shared;
use crate::held::{HeldInode, Name, Node};
use crate::inode::{Facts, MAX_LINKS, kind_of, miscounted};
use crate::seeded::Mistake;
use crate::sets::Entry;

/// An inode with more blocks is freed after its removal, and not by it.
const FREED_AT_ONCE: u64 = 8 * GROUP_BLOCKS;

impl<P: Pm> Shared<P> {
    /// A directory that is locked and still has its name.
    pub(crate) fn live_directory(&self, number: u64) -> Result<RawInode> {
        let raw = self.read_inode(number)?;
        if raw.links == 0 {
            return Err(Error::new(Kind::NotFound)); // it was removed
        }
        Ok(raw)
    }

    /// Looks a name up in a directory, which is locked.
    pub(crate) fn find_in(&self, number: u64, raw: &RawInode, name: &[u8]) -> Result<Option<Found>> {
        let found = self.find(self.directory(number, raw)?, name);
        found.map_err(|error| error.object(format!("directory {number}")))
    }

    /// The inode of a name, which is not held.
    pub(crate) fn peek(&self, dir: &HeldInode, name: &[u8]) -> Result<Option<(InodeId, FileKind)>> {
        dir.check_directory()?;
        check_lookup(name)?;
        let _lock = self.read_lock(dir.number);
        let raw = self.read_inode(dir.number)?;
        let found = self.find_in(dir.number, &raw, name)?;
        found.map(|found| Ok((found.id(), found.kind()?))).transpose()
    }

    pub(crate) fn lookup(&self, dir: &HeldInode, name: &[u8]) -> Result<Node> {
        dir.check_directory()?;
        check_lookup(name)?;
        // Held before the name can go away, so that the inode cannot be reclaimed in between.
        let _lock = self.read_lock(dir.number);
        let raw = self.read_inode(dir.number)?;
        let found = self.find_in(dir.number, &raw, name)?.ok_or(Error::new(Kind::NotFound))?;
        self.held.hold(found.id(), found.kind()?, Name::There)
    }

    pub(crate) fn create(&self, dir: &HeldInode, name: &[u8], new: &NewInode<'_>) -> Result<Node> {
        dir.check_directory()?;
        check_name(name)?;
        check_new(new, MAX_XATTR_SIZE)?;
        let _lock = self.lock(&[dir.number]);
        let raw = self.live_directory(dir.number)?;
        if self.find_in(dir.number, &raw, name)?.is_some() {
            return Err(Error::new(Kind::Exists));
        }
        check_flags(raw.flags, Attr::IMMUTABLE)?;
        self.make_room(dir.number, name, Purpose::Data)?;
        let id = self.change(|change| {
            let id = change.make_inode(new, dir.number, 1, Purpose::Data)?;
            change.add_name(dir.number, &Entry { name, id, kind: new.kind }, Purpose::Data)?;
            change.edit(dir.number)?.modified(self.times.pack(new.now));
            change.commit()?;
            Ok(id)
        })?;
        self.held.hold(id, new.kind, Name::There)
    }

    pub(crate) fn create_unnamed(&self, new: &NewInode<'_>) -> Result<Node> {
        check_new(new, MAX_XATTR_SIZE)?;
        if new.kind != FileKind::Regular {
            return Err(Error::new(Kind::InvalidInput));
        }
        let _orphans = self.orphans.lock();
        self.change(|change| {
            let id = change.make_inode(new, 0, 0, Purpose::Data)?;
            change.enter_list(id.number)?;
            change.commit()?;
            // Held while its group is locked: no other thread finds it before.
            self.held.hold(id, new.kind, Name::NotYet)
        })
    }

    pub(crate) fn link(&self, node: &HeldInode, dir: &HeldInode, name: &[u8], now: Timestamp) -> Result<()> {
        dir.check_directory()?;
        check_name(name)?;
        let _lock = self.lock(&[dir.number, node.number]);
        let facts = |number| Ok::<_, Error>(Facts { number, raw: self.read_inode(number)? });
        let (inode, directory) = (facts(node.number)?, facts(dir.number)?);
        check_link(&inode, &directory)?;
        self.live_directory(dir.number)?;
        if self.find_in(dir.number, &directory.raw, name)?.is_some() {
            return Err(Error::new(Kind::Exists));
        }
        let is_unnamed = inode.raw.links == 0;
        if is_unnamed && !node.unnamed.load(Ordering::Acquire) {
            return Err(Error::new(Kind::NotFound)); // it was removed
        }
        if inode.raw.links >= MAX_LINKS {
            return Err(Error::new(Kind::TooManyLinks));
        }
        self.make_room(dir.number, name, Purpose::Data)?;
        let _orphans = is_unnamed.then(|| self.orphans.lock());
        self.change(|change| {
            if is_unnamed {
                change.leave_list(node.number)?;
            }
            change.add_name(dir.number, &Entry { name, id: node.id(), kind: node.kind }, Purpose::Data)?;
            let now = self.times.pack(now);
            change.edit(dir.number)?.modified(now);
            let new = change.edit(node.number)?;
            new.links += 1;
            new.changed(now);
            change.commit()
        })?;
        node.unnamed.store(false, Ordering::Release);
        node.removed.store(false, Ordering::Release);
        Ok(())
    }

    pub(crate) fn unlink(&self, dir: &HeldInode, name: &[u8], now: Timestamp) -> Result<()> {
        self.remove(dir, name, false, now)
    }

    pub(crate) fn rmdir(&self, dir: &HeldInode, name: &[u8], now: Timestamp) -> Result<()> {
        self.remove(dir, name, true, now)
    }

    fn remove(&self, dir: &HeldInode, name: &[u8], is_rmdir: bool, now: Timestamp) -> Result<()> {
        loop {
            let (id, kind) = self.peek(dir, name)?.ok_or(Error::new(Kind::NotFound))?;
            let _lock = self.lock(&[dir.number, id.number]);
            let directory = Facts { number: dir.number, raw: self.live_directory(dir.number)? };
            let found = self.find_in(dir.number, &directory.raw, name)?;
            let Some(found) = found else { return Err(Error::new(Kind::NotFound)) };
            if found.id() != id {
                continue;
            }
            let victim = Facts { number: id.number, raw: self.read_inode(id.number)? };
            match (is_rmdir, kind == FileKind::Directory) {
                (true, false) => return Err(Error::new(Kind::NotDirectory)),
                (false, true) => return Err(Error::new(Kind::IsDirectory)),
                _ => {}
            }
            check_removable(&directory, &victim)?;
            if is_rmdir && victim.raw.entries > 0 {
                return Err(Error::new(Kind::NotEmpty));
            }
            let gone = self.gone(&victim);
            let _orphans = (gone == Gone::Later).then(|| self.orphans.lock());
            self.change(|change| {
                change.remove_name(dir.number, &found, false)?;
                let now = self.times.pack(now);
                change.edit(dir.number)?.modified(now);
                change.take_name(id.number, gone, now)?;
                change.commit()
            })?;
            if gone == Gone::Later {
                self.held.mark_removed(id.number);
            }
            return Ok(());
        }
    }

    /// The fate of an inode that loses a name. It is locked.
    pub(crate) fn gone(&self, victim: &Facts) -> Gone {
        let is_last = victim.raw.links == 1 || victim.raw.is_directory();
        let is_large =
            victim.raw.entries > FREED_AT_ONCE || victim.raw.is_directory() && victim.raw.height > 0;
        match is_last {
            false => Gone::No,
            true if is_large || self.held.is_held(victim.number) => Gone::Later,
            true => Gone::Now,
        }
    }

    pub(crate) fn read_link(&self, inode: &HeldInode) -> Result<Vec<u8>> {
        if inode.kind != FileKind::Symlink {
            return Err(Error::new(Kind::InvalidInput));
        }
        let _lock = self.read_lock(inode.number);
        let raw = self.read_inode(inode.number)?;
        self.target_of(inode.number, &raw)
    }

    /// The target of a symbolic link.
    pub(crate) fn target_of(&self, number: u64, raw: &RawInode) -> Result<Vec<u8>> {
        let len = raw.size as usize;
        if len <= INLINE_TARGET {
            return Ok(raw.target[..len].to_vec());
        }
        let bytes = self.read_bytes(self.root_of(number, raw)?, |_, _| {})?;
        if bytes.len() != len || len > MAX_TARGET {
            return Err(Error::corrupt(format!("the target of inode {number}")));
        }
        Ok(bytes)
    }

    /// The attributes of an inode that is held, or whose directory is locked.
    pub(crate) fn attr_of(&self, id: InodeId) -> Result<Attr> {
        let raw = self.peek_inode(id.number)?;
        kind_of(&raw)?;
        self.attr(id.number, &raw)
    }
}

/// The fate of an inode that loses a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gone {
    /// It has others.
    No,
    /// It is freed with the name.
    Now,
    /// It has no name any more, and is freed later.
    Later,
}

impl<P: Pm> Change<'_, P> {
    /// An inode loses a name.
    pub(crate) fn take_name(&mut self, number: u64, gone: Gone, now: u64) -> Result<()> {
        if gone == Gone::Now {
            let raw = self.fs.read_inode(number)?;
            return self.free_inode(number, &raw);
        }
        let forgets = Mistake::LinksForgotten.is_made(&*self.fs.pm);
        let inode = self.edit(number)?;
        if !forgets {
            inode.links = inode.links.checked_sub(1).ok_or_else(|| miscounted(number))?;
        }
        inode.changed(now);
        if gone == Gone::Later { self.enter_list(number) } else { Ok(()) }
    }
}
