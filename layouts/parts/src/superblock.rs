//! The superblock: read, validated, and written in two copies.

use nacre_engine::{BLOCK_SIZE, Block, Error, Kind, Result, TimeRange, Timestamp, size};
use nacre_media::Pm;
use uuid::Uuid;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::format::{
    FIRST_REGION_BLOCK, MAX_DEVICE_SIZE, MAX_TIER_BLOCKS, MIN_DEVICE_SIZE, RawSuperblock, RawTier, Region,
    SUPERBLOCK_COPY_OFFSET, SUPERBLOCK_OFFSET, SUPERBLOCK_SPARE_OFFSET, compatible, incompatible, state,
    tier_state, volume_seed,
};

/// Counts that grow by one are smaller: no file system lives long enough to reach it, and one that was made up must not
/// count beyond all numbers.
const MAX_COUNT: u64 = 1 << 62;

/// The requirements of a layout for its superblock.
#[derive(Debug)]
pub struct LayoutFormat {
    /// The first bytes of the device.
    pub magic: [u8; 8],
    /// The version that this code writes.
    pub version: u32,
    /// The oldest version of the code that can read what this code writes.
    pub oldest_reader: u32,
    /// The algorithm of its checksums.
    pub checksum_algorithm: u32,
    /// Incompatible features that this code knows; an unknown bit refuses the mount.
    pub known_incompatible: u64,
    /// Features that allow a read-only mount by code without support for them.
    pub known_read_only_compatible: u64,
    /// Kinds of regions that each superblock of the layout has, and the fewest blocks of each.
    pub regions: &'static [(u32, u64)],
}

/// A validated superblock.
#[derive(Clone)]
pub struct Superblock {
    /// Its fields.
    pub raw: RawSuperblock,
    /// Where the copy is that may not be lost, the newest; it is written last.
    newest: u64,
    /// The place that the spare copy stands for, where that is the newest.
    stands_for: u64,
    format: &'static LayoutFormat,
}

/// The facts about a file system in its superblock.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Its name for machines.
    pub uuid: Uuid,
    /// Its name for people.
    pub label: String,
    /// The preset that it was made for.
    pub preset: String,
    /// Version of the format.
    pub version: u32,
    /// Compatible, read-only-compatible and incompatible feature bits.
    pub features: [u64; 3],
    /// Size in blocks of 4096 bytes.
    pub blocks: u64,
    /// When it was made.
    pub created: Timestamp,
    /// Writable mounts so far.
    pub mount_epoch: u64,
    /// It had a clean unmount.
    pub clean: bool,
    /// Errors found and not repaired.
    pub errors: u32,
    /// Damaged copies of metadata that mounts wrote anew, in a layout that has a second copy of it.
    pub mended: u64,
    /// When the last error was found.
    pub last_error: Option<Timestamp>,
    /// How many of the two copies are valid.
    pub valid_copies: u32,
}

/// Bytes of a superblock.
pub const SUPERBLOCK_SIZE: usize = size_of::<RawSuperblock>();

/// The content of a superblock's copy, of any layout, where its device is not ours to open.
#[derive(Debug, Clone)]
pub struct Sighting {
    /// The file system's name for machines.
    pub uuid: Uuid,
    /// Grows with each writing.
    pub update: u64,
    mount_epoch: u64,
    is_mounted: bool,
    tiers: Vec<RawTier>,
}

impl Sighting {
    /// The content of a copy, if it validates.
    pub fn of(bytes: &[u8; SUPERBLOCK_SIZE]) -> Option<Sighting> {
        let raw = RawSuperblock::read_from_bytes(bytes).ok()?;
        (raw.magic.starts_with(b"nacre") && raw.checksum == raw.compute_checksum()).then(|| Sighting {
            uuid: Uuid::from_bytes(raw.uuid),
            update: raw.update,
            mount_epoch: raw.mount_epoch,
            is_mounted: raw.state == state::DIRTY,
            tiers: raw.tiers.iter().filter(|tier| tier.state != 0).copied().collect(),
        })
    }

    /// Whether both were written by one mount that has not ended.
    pub fn is_of_the_same_mount(&self, other: &Sighting) -> bool {
        (self.uuid, self.mount_epoch) == (other.uuid, other.mount_epoch)
            && self.is_mounted
            && other.is_mounted
    }

