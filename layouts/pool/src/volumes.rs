//! Volumes: their rows, and how they are made and removed.
//!
//! The row of a volume that is made says that it is going until the root is there, and the row of one that is removed
//! until all its groups are free. The next mount of a volume of the zone, or the next change of its volumes, frees what
//! such a row has.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use nacre_engine::{
    BLOCK_SIZE, Error, FileKind, Kind, NewInode, Resource, Result, TimeRange, Timestamp, size,
};
use nacre_layout_parts::names::seed_of;
use nacre_media::Pm;
use uuid::Uuid;
use zerocopy::{FromZeros, IntoBytes};

use crate::bits;
use crate::commit::Change;
use crate::counts::{Counts, Purpose};
use crate::format::{
    FORMAT_VERSION, INODE_SIZE, LINE, ROOT_INODE, ROWS, RawVolume, RawZone, VOLUME_BYTES, purpose, region,
    seal_any, seed_at, volume_state,
};
use crate::fs::Shared;
use crate::geometry::{Geometry, Halves, Use};
use crate::mend::read_either;
use crate::mount::open;
use crate::recover::{Recovered, recover};
use crate::seeded::Mistake;
use crate::superblock::{self, Found, Summary, Superblock, put_text};
use crate::zones;

/// The name of the volume that mkfs makes.
pub(crate) const MAIN: &str = "main";

/// A volume of a device.
#[derive(Debug, Clone)]
pub struct VolumeSummary {
    /// Its name.
    pub name: String,
    /// Its name for machines.
    pub uuid: Uuid,
    /// The zone that it is in.
    pub zone: u32,
    /// The most blocks that it may take.
    pub quota: Option<u64>,
    /// It was cleanly unmounted.
    pub clean: bool,
    /// Blocks in use, if it was cleanly unmounted.
    pub used: Option<u64>,
    /// Inodes in use, if it was cleanly unmounted.
    pub inodes: Option<u64>,
    /// Its making or its removal was interrupted: the next change of volumes ends that.
    pub going: bool,
}

/// A volume that is to be made.
#[derive(Debug, Clone, Default)]
pub struct NewVolume {
    /// Its name, at most 64 bytes.
    pub name: String,
    /// Its name for machines; a random one when not given.
    pub uuid: Option<Uuid>,
    /// The zone that it is to be in.
    pub zone: u32,
    /// The most blocks that it may take; 0 for no limit.
    pub quota: u64,
    /// Owner and group of the root directory.
    pub root_owner: (u32, u32),
    /// The time of its creation.
    pub now: Timestamp,
}

/// Reads a row. `None` for one that is not in use.
fn read_row(pm: &impl Pm, superblock: &Superblock, index: u32) -> Result<Option<RawVolume>> {
    let halves = Halves::of(superblock, region::VOLUMES)?;
    let address = halves.start + u64::from(index) * size_of::<RawVolume>() as u64;
    let seed = seed_at(superblock.seed(), address);
    let mut row = RawVolume::new_zeroed();
    // Most rows are not in use: their first lines say so.
    let is_zero = |address| {
        let mut line = [0; LINE as usize];
        pm.read(address, &mut line).is_ok_and(|()| line == [0; LINE as usize])
    };
    if is_zero(address) && is_zero(address + halves.len) {
        return Ok(None);
    }
    let bytes = &mut row.as_mut_bytes()[..VOLUME_BYTES];
    read_either(pm, [address, address + halves.len], bytes, |bytes| is_row(bytes, seed))
        .map_err(|error| error.object(format!("the row of volume {index}")))?;
    Ok((row.state != 0).then_some(row))
}

/// Whether bytes are those of a row. Zeros are one that is not in use.
fn is_row(bytes: &[u8], seed: u32) -> bool {
    let mut row = RawVolume::new_zeroed();
    row.as_mut_bytes()[..VOLUME_BYTES].copy_from_slice(bytes);
    bytes.iter().all(|&byte| byte == 0) || row.is_whole(seed)
}

/// The rows of a device, with their numbers. A damaged one leaves the others alone.
pub(crate) struct Rows {
    /// Rows in use.
    pub(crate) whole: Vec<(u32, RawVolume)>,
    /// Rows without a copy that is whole.
    pub(crate) damaged: Vec<(u32, Error)>,
}

