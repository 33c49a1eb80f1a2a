//! `nacre promote`, `demote`, `pin` and `unpin`: where files are to live.

use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Args;
use nacre::PIN;
use nacre_engine::size;
use serde_json::json;

use crate::control::{FilesMoved, FilesToMove, Order};
use crate::failure::Failure;
use crate::{mounted, mover, names, output, tier};

/// Files that a mount is told to move at once: as many move together at the most, and their numbers, of up to 14 digits
/// each, are the value of an attribute.
const FILES_AT_ONCE: usize = 4096;

/// Files, and how they are dealt with.
#[derive(Debug, Args)]
pub(crate) struct FilesArgs {
    /// Of directories everything that is in them, too
    #[arg(short, long)]
    recursive: bool,
    /// Say what would be done, and do nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Files and directories on mounted file systems
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

/// What `nacre demote` is told.
#[derive(Debug, Args)]
pub(crate) struct DemoteArgs {
    /// Number of the tier; by default the fastest that is in use
    #[arg(long, value_name = "N")]
    tier: Option<u8>,
    #[command(flatten)]
    files: FilesArgs,
}

/// Brings files up to persistent memory; false when one of them failed.
pub(crate) fn promote(args: &FilesArgs) -> Result<bool, Failure> {
    relocate("promote", args, |_| Ok(None))
}

/// Moves files to a tier; false when one of them failed.
pub(crate) fn demote(args: &DemoteArgs) -> Result<bool, Failure> {
    relocate("demote", &args.files, |path| match args.tier {
        Some(number) => Ok(Some(number)),
        None => fastest(path).map(Some),
    })
}

fn fastest(path: &Path) -> Result<u8, Failure> {
    let (tiers, _) = tier::tiers_of("demote", path)?;
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

/// Moves files; false when one of them failed, which was said.
fn relocate(
    operation: &str,
    args: &FilesArgs,
    to: impl Fn(&Path) -> Result<Option<u8>, Failure>,
) -> Result<bool, Failure> {
    let (mut files, mut moved, mut failed) = (0, 0, 0);
    for top in &args.paths {
        let mut found = Found { operation, top, to: to(top)?, files: Vec::new(), moved: 0, failed: 0 };
        let walked = each(operation, args, top, &mut |path, metadata| {
            if !metadata.is_file() {
                return Ok(());
            }
            files += 1;
            if args.dry_run { Ok(()) } else { found.add(path, metadata.ino()) }
        });
        // Also what was found before something could not be looked at.
        found.move_all()?;
        walked?;
        (moved, failed) = (moved + found.moved, failed + found.failed);
    }
    if args.json {
        let said = json!({ "files": files, "moved": moved, "failed": failed, "dry_run": args.dry_run });
        return output::json(said).map(|()| failed == 0);
    }
    let mut said =
        if args.dry_run { "would be looked at".to_owned() } else { format!("{} moved", size::print(moved)) };
    if failed > 0 {
        said = format!("{said}, {failed} failed");
    }
    let files = output::count(files, "file", "files");
    output::text_out(&format!("{files}, {said}\n")).map(|()| failed == 0)
}

/// Files that were found, and wait to be moved together.
struct Found<'a> {
    operation: &'a str,
    /// What their mount is told by.
    top: &'a Path,
    to: Option<u8>,
    /// With the numbers of their inodes.
    files: Vec<(PathBuf, u64)>,
    /// Bytes.
    moved: u64,
    /// Those that did not move, or only in part.
    failed: usize,
}

impl Found<'_> {
    fn add(&mut self, path: &Path, inode: u64) -> Result<(), Failure> {
        self.files.push((path.to_owned(), inode));
        if self.files.len() < FILES_AT_ONCE { Ok(()) } else { self.move_all() }
    }

