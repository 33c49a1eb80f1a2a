//! Random sequences of operations on a layout and on the reference model at once.
//!
//! Every answer must be the same, errors by kind; now and then, and after every mount, the whole trees must be. The
//! clock is a counter, so times are compared, too. A [`Failure`] prints its seed and the shortest sequence that was
//! found to fail; NACRE_SEED runs a seed again.

mod compare;
mod generate;
mod op;
mod run;
mod shrink;
mod tree;
mod world;

pub use generate::{Profile, sequence};
pub use op::{Op, Path, Who};
pub use run::{Failure, Settings, Stats, Subject, check, check_seeds, check_threads, differs};
pub use world::Tolerance;
