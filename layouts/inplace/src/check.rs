//! Checks a file system that is not mounted: every structure that is reachable, every block against every other, names
//! against inodes. Repairs as far as the format can prove it.
//!
//! A file system without a clean unmount is first recovered: on the media when it is repaired, else in DRAM over them.
//! So an operation that a crash interrupted is no damage.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use nacre_engine::{Block, Error, FileKind, Result};
use nacre_layout_parts::check::{Checked, note_walk, read_bad_blocks};
use nacre_layout_parts::links::{self, Proved, Said, Visitor};
use nacre_layout_parts::renew::store_word;
pub use nacre_layout_parts::report::{CheckReport, MediaReport, Problem, Repair};
use nacre_layout_parts::rules::MAX_TARGET;
use nacre_layout_parts::table::Graveyard;
use nacre_media::Pm;

use crate::blockmap::{self, Bounds};
use crate::directory::for_each_name;
use crate::format::{BLOCK_INODES, INLINE_TARGET, INODE_SIZE, ROOT_INODE, RawInode, word};
use crate::inode::{Inode, links_word};
use crate::mend;
use crate::recover::{LaneState, Walk, read_lanes, renew_lane, roll_back};
use crate::superblock::{Found, Superblock};

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
    nacre_layout_parts::check::check::<Layout, P>(pm, repair)
}

struct Layout;

impl Checked for Layout {
    type Fix = Fix;

    fn read_superblock(pm: &impl Pm) -> Result<Found> {
        crate::superblock::read(pm)
    }

    fn rescue<P: Pm>(pm: &P) -> Result<Vec<Problem>> {
        mend::rescue(pm)
    }

    fn examine<P: Pm>(pm: &P, level: Repair) -> Result<(CheckReport, Vec<Fix>)> {
        let started = Instant::now();
        let found = crate::superblock::read(pm)?;
        let mut report = CheckReport::begin(&found);
        let superblock = found.superblock;
        let mut lost = Vec::new();
        let rolled_back = undo(pm, &superblock, &mut lost)?;
        let bad = read_bad_blocks(pm, &superblock, &mut report)?;
        let mut inodes = BTreeMap::new();
        let mut walk = Walk::new(pm, &superblock);
        let ran = walk.run(&superblock, &mut |_, number, raw| {
            inodes.insert(number, *raw);
        });
        if let Err(error) = ran {
            report.add(error.to_string(), "");
            return Ok((report, Vec::new()));
        }
        note_walk(&mut report, &superblock, &bad, (&walk.marks, walk.report(started, rolled_back)));
        for (&number, raw) in inodes.iter().filter(|(number, _)| !walk.damaged.contains(number)) {
            if let Err(error) = check_inode(pm, &superblock, number, raw) {
                report.add(error.to_string(), "");
            }
        }
        let fixes = check_links(pm, Bounds::of(&superblock), &walk, &inodes, &mut report);
        // A transaction in a lost lane is half done for ever: unless there was none, or everything else is as it should
        // be or can be made so.
        let is_whole = superblock.is_clean() || report.is_provable();
        for (lane, error) in lost {
            report.add(error.to_string(), if is_whole { "write an empty one" } else { "" });
            if is_whole && (level == Repair::All || !report.loses()) {
                renew_lane(pm, &superblock, lane)?;
            }
        }
        report.walk.duration = started.elapsed();
        Ok((report, fixes))
    }

    fn fix<P: Pm>(pm: &P, (address, value): Fix) -> Result<()> {
        store_word(pm, address, value)
    }
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
