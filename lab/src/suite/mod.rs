//! The behaviour suite: one table of named cases that every layout and every front end must pass.
//!
//! [`Target`] is a file system by paths; [`VfsTarget`] is a layout in this process, [`DirectoryTarget`] a directory of
//! this machine. Each case lists the capabilities that it [needs](Need); a target that lacks one states the reason. The
//! suite on a tmpfs is the control: a case that fails there is wrong.

mod cases;
mod directory;
mod fs;
mod in_process;
mod runner;
mod target;

pub use cases::all_cases;
pub use directory::{DirectoryTarget, Remount, kind_of};
pub use fs::{Fs, View};
pub use in_process::{Reopen, VfsTarget};
pub use runner::{Case, Report, run};
pub use target::{File, Listed, Need, Open, Outcome, SetTime, Space, Stat, Target, User};
