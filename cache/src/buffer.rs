//! Sets of a block's lines as bits, and the bytes of a write.

use std::io::IoSlice;

use nacre_engine::{BLOCK_SIZE, LINE_SIZE, Result};

pub(crate) const BLOCK: usize = BLOCK_SIZE as usize;
pub(crate) const LINE: usize = LINE_SIZE as usize;
/// Lines in a block: as many as a word has bits.
pub(crate) const LINES: usize = BLOCK / LINE;

/// The lines `first..end`.
pub(crate) fn lines(first: usize, end: usize) -> u64 {
    debug_assert!(first < end && end <= LINES);
    (u64::MAX >> (LINES - (end - first))) << first
}

/// The lines that the bytes `from..to` touch.
pub(crate) fn touched(from: usize, to: usize) -> u64 {
    lines(from / LINE, to.div_ceil(LINE))
}

/// The lines that lie in the bytes `from..to` as a whole.
pub(crate) fn covered(from: usize, to: usize) -> u64 {
    let (first, end) = (from.div_ceil(LINE), to / LINE);
    if first < end { lines(first, end) } else { 0 }
}

/// The runs of set bits, as first line and line after the last, in order.
pub(crate) fn runs(mut set: u64) -> impl Iterator<Item = (usize, usize)> {
    std::iter::from_fn(move || {
        if set == 0 {
            return None;
        }
        let first = set.trailing_zeros() as usize;
        let len = (set >> first).trailing_ones() as usize;
        set &= !lines(first, first + len);
        Some((first, first + len))
    })
}

/// As [`runs`], with runs joined that lie in one unit of `unit` lines, because media writes the whole unit for either.
pub(crate) fn runs_by_unit(set: u64, unit: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut plain = runs(set).peekable();
    std::iter::from_fn(move || {
        let (first, mut end) = plain.next()?;
        while let Some((_, next_end)) = plain.next_if(|(next, _)| next / unit == (end - 1) / unit) {
            end = next_end;
        }
        Some((first, end))
    })
}

/// Bytes to write, gathered from several slices, taken in order.
pub(crate) struct Source<'a> {
    slices: &'a [IoSlice<'a>],
    index: usize,
    within: usize,
}

impl<'a> Source<'a> {
    pub(crate) fn new(slices: &'a [IoSlice<'a>]) -> Source<'a> {
        Source { slices, index: 0, within: 0 }
    }

    /// Copies the next bytes. The caller takes no more than there are.
    pub(crate) fn fill(&mut self, mut to: &mut [u8]) {
        while !to.is_empty() {
            let slice = &self.slices[self.index][self.within..];
            let count = slice.len().min(to.len());
            to[..count].copy_from_slice(&slice[..count]);
            to = &mut to[count..];
            self.advance(count);
        }
    }

    /// Passes the next `count` bytes to `give` without a copy, in pieces, each with the number of bytes before it.
    pub(crate) fn pass(
        &mut self,
        count: usize,
        mut give: impl FnMut(usize, &'a [u8]) -> Result<()>,
    ) -> Result<()> {
        let mut at = 0;
        while at < count {
            let slices: &'a [IoSlice<'a>] = self.slices;
            let slice = &slices[self.index][self.within..];
            let piece = &slice[..slice.len().min(count - at)];
            give(at, piece)?;
            at += piece.len();
            self.advance(piece.len());
        }
        Ok(())
    }

    fn advance(&mut self, count: usize) {
        self.within += count;
        if self.within == self.slices[self.index].len() {
            self.index += 1;
            self.within = 0;
        }
    }
}

/// The parts of a range of a file, block by block: the block's number and the bytes in it.
pub(crate) fn parts(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at == end {
            return None;
        }
        let from = at % BLOCK_SIZE;
        let to = (from + (end - at)).min(BLOCK_SIZE);
        let part = (at / BLOCK_SIZE, from as usize, to as usize);
        at += to - from;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use super::{Source, covered, lines, parts, runs, runs_by_unit, touched};

    #[test]
    fn lines_of_byte_ranges() {
        assert_eq!(lines(0, 64), u64::MAX);
        // The paper's example (section 3.3.2): bytes 0 to 112 cover one line and half cover another.
        assert_eq!((touched(0, 112), covered(0, 112)), (0b11, 0b1));
        assert_eq!((touched(63, 65), covered(63, 65)), (0b11, 0));
        assert_eq!((touched(64, 128), covered(64, 128)), (0b10, 0b10));
        assert_eq!(touched(4095, 4096), 1 << 63);
    }

    #[test]
    fn runs_of_lines() {
        assert_eq!(runs(0).next(), None);
        assert_eq!(runs(u64::MAX).collect::<Vec<_>>(), [(0, 64)]);
        let set = 0b1 | lines(4, 8) | 1 << 63;
        assert_eq!(runs(set).collect::<Vec<_>>(), [(0, 1), (4, 8), (63, 64)]);
        assert_eq!(runs_by_unit(set, 1).collect::<Vec<_>>(), [(0, 1), (4, 8), (63, 64)]);
        assert_eq!(runs_by_unit(set, 8).collect::<Vec<_>>(), [(0, 8), (63, 64)]);
        assert_eq!(runs_by_unit(set, 64).collect::<Vec<_>>(), [(0, 64)]);
    }

    #[test]
    fn parts_of_a_range() {
        assert_eq!(parts(4000, 4300).collect::<Vec<_>>(), [(0, 4000, 4096), (1, 0, 4096), (2, 0, 108)]);
    }

    #[test]
    fn slices_are_read_in_order() {
        let slices = [IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"cde")];
        let mut source = Source::new(&slices);
        let mut bytes = [0; 3];
        source.fill(&mut bytes);
        assert_eq!(&bytes, b"abc");
        source.fill(&mut bytes[..2]);
        assert_eq!(&bytes[..2], b"de");
    }
}
