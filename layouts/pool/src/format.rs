//! The bytes of the pool layout. Nothing else defines bytes, except the parts that all layouts share
//! (`nacre-layout-parts`); `docs/format/pool.md` draws and argues them.
//!
//! All numbers are little-endian. Every structure has an asserted size, no padding, and reserved fields that are
//! written as zero. The comment of each field names its writer and says when it is valid.

use std::mem::offset_of;

use nacre_engine::BLOCK_SIZE;
use nacre_layout_parts::crc;
pub(crate) use nacre_layout_parts::format::{
    CHECKSUM_CRC32C, FIRST_REGION_BLOCK, RawSuperblock, Region, compatible, open_any, seal_any, state,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First bytes of a device with this layout.
pub(crate) const MAGIC: [u8; 8] = *b"nacrePOL";
/// The version that this code writes. It begins at 2, the version of all layouts whose times are of 1901 to 2446.
pub(crate) const FORMAT_VERSION: u32 = 2;
/// The oldest version of the code that can read a file system from mkfs of this code.
pub(crate) const OLDEST_READER: u32 = 2;
/// Incompatible features that this code knows. None exist yet; an unknown bit refuses the mount.
pub(crate) const KNOWN_INCOMPATIBLE: u64 = 0;
/// Features that allow a read-only mount by code without support for them.
pub(crate) const KNOWN_READ_ONLY_COMPATIBLE: u64 = 0;

/// Largest file: 16 TiB.
pub(crate) const MAX_FILE_SIZE: u64 = 16 << 40;
/// Largest extended attribute value: 64 KiB.
pub(crate) const MAX_XATTR_SIZE: usize = 64 << 10;

/// Bytes of a line.
pub(crate) const LINE: u64 = 64;
/// Words in a node.
pub(crate) const NODE_WORDS: usize = 512;
/// Bits of a place that one level of a tree takes.
pub(crate) const LEVEL_BITS: u32 = 9;
/// Blocks in a group, the unit of space.
pub(crate) const GROUP_BLOCKS: u64 = 512;
/// Bytes in a group.
pub(crate) const GROUP_BYTES: u64 = GROUP_BLOCKS * BLOCK_SIZE;

/// The kinds of regions. All but the list of bad blocks have primaries in their first half and backups in the second.
pub(crate) mod region {
    pub(crate) use nacre_layout_parts::format::region::BAD_BLOCKS;
    /// Rows of volumes.
    pub(crate) const VOLUMES: u32 = 16;
    /// Rows of zones.
    pub(crate) const ZONES: u32 = 17;
    /// The maps of free blocks, one for each group.
    pub(crate) const MAPS: u32 = 18;
    /// Lanes, which record operations on their way.
    pub(crate) const LANES: u32 = 19;
}

/// Rows of the regions of volumes and of zones.
pub(crate) const ROWS: u64 = 64;
/// Heads of lists of orphans in a volume.
pub(crate) const ORPHAN_HEADS: usize = 16;

/// A part of the device whose volumes share free groups and lanes. Written by mkfs, and with the row of a volume at each
/// mount and unmount, by a commit.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawZone {
    /// CRC32C of the rest, seeded with the address.
    pub(crate) checksum: u32,
    /// 1 when the row is in use.
    pub(crate) state: u32,
    pub(crate) first_group: u64,
    pub(crate) groups: u64,
    /// Bytes of a pool block: both of its halves.
    pub(crate) pool_block: u32,
    pub(crate) lanes: u32,
    /// Bytes of a lane.
    pub(crate) lane_bytes: u32,
    /// 1 after a clean unmount: the counts are valid.
    pub(crate) counted: u32,
    /// Free blocks in groups of no volume, at the last clean unmount.
    pub(crate) free_blocks: u64,
    /// Such groups without a block in use, at the last clean unmount.
    pub(crate) whole_groups: u64,
    pub(crate) reserved: u64,
}

/// The states of a volume's row.
pub(crate) mod volume_state {
    /// It can be mounted. A row that is not in use is zero.
    pub(crate) const LIVE: u32 = 1;
    /// It is being made or removed: the next mount of its zone frees all that it has.
    pub(crate) const GOING: u32 = 2;
}

