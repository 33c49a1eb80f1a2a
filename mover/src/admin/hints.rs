//! Where the data of a file is, as an attribute that users read, and set to have it moved.
//!
//! Unlike a [pin](crate::PIN) nothing of it is stored or inherited: it is an order, which is done once. Data written
//! later goes where the mover says, as after `nacre promote` and `demote`. The attribute does not show in lists either,
//! so that a copy of a file with its attributes does not copy its placement.

use std::collections::{BTreeSet, VecDeque};

use nacre_engine::sync::Mutex;
use nacre_engine::{
    BLOCK_SIZE, Error, FileBlock, FileKind, InodeId, Kind, Place, Result, Tier, Tiered, XattrMode,
};
use nacre_media::Durable;
use nacre_media::block::BlockDevice;
use nacre_tiers::Attachment;
use uuid::Uuid;

use crate::engine::Mover;
use crate::engine::budget::Budget;
use crate::engine::progress::{Doing, Way};
use crate::engine::state::State;
use crate::places::Places;
use crate::stats::samples::millis;

/// The extended attribute of a file. Its value is the place of its data: `pm`, the number of a tier, or several of them
/// with commas between, `pm` first; empty for a file without data. If it is set to `pm`, or to the number or the UUID
/// of a tier, the mover soon moves the file there.
pub const TIER: &[u8] = b"user.nacre.tier";

/// The name of PM in its value.
pub(crate) const MEMORY: &str = "pm";

/// Files that wait to be moved, at most.
const MAX_HINTS: usize = 4096;

/// Blocks whose places are looked at in one go: 1 GiB.
const WINDOW: u64 = 1 << 18;

/// A file that was told to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hint {
    id: InodeId,
    to: Option<u8>,
    /// Those of its blocks before this one are done.
    from: u64,
}

/// Files that were told to move, the first one first.
#[derive(Default)]
pub(crate) struct Hints {
    waiting: Mutex<VecDeque<Hint>>,
    /// Why the last one was refused, or stayed where it is.
    refused: Mutex<Option<String>>,
}

impl Hints {
    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.lock().len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Why the last one was refused, or stayed where it is.
    pub(crate) fn refused(&self) -> Option<String> {
        self.refused.lock().clone()
    }

    /// [`Busy`](Kind::Busy) when too many wait. A file that waits already is told otherwise.
    fn add(&self, hint: Hint) -> Result<()> {
        let mut waiting = self.waiting.lock();
        match waiting.iter().position(|other| other.id == hint.id) {
            Some(at) => waiting[at] = hint,
            None if waiting.len() >= MAX_HINTS => {
                return Err(Error::new(Kind::Busy)
                    .object(format!("{MAX_HINTS} files that are to be moved"))
                    .advice("nacre mover wait waits until they have moved"));
            }
            None => waiting.push_back(hint),
        }
        Ok(())
    }

    /// Those that come first, at most `most`.
    pub(crate) fn first_ones(&self, most: usize) -> Vec<InodeId> {
        self.waiting.lock().iter().take(most).map(|hint| hint.id).collect()
    }

    fn first(&self) -> Option<Hint> {
        self.waiting.lock().front().copied()
    }

    /// Something of the first one was done: it goes on from a block, or is over.
    fn step(&self, hint: &Hint, next: Option<u64>) {
        let mut waiting = self.waiting.lock();
        // It may have been told otherwise meanwhile, or taken back.
        let Some(first) = waiting.front_mut().filter(|first| *first == hint) else { return };
        match next {
            Some(from) => first.from = from,
            None => drop(waiting.pop_front()),
        }
    }

    /// Whether a file waited, which now stays.
    pub(crate) fn take_back(&self, id: InodeId) -> bool {
        let mut waiting = self.waiting.lock();
        let before = waiting.len();
        waiting.retain(|hint| hint.id != id);
        waiting.len() != before
    }

    /// Keeps the error for the status of the mover, because the front ends cannot convey its text.
    fn refuse(&self, id: InodeId, error: &Error) {
        *self.refused.lock() = Some(format!("inode {}: {error}", id.number));
    }
}

