//! Renaming: one transaction, within a directory and across two.

use std::sync::Arc;

use nacre_engine::sync::MutexGuard;
use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{Kind, RenameMode, Result};
use nacre_layout_parts::locked::lock_all;
use nacre_layout_parts::rules::{self, check_name, whiteout};
use nacre_layout_parts::table::inodes::Inodes;
use nacre_media::{Flushed, Pm};
use smallvec::{SmallVec, smallvec};

use crate::alloc::Purpose;
use crate::directory::Found;
use crate::fs::Shared;
use crate::inode::{Inode, Node};
use crate::names::Edit;
use crate::namespace::{Locked, directory, put_parent};
use crate::seeded::Mistake;
use crate::transaction::Transaction;

/// A rename as its caller asked for it.
pub(crate) type Asked<'a> = rules::Asked<'a, Inode>;

/// The inodes that the two names refer to, and the one that the old name is given.
struct Names<'a> {
    source: &'a Node,
    from: Found,
    target: Option<(&'a Node, Found)>,
    whiteout: Option<&'a Node>,
}

impl<'a> Names<'a> {
    /// The other inode of an exchange.
    fn exchanged(&self, mode: RenameMode) -> Option<&'a Node> {
        self.target.as_ref().filter(|_| mode == RenameMode::Exchange).map(|(target, _)| *target)
    }

    /// The inode that the old name refers to afterwards.
    fn left_behind(&self, mode: RenameMode) -> Option<&'a Node> {
        self.whiteout.or_else(|| self.exchanged(mode))
    }
}

impl<P: Pm> Shared<P> {
    pub(crate) fn rename(&self, asked: &Asked<'_>) -> Result<()> {
        let Asked { from, to, mode, now } = *asked;
        check_name(from.name)?;
        check_name(to.name)?;
        self.reclaim_buried();
        // Durable before the locks. The transaction of the rename gives it its name; without that it is an orphan.
        let whiteout = whiteout(mode, now).map(|new| self.make_unnamed(&new)).transpose()?;
        loop {
            let source = self.lookup(from.dir, from.name)?;
            let target = match self.lookup(to.dir, to.name) {
                Ok(target) => Some(target),
                Err(error) if error.kind() == Kind::NotFound => None,
                Err(error) => return Err(error),
            };
            let is_directory = |node: &Node| node.inode.is_directory();
            let moves_directory = is_directory(&source) || target.as_ref().is_some_and(is_directory);
            let moving = (asked.is_across() && moves_directory).then(|| self.move_directories.lock());
            let replaced = self.rename_found(asked, &source, target.as_ref(), whiteout.as_ref(), moving)?;
            match (replaced, target) {
                (Outcome::Again, _) => {}
                (Outcome::Done { left: Some(left) }, Some(target)) => {
                    self.name_gone(target, left);
                    return Ok(());
                }
                _ => return Ok(()),
            }
        }
    }

    fn rename_found(
        &self,
        asked: &Asked<'_>,
        source: &Node,
        target: Option<&Node>,
        whiteout: Option<&Node>,
        moving: Option<MutexGuard<'_, ()>>,
    ) -> Result<Outcome> {
        let Asked { from, to, .. } = *asked;
        let rules = asked.rules(&source.inode, target.map(|target| &*target.inode));
        if moving.is_some() {
            let hold = |number| Ok(Arc::clone(&self.hold(number)?.inode));
            rules.check_no_cycle(self.table.in_use(), hold)?;
        }
        let mut inodes: SmallVec<[&Arc<Inode>; 4]> = smallvec![from.dir, to.dir, &source.inode];
        inodes.extend(target.map(|target| &target.inode));
        let mut locked = lock_all(&inodes);
        let Some(found) = self.found_again(&mut locked, from.dir, from.name, source)? else {
            return Ok(Outcome::Again);
        };
        let now_there = self.find(directory(&mut locked, to.dir)?, to.name)?;
        if now_there.map(|found| found.id) != target.map(|target| target.inode.id()) {
            return Ok(Outcome::Again);
        }
        let names = Names { source, from: found, target: target.zip(now_there), whiteout };
        if !rules.check()? {
            return Ok(Outcome::Done { left: None }); // two names of one inode: nothing to do
        }
        let left = self.rename_locked(&mut locked, asked, &names)?;
        drop(locked);
        drop(moving);
        Ok(Outcome::Done { left })
    }

