//! Moving blocks: resolve, copy, publish.

use nacre_engine::{
    BLOCK_SIZE, Copied, Durability, Error, FileBlock, FileKind, Kind, Movable, Place, PlacedExtent, Result,
    SeekTo, TierRun, Tiered, Timestamp,
};
use nacre_media::Durable;
use nacre_media::block::{BlockDevice, Pages};

use crate::data::Reading;
use crate::fs::MoverFs;
use crate::pieces;

/// What came of a migration, in blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// They are in the new place.
    pub moved: u64,
    /// They were written or freed while they were copied, and stay where they are.
    pub changed: u64,
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice> MoverFs<L, D> {
    /// Moves blocks of a file, of those in the range that are not there, to a tier: in groups, each with one write, one
    /// flush and one commit. With `keep`, what was moved stays in DRAM.
    ///
    /// [`NoSpace`](Kind::NoSpace) when the tier is full; what was moved before is moved. [`Busy`](Kind::Busy) while a program
    /// has the file mapped.
    pub fn move_down(
        &self,
        node: &L::Node,
        tier: u8,
        start: FileBlock,
        len: u64,
        keep: bool,
    ) -> Result<Moved> {
        self.move_range(
            node,
            tier,
            (start, len),
            keep,
            |place| !matches!(place, Place::Tier { tier: there, .. } if *there == tier),
        )
    }

    /// The same, of what is on persistent memory.
    pub(crate) fn move_from_memory(
        &self,
        node: &L::Node,
        tier: u8,
        start: FileBlock,
        len: u64,
        keep: bool,
    ) -> Result<Moved> {
        self.move_range(node, tier, (start, len), keep, |place| matches!(place, Place::Pm(_)))
    }

    fn move_range(
        &self,
        node: &L::Node,
        tier: u8,
        (start, len): (FileBlock, u64),
        keep: bool,
        which: impl Fn(&Place) -> bool + Copy,
    ) -> Result<Moved> {
        let mut total = Moved::default();
        if self.layout.kind(node) != FileKind::Regular {
            return Ok(total);
        }
        let modified = self.layout.getattr(node)?.mtime;
        let end = start.0.saturating_add(len);
        let mut at = start.0;
        while let Some(data) = self.next_data(node, at)?.filter(|data| *data < end) {
            at = data;
            let wanted = self.group().min(end - at);
            let group = self.move_group(node, tier, (FileBlock(at), wanted), modified, keep, which)?;
            let Some(group) = group else { break };
            total.moved += group.moved;
            total.changed += group.changed;
            at += wanted;
        }
        Ok(total)
    }

    /// Moves one group; `None` when the file ends before it.
    fn move_group(
        &self,
        node: &L::Node,
        tier: u8,
        (start, len): (FileBlock, u64),
        modified: Timestamp,
        keep: bool,
        which: impl Fn(&Place) -> bool,
    ) -> Result<Option<Moved>> {
        let size = self.layout.getattr(node)?.size.div_ceil(BLOCK_SIZE);
        if start.0 >= size {
            return Ok(None);
        }
        let mut moved = Moved::default();
        let reading = Reading::begin(&self.layout);
        let mut found = self.layout.resolve_movable(node, start, len)?;
        found.retain(|at| which(&at.extent.place));
        let blocks: u64 = found.iter().map(|at| at.extent.len).sum();
        if blocks == 0 {
            return Ok(Some(moved));
        }
        let runs = Taken { fs: self, runs: self.layout.allocate_on(tier, None, blocks)? };
        let mut content = Pages::new((blocks * BLOCK_SIZE) as usize);
        self.read_all(node, &found, &mut content)?;
        let pieces = pieces::split(runs.runs.iter().copied(), &content);
        self.tiers.write(&pieces)?;
        let proof = self.tiers.flush([tier])?;
        let copied = copies(&found, &runs.runs);
        let refused = match self.layout.publish(node, &copied, modified, proof) {
            Err(error) => return Err(runs.keep_unless_unpublished(error)),
            Ok(refused) => refused,
        };
        if keep {
            // Who reads holds what the file gives up: until then nobody else can have these blocks and write them.
            for (run, part) in &pieces {
                self.tiers.pages().fill(tier, run.start, part);
            }
        }
        drop(reading);
        moved.changed = refused.iter().map(|copy| copy.from.extent.len).sum();
        moved.moved = blocks - moved.changed;
        // What was published is the file's now.
        runs.keep();
        for Copied { from, tier, block } in refused {
            self.tiers.pages().drop_range(tier, block, from.extent.len);
            self.layout.free_on(TierRun { tier, start: block, len: from.extent.len });
        }
        Ok(Some(moved))
    }

    /// The first block at `block` or behind it that has data: files may be far larger than what is in them.
    pub(crate) fn next_data(&self, node: &L::Node, block: u64) -> Result<Option<u64>> {
        match self.layout.seek(node, block.saturating_mul(BLOCK_SIZE), SeekTo::Data) {
            Ok(offset) => Ok(Some((offset / BLOCK_SIZE).max(block))),
            Err(error) if error.kind() == Kind::NoSuchOffset => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The content of blocks from where they were found, one behind the other.
    fn read_all(&self, node: &L::Node, found: &[Movable], content: &mut [u8]) -> Result<()> {
        let mut rest = content;
        for at in found {
            let PlacedExtent { start, len, place } = at.extent;
            let (part, behind) = rest.split_at_mut((len * BLOCK_SIZE) as usize);
            match place {
                Place::Tier { tier, block } => {
                    let extent = TierRun { tier, start: block, len };
                    self.tiers.read(block.offset(), part, extent, 0)?;
                }
                // Where it is somewhere else by now, the version is another one, too.
                _ => match self.layout.read(node, start.offset(), part, None) {
                    Err(error) if error.kind() == Kind::Elsewhere => {}
                    other => drop(other?),
                },
            }
            rest = behind;
        }
        Ok(())
    }

    /// Moves blocks of a file from one tier to another; the parameters are those of [`MoverFs::move_down`].
    pub(crate) fn move_between(
        &self,
        node: &L::Node,
        from: u8,
        to: u8,
        range: (FileBlock, u64),
    ) -> Result<Moved> {
        self.move_range(
            node,
            to,
            range,
            false,
            |place| matches!(place, Place::Tier { tier, .. } if *tier == from),
        )
    }

    /// Brings blocks of a file up to persistent memory, as far as they are on tiers.
    pub fn bring_up(&self, node: &L::Node, start: FileBlock, len: u64) -> Result<Moved> {
        self.bring_up_from(node, start, len, Durability::Now, |_| true)
    }

    /// The same, as far as they are on some tiers.
    pub(crate) fn bring_up_from(
        &self,
        node: &L::Node,
        start: FileBlock,
        len: u64,
        durability: Durability,
        which: impl Fn(u8) -> bool,
    ) -> Result<Moved> {
        let mut total = Moved::default();
        if self.layout.kind(node) != FileKind::Regular {
            return Ok(total);
        }
        let modified = self.layout.getattr(node)?.mtime;
        let (mut at, end) = (start.0, start.0.saturating_add(len));
        while at < end {
            let _reading = Reading::begin(&self.layout);
            let group = self.group();
            // One at a time: each changes the version of its neighbours.
            let found = self.layout.resolve_movable(node, FileBlock(at), (end - at).min(group))?;
            let Some(last) = found.last().map(|last| last.extent.start.0 + last.extent.len) else {
                // A hole as long as a group, or the end.
                let Some(next) = self.next_data(node, at)? else { break };
                at = next.max(at.saturating_add(group));
                continue;
            };
            let on_tier = found.into_iter().find_map(|from| match from.extent.place {
                Place::Tier { tier, block } if which(tier) => Some((from, tier, block)),
                _ => None,
            });
            let Some((from, tier, block)) = on_tier else {
                at = last;
                continue;
            };
            let len = from.extent.len;
            let mut content = Pages::new((len * BLOCK_SIZE) as usize);
            let extent = TierRun { tier, start: block, len };
            self.tiers.read(block.offset(), &mut content, extent, 0)?;
            if self.layout.bring_up(node, &from, &content, durability, modified)? {
                // Nobody looks for them there any more, and others may want the room.
                self.tiers.pages().drop_range(tier, block, len);
                total.moved += len;
                at = from.extent.start.0 + len;
            } else {
                total.changed += len;
            }
        }
        Ok(total)
    }
}

/// Blocks of a tier that were taken, and are given back unless they are kept.
pub(crate) struct Taken<'f, L: Tiered<Proof = Durable>, D: BlockDevice> {
    fs: &'f MoverFs<L, D>,
    runs: Vec<TierRun>,
}

impl<'f, L: Tiered<Proof = Durable>, D: BlockDevice> Taken<'f, L, D> {
    pub(crate) fn new(fs: &'f MoverFs<L, D>, runs: Vec<TierRun>) -> Taken<'f, L, D> {
        Taken { fs, runs }
    }

    pub(crate) fn runs(&self) -> &[TierRun] {
        &self.runs
    }

    /// They are a file's now.
    pub(crate) fn keep(mut self) {
        self.runs.clear();
    }

    /// After a publication that failed: they are given back, unless its entry may be durable all the same. Then they may be
    /// nobody else's before a recovery has found out.
    pub(crate) fn keep_unless_unpublished(self, error: Error) -> Error {
        if error.kind() == Kind::Media {
            self.keep();
        }
        error
    }
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice> Drop for Taken<'_, L, D> {
    fn drop(&mut self) {
        self.runs.drain(..).for_each(|run| self.fs.layout.free_on(run));
    }
}

/// Which part of what was found is where on the tier.
fn copies(found: &[Movable], runs: &[TierRun]) -> Vec<Copied> {
    let mut copied = Vec::new();
    let mut runs = runs.iter().copied();
    let mut run: Option<TierRun> = runs.next();
    for from in found {
        let mut done = 0;
        while done < from.extent.len {
            let Some(here) = &mut run else { return copied };
            let len = here.len.min(from.extent.len - done);
            copied.push(Copied { from: part(from, done, len), tier: here.tier, block: here.start });
            (here.start, here.len) = (here.start.plus(len), here.len - len);
            if here.len == 0 {
                run = runs.next();
            }
            done += len;
        }
    }
    copied
}

/// Blocks of a piece.
fn part(from: &Movable, skip: u64, len: u64) -> Movable {
    let PlacedExtent { start, place, .. } = from.extent;
    let place = match place {
        Place::Pm(block) => Place::Pm(block.plus(skip)),
        Place::Tier { tier, block } => Place::Tier { tier, block: block.plus(skip) },
        other => other,
    };
    Movable { extent: PlacedExtent { start: FileBlock(start.0 + skip), len, place }, ..*from }
}
