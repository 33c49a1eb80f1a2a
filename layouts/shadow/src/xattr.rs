//! Extended attributes: a tree of blocks that the slot leads to, of which a change writes others. The tree is that of
//! `nacre-layout-parts`.

use nacre_engine::{Attr, BLOCK_SIZE, Block, Error, Kind, Result, Timestamp, XattrMode};
use nacre_layout_parts::tree::edit::join;
use nacre_layout_parts::xattr::{self, Change, Owner, XattrSpace};
use nacre_media::{Flushed, Pm};

use crate::alloc::{Purpose, Run, Runs};
use crate::fs::Shared;
use crate::inode::Inode;

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
    pub(crate) fn owner_of(&self, number: u64, generation: u32) -> Owner<'_, P> {
        Owner::new(&*self.pm, self.bounds, self.seed, number, generation)
    }

    /// Writes the attributes of a new inode; gives the first of their blocks. `runs` takes the allocated blocks.
    pub(crate) fn write_xattrs(
        &self,
        (number, generation): (u64, u32),
        xattrs: &[(&[u8], &[u8])],
        runs: &mut Runs,
    ) -> Result<(u64, Option<Flushed>)> {
        let mut change = Change::default();
        let written = xattr::write_all(self, &self.owner_of(number, generation), xattrs, &mut change);
        runs.extend(change.allocated);
        written.map(|()| (change.place, change.pending))
    }

    pub(crate) fn get_xattr(&self, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        let body = inode.body.read();
        let found = match body.state.slot.xattrs() {
            0 => None,
            place => xattr::get(&self.owner_of(inode.number, inode.generation), place, name)?,
        };
        found.ok_or(Error::new(Kind::NoAttribute))
    }

    pub(crate) fn list_xattrs(&self, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        let body = inode.body.read();
        match body.state.slot.xattrs() {
            0 => Ok(Vec::new()),
            place => xattr::names(&self.owner_of(inode.number, inode.generation), place),
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
        self.check_unbroken()?;
        let mut change = Change { place: body.state.slot.xattrs(), ..Change::default() };
        let owner = self.owner_of(inode.number, inode.generation);
        let written = xattr::change(self, &owner, name, value, &mut change);
        let mut new = inode.next_changed(&body, now);
        if let Some(mode) = mode {
            new.slot.mode = (mode & 0o7777) as u16;
        }
        let result = written.and_then(|()| {
            new.slot.set_xattrs(change.place);
            self.commit_slot(&mut new, change.pending.take())
        });
        if result.is_err() {
            if !self.is_broken() {
                self.free_runs(&change.allocated);
            }
            return result;
        }
        body.state = new.state();
        change.freed.iter().for_each(|&block| self.alloc.free(Run { start: Block(block), len: 1 }));
        inode.attr.lock().mode = new.slot.mode;
        inode.changed(now);
        Ok(())
    }
}
