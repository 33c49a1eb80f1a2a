//! The layout over simulated PM: one volume, several, and repairs.

mod repair;
mod volumes;
mod whole;
