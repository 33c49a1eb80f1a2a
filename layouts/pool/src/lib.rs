//! The pool layout, as SPFS: all metadata on PM only, in pools of entries, and twice. A mount reads the superblock, the
//! volume's row and the lanes, however many files there are.
//!
//! | file | contents |
//! | --- | --- |
//! | `format` | the bytes on media; nothing else defines bytes |
//! | `geometry` | where the structures are, and where their copies are |
//! | `mkfs`, `mount`, `recover` | making, mounting and recovering a file system |
//! | `check`, `walk`, `cut`, `compare` | checking one: passes; the walk; what it gives up; its comparison with bits and counts |
//! | `repair`, `rescue` | writing what a check corrects; repairs that need free space |
//! | [`anatomy`] | where the structures of an image are, for fuzzing |
//! | `superblock`, `zones`, `volumes` | the superblock of this layout; the rows of zones and of volumes |
//! | `twin`, `mend`, `copies` | reading from the copy that is whole; mending the other; comparing both |
//! | `lanes`, `edits`, `commit` | where an operation says its changes; its parts; the commit protocol |
//! | `bits`, `bad`, `counts`, `counting`, `buddy` | the free blocks of a group; those with media errors; counts and hints; counting after a crash; taking and freeing blocks |
//! | `pools`, `bytes` | pools of entries; entries that hold bytes |
//! | `fs`, `held` | the state of a mount; inodes that callers hold |
//! | `inode`, `orphans`, `buried` | inodes where they are; those without names; those to be freed |
//! | `blockmap`, `places`, `tree_edit` | where a file's blocks are; how an operation leaves them; changing the tree |
//! | `directory`, `sets` | the names of a directory; changing them |
//! | `file`, `space`, `namespace`, `rename`, `xattr` | the operations |
//! | `full` | writes that find no room for a node |
//! | `scrub` | both copies of everything compared while it is mounted |
//! | `seeded` | mistakes on purpose, for the crash explorer; none over real PM |
//! | `layout`, `lifecycle` | the contract of `nacre-engine`, and the life of the layout, implemented |
//!
//! Neighbours: the contract is in `nacre-engine`, the media in `nacre-media`; the parts shared with other layouts in
//! `nacre-layout-parts`. The format is described and argued in `docs/format/pool.md`.
//!
//! Guarantees: every operation is durable when it returns, and all or nothing after a crash, data included. One
//! damaged copy of any piece of metadata costs nothing.

pub mod anatomy;
mod bad;
mod bits;
mod blockmap;
mod buddy;
mod buried;
mod bytes;
mod check;
mod commit;
mod compare;
mod copies;
mod counting;
mod counts;
mod cut;
mod directory;
mod edits;
mod file;
mod format;
mod fs;
mod full;
mod geometry;
mod held;
mod inode;
mod lanes;
mod layout;
mod lifecycle;
mod mend;
mod mkfs;
mod mount;
mod namespace;
mod orphans;
mod places;
mod pools;
mod recover;
mod rename;
mod repair;
mod rescue;
mod scrub;
mod seeded;
mod sets;
mod space;
mod superblock;
mod tree_edit;
mod twin;
pub mod volumes;
mod walk;
mod xattr;
mod zones;

use nacre_engine::Result;
use nacre_layout_parts::report::{CheckReport, MediaReport, Repair};
use nacre_media::Pm;

pub use held::Node;
pub use mkfs::check_zones;
pub use mount::PoolFs;
pub use nacre_layout_parts::alloc::use_lane;
pub use nacre_layout_parts::lifecycle::{MkfsOptions, MountOptions};
pub use nacre_layout_parts::report::RecoveryReport;
pub use nacre_layout_parts::scrub::ScrubStatus;
pub use seeded::Mistake;
pub use superblock::Summary;

/// Checks the zone of a volume, as a check of the device does. Nothing of that zone is mounted. Volumes of other zones may
/// be: what all zones share is left to a check of the device.
pub fn check_volume(pm: &impl Pm, repair: Repair, name: &str) -> Result<CheckReport> {
    check::check(pm, repair, Some(name))
}

/// Reads every block of the zone of a volume; see [`check_volume`].
pub fn check_media_of_volume(pm: &impl Pm, record: bool, name: &str) -> Result<MediaReport> {
    scrub::check_media(pm, record, Some(name))
}