/// A volume. Written by mkfs, at each mount and unmount, and when a group changes its purpose; always by a commit.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawVolume {
    /// CRC32C of the bytes up to the heads of orphans, seeded with the address.
    pub(crate) checksum: u32,
    /// One of [`volume_state`].
    pub(crate) state: u32,
    pub(crate) uuid: [u8; 16],
    /// UTF-8, padded with zeros.
    pub(crate) label: [u8; 64],
    pub(crate) preset: [u8; 16],
    pub(crate) zone: u32,
    /// 1 after a clean unmount: the counts are valid.
    pub(crate) clean: u32,
    /// Where the inode of the root is.
    pub(crate) root: u64,
    /// The most blocks that it may take; 0 for no limit.
    pub(crate) quota: u64,
    /// Seed of the hash of names.
    pub(crate) hash_seed: u64,
    /// No inode that was ever given back with its pool block has a greater generation.
    pub(crate) generation_seed: u32,
    /// Errors that were found and not yet repaired; fsck clears it.
    pub(crate) errors: u32,
    /// Packed time of the last error, 0 when there was none.
    pub(crate) last_error: u64,
    pub(crate) features_compatible: u64,
    /// Grows with each writable mount.
    pub(crate) mount_epoch: u64,
    /// Packed time of its creation.
    pub(crate) created: u64,
    /// Free blocks in its groups of data, at the last clean unmount.
    pub(crate) free_blocks: u64,
    /// Free blocks in its groups of pool blocks, at the last clean unmount.
    pub(crate) free_in_pools: u64,
    /// Blocks in use, at the last clean unmount.
    pub(crate) used_blocks: u64,
    /// Inodes in use, at the last clean unmount.
    pub(crate) inodes: u64,
    /// Damaged copies of metadata that mounts found, and wrote anew from the other ones. It never falls.
    pub(crate) mended: u64,
    pub(crate) reserved: [u64; 21],
    /// Checked words: the first inode of each list of orphans, or 0. Not covered by the checksum.
    pub(crate) orphans: [u64; ORPHAN_HEADS],
}

/// Words of a group's map that have bits of its blocks.
pub(crate) const MAP_WORDS: usize = 11;
/// Bits in a word of a map or of a pool block's head.
pub(crate) const WORD_BITS: u64 = 48;

/// The map of a group: which of its blocks are free.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawMap {
    /// Checked words of 48 bits, one for each block; 1 is free.
    pub(crate) bits: [u64; MAP_WORDS],
    /// Checked word: one of [`purpose`], and the row of the volume above it.
    pub(crate) purpose: u64,
    pub(crate) reserved: [u64; 4],
}

/// The purpose of a group.
pub(crate) mod purpose {
    /// Free space of no volume.
    pub(crate) const FREE: u64 = 0;
    /// Blocks of a volume's files.
    pub(crate) const DATA: u64 = 0;
    /// Pool blocks of a volume.
    pub(crate) const POOL: u64 = 1;
    /// Bits that are the purpose. Above is the number of the volume's row and 1, or 0 for no volume.
    pub(crate) const BITS: u32 = 8;
}

/// Bytes of the head of each half of a pool block.
pub(crate) const POOL_HEAD: u64 = BLOCK_SIZE;
/// Where the bits of entries begin in it.
pub(crate) const POOL_BITS: u64 = LINE;
/// The mark of a pool block.
pub(crate) const POOL_MAGIC: u32 = u32::from_le_bytes(*b"pool");

/// The first line of each half of a pool block. Written before the block's group says that it is one.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawPoolHead {
    /// CRC32C of the rest, seeded with the address.
    pub(crate) checksum: u32,
    pub(crate) magic: u32,
    /// The number of its pool.
    pub(crate) pool: u32,
    pub(crate) volume: u32,
    pub(crate) entry_size: u32,
    /// Entries in a half.
    pub(crate) count: u32,
    /// New inodes have a greater generation.
    pub(crate) generation_seed: u32,
    pub(crate) reserved: [u32; 9],
}

