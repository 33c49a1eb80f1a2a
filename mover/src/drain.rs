//! Taking everything from a tier, before it goes.

use std::ops::ControlFlow;

use nacre_engine::{
    BLOCK_SIZE, DirEntry, Durability, Error, FileBlock, FileKind, InodeId, Kind, Result, TierState, Tiered,
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

/// Groups of a file that are moved before the next question whether it goes on.
const GROUPS_AT_ONCE: u64 = 4;

/// The rest of the files to look at.
pub(crate) struct Drain {
    waiting: Vec<Waiting>,
    /// Blocks.
    moved: u64,
}

/// A file or directory that was not looked at, or a file from a block on.
struct Waiting {
    id: InodeId,
    kind: FileKind,
    from: u64,
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> MoverFs<L, D> {
    /// Moves everything that is on a tier to others or, where these have no room, up to persistent memory. Nothing new is
    /// placed on it from then on. Now and then `goes_on` says whether it goes on; what was moved stays moved, and the next
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
                let id = self.layout.id(&self.layout.root());
                Drain { waiting: vec![Waiting { id, kind: FileKind::Directory, from: 0 }], moved: 0 }
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
        while let Some(Waiting { id, kind, from }) = drain.waiting.pop() {
            let node = match self.layout.node(id) {
                // It was removed meanwhile.
                Err(error) if error.kind() == Kind::Stale => continue,
                other => other?,
            };
            match kind {
                FileKind::Directory => {
                    let waiting = &mut drain.waiting;
                    self.layout.read_dir(&node, 0, &mut |entry: DirEntry<'_>| {
                        waiting.push(Waiting { id: entry.id, kind: entry.kind, from: 0 });
                        ControlFlow::Continue(())
                    })?;
                }
                FileKind::Regular => match self.drain_part(&node, tier, from, &mut drain.moved) {
                    Ok(Some(from)) => drain.waiting.push(Waiting { id, kind, from }),
                    Ok(None) => {}
                    // What fails is tried again by the next call.
                    Err(error) => {
                        drain.waiting.push(Waiting { id, kind, from });
                        return Err(error);
                    }
                },
                _ => {}
            }
            if !goes_on(&state(drain, false)?) {
                return state(drain, false);
            }
        }
        state(drain, true)
    }

    /// Moves what of a part of a file is on a tier; adds the blocks to those that were `moved`. Gives where the next part
    /// begins.
    fn drain_part(&self, node: &L::Node, tier: u8, from: u64, moved: &mut u64) -> Result<Option<u64>> {
        let blocks = self.layout.getattr(node)?.size.div_ceil(BLOCK_SIZE);
        let part = GROUPS_AT_ONCE * self.group();
        // What is allocated behind the end of the file belongs to the last part.
        let next = Some(from + part).filter(|next| *next < blocks);
        let range = (FileBlock(from), next.map_or(u64::MAX - from, |next| next - from));
        for other in self.takers(None) {
            match self.move_between(node, tier, other.number, range) {
                Err(error) if self.passes_on(other.number, &error) => {}
                other => *moved += other?.moved,
            }
        }
        // What was written meanwhile, and all when there is no other tier.
        let up = || self.bring_up_from(node, range.0, range.1, Durability::Now, |here| here == tier);
        *moved += self.with_room(up)?.moved;
        *moved += self.layout.replace_unwritten(node, tier, range.0, range.1)?;
        Ok(next)
    }
}
