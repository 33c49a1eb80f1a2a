//! Recovery: one walk over everything, which finds what is in use and what operations without a commit have left.
//!
//! Slots and records that such an operation has tagged do not count, and never did. They are neutralised before their
//! lane takes the generation again: slots lose their checksum, records that were born are free, and records that were
//! dying live. Written again any number of times, that is the same. Nothing else is left to do after a crash. Inodes
//! without links are free, so files that were open and unlinked need no list.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Instant;

use nacre_engine::{BLOCK_SIZE, Block, Error, FileKind, Kind, Result, Tier};
use nacre_layout_parts::marks::Marks;
use nacre_layout_parts::renew::renew;
use nacre_layout_parts::report::RecoveryReport;
use nacre_layout_parts::tier_table::listed;
use nacre_layout_parts::tree::Tree;
use nacre_layout_parts::tree::edit::join;
use nacre_layout_parts::xattr::{self, Owner};
use nacre_media::{Flushed, Pm};
use zerocopy::{FromZeros, IntoBytes};

use crate::blockmap::{self, Bounds, Found, block_of, tier_of};
use crate::directory::{BLOCK, Page, find_record};
use crate::format::{
    BLOCK_INODES, BLOCK_LINES, Condition, INODE_SIZE, LANES, LINE, RawHeader, RawInode, RawSlot, STATUS,
    Status, TABLE_INODE, Tag, inode_seed, region, slot_offset,
};
use crate::seeded::Mistake;
use crate::state::{Judge, State, check_slot};
use crate::superblock::Superblock;
use crate::switches::{Read, unless_bad};

/// Receives an inode that is in use: its number, where it is, its header and its state.
pub(crate) type Visitor<'v> = dyn FnMut(u64, u64, &RawHeader, &State) + 'v;

/// Marks for the blocks of a tier, of which the first and the last are its superblock's.
fn marks_of(tier: &Tier) -> (u8, Marks) {
    (tier.number, Marks::new(Bounds { first: 1, end: tier.blocks.saturating_sub(1) }))
}

/// Where both copies of the inode of the table are.
pub(crate) fn table_addresses(superblock: &Superblock) -> Result<[u64; 2]> {
    let region = superblock.region(region::INODE_TABLE)?;
    Ok([0, 1].map(|copy| Block(region.start + copy).offset()))
}

/// The tree of the inode table.
pub(crate) fn table_tree(state: &State) -> Tree {
    Tree { root: state.slot.root, height: state.slot.height(), end: state.slot.size / BLOCK_SIZE }
}

/// A walk over all inodes.
pub(crate) struct Walk<'a, P> {
    pm: &'a P,
    seed: u32,
    bounds: Bounds,
    switches: &'a Read,
    pub(crate) marks: Marks,
    /// The blocks in use of each tier.
    pub(crate) tier_marks: BTreeMap<u8, Marks>,
    /// Numbers that can be given out, in order.
    pub(crate) free_inodes: Vec<u64>,
    /// Inodes that cannot be read, or with a tree or attributes that cannot be followed.
    pub(crate) damaged: BTreeSet<u64>,
    /// The blocks of the inode table.
    pub(crate) table: Vec<u64>,
    /// The state of its inode; set by the walk.
    pub(crate) table_state: State,
    /// The copy of its inode that is not as the other one, and that as it should be.
    table_copy: Option<(u64, RawInode)>,
    /// Words that neutralise what is left of operations without a commit.
    stale: Vec<(u64, u64)>,
    /// The tags of those.
    stale_tags: HashSet<(u64, u64)>,
    /// The greatest generation of each lane that anything is tagged with.
    pub(crate) highest: [u64; LANES as usize],
    /// Directories in use, and where they are.
    found_directories: Vec<(u64, Tree)>,
    /// Inodes without a state: free unless they have names.
    unclear: BTreeSet<u64>,
    files: u64,
    /// Blocks of PM with data of regular files.
    pub(crate) data_on_pm: u64,
}

