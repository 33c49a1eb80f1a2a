//! Persistent memory that is mapped into the process.
//!
//! [`RealPm`] maps a devdax device, a file on an fsdax mount, a plain file or a block device. It locks the device
//! against a second owner and knows its [persistence domain](Promise). Every access to the mapping goes through the
//! routines of `asm`, which survive a bus error; no reference into the mapping exists. An owner that forks to go to
//! the background must do so before it opens: the mapping and the lock stay with the process that made them.

mod asm;
mod bandwidth;
mod emulator;
mod fault;
mod heal;
pub(crate) mod map;
mod promise;
mod sysfs;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use nacre_engine::{Error, Kind, LINE_SIZE, Result};
use rustix::io::Errno;

use crate::device::{Device, DeviceKind};
use crate::emulation::Emulation;
use crate::pm::Pm;
use crate::token::{Durable, Flushed, Stored};
use asm::Routines;
pub use emulator::Counters;
use emulator::Emulator;
use map::{Mapping, Sharing};
pub use promise::Promise;
use sysfs::Sysfs;

/// Bytes of a word.
const WORD: u64 = 8;

/// How a device is opened.
#[derive(Debug, Clone)]
pub struct PmOptions {
    /// Only loads are allowed; other readers may open it, too.
    pub read_only: bool,
    /// Stores are allowed and stay in DRAM: a page that is stored to is copied there, and the device stays unchanged.
    /// The device is opened to read. [`Unsupported`](Kind::Unsupported) for devdax, which cannot be mapped so.
    pub private: bool,
    /// The least persistence domain that the device must have; less is refused.
    pub require: Promise,
    /// All space of a file is allocated when it is made or opened for writing, so that no store finds its file system
    /// full. Without it a file may be sparse, for devices larger than the disk below; such a store is then a
    /// [`Media`](Kind::Media) error.
    pub allocate: bool,
    /// The PM to emulate; counts stores, flushes and fences, too.
    pub emulation: Option<Emulation>,
    /// Other processes may have the device, too, except for a part of it. The part is known by these bytes, which are
    /// locked: for a writer alone, for readers together. None is the whole device.
    pub part: Option<Range<u64>>,
}

impl Default for PmOptions {
    fn default() -> PmOptions {
        PmOptions {
            read_only: false,
            private: false,
            require: Promise::None,
            allocate: true,
            emulation: None,
            part: None,
        }
    }
}

/// Mapped persistent memory; see the [module](self).
#[derive(Debug)]
pub struct RealPm {
    base: *mut u8,
    len: u64,
    /// `len`, or 0 when the mapping is read-only: one comparison checks both.
    writable_len: u64,
    routines: Routines,
    sharing: Sharing,
    /// The same of the device, also where this mapping of it is private.
    of_device: Sharing,
    /// Why it is not safe against power loss; nothing where it is.
    unsafe_because: Option<String>,
    emulator: Option<Box<Emulator>>,
    mapping: Mapping,
    device: Option<Device>,
    /// Other processes have other parts of the device.
    is_shared: bool,
}

// SAFETY: `base` is the address of `mapping`, which may be used from any thread.
unsafe impl Send for RealPm {}
// SAFETY: as above; accesses race only inside machine code, where a race is defined.
unsafe impl Sync for RealPm {}

impl RealPm {
    /// Maps the device at `path`.
    ///
    /// Errors: [`Busy`](Kind::Busy) when another process owns it, [`Unsupported`](Kind::Unsupported) when it cannot
    /// be mapped or has a smaller persistence domain than the options require.
    pub fn open(path: impl AsRef<Path>, options: &PmOptions) -> Result<RealPm> {
        let is_only_read = options.read_only || options.private;
        let device = Device::open(path.as_ref(), is_only_read, options.part.as_ref())?;
        if options.allocate && !is_only_read {
            device.allocate()?;
        }
        let mut pm = RealPm::map(device, options)?;
        pm.is_shared = options.part.is_some();
        Ok(pm)
    }

