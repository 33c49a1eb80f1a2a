//! Moves for the sake of reads: PM and DRAM are to serve their shares of the reads.
//!
//! If most reads of the last four seconds came from PM, its most-read data moves to disk, and into DRAM, which serves
//! it from then on. If most came from tiers, their most-read data is promoted, while PM has room below its threshold
//! (TPFS, equation 2, 5.2 and 5.4). Under the same condition blocks that DRAM [does not have](crate::missed) are
//! promoted, whether reads are in balance or not.

use std::ops::ControlFlow;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{BLOCK_SIZE, Durability, Error, FileBlock, InodeId, Kind, Result, Tiered};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;
use nacre_policy::{Dataflow, DiskReads, Flow};

use crate::batch::{Batch, Part};
use crate::budget::Budget;
use crate::fs::MoverFs;
use crate::keeper::{Current, Keeper, Why};
use crate::status::{Doing, Way};
use crate::watch::{Chosen, millis};

/// Divisor of the DRAM for blocks of tiers: this share of it takes in data of PM in a second, before the effect is
/// looked at.
const DRAM_SHARE: u64 = 4;
/// Bytes that are promoted in a second, at most.
const UP_IN_A_SECOND: u64 = 256 << 20;
/// Bytes that move at once, because an operation that needs space may be waiting for the mover.
const AT_ONCE: u64 = 16 << 20;
/// Usage stays this many percent below the threshold above which blocks move down again.
const ROOM: f64 = 2.0;
const SECOND_MS: u64 = 1000;