    /// Whether the file system uses such a tier, as it is now.
    pub fn has_tier(&self, uuid: Uuid, token: u64) -> bool {
        let is_it = |tier: &RawTier| {
            tier.uuid == uuid.into_bytes()
                && (token == tier.token || tier.pending != 0 && token == tier.pending)
        };
        self.tiers.iter().any(is_it)
    }
}

/// The result of reading the places of the superblock's copies.
pub struct Found {
    /// The newer valid copy.
    pub superblock: Superblock,
    /// Which copies were valid, or had the spare one stand for them.
    pub valid: [bool; 2],
    /// A copy that is not valid is one that a crash interrupted the writing of: it differs from the other in nothing
    /// but fields that each writing changes.
    pub interrupted: bool,
}

impl Found {
    /// The facts about the file system.
    pub fn summary(&self) -> Summary {
        self.superblock.summary(self.valid)
    }
}

/// The words of a superblock that change from one writing to the next: checksum, update, mount epoch, state and errors,
/// last error, settled transactions, checkpoint, lanes.
const CHANGING_WORDS: [usize; 8] = [1, 22, 23, 24, 25, 26, 27, 28];
/// Those of the tiers and of their paths, which change as tiers come and go.
const TIER_WORDS: std::ops::Range<usize> = 77..397;

impl Superblock {
    /// The superblock with these contents, of which both copies are alike.
    pub fn of(raw: RawSuperblock, format: &'static LayoutFormat) -> Superblock {
        Superblock { raw, newest: SUPERBLOCK_OFFSET, stands_for: SUPERBLOCK_OFFSET, format }
    }

    /// Reads both copies, and the one that stands for either, and takes the newest valid one.
    pub fn read(pm: &impl Pm, format: &'static LayoutFormat) -> Result<Found> {
        let copies = [SUPERBLOCK_OFFSET, SUPERBLOCK_COPY_OFFSET].map(|offset| read_copy(pm, offset, format));
        let mut valid = [copies[0].is_ok(), copies[1].is_ok()];
        let newest = copies.into_iter().reduce(newer).unwrap_or_else(|| Err(Error::new(Kind::Corrupt)));
        let superblock = match (newest, read_copy(pm, SUPERBLOCK_SPARE_OFFSET, format)) {
            (Ok(newest), Ok(spare)) if spare.raw.update == newest.raw.update => {
                // It stands for the other one.
                valid = [true; 2];
                newest
            }
            (Ok(newest), Ok(spare)) if spare.raw.update < newest.raw.update => newest,
            (_, Ok(spare)) => {
                let stands_for = if valid[0] { SUPERBLOCK_COPY_OFFSET } else { SUPERBLOCK_OFFSET };
                Superblock { stands_for, ..spare }
            }
            (newest, Err(_)) => newest?,
        };
        superblock.check_features()?;
        superblock.check_geometry(pm.len())?;
        superblock.check_regions()?;
        let interrupted = match valid {
            [true, true] => false,
            [first, _] => {
                let offset = if first { SUPERBLOCK_COPY_OFFSET } else { SUPERBLOCK_OFFSET };
                superblock.is_interrupted_writing(pm, offset)
            }
        };
        Ok(Found { superblock, valid, interrupted })
    }

    /// The copy at `offset`, which is not valid, was being written when a crash came.
    fn is_interrupted_writing(&self, pm: &impl Pm, offset: u64) -> bool {
        let mut torn = RawSuperblock::new_zeroed();
        if pm.read(offset, torn.as_mut_bytes()).is_err() {
            return false;
        }
        let words = torn.as_bytes().chunks_exact(8).zip(self.raw.as_bytes().chunks_exact(8));
        let may_change = |index| CHANGING_WORDS.contains(&index) || TIER_WORDS.contains(&index);
        words.enumerate().all(|(index, (torn, whole))| torn == whole || may_change(index))
    }

