//! Demotion of the coldest data on PM, as batches.

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::ControlFlow;

use nacre_engine::sync::atomic::Ordering;
use nacre_engine::{Error, FileBlock, FileKind, InodeId, Kind, Place, Result, Tiered};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;
use nacre_policy::migration::tpfs::Left;
use nacre_policy::migration::{Chosen, Usage};
use nacre_policy::temperature::Span;

use crate::engine::Mover;
use crate::engine::batch::Batch;
use crate::engine::budget::Budget;
use crate::engine::executor::{Outcome, Why};
use crate::engine::progress::Way;
use crate::engine::state::{Current, Next, State};

/// The outcome of a relocation of cold data.
pub(crate) struct Placed {
    outcomes: Vec<(InodeId, Outcome)>,
    /// The blocks of each file that were to move.
    blocks: HashMap<InodeId, u64>,
}

/// The result of a batch.
pub(crate) struct Went {
    /// Blocks that are on a tier now.
    pub(crate) moved: u64,
    /// The error of a part of it, if there is one.
    pub(crate) failure: Option<Error>,
    /// There was nothing to move.
    pub(crate) is_over: bool,
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Mover<'_, L, D> {
    /// Demotes the coldest data as one batch: until it is `wanted` blocks, a group, or all that there is. It may be
    /// less if the budget is over.
    pub(crate) fn demote_batch(
        &self,
        state: &mut State,
        cold: &mut Option<Current<L::Node>>,
        usage: &Usage,
        (wanted, why): (u64, Why),
        budget: &Budget<'_>,
    ) -> Went {
        let (batch, mut went) = self.gather_cold(state, cold, usage, (wanted, why), budget);
        if !batch.is_empty() {
            let placed = self.place_cold(batch, why);
            self.settle_cold(state, cold, placed, &mut went);
        }
        went
    }

    /// Gathers the coldest data, and demotes blocks of it that were never written.
    pub(crate) fn gather_cold(
        &self,
        state: &mut State,
        cold: &mut Option<Current<L::Node>>,
        usage: &Usage,
        (wanted, why): (u64, Why),
        budget: &Budget<'_>,
    ) -> (Batch<L::Node>, Went) {
        if self.places.settings.has_anticache() {
            let (batch, failure) = self.gather_unused(state, wanted);
            if !batch.is_empty() || failure.is_some() {
                return (batch, Went { moved: 0, failure, is_over: false });
            }
            // Blocks that its list does not know are found as without it.
        }
        let mut batch = Batch::default();
        // Blocks of a file that were never written go first: nothing is copied.
        let unwritten = Cell::new(0);
        let next = |state: &mut State| {
            if unwritten.get() >= wanted {
                return ControlFlow::Break(());
            }
            let next = self.next_cold(state, usage);
            if let ControlFlow::Continue(Some(chosen)) = &next {
                let missing = wanted - unwritten.get();
                unwritten.set(unwritten.get() + self.demote_unwritten_of(chosen, missing, why));
            }
            next
        };
        let gathered = self.gather(state, cold, &next, (wanted, u64::MAX), budget, &mut batch);
        let unwritten = unwritten.get();
        self.engine.counts.moved.fetch_add(unwritten, Ordering::Relaxed);
        let is_over = batch.is_empty() && unwritten == 0 && matches!(gathered, Ok(ControlFlow::Break(())));
        let went = Went { moved: unwritten, failure: gathered.err(), is_over };
        if went.failure.is_some() {
            // Others come first, or one that cannot be read would be tried for ever.
            state.tpfs.scan.leave(Left::Failed);
            *cold = None;
        }
        if !batch.is_empty() {
            self.note_queue(state);
        }
        (batch, went)
    }

    /// Relocates cold data; needs no state.
    pub(crate) fn place_cold(&self, batch: Batch<L::Node>, why: Why) -> Placed {
        let _doing = self.begin(batch.doing(Way::Space));
        let blocks = batch.parts().iter().map(|part| (part.id(), part.blocks())).collect();
        Placed { outcomes: self.places.place_batch(batch, why, &Budget::default()), blocks }
    }

