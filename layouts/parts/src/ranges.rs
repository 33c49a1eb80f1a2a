//! The blocks of a range of bytes: those that it has whole, and the parts of others at its edges.

use std::ops::Range;

use nacre_engine::{BLOCK_SIZE, Error, Kind, Result};
use smallvec::SmallVec;

/// Where `len` bytes from `offset` end, in files of at most `max` bytes.
pub fn end_of(offset: u64, len: u64, max: u64) -> Result<u64> {
    let end = offset.checked_add(len).filter(|&end| end <= max);
    end.ok_or(Error::new(Kind::FileTooBig))
}

/// The first block that `offset..end` has whole, and the first behind them.
pub fn whole_blocks(offset: u64, end: u64) -> Range<u64> {
    let (first, last) = (offset.div_ceil(BLOCK_SIZE), end / BLOCK_SIZE);
    first..last.max(first)
}

/// The blocks of which `offset..end` has a part: each with the bytes of it that are in the range.
pub fn edges(offset: u64, end: u64) -> SmallVec<[(u64, Range<u64>); 2]> {
    let (first, last) = (offset.div_ceil(BLOCK_SIZE), end / BLOCK_SIZE);
    let (from, to) = (offset % BLOCK_SIZE, end % BLOCK_SIZE);
    if first > last {
        return SmallVec::from_iter([(last, from..to)]);
    }
    let front = (from > 0).then(|| (first - 1, from..BLOCK_SIZE));
    let back = (to > 0).then_some((last, 0..to));
    front.into_iter().chain(back).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each byte of a range is in one of its whole blocks or at one of its edges.
    #[test]
    fn blocks_and_edges_are_the_range() {
        let near = |block: u64| [0, 1, 100, BLOCK_SIZE - 1].map(|byte| block * BLOCK_SIZE + byte);
        let offsets: Vec<u64> = (0..3).flat_map(near).collect();
        for &offset in &offsets {
            for &end in offsets.iter().filter(|&&end| end > offset) {
                let whole = whole_blocks(offset, end);
                let mut bytes: Vec<Range<u64>> =
                    edges(offset, end).into_iter().map(|(block, part)| bytes_of(block, part)).collect();
                bytes.extend((!whole.is_empty()).then(|| whole.start * BLOCK_SIZE..whole.end * BLOCK_SIZE));
                bytes.sort_by_key(|part| part.start);
                assert!(bytes.iter().all(|part| !part.is_empty()), "{offset}..{end}");
                assert!(bytes.windows(2).all(|pair| pair[0].end == pair[1].start), "{offset}..{end}");
                let ends = (bytes[0].start, bytes[bytes.len() - 1].end);
                assert_eq!(ends, (offset, end));
            }
        }
    }

    fn bytes_of(block: u64, part: Range<u64>) -> Range<u64> {
        block * BLOCK_SIZE + part.start..block * BLOCK_SIZE + part.end
    }
}