impl Rows {
    pub(crate) fn read(pm: &impl Pm, superblock: &Superblock) -> Rows {
        let mut rows = Rows { whole: Vec::new(), damaged: Vec::new() };
        for index in 0..ROWS as u32 {
            match read_row(pm, superblock, index) {
                Ok(row) => rows.whole.extend(row.map(|row| (index, row))),
                Err(error) => rows.damaged.push((index, error)),
            }
        }
        rows
    }

    /// Volumes that can be mounted.
    fn live(&self) -> impl Iterator<Item = &(u32, RawVolume)> {
        self.whole.iter().filter(|(_, row)| row.state == volume_state::LIVE)
    }

    /// The error of a damaged row, if there is one.
    fn into_damage(self) -> Option<Error> {
        self.damaged.into_iter().map(|(_, error)| error).next()
    }

    /// A row that is not in use, and none of those that groups say to belong to: the row of such a group was lost, and
    /// a new volume must not take it for its own.
    fn free(&self, owners: &BTreeMap<u64, u64>) -> Result<u32> {
        let used =
            self.whole.iter().map(|(index, _)| index).chain(self.damaged.iter().map(|(index, _)| index));
        let used: Vec<u32> = used.copied().collect();
        let is_free = |index: &u32| !used.contains(index) && !owners.contains_key(&u64::from(*index));
        (0..ROWS as u32).find(is_free).ok_or_else(|| {
            Error::no_space(Resource::Limit, 0)
                .object(format!("the device has {ROWS} volumes"))
                .advice("remove one with nacre volume remove")
        })
    }
}

/// The places of a volume: of this name, or of the only one.
pub(crate) fn find(pm: &impl Pm, superblock: &Superblock, name: Option<&str>) -> Result<Geometry> {
    let rows = Rows::read(pm, superblock);
    let live: Vec<_> = rows.live().copied().collect();
    let names = live.iter().map(|(_, row)| row.name()).collect::<Vec<_>>().join(", ");
    let found = match (name, &live[..]) {
        (Some(name), _) => live.iter().find(|(_, row)| row.name() == name),
        (None, [only]) if rows.damaged.is_empty() => Some(only),
        (None, [_, ..]) => {
            return Err(Error::new(Kind::InvalidInput)
                .object(format!("a device with the volumes {names}"))
                .advice("say which one, as in DEVICE#NAME"));
        }
        (None, []) => None,
    };
    if let Some(&(index, row)) = found {
        return zones::geometry(pm, superblock, row.zone, index);
    }
    // The volume may be the one of a row that cannot be read.
    Err(rows.into_damage().unwrap_or_else(|| match name {
        Some(name) => Error::new(Kind::NotFound)
            .object(format!("volume {name} of a device with the volumes {names}"))
            .advice("nacre volume list shows them"),
        None => Error::new(Kind::NotFound)
            .object("a volume of the device")
            .advice("make one with nacre volume create"),
    }))
}

/// Reads the row of the volume, after the recovery of its zone.
pub(crate) fn read(pm: &impl Pm, superblock: &Superblock, geometry: &Geometry) -> Result<RawVolume> {
    let damaged = || Error::corrupt(format!("the row of volume {}", geometry.volume));
    let row = read_row(pm, superblock, geometry.volume)?.ok_or_else(damaged)?;
    let is_whole = row.state != volume_state::LIVE || geometry.inode(ROOT_INODE, row.root).is_some();
    if is_whole && row.zone == geometry.zone { Ok(row) } else { Err(damaged()) }
}

/// The summary of the file system on a device, without mounting it: of the only volume, or of all of them together.
pub(crate) fn probe(pm: &impl Pm) -> Result<Summary> {
    let found = superblock::read(pm)?;
    let rows = Rows::read(pm, &found.superblock);
    let live: Vec<_> = rows.live().map(|(_, row)| *row).collect();
    let is_whole = rows.damaged.is_empty();
    match &live[..] {
        [row] if is_whole => return Ok(summary(&found, row)),
        _ => {}
    }
    Ok(Summary {
        clean: is_whole && live.iter().all(|row| row.clean == 1),
        errors: live.iter().map(|row| row.errors).fold(rows.damaged.len() as u32, u32::saturating_add),
        mended: live.iter().map(|row| row.mended).fold(0, u64::saturating_add),
        mount_epoch: live.iter().map(|row| row.mount_epoch).max().unwrap_or(0),
        ..found.superblock.summary(found.valid)
    })
}

