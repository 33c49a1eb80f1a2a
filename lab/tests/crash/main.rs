//! The crash explorer over each layout, the write buffer and tiers. These are one program, since each would compile the
//! explorer for itself.

mod buffer;
mod each;
mod inplace;
#[path = "../layouts/mod.rs"]
mod layouts;
mod log;
mod minimal;
mod pool;
mod resume;
mod shadow;
mod tiers;
