//! Renaming: one switch, within a directory and across two.

use std::sync::Arc;

use nacre_engine::sync::MutexGuard;
use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{Kind, RenameMode, Result};
use nacre_layout_parts::locked::{lock_all, lock_as_given};
use nacre_layout_parts::rules::{self, check_name, whiteout};
use nacre_layout_parts::table::inodes::Inodes;
use nacre_media::Pm;
use smallvec::{SmallVec, smallvec};

use crate::alloc::Purpose;
use crate::directory::Found;
use crate::fs::Shared;
use crate::inode::{Inode, Node};
use crate::names::Edit;
use crate::namespace::{Locked, LookedUp, directory};
use crate::seeded::Mistake;
use crate::state::NewSlot;

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

enum Outcome {
    /// With a name that was replaced: how many its inode has left.
    Done { left: Option<u32> },
    /// A name refers to another inode than before the locks.
    Again,
}

/// The next slots of the inodes that change names.
struct Slots<'a> {
    list: SmallVec<[(&'a Node, NewSlot); 3]>,
    /// How many names the replaced inode has left.
    left: Option<u32>,
}

impl<P: Pm> Shared<P> {
    pub(crate) fn rename(&self, asked: &Asked<'_>) -> Result<()> {
        let Asked { from, to, mode, now } = *asked;
        check_name(from.name)?;
        check_name(to.name)?;
        self.reclaim_buried();
        // Durable before the locks. The commit of the rename gives it its name; without that it is an orphan.
        let whiteout = whiteout(mode, now).map(|new| self.make_unnamed(&new)).transpose()?;
        loop {
            let source = self.look_up(from.dir, self.name(from.name))?;
            let target = match self.lookup(to.dir, to.name) {
                Ok(target) => Some(target),
                Err(error) if error.kind() == Kind::NotFound => None,
                Err(error) => return Err(error),
            };
            let is_directory = |node: &Node| node.inode.is_directory();
            let moves_directory = is_directory(&source.node) || target.as_ref().is_some_and(is_directory);
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
        source: &LookedUp,
        target: Option<&Node>,
        whiteout: Option<&Node>,
        moving: Option<MutexGuard<'_, ()>>,
    ) -> Result<Outcome> {
        let Asked { from, to, .. } = *asked;
        let rules = asked.rules(&source.node.inode, target.map(|target| &*target.inode));
        if moving.is_some() {
            let hold = |number| Ok(Arc::clone(&self.hold(number)?.inode));
            rules.check_no_cycle(self.table.in_use(), hold)?;
        }
        let mut inodes: SmallVec<[&Arc<Inode>; 5]> = smallvec![from.dir, to.dir, &source.node.inode];
        inodes.extend(target.map(|target| &target.inode));
        inodes.extend(whiteout.map(|whiteout| &whiteout.inode));
        let mut locked = match Mistake::LockedAsCalled.is_made(&*self.pm) {
            true => lock_as_given(&inodes),
            false => lock_all(&inodes),
        };
        let Some(found) = self.found_again(&mut locked, from.dir, self.name(from.name), source)? else {
            return Ok(Outcome::Again);
        };
        let now_there = self.find(directory(&mut locked, to.dir)?, self.name(to.name))?;
        if now_there.map(|found| found.id) != target.map(|target| target.inode.id()) {
            return Ok(Outcome::Again);
        }
        let names = Names { source: &source.node, from: found, target: target.zip(now_there), whiteout };
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
        let Asked { from, to, now, .. } = *asked;
        let mut from_edit = Edit::new(self, from.dir);
        let mut to_edit = Edit::new(self, to.dir);
        let prepared = self.change_names(locked, asked, names, &mut from_edit, &mut to_edit);
        let result = prepared.and_then(|()| {
            let mut slots = self.slots(locked, asked, names)?;
            let mut from_slot = from_edit.slot(locked.body(from.dir)?, now);
            let mut to_slot = to_edit.slot(locked.body(to.dir)?, now);
            let in_steps = Mistake::RenamedInSteps.is_made(&*self.pm) && asked.is_across();
            if in_steps {
                let body = locked.body(from.dir)?;
                drop(self.commit_tagged(&mut [&mut from_slot], |tag| from_edit.write(body, tag, None))?);
            }
            let mut sealed: SmallVec<[&mut NewSlot; 5]> =
                slots.list.iter_mut().map(|(_, slot)| slot).collect();
            sealed.extend((!in_steps).then_some(&mut from_slot));
            sealed.extend(asked.is_across().then_some(&mut to_slot));
            let switched = self.commit_tagged(&mut sealed, |tag| {
                let mut pending = None;
                if !in_steps {
                    pending = from_edit.write(locked.body(from.dir)?, tag, None)?;
                }
                if asked.is_across() {
                    pending = to_edit.write(locked.body(to.dir)?, tag, pending)?;
                }
                Ok(pending)
            })?;
            drop(sealed);
            Ok((switched, slots, from_slot, to_slot))
        });
        let (switched, slots, from_slot, to_slot) = match result {
            Ok(committed) => committed,
            Err(error) => {
                from_edit.give_up(locked.body(from.dir)?)?;
                to_edit.give_up(locked.body(to.dir)?)?;
                return Err(error);
            }
        };
        for (node, slot) in &slots.list {
            locked.body(&node.inode)?.state = slot.state();
        }
        let (from_back, to_back) = (from_edit.back(), to_edit.back());
        locked.body(from.dir)?.state = from_slot.state();
        from_edit.follow(locked.body(from.dir)?);
        if asked.is_across() {
            locked.body(to.dir)?.state = to_slot.state();
            to_edit.follow(locked.body(to.dir)?);
        }
        // Before the names come back, in the same lane.
        drop(switched);
        from_edit.show(locked.body(from.dir)?);
        if asked.is_across() {
            to_edit.show(locked.body(to.dir)?);
        }
        self.renamed(asked, names, slots.left);
        // Readers of the directories meet a name once that was there all the time.
        from_back.bring_back(locked.body(from.dir)?)?;
        to_back.bring_back(locked.body(to.dir)?)?;
        Ok(slots.left)
    }

    /// Changes both directories by the edits of the one and of the other. Within one directory the second stays empty.
    fn change_names<'a>(
        &self,
        locked: &mut Locked<'_>,
        asked: &Asked<'a>,
        names: &Names<'_>,
        from_edit: &mut Edit<'a, P>,
        to_edit: &mut Edit<'a, P>,
    ) -> Result<()> {
        let Asked { from, to, mode, .. } = *asked;
        let (from_name, to_name) = (self.name(from.name), self.name(to.name));
        let leads_to = |node: &Node| (node.inode.id(), node.inode.kind);
        from_edit.remove(&names.from, from_name);
        // A file system without a free block can still be tidied up.
        if let Some(other) = names.left_behind(mode) {
            from_edit.insert(locked.body(from.dir)?, from_name, leads_to(other), Purpose::Metadata)?;
        }
        let edit = if asked.is_across() { to_edit } else { from_edit };
        if let Some((_, found)) = &names.target {
            edit.remove(found, to_name);
        }
        edit.insert(locked.body(to.dir)?, to_name, leads_to(names.source), Purpose::Metadata)
    }

    /// The next slots of the inodes that the names refer to.
    fn slots<'a>(&self, locked: &mut Locked<'_>, asked: &Asked<'_>, names: &Names<'a>) -> Result<Slots<'a>> {
        let Asked { from, to, mode, now } = *asked;
        let mut slots = Slots { list: SmallVec::new(), left: None };
        let moved = |node: &Node, new: &mut NewSlot, dir: &Inode| {
            if node.inode.is_directory() && !Mistake::ParentForgotten.is_made(&*self.pm) {
                new.slot.parent_end = dir.number;
            }
        };
        let mut source = names.source.inode.next_changed(locked.body(&names.source.inode)?, now);
        moved(names.source, &mut source, to.dir);
        slots.list.push((names.source, source));
        if let Some((target, _)) = names.target {
            let body = locked.body(&target.inode)?;
            if mode == RenameMode::Exchange {
                let mut new = target.inode.next_changed(body, now);
                moved(target, &mut new, from.dir);
                slots.list.push((target, new));
            } else {
                let (new, left) = self.one_name_fewer(&target.inode, body, now);
                slots.list.push((target, new));
                slots.left = Some(left);
            }
        }
        if let Some(whiteout) = names.whiteout {
            let mut new = whiteout.inode.next(locked.body(&whiteout.inode)?);
            new.slot.links = 1;
            slots.list.push((whiteout, new));
        }
        Ok(slots)
    }

    /// Updates the state in DRAM after a rename.
    fn renamed(&self, asked: &Asked<'_>, names: &Names<'_>, left: Option<u32>) {
        let Asked { from, to, now, .. } = *asked;
        if let Some(whiteout) = names.whiteout {
            whiteout.inode.links.store(1, Ordering::Release);
            whiteout.inode.unnamed.store(false, Ordering::Release);
        }
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