/// The place that a value requests: a tier, or `None` for PM.
fn wanted(value: &[u8], known: &[Tier]) -> Result<Option<u8>> {
    let text = std::str::from_utf8(value).unwrap_or_default();
    if text == MEMORY {
        return Ok(None);
    }
    let is_meant = |tier: &&Tier| match Uuid::parse_str(text) {
        Ok(uuid) => tier.uuid == uuid.into_bytes(),
        Err(_) => text.parse() == Ok(tier.number),
    };
    let tier = known.iter().find(is_meant).ok_or_else(|| {
        Error::new(Kind::InvalidInput)
            .object(format!("{} of {:?}", name(), String::from_utf8_lossy(value)))
            .advice("give pm, or the number or UUID of a tier, which nacre tier list shows")
    })?;
    Ok(Some(tier.number))
}

fn name() -> std::borrow::Cow<'static, str> {
    String::from_utf8_lossy(TIER)
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Places<L, D> {
    /// The value of the attribute. [`NoAttribute`](Kind::NoAttribute) of anything but a file, and without tiers.
    pub(crate) fn whereabouts(&self, node: &L::Node) -> Result<Vec<u8>> {
        let known = self.layout.tiers().len();
        if known == 0 || self.layout.kind(node) != FileKind::Regular {
            return Err(Kind::NoAttribute.into());
        }
        let (mut is_here, mut tiers) = (false, BTreeSet::new());
        let mut at = 0;
        while let Some(data) = self.next_data(node, at)? {
            for extent in self.layout.resolve(node, FileBlock(data), WINDOW)? {
                match extent.place {
                    Place::Pm(_) => is_here = true,
                    Place::Tier { tier, .. } => drop(tiers.insert(tier)),
                    // No data is there.
                    Place::Hole | Place::Unwritten(_) | Place::UnwrittenOnTier { .. } => {}
                }
            }
            if is_here && tiers.len() == known {
                break;
            }
            at = data.saturating_add(WINDOW);
        }
        let memory = is_here.then(|| MEMORY.to_owned());
        let places: Vec<String> =
            memory.into_iter().chain(tiers.into_iter().map(|tier| tier.to_string())).collect();
        Ok(places.join(",").into_bytes())
    }
}

impl<L: Tiered<Proof = Durable>, D: BlockDevice + 'static> Mover<'_, L, D> {
    /// Has a file moved to where the value says, soon. [`InvalidInput`](Kind::InvalidInput) for another value, and for
    /// an object without blocks that move; [`Unsupported`](Kind::Unsupported) without tiers;
    /// [`DeviceLost`](Kind::DeviceLost) for a tier that is missing.
    pub(crate) fn hint(&self, node: &L::Node, value: &[u8], how: XattrMode) -> Result<()> {
        let id = self.places.layout.id(node);
        self.check_hint(node, value, how)
            .and_then(|to| self.engine.hints.add(Hint { id, to, from: 0 }))
            .inspect_err(|error| self.engine.hints.refuse(id, error))
    }

    fn check_hint(&self, node: &L::Node, value: &[u8], how: XattrMode) -> Result<Option<u8>> {
        let known = self.places.layout.tiers();
        if known.is_empty() {
            return Err(Error::new(Kind::Unsupported)
                .object(format!("{} without tiers", name()))
                .advice("nacre tier add makes one"));
        }
        if self.places.layout.kind(node) != FileKind::Regular {
            return Err(Error::new(Kind::InvalidInput)
                .object(format!("{} of a directory", name()))
                .advice("only files have blocks that move"));
        }
        if how == XattrMode::Create {
            // Every file is somewhere.
            return Err(Kind::Exists.into());
        }
        let to = wanted(value, &known)?;
        if let Some(tier) = to
            && let Some(Attachment { device: Err(why), .. }) = self.places.tiers.attachment(tier)
        {
            return Err(Error::new(Kind::DeviceLost)
                .object(format!("tier {tier}: {why}"))
                .advice("give its place to nacre tier online; until then choose another tier"));
        }
        Ok(to)
    }

    /// Moves files that were told to move, as far as the limit allows; gives the number of blocks. A file that cannot
    /// move stays.
    pub(crate) fn follow_hints(&self, state: &mut State, budget: &Budget<'_>) -> u64 {
        let mut moved = 0;
        while budget.goes_on() && budget.blocks() > 0 {
            let Some(hint) = self.engine.hints.first() else { break };
            let next = match self.follow_part(state, &hint) {
                Ok((blocks, next)) => {
                    budget.spend(blocks);
                    moved += blocks;
                    next
                }
                Err(error) => {
                    // The error of a removed file is of no use.
                    if error.kind() != Kind::Stale {
                        self.engine.hints.refuse(hint.id, &error);
                    }
                    None
                }
            };
            self.engine.hints.step(&hint, next);
        }
        moved
    }