/// Pools of entries.
pub(crate) mod pools {
    use super::{BLOCK_SIZE, INODE_SIZE};

    /// How many pools there are.
    pub(crate) const POOLS: usize = 11;
    /// Sizes of the entries of each.
    pub(crate) const SIZES: [u64; POOLS] =
        [INODE_SIZE, 1024, 2048, 4096, 64, 128, 192, 256, 320, BLOCK_SIZE, BLOCK_SIZE];
    /// The pools.
    pub(crate) const INODES: usize = 0;
    /// Sets of names with 16 places; the next two have twice and four times as many.
    pub(crate) const SETS: usize = 1;
    /// Names of at most 40 bytes; the next ones have 64 more each.
    pub(crate) const NAMES: usize = 4;
    pub(crate) const NODES: usize = 9;
    pub(crate) const ATTRIBUTES: usize = 10;
}

/// Bytes of an inode.
pub(crate) const INODE_SIZE: u64 = 256;
/// The number of the root of each volume. Numbers of other inodes are their addresses, in units of an inode.
pub(crate) const ROOT_INODE: u64 = 1;
/// The longest target of a symbolic link that is in the inode.
pub(crate) const INLINE_TARGET: usize = 72;

/// The head of each entry, for tools and people: the commit does not depend on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawHead {
    /// CRC32C of the rest of the entry, seeded with its address.
    pub(crate) checksum: u32,
    /// One of [`status`].
    pub(crate) status: u8,
    /// The number of its pool.
    pub(crate) pool: u8,
    /// Grows with each writing.
    pub(crate) sequence: u16,
}

/// The status of an entry.
pub(crate) mod status {
    /// Free.
    pub(crate) const UNUSED: u8 = 0;
    /// Whole.
    pub(crate) const CONSISTENT: u8 = 3;
}

/// An inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawInode {
    /// Its checksum covers all other bytes but the time of access and the two words of orphans.
    pub(crate) head: RawHead,
    /// Grows with each use of the number.
    pub(crate) generation: u32,
    /// Names that refer to it; of a directory 1 while it has its name. 0 is an orphan.
    pub(crate) links: u32,
    pub(crate) mode: u16,
    /// The inode's kind (`FileKind`); it never changes.
    pub(crate) kind: u8,
    /// Levels of nodes below `root`.
    pub(crate) height: u8,
    pub(crate) flags: u32,
    /// Grows with each change of data or attributes.
    pub(crate) change: u64,
    /// Bytes of a file or of a link's target.
    pub(crate) size: u64,
    /// Packed times.
    pub(crate) mtime: u64,
    pub(crate) ctime: u64,
    /// Checked word: see [`root`]. The first line ends here; an overwrite changes nothing else.
    pub(crate) root: u64,
    /// Packed time of access. A read stores it alone, in both copies.
    pub(crate) atime: u64,
    pub(crate) btime: u64,
    /// Device number of a device node in the kernel's 32-bit form, else 0.
    pub(crate) rdev: u32,
    pub(crate) project: u32,
    /// Where the first entry with extended attributes is; 0 without.
    pub(crate) attributes: u64,
    /// The number of the directory that a directory is in, else 0.
    pub(crate) parent: u64,
    /// Names of a directory; blocks of a file.
    pub(crate) entries: u64,
    /// Directories among the names of a directory.
    pub(crate) subdirectories: u32,
    pub(crate) policy: u16,
    pub(crate) reserved: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Checked words: neighbours in the list of orphans. Valid on such a list.
    pub(crate) next_orphan: u64,
    pub(crate) previous_orphan: u64,
    pub(crate) reserved_too: [u64; 5],
    /// The target of a symbolic link, if it has no entry of its own.
    pub(crate) target: [u8; INLINE_TARGET],
}

/// The root of a file: of height 0 an extent from the file's first block on, else the address of a node.
pub(crate) mod root {
    /// Bits of a block's number.
    pub(crate) const BLOCK_BITS: u32 = 38;
    pub(crate) const BLOCK_MASK: u64 = (1 << BLOCK_BITS) - 1;
    /// Above them, blocks of the extent but one.
    pub(crate) const COUNT_SHIFT: u32 = BLOCK_BITS;
    pub(crate) const COUNT_MASK: u64 = 0x1ff;
    /// The extent was never written.
    pub(crate) const UNWRITTEN: u64 = 1 << 47;
    /// A node's address is in units of its size.
    pub(crate) const NODE_SHIFT: u32 = 12;
}

