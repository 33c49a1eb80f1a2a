//! The tiers of a file system: devices below persistent memory, found, added, listed and removed; and moving files between
//! them and persistent memory.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use nacre_control::TierInfo;
use nacre_engine::{BLOCK_SIZE, Error, FileBlock, FileKind, Kind, Names, Result, Tier, TierState};
use nacre_layout_parts::lifecycle::{Lifecycle, OverTiers};
use nacre_layout_parts::superblock::Summary;
use nacre_media::block::{BlockDevice, DiskOptions, Pages, RealDisk};
use nacre_media::disk::Disk;
use nacre_media::{Frames, PmOptions, RealPm, resize_unowned};
use nacre_mover::{Budget, Drained, LargeWrites, NOT_ATTACHED, TieredFs, TrimFrom, Trimmed};
use nacre_tiers::{Attachment, Label};
use uuid::Uuid;

use crate::fs::{FileSystem, OpenOptions};
use crate::keeper::local_ahead_s;
use crate::layout::{AnyNode, of_kind};
use crate::mkfs::{Prepared, prepare_tier};
use crate::mover::traffic_of;
use crate::preset::{LayoutKind, Preset};
use crate::probe::probe;
use crate::tier_admin::{MovedFiles, TierAdmin};
use crate::tier_settings::TierSettings;

/// The rank of a tier of unknown speed.
const USUAL_RANK: u8 = 2;
/// The ways out where one is missing.
const MISSING: &str = "give its place to nacre tier online; until then choose another tier";
/// Where the kernel names block devices.
const BLOCK_DEVICES: &str = "/sys/class/block";

/// A device that may be a tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierDevice {
    /// A file or a block device.
    pub path: PathBuf,
    /// The disk that it stands for: each access takes at least as long as there.
    pub emulation: Option<Disk>,
}

/// A device that becomes a tier.
#[derive(Debug, Clone)]
pub struct NewTier {
    /// Where it is.
    pub device: TierDevice,
    /// Size in bytes of a file that is not there or empty.
    pub size: Option<u64>,
    /// Smaller is faster; devices of one rank are used alike. By default a disk that turns has 3, another one 2.
    pub rank: Option<u8>,
    /// Overwrite the content of the device, if any.
    pub force: bool,
}

/// Over a mounted layout, with the devices of its tiers. A device that cannot be found, or used, is missing: only
/// accesses to data on it fail.
pub(crate) fn mount<L: OverTiers<Pm = RealPm>>(
    layout: L,
    summary: &Summary,
    options: &OpenOptions,
    frames: Arc<Frames>,
) -> Result<TieredFs<L, RealDisk>> {
    let beside = PathBuf::from(layout.pm().name());
    let preset = options.preset.or_else(|| summary.preset.parse().ok());
    let large = match preset {
        Some(Preset::Tpfs) => LargeWrites::ToDisk,
        _ => LargeWrites::WhereBlocksMove,
    };
    let mover =
        TieredFs::with_frames(layout, options.tier_settings.in_preset(preset).mover_options()?, frames)
            .with_local_time(local_ahead_s)
            .with_large_writes(large);
    let known = mover.layout().tiers();
    if known.is_empty() && options.tiers.is_empty() {
        return Ok(mover);
    }
    let is_read_only = mover.layout().is_read_only();
    let attach = |device: &TierDevice| -> Result<u8> {
        let token = (!is_read_only).then(new_token);
        let number =
            open(device, is_read_only).and_then(|opened| mover.attach(opened, summary.uuid, token))?;
        if !is_read_only {
            note_path(&mover, number, &device.path);
        }
        Ok(number)
    };
    for given in &options.tiers {
        match attach(given) {
            Ok(_) => {}
            // It is missing, unless it is found elsewhere, or fails: what is on it does, and nothing else.
            Err(error)
                if !known.is_empty()
                    && matches!(
                        error.kind(),
                        Kind::NotFound
                            | Kind::DeviceLost
                            | Kind::Media
                            | Kind::NoSpace
                            | Kind::ReadOnly
                            | Kind::AccessDenied
                    ) =>
            {
                mover.tiers().tell_later(error.to_string());
            }
            Err(error) => return Err(error),
        }
    }
    let is_missing = |tier: &&Tier| mover.tiers().attachment(tier.number).is_none_or(|at| at.device.is_err());
    let missing: Vec<Tier> = known.iter().filter(is_missing).copied().collect();
    if !missing.is_empty() {
        look_for(&mover, &missing, &beside, summary.uuid, attach);
    }
    if options.require_tiers {
        require_all(&mover)?;
    }
    Ok(mover)
}

