//! `nacre promote`, `demote`, `pin` and `unpin`: requested placement of files.

use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Args;
use nacre::PIN;
use nacre_control::{FilesMoved, FilesToMove, Order};
use nacre_engine::size;
use serde_json::json;

use crate::failure::Failure;
use crate::{mounted, mover, names, output, tier};

/// Files in one order: the most that move together. Their inode numbers, of up to 14 digits each, are the value of an
/// attribute.
const FILES_AT_ONCE: usize = 4096;

/// Examples and exit codes, for the help and the manual page.
pub(crate) const PROMOTE_MANUAL: &str = "\
Examples:
  nacre promote /mnt/database
      Moves a file to PM.

Exit status:
  0   all files moved
  1   a file cannot move, or failure
  2   a wrong command line

See also:
  nacre-stat(8), nacre-pin(8), nacre-tier(8)
";
/// Examples and exit codes, for the help and the manual page.
pub(crate) const DEMOTE_MANUAL: &str = "\
Examples:
  nacre demote -r --tier 1 /mnt/archive
      Moves all files of a directory to the first tier.

Exit status:
  0   all files moved
  1   a file cannot move, or failure
  2   a wrong command line

See also:
  nacre-stat(8), nacre-pin(8), nacre-tier(8)
";
/// Examples and exit codes, for the help and the manual page.
pub(crate) const PIN_MANUAL: &str = "\
Examples:
  nacre pin -r /mnt/database
      Keeps a directory on PM, if it is there, with files that are made later.

See also:
  nacre-unpin(8), nacre-promote(8)
";
/// Examples and exit codes, for the help and the manual page.
pub(crate) const UNPIN_MANUAL: &str = "\
Examples:
  nacre unpin -r /mnt/database
      Ends the pins of a directory.

See also:
  nacre-pin(8)
";

/// Arguments that name files.
#[derive(Debug, Args)]
pub(crate) struct FilesArgs {
    /// Directories with all of their content
    #[arg(short, long)]
    recursive: bool,
    /// Print the changes, and make none
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Files and directories on mounted file systems
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

/// Arguments of `nacre demote`.
#[derive(Debug, Args)]
pub(crate) struct DemoteArgs {
    /// The number of the tier; by default the fastest in use
    #[arg(long, value_name = "N")]
    tier: Option<u8>,
    #[command(flatten)]
    files: FilesArgs,
}

/// Promotes files to PM; false if one of them failed.
pub(crate) fn promote(args: &FilesArgs) -> Result<bool, Failure> {
    relocate("promote", args, |_| Ok(None))
}

/// Demotes files to a tier; false if one of them failed.
pub(crate) fn demote(args: &DemoteArgs) -> Result<bool, Failure> {
    relocate("demote", &args.files, |path| match args.tier {
        Some(number) => Ok(Some(number)),
        None => fastest(path).map(Some),
    })
}

fn fastest(path: &Path) -> Result<u8, Failure> {
    let tiers = tier::tiers_of("demote", path)?;
    let usable = tiers.iter().filter(|tier| tier.is_in_use()).min_by_key(|tier| (tier.rank, tier.number));
    if let Some(tier) = usable {
        return Ok(tier.number);
    }
    let advice = match (mover::is_there("demote", path)?, tiers.is_empty()) {
        (false, _) => tier::NO_TIERS,
        (true, true) => tier::MAKE_ONE,
        (true, false) => "nacre tier list says why; --tier chooses one all the same",
    };
    Err(Failure::new("demote", path.display(), "its file system has no tier in use").advice(advice))
}

/// Moves files; false if one of them failed, which was reported.
fn relocate(
    operation: &str,
    args: &FilesArgs,
    to: impl Fn(&Path) -> Result<Option<u8>, Failure>,
) -> Result<bool, Failure> {
    let (mut files, mut moved, mut failed) = (0, 0, 0);
    let mut seen = HashSet::new();
    for top in &args.paths {
        let to = match to(top) {
            Ok(to) => to,
            Err(failure) => {
                failure.report();
                failed += 1;
                continue;
            }
        };
        let mut found = Found { operation, top, to, files: Vec::new(), moved: 0, failed: 0 };
        let lost = each(operation, args, top, &mut seen, &mut |path, metadata| {
            if metadata.is_file() {
                files += 1;
                if !args.dry_run {
                    found.add(path, metadata.ino());
                }
            }
            Ok(())
        });
        found.move_all();
        (moved, failed) = (moved + found.moved, failed + found.failed + lost);
    }
    if args.json {
        let said = json!({ "files": files, "moved": moved, "failed": failed, "dry_run": args.dry_run });
        return output::json(said).map(|()| failed == 0);
    }
    let mut said = if args.dry_run {
        output::count(files, "file would be moved, if its", "files would be moved, if their") + " blocks can"
    } else {
        format!("{}, {} moved", output::count(files, "file", "files"), size::print(moved))
    };
    if failed > 0 {
        said = format!("{said}, {failed} failed");
    }
    output::text_out(&format!("{said}\n")).map(|()| failed == 0)
}

/// Files that were found and are moved together.
struct Found<'a> {
    operation: &'a str,
    /// The path through which the mount gets orders.
    top: &'a Path,
    to: Option<u8>,
    /// Paths and inode numbers.
    files: Vec<(PathBuf, u64)>,
    /// Bytes that were moved.
    moved: u64,
    /// Files that did not move, or only in part.
    failed: usize,
}

