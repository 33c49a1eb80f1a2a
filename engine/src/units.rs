//! Units as distinct types: conversion is explicit.

use std::time::{Duration, SystemTime};

use crate::error::{Error, Kind, Result};

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

/// The identity of an inode while it exists. A number may be reused, with another generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId {
    /// The inode's number within its volume.
    pub number: u64,
    /// The number of times that the number was given out.
    pub generation: u32,
    /// The volume on its device; 0 if a layout has only one.
    pub volume: u32,
}

/// A hasher for tables of inodes. Their numbers are small and dense, and a multiplication spreads them.
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
    /// A time from its parts. `nanos` must be below 1,000,000,000.
    pub const fn new(secs: i64, nanos: u32) -> Timestamp {
        debug_assert!(nanos < 1_000_000_000);
        Timestamp { secs, nanos }
    }
}

/// The times that a media format can hold, and their form there: the lowest 34 bits of the seconds above the
/// nanoseconds (30 bits). The two ranges differ only in the years that the highest of those bits stand for. A time
/// that both can hold has one form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TimeRange {
    /// 1901-12-13 to 2446-05-10, as in ext4: formats of version 2 and later.
    #[default]
    To2446,
    /// 1697-10-17 to 2242-03-16: formats of version 1, which store signed seconds.
    To2242,
}

impl TimeRange {
    /// Bits of the seconds on media.
    const SECS_BITS: u32 = 34;
    const NANOS_BITS: u32 = 30;

    /// The range of a format's version.
    pub const fn of_version(version: u32) -> TimeRange {
        if version < 2 { TimeRange::To2242 } else { TimeRange::To2446 }
    }

    /// The first second.
    pub const fn min_secs(self) -> i64 {
        match self {
            TimeRange::To2446 => -(1 << 31),
            TimeRange::To2242 => -(1 << 33),
        }
    }

    /// The last second.
    pub const fn max_secs(self) -> i64 {
        self.min_secs() + ((1 << Self::SECS_BITS) - 1)
    }

    /// Whether the range contains the time.
    pub const fn contains(self, time: Timestamp) -> bool {
        time.secs >= self.min_secs() && time.secs <= self.max_secs()
    }

    /// The time clamped to the range, for times of a clock. A time that a caller sets is refused out of range
    /// ([`check`](TimeRange::check)), because the kernel would keep the requested one.
    #[must_use]
    pub const fn clamp(self, time: Timestamp) -> Timestamp {
        if time.secs < self.min_secs() {
            Timestamp::new(self.min_secs(), 0)
        } else if time.secs > self.max_secs() {
            Timestamp::new(self.max_secs(), 0)
        } else {
            time
        }
    }

    /// An error if the time is out of range.
    pub fn check(self, time: Timestamp) -> Result<()> {
        if self.contains(time) {
            return Ok(());
        }
        let years = match self {
            TimeRange::To2446 => "1901 to 2446",
            TimeRange::To2242 => "1697 to 2242",
        };
        Err(Error::new(Kind::InvalidInput)
            .object(format!("a time {} s from 1970 (the format holds the years {years})", time.secs)))
    }

    /// The form on media. A time that is out of range is clamped.
    pub const fn pack(self, time: Timestamp) -> u64 {
        let time = self.clamp(time);
        (time.secs as u64) << Self::NANOS_BITS | time.nanos as u64
    }

    /// Whether a word can be a time of either range: its nanoseconds are below a second.
    pub const fn is_packed(packed: u64) -> bool {
        packed & ((1 << Self::NANOS_BITS) - 1) < 1_000_000_000
    }

    /// The time from its form on media, or `None` if the nanoseconds are out of range.
    pub const fn unpack(self, packed: u64) -> Option<Timestamp> {
        if Self::is_packed(packed) { Some(self.unpack_own(packed)) } else { None }
    }

    /// The time from a word made by [`pack`](Self::pack).
    pub const fn unpack_own(self, packed: u64) -> Timestamp {
        let nanos = (packed & ((1 << Self::NANOS_BITS) - 1)) as u32;
        // Seconds since the first one of the range.
        let since =
            (packed >> Self::NANOS_BITS).wrapping_sub(self.min_secs() as u64) & ((1 << Self::SECS_BITS) - 1);
        Timestamp { secs: self.min_secs() + since as i64, nanos }
    }
}

/// It never overflows, because the range of the standard library is wider.
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

    use super::{TimeRange, Timestamp};

    #[test]
    fn times_survive_the_standard_library() {
        for (secs, nanos) in [(0, 0), (-1, 999_999_999), (-7, 0), (1 << 32, 1)] {
            let time = Timestamp::new(secs, nanos);
            assert_eq!(Timestamp::from(SystemTime::from(time)), time);
        }
    }

    #[test]
    fn times_survive_packing() {
        for range in [TimeRange::To2446, TimeRange::To2242] {
            let ends = [(range.min_secs(), 0), (range.max_secs(), 999_999_999)];
            for (secs, nanos) in [(0, 0), (-1, 999_999_999), (1 << 32, 1)].into_iter().chain(ends) {
                let time = Timestamp::new(secs, nanos);
                assert_eq!(range.unpack(range.pack(time)), Some(time));
                assert!(range.check(time).is_ok());
            }
            for (secs, end) in
                [(i64::MAX, ends[1]), (range.max_secs() + 1, ends[1]), (range.min_secs() - 1, ends[0])]
            {
                let time = Timestamp::new(secs, 3);
                assert_eq!(range.unpack(range.pack(time)), Some(Timestamp::new(end.0, 0)));
                assert!(range.check(time).is_err());
            }
            assert_eq!(range.unpack(1_000_000_000), None);
        }
    }

    /// The rule that makes an older image readable: a time that both ranges hold has each bit where it was.
    #[test]
    fn both_ranges_have_one_form_of_what_both_hold() {
        let (new, old) = (TimeRange::To2446, TimeRange::To2242);
        assert_eq!((new.min_secs(), new.max_secs()), (-2_147_483_648, 15_032_385_535));
        assert_eq!((old.min_secs(), old.max_secs()), (-8_589_934_592, 8_589_934_591));
        for secs in [new.min_secs(), -1, 0, 1, 1 << 31, 1 << 32, old.max_secs()] {
            let time = Timestamp::new(secs, 7);
            assert_eq!(new.pack(time), old.pack(time));
        }
        assert_eq!(new.unpack(old.pack(Timestamp::new(old.min_secs(), 5))), Some(Timestamp::new(1 << 33, 5)));
    }
}
