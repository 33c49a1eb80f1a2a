//! A mount beside a FUSE server that does nothing, and its page cache beside tmpfs.
//!
//! The two servers run all the time. Each row is measured twice. Once client and servers are on one core, so that the
//! work of the servers is compared and not where the scheduler happens to wake them. Once they run as they come, for
//! the note.

mod empty;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nacre::FileSystem;
use nacre_fuse::ServeOptions;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::{pread, pwrite};
use rustix::mount::UnmountFlags;

use crate::figures::child::{Helper, say_ready};
use crate::figures::context::{Context, Outcome};
use crate::figures::cores::Cores;
use crate::figures::measure::{Budget, interleave, timed};
use crate::figures::report::Figure;
use crate::figures::rows;
use crate::figures::work::{BLOCK, Names, buffer, durable, file_system, offsets};
use crate::place::Tmpfs;
use crate::stats::median;

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
    let fs = FileSystem::open(device, &durable())?;
    fs.prefault(&std::sync::atomic::AtomicBool::new(false))?;
    nacre_fuse::serve(fs.vfs().clone(), dir, &ServeOptions::default(), |_, _| say_ready(&[]))?;
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
    root: OwnedFd,
    /// The file, through the page cache and past it.
    file: OwnedFd,
    direct: OwnedFd,
    // Dropped after the files that are open on it.
    server: Server,
}

/// The child, and where it is mounted.
struct Server {
    path: PathBuf,
    child: Option<Helper>,
}

impl Mounted {
    fn new(path: PathBuf, role: &str, args: &[&str]) -> Result<Mounted, Box<dyn std::error::Error>> {
        let (child, _) = Helper::start(role, args)?;
        let server = Server { path, child: Some(child) };
        let open = |name: &str, flags: OFlags| {
            rustix::fs::open(server.path.join(name), flags | OFlags::CLOEXEC, Mode::empty())
        };
        Ok(Mounted {
            root: open("", OFlags::DIRECTORY | OFlags::RDONLY)?,
            file: open(empty::FILE, OFlags::RDWR)?,
            direct: open(empty::FILE, OFlags::RDWR | OFlags::DIRECT)?,
            server,
        })
    }

    fn process(&self) -> u32 {
        self.server.child.as_ref().map_or(0, Helper::process)
    }

    fn end(self) -> Outcome {
        let Mounted { root, file, direct, mut server } = self;
        drop((root, file, direct));
        rustix::mount::unmount(&server.path, UnmountFlags::empty())?;
        server.child.take().map_or(Ok(()), Helper::finish)
    }
}

impl Drop for Server {
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
        context.leave_out(ROWS, "mounts need root and /dev/fuse");
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
    let measured = content(context, (&ours, &empty), size)
        .and_then(|()| names(context, (&ours, &empty)))
        .and_then(|()| cached(context, &ours, &beside, size));
    empty.end()?;
    ours.end()?;
    measured
}

/// Requests that move data.
fn content(context: &Context, both: (&Mounted, &Mounted), size: u64) -> Outcome {
    let count = context.sizes.batch / 5;
    let at = |round| offsets(round, count, size, BLOCK as u64);
    if context.wants("mount.read-4k") {
        // Past the page cache: each read is a request.
        requests(context, "mount.read-4k", count, both, "", &|mounted, round| {
            let (mut data, offsets) = (buffer(BLOCK), at(round));
            timed(|| offsets.iter().for_each(|&at| whole(pread(&mounted.direct, &mut data[..], at))))
        })?;
    }
    if context.wants("mount.write-4k") {
        requests(context, "mount.write-4k", count, both, "", &|mounted, round| {
            let (data, offsets) = (buffer(BLOCK), at(round));
            timed(|| offsets.iter().for_each(|&at| whole(pwrite(&mounted.file, &data, at))))
        })?;
    }
    if context.wants("mount.fsync") {
        let note = "; the kernel knows that there is nothing to sync";
        requests(context, "mount.fsync", count, both, note, &|mounted, _| {
            timed(|| (0..count).for_each(|_| rustix::fs::fsync(&mounted.file).expect("fsync")))
        })?;
    }
    Ok(())
}

fn whole(transferred: rustix::io::Result<usize>) {
    assert_eq!(transferred.expect("a transfer"), BLOCK, "a short transfer");
}

fn names(context: &Context, both: (&Mounted, &Mounted)) -> Outcome {
    let count = context.sizes.batch / 5;
    let names = Names::new(".", "new-", count).peer;
    let create = |mounted: &Mounted| {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        timed(|| {
            for name in &names {
                rustix::fs::openat(&mounted.root, name.as_c_str(), flags, Mode::from_bits_truncate(0o644))
                    .expect("create");
            }
        })
    };
    let unlink = |mounted: &Mounted| {
        timed(|| {
            for name in &names {
                rustix::fs::unlinkat(&mounted.root, name.as_c_str(), AtFlags::empty()).expect("unlink");
            }
        })
    };
    if context.wants("mount.create") {
        requests(context, "mount.create", count, both, "", &|mounted, _| {
            let time = create(mounted);
            unlink(mounted);
            time
        })?;
    }
    if context.wants("mount.unlink") {
        requests(context, "mount.unlink", count, both, "", &|mounted, _| {
            create(mounted);
            unlink(mounted)
        })?;
    }
    Ok(())
}

/// Reads that the page cache answers.
fn cached(context: &Context, ours: &Mounted, beside: &Tmpfs, size: u64) -> Outcome {
    let row = "mount.cached-read-4k";
    if !context.wants(row) {
        return Ok(());
    }
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    let b = rustix::fs::open(beside.path().join("file"), flags, Mode::from_bits_truncate(0o644))?;
    let mut all = buffer(size as usize);
    pwrite(&b, &all, 0)?;
    // Once through: from now on the pages are in the cache.
    let mut offset = 0;
    while offset < size {
        offset += pread(&ours.file, &mut all[..], offset)? as u64;
    }
    let count = context.sizes.batch;
    let read = |fd: &OwnedFd, round| {
        let mut data = buffer(BLOCK);
        let offsets = offsets(round, count, size, BLOCK as u64);
        timed(|| offsets.iter().for_each(|&at| whole(pread(fd, &mut data[..], at))))
    };
    let pairs = interleave(&context.budget, count, &mut |round| read(&ours.file, round), &mut |round| {
        read(&b, round)
    });
    let row = rows::find(row);
    context.report(Figure::compared(row, &pairs))
}

/// Requests to both mounts, measured on one core and then as they come.
fn requests(
    context: &Context,
    row: &str,
    count: u64,
    (ours, empty): (&Mounted, &Mounted),
    note: &str,
    side: &dyn Fn(&Mounted, u64) -> Duration,
) -> Outcome {
    let processes = [ours, empty].map(Mounted::process);
    let cores = Cores::of_this_thread();
    let budget = Budget { time: context.budget.time / 2, ..context.budget.clone() };
    cores.keep_to(0);
    processes.iter().for_each(|&process| cores.keep_process_to(process, 0));
    let pairs = interleave(&budget, count, &mut |round| side(ours, round), &mut |round| side(empty, round));
    cores.release();
    processes.iter().for_each(|&process| cores.release_process(process));
    let loose = interleave(&budget, count, &mut |round| side(ours, round), &mut |round| side(empty, round));
    let row = rows::find(row);
    let figure = Figure::compared(row, &pairs);
    context.report(figure.note(format!("on one core; {:.2} where it may run{note}", median(&loose.ratios()))))
}
