//! The lab: reference model, crash images, behaviour suite, fuzz targets.

pub mod crash;
pub mod fuzz;
pub mod model;
pub mod random;
pub mod suite;
