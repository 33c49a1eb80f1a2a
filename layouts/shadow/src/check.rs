//! Checks a file system that is not mounted: every structure that is reachable, every block against every other, names
//! against inodes. Repairs as far as the format can prove it.
//!
//! A file system without a clean unmount is first recovered: on the media when it is repaired, else in DRAM over them.
//! So an operation that a crash interrupted is no damage.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use nacre_engine::{Error, FileKind, Result};
use nacre_layout_parts::check::{Checked, note_walk, read_bad_blocks};
use nacre_layout_parts::links::{self, Proved, Said, Visitor};
pub use nacre_layout_parts::report::{CheckReport, MediaReport, Problem, Repair};
use nacre_layout_parts::rules::MAX_TARGET;
use nacre_layout_parts::tier_table::listed;
use nacre_media::Pm;
use zerocopy::IntoBytes;

use crate::blockmap::{self, Bounds};
use crate::directory::for_each_name;
use crate::format::{INLINE_TARGET, MAX_GENERATION, ROOT_INODE, RawHeader, inode_seed};
use crate::mend;
use crate::mount::recover;
use crate::recover::Walk;
use crate::state::{NewSlot, State};
use crate::superblock::{Found, Superblock};
use crate::switches::Read;

pub use crate::scrub::check_media;

/// An inode that is in use.
struct Used {
    address: u64,
    header: RawHeader,
    state: State,
}

/// Checks the file system on `pm`, which must not be mounted. With `repair`, recovers it and writes corrections that
/// can be proved right: copies of the superblock, of switches, link counts, and parents of directories. Inodes that a
/// media error took from the inode table are given up ([`mend`]). Other damage is reported and left alone.
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
    type Fix = NewSlot;

    fn read_superblock(pm: &impl Pm) -> Result<Found> {
        crate::superblock::read(pm)
    }

    fn rescue<P: Pm>(pm: &P) -> Result<Vec<Problem>> {
        let superblock = crate::superblock::read(pm)?.superblock;
        mend::rescue(pm, &read_switches(pm, &superblock)?)
    }

    fn examine<P: Pm>(pm: &P, level: Repair) -> Result<(CheckReport, Vec<NewSlot>)> {
        let started = Instant::now();
        let found = crate::superblock::read(pm)?;
        let mut report = CheckReport::begin(&found);
        let superblock = found.superblock;
        let switches = read_switches(pm, &superblock)?;
        let bad = read_bad_blocks(pm, &superblock, &mut report)?;
        report.tiers = listed(&superblock.raw);
        let mut inodes = BTreeMap::new();
        let mut walk = Walk::new(pm, &superblock, &switches);
        let ran = walk.run(&superblock, &mut |number, address, header, state| {
            inodes.insert(number, Used { address, header: *header, state: *state });
        });
        if let Err(error) = ran {
            report.add(error.to_string(), "");
            return Ok((report, Vec::new()));
        }
        recover(pm, &superblock, &walk, &switches)?;
        let is_directory = |used: &&Used| used.header.kind == FileKind::Directory as u8;
        let found = walk.report(started, inodes.values().filter(is_directory).count() as u64);
        note_walk(&mut report, &superblock, &bad, (&walk.marks, found));
        for (&number, used) in inodes.iter().filter(|(number, _)| !walk.damaged.contains(number)) {
            if let Err(error) = check_inode(pm, &superblock, number, used) {
                report.add(error.to_string(), "");
            }
        }
        let fixes = check_links(pm, &superblock, (&switches, &walk.damaged), &inodes, &mut report);
        check_switches(pm, &superblock, (&switches, &walk), level, &mut report)?;
        report.walk.duration = started.elapsed();
        Ok((report, fixes))
    }

    fn fix<P: Pm>(pm: &P, NewSlot { address, slot, .. }: NewSlot) -> Result<()> {
        let copied = pm.copy(address, slot.as_bytes())?;
        pm.fence(copied);
        Ok(())
    }
}

/// The switches of an image. A lost one is taken to be above all tags: everything tagged counts.
fn read_switches<P: Pm>(pm: &P, superblock: &Superblock) -> Result<Read> {
    let mut switches = Read::from(pm, superblock)?;
    for &lane in &switches.lost {
        switches.generations[lane as usize] = MAX_GENERATION - 1;
    }
    Ok(switches)
}

/// A switch of which one copy was lost was mended by the recovery. One that is lost in both is made anew, if everything
/// else is as it should be.
fn check_switches<P: Pm>(
    pm: &P,
    superblock: &Superblock,
    (switches, walk): (&Read, &Walk<'_, P>),
    level: Repair,
    report: &mut CheckReport,
) -> Result<()> {
    if switches.lost.is_empty() {
        return Ok(());
    }
    let is_whole = report.is_provable();
    for lane in &switches.lost {
        let what = format!("both copies of the switch of lane {lane}");
        report.add(what, if is_whole { "make a new one, with what its lane has done" } else { "" });
    }
    if is_whole && (level == Repair::All || !report.loses()) {
        // Everything that is tagged was taken to count.
        let highest = walk.highest.iter().copied().max().unwrap_or(0);
        switches.renew_lost(pm, superblock, highest)?;
    }
    Ok(())
}

/// Compares links and parents with names; gives the slots that a repair writes.
fn check_links<P: Pm>(
    pm: &P,
    superblock: &Superblock,
    (switches, damaged): (&Read, &BTreeSet<u64>),
    inodes: &BTreeMap<u64, Used>,
    report: &mut CheckReport,
) -> Vec<NewSlot> {
    let said = |(&number, Used { header, state, .. }): (&u64, &Used)| {
        let (links, parent) = (state.slot.links, state.slot.parent_end);
        (number, Said { kind: header.kind, generation: header.generation, links, parent })
    };
    let said = inodes.iter().map(said).collect();
    let is_reached = |tag| switches.is_reached(tag);
    let bounds = Bounds::of(superblock);
    let read = |number: u64, visit: &mut Visitor<'_>| {
        for_each_name(pm, bounds, &inodes[&number].state, &is_reached, visit)
    };
    let fix = |Proved { number, links, parent }: Proved| {
        let Used { address, header, state } = &inodes[&number];
        let mut new = state.next(*address, inode_seed(superblock.seed(), number, header.generation));
        new.slot.links = links;
        new.slot.parent_end = parent.unwrap_or(new.slot.parent_end);
        new.slot.checksum = new.slot.compute_checksum(new.seed);
        new
    };
    links::check(ROOT_INODE, &said, damaged, &read, report).into_iter().map(fix).collect()
}

/// Checks the fields of an inode, beside its tree.
fn check_inode<P: Pm>(pm: &P, superblock: &Superblock, number: u64, used: &Used) -> Result<()> {
    let damaged = |what: &str| Err(Error::corrupt(format!("inode {number}: {what}")));
    let Used { header, state, .. } = used;
    let times = superblock.times();
    for time in [header.btime, header.atime, state.slot.mtime, state.slot.ctime] {
        if times.unpack(time).is_none() {
            return damaged("time");
        }
    }
    if header.reserved != [0; 2] {
        return damaged("reserved fields");
    }
    if header.kind != FileKind::Symlink as u8 {
        return Ok(());
    }
    let map = blockmap::map(pm, state.tree(FileKind::Symlink), Bounds::of(superblock));
    let is_inline = state.slot.root == 0 && state.slot.size <= INLINE_TARGET as u64;
    let len = state.slot.size;
    if len == 0 || len > MAX_TARGET as u64 || !(is_inline || map.find(0)?.is_some()) {
        return damaged("target");
    }
    Ok(())
}