/// Attaches those of the tiers that can be found, where they were last or anywhere; of the others it is said why not.
fn look_for(
    mover: &dyn TierAdmin,
    missing: &[Tier],
    beside: &Path,
    volume: Uuid,
    attach: impl Fn(&TierDevice) -> Result<u8>,
) {
    let last = |tier: &Tier| mover.tier_path(tier.number);
    let mut paths: Vec<PathBuf> = missing.iter().filter_map(last).collect();
    paths.extend(candidates(beside, Path::new(BLOCK_DEVICES)));
    let mut unreadable = Vec::new();
    // Also what was found on the way: each would say that it is in use, by us.
    let is_ours = |path: &Path| {
        let known = mover.known();
        let device = |tier: &Tier| mover.devices().attachment(tier.number)?.device.ok();
        known.iter().filter_map(device).any(|device| is_same(Some(&device), path))
    };
    for path in paths {
        if is_ours(&path) {
            continue;
        }
        let uuid = match tier_at(&path, volume) {
            Ok(Some(uuid)) => uuid,
            Ok(None) => continue,
            Err(error) => {
                unreadable.push(error.to_string());
                continue;
            }
        };
        let Some(tier) = missing.iter().find(|tier| tier.uuid == uuid.into_bytes()) else { continue };
        let device = TierDevice { path, emulation: None };
        // There may be older copies beside it.
        let is_there = mover.devices().attachment(tier.number).is_some_and(|at| at.device.is_ok());
        if !is_there && let Err(error) = attach(&device) {
            mover.devices().detach(tier.number, error.to_string());
        }
    }
    unreadable.dedup();
    // Of the others it was said why they are not.
    let is_unheard_of = |tier: &&Tier| {
        let why = mover.devices().attachment(tier.number).and_then(|at| at.device.err());
        why.is_some_and(|why| why == NOT_ATTACHED)
    };
    for tier in missing.iter().filter(is_unheard_of) {
        let others = unreadable.iter().map(|error| format!("; a tier that cannot be read: {error}"));
        let why = format!("{}{}", not_found(last(tier).as_deref()), others.collect::<String>());
        mover.devices().detach(tier.number, why);
    }
}

/// Why a tier is missing of which no device was found, with its last place.
fn not_found(last: Option<&Path>) -> String {
    let last = last.map_or_else(String::new, |path| format!(", last it was {}", path.display()));
    format!("it was not found{last}")
}

/// Refuses to go on where a tier is missing.
fn require_all(mover: &dyn TierAdmin) -> Result<()> {
    let known = mover.known();
    let why = |tier: &Tier| {
        let why = mover.devices().attachment(tier.number)?.device.err()?;
        Some(format!("tier {}: {why}", tier.number))
    };
    refuse_missing(&known.iter().filter_map(why).collect::<Vec<_>>())
}

/// Refuses to go on where a mount would find no device of a tier. Nothing is attached, so that an older copy counts as
/// one.
pub(crate) fn would_require_all(
    pm: &RealPm,
    layout: LayoutKind,
    volume: Uuid,
    given: &[TierDevice],
) -> Result<()> {
    let known = of_kind!(layout, Layout => Layout::known_tiers(pm))?;
    let last = of_kind!(layout, Layout => Layout::known_tier_paths(pm))?;
    if known.is_empty() {
        return Ok(());
    }
    let given = given.iter().map(|device| device.path.clone());
    let noted = last.iter().map(|(_, path)| path.clone());
    let beside = candidates(Path::new(pm.name()), Path::new(BLOCK_DEVICES));
    let places = given.chain(noted).chain(beside);
    let found: Vec<Uuid> = places.filter_map(|path| tier_at(&path, volume).ok().flatten()).collect();
    let missing = known.iter().filter(|tier| !found.contains(&Uuid::from_bytes(tier.uuid)));
    let why = |tier: &Tier| {
        let last = last.iter().find(|(number, _)| *number == tier.number).map(|(_, path)| path.as_path());
        format!("tier {}: {}", tier.number, not_found(last))
    };
    refuse_missing(&missing.map(why).collect::<Vec<_>>())
}

