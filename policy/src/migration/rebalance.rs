//! Rebalancing between tiers: cold files leave a tier that is nearly full for slower ones. Otherwise the oldest data would
//! fill the faster tiers for ever, and data demoted from PM later, which is warmer, would go past them.
//!
//! The file that was used longest ago goes first: written, or read, as far as that was sampled. It ends at the first file
//! that was used lately.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use crate::migration::{Access, Choice, Chosen, Migration, PAUSE_MS, Usage};
use crate::temperature::{Span, WHOLE_FILE_MS};

/// If nothing that was found could move, the next scan begins after twice the time, up to this.
const LONGEST_PAUSE_MS: u64 = 64 * PAUSE_MS;

/// The policy, and the files that it knows on the tiers that are nearly full.
#[derive(Debug)]
pub struct Rebalance<F> {
    /// A scan goes on.
    is_scanning: bool,
    /// When the last one ended, in milliseconds.
    ended_ms: Option<u64>,
    /// How long after that the next one may begin.
    pause_ms: u64,
    /// Something moved since the scan began.
    has_moved: bool,
    /// There was no room for all that was found.
    has_dropped: bool,
    /// The rank of the tiers that it looks for.
    rank: u8,
    /// Files that have something there, by when they were used.
    files: BTreeSet<(u64, F)>,
    /// When each of them was used, and each that was chosen since.
    used_ms: HashMap<F, u64>,
    /// The file that moves in parts, and its first block that was not looked at.
    part: Option<(F, u64)>,
}

impl<F> Default for Rebalance<F> {
    fn default() -> Rebalance<F> {
        Rebalance {
            is_scanning: false,
            ended_ms: None,
            pause_ms: 0,
            has_moved: false,
            has_dropped: false,
            rank: 0,
            files: BTreeSet::new(),
            used_ms: HashMap::new(),
            part: None,
        }
    }
}

impl<F: Copy + Ord + Hash> Rebalance<F> {
    /// The files that were used longest ago, and when.
    pub fn coldest_ones(&self, most: usize) -> impl Iterator<Item = (u64, F)> {
        self.files.iter().take(most).copied()
    }

    /// The rank of the tiers that it looks for.
    pub fn rank(&self) -> u8 {
        self.rank
    }

    /// From now on it is for the tiers of this rank; true if it was for others before. That others were scanned for just
    /// before is no reason to scan again sooner.
    pub fn turn_to(&mut self, rank: u8) -> bool {
        if self.rank == rank {
            return false;
        }
        let Rebalance { ended_ms, pause_ms, has_moved, .. } = *self;
        *self = Rebalance { rank, ended_ms, pause_ms, has_moved, ..Rebalance::default() };
        true
    }

    /// Takes in a file that a scan has found; of more than `most` the coldest are kept, and the others found again by
    /// the next scan.
    pub fn found(&mut self, file: F, used_ms: u64, most: usize) {
        self.put(file, used_ms);
        if self.files.len() > most
            && let Some((_, dropped)) = self.files.pop_last()
        {
            self.used_ms.remove(&dropped);
            self.has_dropped = true;
        }
    }

    /// A scan has come to its end.
    pub fn end_scan(&mut self, now_ms: u64) {
        (self.is_scanning, self.ended_ms) = (false, Some(now_ms));
    }

    /// Whether there is something to scan, or to move, at this time.
    pub fn is_at_work(&self, now_ms: u64) -> bool {
        self.ended_ms.is_none() || self.is_scanning || self.has_cold(now_ms)
    }

    /// Chooses the coldest file, from the first block on that was not looked at.
    pub fn choose_cold(&mut self, now_ms: u64) -> Option<Chosen<F>> {
        if !self.has_cold(now_ms) {
            return None;
        }
        let (_, file) = self.files.pop_first()?;
        let start = self.part.filter(|(of, _)| *of == file).map_or(0, |(_, at)| at);
        Some(Chosen { file, spans: vec![Span { start, len: u64::MAX - start }] })
    }

    /// When a file was used that was chosen.
    pub fn used_ms(&self, file: F) -> u64 {
        self.used_ms.get(&file).copied().unwrap_or_default()
    }

    /// A file that was chosen waits again, with the time at which it was used.
    pub fn put_back(&mut self, file: F, used_ms: u64) {
        self.put(file, used_ms);
    }

    /// A file that was chosen has moved up to a block; the rest comes with the next choice.
    pub fn moved_up_to(&mut self, file: F, at: u64) {
        self.put(file, self.used_ms(file));
        self.part = Some((file, at));
    }

    /// Files that were chosen have moved, or stay: nothing more is known of them. So many blocks moved. If there was no
    /// room for some, nothing is tried again before the next scan.
    pub fn settle(&mut self, moved: u64, is_full: bool) {
        if is_full {
            self.files.clear();
        }
        let files = &self.files;
        self.used_ms.retain(|file, used_ms| files.contains(&(*used_ms, *file)));
        self.has_moved |= moved > 0;
    }

    fn put(&mut self, file: F, used_ms: u64) {
        if let Some(before_ms) = self.used_ms.insert(file, used_ms) {
            self.files.remove(&(before_ms, file));
        }
        self.files.insert((used_ms, file));
    }

    fn has_cold(&self, now_ms: u64) -> bool {
        self.files.first().is_some_and(|(used_ms, _)| is_cold(*used_ms, now_ms))
    }

