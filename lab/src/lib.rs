//! The lab: reference model, crash images, behaviour suite.

pub mod crash;
pub mod model;
pub mod random;
pub mod suite;
