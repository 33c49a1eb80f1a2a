//! The bytes of a tier's superblock. `docs/format/tier.md` draws them.
//!
//! All numbers are little-endian; reserved fields are written as zero and refused when they are not.

use nacre_engine::BLOCK_SIZE;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[cfg(not(target_endian = "little"))]
compile_error!("the media format is little-endian and is used in place");

pub(crate) const MAGIC: [u8; 8] = *b"nacreTIR";
pub(crate) const VERSION: u32 = 2;
/// A program that reads this version reads the output of this code: nothing reads the one time that differs in
/// version 2.
pub(crate) const OLDEST_READER: u32 = 1;

/// The superblock of a tier: its first block, and again its last one. Written by `tier add`, and by each writable mount
/// before anything on the tier is used; of two valid copies the one with the greater `update` counts.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RawLabel {
    pub(crate) magic: [u8; 8],
    /// CRC32C of the whole block with this field zero.
    pub(crate) checksum: u32,
    pub(crate) version: u32,
    pub(crate) oldest_reader: u32,
    /// The number of the tier in its file system.
    pub(crate) number: u32,
    /// Unknown bits refuse the tier.
    pub(crate) features_incompatible: u64,
    /// Its name for machines.
    pub(crate) uuid: [u8; 16],
    /// The file system that it belongs to.
    pub(crate) volume: [u8; 16],
    /// Blocks of the device, those of both copies included.
    pub(crate) blocks: u64,
    /// Of the mount that last used it: a number that no two mounts choose alike.
    pub(crate) token: u64,
    /// Grows with each writing.
    pub(crate) update: u64,
    /// Packed time at which it became a tier.
    pub(crate) created: u64,
    pub(crate) reserved: [u64; 500],
}

const _: () = {
    assert!(size_of::<RawLabel>() == BLOCK_SIZE as usize);
    assert!(std::mem::offset_of!(RawLabel, uuid) == 32);
    assert!(std::mem::offset_of!(RawLabel, created) == 88);
};

impl RawLabel {
    pub(crate) fn compute_checksum(&self) -> u32 {
        crc32c::crc32c(RawLabel { checksum: 0, ..*self }.as_bytes())
    }
}
