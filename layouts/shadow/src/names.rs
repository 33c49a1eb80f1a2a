//! Changing the names of a directory.
//!
//! An [`Edit`] takes lines for new records, and notes the records that go. Nothing is written before the commit gives
//! it a tag: then new records are born, and old ones are dying, until the switch of the tag decides both.

use nacre_engine::sync::atomic::Ordering::{Relaxed, Release};
use nacre_engine::{Error, FileKind, InodeId, Result, Timestamp};
use nacre_layout_parts::names::Name;
use nacre_layout_parts::tree::edit::join;
use nacre_media::{Flushed, Pm, Stored};
use smallvec::SmallVec;

use crate::alloc::{Purpose, Runs};
use crate::blockmap::Piece;
use crate::directory::{BLOCK, Directory, Found, Line, Lines, lines_of, span_of};
use crate::format::{BLOCK_LINES, LINE, STATUS, Status, Tag};
use crate::fs::Shared;
use crate::inode::{Body, Inode};
use crate::lift::{self, write};
use crate::seeded::Mistake;
use crate::state::NewSlot;

/// Dead lines that are worth a fence of their own, where the directory would grow otherwise.
const WORTH_A_FENCE: usize = BLOCK_LINES / 2;

/// A name that is added.
struct Added<'a> {
    /// Where, if it is not in a new block.
    lines: Option<Lines>,
    /// Its first line in the directory.
    line: u64,
    name: Name<'a>,
    id: InodeId,
    kind: FileKind,
}

/// A name that goes.
struct Removed<'a> {
    line: u64,
    span: usize,
    name: Name<'a>,
    kind: FileKind,
}

/// The block that a directory grows by.
struct Grown<'a, P: Pm> {
    runs: Runs,
    tree: lift::Edit<'a, P>,
    /// Lines of it that are taken.
    taken: usize,
}

