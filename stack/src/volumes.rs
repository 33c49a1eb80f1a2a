//! Volumes of a device: file systems of their own, which share its space.

use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use nacre_control::VolumeRow;
use nacre_engine::{BLOCK_SIZE, Error, Kind, Result};
use nacre_layout_parts::lifecycle::Lifecycle;
use nacre_layout_pool::PoolFs;
pub(crate) use nacre_layout_pool::volumes::Part;
use nacre_layout_pool::volumes::{self, NewVolume, VolumeSummary};
use nacre_media::{PmOptions, RealPm};

use crate::preset::LayoutKind;
use crate::probe::probe;

/// A volume as it is reported.
fn row(summary: &VolumeSummary) -> VolumeRow {
    VolumeRow {
        name: summary.name.clone(),
        uuid: summary.uuid.to_string(),
        zone: summary.zone,
        quota: summary.quota.map(|blocks| blocks * BLOCK_SIZE),
        used: summary.used.map(|blocks| blocks * BLOCK_SIZE),
        inodes: summary.inodes,
        clean: summary.clean,
        going: summary.going,
        mountpoint: None,
    }
}

/// The properties of a new volume.
#[derive(Debug, Clone)]
pub struct VolumeOptions {
    /// The zone that it is to be in.
    pub zone: u32,
    /// The most bytes that it may take; none for no limit.
    pub quota: Option<u64>,
    /// Owner and group of the root directory.
    pub root_owner: (u32, u32),
}

impl Default for VolumeOptions {
    /// In the first zone, without a limit, with a root directory that belongs to the effective user.
    fn default() -> VolumeOptions {
        let root_owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        VolumeOptions { zone: 0, quota: None, root_owner }
    }
}

/// The device of a path, and the volume that it names, as in `DEVICE#NAME`. A path that is there with its `#` is a
/// device.
pub fn device_and_volume(path: &Path) -> (PathBuf, Option<String>) {
    let bytes = path.as_os_str().as_bytes();
    let file = path.file_name().map_or(0, |name| bytes.len() - name.len());
    match bytes[file..].iter().rposition(|&byte| byte == b'#') {
        Some(at) if path.symlink_metadata().is_err() => {
            let device = PathBuf::from(OsStr::from_bytes(&bytes[..file + at]));
            let name = String::from_utf8_lossy(&bytes[file + at + 1..]).into_owned();
            (device, Some(name))
        }
        _ => (path.to_owned(), None),
    }
}

/// The same path with the name of the device made canonical.
pub fn canonical_device(path: &Path) -> io::Result<PathBuf> {
    let (device, volume) = device_and_volume(path);
    let device = device.canonicalize()?;
    Ok(match volume {
        Some(volume) => with_volume(&device, &volume),
        None => device,
    })
}

/// The path of a volume.
pub fn with_volume(device: &Path, volume: &str) -> PathBuf {
    let mut path = OsString::from(device);
    path.push("#");
    path.push(volume);
    path.into()
}

/// The device of a path, and the volume: of the path, or of an option.
pub(crate) fn place(path: &Path, option: Option<&str>) -> Result<(PathBuf, Option<String>)> {
    let (device, volume) = device_and_volume(path);
    match (volume, option) {
        (Some(volume), Some(option)) if volume != option => Err(Error::new(Kind::InvalidInput)
            .object(format!("volume {volume} in the name of the device, and {option} as an option"))
            .advice("leave one of them out")),
        (volume, option) => Ok((device, volume.or(option.map(str::to_owned)))),
    }
}

/// The bytes of a device that the user of a part of it locks; see [`PmOptions::part`].
pub(crate) fn part(device: &Path, part: Part<'_>) -> Result<Option<Range<u64>>> {
    let pm = RealPm::open(device, &to_read())?;
    match probe(&pm) {
        Ok((LayoutKind::Pool, _)) => volumes::bytes_of(&pm, part),
        // The mount itself tells of an error.
        _ => Ok(None),
    }
}

/// The bytes that the mount of a volume locks, if it has not the whole device.
pub fn zone_bytes(path: impl AsRef<Path>) -> Result<Option<Range<u64>>> {
    match device_and_volume(path.as_ref()) {
        (device, Some(volume)) => part(&device, Part::Volume(Some(&volume))),
        (_, None) => Ok(None),
    }
}