    /// Writes both copies, each durable before the next step, and the one that is needed least first: when a crash has
    /// torn one, another crash must not tear the other. Where a place has a media error that cannot be cleared, the
    /// spare one stands for it. [`Media`](Kind::Media) when only one place can be written: a crash could tear the copy
    /// there.
    #[track_caller]
    pub fn write(&mut self, pm: &impl Pm) -> Result<()> {
        self.raw.update += 1;
        self.raw.checksum = self.raw.compute_checksum();
        let last = if self.newest == SUPERBLOCK_SPARE_OFFSET { self.stands_for } else { self.newest };
        let mut order = [SUPERBLOCK_COPY_OFFSET, SUPERBLOCK_OFFSET];
        if last == SUPERBLOCK_COPY_OFFSET {
            order.reverse();
        }
        let mut written = 0;
        let mut refused = None;
        for offset in order {
            for place in [offset, SUPERBLOCK_SPARE_OFFSET] {
                if place == self.newest && written == 0 && refused.is_some() {
                    break;
                }
                match pm.copy(place, self.raw.as_bytes()) {
                    Ok(copied) => {
                        pm.fence(copied);
                        written += 1;
                        // Where the second writing fails, the first one's copy is the only good one.
                        (self.newest, self.stands_for) = (place, offset);
                        break;
                    }
                    Err(error) if error.kind() == Kind::Media => refused = Some(error),
                    Err(error) => return Err(error),
                }
            }
        }
        match refused {
            Some(error) if written < order.len() => return Err(error),
            Some(_) => {}
            // Both are alike.
            None => self.newest = SUPERBLOCK_OFFSET,
        }
        Ok(())
    }

    /// The copies are on media as they were `found`: the one that is damaged can be lost, and is written first from now
    /// on.
    pub fn note_copies(&mut self, found: &Found) {
        (self.newest, self.stands_for) = (found.superblock.newest, found.superblock.stands_for);
    }

    /// The seed of all checksums.
    pub fn seed(&self) -> u32 {
        volume_seed(&self.raw.uuid)
    }

    /// The times that it can hold, and how.
    pub fn times(&self) -> TimeRange {
        TimeRange::of_version(self.raw.version)
    }

    /// It had a clean unmount.
    pub fn is_clean(&self) -> bool {
        self.raw.state == state::CLEAN
    }

    /// The first block after the superblocks and regions: blocks before it are never allocated.
    pub fn first_data_block(&self) -> u64 {
        let regions = self.raw.regions.iter().map(|region| region.start + region.blocks);
        regions.max().unwrap_or(0).max(FIRST_REGION_BLOCK)
    }

    /// The summary of this superblock, with the validity of its copies.
    pub fn summary(&self, valid: [bool; 2]) -> Summary {
        let raw = &self.raw;
        Summary {
            uuid: Uuid::from_bytes(raw.uuid),
            label: text(&raw.label),
            preset: text(&raw.preset),
            version: raw.version,
            features: [raw.features_compatible, raw.features_read_only_compatible, raw.features_incompatible],
            blocks: raw.device_blocks,
            created: self.times().unpack(raw.created).unwrap_or_default(),
            mount_epoch: raw.mount_epoch,
            clean: self.is_clean(),
            errors: raw.errors,
            mended: 0,
            last_error: (raw.last_error != 0).then(|| self.times().unpack(raw.last_error)).flatten(),
            valid_copies: valid.into_iter().map(u32::from).sum(),
        }
    }

    /// The region of this kind.
    pub fn region(&self, kind: u32) -> Result<Region> {
        let regions = &self.raw.regions[..self.raw.region_count as usize];
        regions
            .iter()
            .find(|region| region.kind == kind)
            .copied()
            .ok_or_else(|| Error::corrupt(format!("superblock: region {kind} is missing")))
    }

    fn check_features(&self) -> Result<()> {
        let raw = &self.raw;
        let version = self.format.version;
        if raw.oldest_reader > version {
            return Err(Error::new(Kind::Unsupported)
                .object(format!("format version {} (this program reads up to {version})", raw.version))
                .advice("use a newer nacre"));
        }
        let unknown = raw.features_incompatible & !self.format.known_incompatible;
        if unknown != 0 {
            return Err(Error::new(Kind::Unsupported)
                .object(format!("incompatible features {unknown:#x}"))
                .advice("use a newer nacre"));
        }
        Ok(())
    }

    /// Whether a regular file was ever made immutable or append-only.
    pub fn has_guarded(&self) -> bool {
        self.raw.features_compatible & compatible::GUARDED != 0
    }

