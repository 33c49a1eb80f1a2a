//! Renaming: one operation, within a directory and across two.

use std::sync::Arc;

use nacre_engine::{Error, FileKind, InodeId, Kind, RenameMode, Result};
use nacre_layout_parts::rules::{self, Rename, check_name, whiteout};
use nacre_media::Pm;
use smallvec::{SmallVec, smallvec};

use crate::commit::Change;
use crate::counts::Purpose;
use crate::directory::Found;
use crate::fs::Shared;
use crate::held::HeldInode;
use crate::inode::Facts;
use crate::namespace::Gone;
use crate::seeded::Mistake;
use crate::sets::Entry;

/// One side of a rename.
type Side<'a> = rules::Side<'a, HeldInode>;
/// A rename as its caller asked for it.
pub(crate) type Asked<'a> = rules::Asked<'a, HeldInode>;

/// An inode that a name refers to.
type Named = (InodeId, FileKind);

/// The directories are two.
fn is_across(asked: &Asked<'_>) -> bool {
    asked.from.dir.number != asked.to.dir.number
}

impl<P: Pm> Shared<P> {
    pub(crate) fn rename(&self, asked: &Asked<'_>) -> Result<()> {
        let Asked { from, to, .. } = *asked;
        check_name(from.name)?;
        check_name(to.name)?;
        loop {
            let source = self.peek(from.dir, from.name)?.ok_or(Error::new(Kind::NotFound))?;
            let target = self.peek(to.dir, to.name)?;
            let is_directory = |named: Named| named.1 == FileKind::Directory;
            let moves_directory = is_directory(source) || target.is_some_and(is_directory);
            let moving = (is_across(asked) && moves_directory).then(|| self.move_directories.lock());
            if moving.is_some() && !self.check_no_cycle(asked, source, target)? {
                continue;
            }
            let mut inodes: SmallVec<[u64; 4]> = smallvec![from.dir.number, to.dir.number, source.0.number];
            inodes.extend(target.map(|(id, _)| id.number));
            let _lock = self.lock(&inodes);
            if self.find_again(from)? != Some(source.0) || self.find_again(to)? != target.map(|(id, _)| id) {
                continue;
            }
            return self.rename_found(asked, source, target);
        }
    }

    fn facts(&self, number: u64) -> Result<Arc<Facts>> {
        Ok(Arc::new(Facts { number, raw: self.read_inode(number)? }))
    }

    /// No directory may come to lie below itself. False when an inode is gone meanwhile.
    fn check_no_cycle(&self, asked: &Asked<'_>, source: Named, target: Option<Named>) -> Result<bool> {
        let locked = |number| {
            let _lock = self.read_lock(number);
            self.hold_facts(number)
        };
        let (Some(from), Some(to)) = (locked(asked.from.dir.number)?, locked(asked.to.dir.number)?) else {
            return Err(Error::new(Kind::NotFound));
        };
        let Some(source) = locked(source.0.number)? else { return Ok(false) };
        let target = match target {
            Some((id, _)) => match locked(id.number)? {
                Some(facts) => Some(facts),
                None => return Ok(false),
            },
            None => None,
        };
        let rules = Rename {
            from_dir: &from,
            to_dir: &to,
            source: &*source,
            target: target.as_deref(),
            mode: asked.mode,
        };
        self.finish_counting();
        let inodes = self.counts.lock().inodes + 1;
        rules.check_no_cycle(inodes, |number| locked(number)?.ok_or(Error::new(Kind::NotFound)))?;
        Ok(true)
    }

    /// An inode that may be gone.
    fn hold_facts(&self, number: u64) -> Result<Option<Arc<Facts>>> {
        let is_there = self.held.is_held(number) || self.is_inode(self.address(number)?)?;
        if is_there { self.facts(number).map(Some) } else { Ok(None) }
    }

    /// The inode that a name refers to now that its directory is locked.
    fn find_again(&self, side: Side<'_>) -> Result<Option<InodeId>> {
        let raw = self.live_directory(side.dir.number)?;
        Ok(self.find_in(side.dir.number, &raw, side.name)?.map(|found| found.id()))
    }

