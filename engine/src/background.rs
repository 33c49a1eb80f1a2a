//! Threads that nobody waits for.

use std::cell::Cell;

thread_local!(static IS_BACKGROUND: Cell<bool> = const { Cell::new(false) });

/// Says that the calling thread works in the background from now on: where it has to wait for a device that is emulated, it
/// gives its core away instead of spinning.
pub fn begin() {
    IS_BACKGROUND.set(true);
}

/// Whether the calling thread does.
#[inline]
pub fn is() -> bool {
    IS_BACKGROUND.get()
}