    /// Makes a file of `len` bytes (a multiple of 4096) and maps it. It must not exist.
    pub fn create(path: impl AsRef<Path>, len: u64, options: &PmOptions) -> Result<RealPm> {
        let device = Device::create(path.as_ref(), len, options.allocate)?;
        RealPm::map(device, options).inspect_err(|_| {
            let _ = std::fs::remove_file(path.as_ref());
        })
    }

    /// A file as it would be with `len` bytes: one that is there, or one that [`create`](RealPm::create) would make. It
    /// gives the errors of that, and the promise. Nothing is changed, and no byte is to be accessed.
    pub fn as_if(path: impl AsRef<Path>, len: u64, options: &PmOptions) -> Result<RealPm> {
        RealPm::map(Device::as_if(path.as_ref(), len, options.allocate)?, options)
    }

    /// DRAM of this process that nothing survives: for tests and measurements.
    pub fn in_memory(len: u64) -> Result<RealPm> {
        let mapping = Mapping::anonymous(len).map_err(|errno| map_error("memory", errno))?;
        RealPm::over(mapping, len, Sharing::Anonymous, true, None)
    }

    fn map(device: Device, options: &PmOptions) -> Result<RealPm> {
        let (fd, len, align) = (device.file.as_fd(), device.len, device.align);
        let writable = !options.read_only && !options.private;
        let (mut mapping, mut sharing) = match device.kind {
            DeviceKind::Devdax if options.private => {
                return Err(Error::new(Kind::Unsupported)
                    .operation("map")
                    .object(&device.name)
                    .advice("a devdax device has no private copies of its pages"));
            }
            // A devdax device has no page cache: every mapping of it is the medium.
            DeviceKind::Devdax => {
                (Mapping::of_file(fd, len, align, writable, Sharing::PageCache), Sharing::Synchronous)
            }
            _ => match Mapping::of_file(fd, len, align, writable, Sharing::Synchronous) {
                Ok(mapping) => (Ok(mapping), Sharing::Synchronous),
                Err(Errno::OPNOTSUPP | Errno::INVAL) => {
                    (Mapping::of_file(fd, len, align, writable, Sharing::PageCache), Sharing::PageCache)
                }
                Err(errno) => (Err(errno), Sharing::PageCache),
            },
        };
        let of_device = sharing;
        if options.private {
            // The shared mapping has told how the device is used.
            sharing = Sharing::Private;
            mapping = Mapping::of_file(fd, len, align, true, sharing);
        }
        let mapping = mapping.map_err(|errno| map_error(&device.name, errno))?;
        let unsafe_because = match of_device {
            Sharing::Synchronous => Sysfs::of_kernel().keeps(&device).err(),
            _ => Some(format!("this {} is used through the kernel's page cache", device.kind.as_str())),
        };
        let mut pm = RealPm::over(mapping, len, sharing, writable || options.private, Some(device))?;
        pm.of_device = of_device;
        pm.unsafe_because = unsafe_because;
        if let Some(emulation) = &options.emulation {
            pm.emulate(emulation.clone());
        }
        if !pm.promise().satisfies(options.require) {
            return Err(Error::new(Kind::Unsupported)
                .operation("open")
                .object(format!("{}: it is {}", pm.name(), pm.promise_explanation()))
                .advice(
                    "more is required; use a devdax device of an NVDIMM, or a file on a file system mounted with dax on one",
                ));
        }
        Ok(pm)
    }

    fn over(
        mapping: Mapping,
        len: u64,
        sharing: Sharing,
        writable: bool,
        device: Option<Device>,
    ) -> Result<RealPm> {
        fault::install()?;
        let base = mapping.base().addr().get() as u64;
        fault::forget(base..base + len);
        Ok(RealPm {
            base: mapping.base().as_ptr(),
            len,
            writable_len: if writable { len } else { 0 },
            routines: Routines::detect(),
            sharing,
            of_device: sharing,
            unsafe_because: None,
            emulator: None,
            mapping,
            device,
            is_shared: false,
        })
    }

