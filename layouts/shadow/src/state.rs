//! The state of an inode on media: the newer one of its two slots that counts.

use nacre_engine::{BLOCK_SIZE, Block, Error, FileKind, Result};
use nacre_layout_parts::tree::Tree;
use nacre_media::Pm;
use zerocopy::{FromZeros, IntoBytes};

use crate::blockmap::Bounds;
use crate::format::{
    ATIME, Condition, MAX_FILE_SIZE, MAX_HEIGHT, NODE_WORDS, RawInode, RawSlot, Tag, inode_seed, slot_offset,
};

/// File blocks of the largest file.
pub(crate) const MAX_BLOCKS: u64 = MAX_FILE_SIZE / BLOCK_SIZE;

/// Whether an inode of this kind has a tree of blocks.
pub(crate) fn has_tree(kind: FileKind) -> bool {
    matches!(kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink)
}

/// The slot that is the state of an inode, and which of the two it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct State {
    pub(crate) slot: RawSlot,
    pub(crate) which: usize,
}

/// The next state of an inode, on its way to the other slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewSlot {
    /// Where the slot is.
    pub(crate) address: u64,
    pub(crate) which: usize,
    /// The seed of its checksum.
    pub(crate) seed: u32,
    pub(crate) slot: RawSlot,
}

impl State {
    /// The state of an inode that has none yet. The first new slot is the first one.
    pub(crate) fn none() -> State {
        State { slot: RawSlot::default(), which: 1 }
    }

    /// The next state, so far as this one. The inode is at `address`.
    pub(crate) fn next(&self, address: u64, seed: u32) -> NewSlot {
        let which = 1 - self.which;
        let sequence = self.slot.sequence.wrapping_add(1);
        let mut slot = RawSlot { sequence, ..self.slot };
        slot.set_condition(Condition::Always);
        NewSlot { address: address + slot_offset(which), which, seed, slot }
    }

    /// The tree of an inode of this kind.
    pub(crate) fn tree(&self, kind: FileKind) -> Tree {
        let end = match kind {
            FileKind::Regular => self.slot.parent_end,
            _ => self.slot.size.div_ceil(BLOCK_SIZE),
        };
        if has_tree(kind) {
            Tree { root: self.slot.root, height: self.slot.height(), end }
        } else {
            Tree::default()
        }
    }
}

impl NewSlot {
    /// The state after the commit.
    pub(crate) fn state(&self) -> State {
        State { slot: self.slot, which: self.which }
    }

    /// The tree of a regular file will be this.
    pub(crate) fn set_tree(&mut self, tree: Tree) {
        self.slot.root = tree.root;
        self.slot.set_height(tree.height);
        self.slot.parent_end = tree.end;
    }

    /// The tree of a directory, or of the inode table, will be this; its end is the size.
    pub(crate) fn set_blocks(&mut self, tree: Tree) {
        self.slot.root = tree.root;
        self.slot.set_height(tree.height);
        self.slot.size = tree.end * BLOCK_SIZE;
    }
}

/// An inode on media, where conditions are judged.
pub(crate) struct Judge<'a, P> {
    pub(crate) pm: &'a P,
    pub(crate) volume_seed: u32,
    pub(crate) bounds: Bounds,
    /// Whether the switch of a lane is at a generation.
    pub(crate) is_reached: &'a dyn Fn(Tag) -> bool,
}

impl<P: Pm> Judge<'_, P> {
    /// Reads the inode at `address`, which may be anything.
    pub(crate) fn read(&self, address: u64) -> Result<RawInode> {
        let mut raw = RawInode::new_zeroed();
        self.pm.read(address, raw.as_mut_bytes())?;
        Ok(raw)
    }

    /// The state of an inode with a valid header; `None` when no slot counts.
    ///
    /// If the newer slot counts, the older one is not judged. The word that it waits for may be in a node that is free
    /// since, and that cannot be read.
    pub(crate) fn state(&self, raw: &RawInode, number: u64, address: u64) -> Result<Option<State>> {
        let seed = inode_seed(self.volume_seed, number, raw.header.generation);
        let valid = |which: usize| {
            let slot = raw.slots[which];
            slot.is_valid(seed).then_some(State { slot, which })
        };
        let counts = |state: &State| self.holds(&state.slot, address);
        let (newer, older, is_next) = match [0, 1].map(valid) {
            [Some(first), Some(second)] => match second.slot.sequence.wrapping_sub(first.slot.sequence) {
                1 => (second, first, true),
                u32::MAX => (first, second, true),
                _ => (second, first, false),
            },
            [Some(only), None] | [None, Some(only)] => return Ok(counts(&only)?.then_some(only)),
            [None, None] => return Ok(None),
        };
        let is_newer = counts(&newer)?;
        if is_newer && is_next {
            return Ok(Some(newer));
        }
        match (is_newer, counts(&older)?) {
            (true, true) => Err(Error::corrupt(format!("inode {number}: the sequences of its slots"))),
            (true, false) => Ok(Some(newer)),
            (false, is_older) => Ok(is_older.then_some(older)),
        }
    }

    /// Whether the condition of a slot holds; the inode is at `address`.
    fn holds(&self, slot: &RawSlot, address: u64) -> Result<bool> {
        Ok(match slot.condition() {
            None => false,
            Some(Condition::Always) => true,
            Some(Condition::Switch(tag)) => (self.is_reached)(tag),
            Some(Condition::Word { address: word, value }) => {
                let is_node =
                    (Block(self.bounds.first).offset()..Block(self.bounds.end).offset()).contains(&word);
                (is_node || word == address + ATIME) && self.pm.load_u64(word)? == value
            }
        })
    }
}

