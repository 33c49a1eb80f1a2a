//! Names, paths, handles and permissions over a layout.
//!
//! [`Vfs`] is generic over a [`Layout`] and adds rules that every front end needs. These are permission bits and POSIX
//! ACLs, inheritance of groups and ACLs, set-id bits, namespaces of extended attributes, checked names, and paths.
//!
//! There are two levels:
//!
//! - **nodes** ([`Vfs::lookup`], [`Vfs::create`], [`Vfs::read`] and so on), for the FUSE front end;
//! - **paths and handles** ([`Vfs::resolve`], [`Vfs::open`], [`Handle`]), for the library.
//!
//! Each operation runs for a [`Caller`]. With `check: false` only the effects of an operation remain. Permissions were
//! then checked by the kernel, or the library's user owns the device.
//!
//! Invariants: `vfs` keeps no attributes and no names; every answer comes from the layout. Hot paths (lookup, getattr,
//! read, write) neither allocate nor write to cache lines that threads share.

mod access;
mod acl;
mod at;
mod attributes;
mod caller;
mod handle;
mod name;
mod namespace;
mod node;
mod open;
mod path;
mod xattr;

use nacre_engine::{Data, Extents, Names};

pub use attributes::SetTime;
pub use caller::{Caller, WANT_EXECUTE, WANT_READ, WANT_WRITE};
pub use handle::Handle;
pub use namespace::Create;
pub use node::{Vfs, VfsOptions};
pub use open::OpenFlags;
pub use path::{PathBase, PathEnd};
pub use xattr::{ACL_ACCESS, ACL_DEFAULT};

/// All three traits of the contract together.
pub trait Layout: Names + Data + Extents {}

impl<T: Names + Data + Extents> Layout for T {}
