//! The log layout: a log of self-validating entries per inode, copy-on-write data.
//!
//! | file | contents |
//! | --- | --- |
//! | `format` | the bytes on media; nothing else defines bytes |
//! | `mkfs`, `mount`, `recover`, `check` | making, mounting, recovering and checking a file system |
//! | `mend` | repairing damage, as far as the format proves it |
//! | `anatomy` | where the structures of an image are, for tools that damage images |
//! | `scrub` | reading everything while it is mounted |
//! | `superblock`, `checkpoint` | the superblock's copies; the checkpoint of a clean unmount |
//! | `batch`, `pages`, `commit` | the entries of an operation; pages of a log; the commit protocol |
//! | `survivor`, `gather` | live entries on their way to other pages; gathering them |
//! | `collect`, `compact` | garbage collection; compaction |
//! | `image`, `offload` | the part of a log that is on a tier; moving it there and back |
//! | `scan`, `load` | reading a log; building an inode in DRAM from it |
//! | `fs`, `table`, `inode`, `log` | state of the file system; the inode table; one inode; its log |
//! | `reclaim`, `evict` | freeing inodes without names; dropping the state of unused ones from DRAM |
//! | `places`, `blockmap` | places of blocks; where a file's blocks are |
//! | `directory`, `xattr_index` | the names of a directory; the extended attributes of an inode |
//! | `tiers`, `tier_table` | which blocks of tiers are free; the list of tiers |
//! | `publish` | committing where blocks were moved or written to |
//! | `file`, `space`, `namespace`, `rename`, `xattr` | the operations |
//! | `overwrite` | overwriting existing data on a full device |
//! | `seeded` | mistakes on purpose, for the crash explorer; none over real PM |
//! | `layout`, `lifecycle` | the contract of `nacre-engine`, and the life of the layout, implemented |
//!
//! No files import each other in a circle. The state of an inode (`inode` and the files of its parts) knows nothing of
//! the file system, and `fs` nothing of the operations. These are `impl` blocks over `Shared`, each in its file above
//! it. `layout` is above all.
//!
//! Neighbours: the contract is in `nacre-engine`, the media in `nacre-media`; the parts shared with other layouts (free
//! blocks, attributes in DRAM, the superblock's copies, bad blocks) in `nacre-layout-parts`. The format is described
//! and argued in `docs/format/log.md`.

pub mod anatomy;
mod batch;
mod blockmap;
pub mod check;
mod checkpoint;
mod collect;
mod commit;
mod compact;
mod directory;
mod evict;
mod file;
mod format;
mod fs;
mod gather;
mod image;
mod inode;
mod layout;
mod lifecycle;
mod load;
mod log;
mod mend;
mod mkfs;
mod mount;
mod namespace;
mod offload;
mod overwrite;
mod pages;
mod places;
mod publish;
mod reclaim;
mod recover;
mod rename;
mod scan;
mod scrub;
mod seeded;
mod space;
mod superblock;
mod survivor;
mod table;
mod tier_table;
mod tiered;
mod tiers;
mod xattr;
mod xattr_index;

use nacre_layout_parts::{alloc, attributes, badblocks};

pub use alloc::use_lane;
pub use inode::Node;
pub use mkfs::mkfs;
pub use mount::LogFs;
pub use nacre_layout_parts::lifecycle::{MkfsOptions, MountOptions};
pub use nacre_layout_parts::report::RecoveryReport;
pub use nacre_layout_parts::scrub::ScrubStatus;
pub use seeded::Mistake;
pub use superblock::{Summary, leaves_trace};
