//! Locks, atomics and threads, under the names by which all of nacre uses them.
//!
//! The shipped set re-exports those of `parking_lot` and `std`, and nothing else. Two other sets of the same shape are
//! for tests. They run threads in many interleavings instead of the few that a machine happens to show:
//!
//! | built with `RUSTFLAGS` | primitives | explored |
//! | --- | --- | --- |
//! | neither | `parking_lot`, `std` | |
//! | `--cfg nacre_shuttle` | [shuttle](https://docs.rs/shuttle) | whole operations of a file system, at random; accesses are sequentially consistent |
//! | `--cfg nacre_loom` | [loom](https://docs.rs/loom) | small parts, all interleavings up to a bound and all values that a load may see |
//!
//! These are options of the compiler and not features of the crate. The features of one build are united, so that a
//! test's feature would reach the shipped code.
//!
//! Not in here:
//!
//! - `Arc`, because no test explores its counts;
//! - data that recovery shares with the threads of `rayon`;
//! - the bytes of persistent memory, which threads read and write with ordinary instructions.
//!
//! Simulated memory calls [`point`] where another thread may run.

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

/// Whether interleavings are explored. Loops that only save time make fewer turns then.
pub const EXPLORED: bool = cfg!(any(nacre_loom, nacre_shuttle));

/// Whether all interleavings are explored. Structures of many parts have few then.
pub const SMALL: bool = cfg!(nacre_loom);
