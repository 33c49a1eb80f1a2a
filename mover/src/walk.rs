//! Looking for files that have blocks to move and of which no list knows: all of them after a mount, and later those that
//! were accessed unheard, or for which the lists had no room.
//!
//! A walk takes a step at a time and goes on from there: an operation that needs space does not wait for all of it, and
//! no file is looked at twice. It finds only files with some blocks on PM. Files that are on tiers as a whole, however
//! many they are, take no room in the lists from others.

use std::ops::ControlFlow;

use nacre_engine::{BLOCK_SIZE, FileBlock, FileKind, InodeId, Place, Tiered};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;

use crate::fs::MoverFs;
use crate::keeper::Keeper;
use crate::watch::{Chosen, millis};

/// Names that are looked at in a step.
pub(crate) const STEP: usize = 1024;
/// Names that are read of a directory at once.
pub(crate) const AT_ONCE: usize = 256;
/// Blocks of a file that are resolved at once.
const RESOLVED_AT_ONCE: u64 = 1 << 16;
/// Milliseconds between two walks of the background pass. Under load some access is always unheard, and the space is
/// not needed at once.
pub(crate) const PAUSE_MS: u64 = 30_000;

/// The files that a walk passed by and another one may find.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Left {
    #[default]
    Nothing,
    /// Files that could not be moved: perhaps later.
    Failed,
    /// Files that could.
    Movable,
}

/// A way through all directories.
#[derive(Debug, Default)]
pub(crate) struct Trail {
    /// Directories that are not done, and the cookie of the last name in each that is; the last one goes on. There are as
    /// many at the most as a directory's names that are read at once, for each directory above.
    waiting: Vec<(InodeId, u64)>,
}

impl Trail {
    pub(crate) fn goes_on(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) fn begin(&mut self, root: InodeId) {
        self.waiting.push((root, 0));
    }
}

/// The files found in a part of a directory.
pub(crate) struct Found {
    /// How many names were looked at.
    pub(crate) names: usize,
    /// Files among them.
    pub(crate) files: Vec<InodeId>,
}

/// A walk through all files.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    trail: Trail,
    /// The files passed by since it began.
    left: Left,
    /// When the last one ended, in milliseconds since 1970.
    ended_ms: Option<u64>,
}

impl Walk {
    fn goes_on(&self) -> bool {
        self.trail.goes_on()
    }

    /// Something was passed by.
    pub(crate) fn leave(&mut self, left: Left) {
        self.left = self.left.max(left);
    }

    /// Another one now would find nothing.
    pub(crate) fn is_done(&self) -> bool {
        !self.goes_on() && self.ended_ms.is_some() && self.left < Left::Movable
    }

