//! Writing files that may be on tiers. An operation that keeps a part of a block on a tier fails in the layout before
//! it has changed anything; the blocks at the edges of its range are promoted then, and it is tried again.

use std::cell::Cell;
use std::io::IoSlice;

use nacre_engine::sync::Mutex;
use nacre_engine::{
    BLOCK_SIZE, Draw, Durability, FallocateMode, FileBlock, InodeId, Kind, Result, Step, Tiered, Timestamp,
    WriteAt, made_room, or_another_way, with_room,
};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;
use nacre_policy::migration::AccessKind;

use crate::engine::executor::Why;
use crate::engine::reclaim::ATTEMPTS;
use crate::io::{Files, segments};
use crate::stats::predictors::blocks_of;

/// Blocks at the edges of an operation: as long as this lives, direct reclaim demotes others. Otherwise, if PM is
/// small, blocks just promoted would be demoted again, and so on.
pub(crate) struct Held<'f> {
    held: &'f Mutex<Vec<(InodeId, u64)>>,
    id: InodeId,
    blocks: Vec<u64>,
}

impl<'f> Held<'f> {
    /// None yet, of a file.
    pub(crate) fn new(held: &'f Mutex<Vec<(InodeId, u64)>>, id: InodeId) -> Held<'f> {
        Held { held, id, blocks: Vec::new() }
    }

    pub(crate) fn hold(&mut self, blocks: &[u64]) {
        let mut held = self.held.lock();
        for &block in blocks {
            if !self.blocks.contains(&block) {
                self.blocks.push(block);
                held.push((self.id, block));
            }
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.blocks.is_empty() {
            return;
        }
        let mut held = self.held.lock();
        for block in self.blocks.drain(..) {
            // Another operation may hold it, too.
            if let Some(at) = held.iter().position(|one| *one == (self.id, block)) {
                held.swap_remove(at);
            }
        }
    }
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Files<'_, L, D> {
    /// Writes data that comes now.
    pub(crate) fn write(
        &self,
        node: &L::Node,
        at: WriteAt,
        data: &[IoSlice<'_>],
        durability: Durability,
        now: Timestamp,
    ) -> Result<u64> {
        let written = self.write_to_pm(node, at, data, durability.into(), now)?;
        self.note_write(node, written, data, durability == Durability::Now);
        Ok(written)
    }

    /// Writes data of a write buffer, to where it belongs.
    pub(crate) fn write_back(
        &self,
        node: &L::Node,
        offset: u64,
        data: &[IoSlice<'_>],
        draw: Draw<'_>,
        now: Timestamp,
    ) -> Result<()> {
        // If it may go to disk, it was noted when it was accepted.
        if self.places.predicts() && self.may_go_to_disk(data) {
            return self.write_where_it_belongs(node, offset, data, draw, now);
        }
        let written = self.write_to_pm(node, WriteAt::Offset(offset), data, draw, now)?;
        self.note_write(node, written, data, false);
        Ok(())
    }

    fn note_write(&self, node: &L::Node, written: u64, data: &[IoSlice<'_>], durable: bool) {
        if self.places.predicts() {
            let blocks = blocks_of(written, segments::length(data));
            self.stats.predictors.wrote(self.places.layout.id(node), blocks, durable);
        }
    }

    /// Allocates, frees or zeroes a range.
    pub(crate) fn fallocate(
        &self,
        node: &L::Node,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        now: Timestamp,
    ) -> Result<()> {
        let edges = |_: u64| vec![offset / BLOCK_SIZE, offset.saturating_add(len) / BLOCK_SIZE];
        let blocks = if mode == FallocateMode::PunchHole { 0 } else { len / BLOCK_SIZE + 2 };
        let allocate = || self.places.layout.fallocate(node, mode, offset, len, now);
        let act = || self.places.beside_reserved(blocks, || self.places.on_usable(allocate));
        let done = match act() {
            Err(error) if error.kind() == Kind::Elsewhere => None,
            done => made_room(Step::Relocation, done, |_| {
                // Of all that it wants the file has no more than it has.
                let has = self.places.layout.getattr(node)?.allocated.div_ceil(BLOCK_SIZE);
                Ok(blocks.saturating_sub(has + 2) <= self.mover.stat().available)
            })?,
        };
        if done.is_none() {
            // Blocks without a place in PM have one on tiers: only those at the edges need PM.
            self.with_edges(node, 2, Draw::Available, edges, act)?;
        }
        self.note_allocated(node, mode, offset, len, now);
        Ok(())
    }

    /// Writes to PM.
    pub(crate) fn write_to_pm(
        &self,
        node: &L::Node,
        at: WriteAt,
        data: &[IoSlice<'_>],
        draw: Draw<'_>,
        now: Timestamp,
    ) -> Result<u64> {
        let len = segments::length(data);
        let edges = |size: u64| {
            let offset = if let WriteAt::Offset(offset) = at { offset } else { size };
            vec![offset / BLOCK_SIZE, (offset + len).saturating_sub(1) / BLOCK_SIZE]
        };
        let write = || match (draw, at) {
            (Draw::Reserved(reservation), WriteAt::Offset(offset)) => {
                self.places.layout.write_back(node, offset, data, reservation, now).map(|()| offset)
            }
            (Draw::Accepted, _) => self.places.layout.write(node, at, data, Durability::Accepted, now),
            _ => self.places.layout.write(node, at, data, Durability::Now, now),
        };
        let blocks = len / BLOCK_SIZE + 2;
        let is_reserved = draw.is_reserved() && self.places.has_reserved();
        let below = match is_reserved && !self.mover.has_room_for_reserved(blocks) {
            true => self.write_below(node, at, data, draw, now)?,
            false => None,
        };
        let in_memory = || self.with_edges(node, blocks, draw, edges, write);
        let written = or_another_way(Step::Reserve, below.map_or_else(in_memory, Ok), || {
            match self.write_below(node, at, data, draw, now)? {
                None => self.write_on_full(node, at, data, draw, now),
                written => Ok(written),
            }
        })?;
        if self.places.has_tiers() {
            self.stats.samples.count(AccessKind::Written, len);
            self.note(node, AccessKind::Written, written, len, Some(now));
        }
        Ok(written)
    }

    /// Runs `act`, which fails if it keeps a part of a block that is on a tier. Then the blocks at its edges, which
    /// `edges` gives for the size of the file, and the last block of the file are promoted, and it is run again. If it
    /// finds no space for the `blocks` that it needs, others are demoted first.
    pub(crate) fn with_edges<T>(
        &self,
        node: &L::Node,
        blocks: u64,
        draw: Draw<'_>,
        edges: impl Fn(u64) -> Vec<u64>,
        act: impl Fn() -> Result<T>,
    ) -> Result<T> {
        let mut held = Held::new(&self.mover.engine.held, self.places.layout.id(node));
        // Promotions of edges share the tries: one operation relocates no more often than that.
        let left = Cell::new(ATTEMPTS);
        let make = |blocks: u64| match left.get() {
            0 => Ok(false),
            tries => {
                left.set(tries - 1);
                self.mover.make_room(blocks, Why::for_write(draw))
            }
        };
        for _ in 0..ATTEMPTS {
            match act() {
                Err(error) if error.kind() == Kind::Elsewhere => {}
                done => match made_room(Step::Relocation, done, |_| make(blocks))? {
                    Some(done) => return Ok(done),
                    None => continue,
                },
            }
            let size = self.places.layout.size(node)?;
            let mut edges = edges(size);
            edges.push(size / BLOCK_SIZE);
            held.hold(&edges);
            for block in edges {
                let up = || self.places.promote_from(node, FileBlock(block), 1, draw, |_| true);
                with_room(Step::Relocation, up, |_| make(1))?;
            }
        }
        act()
    }

    /// Leaves a sample of blocks that were allocated, as of some that were written: the mover is to know of the file.
    fn note_allocated(&self, node: &L::Node, mode: FallocateMode, offset: u64, len: u64, now: Timestamp) {
        if self.places.has_tiers() && mode != FallocateMode::PunchHole {
            self.note(node, AccessKind::Written, offset, len, Some(now));
            self.mover.note_allocated(self.places.layout.id(node));
        }
    }
}
