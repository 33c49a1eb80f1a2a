//! Checks a file system that is not mounted: every structure that is reachable, every block against every other, names
//! against inodes. Repairs as far as the format can prove it.
//!
//! A file system without a clean unmount is first recovered: on the media when it is repaired, else in DRAM over them.
//! So an operation that a crash interrupted is no damage.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use nacre_engine::{BLOCK_SIZE, Block, Error, FileKind, Kind, Result, size};
use nacre_layout_parts::renew::store_word;
pub use nacre_layout_parts::report::{CheckReport, MediaReport, Problem, Repair};
use nacre_layout_parts::rules::{MAX_TARGET, check_name};
use nacre_layout_parts::table::Graveyard;
use nacre_media::{Overlay, Pm};

use crate::alloc::Allocator;
use crate::badblocks::{self, BadBlocks};
use crate::blockmap::{self, Bounds};
use crate::directory::find_record;
use crate::format::{INLINE_TARGET, ROOT_INODE, RawInode, state, word};
use crate::inode::{Inode, links_word};
use crate::mend;
use crate::recover::{LaneState, Walk, read_lanes, renew_lane, roll_back};
use crate::superblock::Superblock;

/// A word that a repair stores.
type Fix = (u64, u64);

/// Checks the file system on `pm`, which must not be mounted. With `repair`, recovers it and writes corrections that
/// can be proved right: copies of the superblock, link counts, and parents of directories. Inodes that a media error
/// took from the inode table are given up ([`mend`]). Other damage is reported and left alone.
///
/// An error means that nothing could be checked: there is no file system, or nothing that leads into it.
pub fn check<P: Pm>(pm: &P, repair: bool) -> Result<CheckReport> {
    check_with(pm, if repair { Repair::All } else { Repair::None })
}

/// The same, with a choice of the permitted repairs.
pub fn check_with<P: Pm>(pm: &P, repair: Repair) -> Result<CheckReport> {
    let gives_up = match repair {
        Repair::None => return would_do(pm),
        Repair::Safe => !mend::rescue(&Overlay::new(pm))?.is_empty(),
        Repair::All => false,
    };
    crate::superblock::read(pm)?.superblock.check_writable()?;
    if gives_up {
        return would_do(pm);
    }
    let given_up = if repair == Repair::All { mend::rescue(pm)? } else { Vec::new() };
    let (mut report, fixes) = examine(pm, repair)?;
    if repair == Repair::Safe && report.loses() {
        return Ok(report);
    }
    for (address, value) in fixes {
        store_word(pm, address, value)?;
    }
    let provable = report.problems.iter().all(|problem| !problem.repair.is_empty());
    let mut superblock = crate::superblock::read(pm)?.superblock;
    if provable {
        superblock.raw.state = state::CLEAN;
        (superblock.raw.errors, superblock.raw.last_error) = (0, 0);
    }
    superblock.write(pm)?;
    for problem in report.problems.iter_mut().filter(|problem| !problem.repair.is_empty()) {
        problem.repaired = true;
    }
    report.problems.splice(0..0, given_up);
    Ok(report)
}

/// The problems that are found, and the repairs that would be done: they are done on an overlay, where they leave no
/// trace.
fn would_do<P: Pm>(pm: &P) -> Result<CheckReport> {
    let over = Overlay::new(pm);
    let mut given_up = mend::rescue(&over)?;
    let (mut report, _) = examine(&over, Repair::None)?;
    given_up.iter_mut().for_each(|problem| problem.repaired = false);
    report.problems.splice(0..0, given_up);
    Ok(report)
}

/// Reads every block of a file system that is not mounted, for errors of the media. With `record`, the blocks found are
/// put into the list of bad blocks.
pub fn check_media<P: Pm>(pm: &P, record: bool) -> Result<MediaReport> {
    crate::scrub::check_media(pm, record)
}

/// Puts the blocks that the media lists as bad into the list of bad blocks of a file system that was just made; gives
/// their number.
pub fn retire_listed<P: Pm>(pm: &P) -> Result<u64> {
    nacre_layout_parts::scrub::retire_listed(pm, &crate::superblock::read(pm)?.superblock)
}