/// A change of one directory's names.
pub(crate) struct Edit<'a, P: Pm> {
    fs: &'a Shared<P>,
    inode: &'a Inode,
    added: SmallVec<[Added<'a>; 2]>,
    removed: SmallVec<[Removed<'a>; 2]>,
    grown: Option<Grown<'a, P>>,
}

impl<'a, P: Pm> Edit<'a, P> {
    pub(crate) fn new(fs: &'a Shared<P>, inode: &'a Inode) -> Edit<'a, P> {
        Edit { fs, inode, added: SmallVec::new(), removed: SmallVec::new(), grown: None }
    }

    /// Takes a name away.
    pub(crate) fn remove(&mut self, found: &Found, name: Name<'a>) {
        self.removed.push(Removed { line: found.line, span: found.span, name, kind: found.kind });
    }

    /// Adds a name, which is not there.
    pub(crate) fn insert(
        &mut self,
        body: &mut Body,
        name: Name<'a>,
        (id, kind): (InodeId, FileKind),
        purpose: Purpose,
    ) -> Result<()> {
        let span = span_of(name.bytes.len());
        let mut lines = body.directory_mut()?.take(span);
        if lines.is_none() && self.grown.is_none() && body.directory()?.dead_lines() >= WORTH_A_FENCE {
            self.free_dead(body.directory_mut()?)?;
            lines = body.directory_mut()?.take(span);
        }
        let line = match lines {
            Some(lines) => lines.line,
            None => self.take_new(body, span, purpose)?,
        };
        self.added.push(Added { lines, line, name, id, kind });
        Ok(())
    }

    /// Lines of the block that the directory grows by.
    fn take_new(&mut self, body: &Body, span: usize, purpose: Purpose) -> Result<u64> {
        let at = body.directory()?.blocks.len();
        let grown = match &mut self.grown {
            Some(grown) => grown,
            none => {
                let mut runs = Runs::new();
                self.fs.allocate(None, 1, purpose, &mut runs)?;
                let mut tree = lift::Edit::new(self.fs, self.inode.tree(body));
                let piece = Piece { start: at as u64, len: 1, place: runs[0].start.0, is_written: true };
                let set = tree.set(piece).and_then(|()| lift::lift(&mut tree));
                let grown = none.insert(Grown { runs, tree, taken: 0 });
                set?; // only words behind the end change: nothing is lifted
                grown
            }
        };
        let line = at * BLOCK_LINES + grown.taken;
        grown.taken += span;
        Ok(line as u64)
    }

    /// Sets dead records to free on media, so that their lines can be joined.
    fn free_dead(&self, directory: &mut Directory) -> Result<()> {
        let dead = directory.take_dead();
        if !Mistake::DeadJoined.is_made(&*self.fs.pm) {
            let free = Status::Free.pack().to_le_bytes();
            let mut stored: Vec<Stored> = Vec::new();
            for &(line, _) in &dead {
                stored.push(self.fs.pm.store(directory.address(line)? + STATUS, &free)?);
            }
            if let Some(flushed) = self.fs.pm.flush_all(stored) {
                self.fs.pm.fence(flushed);
            }
        }
        dead.into_iter().for_each(|(line, span)| directory.give(line, span));
        Ok(())
    }

    /// The next slot of the directory.
    pub(crate) fn slot(&self, body: &Body, now: Timestamp) -> NewSlot {
        let mut new = self.inode.next_modified(body, now);
        if let Some(grown) = &self.grown {
            new.set_blocks(grown.tree.tree);
        }
        new
    }

    /// Writes the names under a tag, and nodes.
    pub(crate) fn write(
        &self,
        body: &Body,
        tag: Tag,
        mut pending: Option<Flushed>,
    ) -> Result<Option<Flushed>> {
        let pm = &*self.fs.pm;
        let directory = body.directory()?;
        // Through the cache: of a line the status is on media no sooner than what is before it.
        let mut stored: SmallVec<[Stored; 4]> = SmallVec::new();
        for added in self.added.iter().filter(|added| added.lines.is_some()) {
            let address = directory.address(added.line)?;
            for (at, line) in (address..).step_by(LINE as usize).zip(&self.lines_of(added, tag)) {
                stored.push(pm.store(at, line)?);
            }
        }
        for removed in &self.removed {
            let dying = Status::Dying(tag).pack().to_le_bytes();
            stored.push(pm.store(directory.address(removed.line)? + STATUS, &dying)?);
        }
        if let Some(flushed) = pm.flush_all(stored) {
            pending = join(pending, flushed);
        }
        if let Some(grown) = &self.grown {
            let mut page = [0; BLOCK];
            for added in self.added.iter().filter(|added| added.lines.is_none()) {
                let lines = self.lines_of(added, tag);
                let at = added.line as usize % BLOCK_LINES * LINE as usize;
                page[at..at + lines.len() * LINE as usize].copy_from_slice(lines.as_flattened());
            }
            pending = join(pending, pm.copy(grown.runs[0].start.offset(), &page)?);
            pending = write(&grown.tree, pending)?;
        }
        Ok(pending)
    }

    fn lines_of(&self, added: &Added<'_>, tag: Tag) -> SmallVec<[Line; 1]> {
        let mut lines = lines_of(added.name.bytes, added.id, added.kind, Status::Born(tag));
        if Mistake::NameLineTagged.is_made(&*self.fs.pm) {
            let status = Status::Born(tag).pack().to_le_bytes();
            lines.iter_mut().for_each(|line| line[STATUS as usize..].copy_from_slice(&status));
        }
        if Mistake::SpanForgotten.is_made(&*self.fs.pm) {
            let span = std::mem::offset_of!(crate::format::RawRecord, span);
            lines[0][span] = 1;
        }
        lines
    }

    /// While the switch is on its way: the state in DRAM follows that only the lock of the directory gives access to.
    pub(crate) fn follow(&self, body: &mut Body) {
        let Some(directory) = &mut body.directory else { return };
        let is_directory = |kind: FileKind| u32::from(kind == FileKind::Directory);
        if let Some(grown) = &self.grown {
            directory.grown(grown.runs[0].start.0, grown.taken);
        }
        for removed in &self.removed {
            directory.index.remove(removed.name.hash, removed.line);
            directory.bury(removed.line, removed.span);
            directory.entries -= 1;
            directory.subdirectories -= is_directory(removed.kind);
        }
        for added in &self.added {
            if let Some(lines) = added.lines {
                directory.fill(lines, span_of(added.name.bytes.len()));
            }
            directory.index.insert(added.name.hash, added.line);
            directory.entries += 1;
            directory.subdirectories += is_directory(added.kind);
        }
    }

    /// After the commit, behind [`Edit::follow`]: so do the values that are read without the lock.
    pub(crate) fn show(&self, body: &Body) {
        let Some(directory) = &body.directory else { return };
        if let Some(grown) = &self.grown {
            self.inode.size.store(grown.tree.tree.end * nacre_engine::BLOCK_SIZE, Release);
            self.inode.blocks.fetch_add(1, Relaxed);
        }
        self.inode.entries.store(directory.entries, Relaxed);
        self.inode.subdirectories.store(directory.subdirectories, Relaxed);
    }

    /// The change that brings names that were replaced back to the lines where they were, once this one is done.
    pub(crate) fn back(&self) -> Edit<'a, P> {
        let mut back = Edit::new(self.fs, self.inode);
        for added in &self.added {
            let Added { line: from, name, id, kind, .. } = *added;
            if let Some(removed) = self.removed.iter().find(|removed| removed.name.bytes == name.bytes) {
                let Removed { line, span, .. } = *removed;
                let lines = Some(Lines::of_dead(line, span));
                back.added.push(Added { lines, line, name, id, kind });
                back.removed.push(Removed { line: from, span, name, kind });
            }
        }
        back
    }

    /// Commits that.
    pub(crate) fn bring_back(self, body: &mut Body) -> Result<()> {
        if self.added.is_empty() {
            return Ok(());
        }
        let directory = body.directory_mut()?;
        self.added.iter().filter_map(|added| added.lines).for_each(|lines| directory.dig_up(lines));
        let switched = self.fs.commit_tagged(&mut [], |tag| self.write(body, tag, None))?;
        self.follow(body);
        drop(switched);
        self.show(body);
        Ok(())
    }

    /// The change was not committed: gives back the lines and blocks that it took.
    pub(crate) fn give_up(self, body: &mut Body) -> Result<()> {
        if self.fs.is_broken() {
            return Ok(());
        }
        if let Some(grown) = &self.grown {
            self.fs.free_runs(&grown.runs);
            grown.tree.give_up();
        }
        let directory = body.directory.as_deref_mut();
        let directory = directory.ok_or_else(|| Error::corrupt("directory: its names"))?;
        self.added.iter().filter_map(|added| added.lines).for_each(|lines| directory.put_back(lines));
        Ok(())
    }
}
