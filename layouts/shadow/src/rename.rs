//! Renaming: one switch, within a directory and across two.

use nacre_engine::{RenameMode, Result};
use nacre_layout_parts::locked::Locked;
use nacre_layout_parts::{namespace, rules};
use nacre_media::Pm;
use smallvec::SmallVec;

use crate::alloc::Purpose;
use crate::fs::Shared;
use crate::inode::{Inode, Node};
use crate::names::Edit;
use crate::seeded::Mistake;
use crate::state::NewSlot;

type Asked<'a> = rules::Asked<'a, Inode>;
type Names<'a, P> = namespace::Names<'a, Shared<P>>;

/// The next slots of the inodes that change names.
struct Slots<'a> {
    list: SmallVec<[(&'a Node, NewSlot); 3]>,
    /// How many names the replaced inode has left.
    left: Option<u32>,
}

impl<P: Pm> Shared<P> {
    /// Commits a permitted rename. Gives how many names the replaced inode has left.
    pub(crate) fn rename_locked(
        &self,
        locked: &mut Locked<'_, Inode>,
        asked: &Asked<'_>,
        names: &Names<'_, P>,
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
        names.renamed(asked, slots.left);
        // Readers of the directories meet a name once that was there all the time.
        from_back.bring_back(locked.body(from.dir)?)?;
        to_back.bring_back(locked.body(to.dir)?)?;
        Ok(slots.left)
    }

    /// Changes both directories by the edits of the one and of the other. Within one directory the second stays empty.
    fn change_names<'a>(
        &self,
        locked: &mut Locked<'_, Inode>,
        asked: &Asked<'_>,
        names: &Names<'a, P>,
        from_edit: &mut Edit<'a, P>,
        to_edit: &mut Edit<'a, P>,
    ) -> Result<()> {
        let Asked { from, to, mode, .. } = *asked;
        let leads_to = |node: &Node| (node.inode.id(), node.inode.kind);
        from_edit.remove(&names.from, names.old);
        // A file system without a free block can still be tidied up.
        if let Some(other) = names.left_behind(mode) {
            from_edit.insert(locked.body(from.dir)?, names.old, leads_to(other), Purpose::Metadata)?;
        }
        let edit = if asked.is_across() { to_edit } else { from_edit };
        if let Some((_, found)) = &names.target {
            edit.remove(found, names.new);
        }
        edit.insert(locked.body(to.dir)?, names.new, leads_to(names.source), Purpose::Metadata)
    }

    /// The next slots of the inodes that the names refer to.
    fn slots<'a>(
        &self,
        locked: &mut Locked<'_, Inode>,
        asked: &Asked<'_>,
        names: &Names<'a, P>,
    ) -> Result<Slots<'a>> {
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
}