/// The summary of one volume, without mounting it.
pub fn probe_volume(pm: &impl Pm, name: Option<&str>) -> Result<Summary> {
    let found = superblock::read(pm)?;
    let geometry = find(pm, &found.superblock, name)?;
    Ok(summary(&found, &read(pm, &found.superblock, &geometry)?))
}

/// The summary of a volume: what the superblock says, and what its row does.
pub(crate) fn summary(found: &Found, row: &RawVolume) -> Summary {
    let times = TimeRange::of_version(found.superblock.raw.version);
    let of_device = found.superblock.summary(found.valid);
    Summary {
        uuid: Uuid::from_bytes(row.uuid),
        label: if row.name() == MAIN { of_device.label } else { row.name() },
        features: [row.features_compatible, 0, found.superblock.raw.features_incompatible],
        mount_epoch: row.mount_epoch,
        clean: row.clean == 1,
        errors: row.errors,
        mended: row.mended,
        last_error: (row.last_error != 0).then(|| times.unpack(row.last_error)).flatten(),
        ..of_device
    }
}

/// The volumes of a device, by the numbers of their rows. A check names those whose rows are damaged.
pub fn list(pm: &impl Pm) -> Result<Vec<VolumeSummary>> {
    let found = superblock::read(pm)?;
    let rows = Rows::read(pm, &found.superblock);
    Ok(rows.whole.iter().map(|(_, row)| row.summary()).collect())
}

/// The number of zones of a device.
pub fn zone_count(pm: &impl Pm) -> Result<u32> {
    Ok(zones::count(pm, &superblock::read(pm)?.superblock))
}

/// A part of a device that a process uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'n> {
    /// The zone of a volume: of this name, or of the only one.
    Volume(Option<&'n str>),
    /// All zones.
    Zones,
}

/// The bytes that stand for a part of a device in locks between processes. `None` if the device has one zone, which is
/// the whole device.
pub fn bytes_of(pm: &impl Pm, part: Part<'_>) -> Result<Option<Range<u64>>> {
    let found = superblock::read(pm)?;
    if zones::count(pm, &found.superblock) < 2 {
        return Ok(None);
    }
    Ok(Some(match part {
        Part::Volume(name) => {
            let row = find(pm, &found.superblock, name)?.zone_row();
            row..row + size_of::<RawZone>() as u64
        }
        Part::Zones => {
            let rows = Halves::of(&found.superblock, region::ZONES)?;
            rows.start..rows.start + rows.len
        }
    }))
}

/// The error that [`create`] would end with, as far as it is known before anything is written.
pub fn would_create(pm: &impl Pm, new: &NewVolume) -> Result<()> {
    let found = superblock::read(pm)?;
    found.superblock.check_writable()?;
    check_name(&new.name)?;
    put_text(&mut [0; 64], &new.name, "the name of a volume")?;
    check_quota(new.quota, &zones::geometry(pm, &found.superblock, new.zone, 0)?)?;
    if Rows::read(pm, &found.superblock).live().any(|(_, row)| row.name() == new.name) {
        return Err(Error::new(Kind::Exists).object(format!("volume {}", new.name)));
    }
    Ok(())
}

/// Makes a volume. A crash leaves none, or a whole one.
pub fn create<P: Pm>(pm: Arc<P>, new: &NewVolume) -> Result<VolumeSummary> {
    would_create(&*pm, new)?;
    let found = superblock::read(&*pm)?;
    let geometry = zones::geometry(&*pm, &found.superblock, new.zone, 0)?;
    finish(&pm, &found.superblock, &geometry)?;
    make(pm, &found.superblock, new)
}

