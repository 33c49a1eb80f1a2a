//! The crash explorer.
//!
//! A [`Workload`] runs on the shipped code of a layout over simulated PM, and beside it on the reference model. The
//! recorded trace is replayed. At every fence the images that a crash may leave are recovered. Each must agree with the
//! model: the state after the acknowledged operations, with or without the whole operation in flight. A recovered file
//! system must pass its check, work, and let itself be emptied. Recovery itself is traced and crashed in, too. Every
//! violation can be written to a file, made smaller, and reproduced.
//!
//! | file | contents |
//! | --- | --- |
//! | `op`, `text` | operations; operations as text |
//! | `workload`, `randomly`, `sequences`, `relocations` | workloads; random ones; all short sequences; those that move blocks between PM and disks |
//! | `full`, `lanes` | full devices; several lanes |
//! | `damage` | damage of one copy, which operations mend |
//! | `volume_workloads`, `volumes`, `models` | volumes that are made and removed; the trees of all as one; the models of all |
//! | `record`, `tree` | running a workload with a trace and the model beside it; the visible state of a file system |
//! | `explore`, `verify`, `report` | crashing a workload everywhere; judging one image; the findings |
//! | `campaign` | many workloads on many cores, with limits, progress, and a file to go on from |
//! | `spread` | the order of the workloads of a run that may end early |
//! | `case`, `thread_case`, `smaller` | one crash as text, of one thread and of several; making it smaller |
//! | `selftest` | mutants and mistakes that the explorer must find |
//! | `cached` | the write buffer over a layout |
//! | `threads`, `turns` | several threads; the order of their turns |
//! | `power` | simulated PM that can lose its power, for tests that do not explore |
//! | `subject`, `log`, `inplace`, `pool`, `shadow`, `source` | the subject of an exploration; the layouts; places in their source |
//! | `tiered`, `disk` | a layout over PM and a disk; the disk, and mistakes that can be made before it |

mod cached;
mod campaign;
mod case;
mod damage;
mod disk;
mod explore;
mod full;
mod inplace;
mod lanes;
mod log;
mod models;
mod op;
mod pool;
mod power;
mod randomly;
mod record;
mod recovery;
mod relocations;
mod report;
mod selftest;
pub mod sequences;
mod shadow;
mod smaller;
mod source;
mod spread;
mod subject;
mod text;
mod thread_case;
mod threads;
mod tiered;
mod tree;
mod turns;
mod verify;
mod volume_workloads;
mod volumes;
mod workload;

pub use cached::{Belief, BufferMistake, Cached, CachedCase, CachedSettings, cached, explore_cached};
pub use campaign::{Campaign, Limits, Outcome, Progress, Stage};
pub use case::minimise;
pub use damage::with_damage;
pub use explore::{MAX_SAMPLES_BY_LINES, MEMORY, Settings, explore, reproduce, sites};
pub use full::full;
pub use inplace::{Inplace, InplaceLinear};
pub use lanes::lanes;
pub use log::Log;
pub use op::{Op, Runner, Twin, payload};
pub use pool::{Pool, PoolVolumes};
pub use power::PoweredPm;
pub use randomly::random;
pub use record::{Flaw, Recording, Rig, stay_on_this_thread};
pub use relocations::{anticached, between_tiers, tiered};
pub use report::{Again, Case, Lines, Recovery, Report, Violation, WorkloadCase};
pub use selftest::{Mutant, SelfTest, SelfTestStep, Verdict, self_test};
pub use shadow::{Shadow, ShadowInPlace};
pub use source::{Sources, Spot};
pub use spread::COVERED;
pub use subject::{
    Elsewhere, Harmless, Mistake, Moment, Mounting, Overwrites, Registered, Subject, VolumeState, Volumes,
};
pub use thread_case::ThreadsCase;
pub use threads::{Threads, explore_threads, threads};
pub use tiered::{LogWithDisk, OverDisks, ShadowInPlaceWithDisk, ShadowWithDisk, WithDisk};
pub use tree::{Ctime, Tree};
pub use volume_workloads::with_volumes;
pub use workload::{Workload, deep, fixed};
