//! The background pass: when blocks move, so that PM does not become full.
//!
//! Above the utilisation threshold (TPFS, equation 1), data that was not written for longest moves to the fastest tier
//! that has room, until usage is below it. The hours and the rate of the mover bound it; direct reclaim does not wait
//! for either.

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{Result, Tiered};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;
use nacre_policy::migration::Need;
use nacre_policy::migration::tpfs::Left;
use nacre_policy::thresholds::utilisation_threshold;

use crate::engine::Mover;
use crate::engine::budget::Budget;
use crate::engine::executor::Why;
use crate::engine::progress::{Doing, Moving};
use crate::engine::state::{Current, State};

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Mover<'_, L, D> {
    /// See [`TieredFs::tick`](crate::TieredFs::tick).
    pub(crate) fn tick(&self, now_ms: u64, budget: &Budget<'_>) -> Result<u64> {
        let mut state = self.engine.state.lock();
        self.stats.samples.set_time(now_ms);
        self.places.tiers.set_time(now_ms);
        self.update_large_writes();
        self.take_in(&mut state);
        state.allow(&self.engine.allowance, self.places.settings.rate(), now_ms);
        let is_over = || !budget.goes_on() || self.places.is_awaited();
        let free = Budget::within(&is_over, &self.engine.allowance);
        let hinted = self.follow_hints(&mut state, &free);
        if self.places.settings.has_anticache() {
            return Ok(hinted + self.anticache(&mut state, now_ms, &free)?);
        }
        let mut cold = None;
        // Some of them: the demotion from PM behind that, for as long as it takes, would leave no time for it.
        let rebalanced = self.rebalance(&mut state, now_ms, &free);
        let demoted = self.demote_coldest(&mut state, &mut cold, (now_ms, budget), &free);
        state.put_back(cold);
        self.compact_cold(&mut state, now_ms, &free);
        let balanced = self.balance(&mut state, now_ms, &free);
        Ok(hinted + demoted? + balanced? + rebalanced?)
    }

    /// Demotes the coldest data while usage is above the threshold, and as much as is allowed; gives the number of
    /// blocks.
    fn demote_coldest(
        &self,
        state: &mut State,
        cold: &mut Option<Current<L::Node>>,
        (now_ms, budget): (u64, &Budget<'_>),
        free: &Budget<'_>,
    ) -> Result<u64> {
        let mut moved = 0;
        if self.places.usage() <= self.threshold() {
            // Nothing is to move: that something could not is over.
            state.failure = None;
        }
        while budget.goes_on() && self.is_too_full() && free.blocks() > 0 {
            let wanted = self.excess().clamp(1, free.blocks());
            let usage = self.usage_for(Need::Threshold, now_ms);
            let went = self.demote_batch(state, cold, &usage, (wanted, Why::Space), free);
            moved += went.moved;
            free.spend(went.moved);
            state.failure = went.failure.as_ref().map(ToString::to_string);
            if went.is_over && went.failure.is_none() {
                break;
            }
            if let Some(failure) = went.failure {
                return Err(failure);
            }
            if self.places.is_awaited() {
                break;
            }
        }
        Ok(moved)
    }

    /// Blocks that are in use above the threshold.
    fn excess(&self) -> u64 {
        let share = (self.places.usage() - self.threshold()).max(0.0) / 100.0;
        (share * self.places.layout.stat().blocks as f64).ceil() as u64
    }

    /// See [`TieredFs::threshold`](crate::TieredFs::threshold).
    pub(crate) fn threshold(&self) -> f64 {
        let (read, written) = self.stats.samples.recent_traffic();
        utilisation_threshold(read, written)
    }

    /// Whether cold blocks are to move down.
    pub(crate) fn is_too_full(&self) -> bool {
        self.places.has_tiers() && self.places.usage() > self.threshold() && self.may_move()
    }

    /// Whether blocks may move by themselves at the time of the last tick.
    pub(crate) fn is_in_hours(&self) -> bool {
        self.places.settings.now().is_in_hours(self.stats.samples.time_ms())
    }

    /// Whether blocks may move whose space is not needed at once.
    pub(crate) fn may_move(&self) -> bool {
        !self.engine.paused.load(Ordering::Relaxed) && self.is_in_hours() && !self.places.usable().is_empty()
    }

    /// Finds out whether PM is used so much that large asynchronous writes go to disk now.
    pub(crate) fn update_large_writes(&self) {
        let threshold = self.places.settings.now().disk_threshold(self.threshold());
        self.engine
            .large_to_disk
            .store(threshold.is_none_or(|above| self.places.usage() > above), Ordering::Relaxed);
    }

    pub(crate) fn take_in(&self, state: &mut State) {
        let (samples, lost) = (self.stats.samples.take(), self.stats.samples.lost());
        let has_anticache = self.places.settings.has_anticache();
        for sample in &samples {
            state.observe(sample);
            if has_anticache {
                state.anticache.observe(sample);
            }
        }
        // Only a scan of all files tells which ones were not sampled, or had no room in the lists. The sampled ones are
        // known.
        let is_lost = std::mem::replace(&mut state.lost, lost) != lost;
        if self.engine.scan_again.swap(false, Ordering::Relaxed) || is_lost || state.tpfs.on_pm.has_dropped()
        {
            state.tpfs.scan.leave(Left::Movable);
            state.anticache.miss();
        }
        if !has_anticache {
            // It may be on again later, and saw none of these accesses.
            state.anticache.miss();
        }
        self.note_queue(state);
    }

    /// Whether as much was moved as the limit allows for now.
    pub(crate) fn is_limited(&self) -> bool {
        self.places.settings.rate().is_some() && self.engine.allowance.load(Ordering::Relaxed) <= 0
    }

    /// Says of a file that its blocks move.
    pub(crate) fn begin(&self, doing: Doing) -> Moving<'_> {
        Moving::begin(&self.engine.doing, doing)
    }

    /// Sends large asynchronous writes to disk if they always go there. Otherwise the next tick decides.
    pub(crate) fn steer(&self) {
        let is_always = self.places.settings.now().disk_threshold(self.threshold()).is_none();
        self.engine.large_to_disk.store(is_always, Ordering::Relaxed);
    }
}
