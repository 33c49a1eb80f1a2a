//! Promotion of blocks to PM: resolve, read, commit.

use nacre_engine::{BLOCK_SIZE, Draw, FileBlock, FileKind, Place, Result, TierRun, Tiered, Timestamp};
use nacre_media::Durable;
use nacre_media::block::{BlockDevice, Pages};

use crate::engine::budget::Budget;
use crate::engine::demote::MovedFiles;
use crate::engine::executor::{AT_ONCE, Moved};
use crate::places::{Places, Reading};

/// Times that promotion of blocks is tried, each time of half as many, where some of them are written meanwhile.
const REFUSALS: usize = 200;

/// The blocks to be promoted.
struct Rise<'a, N> {
    node: &'a N,
    at: u64,
    end: u64,
    draw: Draw<'a>,
    modified: Timestamp,
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Places<L, D> {
    /// See [`TieredFs::promote`](crate::TieredFs::promote).
    pub(crate) fn promote(&self, node: &L::Node, start: FileBlock, len: u64) -> Result<Moved> {
        self.promote_from(node, start, len, Draw::Available, |_| true)
    }

    /// The same, as far as they are on some tiers.
    pub(crate) fn promote_from(
        &self,
        node: &L::Node,
        start: FileBlock,
        len: u64,
        draw: Draw<'_>,
        which: impl Fn(u8) -> bool,
    ) -> Result<Moved> {
        let mut total = Moved::default();
        self.promote_onto(node, start, len, draw, which, &mut total).map(|()| total)
    }

    /// The same. Its result is added to `total`, also the blocks that moved before an error.
    pub(crate) fn promote_onto(
        &self,
        node: &L::Node,
        start: FileBlock,
        len: u64,
        draw: Draw<'_>,
        which: impl Fn(u8) -> bool,
        total: &mut Moved,
    ) -> Result<()> {
        if self.layout.kind(node) != FileKind::Regular {
            return Ok(());
        }
        let modified = self.layout.getattr(node)?.mtime;
        let (mut at, end) = (start.0, start.0.saturating_add(len));
        while at < end {
            let rise = Rise { node, at, end, draw, modified };
            let (next, moved) = self.promote_next(&rise, &which)?;
            total.moved += moved.moved;
            total.changed += moved.changed;
            at = next;
        }
        Ok(())
    }

    /// Promotes the first blocks that lie together; gives where the rest begins. Blocks that are written all the time
    /// meanwhile are passed over in the end, because the caller may hold a lock that others wait for.
    fn promote_next(&self, rise: &Rise<'_, L::Node>, which: &impl Fn(u8) -> bool) -> Result<(u64, Moved)> {
        let Rise { node, mut at, end, draw, modified } = *rise;
        // As long as it reads, what it has read stays where it was.
        let _reading = Reading::begin(&self.layout);
        let group = self.settings.group().min(AT_ONCE);
        let mut piece = group;
        for _ in 0..REFUSALS {
            // Of these the first ones on a tier that lie together: each commit is of such.
            let found = self.layout.resolve_movable(node, FileBlock(at), (end - at).min(piece))?;
            let Some(last) = found.last().map(|last| last.extent.start.0 + last.extent.len) else {
                // A hole as long as that, or the end.
                let next = self.next_data(node, at)?.map(|next| next.max(at.saturating_add(piece)));
                return Ok((next.unwrap_or(end), Moved::default()));
            };
            let on_tier = found.into_iter().find_map(|from| match from.extent.place {
                Place::Tier { tier, block } if which(tier) => Some((from, tier, block)),
                _ => None,
            });
            let Some((from, tier, block)) = on_tier else { return Ok((last, Moved::default())) };
            let len = from.extent.len;
            // Read anew after each refusal: a block may have been written where it is. Bytes from before that must not
            // come up with the version from behind it.
            let mut content = Pages::lent((len * BLOCK_SIZE) as usize);
            self.tiers.read(block.offset(), &mut content, TierRun { tier, start: block, len }, 0)?;
            at = from.extent.start.0;
            if self.layout.bring_up(node, &from, &content, draw, modified)? {
                // They are not looked up there any more, and others may want the room.
                self.tiers.pages().drop_range(tier, block, len);
                return Ok((at + len, Moved { moved: len, changed: 0 }));
            }
            // One of them changed meanwhile, or a block that shares its counter did. Less takes less time.
            piece = (len / 2).max(1);
        }
        Ok((at + piece, Moved { moved: 0, changed: piece }))
    }

    /// See [`TieredFs::promote_some`](crate::TieredFs::promote_some).
    pub(crate) fn promote_some(&self, nodes: &[L::Node], from: FileBlock, budget: &Budget<'_>) -> MovedFiles {
        let mut done = MovedFiles { from: from.0, ..MovedFiles::default() };
        while let Some(node) = nodes.get(done.next) {
            let mut total = Moved::default();
            let came = self.promote_part(node, done.from, &mut total);
            done.moved += total.moved;
            match came {
                Ok(Some(from)) => done.from = from,
                other => {
                    done.failed.extend(other.err().map(|error| (done.next, error)));
                    (done.next, done.from) = (done.next + 1, 0);
                }
            }
            if !budget.goes_on() {
                break;
            }
        }
        done
    }

    /// Promotes a group of a file; gives where the next one begins. `None` behind its data. The blocks that moved are
    /// added to `total`.
    fn promote_part(&self, node: &L::Node, from: u64, total: &mut Moved) -> Result<Option<u64>> {
        if self.layout.kind(node) != FileKind::Regular {
            return Ok(None);
        }
        let Some(data) = self.next_data(node, from)? else { return Ok(None) };
        let group = self.settings.group();
        self.promote_onto(node, FileBlock(data), group, Draw::Available, |_| true, total)?;
        Ok(Some(data.saturating_add(group)))
    }
}
