//! `nacre volume`: the volumes of a device, which are file systems of their own.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use nacre::{Kind, VolumeOptions, VolumeRow};
use nacre_control::{Info, Question};
use nacre_engine::size;
use serde_json::json;

use crate::failure::Failure;
use crate::{mounted, output};

/// Examples and exit codes, for the help and the manual page.
const MANUAL: &str = "\
Examples:
  nacre volume create '/dev/dax0.0#mail' --quota 20G
      Makes a volume that takes 20 GiB at most.
  nacre volume list /dev/dax0.0
      Shows all volumes.

See also:
  nacre-mkfs(8), nacre-mount(8)
";

/// Arguments of `nacre volume`.
#[derive(Debug, Args)]
#[command(after_long_help = MANUAL)]
pub(crate) struct VolumeArgs {
    #[command(subcommand)]
    command: VolumeCommand,
}

/// Examples and exit codes, for the help and the manual page.
const CREATE_MANUAL: &str = "\
Examples:
  nacre volume create '/dev/dax0.0#build' --zone 1
      Makes a volume in the second zone, which can be mounted beside volumes of the first one.
  nacre volume create -n '/dev/dax0.0#build'
      Prints whether it can be made, and writes nothing.
";
/// Examples and exit codes, for the help and the manual page.
const LIST_MANUAL: &str = "\
Examples:
  nacre volume list --json /dev/dax0.0
      Prints the volumes with exact bytes, for a script.
";
/// Examples and exit codes, for the help and the manual page.
const REMOVE_MANUAL: &str = "\
Examples:
  nacre volume remove '/dev/dax0.0#build'
      Removes a volume without files.
  nacre volume remove -f '/dev/dax0.0#build'
      Removes a volume with all its files.
";

#[derive(Debug, Subcommand)]
enum VolumeCommand {
    /// Make a volume
    #[command(after_long_help = CREATE_MANUAL)]
    Create {
        /// The zone, from 0 on; volumes of different zones can be mounted at the same time
        #[arg(long, value_name = "ZONE", default_value_t = 0)]
        zone: u32,
        /// The most space that it may take, as 20G; by default that of its zone
        #[arg(long, value_name = "SIZE", value_parser = size::parse)]
        quota: Option<u64>,
        #[command(flatten)]
        how: HowArgs,
    },
    /// Show the volumes of a device
    #[command(after_long_help = LIST_MANUAL)]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// The device
        #[arg(value_name = "DEVICE")]
        device: PathBuf,
    },
    /// Remove a volume
    ///
    /// All its files are lost. A crash meanwhile leaves it whole, or removed by the next command or mount.
    #[command(after_long_help = REMOVE_MANUAL)]
    Remove {
        /// Remove it also if it has files
        #[arg(short, long)]
        force: bool,
        #[command(flatten)]
        how: HowArgs,
    },
}

/// The volume, and how its change is done.
#[derive(Debug, Args)]
struct HowArgs {
    /// Print the change, and make none
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// The device and the name of the volume
    #[arg(value_name = "DEVICE#NAME")]
    volume: PathBuf,
}

/// Shows or changes volumes.
pub(crate) fn run(args: VolumeArgs) -> Result<(), Failure> {
    let (operation, path) = match &args.command {
        VolumeCommand::Create { how, .. } => ("volume create", &how.volume),
        VolumeCommand::List { device, .. } => ("volume list", device),
        VolumeCommand::Remove { how, .. } => ("volume remove", &how.volume),
    };
    mounted::reach(operation, path)?;
    match args.command {
        VolumeCommand::Create { zone, quota, how } => {
            let failed = |error: nacre::Error| Failure::on("volume create", &how.volume, &error);
            let options = VolumeOptions { zone, quota, ..VolumeOptions::default() };
            if how.dry_run {
                nacre::would_create_volume(&how.volume, &options).map_err(failed)?;
                return done(&how, "would be made", None);
            }
            let made = nacre::create_volume(&how.volume, &options).map_err(failed)?;
            done(&how, "is made", Some(&made))
        }
        VolumeCommand::List { json, device } => {
            let volumes = volumes_of("volume list", &device)?;
            if json { output::json(json!({ "volumes": volumes })) } else { list(&volumes) }
        }
        VolumeCommand::Remove { force, how } => remove(force, &how),
    }
}

