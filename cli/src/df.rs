//! `nacre df`: space and its use.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use nacre::{FileSystem, OpenOptions};
use nacre_engine::size;
use nacre_fuse::mounts::MountEntry;
use serde::Serialize;
use serde_json::json;

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

/// Lists space. Returns false if the space of a mount is unknown; standard error names the mount.
pub(crate) fn run(args: DfArgs) -> Result<bool, Failure> {
    let mut failures = Vec::new();
    let rows: Vec<Row> = if args.paths.is_empty() {
        // All mounts are asked at once, so that one that hangs does not delay the others.
        let asked: Vec<_> = mounted::all()?
            .into_iter()
            .map(|mount| (mounted::begin_statvfs(&mount.mountpoint), mount))
            .collect();
        asked
            .into_iter()
            .filter_map(|(asked, mount)| {
                row(asked, &mount).map_err(|failure| failures.push((failure, mount))).ok()
            })
            .collect()
    } else {
        args.paths.iter().map(|path| find(path)).collect::<Result<_, _>>()?
    };
    for (failure, _) in &failures {
        failure.report();
    }
    let all = failures.is_empty();
    if args.json {
        let failed: Vec<_> = failures
            .iter()
            .map(|(failure, mount)| json!({ "mountpoint": mount.mountpoint, "device": mount.source.to_string_lossy(), "error": failure.message() }))
            .collect();
        return output::json(json!({ "file_systems": rows, "failed": failed })).map(|()| all);
    }
    if rows.is_empty() {
        let text = if all { "no nacre file system is mounted\n" } else { "" };
        return output::text_out(text).map(|()| all);
    }
    let head = ["device ", "size", "used", "available", "use%", "inodes", "mounted on "];
    output::text_out(&output::table(&head, &rows.iter().map(cells).collect::<Vec<_>>())).map(|()| all)
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

fn find(path: &Path) -> Result<Row, Failure> {
    let mount = match mounted::serving("df", path)? {
        Some(mount) => Some(mount),
        None => mounted::of_device(path)?,
    };
    match mount {
        Some(mount) => row(mounted::begin_statvfs(&mount.mountpoint), &mount),
        None => of_device(path),
    }
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
    let space = || {
        let fs = FileSystem::open(path, &OpenOptions { read_only: true, ..OpenOptions::default() })?;
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
