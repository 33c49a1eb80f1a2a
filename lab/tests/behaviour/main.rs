//! The behaviour of layouts, by one program, so that what all tests need is compiled once.
//!
//! | module | what is compared |
//! | --- | --- |
//! | `suite_layouts`, `suite_model`, `suite_tmpfs` | the behaviour suite on each layout, on the reference model and on tmpfs |
//! | `model`, `calls`, `library` | random operations and system calls beside the reference model |
//! | `linearizable` | threads: each result is that of one order |
//! | `cached`, `write_back` | a write buffer over each layout |
//! | `clock`, `inode_cache` | clocks that go backwards; inodes that leave DRAM |
//! | `tiers` | files over PM and disks while their blocks move, over each layout with tiers |
//! | `older` | images of older versions |
//! | `media_errors` | media errors in each structure, and their repair |
//! | `repair`, `log_regressions` | repairs of damaged images; what once went wrong in log |
//! | `fuzz` | the fuzz targets on stable, with their corpus |
//!
//! Crashes, schedules of threads, and the DRAM of a process have programs of their own.

mod cached;
mod calls;
mod clock;
mod fuzz;
mod inode_cache;
#[path = "../layouts/mod.rs"]
mod layouts;
mod library;
mod linearizable;
mod log_regressions;
mod media_errors;
mod model;
mod older;
mod repair;
mod suite_layouts;
mod suite_model;
mod suite_tmpfs;
mod tiers;
mod write_back;
