//! Units as distinct types: conversion is explicit.

use std::time::{Duration, SystemTime};

/// Bytes in a line, the unit of flush.
pub const LINE_SIZE: u64 = 64;
/// Bytes in a block, the unit of allocation.
pub const BLOCK_SIZE: u64 = 4096;

/// A block of a device, counted from its start in units of [`BLOCK_SIZE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block(pub u64);

impl Block {
    /// The byte offset of the block's first byte on its device.
    pub const fn offset(self) -> u64 {
        self.0 * BLOCK_SIZE
    }

    /// The block `n` blocks further on.
    #[must_use]
    pub const fn plus(self, n: u64) -> Block {
        Block(self.0 + n)
    }
}

/// A block of a file, counted from the file's start in units of [`BLOCK_SIZE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileBlock(pub u64);

impl FileBlock {
    /// The file block that holds the byte at `offset`.
    pub const fn containing(offset: u64) -> FileBlock {
        FileBlock(offset / BLOCK_SIZE)
    }

    /// The offset in the file of the block's first byte.
    pub const fn offset(self) -> u64 {
        self.0 * BLOCK_SIZE
    }
}

/// The name of an inode for as long as it exists: the number alone is reused, with another generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId {
    /// The inode's number within its volume.
    pub number: u64,
    /// How often the number was given out.
    pub generation: u32,
    /// The volume on its device; 0 where a layout has only one.
    pub volume: u32,
}

/// For tables of inodes: their numbers are small and dense, and a multiplication spreads them.
#[derive(Debug, Clone, Copy, Default)]
pub struct InodeHasher(u64);

impl std::hash::Hasher for InodeHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ mixed >> 32;
    }
}

/// A point in time: seconds since 1970 (negative before) and nanoseconds within the second (0 to 999,999,999).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Seconds since 1970-01-01T00:00:00Z, rounded towards the past.
    pub secs: i64,
    /// Nanoseconds within that second.
    pub nanos: u32,
}

impl Timestamp {
    /// Seconds that the media formats can hold: 34 bits with sign, the years 1697 to 2242.
    pub const MIN_SECS: i64 = -(1 << 33);
    /// See [`Timestamp::MIN_SECS`].
    pub const MAX_SECS: i64 = (1 << 33) - 1;

    /// A time from its parts. `nanos` must be below 1,000,000,000.
    pub const fn new(secs: i64, nanos: u32) -> Timestamp {
        debug_assert!(nanos < 1_000_000_000);
        Timestamp { secs, nanos }
    }

    /// The time held to the range that media can represent, as kernel file systems clamp theirs.
    #[must_use]
    pub fn clamped(self) -> Timestamp {
        if self.secs < Self::MIN_SECS {
            Timestamp::new(Self::MIN_SECS, 0)
        } else if self.secs > Self::MAX_SECS {
            Timestamp::new(Self::MAX_SECS, 0)
        } else {
            self
        }
    }

    /// The media form: seconds (34 bits, two's complement) above nanoseconds (30 bits). Out-of-range times are clamped.
    pub fn pack(self) -> u64 {
        let time = self.clamped();
        ((time.secs as u64) << 30) | u64::from(time.nanos)
    }

    /// The time from its media form, or `None` when the nanoseconds are out of range.
    pub fn unpack(packed: u64) -> Option<Timestamp> {
        let nanos = (packed & ((1 << 30) - 1)) as u32;
        (nanos < 1_000_000_000).then_some(Timestamp { secs: (packed as i64) >> 30, nanos })
    }
}

/// Times that the standard library cannot represent do not exist: its range is wider.
impl From<Timestamp> for SystemTime {
    fn from(time: Timestamp) -> SystemTime {
        let secs = Duration::from_secs(time.secs.unsigned_abs());
        let start = if time.secs < 0 { SystemTime::UNIX_EPOCH - secs } else { SystemTime::UNIX_EPOCH + secs };
        start + Duration::from_nanos(u64::from(time.nanos))
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Timestamp {
        match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => Timestamp::new(after.as_secs() as i64, after.subsec_nanos()),
            Err(before) => {
                let before = before.duration();
                let (secs, nanos) = (0i64.saturating_sub_unsigned(before.as_secs()), before.subsec_nanos());
                match nanos {
                    0 => Timestamp::new(secs, 0),
                    _ => Timestamp::new(secs.saturating_sub(1), 1_000_000_000 - nanos),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::Timestamp;

    #[test]
    fn times_survive_the_standard_library() {
        for (secs, nanos) in [(0, 0), (-1, 999_999_999), (-7, 0), (1 << 32, 1)] {
            let time = Timestamp::new(secs, nanos);
            assert_eq!(Timestamp::from(SystemTime::from(time)), time);
        }
    }

    #[test]
    fn times_survive_packing() {
        for (secs, nanos) in
            [(0, 0), (-1, 999_999_999), (1 << 32, 1), (Timestamp::MIN_SECS, 0), (Timestamp::MAX_SECS, 5)]
        {
            let time = Timestamp::new(secs, nanos);
            assert_eq!(Timestamp::unpack(time.pack()), Some(time));
        }
        assert_eq!(
            Timestamp::unpack(Timestamp::new(i64::MAX, 3).pack()),
            Some(Timestamp::new(Timestamp::MAX_SECS, 0))
        );
        assert_eq!(Timestamp::unpack(1_000_000_000), None);
    }
}
