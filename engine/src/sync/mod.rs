//! Locks, atomics and threads, under the names by which all of nacre uses them.
//!
//! What ships has those of `parking_lot` and `std`, by re-export and nothing else. Two other sets of the same shape are
//! for tests that run threads in many interleavings instead of the few that a machine happens to show:
//!
//! | built with `RUSTFLAGS` | primitives | what is tried |
//! | --- | --- | --- |
//! | neither | `parking_lot`, `std` | |
//! | `--cfg nacre_shuttle` | [shuttle](https://docs.rs/shuttle) | whole operations of a file system, at random; memory is sequentially consistent |
//! | `--cfg nacre_loom` | [loom](https://docs.rs/loom) | small parts, all interleavings up to a bound and all values that a load may see |
//!
//! These are options of the compiler and not features of the crate: features of one build are united, so that a test's
//! would reach what ships.
//!
//! Not in here: `Arc`, whose counts no test tries; what recovery shares with the threads of `rayon`; the bytes of
//! persistent memory, which threads read and write with ordinary instructions. Simulated memory calls [`point`] where
//! another thread may come between.

#[cfg(nacre_loom)]
mod explored_by_loom;
#[cfg(nacre_shuttle)]
mod explored_by_shuttle;
#[cfg(not(any(nacre_loom, nacre_shuttle)))]
mod shipped;

#[cfg(nacre_loom)]
pub use explored_by_loom::*;
#[cfg(nacre_shuttle)]
pub use explored_by_shuttle::*;
#[cfg(not(any(nacre_loom, nacre_shuttle)))]
pub use shipped::*;

/// Interleavings are being tried: loops that only save time make fewer turns.
pub const EXPLORED: bool = cfg!(any(nacre_loom, nacre_shuttle));

/// All interleavings are being tried: what has many parts has few.
pub const SMALL: bool = cfg!(nacre_loom);
