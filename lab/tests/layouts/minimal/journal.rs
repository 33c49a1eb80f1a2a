//! The bytes on PM: superblock, epoch, records. No other file of this layout stores anything.

use nacre_engine::{BLOCK_SIZE, Error, Kind, Result, Timestamp};
use nacre_layout_parts::lifecycle::MkfsOptions;
use nacre_layout_parts::superblock::{Summary, put_text};
use nacre_media::{Durable, Pm, SimPm};
use uuid::Uuid;

use super::Seeded;

/// The first bytes of the superblock.
pub(super) const MAGIC: [u8; 8] = *b"nacremin";
/// The place of the epoch.
const EPOCH: u64 = BLOCK_SIZE;
/// The first half.
const HALVES: u64 = 2 * BLOCK_SIZE;
/// Epochs begin anew after so many.
const MAX_EPOCH: u64 = 1 << 31;
/// Checksum and length of the operation, and the epoch.
const HEADER: usize = 16;
/// The smallest device.
const MIN_SIZE: u64 = 1 << 20;

/// Bytes of the superblock: magic, checksum of the rest, length of label and preset, UUID, seconds and nanoseconds of the
/// creation, label, preset.
const SUPERBLOCK: usize = 128;
const UUID: usize = 16;
const CREATED: usize = 32;
const LABEL: usize = 44;
const PRESET: usize = 108;

/// The distance to the next epoch. It is odd, since the next epoch is in the other half. Each cause has its own: a crash
/// may leave records of an epoch that was not published, and these must not follow the records of another attempt.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    /// A compaction during a mount or at its end.
    Compaction = 1,
    /// The compaction at the start of a mount. The same records always give the same ones.
    Mount = 3,
    /// A new file system.
    Mkfs = 5,
}

/// Bytes of each half.
pub(super) fn half_len(pm: &SimPm) -> u64 {
    (pm.len() - HALVES) / 2 / BLOCK_SIZE * BLOCK_SIZE
}

/// The journal of one epoch, up to a position.
#[derive(Debug)]
pub(super) struct Journal {
    /// The epoch.
    pub(super) epoch: u64,
    /// The end of its records, in bytes from the start of the half.
    tail: u64,
}

impl Journal {
    /// The start of the current epoch. Without a file system it may be any number.
    pub(super) fn open(pm: &SimPm) -> Result<Journal> {
        Ok(Journal { epoch: pm.load_u64(EPOCH)? % MAX_EPOCH, tail: 0 })
    }

    /// The bytes that a record of an operation of this length takes.
    pub(super) fn record_len(len: usize) -> u64 {
        (HEADER + len).next_multiple_of(8) as u64
    }

    /// Whether so many bytes fit behind the last record.
    pub(super) fn has_room(&self, pm: &SimPm, len: u64) -> bool {
        self.tail + len <= half_len(pm)
    }

    /// The operation of the next record, or `None` at the end of the journal.
    pub(super) fn next(&mut self, pm: &SimPm) -> Result<Option<Vec<u8>>> {
        let at = self.position(pm);
        if !self.has_room(pm, HEADER as u64) {
            return Ok(None);
        }
        let mut header = [0; HEADER];
        pm.read(at, &mut header)?;
        let len = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
        if !self.has_room(pm, Journal::record_len(len)) {
            return Ok(None);
        }
        let mut operation = vec![0; len];
        pm.read(at + HEADER as u64, &mut operation)?;
        // Without the mistake the checksum is compared, too.
        let compared = if pm.is_seeded(Seeded::TornRecords as u32) { 4 } else { 0 };
        if header[compared..] != self.header(at, &operation)[compared..] {
            return Ok(None);
        }
        self.tail += Journal::record_len(len);
        Ok(Some(operation))
    }

    /// Appends an operation. It is durable on return.
    pub(super) fn append(&mut self, pm: &SimPm, operation: &[u8]) -> Result<()> {
        let record = self.record(pm, operation);
        let copied = pm.copy(self.position(pm), &record)?;
        self.tail += record.len() as u64;
        if pm.is_seeded(Seeded::RecordNotFenced as u32) {
            copied.may_be_lost();
        } else {
            pm.fence(copied);
        }
        Ok(())
    }

