//! Moves for the sake of reads: PM and DRAM are to serve their shares of the reads.
//!
//! If most reads of the last four seconds came from PM, its most-read data moves to disk, and into DRAM, which serves
//! it from then on. If most came from tiers, their most-read data is promoted, while PM has room below its threshold
//! (TPFS, equation 2, 5.2 and 5.4). Under the same condition blocks that DRAM [does not have](crate::stats::misses) are
//! promoted, whether reads are in balance or not.

use std::ops::ControlFlow;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{
    BLOCK_SIZE, Block, Draw, Error, FileBlock, InodeId, Kind, Place, PlacedExtent, Result, Tiered,
};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;
use nacre_policy::Flow;
use nacre_policy::migration::tpfs::Reads;
use nacre_policy::migration::{Choice, Chosen, Migration, Need};
use nacre_policy::temperature::Span;

use crate::engine::Mover;
use crate::engine::batch::Batch;
use crate::engine::budget::Budget;
use crate::engine::executor::{Moved, Outcome, Why};
use crate::engine::progress::{Doing, Way};
use crate::engine::state::{Current, State};
use crate::stats::misses::Windows;
use crate::stats::samples::millis;

/// Bytes that move at once, because an operation that needs space may be waiting for the mover.
const AT_ONCE: u64 = 16 << 20;

/// Usage stays this many percent below the threshold above which blocks move down again.
const ROOM: f64 = 2.0;