/// The volumes of a device, from the device itself, or from a mount that has it alone. Mounts say how much their own
/// volumes hold.
fn volumes_of(operation: &str, path: &Path) -> Result<Vec<VolumeRow>, Failure> {
    let (device, _) = nacre::device_and_volume(path);
    let found = nacre::volumes(path);
    let mounts = match &found {
        Err(error) if error.kind() != Kind::Busy => Vec::new(),
        _ => mounted::all_of_device(&device)?,
    };
    let mut infos: Vec<Info> = Vec::new();
    for mount in &mounts {
        match mounted::ask::<Info>(operation, &mount.mountpoint, Question::Info.attribute()) {
            Ok(info) => {
                infos.push(Info { mountpoint: Some(mount.mountpoint.display().to_string()), ..info });
            }
            // The others are known all the same.
            Err(failure) => _ = failure.report(),
        }
    }
    let told = infos.iter().map(|info| &info.volumes).find(|volumes| !volumes.is_empty());
    let mut volumes = match (found, told) {
        (Ok(volumes), _) => volumes,
        (Err(_), Some(told)) => told.clone(),
        // Another layout has none.
        (Err(error), None) => return Err(Failure::on(operation, path, &error)),
    };
    for Info { volume, space, mountpoint, .. } in infos {
        if let Some(row) = volumes.iter_mut().find(|row| row.uuid == volume.uuid) {
            row.used = space.map(|space| space.total.saturating_sub(space.free)).or(row.used);
            row.inodes = space.map(|space| space.inodes.saturating_sub(space.inodes_free)).or(row.inodes);
            row.mountpoint = mountpoint;
        }
    }
    Ok(volumes)
}

fn remove(force: bool, how: &HowArgs) -> Result<(), Failure> {
    let failed = |error: nacre::Error| Failure::on("volume remove", &how.volume, &error);
    let (_, name) = nacre::device_and_volume(&how.volume);
    let volumes = volumes_of("volume remove", &how.volume)?;
    // The rest of a volume whose removal was interrupted has no name any more.
    let is_meant = |volume: &&VolumeRow| Some(&volume.name) == name.as_ref() && !volume.going;
    let found = volumes.iter().find(is_meant);
    if let Some(dir) = found.and_then(|volume| volume.mountpoint.as_ref()) {
        return Err(Failure::new("volume remove", how.volume.display(), format!("it is mounted on {dir}"))
            .advice("unmount it first"));
    }
    if let Some(volume) = found.filter(|volume| !force && files(volume) != Some(0)) {
        let holds = match files(volume) {
            Some(files) => output::count(files, "file", "files"),
            None => "an unknown number of files, as it was not cleanly unmounted".to_owned(),
        };
        return Err(Failure::new("volume remove", how.volume.display(), format!("it holds {holds}"))
            .advice("-f (force) removes the volume with its files"));
    }
    if how.dry_run {
        nacre::would_remove_volume(&how.volume).map_err(failed)?;
        return done(how, "would be removed", found);
    }
    nacre::remove_volume(&how.volume).map_err(failed)?;
    done(how, "is removed", found)
}

/// The number of files of a volume, if it is known. The root is an inode of each, and is none of them.
fn files(volume: &VolumeRow) -> Option<u64> {
    volume.inodes.map(|inodes| inodes.saturating_sub(1))
}

fn done(how: &HowArgs, what: &str, volume: Option<&VolumeRow>) -> Result<(), Failure> {
    let name = how.volume.display().to_string();
    if how.json {
        return output::json(json!({ "name": name, "dry_run": how.dry_run, "volume": volume }));
    }
    output::text_out(&format!("{name}: {what}\n"))
}

fn list(volumes: &[VolumeRow]) -> Result<(), Failure> {
    let bytes = |size: Option<u64>| size.map_or_else(|| "-".to_owned(), size::print);
    let rows: Vec<_> = volumes
        .iter()
        .map(|volume| {
            let files = files(volume).map_or_else(|| "-".to_owned(), |files| files.to_string());
            vec![
                volume.name.clone(),
                volume.zone.to_string(),
                bytes(volume.used),
                bytes(volume.quota),
                files,
                state(volume),
            ]
        })
        .collect();
    output::text_out(&output::table(&["volume ", "zone", "used", "quota", "files", "state "], &rows))
}

/// The state of a volume, in words.
pub(crate) fn state(volume: &VolumeRow) -> String {
    match (volume.going, &volume.mountpoint, volume.clean) {
        (true, ..) => "being made or removed".to_owned(),
        (false, Some(dir), _) => format!("mounted on {dir}"),
        (false, None, true) => "clean".to_owned(),
        (false, None, false) => "mounted, or not cleanly unmounted".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use nacre::VolumeRow;

    use super::files;

    /// A damaged count ended the command by an overflow.
    #[test]
    fn no_count_of_inodes_is_too_small() {
        let of = |inodes| files(&VolumeRow { inodes, ..VolumeRow::default() });
        assert_eq!((of(None), of(Some(0)), of(Some(1)), of(Some(8))), (None, Some(0), Some(0), Some(7)));
    }
}