    /// The promise of the device about fenced stores. It covers power loss only if the kernel says so. Stores to private
    /// copies reach no device; the promise is then of those before.
    pub fn promise(&self) -> Promise {
        match self.of_device {
            Sharing::Anonymous | Sharing::Private => Promise::None,
            Sharing::Synchronous if self.unsafe_because.is_none() => Promise::PowerLoss,
            _ if self.emulator.is_some() => Promise::Emulated,
            _ => Promise::ProcessDeath,
        }
    }

    /// The same in a sentence, with the reason where it is less than against power loss.
    pub fn promise_explanation(&self) -> String {
        let explanation = self.promise().explanation();
        let nothing = if self.is_private() { "; nothing is written to it now" } else { "" };
        match &self.unsafe_because {
            Some(reason) => format!("{explanation} ({reason}){nothing}"),
            None => format!("{explanation}{nothing}"),
        }
    }

    /// Slows accesses down from now on, and counts them.
    pub fn emulate(&mut self, emulation: Emulation) {
        self.emulator = Some(Box::new(Emulator::new(emulation)));
    }

    /// The PM that is emulated.
    pub fn emulation(&self) -> Option<&Emulation> {
        self.emulator.as_deref().map(Emulator::emulation)
    }

    /// Counters since it was opened; only while something is emulated (`dram` has no delay).
    pub fn counters(&self) -> Option<Counters> {
        self.emulator.as_deref().map(Emulator::counters)
    }

    /// The path that it was opened with.
    pub fn name(&self) -> &str {
        self.device.as_ref().map_or("memory", |device| &device.name)
    }

    /// The kind of the device; `None` for DRAM of the process.
    pub fn kind(&self) -> Option<DeviceKind> {
        self.device.as_ref().map(|device| device.kind)
    }

    /// True when stores stay in DRAM, and the device stays unchanged.
    pub fn is_private(&self) -> bool {
        self.sharing == Sharing::Private
    }

    /// True when stores are refused.
    pub fn is_read_only(&self) -> bool {
        self.writable_len == 0
    }