fn refuse_missing(missing: &[String]) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let error = Error::new(Kind::DeviceLost).operation("require all tiers").object(missing.join("; "));
    Err(error.by_object().advice(
        "the option tier=PATH gives the place of a tier; without tiers=all the mount works, and only blocks on \
         missing tiers fail",
    ))
}

/// Notes where a tier is, for the next mount. Where that fails, or has no room, it is looked for as if it had not been noted.
fn note_path(mover: &dyn TierAdmin, number: u8, path: &Path) -> bool {
    let absolute = std::path::absolute(path);
    absolute.is_ok_and(|path| mover.note_tier_path(number, &path))
}

/// A number that no other mount chooses.
fn new_token() -> u64 {
    (Uuid::new_v4().as_u128() as u64).max(1)
}

fn open(device: &TierDevice, read_only: bool) -> Result<RealDisk> {
    let options = DiskOptions { read_only, emulation: device.emulation.clone(), ..DiskOptions::default() };
    RealDisk::open(&device.path, &options)
}

/// The places where a tier without a given path may be: the directory of the PM file, and block devices.
fn candidates(beside: &Path, block_devices: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    let files = beside.parent().and_then(|dir| fs::read_dir(dir).ok());
    for entry in files.into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            paths.push(entry.path());
        }
    }
    for entry in fs::read_dir(block_devices).into_iter().flatten().flatten() {
        paths.push(Path::new("/dev").join(entry.file_name()));
    }
    paths
}

/// The tier of this file system that a path leads to. `None` if it is no tier. An error if a tier cannot be looked at,
/// or is damaged.
fn tier_at(path: &Path, volume: Uuid) -> Result<Option<Uuid>> {
    use std::io::Read;
    // Most are none: that shows without locking them. Others, as pipes, would block in open.
    let is_device = |metadata: fs::Metadata| metadata.is_file() || metadata.file_type().is_block_device();
    let mut magic = [0; 8];
    let is_tier = fs::metadata(path).is_ok_and(is_device)
        && fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok()
        && magic == *b"nacreTIR";
    if !is_tier {
        return Ok(None);
    }
    let device = RealDisk::open(path, &DiskOptions { read_only: true, ..DiskOptions::default() })?;
    let label = Label::read(&device)?;
    Ok(label.filter(|label| label.volume() == volume).map(|label| label.uuid()))
}

/// Whether a path leads to a tier's device.
fn is_same(device: Option<&str>, path: &Path) -> bool {
    let there = device.and_then(|device| fs::canonicalize(device).ok());
    there.is_some() && there == fs::canonicalize(path).ok()
}

/// Those of these tiers of a file system, by their paths, that its next mount does not find by itself.
pub fn lost_tiers(device: impl AsRef<Path>, tiers: &[NewTier]) -> Result<Vec<&Path>> {
    let device = device.as_ref();
    let pm = RealPm::open(device, &PmOptions { read_only: true, ..PmOptions::default() })?;
    let (layout, _) = probe(&pm)?;
    let known = of_kind!(layout, Layout => Layout::known_tier_paths(&pm))?.into_iter().map(|(_, path)| path);
    let places: Vec<PathBuf> = known.chain(candidates(device, Path::new(BLOCK_DEVICES))).collect();
    let is_lost = |path: &&Path| {
        let real = fs::canonicalize(path).ok();
        real.is_none() || !places.iter().any(|place| fs::canonicalize(place).ok() == real)
    };
    Ok(tiers.iter().map(|tier| tier.device.path.as_path()).filter(is_lost).collect())
}

/// How fast a device is, as far as the kernel says.
fn rank_of(path: &Path) -> u8 {
    // A file may have the name of one.
    let is_block = fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
    let device = fs::canonicalize(path).ok().filter(|_| is_block);
    let turns = device.is_some_and(|device| {
        device.file_name().is_some_and(|name| turns(&Path::new(BLOCK_DEVICES).join(name)))
    });
    if turns { USUAL_RANK + 1 } else { USUAL_RANK }
}

