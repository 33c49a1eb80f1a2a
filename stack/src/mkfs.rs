//! Making a file system on a device or in a file.

use std::fs::{self, File};
use std::ops::RangeInclusive;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nacre_control::{DeviceInfo, VolumeInfo};
use nacre_engine::{BLOCK_SIZE, Error, Kind, Result, size};
use nacre_layout_parts::format::{MAX_DEVICE_SIZE, MIN_DEVICE_SIZE};
use nacre_layout_parts::lifecycle::{self, Lifecycle};
use nacre_media::block::{BlockDevice, DiskOptions, RealDisk};
use nacre_media::{Emulation, Pm, PmOptions, Promise, RealPm, resize_unowned};
use nacre_tiers::MIN_TIER_SIZE;
use uuid::Uuid;

use crate::fs::{FileSystem, OpenOptions, WriteBuffer};
use crate::in_use::require_free;
use crate::info::{device_info, volume_info};
use crate::layout::of_kind;
use crate::preset::{LayoutKind, Preset};
use crate::probe::first_trace;
use crate::signature::{self, NACRE, Signature};
use crate::tiers::NewTier;

/// The most bytes of a label.
const LABEL_SIZE: usize = 64;

/// The options of [`mkfs`].
#[derive(Debug, Clone)]
pub struct MkfsOptions {
    /// Size in bytes of a file that is not there or empty, a multiple of 4096. For a device or a file that has a size,
    /// none, or that size.
    pub size: Option<u64>,
    /// A name for people, at most 64 bytes.
    pub label: String,
    /// A name for machines; a random one when not given.
    pub uuid: Option<Uuid>,
    /// The layout and policies that mounts will use.
    pub preset: Preset,
    /// The layout, if it is not the preset's. Only the default preset, whose policies are of no layout, can have
    /// another.
    pub layout: Option<LayoutKind>,
    /// Overwrite written blocks in place, which is faster and not atomic, or copy them; for the layout `shadow` only. By
    /// default the preset chooses.
    pub overwrite_in_place: Option<bool>,
    /// Overwrite the content of the device, if any.
    pub force: bool,
    /// Owner and group of the root directory.
    pub root_owner: (u32, u32),
    /// The persistence domain that the device must have; less is refused.
    pub require: Promise,
    /// Slow the device down while the file system is made.
    pub emulation: Option<Emulation>,
    /// The devices that become its tiers; for the layout `log` only.
    pub tiers: Vec<NewTier>,
    /// The number of its zones; for the layout `pool` only.
    pub zones: u32,
}

impl Default for MkfsOptions {
    /// The default preset, with a root directory that belongs to the effective user.
    fn default() -> MkfsOptions {
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        MkfsOptions {
            size: None,
            label: String::new(),
            uuid: None,
            preset: Preset::default(),
            layout: None,
            overwrite_in_place: None,
            force: false,
            root_owner: owner,
            require: Promise::None,
            emulation: None,
            tiers: Vec::new(),
            zones: 1,
        }
    }
}

impl MkfsOptions {
    /// The layout that is made. [`InvalidInput`](Kind::InvalidInput) when the preset is of another one than the given
    /// layout.
    pub fn layout(&self) -> Result<LayoutKind> {
        match self.layout {
            Some(layout) if layout != self.preset.layout() && self.preset != Preset::default() => {
                Err(Error::new(Kind::InvalidInput)
                    .object(format!("preset {} on the layout {layout}", self.preset))
                    .advice("leave one of them out: a preset implies its layout"))
            }
            Some(layout) => Ok(layout),
            None => Ok(self.preset.layout()),
        }
    }

    /// The defaults for a file of `size` bytes.
    pub fn with_size(size: u64) -> MkfsOptions {
        MkfsOptions { size: Some(size), ..MkfsOptions::default() }
    }
}