    /// The instructions that copies and flushes use, in words.
    pub fn instructions(&self) -> &'static str {
        self.routines.name
    }

    /// Makes the pages of a range present, in small steps, until it is done or `stop` becomes true. Returns how far it
    /// came. It is an advance payment only: without it each page costs a fault at its first use. Meant for a thread in
    /// the background; a failure (an old kernel, a full file system) need not fail anything.
    pub fn prefault(&self, range: Range<u64>, stop: &AtomicBool) -> Result<u64> {
        self.mapping.prefault(range, stop).map_err(|errno| Error::io("prefault", self.name(), errno.into()))
    }

    /// The ranges that the kernel said to be damaged before anything accessed them, as its own scrubber finds them. An
    /// access fails there. The last 64 that the process was told of.
    fn reported_errors(&self) -> Vec<Range<u64>> {
        let base = self.base.addr() as u64;
        let pages = fault::noted(base..base + self.len);
        pages.into_iter().map(|page| page.start - base..page.end - base).collect()
    }

    #[inline]
    fn readable(&self, offset: u64, len: usize) -> Result<*mut u8> {
        match offset.checked_add(len as u64) {
            // SAFETY: the result is within the mapping or one past its end.
            Some(end) if end <= self.len => Ok(unsafe { self.base.add(offset as usize) }),
            _ => Err(self.outside(offset, len as u64)),
        }
    }

    #[inline]
    fn writable(&self, offset: u64, len: u64) -> Result<*mut u8> {
        match offset.checked_add(len) {
            // SAFETY: the result is within the mapping or one past its end.
            Some(end) if end <= self.writable_len => Ok(unsafe { self.base.add(offset as usize) }),
            _ => Err(self.outside(offset, len)),
        }
    }

    #[inline]
    fn check(&self, outcome: asm::Outcome, offset: u64, len: u64) -> Result<u64> {
        if outcome.fault == 0 { Ok(outcome.value) } else { Err(self.refused(outcome.fault, offset, len)) }
    }

    #[cold]
    #[inline(never)]
    fn outside(&self, offset: u64, len: u64) -> Error {
        if self.is_read_only() && offset.checked_add(len).is_some_and(|end| end <= self.len) {
            return Error::new(Kind::ReadOnly).object(self.name());
        }
        Error::new(Kind::InvalidInput).object(format!(
            "{}: bytes {offset} to {} of {}",
            self.name(),
            offset.saturating_add(len),
            self.len
        ))
    }

    /// The error for an access that the hardware or the kernel refused at an address.
    #[cold]
    #[inline(never)]
    fn refused(&self, address: u64, offset: u64, len: u64) -> Error {
        let at = address.wrapping_sub(self.base.addr() as u64);
        if at >= self.len && address != 1 {
            // The other side of the copy: memory of the caller, such as a mapped file that was cut shorter.
            return Error::new(Kind::InvalidInput).object("a buffer of the caller that cannot be accessed");
        }
        let at = if address == 1 { offset } else { at };
        Error::new(Kind::Media).object(format!(
            "{}: bytes {offset} to {}, at {at}",
            self.name(),
            offset.saturating_add(len)
        ))
    }

    /// Writes the part of a copy that does not fill a line: whole words past the cache, any other bytes through it.
    fn copy_edge(&self, to: *mut u8, offset: u64, bytes: &[u8]) -> Result<()> {
        let len = bytes.len() as u64;
        if !offset.is_multiple_of(WORD) || !len.is_multiple_of(WORD) {
            return self.store_and_flush(to, offset, bytes);
        }
        let start = self.write_start(1);
        // SAFETY: the caller has checked that the bytes lie in the writable mapping; they are whole words.
        let outcome = unsafe { asm::nacre_pm_copy_words(to, bytes.as_ptr(), bytes.len() / WORD as usize) };
        self.check(outcome, offset, len)?;
        if let Some(emulator) = &self.emulator {
            emulator.flushed(start, len, 1);
        }
        Ok(())
    }

    /// Stores and starts writing back, for bytes that do not fill a line.
    fn store_and_flush(&self, to: *mut u8, offset: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: the caller has checked that the bytes lie in the writable mapping.
        let outcome = unsafe { asm::nacre_pm_store(to, bytes.as_ptr(), bytes.len()) };
        self.check(outcome, offset, bytes.len() as u64)?;
        if let Some(emulator) = &self.emulator {
            emulator.stored(bytes.len() as u64);
        }
        self.flush_lines(offset, bytes.len() as u64);
        Ok(())
    }

    /// Starts writing back the lines of a range within the mapping.
    #[inline]
    fn flush_lines(&self, offset: u64, len: u64) {
        if len == 0 {
            return;
        }
        let first = offset / LINE_SIZE;
        let lines = (offset + len).div_ceil(LINE_SIZE) - first;
        let start = self.write_start(lines);
        // A line that faults here was stored to a moment ago and cannot be written back now; the next access to it
        // will fail and say so.
        // SAFETY: the lines lie in the mapping, whose length is a multiple of a line.
        let _ =
            unsafe { (self.routines.flush)(self.base.add((first * LINE_SIZE) as usize), 0, lines as usize) };
        if let Some(emulator) = &self.emulator {
            emulator.flushed(start, 0, lines);
        }
    }

    /// Copies past the cache through the mapping.
    #[inline]
    fn copy_mapped(&self, offset: u64, bytes: &[u8]) -> Result<Flushed> {
        let to = self.writable(offset, bytes.len() as u64)?;
        self.check_poison(offset, bytes.len() as u64)?;
        let head = ((offset.next_multiple_of(LINE_SIZE) - offset) as usize).min(bytes.len());
        let (head_bytes, rest) = bytes.split_at(head);
        let (body, tail) = rest.split_at(rest.len() & !(LINE_SIZE as usize - 1));
        // SAFETY: head and body are parts of the range that was checked.
        let (to_body, to_tail) = unsafe { (to.add(head), to.add(head + body.len())) };
        if !head_bytes.is_empty() {
            self.copy_edge(to, offset, head_bytes)?;
        }
        if !body.is_empty() {
            let start = self.write_start(body.len() as u64 / LINE_SIZE);
            // SAFETY: the destination is whole lines within the writable mapping, the source a slice of that length.
            let outcome =
                unsafe { (self.routines.copy)(to_body, body.as_ptr(), body.len() / LINE_SIZE as usize) };
            self.check(outcome, offset + head as u64, body.len() as u64)?;
            if let Some(emulator) = &self.emulator {
                emulator.flushed(start, body.len() as u64, body.len() as u64 / LINE_SIZE);
            }
        }
        if !tail.is_empty() {
            self.copy_edge(to_tail, offset + (head + body.len()) as u64, tail)?;
        }
        Ok(Flushed::new())
    }

    /// Zeroes past the cache through the mapping.
    fn zero_mapped(&self, offset: u64, len: u64) -> Result<Flushed> {
        const ZEROS: [u8; LINE_SIZE as usize] = [0; LINE_SIZE as usize];
        let to = self.writable(offset, len)?;
        self.check_poison(offset, len)?;
        let head = (offset.next_multiple_of(LINE_SIZE) - offset).min(len);
        let lines = (len - head) / LINE_SIZE;
        let tail = (len - head) % LINE_SIZE;
        if head > 0 {
            self.copy_edge(to, offset, &ZEROS[..head as usize])?;
        }
        let start = self.write_start(lines);
        // SAFETY: the destination is whole lines of the range that was checked.
        let outcome = unsafe { (self.routines.zero)(to.add(head as usize), 0, lines as usize) };
        self.check(outcome, offset + head, lines * LINE_SIZE)?;
        if let Some(emulator) = &self.emulator {
            emulator.flushed(start, lines * LINE_SIZE, lines);
        }
        if tail > 0 {
            // SAFETY: the tail is a part of the range that was checked.
            let to_tail = unsafe { to.add((len - tail) as usize) };
            self.copy_edge(to_tail, offset + len - tail, &ZEROS[..tail as usize])?;
        }
        Ok(Flushed::new())
    }

    /// Emulated media errors.
    #[inline(always)]
    fn check_poison(&self, offset: u64, len: u64) -> Result<()> {
        match self.emulator.as_deref().and_then(|emulator| emulator.poisoned(offset, len)) {
            None => Ok(()),
            Some(at) => Err(self.poisoned(offset, len, at)),
        }
    }

    #[cold]
    #[inline(never)]
    fn poisoned(&self, offset: u64, len: u64, at: u64) -> Error {
        let end = offset + len;
        Error::new(Kind::Media).object(format!("{}: bytes {offset} to {end}, at {at}", self.name()))
    }

    /// The time at which an access begins; 0 unless something is emulated.
    #[inline]
    fn start(&self) -> u64 {
        if self.emulator.is_some() { emulator::now() } else { 0 }
    }

    /// The same for a write of so many lines.
    #[inline]
    fn write_start(&self, lines: u64) -> Option<u64> {
        self.emulator.as_ref().and_then(|emulator| emulator.write_start(lines))
    }
}

