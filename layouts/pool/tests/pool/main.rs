//! The layout over simulated PM: one volume, several, full ones, and repairs.

mod full;
mod repair;
mod volumes;
mod whole;