/// Makes a volume in a row that is not in use.
pub(crate) fn make<P: Pm>(pm: Arc<P>, superblock: &Superblock, new: &NewVolume) -> Result<VolumeSummary> {
    let owners = open_none(&*pm, superblock, new.zone, true)?.owners();
    let index = Rows::read(&*pm, superblock).free(&owners)?;
    let geometry = zones::geometry(&*pm, superblock, new.zone, index)?;
    let recovered = recover(&*pm, &geometry)?;
    let mut row = RawVolume::new_zeroed();
    row.state = volume_state::GOING;
    if Mistake::VolumeRowEarly.is_made(&*pm) {
        row.state = volume_state::LIVE;
    }
    row.uuid = new.uuid.unwrap_or_else(Uuid::new_v4).into_bytes();
    put_text(&mut row.label, &new.name, "the name of a volume")?;
    row.preset = superblock.raw.preset;
    (row.zone, row.quota) = (new.zone, new.quota);
    row.hash_seed = seed_of(row.uuid);
    row.created = TimeRange::of_version(FORMAT_VERSION).pack(new.now);
    row.orphans = row.orphans.map(|_| seal_any(0, geometry.seed(geometry.row())));
    let fs = open(pm, superblock.clone(), geometry, row, &recovered, false)?;
    fs.take_up(fs.count()?);
    fs.change(|change| {
        change.put_zone(|zone| zone.counted = 0)?;
        change.put_whole_row(&row);
        change.commit()
    })?;
    let new_root = NewInode {
        uid: new.root_owner.0,
        gid: new.root_owner.1,
        ..NewInode::of_root(FileKind::Directory, 0o755, new.now)
    };
    let root = fs.change(|change| {
        let id = change.make_inode(&new_root, ROOT_INODE, 1, Purpose::Data)?;
        change.commit()?;
        Ok(id.number * INODE_SIZE)
    });
    let root = match root {
        Ok(root) => root,
        Err(error) => {
            release(&fs)?;
            return Err(error);
        }
    };
    let counts = *fs.counts.lock();
    fs.change(|change| {
        let mut whole = row;
        (whole.state, whole.root, whole.clean) = (volume_state::LIVE, root, 1);
        whole.keep(&counts);
        change.put_zone(|zone| zone.keep(&counts))?;
        change.put_whole_row(&whole);
        change.commit()?;
        *fs.row.lock() = whole;
        Ok(())
    })?;
    fs.settle_lanes()?;
    let row = fs.row.lock();
    Ok(row.summary())
}

/// Removes a volume with everything that it has. A crash leaves it whole, or the next change of volumes goes on.
pub fn remove<P: Pm>(pm: Arc<P>, name: &str) -> Result<()> {
    let found = superblock::read(&*pm)?;
    found.superblock.check_writable()?;
    let geometry = find(&*pm, &found.superblock, Some(name))?;
    let recovered = finish(&pm, &found.superblock, &geometry)?;
    let row = read(&*pm, &found.superblock, &geometry)?;
    let fs = open(pm, found.superblock, geometry, row, &recovered, false)?;
    fs.change(|change| {
        let mut going = row;
        going.state = volume_state::GOING;
        change.put_zone(|zone| zone.counted = 0)?;
        change.put_whole_row(&going);
        change.commit()
    })?;
    release(&fs)
}

/// Recovers a zone, and ends the removals in it that a crash interrupted. The result is that of the recovery, with the
/// sequences of now: operations go on above them.
pub(crate) fn finish<P: Pm>(pm: &Arc<P>, superblock: &Superblock, geometry: &Geometry) -> Result<Recovered> {
    let mut recovered = recover(&**pm, geometry)?;
    for (index, row) in Rows::read(&**pm, superblock).whole {
        if row.state == volume_state::GOING && row.zone == geometry.zone {
            let geometry = zones::geometry(&**pm, superblock, row.zone, index)?;
            release(&open(Arc::clone(pm), superblock.clone(), geometry, row, &recovered, false)?)?;
            let Recovered { sequence, done, .. } = recover(&**pm, &geometry)?;
            recovered = Recovered { sequence, done, ..recovered };
        }
    }
    Ok(recovered)
}

/// A zone without volumes.
pub(crate) fn open_none<'p, P: Pm>(
    pm: &'p P,
    superblock: &Superblock,
    zone: u32,
    read_only: bool,
) -> Result<Shared<&'p P>> {
    // A row behind all rows.
    let geometry = zones::geometry(pm, superblock, zone, ROWS as u32)?;
    let recovered = recover(pm, &geometry)?;
    open(Arc::new(pm), superblock.clone(), geometry, RawVolume::new_zeroed(), &recovered, read_only)
}

