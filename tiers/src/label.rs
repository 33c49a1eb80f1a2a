//! The superblock of a tier: its file system, and how recent it is.
//!
//! A tier is known by its UUID and never by its path. Its token is the number chosen by the last mount that used the
//! tier. The file system stores the same number: if the two differ, one of both is an older copy.

use nacre_engine::{BLOCK_SIZE, Error, Kind, Result, TimeRange, Timestamp, size};
use nacre_media::block::{BlockDevice, Pages};
use uuid::Uuid;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::format::{MAGIC, OLDEST_READER, RawLabel, VERSION};

/// The copies of a superblock, in words.
pub const COPIES: [&str; 2] = ["first", "last"];
/// Blocks of the smallest tier.
const MIN_BLOCKS: u64 = 256;
/// The least bytes of a device that may be a tier.
pub const MIN_TIER_SIZE: u64 = MIN_BLOCKS * BLOCK_SIZE;

/// The superblock of a new tier.
#[derive(Debug, Clone, Copy)]
pub struct NewLabel {
    /// Its name for machines; a random one when not given.
    pub uuid: Option<Uuid>,
    /// The file system.
    pub volume: Uuid,
    /// Its number there.
    pub number: u8,
    /// The number that the mount has chosen.
    pub token: u64,
    /// When it becomes a tier.
    pub now: Timestamp,
}

/// The superblock of a device, as read.
#[derive(Debug, Clone)]
pub struct Label {
    raw: RawLabel,
    /// The first copy is the one that can be lost: the other is the only valid one, or the newer.
    first_is_stale: bool,
}

impl Label {
    /// Makes a device a tier. Its content is lost.
    pub fn create(device: &impl BlockDevice, new: &NewLabel) -> Result<Label> {
        let blocks = device.len() / BLOCK_SIZE;
        if blocks < MIN_BLOCKS {
            return Err(Error::new(Kind::InvalidInput)
                .operation("make a tier of")
                .object(format!("{} of {}", device.name(), size::exact(device.len())))
                .advice("a tier has at least 1 MiB"));
        }
        let mut raw = RawLabel::new_zeroed();
        raw.magic = MAGIC;
        raw.version = VERSION;
        raw.oldest_reader = OLDEST_READER;
        raw.number = new.number.into();
        raw.uuid = new.uuid.unwrap_or_else(Uuid::new_v4).into_bytes();
        raw.volume = new.volume.into_bytes();
        raw.blocks = blocks;
        raw.created = TimeRange::of_version(VERSION).pack(new.now);
        let mut label = Label { raw, first_is_stale: false };
        label.write_token(device, new.token)?;
        Ok(label)
    }

    /// Reads the superblock of a device; `None` when it is no tier.
    ///
    /// Errors: [`Corrupt`](Kind::Corrupt) when it is one and neither copy validates,
    /// [`Unsupported`](Kind::Unsupported) for one of a newer program, [`DeviceLost`](Kind::DeviceLost) when the
    /// device is smaller than it was.
    pub fn read(device: &impl BlockDevice) -> Result<Option<Label>> {
        let last = (device.len() / BLOCK_SIZE).saturating_sub(1) * BLOCK_SIZE;
        let copies = [read_copy(device, 0), read_copy(device, last)];
        let has_magic = copies.iter().any(|copy| matches!(copy, Ok(Some(_)) | Err(_)));
        let [first, second] = copies.map(|copy| copy.ok().flatten());
        let label = match (first, second) {
            (Some(first), Some(second)) if second.update > first.update => {
                Label { raw: second, first_is_stale: true }
            }
            (Some(raw), _) => Label { raw, first_is_stale: false },
            (None, Some(raw)) => Label { raw, first_is_stale: true },
            (None, None) if has_magic => {
                return Err(damaged(device, "neither copy of its superblock validates"));
            }
            (None, None) => return Ok(None),
        };
        let raw = &label.raw;
        if raw.oldest_reader > VERSION || raw.features_incompatible != 0 {
            return Err(Error::new(Kind::Unsupported)
                .operation("read the tier on")
                .object(format!(
                    "{}: version {}, features {:#x}",
                    device.name(),
                    raw.version,
                    raw.features_incompatible
                ))
                .advice("use a newer nacre"));
        }
        let blocks = MIN_BLOCKS..=u64::MAX / BLOCK_SIZE;
        if raw.number == 0
            || raw.number > u32::from(nacre_engine::MAX_TIERS)
            || !blocks.contains(&raw.blocks)
            || raw.reserved != [0; 500]
        {
            return Err(damaged(device, "its superblock makes no sense"));
        }
        if raw.blocks > device.len() / BLOCK_SIZE {
            return Err(Error::new(Kind::DeviceLost)
                .operation("read the tier on")
                .object(format!(
                    "{}: it has {}, and the tier {}",
                    device.name(),
                    size::exact(device.len()),
                    size::exact(raw.blocks * BLOCK_SIZE)
                ))
                .advice("the device was truncated: restore its size before anything else"));
        }
        Ok(Some(label))
    }

