//! Preparing a write: its data goes to new blocks, with the bytes that it keeps of old ones.

use std::io::IoSlice;

use nacre_engine::{BLOCK_SIZE, Result};
use nacre_media::{Flushed, Pm};
use smallvec::SmallVec;

use super::{Range, Write};
use crate::alloc::{Run, Runs};
use crate::blockmap::BlockMap;
use crate::file::join;
use crate::fs::Shared;
use crate::places::{is_written, media_offset};

const BLOCK: usize = BLOCK_SIZE as usize;

/// Bytes to write, gathered from several slices.
pub(crate) struct Source<'a> {
    slices: &'a [IoSlice<'a>],
    /// Position: which slice, and the offset in it.
    index: usize,
    within: usize,
}

impl<'a> Source<'a> {
    fn new(slices: &'a [IoSlice<'a>]) -> Source<'a> {
        Source { slices, index: 0, within: 0 }
    }

    /// From the byte `from` on.
    pub(crate) fn from(slices: &'a [IoSlice<'a>], from: u64) -> Source<'a> {
        let mut source = Source::new(slices);
        skip(&mut source, from);
        source
    }

    /// The next bytes, at most `limit`, from one slice.
    pub(crate) fn next(&mut self, limit: usize) -> &'a [u8] {
        while self.index < self.slices.len() && self.within == self.slices[self.index].len() {
            self.index += 1;
            self.within = 0;
        }
        let Some(slice) = self.slices.get(self.index) else { return &[] };
        let slice: &'a [u8] = &slice[self.within..];
        let part = &slice[..slice.len().min(limit)];
        self.within += part.len();
        part
    }

    fn fill(&mut self, mut buffer: &mut [u8]) {
        while !buffer.is_empty() {
            let part = self.next(buffer.len());
            buffer[..part.len()].copy_from_slice(part);
            buffer = &mut buffer[part.len()..];
        }
    }
}

/// A block of which a write keeps a part: where it was when it was read.
#[derive(Clone, Copy)]
pub(crate) struct Edge {
    pub(super) block: u64,
    pub(super) place: Option<u64>,
    pub(super) version: u64,
}

/// A write that is prepared: its data is on its way to new blocks.
pub(crate) struct Prepared {
    /// Blocks that were allocated for it.
    pub(crate) runs: Runs,
    /// Where the range goes, in order: those, and blocks that the file has already, allocated and not written.
    pub(crate) targets: SmallVec<[Target; 2]>,
    pub(super) edges: SmallVec<[Edge; 2]>,
    /// The size of the file when it was prepared.
    pub(super) size: u64,
    pub(super) flushed: Option<Flushed>,
}

impl Prepared {
    /// Nothing yet, for a file of this size.
    pub(crate) fn new(size: u64) -> Prepared {
        let (targets, edges) = (SmallVec::new(), SmallVec::new());
        Prepared { runs: Runs::new(), targets, edges, size, flushed: None }
    }
}

/// Where a part of a write goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) run: Run,
    /// The file had these blocks before.
    pub(crate) kept: bool,
}

impl<P: Pm> Shared<P> {
    /// Copies the data to new blocks, with the kept bytes of the old ones.
    pub(crate) fn copy_data(&self, write: &Write<'_>, range: Range, prepared: &mut Prepared) -> Result<()> {
        let map = self.file(write.inode)?;
        let size = prepared.size;
        let mut source = Source::from(write.data, range.before + range.in_place);
        let mut at = range.offset + range.in_place;
        let flushed = &mut prepared.flushed;
        for Target { run, .. } in &prepared.targets {
            let mut media = run.start.offset();
            let media_end = media + run.len * BLOCK_SIZE;
            while media < media_end && at < range.end {
                let within = (at % BLOCK_SIZE) as usize;
                let left = (range.end - at) as usize;
                // A partial block keeps the old bytes before the data, and those behind it up to the size.
                let ends_inside = within + left < BLOCK && range.end < size;
                if within != 0 || ends_inside {
                    let count = left.min(BLOCK - within);
                    let mut block = [0u8; BLOCK];
                    let edge = self.read_edge(map, at / BLOCK_SIZE, size, &mut block)?;
                    prepared.edges.push(edge);
                    source.fill(&mut block[within..within + count]);
                    join(flushed, Some(self.pm.copy(media, &block)?));
                    at += count as u64;
                    media += BLOCK_SIZE;
                    continue;
                }
                // Whole blocks; the last may be short when nothing of the file lies behind it.
                let mut count = left.min((media_end - media) as usize);
                if !count.is_multiple_of(BLOCK) && range.end < size {
                    count -= count % BLOCK;
                }
                let part = source.next(count);
                join(flushed, Some(self.pm.copy(media, part)?));
                let mut copied = part.len();
                while copied < count {
                    let part = source.next(count - copied);
                    join(flushed, Some(self.pm.copy(media + copied as u64, part)?));
                    copied += part.len();
                }
                at += count as u64;
                media += (count as u64).next_multiple_of(BLOCK_SIZE);
            }
        }
        Ok(())
    }

    /// Reads an old block of which a part is kept. Bytes beyond the size, holes and unwritten blocks are zeros.
    fn read_edge(&self, map: &BlockMap, block: u64, size: u64, buffer: &mut [u8; BLOCK]) -> Result<Edge> {
        let version = map.version(block);
        let place = map.read_at(block, 1, |place, _| {
            match place {
                Some(raw) if is_written(raw) => self.pm.read(media_offset(raw)?, buffer)?,
                _ => buffer.fill(0),
            }
            Ok(place)
        })?;
        let valid = size.saturating_sub(block * BLOCK_SIZE).min(BLOCK_SIZE) as usize;
        buffer[valid..].fill(0);
        Ok(Edge { block, place, version })
    }
}

fn skip(source: &mut Source<'_>, mut count: u64) {
    while count > 0 {
        count -= source.next(count as usize).len() as u64;
    }
}