/// Blocks that are promoted together, where none of them is in DRAM: a disk takes hardly longer for 64 KiB than for 4.
const WINDOW: u64 = 16;

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Mover<'_, L, D> {
    /// Moves blocks for the sake of reads, where these ask for it; gives their number.
    pub(crate) fn balance(&self, state: &mut State, now_ms: u64, budget: &Budget<'_>) -> Result<u64> {
        if !self.places.has_tiers() {
            return Ok(0);
        }
        // Also where nothing moves for it: it may again, and then what was read until then is no second's.
        let (pm, tiers) = self.stats.samples.reads();
        let (missed, windows) = self.stats.misses.take();
        let dram = self.places.tiers.pages().capacity() / BLOCK_SIZE;
        state.tpfs.balance.second(now_ms, Reads { pm, tiers, missed }, dram);
        if !self.places.settings.now().options.balance {
            return Ok(0);
        }
        let promoted = self.promote_missed(state, windows, budget);
        state.tpfs.balance.begin_turn(AT_ONCE / BLOCK_SIZE);
        let (mut hot, mut moved) = (None, 0);
        while budget.goes_on() && state.tpfs.balance.turn() > 0 && budget.blocks() > 0 && self.may_move() {
            let went = match state.tpfs.balance.flow() {
                Some(Flow::ToDram) => self.move_hottest_to_dram(state, &mut hot, budget)?,
                Some(Flow::ToPm) => self.promote_hottest(state, budget)?,
                None => None,
            };
            let Some(blocks) = went else { break };
            moved += blocks;
        }
        Ok(promoted? + moved)
    }

    /// Moves the data of PM that was read last to the fastest tier that has room, and into DRAM, as one batch of one
    /// file after another. `hot` is the file whose rest comes next. `None` when nothing more was read, or DRAM is full:
    /// data without room there would be read from disk, or would displace other data.
    fn move_hottest_to_dram(
        &self,
        state: &mut State,
        hot: &mut Option<Current<L::Node>>,
        budget: &Budget<'_>,
    ) -> Result<Option<u64>> {
        let usage = self.usage_for(Need::Reads, self.stats.samples.time_ms());
        let next = |state: &mut State| match state.tpfs.choose(&usage) {
            Choice::ToDram(chosen) => ControlFlow::Continue(Some(chosen)),
            _ => ControlFlow::Break(()),
        };
        let pages = self.places.tiers.pages();
        let room = pages.capacity().saturating_sub(pages.bytes()) / BLOCK_SIZE;
        let most = room.min(state.tpfs.balance.turn());
        let mut batch = Batch::default();
        let gathered = self.gather(state, hot, &next, (budget.blocks(), most), budget, &mut batch);
        if gathered.is_err() {
            *hot = None;
        }
        if batch.is_empty() {
            return gathered.map(|_| None);
        }
        let _doing = self.begin(batch.doing(Way::Lowered));
        let (mut moved, mut failure) = (0, gathered.err());
        for (id, outcome) in self.places.place_batch(batch, Why::Reads, &Budget::default()) {
            match outcome {
                Outcome::Moved(placed) => moved += placed.moved,
                stays => {
                    hot.take_if(|hot| hot.chosen.file == id);
                    failure = failure.or(state.passed_by(id, stays));
                }
            }
        }
        self.engine.counts.lowered.fetch_add(moved, Ordering::Relaxed);
        state.tpfs.balance.account(moved);
        budget.spend(moved);
        failure.map_or(Ok(Some(moved)), Err)
    }

    /// Promotes the data of tiers that was read last. `None` when nothing more was read.
    fn promote_hottest(&self, state: &mut State, budget: &Budget<'_>) -> Result<Option<u64>> {
        let usage = self.usage_for(Need::Reads, self.stats.samples.time_ms());
        let Choice::Promote(hot) = state.tpfs.choose(&usage) else { return Ok(None) };
        let (moved, failure) = self.promote_hot(state, &hot, budget);
        if moved > 0 {
            self.note_promoted(state, hot.file, moved);
        }
        failure.map_or(Ok(Some(moved)), Err)
    }

    /// So many blocks of a file were promoted, and may be demoted again.
    pub(crate) fn note_promoted(&self, state: &mut State, id: InodeId, blocks: u64) {
        self.engine.counts.raised.fetch_add(blocks, Ordering::Relaxed);
        if let Ok(attr) = self.places.layout.node(id).and_then(|node| self.places.layout.getattr(&node)) {
            state.tpfs.on_pm.found(id, attr.size.div_ceil(BLOCK_SIZE), millis(attr.mtime));
        }
    }

    /// Promotes the hot blocks of a file, group by group, while there is room; gives the number of blocks that moved,
    /// and the error.
    fn promote_hot(
        &self,
        state: &mut State,
        hot: &Chosen<InodeId>,
        budget: &Budget<'_>,
    ) -> (u64, Option<Error>) {
        let mut moved = 0;
        let done = self.places.layout.node(hot.file).and_then(|node| {
            if self.places.is_pinned(&node) {
                return Ok(());
            }
            let _doing = self.begin(Doing { inode: hot.file.number, files: 1, way: Way::Raised });
            let mut at = 0;
            while let Some(group) = self.next_group(&node, hot, at)? {
                let len = group.len.min(state.tpfs.balance.turn()).min(self.room_below_threshold());
                if len == 0 || budget.blocks() == 0 {
                    state.tpfs.balance.end_turn();
                    break;
                }
                at = group.start + len;
                let start = FileBlock(group.start);
                let mut total = Moved::default();
                let all = |_| true;
                let came = self.places.promote_onto(&node, start, len, Draw::Available, all, &mut total);
                moved += total.moved;
                state.tpfs.balance.account(total.moved);
                budget.spend(total.moved);
                came?;
            }
            Ok(())
        });
        (moved, done.err().and_then(|error| state.passed_by(hot.file, error.into())))
    }

    /// Blocks of PM that may be taken without any that would have to move down for it.
    pub(crate) fn room_below_threshold(&self) -> u64 {
        let share = (self.threshold() - ROOM - self.places.usage()).max(0.0) / 100.0;
        (share * self.places.layout.stat().blocks as f64) as u64
    }

    /// Promotes the blocks that readers waited for, if that is worth it and there is room; gives the number of blocks.
    /// A window that fails does not stop the others, and its error comes behind them.
    pub(crate) fn promote_missed(
        &self,
        state: &mut State,
        windows: Windows,
        budget: &Budget<'_>,
    ) -> Result<u64> {
        let (mut total, mut failure) = (0, None);
        for ((id, window), missed) in windows {
            let most = state.tpfs.balance.left_of_missed().min(self.room_below_threshold());
            if most < WINDOW || budget.blocks() == 0 || !self.may_move() || !budget.goes_on() {
                break;
            }
            let (moved, error) = self.promote_window(id, window * WINDOW, missed);
            if moved > 0 {
                total += moved;
                state.tpfs.balance.account_missed(moved);
                budget.spend(moved);
                self.note_promoted(state, id, moved);
            }
            if let Some(error) = error {
                failure = state.passed_by(id, error.into()).or(failure);
            }
        }
        failure.map_or(Ok(total), Err)
    }

    /// Promotes the blocks of a window that readers waited for, or would; if that fails, only the former. Gives the
    /// number of blocks, and the error.
    fn promote_window(&self, id: InodeId, start: u64, missed: u16) -> (u64, Option<Error>) {
        let mut total = Moved::default();
        let promoted = self.places.layout.node(id).and_then(|node| {
            if self.places.is_pinned(&node) {
                return Ok(());
            }
            let _doing = self.begin(Doing { inode: id.number, files: 1, way: Way::Raised });
            let mut promote = |with_neighbours: bool| -> Result<()> {
                for Span { start, len } in self.worth_promoting(&node, start, missed, with_neighbours)? {
                    let (start, all) = (FileBlock(start), |_| true);
                    self.places.promote_onto(&node, start, len, Draw::Available, all, &mut total)?;
                }
                Ok(())
            };
            match promote(true) {
                Err(error) if error.kind() == Kind::Media => promote(false),
                other => other,
            }
        });
        (total.moved, promoted.err())
    }

    /// Blocks of a window that are on tiers and were missed or, with its neighbours, are not in DRAM.
    fn worth_promoting(
        &self,
        node: &L::Node,
        start: u64,
        missed: u16,
        with_neighbours: bool,
    ) -> Result<Vec<Span>> {
        let mut spans: Vec<Span> = Vec::new();
        for PlacedExtent { start: first, len, place } in
            self.places.layout.resolve(node, FileBlock(start), WINDOW)?
        {
            let Place::Tier { tier, block } = place else { continue };
            for at in first.0.max(start)..(first.0 + len).min(start + WINDOW) {
                let was_missed = missed & 1 << (at - start) != 0;
                let is_in_dram = || self.places.tiers.pages().has(tier, Block(block.0 + (at - first.0)));
                if !was_missed && (!with_neighbours || is_in_dram()) {
                    continue;
                }
                match spans.last_mut() {
                    Some(last) if last.end() == at => last.len += 1,
                    _ => spans.push(Span { start: at, len: 1 }),
                }
            }
        }
        Ok(spans)
    }
}
