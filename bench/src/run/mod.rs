//! Running workloads on targets beside each other.
//!
//! Each target has a process of its own ([`worker`]) that holds it open and runs a round when it is told to, so that the
//! processor time, the memory and the page cache of one are not another's, and one that dies takes nobody along. The
//! process that was started sets targets up, says whose turn it is, and keeps what comes back ([`rounds`]).
//! [`memory`] holds the page cache of a target to what nacre has, [`cold`] empties it; [`measure`] says what the value of
//! a round is. [`room`] says beforehand whether the machine has room for it.

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