/// Gives up a volume whose row is lost: the row becomes one of a volume that is going, and the groups that name it in
/// a zone become free. So the next mount of the zone ends what a crash interrupts. Both copies of the row can be
/// stored to.
pub(crate) fn give_up<P: Pm>(pm: &P, superblock: &Superblock, zone: u32, index: u32) -> Result<()> {
    let geometry = zones::geometry(pm, superblock, zone, index)?;
    let recovered = recover(pm, &geometry)?;
    let mut row = RawVolume::new_zeroed();
    (row.state, row.zone) = (volume_state::GOING, zone);
    row.orphans = row.orphans.map(|_| seal_any(0, geometry.seed(geometry.row())));
    let fs = open(Arc::new(pm), superblock.clone(), geometry, row, &recovered, false)?;
    // Nothing is allocated, so that nothing needs to be counted.
    fs.take_up(Counts::none(&geometry, 0));
    fs.change(|change| {
        change.put_zone(|zone| zone.counted = 0)?;
        change.put_whole_row(&row);
        change.commit()
    })?;
    release(&fs)
}

/// The volumes of zones that are not mounted, after the recovery of these zones. The rows of the zones can be read.
pub(crate) fn all<P: Pm>(pm: &P, superblock: &Superblock, zones: &[u32]) -> Result<Vec<Geometry>> {
    let pm = Arc::new(pm);
    for &zone in zones {
        finish(&pm, superblock, &zones::geometry(&*pm, superblock, zone, 0)?)?;
    }
    let rows = Rows::read(&*pm, superblock).whole.into_iter().filter(|(_, row)| zones.contains(&row.zone));
    rows.map(|(index, row)| zones::geometry(&*pm, superblock, row.zone, index)).collect()
}

/// The zones of a check: the one of a volume or, without a name, all whose rows can be read.
pub(crate) fn zones_to_check(
    pm: &impl Pm,
    superblock: &Superblock,
    volume: Option<&str>,
) -> Result<Vec<u32>> {
    match volume {
        Some(_) => Ok(vec![find(pm, superblock, volume)?.zone]),
        None => Ok(zones::readable(pm, superblock)),
    }
}

/// A volume of a device that is not mounted. Volumes of one zone are changed one after the other: each goes on above
/// the sequences of the one before.
pub(crate) fn open_one<'p, P: Pm>(
    pm: &'p P,
    superblock: &Superblock,
    geometry: Geometry,
    read_only: bool,
) -> Result<Shared<&'p P>> {
    let recovered = recover(pm, &geometry)?;
    let row = read(pm, superblock, &geometry)?;
    open(Arc::new(pm), superblock.clone(), geometry, row, &recovered, read_only)
}

/// Frees all groups of a volume that is going, and then its row.
fn release<P: Pm>(fs: &Shared<P>) -> Result<()> {
    if Mistake::VolumeRemovedInSteps.is_made(&*fs.pm) {
        fs.change(|change| {
            change.put_whole_row(&RawVolume::new_zeroed());
            change.commit()
        })?;
    }
    // Blocks of metadata change their purpose.
    fs.settle_lanes()?;
    for group in fs.geometry.groups() {
        // A map that cannot be read keeps its group alone. A check reports it.
        let Ok((_, of_group)) = fs.read_map(group) else { continue };
        if matches!(fs.geometry.use_of(of_group), Use::Free | Use::Other(_)) {
            continue;
        }
        fs.change(|change| {
            let index = change.group(group)?;
            let edit = &mut change.groups[index];
            let kept = bits::either(&bits::run(0, fs.geometry.regions_in(group)), &edit.bad);
            edit.freed = bits::without(&bits::without(&[u64::MAX; 8], &edit.old), &kept);
            edit.purpose = purpose::FREE;
            change.commit()
        })?;
    }
    let counts = fs.count();
    fs.change(|change| {
        change.put_zone(|zone| match &counts {
            Ok(counts) => zone.keep(counts),
            Err(_) => zone.counted = 0,
        })?;
        change.put_whole_row(&RawVolume::new_zeroed());
        change.commit()
    })?;
    fs.settle_lanes()
}

/// Whether a volume can have a name.
fn check_name(name: &str) -> Result<()> {
    let is_bad = |c: char| c.is_control() || matches!(c, '#' | '/' | ',');
    if name.is_empty() || name.contains(is_bad) {
        return Err(Error::new(Kind::InvalidInput)
            .object(format!("the name of a volume: {name:?}"))
            .advice("it has at least one character, and neither '#', '/' nor ','"));
    }
    Ok(())
}

