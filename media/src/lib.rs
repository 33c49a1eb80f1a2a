//! Persistent memory: real, emulated and simulated.
//!
//! [`Pm`] is the interface. The tokens [`Stored`], [`Flushed`] and [`Durable`] prove order by types.

mod pm;
mod token;

pub use pm::Pm;
pub use token::{Durable, Flushed, Stored};
