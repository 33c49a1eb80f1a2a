//! The log layout on simulated PM, alone and with tiers.

mod names;
mod smoke;
mod tiers;