fn to_read() -> PmOptions {
    PmOptions { read_only: true, ..PmOptions::default() }
}

/// For a dry run of a change: it is refused where the change is, and no space of a sparse file is allocated.
fn to_try() -> PmOptions {
    PmOptions { allocate: false, ..PmOptions::default() }
}

/// Opens a device whose layout has volumes.
fn open(device: &Path, options: &PmOptions) -> Result<RealPm> {
    let pm = RealPm::open(device, options)?;
    require(probe(&pm)?.0)?;
    Ok(pm)
}

/// Fails for a layout without volumes.
pub(crate) fn require(layout: LayoutKind) -> Result<()> {
    match layout {
        LayoutKind::Pool => Ok(()),
        layout => Err(Error::new(Kind::Unsupported)
            .object(format!("volumes on the layout {layout}"))
            .advice("make the file system with --preset spfs to have some")),
    }
}

fn named(path: &Path) -> Result<(PathBuf, String)> {
    match device_and_volume(path) {
        (device, Some(name)) => Ok((device, name)),
        (_, None) => Err(Error::new(Kind::InvalidInput)
            .object("no name of a volume is given")
            .advice("give the device and the name, as in DEVICE#NAME")),
    }
}

/// The volumes of a device; none of a layout that cannot have several.
pub(crate) fn of_device(pm: &RealPm, layout: LayoutKind) -> Result<Vec<VolumeRow>> {
    if layout != LayoutKind::Pool {
        return Ok(Vec::new());
    }
    Ok(volumes::list(pm)?.iter().map(row).collect())
}

/// The volumes of a device.
pub fn volumes(path: impl AsRef<Path>) -> Result<Vec<VolumeRow>> {
    let (device, _) = device_and_volume(path.as_ref());
    let list = || volumes::list(&open(&device, &to_read())?);
    let found =
        list().map_err(|error: Error| error.operation("list").object(device.display().to_string()))?;
    Ok(found.iter().map(row).collect())
}

/// Makes a volume: `DEVICE#NAME`. [`Exists`](Kind::Exists) if there is one of this name, [`Busy`](Kind::Busy) if the
/// device is in use.
///
/// ```
/// # fn main() -> nacre::Result<()> {
/// # let dir = tempfile::tempdir().expect("a directory");
/// # let path = dir.path().join("pm");
/// let options = nacre::MkfsOptions { preset: nacre::Preset::Spfs, ..nacre::MkfsOptions::with_size(64 << 20) };
/// nacre::mkfs(&path, &options)?;
/// let mail = dir.path().join("pm#mail");
/// nacre::create_volume(&mail, &nacre::VolumeOptions { quota: Some(8 << 20), ..Default::default() })?;
/// let fs = nacre::FileSystem::open(&mail, &nacre::OpenOptions::default())?;
/// assert_eq!(fs.statfs().blocks, 2048);
/// fs.close()?;
/// nacre::remove_volume(&mail)?;
/// assert_eq!(nacre::volumes(&path)?.len(), 1);
/// # Ok(())
/// # }
/// ```
pub fn create_volume(path: impl AsRef<Path>, options: &VolumeOptions) -> Result<VolumeRow> {
    let path = path.as_ref();
    let create = || {
        let (device, new) = new_volume(path, options)?;
        let pm = Arc::new(open(&device, &PmOptions::default())?);
        volumes::create(pm, &new)
    };
    let made =
        create().map_err(|error: Error| error.operation("create").object(path.display().to_string()))?;
    Ok(row(&made))
}

/// The errors that [`create_volume`] would give. Nothing is changed.
pub fn would_create_volume(path: impl AsRef<Path>, options: &VolumeOptions) -> Result<()> {
    let path = path.as_ref();
    let look = || {
        let (device, new) = new_volume(path, options)?;
        volumes::would_create(&open(&device, &to_try())?, &new)
    };
    look().map_err(|error: Error| error.operation("create").object(path.display().to_string()))
}

