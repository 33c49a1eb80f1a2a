//! Random sequences of system calls on a file system and on the reference model at once, by paths and open files.
//!
//! [`crate::random`] compares layouts; this module compares file systems as programs see them. The reference is the
//! model behind `vfs`. A tmpfs proves the reference. A mount, or a layout behind `vfs`, must agree with it error by
//! error. A [`Failure`] shows its seed and the shortest sequence that was found to fail.

mod call;
mod generate;
mod play;
mod run;

pub use call::Call;
pub use run::{Failure, Settings, Stats, check, check_for};
