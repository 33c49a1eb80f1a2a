//! The disk of workloads that have one: a simulated disk, and mistakes that can be made between it and the file system.
//!
//! The simulated PM beside the disk says which mistake is made, as it does for the layout's own. The mistakes concern
//! blocks of files and offloaded extent maps. Writes of a mount to the superblocks of a tier wait for the disk as they
//! should, because otherwise each crash would show the mistake.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nacre_engine::{BLOCK_SIZE, Result};
use nacre_media::block::{BlockDevice, SimDisk, Transfer};
use nacre_media::{Durable, Pm, SimPm};

use super::subject::Mistake;

/// Mistakes between a commit and the disk that it names blocks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum DiskMistake {
    /// The commit does not wait for the written blocks: the disk is not flushed before it.
    CommitBeforeFlush = 1001,
    /// The flush comes before the last write that the commit is for.
    FlushBeforeWrite,
    /// Blocks are free as soon as they were read to be brought up, and not after the commit: another file uses them.
    DiskFreedEarly,
}

impl DiskMistake {
    const ALL: [DiskMistake; 3] =
        [DiskMistake::CommitBeforeFlush, DiskMistake::FlushBeforeWrite, DiskMistake::DiskFreedEarly];

    /// Those by which a commit does not wait for the disk.
    const OF_FLUSH: [DiskMistake; 2] = [DiskMistake::CommitBeforeFlush, DiskMistake::FlushBeforeWrite];

    fn words(self) -> &'static str {
        match self {
            DiskMistake::CommitBeforeFlush => "a block on a disk is named before the disk was flushed",
            DiskMistake::FlushBeforeWrite => "a disk is flushed before the last write that the flush is for",
            DiskMistake::DiskFreedEarly => "blocks that come up from a disk are free there before the commit",
        }
    }

    /// All of them, as a subject lists its mistakes.
    pub(super) fn listed() -> impl Iterator<Item = Mistake> {
        let listed = |mistake: DiskMistake| Mistake { number: mistake as u32, words: mistake.words() };
        DiskMistake::ALL.into_iter().map(listed)
    }

    fn is_made(self, memory: &SimPm) -> bool {
        memory.is_seeded(self as u32)
    }
}

thread_local! {
    /// The blocks that this thread reads from a disk come up.
    static COMES_UP: Cell<bool> = const { Cell::new(false) };
}

/// Runs something in which each block that is read from a disk comes up.
pub(super) fn as_promotion<T>(promote: impl FnOnce() -> T) -> T {
    COMES_UP.set(true);
    let promoted = promote();
    COMES_UP.set(false);
    promoted
}

/// A simulated disk; the simulated PM beside it says which mistake is made.
pub struct Disk {
    disk: SimDisk,
    memory: Arc<SimPm>,
    /// A superblock was written since the last flush.
    superblock_waits: AtomicBool,
}

impl Disk {
    /// The disk with this number beside a simulated PM.
    pub(super) fn of(memory: &Arc<SimPm>, number: usize) -> Disk {
        Disk {
            disk: SimDisk::of(memory, number),
            memory: Arc::clone(memory),
            superblock_waits: AtomicBool::default(),
        }
    }

    /// Of the mistake to free blocks too soon: overwrites those that were read, as their next user would.
    fn use_again(&self, batch: &[Transfer<'_>]) -> Result<()> {
        let superblocks = [0, self.len() - BLOCK_SIZE];
        for one in batch {
            if let Transfer::Read { offset, into } = one
                && !superblocks.contains(offset)
            {
                self.disk.write(*offset, &vec![0xdb; into.len()])?;
            }
        }
        self.disk.flush().map(drop)
    }

    /// Blocks of it that are written, no superblock among them; `None` when nothing is.
    fn writes_data(&self, batch: &[Transfer<'_>]) -> Option<bool> {
        let superblocks = [0, self.len() - BLOCK_SIZE];
        let mut written = batch.iter().filter(|one| matches!(one, Transfer::Write { .. })).peekable();
        written.peek()?;
        Some(written.all(|one| !superblocks.contains(&one.offset())))
    }
}

impl BlockDevice for Disk {
    fn len(&self) -> u64 {
        self.disk.len()
    }

    fn name(&self) -> &str {
        self.disk.name()
    }

    #[track_caller]
    fn transfer(&self, batch: &mut [Transfer<'_>]) -> Result<()> {
        match self.writes_data(batch) {
            Some(true) if DiskMistake::FlushBeforeWrite.is_made(&self.memory) => {
                self.disk.flush()?;
            }
            Some(false) => self.superblock_waits.store(true, Ordering::Relaxed),
            _ => {}
        }
        self.disk.transfer(batch)?;
        if DiskMistake::DiskFreedEarly.is_made(&self.memory) && COMES_UP.get() {
            self.use_again(batch)?;
        }
        Ok(())
    }

    #[track_caller]
    fn flush(&self) -> Result<Durable> {
        let is_superblock = self.superblock_waits.swap(false, Ordering::Relaxed);
        if !is_superblock && DiskMistake::OF_FLUSH.iter().any(|mistake| mistake.is_made(&self.memory)) {
            return Ok(Durable::nothing_before());
        }
        self.disk.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<bool> {
        self.disk.discard(offset, len)
    }
}
