//! The lab: reference model, random sequences of operations and of calls, crash images, behaviour suite, fuzz targets,
//! and images of older versions.

pub mod calls;
pub mod crash;
pub mod environment;
pub mod fuzz;
pub mod model;
pub mod older;
pub mod random;
pub mod suite;
