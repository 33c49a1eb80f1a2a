//! The lab: reference model, crash images, behaviour suite.

pub mod model;
