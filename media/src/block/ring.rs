//! Many transfers at once through io_uring.
//!
//! A device has a few rings, each for one thread at a time: a thread takes the first free one from its own on. A
//! thread that finds none free, or has a single transfer, makes system calls instead, and does not wait for a ring. A
//! kernel that refuses io_uring (an old one, a seccomp filter, a sysctl) is asked once.
//!
//! The first transfer of a ring from or to the pool of [buffers](super::buffers) registers the pool with it. A kernel
//! that refuses that (more than RLIMIT_MEMLOCK, a seccomp filter) is asked once, too, and transfers go on as those of
//! other buffers do.
//!
//! The kernel reads and writes the caller's buffers while a transfer is under way, so [`Rings::run`] returns only
//! when none is. The kernel may touch registered buffers as long as the ring exists, and for a while after, because a
//! ring is taken down asynchronously. So the pool is never unmapped.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, TryLockError};
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};

use super::buffers::Pool;
use super::{Io, Transfer};
use crate::thread::thread_number;

/// Transfers under way in one ring.
const DEPTH: usize = 32;
/// Rings of a device.
const RINGS: usize = 8;

/// Bytes from which on a single transfer is made through a ring, if its buffer is registered. A ring costs 3 us more
/// than a system call. Its gain grows with the pages: 80 us of 425 for 1 MiB that was read from a virtual disk.
const ALONE: u64 = 256 << 10;
/// The number under which a ring knows the pool.
const POOL: u16 = 0;

/// The result of a transfer: the bytes that were moved, or the error number; `None` if it was not tried.
pub(super) type Outcome = Option<Result<u32, i32>>;

/// The rings of one device.
#[derive(Default)]
pub(super) struct Rings {
    slots: [Mutex<Option<Ring>>; RINGS],
    refused: AtomicBool,
    /// No ring registers the pool any more.
    registers_none: AtomicBool,
    /// A ring has registered the pool.
    is_registered: AtomicBool,
    /// A ring was used.
    is_used: AtomicBool,
}

/// A ring, and the pool when it is registered with it.
struct Ring {
    ring: IoUring,
    pool: Option<&'static Pool>,
}

impl fmt::Debug for Rings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rings({:?})", self.io())
    }
}

impl Rings {
    /// With `registers` false the pool is not registered, as if the kernel refused it.
    pub(super) fn new(registers: bool) -> Rings {
        Rings { registers_none: AtomicBool::new(!registers), ..Rings::default() }
    }

    /// How transfers are made at best; `None` when no ring was used yet.
    pub(super) fn io(&self) -> Option<Io> {
        let is = |what: &AtomicBool| what.load(Ordering::Relaxed);
        match () {
            () if is(&self.refused) => Some(Io::SystemCalls),
            () if is(&self.is_registered) => Some(Io::RegisteredBuffers),
            () if is(&self.is_used) => Some(Io::Ring),
            () => None,
        }
    }

    /// Whether a transfer is made through a ring also when it is the only one.
    pub(super) fn takes_alone(&self, transfer: &Transfer<'_>) -> bool {
        transfer.len() >= ALONE
            && !self.registers_none.load(Ordering::Relaxed)
            && Pool::of_process().is_some_and(|pool| is_in(pool, transfer))
    }

    /// Makes transfers through a free ring, and returns the outcome of each. Those without one were not begun.
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
                    Ok(made) => *ring = Some(Ring { ring: made, pool: None }),
                    Err(_) => {
                        self.refused.store(true, Ordering::Relaxed);
                        return outcomes;
                    }
                }
            }
            let Some(used) = ring.as_mut() else { return outcomes };
            self.register(used, batch);
            self.is_used.store(true, Ordering::Relaxed);
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

    /// Registers the pool with a ring, if it is not yet and one of these transfers is from or to it.
    fn register(&self, ring: &mut Ring, batch: &[Transfer<'_>]) {
        let Some(pool) = Pool::of_process() else { return };
        if ring.pool.is_some()
            || self.registers_none.load(Ordering::Relaxed)
            || !batch.iter().any(|transfer| is_in(pool, transfer))
        {
            return;
        }
        let (base, len) = pool.place();
        let whole = libc::iovec { iov_base: base.cast(), iov_len: len };
        // SAFETY: the pool is mapped as long as the process lives, so longer than the ring and whatever is under way in it.
        match unsafe { ring.ring.submitter().register_buffers(&[whole]) } {
            Ok(()) => {
                ring.pool = Some(pool);
                self.is_registered.store(true, Ordering::Relaxed);
            }
            // The next one asks again.
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(_) => self.registers_none.store(true, Ordering::Relaxed),
        }
    }
}

