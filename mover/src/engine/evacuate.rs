//! Taking everything from a tier, before it goes.
//!
//! A drain goes by steps. One file is looked at after another, until their blocks on the tier are a group, which moves
//! to other tiers as one [batch](crate::engine::batch). Blocks for which these have no room, or that were written
//! meanwhile, are promoted file by file. The caller may end a drain at any file: the step is cut there, and the rest of
//! it waits as before.

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::ControlFlow;

use nacre_engine::{
    BLOCK_SIZE, DirEntry, Draw, Error, FileBlock, FileKind, InodeId, Kind, Resource, Result, TierState,
    Tiered, size,
};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;

use crate::engine::Mover;
use crate::engine::batch::Batch;
use crate::engine::budget::Budget;
use crate::engine::executor::{Moved, Outcome, Why};
use crate::engine::progress::{Doing, Way};
use crate::places::{Reading, is_on};

/// How far a drain is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drained {
    /// Bytes that are elsewhere now.
    pub moved: u64,
    /// Bytes that are on the tier still.
    pub left: u64,
    /// All files were looked at. Blocks that are left then belong to open files without a name, or were written while
    /// the drain went on.
    pub is_done: bool,
}

/// Groups of a file that are looked at before the next question whether it goes on.
const GROUPS_AT_ONCE: u64 = 4;

/// Files that are looked at before that: most may be elsewhere.
const FILES_AT_ONCE: usize = 4096;

/// The rest of the files to look at.
pub(crate) struct Drain {
    waiting: Vec<Waiting>,
    /// Files that failed; they are tried again when nothing else waits.
    failed: Vec<Waiting>,
    /// Why the first of it did.
    failure: Option<Error>,
    /// Blocks.
    moved: u64,
}

/// A file or directory that was not looked at, or a file from a block on.
struct Waiting {
    id: InodeId,
    kind: FileKind,
    from: u64,
}

/// The files that are drained at once.
struct Step<N> {
    files: Vec<Taking<N>>,
    /// Their blocks on the tier.
    batch: Batch<N>,
}

/// A part of a file, of which everything leaves the tier.
struct Taking<N> {
    id: InodeId,
    node: N,
    from: u64,
    /// Where the next part begins, or none where this is the last one.
    next: Option<u64>,
    /// Something of it is in the batch.
    is_in_batch: bool,
}

impl<N> Taking<N> {
    /// The same file, from a block on.
    fn waits_from(&self, from: u64) -> Waiting {
        Waiting { id: self.id, kind: FileKind::Regular, from }
    }
}