impl<'a, P: Pm> Walk<'a, P> {
    /// Nothing is read yet.
    pub(crate) fn new(pm: &'a P, superblock: &Superblock, switches: &'a Read) -> Walk<'a, P> {
        let bounds = Bounds::of(superblock);
        Walk {
            pm,
            seed: superblock.seed(),
            bounds,
            switches,
            marks: Marks::new(bounds),
            tier_marks: listed(&superblock.raw).iter().map(marks_of).collect(),
            free_inodes: Vec::new(),
            damaged: BTreeSet::new(),
            table: Vec::new(),
            table_state: State::none(),
            table_copy: None,
            stale: Vec::new(),
            stale_tags: HashSet::new(),
            highest: [0; LANES as usize],
            found_directories: Vec::new(),
            unclear: BTreeSet::new(),
            files: 0,
            data_on_pm: 0,
        }
    }

    /// Reads everything; `visit` is called with each inode that is in use. An error means that there is no table.
    pub(crate) fn run(&mut self, superblock: &Superblock, visit: &mut Visitor<'_>) -> Result<()> {
        let switches = self.switches;
        let is_reached = |tag: Tag| switches.is_reached(tag);
        let judge =
            Judge { pm: self.pm, volume_seed: self.seed, bounds: self.bounds, is_reached: &is_reached };
        self.read_table(&judge, table_addresses(superblock)?)?;
        for index in 0..self.table.len() {
            let start = Block(self.table[index]).offset();
            let mut page = [0u8; BLOCK];
            let is_whole = self.pm.read(start, &mut page).is_ok();
            for (slot, bytes) in page.chunks_exact_mut(INODE_SIZE as usize).enumerate() {
                let number = index as u64 * BLOCK_INODES + slot as u64;
                let address = start + slot as u64 * INODE_SIZE;
                if number == TABLE_INODE {
                    continue;
                }
                // One line that is lost takes no inode but its own.
                if !is_whole && let Err(error) = self.pm.read(address, bytes) {
                    self.damaged.insert(number);
                    self.marks.note(error.object(format!("inode {number}")));
                    continue;
                }
                let mut raw = RawInode::new_zeroed();
                raw.as_mut_bytes().copy_from_slice(bytes);
                self.inode(&judge, number, address, &raw, visit);
            }
        }
        for (number, tree) in std::mem::take(&mut self.found_directories) {
            if let Err(error) = self.read_directory(number, tree) {
                self.damaged.insert(number);
                self.marks.note(error.object(format!("directory {number}")));
            }
        }
        self.free_inodes.extend(&self.unclear);
        self.free_inodes.sort_unstable();
        Ok(())
    }

    /// Finds the newest state of the table's inode, and the table's blocks.
    fn read_table(&mut self, judge: &Judge<'_, P>, addresses: [u64; 2]) -> Result<()> {
        let copies = addresses.map(|address| {
            let raw = judge.read(address).ok()?;
            let state =
                raw.header.is_valid(self.seed, TABLE_INODE).then(|| judge.state(&raw, TABLE_INODE, address));
            Some((raw, state?.ok()??))
        });
        let (which, (raw, state)) = match copies {
            [Some(first), Some(second)] => {
                let newer = second.1.slot.sequence.wrapping_sub(first.1.slot.sequence);
                if (1..1 << 31).contains(&newer) { (1, second) } else { (0, first) }
            }
            [Some(first), None] => (0, first),
            [None, Some(second)] => (1, second),
            [None, None] => return Err(Error::corrupt("the inode of the inode table, in both copies")),
        };
        if copies[1 - which].is_none_or(|(other, _)| other != raw) {
            self.table_copy = Some((addresses[1 - which], raw));
        }
        self.table_state = state;
        let tree = table_tree(&state);
        if tree.end > self.bounds.end || !state.slot.size.is_multiple_of(BLOCK_SIZE) {
            return Err(Error::corrupt("the size of the inode table"));
        }
        let mut blocks = vec![0u64; tree.end as usize];
        self.take_tree(tree, (u64::MAX, true), "the inode table", &mut |block, place| {
            if let Some(slot) = blocks.get_mut(block as usize) {
                *slot = place;
            }
        })?;
        if blocks.is_empty() || blocks.contains(&0) {
            return Err(Error::corrupt("the inode table has a hole"));
        }
        self.table = blocks;
        Ok(())
    }

    fn inode(
        &mut self,
        judge: &Judge<'_, P>,
        number: u64,
        address: u64,
        raw: &RawInode,
        visit: &mut Visitor<'_>,
    ) {
        let seed = raw
            .header
            .is_valid(self.seed, number)
            .then(|| inode_seed(self.seed, number, raw.header.generation));
        for (which, slot) in raw.slots.iter().enumerate() {
            let is_valid = seed.is_some_and(|seed| slot.is_valid(seed));
            self.look_at_slot(address + slot_offset(which), slot, is_valid);
        }
        if raw.as_bytes().iter().all(|&byte| byte == 0) {
            self.free_inodes.push(number);
            return;
        }
        if !raw.header.is_valid(self.seed, number) {
            self.unclear.insert(number);
            return;
        }
        let state = match judge.state(raw, number, address) {
            Ok(Some(state)) => state,
            Ok(None) => {
                self.unclear.insert(number);
                return;
            }
            Err(error) => {
                self.damaged.insert(number);
                self.marks.note(error);
                return;
            }
        };
        self.look_at_next(address, raw, &state);
        if state.slot.links == 0 {
            self.free_inodes.push(number);
            return;
        }
        if let Err(error) = self.take_inode(number, &raw.header, &state) {
            self.damaged.insert(number);
            self.marks.note(error);
        }
        visit(number, address, &raw.header, &state);
    }

    /// Notes the tag of a slot, whether the slot is valid or not: what is left of it may become so under a header that
    /// is not there yet. In a lane whose switch is lost everything counts, so such a slot goes there, too.
    fn look_at_slot(&mut self, address: u64, slot: &RawSlot, is_valid: bool) {
        let Some(tag) = slot.tag().filter(|_| slot.checksum != 0) else { return };
        self.look_at_tag(tag);
        let may_become_valid = !is_valid && self.switches.lost.contains(&tag.lane);
        if !self.switches.is_reached(tag) || may_become_valid {
            self.stale.push((address, 0));
            self.stale_tags.insert((tag.lane, tag.generation));
        }
    }

    /// Notes the next slot of an inode when it still waits for a word. A later change could store that value in the
    /// word for another reason, and the slot would count.
    fn look_at_next(&mut self, address: u64, raw: &RawInode, state: &State) {
        let which = 1 - state.which;
        let next = &raw.slots[which];
        let is_next = next.sequence.wrapping_sub(state.slot.sequence) == 1;
        if is_next && matches!(next.condition(), Some(Condition::Word { .. })) && next.checksum != 0 {
            self.stale.push((address + slot_offset(which), 0));
        }
    }

    fn look_at_tag(&mut self, tag: Tag) {
        let highest = &mut self.highest[tag.lane as usize];
        *highest = (*highest).max(tag.generation);
    }

    /// Takes the blocks of an inode into use.
    fn take_inode(&mut self, number: u64, header: &RawHeader, state: &State) -> Result<()> {
        let kind = FileKind::from_u8(header.kind);
        let kind = kind.ok_or_else(|| Error::corrupt(format!("inode {number}: kind")))?;
        check_slot(&state.slot, kind, number)?;
        let tree = state.tree(kind);
        match kind {
            FileKind::Directory => self.found_directories.push((number, tree)),
            _ => self.files += 1,
        }
        let mut on_pm = 0;
        let written_end = state.slot.size.div_ceil(BLOCK_SIZE);
        let on_pm_only = kind != FileKind::Regular;
        let mut taken =
            self.take_tree(tree, (written_end, on_pm_only), &format!("inode {number}"), &mut |_, place| {
                on_pm += u64::from(tier_of(place) == 0);
            });
        if kind == FileKind::Regular {
            self.data_on_pm += on_pm;
        }
        if state.slot.xattrs() != 0 {
            let owner = Owner::new(self.pm, self.bounds, self.seed, number, header.generation);
            let xattrs = self.marks.take_xattrs(number, xattr::blocks_of(&owner, state.slot.xattrs()));
            taken = xattrs.and(taken);
        }
        taken
    }

    /// Takes the blocks of a tree into use; `visit` is called with each file block and its place.
    fn take_tree(
        &mut self,
        tree: Tree,
        (written_end, on_pm_only): (u64, bool),
        what: &str,
        visit: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        let (mut twice, mut misplaced) = (None, false);
        let (marks, tier_marks) = (&mut self.marks, &mut self.tier_marks);
        let mut take = |place: u64| match tier_of(place) {
            0 => marks.take(place),
            tier => tier_marks.get_mut(&tier).is_some_and(|marks| marks.take_within(block_of(place).0)),
        };
        let mut beyond = None;
        blockmap::map(self.pm, tree, self.bounds)
            .for_each_used(&mut |found| {
                let block = match found {
                    Found::Node(block) => block,
                    Found::Data(piece) => {
                        if piece.start >= written_end && piece.is_written {
                            beyond.get_or_insert(piece.start);
                        }
                        if on_pm_only && tier_of(piece.place) != 0 {
                            misplaced = true;
                            return false;
                        }
                        visit(piece.start, piece.place);
                        piece.place
                    }
                };
                if !take(block) {
                    twice = Some(block);
                    return false;
                }
                true
            })
            .map_err(|error| error.object(format!("{what}: tree of blocks")))?;
        if let Some(block) = beyond {
            self.marks.note(format!("{what}: block {block} is beyond its end"));
        }
        match twice {
            _ if misplaced => Err(Error::corrupt(format!("{what}: a block on a tier"))),
            Some(place) if tier_of(place) != 0 => {
                let (block, tier) = (block_of(place).0, tier_of(place));
                Err(Error::corrupt(format!("{what}: block {block} of tier {tier} is in use, or not there")))
            }
            Some(block) => Err(Error::corrupt(format!("{what}: block {block} is in use already"))),
            None => Ok(()),
        }
    }

    /// Looks at the records of a directory.
    fn read_directory(&mut self, number: u64, tree: Tree) -> Result<()> {
        let mut blocks = Vec::new();
        blockmap::map(self.pm, tree, self.bounds)
            .for_each(0, tree.end, &mut |piece| blocks.extend(piece.place..piece.place + piece.len))?;
        if blocks.len() as u64 != tree.end {
            return Err(Error::corrupt("a block is missing"));
        }
        let mut page: Page = [0; BLOCK];
        let switches = self.switches;
        for block in blocks {
            self.pm.read(Block(block).offset(), &mut page)?;
            find_record(&page, |line, record| {
                debug_assert!(line < BLOCK_LINES);
                let Some(record) = record else { return Ok(None::<()>) };
                let address = Block(block).offset() + line as u64 * LINE + STATUS;
                if let Status::Born(tag) | Status::Dying(tag) = record.status {
                    self.look_at_tag(tag);
                    if !switches.is_reached(tag) {
                        let was_born = matches!(record.status, Status::Born(_));
                        let status = if was_born { Status::Free } else { Status::Live };
                        self.stale.push((address, status.pack()));
                        self.stale_tags.insert((tag.lane, tag.generation));
                    }
                }
                if record.counts(&|tag| switches.is_reached(tag)) && self.unclear.remove(&record.raw.inode) {
                    self.damaged.insert(record.raw.inode);
                    self.marks.note(format!(
                        "inode {}: no state of it is valid, and directory {number} names it",
                        record.raw.inode
                    ));
                }
                Ok(None)
            })?;
        }
        Ok(())
    }

    /// Neutralises what operations without a commit have left. A copy of the table's inode with a media error that stays
    /// is added to `bad`. The caller fences.
    pub(crate) fn neutralise(&self, pm: &P, bad: &mut Vec<u64>) -> Result<Option<Flushed>> {
        let mut pending = None;
        if let Some((address, raw)) = &self.table_copy {
            match pm.copy(*address, raw.as_bytes()) {
                Ok(copied) => pending = join(pending, copied),
                // The block is written again. It holds nothing else.
                Err(error) if error.kind() == Kind::Media => {
                    let renewed = renew(pm, Block(address / BLOCK_SIZE), |bytes| {
                        bytes[..size_of::<RawInode>()].copy_from_slice(raw.as_bytes());
                    });
                    unless_bad(renewed, *address, bad)?;
                }
                Err(error) => return Err(error),
            }
        }
        if Mistake::NotNeutralised.is_made(pm) {
            return Ok(pending);
        }
        for &(address, word) in &self.stale {
            let stored = pm.store(address, &word.to_le_bytes())?;
            pending = join(pending, pm.flush(stored));
        }
        Ok(pending)
    }

    /// The report of the walk.
    pub(crate) fn report(&self, started: Instant, directories: u64) -> RecoveryReport {
        let mut report = self.marks.report(started, directories, self.files, 0);
        report.torn = self.stale_tags.len() as u64;
        report
    }
}

