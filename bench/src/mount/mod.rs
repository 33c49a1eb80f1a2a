//! A mount beside a FUSE server that does nothing, and its page cache beside tmpfs.

mod empty;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nacre::{FileSystem, OpenOptions};
use nacre_fuse::ServeOptions;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::{pread, pwrite};
use rustix::mount::UnmountFlags;

use crate::child::{Helper, say_ready};
use crate::context::{Context, Outcome};
use crate::measure::{Side, interleave, timed};
use crate::place::Tmpfs;
use crate::report::Figure;
use crate::rows;
use crate::work::{BLOCK, Names, buffer, file_system, offsets};

const ROWS: [&str; 6] = [
    "mount.read-4k",
    "mount.write-4k",
    "mount.create",
    "mount.unlink",
    "mount.fsync",
    "mount.cached-read-4k",
];

/// The role of a child: serves the file system on a device.
pub(crate) fn serve(device: &Path, dir: &Path) -> Outcome {
    let fs = FileSystem::open(device, &OpenOptions::default())?;
    fs.prefault(&std::sync::atomic::AtomicBool::new(false))?;
    nacre_fuse::serve(fs.vfs().clone(), dir, &ServeOptions::default(), |_| say_ready(&[]))?;
    fs.close()?;
    Ok(())
}

/// The role of a child: serves nothing.
pub(crate) fn serve_empty(dir: &Path, size: u64) -> Outcome {
    empty::serve(dir, size, || say_ready(&[]))?;
    Ok(())
}

/// A mount that a child serves.
struct Mounted {
    path: PathBuf,
    child: Option<Helper>,
    root: Option<OwnedFd>,
}

impl Mounted {
    fn new(path: PathBuf, role: &str, args: &[&str]) -> Result<Mounted, Box<dyn std::error::Error>> {
        let (child, _) = Helper::start(role, args)?;
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&path, flags, Mode::empty())?;
        Ok(Mounted { path, child: Some(child), root: Some(root) })
    }

    fn root(&self) -> BorrowedFd<'_> {
        self.root.as_ref().expect("open while it is mounted").as_fd()
    }

    fn open(&self, direct: bool) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | if direct { OFlags::DIRECT } else { OFlags::empty() };
        rustix::fs::openat(self.root(), empty::FILE, flags, Mode::empty())
    }

    fn end(mut self) -> Outcome {
        self.root = None;
        rustix::mount::unmount(&self.path, UnmountFlags::empty())?;
        self.child.take().map_or(Ok(()), Helper::finish)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.child.is_some() {
            let _ = rustix::mount::unmount(&self.path, UnmountFlags::DETACH);
        }
    }
}

pub(crate) fn run(context: &Context) -> Outcome {
    if !context.wants_any(ROWS) {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        context.leave_out("mount.* (mounts need root and /dev/fuse)");
        return Ok(());
    }
    let size = context.sizes.small_file;
    let (device, beside) = (context.place.tmpfs("pm", false)?, context.place.tmpfs("peer", false)?);
    let image = device.path().join("device");
    let fs = file_system(&image, size + context.sizes.slack)?;
    fs.create_file(format!("/{}", empty::FILE))?.write_at(&buffer(size as usize), 0)?;
    fs.close()?;
    let dir = |name: &str| -> std::io::Result<PathBuf> {
        let path = device.path().join(name);
        std::fs::create_dir(&path)?;
        Ok(path)
    };
    let (at, empty_at) = (dir("mount")?, dir("empty")?);
    let text = |path: &Path| path.display().to_string();
    let ours = Mounted::new(at.clone(), "serve", &[&text(&image), &text(&at)])?;
    let empty = Mounted::new(empty_at.clone(), "serve-empty", &[&text(&empty_at), &size.to_string()])?;
    let measured = content(context, &ours, &empty, size)
        .and_then(|()| names(context, &ours, &empty))
        .and_then(|()| cached(context, &ours, &beside, size));
    empty.end()?;
    ours.end()?;
    measured
}

