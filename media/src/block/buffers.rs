//! Buffers that transfers use again and again.
//!
//! Heap memory that is allocated for one transfer costs twice. The kernel gives it page by page as it is first
//! written to, and then looks up each page, and holds it, for the device. The [`Pool`] is mapped once, in huge pages
//! if possible. Rings register it (see [`super::ring`]), and need not look up its pages again.
//!
//! A process has one pool, made at the first request and never given back, so that no ring outlives it. It is of
//! [`BUFFERS`] bytes in [`PIECES`] pieces; a caller borrows neighbouring pieces for itself. A caller that finds none
//! uses heap memory, and does not wait.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::real::map::Mapping;

/// Bytes of the pool: as much DRAM as registered buffers pin. Two groups of the mover, or one and the reads of sixteen
/// threads that read ahead as far as they may.
pub(super) const BUFFERS: u64 = 32 << 20;
/// Its pieces: a bit of a word for each.
const PIECES: u32 = u64::BITS;
const PIECE: usize = (BUFFERS / PIECES as u64) as usize;
/// The most bytes that one [`Pages::lent`](super::Pages::lent) takes from the pool, so that something is left for
/// others.
pub const MOST_LENT: usize = BUFFERS as usize / 2;

const _: () =
    assert!(PIECE.is_multiple_of(nacre_engine::BLOCK_SIZE as usize) && MOST_LENT <= PIECE * PIECES as usize);

/// The pool of this process; without a mapping where the kernel gave none.
static POOL: OnceLock<Option<Pool>> = OnceLock::new();

/// A mapping in pieces.
#[derive(Debug)]
pub(super) struct Pool {
    mapping: Mapping,
    /// The bits of pieces that are lent.
    lent: AtomicU64,
}

/// Neighbouring pieces of the pool, with one owner.
#[derive(Debug)]
pub(super) struct Loan {
    pool: &'static Pool,
    /// The first piece, and the bits of all.
    first: u32,
    bits: u64,
    /// Bytes that were asked for.
    len: usize,
}

/// Bytes of DRAM that the buffers of transfers take: none until there were transfers.
pub fn transfer_memory() -> u64 {
    if Pool::of_process().is_some() { BUFFERS } else { 0 }
}

impl Pool {
    /// The pool, if it was made.
    pub(super) fn of_process() -> Option<&'static Pool> {
        POOL.get()?.as_ref()
    }

    /// Where it is, and how long.
    pub(super) fn place(&self) -> (*mut u8, usize) {
        (self.mapping.base().as_ptr(), BUFFERS as usize)
    }

    /// Whether these bytes are in it.
    pub(super) fn holds(&self, at: *const u8, len: usize) -> bool {
        let (base, size) = self.place();
        at.addr().checked_sub(base.addr()).is_some_and(|from| from <= size && len <= size - from)
    }

    fn lend(&'static self, len: usize) -> Option<Loan> {
        let count = len.div_ceil(PIECE) as u32;
        let mut lent = self.lent.load(Ordering::Relaxed);
        loop {
            let first = neighbours(!lent, count)?;
            let bits = (u64::MAX >> (PIECES - count)) << first;
            // The accesses of the last borrower came before.
            match self.lent.compare_exchange_weak(lent, lent | bits, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Loan { pool: self, first, bits, len }),
                Err(now) => lent = now,
            }
        }
    }
}

/// The lowest of so many neighbouring bits (one at least) that are all set.
fn neighbours(mut bits: u64, count: u32) -> Option<u32> {
    // A bit that is still set stands for `have` of them.
    let mut have = 1;
    while have < count {
        let more = have.min(count - have);
        bits &= bits >> more;
        have += more;
    }
    (bits != 0).then(|| bits.trailing_zeros())
}

impl Loan {
    /// So many bytes of the pool, if they are free, with any content. There is no loan of nothing, nor of more than
    /// half the pool.
    pub(super) fn of(len: usize) -> Option<Loan> {
        if len == 0 || len > MOST_LENT {
            return None;
        }
        let make = || Some(Pool { mapping: Mapping::anonymous(BUFFERS).ok()?, lent: AtomicU64::new(0) });
        POOL.get_or_init(make).as_ref()?.lend(len)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: see `start`; nobody changes the bytes while they are borrowed from this loan.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: see `start`; the loan is borrowed alone, and so are its bytes.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
    }

