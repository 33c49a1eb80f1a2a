//! The bytes of the log layout. Nothing else defines bytes; `docs/format/log.md` draws and argues them.
//!
//! All numbers are little-endian. Every structure has an asserted size, no padding, and reserved fields that are
//! written as zero and refused when they are not. The comment of each field names its writer and says when it is valid.

pub(crate) use nacre_layout_parts::format::{
    CHECKSUM_CRC32C, FIRST_REGION_BLOCK, RawSuperblock, Region, SUPERBLOCK_COPY_OFFSET, SUPERBLOCK_OFFSET,
    inode_seed, open_word, seal_word, state,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[cfg(not(target_endian = "little"))]
compile_error!("the media format is little-endian and is used in place");

/// First bytes of a device with this layout.
pub(crate) const MAGIC: [u8; 8] = *b"nacreLOG";
/// The version that this code writes.
pub(crate) const FORMAT_VERSION: u32 = 2;
/// The oldest version of the code that can read a file system from mkfs of this code. File systems of version 1 stay
/// such.
pub(crate) const OLDEST_READER: u32 = 2;
/// Largest file: 16 TiB.
pub(crate) const MAX_FILE_SIZE: u64 = 16 << 40;
/// Largest extended attribute value: 64 KiB.
pub(crate) const MAX_XATTR_SIZE: usize = 64 << 10;

/// Inodes in one chunk of an inode table.
pub(crate) const CHUNK_INODES: u64 = 256;
/// Blocks in one chunk: 64 KiB.
pub(crate) const CHUNK_BLOCKS: u64 = CHUNK_INODES * INODE_SIZE / nacre_engine::BLOCK_SIZE;
/// In a word of the chunk table: the block is a list of the chunk's blocks, one checked word each. A chunk is made so
/// when free space is too fragmented for a whole one.
pub(crate) const CHUNK_SCATTERED: u64 = 1 << 47;
/// Inodes in a block.
pub(crate) const BLOCK_INODES: u64 = nacre_engine::BLOCK_SIZE / INODE_SIZE;
/// Bytes of an inode.
pub(crate) const INODE_SIZE: u64 = 256;
/// Bytes of an entry's unit.
pub(crate) const LINE: usize = 64;
/// Lines of an inode that hold its first log entries.
pub(crate) const INLINE_LINES: usize = 3;
/// Lines of a log page that hold entries; the first line is the header.
pub(crate) const PAGE_LINES: usize = 63;
/// The longest entry, in lines.
pub(crate) const MAX_ENTRY_LINES: usize = 32;

/// The number of the root directory.
pub(crate) const ROOT_INODE: u64 = 1;
/// The first sequence number of every log. Smaller numbers are cookies of `.` and `..` in front ends.
pub(crate) const FIRST_SEQUENCE: u64 = 16;

/// Incompatible features that this code knows; an unknown bit refuses the mount.
pub(crate) const KNOWN_INCOMPATIBLE: u64 = {
    use nacre_layout_parts::format::incompatible::{LOG_IMAGES, TIERS};
    TIERS | LOG_IMAGES
};
/// Features that allow a read-only mount by code without support for them.
pub(crate) const KNOWN_READ_ONLY_COMPATIBLE: u64 = 0;

/// The kinds of regions.
pub(crate) mod region {
    /// One checked word for each chunk of inodes: the chunk's first block.
    pub(crate) const CHUNK_TABLE: u32 = 1;
    pub(crate) use nacre_layout_parts::format::region::BAD_BLOCKS;
}

/// An inode: a header line, and three lines for its first log entries.
///
/// Created by one write of all four lines. Afterwards only `head` and the cached fields change; all attributes are
/// entries of the log. The header's checksum is seeded with the file system, number and generation.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawInode {
    /// CRC32C of bytes 4 to 40.
    pub(crate) checksum: u32,
    pub(crate) magic: u16,
    pub(crate) version: u8,
    /// The inode's kind (`FileKind`); it never changes.
    pub(crate) kind: u8,
    pub(crate) generation: u32,
    /// Device number of a device node in the kernel's 32-bit form, else 0.
    pub(crate) rdev: u32,
    /// Packed time of creation; the first atime, mtime and ctime.
    pub(crate) btime: u64,
    /// First permission bits.
    pub(crate) mode: u16,
    /// First policy bits (tiers and cache); 0 until they exist.
    pub(crate) policy: u16,
    /// First owner and group.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// First flags of the inode.
    pub(crate) flags: u32,
    /// Checked word: the first page of the log, or 0 while the log is in `lines`.
    pub(crate) head: u64,
    /// Cached: number of links. Valid after a clean unmount, recounted after a crash.
    pub(crate) links: u32,
    /// CRC32C of `links` and `parent`, seeded like the header.
    pub(crate) cached_checksum: u32,
    /// Cached, for a directory: the number of the directory that it is in. For a file reserved, 0.
    pub(crate) parent: u64,
    /// While `head` is 0: the entries of the log, in the order of their sequence numbers, not of their position.
    pub(crate) lines: [[u8; LINE]; INLINE_LINES],
}

