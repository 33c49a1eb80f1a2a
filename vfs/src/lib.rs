//! Names, paths, handles and permissions over a layout.
//!
//! [`Vfs`] is generic over a [`Layout`] and adds what every front end needs and no layout should repeat: the rules of
//! permission bits and POSIX ACLs, inheritance of groups and ACLs, set-id bits, namespaces of extended attributes,
//! checked names, and paths.
//!
//! There are two levels:
//!
//! - **nodes** ([`Vfs::lookup`], [`Vfs::create`], [`Vfs::read`] and so on), which the FUSE front end serves from;
//! - **paths and handles** ([`Vfs::resolve`], [`Vfs::open`], [`Handle`]), which the library serves from.
//!
//! Who asks is a [`Caller`]. With `check: false` permissions were checked elsewhere (by the kernel, or because the
//! library's user owns the device) and only the effects of an operation remain.
//!
//! Invariants: `vfs` keeps no attributes and no names; every answer comes from the layout. Hot paths (lookup, getattr,
//! read, write) neither allocate nor write to memory that threads share.

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
