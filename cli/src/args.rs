//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use nacre_bench::BenchArgs;

use crate::crash::CrashArgs;
use crate::demo::DemoArgs;
use crate::df::DfArgs;
use crate::fsck::FsckArgs;
use crate::info::InfoArgs;
use crate::mkfs::MkfsArgs;
use crate::mount::MountArgs;
use crate::mover::MoverArgs;
use crate::place::{self, DemoteArgs, FilesArgs};
use crate::scrub::ScrubArgs;
use crate::stat::StatArgs;
use crate::tier::TierArgs;
use crate::top::TopArgs;
use crate::umount::UmountArgs;
use crate::volume::VolumeArgs;

/// Examples and exit codes, for the help and the manual page.
const MANUAL: &str = "\
Examples:
  nacre mkfs --size 1G /dev/shm/pm
      Makes a file that emulates PM, with a file system.
  nacre mount /dev/shm/pm /mnt
      Mounts it.
  nacre umount /mnt
      Unmounts it.

Exit status:
  0   success
  1   failure
  2   a wrong command line

Files:
  /dev/dax0.0
      A devdax device, which is safe against power loss.
  /dev/shm/pm
      A file that emulates PM.

See also:
  mount.nacre(8), umount.nacre(8), mkfs.nacre(8), fsck.nacre(8), mount(8), fstab(5)
";
/// Examples and exit codes, for the help and the manual page.
const COMPLETIONS_MANUAL: &str = "\
Examples:
  nacre completions bash >/etc/bash_completion.d/nacre
      Installs the completions of bash.
";
/// Examples and exit codes, for the help and the manual page.
const MAN_MANUAL: &str = "\
Examples:
  nacre man /usr/local/share/man/man8
      Installs the pages.
";

/// A file system in user space for persistent memory (PM)
///
/// Sizes are written as 1G or 512M. Errors go to standard error. A message has the operation, the object, the cause and
/// the way out.
#[derive(Debug, Parser)]
#[command(name = "nacre", version, propagate_version = true, max_term_width = 100, after_long_help = MANUAL)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a file system on a device or in a file
    Mkfs(MkfsArgs),
    /// Mount a file system; returns when it can be used
    Mount(MountArgs),
    /// Unmount a file system; returns when its device is free
    Umount(UmountArgs),
    /// Check a file system that is not mounted, and repair it
    ///
    /// Without -p and -y it changes nothing. Each finding names the structure, and the action of -p or -y.
    Fsck(FsckArgs),
    /// Look for damage on a mounted file system
    Scrub(ScrubArgs),
    /// Show the file system of a device, its persistence domain and its state
    ///
    /// On a mount it also shows the server, its settings, and counters since the mount.
    Info(InfoArgs),
    /// Show space and its use
    Df(DfArgs),
    /// Watch a mounted file system: places, traffic, moves, and hot files
    Top(TopArgs),
    /// Show the places of a file's blocks
    Stat(StatArgs),
    /// Show and change the disks below PM of a mounted file system
    Tier(TierArgs),
    /// Show and change the volumes of a device, which are file systems of their own
    Volume(VolumeArgs),
    /// Move files to PM
    ///
    /// A file that cannot move is named on standard error, and the others move.
    #[command(after_long_help = place::PROMOTE_MANUAL)]
    Promote(FilesArgs),
    /// Move files to a tier
    ///
    /// A file that cannot move is named on standard error, and the others move. Small files move together.
    #[command(after_long_help = place::DEMOTE_MANUAL)]
    Demote(DemoteArgs),
    /// Keep files where they are
    ///
    /// Files and directories that are made later in a pinned directory are pinned, too. A pin is the extended attribute
    /// user.nacre.pin.
    #[command(after_long_help = place::PIN_MANUAL)]
    Pin(FilesArgs),
    /// Let pinned files move again
    #[command(after_long_help = place::UNPIN_MANUAL)]
    Unpin(FilesArgs),
    /// Show and control the mover of blocks between PM and tiers
    Mover(MoverArgs),
    /// Crash a layout in every way, over simulated PM, and check that it loses nothing
    ///
    /// The layout's own code runs over simulated PM that records every store, flush and fence. At each fence the
    /// command recovers and checks the images that a crash may leave, and compares them with a model. Acknowledged
    /// operations must be there. Operations in flight must be there completely or not at all. With the in-place layouts,
    /// an overwrite in flight may be there in part. docs/design/crash-model.md lists the assumptions and the coverage.
    Crash(CrashArgs),
    /// Compare nacre with other file systems, on the same work
    Bench(BenchArgs),
    /// Show nacre at work: a load, a kill in the middle, and a check of every byte
    Demo(DemoArgs),
    /// Print the completion script of a shell
    Completions(CompletionsArgs),
    /// Write the manual pages into a directory
    Man(ManArgs),
}

#[derive(Debug, Args)]
#[command(after_long_help = COMPLETIONS_MANUAL)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
#[command(after_long_help = MAN_MANUAL)]
pub(crate) struct ManArgs {
    /// The directory for the pages, which is made
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
}
