//! Simulated persistent memory.
//!
//! For the running code it behaves like PM: a load sees every store before it. While it records, it also notes every
//! store, flush and fence in the order in which they took effect. [`crate::crash`] replays such a [`Trace`] and makes
//! every image that a crash may leave.
//!
//! The simulated memory is made of atomic words, so that threads may race on it without unsafe code; a store of part
//! of a word merges into it. One lock orders the trace; when nothing is recorded no lock is taken. Where a test tries
//! out interleavings, another thread may come before each access and in the middle of a long one.
//!
//! There may be disks behind it ([`SimPm::with_disks`]), which a [`SimDisk`](crate::block::SimDisk) accesses. Their
//! accesses are in the same trace, and their bytes are in the same images.

mod trace;

use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use nacre_engine::sync::{EXPLORED, point};
use nacre_engine::{BLOCK_SIZE, Error, Kind, LINE_SIZE, Result};

use crate::image::Image;
use crate::pm::Pm;
use crate::thread::thread_number;
use crate::token::{Durable, Flushed, Stored};

pub use trace::{Defect, Event, Site, StoreKind, Trace};

use trace::Recorder;

/// Called by a thread that is about to fence.
pub type FenceHook = Box<dyn Fn() + Send + Sync>;

/// Simulated persistent memory; see the [module](self).
pub struct SimPm {
    words: Box<[AtomicU64]>,
    /// Bytes of the PM, without the disks.
    len: u64,
    /// First byte and size of each disk behind it.
    disks: Vec<(u64, u64)>,
    /// Bytes of all.
    total: u64,
    /// One bit for each block that was stored to since the last [`SimPm::load`].
    touched: Box<[AtomicU64]>,
    /// The image that was loaded last.
    loaded: Mutex<Option<Image>>,
    recording: AtomicBool,
    recorder: Mutex<Recorder>,
    /// Lines that cannot be accessed; looked at only when there are some.
    poison: Mutex<BTreeSet<u64>>,
    has_poison: AtomicBool,
    /// Whole blocks are written over such lines.
    clears_poison: AtomicBool,
    /// The ranges that the kernel would list as bad.
    known: Mutex<Vec<Range<u64>>>,
    /// Other processes have parts of it.
    is_shared: AtomicBool,
    /// The mistake that the layout shall make; 0 for none.
    mistake: AtomicU32,
    /// Reads are noted in `read`, one bit for each line.
    noting_reads: AtomicBool,
    read: Box<[AtomicU64]>,
    fence_hook: RwLock<Option<FenceHook>>,
}

impl SimPm {
    /// Simulated memory of `len` zero bytes. `len` must be a multiple of 64.
    pub fn new(len: u64) -> SimPm {
        assert!(len.is_multiple_of(LINE_SIZE), "the size is a multiple of a line");
        let words = (0..len / 8).map(|_| AtomicU64::new(0)).collect();
        SimPm::from_words(words)
    }

    /// Simulated memory with these bytes. Their number must be a multiple of 64.
    pub fn from_image(image: &[u8]) -> SimPm {
        assert!((image.len() as u64).is_multiple_of(LINE_SIZE), "the size is a multiple of a line");
        SimPm::from_words(image.chunks_exact(8).map(|chunk| AtomicU64::new(word(chunk))).collect())
    }

    /// Simulated memory of `len` zero bytes, and disks of these sizes, all of zeros. All sizes must be multiples of
    /// 4096.
    pub fn with_disks(len: u64, disks: &[u64]) -> SimPm {
        SimPm::new(len + disks.iter().sum::<u64>()).cut(len, disks)
    }

    /// The same with these bytes: those of the PM, and behind them those of each disk.
    pub fn from_image_with_disks(image: &[u8], disks: &[u64]) -> SimPm {
        SimPm::from_image(image).cut(image.len() as u64 - disks.iter().sum::<u64>(), disks)
    }

