//! How much of a file on disk is read ahead: a window that grows with reads in order, and nothing for random reads.
//!
//! A reader that meets a missing block fetches the rest of the window with it. Meanwhile as much again can be fetched
//! behind the window, so that the reader finds it there when it comes.
//!
//! The state of a file is the few places at which it is read in order. A read that continues one of them makes its
//! window larger. Any other read begins a new place without a window, and replaces the least recently used one.

use std::ops::Range;

/// Places in a file at which reads go on, at the most.
const STREAMS: usize = 4;
/// The smallest window, in blocks: 32 KiB.
const FIRST: u64 = 8;
/// Reads that several threads have of one stream come out of order: by so many blocks at the most, 128 KiB.
const DISORDER: u64 = 32;

/// Blocks that are read in order: from the first to the one behind the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Stream {
    begin: u64,
    next: u64,
    /// Blocks before this one were asked for, or fetched by a reader.
    asked: u64,
}

/// The state of the reads of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadAhead {
    /// The one that was used last is the first. One without blocks is none, or the begin of the file.
    streams: [Stream; STREAMS],
}

impl ReadAhead {
    /// A read of blocks; gives how many are worth fetching at once from the first on that is missing, `most` at the
    /// most, or 0 for only those that are read.
    pub fn read(&mut self, start: u64, blocks: u64, most: u64) -> u64 {
        let end = start.saturating_add(blocks);
        let found = self.streams.iter().position(|stream| stream.has_next(start));
        let mut stream = match found {
            Some(at) => self.streams[at],
            None => Stream { begin: start, next: start, asked: start },
        };
        let goes_on = found.is_some() && end > stream.next && start.saturating_add(1) >= stream.next;
        stream.next = stream.next.max(end);
        let last = found.unwrap_or(STREAMS - 1);
        self.streams.copy_within(..last, 1);
        self.streams[0] = stream;
        let run = stream.next - stream.begin;
        // A power of two, so that what is fetched does not begin and end anywhere.
        if goes_on { run.clamp(FIRST, most.max(FIRST)).next_power_of_two().min(most) } else { 0 }
    }
}

impl ReadAhead {
    /// As [`ReadAhead::read`], and the blocks behind that window that are worth fetching meanwhile: one more window,
    /// but nothing while less than half of it is new.
    pub fn read_on(&mut self, start: u64, blocks: u64, most: u64) -> (u64, Range<u64>) {
        let window = self.read(start, blocks, most);
        let stream = &mut self.streams[0];
        if window > 0 && stream.asked <= start {
            // It was not fetched before: it comes with the read.
            stream.asked = stream.next.max(start.saturating_add(window));
        }
        let end = stream.next.saturating_add(window);
        if window == 0 || end.saturating_sub(stream.asked) < window.div_ceil(2) {
            return (window, 0..0);
        }
        let behind = stream.asked..end;
        stream.asked = end;
        (window, behind)
    }
}

impl Stream {
    /// Whether a read continues this stream. It does if it begins at the end of the stream or in its last block, or
    /// near these if as much was read in order. A read that begins further back comes from another reader,
    /// which reads the blocks again.
    fn has_next(self, start: u64) -> bool {
        let near = (self.next - self.begin).min(DISORDER);
        (self.next.saturating_sub(near.max(1))..=self.next.saturating_add(near)).contains(&start)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, proptest};

    use super::ReadAhead;

    const MOST: u64 = 256;

    #[test]
    fn a_window_grows_with_what_was_read_in_order() {
        let mut file = ReadAhead::default();
        let windows: Vec<u64> = (0..300).map(|block| file.read(block, 1, MOST)).collect();
        assert_eq!((windows[0], windows[7], windows[8], windows[40], windows[299]), (8, 8, 16, 64, MOST));
        // In the middle of a file, from the second read on; in parts of blocks, too.
        let mut file = ReadAhead::default();
        assert_eq!([1000, 1032, 1063, 1095].map(|start| file.read(start, 32, MOST)), [0, 64, 128, 128]);
        assert_eq!(file.read(1127, 32, 4), 4, "no more than is allowed");
    }

    #[test]
    fn what_comes_behind_a_read_is_asked_for_once_and_before_it_is_read() {
        for io in [1, 3, 16, 32, 256] {
            let mut file = ReadAhead::default();
            // What the reader fetches himself, and what is fetched for him.
            let (mut there, mut asked, mut late) = (0, 0, 0);
            for at in (0..10_000 / io).map(|step| step * io) {
                let (window, behind) = file.read_on(at, io, MOST);
                if at + io > there {
                    late += 1;
                    there = there.max(at + io.max(window));
                }
                assert!(behind.is_empty() || behind.start == there, "{behind:?} behind {there}");
                assert!(behind.end <= at + io + MOST);
                asked += behind.end - behind.start;
                there = there.max(behind.end);
            }
            assert_eq!(late, 1, "reads of {io} blocks");
            assert!(there >= 10_000 && asked + MOST.max(io) >= there, "{asked} of {there}");
        }
        let mut file = ReadAhead::default();
        assert_eq!([77, 9000, 200, 4].map(|block| file.read_on(block, 1, MOST)), [const { (0, 0..0) }; 4]);
    }

    #[test]
    fn reads_here_and_there_are_read_as_they_are() {
        let mut file = ReadAhead::default();
        let mut block = 7_777_777_u64;
        for _ in 0..1000 {
            block = block.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            assert_eq!(file.read((block >> 32) + 9, 1, MOST), 0);
        }
        // Nor does a file that was read as a whole make them anything else.
        (0..5000).for_each(|block| _ = file.read(block, 1, MOST));
        assert_eq!([17, 3000, 1200, 40].map(|block| file.read(block, 1, MOST)), [0; 4]);
    }

    #[test]
    fn readers_of_one_file_do_not_disturb_each_other() {
        let mut file = ReadAhead::default();
        for step in 0..40 {
            let windows = [0, 10_000, 20_000].map(|from| file.read(from + 32 * step, 32, MOST));
            file.read(1_000_000 + 7919 * step, 1, MOST);
            assert!(step < 8 || windows == [MOST; 3], "{windows:?} at {step}");
        }
        // Several threads read ahead for one: their reads come out of order.
        let mut file = ReadAhead::default();
        let windows: Vec<_> = [0, 64, 32, 96, 160, 128, 192].map(|from| file.read(from, 32, MOST)).into();
        assert!(windows[3] >= 128 && windows[6] == MOST, "{windows:?}");
    }

    proptest! {
        #[test]
        fn any_reads_give_no_more_than_is_allowed(
            reads in prop::collection::vec((any::<u64>(), any::<u64>()), 1..100), most in 0..1000u64
        ) {
            let mut file = ReadAhead::default();
            for (start, blocks) in reads {
                let mut before = file;
                let (window, behind) = file.read_on(start, blocks, most);
                assert!(window <= most && behind.end.saturating_sub(behind.start) <= 2 * most);
                assert_eq!(before.read(start, blocks, most), window);
            }
        }
    }
}
