//! Names in a layout of inodes in a table: lookups, removals and renames, up to the commit.
//!
//! An operation that changes names holds every inode concerned exclusively, locked in the order of their numbers. An
//! inode that a name leads to is found first and locked then. Where the directory was not locked all the while, the
//! name is looked up again under the locks.

use std::sync::Arc;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::sync::{Mutex, MutexGuard};
use nacre_engine::{Attr, Error, FileKind, InodeId, Kind, NewInode, RenameMode, Result, Timestamp};
use smallvec::{SmallVec, smallvec};

use crate::held::Held;
use crate::locked::{Locked, lock_all};
use crate::names::Name;
use crate::rules::{Asked, check_link, check_lookup, check_name, check_new, check_removable, whiteout};
use crate::table::core::WithCore;
use crate::table::inodes::Inodes;

/// The most names of one inode.
const MAX_LINKS: u32 = i32::MAX as u32;

/// The inodes of a layout.
type Inode<F> = <F as Inodes>::Inode;
/// The state of an inode, behind its lock.
type Body<F> = <Inode<F> as WithCore>::Body;
/// An inode that is held.
type Node<F> = Held<Inode<F>>;

/// The record of a name.
pub trait Record: Copy {
    /// The inode that it leads to.
    fn id(&self) -> InodeId;

    /// The kind of that inode.
    fn kind(&self) -> FileKind;
}

/// A name that was looked up, and the inode that it led to then.
pub struct LookedUp<'n, F: Namespace> {
    /// The inode.
    pub node: Node<F>,
    name: Name<'n>,
    found: F::Found,
    /// How often the directory had changed.
    change: u64,
}

/// The inodes that the two names of a rename refer to, and the one that the old name is given.
pub struct Names<'a, F: Namespace> {
    /// The inode that gets the new name.
    pub source: &'a Node<F>,
    /// Its old name.
    pub old: Name<'a>,
    /// The record of that.
    pub from: F::Found,
    /// Its new name.
    pub new: Name<'a>,
    /// The inode that has the new name, and the record of that.
    pub target: Option<(&'a Node<F>, F::Found)>,
    /// An inode for the old name.
    pub whiteout: Option<&'a Node<F>>,
}

impl<'a, F: Namespace> Names<'a, F> {
    /// The other inode of an exchange.
    pub fn exchanged(&self, mode: RenameMode) -> Option<&'a Node<F>> {
        self.target.as_ref().filter(|_| mode == RenameMode::Exchange).map(|(target, _)| *target)
    }

    /// The inode that the old name refers to afterwards.
    pub fn left_behind(&self, mode: RenameMode) -> Option<&'a Node<F>> {
        self.whiteout.or_else(|| self.exchanged(mode))
    }

    /// Updates the inodes in DRAM after the commit. A replaced one has `left` names.
    pub fn renamed(&self, asked: &Asked<'_, Inode<F>>, left: Option<u32>) {
        let Asked { from, to, now, .. } = *asked;
        if let Some(whiteout) = self.whiteout {
            whiteout.inode.named(1);
        }
        self.source.inode.changed(now);
        self.source.inode.parent.store(to.dir.number, Ordering::Relaxed);
        if let Some((target, _)) = &self.target {
            target.inode.changed(now);
            match left {
                Some(left) => target.inode.links.store(left, Ordering::Release),
                None => target.inode.parent.store(from.dir.number, Ordering::Relaxed),
            }
        }
        from.dir.modified(now);
        if asked.is_across() {
            to.dir.modified(now);
        }
    }
}

enum Renamed {
    /// With a name that was replaced: how many its inode has left.
    Done { left: Option<u32> },
    /// A name refers to another inode than before the locks.
    Again,
}

/// A layout with inodes in a table and names in directories among them: its state.
pub trait Namespace: Inodes<Inode: WithCore> {
    /// The record of a name.
    type Found: Record;

    /// The largest value of an extended attribute.
    const MAX_XATTR_SIZE: usize;

    /// Locked by a move of a directory to another one, so that no cycle can arise.
    fn move_directories(&self) -> &Mutex<()>;