/// Whether the buffer of a transfer is in the pool.
fn is_in(pool: &Pool, transfer: &Transfer<'_>) -> bool {
    pool.holds(transfer.memory(), transfer.len() as usize)
}

/// Makes at most [`DEPTH`] transfers. False when the ring has failed; nothing is under way then either.
fn run_part(
    ring: &mut Ring,
    fd: BorrowedFd<'_>,
    batch: &mut [Transfer<'_>],
    outcomes: &mut [Outcome],
) -> bool {
    let pushed = push(ring, fd, batch);
    let ring = &mut ring.ring;
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
fn push(ring: &mut Ring, fd: BorrowedFd<'_>, batch: &mut [Transfer<'_>]) -> usize {
    let mut submission = ring.ring.submission();
    for (index, transfer) in batch.iter_mut().enumerate() {
        let is_registered = ring.pool.is_some_and(|pool| is_in(pool, transfer));
        let entry = entry(fd, transfer, is_registered).user_data(index as u64);
        // SAFETY: the file and the memory live as long as the transfer is under way: `run_part` does not return before
        // it has completed, and neither panics nor returns in between; nobody else uses the memory meanwhile, for the
        // transfer borrows it. Where it is registered, it is inside what this ring has registered under this number.
        if unsafe { submission.push(&entry) }.is_err() {
            return index;
        }
    }
    batch.len()
}

fn entry(fd: BorrowedFd<'_>, transfer: &mut Transfer<'_>, is_registered: bool) -> squeue::Entry {
    let fd = types::Fd(fd.as_raw_fd());
    match transfer {
        Transfer::Read { offset, into } => {
            let (at, len) = (into.as_mut_ptr(), part_len(into.len()));
            match is_registered {
                true => opcode::ReadFixed::new(fd, at, len, POOL).offset(*offset).build(),
                false => opcode::Read::new(fd, at, len).offset(*offset).build(),
            }
        }
        Transfer::Write { offset, from } => {
            let (at, len) = (from.as_ptr(), part_len(from.len()));
            match is_registered {
                true => opcode::WriteFixed::new(fd, at, len, POOL).offset(*offset).build(),
                false => opcode::Write::new(fd, at, len).offset(*offset).build(),
            }
        }
    }
}

/// The bytes that one system call moves at most; the rest is a short transfer.
pub(super) fn part_len(len: usize) -> u32 {
    const MOST: usize = 1 << 30;
    len.min(MOST) as u32
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use io_uring::opcode;

    use super::{ALONE, Rings, Transfer, entry};
    use crate::block::Pages;

    #[test]
    fn memory_that_is_registered_is_moved_by_operations_that_know_it() {
        let file = tempfile::tempfile().unwrap();
        let mut pages = Pages::new(1);
        for (is_registered, read, write) in [
            (true, opcode::ReadFixed::CODE, opcode::WriteFixed::CODE),
            (false, opcode::Read::CODE, opcode::Write::CODE),
        ] {
            let code = |mut transfer: Transfer<'_>| {
                format!("{:?}", entry(file.as_fd(), &mut transfer, is_registered))
            };
            let is = |said: String, code: u8| assert!(said.contains(&format!("op_code: {code},")), "{said}");
            is(code(Transfer::Read { offset: 0, into: &mut pages }), read);
            is(code(Transfer::Write { offset: 0, from: &pages }), write);
        }
    }

    #[test]
    fn a_large_transfer_of_lent_memory_takes_a_ring_for_itself() {
        let (lent, own) = (Pages::lent(ALONE as usize), Pages::new(ALONE as usize));
        let takes =
            |registers, from: &[u8]| Rings::new(registers).takes_alone(&Transfer::Write { offset: 0, from });
        // Other tests may have borrowed all there is.
        let is_lent = format!("{lent:?}").contains("lent");
        assert_eq!((takes(true, &lent), takes(false, &lent)), (is_lent, false));
        assert!(!takes(true, &own) && !takes(true, &lent[4096..]));
    }
}
