//! Repairs the inode table after media errors.
//!
//! Inodes have no second copy. Those of a block that cannot be read are given up, and so are the names that refer to
//! them; the rest of the block is kept. If a directory is among them, the inodes that it named get names in the root,
//! `#NUMBER`. A root that is lost is made anew, with such a name for each inode that no other directory names. So
//! everything below it can be reached.
//!
//! The order makes a crash harmless. First the block is written, with the pattern of lost bytes in its bad lines. As
//! long as an inode has a line of the pattern, the next repair takes the inode for lost and begins again. Then blocks
//! with new names are written where nothing leads to them; a root that is there takes them by a slot. Then names that
//! refer to lost inodes become free, one word each. Only then the inodes become free, and a root that is lost is made
//! anew. A root without a state is lost, too.

use std::collections::{BTreeMap, BTreeSet};

use nacre_engine::{BLOCK_SIZE, Block, FileKind, InodeId, Result};
use nacre_layout_parts::check::unused;
use nacre_layout_parts::renew::{LostInodes, has_pattern, is_lost, renew, store_word};
use nacre_layout_parts::report::Problem;
use nacre_layout_parts::rescue::{directory_of, name_for, names_are_lost, page_of, renew_all, root_is_lost};
use nacre_layout_parts::tree::Tree;
use nacre_media::{Overlay, Pm};
use zerocopy::{FromZeros, IntoBytes};

use crate::badblocks;
use crate::blockmap::{self, Bounds};
use crate::directory::{BLOCK, Page, Reached, Record, find_record, lines_of};
use crate::format::{
    BLOCK_INODES, BLOCK_LINES, INODE_SIZE, LINE, ROOT_INODE, RawHeader, RawInode, RawSlot, STATUS, Status,
    TABLE_INODE, inode_seed, slot_offset,
};
use crate::mkfs::new_inode;
use crate::recover::Walk;
use crate::state::State;
use crate::superblock::Superblock;
use crate::switches::Read;

/// An inode in use, and where it is.
struct Used {
    address: u64,
    header: RawHeader,
    state: State,
}

impl Used {
    fn kind(&self) -> Option<FileKind> {
        FileKind::from_u8(self.header.kind)
    }
}

/// Gives up the inodes that cannot be read, and names for them, and gives the problems found and repaired. Gives
/// nothing if nothing is lost, or if more is damaged than this can judge. Each of these repairs loses something.
pub(crate) fn rescue<P: Pm>(pm: &P, switches: &Read) -> Result<Vec<Problem>> {
    let superblock = crate::superblock::read(pm)?.superblock;
    let mut has_root = false;
    let mut walk = Walk::new(pm, &superblock, switches);
    let ran = walk.run(&superblock, &mut |number, _, _, _| has_root |= number == ROOT_INODE);
    if ran.is_err() {
        return Ok(Vec::new());
    }
    let seed = superblock.seed();
    let look = |(at, &block)| look(pm, seed, at, Block(block), has_root);
    let lost: Vec<LostInodes> = (0..).zip(&walk.table).filter_map(look).collect();
    if lost.is_empty() {
        return Ok(Vec::new());
    }
    Rescue { pm, superblock, switches, table: walk.table, lost }.run()
}

/// The inodes that a block of the table lost.
fn look<P: Pm>(pm: &P, seed: u32, at: u64, block: Block, has_root: bool) -> Option<LostInodes> {
    let page = page_of(pm, block)?;
    let numbers = (0..).zip(page.chunks_exact(INODE_SIZE as usize)).filter_map(|(slot, bytes)| {
        let number = at * BLOCK_INODES + slot;
        let mut raw = RawInode::new_zeroed();
        raw.as_mut_bytes().copy_from_slice(bytes);
        // The target of a symbolic link may be anything, so a header that is valid has no pattern. No operation writes
        // the pattern to a slot.
        let (header, slots) = bytes.split_at(LINE as usize);
        let is_header_lost = has_pattern(header) && !raw.header.is_valid(seed, number);
        let is_root_lost = number == ROOT_INODE && !has_root;
        let is_gone = is_header_lost || is_root_lost || has_pattern(slots);
        (is_gone && number != TABLE_INODE).then_some(number)
    });
    LostInodes::of(pm, block, numbers.collect())
}

