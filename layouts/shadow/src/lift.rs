//! Lifting: a change of a tree becomes one word, or a new root.
//!
//! An edit collects the words of nodes in use that it changes. One word can be published by a store. Where there are
//! more, the lowest nodes with such words are copied with them, and the words that lead to the copies change in their
//! place. Repeated, that ends with one word, or at the root, which is in the slot. So of a tree only the part below the
//! lowest place is copied that covers all of a change.

use nacre_engine::Result;
use nacre_layout_parts::tree::edit::{self, TreeSpace};
use nacre_media::{Flushed, Pm};

use crate::alloc::{Purpose, Run, Runs};
use crate::blockmap::{Bounds, ShadowWords};
use crate::fs::Shared;
use crate::seeded::Mistake;

/// A change of a tree.
pub(crate) type Edit<'a, P> = edit::Edit<'a, Shared<P>>;

/// The last step of an operation on one inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Publish {
    /// Its slot.
    Slot,
    /// Its slot, which does not wait for data that is overwritten where it is.
    Together,
    /// This word becomes that value, and the slot counts from then on.
    Word { address: u64, value: u64 },
}

impl<P: Pm> TreeSpace for Shared<P> {
    type Media = P;
    type Words = ShadowWords;

    fn media(&self) -> &P {
        &self.pm
    }

    fn bounds(&self) -> Bounds {
        self.bounds
    }

    fn allocate(
        &self,
        goal: Option<nacre_engine::Block>,
        blocks: u64,
        purpose: Purpose,
        runs: &mut Runs,
    ) -> Result<()> {
        Shared::allocate(self, goal, blocks, purpose, runs)
    }

    fn free_runs(&self, runs: &[Run]) {
        Shared::free_runs(self, runs);
    }
}

/// Copies the nodes that have to be, without writing them.
pub(crate) fn lift<P: Pm>(edit: &mut Edit<'_, P>) -> Result<Publish> {
    loop {
        let mut words = edit.words();
        let Some((address, first)) = words.next() else { return Ok(Publish::Slot) };
        if words.len() == 0 {
            return Ok(Publish::Word { address, value: first.word });
        }
        let lowest = words.map(|(_, changed)| changed.height).fold(first.height, u32::min);
        let at = edit.words().find(|(_, changed)| changed.height == lowest).map(|(_, changed)| changed.at);
        let Some(at) = at else { return Ok(Publish::Slot) };
        edit.replace_node(at, lowest)?;
    }
}

/// Writes the new nodes of a lifted edit, and the words behind the end of its tree.
pub(crate) fn write<P: Pm>(edit: &Edit<'_, P>, pending: Option<Flushed>) -> Result<Option<Flushed>> {
    edit.write(pending)
}

/// Of the mistake to change a node in place: all changed words but the first, stored where they are.
pub(crate) fn store_in_place<P: Pm>(fs: &Shared<P>, edit: &Edit<'_, P>) -> Result<Option<Publish>> {
    if !Mistake::NodeInPlace.is_made(&*fs.pm) {
        return Ok(None);
    }
    let mut words = edit.words();
    let Some((address, first)) = words.next() else { return Ok(None) };
    for (address, changed) in words {
        let stored = fs.pm.store(address, &changed.word.to_le_bytes())?;
        fs.pm.fence(fs.pm.flush(stored));
    }
    Ok(Some(Publish::Word { address, value: first.word }))
}
