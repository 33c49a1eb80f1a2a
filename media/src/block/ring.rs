//! Many transfers at once through io_uring.
//!
//! A device has a few rings, each for one thread at a time: a thread takes the first free one from its own on. Who finds
//! none free, and whoever has a single transfer, makes system calls instead: nobody waits for a ring. A kernel that
//! refuses io_uring (an old one, a seccomp filter, a sysctl) is asked once.
//!
//! The kernel reads and writes the caller's memory while a transfer is under way, so [`Ring::run`] returns only when none
//! is, whatever happens.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, TryLockError};
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};

use super::Transfer;
use crate::thread::thread_number;

/// Transfers under way in one ring.
const DEPTH: usize = 32;
/// Rings of a device.
const RINGS: usize = 8;

/// What became of a transfer: the bytes that were moved, or the error number; `None` when nobody tried.
pub(super) type Outcome = Option<Result<u32, i32>>;

/// The rings of one device.
#[derive(Default)]
pub(super) struct Rings {
    slots: [Mutex<Option<IoUring>>; RINGS],
    refused: AtomicBool,
}

impl fmt::Debug for Rings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rings(refused: {:?})", self.refused)
    }
}

impl Rings {
    /// Makes transfers through a free ring, and says what became of each. Those that it says nothing of were not begun.
    pub(super) fn run(&self, fd: BorrowedFd<'_>, batch: &mut [Transfer<'_>]) -> Vec<Outcome> {
        let mut outcomes = vec![None; batch.len()];
        if self.refused.load(Ordering::Relaxed) {
            return outcomes;
        }
        let own = thread_number() as usize;
        for slot in (0..RINGS).map(|step| &self.slots[(own + step) % RINGS]) {
            let mut ring = match slot.try_lock() {
                Ok(ring) => ring,
                Err(TryLockError::WouldBlock) => continue,
                // A ring whose user panicked may have transfers under way: it is never used again.
                Err(TryLockError::Poisoned(_)) => continue,
            };
            if ring.is_none() {
                match IoUring::builder().dontfork().build(DEPTH as u32) {
                    Ok(made) => *ring = Some(made),
                    Err(_) => {
                        self.refused.store(true, Ordering::Relaxed);
                        return outcomes;
                    }
                }
            }
            let Some(used) = ring.as_mut() else { return outcomes };
            for (part, outcomes) in batch.chunks_mut(DEPTH).zip(outcomes.chunks_mut(DEPTH)) {
                if !run_part(used, fd, part, outcomes) {
                    // The rest, and what the ring did not take, is made by system calls.
                    *ring = None;
                    break;
                }
            }
            return outcomes;
        }
        outcomes
    }
}

/// Makes at most [`DEPTH`] transfers. False when the ring has failed; nothing is under way then either.
fn run_part(
    ring: &mut IoUring,
    fd: BorrowedFd<'_>,
    batch: &mut [Transfer<'_>],
    outcomes: &mut [Outcome],
) -> bool {
    let pushed = push(ring, fd, batch);
    let mut done = 0;
    let mut works = true;
    // Entries that the kernel has not taken; after an error they stay where they are and die with the ring.
    let mut waiting = pushed;
    while done < pushed - if works { 0 } else { waiting } {
        let entered = if works {
            ring.submit_and_wait(pushed - done).map(drop)
        } else {
            // What the kernel has taken completes without our help.
            std::thread::sleep(Duration::from_micros(50));
            Ok(())
        };
        let mut submission = ring.submission();
        submission.sync();
        waiting = submission.len();
        drop(submission);
        match entered.map_err(|error| error.raw_os_error()) {
            Ok(()) | Err(Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
            Err(_) => works = false,
        }
        for entry in ring.completion() {
            let result = entry.result();
            outcomes[entry.user_data() as usize] = Some(u32::try_from(result).map_err(|_| -result));
            done += 1;
        }
    }
    works && pushed == batch.len()
}

/// Puts transfers into the ring; how many it took.
fn push(ring: &mut IoUring, fd: BorrowedFd<'_>, batch: &mut [Transfer<'_>]) -> usize {
    let mut submission = ring.submission();
    for (index, transfer) in batch.iter_mut().enumerate() {
        let entry = entry(fd, transfer).user_data(index as u64);
        // SAFETY: the file and the memory live as long as the transfer is under way: `run_part` does not return before
        // it has completed, and neither panics nor returns in between; nobody else uses the memory meanwhile, for the
        // transfer borrows it.
        if unsafe { submission.push(&entry) }.is_err() {
            return index;
        }
    }
    batch.len()
}

fn entry(fd: BorrowedFd<'_>, transfer: &mut Transfer<'_>) -> squeue::Entry {
    let fd = types::Fd(fd.as_raw_fd());
    match transfer {
        Transfer::Read { offset, into } => {
            opcode::Read::new(fd, into.as_mut_ptr(), part_len(into.len())).offset(*offset).build()
        }
        Transfer::Write { offset, from } => {
            opcode::Write::new(fd, from.as_ptr(), part_len(from.len())).offset(*offset).build()
        }
    }
}

/// What one system call moves at most; the rest is a short transfer.
pub(super) fn part_len(len: usize) -> u32 {
    const MOST: usize = 1 << 30;
    len.min(MOST) as u32
}
