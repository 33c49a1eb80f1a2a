//! The crate `nacre`, as programs use it.

mod cache;
mod library;
mod mapping;
mod superblocks;
mod tiers;
