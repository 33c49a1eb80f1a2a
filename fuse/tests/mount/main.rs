//! The front end through the kernel: the reference model is mounted and used as any program would.
//!
//! The model is right by inspection, so a failure here is one of the front end. Without root or /dev/fuse the tests
//! say so and pass.

mod common;
mod files;
mod kernel;
mod memory;