/// The statistics of reads.
#[derive(Debug, Default)]
pub(crate) struct Balance {
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
struct Reads {
    memory: u64,
    /// From tiers, or from DRAM before them.
    tiers: u64,
    /// Those of them that a disk was waited for, where not in order.
    missed: u64,
}

impl Balance {
    /// Takes in how much was read so far, with so many bytes of DRAM for blocks of tiers. When a second is over, there is a
    /// new answer.
    fn look(&mut self, now_ms: u64, read: Reads, dram: u64) {
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

impl Keeper {
    /// So many blocks were moved for the sake of reads.
    fn account(&mut self, blocks: u64) {
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
                self.heats.forget(id);
                self.below.forget(id);
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

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> MoverFs<L, D> {
    /// Moves blocks for the sake of reads, where these ask for it; gives their number.
    pub(crate) fn balance(&self, keeper: &mut Keeper, now_ms: u64, budget: &Budget<'_>) -> Result<u64> {
        if !self.sink.is_on() {
            return Ok(0);
        }
        // Also where nothing moves for it: it may again, and then what was read until then is no second's.
        let (memory, tiers) = self.sink.reads();
        let (missed, windows) = self.missed.take();
        keeper.balance.look(now_ms, Reads { memory, tiers, missed }, self.tiers.pages().capacity());
        if !self.balances() {
            return Ok(0);
        }
        let raised = self.raise_missed(keeper, windows, budget);
        keeper.balance.turn = keeper.balance.left.min(AT_ONCE / BLOCK_SIZE);
        let (mut hot, mut moved) = (None, 0);
        while budget.goes_on() && keeper.balance.turn > 0 && budget.blocks() > 0 && self.may_move() {
            let went = match keeper.balance.flow {
                Some(Flow::ToDram) => self.lower_hottest(keeper, &mut hot, budget)?,
                Some(Flow::ToPm) => self.raise_hottest(keeper, budget)?,
                None => None,
            };
            let Some(blocks) = went else { break };
            moved += blocks;
        }
        Ok(raised? + moved)
    }

    /// Moves the data of PM that was read last to the fastest tier that has room, and into DRAM, as one batch of one
    /// file after another. `hot` is the file whose rest comes next. `None` when nothing more was read, or DRAM is full:
    /// data without room there would be read from disk, or would displace other data.
    fn lower_hottest(
        &self,
        keeper: &mut Keeper,
        hot: &mut Option<Current<L::Node>>,
        budget: &Budget<'_>,
    ) -> Result<Option<u64>> {
        let rules = self.settings.now().options.rules;
        let next = |keeper: &mut Keeper| match keeper.heats.hottest(Some(&rules)) {
            Some(chosen) => ControlFlow::Continue(Some(chosen)),
            None => ControlFlow::Break(()),
        };
        let pages = self.tiers.pages();
        let room = pages.capacity().saturating_sub(pages.bytes()) / BLOCK_SIZE;
        let most = room.min(keeper.balance.turn);
        let mut batch = Batch::default();
        let gathered = self.gather(keeper, hot, &next, (budget.blocks(), most), budget, &mut batch);
        if gathered.is_err() {
            *hot = None;
        }
        let Some(first) = batch.parts().first().map(Part::id) else { return gathered.map(|_| None) };
        let files = batch.parts().len() as u64;
        let _doing = self.begin(Doing { inode: first.number, files, way: Way::Lowered });
        let (mut moved, mut failure) = (0, gathered.err());
        for (id, placed) in self.place_batch(batch, Why::Reads, &Budget::default()) {
            match placed {
                Ok(placed) => moved += placed.moved,
                Err(error) => {
                    hot.take_if(|hot| hot.chosen.id == id);
                    failure = failure.or(keeper.passed_by(id, error));
                }
            }
        }
        self.lowered.fetch_add(moved, Ordering::Relaxed);
        keeper.account(moved);
        budget.spend(moved);
        failure.map_or(Ok(Some(moved)), Err)
    }

    /// Promotes the data of tiers that was read last. `None` when nothing more was read.
    fn raise_hottest(&self, keeper: &mut Keeper, budget: &Budget<'_>) -> Result<Option<u64>> {
        let Some(hot) = keeper.below.hottest(None) else { return Ok(None) };
        let (moved, failure) = self.raise(keeper, &hot, budget);
        if moved > 0 {
            self.note_raised(keeper, hot.id, moved);
        }
        failure.map_or(Ok(Some(moved)), Err)
    }

    /// So many blocks of a file came up, and may move down again.
    pub(crate) fn note_raised(&self, keeper: &mut Keeper, id: InodeId, blocks: u64) {
        self.raised.fetch_add(blocks, Ordering::Relaxed);
        if let Ok(attr) = self.layout.node(id).and_then(|node| self.layout.getattr(&node)) {
            keeper.heats.found(id, attr.size.div_ceil(BLOCK_SIZE), millis(attr.mtime));
        }
    }

    /// Promotes the hot blocks of a file, group by group, while there is room; gives the number of blocks that moved,
    /// and the error.
    fn raise(&self, keeper: &mut Keeper, hot: &Chosen, budget: &Budget<'_>) -> (u64, Option<Error>) {
        let mut moved = 0;
        let done = self.layout.node(hot.id).and_then(|node| {
            if self.is_pinned(&node) {
                return Ok(());
            }
            let _doing = self.begin(Doing { inode: hot.id.number, files: 1, way: Way::Raised });
            let mut at = 0;
            while let Some(group) = self.next_group(&node, hot, at)? {
                let len = group.len.min(keeper.balance.turn).min(self.room_below_threshold());
                if len == 0 || budget.blocks() == 0 {
                    keeper.balance.turn = 0;
                    break;
                }
                at = group.start + len;
                let start = FileBlock(group.start);
                let blocks = self.bring_up_from(&node, start, len, Durability::Now, |_| true)?.moved;
                moved += blocks;
                keeper.account(blocks);
                budget.spend(blocks);
            }
            Ok(())
        });
        (moved, done.err().and_then(|error| keeper.passed_by(hot.id, error)))
    }

    /// Blocks of persistent memory that may be taken without any that would have to move down for it.
    pub(crate) fn room_below_threshold(&self) -> u64 {
        let share = (self.threshold() - ROOM - self.usage()).max(0.0) / 100.0;
        (share * self.layout.stat().blocks as f64) as u64
    }
}

#[cfg(test)]
mod tests {
    use nacre_engine::BLOCK_SIZE;
    use nacre_policy::Flow;

    use super::{Balance, DRAM_SHARE, Reads, UP_IN_A_SECOND};

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
}