    /// Makes the first `len` bytes the PM; disks of these sizes follow.
    fn cut(self, len: u64, disks: &[u64]) -> SimPm {
        let whole = std::iter::once(&len).chain(disks).all(|size| size.is_multiple_of(BLOCK_SIZE));
        assert!(whole, "sizes are multiples of a block");
        let mut end = len;
        let mut parts = Vec::new();
        for &disk in disks {
            parts.push((end, disk));
            end += disk;
        }
        SimPm { len, disks: parts, ..self }
    }

    fn from_words(words: Box<[AtomicU64]>) -> SimPm {
        let len = words.len() as u64 * 8;
        let bits = len.div_ceil(BLOCK_SIZE).div_ceil(64);
        SimPm {
            words,
            len,
            disks: Vec::new(),
            total: len,
            touched: (0..bits).map(|_| AtomicU64::new(0)).collect(),
            loaded: Mutex::new(None),
            recording: AtomicBool::new(false),
            recorder: Mutex::default(),
            poison: Mutex::default(),
            has_poison: AtomicBool::new(false),
            clears_poison: AtomicBool::new(true),
            known: Mutex::default(),
            is_shared: AtomicBool::new(false),
            mistake: AtomicU32::new(0),
            noting_reads: AtomicBool::new(false),
            read: (0..(len / LINE_SIZE).div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            fence_hook: RwLock::new(None),
        }
    }

    /// First byte, behind the PM, and size of a disk.
    pub(crate) fn disk(&self, number: usize) -> (u64, u64) {
        self.disks[number]
    }

    pub(crate) fn disk_read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.check_poison(offset, into.len() as u64)?;
        self.note_read(offset, into.len() as u64);
        point();
        self.read_bytes(offset, into);
        Ok(())
    }

    pub(crate) fn disk_write(&self, offset: u64, bytes: &[u8], site: Site) {
        point();
        // Written lines can be read again.
        if self.has_poison.load(Ordering::Acquire) {
            let lines = offset / LINE_SIZE..(offset + bytes.len() as u64) / LINE_SIZE;
            self.poisoned().retain(|line| !lines.contains(line));
        }
        if !self.is_recording() {
            self.write_bytes(offset, bytes);
            return;
        }
        let mut recorder = self.recorder();
        self.write_bytes(offset, bytes);
        recorder.trace.events.push(Event::DiskWrite {
            thread: thread_number(),
            offset,
            bytes: bytes.into(),
            site,
        });
    }

    pub(crate) fn disk_flush(&self, disk: Range<u64>, site: Site) {
        point();
        self.record_fence(site, || Event::DiskFlush {
            thread: thread_number(),
            offset: disk.start,
            len: disk.end - disk.start,
            site,
        });
    }

    /// Records the end of a wait, unless nothing is recorded or the defect skips it.
    fn record_fence(&self, site: Site, event: impl FnOnce() -> Event) {
        if !self.is_recording() {
            return;
        }
        if let Some(hook) = &*self.fence_hook.read().unwrap_or_else(PoisonError::into_inner) {
            hook();
        }
        let mut recorder = self.recorder();
        if !recorder.skips_fence(site) {
            recorder.trace.events.push(event());
        }
    }

    /// From now on the layout makes the mistake with this number, or none for 0; see [`Pm::is_seeded`].
    pub fn seed_mistake(&self, mistake: u32) {
        self.mistake.store(mistake, Ordering::Relaxed);
    }

    /// While something is recorded, `hook` is called before each fence: the place to let another thread go on.
    pub fn set_fence_hook(&self, hook: Option<FenceHook>) {
        *self.fence_hook.write().unwrap_or_else(PoisonError::into_inner) = hook;
    }

    /// Starts to note which lines are read, with none noted yet.
    pub fn start_noting_reads(&self) {
        self.read.iter().for_each(|bits| bits.store(0, Ordering::Relaxed));
        self.noting_reads.store(true, Ordering::Relaxed);
    }

    /// Stops it. [`SimPm::was_read`] keeps its answers until the next start.
    pub fn stop_noting_reads(&self) {
        self.noting_reads.store(false, Ordering::Relaxed);
    }

