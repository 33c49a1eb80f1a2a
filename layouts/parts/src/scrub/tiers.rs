//! The part of a scrub that reads tiers: their own superblocks, and blocks of files. Contents have no checksums, so
//! only ranges that a device cannot read are found. Free blocks are not read.

use std::ops::Range;

use nacre_engine::{BLOCK_SIZE, Block, Error, Kind, Result, TierRun};

use super::{Scrub, Scrubbed};

/// Blocks that are read at a time: 1 MiB.
const AT_ONCE: u64 = 256;

/// A part of a file on a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TierPart {
    /// The blocks.
    pub run: TierRun,
    /// The block in the file that the first of them is; none where they are an image of its log.
    pub in_file: Option<u64>,
}

/// How far a scrub is on a tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierScrub {
    /// The number of the tier.
    pub number: u8,
    /// Bytes of files that were read.
    pub bytes: u64,
    /// Bytes that were in use when the scrub began, including allocated blocks that are not written.
    pub used: u64,
    /// Why it was not read, or not to the end.
    pub unread: Option<String>,
}

impl<F: Scrubbed> Scrub<F> {
    /// Every tier's superblock must validate, and every block that files have on it must be readable.
    pub(super) fn tiers(&mut self) -> Result<()> {
        let tiers = self.fs.tiers();
        if tiers.is_empty() {
            return Ok(());
        }
        for (number, used) in tiers {
            let checked = self.fs.check_tier(number);
            let unread = checked.as_ref().err().map(ToString::to_string);
            self.status.lock().tiers.push(TierScrub { number, bytes: 0, used, unread });
            for damaged in checked.unwrap_or_default() {
                let outcome =
                    if damaged.is_repaired { "was damaged and is written again" } else { "is damaged" };
                self.found(format!("tier {number}: the {} copy of its superblock {outcome}", damaged.copy));
                self.status.lock().repaired += u64::from(damaged.is_repaired);
            }
        }
        for number in self.fs.inodes() {
            if self.is_stopped() {
                return Ok(());
            }
            match self.fs.on_tiers(number) {
                Ok(parts) => self.parts(number, &parts),
                Err(error) if error.kind() == Kind::Corrupt => {
                    self.found(format!("{} (inode {number}): {error}", self.path_of(number)));
                }
                // One that cannot be loaded was reported before, and a tier that is missing, too.
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn parts(&mut self, number: u64, parts: &[TierPart]) {
        for part in parts {
            let mut bad: Option<(Range<u64>, Error)> = None;
            let mut done = 0;
            while done < part.run.len && !self.is_stopped() && self.is_read(part.run.tier) {
                let count = AT_ONCE.min(part.run.len - done);
                if self.read(part, done, count).is_err() {
                    self.single_blocks(number, part, done..done + count, &mut bad);
                }
                done += count;
                self.pace.spend(count * BLOCK_SIZE);
            }
            self.tell_part(number, part, bad);
        }
    }

    /// Reads blocks one by one, and collects those that lie together and cannot be read.
    fn single_blocks(
        &self,
        number: u64,
        part: &TierPart,
        blocks: Range<u64>,
        bad: &mut Option<(Range<u64>, Error)>,
    ) {
        for block in blocks {
            match self.read(part, block, 1) {
                Ok(()) => self.tell_part(number, part, bad.take()),
                Err(error) if error.kind() == Kind::DeviceLost && !self.fs.is_there(part.run.tier) => {
                    return self.gone(part.run.tier, &error);
                }
                Err(error) => match bad {
                    Some((range, _)) => range.end = block + 1,
                    None => *bad = Some((block..block + 1, error)),
                },
            }
        }
    }

    fn read(&self, part: &TierPart, from: u64, count: u64) -> Result<()> {
        let TierRun { tier, start, .. } = part.run;
        self.fs.read_tier(TierRun { tier, start: Block(start.0 + from), len: count })?;
        if let Some(tier) = self.status.lock().tiers.iter_mut().find(|known| known.number == tier) {
            tier.bytes += count * BLOCK_SIZE;
        }
        Ok(())
    }

    /// Whether a tier is read any more.
    fn is_read(&self, tier: u8) -> bool {
        self.status.lock().tiers.iter().any(|known| known.number == tier && known.unread.is_none())
    }

    fn gone(&self, tier: u8, error: &Error) {
        if let Some(known) = self.status.lock().tiers.iter_mut().find(|known| known.number == tier) {
            known.unread = Some(error.to_string());
        }
    }

    /// Reports a part of a file that cannot be read, if it is still there: blocks move meanwhile.
    fn tell_part(&self, number: u64, part: &TierPart, bad: Option<(Range<u64>, Error)>) {
        let Some((blocks, error)) = bad else { return };
        let TierRun { tier, start, .. } = part.run;
        let first = start.0 + blocks.start;
        let is_it = |now: &TierPart| {
            now.run.tier == tier && (now.run.start.0..now.run.start.0 + now.run.len).contains(&first)
        };
        if !self.fs.on_tiers(number).unwrap_or_default().iter().any(is_it) {
            return;
        }
        let what = match part.in_file {
            Some(block) => {
                let [from, to] = [blocks.start, blocks.end].map(|at| (block + at) * BLOCK_SIZE);
                format!("bytes {from} to {to} of it cannot be read on tier {tier}: {error}")
            }
            None => format!("the list of its extents cannot be read on tier {tier}: {error}"),
        };
        self.found(format!("{} (inode {number}): {what}", self.path_of(number)));
    }
}
