//! Repairs the inode table after media errors.
//!
//! Inodes have no second copy. Those of a block that cannot be read are given up, and so are the names that refer to
//! them; the rest of the block is kept. If a directory is among them, the inodes that it named get names in the root,
//! `#NUMBER`. A root that is lost is made anew, with such a name for each inode that no other directory names. So
//! everything below it can be reached.
//!
//! The order makes a crash harmless. First the block is written, with the pattern of lost bytes in its bad lines. As
//! long as an inode has one word of the pattern, the next repair takes the inode for lost and begins again. Then blocks
//! with new names are written where nothing leads to them; a root that is there takes them by a transaction. Then names
//! go that refer to lost inodes. Only then the inodes are made free, and a root that is lost is made anew.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nacre_engine::{BLOCK_SIZE, Block, FileKind, LINE_SIZE, Result};
use nacre_layout_parts::check::unused;
use nacre_layout_parts::renew::{LostInodes, has_pattern, is_lost, renew, store_word};
use nacre_layout_parts::report::Problem;
use nacre_layout_parts::rescue::{directory_of, name_for, names_are_lost, page_of, renew_all, root_is_lost};
use nacre_layout_parts::tree::Tree;
use nacre_media::{Durable, Overlay, Pm};
use zerocopy::{FromZeros, IntoBytes};

use crate::badblocks;
use crate::blockmap::{self, Bounds, pack};
use crate::directory::{BLOCK, Page, find_record, needed};
use crate::format::{
    BLOCK_INODES, DENTRY_HEADER, INODE_SIZE, LINE, ROOT_INODE, RawDentry, RawInode, RawUndo, TABLE_INODE,
    lane_seed, region, seal_word, word,
};
use crate::mkfs::new_inode;
use crate::recover::{LaneState, Walk, read_lanes, roll_back};
use crate::superblock::Superblock;
use crate::transaction::lane_address;

/// Lines of an inode that it cannot do without; behind them is only the target of a symbolic link.
const NEEDED: usize = 2 * LINE_SIZE as usize;

/// Gives up the inodes that cannot be read, and names for them, and gives the problems found and repaired. Gives
/// nothing if nothing is lost, or if more is damaged than this can judge. Each of these repairs loses something.
pub(crate) fn rescue<P: Pm>(pm: &P) -> Result<Vec<Problem>> {
    let superblock = crate::superblock::read(pm)?.superblock;
    // Transactions under way are undone first, as far as the journal can be read.
    let Ok(mut lanes) = read_lanes(pm, &superblock)?.into_iter().collect::<Result<Vec<_>>>() else {
        return Ok(Vec::new());
    };
    roll_back(pm, &superblock, &mut lanes)?;
    let mut walk = Walk::new(pm, &superblock);
    if walk.run(&superblock, &mut |_, _, _| {}).is_err() {
        return Ok(Vec::new());
    }
    let generation = lanes.first().map_or(1, LaneState::next);
    let lost: Vec<LostInodes> =
        (0..).zip(&walk.table).filter_map(|(at, &block)| look(pm, at, Block(block))).collect();
    if lost.is_empty() {
        return Ok(Vec::new());
    }
    Rescue { pm, superblock, table: walk.table, lost, generation }.run()
}

/// The inodes that a block of the table lost.
fn look<P: Pm>(pm: &P, at: u64, block: Block) -> Option<LostInodes> {
    let page = page_of(pm, block)?;
    let numbers = (0..).zip(page.chunks_exact(INODE_SIZE as usize)).filter_map(|(slot, bytes)| {
        let number = at * BLOCK_INODES + slot;
        let mut raw = RawInode::new_zeroed();
        raw.as_mut_bytes().copy_from_slice(bytes);
        // A link with a lost target leads nowhere; a root that is all zeros was on its way.
        let has_target = raw.kind == FileKind::Symlink as u8 && raw.root == 0 && raw.links != 0;
        let counts = if has_target { bytes } else { &bytes[..NEEDED] };
        let is_gone = has_pattern(counts) || number == ROOT_INODE && bytes.iter().all(|&byte| byte == 0);
        (is_gone && number != TABLE_INODE).then_some(number)
    });
    LostInodes::of(pm, block, numbers.collect())
}

struct Rescue<'a, P> {
    pm: &'a P,
    superblock: Superblock,
    table: Vec<u64>,
    lost: Vec<LostInodes>,
    /// The generation of the next transaction in the first lane of the journal.
    generation: u64,
}