/// Makes an empty file system on a device, or in a file, which is made when it is not there and a size is given.
///
/// [`Exists`](Kind::Exists) when the device holds anything that is known, or a plain file anything at all, unless
/// forced; [`Busy`](Kind::Busy) when it is in use.
///
/// ```
/// # fn main() -> nacre::Result<()> {
/// # let dir = tempfile::tempdir().expect("a directory");
/// # let path = dir.path().join("pm");
/// let options = nacre::MkfsOptions { label: "scratch".into(), ..nacre::MkfsOptions::with_size(64 << 20) };
/// let made = nacre::mkfs(&path, &options)?;
/// assert_eq!((made.label.as_str(), made.size), ("scratch", 64 << 20));
/// // What is there is not overwritten by mistake.
/// assert_eq!(nacre::mkfs(&path, &options).unwrap_err().kind(), nacre::Kind::Exists);
/// # Ok(())
/// # }
/// ```
pub fn mkfs(path: impl AsRef<Path>, options: &MkfsOptions) -> Result<VolumeInfo> {
    let path = path.as_ref();
    let (pm, info) = make(path, options).map_err(|error| error.operation("mkfs"))?;
    if !options.tiers.is_empty() {
        let open = OpenOptions { buffer: WriteBuffer::Never, ..OpenOptions::default() };
        let fs = FileSystem::over(pm, &open)?;
        fs.add_tiers(&options.tiers)?;
        fs.close()?;
    }
    Ok(info)
}

/// As [`mkfs`]; also gives the device, which stays open and locked.
pub(crate) fn make(path: &Path, options: &MkfsOptions) -> Result<(RealPm, VolumeInfo)> {
    let pm_options = pm_options(options);
    let layout = options.layout()?;
    let prepared = prepare_all(path, options)?;
    let pm = match prepared {
        Prepared::Absent(size) => RealPm::create(path, size, &pm_options)?,
        Prepared::Present { resize, .. } => {
            resize.map_or(Ok(()), |size| resize_unowned(path, size))?;
            RealPm::open(path, &pm_options)?
        }
    };
    let checked = check_zones(layout, pm.len(), options).and_then(|()| check_apart(&options.tiers));
    if let Err(error) = checked {
        if matches!(prepared, Prepared::Absent(_)) {
            let _ = fs::remove_file(path);
        }
        return Err(error);
    }
    if let Prepared::Present { signatures, .. } = &prepared {
        signature::wipe(&pm, signatures)?;
    }
    let properties = lifecycle::MkfsOptions {
        uuid: options.uuid,
        label: options.label.clone(),
        preset: options.preset.as_str().into(),
        root_owner: options.root_owner,
        now: SystemTime::now().into(),
        linear_names: options.preset.searches_names(),
        zones: options.zones,
        overwrite_in_place: options.overwrite_in_place.unwrap_or(options.preset.overwrites_in_place()),
    };
    let made = of_kind!(layout, Layout => Layout::mkfs(&pm, &properties));
    match made {
        Ok(summary) => {
            let retired = of_kind!(layout, Layout => Layout::retire_listed(&pm));
            retired.map_err(|error| error.object(path.display().to_string()))?;
            Ok((pm, volume_info(layout, &summary)))
        }
        Err(error) => {
            if matches!(prepared, Prepared::Absent(_)) {
                // The file is ours and of no use; that it stays behind is not worth another error.
                let _ = fs::remove_file(path);
            }
            Err(error.object(path.display().to_string()))
        }
    }
}

/// Refuses tiers that share bytes with the device of the file system, which is open: before anything is written. Other
/// users of a tier were looked for before.
fn check_apart(tiers: &[NewTier]) -> Result<()> {
    tiers.iter().try_for_each(|tier| match would_be_tier(tier) {
        Err(error) if error.kind() == Kind::Busy => {
            Err(Error::new(Kind::Busy).object(format!("tier {}", tier.device.path.display())).advice(
                "it shares bytes with the device of the file system; give a device of its own for each tier",
            ))
        }
        other => other.map(drop),
    })
}

fn pm_options(options: &MkfsOptions) -> PmOptions {
    PmOptions { require: options.require, emulation: options.emulation.clone(), ..PmOptions::default() }
}

