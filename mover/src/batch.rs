//! Blocks of many files that move as one: space that lies together where it can be had, one write of it, one flush of the
//! device, and behind that a commit for each file (paper 002, section 5.5). With small files the flushes of a device would
//! take longer than everything else.
//!
//! A [`Batch`] is gathered without a lock: each block has the version that it was found with. If blocks of a file were
//! written meanwhile, the file gives these up. If a file fails, it does so alone. The space of both is free again, and
//! the other files are not affected.
//!
//! Blocks on tiers must not be reused before they were read, so the gatherer of such holds a
//! [`Reading`](crate::data::Reading) until the batch has moved. Blocks in PM are read through their file and need none.

use std::collections::{HashSet, VecDeque};

use nacre_engine::{
    BLOCK_SIZE, Copied, CopiedFile, Error, FileBlock, InodeId, Kind, Movable, Place, PlacedExtent, Result,
    Tier, TierRun, Tiered, Timestamp,
};
use nacre_media::Durable;
use nacre_media::block::{BlockDevice, MOST_LENT, Pages};

use crate::budget::Budget;
use crate::fs::MoverFs;
use crate::keeper::Why;
use crate::migrate::{Moved, Taken};
use crate::pieces;

/// Files of a batch, at most: they are held while it moves.
const MAX_FILES: usize = 4096;

/// Blocks that are in DRAM at once on their way, so that a larger group takes no more of it, and none that has to be faulted
/// in.
pub(crate) const AT_ONCE: u64 = MOST_LENT as u64 / BLOCK_SIZE;

/// Blocks that move as one; at most a group.
pub(crate) struct Batch<N> {
    parts: Vec<Part<N>>,
    /// The files that they are of.
    files: HashSet<InodeId>,
    blocks: u64,
}

/// The blocks of a file that move. A file has one part of a batch; otherwise its first commit would change the versions
/// that the second part was found with.
pub(crate) struct Part<N> {
    id: InodeId,
    node: N,
    found: Vec<Movable>,
    blocks: u64,
    modified: Timestamp,
}

impl<N> Default for Batch<N> {
    fn default() -> Batch<N> {
        Batch { parts: Vec::new(), files: HashSet::new(), blocks: 0 }
    }
}

impl<N> Batch<N> {
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Blocks that move.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The part of each file, in the order in which it was gathered.
    pub(crate) fn parts(&self) -> &[Part<N>] {
        &self.parts
    }
}

impl<N> Part<N> {
    pub(crate) fn id(&self) -> InodeId {
        self.id
    }

    /// The first block that moves.
    pub(crate) fn start(&self) -> u64 {
        self.found.first().map_or(0, |first| first.extent.start.0)
    }

    /// Blocks that move.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Its first blocks, at most `most`; `None` if that is none. If that were all, half of them: blocks still being
    /// read count as free but cannot be taken.
    fn first(&self, most: u64) -> Option<Part<N>>
    where
        N: Clone,
    {
        let blocks = if most < self.blocks { most } else { self.blocks / 2 };
        let (mut found, mut left) = (Vec::new(), blocks);
        for one in &self.found {
            let len = left.min(one.extent.len);
            if len == 0 {
                break;
            }
            found.push(part_of(one, 0, len));
            left -= len;
        }
        let Part { id, node, modified, .. } = self;
        (blocks > 0).then(|| Part { id: *id, node: node.clone(), found, blocks, modified: *modified })
    }

    /// The block behind the last one that moves.
    fn end(&self) -> u64 {
        self.found.last().map_or(0, |last| last.extent.start.0 + last.extent.len)
    }
}

/// Where parts move.
#[derive(Debug, Clone, Copy)]
pub(crate) struct To {
    pub(crate) tier: u8,
    /// They stay in DRAM, too.
    pub(crate) keep: bool,
    /// It makes room for reserved data, and may take reserved space for that.
    pub(crate) promised: bool,
    /// Where there is no room for all of a file's blocks, some may move.
    pub(crate) partly: bool,
}

/// How far parts were read.
struct Intake<'p, N> {
    parts: &'p [Part<N>],
    /// Whether each that it got to could be read.
    came: Vec<Result<()>>,
    /// The next piece of the last of these, and how many blocks of it were read.
    piece: usize,
    done: u64,
}