struct Rescue<'a, P> {
    pm: &'a P,
    superblock: Superblock,
    switches: &'a Read,
    table: Vec<u64>,
    lost: Vec<LostInodes>,
}

impl<P: Pm> Rescue<'_, P> {
    fn run(self) -> Result<Vec<Problem>> {
        let lost: BTreeSet<u64> = self.lost.iter().flat_map(|lost| lost.numbers.iter().copied()).collect();
        // The final state: valid inodes are in use, and lost ones are not.
        let after = Overlay::new(self.pm);
        self.give_up(&after)?;
        let mut walk = Walk::new(&after, &self.superblock, self.switches);
        let mut inodes = BTreeMap::new();
        walk.run(&self.superblock, &mut |number, address, header, state| {
            inodes.insert(number, Used { address, header: *header, state: *state });
        })?;
        let mut problems: Vec<Problem> = self.lost.iter().map(LostInodes::problem).collect();
        let names = self.names(&inodes, &lost, &mut problems);
        let is_orphan = |number: &u64| *number != ROOT_INODE && !names.named.contains(number);
        let orphans: Vec<(u64, &Used)> = inodes
            .iter()
            .filter(|(number, _)| is_orphan(number))
            .map(|(&number, used)| (number, used))
            .collect();
        renew_all(self.pm, &self.lost)?;
        let bad = badblocks::read(self.pm, &self.superblock)?;
        let alloc = unused(&self.superblock, &bad, &walk.marks);
        let mut root = None;
        if lost.contains(&ROOT_INODE) {
            problems.push(root_is_lost(orphans.len()));
            let pages = pages_of(&orphans, &BTreeSet::new());
            root = Some(directory_of(self.pm, &alloc, Vec::new(), &pages)?);
        } else if names.lost_directories && !orphans.is_empty() {
            // Without a root that can be followed nothing can be given a name.
            let Some(old) = inodes.get(&ROOT_INODE) else { return Ok(Vec::new()) };
            let Some((blocks, taken)) = self.contents(&old.state) else { return Ok(Vec::new()) };
            problems.push(names_are_lost(orphans.len()));
            let grown = directory_of(self.pm, &alloc, blocks, &pages_of(&orphans, &taken))?;
            self.commit_root(old, grown)?;
        }
        names.fixes.into_iter().try_for_each(|address| store_word(self.pm, address, Status::Free.pack()))?;
        self.give_up(self.pm)?;
        if let Some(root) = root {
            self.write_root(root)?;
        }
        Ok(problems)
    }

    fn address(&self, number: u64) -> u64 {
        let block = self.table[(number / BLOCK_INODES) as usize];
        Block(block).offset() + number % BLOCK_INODES * INODE_SIZE
    }

    /// Makes lost inodes free, in blocks that can be written; over `pm` they are made so. Without its header no slot of
    /// an inode counts, so that goes first.
    fn give_up(&self, pm: &impl Pm) -> Result<()> {
        for lost in &self.lost {
            if is_lost(pm, lost.block) {
                renew(pm, lost.block, |_| {})?;
            }
            for &number in &lost.numbers {
                for (from, to) in [(0, LINE), (LINE, INODE_SIZE)] {
                    let zeroed = pm.zero(self.address(number) + from, to - from)?;
                    pm.fence(zeroed);
                }
            }
        }
        Ok(())
    }

    /// Calls `visit` with the records of a directory that are names, each with its address. `None` if they cannot be
    /// read.
    fn for_each_name(&self, state: &State, visit: &mut dyn FnMut(u64, &Record, &Page)) -> Option<Vec<u64>> {
        let tree = state.tree(FileKind::Directory);
        let mut blocks = Vec::new();
        let map = blockmap::map(self.pm, tree, Bounds::of(&self.superblock));
        map.for_each(0, tree.end, &mut |piece| blocks.extend(piece.place..piece.place + piece.len)).ok()?;
        let mut is_whole = blocks.len() as u64 == tree.end;
        let is_reached: &Reached<'_> = &|tag| self.switches.is_reached(tag);
        let mut page = [0; BLOCK];
        for &block in &blocks {
            let read = self.pm.read(Block(block).offset(), &mut page).and_then(|()| {
                find_record(&page, |line, record| {
                    if let Some(record) = record.filter(|record| record.counts(is_reached)) {
                        visit(Block(block).offset() + line as u64 * LINE, &record, &page);
                    }
                    Ok(None::<()>)
                })
            });
            is_whole &= read.is_ok();
        }
        is_whole.then_some(blocks)
    }

    /// The inodes that the names of all directories refer to.
    fn names(
        &self,
        inodes: &BTreeMap<u64, Used>,
        lost: &BTreeSet<u64>,
        problems: &mut Vec<Problem>,
    ) -> Names {
        let mut names = Names { named: BTreeSet::new(), fixes: Vec::new(), lost_directories: false };
        for (number, used) in inodes.iter().filter(|(_, used)| used.kind() == Some(FileKind::Directory)) {
            // The check reports a directory that cannot be followed.
            let _ = self.for_each_name(&used.state, &mut |address, record, page| {
                let inode = record.raw.inode;
                if !lost.contains(&inode) {
                    names.named.insert(inode);
                    return;
                }
                let name = String::from_utf8_lossy(&record.name(page)).into_owned();
                let what = format!("directory {number}: {name:?} refers to inode {inode}, which is lost");
                problems.push(Problem::loss(what, "remove the name"));
                names.fixes.push(address + STATUS);
                names.lost_directories |= record.raw.kind == FileKind::Directory as u8;
            });
        }
        names
    }

    /// The blocks and the names of a directory, if it can be read.
    fn contents(&self, state: &State) -> Option<(Vec<u64>, BTreeSet<Vec<u8>>)> {
        let mut taken = BTreeSet::new();
        let blocks = self.for_each_name(state, &mut |_, record, page| {
            taken.insert(record.name(page).to_vec());
        })?;
        Some((blocks, taken))
    }

    /// The root directory takes this tree, by a slot alone.
    fn commit_root(&self, old: &Used, tree: Tree) -> Result<()> {
        let seed = inode_seed(self.superblock.seed(), ROOT_INODE, old.header.generation);
        let mut new = old.state.next(old.address, seed);
        new.set_blocks(tree);
        new.slot.checksum = new.slot.compute_checksum(seed);
        let copied = self.pm.copy(new.address, new.slot.as_bytes())?;
        self.pm.fence(copied);
        Ok(())
    }

    /// Writes a new root over one that was given up: its slots, and then its header, without which they do not count.
    fn write_root(&self, tree: Tree) -> Result<()> {
        let times = self.superblock.times();
        let now = times.pack(times.unpack(self.superblock.raw.created).unwrap_or_default());
        let mut slot = RawSlot { mode: 0o755, parent_end: ROOT_INODE, ..RawSlot::default() };
        (slot.root, slot.size) = (tree.root, tree.end * BLOCK_SIZE);
        slot.set_height(tree.height);
        let raw = new_inode(ROOT_INODE, FileKind::Directory, slot, now, self.superblock.seed());
        let address = self.address(ROOT_INODE);
        let slots = self.pm.copy(address + slot_offset(0), raw.slots.as_bytes())?;
        self.pm.fence(slots);
        let header = self.pm.copy(address, raw.header.as_bytes())?;
        self.pm.fence(header);
        Ok(())
    }
}

/// The names of all directories.
struct Names {
    /// The inodes that they refer to.
    named: BTreeSet<u64>,
    /// Statuses of records that refer to lost inodes.
    fixes: Vec<u64>,
    /// A directory is among the lost inodes.
    lost_directories: bool,
}

/// Blocks of a directory that has a name for each inode, none of which is `taken`.
fn pages_of(inodes: &[(u64, &Used)], taken: &BTreeSet<Vec<u8>>) -> Vec<Page> {
    let mut pages: Vec<Page> = Vec::new();
    let mut line = BLOCK_LINES;
    for (number, used) in inodes {
        let name = name_for(*number, taken);
        let Some(kind) = used.kind() else { continue };
        let id = InodeId { number: *number, generation: used.header.generation, volume: 0 };
        let lines = lines_of(name.as_bytes(), id, kind, Status::Live);
        if line + lines.len() > BLOCK_LINES {
            pages.push([0; BLOCK]);
            line = 0;
        }
        let Some(page) = pages.last_mut() else { continue };
        page[line * LINE as usize..][..lines.len() * LINE as usize].copy_from_slice(lines.as_flattened());
        line += lines.len();
    }
    pages
}
