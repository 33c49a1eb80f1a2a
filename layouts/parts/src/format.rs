//! The bytes that all layouts have in common. `docs/format/parts.md` draws them.
//!
//! All numbers are little-endian. Every structure has an asserted size, no padding, and reserved fields that are
//! written as zero and refused when they are not. The comment of each field names its writer and says when it is valid.

#![allow(missing_docs, reason = "of a format, fields that their names describe need no more words")]

use nacre_engine::{Error, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::crc;

#[cfg(not(target_endian = "little"))]
compile_error!("the media format is little-endian and is used in place");

/// Checksum algorithm 1: CRC32C (Castagnoli).
pub const CHECKSUM_CRC32C: u32 = 1;

/// The first copy of the superblock.
pub const SUPERBLOCK_OFFSET: u64 = 0;
/// The second copy: low and fixed, so that it stays where it is when the device grows.
pub const SUPERBLOCK_COPY_OFFSET: u64 = 64 << 10;
/// A third copy, written only where one of the two places has a media error that cannot be cleared.
pub const SUPERBLOCK_SPARE_OFFSET: u64 = 32 << 10;
/// The first block after all copies.
pub const FIRST_REGION_BLOCK: u64 = 17;

/// Smallest device: 16 MiB.
pub const MIN_DEVICE_SIZE: u64 = 16 << 20;
/// Largest device: 16 TiB.
pub const MAX_DEVICE_SIZE: u64 = 16 << 40;
/// The state of a file system.
pub mod state {
    /// Clean unmount: cached fields are valid and the checkpoint, if there is one, describes free space.
    pub const CLEAN: u32 = 1;
    /// Mounted, or no clean unmount: everything is rebuilt from the logs.
    pub const DIRTY: u32 = 2;
}

/// The kinds of regions that every layout has.
pub mod region {
    /// Blocks that must not be used. Written by mkfs (empty) and by scrub.
    pub const BAD_BLOCKS: u32 = 2;
}

/// Compatible features that layouts share.
pub mod compatible {
    /// A regular file was made immutable or append-only once: a mount checks each opening for writing. Never cleared.
    pub const GUARDED: u64 = 2;
}

/// Incompatible features that layouts share.
pub mod incompatible {
    /// Places name tiers, and the superblock has rows for them.
    pub const TIERS: u64 = 1;
    /// Logs of files may be on tiers, as images.
    pub const LOG_IMAGES: u64 = 2;
}

/// The most tiers that a file system has.
pub const MAX_TIERS: usize = 32;
/// The most blocks that they have together, 256 TiB: a bit for each is in DRAM.
pub const MAX_TIER_BLOCKS: u64 = 1 << 36;

/// Bytes for paths of tiers.
pub const TIER_PATHS: usize = 1024;

/// A device for blocks below PM. Row *n* - 1 is of tier *n*; a row that is not in use is zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct RawTier {
    /// Its name for machines, which its own superblock has, too.
    pub uuid: [u8; 16],
    /// Blocks of the device; files may use all but those of its superblock.
    pub blocks: u64,
    /// The number in its own superblock, which no two mounts choose alike. So neither an older copy of the tier nor one
    /// of this file system is taken for the other's.
    pub token: u64,
    /// The next one, when a mount is about to write it there; else 0.
    pub pending: u64,
    /// One of [`tier_state`]; 0 when the row is not in use.
    pub state: u8,
    /// Of equal devices that are one tier to placement the same; smaller is faster.
    pub rank: u8,
    pub reserved: [u8; 6],
}

/// The state of a tier.
pub mod tier_state {
    /// Blocks are placed on it.
    pub const ACTIVE: u8 = 1;
    /// Its blocks are on their way elsewhere, and no new ones are placed on it.
    pub const DRAINING: u8 = 2;
}

/// A range of blocks with a purpose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Region {
    /// The kind of the region, a number of the layout's own or of [`region`]; 0 when the row is unused.
    pub kind: u32,
    pub reserved: u32,
    /// First block.
    pub start: u64,
    /// Number of blocks.
    pub blocks: u64,
}

