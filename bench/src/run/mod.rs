//! Running workloads on targets beside each other.
//!
//! Each target has a process of its own ([`worker`]) that holds it open and runs a round when it is told to. So each
//! has processor time, DRAM and page cache of its own, and a worker that dies ends no other. The process that was
//! started sets targets up, chooses the next one to run, and keeps the results ([`rounds`]). [`memory::Group`] limits
//! the page cache of a target to the DRAM of nacre, [`cold`] empties it; [`measure`] defines the value of a round.
//! [`room`] checks beforehand whether the machine has room for it.

pub mod cold;
pub mod effort;
pub mod experiment;
pub mod itself;
pub mod measure;
pub mod memory;
pub mod room;
pub mod rounds;
pub mod stop;
pub mod worker;
