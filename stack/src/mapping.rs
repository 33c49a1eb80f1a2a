//! A part of a file, read and written where it lies.

use std::ops::Range;

use nacre_engine::{BLOCK_SIZE, Error, Extents, FileBlock, Kind, Place, Result};
use nacre_media::{Pm, RealPm};
use nacre_vfs::SetTime;

use crate::file::File;

/// Persistent memory that holds a part of a file, from [`File::map`].
///
/// Reads and writes go straight to the blocks: no index is asked, no log is written, nothing is copied on write.
/// Written data is durable when the call returns, like any other write. A write is atomic only for each aligned piece
/// of 8 bytes: after a crash in the middle of a longer one, any of its words may be there.
///
/// As long as it exists, the blocks stay where they are: other writes over them, truncations, and holes fail with
/// [`Busy`](Kind::Busy) if the layout would move or free them (`log` moves overwritten blocks, `inplace` does not).
/// Reads of the file see these writes at once. The time of the last change is set when it is dropped.
///
/// ```
/// # fn main() -> nacre::Result<()> {
/// # let fs = nacre::FileSystem::in_memory(32 << 20, &nacre::OpenOptions::default())?;
/// fs.write("/counters", [0; 4096])?;
/// let file = nacre::FileOptions::new().read(true).write(true).open(&fs, "/counters")?;
/// let counters = file.map(0..4096)?;
/// counters.store(64, counters.load(64)? + 1)?;
/// drop(counters);
/// assert_eq!(fs.read("/counters")?[64], 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Mapping<'f> {
    file: &'f File,
    /// Offset in the file.
    start: u64,
    len: u64,
    /// Where its bytes are, in order: from which byte of the mapping on, and from which of the device.
    pieces: Vec<(u64, u64)>,
    is_writable: bool,
}

impl File {
    /// Maps the bytes of a range, all of which must have been written.
    ///
    /// [`InvalidInput`](Kind::InvalidInput) for a range that is empty, ends behind the file, or has holes or blocks that are
    /// allocated only; [`BadHandle`](Kind::BadHandle) for a file that is not open for reading.
    pub fn map(&self, range: Range<u64>) -> Result<Mapping<'_>> {
        let flags = self.handle().flags();
        if !flags.read || flags.path {
            return Err(Error::new(Kind::BadHandle).operation("map").advice("open the file for reading"));
        }
        let len = range.end.saturating_sub(range.start);
        let first = range.start / BLOCK_SIZE;
        let layout = self.layout();
        let blocks = range.end.div_ceil(BLOCK_SIZE).saturating_sub(first);
        let extents = layout.pin(self.handle().node(), FileBlock(first), blocks)?;
        // From here on dropping it lets go of them.
        let pieces = Vec::new();
        let mut mapping = Mapping { file: self, start: range.start, len, pieces, is_writable: false };
        let wrong = |what: String| Error::new(Kind::InvalidInput).operation("map").object(what);
        let size = self.metadata()?.len();
        if len == 0 || range.end > size {
            let words = format!("bytes {} to {} of a file of {size}", range.start, range.end);
            return Err(wrong(words).advice("map a range within the file"));
        }
        for extent in extents {
            let offset = extent.start.0 * BLOCK_SIZE;
            let Place::Pm(block) = extent.place else {
                let words = format!("{} blocks from byte {offset} on, which were not written", extent.len);
                return Err(wrong(words).advice("write the range before, zeros will do"));
            };
            // The first block may begin before the range.
            let skipped = range.start.saturating_sub(offset);
            mapping.pieces.push((offset + skipped - range.start, block.offset() + skipped));
        }
        mapping.is_writable = flags.write && !flags.append;
        Ok(mapping)
    }
}