/// Whether a block device is rotational, as the kernel reports it there. The report for a partition is with its disk,
/// which is the directory above the one that the link leads to.
fn turns(device: &Path) -> bool {
    ["queue/rotational", "../queue/rotational"]
        .iter()
        .find_map(|name| fs::read_to_string(device.join(name)).ok())
        .is_some_and(|text| text.trim() == "1")
}

impl FileSystem {
    pub(crate) fn mover(&self) -> Result<&dyn TierAdmin> {
        let layout = self.inner.vfs.layout();
        layout.mover().ok_or_else(|| {
            Error::new(Kind::Unsupported)
                .object(format!("tiers on the layout {}", layout.name()))
                .advice("make the file system with one of the presets nacre, nova, tpfs, bpfs and acbpfs")
        })
    }

    /// A number that no other mount chooses; none for a mount that changes nothing.
    fn token(&self) -> Result<Option<u64>> {
        Ok((!self.mover()?.is_read_only()).then(new_token))
    }

    fn volume(&self) -> Result<Uuid> {
        Ok(self.mover()?.volume())
    }

    /// The tiers.
    pub fn tiers(&self) -> Vec<TierInfo> {
        let Ok(mover) = self.mover() else { return Vec::new() };
        let info = |tier: Tier| {
            let space = mover.space(tier.number);
            let attached = mover.devices().attachment(tier.number);
            let Attachment { device, errors, failing, io } = attached.unwrap_or_else(|| Attachment {
                device: Err(NOT_ATTACHED.into()),
                errors: 0,
                failing: None,
                io: None,
            });
            TierInfo {
                number: tier.number,
                uuid: Uuid::from_bytes(tier.uuid).to_string(),
                size: space.blocks * BLOCK_SIZE,
                free: space.free * BLOCK_SIZE,
                leaked: space.leaked * BLOCK_SIZE,
                rank: tier.rank,
                draining: tier.state == TierState::Draining,
                device: device.as_ref().ok().cloned(),
                missing: device.err(),
                errors,
                failing,
                io: io.map(|io| io.as_str().to_owned()),
                traffic: traffic_of(mover.devices().traffic_of(tier.number)),
            }
        };
        mover.known().into_iter().map(info).collect()
    }

    /// Registers a function that is told, in words, when a tier is missing, is there again, fails or works again: of
    /// each once, and now of those that are missing. Only the first registration has an effect.
    pub fn on_tiers(&self, tell: impl Fn(&str) + Send + Sync + 'static) {
        if let Ok(mover) = self.mover() {
            mover.devices().listen(Box::new(tell));
        }
    }

    /// From now on data comes to tiers and from there as these settings say; settings left open are as in TPFS.
    ///
    /// [`InvalidInput`](Kind::InvalidInput) for values that cannot be had, [`Unsupported`](Kind::Unsupported) for a
    /// layout without tiers; then all is as it was.
    pub fn set_tiers(&self, settings: &TierSettings) -> Result<()> {
        let mover = self.mover()?;
        let options = settings.in_preset(mover.preset()).mover_options()?;
        mover.change(&options);
        Ok(())
    }

    /// Whether an error is that of a missing tier, which the [listener](FileSystem::on_tiers) was told of. The loss of
    /// another device is not, nor that of a tier that seemed to be there.
    pub fn is_of_missing_tier(&self, error: &Error) -> bool {
        let is_meant = |tier: &TierInfo| {
            tier.missing.is_some() && error.object_name().starts_with(&format!("tier {}: ", tier.number))
        };
        error.kind() == Kind::DeviceLost && self.tiers().iter().any(is_meant)
    }

    /// Refuses the cases that [`add_tier`](FileSystem::add_tier) would refuse before it changes anything.
    pub fn would_add_tier(&self, new: &NewTier) -> Result<()> {
        self.prepare_tier(new).map(drop)
    }

    fn prepare_tier(&self, new: &NewTier) -> Result<Prepared> {
        let path = &new.device.path;
        let _mover = self.mover()?;
        prepare_tier(new).map_err(|error| error.operation("add the tier").object(path.display().to_string()))
    }

