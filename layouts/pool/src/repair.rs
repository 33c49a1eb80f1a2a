//! Writing the results of a check: copies made whole again, and corrections.
//!
//! A copy is written from the other one, which stays as it is. So a crash leaves the damage as it was, or less of it.
//! A correction changes both copies of something, as an operation with an intent: a crash leaves it undone, or the
//! next recovery completes it. All copies come before all corrections. A recovery that takes an operation back goes by
//! primaries, and a damaged primary would take its backup with it.
//!
//! Before the first correction, the counts of free space are forgotten and each volume notes an error. So a mount
//! behind an interrupted repair counts anew, and `fsck -p` looks again.

use std::collections::BTreeMap;

use nacre_engine::{BLOCK_SIZE, Block, Kind, Result};
use nacre_layout_parts::badblocks;
use nacre_media::Pm;
use zerocopy::IntoBytes;

use crate::copies::Fix;
use crate::counts::Counts;
use crate::format::{RawVolume, RawZone};
use crate::fs::Shared;
use crate::geometry::Geometry;
use crate::mend::mend_page;
use crate::rescue::Rescue;
use crate::superblock::Superblock;
use crate::volumes;

/// The corrections of one pass.
#[derive(Default)]
pub(crate) struct Fixes {
    /// Copies that are written from the other one, or that are lost in both and have one right content.
    pub(crate) mends: Vec<(Geometry, Fix)>,
    /// Changes of both copies. Each has the address of the primary.
    pub(crate) edits: Vec<(Geometry, Fix)>,
    /// Repairs that need free space, by volume.
    pub(crate) rescues: Vec<(Geometry, Rescue)>,
    /// Rows of zones that are lost.
    pub(crate) zones: Vec<(u32, RawZone)>,
    /// Rows of volumes that are lost, each with the zone of its groups.
    pub(crate) rows: Vec<(u32, u32)>,
    /// Words of the list of bad blocks do not validate.
    pub(crate) forgets_bad_words: bool,
}

impl Fixes {
    /// The free space of volumes that stay may change.
    fn has_changes(&self) -> bool {
        !(self.edits.is_empty() && self.rescues.is_empty())
    }
}

/// The repair of words of the list of bad blocks.
pub(crate) const FORGET_BAD_WORDS: &str = "forget what they said; fsck -c finds bad blocks again";

/// Writes the corrections of one pass. Gives the repairs that could not all be done: for want of free space, or because
/// a media error stays.
pub(crate) fn write<P: Pm>(pm: &P, fixes: &Fixes, zones: &[u32]) -> Result<Vec<&'static str>> {
    let superblock = &crate::superblock::read(pm)?.superblock;
    let mut left = Vec::new();
    if fixes.forgets_bad_words {
        match badblocks::clear_damaged(pm, superblock, &badblocks::read(pm, superblock)?) {
            // The rest of the list counts nevertheless.
            Err(error) if error.kind() == Kind::Media => left.push(FORGET_BAD_WORDS),
            done => done?,
        }
    }
    for (geometry, fix) in &fixes.mends {
        store(pm, geometry, fix)?;
    }
    // Before the counts are forgotten: a volume that goes leaves right ones.
    for &(zone, index) in &fixes.rows {
        let geometry = crate::zones::geometry(pm, superblock, zone, index)?;
        make_writable(pm, &geometry, geometry.row(), size_of::<RawVolume>() as u64)?;
        volumes::give_up(pm, superblock, zone, index)?;
    }
    if fixes.has_changes() {
        begin(pm, superblock, zones)?;
    }
    for &zone in zones {
        edit(pm, superblock, zone, fixes)?;
    }
    let mut has_room = true;
    for (geometry, rescue) in &fixes.rescues {
        let fs = volumes::open_one(pm, superblock, *geometry, false)?;
        // Without room, or with a map that cannot be read, the rest stays as it is. A pool block that is lost does not
        // keep names from inodes: only the next pass gives it back.
        fs.take_up(fs.count_readable());
        has_room &= rescue.run(&fs).is_ok();
        fs.settle_lanes()?;
    }
    for &(zone, row) in &fixes.zones {
        let (address, row) = crate::zones::sealed(superblock, zone, row)?;
        let geometry = Geometry::new(superblock, zone, &row, 0)?;
        for address in [address, geometry.twin(address)] {
            store(pm, &geometry, &Fix { address, bytes: row.as_bytes().to_vec() })?;
        }
    }
    recount(pm, superblock, zones, false)?;
    write_superblock(pm, false)?;
    if !has_room {
        left.extend(Rescue::REPAIRS);
    }
    Ok(left)
}

/// Writes both copies of the superblock, if the process has the device alone.
fn write_superblock<P: Pm>(pm: &P, forgets: bool) -> Result<()> {
    if pm.is_shared() {
        return Ok(());
    }
    let found = crate::superblock::read(pm)?;
    let mut superblock = found.superblock.clone();
    superblock.note_copies(&found);
    if forgets {
        (superblock.raw.errors, superblock.raw.last_error) = (0, 0);
    }
    superblock.write(pm)
}

/// A repair is over, and nothing is damaged: the errors that mounts noted are forgotten.
pub(crate) fn finish<P: Pm>(pm: &P, zones: &[u32]) -> Result<()> {
    recount(pm, &crate::superblock::read(pm)?.superblock, zones, true)?;
    write_superblock(pm, true)
}