/// Words of the nodes of a file: blocks in the lowest nodes, addresses of nodes (in units of a node) above. 0 is a hole.
pub(crate) mod word {
    pub(crate) use super::root::{BLOCK_MASK, NODE_SHIFT};
    /// The blocks were never written.
    pub(crate) const UNWRITTEN: u64 = 1 << 38;
    /// In a node of height 2: a whole group, in place of a node.
    pub(crate) const HUGE: u64 = 1 << 39;
}

/// The tree of a directory: the root and words of its nodes.
pub(crate) mod branch {
    /// An address in units of 1 KiB.
    pub(crate) const ADDRESS_MASK: u64 = (1 << 40) - 1;
    pub(crate) const ADDRESS_SHIFT: u32 = 10;
    /// It leads to a set of names, not to a node.
    pub(crate) const SET: u64 = 1 << 40;
    /// Above: of a set in a node, how many bits of the hash all words of the set have in common in this node; of a set
    /// without a node, its class.
    pub(crate) const DEPTH_SHIFT: u32 = 41;
}

/// Bytes of a name in its entry.
pub(crate) const INLINE_NAME: usize = 32;
/// Those, where the name has an entry of its own.
pub(crate) const PREFIX: usize = 24;
/// The flag of a name with an entry of its own.
pub(crate) const LONG_NAME: u16 = 1;

/// A name in a directory. One that was never used has the cookie 0; one that was removed, no inode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawDentry {
    pub(crate) head: RawHead,
    /// The hash of the name in 54 bits, and 8 bits that tell names of one hash apart.
    pub(crate) cookie: u64,
    pub(crate) inode: u64,
    pub(crate) generation: u32,
    pub(crate) kind: u8,
    pub(crate) name_len: u8,
    pub(crate) flags: u16,
    /// The name, or its first 24 bytes and the address of its entry.
    pub(crate) name: [u8; INLINE_NAME],
}

/// The head of an entry that holds bytes: a long name, a target, or a part of the attributes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawBytes {
    /// Its checksum covers the head and `len` bytes behind it.
    pub(crate) head: RawHead,
    /// Where the next part is; 0 for the last.
    pub(crate) next: u64,
    pub(crate) len: u32,
    pub(crate) reserved: u32,
}

/// Bytes of that head.
pub(crate) const BYTES_HEAD: usize = size_of::<RawBytes>();

/// The most items that an operation has.
pub(crate) const MAX_ITEMS: u64 = 1 << 24;
/// Where the items of a lane begin, behind its intent and the line of `done`.
pub(crate) const LANE_ITEMS: u64 = 2 * LINE;
/// Where `done` is: a checked word, the sequence of the last operation of the lane that needs no recovery.
pub(crate) const LANE_DONE: u64 = LINE;

/// The first line of a lane: the operation that was begun last.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawIntent {
    /// CRC32C of the rest of the line and of all items, seeded with the lane.
    pub(crate) checksum: u32,
    pub(crate) items: u32,
    /// The number of the operation, of all lanes.
    pub(crate) sequence: u64,
    /// Where the items are, if there are too many for the lane, and where their backup is; else 0.
    pub(crate) list: u64,
    pub(crate) list_backup: u64,
    pub(crate) reserved: [u64; 4],
}

/// A change of some words.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawItem {
    /// The address in words (48 bits), and above it the number of words, at most 512.
    pub(crate) place: u64,
    /// CRC32C of the new bytes.
    pub(crate) check: u32,
    pub(crate) reserved: u32,
}

