//! Renaming.
//!
//! Within one directory a rename is one batch: removals and new names. Between two it is a batch in each log under one
//! transaction number and one fence: after a crash the transaction counts only if both logs have it.

use std::sync::Arc;

use nacre_engine::sync::MutexGuard;
use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{Error, FileKind, Kind, RenameMode, Resource, Result, Timestamp};
use nacre_layout_parts::rules::{self, check_name, whiteout};
use nacre_media::{Durable, Flushed, Pm};
use smallvec::{SmallVec, smallvec};

use crate::batch::Batch;
use crate::commit::Commit;
use crate::directory::DirectoryChange;
use crate::format::{TransactionEntry, kind};
use crate::fs::Shared;
use crate::inode::{Body, Inode, Node};
use crate::namespace::{Locked, LockedDirectories, Named, lock_directories, push_dentry, push_remove};
use crate::scan::MAX_SEQUENCE;
use crate::seeded::fault;

/// A rename as its caller asked for it.
pub(crate) type Asked<'a> = rules::Asked<'a, Inode>;

/// The names of a rename, found under the locks.
struct Found<'w> {
    from: Named,
    to: Option<Named>,
    whiteout: Option<&'w Node>,
}

impl Found<'_> {
    /// The other inode of an exchange.
    fn exchanged(&self, mode: RenameMode) -> Option<&Node> {
        self.to.as_ref().filter(|_| mode == RenameMode::Exchange).map(|to| &to.node)
    }

    /// The inode that the old name refers to afterwards.
    fn left_behind(&self, mode: RenameMode) -> Option<&Node> {
        self.whiteout.or_else(|| self.exchanged(mode))
    }
}

enum Outcome {
    Done,
    /// A name refers to another inode than before the locks.
    Again,
}

impl<P: Pm> Shared<P> {
    pub(crate) fn rename(&self, asked: &Asked<'_>) -> Result<()> {
        let Asked { from, to, .. } = *asked;
        check_name(from.name)?;
        check_name(to.name)?;
        self.reclaim_buried();
        // Durable before the locks. The commit of the rename gives it its name; without that it is an orphan.
        let whiteout = whiteout(asked.mode, asked.now).map(|new| self.make_unnamed(&new)).transpose()?;
        let whiteout = whiteout.as_ref();
        if self.rename_plain(asked, whiteout)? {
            return Ok(());
        }
        loop {
            let source = self.lookup(from.dir, from.name)?;
            let target = match self.lookup(to.dir, to.name) {
                Ok(target) => Some(target),
                Err(error) if error.kind() == Kind::NotFound => None,
                Err(error) => return Err(error),
            };
            let moves_directory = source.inode.is_directory()
                || target.as_ref().is_some_and(|target| target.inode.is_directory());
            let moving = (asked.is_across() && moves_directory).then(|| self.move_directories.lock());
            if moving.is_some() {
                let hold = |number| Ok(Arc::clone(&self.hold(number)?.inode));
                asked
                    .rules(&source.inode, inode_of(target.as_ref()))
                    .check_no_cycle(self.inodes.in_use(), hold)?;
            }
            if let Outcome::Done = self.rename_found(asked, &source, target.as_ref(), whiteout, moving)? {
                return Ok(());
            }
        }
    }

    /// Renames where no directory moves or is replaced, which needs no other lock than those of the two directories.
    /// False when there is one.
    fn rename_plain(&self, asked: &Asked<'_>, whiteout: Option<&Node>) -> Result<bool> {
        let Asked { from, to, now, .. } = *asked;
        if !to.dir.is_directory() {
            return Ok(false); // a source that is not there is the better answer
        }
        let mut logs = lock_directories(&*self.pm, &[from.dir, to.dir])?;
        let source = self.named(from.dir.directory()?, from.name)?.ok_or(Error::new(Kind::NotFound))?;
        let target = self.named(to.dir.directory()?, to.name)?;
        let is_directory = |named: &Named| named.kind == FileKind::Directory;
        if is_directory(&source) || target.as_ref().is_some_and(is_directory) {
            return Ok(false);
        }
        let found = Found { from: source, to: target, whiteout };
        let replaced = self.rename_locked(&mut logs, asked, found)?;
        drop(logs);
        if let Some((replaced, left)) = replaced {
            self.name_gone(replaced.node, left, now);
        }
        Ok(true)
    }

