//! The bytes of the shadow layout. Nothing else defines bytes, except the parts that all layouts share
//! (`nacre-layout-parts`); `docs/format/shadow.md` draws and argues them.
//!
//! All numbers are little-endian. Every structure has an asserted size, no padding, and reserved fields that are
//! written as zero. The comment of each field names its writer and says when it is valid.

pub(crate) use nacre_layout_parts::format::{
    CHECKSUM_CRC32C, FIRST_REGION_BLOCK, RawSuperblock, Region, inode_seed, open_any, seal_any, state,
};
pub(crate) use nacre_layout_parts::table::{BLOCK_INODES, GROWTH_BLOCKS, INODE_SIZE};
pub(crate) use nacre_layout_parts::tree::{LEVEL_BITS, MAX_HEIGHT, NODE_WORDS};
pub(crate) use nacre_layout_parts::xattr::format::MAX_XATTR_SIZE;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First bytes of a device with this layout.
pub(crate) const MAGIC: [u8; 8] = *b"nacreSHD";
/// The version that this code writes. It begins at 2, the version of all layouts whose times are of 1901 to 2446.
pub(crate) const FORMAT_VERSION: u32 = 2;
/// The oldest version of the code that can read a file system from mkfs of this code.
pub(crate) const OLDEST_READER: u32 = 2;
/// Incompatible features that this code knows; an unknown bit refuses the mount.
pub(crate) const KNOWN_INCOMPATIBLE: u64 = nacre_layout_parts::format::incompatible::TIERS;
/// Features that allow a read-only mount by code without support for them.
pub(crate) const KNOWN_READ_ONLY_COMPATIBLE: u64 = 0;

/// Compatible features.
pub(crate) mod feature {
    /// Written blocks on PM are overwritten where they are: a write may be there in part after a crash.
    pub(crate) const OVERWRITE_IN_PLACE: u64 = 1;
}

/// Largest file: 16 TiB.
pub(crate) const MAX_FILE_SIZE: u64 = 16 << 40;

/// Bytes of a line.
pub(crate) const LINE: u64 = 64;

/// The kinds of regions.
pub(crate) mod region {
    pub(crate) use nacre_layout_parts::format::region::BAD_BLOCKS;
    /// Two blocks, each of which begins with the inode of the inode table.
    pub(crate) const INODE_TABLE: u32 = 4;
    /// The switches: two blocks, each with a line for every lane.
    pub(crate) const SWITCHES: u32 = 5;
}

/// Lanes that a file system has; each is a line of both blocks of switches.
pub(crate) const LANES: u64 = 64;
/// Generations are smaller: a switch holds so many, and no lane lives long enough to reach it.
pub(crate) const MAX_GENERATION: u64 = 1 << 47;

/// The number of the inode table itself, which no name refers to.
pub(crate) const TABLE_INODE: u64 = 0;
/// The number of the root directory.
pub(crate) const ROOT_INODE: u64 = 1;
/// The longest target of a symbolic link that is in the inode.
pub(crate) const INLINE_TARGET: usize = 16;

/// The part of an inode that stays as long as the inode is in use, atime excepted. Written by the operation that makes
/// the inode. Valid when its checksum is right.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawHeader {
    /// CRC32C of bytes 4 to 40, seeded with the file system and the number.
    pub(crate) checksum: u32,
    pub(crate) magic: u16,
    pub(crate) version: u8,
    /// The inode's kind (`FileKind`).
    pub(crate) kind: u8,
    /// Grows with each use of the number. The slots' checksums are seeded with it.
    pub(crate) generation: u32,
    /// Device number of a device node in the kernel's 32-bit form, else 0.
    pub(crate) rdev: u32,
    /// Packed time of creation.
    pub(crate) btime: u64,
    /// The target of a symbolic link, when it fits.
    pub(crate) target: [u8; INLINE_TARGET],
    /// Packed time of the last read, stored on its own and kept lazily; see [`condition`].
    pub(crate) atime: u64,
    pub(crate) reserved: [u64; 2],
}

/// The changeable part of an inode. An inode has two slots; the newer one that counts is its state. A slot counts when
/// its checksum is right and its condition holds. Written whole, only where the other slot is the state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawSlot {
    /// CRC32C of the rest, seeded with the inode and its generation.
    pub(crate) checksum: u32,
    /// One more than that of the slot before; the newer one has the wrapping difference 1.
    pub(crate) sequence: u32,
    /// See [`condition`].
    pub(crate) condition: u64,
    /// With a condition on a word, its value; else 0.
    pub(crate) value: u64,
    /// Bytes; of a directory, those of its blocks.
    pub(crate) size: u64,
    /// The word of the root of the tree of blocks, or 0.
    pub(crate) root: u64,
    pub(crate) mtime: u64,
    pub(crate) ctime: u64,
    /// Names that refer to the inode; of a directory 1 while it has its name. 0 is a free inode.
    pub(crate) links: u32,
    pub(crate) flags: u32,
    pub(crate) mode: u16,
    /// Policy bits (tiers and cache); 0 until they exist.
    pub(crate) policy: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Project; 0 until quota exists.
    pub(crate) project: u32,
    /// The height of the tree (8 bits), and above it the first block of the extended attributes, or 0 (48 bits).
    pub(crate) height_xattrs: u64,
    /// Of a directory, the directory that it is in; else the end of its tree in blocks.
    pub(crate) parent_end: u64,
}