    /// The seed of the hashes of names.
    fn hash_seed(&self) -> u64;

    /// Looks a name up in a directory of which this is the state.
    fn find(&self, body: &Body<Self>, name: Name<'_>) -> Result<Option<Self::Found>>;

    /// Makes an inode that a later operation gives a name. Without one it is reclaimed with its last node.
    fn make_unnamed(&self, new: &NewInode<'_>) -> Result<Node<Self>>;

    /// Commits the removal of a name that may be removed, from its record, durable on return. Its directory and inode
    /// are locked. Gives how many names the inode has left.
    fn commit_removal(
        &self,
        locked: &mut Locked<'_, Inode<Self>>,
        dir: &Arc<Inode<Self>>,
        name: (Name<'_>, Self::Found),
        child: &Node<Self>,
        now: Timestamp,
    ) -> Result<u32>;

    /// Commits a permitted rename, with [`Names::renamed`] after the commit. Gives how many names a replaced inode has
    /// left.
    fn commit_rename(
        &self,
        locked: &mut Locked<'_, Inode<Self>>,
        asked: &Asked<'_, Inode<Self>>,
        names: &Names<'_, Self>,
    ) -> Result<Option<u32>>;

    /// A name that is looked up or changed. It is hashed once for an operation.
    fn name<'n>(&self, bytes: &'n [u8]) -> Name<'n> {
        Name::new(bytes, self.hash_seed())
    }

    /// Locks the inodes of a rename. Without a name the whiteout is known to no other operation.
    fn lock_for_rename<'a>(
        &self,
        inodes: SmallVec<[&'a Arc<Inode<Self>>; 5]>,
        _whiteout: Option<&'a Arc<Inode<Self>>>,
    ) -> Locked<'a, Inode<Self>> {
        lock_all(&inodes)
    }

    /// Looks a name up in a directory, which is locked, and still has its own name.
    fn find_locked(
        &self,
        locked: &mut Locked<'_, Inode<Self>>,
        dir: &Inode<Self>,
        name: Name<'_>,
    ) -> Result<Option<Self::Found>> {
        self.find(named_directory(locked, dir)?, name)
    }

    /// The inode that a name leads to.
    fn lookup(&self, dir: &Inode<Self>, name: &[u8]) -> Result<Node<Self>> {
        self.look_up(dir, self.name(name)).map(|looked_up| looked_up.node)
    }