/// The superblock: one block, twice. Written whole by mkfs, mount, unmount, and when transactions are settled; the
/// second copy first. The valid copy with the greater `update` counts.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct RawSuperblock {
    pub magic: [u8; 8],
    /// CRC32C of the whole block with this field zero.
    pub checksum: u32,
    pub checksum_algorithm: u32,
    pub version: u32,
    pub oldest_reader: u32,
    pub features_compatible: u64,
    pub features_read_only_compatible: u64,
    pub features_incompatible: u64,
    pub block_size: u32,
    pub line_size: u32,
    pub uuid: [u8; 16],
    /// UTF-8, padded with zeros.
    pub label: [u8; 64],
    /// Name of the preset that mkfs was asked for, padded with zeros.
    pub preset: [u8; 16],
    /// Seed of the hash of names in directories.
    pub hash_seed: u64,
    pub device_blocks: u64,
    /// Packed time of mkfs.
    pub created: u64,
    /// Grows with each writing of the superblock.
    pub update: u64,
    /// Grows with each writable mount.
    pub mount_epoch: u64,
    /// One of [`state`].
    pub state: u32,
    /// Errors that were found and not yet repaired; fsck clears it.
    pub errors: u32,
    /// Packed time of the last error, 0 when there was none.
    pub last_error: u64,
    /// Every transaction with a smaller number is committed in all the logs it spans.
    pub settled_transactions: u64,
    /// First block of the checkpoint, 0 when there is none. Valid in state clean.
    pub checkpoint: u64,
    /// Lanes that the last mount used; a hint.
    pub lanes: u32,
    pub region_count: u32,
    pub regions: [Region; 16],
    /// Valid with [`incompatible::TIERS`].
    pub tiers: [RawTier; MAX_TIERS],
    /// Where the devices of tiers were last: records of the tier's number (1 byte), the length of its path (1), and the
    /// path, one behind the other; the number 0 ends them. Hints only: a device is known by its UUID. Written when a
    /// mount has attached the device.
    pub tier_paths: [u8; TIER_PATHS],
    pub reserved: [u64; 115],
}

const _: () = {
    assert!(size_of::<RawSuperblock>() == 4096);
    assert!(std::mem::offset_of!(RawSuperblock, update) == 22 * 8);
    assert!(std::mem::offset_of!(RawSuperblock, lanes) == 28 * 8);
    assert!(std::mem::offset_of!(RawSuperblock, uuid) == 56);
    assert!(std::mem::offset_of!(RawSuperblock, regions) == 232);
    assert!(std::mem::offset_of!(RawSuperblock, tiers) == 616);
    assert!(std::mem::offset_of!(RawSuperblock, tier_paths) == 2152);
    assert!(size_of::<RawTier>() == 48);
};

/// The seed of everything in a file system: from its UUID.
pub fn volume_seed(uuid: &[u8; 16]) -> u32 {
    crc32c::crc32c(uuid)
}

/// The seed of an inode's structures.
pub fn inode_seed(volume_seed: u32, number: u64, generation: u32) -> u32 {
    let mut bytes = [0u8; 12];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..].copy_from_slice(&generation.to_le_bytes());
    crc32c::crc32c_append(volume_seed, &bytes)
}

/// A checked word: a block number below 2^48 and 16 bits of CRC32C over it, so that a pointer validates itself and is
/// still stored by one atomic store. The value 0 means none and is stored as 0.
pub fn seal_word(value: u64, seed: u32) -> u64 {
    debug_assert!(value != 0);
    seal_any(value, seed)
}

/// The value of a checked word, `None` for none, an error when it does not validate.
pub fn open_word(word: u64, seed: u32, what: &dyn Fn() -> String) -> Result<Option<u64>> {
    if word == 0 {
        return Ok(None);
    }
    let value = word & ((1 << 48) - 1);
    if value == 0 || seal_word(value, seed) != word {
        return Err(Error::corrupt(what()));
    }
    Ok(Some(value))
}

/// A checked word that may hold the value 0, which is stored with its check, too: so lost bytes are told from "none".
pub fn seal_any(value: u64, seed: u32) -> u64 {
    debug_assert!(value < 1 << 48);
    let check = crc::of_word(seed, value) & 0xffff;
    value | (u64::from(check) << 48)
}

/// The value of a word made by [`seal_any`]; `None` when it does not validate.
pub fn open_any(word: u64, seed: u32) -> Option<u64> {
    let value = word & ((1 << 48) - 1);
    (seal_any(value, seed) == word).then_some(value)
}

impl RawSuperblock {
    pub fn compute_checksum(&self) -> u32 {
        let mut copy = *self;
        copy.checksum = 0;
        crc32c::crc32c(copy.as_bytes())
    }
}