    fn rename_found(
        &self,
        asked: &Asked<'_>,
        source: &Node,
        target: Option<&Node>,
        whiteout: Option<&Node>,
        moving: Option<MutexGuard<'_, ()>>,
    ) -> Result<Outcome> {
        let Asked { from, to, mode, now } = *asked;
        let mut directories: SmallVec<[&Arc<Inode>; 3]> = smallvec![from.dir, to.dir];
        let replaced = target.filter(|target| target.inode.is_directory() && mode != RenameMode::Exchange);
        if let Some(target) = replaced
            && target.inode.number != source.inode.number
        {
            directories.push(&target.inode);
        }
        let mut logs = match lock_directories(&*self.pm, &directories) {
            // The target was removed after it was looked up: its name is free, or another one's.
            Err(_) if replaced.is_some_and(|target| target.inode.links() == 0) => return Ok(Outcome::Again),
            logs => logs?,
        };
        let found_from = self.named(from.dir.directory()?, from.name)?.ok_or(Error::new(Kind::NotFound))?;
        let found_to = self.named(to.dir.directory()?, to.name)?;
        if !is_same(Some(source), Some(&found_from.node))
            || !is_same(target, found_to.as_ref().map(|n| &n.node))
        {
            return Ok(Outcome::Again);
        }
        let found = Found { from: found_from, to: found_to, whiteout };
        let replaced = self.rename_locked(&mut logs, asked, found)?;
        drop(logs);
        drop(moving);
        if let Some((replaced, left)) = replaced {
            self.name_gone(replaced.node, left, now);
        }
        Ok(Outcome::Done)
    }

    /// Checks and commits a rename between locked directories. Gives back the name that was replaced, and how many its
    /// inode has left.
    fn rename_locked(
        &self,
        logs: &mut LockedDirectories<'_>,
        asked: &Asked<'_>,
        found: Found<'_>,
    ) -> Result<Option<(Named, u32)>> {
        let target = inode_of(found.to.as_ref().map(|target| &target.node));
        if !asked.rules(&found.from.node.inode, target).check()? {
            return Ok(None); // two names of one inode: nothing to do
        }
        let loses_name =
            |other: &&Named| asked.mode != RenameMode::Exchange && other.kind != FileKind::Directory;
        let replaced = found.to.as_ref().filter(loses_name).map(|other| Arc::clone(&other.node.inode));
        let _naming = replaced.as_ref().map(|inode| inode.naming.lock());
        // A thread that finds the whiteout finds its link, too.
        let whiteout = found.whiteout.map(|node| &node.inode);
        whiteout.map(|inode| self.take_link(inode)).transpose()?;
        let renamed = if asked.is_across() {
            self.rename_across(logs, asked, &found)
        } else {
            self.rename_within(logs.of(asked.from.dir)?, asked, &found)
        };
        if let Some(inode) = whiteout {
            match &renamed {
                Ok(_) => inode.unnamed.store(false, Ordering::Release),
                Err(_) => self.return_link(inode),
            }
        }
        let left = renamed?;
        self.after_rename(asked, &found);
        Ok(found.to.zip(left))
    }

    fn rename_within(
        &self,
        locked: &mut Locked<'_>,
        asked: &Asked<'_>,
        found: &Found<'_>,
    ) -> Result<Option<u32>> {
        let Asked { from, to, mode, now } = *asked;
        let mut batch = Batch::default();
        push_remove(&mut batch, &found.from, now);
        if let Some(other) = &found.to {
            push_remove(&mut batch, other, now);
        }
        push_dentry(&mut batch, to.name, &found.from.node.inode, now);
        let left_behind = found.left_behind(mode);
        if let Some(node) = left_behind {
            push_dentry(&mut batch, from.name, &node.inode, now);
        }
        let first = locked.log.state.next_sequence;
        let flushed = Commit::of(locked.inode, &mut locked.log).append(self, &mut batch)?;
        // Durable before anybody sees the new name: another thread may build on it.
        self.pm.fence(flushed);
        // One change of the index: a lookup sees the names as before or as after. The removed name goes first: where
        // its entry was before the log was collected, one of the new entries may be now.
        let (mut names, log) = (locked.directory.change(), &mut *locked.log);
        if let Some(other) = &found.to {
            self.name_removed(&mut names, log, other);
        }
        self.name_removed(&mut names, log, &found.from);
        fault!(self.pm, RenamedInSteps => names = { drop(names); locked.directory.change() });
        let mut next = if found.to.is_some() { 2 } else { 1 };
        let (inode, sequence) = (&found.from.node.inode, first + next as u64);
        self.name_added(&mut names, log, to.name, inode, batch.placed(next), sequence);
        if let Some(node) = left_behind {
            next += 1;
            self.name_added(&mut names, log, from.name, &node.inode, batch.placed(next), first + next as u64);
        }
        let left = self.replaced(found, mode, now);
        drop(names);
        locked.inode.touch(now);
        Ok(left)
    }

