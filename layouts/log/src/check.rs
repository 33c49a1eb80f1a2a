//! Checks a file system that is not mounted: every structure that is reachable, every block against every other, cached
//! values against true ones. Repairs as far as the format can prove it.

use std::collections::BTreeMap;
use std::time::Instant;

use nacre_engine::{BLOCK_SIZE, Block, Kind, Result, TierReader, size};
use nacre_layout_parts::badblocks::Share;
pub use nacre_layout_parts::report::{CheckReport, MediaReport, Problem, Repair};
use nacre_layout_parts::scrub::{all_bad_lines, new_bad_blocks};
use nacre_layout_parts::tier_table::listed;
use nacre_media::{Overlay, Pm};

use crate::alloc::Allocator;
use crate::badblocks::{self, BadBlocks};
use crate::checkpoint;
use crate::format::state;
use crate::mend::{self, Evidence, Finding};
use crate::places::Reach;
use crate::recover::Walk;
use crate::scan::Ending;
use crate::superblock::Superblock;
use crate::table::InodeTable;
use crate::tiers::Tiers;

/// Rounds of repair. Each leaves less damage than the one before; damage that is still there after so many stays.
const ROUNDS: usize = 8;

/// Adds the problems that a repair found, repaired or not.
fn add_findings(report: &mut CheckReport, findings: Vec<Finding>) {
    for Finding { what, repair, loses, done, .. } in findings {
        // A later round may say again what an earlier one could not do.
        if report.problems.iter().all(|problem| problem.what != what) {
            report.problems.push(Problem { what, repair, loses, repaired: done });
        }
    }
}

/// Checks the file system on `pm`, which must not be mounted. With `repair`, writes corrections that can be proved
/// right and gives up objects that cannot be saved.
///
/// An error means that nothing could be checked: there is no file system, or both superblocks are damaged.
pub fn check<P: Pm>(pm: &P, repair: bool) -> Result<CheckReport> {
    check_with(pm, if repair { Repair::All } else { Repair::None })
}

/// The same, with a choice of the permitted repairs.
pub fn check_with<P: Pm>(pm: &P, repair: Repair) -> Result<CheckReport> {
    check_with_tiers(pm, repair, None)
}

/// The same, with a reader of tiers, for the images of logs on them. Without it, and on tiers that it does not have,
/// the blocks that images name are not checked.
pub fn check_with_tiers<P: Pm>(
    pm: &P,
    repair: Repair,
    tiers: Option<&dyn TierReader>,
) -> Result<CheckReport> {
    if repair != Repair::None {
        crate::superblock::read(pm)?.superblock.check_writable()?;
        if let Some(report) = needs_more(pm, repair, tiers)? {
            return Ok(report);
        }
        return mend(pm, repair, tiers).map(|(report, _)| report);
    }
    let mut pass = examine(pm, false, tiers)?;
    if pass.is_damaged() {
        // The effect of a repair is found out by doing it on an overlay, which leaves no trace.
        let (would, _) = mend(&Overlay::new(pm), Repair::All, tiers)?;
        pass.report.problems.retain(|problem| would.problems.iter().all(|other| other.what != problem.what));
        pass.report.problems.retain(|problem| !problem.repair.is_empty());
        let found = would.problems.into_iter().map(|problem| {
            // Damage that even that would leave has no repair.
            let repair = if problem.repaired { problem.repair } else { "" };
            Problem { repair, repaired: false, ..problem }
        });
        pass.report.problems.extend(found);
    }
    Ok(pass.report)
}

/// The report of a repair without data loss, if it would leave damage. Nothing may be written in that case. An inode
/// that lost its name has blocks that are not known to be in use, and a repair that may lose data relies on the
/// checkpoint.
fn needs_more<P: Pm>(pm: &P, level: Repair, tiers: Option<&dyn TierReader>) -> Result<Option<CheckReport>> {
    if level != Repair::Safe || !examine(pm, false, tiers)?.is_damaged() {
        return Ok(None);
    }
    let (mut report, is_whole) = mend(&Overlay::new(pm), level, tiers)?;
    report.problems.iter_mut().for_each(|problem| problem.repaired = false);
    Ok((!is_whole).then_some(report))
}

