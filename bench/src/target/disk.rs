//! An emulated disk: one file on a FUSE mount, for a loop device. Reads, writes and flushes take the time of a disk;
//! the bytes are in another file, in DRAM.
//!
//! A process of its own serves it, as long as it is mounted. When its standard input ends it delays nothing any more.
//! So the layers above it can be taken down, and nothing hangs when the process that started it was killed.

use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::{self, Read};
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite,
    Request, Session, SessionACL, WriteFlags,
};
use nacre_media::disk::{Access, Disk, Pace, wait_until};
use rustix::mount::MountFlags;

use crate::Error;

/// The name of the file.
pub(super) const FILE: &str = "disk";
const FILE_INODE: INodeNo = INodeNo(2);
const LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);
/// As large as FUSE has requests.
const MAX_IO: u32 = 1 << 20;
/// Accesses that are waited for at the same time, each by a thread.
const DEPTH: usize = 32;

/// A disk as [`Disk`] reads it.
pub(super) fn as_text(disk: &Disk) -> String {
    let Disk { read_latency_ns, write_latency_ns, flush_ns, read_bandwidth, write_bandwidth, seeks, .. } =
        disk;
    let name = if *seeks { "hdd" } else { "nvme" };
    let settings =
        format!("read-latency={read_latency_ns},write-latency={write_latency_ns},flush={flush_ns}");
    format!("{name},{settings},read-bandwidth={read_bandwidth},write-bandwidth={write_bandwidth}")
}

struct Server {
    data: File,
    size: u64,
    pace: Pace,
    /// The clock of the pace.
    epoch: Instant,
    /// Set when nothing is delayed any more.
    hurry: Arc<AtomicBool>,
}

impl Server {
    fn attr(&self, id: INodeNo) -> FileAttr {
        let directory = id == INodeNo::ROOT;
        let size = if directory { 0 } else { self.size };
        FileAttr {
            ino: id,
            size,
            blocks: size / 512,
            atime: SystemTime::UNIX_EPOCH,
            mtime: SystemTime::UNIX_EPOCH,
            ctime: SystemTime::UNIX_EPOCH,
            crtime: SystemTime::UNIX_EPOCH,
            kind: if directory { FileType::Directory } else { FileType::RegularFile },
            perm: if directory { 0o700 } else { 0o600 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    /// Carries out an access, and returns when it is done on the disk. The access counts from now: the time of the
    /// loop device and FUSE is added to its own. That time is not taken off again. The least time in a trial may be
    /// more than the time later, and an access must not be faster than asked for.
    fn access(&self, access: Access, act: impl FnOnce() -> io::Result<()>) -> Result<(), Errno> {
        let now = self.epoch.elapsed().as_nanos() as u64;
        let done = self.pace.admit(now, access);
        act().map_err(|error| Errno::from_i32(error.raw_os_error().unwrap_or(libc::EIO)))?;
        // In pieces, so that one that is far away hurries, too.
        while !self.hurry.load(Ordering::Relaxed) {
            let piece = self.epoch.elapsed() + Duration::from_millis(20);
            wait_until(self.epoch + piece.min(Duration::from_nanos(done)));
            if Duration::from_nanos(done) <= piece {
                break;
            }
        }
        Ok(())
    }
}

impl Filesystem for Server {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // A feature that the kernel lacks makes it slower, not wrong.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let _ = config.add_capabilities(InitFlags::FUSE_MAX_PAGES);
        let _ = config.set_max_write(MAX_IO);
        let _ = config.set_max_background(4 * DEPTH as u16);
        let _ = config.set_congestion_threshold(4 * DEPTH as u16);
        Ok(())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name == FILE {
            true => reply.entry(&LIFETIME, &self.attr(FILE_INODE), Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn forget(&self, _request: &Request, _id: INodeNo, _count: u64) {}

    fn getattr(&self, _request: &Request, id: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&LIFETIME, &self.attr(id));
    }

    fn open(&self, _request: &Request, _id: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // Nothing of it is cached, and writes of one file do not wait for one another.
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _request: &Request,
        _id: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let len = u64::from(size.min(MAX_IO)).min(self.size.saturating_sub(offset));
        let mut data = vec![0; len as usize];
        match self.access(Access::Read { offset, len }, || self.data.read_exact_at(&mut data, offset)) {
            Ok(()) => reply.data(&data),
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _request: &Request,
        _id: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let len = data.len() as u64;
        if offset.saturating_add(len) > self.size {
            return reply.error(Errno::ENOSPC);
        }
        match self.access(Access::Write { offset, len }, || self.data.write_all_at(data, offset)) {
            Ok(()) => reply.written(data.len() as u32),
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(
        &self,
        _request: &Request,
        _id: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // close(2), which a disk does not hear of.
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        _id: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        match self.access(Access::Flush, || Ok(())) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }
}

/// Mounts an emulated disk on `dir`, its bytes in `data`, and serves it until it is unmounted; as root only.
pub fn serve(disk: Disk, data: &Path, dir: &Path) -> Result<(), Error> {
    // Threads inherit it: sleeps end on time, not up to 50 us later.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    let data = File::options().read(true).write(true).open(data)?;
    let hurry = Arc::new(AtomicBool::new(false));
    let size = data.metadata()?.len();
    let server = Server { data, size, pace: Pace::new(disk), epoch: Instant::now(), hurry: hurry.clone() };
    std::thread::spawn(move || {
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
        hurry.store(true, Ordering::Relaxed);
    });
    let device: OwnedFd = File::options().read(true).write(true).open("/dev/fuse")?.into();
    let options = format!(
        "fd={},rootmode={:o},user_id=0,group_id=0,max_read={MAX_IO}",
        device.as_raw_fd(),
        fs::metadata(dir)?.mode() & libc::S_IFMT
    );
    let flags = MountFlags::NODEV | MountFlags::NOSUID;
    let options = CString::new(options)?;
    rustix::mount::mount("nacre-bench", dir, "fuse.nacre-disk", flags, options.as_c_str())?;
    let mut config = Config::default();
    config.n_threads = Some(DEPTH);
    config.clone_fd = true;
    Ok(Session::from_fd(server, device, SessionACL::Owner, config)?.run()?)
}

#[cfg(test)]
mod tests {
    use nacre_media::disk::Disk;

    use super::as_text;

    #[test]
    fn the_server_is_told_every_number() {
        for (name, _) in Disk::presets() {
            let mut disk = Disk::preset(name).unwrap();
            disk.flush_ns += 7;
            let read: Disk = as_text(&disk).parse().unwrap();
            assert_eq!(Disk { name: disk.name.clone(), ..read }, disk);
        }
    }
}
