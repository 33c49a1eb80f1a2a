//! Rebalancing of cold files from a tier that is nearly full to a slower one. Otherwise the oldest data would fill the
//! faster tiers for ever, and data demoted from PM later, which is warmer, would go past them.
//!
//! Of the tiers of each rank those go first of which more than a threshold is in use, while slower ones are below
//! theirs. All files are searched for blocks there, some names at a time. The file that was used longest ago goes
//! first: written, or read, as far as that was sampled. It ends at the first file that was used lately. Blocks move as
//! [batches](crate::batch), like those demoted from PM. A background pass does some of that, because the room is not
//! needed at once.

use std::collections::{BTreeSet, HashMap, HashSet};

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{BLOCK_SIZE, Error, FileBlock, InodeId, Kind, Place, Result, Tier, Tiered};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;
use nacre_policy::temperature::WHOLE_FILE_MS;

use crate::batch::{Batch, Part};
use crate::budget::Budget;
use crate::data::Reading;
use crate::fs::MoverFs;
use crate::keeper::{Keeper, Why};
use crate::migrate::is_on;
use crate::status::{Doing, Way};
use crate::walk::{AT_ONCE, PAUSE_MS, Trail};
use crate::watch::millis;

/// Names that are looked at in a look of the mover.
const NAMES: usize = 4096;
/// Blocks that move in one, at most, and a batch more.
const BLOCKS: u64 = (64 << 20) / BLOCK_SIZE;
/// Where nothing that was found could move, the next way begins after twice the time, up to this.
const LONGEST_PAUSE_MS: u64 = 64 * PAUSE_MS;

/// The known files on tiers that are nearly full.
#[derive(Debug, Default)]
pub(crate) struct Descent {
    /// The way through all files.
    trail: Trail,
    /// When it last came to its end, in milliseconds since 1970.
    ended_ms: Option<u64>,
    /// How long after that the next one may begin.
    pause_ms: u64,
    /// Something moved since the way began.
    has_moved: bool,
    /// There was no room for all that was found.
    has_dropped: bool,
    /// The rank of the tiers that it looks for.
    rank: u8,
    /// Files that have something there, by when they were used.
    files: BTreeSet<(u64, InodeId)>,
    /// The file that moves in parts, and its first block that was not looked at.
    part: Option<(InodeId, u64)>,
}

/// From where blocks go, and to where.
#[derive(Debug)]
pub(crate) struct Slope {
    rank: u8,
    /// Tiers of that rank of which too much is in use.
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
            self.has_dropped = true;
        }
    }

    fn has_cold(&self, now_ms: u64) -> bool {
        self.files.first().is_some_and(|(used_ms, _)| is_cold(*used_ms, now_ms))
    }

    /// Whether another way may find something at this time.
    fn may_begin(&self, now_ms: u64) -> bool {
        let is_more_there = self.has_dropped && self.has_moved && self.files.is_empty();
        is_more_there || self.ended_ms.is_none_or(|ended_ms| now_ms.abs_diff(ended_ms) >= self.pause_ms)
    }

    /// From now on it is for the tiers of this rank. That others were looked for just before is no reason to look again sooner.
    fn turn_to(&mut self, rank: u8) {
        if self.rank != rank {
            let Descent { ended_ms, pause_ms, has_moved, .. } = *self;
            *self = Descent { rank, ended_ms, pause_ms, has_moved, ..Descent::default() };
        }
    }

    fn begin(&mut self, root: InodeId) {
        self.pause_ms = match self.has_moved || self.ended_ms.is_none() {
            true => PAUSE_MS,
            false => (self.pause_ms * 2).clamp(PAUSE_MS, LONGEST_PAUSE_MS),
        };
        (self.has_moved, self.has_dropped) = (false, false);
        self.part = None;
        self.files.clear();
        self.trail.begin(root);
    }

    /// Whether there is something to look at, or to move, at this time.
    fn is_at_work(&self, now_ms: u64) -> bool {
        self.ended_ms.is_none() || self.trail.goes_on() || self.has_cold(now_ms)
    }
}