#[cfg(test)]
mod tests {
    use nacre_layout_parts::lifecycle::MkfsOptions;
    use nacre_media::{Pm, SimPm};
    use zerocopy::IntoBytes;

    use super::Walk;
    use crate::format::{ATIME, Condition, RawSlot, inode_seed, slot_offset};
    use crate::superblock;
    use crate::switches::Read;

    /// Walks over an image and neutralises what it finds. Gives the root inode: its address, the slot that counts, which
    /// one that is, and the generation.
    fn neutralised(pm: &SimPm) -> (u64, RawSlot, usize, u32) {
        let superblock = superblock::read(pm).unwrap().superblock;
        let switches = Read::from(pm, &superblock).unwrap();
        let mut root = None;
        let mut walk = Walk::new(pm, &superblock, &switches);
        walk.run(&superblock, &mut |number, address, header, state| {
            if number == 1 {
                root = Some((address, state.slot, state.which, header.generation));
            }
        })
        .unwrap();
        if let Some(flushed) = walk.neutralise(pm, &mut Vec::new()).unwrap() {
            pm.fence(flushed);
        }
        root.expect("a root")
    }

    /// A change of atime that a crash ends between its slot and its word, before a lazy one that stores the same time.
    #[test]
    fn a_slot_that_waits_for_a_word_never_counts_after_a_crash() {
        let pm = SimPm::new(32 << 20);
        crate::mkfs::mkfs(&pm, &MkfsOptions::default()).unwrap();
        let (address, before, which, generation) = neutralised(&pm);
        let mut next = before;
        next.sequence = before.sequence.wrapping_add(1);
        next.mode ^= 0o7;
        next.set_condition(Condition::Word { address: address + ATIME, value: 77 });
        let seed = superblock::read(&pm).unwrap().superblock.seed();
        next.checksum = next.compute_checksum(inode_seed(seed, 1, generation));
        pm.fence(pm.copy(address + slot_offset(1 - which), next.as_bytes()).unwrap());

        neutralised(&pm);
        pm.fence(pm.copy(address + ATIME, &77_u64.to_le_bytes()).unwrap());
        assert_eq!(neutralised(&pm).1.mode, before.mode);
    }
}
