//! The in-place layout, as PMFS: a B-tree of blocks per file, data updated in place, metadata under an undo journal.
//!
//! | file | contents |
//! | --- | --- |
//! | `format` | the bytes on media; nothing else defines bytes |
//! | `mkfs`, `mount`, `recover`, `check` | making, mounting, recovering and checking a file system |
//! | `anatomy` | where the structures of an image are, for tools that damage images |
//! | `superblock` | the fields of the superblock that only this layout has |
//! | `transaction`, `commit` | the words of an operation and the lanes of the journal; the commit protocol |
//! | `fs`, `table`, `inode` | state of the file system; the inode table on media; one inode |
//! | `load`, `grow` | reading an inode from media; growing the inode table |
//! | `reclaim` | freeing what inodes without names have |
//! | `blockmap`, `tree_edit` | where a file's blocks are; changing that |
//! | `directory`, `memo`, `names` | the names of a directory; those found lately; changing them |
//! | `file`, `space`, `namespace`, `rename`, `xattr` | the operations |
//! | `content`, `write_back` | the bytes of a write; writes that leave the inode's lock to others meanwhile |
//! | `scrub` | the reads of a scrub, and the files that media errors are in |
//! | `mend` | repairing an inode table with media errors |
//! | `seeded` | mistakes on purpose, for the crash explorer; none over real PM |
//! | `layout`, `lifecycle` | the contract of `nacre-engine`, and the life of the layout, implemented |
//!
//! No files import each other in a circle. The state of an inode (`inode` and the files of its parts) knows nothing of
//! the file system, and `fs` nothing of the operations. These are `impl` blocks over `Shared`, each in its file above
//! it. `layout` is above all.
//!
//! Neighbours: the contract is in `nacre-engine`, the media in `nacre-media`; the parts shared with other layouts (free
//! blocks, attributes in DRAM, the superblock's copies, bad blocks) in `nacre-layout-parts`. The format is described
//! and argued in `docs/format/inplace.md`.
//!
//! Guarantees: every operation is durable when it returns; metadata is all or nothing after a crash; data that is
//! overwritten in place is not ([`nacre_engine::Capabilities::atomic_write`] is false).

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
mod load;
mod memo;
mod mend;
mod mkfs;
mod mount;
mod names;
mod namespace;
mod reclaim;
mod recover;
mod rename;
mod scrub;
mod seeded;
mod space;
mod superblock;
mod table;
mod transaction;
mod tree_edit;
mod write_back;
mod xattr;

use nacre_layout_parts::{alloc, attributes, badblocks};

pub use alloc::use_lane;
pub use inode::Node;
pub use mkfs::mkfs;
pub use mount::InplaceFs;
pub use nacre_layout_parts::lifecycle::{MkfsOptions, MountOptions};
pub use nacre_layout_parts::report::RecoveryReport;
pub use nacre_layout_parts::scrub::ScrubStatus;
pub use seeded::Mistake;
pub use superblock::{Summary, leaves_trace};