    /// Makes a device a tier; gives its number.
    ///
    /// [`Exists`](Kind::Exists) when the device holds anything that is known, or a plain file anything at all, unless forced;
    /// [`Busy`](Kind::Busy) when it is in use.
    pub fn add_tier(&self, new: &NewTier) -> Result<u8> {
        let path = &new.device.path;
        let described = |error: Error| error.operation("add the tier").object(path.display().to_string());
        let prepared = self.prepare_tier(new)?;
        let mover = self.mover()?;
        let options = DiskOptions { emulation: new.device.emulation.clone(), ..DiskOptions::default() };
        let (device, is_new) = match prepared {
            Prepared::Absent(size) => (RealDisk::create(path, size, &options)?, true),
            Prepared::Present { signatures, resize, .. } => {
                resize.map_or(Ok(()), |size| resize_unowned(path, size))?;
                let device = RealDisk::open(path, &options)?;
                for signature in signatures {
                    wipe(&device, signature.offset, signature.len).map_err(described)?;
                }
                (device, false)
            }
        };
        let rank = new.rank.unwrap_or_else(|| rank_of(path));
        let added = mover.add(device, self.volume()?, rank, new_token(), SystemTime::now().into());
        if added.is_err() && is_new {
            // The file is ours and of no use; that it stays behind is not worth another error.
            let _ = fs::remove_file(path);
        }
        let number = added.map_err(described)?;
        note_path(mover, number, path);
        self.start_keeper()?;
        Ok(number)
    }

    /// Whether the next mount finds the device of a tier by itself, where it is now.
    pub fn is_tier_found(&self, number: u8) -> bool {
        let Ok(mover) = self.mover() else { return false };
        let device = mover.devices().attachment(number).and_then(|at| at.device.ok());
        let beside = mover.pm_path();
        let last = mover.tier_path(number);
        last.into_iter()
            .chain(candidates(beside, Path::new(BLOCK_DEVICES)))
            .any(|path| is_same(device.as_deref(), &path))
    }

    /// The tiers of a file system that was made a moment ago.
    pub(crate) fn add_tiers(&self, tiers: &[NewTier]) -> Result<()> {
        tiers.iter().try_for_each(|tier| {
            self.add_tier(tier).map(drop).map_err(|error| {
                error.advice("the file system is made, without this tier; nacre tier add adds it")
            })
        })
    }

    /// Gives the number of the tier that [`attach_tier`](FileSystem::attach_tier) would attach, with the errors that it would
    /// give; nothing is changed.
    pub fn would_attach_tier(&self, device: &TierDevice) -> Result<u8> {
        let described = describe_attach(device);
        self.require_unattached(device)?;
        let mover = self.mover()?;
        open(device, true).and_then(|device| mover.would_attach(&device, self.volume()?)).map_err(described)
    }

    fn require_unattached(&self, device: &TierDevice) -> Result<()> {
        let described = describe_attach(device);
        let _mover = self.mover()?;
        // It would say of itself that another process has it.
        if let Some(tier) = self.tiers().iter().find(|tier| is_same(tier.device.as_deref(), &device.path)) {
            return Err(described(
                Error::new(Kind::Busy)
                    .object(format!("tier {}", tier.number))
                    .advice("it has this device already: if it fails, take it offline first"),
            ));
        }
        Ok(())
    }

    /// Attaches the device of a tier that is missing, or has come back; gives its number.
    pub fn attach_tier(&self, device: &TierDevice) -> Result<u8> {
        let described = describe_attach(device);
        self.require_unattached(device)?;
        let mover = self.mover()?;
        let token = self.token()?;
        let number = open(device, token.is_none())
            .and_then(|device| mover.attach(device, self.volume()?, token))
            .map_err(&described)?;
        if token.is_some() {
            note_path(mover, number, &device.path);
            self.start_keeper().map_err(described)?;
        }
        Ok(number)
    }

    /// Takes a tier's device away: accesses to data on it fail until it is attached again.
    pub fn detach_tier(&self, number: u8) -> Result<()> {
        self.mover()?.detach(number, self.token()?, "it was taken offline")
    }

    /// Moves everything that is on a tier to other tiers or, if these have no room, up to PM. Nothing new is placed on
    /// it from then on. It ends with its budget; moved data stays moved, and the next call goes on from there.
    ///
    /// [`NoSpace`](Kind::NoSpace) when nothing else has room, before anything is changed where that is known then;
    /// [`Busy`](Kind::Busy) while another call drains it.
    pub fn drain_tier(&self, number: u8, budget: &Budget<'_>) -> Result<Drained> {
        let mover = self.mover()?;
        if mover.known().iter().any(|tier| tier.number == number && tier.state == TierState::Active) {
            // Data that waits in DRAM may have its reservation there.
            self.sync()?;
            mover.would_drain(number)?;
        }
        mover.drain(number, budget)
    }

