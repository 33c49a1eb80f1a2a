//! Persistent memory: real, emulated and simulated.
//!
//! [`Pm`] is the interface. The tokens [`Stored`], [`Flushed`] and [`Durable`] prove order by types.
//! [`RealPm`] is a mapped device; [`SimPm`] is simulated memory, whose recorded [`Trace`] the crash module turns into
//! crash images.

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the stores, flushes and fences of this crate are written for x86-64 only");

mod pm;
mod real;
pub mod sim;
mod token;

pub use pm::Pm;
pub use real::{DeviceKind, PmOptions, Promise, RealPm};
pub use sim::{SimPm, Trace};
pub use token::{Durable, Flushed, Stored};
