//! A file or a block device of the machine.

use std::cell::Cell;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nacre_engine::{BLOCK_SIZE, Error, Kind, Result};
use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, retry_on_intr};
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

use super::ring::{Outcome, Rings, part_len};
use super::{BlockDevice, Io, Pages, Transfer, check};
use crate::device::{Device, DeviceKind};
use crate::disk::{Access, Disk, Pace, wait_until};
use crate::token::Durable;

/// Buffers that the kernel takes with one call.
const MOST_PARTS: usize = 1024;

/// How a disk is opened.
#[derive(Debug, Clone, Default)]
pub struct DiskOptions {
    /// Nothing is written; other readers may open it, too.
    pub read_only: bool,
    /// The disk that it stands for: each access takes at least as long as there.
    pub emulation: Option<Disk>,
    /// io_uring is not used, as where the kernel refuses it.
    pub only_system_calls: bool,
    /// io_uring is not told of buffers before they are used, as where the kernel refuses it.
    pub unregistered: bool,
}

/// A disk of the machine, locked against a second owner. Transfers go past the page cache if the file system below
/// allows it (`O_DIRECT`). They go through io_uring if there are several, or a large one of [lent](Pages::lent)
/// pages. Several blocks that are neighbours on the disk, but not in DRAM, are read with one call.
#[derive(Debug)]
pub struct RealDisk {
    device: Device,
    len: u64,
    is_direct: bool,
    rings: Option<Rings>,
    pace: Option<(Pace, Instant)>,
    lost: Lost,
    /// The least end of the file so far: data behind it is lost, even if the file is made longer again. A block
    /// device reports errors for that.
    end: AtomicU64,
}

/// Whether the page cache below may have lost a write. The kernel reports that to one flush only, and the lost write
/// may belong to another one. So no flush succeeds any more, until the device is opened anew.
#[derive(Debug, Default)]
struct Lost(AtomicBool);

impl Lost {
    fn after_flush(&self, is_direct: bool, flushed: Result<(), Errno>) -> Result<(), Errno> {
        if flushed.is_err() && !is_direct {
            self.0.store(true, Ordering::Relaxed);
        }
        if self.0.load(Ordering::Relaxed) { flushed.and(Err(Errno::IO)) } else { flushed }
    }
}

impl RealDisk {
    /// Opens an existing device or file.
    ///
    /// Errors: [`Busy`](Kind::Busy) when another process owns it, [`Unsupported`](Kind::Unsupported) when it is a
    /// devdax device.
    pub fn open(path: impl AsRef<Path>, options: &DiskOptions) -> Result<RealDisk> {
        let device = Device::open(path.as_ref(), options.read_only, None)?;
        if device.kind == DeviceKind::Devdax {
            return Err(Error::new(Kind::Unsupported)
                .operation("open")
                .object(device.name)
                .advice("it is a devdax device; give a file or a block device"));
        }
        RealDisk::over(device, options)
    }

    /// Makes a file of `len` bytes (a multiple of 4096), which must not exist. It takes space below as it is written.
    pub fn create(path: impl AsRef<Path>, len: u64, options: &DiskOptions) -> Result<RealDisk> {
        RealDisk::over(Device::create(path.as_ref(), len, false)?, options)
    }

    fn over(device: Device, options: &DiskOptions) -> Result<RealDisk> {
        let len = device.len - device.len % BLOCK_SIZE;
        if len == 0 {
            return Err(Error::new(Kind::InvalidInput)
                .operation("open")
                .object(device.name)
                .advice("it is too small to hold anything of nacre: give another one, or restore its size"));
        }
        let is_direct = fcntl_getfl(&device.file)
            .and_then(|flags| fcntl_setfl(&device.file, flags | OFlags::DIRECT))
            .is_ok();
        let rings = (!options.only_system_calls).then(|| Rings::new(!options.unregistered));
        let pace = options.emulation.clone().map(|disk| (Pace::new(disk), Instant::now()));
        Ok(RealDisk { device, len, is_direct, rings, pace, lost: Lost::default(), end: AtomicU64::new(len) })
    }

    /// Whether transfers go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Refuses reads of parts that were cut off, and every write once anything was: behind the new end it would make
    /// the file longer again, with zeros in the gap.
    fn require_whole(&self, batch: &[Transfer<'_>]) -> Result<()> {
        if self.device.kind == DeviceKind::File
            && let Ok(found) = rustix::fs::fstat(&self.device.file)
        {
            self.end.fetch_min(found.st_size as u64, Ordering::Relaxed);
        }
        let end = self.end.load(Ordering::Relaxed);
        if end >= self.len {
            return Ok(());
        }
        let is_gone = |transfer: &&Transfer<'_>| match transfer {
            Transfer::Read { offset, into } => offset + into.len() as u64 > end,
            Transfer::Write { .. } => true,
        };
        batch.iter().find(is_gone).map_or(Ok(()), |transfer| Err(self.failed(transfer, None)))
    }

