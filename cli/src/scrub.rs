//! `nacre scrub`: looks for damage on a mounted file system.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use nacre_control::{Command, Question};
use nacre_engine::size;
use serde_json::{Value, json};

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
            let mut status = mounted::ask(STATUS, &mount_of(STATUS, &path)?, QUESTION)?;
            let sound = status["findings"].as_array().is_none_or(Vec::is_empty);
            if json {
                status["path"] = json!(path.display().to_string());
                output::json(status)?;
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
                failed(&format!("{rate} in a second are too few")).advice("give a rate of at least 256K")
            }
            rustix::io::Errno::PERM => failed("only root and the user that mounted it may do this"),
            rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED => mounted::ended(START, &mountpoint),
            other => failed(&other.to_string()),
        }
    })
}

fn describe(path: &Path, status: &Value) -> String {
    let number = |name: &str| status[name].as_u64().unwrap_or(0);
    let path = path.display();
    let findings = status["findings"].as_array().map_or(&[][..], Vec::as_slice);
    let mut text = String::new();
    for finding in findings {
        text += &format!("{path}: {}\n", finding.as_str().unwrap_or_default());
    }
    let known = status["known"].as_array().map_or(&[][..], Vec::as_slice);
    for finding in known {
        text += &format!("{path}: known before: {}\n", finding.as_str().unwrap_or_default());
    }
    if number("more_findings") + number("more_known") > 0 {
        text += &format!("{path}: {} more are not shown\n", number("more_findings") + number("more_known"));
    }
    let state = status["state"].as_str().unwrap_or("unknown");
    if state == "never" {
        return format!("{path}: not scrubbed since it was mounted\n");
    }
    text += &format!(
        "{path}: {state}; {} of {} read, {}; {}, {} repaired; {} known before; {}\n",
        size::print(number("bytes")),
        size::print(number("total")),
        output::count(number("inodes"), "inode", "inodes"),
        output::count(findings.len() as u64 + number("more_findings"), "finding", "findings"),
        number("repaired"),
        known.len() as u64 + number("more_known"),
        output::count(number("bad_blocks"), "bad block", "bad blocks"),
    );
    for tier in status["tiers"].as_array().into_iter().flatten() {
        let bytes = |name: &str| size::print(tier[name].as_u64().unwrap_or(0));
        let of = if state == "running" { format!(" of {}", bytes("used")) } else { String::new() };
        text += &format!("{path}: tier {}: {}{of} of files read\n", tier["tier"], bytes("bytes"));
    }
    for what in status["not_checked"].as_array().into_iter().flatten() {
        text += &format!("{path}: not checked: {}\n", what.as_str().unwrap_or_default());
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::describe;

    #[test]
    fn people_see_what_is_damaged() {
        let status = json!({ "state": "finished", "bytes": 4096, "total": 4096, "inodes": 3, "repaired": 0,
            "bad_blocks": 1, "findings": ["/a (inode 7): a media error in bytes 0 to 64"] });
        let text = describe(Path::new("/mnt"), &status);
        assert!(text.starts_with("/mnt: /a (inode 7): a media error in bytes 0 to 64\n"), "{text}");
        assert!(
            text.contains("finished; 4 KiB of 4 KiB read, 3 inodes; 1 finding, 0 repaired; 0 known before; 1 bad block\n"),
            "{text}"
        );
        assert!(describe(Path::new("/mnt"), &json!({ "state": "never" })).contains("not scrubbed"));
        let retired = json!({ "state": "finished", "findings": [], "known": ["/a (inode 7): lost"] });
        let text = describe(Path::new("/mnt"), &retired);
        assert!(text.starts_with("/mnt: known before: /a (inode 7): lost\n"), "{text}");
        assert!(text.contains("0 findings, 0 repaired; 1 known before;"), "{text}");
        let status = json!({ "state": "running", "tiers": [{ "tier": 2, "bytes": 4096, "used": 8192 }],
            "not_checked": ["tier 1: it was taken offline"] });
        let text = describe(Path::new("/mnt"), &status);
        assert!(text.contains("/mnt: tier 2: 4 KiB of 8 KiB of files read\n"), "{text}");
        assert!(text.ends_with("/mnt: not checked: tier 1: it was taken offline\n"), "{text}");
    }
}
