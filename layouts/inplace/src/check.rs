//! Checks a file system that is not mounted: every structure that is reachable, every block against every other, names
//! against inodes. Repairs as far as the format can prove it.
//!
//! A file system without a clean unmount is first recovered: on the media when it is repaired, else in DRAM over them.
//! So an operation that a crash interrupted is no damage.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use nacre_engine::{Block, Error, FileKind, Kind, Result};
use nacre_layout_parts::links::{self, Proved, Said, Visitor};
use nacre_layout_parts::renew::store_word;
pub use nacre_layout_parts::report::{CheckReport, MediaReport, Problem, Repair};
use nacre_layout_parts::rules::MAX_TARGET;
use nacre_layout_parts::table::Graveyard;
use nacre_media::{Overlay, Pm};

use crate::alloc::Allocator;
use crate::badblocks::{self, BadBlocks};
use crate::blockmap::{self, Bounds};
use crate::directory::for_each_name;
use crate::format::{BLOCK_INODES, INLINE_TARGET, INODE_SIZE, ROOT_INODE, RawInode, state, word};
use crate::inode::{Inode, links_word};
use crate::mend;
use crate::recover::{LaneState, Walk, read_lanes, renew_lane, roll_back};
use crate::superblock::Superblock;

pub use crate::scrub::check_media;

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
    let fixes = check_links(pm, Bounds::of(&superblock), &walk, &inodes, &mut report);
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
/// Compares links and parents with names; gives the words that a repair stores.
fn check_links<P: Pm>(
    pm: &P,
    bounds: Bounds,
    walk: &Walk<'_, P>,
    inodes: &BTreeMap<u64, RawInode>,
    report: &mut CheckReport,
) -> Vec<Fix> {
    let said = |(&number, raw): (&u64, &RawInode)| {
        let RawInode { kind, generation, links, parent, .. } = *raw;
        (number, Said { kind, generation, links, parent })
    };
    let said = inodes.iter().map(said).collect();
    let read = |number: u64, visit: &mut Visitor<'_>| for_each_name(pm, bounds, &inodes[&number], visit);
    let mut fixes = Vec::new();
    for Proved { number, links, parent } in links::check(ROOT_INODE, &said, &walk.damaged, &read, report) {
        let block = Block(walk.table[(number / BLOCK_INODES) as usize]);
        let address = block.offset() + number % BLOCK_INODES * INODE_SIZE;
        fixes.push((address + word::LINKS, links_word(links, inodes[&number].flags)));
        fixes.extend(parent.map(|parent| (address + word::PARENT, parent)));
    }
    fixes
}

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