    /// Moves them, and names those that fail.
    fn move_all(&mut self) -> Result<(), Failure> {
        let files = std::mem::take(&mut self.files);
        let (mut left, mut from) = (&files[..], 0);
        while !left.is_empty() {
            let inodes = left.iter().map(|(_, inode)| *inode).collect();
            let order = Order::MoveFiles(FilesToMove { to: self.to, from, inodes });
            let done = match mounted::order(self.operation, self.top, order) {
                // Nothing is in it any more.
                Err(_) if is_gone(self.top) => return Ok(()),
                other => other.map_err(|failure| failure.of(self.top))?,
            };
            let done: FilesMoved = serde_json::from_value(done).map_err(|error| {
                Failure::new(self.operation, self.top.display(), format!("the mount's answer: {error}"))
            })?;
            self.moved += done.moved;
            self.failed += done.failed.len();
            for (file, why) in done.failed {
                if let Some((path, inode)) = left.get(file) {
                    let name = |number| (number == *inode).then(|| path.display().to_string());
                    let why = names::named(&why, name);
                    Failure::named(self.operation, why).of(path).report();
                }
            }
            // An answer must not lead us backwards.
            if done.next == 0 && done.from <= from {
                break;
            }
            (left, from) = (left.get(done.next..).unwrap_or_default(), done.from);
        }
        Ok(())
    }
}

/// Has files stay where they are, and what is made in directories from now on.
pub(crate) fn pin(args: &FilesArgs) -> Result<(), Failure> {
    mark("pin", "pinned", args, |path| {
        rustix::fs::lsetxattr(path, PIN, b"1", rustix::fs::XattrFlags::empty())
    })
}

/// Lets them move again.
pub(crate) fn unpin(args: &FilesArgs) -> Result<(), Failure> {
    mark("unpin", "not pinned any more", args, |path| match rustix::fs::lremovexattr(path, PIN) {
        Err(rustix::io::Errno::NODATA) => Ok(()),
        other => other,
    })
}

fn mark(
    operation: &str,
    what: &str,
    args: &FilesArgs,
    act: impl Fn(&Path) -> rustix::io::Result<()>,
) -> Result<(), Failure> {
    let mut count = 0;
    for top in &args.paths {
        each(operation, args, top, &mut |path, metadata| {
            // Nothing else has blocks that move, or hands it on.
            if !metadata.is_file() && !metadata.is_dir() {
                return Ok(());
            }
            count += 1;
            if args.dry_run {
                return Ok(());
            }
            act(path).map_err(|error| Failure::new(operation, path.display(), error))
        })?;
    }
    if args.json {
        return output::json(json!({ "count": count, "dry_run": args.dry_run }));
    }
    let would = if args.dry_run { "would be " } else { "" };
    let files = output::count(count, "file or directory", "files and directories");
    output::text_out(&format!("{files}: {would}{what}\n"))
}

/// Somebody removed or renamed it since it was found.
fn is_gone(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// Calls for a path and, when that is asked for, for all below it; each inode once. It stays on one file system, and follows
/// no symbolic link.
fn each(
    operation: &str,
    args: &FilesArgs,
    top: &Path,
    act: &mut dyn FnMut(&Path, &Metadata) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let failed = |path: &Path, error: std::io::Error| Failure::new(operation, path.display(), error);
    if mounted::serving(operation, top)?.is_none() {
        return Err(mounted::is_not_ours(operation, top).advice("nacre df lists those that are mounted"));
    }
    let metadata = fs::symlink_metadata(top).map_err(|error| failed(top, error))?;
    if metadata.is_dir() && !args.recursive && matches!(operation, "promote" | "demote") {
        return Err(
            Failure::new(operation, top.display(), "it is a directory").advice("-r takes all that is in it")
        );
    }
    let device = metadata.dev();
    let mut seen = HashSet::new();
    // Not by recursion: directories may be deeper than a stack.
    let mut waiting = vec![top.to_owned()];
    while let Some(path) = waiting.pop() {
        let metadata = match fs::symlink_metadata(&path) {
            Err(_) if path != top && is_gone(&path) => continue,
            other => other.map_err(|error| failed(&path, error))?,
        };
        if metadata.dev() != device
            || metadata.nlink() > 1 && metadata.is_file() && !seen.insert(metadata.ino())
        {
            continue;
        }
        act(&path, &metadata)?;
        if metadata.is_dir() && args.recursive {
            let entries = match fs::read_dir(&path) {
                Err(_) if path != top && is_gone(&path) => continue,
                other => other.map_err(|error| failed(&path, error))?,
            };
            for entry in entries {
                waiting.push(entry.map_err(|error| failed(&path, error))?.path());
            }
        }
    }
    Ok(())
}