    /// Notes that the mount with this token uses the tier; durable when it returns. The copy that is needed least is
    /// written first, so that one copy is whole at any time.
    pub fn write_token(&mut self, device: &impl BlockDevice, token: u64) -> Result<()> {
        self.raw.token = token;
        self.raw.update += 1;
        self.raw.checksum = self.raw.compute_checksum();
        let [first, last] = self.offsets();
        let order = if std::mem::take(&mut self.first_is_stale) { [first, last] } else { [last, first] };
        order.into_iter().try_for_each(|offset| self.write_copy(device, offset))
    }

    /// The device is no tier any more; durable when it returns.
    pub fn erase(&self, device: &impl BlockDevice) -> Result<()> {
        let nothing = Pages::new(BLOCK_SIZE as usize);
        self.offsets().into_iter().try_for_each(|offset| device.write(offset, &nothing))?;
        device.flush().map(drop)
    }

    /// Which of its copies cannot be read, do not validate, or are another tier's: the first, and the last.
    pub fn damaged(&self, device: &impl BlockDevice) -> [bool; 2] {
        let is_whole = |raw: RawLabel| raw.uuid == self.raw.uuid;
        self.offsets().map(|offset| !read_copy(device, offset).is_ok_and(|copy| copy.is_some_and(is_whole)))
    }

    /// Writes copies that are [damaged](Label::damaged) as this was read; durable when it returns.
    pub fn mend(&self, device: &impl BlockDevice, damaged: [bool; 2]) -> Result<()> {
        let offsets = self.offsets().into_iter().zip(damaged).filter(|(_, is_damaged)| *is_damaged);
        offsets.map(|(offset, _)| offset).try_for_each(|offset| self.write_copy(device, offset))
    }

    /// Whether the device was cut short and made longer again. Its last block is all zeros then; the last block of a
    /// tier always has a superblock. Other blocks that were cut off read as zeros, too.
    pub fn was_cut(&self, device: &impl BlockDevice) -> bool {
        let [_, last] = self.offsets();
        let mut block = Pages::new(BLOCK_SIZE as usize);
        device.read(last, &mut block).is_ok() && block.iter().all(|byte| *byte == 0)
    }

    fn offsets(&self) -> [u64; 2] {
        [0, self.raw.blocks.saturating_sub(1) * BLOCK_SIZE]
    }

    fn write_copy(&self, device: &impl BlockDevice, offset: u64) -> Result<()> {
        let mut block = Pages::new(BLOCK_SIZE as usize);
        block.copy_from_slice(self.raw.as_bytes());
        device.write(offset, &block)?;
        device.flush().map(drop)
    }

    /// Its name for machines.
    pub fn uuid(&self) -> Uuid {
        Uuid::from_bytes(self.raw.uuid)
    }

    /// The file system that it belongs to.
    pub fn volume(&self) -> Uuid {
        Uuid::from_bytes(self.raw.volume)
    }

    /// Its number there.
    pub fn number(&self) -> u8 {
        self.raw.number as u8
    }

    /// Its blocks.
    pub fn blocks(&self) -> u64 {
        self.raw.blocks
    }

    /// The number that the mount has chosen that last used it.
    pub fn token(&self) -> u64 {
        self.raw.token
    }
}

fn damaged(device: &impl BlockDevice, how: &str) -> Error {
    Error::corrupt(format!("the tier on {}: {how}", device.name()))
}