/// The cached fields of an inode, which are written together: [`RawInode::links`] and the two behind it.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawCached {
    pub(crate) links: u32,
    pub(crate) checksum: u32,
    pub(crate) parent: u64,
}

pub(crate) const INODE_MAGIC: u16 = 0x4e49;
pub(crate) const INODE_VERSION: u8 = 1;

/// The first line of a log page. Written with the page's zeros before the page is linked.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawPageHeader {
    /// CRC32C of bytes 4 to 48, seeded with the inode.
    pub(crate) checksum: u32,
    pub(crate) magic: u32,
    pub(crate) inode: u64,
    pub(crate) generation: u32,
    pub(crate) reserved: u32,
    /// No entry of this page has a smaller sequence number.
    pub(crate) first_sequence: u64,
    pub(crate) reserved2: [u64; 2],
    /// Checked word: the next page, or 0. The page there is complete before this word is stored.
    pub(crate) next: u64,
    pub(crate) reserved3: u64,
}

pub(crate) const PAGE_MAGIC: u32 = 0x6770_6c6e;

/// The header of every entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct EntryHeader {
    /// CRC32C of the rest of the entry's lines, seeded with the inode (file system, number, generation).
    pub(crate) checksum: u32,
    /// One of [`kind`].
    pub(crate) kind: u8,
    /// Of [`flag`].
    pub(crate) flags: u8,
    /// Lines that the entry takes, 1 to 32.
    pub(crate) lines: u8,
    pub(crate) reserved: u8,
    /// The place in the order of the log. It never repeats in the life of an inode.
    pub(crate) sequence: u64,
}

/// The kinds of entries.
pub(crate) mod kind {
    pub(crate) const WRITE: u8 = 1;
    pub(crate) const ATTR: u8 = 2;
    pub(crate) const HOLE: u8 = 3;
    pub(crate) const DENTRY: u8 = 4;
    pub(crate) const REMOVE: u8 = 5;
    pub(crate) const TRANSACTION: u8 = 6;
    pub(crate) const XATTR: u8 = 7;
    pub(crate) const XATTR_REMOVE: u8 = 8;
    pub(crate) const SYMLINK: u8 = 9;
    pub(crate) const IMAGE: u8 = 10;
}

/// The flags of an entry.
pub(crate) mod flag {
    /// The operation goes on with the next entry; it counts only if the last one is there.
    pub(crate) const MORE: u8 = 1;
    /// In an attribute entry: blocks beyond the size are freed.
    pub(crate) const TRUNCATE: u8 = 2;
    /// In a write entry, with tiers: the blocks were moved. They keep their content and their time of modification, and
    /// the file its size and times.
    pub(crate) const MOVED: u8 = 4;
    /// A reader that does not know the kind may skip the entry; without it, it must refuse the inode.
    pub(crate) const SKIP_UNKNOWN: u8 = 0x80;
    pub(crate) const KNOWN: u8 = MORE | TRUNCATE | MOVED | SKIP_UNKNOWN;
}

