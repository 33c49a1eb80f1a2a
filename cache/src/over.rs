//! Writes past DRAM to blocks that are in DRAM: synchronous or large writes (paper 000, section 3.4.2).
//!
//! The bytes of the write and the other dirty lines of its first and last block are written together, each line once.
//! Data that the write replaces is never written. Then the blocks leave DRAM.

use std::io::IoSlice;
use std::ops::Range;

use nacre_engine::{BLOCK_SIZE, BelowBuffer, Extents, Result, WriteAt};
use nacre_media::Frame;
use smallvec::SmallVec;

use crate::buffer::{BLOCK, LINE, Source, covered, parts, runs_by_unit, touched};
use crate::collect::bytes_of;
use crate::file::{Blocks, CacheNode, Entry, File};
use crate::fs::Shared;
use crate::write::{Request, own};

/// A block of DRAM that a write replaces in part.
struct Edge {
    block: u64,
    buffer: Frame,
    /// The ranges of the block to write, in bytes. The new bytes lie in one of them.
    runs: SmallVec<[Range<usize>; 2]>,
}

/// The operations of the layout that form a write. Contiguous bytes form one operation.
struct Gathered<'a, F: FnMut(u64, &[IoSlice<'_>]) -> Result<()>> {
    slices: SmallVec<[IoSlice<'a>; 8]>,
    at: u64,
    end: u64,
    write: F,
}

impl<'a, F: FnMut(u64, &[IoSlice<'_>]) -> Result<()>> Gathered<'a, F> {
    fn add(&mut self, at: u64, bytes: &'a [u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        if at != self.end {
            self.finish()?;
            self.at = at;
        }
        self.end = at + bytes.len() as u64;
        self.slices.push(IoSlice::new(bytes));
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        if !self.slices.is_empty() {
            (self.write)(self.at, &self.slices)?;
            self.slices.clear();
        }
        Ok(())
    }
}

impl<L: BelowBuffer + Extents> Shared<L> {
    /// Writes past DRAM. Dirty data of the blocks that it touches goes with it, and data that its size would cover
    /// goes before it. No writeback is in flight. Under `blocks`, exclusively.
    pub(crate) fn write_over(
        &self,
        node: &CacheNode<L::Node>,
        file: &File,
        blocks: &mut Blocks,
        request: &Request<'_>,
    ) -> Result<u64> {
        let offset = request.offset(file.size());
        let end = offset + request.len;
        let range = offset / BLOCK_SIZE..end.div_ceil(BLOCK_SIZE);
        let unseen = file.below() / BLOCK_SIZE;
        if end > file.below() && unseen < range.start {
            self.flush_range(&node.inner, file, blocks, unseen..range.start)?;
        }
        let edges = self.edges(node, file, blocks, offset, end)?;
        file.check_for_hole(offset);
        gather(&edges, request, offset, |at, slices| {
            self.layout.write(&node.inner, WriteAt::Offset(at), slices, request.durability, request.now)?;
            file.grew_below(at + slices.iter().map(|slice| slice.len() as u64).sum::<u64>());
            Ok(())
        })?;
        drop(edges);
        self.replaced(node, file, blocks, request, offset)?;
        Ok(offset)
    }

    /// The parts of the first and the last block of a write that are dirty in DRAM outside the write.
    fn edges(
        &self,
        node: &CacheNode<L::Node>,
        file: &File,
        blocks: &mut Blocks,
        offset: u64,
        end: u64,
    ) -> Result<SmallVec<[Edge; 2]>> {
        let limit = end.max(file.size());
        let mut edges = SmallVec::new();
        let (first, last) = (offset / BLOCK_SIZE, (end - 1) / BLOCK_SIZE);
        for (block, from, to) in parts(offset, end - offset).filter(|part| part.0 == first || part.0 == last)
        {
            if let Some(entry) = blocks.index.get_mut(block)
                && entry.dirty & !covered(from, to) != 0
            {
                let inside = (limit - block * BLOCK_SIZE).min(BLOCK_SIZE) as usize;
                let runs = self.runs_beside(node, file, block, entry, from..to, inside)?;
                edges.push(Edge { block, buffer: entry.buffer.clone(), runs });
            }
        }
        Ok(edges)
    }