    /// Tells the emulated disk of accesses that begin now; when they would be done.
    fn admit(&self, accesses: impl Iterator<Item = Access>) -> Option<Instant> {
        let (pace, epoch) = self.pace.as_ref()?;
        let now = epoch.elapsed().as_nanos() as u64;
        let done = accesses.map(|access| pace.admit(now, access)).max()?;
        Some(*epoch + Duration::from_nanos(done))
    }

    /// The rings, when they are to make these transfers.
    fn rings_for(&self, batch: &[Transfer<'_>]) -> Option<&Rings> {
        let is_aligned = |transfer: &Transfer<'_>| (transfer.memory() as u64).is_multiple_of(BLOCK_SIZE);
        let can_be = !self.is_direct || batch.iter().all(is_aligned);
        self.rings.as_ref().filter(|rings| match batch {
            [] => false,
            // Through the page cache a single one is copied there and then, or handed to a thread of the kernel.
            [only] => self.is_direct && can_be && rings.takes_alone(only),
            _ => can_be,
        })
    }

    /// Makes the rest of a transfer, from `done` bytes on, by system calls.
    fn finish(&self, transfer: &mut Transfer<'_>, mut done: usize) -> Result<()> {
        let is_aligned = (transfer.memory() as u64).is_multiple_of(BLOCK_SIZE);
        let mut bounce = (self.is_direct && !is_aligned).then(|| Pages::new(transfer.len() as usize));
        if let (Some(bounce), Transfer::Write { from, .. }) = (&mut bounce, &*transfer) {
            bounce[..from.len()].copy_from_slice(from);
        }
        let (offset, len) = (transfer.offset(), transfer.len() as usize);
        while done < len {
            let (at, end) = (offset + done as u64, done + part_len(len - done) as usize);
            let moved = match (&mut *transfer, &mut bounce) {
                (Transfer::Read { .. }, Some(bounce)) => {
                    rustix::io::pread(&self.device.file, &mut bounce[done..end], at)
                }
                (Transfer::Read { into, .. }, None) => {
                    rustix::io::pread(&self.device.file, &mut into[done..end], at)
                }
                (Transfer::Write { .. }, Some(bounce)) => {
                    rustix::io::pwrite(&self.device.file, &bounce[done..end], at)
                }
                (Transfer::Write { from, .. }, None) => {
                    rustix::io::pwrite(&self.device.file, &from[done..end], at)
                }
            };
            match moved {
                Ok(0) => return Err(self.failed(transfer, None)),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.failed(transfer, Some(errno))),
            }
        }
        if let (Some(bounce), Transfer::Read { into, .. }) = (&bounce, transfer) {
            into.copy_from_slice(&bounce[..len]);
        }
        Ok(())
    }