    /// Refuses the cases that [`drain_tier`](FileSystem::drain_tier) would refuse before it changes anything.
    pub fn would_drain_tier(&self, number: u8) -> Result<()> {
        self.mover()?.would_drain(number)
    }

    /// Places blocks on a tier again that was being drained.
    pub fn use_tier(&self, number: u8) -> Result<()> {
        self.mover()?.set_state(number, TierState::Active)
    }

    /// Removes a tier on which nothing is any more. [`Busy`](Kind::Busy) otherwise: drain it first.
    pub fn remove_tier(&self, number: u8) -> Result<()> {
        self.mover()?.remove(number)
    }

    /// Tells the device of a tier which of its blocks are free, from one on, in runs of at least `least` bytes. It ends
    /// with its budget; the next call goes on from there.
    ///
    /// [`DeviceLost`](Kind::DeviceLost) for a tier that is missing.
    pub fn trim_tier(&self, number: u8, from: TrimFrom, least: u64, budget: &Budget<'_>) -> Result<Trimmed> {
        let mover = self.mover()?;
        is_there(mover, number)?;
        mover.trim(number, from, least, budget)
    }

    /// Moves the blocks of a file to a tier; gives the number of bytes that moved.
    pub fn demote(&self, path: impl AsRef<Path>, tier: u8) -> Result<u64> {
        self.move_at(path.as_ref(), Some(tier))
    }

    /// Brings the blocks of a file up to persistent memory; gives the number of bytes that moved.
    pub fn promote(&self, path: impl AsRef<Path>) -> Result<u64> {
        self.move_at(path.as_ref(), None)
    }

    /// Moves files, by the numbers of their inodes, to a tier, or up to PM if that is none, as far as the budget
    /// goes. The next call begins where this ended, with the files from the next
    /// one on, and a block of that.
    ///
    /// Small files move together to a tier. One that fails does so alone. A removed object, or one that is no file, has
    /// nothing to move.
    ///
    /// [`InvalidInput`](Kind::InvalidInput) for a tier that there is not, [`DeviceLost`](Kind::DeviceLost) for one that is
    /// missing.
    pub fn move_files(
        &self,
        inodes: &[u64],
        to: Option<u8>,
        from: FileBlock,
        budget: &Budget<'_>,
    ) -> Result<MovedFiles> {
        let mover = self.mover()?;
        to.map_or(Ok(()), |tier| is_there(mover, tier))?;
        let done = mover.move_files(inodes, to, from, budget);
        Ok(MovedFiles { moved: done.moved * BLOCK_SIZE, ..done })
    }

    fn move_at(&self, path: &Path, to: Option<u8>) -> Result<u64> {
        let mover = self.mover()?;
        let node: AnyNode = self.inner.node(path, true)?;
        let layout = self.inner.vfs.layout();
        if layout.kind(&node) != FileKind::Regular {
            return Err(Error::new(Kind::InvalidInput)
                .object(path.display().to_string())
                .advice("only files have blocks that move"));
        }
        mover.move_file(layout.id(&node).number, to).map(|blocks| blocks * BLOCK_SIZE)
    }
}

/// Says of an error that it is one of attaching this device.
fn describe_attach(device: &TierDevice) -> impl Fn(Error) -> Error {
    let path = device.path.display().to_string();
    move |error| error.operation("attach the tier").object(path.clone())
}

/// Whether a tier can be moved to: otherwise each file would fail for that.
fn is_there(mover: &dyn TierAdmin, number: u8) -> Result<()> {
    if mover.known().iter().all(|tier| tier.number != number) {
        return Err(Error::new(Kind::InvalidInput)
            .object(format!("tier {number}"))
            .advice("there is no such tier; nacre tier list shows them"));
    }
    match mover.devices().attachment(number) {
        Some(Attachment { device: Err(why), .. }) => {
            Err(Error::new(Kind::DeviceLost).object(format!("tier {number}: {why}")).advice(MISSING))
        }
        _ => Ok(()),
    }
}