impl Found<'_> {
    fn add(&mut self, path: &Path, inode: u64) {
        self.files.push((path.to_owned(), inode));
        if self.files.len() >= FILES_AT_ONCE {
            self.move_all();
        }
    }

    /// Moves the files, and reports those that fail.
    fn move_all(&mut self) {
        let files = std::mem::take(&mut self.files);
        let (mut left, mut from) = (&files[..], 0);
        while !left.is_empty() {
            let inodes = left.iter().map(|(_, inode)| *inode).collect();
            let order = Order::MoveFiles(FilesToMove { to: self.to, from, inodes });
            let done: FilesMoved = match mounted::order(self.operation, self.top, order) {
                Ok(done) => done,
                // The path is gone, and so are its files.
                Err(_) if is_gone(self.top) => return,
                Err(failure) => {
                    failure.of(self.top).report();
                    self.failed += left.len();
                    return;
                }
            };
            self.moved += done.moved;
            self.failed += done.failed.len();
            for (file, why) in done.failed {
                if let Some((path, inode)) = left.get(file) {
                    let name = |number| (number == *inode).then(|| path.display().to_string());
                    let why = names::named(&why, name);
                    Failure::named(self.operation, why).of(path).report();
                }
            }
            // An answer must not lead backwards.
            if done.next == 0 && done.from <= from {
                break;
            }
            (left, from) = (left.get(done.next..).unwrap_or_default(), done.from);
        }
    }
}

/// Pins files to their place, and directories for new files in them; false if one of them failed.
pub(crate) fn pin(args: &FilesArgs) -> Result<bool, Failure> {
    mark("pin", "pinned", args, |path| {
        rustix::fs::lsetxattr(path, PIN, b"1", rustix::fs::XattrFlags::empty())
    })
}

/// Unpins files and directories; false if one of them failed.
pub(crate) fn unpin(args: &FilesArgs) -> Result<bool, Failure> {
    mark("unpin", "not pinned any more", args, |path| match rustix::fs::lremovexattr(path, PIN) {
        Err(rustix::io::Errno::NODATA) => Ok(()),
        other => other,
    })
}

