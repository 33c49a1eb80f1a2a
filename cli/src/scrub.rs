//! `nacre scrub`: looks for damage on a mounted file system.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use nacre_control::{Command, Question, ScrubInfo};
use nacre_engine::size;
use serde_json::json;

use crate::failure::Failure;
use crate::{mounted, output};

/// The attribute with the state of a scrub; writing it starts one.
const QUESTION: &str = Question::Scrub.attribute();
/// The names of the operations in failures.
const START: &str = "scrub start";
const STATUS: &str = "scrub status";

/// Examples and exit codes, for the help and the manual page.
const MANUAL: &str = "\
Examples:
  nacre scrub start /mnt
      Reads everything on the mount and its tiers.
  nacre scrub status /mnt
      Shows the findings.

See also:
  nacre-fsck(8)
";

/// Examples and exit codes, for the help and the manual page.
const START_MANUAL: &str = "\
Examples:
  nacre scrub start --rate 50M /mnt
      Reads at most 50 MiB in a second.
";
/// Examples and exit codes, for the help and the manual page.
const STATUS_MANUAL: &str = "\
Examples:
  nacre scrub status --json /mnt
      Prints the findings for a script.

Exit status:
  0   no new damage
  1   new damage, or failure
  2   a wrong command line
";

/// Arguments of `nacre scrub`.
#[derive(Debug, Args)]
#[command(after_long_help = MANUAL)]
pub(crate) struct ScrubArgs {
    #[command(subcommand)]
    command: ScrubCommand,
}

#[derive(Debug, Subcommand)]
enum ScrubCommand {
    /// Start to read everything in the background; returns at once
    #[command(after_long_help = START_MANUAL)]
    Start {
        /// Bytes that are read in a second at most
        #[arg(long, value_name = "SIZE", value_parser = size::parse)]
        rate: Option<u64>,
        /// A file or directory on the mounted file system, or its device
        #[arg(value_name = "DIR|DEVICE")]
        path: PathBuf,
    },
    /// Show the progress of a scrub, and its findings
    ///
    /// Damage in blocks that were retired and reported before the scrub is shown as known, and is no finding.
    #[command(after_long_help = STATUS_MANUAL)]
    Status {
        /// Print it as JSON, with exact bytes
        #[arg(long)]
        json: bool,
        /// A file or directory on the mounted file system, or its device
        #[arg(value_name = "DIR|DEVICE")]
        path: PathBuf,
    },
}

/// Starts a scrub, or reports its state. True if it found no new damage.
pub(crate) fn run(args: ScrubArgs) -> Result<bool, Failure> {
    match args.command {
        ScrubCommand::Start { rate, path } => start(&path, rate).map(|()| true),
        ScrubCommand::Status { json, path } => {
            let status: ScrubInfo = mounted::ask(STATUS, &mount_of(STATUS, &path)?, QUESTION)?;
            let sound = status.findings.is_empty();
            if json {
                let mut said = json!(status);
                said["path"] = json!(path.display().to_string());
                output::json(said)?;
            } else {
                output::text_out(&describe(&path, &status))?;
            }
            Ok(sound)
        }
    }
}

/// The mountpoint of the mount that serves a path or a device.
fn mount_of(operation: &str, path: &Path) -> Result<PathBuf, Failure> {
    let is_served = mounted::serving(operation, path)?.is_some() || mounted::of_device(path)?.is_some();
    if !is_served {
        return Err(mounted::is_not_ours(operation, path)
            .advice("nacre fsck -c checks a device that is not mounted; nacre df lists those that are"));
    }
    mounted::mountpoint(operation, path)
}

