//! `nacre mkfs`: makes a file system.

use std::path::PathBuf;

use clap::Args;
use nacre::{Emulation, Kind, LayoutKind, MkfsOptions, Preset, Promise, VolumeInfo};
use nacre_engine::size;
use serde_json::json;
use uuid::Uuid;

use crate::failure::Failure;
use crate::output;

/// What `nacre mkfs` is told.
#[derive(Debug, Args)]
pub(crate) struct MkfsArgs {
    /// Size of the file, as 1G or 512M; makes the file if it is not there
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// A name for people, at most 64 bytes
    #[arg(short = 'L', long, default_value = "")]
    label: String,
    /// A name for machines; a random one by default
    #[arg(short = 'U', long)]
    uuid: Option<Uuid>,
    /// Layout and policies together: nacre, nova, pmfs, hinfs, hinfs-wb, hinfs-nclfw
    #[arg(long, default_value = "nacre", value_parser = |text: &str| text.parse::<Preset>())]
    preset: Preset,
    /// Another layout than the preset's: log, inplace
    #[arg(long, value_parser = |text: &str| text.parse::<LayoutKind>())]
    layout: Option<LayoutKind>,
    /// Refuse a device that promises less than this: process, power
    #[arg(long, value_name = "PROMISE", default_value = "none", value_parser = |text: &str| text.parse::<Promise>())]
    require: Promise,
    /// Be as slow as this memory while making it: pcm, optane, or latency=200,bandwidth=1G
    #[arg(long, value_name = "MEMORY", value_parser = |text: &str| text.parse::<Emulation>())]
    emulate: Option<Emulation>,
    /// Overwrite what the device holds
    #[arg(short, long)]
    force: bool,
    /// Say what would be done, and do nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// A file, a block device, or a devdax device
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
}

/// Makes the file system, or says what would be made.
pub(crate) fn run(args: MkfsArgs) -> Result<(), Failure> {
    if args.dry_run {
        return dry_run(&args);
    }
    let options = MkfsOptions {
        size: args.size,
        label: args.label.clone(),
        uuid: args.uuid,
        preset: args.preset,
        layout: args.layout,
        force: args.force,
        require: args.require,
        emulation: args.emulate.clone(),
        ..MkfsOptions::default()
    };
    let made = nacre::mkfs(&args.device, &options).map_err(|error| Failure::on(&args.device, &error))?;
    report(&args, &made)
}

fn report(args: &MkfsArgs, made: &VolumeInfo) -> Result<(), Failure> {
    if args.json {
        return output::json(json!({ "device": args.device.display().to_string(), "volume": made }));
    }
    let label = if made.label.is_empty() { String::new() } else { format!(", label {:?}", made.label) };
    output::text_out(&format!(
        "{}: made a file system of {} (layout {}, preset {}{label}, uuid {})\n",
        args.device.display(),
        size::print(made.size),
        made.layout,
        made.preset,
        made.uuid,
    ))
}

/// Looks at what is there, as the real run would.
fn dry_run(args: &MkfsArgs) -> Result<(), Failure> {
    let found = match nacre::signatures(&args.device) {
        Ok(found) => found,
        Err(error) if error.kind() == Kind::NotFound && args.size.is_some() => Vec::new(),
        Err(error) => return Err(Failure::on(&args.device, &error)),
    };
    if !found.is_empty() && !args.force {
        let mut names: Vec<&str> = found.iter().map(|signature| signature.name).collect();
        names.dedup();
        return Err(Failure::new("mkfs", args.device.display(), format!("it holds {}", names.join(", ")))
            .advice("-f overwrites it"));
    }
    let wiped =
        if found.is_empty() { "nothing that is known would be lost" } else { "its content would be lost" };
    let size = args.size.map_or_else(|| "the device's size".to_owned(), size::print);
    let layout = args.layout.unwrap_or(args.preset.layout());
    output::text_out(&format!(
        "{}: would make a file system of {size} (layout {layout}, preset {}); {wiped}\n",
        args.device.display(),
        args.preset,
    ))
}
