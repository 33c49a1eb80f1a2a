//! The FUSE front end: a [`Vfs`](nacre_vfs::Vfs) as a mount of the kernel.
//!
//! - [`serve`] mounts, reports when the mount can be used, and answers requests until it is unmounted. The layout is
//!   then the caller's again, to be unmounted cleanly.
//! - [`serve_connection`] answers the requests of an existing connection.
//! - [`Unmounter`] ends a mount from another thread: politely, lazily, or by force.
//! - [`Connection`] tells how many requests of a mount wait.
//! - [`mounts`] reads the kernel's table of mounts and removes mounts of dead servers.
//!
//! Inside:
//!
//! - `requests` parses requests; `server` with `directory`, `content` and `attributes` answers them.
//! - `virtual_xattr` and `control` answer questions about the mount itself.
//! - `nodes` holds the inodes that the kernel knows; `kernel` notifies it of changes that bypass it.
//! - `workers` are threads for answers that must wait for other requests.
//! - `room` waits for space that the kernel is about to give back.
//! - `convert` and `errno` translate units and errors.
//!
//! Invariants: a request takes no lock that all requests share. Reads, writes, lookups and attributes allocate nothing
//! here. Nothing is cached here, because the kernel caches everything. A thread that serves requests waits for no
//! other request.

mod attributes;
mod connection;
mod content;
mod control;
mod convert;
mod directory;
mod errno;
mod kernel;
pub mod mounts;
mod nodes;
mod requests;
mod room;
mod server;
mod session;
mod virtual_xattr;
mod workers;

pub use connection::Connection;
pub use control::Control;
pub use server::Alarm;
pub use session::{Notices, ServeOptions, Unmounter, serve, serve_connection};
