//! Persistent memory: real, emulated and simulated.
//!
//! [`Pm`] is the interface. The tokens [`Stored`], [`Flushed`] and [`Durable`] prove order by types.
//! [`SimPm`] is simulated memory, whose recorded [`Trace`] the crash module turns into crash images.

mod pm;
pub mod sim;
mod token;

pub use pm::Pm;
pub use sim::{SimPm, Trace};
pub use token::{Durable, Flushed, Stored};