/// Marks files and directories; false if one of them failed, which was reported.
fn mark(
    operation: &str,
    what: &str,
    args: &FilesArgs,
    act: impl Fn(&Path) -> rustix::io::Result<()>,
) -> Result<bool, Failure> {
    let (mut count, mut failed, mut seen) = (0, 0, HashSet::new());
    for top in &args.paths {
        failed += each(operation, args, top, &mut seen, &mut |path, metadata| {
            // No other type of inode has blocks that move, or passes the mark on.
            if !metadata.is_file() && !metadata.is_dir() {
                return Ok(());
            }
            if !args.dry_run {
                act(path).map_err(|error| Failure::new(operation, path.display(), error))?;
            }
            count += 1;
            Ok(())
        });
    }
    if args.json {
        let said = json!({ "count": count, "failed": failed, "dry_run": args.dry_run });
        return output::json(said).map(|()| failed == 0);
    }
    let would = if args.dry_run { "would be " } else { "" };
    let files = output::count(count, "file or directory", "files and directories");
    let lost = if failed > 0 { format!(", {failed} failed") } else { String::new() };
    output::text_out(&format!("{files}: {would}{what}{lost}\n")).map(|()| failed == 0)
}

/// True if the path was removed or renamed since it was found.
fn is_gone(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Calls `act` for a path and, if requested, for everything below it, once for each inode. `seen` has the hard links of
/// earlier walks, by device and inode. The walk stays on one file system, and follows no symbolic link. Returns the
/// number of failures, which were reported; they do not end the walk.
fn each(
    operation: &str,
    args: &FilesArgs,
    top: &Path,
    seen: &mut HashSet<(u64, u64)>,
    act: &mut dyn FnMut(&Path, &Metadata) -> Result<(), Failure>,
) -> usize {
    let mut count = 0;
    let mut failed = |failure: Failure| {
        failure.report();
        count += 1;
    };
    let cannot = |path: &Path, error: io::Error| Failure::new(operation, path.display(), error);
    let device = match device_of(operation, args, top) {
        Ok(device) => device,
        Err(failure) => {
            failed(failure);
            return count;
        }
    };
    // Not by recursion: directories may be deeper than a stack.
    let mut waiting = vec![top.to_owned()];
    while let Some(path) = waiting.pop() {
        // It was removed after it was found.
        let is_passed = || path != top && is_gone(&path);
        let metadata = match fs::symlink_metadata(&path) {
            Ok(metadata) => metadata,
            Err(_) if is_passed() => continue,
            Err(error) => {
                let has_ended = is_from_no_server(&error);
                failed(cannot(&path, error));
                if has_ended {
                    break;
                }
                continue;
            }
        };
        if metadata.dev() != device
            || metadata.nlink() > 1 && metadata.is_file() && !seen.insert((device, metadata.ino()))
        {
            continue;
        }
        if let Err(failure) = act(&path, &metadata) {
            failed(failure);
        }
        if !metadata.is_dir() || !args.recursive {
            continue;
        }
        match fs::read_dir(&path) {
            Ok(entries) => {
                for entry in entries {
                    match entry {
                        Ok(entry) => waiting.push(entry.path()),
                        Err(error) => failed(cannot(&path, error)),
                    }
                }
            }
            Err(_) if is_passed() => {}
            Err(error) => failed(cannot(&path, error)),
        }
    }
    count
}

/// True for the error of every path of a mount whose server has ended.
fn is_from_no_server(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotConnected | io::ErrorKind::ConnectionAborted)
}

/// The device number of a path that the command line names. An error means that nothing there can be placed.
fn device_of(operation: &str, args: &FilesArgs, top: &Path) -> Result<u64, Failure> {
    let failed = |cause: &dyn std::fmt::Display| Failure::new(operation, top.display(), cause);
    if mounted::serving(operation, top)?.is_none() {
        return Err(mounted::is_not_ours(operation, top).advice("nacre df lists those that are mounted"));
    }
    let metadata = fs::symlink_metadata(top).map_err(|error| failed(&error))?;
    let kind = metadata.file_type();
    if kind.is_symlink() {
        return Err(failed(&"it is a symbolic link").advice("give the file that it leads to"));
    }
    if !kind.is_file() && !kind.is_dir() {
        return Err(failed(&"it is neither a file nor a directory; it has no blocks that move"));
    }
    if kind.is_dir() && !args.recursive && matches!(operation, "promote" | "demote") {
        return Err(failed(&"it is a directory").advice("-r includes its content"));
    }
    Ok(metadata.dev())
}
