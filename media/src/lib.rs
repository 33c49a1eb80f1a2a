//! Persistent memory and the disks below it: real, emulated and simulated.
//!
//! [`Pm`] is the interface. The tokens [`Stored`], [`Flushed`] and [`Durable`] prove order by types. [`RealPm`] is a
//! mapped device, slowed down where an [`Emulation`] says so; [`SimPm`] is simulated memory, whose recorded [`Trace`]
//! the module [`crash`] turns into crash images. An [`Overlay`] keeps stores from the medium below it. [`block`] are
//! the disks below, and [`disk`] their emulation. A [`Frame`] is a block of DRAM above, and [`Frames`] are those of a
//! file system.

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the stores, flushes and fences of this crate are written for x86-64 only");

mod backing;
pub mod block;
pub mod crash;
mod device;
pub mod disk;
mod dram;
mod emulation;
mod frames;
mod heap;
mod image;
mod overlay;
mod pm;
mod real;
pub mod sim;
mod thread;
mod token;
pub mod usage;

pub use device::{DeviceKind, no_access, resize_unowned};
pub use dram::Frame;
pub use emulation::Emulation;
pub use frames::Frames;
pub use heap::trim_heap;
pub use image::Image;
pub use overlay::Overlay;
pub use pm::Pm;
pub use real::{Counters, PmOptions, Promise, RealPm};
pub use sim::{SimPm, Trace};
pub use thread::thread_number;
pub use token::{Durable, Flushed, Stored};
