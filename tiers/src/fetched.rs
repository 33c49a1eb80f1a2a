//! Blocks that were read from a tier, on their way to a reader and into the page cache.

use nacre_engine::{BLOCK_SIZE, Block};
use nacre_media::Frame;
use nacre_media::block::{Pages, Transfer};

use crate::pages::PageCache;

const BLOCK: usize = BLOCK_SIZE as usize;
/// Above this number of blocks, a read goes to one contiguous buffer as several transfers at once. The blocks are
/// then copied from it.
const MOST_FRAMES: u64 = 256;

/// Buffers for neighbouring blocks of a tier.
pub(crate) struct Fetched<'p> {
    pages: &'p PageCache,
    tier: u8,
    start: Block,
    memory: Memory,
    /// Of the page cache, before they were read.
    rewrites: u64,
}

enum Memory {
    /// Where they stay: nothing is copied to remember them.
    Frames(Vec<Frame>),
    Lent(Pages),
}

impl<'p> Fetched<'p> {
    pub(crate) fn new(pages: &'p PageCache, tier: u8, start: Block, blocks: u64) -> Fetched<'p> {
        let frames = if blocks <= MOST_FRAMES { pages.frames(tier, start, blocks) } else { None };
        let memory =
            frames.map_or_else(|| Memory::Lent(Pages::lent((blocks * BLOCK_SIZE) as usize)), Memory::Frames);
        Fetched { pages, tier, start, memory, rewrites: pages.rewrites() }
    }

    /// The transfers that read the first so many of them, each of at most `most` bytes, and their bytes.
    pub(crate) fn transfers(&mut self, blocks: u64, most: usize) -> Vec<Transfer<'_>> {
        let blocks = blocks as usize;
        let mut offset = self.start.offset();
        let read = |into| {
            let transfer = Transfer::Read { offset, into };
            offset += transfer.len();
            transfer
        };
        match &mut self.memory {
            Memory::Frames(frames) => {
                let block = |frame| match Frame::get_mut(frame) {
                    Some(block) => &mut block[..],
                    None => unreachable!("no other handle exists"),
                };
                frames[..blocks].iter_mut().map(block).map(read).collect()
            }
            Memory::Lent(bytes) => bytes[..blocks * BLOCK].chunks_mut(most).map(read).collect(),
        }
    }

    /// Copies from this byte of the first so many blocks on; gives the number of bytes.
    pub(crate) fn copy_to(&self, into: &mut [u8], from: usize, blocks: u64) -> usize {
        let count = (blocks as usize * BLOCK - from).min(into.len());
        match &self.memory {
            Memory::Lent(bytes) => into[..count].copy_from_slice(&bytes[from..from + count]),
            Memory::Frames(frames) => {
                let mut done = 0;
                while done < count {
                    let at = from + done;
                    let part = &frames[at / BLOCK][at % BLOCK..];
                    let len = part.len().min(count - done);
                    into[done..done + len].copy_from_slice(&part[..len]);
                    done += len;
                }
            }
        }
        count
    }

    /// Caches the first blocks, which were read. The caller knows that no other file is given them meanwhile. If
    /// their own file wrote them since they were asked for, they are not cached.
    pub(crate) fn keep(mut self, blocks: u64) {
        match &mut self.memory {
            Memory::Lent(bytes) => {
                self.pages.fill_read(
                    self.tier,
                    self.start,
                    &bytes[..(blocks * BLOCK_SIZE) as usize],
                    self.rewrites,
                );
            }
            Memory::Frames(frames) => {
                self.pages.keep(self.tier, self.start, frames.drain(..blocks as usize), self.rewrites);
            }
        }
    }
}

impl Drop for Fetched<'_> {
    fn drop(&mut self) {
        if let Memory::Frames(frames) = &mut self.memory {
            self.pages.give_back(frames.drain(..));
        }
    }
}