/// A place as media has it: tier (8 bits), bits (8), block (48).
pub(crate) mod place {
    /// The blocks are allocated and not written; they read as zeros.
    pub(crate) const UNWRITTEN: u64 = 1 << 48;
    /// The blocks belong to several files (reserved).
    pub(crate) const SHARED: u64 = 1 << 49;
    pub(crate) const BLOCK_MASK: u64 = (1 << 48) - 1;
    pub(crate) const TIER_SHIFT: u32 = 56;

    /// The tier of a place, 0 for PM.
    #[inline]
    pub(crate) const fn tier(raw: u64) -> u8 {
        (raw >> TIER_SHIFT) as u8
    }

    /// A place on a tier.
    pub(crate) const fn on_tier(tier: u8, block: u64) -> u64 {
        (tier as u64) << TIER_SHIFT | block
    }
}

/// Blocks of a file have a new place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct WriteEntry {
    pub(crate) header: EntryHeader,
    /// Where the blocks are, see [`place`]; tier 0 is PM.
    pub(crate) place: u64,
    /// First block in the file (48 bits); the 16 bits above it are reserved, 0.
    pub(crate) file_block: u64,
    /// Number of blocks, at least 1.
    pub(crate) blocks: u32,
    pub(crate) reserved: u32,
    /// Checksum of the data; 0 while no feature bit says otherwise.
    pub(crate) data_checksum: u64,
    /// Size of the file after this entry; 0 where the blocks were moved.
    pub(crate) size: u64,
    /// Packed mtime and ctime after this entry; where the blocks were moved, when they were written.
    pub(crate) mtime: u64,
}

/// All attributes of an inode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct AttrEntry {
    pub(crate) header: EntryHeader,
    pub(crate) mode: u16,
    pub(crate) policy: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) flags: u32,
    pub(crate) size: u64,
    pub(crate) atime: u64,
    pub(crate) mtime: u64,
    pub(crate) ctime: u64,
}

/// Blocks of a file are nowhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct HoleEntry {
    pub(crate) header: EntryHeader,
    pub(crate) file_block: u64,
    pub(crate) blocks: u64,
    /// Size of the file after this entry.
    pub(crate) size: u64,
    /// Packed mtime and ctime after this entry.
    pub(crate) mtime: u64,
    pub(crate) reserved: [u64; 2],
}

/// A name in a directory. By its sequence number it is removed, and keeps that when garbage collection moves it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct DentryEntry {
    pub(crate) header: EntryHeader,
    pub(crate) inode: u64,
    pub(crate) generation: u32,
    pub(crate) kind: u8,
    pub(crate) name_len: u8,
    pub(crate) reserved: u16,
    /// Packed time of the operation: the directory's mtime and ctime.
    pub(crate) time: u64,
    /// The first bytes of the name; it goes on in the lines that follow, padded with zeros.
    pub(crate) name: [u8; 24],
}

/// Where the name starts in a dentry.
pub(crate) const DENTRY_NAME_OFFSET: usize = 40;

/// A name is gone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RemoveEntry {
    pub(crate) header: EntryHeader,
    /// The sequence number of the dentry that is removed.
    pub(crate) cookie: u64,
    /// Packed time of the operation.
    pub(crate) time: u64,
    /// The inode that the name referred to.
    pub(crate) inode: u64,
    pub(crate) reserved: [u64; 3],
}

/// The entries that follow in this operation count only if the other directory's log has them too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct TransactionEntry {
    pub(crate) header: EntryHeader,
    pub(crate) transaction: u64,
    /// The other directory.
    pub(crate) peer: u64,
    pub(crate) peer_generation: u32,
    pub(crate) reserved: u32,
    pub(crate) reserved2: [u64; 3],
}

/// An extended attribute, or (kind `XATTR_REMOVE`) its removal by name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct XattrEntry {
    pub(crate) header: EntryHeader,
    pub(crate) name_len: u16,
    pub(crate) reserved: u16,
    pub(crate) value_len: u32,
    /// Where a value that is not in the entry is, see [`place`]; else 0.
    pub(crate) place: u64,
    /// CRC32C of a value that is not in the entry; else 0.
    pub(crate) value_checksum: u32,
    pub(crate) reserved2: u32,
    /// Packed ctime.
    pub(crate) ctime: u64,
    /// The name, then the value when it is in the entry; both go on in the lines that follow.
    pub(crate) bytes: [u8; 16],
}

