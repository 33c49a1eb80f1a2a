//! The bytes of a write, which lie in several slices.
//!
//! Bytes are copied to media from where they are, unless two slices meet within a line. Such a line would be flushed
//! for each of them, and a word of it could be torn by a crash. The data of a write buffer is whole lines.

use std::io::IoSlice;
use std::ops::Range;

use nacre_engine::LINE_SIZE;
use smallvec::SmallVec;

/// The data of a write to a file, and its offset.
#[derive(Debug)]
pub struct Content<'a> {
    /// Bytes that follow each other, each part with its place in the file.
    parts: SmallVec<[(u64, &'a [u8]); 4]>,
}

/// The bytes of slices of which two meet within a line, in one piece.
pub fn gather(offset: u64, data: &[IoSlice<'_>]) -> Option<Vec<u8>> {
    let mut end = offset;
    let meet = data.iter().filter(|slice| !slice.is_empty()).any(|slice| {
        let begin = end;
        end += slice.len() as u64;
        begin != offset && !begin.is_multiple_of(LINE_SIZE)
    });
    meet.then(|| {
        let mut all = Vec::with_capacity(data.iter().map(|slice| slice.len()).sum());
        data.iter().for_each(|slice| all.extend_from_slice(slice));
        all
    })
}

impl<'a> Content<'a> {
    /// The slices, or the buffer that they were gathered in.
    pub fn new(offset: u64, data: &'a [IoSlice<'_>], gathered: &'a Option<Vec<u8>>) -> Content<'a> {
        let mut at = offset;
        let parts = match gathered {
            Some(all) => SmallVec::from_slice(&[(offset, &all[..])]),
            None => {
                let place = |slice: &'a IoSlice<'_>| {
                    at += slice.len() as u64;
                    (at - slice.len() as u64, &slice[..])
                };
                data.iter().map(place).collect()
            }
        };
        Content { parts }
    }

    /// The bytes of a range, which it has, each part with its place.
    pub fn between(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &'a [u8])> {
        let first = self.parts.partition_point(|(at, bytes)| at + bytes.len() as u64 <= range.start);
        let parts = self.parts[first..].iter().take_while(move |(at, _)| *at < range.end);
        parts.filter(|(_, bytes)| !bytes.is_empty()).map(move |&(at, bytes)| {
            let end = at + bytes.len() as u64;
            let (from, to) = (range.start.max(at), range.end.min(end));
            (from, &bytes[(from - at) as usize..(to - at) as usize])
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use super::{Content, gather};

    /// Bytes whose values are their places in the file.
    fn slices(bytes: &[u8], lens: &[usize]) -> Vec<IoSlice<'static>> {
        let bytes: &'static [u8] = bytes.to_vec().leak();
        let mut at = 0;
        let cut = |&len: &usize| {
            at += len;
            IoSlice::new(&bytes[at - len..at])
        };
        lens.iter().map(cut).collect()
    }

    #[test]
    fn slices_are_copied_from_where_they_are_unless_they_share_a_line() {
        let bytes: Vec<u8> = (10..210).collect();
        for lens in [&[200][..], &[54, 146], &[54, 0, 64, 82], &[0, 118, 82, 0]] {
            assert_eq!(gather(10, &slices(&bytes, lens)), None, "{lens:?}");
        }
        for lens in [&[53, 147][..], &[54, 63, 83], &[118, 1, 81]] {
            assert_eq!(gather(10, &slices(&bytes, lens)).unwrap(), bytes, "{lens:?}");
        }
    }

    #[test]
    fn every_range_has_its_bytes() {
        let bytes: Vec<u8> = (10..210).collect();
        for lens in [&[200][..], &[54, 0, 64, 82], &[0, 118, 82, 0], &[53, 1, 146]] {
            let slices = slices(&bytes, lens);
            let gathered = gather(10, &slices);
            let content = Content::new(10, &slices, &gathered);
            for from in 10..210 {
                for to in from + 1..=210 {
                    let mut at = from;
                    for (place, part) in content.between(from..to) {
                        assert!(!part.is_empty() && place == at, "{lens:?}: {from} to {to}");
                        assert!(part.iter().zip(place..).all(|(&byte, place)| u64::from(byte) == place));
                        at += part.len() as u64;
                    }
                    assert_eq!(at, to, "{lens:?}");
                }
            }
        }
    }
}
