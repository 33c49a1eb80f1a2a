//! The executor of relocations: space that lies together where it can be had, one write of it, one flush of the device,
//! and behind that a commit for each file (paper 002, section 5.5). With small files the flushes of a device would take
//! longer than everything else.
//!
//! If blocks of a file were written meanwhile, the file gives these up. If a file fails, it does so alone. The space of
//! both is free again, and the other files are not affected.

use std::collections::VecDeque;

use nacre_engine::{
    BLOCK_SIZE, Copied, CopiedFile, Draw, Error, FileKind, InodeId, Kind, Movable, Resource, Result, Tier,
    TierRun, Tiered,
};
use nacre_media::Durable;
use nacre_media::block::{BlockDevice, MOST_LENT, Pages};

use crate::engine::batch::{Batch, Intake, Part, copies, take, without};
use crate::engine::budget::Budget;
use crate::io::segments;
use crate::places::Places;

/// Blocks that are in DRAM at once on their way, so that a larger group takes no more of it, and none that has to be
/// faulted in.
pub(crate) const AT_ONCE: u64 = MOST_LENT as u64 / BLOCK_SIZE;

/// The result of a migration, in blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// They are in the new place.
    pub moved: u64,
    /// They were written or freed while they were copied, and stay where they are.
    pub changed: u64,
}

/// Why blocks move to a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// Space is short.
    Space,
    /// It is short for reserved data.
    Reserved,
    /// They are read, and are to be read from DRAM.
    Reads,
    /// The tier that they are on is to be empty.
    Drain,
    /// It is nearly full, and slower ones are not.
    Rebalance,
}

impl Why {
    /// For a write that finds no space.
    pub(crate) fn for_write(draw: Draw<'_>) -> Why {
        match draw {
            Draw::Reserved(_) => Why::Reserved,
            _ => Why::Space,
        }
    }
}

/// The outcome of a file's relocation, by what follows from it.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Blocks moved, as far as they did not change meanwhile.
    Moved(Moved),
    /// It stays, because a program has it mapped.
    Mapped(Error),
    /// It was removed.
    Gone(Error),
    /// No place took it; there may be room later.
    Full(Error),
    /// Something else failed.
    Failed(Error),
}

impl From<Error> for Outcome {
    fn from(error: Error) -> Outcome {
        match error.kind() {
            Kind::Busy => Outcome::Mapped(error),
            Kind::Stale => Outcome::Gone(error),
            Kind::NoSpace => Outcome::Full(error),
            _ => Outcome::Failed(error),
        }
    }
}

impl From<Result<Moved>> for Outcome {
    fn from(came: Result<Moved>) -> Outcome {
        came.map_or_else(Outcome::from, Outcome::Moved)
    }
}

/// Where parts move.
#[derive(Debug, Clone, Copy)]
pub(crate) struct To {
    pub(crate) tier: u8,
    /// They stay in DRAM, too.
    pub(crate) keep: bool,
    /// It makes room for reserved data, and may take reserved space for that.
    pub(crate) reserved: bool,
    /// Where there is no room for all of a file's blocks, some may move.
    pub(crate) partly: bool,
    /// Where some of a file's blocks cannot be read, the others move: the place is to be empty.
    pub(crate) beside_lost: bool,
}

/// Blocks of a tier that were taken, and are given back unless they are kept.
pub(crate) struct Taken<'f, L: Tiered<Proof = Durable>, D: BlockDevice + 'static> {
    places: &'f Places<L, D>,
    runs: Vec<TierRun>,
}