    /// A regular file is about to be made so: that is on media when this returns.
    pub fn note_guarded(&mut self, pm: &impl Pm) -> Result<()> {
        if self.has_guarded() {
            return Ok(());
        }
        self.raw.features_compatible |= compatible::GUARDED;
        self.write(pm).inspect_err(|_| self.raw.features_compatible &= !compatible::GUARDED)
    }

    /// An error when an unknown feature allows reading only: any write, also by a repair, would have to know it.
    pub fn check_writable(&self) -> Result<()> {
        let unknown = self.raw.features_read_only_compatible & !self.format.known_read_only_compatible;
        if unknown == 0 {
            return Ok(());
        }
        Err(Error::new(Kind::Unsupported)
            .object(format!("unknown features {unknown:#x}, which do not allow writes by this program"))
            .advice("mount it read-only, or use a newer nacre"))
    }

    /// The regions that the layout needs are there. That none is in another is part of the geometry.
    fn check_regions(&self) -> Result<()> {
        let blocks = |&(kind, least): &(u32, u64)| Ok(self.region(kind)?.blocks >= least);
        let are_whole: Vec<bool> = self.format.regions.iter().map(blocks).collect::<Result<_>>()?;
        if are_whole.contains(&false) { Err(Error::corrupt("superblock: regions")) } else { Ok(()) }
    }

    fn check_geometry(&self, device_len: u64) -> Result<()> {
        let raw = &self.raw;
        let size = raw.device_blocks.saturating_mul(BLOCK_SIZE);
        let what = if raw.version == 0 || raw.oldest_reader > raw.version {
            Some("version")
        } else if raw.block_size != BLOCK_SIZE as u32 || raw.line_size != 64 {
            Some("block or line size")
        } else if !(MIN_DEVICE_SIZE..=MAX_DEVICE_SIZE).contains(&size) {
            Some("device size")
        } else if raw.checksum_algorithm != self.format.checksum_algorithm {
            Some("checksum algorithm")
        } else if raw.region_count as usize > raw.regions.len() {
            Some("number of regions")
        } else if raw.regions.iter().any(|r| !region_is_inside(r, raw.device_blocks)) {
            Some("a region beyond the device")
        } else if regions_collide(&raw.regions[..raw.region_count as usize]) {
            Some("regions that overlap, each other or the superblocks")
        } else if raw.state != state::CLEAN && raw.state != state::DIRTY {
            Some("state")
        } else if [raw.update, raw.mount_epoch, raw.settled_transactions].iter().any(|&n| n >= MAX_COUNT) {
            Some("a count that no file system reaches")
        } else if !tiers_are_valid(raw) {
            Some("a tier")
        } else if raw.reserved.iter().any(|&word| word != 0) {
            Some("reserved bytes that are not zero")
        } else {
            None
        };
        if let Some(what) = what {
            return Err(Error::corrupt(format!("superblock: {what}")));
        }
        if size > device_len {
            return Err(Error::new(Kind::DeviceLost)
                .object(format!(
                    "the device has {}, the file system {}",
                    size::exact(device_len),
                    size::exact(size)
                ))
                .advice("the device was truncated: restore its size before anything else"));
        }
        Ok(())
    }
}

/// Whether two things would be written to one place.
fn regions_collide(regions: &[Region]) -> bool {
    let mut ranges: Vec<(u64, u64)> = regions.iter().map(|row| (row.start, row.start + row.blocks)).collect();
    ranges.sort_unstable();
    ranges.first().is_some_and(|&(start, _)| start < FIRST_REGION_BLOCK)
        || ranges.windows(2).any(|pair| pair[1].0 < pair[0].1)
}

fn tiers_are_valid(raw: &RawSuperblock) -> bool {
    let has_tiers = raw.features_incompatible & incompatible::TIERS != 0;
    let blocks = raw.tiers.iter().fold(0, |sum: u64, tier| sum.saturating_add(tier.blocks));
    blocks <= MAX_TIER_BLOCKS
        && raw.tiers.iter().enumerate().all(|(index, tier)| {
            let is_known = matches!(tier.state, tier_state::ACTIVE | tier_state::DRAINING);
            let is_sane = is_known
            // Two of them are the tier's own.
            && (3..=MAX_TIER_BLOCKS).contains(&tier.blocks)
            && tier.reserved == [0; 6]
            && raw.tiers[..index].iter().all(|other| other.state == 0 || other.uuid != tier.uuid);
            *tier == RawTier::default() || has_tiers && is_sane
        })
}