/// Requests that move data.
fn content(context: &Context, ours: &Mounted, empty: &Mounted, size: u64) -> Outcome {
    let count = context.sizes.batch / 5;
    let at = |round| offsets(round, count, size, BLOCK as u64);
    let data = buffer(BLOCK);
    if context.wants("mount.read-4k") {
        // Past the page cache: each read is a request.
        let (a, b) = (ours.open(true)?, empty.open(true)?);
        let read = |fd: &OwnedFd, round| {
            let mut data = buffer(BLOCK);
            let offsets = at(round);
            timed(|| offsets.iter().for_each(|&at| whole(pread(fd, &mut data[..], at))))
        };
        compare(context, "mount.read-4k", count, &mut |round| read(&a, round), &mut |round| read(&b, round))?;
    }
    let (a, b) = (ours.open(false)?, empty.open(false)?);
    if context.wants("mount.write-4k") {
        let write = |fd: &OwnedFd, round| {
            let offsets = at(round);
            timed(|| offsets.iter().for_each(|&at| whole(pwrite(fd, &data, at))))
        };
        compare(context, "mount.write-4k", count, &mut |round| write(&a, round), &mut |round| {
            write(&b, round)
        })?;
    }
    if context.wants("mount.fsync") {
        let sync = |fd: &OwnedFd| timed(|| (0..count).for_each(|_| rustix::fs::fsync(fd).expect("fsync")));
        let pairs = interleave(context.budget, count, &mut |_| sync(&a), &mut |_| sync(&b));
        let row = rows::find("mount.fsync");
        let figure = Figure::compared(row.name, row.what, row.target, &pairs);
        context.report(figure.note("all is durable already: the kernel was told not to ask"))?;
    }
    Ok(())
}

fn whole(transferred: rustix::io::Result<usize>) {
    assert_eq!(transferred.expect("a transfer"), BLOCK, "a short transfer");
}

fn names(context: &Context, ours: &Mounted, empty: &Mounted) -> Outcome {
    let count = context.sizes.batch / 5;
    let names = Names::new(".", "new-", count).peer;
    let create = |mounted: &Mounted| {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        timed(|| {
            for name in &names {
                rustix::fs::openat(mounted.root(), name.as_c_str(), flags, Mode::from_bits_truncate(0o644))
                    .expect("create");
            }
        })
    };
    let unlink = |mounted: &Mounted| {
        timed(|| {
            for name in &names {
                rustix::fs::unlinkat(mounted.root(), name.as_c_str(), AtFlags::empty()).expect("unlink");
            }
        })
    };
    if context.wants("mount.create") {
        let created = |mounted: &Mounted| {
            let time = create(mounted);
            unlink(mounted);
            time
        };
        compare(context, "mount.create", count, &mut |_| created(ours), &mut |_| created(empty))?;
    }
    if context.wants("mount.unlink") {
        let unlinked = |mounted: &Mounted| {
            create(mounted);
            unlink(mounted)
        };
        compare(context, "mount.unlink", count, &mut |_| unlinked(ours), &mut |_| unlinked(empty))?;
    }
    Ok(())
}

/// Reads that the page cache answers.
fn cached(context: &Context, ours: &Mounted, beside: &Tmpfs, size: u64) -> Outcome {
    let row = "mount.cached-read-4k";
    if !context.wants(row) {
        return Ok(());
    }
    let a = ours.open(false)?;
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    let b = rustix::fs::open(beside.path().join("file"), flags, Mode::from_bits_truncate(0o644))?;
    let mut all = buffer(size as usize);
    pwrite(&b, &all, 0)?;
    // Once through: from now on the pages are in the cache.
    let mut offset = 0;
    while offset < size {
        offset += pread(&a, &mut all[..], offset)? as u64;
    }
    let count = context.sizes.batch;
    let read = |fd: &OwnedFd, round| {
        let mut data = buffer(BLOCK);
        let offsets = offsets(round, count, size, BLOCK as u64);
        timed(|| offsets.iter().for_each(|&at| whole(pread(fd, &mut data[..], at))))
    };
    compare(context, row, count, &mut |round| read(&a, round), &mut |round| read(&b, round))
}

fn compare(context: &Context, row: &str, count: u64, ours: Side<'_>, peer: Side<'_>) -> Outcome {
    let row = rows::find(row);
    let pairs = interleave(context.budget, count, ours, peer);
    context.report(Figure::compared(row.name, row.what, row.target, &pairs))
}