/// Where the name starts in an extended attribute entry.
pub(crate) const XATTR_BYTES_OFFSET: usize = 48;

/// The target of a symbolic link that fits the inode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct SymlinkEntry {
    pub(crate) header: EntryHeader,
    pub(crate) target_len: u64,
    /// The first bytes of the target (40); it goes on in the lines that follow.
    pub(crate) target: [u64; 5],
}

/// Where the blocks of a file are is said by an image on a tier, and by no other entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct ImageEntry {
    pub(crate) header: EntryHeader,
    /// Where the image is, see [`place`]; not tier 0.
    pub(crate) place: u64,
    /// Blocks of the image.
    pub(crate) image_blocks: u32,
    /// Extents in it, at least 1.
    pub(crate) extents: u32,
    /// Blocks of the file.
    pub(crate) file_blocks: u64,
    /// CRC32C of the image, seeded with the inode.
    pub(crate) image_checksum: u32,
    pub(crate) reserved: u32,
    pub(crate) reserved2: [u64; 2],
}

/// The first bytes of an image; its extents follow, and zeros to the end of its last block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawImageHeader {
    pub(crate) magic: u32,
    pub(crate) generation: u32,
    pub(crate) inode: u64,
    pub(crate) extents: u32,
    pub(crate) reserved: u32,
    pub(crate) file_blocks: u64,
}

pub(crate) const IMAGE_MAGIC: u32 = 0x6d69_6c6e;

/// Blocks of a file, on the tier that the image is on. They are in the order of the file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct ImageExtent {
    pub(crate) file_block: u64,
    /// Where the blocks are, see [`place`].
    pub(crate) place: u64,
    pub(crate) blocks: u32,
    pub(crate) reserved: u32,
}

/// Where the target starts in a symbolic link entry.
pub(crate) const SYMLINK_TARGET_OFFSET: usize = 24;
/// The longest target that fits the inode.
pub(crate) const SYMLINK_INLINE_MAX: usize = INLINE_LINES * LINE - SYMLINK_TARGET_OFFSET;

/// The header of a checkpoint block; `count` records follow. Written by a clean unmount into free blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct CheckpointHeader {
    /// CRC32C of the block's bytes from 4 on, seeded with the file system.
    pub(crate) checksum: u32,
    pub(crate) magic: u32,
    /// The mount epoch that wrote it.
    pub(crate) epoch: u64,
    /// The next block of the checkpoint, or 0.
    pub(crate) next: u64,
    /// Records of free runs, then records of inode chunks.
    pub(crate) runs: u32,
    pub(crate) chunks: u32,
    pub(crate) reserved: [u64; 4],
}

pub(crate) const CHECKPOINT_MAGIC: u32 = 0x7063_6e6c;

/// Free blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct CheckpointRun {
    pub(crate) start: u64,
    pub(crate) blocks: u64,
}

/// The inodes of a chunk that are in use, a bit each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct CheckpointChunk {
    pub(crate) chunk: u64,
    pub(crate) used: [u64; 4],
    pub(crate) reserved: u64,
}