    /// True when this line (offset divided by 64) was read while that was noted.
    pub fn was_read(&self, line: u64) -> bool {
        self.read[(line / 64) as usize].load(Ordering::Relaxed) >> (line % 64) & 1 == 1
    }

    fn note_read(&self, offset: u64, len: u64) {
        if self.noting_reads.load(Ordering::Relaxed) {
            for line in offset / LINE_SIZE..(offset + len).div_ceil(LINE_SIZE) {
                self.read[(line / 64) as usize].fetch_or(1 << (line % 64), Ordering::Relaxed);
            }
        }
    }

    /// Makes the lines of a range inaccessible, as an uncorrectable error of the hardware does: loads and stores are
    /// errors. A block of 4096 bytes that is written as a whole past the cache is good again.
    pub fn poison(&self, offset: u64, len: u64) {
        self.check(offset, len).expect("inside the device");
        self.poison_anywhere(offset, len);
    }

    /// The same for bytes of a disk, too.
    pub(crate) fn poison_anywhere(&self, offset: u64, len: u64) {
        let lines = offset / LINE_SIZE..(offset + len).div_ceil(LINE_SIZE);
        self.poisoned().extend(lines);
        self.has_poison.store(true, Ordering::Release);
    }

    /// Nothing that is written clears such errors from now on, as on a devdax device.
    pub fn keep_poison(&self) {
        self.clears_poison.store(false, Ordering::Release);
    }

    /// Other processes may have parts of it from now on, or none has.
    pub fn set_shared(&self, is_shared: bool) {
        self.is_shared.store(is_shared, Ordering::Relaxed);
    }

