//! The bytes of the in-place layout. Nothing else defines bytes, except the parts that all layouts share
//! (`nacre-layout-parts`); `docs/format/inplace.md` draws and argues them.
//!
//! All numbers are little-endian. Every structure has an asserted size, no padding, and reserved fields that are
//! written as zero. The comment of each field names its writer and says when it is valid.

pub(crate) use nacre_layout_parts::format::{
    CHECKSUM_CRC32C, FIRST_REGION_BLOCK, RawSuperblock, Region, inode_seed, open_word, seal_word, state,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First bytes of a device with this layout.
pub(crate) const MAGIC: [u8; 8] = *b"nacreINP";
/// The version that this code writes.
pub(crate) const FORMAT_VERSION: u32 = 2;
/// The oldest version of the code that can read a file system from mkfs of this code. File systems of version 1 stay
/// such.
pub(crate) const OLDEST_READER: u32 = 2;
/// Incompatible features that this code knows. None exist yet; an unknown bit refuses the mount.
pub(crate) const KNOWN_INCOMPATIBLE: u64 = 0;
/// Features that allow a read-only mount by code without support for them.
pub(crate) const KNOWN_READ_ONLY_COMPATIBLE: u64 = 0;

/// Compatible features.
pub(crate) mod feature {
    /// A mount without an option for it keeps no index of names in DRAM: directories are searched from their start.
    pub(crate) const LINEAR_NAMES: u64 = 1;
}

/// Largest file: 16 TiB.
pub(crate) const MAX_FILE_SIZE: u64 = 16 << 40;

/// Bytes of a line.
pub(crate) const LINE: u64 = 64;
pub(crate) use nacre_layout_parts::tree::NODE_WORDS as BLOCK_WORDS;
pub(crate) use nacre_layout_parts::xattr::format::MAX_XATTR_SIZE;

/// The kinds of regions.
pub(crate) mod region {
    pub(crate) use nacre_layout_parts::format::region::BAD_BLOCKS;
    /// The undo journal, in lanes.
    pub(crate) const JOURNAL: u32 = 3;
    /// One block that begins with the inode of the inode table.
    pub(crate) const INODE_TABLE: u32 = 4;
}

/// Blocks of a lane of the journal.
pub(crate) const LANE_BLOCKS: u64 = 16;
/// Undo entries that a lane has room for; its first line is the commit entry.
pub(crate) const LANE_ENTRIES: usize = (LANE_BLOCKS * nacre_engine::BLOCK_SIZE / LINE) as usize - 1;
/// Words that an undo entry holds.
pub(crate) const ENTRY_WORDS: usize = 5;

/// Generations are smaller: no lane lives long enough to reach it, and one that was made up must not count beyond the
/// range of a checked word.
pub(crate) const MAX_GENERATION: u64 = 1 << 47;

/// The words in place before a transaction. Written before anything of the transaction is stored in place; valid when
/// its checksum is right, and to be undone when its generation is above that of the lane's commit entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawUndo {
    /// CRC32C of the rest of the line, seeded with the lane: the flag that all of it is there.
    pub(crate) checksum: u32,
    /// Words that count, 1 to 5.
    pub(crate) words: u8,
    pub(crate) reserved: [u8; 3],
    /// The transaction's number in its lane; it never repeats.
    pub(crate) generation: u64,
    /// Where the words were, a multiple of 8.
    pub(crate) address: u64,
    /// The old values.
    pub(crate) old: [u64; ENTRY_WORDS],
}

/// The first line of a lane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawCommit {
    /// Checked word: every transaction of this lane up to this generation is over; 0 before the first.
    pub(crate) committed: u64,
    pub(crate) reserved: [u64; 7],
}

pub(crate) use nacre_layout_parts::table::{BLOCK_INODES, GROWTH_BLOCKS, INODE_SIZE};

/// The number of the inode table itself, which no name refers to.
pub(crate) const TABLE_INODE: u64 = 0;
/// The number of the root directory.
pub(crate) const ROOT_INODE: u64 = 1;
/// The longest target of a symbolic link that is in the inode.
pub(crate) const INLINE_TARGET: usize = 128;

/// An inode. In use when its checksum is right and `links` is not 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawInode {
    /// CRC32C of bytes 4 to 24, seeded with the file system and the number.
    pub(crate) checksum: u32,
    pub(crate) magic: u16,
    pub(crate) version: u8,
    /// The inode's kind (`FileKind`); it never changes.
    pub(crate) kind: u8,
    /// Grows with each use of the number.
    pub(crate) generation: u32,
    /// Device number of a device node in the kernel's 32-bit form, else 0.
    pub(crate) rdev: u32,
    /// Packed time of creation.
    pub(crate) btime: u64,
    /// Names that refer to it; of a directory 1 while it has its name. 0 is a free inode.
    pub(crate) links: u32,
    pub(crate) flags: u32,
    pub(crate) mode: u16,
    /// Policy bits (tiers and cache); 0 until they exist.
    pub(crate) policy: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Project; 0 until quota exists.
    pub(crate) project: u32,
    /// Bytes; of a directory, those of its blocks.
    pub(crate) size: u64,
    /// Packed time of the last change of data, which is mtime and ctime; 0 when these say it themselves.
    pub(crate) modified: u64,
    pub(crate) mtime: u64,
    pub(crate) ctime: u64,
    pub(crate) atime: u64,
    /// The root of the tree of blocks, see [`tree`].
    pub(crate) root: u64,
    /// The first block of the extended attributes, or 0.
    pub(crate) xattrs: u64,
    /// Of a directory, the directory that it is in.
    pub(crate) parent: u64,
    pub(crate) reserved: [u64; 2],
    /// The target of a symbolic link, when it fits.
    pub(crate) target: [u8; INLINE_TARGET],
}

