//! The in-place layout on simulated PM.

mod pieces;
mod promised;
mod scrub;
mod smoke;
mod xattrs;