    /// A rename of names that are what they were, with everything locked.
    fn rename_found(&self, asked: &Asked<'_>, source: Named, target: Option<Named>) -> Result<()> {
        let Asked { from, to, mode, .. } = *asked;
        let (from_dir, to_dir) = (self.facts(from.dir.number)?, self.facts(to.dir.number)?);
        let moved = self.facts(source.0.number)?;
        let replaced = target.map(|(id, _)| self.facts(id.number)).transpose()?;
        let rules = Rename {
            from_dir: &from_dir,
            to_dir: &to_dir,
            source: &*moved,
            target: replaced.as_deref(),
            mode,
        };
        if !rules.check()? {
            return Ok(()); // two names of one inode: nothing to do
        }
        let exchanges = mode == RenameMode::Exchange;
        let gone = replaced.as_ref().filter(|_| !exchanges).map(|facts| self.gone(facts));
        if target.is_none() {
            // A file system without a free block can still be tidied up.
            self.make_room(to.dir.number, to.name, Purpose::Metadata)?;
        }
        let _orphans = (gone == Some(Gone::Later)).then(|| self.orphans.lock());
        self.change(|change| change.rename(asked, source, target, gone))?;
        if let (Some(Gone::Later), Some((id, _))) = (gone, target) {
            self.held.mark_removed(id.number);
        }
        Ok(())
    }
}

impl<P: Pm> Change<'_, P> {
    fn found(&mut self, side: Side<'_>) -> Result<Option<Found>> {
        let raw = self.fs.read_inode(side.dir.number)?;
        self.fs.find_in(side.dir.number, &raw, side.name)
    }

    fn rename(
        &mut self,
        asked: &Asked<'_>,
        source: Named,
        target: Option<Named>,
        gone: Option<Gone>,
    ) -> Result<()> {
        let Asked { from, to, mode, now } = *asked;
        let now_packed = self.fs.times.pack(now);
        let lost = || Error::corrupt(format!("directory {}: a name is gone", from.dir.number));
        let old = self.found(from)?.ok_or_else(lost)?;
        let there = self.found(to)?;
        let entry = |named: Named, name| Entry { name, id: named.0, kind: named.1 };
        match there {
            Some(there) => self.replace_name(to.dir.number, &there, &entry(source, to.name))?,
            None => self.add_name(to.dir.number, &entry(source, to.name), Purpose::Metadata)?,
        }
        if Mistake::RenamedInSteps.is_made(&*self.fs.pm) {
            self.commit_part()?;
        }
        let left_behind = match (whiteout(mode, now), target) {
            (Some(new), _) => {
                let id = self.make_inode(&new, 0, 1, Purpose::Metadata)?;
                Some((id, FileKind::CharDevice))
            }
            (None, target) => target.filter(|_| mode == RenameMode::Exchange),
        };
        match left_behind {
            Some(named) => self.replace_name(from.dir.number, &old, &entry(named, from.name))?,
            None => self.remove_name(from.dir.number, &old, !is_across(asked))?,
        }
        self.move_inode(source, to.dir.number, now_packed)?;
        match (gone, target) {
            (None, Some(other)) => self.move_inode(other, from.dir.number, now_packed)?,
            (Some(gone), Some((id, _))) => self.take_name(id.number, gone, now_packed)?,
            _ => {}
        }
        self.edit(from.dir.number)?.modified(now_packed);
        if is_across(asked) {
            self.edit(to.dir.number)?.modified(now_packed);
        }
        self.commit()
    }

    /// An inode has a new name, maybe in another directory.
    fn move_inode(&mut self, (id, kind): Named, parent: u64, now: u64) -> Result<()> {
        let forgets = Mistake::ParentForgotten.is_made(&*self.fs.pm);
        let inode = self.edit(id.number)?;
        inode.changed(now);
        if kind == FileKind::Directory && !forgets {
            inode.parent = parent;
        }
        Ok(())
    }
}