fn region_is_inside(region: &Region, device_blocks: u64) -> bool {
    // Rows that are not in use are zero.
    region.start.checked_add(region.blocks).is_some_and(|end| end <= device_blocks)
}

fn read_copy(pm: &impl Pm, offset: u64, format: &'static LayoutFormat) -> Result<Superblock> {
    if pm.len() < MIN_DEVICE_SIZE {
        return Err(not_nacre("a device of less than 16 MiB".to_owned()));
    }
    let mut raw = RawSuperblock::new_zeroed();
    pm.read(offset, raw.as_mut_bytes())?;
    if raw.magic != format.magic {
        return Err(not_nacre(format!("the superblock at byte {offset}")));
    }
    if raw.checksum != raw.compute_checksum() {
        return Err(Error::corrupt(format!("superblock at byte {offset}: checksum")));
    }
    Ok(Superblock { newest: offset, ..Superblock::of(raw, format) })
}

/// The newer of two copies; of two alike the first.
fn newer(first: Result<Superblock>, second: Result<Superblock>) -> Result<Superblock> {
    match (first, second) {
        (Ok(first), Ok(second)) if second.raw.update > first.raw.update => Ok(second),
        (Ok(first), _) => Ok(first),
        (Err(_), Ok(second)) => Ok(second),
        (Err(first), Err(second)) => Err(more_telling(first, second)),
    }
}

/// Refuses a device of a size that a layout does not take, with advice for its user.
pub fn check_size(pm: &impl Pm, advice: &'static str) -> Result<()> {
    if (MIN_DEVICE_SIZE..=MAX_DEVICE_SIZE).contains(&(pm.len() / BLOCK_SIZE * BLOCK_SIZE)) {
        return Ok(());
    }
    Err(Error::new(Kind::InvalidInput)
        .operation("mkfs")
        .object(format!("a device of {}", size::exact(pm.len())))
        .advice(advice))
}

/// Makes all places of superblocks, and the bytes between them, zero. Where a media error stays there is no superblock,
/// either.
pub fn erase(pm: &impl Pm) -> Result<()> {
    for block in 0..FIRST_REGION_BLOCK {
        match pm.zero(Block(block).offset(), BLOCK_SIZE) {
            Ok(zeroed) => {
                pm.fence(zeroed);
            }
            Err(error) if error.kind() == Kind::Media => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The more telling error of two places without a valid superblock. A superblock that was begun says more than an
/// unreadable one, and that more than one that was never there.
pub fn more_telling(first: Error, second: Error) -> Error {
    let rank = |error: &Error| match error.kind() {
        Kind::InvalidInput => 0,
        Kind::Media | Kind::Io => 1,
        _ => 2,
    };
    if rank(&second) > rank(&first) { second } else { first }
}

/// A block has these bytes there.
pub fn has_mark(block: &[u8], at: usize, mark: &[u8]) -> bool {
    block.get(at..).is_some_and(|bytes| bytes.starts_with(mark))
}

/// A block looks like one of a table of inodes: each slot of `size` bytes has an inode, or zeros. One of the first two
/// has an inode, because number 0 may name none.
pub fn holds_inodes(block: &[u8], size: u64, is_inode: impl Fn(&[u8]) -> bool) -> bool {
    let slots = || block.chunks_exact(size as usize);
    let is_zero = |slot: &[u8]| slot.iter().all(|&byte| byte == 0);
    slots().take(2).any(&is_inode) && slots().all(|slot| is_inode(slot) || is_zero(slot))
}

/// [`InvalidInput`](Kind::InvalidInput): there is no superblock of this layout. Whether there is another is for the
/// caller to say.
fn not_nacre(object: String) -> Error {
    Error::new(Kind::InvalidInput).object(object).advice("this is no nacre file system")
}

/// The text in a field that is padded with zeros.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Puts text into a field that is padded with zeros.
pub fn put_text(field: &mut [u8], value: &str, what: &str) -> Result<()> {
    if value.len() > field.len() || value.contains('\0') {
        return Err(Error::new(Kind::InvalidInput)
            .object(format!("{what} {value:?}, in a field of {} bytes", field.len()))
            .advice("give a shorter one, without zero bytes"));
    }
    field[..value.len()].copy_from_slice(value.as_bytes());
    Ok(())
}
