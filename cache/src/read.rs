//! Reads: lines from DRAM that are there, and the rest from the layout.

use nacre_engine::{BLOCK_SIZE, BelowBuffer, Extents, Result, Timestamp};

use crate::buffer::{LINE, lines, runs};
use crate::file::{Blocks, CacheNode, File};
use crate::fs::Shared;

/// Seconds after which relatime updates atime in any case.
const RELATIME_SECS: i64 = 24 * 60 * 60;

impl<L: BelowBuffer + Extents> Shared<L> {
    pub(crate) fn read(
        &self,
        node: &CacheNode<L::Node>,
        offset: u64,
        buf: &mut [u8],
        now: Option<Timestamp>,
    ) -> Result<usize> {
        // Without waiting data the file need not be looked up, which costs more than the rest of a small read.
        if self.pool.is_empty() {
            return self.layout.read(&node.inner, offset, buf, now);
        }
        let Some(file) = self.known_file(node).filter(|file| file.is_cached()) else {
            return self.layout.read(&node.inner, offset, buf, now);
        };
        let blocks = file.blocks.read();
        if blocks.index.is_empty() {
            drop(blocks);
            return self.layout.read(&node.inner, offset, buf, now);
        }
        let len = file.size().saturating_sub(offset).min(buf.len() as u64) as usize;
        if len == 0 {
            return Ok(0);
        }
        if let Some(now) = now {
            self.note_read(&node.inner, file, now)?;
        }
        self.merge(node, &blocks, offset, &mut buf[..len], now)?;
        Ok(len)
    }

    /// Fills a range inside the file from DRAM and the layout, with one copy for each run of lines.
    fn merge(
        &self,
        node: &CacheNode<L::Node>,
        blocks: &Blocks,
        offset: u64,
        buf: &mut [u8],
        now: Option<Timestamp>,
    ) -> Result<()> {
        let end = offset + buf.len() as u64;
        // `buf` is filled up to here.
        let mut at = offset;
        let mut from_dram = 0;
        for (block, entry) in blocks.index.range(offset / BLOCK_SIZE..end.div_ceil(BLOCK_SIZE)) {
            let start = block * BLOCK_SIZE;
            for (first, after) in runs(entry.valid) {
                let from = (start + (first * LINE) as u64).max(at);
                let to = (start + (after * LINE) as u64).min(end);
                if from >= to {
                    continue;
                }
                // Bytes before this run, in this block and in those before it, are the layout's.
                self.read_below(node, at, &mut buf[(at - offset) as usize..(from - offset) as usize], now)?;
                let bytes = &entry.buffer[(from - start) as usize..(to - start) as usize];
                buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(bytes);
                from_dram += to - from;
                at = to;
            }
        }
        self.counters.read_from_dram.add(from_dram);
        self.read_below(node, at, &mut buf[(at - offset) as usize..], now)
    }

    /// Reads from the layout. Bytes behind its size are a hole.
    fn read_below(
        &self,
        node: &CacheNode<L::Node>,
        at: u64,
        buf: &mut [u8],
        now: Option<Timestamp>,
    ) -> Result<()> {
        if buf.is_empty() {
            return Ok(());
        }
        let count = self.layout.read(&node.inner, at, buf, now)?;
        buf[count..].fill(0);
        Ok(())
    }

    /// Fetches lines of a block that a write covers in part. Under `blocks`, exclusively.
    pub(crate) fn fetch(
        &self,
        node: &L::Node,
        file: &File,
        block: u64,
        missing: u64,
        bytes: &mut [u8],
    ) -> Result<()> {
        for (first, end) in runs(missing) {
            let part = &mut bytes[first * LINE..end * LINE];
            let at = block * BLOCK_SIZE + (first * LINE) as u64;
            let mut count = 0;
            if at < file.below() {
                count = self.layout.read(node, at, part, None)?;
                self.counters.fetched.add((lines(first, end).count_ones() as usize * LINE) as u64);
            }
            part[count..].fill(0);
        }
        Ok(())
    }

    /// relatime, if the layout does not have the newest times.
    fn note_read(&self, node: &L::Node, file: &File, now: Timestamp) -> Result<()> {
        let Some(times) = *file.times.lock() else { return Ok(()) };
        let below = self.layout.getattr(node)?;
        let atime = times.atime.unwrap_or(below.atime);
        let is_old = now.secs.saturating_sub(atime.secs) > RELATIME_SECS;
        if (is_old || atime <= times.mtime || atime <= times.ctime.max(below.ctime))
            && let Some(times) = &mut *file.times.lock()
        {
            times.atime = Some(now);
        }
        Ok(())
    }
}
