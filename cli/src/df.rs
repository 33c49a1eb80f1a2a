//! `nacre df`: space and its use.

use std::path::{Path, PathBuf};

use clap::Args;
use nacre::{FileSystem, OpenOptions};
use nacre_engine::size;
use serde::Serialize;
use serde_json::json;

use crate::failure::Failure;
use crate::{mounted, output};

/// What `nacre df` is told.
#[derive(Debug, Args)]
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

/// Lists space.
pub(crate) fn run(args: DfArgs) -> Result<(), Failure> {
    let rows: Vec<Row> = if args.paths.is_empty() {
        let mounts = mounted::all()?;
        mounts
            .iter()
            .map(|mount| of_mount(&mount.source.to_string_lossy(), &mount.mountpoint))
            .collect::<Result<_, _>>()?
    } else {
        args.paths.iter().map(|path| find(path)).collect::<Result<_, _>>()?
    };
    if args.json {
        return output::json(json!({ "file_systems": rows }));
    }
    if rows.is_empty() {
        return output::text_out("no nacre file system is mounted\n");
    }
    let head = ["device ", "size", "used", "available", "use%", "inodes", "mounted on "];
    output::text_out(&output::table(&head, &rows.iter().map(cells).collect::<Vec<_>>()))
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
    let mount = match mounted::serving(path)? {
        Some(mount) => Some(mount),
        None => mounted::of_device(path)?,
    };
    match mount {
        Some(mount) => of_mount(&mount.source.to_string_lossy(), &mount.mountpoint),
        None => of_device(path),
    }
}

fn of_mount(device: &str, mountpoint: &Path) -> Result<Row, Failure> {
    let stat =
        rustix::fs::statvfs(mountpoint).map_err(|error| Failure::new("df", mountpoint.display(), error))?;
    Ok(Row {
        device: device.to_owned(),
        mountpoint: Some(mountpoint.display().to_string()),
        total: stat.f_blocks * stat.f_frsize,
        used: (stat.f_blocks - stat.f_bfree.min(stat.f_blocks)) * stat.f_frsize,
        available: stat.f_bavail * stat.f_frsize,
        inodes: stat.f_files,
        inodes_free: stat.f_ffree,
    })
}

/// Nobody has it mounted: open it to read.
fn of_device(path: &Path) -> Result<Row, Failure> {
    let space = || {
        let fs = FileSystem::open(path, &OpenOptions { read_only: true, ..OpenOptions::default() })?;
        let info = fs.info()?;
        fs.close().map(|()| info.space.expect("an open file system knows its space"))
    };
    let space = space().map_err(|error| Failure::on(path, &error))?;
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