pub(crate) const INODE_MAGIC: u16 = 0x4e49;
pub(crate) const INODE_VERSION: u8 = 1;

/// The words of a tree: a root has a block and the height, a node 512 blocks; 0 is nowhere.
pub(crate) mod tree {
    /// The block is allocated and not written: it reads as zeros. In the lowest words only.
    pub(crate) const UNWRITTEN: u64 = 1 << 48;
    pub(crate) const BLOCK_MASK: u64 = (1 << 48) - 1;
    /// In a root: levels of nodes above the file's blocks.
    pub(crate) const HEIGHT_SHIFT: u32 = 56;
    pub(crate) use nacre_layout_parts::tree::{LEVEL_BITS, MAX_HEIGHT};
}

/// A record of a directory: a name, or free space at a block's start. Records fill their block; the bytes that a record
/// does not need are free, too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawDentry {
    /// The inode, 0 for none.
    pub(crate) inode: u64,
    /// Bytes to the next record of the block, a multiple of 8.
    pub(crate) record_len: u16,
    pub(crate) name_len: u8,
    /// The kind of the inode.
    pub(crate) kind: u8,
    /// The generation of the inode.
    pub(crate) generation: u32,
}

/// Bytes before the name.
pub(crate) const DENTRY_HEADER: usize = 16;

const _: () = {
    assert!(size_of::<RawUndo>() as u64 == LINE);
    assert!(size_of::<RawCommit>() as u64 == LINE);
    assert!(size_of::<RawInode>() as u64 == INODE_SIZE);
    assert!(std::mem::offset_of!(RawInode, links) == 24);
    assert!(std::mem::offset_of!(RawInode, size) == 48);
    assert!(std::mem::offset_of!(RawInode, root) == 88);
    assert!(std::mem::offset_of!(RawInode, target) == 128);
    assert!(size_of::<RawDentry>() == DENTRY_HEADER);
};

/// The header of a block of extended attributes, in version 1: behind it are all attributes, or, when they do not fit,
/// the numbers of the blocks that hold them. All of them are written anew with each change. The `count` is of all
/// attributes, `len` of their bytes; the checksum covers the attributes, too.
pub(crate) const XATTR_MAGIC: u32 = 0x7861_6e69;

/// Offsets of the words of an inode that transactions change.
pub(crate) mod word {
    use std::mem::offset_of;

    use super::RawInode;

    pub(crate) const LINKS: u64 = offset_of!(RawInode, links) as u64;
    pub(crate) const MODE: u64 = offset_of!(RawInode, mode) as u64;
    pub(crate) const GID: u64 = offset_of!(RawInode, gid) as u64;
    pub(crate) const SIZE: u64 = offset_of!(RawInode, size) as u64;
    pub(crate) const MODIFIED: u64 = offset_of!(RawInode, modified) as u64;
    pub(crate) const MTIME: u64 = offset_of!(RawInode, mtime) as u64;
    pub(crate) const CTIME: u64 = offset_of!(RawInode, ctime) as u64;
    pub(crate) const ATIME: u64 = offset_of!(RawInode, atime) as u64;
    pub(crate) const ROOT: u64 = offset_of!(RawInode, root) as u64;
    pub(crate) const XATTRS: u64 = offset_of!(RawInode, xattrs) as u64;
    pub(crate) const PARENT: u64 = offset_of!(RawInode, parent) as u64;
}

/// The seed of a lane of the journal.
pub(crate) fn lane_seed(volume_seed: u32, lane: u64) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(volume_seed, b"lane"), &lane.to_le_bytes())
}

impl RawUndo {
    pub(crate) fn compute_checksum(&self, seed: u32) -> u32 {
        crc32c::crc32c_append(seed, &self.as_bytes()[4..])
    }

    pub(crate) fn is_valid(&self, seed: u32) -> bool {
        (1..=ENTRY_WORDS).contains(&usize::from(self.words))
            && (1..MAX_GENERATION).contains(&self.generation)
            && self.address.is_multiple_of(8)
            && self.checksum == self.compute_checksum(seed)
    }
}

impl RawInode {
    pub(crate) fn compute_checksum(&self, volume_seed: u32, number: u64) -> u32 {
        crc32c::crc32c_append(inode_seed(volume_seed, number, 0), &self.as_bytes()[4..24])
    }

    /// It is of this format, and is this one.
    pub(crate) fn is_valid(&self, volume_seed: u32, number: u64) -> bool {
        self.magic == INODE_MAGIC
            && self.version == INODE_VERSION
            && self.checksum == self.compute_checksum(volume_seed, number)
    }

    /// It is valid and not free.
    pub(crate) fn is_used(&self, volume_seed: u32, number: u64) -> bool {
        self.links != 0 && self.is_valid(volume_seed, number)
    }
}
