//! The state of background passes. The thread that moves blocks because space is short holds it: one at a time.

use std::collections::{BTreeSet, VecDeque};

use nacre_engine::sync::atomic::{AtomicI64, Ordering};
use nacre_engine::{BLOCK_SIZE, Error, InodeId, Kind};
use nacre_policy::temperature::WHOLE_FILE_MS;
use nacre_policy::{Dataflow, DiskReads, Flow};

use crate::engine::trail::{PAUSE_MS, Trail};
use crate::stats::heat::{AccessStatistics, Chosen};

/// The files that a scan passed by and another one may find.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Left {
    #[default]
    Nothing,
    /// Files that could not be moved: perhaps later.
    Failed,
    /// Files that could.
    Movable,
}

/// Divisor of the DRAM for blocks of tiers: this share of it takes in data of PM in a second, before the effect is
/// looked at.
const DRAM_SHARE: u64 = 4;

/// Bytes that are promoted in a second, at most.
const UP_IN_A_SECOND: u64 = 256 << 20;

const SECOND_MS: u64 = 1000;

/// The statistics of reads.
#[derive(Debug, Default)]
pub(crate) struct Balance {
    dataflow: Dataflow,
    disk_reads: DiskReads,
    /// The direction that the last four seconds ask for.
    pub(crate) flow: Option<Flow>,
    /// Blocks that may move for that until the second is over.
    pub(crate) left: u64,
    /// Blocks of these that may move before it is looked again.
    pub(crate) turn: u64,
    /// Blocks that may move up until the second is over because a disk was waited for.
    left_of_missed: u64,
    began_ms: u64,
    /// Bytes that were read when it began.
    read: Reads,
}

/// Bytes that were read until now.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Reads {
    pub(crate) memory: u64,
    /// From tiers, or from DRAM before them.
    pub(crate) tiers: u64,
    /// Those of them that a disk was waited for, where not in order.
    pub(crate) missed: u64,
}

impl Balance {
    /// Takes in how much was read so far, with so many bytes of DRAM for blocks of tiers. When a second is over, there
    /// is a new answer.
    pub(crate) fn look(&mut self, now_ms: u64, read: Reads, dram: u64) {
        if now_ms.saturating_sub(self.began_ms) < SECOND_MS {
            return;
        }
        let memory = read.memory.saturating_sub(self.read.memory);
        let tiers = read.tiers.saturating_sub(self.read.tiers);
        let missed = read.missed.saturating_sub(self.read.missed);
        (self.began_ms, self.read) = (now_ms, read);
        self.flow = self.dataflow.second(memory, tiers);
        let is_waited_for = self.disk_reads.second(memory.saturating_add(tiers), missed);
        self.left_of_missed = if is_waited_for { UP_IN_A_SECOND / BLOCK_SIZE } else { 0 };
        self.left = match self.flow {
            None => 0,
            Some(Flow::ToDram) => dram / DRAM_SHARE / BLOCK_SIZE,
            Some(Flow::ToPm) => UP_IN_A_SECOND / BLOCK_SIZE,
        };
    }

    /// The direction in which reads want their most-read data to move.
    pub(crate) fn flow(&self) -> Option<Flow> {
        self.flow
    }

    /// As much has moved for that as may in a second.
    pub(crate) fn is_spent(&self) -> bool {
        self.left == 0
    }

    /// Blocks that may move up now because a disk was waited for.
    pub(crate) fn left_of_missed(&self) -> u64 {
        self.left_of_missed
    }
}

/// A scan of all files.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    pub(crate) trail: Trail,
    /// The files passed by since it began.
    pub(crate) left: Left,
    /// When the last one ended, in milliseconds since 1970.
    pub(crate) ended_ms: Option<u64>,
}

