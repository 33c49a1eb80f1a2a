//! Cold files on a tier that is nearly full go down to a slower one: or else what came first would fill the faster tiers for
//! ever, and what moves down from memory later, which is warmer, would go past them.
//!
//! Of the tiers of each rank those go first of which more than a threshold is in use, while slower ones are below theirs. All
//! files are looked at for what is there, some names at a time, and the one that was used longest ago goes first: written, or
//! read, as far as the mover heard of it. It ends at the first that was used lately. What moves goes as
//! [batches](crate::batch), as what moves down from memory.

use std::collections::{BTreeSet, HashMap};

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{BLOCK_SIZE, FileBlock, InodeId, Kind, Place, Result, Tier, Tiered};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;
use nacre_policy::temperature::WHOLE_FILE_MS;

use crate::batch::{Batch, Part};
use crate::data::Reading;
use crate::fs::MoverFs;
use crate::keeper::{Keeper, Why};
use crate::migrate::is_on;
use crate::status::{Doing, Way};
use crate::walk::{AT_ONCE, PAUSE_MS, Trail};
use crate::watch::millis;

/// What is known of files on tiers that are nearly full.
#[derive(Debug, Default)]
pub(crate) struct Descent {
    /// The way through all files.
    trail: Trail,
    /// When it last came to its end, in milliseconds since 1970.
    ended_ms: Option<u64>,
    /// The tiers that it looks for.
    from: Vec<u8>,
    /// Files that have something there, by when they were used.
    files: BTreeSet<(u64, InodeId)>,
}

/// From where blocks go, and to where.
#[derive(Debug)]
pub(crate) struct Slope {
    /// Tiers of one rank, of which too much is in use.
    from: Vec<u8>,
    /// Slower ones, the fastest first.
    to: Vec<Tier>,
    /// Blocks that are too many there.
    excess: u64,
}

impl Descent {
    /// Those that were used longest ago, and when.
    pub(crate) fn coldest_ones(&self, most: usize) -> impl Iterator<Item = (u64, InodeId)> {
        self.files.iter().take(most).copied()
    }

    /// Takes in a file; of more than `most` the coldest are kept, and the others found again by the next way.
    fn found(&mut self, id: InodeId, used_ms: u64, most: usize) {
        self.files.insert((used_ms, id));
        if self.files.len() > most {
            self.files.pop_last();
        }
    }

    /// Whether there is something to look at, or to move, at this time.
    fn is_at_work(&self, now_ms: u64) -> bool {
        self.ended_ms.is_none() || self.trail.goes_on() || self.has_cold(now_ms)
    }

    fn has_cold(&self, now_ms: u64) -> bool {
        self.files.first().is_some_and(|(used_ms, _)| is_cold(*used_ms, now_ms))
    }
}