/// An inode. In use when a slot of it counts that has links.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawInode {
    pub(crate) header: RawHeader,
    pub(crate) slots: [RawSlot; 2],
}

pub(crate) const INODE_MAGIC: u16 = 0x4953;
pub(crate) const INODE_VERSION: u8 = 1;

/// The offset of a slot in its inode.
pub(crate) fn slot_offset(which: usize) -> u64 {
    (size_of::<RawHeader>() + which * size_of::<RawSlot>()) as u64
}

/// The offset of atime in an inode.
pub(crate) const ATIME: u64 = std::mem::offset_of!(RawHeader, atime) as u64;

/// Tags: a lane (8 bits at 48) and one of its generations (48 bits). A tagged thing counts, or stops to count, when the
/// switch of the lane is at that generation or above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) lane: u64,
    pub(crate) generation: u64,
}

impl Tag {
    const LANE_SHIFT: u32 = 48;

    fn pack(self) -> u64 {
        self.lane << Self::LANE_SHIFT | self.generation
    }

    /// The tag in the lowest 62 bits of a word, if it is one.
    fn unpack(word: u64) -> Option<Tag> {
        let tag = Tag { lane: word >> Self::LANE_SHIFT, generation: word & ((1 << Self::LANE_SHIFT) - 1) };
        (tag.lane < LANES && (1..MAX_GENERATION).contains(&tag.generation)).then_some(tag)
    }
}

/// When a slot counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Condition {
    /// Always.
    Always,
    /// While the word at `address`, of a tree of this inode or its atime, has this value.
    Word { address: u64, value: u64 },
    /// Once the switch of a lane is at a generation.
    Switch(Tag),
}

/// The words of conditions: 0 always; bit 63 a tag; else the address of a word, with its value in the slot.
pub(crate) mod condition {
    pub(crate) const SWITCH: u64 = 1 << 63;
}

impl RawSlot {
    pub(crate) fn condition(&self) -> Option<Condition> {
        match (self.condition, self.value) {
            (0, 0) => Some(Condition::Always),
            (0, _) => None,
            (word, value) if word & condition::SWITCH == 0 => {
                word.is_multiple_of(8).then_some(Condition::Word { address: word, value })
            }
            (word, 0) => Tag::unpack(word & !condition::SWITCH).map(Condition::Switch),
            _ => None,
        }
    }

    /// The tag of its condition, whether its checksum is right or not.
    pub(crate) fn tag(&self) -> Option<Tag> {
        (self.condition & condition::SWITCH != 0).then(|| Tag::unpack(self.condition & !condition::SWITCH))?
    }

    pub(crate) fn set_condition(&mut self, when: Condition) {
        (self.condition, self.value) = match when {
            Condition::Always => (0, 0),
            Condition::Word { address, value } => (address, value),
            Condition::Switch(tag) => (condition::SWITCH | tag.pack(), 0),
        };
    }

    pub(crate) fn compute_checksum(&self, seed: u32) -> u32 {
        crc32c::crc32c_append(seed, &self.as_bytes()[4..])
    }

    /// Its checksum is right, and so is everything that says where something is. `seed` is the inode's.
    pub(crate) fn is_valid(&self, seed: u32) -> bool {
        self.checksum == self.compute_checksum(seed) && self.condition().is_some()
    }

    pub(crate) fn height(&self) -> u32 {
        self.height_xattrs as u32 & 0xff
    }

    /// The first block of the extended attributes, or 0.
    pub(crate) fn xattrs(&self) -> u64 {
        self.height_xattrs >> 8
    }

    pub(crate) fn set_height(&mut self, height: u32) {
        self.height_xattrs = self.xattrs() << 8 | u64::from(height);
    }

    pub(crate) fn set_xattrs(&mut self, block: u64) {
        self.height_xattrs = block << 8 | u64::from(self.height());
    }
}

impl RawHeader {
    pub(crate) fn compute_checksum(&self, volume_seed: u32, number: u64) -> u32 {
        crc32c::crc32c_append(inode_seed(volume_seed, number, 0), &self.as_bytes()[4..40])
    }

    /// It is of this format, and is of this inode.
    pub(crate) fn is_valid(&self, volume_seed: u32, number: u64) -> bool {
        self.magic == INODE_MAGIC
            && self.version == INODE_VERSION
            && self.checksum == self.compute_checksum(volume_seed, number)
    }
}