    /// The ranges to write of a block in which a write replaces the bytes `new`: those, and the dirty lines. If the
    /// layout writes in units of more than a line, the lines between them in a unit go with them.
    fn runs_beside(
        &self,
        node: &CacheNode<L::Node>,
        file: &File,
        block: u64,
        entry: &mut Entry,
        new: Range<usize>,
        inside: usize,
    ) -> Result<SmallVec<[Range<usize>; 2]>> {
        let mut found = SmallVec::new();
        let (first_new, last_new) = (new.start / LINE, (new.end - 1) / LINE);
        for (first, end) in runs_by_unit(entry.dirty | touched(new.start, new.end), self.unit_lines) {
            let (mut from, mut to) = (first * LINE, (end * LINE).min(inside));
            // A line that the write covers in part and that is clean: the layout keeps the other part.
            if first == first_new && entry.dirty >> first & 1 == 0 {
                from = new.start;
            }
            if end - 1 == last_new && entry.dirty >> last_new & 1 == 0 {
                to = new.end;
            }
            let beside = [from..to.min(new.start), from.max(new.end)..to];
            let kept = beside.iter().filter(|range| !range.is_empty());
            let kept = kept.fold(0, |lines, range| lines | touched(range.start, range.end));
            let missing = kept & !entry.valid;
            if missing != 0 {
                self.fetch(&node.inner, file, block, missing, own(&mut entry.buffer))?;
                entry.valid |= missing;
            }
            if from < to {
                found.push(from..to);
            }
        }
        Ok(found)
    }

    /// Removes the blocks that the write touched from DRAM, after all is on media.
    fn replaced(
        &self,
        node: &CacheNode<L::Node>,
        file: &File,
        blocks: &mut Blocks,
        request: &Request<'_>,
        offset: u64,
    ) -> Result<()> {
        let mut leaving = Vec::new();
        for (block, from, to) in parts(offset, request.len) {
            let Some(entry) = blocks.index.get_mut(block) else { continue };
            self.counters.overwritten.add(bytes_of(entry.dirty & covered(from, to)));
            self.counters.written_back.add(bytes_of(entry.dirty & !covered(from, to)));
            entry.dirty = 0;
            leaving.push(block);
        }
        if let Some(times) = &mut *file.times.lock() {
            (times.mtime, times.ctime) = (request.now, request.now);
        }
        if !leaving.is_empty() && leaving.len() == blocks.index.len() {
            self.settle_times(&node.inner, file, &blocks.reservation)?;
        }
        self.leave_all(file, blocks, leaving);
        self.counters.written_eagerly.add(request.len);
        if blocks.index.is_empty() {
            file.recovered();
        }
        Ok(())
    }
}

/// Merges the bytes of a write with the dirty bytes beside it, in the order of the file. All bytes of an append are in
/// the last operation. If an earlier operation fails, nothing was appended.
fn gather<'a>(
    edges: &'a [Edge],
    request: &Request<'a>,
    offset: u64,
    write: impl FnMut(u64, &[IoSlice<'_>]) -> Result<()>,
) -> Result<()> {
    let mut gathered = Gathered { slices: SmallVec::new(), at: 0, end: u64::MAX, write };
    let mut source = Source::new(request.data);
    for (block, from, to) in parts(offset, request.len) {
        let start = block * BLOCK_SIZE;
        let Some(edge) = edges.iter().find(|edge| edge.block == block) else {
            source.pass(to - from, |at, bytes| gathered.add(start + (from + at) as u64, bytes))?;
            continue;
        };
        let buffer: &'a [u8; BLOCK] = &edge.buffer;
        for run in &edge.runs {
            let (before, behind) = (run.start..run.end.min(from), run.start.max(to)..run.end);
            if !before.is_empty() {
                gathered.add(start + before.start as u64, &buffer[before])?;
            }
            if run.start < to && from < run.end {
                source.pass(to - from, |at, bytes| gathered.add(start + (from + at) as u64, bytes))?;
            }
            if !behind.is_empty() {
                gathered.add(start + behind.start as u64, &buffer[behind])?;
            }
        }
    }
    gathered.finish()
}