fn is_cold(used_ms: u64, now_ms: u64) -> bool {
    used_ms.saturating_add(WHOLE_FILE_MS) < now_ms
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> MoverFs<L, D> {
    /// From where cold files go down to slower tiers now, if from anywhere.
    pub(crate) fn slope(&self) -> Option<Slope> {
        let most = self.tier_threshold.load(Ordering::Relaxed);
        let mut tiers: Vec<(Tier, u64)> = Vec::new();
        for tier in self.usable() {
            let space = self.layout.tier_space(tier.number).ok()?;
            let used = space.blocks - space.free.min(space.blocks);
            tiers.push((tier, used.saturating_sub(space.blocks * most / 100)));
        }
        tiers.sort_by_key(|(tier, _)| (tier.rank, tier.number));
        let ranks = tiers.chunk_by(|(one, _), (other, _)| one.rank == other.rank);
        ranks.into_iter().find_map(|alike| {
            let rank = alike.first()?.0.rank;
            let full = || alike.iter().filter(|(_, excess)| *excess > 0);
            let to: Vec<Tier> = tiers
                .iter()
                .filter(|(tier, excess)| {
                    tier.rank > rank && *excess == 0 && !self.tiers.is_doubtful(tier.number)
                })
                .map(|(tier, _)| *tier)
                .collect();
            let from: Vec<u8> = full().map(|(tier, _)| tier.number).collect();
            let excess = full().map(|(_, excess)| excess).sum();
            (!from.is_empty() && !to.is_empty()).then_some(Slope { from, to, excess })
        })
    }

    /// Whether cold files are going down to slower tiers, or are looked for.
    pub(crate) fn is_descending(&self, keeper: &Keeper) -> bool {
        self.sink.is_on()
            && self.may_move()
            && keeper.descent.is_at_work(self.sink.time_ms())
            && self.slope().is_some()
    }

    /// Moves cold files from tiers that are nearly full to slower ones; gives the number of blocks.
    pub(crate) fn descend(
        &self,
        keeper: &mut Keeper,
        now_ms: u64,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<u64> {
        let mut moved = 0;
        while goes_on()
            && keeper.allowance > 0
            && self.may_move()
            && let Some(slope) = self.slope()
        {
            if keeper.descent.from != slope.from {
                keeper.descent = Descent { from: slope.from.clone(), ..Descent::default() };
            }
            let descent = &mut keeper.descent;
            if descent.trail.goes_on() {
                self.look_for_more(keeper, now_ms);
            } else if descent.has_cold(now_ms) {
                moved += self.descend_batch(keeper, &slope, now_ms, goes_on)?;
            } else if descent.ended_ms.is_none_or(|ended_ms| now_ms.abs_diff(ended_ms) >= PAUSE_MS) {
                descent.files.clear();
                descent.trail.begin(self.layout.id(&self.layout.root()));
            } else {
                break;
            }
        }
        Ok(moved)
    }

    /// Looks at some more names.
    fn look_for_more(&self, keeper: &mut Keeper, now_ms: u64) {
        let Some(found) = self.advance(&mut keeper.descent.trail, AT_ONCE) else { return };
        for id in found.files {
            // One that is gone is nobody's, and who uses one that cannot be read is told.
            if let Ok(node) = self.layout.node(id)
                && !self.is_pinned(&node)
                && self.has_blocks(
                    &node,
                    |tier| keeper.descent.from.contains(&tier),
                    |place| keeper.descent.from.iter().any(|tier| is_on(place, *tier)),
                )
                && let Ok(used_ms) = self.used_ms(keeper, id, &node)
            {
                keeper.descent.found(id, used_ms, self.options.known_files);
            }
        }
        if !keeper.descent.trail.goes_on() {
            keeper.descent.ended_ms = Some(now_ms);
        }
    }

    /// When a file was written, or read, as far as is known.
    fn used_ms(&self, keeper: &Keeper, id: InodeId, node: &L::Node) -> Result<u64> {
        Ok(millis(self.layout.getattr(node)?.mtime).max(keeper.below.read_ms(id)))
    }

    /// Moves what is coldest as one batch; gives the number of blocks. A file that fails, or stays, is not tried again before
    /// all files were looked at anew.
    fn descend_batch(
        &self,
        keeper: &mut Keeper,
        slope: &Slope,
        now_ms: u64,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<u64> {
        let allowed = keeper.allowance.unsigned_abs().div_ceil(BLOCK_SIZE);
        let wanted = slope.excess.clamp(1, allowed);
        // What is on the tiers is nobody else's to write before it was read.
        let _reading = Reading::begin(&self.layout);
        let mut batch = Batch::default();
        // Those of which more comes with the next batch.
        let mut rest: HashMap<InodeId, u64> = HashMap::new();
        let mut failure = None;
        while batch.blocks() < wanted && goes_on() && keeper.descent.has_cold(now_ms) {
            let Some((used_ms, id)) = keeper.descent.files.pop_first() else { break };
            let Ok(node) = self.layout.node(id) else { continue };
            if self.is_pinned(&node) {
                continue;
            }
            let Ok(used_now_ms) = self.used_ms(keeper, id, &node) else { continue };
            if used_now_ms > used_ms {
                keeper.descent.files.insert((used_now_ms, id));
                continue;
            }
            let is_meant = |place: &Place| slope.from.iter().any(|tier| is_on(place, *tier));
            match self.add_range(&mut batch, (&node, FileBlock(0), u64::MAX), &mut 0, is_meant) {
                Ok(true) => {}
                Ok(false) => {
                    rest.insert(id, used_ms);
                    break;
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        let Some(first) = batch.parts().first().map(Part::id) else {
            return failure.map_or(Ok(0), Err);
        };
        let files = batch.parts().len() as u64;
        self.note_queue(keeper);
        let _doing = self.begin(Doing { inode: first.number, files, way: Way::Descended });
        let mut moved = 0;
        for (id, placed) in self.place_on(&slope.to, batch, Why::Descent, &mut || true) {
            match placed {
                Ok(placed) if placed.moved > 0 => moved += placed.moved,
                // It was written meanwhile.
                Ok(_) => drop(rest.remove(&id)),
                Err(error) => {
                    rest.remove(&id);
                    // A program has it mapped, it was removed, or there is no room for it.
                    if !matches!(error.kind(), Kind::Busy | Kind::Stale | Kind::NoSpace) {
                        failure = failure.or(Some(error));
                    }
                }
            }
        }
        keeper.descent.files.extend(rest.into_iter().map(|(id, used_ms)| (used_ms, id)));
        self.descended.fetch_add(moved, Ordering::Relaxed);
        keeper.allowance = keeper.allowance.saturating_sub_unsigned(moved * BLOCK_SIZE);
        failure.map_or(Ok(moved), Err)
    }
}