/// The words of trees: the number of a block, and flags of a block of data. Bit 56 is reserved for shared blocks.
pub(crate) mod tree {
    /// The block is allocated and not written: it reads as zeros.
    pub(crate) const UNWRITTEN: u64 = 1 << 57;
    /// The block is on a tier, whose number less one is in the five bits from [`TIER_SHIFT`] on.
    pub(crate) const ON_TIER: u64 = 1 << 63;
    pub(crate) const TIER_SHIFT: u32 = 58;
    pub(crate) const BLOCK_MASK: u64 = (1 << 48) - 1;
}

/// Lines in a block of a directory.
pub(crate) const BLOCK_LINES: usize = 64;
/// Bytes of a name in the first line of its record, and in each other.
pub(crate) const FIRST_NAME: usize = 40;
pub(crate) const MORE_NAME: usize = 56;

/// The first line of a record of a directory: a name. The name goes on in the lines behind it, [`MORE_NAME`] bytes and
/// a last word of 0 in each, so that each of these is a free line when the first one is. The lines of a record are in
/// one block. Written with ordinary stores in the order of addresses: where the status of a line is on media, the rest
/// of the line is, too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawRecord {
    pub(crate) inode: u64,
    /// The generation of the inode.
    pub(crate) generation: u32,
    /// The kind of the inode.
    pub(crate) kind: u8,
    pub(crate) name_len: u8,
    /// Lines of the record.
    pub(crate) span: u8,
    pub(crate) reserved: u8,
    /// The first bytes of the name, padded with zeros.
    pub(crate) name: [[u8; 8]; FIRST_NAME / 8],
    /// See [`Status`].
    pub(crate) status: u64,
}

/// The offset of the status in a line.
pub(crate) const STATUS: u64 = std::mem::offset_of!(RawRecord, status) as u64;

/// The status of a line of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// Nothing is in this line, which is free alone.
    Free,
    /// A name.
    Live,
    /// A name once the switch is there.
    Born(Tag),
    /// A name until the switch is there.
    Dying(Tag),
}

impl Status {
    const SHIFT: u32 = 62;

    pub(crate) fn pack(self) -> u64 {
        match self {
            Status::Free => 0,
            Status::Live => 1 << Self::SHIFT,
            Status::Born(tag) => 2 << Self::SHIFT | tag.pack(),
            Status::Dying(tag) => 3 << Self::SHIFT | tag.pack(),
        }
    }

    /// The status that a word says, if it says one.
    pub(crate) fn unpack(word: u64) -> Option<Status> {
        let rest = word & ((1 << Self::SHIFT) - 1);
        match (word >> Self::SHIFT, rest) {
            (0, 0) => Some(Status::Free),
            (1, 0) => Some(Status::Live),
            (2, _) => Tag::unpack(rest).map(Status::Born),
            (3, _) => Tag::unpack(rest).map(Status::Dying),
            _ => None,
        }
    }
}

const _: () = {
    assert!(size_of::<RawInode>() as u64 == INODE_SIZE);
    assert!(size_of::<RawHeader>() as u64 == LINE);
    assert!(size_of::<RawSlot>() == 96);
    assert!(size_of::<RawRecord>() as u64 == LINE);
    assert!(std::mem::offset_of!(RawHeader, target) == 24);
    assert!(std::mem::offset_of!(RawHeader, atime) == 40);
    assert!(std::mem::offset_of!(RawSlot, root) == 32);
    assert!(std::mem::offset_of!(RawSlot, links) == 56);
    assert!(std::mem::offset_of!(RawSlot, parent_end) == 88);
    assert!(FIRST_NAME + 4 * MORE_NAME >= 255);
};

/// The seed of the switch of a lane.
pub(crate) fn switch_seed(volume_seed: u32, lane: u64) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(volume_seed, b"switch"), &lane.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::{Condition, RawSlot, Status, Tag};

    #[test]
    fn conditions_and_statuses_come_back() {
        let tag = Tag { lane: 63, generation: (1 << 47) - 1 };
        let word = Condition::Word { address: 4096, value: 1 << 57 | 9 };
        for condition in [Condition::Always, word, Condition::Switch(tag)] {
            let mut slot = RawSlot::default();
            slot.set_condition(condition);
            assert_eq!(slot.condition(), Some(condition));
            assert_eq!(slot.tag().is_some(), condition == Condition::Switch(tag));
            slot.checksum = slot.compute_checksum(7);
            assert!(slot.is_valid(7) && !slot.is_valid(8));
        }
        for status in [Status::Free, Status::Live, Status::Born(tag), Status::Dying(tag)] {
            assert_eq!(Status::unpack(status.pack()), Some(status));
        }
        for word in [1, 1 << 62 | 1, 2 << 62, 3 << 62 | 1 << 47, 2 << 62 | 64 << 48 | 1] {
            assert_eq!(Status::unpack(word), None, "{word:x}");
        }
    }

    #[test]
    fn height_and_attributes_share_a_word() {
        let mut slot = RawSlot::default();
        slot.set_xattrs((1 << 48) - 1);
        slot.set_height(4);
        assert_eq!((slot.height(), slot.xattrs()), (4, (1 << 48) - 1));
        slot.set_xattrs(0);
        assert_eq!((slot.height(), slot.xattrs()), (4, 0));
    }
}
