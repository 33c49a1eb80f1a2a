//! The contents of media that a crash may leave.
//!
//! [`Replay`] walks a [`Trace`] that simulated memory has recorded, from an image in which everything was durable. It
//! stops before each fence and at the end. At every stop, [`Replay::images`] gives the images that a crash since the
//! stop before may have left: all of them where they are few, samples where they are many.
//!
//! The model ([`Pm`](crate::Pm) has it in words):
//!
//! - Of the ordinary stores to a line, media holds some first part of their order, whether they were flushed or not.
//! - Of the non-temporal stores, media holds any of their words.
//! - A fence makes earlier flushes and stores past the cache of its own thread durable.
//!
//! The outcome is chosen for each line separately. A store of several words counts as a store of each, in ascending
//! order.
//!
//! Of the writes to a disk, media holds for each sector of 512 bytes its content at the last flush, or any one of the
//! writes since. The flush makes earlier writes of all threads durable. A fence of PM does nothing for the disk, nor
//! the other way round. The flush of a disk is a stop, as a fence is.

mod images;
mod pending;
mod sector;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nacre_engine::LINE_SIZE;

use crate::image::Image;
use crate::sim::{Event, Site, Trace, pieces};
pub use images::{CrashImage, Images, Sampling};
use pending::{Line, Op};
use sector::{SECTOR_LINES, SectorBytes, Versions};

/// Bytes of a line.
pub type LineBytes = [u8; LINE_SIZE as usize];

/// A walk through a trace; see the [module](self).
#[derive(Debug)]
pub struct Replay<'t> {
    events: &'t [Event],
    /// The next event to take in.
    next: usize,
    /// The durable content.
    media: Image,
    /// Stores that are not durable, by line.
    pending: BTreeMap<u64, Line>,
    /// Writes to disks that are not durable, by sector.
    sectors: BTreeMap<u64, Versions>,
    /// Lines with something that the thread's next fence makes durable.
    waiting: HashMap<u32, BTreeSet<u64>>,
    sequence: u64,
    point: Option<Point>,
    /// Changes with each line of `media`.
    hash: u64,
    /// The stores since the point before: the place in the source, and the line.
    stores: Vec<(Site, u64)>,
    /// The fence at the point before.
    last_fence: Option<Site>,
}

/// A place in the trace at which the machine may crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// How many points came before it.
    pub index: usize,
    /// Events that have happened.
    pub events: usize,
    /// Marks among them.
    pub marks: usize,
    /// The value of the last mark.
    pub last_mark: Option<u64>,
    /// The trace ends here.
    pub is_end: bool,
    /// The fence that comes next.
    pub fence: Option<Site>,
}