fn check_zones(layout: LayoutKind, size: u64, options: &MkfsOptions) -> Result<()> {
    if layout == LayoutKind::Pool { nacre_layout_pool::check_zones(size, options.zones) } else { Ok(()) }
}

/// Refuses a device that is given twice: it would be in use by the first of its uses.
fn check_once(path: &Path, tiers: &[NewTier]) -> Result<()> {
    let mut known = vec![path];
    for tier in tiers {
        let place = tier.device.path.as_path();
        if known.iter().any(|known| is_same(known, place)) {
            return Err(Error::new(Kind::InvalidInput)
                .object(format!("{}: it is given twice", place.display()))
                .advice("give a device of its own for each tier"));
        }
        known.push(place);
    }
    Ok(())
}

fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().or_else(|_| std::path::absolute(path)).ok();
    real(one).is_some_and(|one| Some(one) == real(other))
}

/// Checks everything, before anything is overwritten.
fn prepare_all(path: &Path, options: &MkfsOptions) -> Result<Prepared> {
    let layout = options.layout()?;
    if !options.tiers.is_empty() && layout.capabilities().max_tiers == 0 {
        return Err(Error::new(Kind::Unsupported).object(format!("tiers on the layout {layout}")).advice(
            "the layouts log and shadow, as of the presets nacre, nova, tpfs, bpfs and acbpfs, can have them",
        ));
    }
    if options.overwrite_in_place.is_some() && layout.capabilities().in_place_feature == 0 {
        return Err(Error::new(Kind::Unsupported)
            .object(format!("a choice of how the layout {layout} overwrites"))
            .advice("the layout shadow, as of the presets bpfs and acbpfs, has it"));
    }
    if options.zones > 1 && layout.capabilities().max_volumes == 1 {
        return Err(Error::new(Kind::Unsupported)
            .object(format!("zones on the layout {layout}"))
            .advice("the layout pool, as of the preset spfs, can have them"));
    }
    if options.label.len() > LABEL_SIZE {
        return Err(Error::new(Kind::InvalidInput)
            .object(format!("a label of {}", size::exact(options.label.len() as u64)))
            .advice("give one of at most 64 bytes"));
    }
    check_once(path, &options.tiers)?;
    for tier in &options.tiers {
        let _prepared = prepare_tier(tier)?;
    }
    let prepared = prepare(path, options.size, options.force)?;
    let sizes = MIN_DEVICE_SIZE..=MAX_DEVICE_SIZE;
    let size = require_size(path, &prepared, sizes, "a file system takes 16 MiB to 16 TiB")?;
    size.map_or(Ok(()), |size| check_zones(layout, size, options))?;
    Ok(prepared)
}

/// The same for a tier.
pub(crate) fn prepare_tier(new: &NewTier) -> Result<Prepared> {
    let path = &new.device.path;
    let prepared = prepare(path, new.size, new.force)?;
    require_size(path, &prepared, MIN_TIER_SIZE..=u64::MAX, "a tier takes at least 1 MiB")?;
    Ok(prepared)
}

/// Refuses a size that cannot be had while the device is as it was. Gives the size, except for a devdax device.
fn require_size(
    path: &Path,
    prepared: &Prepared,
    sizes: RangeInclusive<u64>,
    advice: &'static str,
) -> Result<Option<u64>> {
    let name = path.display().to_string();
    let len = match prepared {
        Prepared::Absent(size) | Prepared::Present { resize: Some(size), .. } => *size,
        Prepared::Present { .. } => {
            let file = File::open(path).map_err(|error| open_error(&name, error))?;
            let is_devdax = file.metadata().is_ok_and(|found| found.file_type().is_char_device());
            // Its length is in sysfs; open gives the error.
            if is_devdax {
                return Ok(None);
            }
            length(&file, &name)?
        }
    };
    if sizes.contains(&(len - len % BLOCK_SIZE)) {
        return Ok(Some(len));
    }
    Err(Error::new(Kind::InvalidInput)
        .object(format!("{name}: a size of {}", size::exact(len)))
        .advice(advice))
}

