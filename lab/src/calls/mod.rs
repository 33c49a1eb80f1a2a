//! Random sequences of system calls on a file system and on the reference model at once, by paths and open files.
//!
//! Where [`crate::random`] compares layouts, this compares what programs see: the model behind `vfs` is the reference,
//! a tmpfs proves the reference, and a mount or a layout behind `vfs` is held to it, error by error. A [`Failure`] shows
//! its seed and the shortest sequence that was found to fail.

mod call;
mod generate;
mod play;
mod run;

pub use call::Call;
pub use run::{Failure, Settings, Stats, check, check_for};
