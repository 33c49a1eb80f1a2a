//! Background threads, which no operation waits for.

use std::cell::Cell;

thread_local!(static IS_BACKGROUND: Cell<bool> = const { Cell::new(false) });

/// Marks the calling thread as a background thread. When it waits for an emulated device, it yields its core instead
/// of spinning.
pub fn begin() {
    IS_BACKGROUND.set(true);
}

/// Whether the calling thread is a background thread.
#[inline]
pub fn is() -> bool {
    IS_BACKGROUND.get()
}