/// Looks for media errors in all of a device that [`check_with`] found sound, and says which files they are in. With
/// `record`, puts their blocks into the list of bad blocks, which makes them no problem any more: their content is lost
/// either way.
pub fn check_media<P: Pm>(pm: &P, record: bool) -> Result<MediaReport> {
    let superblock = crate::superblock::read(pm)?.superblock;
    if record {
        superblock.check_writable()?;
    }
    let (mut lines, retired) = all_bad_lines(pm, &superblock)?;
    let ending = if superblock.is_clean() { Ending::Clean } else { Ending::MayBeTorn };
    let [told, _] = mend::locate(pm, &superblock, ending, &retired)?;
    let errors = mend::locate(pm, &superblock, ending, &lines)?.concat();
    if record && !lines.is_empty() {
        // Free inodes can be used again, and their block stays what it is.
        let good = mend::renew_free_inodes(pm, &superblock)?;
        lines.retain(|line| !good.contains(&Block(line / BLOCK_SIZE)));
    }
    let new_blocks = new_bad_blocks(pm, &superblock, &lines, record.then_some(Share::ALL))?;
    let report = MediaReport { errors, told, new_blocks };
    if record && report.new_blocks > 0 {
        // The checkpoint may list them as free.
        let mut superblock = superblock;
        superblock.raw.checkpoint = 0;
        superblock.write(pm)?;
    }
    Ok(report)
}

/// The result of one strict pass over everything.
struct Pass {
    report: CheckReport,
    superblock: Superblock,
    ending: Ending,
    evidence: Evidence,
    /// The table of inodes does not validate: nothing behind it was looked at.
    tableless: bool,
    /// Damage that is not repaired and damages nothing else: images on tiers, and a list of bad blocks that cannot be
    /// written.
    left: Vec<String>,
}

impl Pass {
    fn is_damaged(&self) -> bool {
        self.tableless || self.report.walk.damage_count > 0
    }
}

/// Repairs in rounds, until a strict pass finds nothing more or nothing more can be done; says whether nothing is
/// damaged any more, except images on tiers.
fn mend<P: Pm>(pm: &P, level: Repair, tiers: Option<&dyn TierReader>) -> Result<(CheckReport, bool)> {
    let mut first: Option<CheckReport> = None;
    let mut findings = Vec::new();
    let mut evidence = None;
    let mut erased = (0, 0);
    for round in 0..ROUNDS {
        let mut pass = examine(pm, true, tiers)?;
        let report = first.get_or_insert_with(|| pass.report.clone());
        let walk = &mut pass.report.walk;
        if walk.damage_count > 0 {
            walk.rolled_back = 0; // not yet
        }
        let has_erased = walk.torn + walk.rolled_back > 0;
        erased = (erased.0 + walk.torn, erased.1 + walk.rolled_back);
        (walk.torn, walk.rolled_back) = erased;
        if !pass.is_damaged() && has_erased && round + 1 < ROUNDS {
            // In a log that nacre did not write, that may have been all that showed an operation before it to be
            // complete.
            continue;
        }
        if !pass.is_damaged() {
            // Where only images are damaged nothing was changed; the free blocks of their tier are known from the
            // unmount.
            let is_untouched = pass.ending == Ending::Clean && report.problems.len() == pass.left.len();
            if pass.left.is_empty() || round > 0 || !is_untouched {
                settle(pm, &mut pass.superblock)?;
            }
            return Ok((report_of_repair(report, pass, findings), true));
        }
        if round + 1 == ROUNDS {
            break;
        }
        let evidence =
            evidence.get_or_insert(std::mem::replace(&mut pass.evidence, Evidence { in_use: None }));
        if pass.tableless {
            open_for_repair(pm, &mut pass.superblock)?;
        }
        let found = mend::round(pm, &pass.superblock, pass.ending, evidence, level)?;
        let changed = found.iter().any(|finding| finding.done);
        findings.extend(found);
        if !changed {
            break;
        }
    }
    let mut report = first.ok_or_else(|| nacre_engine::Error::corrupt("no round of repair was run"))?;
    let described = !findings.is_empty();
    add_findings(&mut report, findings);
    if described && report.problems.iter().any(|problem| !problem.repair.is_empty() && !problem.repaired) {
        // The findings say it better.
        report.problems.retain(|problem| !problem.repair.is_empty());
    }
    Ok((report, false))
}

/// The report of a repair after which a pass found nothing: the problems of the first pass, and the findings.
fn report_of_repair(first: &mut CheckReport, pass: Pass, findings: Vec<Finding>) -> CheckReport {
    let mut problems = std::mem::take(&mut first.problems);
    problems.retain(|problem| !problem.repair.is_empty());
    let mut last = CheckReport { summary: first.summary.clone(), problems, ..pass.report };
    add_findings(&mut last, findings);
    // Nothing is left, so that repairs that failed in one round were done in a later one.
    last.problems.iter_mut().for_each(|problem| problem.repaired = true);
    pass.left.into_iter().for_each(|what| last.add(what, ""));
    last
}