impl<'f, L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Taken<'f, L, D> {
    pub(crate) fn new(places: &'f Places<L, D>, runs: Vec<TierRun>) -> Taken<'f, L, D> {
        Taken { places, runs }
    }

    pub(crate) fn runs(&self) -> &[TierRun] {
        &self.runs
    }

    /// Gives back all but the first blocks.
    pub(crate) fn give_back_behind(&mut self, blocks: u64) {
        let mut before = 0;
        for run in &mut self.runs {
            let kept = run.len.min(blocks.saturating_sub(before));
            before += kept;
            let rest = TierRun { start: run.start.plus(kept), len: run.len - kept, ..*run };
            run.len = kept;
            if rest.len > 0 {
                self.places.layout.free_on(rest);
            }
        }
        self.runs.retain(|run| run.len > 0);
    }

    /// They are a file's now, or the caller frees them.
    pub(crate) fn keep(mut self) -> VecDeque<TierRun> {
        std::mem::take(&mut self.runs).into()
    }

    /// After a publication that failed: they are given back, unless its entry may be durable all the same. Then no
    /// other may use them before a recovery has found out.
    pub(crate) fn keep_unless_unpublished(self, error: Error) -> Error {
        if error.kind() == Kind::Media {
            drop(self.keep());
        }
        error
    }
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Drop for Taken<'_, L, D> {
    fn drop(&mut self) {
        self.runs.drain(..).for_each(|run| self.places.layout.free_on(run));
    }
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Places<L, D> {
    /// Moves a batch to the fastest tiers that have room for it; gives the result of each file.
    /// [`NoSpace`](Kind::NoSpace) for files that no tier takes. If the budget is over, files may be left that have no
    /// answer.
    pub(crate) fn place_batch(
        &self,
        batch: Batch<L::Node>,
        why: Why,
        budget: &Budget<'_>,
    ) -> Vec<(InodeId, Outcome)> {
        let mut tiers = self.takers(None);
        if why == Why::Drain {
            // Blocks that would be rebalanced at once are better placed on another tier.
            tiers.sort_by_key(|tier| self.is_nearly_full(tier.number));
        }
        self.place_on(&tiers, batch, why, budget)
    }

    /// The same, to one of these tiers.
    pub(crate) fn place_on(
        &self,
        tiers: &[Tier],
        batch: Batch<L::Node>,
        why: Why,
        budget: &Budget<'_>,
    ) -> Vec<(InodeId, Outcome)> {
        let mut placed = Vec::new();
        let mut left = batch.parts;
        let mut full: Vec<Error> =
            left.iter().map(|part| Error::no_space(Resource::Tiers, part.blocks)).collect();
        for tier in tiers {
            if left.is_empty() {
                break;
            }
            let keep = match why {
                Why::Reads => true,
                // Anti-caching leaves one copy of a block.
                Why::Space if self.settings.has_anticache() => false,
                // While there is room (TPFS, 5.3).
                Why::Space | Why::Reserved => self.tiers.pages().bytes() < self.tiers.pages().capacity() / 2,
                Why::Drain | Why::Rebalance => false,
            };
            let (reserved, partly) = (why == Why::Reserved, matches!(why, Why::Space | Why::Reserved));
            let beside_lost = why == Why::Drain;
            let to = To { tier: tier.number, keep, reserved, partly, beside_lost };
            let moved = self.move_parts(&left, to, budget);
            full.clear();
            for (part, moved) in std::mem::take(&mut left).into_iter().zip(moved) {
                match moved {
                    Err(error) if self.passes_on(tier.number, &error) => {
                        full.push(match error.kind() {
                            Kind::NoSpace => error,
                            _ => Error::no_space(Resource::Tier(tier.number), part.blocks)
                                .object(error.to_string()),
                        });
                        left.push(part);
                    }
                    other => placed.push((part.id, other.into())),
                }
            }
        }
        placed.extend(left.into_iter().zip(full).map(|(part, error)| (part.id, error.into())));
        placed
    }

    /// Moves parts to a tier; gives the result of each. If there is no room for all of them, as many move as fit, and a
    /// part of one if that is allowed. The budget is asked between parts, because reading them may take long.
    /// If it is over, the rest stays, and the answer ends there.
    pub(crate) fn move_parts(
        &self,
        parts: &[Part<L::Node>],
        to: To,
        budget: &Budget<'_>,
    ) -> Vec<Result<Moved>> {
        let blocks = parts.iter().map(|part| part.blocks).sum();
        let taken = self.take_on(to.tier, None, blocks, to.reserved).map(|runs| Taken::new(self, runs));
        let moved = match taken {
            Err(error) if error.kind() == Kind::NoSpace => match parts {
                [_, _, ..] if self.has_room(parts, to) => {
                    let (some, others) = parts.split_at(parts.len() / 2);
                    let mut moved = self.move_parts(some, to, budget);
                    if moved.len() == some.len() {
                        moved.extend(self.move_parts(others, to, budget));
                    }
                    return moved;
                }
                [part] if to.partly => match part.first(self.room_on(to.tier, to.reserved)) {
                    Some(some) => return self.move_parts(&[some], to, budget),
                    None => Err(error),
                },
                _ => Err(error),
            },
            taken => taken.and_then(|taken| self.move_into(taken, parts, to, budget)),
        };
        moved.unwrap_or_else(|error| {
            let mut all: Vec<_> = parts.iter().skip(1).map(|_| Err(alike(&error))).collect();
            all.insert(0, Err(error));
            all
        })
    }

    /// Whether a tier has room for any of these.
    fn has_room(&self, parts: &[Part<L::Node>], to: To) -> bool {
        let least = if to.partly { Some(1) } else { parts.iter().map(|part| part.blocks).min() };
        least.is_some_and(|least| least <= self.room_on(to.tier, to.reserved))
    }

    /// Moves parts to blocks of a tier; gives the result of each part that it reached. An error for all of them means
    /// that nothing has changed.
    fn move_into(
        &self,
        mut taken: Taken<'_, L, D>,
        parts: &[Part<L::Node>],
        to: To,
        budget: &Budget<'_>,
    ) -> Result<Vec<Result<Moved>>> {
        let read = self.copy(taken.runs(), parts, to, budget)?;
        let parts = &parts[..read.len()];
        taken.give_back_behind(parts.iter().map(|part| part.blocks).sum());
        if read.iter().all(Result::is_err) {
            return Ok(read.into_iter().map(|read| read.map(|_| Moved::default())).collect());
        }
        let proof = self.tiers.flush([to.tier])?;
        let mut runs = taken.keep();
        let copied: Vec<_> = parts.iter().map(|part| copies(&part.found, &mut runs)).collect();
        let parted = copied.iter().zip(&read);
        let parted: Vec<_> =
            parted.map(|(copied, read)| without(copied, read.as_deref().unwrap_or_default())).collect();
        let readable = parts.iter().zip(&parted).zip(&read).filter(|(_, read)| read.is_ok());
        let files: Vec<_> = readable
            .map(|((part, (copied, _)), _)| CopiedFile { node: &part.node, copied, modified: part.modified })
            .collect();
        let mut published = self.layout.publish(&files, proof).into_iter();
        let mut settled = Vec::new();
        // Blocks that could not be read were not published.
        for ((read, copied), (_, of_lost)) in read.into_iter().zip(&copied).zip(parted) {
            settled.push(match read {
                Ok(_) => match published.next() {
                    Some(refused) => self.settle(copied, refused.map(|refused| [refused, of_lost].concat())),
                    None => unreachable!("there is an answer for each file"),
                },
                Err(error) => self.settle(copied, Ok(copied.clone())).and(Err(error)),
            });
        }
        Ok(settled)
    }

    /// Reads parts and writes them to these blocks, each behind the one before. Gives which of them could be read, as
    /// far as it got, and the blocks of these that could not. For all that could not be read zeros are written.
    fn copy(
        &self,
        runs: &[TierRun],
        parts: &[Part<L::Node>],
        to: To,
        budget: &Budget<'_>,
    ) -> Result<Vec<Result<Vec<u64>>>> {
        let mut intake = Intake::of(parts);
        let mut runs = VecDeque::from(runs.to_vec());
        let blocks: u64 = parts.iter().map(|part| part.blocks).sum();
        let mut buffer = Pages::lent((blocks.min(AT_ONCE) * BLOCK_SIZE) as usize);
        // All that fits at once: to write one part while the next is read was slower when it was measured on an
        // emulated SSD.
        loop {
            let read = self.read_on(&mut intake, &mut buffer, to, budget);
            if read == 0 {
                return Ok(intake.came);
            }
            let pieces = segments::split(take(&mut runs, read), &buffer[..(read * BLOCK_SIZE) as usize]);
            // An operation that waits for room waits for these moves.
            if self.is_awaited() {
                self.tiers.write_at_once(&pieces)?
            } else {
                self.tiers.write(&pieces)?
            }
            if to.keep {
                // No other file can have the blocks, and write them, before they are published.
                pieces.iter().for_each(|(run, bytes)| self.tiers.pages().fill(run.tier, run.start, bytes));
            }
        }
    }

    /// Reads the next pieces of parts, as much as there is room for; gives how many blocks there were.
    fn read_on(
        &self,
        intake: &mut Intake<'_, L::Node>,
        mut room: &mut [u8],
        to: To,
        budget: &Budget<'_>,
    ) -> u64 {
        let mut read = 0;
        while let Some((part, pieces)) = intake.next(room.len() as u64 / BLOCK_SIZE, budget) {
            let len: u64 = pieces.iter().map(|piece| piece.extent.len).sum();
            let here;
            (here, room) = room.split_at_mut((len * BLOCK_SIZE) as usize);
            let (node, came) = (&intake.parts[part].node, &mut intake.came[part]);
            if let Ok(lost) = came {
                let content = match self.read_all(node, &pieces, here) {
                    Err(error) if to.beside_lost && error.kind() == Kind::Media => {
                        self.read_each(node, &pieces, here, lost, budget)
                    }
                    content => content,
                };
                if let Err(error) = content {
                    *came = Err(error);
                }
            }
            if came.is_err() {
                here.fill(0);
            }
            read += len;
        }
        read
    }

    /// Reads blocks one by one, because some of them cannot be read: these are zeros then, and added to `lost`. A
    /// device may take long for each, so that the budget is asked.
    fn read_each(
        &self,
        node: &L::Node,
        pieces: &[Movable],
        content: &mut [u8],
        lost: &mut Vec<u64>,
        budget: &Budget<'_>,
    ) -> Result<()> {
        let blocks = pieces.iter().flat_map(|piece| (0..piece.extent.len).map(move |at| piece.part(at, 1)));
        for (block, here) in blocks.zip(content.chunks_mut(BLOCK_SIZE as usize)) {
            match self.read_all(node, &[block], here) {
                Ok(()) => {}
                Err(error) if error.kind() != Kind::Media || !budget.goes_on() => return Err(error),
                Err(_) => {
                    here.fill(0);
                    lost.push(block.extent.start.0);
                }
            }
        }
        Ok(())
    }

    /// Gives back the space of refused copies of a file.
    pub(crate) fn settle(&self, copied: &[Copied], published: Result<Vec<Copied>>) -> Result<Moved> {
        let run = |copy: &Copied| TierRun { tier: copy.tier, start: copy.block, len: copy.from.extent.len };
        let refused = match published {
            Ok(refused) => refused,
            Err(error) => {
                let taken = Taken::new(self, copied.iter().map(run).collect());
                return Err(taken.keep_unless_unpublished(error));
            }
        };
        let blocks = |copies: &[Copied]| copies.iter().map(|copy| copy.from.extent.len).sum::<u64>();
        let changed = blocks(&refused);
        for run in refused.iter().map(run) {
            self.tiers.pages().drop_range(run.tier, run.start, run.len);
            self.layout.free_on(run);
        }
        Ok(Moved { moved: blocks(copied) - changed, changed })
    }

    /// Has unwritten blocks that a file has on PM allocated on tiers instead: at most `most` of them. Gives the number
    /// of those that are there. Where that fails the others stay, and something else moves.
    pub(crate) fn demote_unwritten(&self, node: &L::Node, most: u64, why: Why) -> u64 {
        let reserved = why == Why::Reserved;
        let mut total = 0;
        for tier in self.takers(None) {
            loop {
                let room = self.room_on(tier.number, reserved).min(most - total);
                match self.allocate_unwritten_on(node, tier.number, room, reserved) {
                    Ok(Moved { moved, .. }) if moved > 0 => total += moved,
                    // Also where there is room: blocks that wait for readers are not free yet.
                    _ => break,
                }
            }
        }
        total
    }

    /// Demotes all unwritten blocks that a file has on PM to a tier. [`NoSpace`](Kind::NoSpace) if the tier has too
    /// little room for them; they all stay then.
    pub(crate) fn demote_unwritten_to(&self, node: &L::Node, tier: u8) -> Result<Moved> {
        if self.layout.kind(node) != FileKind::Regular || !self.has_unwritten(node) {
            return Ok(Moved::default());
        }
        self.allocate_unwritten_on(node, tier, u64::MAX, false)
    }

    /// Demotes at most `most` unwritten blocks to a tier, in one commit.
    fn allocate_unwritten_on(&self, node: &L::Node, tier: u8, most: u64, reserved: bool) -> Result<Moved> {
        let found = if most > 0 { self.layout.resolve_unwritten(node, most)? } else { Vec::new() };
        let blocks = found.iter().map(|at| at.extent.len).sum::<u64>();
        if blocks == 0 {
            return Ok(Moved::default());
        }
        let modified = self.layout.getattr(node)?.mtime;
        let taken = Taken::new(self, self.take_on(tier, None, blocks, reserved)?);
        let copied = copies(&found, &mut taken.keep());
        // Nothing was written, so there is nothing to flush.
        let proof = Durable::nothing_before();
        let published = self.layout.publish(&[CopiedFile { node, copied: &copied, modified }], proof);
        let published = published.into_iter().next();
        self.settle(&copied, published.unwrap_or_else(|| unreachable!("there is an answer for each file")))
    }
}

/// The same error again, for each part of a batch that failed as a whole.
fn alike(error: &Error) -> Error {
    Error::new(error.kind()).object(error.to_string())
}
