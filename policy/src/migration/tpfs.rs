//! The policy of TPFS (paper 002, section 5). Cold data leaves PM while it is used above its threshold. If most reads of
//! the last four seconds came from PM, its read-hottest data goes to DRAM; if most came from tiers, theirs is promoted.

use std::hash::Hash;

use crate::migration::heat::AccessStatistics;
use crate::migration::{Access, AccessKind, Choice, Migration, Need, PAUSE_MS, Usage};
use crate::thresholds::{Dataflow, DiskReads, Flow};

/// The files that a scan passed by and another one may find.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Left {
    /// None.
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

/// Blocks that are promoted in a second, at most: 256 MiB.
const UP_IN_A_SECOND: u64 = 1 << 16;

const SECOND_MS: u64 = 1000;

/// The statistics of reads.
#[derive(Debug, Default)]
pub struct Balance {
    dataflow: Dataflow,
    disk_reads: DiskReads,
    /// The direction that the last four seconds ask for.
    flow: Option<Flow>,
    /// Blocks that may move for that until the second is over.
    left: u64,
    /// Blocks of these that may move before it is looked again.
    turn: u64,
    /// Blocks that may move up until the second is over because a disk was waited for.
    left_of_missed: u64,
    began_ms: u64,
    /// Bytes that were read when it began.
    read: Reads,
}

/// Bytes that were read until now.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reads {
    /// From PM.
    pub pm: u64,
    /// From tiers, or from DRAM before them.
    pub tiers: u64,
    /// Those of them that a disk was waited for, where not in order.
    pub missed: u64,
}

impl Balance {
    /// Takes in how much was read so far, with so many blocks of DRAM for blocks of tiers. When a second is over, there
    /// is a new answer.
    pub fn second(&mut self, now_ms: u64, read: Reads, dram: u64) {
        if now_ms.saturating_sub(self.began_ms) < SECOND_MS {
            return;
        }
        let pm = read.pm.saturating_sub(self.read.pm);
        let tiers = read.tiers.saturating_sub(self.read.tiers);
        let missed = read.missed.saturating_sub(self.read.missed);
        (self.began_ms, self.read) = (now_ms, read);
        self.flow = self.dataflow.second(pm, tiers);
        let is_waited_for = self.disk_reads.second(pm.saturating_add(tiers), missed);
        self.left_of_missed = if is_waited_for { UP_IN_A_SECOND } else { 0 };
        self.left = match self.flow {
            None => 0,
            Some(Flow::ToDram) => dram / DRAM_SHARE,
            Some(Flow::ToPm) => UP_IN_A_SECOND,
        };
    }

    /// The direction in which reads want their most-read data to move.
    pub fn flow(&self) -> Option<Flow> {
        self.flow
    }

    /// As much has moved for that as may in a second.
    pub fn is_spent(&self) -> bool {
        self.left == 0
    }

    /// Blocks that may move up now because a disk was waited for.
    pub fn left_of_missed(&self) -> u64 {
        self.left_of_missed
    }

    /// Begins a turn of at most so many blocks of those that may move.
    pub fn begin_turn(&mut self, most: u64) {
        self.turn = self.left.min(most);
    }

    /// Blocks that may move in this turn.
    pub fn turn(&self) -> u64 {
        self.turn
    }

    /// Ends the turn.
    pub fn end_turn(&mut self) {
        self.turn = 0;
    }

    /// There is no room on PM, or on tiers: nothing more moves in this turn, and nothing because of waits.
    pub fn has_no_room(&mut self) {
        (self.turn, self.left_of_missed) = (0, 0);
    }

    /// So many blocks were moved for the sake of reads.
    pub fn account(&mut self, blocks: u64) {
        let Balance { left, turn, .. } = self;
        (*left, *turn) = (left.saturating_sub(blocks), turn.saturating_sub(blocks));
    }

    /// So many blocks moved up because a disk was waited for.
    pub fn account_missed(&mut self, blocks: u64) {
        let Balance { left_of_missed, left, flow, .. } = self;
        *left_of_missed = left_of_missed.saturating_sub(blocks);
        if *flow == Some(Flow::ToPm) {
            *left = left.saturating_sub(blocks);
        }
    }
}