impl<'t> Replay<'t> {
    /// Starts at the beginning of the trace; `media` is the content at that time, all of it durable.
    pub fn new(media: impl Into<Image>, trace: &'t Trace) -> Replay<'t> {
        Replay {
            events: &trace.events,
            next: 0,
            media: media.into(),
            pending: BTreeMap::new(),
            sectors: BTreeMap::new(),
            waiting: HashMap::new(),
            sequence: 0,
            point: None,
            hash: 0,
            stores: Vec::new(),
            last_fence: None,
        }
    }

    /// Walks to the end without a stop, and from there on through a trace that was recorded after this one. Points
    /// count from its beginning.
    pub fn then<'u>(mut self, trace: &'u Trace) -> Replay<'u> {
        while self.advance().is_some() {}
        Replay {
            events: &trace.events,
            next: 0,
            media: self.media,
            pending: self.pending,
            sectors: self.sectors,
            waiting: self.waiting,
            sequence: self.sequence,
            point: None,
            hash: self.hash,
            stores: Vec::new(),
            last_fence: None,
        }
    }

    /// Goes on to just before the next fence, or to the end. Fences before which nothing was stored or marked since
    /// the point before are passed without a stop: their images have all been seen.
    pub fn advance(&mut self) -> Option<Point> {
        let before = self.point;
        if before.is_some_and(|point| point.is_end) {
            return None;
        }
        let mut point = Point {
            index: before.map_or(0, |point| point.index + 1),
            events: self.next,
            marks: before.map_or(0, |point| point.marks),
            last_mark: before.and_then(|point| point.last_mark),
            is_end: true,
            fence: None,
        };
        self.last_fence = before.and_then(|point| point.fence);
        self.stores.clear();
        // The fence that we stopped at takes effect now.
        let mut news = before.is_none();
        let mut at_stop = before.is_some();
        while let Some(event) = self.events.get(self.next) {
            match event {
                Event::Fence { site, .. } | Event::DiskFlush { site, .. } if news && !at_stop => {
                    point.is_end = false;
                    point.fence = Some(*site);
                    break;
                }
                Event::Fence { thread, .. } => self.fence(*thread),
                Event::Store { thread, offset, bytes, kind, site } => {
                    news = true;
                    self.stores.push((*site, *offset));
                    let thread = (*kind == crate::sim::StoreKind::NonTemporal).then_some(*thread);
                    self.store(thread, *offset, bytes);
                }
                Event::Flush { thread, offset, len, .. } => self.flush(*thread, *offset, *len),
                Event::DiskWrite { offset, bytes, site, .. } => {
                    news = true;
                    self.stores.push((*site, *offset));
                    self.disk_write(*offset, bytes);
                }
                Event::DiskFlush { offset, len, .. } => self.disk_flush(*offset, *len),
                Event::Mark(value) => {
                    news = true;
                    point.marks += 1;
                    point.last_mark = Some(*value);
                }
            }
            at_stop = false;
            self.next += 1;
        }
        point.events = self.next;
        self.point = Some(point);
        Some(point)
    }

    /// The durable content at this point.
    pub fn media(&self) -> &Image {
        &self.media
    }

    /// The content after a crash that left this image.
    pub fn crashed(&self, image: &CrashImage) -> Image {
        let mut media = self.media.clone();
        image.apply_to(&mut media);
        media
    }

    /// The number of lines, and of sectors of disks, of which something is not durable.
    pub fn pending_lines(&self) -> usize {
        self.pending.len() + self.sectors.len()
    }

    /// The marks among so many events of the trace, from one event on.
    pub fn marks(&self, events: std::ops::Range<usize>) -> impl Iterator<Item = u64> + '_ {
        self.events[events].iter().filter_map(|event| match event {
            Event::Mark(value) => Some(*value),
            _ => None,
        })
    }

    /// Those lines (offsets divided by 64), and those of these sectors.
    pub fn lines_pending(&self) -> impl Iterator<Item = u64> + '_ {
        let sectors = self.sectors.keys();
        self.pending.keys().copied().chain(sectors.flat_map(|sector| sector::lines_of(*sector)))
    }

    /// The stores since the point before: by which line of the program, and where to.
    pub fn stores(&self) -> &[(Site, u64)] {
        &self.stores
    }

    /// The fence at the point before.
    pub fn last_fence(&self) -> Option<Site> {
        self.last_fence
    }

    /// The images that a crash may leave here. Equal `sampling` gives equal images.
    pub fn images(&self, sampling: &Sampling) -> Images {
        self.images_of(sampling, |_| true)
    }

    /// The same where only some lines matter; nothing lands of the others.
    pub fn images_of(&self, sampling: &Sampling, matters: impl Fn(u64) -> bool) -> Images {
        let point = self.point.map_or(0, |point| point.index as u64);
        let lines = self.pending.iter().filter(|(line, _)| matters(**line));
        let lines = lines.map(|(line, pending)| (*line, self.media.line(*line), pending));
        let sectors = self.sectors.iter().filter(|(sector, _)| sector::lines_of(**sector).any(&matters));
        let sectors = sectors.map(|(sector, versions)| (*sector, self.sector(*sector), versions));
        Images::new(lines, sectors, sampling, point)
    }

    /// True when a crash here may leave these bytes in a line. With very many pending stores to the line, true already
    /// when it may leave each of the words.
    pub fn allows(&self, line: u64, bytes: &LineBytes) -> bool {
        let before = self.media.line(line);
        if let Some(versions) = self.sectors.get(&(line / SECTOR_LINES)) {
            return before == *bytes || versions.may_leave(line % SECTOR_LINES, bytes);
        }
        match self.pending.get(&line) {
            None => before == *bytes,
            Some(pending) => pending.may_become(before, bytes),
        }
    }

    /// A number that two crash images of this trace share when their bytes are equal, and else hardly ever.
    pub fn hash_of(&self, image: &CrashImage) -> u64 {
        let changes = image.lines.iter();
        changes.fold(self.hash, |hash, (line, after)| {
            hash ^ hash_line(*line, &self.media.line(*line)) ^ hash_line(*line, after)
        })
    }

    fn store(&mut self, non_temporal: Option<u32>, offset: u64, bytes: &[u8]) {
        for piece in pieces(offset, bytes.len()) {
            let line = piece.word as u64 / 8;
            let op = Op {
                sequence: self.sequence,
                word: (piece.word % 8) as u8,
                mask: piece.mask(),
                value: piece.value(bytes),
            };
            self.sequence += 1;
            self.pending.entry(line).or_default().store(non_temporal, op);
            if let Some(thread) = non_temporal {
                self.waiting.entry(thread).or_default().insert(line);
            }
        }
    }

    fn sector(&self, sector: u64) -> SectorBytes {
        sector::joined(sector::lines_of(sector).map(|line| self.media.line(line)))
    }

    fn disk_write(&mut self, offset: u64, bytes: &[u8]) {
        for (number, bytes) in sector::sectors_of(offset, bytes) {
            self.sectors.entry(number).or_default().write(self.sequence, bytes);
            self.sequence += 1;
        }
    }

    fn disk_flush(&mut self, offset: u64, len: u64) {
        let behind = self.sectors.split_off(&sector::number_of(offset));
        for (number, versions) in behind {
            if number >= sector::number_of(offset + len) {
                self.sectors.insert(number, versions);
                continue;
            }
            for (line, bytes) in sector::lines_of(number).zip(sector::lines_in(versions.last())) {
                self.set_line(line, &bytes);
            }
        }
    }

    /// Makes a line durable.
    fn set_line(&mut self, line: u64, bytes: &LineBytes) {
        let before = self.media.line(line);
        if *bytes != before {
            self.hash ^= hash_line(line, &before) ^ hash_line(line, bytes);
            self.media.set_line(line, bytes);
        }
    }

    fn flush(&mut self, thread: u32, offset: u64, len: u64) {
        let waiting = self.waiting.entry(thread).or_default();
        for line in offset / LINE_SIZE..(offset + len).div_ceil(LINE_SIZE) {
            if let Some(pending) = self.pending.get_mut(&line) {
                pending.flush(thread, self.sequence);
                waiting.insert(line);
            }
        }
    }

    fn fence(&mut self, thread: u32) {
        for line in self.waiting.remove(&thread).unwrap_or_default() {
            let mut bytes = self.media.line(line);
            if let Some(pending) = self.pending.get_mut(&line) {
                pending.fence(thread, &mut bytes);
                if pending.is_empty() {
                    self.pending.remove(&line);
                }
            }
            self.set_line(line, &bytes);
        }
    }
}

fn hash_line(line: u64, bytes: &LineBytes) -> u64 {
    let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("a word")));
    words.fold(images::mix(line), |hash, word| images::mix(hash ^ word).wrapping_add(hash.rotate_left(23)))
}