    /// Begins an epoch with these operations, in the other half. A crash leaves the old epoch or the new one.
    pub(super) fn begin_epoch(&mut self, pm: &SimPm, step: Step, operations: &[Vec<u8>]) -> Result<()> {
        let mut next = Journal { epoch: (self.epoch + step as u64) % MAX_EPOCH, tail: 0 };
        let mut copies = None;
        for operation in operations {
            let record = next.record(pm, operation);
            let copied = pm.copy(next.position(pm), &record)?;
            next.tail += record.len() as u64;
            copies = Some(copied);
        }
        // The last copy stands for all: a fence waits for everything that this thread has flushed.
        let copied = copies.expect("an epoch has a first record");
        let durable = if pm.is_seeded(Seeded::EpochBeforeRecords as u32) {
            copied.may_be_lost();
            Durable::nothing_before()
        } else {
            pm.fence(copied)
        };
        let published = pm.publish_u64(EPOCH, next.epoch, durable)?;
        pm.fence(pm.flush(published));
        *self = next;
        Ok(())
    }

    /// The place of the next record.
    fn position(&self, pm: &SimPm) -> u64 {
        HALVES + self.epoch % 2 * half_len(pm) + self.tail
    }

    /// The bytes of the next record.
    fn record(&self, pm: &SimPm, operation: &[u8]) -> Vec<u8> {
        let mut record = self.header(self.position(pm), operation).to_vec();
        record.extend_from_slice(operation);
        record.resize(Journal::record_len(operation.len()) as usize, 0);
        record
    }

    /// The header of an operation, with a checksum of position, length, epoch and operation.
    fn header(&self, at: u64, operation: &[u8]) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[4..8].copy_from_slice(&(operation.len() as u32).to_le_bytes());
        header[8..].copy_from_slice(&self.epoch.to_le_bytes());
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&at.to_le_bytes()), &header);
        header[..4].copy_from_slice(&crc32c::crc32c_append(checksum, operation).to_le_bytes());
        header
    }
}

/// Makes sure that there is no file system.
pub(super) fn erase(pm: &SimPm) -> Result<()> {
    if pm.len() < MIN_SIZE {
        return Err(Error::new(Kind::InvalidInput).object("a device of less than 1 MiB"));
    }
    let erased = pm.zero(0, MAGIC.len() as u64)?;
    pm.fence(erased);
    Ok(())
}

/// Makes a file system of the current journal.
pub(super) fn write_superblock(pm: &SimPm, options: &MkfsOptions) -> Result<()> {
    let mut bytes = [0; SUPERBLOCK];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[UUID..CREATED].copy_from_slice(options.uuid.unwrap_or_else(Uuid::new_v4).as_bytes());
    bytes[CREATED..CREATED + 8].copy_from_slice(&options.now.secs.to_le_bytes());
    bytes[CREATED + 8..LABEL].copy_from_slice(&options.now.nanos.to_le_bytes());
    put_text(&mut bytes[LABEL..PRESET], &options.label, "the label")?;
    put_text(&mut bytes[PRESET..124], &options.preset, "the preset")?;
    let checksum = crc32c::crc32c(&bytes[UUID..]);
    bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
    let written = pm.copy(0, &bytes)?;
    pm.fence(written);
    Ok(())
}

/// The contents of the superblock.
pub(super) fn read_superblock(pm: &SimPm) -> Result<Summary> {
    let mut bytes = [0; SUPERBLOCK];
    if pm.len() >= MIN_SIZE {
        pm.read(0, &mut bytes)?;
    }
    if bytes[..8] != MAGIC {
        return Err(Error::new(Kind::InvalidInput).object("the superblock"));
    }
    if bytes[8..12] != crc32c::crc32c(&bytes[UUID..]).to_le_bytes() {
        return Err(Error::corrupt("the superblock: checksum"));
    }
    let number = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().expect("it is inside"));
    let text = |field: &[u8]| String::from_utf8_lossy(field).trim_end_matches('\0').to_owned();
    Ok(Summary {
        uuid: Uuid::from_bytes(*bytes[UUID..].first_chunk().expect("it is inside")),
        label: text(&bytes[LABEL..PRESET]),
        preset: text(&bytes[PRESET..124]),
        version: 1,
        features: [0; 3],
        blocks: pm.len() / BLOCK_SIZE,
        created: Timestamp { secs: number(CREATED) as i64, nanos: number(CREATED + 8) as u32 },
        mount_epoch: Journal::open(pm)?.epoch,
        // Each mount replays the journal: there is no other state.
        clean: false,
        errors: 0,
        mended: 0,
        last_error: None,
        valid_copies: 1,
    })
}