fn new_volume(path: &Path, options: &VolumeOptions) -> Result<(PathBuf, NewVolume)> {
    let (device, name) = named(path)?;
    let quota = options.quota.map_or(0, |bytes| bytes / BLOCK_SIZE);
    if options.quota.is_some() && quota == 0 {
        return Err(Error::new(Kind::InvalidInput)
            .object("a quota of less than a block")
            .advice("give 4K or more"));
    }
    let (zone, root_owner) = (options.zone, options.root_owner);
    Ok((
        device,
        NewVolume { name, zone, quota, root_owner, now: SystemTime::now().into(), ..NewVolume::default() },
    ))
}

/// Removes a volume, `DEVICE#NAME`, with all its files. [`Busy`](Kind::Busy) if the device is in use.
pub fn remove_volume(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    let remove = || {
        let (device, name) = named(path)?;
        volumes::remove(Arc::new(open(&device, &PmOptions::default())?), &name)
    };
    remove().map_err(|error: Error| error.operation("remove").object(path.display().to_string()))
}

/// The errors that [`remove_volume`] would give. Nothing is changed.
pub fn would_remove_volume(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    let look = || {
        let (device, name) = named(path)?;
        let pm = open(&device, &to_try())?;
        PoolFs::<RealPm>::check_writable(&pm)?;
        volumes::probe_volume(&pm, Some(&name)).map(drop)
    };
    look().map_err(|error: Error| error.operation("remove").object(path.display().to_string()))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use nacre_engine::Kind;
    use rustix::fs::{FallocateFlags, fallocate};

    use super::{device_and_volume, place, would_remove_volume};
    use crate::{MkfsOptions, Preset, mkfs, remove_volume, volumes, with_volume};

    /// It fell through to the removal itself, which allocates the space of a sparse file before it looks for the name.
    #[test]
    fn a_dry_run_of_a_removal_is_refused_as_the_removal_and_changes_nothing() {
        const PIECE: usize = 1 << 20;
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("pm");
        mkfs(&device, &MkfsOptions { preset: Preset::Spfs, ..MkfsOptions::with_size(64 << 20) }).unwrap();
        let content = fs::read(&device).unwrap();
        let is_zero = |piece: &[u8]| piece.iter().all(|byte| *byte == 0);
        let unused = content.chunks(PIECE).rposition(is_zero).unwrap() * PIECE;
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let file = File::options().write(true).open(&device).unwrap();
        fallocate(&file, hole, unused as u64, PIECE as u64).unwrap();
        drop(file);
        let blocks = || fs::metadata(&device).unwrap().blocks();
        let before = blocks();
        assert!(before < (64 << 20) / 512);
        let error = would_remove_volume(with_volume(&device, "none")).unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        assert_eq!(would_remove_volume(&device).unwrap_err().kind(), Kind::InvalidInput);
        would_remove_volume(with_volume(&device, "main")).unwrap();
        assert!(blocks() == before && fs::read(&device).unwrap() == content);
        assert_eq!(volumes(&device).unwrap().len(), 1);
        // The removal itself says the same.
        let real = remove_volume(with_volume(&device, "none")).unwrap_err();
        assert_eq!(real.to_string(), error.to_string());
    }

    #[test]
    fn the_name_of_a_volume_is_behind_the_last_mark() {
        let dir = tempfile::tempdir().unwrap();
        let there = dir.path().join("pm#1");
        std::fs::write(&there, b"").unwrap();
        assert_eq!(device_and_volume(&there), (there.clone(), None), "a file of this name");
        let of = |path: &str| {
            let (device, volume) = device_and_volume(Path::new(path));
            (device.display().to_string(), volume)
        };
        assert_eq!(of("/no/pm#mail"), ("/no/pm".to_owned(), Some("mail".to_owned())));
        assert_eq!(of("/no/pm#1#mail"), ("/no/pm#1".to_owned(), Some("mail".to_owned())));
        assert_eq!(of("/n#o/pm"), ("/n#o/pm".to_owned(), None));
        let place = |path: &str, option| place(Path::new(path), option).map(|(_, volume)| volume);
        assert_eq!(place("/no/pm#a", Some("a")).unwrap(), Some("a".to_owned()));
        assert_eq!(place("/no/pm", Some("b")).unwrap(), Some("b".to_owned()));
        assert!(place("/no/pm#a", Some("b")).is_err());
    }
}