impl Scan {
    pub(crate) fn goes_on(&self) -> bool {
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

    /// Whether another scan may find something, for the background pass at this time or, without a time, for direct
    /// reclaim.
    pub(crate) fn is_worth_it(&self, now_ms: Option<u64>) -> bool {
        match (self.ended_ms, now_ms) {
            (None, _) => true,
            (Some(_), None) => self.left == Left::Movable,
            (Some(ended), Some(now)) => self.left > Left::Nothing && now.abs_diff(ended) >= PAUSE_MS,
        }
    }
}

/// Where nothing that was found could move, the next way begins after twice the time, up to this.
const LONGEST_PAUSE_MS: u64 = 64 * PAUSE_MS;

/// The known files on tiers that are nearly full.
#[derive(Debug, Default)]
pub(crate) struct Rebalance {
    /// The way through all files.
    pub(crate) trail: Trail,
    /// When it last came to its end, in milliseconds since 1970.
    pub(crate) ended_ms: Option<u64>,
    /// How long after that the next one may begin.
    pause_ms: u64,
    /// Something moved since the way began.
    pub(crate) has_moved: bool,
    /// There was no room for all that was found.
    has_dropped: bool,
    /// The rank of the tiers that it looks for.
    pub(crate) rank: u8,
    /// Files that have something there, by when they were used.
    pub(crate) files: BTreeSet<(u64, InodeId)>,
    /// The file that moves in parts, and its first block that was not looked at.
    pub(crate) part: Option<(InodeId, u64)>,
}

impl Rebalance {
    /// Those that were used longest ago, and when.
    pub(crate) fn coldest_ones(&self, most: usize) -> impl Iterator<Item = (u64, InodeId)> {
        self.files.iter().take(most).copied()
    }

    /// Takes in a file; of more than `most` the coldest are kept, and the others found again by the next way.
    pub(crate) fn found(&mut self, id: InodeId, used_ms: u64, most: usize) {
        self.files.insert((used_ms, id));
        if self.files.len() > most {
            self.files.pop_last();
            self.has_dropped = true;
        }
    }

    pub(crate) fn has_cold(&self, now_ms: u64) -> bool {
        self.files.first().is_some_and(|(used_ms, _)| is_cold(*used_ms, now_ms))
    }

    /// Whether another way may find something at this time.
    pub(crate) fn may_begin(&self, now_ms: u64) -> bool {
        let is_more_there = self.has_dropped && self.has_moved && self.files.is_empty();
        is_more_there || self.ended_ms.is_none_or(|ended_ms| now_ms.abs_diff(ended_ms) >= self.pause_ms)
    }

    /// From now on it is for the tiers of this rank. That others were looked for just before is no reason to look again
    /// sooner.
    pub(crate) fn turn_to(&mut self, rank: u8) {
        if self.rank != rank {
            let Rebalance { ended_ms, pause_ms, has_moved, .. } = *self;
            *self = Rebalance { rank, ended_ms, pause_ms, has_moved, ..Rebalance::default() };
        }
    }

    pub(crate) fn begin(&mut self, root: InodeId) {
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
    pub(crate) fn is_at_work(&self, now_ms: u64) -> bool {
        self.ended_ms.is_none() || self.trail.goes_on() || self.has_cold(now_ms)
    }
}

fn is_cold(used_ms: u64, now_ms: u64) -> bool {
    used_ms.saturating_add(WHOLE_FILE_MS) < now_ms
}

/// The way through all files, for their logs.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    pub(crate) trail: Trail,
    /// Files that were found and are still to be compacted.
    pub(crate) found: VecDeque<InodeId>,
    /// A scan goes on, or its files are still to be compacted.
    pub(crate) is_walking: bool,
    /// When the last scan ended, in milliseconds since 1970.
    pub(crate) ended_ms: Option<u64>,
}

impl Logs {
    /// Whether another scan may find something at this time.
    pub(crate) fn is_worth_it(&self, now_ms: u64) -> bool {
        self.ended_ms.is_none_or(|ended_ms| now_ms.abs_diff(ended_ms) >= PAUSE_MS)
    }
}

/// The state of the mover. The thread that moves blocks because space is short holds it: one at a time.
pub(crate) struct State {
    /// Of files on PM.
    pub(crate) on_pm: AccessStatistics,
    /// Of what was read from tiers.
    pub(crate) on_tiers: AccessStatistics,
    pub(crate) balance: Balance,
    /// Through all files, for those of which nothing is known.
    pub(crate) scan: Scan,
    /// Of files on tiers that are nearly full.
    pub(crate) rebalance: Rebalance,
    /// Through all files, for their logs.
    pub(crate) logs: Logs,
    /// Its own way, of those that wait for room: they take files that are not cold, too.
    pub(crate) logs_for_room: Logs,
    /// Accesses of which samples were lost by the last tick.
    pub(crate) lost: u64,
    /// When it was looked at, in milliseconds since 1970.
    ticked_ms: u64,
    pub(crate) failure: Option<String>,
}

/// The most time for which unused allowance is hinted, in milliseconds.
const ALLOWANCE_MS: u64 = 1000;

impl State {
    /// It knows at most so many files of each kind.
    pub(crate) fn new(known_files: usize) -> State {
        State {
            on_pm: AccessStatistics::new(known_files),
            on_tiers: AccessStatistics::new(known_files),
            balance: Balance::default(),
            scan: Scan::default(),
            rebalance: Rebalance::default(),
            logs: Logs::default(),
            logs_for_room: Logs::default(),
            lost: 0,
            ticked_ms: 0,
            failure: None,
        }
    }

