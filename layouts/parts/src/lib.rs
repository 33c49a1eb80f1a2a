//! The parts that layouts share. A part comes here at its second user, not before.
//!
//! | file | contents |
//! | --- | --- |
//! | `format` | the bytes that are the same in every layout: superblock, regions, checked words |
//! | `crc` | the CRC of a word |
//! | `superblock` | its two copies: read, validated, written |
//! | `badblocks` | the list of blocks that are never used again |
//! | `alloc` | free blocks in DRAM, in lanes |
//! | `findings` | damage that a mount meets outside a scrub |
//! | `scrub` | everything read while it is mounted, and media errors found |
//! | `names` | the index in DRAM of the names of a directory |
//! | `namespace` | names of inodes in a table: lookups, removals and renames, up to the commit |
//! | `marks` | the findings of a walk over everything: blocks in use, damage |
//! | `check` | the check of a layout that walks over all of its blocks |
//! | `mkfs` | the superblock of a new file system |
//! | `mounting` | the mount of a layout that walks over all of its blocks: refusals, lanes, free blocks |
//! | `report` | reports of a recovery, a check, and a search for media errors |
//! | `rescue` | the steps that are alike in repairs of inode tables |
//! | `lifecycle` | the life of a layout, from mkfs to fsck; options of mkfs and of a mount |
//! | `eviction` | how many inodes have their state in DRAM, and when some are to go |
//! | `contract` | operations of the contract that every layout answers alike |
//! | `tier_contract` | operations of layouts over tiers that each answers alike |
//! | `content` | the bytes of a write, which lie in several slices |
//! | `attributes` | the attributes of an inode in DRAM, read without a lock |
//! | `ranges` | the whole blocks of a range of bytes, and its edges |
//! | `relatime` | when a read moves the time of access |
//! | `held` | holds of inodes |
//! | `rules` | the rules for making, linking, removing and renaming, and for attributes |
//! | `links` | the check of names: links and parents |
//! | `locate` | the owners of bad lines, in words |
//! | `locked` | inodes that are locked together |
//! | `seeded` | mistakes that a layout makes on purpose |
//! | `table` | an inode table and the inodes in DRAM: held, freed, evicted |
//! | `tiers`, `tier_table`, `tier_paths` | free blocks of tiers; the list of tiers; where they were last |
//! | `tree` | where a file's blocks are: trees of words, read and changed |
//! | `versions` | whether blocks of a file changed while a mover copied them |
//! | `xattr` | extended attributes in blocks of their own, read and changed |
//!
//! Neighbours: the contract is in `nacre-engine`, the media in `nacre-media`. Nothing here knows a layout; each layout
//! uses these as if they were modules of its own. The bytes are drawn in `docs/format/parts.md`.

pub mod alloc;
pub mod attributes;
pub mod badblocks;
pub mod check;
pub mod content;
pub mod contract;
pub mod crc;
pub mod eviction;
pub mod findings;
pub mod format;
pub mod held;
pub mod lifecycle;
pub mod links;
pub mod locate;
pub mod locked;
pub mod marks;
pub mod mkfs;
pub mod mounting;
pub mod names;
pub mod namespace;
pub mod ranges;
pub mod relatime;
pub mod renew;
pub mod report;
pub mod rescue;
pub mod rules;
pub mod scrub;
pub mod seeded;
pub mod superblock;
pub mod table;
pub mod tier_contract;
pub mod tier_paths;
pub mod tier_table;
pub mod tiers;
pub mod tree;
pub mod versions;
pub mod xattr;