impl Mapping<'_> {
    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// It has at least a byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Its range in the file.
    pub fn range(&self) -> Range<u64> {
        self.start..self.start + self.len
    }

    /// Reads `buf.len()` bytes at `offset` in the mapping.
    ///
    /// [`InvalidInput`](Kind::InvalidInput) outside of it; [`Media`](Kind::Media) where PM cannot be read.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.check(offset, buf.len() as u64)?;
        let (pm, mut done) = (self.pm(), 0);
        while done < buf.len() {
            let (at, count) = self.place(offset + done as u64, (buf.len() - done) as u64);
            pm.read(at, &mut buf[done..done + count])?;
            done += count;
        }
        Ok(())
    }

    /// Writes all of `data` at `offset` in the mapping; it is durable on return.
    ///
    /// [`BadHandle`](Kind::BadHandle) when the file is not open for writing anywhere in it.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.write_all_at(&[(offset, data)])
    }

    /// Writes several pieces, each at its offset in the mapping. They are durable on return, which waits once for all.
    pub fn write_all_at(&self, pieces: &[(u64, &[u8])]) -> Result<()> {
        self.check_writable()?;
        pieces.iter().try_for_each(|(offset, data)| self.check(*offset, data.len() as u64))?;
        let pm = self.pm();
        let mut last = None;
        for (offset, data) in pieces {
            let mut done = 0;
            while done < data.len() {
                let (at, count) = self.place(offset + done as u64, (data.len() - done) as u64);
                last = Some(pm.copy(at, &data[done..done + count])?);
                done += count;
            }
        }
        if let Some(flushed) = last {
            let _ = pm.fence(flushed);
        }
        Ok(())
    }

    /// Loads the 8 bytes at a multiple of 8, at once, as a little-endian number.
    pub fn load(&self, offset: u64) -> Result<u64> {
        self.pm().load_u64(self.word(offset)?)
    }

    /// Stores the 8 bytes at a multiple of 8, at once, as a little-endian number: after a crash it is there wholly or
    /// not at all. It is durable on return.
    pub fn store(&self, offset: u64, value: u64) -> Result<()> {
        self.check_writable()?;
        let (pm, at) = (self.pm(), self.word(offset)?);
        let stored = pm.store(at, &value.to_le_bytes())?;
        let flushed = pm.flush(stored);
        let _ = pm.fence(flushed);
        Ok(())
    }

    fn word(&self, offset: u64) -> Result<u64> {
        self.check(offset, 8)?;
        let at = self.place(offset, 8).0;
        if !at.is_multiple_of(8) {
            return Err(outside(offset, 8).advice("give a multiple of 8, counted from the file's start"));
        }
        Ok(at)
    }

    fn check(&self, offset: u64, len: u64) -> Result<()> {
        if offset.checked_add(len).is_some_and(|end| end <= self.len) {
            return Ok(());
        }
        Err(outside(offset, len).advice("stay inside the mapping"))
    }

    fn check_writable(&self) -> Result<()> {
        if self.is_writable {
            return Ok(());
        }
        Err(Error::new(Kind::BadHandle).operation("write to a mapping").advice("open the file for writing"))
    }

    /// Where a byte of the mapping is on the device, and how many of the next `len` lie there together.
    fn place(&self, offset: u64, len: u64) -> (u64, usize) {
        let index = self.pieces.partition_point(|(start, _)| *start <= offset) - 1;
        let (start, at) = self.pieces[index];
        let end = self.pieces.get(index + 1).map_or(self.len, |next| next.0);
        (at + (offset - start), len.min(end - offset) as usize)
    }

    fn pm(&self) -> &RealPm {
        self.file.layout().pm()
    }
}

fn outside(offset: u64, len: u64) -> Error {
    Error::new(Kind::InvalidInput).object(format!("{len} bytes at {offset} of a mapping"))
}

impl Drop for Mapping<'_> {
    fn drop(&mut self) {
        if self.is_writable {
            // It was written to, as far as anybody can say. Where the time cannot be changed, the data is there all the same.
            let _ = self.file.set_times(SetTime::Omit, SetTime::Now);
        }
        self.file.layout().unpin(self.file.handle().node());
    }
}