    /// Has the policy know what stays of a relocation.
    pub(crate) fn settle_cold(
        &self,
        state: &mut State,
        cold: &mut Option<Current<L::Node>>,
        placed: Placed,
        went: &mut Went,
    ) {
        let before = went.moved;
        for (id, outcome) in placed.outcomes {
            let error = match outcome {
                Outcome::Moved(moved) => {
                    went.moved += moved.moved;
                    if moved.moved + moved.changed < placed.blocks[&id] {
                        // The tier has no room for the rest: it begins anew with the next one.
                        cold.take_if(|cold| cold.chosen.file == id);
                        state.put_back_file(id);
                    }
                    continue;
                }
                Outcome::Mapped(_) => {
                    cold.take_if(|cold| cold.chosen.file == id);
                    continue;
                }
                Outcome::Full(error) => {
                    state.put_back_file(id);
                    error
                }
                Outcome::Gone(error) | Outcome::Failed(error) => {
                    state.tpfs.scan.leave(Left::Failed);
                    // Its list has given them up.
                    state.anticache.miss();
                    error
                }
            };
            cold.take_if(|cold| cold.chosen.file == id);
            // That there was no room for all is told only when nothing else is.
            if went.failure.as_ref().is_none_or(|before| before.kind() == Kind::NoSpace) {
                went.failure = Some(error);
            }
        }
        let counts = &self.engine.counts;
        let count = if self.places.settings.has_anticache() { &counts.evicted } else { &counts.moved };
        count.fetch_add(went.moved - before, Ordering::Relaxed);
        // The blocks that did move made room.
        went.failure.take_if(|error| error.kind() == Kind::NoSpace && went.moved > 0);
    }

    /// Gathers the next blocks to move, of one file after another, which come from `next`: until it is `enough` blocks,
    /// and never more than `most`. `Break` is that there is nothing more, or that it may not go on looking.
    pub(crate) fn gather(
        &self,
        state: &mut State,
        current: &mut Option<Current<L::Node>>,
        next: &dyn Fn(&mut State) -> Next,
        (enough, most): (u64, u64),
        budget: &Budget<'_>,
        batch: &mut Batch<L::Node>,
    ) -> Result<ControlFlow<()>> {
        while batch.blocks() < enough.min(most) {
            let Some(file) = current else {
                match next(state) {
                    ControlFlow::Continue(Some(chosen)) => *current = self.hold_chosen(state, chosen)?,
                    ControlFlow::Continue(None) if budget.goes_on() => {}
                    _ => return Ok(ControlFlow::Break(())),
                }
                continue;
            };
            let Some(group) = self.next_group(&file.node, &file.chosen, file.at)? else {
                *current = None;
                continue;
            };
            let range = (FileBlock(group.start), group.len.min(most - batch.blocks()));
            if !self.places.add_to(batch, &file.node, range, |place| matches!(place, Place::Pm(_)))? {
                break;
            }
            file.at = group.start + range.1;
            if !batch.is_empty() && !budget.goes_on() {
                break;
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Holds a file that was chosen; `None` when it is gone, or stays.
    fn hold_chosen(&self, state: &mut State, chosen: Chosen<InodeId>) -> Result<Option<Current<L::Node>>> {
        match self.places.layout.node(chosen.file) {
            Err(error) if error.kind() == Kind::Stale => {
                state.tpfs.on_pm.forget(chosen.file);
                Ok(None)
            }
            node => {
                let node = node?;
                Ok((!self.places.is_pinned(&node)).then_some(Current { chosen, node, at: 0 }))
            }
        }
    }

    /// The next group of the chosen blocks that has data, from `at` on.
    pub(crate) fn next_group(
        &self,
        node: &L::Node,
        chosen: &Chosen<InodeId>,
        mut at: u64,
    ) -> Result<Option<Span>> {
        for span in &chosen.spans {
            if span.end() <= at {
                continue;
            }
            match self.places.next_data(node, at.max(span.start))? {
                Some(data) if data < span.end() => {
                    let group =
                        self.without_held(chosen.file, span.group(data, self.places.settings.group()));
                    if group.len > 0 {
                        return Ok(Some(group));
                    }
                    return self.next_group(node, chosen, data + 1);
                }
                Some(data) => at = data,
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    /// A group up to the first of its blocks that stays.
    fn without_held(&self, id: InodeId, group: Span) -> Span {
        let held = self.engine.held.lock();
        let inside =
            held.iter().filter(|(of, block)| *of == id && (group.start..group.end()).contains(block));
        let end = inside.map(|(_, block)| *block).min().unwrap_or(group.end());
        Span { start: group.start, len: end - group.start }
    }

    /// The same for a file that was chosen to move, if it may.
    pub(crate) fn demote_unwritten_of(&self, chosen: &Chosen<InodeId>, most: u64, why: Why) -> u64 {
        let Ok(node) = self.places.layout.node(chosen.file) else { return 0 };
        // One that is too young to move has nothing that moves.
        if chosen.spans.is_empty()
            || !self.places.has_unwritten(&node)
            || self.places.is_pinned(&node)
            || self.places.layout.kind(&node) != FileKind::Regular
        {
            return 0;
        }
        self.places.demote_unwritten(&node, most, why)
    }
}
