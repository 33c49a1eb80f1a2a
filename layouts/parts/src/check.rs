//! The check of a layout that walks over all of its blocks: one pass over everything, and then the corrections that it
//! proves. The structures that a pass reads are the layout's own ([`Checked`]).

use nacre_engine::{Kind, Result};
use nacre_media::{Overlay, Pm};

use crate::alloc::Allocator;
use crate::badblocks::{self, BadBlocks};
use crate::format::state;
use crate::marks::Marks;
use crate::report::{CheckReport, Problem, RecoveryReport, Repair};
use crate::superblock::{Found, Superblock};

/// A layout, as its check sees it.
pub trait Checked {
    /// A correction that a pass has proved.
    type Fix;

    /// Reads the superblock's copies.
    fn read_superblock(pm: &impl Pm) -> Result<Found>;

    /// Gives up the inodes that media errors took from the inode table; gives the problems, which are repaired.
    fn rescue<P: Pm>(pm: &P) -> Result<Vec<Problem>>;

    /// One pass over everything, after recovery; gives the corrections.
    fn examine<P: Pm>(pm: &P, level: Repair) -> Result<(CheckReport, Vec<Self::Fix>)>;

    /// Writes a correction, durable on return.
    fn fix<P: Pm>(pm: &P, fix: Self::Fix) -> Result<()>;
}

/// Checks the file system on `pm`, which must not be mounted. A repair recovers it, and writes corrections that can be
/// proved right. Other damage is reported and left alone.
///
/// An error means that nothing could be checked: there is no file system, or nothing that leads into it.
pub fn check<L: Checked, P: Pm>(pm: &P, repair: Repair) -> Result<CheckReport> {
    let gives_up = match repair {
        Repair::None => return would_do::<L, P>(pm),
        Repair::Safe => !L::rescue(&Overlay::new(pm))?.is_empty(),
        Repair::All => false,
    };
    L::read_superblock(pm)?.superblock.check_writable()?;
    if gives_up {
        return would_do::<L, P>(pm);
    }
    let given_up = if repair == Repair::All { L::rescue(pm)? } else { Vec::new() };
    let (mut report, fixes) = L::examine(pm, repair)?;
    if repair == Repair::Safe && report.loses() {
        return Ok(report);
    }
    fixes.into_iter().try_for_each(|fix| L::fix(pm, fix))?;
    let mut superblock = L::read_superblock(pm)?.superblock;
    if report.is_provable() {
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
fn would_do<L: Checked, P: Pm>(pm: &P) -> Result<CheckReport> {
    let over = Overlay::new(pm);
    let mut given_up = L::rescue(&over)?;
    let (mut report, _) = L::examine(&over, Repair::None)?;
    given_up.iter_mut().for_each(|problem| problem.repaired = false);
    report.problems.splice(0..0, given_up);
    Ok(report)
}

/// Reads the list of bad blocks, and forgets the words of it that do not validate.
pub fn read_bad_blocks(pm: &impl Pm, superblock: &Superblock, report: &mut CheckReport) -> Result<BadBlocks> {
    let bad = badblocks::read(pm, superblock)?;
    report.bad_blocks = bad.blocks.len() as u64;
    if bad.damaged.is_empty() {
        return Ok(bad);
    }
    let what = format!("the list of bad blocks has {} words that do not validate", bad.damaged.len());
    match badblocks::clear_damaged(pm, superblock, &bad) {
        // Readable words count, independent of the others.
        Err(error) if error.kind() == Kind::Media => report.add(what, ""),
        done => {
            done?;
            report.add(what, "clear them; fsck -c finds bad blocks again");
        }
    }
    Ok(bad)
}

/// The blocks that nothing uses, by the marks of a walk, of a file system that is not mounted.
pub fn unused(superblock: &Superblock, bad: &BadBlocks, marks: &Marks) -> Allocator {
    let alloc = Allocator::new(superblock.raw.device_blocks, 1, 0);
    bad.blocks.iter().for_each(|&block| alloc.withdraw(block));
    marks.free_the_rest(&alloc);
    alloc
}

/// Puts the findings of a walk into a report, and the space that it found in use.
pub fn note_walk(
    report: &mut CheckReport,
    superblock: &Superblock,
    bad: &BadBlocks,
    (marks, walk): (&Marks, RecoveryReport),
) {
    report.free_blocks = unused(superblock, bad, marks).free_blocks();
    report.used_blocks = superblock.raw.device_blocks - superblock.first_data_block() - report.free_blocks;
    walk.damage.iter().for_each(|damage| report.add(damage, ""));
    report.walk = walk;
}