const _: () = {
    assert!(size_of::<RawZone>() == 64);
    assert!(size_of::<RawVolume>() == 512);
    assert!(offset_of!(RawVolume, orphans) == 384);
    assert!(size_of::<RawMap>() == 128);
    assert!(size_of::<RawPoolHead>() == 64);
    assert!(size_of::<RawInode>() == INODE_SIZE as usize);
    assert!(offset_of!(RawInode, atime) == 64);
    assert!(offset_of!(RawInode, next_orphan) == 128);
    assert!(offset_of!(RawInode, target) == 184);
    assert!(size_of::<RawDentry>() == 64);
    assert!(size_of::<RawBytes>() == 24);
    assert!(size_of::<RawIntent>() == 64);
    assert!(size_of::<RawItem>() == 16);
};

/// Bytes of a volume's row that its checksum covers, and that are written as a whole.
pub(crate) const VOLUME_BYTES: usize = offset_of!(RawVolume, orphans);
/// The place of an inode's time of access.
pub(crate) const ATIME: u64 = offset_of!(RawInode, atime) as u64;
/// The place of an inode's words of the list of orphans.
pub(crate) const NEXT_ORPHAN: u64 = offset_of!(RawInode, next_orphan) as u64;
pub(crate) const PREVIOUS_ORPHAN: u64 = offset_of!(RawInode, previous_orphan) as u64;

/// The seed of something at an address. Copies have the seed of their primary.
pub(crate) fn seed_at(volume_seed: u32, address: u64) -> u32 {
    crc::of_word(volume_seed, address)
}

/// The checksum of bytes whose first four are the place of a checksum.
fn checksum_behind(bytes: &[u8], seed: u32) -> u32 {
    crc32c::crc32c_append(seed, &bytes[4..])
}

impl RawZone {
    /// The checksum of a row in use holds.
    pub(crate) fn is_whole(&self, seed: u32) -> bool {
        self.state == 1 && self.checksum == self.compute_checksum(seed)
    }

    pub(crate) fn compute_checksum(&self, seed: u32) -> u32 {
        checksum_behind(self.as_bytes(), seed)
    }
}

impl RawVolume {
    /// The checksum of a row in use holds.
    pub(crate) fn is_whole(&self, seed: u32) -> bool {
        let is_used = matches!(self.state, volume_state::LIVE | volume_state::GOING);
        is_used && self.checksum == self.compute_checksum(seed)
    }

    pub(crate) fn compute_checksum(&self, seed: u32) -> u32 {
        checksum_behind(&self.as_bytes()[..VOLUME_BYTES], seed)
    }
}

impl RawPoolHead {
    pub(crate) fn compute_checksum(&self, seed: u32) -> u32 {
        checksum_behind(self.as_bytes(), seed)
    }
}

impl RawInode {
    pub(crate) fn compute_checksum(&self, seed: u32) -> u32 {
        let bytes = self.as_bytes();
        let seed = crc32c::crc32c_append(seed, &bytes[4..ATIME as usize]);
        let seed = crc32c::crc32c_append(seed, &bytes[ATIME as usize + 8..NEXT_ORPHAN as usize]);
        crc32c::crc32c_append(seed, &bytes[PREVIOUS_ORPHAN as usize + 8..])
    }
}

impl RawDentry {
    pub(crate) fn compute_checksum(&self, seed: u32) -> u32 {
        checksum_behind(self.as_bytes(), seed)
    }
}

/// The checksum of an entry of bytes, which begins with its head.
pub(crate) fn bytes_checksum(entry: &[u8], seed: u32) -> u32 {
    checksum_behind(entry, seed)
}

/// The checksum of an intent with its items.
pub(crate) fn intent_checksum(intent: &RawIntent, items: &[u8], seed: u32) -> u32 {
    crc32c::crc32c_append(checksum_behind(intent.as_bytes(), seed), items)
}

impl RawItem {
    pub(crate) fn new(address: u64, bytes: &[u8]) -> RawItem {
        RawItem {
            place: (address / 8) | ((bytes.len() as u64 / 8) << 48),
            check: crc32c::crc32c(bytes),
            reserved: 0,
        }
    }

    pub(crate) fn address(&self) -> u64 {
        (self.place & ((1 << 48) - 1)) * 8
    }

    pub(crate) fn len(&self) -> usize {
        (self.place >> 48) as usize * 8
    }
}