/// The file system that [`mkfs`] would make.
#[derive(Debug, Clone)]
pub struct WouldMake {
    /// Its size in bytes.
    pub size: u64,
    /// The content that would be lost, in words.
    pub content: Option<String>,
    /// Its device.
    pub device: DeviceInfo,
    /// The devices of its tiers, with their sizes.
    pub tiers: Vec<(PathBuf, u64)>,
}

/// The file system that [`mkfs`] with these options would make, with the errors that it would give. Nothing is changed.
pub fn would_make(path: impl AsRef<Path>, options: &MkfsOptions) -> Result<WouldMake> {
    let path = path.as_ref();
    let look = || {
        let prepared = prepare_all(path, options)?;
        let pm = match prepared.file_size(path) {
            Some(size) => RealPm::as_if(path, size - size % BLOCK_SIZE, &pm_options(options))?,
            None => RealPm::open(path, &PmOptions { allocate: false, ..pm_options(options) })?,
        };
        check_zones(options.layout()?, pm.len(), options)?;
        let tiers = options.tiers.iter().map(|tier| Ok((tier.device.path.clone(), would_be_tier(tier)?)));
        Ok(WouldMake {
            size: pm.len() - pm.len() % BLOCK_SIZE,
            device: device_info(&pm),
            tiers: tiers.collect::<Result<_>>()?,
            content: match prepared {
                Prepared::Absent(_) => None,
                Prepared::Present { content, .. } => content,
            },
        })
    };
    look().map_err(|error: Error| error.operation("mkfs"))
}

/// The size of the tier that a device would be, with the errors that show before it is one.
fn would_be_tier(tier: &NewTier) -> Result<u64> {
    let path = &tier.device.path;
    // A tier that is a file takes space as it is written.
    let sparse = PmOptions { allocate: false, ..PmOptions::default() };
    match prepare_tier(tier)?.file_size(path) {
        Some(size) => Ok(RealPm::as_if(path, size - size % BLOCK_SIZE, &sparse)?.len()),
        None => {
            let options = DiskOptions { only_system_calls: true, ..DiskOptions::default() };
            Ok(RealDisk::open(path, &options)?.len())
        }
    }
}

/// The marks of the content of a device or a file; see [`signature`].
pub fn signatures(path: impl AsRef<Path>) -> Result<Vec<Signature>> {
    let path = path.as_ref();
    let name = path.display().to_string();
    let metadata = fs::metadata(path).map_err(|error| open_error(&name, error))?;
    if metadata.file_type().is_char_device() {
        let pm = RealPm::open(path, &PmOptions { read_only: true, ..PmOptions::default() })?;
        return signature::detect_on(&pm);
    }
    let file = File::open(path).map_err(|error| open_error(&name, error))?;
    let len = length(&file, &name)?;
    signature::detect(&file, len, &name)
}

/// The state of a path where a file system or a tier is to be made.
pub(crate) enum Prepared {
    /// Nothing; a file of this size is to be made.
    Absent(u64),
    /// Something that may be overwritten.
    Present {
        /// The marks of its content.
        signatures: Vec<Signature>,
        /// Its content in words, if there is any.
        content: Option<String>,
        /// The size that it is to have, where it is a file of another one.
        resize: Option<u64>,
    },
}

impl Prepared {
    /// The size that a file there would have; none of a device.
    fn file_size(&self, path: &Path) -> Option<u64> {
        match self {
            Prepared::Absent(size) | Prepared::Present { resize: Some(size), .. } => Some(*size),
            Prepared::Present { resize: None, .. } => {
                fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|metadata| metadata.len())
            }
        }
    }
}