    fn rename_across(
        &self,
        logs: &mut LockedDirectories<'_>,
        asked: &Asked<'_>,
        found: &Found<'_>,
    ) -> Result<Option<u32>> {
        let Asked { from, to, mode, now } = *asked;
        let left_behind = found.left_behind(mode);
        let (source, target) = logs.pair(from.dir, to.dir)?;
        let (mut source_batch, mut target_batch) = (Batch::default(), Batch::default());
        push_halves(&mut source_batch, &mut target_batch, asked, found);
        // Everything that can fail for want of space comes before the first entry.
        source.log.make_room(self, source.inode, &mut source_batch)?;
        target.log.make_room(self, target.inode, &mut target_batch)?;
        let (source_first, target_first) = (source.log.state.next_sequence, target.log.state.next_sequence);
        let gate = self.transactions.gate.read();
        // With room for all that take a number at the same time.
        if self.transactions.next.load(Ordering::Relaxed) > MAX_SEQUENCE - (1 << 32) {
            return Err(Error::no_space(Resource::Limit, 0)
                .object("transactions: all numbers are used")
                .advice("copy all files to a new file system"));
        }
        let flushed =
            self.write_both((&mut *source, &mut source_batch), (&mut *target, &mut target_batch))?;
        self.pm.fence(flushed);
        drop(gate);

        // One change of both indexes, as within one directory.
        let (mut source_names, mut target_names) = change_both(source, target);
        if let Some(other) = &found.to {
            self.name_removed(&mut target_names, &mut target.log, other);
        }
        self.name_removed(&mut source_names, &mut source.log, &found.from);
        let (inode, next) = (&found.from.node.inode, if found.to.is_some() { 2 } else { 1 });
        let (place, sequence) = (target_batch.placed(next), target_first + next as u64);
        self.name_added(&mut target_names, &mut target.log, to.name, inode, place, sequence);
        if let Some(node) = left_behind {
            let (inode, place, sequence) = (&node.inode, source_batch.placed(2), source_first + 2);
            self.name_added(&mut source_names, &mut source.log, from.name, inode, place, sequence);
        }
        let left = self.replaced(found, mode, now);
        drop((source_names, target_names));
        source.inode.touch(now);
        target.inode.touch(now);
        Ok(left)
    }

    /// The replaced inode, if any, has one name fewer. Gives how many it has left. The indexes are locked: an operation
    /// that waits to make a name in a replaced directory must see that it is gone.
    fn replaced(&self, found: &Found<'_>, mode: RenameMode, now: Timestamp) -> Option<u32> {
        let replaced = found.to.as_ref().filter(|_| mode != RenameMode::Exchange)?;
        Some(self.one_name_fewer(&replaced.node.inode, now))
    }

    /// Writes both halves of a transaction, for one fence. The caller holds the gate until that.
    fn write_both(
        &self,
        (source, source_batch): (&mut Locked<'_>, &mut Batch),
        (target, target_batch): (&mut Locked<'_>, &mut Batch),
    ) -> Result<Flushed> {
        let number = self.transactions.next.fetch_add(1, Ordering::Relaxed);
        source_batch.set_transaction(number);
        target_batch.set_transaction(number);
        source.log.state.last_transaction = number;
        target.log.state.last_transaction = number;
        let nothing = Durable::nothing_before;
        let first = source.log.write(self, source.inode, source_batch, nothing())?;
        fault!(self.pm, SettledEarly => self.settle_early(number)?);
        let second = target.log.write(self, target.inode, target_batch, nothing())?;
        Ok(first.and(second))
    }

    /// Settles a transaction of which one half is written, as a mistake.
    fn settle_early(&self, number: u64) -> Result<()> {
        let mut superblock = self.superblock.lock();
        superblock.raw.settled_transactions = number + 1;
        superblock.write(&*self.pm)
    }

    fn after_rename(&self, asked: &Asked<'_>, found: &Found<'_>) {
        let Asked { from, to, mode, now } = *asked;
        set_parent(&found.from.node.inode, to.dir.number);
        self.links_changed(&found.from.node.inode, now);
        if let Some(other) = found.exchanged(mode) {
            set_parent(&other.inode, from.dir.number);
            self.links_changed(&other.inode, now);
        }
    }
}

/// The entries of a move between two directories, for the log of either.
fn push_halves(source: &mut Batch, target: &mut Batch, asked: &Asked<'_>, found: &Found<'_>) {
    let Asked { from, to, mode, now } = *asked;
    push_transaction(source, to.dir);
    push_transaction(target, from.dir);
    push_remove(source, &found.from, now);
    if let Some(node) = found.left_behind(mode) {
        push_dentry(source, from.name, &node.inode, now);
    }
    if let Some(other) = &found.to {
        push_remove(target, other, now);
    }
    push_dentry(target, to.name, &found.from.node.inode, now);
}

/// Locks the indexes of two directories in the order of their numbers, as their logs are.
fn change_both<'a>(source: &Locked<'a>, target: &Locked<'a>) -> (DirectoryChange<'a>, DirectoryChange<'a>) {
    if source.inode.number < target.inode.number {
        let first = source.directory.change();
        (first, target.directory.change())
    } else {
        let first = target.directory.change();
        (source.directory.change(), first)
    }
}

fn set_parent(inode: &Inode, parent: u64) {
    if let Body::Directory(directory) = &inode.body {
        directory.parent.store(parent, Ordering::Relaxed);
    }
}

fn inode_of(node: Option<&Node>) -> Option<&Inode> {
    node.map(|node| &*node.inode)
}

fn is_same(a: Option<&Node>, b: Option<&Node>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.inode.id() == b.inode.id(),
        (None, None) => true,
        _ => false,
    }
}

fn push_transaction(batch: &mut Batch, peer: &Inode) {
    let mut entry = TransactionEntry {
        peer: peer.number,
        peer_generation: peer.generation,
        ..TransactionEntry::default()
    };
    entry.header.kind = kind::TRANSACTION;
    batch.push_line(&entry);
}
