//! The bytes of extended attributes.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Largest value: 64 KiB.
pub const MAX_XATTR_SIZE: usize = 64 << 10;
/// Bytes that all names and values of an inode may take together, with the header before each.
pub const MAX_XATTR_TOTAL: usize = 1 << 20;

/// The header of a block of extended attributes. The magic names the kind of contents behind it:
///
/// [`XATTR_LEAF_MAGIC`]: attributes, in the order of their names. The whole block is written anew with each change of
/// it. [`XATTR_INDEX_MAGIC`]: the first block of an inode's attributes when they do not fit one leaf: the blocks of the
/// leaves, a word each, in the order of the names. A layout may have other kinds of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct RawXattrHeader {
    /// CRC32C of the rest of the header and of the bytes behind it, seeded with the inode.
    pub checksum: u32,
    /// The kind of contents.
    pub magic: u32,
    /// The inode's number.
    pub inode: u64,
    /// The inode's generation.
    pub generation: u32,
    /// Attributes of a leaf; leaves of an index.
    pub count: u32,
    /// The number of bytes behind the header of a leaf; of an index, those that the attributes of all leaves count for.
    pub len: u64,
    /// 0.
    pub reserved: [u64; 4],
}

/// Attributes.
pub const XATTR_LEAF_MAGIC: u32 = 0x6c78_6e69;
/// The blocks of leaves.
pub const XATTR_INDEX_MAGIC: u32 = 0x7878_6e69;
/// Bytes behind the header.
pub const XATTR_ROOM: usize = 4096 - 64;
/// Leaves that an index has room for.
pub const XATTR_LEAVES: usize = XATTR_ROOM / 8;
/// The longest value that stands in a leaf; a longer one has blocks of its own.
pub const XATTR_INLINE: usize = 1024;

/// The header of each attribute, before its name and its value. In a leaf a long value's place is taken by the CRC32C
/// of the value (4 bytes) and the blocks that hold it, a word each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct RawXattr {
    /// Bytes of the name.
    pub name_len: u32,
    /// Bytes of the value.
    pub value_len: u32,
}

/// Bytes of the header of a block.
pub const XATTR_HEADER: usize = size_of::<RawXattrHeader>();

const _: () = {
    assert!(XATTR_HEADER == 64);
    assert!(size_of::<RawXattr>() == 8);
    // Each leaf but the last has room for no more when the next begins, so that an index has room for all of them.
    assert!(XATTR_LEAVES * (XATTR_ROOM - (8 + 255 + XATTR_INLINE)) > MAX_XATTR_TOTAL);
};
