//! The layout over simulated PM: one volume, and several.

mod volumes;
mod whole;