/// Finds out whether something can be made there: of this size, if one is given, and over existing content, if that is
/// forced. Nothing is changed.
pub(crate) fn prepare(path: &Path, size: Option<u64>, force: bool) -> Result<Prepared> {
    let name = path.display().to_string();
    let refuse = |kind, advice| Err(Error::new(kind).object(name.clone()).advice(advice));
    if let Some(size) = size
        && !size.is_multiple_of(BLOCK_SIZE)
    {
        return Err(Error::new(Kind::InvalidInput)
            .object(format!("a size of {}", size::exact(size)))
            .advice("give a multiple of 4096"));
    }
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return match size {
                Some(_) if path.is_symlink() => refuse(
                    Kind::NotFound,
                    "it is a symbolic link that leads to no file: give the path of the file",
                ),
                Some(size) => Ok(Prepared::Absent(size)),
                None => refuse(
                    Kind::NotFound,
                    "give a size and the file is made: --size 1G, or of a tier of mkfs PATH:1G",
                ),
            };
        }
        Err(error) => return Err(open_error(&name, error)),
    };
    if metadata.is_dir() {
        return refuse(Kind::IsDirectory, "give a device or a file");
    }
    let file_type = metadata.file_type();
    // An open of a pipe waits for its other end.
    if !(file_type.is_file() || file_type.is_block_device() || file_type.is_char_device()) {
        return refuse(Kind::Unsupported, "give a device or a file, not a pipe or a socket");
    }
    let signatures = signatures(path)?;
    // A device in use is not overwritten by force either.
    require_free(path)?;
    let content = content(path, &name, &signatures)?;
    if let Some(content) = content.as_ref().filter(|_| !force) {
        return Err(Error::new(Kind::Exists)
            .object(format!("{name}: {content}"))
            .advice("-f (force) overwrites it"));
    }
    let mut resize = None;
    if metadata.is_file() {
        resize = new_size(metadata.len(), &name, size, force)?;
    } else if let Some(size) = size {
        let file = File::open(path).map_err(|error| open_error(&name, error))?;
        if !metadata.file_type().is_char_device() && length(&file, &name)? != size {
            return refuse(Kind::InvalidInput, "the device has another size; leave the size out");
        }
    }
    Ok(Prepared::Present { signatures, content, resize })
}

/// The content of a device or a plain file, in words; none where nothing can be lost.
fn content(path: &Path, name: &str, signatures: &[Signature]) -> Result<Option<String>> {
    if !signatures.is_empty() {
        return Ok(Some(format!("it holds {}", signature::names(signatures))));
    }
    let traces = |at| format!("it holds {NACRE} without a superblock: its structures at byte {at} are there");
    let metadata = fs::metadata(path).map_err(|error| open_error(name, error))?;
    if metadata.file_type().is_char_device() {
        let pm = RealPm::open(path, &PmOptions { read_only: true, ..PmOptions::default() })?;
        return Ok(first_trace(pm.len(), |offset, block| pm.read(offset, block)).map(traces));
    }
    let file = File::open(path).map_err(|error| open_error(name, error))?;
    let len = length(&file, name)?;
    if metadata.is_file() && !signature::has_content(&file, len, name)? {
        return Ok(None);
    }
    let read = |offset, block: &mut [u8]| {
        file.read_exact_at(block, offset).map_err(|error| Error::io("read", name, error))
    };
    let is_file = || metadata.is_file().then(|| "it is a plain file that is not empty".to_owned());
    Ok(first_trace(len, read).map(traces).or_else(is_file))
}

/// The size that a file is to get: the given one for an empty file, and a new one for another file if that is forced.
fn new_size(len: u64, name: &str, size: Option<u64>, force: bool) -> Result<Option<u64>> {
    let advice = match size {
        None if len == 0 => "the file is empty: give a size, as --size 1G",
        Some(size) if size != len && len != 0 && !force => {
            "the file has another size; leave the size out, or have -f (force) change it"
        }
        _ => return Ok(size.filter(|size| *size != len)),
    };
    Err(Error::new(Kind::InvalidInput).object(name).advice(advice))
}

fn length(mut file: &File, name: &str) -> Result<u64> {
    std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)).map_err(|error| Error::io("seek", name, error))
}

pub(crate) fn open_error(name: &str, error: std::io::Error) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::NotFound => Kind::NotFound,
        std::io::ErrorKind::PermissionDenied => return nacre_media::no_access(name, &error),
        _ => return Error::io("open", name, error),
    };
    Error::new(kind).operation("open").object(name)
}