/// The error that the blocks of a tier, `left` of them, have no room elsewhere.
fn no_room(tier: u8, left: u64, room: u64) -> Error {
    let [left_bytes, room_bytes] = [left, room].map(|blocks| size::print(blocks * BLOCK_SIZE));
    let lacking = match left.saturating_sub(room) {
        0 => String::new(),
        blocks => format!(", {} too little", size::print(blocks * BLOCK_SIZE)),
    };
    Error::no_space(Resource::Tiers, left.saturating_sub(room)).operation("drain").object(format!(
        "tier {tier}: {left_bytes} are on it, and other tiers and PM have room for {room_bytes}{lacking}"
    ))
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Mover<'_, L, D> {
    /// See [`TieredFs::drain`](crate::TieredFs::drain).
    pub(crate) fn drain(&self, tier: u8, budget: &Budget<'_>) -> Result<Drained> {
        self.set_state(tier, TierState::Draining)?;
        // Blocks taken of it by then are no file's yet; the next piece sees the state.
        let space = self.places.layout.tier_space(tier)?;
        let left = (space.blocks - space.free) * BLOCK_SIZE;
        if !self.engine.trims.outlast(tier, budget) {
            return Ok(Drained { left, ..Drained::default() });
        }
        let begun = self.engine.drains.lock().insert(tier, None);
        let mut drain = match begun {
            Some(None) => {
                return Err(Error::new(Kind::Busy).operation("drain").object(format!("tier {tier}")));
            }
            Some(Some(drain)) => drain,
            None => {
                let id = self.places.layout.id(&self.places.layout.root());
                let waiting = vec![Waiting { id, kind: FileKind::Directory, from: 0 }];
                Drain { waiting, failed: Vec::new(), failure: None, moved: 0 }
            }
        };
        let result =
            self.drain_files(tier, &mut drain, budget).map_err(|error| self.why_it_cannot_end(tier, error));
        match &result {
            Ok(drained) if drained.is_done => drop(self.engine.drains.lock().remove(&tier)),
            _ => drop(self.engine.drains.lock().insert(tier, Some(drain))),
        }
        result
    }

    /// See [`TieredFs::would_drain`](crate::TieredFs::would_drain).
    pub(crate) fn would_drain(&self, tier: u8) -> Result<()> {
        let space = self.places.layout.tier_space(tier)?;
        let left = space.blocks - space.free;
        let missing = self.places.tiers.attachment(tier).and_then(|at| at.device.err());
        if left > 0
            && let Some(why) = missing
        {
            return Err(Error::new(Kind::DeviceLost)
                .operation("drain")
                .object(format!("tier {tier}: {why}"))
                .advice(
                    "its blocks cannot be moved: bring its device back with nacre tier online, or remove the \
                         files",
                ));
        }
        let room = self.room_beside(tier);
        // After a crash it may not be known yet.
        if left > room && space.is_counted {
            return Err(no_room(tier, left, room)
                .advice("nothing was changed: add a tier, or remove files, before it is drained"));
        }
        Ok(())
    }

    /// Blocks that are free on PM, and on the tiers that take blocks, without one tier.
    fn room_beside(&self, tier: u8) -> u64 {
        let free = |number: u8| self.places.layout.tier_space(number).map_or(0, |space| space.free);
        let others = self.places.usable().into_iter().map(|one| one.number).filter(|number| *number != tier);
        self.places.layout.pm_use().unused + others.map(free).sum::<u64>()
    }

    fn drain_files(&self, tier: u8, drain: &mut Drain, budget: &Budget<'_>) -> Result<Drained> {
        loop {
            if drain.waiting.is_empty() {
                // The next call tries it again.
                drain.waiting = std::mem::take(&mut drain.failed);
                match drain.failure.take() {
                    Some(failure) => return Err(failure),
                    None => return self.drained(tier, drain, true),
                }
            }
            if !self.drain_step(tier, drain, budget)? || !budget.goes_on() {
                return self.drained(tier, drain, false);
            }
        }
    }

    /// The error of a drain that cannot go on, with advice.
    fn why_it_cannot_end(&self, tier: u8, error: Error) -> Error {
        if error.kind() != Kind::NoSpace {
            return error;
        }
        let Ok(space) = self.places.layout.tier_space(tier) else { return error };
        no_room(tier, space.blocks - space.free, self.room_beside(tier)).advice(
            "add a tier, or remove files, and drain it again; nacre tier drain --cancel uses it again",
        )
    }

    fn drained(&self, tier: u8, drain: &Drain, is_done: bool) -> Result<Drained> {
        let space = self.places.layout.tier_space(tier)?;
        let left = (space.blocks - space.free) * BLOCK_SIZE;
        Ok(Drained { moved: drain.moved * BLOCK_SIZE, left, is_done })
    }

    /// Looks at files and moves their blocks on the tier; false when it was told not to go on. A file that fails does
    /// so alone; an error means that no file can move.
    fn drain_step(&self, tier: u8, drain: &mut Drain, budget: &Budget<'_>) -> Result<bool> {
        let now = self.drained(tier, drain, false)?;
        let way = Way::Drained { tier, left: now.left };
        let _looking = self.begin(Doing { inode: 0, files: 0, way });
        let mut step = Step { files: Vec::new(), batch: Batch::default() };
        // Blocks of the tier must not be reused before they were read.
        let reading = Reading::begin(&self.places.layout);
        let gathered = self.gather_step(tier, drain, &mut step, budget);
        let parts = step.batch.parts();
        let _moving = parts
            .first()
            .map(|first| self.begin(Doing { inode: first.id().number, files: parts.len() as u64, way }));
        let mut is_over = matches!(gathered, Ok(ControlFlow::Break(())));
        let mut placed = HashMap::new();
        if !is_over {
            placed.extend(self.places.place_batch(step.batch, Why::Drain, budget));
        }
        drop(reading);
        let moved = |outcome: &Outcome| if let Outcome::Moved(moved) = outcome { moved.moved } else { 0 };
        drain.moved += placed.values().map(moved).sum::<u64>();
        let mut failure = gathered.err();
        let mut left = Vec::new();
        let mut failed = Vec::new();
        for file in step.files {
            let came = if file.is_in_batch {
                placed.remove(&file.id)
            } else {
                Some(Outcome::Moved(Moved::default()))
            };
            // One without an answer is where it was told not to go on.
            let Some(came) = came.filter(|_| !is_over) else {
                is_over = true;
                left.push(file.waits_from(file.from));
                continue;
            };
            let mut moved = 0;
            let came = self.take_rest(tier, &file, came, budget, &mut moved);
            drain.moved += moved;
            match came {
                Ok(()) => {
                    left.extend(file.next.map(|next| file.waits_from(next)));
                    is_over = moved > 0 && !budget.goes_on();
                }
                Err(error) if self.concerns_all(tier, &error) => {
                    left.push(file.waits_from(file.from));
                    failure.get_or_insert(error);
                }
                Err(error) => {
                    failed.push(file.waits_from(file.from));
                    // The blocks behind in it may be readable.
                    left.extend(file.next.map(|next| file.waits_from(next)));
                    drain.failure.get_or_insert(error);
                }
            }
        }
        drain.waiting.extend(left.into_iter().rev());
        drain.failed.extend(failed);
        failure.map_or(Ok(!is_over), Err)
    }

    /// Whether an error is one that every other file would have, too.
    fn concerns_all(&self, tier: u8, error: &Error) -> bool {
        error.kind() == Kind::NoSpace
            || self.places.tiers.attachment(tier).is_none_or(|at| at.device.is_err())
    }

    /// Looks at the waiting files, until their blocks on the tier fill a batch, or there is enough to look at. `Break`
    /// is that it may not go on; after an error the blocks gathered before move all the same.
    fn gather_step(
        &self,
        tier: u8,
        drain: &mut Drain,
        step: &mut Step<L::Node>,
        budget: &Budget<'_>,
    ) -> Result<ControlFlow<()>> {
        // By a list instead of recursion: directories may be deeper than a stack.
        while step.files.len() < FILES_AT_ONCE
            && let Some(next) = drain.waiting.pop()
        {
            let goes_on = match next.kind {
                FileKind::Directory => self.list(&next, drain).map(|()| true),
                FileKind::Regular => self.take(tier, &next, step),
                _ => Ok(true),
            };
            let is_directory = next.kind == FileKind::Directory;
            match goes_on {
                // Large ones take their time.
                Ok(true) if is_directory && !budget.goes_on() => return Ok(ControlFlow::Break(())),
                Ok(true) => {}
                Ok(false) => break,
                Err(error) if self.concerns_all(tier, &error) => {
                    drain.waiting.push(next);
                    return Err(error);
                }
                Err(error) => {
                    drain.failed.push(next);
                    drain.failure.get_or_insert(error);
                    if !budget.goes_on() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Has all that is in a directory wait.
    fn list(&self, dir: &Waiting, drain: &mut Drain) -> Result<()> {
        let node = match self.places.layout.node(dir.id) {
            // It was removed meanwhile.
            Err(error) if error.kind() == Kind::Stale => return Ok(()),
            other => other?,
        };
        self.places.layout.read_dir(&node, 0, &mut |entry: DirEntry<'_>| {
            drain.waiting.push(Waiting { id: entry.id, kind: entry.kind, from: 0 });
            ControlFlow::Continue(())
        })
    }

    /// Adds a file, from its waiting block on, to the files that are drained at once; false when that is not all of it.
    fn take(&self, tier: u8, file: &Waiting, step: &mut Step<L::Node>) -> Result<bool> {
        let node = match self.places.layout.node(file.id) {
            Err(error) if error.kind() == Kind::Stale => return Ok(true),
            other => other?,
        };
        // Its log goes first: blocks that move take it back, and those that are not written do not move.
        if self.places.layout.log_image_at(&node).is_some_and(|image| image.tier == tier) {
            self.with_reclaim(|| self.places.layout.take_log_back(&node))?;
        }
        let from = file.from;
        let blocks = self.places.layout.size(&node)?.div_ceil(BLOCK_SIZE);
        // Blocks allocated behind the end of the file belong to the last part.
        let end = Some(from + GROUPS_AT_ONCE * self.places.settings.group()).filter(|end| *end < blocks);
        let range = (&node, FileBlock(from), end.map_or(u64::MAX - from, |end| end - from));
        let (before, mut at) = (step.batch.blocks(), from);
        let is_all = self.places.add_range(&mut step.batch, range, &mut at, |place| is_on(place, tier))?;
        let next = if is_all { end } else { Some(at) };
        let is_in_batch = step.batch.blocks() > before;
        step.files.push(Taking { id: file.id, node, from, next, is_in_batch });
        Ok(next.is_none())
    }

    /// Promotes those blocks of a part of a file that are on the tier after its batch: blocks written meanwhile, and
    /// all when there is no other tier. Their number is added to `moved`, also before an error.
    fn take_rest(
        &self,
        tier: u8,
        file: &Taking<L::Node>,
        outcome: Outcome,
        budget: &Budget<'_>,
        moved: &mut u64,
    ) -> Result<()> {
        match outcome {
            Outcome::Moved(_) | Outcome::Full(_) => {}
            Outcome::Mapped(error) | Outcome::Gone(error) | Outcome::Failed(error) => return Err(error),
        }
        let (start, len) =
            (FileBlock(file.from), file.next.map_or(u64::MAX - file.from, |next| next - file.from));
        let failure = match self.bring_up_from(tier, &file.node, start, len, moved) {
            Err(error) if error.kind() == Kind::Media => self.bring_up_each(tier, file, budget, moved)?,
            other => other.map(|()| None)?,
        };
        // Of what is allocated and not written there is no more than is used of the tier.
        let used = self.places.layout.tier_space(tier)?;
        let replace =
            || self.places.on_usable(|| self.places.layout.replace_unwritten(&file.node, tier, start, len));
        *moved += self.places.beside_reserved(len.min(used.blocks - used.free), replace)?;
        failure.map_or(Ok(()), Err)
    }

    /// Promotes blocks of a range, as far as they are on the tier. Their number is added to `moved`, also before an
    /// error.
    fn bring_up_from(
        &self,
        tier: u8,
        node: &L::Node,
        start: FileBlock,
        len: u64,
        moved: &mut u64,
    ) -> Result<()> {
        let blocks = Cell::new(0);
        let up = || {
            let (mut total, of_it) = (Moved::default(), |here| here == tier);
            let came = self.places.promote_onto(node, start, len, Draw::Available, of_it, &mut total);
            blocks.set(blocks.get() + total.moved);
            came
        };
        let came = self.with_reclaim(up);
        self.note_unheard();
        *moved += blocks.get();
        came
    }

    /// Promotes the blocks of a part of a file that are on the tier one by one, because some of them cannot be read.
    /// Adds the number of the others to `moved`, and gives the first error. A device may take long for each, so that
    /// the budget is asked.
    fn bring_up_each(
        &self,
        tier: u8,
        file: &Taking<L::Node>,
        budget: &Budget<'_>,
        moved: &mut u64,
    ) -> Result<Option<Error>> {
        let mut failure = None;
        let (mut at, end) = (file.from, file.next.unwrap_or(u64::MAX));
        while let Some(data) = self.places.next_data(&file.node, at)?.filter(|data| *data < end) {
            let group = self.places.settings.group().min(end - data);
            for one in self.places.layout.resolve_movable(&file.node, FileBlock(data), group)? {
                if !is_on(&one.extent.place, tier) {
                    continue;
                }
                for block in one.extent.start.0..one.extent.start.0 + one.extent.len {
                    match self.bring_up_from(tier, &file.node, FileBlock(block), 1, moved) {
                        Ok(()) => {}
                        Err(error) if error.kind() != Kind::Media || !budget.goes_on() => return Err(error),
                        Err(error) => failure = failure.or(Some(error)),
                    }
                }
            }
            at = data.saturating_add(group);
        }
        Ok(failure)
    }
}
