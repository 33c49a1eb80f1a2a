//! Reading files that may be on tiers. The layout is asked first, so that files on PM cost nothing more.

use nacre_engine::{
    BLOCK_SIZE, FileBlock, Kind, Place, PlacedExtent, Result, TierRead, TierRun, Tiered, Timestamp,
};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;
use nacre_policy::migration::{Access, AccessKind};

use crate::io::Files;
use crate::places::Reading;
use crate::stats::predictors::blocks_of;
use crate::stats::samples::millis;

/// A block on a tier that a read has met.
struct Met {
    /// Its extent, or a part of that from the block on.
    extent: PlacedExtent,
    /// The drops of the page cache before its place was found. A page that is found without another drop since is a page
    /// of this place.
    drops: u64,
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Files<'_, L, D> {
    /// Reads, from wherever the blocks are.
    pub(crate) fn read(
        &self,
        node: &L::Node,
        offset: u64,
        buf: &mut [u8],
        now: Option<Timestamp>,
    ) -> Result<usize> {
        let drops = self.places.tiers.pages().drops();
        match self.places.layout.read_or_resolve(node, offset, buf, now)? {
            TierRead::Done(count) => {
                if self.places.has_tiers() {
                    self.stats.samples.count(AccessKind::Read, count as u64);
                    self.note(node, AccessKind::Read, offset, count as u64, now);
                }
                Ok(count)
            }
            TierRead::OnTier { done, extent, size } => {
                let first = (done, Some(Met { extent, drops }));
                self.read_from_tiers(node, offset, buf, first, size, now)
            }
        }
    }

    /// Reads a range with a block on a tier. `first` is what was read before the first such block, and that block.
    fn read_from_tiers(
        &self,
        node: &L::Node,
        offset: u64,
        buffer: &mut [u8],
        first: (usize, Option<Met>),
        size: u64,
        now: Option<Timestamp>,
    ) -> Result<usize> {
        let len = buffer.len().min(size.saturating_sub(offset) as usize);
        let ahead = self.read_ahead(node, offset, len as u64, size);
        let mut done = 0;
        let mut first = Some(first);
        while done < len {
            let (before, met) = match first.take() {
                Some(first) => first,
                None => self.read_to_tier(node, offset + done as u64, &mut buffer[done..len])?,
            };
            self.stats.samples.count(AccessKind::Read, before as u64);
            done += before;
            let Some(met) = met else { break };
            let (at, rest) = (offset + done as u64, &mut buffer[done..len]);
            let count = match self.read_remembered(at, rest, &met) {
                Some(count) => count,
                None => self.read_piece(node, at, rest, ahead)?,
            };
            if count == 0 {
                break;
            }
            done += count;
        }
        // A truncation may have come first: the bytes behind its end are not the file's.
        let size = self.places.layout.size(node)?;
        done = done.min(size.saturating_sub(offset) as usize);
        if let Some(now) = now {
            self.places.layout.note_read(node, now);
        }
        if self.places.has_tiers() {
            self.note(node, AccessKind::ReadBelow, offset, done as u64, now);
        }
        if self.places.settings.has_anticache() && done > 0 {
            let span = blocks_of(offset, done as u64);
            self.io.ahead.leave_below(self.places.layout.id(node), span.start..span.start + span.len);
        }
        Ok(done)
    }

    /// Reads up to the next block on a tier: the number of bytes before it, and the block, if there is one.
    fn read_to_tier(&self, node: &L::Node, at: u64, buffer: &mut [u8]) -> Result<(usize, Option<Met>)> {
        let drops = self.places.tiers.pages().drops();
        Ok(match self.places.layout.read_or_resolve(node, at, buffer, None)? {
            TierRead::Done(count) => (count, None),
            TierRead::OnTier { done, extent, .. } => (done, Some(Met { extent, drops })),
        })
    }