/// One pass over everything, after recovery; gives the words that a repair stores.
fn examine<P: Pm>(pm: &P, level: Repair) -> Result<(CheckReport, Vec<Fix>)> {
    let started = Instant::now();
    let found = crate::superblock::read(pm)?;
    let mut report = CheckReport::begin(&found);
    let superblock = found.superblock;
    let mut lost = Vec::new();
    let rolled_back = undo(pm, &superblock, &mut lost)?;
    let bad = badblocks::read(pm, &superblock)?;
    check_bad_blocks(pm, &superblock, &bad, &mut report)?;
    report.bad_blocks = bad.blocks.len() as u64;
    let mut inodes = BTreeMap::new();
    let mut walk = Walk::new(pm, &superblock);
    let ran = walk.run(&superblock, &mut |_, number, raw| {
        inodes.insert(number, *raw);
    });
    if let Err(error) = ran {
        report.add(error.to_string(), "");
        return Ok((report, Vec::new()));
    }
    let alloc = Allocator::new(superblock.raw.device_blocks, 1, 0);
    bad.blocks.iter().for_each(|&block| alloc.withdraw(block));
    walk.marks.free_the_rest(&alloc);
    report.free_blocks = alloc.free_blocks();
    report.used_blocks = superblock.raw.device_blocks - superblock.first_data_block() - report.free_blocks;
    report.walk = walk.report(started, rolled_back);
    for damage in report.walk.damage.clone() {
        report.add(damage, "");
    }
    for (&number, raw) in inodes.iter().filter(|(number, _)| !walk.damaged.contains(number)) {
        if let Err(error) = check_inode(pm, &superblock, number, raw) {
            report.add(error.to_string(), "");
        }
    }
    let mut names = Names::new(pm, &superblock, &walk, &inodes);
    names.walk(&mut report);
    let fixes = names.compare(&mut report);
    // A transaction in a lost lane is half done for ever: unless there was none, or everything else is as it should be
    // or can be made so.
    let is_whole = superblock.raw.state == state::CLEAN
        || report.problems.iter().all(|problem| !problem.repair.is_empty());
    for (lane, error) in lost {
        report.add(error.to_string(), if is_whole { "write an empty one" } else { "" });
        if is_whole && (level == Repair::All || !report.loses()) {
            renew_lane(pm, &superblock, lane)?;
        }
    }
    report.walk.duration = started.elapsed();
    Ok((report, fixes))
}

/// Undoes transactions under way; gives their number. Lanes that cannot be read are added to `lost`.
fn undo<P: Pm>(pm: &P, superblock: &Superblock, lost: &mut Vec<(u64, Error)>) -> Result<u64> {
    let mut lanes = Vec::new();
    for (number, lane) in read_lanes(pm, superblock)?.into_iter().enumerate() {
        // Of one that cannot be read nothing is known to be undone.
        let nothing = LaneState { committed: 0, undo: Vec::new() };
        lanes.push(lane.unwrap_or_else(|error| {
            lost.push((number as u64, error));
            nothing
        }));
    }
    roll_back(pm, superblock, &mut lanes)
}

/// Forgets words of the list of bad blocks that do not validate.
fn check_bad_blocks<P: Pm>(
    pm: &P,
    superblock: &Superblock,
    bad: &BadBlocks,
    report: &mut CheckReport,
) -> Result<()> {
    if bad.damaged.is_empty() {
        return Ok(());
    }
    let what = format!("the list of bad blocks has {} words that do not validate", bad.damaged.len());
    match badblocks::clear_damaged(pm, superblock, bad) {
        // Readable words count, independent of the others.
        Err(error) if error.kind() == Kind::Media => report.add(what, ""),
        done => {
            done?;
            report.add(what, "clear them; fsck -c finds bad blocks again");
        }
    }
    Ok(())
}

/// Checks the fields of an inode, beside its tree.
fn check_inode<P: Pm>(pm: &P, superblock: &Superblock, number: u64, raw: &RawInode) -> Result<()> {
    let inode = Inode::new(number, 0, raw, superblock.times(), None, &Arc::new(Graveyard::default()))?;
    if inode.kind != FileKind::Symlink {
        return Ok(());
    }
    let map = blockmap::map(pm, raw.root, Bounds::of(superblock));
    let is_inline = raw.root == 0 && raw.size <= INLINE_TARGET as u64;
    if raw.size == 0 || raw.size > MAX_TARGET as u64 || !(is_inline || map.find(0)?.is_some()) {
        return Err(Error::corrupt(format!("inode {number}: target")));
    }
    Ok(())
}

/// The names of all directories, against the inodes.
struct Names<'a, P> {
    pm: &'a P,
    bounds: Bounds,
    table: Vec<u64>,
    inodes: &'a BTreeMap<u64, RawInode>,
    /// How many names refer to each inode.
    links: HashMap<u64, u32>,
    /// The directory that each directory's name is in.
    parents: HashMap<u64, u64>,
    /// Inodes with blocks that cannot be followed, as was reported.
    damaged: &'a BTreeSet<u64>,
}