impl<P: Pm> Rescue<'_, P> {
    fn run(self) -> Result<Vec<Problem>> {
        let lost: BTreeSet<u64> = self.lost.iter().flat_map(|lost| lost.numbers.iter().copied()).collect();
        // The final state: valid inodes are in use, and lost ones are not.
        let after = Overlay::new(self.pm);
        self.give_up(&after)?;
        let mut walk = Walk::new(&after, &self.superblock);
        let mut inodes = BTreeMap::new();
        walk.run(&self.superblock, &mut |_, number, raw| {
            if !lost.contains(&number) {
                inodes.insert(number, *raw);
            }
        })?;
        let names = Names::of(&after, Bounds::of(&self.superblock), &inodes, &lost);
        let mut problems: Vec<Problem> = self.lost.iter().map(LostInodes::problem).collect();
        problems.extend(names.problems);
        let is_orphan = |number: &u64| *number != ROOT_INODE && !names.named.contains(number);
        let orphans: Vec<(u64, RawInode)> = inodes
            .iter()
            .filter(|(number, _)| is_orphan(number))
            .map(|(&number, &raw)| (number, raw))
            .collect();
        renew_all(self.pm, &self.lost)?;
        let bad = badblocks::read(self.pm, &self.superblock)?;
        let alloc = unused(&self.superblock, &bad, &walk.marks);
        let mut root = None;
        if lost.contains(&ROOT_INODE) {
            problems.push(root_is_lost(orphans.len()));
            let pages = pages_of(&orphans, &BTreeSet::new());
            root = Some(self.new_root(directory_of(self.pm, &alloc, Vec::new(), &pages)?));
        } else if names.lost_directories && !orphans.is_empty() {
            // Without a root that can be followed nothing can be given a name.
            let Some(old) = inodes.get(&ROOT_INODE) else { return Ok(Vec::new()) };
            let Some((blocks, taken)) = self.contents(old) else { return Ok(Vec::new()) };
            problems.push(names_are_lost(orphans.len()));
            let grown = directory_of(self.pm, &alloc, blocks, &pages_of(&orphans, &taken))?;
            self.commit_root(old, grown)?;
        }
        for (address, word) in names.fixes {
            store_word(self.pm, address, word)?;
        }
        self.give_up(self.pm)?;
        if let Some(root) = root {
            let copied = self.pm.copy(self.address(ROOT_INODE), root.as_bytes())?;
            self.pm.fence(copied);
        }
        Ok(problems)
    }

    fn address(&self, number: u64) -> u64 {
        let block = self.table[(number / BLOCK_INODES) as usize];
        Block(block).offset() + number % BLOCK_INODES * INODE_SIZE
    }

    /// Makes lost inodes free, in blocks that can be written; over `pm` they are made so. The root is never free.
    fn give_up(&self, pm: &impl Pm) -> Result<()> {
        for lost in &self.lost {
            if is_lost(pm, lost.block) {
                renew(pm, lost.block, |_| {})?;
            }
            for &number in lost.numbers.iter().filter(|&&number| number != ROOT_INODE) {
                let zeroed = pm.zero(self.address(number), INODE_SIZE)?;
                pm.fence(zeroed);
            }
        }
        Ok(())
    }

    /// The blocks and the names of a directory, if it can be read.
    fn contents(&self, raw: &RawInode) -> Option<(Vec<u64>, BTreeSet<Vec<u8>>)> {
        let mut blocks = Vec::new();
        let count = raw.size / BLOCK_SIZE;
        let map = blockmap::map(self.pm, raw.root, Bounds::of(&self.superblock));
        map.for_each(0, count, &mut |piece| {
            let start = piece.block().0;
            blocks.extend(start..start + piece.len);
        })
        .ok()?;
        let mut taken = BTreeSet::new();
        let mut page = [0; BLOCK];
        for &block in &blocks {
            self.pm.read(Block(block).offset(), &mut page).ok()?;
            find_record(&page, |record| {
                taken.insert(record.name(&page).to_vec());
                Ok(None::<()>)
            })
            .ok()?;
        }
        (blocks.len() as u64 == count).then_some((blocks, taken))
    }

    /// The inode of a new root directory.
    fn new_root(&self, tree: Tree) -> RawInode {
        let times = self.superblock.times();
        let created = times.unpack(self.superblock.raw.created).unwrap_or_default();
        let mut root = new_inode(FileKind::Directory, 0o755, times.pack(created));
        (root.parent, root.size, root.root) = (ROOT_INODE, tree.end * BLOCK_SIZE, pack(tree));
        root.checksum = root.compute_checksum(self.superblock.seed(), ROOT_INODE);
        root
    }

    /// The root directory becomes this one: a transaction, as `commit` makes them.
    fn commit_root(&self, old: &RawInode, tree: Tree) -> Result<()> {
        let lane = lane_address(self.superblock.region(region::JOURNAL)?, 0);
        let seed = lane_seed(self.superblock.seed(), 0);
        let root = self.address(ROOT_INODE);
        let words =
            [(root + word::SIZE, old.size, tree.end * BLOCK_SIZE), (root + word::ROOT, old.root, pack(tree))];
        let entries = words.map(|(address, before, _)| {
            let mut entry = RawUndo { words: 1, generation: self.generation, address, ..RawUndo::default() };
            entry.old[0] = before;
            entry.checksum = entry.compute_checksum(seed);
            entry
        });
        let undo = self.pm.publish_entry(lane + LINE, entries.as_bytes(), Durable::nothing_before())?;
        self.pm.fence(undo);
        let stored = words.map(|(address, _, after)| self.pm.store(address, after.as_bytes()));
        let stored = stored.into_iter().collect::<Result<Vec<_>>>()?;
        let done =
            self.pm.flush_all(stored).map_or(Durable::nothing_before(), |flushed| self.pm.fence(flushed));
        let committed = self.pm.publish_u64(lane, seal_word(self.generation, seed), done)?;
        let flushed = self.pm.flush(committed);
        self.pm.fence(flushed);
        Ok(())
    }
}