    /// Blocks that are worth fetching at once for a read of these bytes, as far as they lie together; 0 for only the
    /// blocks that are read. Blocks behind them are left to the read-ahead threads.
    fn read_ahead(&self, node: &L::Node, offset: u64, len: u64, size: u64) -> u64 {
        // Nothing is remembered, or nothing is behind it: a file that is read at once takes no room from others.
        if self.places.tiers.pages().capacity() == 0 || offset == 0 && len == size {
            return 0;
        }
        let span = blocks_of(offset, len);
        let id = self.places.layout.id(node);
        let (now, behind) = self.io.readers.read(id, span.start, span.len);
        self.io.ahead.leave(id, behind.start..behind.end.min(size.div_ceil(BLOCK_SIZE)));
        now
    }

    /// Reads the bytes that lie together from `at` on if all of them are in the page cache. The read is not recorded as
    /// a sample: that takes a lock that all reads of tiers share, twice.
    fn read_remembered(&self, at: u64, buffer: &mut [u8], met: &Met) -> Option<usize> {
        let PlacedExtent { start, len, place: Place::Tier { tier, block } } = met.extent else { return None };
        let end = (start.0 + len) * BLOCK_SIZE;
        let count = buffer.len().min((end - at) as usize);
        let on_tier = block.offset() + (at - start.offset());
        let pages = self.places.tiers.pages();
        if !pages.read_unannounced(tier, on_tier, &mut buffer[..count], met.drops) {
            return None;
        }
        self.stats.samples.count(AccessKind::ReadBelow, count as u64);
        Some(count)
    }

    /// Reads the bytes that lie together from `at` on, and some blocks `ahead`; 0 at the end of the file.
    fn read_piece(&self, node: &L::Node, at: u64, buffer: &mut [u8], ahead: u64) -> Result<usize> {
        let block = at / BLOCK_SIZE;
        let blocks = (at + buffer.len() as u64).div_ceil(BLOCK_SIZE) - block;
        loop {
            let reading = Reading::begin(&self.places.layout);
            // The blocks behind it on the tier may be read ahead.
            let found = self.places.layout.resolve(node, FileBlock(block), blocks + ahead)?;
            let Some(PlacedExtent { start, len, place }) = found.first().copied() else { return Ok(0) };
            let here = start.0 + len - block;
            let count = buffer.len().min((here * BLOCK_SIZE - at % BLOCK_SIZE) as usize);
            if let Place::Tier { tier, block: first } = place {
                let extent = TierRun { tier, start: first, len };
                let on_tier = first.offset() + (at - start.offset());
                let id = self.places.layout.id(node);
                let missed = self.places.tiers.read(on_tier, &mut buffer[..count], extent, ahead).map_err(
                    |error| error.operation("read").object(format!("inode {} at byte {at}", id.number)),
                )?;
                self.stats.samples.count(AccessKind::ReadBelow, count as u64);
                // A sequential reader waits seldom, on any tier.
                if missed > 0 && ahead == 0 && self.places.has_tiers() {
                    self.stats.misses.note(id, blocks_of(at, count as u64), missed);
                }
                return Ok(count);
            }
            drop(reading);
            match self.places.layout.read(node, at, &mut buffer[..count], None) {
                // It was moved since.
                Err(error) if error.kind() == Kind::Elsewhere => {}
                read => {
                    let count = read?;
                    self.stats.samples.count(AccessKind::Read, count as u64);
                    return Ok(count);
                }
            }
        }
    }

    /// Leaves a sample of an access.
    pub(crate) fn note(
        &self,
        node: &L::Node,
        kind: AccessKind,
        offset: u64,
        len: u64,
        now: Option<Timestamp>,
    ) {
        let (id, blocks) = (self.places.layout.id(node), blocks_of(offset, len));
        // For anti-caching a run of accesses is as one.
        if self.places.settings.has_anticache() && self.stats.samples.goes_on(id, kind, blocks) {
            return;
        }
        self.stats.samples.note(|| {
            let attr = self.places.layout.getattr(node).ok()?;
            Some(Access {
                file: id,
                kind,
                start: blocks.start,
                blocks: blocks.len,
                size: attr.size.div_ceil(BLOCK_SIZE),
                modified_ms: millis(attr.mtime),
                at_ms: now.map_or_else(|| self.stats.samples.time_ms(), millis),
            })
        });
    }
}
