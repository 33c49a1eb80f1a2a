//! Extended attributes, in blocks of their own that the inode's word leads to. A change writes other blocks, commits
//! the word, and frees the old ones.
//!
//! Since version 2 of the format they are a tree (in `nacre-layout-parts`), of which a change writes two blocks at the
//! most, beside those of a long value. In file systems of version 1 all of an inode's are written anew with each change
//! ([`together`]), and stay so.

mod together;

use nacre_engine::{Attr, BLOCK_SIZE, Block, Error, Kind, Result, Timestamp, XattrMode};
use nacre_layout_parts::xattr::{self as tree, Change, XattrSpace};
use nacre_media::{Flushed, Pm};

use crate::alloc::{Purpose, Run, Runs};
use crate::format::{XATTR_MAGIC, word};
use crate::fs::Shared;
use crate::inode::Inode;
use crate::transaction::{Transaction, join};

pub(crate) use tree::{Owner, reseal};

/// The attributes are all together, as version 1 has them.
fn are_together<P: Pm>(owner: &Owner<'_, P>, place: u64) -> Result<bool> {
    Ok(owner.header(owner.block(place)?)?.magic == XATTR_MAGIC)
}

/// The blocks of an inode's attributes, all of which validate.
pub(crate) fn blocks_of<P: Pm>(owner: &Owner<'_, P>, place: u64) -> Result<Vec<u64>> {
    if are_together(owner, place)? {
        return together::read(owner, place).map(|(_, blocks)| blocks);
    }
    tree::blocks_of(owner, place)
}

/// The blocks of an inode's attributes, of which only the first must be readable: blocks that only an unreadable block
/// leads to are left out.
pub(crate) fn places_of<P: Pm>(owner: &Owner<'_, P>, place: u64) -> Result<Vec<u64>> {
    if are_together(owner, place)? {
        return together::places_of(owner, place);
    }
    tree::places_of(owner, place)
}

/// The blocks of a tree of attributes that lead to others or hold attributes, for tools that damage images.
pub(crate) fn nodes_of<P: Pm>(owner: &Owner<'_, P>, place: u64) -> Result<Vec<u64>> {
    if are_together(owner, place)? { Ok(vec![owner.block(place)?]) } else { tree::nodes_of(owner, place) }
}

impl<P: Pm> XattrSpace for Shared<P> {
    type Media = P;

    fn media(&self) -> &P {
        &self.pm
    }

    fn put(&self, change: &mut Change, bytes: &[u8]) -> Result<Vec<u64>> {
        let before = change.allocated.len();
        let blocks = (bytes.len() as u64).div_ceil(BLOCK_SIZE);
        self.allocate(None, blocks, Purpose::Data, &mut change.allocated)?;
        let runs = &change.allocated[before..];
        let blocks: Vec<u64> = runs.iter().flat_map(|run| run.start.0..run.start.0 + run.len).collect();
        for (&block, part) in blocks.iter().zip(bytes.chunks(BLOCK_SIZE as usize)) {
            change.pending = join(change.pending.take(), self.pm.copy(Block(block).offset(), part)?);
        }
        Ok(blocks)
    }
}

impl<P: Pm> Shared<P> {
    pub(crate) fn owner_of(&self, inode: &Inode) -> Owner<'_, P> {
        Owner::new(&self.pm, self.bounds, self.seed, inode.number, inode.generation)
    }

    /// Writes the attributes of a new inode; gives the first of their blocks. `runs` takes the allocated blocks.
    pub(crate) fn write_xattrs(
        &self,
        number: u64,
        generation: u32,
        xattrs: &[(&[u8], &[u8])],
        runs: &mut Runs,
        pending: &mut Option<Flushed>,
    ) -> Result<u64> {
        let owner = Owner::new(&*self.pm, self.bounds, self.seed, number, generation);
        let mut change = Change::default();
        let written = match self.xattr_trees {
            true => tree::write_all(self, &owner, xattrs, &mut change),
            false => together::write(self, &owner, xattrs, &mut change),
        };
        runs.extend(change.allocated);
        if let Some(flushed) = change.pending {
            *pending = join(pending.take(), flushed);
        }
        written.map(|()| change.place)
    }

    pub(crate) fn get_xattr(&self, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        let body = inode.body.read();
        let found = match (body.xattrs, self.owner_of(inode)) {
            (0, _) => None,
            (place, owner) if self.xattr_trees => tree::get(&owner, place, name)?,
            (place, owner) => {
                let (xattrs, _) = together::read(&owner, place)?;
                xattrs.into_iter().find(|(other, _)| other == name).map(|(_, value)| value)
            }
        };
        found.ok_or(Error::new(Kind::NoAttribute))
    }

    pub(crate) fn list_xattrs(&self, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        let body = inode.body.read();
        match (body.xattrs, self.owner_of(inode)) {
            (0, _) => Ok(Vec::new()),
            (place, owner) if self.xattr_trees => tree::names(&owner, place),
            (place, owner) => {
                let (xattrs, _) = together::read(&owner, place)?;
                Ok(xattrs.into_iter().map(|(name, _)| name).collect())
            }
        }
    }

    /// Sets an attribute, or removes it.
    pub(crate) fn change_xattrs(
        &self,
        inode: &Inode,
        name: &[u8],
        value: Option<(&[u8], XattrMode)>,
        mode: Option<u32>,
        now: Timestamp,
    ) -> Result<()> {
        inode.check_flags(Attr::IMMUTABLE | Attr::APPEND_ONLY)?;
        let mut body = inode.body.write();
        let owner = self.owner_of(inode);
        let mut change = Change { place: body.xattrs, ..Change::default() };
        let written = match self.xattr_trees {
            true => tree::change(self, &owner, name, value, &mut change),
            false => together::change(self, &owner, name, value, &mut change),
        };
        let mut attributes = inode.attr.get();
        attributes.mode = mode.map_or(attributes.mode, |mode| (mode & 0o7777) as u16);
        let result = written.and_then(|()| {
            let mut transaction = Transaction::default();
            transaction.word(inode.address + word::XATTRS, change.place);
            inode.put_changed(&mut transaction, now);
            transaction.word(inode.address + word::MODE, crate::space::mode_word(&attributes));
            self.commit(transaction, change.pending.take())
        });
        if result.is_err() {
            if !self.is_broken() {
                self.free_runs(&change.allocated);
            }
            return result;
        }
        body.xattrs = change.place;
        change.freed.iter().for_each(|&block| self.alloc.free(Run { start: Block(block), len: 1 }));
        inode.attr.lock().mode = attributes.mode;
        inode.changed(now);
        Ok(())
    }
}
