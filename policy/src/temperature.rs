//! How hot files are, and what of them moves (paper 002, sections 5.2, 5.3 and 5.5).
//!
//! A file has a mean time of modification and one of reading over its blocks, a write entry has its own.
//! [`Temperatures`] keeps the files of one medium in the order of both: demotion takes the write-coldest file, and
//! promotion for reads takes the read-hottest. [`write_cold`] and [`read_hot`] choose the entries of a file that
//! move. [`spans`] and [`Span::group`] join these into few large pieces.
//!
//! Times are milliseconds since any start; 0 is "never".

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

/// A file that was not modified for longer than this moves as a whole, in milliseconds.
pub const WHOLE_FILE_MS: u64 = 30_000;

/// Mean times over the blocks of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Heat {
    /// When its blocks were modified, on average.
    pub modified_ms: u64,
    /// When its blocks were read, on average.
    pub read_ms: u64,
}

impl Heat {
    /// So many blocks were written; with them the file has `size` blocks.
    pub fn wrote(&mut self, blocks: u64, size: u64, now_ms: u64) {
        self.modified_ms = mean(self.modified_ms, blocks, size, now_ms);
    }

    /// So many blocks of `size` were read.
    pub fn read(&mut self, blocks: u64, size: u64, now_ms: u64) {
        self.read_ms = mean(self.read_ms, blocks, size, now_ms);
    }
}

/// The mean after `blocks` of `size` have a new time. Those that had it before count as having had the mean: the sum of
/// all times would have to be kept for more.
fn mean(before_ms: u64, blocks: u64, size: u64, now_ms: u64) -> u64 {
    let (blocks, size) = (u128::from(blocks.min(size)), u128::from(size));
    if size == 0 {
        return now_ms;
    }
    let sum = u128::from(before_ms) * (size - blocks) + u128::from(now_ms) * blocks;
    (sum / size) as u64
}

/// The files of one medium by temperature.
#[derive(Debug)]
pub struct Temperatures<F> {
    by_modification: BTreeSet<(u64, F)>,
    by_reading: BTreeSet<(u64, F)>,
    known: HashMap<F, Heat>,
    max_files: usize,
}

impl<F: Copy + Ord + Hash> Temperatures<F> {
    /// Lists of at most so many files.
    pub fn new(max_files: usize) -> Temperatures<F> {
        Temperatures {
            by_modification: BTreeSet::new(),
            by_reading: BTreeSet::new(),
            known: HashMap::new(),
            max_files,
        }
    }

    /// Sets the heat of a file. If the lists are full, the file with the latest mean modification is forgotten, and
    /// returned, because it would be demoted last. It comes back with its next access or with a scan.
    pub fn set(&mut self, file: F, heat: Heat) -> Option<F> {
        self.remove(file);
        self.known.insert(file, heat);
        self.by_modification.insert((heat.modified_ms, file));
        self.by_reading.insert((heat.read_ms, file));
        if self.known.len() <= self.max_files {
            return None;
        }
        let &(_, hottest) = self.by_modification.last()?;
        self.remove(hottest);
        Some(hottest)
    }

    /// Whether a file is in the lists.
    pub fn has(&self, file: F) -> bool {
        self.known.contains_key(&file)
    }

    /// A file is gone, or nothing of it is on this medium any more.
    pub fn remove(&mut self, file: F) {
        if let Some(heat) = self.known.remove(&file) {
            self.by_modification.remove(&(heat.modified_ms, file));
            self.by_reading.remove(&(heat.read_ms, file));
        }
    }

    /// When the file was modified that was so longest ago.
    pub fn least_modified_ms(&self) -> Option<u64> {
        self.by_modification.first().map(|&(modified_ms, _)| modified_ms)
    }

    /// The files in the order in which they would be taken out as those that were modified longest ago.
    pub fn write_cold_first(&self) -> impl Iterator<Item = F> {
        self.by_modification.iter().map(|&(_, file)| file)
    }

    /// Those that were read, in the order in which they would be taken out as those that were read last.
    pub fn read_hot_first(&self) -> impl Iterator<Item = F> {
        self.by_reading.iter().rev().take_while(|&&(read_ms, _)| read_ms > 0).map(|&(_, file)| file)
    }