    /// The same, to look again under locks.
    fn look_up<'n>(&self, dir: &Inode<Self>, name: Name<'n>) -> Result<LookedUp<'n, Self>> {
        dir.check_directory()?;
        check_lookup(name.bytes)?;
        // Held before the name can go away, so that the inode cannot be reclaimed in between.
        let body = WithCore::body(dir).read();
        look_up_in(self, dir, &body, name)
    }

    /// The name under the locks; `None` when it refers to another inode by now.
    fn found_again(
        &self,
        locked: &mut Locked<'_, Inode<Self>>,
        dir: &Inode<Self>,
        LookedUp { node, name, found, change }: &LookedUp<'_, Self>,
    ) -> Result<Option<Self::Found>> {
        // Each change of names counts, and so does the removal of the directory.
        if dir.change.load(Ordering::Relaxed) == *change {
            return Ok(Some(*found));
        }
        let found = self.find_locked(locked, dir, *name)?.ok_or(Error::new(Kind::NotFound))?;
        Ok((found.id() == node.inode.id()).then_some(found))
    }

    /// Locks a directory to make an inode in it with a name that it does not have.
    fn lock_to_create<'a>(
        &self,
        dir: &'a Arc<Inode<Self>>,
        name: Name<'_>,
        new: &NewInode<'_>,
    ) -> Result<Locked<'a, Inode<Self>>> {
        check_name(name.bytes)?;
        check_new(new, Self::MAX_XATTR_SIZE)?;
        self.reclaim_buried();
        let mut locked = lock_all(&[dir]);
        if self.find_locked(&mut locked, dir, name)?.is_some() {
            return Err(Error::new(Kind::Exists));
        }
        dir.check_flags(Attr::IMMUTABLE)?;
        Ok(locked)
    }

    /// Makes a file without a name, for a caller.
    fn create_unnamed(&self, new: &NewInode<'_>) -> Result<Node<Self>> {
        if new.kind != FileKind::Regular {
            return Err(Error::new(Kind::InvalidInput));
        }
        check_new(new, Self::MAX_XATTR_SIZE)?;
        self.make_unnamed(new)
    }

    /// Locks an inode and a directory that is to have a name for it. Gives how many names it has then, too.
    fn lock_to_link<'a>(
        &self,
        inode: &'a Arc<Inode<Self>>,
        dir: &'a Arc<Inode<Self>>,
        name: Name<'_>,
    ) -> Result<(Locked<'a, Inode<Self>>, u32)> {
        check_name(name.bytes)?;
        let mut locked = lock_all(&[dir, inode]);
        // The error for an existing name comes before those that forbid the link, as in the kernel.
        if self.find_locked(&mut locked, dir, name)?.is_some() {
            return Err(Error::new(Kind::Exists));
        }
        check_link::<Inode<Self>>(inode, dir)?;
        match inode.links.load(Ordering::Acquire) {
            0 if !inode.unnamed.load(Ordering::Acquire) => Err(Error::new(Kind::NotFound)),
            MAX_LINKS.. => Err(Error::new(Kind::TooManyLinks)),
            links => Ok((locked, links + 1)),
        }
    }

    /// Removes the name of something other than a directory.
    fn unlink(&self, dir: &Arc<Inode<Self>>, name: &[u8], now: Timestamp) -> Result<()> {
        let is_file = |child: &Inode<Self>| match child.is_directory() {
            true => Err(Error::new(Kind::IsDirectory)),
            false => Ok(()),
        };
        remove_name(self, dir, name, is_file, now)
    }

    /// Removes a directory.
    fn rmdir(&self, dir: &Arc<Inode<Self>>, name: &[u8], now: Timestamp) -> Result<()> {
        remove_name(self, dir, name, |child| child.check_directory(), now)
    }

    /// A name was removed, and no lock is held: with the last one the inode goes as soon as it has no holders.
    fn name_gone(&self, node: Node<Self>, left: u32) {
        if left == 0 {
            self.unlinked(node);
        }
    }

    /// Renames.
    fn rename(&self, asked: &Asked<'_, Inode<Self>>) -> Result<()> {
        let Asked { from, to, mode, now } = *asked;
        check_name(from.name)?;
        check_name(to.name)?;
        let (old, new) = (self.name(from.name), self.name(to.name));
        self.reclaim_buried();
        // Durable before the locks. The commit of the rename gives it its name; without that it is an orphan.
        let whiteout = whiteout(mode, now).map(|new| self.make_unnamed(&new)).transpose()?;
        loop {
            let source = self.look_up(from.dir, old)?;
            let target = match self.look_up(to.dir, new) {
                Ok(target) => Some(target.node),
                Err(error) if error.kind() == Kind::NotFound => None,
                Err(error) => return Err(error),
            };
            let is_directory = |node: &Node<Self>| node.inode.is_directory();
            let moves_directory = is_directory(&source.node) || target.as_ref().is_some_and(is_directory);
            let moving = (asked.is_across() && moves_directory).then(|| self.move_directories().lock());
            let others = (target.as_ref(), whiteout.as_ref());
            let replaced = rename_found(self, asked, (&source, new), others, moving)?;
            match (replaced, target) {
                (Renamed::Again, _) => {}
                (Renamed::Done { left: Some(left) }, Some(target)) => {
                    self.name_gone(target, left);
                    return Ok(());
                }
                _ => return Ok(()),
            }
        }
    }
}

/// The state of a directory, which is locked and still has its own name.
fn named_directory<'l, I: WithCore>(
    locked: &'l mut Locked<'_, I>,
    dir: &I,
) -> Result<&'l <I as WithCore>::Body> {
    dir.check_directory()?;
    if dir.links.load(Ordering::Acquire) == 0 {
        return Err(Error::new(Kind::NotFound)); // it was removed
    }
    locked.body(dir).map(|body| &*body)
}