/// A scan of all files.
#[derive(Debug, Default)]
pub struct Scan {
    /// A scan goes on.
    goes_on: bool,
    /// The files passed by since it began.
    left: Left,
    /// When the last one ended, in milliseconds since 1970.
    ended_ms: Option<u64>,
}

impl Scan {
    /// It has come to its end.
    pub fn end(&mut self, now_ms: u64) {
        (self.goes_on, self.ended_ms) = (false, Some(now_ms));
    }

    /// Something was passed by.
    pub fn leave(&mut self, left: Left) {
        self.left = self.left.max(left);
    }

    /// Another one now would find nothing.
    pub fn is_done(&self) -> bool {
        !self.goes_on && self.ended_ms.is_some() && self.left < Left::Movable
    }

    /// Whether another scan may find something, for the background pass at this time or, without a time, for direct
    /// reclaim.
    fn is_worth_it(&self, now_ms: Option<u64>) -> bool {
        match (self.ended_ms, now_ms) {
            (None, _) => true,
            (Some(_), None) => self.left == Left::Movable,
            (Some(ended), Some(now)) => self.left > Left::Nothing && now.abs_diff(ended) >= PAUSE_MS,
        }
    }
}

/// The policy, and all that it knows.
pub struct Tpfs<F> {
    /// Of files with blocks on PM.
    pub on_pm: AccessStatistics<F>,
    /// Of files that were read from tiers.
    pub on_tiers: AccessStatistics<F>,
    /// Of reads.
    pub balance: Balance,
    /// For files of which nothing is known.
    pub scan: Scan,
}

impl<F: Copy + Ord + Hash> Tpfs<F> {
    /// It knows at most so many files of each kind; `before` as for [`AccessStatistics::new`].
    pub fn new(known_files: usize, before: fn(F) -> F) -> Tpfs<F> {
        Tpfs {
            on_pm: AccessStatistics::new(known_files, before),
            on_tiers: AccessStatistics::new(known_files, before),
            balance: Balance::default(),
            scan: Scan::default(),
        }
    }

    /// Background passes take only those parts that are cold by now, after all files were seen, or as many as can be
    /// known. Direct reclaim takes the files that a step of a scan has found, as wholes.
    fn choose_cold(&mut self, now_ms: Option<u64>) -> Choice<F> {
        let has_enough = match now_ms {
            Some(_) => self.on_pm.room() == 0,
            None => !self.on_pm.is_empty() || self.on_pm.is_any_in_backoff(),
        };
        if self.scan.goes_on && !has_enough {
            return Choice::Scan;
        }
        let cold = match now_ms {
            Some(now_ms) => self.on_pm.coldest(now_ms),
            None => self.on_pm.coldest_whole(),
        };
        if let Some(cold) = cold {
            return Choice::Demote(cold);
        }
        if !self.scan.is_worth_it(now_ms) {
            return Choice::Nothing;
        }
        (self.scan.left, self.scan.goes_on) = (Left::Nothing, true);
        Choice::Scan
    }
}

impl<F: Copy + Ord + Hash> Migration<F> for Tpfs<F> {
    fn observe(&mut self, access: &Access<F>) {
        match access.kind {
            AccessKind::ReadBelow => self.on_tiers.observe(access),
            AccessKind::Read | AccessKind::Written => self.on_pm.observe(access),
        }
    }

