//! Checks a file system that is not mounted: every structure that is reachable, every block against every other, what
//! is cached against what is true. Repairs what the format can prove.

use std::time::Instant;

use nacre_engine::{Block, Result};
use nacre_media::Pm;

use crate::alloc::Allocator;
use crate::checkpoint;
use crate::format::{CHUNK_INODES, state};
use crate::recover::{RecoveryReport, Walk};
use crate::scan::Ending;
use crate::superblock::{Found, Summary, Superblock};
use crate::table::InodeTable;

/// One thing that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Which object, and what about it, in words.
    pub what: String,
    /// What a repair does about it; empty when nothing can be proved.
    pub repair: &'static str,
    /// It was repaired.
    pub repaired: bool,
}

/// What a check found.
#[derive(Debug, Clone)]
pub struct CheckReport {
    /// What the superblock says.
    pub summary: Summary,
    /// What is not as it should be. An interrupted operation after a crash is no problem: the next mount completes or
    /// erases it.
    pub problems: Vec<Problem>,
    /// What the walk over everything found.
    pub walk: RecoveryReport,
    /// Blocks in use and free.
    pub used_blocks: u64,
    /// See `used_blocks`.
    pub free_blocks: u64,
}

impl CheckReport {
    /// Nothing is wrong, or everything that was is repaired.
    pub fn is_sound(&self) -> bool {
        self.problems.iter().all(|problem| problem.repaired)
    }

    fn add(&mut self, what: impl Into<String>, repair: &'static str) {
        self.problems.push(Problem { what: what.into(), repair, repaired: false });
    }
}

/// Checks the file system on `pm`, which must not be mounted. With `repair`, writes what can be proved right.
///
/// An error means that nothing could be checked: there is no file system, or both superblocks are damaged.
pub fn check<P: Pm>(pm: &P, repair: bool) -> Result<CheckReport> {
    let started = Instant::now();
    let Found { mut superblock, valid } = Superblock::read(pm)?;
    let blocks = superblock.raw.device_blocks;
    let inodes = table(&superblock)?;
    let chunks = inodes.load_chunks(pm)?;
    let ending = if superblock.is_clean() { Ending::Clean } else { Ending::MayBeTorn };
    let seeds = (superblock.seed(), superblock.raw.hash_seed);
    let walk = Walk::new(pm, seeds, &inodes, &chunks, superblock.raw.settled_transactions, ending);
    walk.run();
    let alloc = Allocator::new(blocks, 1, 0);
    walk.free_the_rest(&alloc, superblock.first_data_block(), blocks);

    let free_blocks = alloc.free_blocks();
    let mut report = CheckReport {
        summary: superblock.summary(valid),
        problems: Vec::new(),
        walk: walk.report(started),
        used_blocks: blocks - superblock.first_data_block() - free_blocks,
        free_blocks,
    };
    for (index, _) in valid.iter().enumerate().filter(|&(_, &valid)| !valid) {
        report.add(format!("copy {} of the superblock is damaged", index + 1), "write it from the other");
    }
    for damage in report.walk.damage.clone() {
        report.add(damage, "");
    }
    if ending == Ending::Clean {
        check_cached(&walk, &mut report);
        check_checkpoint(pm, &superblock, &inodes, &alloc, &mut report);
    }
    if superblock.raw.errors != 0 {
        report
            .add(format!("{} errors were noted while it was mounted", superblock.raw.errors), "forget them");
    }
    if repair {
        repair_all(pm, &mut superblock, &walk, &mut report)?;
    }
    Ok(report)
}

fn table(superblock: &Superblock) -> Result<InodeTable> {
    let max_chunks = superblock.raw.device_blocks.div_ceil(CHUNK_INODES);
    Ok(InodeTable::new(superblock.chunk_table()?, superblock.seed(), max_chunks, 1))
}

/// After a clean unmount what is cached must be true.
fn check_cached<P: Pm>(walk: &Walk<'_, P>, report: &mut CheckReport) {
    for (number, links, cached) in walk.wrong_links().take(100) {
        report.add(format!("inode {number} says {cached} links and has {links}"), "count them");
    }
    for (number, parent) in walk.wrong_parents() {
        report.add(format!("directory {number} does not say that it is in directory {parent}"), "say so");
    }
}

/// The checkpoint must list exactly what is free and in use.
fn check_checkpoint<P: Pm>(
    pm: &P,
    superblock: &Superblock,
    walked: &InodeTable,
    free: &Allocator,
    report: &mut CheckReport,
) {
    const REPAIR: &str = "drop it: the next mount counts";
    let raw = &superblock.raw;
    if raw.checkpoint == 0 {
        return;
    }
    let alloc = Allocator::new(raw.device_blocks, 1, 0);
    let read = table(superblock).and_then(|inodes| {
        inodes.load_chunks(pm)?;
        let first = Block(raw.checkpoint);
        let (seed, epoch) = (superblock.seed(), raw.mount_epoch);
        checkpoint::read(pm, seed, first, epoch, superblock.first_data_block(), &alloc, &inodes)?;
        Ok(inodes)
    });
    let inodes = match read {
        Ok(inodes) => inodes,
        Err(error) => return report.add(error.to_string(), REPAIR),
    };
    let runs = |alloc: &Allocator| {
        let mut runs = Vec::new();
        alloc.for_each_free_run(|run| runs.push((run.start, run.len)));
        runs
    };
    if runs(&alloc) != runs(free) {
        report.add("the checkpoint lists other blocks as free than are free", REPAIR);
    }
    let used = |inodes: &InodeTable| {
        let mut used = Vec::new();
        inodes.for_each_chunk(|chunk, bits| used.push((chunk, bits)));
        used
    };
    if used(&inodes) != used(walked) {
        report.add("the checkpoint lists other inodes as in use than have names", REPAIR);
    }
}

fn repair_all<P: Pm>(
    pm: &P,
    superblock: &mut Superblock,
    walk: &Walk<'_, P>,
    report: &mut CheckReport,
) -> Result<()> {
    walk.repair()?;
    let raw = &mut superblock.raw;
    raw.settled_transactions = raw.settled_transactions.max(walk.greatest_transaction() + 1);
    raw.errors = 0;
    raw.last_error = 0;
    raw.checkpoint = 0;
    // Everything interrupted is now erased or complete; without a checkpoint the next mount counts what is free.
    raw.state = state::CLEAN;
    superblock.write(pm)?;
    for problem in report.problems.iter_mut().filter(|problem| !problem.repair.is_empty()) {
        problem.repaired = true;
    }
    Ok(())
}
