//! The crash explorer over each layout, the write buffer and tiers. These are one program, since each would compile the
//! explorer for itself.

mod buffer;
mod inplace;
mod log;
mod resume;
mod tiers;
