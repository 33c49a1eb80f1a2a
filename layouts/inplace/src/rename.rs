//! Renaming: one transaction, within a directory and across two.

use nacre_engine::Result;
use nacre_layout_parts::locked::Locked;
use nacre_layout_parts::{namespace, rules};
use nacre_media::{Flushed, Pm};

use crate::alloc::Purpose;
use crate::fs::Shared;
use crate::inode::Inode;
use crate::names::Edit;
use crate::namespace::put_parent;
use crate::seeded::Mistake;
use crate::transaction::Transaction;

type Asked<'a> = rules::Asked<'a, Inode>;
type Names<'a, P> = namespace::Names<'a, Shared<P>>;

impl<P: Pm> Shared<P> {
    /// Commits a permitted rename. Gives how many names the replaced inode has left.
    pub(crate) fn rename_locked(
        &self,
        locked: &mut Locked<'_, Inode>,
        asked: &Asked<'_>,
        names: &Names<'_, P>,
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
        from_edit.done(locked.body(from.dir)?);
        to_edit.done(locked.body(to.dir)?);
        names.renamed(asked, left);
        Ok(left)
    }

    /// Changes both directories by the edits of the one and of the other. Within one directory the second stays empty.
    fn put_names<'a>(
        &self,
        locked: &mut Locked<'_, Inode>,
        asked: &Asked<'_>,
        names: &Names<'a, P>,
        transaction: &mut Transaction,
        (from_edit, to_edit): (&mut Edit<'a, P>, &mut Edit<'a, P>),
    ) -> Result<Option<Flushed>> {
        let Asked { from, to, mode, .. } = *asked;
        let body = locked.body(from.dir)?;
        match names.left_behind(mode) {
            Some(other) => from_edit.replace(body.directory()?, &names.from, &other.inode)?,
            None => from_edit.remove(body.directory()?, &names.from, names.old)?,
        }
        let edit = if asked.is_across() { &mut *to_edit } else { &mut *from_edit };
        let body = locked.body(to.dir)?;
        match &names.target {
            Some((_, found)) => edit.replace(body.directory()?, found, &names.source.inode)?,
            // A file system without a free block can still be tidied up.
            None => edit.insert(body, names.new, &names.source.inode, Purpose::Metadata)?,
        }
        let pending = from_edit.finish(locked.body(from.dir)?.directory()?, transaction, None)?;
        if Mistake::RenamedInSteps.is_made(&*self.pm) {
            self.commit(std::mem::take(transaction), None)?;
        }
        to_edit.finish(locked.body(to.dir)?.directory()?, transaction, pending)
    }
}