    /// A file of which the rest comes later.
    pub(crate) fn put_back<N>(&mut self, cold: Option<Current<N>>) {
        if let Some(cold) = cold {
            self.on_pm.put_back(cold.chosen.id);
        }
    }

    /// Adds the allowance for the time that has passed, at `rate` bytes in a second.
    pub(crate) fn allow(&mut self, allowance: &AtomicI64, rate: Option<u64>, now_ms: u64) {
        let passed = now_ms.saturating_sub(self.ticked_ms).min(ALLOWANCE_MS);
        self.ticked_ms = now_ms;
        let each_second = rate.and_then(|rate| i64::try_from(rate).ok()).unwrap_or(i64::MAX);
        let more = each_second.saturating_mul(passed as i64) / 1000;
        let allowed = allowance.load(Ordering::Relaxed).saturating_add(more).min(each_second);
        allowance.store(allowed, Ordering::Relaxed);
    }
}

impl State {
    /// So many blocks were moved for the sake of reads.
    pub(crate) fn account(&mut self, blocks: u64) {
        let Balance { left, turn, .. } = &mut self.balance;
        (*left, *turn) = (left.saturating_sub(blocks), turn.saturating_sub(blocks));
    }

    /// So many blocks moved up because a disk was waited for.
    pub(crate) fn account_missed(&mut self, blocks: u64) {
        let Balance { left_of_missed, left, flow, .. } = &mut self.balance;
        *left_of_missed = left_of_missed.saturating_sub(blocks);
        if *flow == Some(Flow::ToPm) {
            *left = left.saturating_sub(blocks);
        }
    }

    /// Notes that a file does not move for the sake of reads; gives the error to report, if there is one.
    pub(crate) fn passed_by(&mut self, id: InodeId, error: Error) -> Option<Error> {
        match error.kind() {
            // It was removed.
            Kind::Stale => {
                self.on_pm.forget(id);
                self.on_tiers.forget(id);
                None
            }
            // A program has it mapped: it stays.
            Kind::Busy => None,
            // There may be room later.
            Kind::NoSpace => {
                (self.balance.turn, self.balance.left_of_missed) = (0, 0);
                None
            }
            _ => Some(error),
        }
    }
}

/// The file that is moving down, and its first block that was not looked at.
pub(crate) struct Current<N> {
    pub(crate) chosen: Chosen,
    pub(crate) node: N,
    pub(crate) at: u64,
}

#[cfg(test)]
mod tests {
    use nacre_engine::{BLOCK_SIZE, InodeId};
    use nacre_policy::Flow;

    use super::{
        Balance, DRAM_SHARE, LONGEST_PAUSE_MS, Left, PAUSE_MS, Reads, Rebalance, Scan, UP_IN_A_SECOND,
    };
    use crate::engine::trail::Trail;

    const DRAM: u64 = 64 << 20;

