//! The device of a mount, opened as the settings say or as it can be.

use std::path::Path;
use std::time::Duration;

use nacre::{DeviceInfo, FileSystem, Kind, OpenOptions, Promise, WriteBuffer};
use nacre_fuse::mounts;

use crate::mount_options::{MountSettings, TierOption};
use crate::servers::under_another_name;

/// Opens the device, read-only if it cannot be written. The settings that come with it say so.
pub(crate) fn open(device: &Path, settings: &MountSettings) -> nacre::Result<(FileSystem, MountSettings)> {
    as_can_be(settings, &|options| open_when_free(device, options))
}

/// The device that [`open`] would open, and how, with the errors that show before more than the superblock is read.
pub(crate) fn would_open(
    device: &Path,
    settings: &MountSettings,
) -> nacre::Result<(DeviceInfo, MountSettings)> {
    as_can_be(settings, &|options| FileSystem::would_open(device, options))
}

fn as_can_be<T>(
    settings: &MountSettings,
    open: &dyn Fn(&OpenOptions) -> nacre::Result<T>,
) -> nacre::Result<(T, MountSettings)> {
    let mut settings = settings.clone();
    let error = match open(&open_options(&settings)) {
        Ok(opened) => return Ok((opened, settings)),
        Err(error) => error,
    };
    let is_protected = matches!(error.kind(), Kind::ReadOnly | Kind::AccessDenied | Kind::NotPermitted);
    if settings.read_only || !is_protected {
        return Err(error);
    }
    settings.read_only = true;
    // The first error has the cause.
    open(&open_options(&settings)).map(|opened| (opened, settings)).map_err(|_| error)
}

fn open_options(settings: &MountSettings) -> OpenOptions {
    OpenOptions {
        read_only: settings.read_only,
        no_atime: settings.no_atime,
        require: settings.require.unwrap_or(Promise::None),
        emulation: settings.emulation.clone(),
        // Nothing is buffered in a mount that was not asked for it: sync(2) would not reach it.
        buffer: settings
            .buffer
            .as_ref()
            .map_or(WriteBuffer::Never, |buffer| WriteBuffer::With(buffer.options())),
        preset: settings.preset,
        name_index: settings.name_index,
        inode_cache: settings.inode_cache,
        tiers: settings.tiers.iter().map(TierOption::device).collect(),
        require_tiers: settings.all_tiers,
        tier_settings: settings.tier_settings,
        ..OpenOptions::default()
    }
}

/// Opens the device. A mount that just ended has its device for a moment longer, because umount(2) does not wait for
/// it. A device that is still mounted is busy at once.
fn open_when_free(device: &Path, options: &OpenOptions) -> nacre::Result<FileSystem> {
    const TRIES: u32 = 20;
    for _ in 0..TRIES {
        match FileSystem::open(device, options) {
            Err(error) if error.kind() == Kind::Busy && !is_mounted(device) => {
                std::thread::sleep(Duration::from_millis(50));
            }
            outcome => return outcome,
        }
    }
    FileSystem::open(device, options)
}

/// True if the table of mounts lists the device, also under another name.
fn is_mounted(device: &Path) -> bool {
    let is_of =
        |mount: &mounts::MountEntry| mount.fstype == mounts::FSTYPE && Path::new(&mount.source) == device;
    let (bare, _) = nacre::device_and_volume(device);
    mounts::list().is_ok_and(|list| list.iter().any(is_of)) || under_another_name(&bare).is_some()
}
