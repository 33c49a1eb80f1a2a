//! Taking everything from a tier, before it goes.

use std::ops::ControlFlow;

use nacre_engine::{
    BLOCK_SIZE, DirEntry, Error, FileBlock, FileKind, InodeId, Kind, Result, TierState, Tiered,
};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;

use crate::fs::MoverFs;

/// How far a drain is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drained {
    /// Bytes that are elsewhere now.
    pub moved: u64,
    /// Bytes that are on the tier still.
    pub left: u64,
    /// All files were looked at. What is left then belongs to files without a name that are open, or was written while the
    /// drain went on.
    pub is_done: bool,
}

/// The rest of the files to look at.
#[derive(Default)]
pub(crate) struct Drain {
    waiting: Vec<(InodeId, FileKind)>,
    /// Blocks.
    moved: u64,
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> MoverFs<L, D> {
    /// Moves everything that is on a tier to others or, where these have no room, up to persistent memory. Nothing new is
    /// placed on it from then on. After each file `goes_on` says whether it goes on; what was moved stays moved, and the next
    /// call goes on from there.
    ///
    /// [`Busy`](Kind::Busy) while another call does it; [`NoSpace`](Kind::NoSpace) when nothing else has room.
    pub fn drain(&self, tier: u8, goes_on: &mut dyn FnMut(&Drained) -> bool) -> Result<Drained> {
        self.set_state(tier, TierState::Draining)?;
        let begun = self.drains.lock().insert(tier, None);
        let mut drain = match begun {
            Some(None) => {
                return Err(Error::new(Kind::Busy).operation("drain").object(format!("tier {tier}")));
            }
            Some(Some(drain)) => drain,
            None => {
                let root = (self.layout.id(&self.layout.root()), FileKind::Directory);
                Drain { waiting: vec![root], moved: 0 }
            }
        };
        let result = self.drain_files(tier, &mut drain, goes_on);
        match &result {
            Ok(drained) if drained.is_done => drop(self.drains.lock().remove(&tier)),
            _ => drop(self.drains.lock().insert(tier, Some(drain))),
        }
        result
    }

    fn drain_files(
        &self,
        tier: u8,
        drain: &mut Drain,
        goes_on: &mut dyn FnMut(&Drained) -> bool,
    ) -> Result<Drained> {
        let state = |drain: &Drain, is_done| {
            let space = self.layout.tier_space(tier)?;
            let left = (space.blocks - space.free) * BLOCK_SIZE;
            Ok(Drained { moved: drain.moved * BLOCK_SIZE, left, is_done })
        };
        // By a list instead of recursion: directories may be deeper than a stack.
        while let Some((id, kind)) = drain.waiting.pop() {
            let node = match self.layout.node(id) {
                // It was removed meanwhile.
                Err(error) if error.kind() == Kind::Stale => continue,
                other => other?,
            };
            match kind {
                FileKind::Directory => {
                    let waiting = &mut drain.waiting;
                    self.layout.read_dir(&node, 0, &mut |entry: DirEntry<'_>| {
                        waiting.push((entry.id, entry.kind));
                        ControlFlow::Continue(())
                    })?;
                }
                FileKind::Regular => {
                    // Of what fails the rest is tried again by the next call.
                    let done = self.drain_file(&node, tier, &mut drain.moved);
                    done.inspect_err(|_| drain.waiting.push((id, kind)))?;
                }
                _ => {}
            }
            if !goes_on(&state(drain, false)?) {
                return state(drain, false);
            }
        }
        state(drain, true)
    }

    /// Moves what of a file is on a tier; adds the blocks to those that were `moved`.
    fn drain_file(&self, node: &L::Node, tier: u8, moved: &mut u64) -> Result<()> {
        for other in self.usable() {
            match self.move_between(node, tier, other.number) {
                // The next one may have room.
                Err(error) if error.kind() == Kind::NoSpace => {}
                other => *moved += other?.moved,
            }
        }
        // What was written meanwhile, and all when there is no other tier.
        let up = || self.bring_up_from(node, FileBlock(0), u64::MAX, |here| here == tier);
        *moved += self.with_room(up)?.moved;
        *moved += self.layout.replace_unwritten(node, tier, FileBlock(0), u64::MAX)?;
        Ok(())
    }
}
