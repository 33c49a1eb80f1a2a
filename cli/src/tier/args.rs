//! The command line of `nacre tier`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use nacre::Disk;
use nacre_engine::size;

/// Examples and exit codes, for the help and the manual page.
const MANUAL: &str = "\
Examples:
  nacre tier add /mnt /dev/sdb
      Adds a disk below PM.
  nacre tier list /mnt
      Shows all tiers.

See also:
  nacre-promote(8), nacre-demote(8), nacre-mover(8)
";

/// Arguments of `nacre tier`.
#[derive(Debug, Args)]
#[command(after_long_help = MANUAL)]
pub(crate) struct TierArgs {
    #[command(subcommand)]
    pub(super) command: TierCommand,
}

/// Examples and exit codes, for the help and the manual page.
const LIST_MANUAL: &str = "\
Examples:
  nacre tier list --json /mnt
      Prints the tiers with exact bytes, for a script.
";
/// Examples and exit codes, for the help and the manual page.
const ADD_MANUAL: &str = "\
Examples:
  nacre tier add /mnt --size 100G /srv/disk
      Makes a file of 100 GiB, and adds it as a tier.
";
/// Examples and exit codes, for the help and the manual page.
const DRAIN_MANUAL: &str = "\
Examples:
  nacre tier drain /mnt 1
      Empties the first tier.
";
/// Examples and exit codes, for the help and the manual page.
const REMOVE_MANUAL: &str = "\
Examples:
  nacre tier remove /mnt /dev/sdb
      Empties a disk, which then belongs to no file system.
";
/// Examples and exit codes, for the help and the manual page.
const OFFLINE_MANUAL: &str = "\
Examples:
  nacre tier offline /mnt 2
      Releases the device of the second tier.
";
/// Examples and exit codes, for the help and the manual page.
const ONLINE_MANUAL: &str = "\
Examples:
  nacre tier online /mnt /dev/sdc
      Uses a device again, also under a new path.
";
/// Examples and exit codes, for the help and the manual page.
const TRIM_MANUAL: &str = "\
Examples:
  nacre tier trim --minimum 1M /mnt
      Reports unused runs of at least 1 MiB on all tiers.
";
/// Examples and exit codes, for the help and the manual page.
const REPLACE_MANUAL: &str = "\
Examples:
  nacre tier replace /mnt 1 /dev/sdc
      Moves the first tier to another disk.
";

#[derive(Debug, Subcommand)]
pub(super) enum TierCommand {
    /// Show the tiers and their space
    #[command(after_long_help = LIST_MANUAL)]
    List {
        /// Print them as JSON, with exact bytes
        #[arg(long)]
        json: bool,
        /// A file or directory on the mounted file system, or its device
        #[arg(value_name = "DIR|DEVICE")]
        path: PathBuf,
    },
    /// Make a device a tier, for blocks that are not written for a long time
    #[command(after_long_help = ADD_MANUAL)]
    Add {
        #[command(flatten)]
        new: NewArgs,
        #[command(flatten)]
        how: HowArgs,
        /// A file or directory on the mounted file system, or its device
        #[arg(value_name = "DIR|DEVICE")]
        path: PathBuf,
        /// A file or a block device
        #[arg(value_name = "TIER-DEVICE")]
        device: PathBuf,
    },
    /// Move all blocks of a tier to other tiers and to PM
    ///
    /// A drain can be interrupted, and goes on when it is called again.
    #[command(after_long_help = DRAIN_MANUAL)]
    Drain {
        /// Place blocks on the tier again instead
        #[arg(long)]
        cancel: bool,
        #[command(flatten)]
        which: WhichArgs,
    },
    /// Drain a tier, and release its device
    #[command(after_long_help = REMOVE_MANUAL)]
    Remove {
        #[command(flatten)]
        which: WhichArgs,
    },
    /// Release the device of a tier for a while
    ///
    /// Blocks on the tier cannot be read until it is online again.
    #[command(after_long_help = OFFLINE_MANUAL)]
    Offline {
        #[command(flatten)]
        which: WhichArgs,
    },
    /// Use the device of a tier again that was offline, missing, or failed
    #[command(after_long_help = ONLINE_MANUAL)]
    Online {
        #[command(flatten)]
        how: HowArgs,
        /// Emulate the speed of this disk
        #[arg(long, value_name = "DISK", value_parser = disk)]
        emulate: Option<String>,
        /// A file or directory on the mounted file system, or its device
        #[arg(value_name = "DIR|DEVICE")]
        path: PathBuf,
        /// The device of the tier
        #[arg(value_name = "TIER-DEVICE")]
        device: PathBuf,
    },
    /// Report unused blocks to the devices of tiers, as fstrim(8) does
    #[command(after_long_help = TRIM_MANUAL)]
    Trim {
        /// The shortest run that is reported, as 1M
        #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "4K")]
        minimum: u64,
        #[command(flatten)]
        how: HowArgs,
        /// A file or directory on the mounted file system, or its device
        #[arg(value_name = "DIR|DEVICE")]
        path: PathBuf,
        /// Only this tier: its number, its UUID, or the path of its device
        #[arg(value_name = "TIER")]
        tier: Option<String>,
    },
    /// Move all blocks of a tier to a new device, and release the old one
    ///
    /// The command can be interrupted, and goes on when it is called again.
    #[command(after_long_help = REPLACE_MANUAL)]
    Replace {
        #[command(flatten)]
        new: NewArgs,
        #[command(flatten)]
        which: WhichArgs,
        /// A file or a block device
        #[arg(value_name = "NEW-DEVICE")]
        device: PathBuf,
    },
}

/// Arguments for a new tier.
#[derive(Debug, Clone, Args)]
pub(super) struct NewArgs {
    /// Size of the file, as 1G or 512M; makes the file if it is not there
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(super) size: Option<u64>,
    /// The rank: blocks go to the smallest rank with room; by default 3 for a rotating disk, otherwise 2
    #[arg(long, value_name = "N")]
    pub(super) rank: Option<u8>,
    /// Emulate the speed of this disk: optane-ssd, nvme, sata-ssd, hdd and others, as nvme,flush=0
    #[arg(long, value_name = "DISK", value_parser = disk)]
    pub(super) emulate: Option<String>,
    /// Overwrite the contents of the device
    #[arg(short, long)]
    pub(super) force: bool,
}

/// Arguments of commands that change tiers.
#[derive(Debug, Clone, Args)]
pub(super) struct HowArgs {
    /// Print the changes, and make none
    #[arg(short = 'n', long)]
    pub(super) dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Arguments that name an existing tier.
#[derive(Debug, Clone, Args)]
pub(super) struct WhichArgs {
    #[command(flatten)]
    pub(super) how: HowArgs,
    /// A file or directory on the mounted file system, or its device
    #[arg(value_name = "DIR|DEVICE")]
    pub(super) path: PathBuf,
    /// The number of the tier, its UUID, or the path of its device
    #[arg(value_name = "TIER")]
    pub(super) tier: String,
}

fn disk(text: &str) -> nacre::Result<String> {
    text.parse::<Disk>().map(|_| text.to_owned())
}
