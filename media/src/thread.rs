//! Small numbers for threads.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// A small number for this thread, in the order in which threads first ask.
#[inline]
pub fn thread_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    const UNKNOWN: u32 = u32::MAX;
    thread_local!(static NUMBER: Cell<u32> = const { Cell::new(UNKNOWN) });
    NUMBER.with(|number| {
        if number.get() == UNKNOWN {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}
