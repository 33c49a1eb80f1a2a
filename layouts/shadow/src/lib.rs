//! The shadow layout, after BPFS: no journal and no log. Every operation is published by one 8-byte store, or by one
//! slot that validates itself, at the lowest place that covers all of its parts.
//!
//! | file | contents |
//! | --- | --- |
//! | `format` | the bytes on media; nothing else defines bytes |
//! | `mkfs`, `mount`, `recover`, `check` | making, mounting, recovering and checking a file system |
//! | `mend` | giving up inodes that media errors took |
//! | `anatomy` | where the structures of an image are, for tools that damage images |
//! | `superblock` | the fields of the superblock that only this layout has |
//! | `state`, `switches` | the slot of an inode that counts; the switches that tags wait for |
//! | `commit`, `lift`, `publish` | the commit protocol; a change of a tree as one word; a change of a file's blocks |
//! | `fs`, `inode` | state of the file system; one inode |
//! | `load`, `grow` | reading and freeing an inode; growing the inode table |
//! | `blockmap` | the words of trees of blocks |
//! | `directory`, `names` | the names of a directory; changing them |
//! | `file`, `space`, `namespace`, `rename`, `xattr` | the operations |
//! | `tiers`, `relocate` | blocks on tiers; committing moved blocks |
//! | `scrub` | the reads of a scrub, and the files that media errors are in |
//! | `seeded` | mistakes on purpose, for the crash explorer; none over real PM |
//! | `layout`, `tiered`, `lifecycle` | the contract of `nacre-engine`, and the life of the layout, implemented |
//!
//! No files import each other in a circle. The state of an inode (`inode` and the files of its parts) knows nothing of
//! the file system, and `fs` nothing of the operations. These are `impl` blocks over `Shared`, each in its file above
//! it. `layout` is above all.
//!
//! Neighbours: the contract is in `nacre-engine`, the media in `nacre-media`; the parts shared with other layouts (trees
//! of blocks, the inode table in DRAM, free blocks, attributes) in `nacre-layout-parts`. The format is described and
//! argued in `docs/format/shadow.md`.
//!
//! Guarantees: every operation is durable when it returns, and all or nothing after a crash, its data included. A file
//! system that was made to overwrite in place does not promise the latter of overwritten data
//! ([`nacre_engine::Capabilities::atomic_write`] is false).

pub mod anatomy;
mod blockmap;
pub mod check;
mod commit;
mod directory;
mod file;
mod format;
mod fs;
mod grow;
mod inode;
mod layout;
mod lifecycle;
mod lift;
mod load;
mod mend;
mod mkfs;
mod mount;
mod names;
mod namespace;
mod publish;
mod recover;
mod relocate;
mod rename;
mod scrub;
mod seeded;
mod space;
mod state;
mod superblock;
mod switches;
mod tiered;
mod tiers;
mod xattr;

use nacre_layout_parts::{alloc, attributes, badblocks};

pub use alloc::use_lane;
pub use inode::Node;
pub use mkfs::mkfs;
pub use mount::ShadowFs;
pub use nacre_layout_parts::lifecycle::{MkfsOptions, MountOptions};
pub use nacre_layout_parts::report::RecoveryReport;
pub use nacre_layout_parts::scrub::ScrubStatus;
pub use seeded::Mistake;
pub use superblock::{Summary, leaves_trace};