/// Blocks of a directory that has a name for each inode, none of which is `taken`.
fn pages_of(inodes: &[(u64, RawInode)], taken: &BTreeSet<Vec<u8>>) -> Vec<Page> {
    let mut pages: Vec<Page> = Vec::new();
    let mut at = BLOCK;
    // The last record of each page has the rest of the page.
    let mut last = 0;
    for (number, raw) in inodes {
        let name = name_for(*number, taken);
        let len = needed(name.len());
        if at + len > BLOCK {
            pages.push([0; BLOCK]);
            at = 0;
        }
        let Some(page) = pages.last_mut() else { continue };
        if at > 0 {
            page[last + RECORD_LEN..last + RECORD_LEN + 2]
                .copy_from_slice(&((at - last) as u16).to_le_bytes());
        }
        let record = RawDentry {
            inode: *number,
            record_len: (BLOCK - at) as u16,
            name_len: name.len() as u8,
            kind: raw.kind,
            generation: raw.generation,
        };
        page[at..at + DENTRY_HEADER].copy_from_slice(record.as_bytes());
        page[at + DENTRY_HEADER..at + DENTRY_HEADER + name.len()].copy_from_slice(name.as_bytes());
        last = at;
        at += len;
    }
    pages
}

const RECORD_LEN: usize = std::mem::offset_of!(RawDentry, record_len);

/// The inodes that the names of all directories refer to.
struct Names {
    named: BTreeSet<u64>,
    /// Words that take away names of lost inodes.
    fixes: Vec<(u64, u64)>,
    problems: Vec<Problem>,
    /// A directory is among the lost inodes.
    lost_directories: bool,
}

impl Names {
    fn of(pm: &impl Pm, bounds: Bounds, inodes: &BTreeMap<u64, RawInode>, lost: &BTreeSet<u64>) -> Names {
        let mut names = Names {
            named: BTreeSet::new(),
            fixes: Vec::new(),
            problems: Vec::new(),
            lost_directories: false,
        };
        let directories = inodes.iter().filter(|(_, raw)| raw.kind == FileKind::Directory as u8);
        for (&number, raw) in directories {
            let mut blocks = Vec::new();
            let count = raw.size.div_ceil(BLOCK_SIZE);
            let found = blockmap::map(pm, raw.root, bounds).for_each(0, count, &mut |piece| {
                let start = piece.block().0;
                blocks.extend(start..start + piece.len);
            });
            // The check reports a directory that cannot be followed.
            if found.is_err() {
                continue;
            }
            for block in blocks {
                names.page(pm, number, Block(block), lost);
            }
        }
        names
    }

    fn page(&mut self, pm: &impl Pm, directory: u64, block: Block, lost: &BTreeSet<u64>) {
        let mut page = [0; BLOCK];
        if pm.read(block.offset(), &mut page).is_err() {
            return;
        }
        // The record that stays before each, with the bytes that it took over.
        let mut before: Option<(usize, RawDentry)> = None;
        let mut fixes: HashMap<u64, u64> = HashMap::new();
        let _ = find_record(&page, |record| {
            if !record.is_used() || !lost.contains(&record.raw.inode) {
                if record.is_used() {
                    self.named.insert(record.raw.inode);
                }
                before = Some((record.at, record.raw));
                return Ok(None::<()>);
            }
            let name = String::from_utf8_lossy(record.name(&page)).into_owned();
            self.lost_directories |= record.raw.kind == FileKind::Directory as u8;
            self.problems.push(Problem::loss(
                format!(
                    "directory {directory}: {name:?} refers to inode {}, which is lost",
                    record.raw.inode
                ),
                "remove the name",
            ));
            match &mut before {
                Some((at, raw)) => {
                    raw.record_len += record.raw.record_len;
                    let bytes = raw.as_bytes();
                    let word = bytes[8..16].try_into().map_or(0, u64::from_le_bytes);
                    fixes.insert(block.offset() + *at as u64 + 8, word);
                }
                None => {
                    fixes.insert(block.offset() + record.at as u64, 0);
                    before = Some((record.at, RawDentry { inode: 0, ..record.raw }));
                }
            }
            Ok(None)
        });
        self.fixes.extend(fixes);
    }
}