    /// Takes out the file that was modified longest ago.
    pub fn pop_write_cold(&mut self) -> Option<(F, Heat)> {
        let &(_, file) = self.by_modification.first()?;
        self.take(file)
    }

    /// Takes out the file that was read last. One that was never read is not hot.
    pub fn pop_read_hot(&mut self) -> Option<(F, Heat)> {
        let &(read_ms, file) = self.by_reading.last()?;
        if read_ms == 0 { None } else { self.take(file) }
    }

    fn take(&mut self, file: F) -> Option<(F, Heat)> {
        let heat = *self.known.get(&file)?;
        self.remove(file);
        Some((file, heat))
    }

    /// How many files are in the lists.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// True when no file is.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

/// A write entry: blocks of a file that were written together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryHeat {
    /// Its first block in the file.
    pub start: u64,
    /// Its blocks.
    pub len: u64,
    /// When it was written.
    pub modified_ms: u64,
    /// When it was last read.
    pub read_ms: u64,
}

/// The entries of a file that move down: all, when the file was not modified lately, else those that are older than the
/// file's mean.
pub fn write_cold(
    entries: &[EntryHeat],
    file: Heat,
    last_modified_ms: u64,
    now_ms: u64,
) -> impl Iterator<Item = &EntryHeat> {
    let whole = now_ms.saturating_sub(last_modified_ms) > WHOLE_FILE_MS;
    entries.iter().filter(move |entry| whole || entry.modified_ms < file.modified_ms)
}

/// The entries of a file that move for the sake of reads: those that were read, and not before the file's mean. The
/// paper has those after it; of a file that is read as a whole, as small ones are, that would be nothing.
pub fn read_hot(entries: &[EntryHeat], file: Heat) -> impl Iterator<Item = &EntryHeat> {
    entries.iter().filter(move |entry| entry.read_ms > 0 && entry.read_ms >= file.read_ms)
}

/// Blocks of a file, one behind the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The first block in the file.
    pub start: u64,
    /// How many.
    pub len: u64,
}

impl Span {
    /// The first block behind it.
    pub fn end(self) -> u64 {
        self.start.saturating_add(self.len)
    }

    /// The part of the span that moves by one write of the disk, beginning with the block `at`. It has at most
    /// `granularity` blocks, and ends at a multiple of that in the file. Data that moves piece by piece then falls
    /// into the same groups as data that moves at once.
    pub fn group(self, at: u64, granularity: u64) -> Span {
        let granularity = granularity.max(1);
        let limit = (at / granularity + 1).saturating_mul(granularity).min(self.end());
        Span { start: at, len: limit.saturating_sub(at) }
    }
}

