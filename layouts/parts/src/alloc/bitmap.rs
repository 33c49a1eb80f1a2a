//! The bitmap of one lane: which of its blocks are free, and finding some.
//!
//! Searches start at a cursor; a word is 64 blocks. Two summaries, of two levels each, lead past useless words: one of
//! the words that have a free block, one of those in which all are free. Invariant: a bit of a summary is set exactly
//! when its word is as the summary says.

use super::GROUP;

/// Such words that a search looks at before it takes the longest run that it has seen.
const LONG_SEARCH_RUNS: usize = 16;
/// Words that a search for a shorter run looks at before it takes the run that it found.
const SHORT_SEARCH_WORDS: u64 = 512;

/// Which runs an allocation takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Take {
    /// Only such as contain a word that is free as a whole.
    Long,
    Any,
}

/// The free blocks of one lane.
pub(super) struct LaneMap {
    /// A set bit is a free block; the first bit is the lane's first block.
    words: Vec<u64>,
    /// The words that are not zero.
    some: Summary,
    /// The words with all bits set.
    whole: Summary,
    /// Where the next search for several blocks starts, in words.
    cursor: usize,
    /// No word before this one has a free block. Single blocks are taken from here on: the holes that overwriting
    /// leaves are filled first, and long runs stay whole.
    low: usize,
}

/// Words of a bitmap that have some property: one bit for each, and one for each word of these bits.
struct Summary {
    low: Vec<u64>,
    high: Vec<u64>,
}

impl Summary {
    fn new(words: usize) -> Summary {
        let low = words.div_ceil(64);
        Summary { low: vec![0; low], high: vec![0; low.div_ceil(64)] }
    }

    fn insert(&mut self, index: usize) {
        self.low[index / 64] |= 1 << (index % 64);
        self.high[index / 4096] |= 1 << (index / 64 % 64);
    }

    fn remove(&mut self, index: usize) {
        let low = &mut self.low[index / 64];
        *low &= !(1 << (index % 64));
        if *low == 0 {
            self.high[index / 4096] &= !(1 << (index / 64 % 64));
        }
    }

    /// The first word at or after `index` that has the property.
    fn next(&self, index: u64) -> Option<u64> {
        let bits = *self.low.get((index / 64) as usize)? & (u64::MAX << (index % 64));
        if bits != 0 {
            return Some(index / 64 * 64 + u64::from(bits.trailing_zeros()));
        }
        let next = index / 64 + 1;
        let mut at = (next / 64) as usize;
        let mut bits = *self.high.get(at)? & (u64::MAX << (next % 64));
        while bits == 0 {
            at += 1;
            bits = *self.high.get(at)?;
        }
        let next = at as u64 * 64 + u64::from(bits.trailing_zeros());
        Some(next * 64 + u64::from(self.low[next as usize].trailing_zeros()))
    }
}

impl LaneMap {
    pub(super) fn new(words: usize) -> LaneMap {
        let (some, whole) = (Summary::new(words), Summary::new(words));
        LaneMap { words: vec![0; words], some, whole, cursor: 0, low: words }
    }

    /// Takes a run of at most `want` blocks, a long one where that is wanted and there is one.
    pub(super) fn take(&mut self, want: u64, take: Take) -> Option<(u64, u64)> {
        if want == 1 && take == Take::Any {
            let start = self.next_set(self.low as u64 * 64)?;
            self.low = (start / 64) as usize;
            self.clear(start, 1);
            return Some((start, 1));
        }
        let from = self.cursor as u64 * 64;
        let goal = want.min(GROUP);
        let start = self.find_run(from, goal, take)?;
        let len = self.run_length(start, want);
        self.clear(start, len);
        self.cursor = ((start + len) / 64) as usize;
        Some((start, len))
    }

    /// The start of a run of `goal` blocks, or of a run near that length, at or after `from` first.
    fn find_run(&self, from: u64, goal: u64, take: Take) -> Option<u64> {
        let starts = if from > 0 { &[from, 0][..] } else { &[0] };
        if take == Take::Long {
            return starts.iter().find_map(|&from| self.find_long(from, goal));
        }
        let short = starts.iter().find_map(|&from| self.find_short(from, goal));
        short.or_else(|| starts.iter().find_map(|&from| self.next_set(from)))
    }

