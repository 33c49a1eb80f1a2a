//! The FUSE front end of nacre.
