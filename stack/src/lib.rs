//! A file system for persistent memory, usable as a library.
