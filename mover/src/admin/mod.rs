//! The cold plane: devices of tiers, status queries, requested placements.

pub(crate) mod devices;
pub(crate) mod hints;
mod queue;
pub(crate) mod status;
