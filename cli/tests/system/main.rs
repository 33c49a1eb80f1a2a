//! Whole-system tests: the command as a user runs it, and programs of the world on a mount, each of them beside tmpfs as
//! a control. A test that cannot run (no root, no /dev/fuse, a program that is missing) says so in a line
//! `left out: …` and passes.

mod harness;
#[path = "../../src/load/mod.rs"]
mod load;

mod behaviour;
mod bench;
mod bench_options;
mod bench_tiers;
mod calls;
mod command;
mod corrupt;
mod faults;
mod full;
mod guarded;
mod handles;
mod kill;
mod lazy;
mod lazy_suites;
mod memory;
mod model;
mod mounting;
mod one_owner;
mod output;
mod papers;
mod place;
mod programs;
mod readonly;
mod remounting;
mod reports;
mod suites;
mod synchronous;
mod tier_commands;
mod tier_failures;
mod tier_safety;
mod tiers;
mod unmounting;
mod volumes;
mod workers;