/// Marks the file system as one under repair. Free blocks must be counted again from now on, and a mount before the end
/// of the repair reports that there were errors.
fn open_for_repair<P: Pm>(pm: &P, superblock: &mut Superblock) -> Result<()> {
    let raw = &mut superblock.raw;
    if raw.checkpoint != 0 || raw.errors == 0 {
        raw.checkpoint = 0;
        raw.errors = raw.errors.max(1);
        superblock.write(pm)?;
    }
    Ok(())
}

/// Recovers like a mount: erases interrupted operations and counts links. If something is damaged, the counts may be
/// wrong, and must not be used before the repair is finished; nor is any transaction settled before.
fn recover<P: Pm>(pm: &P, walk: &Walk<'_, P>, superblock: &mut Superblock, is_damaged: bool) -> Result<()> {
    if is_damaged {
        open_for_repair(pm, superblock)?;
    }
    walk.repair()?;
    if !is_damaged {
        let settled = walk.greatest_transaction() + 1;
        superblock.raw.settled_transactions = superblock.raw.settled_transactions.max(settled);
    }
    Ok(())
}

/// Everything interrupted is erased or complete; without a checkpoint the next mount counts the free blocks.
fn settle<P: Pm>(pm: &P, superblock: &mut Superblock) -> Result<()> {
    let raw = &mut superblock.raw;
    raw.errors = 0;
    raw.last_error = 0;
    raw.checkpoint = 0;
    raw.state = state::CLEAN;
    superblock.write(pm)
}

/// One strict pass; a repair begins with recovery.
fn examine<P: Pm>(pm: &P, repairs: bool, readers: Option<&dyn TierReader>) -> Result<Pass> {
    let started = Instant::now();
    let found = crate::superblock::read(pm)?;
    let mut report = CheckReport { tiers: listed(&found.superblock.raw), ..CheckReport::begin(&found) };
    let mut superblock = found.superblock;
    let blocks = superblock.raw.device_blocks;
    let ending = if superblock.is_clean() { Ending::Clean } else { Ending::MayBeTorn };
    let bad = badblocks::read(pm, &superblock)?;
    let mut left = Vec::new();
    if !bad.damaged.is_empty() {
        let what = format!("the list of bad blocks has {} words that do not validate", bad.damaged.len());
        // Readable words count, independent of the others.
        let stays = repairs && is_refused(badblocks::clear_damaged(pm, &superblock, &bad))?;
        report.add(&*what, if stays { "" } else { "clear them; fsck -c finds bad blocks again" });
        left.extend(stays.then_some(what));
    }
    report.bad_blocks = bad.blocks.len() as u64;
    let inodes = table(&superblock)?;
    let chunks = match inodes.load_chunks(pm) {
        Ok(chunks) => chunks,
        Err(error) => {
            report.add(error.to_string(), "");
            let evidence = Evidence { in_use: None };
            return Ok(Pass { report, superblock, ending, evidence, tableless: true, left });
        }
    };
    let reach = Reach::of(pm.len() / BLOCK_SIZE, &superblock.raw);
    let mut walk = Walk::new(pm, &inodes, &chunks, &superblock, &reach, ending);
    walk.run();
    if let Some(reader) = readers {
        let images = walk.read_images(reader);
        images.iter().for_each(|what| report.add(what, ""));
        left.extend(images);
    }
    let alloc = allocator(&superblock, &bad);
    walk.free_the_rest(&alloc, superblock.first_data_block(), blocks);
    let tiers = Tiers::new(&reach)?;
    walk.free_the_rest_of_tiers(&tiers);
    report.free_blocks = alloc.free_blocks();
    report.used_blocks = blocks - superblock.first_data_block() - report.free_blocks;
    report.walk = walk.report(started);
    for damage in report.walk.damage.clone() {
        report.add(damage, "");
    }
    // Where something is damaged, counts differ because of it.
    if ending == Ending::Clean && report.walk.damage_count == 0 {
        check_cached(&walk, &mut report);
        let counted = Counted { alloc: &alloc, tiers: &tiers, inodes: &inodes };
        check_checkpoint(pm, &superblock, &counted, &bad, &mut report);
    }
    let evidence = Evidence { in_use: in_use_at_unmount(pm, &superblock) };
    if repairs {
        recover(pm, &walk, &mut superblock, report.walk.damage_count > 0)?;
    }
    Ok(Pass { report, superblock, ending, evidence, tableless: false, left })
}