impl<'a, P: Pm> Names<'a, P> {
    fn new(
        pm: &'a P,
        superblock: &Superblock,
        walk: &'a Walk<'_, P>,
        inodes: &'a BTreeMap<u64, RawInode>,
    ) -> Names<'a, P> {
        let bounds = Bounds::of(superblock);
        let table = walk.table.clone();
        let damaged = &walk.damaged;
        Names { pm, bounds, table, inodes, links: HashMap::new(), parents: HashMap::new(), damaged }
    }

    /// Reads every directory that can be reached.
    fn walk(&mut self, report: &mut CheckReport) {
        let mut queue = VecDeque::from([ROOT_INODE]);
        self.links.insert(ROOT_INODE, 1);
        self.parents.insert(ROOT_INODE, ROOT_INODE);
        while let Some(number) = queue.pop_front() {
            let Some(raw) = self.inodes.get(&number) else {
                report.add(format!("directory {number} is not there"), "");
                continue;
            };
            if raw.kind != FileKind::Directory as u8 {
                report.add(format!("inode {number} is no directory"), "");
                continue;
            }
            if self.damaged.contains(&number) {
                continue;
            }
            if let Err(error) = self.read(number, raw, &mut queue, report) {
                report.add(error.object(format!("directory {number}")).to_string(), "");
            }
        }
    }

    fn read(
        &mut self,
        number: u64,
        raw: &RawInode,
        queue: &mut VecDeque<u64>,
        report: &mut CheckReport,
    ) -> Result<()> {
        let mut blocks = Vec::new();
        let count = raw.size.div_ceil(BLOCK_SIZE);
        blockmap::map(self.pm, raw.root, self.bounds).for_each(0, count, &mut |piece| {
            let start = piece.block().0;
            blocks.extend(start..start + piece.len);
        })?;
        if blocks.len() as u64 != count || !raw.size.is_multiple_of(BLOCK_SIZE) {
            report.add(format!("directory {number}: a block is missing"), "");
        }
        let mut seen: HashMap<Vec<u8>, ()> = HashMap::new();
        let mut page = [0u8; BLOCK_SIZE as usize];
        for block in blocks {
            self.pm.read(Block(block).offset(), &mut page)?;
            find_record(&page, |record| {
                if !record.is_used() {
                    return Ok(None::<()>);
                }
                let name = String::from_utf8_lossy(record.name(&page)).into_owned();
                let inode = record.raw.inode;
                if check_name(record.name(&page)).is_err() {
                    report.add(format!("directory {number}: the name {name:?} cannot be one"), "");
                }
                if seen.insert(record.name(&page).to_vec(), ()).is_some() {
                    report.add(format!("directory {number}: two names {name:?}"), "");
                }
                match self.inodes.get(&inode) {
                    Some(child)
                        if child.generation == record.raw.generation && child.kind == record.raw.kind =>
                    {
                        let links = self.links.entry(inode).or_default();
                        *links += 1;
                        if child.kind == FileKind::Directory as u8 {
                            match self.parents.insert(inode, number) {
                                None => queue.push_back(inode),
                                Some(_) => report.add(format!("directory {inode} has two names"), ""),
                            }
                        }
                    }
                    _ => report.add(format!("directory {number}: {name:?} refers to no inode"), ""),
                }
                Ok(None)
            })?;
        }
        Ok(())
    }

    /// Compares the cached values of inodes with those that names prove.
    fn compare(&self, report: &mut CheckReport) -> Vec<Fix> {
        let mut fixes = Vec::new();
        // Where something else is damaged, counts differ because of it.
        let is_whole = report.problems.iter().all(|problem| !problem.repair.is_empty());
        for (&number, raw) in self.inodes {
            let links = self.links.get(&number).copied().unwrap_or(0);
            let block = self.table[(number / crate::format::BLOCK_INODES) as usize];
            let address =
                Block(block).offset() + number % crate::format::BLOCK_INODES * crate::format::INODE_SIZE;
            if links != raw.links {
                let what = format!(
                    "inode {number} says {} and has {links}",
                    size::count(raw.links.into(), "link", "links")
                );
                // Nothing tells one that was removed from one whose new name was lost.
                let loses = links == 0 && is_whole;
                let repair = if loses { "free it, with all that is in it" } else { "count them" };
                let repair = if is_whole { repair } else { "" };
                report.problems.push(Problem { what, repair, loses, repaired: false });
                fixes.push((address + word::LINKS, links_word(links, raw.flags)));
            }
            let Some(&parent) = self.parents.get(&number) else { continue };
            if raw.kind == FileKind::Directory as u8 && raw.parent != parent {
                let what = format!("directory {number} does not say that it is in directory {parent}");
                report.add(what, if is_whole { "say so" } else { "" });
                fixes.push((address + word::PARENT, parent));
            }
        }
        if is_whole { fixes } else { Vec::new() }
    }
}
