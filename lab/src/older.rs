//! Images of other versions of the formats.

use nacre_engine::Result;
use nacre_media::Pm;

/// Where both copies of the superblock are, and how long each is.
const COPIES: [u64; 2] = [0, 64 << 10];
const LEN: usize = 4096;
/// Fields of it.
const CHECKSUM: usize = 8;
const VERSION: usize = 16;
const OLDEST_READER: usize = 20;

/// Turns a fresh result of mkfs into a file system of version 1. Of an empty file system, the versions differ only in
/// the two version fields and the checksum.
pub fn make_version_1(pm: &impl Pm) -> Result<()> {
    make_version(pm, 1)
}

/// Sets the version in both copies of the superblock, and that no older program can read the file system.
pub fn make_version(pm: &impl Pm, version: u32) -> Result<()> {
    for offset in COPIES {
        let mut bytes = [0u8; LEN];
        pm.read(offset, &mut bytes)?;
        bytes[VERSION..VERSION + 4].copy_from_slice(&version.to_le_bytes());
        bytes[OLDEST_READER..OLDEST_READER + 4].copy_from_slice(&version.to_le_bytes());
        bytes[CHECKSUM..CHECKSUM + 4].fill(0);
        let checksum = crc32c::crc32c(&bytes);
        bytes[CHECKSUM..CHECKSUM + 4].copy_from_slice(&checksum.to_le_bytes());
        let copied = pm.copy(offset, &bytes)?;
        pm.fence(copied);
    }
    Ok(())
}