/// The media refuses the write.
fn is_refused(result: Result<()>) -> Result<bool> {
    match result {
        Err(error) if error.kind() == Kind::Media => Ok(true),
        done => done.map(|()| false),
    }
}

/// An allocator in which nothing is free and bad blocks never will be.
fn allocator(superblock: &Superblock, bad: &BadBlocks) -> Allocator {
    let alloc = Allocator::new(superblock.raw.device_blocks, 1, 0);
    bad.blocks.iter().for_each(|&block| alloc.withdraw(block));
    alloc
}

fn table(superblock: &Superblock) -> Result<InodeTable> {
    InodeTable::of(superblock, 1, u64::MAX)
}

/// The inodes that the checkpoint says are in use.
fn in_use_at_unmount(pm: &impl Pm, superblock: &Superblock) -> Option<BTreeMap<u64, [u64; 4]>> {
    let raw = &superblock.raw;
    if !superblock.is_clean() || raw.checkpoint == 0 {
        return None;
    }
    let inodes = table(superblock).ok()?;
    inodes.load_chunks(pm).ok()?;
    let alloc = Allocator::new(raw.device_blocks, 1, 0);
    let reach = Reach::of(pm.len() / BLOCK_SIZE, raw);
    let tiers = Tiers::new(&reach).ok()?;
    checkpoint::read(pm, superblock, &reach, &alloc, &tiers, &inodes).ok()?;
    let mut in_use = BTreeMap::new();
    inodes.for_each_chunk(|chunk, used| {
        in_use.insert(chunk, used);
    });
    Some(in_use)
}

/// After a clean unmount cached values must be true.
fn check_cached<P: Pm>(walk: &Walk<'_, P>, report: &mut CheckReport) {
    for (number, links, cached) in walk.wrong_links().take(100) {
        report.add(
            format!("inode {number} says {} and has {links}", size::count(cached.into(), "link", "links")),
            "count them",
        );
    }
    for (number, parent) in walk.wrong_parents() {
        report.add(format!("directory {number} does not say that it is in directory {parent}"), "say so");
    }
}

/// Free and used blocks and inodes, as the walk counted them.
struct Counted<'a> {
    alloc: &'a Allocator,
    tiers: &'a Tiers,
    inodes: &'a InodeTable,
}

/// The checkpoint must list exactly that.
fn check_checkpoint<P: Pm>(
    pm: &P,
    superblock: &Superblock,
    counted: &Counted<'_>,
    bad: &BadBlocks,
    report: &mut CheckReport,
) {
    const REPAIR: &str = "drop it: the next mount counts";
    let raw = &superblock.raw;
    if raw.checkpoint == 0 {
        return;
    }
    let alloc = allocator(superblock, bad);
    let reach = Reach::of(pm.len() / BLOCK_SIZE, raw);
    let read = table(superblock).and_then(|inodes| {
        let tiers = Tiers::new(&reach)?;
        inodes.load_chunks(pm)?;
        checkpoint::read(pm, superblock, &reach, &alloc, &tiers, &inodes)?;
        Ok((inodes, tiers))
    });
    let (inodes, tiers) = match read {
        Ok(read) => read,
        Err(error) => return report.add(error.to_string(), REPAIR),
    };
    let runs = |alloc: &Allocator, tiers: &Tiers| {
        let mut runs = Vec::new();
        alloc.for_each_free_run(|run| runs.push((0, run.start, run.len)));
        // Blocks of images that were not read are neither.
        tiers.for_each_free_run(|run| {
            if !counted.tiers.waits_for_count(run.tier) {
                runs.push((run.tier, run.start, run.len));
            }
        });
        runs
    };
    if runs(&alloc, &tiers) != runs(counted.alloc, counted.tiers) {
        report.add("the checkpoint's list of free blocks is wrong", REPAIR);
    }
    let used = |inodes: &InodeTable| {
        let mut used = Vec::new();
        inodes.for_each_chunk(|chunk, bits| used.push((chunk, bits)));
        used
    };
    if used(&inodes) != used(counted.inodes) {
        report.add("the checkpoint's list of inodes in use is wrong", REPAIR);
    }
}