/// Looks a name up in a directory, which is locked, and of which this is the state.
fn look_up_in<'n, F: Namespace>(
    fs: &F,
    dir: &Inode<F>,
    body: &Body<F>,
    name: Name<'n>,
) -> Result<LookedUp<'n, F>> {
    let found = fs.find(body, name)?.ok_or(Error::new(Kind::NotFound))?;
    let node = fs.hold(found.id().number)?;
    if node.inode.generation != found.id().generation || node.inode.kind != found.kind() {
        return Err(Error::corrupt(format!("directory {}: a name of another inode", dir.number)));
    }
    Ok(LookedUp { node, name, found, change: dir.change.load(Ordering::Relaxed) })
}

/// Removes a name, if its inode may have it removed.
fn remove_name<F: Namespace>(
    fs: &F,
    dir: &Arc<Inode<F>>,
    name: &[u8],
    may_be: impl Fn(&Inode<F>) -> Result<()>,
    now: Timestamp,
) -> Result<()> {
    check_name(name)?;
    fs.reclaim_buried();
    let name = fs.name(name);
    loop {
        let looked_up; // declared first: dropped behind the locks
        let mut locked = lock_all(&[dir]);
        looked_up = look_up_in(fs, dir, named_directory(&mut locked, dir)?, name)?;
        let child = &looked_up.node;
        may_be(&child.inode)?;
        let mut found = Some(looked_up.found);
        if !locked.lock_above(&child.inode) {
            // An inode that is older than its directory comes before it.
            drop(locked);
            locked = lock_all(&[dir, &child.inode]);
            found = fs.found_again(&mut locked, dir, &looked_up)?;
        }
        let Some(found) = found else { continue };
        check_removable::<Inode<F>>(dir, &child.inode)?;
        if child.inode.is_directory() && child.inode.entries.load(Ordering::Relaxed) > 0 {
            return Err(Error::new(Kind::NotEmpty));
        }
        let left = fs.commit_removal(&mut locked, dir, (name, found), child, now)?;
        child.inode.links.store(left, Ordering::Release);
        child.inode.changed(now);
        dir.modified(now);
        drop(locked);
        fs.name_gone(looked_up.node, left);
        return Ok(());
    }
}

/// Renames the inode that was looked up, unless a name refers to another one under the locks.
fn rename_found<F: Namespace>(
    fs: &F,
    asked: &Asked<'_, Inode<F>>,
    (source, new): (&LookedUp<'_, F>, Name<'_>),
    (target, whiteout): (Option<&Node<F>>, Option<&Node<F>>),
    moving: Option<MutexGuard<'_, ()>>,
) -> Result<Renamed> {
    let Asked { from, to, .. } = *asked;
    let rules = asked.rules(&source.node.inode, target.map(|target| &*target.inode));
    if moving.is_some() {
        let hold = |number| Ok(Arc::clone(&fs.hold(number)?.inode));
        rules.check_no_cycle(fs.table().in_use(), hold)?;
    }
    let mut inodes: SmallVec<[&Arc<Inode<F>>; 5]> = smallvec![from.dir, to.dir, &source.node.inode];
    inodes.extend(target.map(|target| &target.inode));
    let mut locked = fs.lock_for_rename(inodes, whiteout.map(|whiteout| &whiteout.inode));
    let Some(found) = fs.found_again(&mut locked, from.dir, source)? else {
        return Ok(Renamed::Again);
    };
    let now_there = fs.find_locked(&mut locked, to.dir, new)?;
    if now_there.map(|found| found.id()) != target.map(|target| target.inode.id()) {
        return Ok(Renamed::Again);
    }
    let names = Names {
        source: &source.node,
        old: source.name,
        from: found,
        new,
        target: target.zip(now_there),
        whiteout,
    };
    if !rules.check()? {
        return Ok(Renamed::Done { left: None }); // two names of one inode: nothing to do
    }
    let left = fs.commit_rename(&mut locked, asked, &names)?;
    drop(locked);
    drop(moving);
    Ok(Renamed::Done { left })
}
