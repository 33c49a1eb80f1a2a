//! `nacre mkfs`: makes a file system.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use nacre::{Emulation, LayoutKind, MkfsOptions, NewTier, Preset, Promise, VolumeInfo, WouldMake};
use nacre_engine::size;
use serde_json::json;
use uuid::Uuid;

use crate::failure::Failure;
use crate::mount_options::TierOption;
use crate::{mounted, output, tier};

/// Examples and exit codes, for the help and the manual page.
const MANUAL: &str = "\
Examples:
  nacre mkfs --size 1G /dev/shm/pm
      Makes a file that emulates PM.
  nacre mkfs --require power --tier /dev/sdb /dev/dax0.0
      Uses a devdax device, with a disk below it, and refuses PM that a power failure empties.
  nacre mkfs -n /dev/dax0.0
      Prints the size, the layout, the persistence domain and the tiers, and writes nothing.

See also:
  nacre-mount(8), nacre-fsck(8), nacre-tier-add(8), mkfs(8)
";

/// Arguments of `nacre mkfs`.
#[derive(Debug, Args)]
#[command(after_long_help = MANUAL)]
pub(crate) struct MkfsArgs {
    /// Size of the file, as 1G or 512M; makes the file if it is not there
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// The label, at most 64 bytes
    #[arg(short = 'L', long, default_value = "")]
    label: String,
    /// The UUID; a random one by default
    #[arg(short = 'U', long)]
    uuid: Option<Uuid>,
    /// Layout and policies: nacre, nova, tpfs, pmfs, hinfs, hinfs-wb, hinfs-nclfw, spfs, bpfs, acbpfs; nacre by default
    #[arg(long, value_parser = |text: &str| text.parse::<Preset>())]
    preset: Option<Preset>,
    /// The layout without a preset: log, inplace, pool, shadow
    #[arg(long, value_parser = |text: &str| text.parse::<LayoutKind>())]
    layout: Option<LayoutKind>,
    /// How written blocks are overwritten, on the layout shadow: in-place is faster, copy is all or nothing after a crash;
    /// by default as the preset has it
    #[arg(long, value_name = "HOW")]
    overwrite: Option<Overwrite>,
    /// Refuse a device whose persistence domain is less than this: process, power
    #[arg(long, value_name = "DOMAIN", default_value = "none", value_parser = |text: &str| text.parse::<Promise>())]
    require: Promise,
    /// Emulate this kind of PM meanwhile: pcm, optane, or latency=200,bandwidth=1G
    #[arg(long, value_name = "KIND", value_parser = |text: &str| text.parse::<Emulation>())]
    emulate: Option<Emulation>,
    /// A disk below PM (repeatable): PATH, PATH:SIZE to make a file, PATH@DISK to emulate the speed of a disk
    #[arg(long = "tier", value_name = "PATH[:SIZE]", value_parser = |text: &str| Ok::<_, String>(new_tier(text)))]
    tiers: Vec<NewTier>,
    /// Zones, in which volumes are; volumes of different zones can be mounted at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    zones: u32,
    /// Overwrite the contents of the device
    #[arg(short, long)]
    force: bool,
    /// Print the changes, and make none
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// A file, a block device, or a devdax device
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
}

/// How written blocks are overwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Overwrite {
    /// To other blocks
    Copy,
    /// Where they are
    InPlace,
}

/// Makes the file system, or prints the plan.
pub(crate) fn run(args: MkfsArgs) -> Result<(), Failure> {
    let options = options(&args);
    for path in options.tiers.iter().map(|tier| &tier.device.path).chain([&args.device]) {
        mounted::reach("mkfs", path)?;
    }
    let layout = layout(&args, &options)?;
    if args.dry_run {
        return dry_run(&args, &options, layout);
    }
    let made =
        nacre::mkfs(&args.device, &options).map_err(|error| Failure::on("mkfs", &args.device, &error))?;
    if !options.tiers.is_empty() {
        // A new file system can be read; if not, mkfs has succeeded all the same.
        let lost = nacre::lost_tiers(&args.device, &options.tiers).unwrap_or_default();
        let warn =
            |path: &Path| tier::is_not_found("mkfs", &std::path::absolute(path).unwrap_or(path.into()));
        lost.into_iter().for_each(warn);
    }
    report(&args, &made)
}