    /// The first byte of the pieces. They are inside the pool, which is mapped as long as the process lives, and were
    /// zeros or written since; their bits are ours until we are dropped, so that no other loan has any of them.
    fn start(&self) -> *mut u8 {
        self.pool.place().0.wrapping_add(self.first as usize * PIECE)
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        // The next borrower sees them as we left them, and we see none of its accesses.
        self.pool.lent.fetch_and(!self.bits, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::{BUFFERS, Loan, MOST_LENT, PIECE, PIECES, Pool, neighbours};

    #[test]
    fn neighbours_are_the_lowest_that_are_there() {
        assert_eq!(
            (neighbours(u64::MAX, 1), neighbours(u64::MAX, 64), neighbours(0, 1)),
            (Some(0), Some(0), None)
        );
        assert_eq!((neighbours(u64::MAX << 1, 64), neighbours(u64::MAX << 1, 63)), (None, Some(1)));
        let bits = 0b1111_1000_1110_0110;
        let found = [1, 2, 3, 4, 5, 6].map(|count| neighbours(bits, count));
        assert_eq!(found, [Some(1), Some(1), Some(5), Some(11), Some(11), None]);
    }

    /// A pool of its own: others use that of the process meanwhile.
    fn pool() -> &'static Pool {
        let mapping = crate::real::map::Mapping::anonymous(BUFFERS).unwrap();
        Box::leak(Box::new(Pool { mapping, lent: 0.into() }))
    }

    #[test]
    fn pieces_are_one_borrowers_until_he_gives_them_back() {
        let pool = pool();
        let mut loans: Vec<Loan> = (0..PIECES).map(|_| pool.lend(PIECE).unwrap()).collect();
        assert!(pool.lend(1).is_none());
        for (number, loan) in loans.iter_mut().enumerate() {
            assert!(pool.holds(loan.bytes().as_ptr(), PIECE));
            loan.bytes_mut().fill(number as u8);
        }
        assert!(loans.iter().enumerate().all(|(at, loan)| loan.bytes().iter().all(|byte| *byte == at as u8)));
        drop(loans.remove(7));
        assert!(pool.lend(PIECE + 1).is_none(), "no two are neighbours");
        let again = pool.lend(5).unwrap();
        assert_eq!(again.bytes(), [7; 5], "as it was left");
        drop((loans, again));
        let large = [pool.lend(MOST_LENT).unwrap(), pool.lend(MOST_LENT).unwrap()];
        assert!(pool.lend(1).is_none() && large[1].bytes().len() == MOST_LENT);
    }

    #[test]
    fn what_is_in_the_pool_is_known_to_the_byte() {
        let pool = pool();
        let (base, size) = pool.place();
        assert!(pool.holds(base, size) && pool.holds(base.wrapping_add(size), 0));
        assert!(!pool.holds(base, size + 1) && !pool.holds(base.wrapping_sub(1), 1));
        assert!(!pool.holds(base.wrapping_add(size - 1), 2) && !pool.holds(base.wrapping_add(1), usize::MAX));
    }

    #[test]
    fn threads_never_have_the_same_piece() {
        let pool = pool();
        std::thread::scope(|scope| {
            for thread in 1..=4u8 {
                scope.spawn(move || {
                    for round in 0..2000usize {
                        // More than there is, now and then.
                        let Some(mut loan) = pool.lend((1 + round % 23) * PIECE) else { continue };
                        let ends = [0, loan.len - 1];
                        ends.iter().for_each(|&at| loan.bytes_mut()[at] = thread);
                        std::thread::yield_now();
                        assert!(ends.iter().all(|&at| loan.bytes()[at] == thread), "{loan:?}");
                    }
                });
            }
        });
        assert_eq!(pool.lent.load(std::sync::atomic::Ordering::Relaxed), 0);
    }
}