/// Zeroes a mark, so that the device is no longer taken for its old content.
fn wipe(device: &RealDisk, offset: u64, len: u64) -> Result<()> {
    if offset + len > device.len() {
        return Ok(()); // it was cut off
    }
    let (first, end) = (offset - offset % BLOCK_SIZE, (offset + len).next_multiple_of(BLOCK_SIZE));
    let mut block = Pages::new((end.min(device.len()) - first) as usize);
    device.read(first, &mut block)?;
    let from = (offset - first) as usize;
    block[from..from + len as usize].fill(0);
    device.write(first, &block)?;
    device.flush().map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::{Path, PathBuf};

    use super::{NewTier, TierDevice, USUAL_RANK, candidates, rank_of, turns};
    use crate::mkfs::{MkfsOptions, would_make};
    use crate::{FileSystem, OpenOptions, Preset};

    /// One of them was forgotten.
    #[test]
    fn a_refusal_of_tiers_names_the_presets_that_have_some() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let options = MkfsOptions { preset: Preset::Pmfs, ..MkfsOptions::with_size(32 << 20) };
        let fs = FileSystem::create(path("pm"), &options, &OpenOptions::default()).unwrap();
        let device = TierDevice { path: path("disk"), emulation: None };
        let tier = NewTier { device, size: Some(64 << 20), rank: None, force: false };
        let with_tier = MkfsOptions { tiers: vec![tier], ..options };
        let refusals = [fs.mover().err(), would_make(path("other"), &with_tier).err()];
        for refusal in refusals.map(|error| error.unwrap().to_string()) {
            let mut words = refusal.split(|letter: char| !letter.is_alphanumeric() && letter != '-');
            for preset in Preset::ALL {
                let has_tiers = preset.layout().capabilities().max_tiers > 0;
                assert_eq!(
                    words.clone().any(|word| word == preset.as_str()),
                    has_tiers,
                    "{preset}: {refusal}"
                );
            }
            assert!(words.any(|word| word == "inplace"));
        }
    }

    /// What the kernel says of two disks, the first of which turns and has a partition, and of what has no queue.
    fn devices(dir: &Path) -> PathBuf {
        let class = dir.join("class/block");
        fs::create_dir_all(&class).unwrap();
        for (device, rotational) in
            [("sda", Some("1\n")), ("sda/sda1", None), ("nvme0n1", Some("0\n")), ("strange", None)]
        {
            let place = dir.join("devices").join(device);
            fs::create_dir_all(place.join("queue")).unwrap();
            match rotational {
                Some(text) => fs::write(place.join("queue/rotational"), text).unwrap(),
                None => fs::remove_dir(place.join("queue")).unwrap(),
            }
            symlink(&place, class.join(place.file_name().unwrap())).unwrap();
        }
        class
    }

    /// A partition was taken for a disk that does not turn.
    #[test]
    fn a_disk_that_turns_and_its_partitions_are_slower() {
        let dir = tempfile::tempdir().unwrap();
        let class = devices(dir.path());
        let slow = ["sda", "sda1", "nvme0n1", "strange", "gone"].map(|name| turns(&class.join(name)));
        assert_eq!(slow, [true, true, false, false, false]);
        // Neither a file of that name nor what is not there is a device.
        let file = dir.path().join("sda");
        fs::write(&file, "").unwrap();
        assert_eq!([rank_of(&file), rank_of(Path::new("/dev/gone"))], [USUAL_RANK; 2]);
    }

    #[test]
    fn tiers_are_looked_for_beside_the_memory_and_on_all_block_devices() {
        let dir = tempfile::tempdir().unwrap();
        let class = devices(dir.path());
        let beside = dir.path().join("pm");
        let file = dir.path().join("disk");
        [&beside, &file].into_iter().for_each(|path| fs::write(path, "").unwrap());
        let mut found = candidates(&beside, &class);
        found.sort_unstable();
        let devices = ["nvme0n1", "sda", "sda1", "strange"].map(|name| Path::new("/dev").join(name));
        let mut expected = [vec![beside.clone(), file.clone()], devices.to_vec()].concat();
        expected.sort_unstable();
        assert_eq!(found, expected);
        // Without the one or the other.
        assert_eq!(candidates(&beside, Path::new("/nowhere")).len(), 2);
        assert_eq!(candidates(Path::new("/nowhere/pm"), &class).len(), 4);
    }
}
