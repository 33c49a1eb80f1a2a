//! `nacre df`: space and its use.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use nacre::{FileSystem, OpenOptions};
use nacre_engine::size;
use nacre_fuse::mounts::MountEntry;
use serde::Serialize;
use serde_json::{Value, json};

use crate::asking::Asked;
use crate::failure::Failure;
use crate::{mounted, output};

/// Examples and exit codes, for the help and the manual page.
const MANUAL: &str = "\
Examples:
  nacre df
      Lists all mounts of nacre.

Exit status:
  0   success
  1   failure, also if a mount did not answer
  2   a wrong command line

See also:
  nacre-info(8), nacre-tier-list(8)
";

/// Arguments of `nacre df`.
#[derive(Debug, Args)]
#[command(after_long_help = MANUAL)]
pub(crate) struct DfArgs {
    /// Print it as JSON, with exact bytes
    #[arg(long)]
    json: bool,
    /// Files or directories on mounted file systems, or devices; all mounted file systems by default
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// One file system and its space in bytes.
#[derive(Debug, Serialize)]
struct Row {
    device: String,
    mountpoint: Option<String>,
    total: u64,
    used: u64,
    available: u64,
    inodes: u64,
    inodes_free: u64,
}

/// The time for all mounts together to answer. Their servers need no device for the answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// A file system that is to be listed.
enum Target {
    /// A mount, whose answer is on its way.
    Mount(Result<Asked, Failure>, MountEntry),
    /// A device that is not mounted.
    Device(PathBuf),
}

/// A file system whose space is unknown.
struct Unknown {
    failure: Failure,
    device: String,
    mountpoint: Option<String>,
}

/// Lists space. Returns false if the space of a file system is unknown; standard error names it.
pub(crate) fn run(args: DfArgs) -> Result<bool, Failure> {
    let (mut targets, mut rows, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
    if args.paths.is_empty() {
        targets.extend(mounted::all()?.into_iter().map(Target::ask));
    }
    for path in &args.paths {
        match find(path) {
            Ok(found) => targets.extend(found),
            Err(failure) => {
                unknown.push(Unknown { failure, device: path.display().to_string(), mountpoint: None });
            }
        }
    }
    for target in targets {
        match target.row() {
            Ok(row) => rows.push(row),
            Err(failed) => unknown.push(failed),
        }
    }
    for Unknown { failure, .. } in &unknown {
        failure.report();
    }
    let all = unknown.is_empty();
    if args.json {
        let failed: Vec<_> = unknown.iter().map(Unknown::to_json).collect();
        return output::json(json!({ "file_systems": rows, "failed": failed })).map(|()| all);
    }
    if rows.is_empty() {
        let text = if all { "no nacre file system is mounted\n" } else { "" };
        return output::text_out(text).map(|()| all);
    }
    let head = ["device ", "size", "used", "available", "use%", "inodes", "mounted on "];
    output::text_out(&output::table(&head, &rows.iter().map(cells).collect::<Vec<_>>())).map(|()| all)
}

impl Target {
    /// A mount. All are asked before the first answer is looked at, so that one that hangs does not delay the others.
    fn ask(mount: MountEntry) -> Target {
        Target::Mount(mounted::begin_statvfs(&mount.mountpoint), mount)
    }

    fn row(self) -> Result<Row, Unknown> {
        match self {
            Target::Mount(asked, mount) => row(asked, &mount).map_err(|failure| Unknown {
                failure,
                device: mount.source.to_string_lossy().into_owned(),
                mountpoint: Some(mount.mountpoint.display().to_string()),
            }),
            Target::Device(path) => of_device(&path).map_err(|failure| Unknown {
                failure,
                device: path.display().to_string(),
                mountpoint: None,
            }),
        }
    }
}

impl Unknown {
    fn to_json(&self) -> Value {
        json!({ "mountpoint": self.mountpoint, "device": self.device, "error": self.failure.message() })
    }
}

fn cells(row: &Row) -> Vec<String> {
    let percent = (row.used * 100).div_ceil((row.used + row.available).max(1));
    vec![
        row.device.clone(),
        size::print(row.total),
        size::print(row.used),
        size::print(row.available),
        format!("{percent}%"),
        (row.inodes - row.inodes_free.min(row.inodes)).to_string(),
        row.mountpoint.clone().unwrap_or_else(|| "-".to_owned()),
    ]
}

/// The file systems of a path: that of a file, or those of a device, which may have a mount for each of its volumes.
fn find(path: &Path) -> Result<Vec<Target>, Failure> {
    if let Some(mount) = mounted::serving("df", path)? {
        return Ok(vec![Target::ask(mount)]);
    }
    let mounts = mounted::all_of_device(path)?;
    if mounts.is_empty() {
        return Ok(vec![Target::Device(path.to_owned())]);
    }
    Ok(mounts.into_iter().map(Target::ask).collect())
}

/// The answer of a mount about its space, as a row.
fn row(asked: Result<Asked, Failure>, mount: &MountEntry) -> Result<Row, Failure> {
    let [blocks, free, available, block, inodes, inodes_free] =
        mounted::statvfs("df", asked?, mount, PATIENCE)?;
    Ok(Row {
        device: mount.source.to_string_lossy().into_owned(),
        mountpoint: Some(mount.mountpoint.display().to_string()),
        total: blocks * block,
        used: (blocks - free.min(blocks)) * block,
        available: available * block,
        inodes,
        inodes_free,
    })
}

/// The space of a device that is not mounted, from a read-only open.
fn of_device(path: &Path) -> Result<Row, Failure> {
    let look = OpenOptions { read_only: true, never_writes: true, ..OpenOptions::default() };
    let space = || {
        let fs = FileSystem::open(path, &look)?;
        let info = fs.info()?;
        fs.close().map(|()| info.space.expect("an open file system knows its space"))
    };
    let space = space().map_err(|error| Failure::on("df", path, &error))?;
    Ok(Row {
        device: path.display().to_string(),
        mountpoint: None,
        total: space.total,
        used: space.total - space.free.min(space.total),
        available: space.available,
        inodes: space.inodes,
        inodes_free: space.inodes_free,
    })
}