/// The spans that entries cover, which come in the order of the file: neighbours together. There are as many at the
/// most as entries, however large these are.
pub fn spans<'e>(entries: impl IntoIterator<Item = &'e EntryHeat>) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for entry in entries {
        match spans.last_mut() {
            Some(last) if last.end() == entry.start => last.len = last.len.saturating_add(entry.len),
            _ => spans.push(Span { start: entry.start, len: entry.len }),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::{EntryHeat, Heat, Span, Temperatures, read_hot, spans, write_cold};

    #[test]
    fn a_mean_follows_what_is_written() {
        let mut heat = Heat::default();
        heat.wrote(10, 10, 1000);
        assert_eq!(heat.modified_ms, 1000);
        heat.wrote(10, 20, 2000);
        assert_eq!(heat.modified_ms, 1500, "half of it is new");
        heat.wrote(5, 20, 3500);
        assert_eq!(heat.modified_ms, 2000);
        heat.read(7, 3, 9000);
        assert_eq!(heat.read_ms, 9000, "more than all is all");
        heat.read(1, 0, 9001);
        heat.wrote(1, u64::MAX, u64::MAX);
        assert_eq!((heat.read_ms, heat.modified_ms), (9001, 2000), "no size, and no overflow");
    }

    fn heat(modified_ms: u64, read_ms: u64) -> Heat {
        Heat { modified_ms, read_ms }
    }

    #[test]
    fn the_coldest_and_the_hottest_come_first() {
        let mut lists = Temperatures::new(10);
        lists.set('a', heat(30, 1));
        lists.set('b', heat(10, 0));
        lists.set('c', heat(20, 3));
        lists.set('b', heat(25, 0));
        assert_eq!(lists.least_modified_ms(), Some(20));
        assert_eq!(lists.write_cold_first().collect::<Vec<_>>(), ['c', 'b', 'a']);
        assert_eq!(lists.read_hot_first().collect::<Vec<_>>(), ['c', 'a'], "one was never read");
        assert_eq!(lists.pop_write_cold(), Some(('c', heat(20, 3))));
        assert_eq!(lists.pop_write_cold(), Some(('b', heat(25, 0))));
        lists.set('d', heat(0, 2));
        assert_eq!(lists.pop_read_hot(), Some(('d', heat(0, 2))));
        assert_eq!(lists.pop_read_hot(), Some(('a', heat(30, 1))));
        lists.set('e', heat(5, 0));
        assert_eq!(lists.pop_read_hot(), None, "it was never read");
        lists.remove('e');
        assert!(lists.is_empty() && lists.pop_write_cold().is_none());
    }

    #[test]
    fn full_lists_forget_whose_turn_comes_last() {
        let mut lists = Temperatures::new(3);
        let set =
            [(1, 50), (2, 10), (3, 40), (4, 20), (5, 60)].map(|(file, at)| lists.set(file, heat(at, at)));
        assert_eq!(set, [None, None, None, Some(1), Some(5)]);
        assert!(lists.len() == 3 && lists.has(4) && !lists.has(5));
        let order: Vec<_> = std::iter::from_fn(|| lists.pop_write_cold()).map(|(file, _)| file).collect();
        assert_eq!(order, [2, 4, 3]);
    }

    fn entry(start: u64, len: u64, modified_ms: u64, read_ms: u64) -> EntryHeat {
        EntryHeat { start, len, modified_ms, read_ms }
    }

    #[test]
    fn a_file_at_rest_moves_whole_and_a_busy_one_in_part() {
        let entries = [entry(0, 4, 1000, 0), entry(4, 4, 50_000, 7), entry(8, 1, 2000, 9)];
        let starts = |now_ms| -> Vec<u64> {
            write_cold(&entries, heat(20_000, 6), 50_000, now_ms).map(|entry| entry.start).collect()
        };
        assert_eq!(starts(80_000), [0, 8], "30 s are not more than 30 s");
        assert_eq!(starts(80_001), [0, 4, 8]);
        let hot =
            |read_ms| -> Vec<u64> { read_hot(&entries, heat(0, read_ms)).map(|entry| entry.start).collect() };
        assert_eq!((hot(0), hot(7), hot(8)), (vec![4, 8], vec![4, 8], vec![8]));
    }

    #[test]
    fn neighbours_are_grouped_up_to_the_granularity() {
        let made = |entries: &[EntryHeat], granularity| -> Vec<(u64, u64)> {
            let mut groups = Vec::new();
            for span in spans(entries) {
                let mut at = span.start;
                while at < span.end() {
                    let group = span.group(at, granularity);
                    groups.push((group.start, group.len));
                    at = group.end();
                }
            }
            groups
        };
        let at = |start, len| entry(start, len, 0, 0);
        assert_eq!(made(&[at(0, 1), at(1, 1), at(2, 2), at(7, 1)], 16), [(0, 4), (7, 1)]);
        assert_eq!(made(&[at(0, 10), at(10, 10)], 8), [(0, 8), (8, 8), (16, 4)]);
        assert_eq!(made(&[at(3, 10)], 8), [(3, 5), (8, 5)], "they begin where groups begin");
        assert_eq!(made(&[at(5, 3)], 0), [(5, 1), (6, 1), (7, 1)]);
        assert_eq!(made(&[at(u64::MAX - 2, 2)], 16), [(u64::MAX - 2, 2)], "nothing overflows");
        assert_eq!(made(&[], 16), []);
    }

    #[test]
    fn a_span_is_not_larger_for_more_blocks() {
        let entries = [entry(0, 1 << 40, 0, 0), entry(1 << 40, 1 << 40, 0, 0), entry(1 << 42, 1 << 50, 0, 0)];
        assert_eq!(spans(&entries), [Span { start: 0, len: 1 << 41 }, Span { start: 1 << 42, len: 1 << 50 }]);
    }
}
