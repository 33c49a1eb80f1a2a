//! Paths and permissions, over a layout.

mod common;
mod paths;
mod permissions;