    /// Moves a group of a file; gives the number of blocks, and where the next one begins.
    fn follow_part(&self, state: &mut State, hint: &Hint) -> Result<(u64, Option<u64>)> {
        let node = self.places.layout.node(hint.id)?;
        let Some(data) = self.places.next_data(&node, hint.from)? else {
            if let Some(tier) = hint.to {
                self.places.demote_unwritten_to(&node, tier)?;
            }
            let attr = self.places.layout.getattr(&node)?;
            // It may move down again when it is cold.
            state.tpfs.on_pm.found(hint.id, attr.size.div_ceil(BLOCK_SIZE), millis(attr.mtime));
            return Ok((0, None));
        };
        self.note_queue(state);
        let _doing = self.begin(Doing { inode: hint.id.number, files: 1, way: Way::Told });
        let (start, len) = (FileBlock(data), self.places.settings.group());
        let moved = match hint.to {
            Some(tier) => self.places.demote(&node, tier, start, len, false)?,
            None => {
                let moved = self.places.promote(&node, start, len);
                self.note_unheard();
                moved?
            }
        };
        Ok((moved.moved, Some(data.saturating_add(len))))
    }
}

#[cfg(test)]
mod tests {
    use nacre_engine::{InodeId, Kind, Tier, TierState};
    use uuid::Uuid;

    use super::{Hint, Hints, MAX_HINTS, wanted};

    fn hint(number: u64, to: Option<u8>) -> Hint {
        Hint { id: InodeId { number, generation: 1, volume: 0 }, to, from: 0 }
    }

    #[test]
    fn a_value_is_memory_or_a_tier() {
        let uuid = Uuid::from_u128(77);
        let bytes = uuid.into_bytes();
        let tier = |number, uuid| Tier {
            number,
            uuid,
            blocks: 9,
            token: 1,
            pending: 0,
            rank: 2,
            state: TierState::Active,
        };
        let known = [tier(1, [1; 16]), tier(3, bytes)];
        let wanted = |value: &str| wanted(value.as_bytes(), &known);
        assert_eq!((wanted("pm").unwrap(), wanted("3").unwrap()), (None, Some(3)));
        assert_eq!(wanted(&uuid.to_string()).unwrap(), Some(3));
        for wrong in ["", "2", "0", "pm,1", "PM", "-1", " 1", "300", &Uuid::from_u128(78).to_string()] {
            let error = wanted(wrong).unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidInput, "{wrong:?}");
            assert!(error.to_string().contains("user.nacre.tier of \""), "{error}");
        }
        assert_eq!(super::wanted(b"\xff", &known).unwrap_err().kind(), Kind::InvalidInput);
    }

    #[test]
    fn who_is_told_otherwise_begins_anew_and_who_is_taken_back_stays() {
        let hints = Hints::default();
        (1..=3).for_each(|number| hints.add(hint(number, Some(1))).unwrap());
        let first = hints.first().unwrap();
        hints.step(&first, Some(100));
        let first = hints.first().unwrap();
        assert_eq!((first.id.number, first.from), (1, 100));
        // While it moves it is told to go elsewhere: what was done of it counts for nothing.
        hints.add(hint(1, None)).unwrap();
        hints.step(&first, None);
        assert_eq!(hints.first(), Some(hint(1, None)));
        assert!(hints.take_back(hint(1, None).id) && !hints.take_back(hint(1, None).id));
        hints.step(&hint(1, None), None);
        assert_eq!((hints.len(), hints.first()), (2, Some(hint(2, Some(1)))));
    }

    #[test]
    fn only_so_many_wait() {
        let hints = Hints::default();
        (0..MAX_HINTS as u64).for_each(|number| hints.add(hint(number, None)).unwrap());
        assert_eq!(hints.add(hint(1 << 20, None)).unwrap_err().kind(), Kind::Busy);
        hints.add(hint(7, Some(2))).unwrap();
        assert_eq!(hints.len(), MAX_HINTS);
    }
}