/// One copy; `None` where there is none, an error where there is one that does not validate or cannot be read.
fn read_copy(device: &impl BlockDevice, offset: u64) -> Result<Option<RawLabel>> {
    let mut block = Pages::new(BLOCK_SIZE as usize);
    device.read(offset, &mut block)?;
    let raw = RawLabel::read_from_bytes(&block[..]).map_err(|_| Error::new(Kind::Corrupt))?;
    match raw.magic == MAGIC {
        false => Ok(None),
        true if raw.checksum == raw.compute_checksum() => Ok(Some(raw)),
        true => Err(Error::new(Kind::Corrupt)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nacre_engine::{BLOCK_SIZE, Kind, Timestamp};
    use nacre_media::SimPm;
    use nacre_media::block::{BlockDevice, SimDisk};
    use nacre_media::crash::{Replay, Sampling};
    use uuid::Uuid;

    use super::{Label, NewLabel};

    const BLOCKS: u64 = 300;

    fn machine() -> (Arc<SimPm>, SimDisk) {
        let memory = Arc::new(SimPm::with_disks(BLOCK_SIZE, &[BLOCKS * BLOCK_SIZE]));
        let disk = SimDisk::of(&memory, 0);
        (memory, disk)
    }

    fn new() -> NewLabel {
        let now = Timestamp::new(1_700_000_000, 0);
        NewLabel { uuid: Some(Uuid::from_u128(5)), volume: Uuid::from_u128(6), number: 7, token: 8, now }
    }

    #[test]
    fn a_tier_says_what_it_is_from_either_copy() {
        let (memory, disk) = machine();
        assert!(Label::read(&disk).unwrap().is_none());
        Label::create(&disk, &new()).unwrap();
        let is_right = || {
            let label = Label::read(&disk).unwrap().unwrap();
            let names = (label.uuid(), label.volume());
            names == (Uuid::from_u128(5), Uuid::from_u128(6))
                && (label.number(), label.blocks(), label.token()) == (7, BLOCKS, 8)
        };
        assert!(is_right());
        let image = memory.image();
        for offset in [0, (BLOCKS - 1) * BLOCK_SIZE] {
            disk.poke(offset + 50, &[1]);
            assert!(is_right());
            memory.load(&image);
            disk.poison(offset, 1);
            assert!(is_right());
            // Writing it mends the copy.
            Label::read(&disk).unwrap().unwrap().write_token(&disk, 8).unwrap();
            disk.poke(BLOCKS * BLOCK_SIZE - BLOCK_SIZE - offset + 50, &[1]);
            assert!(is_right());
            memory.load(&image);
        }
        disk.poke(100, &[1]);
        disk.poke((BLOCKS - 1) * BLOCK_SIZE + 100, &[1]);
        assert_eq!(Label::read(&disk).unwrap_err().kind(), Kind::Corrupt);
    }

    #[test]
    fn a_copy_that_is_damaged_is_written_from_the_other() {
        let (memory, disk) = machine();
        Label::create(&disk, &new()).unwrap();
        let read = || Label::read(&disk).unwrap().unwrap();
        assert!(read().damaged(&disk) == [false; 2] && !read().was_cut(&disk));
        let image = memory.image().to_vec();
        for (offset, damaged) in [(0, [true, false]), ((BLOCKS - 1) * BLOCK_SIZE, [false, true])] {
            // A flipped bit, no superblock at all, and one that cannot be read.
            let damages: [&dyn Fn(); 3] =
                [&|| disk.poke(offset + 50, &[1]), &|| disk.poke(offset, &[0; 8]), &|| {
                    disk.poison(offset, 1)
                }];
            for damage in damages {
                damage();
                assert!(read().damaged(&disk) == damaged && !read().was_cut(&disk));
                read().mend(&disk, damaged).unwrap();
                assert_eq!(read().damaged(&disk), [false; 2]);
                assert!(memory.image().to_vec() == image, "they are as they were");
            }
        }
        disk.poke((BLOCKS - 1) * BLOCK_SIZE, &[0; BLOCK_SIZE as usize]);
        assert!(read().damaged(&disk) == [false, true] && read().was_cut(&disk));
    }

    #[test]
    fn what_is_too_small_or_became_smaller_is_refused() {
        let memory = Arc::new(SimPm::with_disks(BLOCK_SIZE, &[255 * BLOCK_SIZE, 300 * BLOCK_SIZE]));
        let disks = [0, 1].map(|number| SimDisk::of(&memory, number));
        assert_eq!(Label::create(&disks[0], &new()).unwrap_err().kind(), Kind::InvalidInput);
        Label::create(&disks[1], &new()).unwrap();
        let mut block = nacre_media::block::Pages::new(BLOCK_SIZE as usize);
        disks[1].read(0, &mut block).unwrap();
        disks[0].write(0, &block).unwrap();
        assert_eq!(Label::read(&disks[0]).unwrap_err().kind(), Kind::DeviceLost);
    }

    /// How long the device had been was told of a number of blocks that no device has: a panic in builds that look for
    /// overflows. Found by the fuzz target tier.
    #[test]
    fn sizes_that_no_tier_has_are_refused() {
        let (memory, disk) = machine();
        let label = Label::create(&disk, &new()).unwrap();
        let image = memory.image();
        for (blocks, is_sensible) in
            [(0, false), (1, false), (255, false), (256, true), (u64::MAX, false), (1 << 52, false)]
        {
            let mut raw = label.raw;
            raw.blocks = blocks;
            raw.checksum = raw.compute_checksum();
            disk.poke(0, zerocopy::IntoBytes::as_bytes(&raw));
            disk.poke((BLOCKS - 1) * BLOCK_SIZE, &[0; BLOCK_SIZE as usize]);
            let read = Label::read(&disk).map_err(|error| error.kind());
            assert_eq!(
                read.map(|label| label.is_some()),
                if is_sensible { Ok(true) } else { Err(Kind::Corrupt) }
            );
            memory.load(&image);
        }
    }

    #[test]
    fn a_crash_leaves_the_old_token_or_the_new_one() {
        let (memory, disk) = machine();
        let mut label = Label::create(&disk, &new()).unwrap();
        let before = memory.image();
        memory.start_recording();
        label.write_token(&disk, 9).unwrap();
        let trace = memory.stop_recording();
        let mut replay = Replay::new(before, &trace);
        let mut seen = std::collections::BTreeSet::new();
        while replay.advance().is_some() {
            for image in replay.images(&Sampling::default()).iter() {
                memory.load(&replay.crashed(&image));
                let mut label = Label::read(&disk).unwrap().unwrap();
                seen.insert(label.token());
                // Once more, and a copy is lost.
                label.write_token(&disk, 10).unwrap();
                disk.poke(0, &[0; 8]);
                assert_eq!(Label::read(&disk).unwrap().unwrap().token(), 10);
            }
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [8, 9]);
    }
}