    /// The kernel lists this range as bad, whether it can be read or not.
    pub fn list_as_bad(&self, range: Range<u64>) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).push(range);
    }

    fn poisoned(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.poison.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An access must not touch a poisoned line.
    fn check_poison(&self, offset: u64, len: u64) -> Result<()> {
        if len == 0 || !self.has_poison.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.poisoned().range(offset / LINE_SIZE..(offset + len).div_ceil(LINE_SIZE)).next() {
            None => Ok(()),
            Some(line) => Err(Error::new(Kind::Media).object(format!(
                "bytes {offset} to {}, at {}",
                offset + len,
                line * LINE_SIZE
            ))),
        }
    }

    /// A copy past the cache: whole blocks are good again, other bad lines are errors.
    fn overwrite_poison(&self, offset: u64, len: u64) -> Result<()> {
        if !self.has_poison.load(Ordering::Acquire) {
            return Ok(());
        }
        const LINES: u64 = BLOCK_SIZE / LINE_SIZE;
        let (first, end) = (offset.div_ceil(BLOCK_SIZE) * LINES, (offset + len) / BLOCK_SIZE * LINES);
        if first >= end || !self.clears_poison.load(Ordering::Acquire) {
            return self.check_poison(offset, len);
        }
        // Nothing is good again that is not written.
        self.check_poison(offset, first * LINE_SIZE - offset)?;
        self.check_poison(end * LINE_SIZE, offset + len - end * LINE_SIZE)?;
        self.poisoned().retain(|line| !(first..end).contains(line));
        Ok(())
    }

    /// Starts to record, with nothing recorded yet.
    pub fn start_recording(&self) {
        self.start_recording_with(None);
    }

    /// Starts to record on hardware with a defect.
    pub fn start_recording_with(&self, defect: Option<Defect>) {
        *self.recorder() = Recorder::new(defect);
        self.recording.store(true, Ordering::SeqCst);
    }

    /// Stops recording and returns the trace. No other thread may be storing; otherwise its stores are in part
    /// outside the trace.
    pub fn stop_recording(&self) -> Trace {
        self.recording.store(false, Ordering::SeqCst);
        std::mem::take(&mut self.recorder().trace)
    }

    /// Takes the trace so far, and goes on recording.
    pub fn take_trace(&self) -> Trace {
        std::mem::take(&mut self.recorder().trace)
    }

    /// Puts the caller's note into the trace, when one is recorded.
    pub fn mark(&self, value: u64) {
        if self.is_recording() {
            self.recorder().trace.events.push(Event::Mark(value));
        }
    }

    /// A copy of all bytes as the running code sees them.
    pub fn snapshot(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect()
    }

    /// The content that the running code sees, as a relative of the image that was loaded last.
    pub fn image(&self) -> Image {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut image) = loaded.clone() else { return Image::from(self.snapshot()) };
        for (index, bits) in self.touched.iter().enumerate() {
            let mut bits = bits.load(Ordering::Relaxed);
            while bits != 0 {
                let block = index as u64 * 64 + u64::from(bits.trailing_zeros());
                let mut bytes = vec![0; (self.total - block * BLOCK_SIZE).min(BLOCK_SIZE) as usize];
                self.read_bytes(block * BLOCK_SIZE, &mut bytes);
                image.set_block(block, bytes);
                bits &= bits - 1;
            }
        }
        image
    }

    /// Makes the bytes equal to `image`. That is cheap when the image that was loaded before is a relative of this
    /// one: only blocks that differ, or were stored to since, are copied.
    pub fn load(&self, image: &Image) {
        assert_eq!(image.len(), self.total, "an image of this device");
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let differing = loaded.as_ref().and_then(|loaded| loaded.differing_blocks(image));
        match differing {
            None => {
                self.touched.iter().for_each(|bits| bits.store(0, Ordering::Relaxed));
                (0..self.total.div_ceil(BLOCK_SIZE)).for_each(|block| self.load_block(block, image));
            }
            Some(blocks) => {
                for (index, bits) in self.touched.iter().enumerate() {
                    let mut bits = bits.swap(0, Ordering::Relaxed);
                    while bits != 0 {
                        self.load_block(index as u64 * 64 + u64::from(bits.trailing_zeros()), image);
                        bits &= bits - 1;
                    }
                }
                blocks.into_iter().for_each(|block| self.load_block(block, image));
            }
        }
        *loaded = Some(image.clone());
    }

    fn load_block(&self, block: u64, image: &Image) {
        let bytes = image.block(block);
        let first = (block * BLOCK_SIZE / 8) as usize;
        for (cell, chunk) in self.words[first..first + bytes.len() / 8].iter().zip(bytes.chunks_exact(8)) {
            cell.store(word(chunk), Ordering::Relaxed);
        }
    }

    /// Changes bytes without a trace and without asking the model: the hand of a test.
    pub fn poke(&self, offset: u64, bytes: &[u8]) {
        assert!(offset + bytes.len() as u64 <= self.total, "inside the device");
        self.write_bytes(offset, bytes);
    }

    fn is_recording(&self) -> bool {
        self.recording.load(Ordering::Relaxed)
    }

    fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => {
                Err(Error::new(Kind::InvalidInput)
                    .object(format!("bytes {offset}+{len} of simulated memory")))
            }
        }
    }

    fn touch(&self, offset: u64, len: u64) {
        for block in offset / BLOCK_SIZE..(offset + len).div_ceil(BLOCK_SIZE) {
            let (bits, bit) = (&self.touched[(block / 64) as usize], 1 << (block % 64));
            if bits.load(Ordering::Relaxed) & bit == 0 {
                bits.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    fn write_bytes(&self, offset: u64, bytes: &[u8]) {
        self.touch(offset, bytes.len() as u64);
        let (edge, body, tail) = split_words(offset, bytes.len());
        self.write_part(offset, &bytes[..edge]);
        let first = (offset as usize + edge) / 8;
        let cells = &self.words[first..first + body / 8];
        for (cell, chunk) in cells.iter().zip(bytes[edge..edge + body].chunks_exact(8)) {
            cell.store(word(chunk), Ordering::Release);
        }
        self.write_part(offset + (edge + body) as u64, &bytes[bytes.len() - tail..]);
    }

    /// Stores less than a word, within one word.
    fn write_part(&self, offset: u64, bytes: &[u8]) {
        for piece in pieces(offset, bytes.len()) {
            let (mask, new) = (piece.mask(), piece.value(bytes));
            let merge = |old: u64| Some(old & !mask | new);
            let merged = self.words[piece.word].fetch_update(Ordering::AcqRel, Ordering::Acquire, merge);
            debug_assert!(merged.is_ok());
        }
    }

    /// Loads less than a word, within one word.
    fn read_part(&self, offset: u64, buf: &mut [u8]) {
        for piece in pieces(offset, buf.len()) {
            let bytes = self.words[piece.word].load(Ordering::Acquire).to_le_bytes();
            buf.copy_from_slice(&bytes[piece.shift..piece.shift + piece.len]);
        }
    }

    /// Stores with a record of it, or without one.
    fn write(&self, offset: u64, bytes: &[u8], kind: StoreKind, site: Site) {
        if bytes.is_empty() {
            return;
        }
        if !self.is_recording() {
            let middle = middle_of(bytes.len());
            point();
            self.write_bytes(offset, &bytes[..middle]);
            if middle < bytes.len() {
                point();
                self.write_bytes(offset + middle as u64, &bytes[middle..]);
            }
            return;
        }
        let mut recorder = self.recorder();
        self.write_bytes(offset, bytes);
        let mut kind = kind;
        if kind == StoreKind::NonTemporal && recorder.skips_flush(site) {
            kind = StoreKind::Cached;
        }
        let event = Event::Store { thread: thread_number(), offset, bytes: bytes.into(), kind, site };
        recorder.trace.events.push(event);
    }

    fn flush_range(&self, offset: u64, len: u64, site: Site) {
        if len == 0 || !self.is_recording() {
            return;
        }
        let mut recorder = self.recorder();
        if !recorder.skips_flush(site) {
            recorder.trace.events.push(Event::Flush { thread: thread_number(), offset, len, site });
        }
    }

    fn read_bytes(&self, offset: u64, buf: &mut [u8]) {
        let (edge, body, tail) = split_words(offset, buf.len());
        self.read_part(offset, &mut buf[..edge]);
        let first = (offset as usize + edge) / 8;
        let cells = &self.words[first..first + body / 8];
        for (chunk, cell) in buf[edge..edge + body].chunks_exact_mut(8).zip(cells) {
            chunk.copy_from_slice(&cell.load(Ordering::Acquire).to_le_bytes());
        }
        let at = buf.len() - tail;
        self.read_part(offset + at as u64, &mut buf[at..]);
    }
}

impl Pm for SimPm {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.check(offset, buf.len() as u64)?;
        self.check_poison(offset, buf.len() as u64)?;
        self.note_read(offset, buf.len() as u64);
        let (first, second) = buf.split_at_mut(middle_of(buf.len()));
        point();
        self.read_bytes(offset, first);
        if !second.is_empty() {
            point();
            self.read_bytes(offset + first.len() as u64, second);
        }
        Ok(())
    }

    fn load_u64(&self, offset: u64) -> Result<u64> {
        check_aligned(offset)?;
        self.check(offset, 8)?;
        self.check_poison(offset, 8)?;
        self.note_read(offset, 8);
        point();
        Ok(self.words[(offset / 8) as usize].load(Ordering::Acquire))
    }

    #[track_caller]
    fn store(&self, offset: u64, bytes: &[u8]) -> Result<Stored> {
        self.check(offset, bytes.len() as u64)?;
        self.check_poison(offset, bytes.len() as u64)?;
        self.write(offset, bytes, StoreKind::Cached, Location::caller());
        Ok(Stored::new(offset, bytes.len() as u64))
    }

    #[track_caller]
    fn copy(&self, offset: u64, bytes: &[u8]) -> Result<Flushed> {
        self.check(offset, bytes.len() as u64)?;
        self.overwrite_poison(offset, bytes.len() as u64)?;
        let site = Location::caller();
        let (head, body, _) = split_words(offset, bytes.len());
        let (head, rest) = bytes.split_at(head);
        let (body, tail) = rest.split_at(body);
        for (at, edge) in [(offset, head), (offset + (bytes.len() - tail.len()) as u64, tail)] {
            self.write(at, edge, StoreKind::Cached, site);
            self.flush_range(at, edge.len() as u64, site);
        }
        self.write(offset + head.len() as u64, body, StoreKind::NonTemporal, site);
        Ok(Flushed::new())
    }

    #[track_caller]
    fn zero(&self, offset: u64, len: u64) -> Result<Flushed> {
        self.check(offset, len)?;
        let zeros = [0; BLOCK_SIZE as usize];
        let mut at = offset;
        while at < offset + len {
            let piece = (BLOCK_SIZE - at % BLOCK_SIZE).min(offset + len - at);
            self.copy(at, &zeros[..piece as usize])?.may_be_lost();
            at += piece;
        }
        Ok(Flushed::new())
    }

    #[track_caller]
    fn flush(&self, stored: Stored) -> Flushed {
        self.flush_range(stored.offset, stored.len, Location::caller());
        Flushed::new()
    }

    #[track_caller]
    fn fence(&self, _flushed: Flushed) -> Durable {
        point();
        let site = Location::caller();
        self.record_fence(site, || Event::Fence { thread: thread_number(), site });
        Durable::new()
    }

    #[track_caller]
    fn publish_u64(&self, offset: u64, value: u64, _after: Durable) -> Result<Stored> {
        check_aligned(offset)?;
        self.store(offset, &value.to_le_bytes())
    }

    #[track_caller]
    fn publish_entry(&self, offset: u64, bytes: &[u8], _after: Durable) -> Result<Flushed> {
        if !offset.is_multiple_of(LINE_SIZE) || !(bytes.len() as u64).is_multiple_of(LINE_SIZE) {
            return Err(Error::new(Kind::InvalidInput)
                .object(format!("an entry at {offset} that is not whole lines")));
        }
        self.copy(offset, bytes)
    }

    fn known_errors(&self) -> Vec<Range<u64>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_shared(&self) -> bool {
        self.is_shared.load(Ordering::Relaxed)
    }

    fn is_seeded(&self, mistake: u32) -> bool {
        self.mistake.load(Ordering::Relaxed) == mistake
    }
}

/// Where another thread may come between the two halves of an access; its end where none may.
fn middle_of(len: usize) -> usize {
    if EXPLORED && len as u64 > LINE_SIZE { len / 2 / LINE_SIZE as usize * LINE_SIZE as usize } else { len }
}

/// The part of a byte range that lies in one word.
pub(crate) struct Piece {
    /// Index of the word.
    pub(crate) word: usize,
    /// First byte within the word.
    pub(crate) shift: usize,
    /// First byte within the range.
    pub(crate) from: usize,
    /// Bytes in this piece, 1 to 8.
    pub(crate) len: usize,
}

impl Piece {
    /// The bits of the word that the piece covers.
    pub(crate) fn mask(&self) -> u64 {
        (u64::MAX >> (64 - 8 * self.len)) << (8 * self.shift)
    }

    /// The piece of `bytes` in its position within the word.
    pub(crate) fn value(&self, bytes: &[u8]) -> u64 {
        let mut value = [0; 8];
        value[self.shift..self.shift + self.len].copy_from_slice(&bytes[self.from..self.from + self.len]);
        u64::from_le_bytes(value)
    }
}

/// Splits a byte range at the borders of words, in ascending order.
pub(crate) fn pieces(offset: u64, len: usize) -> impl Iterator<Item = Piece> {
    let mut from = 0;
    std::iter::from_fn(move || {
        (from < len).then(|| {
            let at = offset + from as u64;
            let shift = (at % 8) as usize;
            let piece = Piece { word: (at / 8) as usize, shift, from, len: (8 - shift).min(len - from) };
            from += piece.len;
            piece
        })
    })
}

/// Bytes before the first whole word of a range, in whole words, and after them.
fn split_words(offset: u64, len: usize) -> (usize, usize, usize) {
    let edge = ((offset.next_multiple_of(8) - offset) as usize).min(len);
    let body = (len - edge) & !7;
    (edge, body, len - edge - body)
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

fn check_aligned(offset: u64) -> Result<()> {
    if offset.is_multiple_of(8) {
        return Ok(());
    }
    Err(Error::new(Kind::InvalidInput).object(format!("a word at {offset}, which is not a multiple of 8")))
}

#[cfg(test)]
mod tests {
    use super::{Event, SimPm, StoreKind};
    use crate::pm::Pm;

    #[test]
    fn it_behaves_like_memory() {
        let pm = SimPm::new(4096);
        let mut model = vec![0u8; 4096];
        let mut z = 1u64;
        let mut random = |n: u64| {
            z = z.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (z >> 33) % n
        };
        for round in 0..20_000 {
            let len = random(if round % 10 == 0 { 4096 } else { 40 }) as usize;
            let offset = random(4097 - len as u64);
            let range = offset as usize..offset as usize + len;
            let bytes: Vec<u8> = (0..len).map(|_| random(256) as u8).collect();
            match round % 4 {
                0 => pm.store(offset, &bytes).unwrap().may_be_lost(),
                1 => pm.copy(offset, &bytes).unwrap().may_be_lost(),
                2 => pm.zero(offset, len as u64).unwrap().may_be_lost(),
                _ => {
                    let mut seen = vec![0; len];
                    pm.read(offset, &mut seen).unwrap();
                    assert!(seen == model[range], "{len} bytes at {offset}");
                    continue;
                }
            }
            if round % 4 == 2 {
                model[range].fill(0);
            } else {
                model[range].copy_from_slice(&bytes);
            }
        }
        assert!(pm.snapshot() == model);
    }

    #[test]
    fn only_a_whole_block_is_written_over_media_errors() {
        let pm = SimPm::new(4 * 4096);
        let is_good = |at| pm.read(at, &mut [0; 64]).is_ok();
        pm.poison(4096 + 100, 1);
        pm.poison(3 * 4096, 1);
        assert!(pm.store(4096 + 64, &[1; 8]).is_err() && pm.copy(4096 + 64, &[1; 64]).is_err());
        assert!(pm.zero(4096, 4032).is_err() && pm.copy(4096, &[1; 2 * 4096 + 64]).is_err());
        assert!(!is_good(4096 + 64), "what was not written stays as it was");
        pm.store(4096, &[1; 64]).unwrap().may_be_lost();
        pm.copy(4095, &[1; 4097]).unwrap().may_be_lost();
        assert!(is_good(4096 + 64) && !is_good(3 * 4096));
        pm.keep_poison();
        assert!(pm.copy(3 * 4096, &[1; 4096]).is_err() && pm.zero(3 * 4096, 4096).is_err());
    }

    #[test]
    fn a_trace_holds_what_happened_while_it_was_recorded() {
        let pm = SimPm::new(4096);
        pm.store(0, &[1]).unwrap().may_be_lost();
        pm.start_recording();
        pm.fence(pm.copy(60, &[2; 16]).unwrap());
        pm.mark(5);
        let trace = pm.stop_recording();
        pm.store(0, &[3]).unwrap().may_be_lost();
        assert_eq!(trace.fences(), 1);
        let kinds: Vec<_> = trace
            .events
            .iter()
            .map(|event| match event {
                Event::Store { kind: StoreKind::Cached, offset, bytes, .. } => {
                    ('s', *offset, bytes.len() as u64)
                }
                Event::Store { offset, bytes, .. } => ('n', *offset, bytes.len() as u64),
                Event::Flush { offset, len, .. } => ('f', *offset, *len),
                Event::Fence { .. } => ('|', 0, 0),
                Event::Mark(value) => ('m', *value, 0),
                other => panic!("no disk is there: {other:?}"),
            })
            .collect();
        let expected =
            [('s', 60, 4), ('f', 60, 4), ('s', 72, 4), ('f', 72, 4), ('n', 64, 8), ('|', 0, 0), ('m', 5, 0)];
        assert_eq!(kinds, expected);
    }
}