/// Whether a volume below a quota has room for its root, a first name, what metadata keeps for itself, and some data.
fn check_quota(quota: u64, geometry: &Geometry) -> Result<()> {
    // The root and the names in it have a pool block each, and metadata keeps an eighth: see `Counts`.
    let least = geometry.pool_block * 5 / 2 / BLOCK_SIZE;
    if quota == 0 || quota >= least {
        return Ok(());
    }
    let [given, least] = [quota, least].map(|blocks| size::exact(blocks * BLOCK_SIZE));
    Err(Error::new(Kind::InvalidInput)
        .object(format!("a quota of {given}, where the least is {least}"))
        .advice("give more: with less, metadata leaves no room for a file"))
}

impl RawVolume {
    /// The counts, as a clean unmount keeps them.
    pub(crate) fn counts(&self) -> [u64; 4] {
        [self.free_blocks, self.free_in_pools, self.used_blocks, self.inodes]
    }

    /// Its name.
    pub(crate) fn name(&self) -> String {
        let len = self.label.iter().position(|&byte| byte == 0).unwrap_or(self.label.len());
        String::from_utf8_lossy(&self.label[..len]).into_owned()
    }

    fn summary(&self) -> VolumeSummary {
        let is_clean = self.clean == 1;
        VolumeSummary {
            name: self.name(),
            uuid: Uuid::from_bytes(self.uuid),
            zone: self.zone,
            quota: (self.quota != 0).then_some(self.quota),
            clean: is_clean,
            used: is_clean.then_some(self.used_blocks),
            inodes: is_clean.then_some(self.inodes),
            going: self.state == volume_state::GOING,
        }
    }

    /// Takes these counts.
    pub(crate) fn keep(&mut self, counts: &Counts) {
        let Counts { free, unowned, in_pools, used, inodes, .. } = *counts;
        [self.free_blocks, self.free_in_pools, self.used_blocks, self.inodes] =
            [free.saturating_sub(unowned), in_pools, used, inodes];
    }
}

impl<P: Pm> Shared<P> {
    /// The rows that the groups of the zone say to belong to, other than that of this volume, and how many groups do.
    /// A map that cannot be read says nothing.
    pub(crate) fn owners(&self) -> BTreeMap<u64, u64> {
        let mut owners = BTreeMap::new();
        for group in self.geometry.groups() {
            if let Ok((_, of_group)) = self.read_map(group)
                && let Use::Other(owner) = self.geometry.use_of(of_group)
            {
                *owners.entry(owner).or_default() += 1;
            }
        }
        owners
    }

    /// Changes the row in an operation of its own.
    pub(crate) fn change_row(&self, edit: impl Fn(&mut RawVolume)) -> Result<()> {
        self.change_rows(edit, |_| {})
    }

    /// Changes the rows of the volume and of the zone in an operation of its own.
    pub(crate) fn change_rows(
        &self,
        edit: impl Fn(&mut RawVolume),
        edit_zone: impl Fn(&mut RawZone),
    ) -> Result<()> {
        self.change(|change| {
            change.put_zone(&edit_zone)?;
            let mut row = self.row.lock();
            let after = change.put_row(&row, &edit);
            change.commit()?;
            *row = after;
            Ok(())
        })
    }
}

impl<P: Pm> Change<'_, P> {
    /// Where the row is, whose primary is looked at: it was read at the mount, and is to be whole before an operation
    /// has it as an item.
    fn row_to_change(&self) -> u64 {
        let (fs, address) = (self.fs, self.fs.geometry.row());
        let mut bytes = [0; VOLUME_BYTES];
        let what = || format!("the row of volume {}", fs.geometry.volume);
        // If both copies are lost, this operation writes them anew.
        let _ = fs.read_entry(address, &mut bytes, |bytes| is_row(bytes, fs.geometry.seed(address)), what);
        address
    }

    /// The row after an edit, which becomes a part of this operation. The caller has its lock until the commit.
    pub(crate) fn put_row(&mut self, row: &RawVolume, edit: impl Fn(&mut RawVolume)) -> RawVolume {
        let mut after = *row;
        edit(&mut after);
        let address = self.row_to_change();
        after.checksum = after.compute_checksum(self.fs.geometry.seed(address));
        self.item(address, &after.as_bytes()[..VOLUME_BYTES]);
        after
    }

    /// A row with its lists of orphans becomes a part of this operation. Zeros are a row that is not in use.
    fn put_whole_row(&mut self, row: &RawVolume) {
        let mut row = *row;
        let address = self.row_to_change();
        if row.state != 0 {
            row.checksum = row.compute_checksum(self.fs.geometry.seed(address));
        }
        self.item(address, row.as_bytes());
    }
}