impl<'p, N> Intake<'p, N> {
    fn of(parts: &'p [Part<N>]) -> Intake<'p, N> {
        Intake { parts, came: Vec::new(), piece: 0, done: 0 }
    }

    /// The next pieces of a part, at most `blocks` blocks. `None` behind the last part. Before each part except the
    /// first, the budget is asked; where it is over, it ends there.
    fn next(&mut self, blocks: u64, budget: &Budget<'_>) -> Option<(usize, Vec<Movable>)> {
        if blocks == 0 {
            return None;
        }
        let last = self.came.len().checked_sub(1);
        if last.is_none_or(|last| self.piece == self.parts[last].found.len()) {
            let is_end = self.came.len() == self.parts.len();
            if is_end || last.is_some() && !budget.goes_on() {
                self.parts = &self.parts[..self.came.len()];
                return None;
            }
            self.came.push(Ok(()));
            (self.piece, self.done) = (0, 0);
        }
        let part = self.came.len() - 1;
        let (mut pieces, mut left) = (Vec::new(), blocks);
        while let Some(found) = self.parts[part].found.get(self.piece).filter(|_| left > 0) {
            let len = left.min(found.extent.len - self.done);
            pieces.push(part_of(found, self.done, len));
            left -= len;
            self.done += len;
            if self.done == found.extent.len {
                (self.piece, self.done) = (self.piece + 1, 0);
            }
        }
        Some((part, pieces))
    }
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> MoverFs<L, D> {
    /// Adds blocks of a file to a batch, of those in the range that are where `which` says. False, and nothing is added,
    /// when there is no room for them behind others: then they are for the next batch. So are those of a file that comes a
    /// second time, as one with several names does.
    pub(crate) fn add_to(
        &self,
        batch: &mut Batch<L::Node>,
        node: &L::Node,
        (start, len): (FileBlock, u64),
        which: impl Fn(&Place) -> bool,
    ) -> Result<bool> {
        let modified = self.layout.getattr(node)?.mtime;
        let mut found = self.layout.resolve_movable(node, start, len)?;
        found.retain(|at| which(&at.extent.place));
        let blocks: u64 = found.iter().map(|at| at.extent.len).sum();
        if blocks == 0 {
            return Ok(true);
        }
        let id = self.layout.id(node);
        let is_full = batch.parts.len() >= MAX_FILES;
        let has_room = batch.is_empty() || batch.blocks + blocks <= self.group();
        match batch.parts.last_mut().filter(|last| last.id == id) {
            Some(last) if has_room && last.end() <= start.0 => {
                last.found.extend(found);
                last.blocks += blocks;
            }
            None if has_room && !is_full && !batch.files.contains(&id) => {
                batch.files.insert(id);
                batch.parts.push(Part { id, node: node.clone(), found, blocks, modified });
            }
            _ => return Ok(false),
        }
        batch.blocks += blocks;
        Ok(true)
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
        let taken = self.take_on(to.tier, None, blocks, to.promised).map(|runs| Taken::new(self, runs));
        let moved = match taken {
            Err(error) if error.kind() == Kind::NoSpace && parts.len() > 1 && self.has_room(parts, to) => {
                let (some, others) = parts.split_at(parts.len() / 2);
                let mut moved = self.move_parts(some, to, budget);
                if moved.len() == some.len() {
                    moved.extend(self.move_parts(others, to, budget));
                }
                return moved;
            }
            Err(error) if error.kind() == Kind::NoSpace && parts.len() == 1 && to.partly => {
                match parts[0].first(self.room_on(to.tier, to.promised)) {
                    Some(some) => return self.move_parts(&[some], to, budget),
                    None => Err(error),
                }
            }
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
        least.is_some_and(|least| least <= self.room_on(to.tier, to.promised))
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
        let read = self.copy(taken.runs(), parts, to.keep, budget)?;
        let parts = &parts[..read.len()];
        taken.give_back_behind(parts.iter().map(|part| part.blocks).sum());
        if read.iter().all(Result::is_err) {
            return Ok(read.into_iter().map(|read| read.map(|()| Moved::default())).collect());
        }
        let proof = self.tiers.flush([to.tier])?;
        let mut runs = taken.keep();
        let copied: Vec<_> = parts.iter().map(|part| copies(&part.found, &mut runs)).collect();
        let whole = parts.iter().zip(&copied).zip(&read).filter(|(_, read)| read.is_ok());
        let files: Vec<_> = whole
            .map(|((part, copied), _)| CopiedFile { node: &part.node, copied, modified: part.modified })
            .collect();
        let mut published = self.layout.publish(&files, proof).into_iter();
        let settle = |(read, copied): (Result<()>, &Vec<Copied>)| match read {
            Ok(()) => match published.next() {
                Some(published) => self.settle(copied, published),
                None => unreachable!("there is an answer for each file"),
            },
            // Blocks that could not be read were not published.
            Err(error) => self.settle(copied, Ok(copied.clone())).and(Err(error)),
        };
        Ok(read.into_iter().zip(&copied).map(settle).collect())
    }

    /// Reads parts and writes them to these blocks, each behind the one before; with `keep` they stay in DRAM, too. Gives which
    /// of them could be read, as far as it got; to blocks of one that could not zeros are written.
    fn copy(
        &self,
        runs: &[TierRun],
        parts: &[Part<L::Node>],
        keep: bool,
        budget: &Budget<'_>,
    ) -> Result<Vec<Result<()>>> {
        let mut intake = Intake::of(parts);
        let mut runs = VecDeque::from(runs.to_vec());
        let blocks: u64 = parts.iter().map(|part| part.blocks).sum();
        let mut buffer = Pages::lent((blocks.min(AT_ONCE) * BLOCK_SIZE) as usize);
        // All that fits at once: to write one part while the next is read was slower when it was measured on an emulated SSD.
        loop {
            let read = self.read_on(&mut intake, &mut buffer, budget);
            if read == 0 {
                return Ok(intake.came);
            }
            let pieces = pieces::split(take(&mut runs, read), &buffer[..(read * BLOCK_SIZE) as usize]);
            // An operation that waits for room waits for these moves.
            if self.is_awaited() {
                self.tiers.write_at_once(&pieces)?
            } else {
                self.tiers.write(&pieces)?
            }
            if keep {
                // No other file can have the blocks, and write them, before they are published.
                pieces.iter().for_each(|(run, bytes)| self.tiers.pages().fill(run.tier, run.start, bytes));
            }
        }
    }

    /// Reads the next pieces of parts, as much as there is room for; gives how many blocks there were.
    fn read_on(&self, intake: &mut Intake<'_, L::Node>, mut room: &mut [u8], budget: &Budget<'_>) -> u64 {
        let mut read = 0;
        while let Some((part, pieces)) = intake.next(room.len() as u64 / BLOCK_SIZE, budget) {
            let len: u64 = pieces.iter().map(|piece| piece.extent.len).sum();
            let here;
            (here, room) = room.split_at_mut((len * BLOCK_SIZE) as usize);
            let came = &mut intake.came[part];
            if came.is_ok() {
                *came = self.read_all(&intake.parts[part].node, &pieces, here);
            }
            if came.is_err() {
                here.fill(0);
            }
            read += len;
        }
        read
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
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> MoverFs<L, D> {
    /// Moves a batch to the fastest tiers that have room for it; gives the result of each file.
    /// [`NoSpace`](Kind::NoSpace) for files that no tier takes. If the budget is over, files may be left that have no
    /// answer.
    pub(crate) fn place_batch(
        &self,
        batch: Batch<L::Node>,
        why: Why,
        budget: &Budget<'_>,
    ) -> Vec<(InodeId, Result<Moved>)> {
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
    ) -> Vec<(InodeId, Result<Moved>)> {
        let mut placed = Vec::new();
        let mut left = batch.parts;
        let mut full: Vec<Error> = left.iter().map(|_| Kind::NoSpace.into()).collect();
        for tier in tiers {
            if left.is_empty() {
                break;
            }
            let keep = match why {
                Why::Reads => true,
                // While there is room (TPFS, 5.3).
                Why::Space | Why::Promise => self.tiers.pages().bytes() < self.tiers.pages().capacity() / 2,
                Why::Drain | Why::Descent => false,
            };
            let (promised, partly) = (why == Why::Promise, matches!(why, Why::Space | Why::Promise));
            let to = To { tier: tier.number, keep, promised, partly };
            let moved = self.move_parts(&left, to, budget);
            full.clear();
            for (part, moved) in std::mem::take(&mut left).into_iter().zip(moved) {
                match moved {
                    Err(error) if self.passes_on(tier.number, &error) => {
                        full.push(match error.kind() {
                            Kind::NoSpace => error,
                            _ => Error::new(Kind::NoSpace).object(error.to_string()),
                        });
                        left.push(part);
                    }
                    other => placed.push((part.id, other)),
                }
            }
        }
        placed.extend(left.into_iter().zip(full).map(|(part, error)| (part.id, Err(error))));
        placed
    }
}

/// The copies that place the found blocks of a file on the tier; takes the blocks from the runs.
pub(crate) fn copies(found: &[Movable], runs: &mut VecDeque<TierRun>) -> Vec<Copied> {
    let mut copied = Vec::new();
    for from in found {
        let mut done = 0;
        while done < from.extent.len {
            let Some(here) = runs.front_mut() else { return copied };
            let len = here.len.min(from.extent.len - done);
            copied.push(Copied { from: part_of(from, done, len), tier: here.tier, block: here.start });
            (here.start, here.len) = (here.start.plus(len), here.len - len);
            if here.len == 0 {
                runs.pop_front();
            }
            done += len;
        }
    }
    copied
}

/// Blocks of a piece.
fn part_of(from: &Movable, skip: u64, len: u64) -> Movable {
    let PlacedExtent { start, place, .. } = from.extent;
    let place = match place {
        Place::Pm(block) => Place::Pm(block.plus(skip)),
        Place::Unwritten(block) => Place::Unwritten(block.plus(skip)),
        Place::Tier { tier, block } => Place::Tier { tier, block: block.plus(skip) },
        other => other,
    };
    Movable { extent: PlacedExtent { start: FileBlock(start.0 + skip), len, place }, ..*from }
}

/// Takes so many blocks from the runs.
fn take(runs: &mut VecDeque<TierRun>, blocks: u64) -> Vec<TierRun> {
    let (mut taken, mut left) = (Vec::new(), blocks);
    while let Some(first) = runs.front_mut().filter(|_| left > 0) {
        let len = first.len.min(left);
        taken.push(TierRun { len, ..*first });
        (first.start, first.len) = (first.start.plus(len), first.len - len);
        if first.len == 0 {
            runs.pop_front();
        }
        left -= len;
    }
    taken
}

/// The same error again, for each part of a batch that failed as a whole.
fn alike(error: &Error) -> Error {
    Error::new(error.kind()).object(error.to_string())
}