    /// Takes the free blocks from `start` on, at most `want`; gives their number.
    pub(super) fn take_at(&mut self, start: u64, want: u64) -> u64 {
        let len = self.run_length(start, want);
        self.clear(start, len);
        len
    }

    /// Takes exactly `want` contiguous blocks.
    pub(super) fn take_exactly(&mut self, want: u64) -> Option<u64> {
        let mut at = self.low as u64 * 64;
        loop {
            let start = self.next_set(at)?;
            let len = self.run_length(start, want);
            if len == want {
                self.clear(start, len);
                return Some(start);
            }
            at = start + len;
        }
    }

    /// The longest of the next few runs that contain a word that is free as a whole; the first of `goal` blocks.
    fn find_long(&self, from: u64, goal: u64) -> Option<u64> {
        let mut best: Option<(u64, u64)> = None;
        let mut at = from / 64;
        for _ in 0..LONG_SEARCH_RUNS {
            let Some(word) = self.whole.next(at) else { break };
            let before = word.checked_sub(1).map_or(0, |before| self.words[before as usize].leading_ones());
            let start = word * 64 - u64::from(before);
            let len = self.run_length(start, goal);
            if len >= goal {
                return Some(start);
            }
            if best.is_none_or(|(_, longest)| len > longest) {
                best = Some((start, len));
            }
            at = (start + len) / 64 + 1;
        }
        best.map(|(start, _)| start)
    }

    /// The first run of at least `goal` blocks within a bounded distance from `from`.
    fn find_short(&self, from: u64, goal: u64) -> Option<u64> {
        let end = (from + SHORT_SEARCH_WORDS * 64).min(self.words.len() as u64 * 64);
        let mut at = from;
        while let Some(start) = self.next_set(at) {
            if start >= end {
                return None;
            }
            let len = self.run_length(start, goal);
            if len >= goal {
                return Some(start);
            }
            at = start + len;
        }
        None
    }

    /// The first set bit at or after `at`.
    pub(super) fn next_set(&self, at: u64) -> Option<u64> {
        let word = *self.words.get((at / 64) as usize)? & (u64::MAX << (at % 64));
        if word != 0 {
            return Some(at / 64 * 64 + u64::from(word.trailing_zeros()));
        }
        let index = self.some.next(at / 64 + 1)?;
        Some(index * 64 + u64::from(self.words[index as usize].trailing_zeros()))
    }

    /// Number of set bits in a row from `start` on, at most `limit`.
    pub(super) fn run_length(&self, start: u64, limit: u64) -> u64 {
        let mut len = 0;
        let mut at = start;
        while len < limit {
            let Some(word) = self.words.get((at / 64) as usize) else { break };
            let ones = u64::from((word >> (at % 64)).trailing_ones()).min(64 - at % 64);
            len += ones;
            at += ones;
            if !at.is_multiple_of(64) || ones == 0 {
                break;
            }
        }
        len.min(limit)
    }

    fn clear(&mut self, start: u64, len: u64) {
        for_each_mask(start, len, |index, mask| {
            let word = self.words[index];
            debug_assert_eq!(word & mask, mask);
            self.words[index] = word & !mask;
            if word == u64::MAX {
                self.whole.remove(index);
            }
            if word == mask {
                self.some.remove(index);
            }
        });
    }

    /// Sets bits; gives the number of those that were not set.
    pub(super) fn set(&mut self, start: u64, len: u64) -> u64 {
        let mut freed = 0;
        self.low = self.low.min((start / 64) as usize);
        for_each_mask(start, len, |index, mask| {
            let word = self.words[index];
            freed += u64::from((mask & !word).count_ones());
            self.words[index] = word | mask;
            if word == 0 {
                self.some.insert(index);
            }
            if word | mask == u64::MAX && word != u64::MAX {
                self.whole.insert(index);
            }
        });
        freed
    }
}

/// Calls `visit` with (word, mask) for the bits `start..start + len`.
pub fn for_each_mask(start: u64, len: u64, mut visit: impl FnMut(usize, u64)) {
    let (mut at, end) = (start, start + len);
    while at < end {
        let bits = (64 - at % 64).min(end - at);
        let mask = if bits == 64 { u64::MAX } else { ((1 << bits) - 1) << (at % 64) };
        visit((at / 64) as usize, mask);
        at += bits;
    }
}