fn is_cold(used_ms: u64, now_ms: u64) -> bool {
    used_ms.saturating_add(WHOLE_FILE_MS) < now_ms
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> MoverFs<L, D> {
    /// Blocks of a tier that are in use above the threshold; `None` where that is not known.
    fn excess_on(&self, tier: u8) -> Option<u64> {
        let space = self.layout.tier_space(tier).ok().filter(|space| space.is_counted)?;
        let used = space.blocks.saturating_sub(space.free);
        Some(used.saturating_sub(space.blocks * u64::from(self.settings.now().options.tier_threshold) / 100))
    }

    /// Whether cold files go from a tier to slower ones, where there are such.
    pub(crate) fn is_nearly_full(&self, tier: u8) -> bool {
        self.excess_on(tier).is_some_and(|excess| excess > 0)
    }

    /// From where cold files go down to slower tiers now, if from anywhere.
    pub(crate) fn slope(&self) -> Option<Slope> {
        // A tier with failing reads is not read for this, nor written.
        let mut tiers = self.usable();
        tiers.retain(|tier| !self.tiers.is_doubtful(tier.number));
        let known = |tier: Tier| Some((tier, self.excess_on(tier.number)?));
        let mut tiers: Vec<(Tier, u64)> = tiers.into_iter().filter_map(known).collect();
        tiers.sort_by_key(|(tier, _)| (tier.rank, tier.number));
        tiers.chunk_by(|(one, _), (other, _)| one.rank == other.rank).find_map(|alike| {
            let rank = alike.first()?.0.rank;
            let full = || alike.iter().filter(|(_, excess)| *excess > 0);
            let lower = tiers.iter().filter(|(tier, excess)| tier.rank > rank && *excess == 0);
            let slope = Slope {
                rank,
                from: full().map(|(tier, _)| tier.number).collect(),
                to: lower.map(|(tier, _)| *tier).collect(),
                excess: full().map(|(_, excess)| excess).sum(),
            };
            (!slope.from.is_empty() && !slope.to.is_empty()).then_some(slope)
        })
    }

    /// Whether cold files go down to slower tiers, or are looked for.
    pub(crate) fn is_descending(&self, keeper: &Keeper) -> bool {
        self.sink.is_on()
            && self.may_move()
            && keeper.descent.is_at_work(self.sink.time_ms())
            && self.slope().is_some()
    }

    /// Moves cold files from tiers that are nearly full to slower ones, some of them; gives the number of blocks.
    pub(crate) fn descend(&self, keeper: &mut Keeper, now_ms: u64, budget: &Budget<'_>) -> Result<u64> {
        let (mut moved, mut names) = (0, 0);
        while moved < BLOCKS
            && names < NAMES
            && budget.goes_on()
            && budget.blocks() > 0
            && self.may_move()
            && let Some(slope) = self.slope()
        {
            let descent = &mut keeper.descent;
            descent.turn_to(slope.rank);
            if descent.trail.goes_on() {
                names += self.look_for_more(keeper, now_ms);
            } else if descent.has_cold(now_ms) {
                moved += self.descend_batch(keeper, &slope, now_ms, budget)?;
            } else if descent.may_begin(now_ms) {
                descent.begin(self.layout.id(&self.layout.root()));
            } else {
                break;
            }
        }
        Ok(moved)
    }

    /// Looks at some more names; gives their number, and one more.
    fn look_for_more(&self, keeper: &mut Keeper, now_ms: u64) -> usize {
        let rank = keeper.descent.rank;
        let alike: Vec<u8> =
            self.layout.tiers().iter().filter(|tier| tier.rank == rank).map(|tier| tier.number).collect();
        let found = self.advance(&mut keeper.descent.trail, AT_ONCE);
        let is_there = |place: &Place| alike.iter().any(|tier| is_on(place, *tier));
        for id in found.iter().flat_map(|found| found.files.iter().copied()) {
            // A removed file is skipped, and the user of an unreadable one gets the error.
            if let Ok(node) = self.layout.node(id)
                && !self.is_pinned(&node)
                && self.has_blocks(&node, |tier| alike.contains(&tier), is_there)
                && let Ok(used_ms) = self.used_ms(keeper, id, &node, now_ms)
            {
                keeper.descent.found(id, used_ms, self.settings.now().options.known_files);
            }
        }
        if !keeper.descent.trail.goes_on() {
            keeper.descent.ended_ms = Some(now_ms);
        }
        found.map_or(0, |found| found.names) + 1
    }

    /// When a file was used, as far as is known: written or changed in another way, independent of its modification
    /// time, or read.
    fn used_ms(&self, keeper: &Keeper, id: InodeId, node: &L::Node, now_ms: u64) -> Result<u64> {
        let changed_ms = millis(self.layout.getattr(node)?.ctime);
        let heard_ms = keeper.heats.last_used_ms(id).max(keeper.below.last_used_ms(id));
        Ok(changed_ms.max(heard_ms).min(now_ms))
    }

    /// Rebalances the coldest files as one batch; gives the number of blocks. A file that fails, or stays, is not tried
    /// again before all files were looked at anew.
    fn descend_batch(
        &self,
        keeper: &mut Keeper,
        slope: &Slope,
        now_ms: u64,
        budget: &Budget<'_>,
    ) -> Result<u64> {
        let wanted = slope.excess.clamp(1, budget.blocks());
        // Blocks of the tiers must not be reused before they were read.
        let _reading = Reading::begin(&self.layout);
        let mut batch = Batch::default();
        // When those in it were used, and where the rest begins of one that goes on behind it.
        let mut gathered: HashMap<InodeId, (u64, Option<u64>)> = HashMap::new();
        let mut failure: Option<Error> = None;
        while batch.blocks() < wanted && budget.goes_on() && keeper.descent.has_cold(now_ms) {
            let Some((used_ms, id)) = keeper.descent.files.pop_first() else { break };
            let Ok(node) = self.layout.node(id) else { continue };
            let Ok(used_now_ms) = self.used_ms(keeper, id, &node, now_ms) else { continue };
            if used_now_ms > used_ms {
                keeper.descent.files.insert((used_now_ms, id));
                continue;
            }
            if self.is_pinned(&node) || !self.has_log_at_hand(&node) {
                continue;
            }
            let mut at = keeper.descent.part.filter(|(of, _)| *of == id).map_or(0, |(_, at)| at);
            let is_meant = |place: &Place| slope.from.iter().any(|tier| is_on(place, *tier));
            match self.add_range(&mut batch, (&node, FileBlock(0), u64::MAX), &mut at, is_meant) {
                Ok(true) => drop(gathered.insert(id, (used_ms, None))),
                Ok(false) => {
                    gathered.insert(id, (used_ms, Some(at)));
                    break;
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        let Some(first) = batch.parts().first().map(Part::id) else {
            return failure.map_or(Ok(0), Err);
        };
        let files = batch.parts().len() as u64;
        // Others have nothing there any more.
        let in_batch: HashSet<InodeId> = batch.parts().iter().map(Part::id).collect();
        gathered.retain(|id, (_, at)| at.is_some() || in_batch.contains(id));
        self.note_queue(keeper);
        let _doing = self.begin(Doing { inode: first.number, files, way: Way::Descended });
        let (mut moved, mut is_full) = (0, false);
        for (id, placed) in self.place_on(&slope.to, batch, Why::Descent, budget) {
            let rest = gathered.remove(&id);
            match placed {
                Ok(placed) => {
                    moved += placed.moved;
                    // A file that was written meanwhile is not cold.
                    if let Some((used_ms, Some(at))) = rest.filter(|_| placed.changed == 0) {
                        keeper.descent.files.insert((used_ms, id));
                        keeper.descent.part = Some((id, at));
                    }
                }
                Err(error) => match error.kind() {
                    // A program has it mapped, or it was removed.
                    Kind::Busy | Kind::Stale => {}
                    // On the tiers, or in PM for the entry that would locate it.
                    Kind::NoSpace => is_full = true,
                    _ => failure = failure.or(Some(error)),
                },
            }
        }
        // Those that it did not get to.
        keeper.descent.files.extend(gathered.into_iter().map(|(id, (used_ms, _))| (used_ms, id)));
        if is_full {
            keeper.descent.files.clear();
        }
        keeper.descent.has_moved |= moved > 0;
        self.descended.fetch_add(moved, Ordering::Relaxed);
        budget.spend(moved);
        failure.map_or(Ok(moved), Err)
    }

    /// Whether the log of a file is in PM, as it must be for its blocks to move; an offloaded one is brought back if
    /// there is room.
    fn has_log_at_hand(&self, node: &L::Node) -> bool {
        self.layout.log_image_at(node).is_none()
            || self.usage() <= f64::from(self.log_threshold()) && self.layout.take_log_back(node).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use nacre_engine::InodeId;

    use super::{Descent, LONGEST_PAUSE_MS, PAUSE_MS};

    fn id(number: u64) -> InodeId {
        InodeId { number, generation: 1, volume: 0 }
    }

    /// Goes through nothing; gives for how long the next way may not begin.
    fn way(descent: &mut Descent, now_ms: u64, moves: bool) -> u64 {
        assert!(descent.may_begin(now_ms));
        descent.begin(id(1));
        descent.trail = super::Trail::default();
        (descent.ended_ms, descent.has_moved) = (Some(now_ms), descent.has_moved || moves);
        let pause_ms = descent.pause_ms;
        assert!(!descent.may_begin(now_ms + pause_ms - 1) && descent.may_begin(now_ms + pause_ms));
        pause_ms
    }

    #[test]
    fn where_nothing_can_move_it_looks_ever_more_seldom_for_whichever_rank() {
        let mut descent = Descent::default();
        let mut now_ms = 1_700_000_000_000;
        let mut pauses = Vec::new();
        for turn in 0..10 {
            descent.turn_to(turn % 2);
            pauses.push(way(&mut descent, now_ms, false) / PAUSE_MS);
            now_ms += LONGEST_PAUSE_MS;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64, 64, 64]);
        // What moved counts, whichever tiers it was from.
        way(&mut descent, now_ms, true);
        descent.turn_to(7);
        assert_eq!(way(&mut descent, now_ms + LONGEST_PAUSE_MS, true), PAUSE_MS);
        descent.turn_to(7);
        assert_eq!(way(&mut descent, now_ms + 2 * LONGEST_PAUSE_MS, false), PAUSE_MS);
    }

    #[test]
    fn the_coldest_are_kept_and_the_others_looked_for_again_at_once() {
        let mut descent = Descent::default();
        way(&mut descent, 1_700_000_000_000, true);
        (0..10).for_each(|number| descent.found(id(number), 100 - number, 4));
        assert_eq!(descent.coldest_ones(9).map(|(_, id)| id.number).collect::<Vec<_>>(), [9, 8, 7, 6]);
        assert!(!descent.may_begin(1_700_000_000_001), "those come first");
        descent.files.clear();
        assert!(descent.may_begin(1_700_000_000_001));
    }
}
