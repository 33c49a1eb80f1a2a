//! The in-place layout on simulated PM.

mod pieces;
mod scrub;
mod smoke;
mod write_back;
mod xattrs;
