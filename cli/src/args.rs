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
use crate::place::{DemoteArgs, FilesArgs};
use crate::scrub::ScrubArgs;
use crate::stat::StatArgs;
use crate::tier::TierArgs;
use crate::top::TopArgs;
use crate::umount::UmountArgs;

/// A file system in user space for persistent memory
///
/// Sizes are written as 1G or 512M. Errors go to standard error; the exit code is 0 for success, 1 for failure and 2
/// for a wrong command line; fsck and mount use the codes of fsck(8) and mount(8).
#[derive(Debug, Parser)]
#[command(name = "nacre", version, propagate_version = true, max_term_width = 100)]
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
    /// Unmount it; returns when its device is free
    Umount(UmountArgs),
    /// Check a file system that is not mounted, and repair it
    Fsck(FsckArgs),
    /// Look for damage on a mounted file system
    Scrub(ScrubArgs),
    /// Show what a device holds and promises
    Info(InfoArgs),
    /// Show space and its use
    Df(DfArgs),
    /// Watch what a mounted file system does: places, traffic, what moves, and hot files
    Top(TopArgs),
    /// Show where a file lives
    Stat(StatArgs),
    /// Show and change the disks below persistent memory of a mounted file system
    Tier(TierArgs),
    /// Bring files up to persistent memory
    Promote(FilesArgs),
    /// Move files down to a tier
    Demote(DemoteArgs),
    /// Have files stay where they are, and what is made in directories from now on
    Pin(FilesArgs),
    /// Let files move again
    Unpin(FilesArgs),
    /// Show and steer what moves blocks between persistent memory and tiers
    Mover(MoverArgs),
    /// Crash a layout in every way, over simulated memory, and see that it loses nothing
    Crash(CrashArgs),
    /// Measure it beside other file systems, on the same work
    Bench(BenchArgs),
    /// Watch it work, be killed, and lose nothing
    Demo(DemoArgs),
    /// Print the completion script of a shell
    Completions(CompletionsArgs),
    /// Write the manual pages into a directory
    Man(ManArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Which shell
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Where the pages go; the directory is made
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
}