const _: () = {
    assert!(size_of::<RawInode>() as u64 == INODE_SIZE);
    assert!(std::mem::offset_of!(RawInode, head) == INODE_HEAD_OFFSET as usize);
    assert!(std::mem::offset_of!(RawInode, generation) == INODE_GENERATION_OFFSET as usize);
    assert!(std::mem::offset_of!(RawInode, links) == INODE_CACHED_OFFSET as usize);
    assert!(std::mem::offset_of!(RawInode, cached_checksum) == INODE_CACHED_OFFSET as usize + 4);
    assert!(std::mem::offset_of!(RawInode, parent) == INODE_CACHED_OFFSET as usize + 8);
    assert!(size_of::<RawCached>() == 16);
    assert!(std::mem::offset_of!(RawInode, lines) == LINE);
    assert!(size_of::<RawPageHeader>() == LINE);
    assert!(std::mem::offset_of!(RawPageHeader, next) == PAGE_NEXT_OFFSET as usize);
    assert!(size_of::<EntryHeader>() == 16);
    assert!(size_of::<WriteEntry>() == LINE);
    assert!(size_of::<AttrEntry>() == LINE);
    assert!(size_of::<HoleEntry>() == LINE);
    assert!(size_of::<DentryEntry>() == LINE);
    assert!(std::mem::offset_of!(DentryEntry, name) == DENTRY_NAME_OFFSET);
    assert!(size_of::<RemoveEntry>() == LINE);
    assert!(size_of::<TransactionEntry>() == LINE);
    assert!(size_of::<XattrEntry>() == LINE);
    assert!(std::mem::offset_of!(XattrEntry, bytes) == XATTR_BYTES_OFFSET);
    assert!(size_of::<SymlinkEntry>() == LINE);
    assert!(std::mem::offset_of!(SymlinkEntry, target) == SYMLINK_TARGET_OFFSET);
    assert!(size_of::<ImageEntry>() == LINE);
    assert!(size_of::<RawImageHeader>() == 32);
    assert!(size_of::<ImageExtent>() == 24);
    assert!(size_of::<CheckpointHeader>() == LINE);
    assert!(size_of::<CheckpointRun>() == 16);
    assert!(size_of::<CheckpointChunk>() == 48);
};

/// Offset of [`RawInode::generation`].
pub(crate) const INODE_GENERATION_OFFSET: u64 = 8;
/// Offset of [`RawInode::head`], and bytes of the header before it, which the checksum covers.
pub(crate) const INODE_HEAD_OFFSET: u64 = 40;
/// Offset of the cached fields of an inode.
pub(crate) const INODE_CACHED_OFFSET: u64 = 48;
/// Offset of [`RawPageHeader::next`].
pub(crate) const PAGE_NEXT_OFFSET: u64 = 48;

impl RawInode {
    pub(crate) fn compute_checksum(&self, seed: u32) -> u32 {
        crc32c::crc32c_append(seed, &self.as_bytes()[4..INODE_HEAD_OFFSET as usize])
    }

    pub(crate) fn compute_cached_checksum(links: u32, parent: u64, seed: u32) -> u32 {
        let mut bytes = [0u8; 12];
        bytes[..4].copy_from_slice(&links.to_le_bytes());
        bytes[4..].copy_from_slice(&parent.to_le_bytes());
        crc32c::crc32c_append(seed, &bytes)
    }

    /// The header counts: it is of this format and its checksum is right for this generation.
    pub(crate) fn is_valid(&self, seed: u32) -> bool {
        self.magic == INODE_MAGIC
            && self.version == INODE_VERSION
            && self.checksum == self.compute_checksum(seed)
    }

    pub(crate) fn cached_is_valid(&self, seed: u32) -> bool {
        self.cached_checksum == Self::compute_cached_checksum(self.links, self.parent, seed)
    }
}

impl RawCached {
    /// The fields with their checksum.
    pub(crate) fn sealed(links: u32, parent: u64, seed: u32) -> RawCached {
        RawCached { links, checksum: RawInode::compute_cached_checksum(links, parent, seed), parent }
    }
}

impl RawPageHeader {
    pub(crate) fn compute_checksum(&self, seed: u32) -> u32 {
        crc32c::crc32c_append(seed, &self.as_bytes()[4..PAGE_NEXT_OFFSET as usize])
    }
}

/// The checksum of a structure that begins with it: of all lines of an entry, or of a block of the checkpoint.
pub(crate) fn checksum_of(bytes: &[u8], seed: u32) -> u32 {
    crc32c::crc32c_append(seed, &bytes[4..])
}

/// Writes the checksum of a structure that begins with it; see [`checksum_of`].
pub(crate) fn seal(bytes: &mut [u8], seed: u32) {
    let checksum = checksum_of(bytes, seed);
    bytes[..4].copy_from_slice(checksum.as_bytes());
}

/// Lines that an entry with this many bytes takes.
pub(crate) const fn lines_for(bytes: usize) -> usize {
    bytes.div_ceil(LINE)
}