fn start(path: &Path, rate: Option<u64>) -> Result<(), Failure> {
    let word = rate.map_or_else(|| "start".to_owned(), |rate| format!("start {rate}"));
    let mountpoint = mount_of(START, path)?;
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&mountpoint, Command::Scrub.attribute(), word.as_bytes(), flags).map_err(|error| {
        let failed = |cause: &str| Failure::new(START, mountpoint.display(), cause);
        let rate = size::exact(rate.unwrap_or(0));
        match error {
            rustix::io::Errno::BUSY => failed("a scrub is running").advice("nacre scrub status shows it"),
            rustix::io::Errno::INVAL => {
                failed(&format!("a rate of {rate} in a second is too low")).advice("give at least 256K")
            }
            rustix::io::Errno::PERM => failed(mounted::NOT_YOURS),
            rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED => mounted::ended(START, &mountpoint),
            other => failed(&other.to_string()),
        }
    })
}

fn describe(path: &Path, status: &ScrubInfo) -> String {
    let path = path.display();
    if status.state == "never" {
        return format!("{path}: not scrubbed since it was mounted\n");
    }
    let mut text = String::new();
    for finding in &status.findings {
        text += &format!("{path}: {finding}\n");
    }
    for finding in &status.known {
        text += &format!("{path}: known before: {finding}\n");
    }
    let more = status.more_findings + status.more_known;
    if more > 0 {
        text += &format!("{path}: {more} more are not shown\n");
    }
    text += &format!(
        "{path}: {}; {} of {} read, {}; {}, {} repaired; {} known before; {}\n",
        status.state,
        size::print(status.bytes),
        size::print(status.total),
        output::count(status.inodes, "inode", "inodes"),
        output::count(status.findings.len() as u64 + status.more_findings, "finding", "findings"),
        status.repaired,
        status.known.len() as u64 + status.more_known,
        output::count(status.bad_blocks, "bad block", "bad blocks"),
    );
    for tier in &status.tiers {
        let of = match status.state.as_str() {
            "running" => format!(" of {}", size::print(tier.used)),
            _ => String::new(),
        };
        text += &format!("{path}: tier {}: {}{of} of files read\n", tier.tier, size::print(tier.bytes));
    }
    for what in &status.not_checked {
        text += &format!("{path}: not checked: {what}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use nacre_control::{ScrubInfo, TierScrubInfo};

    use super::describe;

    #[test]
    fn people_see_what_is_damaged() {
        let status = ScrubInfo {
            state: "finished".to_owned(),
            bytes: 4096,
            total: 4096,
            inodes: 3,
            bad_blocks: 1,
            findings: vec!["/a (inode 7): a media error in bytes 0 to 64".to_owned()],
            ..ScrubInfo::default()
        };
        let text = describe(Path::new("/mnt"), &status);
        assert!(text.starts_with("/mnt: /a (inode 7): a media error in bytes 0 to 64\n"), "{text}");
        assert!(
            text.contains("finished; 4 KiB of 4 KiB read, 3 inodes; 1 finding, 0 repaired; 0 known before; 1 bad block\n"),
            "{text}"
        );
        let in_state = |state: &str| ScrubInfo { state: state.to_owned(), ..ScrubInfo::default() };
        assert!(describe(Path::new("/mnt"), &in_state("never")).contains("not scrubbed"));
        let retired = ScrubInfo { known: vec!["/a (inode 7): lost".to_owned()], ..in_state("finished") };
        let text = describe(Path::new("/mnt"), &retired);
        assert!(text.starts_with("/mnt: known before: /a (inode 7): lost\n"), "{text}");
        assert!(text.contains("0 findings, 0 repaired; 1 known before;"), "{text}");
        let status = ScrubInfo {
            tiers: vec![TierScrubInfo { tier: 2, bytes: 4096, used: 8192, unread: None }],
            not_checked: vec!["tier 1: it was taken offline".to_owned()],
            ..in_state("running")
        };
        let text = describe(Path::new("/mnt"), &status);
        assert!(text.contains("/mnt: tier 2: 4 KiB of 8 KiB of files read\n"), "{text}");
        assert!(text.ends_with("/mnt: not checked: tier 1: it was taken offline\n"), "{text}");
    }
}
