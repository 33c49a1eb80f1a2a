//! The crash explorer.
//!
//! A [`Workload`] runs on the shipped code of a layout over simulated memory, and beside it on the reference model.
//! The recorded trace is replayed; at every fence the images that a crash may leave are recovered, and each must be
//! what the model says: the state after the operations that were acknowledged, or with the one in flight on top, all
//! of it or nothing. A recovered file system must pass its check, work, and let itself be emptied. Recovery itself is
//! traced and crashed in, too. Every violation says how to produce it again.

mod explore;
mod op;
mod record;
mod report;
mod subject;
mod tree;
mod verify;
mod workload;

pub use explore::{MAX_SAMPLES_BY_LINES, Settings, explore, explore_one};
pub use op::{Op, Runner, payload};
pub use record::{Recording, record};
pub use report::{Place, Report, Violation};
pub use subject::Subject;
pub use tree::{Ctime, Tree};
pub use workload::{Workload, fixed, growing, random};