    /// Reads neighbours on the device into their separate buffers; false unless all bytes came.
    fn read_together(&self, batch: &mut [Transfer<'_>]) -> bool {
        let Some(start) = batch.first().map(Transfer::offset) else { return true };
        let len: u64 = batch.iter().map(Transfer::len).sum();
        let mut parts: Vec<IoSliceMut<'_>> = batch
            .iter_mut()
            .filter_map(|transfer| match transfer {
                Transfer::Read { into, .. } => Some(IoSliceMut::new(into)),
                Transfer::Write { .. } => None,
            })
            .collect();
        let (mut parts, mut done) = (&mut parts[..], 0);
        while done < len {
            match rustix::io::preadv(&self.device.file, parts, start + done) {
                Ok(0) => return false,
                Ok(count) => {
                    IoSliceMut::advance_slices(&mut parts, count);
                    done += count as u64;
                }
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// The error of a transfer; without a number it ended before the device should.
    fn failed(&self, transfer: &Transfer<'_>, errno: Option<Errno>) -> Error {
        let object = transfer.describe(&self.device.name);
        let Some(errno) = errno else {
            return Error::new(Kind::DeviceLost).operation(transfer.verb()).object(object).advice(
                "the device is shorter than before, and the data behind its end is lost; restore it from a \
                         copy",
            );
        };
        let error = Error::new(kind_of(errno)).operation(transfer.verb()).object(object);
        error.source(io::Error::from(errno))
    }
}

/// The single access that the kernel makes of a batch: reads of blocks that are neighbours on the device, but not in
/// DRAM.
fn together(batch: &[Transfer<'_>]) -> Option<Access> {
    let is_block = |transfer: &Transfer<'_>| {
        let is_aligned = (transfer.memory() as u64).is_multiple_of(BLOCK_SIZE);
        matches!(transfer, Transfer::Read { .. }) && transfer.len() == BLOCK_SIZE && is_aligned
    };
    let is_behind = |pair: &[Transfer<'_>]| pair[1].offset() == pair[0].offset() + pair[0].len();
    let is_it = (2..=MOST_PARTS).contains(&batch.len())
        && batch.iter().all(is_block)
        && batch.windows(2).all(is_behind);
    is_it.then(|| Access::Read { offset: batch[0].offset(), len: batch.len() as u64 * BLOCK_SIZE })
}

/// The kind of error for an error number of a device.
fn kind_of(errno: Errno) -> Kind {
    match errno {
        Errno::NXIO | Errno::NODEV => Kind::DeviceLost,
        Errno::NOSPC | Errno::DQUOT => Kind::NoSpace,
        Errno::ROFS | Errno::BADF => Kind::ReadOnly,
        _ => Kind::Media,
    }
}

/// Where a thread waits for an emulated disk it is woken on time.
fn be_punctual() {
    thread_local!(static IS_PUNCTUAL: Cell<bool> = const { Cell::new(false) });
    IS_PUNCTUAL.with(|is_punctual| {
        if !is_punctual.replace(true) {
            // SAFETY: this operation takes numbers only, and sets how late timers of this thread may be.
            unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        }
    });
}

fn wait(deadline: Option<Instant>) {
    if let Some(deadline) = deadline {
        be_punctual();
        wait_until(deadline);
    }
}

impl BlockDevice for RealDisk {
    fn len(&self) -> u64 {
        self.len
    }

    fn name(&self) -> &str {
        &self.device.name
    }

    fn io(&self) -> Option<Io> {
        self.rings.as_ref().map_or(Some(Io::SystemCalls), Rings::io)
    }

    fn transfer(&self, batch: &mut [Transfer<'_>]) -> Result<()> {
        batch.iter().try_for_each(|transfer| check(transfer, self))?;
        self.require_whole(batch)?;
        if let Some(access) = together(batch) {
            let deadline = self.admit(std::iter::once(access));
            if self.read_together(batch) {
                wait(deadline);
                return Ok(());
            }
            // One of them cannot be read, or ends early: it is named when each is read for itself.
            return batch.iter_mut().try_for_each(|transfer| self.finish(transfer, 0));
        }
        let deadline = self.admit(batch.iter().map(Transfer::access));
        let outcomes = match self.rings_for(batch) {
            Some(rings) => rings.run(self.device.file.as_fd(), batch),
            None => vec![Outcome::None; batch.len()],
        };
        for (transfer, outcome) in batch.iter_mut().zip(outcomes) {
            match outcome {
                None | Some(Err(libc::EINTR | libc::EAGAIN)) => self.finish(transfer, 0)?,
                Some(Ok(moved)) => self.finish(transfer, moved as usize)?,
                Some(Err(number)) => {
                    return Err(self.failed(transfer, Some(Errno::from_raw_os_error(number))));
                }
            }
        }
        wait(deadline);
        Ok(())
    }

    fn flush(&self) -> Result<Durable> {
        let deadline = self.admit(std::iter::once(Access::Flush));
        let flushed = rustix::fs::fdatasync(&self.device.file);
        self.lost.after_flush(self.is_direct, flushed).map_err(|errno| {
            let error = Error::new(kind_of(errno)).operation("flush").object(&self.device.name);
            error.source(io::Error::from(errno))
        })?;
        wait(deadline);
        Ok(Durable::new())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<bool> {
        let told = retry_on_intr(|| match self.device.kind {
            // A hole would be zeros, which not every device has for nothing.
            DeviceKind::Block => discard_blocks(self.device.file.as_fd(), offset, len),
            _ => {
                let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&self.device.file, how, offset, len)
            }
        });
        let Err(errno) = told else { return Ok(true) };
        let kind = match errno {
            Errno::OPNOTSUPP | Errno::NOSYS => return Ok(false),
            // Nothing that says that it fails.
            Errno::PERM | Errno::ACCESS => Kind::NotPermitted,
            Errno::INVAL => Kind::InvalidInput,
            _ => kind_of(errno),
        };
        let error = Error::new(kind).operation("discard").source(io::Error::from(errno));
        Err(error.object(format!("{}: {len} bytes at {offset}", self.device.name)))
    }
}

/// `BLKDISCARD` of Linux.
fn discard_blocks(device: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    const BLKDISCARD: Opcode = opcode::none(0x12, 119);
    // SAFETY: the request reads two 64-bit numbers, the range in bytes, and writes nothing.
    unsafe { ioctl(device, Setter::<BLKDISCARD, [u64; 2]>::new([offset, len])) }
}

impl AsRawFd for RealDisk {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.device.file.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::Lost;

    #[test]
    fn after_a_flush_that_failed_none_vouches_for_what_others_wrote_to_the_page_cache() {
        let lost = Lost::default();
        assert_eq!(lost.after_flush(false, Ok(())), Ok(()));
        assert_eq!(lost.after_flush(false, Err(Errno::NOSPC)), Err(Errno::NOSPC));
        assert_eq!(lost.after_flush(false, Ok(())), Err(Errno::IO));
        // What goes past it has its own answer.
        let direct = Lost::default();
        assert_eq!(direct.after_flush(true, Err(Errno::IO)), Err(Errno::IO));
        assert_eq!(direct.after_flush(true, Ok(())), Ok(()));
    }
}