/// The counts of free space do not count from now on, and each volume has an error.
fn begin<P: Pm>(pm: &P, superblock: &Superblock, zones: &[u32]) -> Result<()> {
    for geometry in volumes::all(pm, superblock, zones)? {
        // Damage may keep a volume from being opened.
        let Ok(fs) = open_to_edit(pm, superblock, geometry) else { continue };
        fs.change_rows(|row| row.errors = row.errors.max(1), |zone| zone.counted = 0)?;
        fs.settle_lanes()?;
    }
    Ok(())
}

/// The counts of free space in zones do not count from now on.
pub(crate) fn forget_counts<P: Pm>(pm: &P, superblock: &Superblock, zones: &[u32]) -> Result<()> {
    for &zone in zones {
        let fs = volumes::open_none(pm, superblock, zone, false)?;
        fs.take_up(Counts::none(&fs.geometry, 0));
        if crate::zones::row(pm, superblock, &fs.geometry)?.counted == 1 {
            fs.change(|change| {
                change.put_zone(|zone| zone.counted = 0)?;
                change.commit()
            })?;
            fs.settle_lanes()?;
        }
    }
    Ok(())
}

/// A volume for changes that allocate nothing. It counts nothing, because the bits may be damaged.
fn open_to_edit<'p, P: Pm>(pm: &'p P, superblock: &Superblock, geometry: Geometry) -> Result<Shared<&'p P>> {
    let fs = volumes::open_one(pm, superblock, geometry, false)?;
    fs.take_up(Counts::none(&geometry, 0));
    Ok(fs)
}

/// Writes the corrections in a zone, in operations of as many as a lane has room for.
fn edit<P: Pm>(pm: &P, superblock: &Superblock, zone: u32, fixes: &Fixes) -> Result<()> {
    // One that lies within another is found again by the next pass.
    let mut edits: BTreeMap<u64, &Fix> = BTreeMap::new();
    for (_, fix) in fixes.edits.iter().filter(|(geometry, _)| geometry.zone == zone) {
        let end = fix.address + fix.bytes.len() as u64;
        let before = edits.range(..end).next_back();
        if before.is_none_or(|(address, other)| address + other.bytes.len() as u64 <= fix.address) {
            edits.insert(fix.address, fix);
        }
    }
    if edits.is_empty() {
        return Ok(());
    }
    let fs = volumes::open_none(pm, superblock, zone, false)?;
    fs.take_up(Counts::none(&fs.geometry, 0));
    let edits: Vec<&Fix> = edits.into_values().collect();
    for some in edits.chunks(fs.geometry.lane_items()) {
        for fix in some {
            make_writable(pm, &fs.geometry, fix.address, fix.bytes.len() as u64)?;
        }
        // Groups may change their purpose.
        fs.settle_lanes()?;
        fs.change(|change| {
            some.iter().for_each(|fix| change.item(fix.address, &fix.bytes));
            change.commit()
        })?;
    }
    fs.settle_lanes()
}

/// Counts free blocks and inodes anew after repairs, which may have freed some. `forgets` if the errors that were noted
/// are forgotten.
pub(crate) fn recount<P: Pm>(pm: &P, superblock: &Superblock, zones: &[u32], forgets: bool) -> Result<()> {
    let mut counted = BTreeMap::new();
    for geometry in volumes::all(pm, superblock, zones)? {
        // Damage that no repair mends may keep a volume from being opened.
        let Ok(fs) = volumes::open_one(pm, superblock, geometry, false) else { continue };
        let row = *fs.row.lock();
        // Damage that no repair mends may keep the bits from being read. The next mount counts again what can be.
        let Ok(counts) = fs.count() else { continue };
        fs.take_up(counts);
        if row.clean != 1 && (row.errors == 0 || !forgets) {
            continue;
        }
        let renewed = |row: &mut RawVolume| {
            row.keep(&counts);
            if forgets {
                (row.errors, row.last_error) = (0, 0);
            }
        };
        fs.change_rows(renewed, |_| {})?;
        fs.settle_lanes()?;
        counted.insert(geometry.zone, (geometry, counts));
    }
    // The zone says last that the counts of all its volumes are valid.
    for (geometry, counts) in counted.into_values() {
        let fs = volumes::open_one(pm, superblock, geometry, false)?;
        fs.take_up(counts);
        fs.change_rows(|_| {}, |zone| zone.keep(&counts))?;
        fs.settle_lanes()?;
    }
    Ok(())
}

/// Writes one copy. Pages with media errors are written anew.
fn store<P: Pm>(pm: &P, geometry: &Geometry, fix: &Fix) -> Result<()> {
    let stored = match pm.copy(fix.address, &fix.bytes) {
        Err(error) if error.kind() == Kind::Media => {
            renew_pages(pm, geometry, fix.address, fix.bytes.len() as u64)?;
            pm.copy(fix.address, &fix.bytes)?
        }
        stored => stored?,
    };
    pm.fence(stored);
    Ok(())
}

/// Writes the pages of both copies anew that have media errors, so that an operation can store to them.
fn make_writable<P: Pm>(pm: &P, geometry: &Geometry, address: u64, len: u64) -> Result<()> {
    for copy in [address, geometry.twin(address)] {
        if pm.read(copy, &mut vec![0; len as usize]).is_err() {
            renew_pages(pm, geometry, copy, len)?;
        }
    }
    Ok(())
}

fn renew_pages<P: Pm>(pm: &P, geometry: &Geometry, address: u64, len: u64) -> Result<()> {
    for page in address / BLOCK_SIZE..=(address + len - 1) / BLOCK_SIZE {
        mend_page(pm, geometry, Block(page), &[])?;
    }
    Ok(())
}
