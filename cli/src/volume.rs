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
            let volumes = volumes_of(&device)?;
            if json { output::json(json!({ "volumes": volumes })) } else { list(&volumes) }
        }
        VolumeCommand::Remove { force, how } => remove(force, &how),
    }
}

/// The volumes of a device, from the device itself. While a mount has it alone, they come from the mount.
fn volumes_of(path: &Path) -> Result<Vec<VolumeRow>, Failure> {
    let error = match nacre::volumes(path) {
        Ok(volumes) => return Ok(volumes),
        Err(error) => error,
    };
    let (device, _) = nacre::device_and_volume(path);
    let mount = if error.kind() == Kind::Busy { mounted::of_device(&device)? } else { None };
    let failed = || Failure::on("volume list", path, &error);
    let Some(mount) = mount else { return Err(failed()) };
    let info: Info = mounted::ask("volume list", &mount.mountpoint, Question::Info.attribute())?;
    // Another layout has none.
    if info.volumes.is_empty() { Err(failed()) } else { Ok(info.volumes) }
}

fn remove(force: bool, how: &HowArgs) -> Result<(), Failure> {
    let failed = |error: nacre::Error| Failure::on("volume remove", &how.volume, &error);
    let (_, name) = nacre::device_and_volume(&how.volume);
    let volumes = nacre::volumes(&how.volume).map_err(failed)?;
    // The rest of a volume whose removal was interrupted has no name any more.
    let is_meant = |volume: &&VolumeRow| Some(&volume.name) == name.as_ref() && !volume.going;
    let found = volumes.iter().find(is_meant);
    if let Some(volume) = found.filter(|volume| !force && files(volume) != Some(0)) {
        let holds = match files(volume) {
            Some(files) => output::count(files, "file", "files"),
            None => "an unknown number of files, as it was not cleanly unmounted".to_owned(),
        };
        return Err(Failure::new("volume remove", how.volume.display(), format!("it holds {holds}"))
            .advice("-f (force) removes it with them"));
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
                state(volume).to_owned(),
            ]
        })
        .collect();
    output::text_out(&output::table(&["volume ", "zone", "used", "quota", "files", "state "], &rows))
}

/// The state of a volume, in words.
pub(crate) fn state(volume: &VolumeRow) -> &'static str {
    match (volume.going, volume.clean) {
        (true, _) => "being made or removed",
        (false, true) => "clean",
        (false, false) => "mounted, or not cleanly unmounted",
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