/// Fails for a slot with fields that no operation writes.
pub(crate) fn check_slot(slot: &RawSlot, kind: FileKind, number: u64) -> Result<()> {
    let damaged = |what: &str| Err(Error::corrupt(format!("inode {number}: {what}")));
    if slot.size > MAX_FILE_SIZE {
        return damaged("size");
    }
    if slot.height() > MAX_HEIGHT {
        return damaged("height of its tree");
    }
    if kind == FileKind::Regular && slot.parent_end > MAX_BLOCKS {
        return damaged("end of its tree");
    }
    if slot.project != 0 || slot.policy != 0 || slot.height_xattrs >> 56 != 0 {
        return damaged("reserved fields");
    }
    if kind == FileKind::Directory && !slot.size.is_multiple_of(BLOCK_SIZE) {
        return damaged("size of a directory");
    }
    Ok(())
}

const _: () = assert!(MAX_BLOCKS <= (NODE_WORDS as u64).pow(MAX_HEIGHT));

#[cfg(test)]
mod tests {
    use nacre_engine::{Block, Kind};
    use nacre_media::{Pm, SimPm};
    use zerocopy::IntoBytes;

    use super::{Judge, State};
    use crate::blockmap::Bounds;
    use crate::format::{Condition, RawInode, Tag, inode_seed};

    /// An inode with two slots of these sequences and conditions; gives which of them is the state.
    fn state(slots: [(u32, Condition); 2], word: u64) -> Result<Option<usize>, nacre_engine::Error> {
        state_with(slots, Some(word))
    }

    /// The same; without a word its line cannot be read.
    fn state_with(
        slots: [(u32, Condition); 2],
        word: Option<u64>,
    ) -> Result<Option<usize>, nacre_engine::Error> {
        let pm = SimPm::new(16 << 20);
        let address = Block(100).offset();
        if let Some(word) = word {
            pm.fence(pm.copy(Block(200).offset(), word.as_bytes())?);
        } else {
            pm.poison(Block(200).offset(), 1);
        }
        let mut raw = RawInode::default();
        raw.header.generation = 3;
        let seed = inode_seed(1, 9, 3);
        for (slot, (sequence, condition)) in raw.slots.iter_mut().zip(slots) {
            slot.sequence = sequence;
            slot.set_condition(condition);
            slot.checksum = slot.compute_checksum(seed);
        }
        let judge = Judge {
            pm: &pm,
            volume_seed: 1,
            bounds: Bounds { first: 150, end: 4096 },
            is_reached: &|tag| tag.generation <= 5,
        };
        Ok(judge.state(&raw, 9, address)?.map(|State { which, .. }| which))
    }

    #[test]
    fn the_newer_slot_that_counts_is_the_state() {
        use Condition::{Always, Switch, Word};
        let [done, open] = [5, 6].map(|generation| Switch(Tag { lane: 2, generation }));
        let word = Word { address: Block(200).offset(), value: 77 };
        assert_eq!(state([(1, Always), (2, Always)], 0).unwrap(), Some(1));
        assert_eq!(state([(3, Always), (2, Always)], 0).unwrap(), Some(0));
        assert_eq!(state([(0, Always), (u32::MAX, Always)], 0).unwrap(), Some(0), "sequences go round");
        assert_eq!(state([(1, done), (2, open)], 0).unwrap(), Some(0));
        assert_eq!(state([(1, Always), (2, word)], 77).unwrap(), Some(1));
        assert_eq!(state([(1, Always), (2, word)], 78).unwrap(), Some(0));
        assert_eq!(state([(1, open), (2, word)], 78).unwrap(), None);
        let outside = Word { address: Block(20).offset(), value: 0 };
        assert_eq!(state([(1, Always), (2, outside)], 0).unwrap(), Some(0));
        state([(1, Always), (3, Always)], 0).unwrap_err();
    }

    /// The word of a slot that is not needed any more may be anywhere.
    #[test]
    fn an_older_slot_is_judged_only_where_the_newer_one_does_not_count() {
        use Condition::{Always, Switch, Word};
        let [done, open] = [5, 6].map(|generation| Switch(Tag { lane: 2, generation }));
        let word = Word { address: Block(200).offset(), value: 77 };
        assert_eq!(state_with([(1, word), (2, Always)], None).unwrap(), Some(1));
        assert_eq!(state_with([(2, done), (1, word)], None).unwrap(), Some(0));
        assert_eq!(state_with([(0, Always), (u32::MAX, word)], None).unwrap(), Some(0));
        for slots in [[(1, word), (2, open)], [(2, word), (1, Always)], [(1, word), (3, Always)]] {
            assert_eq!(state_with(slots, None).unwrap_err().kind(), Kind::Media, "{slots:?}");
        }
    }
}