    /// Commits a permitted rename. Gives how many names the replaced inode has left.
    fn rename_locked(
        &self,
        locked: &mut Locked<'_>,
        asked: &Asked<'_>,
        names: &Names<'_>,
    ) -> Result<Option<u32>> {
        let Asked { from, to, mode, now } = *asked;
        let mut transaction = Transaction::default();
        let mut from_edit = Edit::new(self, from.dir);
        let mut to_edit = Edit::new(self, to.dir);
        let source = &names.source.inode;
        let prepared = self.put_names(locked, asked, names, &mut transaction, (&mut from_edit, &mut to_edit));
        let mut left = None;
        let result = prepared.and_then(|pending| {
            source.put_changed(&mut transaction, now);
            if !Mistake::ParentForgotten.is_made(&*self.pm) {
                put_parent(source, &mut transaction, to.dir.number);
            }
            match (names.exchanged(mode), &names.target) {
                (Some(other), _) => {
                    other.inode.put_changed(&mut transaction, now);
                    put_parent(&other.inode, &mut transaction, from.dir.number);
                }
                (None, Some((target, _))) => {
                    left = Some(self.put_one_name_fewer(&target.inode, &mut transaction, now));
                }
                (None, None) => {}
            }
            if let Some(whiteout) = names.whiteout {
                whiteout.inode.put_links(&mut transaction, 1);
            }
            from.dir.put_modified(&mut transaction, now);
            to.dir.put_modified(&mut transaction, now);
            self.commit(transaction, pending)
        });
        if let Err(error) = result {
            from_edit.give_up();
            to_edit.give_up();
            return Err(error);
        }
        if let Some(whiteout) = names.whiteout {
            whiteout.inode.links.store(1, Ordering::Release);
            whiteout.inode.unnamed.store(false, Ordering::Release);
        }
        from_edit.done(locked.body(from.dir)?);
        to_edit.done(locked.body(to.dir)?);
        self.renamed(asked, names, left);
        Ok(left)
    }

    /// Changes both directories by the edits of the one and of the other. Within one directory the second stays empty.
    fn put_names<'a>(
        &self,
        locked: &mut Locked<'_>,
        asked: &Asked<'_>,
        names: &Names<'_>,
        transaction: &mut Transaction,
        (from_edit, to_edit): (&mut Edit<'a, P>, &mut Edit<'a, P>),
    ) -> Result<Option<Flushed>> {
        let Asked { from, to, mode, .. } = *asked;
        let body = locked.body(from.dir)?;
        match names.left_behind(mode) {
            Some(other) => from_edit.replace(body.directory()?, &names.from, &other.inode)?,
            None => from_edit.remove(body.directory()?, &names.from, from.name)?,
        }
        let edit = if asked.is_across() { &mut *to_edit } else { &mut *from_edit };
        let body = locked.body(to.dir)?;
        match &names.target {
            Some((_, found)) => edit.replace(body.directory()?, found, &names.source.inode)?,
            // A file system without a free block can still be tidied up.
            None => edit.insert(body, to.name, &names.source.inode, Purpose::Metadata)?,
        }
        let pending = from_edit.finish(locked.body(from.dir)?.directory()?, transaction, None)?;
        if Mistake::RenamedInSteps.is_made(&*self.pm) {
            self.commit(std::mem::take(transaction), None)?;
        }
        to_edit.finish(locked.body(to.dir)?.directory()?, transaction, pending)
    }

    /// Updates the state in DRAM after a rename.
    fn renamed(&self, asked: &Asked<'_>, names: &Names<'_>, left: Option<u32>) {
        let Asked { from, to, now, .. } = *asked;
        names.source.inode.changed(now);
        names.source.inode.parent.store(to.dir.number, Ordering::Relaxed);
        if let Some((target, _)) = &names.target {
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

enum Outcome {
    /// With a name that was replaced: how many its inode has left.
    Done { left: Option<u32> },
    /// A name refers to another inode than before the locks.
    Again,
}