    /// Whether another scan may find something at this time.
    fn may_begin(&self, now_ms: u64) -> bool {
        let is_more_there = self.has_dropped && self.has_moved && self.files.is_empty();
        is_more_there || self.ended_ms.is_none_or(|ended_ms| now_ms.abs_diff(ended_ms) >= self.pause_ms)
    }

    fn begin_scan(&mut self) {
        self.pause_ms = match self.has_moved || self.ended_ms.is_none() {
            true => PAUSE_MS,
            false => (self.pause_ms * 2).clamp(PAUSE_MS, LONGEST_PAUSE_MS),
        };
        (self.has_moved, self.has_dropped, self.is_scanning) = (false, false, true);
        self.part = None;
        self.files.clear();
        self.used_ms.clear();
    }
}

impl<F: Copy + Ord + Hash> Migration<F> for Rebalance<F> {
    fn observe(&mut self, access: &Access<F>) {
        // Of a file that waits: it is not cold.
        let Some(&used_ms) = self.used_ms.get(&access.file) else { return };
        if used_ms < access.at_ms && self.files.contains(&(used_ms, access.file)) {
            self.put(access.file, access.at_ms);
        }
    }

    fn choose(&mut self, usage: &Usage) -> Choice<F> {
        if self.is_scanning {
            return Choice::Scan;
        }
        if let Some(chosen) = self.choose_cold(usage.now_ms) {
            return Choice::Demote(chosen);
        }
        if !self.may_begin(usage.now_ms) {
            return Choice::Nothing;
        }
        self.begin_scan();
        Choice::Scan
    }
}

fn is_cold(used_ms: u64, now_ms: u64) -> bool {
    used_ms.saturating_add(WHOLE_FILE_MS) < now_ms
}

#[cfg(test)]
mod tests {
    use super::{LONGEST_PAUSE_MS, Rebalance};
    use crate::migration::{Access, AccessKind, Choice, Migration, Need, PAUSE_MS, Usage};
    use crate::placement::Rules;

    fn choose(rebalance: &mut Rebalance<u32>, now_ms: u64) -> Choice<u32> {
        rebalance.choose(&Usage { need: Need::Threshold, now_ms, rules: Rules::default() })
    }

    /// Scans nothing; gives for how long the next scan may not begin.
    fn scan(rebalance: &mut Rebalance<u32>, now_ms: u64, moves: bool) -> u64 {
        assert_eq!(choose(rebalance, now_ms), Choice::Scan);
        rebalance.end_scan(now_ms);
        rebalance.settle(u64::from(moves), false);
        let pause_ms = rebalance.pause_ms;
        assert_eq!(choose(rebalance, now_ms + pause_ms - 1), Choice::Nothing);
        assert!(rebalance.may_begin(now_ms + pause_ms));
        pause_ms
    }

    #[test]
    fn where_nothing_can_move_it_scans_ever_more_seldom_for_whichever_rank() {
        let mut rebalance = Rebalance::default();
        let mut now_ms = 1_700_000_000_000;
        let mut pauses = Vec::new();
        for turn in 0..10 {
            rebalance.turn_to(turn % 2);
            pauses.push(scan(&mut rebalance, now_ms, false) / PAUSE_MS);
            now_ms += LONGEST_PAUSE_MS;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64, 64, 64]);
        // Blocks that moved count, whichever tiers they were from.
        scan(&mut rebalance, now_ms, true);
        assert!(rebalance.turn_to(7));
        assert_eq!(scan(&mut rebalance, now_ms + LONGEST_PAUSE_MS, true), PAUSE_MS);
        assert!(!rebalance.turn_to(7));
        assert_eq!(scan(&mut rebalance, now_ms + 2 * LONGEST_PAUSE_MS, false), PAUSE_MS);
    }

    #[test]
    fn the_coldest_are_kept_and_the_others_scanned_for_again_at_once() {
        let mut rebalance = Rebalance::default();
        scan(&mut rebalance, 1_700_000_000_000, true);
        (0..10).for_each(|number| rebalance.found(number, 100 - u64::from(number), 4));
        assert_eq!(rebalance.coldest_ones(9).map(|(_, id)| id).collect::<Vec<_>>(), [9, 8, 7, 6]);
        assert!(!rebalance.may_begin(1_700_000_000_001), "those come first");
        rebalance.settle(0, true);
        assert!(rebalance.may_begin(1_700_000_000_001));
    }

    #[test]
    fn a_file_that_is_used_is_not_cold_and_one_that_moved_in_part_goes_on() {
        let now_ms = 1_700_000_000_000;
        let mut rebalance = Rebalance::default();
        scan(&mut rebalance, now_ms, true);
        (1..=2).for_each(|file| rebalance.found(file, now_ms - 100_000 + u64::from(file), 10));
        let (kind, at_ms) = (AccessKind::ReadBelow, now_ms - 1);
        rebalance.observe(&Access { file: 1, kind, start: 0, blocks: 1, size: 1, modified_ms: 0, at_ms });
        let start = |choice| match choice {
            Choice::Demote(chosen) => (chosen.file, chosen.spans[0].start),
            other => panic!("{other:?}"),
        };
        assert_eq!(start(choose(&mut rebalance, now_ms)), (2, 0));
        rebalance.moved_up_to(2, 77);
        assert_eq!(start(choose(&mut rebalance, now_ms)), (2, 77));
        rebalance.settle(1, false);
        assert_eq!(choose(&mut rebalance, now_ms), Choice::Nothing);
        assert_eq!(rebalance.coldest_ones(9).collect::<Vec<_>>(), [(at_ms, 1)]);
    }
}