fn options(args: &MkfsArgs) -> MkfsOptions {
    MkfsOptions {
        size: args.size,
        label: args.label.clone(),
        uuid: args.uuid,
        preset: args.preset.unwrap_or_default(),
        layout: args.layout,
        overwrite_in_place: args.overwrite.map(|how| how == Overwrite::InPlace),
        force: args.force,
        require: args.require,
        emulation: args.emulate.clone(),
        tiers: tiers(args),
        zones: args.zones,
        ..MkfsOptions::default()
    }
}

/// The layout to make. An error means that `--layout` contradicts the preset.
fn layout(args: &MkfsArgs, options: &MkfsOptions) -> Result<LayoutKind, Failure> {
    match (args.preset, args.layout) {
        (Some(preset), Some(layout)) if preset.layout() != layout => Err(Failure::usage(format!(
            "--preset {preset} and --layout {layout} contradict each other: the preset is of the layout {}; leave one of \
             them out",
            preset.layout()
        ))),
        _ => Ok(options.layout()?),
    }
}

/// The tiers to make. `--force` holds for all devices.
fn tiers(args: &MkfsArgs) -> Vec<NewTier> {
    args.tiers.iter().map(|tier| NewTier { force: args.force, ..tier.clone() }).collect()
}

/// Parses `PATH`, optionally followed by `:SIZE` and `@DISK`.
fn new_tier(text: &str) -> NewTier {
    let TierOption { path, disk } = TierOption::parse(text);
    let text = path.to_string_lossy();
    let sized = text.rsplit_once(':').and_then(|(path, size)| Some((path, size::parse(size).ok()?)));
    let (path, size) = match sized {
        Some((path, size)) => (path.into(), Some(size)),
        None => (path.clone(), None),
    };
    let device = TierOption { path, disk }.device();
    NewTier { device, size, rank: None, force: false }
}

fn report(args: &MkfsArgs, made: &VolumeInfo) -> Result<(), Failure> {
    // The new file system can be read; if not, mkfs has succeeded all the same.
    let device = nacre::info(&args.device).ok().map(|info| info.device);
    if args.json {
        return output::json(
            json!({ "device": args.device.display().to_string(), "volume": made, "promise": device.map(|device| device.promise) }),
        );
    }
    let label = if made.label.is_empty() { String::new() } else { format!(", label {:?}", made.label) };
    let name = args.device.display();
    let mut text = format!(
        "{name}: made a file system of {} (layout {}, preset {}{label}, uuid {})\n",
        size::print(made.size),
        made.layout,
        made.preset,
        made.uuid,
    );
    if let Some(device) = device {
        text += &format!("{name}: {}\n", device.promise_explanation);
    }
    output::text_out(&text)
}

fn dry_run(args: &MkfsArgs, options: &MkfsOptions, layout: LayoutKind) -> Result<(), Failure> {
    let WouldMake { size, content, device, tiers } = nacre::would_make(&args.device, options)
        .map_err(|error| Failure::on("mkfs", &args.device, &error))?;
    let name = args.device.display();
    if args.json {
        let tiers =
            tiers.iter().map(|(path, size)| json!({ "device": path.display().to_string(), "size": size }));
        return output::json(json!({
            "device": name.to_string(),
            "dry_run": true,
            "layout": layout.to_string(),
            "preset": options.preset.to_string(),
            "size": size,
            "promise": device.promise,
            "tiers": tiers.collect::<Vec<_>>(),
            "content_lost": content.is_some(),
            "content": content,
        }));
    }
    let wiped = match &content {
        Some(content) => format!("its content would be lost: {content}"),
        None => "nothing that is known would be lost".to_owned(),
    };
    let mut text = format!(
        "{name}: would make a file system of {} (layout {layout}, preset {}); {wiped}\n{name}: {}\n",
        size::print(size),
        options.preset,
        device.promise_explanation,
    );
    for (path, size) in tiers {
        text += &format!("{}: would be a tier of {}\n", path.display(), size::print(size));
    }
    output::text_out(&text)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::new_tier;

    #[test]
    fn a_tier_has_a_path_a_size_and_a_disk() {
        let read = |text: &str| {
            let tier = new_tier(text);
            (tier.device.path, tier.size, tier.device.emulation.is_some())
        };
        assert_eq!(read("/dev/sdb"), (PathBuf::from("/dev/sdb"), None, false));
        assert_eq!(read("/a/disk:1G"), (PathBuf::from("/a/disk"), Some(1 << 30), false));
        assert_eq!(read("/a/disk:64M@nvme,flush=0"), (PathBuf::from("/a/disk"), Some(64 << 20), true));
        // What is no size and no disk is part of the name.
        assert_eq!(read("/a/b:c@d"), (PathBuf::from("/a/b:c@d"), None, false));
    }
}