    /// Whether another walk may find something, for the background pass at this time or, without a time, for direct
    /// reclaim.
    fn is_worth_it(&self, now_ms: Option<u64>) -> bool {
        match (self.ended_ms, now_ms) {
            (None, _) => true,
            (Some(_), None) => self.left == Left::Movable,
            (Some(ended), Some(now)) => self.left > Left::Nothing && now.abs_diff(ended) >= PAUSE_MS,
        }
    }
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> MoverFs<L, D> {
    /// Chooses the next file to demote: the one that was not written for longest. The background pass gives a time: it
    /// takes only those parts that are cold by then, after all files were seen, or as many as can be known. Direct
    /// reclaim gives none, and takes the files that a step has found. `Continue(None)` is a step of the way there;
    /// `Break` is that there is nothing.
    pub(crate) fn next_cold(
        &self,
        keeper: &mut Keeper,
        now_ms: Option<u64>,
    ) -> ControlFlow<(), Option<Chosen>> {
        let has_enough = match now_ms {
            Some(_) => keeper.heats.room() == 0,
            None => !keeper.heats.is_empty() || keeper.heats.is_any_resting(),
        };
        if keeper.walk.goes_on() && !has_enough {
            self.step(keeper);
            return ControlFlow::Continue(None);
        }
        let cold = match now_ms {
            Some(now_ms) => keeper.heats.coldest(now_ms),
            None => keeper.heats.coldest_whole(),
        };
        if cold.is_some() {
            return ControlFlow::Continue(cold);
        }
        if !keeper.walk.is_worth_it(now_ms) {
            return ControlFlow::Break(());
        }
        keeper.walk.left = Left::Nothing;
        keeper.walk.trail.begin(self.layout.id(&self.layout.root()));
        ControlFlow::Continue(None)
    }

    /// Looks at some more names.
    fn step(&self, keeper: &mut Keeper) {
        let mut looked_at = 0;
        while looked_at < STEP {
            let most = AT_ONCE.min(keeper.heats.room());
            if most == 0 {
                break;
            }
            let Some(found) = self.advance(&mut keeper.walk.trail, most) else { break };
            looked_at += found.names + 1;
            found.files.into_iter().for_each(|id| self.look_at(keeper, id));
        }
        if !keeper.walk.goes_on() {
            keeper.walk.ended_ms = Some(self.sink.time_ms());
        }
    }

    /// Goes on by this many names, at most; nothing at the end of the way.
    pub(crate) fn advance(&self, trail: &mut Trail, most: usize) -> Option<Found> {
        let (dir, after) = trail.waiting.pop()?;
        let mut names = Vec::new();
        // A directory that was removed meanwhile, or cannot be read, has nothing for us.
        if let Ok(node) = self.layout.node(dir) {
            let _ = self.layout.read_dir(&node, after, &mut |entry| {
                names.push((entry.cookie, entry.id, entry.kind));
                if names.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
        }
        if let Some((cookie, ..)) = names.last().filter(|_| names.len() == most) {
            trail.waiting.push((dir, *cookie));
        }
        let mut found = Found { names: names.len(), files: Vec::new() };
        for (_, id, kind) in names {
            match kind {
                FileKind::Directory => trail.waiting.push((id, 0)),
                FileKind::Regular => found.files.push(id),
                _ => {}
            }
        }
        Some(found)
    }

    /// Notes a file that has something to move. A pinned file stays, and a removed one is skipped.
    fn look_at(&self, keeper: &mut Keeper, id: InodeId) {
        if let Ok(node) = self.layout.node(id)
            && let Ok(attr) = self.layout.getattr(&node)
            && !self.is_pinned(&node)
            && (self.has_blocks(&node, |_| false, |place| matches!(place, Place::Pm(_)))
                || self.has_unwritten(&node))
        {
            keeper.heats.found(id, attr.size.div_ceil(BLOCK_SIZE).max(1), millis(attr.mtime));
        }
    }

    /// Whether some blocks of a file are where `is_there` says. For a file that is on one tier as a whole, `is_tier`
    /// decides without a look at its blocks.
    pub(crate) fn has_blocks(
        &self,
        node: &L::Node,
        is_tier: impl Fn(u8) -> bool,
        is_there: impl Fn(&Place) -> bool,
    ) -> bool {
        if let Some(image) = self.layout.log_image_at(node) {
            return is_tier(image.tier);
        }
        let mut at = 0;
        while let Ok(Some(data)) = self.next_data(node, at) {
            let Ok(found) = self.layout.resolve(node, FileBlock(data), RESOLVED_AT_ONCE) else {
                return false;
            };
            if found.iter().any(|extent| is_there(&extent.place)) {
                return true;
            }
            at = data.saturating_add(RESOLVED_AT_ONCE);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::{Left, PAUSE_MS, Walk};

    #[test]
    fn a_walk_begins_when_it_may_find_something() {
        let mut walk = Walk::default();
        assert!(walk.is_worth_it(None) && walk.is_worth_it(Some(7)) && !walk.is_done());
        walk.ended_ms = Some(1000);
        assert!(!walk.is_worth_it(None) && !walk.is_worth_it(Some(1000 + PAUSE_MS)) && walk.is_done());
        walk.leave(Left::Failed);
        assert!(!walk.is_worth_it(None) && walk.is_worth_it(Some(1000 + PAUSE_MS)) && walk.is_done());
        walk.leave(Left::Movable);
        walk.leave(Left::Failed);
        assert!(walk.is_worth_it(None) && walk.is_worth_it(Some(1000 + PAUSE_MS)) && !walk.is_done());
        assert!(!walk.is_worth_it(Some(999 + PAUSE_MS)), "not all the time");
    }
}