    fn choose(&mut self, usage: &Usage) -> Choice<F> {
        match (usage.need, self.balance.flow) {
            (Need::Threshold, _) => self.choose_cold(Some(usage.now_ms)),
            (Need::Reclaim, _) => self.choose_cold(None),
            (Need::Reads, Some(Flow::ToDram)) => {
                self.on_pm.hottest(Some(&usage.rules)).map_or(Choice::Nothing, Choice::ToDram)
            }
            (Need::Reads, Some(Flow::ToPm)) => {
                self.on_tiers.hottest(None).map_or(Choice::Nothing, Choice::Promote)
            }
            (Need::Reads, None) => Choice::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Balance, DRAM_SHARE, Left, PAUSE_MS, Reads, Scan, Tpfs, UP_IN_A_SECOND};
    use crate::migration::{Access, AccessKind, Choice, Migration, Need, Usage};
    use crate::placement::Rules;
    use crate::thresholds::Flow;

    const DRAM: u64 = 1 << 14;

    #[test]
    fn a_second_is_looked_at_once() {
        let mut balance = Balance::default();
        let mut answers = Vec::new();
        for (second, read) in [(1, 100), (2, 200), (3, 300), (4, 400), (5, 500), (6, 500)] {
            for tenth in 0..10 {
                let read = Reads { pm: read, tiers: 0, missed: 0 };
                balance.second(second * 1000 + tenth * 100, read, DRAM);
            }
            answers.push((balance.flow, balance.left));
        }
        let down = (Some(Flow::ToDram), DRAM / DRAM_SHARE);
        assert_eq!(answers, [(None, 0), (None, 0), (None, 0), down, down, (None, 0)]);
        for second in 7..=10 {
            balance.second(second * 1000, Reads { pm: 500, tiers: second * 9, missed: second }, DRAM);
        }
        assert_eq!((balance.flow, balance.left), (Some(Flow::ToPm), UP_IN_A_SECOND));
        assert_eq!(balance.left_of_missed(), UP_IN_A_SECOND);
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
    /// A file that was written at a time, and is read from PM or from a tier.
    fn access(file: u32, kind: AccessKind, at_ms: u64) -> Access<u32> {
        Access { file, kind, start: 0, blocks: 4, size: 4, modified_ms: at_ms, at_ms }
    }

    fn usage(need: Need, now_ms: u64) -> Usage {
        Usage { need, now_ms, rules: Rules::default() }
    }

    #[test]
    fn cold_files_are_demoted_after_a_scan_and_at_once_if_a_write_waits() {
        let mut tpfs = Tpfs::new(10, |file: u32| file + 100);
        let file = |choice| match choice {
            Choice::Demote(chosen) => Some(chosen.file),
            Choice::Scan => None,
            other => panic!("{other:?}"),
        };
        tpfs.observe(&access(1, AccessKind::Written, 1000));
        tpfs.observe(&access(2, AccessKind::Written, 2000));
        // The coldest of those that are known moves, and then a scan begins.
        let late = usage(Need::Threshold, 100_000);
        assert_eq!(file(tpfs.choose(&late)), Some(1));
        assert_eq!((file(tpfs.choose(&late)), file(tpfs.choose(&late))), (Some(2), None));
        tpfs.on_pm.found(3, 4, 500);
        assert_eq!(file(tpfs.choose(&late)), None, "the scan goes on");
        assert_eq!(file(tpfs.choose(&usage(Need::Reclaim, 0))), Some(3));
        tpfs.scan.end(100_000);
        assert_eq!(tpfs.choose(&late), Choice::Nothing);
    }

    #[test]
    fn reads_choose_by_the_place_that_served_them() {
        let mut tpfs = Tpfs::new(10, |file: u32| file + 100);
        for _ in 0..3 {
            tpfs.observe(&access(1, AccessKind::Read, 1000));
        }
        tpfs.observe(&access(2, AccessKind::ReadBelow, 1000));
        let reads = usage(Need::Reads, 0);
        assert_eq!(tpfs.choose(&reads), Choice::Nothing);
        for second in 1..=4 {
            tpfs.balance.second(second * 1000, Reads { pm: second * 100, tiers: 0, missed: 0 }, DRAM);
        }
        assert!(matches!(tpfs.choose(&reads), Choice::ToDram(chosen) if chosen.file == 1));
        for second in 5..=8 {
            tpfs.balance.second(second * 1000, Reads { pm: 400, tiers: second * 100, missed: 0 }, DRAM);
        }
        assert!(matches!(tpfs.choose(&reads), Choice::Promote(chosen) if chosen.file == 2));
        assert_eq!(tpfs.choose(&reads), Choice::Nothing, "until it is read again");
    }
}