fn map_error(name: &str, errno: Errno) -> Error {
    match errno {
        Errno::NOMEM => {
            Error::new(Kind::TooBig).operation("map").object(name).advice("the address space is too small")
        }
        _ => Error::io("map", name, errno.into()),
    }
}

impl Pm for RealPm {
    #[inline]
    fn len(&self) -> u64 {
        self.len
    }

    fn is_shared(&self) -> bool {
        self.is_shared
    }

    #[inline]
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let from = self.readable(offset, buf.len())?;
        let start = self.start();
        self.check_poison(offset, buf.len() as u64)?;
        // SAFETY: the source lies in the mapping; the destination is a slice of that length.
        let outcome = unsafe { (self.routines.read)(buf.as_mut_ptr(), from, buf.len()) };
        self.check(outcome, offset, buf.len() as u64)?;
        if let Some(emulator) = &self.emulator {
            emulator.read(start, buf.len() as u64);
        }
        Ok(())
    }

    #[inline]
    fn load_u64(&self, offset: u64) -> Result<u64> {
        check_aligned(offset)?;
        let from = self.readable(offset, 8)?;
        let start = self.start();
        self.check_poison(offset, 8)?;
        // SAFETY: the aligned word lies in the mapping.
        let outcome = unsafe { asm::nacre_pm_load(from) };
        if let Some(emulator) = &self.emulator {
            emulator.read(start, 8);
        }
        self.check(outcome, offset, 8)
    }

    #[inline]
    fn store(&self, offset: u64, bytes: &[u8]) -> Result<Stored> {
        let to = self.writable(offset, bytes.len() as u64)?;
        self.check_poison(offset, bytes.len() as u64)?;
        // SAFETY: the destination lies in the writable mapping; the source is a slice of that length.
        let outcome = unsafe { asm::nacre_pm_store(to, bytes.as_ptr(), bytes.len()) };
        self.check(outcome, offset, bytes.len() as u64)?;
        if let Some(emulator) = &self.emulator {
            emulator.stored(bytes.len() as u64);
        }
        Ok(Stored::new(offset, bytes.len() as u64))
    }

    #[inline]
    fn copy(&self, offset: u64, bytes: &[u8]) -> Result<Flushed> {
        match self.copy_mapped(offset, bytes) {
            Err(error) if error.kind() == Kind::Media => self.copy_over_errors(offset, bytes, error),
            done => done,
        }
    }

    fn zero(&self, offset: u64, len: u64) -> Result<Flushed> {
        match self.zero_mapped(offset, len) {
            Err(error) if error.kind() == Kind::Media => self.zero_over_errors(offset, len, error),
            done => done,
        }
    }

    #[inline]
    fn flush(&self, stored: Stored) -> Flushed {
        self.flush_lines(stored.offset, stored.len);
        Flushed::new()
    }

    #[inline]
    fn fence(&self, _flushed: Flushed) -> Durable {
        let start = self.start();
        // SAFETY: every x86-64 processor has this instruction, and it needs nothing.
        unsafe { std::arch::x86_64::_mm_sfence() };
        if let Some(emulator) = &self.emulator {
            emulator.fenced(start);
        }
        Durable::new()
    }

    #[inline]
    fn publish_u64(&self, offset: u64, value: u64, _after: Durable) -> Result<Stored> {
        check_aligned(offset)?;
        // One aligned word goes in one instruction, and a store on this machine is a release.
        self.store(offset, &value.to_le_bytes())
    }

    fn known_errors(&self) -> Vec<Range<u64>> {
        let mut known = self.reported_errors();
        known.extend(
            self.device.as_ref().map(|device| Sysfs::of_kernel().bad_ranges(device)).unwrap_or_default(),
        );
        known
    }

    #[inline]
    fn publish_entry(&self, offset: u64, bytes: &[u8], _after: Durable) -> Result<Flushed> {
        if !offset.is_multiple_of(LINE_SIZE) || !(bytes.len() as u64).is_multiple_of(LINE_SIZE) {
            return Err(Error::new(Kind::InvalidInput)
                .object(format!("an entry at {offset} that is not whole lines")));
        }
        self.copy(offset, bytes)
    }
}

#[inline]
fn check_aligned(offset: u64) -> Result<()> {
    if offset.is_multiple_of(8) { Ok(()) } else { Err(unaligned(offset)) }
}

#[cold]
fn unaligned(offset: u64) -> Error {
    Error::new(Kind::InvalidInput).object(format!("a word at {offset}, which is not a multiple of 8"))
}