    #[test]
    fn a_second_is_looked_at_once() {
        let mut balance = Balance::default();
        let mut answers = Vec::new();
        for (second, read) in [(1, 100), (2, 200), (3, 300), (4, 400), (5, 500), (6, 500)] {
            for tenth in 0..10 {
                let read = Reads { memory: read, tiers: 0, missed: 0 };
                balance.look(second * 1000 + tenth * 100, read, DRAM);
            }
            answers.push((balance.flow, balance.left));
        }
        let down = (Some(Flow::ToDram), DRAM / DRAM_SHARE / BLOCK_SIZE);
        assert_eq!(answers, [(None, 0), (None, 0), (None, 0), down, down, (None, 0)]);
        for second in 7..=10 {
            balance.look(second * 1000, Reads { memory: 500, tiers: second * 9, missed: second }, DRAM);
        }
        assert_eq!((balance.flow, balance.left), (Some(Flow::ToPm), UP_IN_A_SECOND / BLOCK_SIZE));
        assert_eq!(balance.left_of_missed(), UP_IN_A_SECOND / BLOCK_SIZE);
    }

    #[test]
    fn a_scan_begins_when_it_may_find_something() {
        let mut scan = Scan::default();
        assert!(scan.is_worth_it(None) && scan.is_worth_it(Some(7)) && !scan.is_done());
        scan.ended_ms = Some(1000);
        assert!(!scan.is_worth_it(None) && !scan.is_worth_it(Some(1000 + PAUSE_MS)) && scan.is_done());
        scan.leave(Left::Failed);
        assert!(!scan.is_worth_it(None) && scan.is_worth_it(Some(1000 + PAUSE_MS)) && scan.is_done());
        scan.leave(Left::Movable);
        scan.leave(Left::Failed);
        assert!(scan.is_worth_it(None) && scan.is_worth_it(Some(1000 + PAUSE_MS)) && !scan.is_done());
        assert!(!scan.is_worth_it(Some(999 + PAUSE_MS)), "not all the time");
    }

    fn id(number: u64) -> InodeId {
        InodeId { number, generation: 1, volume: 0 }
    }

    /// Goes through nothing; gives for how long the next way may not begin.
    fn way(rebalance: &mut Rebalance, now_ms: u64, moves: bool) -> u64 {
        assert!(rebalance.may_begin(now_ms));
        rebalance.begin(id(1));
        rebalance.trail = Trail::default();
        (rebalance.ended_ms, rebalance.has_moved) = (Some(now_ms), rebalance.has_moved || moves);
        let pause_ms = rebalance.pause_ms;
        assert!(!rebalance.may_begin(now_ms + pause_ms - 1) && rebalance.may_begin(now_ms + pause_ms));
        pause_ms
    }

    #[test]
    fn where_nothing_can_move_it_looks_ever_more_seldom_for_whichever_rank() {
        let mut rebalance = Rebalance::default();
        let mut now_ms = 1_700_000_000_000;
        let mut pauses = Vec::new();
        for turn in 0..10 {
            rebalance.turn_to(turn % 2);
            pauses.push(way(&mut rebalance, now_ms, false) / PAUSE_MS);
            now_ms += LONGEST_PAUSE_MS;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64, 64, 64]);
        // What moved counts, whichever tiers it was from.
        way(&mut rebalance, now_ms, true);
        rebalance.turn_to(7);
        assert_eq!(way(&mut rebalance, now_ms + LONGEST_PAUSE_MS, true), PAUSE_MS);
        rebalance.turn_to(7);
        assert_eq!(way(&mut rebalance, now_ms + 2 * LONGEST_PAUSE_MS, false), PAUSE_MS);
    }

    #[test]
    fn the_coldest_are_kept_and_the_others_looked_for_again_at_once() {
        let mut rebalance = Rebalance::default();
        way(&mut rebalance, 1_700_000_000_000, true);
        (0..10).for_each(|number| rebalance.found(id(number), 100 - number, 4));
        assert_eq!(rebalance.coldest_ones(9).map(|(_, id)| id.number).collect::<Vec<_>>(), [9, 8, 7, 6]);
        assert!(!rebalance.may_begin(1_700_000_000_001), "those come first");
        rebalance.files.clear();
        assert!(rebalance.may_begin(1_700_000_000_001));
    }
}
